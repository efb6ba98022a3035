"""What distinguishes one regression from another: the distribution of the response and the link.

A family is one value in one file of this package, and one line in the registry (`fedmest.models`). It knows no site
and no budget. Everything else reads it: compiled loops, plans, audits, simulations, estimators and the schema of a
study's columns; none of them asks for a family's name.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, Protocol

import numpy as np

from fedmest.core.exceptions import InputError
from fedmest.core.typing import FloatArray
from fedmest.data.schema import TargetRule

Compiled = Callable[..., None]  # a numba dispatcher of the signature that `models.kernels` states
USUAL_SLOPES = 0.7  # length of the slopes that plans assume, times the spread of the features


class OfPredictors(Protocol):
    """A function of linear predictors (n,), or (n, classes) in families with classes, and of the family's params."""

    def __call__(self, eta: FloatArray, params: FloatArray, /) -> FloatArray: ...


class Simulator(Protocol):
    """Responses (n,) for linear predictors, from NumPy's generator."""

    def __call__(self, eta: FloatArray, rng: np.random.Generator, params: FloatArray, /) -> FloatArray: ...


class LogLikelihood(Protocol):
    """Sum over rows of the log-likelihood of responses y (n,) at linear predictors."""

    def __call__(self, eta: FloatArray, y: FloatArray, params: FloatArray, /) -> float: ...


class Support(Protocol):
    """Responses at linear predictors (k,) and how likely each is, both (k, responses).

    Where there are too many responses, a few that stand for all.
    """

    def __call__(self, eta: FloatArray, params: FloatArray, /) -> tuple[FloatArray, FloatArray]: ...


@dataclass(frozen=True)
class FamilyParam:
    """A number that belongs to a family and is given by the user; it is public and travels with the model.

    Attributes
    ----------
    name : str
        What the user calls it, for example in ``"negative-binomial(dispersion=0.5)"``.
    default : float
        Its value where none is given.
    low, high : float
        The values it may have, both ends included.
    doc : str
        One line for messages and documentation.
    """

    name: str
    default: float
    low: float
    high: float
    doc: str

    def check(self, value: object, family: str) -> float:
        """Check a value.

        Parameters
        ----------
        value : object
            As the user gave it.
        family : str
            Name of the family, for the message.

        Returns
        -------
        float

        Raises
        ------
        InputError
            If it is not a number within the range.
        """
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not number or not self.low <= float(value) <= self.high:  # type: ignore[arg-type]
            raise InputError(
                f"{self.name} = {value!r} of the {family} model must be a number from {self.low:g} to {self.high:g} "
                f"({self.doc})"
            )
        return float(value)  # type: ignore[arg-type]


@dataclass(frozen=True)
class AuditResponses:
    """Responses with which an audit makes scores as long as clipping lets them be.

    Attributes
    ----------
    extreme : tuple of float
        Responses of the two rows that an attacker swaps; with classes, codes.
    classes : int
        How many classes the rows of an audit have; 0 where responses are numbers.
    orthogonal : float, optional
        Response of two rows whose features are orthogonal; `extreme[0]` unless given.
    """

    extreme: tuple[float, float]
    classes: int = 0
    orthogonal: float | None = None

    @property
    def level(self) -> float:
        """Response of the orthogonal rows."""
        return self.extreme[0] if self.orthogonal is None else self.orthogonal

    def common(self, n: int) -> FloatArray:
        """Responses of the rows that two neighbouring data sets share.

        Parameters
        ----------
        n : int
            Number of these rows.

        Returns
        -------
        FloatArray
        """
        return np.arange(n, dtype=float) % self.classes if self.classes else np.zeros(n)


@dataclass(frozen=True)
class PlanDefaults:
    """What plans and simulations assume of rows where nothing is known.

    Attributes
    ----------
    intercept : float
        The linear predictor of a row of average features.
    feature_sd : float
        Spread of features at which slopes of usual length are moderate effects. Simulations use it; plans, whose
        features have unit spread, shorten the slopes by it instead.
    """

    intercept: float = 0.5
    feature_sd: float = 1.0

    @property
    def slopes(self) -> float:
        """Length of the slopes for features of unit spread."""
        return USUAL_SLOPES * self.feature_sd


