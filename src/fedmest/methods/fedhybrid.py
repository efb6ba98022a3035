"""FedHybrid: K1 local steps, averaged once, then K2 rounds of FedSGD (Auddy, Peng, Paul 2026, Algorithm 2).

Noise of the paper: half of mu^2 to each stage, split evenly inside: 2 B eta sqrt(2 K1) / (mu n_i) a local step,
2 B sqrt(2 K2) / (mu n_i) a gradient. Certified, the first stage only has to find the neighbourhood of the answer
and gets the smaller share.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fedmest.core.typing import FloatArray
from fedmest.methods.base import Method, NoiseModel, Runner
from fedmest.methods.fedavg import average
from fedmest.methods.fedsgd import descend
from fedmest.privacy.budget import step_shares
from fedmest.queries import Descent, Gradient
from fedmest.queries.schedule import PublicContext, Step, sequential_steps


@dataclass(frozen=True)
class FedHybrid(Method):
    """FedHybrid: local steps, averaged once, then rounds of FedSGD.

    Parameters
    ----------
    K1 : int, default 30
        Local steps in the first round.
    K2 : int, default 20
        Rounds of FedSGD after it.
    eta : float, default 0.5
        Step size, of the sites and of the server.
    share1 : float, default 0.2
        Share of mu^2 for the first round; 0.5 under ``calibration="paper"``.
    """

    K1: int = 30
    K2: int = 20
    eta: float = 0.5
    share1: float = 0.2

    id = "fedhybrid"
    display_name = "FedHybrid"
    release_summary = "theta after K1 local steps, then mean gradient K2 times"
    supports_client_sampling = True
    networks = True
    quick_options = {"K1": 2, "K2": 2}  # noqa: RUF012
    param_grid = {"K2": (10, 20, 40), "eta": (0.5, 1.0)}  # noqa: RUF012
    rounds_grid = {"K2": (2, 5, 10, 20, 40)}  # noqa: RUF012

    @classmethod
    def defaults(cls, calibration: str) -> dict[str, Any]:
        return {"share1": 0.5} if calibration == "paper" else {}

    def schedule(self, context: PublicContext) -> list[Step]:
        damping = context.damping(self.eta)
        local = self.share1 * step_shares(self.K1, context.budget_schedule, damping)
        rounds = (1 - self.share1) * step_shares(self.K2, context.budget_schedule, damping)
        return sequential_steps(
            context, [Descent(self.K1, self.eta), *[Gradient()] * self.K2], [local, *rounds[:, None]], context.mu
        )

    def run(self, runner: Runner, steps: Sequence[Step]) -> FloatArray:
        theta = average(runner, steps[0], runner.start(), 1.0)
        return descend(runner, steps[1:], theta, self.eta)

    def propagate_noise(self, noise_model: NoiseModel, steps: Sequence[Step]) -> None:
        noise_model.descent(steps[0], self.eta)
        for step in steps[1:]:
            noise_model.gradient(step, self.eta)
