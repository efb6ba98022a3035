"""What a method is made of: a schedule of steps, written before any row is read, and the server's side of the run."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any, ClassVar, Protocol

import numpy as np

from fedmest.checkpoint import Checkpoint, Kept
from fedmest.errors import InputError
from fedmest.federation import Index
from fedmest.models import Clipping, Model
from fedmest.privacy.budget import split
from fedmest.privacy.gdp import Array
from fedmest.queries import Ask, Query

WEIGHTS = ("size", "optimal")
CALIBRATIONS = ("certified", "paper")
LARGEST_KEPT = 10_000  # parameters up to which every iterate is kept; networks have hundreds of thousands


@dataclass(frozen=True)
class Setting:
    """The public facts that a schedule may depend on. There is no row in it."""

    model: Model
    sizes: Index
    columns: int
    mu: float
    calibration: str = "certified"
    clip: str = "consistent"
    schedule: str = "geometric"
    weighting: str = "size"
    weight_constant: float = 1.0
    participation: float = 1.0
    seed: int = 0  # of public draws, the start of a network and who takes part; the noise has another

    @property
    def paper(self) -> bool:
        return self.calibration == "paper"

    @property
    def shape(self) -> tuple[int, int]:
        """Shape of theta."""
        return self.model.shape(self.columns)

    @cached_property
    def everyone(self) -> Index:
        return np.arange(len(self.sizes), dtype=np.int64)

    def damping(self, eta: float) -> float:
        """How much a gradient step shrinks what came before it, guessed from the model's typical curvature."""
        return min(max(1.0 - eta * self.model.typical_curvature, 0.5), 0.99)

    def weights(self, releases: int = 1) -> Array:
        """Aggregation weights, summing to one: by size, or the paper's optimal ones (after its Theorem 1)."""
        n = self.sizes.astype(float)
        if self.weighting == "size" or math.isinf(self.mu):
            return np.asarray(n / n.sum())
        d = math.prod(self.shape)
        sampling = self.weight_constant * d / n
        privacy = d * max(d, math.log(n.sum())) * releases / (self.mu * n) ** 2
        w = 1.0 / (sampling + privacy)
        return np.asarray(w / w.sum())


@dataclass(frozen=True)
class Step:
    """One round: a query, the price of each of its releases, who takes part, and how replies are weighted.

    `mus` is (releases, 1) where all sites pay alike, else (releases, sites taking part).
    """

    query: Query
    mus: Array
    sites: Index
    weights: Array

    def only(self, sites: Index) -> "Step":
        """The step as it went where some sites did not answer: the others stand in for them, by weight."""
        if len(sites) == len(self.sites):
            return self
        there = np.isin(self.sites, sites)
        weights = self.weights[there]
        mus = self.mus if self.mus.shape[1] == 1 else self.mus[:, there]
        return Step(self.query, mus, sites, weights * (self.weights.sum() / weights.sum()))


@dataclass
class Record:
    """What happened in a round: who was asked, and pays, who answered, and the clipping it ran with."""

    asked: Step
    step: Step
    clipping: Clipping
    sizes: Array
    floats_up: int
    floats_down: int

    @property
    def sensitivities(self) -> Array:
        """(releases, sites); zero where the round was not private."""
        if np.isinf(self.step.mus).all():
            return np.zeros((len(self.step.mus), len(self.sizes)))
        return self.step.query.sensitivity(self.sizes, self.clipping)

    @property
    def sds(self) -> Array:
        """Standard deviations of the noise, (releases, sites)."""
        return self.step.query.noise_sds(self.sizes, self.clipping, self.step.mus)


@dataclass(frozen=True)
class Replies:
    """What the sites sent in one round, and who they are.

    Of large models a checkpoint holds only the weighted sum. Sites that are asked again repeat themselves to the last
    bit, as their noise is the same, so that this costs time and no privacy.
    """

    ask_again: Callable[[], Array]
    sites: Index
    kept: Kept

    @cached_property
    def values(self) -> Array:
        """One row a site that took part."""
        return self.kept.values if self.kept.values is not None else self.ask_again()

    def combined(self) -> Array:
        """Weighted sum, in the order of the sites' names whatever order they answered in."""
        return self.kept.combined


