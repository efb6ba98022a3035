"""Plans: predictions agree with what runs do, choices keep to limits, and no row is ever read."""

import json
import math
from pathlib import Path

import numpy as np
import pytest

import fedmest as fm
from conftest import coef
from fedmest.core.exceptions import InputError
from fedmest.inference.population import Population, _chi_square
from fedmest.inference.prediction import PredictedPath, Prediction
from fedmest.interface.cli.main import main
from fedmest.methods import METHODS, Method
from fedmest.models import Clipping, model_named
from fedmest.models.simulate import TRUTH, simulate, usual_feature_sd
from fedmest.runs.phases.clip_norm import expected_clipping
from fedmest.runs.planning_problem import Plan, PlanningProblem, choose
from fedmest.runs.settings import Settings
from fedmest.runs.spec import PublicFacts, RunSpec

SLOPES = float(np.linalg.norm(TRUTH[1:]))
TRACED = [m for m in METHODS.values() if m.private and m.propagate_noise is not Method.propagate_noise]


def public_facts(sizes: list[int], features: int = 4) -> PublicFacts:
    names = np.array([f"{i:04d}" for i in range(len(sizes))], dtype=object)
    return PublicFacts(names, np.array(sizes), tuple(f"x{j}" for j in range(features)), "y", {})


def population(model: str) -> Population:
    return Population(model_named(model), 5, float(TRUTH[0]), SLOPES, usual_feature_sd(model))


def expected(
    model: str, method: str, sizes: list[int], mu: float, clip_norm: float | None = None, **options: object
) -> Prediction:
    settings = Settings(scaling="none", clip_norm=clip_norm)
    spec = RunSpec.create(public_facts(sizes), model_named(model), method, mu, settings, options)
    return spec.predict(population(model))


# -- the population ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", ["linear", "logistic", "poisson"])
def test_its_means_are_those_of_drawn_rows(model: str) -> None:
    fed = simulate(model, [400_000], seed=1)
    kind, nodes = model_named(model), population(model).nodes
    y = fed.target.astype(float)
    rows = fed.rows(y, np.zeros(4), np.ones(4), True)
    theta, clipping, one = 0.5 * TRUTH[None], Clipping("consistent", 2.0, 3.0), np.zeros(1, dtype=np.int64)
    half = population(model).truth / 2
    score = kind.mean_scores(rows, one, theta, clipping, np.zeros((1, 5)))[0, 0]
    u = TRUTH[1:] / SLOPES
    np.testing.assert_allclose([score[0], score[1:] @ u], nodes.score(half, clipping)[:2], atol=0.01)
    curvature = kind.mean_curvatures(rows, one, theta, clipping, np.zeros((1, 5)))[0]
    found = nodes.curvature(half, clipping)
    assert population(model).trace(found) == pytest.approx(np.trace(curvature), rel=0.02)
    squares = kind.mean_score_squares(rows, one, theta, clipping)[0]  # type: ignore[attr-defined]
    inner = nodes.score_covariance(half, clipping) + np.outer(nodes.score(half, clipping), nodes.score(half, clipping))
    assert population(model).trace(inner) == pytest.approx(np.trace(squares), rel=0.02)


@pytest.mark.parametrize("model", ["logistic", "poisson"])
def test_the_clip_norm_to_expect_is_the_one_that_a_run_finds(model: str) -> None:
    spec = RunSpec.create(public_facts([400] * 50), model_named(model), "fedirls", 3.0, Settings(scaling="none"))
    result = fm.fit(simulate(model, [400] * 50, seed=1), model, "fedirls", 3.0, scaling="none", seed=1)
    found = result.resolved["clip_norm"].bound
    assert expected_clipping(spec, population(model)).bound == pytest.approx(found, rel=0.1)


@pytest.mark.parametrize("columns", [1, 2, 3, 30])
def test_any_number_of_columns(columns: int) -> None:
    assert 0 < Population(model_named("logistic"), columns).pooled_error / 1e4 < 0.1
    flat = Population(model_named("linear"), columns, 0.0, 0.0)
    assert flat.pooled_error == pytest.approx(columns, rel=3e-3)


@pytest.mark.parametrize("freedom", [1, 5, 320, 321, 345, 1_000, 100_000])
def test_nodes_have_the_moments_of_a_chi_square(freedom: int) -> None:
    nodes, weights = _chi_square(freedom, 3)
    assert weights.sum() == pytest.approx(1, rel=1e-12)
    assert weights @ nodes == pytest.approx(freedom, rel=1e-12)
    assert weights @ (nodes - freedom) ** 2 == pytest.approx(2 * freedom, rel=1e-9)
    assert weights @ (nodes - freedom) ** 3 == pytest.approx(8 * freedom, rel=1e-5)


