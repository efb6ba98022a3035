"""The paper's bounds: values worked out by hand, limits, exponents, order."""

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedmest as fm
from fedmest.core.exceptions import InputError
from fedmest.inference import rates
from fedmest.inference.rates import Constants
from fedmest.models.simulate import simulate

Bound = Callable[[list[float], int, float], float]

UPPER: dict[str, Bound] = {
    "fedsgd": rates.fedsgd,
    "fedsgd_rate": rates.fedsgd_rate,
    "fedhybrid": rates.fedhybrid,
    "fedavg": lambda sizes, d, mu: rates.fedavg(sizes, d, mu, K=30, R=2),
    "fednewton": rates.fednewton,
    "fednewton_weighted": rates.fednewton_weighted,
}
ALL = {**UPPER, "lower_bound": rates.lower_bound}
SIZES = st.lists(st.integers(1, 10_000).map(float), min_size=2, max_size=12)
UNEVEN = Constants(tau1=0.5, tau2=2.0, trace=1.5, C_B=0.8, C=3.0)


def slope(f: Callable[[float], float], at: float) -> float:
    """Of log f in log x, by a central difference."""
    h = 1e-4
    return (math.log(f(at * math.exp(h))) - math.log(f(at * math.exp(-h)))) / (2 * h)


# -- values ----------------------------------------------------------------------------------------


def test_values_worked_out_by_hand() -> None:
    """Sites of 100 and 300 rows, d = 10, mu = 1/2: L = 10 since log 400 = 5.99; shrinkage log 1.5 = 0.405465.

    FedSGD: K = 2 log(4000) / 0.405465 = 40.9112, cost 10 * 10 * K * 4 = 16364.5, sites 0.1 + 1.63645 and
    0.033333 + 0.181828, harmonic sum 0.191440. FedHybrid: K2 = 2 log(2) / 0.405465 = 3.41902. FedNewton with weights:
    2 / 0.405465 = 4.93261 in their place. FedAvg, K = 3, R = 2: a step costs 100 * 4 * 2 = 800; variance
    16 (10/400 + 2 * 2 * 2400/160000) = 1.36, bias (2 * 10 + 2400 (1/100 + 1/300)) / 400 = 0.13.
    """
    sizes, d, mu = [100, 300], 10, 0.5
    assert rates.fedsgd_steps(sizes, d) == pytest.approx(40.9112, rel=1e-5)
    assert rates.fedsgd(sizes, d, mu) == pytest.approx(17 * 0.191440, rel=1e-5)
    K1, K2 = rates.fedhybrid_steps(sizes)
    assert pytest.approx(3.41902, rel=1e-5) == K2
    assert pytest.approx([45.4311, 56.2691], rel=1e-5) == K1
    # cost 400 * 3.41902 = 1367.61: 0.1 + 0.136761 = 0.236761 and 0.033333 + 0.0151957 = 0.0485290
    assert rates.fedhybrid(sizes, d, mu) == pytest.approx(17 / (1 / 0.236761 + 1 / 0.0485290), rel=1e-5)
    assert rates.fedavg(sizes, d, mu, K=3, R=2) == pytest.approx(1.36 + 0.13**2, rel=1e-12)
    assert rates.fednewton(sizes, d, mu) == pytest.approx(0.025 + 2 * 400 / 160_000, rel=1e-12)
    # cost 400 * 4.93261 = 1973.04
    weighted = 1 / (1 / (0.1 + 0.197304) + 1 / (1 / 30 + 0.0219227))
    assert rates.fednewton_weighted(sizes, d, mu) == pytest.approx(weighted, rel=1e-5)
    # log 400 releases: 1e4 / 4 / (10 * 5.99146) = 41.7261 rows, and nine times that is more than there are
    assert rates.fedsgd_rate(sizes, d, mu) == pytest.approx(10 / (41.7261 + 300), rel=1e-5)
    # private terms 1e4 * 0.25 * log 2 / 10 = 173.287 > 100: both sites count in full
    assert rates.lower_bound(sizes, d, mu) == pytest.approx(10 / 400, rel=1e-12)
    assert rates.lower_bound(sizes, d, mu, C2=0.1) == pytest.approx(10 / (17.3287 + 155.958), rel=1e-5)


