"""GDP arithmetic, the accountant, who takes part, and the noise generator."""

import math
from decimal import Decimal, getcontext
from typing import Any

import numpy as np
import pytest
from scipy import stats

import fedmest as fm
from conftest import coef, glm, noise_of, pack, simulate
from fedmest.methods import METHODS
from fedmest.models import Clipping, model_named
from fedmest.privacy import gdp
from fedmest.privacy.budget import FLOOR, split, step_shares
from fedmest.privacy.noise import SeededNoise, add_normals, derive_seed, philox, site_keys
from fedmest.privacy.report import PrivacyReport
from fedmest.queries import (
    Descent,
    Gradient,
    Histogram,
    Moments,
    NewtonParts,
    NewtonStep,
    PaperNewton,
    QueryInputs,
    SiteData,
)
from fedmest.queries.histogram import SCORE_GRID, main_body, quantile
from fedmest.queries.schedule import PublicContext, Step, sequential_steps
from fedmest.runs.phases import PublicState
from fedmest.runs.runner import Run
from fedmest.runs.settings import Settings
from fedmest.runs.spec import PublicFacts, RunSpec

PRIVATE = [name for name, method in METHODS.items() if method.private and method.supports(model_named("linear"))]
QUICK = {"K": 4, "R": 3, "K1": 3, "K2": 4}

# -- arithmetic ------------------------------------------------------------------------------------


def exact_delta(epsilon: float, mu: float) -> Decimal:
    """Phi(-e/mu + mu/2) - exp(e) Phi(-e/mu - mu/2) to 30 digits, by the series of Phi around zero."""
    reach = epsilon / mu + mu / 2
    getcontext().prec = int(reach**2 / 2 / math.log(10)) + 60  # 1 - Phi loses that many digits

    def phi(x: Decimal) -> Decimal:
        if x < 0:
            return 1 - phi(-x)
        term, total, k = x, x, 1
        while term > total * Decimal(10) ** -getcontext().prec:
            k += 2
            term = term * x * x / k
            total += term
        two_pi = 2 * Decimal(
            "3.14159265358979323846264338327950288419716939937510582097494459230781640628620899862803482534211706798214"
        )
        return Decimal("0.5") + total * (-x * x / 2).exp() / two_pi.sqrt()

    e, m = Decimal(epsilon), Decimal(mu)
    return phi(-e / m + m / 2) - e.exp() * phi(-e / m - m / 2)


@pytest.mark.parametrize(
    ("epsilon", "mu"),
    [(0.0, 1.0), (1.0, 1.0), (1.0, 0.5), (3.0, 0.7), (0.0, 1e-3), (1e-3, 1e-3), (5.0, 2.0), (8.0, 1.5)],
)
def test_delta_is_the_exact_one_rounded_up(epsilon: float, mu: float) -> None:
    """100 digits of pi bound what the reference can show: its own error is below 1e-90 here."""
    exact = exact_delta(epsilon, mu)
    found = Decimal(gdp.gdp_delta(epsilon, mu))
    assert exact <= found
    assert found <= exact * (1 + Decimal("1e-9")) + Decimal("1e-15")


def test_delta_and_epsilon_equal_numbers_worked_out_by_hand() -> None:
    """epsilon = 0: delta = 2 Phi(mu/2) - 1, for mu = 1: 0.382925. epsilon = mu = 1: Phi(-1/2) - e Phi(-3/2)
    = 0.126937.
    """
    assert gdp.gdp_delta(0.0, 1.0) == pytest.approx(0.3829249225480262, rel=1e-12)
    assert gdp.gdp_delta(1.0, 1.0) == pytest.approx(0.3085375387259869 - math.e * 0.0668072012688581, rel=1e-12)
    assert gdp.compose([3.0, 4.0]) == 5.0
    assert gdp.compose([0.2] * 25) == pytest.approx(1.0, rel=1e-15)


@pytest.mark.parametrize("mu", [1e-6, 1e-3, 0.1, 1.0, 2.0, 10.0, 100.0])
@pytest.mark.parametrize("delta", [1e-15, 1e-9, 1e-6, 1e-3, 0.5])
def test_epsilon_and_mu_invert_delta_on_the_safe_side(mu: float, delta: float) -> None:
    epsilon = gdp.gdp_epsilon(delta, mu)
    assert epsilon >= 0
    assert gdp.gdp_delta(epsilon, mu) <= delta
    if epsilon > 1e-9:  # no larger than needed
        assert gdp.gdp_delta(epsilon * (1 - 1e-6), mu) > delta
        back = gdp.gdp_mu(epsilon, delta)
        assert gdp.gdp_delta(epsilon, back) <= delta
        assert back == pytest.approx(mu, rel=1e-6)


