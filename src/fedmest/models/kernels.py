"""Compiled loops over packed rows, shared by every model with linear predictors.

A model hands in two compiled functions, one that turns a tile's linear predictors into clipped residuals and one
that turns them into curvature weights. They are passed as typed function pointers, so these loops are compiled
once for all models and kept on disk.

Sites run in parallel; inside a site all local steps run in a row, so that its tiles stay in cache. Each tile is
read once for the predictors and, still warm, once more for the gradient. Within a site the arithmetic has one
fixed order: results do not depend on the number of threads.

Rows may have an offset, added to their linear predictors (`shift`), and a weight in [0, 1] (`weight`); empty arrays
stand for none. Clipping bounds weight times score (and weight times curvature), and means stay means over all rows, so
that sensitivities are those of rows without weights.
"""

import math

import numba as nb
import numpy as np
from numba import types

from fedmest.data.packing import tile_rows
from fedmest.privacy.noise import add_normals

F8 = types.float64
VECTOR, MATRIX, CUBE = types.float64[::1], types.float64[:, ::1], types.float64[:, :, ::1]
INDEX = types.int64[::1]

# residual(eta, y, limits, consistent, params): on entry eta[c, i] is the linear predictor of output c in row i; on
# exit the factor that multiplies x_i in the row's clipped score, at most limits[i] = bound / |x_i| in size. A bound of
# infinity means no clipping. `params` are the values of the family's parameters, none for most families.
RESIDUAL = types.void(MATRIX, VECTOR, VECTOR, types.boolean, VECTOR)
# curvature(eta, y, norms, bound, consistent, largest, params, weights): weights[a, b, i] multiplies x_i x_i'
# in block (a, b) of the row's curvature, whose Frobenius norm is at most `largest`.
CURVATURE = types.void(MATRIX, VECTOR, VECTOR, F8, types.boolean, F8, VECTOR, CUBE)

MIN_WEIGHT = 1e-100  # rows of less weight are clipped as if they had it, which only shrinks them further
SUMS = {"contract", "reassoc", "nsz"}  # sums may be reordered (vectorised) but NaN and infinity keep their meaning


@nb.njit(types.void(VECTOR, types.int64, types.int64, types.int64, MATRIX, MATRIX), fastmath=SUMS, cache=True)
def _predict_tile(packed, start, columns, width, theta, eta):  # type: ignore[no-untyped-def]
    """eta = theta X for one tile X (columns x width)."""
    if theta.shape[0] > 1:
        np.dot(theta, packed[start : start + columns * width].reshape(columns, width), eta)
        return
    e = eta[0]
    t = theta[0]
    for i in range(width):
        e[i] = 0.0
    j = 0
    while j + 4 <= columns:
        at = start + j * width
        a = packed[at : at + width]
        b = packed[at + width : at + 2 * width]
        c = packed[at + 2 * width : at + 3 * width]
        d = packed[at + 3 * width : at + 4 * width]
        ta, tb, tc, td = t[j], t[j + 1], t[j + 2], t[j + 3]
        for i in range(width):
            e[i] += ta * a[i] + tb * b[i] + tc * c[i] + td * d[i]
        j += 4
    while j < columns:
        at = start + j * width
        a = packed[at : at + width]
        ta = t[j]
        for i in range(width):
            e[i] += ta * a[i]
        j += 1


@nb.njit(types.void(VECTOR, types.int64, types.int64, types.int64, MATRIX, MATRIX), fastmath=SUMS, cache=True)
def _add_scores_of_tile(packed, start, columns, width, residual, total):  # type: ignore[no-untyped-def]
    """total += residual X' for one tile X."""
    if residual.shape[0] > 1:
        total += np.dot(residual, packed[start : start + columns * width].reshape(columns, width).T)
        return
    e = residual[0]
    g = total[0]
    j = 0
    while j + 4 <= columns:
        at = start + j * width
        a = packed[at : at + width]
        b = packed[at + width : at + 2 * width]
        c = packed[at + 2 * width : at + 3 * width]
        d = packed[at + 3 * width : at + 4 * width]
        sa, sb, sc, sd = 0.0, 0.0, 0.0, 0.0
        for i in range(width):
            sa += e[i] * a[i]
            sb += e[i] * b[i]
            sc += e[i] * c[i]
            sd += e[i] * d[i]
        g[j] += sa
        g[j + 1] += sb
        g[j + 2] += sc
        g[j + 3] += sd
        j += 4
    while j < columns:
        at = start + j * width
        a = packed[at : at + width]
        sa = 0.0
        for i in range(width):
            sa += e[i] * a[i]
        g[j] += sa
        j += 1


