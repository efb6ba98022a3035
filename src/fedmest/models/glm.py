"""The base of all models with linear predictors: compiled loops over packed rows."""

import math
from collections.abc import Callable
from typing import ClassVar

import numpy as np

from fedmest.errors import InputError
from fedmest.federation import Federation, Index, Rows
from fedmest.models import kernels
from fedmest.models.base import Clipping, Model
from fedmest.privacy.gdp import Array
from fedmest.privacy.noise import Noise, SeededNoise

ROWS_AT_ONCE = 4096  # whose scores are held together


class GLM(Model):
    """A generalized linear model with canonical link.

    A subclass states its name, two compiled functions (see `kernels.RESIDUAL`, `kernels.CURVATURE`), how to check
    a target, and the mean and log-likelihood for linear predictors.
    """

    residual: ClassVar[Callable[..., None]]
    curvature: ClassVar[Callable[..., None]]

    def curvature_bound(self, bound: float, columns: int, trusted: bool = True) -> float:
        # With |x| about sqrt(columns) the bound stands for a residual, whose square is the curvature's scale under the
        # model. Long residuals are rather those of responses that vary more than the model says, so that it grows no
        # faster than they do from there on; at once where the model is not trusted.
        residual = bound / math.sqrt(columns)
        return columns * min(residual**2, residual + 2.0 if trusted else residual)

    def mean_scores(self, rows: Rows, sites: Index, thetas: Array, clipping: Clipping, penalty: Array) -> Array:
        out = np.empty((len(sites), self.outputs, rows.columns))
        kernels.mean_scores(
            self.residual, rows.packed, rows.y, rows.norms, rows.offsets, rows.columns, sites, _stack(thetas),
            clipping.bound, clipping.consistent, penalty, out,
        )  # fmt: skip
        return out

    def local_descents(
        self, rows: Rows, sites: Index, thetas: Array, steps: int, eta: float, clipping: Clipping, penalty: Array,
        drifts: Array, sds: Array, factors: Array, noise: Noise,
    ) -> Array:  # fmt: skip
        out = np.empty((len(sites), self.outputs, rows.columns))
        starts, drifts = _stack(thetas), _stack(drifts)
        if not isinstance(noise, SeededNoise):  # which alone compiled loops can draw
            for i, site in enumerate(sites):
                out[i] = starts[i % len(starts)]
                for k in range(steps):
                    move = -eta * self.mean_scores(rows, sites[i : i + 1], out[i], clipping, 0.0 * penalty)[0]
                    noise.add_step(move.reshape(-1), float(sds[i] * factors[k, i % factors.shape[1]]), int(site), k)
                    out[i] += move - eta * (penalty * out[i] + drifts[i % len(drifts)])
            return out
        kernels.local_descents(
            self.residual, rows.packed, rows.y, rows.norms, rows.offsets, rows.columns, sites, starts, steps,
            eta, clipping.bound, clipping.consistent, penalty, drifts, sds, factors, noise.keys,
            np.uint64(noise.seed), noise.stream(), out,
        )  # fmt: skip
        return out

    def score_norms(self, rows: Rows, theta: Array, clipping: Clipping | None = None) -> Array:
        """Norm of every row's score at theta, unclipped unless a clipping is given."""
        clipping = clipping or Clipping()
        out = np.empty(len(rows.y))
        kernels.score_norms(
            self.residual, rows.packed, rows.y, rows.norms, rows.offsets, rows.columns, np.ascontiguousarray(theta),
            clipping.bound, clipping.consistent, out,
        )  # fmt: skip
        return out

    def mean_curvatures(self, rows: Rows, sites: Index, thetas: Array, clipping: Clipping, penalty: Array) -> Array:
        size = self.outputs * rows.columns
        out = np.empty((len(sites), size, size))
        kernels.mean_curvatures(
            self.curvature, rows.packed, rows.y, rows.norms, rows.offsets, rows.columns, sites, _stack(thetas),
            clipping.bound, clipping.consistent, clipping.curvature, penalty, out,
        )  # fmt: skip
        return out

    def mean_score_squares(self, rows: Rows, sites: Index, theta: Array, clipping: Clipping) -> Array:
        """Mean of s s' over each site's rows, s the clipped score without penalty: (k, outputs * d, outputs * d)."""
        size = theta.size
        out = np.empty((len(sites), size, size))
        for i, site in enumerate(sites):
            X, begin = rows.of_site(site), rows.offsets[site]
            with np.errstate(over="ignore", invalid="ignore"):  # a residual is cut to its limit, whatever comes
                residuals = np.ascontiguousarray(theta @ X.T)
            norms = rows.norms[begin : begin + len(X)]
            self.residual(residuals, rows.targets_of_site(site), clipping.bound / norms, clipping.consistent)
            total = np.zeros((size, size))
            for first in range(0, len(X), ROWS_AT_ONCE):
                part = slice(first, first + ROWS_AT_ONCE)
                scores = (residuals[:, part].T[:, :, None] * X[part, None, :]).reshape(-1, size)
                total += scores.T @ scores
            out[i] = total / max(len(X), 1)
        return out

    def features(self, rows: Rows, site: int, theta: Array) -> Array:
        return rows.of_site(site)

    def outcomes(self, eta: Array) -> tuple[Array, Array]:
        """Responses that the model allows at linear predictors (k,), and how likely each is: both (k, responses).

        Where responses are real numbers, a few that stand for all. Plans are made with them.
        """
        raise NotImplementedError

    def predictors(self, X: Array, theta: Array, intercept: bool) -> Array:
        return np.asarray(X @ theta[:, 1:].T + theta[:, 0] if intercept else X @ theta.T)


def numeric_target(model: GLM, federation: Federation, need: str) -> Array:
    """The target as floats, or the error that says what the model needs."""
    if federation.target.dtype.kind not in "fiub":
        raise InputError(
            f"target {federation.target_name!r} holds text such as {federation.target[0]!r}; the {model.name} model "
            f"needs {need}"
        )
    return np.ascontiguousarray(federation.target, dtype=float)


def _stack(thetas: Array) -> Array:
    return np.ascontiguousarray(thetas if thetas.ndim == 3 else thetas[None])