@dataclass(frozen=True, kw_only=True, eq=False)
class Family:
    """A regression family: the distribution of the response given its linear predictor.

    Attributes
    ----------
    name : str
        What users write, for example ``model="poisson"``.
    residual, curvature : compiled functions
        Clipped residuals and curvature weights of a tile of rows; signatures and duties in `models.kernels`
        (RESIDUAL, CURVATURE). That no residual exceeds its limit, whatever the numbers, is what privacy rests on.
    target : TargetRule
        Which responses the family takes, and how they become numbers.
    mean : (eta, params) -> array of eta's shape
        Expected response.
    loglike : (eta, y, params) -> float
        Log-likelihood, constants included.
    simulate : (eta, rng, params) -> y
        Responses drawn from the family.
    audit : AuditResponses
        Responses that an attacker would choose.
    typical_curvature : float
        Of a row's loss in its predictor, for features of unit spread: a public guess that sets step sizes and lengths
        of schedules.
    support : (eta, params) -> (responses, probabilities), optional
        Plans sum over it; without it there are none for the family.
    params : tuple of FamilyParam
        Numbers that the user gives; compiled functions get their values in this order.
    dispersion : {"one", "estimate"}
        Whether the family itself says how far responses lie from their mean, or standard errors need an estimate.
    multiclass : bool
        One vector of coefficients per class, which sum to zero over classes, instead of one in all.
    clip_quantile : float
        The quantile of the scores at the start at which a private clip norm is put.
    misspecification_factor : float
        Factor on the private clip norm when standard errors are robust; larger where the centring of clipped scores
        relies on the distribution.
    curvature_slope : float
        Square of the relative change of a row's curvature with its predictor: shows where linear approximations of
        the estimate break down.
    curvature_upper_bound : float, optional
        Times z z' (`Model.features`) it bounds a row's curvature at every theta.
    residual_at_zero : (outputs) -> float, optional
        Largest length of a row's residual at theta = 0; needed with `curvature_upper_bound`.
    plan : PlanDefaults
        What plans and simulations assume of rows.
    """

    name: str
    residual: Compiled = field(repr=False)
    curvature: Compiled = field(repr=False)
    target: TargetRule
    mean: OfPredictors = field(repr=False)
    loglike: LogLikelihood = field(repr=False)
    simulate: Simulator = field(repr=False)
    audit: AuditResponses
    typical_curvature: float
    support: Support | None = field(default=None, repr=False)
    params: tuple[FamilyParam, ...] = ()
    dispersion: Literal["one", "estimate"] = "one"
    multiclass: bool = False
    clip_quantile: float = 0.9
    misspecification_factor: float = 1.0
    curvature_slope: float = 0.25
    curvature_upper_bound: float | None = None
    residual_at_zero: Callable[[int], float] | None = None
    plan: PlanDefaults = PlanDefaults()

    def curvature_clip_norm(self, bound: float, columns: int, trusted: bool = True) -> float:
        """Generous public bound on a row's curvature.

        Parameters
        ----------
        bound : float
            Bound on a row's score.
        columns : int
            Columns of a row.
        trusted : bool, default True
            Whether standard errors rely on the model.

        Returns
        -------
        float
            Bound on the Frobenius norm.
        """
        if self.dispersion == "estimate":
            return 2.0 * columns  # |x|^2 for features of unit scale; the score's bound says nothing of curvature
        # With |x| about sqrt(columns) the bound stands for a residual, whose square is the curvature's scale under the
        # model. Long residuals are rather those of responses that vary more than the model says, so that it grows no
        # faster than they do from there on; at once where the model is not trusted.
        residual = bound / math.sqrt(columns)
        return columns * min(residual**2, residual + 2.0 if trusted else residual)

    def param_values(self, given: dict[str, object]) -> tuple[float, ...]:
        """Values of `params` in order.

        Parameters
        ----------
        given : dict
            Values by name; those left out have their defaults.

        Returns
        -------
        tuple of float

        Raises
        ------
        InputError
            If there is no such parameter, or its value is not possible.
        """
        known = {param.name: param for param in self.params}
        for name in given:
            if name not in known:
                have = f"its parameters are {', '.join(known)}" if known else "it has no parameters"
                raise InputError(f"the {self.name} model has no parameter {name!r}; {have}")
        return tuple(param.check(given.get(name, param.default), self.name) for name, param in known.items())
