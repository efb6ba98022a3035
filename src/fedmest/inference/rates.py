"""The paper's error bounds as functions (Auddy, Peng, Paul 2026), and what its methods send.

The paper leaves most constants open. They are arguments here, one unless given, so that a bound is a rate: compare it
with itself as sizes, dimension or budget change. Theorems are cited by number and by label in the paper's source.
L = d v log N is the larger of the two, and the paper's B is C_B sqrt(L). Functions of method `x` are called `x` and
`x_...`; the module is one thing, the theory section of the paper. All raise an InputError for sizes, dimensions or
budgets that are not possible.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from fedmest.core.exceptions import InputError
from fedmest.core.typing import FloatArray

PEAK = math.exp(-0.5)  # where mu^2 log(1/mu) is largest; beyond, the lower bound as stated would rise with mu


def _check_positive(**values: float) -> None:
    for name, value in values.items():
        if not 0 < value < math.inf:
            raise InputError(f"{name} must be a positive number, not {value}")


@dataclass(frozen=True)
class Constants:
    """Constants that the paper assumes of a model.

    Parameters
    ----------
    tau1 : float
        Least eigenvalue of the expected Hessian.
    tau2 : float
        Largest norm of a row's Hessian.
    trace : float
        trace(Sigma) / d, Sigma the variance of a row's score.
    C_B : float
        B / sqrt(L).
    C : float
        The paper's unnamed constant.
    """

    tau1: float = 1.0
    tau2: float = 1.0
    trace: float = 1.0
    C_B: float = 1.0
    C: float = 1.0

    def __post_init__(self) -> None:
        _check_positive(**vars(self))
        if self.tau1 > self.tau2:
            raise InputError(f"tau1={self.tau1:g} exceeds tau2={self.tau2:g}: no curvature lies between them")

    @property
    def shrinkage(self) -> float:
        """Decrease of the logarithm of the distance in a gradient step, log(3 tau2 / (3 tau2 - tau1))."""
        return -math.log1p(-self.tau1 / (3 * self.tau2))


ONES = Constants()


# -- methods ---------------------------------------------------------------------------------------


def fedsgd_steps(sizes: npt.ArrayLike, d: int, c: Constants = ONES) -> float:
    """Rounds K of FedSGD in Theorem 3.2 (th:alg1).

    Parameters
    ----------
    sizes : array-like of int
        Rows of each site.
    d : int
        Number of parameters.
    c : Constants, optional
        Constants of the model.

    Returns
    -------
    float
        2 log(dN) / shrinkage.
    """
    return 2 * math.log(d * _checked(sizes, d).sum()) / c.shrinkage


def fedsgd_after(
    sizes: npt.ArrayLike,
    d: int,
    mu: float,
    K: int,
    eta: float,
    start: float = 1.0,
    weights: npt.ArrayLike | None = None,
    c: Constants = ONES,
) -> float:
    """Error of FedSGD after K steps of size eta: Theorem 3.2, first display (eq:alg1-gd-mse).

    Parameters
    ----------
    sizes : array-like of int
        Rows of each site.
    d : int
        Number of parameters.
    mu : float
        Privacy budget of every site; inf without privacy.
    K : int
        Rounds.
    eta : float
        Step size, from 1 / (2 tau2) to 9 / (10 tau2).
    start : float, default 1.0
        Expected squared distance at the start.
    weights : array-like, optional
        Weights of the sites; n_i / N by default.
    c : Constants, optional
        Constants of the model.

    Returns
    -------
    float
        Infinite where gamma_1 reaches one, that is, where the smallest site is too small for the theorem.

    Raises
    ------
    InputError
        If eta or weights are outside of what the theorem allows.
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
    spread = c.trace * d * np.sum(w**2 / n) + _privacy_cost(n, d, mu, K, c) * np.sum(w**2 / n**2)
    return float(left + 4 * (eta / gap) ** 2 * spread)


