"""Newton steps of networks: the parts of a certified one for the last layer, and the paper's, noise on the quotient."""

from dataclasses import dataclass, replace

import numpy as np

from fedmest.federation import Index
from fedmest.models import Clipping, NetworkModel
from fedmest.privacy.gdp import Array
from fedmest.privacy.noise import Noise
from fedmest.queries.base import Ask, Query, Release, SiteData
from fedmest.queries.moments import Moments


@dataclass(frozen=True)
class HeadParts(Query):
    """The last layer's mean clipped gradient, and the second moments of what goes into it, z = (1, hidden units).

    A row's gradient there is (p - e_y) z', shortened to length B: D = 2 B / n. The moments, with |z| held to `radius`,
    bound the curvature: see `Moments`. Both are computed in double precision from the hidden units.
    """

    radius: float
    name = "head parts"
    linear = True

    def releases(self) -> tuple[Release, ...]:
        return Release("mean gradient of the last layer"), *Moments("features").releases()

    def sensitivity(self, n: Array, clipping: Clipping) -> Array:
        moments = Moments("features").sensitivity(n, replace(clipping, bound=self.radius))
        return np.concatenate([(2.0 * clipping.bound / n)[None], moments])

    def answer(self, data: SiteData, sites: Index, ask: Ask, mus: Array, noise: Noise) -> Array:
        radius = np.inf if np.isinf(mus).all() else self.radius
        gradients = np.stack([_mean_clipped(data, site, ask).ravel() for site in sites])
        sds = self.noise_sds(data.rows.sizes[sites].astype(float), ask.clipping, mus)
        noise.add(gradients, np.ascontiguousarray(sds[0]), sites, 1)  # the moments draw from stream 0
        ask = replace(ask, clipping=replace(ask.clipping, bound=radius))
        moments = Moments("features").answer(data, sites, ask, mus[1:], noise)
        return np.concatenate([gradients, moments], axis=1)


@dataclass(frozen=True)
class PaperFisherStep(Query):
    """Algorithm 5's theta - alpha (h + lambda)^-1 g; g: mean gradient, clipped at B; h: row gradients' second moments.

    Noise 2 B_new / (mu n), B_new = 2 sqrt(2) B / tau_1: priced at mu / sqrt(2) that is what a sensitivity of
    4 B / (tau_1 n) asks for; the paper's claim, not ours. With G the row gradients (n, d), h = G'G/n, so the step is
    G' (GG'/n + lambda)^-1 1/n: a system of n equations. All of theta (`head=False`) takes n d floats for G.
    """

    head: bool  # the last layer alone; its coefficients are all that is sent
    alpha: float
    ridge: float
    tau1: float
    name = "fisher step (paper)"
    gaps = (
        "FedNewton-NN's Newton step: the mean gradient is clipped, not each row's. One row can turn the mean gradient "
        "around, which moves the step by up to 2 B alpha / lambda, not by a multiple of 1/n; and it changes h as well.",
    )

    def releases(self) -> tuple[Release, ...]:
        return (Release("newton step"),)

    def sensitivity(self, n: Array, clipping: Clipping) -> Array:
        return (4.0 * clipping.bound / (self.tau1 * n))[None]

    def answer(self, data: SiteData, sites: Index, ask: Ask, mus: Array, noise: Noise) -> Array:
        model = data.model
        assert isinstance(model, NetworkModel)
        start = model.head_of(ask.theta).ravel() if self.head else ask.theta[0]
        replies = np.tile(start, (len(sites), 1))
        for i, site in enumerate(sites):
            rows = _row_gradients(data, site, ask) if self.head else model.row_scores(data.rows, site, ask.theta)
            n = len(rows)
            length = float(np.linalg.norm(rows.mean(axis=0)))
            solved = np.linalg.solve(rows @ rows.T / n + self.ridge * np.eye(n), np.full(n, 1.0 / n))
            step = solved.astype(rows.dtype) @ rows  # in the precision of the rows, which may fill the memory
            replies[i] -= self.alpha * min(1.0, ask.clipping.bound / max(length, 1e-300)) * step
        sds = self.noise_sds(data.rows.sizes[sites].astype(float), ask.clipping, mus)
        noise.add(replies, np.ascontiguousarray(sds[0]), sites)
        return replies


def _residuals(data: SiteData, site: int, ask: Ask) -> tuple[Array, Array]:
    """Of a site's rows: p - e_y, and what goes into the last layer."""
    model, rows = data.model, data.rows
    assert isinstance(model, NetworkModel)
    z = model.features(rows, site, ask.theta)
    residuals = model.mean(z @ model.head_of(ask.theta).T)
    labels = rows.targets_of_site(site).astype(np.int64)
    residuals[np.arange(len(z)), labels] -= 1.0
    return residuals, z


def _mean_clipped(data: SiteData, site: int, ask: Ask) -> Array:
    residuals, z = _residuals(data, site, ask)
    lengths = np.linalg.norm(residuals, axis=1) * np.linalg.norm(z, axis=1) * (1 + 1e-12)
    residuals *= np.minimum(1.0, ask.clipping.bound / np.maximum(lengths, 1e-300))[:, None]
    return np.asarray(residuals.T @ z / len(z))


def _row_gradients(data: SiteData, site: int, ask: Ask) -> Array:
    residuals, z = _residuals(data, site, ask)
    return np.asarray((residuals[:, :, None] * z[:, None, :]).reshape(len(z), -1))
