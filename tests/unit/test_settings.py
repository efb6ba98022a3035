"""Every setting stands in one place, and reaches everywhere: flag, file, JSON, noise key, report."""

import json
import tomllib
from dataclasses import asdict, fields, replace
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import fedmest as fm
from conftest import simulate
from fedmest.interface.cli.main import app
from fedmest.models import model_named
from fedmest.runs.settings import Settings, flag_of
from fedmest.runs.spec import PublicFacts, RunSpec

NAMES = [f.name for f in fields(Settings)]
OTHER: dict[str, Any] = {  # a value that is not the default, for a logistic regression
    "calibration": "paper", "clip_rule": "norm", "clip_norm": 1.5, "budget_schedule": "uniform", "scaling": "none",
    "aggregation_weights": "optimal", "weight_constant": 2.0, "participation": 0.5, "ridge": 0.1,
    "fit_intercept": False, "cov_type": "none",
}  # fmt: skip
FED = simulate("logistic", 4, 60).fed


def spec(**settings: Any) -> RunSpec:
    return RunSpec.create(PublicFacts.of(FED), model_named("logistic"), "fedsgd", 2.0, Settings(**settings))


def test_the_table_of_other_values_has_every_setting() -> None:
    assert set(OTHER) == set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_a_setting_has_a_flag_with_its_help(name: str) -> None:
    for command in ("fit", "compare"):
        shown = CliRunner().invoke(app, [command, "--help"]).output
        assert flag_of(name) in shown
        first = Settings.info()[name].doc.split()[0]
        assert first in shown


@pytest.mark.parametrize("name", NAMES)
def test_a_setting_goes_through_toml_and_json_unchanged(name: str) -> None:
    chosen = Settings(**{name: OTHER[name]})
    table = {key: value for key, value in asdict(chosen).items() if value is not None}
    toml = "\n".join(f"{key} = {json.dumps(value)}" for key, value in table.items())
    assert Settings.from_mapping(tomllib.loads(toml), "study.toml") == chosen
    made = spec(**{name: OTHER[name]})
    assert RunSpec.from_json(made.to_json()).settings == made.settings


@pytest.mark.parametrize("name", NAMES)
def test_a_setting_enters_the_noise_key(name: str) -> None:
    assert spec(**{name: OTHER[name]}).noise_key != spec().noise_key


@pytest.mark.parametrize("name", NAMES)
def test_a_setting_stands_in_the_report_in_json_and_on_the_page(name: str) -> None:
    result = fm.fit(FED, method="fedsgd", K=3, seed=1, **{name: OTHER[name]})
    assert result.to_dict()["settings"][name] == OTHER[name]
    page = result.to_html()
    assert name in page and str(OTHER[name]) in page


@pytest.mark.parametrize("method", ["fedsgd", "fedavg", "fedhybrid", "fednewton", "scaffold"])
@pytest.mark.parametrize(
    "changed", [{}, {"ridge": 0.1, "clip_norm": 1.5, "scaling": "none"}, {"calibration": "paper"}, {"eta": 0.3}]
)
def test_what_a_report_prints_runs_again_to_the_same_numbers(method: str, changed: dict[str, Any]) -> None:
    first = fm.fit(FED, method=method, seed=7, **changed)
    printed = json.loads(json.dumps(first.to_dict()["settings"]))
    again = fm.fit(FED, **printed.pop("options"), **printed)
    np.testing.assert_array_equal(first.coef_matrix, again.coef_matrix)
    assert again.to_dict()["settings"] == first.to_dict()["settings"]


@pytest.mark.parametrize("name", NAMES)
def test_a_value_that_cannot_be_is_refused_by_name(name: str) -> None:
    with pytest.raises(fm.InputError, match=name):
        replace(Settings(), **{name: "no such thing"}).resolve(model_named("logistic"))


def test_a_misspelt_setting_is_recognised() -> None:
    with pytest.raises(fm.InputError, match="did you mean 'clip_norm'"):
        fm.fit(FED, clip_nrom=1.0)
    with pytest.raises(fm.InputError, match="did you mean 'cov_type'"):
        Settings.from_mapping({"cov_typ": "none"}, "study.toml: [settings]")


@pytest.mark.parametrize(("method", "spelt"), [("fedirls", {"R": 3}), ("fedsgd", {"K": 50, "eta": 0.5})])
def test_an_option_spelt_out_at_its_default_changes_no_noise(method: str, spelt: dict[str, Any]) -> None:
    plain, same = fm.fit(FED, method=method, seed=3), fm.fit(FED, method=method, seed=3, **spelt)
    np.testing.assert_array_equal(plain.coef_matrix, same.coef_matrix)
    other = fm.fit(FED, method=method, seed=3, **{name: value + 1 for name, value in spelt.items()})
    assert not np.array_equal(plain.coef_matrix, other.coef_matrix)