def test_delta_falls_with_epsilon_and_grows_with_mu_down_to_the_smallest_numbers() -> None:
    grid = np.linspace(0, 60, 200)
    for mu in (0.01, 0.5, 3.0):
        deltas = np.array([gdp.gdp_delta(e, mu) for e in grid])
        assert (deltas >= 0).all()
        assert (np.diff(deltas) <= 1e-15).all()
    by_mu = [gdp.gdp_delta(1.0, mu) for mu in np.geomspace(1e-6, 100, 60)]
    assert (np.diff(by_mu) >= -1e-15).all()
    assert gdp.gdp_delta(1.0, math.inf) == 1.0
    assert gdp.gdp_delta(1.0, 0.0) == 0.0
    assert gdp.gdp_epsilon(1e-6, math.inf) == math.inf


@pytest.mark.parametrize("mu", [0.1, 0.5, 1.0, 2.0, 4.0, 6.0])
@pytest.mark.parametrize("costs", ["one", "equal", "geometric"])
def test_composition_and_conversion_agree_with_privacy_loss_distributions(mu: float, costs: str) -> None:
    """dp-accounting composes discretised distributions numerically, from above and from below; so we lie between, but
    for what its transforms cut off, and never below the lower one: on the safe side of what it can show.
    """
    from dp_accounting.pld import privacy_loss_distribution as pld

    shares = {"one": np.ones(1), "equal": np.ones(20), "geometric": step_shares(5, "geometric", 0.8)}[costs]
    steps = split(mu, shares)
    mesh = 2e-3 * min(mu, 1.0) / math.sqrt(len(steps))

    def theirs(above: bool) -> Any:
        parts = [
            pld.from_gaussian_mechanism(1 / step, value_discretization_interval=mesh, pessimistic_estimate=above)
            for step in np.unique(steps)
        ]
        if len(parts) < len(steps):
            return parts[0].self_compose(len(steps))
        for part in parts[1:]:
            parts[0] = parts[0].compose(part)
        return parts[0]

    above, below = theirs(True), theirs(False)
    for delta in (1e-3, 1e-5, 1e-6, 1e-9):
        ours = gdp.gdp_epsilon(delta, gdp.compose(steps))
        assert abs(ours - above.get_epsilon_for_delta(delta)) < 1e-3
        assert ours >= below.get_epsilon_for_delta(delta)


@pytest.mark.parametrize("delta", [0.0, 1.0, -1.0, math.nan])
def test_a_delta_outside_zero_and_one_is_refused(delta: float) -> None:
    with pytest.raises(ValueError, match="delta"):
        gdp.gdp_epsilon(delta, 1.0)


@pytest.mark.parametrize("schedule", ["geometric", "uniform"])
def test_shares_of_a_schedule_sum_to_one_and_split_mu_exactly(schedule: str) -> None:
    for steps in (1, 2, 50, 1000):
        shares = step_shares(steps, schedule, 0.8)
        assert shares.sum() == pytest.approx(1.0, rel=1e-13)
        assert gdp.compose(split(2.0, shares)) == pytest.approx(2.0, rel=1e-13)
        assert (np.diff(shares) >= -1e-18).all()  # later steps never get less
        assert shares.min() >= (FLOOR if schedule == "geometric" else 1.0) / steps * (1 - 1e-12)


# -- the accountant --------------------------------------------------------------------------------


def options_of(method: str, **more: Any) -> dict[str, Any]:
    known = METHODS[method].__dataclass_fields__  # type: ignore[attr-defined]
    return {**{k: v for k, v in QUICK.items() if k in known}, **more}


def spent_by(result: fm.Result, sites: int) -> np.ndarray:
    """mu of each site's dearer half, summed here from the records, independently of `account`."""
    squares = np.zeros((2, sites))
    for release in result.privacy.releases:
        costs = np.broadcast_to(release.mu, release.sites.shape)
        # what is written as the cost is what the noise gives
        np.testing.assert_allclose(release.sensitivity / release.sd, costs, rtol=1e-12)
        for half, name in enumerate(("first", "second")):
            if release.part in ("all", name):
                np.add.at(squares[half], release.sites.astype(int), costs**2)
    return np.sqrt(squares.max(axis=0))


