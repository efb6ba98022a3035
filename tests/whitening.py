"""A phase of one's own, in one file: features are whitened by their noisy second moments before the method begins.

`docs/add-a-phase.md` shows it; `tests/unit/test_seams.py` runs it here and at vaults.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from fedmest.core.exceptions import InputError
from fedmest.core.typing import FloatArray
from fedmest.data.packing import Rows, pack
from fedmest.queries import Moments
from fedmest.queries.linalg import from_triangle
from fedmest.queries.schedule import Step, sequential_steps
from fedmest.runs.phases import Phase, PhaseRunner, PublicSpec, PublicValue

SHARE = 0.05  # of mu^2
MAX_ENTRY = 1e6


@dataclass(frozen=True)
class Whitening(PublicValue):
    """Slopes' columns times a matrix; coefficients go back by the same matrix. The intercept's column stays."""

    matrix: FloatArray
    name = "whitening"
    changes_rows = True

    def transform_rows(self, rows: Rows) -> Rows:
        slopes = rows.matrix()[:, 1:] @ self.matrix
        packed, order = np.empty_like(rows.packed), np.arange(len(slopes), dtype=np.int64)
        pack(slopes, order, rows.offsets, packed)
        return Rows.of(packed, rows.offsets, rows.columns, rows.y)

    def to_original(self, params: FloatArray, intercept: bool) -> FloatArray:
        return np.concatenate([params[..., :1], params[..., 1:] @ self.matrix.T], axis=-1)

    def to_arrays(self) -> dict[str, FloatArray]:
        return {"whitening": self.matrix}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, FloatArray], spec: PublicSpec) -> "Whitening":
        size = len(spec.data.features)
        matrix = arrays.get("whitening", np.zeros(0))
        if matrix.shape != (size, size) or not (np.abs(matrix) <= MAX_ENTRY).all():
            raise InputError(f"whitening must be a matrix of {size} x {size} numbers of at most {MAX_ENTRY:g}")
        return cls(matrix)


class WhiteningPhase(Phase):
    """One round of second moments of the features, after the clip norm is known."""

    name = "whitening"
    value = Whitening

    def share(self, spec: PublicSpec) -> float:
        possible = spec.intercept and spec.model.curvature_upper_bound is not None and np.isfinite(spec.mu)
        return SHARE if possible else 0.0

    def initial(self, spec: PublicSpec) -> Whitening | None:
        return Whitening(np.eye(len(spec.data.features))) if self.share(spec) else None

    def plan(self, spec: PublicSpec, mu: float) -> list[Step]:
        (step,) = sequential_steps(replace(spec.context, participation=1.0), [Moments("features")], np.ones((1, 1)), mu)
        return [replace(step, sets=Whitening.name)]

    def run(self, runner: PhaseRunner, steps: Sequence[Step]) -> None:
        for step in steps:
            size = runner.context.columns
            noisy = from_triangle(runner.ask(step, runner.start()).aggregate(), size)[1:, 1:]
            values, vectors = np.linalg.eigh(noisy)
            floor = 0.05 * float(values.max())
            runner.publish(Whitening(vectors / np.sqrt(np.maximum(values, floor)) @ vectors.T))
