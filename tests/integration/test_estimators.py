"""The scikit-learn estimators: scikit-learn's own checks, pipelines, cross-validation, and that they are `fit`."""

from functools import partial

import numpy as np
import pytest
import sklearn
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import KFold, cross_validate
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import check_estimator

import fedmest as fm
from conftest import coef, simulate

PLAIN = {"mu": np.inf, "method": "np-pooled"}  # scikit-learn expects fits to be exact
COUNTS = "targets of this check are not counts"
NOT_FOR_COUNTS = {
    "check_n_features_in_after_fitting": COUNTS, "check_regressors_train": COUNTS,
    "check_regressor_data_not_an_array": COUNTS, "check_regressors_no_decision_function": COUNTS,
    "check_fit_idempotent": COUNTS, "check_fit_check_is_fitted": COUNTS, "check_n_features_in": COUNTS,
}  # fmt: skip


@pytest.mark.parametrize(
    ("estimator", "expected"),
    [
        (fm.FederatedLogisticRegression(**PLAIN, ridge=1e-3), {}),
        (fm.FederatedLinearRegression(**PLAIN), {}),
        (fm.FederatedPoissonRegressor(**PLAIN, ridge=1e-3), NOT_FOR_COUNTS),
        (fm.FederatedRegressor("negative-binomial(dispersion=0.5)", **PLAIN, ridge=1e-3), NOT_FOR_COUNTS),
    ],
    ids=["logistic", "linear", "poisson", "negative-binomial"],
)  # fmt: skip
@pytest.mark.filterwarnings("ignore")
def test_scikit_learns_own_checks_pass(estimator: object, expected: dict[str, str]) -> None:
    found = check_estimator(estimator, expected_failed_checks=expected, on_fail="raise")
    states = [check["status"] for check in found]
    assert states.count("passed") >= 42
    assert set(states) <= {"passed", "skipped", "xfail"}
    failed = {check["check_name"] for check in found if check["status"] == "xfail"}
    assert failed == set(expected)  # a check that passes after all is to be taken off the list


@pytest.mark.parametrize("model", ["linear", "logistic", "poisson", "multinomial", "negative-binomial"])
def test_an_estimator_is_fit(model: str) -> None:
    case = simulate(model, 4, 150)
    kind = {
        "linear": fm.FederatedLinearRegression, "poisson": fm.FederatedPoissonRegressor,
        "negative-binomial": partial(fm.FederatedRegressor, "negative-binomial"),
    }.get(model, fm.FederatedLogisticRegression)  # fmt: skip
    estimator = kind(3.0, "fedirls", bounds={0: (-4, 4)}, random_state=5, options={"R": 3})
    estimator.fit(case.X, case.y, sites=case.sites)
    fed = fm.Federation.from_arrays(
        case.X, case.y, case.sites, features=["x0", "x1", "x2", "x3"], bounds={"x0": (-4, 4)}
    )
    result = fm.fit(fed, model, "fedirls", 3.0, seed=5, R=3)
    np.testing.assert_array_equal(coef(estimator.result_), coef(result))
    assert estimator.result_.privacy.mu == pytest.approx(3.0)
    if model in ("logistic", "multinomial"):
        chances = result.predict(case.X)
        found = estimator.predict_proba(case.X)
        np.testing.assert_allclose(found if model == "multinomial" else found[:, 1], chances, rtol=1e-12)
        assert set(estimator.predict(case.X)) <= set(case.y)
        assert estimator.score(case.X, case.y) > 0.3
    else:
        np.testing.assert_allclose(estimator.predict(case.X), result.predict(case.X), rtol=1e-12)
        assert estimator.coef_.shape == (4,)


def test_sites_are_routed_through_pipelines_and_cross_validation() -> None:
    case, folds = simulate("logistic", 5, 200), KFold(3, shuffle=True, random_state=0)
    with sklearn.config_context(enable_metadata_routing=True):
        estimator = fm.FederatedLogisticRegression(3.0, "fedirls", random_state=1).set_fit_request(sites=True)
        pipeline = make_pipeline(StandardScaler(), estimator)
        scores = cross_validate(pipeline, case.X, case.y, params={"sites": case.sites}, cv=folds, return_estimator=True)
    assert (scores["test_score"] > 0.55).all()
    for fitted in scores["estimator"]:
        assert fitted[-1].result_.n_sites == 5


def test_a_star_import_needs_no_extra() -> None:
    assert not any(name.startswith("Federated") for name in fm.__all__)
    assert fm.FederatedLinearRegression.__module__ == "fedmest.interface.estimators"


def test_what_a_classifier_cannot_take_is_said() -> None:
    with pytest.raises(ValueError, match="only one class"):
        fm.FederatedLogisticRegression().fit(np.ones((5, 2)) * np.arange(5)[:, None], np.zeros(5))
    with pytest.raises(NotFittedError):
        fm.FederatedPoissonRegressor().predict(np.ones((2, 2)))
    with pytest.raises(fm.InputError, match="mu=-1"):
        fm.FederatedLinearRegression(-1).fit(np.random.default_rng(0).random((9, 2)), np.arange(9.0))