# -- predictions -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", [m.id for m in TRACED if m.id != "fedstats"])
@pytest.mark.parametrize("model", ["logistic", "poisson"])
def test_a_prediction_is_what_runs_come_to(model: str, method: str) -> None:
    sizes = [150] * 40
    errors = [
        np.sum((coef(fm.fit(simulate(model, sizes, [8, r]), model, method, 1.5, scaling="none", seed=r)) - TRUTH) ** 2)
        for r in range(40)
    ]
    ratio = expected(model, method, sizes, 1.5).mse / np.mean(errors)
    assert 1 / 1.5 < ratio < 1.5, ratio


def test_linear_regression_is_predicted_too() -> None:
    sizes = [200] * 30
    for method in ("fedstats", "fedirls", "fedsgd"):
        errors = [
            np.sum((coef(fm.fit(simulate("linear", sizes, [8, r]), "linear", method, 2.0, scaling="none", seed=r))
                    - TRUTH) ** 2)
            for r in range(30)
        ]  # fmt: skip
        ratio = expected("linear", method, sizes, 2.0).mse / np.mean(errors)
        assert 1 / 1.6 < ratio < 1.6, (method, ratio)


def test_parts_are_what_they_are_called() -> None:
    sizes = [400] * 50
    free = expected("logistic", "fedsgd", sizes, math.inf, K=400)
    assert free.privacy == 0 and free.optimisation < 1e-8
    assert free.sampling == pytest.approx(population("logistic").pooled_error / sum(sizes), rel=1e-3)
    short = expected("logistic", "fedsgd", sizes, math.inf, K=5)
    assert short.optimisation > 0.1
    fives, tens = expected("logistic", "fedirls", sizes, 5.0), expected("logistic", "fedirls", sizes, 10.0)
    assert fives.privacy == pytest.approx(4 * tens.privacy, rel=0.1)
    few, many = (expected("logistic", "fedavg", [40] * m, 2.0, clip_norm=2.0, R=1) for m in (20, 200))
    assert many.bias == pytest.approx(few.bias, rel=0.1)  # no number of sites removes it
    assert many.privacy == pytest.approx(few.privacy / 10, rel=0.1)


def test_traffic_is_that_of_the_run() -> None:
    sizes = [60] * 12
    for scaling in ("none", "private"):
        settings, typical = Settings(scaling=scaling), population("logistic")
        problem = PlanningProblem(public_facts(sizes), model_named("logistic"), 2.0, settings, typical)
        candidate = problem.at("fednewton", {})
        result = fm.fit(simulate("logistic", sizes, 1), "logistic", "fednewton", 2.0, scaling=scaling, seed=1)
        assert (candidate.rounds, candidate.bytes) == (result.communication.rounds, result.communication.bytes)


def test_steps_that_run_away_have_no_finite_error() -> None:
    assert expected("logistic", "fedsgd", [40] * 3, 0.01).mse > 10
    assert expected("linear", "fedsgd", [40] * 3, math.inf, eta=5.0).mse > 1e50


# -- plans -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def advice() -> Plan:
    return fm.plan([400] * 100, 4)


def test_every_method_is_listed_or_left_out_with_a_reason(advice: Plan) -> None:
    private = {m.id for m in METHODS.values() if m.private and m.supports(model_named("logistic"))}
    assert {c.method for c in advice.candidates} | set(advice.left_out) == private
    assert all(advice.left_out.values())
    errors = [c.prediction.mse for c in advice.candidates]
    assert errors == sorted(errors)
    assert advice.best in advice.candidates and advice.best.has_intervals


def test_the_choice_goes_into_fit_as_it_is(advice: Plan) -> None:
    best = advice.best
    for given in (best.settings, best.arguments):
        result = fm.fit(simulate("logistic", [100] * 5, 1), method=best.method, seed=1, **given)
        assert (result.spec.method, result.spec.settings) == (best.spec.method, best.spec.settings)


def test_the_choice_is_expected_to_meet_our_headline(advice: Plan) -> None:
    assert advice.best.prediction.mse <= 1.2 * advice.pooled
    assert advice.lower_bound <= advice.best.prediction.mse


def test_limits_are_kept() -> None:
    few = fm.plan([400] * 100, 4, rounds=5, bounded=True)
    assert all(c.rounds <= 5 for c in few.candidates)
    assert few.left_out["fedsgd"].startswith("takes")
    thin = fm.plan([400] * 100, 4, bytes=100_000, bounded=True)
    assert all(c.bytes <= 100_000 for c in thin.candidates)
    with pytest.raises(InputError, match=r"no method keeps within the limits: .*takes"):
        fm.plan([400] * 100, 4, rounds=1)


