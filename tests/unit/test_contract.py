"""One contract for every method in the registry, over every model that it takes."""

import dataclasses
import inspect
import json
import math
from collections.abc import Iterator
from typing import Any

import numba
import numpy as np
import pytest

import fedmest as fm
from conftest import ALL_MODELS, CLASSES, Simulated, coef, simulate
from fedmest.methods import METHODS
from fedmest.models import model_named
from fedmest.queries.schedule import PublicContext, Step

SIZES = (70, 90, 150, 110, 100, 131)
QUICK = {"K": 4, "R": 2, "K1": 3, "K2": 3}
PAIRS = [
    (name, model) for name, method in METHODS.items() for model in ALL_MODELS if method.supports(model_named(model))
]
PRIVATE_PAIRS = [(name, model) for name, model in PAIRS if METHODS[name].private]
every_pair = pytest.mark.parametrize(("method", "model"), PAIRS)
every_private_pair = pytest.mark.parametrize(("method", "model"), PRIVATE_PAIRS)


def options_of(method: str) -> dict[str, Any]:
    return {k: v for k, v in QUICK.items() if k in {f.name for f in dataclasses.fields(METHODS[method])}}  # type: ignore[arg-type]


def data(model: str) -> Simulated:
    return simulate(model, len(SIZES), SIZES, d=4, seed=6)


def run(fed: fm.Federation, model: str, method: str, seed: int | None = 1, **settings: Any) -> fm.Result:
    return fm.fit(fed, model, method, settings.pop("mu", 3.0), seed=seed, **options_of(method), **settings)


@pytest.fixture
def two_threads() -> Iterator[None]:
    before = numba.get_num_threads()
    numba.set_num_threads(min(2, numba.config.NUMBA_NUM_THREADS))
    yield
    numba.set_num_threads(before)


@every_pair
@pytest.mark.parametrize("intercept", [True, False])
def test_estimates_have_the_shape_of_the_model_and_are_finite(method: str, model: str, intercept: bool) -> None:
    case = data(model)
    result = run(case.fed, model, method, fit_intercept=intercept)
    d = 3 + intercept
    assert coef(result).shape == ((CLASSES, d) if model == "multinomial" else (d,))
    assert np.isfinite(coef(result)).all()
    assert result.param_names == (("intercept",) if intercept else ()) + case.fed.features
    assert result.params.to_numpy().tolist() == result.coef_matrix.ravel().tolist()
    assert all(step.shape == result.coef_matrix.shape for step in result.history)
    assert result.communication.rounds == len({r.round for r in result.privacy.releases}) > 0
    if model == "multinomial":
        np.testing.assert_allclose(coef(result).sum(axis=0), 0.0, atol=1e-9)


@every_pair
def test_the_same_seed_gives_the_same_estimate_to_the_last_bit(method: str, model: str) -> None:
    fed = data(model).fed
    np.testing.assert_array_equal(coef(run(fed, model, method)), coef(run(fed, model, method)))


@every_private_pair
def test_another_seed_or_none_gives_another_estimate(method: str, model: str) -> None:
    fed = data(model).fed
    one = coef(run(fed, model, method))
    assert (coef(run(fed, model, method, seed=2)) != one).all()
    assert (coef(run(fed, model, method, seed=None)) != coef(run(fed, model, method, seed=None))).all()


@every_pair
def test_the_order_of_rows_and_sites_does_not_matter(method: str, model: str) -> None:
    """Sites are known by name; within a site only the order of a sum changes. Text names sort as text."""
    case = data(model)
    names = np.array([f"hospital {i}" for i in range(len(SIZES))])[case.sites]
    shuffle = np.random.default_rng(0).permutation(len(case.y))
    tidy = fm.Federation.from_arrays(case.X, case.y, names)
    mixed = fm.Federation.from_arrays(case.X[shuffle], case.y[shuffle], names[shuffle])
    public = {"clip_norm": 2.0, "scaling": "none"}
    one, other = (coef(run(fed, model, method, **public)) for fed in (tidy, mixed))
    np.testing.assert_allclose(one, other, rtol=1e-12, atol=1e-12)
    # with private scales and clip norm, too; at small budgets so few rows give Poisson steps that magnify rounding
    one, other = (coef(run(fed, model, method, mu=30.0)) for fed in (tidy, mixed))
    np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-9)


