"""From a file or a data frame to checked numbers. A fault is said in one line: what, where, the way out."""

import math
import re
import tomllib
import warnings
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from fedmest.errors import InputError
from fedmest.privacy.gdp import Array

MISSING = ("error", "drop")
DEGENERATE = ("error", "keep")
MOST_LEVELS = 100  # of a text column; more is a name or a free text, not a category
LARGEST_FEATURE = 1e100  # squares of sums of these are still numbers
MOSTLY_NUMBERS = 0.8  # of a text column's levels: then the rest are slips of the pen
SCHEMA_KEYS = {"target": str, "site": str, "model": str, "features": list, "ignore": list, "bounds": dict}

Index = npt.NDArray[np.int64]
Bounds = dict[str, tuple[float, float]]
Names = npt.NDArray[np.object_]

_HOW_TO_DROP = "or drop such rows with --missing drop (in Python: missing='drop')"
_HOW_TO_IGNORE = "leave it out with --ignore (in Python: ignore=[...])"


# -- files ---------------------------------------------------------------------------------------------------


def read_frame(path: str | Path) -> pd.DataFrame:
    """A CSV (.csv, .tsv, also compressed: .csv.gz) or Parquet (.parquet, .pq) file as a data frame."""
    path = Path(path)
    _check_file(path, "a CSV or Parquet file")
    suffixes = [s.lower() for s in path.suffixes]
    try:
        if suffixes and suffixes[-1] in {".parquet", ".pq"}:
            frame = pd.read_parquet(path)
        elif ".csv" in suffixes or ".tsv" in suffixes:
            frame = _read_text(path, "\t" if ".tsv" in suffixes else ",")
        else:
            raise InputError(f"{path}: the name must end in .csv, .tsv, .csv.gz or .parquet; rename it")
    except (InputError, MemoryError):
        raise
    except pd.errors.EmptyDataError:
        raise InputError(f"{path} is empty; it needs a header line and rows") from None
    except UnicodeDecodeError as error:
        byte = error.object[error.start]
        raise InputError(f"{path} is not UTF-8 text (byte 0x{byte:02x}); save it in UTF-8") from None
    except Exception as error:
        raise InputError(f"{path} cannot be read as {path.suffix}: {_first_line(error)}") from None
    if len(frame) == 0:
        raise InputError(f"{path} has a header but no rows")
    return frame


def _read_text(path: Path, separator: str) -> pd.DataFrame:
    header = pd.read_csv(path, sep=separator, header=None, nrows=1, dtype=str).iloc[0].dropna().tolist()
    check_unique(header)
    if len(header) == 1 and (other := re.search(r"[;\t|,]", header[0])):
        raise InputError(f"{path}: columns seem to be separated by {other[0]!r}; save it with {separator!r}")
    with warnings.catch_warnings():
        # lines longer than the header would lose their last values with no more than a warning
        warnings.simplefilter("error", pd.errors.ParserWarning)
        try:
            return pd.read_csv(path, sep=separator, index_col=False, low_memory=False)
        except pd.errors.ParserWarning:
            raise InputError(f"{path}: the lines have more values than the header has names") from None


def read_schema(path: str | Path) -> dict[str, Any]:
    """What a TOML file says: `target`, `site`, `model`, `features`, `ignore`, `[bounds] age = [0, 100]`."""
    schema = read_toml(path)
    for key, value in schema.items():
        if key not in SCHEMA_KEYS:
            hint = nearest(key, SCHEMA_KEYS, "the keys are")
            raise InputError(f"schema {path}: there is no key {key!r}; {hint}")
        kind = SCHEMA_KEYS[key]
        if not isinstance(value, kind) or (kind is list and not all(isinstance(v, str) for v in value)):
            what = {str: "a text", list: "a list of column names", dict: "a table, column = [low, high]"}
            raise InputError(f"schema {path}: {key} must be {what[kind]}, not {value!r}")
    return schema


def read_toml(path: str | Path) -> dict[str, Any]:
    """What a TOML file holds, or an InputError that says why it cannot be had."""
    path = Path(path)
    _check_file(path, "a TOML file")
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path} is not valid TOML: {_first_line(error)}") from None
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from None


def _check_file(path: Path, wanted: str) -> None:
    if path.is_dir():
        raise InputError(f"{path} is a folder; name {wanted}")
    if not path.exists():
        raise InputError(f"there is no file {path}")


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


