"""Standard errors: exact where there is no noise, honest where there is, and absent where they would not hold."""

import json
import math
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm

import fedmest as fm
from conftest import coef
from fedmest.core.exceptions import InputError, NoStandardErrors
from fedmest.data.federation import Federation
from fedmest.inference.covariance import _between
from fedmest.inference.linearization import Linearization, usable_inverse
from fedmest.inference.routes import MIN_SITES, SHARE
from fedmest.models import Clipping, model_named
from fedmest.models.glm import ROWS_AT_ONCE
from fedmest.models.simulate import TRUTH, simulate
from fedmest.queries import NewtonParts, ScoreMoments
from fedmest.queries.linalg import from_triangle
from fedmest.queries.schedule import Step
from fedmest.runs.result import Result

FAMILIES = {
    "logistic": sm.families.Binomial(),
    "poisson": sm.families.Poisson(),
    "linear": sm.families.Gaussian(),
    "negative-binomial": sm.families.NegativeBinomial(alpha=1.0),
}
MANY = [150] * MIN_SITES


def reference(fed: Federation, model: str, **settings: object) -> object:
    return sm.GLM(fed.target.astype(float), fed.design(), family=FAMILIES[model]).fit(tol=1e-12, **settings)


@pytest.mark.parametrize("model", FAMILIES)
@pytest.mark.parametrize("scaling", ["none", "data"])
def test_without_noise_they_are_those_of_statsmodels(model: str, scaling: str) -> None:
    fed = simulate(model, [300, 200, 400], seed=3)
    result = fm.fit(fed, model, "np-pooled", scaling=scaling)
    ref = reference(fed, model)
    np.testing.assert_allclose(result.bse, ref.bse, rtol=1e-6)  # type: ignore[attr-defined]
    np.testing.assert_allclose(result.cov_params(), ref.cov_params(), rtol=1e-5, atol=1e-10)  # type: ignore[attr-defined]
    table = result.summary_frame()
    np.testing.assert_allclose(table["z"], ref.tvalues, rtol=1e-6)  # type: ignore[attr-defined]
    np.testing.assert_allclose(table["P>|z|"], ref.pvalues, rtol=1e-4, atol=1e-12)  # type: ignore[attr-defined]
    for name, series in (("coef", result.params), ("z", result.tvalues), ("P>|z|", result.pvalues)):
        pd.testing.assert_series_equal(table[name], series)
    np.testing.assert_allclose(result.conf_int(), ref.conf_int(), rtol=1e-6)  # type: ignore[attr-defined]
    np.testing.assert_allclose(result.conf_int(alpha=0.2), ref.conf_int(alpha=0.2), rtol=1e-6)  # type: ignore[attr-defined]
    R = np.array([[0, 1.0, 0, 0, 0], [0, 0, 1.0, -1.0, 0]])
    test, expected = result.wald_test(R, [0.1, 0.2]), ref.wald_test((R, [0.1, 0.2]), scalar=True)  # type: ignore[attr-defined]
    assert test.statistic == pytest.approx(float(expected.statistic), rel=1e-5)
    assert test.pvalue == pytest.approx(float(expected.pvalue), rel=1e-4)
    X = np.array([[0.5, -1.0, 0.0, 2.0], [0.0, 0.0, 0.0, 0.0]])
    mean = ref.get_prediction(np.column_stack([np.ones(2), X])).summary_frame()  # type: ignore[attr-defined]
    interval = result.get_prediction(X).summary_frame()
    for ours, theirs in (("mean", "mean"), ("lower", "mean_ci_lower"), ("upper", "mean_ci_upper")):
        np.testing.assert_allclose(interval[ours], mean[theirs], rtol=1e-6)


@pytest.mark.parametrize("model", ["linear", "logistic", "poisson"])  # others: statsmodels takes observed curvature
def test_the_sandwich_without_noise_is_that_of_statsmodels(model: str) -> None:
    fed = simulate(model, [300, 200, 400], seed=3)
    result = fm.fit(fed, model, "np-pooled", scaling="data", cov_type="robust")
    assert result.covariance.cov_type == "robust"  # too few sites for their spread
    np.testing.assert_allclose(result.bse, reference(fed, model, cov_type="HC0").bse, rtol=1e-6)  # type: ignore[attr-defined]