@pytest.mark.parametrize("target", [{"half_width": 0.05}, {"mse": 0.002}])
def test_a_target_is_met_with_little_to_spare(target: dict[str, float]) -> None:
    found = fm.plan(400, 4, sites=100, bounded=True, methods=["fedirls", "fednewton"], **target)
    (name, goal), best = next(iter(target.items())), found.best
    value = best.half_width if name == "half_width" else best.prediction.mse
    assert 0.9 * goal <= value <= goal
    assert 0.05 < found.mu < 5


def test_a_target_beyond_the_rows_is_said_to_be() -> None:
    with pytest.raises(InputError, match=r"out of reach.*more rows"):
        fm.plan([50] * 3, 4, half_width=1e-4, methods=["fedirls"])


def test_unequal_sites_may_be_weighted_otherwise() -> None:
    found = fm.plan([3000] * 2 + [10] * 300, 4, mu=0.5, methods=["fedsgd"])
    assert found.best.settings.get("aggregation_weights") == "optimal"


def test_nothing_of_the_rows_enters() -> None:
    """The planner works from public facts, which hold none; and other rows get the same spec."""
    facts = public_facts([120] * 30)
    assert not any(isinstance(value, np.ndarray) and value.size > 30 for value in vars(facts).values())
    chosen = PlanningProblem.typical(facts, model_named("logistic"), 1.0, Settings()).advise().best
    for seed in (1, 2):
        fed = simulate("logistic", [120] * 30, seed)
        result = fm.fit(fed, method="auto", mu=1.0, seed=1)
        assert result.method == chosen.method
        assert vars(result.spec.method) == vars(chosen.spec.method)
        assert result.spec.settings == chosen.spec.settings


def test_auto_hands_the_planner_no_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[object] = []
    real = PlanningProblem.advise
    monkeypatch.setattr(PlanningProblem, "advise", lambda problem: seen.append(problem.data) or real(problem))
    fm.fit(simulate("logistic", [120] * 5, 1), method="auto", seed=1)
    assert [type(facts) for facts in seen] == [PublicFacts]


def test_sites_never_plan(advice: Plan) -> None:
    """A server sends a spec with the method that the plan chose; "auto" itself is no method."""
    text = advice.best.spec.to_json()
    assert RunSpec.from_json(text).method == advice.best.spec.method
    with pytest.raises(InputError, match="there is no method 'auto'"):
        RunSpec.from_json(text.replace(f'"method": "{advice.best.method}"', '"method": "auto"'))


@pytest.mark.parametrize(("call", "reason"), [
    ({"sizes": 400, "features": 4}, "sites"), ({"sizes": [400], "features": 4, "sites": 3}, "sites"),
    ({"sizes": [], "features": 4}, "sizes"), ({"sizes": [10, -1], "features": 4}, "sizes"),
    ({"sizes": [10, 2.5], "features": 4}, "sizes"), ({"sizes": ["a"], "features": 4}, "sizes"),
    ({"sizes": [100], "features": 0}, "features"), ({"sizes": [100], "features": 2, "mu": -1}, "mu=-1"),
    ({"sizes": [100], "features": 2, "model": "multinomial"}, "there are plans for linear, logistic, poisson"),
    ({"sizes": [100], "features": 2, "rounds": 0}, "rounds"), ({"sizes": [100], "features": 2, "mse": -1}, "target"),
    ({"sizes": [100], "features": 2, "mse": 1, "half_width": 1}, "one target"),
    ({"sizes": [100], "features": 2, "methods": ["fedsdg"]}, "fedsdg"),
    ({"sizes": [100], "features": 2, "aggregation_wieghts": "size"}, "did you mean 'aggregation_weights'"),
    ({"sizes": [100], "features": 2, "calibration": "paper"}, "certified"),
    ({"sizes": [100], "features": 2, "participation": 0.5}, "every site takes part"),
    ({"sizes": [100], "features": 2, "feature_sd": -1}, "feature_sd"),
    ({"sizes": [100], "features": 2, "slopes": math.nan}, "slopes"),
])  # fmt: skip
def test_errors_are_named(call: dict[str, object], reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        fm.plan(**call)  # type: ignore[arg-type]


@pytest.mark.parametrize("model", ["linear", "logistic", "poisson", "negative-binomial"])
def test_many_features_have_plans(model: str) -> None:
    """Where a plan needs the gamma function of half as many, it used to overflow: 0 / 0 from 343 on."""
    plans = [fm.plan(20_000, features, model, sites=10) for features in (10, 300, 345, 1_000)]
    excess = [advice.best.prediction.mse / advice.pooled for advice in plans]
    assert 1 <= excess[0] < excess[1] < excess[2] < excess[3] < 3
    for advice in plans:
        assert advice.pooled == pytest.approx(advice.population.columns * plans[0].pooled / 11, rel=0.1)


def test_auto_fits_four_hundred_features() -> None:
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, (600, 400))
    federation = fm.Federation.from_arrays(X, (X[:, 0] > 0).astype(int), np.repeat(["a", "b", "c"], 200))
    result = fm.fit(federation, "logistic", "auto", 2.0, seed=1)
    assert len(result.param_names) == 401
    assert np.isfinite(result.coef_matrix).all()


