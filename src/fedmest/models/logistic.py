"""Logistic regression. Score of a row: (p - y) x, p = 1 / (1 + exp(-x'theta)); curvature p (1 - p) x x'."""

import numba as nb
import numpy as np

from fedmest.core.fastmath import EXACT, exponential
from fedmest.core.typing import FloatArray
from fedmest.data.schema import TargetRule
from fedmest.models.family import AuditResponses, Family
from fedmest.models.kernels import CURVATURE, RESIDUAL


@nb.njit(RESIDUAL, fastmath=EXACT, error_model="numpy", cache=True)
def _residual(eta, y, limits, consistent, params):  # type: ignore[no-untyped-def]
    """Consistent: weight min(1, B / (|x| max(p, 1-p))), free of y, so the score keeps its conditional mean zero.

    With t = exp(-|eta|) the larger probability is 1 / (1 + t): its reciprocal needs no second division.
    """
    e = eta[0]
    if consistent:
        for i in range(y.size):
            t = exponential(-abs(e[i]))
            larger = 1.0 / (1.0 + t)
            p = larger if e[i] >= 0.0 else t * larger
            e[i] = (p - y[i]) * min(1.0, limits[i] * (1.0 + t))
    else:
        for i in range(y.size):
            r = 1.0 / (1.0 + exponential(-e[i])) - y[i]
            e[i] = min(limits[i], max(-limits[i], r))


@nb.njit(CURVATURE, fastmath=EXACT, error_model="numpy", cache=True)
def _curvature(eta, y, norms, bound, consistent, largest, params, weights):  # type: ignore[no-untyped-def]
    """p (1 - p), times the score's weight under consistent clipping: the mean derivative of the clipped score."""
    for i in range(y.size):
        t = exponential(-abs(eta[0, i]))
        v = t / ((1.0 + t) * (1.0 + t))
        if consistent:
            v *= min(1.0, bound / norms[i] * (1.0 + t))
        weights[0, 0, i] = min(v, largest / (norms[i] * norms[i]))


def _mean(eta: FloatArray, params: FloatArray) -> FloatArray:
    from scipy.special import expit

    return np.asarray(expit(eta))


def _loglike(eta: FloatArray, y: FloatArray, params: FloatArray) -> float:
    return float(-np.logaddexp(0.0, np.where(y > 0.5, -eta, eta)).sum())


def _simulate(eta: FloatArray, rng: np.random.Generator, params: FloatArray) -> FloatArray:
    return (rng.random(len(eta)) < 1 / (1 + np.exp(-eta))).astype(float)


def _support(eta: FloatArray, params: FloatArray) -> tuple[FloatArray, FloatArray]:
    p = _mean(eta, params)
    return np.tile([0.0, 1.0], (len(eta), 1)), np.column_stack([1 - p, p])


def _residual_at_zero(outputs: int) -> float:
    return 0.5


LOGISTIC = Family(
    name="logistic",
    residual=_residual,
    curvature=_curvature,
    target=TargetRule(
        declared="two levels, or whole numbers from 0 to 1",
        numbers="0 or 1",
        low=0.0,
        high=1.0,
        whole=True,
        max_classes=2,
        hint="the multinomial model takes more",
    ),
    mean=_mean,
    loglike=_loglike,
    simulate=_simulate,
    support=_support,
    audit=AuditResponses(extreme=(1.0, 1.0), classes=2),
    typical_curvature=0.2,
    curvature_upper_bound=0.25,
    residual_at_zero=_residual_at_zero,
    clip_quantile=0.97,  # scores have light tails here: cutting more of them slows descent and saves little noise
)
