"""FedNewton: one round of FedAvg, one Newton step (Auddy, Peng, Paul 2026, Algorithm 4).

Paper: rows split into halves X1, X2; round 1 on X1 with noise 4 B eta sqrt(2K) / (mu n_i) a step; round 2 each site
sends theta - H(X1)^-1 g(X2) + 2 B_new / (mu n_i) Z with B_new = 4 sqrt(2) B / tau_1.

Certified: gradient and curvature each get their own noise, and what is computed from them is free. By default sites
send the two parts (`send="parts"`): averaged over sites first and divided afterwards, the curvature's noise averages
out, where quotients of noisy parts (`send="step"`, d floats instead of d + d (d+1)/2) keep a bias that no number of
sites removes. All rows serve all releases unless `split=True`. Round 1 only has to reach the neighbourhood in which a
Newton step is exact to first order, so most of the budget goes to the last gradient.

With hundreds of parameters the curvature's noise has a spectral norm of about sqrt(2 size) times that of an entry, and
one step through it goes nowhere. `curvature="features"` then asks, once, for second moments of the features: d (d+1)/2
numbers for any number of classes. Times a constant of the model they bound the curvature at every theta (Böhning 1992),
so that they serve as its stand-in for as many steps as one likes, each for the cost of a gradient; averaged over
sites, their noise sets how far the directions of little curvature are trusted. Momentum makes up for the short steps.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from fedmest.core.exceptions import InputError
from fedmest.core.typing import FloatArray
from fedmest.methods.base import Method, NoiseModel, NoNoiseModel, Runner
from fedmest.privacy.budget import split, step_shares
from fedmest.queries import Descent, Gradient, Moments, NewtonParts, NewtonStep, PaperNewton, Query
from fedmest.queries.linalg import floored_inverse, from_triangle, newton_direction, spectral_noise
from fedmest.queries.schedule import PublicContext, Step, sequential_steps

MANY_PARAMETERS = 500  # where "auto" turns to the features
MOMENTUM = 0.7  # over steps through the features' moments; heavy ball
MAX_LOCAL_STEPS = 30_000
TIME_CONSTANTS = 3  # more local steps bring the start no closer than noise lets them; the Newton step does the rest


@dataclass(frozen=True)
class FedNewton(Method):
    """FedNewton: one round of FedAvg, then one Newton step.

    Parameters
    ----------
    K : int, optional
        Local steps in round 1; by default 3 time constants of the model's typical curvature.
    eta : float, default 0.5
        Step size of the sites.
    share1 : float, default 0.2
        Share of mu^2 for round 1.
    share_curvature : float, default 0.1
        Share of mu^2 for the curvature.
    curvature : {"auto", "rows", "features"}
        "rows" releases the curvature, "features" second moments of the features that bound it; "auto" takes the
        features where there are more than 500 parameters.
    steps : int, default 20
        Steps with the bound from the features' moments, under ``curvature="features"``.
    send : {"parts", "step"}
        Reply of a site in round 2: gradient and curvature, or the Newton step that it computes from them.
    split : bool, default False
        Whether the two halves of a site's rows serve different releases.
    tau1 : float, default 0.2
        Least eigenvalue of the Hessian that the paper's proof assumes; ``calibration="paper"`` only.
    lambda_min : float, default 1e-6
        Lower limit on the eigenvalues of the curvature.
    """

    K: int | None = None
    eta: float = 0.5
    share1: float = 0.2
    share_curvature: float = 0.1
    curvature: Literal["auto", "rows", "features"] = "auto"
    steps: int = 20
    send: Literal["parts", "step"] = "parts"
    split: bool = False
    tau1: float = 0.2
    lambda_min: float = 1e-6

    id = "fednewton"
    display_name = "FedNewton"
    release_summary = "theta after K local steps, then noisy gradient and curvature"
    param_grid = {"share1": (0.2, 0.35, 0.5)}  # noqa: RUF012

    inapplicable_options = {  # noqa: RUF012
        "paper": ("curvature", "steps", "split", "send", "share_curvature", "lambda_min"),
        "certified": ("tau1",),
    }

    @classmethod
    def defaults(cls, calibration: str) -> dict[str, Any]:
        if calibration != "paper":
            return {}
        return {"K": 50, "share1": 0.5, "split": True, "send": "step", "curvature": "rows"}

    def schedule(self, context: PublicContext) -> list[Step]:
        if self._by_features(context):
            moments, steps = split(context.mu, [self.share_curvature, 1 - self.share_curvature])
            even = np.full((self.steps, 1), 1.0 / self.steps)
            return [
                *sequential_steps(context, [Moments("features")], np.ones((1, 1)), float(moments)),
                *sequential_steps(context, [Gradient()] * self.steps, even, float(steps)),
            ]
        wanted = self.K or TIME_CONSTANTS / max(self.eta * context.model.typical_curvature, 1e-300)
        if not wanted <= MAX_LOCAL_STEPS:
            raise InputError(
                f"method 'fednewton': eta={self.eta:g} takes {wanted:.3g} local steps, more than "
                f"{MAX_LOCAL_STEPS:,}; raise it, or set K"
            )
        steps = max(1, round(wanted))
        local = step_shares(steps, context.budget_schedule, context.damping(self.eta))[None]
        first = Descent(steps, self.eta, "first" if self.split else "all")
        second: Query
        if context.paper:
            mu1, mu2 = split(context.mu, [self.share1, 1 - self.share1])
            second, costs = PaperNewton(self.tau1), np.array([mu2])
        else:
            second = NewtonParts(self.split) if self.send == "parts" else NewtonStep(self.split, self.lambda_min)
            rest = 1 - self.share1 - self.share_curvature
            mu1, mu_h, mu_g = split(context.mu, [self.share1, self.share_curvature, rest])
            if self.split:  # rows of the second half pay for the gradient alone
                mu1, mu_h = split(context.mu, [self.share1, self.share_curvature])
                mu_g = context.mu
            costs = np.array([mu_g, mu_h])
        return [
            *sequential_steps(context, [first], local, float(mu1)),
            Step(second, costs[:, None], context.everyone, context.weights(releases=1)),
        ]

    def _by_features(self, context: PublicContext) -> bool:
        if self.curvature == "features" and context.model.curvature_upper_bound is None:
            raise InputError(
                f"method 'fednewton': nothing caps the curvature of the {context.model.name} model; use "
                "curvature='rows'"
            )
        many = context.shape[0] * context.shape[1] > MANY_PARAMETERS and context.model.curvature_upper_bound is not None
        return self.curvature == "features" or (self.curvature == "auto" and many)

    def run(self, runner: Runner, steps: Sequence[Step]) -> FloatArray:
        start = runner.start()
        if isinstance(steps[0].query, Moments):
            return steps_by_features(runner, steps, start, self.lambda_min)
        theta = runner.record(runner.ask(steps[0], start).aggregate().reshape(start.shape))
        reply = runner.ask(steps[1], theta).aggregate()
        if not isinstance(steps[1].query, NewtonParts):
            return runner.record(reply.reshape(start.shape))
        return runner.record(theta - direction_from_parts(runner, reply, self.lambda_min).reshape(start.shape))

    def propagate_noise(self, noise_model: NoiseModel, steps: Sequence[Step]) -> None:
        if self.split or not isinstance(steps[-1].query, NewtonParts):
            raise NoNoiseModel(
                "how its noise becomes error is written down for curvature='rows', send='parts' and split=False only"
            )
        noise_model.descent(steps[0], self.eta)
        noise_model.newton(steps[1])


def steps_by_features(runner: Runner, steps: Sequence[Step], theta: FloatArray, lambda_min: float) -> FloatArray:
    """Newton steps in which the cap of the curvature, released in the first of `steps`, stands for the curvature."""
    model, columns = runner.context.model, runner.context.columns
    cap = model.curvature_upper_bound or 1.0
    moments = runner.ask(steps[0], theta).aggregate()
    curvature = cap * from_triangle(moments, columns) + np.diag(runner.penalty[0])
    inverse = floored_inverse(
        curvature, max(lambda_min, cap * spectral_noise(runner.last_record.aggregate_sd(0), columns))
    )
    move = np.zeros_like(theta)
    for step in steps[1:]:
        gradient = runner.ask(step, theta).aggregate().reshape(theta.shape)
        move = MOMENTUM * move - gradient @ inverse
        theta = runner.record(theta + move)
    return theta


def direction_from_parts(runner: Runner, parts: FloatArray, lambda_min: float) -> FloatArray:
    """The Newton direction from averaged parts, eigenvalues floored at the size of the noise of the last round."""
    size = runner.context.shape[0] * runner.context.shape[1]
    floor = max(lambda_min, spectral_noise(runner.last_record.aggregate_sd(1), size))
    basis = runner.context.model.contrasts(runner.context.columns)
    return newton_direction(parts[:size], from_triangle(parts[size:], size), floor, basis)
