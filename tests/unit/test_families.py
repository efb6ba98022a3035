"""Families as values: models are frozen, parameters travel with them, and every family says the same in each role."""

import json
from dataclasses import FrozenInstanceError

import numpy as np
import pytest
import statsmodels.api as sm
from numpy.testing import assert_allclose

import fedmest as fm
from conftest import coef, glm
from fedmest.inference.population import Population
from fedmest.models import FAMILIES, GLM, MODELS, Family, model_from_json, model_named
from fedmest.models.simulate import TRUTH, simulate
from fedmest.runs.settings import Settings
from fedmest.runs.spec import PublicFacts, RunSpec

ETA = np.linspace(-1.5, 1.5, 7)
NAMED = pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
SUPPORTED = pytest.mark.parametrize(
    "family", [family for family in FAMILIES if family.support is not None], ids=lambda family: family.name
)


def defaults(family: Family) -> np.ndarray:
    return np.array([param.default for param in family.params])


# -- one family in its roles ---------------------------------------------------------------------------------


@SUPPORTED
def test_probabilities_of_the_support_sum_to_one_and_have_the_mean_of_the_family(family: Family) -> None:
    assert family.support is not None
    y, chances = family.support(ETA, defaults(family))
    assert_allclose(chances.sum(axis=1), 1.0, atol=1e-6)
    assert_allclose((y * chances).sum(axis=1), family.mean(ETA, defaults(family)), rtol=1e-3, atol=1e-12)


@SUPPORTED
def test_simulated_responses_have_the_mean_of_the_family(family: Family) -> None:
    """200,000 draws at each predictor, seeded; six standard errors of the mean."""
    rng, n = np.random.default_rng(1), 200_000
    for eta in ETA:
        y = family.simulate(np.full(n, eta), rng, defaults(family))
        expected = family.mean(np.array([eta]), defaults(family))[0]
        assert abs(y.mean() - expected) < 6 * y.std() / np.sqrt(n)


@NAMED
def test_the_score_is_the_derivative_of_the_log_likelihood(family: Family) -> None:
    model, rng, h = glm(family.name), np.random.default_rng(2), 1e-6
    eta = 0.5 * rng.standard_normal((model.outputs, 40))
    y = model.simulate(eta.T if family.multiclass else eta[0], rng)
    residuals = eta.copy()
    model.residual(residuals, y, np.full(40, np.inf), False)
    n, scale = len(y), 1.0
    if family.dispersion == "estimate":  # at the variance that maximises the likelihood
        scale = float(np.mean((y - eta[0]) ** 2))
    for c in range(model.outputs):
        for i in range(0, n, 7):
            step = np.zeros_like(eta)
            step[c, i] = h
            slope = (model.loglike((eta + step).T, y) - model.loglike((eta - step).T, y)) / (2 * h)
            assert -slope * scale == pytest.approx(residuals[c, i], abs=2e-6)


@SUPPORTED
def test_plans_and_private_fits_exist_for_every_family_with_a_support(family: Family) -> None:
    plan = fm.plan([300] * 20, features=4, model=family.name, mu=3.0, methods=["fedirls"])
    assert 1.0 < plan.candidates[0].excess < 10.0
    fed = simulate(family.name, [400] * 20, seed=4)
    result = fm.fit(fed, family.name, "fedirls", 6.0, scaling="none", seed=2)
    assert np.abs(coef(result) - TRUTH).max() < 0.3
    assert np.isfinite(result.bse).all()


@NAMED
def test_a_short_audit_does_not_refute_the_claim(family: Family) -> None:
    found = fm.audit("fedirls", family.name, 2.0, games=2000, R=2)
    assert found.certified and not found.refuted
    assert found.mu_exact is None or found.mu_exact <= 2.0 * (1 + 1e-9)


# -- models are values ---------------------------------------------------------------------------------------


def test_models_are_frozen_and_equal_where_family_params_and_classes_are() -> None:
    model = model_named("logistic")
    with pytest.raises(FrozenInstanceError):
        model.classes = ("a", "b")  # type: ignore[misc]
    assert model == model_named("logistic") != model_named("poisson")
    assert model.with_classes(("a", "b")).classes == ("a", "b") and model.classes == ()