def runs() -> list[tuple[str, dict[str, Any]]]:
    found: list[tuple[str, dict[str, Any]]] = []
    for method in PRIVATE:
        for calibration in ("certified", "paper") if METHODS[method].in_paper else ("certified",):
            for schedule in ("geometric", "uniform"):
                found.append((method, {"calibration": calibration, "budget_schedule": schedule}))
        found.append((method, {"clip_norm": 1.0}))
        found.append((method, {"clip_norm": 1.0, "aggregation_weights": "optimal", "scaling": "none"}))
        if METHODS[method].supports_client_sampling:
            found += [(method, {"participation": q}) for q in (0.1, 0.35, 0.9)]
    found.append(("fednewton", {"split": True}))
    found.append(("fednewton", {"split": True, "send": "step"}))
    found.append(("fednewton", {"send": "step"}))
    return found


@pytest.mark.parametrize(
    ("method", "settings"), runs(), ids=lambda v: v if isinstance(v, str) else "-".join(map(str, v.values()))
)
def test_costs_of_the_executed_releases_compose_to_the_claimed_mu(method: str, settings: dict[str, Any]) -> None:
    """At the worst-off site exactly mu is spent; no site spends more. Third parties never face more than the
    server.
    """
    model = "linear" if METHODS[method].models else "logistic"
    case = simulate(model, 12, (5, 9, 20, 30, 31, 40, 55, 60, 80, 90, 100, 1), seed=1)
    mu = 1.7
    result = fm.fit(case.fed, model, method, mu, seed=3, **options_of(method, **settings))
    spent = spent_by(result, 12)
    assert (spent <= mu * (1 + 1e-12)).all()
    assert result.privacy.mu == pytest.approx(spent.max(), rel=1e-12)
    assert result.privacy.mu == pytest.approx(mu, rel=1e-12)
    halves = [
        sum(share for purpose, share in result.privacy.by_purpose.items() if other not in purpose)
        for other in ("(second half", "(first half")
    ]
    assert max(halves) == pytest.approx(1.0, rel=1e-9)
    assert result.privacy.third_party_mu() <= mu * (1 + 1e-12)
    assert result.privacy.certified == (settings.get("calibration") != "paper")


def test_sampled_sites_spend_only_on_the_rounds_they_answer() -> None:
    """Ten rounds at q = 0.1: every site once, with its whole budget, so sqrt(10) times less noise than the
    paper's.
    """
    case = simulate("logistic", 20, 30, seed=2)
    common = {
        "participation": 0.1,
        "K": 4,
        "R": 10,
        "clip_norm": 1.0,
        "scaling": "none",
        "seed": 1,
        "budget_schedule": "uniform",
    }
    ours = fm.fit(case.fed, "logistic", "fedavg", 2.0, **common)
    theirs = fm.fit(case.fed, "logistic", "fedavg", 2.0, calibration="paper", **common)
    np.testing.assert_allclose(spent_by(ours, 20), 2.0, rtol=1e-12)
    assert (spent_by(theirs, 20) <= 2.0).all()
    ratio = theirs.privacy.releases[0].sd[0] / ours.privacy.releases[0].sd[0]
    assert ratio == pytest.approx(math.sqrt(10), rel=1e-12)


@pytest.mark.parametrize("share", [0.05, 0.1, 0.3, 0.5, 0.7, 0.99])
@pytest.mark.parametrize("count", [1, 7, 10, 33])
def test_participation_is_balanced_and_drawn_before_the_run(share: float, count: int) -> None:
    sizes = np.arange(1, 21)
    context = PublicContext(model_named("logistic"), sizes, 3, 2.0, participation=share, seed=5)
    steps = sequential_steps(context, [Gradient()] * count, np.ones((count, 1)), 2.0)
    times = np.zeros(20, dtype=int)
    for step in steps:
        assert len(set(step.sites.tolist())) == len(step.sites) == max(1, round(share * 20))
        assert step.weights.sum() == pytest.approx(1.0)
        times[step.sites] += 1
    assert times.max() - times.min() <= 1


