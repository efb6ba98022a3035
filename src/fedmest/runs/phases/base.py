"""What a phase is: a part of a run with its share of the budget, and the public value that it leaves behind."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, Self

import numpy as np

from fedmest.core.exceptions import ScheduleError
from fedmest.core.typing import Bounds, FloatArray, IntArray, Names
from fedmest.data.federation import Federation
from fedmest.data.packing import Rows
from fedmest.inference.covariance import CovarianceEstimate
from fedmest.inference.routes import CovarianceRoute
from fedmest.methods import Method, Runner
from fedmest.models import Clipping, Model
from fedmest.queries.schedule import PublicContext, Replies, RoundRecord, Schedule, Step


class Facts(Protocol):
    """What is public about the rows."""

    @property
    def sites(self) -> Names: ...
    @property
    def sizes(self) -> IntArray: ...
    @property
    def features(self) -> tuple[str, ...]: ...
    @property
    def target_name(self) -> str: ...
    @property
    def bounds(self) -> Bounds: ...


class SettingValues(Protocol):
    """The settings that phases read."""

    @property
    def clip_norm(self) -> str | float | None: ...
    @property
    def cov_type(self) -> str: ...


class PublicSpec(Protocol):
    """What phases read of a `RunSpec`."""

    @property
    def data(self) -> Facts: ...
    @property
    def model(self) -> Model: ...
    @property
    def method(self) -> Method: ...
    @property
    def mu(self) -> float: ...
    @property
    def settings(self) -> SettingValues: ...
    @property
    def context(self) -> PublicContext: ...
    @property
    def intercept(self) -> bool: ...
    @property
    def scaling(self) -> str: ...
    @property
    def route(self) -> CovarianceRoute: ...
    @property
    def schedule(self) -> Schedule: ...
    def clipping(self, clip_norm: float) -> Clipping: ...
    def expected_bias(self) -> float | None: ...


class PublicValue:
    """A value that follows from noisy replies, or from the spec alone, and that later rounds use.

    The server sends it with every request from the step that sets it on, as arrays of numbers. A site takes it as it
    is: queries are proved for every value that `from_arrays` lets through.

    Attributes
    ----------
    name : str
        What steps call it in `uses` and `sets`.
    changes_rows : bool
        Whether `transform_rows` does anything; true of every class that overrides it.
    """

    name: ClassVar[str]
    changes_rows: ClassVar[bool] = False

    def __init_subclass__(cls) -> None:
        if cls.transform_rows is not PublicValue.transform_rows:
            cls.changes_rows = True

    def transform_rows(self, rows: Rows) -> Rows:
        """Rows as queries see them once the value is set.

        Parameters
        ----------
        rows : Rows
            Rows as earlier values left them.

        Returns
        -------
        Rows
            As many for every site.

        Notes
        -----
        Sensitivities are proved for functions of single rows: a transformed row may depend on the row itself and on
        the value, never on other rows of the site.
        """
        return rows

    def to_original(self, params: FloatArray, intercept: bool) -> FloatArray:
        """Coefficients for rows as they were before the value was set.

        Parameters
        ----------
        params : FloatArray
            Coefficients (..., d) for transformed rows.
        intercept : bool
            Whether the first of them is the intercept.

        Returns
        -------
        FloatArray
        """
        return params

    def to_arrays(self) -> dict[str, FloatArray]:
        """The value as arrays, by names that no other public value has."""
        raise NotImplementedError

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, FloatArray], spec: PublicSpec) -> Self:
        """Value that arrays hold.

        Parameters
        ----------
        arrays : mapping of str to FloatArray
            As `to_arrays` made them, and other values' beside; all of its own must be there.
        spec : PublicSpec
            The run.

        Returns
        -------
        PublicValue

        Raises
        ------
        InputError
            If an array is not possible.
        """
        raise NotImplementedError


@dataclass(frozen=True)
class PublicState:
    """Public values of a run at one point in time.

    Parameters
    ----------
    values : dict
        Values by name.
    """

    values: dict[str, Any]

    def rows(self, federation: Federation, y: FloatArray, intercept: bool) -> Rows:
        """Rows of a federation as the values of this state transform them; scaling is part of packing.

        Parameters
        ----------
        federation : Federation
            The rows.
        y : FloatArray
            Target as numbers.
        intercept : bool
            Whether rows have a column of ones.

        Returns
        -------
        Rows
        """
        scaling = self["scaling"]
        rows = federation.rows(scaling.apply_target(y), scaling.centre, scaling.scale, intercept)
        for value in self.values.values():
            changed = value.transform_rows(rows)
            if not np.array_equal(changed.offsets, rows.offsets):
                raise ScheduleError(f"the public value {value.name!r} changed how many rows a site has")
            rows = changed
        return rows

    def same_rows(self, other: "PublicState") -> bool:
        """Whether both states make the same rows.

        Parameters
        ----------
        other : PublicState
            The other state.

        Returns
        -------
        bool
        """
        return all(self.values[name] is value for name, value in other.values.items() if value.changes_rows)

    def to_original(self, params: FloatArray, intercept: bool) -> FloatArray:
        """Coefficients for the original rows; transformations are undone in reverse order.

        Parameters
        ----------
        params : FloatArray
            Coefficients (..., d) on the scale of the fit.
        intercept : bool
            Whether the first of them is the intercept.

        Returns
        -------
        FloatArray
        """
        for value in reversed(self.values.values()):
            params = value.to_original(params, intercept)
        return params

    def __getitem__(self, name: str) -> Any:
        return self.values[name]

    def having(self, value: PublicValue) -> "PublicState":
        """The state after a value was set.

        Parameters
        ----------
        value : PublicValue
            The new value.

        Returns
        -------
        PublicState
        """
        return PublicState({**self.values, value.name: value})


class PhaseRunner(Runner, Protocol):
    """The run as a phase sees it: as a method does, and with places for what the phase finds.

    Attributes
    ----------
    estimate : FloatArray
        Estimate of the coefficients, on the scale of the fit.
    covariance : CovarianceEstimate
        Covariance of that estimate.
    spec : PublicSpec
        What the run is to do.
    state : PublicState
        Public values as they are now.
    records : sequence of RoundRecord
        Rounds so far.
    history : sequence of FloatArray
        Iterates so far.
    last_replies : Replies
        Replies of the last round.
    """

    estimate: FloatArray
    covariance: CovarianceEstimate

    @property
    def spec(self) -> PublicSpec: ...
    @property
    def state(self) -> PublicState: ...
    @property
    def records(self) -> Sequence[RoundRecord]: ...
    @property
    def history(self) -> Sequence[FloatArray]: ...
    @property
    def last_replies(self) -> Replies: ...

    def publish(self, value: PublicValue) -> None:
        """Set a public value; rounds from here on use it.

        Parameters
        ----------
        value : PublicValue
            The value.
        """

    def add_caveat(self, text: str) -> None:
        """Add something that the guarantee does not cover to the report.

        Parameters
        ----------
        text : str
            One sentence.
        """

    def scaling_of_rows(self) -> PublicValue:
        """Means and standard deviations of all rows; computed from them without noise, which is not private."""

    def paper_clip_norm(self) -> float:
        """Clip norm of the paper; computed from all rows without noise, which is not private."""


class Phase:
    """A part of a run with its share of the budget. Subclasses have no state; all that they know is in the spec.

    Attributes
    ----------
    name : str
        Its name in the schedule and in the report.
    value : type of PublicValue or None
        The public value that it sets.
    """

    name: ClassVar[str]
    value: ClassVar[type[PublicValue] | None] = None

    def share(self, spec: PublicSpec) -> float | None:
        """Share of mu^2 for its steps.

        Parameters
        ----------
        spec : PublicSpec
            The run.

        Returns
        -------
        float or None
            0 if it has no steps, None for all that the other phases leave.
        """
        raise NotImplementedError

    def initial(self, spec: PublicSpec) -> PublicValue | None:
        """Its value before it has run, which server and sites know from the spec alone.

        Parameters
        ----------
        spec : PublicSpec
            The run.

        Returns
        -------
        PublicValue or None
        """
        return None

    def plan(self, spec: PublicSpec, mu: float) -> Sequence[Step]:
        """Steps of the phase.

        Parameters
        ----------
        spec : PublicSpec
            The run.
        mu : float
            Cost of all steps together.

        Returns
        -------
        sequence of Step
        """
        raise NotImplementedError

    def run(self, runner: PhaseRunner, steps: Sequence[Step]) -> None:
        """Carry its steps out, and publish what follows from them.

        Parameters
        ----------
        runner : PhaseRunner
            The run.
        steps : sequence of Step
            Its part of the schedule.
        """
        raise NotImplementedError
