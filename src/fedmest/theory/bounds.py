"""The paper's error bounds as functions (Auddy, Peng, Paul 2026), and what its methods send.

The paper leaves most constants open. They are arguments here, one unless given, so that a bound is a rate: compare it
with itself as sizes, dimension or budget change. Theorems are cited by number and by label in the paper's source.
L = d v log N is the larger of the two, and the paper's B is C_B sqrt(L).
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from fedmest.errors import InputError
from fedmest.privacy.gdp import Array

PEAK = math.exp(-0.5)  # where mu^2 log(1/mu) is largest; beyond, the lower bound as stated would rise with mu


def _check_positive(**values: float) -> None:
    for name, value in values.items():
        if not 0 < value < math.inf:
            raise InputError(f"{name} must be a positive number, not {value}")


@dataclass(frozen=True)
class Constants:
    """What the paper supposes of a model, and its unnamed constant C."""

    tau1: float = 1.0  # least eigenvalue of the expected Hessian
    tau2: float = 1.0  # largest norm of a row's Hessian
    trace: float = 1.0  # trace(Sigma) / d, Sigma the variance of a row's score
    C_B: float = 1.0  # B / sqrt(L)
    C: float = 1.0

    def __post_init__(self) -> None:
        _check_positive(**vars(self))
        if self.tau1 > self.tau2:
            raise InputError(f"tau1={self.tau1:g} exceeds tau2={self.tau2:g}: no curvature lies between them")

    @property
    def shrinkage(self) -> float:
        """log(3 tau2 / (3 tau2 - tau1)): what a gradient step takes off the logarithm of the distance."""
        return -math.log1p(-self.tau1 / (3 * self.tau2))


ONES = Constants()


# -- methods ---------------------------------------------------------------------------------------


def fedsgd_steps(sizes: npt.ArrayLike, d: int, c: Constants = ONES) -> float:
    """K of Theorem 3.2 (th:alg1): 2 log(dN) / shrinkage."""
    return 2 * math.log(d * _checked(sizes, d).sum()) / c.shrinkage


def fedsgd_after(
    sizes: npt.ArrayLike, d: int, mu: float, K: int, eta: float, start: float = 1.0,
    weights: npt.ArrayLike | None = None, c: Constants = ONES,
) -> float:  # fmt: skip
    """FedSGD after any K steps of any eta: Theorem 3.2, first display (eq:alg1-gd-mse).

    `start` is the expected squared distance from which it sets out; weights are n_i / N unless given. Infinite where
    gamma_1 reaches one, that is, where the smallest site is too small for the theorem.
    """
    n = _checked(sizes, d, mu)
    _check_counts(K=K)
    if not 1 / (2 * c.tau2) <= eta <= 9 / (10 * c.tau2):
        raise InputError(f"eta={eta:g} is outside what the theorem allows: 1 / (2 tau2) to 9 / (10 tau2)")
    w = n / n.sum() if weights is None else np.asarray(weights, dtype=float)
    if w.shape != n.shape or not (w >= 0).all() or not math.isclose(w.sum(), 1):
        raise InputError("weights must hold a number of at least 0 for every site and sum to one")
    gap = eta * c.tau1 - c.C * math.sqrt(_L(n, d) / n.min())  # 1 - gamma_1 as stated; the proof has C eta for C
    if gap <= 0:
        return math.inf
    left = 3 * math.exp(-2 * K * c.shrinkage) * start
    spread = c.trace * d * np.sum(w**2 / n) + _price(n, d, mu, K, c) * np.sum(w**2 / n**2)
    return float(left + 4 * (eta / gap) ** 2 * spread)


def fedsgd(sizes: npt.ArrayLike, d: int, mu: float, c: Constants = ONES) -> float:
    """FedSGD with optimal weights and K = `fedsgd_steps`: Theorem 3.2 (th:alg1), last display (ag1rate)."""
    n = _checked(sizes, d, mu)
    return 17 / c.tau1**2 * _harmonic(n, d, mu, fedsgd_steps(n, d, c), c)


def fedsgd_rate(sizes: npt.ArrayLike, d: int, mu: float, c: Constants = ONES) -> float:
    """The same as a rate, C d over effective sizes: remark on Theorem 3.2 (rmk:simpler-rate, eq:mse-ag1-simpler)."""
    n = _checked(sizes, d, mu)
    return float(c.C * d / effective_sizes(n, d, mu, releases=math.log(n.sum())).sum())


def fedhybrid_steps(sizes: npt.ArrayLike, c: Constants = ONES) -> tuple[Array, float]:
    """K1 of every site (at least) and K2 of Theorem 3.5 (cor:dp-gd-init-fed-avg)."""
    n = _checked(sizes)
    return np.asarray(4 * np.log(n) / c.shrinkage), 2 * math.log(len(n)) / c.shrinkage


def fedhybrid(sizes: npt.ArrayLike, d: int, mu: float, c: Constants = ONES) -> float:
    """FedHybrid at the K1 and K2 of `fedhybrid_steps`: Theorem 3.5 (cor:dp-gd-init-fed-avg).

    One site alone has K2 = 0, and the theorem would have privacy for nothing: refused.
    """
    n = _checked(sizes, d, mu)
    if len(n) < 2:
        raise InputError("the bound of FedHybrid says nothing about a single site: its K2 is 2 log(m) / shrinkage")
    return 17 / c.tau1**2 * _harmonic(n, d, mu, fedhybrid_steps(n, c)[1], c)


def fedavg(sizes: npt.ArrayLike, d: int, mu: float, K: npt.ArrayLike, R: int = 1, c: Constants = ONES) -> float:
    """FedAvg: sampling, privacy, and the square of a bias that averaging does not remove.

    R = 1: Theorem 3.3 (thm:one-step-fedavg); K may differ by site. Any R: Theorem 3.7 (thm:ag3_mse), where C_B^2
    stands as in its proof; the statement has C in one place and nothing in the other.
    """
    n = _checked(sizes, d, mu)
    steps = np.asarray(K, dtype=float)
    if steps.shape not in ((), n.shape):
        raise InputError("K must be one number, or one for every site")
    _check_counts(K=float(steps.min()), R=R)
    N, m, trace = float(n.sum()), len(n), c.trace * d
    a_step = _price(n, d, mu, R, c)
    variance = 16 / c.tau1**2 * (trace / N + 2 * m * a_step * float(steps.max()) / N**2)
    bias = (m * trace + a_step * float(np.sum(steps / n))) / N
    return variance + c.C * bias**2


def fednewton(sizes: npt.ArrayLike, d: int, mu: float, c: Constants = ONES) -> float:
    """FedNewton, weights n_i / N: Theorem 3.9 (th:newton-avg), first display (ag4rate1).

    Holds up to `fednewton_most_sites`, and has no K. C_B is that of the Newton step's bound here, B_new / sqrt(L);
    the statement has it inside C.
    """
    n = _checked(sizes, d, mu)
    N = float(n.sum())
    return c.C * (c.trace * d / (c.tau1**2 * N) + len(n) * _price(n, d, mu, 1, c) / N**2)


def fednewton_most_sites(sizes: npt.ArrayLike, d: int, mu: float, K: int, c: Constants = ONES) -> float:
    """The m up to which `fednewton` holds, for these N and n_min: Theorem 3.9 (th:newton-avg)."""
    n = _checked(sizes, d, mu)
    _check_counts(K=K)
    N, L = float(n.sum()), _L(n, d)
    rows = N * float(n.min()) ** 2 / (c.C * K**2)
    return min(math.cbrt(N / (c.C * d)) ** 2, math.cbrt(mu**3 * rows / L**3) ** 2, math.sqrt(mu**2 * rows / L**2))


def fednewton_weighted(sizes: npt.ArrayLike, d: int, mu: float, c: Constants = ONES) -> float:
    """FedNewton with optimal weights: Theorem 3.9 (th:newton-avg), second display (ag4rate).

    Asks, beside `fednewton_most_sites`, for sites of like size or m up to `fednewton_weighted_most_sites`.
    """
    n = _checked(sizes, d, mu)
    return c.C / c.tau1**2 * _harmonic(n, d, mu, 2 / c.shrinkage, c)


def fednewton_weighted_most_sites(sizes: npt.ArrayLike, d: int, mu: float, K: int, c: Constants = ONES) -> float:
    """The m up to which `fednewton_weighted` holds for sites of any sizes: condition ii of Theorem 3.9."""
    n = _checked(sizes, d, mu)
    _check_counts(K=K)
    N = float(n.sum())
    room = min(1.0, N * mu**2 / d) * mu**2 * float(n.min()) ** 2 * N
    return math.cbrt(room / (c.C * _L(n, d) ** 3 * K**2))


# -- any method ------------------------------------------------------------------------------------


def lower_bound(sizes: npt.ArrayLike, d: int, mu: float, C1: float = 1.0, C2: float = 1.0, prior: float = 0.0) -> float:
    """Minimax lower bound: Theorem 3.10 (th:low-bd), d / sum_i min(C1 n_i, C2 n_i^2 mu^2 log(1/mu) / d).

    Stated for 0 < mu < 1, yet mu^2 log(1/mu) falls from exp(-1/2) on, where the bound would rise with the budget and
    pass every upper bound near one. From there on log(1/mu) stays at 1/2 here, which keeps it falling. `prior` is a
    constant that the proof has in the denominator and the theorem drops; without it the bound grows beyond the
    (compact) parameter space as mu goes to zero.
    """
    n = _checked(sizes, d, mu)
    _check_positive(C1=C1, C2=C2)
    if not 0 <= prior < math.inf:
        raise InputError(f"prior must be a number of at least 0, not {prior}")
    private = C2 * n**2 * mu**2 * -math.log(min(mu, PEAK)) / d
    return float(d / (np.minimum(C1 * n, private).sum() + prior))


def effective_sizes(sizes: npt.ArrayLike, d: int, mu: float, releases: float = 1.0) -> Array:
    """How many rows each site is worth: min(n_i, n_i^2 mu^2 / (L releases)).

    Without `releases` as after FedNewton; the remark on Theorem 3.2 (rmk:simpler-rate) has log N for FedSGD.

    >>> effective_sizes([10, 1000], 5, 0.5).round(1).tolist()
    [3.6, 1000.0]
    """
    n = _checked(sizes, d, mu)
    _check_positive(releases=releases)
    return np.minimum(n, n**2 * mu**2 / (_L(n, d) * releases))


class Traffic(NamedTuple):
    """Rounds, and floats that a site sends and is sent."""

    rounds: int
    up: int
    down: int


def communication(d: int, K: int = 50, K2: int = 20, R: int = 2) -> dict[str, Traffic]:
    """The paper's table of communication (tab:communication): a vector of d floats down and up in every round.

    K: rounds of FedSGD, K2: of FedHybrid after its first, which the table leaves out, R: of FedAvg. A certified run
    sends more: the histogram for its bound, and FedNewton its curvature.

    >>> communication(5, K=50)["fedsgd"]
    Traffic(rounds=50, up=250, down=250)
    """
    _check_counts(d=d, K=K, K2=K2, R=R)
    rounds = {"fedsgd": K, "fedhybrid": 1 + K2, "fedavg": R, "fednewton": 2}
    return {method: Traffic(number, number * d, number * d) for method, number in rounds.items()}


def _checked(sizes: npt.ArrayLike, d: int = 1, mu: float = math.inf) -> Array:
    n = np.asarray(sizes, dtype=float)
    if n.ndim != 1 or len(n) == 0 or not ((n >= 1) & np.isfinite(n)).all():
        raise InputError("sizes must list the number of rows of every site, each at least 1")
    if not mu > 0:
        raise InputError(f"mu must be positive, or inf, not {mu}")
    _check_counts(d=d)
    return n


def _check_counts(**counts: float) -> None:
    for name, value in counts.items():
        if not (1 <= value < math.inf and value == int(value)):
            raise InputError(f"{name} must be a whole number of at least 1, not {value}")


def _L(n: Array, d: int) -> float:
    return max(float(d), math.log(n.sum()))


def _price(n: Array, d: int, mu: float, releases: float, c: Constants) -> float:
    """C_B^2 d L releases / mu^2; nothing without privacy."""
    return c.C_B**2 * d * _L(n, d) * releases / mu**2


def _harmonic(n: Array, d: int, mu: float, releases: float, c: Constants) -> float:
    """(sum_i (trace(Sigma) / n_i + price / n_i^2)^-1)^-1: an average with the best weights."""
    return float(1 / np.sum(1 / (c.trace * d / n + _price(n, d, mu, releases, c) / n**2)))
