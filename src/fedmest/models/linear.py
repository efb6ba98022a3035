"""Linear regression, unit variance. Score of a row: (x'theta - y) x; curvature x x'."""

import math

import numba as nb
import numpy as np

from fedmest.arithmetic import EXACT
from fedmest.federation import Federation
from fedmest.models.glm import GLM, numeric_target
from fedmest.models.kernels import CURVATURE, RESIDUAL
from fedmest.privacy.gdp import Array


@nb.njit(RESIDUAL, fastmath=EXACT, error_model="numpy", cache=True)
def _residual(eta, y, limits, consistent):  # type: ignore[no-untyped-def]
    """Huber: the residual is cut at B/|x|. Both rules agree; a symmetric error keeps mean zero."""
    e = eta[0]
    for i in range(y.size):
        e[i] = min(limits[i], max(-limits[i], e[i] - y[i]))  # in this order NaN gives way to the limit


@nb.njit(CURVATURE, fastmath=EXACT, error_model="numpy", cache=True)
def _curvature(eta, y, norms, bound, consistent, largest, weights):  # type: ignore[no-untyped-def]
    """One where the residual is not cut; a cut residual no longer moves with theta."""
    for i in range(y.size):
        cut = consistent and abs(eta[0, i] - y[i]) > bound / norms[i]
        weights[0, 0, i] = 0.0 if cut else min(1.0, largest / (norms[i] * norms[i]))


class Linear(GLM):
    """Real response, identity link."""

    name = "linear"
    residual = staticmethod(_residual)
    curvature = staticmethod(_curvature)
    typical_curvature = 1.0
    bend = 0.0
    scales_target = True
    dispersion_known = False

    def target(self, federation: Federation) -> Array:
        return numeric_target(self, federation, "numbers")

    def mean(self, eta: Array) -> Array:
        return eta

    def outcomes(self, eta: Array) -> tuple[Array, Array]:
        from scipy.special import roots_hermitenorm

        errors, chances = roots_hermitenorm(24)
        return eta[:, None] + errors, np.tile(chances / chances.sum(), (len(eta), 1))

    def log_likelihood(self, eta: Array, y: Array) -> float:
        """At the variance that maximises it, as statsmodels reports it."""
        n = len(y)
        return float(-n / 2 * (math.log(2 * math.pi * float(np.mean((y - eta[:, 0]) ** 2))) + 1))

    def curvature_bound(self, bound: float, columns: int, trusted: bool = True) -> float:
        """|x|^2 for features of unit scale; the score's bound says nothing here, as the noise level is free."""
        return 2.0 * columns