def fedsgd(sizes: npt.ArrayLike, d: int, mu: float, c: Constants = ONES) -> float:
    """Error of FedSGD with optimal weights and K = `fedsgd_steps`: Theorem 3.2 (th:alg1), last display (ag1rate).

    Parameters
    ----------
    sizes : array-like of int
        Rows of each site.
    d : int
        Number of parameters.
    mu : float
        Privacy budget of every site; inf without privacy.
    c : Constants, optional
        Constants of the model.

    Returns
    -------
    float
    """
    n = _checked(sizes, d, mu)
    return 17 / c.tau1**2 * _harmonic(n, d, mu, fedsgd_steps(n, d, c), c)


def fedsgd_rate(sizes: npt.ArrayLike, d: int, mu: float, c: Constants = ONES) -> float:
    """Rate of FedSGD, C d over effective sizes: remark on Theorem 3.2 (rmk:simpler-rate, eq:mse-ag1-simpler).

    Parameters
    ----------
    sizes : array-like of int
        Rows of each site.
    d : int
        Number of parameters.
    mu : float
        Privacy budget of every site; inf without privacy.
    c : Constants, optional
        Constants of the model.

    Returns
    -------
    float
    """
    n = _checked(sizes, d, mu)
    return float(c.C * d / effective_sizes(n, d, mu, releases=math.log(n.sum())).sum())


def fedhybrid_steps(sizes: npt.ArrayLike, c: Constants = ONES) -> tuple[FloatArray, float]:
    """Steps K1 and K2 of FedHybrid in Theorem 3.5 (cor:dp-gd-init-fed-avg).

    Parameters
    ----------
    sizes : array-like of int
        Rows of each site.
    c : Constants, optional
        Constants of the model.

    Returns
    -------
    K1 : FloatArray
        Least number of local steps of every site.
    K2 : float
        Rounds of FedSGD.
    """
    n = _checked(sizes)
    return np.asarray(4 * np.log(n) / c.shrinkage), 2 * math.log(len(n)) / c.shrinkage


def fedhybrid(sizes: npt.ArrayLike, d: int, mu: float, c: Constants = ONES) -> float:
    """Error of FedHybrid at the K1 and K2 of `fedhybrid_steps`: Theorem 3.5 (cor:dp-gd-init-fed-avg).

    Parameters
    ----------
    sizes : array-like of int
        Rows of each site.
    d : int
        Number of parameters.
    mu : float
        Privacy budget of every site; inf without privacy.
    c : Constants, optional
        Constants of the model.

    Returns
    -------
    float

    Raises
    ------
    InputError
        If there is only one site: K2 is zero then, and the theorem would have privacy for nothing.
    """
    n = _checked(sizes, d, mu)
    if len(n) < 2:
        raise InputError("the bound of FedHybrid says nothing about a single site: its K2 is 2 log(m) / shrinkage")
    return 17 / c.tau1**2 * _harmonic(n, d, mu, fedhybrid_steps(n, c)[1], c)


def fedavg(sizes: npt.ArrayLike, d: int, mu: float, K: npt.ArrayLike, R: int = 1, c: Constants = ONES) -> float:
    """Error of FedAvg: sampling, privacy, and the square of a bias that averaging does not remove.

    Parameters
    ----------
    sizes : array-like of int
        Rows of each site.
    d : int
        Number of parameters.
    mu : float
        Privacy budget of every site; inf without privacy.
    K : int or array-like of int
        Local steps in a round; with R = 1 they may differ by site.
    R : int, default 1
        Rounds.
    c : Constants, optional
        Constants of the model.

    Returns
    -------
    float

    Notes
    -----
    R = 1: Theorem 3.3 (thm:one-step-fedavg). Any R: Theorem 3.7 (thm:ag3_mse), where C_B^2 stands as in its proof;
    the statement has C in one place and nothing in the other.
    """
    n = _checked(sizes, d, mu)
    steps = np.asarray(K, dtype=float)
    if steps.shape not in ((), n.shape):
        raise InputError("K must be one number, or one for every site")
    _check_counts(K=float(steps.min()), R=R)
    N, m, trace = float(n.sum()), len(n), c.trace * d
    per_step = _privacy_cost(n, d, mu, R, c)
    variance = 16 / c.tau1**2 * (trace / N + 2 * m * per_step * float(steps.max()) / N**2)
    bias = (m * trace + per_step * float(np.sum(steps / n))) / N
    return variance + c.C * bias**2


