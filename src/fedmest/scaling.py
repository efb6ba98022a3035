"""Public scaling: features (and a linear model's target) brought to unit size before any gradient is clipped.

Scales are public facts by the time they are used: declared bounds, or noisy histograms that a share of the budget
bought, or (with a caveat) the data's own means and standard deviations. Estimates are carried back to the original
scale at the end.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from fedmest.federation import Bounds, Federation
from fedmest.methods.base import Server, Setting, Step, rounds
from fedmest.privacy.gdp import Array
from fedmest.queries.histogram import Histogram, quantile, significant

SCALINGS = ("auto", "bounds", "private", "data", "none")
SHARE = 0.05  # of mu^2, for both rounds of histograms together
FINE_BINS = 64
TAIL = 0.01  # a column's span runs from this quantile to one minus it
NORMAL_SPAN = 2.33  # standard deviations from the middle to the 99 % point of a normal
_POWERS = 2.0 ** np.arange(-10.0, 41.0)
SIGNED_GRID = np.concatenate([-_POWERS[::-1], _POWERS])


@dataclass(frozen=True)
class Scaling:
    """x -> (x - centre) / scale for each feature; y likewise for the target (linear model only)."""

    centre: Array
    scale: Array
    target_centre: float = 0.0
    target_scale: float = 1.0

    @staticmethod
    def none(features: int) -> "Scaling":
        return Scaling(np.zeros(features), np.ones(features))

    def apply_target(self, y: Array) -> Array:
        if (self.target_centre, self.target_scale) == (0.0, 1.0):
            return y
        return (y - self.target_centre) / self.target_scale

    def to_original(self, theta: Array, intercept: bool) -> Array:
        """Coefficients (..., d) for original features and target, from those for scaled ones."""
        out = theta * self.target_scale
        if not intercept:
            return np.asarray(out / self.scale)
        slopes = out[..., 1:] / self.scale
        first = out[..., :1] - (slopes * self.centre).sum(axis=-1, keepdims=True)
        first = first + self.target_centre
        return np.concatenate([first, slopes], axis=-1)


def from_bounds(features: Sequence[str], target: str, bounds: Bounds, intercept: bool, with_target: bool) -> Scaling:
    """Declared bounds to about +-2 (indicators to +-1); columns without bounds stay as they are."""
    scaling = Scaling.none(len(features))
    for j, name in enumerate(features):
        if name in bounds:
            low, high = bounds[name]
            half = (high - low) / 2
            scaling.scale[j] = half if (low, high) == (0.0, 1.0) else half / 2
            scaling.centre[j] = (low + high) / 2 if intercept else 0.0
    if not (with_target and target in bounds):
        return scaling
    low, high = bounds[target]
    middle = (low + high) / 2 if intercept else 0.0
    return Scaling(scaling.centre, scaling.scale, middle, (high - low) / 4)


def from_data(federation: Federation, y: Array, intercept: bool, with_target: bool) -> Scaling:
    """Means and standard deviations read off the rows: for non-private fits, or with a caveat."""
    matrix = federation.design()[:, 1:]
    centre = matrix.mean(axis=0) if intercept else np.zeros(matrix.shape[1])
    scale = np.sqrt(np.mean((matrix - centre) ** 2, axis=0))
    if not with_target:
        return Scaling(centre, scale)
    middle = float(y.mean()) if intercept else 0.0
    return Scaling(centre, scale, middle, float(np.sqrt(np.mean((y - middle) ** 2))) or 1.0)


def unbounded_columns(features: Sequence[str], target: str, bounds: Bounds, with_target: bool) -> tuple[int, ...]:
    """Columns that no declared bound covers: 0 for the target, j for feature j (first is 1)."""
    columns = [j + 1 for j, name in enumerate(features) if name not in bounds]
    return tuple(([0] if with_target and target not in bounds else []) + columns)


def schedule(s: Setting, columns: tuple[int, ...], intercept: bool, mu: float) -> list[Step]:
    """Two rounds of histograms: on a signed power grid, then on a linear grid inside each column's span."""
    packed = tuple(c + 1 if c and intercept else c for c in columns)  # the intercept's column comes first
    return histogram_steps(s, [Histogram("columns", packed)] * 2, mu)


def histogram_steps(s: Setting, queries: list[Histogram], mu: float) -> list[Step]:
    """Rounds of histograms at equal prices; counts of all sites are added up, so every weight is one."""
    steps = rounds(s, queries, np.ones((len(queries), 1)), mu)
    return [replace(step, weights=np.ones(len(s.sizes))) for step in steps]


def buy(server: Server, steps: list[Step], start: Scaling, columns: tuple[int, ...], intercept: bool) -> Scaling:
    """Replace the scale of `columns` by what the noisy histograms say."""
    theta = np.zeros(server.setting.shape)
    coarse_edges = np.tile(SIGNED_GRID, (len(columns), 1))
    coarse = _histograms(server, steps[0], theta, coarse_edges)
    spans = []
    for counts in coarse:
        if not counts.any():
            spans.append((-1.0, 1.0))
            continue
        share = np.cumsum(counts) / counts.sum()
        first, last = (int(np.searchsorted(share, level)) for level in (TAIL, 1 - TAIL))
        top = len(SIGNED_GRID) - 1
        spans.append((float(SIGNED_GRID[max(first - 1, 0)]), float(SIGNED_GRID[min(max(last, first, 1), top)])))
    fine_edges = np.stack([np.linspace(low, high, FINE_BINS + 1) for low, high in spans])
    fine = _histograms(server, steps[1], theta, fine_edges)
    centre, scale = start.centre.copy(), start.scale.copy()
    target = (start.target_centre, start.target_scale)
    for column, seen, counts, edges in zip(columns, coarse, fine, fine_edges, strict=True):
        if not seen.any():  # too few rows for this budget to see the column at all: it stays as it is
            continue
        low, high = float(edges[0]), float(edges[-1])
        if counts.sum() > server.sizes.sum() / 2:  # else the fine bins drown in noise, and the coarse span must do
            low, high = quantile(counts, edges, TAIL), quantile(counts, edges, 1 - TAIL)
        if high - low < edges[1] - edges[0]:  # one value in almost every row: no scale to be had
            continue
        middle = (low + high) / 2 if intercept else 0.0
        width = max((high - low) / 2, max(abs(low), abs(high)) if not intercept else 0.0) / NORMAL_SPAN
        if column == 0:
            target = (middle, width)
        else:
            centre[column - 1], scale[column - 1] = middle, width
    return Scaling(centre, scale, *target)


def _histograms(server: Server, step: Step, theta: Array, edges: Array) -> list[Array]:
    total = server.ask(step, theta, edges=edges).combined().reshape(len(edges), -1)
    return list(significant(total, server.last_noise(0)))