@pytest.mark.parametrize("sizes", [(50,) * 9, (1, 5, 10, 30, 100, 400, 400, 20, 2)])
def test_a_third_party_faces_mu_over_root_m_of_fedsgd_with_size_weights(sizes: tuple[int, ...]) -> None:
    """w_i D_i = 2B/N for every site, the noise of the sum has variance m (2B/(N mu))^2; c colluders leave m
    - c.
    """
    case = simulate("logistic", 9, sizes, seed=1)
    result = fm.fit(case.fed, "logistic", "fedsgd", 2.0, K=6, clip_norm=1.0, scaling="none", seed=1)
    assert result.privacy.third_party_mu() == pytest.approx(2.0 / 3, rel=1e-12)
    for colluders in (1, 4, 8):
        seen = result.privacy.third_party_mu(colluders)
        assert seen == pytest.approx(2.0 / math.sqrt(9 - colluders), rel=1e-12)
    assert result.privacy.third_party_mu(9) == pytest.approx(2.0)


def test_a_third_party_of_a_weighted_sum_is_worked_out_by_hand() -> None:
    """Weights (1/2, 1/4, 1/4), D = (1, 4, 1), s = (2, 4, 8): reach 1 (second site); variances 1, 1, 4."""
    weights, reach, sds = np.array([0.5, 0.25, 0.25]), np.array([1.0, 4.0, 1.0]), np.array([2.0, 4.0, 8.0])
    assert gdp.third_party_mu(weights, reach, sds) == pytest.approx(1 / math.sqrt(6))
    assert gdp.third_party_mu(weights, reach, sds, colluders=1) == pytest.approx(1 / math.sqrt(2))
    assert gdp.third_party_mu(weights, reach, sds, colluders=3) == math.inf
    assert gdp.third_party_mu(weights, np.zeros(3), sds) == 0.0


def test_local_descent_is_not_credited_with_averaging() -> None:
    """SPEC 3.4: mu/sqrt(m) is not proved for FedAvg, so its third party faces what the server faces."""
    case = simulate("logistic", 9, 50, seed=1)
    result = fm.fit(case.fed, "logistic", "fedavg", 2.0, K=3, R=1, clip_norm=1.0, scaling="none", seed=1)
    assert result.privacy.third_party_mu() == pytest.approx(2.0, rel=1e-12)


def test_optimal_weights_are_those_of_the_paper() -> None:
    """w_i proportional to 1 / (C d/n_i + d (d v log N) K/(mu^2 n_i^2)): C d stands for trace(Sigma)."""
    n = np.array([10, 100, 1000])
    logistic = model_named("logistic")
    context = PublicContext(logistic, n, 5, 2.0, aggregation_weights="optimal", weight_constant=3.0)
    raw = 1 / (3 * 5 / n + 5 * max(5, math.log(1110)) * 7 / (4.0 * n**2))
    np.testing.assert_allclose(context.weights(releases=7), raw / raw.sum(), rtol=1e-12)


def test_a_step_outside_the_schedule_is_not_put_to_any_site() -> None:
    facts = PublicFacts(np.array(["a", "b"], dtype=object), np.array([5, 6]), ("x",), "y", {})
    settings = Settings(scaling="none", clip_norm=1.0, cov_type="none")
    spec, other = (RunSpec.create(facts, model_named("logistic"), "fedsgd", 1.0, settings, {"K": 2}) for _ in range(2))
    asked: list[int] = []

    class Zeros:
        """Sites that answer every step with zeros."""

        noise_caveat = ""

        def answer(self, number: int, step: Step, inputs: QueryInputs) -> tuple[np.ndarray, np.ndarray]:
            asked.append(number)
            return np.zeros((2, 2)), step.sites

        def apply(self, state: PublicState) -> None:
            pass

    run, zero = Run(spec, Zeros()), np.zeros((1, 2))  # type: ignore[arg-type]
    first, second = spec.schedule.steps
    run.ask(first, zero)
    with pytest.raises(fm.ScheduleError, match="schedule"):
        run.ask(other.schedule.steps[1], zero)
    with pytest.raises(fm.ScheduleError, match="schedule"):
        run.ask(first, zero)
    with pytest.raises(fm.ConvergenceError, match="finite"):
        run.ask(second, np.array([[np.nan, 0.0]]))
    run.ask(second, zero)
    with pytest.raises(fm.ScheduleError, match="schedule"):
        run.ask(second, zero)
    assert asked == [0, 1]
    assert [(record.phase, record.asked) for record in run.records] == [("estimation", first), ("estimation", second)]