def test_auto_takes_no_options() -> None:
    with pytest.raises(InputError, match=r"chooses options itself.*K"):
        choose(public_facts([50]), model_named("logistic"), "auto", 2.0, Settings(), {"K": 3})


# -- the command -------------------------------------------------------------------------------------------------


def test_the_command_prints_the_plan(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--sizes", "300", "--sites", "40", "--features", "3", "--methods", "fedirls,fednewton"]) == 0
    out = capsys.readouterr().out
    assert "Choose: fit(..., method='fed" in out and "No row was read" in out and "pooled fit" in out


def test_the_command_reads_sizes_from_a_file_and_speaks_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "sizes.csv"
    file.write_text("site,rows,beds\na,300,10\nb,500,20\n")
    call = ["plan", "--sizes", str(file), "--features", "3", "--mu-for", "0.5", "--methods", "fedirls", "--json"]
    assert main(call) == 0
    content = json.loads(capsys.readouterr().out)
    assert content["rows"] == 800 and content["sites"] == 2
    assert content["methods"][0]["half_width"] <= 0.5 and content["choice"]["method"] == "fedirls"


@pytest.mark.parametrize(("call", "reason"), [
    (["--sizes", "abc", "--features", "3"], "--sizes 'abc'"),
    (["--sizes", "no.csv", "--features", "3"], "no.csv"),
    (["--sizes", "100,200", "--features", "3", "--cov-type", "bootstrap"], "cov_type='bootstrap'"),
    (["--sizes", "100,200", "--features", "3", "--methods", "fedprox"], "fedprox"),
])  # fmt: skip
def test_the_command_names_errors(call: list[str], reason: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", *call]) == 2
    assert reason in capsys.readouterr().err


def test_two_number_columns_need_a_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "sizes.csv"
    file.write_text("patients,beds\n300,10\n")
    assert main(["plan", "--sizes", str(file), "--features", "3"]) == 2
    assert "name the column of sizes 'rows'" in capsys.readouterr().err


def test_standard_errors_that_were_asked_for_are_worth_any_error() -> None:
    """With this budget the least error comes without intervals; whoever asks for a sandwich gets one all the same."""
    sizes = [400] * 100
    free = fm.plan(sizes, 4, "poisson", 1.0, scaling="none", cov_type="none")
    asked = fm.plan(sizes, 4, "poisson", 1.0, scaling="none", cov_type="robust")
    assert asked.best.has_intervals
    assert asked.best.regret > 1.2 * min(c.regret for c in asked.candidates)
    assert free.best.method != asked.best.method


def test_a_newton_step_carries_the_spread_of_its_start_into_the_mean() -> None:
    """Beside the mean of Newton steps from 8,000 starts, to a quarter of it: what is left are terms of higher order."""
    model = model_named("poisson")
    population = Population.typical(model, 3)
    facts = public_facts([10**9, 10**9], features=2)
    spec = RunSpec.create(facts, model, "fednewton", math.inf, Settings(scaling="none"))
    truth, nodes = population.truth, population.nodes
    path = PredictedPath(spec.context, population, Clipping())
    path.mean, path.plain, path.privacy = truth.copy(), truth.copy(), np.diag([0.02, 0.02, 0.0])
    path.newton(spec.schedule.of("estimation")[-1])
    starts = math.sqrt(0.02) * np.random.default_rng(0).standard_normal((4000, 2)) @ np.eye(2, 3)
    ends = [
        theta - np.linalg.solve(nodes.curvature(theta, Clipping()), nodes.score(theta, Clipping()))
        for theta in truth + np.concatenate([starts, -starts])
    ]
    np.testing.assert_allclose((path.mean - truth)[:2], (np.mean(ends, axis=0) - truth)[:2], rtol=0.25)
