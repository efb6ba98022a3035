"""DP-SCAFFOLD: FedAvg with control variates (Karimireddy et al. 2020; Noble, Bellet, Dieuleveut 2022).

A site's control variate is its mean noisy gradient over the last local steps, (theta - theta_i) / (K eta) corrected
for the drift it was given: a function of what the site sent anyway, so it costs no privacy. Local step: theta -= eta
(noisy gradient + c - c_i). Noise per local step as in FedAvg.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from fedmest.core.typing import FloatArray
from fedmest.methods.base import Method, Runner
from fedmest.methods.fedavg import FedAvg
from fedmest.queries.schedule import PublicContext, Step


class Scaffold(FedAvg):
    """DP-SCAFFOLD: `FedAvg` with control variates against the drift of local steps.

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

    id = "scaffold"
    display_name = "DP-SCAFFOLD"
    release_summary = "theta after K drift-corrected local steps, R times"
    needs_site_values = True
    propagate_noise = Method.propagate_noise  # drifts are not among the moves

    def schedule(self, context: PublicContext) -> list[Step]:
        return [replace(step, uses=step.uses | {"drift"}) for step in super().schedule(context)]

    def run(self, runner: Runner, steps: Sequence[Step]) -> FloatArray:
        context = runner.context
        theta = runner.start()
        variates = np.zeros((len(context.sizes), *context.shape))
        eta = runner.clipping.step(self.eta)
        share = context.sizes / context.sizes.sum()
        for step in steps:
            common = np.einsum("i,icj->cj", share, variates)
            drifts = common - variates[step.sites]
            replies = runner.ask(step, theta, drifts=drifts)
            answered = replies.sites
            local = replies.values.reshape(len(answered), *context.shape)
            given = drifts[np.isin(step.sites, answered)]
            variates[answered] = (theta - local) / (self.K * eta) - given
            theta = runner.record(
                (1 - self.server_eta) * theta + self.server_eta * replies.aggregate().reshape(context.shape)
            )
        return theta


class NonPrivateScaffold(Scaffold):
    """NP-SCAFFOLD: `Scaffold` without noise, as a baseline.

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

    id = "np-scaffold"
    display_name = "NP-SCAFFOLD"
    private = False
