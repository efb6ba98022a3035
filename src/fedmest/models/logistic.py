"""Logistic regression. Score of a row: (p - y) x, p = 1 / (1 + exp(-x'theta)); curvature p (1 - p) x x'."""

import numba as nb
import numpy as np

from fedmest.arithmetic import EXACT, exponential
from fedmest.errors import InputError
from fedmest.federation import Federation
from fedmest.models.glm import GLM
from fedmest.models.kernels import CURVATURE, RESIDUAL
from fedmest.privacy.gdp import Array


@nb.njit(RESIDUAL, fastmath=EXACT, error_model="numpy", cache=True)
def _residual(eta, y, limits, consistent):  # type: ignore[no-untyped-def]
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
def _curvature(eta, y, norms, bound, consistent, largest, weights):  # type: ignore[no-untyped-def]
    """p (1 - p), times the score's weight under consistent clipping: the mean derivative of the clipped score."""
    for i in range(y.size):
        t = exponential(-abs(eta[0, i]))
        v = t / ((1.0 + t) * (1.0 + t))
        if consistent:
            v *= min(1.0, bound / norms[i] * (1.0 + t))
        weights[0, 0, i] = min(v, largest / (norms[i] * norms[i]))


class Logistic(GLM):
    """Binary response, logit link."""

    name = "logistic"
    residual = staticmethod(_residual)
    curvature = staticmethod(_curvature)
    typical_curvature = 0.2
    curvature_cap = 0.25
    bound_quantile = 0.97  # scores have light tails here: cutting more of them slows descent and saves little noise

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

    def first_residual(self) -> float:
        return 0.5

    def mean(self, eta: Array) -> Array:
        from scipy.special import expit

        return np.asarray(expit(eta))

    def outcomes(self, eta: Array) -> tuple[Array, Array]:
        p = self.mean(eta)
        return np.tile([0.0, 1.0], (len(eta), 1)), np.column_stack([1 - p, p])

    def log_likelihood(self, eta: Array, y: Array) -> float:
        return float(-np.logaddexp(0.0, np.where(y > 0.5, -eta[:, 0], eta[:, 0])).sum())
