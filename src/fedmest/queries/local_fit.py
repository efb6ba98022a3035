"""Each site's own maximum-likelihood estimate. It has no finite sensitivity: only for non-private baselines."""

from dataclasses import dataclass

import numpy as np

from fedmest.federation import Index
from fedmest.models import Clipping
from fedmest.privacy.gdp import Array
from fedmest.privacy.noise import Noise
from fedmest.queries.base import Ask, Query, Release, SiteData
from fedmest.queries.newton import newton_direction

LARGEST_STEP = 5.0  # a separable site has no finite estimate; steps are held to this length
ROUNDS = 30


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
