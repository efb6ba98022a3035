"""FedNewton for networks: FedAvg, then Newton steps (Auddy, Peng, Paul 2026, Algorithm 5 and the CNN experiments).

Paper: R rounds of FedAvg with noise 2 B eta sqrt(2 R K) / (mu n_i) a local step, then each site sends theta - alpha
(h + lambda)^-1 g + 2 B_new / (mu n_i) Z, B_new = 2 sqrt(2) B / tau_1. FedNewton-Iter does so `cycles` times, and its
Newton steps move the last layer only; its budget is that of FedNewton-NN spread over all cycles.

Certified: noise goes on the parts, which the server averages before it divides. The last layer's curvature is at most
(I - 11'/c) / 2 (x) E[z z'] at every theta (Böhning 1992), z the hidden units with a one in front, so second
moments of z are all that has to be released. Both methods do that for the last layer only: the curvature of all
421,642 parameters of the MNIST network would be a matrix of 10^11 entries, with noise on each.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedmest.core.typing import FloatArray
from fedmest.methods.base import Method, Runner
from fedmest.methods.fedavg import average
from fedmest.models import NetworkModel
from fedmest.privacy.budget import step_shares
from fedmest.queries import Descent, LastLayerParts, PaperFisherStep, Query
from fedmest.queries.linalg import from_triangle, spectral_noise
from fedmest.queries.schedule import PublicContext, Step, sequential_steps


@dataclass(frozen=True)
class FedNewtonNN(Method):
    """FedNewton-NN: rounds of FedAvg for a network, then a Newton step.

    Parameters
    ----------
    K : int, default 10
        Local steps in a round of FedAvg.
    R : int, default 10
        Rounds of FedAvg in a cycle.
    eta : float, default 0.1
        Step size of the sites.
    cycles : int, default 1
        How often FedAvg and the Newton step follow each other.
    alpha : float, default 0.5
        Share of a Newton step that is taken.
    lambda_ridge : float, default 1.0
        Added to the curvature.
    tau1 : float, default 1.0
        Least eigenvalue of the regularized curvature that the paper's proof assumes; ``calibration="paper"`` only.
    head_bound : float, default 4.0
        Bound on the length of (1, hidden units); in the MNIST network it is 1.2 at the start, then 2 to 6.
    server_eta : float, default 1.0
        Share of the way that the server goes from the last estimate to the average of the replies.
    share1 : float, default 0.5
        Share of mu^2 for FedAvg.
    share_curvature : float, default 0.1
        Share of mu^2 for the curvature.
    """

    K: int = 10
    R: int = 10
    eta: float = 0.1
    cycles: int = 1
    alpha: float = 0.5
    lambda_ridge: float = 1.0
    tau1: float = 1.0
    head_bound: float = 4.0
    server_eta: float = 1.0
    share1: float = 0.5
    share_curvature: float = 0.1

    id = "fednewton-nn"
    display_name = "FedNewton-NN"
    release_summary = "theta after K local steps, R times, then a Newton step or the last layer's parts of one"
    supports_client_sampling = True
    models = ("network",)
    networks = True
    quick_options = {"K": 2, "R": 1, "cycles": 1}  # noqa: RUF012
    inapplicable_options = {"paper": ("head_bound", "share_curvature"), "certified": ("tau1",)}  # noqa: RUF012
    head_only: ClassVar[bool] = False  # the paper's Newton steps; certified ones always are

    def schedule(self, context: PublicContext) -> list[Step]:
        count = self.cycles * self.R
        local = self.share1 * step_shares(count * self.K, context.budget_schedule, context.damping(self.eta))
        rest = 1 - self.share1
        refine: Query
        if context.paper:
            refine = PaperFisherStep(self.head_only, self.alpha, self.lambda_ridge, self.tau1)
            last = np.array([rest / self.cycles])
        else:
            refine = LastLayerParts(self.head_bound)
            last = np.array([rest - self.share_curvature, self.share_curvature]) / self.cycles
        queries: list[Query] = []
        shares: list[FloatArray] = []
        for cycle in np.split(local.reshape(count, self.K), self.cycles):
            queries += [*[Descent(self.K, self.eta)] * self.R, refine]
            shares += [*cycle, last]
        return sequential_steps(context, queries, shares, context.mu)

    def run(self, runner: Runner, steps: Sequence[Step]) -> FloatArray:
        model = runner.context.model
        assert isinstance(model, NetworkModel)
        theta = runner.start()
        for step in steps:
            if isinstance(step.query, Descent):
                theta = average(runner, step, theta, self.server_eta)
                continue
            reply = runner.ask(step, theta).aggregate()
            if isinstance(step.query, LastLayerParts):
                theta = model.with_head(theta, self._refined(runner, model, theta, reply))
            elif self.head_only:
                theta = model.with_head(theta, reply.reshape(model.head))
            else:
                theta = reply[None]
            runner.record(theta)
        return theta

    def _refined(self, runner: Runner, model: NetworkModel, theta: FloatArray, parts: FloatArray) -> FloatArray:
        """The last layer after a Newton step with the curvature's bound; eigenvalues below its noise count as noise."""
        features = model.head[1]
        head = model.head_of(theta)
        ridge = float(runner.penalty[0, 0])
        gradient = parts[: head.size].reshape(head.shape) + ridge * head
        values, vectors = np.linalg.eigh(from_triangle(parts[head.size :], features))
        noise = spectral_noise(runner.last_record.aggregate_sd(1), features)
        cap = model.curvature_upper_bound
        assert cap is not None
        gradient = gradient - gradient.mean(axis=0)  # a shift of all classes changes nothing, and would carry noise
        curvature = cap * np.maximum(values, noise) + self.lambda_ridge + ridge
        return np.asarray(head - self.alpha * (gradient @ vectors / curvature) @ vectors.T)


@dataclass(frozen=True)
class FedNewtonIter(FedNewtonNN):
    """FedNewton-Iter: `FedNewtonNN` in several cycles, with Newton steps of the last layer only.

    Parameters
    ----------
    K : int, default 10
        Local steps in a round of FedAvg.
    R : int, default 5
        Rounds of FedAvg in a cycle.
    eta : float, default 0.1
        Step size of the sites.
    cycles : int, default 2
        How often FedAvg and the Newton step follow each other.
    alpha, lambda_ridge, tau1, head_bound, server_eta, share1, share_curvature : float
        As in `FedNewtonNN`.
    """

    R: int = 5
    cycles: int = 2

    id = "fednewton-iter"
    display_name = "FedNewton-Iter"
    release_summary = "cycles of theta after K local steps, R times, and a Newton step of the last layer or its parts"
    head_only = True
