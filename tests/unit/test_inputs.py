"""Bad inputs, through the library and the command line: one clear line and no traceback.

The exit code is 2; 1 where no input is wrong by itself.
"""

import gzip
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import fedmest as fm
from conftest import coef, one_line
from fedmest.interface.cli.main import main
from fedmest.runs.fit import SETTINGS
from fedmest.runs.settings import flag_of

ROWS = 60
COLUMN_ARGUMENTS = ("features", "ignore", "bounds", "missing")
FLAGS = {"features": "--feature", "ignore": "--ignore", "bounds": "--bounds"}


def good_frame() -> pd.DataFrame:
    """Three sites with a bit of everything."""
    rng = np.random.default_rng(3)
    return pd.DataFrame(
        {
            "hospital": np.repeat(["north", "south", "west"], ROWS // 3),
            "ill": rng.integers(0, 2, ROWS),
            "age": rng.uniform(20, 80, ROWS).round(2),
            "bmi": rng.normal(26, 3, ROWS).round(2),
            "sex": np.tile(["f", "m", "m"], ROWS // 3),
        }
    )


def put(column: str, value: Any, row: int = 25) -> Callable[[pd.DataFrame], pd.DataFrame]:
    """Write one value into one row; row 25 is at the site south."""

    def change(frame: pd.DataFrame) -> pd.DataFrame:
        values = frame[column].tolist() if column in frame else [0.0] * len(frame)
        values[row] = value
        return frame.assign(**{column: values})

    return change


def set_column(column: str, values: Any) -> Callable[[pd.DataFrame], pd.DataFrame]:
    return lambda frame: frame.assign(**{column: values})


@dataclass(frozen=True)
class BadCall:
    """What is wrong, and the words that the answer must hold."""

    name: str
    words: tuple[str, ...]
    change: Callable[[pd.DataFrame], pd.DataFrame] = lambda frame: frame
    call: dict[str, Any] = field(default_factory=dict)
    error: type[fm.FedmestError] = fm.InputError


NUMBERS = np.arange(ROWS)
BAD_CALLS = [
    # the columns that are named
    BadCall("an unknown target is named", ("target", "'il'", "did you mean 'ill'"), call={"target": "il"}),
    BadCall("an unknown site column is named", ("site", "'clinic'", "hospital"), call={"site": "clinic"}),
    BadCall("an unknown feature is named", ("feature", "'agee'", "'age'"), call={"features": ["agee"]}),
    BadCall("an unknown column is ignored", ("'agee'", "'age'"), call={"ignore": ["agee"]}),
    BadCall("one column is target and site", ("'ill'", "target", "site"), call={"site": "ill"}),
    BadCall("the target is among the features", ("'ill'", "target"), call={"features": ["age", "ill"]}),
    BadCall("the site is among the features", ("'hospital'", "site"), call={"features": ["age", "hospital"]}),
    BadCall("a feature is named twice", ("'age'", "twice"), call={"features": ["age", "age"]}),
    BadCall("a feature is also ignored", ("'age'", "ignored"), call={"features": ["age"], "ignore": ["age"]}),
    BadCall("no feature is left", ("no feature",), call={"ignore": ["age", "bmi", "sex"]}),
    BadCall("a column has no name", ("'Unnamed: 0'", "ignore"), set_column("Unnamed: 0", NUMBERS)),
    # values
    BadCall("a feature is missing", ("'age'", "'south'", "missing", "drop"), put("age", None)),
    BadCall("a category is missing", ("'sex'", "'south'", "missing", "drop"), put("sex", None)),
    BadCall("a target is missing", ("'ill'", "'south'", "missing", "drop"), put("ill", None)),
    BadCall("a site is missing", ("'hospital'", "1 rows", "drop"), put("hospital", None)),
    BadCall(
        "every row has a gap and is dropped",
        ("no rows", "missing"),
        set_column("age", np.nan),
        {"missing": "drop"},
    ),
    BadCall("an unknown rule for missing values", ("'skip'", "error, drop"), call={"missing": "skip"}),
    BadCall("a feature is infinite", ("'age'", "'south'", "infinite"), put("age", np.inf)),
    BadCall(
        "a target is infinite",
        ("'cost'", "'south'", "infinite"),
        put("cost", -np.inf),
        {"target": "cost", "model": "linear"},
    ),
    BadCall("a feature is far too large", ("1e+100", "scale"), put("age", 1e200)),
    BadCall("a number column is constant", ("'age'", "constant", "40"), set_column("age", 40.0)),
    BadCall("a text column is constant", ("'sex'", "constant", "'f'"), set_column("sex", "f")),
    BadCall("two columns are identical", ("'age'", "'years'", "identical"), lambda f: f.assign(years=f["age"])),
    BadCall(
        "a text column has a level a row",
        ("'name'", "60 distinct"),
        set_column("name", [f"p{i}" for i in NUMBERS]),
    ),
    BadCall("a column holds dates", ("'day'", "dates"), set_column("day", pd.Timestamp("2020-01-01"))),
    BadCall(
        "a column of numbers holds a slip",
        ("'weight'", "'south'", "'7O'"),
        lambda f: f.assign(weight=[str(50 + i % 30) if i != 25 else "7O" for i in NUMBERS]),
    ),
    BadCall("an indicator has the name of a column", ("'sex=m'", "two columns"), set_column("sex=m", NUMBERS)),
    # the target and its model
    BadCall("text counts", ("'sex'", "text", "poisson", "counts"), call={"target": "sex", "model": "poisson"}),
    BadCall(
        "negative counts",
        ("'n'", "'south'", "-1", "counts"),
        put("n", -1),
        {"target": "n", "model": "poisson"},
    ),
    BadCall(
        "fractional counts",
        ("'n'", "'south'", "1.5", "counts"),
        put("n", 1.5),
        {"target": "n", "model": "poisson"},
    ),
    BadCall("a number beyond 0 and 1", ("'ill'", "'south'", "2", "0 or 1"), put("ill", 2)),
    BadCall(
        "three categories for two",
        ("'g'", "3", "multinomial"),
        set_column("g", ["a", "b", "c"] * 20),
        {"target": "g"},
    ),
    BadCall("one class overall", ("'ill'", "every row"), set_column("ill", 1)),
    BadCall("one class overall in words", ("'g'", "yes in every row"), set_column("g", "yes"), {"target": "g"}),
    BadCall(
        "one class for the multinomial model",
        ("'g'", "every row"),
        set_column("g", "yes"),
        {"target": "g", "model": "multinomial"},
    ),
    BadCall("text for the linear model", ("'sex'", "text", "numbers"), call={"target": "sex", "model": "linear"}),
    BadCall(
        "a date as target",
        ("'day'", "dates"),
        set_column("day", pd.Timestamp("2020-01-01")),
        {"target": "day"},
    ),
    # bounds
    BadCall("bounds for an unknown column", ("'weight'", "not used"), call={"bounds": {"weight": (0, 1)}}),
    BadCall("bounds for a text column", ("'sex'", "text", "0:1"), call={"bounds": {"sex": (0, 1)}}),
    BadCall(
        "bounds for a target in words",
        ("'sex'", "not a number"),
        call={"target": "sex", "bounds": {"sex": (0, 1)}},
    ),
    BadCall("the low bound is above the high", ("'age'", "100:0", "below"), call={"bounds": {"age": (100, 0)}}),
    BadCall("bounds are equal", ("'age'", "5:5", "below"), call={"bounds": {"age": (5, 5)}}),
    BadCall("a bound is infinite", ("'age'", "finite"), call={"bounds": {"age": (0, np.inf)}}),
    BadCall("a bound is not a number", ("'age'", "two numbers"), call={"bounds": {"age": (0, np.nan)}}),
    BadCall(
        "a value lies outside its bounds",
        ("'age'", "'south'", "120", "0:100", "widen"),
        put("age", 120.0),
        {"bounds": {"age": (0, 100)}},
    ),
    BadCall(
        "a target lies outside its bounds",
        ("'cost'", "'south'", "9", "0:5"),
        put("cost", 9.0),
        {"target": "cost", "model": "linear", "bounds": {"cost": (0, 5)}},
    ),
    BadCall("scaling by bounds without bounds", ("'age'", "bounds"), call={"scaling": "bounds"}),
    # the settings of the fit
    BadCall("mu is zero", ("mu=0", "positive"), call={"mu": 0.0}),
    BadCall("mu is negative", ("mu=-1", "positive"), call={"mu": -1.0}),
    BadCall("mu is not a number", ("mu=nan", "positive"), call={"mu": float("nan")}),
    BadCall("an unknown model", ("'probit'", "logistic"), call={"model": "probit"}),
    BadCall("an unknown method", ("'fedprox'", "fednewton"), call={"method": "fedprox"}),
    BadCall("an unknown option", ("no setting or option 'Q'", "K", "eta"), call={"Q": 3}),
    BadCall("no steps", ("K=0", "whole number"), call={"K": 0}),
    BadCall("a fraction of steps", ("K=1.5", "whole number"), call={"K": 1.5}),
    BadCall("steps in words", ("K='many'", "whole number"), call={"K": "many"}),
    BadCall("a negative step", ("eta=-0.5", "positive"), call={"eta": -0.5}),
    BadCall("a switch with a number", ("split=2", "True or False"), call={"split": 2}),
    BadCall("a choice that does not exist", ("send='all'", "parts"), call={"send": "all"}),
    BadCall("nobody takes part", ("participation=0", "above 0"), call={"method": "fedsgd", "participation": 0.0}),
    BadCall(
        "more than all take part",
        ("participation=2", "at most"),
        call={"method": "fedsgd", "participation": 2.0},
    ),
    BadCall("a method that needs every site", ("'fednewton'", "every site"), call={"participation": 0.5}),
    BadCall("a linear method for classes", ("'fedstats'", "linear", "logistic"), call={"method": "fedstats"}),
    BadCall("an unknown clip norm", ("'big'", "private"), call={"clip_norm": "big"}),
    BadCall("a misspelt setting", ("no setting or option", "did you mean 'ridge'"), call={"rigde": 1.0}),
    BadCall("a negative clip norm", ("clip_norm=-1", "positive"), call={"clip_norm": -1.0}),
    BadCall("the paper's clip norm in a certified fit", ("'paper'", "calibration"), call={"clip_norm": "paper"}),
    BadCall("an unknown calibration", ("'exact'", "certified, paper"), call={"calibration": "exact"}),
    BadCall("an unknown clipping rule", ("'hard'", "consistent"), call={"clip_rule": "hard"}),
    BadCall("an unknown schedule", ("'steep'", "geometric"), call={"budget_schedule": "steep"}),
    BadCall("an unknown scaling", ("'robust'", "bounds"), call={"scaling": "robust"}),
    BadCall("unknown weights", ("'equal'", "size"), call={"aggregation_weights": "equal"}),
    BadCall("a negative ridge", ("ridge=-1", "at least 0"), call={"ridge": -1.0}),
    BadCall(
        "classes that a column separates",
        ("pooled", "ridge"),
        lambda f: f.assign(ill=(f["age"] > 50).astype(int)),
        {"method": "np-pooled"},
        fm.ConvergenceError,
    ),
]


def run_library(frame: pd.DataFrame, call: dict[str, Any]) -> fm.Result:
    settings = {"target": "ill", "site": "hospital", **call}
    columns = {k: settings.pop(k) for k in COLUMN_ARGUMENTS if k in settings}
    federation = fm.Federation.from_frame(frame, settings.pop("target"), settings.pop("site"), **columns)
    return fm.fit(federation, **settings)


def command_line(path: Path, call: dict[str, Any]) -> list[str]:
    """The same call as a command line."""
    call = {"target": "ill", "site": "hospital", "model": "logistic", **call}
    args = ["fit", str(path)]
    for name, value in call.items():
        if name == "bounds":
            args += [part for c, (low, high) in value.items() for part in ("--bounds", f"{c}={low}:{high}")]
        elif name in FLAGS:
            args += [part for column in value for part in (FLAGS[name], column)]
        elif name in SETTINGS:
            args += [flag_of(name), str(value)]
        elif name in ("model", "method", "mu", "seed", "target", "site", "missing"):
            args += [f"--{name}", str(value)]
        else:
            args += ["--option", f"{name}={value}"]
    return args


def assert_words(text: str, words: tuple[str, ...]) -> None:
    assert "\n" not in text.strip()
    for word in words:
        assert word in text


def test_names_of_bad_calls_are_distinct() -> None:
    assert len({f.name for f in BAD_CALLS}) == len(BAD_CALLS) > 30


@pytest.mark.parametrize("case", BAD_CALLS, ids=lambda f: f.name)
def test_the_library_answers_with_one_line(case: BadCall) -> None:
    with pytest.raises(case.error) as caught:
        run_library(case.change(good_frame()), case.call)
    assert_words(str(caught.value), case.words)


@pytest.mark.parametrize("case", BAD_CALLS, ids=lambda f: f.name)
def test_the_command_line_answers_with_one_line(
    case: BadCall, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "rows.parquet"
    case.change(good_frame()).to_parquet(path)
    code = 2 if case.error is fm.InputError else 1
    assert_words(one_line(capsys, main(command_line(path, case.call)), code), case.words)


@pytest.mark.parametrize("method", ["fednewton", "fedhybrid"])
def test_shares_beyond_the_whole_budget_are_refused(method: str) -> None:
    with pytest.raises(fm.InputError, match="share1"):
        run_library(good_frame(), {"method": method, "share1": 2.0})


# -- files --------------------------------------------------------------------------------------------------

HEADER = "hospital,ill,age\n"
LINES = "north,0,30\nnorth,1,41\nsouth,0,52\nsouth,1,33\n"
BAD_FILES: dict[str, tuple[str, bytes | None, tuple[str, ...]]] = {
    "a file that does not exist": ("none.csv", None, ("no file", "none.csv")),
    "an empty file": ("rows.csv", b"", ("rows.csv", "empty")),
    "a header without rows": ("rows.csv", HEADER.encode(), ("rows.csv", "no rows")),
    "a file of another kind": ("rows.xlsx", b"PK", ("rows.xlsx", ".csv", ".parquet")),
    "a file without an extension": ("rows", HEADER.encode(), ("rows", ".csv")),
    "a broken Parquet file": ("rows.parquet", b"PAR1 no more", ("rows.parquet", "cannot be read")),
    "a broken gzip file": ("rows.csv.gz", b"not gzip", ("rows.csv.gz", "cannot be read")),
    "two columns of one name": ("rows.csv", b"hospital,ill,age,age\nnorth,0,1,2\n", ("'age'", "two columns")),
    "a line with a value too many": (
        "rows.csv",
        (HEADER + LINES + "south,0,5,7\n").encode(),
        ("line 6", "rows.csv"),
    ),
    "lines longer than the header": (
        "rows.csv",
        (HEADER + LINES.replace("\n", ",9\n")).encode(),
        ("header",),
    ),
    "a line with a value too few": (
        "rows.csv",
        (HEADER + LINES + "south,0\n").encode(),
        ("'age'", "missing"),
    ),
    "text that is not UTF-8": ("rows.csv", (HEADER + LINES).encode() + b"s\xfcd,0,5\n", ("UTF-8", "0xfc")),
    "semicolons between columns": ("rows.csv", (HEADER + LINES).replace(",", ";").encode(), ("';'", "','")),
    "a saved row number": (
        "rows.csv",
        b",hospital,ill,age\n0,a,0,3\n1,b,1,4\n",
        ("'Unnamed: 0'", "--ignore"),
    ),
}


@pytest.mark.parametrize("name", BAD_FILES)
def test_a_bad_file_is_one_line(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, content, words = BAD_FILES[name]
    path = tmp_path / file
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(fm.InputError) as caught:
        fm.Federation.read(path, "ill", "hospital")
    assert_words(str(caught.value), words)
    assert_words(one_line(capsys, main(command_line(path, {}))), words)


def test_a_folder_is_not_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(fm.InputError, match="folder"):
        fm.Federation.read(tmp_path, "ill", "hospital")
    assert "folder" in one_line(capsys, main(command_line(tmp_path, {})))


# -- arrays -------------------------------------------------------------------------------------------------

X, Y, SITES = np.random.default_rng(1).normal(size=(6, 2)), [0, 1, 0, 1, 0, 1], list("aabbcc")
BAD_ARRAYS: dict[str, tuple[Callable[[], Any], tuple[str, ...]]] = {
    "a matrix of words": (lambda: fm.Federation.from_arrays([["a"]], [0], ["s"]), ("X", "numbers")),
    "a vector for a matrix": (
        lambda: fm.Federation.from_arrays(X[:, 0], Y, SITES),
        ("1 dimensions", "matrix"),
    ),
    "no rows": (lambda: fm.Federation.from_arrays(np.empty((0, 2)), [], []), ("no rows",)),
    "too short a target": (lambda: fm.Federation.from_arrays(X, Y[:5], SITES), ("y", "(5,)", "6 rows")),
    "too many sites": (lambda: fm.Federation.from_arrays(X, Y, [*SITES, "d"]), ("sites", "(7,)", "6 rows")),
    "a site that is missing": (lambda: fm.Federation.from_arrays(X, Y, ["a", None, *SITES[2:]]), ("1 rows",)),
    "a site that is not a number": (
        lambda: fm.Federation.from_arrays(X, Y, np.array([1.0, np.nan, 1, 2, 2, 2])),
        ("sites", "1 rows"),
    ),
    "a missing site beside texts": (
        lambda: fm.Federation.from_arrays(X, Y, ["a", float("nan"), *SITES[2:]]),
        ("sites", "1 rows"),
    ),
    "sites alike as text": (
        lambda: fm.Federation.from_arrays(X, Y, np.array([1, "1", 2, 2, 2, 2], dtype=object)),
        ("same name",),
    ),
    "names that do not match": (
        lambda: fm.Federation.from_arrays(X, Y, SITES, features=["a"]),
        ("1 feature names", "2 columns"),
    ),
    "two features of one name": (
        lambda: fm.Federation.from_arrays(X, Y, SITES, features=["a", "a"]),
        ("'a'", "two columns"),
    ),
    "bounds that are no pair": (
        lambda: fm.Federation.from_arrays(X, Y, SITES, bounds={"x1": 3}),
        ("'x1'", "two numbers"),
    ),
    "bounds that are a text": (
        lambda: fm.Federation.from_arrays(X, Y, SITES, bounds={"x1": "12"}),
        ("'x1'", "two numbers"),
    ),
    "a value that is not a number": (
        lambda: fm.Federation.from_arrays(np.where(X.max() == X, np.nan, X), Y, SITES),
        ("missing", "finite"),
    ),
    "mu in words": (
        lambda: fm.fit(fm.Federation.from_arrays(X, Y, SITES), mu="two"),
        ("mu='two'", "positive"),
    ),
    "no method": (
        lambda: fm.compare(fm.Federation.from_arrays(X, Y, SITES), methods=[]),
        ("at least one method",),
    ),
}


@pytest.mark.parametrize("name", BAD_ARRAYS)
def test_a_bad_array_is_one_line(name: str) -> None:
    call, words = BAD_ARRAYS[name]
    with pytest.raises(fm.InputError) as caught:
        call()
    assert_words(str(caught.value), words)


# -- what must work -----------------------------------------------------------------------------------------


def fitted(frame: pd.DataFrame, **call: Any) -> fm.Result:
    result = run_library(frame, {"seed": 5, "scaling": "none", "ignore": [], **call})
    assert np.isfinite(coef(result)).all()
    return result


@pytest.mark.parametrize("method", ["fedsgd", "fedavg", "fedhybrid", "fednewton", "scaffold"])
def test_sites_with_one_row_or_one_class_or_few_rows_take_part(method: str) -> None:
    frame = good_frame()
    frame["hospital"] = ["one row"] + ["two rows"] * 2 + ["one class"] * 10 + ["rest"] * 47
    frame.loc[frame["hospital"] == "one class", "ill"] = 1
    result = fitted(frame, method=method)
    assert result.n_sites == 4


def test_text_categorical_and_boolean_columns_become_indicators() -> None:
    frame = good_frame().assign(
        smoker=lambda f: f["age"] > 50,
        ward=pd.Categorical(["c", "a", "b"] * 20, categories=["a", "b", "c", "d"]),
    )
    federation = fm.Federation.from_frame(frame, "ill", "hospital")
    assert federation.features == ("age", "bmi", "sex=m", "smoker", "ward=b", "ward=c")
    assert federation.bounds == dict.fromkeys(("sex=m", "smoker", "ward=b", "ward=c"), (0.0, 1.0))
    design = federation.design()
    assert (design[:, 3] == (frame["sex"] == "m")).all()
    assert (design[:, 6] == (frame["ward"] == "c")).all()


def test_nullable_and_decimal_columns_count_as_numbers(tmp_path: Path) -> None:
    from decimal import Decimal

    frame = good_frame()
    plain = fm.Federation.from_frame(frame, "ill", "hospital")
    frame["ill"] = frame["ill"].astype("Int64")
    frame["bmi"] = frame["bmi"].astype("Float64")
    frame["age"] = [Decimal(str(v)) for v in frame["age"]]
    path = tmp_path / "rows.parquet"
    frame.to_parquet(path)
    for other in (
        fm.Federation.from_frame(frame, "ill", "hospital"),
        fm.Federation.read(path, "ill", "hospital"),
    ):
        assert other.features == plain.features
        np.testing.assert_array_equal(other.packed, plain.packed)
        np.testing.assert_array_equal(other.target.astype(float), plain.target.astype(float))


def test_csv_compressed_csv_tsv_and_parquet_give_the_same_estimate(tmp_path: Path) -> None:
    frame = good_frame()
    frame.to_csv(tmp_path / "a.csv", index=False)
    frame.to_csv(tmp_path / "b.tsv", index=False, sep="\t")
    (tmp_path / "c.csv.gz").write_bytes(gzip.compress((tmp_path / "a.csv").read_bytes()))
    frame.to_parquet(tmp_path / "d.parquet")
    estimates = [
        coef(fm.fit(fm.Federation.read(tmp_path / name, "ill", "hospital"), scaling="none", seed=1))
        for name in ("a.csv", "b.tsv", "c.csv.gz", "d.parquet")
    ]
    for other in estimates[1:]:
        np.testing.assert_array_equal(estimates[0], other)


def test_site_numbers_sort_as_numbers_and_may_come_as_floats() -> None:
    frame = good_frame().assign(hospital=np.repeat([10, 2, 1], 20))
    as_int = fm.Federation.from_frame(frame, "ill", "hospital")
    as_float = fm.Federation.from_frame(frame.assign(hospital=frame["hospital"].astype(float)), "ill", "hospital")
    assert as_int.sites.tolist() == as_float.sites.tolist() == ["1", "2", "10"]
    np.testing.assert_array_equal(as_int.packed, as_float.packed)


def test_the_order_of_rows_between_sites_does_not_matter() -> None:
    frame = good_frame()
    shuffled = pd.concat([frame[40:], frame[:20], frame[20:40]])
    np.testing.assert_array_equal(coef(fitted(frame)), coef(fitted(shuffled)))


def test_rows_with_gaps_are_dropped_when_asked() -> None:
    frame = put("age", None)(put("sex", None, row=3)(good_frame()))
    dropped = fm.Federation.from_frame(frame, "ill", "hospital", missing="drop")
    assert dropped.n_rows == ROWS - 2
    assert dropped.sizes.tolist() == [19, 19, 20]


def test_a_category_of_few_levels_may_look_like_numbers() -> None:
    frame = good_frame().assign(stage=["1", "2", "3a"] * 20)
    assert fm.Federation.from_frame(frame, "ill", "hospital").features[-2:] == ("stage=2", "stage=3a")


def test_columns_that_differ_in_one_row_only_are_not_identical() -> None:
    frame = good_frame().assign(years=lambda f: f["age"])
    frame.loc[7, "years"] += 0.01
    assert "years" in fm.Federation.from_frame(frame, "ill", "hospital").features


def test_identical_columns_are_found_among_many_rare_indicators() -> None:
    rng = np.random.default_rng(2)
    X = np.zeros((20_000, 6))
    for j in range(6):
        X[rng.integers(15_000, 20_000, 20), j] = 1.0
    X[:, 5] = X[:, 2]
    with pytest.raises(fm.InputError, match="'x3' and 'x6' are identical"):
        fm.Federation.from_arrays(X, rng.integers(0, 2, 20_000), np.zeros(20_000, dtype=int))


def test_constant_and_identical_columns_stay_in_where_that_is_asked_for() -> None:
    rng = np.random.default_rng(3)
    X = np.column_stack([rng.normal(size=400), np.zeros(400), np.zeros(400)])
    y, sites = rng.integers(0, 2, 400), np.repeat([1, 2], 200)
    fed = fm.Federation.from_arrays(X, y, sites, degenerate="keep")
    assert fed.features == ("x1", "x2", "x3")
    theta = coef(fm.fit(fed, "logistic", "np-pooled", scaling="none"))
    assert theta[2:].tolist() == [0.0, 0.0]
    with pytest.raises(fm.InputError, match="degenerate='drop': choose one of error, keep"):
        fm.Federation.from_arrays(X, y, sites, degenerate="drop")
    X[7, 0] = np.nan
    with pytest.raises(fm.InputError, match="'x1', site '1': a value is missing"):
        fm.Federation.from_arrays(X, y, sites, degenerate="keep")
