"""Sufficient statistics of linear regression: the mean of z z' for z = (x, y), each row held to |z| <= R."""

import math
from dataclasses import dataclass

import numpy as np

from fedmest.federation import Index
from fedmest.models import Clipping
from fedmest.privacy.gdp import Array
from fedmest.privacy.noise import Noise
from fedmest.queries.base import Ask, Query, Release, SiteData
from fedmest.queries.newton import to_triangle

LARGEST = 1e150


@dataclass(frozen=True)
class Moments(Query):
    """z z' is positive semidefinite with Frobenius norm |z|^2 <= R^2, so D = sqrt(2) R^2 / n (see `NewtonParts`).

    R is the bound of the clipping; longer rows are shrunk to length R.
    """

    name = "moments"
    linear = True

    def releases(self) -> tuple[Release, ...]:
        return (Release("second moments of features and target"),)

    def sensitivity(self, n: Array, clipping: Clipping) -> Array:
        return (math.sqrt(2.0) * clipping.bound**2 / n)[None]

    def answer(self, data: SiteData, sites: Index, ask: Ask, mus: Array, noise: Noise) -> Array:
        rows = data.rows
        z = np.column_stack([rows.matrix(), rows.y])
        np.clip(z, -LARGEST, LARGEST, out=z)  # so that no length overflows
        length = np.maximum(np.linalg.norm(z, axis=1) * (1 + 1e-14), 1 / LARGEST)
        z *= np.minimum(1.0, ask.clipping.bound / length)[:, None]
        moments = np.empty((len(sites), z.shape[1], z.shape[1]))
        for i, site in enumerate(sites):
            part = z[rows.offsets[site] : rows.offsets[site + 1]]
            moments[i] = part.T @ part / max(len(part), 1)
        replies = to_triangle(moments)
        sds = self.noise_sds(rows.sizes[sites].astype(float), ask.clipping, mus)
        noise.add(replies, np.ascontiguousarray(sds[0]), sites)
        return replies
