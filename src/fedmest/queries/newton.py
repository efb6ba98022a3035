"""Newton steps: the certified one with noise on its parts, and the paper's with noise on the quotient."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from fedmest.federation import Index
from fedmest.models import GLM, Clipping
from fedmest.privacy.gdp import Array
from fedmest.privacy.noise import Noise
from fedmest.queries.base import Ask, Query, Release, SiteData, half_size

LARGEST_HESSIAN = 2000  # parameters; beyond, conjugate gradients are faster than forming the matrix, and smaller
MOST_PRODUCTS = 1000


@dataclass(frozen=True)
class NewtonParts(Query):
    """Mean clipped gradient and mean clipped curvature, each with its own noise.

    A row's curvature is positive semidefinite with Frobenius norm at most B_H. Replacing A by A' moves the mean by
    |A - A'|_F / n, and |A - A'|_F^2 = |A|^2 + |A'|^2 - 2 <A, A'> <= 2 B_H^2, as the inner product of positive
    semidefinite matrices is not negative: D = sqrt(2) B_H / n. Noise is drawn in the Frobenius isometry, where a
    symmetric matrix is its diagonal and sqrt(2) times its upper triangle.

    The reply is (gradient, curvature triangle). Split: the curvature reads the first half of the rows, the gradient
    the second, so that no row pays for both.
    """

    split: bool = False
    name = "newton parts"
    linear = True

    @property
    def parts(self) -> tuple[str, str]:
        return ("second", "first") if self.split else ("all", "all")

    def releases(self) -> tuple[Release, ...]:
        return Release("mean gradient", self.parts[0]), Release("mean curvature", self.parts[1])

    def sensitivity(self, n: Array, clipping: Clipping) -> Array:
        gradient = 2.0 * clipping.bound / half_size(n, self.parts[0])
        curvature = math.sqrt(2.0) * clipping.curvature / half_size(n, self.parts[1])
        return np.stack([gradient, curvature])

    def reply_size(self, ask: Ask, columns: int) -> int:
        return ask.theta.size + ask.theta.size * (ask.theta.size + 1) // 2

    def answer(self, data: SiteData, sites: Index, ask: Ask, mus: Array, noise: Noise) -> Array:
        gradient_rows, curvature_rows = data.part(self.parts[0]), data.part(self.parts[1])
        scores = data.model.mean_scores(gradient_rows, sites, ask.theta, ask.clipping, ask.penalty)
        curvatures = data.model.mean_curvatures(curvature_rows, sites, ask.theta, ask.clipping, ask.penalty)
        gradient = scores.reshape(len(sites), -1)
        triangle = to_triangle(curvatures)
        sds = self.noise_sds(data.rows.sizes[sites].astype(float), ask.clipping, mus)
        noise.add(gradient, np.ascontiguousarray(sds[0]), sites, 0)
        noise.add(triangle, np.ascontiguousarray(sds[1]), sites, 1)
        return np.concatenate([gradient, triangle], axis=1)


@dataclass(frozen=True)
class NewtonStep(Query):
    """The parts of `NewtonParts`, turned into theta - H^-1 g at the site: d floats travel instead of d + d (d+1)/2."""

    split: bool = False
    lambda_min: float = 1e-6
    name = "newton step"

    def releases(self) -> tuple[Release, ...]:
        return NewtonParts(self.split).releases()

    def sensitivity(self, n: Array, clipping: Clipping) -> Array:
        return NewtonParts(self.split).sensitivity(n, clipping)

    def answer(self, data: SiteData, sites: Index, ask: Ask, mus: Array, noise: Noise) -> Array:
        parts = NewtonParts(self.split).answer(data, sites, ask, mus, noise)
        sds = self.noise_sds(data.rows.sizes[sites].astype(float), ask.clipping, mus)
        size = ask.theta.size
        basis = data.model.contrasts(data.rows.columns)
        out = np.empty((len(sites), size))
        for i, reply in enumerate(parts):
            gradient, curvature = reply[:size], from_triangle(reply[size:], size)
            floor = max(self.lambda_min, spectral_noise(float(sds[1, i]), size))
            out[i] = ask.theta.ravel() - newton_direction(gradient, curvature, floor, basis)
        return out


@dataclass(frozen=True)
class PaperNewton(Query):
    """Algorithm 4's step theta - H(theta; X1)^-1 g(theta; X2) with noise 2 B_new / (mu n), B_new = 4 sqrt(2) B / tau_1.

    Priced at mu / sqrt(2) that noise is what a sensitivity of 8 B / (tau_1 n) asks for; the paper's claim, not ours.
    """

    tau1: float
    name = "newton step (paper)"
    gaps = (
        "FedNewton's Newton step: the noise covers a changed row of the first half only if tau_2 <= 4 tau_1, and a "
        "changed row at all only if every possible data set has a Hessian of at least tau_1; nothing enforces either.",
        "FedNewton's constants differ between the paper's Algorithm 4 and its proof; Algorithm 4 is followed.",
    )

    def releases(self) -> tuple[Release, ...]:
        return (Release("newton step"),)

    def sensitivity(self, n: Array, clipping: Clipping) -> Array:
        return (8.0 * clipping.bound / (self.tau1 * n))[None]

    def answer(self, data: SiteData, sites: Index, ask: Ask, mus: Array, noise: Noise) -> Array:
        scores = data.model.mean_scores(data.part("second"), sites, ask.theta, ask.clipping, ask.penalty)
        replies = np.array([(ask.theta - step).ravel() for step in self._steps(data, sites, ask, scores)])
        sds = self.noise_sds(data.rows.sizes[sites].astype(float), ask.clipping, mus)
        noise.add(replies, np.ascontiguousarray(sds[0]), sites)
        return replies


    def _steps(self, data: SiteData, sites: Index, ask: Ask, scores: Array) -> Iterator[Array]:
        """H^-1 g of each site; a Hessian too large to be formed is only multiplied with."""
        model, rows = data.model, data.part("first")
        if ask.theta.size > LARGEST_HESSIAN:
            assert isinstance(model, GLM)  # networks are refused by the method
            for site, score in zip(sites, scores, strict=True):
                curvature = Curvature(model, rows.of_site(site), rows.targets_of_site(site), ask.theta, ask.penalty)
                yield conjugate_gradients(curvature, score, 1e-6)
            return
        curvatures = model.mean_curvatures(rows, sites, ask.theta, Clipping(rule="norm"), ask.penalty)
        basis = model.contrasts(rows.columns)
        for score, matrix in zip(scores, curvatures, strict=True):
            yield newton_direction(score.ravel(), matrix, 1e-8, basis).reshape(score.shape)


class Curvature:
    """The mean unclipped curvature of rows at theta, to be multiplied with: v -> H v."""

    def __init__(self, model: GLM, X: Array, y: Array, theta: Array, penalty: Array) -> None:
        self.X, self.penalty = X, penalty
        self.weights = np.empty((len(theta), len(theta), len(X)))
        model.curvature(theta @ X.T, y, np.ones(len(X)), np.inf, False, np.inf, self.weights)

    def __call__(self, v: Array) -> Array:
        predictors = v @ self.X.T
        residuals = np.einsum("abi,bi->ai", self.weights, predictors)
        return np.asarray(residuals @ self.X / max(len(self.X), 1) + self.penalty * v)


def conjugate_gradients(product: Callable[[Array], Array], target: Array, accuracy: float) -> Array:
    """The smallest x with H x = target, from products with the positive semidefinite H alone."""
    x, rest = np.zeros_like(target), target.copy()
    direction, square = rest.copy(), float(np.vdot(rest, rest))
    goal = accuracy**2 * square
    for _ in range(MOST_PRODUCTS):
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


def to_triangle(matrices: Array) -> Array:
    """Symmetric matrices (k, d, d) as vectors (k, d (d+1)/2) with the same norm: off-diagonals times sqrt(2)."""
    upper = np.triu_indices(matrices.shape[1])
    scale = np.where(upper[0] == upper[1], 1.0, math.sqrt(2.0))
    return np.ascontiguousarray(matrices[:, upper[0], upper[1]] * scale)


def from_triangle(vector: Array, size: int) -> Array:
    """The symmetric matrix that `to_triangle` wrote."""
    upper = np.triu_indices(size)
    matrix = np.zeros((size, size))
    matrix[upper] = vector / np.where(upper[0] == upper[1], 1.0, math.sqrt(2.0))
    return matrix + matrix.T - np.diag(np.diag(matrix))


def spectral_noise(sd: float, size: int) -> float:
    """Typical spectral norm of the noise matrix: sd on the diagonal, sd / sqrt(2) off it (Wigner)."""
    return sd * math.sqrt(2.0 * size)


def newton_direction(gradient: Array, curvature: Array, floor: float, basis: Array | None) -> Array:
    """H^-1 g with eigenvalues of H floored, within the free directions of theta."""
    if basis is not None:
        gradient, curvature = basis.T @ gradient, basis.T @ curvature @ basis
    step = _solve(curvature, gradient, floor)
    return step if basis is None else np.asarray(basis @ step)


def _solve(curvature: Array, gradient: Array, floor: float) -> Array:
    try:  # where no eigenvalue is below the floor, none need be known; this is ten times faster
        np.linalg.cholesky(curvature - floor * np.eye(len(curvature)))
        return np.asarray(np.linalg.solve(curvature, gradient))
    except np.linalg.LinAlgError:
        return np.asarray(floored_inverse(curvature, floor) @ gradient)


def floored_inverse(curvature: Array, floor: float) -> Array:
    """The inverse of a symmetric matrix whose eigenvalues are raised to the floor where they lie below."""
    values, vectors = np.linalg.eigh(curvature)
    return np.asarray((vectors / np.maximum(values, floor)) @ vectors.T)
