"""What queries, methods and `fit` need to know of a model: regressions and networks alike."""

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from fedmest.errors import InputError
from fedmest.federation import Federation, Index, Rows
from fedmest.privacy.gdp import Array
from fedmest.privacy.noise import Noise

CLIPS = ("consistent", "norm")


@dataclass(frozen=True)
class Clipping:
    """How one row's contribution is bounded: its score by `bound`, its curvature by `curvature` (Frobenius).

    A gradient step is shortened so that step size times bound stays within `reach`: where scores are large, so is
    curvature, and a step that suits unit scores would overshoot.
    """

    rule: str = "consistent"
    bound: float = np.inf
    curvature: float = np.inf
    reach: float = np.inf

    @property
    def consistent(self) -> bool:
        return self.rule == "consistent"

    def step(self, eta: float) -> float:
        """The step size to use where `eta` is wished for."""
        return eta if math.isinf(self.reach) else min(eta, self.reach / self.bound)


class Model:
    """Knows rows and theta (outputs, d); nothing of sites' budgets."""

    name: str
    linear: ClassVar[bool] = True  # has coefficients for columns: a table of them, an intercept, scales
    clips: ClassVar[tuple[str, ...]] = CLIPS  # the ways in which rows' scores can be bounded, the default first
    typical_curvature: ClassVar[float]  # of the loss, features of unit scale; a public guess that sets schedules
    bound_quantile: ClassVar[float] = 0.9  # of the scores at the start: where a privately bought bound is put
    stretch: ClassVar[float] = 1.0  # of that bound, where the model may be wrong and what is cut leans on it
    bend: ClassVar[float] = 0.25  # how much a row's curvature changes with its predictor, over itself, squared
    scales_target: ClassVar[bool] = False
    dispersion_known: ClassVar[bool] = True  # the model says how far responses lie from their mean
    curvature_cap: ClassVar[float | None] = None  # times z z' (`features`) bounds a row's curvature at every theta
    outputs = 1
    classes: tuple[Any, ...] = ()

    def set_classes(self, classes: tuple[Any, ...]) -> None:
        """What the target may be, where it is a class: from here on the model knows its shape."""
        self.classes = classes

    @property
    def identity(self) -> str:
        """What two fits must have in common to be fits of one model, as text."""
        return self.name

    @property
    def tools(self) -> str:
        """What beside our own code the last bits of an answer depend on."""
        return ""

    # -- the parameter ----------------------------------------------------------------------------------------

    def shape(self, columns: int) -> tuple[int, int]:
        """Shape of theta for rows of so many columns, the intercept's included."""
        return self.outputs, columns

    def start(self, columns: int, seed: int) -> Array:
        """Where methods begin. Public: no row is read."""
        return np.zeros(self.shape(columns))

    def reach(self, columns: int) -> float:
        """What a step size times the bound should not exceed, see `Clipping`: |x| for features of unit scale."""
        return math.sqrt(columns)

    def guessed_bound(self, columns: int) -> float:
        """A public bound on scores where the budget is too small to buy one."""
        return math.sqrt(columns)

    def curvature_bound(self, bound: float, columns: int, trusted: bool = True) -> float:
        """A generous public bound on a row's curvature, given that on its score and whether the model is trusted."""
        return math.inf

    # -- rows -------------------------------------------------------------------------------------------------

    def target(self, federation: Federation) -> Array:
        """The target as numbers, or an InputError that names the value and the site."""
        raise NotImplementedError

    def mean_scores(self, rows: Rows, sites: Index, thetas: Array, clipping: Clipping, penalty: Array) -> Array:
        """Mean clipped score of each of `sites`, at one theta (outputs, d) or one each (k, outputs, d)."""
        raise NotImplementedError

    def local_descents(
        self, rows: Rows, sites: Index, thetas: Array, steps: int, eta: float, clipping: Clipping, penalty: Array,
        drifts: Array, sds: Array, factors: Array, noise: Noise,
    ) -> Array:  # fmt: skip
        """Theta of each of `sites` after noisy local gradient steps; see `kernels.local_descents`."""
        raise NotImplementedError

    def score_norms(self, rows: Rows, theta: Array) -> Array:
        """Norm of every row's unclipped score at theta."""
        raise NotImplementedError

    def mean_curvatures(self, rows: Rows, sites: Index, thetas: Array, clipping: Clipping, penalty: Array) -> Array:
        """Mean clipped curvature (k, outputs * d, outputs * d) of each of `sites`."""
        raise NotImplementedError

    def features(self, rows: Rows, site: int, theta: Array) -> Array:
        """What the predictors of a site's rows are linear in, (rows, features), a copy."""
        raise NotImplementedError

    def first_residual(self) -> float:
        """Length of a row's residual at theta = 0: times |x| it is its score. Where `curvature_cap` is given."""
        raise NotImplementedError

    def contrasts(self, columns: int) -> Array | None:
        """Orthonormal basis (parameters, free parameters) where not all directions of theta matter."""
        return None

    # -- predictions ------------------------------------------------------------------------------------------

    def predictors(self, X: Array, theta: Array, intercept: bool) -> Array:
        """Predictors (n, outputs; a network: n, classes) for rows of features; `mean` makes responses of them."""
        raise NotImplementedError

    def mean(self, eta: Array) -> Array:
        """Expected response for predictors, of the same shape."""
        raise NotImplementedError

    def log_likelihood(self, eta: Array, y: Array) -> float:
        raise NotImplementedError

    def fault(self, federation: Federation, wrong: npt.NDArray[np.bool_], need: str) -> InputError:
        """The error for the first target value that the model cannot take."""
        row = int(np.flatnonzero(wrong)[0])
        site = federation.sites[np.searchsorted(federation.offsets, row, side="right") - 1]
        return InputError(
            f"target {federation.target_name!r}, site {site!r}: value {federation.target[row]!s} does not fit the "
            f"{self.name} model, which needs {need}"
        )