def test_classes_have_standard_errors_within_their_contrasts() -> None:
    rng = np.random.default_rng(1)
    X = rng.standard_normal((1500, 2))
    y = rng.integers(0, 3, 1500) + (X[:, 0] > 1)
    fed = Federation.from_arrays(X, np.minimum(y, 2), np.repeat(np.arange(3), 500))
    result = fm.fit(fed, "multinomial", "np-pooled", scaling="none")
    ref = sm.MNLogit(np.minimum(y, 2), sm.add_constant(X)).fit(disp=0)
    differences = np.kron(np.array([[-1.0, 1, 0], [-1.0, 0, 1]]), np.eye(3))
    ours = np.sqrt(np.diag(differences @ result.cov_params().to_numpy() @ differences.T)).reshape(2, 3).T
    np.testing.assert_allclose(ours, ref.bse, rtol=1e-5)
    assert result.summary_frame().index.nlevels == 2
    assert "class 2" in result.summary()
    with pytest.raises(InputError, match="one linear predictor"):
        result.get_prediction(X[:1])
    with pytest.raises(InputError, match="repeat each other"):
        result.wald_test(np.tile(np.eye(3), 3))  # sums to zero by construction
    json.dumps(result.to_dict(), allow_nan=False)


def test_noise_of_the_curvature_shakes_the_newton_step_as_stated() -> None:
    """Against draws: noise z on the gradient, and a symmetric matrix of noise times the step."""
    rng = np.random.default_rng(0)
    theta, before = np.array([[0.4, -0.2, 0.1]]), np.array([[0.1, 0.3, -0.6]])
    curvature = np.diag([1.0, 2.0, 0.5])
    step = Step(NewtonParts(), np.ones((2, 1)), np.arange(2), np.array([0.3, 0.7]))
    record = SimpleNamespace(step=step, sds=np.array([[0.1, 0.2], [0.5, 0.3]]))
    path = Linearization(curvature, np.linalg.inv(curvature), theta, before, [record])  # type: ignore[list-item]
    path.newton(step)
    gradient, matrix = (np.linalg.norm(step.weights * sds) for sds in record.sds)
    errors = [
        gradient * rng.standard_normal(3) + from_triangle(matrix * rng.standard_normal(6), 3) @ (before - theta).ravel()
        for _ in range(40_000)
    ]
    inverse = np.linalg.inv(curvature)
    np.testing.assert_allclose(path.privacy, inverse @ np.cov(np.transpose(errors)) @ inverse, rtol=0.05, atol=1e-3)


def test_the_spread_of_replies_is_the_variance_of_their_sum() -> None:
    rng = np.random.default_rng(0)
    sizes = np.concatenate([np.full(20, 50.0), np.full(10, 400.0)])
    weights = sizes / sizes.sum()
    sds = 1 / np.sqrt(sizes)
    found = [_between(sds[:, None] * rng.standard_normal((30, 2)), weights, sizes, None) for _ in range(3000)]
    truth = float(np.sum(weights**2 * sds**2))
    np.testing.assert_allclose(np.mean([total for total, _ in found], axis=0), truth * np.eye(2), atol=0.03 * truth)
    assert found[0][1] == pytest.approx((weights.sum() ** 2 / np.sum(weights**2)) - 1)


def test_more_rows_than_are_held_at_once() -> None:
    fed = simulate("poisson", [ROWS_AT_ONCE + 700], seed=3)
    result = fm.fit(fed, "poisson", "np-pooled", scaling="none", cov_type="robust")
    np.testing.assert_allclose(result.bse, reference(fed, "poisson", cov_type="HC0").bse, rtol=1e-6)  # type: ignore[attr-defined]


def test_privacy_error_is_that_of_the_noise() -> None:
    """Over many noises on the same rows the estimate spreads as the privacy column says."""
    fed = simulate("logistic", [300] * 20, seed=5)
    results = [fm.fit(fed, method="fedirls", mu=1.0, scaling="none", clip_norm=2.0, seed=s) for s in range(120)]
    spread = np.std([coef(r) for r in results], axis=0, ddof=1)
    stated = np.mean([r.summary_frame()["privacy"] for r in results], axis=0)
    assert np.abs(np.log(stated / spread)).max() < 0.25, (stated, spread)


