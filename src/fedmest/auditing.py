"""Attacks on our own releases: the distinguishing game, played thousands of times.

Two data sets of one site differ in one row. Somebody who chose both rows, all other rows and the messages of the
server, and who sees everything that the site sends in the whole schedule, has to say which of the two the site holds.
From how often that goes wrong follows a lower bound on mu: of mu-Gaussian privacy, false positives at rate a and false
negatives at rate b leave mu >= Phi^-1(1 - a) - Phi^-1(b) (Dong, Roth, Su 2022), and Clopper and Pearson's intervals for
a and b make a bound with a confidence of it.

Sites are the games: a federation of thousands of sites with the same rows, each with noise of its own, is asked along
the schedule by the engine that `fit` uses. Beside every site under attack stands another whose rows the attacker knows,
in case that their noise has something in common. Replies without noise and noise that repeats itself, which no test of
two data sets would have to show, are looked for as well.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from functools import cached_property
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import stats

from fedmest.engines import LocalEngine
from fedmest.errors import InputError
from fedmest.federation import Federation, Index
from fedmest.fitting import carry_out, privacy_report
from fedmest.methods import CALIBRATIONS, METHODS, Method, Server, Step, method_named
from fedmest.models import MODELS, Clipping, Model, NetworkModel, model_named
from fedmest.privacy.gdp import Array
from fedmest.privacy.statement import PrivacyReport
from fedmest.queries import Ask, Descent, Histogram, Query
from fedmest.queries.histogram import SCORE_GRID
from fedmest.scaling import FINE_BINS, SIGNED_GRID, Scaling
from fedmest.terms import Terms, Wishes

OBSERVERS = ("server", "public")
NETWORK = "network"  # a small one, to stand for all
COLUMNS = 4
CLASSES = 3
SETTINGS = ("bound", "clip", "schedule", "scaling", "ridge", "errors")  # of `fit`, that an audit can take
BOUND = 1.0  # where the run would buy one: the server may say what it likes, noise follows
SPLITS = 8  # of rows into halves, where a query reads halves: the attacker does not know which
ROOM = 4_000_000  # numbers in the rows of the games that are played at once
THRESHOLDS = 400
LOOKED_AT = 4  # coordinates of a release, in which noise is looked through
BEYOND_CHANCE = 8.0  # standard errors of a correlation, of which there are a hundred thousand
CAUTION = 1 - 1e-8  # confidence in learning: thresholds far out in a tail must earn their place
SHORT = {"K": 2, "R": 1, "K1": 2, "K2": 2, "cycles": 1}  # options of audits of networks in the table of all
OTHER_SITES, MORE_ROWS = 4, 30  # beside the one under attack, where only the published estimate is seen


@dataclass(frozen=True)
class Scene:
    """Two data sets that differ in their last row, and what the server may send."""

    name: str
    X: Array  # the rows that both have in common
    y: Array
    first: tuple[Array, float]
    second: tuple[Array, float]
    thetas: tuple[Array, ...]

    def rows(self, other: bool, times: int = 1) -> tuple[Array, Array]:
        """One of the data sets, the common rows so many times."""
        x, y = self.second if other else self.first
        return np.vstack([np.tile(self.X, (times, 1)), x]), np.append(np.tile(self.y, times), y)


@dataclass(frozen=True)
class Audit:
    """What an attack found, beside what is claimed.

    `mu_lower` holds with the given confidence. `mu_exact` is what the best test of this attack would find, known where
    all that the site sends is Gaussian given the past, with the noise that the queries state.
    """

    method: str
    model: str
    calibration: str
    observer: str
    release: str | None
    mu_claimed: float
    mu_lower: float
    mu_exact: float | None
    confidence: float
    games: int
    false_positives: int
    false_negatives: int
    scene: str
    certified: bool
    leak: str = ""  # what tells the data sets apart, or undoes the noise, whatever its size
    scores: tuple[Array, Array] = field(repr=False, default=(np.zeros(0), np.zeros(0)))

    @property
    def broken(self) -> bool:
        """Whether the claim is refuted, at this confidence."""
        return bool(self.leak) or self.mu_lower > self.mu_claimed

    @property
    def verdict(self) -> str:
        return "refuted" if self.broken else "not refuted"

    def roc(self) -> tuple[Array, Array]:
        """False and true positive rates of the attack at every threshold."""
        cuts = np.unique(np.concatenate(self.scores))[::-1]
        rates = [1 - np.searchsorted(np.sort(s), cuts, side="left") / len(s) for s in self.scores]
        return np.concatenate([[0.0], rates[0]]), np.concatenate([[0.0], rates[1]])

    def as_dict(self) -> dict[str, Any]:
        """Plain numbers and texts, for JSON, which knows no infinity."""
        names = (
            "method", "model", "calibration", "observer", "release", "mu_claimed", "mu_lower", "mu_exact", "confidence",
            "games", "false_positives", "false_negatives", "scene", "certified", "leak", "verdict",
        )  # fmt: skip
        values = {name: getattr(self, name) for name in names}
        return {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in values.items()}

    def plot(self, path: str | Path) -> None:
        """The attack's ROC curve, and the most that the claim allows."""
        draw_roc(self, Path(path))


