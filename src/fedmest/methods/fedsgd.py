"""FedSGD: K rounds of noisy gradients, averaged by the server (Auddy, Peng, Paul 2026, Algorithm 1).

Noise of the paper: 2 B sqrt(K) / (mu n_i) on each site's mean gradient, that is, K releases at mu / sqrt(K).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedmest.methods.base import Method, Server, Setting, Step, rounds
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

    def schedule(self, s: Setting) -> list[Step]:
        shares = step_shares(self.K, s.schedule, s.damping(self.eta))
        return rounds(s, [Gradient()] * self.K, shares[:, None], s.mu)

    def run(self, server: Server, steps: Sequence[Step]) -> Array:
        return descend(server, steps, np.zeros(server.setting.shape), self.eta)


def descend(server: Server, steps: Sequence[Step], theta: Array, eta: float) -> Array:
    """Server gradient descent along the averaged noisy gradients."""
    eta = server.clipping.step(eta)
    for step in steps:
        gradient = server.ask(step, theta).combined()
        theta = server.note(theta - eta * gradient.reshape(theta.shape))
    return theta