@pytest.mark.parametrize(("method", "settings"), [
    ("fedsgd", {"cov_type": "nonrobust", "K": 100, "eta": 1.0}),
    ("fedhybrid", {"cov_type": "nonrobust", "K2": 60, "eta": 1.0}), ("fednewton", {}),
    ("fedsgd", {"cov_type": "robust", "K": 100, "eta": 1.0}),
])  # fmt: skip
def test_privacy_error_of_other_methods(method: str, settings: dict[str, object]) -> None:
    fed = simulate("logistic", [400] * 19, seed=5)
    results = [fm.fit(fed, method=method, mu=2.0, scaling="none", clip_norm=2.0, seed=s, **settings) for s in range(60)]  # type: ignore[arg-type]
    spread = np.std([coef(r) for r in results], axis=0, ddof=1)
    stated = np.mean([r.summary_frame()["privacy"] for r in results], axis=0)
    assert abs(np.log(stated / spread).mean()) < 0.2, (stated, spread)
    assert np.abs(np.log(stated / spread)).max() < 0.4, (stated, spread)


def test_linear_regression_by_moments_has_them_free() -> None:
    fed = simulate("linear", [400] * 10, seed=5)
    results = [fm.fit(fed, "linear", "fedstats", mu=1.0, scaling="none", clip_norm=6.0, seed=s) for s in range(100)]
    assert results[0].covariance.cov_type == "nonrobust"
    spread = np.std([coef(r) for r in results], axis=0, ddof=1)
    stated = np.mean([r.summary_frame()["privacy"] for r in results], axis=0)
    assert np.abs(np.log(stated / spread)).max() < 0.3, (stated, spread)
    sampling = np.mean([r.summary_frame()["sampling"] for r in results], axis=0)
    np.testing.assert_allclose(sampling, reference(fed, "linear").bse, rtol=0.25)  # type: ignore[attr-defined]


def test_a_round_for_standard_errors_is_in_the_schedule_and_in_the_report() -> None:
    fed = simulate("logistic", [300] * 6, seed=1)
    plain = fm.fit(fed, method="fedsgd", mu=2.0, scaling="none", seed=1)
    asked = fm.fit(fed, method="fedsgd", mu=2.0, scaling="none", seed=1, cov_type="nonrobust")
    assert asked.privacy.mu == pytest.approx(2.0, rel=1e-12)
    assert asked.communication.rounds == plain.communication.rounds + 1
    shares = asked.privacy.by_purpose
    names = ("mean curvature at the estimate", "second moments of scores")
    assert sum(shares[name] for name in names) == pytest.approx(SHARE, rel=1e-9)
    assert not any(name in plain.privacy.by_purpose for name in names)
    assert asked.privacy.certified


@pytest.mark.parametrize("swap", range(6))
def test_one_row_moves_the_spread_no_more_than_its_sensitivity(swap: int) -> None:
    rng = np.random.default_rng(swap)
    model = model_named("poisson" if swap % 2 else "logistic")
    n, clipping = 7, Clipping("consistent", 1.5, 2.0)
    X, y = rng.standard_normal((n, 3)) * 10.0 ** rng.integers(-2, 3), rng.integers(0, 2, n).astype(float)
    other, count = X.copy(), y.copy()
    other[0], count[0] = 50 * rng.standard_normal(3), 1 - y[0]
    theta, penalty = rng.standard_normal((1, 4)), np.zeros((1, 4))
    found = []
    for rows, target in ((X, y), (other, count)):
        data = Federation.from_arrays(rows, target, ["a"] * n).rows(target, np.zeros(3), np.ones(3), True)
        sites = np.zeros(1, dtype=np.int64)
        found.append((model.mean_curvatures(data, sites, theta, clipping, penalty),
                      model.mean_score_squares(data, sites, theta, clipping)))  # type: ignore[attr-defined]  # fmt: skip
    limits = ScoreMoments().sensitivity(np.array([float(n)]), clipping)[:, 0]
    for before, after, limit in zip(*found, limits, strict=True):
        assert np.linalg.norm(before - after) <= limit * (1 + 1e-9)


