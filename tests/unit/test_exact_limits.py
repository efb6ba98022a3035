"""Without privacy every method has a limit that is known exactly; each is derived where it is tested."""

import math
import warnings

import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm
from sklearn.linear_model import LogisticRegression, Ridge

import fedmest as fm
from conftest import ALL_MODELS, CLASSES, Simulated, coef, curvature, glm, gradient, simulate
from fedmest.queries.linalg import newton_direction

INF = float("inf")
UNEQUAL = (1, 3, 250, 40, 90, 17)  # one row; fewer rows than coefficients; wildly unequal
STEP = {
    "linear": 1.0,
    "logistic": 4.0,
    "poisson": 0.6,
    "multinomial": 4.0,
    "negative-binomial": 1.5,
}  # eta that converges quickly


def data(model: str, seed: int = 3) -> Simulated:
    return simulate(model, len(UNEQUAL), UNEQUAL, seed=seed)


def by_statsmodels(model: str, X: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Maximum likelihood for a design matrix, intercept included if it has one."""
    if model == "linear":
        return sm.OLS(y, X).fit().params
    if model == "negative-binomial":
        return sm.GLM(y, X, sm.families.NegativeBinomial(alpha=1.0)).fit(tol=1e-14, maxiter=200).params
    kind = {"logistic": sm.Logit, "poisson": sm.Poisson}[model]
    with warnings.catch_warnings():
        # its own test of convergence is coarser than the tolerance asked for here
        warnings.simplefilter("ignore")
        return kind(y, X).fit(method="newton", maxiter=200, tol=1e-14, disp=False).params


def by_scikit_learn(X: np.ndarray, y: np.ndarray, penalty: float = INF, intercept: bool = True) -> np.ndarray:
    """Multinomial (or logistic) maximum likelihood with classes summing to zero; `penalty` is
    scikit-learn's C.
    """
    found = LogisticRegression(C=penalty, tol=1e-13, max_iter=10_000, solver="newton-cg", fit_intercept=intercept).fit(
        X, y
    )
    theta = np.column_stack([found.intercept_, found.coef_]) if intercept else found.coef_
    return theta - theta.mean(axis=0) if len(theta) > 1 else theta[0]


def by_newton(model: str, X: np.ndarray, y: np.ndarray, iterations: int = 40) -> np.ndarray:
    """Pooled maximum likelihood by plain Newton steps in NumPy, (outputs, d), classes summing to zero."""
    theta = np.zeros((CLASSES if model == "multinomial" else 1, X.shape[1]))
    for _ in range(iterations):
        step = np.linalg.pinv(curvature(model, X, theta), rcond=1e-10) @ gradient(model, X, y, theta).ravel()
        theta = theta - step.reshape(theta.shape)
    return theta


def squeezed(theta: np.ndarray) -> np.ndarray:
    return theta if len(theta) > 1 else theta[0]


def centred(theta: np.ndarray) -> np.ndarray:
    return theta - theta.mean(axis=0) if theta.ndim == 2 and len(theta) > 1 else theta


# -- the pooled fit --------------------------------------------------------------------------------


@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize("model", ["linear", "logistic", "poisson", "negative-binomial"])
def test_np_pooled_equals_statsmodels_in_every_coefficient(model: str, intercept: bool) -> None:
    case = data(model)
    result = fm.fit(case.fed, model, "np-pooled", fit_intercept=intercept)
    wanted = by_statsmodels(model, case.design if intercept else case.X, case.y)
    np.testing.assert_allclose(coef(result), wanted, rtol=0, atol=1e-6)


@pytest.mark.parametrize("intercept", [True, False])
def test_np_pooled_multinomial_equals_scikit_learn_without_penalty(intercept: bool) -> None:
    case = data("multinomial")
    result = fm.fit(case.fed, "multinomial", "np-pooled", fit_intercept=intercept)
    wanted = by_scikit_learn(case.X, case.y, intercept=intercept)
    np.testing.assert_allclose(coef(result), wanted, rtol=0, atol=1e-6)


@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize("model", ["linear", "logistic", "poisson", "negative-binomial"])
def test_np_pooled_on_raw_scales_equals_statsmodels(model: str, intercept: bool) -> None:
    """Features in units from 1e-3 to 1e5, far from zero: coefficients come back on those units."""
    case = data(model)
    scale, shift = np.array([1e-3, 1.0, 1e3, 1e5]), np.array([2e-3, -30.0, 5e3, 0.0])
    X = case.X * scale + (shift if intercept else 0.0)
    fed = fm.Federation.from_arrays(X, case.y, case.sites)
    theta = coef(fm.fit(fed, model, "np-pooled", fit_intercept=intercept))
    if not intercept:
        np.testing.assert_allclose(theta, by_statsmodels(model, case.X, case.y) / scale, rtol=1e-6)
        return
    # statsmodels itself loses digits on such a design: fit the standardised one and carry it over by hand
    plain = by_statsmodels(model, case.design, case.y)
    slopes = plain[1:] / scale
    wanted = np.concatenate([[plain[0] - slopes @ shift], slopes])
    np.testing.assert_allclose(theta, wanted, rtol=1e-6, atol=1e-6 * np.abs(wanted).min())


@pytest.mark.parametrize("model", ALL_MODELS)
def test_np_pooled_is_a_root_of_the_pooled_score(model: str) -> None:
    case = data(model)
    theta = np.atleast_2d(coef(fm.fit(case.fed, model, "np-pooled")))
    assert np.abs(gradient(model, case.design, case.y, theta)).max() < 1e-9


@pytest.mark.parametrize("method", ["np-pooled", "fedstats"])
def test_linear_ridge_equals_scikit_learn_and_the_closed_form(method: str) -> None:
    """Penalty ridge/2 |slopes|^2 on the mean loss: (X'X/N + ridge E) theta = X'y/N, E without the
    intercept.
    """
    case = data("linear")
    theta = coef(fm.fit(case.fed, "linear", method, INF, ridge=0.7, scaling="none"))
    N, X = len(case.y), case.design
    closed = np.linalg.solve(X.T @ X / N + 0.7 * np.diag([0, 1, 1, 1, 1]), X.T @ case.y / N)
    np.testing.assert_allclose(theta, closed, rtol=0, atol=1e-9)
    other = Ridge(alpha=0.7 * N, tol=1e-12).fit(case.X, case.y)
    np.testing.assert_allclose(theta, [other.intercept_, *other.coef_], rtol=0, atol=1e-6)


@pytest.mark.parametrize("model", ["logistic", "multinomial"])
def test_ridge_of_the_other_models_equals_scikit_learn(model: str) -> None:
    """scikit-learn minimises C sum(loss) + |slopes|^2/2, ours is mean(loss) + ridge |slopes|^2/2: C = 1/(N
    ridge).
    """
    case = data(model)
    theta = coef(fm.fit(case.fed, model, "np-pooled", ridge=0.1, scaling="none"))
    wanted = by_scikit_learn(case.X, case.y, penalty=1 / (0.1 * len(case.y)))
    np.testing.assert_allclose(theta, wanted, rtol=0, atol=1e-6)


# -- where iterating leads -------------------------------------------------------------------------


@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize("model", ALL_MODELS)
def test_fedsgd_with_many_rounds_reaches_the_pooled_estimate(model: str, intercept: bool) -> None:
    """sum_i (n_i/N) mean score_i is the pooled mean score, so FedSGD is gradient descent on the pooled
    loss.
    """
    case = data(model)
    found = coef(fm.fit(case.fed, model, "fedsgd", INF, K=600, eta=STEP[model], fit_intercept=intercept))
    wanted = by_newton(model, case.design if intercept else case.X, case.y)
    np.testing.assert_allclose(found, centred(squeezed(wanted)), rtol=0, atol=1e-6)


@pytest.mark.parametrize("model", ALL_MODELS)
def test_fedhybrid_reaches_the_pooled_estimate(model: str) -> None:
    """Its second stage is FedSGD, whose limit does not depend on the start."""
    case = data(model)
    found = coef(fm.fit(case.fed, model, "fedhybrid", INF, K1=5, K2=600, eta=STEP[model] / 2))
    np.testing.assert_allclose(found, squeezed(by_newton(model, case.design, case.y)), rtol=0, atol=1e-6)


@pytest.mark.parametrize("model", ALL_MODELS)
def test_fedirls_is_newtons_method_on_the_pooled_loss(model: str) -> None:
    """Averaged parts are those of all rows: one round is -H(0)^-1 g(0), many rounds are the pooled
    estimate.
    """
    case = data(model)
    zero = np.zeros((CLASSES if model == "multinomial" else 1, 5))
    inverse = np.linalg.pinv(curvature(model, case.design, zero), rcond=1e-10)
    step = -(inverse @ gradient(model, case.design, case.y, zero).ravel()).reshape(zero.shape)
    found = coef(fm.fit(case.fed, model, "fedirls", INF, R=1, scaling="none"))
    np.testing.assert_allclose(found, squeezed(step), rtol=0, atol=1e-9)
    found = coef(fm.fit(case.fed, model, "fedirls", INF, R=12))
    np.testing.assert_allclose(found, squeezed(by_newton(model, case.design, case.y)), rtol=0, atol=1e-6)


@pytest.mark.parametrize("model", ALL_MODELS)
def test_np_scaffold_reaches_the_pooled_estimate(model: str) -> None:
    """At the pooled root t with c_i = score_i(t) and c = sum w_i c_i = 0 each local step is score_i(t) -
    c_i + c = 0.

    So the root is a fixed point, and eta is small enough here for it to attract. FedAvg has no such fixed
    point.
    """
    case = simulate(model, 5, (30, 60, 90, 120, 150), seed=5)
    found = coef(fm.fit(case.fed, model, "np-scaffold", K=5, R=400, eta=STEP[model] / 6))
    np.testing.assert_allclose(found, squeezed(by_newton(model, case.design, case.y)), rtol=0, atol=1e-6)
    plain = coef(fm.fit(case.fed, model, "np-fedavg", K=5, R=400, eta=STEP[model] / 6))
    assert np.abs(plain - found).max() > 1e-5


def test_np_fedavg_on_the_linear_model_reaches_the_fixed_point_of_averaged_local_maps() -> None:
    """K local steps are theta -> P_i theta + q_i with P_i = (I - eta A_i)^K, q_i = sum_{k<K} (I - eta
    A_i)^k eta b_i,

    A_i = X_i'X_i/n_i, b_i = X_i'y_i/n_i. The average has the fixed point (I - sum w_i P_i)^-1 sum w_i q_i,
    which is not the pooled estimate.
    """
    case, eta, K = data("linear"), 0.15, 7
    N, d = len(case.y), 5
    P, q = np.zeros((d, d)), np.zeros(d)
    for X, y in case.by_site():
        A, b, w = X.T @ X / len(y), X.T @ y / len(y), len(y) / N
        M = np.eye(d) - eta * A
        P += w * np.linalg.matrix_power(M, K)
        q += w * sum(np.linalg.matrix_power(M, k) for k in range(K)) @ (eta * b)
    fixed = np.linalg.solve(np.eye(d) - P, q)
    found = coef(fm.fit(case.fed, "linear", "np-fedavg", K=K, R=200, eta=eta, scaling="none"))
    np.testing.assert_allclose(found, fixed, rtol=0, atol=1e-9)
    assert np.abs(fixed - by_statsmodels("linear", case.design, case.y)).max() > 1e-4


def test_np_local_gives_each_sites_own_estimate() -> None:
    for model in ("linear", "logistic", "poisson", "negative-binomial"):
        case = simulate(model, 4, (80, 150, 200, 120), seed=8)
        result = fm.fit(case.fed, model, "np-local")
        wanted = np.stack([by_statsmodels(model, X, y) for X, y in case.by_site()])
        assert result.site_params is not None
        np.testing.assert_allclose(result.site_params[:, 0], wanted, rtol=0, atol=1e-6)
        weights = case.fed.sizes / case.fed.sizes.sum()
        np.testing.assert_allclose(coef(result), weights @ wanted, rtol=0, atol=1e-6)


def test_np_local_multinomial_gives_each_sites_own_estimate() -> None:
    case = simulate("multinomial", 3, (150, 250, 200), seed=8)
    result = fm.fit(case.fed, "multinomial", "np-local")
    assert result.site_params is not None
    for found, (X, y) in zip(result.site_params, case.by_site(), strict=True):
        np.testing.assert_allclose(centred(found), by_scikit_learn(X[:, 1:], y), rtol=0, atol=1e-6)


@pytest.mark.parametrize("intercept", [True, False])
def test_fedstats_without_noise_is_ordinary_least_squares(intercept: bool) -> None:
    case = data("linear")
    found = coef(fm.fit(case.fed, "linear", "fedstats", INF, fit_intercept=intercept))
    np.testing.assert_allclose(
        found, by_statsmodels("linear", case.design if intercept else case.X, case.y), rtol=0, atol=1e-6
    )


@pytest.mark.parametrize("K", [1, 50])
def test_fednewton_on_the_linear_model_is_ordinary_least_squares_from_any_start(K: int) -> None:
    """The loss is quadratic and the averaged parts are those of all rows, so one Newton step lands on its
    minimum.

    A site with one row has curvature |x|^2, and unclipped local steps explode there unless eta |x|^2 < 2.
    """
    case = data("linear")
    found = coef(fm.fit(case.fed, "linear", "fednewton", INF, K=K, eta=0.1))
    np.testing.assert_allclose(found, by_statsmodels("linear", case.design, case.y), rtol=0, atol=1e-6)


# -- single steps ----------------------------------------------------------------------------------


@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize("model", ALL_MODELS)
def test_fedavg_with_one_local_step_is_fedsgd(model: str, intercept: bool) -> None:
    """sum_i w_i (theta - eta g_i) = theta - eta sum_i w_i g_i, as the weights sum to one; equal up to
    rounding.
    """
    case = data(model)
    common = {"eta": 0.3, "fit_intercept": intercept}
    one = coef(fm.fit(case.fed, model, "fedavg", INF, K=1, R=12, **common))
    other = coef(fm.fit(case.fed, model, "fedsgd", INF, K=12, **common))
    np.testing.assert_allclose(one, other, rtol=0, atol=1e-13)


def local_steps(case: Simulated, model: str, K: int, eta: float, intercept: bool = True) -> list[np.ndarray]:
    """Theta of every site after K plain gradient steps from zero."""
    thetas = []
    for X, y in case.by_site(intercept):
        theta = np.zeros((CLASSES if model == "multinomial" else 1, X.shape[1]))
        for _ in range(K):
            theta = theta - eta * gradient(model, X, y, theta)
        thetas.append(theta)
    return thetas


def averaged(case: Simulated, thetas: list[np.ndarray]) -> np.ndarray:
    weights = case.fed.sizes / case.fed.sizes.sum()
    return np.einsum("i,icj->cj", weights, np.stack(thetas))


@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize("model", ALL_MODELS)
def test_one_round_of_each_method_equals_its_closed_form(model: str, intercept: bool) -> None:
    """FedSGD: -eta sum w_i g_i(0). FedAvg, SCAFFOLD (no variates yet): average of K local steps.

    FedHybrid: that average, then one pooled gradient step.
    """
    case, eta = data(model), 0.2
    X = case.design if intercept else case.X
    common = {"eta": eta, "scaling": "none", "fit_intercept": intercept}
    start = averaged(case, local_steps(case, model, 3, eta, intercept))
    zero = np.zeros_like(start)
    closed = {
        "fedsgd": -eta * gradient(model, X, case.y, zero),
        "fedavg": start,
        "scaffold": start,
        "fedhybrid": start - eta * gradient(model, X, case.y, start),
    }
    options = {"fedsgd": {"K": 1}, "fedavg": {"K": 3, "R": 1}, "scaffold": {"K": 3, "R": 1},
               "fedhybrid": {"K1": 3, "K2": 1}}  # fmt: skip
    for method, wanted in closed.items():
        found = coef(fm.fit(case.fed, model, method, INF, **common, **options[method]))
        np.testing.assert_allclose(found, squeezed(wanted), rtol=0, atol=1e-12, err_msg=method)


@pytest.mark.parametrize("model", ALL_MODELS)
def test_fednewton_is_one_exact_newton_step_from_the_fedavg_point(model: str) -> None:
    """sum w_i H_i and sum w_i g_i are those of all rows: theta_1 - H^-1 g with H, g pooled at theta_1."""
    case, eta = simulate(model, 5, (40, 80, 200, 120, 60), seed=4), 0.3
    start = averaged(case, local_steps(case, model, 20, eta))
    step = np.linalg.pinv(curvature(model, case.design, start), rcond=1e-10)
    wanted = start - (step @ gradient(model, case.design, case.y, start).ravel()).reshape(start.shape)
    found = coef(fm.fit(case.fed, model, "fednewton", INF, K=20, eta=eta, scaling="none"))
    np.testing.assert_allclose(found, squeezed(wanted), rtol=0, atol=1e-9)


def test_fednewton_sending_steps_averages_the_sites_own_newton_steps() -> None:
    """send="step": sum w_i (theta_1 - H_i^-1 g_i), each site with its own parts."""
    case, eta = simulate("logistic", 4, (60, 80, 200, 120), seed=4), 0.3
    start = averaged(case, local_steps(case, "logistic", 20, eta))
    steps = [
        start - np.linalg.solve(curvature("logistic", X, start), gradient("logistic", X, y, start)[0])[None]
        for X, y in case.by_site()
    ]
    found = coef(fm.fit(case.fed, "logistic", "fednewton", INF, K=20, eta=eta, scaling="none", send="step"))
    np.testing.assert_allclose(found, averaged(case, steps)[0], rtol=0, atol=1e-9)


def test_the_second_scaffold_round_uses_control_variates_as_karimireddy_wrote_them() -> None:
    """Option II: c_i <- c_i - c + (x - y_i)/(K eta), c the weighted mean; local step y -= eta (g_i(y) - c_i
    + c).
    """
    case, eta, K = data("logistic"), 0.2, 3
    weights = case.fed.sizes / case.fed.sizes.sum()
    x = np.zeros((1, 5))
    variates = np.zeros((case.fed.n_sites, 1, 5))
    for _ in range(3):
        common = np.einsum("i,icj->cj", weights, variates)
        local = []
        for i, (X, target) in enumerate(case.by_site()):
            y = x
            for _ in range(K):
                y = y - eta * (gradient("logistic", X, target, y) - variates[i] + common)
            local.append(y)
        variates = np.stack([c - common + (x - y) / (K * eta) for c, y in zip(variates, local, strict=True)])
        x = np.einsum("i,icj->cj", weights, np.stack(local))
    found = coef(fm.fit(case.fed, "logistic", "np-scaffold", K=K, R=3, eta=eta, scaling="none"))
    np.testing.assert_allclose(found, x[0], rtol=0, atol=1e-12)


@pytest.mark.parametrize("model", ALL_MODELS)
def test_the_ridge_enters_every_gradient_step(model: str) -> None:
    """g(theta) + ridge E theta, the intercept left free; two steps, as the first starts at zero."""
    case, eta, ridge = data(model), 0.2, 0.4
    E = np.array([0.0, 1, 1, 1, 1])
    theta = -eta * gradient(model, case.design, case.y, np.zeros((CLASSES if model == "multinomial" else 1, 5)))
    theta = theta - eta * (gradient(model, case.design, case.y, theta) + ridge * E * theta)
    found = coef(fm.fit(case.fed, model, "fedsgd", INF, K=2, eta=eta, ridge=ridge, scaling="none"))
    np.testing.assert_allclose(found, squeezed(theta), rtol=0, atol=1e-12)


@pytest.mark.parametrize("model", ALL_MODELS)
def test_compiled_gradients_and_curvatures_equal_plain_numpy_across_tiles(model: str) -> None:
    """Site sizes on both sides of the tile width, at a theta away from zero."""
    from conftest import glm, pack
    from fedmest.models import Clipping

    sizes = [1, 63, 64, 65, 128, 129]
    case = simulate(model, len(sizes), sizes, d=7, seed=11)
    kind = glm(model)
    rows = pack(case.design, case.y, sizes)
    theta = np.random.default_rng(1).standard_normal((kind.outputs, 7)) * 0.4
    sites = np.arange(len(sizes))
    none = np.zeros_like(theta)
    scores = kind.mean_scores(rows, sites, theta, Clipping(), none)
    curvatures = kind.mean_curvatures(rows, sites, theta, Clipping(), none)
    for i, (X, y) in enumerate(case.by_site()):
        np.testing.assert_allclose(scores[i], gradient(model, X, y, theta), rtol=1e-11, atol=1e-13)
        np.testing.assert_allclose(curvatures[i], curvature(model, X, theta), rtol=1e-11, atol=1e-13)


def test_a_ridge_means_the_same_whatever_the_scaling() -> None:
    case = simulate("logistic", 3, 200, seed=4)
    fits = [coef(fm.fit(case.fed, "logistic", "np-pooled", scaling=how, ridge=0.3)) for how in ("none", "data")]
    np.testing.assert_allclose(*fits, atol=1e-8)


def test_bought_scales_do_not_ruin_a_small_study() -> None:
    """x ~ N(50, 10) in 1,500 rows and ten columns: true slopes 0.1 or 0; twenty seeds, none beyond 0.5."""
    rng = np.random.default_rng(0)
    X = 50 + 10 * rng.standard_normal((1500, 10))
    y = (rng.random(1500) < 1 / (1 + np.exp(-(X[:, 0] - 50) / 10))).astype(float)
    fed = fm.Federation.from_arrays(X, y, np.repeat(["a", "b", "c"], 500))
    for seed in range(20):
        assert np.abs(coef(fm.fit(fed, "logistic", "fedirls", 2.0, seed=seed))[1:]).max() < 0.5


def test_small_units_are_scaled_too() -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal(20_000)
    y = (rng.random(20_000) < 1 / (1 + np.exp(-x))).astype(float)
    fed = fm.Federation.from_arrays(3e-4 * x[:, None], y, np.arange(20_000) % 5)
    assert coef(fm.fit(fed, "logistic", "fedirls", 2.0, seed=1))[1] * 3e-4 == pytest.approx(1.0, abs=0.1)


def test_predictions_take_a_frame_with_text_columns_in_any_order() -> None:
    frame = pd.DataFrame({"site": [1, 1, 1, 2, 2, 2] * 20, "drug": list("abcabc") * 20, "age": range(120)})
    frame["well"] = np.where(np.arange(120) % 7 < 3, "yes", "no")
    result = fm.fit(fm.Federation.from_frame(frame, "well", "site"), "logistic", "np-pooled")
    assert "'yes' against 'no'" in result.summary()
    design = np.column_stack([frame["drug"] == "b", frame["drug"] == "c", frame["age"]]).astype(float)
    np.testing.assert_allclose(result.predict(frame[["age", "drug"]]), result.predict(design))
    with pytest.raises(fm.InputError, match="'drug'"):
        result.predict(frame[["age"]])


# -- many parameters -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", ["logistic", "multinomial"])
def test_the_cap_lies_above_the_curvature_at_every_theta(model: str) -> None:
    data, rng = simulate(model, 1, 200, seed=3), np.random.default_rng(0)
    kind = glm(model)
    moments = data.design.T @ data.design / len(data.y)
    centred = np.eye(CLASSES) - 1 / CLASSES if model == "multinomial" else np.eye(1)
    assert kind.curvature_upper_bound is not None
    cap = kind.curvature_upper_bound * np.kron(centred, moments)
    for size in (0.0, 0.5, 3.0):
        theta = size * rng.standard_normal((len(centred), data.design.shape[1]))
        gap = np.linalg.eigvalsh(cap - curvature(model, data.design, theta))
        assert gap.min() > -1e-12
    at_zero = np.linalg.norm(gradient(model, data.design[:1], data.y[:1], np.zeros((len(centred), 5))))
    assert at_zero == pytest.approx(kind.first_residual() * np.linalg.norm(data.design[0]))


@pytest.mark.parametrize("model", ["logistic", "multinomial"])
def test_newton_steps_by_features_reach_the_pooled_fit_without_privacy(model: str) -> None:
    fed = simulate(model, 4, 300, seed=5).fed
    pooled = fm.fit(fed, model, "np-pooled", scaling="none", ridge=0.01)
    by_features = fm.fit(fed, model, "fednewton", math.inf, scaling="none", ridge=0.01, curvature="features", steps=200)
    assert coef(by_features) == pytest.approx(coef(pooled), abs=1e-6)


def test_with_many_parameters_fednewton_turns_to_the_features_and_its_traffic_stays_small() -> None:
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((400, 60)), rng.integers(0, 10, 400)
    fed = fm.Federation.from_arrays(X, y, np.repeat(["a", "b"], 200))
    many = fm.fit(fed, "multinomial", "fednewton", 2.0, scaling="none", seed=1)
    assert [r.what for r in many.privacy.releases][1] == "second moments of features"
    assert many.privacy.certified and many.privacy.mu == pytest.approx(2.0)
    size = 61 * 62 // 2
    assert many.communication.floats_up < 2 * (size + 20 * 610 + 100)
    with pytest.raises(fm.InputError, match="nothing caps the curvature of the poisson model"):
        fm.fit(simulate("poisson", 2, 50).fed, "poisson", "fednewton", 2.0, curvature="features")


@pytest.mark.parametrize("model", ALL_MODELS)
def test_fits_that_only_multiply_with_the_curvature_equal_those_that_form_it(
    model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fed = simulate(model, 3, 150, seed=2).fed

    def fits() -> list[np.ndarray]:
        local = fm.fit(fed, model, "np-local", scaling="none", ridge=0.01).site_params
        assert local is not None
        paper = fm.fit(fed, model, "fednewton", math.inf, calibration="paper", scaling="none", ridge=0.01, seed=1)
        return [coef(fm.fit(fed, model, "np-pooled", scaling="none", ridge=0.01)), local, coef(paper)]

    dense = fits()
    monkeypatch.setattr("fedmest.queries.newton.MAX_HESSIAN", 0)
    for home in ("queries.local_fit", "methods.baselines"):
        monkeypatch.setattr(f"fedmest.{home}.MAX_DENSE", 0)
    for a, b in zip(dense, fits(), strict=True):
        assert b == pytest.approx(a, abs=2e-5)


def test_a_pooled_fit_of_many_parameters_that_has_no_minimum_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    for home in ("queries.local_fit", "methods.baselines"):
        monkeypatch.setattr(f"fedmest.{home}.MAX_DENSE", 0)
    x = np.linspace(-1, 1, 40)
    fed = fm.Federation.from_arrays(x[:, None], (x > 0).astype(int), np.repeat(["a", "b"], 20))
    with pytest.raises(fm.ConvergenceError, match="did not converge"):
        fm.fit(fed, "logistic", "np-pooled", scaling="none")


@pytest.mark.parametrize("floor", [1e-3, 0.5, 3.0])
def test_directions_are_the_same_whether_or_not_eigenvalues_are_computed(floor: float) -> None:
    rng = np.random.default_rng(4)
    root = rng.standard_normal((6, 6))
    matrix, target = root @ root.T / 6 + 0.1 * np.eye(6), rng.standard_normal(6)
    values, vectors = np.linalg.eigh(matrix)
    plain = vectors @ (vectors.T @ target / np.maximum(values, floor))
    assert newton_direction(target, matrix, floor, None) == pytest.approx(plain)