def test_every_constant_stands_where_the_theorem_has_it() -> None:
    """The same sites with tau1 = 1/2, tau2 = 2, trace(Sigma) = 15, C_B^2 = 0.64, C = 3; log(6 / 5.5) = 0.0870114."""
    sizes, d, mu, s = [100, 300], 10, 0.5, 0.0870114
    assert UNEVEN.shrinkage == pytest.approx(s, rel=1e-6)

    def harmonic(cost: float) -> float:
        return 1 / (1 / (0.15 + cost / 1e4) + 1 / (0.05 + cost / 9e4))

    private = 0.64 * 10 * 10 / 0.25
    assert rates.fedsgd(sizes, d, mu, UNEVEN) == pytest.approx(
        17 / 0.25 * harmonic(private * 2 * math.log(4000) / s), rel=1e-6
    )
    assert rates.fedhybrid(sizes, d, mu, UNEVEN) == pytest.approx(
        17 / 0.25 * harmonic(private * 2 * math.log(2) / s), rel=1e-6
    )
    assert rates.fednewton_weighted(sizes, d, mu, UNEVEN) == pytest.approx(
        3 / 0.25 * harmonic(2 * private / s), rel=1e-6
    )
    assert rates.fednewton(sizes, d, mu, UNEVEN) == pytest.approx(
        3 * (15 / (0.25 * 400) + 2 * private / 400**2), rel=1e-12
    )
    variance = 16 / 0.25 * (15 / 400 + 2 * 2 * 6 * private / 400**2)
    bias = (2 * 15 + 6 * private * (1 / 100 + 1 / 300)) / 400
    assert rates.fedavg(sizes, d, mu, 3, 2, UNEVEN) == pytest.approx(variance + 3 * bias**2, rel=1e-12)
    assert rates.fedsgd_rate(sizes, d, mu, UNEVEN) == pytest.approx(3 * rates.fedsgd_rate(sizes, d, mu), rel=1e-12)


def test_fedavg_takes_local_steps_by_site() -> None:
    """Theorem 3.3: the largest in the variance, each site's own in the bias. 16 (0.025 + 4 * 400 * 5 / 160000) = 1.2;
    bias (20 + 400 * (2/100 + 5/300)) / 400 = 0.0866667.
    """
    assert rates.fedavg([100, 300], 10, 0.5, K=[2, 5]) == pytest.approx(1.2 + 0.0866667**2, rel=1e-6)


def test_fedsgd_after_any_steps_by_hand() -> None:
    """Sites of 400 and 1200, d = 16, mu = 1, K = 4, eta = 1/2, C = 0.1: gap 0.5 - 0.1 sqrt(16/400) = 0.48, what is left
    3 (2/3)^8 = 0.117055; sampling 16/1600 = 0.01, privacy 16 * 16 * 4 * 2 / 1600^2 = 0.0008 with weights n_i / N.
    """
    c = Constants(C=0.1)
    scale = 4 * (0.5 / 0.48) ** 2
    assert rates.fedsgd_after([400, 1200], 16, 1.0, 4, 0.5, c=c) == pytest.approx(0.117055 + scale * 0.0108, rel=1e-5)
    # half and half: sampling 16 (1/1600 + 1/4800), privacy 1024 * (1/4) * (1/400^2 + 1/1200^2)
    spread = 16 / 1600 + 16 / 4800 + 256 / 400**2 + 256 / 1200**2
    even = rates.fedsgd_after([400, 1200], 16, 1.0, 4, 0.5, start=0.0, weights=[0.5, 0.5], c=c)
    assert even == pytest.approx(scale * spread, rel=1e-12)
    assert rates.fedsgd_after([10, 1200], 16, 1.0, 4, 0.5, c=Constants()) == math.inf


def test_optimal_weights_are_those_of_the_theorem() -> None:
    """No weights beat the harmonic sum, and the stated ones attain it."""
    n, d, mu, K = np.array([50.0, 400.0, 3000.0]), 12, 0.4, 9
    c = Constants(C=1e-9)

    def after(w: np.ndarray) -> float:
        return rates.fedsgd_after(n, d, mu, K, 0.5, start=0.0, weights=w, c=c)

    variances = d / n + d * d * K / (mu * n) ** 2
    best = 1 / variances / np.sum(1 / variances)
    assert after(best) == pytest.approx(4 * 0.25 / 0.25 * 1 / np.sum(1 / variances), rel=1e-6)
    rng = np.random.default_rng(0)
    assert min(after(rng.dirichlet(np.ones(3))) for _ in range(300)) >= after(best)
    assert after(n / n.sum()) > 1.01 * after(best)


