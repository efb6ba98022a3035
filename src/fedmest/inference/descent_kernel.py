"""Compiled: the mean and the spread of theta along noisy gradient steps, on the weighted rows of a population."""

import math

import numba as nb
import numpy as np
from numba import types

from fedmest.models.kernels import F8, FUNCTION, INDEX, MATRIX, VECTOR

LEAST_VARIANCE = 1e-10  # of a predictor: slopes are differences


@nb.njit(types.void(MATRIX, MATRIX, MATRIX, F8), cache=True)
def _add_product(total, outer, inner, factor):  # type: ignore[no-untyped-def]
    """total += factor * outer inner outer', all 3 x 3: too small for a library."""
    for i in range(3):
        for j in range(3):
            part = 0.0
            for k in range(3):
                for h in range(3):
                    part += outer[i, k] * inner[k, h] * outer[j, h]
            total[i, j] += factor * part


@nb.njit(
    types.void(FUNCTION, VECTOR, MATRIX, INDEX, VECTOR, VECTOR, VECTOR, types.boolean, F8, VECTOR, VECTOR, F8, VECTOR,
               F8, MATRIX, MATRIX, VECTOR, VECTOR, MATRIX, MATRIX, MATRIX),
    cache=True,
)  # fmt: skip
def follow_descent(  # type: ignore[no-untyped-def]
    residual,
    params,
    x,
    starts,
    y,
    limits,
    weights,
    consistent,
    across,
    z,
    chances,
    eta,
    variances,
    per_row,
    scores,
    common,
    mean,
    plain,
    passed,
    by_score,
    noise,
):
    """Change mean, plain, passed, by_score and noise (see `State`) by gradient steps of size eta.

    At each step the mean score, and how it changes with theta, are averages over the spread that theta has by then.

    The change is the regression of the score on theta: far from the truth clipped scores are nearly flat, whatever the
    curvature says. Rows from starts[g] to starts[g + 1] share x[g] and differ in y. Residuals are asked for in blocks
    of all rows: one for each of the values z that theta may have, and one at the theta without noise.
    """
    groups, rows, many = x.shape[0], weights.size, z.size
    predictors = np.empty((1, rows * (many + 1)))
    residuals = predictors[0]
    sds, levels, slopes, at_plain = np.empty(groups), np.empty(groups), np.empty(groups), np.empty(groups)
    spread, shrink = np.empty((3, 3)), np.empty((3, 3))
    for k in range(variances.size):
        spread[:] = noise
        _add_product(spread, passed, common, 1.0)
        _add_product(spread, by_score, scores, per_row)
        for g in range(groups):
            a, b, c = x[g, 0], x[g, 1], x[g, 2]
            square = spread[0, 0] * a * a + 2 * spread[0, 1] * a * b + spread[1, 1] * b * b
            square += spread[2, 2] * across * c * c
            sds[g] = math.sqrt(max(square, LEAST_VARIANCE))
            centre = mean[0] * a + mean[1] * b
            for j in range(many + 1):
                value = centre + sds[g] * z[j] if j < many else plain[0] * a + plain[1] * b
                for i in range(j * rows + starts[g], j * rows + starts[g + 1]):
                    residuals[i] = value
        residual(predictors, y, limits, consistent, params)
        levels[:], slopes[:] = 0.0, 0.0
        for j in range(many + 1):
            for g in range(groups):
                r = 0.0
                for i in range(starts[g], starts[g + 1]):
                    r += residuals[j * rows + i] * weights[i]
                if j < many:
                    levels[g] += r * chances[j]
                    slopes[g] += r * chances[j] * z[j]
                else:
                    at_plain[g] = r
        shrink[:] = 0.0
        for g in range(groups):
            a, b, c = x[g, 0], x[g, 1], x[g, 2]
            slope = eta * slopes[g] / sds[g]
            mean[0] -= eta * levels[g] * a
            mean[1] -= eta * levels[g] * b
            plain[0] -= eta * at_plain[g] * a
            plain[1] -= eta * at_plain[g] * b
            shrink[0, 0] -= slope * a * a
            shrink[0, 1] -= slope * a * b
            shrink[1, 1] -= slope * b * b
            shrink[2, 2] -= slope * c * c
        shrink[1, 0] = shrink[0, 1]
        for j in range(3):
            shrink[j, j] += 1.0
        spread[:] = noise
        noise[:] = 0.0
        _add_product(noise, shrink, spread, 1.0)
        passed[:] = shrink @ passed
        by_score[:] = shrink @ by_score
        for j in range(3):
            by_score[j, j] -= eta
            noise[j, j] += variances[k]
