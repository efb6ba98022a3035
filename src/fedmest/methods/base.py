"""What a method is made of: a schedule of steps, written before any row is read, and the updates between them."""

import math
from collections.abc import Sequence
from dataclasses import fields
from types import NoneType, UnionType
from typing import Any, ClassVar, Literal, Protocol, Union, get_args, get_origin, get_type_hints

import numpy as np

from fedmest.core.exceptions import InputError
from fedmest.core.typing import FloatArray
from fedmest.models import Clipping, Model
from fedmest.queries.schedule import PublicContext, Replies, RoundRecord, Step


class Runner(Protocol):
    """The run as a method sees it. A method reaches sites through `ask` alone.

    Attributes
    ----------
    context : PublicContext
        Public facts of the run.
    clipping : Clipping
        How rows are clipped from here on.
    penalty : FloatArray
        Ridge on each coefficient, on the scale of the fit.
    site_params : FloatArray or None
        Every site's own estimate; set by methods that have them.
    last_record : RoundRecord
        The last round that was carried out.
    """

    context: PublicContext
    site_params: FloatArray | None

    @property
    def clipping(self) -> Clipping:
        """How rows are clipped from here on."""

    @property
    def penalty(self) -> FloatArray:
        """Ridge on each coefficient, on the scale of the fit."""

    @property
    def last_record(self) -> RoundRecord:
        """The last round that was carried out."""

    def start(self) -> FloatArray:
        """Start of a method: zero, or a network's random start. Public."""

    def ask(
        self, step: Step, params: FloatArray, *, drifts: FloatArray | None = None, edges: FloatArray | None = None
    ) -> Replies:
        """Ask the sites of the next step of the schedule.

        Parameters
        ----------
        step : Step
            The next step; any other is refused.
        params : FloatArray
            Coefficients at which the query is answered.
        drifts : FloatArray, optional
            Added to every local gradient; one for each site where it has three dimensions.
        edges : FloatArray, optional
            Bin edges of histograms.

        Returns
        -------
        Replies

        Raises
        ------
        ScheduleError
            If the step is not the next one.
        """

    def record(self, params: FloatArray) -> FloatArray:
        """Keep an iterate for `Result.history`.

        Parameters
        ----------
        params : FloatArray
            The iterate, on the scale of the fit.

        Returns
        -------
        FloatArray
            The same array.
        """


class NoiseModel(Protocol):
    """Propagation of noise to the estimate, one update at a time; implemented by predictions and by covariances."""

    def gradient(self, step: Step, eta: float) -> None:
        """Server step along the average of noisy gradients.

        Parameters
        ----------
        step : Step
            Step that releases the gradients.
        eta : float
            Step size.
        """

    def descent(self, step: Step, eta: float, server_eta: float = 1.0) -> None:
        """Noisy local steps at the sites; the server moves towards the average of their results.

        Parameters
        ----------
        step : Step
            Step that releases the local estimates.
        eta : float
            Step size of the sites.
        server_eta : float, default 1.0
            Share of the way that the server goes towards the average.
        """

    def newton(self, step: Step) -> None:
        """Newton step of the server from averages of noisy gradients and of noisy curvatures.

        Parameters
        ----------
        step : Step
            Step that releases both.
        """

    def moments(self, step: Step) -> None:
        """Solution of the normal equations of averaged noisy second moments.

        Parameters
        ----------
        step : Step
            Step that releases the moments.
        """


class NoNoiseModel(InputError):
    """A method, or some of its options, for which the propagation of noise is not worked out."""


class NullNoiseModel:
    """A noise model that ignores all moves."""

    def _ignore(self, *move: object) -> None:
        pass

    gradient = descent = newton = moments = _ignore