def test_a_target_is_encoded_by_the_classes_that_a_model_knows() -> None:
    X = np.arange(8.0)[:, None]
    fed = fm.Federation.from_arrays(X, np.array(list("abcabcab")), np.arange(8) // 4)
    model, y = model_named("multinomial").encode_target(fed)
    assert model.classes == ("a", "b", "c") and model.outputs == 3
    assert y.tolist() == [0, 1, 2, 0, 1, 2, 0, 1]
    fewer = fm.Federation.from_arrays(X, np.array(list("cbcbcbcb")), np.arange(8) // 4)
    again, coded = model.encode_target(fewer)
    assert again == model and coded.tolist() == [2, 1] * 4
    other = fm.Federation.from_arrays(X, np.array(list("abcdabcd")), np.arange(8) // 4)
    with pytest.raises(fm.InputError, match="value d does not fit the multinomial model, which needs one of a, b, c"):
        model.encode_target(other)


@pytest.mark.parametrize("name", ["linear", "logistic", "poisson", "multinomial"])
def test_families_without_parameters_are_identified_by_their_name(name: str) -> None:
    """The text enters the noise key."""
    assert model_named(name).identity == name
    assert "params" not in model_named(name).to_json()


# -- parameters ----------------------------------------------------------------------------------------------


def test_parameters_are_given_by_name_or_in_the_text_and_survive_json() -> None:
    model = MODELS["negative-binomial"](dispersion=0.5)
    assert model == model_named("negative-binomial", dispersion=0.5)
    assert model == model_named("negative-binomial(dispersion=0.5)") == model_named(model.identity)
    assert model_from_json(json.loads(json.dumps(model.to_json()))) == model
    assert model != model_named("negative-binomial")


def test_parameters_travel_in_the_spec_of_a_run_and_set_its_noise_apart() -> None:
    fed = simulate("negative-binomial", [30, 40], seed=1)
    models = [model_named("negative-binomial", dispersion=alpha) for alpha in (0.5, 2.0)]
    specs = [RunSpec.create(PublicFacts.of(fed), model, "fedirls", 1.0, Settings()) for model in models]
    assert specs[0].noise_key != specs[1].noise_key
    assert [RunSpec.from_json(spec.to_json()).model for spec in specs] == models


@pytest.mark.parametrize(
    ("text", "params", "match"),
    [
        ("negative-binomial(dispersion=0)", {}, "must be a number from 0.001 to 1000"),
        ("negative-binomial(dispersion=nan)", {}, "must be a number"),
        ("negative-binomial(dispersion=x)", {}, r"write parameters as negative-binomial\(name=number\)"),
        ("negative-binomial(alpha=1)", {}, "no parameter 'alpha'; its parameters are dispersion"),
        ("negative-binomial", {"dispersion": True}, "must be a number"),
        ("poisson(dispersion=1)", {}, "no parameter 'dispersion'; it has no parameters"),
        ("mnist-cnn(width=3)", {}, "no parameter 'width'"),
        ("gamma", {}, "there is no model 'gamma'"),
    ],
)
def test_what_is_wrong_with_a_model_is_said(text: str, params: dict[str, object], match: str) -> None:
    with pytest.raises(fm.InputError, match=match):
        model_named(text, **params)


@pytest.mark.parametrize("alpha", [0.05, 0.5, 3.0])
def test_negative_binomial_fits_equal_statsmodels_at_every_dispersion(alpha: float) -> None:
    model = MODELS["negative-binomial"](dispersion=alpha)
    fed = simulate(model, [300, 500, 200], seed=7)
    ref = sm.GLM(fed.target, fed.design(), sm.families.NegativeBinomial(alpha=alpha)).fit(tol=1e-14, maxiter=200)
    for method in ({"method": "np-pooled"}, {"method": "fedirls", "mu": np.inf, "R": 15}):
        result = fm.fit(fed, model, **method)
        assert_allclose(coef(result), ref.params, atol=1e-6)
        assert_allclose(result.bse, ref.bse, rtol=1e-5)
    assert result.loglike(fed) == pytest.approx(ref.llf, rel=1e-9)
    assert_allclose(result.predict(np.eye(4)), ref.predict(np.column_stack([np.ones(4), np.eye(4)])), rtol=1e-6)


def test_the_sandwich_of_the_negative_binomial_model_has_the_expected_curvature() -> None:
    fed = simulate("negative-binomial", [300, 200, 400], seed=3)
    result = fm.fit(fed, "negative-binomial", "np-pooled", scaling="none", cov_type="robust")
    X, m = fed.design(), np.exp(fed.design() @ coef(result))
    scores = ((m - fed.target) / (1 + m))[:, None] * X
    bread = np.linalg.inv((X * (m / (1 + m))[:, None]).T @ X)
    assert_allclose(result.cov_params(), bread @ (scores.T @ scores) @ bread, rtol=1e-6)


def test_a_population_of_a_model_with_long_tails_stays_small() -> None:
    model = MODELS["negative-binomial"](dispersion=1000.0)
    assert isinstance(model, GLM)
    y, chances = model.support(np.array([0.0, 3.0]))
    assert y.shape[1] < 250 and np.isfinite(chances).all()
    assert Population.typical(model, 5).pooled_error > 0
