"""How the replies of a round become one vector."""

from typing import Protocol

import numpy as np

from fedmest.core.typing import FloatArray
from fedmest.queries.schedule import Step


class Aggregator(Protocol):
    """Rule that combines the replies of a round.

    Attributes
    ----------
    gives_site_values : bool
        Whether the server sees single replies. Where it does not, methods and standard errors that need them are
        refused before the run begins.
    """

    gives_site_values: bool

    def combine(self, values: FloatArray, step: Step) -> FloatArray:
        """Weighted sum of replies.

        Parameters
        ----------
        values : FloatArray
            Replies (sites, floats), in the order of the step's sites.
        step : Step
            The step as carried out; holds the weights.

        Returns
        -------
        FloatArray
        """


class WeightedSum:
    """The weighted sum, from replies that the server sees one by one."""

    gives_site_values = True

    def combine(self, values: FloatArray, step: Step) -> FloatArray:
        """Weighted sum of replies.

        Parameters
        ----------
        values : FloatArray
            Replies (sites, floats), in the order of the step's sites.
        step : Step
            The step as carried out; holds the weights.

        Returns
        -------
        FloatArray
        """
        return np.asarray(np.einsum("i,ij->j", step.weights, values))
