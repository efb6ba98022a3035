"""The mean clipped score at theta. Every row contributes a vector of norm at most B, so D = 2B/n."""

from dataclasses import dataclass

import numpy as np

from fedmest.core.typing import FloatArray, IntArray
from fedmest.models import Clipping
from fedmest.privacy.noise import Noise
from fedmest.queries.base import Query, QueryInputs, Release, Role, SiteData


@dataclass(frozen=True)
class Gradient(Query):
    """Mean clipped gradient."""

    name = "gradient"
    roles = (Role.GRADIENT,)
    additive_noise = True

    def releases(self) -> tuple[Release, ...]:
        return (Release("mean gradient"),)

    def sensitivity(self, n: FloatArray, clipping: Clipping) -> FloatArray:
        return (2.0 * clipping.bound / n)[None]

    def answer(self, data: SiteData, sites: IntArray, inputs: QueryInputs, mus: FloatArray, noise: Noise) -> FloatArray:
        scores = data.model.mean_scores(data.rows, sites, inputs.params, inputs.clipping, inputs.penalty)
        replies = scores.reshape(len(sites), -1)
        sds = self.noise_sds(data.rows.sizes[sites].astype(float), inputs.clipping, mus)
        noise.add(replies, np.ascontiguousarray(sds[0]), sites)
        return replies
