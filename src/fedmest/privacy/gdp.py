"""Arithmetic of mu-Gaussian differential privacy (Dong, Roth, Su 2022, "Gaussian differential privacy").

Throughout, neighbouring data sets differ in one row of one site, replaced (`NeighboringRelation`). A value with L2
sensitivity D under that relation, released with independent N(0, s^2) noise on each coordinate, is (D/s)-GDP.
"""

import math
from enum import Enum

import numpy as np
import numpy.typing as npt
from scipy.optimize import brentq
from scipy.special import log_ndtr

from fedmest.core.exceptions import InputError
from fedmest.core.typing import FloatArray


class NeighboringRelation(Enum):
    """Pairs of data sets that a guarantee makes hard to tell apart; the value completes "private when ..."."""

    REPLACE_ONE_ROW = "one row of one site is replaced by any other row (site sizes are public)"


def compose(mus: npt.ArrayLike) -> float:
    """Exact guarantee of releases on the same rows, each chosen after seeing the earlier ones.

    Parameters
    ----------
    mus : array-like
        mu of each release.

    Returns
    -------
    float
        The root of the sum of their squares.

    Examples
    --------
    >>> compose([3.0, 4.0])
    5.0
    """
    return math.sqrt(float(np.sum(np.square(np.asarray(mus, dtype=float)))))


def gdp_delta(epsilon: float, mu: float) -> float:
    """Smallest delta for which mu-GDP implies (epsilon, delta)-DP.

    Parameters
    ----------
    epsilon, mu : float
        Not negative.

    Returns
    -------
    float
        Phi(-e/mu + mu/2) - exp(e) Phi(-e/mu - mu/2), rounded up by a few ulps.

    Notes
    -----
    Computed from logarithms, so that it stays accurate where both terms are tiny.

    Examples
    --------
    >>> round(gdp_delta(1.0, 1.0), 6)
    0.126937
    """
    if mu == 0:
        return 0.0
    if math.isinf(mu):
        return 1.0
    log_first = float(log_ndtr(-epsilon / mu + mu / 2))
    log_second = epsilon + float(log_ndtr(-epsilon / mu - mu / 2))
    difference = log_second - log_first
    if difference >= 0:  # only by rounding: the true delta is below what a double can hold
        return math.ulp(math.exp(log_first))
    delta = math.exp(log_first) * -math.expm1(difference)
    slack = 16 * math.ulp(math.exp(log_first)) * max(1.0, abs(log_first), epsilon)
    return min(1.0, delta + slack)


def gdp_epsilon(delta: float, mu: float) -> float:
    """Smallest epsilon for which mu-GDP implies (epsilon, delta)-DP, rounded up.

    Parameters
    ----------
    delta : float
        Strictly between 0 and 1.
    mu : float
        Not negative; infinite without privacy.

    Returns
    -------
    float

    Raises
    ------
    InputError
        If delta or mu is out of range.

    Examples
    --------
    >>> round(gdp_epsilon(1e-6, 1.0), 3)
    4.887
    """
    if not mu >= 0:
        raise InputError(f"mu must be at least 0, not {mu}")
    if not 0 < delta < 1:
        raise InputError(f"delta must lie strictly between 0 and 1, not {delta}")
    if math.isinf(mu):
        return math.inf
    if mu == 0 or gdp_delta(0.0, mu) <= delta:
        return 0.0
    high = mu * mu / 2 + mu * math.sqrt(2 * math.log(1 / delta)) + 1.0
    while gdp_delta(high, mu) > delta:
        high *= 2
    root = brentq(lambda e: math.log(gdp_delta(e, mu) / delta), 0.0, high, xtol=1e-12, rtol=1e-14)
    epsilon = float(root)
    while gdp_delta(epsilon, mu) > delta:  # brentq may stop just below the root
        epsilon = epsilon * (1 + 1e-12) + 1e-12
    return epsilon


def gdp_mu(epsilon: float, delta: float) -> float:
    """Largest mu that still guarantees (epsilon, delta)-DP, rounded down.

    Parameters
    ----------
    epsilon : float
        Not negative.
    delta : float
        Strictly between 0 and 1.

    Returns
    -------
    float

    Raises
    ------
    InputError
        If epsilon or delta is out of range.

    Examples
    --------
    >>> round(gdp_mu(4.887, 1e-6), 2)
    1.0
    """
    if not epsilon >= 0 or not 0 < delta < 1:
        raise InputError("epsilon must be at least 0 and delta strictly between 0 and 1")
    low, high = 0.0, 1.0
    while gdp_delta(epsilon, high) < delta:
        low, high = high, 2 * high
    for _ in range(200):
        middle = (low + high) / 2
        if gdp_delta(epsilon, middle) <= delta:
            low = middle
        else:
            high = middle
    return low


def third_party_mu(weights: FloatArray, sensitivities: FloatArray, sds: FloatArray, colluders: int = 0) -> float:
    """Guarantee against a third party that sees only the weighted sum of the sites' noisy values.

    Parameters
    ----------
    weights, sensitivities, sds : array
        Weight, L2 sensitivity and standard deviation of the noise of each site.
    colluders : int
        Sites that share their own noise with that party.

    Returns
    -------
    float
        mu.

    Notes
    -----
    A row of site i moves the sum by at most w_i D_i; the noise in it has variance sum_j w_j^2 s_j^2. Colluding
    sites know their own noise and can subtract it: the `colluders` largest contributions are left out, whichever
    sites they belong to, which is the safe side.

    Examples
    --------
    >>> even = np.full(4, 0.25)
    >>> third_party_mu(even, np.ones(4), np.ones(4))
    0.5
    >>> third_party_mu(even, np.ones(4), np.ones(4), colluders=3)
    1.0
    """
    variances = np.sort(np.square(weights * sds))
    remaining = float(variances[: max(len(variances) - colluders, 0)].sum())
    reach = float(np.max(weights * sensitivities, initial=0.0))
    if reach == 0.0:
        return 0.0
    return math.inf if remaining == 0.0 else reach / math.sqrt(remaining)