def test_shuffled_sites_keep_their_halves_when_rows_are_split() -> None:
    """Halves are drawn by a row's place within its site, so here the order within sites is kept."""
    case = data("logistic")
    order = np.argsort(np.random.default_rng(1).permutation(len(SIZES))[case.sites], kind="stable")
    mixed = fm.Federation.from_arrays(case.X[order], case.y[order], case.sites[order])
    for settings in ({"calibration": "paper"}, {"split": True}):
        one = coef(run(case.fed, "logistic", "fednewton", **settings))
        np.testing.assert_allclose(coef(run(mixed, "logistic", "fednewton", **settings)), one, rtol=1e-12)


@every_pair
def test_the_number_of_threads_does_not_change_a_bit(method: str, model: str, two_threads: None) -> None:
    fed = data(model).fed
    two = coef(run(fed, model, method))
    numba.set_num_threads(1)
    np.testing.assert_array_equal(coef(run(fed, model, method)), two)


@pytest.mark.parametrize("model", ALL_MODELS)
@pytest.mark.parametrize(("method", "twin"), [("fedavg", "np-fedavg"), ("scaffold", "np-scaffold")])
def test_without_privacy_a_method_equals_its_non_private_twin(method: str, twin: str, model: str) -> None:
    fed = data(model).fed
    np.testing.assert_array_equal(coef(run(fed, model, method, mu=math.inf)), coef(run(fed, model, twin)))


@pytest.mark.parametrize("method", ["fedstats", "fednewton"])
def test_without_privacy_one_round_methods_of_the_linear_model_equal_the_pooled_fit(method: str) -> None:
    fed = data("linear").fed
    np.testing.assert_allclose(
        coef(run(fed, "linear", method, mu=math.inf)),
        coef(run(fed, "linear", "np-pooled")),
        rtol=0,
        atol=1e-9,
    )


@every_private_pair
def test_without_privacy_nothing_is_clipped_and_no_noise_is_added(method: str, model: str) -> None:
    """Seed and bound leave no trace."""
    fed = data(model).fed
    one = run(fed, model, method, mu=math.inf, seed=1, clip_norm=1e-6)
    np.testing.assert_array_equal(coef(one), coef(run(fed, model, method, mu=math.inf, seed=2)))
    assert all((r.sd == 0).all() for r in one.privacy.releases)
    assert math.isinf(one.privacy.mu)
    assert not one.privacy.certified
    assert "No privacy guarantee" in one.privacy.statement()


@every_private_pair
def test_a_huge_budget_and_a_huge_bound_approach_the_non_private_fit(method: str, model: str) -> None:
    """mu = 1e9, B beyond every score, eta B within the clipping's reach: noise of about 1e-7 is left.

    The linear model's curvature is clipped at |x|^2 = 2 d whatever B is, so its Newton steps stay slightly
    too long.
    """
    fed = data(model).fed
    short = {"eta": 0.01} if "eta" in {f.name for f in dataclasses.fields(METHODS[method])} else {}  # type: ignore[arg-type]
    close = run(fed, model, method, mu=1e9, clip_norm=100.0, scaling="none", **short)
    exact = run(fed, model, method, mu=math.inf, scaling="none", **short)
    clipped = model == "linear" and method in ("fednewton", "fedirls")
    np.testing.assert_allclose(coef(close), coef(exact), rtol=0, atol=5e-2 if clipped else 1e-4)


@every_pair
def test_the_schedule_is_written_from_public_facts_alone(method: str, model: str) -> None:
    """`schedule` takes a PublicContext, which holds no rows; the same context gives the same schedule."""
    assert list(inspect.signature(METHODS[method].schedule).parameters) == ["self", "context"]
    facts = {f.name for f in dataclasses.fields(PublicContext)}
    assert facts == {"model", "sizes", "columns", "mu", "calibration", "clip_rule", "budget_schedule",
                     "aggregation_weights", "weight_constant", "participation", "seed"}  # fmt: skip
    glm = model_named(model)
    context = PublicContext(glm, np.array(SIZES), 4, 2.0 if METHODS[method].private else math.inf)
    one, other = (METHODS[method](**options_of(method)).schedule(context) for _ in range(2))
    assert len(one) == len(other) > 0
    for a, b in zip(one, other, strict=True):
        assert a.query == b.query
        np.testing.assert_array_equal(a.mus, b.mus)
        np.testing.assert_array_equal(a.sites, b.sites)
        assert a.weights.sum() == pytest.approx(1.0)


