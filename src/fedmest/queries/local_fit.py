"""Maximum-likelihood estimates, of each site alone or of all rows in one place.

They have no finite sensitivity: only for non-private baselines.
"""

from dataclasses import dataclass

import numpy as np

from fedmest.errors import InputError
from fedmest.federation import Index
from fedmest.models import GLM, Clipping
from fedmest.privacy.gdp import Array
from fedmest.privacy.noise import Noise
from fedmest.queries.base import Ask, Query, Release, SiteData
from fedmest.queries.newton import Curvature, conjugate_gradients, newton_direction

LARGEST_STEP = 5.0  # a separable site has no finite estimate; steps are held to this length
ROUNDS = 30
NOT_CONVERGED = "the pooled fit did not converge: the classes may be separable, or columns collinear; add a ridge"
ACCURACY = 1e-6  # of the gradient, against its length at the start
LARGEST_DENSE = 300  # parameters; beyond, no Hessian is formed


@dataclass(frozen=True)
class LocalFit(Query):
    name = "local fit"

    def releases(self) -> tuple[Release, ...]:
        return (Release("local estimate"),)

    def sensitivity(self, n: Array, clipping: Clipping) -> Array:
        return np.full((1, len(n)), np.inf)

    def answer(self, data: SiteData, sites: Index, ask: Ask, mus: Array, noise: Noise) -> Array:
        if np.isfinite(mus).any():
            raise ValueError("a local fit has no finite sensitivity and cannot be released under a budget")
        model, rows = data.model, data.rows
        assert isinstance(model, GLM)  # networks are refused by the method
        if ask.theta.size > LARGEST_DENSE:
            fits = (minimum(model, rows.of_site(i), rows.targets_of_site(i), ask.theta, ask.penalty) for i in sites)
            return np.array([theta.ravel() for theta, _ in fits])
        basis = model.contrasts(rows.columns)
        thetas = np.tile(ask.theta, (len(sites), 1, 1))
        active = np.arange(len(sites))
        for _ in range(ROUNDS):
            now = np.ascontiguousarray(thetas[active])
            scores = model.mean_scores(rows, sites[active], now, ask.clipping, ask.penalty)
            curvatures = model.mean_curvatures(rows, sites[active], now, ask.clipping, ask.penalty)
            lengths = np.empty(len(active))
            for i, place in enumerate(active):
                step = newton_direction(scores[i].ravel(), curvatures[i], 1e-6, basis)
                lengths[i] = float(np.linalg.norm(step))
                step *= min(1.0, LARGEST_STEP / max(lengths[i], 1e-300))
                thetas[place] -= step.reshape(ask.theta.shape)
            active = active[lengths > 1e-10]
            if len(active) == 0:
                break
        return thetas.reshape(len(sites), -1)


@dataclass(frozen=True)
class PooledFit(LocalFit):
    """The estimate of all rows together, as every site would reply if it held them all."""

    name = "pooled fit"

    def answer(self, data: SiteData, sites: Index, ask: Ask, mus: Array, noise: Noise) -> Array:
        if np.isfinite(mus).any():
            raise ValueError("a pooled fit has no finite sensitivity and cannot be released under a budget")
        assert isinstance(data.model, GLM)
        theta, converged = minimum(data.model, data.rows.matrix(), data.rows.y, ask.theta, ask.penalty)
        if not converged:
            raise InputError(NOT_CONVERGED)
        return np.broadcast_to(theta.ravel(), (len(sites), theta.size))


def minimum(model: GLM, X: Array, y: Array, theta: Array, penalty: Array) -> tuple[Array, bool]:
    """The minimum of the mean loss and penalty, and whether it was reached, by Newton's method.

    Each step is computed by conjugate gradients and halved until it goes down. Steps grow more accurate as the minimum
    comes near (Eisenstat and Walker), so that early ones are cheap.
    """
    n = max(len(X), 1)

    def loss(at: Array) -> float:
        return 0.5 * float(np.vdot(penalty * at, at)) - model.log_likelihood(X @ at.T, y) / n

    value, first = loss(theta), 0.0
    for _ in range(ROUNDS):
        residual = theta @ X.T
        model.residual(residual, y, np.full(len(y), np.inf), False)
        gradient = residual @ X / n + penalty * theta
        length = float(np.linalg.norm(gradient))
        first = first or length
        if length <= ACCURACY * first:
            return theta, True
        step = conjugate_gradients(Curvature(model, X, y, theta, penalty), gradient, min(0.1, length / first))
        scale = 1.0
        while (after := loss(theta - scale * step)) > value and scale > 1e-6:
            scale /= 2
        theta, value = theta - scale * step, after
    return theta, False