@pytest.mark.parametrize("options", [{"method": "fedsgd", "K": 70_000}, {"method": "fedavg", "K": 70_000, "R": 1}])
def test_runs_so_long_that_noise_would_repeat_are_refused(options: dict[str, Any]) -> None:
    """A stream is (round, local step) in 16 bits each; without the check round 65,536 redraws the noise of
    round 0.
    """
    case = simulate("logistic", 2, 20, seed=1)
    with pytest.raises(fm.InputError, match="at most"):
        fm.fit(case.fed, "logistic", mu=1.0, clip_norm=1.0, scaling="none", seed=1, **options)


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("fednewton", {"share1": 0.95, "share_curvature": 0.1}),
        ("fednewton", {"share1": 0.9, "share_curvature": 0.1}),
        ("fedhybrid", {"share1": 1.0}),
        ("fedhybrid", {"share1": 1.5}),
    ],
)
def test_shares_that_leave_nothing_for_a_release_are_refused(method: str, options: dict[str, float]) -> None:
    """The cost of that release would be the root of a negative number, its noise not a number, and so
    none.
    """
    case = simulate("logistic", 3, 20, seed=1)
    with pytest.raises(fm.InputError, match="share"):
        fm.fit(case.fed, "logistic", method, 1.0, clip_norm=1.0, scaling="none", seed=1, **options)


@pytest.mark.parametrize("cost", [math.nan, 0.0, -1.0])
def test_a_site_answers_no_query_whose_cost_is_not_a_positive_number(cost: float) -> None:
    kind = glm("linear")
    data = SiteData(kind, pack(np.ones((4, 2)), np.zeros(4), [4]))
    ask = QueryInputs(np.zeros((1, 2)), Clipping(bound=1.0, curvature=1.0), np.zeros((1, 2)), edges=np.ones((1, 1)))
    queries = [
        Gradient(),
        Descent(3, 0.1),
        NewtonParts(),
        NewtonStep(),
        PaperNewton(0.2),
        Moments(),
        Histogram("scores"),
    ]
    for query in queries:
        costs = np.ones((len(query.releases()), 1))
        costs[-1] = cost
        with pytest.raises(ValueError, match="cost"):
            query.answer(data, np.array([0]), ask, costs, noise_of(1))


# -- noise -----------------------------------------------------------------------------------------

MAX_WORD32 = np.iinfo(np.uint32).max


def hexadecimal(words: tuple[Any, ...]) -> str:
    return " ".join(f"{int(w):08x}" for w in words)


def test_philox_gives_the_published_known_answers() -> None:
    """Random123, kat_vectors, philox4x32 10 rounds."""
    pi = (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344, 0xA4093822, 0x299F31D0)
    answers = {
        (0,) * 6: "6627e8d5 e169c58d bc57ac4c 9b00dbd8",
        (MAX_WORD32,) * 6: "408f276d 41c83b0e a20bc7c6 6d5451fd",
        pi: "d16cfe09 94fdcceb 5001e420 24126ea1",
    }
    for given, answer in answers.items():
        words = np.array(given[:4], dtype=np.uint64).reshape(4, 1)
        philox(words, 1, np.uint64(given[4]), np.uint64(given[5]))
        assert hexadecimal(words[:, 0]) == answer


def normals(count: int, key: int = 1, seed: int = 2, stream: int = 3) -> np.ndarray:
    values = np.zeros(count)
    add_normals(values, 1.0, np.uint64(key), np.uint64(seed), np.uint64(stream))
    return values


def test_noise_is_standard_normal() -> None:
    """A million draws: moments within six standard errors and Kolmogorov-Smirnov p > 1e-8; false alarms <
    1e-7.
    """
    z = normals(1_000_000)
    n = len(z)
    assert abs(z.mean()) < 6 / math.sqrt(n)
    assert abs(z.var() - 1) < 6 * math.sqrt(2 / n)
    assert abs((z**3).mean()) < 6 * math.sqrt(15 / n)
    assert abs((z**4).mean() - 3) < 6 * math.sqrt(96 / n)
    assert stats.kstest(z, "norm").pvalue > 1e-8
    assert (np.abs(z) > 4.5).sum() > 0


