"""What a run guarantees, from the record of the run: its releases, the total, caveats, one paragraph in words."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from fedmest.core.text import listed
from fedmest.core.typing import FloatArray, IntArray
from fedmest.privacy import gdp
from fedmest.privacy.gdp import NeighboringRelation


@dataclass(frozen=True)
class ReleaseRecord:
    """One release of one round, at every site that took part.

    Parameters
    ----------
    round : int
        Round of the run, from 0.
    query, what : str
        Name of the query, and of the value that it releases.
    part : {"all", "first", "second"}
        Which half of a site's rows the value is computed from.
    mu : array
        Privacy loss of the release: one for all sites, or one per site.
    sites : array of int
        Sites that took part.
    weights : array
        Weights of their values in the aggregate.
    additive_noise : bool
        The reply is a value plus noise, so that sums of replies hold the sum of the noise.
    measure : callable
        Computes sensitivities and standard deviations when they are needed.
    shown_singly : bool
        What is published depends on single replies, and not on their weighted sum alone.
    """

    round: int
    query: str
    what: str
    part: str
    mu: FloatArray
    sites: IntArray
    weights: FloatArray
    additive_noise: bool
    measure: Callable[[], tuple[FloatArray, FloatArray]] = field(repr=False)
    shown_singly: bool = False

    @property
    def sensitivity(self) -> FloatArray:
        """L2 sensitivity at each site that took part."""
        return self.measure()[0]

    @property
    def sd(self) -> FloatArray:
        """Standard deviation of the noise at each site that took part."""
        return self.measure()[1]


@dataclass(frozen=True)
class PrivacyReport:
    """Privacy guarantee of one run.

    Attributes
    ----------
    mu : float
        Gaussian differential privacy of the rows of the site that spent most, against a server that sees every message;
        infinite for a fit without privacy.
    releases : tuple of ReleaseRecord
        Everything that left the sites.
    caveats : tuple of str
        What the guarantee does not cover.
    certified : bool
        Whether every sensitivity is proved.
    neighboring_relation : NeighboringRelation
        Data sets between which `mu` bounds the difference.
    by_purpose : dict
        Share of mu^2 by purpose, at that site.

    Examples
    --------
    >>> report = PrivacyReport(1.0, (), (), certified=True)
    >>> round(report.epsilon(delta=1e-6), 3)
    4.887
    """

    mu: float
    releases: tuple[ReleaseRecord, ...]
    caveats: tuple[str, ...]
    certified: bool
    neighboring_relation: NeighboringRelation = NeighboringRelation.REPLACE_ONE_ROW
    by_purpose: dict[str, float] = field(default_factory=dict)

    def __repr__(self) -> str:
        private = math.isfinite(self.mu)
        shares = [f"{100 * share:.0f} % {what}" for what, share in self.by_purpose.items()]
        return (
            f"<PrivacyReport: mu = {self.mu:.4g}{', certified' if self.certified else ', not certified'}\n"
            f" epsilon: {f'{self.epsilon(1e-6):.3g} at delta = 1e-6' if private else 'inf'}\n"
            f" releases: {len(self.releases):,}\n"
            f" budget: {listed(shares, 200) or 'none'}\n"
            f" caveats: {len(self.caveats)}>"
        )

    def epsilon(self, delta: float = 1e-6) -> float:
        """Smallest epsilon for which the run is (epsilon, delta)-differentially private.

        Parameters
        ----------
        delta : float
            Between 0 and 1.

        Returns
        -------
        float
        """
        return gdp.gdp_epsilon(delta, self.mu)

    def third_party_mu(self, colluders: int = 0) -> float:
        """Guarantee against a third party that sees only what the server publishes.

        Parameters
        ----------
        colluders : int
            Sites that share their own noise with that party.

        Returns
        -------
        float
            mu, at most that against the server.

        Notes
        -----
        Weighted sums of values with additive noise are accounted for exactly. Where a site's reply is computed from
        noisy values (local descent), averaging is not known to help, and the site's own mu counts. It counts as well
        where standard errors are computed from the spread of the sites' replies: the published table then depends on
        single replies.
        """
        if math.isinf(self.mu):
            return math.inf
        squares = 0.0
        for release in self.releases:
            own = float(release.mu.max())
            if release.additive_noise and not release.shown_singly:
                seen = gdp.third_party_mu(release.weights, release.sensitivity, release.sd, colluders)
                squares += min(own, seen) ** 2
            else:
                squares += own**2
        return min(math.sqrt(squares), self.mu)

    def statement(self) -> str:
        """The guarantee and its caveats in one paragraph, for an ethics board."""
        if math.isinf(self.mu):
            return (
                "No privacy guarantee. This fit is not private (mu = infinity): what the sites send is computed from "
                "their rows without noise, and may reveal single rows."
            )
        spent = ", ".join(f"{100 * share:.0f} % on {what}" for what, share in self.by_purpose.items())
        claim = "is guaranteed" if self.certified else "is claimed, but not certified,"
        text = (
            f"Protected unit: one row of one site. Whatever the server sees of any site {claim} to be {self.mu:.4g}-"
            f"Gaussian differentially private, which implies ({self.epsilon(1e-6):.3g}, 1e-6)-differential privacy, "
            f"when {self.neighboring_relation.value}. Someone who sees only the published result faces at most "
            f"{self.third_party_mu():.3g}-Gaussian privacy. Of the budget (mu squared), {spent}. Site names, sizes "
            "(after rows with gaps were left out), column names, the categories of text columns and of the target, and "
            "declared bounds are treated as public. Someone with several rows is protected less: k rows multiply mu "
            "by k at most."
        )
        if self.caveats:
            text += " Not covered: " + " ".join(self.caveats)
        return text
