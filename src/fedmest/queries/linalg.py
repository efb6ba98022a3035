"""Linear algebra on replies: symmetric matrices as vectors, steps through noisy curvature, products with a Hessian."""

import math
from collections.abc import Callable

import numpy as np

from fedmest.core.typing import FloatArray
from fedmest.models import GLM

MAX_PRODUCTS = 1000


class Curvature:
    """The mean unclipped curvature of rows at theta, to be multiplied with: v -> H v."""

    def __init__(self, model: GLM, X: FloatArray, y: FloatArray, theta: FloatArray, penalty: FloatArray) -> None:
        self.X, self.penalty = X, penalty
        self.weights = np.empty((len(theta), len(theta), len(X)))
        model.curvature(theta @ X.T, y, np.ones(len(X)), np.inf, False, np.inf, self.weights)

    def __call__(self, v: FloatArray) -> FloatArray:
        predictors = v @ self.X.T
        residuals = np.einsum("abi,bi->ai", self.weights, predictors)
        return np.asarray(residuals @ self.X / max(len(self.X), 1) + self.penalty * v)


def conjugate_gradients(product: Callable[[FloatArray], FloatArray], target: FloatArray, accuracy: float) -> FloatArray:
    """The smallest x with H x = target, from products with the positive semidefinite H alone."""
    x, rest = np.zeros_like(target), target.copy()
    direction, square = rest.copy(), float(np.vdot(rest, rest))
    goal = accuracy**2 * square
    for _ in range(MAX_PRODUCTS):
        if square <= goal:
            break
        image = product(direction)
        bend = float(np.vdot(direction, image))
        if not bend > 0:
            break
        x += square / bend * direction
        rest -= square / bend * image
        before, square = square, float(np.vdot(rest, rest))
        direction = rest + square / before * direction
    return x


def triangle_size(size: int) -> int:
    """Floats in the triangle of a symmetric matrix."""
    return size * (size + 1) // 2


def to_triangle(matrices: FloatArray) -> FloatArray:
    """Symmetric matrices (k, d, d) as vectors (k, d (d+1)/2) with the same norm: off-diagonals times sqrt(2)."""
    upper = np.triu_indices(matrices.shape[1])
    scale = np.where(upper[0] == upper[1], 1.0, math.sqrt(2.0))
    return np.ascontiguousarray(matrices[:, upper[0], upper[1]] * scale)


def from_triangle(vector: FloatArray, size: int) -> FloatArray:
    """The symmetric matrix that `to_triangle` wrote."""
    upper = np.triu_indices(size)
    matrix = np.zeros((size, size))
    matrix[upper] = vector / np.where(upper[0] == upper[1], 1.0, math.sqrt(2.0))
    return matrix + matrix.T - np.diag(np.diag(matrix))


def spectral_noise(sd: float, size: int) -> float:
    """Typical spectral norm of the noise matrix: sd on the diagonal, sd / sqrt(2) off it (Wigner)."""
    return sd * math.sqrt(2.0 * size)


def newton_direction(gradient: FloatArray, curvature: FloatArray, floor: float, basis: FloatArray | None) -> FloatArray:
    """H^-1 g with eigenvalues of H floored, within the free directions of theta."""
    if basis is not None:
        gradient, curvature = basis.T @ gradient, basis.T @ curvature @ basis
    step = _solve(curvature, gradient, floor)
    return step if basis is None else np.asarray(basis @ step)


def _solve(curvature: FloatArray, gradient: FloatArray, floor: float) -> FloatArray:
    try:  # where no eigenvalue is below the floor, none need be known; this is ten times faster
        np.linalg.cholesky(curvature - floor * np.eye(len(curvature)))
        return np.asarray(np.linalg.solve(curvature, gradient))
    except np.linalg.LinAlgError:
        return np.asarray(floored_inverse(curvature, floor) @ gradient)


def floored_inverse(curvature: FloatArray, floor: float) -> FloatArray:
    """The inverse of a symmetric matrix whose eigenvalues are raised to the floor where they lie below."""
    values, vectors = np.linalg.eigh(curvature)
    return np.asarray((vectors / np.maximum(values, floor)) @ vectors.T)