class Method:
    """A federated estimator. Subclasses are frozen dataclasses whose fields are the options that users may set.

    Attributes
    ----------
    id, display_name, release_summary : str
        Its name on the command line, its name in tables and figures, and what sites release in it.
    private : bool
        Whether its releases are noised; False for baselines.
    supports_client_sampling : bool
        Whether `participation` below one is possible.
    in_paper : bool
        Whether ``calibration="paper"`` is possible.
    inapplicable_options : dict
        Options without meaning under a calibration: they are refused.
    clip_target : str
        What the clip norm bounds: rows' "scores", or whole "records".
    clip_quantile : float or None
        Quantile of the rows at which a private clip norm is set; None: that of the model.
    models : tuple of str
        Regressions by name, or "network"; empty: all regressions.
    networks : bool
        Whether it fits networks as well.
    needs_site_values : bool
        Whether the server must see single replies, and not their sum alone.
    param_grid : dict
        Values of options that a plan chooses from.
    rounds_grid : dict
        The option that sets the number of rounds, and values to draw curves for.
    quick_options : dict
        Options for short runs, as in audits of networks.
    """

    id: ClassVar[str]
    display_name: ClassVar[str]
    release_summary: ClassVar[str]
    private: ClassVar[bool] = True
    supports_client_sampling: ClassVar[bool] = False
    in_paper: ClassVar[bool] = True
    inapplicable_options: ClassVar[dict[str, tuple[str, ...]]] = {}
    clip_target: ClassVar[str] = "scores"
    clip_quantile: ClassVar[float | None] = None
    models: ClassVar[tuple[str, ...]] = ()
    networks: ClassVar[bool] = False
    needs_site_values: ClassVar[bool] = False
    param_grid: ClassVar[dict[str, tuple[Any, ...]]] = {}
    rounds_grid: ClassVar[dict[str, tuple[int, ...]]] = {}
    quick_options: ClassVar[dict[str, Any]] = {}

    def schedule(self, context: PublicContext) -> list[Step]:
        """All rounds with their costs, from public facts alone.

        Parameters
        ----------
        context : PublicContext
            Public facts of the run.

        Returns
        -------
        list of Step
            At every site their costs compose to at most ``context.mu``.
        """
        raise NotImplementedError

    def run(self, runner: Runner, steps: Sequence[Step]) -> FloatArray:
        """Carry the steps out.

        Parameters
        ----------
        runner : Runner
            The run, which asks the sites.
        steps : sequence of Step
            The schedule, as `schedule` wrote it.

        Returns
        -------
        FloatArray
            The estimate (outputs, d), on the scale of the fit.
        """
        raise NotImplementedError

    def propagate_noise(self, noise_model: NoiseModel, steps: Sequence[Step]) -> None:
        """Report the updates of `run` to a noise model, one by one: for predictions, plans and standard errors.

        Parameters
        ----------
        noise_model : NoiseModel
            Receives the updates.
        steps : sequence of Step
            The schedule, as `schedule` wrote it.

        Raises
        ------
        NoNoiseModel
            If the propagation of noise is not worked out.
        """
        raise NoNoiseModel("how its noise becomes error is not worked out")

    def noise_model_gap(self, steps: Sequence[Step]) -> str | None:
        """Reason why `propagate_noise` is not possible; known before anything is spent.

        Parameters
        ----------
        steps : sequence of Step
            The schedule, as `schedule` wrote it.

        Returns
        -------
        str or None
            The reason; None if it is possible.
        """
        try:
            self.propagate_noise(NullNoiseModel(), steps)
        except NoNoiseModel as reason:
            return str(reason)
        return None

    @classmethod
    def supports(cls, model: Model) -> bool:
        """Whether the method fits a model.

        Parameters
        ----------
        model : Model
            A regression or a network.

        Returns
        -------
        bool
        """
        known = model.has_coefficients
        return model.name in cls.models if known and cls.models else known or cls.networks

    @classmethod
    def with_options(cls, options: dict[str, Any], calibration: str) -> "Method":
        """Make an instance from user options.

        Parameters
        ----------
        options : dict
            Options by name.
        calibration : str
            "certified" or "paper"; decides which options have a meaning, and their defaults.

        Returns
        -------
        Method

        Raises
        ------
        InputError
            If there is no such option, or its value is not possible.
        """
        known = [f.name for f in fields(cls)]  # type: ignore[arg-type]
        kinds = get_type_hints(cls) if options else {}
        for name, value in options.items():
            if name not in known:
                have = ", ".join(known) or "none"
                raise InputError(f"method {cls.id!r} has no option {name!r}; its options: {have}")
            if name in cls.inapplicable_options.get(calibration, ()):
                raise InputError(f"method {cls.id!r}: option {name!r} has no meaning under calibration={calibration!r}")
            check_option(cls.id, name, value, kinds[name])
        method = cls(**{**cls.defaults(calibration), **options})
        shares = {f: getattr(method, f) for f in known if f.startswith("share")}
        if sum(shares.values()) >= 1:
            listed = ", ".join(f"{name}={value:g}" for name, value in shares.items())
            raise InputError(f"method {cls.id!r}: {listed} leave no budget for the last stage; keep their sum below 1")
        return method

    @classmethod
    def defaults(cls, calibration: str) -> dict[str, Any]:
        """Options that differ from the field defaults under a calibration.

        Parameters
        ----------
        calibration : str
            "certified" or "paper".

        Returns
        -------
        dict
        """
        return {}


def check_option(method: str, name: str, value: Any, kind: Any) -> None:
    """Raise an InputError if a value is not of the type that the option is annotated with."""
    allowed = get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)
    if value is None and NoneType in allowed:
        return
    kind = next(one for one in allowed if one is not NoneType)
    whole = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
    number = isinstance(value, (int, float, np.floating)) and not isinstance(value, bool)
    need = ""
    if kind is int and not (whole and value >= 1):
        need = "a whole number of at least 1"
    elif kind is float and not (number and math.isfinite(value) and value > 0):
        need = "a positive number"
    elif kind is bool and not isinstance(value, bool):
        need = "True or False"
    elif get_origin(kind) is Literal and value not in get_args(kind):
        need = f"one of {', '.join(get_args(kind))}"
    if need:
        raise InputError(f"method {method!r}: option {name}={value!r} must be {need}")
