"""Multinomial (softmax) regression, one theta per class.

Score of a row: (p - e_y) x'; curvature (diag p - pp') (x) xx'.

All classes have their own coefficients, so adding the same vector to each changes nothing; every method starts at
zero and moves along scores, which sum to zero over classes, so the estimate is the one whose classes sum to zero.
"""

import math

import numba as nb
import numpy as np

from fedmest.core.fastmath import EXACT, exponential
from fedmest.core.typing import FloatArray
from fedmest.data.schema import TargetRule
from fedmest.models.family import AuditResponses, Family
from fedmest.models.kernels import CURVATURE, RESIDUAL

MAX_PREDICTOR = 1e300
SMALLEST_LENGTH = 1e-150


@nb.njit("void(f8[:, ::1])", fastmath=EXACT, error_model="numpy", cache=True)
def _softmax(eta):  # type: ignore[no-untyped-def]
    classes, width = eta.shape
    largest = np.full(width, -MAX_PREDICTOR)
    for k in range(classes):
        for i in range(width):
            # a number also where theta'x overflowed (infinity, or infinity minus infinity); in this order of
            # arguments NaN gives way to the limit
            eta[k, i] = min(MAX_PREDICTOR, max(-MAX_PREDICTOR, eta[k, i]))
            largest[i] = max(largest[i], eta[k, i])
    total = np.zeros(width)
    for k in range(classes):
        e = eta[k]
        for i in range(width):
            e[i] = exponential(e[i] - largest[i])
            total[i] += e[i]
    for i in range(width):
        total[i] = 1.0 / total[i]
    for k in range(classes):
        e = eta[k]
        for i in range(width):
            e[i] *= total[i]


@nb.njit("void(f8[:, ::1], f8[::1], f8[::1])", fastmath=EXACT, error_model="numpy", cache=True)
def _weights(p, limits, weights):  # type: ignore[no-untyped-def]
    """min(1, B / (|x| max_k |p - e_k|)); |p - e_k|^2 = |p|^2 + 1 - 2 p_k is largest for the rarest class."""
    classes, width = p.shape
    smallest = p[0].copy()
    square = np.zeros(width)
    for k in range(classes):
        for i in range(width):
            smallest[i] = min(smallest[i], p[k, i])
            square[i] += p[k, i] * p[k, i]
    for i in range(width):
        farthest = math.sqrt(square[i] + 1.0 - 2.0 * smallest[i]) * (1.0 + 1e-14)
        weights[i] = min(1.0, limits[i] / farthest)


@nb.njit(RESIDUAL, fastmath=EXACT, error_model="numpy", cache=True)
def _residual(eta, y, limits, consistent, params):  # type: ignore[no-untyped-def]
    classes, width = eta.shape
    _softmax(eta)
    weights = np.empty(width)
    if math.isinf(limits.min()):  # no row has a limit; below, each row's own gives a weight of 1 where it is infinite
        for i in range(width):
            eta[int(y[i]), i] -= 1.0
        return
    if consistent:
        _weights(eta, limits, weights)
        for i in range(width):
            eta[int(y[i]), i] -= 1.0
    else:
        square = np.zeros(width)
        for i in range(width):
            eta[int(y[i]), i] -= 1.0
        for k in range(classes):
            for i in range(width):
                square[i] += eta[k, i] * eta[k, i]
        for i in range(width):
            length = max(math.sqrt(square[i]), SMALLEST_LENGTH) * (1.0 + 1e-14)
            weights[i] = 1.0 if length <= limits[i] else limits[i] / length
    for k in range(classes):
        for i in range(width):
            eta[k, i] *= weights[i]


@nb.njit(CURVATURE, fastmath=EXACT, error_model="numpy", cache=True)
def _curvature(eta, y, norms, bound, consistent, largest, params, weights):  # type: ignore[no-untyped-def]
    classes, width = eta.shape
    _softmax(eta)
    weight = np.ones(width)
    if consistent and not math.isinf(bound):
        _weights(eta, bound / norms, weight)
    square = np.zeros(width)
    for a in range(classes):
        weights[a, a] = 0.0
        for b in range(a):
            for i in range(width):
                v = eta[a, i] * eta[b, i] * weight[i]
                weights[a, b, i] = -v
                weights[b, a, i] = -v
                # p (1 - p) as a sum of products: no cancellation, so rounding cannot make it indefinite
                weights[a, a, i] += v
                weights[b, b, i] += v
                square[i] += 2.0 * v * v
    for a in range(classes):
        for i in range(width):
            square[i] += weights[a, a, i] * weights[a, a, i]
    for i in range(width):
        # squares below the floor may have underflowed; the floor is above anything they can stand for
        length = max(math.sqrt(square[i]), SMALLEST_LENGTH) * norms[i] * norms[i]
        weight[i] = 1.0 if length <= largest else largest / length
    for a in range(classes):
        for b in range(classes):
            for i in range(width):
                weights[a, b, i] *= weight[i]


def softmax_mean(eta: FloatArray, params: FloatArray) -> FloatArray:
    """Probabilities of classes for predictors (n, classes)."""
    from scipy.special import softmax

    return np.asarray(softmax(eta, axis=1))


def softmax_loglike(eta: FloatArray, y: FloatArray, params: FloatArray) -> float:
    """Log-likelihood of class codes y at predictors (n, classes)."""
    from scipy.special import log_softmax

    return float(log_softmax(eta, axis=1)[np.arange(len(y)), y.astype(int)].sum())


def _simulate(eta: FloatArray, rng: np.random.Generator, params: FloatArray) -> FloatArray:
    return np.asarray((eta + rng.gumbel(size=eta.shape)).argmax(axis=1), dtype=float)


def _residual_at_zero(outputs: int) -> float:
    return math.sqrt(1.0 - 1.0 / outputs)


MULTINOMIAL = Family(
    name="multinomial",
    residual=_residual,
    curvature=_curvature,
    target=TargetRule(
        declared="levels",
        max_classes=1000,
        hint="is this a number to predict with the linear or poisson model?",
    ),
    multiclass=True,
    mean=softmax_mean,
    loglike=softmax_loglike,
    simulate=_simulate,
    audit=AuditResponses(extreme=(0.0, 0.0), classes=3),
    typical_curvature=0.1,
    curvature_upper_bound=0.5,  # diag p - pp' <= (I - 11'/c) / 2 (Böhning 1992), whatever the number of classes
    residual_at_zero=_residual_at_zero,
    clip_quantile=0.97,
)
