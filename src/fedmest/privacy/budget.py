"""Splitting a budget: any shares that sum to one split mu exactly, since mu^2 adds up."""

import math
from collections.abc import Sequence

import numpy as np

from fedmest.core.exceptions import InputError
from fedmest.core.typing import FloatArray

FLOOR = 0.2  # part of a geometric schedule that is spread evenly; without it the noise of the first steps dominates


def split(mu: float, shares: Sequence[float] | FloatArray) -> FloatArray:
    """The mu of each release when release k gets `shares[k]` (normalised) of mu^2."""
    weights = np.asarray(shares, dtype=float)
    if not (weights > 0).all():
        raise InputError("every release needs a positive share of the budget: one of the given shares is not")
    if math.isinf(mu):
        return np.full(len(weights), math.inf)
    return np.asarray(mu * np.sqrt(weights / weights.sum()), dtype=float)


def step_shares(steps: int, schedule: str, damping: float) -> FloatArray:
    """Shares of mu^2 for `steps` gradient steps in a row.

    Noise of step k reaches the last iterate damped by damping^(steps-1-k), its variance by the square of that.
    Minimising sum_k a_k / mu_k^2 under sum_k mu_k^2 = mu^2 gives mu_k^2 proportional to sqrt(a_k), which is
    damping^(steps-1-k): later steps deserve more. `damping` comes from public quantities only.
    """
    even = np.full(steps, 1.0 / steps)
    if schedule == "uniform":
        return even
    tilted = np.power(damping, np.arange(steps - 1, -1, -1, dtype=float))
    return np.asarray((1 - FLOOR) * tilted / tilted.sum() + FLOOR * even, dtype=float)
