"""Second moments: the mean of z z', each row's z held to |z| <= R."""

import math
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from fedmest.core.typing import FloatArray, IntArray
from fedmest.models import Clipping, Model
from fedmest.privacy.noise import Noise
from fedmest.queries.base import Query, QueryInputs, Release, Role, SiteData
from fedmest.queries.linalg import to_triangle, triangle_size

LARGEST = 1e150


@dataclass(frozen=True)
class Moments(Query):
    """Mean of z z', second moments of records or of features.

    Parameters
    ----------
    of : {"records", "features"}
        "records": z = (x, y), the sufficient statistics of linear regression. "features": z is what the model's linear
        predictor is linear in, x itself or the last hidden layer of a network; times `Model.curvature_upper_bound` it
        bounds the curvature at every theta.

    Notes
    -----
    z z' is positive semidefinite with Frobenius norm |z|^2 <= R^2, so D = sqrt(2) R^2 / n (see `NewtonParts`). R is the
    bound of the clipping; longer rows are shrunk to length R. For features it is the length at which the score at
    theta = 0 meets the run's bound.
    """

    of: Literal["records", "features"] = "records"
    name = "moments"
    additive_noise = True

    @property
    def roles(self) -> tuple[Role, ...]:
        return (Role.RECORD_MOMENTS if self.of == "records" else Role.FEATURE_MOMENTS,)

    def releases(self) -> tuple[Release, ...]:
        return (Release("second moments of features" + (" and target" if self.of == "records" else "")),)

    def clipping(self, clipping: Clipping, model: Model) -> Clipping:
        return clipping if self.of == "records" else replace(clipping, bound=clipping.bound / model.first_residual())

    def sensitivity(self, n: FloatArray, clipping: Clipping) -> FloatArray:
        return (math.sqrt(2.0) * clipping.bound**2 / n)[None]

    def part_sizes(self, size: int, columns: int) -> tuple[int, ...]:
        size = columns + (self.of == "records")
        return (triangle_size(size),)

    def answer(self, data: SiteData, sites: IntArray, inputs: QueryInputs, mus: FloatArray, noise: Noise) -> FloatArray:
        moments = np.stack(
            [_mean_square(self._rows(data, site, inputs.params), inputs.clipping.bound) for site in sites]
        )
        replies = to_triangle(moments)
        sds = self.noise_sds(data.rows.sizes[sites].astype(float), inputs.clipping, mus)
        noise.add(replies, np.ascontiguousarray(sds[0]), sites)
        return replies

    def _rows(self, data: SiteData, site: int, theta: FloatArray) -> FloatArray:
        if self.of == "features":
            return data.model.features(data.rows, site, theta)
        return np.column_stack([data.rows.of_site(site), data.rows.targets_of_site(site)])


def _mean_square(z: FloatArray, bound: float) -> FloatArray:
    np.clip(z, -LARGEST, LARGEST, out=z)  # so that no length overflows
    length = np.maximum(np.linalg.norm(z, axis=1) * (1 + 1e-14), 1 / LARGEST)
    z *= np.minimum(1.0, bound / length)[:, None]
    return np.asarray(z.T @ z / max(len(z), 1))
