"""Maximum-likelihood estimates, of each site alone or of all rows in one place.

They have no finite sensitivity: only for non-private baselines.
"""

from dataclasses import dataclass

import numpy as np

from fedmest.core.exceptions import ConvergenceError
from fedmest.core.typing import FloatArray, IntArray
from fedmest.models import GLM, Clipping
from fedmest.privacy.noise import Noise
from fedmest.queries.base import Query, QueryInputs, Release, Role, SiteData
from fedmest.queries.linalg import Curvature, conjugate_gradients, newton_direction

MAX_STEP = 5.0  # a separable site has no finite estimate; steps are held to this length
ROUNDS = 30
NOT_CONVERGED = "the pooled fit did not converge: the classes may be separable, or columns collinear; add a ridge"
ACCURACY = 1e-6  # of the last step; where classes are separable steps never end, though gradients vanish
MAX_DENSE = 300  # parameters; beyond, no Hessian is formed


@dataclass(frozen=True)
class LocalFit(Query):
    """Maximum-likelihood estimate of each site's own rows, without privacy."""

    name = "local fit"
    roles = (Role.ESTIMATE,)

    def releases(self) -> tuple[Release, ...]:
        return (Release("local estimate"),)

    def sensitivity(self, n: FloatArray, clipping: Clipping) -> FloatArray:
        return np.full((1, len(n)), np.inf)

    def answer(self, data: SiteData, sites: IntArray, inputs: QueryInputs, mus: FloatArray, noise: Noise) -> FloatArray:
        if np.isfinite(mus).any():
            raise ValueError("a local fit has no finite sensitivity and cannot be released under a budget")
        model, rows = data.model, data.rows
        assert isinstance(model, GLM)  # networks are refused by the method
        if inputs.params.size > MAX_DENSE:
            fits = (
                minimum(model, rows.of_site(i), rows.targets_of_site(i), inputs.params, inputs.penalty) for i in sites
            )
            return np.array([theta.ravel() for theta, _ in fits])
        basis = model.contrasts(rows.columns)
        thetas = np.tile(inputs.params, (len(sites), 1, 1))
        active = np.arange(len(sites))
        for _ in range(ROUNDS):
            now = np.ascontiguousarray(thetas[active])
            scores = model.mean_scores(rows, sites[active], now, inputs.clipping, inputs.penalty)
            curvatures = model.mean_curvatures(rows, sites[active], now, inputs.clipping, inputs.penalty)
            lengths = np.empty(len(active))
            for i, place in enumerate(active):
                step = newton_direction(scores[i].ravel(), curvatures[i], 1e-6, basis)
                lengths[i] = float(np.linalg.norm(step))
                step *= min(1.0, MAX_STEP / max(lengths[i], 1e-300))
                thetas[place] -= step.reshape(inputs.params.shape)
            active = active[lengths > 1e-10]
            if len(active) == 0:
                break
        return thetas.reshape(len(sites), -1)


@dataclass(frozen=True)
class PooledFit(LocalFit):
    """Maximum-likelihood estimate of all rows together, without privacy; every site replies the same."""

    name = "pooled fit"

    def answer(self, data: SiteData, sites: IntArray, inputs: QueryInputs, mus: FloatArray, noise: Noise) -> FloatArray:
        if np.isfinite(mus).any():
            raise ValueError("a pooled fit has no finite sensitivity and cannot be released under a budget")
        assert isinstance(data.model, GLM)
        theta, converged = minimum(data.model, data.rows.matrix(), data.rows.y, inputs.params, inputs.penalty)
        if not converged:
            raise ConvergenceError(NOT_CONVERGED)
        return np.broadcast_to(theta.ravel(), (len(sites), theta.size))


def minimum(
    model: GLM, X: FloatArray, y: FloatArray, theta: FloatArray, penalty: FloatArray
) -> tuple[FloatArray, bool]:
    """The minimum of the mean loss and penalty, and whether it was reached, by Newton's method.

    Each step is computed by conjugate gradients, the more accurately the nearer the minimum is (Eisenstat and Walker),
    and halved as long as it overshoots: the loss is convex, so it does where the slope behind the step is steep.
    """
    no_limit, n = np.full(len(y), np.inf), max(len(X), 1)

    def gradient(at: FloatArray) -> FloatArray:
        residual = at @ X.T
        model.residual(residual, y, no_limit, False)
        total = residual @ X / n + penalty * at
        return np.asarray(total - total.mean(axis=0) if len(at) > 1 else total)  # classes sum to zero, but for rounding

    slope = gradient(theta)
    first = max(float(np.linalg.norm(slope)), 1e-300)
    for _ in range(ROUNDS):
        accuracy = min(0.1, float(np.linalg.norm(slope)) / first)
        step = conjugate_gradients(Curvature(model, X, y, theta, penalty), slope, accuracy)
        before = float(np.vdot(slope, step))
        while float(np.vdot(slope := gradient(theta - step), step)) < -0.5 * before:
            step /= 2
            before /= 2
        theta = theta - step
        if float(np.abs(step).max()) < ACCURACY * (1 + float(np.abs(theta).max())):
            return theta, True
    return theta, False
