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

from fedmest.methods.base import Method, Moves, Server, Setting, Step
from fedmest.methods.fednewton import direction_from_parts
from fedmest.privacy.budget import split
from fedmest.privacy.gdp import Array
from fedmest.queries import NewtonParts

EARLY_CURVATURE = 0.4  # of an early round's budget: the first steps are long, so their direction counts
LONGEST_STEP = 3.0  # features have unit scale: no sensible coefficient is farther away than a few of these


@dataclass(frozen=True)
class FedIRLS(Method):
    R: int = 3
    share_early: float = 0.2  # of mu^2, to all rounds but the last
    share_curvature: float = 0.1  # of the last round's budget
    lambda_min: float = 1e-6

    id = "fedirls"
    title = "FedIRLS"
    sends = "noisy gradient and curvature, R times"
    in_paper = False
    tries = {"R": (3, 4, 5), "share_early": (0.2, 0.35, 0.5)}  # noqa: RUF012
    paces = {"R": (1, 2, 3, 4, 5)}  # noqa: RUF012

    def schedule(self, s: Setting) -> list[Step]:
        early = [self.share_early / (self.R - 1)] * (self.R - 1) if self.R > 1 else []
        steps = []
        for number, mu in enumerate(split(s.mu, [*early, 1 - sum(early)])):
            curvature = self.share_curvature if number == self.R - 1 else EARLY_CURVATURE
            prices = split(float(mu), [1 - curvature, curvature])
            steps.append(Step(NewtonParts(), prices[:, None], s.everyone, s.weights(releases=self.R)))
        return steps

    def run(self, server: Server, steps: Sequence[Step]) -> Array:
        theta = np.zeros(server.setting.shape)
        for step in steps:
            parts = server.ask(step, theta).combined()
            direction = direction_from_parts(server, parts, self.lambda_min).reshape(theta.shape)
            length = float(np.linalg.norm(direction))
            theta = server.note(theta - direction * min(1.0, LONGEST_STEP / max(length, 1e-300)))
        return theta

    def propagate(self, moves: Moves, steps: Sequence[Step]) -> None:
        for step in steps:
            moves.newton(step)