# -- limits and exponents --------------------------------------------------------------------------


def test_without_privacy_the_sampling_term_is_left() -> None:
    sizes, d, N, m = [30.0, 70.0, 500.0], 6, 600.0, 3
    for c in (Constants(), UNEVEN):
        sampling = c.trace * d / N
        expected = {
            "fedsgd": 17 * sampling / c.tau1**2,
            "fedhybrid": 17 * sampling / c.tau1**2,
            "fedavg": 16 * sampling / c.tau1**2 + c.C * (m * sampling) ** 2,
            "fednewton": c.C * sampling / c.tau1**2,
            "fednewton_weighted": c.C * sampling / c.tau1**2,
        }
        for mu in (math.inf, 1e9):
            found = {
                "fedsgd": rates.fedsgd(sizes, d, mu, c),
                "fedhybrid": rates.fedhybrid(sizes, d, mu, c),
                "fedavg": rates.fedavg(sizes, d, mu, 30, 2, c),
                "fednewton": rates.fednewton(sizes, d, mu, c),
                "fednewton_weighted": rates.fednewton_weighted(sizes, d, mu, c),
            }
            assert found == pytest.approx(expected, rel=1e-9)
    assert rates.lower_bound(sizes, d, math.inf, C1=2.0) == pytest.approx(d / (2 * N))
    assert rates.effective_sizes(sizes, d, math.inf).tolist() == sizes
    assert rates.fednewton_most_sites(sizes, d, math.inf, 10) == pytest.approx((N / d) ** (2 / 3))
    assert rates.fednewton_weighted_most_sites(sizes, d, math.inf, 10) == math.inf


BIG = 60  # d: beyond log N, so that L does not move
M, ROWS = 40, 1000.0


@pytest.mark.parametrize(
    ("name", "logs"),
    [  # what d log(logarithmic factor) / d log of n, and of m at fixed n, adds
        ("fedsgd", (1 / math.log(BIG * M * ROWS), 1 / math.log(BIG * M * ROWS))),
        ("fedhybrid", (0.0, 1 / math.log(M))),
        ("fednewton", (0.0, 0.0)),
        ("fednewton_weighted", (0.0, 0.0)),
    ],
)
def test_exponents_of_sampling_and_privacy(name: str, logs: tuple[float, float]) -> None:
    """In n: -1 without, -2 with privacy. In m at fixed n: -1. In m at fixed N: 0 and 1. In mu: 0 and -2."""
    f = UPPER[name]

    def in_m(m: float, n: float, mu: float) -> float:  # m sites and a bit: the bound at m and m + 1, in between by logs
        low = math.floor(m)
        values = [math.log(f([n] * k, BIG, mu)) for k in (low, low + 1)]
        return math.exp(np.interp(math.log(m), np.log([low, low + 1]), values))

    assert slope(lambda n: f([n] * M, BIG, math.inf), ROWS) == pytest.approx(-1, abs=1e-6)
    assert slope(lambda n: f([n] * M, BIG, 1e-4), ROWS) == pytest.approx(-2 + logs[0], abs=1e-3)
    assert slope(lambda mu: f([ROWS] * M, BIG, mu), 1e-4) == pytest.approx(-2, abs=1e-3)
    assert slope(lambda mu: f([ROWS] * M, BIG, mu), 1e6) == pytest.approx(0, abs=1e-6)
    assert slope(lambda m: in_m(m, ROWS, 1e-4), M + 0.5) == pytest.approx(-1 + logs[1], abs=5e-3)
    two = [f([ROWS * M / m] * m, BIG, math.inf) for m in (M, 2 * M)]
    assert two[0] == pytest.approx(two[1])
    one, two_ = (f([ROWS * M / m] * m, BIG, 1e-4) for m in (M, 2 * M))
    growth = 1 if name != "fedhybrid" else math.log(2 * M) / math.log(M)
    assert two_ / one == pytest.approx(2 * growth, rel=1e-3)


