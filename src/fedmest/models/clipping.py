"""How one row's contribution is bounded."""

import math
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Clipping:
    """How one row's contribution is bounded.

    Parameters
    ----------
    rule : {"consistent", "norm"}
        "consistent" clips residuals so that the estimating equation stays unbiased, "norm" shortens whole scores.
    bound : float
        Bound on the length of a row's score.
    curvature : float
        Bound on the Frobenius norm of a row's curvature.
    max_step_norm : float
        Limit on step size times bound: where scores are large, so is curvature, and a step that suits unit scores would
        overshoot.
    """

    rule: str = "consistent"
    bound: float = np.inf
    curvature: float = np.inf
    max_step_norm: float = np.inf

    @property
    def consistent(self) -> bool:
        """Whether the rule is "consistent"."""
        return self.rule == "consistent"

    def step(self, eta: float) -> float:
        """Step size within the limit.

        Parameters
        ----------
        eta : float
            The step size that is asked for.

        Returns
        -------
        float
            At most ``max_step_norm / bound``.
        """
        return eta if math.isinf(self.max_step_norm) else min(eta, self.max_step_norm / self.bound)