# -- frames --------------------------------------------------------------------------------------------------


def choose_columns(
    frame: pd.DataFrame, target: str, site: str, features: Sequence[str] | None, ignore: Iterable[str]
) -> list[str]:
    """The feature columns that the call names, or all that are left."""
    ignored = [str(c) for c in ignore]
    others = [c for c in frame.columns if c not in {target, site, *ignored}]
    wanted = [str(c) for c in features] if features is not None else others
    for role, names in (("target", [target]), ("site", [site]), ("ignored", ignored), ("feature", wanted)):
        for name in names:
            if name not in frame.columns:
                raise InputError(f"there is no {role} column {name!r}; {nearest(name, frame.columns)}")
    if target == site:
        raise InputError(f"column {target!r} is named both as target and as site; name two columns")
    for role, name in (("target", target), ("site", site)):
        if name in wanted:
            raise InputError(f"column {name!r} is the {role}; leave it out of the features")
    for name in wanted:
        if wanted.count(name) > 1:
            raise InputError(f"feature {name!r} is named twice; once will do")
        if name in ignored:
            raise InputError(f"column {name!r} is both a feature and ignored; choose one")
        if features is None and name.startswith("Unnamed: "):
            raise InputError(f"column {name!r} has no name in the file (a row number?); {_HOW_TO_IGNORE}")
    if not wanted:
        raise InputError("no feature column is left beside target and site; name one")
    return wanted


def check_sites(labels: "pd.Series[Any]") -> None:
    absent = labels.isna()
    if absent.any():
        rows = int(absent.sum())
        raise InputError(f"site column {labels.name!r}: {rows} rows have no site; fill it in, {_HOW_TO_DROP}")


def target_values(column: "pd.Series[Any]", labels: "pd.Series[Any]") -> npt.NDArray[Any]:
    """A target column as an array: numbers where it holds numbers, else the values as they are."""
    kind = _kind(column)
    if kind == "date":
        raise InputError(f"target {column.name!r} holds dates; turn it into a number (days, years)")
    if kind == "number":
        return column.to_numpy(dtype=float, na_value=math.nan)
    if kind == "text":
        codes, levels = _levels(column)
        _check_slips(f"target {column.name!r}", codes, levels, labels)
    return column.to_numpy()


def encode(frame: pd.DataFrame, labels: "pd.Series[Any]") -> tuple[Array, list[str], Bounds]:
    """Numbers as they are; everything else as indicators, whose bounds are 0 and 1 by construction."""
    parts: list[npt.NDArray[Any]] = []
    names: list[str] = []
    implied: Bounds = {}
    for name in map(str, frame.columns):
        column = frame[name]
        absent = column.isna()
        if absent.any():
            raise InputError(
                f"column {name!r}, site {str(labels[absent].iloc[0])!r}: a value is missing "
                f"({int(absent.sum())} in all); fill it in, {_HOW_TO_DROP}"
            )
        kind = _kind(column)
        if kind == "date":
            raise InputError(f"column {name!r} holds dates; turn it into days or years, or {_HOW_TO_IGNORE}")
        if kind == "number":
            parts.append(column.to_numpy(dtype=float))
            names.append(name)
        elif kind == "boolean":
            parts.append(column.to_numpy(dtype=bool))
            names.append(name)
            implied[name] = (0.0, 1.0)
        else:
            codes, levels = _levels(column)
            _check_slips(f"column {name!r}", codes, levels, labels)
            _check_levels(name, levels, len(column))
            for code, level in enumerate(levels[1:], start=1):
                parts.append(codes == code)
                names.append(f"{name}={level}")
                implied[names[-1]] = (0.0, 1.0)
    values = np.empty((len(frame), len(parts)), order="F")
    for j, part in enumerate(parts):
        values[:, j] = part
    return values, names, implied


def _kind(column: "pd.Series[Any]") -> str:
    """number, boolean, date or text."""
    dtype = column.dtype
    if pd.api.types.is_bool_dtype(dtype):
        return "boolean"
    if pd.api.types.is_complex_dtype(dtype):
        raise InputError(f"column {column.name!r} holds complex numbers; split it into real columns")
    if pd.api.types.is_numeric_dtype(dtype):
        return "number"
    if pd.api.types.is_datetime64_any_dtype(dtype) or pd.api.types.is_timedelta64_dtype(dtype):
        return "date"
    if pd.api.types.is_object_dtype(dtype):  # Parquet's dates and decimals arrive as Python objects
        inferred = pd.api.types.infer_dtype(column, skipna=True)
        if inferred in {"date", "datetime", "time"}:
            return "date"
        return {"decimal": "number", "boolean": "boolean"}.get(inferred, "text")
    return "text"


