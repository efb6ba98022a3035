"""Newton steps of networks: the parts of a certified one for the last layer, and the paper's, noise on the quotient."""

from dataclasses import dataclass, replace

import numpy as np

from fedmest.core.typing import FloatArray, IntArray
from fedmest.models import Clipping, NetworkModel
from fedmest.privacy.noise import Noise
from fedmest.queries.base import Query, QueryInputs, Release, Role, SiteData
from fedmest.queries.moments import Moments


@dataclass(frozen=True)
class LastLayerParts(Query):
    """Mean clipped gradient of the last layer, and second moments of what goes into it, z = (1, hidden units).

    Parameters
    ----------
    radius : float
        Bound on |z|.

    Notes
    -----
    A row's gradient there is (p - e_y) z', shortened to length B: D = 2 B / n. The moments, with |z| held to `radius`,
    bound the curvature: see `Moments`. Both are computed in double precision from the hidden units. Where logits
    overflow, a row has no gradient.
    """

    radius: float
    name = "head parts"
    roles = (Role.GRADIENT, Role.FEATURE_MOMENTS)
    additive_noise = True

    def releases(self) -> tuple[Release, ...]:
        return Release("mean gradient of the last layer"), *Moments("features").releases()

    def sensitivity(self, n: FloatArray, clipping: Clipping) -> FloatArray:
        moments = Moments("features").sensitivity(n, replace(clipping, bound=self.radius))
        return np.concatenate([(2.0 * clipping.bound / n)[None], moments])

    def answer(self, data: SiteData, sites: IntArray, inputs: QueryInputs, mus: FloatArray, noise: Noise) -> FloatArray:
        radius = np.inf if np.isinf(mus).all() else self.radius
        gradients = np.stack([_mean_clipped(data, site, inputs).ravel() for site in sites])
        sds = self.noise_sds(data.rows.sizes[sites].astype(float), inputs.clipping, mus)
        noise.add(gradients, np.ascontiguousarray(sds[0]), sites, 0)
        inputs = replace(inputs, clipping=replace(inputs.clipping, bound=radius))
        moments = Moments("features").answer(data, sites, inputs, mus[1:], _Later(noise, 1))
        return np.concatenate([gradients, moments], axis=1)


@dataclass(frozen=True)
class _Later:
    """Noise for a query whose first release is number `first` of the whole reply: each has an index of its own."""

    noise: Noise
    first: int

    def add(self, values: FloatArray, sds: FloatArray, sites: IntArray, release: int = 0) -> None:
        self.noise.add(values, sds, sites, self.first + release)

    def add_step(self, values: FloatArray, sd: float, site: int, step: int) -> None:
        self.noise.add_step(values, sd, site, self.first + step)


@dataclass(frozen=True)
class PaperFisherStep(Query):
    """Step of Algorithm 5: theta - alpha (h + lambda)^-1 g, with the noise that the paper claims to suffice.

    Parameters
    ----------
    head : bool
        The last layer alone; its coefficients are all that is sent.
    alpha : float
        Share of the step that is taken.
    ridge : float
        lambda.
    tau1 : float
        Least eigenvalue of h + lambda that the paper assumes.

    Notes
    -----
    g is the mean gradient, clipped at B; h the second moments of the row gradients. Noise 2 B_new / (mu n),
    B_new = 2 sqrt(2) B / tau_1: at a cost of mu / sqrt(2) that is what a sensitivity of 4 B / (tau_1 n) asks for; the
    paper's claim, not ours. With G the row gradients (n, d), h = G'G/n, so the step is G' (GG'/n + lambda)^-1 1/n: a
    system of n equations. All of theta (`head=False`) takes n d floats for G.
    """

    head: bool
    alpha: float
    ridge: float
    tau1: float
    name = "fisher step (paper)"
    roles = (Role.NEWTON_STEP,)
    unproved = (
        "FedNewton-NN's Newton step: the mean gradient is clipped, not each row's. One row can turn the mean gradient "
        "around, which moves the step by up to 2 B alpha / lambda, not by a multiple of 1/n; and it changes h as well.",
    )

    def releases(self) -> tuple[Release, ...]:
        return (Release("newton step"),)

    def sensitivity(self, n: FloatArray, clipping: Clipping) -> FloatArray:
        return (4.0 * clipping.bound / (self.tau1 * n))[None]

    def answer(self, data: SiteData, sites: IntArray, inputs: QueryInputs, mus: FloatArray, noise: Noise) -> FloatArray:
        model = data.model
        assert isinstance(model, NetworkModel)
        start = model.head_of(inputs.params).ravel() if self.head else inputs.params[0]
        replies = np.tile(start, (len(sites), 1))
        for i, site in enumerate(sites):
            rows = _row_gradients(data, site, inputs) if self.head else model.row_scores(data.rows, site, inputs.params)
            n = len(rows)
            length = float(np.linalg.norm(rows.mean(axis=0)))
            solved = np.linalg.solve(rows @ rows.T / n + self.ridge * np.eye(n), np.full(n, 1.0 / n))
            step = solved.astype(rows.dtype) @ rows  # in the precision of the rows, which may fill the memory
            replies[i] -= self.alpha * min(1.0, inputs.clipping.bound / max(length, 1e-300)) * step
        sds = self.noise_sds(data.rows.sizes[sites].astype(float), inputs.clipping, mus)
        noise.add(replies, np.ascontiguousarray(sds[0]), sites)
        return replies


def _residuals(data: SiteData, site: int, inputs: QueryInputs) -> tuple[FloatArray, FloatArray]:
    """Of a site's rows: p - e_y, and what goes into the last layer."""
    model, rows = data.model, data.rows
    assert isinstance(model, NetworkModel)
    z = model.features(rows, site, inputs.params)
    with np.errstate(over="ignore", invalid="ignore"):
        residuals = model.mean(z @ model.head_of(inputs.params).T)
    labels = rows.targets_of_site(site).astype(np.int64)
    residuals[np.arange(len(z)), labels] -= 1.0
    return residuals, z


def _mean_clipped(data: SiteData, site: int, inputs: QueryInputs) -> FloatArray:
    residuals, z = _residuals(data, site, inputs)
    lengths = np.linalg.norm(residuals, axis=1) * np.linalg.norm(z, axis=1) * (1 + 1e-12)
    overflowed = ~np.isfinite(lengths)
    residuals[overflowed], lengths[overflowed] = 0.0, 0.0
    residuals *= np.minimum(1.0, inputs.clipping.bound / np.maximum(lengths, 1e-300))[:, None]
    return np.asarray(residuals.T @ z / len(z))


def _row_gradients(data: SiteData, site: int, inputs: QueryInputs) -> FloatArray:
    residuals, z = _residuals(data, site, inputs)
    return np.asarray((residuals[:, :, None] * z[:, None, :]).reshape(len(z), -1))
