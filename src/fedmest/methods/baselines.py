"""Non-private yardsticks: all rows in one place (NP-Pooled), and every site alone (NP-LocalFit)."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedmest.core.exceptions import ConvergenceError
from fedmest.core.typing import FloatArray
from fedmest.methods.base import Method, NoiseModel, NoNoiseModel, Runner
from fedmest.queries import LocalFit, NewtonParts, PooledFit
from fedmest.queries.linalg import from_triangle, newton_direction
from fedmest.queries.local_fit import MAX_DENSE, NOT_CONVERGED
from fedmest.queries.schedule import PublicContext, Step


def _free(query: NewtonParts | LocalFit, context: PublicContext) -> Step:
    return Step(query, np.full((len(query.releases()), 1), np.inf), context.everyone, context.weights())


@dataclass(frozen=True)
class Pooled(Method):
    """NP-Pooled: maximum-likelihood estimate over all rows by Newton's method to full accuracy, without privacy.

    Parameters
    ----------
    max_iterations : int, default 100
        Newton steps after which the fit is given up.
    """

    max_iterations: int = 100

    id = "np-pooled"
    display_name = "NP-Pooled"
    release_summary = "all rows (the yardstick)"
    private = False

    def schedule(self, context: PublicContext) -> list[Step]:
        if context.shape[0] * context.shape[1] > MAX_DENSE:
            return [_free(PooledFit(), context)]
        return [_free(NewtonParts(), context)] * self.max_iterations

    def run(self, runner: Runner, steps: Sequence[Step]) -> FloatArray:
        context = runner.context
        theta = np.zeros(context.shape)
        if isinstance(steps[0].query, PooledFit):
            return runner.record(runner.ask(steps[0], theta).aggregate().reshape(context.shape))
        basis = context.model.contrasts(context.columns)
        before, damping = np.inf, 1.0
        previous, direction = theta, theta
        for step in steps:
            reply = runner.ask(step, theta).aggregate()
            size = theta.size
            gradient = reply[:size]
            length = float(np.linalg.norm(gradient))
            if length > before and damping > 1e-3:  # too long a step: go back half way
                damping /= 2
                theta = previous - damping * direction
                continue
            direction = newton_direction(gradient, from_triangle(reply[size:], size), 1e-12, basis).reshape(
                context.shape
            )
            previous, before, damping = theta, length, 1.0
            theta = runner.record(theta - direction)
            if float(np.abs(direction).max()) < 1e-10 * (1 + float(np.abs(theta).max())):
                return theta
        raise ConvergenceError(NOT_CONVERGED)

    def propagate_noise(self, noise_model: NoiseModel, steps: Sequence[Step]) -> None:
        if isinstance(steps[-1].query, PooledFit):
            raise NoNoiseModel("models of this size are fitted without their curvature")
        noise_model.newton(steps[-1])


@dataclass(frozen=True)
class LocalFits(Method):
    """NP-LocalFit: each site's own estimate, without privacy; the estimate is their weighted average.

    `Result.site_params` holds the estimates of the sites.
    """

    id = "np-local"
    display_name = "NP-LocalFit"
    release_summary = "nothing (each site alone)"
    private = False
    needs_site_values = True

    def schedule(self, context: PublicContext) -> list[Step]:
        return [_free(LocalFit(), context)]

    def run(self, runner: Runner, steps: Sequence[Step]) -> FloatArray:
        replies = runner.ask(steps[0], np.zeros(runner.context.shape))
        runner.site_params = replies.values.reshape(-1, *runner.context.shape)
        return runner.record(replies.aggregate().reshape(runner.context.shape))
