"""Wald tests of linear restrictions on coefficients."""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import stats

from fedmest.core.exceptions import InputError
from fedmest.core.typing import FloatArray


@dataclass(frozen=True)
class WaldTest:
    """Result of a Wald test: chi-square, or F where the covariance has few degrees of freedom.

    Parameters
    ----------
    statistic : float
        Chi-square statistic, or F statistic.
    df_num : int
        Number of restrictions.
    df_denom : float
        Degrees of freedom of the covariance; infinite for a chi-square test.
    pvalue : float
        Probability of a statistic at least as large if the restrictions hold.
    """

    statistic: float
    df_num: int
    df_denom: float
    pvalue: float


def wald_test(
    coef: FloatArray, covariance: FloatArray, df: float, R: npt.ArrayLike, r: npt.ArrayLike = 0.0
) -> WaldTest:
    """Wald test of the restrictions R b = r.

    Parameters
    ----------
    coef : FloatArray
        Coefficients b.
    covariance : FloatArray
        Their covariance.
    df : float
        Its degrees of freedom.
    R : array-like
        Restrictions (k, coefficients); a vector is one restriction.
    r : array-like, default 0
        Values that they are tested against.

    Returns
    -------
    WaldTest

    Raises
    ------
    InputError
        If R has another number of columns, or its rows depend on each other.
    """
    matrix = np.atleast_2d(np.asarray(R, dtype=float))
    if matrix.ndim != 2 or matrix.shape[1] != coef.size:
        raise InputError(f"R has shape {matrix.shape}; it needs a column for each of the {coef.size} coefficients")
    away = matrix @ coef - np.asarray(r, dtype=float)
    within = matrix @ covariance @ matrix.T
    if np.linalg.eigvalsh(within)[0] <= 1e-10 * np.linalg.norm(matrix) ** 2 * np.linalg.norm(covariance):
        raise InputError("the restrictions in R repeat each other (or, of classes, sum to zero anyway)")
    statistic, count = float(away @ np.linalg.solve(within, away)), len(matrix)
    if math.isinf(df):
        return WaldTest(statistic, count, df, float(stats.chi2.sf(statistic, count)))
    return WaldTest(statistic / count, count, df, float(stats.f.sf(statistic / count, count, df)))