def test_fedavg_has_a_floor_that_sites_do_not_lower() -> None:
    """C trace(Sigma)^2 / n^2 however many sites; with privacy the square of a square: -4 in mu and in n."""
    n, d = 50.0, BIG

    def f(m: int, mu: float, n: float = n) -> float:
        return rates.fedavg([n] * m, d, mu, K=20)

    assert f(10**6, math.inf) == pytest.approx((d / n) ** 2, rel=1e-3)
    assert math.log(f(200_000, math.inf) / f(100_000, math.inf)) / math.log(2) == pytest.approx(0, abs=1e-3)
    assert slope(lambda mu: f(10**5, mu), 1e-3) == pytest.approx(-4, abs=1e-3)
    assert slope(lambda rows: f(10**5, 1e-3, rows), n) == pytest.approx(-4, abs=2e-3)
    # at fixed N the floor rises with the square of m
    low, high = (rates.fedavg([1e6 / m] * m, d, math.inf, 20) for m in (100_000, 200_000))
    assert high / low == pytest.approx(4, rel=1e-2)


def test_exponents_of_the_lower_bound() -> None:
    d, mu = 20, 1e-3
    assert slope(lambda n: rates.lower_bound([n] * 5, d, mu), 1000.0) == pytest.approx(-2, abs=1e-9)
    assert slope(lambda n: rates.lower_bound([n] * 5, d, math.inf), 1000.0) == pytest.approx(-1, abs=1e-9)
    assert slope(lambda mu: rates.lower_bound([1000.0] * 5, d, mu), mu) == pytest.approx(
        -2 + 1 / math.log(1 / mu), abs=1e-6
    )
    assert rates.lower_bound([500.0] * 10, d, mu) == pytest.approx(2 * rates.lower_bound([1000.0] * 5, d, mu))


def test_larger_of_dimension_and_logarithm() -> None:
    """L is log N for small d: privacy goes with d log N there, with d^2 for large d."""
    small, large = ([1000.0] * 20, 3), ([1000.0] * 20, 40)
    assert rates.fednewton(*small, 1e-5) * 1e-10 == pytest.approx(20 * 3 * math.log(20_000) / 2e4**2, rel=1e-5)
    assert rates.fednewton(*large, 1e-5) * 1e-10 == pytest.approx(20 * 40 * 40 / 2e4**2, rel=1e-5)


# -- FedNewton's condition -------------------------------------------------------------------------


def test_most_sites_of_fednewton() -> None:
    """Each of the three terms where it is the least; N = 8e6, d = 8, n_min = 1000, L = log N = 15.89."""
    sizes, d, K = [1000.0] * 8000, 8, 10
    L = math.log(8e6)
    assert rates.fednewton_most_sites(sizes, d, 1e9, K) == pytest.approx(1e4)
    assert rates.fednewton_most_sites(sizes, d, 0.01, K) == pytest.approx((1e-6 * 8e12 / (L**3 * 100)) ** (2 / 3))
    wide = Constants(C=1000.0)
    assert rates.fednewton_most_sites(sizes, d, 1e9, K, wide) == pytest.approx(100)
    assert rates.fednewton_most_sites(sizes, d, 0.01, K, wide) == pytest.approx((1e-6 * 8e9 / (L**3 * 100)) ** (2 / 3))
    few = [40.0, 1e7]  # one small site, many local steps, a large budget: the third
    third = (30.0**2 * 1e7 * 1600 / (math.log(1e7) ** 2 * 1e10)) ** 0.5
    assert rates.fednewton_most_sites(few, 3, 30.0, 10**5) == pytest.approx(third, rel=1e-4)
    assert slope(lambda mu: rates.fednewton_most_sites(sizes, d, mu, K), 1e-3) == pytest.approx(2, abs=1e-6)


def test_condition_for_equal_sites_is_the_remarks() -> None:
    """m <= (mu N / L)^(6/7) / K^(4/7), from n_min = N / m in the second term: the two say the same."""
    N, d, mu, K = 1e6, 30, 0.02, 10
    most = (mu * N / d) ** (6 / 7) / K ** (4 / 7)
    for m, holds in ((int(0.98 * most), True), (int(1.02 * most) + 1, False)):
        assert (m <= rates.fednewton_most_sites([N / m] * m, d, mu, K)) is holds


