"""From a data frame or arrays to checked numbers. An error is one line: what is wrong, where, the way out."""

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from fedmest.core.exceptions import InputError
from fedmest.core.files import nearest
from fedmest.core.typing import Bounds, FloatArray, IntArray, Names

MISSING = ("error", "drop")
DEGENERATE = ("error", "keep")
MAX_LEVELS = 100  # of a text column; more is a name or a free text, not a category
MAX_FEATURE = 1e100  # squares of sums of these are still numbers
MOSTLY_NUMBERS = 0.8  # of a text column's levels: then the others are taken for typing errors

_HOW_TO_DROP = "or drop such rows with --missing drop (in Python: missing='drop')"
_HOW_TO_IGNORE = "leave it out with --ignore (in Python: ignore=[...])"


# -- frames --------------------------------------------------------------------------------------------------


def choose_columns(
    frame: pd.DataFrame, target: str, site: str, features: Sequence[str] | None, ignore: Iterable[str]
) -> list[str]:
    """The feature columns that are named, or all others."""
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
            raise InputError(f"feature {name!r} is named twice; name it once")
        if name in ignored:
            raise InputError(f"column {name!r} is both a feature and ignored; choose one")
        if features is None and name.startswith("Unnamed: "):
            raise InputError(f"column {name!r} has no name in the file (a row number?); {_HOW_TO_IGNORE}")
    if not wanted:
        raise InputError("no feature column is left beside target and site; name one")
    return wanted


def check_sites(labels: "pd.Series[Any]") -> None:
    """Every row has a site."""
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
        _check_typos(f"target {column.name!r}", codes, levels, labels)
    return column.to_numpy()


def encode(frame: pd.DataFrame, labels: "pd.Series[Any]") -> tuple[FloatArray, list[str], Bounds]:
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
            _check_typos(f"column {name!r}", codes, levels, labels)
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


def _levels(column: "pd.Series[Any]") -> tuple[IntArray, list[str]]:
    """Codes into the sorted distinct texts; -1 where the value is missing."""
    codes, values = pd.factorize(column)
    levels, places = np.unique(np.array([str(v) for v in values], dtype=object), return_inverse=True)
    return np.append(places, -1)[codes], levels.tolist()


def _check_typos(what: str, codes: IntArray, levels: list[str], labels: "pd.Series[Any]") -> None:
    """A text among numbers is a typing error, not a category."""
    is_text = pd.to_numeric(pd.Series(levels, dtype=object), errors="coerce").isna().to_numpy()
    if len(levels) > 10 and 0 < is_text.sum() <= (1 - MOSTLY_NUMBERS) * len(levels):
        typo = int(np.flatnonzero(is_text)[0])
        site = str(labels.iloc[int(np.flatnonzero(codes == typo)[0])])
        raise InputError(f"{what}, site {site!r}: {levels[typo]!r} is not a number, but most are; fix it")


