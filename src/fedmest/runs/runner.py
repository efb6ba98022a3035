"""A run in progress: it reaches sites along the schedule only, and records what was carried out."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from fedmest.core.exceptions import ConvergenceError, InputError, ScheduleError
from fedmest.core.typing import FloatArray
from fedmest.inference.covariance import CovarianceEstimate
from fedmest.models import Clipping
from fedmest.queries import QueryInputs
from fedmest.queries.schedule import Replies, RoundRecord, Step
from fedmest.runs.aggregate import Aggregator, WeightedSum
from fedmest.runs.backend import Backend
from fedmest.runs.checkpoint import Checkpoint, StoredRound
from fedmest.runs.phases import PublicState, PublicValue
from fedmest.runs.phases.scaling import Scaling
from fedmest.runs.spec import RunSpec

MAX_STORED = 10_000  # parameters up to which every iterate is kept; networks have hundreds of thousands


@dataclass(frozen=True)
class RoundInfo:
    """Progress of a run, for callbacks.

    Parameters
    ----------
    round, rounds : int
        Rounds that are done, and all rounds.
    phase, query : str
        Phase and query of the last round.
    params : FloatArray or None
        The estimate so far, on the original scale; None where the phase has none yet.
    """

    round: int
    rounds: int
    phase: str
    query: str
    params: FloatArray | None = None


Callback = Callable[[RoundInfo], None]


class Run:
    """Carries out a spec's schedule at a backend; methods and phases see it as `Runner` and `PhaseRunner`."""

    def __init__(
        self,
        spec: RunSpec,
        backend: Backend,
        *,
        state: PublicState | None = None,
        aggregator: Aggregator | None = None,
        callback: Callback | None = None,
        checkpoint: Checkpoint | None = None,
    ) -> None:
        self.spec, self.backend, self.context = spec, backend, spec.context
        self.aggregator: Aggregator = aggregator or WeightedSum()
        self.callback, self.checkpoint = callback, checkpoint
        if not self.aggregator.gives_site_values and (
            spec.method.needs_site_values or spec.route.cov_type == "cluster"
        ):
            raise InputError(
                f"method {spec.method.id!r} with cov_type={spec.route.cov_type!r} needs the replies of single sites, "
                "which this aggregation does not show; choose another method, or cov_type='nonrobust'"
            )
        self.schedule = [(phase, step) for phase, steps in spec.schedule.phases for step in steps]
        self.place = 0  # in the schedule
        self.records: list[RoundRecord] = []
        self.history: list[FloatArray] = []
        self.caveats: list[str] = []
        self.failed: dict[int, str] = {}  # rounds that failed, and what they were asked
        self.site_params: FloatArray | None = None
        self.covariance = CovarianceEstimate()
        self.estimate: FloatArray = np.zeros(self.context.shape)
        self.sizes = spec.data.sizes.astype(float)
        self.set_state(state if state is not None else spec.initial_state())

    # -- public values ----------------------------------------------------------------------------------------

    def set_state(self, state: PublicState) -> None:
        self.state = state
        self.clipping: Clipping = self.spec.clipping(state["clip_norm"].bound)
        self.penalty = self.spec.penalty(state["scaling"])
        self.backend.apply(state)

    def publish(self, value: PublicValue) -> None:
        """Set a public value; rounds from here on use it."""
        self.set_state(self.state.having(value))

    def add_caveat(self, text: str) -> None:
        self.caveats.append(text)

    def scaling_of_rows(self) -> Scaling:
        return self.backend.scaling_of_rows()

    def paper_clip_norm(self) -> float:
        return self.backend.paper_clip_norm(self.start())

    # -- rounds -----------------------------------------------------------------------------------------------

    def start(self) -> FloatArray:
        """Where a method begins: zero, or a network's random start. Public."""
        return self.context.model.start(self.context.columns, self.context.seed)

    @property
    def last_record(self) -> RoundRecord:
        return self.records[-1]

    def ask(
        self, step: Step, params: FloatArray, *, drifts: FloatArray | None = None, edges: FloatArray | None = None
    ) -> Replies:
        """Put the next step of the schedule to its sites."""
        number = len(self.records)
        place = self._place_of(step, number)
        if not np.isfinite(params).all():
            raise ConvergenceError(
                f"the estimate stopped being finite in round {number + 1}: the steps are too long; lower eta, or scale "
                "the features (declare bounds)"
            )
        clipping = step.query.clipping(self.clipping, self.context.model)
        inputs = QueryInputs(params, clipping, self.penalty, drifts, edges)
        stored = self.checkpoint.load(number) if self.checkpoint is not None else None
        done = step.only(stored.sites) if stored is not None else step
        if stored is None:
            done, stored = self._put(number, step, inputs)
            if self.checkpoint is not None:
                self.checkpoint.save(number, stored)
        sizes = self.sizes if len(done.sites) == len(self.sizes) else self.sizes[done.sites]
        down = step.floats_down(self.context)
        self.place = place + 1  # only now: a round that failed can be asked again
        self.records.append(
            RoundRecord(self.schedule[place][0], step, done, clipping, sizes, len(stored.aggregate), down)
        )
        self._report()
        kept, state = stored.values, self.state

        def site_values() -> FloatArray:
            if not self.aggregator.gives_site_values:
                raise ScheduleError(f"round {number + 1}: this aggregation shows no replies of single sites")
            if kept is None and self.state is not state:
                raise ScheduleError(
                    f"round {number + 1}: its replies can be had only until the next public value is set"
                )
            return kept if kept is not None else self.backend.answer(number, step, inputs)[0]

        self.last_replies = Replies(done.sites, stored.aggregate, site_values)
        return self.last_replies

    def _put(self, number: int, step: Step, inputs: QueryInputs) -> tuple[Step, StoredRound]:
        """Ask the backend and aggregate. A round that failed has drawn its noise: only the same may be asked again."""
        asked = _fingerprint(inputs, self.state) if number in self.failed else ""
        if asked != self.failed.get(number, ""):
            raise ScheduleError(f"round {number + 1} failed, and can be asked again with the same values only")
        try:
            values, sites = self.backend.answer(number, step, inputs)
            done = step.only(sites)
            shown = values if self.aggregator.gives_site_values else None
            return done, StoredRound(self.aggregator.combine(values, done), sites, shown)
        except Exception:
            self.failed[number] = _fingerprint(inputs, self.state)
            raise

    def _place_of(self, step: Step, number: int) -> int:
        """The place of a step, which must be the next one; without noise, later ones may be skipped to."""
        place = self.place
        if np.isinf(self.spec.mu):
            while place < len(self.schedule) and self.schedule[place][1] is not step:
                place += 1
        if place >= len(self.schedule) or self.schedule[place][1] is not step:
            raise ScheduleError(f"round {number + 1}: the method asked for a step that is not next in its schedule")
        return place

    def record(self, params: FloatArray) -> FloatArray:
        """Keep an iterate for `Result.history` (of large models only the last) and hand it back."""
        if params.size > MAX_STORED:
            self.history.clear()
        self.history.append(params - params.mean(axis=0) if len(params) > 1 else params.copy())
        if self.callback is not None:
            self._report(self.spec.to_original(self.history[-1], self.state))
        return params

    def _report(self, params: FloatArray | None = None) -> None:
        if self.callback is not None:
            last = self.records[-1]
            rounds = len(self.schedule)
            self.callback(RoundInfo(len(self.records), rounds, last.phase, last.step.query.name, params))


def _fingerprint(inputs: QueryInputs, state: PublicState) -> str:
    """Of all numbers that are sent with a request."""
    sent = [inputs.params, inputs.drifts, inputs.edges]
    sent += [array for name in sorted(state.values) for _, array in sorted(state[name].to_arrays().items())]
    content = hashlib.blake2b(digest_size=16)
    for array in sent:
        content.update(b"-" if array is None else repr(array.shape).encode() + array.tobytes())
    return content.hexdigest()
