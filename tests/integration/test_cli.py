"""The command line, in this process; tests/process starts the program itself."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import fedmest as fm
from cli_cases import BOUNDS, arguments, write_rows
from conftest import coef, one_line
from fedmest.core.exceptions import ConvergenceError, FedmestError, NoStandardErrors, QuorumError, ScheduleError
from fedmest.interface import console as tables
from fedmest.interface.cli.main import main


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    return write_rows(tmp_path)


def federation(rows: Path) -> fm.Federation:
    return fm.Federation.read(rows, "ill", "hospital", bounds={"age": (0, 100), "bmi": (10, 60)})


# -- what the commands print --------------------------------------------------------------------------------


def test_fit_prints_the_summary_of_the_same_library_call(rows: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments(rows)) == 0
    out, err = capsys.readouterr()
    assert out.strip() == fm.fit(federation(rows), seed=3).summary()
    assert err == ""


def test_every_flag_reaches_the_fit(rows: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = [
        "--method", "fedavg", "--mu", "1.5", "--calibration", "paper", "--clip-rule", "consistent", "--clip-norm", "2",
        "--budget-schedule", "geometric", "--scaling", "bounds", "--aggregation-weights", "optimal",
        "--weight-constant", "2", "--ridge", "0.1", "--participation", "0.7", "--no-intercept", "--cov-type", "none",
        "--option", "K=5", "--option", "eta=0.2", "--json",
    ]  # fmt: skip
    assert main(arguments(rows, *settings)) == 0
    content = json.loads(capsys.readouterr().out)
    expected = fm.fit(
        federation(rows), "logistic", "fedavg", 1.5, calibration="paper", clip_rule="consistent", clip_norm=2.0,
        budget_schedule="geometric", scaling="bounds", aggregation_weights="optimal", weight_constant=2.0,
        ridge=0.1, participation=0.7, fit_intercept=False, cov_type="none", seed=3, K=5, eta=0.2,
    )  # fmt: skip
    assert content == json.loads(json.dumps(expected.to_dict()))


def test_feature_and_ignore_choose_columns(rows: Path, capsys: pytest.CaptureFixture[str]) -> None:
    named = ["fit", str(rows), "--target", "ill", "--site", "hospital", "--model", "logistic", "--json"]
    for choice in (["--feature", "age"], ["--ignore", "bmi"]):
        assert main([*named, *choice, "--mu", "inf"]) == 0
        assert list(json.loads(capsys.readouterr().out)["coefficients"]) == ["intercept", "age"]


def test_mu_inf_fits_without_noise(rows: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments(rows, "--mu", "inf", "--json")) == 0
    privacy = json.loads(capsys.readouterr().out)["privacy"]
    assert privacy["mu"] is None
    assert privacy["certified"] is False


def test_out_writes_what_json_prints(rows: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "result.json"
    assert main(arguments(rows, "--json", "--out", str(target))) == 0
    assert json.loads(target.read_text()) == json.loads(capsys.readouterr().out)


def test_rows_with_gaps_can_be_dropped(rows: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with rows.open("a") as file:
        file.write("north,,25,1\n")
    assert "--missing drop" in one_line(capsys, main(arguments(rows)))
    assert main(arguments(rows, "--missing", "drop", "--json")) == 0
    assert json.loads(capsys.readouterr().out)["n_rows"] == 300


def test_compare_puts_methods_side_by_side(rows: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments(rows, "--methods", "np-pooled,fedsgd,fednewton", "--option", "K=7", command="compare")) == 0
    lines = capsys.readouterr().out.splitlines()
    head = next(line for line in lines if "np-pooled" in line)
    assert head.split() == ["np-pooled", "fedsgd", "fednewton"]
    pooled = coef(fm.fit(federation(rows), method="np-pooled"))
    newton = coef(fm.fit(federation(rows), method="fednewton", seed=3, K=7))
    age = next(line for line in lines if line.startswith("age")).split()
    assert (age[1], age[3]) == (f"{pooled[1]:.5f}", f"{newton[1]:.5f}")
    facts = {line.split()[0]: line.split()[1:] for line in lines[lines.index(head) + 6 :] if line.strip()}
    assert facts["np-pooled"][:3] == ["inf", "inf", "no"]
    assert facts["fedsgd"][0] == "2"
    assert facts["fedsgd"][2:4] == ["yes", "8"]


def test_compare_prints_a_block_a_class(rows: Path, capsys: pytest.CaptureFixture[str]) -> None:
    frame = pd.read_csv(rows)
    frame.assign(ill=np.resize(["a", "b", "c"], len(frame))).to_csv(rows, index=False)
    call = ["compare", str(rows), "--target", "ill", "--site", "hospital", "--model", "multinomial", *BOUNDS]
    assert main([*call, "--methods", "np-pooled,fedsgd"]) == 0
    out = capsys.readouterr().out
    assert [line.strip() for line in out.splitlines() if line.startswith("class")] == [
        "class a",
        "class b",
        "class c",
    ]


def test_compare_breaks_a_wide_table_instead_of_cutting_numbers(rows: Path, capsys: pytest.CaptureFixture[str]) -> None:
    private = "fedsgd,fedavg,fedhybrid,fednewton,scaffold"
    assert main(arguments(rows, "--methods", f"np-pooled,np-local,{private},np-fedavg", command="compare")) == 0
    out = capsys.readouterr().out
    assert "…" not in out
    assert max(map(len, out.splitlines())) <= tables.WIDTH
    assert sum(line.startswith("age") for line in out.splitlines()) == 2


def test_compare_as_json_holds_every_result(rows: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments(rows, "--methods", "np-pooled,fedsgd", "--json", command="compare")) == 0
    content = json.loads(capsys.readouterr().out)
    assert list(content["methods"]) == ["np-pooled", "fedsgd"]
    assert content["methods"]["fedsgd"] == json.loads(
        json.dumps(fm.fit(federation(rows), method="fedsgd", seed=3).to_dict())
    )


def test_methods_lists_the_registry(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["methods", "--json"]) == 0
    entries = {entry["id"]: entry for entry in json.loads(capsys.readouterr().out)}
    assert list(entries) == list(fm.METHODS)
    assert entries["fednewton"]["rounds"] == 2
    assert entries["fednewton"]["options"]["split"] is False
    assert entries["fednewton"]["paper_options"]["split"] is True
    assert entries["fedstats"]["models"] == ["linear"]
    assert main(["methods"]) == 0
    out = capsys.readouterr().out
    assert all(name in out for name in fm.METHODS)
    assert "(paper:" in out


def test_demo_shows_private_beside_pooled(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo"]) == 0
    out = capsys.readouterr().out
    assert "20,186 person-years at 6 sites" in out
    assert out.count("pooled (not private)") == out.count("private (mu=2)") == out.count("difference") - 1 == 2
    assert "What is protected is a row" in out
    assert "2-Gaussian" in " ".join(out.split()).replace("- ", "-")


def test_demo_is_certified_and_close_to_the_pooled_fit(capsys: pytest.CaptureFixture[str]) -> None:
    """Close: a standard deviation of a feature moves the two linear predictors by less than 0.06 apart."""
    from fedmest.data.rand_hie import load

    assert main(["demo", "--json", "--seed", "11"]) == 0
    studies = json.loads(capsys.readouterr().out)["studies"]
    spread = load().std()
    assert set(studies) == {"logistic", "poisson"}
    for study in studies.values():
        assert study["private"]["privacy"]["certified"] is True
        assert study["private"]["privacy"]["mu"] == pytest.approx(2.0)
        pooled, private = study["pooled"]["coefficients"], study["private"]["coefficients"]
        for name in list(pooled)[1:]:
            assert abs(private[name] - pooled[name]) * spread[name] < 0.06


# -- the schema ---------------------------------------------------------------------------------------------

SCHEMA = """
target = "ill"
site = "hospital"
model = "logistic"
features = ["age", "bmi"]
[bounds]
age = [0, 100]
bmi = [10, 60]
"""


def with_schema(rows: Path, text: str, *more: str) -> list[str]:
    path = rows.with_name("schema.toml")
    path.write_text(text)
    return ["fit", str(rows), "--schema", str(path), "--seed", "3", "--json", *more]


def test_a_schema_says_what_flags_would(rows: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(with_schema(rows, SCHEMA)) == 0
    from_schema = capsys.readouterr().out
    assert main(arguments(rows, "--json")) == 0
    assert from_schema == capsys.readouterr().out


def test_flags_win_over_the_schema(rows: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = [
        "--target",
        "age",
        "--model",
        "linear",
        "--feature",
        "bmi",
        "--bounds",
        "bmi=0:70",
        "--mu",
        "inf",
    ]
    assert main(with_schema(rows, SCHEMA, *flags)) == 0
    content = json.loads(capsys.readouterr().out)
    assert content["model"] == "linear"
    assert list(content["coefficients"]) == ["intercept", "bmi"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("target = ", ("TOML", "end of document")),
        ('targte = "ill"', ("'targte'", "did you mean 'target'")),
        ("target = 3", ("target", "a string", "3")),
        ('features = "age"', ("features", "list of strings")),
        ("features = [1]", ("features", "list of strings")),
        ("bounds = 3", ("bounds = 3", "a table")),
        (SCHEMA.replace("[0, 100]", "[0]"), ("[bounds] age = [0]", "2 numbers")),
        (SCHEMA.replace("[0, 100]", "[100, 0]"), ("'age'", "100:0")),
        (SCHEMA.replace('target = "ill"', ""), ("no target", "--target")),
        (SCHEMA.replace('site = "hospital"', ""), ("no site", "--site")),
        (SCHEMA.replace('model = "logistic"', ""), ("no model", "--model")),
    ],
)
def test_a_bad_schema_is_one_line(
    text: str, words: tuple[str, ...], rows: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = one_line(capsys, main(with_schema(rows, text)))
    assert all(word in line for word in words)


# -- calls that are wrong -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["ft"], ("'ft'", "fit")),
        (["--verson"], ("--verson", "--version")),
        (["fit"], ("FILE", "fedmest fit --help")),
        (["demo", "extra"], ("extra",)),
        (["demo", "--mu", "0"], ("mu=0", "positive")),
        (["demo", "--seed", "x"], ("--seed",)),
        (["methods", "--all"], ("--all",)),
        (["fit", "ROWS", "--taget", "ill"], ("--taget", "--target")),
        (["fit", "ROWS", "--target"], ("--target", "argument")),
        (["fit", "ROWS", "--mu", "two"], ("--mu",)),
        (["fit", "ROWS", "--seed", "1.5"], ("--seed",)),
        (["fit", "ROWS", "--participation", "half"], ("participation='half'", "above 0 and at most 1")),
        (["fit", "ROWS", "--bounds", "age"], ("'age'", "COLUMN=LOW:HIGH")),
        (["fit", "ROWS", "--bounds", "age=0-100"], ("'age=0-100'", "COLUMN=LOW:HIGH")),
        (["fit", "ROWS", "--bounds", "=0:1"], ("'=0:1'", "COLUMN=LOW:HIGH")),
        (["fit", "ROWS", "--bounds", "age=0:99"], ("'age'", "twice")),
        (["fit", "ROWS", "--option", "K"], ("'K'", "NAME=VALUE")),
        (["fit", "ROWS", "--option", "K=1", "--option", "K=2"], ("'K'", "twice")),
        (["fit", "ROWS", "--schema", "none.toml"], ("no file", "none.toml")),
        (["fit", "ROWS", "--schema", "/"], ("folder",)),
        (["fit", "ROWS", "--out", "/no/such/folder/r.json"], ("/no/such/folder", "make it")),
        (["fit", "ROWS", "--out", "/"], ("folder", "name a file")),
        (["compare", "ROWS", "--methods", ","], ("no method",)),
        (["compare", "ROWS", "--methods", "fedsgd,fedprox"], ("'fedprox'", "fedsgd")),
        (["compare", "ROWS", "--methods", "fedsgd", "--option", "R=2"], ("'R'", "K, eta")),
        (["fit", "ROWS", "--option", "clip_norm=2"], ("'clip_norm'", "--clip-norm")),
        (["compare", "ROWS", "--methods", "fedstats"], ("'fedstats'", "linear")),
    ],
    ids=" ".join,
)
def test_a_wrong_call_is_one_line(
    args: list[str], words: tuple[str, ...], rows: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if "ROWS" in args:
        args = arguments(rows, *args[2:], command=args[0])
    line = one_line(capsys, main(args))
    assert all(word in line for word in words)


def test_a_bug_is_one_line_and_its_traceback_is_there_for_the_asking(
    rows: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError("by\nzero")

    monkeypatch.setattr("fedmest.runs.fit.fit", broken)
    monkeypatch.delenv("FEDMEST_DEBUG", raising=False)
    line = one_line(capsys, main(arguments(rows)), expected=1)
    assert "bug" in line
    assert "ZeroDivisionError: by zero" in line
    monkeypatch.setenv("FEDMEST_DEBUG", "1")
    assert main(arguments(rows)) == 1
    assert "Traceback" in capsys.readouterr().err


@pytest.mark.parametrize("kind", [ConvergenceError, NoStandardErrors, ScheduleError, QuorumError])
def test_an_error_that_no_input_is_to_blame_for_is_one_line_and_exit_code_1(
    kind: type[FedmestError], rows: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise kind("three sites answered, the quorum is four")

    monkeypatch.setattr("fedmest.runs.fit.fit", fails)
    line = one_line(capsys, main(arguments(rows)), expected=1)
    assert line.strip() == "fedmest: three sites answered, the quorum is four"


def test_control_characters_in_an_error_are_written_out(
    rows: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A site's reason for a refusal, a column's name: whoever wrote them must not reach the terminal."""

    def refused(*_: object, **__: object) -> None:
        raise QuorumError("north refused: \x1b]0;title\x07\x9b2J \ud800")

    monkeypatch.setattr("fedmest.runs.fit.fit", refused)
    for debug in ("", "1"):
        monkeypatch.setenv("FEDMEST_DEBUG", debug)
        assert main(arguments(rows)) == 1
        text = capsys.readouterr().err
        assert r"fedmest: north refused: \x1b]0;title\x07\x9b2J \ud800" in text
        assert all(character.isprintable() or character == "\n" for character in text)
    assert "Traceback" in text