@every_pair
def test_results_predict_and_turn_into_json(method: str, model: str) -> None:
    case = data(model)
    result = run(case.fed, model, method)
    predicted = result.predict(case.X[:7])
    assert predicted.shape == ((7, CLASSES) if model == "multinomial" else (7,))
    eta = case.design[:7] @ result.coef_matrix.T
    np.testing.assert_allclose(predicted, np.squeeze(result.model.mean(eta)), rtol=1e-12)
    with pytest.raises(fm.InputError, match="feature columns"):
        result.predict(case.X[:, :2])
    plain = json.loads(json.dumps(result.to_dict(), allow_nan=False))
    assert plain["method"] == method
    assert plain["privacy"]["mu"] == (pytest.approx(3.0) if METHODS[method].private else None)
    assert len(result.summary().splitlines()) > 5


@every_private_pair
@pytest.mark.parametrize("calibration", ["certified", "paper"])
def test_the_statement_names_unit_neighbours_budget_and_whether_it_is_certified(
    method: str, model: str, calibration: str
) -> None:
    if calibration == "paper" and not METHODS[method].in_paper:
        with pytest.raises(fm.InputError, match="not in the paper"):
            run(data(model).fed, model, method, calibration=calibration)
        return
    result = run(data(model).fed, model, method, calibration=calibration)
    text = result.privacy.statement()
    assert "one row of one site" in text
    assert "replaced by any other row" in text
    assert "3-Gaussian" in text
    assert "1e-6" in text
    assert "Not covered" in text
    assert "%" in text
    assert ("not certified" in text) == (calibration == "paper")
    assert result.privacy.certified == (calibration == "certified")
    if calibration == "paper":
        assert "read off the data" in text
        assert ("tau_1" in text) == (method == "fednewton")
    assert "\n" not in text


@pytest.mark.parametrize("method", ["fedsgd", "fedavg", "fedhybrid", "fednewton", "scaffold"])
def test_the_papers_calibration_is_never_called_certified_even_with_a_public_bound(method: str) -> None:
    result = run(data("logistic").fed, "logistic", method, calibration="paper", clip_norm=1.0, scaling="none")
    assert not result.privacy.certified
    assert "not certified" in result.privacy.statement()


@every_private_pair
def test_reading_scales_off_the_data_is_never_called_certified(method: str, model: str) -> None:
    result = run(data(model).fed, model, method, scaling="data")
    assert not result.privacy.certified
    assert any("scales" in caveat for caveat in result.privacy.caveats)


@every_private_pair
def test_sites_of_one_row_and_sites_with_fewer_rows_than_coefficients_take_part(method: str, model: str) -> None:
    case = simulate(model, 7, (1, 2, 3, 400, 1, 64, 5), d=4, seed=9)
    for settings in ({}, {"calibration": "paper"}, {"aggregation_weights": "optimal"}, {"fit_intercept": False}):
        if "calibration" in settings and not METHODS[method].in_paper:
            continue
        result = run(case.fed, model, method, **settings)
        assert np.isfinite(coef(result)).all()
        assert result.privacy.mu == pytest.approx(3.0)


def test_no_schedule_may_announce_more_than_was_agreed(monkeypatch: pytest.MonkeyPatch) -> None:
    class Spender(METHODS["fedsgd"]):  # type: ignore[misc]
        id = "spender"

        def schedule(self, context: PublicContext) -> list[Step]:
            return super().schedule(dataclasses.replace(context, mu=1.001 * context.mu))  # type: ignore[no-any-return]

    monkeypatch.setitem(METHODS, Spender.id, Spender)
    fed = simulate("logistic", 3, 40).fed
    with pytest.raises(
        fm.ScheduleError, match=r"announces releases that cost mu = 2\.002, more than the 2 of this run"
    ):
        fm.fit(fed, "logistic", "spender", 2.0, clip_norm=1.0, scaling="none", seed=1)
