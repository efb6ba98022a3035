"""Noisy histograms on public grids: of row score norms (to choose the bound B), of columns (to choose scales).

Replacing a row moves it from one bin to another in each histogram it is counted in: with g histograms the vector of
counts moves by sqrt(2 g), whatever n is.
"""

import math
from dataclasses import dataclass

import numpy as np

from fedmest.core.typing import FloatArray, IntArray
from fedmest.models import Clipping
from fedmest.privacy.noise import Noise
from fedmest.queries.base import Query, QueryInputs, Release, Role, SiteData

SCORE_GRID = 2.0 ** np.arange(-4.0, 12.5, 0.5)  # features have unit scale by now, so scores have no wild scales
_POWERS = 2.0 ** np.arange(-10.0, 41.0)
SIGNED_GRID = np.concatenate([-_POWERS[::-1], _POWERS])  # of columns whose scale nobody knows
NOISE_LEVEL = 4.0  # standard deviations of its noise that a bin must exceed to count


@dataclass(frozen=True)
class Histogram(Query):
    """Counts between bin edges, one histogram per group.

    Parameters
    ----------
    of : {"scores", "records", "columns"}
        What is counted: norms of the rows' scores at the coefficients, norms of (x, y), or the values of columns.
    columns : tuple of int
        Columns to count, each a group: 0 is the target, c the c-th column of the packed rows.
    bins : int
        Bins of each histogram; there is one edge fewer.
    """

    of: str
    columns: tuple[int, ...] = ()
    bins: int = len(SCORE_GRID) + 1
    name = "histogram"
    roles = (Role.COUNTS,)
    inputs = frozenset({"params", "edges"})
    additive_noise = True

    @property
    def groups(self) -> int:
        """Number of histograms."""
        return max(len(self.columns), 1)

    def releases(self) -> tuple[Release, ...]:
        what = {"scores": "gradient norms", "records": "record norms", "columns": "columns"}[self.of]
        return (Release(f"histogram of {what}"),)

    def sensitivity(self, n: FloatArray, clipping: Clipping) -> FloatArray:
        return np.full((1, len(n)), math.sqrt(2.0 * self.groups))

    def part_sizes(self, size: int, columns: int) -> tuple[int, ...]:
        return (self.groups * self.bins,)

    def edges_shape(self) -> tuple[int, int]:
        return self.groups, self.bins - 1

    def sample_edges(self) -> FloatArray:
        if self.of != "columns":
            return SCORE_GRID[None]
        if self.bins == len(SIGNED_GRID) + 1:
            return np.tile(SIGNED_GRID, (self.groups, 1))
        spans = [5000.0 if column == 0 else 10.0 for column in self.columns]
        return np.stack([np.linspace(-span, span, self.bins - 1) for span in spans])

    def answer(self, data: SiteData, sites: IntArray, inputs: QueryInputs, mus: FloatArray, noise: Noise) -> FloatArray:
        edges = inputs.edges
        assert edges is not None
        rows = data.rows
        site_of_row = np.repeat(np.arange(len(rows.sizes)), rows.sizes)
        bins = edges.shape[1] + 1
        counts = np.empty((len(rows.sizes), self.groups, bins))
        for group, values in enumerate(self._values(data, inputs)):
            cell = site_of_row * bins + np.searchsorted(edges[group], values, side="right")
            counts[:, group] = np.bincount(cell, minlength=len(rows.sizes) * bins).reshape(-1, bins)
        replies = np.ascontiguousarray(counts[sites].reshape(len(sites), -1))
        sds = self.noise_sds(rows.sizes[sites].astype(float), inputs.clipping, mus)
        noise.add(replies, np.ascontiguousarray(sds[0]), sites)
        return replies

    def _values(self, data: SiteData, inputs: QueryInputs) -> list[FloatArray]:
        if self.of == "scores":
            return [data.model.score_norms(data.rows, inputs.params)]
        if self.of == "records":
            return [np.hypot(data.rows.norms, data.rows.y)]
        matrix = data.rows.matrix()
        return [data.rows.y if column == 0 else matrix[:, column - 1] for column in self.columns]


def significant(counts: FloatArray, sd: float) -> FloatArray:
    """Counts with all bins set to zero that noise of this size alone could have filled."""
    return np.where(counts > NOISE_LEVEL * sd, counts, 0.0)


def main_body(counts: FloatArray, sd: float, total: float) -> FloatArray | None:
    """The run of neighbouring bins that stands out most from noise of this size, or None where none does.

    It maximises the sum of counts less NOISE_LEVEL sd a bin, so that a stray bin far from the others, which noise alone
    fills now and then, stays outside: one such bin could make a bound a thousand times too large. The lowest bin, where
    rows with no score at all gather, says nothing of a bound; it takes what is left of the `total`.

    >>> main_body(np.array([30.0, 1.0, 50.0, 20.0, -3.0, 0.0, 9.0]), 2.0, 100.0)
    array([30.,  0., 50., 20.,  0.,  0.,  0.])
    """
    sums = np.cumsum(np.concatenate([[0.0], counts[1:] - NOISE_LEVEL * sd]))
    gains = sums - np.minimum.accumulate(sums)
    end = int(np.argmax(gains))
    if gains[end] <= 0:
        return None
    start = int(np.argmin(sums[:end]))
    body = np.zeros(len(counts))
    body[start + 1 : end + 1] = np.maximum(counts[start + 1 : end + 1], 0.0)
    body[0] = max(total - body.sum(), 0.0)
    return body


def quantile(counts: FloatArray, edges: FloatArray, level: float) -> float:
    """The value at `level` of a histogram with inner `edges`, linear inside a bin; open bins count as their edge."""
    share = np.cumsum(counts) / counts.sum()
    place = int(np.searchsorted(share, level))
    if place == 0:
        return float(edges[0])
    if place >= len(edges):
        return float(edges[-1])
    inside = (level - share[place - 1]) / max(share[place] - share[place - 1], 1e-300)
    return float(edges[place - 1] + inside * (edges[place] - edges[place - 1]))