def test_most_sites_with_weights() -> None:
    """Condition ii by hand: N = 1200, d = 10 = L, n_min = 200, K = 2; at mu = 0.05, N mu^2 / d = 0.3."""
    sizes = [200.0, 1000.0]
    assert rates.fednewton_weighted_most_sites(sizes, 10, 3.0, 2) == pytest.approx((9 * 4e4 * 1200 / 4000) ** (1 / 3))
    small = (0.3 * 0.0025 * 4e4 * 1200 / 4000) ** (1 / 3)
    assert rates.fednewton_weighted_most_sites(sizes, 10, 0.05, 2) == pytest.approx(small)


# -- order -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ALL)
@given(sizes=SIZES, d=st.integers(1, 60), mu=st.floats(1e-3, 50), more=st.floats(1.01, 20))
def test_bounds_fall_with_budget_and_rows_and_rise_with_dimension(
    name: str, sizes: list[float], d: int, mu: float, more: float
) -> None:
    f, slack = ALL[name], 1 + 1e-9
    assert f(sizes, d, mu * more) <= f(sizes, d, mu) * slack
    assert f(sizes, d + 3, mu) >= f(sizes, d, mu) / slack
    doubled = [2 * n for n in sizes]
    assert f(doubled, d, mu) <= f(sizes, d, mu) * slack


@given(sizes=SIZES, d=st.integers(1, 60), mu=st.floats(1e-4, 1 / math.e))
def test_lower_bound_is_below_the_upper_ones(sizes: list[float], d: int, mu: float) -> None:
    """With constants of one and log(1/mu) >= 1. FedSGD's and FedHybrid's own constants would bear a larger mu."""
    lower = rates.lower_bound(sizes, d, mu)
    for name in ("fedsgd", "fedavg", "fednewton", "fednewton_weighted"):
        assert lower <= UPPER[name](sizes, d, mu) * (1 + 1e-9), name
    assert lower <= rates.fedhybrid(sizes, d, mu) * (1 + 1e-9)
    assert lower <= rates.fedsgd_rate(sizes, d, mu) * 2


@given(sizes=SIZES, d=st.integers(1, 60), mu=st.floats(1e-3, 50))
def test_effective_sizes_give_the_bound_within_two(sizes: list[float], d: int, mu: float) -> None:
    """min(a, b) / 2 <= (1/a + 1/b)^-1 <= min(a, b); shrinkage is taken out of FedNewton's."""
    effective = rates.effective_sizes(sizes, d, mu)
    assert (effective <= np.asarray(sizes)).all()
    assert (effective > 0).all()
    c = Constants(C_B=math.sqrt(Constants().shrinkage / 2))
    ratio = rates.fednewton_weighted(sizes, d, mu, c) * effective.sum() / d
    assert 1 - 1e-9 <= ratio <= 2 + 1e-9


def test_fedhybrid_is_below_fedsgd_and_fednewton_below_both() -> None:
    """Since log m < log(dN), and FedNewton has neither."""
    sizes = [300.0] * 50
    c = Constants(C=17.0, C_B=1.0)
    assert rates.fednewton(sizes, 5, 0.1, c) < rates.fedhybrid(sizes, 5, 0.1) < rates.fedsgd(sizes, 5, 0.1)
    assert rates.fedsgd(sizes, 5, 0.1) < rates.fedavg(sizes, 5, 0.1, K=int(rates.fedsgd_steps(sizes, 5)))


# -- where the lower bound needs care ----------------------------------------------------------------


def test_lower_bound_does_not_rise_with_the_budget() -> None:
    """As stated it would: mu^2 log(1/mu) falls from exp(-1/2) to 0 at one, where no error would be large enough."""
    sizes, d = [5.0] * 50, 40
    mus = np.geomspace(0.01, 10, 400)
    values = [rates.lower_bound(sizes, d, float(mu)) for mu in mus]
    assert (np.diff(values) <= 1e-12).all()
    stated = [d / (50 * min(5.0, 25 * mu**2 * math.log(1 / mu) / d)) for mu in mus[mus < 0.6]]
    assert values[: len(stated)] == pytest.approx(stated, rel=1e-12)
    assert rates.lower_bound(sizes, d, 0.999999) < 1e-3 * d / (50 * 25 * math.log(1 / 0.999999) / d)
    edge = math.exp(-0.5)
    assert rates.lower_bound(sizes, d, edge - 1e-9) == pytest.approx(rates.lower_bound(sizes, d, edge + 1e-9))


