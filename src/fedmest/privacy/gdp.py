"""Arithmetic of mu-Gaussian differential privacy (Dong, Roth, Su 2022, "Gaussian differential privacy").

Throughout, neighbouring data sets differ in one row of one site, replaced. A value with L2 sensitivity D under
that relation, released with independent N(0, s^2) noise on each coordinate, is (D/s)-GDP.
"""

import math

import numpy as np
import numpy.typing as npt
from scipy.optimize import brentq
from scipy.special import log_ndtr

NEIGHBOURS = "one row of one site is replaced by any other row (site sizes are public)"

Array = npt.NDArray[np.float64]


def compose(mus: npt.ArrayLike) -> float:
    """Exact guarantee of releases on the same rows, each chosen after seeing the earlier ones.

    >>> compose([3.0, 4.0])
    5.0
    """
    return math.sqrt(float(np.sum(np.square(np.asarray(mus, dtype=float)))))


def delta_of(epsilon: float, mu: float) -> float:
    """Smallest delta for which mu-GDP implies (epsilon, delta)-DP: Phi(-e/mu + mu/2) - exp(e) Phi(-e/mu - mu/2).

    Computed from logarithms, so that it keeps its digits where both terms are tiny; rounded up by a few ulps.

    >>> round(delta_of(1.0, 1.0), 6)
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


def epsilon_of(delta: float, mu: float) -> float:
    """Smallest epsilon for which mu-GDP implies (epsilon, delta)-DP, rounded up.

    >>> round(epsilon_of(1e-6, 1.0), 3)
    4.887
    """
    if not mu >= 0:
        raise ValueError(f"mu must be at least 0, not {mu}")
    if not 0 < delta < 1:
        raise ValueError(f"delta must lie strictly between 0 and 1, not {delta}")
    if math.isinf(mu):
        return math.inf
    if mu == 0 or delta_of(0.0, mu) <= delta:
        return 0.0
    high = mu * mu / 2 + mu * math.sqrt(2 * math.log(1 / delta)) + 1.0
    while delta_of(high, mu) > delta:
        high *= 2
    root = brentq(lambda e: math.log(delta_of(e, mu) / delta), 0.0, high, xtol=1e-12, rtol=1e-14)
    epsilon = float(root)
    while delta_of(epsilon, mu) > delta:  # brentq may stop a hair on the wrong side
        epsilon = epsilon * (1 + 1e-12) + 1e-12
    return epsilon


def mu_of(epsilon: float, delta: float) -> float:
    """Largest mu that still guarantees (epsilon, delta)-DP, rounded down.

    >>> round(mu_of(4.887, 1e-6), 2)
    1.0
    """
    if not epsilon >= 0 or not 0 < delta < 1:
        raise ValueError("epsilon must be at least 0 and delta strictly between 0 and 1")
    low, high = 0.0, 1.0
    while delta_of(epsilon, high) < delta:
        low, high = high, 2 * high
    for _ in range(200):
        middle = (low + high) / 2
        if delta_of(epsilon, middle) <= delta:
            low = middle
        else:
            high = middle
    return low


def third_party_mu(
    weights: Array, sensitivities: Array, sds: Array, colluders: int = 0
) -> float:
    """What someone who sees only the weighted sum of the sites' noisy values can learn of one row, as mu.

    A row of site i moves the sum by at most w_i D_i; the noise in it has variance sum_j w_j^2 s_j^2. Colluding
    sites know their own noise and can take it out: the `colluders` largest contributions are left out, whoever
    they belong to, which is the safe side.
    """
    variances = np.sort(np.square(weights * sds))
    left = float(variances[: max(len(variances) - colluders, 0)].sum())
    reach = float(np.max(weights * sensitivities, initial=0.0))
    if reach == 0.0:
        return 0.0
    return math.inf if left == 0.0 else reach / math.sqrt(left)
