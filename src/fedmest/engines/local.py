"""All sites in this process: for studies, rehearsals, and data that one party already holds."""

from functools import cache
from itertools import pairwise

import numpy as np
from threadpoolctl import ThreadpoolController

from fedmest import scaling as scales
from fedmest.errors import InputError
from fedmest.federation import Federation, Index
from fedmest.methods.base import Step
from fedmest.models import Model
from fedmest.privacy.gdp import Array
from fedmest.privacy.noise import Keys, SeededNoise
from fedmest.queries import LARGEST_THETA, Ask, SiteData


class LocalEngine:
    """Answers a schedule's steps with the rows of a federation.

    The noise of a site in a round depends on (seed, site name, round) alone: not on other sites, not on threads.
    """

    def __init__(self, federation: Federation, model: Model, y: Array, intercept: bool, seed: int,
                 recorded: bool = False) -> None:  # fmt: skip
        self.federation = federation
        self.model = model
        self.y = y
        self.intercept = intercept
        self.seed = seed
        source = (
            "a recorded seed, which whoever knows it can take off again." if recorded
            else "a pseudo-random generator on the analyst's machine, not drawn at the sites."
        )  # fmt: skip
        self.noise_caveat = f"The noise of this run is a rehearsal: floating-point numbers from {source}"
        self.keys: Keys = federation.keys
        self.rescale(scales.Scaling.none(len(federation.features)))

    def rescale(self, scaling: scales.Scaling) -> None:
        """From now on features and target are scaled so."""
        y = scaling.apply_target(self.y)
        rows = self.federation.rows(y, scaling.centre, scaling.scale, self.intercept)
        self.data = SiteData(self.model, rows, self.seed, self.keys)

    def answer(self, number: int, step: Step, ask: Ask) -> tuple[Array, Index]:
        """The replies to round `number`. No site answers at a theta so large that rounding would swallow the noise."""
        if np.isfinite(step.mus).any() and not np.abs(ask.theta).max() <= LARGEST_THETA:
            raise InputError(
                f"round {number + 1}: sites refuse coefficients beyond {LARGEST_THETA:g}; scale the features (declare "
                "bounds) or lower eta"
            )
        noise = SeededNoise(self.keys, self.seed, number)
        if self.model.outputs == 1 and self.data.rows.columns < 64:
            return step.query.answer(self.data, step.sites, ask, step.mus, noise), step.sites
        with _threads().limit(limits=1, user_api="blas"):  # sites are the parallel unit
            return step.query.answer(self.data, step.sites, ask, step.mus, noise), step.sites

    def scaling_of_rows(self) -> scales.Scaling:
        return scales.from_data(self.federation, self.y, self.intercept, self.model.scales_target)

    def paper_bound(self, start: Array) -> float:
        """The paper's rule: the largest over sites of the local 90 % quantile of gradient norms at the start. Leaks."""
        rows = self.data.rows
        norms = self.model.score_norms(rows, start)
        return max(_quantile(norms[begin:end], 0.9) for begin, end in pairwise(rows.offsets))


def _quantile(values: Array, level: float) -> float:
    """`np.quantile`, without its preparations, which cost more than the work where sites are small."""
    below, part = divmod(level * (len(values) - 1), 1.0)
    pair = [int(below), min(int(below) + 1, len(values) - 1)]
    low, high = np.partition(values, pair)[pair]
    return float(low + part * (high - low))


@cache
def _threads() -> ThreadpoolController:
    """Looks through all loaded libraries, once."""
    return ThreadpoolController()
