"""FedIRLS: R rounds of Newton's method on noisy pooled parts; iteratively reweighted least squares, federated.

Not in the paper. FedNewton starts from local descent, whose noise passes through a nonlinear map at every site before
it is averaged; with small sites or budgets that leaves a bias. Here every round sends the noisy mean gradient and
curvature (as FedNewton's last round does) and the server divides averages: noise enters linearly from the first round.
From zero, two rounds bring a logistic fit close enough for the third to be exact to first order, so the third gets
most of the budget.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedmest.core.typing import FloatArray
from fedmest.methods.base import Method, NoiseModel, Runner
from fedmest.methods.fednewton import direction_from_parts
from fedmest.privacy.budget import split
from fedmest.queries import NewtonParts
from fedmest.queries.schedule import PublicContext, Step

EARLY_CURVATURE = 0.4  # of an early round's budget: the first steps are long, so their direction counts
MAX_STEP_NORM = 3.0  # features have unit scale: no sensible coefficient is farther away than a few of these


@dataclass(frozen=True)
class FedIRLS(Method):
    """FedIRLS: rounds of Newton's method on noisy pooled gradients and curvatures.

    Parameters
    ----------
    R : int, default 3
        Rounds.
    share_early : float, default 0.2
        Share of mu^2 for all rounds but the last.
    share_curvature : float, default 0.1
        Share of the last round's budget for the curvature.
    lambda_min : float, default 1e-6
        Lower limit on the eigenvalues of the curvature.
    """

    R: int = 3
    share_early: float = 0.2
    share_curvature: float = 0.1
    lambda_min: float = 1e-6

    id = "fedirls"
    display_name = "FedIRLS"
    release_summary = "noisy gradient and curvature, R times"
    in_paper = False
    param_grid = {"R": (3, 4, 5), "share_early": (0.2, 0.35, 0.5)}  # noqa: RUF012
    rounds_grid = {"R": (1, 2, 3, 4, 5)}  # noqa: RUF012

    def schedule(self, context: PublicContext) -> list[Step]:
        early = [self.share_early / (self.R - 1)] * (self.R - 1) if self.R > 1 else []
        steps = []
        for number, mu in enumerate(split(context.mu, [*early, 1 - sum(early)])):
            curvature = self.share_curvature if number == self.R - 1 else EARLY_CURVATURE
            costs = split(float(mu), [1 - curvature, curvature])
            steps.append(Step(NewtonParts(), costs[:, None], context.everyone, context.weights(releases=self.R)))
        return steps

    def run(self, runner: Runner, steps: Sequence[Step]) -> FloatArray:
        theta = np.zeros(runner.context.shape)
        for step in steps:
            parts = runner.ask(step, theta).aggregate()
            direction = direction_from_parts(runner, parts, self.lambda_min).reshape(theta.shape)
            length = float(np.linalg.norm(direction))
            theta = runner.record(theta - direction * min(1.0, MAX_STEP_NORM / max(length, 1e-300)))
        return theta

    def propagate_noise(self, noise_model: NoiseModel, steps: Sequence[Step]) -> None:
        for step in steps:
            noise_model.newton(step)
