"""The estimation phase: the method's own steps."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from fedmest.core.exceptions import ConvergenceError
from fedmest.queries.schedule import Step
from fedmest.runs.phases.base import Phase, PhaseRunner, PublicSpec


class EstimationPhase(Phase):
    """Whatever the method asks, with what the other phases leave of the budget."""

    name = "estimation"

    def share(self, spec: PublicSpec) -> None:
        return None

    def plan(self, spec: PublicSpec, mu: float) -> Sequence[Step]:
        return spec.method.schedule(replace(spec.context, mu=mu))

    def run(self, runner: PhaseRunner, steps: Sequence[Step]) -> None:
        runner.estimate = runner.spec.method.run(runner, steps)
        if not np.isfinite(runner.estimate).all():
            raise ConvergenceError(
                "the estimate is not finite: the steps are too long; lower eta, or scale the features"
            )
