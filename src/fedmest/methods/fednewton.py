"""FedNewton: one round of FedAvg, one Newton step (Auddy, Peng, Paul 2026, Algorithm 4).

Paper: rows split into halves X1, X2; round 1 on X1 with noise 4 B eta sqrt(2K) / (mu n_i) a step; round 2 each site
sends theta - H(X1)^-1 g(X2) + 2 B_new / (mu n_i) Z with B_new = 4 sqrt(2) B / tau_1.

Certified: gradient and curvature each get their own noise, and what is computed from them is free. By default sites
send the two parts (`send="parts"`): averaged over sites first and divided afterwards, the curvature's noise averages
out, where quotients of noisy parts (`send="step"`, d floats instead of d + d (d+1)/2) keep a bias that no number of
sites removes. All rows serve all releases unless `split=True`. Round 1 only has to reach the neighbourhood in which a
Newton step is exact to first order, so most of the budget goes to the last gradient.

With hundreds of parameters the curvature's noise has a spectral norm of about sqrt(2 size) times that of an entry, and
one step through it goes nowhere. `curvature="features"` then buys, once, the second moments of the features: d (d+1)/2
numbers for any number of classes. Times a constant of the model they bound the curvature at every theta (Böhning 1992),
so that they serve as its stand-in for as many steps as one likes, each for the price of a gradient; averaged over
sites, their noise sets how far the directions of little curvature are trusted. Momentum makes up for the short steps.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from fedmest.errors import InputError
from fedmest.methods.base import Method, Moves, NotTraced, Server, Setting, Step, rounds
from fedmest.privacy.budget import split, step_shares
from fedmest.privacy.gdp import Array
from fedmest.queries import Descent, Gradient, Moments, NewtonParts, NewtonStep, PaperNewton, Query
from fedmest.queries.newton import floored_inverse, from_triangle, newton_direction, spectral_noise

MANY_PARAMETERS = 500  # where "auto" turns to the features
MOMENTUM = 0.7  # over steps through the features' moments; heavy ball
MOST_LOCAL_STEPS = 30_000
TIME_CONSTANTS = 3  # more local steps bring the start no closer than noise lets them; the Newton step does the rest


@dataclass(frozen=True)
class FedNewton(Method):
    K: int | None = None  # None: TIME_CONSTANTS of the model's typical curvature
    eta: float = 0.5
    share1: float = 0.2  # of mu^2, to round 1
    share_curvature: float = 0.1
    curvature: Literal["auto", "rows", "features"] = "auto"
    steps: int = 20  # through the features' moments
    send: Literal["parts", "step"] = "parts"
    split: bool = False
    tau1: float = 0.2  # paper only: what its proof assumes of the Hessian
    lambda_min: float = 1e-6

    id = "fednewton"
    title = "FedNewton"
    sends = "theta after K local steps, then noisy gradient and curvature"
    tries = {"share1": (0.2, 0.35, 0.5)}  # noqa: RUF012

    foreign = {  # noqa: RUF012
        "paper": ("curvature", "steps", "split", "send", "share_curvature", "lambda_min"),
        "certified": ("tau1",),
    }

    @classmethod
    def defaults(cls, calibration: str) -> dict[str, Any]:
        if calibration != "paper":
            return {}
        return {"K": 50, "share1": 0.5, "split": True, "send": "step", "curvature": "rows"}

    def schedule(self, s: Setting) -> list[Step]:
        if self._by_features(s):
            bought, spent = split(s.mu, [self.share_curvature, 1 - self.share_curvature])
            even = np.full((self.steps, 1), 1.0 / self.steps)
            return [
                *rounds(s, [Moments("features")], np.ones((1, 1)), float(bought)),
                *rounds(s, [Gradient()] * self.steps, even, float(spent)),
            ]
        wanted = self.K or TIME_CONSTANTS / max(self.eta * s.model.typical_curvature, 1e-300)
        if not wanted <= MOST_LOCAL_STEPS:
            raise InputError(f"method 'fednewton': eta={self.eta:g} takes {wanted:.3g} local steps, more than "
                             f"{MOST_LOCAL_STEPS:,}; raise it, or set K")  # fmt: skip
        steps = max(1, round(wanted))
        local = step_shares(steps, s.schedule, s.damping(self.eta))[None]
        first = Descent(steps, self.eta, "first" if self.split else "all")
        second: Query
        if s.paper:
            mu1, mu2 = split(s.mu, [self.share1, 1 - self.share1])
            second, prices = PaperNewton(self.tau1), np.array([mu2])
        else:
            second = NewtonParts(self.split) if self.send == "parts" else NewtonStep(self.split, self.lambda_min)
            rest = 1 - self.share1 - self.share_curvature
            mu1, mu_h, mu_g = split(s.mu, [self.share1, self.share_curvature, rest])
            if self.split:  # rows of the second half pay for the gradient alone
                mu1, mu_h = split(s.mu, [self.share1, self.share_curvature])
                mu_g = s.mu
            prices = np.array([mu_g, mu_h])
        return [
            *rounds(s, [first], local, float(mu1)),
            Step(second, prices[:, None], s.everyone, s.weights(releases=1)),
        ]

    def _by_features(self, s: Setting) -> bool:
        if self.curvature == "features" and s.model.curvature_cap is None:
            raise InputError(f"method 'fednewton': nothing caps the curvature of the {s.model.name} model; use "
                             "curvature='rows'")  # fmt: skip
        many = s.shape[0] * s.shape[1] > MANY_PARAMETERS and s.model.curvature_cap is not None
        return self.curvature == "features" or (self.curvature == "auto" and many)

    def run(self, server: Server, steps: Sequence[Step]) -> Array:
        start = server.start()
        if isinstance(steps[0].query, Moments):
            return steps_by_features(server, steps, start, self.lambda_min)
        theta = server.note(server.ask(steps[0], start).combined().reshape(start.shape))
        reply = server.ask(steps[1], theta).combined()
        if not isinstance(steps[1].query, NewtonParts):
            return server.note(reply.reshape(start.shape))
        return server.note(theta - direction_from_parts(server, reply, self.lambda_min).reshape(start.shape))


    def propagate(self, moves: Moves, steps: Sequence[Step]) -> None:
        if self.split or not isinstance(steps[-1].query, NewtonParts):
            raise NotTraced("how its noise becomes error is written down for curvature='rows', send='parts' and "
                            "split=False only")  # fmt: skip
        moves.descent(steps[0], self.eta)
        moves.newton(steps[1])


def steps_by_features(server: Server, steps: Sequence[Step], theta: Array, lambda_min: float) -> Array:
    """Newton steps in which the cap of the curvature, bought by the first of `steps`, stands for the curvature."""
    model, columns = server.setting.model, server.setting.columns
    cap = model.curvature_cap or 1.0
    moments = server.ask(steps[0], theta).combined()
    curvature = cap * from_triangle(moments, columns) + np.diag(server.penalty[0])
    inverse = floored_inverse(curvature, max(lambda_min, cap * spectral_noise(server.last_noise(0), columns)))
    move = np.zeros_like(theta)
    for step in steps[1:]:
        gradient = server.ask(step, theta).combined().reshape(theta.shape)
        move = MOMENTUM * move - gradient @ inverse
        theta = server.note(theta + move)
    return theta


def direction_from_parts(server: Server, parts: Array, lambda_min: float) -> Array:
    """The Newton direction from averaged parts, eigenvalues floored at the size of the noise of the last round."""
    size = server.setting.shape[0] * server.setting.shape[1]
    floor = max(lambda_min, spectral_noise(server.last_noise(1), size))
    basis = server.setting.model.contrasts(server.setting.columns)
    return newton_direction(parts[:size], from_triangle(parts[size:], size), floor, basis)
