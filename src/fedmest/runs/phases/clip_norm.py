"""The clip norm phase: the bound on rows' scores, from one round of a noisy histogram, or as it was given."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from fedmest.core.exceptions import InputError
from fedmest.core.typing import FloatArray
from fedmest.inference.population import Population
from fedmest.models import Clipping
from fedmest.queries.histogram import SCORE_GRID, Histogram, main_body, quantile
from fedmest.queries.schedule import Step
from fedmest.runs.phases.base import Phase, PhaseRunner, PublicSpec, PublicValue
from fedmest.runs.phases.scaling import histogram_steps

SHARE = 0.01  # of mu^2 (mu / 10)
CLIP_NORM_RANGE = (1e-9, 1e9)  # that a site takes


@dataclass(frozen=True)
class ClipNorm(PublicValue):
    """The bound on a row's score; infinite where nothing is clipped yet."""

    bound: float = math.inf
    name = "clip_norm"

    def to_arrays(self) -> dict[str, FloatArray]:
        return {"clip_norm": np.array([self.bound])}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, FloatArray], spec: PublicSpec) -> "ClipNorm":
        given = arrays.get("clip_norm", np.zeros(0))
        if given.shape != (1,):
            raise InputError("clip_norm must be one number")
        check_clip_norm(float(given[0]))
        return cls(float(given[0]))


def check_clip_norm(bound: float) -> None:
    """An InputError where no site would clip at it."""
    low, high = CLIP_NORM_RANGE
    if not low <= bound <= high:
        raise InputError(f"clip_norm = {bound}: it must lie between {low:g} and {high:g}")


class ClipNormPhase(Phase):
    """One histogram of the norms of the rows' scores at the start (or of whole records)."""

    name = "clip norm"
    value = ClipNorm

    def share(self, spec: PublicSpec) -> float:
        return SHARE if spec.settings.clip_norm == "private" and math.isfinite(spec.mu) else 0.0

    def initial(self, spec: PublicSpec) -> ClipNorm:
        given = spec.settings.clip_norm
        return ClipNorm() if given is None or isinstance(given, str) or math.isinf(spec.mu) else ClipNorm(float(given))

    def plan(self, spec: PublicSpec, mu: float) -> list[Step]:
        (step,) = histogram_steps(spec.context, [Histogram(spec.method.clip_target)], mu)
        return [replace(step, sets=ClipNorm.name)]

    def run(self, runner: PhaseRunner, steps: Sequence[Step]) -> None:
        spec = runner.spec
        if math.isinf(spec.mu):
            return
        if spec.settings.clip_norm == "paper":
            runner.add_caveat("The clip norm was read off the data (the paper's rule) without spending on it.")
            runner.publish(ClipNorm(runner.paper_clip_norm()))
        for step in steps:
            noisy = runner.ask(step, runner.start(), edges=SCORE_GRID[None]).aggregate()
            total = float(spec.data.sizes.astype(float).sum())
            counts = main_body(noisy, runner.last_record.aggregate_sd(0), total)
            runner.publish(ClipNorm(clip_norm_from_counts(spec, counts)))


def clip_norm_from_counts(spec: PublicSpec, counts: FloatArray | None) -> float:
    """The clip norm from a histogram of score norms at the start, or a public one where noise leaves nothing of it.

    Where the model may be wrong (cov_type="robust"), what it gives back for cut scores may be, too: cut fewer.
    """
    if counts is None:
        return spec.model.fallback_clip_norm(spec.context.columns)
    level = spec.method.clip_quantile or spec.model.clip_quantile
    factor = spec.model.misspecification_factor if spec.settings.cov_type == "robust" else 1.0
    return factor * quantile(counts, SCORE_GRID, level)


def expected_clipping(spec: PublicSpec, population: Population) -> Clipping:
    """How rows from a population would be clipped, for predictions."""
    given = spec.settings.clip_norm
    if math.isinf(spec.mu):
        return spec.clipping(math.inf)
    if not isinstance(given, str):
        return spec.clipping(float(given or 0))
    sizes = spec.data.sizes.astype(float)
    counts: FloatArray | None = float(sizes.sum()) * population.shares(spec.method.clip_target)
    if given == "private" and counts is not None:
        (step,) = spec.schedule.of(ClipNormPhase.name)
        sds = step.query.noise_sds(sizes, Clipping(), step.mus)[0]
        counts = main_body(counts, float(np.linalg.norm(sds)), float(sizes.sum()))
    return spec.clipping(clip_norm_from_counts(spec, counts))
