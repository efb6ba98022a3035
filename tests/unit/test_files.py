"""Tables of TOML and JSON read into dataclasses, errors in one line, and files that are written whole."""

import math
import os
import stat
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pytest

from fedmest.core.exceptions import FedmestError, InputError
from fedmest.core.files import (
    entry,
    make_private_folder,
    nearest,
    open_private,
    positive,
    read_table,
    read_toml,
    write_atomic,
)
from fedmest.runs.checkpoint import Checkpoint


@dataclass(frozen=True)
class Part:
    name: str = entry(table_name=True)
    low: float | None = None
    whole: bool = False

    def __post_init__(self) -> None:
        if self.low == 13:
            raise InputError("low = 13 brings bad luck; choose another")


@dataclass(frozen=True)
class Inner:
    depth: int = 3


@dataclass(frozen=True)
class Table:
    text: str
    count: int
    mu: float = entry(check=positive)
    either: str | float | None = None
    names: tuple[str, ...] = entry((), choices=("linear", "logistic"))
    clip: str | float | None = entry(None, choices=("private", "paper"), check=positive)
    pairs: dict[str, tuple[float, float]] = field(default_factory=dict)
    parts: dict[str, Part] = field(default_factory=dict)
    inner: Inner | None = None
    mode: Literal["a", "b"] = "a"
    place: Path = entry(Path("here"), key="files.place")
    limit: float = entry(math.inf, key="files.limit")
    options: dict[str, Any] = field(default_factory=dict)
    many: list[int] = field(default_factory=list)


LEAST = {"text": "x", "count": 2, "mu": 1}


def test_values_take_the_types_of_their_fields_and_the_rest_their_defaults() -> None:
    given = {
        **LEAST, "either": 3, "names": ["linear"], "clip": 2, "pairs": {"age": [0, 100]}, "parts": {"age": {"low": 1}},
        "inner": {"depth": 5}, "mode": "b", "files": {"place": "there"}, "options": {"K": 0.5}, "many": [1, 2],
    }  # fmt: skip
    table = read_table(Table, given, "f.toml", folder=Path("/home"))
    assert table == Table(
        "x", 2, 1.0, 3.0, ("linear",), 2.0, {"age": (0.0, 100.0)}, {"age": Part("age", 1.0)}, Inner(5), "b",
        Path("/home/there"), math.inf, {"K": 0.5}, [1, 2],
    )  # fmt: skip
    assert isinstance(table.mu, float)
    assert isinstance(table.either, float)
    least = read_table(Table, LEAST, "f.toml", folder=Path("/home"))
    assert least == Table("x", 2, 1.0, place=Path("/home/here"))
    assert read_table(Table, {**LEAST, "either": None}, "f").either is None
    assert read_table(Table, {**LEAST, "clip": "paper"}, "f").clip == "paper"
    assert read_table(Inner, {}, "f", depth=7) == Inner(7)


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ({"txet": 1}, "f has no key 'txet'; did you mean 'text'?"),
        ({"filse": {}}, "f has no table [filse]; did you mean 'files'?"),
        ({"zzz": 1}, "f has no key 'zzz'; the keys are text, count, mu, either, names, clip, pairs, parts, inner, mode,"
                     " files, options and 1 more"),
        ({"text": 1}, "f: text = 1 must be a string"),
        ({"count": True}, "f: count = True must be a whole number"),
        ({"count": 1.0}, "f: count = 1.0 must be a whole number"),
        ({"mu": "2"}, "f: mu = '2' must be a number"),
        ({"mu": False}, "f: mu = False must be a number"),
        ({"mu": 10**400}, f"f: mu = 1{'0' * 76}... must be a number"),
        ({"mu": -1}, "f: mu = -1 must be a positive number"),
        ({"mu": math.nan}, "f: mu = nan must be a positive number"),
        ({"either": [1]}, "f: either = [1] must be a string or a number"),
        ({"names": "linear"}, "f: names = 'linear' must be a list of strings"),
        ({"names": [1]}, "f: names = [1] must be a list of strings"),
        ({"names": ["logistc"]}, "f: names = 'logistc' must be one of linear, logistic; did you mean 'logistic'?"),
        ({"clip": "papr"}, "f: clip = 'papr' must be one of private, paper or a number; did you mean 'paper'?"),
        ({"clip": -2}, "f: clip = -2 must be a positive number"),
        ({"pairs": 3}, "f: pairs = 3 must be a table"),
        ({"pairs": {"age": [0]}}, "f: [pairs] age = [0] must be a list of 2 numbers"),
        ({"parts": {"age": 3}}, "f: [parts] age = 3 must be a table, written [parts.age]"),
        ({"parts": {"age": {"lo": 3}}}, "f: [parts.age] has no key 'lo'; did you mean 'low'?"),
        ({"parts": {"age": {"name": "x"}}}, "f: [parts.age] has no key 'name'; the keys are low, whole"),
        ({"parts": {"age": {"whole": 0}}}, "f: [parts.age] whole = 0 must be true or false"),
        ({"parts": {"age": {"low": 13}}}, "f: [parts.age]: low = 13 brings bad luck; choose another"),
        ({"inner": {"depth": "x"}}, "f: [inner] depth = 'x' must be a whole number"),
        ({"inner": 3}, "f: inner = 3 must be a table"),
        ({"mode": "c"}, "f: mode = 'c' must be one of 'a', 'b'"),
        ({"files": 3}, "f: files = 3 must be a table, written [files]"),
        ({"files": {"place": 3}}, "f: [files] place = 3 must be a path (a string)"),
        ({"files": {"limt": 3}}, "f: [files] has no key 'limt'; did you mean 'limit'?"),
        ({"many": [True]}, "f: many = [True] must be a list of whole numbers"),
    ],
)  # fmt: skip
def test_an_error_is_one_line_with_file_key_value_and_the_way_out(given: dict[str, Any], line: str) -> None:
    with pytest.raises(InputError) as caught:
        read_table(Table, {**LEAST, **given}, "f")
    assert str(caught.value) == line
    assert isinstance(caught.value, FedmestError)