# -- where there is none -----------------------------------------------------------------------------------------


def none_for(result: Result) -> str:
    assert result.covariance.total is None
    uses = (
        result.cov_params, lambda: result.bse, lambda: result.tvalues, lambda: result.pvalues, result.conf_int,
        result.summary_frame, lambda: result.wald_test(np.eye(5)[:1]), lambda: result.get_prediction(np.zeros((1, 4))),
    )  # fmt: skip
    for use in uses:
        with pytest.raises(NoStandardErrors, match="no standard errors"):
            use()
    assert "std err" not in result.summary()
    reason = result.covariance.reason
    assert result.to_dict()["covariance"] == {"cov_type": None, "reason": reason}
    assert result.cov_description == reason[0].upper() + reason[1:] + "."
    return reason


def test_linear_regression_lacks_its_dispersion_and_says_what_would_release_it() -> None:
    fed = simulate("linear", [400] * 5, seed=1)
    why = none_for(fm.fit(fed, "linear", "fedirls", seed=1, scaling="none"))
    assert "cov_type='nonrobust'" in why and "curvature" not in why  # it has that
    assert fm.fit(fed, "linear", "fedirls", seed=1, scaling="none", cov_type="nonrobust").covariance.total is not None


def test_descent_releases_no_curvature_and_says_what_would() -> None:
    fed = simulate("logistic", [200] * 5, seed=1)
    why = none_for(fm.fit(fed, method="fedsgd", seed=1, scaling="none"))
    assert "cov_type='nonrobust'" in why and "5 %" in why


def test_a_descent_that_has_not_arrived_has_none() -> None:
    fed = simulate("logistic", [2000] * 5, seed=1)
    why = none_for(fm.fit(fed, method="fedsgd", seed=1, scaling="none", K=10, cov_type="nonrobust"))
    assert "short of where they lead" in why


def test_a_curvature_that_drowns_has_none() -> None:
    fed = simulate("logistic", [40] * 3, seed=1)
    assert "drowns" in none_for(fm.fit(fed, method="fedirls", mu=0.3, seed=1, scaling="none", clip_norm=2.0))


def test_a_curvature_must_be_twice_its_noise() -> None:
    curvature = np.diag([1.0, 0.3])
    np.testing.assert_allclose(usable_inverse(curvature, 0.07, None), np.linalg.inv(curvature))  # noise of 0.14
    with pytest.raises(NoStandardErrors, match="drowns"):
        usable_inverse(curvature, 0.08, None)  # noise of 0.16


def test_a_last_step_that_was_too_long_has_none() -> None:
    """Small sites wander far in their local steps, and one Newton step does not bring their average home."""
    fed = simulate("poisson", [50] * 400, seed=1)
    pooled = fm.fit(fed, "poisson", "np-pooled")
    result = fm.fit(fed, "poisson", "fednewton", mu=2.0, seed=0)
    assert np.abs((coef(result) - coef(pooled)) / pooled.bse).max() > 5
    assert result.covariance.total is None
    assert "the last Newton step was so long" in result.cov_description
    assert fm.fit(fed, "poisson", "fedirls", mu=2.0, seed=0).covariance.total is not None
    linear = simulate("linear", [50] * 400, seed=1)  # curvature is the same everywhere: one step is enough
    assert fm.fit(linear, "linear", "fedirls", mu=4.0, R=1, cov_type="nonrobust", seed=0).covariance.total is not None


