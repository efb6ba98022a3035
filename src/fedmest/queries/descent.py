"""Theta after K local gradient steps. Each hands a noisy gradient to the next: D = 2 B eta / n a step."""

from dataclasses import dataclass

import numpy as np

from fedmest.core.typing import FloatArray, IntArray
from fedmest.models import Clipping
from fedmest.privacy.noise import Noise
from fedmest.queries.base import Query, QueryInputs, Release, Role, SiteData, half_size


@dataclass(frozen=True)
class Descent(Query):
    """Local descent: noisy gradient steps on all rows or on one half of them.

    Parameters
    ----------
    steps : int
        Number of steps, each a release.
    eta : float
        Step size.
    part : {"all", "first", "second"}
        Rows that the steps read.
    """

    steps: int
    eta: float
    part: str = "all"
    name = "descent"
    roles = (Role.ESTIMATE,)

    def releases(self) -> tuple[Release, ...]:
        return tuple(Release(f"local step {k + 1}", self.part) for k in range(self.steps))

    def sensitivity(self, n: FloatArray, clipping: Clipping) -> FloatArray:
        return np.tile(self._step_sensitivity(n, clipping), (self.steps, 1))

    def answer(self, data: SiteData, sites: IntArray, inputs: QueryInputs, mus: FloatArray, noise: Noise) -> FloatArray:
        rows = data.part(self.part)
        # every step has the same sensitivity, so the noise of step k at site i is unit[i] * factors[k, i]
        unit = np.zeros(len(sites))
        factors = np.zeros((self.steps, 1))
        if not np.isinf(mus).all():
            unit = self._step_sensitivity(data.rows.sizes[sites].astype(float), inputs.clipping)
            if not ((mus > 0).all() and np.isfinite(unit).all()):
                raise ValueError("descent: no finite noise for this clip norm and cost; nothing is released")
            factors = np.ascontiguousarray(1.0 / mus)
        drifts = inputs.drifts if inputs.drifts is not None else np.zeros_like(inputs.params)
        thetas = data.model.local_descents(
            rows, sites, inputs.params, self.steps, inputs.clipping.step(self.eta), inputs.clipping, inputs.penalty,
            drifts, unit, factors, noise,
        )  # fmt: skip
        return thetas.reshape(len(sites), -1)

    def _step_sensitivity(self, n: FloatArray, clipping: Clipping) -> FloatArray:
        return np.asarray(2.0 * clipping.bound * clipping.step(self.eta) / half_size(n, self.part))
