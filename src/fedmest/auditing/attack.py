"""The attack: the messages of all rounds, how replies are read, and the games."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from fedmest.auditing.result import AuditResult
from fedmest.auditing.scenarios import AuditTarget, Scenario
from fedmest.core.exceptions import InputError
from fedmest.core.typing import FloatArray, IntArray
from fedmest.privacy.report import PrivacyReport
from fedmest.queries import Query, QueryInputs
from fedmest.queries.schedule import Step
from fedmest.runs.backend import LocalBackend
from fedmest.runs.execute import privacy_report
from fedmest.runs.phases.clip_norm import ClipNorm
from fedmest.runs.runner import Run
from fedmest.runs.spec import RunSpec

CLIP_NORM = 1.0  # where the run would estimate one: the server may say what it likes, noise follows
SPLITS = 8  # of rows into halves, where a query reads halves: the attacker does not know which
ROOM = 4_000_000  # numbers in the rows of the games that are played at once
LOOKED_AT = 4  # coordinates of a release, in which noise is looked through
BEYOND_CHANCE = 8.0  # standard errors of a correlation, of which there are a hundred thousand


@dataclass
class UnitNoise:
    """Deterministic stand-in for noise: adds `scale` standard deviations to every value.

    `scale=0` gives the noiseless reply, `scale=1` shows how much noise a reply contains.

    Attributes
    ----------
    scale : float
    saw_local_steps : bool
        Whether noise went on local steps.
    """

    scale: float
    saw_local_steps: bool = False

    def add(self, values: FloatArray, sds: FloatArray, sites: IntArray, release: int = 0) -> None:
        values += self.scale * sds[:, None]

    def add_step(self, values: FloatArray, sd: float, site: int, step: int) -> None:
        self.saw_local_steps = True
        values += self.scale * sd


@dataclass(frozen=True)
class Message:
    """What the server sends in a round, and how its replies are read."""

    theta: FloatArray
    edges: FloatArray | None
    silent: FloatArray  # (2, floats): the replies without noise
    sds: FloatArray
    directions: FloatArray  # (floats, k): replies times these are the evidence
    looked: IntArray  # coordinates in which noise is looked through
    evidence: float  # the square of what the round adds to mu, were it Gaussian
    additive: bool  # noise is added last, of the size that is stated
    gaussian: bool

    @property
    def middle(self) -> FloatArray:
        """To take off, so that no digits are lost."""
        return np.asarray(self.silent.mean(axis=0))


@dataclass(frozen=True)
class Transcript:
    """What games with one of the data sets gave."""

    features: (
        FloatArray  # (games, ...): evidence of the site under attack, of the one beside it, and coordinates of both
    )
    noise: FloatArray  # those coordinates, less what they would be without noise
    bare: bool  # some reply had no noise at all


class Attack:
    """The messages of all rounds, chosen for a scene."""

    def __init__(self, target: AuditTarget, scenario: Scenario) -> None:
        self.target, self.scenario, self.leak = target, scenario, ""
        rows = [scenario.rows(other) for other in (False, True)]
        X, y = np.vstack([rows[0][0], rows[1][0]]), np.concatenate([rows[0][1], rows[1][1]])
        runs = [target.run(X, y, np.repeat([0, 1], len(rows[0][1])), seed) for seed in range(SPLITS)]
        self.spec, self.backends = runs[0][0], [backend for _, backend in runs]
        for backend in self.backends:  # the same rows in the same half, with either data set
            backend.keys = backend.keys[[0, 0]]
        self.clip_norm = self._clip_norm()
        self.clipping = self.spec.clipping(self.clip_norm)
        if self.spec.scaling == "data":
            self.leak = "means and standard deviations of the features, which are read off the rows"
        self.best: dict[Query, FloatArray] = {}  # the theta to send with a query
        self.messages = [self._message(step) for step in self.spec.schedule.steps]

    @cached_property
    def report(self) -> PrivacyReport:
        """What the accountant says of the schedule, carried out."""
        return privacy_report(self._ask_all(self.spec, self.backends[0], lambda values, message: None), "")

    @cached_property
    def claim(self) -> float:
        release = self.target.release
        if release is None:
            return self.report.mu
        costs = {_kind(r.what): 0.0 for r in self.report.releases}
        for r in self.report.releases:
            costs[_kind(r.what)] += float(r.mu[0]) ** 2
        if release not in costs:
            raise InputError(f"this run has no release {release!r}; choose one of {', '.join(costs)}")
        return math.sqrt(costs[release])

    @property
    def promise(self) -> float:
        return math.inf if self.leak else sum(message.evidence for message in self.messages)

    @property
    def exact(self) -> float | None:
        """mu of the whole transcript, where every reply is Gaussian."""
        return math.sqrt(self.promise) if all(message.gaussian for message in self.messages) else None

    def _clip_norm(self) -> float:
        """What the server says; where the run reads it off the rows without noise, the attacker compares."""
        given = self.spec.settings.clip_norm
        if given != "paper":
            return CLIP_NORM if isinstance(given, str) else float(given or CLIP_NORM)
        found = []
        for other in (False, True):
            X, y = self.scenario.rows(other)
            alone, backend = self.target.run(X, y, np.zeros(len(y)), 0)
            found.append(backend.paper_clip_norm(alone.model.start(alone.context.columns, 0)))
        if found[0] != found[1]:
            self.leak = f"the clip norm, {found[0]:.3g} or {found[1]:.3g}, which is read off the rows"
        return max(*found, 1e-3)

    def _message(self, step: Step) -> Message:
        """The message at whose theta the two data sets give replies farthest apart.

        Of those that are nearly as good it is the first, at which noise in local steps does less harm.
        """
        if step.query in self.best:
            return self._reading(step, self.best[step.query])
        found = [self._reading(step, theta) for theta in self.scenario.thetas]
        most = max(message.evidence for message in found)
        message = next(message for message in found if message.evidence >= 0.8 * most)
        self.best[step.query] = message.theta
        return message

    def _reading(self, step: Step, theta: FloatArray) -> Message:
        """How to read replies: along the move from one data set to the other, over the variance of the noise."""
        query, mus = step.query, step.mus[:, :1]
        edges, clipping = query.sample_edges(), query.clipping(self.clipping, self.spec.model)
        inputs = QueryInputs(theta, clipping, self._penalty(), edges=edges)
        kinds = [_kind(release.what) for release in query.releases()]

        def reply(backend: LocalBackend, unit_noise: UnitNoise, costs: FloatArray) -> FloatArray:
            return query.answer(backend.data, np.arange(2), inputs, costs, unit_noise)

        split = any(release.part != "all" for release in query.releases()) or bool(query.unproved)
        silent = [reply(backend, UnitNoise(0.0), mus) for backend in (self.backends if split else self.backends[:1])]
        unit_noise = UnitNoise(1.0)
        sds = np.abs(reply(self.backends[0], unit_noise, mus) - silent[0])
        if unit_noise.saw_local_steps:
            sds /= math.sqrt(len(mus))
        stated = query.noise_sds(self.spec.data.sizes[:1].astype(float), clipping, mus)[:, 0]
        close = np.isclose(sds[:, :, None], stated, rtol=1e-6, atol=1e-13 * float(np.abs(silent[0]).max())).any(axis=2)
        additive = not unit_noise.saw_local_steps and bool(close.all())
        groups = [np.ones(len(sds[0]), dtype=bool)]
        if len(set(kinds)) > 1:  # a release is what its cost moves
            doubled = [mus * np.where(np.arange(len(mus)) == r, 2.0, 1.0)[:, None] for r in range(len(mus))]
            moved = [np.abs(reply(self.backends[0], UnitNoise(1.0), costs) - silent[0])[0] for costs in doubled]
            groups = [np.abs(there - sds[0]) > 0.1 * sds[0] for there in moved]
        else:
            kinds = kinds[:1]
        wanted = [group for group, kind in zip(groups, kinds, strict=True) if self.target.release in (None, kind)]
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
            theta,
            edges,
            silent[0],
            floor,
            np.array([move / floor**2 for move in flat]).reshape(-1, len(floor)).T,
            looked,
            evidence,
            additive,
            gaussian,
        )

    def _penalty(self) -> FloatArray:
        return np.full(self.spec.context.shape, float(self.spec.settings.ridge))

    def _ask_all(self, spec: RunSpec, backend: LocalBackend, read: Callable[[FloatArray, Message], None]) -> Run:
        """The whole schedule, put to all sites of a backend."""
        run = Run(spec, backend, state=spec.initial_state().having(ClipNorm(self.clip_norm)))
        for step, message in zip(spec.schedule.steps, self.messages, strict=True):
            read(run.ask(step, message.theta, edges=message.edges).values, message)
        return run

    def play(self, other: bool, games: int, seed: int) -> Transcript:
        """As many games as are judged, and as many again to learn from, half of either with this data set."""
        first, rows = self.scenario.rows(False), self.scenario.rows(other)
        batch = max(1, min(games, ROOM // (2 * rows[0].size)))
        transcripts = []
        for begin in range(0, games, batch):
            count = min(batch, games - begin)
            X, y = (np.concatenate([np.concatenate([a, b])] * count) for a, b in zip(rows, first, strict=True))
            seed64 = int(np.random.default_rng([seed, begin, int(other)]).integers(2**63))
            run = self.target.run(X, y, np.repeat(np.arange(2 * count), len(rows[1])), seed64)
            transcripts.append(self._batch(*run, int(other)))
        return Transcript(
            np.concatenate([w.features for w in transcripts]),
            np.concatenate([w.noise for w in transcripts]),
            any(w.bare for w in transcripts),
        )

    def _batch(self, spec: RunSpec, backend: LocalBackend, other: int) -> Transcript:
        evidence: list[FloatArray] = []
        coordinates: list[FloatArray] = []
        noise: list[FloatArray] = []
        bare = False

        def read(values: FloatArray, message: Message) -> None:
            nonlocal bare
            evidence.append((values - message.middle) @ message.directions)
            coordinates.append(((values - message.middle) / message.sds)[:, message.looked])
            left = values.copy()
            left[::2] -= message.silent[other]
            left[1::2] -= message.silent[0]
            left /= message.sds
            noise.append(left[:, message.looked])
            bare |= message.additive and len(message.looked) > 0 and bool((np.abs(left).max(axis=1) < 1e-9).any())

        self._ask_all(spec, backend, read)
        shown, seen, left = (
            np.concatenate([both[::2], both[1::2]], axis=1)
            for both in (np.concatenate(parts, axis=1) for parts in (evidence, coordinates, noise))
        )
        return Transcript(np.concatenate([shown, seen], axis=1), left, bare)

    def repeats(self, first: Transcript, second: Transcript) -> str:
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
        self,
        claim: float,
        lower: float,
        exact: float | None,
        confidence: float,
        games: int,
        wrong: tuple[int, int],
        observer: str,
        leak: str,
        scores: tuple[FloatArray, FloatArray] = (np.zeros(0), np.zeros(0)),
    ) -> AuditResult:
        target = self.target
        certified = self.report.certified and self.spec.scaling != "data"
        return AuditResult(
            target.kind.id, target.model_name, target.calibration, observer, target.release, claim, lower, exact,
            confidence, games, *wrong, self.scenario.name, certified, leak, scores,
        )  # fmt: skip


def _kind(what: str) -> str:
    return "local steps" if what.startswith("local step") else what


def _distinct(moves: list[FloatArray]) -> list[FloatArray]:
    """Those that are no multiples of earlier ones; one at least."""
    kept = [max(moves, key=lambda move: float(np.linalg.norm(move)))]
    for move in moves:
        units = [k / max(float(np.linalg.norm(k)), 1e-300) for k in kept]
        if all(float(np.linalg.norm(move - (move @ u) * u)) > 1e-6 * float(np.linalg.norm(kept[0])) for u in units):
            kept.append(move)
    return kept
