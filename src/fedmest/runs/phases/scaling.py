"""The scaling phase: features (and a linear model's target) brought to unit size before any gradient is clipped.

Scales are public facts by the time they are used: declared bounds, or two rounds of noisy histograms (for their
sensitivity see `Histogram`), or (with a caveat) the data's own means and standard deviations. Estimates are carried
back to the original scale at the end.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from fedmest.core.exceptions import InputError
from fedmest.core.typing import Bounds, FloatArray
from fedmest.data.federation import Federation
from fedmest.queries.histogram import SIGNED_GRID, Histogram, quantile, significant
from fedmest.queries.schedule import PublicContext, Step, sequential_steps
from fedmest.runs.phases.base import Phase, PhaseRunner, PublicSpec, PublicValue

SHARE = 0.05  # of mu^2, for both rounds of histograms together
SCALE_RANGE = (1e-30, 1e30)  # of scales that a site takes
FINE_BINS = 64
TAIL = 0.01  # a column's span runs from this quantile to one minus it
NORMAL_SPAN = 2.33  # standard deviations from the middle to the 99 % point of a normal


@dataclass(frozen=True)
class Scaling(PublicValue):
    """x -> (x - centre) / scale for each feature; y likewise for the target (linear model only)."""

    name = "scaling"
    changes_rows = True  # in packing, see `PublicState.rows`

    centre: FloatArray
    scale: FloatArray
    target_centre: float = 0.0
    target_scale: float = 1.0

    @staticmethod
    def none(features: int) -> "Scaling":
        return Scaling(np.zeros(features), np.ones(features))

    def to_arrays(self) -> dict[str, FloatArray]:
        target = np.array([self.target_centre, self.target_scale])
        return {"centre": self.centre, "scale": self.scale, "target_scale": target}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, FloatArray], spec: PublicSpec) -> "Scaling":
        shapes = {"centre": (len(spec.data.features),), "scale": (len(spec.data.features),), "target_scale": (2,)}
        low, high = SCALE_RANGE
        for name, shape in shapes.items():
            if name not in arrays or arrays[name].shape != shape:
                raise InputError(f"{name} must be an array of shape {shape}")
            if not (np.abs(arrays[name]) <= high).all():  # not a number is none of these
                raise InputError(f"{name} must hold finite numbers of at most {high:g}")
        target = arrays["target_scale"]
        if not (np.append(arrays["scale"], target[1]) >= low).all():
            raise InputError(f"scales must lie between {low:g} and {high:g}")
        if not spec.model.target_rule.scaled and target.tolist() != [
            0.0,
            1.0,
        ]:  # clipping is proved for classes, counts
            raise InputError(f"the {spec.model.name} model takes its target as it is; target_scale must be 0 and 1")
        return cls(arrays["centre"], arrays["scale"], *target.tolist())

    def apply_target(self, y: FloatArray) -> FloatArray:
        if (self.target_centre, self.target_scale) == (0.0, 1.0):
            return y
        return (y - self.target_centre) / self.target_scale

    def to_original(self, theta: FloatArray, intercept: bool) -> FloatArray:
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


def from_data(federation: Federation, y: FloatArray, intercept: bool, with_target: bool) -> Scaling:
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


def open_columns(spec: PublicSpec) -> tuple[int, ...]:
    """Columns of a run that no declared bound covers."""
    data = spec.data
    return unbounded_columns(data.features, data.target_name, data.bounds, spec.model.target_rule.scaled)


class ScalingPhase(Phase):
    """Two rounds of histograms of the columns without bounds: on a signed power grid, then on a linear one inside."""

    name = "scaling"
    value = Scaling

    def share(self, spec: PublicSpec) -> float:
        return SHARE if spec.scaling == "private" and math.isfinite(spec.mu) and open_columns(spec) else 0.0

    def initial(self, spec: PublicSpec) -> Scaling:
        known = spec.scaling == "bounds" or (spec.scaling == "private" and not open_columns(spec))
        return _declared(spec) if known else Scaling.none(len(spec.data.features))

    def plan(self, spec: PublicSpec, mu: float) -> list[Step]:
        # the intercept's column comes first
        packed = tuple(c + 1 if c and spec.intercept else c for c in open_columns(spec))
        coarse = Histogram("columns", packed, len(SIGNED_GRID) + 1)
        fine = Histogram("columns", packed, FINE_BINS + 2)
        first, second = histogram_steps(spec.context, [coarse, fine], mu)
        return [first, replace(second, sets=self.name)]

    def run(self, runner: PhaseRunner, steps: Sequence[Step]) -> None:
        spec = runner.spec
        if spec.scaling == "data":
            if math.isfinite(spec.mu):
                runner.add_caveat(
                    "Feature scales (means, standard deviations) were read off the data without spending on it."
                )
            runner.publish(runner.scaling_of_rows())
        elif steps:
            runner.publish(estimate_privately(runner, steps))


def _declared(spec: PublicSpec) -> Scaling:
    data = spec.data
    return from_bounds(data.features, data.target_name, data.bounds, spec.intercept, spec.model.target_rule.scaled)


def histogram_steps(context: PublicContext, queries: list[Histogram], mu: float) -> list[Step]:
    """Rounds of histograms at equal costs, of all sites; their counts are added up, so every weight is one."""
    steps = sequential_steps(replace(context, participation=1.0), queries, np.ones((len(queries), 1)), mu)
    return [replace(step, weights=np.ones(len(context.sizes))) for step in steps]


def estimate_privately(runner: PhaseRunner, steps: Sequence[Step]) -> Scaling:
    """Declared bounds, and for the columns without them what the noisy histograms say."""
    spec = runner.spec
    start, columns, intercept = _declared(spec), open_columns(spec), spec.intercept
    theta = np.zeros(runner.context.shape)
    coarse_edges = np.tile(SIGNED_GRID, (len(columns), 1))
    coarse = _histograms(runner, steps[0], theta, coarse_edges)
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
    fine = _histograms(runner, steps[1], theta, fine_edges)
    centre, scale = start.centre.copy(), start.scale.copy()
    target = (start.target_centre, start.target_scale)
    for column, seen, counts, edges in zip(columns, coarse, fine, fine_edges, strict=True):
        if not seen.any():  # too few rows for this budget to see the column at all: it stays as it is
            continue
        low, high = float(edges[0]), float(edges[-1])
        if (
            counts.sum() > runner.context.sizes.sum() / 2
        ):  # else the fine bins drown in noise, and the coarse span must do
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


def _histograms(runner: PhaseRunner, step: Step, theta: FloatArray, edges: FloatArray) -> list[FloatArray]:
    total = runner.ask(step, theta, edges=edges).aggregate().reshape(len(edges), -1)
    return list(significant(total, runner.last_record.aggregate_sd(0)))
