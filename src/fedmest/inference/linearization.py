"""An estimate near its limit is linear in the rows' mean score and in the noise: what a method's moves do to both."""

import math
from collections.abc import Sequence

import numpy as np

from fedmest.core.exceptions import NoStandardErrors
from fedmest.core.typing import FloatArray
from fedmest.methods import NoNoiseModel
from fedmest.queries.linalg import spectral_noise
from fedmest.queries.schedule import RoundRecord, Step

MIN_CURVATURE_TO_NOISE = 2.0  # the smallest curvature must exceed its noise by this factor
MAX_BIAS_SHARE = 0.1  # of the variance of each coefficient: what a bias may be, squared, before intervals miss it


class Linearization:
    """The noise model near the end of a run, where the curvature stays what it is."""

    def __init__(
        self,
        curvature: FloatArray,
        inverse: FloatArray,
        theta: FloatArray,
        before: FloatArray,
        records: Sequence[RoundRecord],
    ) -> None:
        self.curvature, self.inverse = curvature, inverse
        self.theta, self.direction = theta.ravel(), (before - theta).ravel()
        self.records = {id(record.step): record for record in records}
        size = theta.size
        self.privacy = np.zeros((size, size))
        self.by_score = np.zeros((size, size))
        self.passed = np.eye(size)  # what is left of an error at the start
        self.stepped = False  # by Newton, at the end

    def gradient(self, step: Step, eta: float) -> None:
        record = self.records[id(step)]
        eta = record.clipping.step(eta)
        self._shrink(eta)
        self.privacy += eta**2 * self._noise(step, 0) * np.eye(len(self.theta))

    def descent(self, step: Step, eta: float, server_eta: float = 1.0) -> None:
        if server_eta != 1.0:
            raise NoNoiseModel("no standard errors: they are worked out for server_eta=1")
        record = self.records[id(step)]
        eta, sds = record.clipping.step(eta), record.sds
        for k in range(len(step.mus)):
            self._shrink(eta)
            self.privacy += float(np.sum((step.weights * sds[k]) ** 2)) * np.eye(len(self.theta))

    def newton(self, step: Step) -> None:
        square = np.outer(self.direction, self.direction)
        shaken = self._noise(step, 1) / 2 * (np.trace(square) * np.eye(len(square)) + square)
        within = self._noise(step, 0) * np.eye(len(square)) + shaken
        self.privacy = self.inverse @ within @ self.inverse
        self.by_score, self.passed, self.stepped = -self.inverse, np.zeros_like(square), True

    def moments(self, step: Step) -> None:
        square = np.outer(self.theta, self.theta)
        within = self._noise(step, 0) / 2 * ((1 + np.trace(square)) * np.eye(len(square)) + square)
        self.privacy = self.inverse @ within @ self.inverse
        self.by_score, self.passed = -self.inverse, np.zeros_like(square)

    def check_arrival(self, theta: FloatArray, variances: FloatArray) -> None:
        """A method that is still under way has an error that no interval around its estimate shows."""
        if not self.passed.any():
            return
        away = np.eye(len(self.theta)) - self.passed
        left = self.passed @ np.linalg.lstsq(away, theta.ravel(), rcond=None)[0]
        share = float(np.max(left**2 / np.maximum(variances, 1e-300)))
        if share > MAX_BIAS_SHARE:
            raise NoStandardErrors(
                f"no standard errors: the steps end {math.sqrt(share):.1f} standard errors short of where they lead, "
                "and intervals would miss it; take more steps (K) or longer ones (eta), or use method='fednewton'"
            )

    def check_straight(self, covariance: FloatArray, curvature_slope: float) -> None:
        """A Newton step d misses by about H^-1 T[d, d] / 2, T being how curvature H changes with theta.

        With v for a row's curvature and v r for its change, x'd has a mean square of d'Hd / v, and the miss, in the
        norm of H, a square of the size of (d'Hd)^2 r^2 / (4 v). `curvature_slope` is r^2 / v.
        """
        if not self.stepped:
            return
        missed = float(self.direction @ self.curvature @ self.direction) ** 2 * curvature_slope / 4
        share = missed / max(float(np.trace(self.curvature @ covariance)), 1e-300)
        if share > MAX_BIAS_SHARE:
            raise NoStandardErrors(
                "no standard errors: the last Newton step was so long that curvature changed on its way, by a bias "
                f"that may be, squared, {100 * share:.0f} % of the variance; use method='fedirls', more of its rounds "
                "(R), a larger mu, or narrower bounds"
            )

    def _shrink(self, eta: float) -> None:
        shrink = np.eye(len(self.theta)) - eta * self.curvature
        self.privacy = shrink @ self.privacy @ shrink
        self.by_score = shrink @ self.by_score - eta * np.eye(len(self.theta))
        self.passed = shrink @ self.passed

    def _noise(self, step: Step, release: int) -> float:
        record = self.records[id(step)]
        return float(np.sum((step.weights * record.sds[release]) ** 2))


def usable_inverse(curvature: FloatArray, sd: float, basis: FloatArray | None) -> FloatArray:
    """The inverse of a noisy curvature; NoStandardErrors where noise of this size may have made its eigenvalues."""
    inner = curvature if basis is None else basis.T @ curvature @ basis
    noise = spectral_noise(sd, len(inner))
    least = float(np.linalg.eigvalsh(inner)[0])
    if least <= MIN_CURVATURE_TO_NOISE * noise or least <= 1e-12:
        raise NoStandardErrors(
            f"no standard errors: the smallest curvature, {least:.2g}, drowns in its noise of {noise:.2g} (or columns "
            "repeat each other); spend more (mu) or use fewer columns"
        )
    inverse = np.linalg.inv(inner)
    return np.asarray(inverse if basis is None else basis @ inverse @ basis.T)
