"""Non-private yardsticks: all rows in one place (NP-Pooled), and every site alone (NP-LocalFit)."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedmest.errors import InputError
from fedmest.methods.base import Method, Moves, NotTraced, Server, Setting, Step
from fedmest.privacy.gdp import Array
from fedmest.queries import LocalFit, NewtonParts, PooledFit
from fedmest.queries.local_fit import LARGEST_DENSE, NOT_CONVERGED
from fedmest.queries.newton import from_triangle, newton_direction


def _free(query: NewtonParts | LocalFit, s: Setting) -> Step:
    return Step(query, np.full((len(query.releases()), 1), np.inf), s.everyone, s.weights())


@dataclass(frozen=True)
class Pooled(Method):
    """The maximum-likelihood estimate over all rows, by Newton's method to full accuracy."""

    max_iterations: int = 100

    id = "np-pooled"
    title = "NP-Pooled"
    sends = "all rows (the yardstick)"
    private = False

    def schedule(self, s: Setting) -> list[Step]:
        if s.shape[0] * s.shape[1] > LARGEST_DENSE:
            return [_free(PooledFit(), s)]
        return [_free(NewtonParts(), s)] * self.max_iterations

    def run(self, server: Server, steps: Sequence[Step]) -> Array:
        s = server.setting
        theta = np.zeros(s.shape)
        if isinstance(steps[0].query, PooledFit):
            return server.note(server.ask(steps[0], theta).combined().reshape(s.shape))
        basis = s.model.contrasts(s.columns)
        before, damping = np.inf, 1.0
        previous, direction = theta, theta
        for step in steps:
            reply = server.ask(step, theta).combined()
            size = theta.size
            gradient = reply[:size]
            length = float(np.linalg.norm(gradient))
            if length > before and damping > 1e-3:  # too long a step: go back half way
                damping /= 2
                theta = previous - damping * direction
                continue
            direction = newton_direction(gradient, from_triangle(reply[size:], size), 1e-12, basis).reshape(s.shape)
            previous, before, damping = theta, length, 1.0
            theta = server.note(theta - direction)
            if float(np.abs(direction).max()) < 1e-10 * (1 + float(np.abs(theta).max())):
                return theta
        raise InputError(NOT_CONVERGED)

    def propagate(self, moves: Moves, steps: Sequence[Step]) -> None:
        if isinstance(steps[-1].query, PooledFit):
            raise NotTraced("so many parameters are fitted without their curvature")
        moves.newton(steps[-1])


@dataclass(frozen=True)
class LocalFits(Method):
    """Each site's own estimate; `theta` is their weighted average, `site_thetas` holds them all."""

    id = "np-local"
    title = "NP-LocalFit"
    sends = "nothing (each site alone)"
    private = False

    def schedule(self, s: Setting) -> list[Step]:
        return [_free(LocalFit(), s)]

    def run(self, server: Server, steps: Sequence[Step]) -> Array:
        replies = server.ask(steps[0], np.zeros(server.setting.shape))
        server.site_thetas = replies.values.reshape(-1, *server.setting.shape)
        return server.note(replies.combined().reshape(server.setting.shape))