def audit(
    method: str | type[Method] = "fedsgd",
    model: str | Model = "logistic",
    mu: float = 1.0,
    *,
    calibration: str = "certified",
    observer: str = "server",
    games: int = 20_000,
    confidence: float = 0.99,
    scene: str | None = None,
    release: str | None = None,
    seed: int = 0,
    engine: Callable[..., LocalEngine] = LocalEngine,
    settings: dict[str, Any] | None = None,
    **options: Any,
) -> Audit:
    """Attack what one site sends in a whole run, or (observer="public") what the server publishes.

    method: an id, or a class of your own. model: a name ("network" is a small one), or a network of four inputs.
    games: how many are judged, half of them with either data set; as many again teach the attacker. Where only the
    estimate is seen, every game is a whole run.
    scene: the attack to mount; by default the one that promises most. release: attack one kind of release alone, such
    as "mean curvature", beside its own price; what is cheap would drown in the whole.
    settings: of `fit` (bound, clip, schedule, scaling, ridge, errors). Options of the method go by name.

    >>> found = audit("fedsgd", "logistic", mu=1.0, games=2000, K=5)
    >>> round(found.mu_claimed, 6), found.verdict, 0.5 < found.mu_lower < found.mu_exact < 1.000001
    (1.0, 'not refuted', True)
    """
    kind = _checked(method, model, observer, games, confidence, mu, seed, settings or {})
    stage = Stage(kind, model, float(mu), calibration, settings or {}, options, engine, release)
    scenes = {s.name: s for s in stage.scenes()}
    if scene is not None and scene not in scenes:
        raise InputError(f"there is no scene {scene!r}; choose one of {', '.join(scenes)}")
    attack = max(
        (Attack(stage, s) for name, s in scenes.items() if scene in (None, name)), key=lambda a: a.promise
    )
    ceiling = float(_lower(np.zeros(1), np.zeros(1), games // 2, confidence)[0])
    if ceiling <= attack.claim:
        raise InputError(f"{games:,} games cannot refute mu = {attack.claim:.3g}: even without a mistake they show "
                         f"{ceiling:.3g}; play more, or attack a smaller claim")  # fmt: skip
    if observer == "public":
        first, second, claim = _published(attack, games, seed)
        return _judge(attack, first, second, claim, games, confidence, observer, attack.leak)
    if attack.leak:
        return attack.verdict(attack.claim, math.inf, None, confidence, games, (0, 0), observer, attack.leak)
    worlds = [attack.play(other, games, seed) for other in (False, True)]
    return _judge(
        attack, worlds[0].features, worlds[1].features, attack.claim, games, confidence, observer,
        attack.repeats(worlds[0], worlds[1]),
    )  # fmt: skip


def _checked(
    method: Any, model: Any, observer: str, games: Any, confidence: Any, mu: Any, seed: Any, settings: Any
) -> type[Method]:
    """The method, or an InputError that says what is wrong with the call."""
    kind = method_named(method) if isinstance(method, str) else method
    if not (isinstance(kind, type) and issubclass(kind, Method) and hasattr(kind, "id")):
        raise InputError(f"method={method!r}: give the id of a method, or a class that is one")
    if not isinstance(model, (str, Model)):
        raise InputError(f"model={model!r}: give a name, or a model")
    if isinstance(model, NetworkModel) and math.prod(model.row_shape) != COLUMNS:
        raise InputError(f"an audit takes networks of {COLUMNS} inputs, not of {math.prod(model.row_shape)}")
    if not kind.private:
        raise InputError(f"method {kind.id!r} is not private; there is nothing to audit")
    if observer not in OBSERVERS:
        raise InputError(f"observer={observer!r}: choose one of {', '.join(OBSERVERS)}")
    if isinstance(games, bool) or not isinstance(games, (int, np.integer)) or games < 100:
        raise InputError(f"games={games!r} must be a whole number of at least 100")
    if not (isinstance(confidence, float) and 0.5 <= confidence < 1):
        raise InputError(f"confidence={confidence!r} must lie between 0.5 and 1")
    if not (isinstance(mu, (int, float, np.floating)) and 0 < mu < math.inf):
        raise InputError(f"mu={mu!r} must be a positive number; without a budget there is nothing to audit")
    if isinstance(seed, bool) or not isinstance(seed, (int, np.integer)) or seed < 0:
        raise InputError(f"seed={seed!r} must be a whole number of at least 0")
    for name in settings:
        if name not in SETTINGS:
            raise InputError(f"an audit cannot take {name!r}; of the settings of fit it takes {', '.join(SETTINGS)}")
    if settings.get("errors", "auto") not in ("auto", "model", "none"):
        raise InputError(f"errors={settings['errors']!r}: an audit takes auto, model or none")
    return kind


# -- what is attacked ----------------------------------------------------------------------------------------


@dataclass
class Stage:
    """A method on a model with a budget, for any number of sites that all hold the same rows."""

    kind: type[Method]
    model: str | Model
    mu: float
    calibration: str
    settings: dict[str, Any]
    options: dict[str, Any]
    engine: Callable[..., LocalEngine]
    release: str | None

    def __post_init__(self) -> None:
        self.model_name = self.model if isinstance(self.model, str) else self.model.name

    def fresh_model(self) -> Model:
        if self.model == NETWORK:
            return small_network()
        return model_named(self.model) if isinstance(self.model, str) else copy(self.model)

    def run(self, X: Array, y: Array, sites: npt.ArrayLike, seed: int) -> tuple[Terms, LocalEngine]:
        """Terms and sites of a run on these rows."""
        federation = Federation.from_arrays(X, y, sites, degenerate="keep")
        model = self.fresh_model()
        target = model.target(federation)
        usual = {"scaling": "none" if self.calibration == "paper" else "private", "fit_intercept": False}
        wishes = Wishes(**{"calibration": self.calibration, **(usual if model.linear else {}), **self.settings})
        terms = Terms.agree(federation, model, self.kind, self.mu, wishes, self.options)
        if model.linear and "ridge" not in self.settings:
            terms = replace(terms, wishes=replace(terms.wishes, ridge=_ridge(terms)))
        return terms, self.engine(federation, model, target, terms.intercept, seed)

    def scenes(self) -> Iterator[Scene]:
        """The rows that an attacker would choose.

        A margin: one of the thetas puts rows that have something in the first column far on the wrong side, so that
        their scores are as long as clipping lets them be and stay so in all local steps.
        """
        model = self.fresh_model()
        name = model.name if model.linear else NETWORK
        counted = name in ("poisson", "linear")
        outputs = CLASSES if name == "multinomial" else 1
        zero = np.zeros((outputs, COLUMNS))
        margin = zero.copy()
        margin[0, 0], margin[1:2, 0] = -1000.0, 1000.0
        thetas = (margin, zero) if model.linear else _starts(model)
        responses = (1000.0, 4000.0) if counted else (1.0, 1.0) if outputs == 1 else (0.0, 0.0)
        classes = 2 if name in ("logistic", NETWORK) else CLASSES
        along = np.array([0.0, *[3.0 / math.sqrt(COLUMNS - 1)] * (COLUMNS - 1)])
        shift, axes = np.array([0.3, 0.0, 0.0, 0.0]), np.eye(COLUMNS)

        def labels(n: int) -> Array:
            return np.zeros(n) if counted else np.arange(n, dtype=float) % classes

        none, few = np.zeros((9, COLUMNS)), labels(9)
        pair = ((shift + along, responses[0]), (2 * (shift - along), responses[1]))
        yield Scene("opposite scores", none, few, *pair, thetas)
        yield Scene("a score or none", none, few, pair[0], (0 * along, responses[1]), thetas)
        huge = ((shift + 1e6 * along, responses[0]), (2 * shift - 2e6 * along, responses[1]))
        yield Scene("huge rows", none, few, *huge, thetas)
        level = 0.0 if name == "linear" else responses[0]
        yield Scene("orthogonal rows", none, few, (3 * axes[1], level), (6 * axes[2], level), thetas)
        if name in ("logistic", NETWORK):
            far = shift + 10 * along
            yield Scene("the other label", none, few, (far, 1.0), (far, 0.0), thetas)
        if name == NETWORK:  # the labels of all other rows balance: the last one decides where the mean points
            yield Scene("a row that turns the mean", np.zeros((48, COLUMNS)), labels(48), (0 * along, 1.0),
                        (0 * along, 0.0), thetas)  # fmt: skip
        if name != "logistic":
            return
        ones = np.ones(19)
        weak = np.outer(ones, 0.1 * axes[1])  # hardly any curvature but for the last row
        yield Scene("a row that carries the curvature", weak, ones, (3 * axes[1], 0.0), (3 * axes[2], 0.0), (zero,))
        spread = 1.9 * axes[np.arange(199) % COLUMNS]  # curvature 0.22 in every direction, with or without the last row
        steep = ((1.9 * axes[2], 1.0), (20 * axes[1], 1.0))
        yield Scene("a steep row", spread, (np.arange(199) > 0).astype(float), *steep, (zero,))


def _starts(model: Model) -> tuple[Array, ...]:
    """A network's random start, and zero, where all its outputs are alike."""
    start = model.start(COLUMNS + 1, 0)
    return start, np.zeros_like(start)


def _ridge(terms: Terms) -> float:
    """A penalty, which the server may set, that makes most of what sites send after local steps.

    Where it damps a step's gradient to w_k, the last theta tells (sum w_k)^2 / sum(w_k^2 / mu_k^2), at most sum mu_k^2.
    """
    rounds = [step for step in terms.plan.method_steps if isinstance(step.query, Descent)]
    if not rounds:
        return 0.0

    def told(damping: float) -> float:
        weights = [damping ** np.arange(len(step.mus) - 1, -1, -1.0) for step in rounds]
        return sum(
            float(w.sum() ** 2 / np.sum((w / step.mus[:, 0]) ** 2)) for w, step in zip(weights, rounds, strict=True)
        )

    assert isinstance(rounds[0].query, Descent)
    return float(1 - max(np.linspace(0.4, 1.0, 61), key=told)) / rounds[0].query.eta


def small_network() -> NetworkModel:
    def layers() -> Any:
        from torch import nn

        return nn.Sequential(nn.Linear(COLUMNS, 3), nn.Tanh(), nn.Linear(3, 2))

    return NetworkModel(layers, (COLUMNS,), name=NETWORK)


# -- the attack ----------------------------------------------------------------------------------------------


@dataclass
class Ruler:
    """In the place of noise: so many standard deviations of it everywhere. None of them is silence, what the attacker
    knows beforehand; one tells how much noise is in a reply.
    """

    unit: float
    stepwise: bool = False  # whether noise went on local steps

    def add(self, values: Array, sds: Array, sites: Index, release: int = 0) -> None:
        values += self.unit * sds[:, None]

    def add_step(self, values: Array, sd: float, site: int, step: int) -> None:
        self.stepwise = True
        values += self.unit * sd


@dataclass(frozen=True)
class Message:
    """What the server sends in a round, and how its replies are read."""

    theta: Array
    edges: Array | None
    silent: Array  # (2, floats): the replies without noise
    sds: Array
    directions: Array  # (floats, k): replies times these are the evidence
    looked: Index  # coordinates in which noise is looked through
    evidence: float  # the square of what the round adds to mu, were it Gaussian
    additive: bool  # noise is added last, of the size that is stated
    gaussian: bool

    @property
    def middle(self) -> Array:
        """To take off, so that no digits are lost."""
        return np.asarray(self.silent.mean(axis=0))


@dataclass(frozen=True)
class World:
    """What games with one of the data sets gave."""

    features: Array  # (games, ...): evidence of the site under attack, of the one beside it, and coordinates of both
    noise: Array  # those coordinates, less what they would be without noise
    bare: bool  # some reply had no noise at all


class Attack:
    """The messages of all rounds, chosen for a scene."""

    def __init__(self, stage: Stage, scene: Scene) -> None:
        self.stage, self.scene, self.leak = stage, scene, ""
        rows = [scene.rows(other) for other in (False, True)]
        X, y = np.vstack([rows[0][0], rows[1][0]]), np.concatenate([rows[0][1], rows[1][1]])
        runs = [stage.run(X, y, np.repeat([0, 1], len(rows[0][1])), seed) for seed in range(SPLITS)]
        self.terms, self.engines = runs[0][0], [engine for _, engine in runs]
        for engine in self.engines:  # the same rows in the same half, with either data set
            engine.keys = engine.keys[[0, 0]]
            engine.rescale(Scaling.none(COLUMNS))
        self.clipping = self._bound()
        if self.terms.scaling == "data":
            self.leak = "means and standard deviations of the features, which are read off the rows"
        self.best: dict[Query, Array] = {}  # the theta to send with a query
        self.messages = [self._message(number, step) for number, step in enumerate(self.terms.plan.steps)]

    @cached_property
    def report(self) -> PrivacyReport:
        """What the accountant says of the schedule, carried out."""
        return privacy_report(self._ask_all(self.terms, self.engines[0], lambda values, message: None), [], "")

    @cached_property
    def claim(self) -> float:
        release = self.stage.release
        if release is None:
            return self.report.mu
        prices = {_kind(r.what): 0.0 for r in self.report.releases}
        for r in self.report.releases:
            prices[_kind(r.what)] += float(r.mu[0]) ** 2
        if release not in prices:
            raise InputError(f"this run has no release {release!r}; choose one of {', '.join(prices)}")
        return math.sqrt(prices[release])

    @property
    def promise(self) -> float:
        return math.inf if self.leak else sum(message.evidence for message in self.messages)

    @property
    def exact(self) -> float | None:
        """mu of the whole transcript, where every reply is Gaussian."""
        return math.sqrt(self.promise) if all(message.gaussian for message in self.messages) else None

    def _bound(self) -> Clipping:
        """What the server says; where the run reads it off the rows without noise, the attacker compares."""
        terms, wish = self.terms, self.terms.wishes.bound
        if wish != "paper":
            return terms.clipping(BOUND if isinstance(wish, str) else float(wish or BOUND))
        told = []
        for other in (False, True):
            X, y = self.scene.rows(other)
            alone, engine = self.stage.run(X, y, np.zeros(len(y)), 0)
            told.append(engine.paper_bound(alone.model.start(alone.setting.columns, 0)))
        if told[0] != told[1]:
            self.leak = f"the clipping bound, {told[0]:.3g} or {told[1]:.3g}, which is read off the rows"
        return terms.clipping(max(*told, 1e-3))

    def _edges(self, number: int, step: Step) -> Array | None:
        query = step.query
        if not isinstance(query, Histogram):
            return None
        if query.of != "columns":
            return SCORE_GRID[None]
        if number == 0:
            return np.tile(SIGNED_GRID, (query.groups, 1))
        spans = [5000.0 if column == 0 else 10.0 for column in query.columns]
        return np.stack([np.linspace(-span, span, FINE_BINS + 1) for span in spans])

    def _message(self, number: int, step: Step) -> Message:
        """The theta of the scene's at which the two data sets give replies farthest apart; of those that are nearly as
        good the first, at which noise in local steps does less harm.
        """
        if step.query in self.best:
            return self._reading(number, step, self.best[step.query])
        found = [self._reading(number, step, theta) for theta in self.scene.thetas]
        most = max(message.evidence for message in found)
        message = next(message for message in found if message.evidence >= 0.8 * most)
        self.best[step.query] = message.theta
        return message

    def _reading(self, number: int, step: Step, theta: Array) -> Message:
        """How to read replies: along the move from one data set to the other, over the variance of the noise."""
        query, mus = step.query, step.mus[:, :1]
        edges, clipping = self._edges(number, step), query.clipping(self.clipping, self.terms.model)
        ask = Ask(theta, clipping, self._penalty(), edges=edges, bound=self.clipping.bound)
        kinds = [_kind(release.what) for release in query.releases()]

        def reply(engine: LocalEngine, ruler: Ruler, prices: Array) -> Array:
            return query.answer(engine.data, np.arange(2), ask, prices, ruler)

        split = any(release.part != "all" for release in query.releases()) or bool(query.gaps)
        silent = [reply(engine, Ruler(0.0), mus) for engine in (self.engines if split else self.engines[:1])]
        ruler = Ruler(1.0)
        sds = np.abs(reply(self.engines[0], ruler, mus) - silent[0])
        if ruler.stepwise:
            sds /= math.sqrt(len(mus))
        stated = query.noise_sds(self.terms.facts.sizes[:1].astype(float), clipping, mus)[:, 0]
        close = np.isclose(sds[:, :, None], stated, rtol=1e-6, atol=1e-13 * float(np.abs(silent[0]).max())).any(axis=2)
        additive = not ruler.stepwise and bool(close.all())
        groups = [np.ones(len(sds[0]), dtype=bool)]
        if len(set(kinds)) > 1:  # a release is what its price moves
            doubled = [mus * np.where(np.arange(len(mus)) == r, 2.0, 1.0)[:, None] for r in range(len(mus))]
            moved = [np.abs(reply(self.engines[0], Ruler(1.0), prices) - silent[0])[0] for prices in doubled]
            groups = [np.abs(there - sds[0]) > 0.1 * sds[0] for there in moved]
        else:
            kinds = kinds[:1]
        wanted = [group for group, kind in zip(groups, kinds, strict=True) if self.stage.release in (None, kind)]
        floor = np.maximum(sds[0], 1e-12)
        moves = [_distinct([(second - first) * group for first, second in silent]) for group in wanted]
        flat = [move for some in moves for move in some]
        evidence = sum(max(float(np.sum((move / floor) ** 2)) for move in some) for some in moves)
        wider = np.maximum(sds[1], 1e-12) ** 2 / floor**2  # noise that depends on the rows tells of them, too
        evidence += float(sum(np.sum((wider + 1 / wider)[group] / 2 - 1) for group in wanted))
        # where halves are read, nobody knows what a reply would be without noise
        most = 0 if split else LOOKED_AT
        looked = np.array([i for group in wanted for i in np.flatnonzero(group)[:most]], dtype=np.int64)
        gaussian = additive and len(flat) == len(wanted) and bool(np.allclose(sds[0], sds[1], rtol=1e-6))
        return Message(
            theta, edges, silent[0], floor, np.array([move / floor**2 for move in flat]).reshape(-1, len(floor)).T,
            looked, evidence, additive, gaussian,
        )  # fmt: skip

    def _penalty(self) -> Array:
        return np.full(self.terms.setting.shape, float(self.terms.wishes.ridge))

    def _ask_all(self, terms: Terms, engine: LocalEngine, read: Callable[[Array, Message], None]) -> Server:
        """The whole schedule, put to all sites of an engine."""
        steps = terms.plan.steps
        server = Server(terms.setting, steps, engine.answer, self.clipping, self._penalty())
        for step, message in zip(steps, self.messages, strict=True):
            read(server.ask(step, message.theta, edges=message.edges).values, message)
        return server

    def play(self, other: bool, games: int, seed: int) -> World:
        """As many games as are judged, and as many again to learn from, half of either with this data set."""
        first, rows = self.scene.rows(False), self.scene.rows(other)
        batch = max(1, min(games, ROOM // (2 * rows[0].size)))
        worlds = []
        for begin in range(0, games, batch):
            count = min(batch, games - begin)
            X, y = (np.concatenate([np.concatenate([a, b])] * count) for a, b in zip(rows, first, strict=True))
            word = int(np.random.default_rng([seed, begin, int(other)]).integers(2**63))
            run = self.stage.run(X, y, np.repeat(np.arange(2 * count), len(rows[1])), word)
            worlds.append(self._batch(*run, int(other)))
        return World(
            np.concatenate([w.features for w in worlds]), np.concatenate([w.noise for w in worlds]),
            any(w.bare for w in worlds),
        )  # fmt: skip

    def _batch(self, terms: Terms, engine: LocalEngine, other: int) -> World:
        evidence: list[Array] = []
        coordinates: list[Array] = []
        noise: list[Array] = []
        bare = False

        def read(values: Array, message: Message) -> None:
            nonlocal bare
            evidence.append((values - message.middle) @ message.directions)
            coordinates.append(((values - message.middle) / message.sds)[:, message.looked])
            left = values.copy()
            left[::2] -= message.silent[other]
            left[1::2] -= message.silent[0]
            left /= message.sds
            noise.append(left[:, message.looked])
            bare |= message.additive and len(message.looked) > 0 and bool((np.abs(left).max(axis=1) < 1e-9).any())

        self._ask_all(terms, engine, read)
        told, seen, left = (
            np.concatenate([both[::2], both[1::2]], axis=1)
            for both in (np.concatenate(parts, axis=1) for parts in (evidence, coordinates, noise))
        )
        return World(np.concatenate([told, seen], axis=1), left, bare)

    def repeats(self, first: World, second: World) -> str:
        """What undoes the noise of these games whatever its size, if anything does.

        Noise of other rounds, releases and sites has nothing in common with a coordinate's; local steps mix that of
        one round by themselves.
        """
        if first.bare or second.bare:
            return "replies without any noise"
        rounds = np.concatenate([np.full(len(m.looked), k) for k, m in enumerate(self.messages)])
        added = np.concatenate([np.full(len(m.looked), m.additive) for m in self.messages]).astype(bool)
        both, count = np.tile(added, 2), len(first.noise)
        if both.any() and np.allclose(first.noise[:20][:, both], second.noise[:20][:, both], rtol=1e-6):
            return "noise that does not depend on the seed"
        spread = first.noise.std(axis=0)
        noise = (first.noise - first.noise.mean(axis=0)) / np.maximum(spread, 1e-300)
        common = np.abs(noise.T @ noise) / count
        place = np.concatenate([rounds, rounds + 0.5])  # a round at either site
        common[(place[:, None] == place) & ~both] = 0.0
        np.fill_diagonal(common, 0.0)
        if common.size and common.max() > BEYOND_CHANCE / math.sqrt(count):
            pair = sorted(place[list(np.unravel_index(int(common.argmax()), common.shape))].tolist())
            where = [f"round {int(p) + 1}" + (" of another site" if p % 1 else "") for p in pair]
            return f"noise that has something in common: {where[0]} and {where[1]}"
        return ""

    def verdict(
        self, claim: float, lower: float, exact: float | None, confidence: float, games: int, wrong: tuple[int, int],
        observer: str, leak: str, scores: tuple[Array, Array] = (np.zeros(0), np.zeros(0)),
    ) -> Audit:  # fmt: skip
        stage = self.stage
        certified = self.report.certified and self.terms.scaling != "data"
        return Audit(
            stage.kind.id, stage.model_name, stage.calibration, observer, stage.release, claim, lower, exact,
            confidence, games, *wrong, self.scene.name, certified, leak, scores,
        )  # fmt: skip


def _kind(what: str) -> str:
    return "local steps" if what.startswith("local step") else what


def _distinct(moves: list[Array]) -> list[Array]:
    """Those that are no multiples of earlier ones; one at least."""
    kept = [max(moves, key=lambda move: float(np.linalg.norm(move)))]
    for move in moves:
        units = [k / max(float(np.linalg.norm(k)), 1e-300) for k in kept]
        if all(float(np.linalg.norm(move - (move @ u) * u)) > 1e-6 * float(np.linalg.norm(kept[0])) for u in units):
            kept.append(move)
    return kept


def _published(attack: Attack, games: int, seed: int) -> tuple[Array, Array, float]:
    """Estimates of whole runs with either data set at one site of several, and what is claimed of them.

    Scales and bound are told: rows like these would make nonsense of them. Sites have more rows than where the server
    is the attacker: it will not hold theta in place, so noise must not move it far.
    """
    first, found = attack.scene.rows(False, MORE_ROWS), []
    sites = np.repeat(np.arange(OTHER_SITES + 1), len(first[1]))
    for other in (False, True):
        rows = attack.scene.rows(other, MORE_ROWS)
        X, y = (np.concatenate([a, *[b] * OTHER_SITES]) for a, b in zip(rows, first, strict=True))
        terms, engine = attack.stage.run(X, y, sites, 0)
        terms = replace(terms, wishes=replace(terms.wishes, bound=attack.clipping.bound, scaling="none"))
        words = np.random.default_rng([seed, int(other), 1]).integers(2**63, size=games)
        for word in words:
            engine.seed = int(word)
            engine.rescale(Scaling.none(COLUMNS))
            result = carry_out(terms, engine)
            found.append(result.theta.ravel())
    values = np.array(found)
    return values[:games], values[games:], result.privacy.third_party


# -- the verdict ---------------------------------------------------------------------------------------------

Statistic = Callable[[Array], Array]


def _judge(
    attack: Attack, first: Array, second: Array, claim: float, games: int, confidence: float, observer: str, leak: str
) -> Audit:
    """Learn from one half of the games how to tell, and count mistakes in the other."""
    half = len(first) // 2
    told = sum(message.directions.shape[1] for message in attack.messages) if observer == "server" else first.shape[1]
    statistic, cut = _learn(first[:half], second[:half], told, observer == "server")
    scores = statistic(first[half:]), statistic(second[half:])
    wrong = int((scores[0] > cut).sum()), int((scores[1] <= cut).sum())
    lower = float(_lower(np.array([wrong[0]]), np.array([wrong[1]]), len(scores[0]), confidence)[0])
    exact = attack.exact if observer == "server" else None
    return attack.verdict(claim, lower, exact, confidence, games, wrong, observer, leak, scores)


def _learn(first: Array, second: Array, told: int, sides: bool) -> tuple[Statistic, float]:
    """The statistic and the threshold that did best.

    Of the first columns, `told` hold the evidence, as many more that of the site beside. Tried are their sum, Fisher's
    discriminant with and without all other columns, and the likelihood ratio of independent normals.
    """
    most = 2 * told if sides else told
    tries: list[Statistic] = [_fisher(first, second, most), _normals(first, second, most)]
    if sides:
        tries += [lambda x: np.asarray(x[:, :told].sum(axis=1)), _fisher(first, second, first.shape[1])]
    best: tuple[float, Statistic, float] = (-math.inf, tries[0], 0.0)
    for statistic in tries:
        scores = np.sort(statistic(first)), np.sort(statistic(second))
        cuts = np.quantile(np.concatenate(scores), np.linspace(0.001, 0.999, THRESHOLDS))
        positives = len(first) - np.searchsorted(scores[0], cuts, side="right")
        negatives = np.searchsorted(scores[1], cuts, side="right")
        bounds = _lower(positives, negatives, len(first), CAUTION)
        place = int(np.argmax(bounds))
        if bounds[place] > best[0]:
            best = (float(bounds[place]), statistic, float(cuts[place]))
    return best[1], best[2]


def _fisher(first: Array, second: Array, columns: int) -> Statistic:
    """The linear discriminant of the first columns."""
    first, second = first[:, :columns], second[:, :columns]
    centre, gap = first.mean(axis=0), second.mean(axis=0) - first.mean(axis=0)
    scale = np.sqrt((first.var(axis=0) + second.var(axis=0)) / 2)
    scale = np.maximum(scale, np.maximum(1e-9 * np.abs(gap), 1e-300))
    both = np.concatenate([(first - centre) / scale, (second - centre - gap) / scale])
    inner = both.T @ both / len(both) + 1e-10 * np.eye(columns)
    weights = np.linalg.solve(inner, gap / scale) / scale
    return lambda x: np.asarray((x[:, :columns] - centre) @ weights)


def _normals(first: Array, second: Array, columns: int) -> Statistic:
    """The log-likelihood ratio of normals that differ in mean and variance, column by column."""
    means = [world[:, :columns].mean(axis=0) for world in (first, second)]
    gap = np.abs(means[1] - means[0])
    sds = [np.maximum(w[:, :columns].std(axis=0), np.maximum(1e-9 * gap, 1e-300)) for w in (first, second)]

    def ratio(x: Array) -> Array:
        parts = [((x[:, :columns] - m) / s) ** 2 / 2 + np.log(s) for m, s in zip(means, sds, strict=True)]
        return np.asarray((parts[0] - parts[1]).sum(axis=1))

    return ratio


def _lower(positives: npt.NDArray[Any], negatives: npt.NDArray[Any], games: int, confidence: float) -> Array:
    """The bound on mu from mistakes among so many games with either data set, by Clopper and Pearson's intervals."""
    level = 1 - (1 - confidence) / 2
    above = [
        np.where(wrong < games, stats.beta.ppf(level, wrong + 1, np.maximum(games - wrong, 1)), 1.0)
        for wrong in (positives, negatives)
    ]
    return np.maximum(-(stats.norm.ppf(above[0]) + stats.norm.ppf(above[1])), 0.0)


# -- all of them ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """A line in the table of all audits."""

    method: str
    model: str
    calibration: str
    settings: dict[str, Any]

    def audit(self, mu: float, games: int, options: dict[str, Any], **more: Any) -> Audit:
        """With fewer games and local steps for networks, of which sites are asked one after another."""
        if self.model == NETWORK:
            known = getattr(METHODS[self.method], "__dataclass_fields__", {})
            games = max(games // 4, 100)
            options = {**{k: v for k, v in SHORT.items() if k in known}, **options}
        return audit(self.method, self.model, mu, calibration=self.calibration, games=games, settings=self.settings,
                     **more, **options)  # fmt: skip


def cases(
    methods: Sequence[str] = (), models: Sequence[str] = (), calibrations: Sequence[str] = CALIBRATIONS,
    settings: dict[str, Any] | None = None,
) -> Iterator[Case]:  # fmt: skip
    """Every method with every model that it takes, as it runs by default, and with what else is worth a look.

    A uniform schedule, of which nothing is hidden by later steps; the paper's calibration with a bound that is told.
    Networks only where torch is installed.
    """
    every = [name for name in MODELS if model_named(name).linear] + [NETWORK] * (find_spec("torch") is not None)
    for name, model, calibration in product(methods or METHODS, models or every, calibrations):
        kind = method_named(name)
        known = small_network() if model == NETWORK else model_named(model)
        if not kind.private or not kind.takes(known) or (calibration == "paper" and not kind.in_paper):
            continue
        variants: list[dict[str, Any]] = [{}]
        if calibration == "paper":
            variants.append({"bound": 0.01 if model == NETWORK else BOUND})
        elif known.linear and "eta" in getattr(kind, "__dataclass_fields__", {}):
            variants.append({"schedule": "uniform"})
        for variant in [settings] if settings else variants:
            yield Case(name, model, calibration, variant)


def draw_roc(found: Audit, path: Path) -> None:
    from fedmest.studies.figures import STYLE, check_installed

    check_installed()
    import matplotlib
    from matplotlib import pyplot as plt

    with matplotlib.rc_context(STYLE):
        figure, axes = plt.subplots(figsize=(4.2, 4.2), layout="constrained")
        rates = np.linspace(0, 1, 500)
        claimed = stats.norm.cdf(stats.norm.ppf(rates) + found.mu_claimed)
        axes.fill_between(rates, claimed, 1, color="0.92", linewidth=0)
        axes.plot(rates, claimed, color="0.25", label=f"most that {found.mu_claimed:.3g}-GDP allows")
        axes.plot([0, 1], [0, 1], color="0.7", linestyle=":", label="guessing")
        if len(found.scores[0]):
            axes.plot(*found.roc(), color="#D55E00", label=f"attack: {found.scene}")
        axes.set(xlim=(0, 1), ylim=(0, 1), xlabel="false positives", ylabel="true positives", aspect="equal",
                 title=f"{found.method}, {found.model}, {found.calibration}")  # fmt: skip
        axes.legend(loc="lower right")
        figure.savefig(path, dpi=150)
        plt.close(figure)