@nb.njit(cache=True)
def limits_of(bound, norms, weight, begin, end):  # type: ignore[no-untyped-def]
    """The largest residual of rows, before it is multiplied by the row's weight: bound / (weight |x|)."""
    if weight.size == 0:
        return bound / norms[begin:end]
    return bound / (norms[begin:end] * np.maximum(weight[begin:end], MIN_WEIGHT))


@nb.njit(cache=True)
def _add_offset(shift, start, eta):  # type: ignore[no-untyped-def]
    for c in range(eta.shape[0] if shift.size else 0):
        for i in range(eta.shape[1]):
            eta[c, i] += shift[start + i]


@nb.njit(cache=True)
def _weigh(weight, start, residuals):  # type: ignore[no-untyped-def]
    for c in range(residuals.shape[0] if weight.size else 0):
        for i in range(residuals.shape[1]):
            residuals[c, i] *= weight[start + i]


@nb.njit(cache=True)
def _weigh_curvature(weight, norms, largest, weights):  # type: ignore[no-untyped-def]
    """Curvature weights times the rows' weights, then cut to `largest`."""
    for i in range(weight.size):
        square = 0.0
        for a in range(weights.shape[0]):
            for b in range(weights.shape[1]):
                weights[a, b, i] *= weight[i]
                square += weights[a, b, i] * weights[a, b, i]
        length = max(math.sqrt(square), 1e-150) * norms[i] * norms[i]
        if not length <= largest:
            for a in range(weights.shape[0]):
                for b in range(weights.shape[1]):
                    weights[a, b, i] *= largest / length


FUNCTION = types.FunctionType(RESIDUAL)


@nb.njit(
    types.void(FUNCTION, VECTOR, VECTOR, VECTOR, VECTOR, VECTOR, types.int64, types.int64, VECTOR, MATRIX,
               types.boolean, MATRIX, VECTOR),
    cache=True,
)  # fmt: skip
def _site_score(residual, params, packed, y, shift, weight, begin, columns, limits, theta, consistent, total, buffer):  # type: ignore[no-untyped-def]
    """total = sum of the clipped scores at theta over the site's rows, which start at `begin`."""
    outputs = theta.shape[0]
    tile = tile_rows(columns)
    total[:] = 0.0
    for first in range(0, limits.size, tile):
        width = min(tile, limits.size - first)
        start = begin + first
        eta = buffer[: outputs * width].reshape(outputs, width)
        _predict_tile(packed, start * columns, columns, width, theta, eta)
        _add_offset(shift, start, eta)
        residual(eta, y[start : start + width], limits[first : first + width], consistent, params)
        _weigh(weight, start, eta)
        _add_scores_of_tile(packed, start * columns, columns, width, eta, total)


# What follows comes in pairs: what one site does, and the parallel loop over sites. Only the loop is compiled as
# parallel code, which takes the compiler far longer.


@nb.njit(cache=True)
def _copy(source, target):  # type: ignore[no-untyped-def]
    target[:] = source


@nb.njit(cache=True)
def _mean_score(residual, params, packed, y, shift, weight, limits, begin, columns, theta, consistent, penalty, total):  # type: ignore[no-untyped-def]
    outputs = theta.shape[0]
    buffer = np.empty(outputs * min(tile_rows(columns), limits.size))
    _site_score(residual, params, packed, y, shift, weight, begin, columns, limits, theta, consistent, total, buffer)
    rows = max(limits.size, 1)
    for c in range(outputs):
        for j in range(columns):
            total[c, j] = total[c, j] / rows + penalty[c, j] * theta[c, j]


