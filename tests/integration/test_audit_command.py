"""The audit command: its arguments and what it prints."""

import json
import math
from pathlib import Path

import numpy as np
import pytest

import fedmest as fm
from audits import MU
from conftest import one_line
from fedmest.interface.cli.main import main


def test_the_same_seed_finds_the_same() -> None:
    first, again, other = (fm.audit("fedsgd", "logistic", MU, games=500, seed=s, K=2) for s in (1, 1, 2))
    assert first.to_dict() == again.to_dict()
    assert first.to_dict() != other.to_dict()
    false, true = first.roc()
    assert false[0] == true[0] == 0.0
    assert false[-1] == true[-1] == 1.0
    assert (np.diff(false) >= 0).all()
    assert (np.diff(true) >= 0).all()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"method": "np-pooled"}, "is not private"),
        ({"mu": math.inf}, "mu=inf"),
        ({"games": 3}, "games=3"),
        ({"confidence": 1.0}, "confidence=1.0"),
        ({"observer": "nobody"}, "choose one of server, public"),
        ({"scenario": "a dark alley"}, "choose one of opposite scores"),
        ({"method": "fedstats", "model": "logistic"}, "works for linear models"),
        ({"K": 0}, "K=0"),
        ({"mu": 20.0}, "games cannot refute mu = 20"),
        ({"method": 3}, "give the id of a method"),
        ({"model": 3}, "give a name, or a model"),
        ({"model": "gamma"}, "there is no model"),
        ({"seed": -1}, "seed=-1"),
        ({"observer": "public", "release": "mean gradient"}, "sees no releases"),
        ({"settings": {"participation": 0.5}}, "cannot take 'participation'"),
        ({"settings": {"fit_intercept": True}}, "cannot take 'fit_intercept'"),
        ({"settings": {"cov_type": "robust"}}, "takes auto, nonrobust, none"),
    ],
)
def test_what_cannot_be_audited_is_said(arguments: dict[str, object], words: str) -> None:
    with pytest.raises(fm.InputError, match=words):
        fm.audit(**arguments)  # type: ignore[arg-type]


def test_the_table_tells_claim_and_finding_and_goes_on_where_it_was_stopped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept, drawn = tmp_path / "audits.jsonl", tmp_path / "roc.png"
    call = ["audit", "fedsgd", "--model", "logistic", "--games", "200", "--option", "K=2", "--out", str(kept)]
    assert main([*call, "--json"]) == 0
    first = json.loads(capsys.readouterr().out)
    variants = [(entry["calibration"], entry["settings"], entry["verdict"]) for entry in first]
    assert variants == [
        ("certified", {}, "not refuted"), ("certified", {"budget_schedule": "uniform"}, "not refuted"),
        ("paper", {}, "refuted"), ("paper", {"clip_norm": 1.0}, "not refuted"),
    ]  # fmt: skip
    lines = kept.read_text().splitlines()
    assert len(lines) == 4
    kept.write_text("\n".join([*lines[:2], lines[2][:30], "[]"]) + "\n")  # the third was cut short
    assert main([*call, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == first
    assert len(kept.read_text().splitlines()) == 6
    single = ["audit", "fedsgd", "--model", "logistic", "--calibration", "paper", "--clip-norm", "1", "--games", "200"]
    assert main([*single, "--plot", str(drawn)]) == 0
    assert "not refuted" in capsys.readouterr().out
    assert drawn.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["fedsgdd"], "there is no method 'fedsgdd'"),
        (["fedstats", "--model", "poisson"], "nothing to audit"),
        (["fedsgd", "--plot", "x.png"], "--plot is for one audit"),
        (["fedsgd", "--model", "gamma"], "there is no model 'gamma'"),
        (["fedsgd", "--out", "no/such/file.jsonl"], "there is no folder"),
        (["fedsgd", "--mu", "inf"], "without a budget there is nothing to audit"),
    ],
)
def test_an_error_in_the_call_is_one_line(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert words in one_line(capsys, main(["audit", *arguments]))
