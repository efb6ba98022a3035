"""The rows that a plan assumes: normal features and responses from the model. No real row is read.

With normal features of one spread, all that a regression's error depends on is the intercept, the length of the slopes
and the number of features. So a row is (intercept, part along the slopes, part across them), its means are sums over a
few hundred nodes, and a matrix such as the curvature is a block for (intercept, along) and one number for each of the
directions across, which are all alike.
"""

import math
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

import numba as nb
import numpy as np
from numba import types
from scipy.special import roots_genlaguerre, roots_hermitenorm

from fedmest.errors import InputError
from fedmest.federation import Index
from fedmest.models import GLM, Clipping, Model
from fedmest.models.kernels import F8, FUNCTION, INDEX, MATRIX, VECTOR
from fedmest.privacy.gdp import Array
from fedmest.queries.histogram import SCORE_GRID

ALONG_NODES = 12
ACROSS_NODES = 3
SPREAD_NODES = 7  # over the uncertainty of theta
DRAWS = 20_000
LEAST_VARIANCE = 1e-10  # of a predictor: slopes are differences
RARE = 1e-6  # nodes of less weight are left out


@dataclass(frozen=True)
class Population:
    """What is assumed of rows: the truth's intercept, the length of its slopes, the spread of the features.

    `columns` counts the intercept's.
    """

    model: Model
    columns: int
    intercept: float = 0.5
    slopes: float = 0.7
    feature_sd: float = 1.0

    @staticmethod
    def typical(model: Model, columns: int) -> "Population":
        """What is assumed where nothing is said: moderate effects, of which counts show more."""
        return Population(model, columns, slopes=0.35 if model.name == "poisson" else 0.7)

    @cached_property
    def harder(self) -> "Population":
        """The same predictors from features half as spread: curvature is a quarter, and descent slower."""
        return replace(self, slopes=2 * self.slopes, feature_sd=self.feature_sd / 2)

    def __post_init__(self) -> None:
        if not isinstance(self.model, GLM) or type(self.model).outcomes is GLM.outcomes:
            raise InputError(f"a plan is for linear, logistic and Poisson regressions, not for the {self.model.name} "
                             "model")  # fmt: skip

    @property
    def glm(self) -> GLM:
        assert isinstance(self.model, GLM)
        return self.model

    @property
    def across(self) -> int:
        """Directions of the features across the slopes."""
        return max(self.columns - 2, 0)

    @property
    def directions(self) -> Array:
        """How many directions each of the three coordinates stands for."""
        return np.array([1.0, 1.0 if self.columns > 1 else 0.0, float(self.across)])

    @property
    def truth(self) -> Array:
        return np.array([self.intercept, self.slopes if self.columns > 1 else 0.0, 0.0])

    @cached_property
    def nodes(self) -> "Nodes":
        t, weight_t = _normal(ALONG_NODES)
        square, weight_a = _chi_square(self.across, ACROSS_NODES)
        along, across = (grid.ravel() for grid in np.meshgrid(t, np.sqrt(square), indexing="ij"))
        weights = np.outer(weight_t, weight_a).ravel()
        x = self._rows(along, across)
        y, chances = self.glm.outcomes(x @ self.truth)
        joint = weights[:, None] * chances
        kept = joint > RARE
        return Nodes(self, x[np.nonzero(kept)[0]], y[kept], joint[kept] / joint[kept].sum())

    @cached_property
    def pooled_error(self) -> float:
        """Of the fit to all rows in one place, without privacy, times their number."""
        scores, curvature = self.at_truth(Clipping())
        inverse = np.linalg.inv(curvature)
        return self.trace(inverse @ scores @ inverse)

    def _draws(self) -> "Nodes":
        """Rows drawn at random: for quantiles, which few nodes do not show."""
        rng = np.random.default_rng(0)
        across = rng.chisquare(self.across, DRAWS) if self.across else np.zeros(DRAWS)
        x = self._rows(rng.standard_normal(DRAWS), np.sqrt(across))
        y, chances = self.glm.outcomes(x @ self.truth)
        place = (chances.cumsum(axis=1) < rng.random((DRAWS, 1))).sum(axis=1)
        drawn = np.take_along_axis(y, np.minimum(place, y.shape[1] - 1)[:, None], axis=1)[:, 0]
        return Nodes(self, x, drawn, np.full(DRAWS, 1 / DRAWS))

    @lru_cache  # noqa: B019 -- populations are few, and small
    def shares(self, of: str) -> Array:
        """Of rows, by the norm of what a bound holds (scores at theta = 0, or records), in the bins of its grid."""
        rows = self._draws()
        norms = np.hypot(rows.norms, rows.y)
        if of == "scores":
            norms = np.abs(rows.residuals(np.zeros((DRAWS, 1)), Clipping("norm"))[:, 0]) * rows.norms
        counts = np.bincount(np.searchsorted(SCORE_GRID, norms, side="right"), minlength=len(SCORE_GRID) + 1)
        return np.asarray(counts / DRAWS)

    @lru_cache  # noqa: B019
    def at_truth(self, clipping: Clipping) -> tuple[Array, Array]:
        """Covariance of a row's clipped score, and the mean curvature."""
        return self.nodes.score_covariance(self.truth, clipping), self.nodes.curvature(self.truth, clipping)

    def trace(self, matrix: Array) -> float:
        return float(self.directions @ np.diag(matrix))

    def length(self, vector: Array) -> float:
        return float(self.directions @ vector**2)

    def _rows(self, along: Array, across: Array) -> Array:
        scale = self.feature_sd if self.columns > 1 else 0.0
        return np.column_stack([
            np.ones_like(along), scale * along, scale * across / math.sqrt(max(self.across, 1)),
        ])  # fmt: skip