@pytest.mark.parametrize("lag", [1, 2, 3, 4, 8])
def test_noise_of_neighbouring_coordinates_is_uncorrelated(lag: int) -> None:
    """Six standard errors; squares too, as Box-Muller pairs share a radius. False-alarm rate 2e-9 each."""
    z = normals(400_000)
    for v in (z, z**2):
        assert abs(np.corrcoef(v[:-lag], v[lag:])[0, 1]) < 6 / math.sqrt(len(z))


def test_noise_differs_between_sites_rounds_local_steps_and_seeds() -> None:
    """No value occurs twice and correlations stay within six standard errors (false-alarm rate 2e-9 each)."""
    n = 100_000
    draws = {
        "this": normals(n), "site": normals(n, key=2), "site, high bits": normals(n, key=1 + 2**40),
        "seed": normals(n, seed=3), "seed, high bits": normals(n, seed=2 + 2**40),
        "step": normals(n, stream=4), "round": normals(n, stream=3 + 2**16),
    }  # fmt: skip
    names = list(draws)
    table = np.corrcoef(np.stack([draws[name] for name in names]))
    assert np.abs(table - np.eye(len(names))).max() < 6 / math.sqrt(n)
    assert len(np.unique(np.concatenate(list(draws.values()))[: 7 * n])) > 7 * n * 0.999


def test_two_sites_with_the_same_rows_send_different_noise(sent: list[np.ndarray]) -> None:
    """DP-SCAFFOLD's public code seeds all clients alike; then averaging removes no noise at all."""
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((30, 2)), rng.integers(0, 2, 30)
    fed = fm.Federation.from_arrays(np.vstack([X, X]), np.concatenate([y, y]), np.repeat(["a", "b"], 30))
    for method in ("fedsgd", "fedavg", "fednewton", "scaffold"):
        sent.clear()
        fm.fit(fed, "logistic", method, 1.0, clip_norm=1.0, scaling="none", seed=1, **options_of(method))
        for replies in sent:
            assert (replies[0] != replies[1]).all(), method
        assert (sent[0][0] != sent[1][0][: sent[0].shape[1]]).all(), method


def test_the_noise_of_a_site_does_not_depend_on_who_else_is_there() -> None:
    keys = site_keys(np.array(["a", "b", "c"], dtype=object))
    alone = site_keys(np.array(["b"], dtype=object))
    assert keys[1] == alone[0]
    assert len(set(keys.tolist())) == 3
    some, all_ = np.zeros((1, 9)), np.zeros((3, 9))
    SeededNoise(alone, 7, 4).add(some, np.ones(1), np.array([0]))
    SeededNoise(keys, 7, 4).add(all_, np.ones(3), np.arange(3))
    np.testing.assert_array_equal(some[0], all_[1])


def test_noise_of_many_values_equals_the_noise_of_each_site_alone() -> None:
    """Above and below the size where threads are woken."""
    keys = site_keys(np.array([str(i) for i in range(600)], dtype=object))
    sites = np.arange(600)
    many = np.zeros((600, 50))
    SeededNoise(keys, 1, 0).add(many, np.full(600, 2.0), sites)
    for i in (0, 299, 599):
        one = np.zeros((1, 50))
        SeededNoise(keys, 1, 0).add(one, np.array([2.0]), sites[i : i + 1])
        np.testing.assert_array_equal(many[i], one[0])


def test_no_seed_means_fresh_noise_and_a_seed_the_same_noise() -> None:
    assert derive_seed(None) != derive_seed(None)
    assert derive_seed(5) == derive_seed(5) != derive_seed(6)
    assert derive_seed(-1) != derive_seed(1)
    assert 0 <= derive_seed(10**30) < 2**64


def test_two_fits_with_one_seed_share_no_noise() -> None:
    """Were the noise shared, the difference of two noisy histograms would be a whole number."""
    case = simulate("logistic", 3, 2000, seed=1)
    seeds = {derive_seed(7, purpose) for purpose in ("", "logistic/fedsgd", "logistic/fedavg", "poisson/fedsgd")}
    assert len(seeds) == 4
    one = fm.fit(case.fed, "logistic", "fedsgd", 2.0, seed=7, scaling="none", K=3)
    other = fm.fit(case.fed, "logistic", "fedavg", 2.0, seed=7, scaling="none", K=3)
    assert one.resolved_values()["clip_norm"] != other.resolved_values()["clip_norm"]


