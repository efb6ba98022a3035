"""What standard errors are made of: the mean curvature at the estimate, and the second moments of the scores there."""

import math
from dataclasses import dataclass

import numpy as np

from fedmest.core.typing import FloatArray, IntArray
from fedmest.models import GLM, Clipping
from fedmest.privacy.noise import Noise
from fedmest.queries.base import Query, QueryInputs, Release, Role, SiteData
from fedmest.queries.linalg import to_triangle, triangle_size


@dataclass(frozen=True)
class ScoreMoments(Query):
    """Mean clipped curvature and mean of s s', s a row's clipped score: what standard errors need.

    Notes
    -----
    A row's curvature is positive semidefinite with Frobenius norm at most B_H, and so is s s' with |s|^2 <= B^2:
    replacing a row moves their means by sqrt(2) B_H / n and sqrt(2) B^2 / n (see `NewtonParts`). The reply is the two
    triangles.
    """

    name = "spread"
    roles = (Role.CURVATURE, Role.SCORE_MOMENTS)
    additive_noise = True

    def releases(self) -> tuple[Release, ...]:
        return Release("mean curvature at the estimate"), Release("second moments of scores")

    def sensitivity(self, n: FloatArray, clipping: Clipping) -> FloatArray:
        return math.sqrt(2.0) * np.stack([clipping.curvature / n, clipping.bound**2 / n])

    def part_sizes(self, size: int, columns: int) -> tuple[int, ...]:
        return triangle_size(size), triangle_size(size)

    def answer(self, data: SiteData, sites: IntArray, inputs: QueryInputs, mus: FloatArray, noise: Noise) -> FloatArray:
        assert isinstance(data.model, GLM)  # networks have no standard errors
        curvatures = data.model.mean_curvatures(data.rows, sites, inputs.params, inputs.clipping, inputs.penalty)
        squares = data.model.mean_score_squares(data.rows, sites, inputs.params, inputs.clipping)
        sds = self.noise_sds(data.rows.sizes[sites].astype(float), inputs.clipping, mus)
        parts = [to_triangle(curvatures), to_triangle(squares)]
        for release, part in enumerate(parts):
            noise.add(part, np.ascontiguousarray(sds[release]), sites, release)
        return np.concatenate(parts, axis=1)