def fednewton(sizes: npt.ArrayLike, d: int, mu: float, c: Constants = ONES) -> float:
    """Error of FedNewton with weights n_i / N: Theorem 3.9 (th:newton-avg), first display (ag4rate1).

    Parameters
    ----------
    sizes : array-like of int
        Rows of each site.
    d : int
        Number of parameters.
    mu : float
        Privacy budget of every site; inf without privacy.
    c : Constants, optional
        Constants of the model.

    Returns
    -------
    float

    Notes
    -----
    Holds for up to `fednewton_most_sites`, and does not depend on K. C_B is that of the Newton step's bound here,
    B_new / sqrt(L); the statement has it inside C.
    """
    n = _checked(sizes, d, mu)
    N = float(n.sum())
    return c.C * (c.trace * d / (c.tau1**2 * N) + len(n) * _privacy_cost(n, d, mu, 1, c) / N**2)


def fednewton_most_sites(sizes: npt.ArrayLike, d: int, mu: float, K: int, c: Constants = ONES) -> float:
    """Number of sites up to which `fednewton` holds, for these N and n_min: Theorem 3.9 (th:newton-avg).

    Parameters
    ----------
    sizes : array-like of int
        Rows of each site.
    d : int
        Number of parameters.
    mu : float
        Privacy budget of every site; inf without privacy.
    K : int
        Local steps of the first round.
    c : Constants, optional
        Constants of the model.

    Returns
    -------
    float
    """
    n = _checked(sizes, d, mu)
    _check_counts(K=K)
    N, L = float(n.sum()), _L(n, d)
    rows = N * float(n.min()) ** 2 / (c.C * K**2)
    return min(math.cbrt(N / (c.C * d)) ** 2, math.cbrt(mu**3 * rows / L**3) ** 2, math.sqrt(mu**2 * rows / L**2))


def fednewton_weighted(sizes: npt.ArrayLike, d: int, mu: float, c: Constants = ONES) -> float:
    """Error of FedNewton with optimal weights: Theorem 3.9 (th:newton-avg), second display (ag4rate).

    Parameters
    ----------
    sizes : array-like of int
        Rows of each site.
    d : int
        Number of parameters.
    mu : float
        Privacy budget of every site; inf without privacy.
    c : Constants, optional
        Constants of the model.

    Returns
    -------
    float

    Notes
    -----
    Requires, beside `fednewton_most_sites`, sites of like size or at most `fednewton_weighted_most_sites`.
    """
    n = _checked(sizes, d, mu)
    return c.C / c.tau1**2 * _harmonic(n, d, mu, 2 / c.shrinkage, c)


def fednewton_weighted_most_sites(sizes: npt.ArrayLike, d: int, mu: float, K: int, c: Constants = ONES) -> float:
    """Number of sites up to which `fednewton_weighted` holds for any sizes: condition ii of Theorem 3.9.

    Parameters
    ----------
    sizes : array-like of int
        Rows of each site.
    d : int
        Number of parameters.
    mu : float
        Privacy budget of every site; inf without privacy.
    K : int
        Local steps of the first round.
    c : Constants, optional
        Constants of the model.

    Returns
    -------
    float
    """
    n = _checked(sizes, d, mu)
    _check_counts(K=K)
    N = float(n.sum())
    slack = min(1.0, N * mu**2 / d) * mu**2 * float(n.min()) ** 2 * N
    return math.cbrt(slack / (c.C * _L(n, d) ** 3 * K**2))


# -- any method ------------------------------------------------------------------------------------


