"""FedAvg: R rounds of K local noisy gradient steps, then averaging (Auddy, Peng, Paul 2026, Algorithm 3).

Noise of the paper: 2 B eta sqrt(R K) / (mu n_i) on each local step, that is, R K releases at mu / sqrt(R K).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedmest.methods.base import Method, Server, Setting, Step, rounds
from fedmest.privacy.budget import step_shares
from fedmest.privacy.gdp import Array
from fedmest.queries import Descent


@dataclass(frozen=True)
class FedAvg(Method):
    K: int = 50
    R: int = 2
    eta: float = 0.5

    id = "fedavg"
    title = "FedAvg"
    sends = "theta after K local steps, R times"
    samples_sites = True

    def schedule(self, s: Setting) -> list[Step]:
        shares = step_shares(self.R * self.K, s.schedule, s.damping(self.eta)).reshape(self.R, self.K)
        return rounds(s, [Descent(self.K, self.eta)] * self.R, shares, s.mu)

    def run(self, server: Server, steps: Sequence[Step]) -> Array:
        theta = np.zeros(server.setting.shape)
        for step in steps:
            theta = server.note(server.ask(step, theta).combined().reshape(theta.shape))
        return theta


class NonPrivateFedAvg(FedAvg):
    id = "np-fedavg"
    title = "NP-FedAvg"
    private = False
