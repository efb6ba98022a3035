"""FedStats: linear regression from noisy second moments in one round, the natural rival for that model.

Each site sends its mean of z z', z = (x, y), with symmetric Gaussian noise (analyse Gauss: Dwork, Talwar, Thakurta,
Zhang 2014); the server averages and solves the normal equations, eigenvalues floored at the size of the noise.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedmest.core.typing import FloatArray
from fedmest.methods.base import Method, NoiseModel, Runner
from fedmest.queries import Moments
from fedmest.queries.linalg import from_triangle, newton_direction, spectral_noise
from fedmest.queries.schedule import PublicContext, Step, sequential_steps


@dataclass(frozen=True)
class FedStats(Method):
    """FedStats: linear regression from noisy second moments in one round.

    Parameters
    ----------
    lambda_min : float, default 1e-6
        Lower limit on the eigenvalues of the second moments of the features.
    """

    lambda_min: float = 1e-6

    id = "fedstats"
    display_name = "FedStats"
    release_summary = "noisy second moments, once"
    in_paper = False
    clip_target = "records"
    clip_quantile = 0.99  # second moments are biased by every row that is cut
    models = ("linear",)

    def schedule(self, context: PublicContext) -> list[Step]:
        return sequential_steps(context, [Moments()], np.ones((1, 1)), context.mu)

    def run(self, runner: Runner, steps: Sequence[Step]) -> FloatArray:
        d = runner.context.columns
        replies = runner.ask(steps[0], np.zeros((1, d)))
        moments = from_triangle(replies.aggregate(), d + 1)
        noise = spectral_noise(runner.last_record.aggregate_sd(0), d)
        curvature = moments[:d, :d] + np.diag(runner.penalty[0])
        theta = newton_direction(moments[:d, d], curvature, max(self.lambda_min, noise), None)
        return runner.record(theta[None])

    def propagate_noise(self, noise_model: NoiseModel, steps: Sequence[Step]) -> None:
        noise_model.moments(steps[0])
