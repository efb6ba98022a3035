"""The rows of all sites, packed for compiled loops.

Rows are sorted by site and stored in tiles of rows of one site (`tile_rows`). Within a tile the matrix is
feature-major (columns x rows), so that loops over rows are contiguous and vectorise; a site's last tile is
just narrower, so ragged sites need no padding. The first column is the intercept's: ones.
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

from fedmest import inputs
from fedmest.errors import InputError
from fedmest.inputs import Bounds, Index
from fedmest.privacy.gdp import Array
from fedmest.privacy.noise import Keys, random_ranks, site_keys

__all__ = ["Bounds", "Federation", "Index", "Rows", "tile_rows"]

SMALLEST_NORM = 1e-150  # shorter rows are clipped as if they were this long, which only shrinks them further


@nb.njit("i8(i8)", cache=True)
def tile_rows(columns):  # type: ignore[no-untyped-def]
    """Rows of a full tile: enough to make loops over them worth starting, few enough for a tile to stay in cache."""
    return max(64, min(512, 50_000 // columns))


@nb.njit("void(f8[:, :], i8[::1], i8[::1], f8[::1])", parallel=True, cache=True)
def _pack(values, order, offsets, packed):  # type: ignore[no-untyped-def]
    """Write rows `values[order]` as tiles with a leading column of ones."""
    columns = values.shape[1] + 1
    tile_size = tile_rows(columns)
    for site in nb.prange(offsets.size - 1):
        for first in range(offsets[site], offsets[site + 1], tile_size):
            width = min(tile_size, offsets[site + 1] - first)
            tile = packed[first * columns : (first + width) * columns].reshape(columns, width)
            for i in range(width):
                row = order[first + i]
                tile[0, i] = 1.0
                for j in range(1, columns):
                    tile[j, i] = values[row, j - 1]


@nb.njit(
    "void(f8[::1], i8[::1], i8, i8[::1], i8[::1], f8[::1], f8[::1], i8, f8[::1])", parallel=True, cache=True
)
def _repack(source, offsets, columns, order, new_offsets, centre, scale, skip, packed):  # type: ignore[no-untyped-def]
    """Copy the rows `order` of `source`, shifted and scaled, without the first `skip` columns."""
    kept = columns - skip
    old_tile, new_tile = tile_rows(columns), tile_rows(kept)
    for site in nb.prange(new_offsets.size - 1):
        begin, end = offsets[site], offsets[site + 1]
        for first in range(new_offsets[site], new_offsets[site + 1], new_tile):
            width = min(new_tile, new_offsets[site + 1] - first)
            tile = packed[first * kept : (first + width) * kept].reshape(kept, width)
            for i in range(width):
                row = order[first + i]
                old_first = begin + (row - begin) // old_tile * old_tile
                old_width = min(old_tile, end - old_first)
                start = old_first * columns + row - old_first
                for j in range(kept):
                    value = source[start + (j + skip) * old_width]
                    tile[j, i] = (value - centre[j + skip]) / scale[j + skip]


@nb.njit("void(f8[::1], i8[::1], i8, f8[:, ::1])", parallel=True, cache=True)
def _unpack(packed, offsets, columns, matrix):  # type: ignore[no-untyped-def]
    tile_size = tile_rows(columns)
    for site in nb.prange(offsets.size - 1):
        for first in range(offsets[site], offsets[site + 1], tile_size):
            width = min(tile_size, offsets[site + 1] - first)
            tile = packed[first * columns : (first + width) * columns].reshape(columns, width)
            for i in range(width):
                for j in range(columns):
                    matrix[first + i, j] = tile[j, i]


@nb.njit("void(f8[::1], i8[::1], i8, f8[::1])", parallel=True, cache=True)
def _row_norms(packed, offsets, columns, norms):  # type: ignore[no-untyped-def]
    tile_size = tile_rows(columns)
    for site in nb.prange(offsets.size - 1):
        for first in range(offsets[site], offsets[site + 1], tile_size):
            width = min(tile_size, offsets[site + 1] - first)
            tile = packed[first * columns : (first + width) * columns].reshape(columns, width)
            norm = norms[first : first + width]
            norm[:] = 0.0
            for j in range(columns):
                for i in range(width):
                    norm[i] += tile[j, i] * tile[j, i]
            for i in range(width):
                # never below the exact norm, nor so small that its square underflowed: clipping divides by this
                norm[i] = max(math.sqrt(norm[i]), SMALLEST_NORM) * (1.0 + 1e-14 + 1.2e-16 * columns)


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
        out = np.empty((int(self.offsets[-1]), self.columns))
        _unpack(self.packed, self.offsets, self.columns, out)
        return out

    def of_site(self, site: int) -> Array:
        """The rows of one site as an ordinary matrix, a copy."""
        own = Rows(
            self.packed[self.offsets[site] * self.columns : self.offsets[site + 1] * self.columns],
            np.array([0, self.offsets[site + 1] - self.offsets[site]]), self.columns, np.empty(0), np.empty(0),
        )  # fmt: skip
        return own.matrix()

    def targets_of_site(self, site: int) -> Array:
        return self.y[self.offsets[site] : self.offsets[site + 1]]

    def halves(self, seed: int, keys: Keys) -> tuple["Rows", "Rows"]:
        """Each site's rows split at random into two parts (the first gets the odd row), blind to content.

        A site's split depends on (seed, site) alone, so that the site can draw it by itself.
        """
        ranks = random_ranks(self.offsets, keys, seed)
        order = np.lexsort((ranks, np.repeat(np.arange(len(self.sizes)), self.sizes)))
        rank = np.arange(len(self.y)) - np.repeat(self.offsets[:-1], self.sizes)
        larger = (self.sizes + 1) // 2
        in_first = rank < np.repeat(larger, self.sizes)
        return self._take(order[in_first], larger), self._take(order[~in_first], self.sizes - larger)

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
        degenerate: str = "error",
    ) -> "Federation":
        """A federation from a matrix without an intercept column, a target and a site label for every row.

        `degenerate="keep"` leaves constant and identical columns in, such as the pixels at the edge of images; the
        default is to stop and name them.
        """
        if degenerate not in inputs.DEGENERATE:
            raise InputError(f"degenerate={degenerate!r}: choose one of {', '.join(inputs.DEGENERATE)}")
        values = inputs.matrix(X)
        target, labels = inputs.vector(y, "y", len(values)), inputs.vector(sites, "sites", len(values))
        columns = values.shape[1]
        names = tuple(features) if features is not None else tuple(f"x{j + 1}" for j in range(columns))
        if len(names) != columns:
            raise InputError(f"{len(names)} feature names for {columns} columns of X; give one a column")
        inputs.check_unique(names)
        declared = inputs.declared_bounds(bounds or {}, names, target_name)
        codes, labels = inputs.site_codes(labels)
        inputs.check_features(values, names, declared, codes, labels, keep=degenerate == "keep")
        inputs.check_target(target, target_name, declared, codes, labels)
        if (np.diff(codes) >= 0).all():
            order = np.arange(len(codes), dtype=np.int64)
        else:
            order = np.argsort(codes, kind="stable").astype(np.int64)
        offsets = np.concatenate(([0], np.cumsum(np.bincount(codes, minlength=len(labels))))).astype(np.int64)
        packed = np.empty(len(values) * (columns + 1))
        _pack(values if values.flags.writeable else values.copy(), order, offsets, packed)
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

        `features` names the columns to use (default: all others); `ignore` leaves some out. Text and
        categorical columns become 0/1 indicators `column=level`, the first left out; levels count as public.
        `missing="drop"` leaves out rows with a missing value; the default is to stop and say where.
        """
        if missing not in inputs.MISSING:
            raise InputError(f"missing={missing!r}: choose one of {', '.join(inputs.MISSING)}")
        inputs.check_unique([str(c) for c in frame.columns])
        frame = frame.rename(columns=str)
        wanted = inputs.choose_columns(frame, target, site, features, ignore)
        frame = frame[[target, site, *wanted]]
        if missing == "drop":
            frame = frame.dropna()
        if len(frame) == 0:
            raise InputError("there are no rows" + (" without a missing value" if missing == "drop" else ""))
        labels = frame[site]
        inputs.check_sites(labels)
        columns, names, implied = inputs.encode(frame[wanted], labels)
        return Federation.from_arrays(
            columns, inputs.target_values(frame[target], labels), labels.to_numpy(), features=names,
            bounds={**implied, **(bounds or {})}, target_name=target,
        )  # fmt: skip

    @staticmethod
    def read(path: str | Path, target: str, site: str, **options: Any) -> "Federation":
        """A federation from a CSV or Parquet file; options as in `from_frame`."""
        return Federation.from_frame(inputs.read_frame(path), target, site, **options)

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
        columns = len(self.features) + 1
        return Rows(self.packed, self.offsets, columns, np.empty(self.n_rows), np.empty(0)).matrix()
