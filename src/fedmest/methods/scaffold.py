"""DP-SCAFFOLD: FedAvg with control variates (Karimireddy et al. 2020; Noble, Bellet, Dieuleveut 2022).

A site's control variate is its mean noisy gradient over the last local steps, (theta - theta_i) / (K eta) corrected
for the drift it was given: a function of what the site sent anyway, so it costs no privacy. Local step: theta -= eta
(noisy gradient + c - c_i). Noise per local step as in FedAvg.
"""

from collections.abc import Sequence

import numpy as np

from fedmest.methods.base import Method, Server, Step
from fedmest.methods.fedavg import FedAvg
from fedmest.privacy.gdp import Array


class Scaffold(FedAvg):
    id = "scaffold"
    title = "DP-SCAFFOLD"
    sends = "theta after K drift-corrected local steps, R times"
    propagate = Method.propagate  # drifts are not among the moves

    def run(self, server: Server, steps: Sequence[Step]) -> Array:
        s = server.setting
        theta = server.start()
        variates = np.zeros((len(s.sizes), *s.shape))
        eta = server.clipping.step(self.eta)
        share = s.sizes / s.sizes.sum()
        for step in steps:
            common = np.einsum("i,icj->cj", share, variates)
            drifts = common - variates[step.sites]
            replies = server.ask(step, theta, drifts=drifts)
            answered = replies.sites
            local = replies.values.reshape(len(answered), *s.shape)
            given = drifts[np.isin(step.sites, answered)]
            variates[answered] = (theta - local) / (self.K * eta) - given
            theta = server.note((1 - self.server_eta) * theta + self.server_eta * replies.combined().reshape(s.shape))
        return theta


class NonPrivateScaffold(Scaffold):
    id = "np-scaffold"
    title = "NP-SCAFFOLD"
    private = False
