"""The mean clipped score at theta. Every row contributes a vector of norm at most B, so D = 2B/n."""

from dataclasses import dataclass

import numpy as np

from fedmest.federation import Index
from fedmest.models import Clipping
from fedmest.privacy.gdp import Array
from fedmest.privacy.noise import Noise
from fedmest.queries.base import Ask, Query, Release, SiteData


@dataclass(frozen=True)
class Gradient(Query):
    name = "gradient"
    linear = True

    def releases(self) -> tuple[Release, ...]:
        return (Release("mean gradient"),)

    def sensitivity(self, n: Array, clipping: Clipping) -> Array:
        return (2.0 * clipping.bound / n)[None]

    def answer(self, data: SiteData, sites: Index, ask: Ask, mus: Array, noise: Noise) -> Array:
        scores = data.model.mean_scores(data.rows, sites, ask.theta, ask.clipping, ask.penalty)
        replies = scores.reshape(len(sites), -1)
        sds = self.noise_sds(data.rows.sizes[sites].astype(float), ask.clipping, mus)
        noise.add(replies, np.ascontiguousarray(sds[0]), sites)
        return replies
