"""The rows of all sites, packed for compiled loops.

Rows are sorted by site and stored in tiles of at most TILE rows of one site. Within a tile the matrix is
feature-major (columns x rows), so that loops over rows are contiguous and vectorise; a site's last tile is just
narrower, so ragged sites need no padding. The first column is the intercept's: ones.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numba as nb
import numpy as np
import numpy.typing as npt
import pandas as pd

from fedmest.errors import InputError
from fedmest.privacy.gdp import Array
from fedmest.privacy.noise import Keys, site_keys

TILE = 64
MISSING = ("error", "drop")

Index = npt.NDArray[np.int64]
Bounds = dict[str, tuple[float, float]]


@nb.njit("void(f8[:, :], i8[::1], i8[::1], f8[::1])", parallel=True, cache=True)
def _pack(values, order, offsets, packed):  # type: ignore[no-untyped-def]
    """Write rows `values[order]` as tiles with a leading column of ones."""
    columns = values.shape[1] + 1
    for site in nb.prange(offsets.size - 1):
        for first in range(offsets[site], offsets[site + 1], TILE):
            width = min(TILE, offsets[site + 1] - first)
            tile = packed[first * columns : (first + width) * columns].reshape(columns, width)
            for i in range(width):
                row = order[first + i]
                tile[0, i] = 1.0
                for j in range(1, columns):
                    tile[j, i] = values[row, j - 1]


@nb.njit("void(f8[::1], i8[::1], i8, i8[::1], i8[::1], f8[::1], f8[::1], i8, f8[::1])", parallel=True, cache=True)
def _repack(source, offsets, columns, order, new_offsets, centre, scale, skip, packed):  # type: ignore[no-untyped-def]
    """Copy the rows `order` of `source`, shifted and scaled, without the first `skip` columns."""
    kept = columns - skip
    for site in nb.prange(new_offsets.size - 1):
        begin, end = offsets[site], offsets[site + 1]
        for first in range(new_offsets[site], new_offsets[site + 1], TILE):
            width = min(TILE, new_offsets[site + 1] - first)
            tile = packed[first * kept : (first + width) * kept].reshape(kept, width)
            for i in range(width):
                row = order[first + i]
                old_first = begin + (row - begin) // TILE * TILE
                old_width = min(TILE, end - old_first)
                start = old_first * columns + row - old_first
                for j in range(kept):
                    value = source[start + (j + skip) * old_width]
                    tile[j, i] = (value - centre[j + skip]) / scale[j + skip]


@nb.njit("void(f8[::1], i8[::1], i8, f8[::1])", parallel=True, cache=True)
def _row_norms(packed, offsets, columns, norms):  # type: ignore[no-untyped-def]
    for site in nb.prange(offsets.size - 1):
        for first in range(offsets[site], offsets[site + 1], TILE):
            width = min(TILE, offsets[site + 1] - first)
            tile = packed[first * columns : (first + width) * columns].reshape(columns, width)
            norm = norms[first : first + width]
            norm[:] = 0.0
            for j in range(columns):
                for i in range(width):
                    norm[i] += tile[j, i] * tile[j, i]
            for i in range(width):
                # never below the exact norm: clipping divides by this
                norm[i] = math.sqrt(norm[i]) * (1.0 + 1e-14)


@dataclass(frozen=True)
class Rows:
    """Packed rows of sites, as the compiled loops read them. Features already scaled, target as numbers."""

    packed: Array
    offsets: Index
    columns: int
    y: Array
    norms: Array = field(repr=False)

    @staticmethod
    def of(packed: Array, offsets: Index, columns: int, y: Array) -> "Rows":
        norms = np.empty(len(y))
        _row_norms(packed, offsets, columns, norms)
        return Rows(packed, offsets, columns, y, norms)

    @property
    def sizes(self) -> Index:
        return np.diff(self.offsets)

    def matrix(self) -> Array:
        """All rows as an ordinary (rows, columns) matrix; for predictions and tests, not for loops."""
        out = np.empty((len(self.y), self.columns))
        for begin, end in zip(self.offsets[:-1], self.offsets[1:], strict=True):
            for first in range(begin, end, TILE):
                last = min(first + TILE, end)
                tile = self.packed[first * self.columns : last * self.columns]
                out[first:last] = tile.reshape(self.columns, last - first).T
        return out

    def halves(self, seed: int) -> tuple["Rows", "Rows"]:
        """Each site's rows split at random into two parts (the first gets the odd row); blind to their content."""
        rng = np.random.default_rng([seed, 0x5911])
        order = np.lexsort((rng.random(len(self.y)), np.repeat(np.arange(len(self.sizes)), self.sizes)))
        rank = np.arange(len(self.y)) - np.repeat(self.offsets[:-1], self.sizes)
        in_first = rank < np.repeat((self.sizes + 1) // 2, self.sizes)
        return self._take(order[in_first], (self.sizes + 1) // 2), self._take(order[~in_first], self.sizes // 2)

    def _take(self, order: Index, sizes: Index) -> "Rows":
        offsets = np.concatenate(([0], np.cumsum(sizes))).astype(np.int64)
        packed = np.empty(len(order) * self.columns)
        zeros, ones = np.zeros(self.columns), np.ones(self.columns)
        _repack(self.packed, self.offsets, self.columns, order, offsets, zeros, ones, 0, packed)
        return Rows.of(packed, offsets, self.columns, self.y[order])


@dataclass(frozen=True)
class Federation:
    """Rows by site. Site names, sizes, column names and categories are public; rows are not.

    Sites are kept in the order of their names, so that no result depends on the order in which rows arrive.

    >>> fed = Federation.from_arrays([[0.5], [1.5], [2.5]], [0, 1, 1], ["b", "a", "b"])
    >>> fed.sites.tolist(), fed.sizes.tolist()
    (['a', 'b'], [1, 2])
    """

    packed: Array = field(repr=False)
    offsets: Index = field(repr=False)
    target: npt.NDArray[Any] = field(repr=False)
    sites: npt.NDArray[np.object_]
    features: tuple[str, ...]
    target_name: str = "y"
    bounds: Bounds = field(default_factory=dict)

    @property
    def sizes(self) -> Index:
        return np.diff(self.offsets)

    @property
    def keys(self) -> Keys:
        return site_keys(self.sites)

    @property
    def n_rows(self) -> int:
        return int(self.offsets[-1])

    @property
    def n_sites(self) -> int:
        return len(self.sites)

    @staticmethod
    def from_arrays(
        X: npt.ArrayLike,
        y: npt.ArrayLike,
        sites: npt.ArrayLike,
        *,
        features: Sequence[str] | None = None,
        bounds: Mapping[str, Any] | None = None,
        target_name: str = "y",
    ) -> "Federation":
        """A federation from a matrix without an intercept column, a target and a site label for every row."""
        try:
            values = np.asarray(X, dtype=float)
        except (TypeError, ValueError) as error:
            raise InputError(f"X is not a matrix of numbers ({error}); encode text columns or use from_frame") from None
        if values.ndim != 2:
            raise InputError(f"X has {values.ndim} dimensions where a matrix (rows, features) is needed")
        target, labels = np.asarray(y), np.asarray(sites)
        for name, column in (("y", target), ("sites", labels)):
            if column.shape != (len(values),):
                raise InputError(f"{name} has shape {column.shape} where X has {len(values)} rows; one value a row")
        names = tuple(features) if features is not None else tuple(f"x{j + 1}" for j in range(values.shape[1]))
        if len(names) != values.shape[1]:
            raise InputError(f"{len(names)} feature names for {values.shape[1]} columns of X")
        if len(values) == 0:
            raise InputError("there are no rows")
        codes, labels = _site_codes(labels)
        if (np.diff(codes) >= 0).all():
            order = np.arange(len(codes), dtype=np.int64)
        else:
            order = np.argsort(codes, kind="stable").astype(np.int64)
        _check_unique(names)
        _check_features(values, names, codes, labels)
        _check_target_present(target, target_name, codes, labels)
        offsets = np.concatenate(([0], np.cumsum(np.bincount(codes, minlength=len(labels))))).astype(np.int64)
        packed = np.empty(len(values) * (values.shape[1] + 1))
        _pack(values, order, offsets, packed)
        declared = _declared_bounds(bounds or {}, names, target_name)
        _check_bounds(values, names, target, target_name, declared, codes, labels)
        return Federation(packed, offsets, target[order], labels, names, target_name, declared)

    @staticmethod
    def from_frame(
        frame: pd.DataFrame,
        target: str,
        site: str,
        *,
        features: Sequence[str] | None = None,
        ignore: Iterable[str] = (),
        bounds: Mapping[str, Any] | None = None,
        missing: str = "error",
    ) -> "Federation":
        """A federation from a data frame with one row a record.

        `features` names the columns to use (default: all others); `ignore` leaves some out. Text, categorical
        and boolean columns become 0/1 indicators `column=level`, the first level left out; the levels count as
        public. `missing="drop"` leaves out rows with a missing value; the default is to stop and say where.
        """
        if missing not in MISSING:
            raise InputError(f"missing={missing!r}: use one of {', '.join(MISSING)}")
        _check_unique([str(c) for c in frame.columns])
        frame = frame.rename(columns=str)
        ignored = [str(c) for c in ignore]
        wanted = [str(c) for c in features] if features is not None else [
            c for c in frame.columns if c not in {target, site, *ignored}
        ]
        for name in [target, site, *ignored, *wanted]:
            if name not in frame.columns:
                raise InputError(f"there is no column {name!r}; the columns are {_listing(frame.columns)}")
        _check_unique(wanted)
        if target == site:
            raise InputError(f"column {target!r} is named both as target and as site")
        for role, name in (("target", target), ("site", site)):
            if name in wanted:
                raise InputError(f"column {name!r} is the {role}; leave it out of the features")
        wanted = [c for c in wanted if c not in ignored]
        if not wanted:
            raise InputError("no feature column is left beside target and site")
        frame = frame[[target, site, *wanted]]
        if missing == "drop":
            frame = frame.dropna()
        if len(frame) == 0:
            raise InputError("there are no rows" + (" without a missing value" if missing == "drop" else ""))
        labels = frame[site]
        if labels.isna().any():
            raise InputError(f"site column {site!r} is missing in {int(labels.isna().sum())} rows; fill it in, or drop "
                             "them with missing='drop'")
        columns, names, implied = _encode(frame[wanted], labels)
        return Federation.from_arrays(
            columns, frame[target].to_numpy(), labels.to_numpy(), features=names,
            bounds={**implied, **(bounds or {})}, target_name=target,
        )

    @staticmethod
    def read(path: str | Path, target: str, site: str, **options: Any) -> "Federation":
        """A federation from a CSV or Parquet file; options as in `from_frame`."""
        return Federation.from_frame(read_frame(path), target, site, **options)

    def rows(self, y: Array, centre: Array, scale: Array, intercept: bool) -> Rows:
        """The packed rows with features shifted and scaled; without a copy where nothing changes."""
        columns = len(self.features) + 1
        if intercept and not centre.any() and (scale == 1.0).all():
            return Rows.of(self.packed, self.offsets, columns, y)
        skip = 0 if intercept else 1
        packed = np.empty(self.n_rows * (columns - skip))
        shift, stretch = np.concatenate(([0.0], centre)), np.concatenate(([1.0], scale))
        order = np.arange(self.n_rows, dtype=np.int64)
        _repack(self.packed, self.offsets, columns, order, self.offsets, shift, stretch, skip, packed)
        return Rows.of(packed, self.offsets, columns - skip, y)

    def design(self) -> Array:
        """All rows of all sites as a plain matrix with the intercept column first, in packed order."""
        return Rows(self.packed, self.offsets, len(self.features) + 1, np.empty(self.n_rows), np.empty(0)).matrix()


def read_frame(path: str | Path) -> pd.DataFrame:
    """A CSV (.csv, .csv.gz, .tsv) or Parquet (.parquet, .pq) file as a data frame."""
    path = Path(path)
    if not path.exists():
        raise InputError(f"there is no file {path}")
    if path.is_dir():
        raise InputError(f"{path} is a folder; name a CSV or Parquet file")
    suffixes = [s.lower() for s in path.suffixes]
    try:
        if suffixes and suffixes[-1] in {".parquet", ".pq"}:
            return pd.read_parquet(path)
        if ".csv" in suffixes or ".tsv" in suffixes:
            header = pd.read_csv(path, sep="\t" if ".tsv" in suffixes else ",", header=None, nrows=1, dtype=str)
            _check_unique(header.iloc[0].dropna().tolist())
            return pd.read_csv(path, sep="\t" if ".tsv" in suffixes else ",")
    except InputError:
        raise
    except pd.errors.EmptyDataError:
        raise InputError(f"{path} is empty") from None
    except Exception as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise InputError(f"{path} cannot be read as {path.suffix or 'a table'}: {reason}") from None
    raise InputError(f"{path}: the name must end in .csv, .tsv, .csv.gz or .parquet")


def _site_codes(labels: npt.NDArray[Any]) -> tuple[Index, npt.NDArray[np.object_]]:
    """Site labels as codes into the sorted names. Numbers sort as numbers; all names are text afterwards."""
    if labels.dtype.kind == "f":
        if np.isnan(labels).any():
            raise InputError(f"the site is missing in {int(np.isnan(labels).sum())} rows")
        if (labels == np.floor(labels)).all():
            labels = labels.astype(np.int64)
    codes, unique = pd.factorize(labels, sort=labels.dtype.kind in "iu")
    if (codes < 0).any():
        raise InputError(f"the site is missing in {int((codes < 0).sum())} rows")
    names = np.array([str(name) for name in unique], dtype=object)
    if len(set(names)) < len(names):
        raise InputError("two sites have the same name when written as text; make the site labels distinct")
    if labels.dtype.kind not in "iu":
        rank = np.argsort(names, kind="stable")
        place = np.empty_like(rank)
        place[rank] = np.arange(len(rank))
        codes, names = place[codes], names[rank]
    return np.asarray(codes, dtype=np.int64), names


def _encode(frame: pd.DataFrame, labels: "pd.Series[Any]") -> tuple[Array, list[str], Bounds]:
    """Numbers as they are; everything else as indicators, whose bounds are 0 and 1 by construction."""
    parts: list[Array] = []
    names: list[str] = []
    implied: Bounds = {}
    for name in frame.columns:
        column = frame[name]
        if column.isna().any():
            first = labels[column.isna()].iloc[0]
            raise InputError(f"column {name!r}, site {str(first)!r}: {int(column.isna().sum())} missing values in all; "
                             "fill them in, leave the column out, or drop the rows with missing='drop'")
        if pd.api.types.is_bool_dtype(column.dtype):
            parts.append(column.to_numpy(dtype=float))
            names.append(str(name))
            implied[str(name)] = (0.0, 1.0)
        elif pd.api.types.is_numeric_dtype(column.dtype):
            parts.append(column.to_numpy(dtype=float))
            names.append(str(name))
        elif pd.api.types.is_datetime64_any_dtype(column.dtype):
            raise InputError(f"column {name!r} holds dates; turn it into a number (days, years) or leave it out")
        else:
            levels = sorted(column.astype(str).unique())
            if len(levels) == 1:
                raise InputError(f"column {name!r} is constant ({levels[0]!r} in every row); leave it out")
            if len(levels) > 100 or len(levels) > max(10, len(column) // 2):
                raise InputError(f"column {name!r} has {len(levels)} distinct texts; leave it out or group its levels")
            text = column.astype(str).to_numpy()
            for level in levels[1:]:
                parts.append((text == level).astype(float))
                names.append(f"{name}={level}")
                implied[f"{name}={level}"] = (0.0, 1.0)
    return np.column_stack(parts), names, implied


def _listing(names: Iterable[Any]) -> str:
    listed = [str(n) for n in names]
    return ", ".join(listed[:12]) + (f" and {len(listed) - 12} more" if len(listed) > 12 else "")


def _check_unique(names: Iterable[str]) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise InputError(f"there are two columns named {name!r}; rename or remove one")
        seen.add(name)


def _site_of(row: int, codes: Index, labels: npt.NDArray[np.object_]) -> str:
    return repr(labels[codes[row]])


def _check_features(values: Array, names: Sequence[str], codes: Index, labels: npt.NDArray[np.object_]) -> None:
    seen: dict[bytes, str] = {}
    for j, name in enumerate(names):
        column = values[:, j]
        low, high = column.min(), column.max()  # one pass each; NaN spreads into both
        if not (math.isfinite(low) and math.isfinite(high)):
            row = int(np.flatnonzero(~np.isfinite(column))[0])
            what = "missing" if math.isnan(column[row]) else repr(float(column[row]))
            raise InputError(f"column {name!r}, site {_site_of(row, codes, labels)}: a value is {what}; "
                             "every feature must be a finite number")
        if low == high:
            raise InputError(f"column {name!r} is constant ({low:g} in every row); leave it out, the intercept has it")
        sketch = column[:4096].tobytes()
        twin = seen.setdefault(sketch, name)
        if twin != name and (values[:, list(names).index(twin)] == column).all():
            raise InputError(f"columns {twin!r} and {name!r} are identical; leave one out")


def _check_target_present(
    target: npt.NDArray[Any], name: str, codes: Index, labels: npt.NDArray[np.object_]
) -> None:
    absent = ~np.isfinite(target) if target.dtype.kind == "f" else pd.isna(target)
    if np.any(absent):
        row = int(np.flatnonzero(absent)[0])
        raise InputError(f"target {name!r}, site {_site_of(row, codes, labels)}: a value is {target[row]}; "
                         "every row needs a target, so fill it in or drop the row")


def _declared_bounds(bounds: Mapping[str, Any], names: Sequence[str], target: str) -> Bounds:
    declared: Bounds = {}
    for name, pair in bounds.items():
        if name not in names and name != target:
            raise InputError(f"bounds name a column {name!r} that is not used; the columns are {_listing(names)}")
        try:
            low, high = (float(v) for v in pair)
        except (TypeError, ValueError):
            raise InputError(f"bounds of column {name!r} must be two numbers, low and high, not {pair!r}") from None
        if not (math.isfinite(low) and math.isfinite(high) and low < high):
            raise InputError(f"bounds of column {name!r}: low {low:g} must be finite and below high {high:g}")
        declared[str(name)] = (low, high)
    return declared


def _check_bounds(
    values: Array, names: Sequence[str], target: npt.NDArray[Any], target_name: str, declared: Bounds,
    codes: Index, labels: npt.NDArray[np.object_],
) -> None:
    for name, (low, high) in declared.items():
        column = values[:, list(names).index(name)] if name in names else target
        if column.dtype.kind not in "fiub":
            raise InputError(f"target {target_name!r} is not a number, so it cannot have bounds")
        outside = (column < low) | (column > high)
        if outside.any():
            row = int(np.flatnonzero(outside)[0])
            raise InputError(f"column {name!r}, site {_site_of(row, codes, labels)}: value {column[row]:g} lies outside "
                             f"the declared bounds {low:g}:{high:g}; widen the bounds or mend the value")
