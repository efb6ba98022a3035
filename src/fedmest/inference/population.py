"""The rows that a plan assumes: normal features and responses from the model. No real row is read.

With normal features of one spread, all that a regression's error depends on is the intercept, the length of the slopes
and the number of features. So a row is (intercept, part along the slopes, part across them), its means are sums over a
few hundred nodes, and a matrix such as the curvature is a block for (intercept, along) and one number for each of the
directions across, which are all alike.
"""

import math
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

import numpy as np
from scipy.linalg import eigh_tridiagonal
from scipy.special import roots_genlaguerre, roots_hermitenorm

from fedmest.core.exceptions import InputError
from fedmest.core.typing import FloatArray, IntArray
from fedmest.inference.descent_kernel import LEAST_VARIANCE, follow_descent
from fedmest.models import FAMILIES, GLM, Clipping, Model
from fedmest.queries.histogram import SCORE_GRID

ALONG_NODES = 12
ACROSS_NODES = 3
SPREAD_NODES = 7  # over the uncertainty of theta
DRAWS = 20_000
MAX_GAMMA_FREEDOM = 320  # SciPy's weights hold gamma(freedom / 2), which overflows from 343 on
RARE = 1e-6  # nodes of less weight are left out


@dataclass(frozen=True)
class Population:
    """Assumptions about rows: true coefficients and features.

    Parameters
    ----------
    model : Model
        A model with one linear predictor.
    columns : int
        Columns of a row, the intercept's included.
    intercept : float
        True intercept.
    slopes : float
        Length of the true slopes.
    feature_sd : float
        Standard deviation of every feature.
    """

    model: Model
    columns: int
    intercept: float = 0.5
    slopes: float = 0.7
    feature_sd: float = 1.0

    @staticmethod
    def typical(model: Model, columns: int) -> "Population":
        """Default assumptions: effects of moderate size.

        Parameters
        ----------
        model : Model
            A model with one linear predictor.
        columns : int
            Columns of a row, the intercept's included.

        Returns
        -------
        Population

        Raises
        ------
        InputError
            If there are no plans for the model.
        """
        if not isinstance(model, GLM):
            raise _no_plan(model)
        return Population(model, columns, model.family.plan.intercept, model.family.plan.slopes)

    @cached_property
    def harder(self) -> "Population":
        """The same predictors from features half as spread: curvature is a quarter, and descent slower."""
        return replace(self, slopes=2 * self.slopes, feature_sd=self.feature_sd / 2)

    def __post_init__(self) -> None:
        if not isinstance(self.model, GLM) or self.model.family.support is None:
            raise _no_plan(self.model)

    @property
    def glm(self) -> GLM:
        """The model."""
        assert isinstance(self.model, GLM)
        return self.model

    @property
    def across(self) -> int:
        """Directions of the features across the slopes."""
        return max(self.columns - 2, 0)

    @property
    def directions(self) -> FloatArray:
        """How many directions each of the three coordinates stands for."""
        return np.array([1.0, 1.0 if self.columns > 1 else 0.0, float(self.across)])

    @property
    def truth(self) -> FloatArray:
        """True coefficients, in the three coordinates: intercept, along the slopes, across them."""
        return np.array([self.intercept, self.slopes if self.columns > 1 else 0.0, 0.0])

    @cached_property
    def nodes(self) -> "Nodes":
        """Weighted rows over which means are sums."""
        t, weight_t = _normal(ALONG_NODES)
        square, weight_a = _chi_square(self.across, ACROSS_NODES)
        along, across = (grid.ravel() for grid in np.meshgrid(t, np.sqrt(square), indexing="ij"))
        weights = np.outer(weight_t, weight_a).ravel()
        x = self._rows(along, across)
        y, chances = self.glm.support(x @ self.truth)
        joint = weights[:, None] * chances
        kept = joint > RARE
        return Nodes(self, x[np.nonzero(kept)[0]], y[kept], joint[kept] / joint[kept].sum())

    @cached_property
    def pooled_error(self) -> float:
        """Mean squared error of the pooled fit without privacy, times the number of rows."""
        scores, curvature = self.at_truth(Clipping())
        inverse = np.linalg.inv(curvature)
        return self.trace(inverse @ scores @ inverse)

    def _draws(self) -> "Nodes":
        """Rows drawn at random: for quantiles, which few nodes do not show."""
        rng = np.random.default_rng(0)
        across = rng.chisquare(self.across, DRAWS) if self.across else np.zeros(DRAWS)
        x = self._rows(rng.standard_normal(DRAWS), np.sqrt(across))
        y, chances = self.glm.support(x @ self.truth)
        place = (chances.cumsum(axis=1) < rng.random((DRAWS, 1))).sum(axis=1)
        drawn = np.take_along_axis(y, np.minimum(place, y.shape[1] - 1)[:, None], axis=1)[:, 0]
        return Nodes(self, x, drawn, np.full(DRAWS, 1 / DRAWS))

    @lru_cache  # noqa: B019 -- populations are few, and small
    def shares(self, of: str) -> FloatArray:
        """Shares of rows in the bins of the clip norm's grid.

        Parameters
        ----------
        of : {"scores", "records"}
            Norms that are counted: of scores at theta = 0, or of records.

        Returns
        -------
        FloatArray
        """
        rows = self._draws()
        norms = np.hypot(rows.norms, rows.y)
        if of == "scores":
            norms = np.abs(rows.residuals(np.zeros((DRAWS, 1)), Clipping("norm"))[:, 0]) * rows.norms
        counts = np.bincount(np.searchsorted(SCORE_GRID, norms, side="right"), minlength=len(SCORE_GRID) + 1)
        return np.asarray(counts / DRAWS)

    @lru_cache  # noqa: B019
    def at_truth(self, clipping: Clipping) -> tuple[FloatArray, FloatArray]:
        """Moments of a row at the true coefficients.

        Parameters
        ----------
        clipping : Clipping
            How rows are clipped.

        Returns
        -------
        score_covariance : FloatArray
            Covariance of a row's clipped score.
        curvature : FloatArray
            Mean curvature.
        """
        return self.nodes.score_covariance(self.truth, clipping), self.nodes.curvature(self.truth, clipping)

    def trace(self, matrix: FloatArray) -> float:
        """Trace over all directions of a matrix in the three coordinates.

        Parameters
        ----------
        matrix : FloatArray
            (3, 3).

        Returns
        -------
        float
        """
        return float(self.directions @ np.diag(matrix))

    def length(self, vector: FloatArray) -> float:
        """Squared length of a vector in the three coordinates.

        Parameters
        ----------
        vector : FloatArray
            (3,).

        Returns
        -------
        float
        """
        return float(self.directions @ vector**2)

    def _rows(self, along: FloatArray, across: FloatArray) -> FloatArray:
        scale = self.feature_sd if self.columns > 1 else 0.0
        return np.column_stack(
            [
                np.ones_like(along),
                scale * along,
                scale * across / math.sqrt(max(self.across, 1)),
            ]
        )