def lower_bound(sizes: npt.ArrayLike, d: int, mu: float, C1: float = 1.0, C2: float = 1.0, prior: float = 0.0) -> float:
    """Minimax lower bound: Theorem 3.10 (th:low-bd).

    Parameters
    ----------
    sizes : array-like of int
        Rows of each site.
    d : int
        Number of parameters.
    mu : float
        Privacy budget of every site; inf without privacy.
    C1, C2 : float, default 1.0
        Constants of the theorem.
    prior : float, default 0.0
        Constant that the proof has in the denominator and the theorem drops.

    Returns
    -------
    float
        d / (prior + sum_i min(C1 n_i, C2 n_i^2 mu^2 log(1/mu) / d)).

    Notes
    -----
    Stated for 0 < mu < 1, yet mu^2 log(1/mu) falls from exp(-1/2) on, where the bound would rise with the budget and
    pass every upper bound near one. From there on log(1/mu) stays at 1/2 here, which keeps it falling. Without `prior`
    the bound grows beyond the (compact) parameter space as mu goes to zero.
    """
    n = _checked(sizes, d, mu)
    _check_positive(C1=C1, C2=C2)
    if not 0 <= prior < math.inf:
        raise InputError(f"prior must be a number of at least 0, not {prior}")
    private = C2 * n**2 * mu**2 * -math.log(min(mu, PEAK)) / d
    return float(d / (np.minimum(C1 * n, private).sum() + prior))


def effective_sizes(sizes: npt.ArrayLike, d: int, mu: float, releases: float = 1.0) -> FloatArray:
    """Rows that each site is worth: min(n_i, n_i^2 mu^2 / (L releases)).

    Parameters
    ----------
    sizes : array-like of int
        Rows of each site.
    d : int
        Number of parameters.
    mu : float
        Privacy budget of every site; inf without privacy.
    releases : float, default 1.0
        1 for FedNewton; log N for FedSGD, in the remark on Theorem 3.2 (rmk:simpler-rate).

    Returns
    -------
    FloatArray

    Examples
    --------
    >>> effective_sizes([10, 1000], 5, 0.5).round(1).tolist()
    [3.6, 1000.0]
    """
    n = _checked(sizes, d, mu)
    _check_positive(releases=releases)
    return np.minimum(n, n**2 * mu**2 / (_L(n, d) * releases))


class Traffic(NamedTuple):
    """Traffic of one method per site.

    Attributes
    ----------
    rounds : int
        Rounds.
    up, down : int
        Floats sent by the site, and to it.
    """

    rounds: int
    up: int
    down: int


def communication(d: int, K: int = 50, K2: int = 20, R: int = 2) -> dict[str, Traffic]:
    """Table of communication of the paper (tab:communication): d floats down and up in every round.

    Parameters
    ----------
    d : int
        Number of parameters.
    K : int, default 50
        Rounds of FedSGD.
    K2 : int, default 20
        Rounds of FedHybrid after its first, which the table leaves out.
    R : int, default 2
        Rounds of FedAvg.

    Returns
    -------
    dict of str to Traffic
        By id of the method.

    Notes
    -----
    A certified run sends more: the histogram for its clip norm, and FedNewton its curvature.

    Examples
    --------
    >>> communication(5, K=50)["fedsgd"]
    Traffic(rounds=50, up=250, down=250)
    """
    _check_counts(d=d, K=K, K2=K2, R=R)
    rounds = {"fedsgd": K, "fedhybrid": 1 + K2, "fedavg": R, "fednewton": 2}
    return {method: Traffic(number, number * d, number * d) for method, number in rounds.items()}


def _checked(sizes: npt.ArrayLike, d: int = 1, mu: float = math.inf) -> FloatArray:
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


def _L(n: FloatArray, d: int) -> float:
    return max(float(d), math.log(n.sum()))


def _privacy_cost(n: FloatArray, d: int, mu: float, releases: float, c: Constants) -> float:
    """C_B^2 d L releases / mu^2; nothing without privacy."""
    return c.C_B**2 * d * _L(n, d) * releases / mu**2


def _harmonic(n: FloatArray, d: int, mu: float, releases: float, c: Constants) -> float:
    """(sum_i (trace(Sigma) / n_i + c / n_i^2)^-1)^-1: an average with the best weights."""
    return float(1 / np.sum(1 / (c.trace * d / n + _privacy_cost(n, d, mu, releases, c) / n**2)))
