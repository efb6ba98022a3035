"""Rows packed for compiled loops.

Rows are sorted by site and stored in tiles of rows of one site (`tile_rows`). Within a tile the matrix is
feature-major (columns x rows), so that loops over rows are contiguous and vectorise; a site's last tile is
just narrower, so ragged sites need no padding. The first column is the intercept's: ones.
"""

import math
from dataclasses import dataclass, field

import numba as nb
import numpy as np

from fedmest.core.exceptions import InputError
from fedmest.core.typing import FloatArray, IntArray
from fedmest.privacy.noise import Keys, random_ranks

MIN_NORM = 1e-150  # shorter rows are clipped as if they were this long, which only shrinks them further


@nb.njit("i8(i8)", cache=True)
def tile_rows(columns):  # type: ignore[no-untyped-def]
    """Rows of a full tile: enough to make loops over them worth starting, few enough for a tile to stay in cache."""
    return max(64, min(512, 50_000 // columns))


@nb.njit("void(f8[:, :], i8[::1], i8[::1], f8[::1])", parallel=True, cache=True)
def pack(values, order, offsets, packed):  # type: ignore[no-untyped-def]
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


@nb.njit("void(f8[::1], i8[::1], i8, i8[::1], i8[::1], f8[::1], f8[::1], i8, f8[::1])", parallel=True, cache=True)
def repack(source, offsets, columns, order, new_offsets, centre, scale, skip, packed):  # type: ignore[no-untyped-def]
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
def unpack(packed, offsets, columns, matrix):  # type: ignore[no-untyped-def]
    """Write packed rows into an ordinary (rows, columns) matrix."""
    tile_size = tile_rows(columns)
    for site in nb.prange(offsets.size - 1):
        for first in range(offsets[site], offsets[site + 1], tile_size):
            width = min(tile_size, offsets[site + 1] - first)
            tile = packed[first * columns : (first + width) * columns].reshape(columns, width)
            for i in range(width):
                for j in range(columns):
                    matrix[first + i, j] = tile[j, i]


@nb.njit("void(f8[::1], i8[::1], i8, f8[::1])", parallel=True, cache=True)
def row_norms(packed, offsets, columns, norms):  # type: ignore[no-untyped-def]
    """Euclidean norms of packed rows, rounded up."""
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
                norm[i] = max(math.sqrt(norm[i]), MIN_NORM) * (1.0 + 1e-14 + 1.2e-16 * columns)


@dataclass(frozen=True)
class Rows:
    """Packed rows of all sites, features scaled and target as numbers, as compiled loops read them.

    Parameters
    ----------
    packed : array
        The tiles, one after the other.
    offsets : array of int, shape (sites + 1,)
        Where each site's rows begin, and the end.
    columns : int
        Columns of a row, that of the intercept included.
    y : array, shape (rows,)
        Target.
    norms : array, shape (rows,)
        Norms of the rows, rounded up.
    offset : array, shape (rows,), optional
        Added to the linear predictor of regressions with one predictor. Nothing sets it yet.
    row_weight : array, shape (rows,), optional
        In [0, 1]: multiplies scores before they are clipped. Nothing sets it yet.
    """

    packed: FloatArray
    offsets: IntArray
    columns: int
    y: FloatArray
    norms: FloatArray = field(repr=False)
    offset: FloatArray | None = None
    row_weight: FloatArray | None = None

    def __post_init__(self) -> None:
        weight = self.row_weight
        if weight is not None and not ((weight >= 0) & (weight <= 1)).all():  # not a number is neither
            raise InputError("row weights must lie between 0 and 1: clipping is proved for these")

    @staticmethod
    def of(
        packed: FloatArray,
        offsets: IntArray,
        columns: int,
        y: FloatArray,
        offset: FloatArray | None = None,
        row_weight: FloatArray | None = None,
    ) -> "Rows":
        """Packed rows with their norms computed."""
        norms = np.empty(len(y))
        row_norms(packed, offsets, columns, norms)
        return Rows(packed, offsets, columns, y, norms, offset, row_weight)

    @property
    def sizes(self) -> IntArray:
        """Rows of each site."""
        return np.diff(self.offsets)

    def matrix(self) -> FloatArray:
        """All rows as an ordinary (rows, columns) matrix, a copy; for predictions and tests, not for loops."""
        out = np.empty((int(self.offsets[-1]), self.columns))
        unpack(self.packed, self.offsets, self.columns, out)
        return out

    def of_site(self, site: int) -> FloatArray:
        """The rows of one site as an ordinary matrix, a copy."""
        own = Rows(
            self.packed[self.offsets[site] * self.columns : self.offsets[site + 1] * self.columns],
            np.array([0, self.offsets[site + 1] - self.offsets[site]]),
            self.columns,
            np.empty(0),
            np.empty(0),
        )
        return own.matrix()

    def targets_of_site(self, site: int) -> FloatArray:
        """Target of the rows of one site."""
        return self.y[self.offsets[site] : self.offsets[site + 1]]

    def halves(self, seed: int, keys: Keys) -> tuple["Rows", "Rows"]:
        """Split each site's rows at random into two parts, independently of their content; the first gets the odd row.

        A site's split depends on (seed, site) alone, so that the site can draw it by itself.
        """
        ranks = random_ranks(self.offsets, keys, seed)
        order = np.lexsort((ranks, np.repeat(np.arange(len(self.sizes)), self.sizes)))
        rank = np.arange(len(self.y)) - np.repeat(self.offsets[:-1], self.sizes)
        larger = (self.sizes + 1) // 2
        in_first = rank < np.repeat(larger, self.sizes)
        return self._take(order[in_first], larger), self._take(order[~in_first], self.sizes - larger)

    def _take(self, order: IntArray, sizes: IntArray) -> "Rows":
        offsets = np.concatenate(([0], np.cumsum(sizes))).astype(np.int64)
        packed = np.empty(len(order) * self.columns)
        zeros, ones = np.zeros(self.columns), np.ones(self.columns)
        repack(self.packed, self.offsets, self.columns, order, offsets, zeros, ones, 0, packed)
        offset, weight = (None if v is None else v[order] for v in (self.offset, self.row_weight))
        return Rows.of(packed, offsets, self.columns, self.y[order], offset, weight)