@dataclass(frozen=True)
class Nodes:
    """Weighted rows. The third coordinate is the root mean square over the directions across."""

    population: Population
    x: FloatArray
    y: FloatArray
    weights: FloatArray

    @cached_property
    def norms(self) -> FloatArray:
        return np.asarray(np.sqrt(self.x**2 @ self.population.directions))

    @cached_property
    def starts(self) -> IntArray:
        """Where runs of rows begin that differ in y alone, and the number of rows."""
        new = np.flatnonzero((self.x[1:] != self.x[:-1]).any(axis=1)) + 1
        return np.array([0, *new, len(self.x)], dtype=np.int64)

    def predictors(self, theta: FloatArray, spread: FloatArray | None) -> tuple[FloatArray, FloatArray]:
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

    def residuals(self, eta: FloatArray, clipping: Clipping) -> FloatArray:
        """What multiplies x in each row's clipped score, (rows, values)."""
        out = eta.reshape(1, -1).copy()
        many = eta.shape[1]
        self.model.residual(
            out, np.repeat(self.y, many), np.repeat(clipping.bound / self.norms, many), clipping.consistent
        )
        return out.reshape(-1, many)

    def curvatures(self, eta: FloatArray, clipping: Clipping) -> FloatArray:
        many = eta.shape[1]
        out = np.empty((1, 1, eta.size))
        self.model.curvature(
            np.ascontiguousarray(eta.reshape(1, -1)),
            np.repeat(self.y, many),
            np.repeat(self.norms, many),
            clipping.bound,
            clipping.consistent,
            clipping.curvature,
            out,
        )
        return out.reshape(-1, many)

    def score(self, theta: FloatArray, clipping: Clipping, spread: FloatArray | None = None) -> FloatArray:
        """Mean clipped score, over the uncertainty of theta too."""
        eta, weights = self.predictors(theta, spread)
        mean = (self.weights * (self.residuals(eta, clipping) @ weights)) @ self.x
        mean[2] = 0.0
        return np.asarray(mean)

    def descend(
        self,
        state: "State",
        clipping: Clipping,
        eta: float,
        variances: FloatArray,
        per_row: float,
        scores: FloatArray,
        common: FloatArray,
    ) -> None:
        """Follow gradient steps of size eta with noise of these variances, changing the state; see `follow_descent`."""
        z, chances = _normal(SPREAD_NODES)
        follow_descent(
            self.model.family.residual, self.model.param_array, np.ascontiguousarray(self.x[self.starts[:-1]]),
            self.starts, np.tile(self.y, len(z) + 1), np.tile(clipping.bound / self.norms, len(z) + 1), self.weights,
            clipping.consistent, float(self.population.across), z, chances, eta, np.ascontiguousarray(variances),
            per_row, scores, common, state.mean, state.plain, state.passed, state.by_score, state.noise,
        )  # fmt: skip

    def curvature(self, theta: FloatArray, clipping: Clipping) -> FloatArray:
        eta, _ = self.predictors(theta, None)
        return self._matrix(self.curvatures(eta, clipping)[:, 0])

    def score_covariance(self, theta: FloatArray, clipping: Clipping) -> FloatArray:
        """Of one row's clipped score."""
        eta, _ = self.predictors(theta, None)
        mean = self.score(theta, clipping)
        return self._matrix(self.residuals(eta, clipping)[:, 0] ** 2) - np.outer(mean, mean)

    def _matrix(self, factors: FloatArray) -> FloatArray:
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
    """The state of a descent, which `follow_descent` changes.

    Attributes
    ----------
    mean : FloatArray
        Mean of theta.
    plain : FloatArray
        Theta without noise or sampling error.
    by_score : FloatArray
        Derivative of theta by the mean score.
    noise : FloatArray
        Covariance of the noise in theta.
    passed : FloatArray
        Derivative of theta by its start.
    """

    mean: FloatArray
    plain: FloatArray
    by_score: FloatArray
    noise: FloatArray
    passed: FloatArray


