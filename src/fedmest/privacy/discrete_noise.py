"""Noise for release from a real site: OpenDP's discrete Gaussian on a grid, randomness from the operating system.

Floating-point noise has gaps that reveal values (Mironov 2012), so a value v with L2 sensitivity D is first rounded
to whole multiples of a public grid g. Rounding moves each of two neighbouring values by g/2 at most in each of their d
coordinates, and by another g/4 where a large public number, such as a penalty, was added to them as doubles. So in
units of g the whole numbers have a sensitivity of at most D/g + 1.5 sqrt(d), and the noise is scaled to that. The sum
over n rows is a floating-point one: its rounding errors, at most about n times 2^-53 of the largest mean, are added to
D as well.

The accountant's mu is that of normal noise. Rounded to whole numbers, a normal with standard deviation s is exactly
mu-Gaussian private (rounding is free); the discrete Gaussian differs from it by less than 1 / (20 s^2) in total
variation for s >= 4. With s of at least 2^24 that is 1.8e-16 per number; `total_variation` has it for a release.
"""

import math
from functools import cache
from typing import Any

import numpy as np

from fedmest.core.exceptions import InputError
from fedmest.core.typing import FloatArray, IntArray

GRID_BITS = 24  # the noise's standard deviation is 2^24 to 2^25 grid steps
MAX_STEPS = 2.0**52  # grid steps; a double still holds every whole number


class GridNoise:
    """Noise of one round at one site of `rows` rows; `mus` are the costs of its releases."""

    def __init__(self, mus: FloatArray, rows: int) -> None:
        if not (np.isfinite(mus).all() and (mus > 0).all()):
            raise ValueError("secure noise needs a finite, positive mu for every release")
        self.mus = mus.reshape(len(mus))
        self.rounding = 1.0 + 2.0 * (rows + 64.0) ** 2 * 2.0**-52

    def add(self, values: FloatArray, sds: FloatArray, sites: IntArray, release: int = 0) -> None:
        """Values (1, floats) become noisy multiples of the grid."""
        if values.shape[0] != 1:
            raise ValueError("a site adds noise to its own values alone")
        self._add(values[0], float(sds[0]), float(self.mus[release]))

    def add_step(self, values: FloatArray, sd: float, site: int, step: int) -> None:
        """The same for the update of a local step."""
        self._add(values, sd, float(self.mus[step]))

    def _add(self, values: FloatArray, sd: float, mu: float) -> None:
        if not (math.isfinite(sd) and sd > 0):
            raise ValueError(f"secure noise of standard deviation {sd}: nothing may be released")
        grid = 2.0 ** (math.floor(math.log2(sd)) - GRID_BITS)
        if not grid > 1e-280:
            raise ValueError(f"secure noise of standard deviation {sd}: too small for a grid")
        scale = self.rounding * sd / grid + 1.5 * math.sqrt(values.size) / mu
        # clipping to a range moves no two values apart; the sums of clipped rows never come near its ends
        steps = np.rint(np.clip(np.nan_to_num(values / grid), -MAX_STEPS, MAX_STEPS)).astype(np.int64)
        values[:] = grid * np.array(_gaussian(scale)(steps.tolist()), dtype=float)


def total_variation(n_values: int) -> float:
    """Bound on the total variation distance between the noise on `n_values` numbers and normal noise of the same mu."""
    return n_values / (20.0 * 4.0**GRID_BITS)


def prepare() -> None:
    """Load OpenDP, so that no release can fail for lack of it after it was charged."""
    _opendp()


def _gaussian(scale: float) -> Any:
    dp = _opendp()
    return dp.m.make_gaussian(dp.vector_domain(dp.atom_domain(T="i64")), dp.l2_distance(T="f64"), scale=scale)


@cache
def _opendp() -> Any:
    """The library; an InputError where it is not installed."""
    try:
        import opendp.prelude as dp
    except ImportError:
        raise InputError("noise at a site needs OpenDP; pip install 'fedmest[site]'") from None
    dp.enable_features("contrib")
    return dp
