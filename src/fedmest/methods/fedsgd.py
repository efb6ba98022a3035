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

from fedmest.methods.base import Method, Moves, Server, Setting, Step, rounds
from fedmest.privacy.budget import step_shares
from fedmest.privacy.gdp import Array
from fedmest.queries import Gradient


@dataclass(frozen=True)
class FedSGD(Method):
    K: int = 50
    eta: float = 0.5

    id = "fedsgd"
    title = "FedSGD"
    sends = "mean gradient, K times"
    samples_sites = True
    networks = True
    tries = {"K": (25, 50, 100), "eta": (0.5, 1.0)}  # noqa: RUF012
    paces = {"K": (5, 10, 25, 50, 100)}  # noqa: RUF012

    def schedule(self, s: Setting) -> list[Step]:
        shares = step_shares(self.K, s.schedule, s.damping(self.eta))
        return rounds(s, [Gradient()] * self.K, shares[:, None], s.mu)

    def run(self, server: Server, steps: Sequence[Step]) -> Array:
        return descend(server, steps, server.start(), self.eta)

    def propagate(self, moves: Moves, steps: Sequence[Step]) -> None:
        for step in steps:
            moves.gradient(step, self.eta)


@dataclass(frozen=True)
class FedSGDM(FedSGD):
    momentum: float = 0.7
    average: int = 5  # iterates, the last ones

    id = "fedsgd-m"
    title = "FedSGD-M"
    in_paper = False
    propagate = Method.propagate  # earlier directions are not among the moves

    def run(self, server: Server, steps: Sequence[Step]) -> Array:
        return descend(server, steps, server.start(), self.eta, self.momentum, self.average)


def descend(
    server: Server, steps: Sequence[Step], theta: Array, eta: float, momentum: float = 0.0, average: int = 1
) -> Array:
    """Server gradient descent along the averaged noisy gradients; the mean of the last iterates."""
    eta = server.clipping.step(eta)
    last = deque([theta], maxlen=average)
    move = np.zeros_like(theta)
    for step in steps:
        gradient = server.ask(step, theta).combined()
        move = momentum * move - eta * gradient.reshape(theta.shape)
        theta = theta + move
        last.append(theta)
        server.note(np.mean(last, axis=0))
    return np.asarray(np.mean(last, axis=0))