@dataclass
class Server:
    """The server's side of a run. It reaches sites through `answer` only, and only along the schedule."""

    setting: Setting
    schedule: Sequence[Step]
    answer: Callable[[int, Step, Ask], tuple[Array, Index]]
    clipping: Clipping
    penalty: Array
    records: list[Record] = field(default_factory=list)
    history: list[Array] = field(default_factory=list)
    site_thetas: Array | None = None
    on_round: Callable[[int, int], None] | None = None
    on_theta: Callable[[Array], None] | None = None
    checkpoint: Checkpoint | None = None
    last: Replies | None = None

    def __post_init__(self) -> None:
        self.sizes = self.setting.sizes.astype(float)

    def start(self) -> Array:
        """Where a method begins: zero, or a network's random start. Public."""
        return self.setting.model.start(self.setting.columns, self.setting.seed)

    def ask(
        self, step: Step, theta: Array, *, drifts: Array | None = None, edges: Array | None = None
    ) -> Replies:
        """Put the next step of the schedule to its sites."""
        number = len(self.records)
        if number >= len(self.schedule) or self.schedule[number] is not step:
            raise RuntimeError(f"round {number + 1}: the method asked for a step that is not next in its schedule")
        if not np.isfinite(theta).all():
            raise InputError(
                f"the estimate stopped being finite in round {number + 1}: the steps are too long; lower eta, or scale "
                "the features (declare bounds)"
            )
        clipping = step.query.clipping(self.clipping, self.setting.model)
        ask = Ask(theta, clipping, self.penalty, drifts, edges, self.clipping.bound)
        kept = self.checkpoint.load(number) if self.checkpoint is not None else None
        done = step.only(kept.sites) if kept is not None else step
        if kept is None:
            values, sites = self.answer(number, step, ask)
            done = step.only(sites)
            kept = Kept(np.einsum("i,ij->j", done.weights, values), sites, values)
            if self.checkpoint is not None:
                self.checkpoint.save(number, kept)
        sizes = self.sizes if len(done.sites) == len(self.sizes) else self.sizes[done.sites]
        self.records.append(Record(step, done, ask.clipping, sizes, len(kept.combined), ask.floats_down))
        if self.on_round is not None:
            self.on_round(len(self.records), len(self.schedule))
        self.last = Replies(lambda: self.answer(number, step, ask)[0], done.sites, kept)
        return self.last

    def last_noise(self, release: int) -> float:
        """Standard deviation of the noise in each number that the last round's replies added up to."""
        record = self.records[-1]
        return float(np.linalg.norm(record.step.weights * record.sds[release]))

    def note(self, theta: Array) -> Array:
        """Keep an iterate for `Result.history` (of large models only the last) and hand it back."""
        if theta.size > LARGEST_KEPT:
            self.history.clear()
        self.history.append(theta - theta.mean(axis=0) if len(theta) > 1 else theta.copy())
        if self.on_theta is not None:
            self.on_theta(self.history[-1])
        return theta


class Moves(Protocol):
    """Who wants to know how a method turns noise into error: a prediction, or an interval."""

    def gradient(self, step: Step, eta: float) -> None:
        """The server takes a step along the average of noisy gradients."""

    def descent(self, step: Step, eta: float, server_eta: float = 1.0) -> None:
        """Sites take noisy steps of their own, and the server goes to the average of where they end."""

    def newton(self, step: Step) -> None:
        """The server divides the average of noisy gradients by that of noisy curvatures."""

    def moments(self, step: Step) -> None:
        """The server solves the normal equations of averaged noisy second moments."""


class NotTraced(InputError):
    """What the moves of this method do to noise is not worked out, or not for these options."""


class _Deaf:
    """Moves that nobody listens to."""

    def _nothing(self, *move: object) -> None:
        pass

    gradient = descent = newton = moments = _nothing