def _levels(column: "pd.Series[Any]") -> tuple[Index, list[str]]:
    """Codes into the sorted distinct texts; -1 where the value is missing."""
    codes, values = pd.factorize(column)
    levels, places = np.unique(np.array([str(v) for v in values], dtype=object), return_inverse=True)
    return np.append(places, -1)[codes], levels.tolist()


def _check_slips(what: str, codes: Index, levels: list[str], labels: "pd.Series[Any]") -> None:
    """A text among numbers is a slip, not a category."""
    is_text = pd.to_numeric(pd.Series(levels, dtype=object), errors="coerce").isna().to_numpy()
    if len(levels) > 10 and 0 < is_text.sum() <= (1 - MOSTLY_NUMBERS) * len(levels):
        slip = int(np.flatnonzero(is_text)[0])
        site = str(labels.iloc[int(np.flatnonzero(codes == slip)[0])])
        raise InputError(f"{what}, site {site!r}: {levels[slip]!r} is no number, but most are; mend it")


def _check_levels(name: str, levels: list[str], rows: int) -> None:
    if len(levels) == 1:
        raise InputError(f"column {name!r} is constant ({levels[0]!r} in every row); {_HOW_TO_IGNORE}")
    if len(levels) > MOST_LEVELS or len(levels) > max(10, rows // 2):
        raise InputError(
            f"column {name!r} has {len(levels)} distinct texts such as {levels[0]!r}; group them, turn dates "
            f"into numbers, or {_HOW_TO_IGNORE}"
        )


# -- arrays --------------------------------------------------------------------------------------------------


def matrix(X: npt.ArrayLike) -> Array:
    try:
        values = np.asarray(X, dtype=float)
    except (TypeError, ValueError) as error:
        raise InputError(f"X is not a matrix of numbers ({error}); from_frame takes text columns") from None
    if values.ndim != 2:
        raise InputError(f"X has {values.ndim} dimensions where a matrix (rows, features) is needed")
    if len(values) == 0:
        raise InputError("there are no rows; X needs at least one")
    return values


def vector(values: npt.ArrayLike, name: str, rows: int) -> npt.NDArray[Any]:
    """One value a row. Lists go through pandas, which keeps a missing value beside texts a missing value."""
    try:
        array = pd.Series(values).to_numpy() if isinstance(values, (list, tuple)) else np.asarray(values)
    except ValueError as error:
        raise InputError(f"{name} is not a column of values ({error}); one value a row") from None
    if array.shape != (rows,):
        raise InputError(f"{name} has shape {array.shape} where X has {rows} rows; one value a row")
    return array


def site_codes(labels: npt.NDArray[Any]) -> tuple[Index, Names]:
    """Site labels as codes into the sorted names. Numbers sort as numbers; all names are text afterwards."""
    if labels.dtype.kind == "f" and not np.isnan(labels).any() and (labels == np.floor(labels)).all():
        labels = labels.astype(np.int64)
    codes, unique = pd.factorize(labels, sort=labels.dtype.kind in "iuf")
    if (codes < 0).any():
        raise InputError(f"sites: the label is missing in {int((codes < 0).sum())} rows; fill it in")
    names = np.array([str(name) for name in unique], dtype=object)
    if len(set(names)) < len(names):
        raise InputError("two sites have the same name when written as text; make the site labels distinct")
    if labels.dtype.kind not in "iuf":
        rank = np.argsort(names, kind="stable")
        place = np.empty_like(rank)
        place[rank] = np.arange(len(rank))
        codes, names = place[codes], names[rank]
    return np.asarray(codes, dtype=np.int64), names


def check_unique(names: Iterable[str]) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise InputError(f"there are two columns named {name!r}; rename or remove one")
        seen.add(name)


def check_features(
    values: Array, names: Sequence[str], bounds: Bounds, codes: Index, sites: Names, keep: bool
) -> None:
    """Finite, within declared bounds, and unless such are to be kept, not constant and no two alike."""
    lows, highs = values.min(axis=0), values.max(axis=0)  # not a number spreads into both
    for j, name in enumerate(names):
        if not (math.isfinite(lows[j]) and math.isfinite(highs[j])):
            row = int(np.flatnonzero(~np.isfinite(values[:, j]))[0])
            what = "missing" if math.isnan(values[row, j]) else "infinite"
            raise InputError(
                f"column {name!r}, site {_site(row, codes, sites)}: a value is {what}; every feature must "
                "be a finite number, so mend it or leave the column out"
            )
        if lows[j] == highs[j] and not keep:
            raise InputError(f"column {name!r} is constant ({lows[j]:g} in every row); {_HOW_TO_IGNORE}")
        if name in bounds:
            _check_range(f"column {name!r}", values[:, j], lows[j], highs[j], bounds[name], codes, sites)
    twins = None if keep else _twins(values)
    if twins is not None:
        first, second = (names[j] for j in twins)
        raise InputError(f"columns {first!r} and {second!r} are identical; of the second, {_HOW_TO_IGNORE}")


def _twins(values: Array) -> tuple[int, int] | None:
    """Two equal columns, found by one pass of random sums and looked at in full only where these agree."""
    weights = np.random.default_rng(0).uniform(0.5, 1.5, len(values)) / len(values)
    sums = weights @ values
    order = np.argsort(sums)
    for a, b in pairwise(order):
        if np.isclose(sums[a], sums[b], rtol=1e-9, atol=0.0) and (values[:, a] == values[:, b]).all():
            return int(min(a, b)), int(max(a, b))
    return None


def check_target(values: npt.NDArray[Any], name: str, bounds: Bounds, codes: Index, sites: Names) -> None:
    """Present in every row, and within declared bounds."""
    if values.dtype.kind == "c":
        raise InputError(f"target {name!r} holds complex numbers; it must be real numbers or categories")
    absent = ~np.isfinite(values) if values.dtype.kind == "f" else np.asarray(pd.isna(values))
    if absent.any():
        row = int(np.flatnonzero(absent)[0])
        infinite = values.dtype.kind == "f" and math.isinf(values[row])
        what = "infinite; mend it" if infinite else f"missing; fill it in, {_HOW_TO_DROP}"
        raise InputError(f"target {name!r}, site {_site(row, codes, sites)}: a value is {what}")
    if name in bounds:
        if values.dtype.kind not in "fiub":
            raise InputError(f"target {name!r} is not a number, so it cannot have bounds; take them away")
        _check_range(f"target {name!r}", values, values.min(), values.max(), bounds[name], codes, sites)


def _check_range(
    what: str, values: npt.NDArray[Any], lowest: float, highest: float, bounds: tuple[float, float],
    codes: Index, sites: Names,
) -> None:  # fmt: skip
    low, high = bounds
    if lowest < low or highest > high:
        row = int(np.flatnonzero((values < low) | (values > high))[0])
        raise InputError(
            f"{what}, site {_site(row, codes, sites)}: value {values[row]:g} lies outside the declared "
            f"bounds {low:g}:{high:g}; widen the bounds or mend the value"
        )


def declared_bounds(bounds: Mapping[str, Any], names: Sequence[str], target: str) -> Bounds:
    declared: Bounds = {}
    for name, pair in bounds.items():
        if name not in names and name != target:
            if any(n.startswith(f"{name}=") for n in names):
                raise InputError(f"column {name!r} is text and cannot have bounds; its indicators lie in 0:1")
            raise InputError(f"bounds for a column {name!r} that is not used; {nearest(name, names)}")
        try:
            low, high = (math.nan, math.nan) if isinstance(pair, str) else (float(v) for v in pair)
        except (TypeError, ValueError):
            low, high = math.nan, math.nan
        if math.isnan(low + high):
            raise InputError(f"bounds of column {name!r} must be two numbers, low and high, not {pair!r}")
        if not (math.isfinite(low) and math.isfinite(high) and low < high):
            raise InputError(f"bounds {low:g}:{high:g} of column {name!r} must be finite, low below high")
        declared[str(name)] = (low, high)
    return declared


def nearest(name: str, names: Iterable[Any], listed: str = "the columns are") -> str:
    """The way out of a mistyped name: the likely one, or the list."""
    known = [str(n) for n in names]
    if close := get_close_matches(name, known, n=1):
        return f"did you mean {close[0]!r}?"
    return f"{listed} " + ", ".join(known[:12]) + (f" and {len(known) - 12} more" if len(known) > 12 else "")


def _site(row: int, codes: Index, sites: Names) -> str:
    return repr(sites[codes[row]])
