"""FedStats: linear regression from noisy second moments in one round, the natural rival for that model.

Each site sends its mean of z z', z = (x, y), with symmetric Gaussian noise (analyse Gauss: Dwork, Talwar, Thakurta,
Zhang 2014); the server averages and solves the normal equations, eigenvalues floored at the size of the noise.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedmest.methods.base import Method, Moves, Server, Setting, Step, rounds
from fedmest.privacy.gdp import Array
from fedmest.queries import Moments
from fedmest.queries.newton import from_triangle, newton_direction, spectral_noise


@dataclass(frozen=True)
class FedStats(Method):
    lambda_min: float = 1e-6

    id = "fedstats"
    title = "FedStats"
    sends = "noisy second moments, once"
    in_paper = False
    bounds = "records"
    bound_quantile = 0.99  # second moments are biased by every row that is cut
    models = ("linear",)

    def schedule(self, s: Setting) -> list[Step]:
        return rounds(s, [Moments()], np.ones((1, 1)), s.mu)

    def run(self, server: Server, steps: Sequence[Step]) -> Array:
        d = server.setting.columns
        replies = server.ask(steps[0], np.zeros((1, d)))
        moments = from_triangle(replies.combined(), d + 1)
        noise = spectral_noise(server.last_noise(0), d)
        curvature = moments[:d, :d] + np.diag(server.penalty[0])
        theta = newton_direction(moments[:d, d], curvature, max(self.lambda_min, noise), None)
        return server.note(theta[None])

    def propagate(self, moves: Moves, steps: Sequence[Step]) -> None:
        moves.moments(steps[0])
