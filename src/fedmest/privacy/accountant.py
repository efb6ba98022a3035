"""What the releases of a run cost: one accountant for schedules that are planned and for runs that took place.

Releases on the same rows compose: mu^2 adds up. A row is in the first or in the second half of its site, never in both,
so the half that spent more counts.
"""

import math
from collections.abc import Iterable, Sequence

import numpy as np

from fedmest.core.typing import FloatArray, IntArray
from fedmest.privacy.report import ReleaseRecord


def account(releases: Sequence[ReleaseRecord], n_sites: int) -> tuple[float, dict[str, float]]:
    """Total privacy loss of the site that spent most.

    Parameters
    ----------
    releases : sequence of ReleaseRecord
        All releases of the run.
    n_sites : int
        Sites of the run.

    Returns
    -------
    mu : float
        Total mu of that site; infinite where a release has no noise.
    by_purpose : dict
        Share of mu^2 that each purpose has there; they sum to 1.
    """
    if any(np.isinf(r.mu).any() for r in releases):
        return math.inf, {}
    halves = spent(((r.part, r.mu, r.sites) for r in releases), n_sites)
    _, site = np.unravel_index(int(halves.argmax()), halves.shape)
    total = float(halves.max())
    purposes: dict[str, float] = {}
    for r in releases:
        where = np.flatnonzero(r.sites == site)
        if len(where):
            cost = float(r.mu[where[0] if len(r.mu) > 1 else 0]) ** 2
            purpose = "local steps" if r.what.startswith("local step") else r.what
            if r.part != "all":
                purpose += f" ({r.part} half of the rows)"
            purposes[purpose] = purposes.get(purpose, 0.0) + cost / total
    return math.sqrt(total), purposes


def spent(releases: Iterable[tuple[str, FloatArray, IntArray]], n_sites: int) -> FloatArray:
    """mu^2 that the rows of each site's two halves have spent, shape (2, n_sites).

    Parameters
    ----------
    releases : iterable of (part, mu, sites)
        Which part of the rows a release reads ("all", "first", "second"), its mu (one, or one per site) and the sites
        that took part.
    n_sites : int
        Sites of the run.
    """
    halves = np.zeros((2, n_sites))
    for part, mu, sites in releases:
        for k, name in enumerate(("first", "second")):
            if part in ("all", name):
                halves[k, slice(None) if len(sites) == n_sites else sites] += mu**2
    return halves