@dataclass(frozen=True)
class Nodes:
    """Weighted rows. The third coordinate is the root mean square over the directions across."""

    population: Population
    x: Array
    y: Array
    weights: Array

    @cached_property
    def norms(self) -> Array:
        return np.asarray(np.sqrt(self.x**2 @ self.population.directions))

    @cached_property
    def starts(self) -> Index:
        """Where runs of rows begin that differ in y alone, and the number of rows."""
        new = np.flatnonzero((self.x[1:] != self.x[:-1]).any(axis=1)) + 1
        return np.array([0, *new, len(self.x)], dtype=np.int64)

    def predictors(self, theta: Array, spread: Array | None) -> tuple[Array, Array]:
        """Linear predictors at a theta, or at a few values around it where theta is uncertain with covariance `spread`.

        (rows, values) and the weights of the values.
        """
        centre = (self.x @ theta)[:, None]
        if spread is None:
            return centre, np.ones(1)
        z, weights = _normal(SPREAD_NODES)
        block, across = spread[:2, :2], spread[2, 2]
        variance = np.einsum("ij,jk,ik->i", self.x[:, :2], block, self.x[:, :2])
        variance += across * self.population.across * self.x[:, 2] ** 2
        return centre + np.sqrt(np.maximum(variance, LEAST_VARIANCE))[:, None] * z, weights

    def residuals(self, eta: Array, clipping: Clipping) -> Array:
        """What multiplies x in each row's clipped score, (rows, values)."""
        out = eta.reshape(1, -1).copy()
        many = eta.shape[1]
        self.model.residual(out, np.repeat(self.y, many), np.repeat(clipping.bound / self.norms, many),
                            clipping.consistent)  # fmt: skip
        return out.reshape(-1, many)

    def curvatures(self, eta: Array, clipping: Clipping) -> Array:
        many = eta.shape[1]
        out = np.empty((1, 1, eta.size))
        self.model.curvature(
            np.ascontiguousarray(eta.reshape(1, -1)), np.repeat(self.y, many), np.repeat(self.norms, many),
            clipping.bound, clipping.consistent, clipping.curvature, out,
        )  # fmt: skip
        return out.reshape(-1, many)

    def score(self, theta: Array, clipping: Clipping, spread: Array | None = None) -> Array:
        """Mean clipped score, over the uncertainty of theta too."""
        eta, weights = self.predictors(theta, spread)
        mean = (self.weights * (self.residuals(eta, clipping) @ weights)) @ self.x
        mean[2] = 0.0
        return np.asarray(mean)

    def descend(self, state: "State", clipping: Clipping, eta: float, variances: Array, per_row: float, scores: Array,
                common: Array) -> None:  # fmt: skip
        """Follow gradient steps of size eta with noise of these variances, changing the state; see `_descend`."""
        z, chances = _normal(SPREAD_NODES)
        _descend(
            self.model.residual, np.ascontiguousarray(self.x[self.starts[:-1]]), self.starts,
            np.tile(self.y, len(z) + 1), np.tile(clipping.bound / self.norms, len(z) + 1), self.weights,
            clipping.consistent, float(self.population.across), z, chances, eta, np.ascontiguousarray(variances),
            per_row, scores, common, state.mean, state.plain, state.passed, state.by_score, state.noise,
        )  # fmt: skip

    def curvature(self, theta: Array, clipping: Clipping) -> Array:
        eta, _ = self.predictors(theta, None)
        return self._matrix(self.curvatures(eta, clipping)[:, 0])

    def score_covariance(self, theta: Array, clipping: Clipping) -> Array:
        """Of one row's clipped score."""
        eta, _ = self.predictors(theta, None)
        mean = self.score(theta, clipping)
        return self._matrix(self.residuals(eta, clipping)[:, 0] ** 2) - np.outer(mean, mean)

    def _matrix(self, factors: Array) -> Array:
        matrix = self.x.T @ ((self.weights * factors)[:, None] * self.x)
        matrix[2, :2] = matrix[:2, 2] = 0.0  # the directions across are symmetric about zero
        for j in range(3):
            if self.population.directions[j] == 0:
                matrix[j, j] = 1.0  # no such direction; keeps matrices regular
        return np.asarray(matrix)

    @property
    def model(self) -> GLM:
        return self.population.glm


