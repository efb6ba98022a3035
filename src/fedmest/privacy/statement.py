"""What a run guarantees, from the record of the run: per-release prices, totals, caveats, one paragraph in words."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from fedmest.privacy import gdp
from fedmest.privacy.gdp import NEIGHBOURS, Array


@dataclass(frozen=True)
class ReleaseRecord:
    """One release of one round, as every site that took part paid for it."""

    round: int
    query: str
    what: str
    part: str
    mu: Array  # one price, or one a site
    sites: npt.NDArray[np.int64]  # who took part
    weights: Array
    linear: bool
    measure: Callable[[], tuple[Array, Array]] = field(repr=False)  # computed when asked for

    @property
    def sensitivity(self) -> Array:
        """L2 sensitivity at each site that took part."""
        return self.measure()[0]

    @property
    def sd(self) -> Array:
        """Standard deviation of the noise at each site that took part."""
        return self.measure()[1]


@dataclass(frozen=True)
class PrivacyReport:
    """The guarantee of one run.

    `mu` is what the worst-off site's rows pay against the server that sees every message. `caveats` are what the
    guarantee does not cover; `certified` is true when there is no gap among them.
    """

    mu: float
    releases: tuple[ReleaseRecord, ...]
    caveats: tuple[str, ...]
    certified: bool
    neighbours: str = NEIGHBOURS
    by_purpose: dict[str, float] = field(default_factory=dict)

    def epsilon(self, delta: float = 1e-6) -> float:
        return gdp.epsilon_of(delta, self.mu)

    @property
    def third_party(self) -> float:
        """mu against someone who sees only what the server publishes; no colluding site."""
        return self.third_party_with(0)

    def third_party_with(self, colluders: int) -> float:
        """The same when `colluders` sites pool what they know with the onlooker.

        Weighted sums of plain noisy values are accounted for exactly. Where a site's reply is computed from noisy
        values (local descent), averaging is not known to help and the site's own price counts.
        """
        if math.isinf(self.mu):
            return math.inf
        squares = 0.0
        for release in self.releases:
            own = float(release.mu.max())
            if release.linear:
                seen = gdp.third_party_mu(release.weights, release.sensitivity, release.sd, colluders)
                squares += min(own, seen) ** 2
            else:
                squares += own**2
        return min(math.sqrt(squares), self.mu)

    def statement(self) -> str:
        """One paragraph that an ethics board can read."""
        if math.isinf(self.mu):
            return (
                "No privacy guarantee. This fit is not private (mu = infinity): what the sites send is computed from "
                "their rows without noise, and may reveal single rows."
            )
        spent = ", ".join(f"{100 * share:.0f} % on {what}" for what, share in self.by_purpose.items())
        word = "is guaranteed" if self.certified else "is claimed, but not certified,"
        text = (
            f"Protected unit: one row of one site. Whatever the server sees of any site {word} to be {self.mu:.4g}-"
            f"Gaussian differentially private, which implies ({self.epsilon(1e-6):.3g}, 1e-6)-differential privacy, "
            f"when {self.neighbours}. Someone who sees only the published result faces at most "
            f"{self.third_party:.3g}-Gaussian privacy. Of the budget (mu squared), {spent}. Site names, sizes (after "
            "rows with gaps were left out), column names, the categories of text columns and of the target, and "
            "declared bounds are treated as public. Someone with several rows is protected less: k rows multiply mu "
            "by k at most."
        )
        if self.caveats:
            text += " Not covered: " + " ".join(self.caveats)
        return text


def account(releases: tuple[ReleaseRecord, ...], n_sites: int) -> tuple[float, dict[str, float]]:
    """Total mu of the worst-off site, and the share of mu^2 by purpose there.

    Releases on the same rows compose; a row is in the first or in the second half of its site, never in both, so the
    dearer half counts.
    """
    if any(np.isinf(r.mu).any() for r in releases):
        return math.inf, {}
    halves = paid(((r.part, r.mu, r.sites) for r in releases), n_sites)
    _, site = np.unravel_index(int(halves.argmax()), halves.shape)
    total = float(halves.max())
    purposes: dict[str, float] = {}
    for r in releases:
        where = np.flatnonzero(r.sites == site)
        if len(where):
            price = float(r.mu[where[0] if len(r.mu) > 1 else 0]) ** 2
            purpose = "local steps" if r.what.startswith("local step") else r.what
            if r.part != "all":
                purpose += f" ({r.part} half of the rows)"
            purposes[purpose] = purposes.get(purpose, 0.0) + price / total
    return math.sqrt(total), purposes


def paid(releases: Iterable[tuple[str, Array, npt.NDArray[np.int64]]], n_sites: int) -> Array:
    """mu^2 that rows of each site's two halves pay for releases: of which part, at which prices, by whom."""
    halves = np.zeros((2, n_sites))
    for part, mu, sites in releases:
        for k, name in enumerate(("first", "second")):
            if part in ("all", name):
                halves[k, slice(None) if len(sites) == n_sites else sites] += mu**2
    return halves
