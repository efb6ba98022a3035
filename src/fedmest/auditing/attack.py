"""The attack: the messages of all rounds, how replies are read, and the games."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from fedmest.auditing.found import Audit
from fedmest.auditing.scenes import COLUMNS, Scene, Stage
from fedmest.engines import LocalEngine
from fedmest.errors import InputError
from fedmest.federation import Index
from fedmest.fitting import privacy_report
from fedmest.methods import Server, Step
from fedmest.models import Clipping
from fedmest.privacy.gdp import Array
from fedmest.privacy.statement import PrivacyReport
from fedmest.queries import Ask, Histogram, Query
from fedmest.queries.histogram import SCORE_GRID
from fedmest.scaling import FINE_BINS, SIGNED_GRID, Scaling
from fedmest.terms import Terms

BOUND = 1.0  # where the run would buy one: the server may say what it likes, noise follows
SPLITS = 8  # of rows into halves, where a query reads halves: the attacker does not know which
ROOM = 4_000_000  # numbers in the rows of the games that are played at once
LOOKED_AT = 4  # coordinates of a release, in which noise is looked through
BEYOND_CHANCE = 8.0  # standard errors of a correlation, of which there are a hundred thousand


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
