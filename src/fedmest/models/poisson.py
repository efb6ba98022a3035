"""Poisson regression, log link. Score of a row: (lambda - y) x, lambda = exp(x'theta); curvature lambda x x'.

Consistent clipping. With c = B/|x| the residual Z = lambda - y is cut to [-c, c] and its conditional mean
e = E[cut(lambda - Y)] is taken off, so the score keeps mean zero; the weight c / (c + |e|) then brings the norm
back under B exactly. (The weight depends on x and theta alone. Cutting at B/(2|x|) needs no weight but wastes up to
half the bound, since |e| is far smaller than c as a rule.) In closed form, with L = ceil(lambda - c),
U = floor(lambda + c), f and F the Poisson probability and distribution functions:

    e            = c F(L-1) - c (1 - F(U)) + lambda (f(U) - f(L-1))
    E[Z cut(Z)]  = c lambda (f(L-1) + f(U)) + lambda (F(U) - F(L-1))
                   + lambda f(U) (lambda - 1 - U) - lambda f(L-1) (lambda - L)

The second is the mean derivative of the clipped score (Fisher's identity), hence its curvature.
"""

import math

import numba as nb
import numpy as np
from scipy.special import gammaln

from fedmest.core.fastmath import EXACT, exponential
from fedmest.core.typing import FloatArray
from fedmest.data.schema import TargetRule
from fedmest.models.family import AuditResponses, Family, PlanDefaults
from fedmest.models.kernels import CURVATURE, RESIDUAL

RECIPROCALS = 1.0 / np.maximum(np.arange(512), 1)
FORWARD = 50.0  # below this mean, sums start at f(0) = exp(-mean)
NORMAL = 4096.0  # above it, the first Edgeworth correction is exact to 1e-4 of the score's own spread
TINY = 1e-18
FAR = 1e15  # no count that a mean below NORMAL gives is cut this far out


@nb.njit("f8(f8, f8)", error_model="numpy", cache=True)
def _log_probability(k, mean):  # type: ignore[no-untyped-def]
    return k * math.log(mean) - mean - math.lgamma(k + 1.0)


@nb.njit("UniTuple(f8, 4)(f8, f8, f8, f8)", error_model="numpy", cache=True)
def _tails(mean, at_zero, low, high):  # type: ignore[no-untyped-def]
    """f(low), F(low), f(high), 1 - F(high) for low < mean < high; `at_zero` is exp(-mean)."""
    if mean < FORWARD:
        p = at_zero
        total = p
        f_low = 0.0
        cdf_low = 0.0
        k = 0
        if low == 0.0:
            f_low, cdf_low = p, p
        top = int(min(high, 500.0))
        while k < top:
            k += 1
            p *= mean * RECIPROCALS[k]
            total += p
            if k == low:
                f_low, cdf_low = p, total
            if p < TINY and k > mean:
                return f_low, cdf_low, 0.0, 0.0
        return f_low, cdf_low, p, max(1.0 - total, 0.0)
    # sum away from the window: terms fall at least geometrically beyond the mode
    f_low = math.exp(_log_probability(low, mean)) if low >= 0.0 else 0.0
    cdf_low = 0.0
    p = f_low
    k = low
    while k >= 0.0 and p > TINY:
        cdf_low += p
        p *= k / mean
        k -= 1.0
    f_high = math.exp(_log_probability(high, mean))
    upper = 0.0
    k = high + 1.0
    p = f_high * mean / k
    while p > TINY:
        upper += p
        k += 1.0
        p *= mean / k
    return f_low, cdf_low, f_high, upper