@dataclass
class State:
    """What descent changes: the mean of theta, what it would be without noise or sampling error, its derivative by the
    mean score, the covariance of the noise in it, and what is left of where it began.
    """

    mean: Array
    plain: Array
    by_score: Array
    noise: Array
    passed: Array


@nb.njit(types.void(MATRIX, MATRIX, MATRIX, F8), cache=True)
def _add_product(total, outer, inner, factor):  # type: ignore[no-untyped-def]
    """total += factor * outer inner outer', all 3 x 3: too small for a library."""
    for i in range(3):
        for j in range(3):
            part = 0.0
            for k in range(3):
                for h in range(3):
                    part += outer[i, k] * inner[k, h] * outer[j, h]
            total[i, j] += factor * part


@nb.njit(
    types.void(FUNCTION, MATRIX, INDEX, VECTOR, VECTOR, VECTOR, types.boolean, F8, VECTOR, VECTOR, F8, VECTOR, F8,
               MATRIX, MATRIX, VECTOR, VECTOR, MATRIX, MATRIX, MATRIX),
    cache=True,
)  # fmt: skip
def _descend(residual, x, starts, y, limits, weights, consistent, across, z, chances, eta, variances, per_row, scores, common, mean, plain, passed, by_score, noise):  # type: ignore[no-untyped-def]  # noqa: E501
    """At each step the mean score, and how it changes with theta, are averages over the spread that theta has by then.

    The change is the regression of the score on theta: far from the truth clipped scores are nearly flat, whatever the
    curvature says. Rows from starts[g] to starts[g + 1] share x[g] and differ in y. Residuals are asked for in blocks
    of all rows: one for each of the values z that theta may have, and one at the theta without noise.
    """
    groups, rows, many = x.shape[0], weights.size, z.size
    predictors = np.empty((1, rows * (many + 1)))
    residuals = predictors[0]
    sds, levels, slopes, at_plain = np.empty(groups), np.empty(groups), np.empty(groups), np.empty(groups)
    spread, shrink = np.empty((3, 3)), np.empty((3, 3))
    for k in range(variances.size):
        spread[:] = noise
        _add_product(spread, passed, common, 1.0)
        _add_product(spread, by_score, scores, per_row)
        for g in range(groups):
            a, b, c = x[g, 0], x[g, 1], x[g, 2]
            square = spread[0, 0] * a * a + 2 * spread[0, 1] * a * b + spread[1, 1] * b * b
            square += spread[2, 2] * across * c * c
            sds[g] = math.sqrt(max(square, LEAST_VARIANCE))
            centre = mean[0] * a + mean[1] * b
            for j in range(many + 1):
                value = centre + sds[g] * z[j] if j < many else plain[0] * a + plain[1] * b
                for i in range(j * rows + starts[g], j * rows + starts[g + 1]):
                    residuals[i] = value
        residual(predictors, y, limits, consistent)
        levels[:], slopes[:] = 0.0, 0.0
        for j in range(many + 1):
            for g in range(groups):
                r = 0.0
                for i in range(starts[g], starts[g + 1]):
                    r += residuals[j * rows + i] * weights[i]
                if j < many:
                    levels[g] += r * chances[j]
                    slopes[g] += r * chances[j] * z[j]
                else:
                    at_plain[g] = r
        shrink[:] = 0.0
        for g in range(groups):
            a, b, c = x[g, 0], x[g, 1], x[g, 2]
            slope = eta * slopes[g] / sds[g]
            mean[0] -= eta * levels[g] * a
            mean[1] -= eta * levels[g] * b
            plain[0] -= eta * at_plain[g] * a
            plain[1] -= eta * at_plain[g] * b
            shrink[0, 0] -= slope * a * a
            shrink[0, 1] -= slope * a * b
            shrink[1, 1] -= slope * b * b
            shrink[2, 2] -= slope * c * c
        shrink[1, 0] = shrink[0, 1]
        for j in range(3):
            shrink[j, j] += 1.0
        spread[:] = noise
        noise[:] = 0.0
        _add_product(noise, shrink, spread, 1.0)
        passed[:] = shrink @ passed
        by_score[:] = shrink @ by_score
        for j in range(3):
            by_score[j, j] -= eta
            noise[j, j] += variances[k]


@lru_cache
def _normal(count: int) -> tuple[Array, Array]:
    """Nodes and weights of a standard normal."""
    nodes, weights = roots_hermitenorm(count)
    return np.asarray(nodes), np.asarray(weights / weights.sum())


@lru_cache
def _chi_square(freedom: int, count: int) -> tuple[Array, Array]:
    if freedom == 0:
        return np.zeros(1), np.ones(1)
    nodes, weights = roots_genlaguerre(count, freedom / 2 - 1)
    return np.asarray(2 * nodes), np.asarray(weights / weights.sum())
