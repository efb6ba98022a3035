"""Backends carry a schedule out: their protocol, and the backend with all sites in this process.

Methods and queries do not know which backend they have. The other one asks real sites (`server.coordinator`).
"""

from functools import cache
from itertools import pairwise
from typing import Protocol

import numpy as np
from threadpoolctl import ThreadpoolController

from fedmest.core.exceptions import InputError
from fedmest.core.typing import FloatArray, IntArray
from fedmest.data.federation import Federation
from fedmest.models import Model
from fedmest.privacy.noise import Keys, SeededNoise
from fedmest.queries import MAX_PARAM, QueryInputs, SiteData
from fedmest.queries.schedule import Step
from fedmest.runs.phases import PublicState
from fedmest.runs.phases.scaling import Scaling, from_data


class Backend(Protocol):
    """Answers the steps of a schedule.

    Attributes
    ----------
    noise_caveat : str
        What the noise of this backend does not cover; empty where it covers all.
    """

    noise_caveat: str

    def answer(self, number: int, step: Step, inputs: QueryInputs) -> tuple[FloatArray, IntArray]:
        """Replies to one round.

        Parameters
        ----------
        number : int
            Number of the round, from 0.
        step : Step
            What is asked, and of which sites.
        inputs : QueryInputs
            What the server sends with it.

        Returns
        -------
        values : FloatArray
            Replies, one row per site.
        sites : IntArray
            Sites that they come from, ascending.
        """

    def apply(self, state: PublicState) -> None:
        """Replace the public values; later rounds use the new ones.

        Parameters
        ----------
        state : PublicState
            All public values.
        """

    def scaling_of_rows(self) -> Scaling:
        """Means and standard deviations of all rows; computed from them without noise, which is not private."""

    def paper_clip_norm(self, start: FloatArray) -> float:
        """Clip norm of the paper; computed from all rows without noise, which is not private.

        Parameters
        ----------
        start : FloatArray
            Coefficients at which scores are computed.

        Returns
        -------
        float
        """


class LocalBackend:
    """Answers with the rows of a federation, all in this process.

    The noise of a site in a round depends on (seed, site name, round) alone: not on other sites, not on threads.

    Parameters
    ----------
    federation : Federation
        Rows of all sites.
    model : Model
        The model; knows its classes.
    y : FloatArray
        Target as numbers.
    intercept : bool
        Whether rows have a column of ones.
    seed64 : int
        Key of the noise.
    recorded : bool, default False
        Whether the key follows from a seed that is written down; changes the caveat alone.
    """

    def __init__(
        self, federation: Federation, model: Model, y: FloatArray, intercept: bool, seed64: int, recorded: bool = False
    ) -> None:
        self.federation, self.model, self.y = federation, model, y
        self.intercept, self.seed64 = intercept, seed64
        source = (
            "a recorded seed: whoever knows it can remove the noise."
            if recorded
            else "a pseudo-random generator on the analyst's machine, not drawn at the sites."
        )
        self.noise_caveat = f"The noise of this run is simulated: floating-point numbers from {source}"
        self.keys: Keys = federation.keys
        self.state = PublicState({Scaling.name: Scaling.none(len(federation.features))})
        self._data: SiteData | None = None

    def apply(self, state: PublicState) -> None:
        """Replace the public values; later rounds use the new ones.

        Parameters
        ----------
        state : PublicState
            All public values.
        """
        if not state.same_rows(self.state) or not self.state.same_rows(state):
            self._data = None
        self.state = state

    def reseed(self, seed64: int) -> None:
        """Use other noise, and other halves of the rows, from here on.

        Parameters
        ----------
        seed64 : int
            Key of the noise.
        """
        self.seed64, self._data = seed64, None

    @property
    def data(self) -> SiteData:
        """The rows as the current public values transform them."""
        if self._data is None:
            rows = self.state.rows(self.federation, self.y, self.intercept)
            self._data = SiteData(self.model, rows, self.seed64, self.keys)
        return self._data

    def answer(self, number: int, step: Step, inputs: QueryInputs) -> tuple[FloatArray, IntArray]:
        """Replies to one round.

        Parameters
        ----------
        number : int
            Number of the round, from 0.
        step : Step
            What is asked, and of which sites.
        inputs : QueryInputs
            What the server sends with it.

        Returns
        -------
        values : FloatArray
            Replies, one row per site.
        sites : IntArray
            Sites that they come from, ascending.

        Raises
        ------
        InputError
            If parameters are so large that rounding would swallow the noise.
        """
        if np.isfinite(step.mus).any() and not np.abs(inputs.params).max() <= MAX_PARAM:
            raise InputError(
                f"round {number + 1}: sites refuse coefficients beyond {MAX_PARAM:g}; scale the features (declare "
                "bounds) or lower eta"
            )
        noise = SeededNoise(self.keys, self.seed64, number)
        if self.model.outputs == 1 and self.data.rows.columns < 64:
            return step.query.answer(self.data, step.sites, inputs, step.mus, noise), step.sites
        with _threads().limit(limits=1, user_api="blas"):  # sites are the parallel unit
            return step.query.answer(self.data, step.sites, inputs, step.mus, noise), step.sites

    def scaling_of_rows(self) -> Scaling:
        """Means and standard deviations of all rows; computed from them without noise, which is not private."""
        return from_data(self.federation, self.y, self.intercept, self.model.target_rule.scaled)

    def paper_clip_norm(self, start: FloatArray) -> float:
        """Clip norm of the paper: the largest over sites of the 90 % quantile of gradient norms. Not private.

        Parameters
        ----------
        start : FloatArray
            Coefficients at which scores are computed.

        Returns
        -------
        float
        """
        rows = self.data.rows
        norms = self.model.score_norms(rows, start)
        return max(_quantile(norms[begin:end], 0.9) for begin, end in pairwise(rows.offsets))


def _quantile(values: FloatArray, level: float) -> float:
    """`np.quantile`, without its preparations, which cost more than the work where sites are small."""
    below, part = divmod(level * (len(values) - 1), 1.0)
    pair = [int(below), min(int(below) + 1, len(values) - 1)]
    low, high = np.partition(values, pair)[pair]
    return float(low + part * (high - low))


@cache
def _threads() -> ThreadpoolController:
    """Looks through all loaded libraries, once."""
    return ThreadpoolController()
