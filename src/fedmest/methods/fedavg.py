"""FedAvg: R rounds of K local noisy gradient steps, then averaging (Auddy, Peng, Paul 2026, Algorithm 3).

Noise of the paper: 2 B eta sqrt(R K) / (mu n_i) on each local step, that is, R K releases at mu / sqrt(R K).
"""

from collections.abc import Sequence
from dataclasses import dataclass

from fedmest.core.typing import FloatArray
from fedmest.methods.base import Method, NoiseModel, Runner
from fedmest.privacy.budget import step_shares
from fedmest.queries import Descent
from fedmest.queries.schedule import PublicContext, Step, sequential_steps


@dataclass(frozen=True)
class FedAvg(Method):
    """FedAvg: local noisy gradient steps, averaged by the server.

    Parameters
    ----------
    K : int, default 50
        Local steps in a round.
    R : int, default 2
        Rounds.
    eta : float, default 0.5
        Step size of the sites.
    server_eta : float, default 1.0
        Share of the way that the server goes from the last estimate to the average of the replies.
    """

    K: int = 50
    R: int = 2
    eta: float = 0.5
    server_eta: float = 1.0

    id = "fedavg"
    display_name = "FedAvg"
    release_summary = "theta after K local steps, R times"
    supports_client_sampling = True
    networks = True
    quick_options = {"K": 2, "R": 1}  # noqa: RUF012
    param_grid = {"K": (15, 50), "R": (1, 2)}  # noqa: RUF012
    rounds_grid = {"R": (1, 2, 3, 5)}  # noqa: RUF012

    def schedule(self, context: PublicContext) -> list[Step]:
        shares = step_shares(self.R * self.K, context.budget_schedule, context.damping(self.eta)).reshape(
            self.R, self.K
        )
        return sequential_steps(context, [Descent(self.K, self.eta)] * self.R, shares, context.mu)

    def run(self, runner: Runner, steps: Sequence[Step]) -> FloatArray:
        theta = runner.start()
        for step in steps:
            theta = average(runner, step, theta, self.server_eta)
        return theta

    def propagate_noise(self, noise_model: NoiseModel, steps: Sequence[Step]) -> None:
        for step in steps:
            noise_model.descent(step, self.eta, self.server_eta)


def average(runner: Runner, step: Step, theta: FloatArray, server_eta: float) -> FloatArray:
    """One round of local steps and the server's move towards the average of what they led to."""
    aggregate = runner.ask(step, theta).aggregate().reshape(theta.shape)
    return runner.record((1 - server_eta) * theta + server_eta * aggregate)


class NonPrivateFedAvg(FedAvg):
    """NP-FedAvg: `FedAvg` without noise, as a baseline.

    Parameters
    ----------
    K : int, default 50
        Local steps in a round.
    R : int, default 2
        Rounds.
    eta : float, default 0.5
        Step size of the sites.
    server_eta : float, default 1.0
        Share of the way that the server goes from the last estimate to the average of the replies.
    """

    id = "np-fedavg"
    display_name = "NP-FedAvg"
    private = False