def _check_levels(name: str, levels: list[str], rows: int) -> None:
    if len(levels) == 1:
        raise InputError(f"column {name!r} is constant ({levels[0]!r} in every row); {_HOW_TO_IGNORE}")
    if len(levels) > MAX_LEVELS or len(levels) > max(10, rows // 2):
        raise InputError(
            f"column {name!r} has {len(levels)} distinct texts such as {levels[0]!r}; group them, turn dates "
            f"into numbers, or {_HOW_TO_IGNORE}"
        )


# -- arrays --------------------------------------------------------------------------------------------------


def matrix(X: npt.ArrayLike) -> FloatArray:
    """X as a (rows, features) matrix of numbers."""
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
    """One value per row. Lists go through pandas, which keeps a missing value beside texts a missing value."""
    try:
        array = pd.Series(values).to_numpy() if isinstance(values, (list, tuple)) else np.asarray(values)
    except ValueError as error:
        raise InputError(f"{name} is not a column of values ({error}); give one value per row") from None
    if array.shape != (rows,):
        raise InputError(f"{name} has shape {array.shape} where X has {rows} rows; give one value per row")
    return array


def site_codes(labels: npt.NDArray[Any]) -> tuple[IntArray, Names]:
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
    """No two columns have the same name."""
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise InputError(f"there are two columns named {name!r}; rename or remove one")
        seen.add(name)


def check_features(
    values: FloatArray, names: Sequence[str], bounds: Bounds, codes: IntArray, sites: Names, keep: bool
) -> None:
    """Features are finite and within declared bounds; unless `keep`, none is constant and no two are identical."""
    lows, highs = values.min(axis=0), values.max(axis=0)  # not a number spreads into both
    for j, name in enumerate(names):
        if not (math.isfinite(lows[j]) and math.isfinite(highs[j])):
            row = int(np.flatnonzero(~np.isfinite(values[:, j]))[0])
            what = "missing" if math.isnan(values[row, j]) else "infinite"
            raise InputError(
                f"column {name!r}, site {_site(row, codes, sites)}: a value is {what}; every feature must "
                "be a finite number, so fix it or leave the column out"
            )
        if lows[j] == highs[j] and not keep:
            raise InputError(f"column {name!r} is constant ({lows[j]:g} in every row); {_HOW_TO_IGNORE}")
        if name in bounds:
            _check_range(f"column {name!r}", values[:, j], lows[j], highs[j], bounds[name], codes, sites)
    twins = None if keep else _twins(values)
    if twins is not None:
        first, second = (names[j] for j in twins)
        raise InputError(f"columns {first!r} and {second!r} are identical; of the second, {_HOW_TO_IGNORE}")


def _twins(values: FloatArray) -> tuple[int, int] | None:
    """Two equal columns, found by one pass of random sums and looked at in full only where these agree."""
    weights = np.random.default_rng(0).uniform(0.5, 1.5, len(values)) / len(values)
    sums = weights @ values
    order = np.argsort(sums)
    for a, b in pairwise(order):
        if np.isclose(sums[a], sums[b], rtol=1e-9, atol=0.0) and (values[:, a] == values[:, b]).all():
            return int(min(a, b)), int(max(a, b))
    return None


def check_target(values: npt.NDArray[Any], name: str, bounds: Bounds, codes: IntArray, sites: Names) -> None:
    """The target is present in every row, and within declared bounds."""
    if values.dtype.kind == "c":
        raise InputError(f"target {name!r} holds complex numbers; it must be real numbers or categories")
    absent = ~np.isfinite(values) if values.dtype.kind == "f" else np.asarray(pd.isna(values))
    if absent.any():
        row = int(np.flatnonzero(absent)[0])
        infinite = values.dtype.kind == "f" and math.isinf(values[row])
        what = "infinite; fix it" if infinite else f"missing; fill it in, {_HOW_TO_DROP}"
        raise InputError(f"target {name!r}, site {_site(row, codes, sites)}: a value is {what}")
    if name in bounds:
        if values.dtype.kind not in "fiub":
            raise InputError(f"target {name!r} is not a number, so it cannot have bounds; take them away")
        _check_range(f"target {name!r}", values, values.min(), values.max(), bounds[name], codes, sites)


def _check_range(
    what: str,
    values: npt.NDArray[Any],
    lowest: float,
    highest: float,
    bounds: tuple[float, float],
    codes: IntArray,
    sites: Names,
) -> None:
    low, high = bounds
    if lowest < low or highest > high:
        row = int(np.flatnonzero((values < low) | (values > high))[0])
        raise InputError(
            f"{what}, site {_site(row, codes, sites)}: value {values[row]:g} lies outside the declared "
            f"bounds {low:g}:{high:g}; widen the bounds or fix the value"
        )


def declared_bounds(bounds: Mapping[str, Any], names: Sequence[str], target: str) -> Bounds:
    """Declared ranges as pairs of finite numbers, each of a column that is used."""
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


def _site(row: int, codes: IntArray, sites: Names) -> str:
    return repr(sites[codes[row]])