class Method:
    """A federated estimator. Subclasses are frozen dataclasses whose fields are the options users may set."""

    id: ClassVar[str]
    title: ClassVar[str]
    sends: ClassVar[str]
    private: ClassVar[bool] = True
    samples_sites: ClassVar[bool] = False
    in_paper: ClassVar[bool] = True
    foreign: ClassVar[dict[str, tuple[str, ...]]] = {}  # options without meaning under a calibration
    bounds: ClassVar[str] = "scores"  # what the clipping bound holds: rows' scores, or whole records
    bound_quantile: ClassVar[float | None] = None  # where a bought bound is put; None: where the model says
    models: ClassVar[tuple[str, ...]] = ()  # regressions by name, or "network"; empty: all regressions
    networks: ClassVar[bool] = False  # takes networks as well
    tries: ClassVar[dict[str, tuple[Any, ...]]] = {}  # values of options that a plan chooses from
    paces: ClassVar[dict[str, tuple[int, ...]]] = {}  # the option that sets the number of rounds, and values to draw

    def schedule(self, s: Setting) -> list[Step]:
        """All rounds with their prices, from public facts alone; prices compose to at most s.mu at every site."""
        raise NotImplementedError

    def run(self, server: Server, steps: Sequence[Step]) -> Array:
        """Carry the steps out; the estimate (outputs, d)."""
        raise NotImplementedError

    def propagate(self, moves: Moves, steps: Sequence[Step]) -> None:
        """Tell the moves of `run`, one by one: what predictions, plans and standard errors are made of."""
        raise NotTraced("what its moves do to noise is not worked out")

    def untraced(self, steps: Sequence[Step]) -> str | None:
        """Why `propagate` has nothing to tell, if so; found out before anything is spent."""
        try:
            self.propagate(_Deaf(), steps)
        except NotTraced as reason:
            return str(reason)
        return None

    @classmethod
    def takes(cls, model: Model) -> bool:
        return model.name in cls.models if model.linear and cls.models else model.linear or cls.networks

    @classmethod
    def with_options(cls, options: dict[str, Any], calibration: str) -> "Method":
        """An instance from user options, or an InputError that names what is wrong with them."""
        known = {f.name: f for f in fields(cls)}  # type: ignore[arg-type]
        for name, value in options.items():
            if name not in known:
                have = ", ".join(known) or "none"
                raise InputError(f"method {cls.id!r} has no option {name!r}; its options: {have}")
            if name in cls.foreign.get(calibration, ()):
                raise InputError(f"method {cls.id!r}: option {name!r} has no meaning under calibration={calibration!r}")
            check_option(cls.id, name, value, known[name].type)
        method = cls(**{**cls.defaults(calibration), **options})
        shares = {f: getattr(method, f) for f in known if f.startswith("share")}
        if sum(shares.values()) >= 1:
            listed = ", ".join(f"{name}={value:g}" for name, value in shares.items())
            raise InputError(f"method {cls.id!r}: {listed} leave no budget for the last stage; keep their sum below 1")
        return method

    @classmethod
    def defaults(cls, calibration: str) -> dict[str, Any]:
        """Options that differ from the field defaults under a calibration."""
        return {}


def check_option(method: str, name: str, value: Any, kind: Any) -> None:
    text = str(getattr(kind, "__name__", kind))
    if value is None and text.endswith("| None"):
        return
    if text.startswith("int") and (isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < 1):
        raise InputError(f"method {method!r}: option {name}={value!r} must be a whole number of at least 1")
    if text == "float" and not (
        isinstance(value, (int, float, np.floating)) and not isinstance(value, bool)
        and math.isfinite(value) and value > 0
    ):  # fmt: skip
        raise InputError(f"method {method!r}: option {name}={value!r} must be a positive number")
    if text == "bool" and not isinstance(value, bool):
        raise InputError(f"method {method!r}: option {name}={value!r} must be True or False")
    if text.startswith("Literal"):
        choices = kind.__args__ if hasattr(kind, "__args__") else ()
        if value not in choices:
            raise InputError(f"method {method!r}: option {name}={value!r} must be one of {', '.join(choices)}")


def rounds(s: Setting, queries: Sequence[Query], shares: Sequence[Array] | Array, mu: float) -> list[Step]:
    """Steps for queries asked one after another; `shares` of mu^2 has an array for each, an entry a release.

    With client sampling and certified calibration the draw is balanced: every site takes part the same number of
    times, give or take one, and its budget goes to its own rounds alone. The paper draws sites anew each round and
    adds as much noise as if each took part in all of them.
    """
    flat = np.concatenate(shares)
    weights = s.weights(releases=len(flat))
    if s.participation >= 1.0:
        prices, ends = split(mu, flat)[:, None], np.cumsum([len(share) for share in shares])
        return [
            Step(query, prices[end - len(share) : end], s.everyone, weights)
            for query, share, end in zip(queries, shares, ends, strict=True)
        ]
    takers = _participants(s, len(queries))
    spent = np.zeros(len(s.sizes))
    for share, sites in zip(shares, takers, strict=True):
        spent[sites] += share.sum()
    steps = []
    for query, share, sites in zip(queries, shares, takers, strict=True):
        if math.isinf(mu):
            mus = np.full((len(share), 1), math.inf)
        elif s.paper:
            mus = mu * np.sqrt(share / flat.sum())[:, None]
        else:
            mus = mu * np.sqrt(share[:, None] / spent[sites][None, :])
        steps.append(Step(query, mus, sites, weights[sites] / weights[sites].sum()))
    return steps


def _participants(s: Setting, count: int) -> list[Index]:
    rng = np.random.default_rng([s.seed, 0x5A3B])
    m = len(s.sizes)
    size = max(1, round(s.participation * m))
    if s.paper:
        return [np.sort(rng.choice(m, size, replace=False)).astype(np.int64) for _ in range(count)]
    order = rng.permutation(m)
    turns = (np.arange(r * size, (r + 1) * size) for r in range(count))
    return [np.sort(np.take(order, turn, mode="wrap")).astype(np.int64) for turn in turns]
