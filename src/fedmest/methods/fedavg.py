"""FedAvg: R rounds of K local noisy gradient steps, then averaging (Auddy, Peng, Paul 2026, Algorithm 3).

Noise of the paper: 2 B eta sqrt(R K) / (mu n_i) on each local step, that is, R K releases at mu / sqrt(R K).
"""

from collections.abc import Sequence
from dataclasses import dataclass

from fedmest.methods.base import Method, Moves, Server, Setting, Step, rounds
from fedmest.privacy.budget import step_shares
from fedmest.privacy.gdp import Array
from fedmest.queries import Descent


@dataclass(frozen=True)
class FedAvg(Method):
    K: int = 50
    R: int = 2
    eta: float = 0.5
    server_eta: float = 1.0  # how far the server goes from the last theta to the average of the replies

    id = "fedavg"
    title = "FedAvg"
    sends = "theta after K local steps, R times"
    samples_sites = True
    networks = True
    tries = {"K": (15, 50), "R": (1, 2)}  # noqa: RUF012
    paces = {"R": (1, 2, 3, 5)}  # noqa: RUF012

    def schedule(self, s: Setting) -> list[Step]:
        shares = step_shares(self.R * self.K, s.schedule, s.damping(self.eta)).reshape(self.R, self.K)
        return rounds(s, [Descent(self.K, self.eta)] * self.R, shares, s.mu)

    def run(self, server: Server, steps: Sequence[Step]) -> Array:
        theta = server.start()
        for step in steps:
            theta = average(server, step, theta, self.server_eta)
        return theta

    def propagate(self, moves: Moves, steps: Sequence[Step]) -> None:
        for step in steps:
            moves.descent(step, self.eta, self.server_eta)


def average(server: Server, step: Step, theta: Array, server_eta: float) -> Array:
    """One round of local steps and the server's move towards the average of what they led to."""
    combined = server.ask(step, theta).combined().reshape(theta.shape)
    return server.note((1 - server_eta) * theta + server_eta * combined)


class NonPrivateFedAvg(FedAvg):
    id = "np-fedavg"
    title = "NP-FedAvg"
    private = False
