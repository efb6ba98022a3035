"""Multinomial (softmax) regression, one theta a class. Score of a row: (p - e_y) x'; curvature (diag p - pp') (x) xx'.

All classes have their own coefficients, so adding the same vector to each changes nothing; every method starts at
zero and moves along scores, which sum to zero over classes, so the estimate is the one whose classes sum to zero.
"""

import math
from typing import Any

import numba as nb
import numpy as np

from fedmest.arithmetic import EXACT, exponential
from fedmest.errors import InputError
from fedmest.federation import Federation
from fedmest.models.glm import GLM
from fedmest.models.kernels import CURVATURE, RESIDUAL
from fedmest.privacy.gdp import Array

LARGEST_PREDICTOR = 1e300
SMALLEST_LENGTH = 1e-150


@nb.njit("void(f8[:, ::1])", fastmath=EXACT, error_model="numpy", cache=True)
def _softmax(eta):  # type: ignore[no-untyped-def]
    classes, width = eta.shape
    largest = np.full(width, -LARGEST_PREDICTOR)
    for k in range(classes):
        for i in range(width):
            # a number also where theta'x overflowed (infinity, or infinity minus infinity); in this order of
            # arguments NaN gives way to the limit
            eta[k, i] = min(LARGEST_PREDICTOR, max(-LARGEST_PREDICTOR, eta[k, i]))
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
def _residual(eta, y, limits, consistent):  # type: ignore[no-untyped-def]
    classes, width = eta.shape
    _softmax(eta)
    weights = np.empty(width)
    if math.isinf(limits[0]):
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
def _curvature(eta, y, norms, bound, consistent, largest, weights):  # type: ignore[no-untyped-def]
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


class Multinomial(GLM):
    """Unordered classes, softmax link."""

    name = "multinomial"
    residual = staticmethod(_residual)
    curvature = staticmethod(_curvature)
    typical_curvature = 0.1
    curvature_cap = 0.5  # diag p - pp' <= (I - 11'/c) / 2 (Böhning 1992), whatever the number of classes
    bound_quantile = 0.97

    def target(self, federation: Federation) -> Array:
        values = federation.target
        labels = values.astype(str) if values.dtype.kind not in "fiub" else values
        classes, codes = np.unique(labels, return_inverse=True)
        if len(classes) < 2:
            raise InputError(
                f"target {federation.target_name!r} is {classes[0]!s} in every row of every site; nothing to estimate"
            )
        if len(classes) > 1000:
            raise InputError(
                f"target {federation.target_name!r} has {len(classes)} distinct values; the multinomial model takes "
                "at most 1000 classes (is this a number to predict with the linear or poisson model?)"
            )
        self.set_classes(tuple(c.item() if hasattr(c, "item") else c for c in classes))
        return codes.astype(float)

    def set_classes(self, classes: tuple[Any, ...]) -> None:
        super().set_classes(classes)
        self.outputs = len(classes)

    def contrasts(self, columns: int) -> Array:
        centred = np.eye(self.outputs) - 1.0 / self.outputs
        basis = np.linalg.svd(centred)[0][:, : self.outputs - 1]
        return np.asarray(np.kron(basis, np.eye(columns)))

    def first_residual(self) -> float:
        return math.sqrt(1.0 - 1.0 / self.outputs)

    def mean(self, eta: Array) -> Array:
        from scipy.special import softmax

        return np.asarray(softmax(eta, axis=1))

    def log_likelihood(self, eta: Array, y: Array) -> float:
        from scipy.special import log_softmax

        return float(log_softmax(eta, axis=1)[np.arange(len(y)), y.astype(int)].sum())
