"""Linear regression, unit variance. Score of a row: (x'theta - y) x; curvature x x'."""

import math

import numba as nb
import numpy as np

from fedmest.core.fastmath import EXACT
from fedmest.core.typing import FloatArray
from fedmest.data.schema import TargetRule
from fedmest.models.family import AuditResponses, Family
from fedmest.models.kernels import CURVATURE, RESIDUAL


@nb.njit(RESIDUAL, fastmath=EXACT, error_model="numpy", cache=True)
def _residual(eta, y, limits, consistent, params):  # type: ignore[no-untyped-def]
    """Huber: the residual is cut at B/|x|. Both rules agree; a symmetric error keeps mean zero."""
    e = eta[0]
    for i in range(y.size):
        e[i] = min(limits[i], max(-limits[i], e[i] - y[i]))  # in this order NaN gives way to the limit


@nb.njit(CURVATURE, fastmath=EXACT, error_model="numpy", cache=True)
def _curvature(eta, y, norms, bound, consistent, largest, params, weights):  # type: ignore[no-untyped-def]
    """One where the residual is not cut; a cut residual no longer moves with theta."""
    for i in range(y.size):
        cut = consistent and abs(eta[0, i] - y[i]) > bound / norms[i]
        weights[0, 0, i] = 0.0 if cut else min(1.0, largest / (norms[i] * norms[i]))


def _mean(eta: FloatArray, params: FloatArray) -> FloatArray:
    return eta


def _loglike(eta: FloatArray, y: FloatArray, params: FloatArray) -> float:
    """At the variance that maximises it, as statsmodels reports it."""
    n = len(y)
    return float(-n / 2 * (math.log(2 * math.pi * float(np.mean((y - eta) ** 2))) + 1))


def _simulate(eta: FloatArray, rng: np.random.Generator, params: FloatArray) -> FloatArray:
    return eta + rng.standard_normal(len(eta))


def _support(eta: FloatArray, params: FloatArray) -> tuple[FloatArray, FloatArray]:
    from scipy.special import roots_hermitenorm

    errors, chances = roots_hermitenorm(24)
    return eta[:, None] + errors, np.tile(chances / chances.sum(), (len(eta), 1))


LINEAR = Family(
    name="linear",
    residual=_residual,
    curvature=_curvature,
    target=TargetRule(declared="numbers", numbers="numbers", scaled=True),
    dispersion="estimate",
    mean=_mean,
    loglike=_loglike,
    simulate=_simulate,
    support=_support,
    audit=AuditResponses(extreme=(1000.0, 4000.0), orthogonal=0.0),
    typical_curvature=1.0,
    curvature_slope=0.0,
)
