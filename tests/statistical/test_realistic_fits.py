"""All realistic tables have a pooled fit; the standard errors of `benchmarks/real.py` are those of statsmodels."""

import importlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import statsmodels.api as sm

import fedmest as fm
from fedmest.data.realistic import KINDS, MODELS, TABLES

LARGEST = 12.0  # an estimate beyond it, for a column's own spread or an indicator, would be that of separated rows


@pytest.fixture
def yardstick(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    return importlib.import_module("yardstick")


@pytest.mark.parametrize("kind", KINDS)
def test_every_table_has_a_pooled_fit_of_a_reasonable_size(kind: str) -> None:
    for number in range(TABLES):
        table = fm.realistic_table(number, kind)
        fed = table.federation()
        coefficients = fm.fit(fed, table.model, "np-pooled").coef_matrix[:, 1:]
        unit = fed.target.std() if table.model == "linear" else 1.0
        assert np.abs(coefficients * fed.design()[:, 1:].std(axis=0)).max() < 2 * unit, f"{kind} {number}"
        yes_no = [j for j, name in enumerate(fed.features) if name.startswith("indicator")]
        assert np.abs(coefficients[:, yes_no]).max() < LARGEST * unit, f"{kind} {number}"


@pytest.mark.parametrize("number", range(len(MODELS)))
def test_the_yardstick_has_the_standard_errors_of_statsmodels(yardstick: Any, number: int) -> None:
    table = fm.realistic_table(number)
    found, fed = yardstick.pooled(f"tuning-{number:02d}"), table.federation()
    X = fed.design()
    centre, scale = X[:, 1:].mean(axis=0), X[:, 1:].std(axis=0)
    Z = np.column_stack([X[:, :1], (X[:, 1:] - centre) / scale])  # statsmodels inverts badly scaled columns badly
    for cov_type, se in (("nonrobust", found.model_se), ("HC0", found.hc0_se)):
        if table.model == "multinomial":
            fit = sm.MNLogit(np.unique(fed.target, return_inverse=True)[1], Z).fit(disp=0, cov_type=cov_type)
        else:
            family = {"linear": "Gaussian", "logistic": "Binomial", "poisson": "Poisson"}[table.model]
            fit = sm.GLM(fed.target, Z, family=getattr(sm.families, family)()).fit(cov_type=cov_type)
        slopes = np.asarray(fit.bse).T.reshape(-1, Z.shape[1])[:, 1:] / scale
        assert se.reshape(-1, Z.shape[1])[:, 1:] == pytest.approx(slopes, rel=1e-4)


def test_a_clipped_score_at_the_pooled_fit_costs_more_with_less_budget(yardstick: Any) -> None:
    found = yardstick.pooled("tuning-09")
    assert found.limit(1.0, found.model_se) > 1.5 * found.limit(4.0, found.model_se) > 0