@nb.njit(
    types.void(FUNCTION, VECTOR, VECTOR, VECTOR, VECTOR, VECTOR, VECTOR, INDEX, types.int64, INDEX, CUBE, F8,
               types.boolean, MATRIX, CUBE),
    parallel=True, cache=True,
)  # fmt: skip
def mean_scores(  # type: ignore[no-untyped-def]
    residual, params, packed, y, shift, weight, norms, offsets, columns, sites, thetas, bound, consistent, penalty, out
):
    """out[i] = mean clipped score of site sites[i] at thetas[i] (or the one theta for all) + penalty * theta."""
    for i in nb.prange(sites.size):
        begin = offsets[sites[i]]
        limits = limits_of(bound, norms, weight, begin, offsets[sites[i] + 1])
        theta = thetas[i % thetas.shape[0]]
        _mean_score(
            residual, params, packed, y, shift, weight, limits, begin, columns, theta, consistent, penalty, out[i]
        )


@nb.njit(cache=True)
def _local_descent(  # type: ignore[no-untyped-def]
    residual, params, packed, y, shift, weight, limits, begin, columns, steps, eta, consistent, penalty, drift, sd,
    factors, column, key, seed, stream, theta,
):  # fmt: skip
    outputs = theta.shape[0]
    total = np.empty((outputs, columns))
    buffer = np.empty(outputs * min(tile_rows(columns), limits.size))
    rate = eta / max(limits.size, 1)
    for k in range(steps):
        _site_score(
            residual, params, packed, y, shift, weight, begin, columns, limits, theta, consistent, total, buffer
        )
        for c in range(outputs):
            for j in range(columns):
                theta[c, j] -= rate * total[c, j] + eta * (penalty[c, j] * theta[c, j] + drift[c, j])
        if sd * factors[k, column] > 0.0:
            add_normals(theta.reshape(outputs * columns), sd * factors[k, column], key, seed, stream + np.uint64(k))


@nb.njit(
    types.void(FUNCTION, VECTOR, VECTOR, VECTOR, VECTOR, VECTOR, VECTOR, INDEX, types.int64, INDEX, CUBE, types.int64,
               F8, F8, types.boolean, MATRIX, CUBE, VECTOR, MATRIX, types.uint64[::1], types.uint64, types.uint64,
               CUBE),
    parallel=True, cache=True,
)  # fmt: skip
def local_descents(  # type: ignore[no-untyped-def]
    residual, params, packed, y, shift, weight, norms, offsets, columns, sites, thetas, steps, eta, bound, consistent,
    penalty, drifts, sds, factors, keys, seed, stream, out,
):  # fmt: skip
    """out[i] = theta after `steps` noisy gradient steps at site sites[i].

    Step k: theta -= eta (mean clipped score + penalty theta + drift) + N(0, (sds[i] factors[k, i])^2); `factors`
    may have a single column that serves all sites, `drifts` a single entry.
    """
    for i in nb.prange(sites.size):
        site = sites[i]
        limits = limits_of(bound, norms, weight, offsets[site], offsets[site + 1])
        _copy(thetas[i % thetas.shape[0]], out[i])
        _local_descent(
            residual, params, packed, y, shift, weight, limits, offsets[site], columns, steps, eta, consistent, penalty,
            drifts[i % drifts.shape[0]], sds[i], factors, i % factors.shape[1], keys[site], seed, stream, out[i],
        )  # fmt: skip


@nb.njit(cache=True)
def _score_norms(residual, params, packed, y, shift, weight, norms, begin, end, columns, theta, bound, consistent, out):  # type: ignore[no-untyped-def]
    outputs = theta.shape[0]
    tile = tile_rows(columns)
    buffer = np.empty(outputs * min(tile, end - begin))
    for first in range(begin, end, tile):
        width = min(tile, end - first)
        eta = buffer[: outputs * width].reshape(outputs, width)
        _predict_tile(packed, first * columns, columns, width, theta, eta)
        _add_offset(shift, first, eta)
        residual(
            eta, y[first : first + width], limits_of(bound, norms, weight, first, first + width), consistent, params
        )
        _weigh(weight, first, eta)
        for i in range(width):
            length = abs(eta[0, i])
            if outputs > 1:
                square = 0.0
                for c in range(outputs):
                    square += eta[c, i] * eta[c, i]
                length = math.sqrt(square)
            out[first + i] = length * norms[first + i]


