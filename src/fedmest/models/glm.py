"""The base of all models with linear predictors: what a query needs to know, over packed rows."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from fedmest.errors import InputError
from fedmest.federation import Federation, Index, Rows
from fedmest.models import kernels
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
        return eta if np.isinf(self.reach) else min(eta, self.reach / self.bound)


class GLM:
    """A generalized linear model with canonical link. Knows rows and theta; nothing of sites' budgets.

    A subclass states its name, two compiled functions (see `kernels.RESIDUAL`, `kernels.CURVATURE`), how to check
    a target, and the mean and log-likelihood for linear predictors.
    """

    name: ClassVar[str]
    residual: ClassVar[Callable[..., None]]
    curvature: ClassVar[Callable[..., None]]
    typical_curvature: ClassVar[float]  # of the loss, features of unit scale; a public guess that sets schedules
    bound_quantile: ClassVar[float] = 0.9  # of the scores at zero: where a privately bought bound is put
    scales_target: ClassVar[bool] = False
    curvature_cap: ClassVar[float | None] = None  # times x x' bounds a row's curvature at every theta, where one does
    outputs = 1
    classes: tuple[Any, ...] = ()

    # -- what a subclass provides ---------------------------------------------------------------------------

    def target(self, federation: Federation) -> Array:
        """The target as numbers, or an InputError that names the value and the site."""
        raise NotImplementedError

    def mean(self, eta: Array) -> Array:
        """Expected response (n, outputs) for linear predictors (n, outputs)."""
        raise NotImplementedError

    def log_likelihood(self, eta: Array, y: Array) -> float:
        raise NotImplementedError

    def curvature_bound(self, bound: float, columns: int) -> float:
        """A generous public bound on a row's curvature, given the bound on its score.

        Under the model a score's second moment is its curvature, so bound^2 is the scale to expect; where responses
        vary more than the model says, |residual| |x|^2, about bound sqrt(columns), is the smaller guess.
        """
        return bound * min(bound, math.sqrt(columns))

    # -- loops over packed rows -------------------------------------------------------------------------------

    def mean_scores(
        self, rows: Rows, sites: Index, thetas: Array, clipping: Clipping, penalty: Array
    ) -> Array:
        """Mean clipped score of each of `sites`, at one theta (outputs, d) or one each (k, outputs, d)."""
        out = np.empty((len(sites), self.outputs, rows.columns))
        kernels.mean_scores(
            self.residual, rows.packed, rows.y, rows.norms, rows.offsets, rows.columns, sites, _stack(thetas),
            clipping.bound, clipping.consistent, penalty, out,
        )  # fmt: skip
        return out

    def local_descents(
        self, rows: Rows, sites: Index, thetas: Array, steps: int, eta: float, clipping: Clipping, penalty: Array,
        drifts: Array, sds: Array, factors: Array, noise: Noise,
    ) -> Array:  # fmt: skip
        """Theta of each of `sites` after noisy local gradient steps; see `kernels.local_descents`."""
        out = np.empty((len(sites), self.outputs, rows.columns))
        kernels.local_descents(
            self.residual, rows.packed, rows.y, rows.norms, rows.offsets, rows.columns, sites, _stack(thetas), steps,
            eta, clipping.bound, clipping.consistent, penalty, _stack(drifts), sds, factors, noise.keys,
            np.uint64(noise.seed), noise.stream(), out,
        )  # fmt: skip
        return out

    def score_norms(self, rows: Rows, theta: Array, clipping: Clipping | None = None) -> Array:
        """Norm of every row's score at theta, unclipped unless a clipping is given."""
        clipping = clipping or Clipping()
        out = np.empty(len(rows.y))
        kernels.score_norms(
            self.residual, rows.packed, rows.y, rows.norms, rows.offsets, rows.columns, np.ascontiguousarray(theta),
            clipping.bound, clipping.consistent, out,
        )  # fmt: skip
        return out

    def mean_curvatures(self, rows: Rows, sites: Index, thetas: Array, clipping: Clipping, penalty: Array) -> Array:
        """Mean clipped curvature (k, outputs * d, outputs * d) of each of `sites`."""
        size = self.outputs * rows.columns
        out = np.empty((len(sites), size, size))
        kernels.mean_curvatures(
            self.curvature, rows.packed, rows.y, rows.norms, rows.offsets, rows.columns, sites, _stack(thetas),
            clipping.bound, clipping.consistent, clipping.curvature, penalty, out,
        )  # fmt: skip
        return out

    def features(self, rows: Rows, site: int, theta: Array) -> Array:
        """What the predictors of a site's rows are linear in, (rows, features), a copy."""
        return rows.of_site(site)

    def first_residual(self) -> float:
        """Length of a row's residual at theta = 0: its score there is that times |x|. For models with a cap."""
        raise NotImplementedError

    # -- small shared pieces ----------------------------------------------------------------------------------

    def contrasts(self, columns: int) -> Array | None:
        """Orthonormal basis (parameters, free parameters) where not all directions of theta matter."""
        return None

    def fault(self, federation: Federation, wrong: npt.NDArray[np.bool_], need: str) -> InputError:
        """The error for the first target value that the model cannot take."""
        row = int(np.flatnonzero(wrong)[0])
        site = federation.sites[np.searchsorted(federation.offsets, row, side="right") - 1]
        return InputError(
            f"target {federation.target_name!r}, site {site!r}: value {federation.target[row]!s} does not fit the "
            f"{self.name} model, which needs {need}"
        )


def numeric_target(model: GLM, federation: Federation, need: str) -> Array:
    """The target as floats, or the error that says what the model needs."""
    if federation.target.dtype.kind not in "fiub":
        raise InputError(
            f"target {federation.target_name!r} holds text such as {federation.target[0]!r}; the {model.name} model "
            f"needs {need}"
        )
    return np.ascontiguousarray(federation.target, dtype=float)


def _stack(thetas: Array) -> Array:
    return np.ascontiguousarray(thetas if thetas.ndim == 3 else thetas[None])
