"""What a site can be asked. A query computes on rows, states its own sensitivity, and alone adds noise to data."""

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from fedmest.federation import Index, Rows
from fedmest.models import Clipping, Model
from fedmest.privacy.gdp import Array
from fedmest.privacy.noise import Keys, Noise

LARGEST_THETA = 1e6  # beyond, rounding would swallow the noise: no site answers there


@dataclass(frozen=True)
class Release:
    """One noisy value that leaves a site: what it is, and which part of the site's rows it reads."""

    what: str
    part: str = "all"


@dataclass(frozen=True)
class Ask:
    """What the server sends along with a query. All of it is public; none of it can lower the noise."""

    theta: Array
    clipping: Clipping
    penalty: Array
    drifts: Array | None = None
    edges: Array | None = None
    bound: float = np.inf  # of the run; the clipping is what the query makes of it

    @property
    def floats_down(self) -> int:
        """Numbers sent to each site: theta, a drift of its own where there is one, bin edges, the bound."""
        extra = 0 if self.drifts is None else self.theta.size
        return self.theta.size + extra + (0 if self.edges is None else self.edges.size) + 1


@dataclass(frozen=True)
class SiteData:
    """All that code on the sites' side of the line can see: rows (and their random halves), and the model."""

    model: Model
    rows: Rows
    split_seed: int = 0
    keys: Keys | None = None  # of the sites, for the split; without them sites go by their number
    _halves: dict[str, Rows] = field(default_factory=dict, repr=False)

    def part(self, name: str) -> Rows:
        if name == "all":
            return self.rows
        if not self._halves:
            keys = self.keys if self.keys is not None else np.arange(len(self.rows.sizes), dtype=np.uint64)
            self._halves["first"], self._halves["second"] = self.rows.halves(self.split_seed, keys)
        return self._halves[name]


class Query:
    """One thing a site can be asked.

    `releases` lists what leaves the site; the schedule prices each with its own mu. `sensitivity` gives, for each
    release and each site, the L2 distance that replacing one row can move it; noise follows from that and the price
    alone. `linear` says that the reply is the noisy mean itself (nothing is computed from it at the site), so that
    weighted sums of replies carry Gaussian noise of known size. `gaps` says in plain words what is not proved.
    """

    name: ClassVar[str]
    linear: ClassVar[bool] = False
    gaps: ClassVar[tuple[str, ...]] = ()

    def releases(self) -> tuple[Release, ...]:
        raise NotImplementedError

    def sensitivity(self, n: Array, clipping: Clipping) -> Array:
        """(releases, sites) for sites with n rows each; for releases on half the rows n is still the site's all."""
        raise NotImplementedError

    def clipping(self, clipping: Clipping, model: Model) -> Clipping:
        """The clipping that this query works with, in a run with that one."""
        return clipping

    def reply_size(self, ask: Ask, columns: int) -> int:
        """Floats in one site's reply."""
        return ask.theta.size

    def noise_sds(self, n: Array, clipping: Clipping, mus: Array) -> Array:
        """Standard deviations (releases, sites) at prices `mus` (releases, sites or 1)."""
        if not (mus > 0).all():  # NaN must not pass for "no noise"
            raise ValueError(f"{self.name}: the price of a release must be a positive number")
        if np.isinf(mus).all():
            return np.zeros((len(self.releases()), len(n)))
        sds = self.sensitivity(n, clipping) / mus
        if not np.isfinite(sds).all():
            raise ValueError(f"{self.name}: no finite noise for a bound of {clipping.bound}; nothing may be released")
        return sds

    def answer(self, data: SiteData, sites: Index, ask: Ask, mus: Array, noise: Noise) -> Array:
        """The replies (sites, floats) of `sites`. The only function of a query that sees rows."""
        raise NotImplementedError


def half_size(n: Array, part: str) -> Array:
    """Rows of a site of n in a part (the first half takes the odd row), at least one."""
    sizes = {"all": n, "first": np.ceil(n / 2), "second": np.floor(n / 2)}[part]
    return np.asarray(np.maximum(sizes, 1.0))