def test_a_missing_key_is_named_with_its_type() -> None:
    with pytest.raises(InputError, match=r"^f needs count = \.\.\., a whole number$"):
        read_table(Table, {"text": "x", "mu": 1.0}, "f")
    with pytest.raises(InputError, match=r"^f: \[below\] needs text = "):
        read_table(Table, {}, "f", section="below")
    with pytest.raises(InputError, match=r"^f must be a table$"):
        read_table(Table, [1], "f")


def test_the_way_out_of_a_mistyped_name_is_the_likely_one_or_a_short_list() -> None:
    assert nearest("modle", ["model"]) == "did you mean 'model'?"
    assert nearest("x", [f"name{i}" for i in range(14)]).endswith("name11 and 2 more")


def test_a_toml_file_that_cannot_be_had_is_an_input_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is a folder; name a TOML file"):
        read_toml(tmp_path)
    with pytest.raises(InputError, match="there is no file"):
        read_toml(tmp_path / "none")
    (tmp_path / "bad").write_bytes(b"\xff = 1")
    with pytest.raises(InputError, match="is not valid TOML"):
        read_toml(tmp_path / "bad")


def test_a_write_that_fails_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "file.json"
    write_atomic(path, lambda file: file.write(b"old"))

    def fail(file: Any) -> None:
        file.write(b"new")
        raise RuntimeError

    with pytest.raises(RuntimeError):
        write_atomic(path, fail)
    assert path.read_bytes() == b"old"


@pytest.mark.parametrize("umask", [0, 0o022, 0o277])
def test_files_and_folders_are_for_their_owner_whatever_the_umask(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        make_private_folder(tmp_path / "above" / "below")
        make_private_folder(tmp_path / "above" / "below")
        write_atomic(tmp_path / "above" / "file", lambda file: file.write(b"text"))
        with Checkpoint(tmp_path / "fits" / "one", "identity", 7):
            pass
    finally:
        os.umask(before)
    modes = {str(p.relative_to(tmp_path)): stat.S_IMODE(p.stat().st_mode) for p in tmp_path.rglob("*")}
    assert modes == {
        "above": 0o700, "above/below": 0o700, "above/file": 0o600,
        "fits": 0o700, "fits/one": 0o700, "fits/one/lock": 0o600, "fits/one/fit.json": 0o600,
    }  # fmt: skip


def test_a_file_that_others_could_read_is_closed_to_them_and_a_folder_stays(tmp_path: Path) -> None:
    (tmp_path / "file").touch(0o666)
    os.close(open_private(tmp_path / "file", os.O_WRONLY))
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o600
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder").chmod(0o755)
    make_private_folder(tmp_path / "folder")
    assert stat.S_IMODE((tmp_path / "folder").stat().st_mode) == 0o755
    os.close(open_private(Path(os.devnull), os.O_WRONLY))
    assert stat.S_IMODE(Path(os.devnull).stat().st_mode) != 0o600
