"""FedSGD: K rounds of noisy gradients, averaged by the server (Auddy, Peng, Paul 2026, Algorithm 1).

Noise of the paper: 2 B sqrt(K) / (mu n_i) on each site's mean gradient, that is, K releases at mu / sqrt(K).

FedSGD-M, ours, makes more of the same releases, which is free: the server goes on in the directions of earlier rounds
(heavy ball; Polyak 1964), and the estimate is the mean of the last iterates (Polyak and Juditsky 1992). Both average
noise out. For networks it is the best we know: see `benchmarks/recipe.py`.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedmest.core.typing import FloatArray
from fedmest.methods.base import Method, NoiseModel, Runner
from fedmest.privacy.budget import step_shares
from fedmest.queries import Gradient
from fedmest.queries.schedule import PublicContext, Step, sequential_steps


@dataclass(frozen=True)
class FedSGD(Method):
    """FedSGD: server gradient descent along averaged noisy gradients.

    Parameters
    ----------
    K : int, default 50
        Rounds.
    eta : float, default 0.5
        Step size.
    """

    K: int = 50
    eta: float = 0.5

    id = "fedsgd"
    display_name = "FedSGD"
    release_summary = "mean gradient, K times"
    supports_client_sampling = True
    networks = True
    quick_options = {"K": 2}  # noqa: RUF012
    param_grid = {"K": (25, 50, 100), "eta": (0.5, 1.0)}  # noqa: RUF012
    rounds_grid = {"K": (5, 10, 25, 50, 100)}  # noqa: RUF012

    def schedule(self, context: PublicContext) -> list[Step]:
        shares = step_shares(self.K, context.budget_schedule, context.damping(self.eta))
        return sequential_steps(context, [Gradient()] * self.K, shares[:, None], context.mu)

    def run(self, runner: Runner, steps: Sequence[Step]) -> FloatArray:
        return descend(runner, steps, runner.start(), self.eta)

    def propagate_noise(self, noise_model: NoiseModel, steps: Sequence[Step]) -> None:
        for step in steps:
            noise_model.gradient(step, self.eta)


@dataclass(frozen=True)
class FedSGDM(FedSGD):
    """FedSGD-M: `FedSGD` with momentum and averaged iterates.

    Parameters
    ----------
    K : int, default 50
        Rounds.
    eta : float, default 0.5
        Step size.
    momentum : float, default 0.7
        Share of the last update that is added to the next (heavy ball).
    average : int, default 5
        Number of last iterates whose mean is the estimate.
    """

    momentum: float = 0.7
    average: int = 5

    id = "fedsgd-m"
    display_name = "FedSGD-M"
    in_paper = False
    propagate_noise = Method.propagate_noise  # earlier directions are not among the moves

    def run(self, runner: Runner, steps: Sequence[Step]) -> FloatArray:
        return descend(runner, steps, runner.start(), self.eta, self.momentum, self.average)


def descend(
    runner: Runner, steps: Sequence[Step], theta: FloatArray, eta: float, momentum: float = 0.0, average: int = 1
) -> FloatArray:
    """Server gradient descent along the averaged noisy gradients; the mean of the last iterates."""
    eta = runner.clipping.step(eta)
    last = deque([theta], maxlen=average)
    move = np.zeros_like(theta)
    for step in steps:
        gradient = runner.ask(step, theta).aggregate()
        move = momentum * move - eta * gradient.reshape(theta.shape)
        theta = theta + move
        last.append(theta)
        runner.record(np.mean(last, axis=0))
    return np.asarray(np.mean(last, axis=0))