@nb.njit("UniTuple(f8, 2)(f8, f8, f8)", error_model="numpy", cache=True)
def cut_moments(mean, at_zero, c):  # type: ignore[no-untyped-def]
    """E[cut(Z)] and E[Z cut(Z)] for Z = mean - Y, cut to [-c, c]."""
    if mean > NORMAL:
        a = c / math.sqrt(mean)
        e = a * math.exp(-0.5 * a * a) * 0.3989422804014327 / 3.0
        return min(max(e, -c), c), mean * math.erf(a * 0.7071067811865476)
    reach = min(c, FAR)  # rounding to an integer overflows beyond 2^63
    low = math.ceil(mean - reach) - 1.0
    high = math.floor(mean + reach)
    f_low, cdf_low, f_high, upper = _tails(mean, at_zero, low, high)
    e = c * cdf_low - c * upper + mean * (f_high - f_low)
    second = (
        c * mean * (f_low + f_high)
        + mean * (1.0 - upper - cdf_low)
        + mean * f_high * (mean - 1.0 - high)
        - mean * f_low * (mean - 1.0 - low)
    )
    return min(max(e, -c), c), max(second, 0.0)


@nb.njit(RESIDUAL, fastmath=EXACT, error_model="numpy", cache=True)
def _residual(eta, y, limits, consistent, params):  # type: ignore[no-untyped-def]
    e = eta[0]
    for i in range(y.size):
        e[i] = exponential(e[i])
    if not consistent or math.isinf(limits.min()):  # no row has a limit; below, each row is asked for its own
        for i in range(y.size):
            e[i] = min(limits[i], max(-limits[i], e[i] - y[i]))
        return
    at_zero = np.empty(y.size)
    for i in range(y.size):
        at_zero[i] = exponential(-e[i])
    mean, c, expected = math.nan, math.nan, 0.0
    for i in range(y.size):
        if not limits[i] < math.inf:  # a short row under a large bound
            e[i] -= y[i]
            continue
        if e[i] != mean or limits[i] != c:  # the rows of a plan come in runs that differ in y alone
            mean, c = e[i], limits[i]
            expected, _ = cut_moments(mean, at_zero[i], c)
        cut = min(c, max(-c, mean - y[i]))
        e[i] = (cut - expected) * (c / (c + abs(expected)))


@nb.njit(CURVATURE, fastmath=EXACT, error_model="numpy", cache=True)
def _curvature(eta, y, norms, bound, consistent, largest, params, weights):  # type: ignore[no-untyped-def]
    for i in range(y.size):
        v = exponential(eta[0, i])
        c = bound / norms[i]
        if consistent and c < math.inf:
            expected, second = cut_moments(v, exponential(-v), c)
            v = second * (c / (c + abs(expected)))
        weights[0, 0, i] = min(v, largest / (norms[i] * norms[i]))


def _mean(eta: FloatArray, params: FloatArray) -> FloatArray:
    return np.exp(np.minimum(eta, 700.0))


def _loglike(eta: FloatArray, y: FloatArray, params: FloatArray) -> float:
    return float((y * eta - _mean(eta, params) - gammaln(y + 1)).sum())


def _simulate(eta: FloatArray, rng: np.random.Generator, params: FloatArray) -> FloatArray:
    return rng.poisson(np.exp(eta)).astype(float)


def _support(eta: FloatArray, params: FloatArray) -> tuple[FloatArray, FloatArray]:
    from scipy.stats import poisson

    means = _mean(eta, params)[:, None]
    counts = np.arange(poisson.ppf(1 - 1e-7, means.max()) + 1)
    chances = np.exp(counts * np.log(np.maximum(means, 1e-300)) - means - gammaln(counts + 1))
    return np.tile(counts, (len(eta), 1)), np.asarray(chances)


POISSON = Family(
    name="poisson",
    residual=_residual,
    curvature=_curvature,
    target=TargetRule(declared="whole numbers of at least 0", numbers="counts 0, 1, 2, ...", low=0.0, whole=True),
    mean=_mean,
    loglike=_loglike,
    simulate=_simulate,
    support=_support,
    audit=AuditResponses(extreme=(1000.0, 4000.0)),
    plan=PlanDefaults(feature_sd=0.5),  # counts show effects more clearly
    typical_curvature=0.3,
    curvature_slope=1.0,
    misspecification_factor=3.0,  # what is given back for cut scores is the Poisson mean; tails may be longer
)
