"""FedNewton for networks: FedAvg, then Newton steps (Auddy, Peng, Paul 2026, Algorithm 5 and the CNN experiments).

Paper: R rounds of FedAvg with noise 2 B eta sqrt(2 R K) / (mu n_i) a local step, then each site sends theta - alpha
(h + lambda)^-1 g + 2 B_new / (mu n_i) Z, B_new = 2 sqrt(2) B / tau_1. FedNewton-Iter does so `cycles` times, and its
Newton steps move the last layer only; its budget is that of FedNewton-NN spread over all cycles.

Certified: noise goes on the parts, which the server averages before it divides. The last layer's curvature is at most
(I - 11'/c) / 2 (x) E[z z'] at every theta (Böhning 1992), z the hidden units with a one in front, so second
moments of z are all that has to be bought. That is done for the last layer only, by both methods: the curvature of all
421,642 parameters of the MNIST network would be a matrix of 10^11 entries, with noise on each.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedmest.methods.base import Method, Server, Setting, Step, rounds
from fedmest.methods.fedavg import average
from fedmest.models import NetworkModel
from fedmest.privacy.budget import step_shares
from fedmest.privacy.gdp import Array
from fedmest.queries import Descent, HeadParts, PaperFisherStep, Query
from fedmest.queries.newton import from_triangle, spectral_noise


@dataclass(frozen=True)
class FedNewtonNN(Method):
    K: int = 10
    R: int = 10  # rounds of FedAvg in a cycle
    eta: float = 0.1
    cycles: int = 1
    alpha: float = 0.5  # how much of a Newton step is taken
    lambda_ridge: float = 1.0  # added to the curvature
    tau1: float = 1.0  # paper only: what its proof assumes of h + lambda
    head_bound: float = 4.0  # on the length of (1, hidden units); MNIST network: 1.2 at the start, then 2 to 6
    server_eta: float = 1.0
    share1: float = 0.5  # of mu^2, to FedAvg
    share_curvature: float = 0.1

    id = "fednewton-nn"
    title = "FedNewton-NN"
    sends = "theta after K local steps, R times, then a Newton step or the last layer's parts of one"
    samples_sites = True
    models = ("network",)
    networks = True
    foreign = {"paper": ("head_bound", "share_curvature"), "certified": ("tau1",)}  # noqa: RUF012
    head_only: ClassVar[bool] = False  # the paper's Newton steps; certified ones always are

    def schedule(self, s: Setting) -> list[Step]:
        count = self.cycles * self.R
        local = self.share1 * step_shares(count * self.K, s.schedule, s.damping(self.eta))
        rest = 1 - self.share1
        refine: Query
        if s.paper:
            refine = PaperFisherStep(self.head_only, self.alpha, self.lambda_ridge, self.tau1)
            last = np.array([rest / self.cycles])
        else:
            refine = HeadParts(self.head_bound)
            last = np.array([rest - self.share_curvature, self.share_curvature]) / self.cycles
        queries: list[Query] = []
        shares: list[Array] = []
        for cycle in np.split(local.reshape(count, self.K), self.cycles):
            queries += [*[Descent(self.K, self.eta)] * self.R, refine]
            shares += [*cycle, last]
        return rounds(s, queries, shares, s.mu)

    def run(self, server: Server, steps: Sequence[Step]) -> Array:
        model = server.setting.model
        assert isinstance(model, NetworkModel)
        theta = server.start()
        for step in steps:
            if isinstance(step.query, Descent):
                theta = average(server, step, theta, self.server_eta)
                continue
            reply = server.ask(step, theta).combined()
            if isinstance(step.query, HeadParts):
                theta = model.with_head(theta, self._refined(server, model, theta, reply))
            elif self.head_only:
                theta = model.with_head(theta, reply.reshape(model.head))
            else:
                theta = reply[None]
            server.note(theta)
        return theta

    def _refined(self, server: Server, model: NetworkModel, theta: Array, parts: Array) -> Array:
        """The last layer after a Newton step with the curvature's bound; eigenvalues below its noise count as noise."""
        features = model.head[1]
        head = model.head_of(theta)
        ridge = float(server.penalty[0, 0])
        gradient = parts[: head.size].reshape(head.shape) + ridge * head
        values, vectors = np.linalg.eigh(from_triangle(parts[head.size :], features))
        record = server.records[-1]
        noise = spectral_noise(float(np.linalg.norm(record.step.weights * record.sds[1])), features)
        cap = model.curvature_cap
        assert cap is not None
        gradient = gradient - gradient.mean(axis=0)  # a shift of all classes changes nothing, and would carry noise
        curvature = cap * np.maximum(values, noise) + self.lambda_ridge + ridge
        return np.asarray(head - self.alpha * (gradient @ vectors / curvature) @ vectors.T)


@dataclass(frozen=True)
class FedNewtonIter(FedNewtonNN):
    R: int = 5
    cycles: int = 2

    id = "fednewton-iter"
    title = "FedNewton-Iter"
    sends = "cycles of theta after K local steps, R times, and a Newton step of the last layer or its parts"
    head_only = True