def test_what_a_network_sends_is_printed_without_control_characters(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(folder: Path, resume: bool, log: Callable[[str], None]) -> dict[str, str]:
        log("north \x1b[2J is slow")
        return {"summary": "line\nround 1: north\x1b[2J refused"}

    monkeypatch.setattr("fedmest.server.project.run", run)
    assert main(["deploy", "run", str(tmp_path)]) == 0
    captured = capsys.readouterr()
    assert captured.err == "north \\x1b[2J is slow\n"
    assert captured.out == "line\nround 1: north\\x1b[2J refused\n"


def test_too_little_memory_and_a_full_disk_are_one_line(
    rows: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: Path, *_: object, **__: object) -> None:
        raise OSError(28, "No space left on device", str(self))

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_text", full)
        line = one_line(capsys, main(arguments(rows, "--out", str(tmp_path / "r.json"))), expected=1)
    assert "No space left" in line

    def hungry(*_: object, **__: object) -> None:
        raise MemoryError

    monkeypatch.setattr("fedmest.runs.fit.fit", hungry)
    assert "memory" in one_line(capsys, main(arguments(rows)), expected=1)


def test_ctrl_c_in_a_fit_exits_with_130(
    rows: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("fedmest.runs.fit.fit", interrupted)
    assert "interrupted" in one_line(capsys, main(arguments(rows)), expected=130)


@pytest.mark.parametrize(
    ("command", "text"),
    [
        ("fit", "FILE A CSV or Parquet file. [required]"),
        ("compare", "FILE A CSV or Parquet file. [required]"),
        ("audit", "[ID]... Methods (default: all)."),
        ("reproduce", "[ID]... Studies, or how their ids begin (default: all simulations)."),
        ("data fetch", "mnist|cifar10 The data set. [required]"),
        ("site serve", "SITE.toml The site's policy. [required]"),
        ("deploy init", "FOLDER The project. [required]"),
        ("ledger show", "LEDGER The site's ledger. [required]"),
    ],
)
def test_help_explains_every_argument(command: str, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*command.split(), "--help"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert f"Arguments: {text} Options:" in out
    assert out.count(text) == 1


def test_help_loads_nothing_that_compiles_or_computes() -> None:
    """Else it would not answer at once."""
    script = (
        "import sys; from fedmest.interface.cli.main import main; main(['--help']); main(['fit', '--help']); "
        "print(*sorted({'numba', 'numpy', 'pandas', 'rich', 'scipy', 'sqlite3'} & set(sys.modules)), sep='|')"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.splitlines()[-1] == ""


def test_help_and_version_exit_with_zero(capsys: pytest.CaptureFixture[str]) -> None:
    for args in (
        [],
        ["--help"],
        ["fit", "--help"],
        ["compare", "--help"],
        ["demo", "--help"],
        ["methods", "--help"],
    ):
        assert main(args) == 0
        assert "Usage: fedmest" in capsys.readouterr().out
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.strip() == f"fedmest {fm.__version__}"
