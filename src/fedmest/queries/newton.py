"""Newton steps: the certified one with noise on its parts, and the paper's with noise on the quotient."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from fedmest.core.typing import FloatArray, IntArray
from fedmest.models import GLM, Clipping
from fedmest.privacy.noise import Noise
from fedmest.queries.base import Query, QueryInputs, Release, Role, SiteData, half_size
from fedmest.queries.linalg import (
    Curvature,
    conjugate_gradients,
    from_triangle,
    newton_direction,
    spectral_noise,
    to_triangle,
    triangle_size,
)

MAX_HESSIAN = 2000  # parameters; beyond, conjugate gradients are faster than forming the matrix, and smaller


@dataclass(frozen=True)
class NewtonParts(Query):
    """Mean clipped gradient and mean clipped curvature, each with its own noise.

    Parameters
    ----------
    split : bool, default False
        The curvature reads the first half of the rows, the gradient the second, so that no row pays for both.

    Notes
    -----
    A row's curvature is positive semidefinite with Frobenius norm at most B_H. Replacing A by A' moves the mean by
    |A - A'|_F / n, and |A - A'|_F^2 = |A|^2 + |A'|^2 - 2 <A, A'> <= 2 B_H^2, as the inner product of positive
    semidefinite matrices is not negative: D = sqrt(2) B_H / n. Noise is drawn in the Frobenius isometry, where a
    symmetric matrix is its diagonal and sqrt(2) times its upper triangle.

    The reply is (gradient, curvature triangle).
    """

    split: bool = False
    name = "newton parts"
    roles = (Role.GRADIENT, Role.CURVATURE)
    additive_noise = True

    @property
    def parts(self) -> tuple[str, str]:
        """Rows that gradient and curvature read."""
        return ("second", "first") if self.split else ("all", "all")

    def releases(self) -> tuple[Release, ...]:
        return Release("mean gradient", self.parts[0]), Release("mean curvature", self.parts[1])

    def sensitivity(self, n: FloatArray, clipping: Clipping) -> FloatArray:
        gradient = 2.0 * clipping.bound / half_size(n, self.parts[0])
        curvature = math.sqrt(2.0) * clipping.curvature / half_size(n, self.parts[1])
        return np.stack([gradient, curvature])

    def part_sizes(self, size: int, columns: int) -> tuple[int, ...]:
        return size, triangle_size(size)

    def answer(self, data: SiteData, sites: IntArray, inputs: QueryInputs, mus: FloatArray, noise: Noise) -> FloatArray:
        gradient_rows, curvature_rows = data.part(self.parts[0]), data.part(self.parts[1])
        scores = data.model.mean_scores(gradient_rows, sites, inputs.params, inputs.clipping, inputs.penalty)
        curvatures = data.model.mean_curvatures(curvature_rows, sites, inputs.params, inputs.clipping, inputs.penalty)
        gradient = scores.reshape(len(sites), -1)
        triangle = to_triangle(curvatures)
        sds = self.noise_sds(data.rows.sizes[sites].astype(float), inputs.clipping, mus)
        noise.add(gradient, np.ascontiguousarray(sds[0]), sites, 0)
        noise.add(triangle, np.ascontiguousarray(sds[1]), sites, 1)
        return np.concatenate([gradient, triangle], axis=1)


@dataclass(frozen=True)
class NewtonStep(Query):
    """Newton step theta - H^-1 g that a site computes from the noisy parts of `NewtonParts`.

    Parameters
    ----------
    split : bool, default False
        As in `NewtonParts`.
    lambda_min : float, default 1e-6
        Lower limit on the eigenvalues of the curvature.

    Notes
    -----
    d floats travel instead of d + d (d+1)/2.
    """

    split: bool = False
    lambda_min: float = 1e-6
    name = "newton step"
    roles = (Role.NEWTON_STEP,)

    def releases(self) -> tuple[Release, ...]:
        return NewtonParts(self.split).releases()

    def sensitivity(self, n: FloatArray, clipping: Clipping) -> FloatArray:
        return NewtonParts(self.split).sensitivity(n, clipping)

    def answer(self, data: SiteData, sites: IntArray, inputs: QueryInputs, mus: FloatArray, noise: Noise) -> FloatArray:
        parts = NewtonParts(self.split).answer(data, sites, inputs, mus, noise)
        sds = self.noise_sds(data.rows.sizes[sites].astype(float), inputs.clipping, mus)
        size = inputs.params.size
        basis = data.model.contrasts(data.rows.columns)
        out = np.empty((len(sites), size))
        for i, reply in enumerate(parts):
            gradient, curvature = reply[:size], from_triangle(reply[size:], size)
            floor = max(self.lambda_min, spectral_noise(float(sds[1, i]), size))
            out[i] = inputs.params.ravel() - newton_direction(gradient, curvature, floor, basis)
        return out


@dataclass(frozen=True)
class PaperNewton(Query):
    """Step of Algorithm 4: theta - H(theta; X1)^-1 g(theta; X2), with the noise that the paper claims to suffice.

    Parameters
    ----------
    tau1 : float
        Least eigenvalue of the Hessian that the paper assumes.

    Notes
    -----
    Noise 2 B_new / (mu n), B_new = 4 sqrt(2) B / tau_1. At a cost of mu / sqrt(2) that is what a sensitivity of
    8 B / (tau_1 n) asks for; the paper's claim, not ours.
    """

    tau1: float
    name = "newton step (paper)"
    roles = (Role.NEWTON_STEP,)
    unproved = (
        "FedNewton's Newton step: the noise covers a changed row of the first half only if tau_2 <= 4 tau_1, and a "
        "changed row at all only if every possible data set has a Hessian of at least tau_1; nothing enforces either.",
        "FedNewton's constants differ between the paper's Algorithm 4 and its proof; Algorithm 4 is followed.",
    )

    def releases(self) -> tuple[Release, ...]:
        return (Release("newton step"),)

    def sensitivity(self, n: FloatArray, clipping: Clipping) -> FloatArray:
        return (8.0 * clipping.bound / (self.tau1 * n))[None]

    def answer(self, data: SiteData, sites: IntArray, inputs: QueryInputs, mus: FloatArray, noise: Noise) -> FloatArray:
        scores = data.model.mean_scores(data.part("second"), sites, inputs.params, inputs.clipping, inputs.penalty)
        replies = np.array([(inputs.params - step).ravel() for step in self._steps(data, sites, inputs, scores)])
        sds = self.noise_sds(data.rows.sizes[sites].astype(float), inputs.clipping, mus)
        noise.add(replies, np.ascontiguousarray(sds[0]), sites)
        return replies

    def _steps(self, data: SiteData, sites: IntArray, inputs: QueryInputs, scores: FloatArray) -> Iterator[FloatArray]:
        """H^-1 g of each site; a Hessian too large to be formed is only multiplied with."""
        model, rows = data.model, data.part("first")
        if inputs.params.size > MAX_HESSIAN:
            assert isinstance(model, GLM)  # networks are refused by the method
            for site, score in zip(sites, scores, strict=True):
                curvature = Curvature(
                    model, rows.of_site(site), rows.targets_of_site(site), inputs.params, inputs.penalty
                )
                yield conjugate_gradients(curvature, score, 1e-6)
            return
        curvatures = model.mean_curvatures(rows, sites, inputs.params, Clipping(rule="norm"), inputs.penalty)
        basis = model.contrasts(rows.columns)
        for score, matrix in zip(scores, curvatures, strict=True):
            yield newton_direction(score.ravel(), matrix, 1e-8, basis).reshape(score.shape)
