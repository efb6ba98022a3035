"""Logistic regression. Score of a row: (p - y) x, p = 1 / (1 + exp(-x'theta)); curvature p (1 - p) x x'."""

import numba as nb
import numpy as np

from fedmest.errors import InputError
from fedmest.federation import Federation
from fedmest.models.glm import GLM
from fedmest.models.kernels import CURVATURE, EXACT, RESIDUAL, exponentials
from fedmest.privacy.gdp import Array


@nb.njit(RESIDUAL, fastmath=EXACT, error_model="numpy", cache=True)
def _residual(eta, y, limits, consistent, scratch):  # type: ignore[no-untyped-def]
    """Consistent: weight min(1, B / (|x| max(p, 1-p))), free of y, so the score keeps its conditional mean zero.

    With t = exp(-|eta|) the larger probability is 1 / (1 + t): its reciprocal needs no second division.
    """
    e = eta[0]
    t = scratch[y.size : 2 * y.size]
    for i in range(y.size):
        t[i] = -abs(e[i])
    exponentials(t, scratch)
    for i in range(y.size):
        larger = 1.0 / (1.0 + t[i])
        r = (larger if e[i] >= 0.0 else t[i] * larger) - y[i]
        if consistent:
            e[i] = r * min(1.0, limits[i] * (1.0 + t[i]))
        else:
            e[i] = min(limits[i], max(-limits[i], r))


@nb.njit(CURVATURE, fastmath=EXACT, error_model="numpy", cache=True)
def _curvature(eta, y, norms, bound, consistent, largest, weights, scratch):  # type: ignore[no-untyped-def]
    """p (1 - p), times the score's weight under consistent clipping: the mean derivative of the clipped score."""
    e = eta[0]
    for i in range(y.size):
        e[i] = -abs(e[i])
    exponentials(e, scratch)
    for i in range(y.size):
        p = 1.0 / (1.0 + e[i])  # the larger of the two probabilities
        v = e[i] * p * p
        if consistent:
            v *= min(1.0, bound / (norms[i] * p))
        weights[0, 0, i] = min(v, largest / (norms[i] * norms[i]))


class Logistic(GLM):
    """Binary response, logit link."""

    name = "logistic"
    residual = staticmethod(_residual)
    curvature = staticmethod(_curvature)
    typical_curvature = 0.2

    def target(self, federation: Federation) -> Array:
        values = federation.target
        if values.dtype.kind in "fiub":
            y = np.ascontiguousarray(values, dtype=float)
            wrong = (y != 0) & (y != 1)
            if wrong.any():
                raise self.fault(federation, wrong, "0 or 1")
            if y.min() == y.max():
                raise InputError(
                    f"target {federation.target_name!r} is {y[0]:g} in every row of every site; nothing to estimate"
                )
            return y
        levels = sorted({str(v) for v in values})
        if len(levels) != 2:
            raise InputError(
                f"target {federation.target_name!r} has {len(levels)} distinct values; the logistic model needs two "
                "(the multinomial model takes more)"
            )
        self.classes = tuple(levels)
        return np.asarray(values.astype(str) == levels[1], dtype=float)

    def mean(self, eta: Array) -> Array:
        from scipy.special import expit

        return np.asarray(expit(eta))

    def log_likelihood(self, eta: Array, y: Array) -> float:
        return float(-np.logaddexp(0.0, np.where(y > 0.5, -eta[:, 0], eta[:, 0])).sum())