@pytest.mark.parametrize("other", [{"features": list("vwxy")}, {"bounds": {"x1": (-9, 9)}}], ids=["names", "bounds"])
def test_fits_that_differ_in_columns_or_bounds_share_no_noise(other: dict[str, Any]) -> None:
    """The rows are the same, so only noise can tell the two estimates apart."""
    case = simulate("logistic", 3, 200, seed=1)
    thetas = [
        coef(fm.fit(
            fm.Federation.from_arrays(case.X, case.y, case.sites, **columns), "logistic", "fedsgd", 2.0,
            seed=7, clip_norm=1.0, scaling="none", K=3,
        ))
        for columns in ({}, {}, other)
    ]  # fmt: skip
    np.testing.assert_array_equal(thetas[0], thetas[1])
    assert (thetas[0] != thetas[2]).all()


def test_one_stray_bin_of_noise_does_not_move_the_bound() -> None:
    """Counts as 4,400 rows of a logistic model give them, noise of 45 a bin. Such a bin once gave B = 4096."""
    counts = np.zeros(len(SCORE_GRID) + 1)
    counts[7:11] = 300, 1900, 1800, 400
    usual = quantile(main_body(counts, 45.0, 4400.0), SCORE_GRID, 0.97)
    for stray in (0, 1, 2, 20, len(counts) - 1):
        noisy = counts.copy()
        noisy[stray] += 4.9 * 45
        assert quantile(main_body(noisy, 45.0, 4400.0), SCORE_GRID, 0.97) == pytest.approx(usual)
    assert main_body(np.full(len(counts), 3.9 * 45), 45.0, 4400.0) is None


def test_the_statement_of_a_split_run_names_what_each_half_spent_on() -> None:
    case = simulate("logistic", 3, 50, seed=1)
    shares = fm.fit(
        case.fed, "logistic", "fednewton", 2.0, clip_norm=1.0, scaling="none", split=True
    ).privacy.by_purpose
    assert shares["mean gradient (second half of the rows)"] == pytest.approx(1.0)
    assert shares["local steps (first half of the rows)"] == pytest.approx(2 / 3)


def test_histograms_are_counted_without_weights_for_a_third_party() -> None:
    """Plain sums of two sites' noisy counts: the noise of both hides a row, so mu / sqrt(2) whatever their sizes."""
    case = simulate("logistic", 2, (100, 300), seed=1)
    release = fm.fit(case.fed, "logistic", "fedsgd", 2.0, seed=1, scaling="none", K=2).privacy.releases[0]
    seen = gdp.third_party_mu(release.weights, release.sensitivity, release.sd)
    assert seen == pytest.approx(0.2 / math.sqrt(2))


def test_rounds_beyond_the_noise_streams_are_refused() -> None:
    case = simulate("logistic", 2, 20, seed=1)
    with pytest.raises(fm.InputError, match="at most"):
        fm.fit(case.fed, "logistic", "fedirls", 2.0, R=40_000)


def test_the_neighboring_relation_is_a_value_of_the_report_and_its_sentence_is_in_the_statement() -> None:
    report = PrivacyReport(1.0, (), (), certified=True)
    assert report.neighboring_relation is gdp.NeighboringRelation.REPLACE_ONE_ROW
    assert "when one row of one site is replaced by any other row (site sizes are public)." in report.statement()


def test_third_parties_see_single_replies_where_standard_errors_come_from_their_spread() -> None:
    """The sites' own cost counts for the last round, even where the table ends without standard errors."""
    fed = simulate("linear", 25, 60).fed
    results = {cov: fm.fit(fed, "linear", "fedirls", 2.0, seed=1, cov_type=cov) for cov in ("cluster", "none")}
    last = max(release.round for release in results["cluster"].privacy.releases)
    own = math.sqrt(sum(float(r.mu.max()) ** 2 for r in results["cluster"].privacy.releases if r.round == last))
    assert results["cluster"].privacy.third_party_mu() >= own > 2 * results["none"].privacy.third_party_mu()
    assert [r.shown_singly for r in results["cluster"].privacy.releases] == [
        r.round == last for r in results["cluster"].privacy.releases
    ]
    assert not any(r.shown_singly for r in results["none"].privacy.releases)
