"""What standard errors are made of: the mean curvature at the estimate, and the second moments of the scores there."""

import math
from dataclasses import dataclass

import numpy as np

from fedmest.federation import Index
from fedmest.models import GLM, Clipping
from fedmest.privacy.gdp import Array
from fedmest.privacy.noise import Noise
from fedmest.queries.base import Ask, Query, Release, SiteData
from fedmest.queries.newton import to_triangle


@dataclass(frozen=True)
class Spread(Query):
    """A row's curvature is positive semidefinite with Frobenius norm at most B_H, and so is s s' of its clipped score s
    with |s|^2 <= B^2: replacing a row moves their means by sqrt(2) B_H / n and sqrt(2) B^2 / n (see `NewtonParts`).

    The reply is the two triangles.
    """

    name = "spread"
    linear = True

    def releases(self) -> tuple[Release, ...]:
        return Release("mean curvature at the estimate"), Release("second moments of scores")

    def sensitivity(self, n: Array, clipping: Clipping) -> Array:
        return math.sqrt(2.0) * np.stack([clipping.curvature / n, clipping.bound**2 / n])

    def reply_size(self, ask: Ask, columns: int) -> int:
        return ask.theta.size * (ask.theta.size + 1)

    def answer(self, data: SiteData, sites: Index, ask: Ask, mus: Array, noise: Noise) -> Array:
        assert isinstance(data.model, GLM)  # networks have no standard errors
        curvatures = data.model.mean_curvatures(data.rows, sites, ask.theta, ask.clipping, ask.penalty)
        squares = data.model.mean_score_squares(data.rows, sites, ask.theta, ask.clipping)
        sds = self.noise_sds(data.rows.sizes[sites].astype(float), ask.clipping, mus)
        parts = [to_triangle(curvatures), to_triangle(squares)]
        for release, part in enumerate(parts):
            noise.add(part, np.ascontiguousarray(sds[release]), sites, release)
        return np.concatenate(parts, axis=1)