@nb.njit(
    types.void(
        FUNCTION, VECTOR, VECTOR, VECTOR, VECTOR, VECTOR, VECTOR, INDEX, types.int64, MATRIX, F8, types.boolean, VECTOR
    ),
    parallel=True,
    cache=True,
)
def score_norms(residual, params, packed, y, shift, weight, norms, offsets, columns, theta, bound, consistent, out):  # type: ignore[no-untyped-def]
    """out[row] = norm of the row's score at theta (clipped at `bound`; infinity leaves it as it is)."""
    for site in nb.prange(offsets.size - 1):
        begin, end = offsets[site], offsets[site + 1]
        _score_norms(
            residual, params, packed, y, shift, weight, norms, begin, end, columns, theta, bound, consistent, out
        )


@nb.njit(cache=True, fastmath=SUMS)
def _mean_curvature(  # type: ignore[no-untyped-def]
    curvature,
    params,
    packed,
    y,
    shift,
    weight,
    norms,
    begin,
    end,
    columns,
    theta,
    bound,
    consistent,
    largest,
    penalty,
    total,
):
    outputs = theta.shape[0]
    size = tile_rows(columns)
    width = min(size, end - begin)
    buffer = np.empty(outputs * width)
    weights_buffer = np.empty(outputs * outputs * width)
    weighted_buffer = np.empty(columns * width)
    total[:] = 0.0
    for first in range(begin, end, size):
        width = min(size, end - first)
        eta = buffer[: outputs * width].reshape(outputs, width)
        weights = weights_buffer[: outputs * outputs * width].reshape(outputs, outputs, width)
        weighted = weighted_buffer[: columns * width].reshape(columns, width)
        tile = packed[first * columns : (first + width) * columns].reshape(columns, width)
        _predict_tile(packed, first * columns, columns, width, theta, eta)
        near = slice(first, first + width)
        _add_offset(shift, first, eta)
        if weight.size == 0:
            curvature(eta, y[near], norms[near], bound, consistent, largest, params, weights)
        else:
            scaled = norms[near] * np.maximum(weight[near], MIN_WEIGHT)  # the score is clipped after weighting
            curvature(eta, y[near], scaled, bound, consistent, np.inf, params, weights)
            _weigh_curvature(weight[near], norms[near], largest, weights)
        for a in range(outputs):
            for b in range(a + 1):
                for j in range(columns):
                    for r in range(width):
                        weighted[j, r] = weights[a, b, r] * tile[j, r]
                block = total[a * columns : (a + 1) * columns, b * columns : (b + 1) * columns]
                block += np.dot(weighted, tile.T)
    rows = max(end - begin, 1)
    for a in range(outputs * columns):
        for b in range(a + 1):
            # blocks below the diagonal are full, diagonal blocks symmetric up to rounding
            total[a, b] /= rows
            total[b, a] = total[a, b]
        total[a, a] += penalty[a // columns, a % columns]


@nb.njit(
    types.void(types.FunctionType(CURVATURE), VECTOR, VECTOR, VECTOR, VECTOR, VECTOR, VECTOR, INDEX, types.int64, INDEX,
               CUBE, F8, types.boolean, F8, MATRIX, CUBE),
    parallel=True, cache=True,
)  # fmt: skip
def mean_curvatures(  # type: ignore[no-untyped-def]
    curvature,
    params,
    packed,
    y,
    shift,
    weight,
    norms,
    offsets,
    columns,
    sites,
    thetas,
    bound,
    consistent,
    largest,
    penalty,
    out,
):
    """out[i] = mean clipped curvature (parameters x parameters) of site sites[i] at its theta, + diag(penalty)."""
    for i in nb.prange(sites.size):
        begin, end = offsets[sites[i]], offsets[sites[i] + 1]
        theta = thetas[i % thetas.shape[0]]
        _mean_curvature(
            curvature,
            params,
            packed,
            y,
            shift,
            weight,
            norms,
            begin,
            end,
            columns,
            theta,
            bound,
            consistent,
            largest,
            penalty,
            out[i],
        )