def _no_plan(model: Model) -> InputError:
    known = ", ".join(family.name for family in FAMILIES if family.support is not None)
    return InputError(f"there is no plan for the {model.name} model; there are plans for {known}")


@lru_cache
def _normal(count: int) -> tuple[FloatArray, FloatArray]:
    """Nodes and weights of a standard normal."""
    nodes, weights = roots_hermitenorm(count)
    return np.asarray(nodes), np.asarray(weights / weights.sum())


@lru_cache
def _chi_square(freedom: int, count: int) -> tuple[FloatArray, FloatArray]:
    """Nodes and weights of a chi-square with this many degrees of freedom."""
    if freedom == 0:
        return np.zeros(1), np.ones(1)
    alpha = freedom / 2 - 1
    if freedom > MAX_GAMMA_FREEDOM:
        # nodes are eigenvalues of the recurrence's matrix, weights squares of its eigenvectors' first elements
        order = np.arange(1, count)
        nodes, vectors = eigh_tridiagonal(2 * np.arange(count) + alpha + 1, -np.sqrt(order * (order + alpha)))
        return np.asarray(2 * nodes), np.asarray(vectors[0] ** 2)
    nodes, weights = roots_genlaguerre(count, alpha)
    return np.asarray(2 * nodes), np.asarray(weights / weights.sum())
