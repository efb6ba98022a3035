"""FedHybrid: K1 local steps, averaged once, then K2 rounds of FedSGD (Auddy, Peng, Paul 2026, Algorithm 2).

Noise of the paper: half of mu^2 to each stage, split evenly inside: 2 B eta sqrt(2 K1) / (mu n_i) a local step,
2 B sqrt(2 K2) / (mu n_i) a gradient. Certified, the first stage only has to find the neighbourhood of the answer
and gets the smaller share.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fedmest.methods.base import Method, Moves, Server, Setting, Step, rounds
from fedmest.methods.fedavg import average
from fedmest.methods.fedsgd import descend
from fedmest.privacy.budget import step_shares
from fedmest.privacy.gdp import Array
from fedmest.queries import Descent, Gradient


@dataclass(frozen=True)
class FedHybrid(Method):
    K1: int = 30
    K2: int = 20
    eta: float = 0.5
    share1: float = 0.2

    id = "fedhybrid"
    title = "FedHybrid"
    sends = "theta after K1 local steps, then mean gradient K2 times"
    samples_sites = True
    networks = True
    tries = {"K2": (10, 20, 40), "eta": (0.5, 1.0)}  # noqa: RUF012
    paces = {"K2": (2, 5, 10, 20, 40)}  # noqa: RUF012

    @classmethod
    def defaults(cls, calibration: str) -> dict[str, Any]:
        return {"share1": 0.5} if calibration == "paper" else {}

    def schedule(self, s: Setting) -> list[Step]:
        damping = s.damping(self.eta)
        local = self.share1 * step_shares(self.K1, s.schedule, damping)
        server = (1 - self.share1) * step_shares(self.K2, s.schedule, damping)
        return rounds(s, [Descent(self.K1, self.eta), *[Gradient()] * self.K2], [local, *server[:, None]], s.mu)

    def run(self, server: Server, steps: Sequence[Step]) -> Array:
        theta = average(server, steps[0], server.start(), 1.0)
        return descend(server, steps[1:], theta, self.eta)

    def propagate(self, moves: Moves, steps: Sequence[Step]) -> None:
        moves.descent(steps[0], self.eta)
        for step in steps[1:]:
            moves.gradient(step, self.eta)