@pytest.mark.parametrize("model", ["logistic", "poisson"])
def test_a_newton_step_misses_by_about_what_is_expected(model: str) -> None:
    X = np.column_stack([np.ones(20_000), np.random.default_rng(3).standard_normal((20_000, 4))])
    truth, ways = np.array([0.3, 0.4, -0.3, 0.2, 0.1]), np.random.default_rng(4).standard_normal((30, 5))
    mean = {"logistic": lambda t: 1 / (1 + np.exp(-X @ t)), "poisson": lambda t: np.exp(X @ t)}[model]

    def curvature(theta: np.ndarray) -> np.ndarray:
        means = mean(theta)
        return X.T @ ((means * (1 - means) if model == "logistic" else means)[:, None] * X) / len(X)

    ratios = []
    for way in 0.2 * ways / np.linalg.norm(ways, axis=1)[:, None]:
        start = truth + way
        step = np.linalg.solve(curvature(start), X.T @ (mean(start) - mean(truth)) / len(X))
        miss = start - step - truth
        path = Linearization(curvature(start), np.eye(5), start - step, start, [])
        path.stepped = True
        squared = float(miss @ path.curvature @ miss)
        bend = model_named(model).curvature_slope / float(path.curvature[0, 0])
        unit = np.linalg.inv(path.curvature) / 5  # a covariance that is one in the norm of the curvature
        path.check_straight(100 * squared * unit, bend)  # a variance of a hundred times the miss would hide it
        with pytest.raises(NoStandardErrors):
            path.check_straight(squared * unit, bend)
        ratios.append(squared / ((step @ path.curvature @ step) ** 2 * bend / 4))
    assert 0.1 < np.median(ratios) < 3, ratios


def test_averages_have_them_only_where_their_bias_is_small() -> None:
    small = fm.fit(simulate("logistic", [60] * 40, seed=1), method="fedavg", mu=2.0, seed=1, scaling="none")
    assert "bias of averaging" in none_for(small)
    few = simulate("logistic", [60] * 5, seed=1)
    asked = fm.fit(few, method="fedavg", mu=8.0, seed=1, scaling="none", cov_type="nonrobust")
    assert "bias of averaging" in none_for(asked)
    large = fm.fit(simulate("poisson", [4000] * 20, seed=1), "poisson", "fedavg", mu=8.0, seed=1, scaling="none")
    assert large.covariance.cov_type == "cluster" and large.covariance.includes_privacy
    assert "privacy" not in large.summary_frame()
    assert "together" in large.summary()