def test_prior_keeps_the_lower_bound_inside_the_parameter_space() -> None:
    assert rates.lower_bound([100], 4, 1e-12) > 1e6
    assert rates.lower_bound([100], 4, 1e-12, prior=2.0) == pytest.approx(2.0)
    assert rates.lower_bound([100], 4, 0.1, prior=1e-9) == pytest.approx(rates.lower_bound([100], 4, 0.1))


# -- traffic and errors ----------------------------------------------------------------------------


def test_communication_is_what_runs_send() -> None:
    """Under the paper's calibration, which reads its bound off the data. A run also sends the bound down each round."""
    fed = simulate("logistic", [40] * 3, 1)
    table = rates.communication(5, K=7, K2=4, R=3)
    options = {"fedsgd": {"K": 7}, "fedhybrid": {"K1": 2, "K2": 4}, "fedavg": {"K": 2, "R": 3}, "fednewton": {"K": 2}}
    assert set(table) == set(options)
    for method, given_ in options.items():
        sent = fm.fit(fed, "logistic", method, 2.0, calibration="paper", seed=1, **given_).communication
        assert table[method] == (sent.rounds, sent.floats_up / 3, sent.floats_down / 3 - sent.rounds), method


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: rates.fedsgd([], 5, 1.0), "sizes must list"),
        (lambda: rates.fedsgd([[3.0]], 5, 1.0), "sizes must list"),
        (lambda: rates.fedavg([10, 0.5], 5, 1.0, 3), "sizes must list"),
        (lambda: rates.fednewton([10, math.nan], 5, 1.0), "sizes must list"),
        (lambda: rates.effective_sizes([10, math.inf], 5, 1.0), "sizes must list"),
        (lambda: rates.fedsgd([10], 0, 1.0), "d must be a whole number"),
        (lambda: rates.lower_bound([10], 2.5, 1.0), "d must be a whole number"),  # type: ignore[arg-type]
        (lambda: rates.fedsgd([10], 5, 0.0), "mu must be positive"),
        (lambda: rates.fednewton_weighted([10], 5, -1.0), "mu must be positive"),
        (lambda: rates.fednewton([10], 5, math.nan), "mu must be positive"),
        (lambda: rates.fedhybrid([10], 5, 1.0), "single site"),
        (lambda: rates.fedavg([10, 10], 5, 1.0, 0), "K must be a whole number"),
        (lambda: rates.fedavg([10, 10], 5, 1.0, [3, 3, 3]), "one for every site"),
        (lambda: rates.fedavg([10, 10], 5, 1.0, 3, 0), "R must be a whole number"),
        (lambda: rates.fednewton_most_sites([10], 5, 1.0, 0), "K must be a whole number"),
        (lambda: rates.fednewton_weighted_most_sites([10], 5, 1.0, 0), "K must be a whole number"),
        (lambda: rates.fedsgd_after([10], 5, 1.0, 3, 1.0), "eta=1 is outside"),
        (lambda: rates.fedsgd_after([10], 5, 1.0, 3, 0.4), "eta=0.4 is outside"),
        (lambda: rates.fedsgd_after([10, 20], 5, 1.0, 3, 0.5, weights=[0.5, 0.6]), "weights must hold"),
        (lambda: rates.fedsgd_after([10, 20], 5, 1.0, 3, 0.5, weights=[1.5, -0.5]), "weights must hold"),
        (lambda: rates.fedsgd_after([10, 20], 5, 1.0, 3, 0.5, weights=[1.0]), "weights must hold"),
        (lambda: rates.lower_bound([10], 5, 0.5, C1=0.0), "C1 must be a positive number"),
        (lambda: rates.lower_bound([10], 5, 0.5, C2=math.inf), "C2 must be a positive number"),
        (lambda: rates.lower_bound([10], 5, 0.5, prior=-1.0), "prior must be"),
        (lambda: rates.effective_sizes([10], 5, 0.5, releases=0.0), "releases must be a positive number"),
        (lambda: rates.communication(5, R=0), "R must be a whole number"),
        (lambda: Constants(C_B=0.0), "C_B must be a positive number"),
        (lambda: Constants(tau1=2.0), "tau1=2 exceeds tau2=1"),
    ],
)
def test_bad_arguments_are_refused(call: Callable[[], object], said: str) -> None:
    with pytest.raises(InputError, match=said):
        call()
