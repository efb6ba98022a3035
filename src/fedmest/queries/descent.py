"""Theta after K local gradient steps. Each hands a noisy gradient to the next: D = 2 B eta / n a step."""

from dataclasses import dataclass

import numpy as np

from fedmest.federation import Index
from fedmest.models import Clipping
from fedmest.privacy.gdp import Array
from fedmest.privacy.noise import Noise
from fedmest.queries.base import Ask, Query, Release, SiteData, half_size


@dataclass(frozen=True)
class Descent(Query):
    """K steps of size eta on all rows or on one half of them."""

    steps: int
    eta: float
    part: str = "all"
    name = "descent"

    def releases(self) -> tuple[Release, ...]:
        return tuple(Release(f"local step {k + 1}", self.part) for k in range(self.steps))

    def sensitivity(self, n: Array, clipping: Clipping) -> Array:
        return np.tile(self._step_sensitivity(n, clipping), (self.steps, 1))

    def answer(self, data: SiteData, sites: Index, ask: Ask, mus: Array, noise: Noise) -> Array:
        rows = data.part(self.part)
        # every step has the same sensitivity, so the noise of step k at site i is unit[i] * factors[k, i]
        unit = np.zeros(len(sites))
        factors = np.zeros((self.steps, 1))
        if not np.isinf(mus).all():
            unit = self._step_sensitivity(data.rows.sizes[sites].astype(float), ask.clipping)
            if not ((mus > 0).all() and np.isfinite(unit).all()):
                raise ValueError("descent: no finite noise for this bound and price; nothing may be released")
            factors = np.ascontiguousarray(1.0 / mus)
        drifts = ask.drifts if ask.drifts is not None else np.zeros_like(ask.theta)
        thetas = data.model.local_descents(
            rows, sites, ask.theta, self.steps, ask.clipping.step(self.eta), ask.clipping, ask.penalty, drifts, unit,
            factors, noise,
        )  # fmt: skip
        return thetas.reshape(len(sites), -1)

    def _step_sensitivity(self, n: Array, clipping: Clipping) -> Array:
        return np.asarray(2.0 * clipping.bound * clipping.step(self.eta) / half_size(n, self.part))