@pytest.mark.parametrize(("settings", "reason"), [
    ({"method": "scaffold", "cov_type": "nonrobust"}, "not worked out"),
    ({"method": "fedsgd", "cov_type": "cluster"}, "20 sites"),
    ({"method": "fedirls", "cov_type": "cluster"}, "20 sites"),
    ({"method": "fednewton", "calibration": "paper", "cov_type": "nonrobust"}, "certified"),
    ({"method": "fedsgd", "participation": 0.5, "cov_type": "nonrobust"}, "every site takes part"),
    ({"method": "fedsgd", "cov_type": "bootstrap"}, "choose one of"),
    ({"method": "fednewton", "curvature": "features", "cov_type": "nonrobust"}, "curvature='rows'"),
    ({"method": "fednewton", "split": True, "cov_type": "nonrobust"}, "split=False"),
])  # fmt: skip
def test_a_cov_type_that_cannot_be_had_is_refused(settings: dict[str, object], reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        fm.fit(simulate("logistic", [50] * 5, seed=1), seed=1, **settings)  # type: ignore[arg-type]


def test_none_asked_for() -> None:
    assert "none were asked for" in none_for(fm.fit(simulate("logistic", [50] * 5, 1), cov_type="none", seed=1))


@pytest.mark.parametrize("alpha", [0, 1, -0.5, 0.5, 0.95, 95, math.nan])
def test_alpha_lies_between_0_and_a_half(alpha: float) -> None:
    """0.95 is a level, and taken for alpha would give intervals of 5 %."""
    result = fm.fit(simulate("logistic", [200] * 3, 1), method="np-pooled")
    prediction = result.get_prediction(np.zeros((1, 4)))
    for use in (result.conf_int, result.summary_frame, prediction.summary_frame):
        with pytest.raises(InputError, match=r"alpha=.* must lie between 0 and 0\.5"):
            use(alpha)


# -- many sites --------------------------------------------------------------------------------------------------


def test_the_spread_of_many_sites_is_free_and_close_to_the_model() -> None:
    fed = simulate("logistic", [400] * 60, seed=4)
    free = fm.fit(fed, method="fedirls", mu=2.0, scaling="none", cov_type="cluster", seed=1)
    assert free.covariance.df == pytest.approx(59)
    assert free.communication.rounds == fm.fit(fed, method="fedirls", scaling="none", seed=1).communication.rounds
    np.testing.assert_allclose(free.bse, fm.fit(fed, method="fedirls", scaling="none", seed=1).bse, rtol=0.35)
    assert "P>|t|" in free.summary_frame()


def test_a_few_large_sites_are_few() -> None:
    fed = simulate("logistic", [5000, 5000] + [20] * 30, seed=4)
    assert "a few large sites" in none_for(fm.fit(fed, method="fedirls", cov_type="cluster", scaling="none", seed=1))


def test_overdispersed_counts_show_in_the_sandwich() -> None:
    rng = np.random.default_rng(0)
    X = 0.5 * rng.standard_normal((8000, 4))
    y = rng.poisson(np.exp(TRUTH[0] + X @ TRUTH[1:]) * rng.gamma(1.0, 1.0, 8000)).astype(float)
    fed = Federation.from_arrays(X, y, np.repeat(np.arange(40), 200))
    naive = fm.fit(fed, "poisson", "np-pooled", scaling="none")
    robust = fm.fit(fed, "poisson", "fedirls", mu=8.0, scaling="none", cov_type="robust", seed=1)
    assert robust.covariance.cov_type == "cluster"
    assert (robust.bse > 1.15 * naive.bse).all()
    ref = reference(fed, "poisson", cov_type="HC0")
    assert np.abs(np.log(robust.bse / ref.bse)).mean() < 0.25  # type: ignore[attr-defined]
    usual = fm.fit(fed, "poisson", "fedirls", mu=8.0, scaling="none", seed=1)
    clip_norms = [result.resolved["clip_norm"].bound for result in (robust, usual)]
    assert clip_norms[0] > 1.5 * clip_norms[1]  # what clipping gives back relies on the model, so fewer are clipped


def test_wald_with_few_sites_is_an_f_test() -> None:
    fed = simulate("logistic", MANY, seed=4)
    result = fm.fit(fed, method="fedirls", mu=4.0, scaling="none", cov_type="cluster", seed=1)
    both = result.wald_test(np.eye(5)[1:3])
    assert both.df_num == 2 and math.isfinite(both.df_denom) and 0 <= both.pvalue <= 1
    one = result.wald_test(np.eye(5)[1])
    assert one.pvalue == pytest.approx(result.pvalues.iloc[1], rel=1e-9)
    with pytest.raises(InputError, match="a column for each of the 5"):
        result.wald_test([1, 0])


def test_intervals_for_means_take_frames_and_follow_the_link() -> None:
    fed = simulate("logistic", [300] * 3, seed=4)
    result = fm.fit(fed, method="np-pooled")
    frame = pd.DataFrame(np.zeros((2, 4)), columns=list(result.param_names[1:]))
    found = result.get_prediction(frame).summary_frame()
    assert ((found["lower"] < found["mean"]) & (found["mean"] < found["upper"])).all()
    np.testing.assert_allclose(found["mean"], result.predict(frame))
    assert (result.get_prediction(frame).summary_frame(alpha=0.4)["upper"] < found["upper"]).all()
    assert found.to_numpy().min() > 0 and found.to_numpy().max() < 1


def test_intervals_for_means_keep_the_names_of_rows() -> None:
    result = fm.fit(simulate("logistic", [400] * 10, seed=1), "logistic", "fedirls", 4.0, seed=1)
    rows = pd.DataFrame(np.eye(4)[:2], columns=["x1", "x2", "x3", "x4"], index=["Anna", "Bo"])
    assert list(result.get_prediction(rows).summary_frame().index) == ["Anna", "Bo"]


def test_a_ridge_is_in_the_curvature_and_not_in_the_scores() -> None:
    fed = simulate("logistic", [300] * 3, seed=4)
    X, ridge = fed.design(), 0.3
    result = fm.fit(fed, method="np-pooled", ridge=ridge, scaling="none")
    p = result.predict(X[:, 1:])
    H = (X * (p * (1 - p))[:, None]).T @ X / len(X)
    inverse = np.linalg.inv(H + np.diag([0, *[ridge] * 4]))
    np.testing.assert_allclose(result.cov_params(), inverse @ H @ inverse / len(X), rtol=1e-6)
