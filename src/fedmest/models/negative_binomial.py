"""Negative binomial regression (NB2), log link, given dispersion alpha: Var(y) = m + alpha m^2, m = exp(x'theta).

Score of a row: (m - y) / (1 + alpha m) x; expected curvature: m / (1 + alpha m) x x'. The log link is not the canonical
one: the observed curvature m (1 + alpha y) / (1 + alpha m)^2 x x' has that mean, but only if m is the mean of y. Newton
steps are Fisher scoring here, and standard errors use the expected curvature, as those of statsmodels' GLM do.

Consistent clipping is that of `models.poisson`. With c = B/|x| and s = 1 + alpha m the residual Z/s, Z = m - y, is cut
to [-c, c] (Z to [-C, C], C = c s), its conditional mean e is taken off, and the weight c / (c + |e|) brings the norm
back under B: |cut - e| <= c + |e| whatever number e is, so that the bound does not depend on how exactly e is computed.

In closed form, with f and F the probability and distribution functions and T(k) = m (1 + alpha k) f(k):

    sum_{j <= k} (m - j) f(j)    = T(k)
    sum_{j <= k} (m - j)^2 f(j)  = (m - k) T(k) + m s F(k-1) - alpha m T(k-1)  =: V(k)

(the first by (j+1) f(j+1) = q (j + 1/alpha) f(j), q = alpha m / s; the second from it by summation by parts). Hence,
with L = ceil(m - C) and U = floor(m + C),

    E[cut(Z)]    = C F(L-1) - C (1 - F(U)) + T(U) - T(L-1)
    E[Z cut(Z)]  = C T(L-1) + C T(U) + V(U) - V(L-1)

and the second over s^2 is the mean derivative of the clipped score (Fisher's identity), hence its curvature.

Up to SUMMED counts F is summed from f(0) = s^(-1/alpha); beyond, it is an incomplete beta function by its continued
fraction, F(k) = I_p(1/alpha, k+1) with p = 1/s. Above a mean of LARGE counts are all but continuous and y/m has nearly
a gamma distribution: moments are those at the mean LARGE with the same relative variance, scaled up.
Measured against sums: e to 1e-7 of E|cut|, from means of 0.001 to 100,000 and cuts down to 1e-5 standard deviations.
"""

import math

import numba as nb
import numpy as np
from scipy.special import gammaln

from fedmest.core.fastmath import EXACT, exponential
from fedmest.core.typing import FloatArray
from fedmest.data.schema import TargetRule
from fedmest.models.family import AuditResponses, Family, FamilyParam, PlanDefaults
from fedmest.models.kernels import CURVATURE, RESIDUAL

SUMMED = 200.0  # up to this count probabilities are summed one by one
LARGE = 1e6
NARROW = 64.0  # windows of so few counts are summed
FAR = 1e15  # no count that a mean below LARGE gives is cut this far out
TINY = 1e-18
TERMS = 2000  # of the continued fraction, which needs some sqrt(LARGE) of them
SMALLEST, LARGEST = 1e-3, 1e3  # dispersions: below, counts are Poisson; above, hardly any count is not zero


@nb.njit("f8(f8, f8, f8)", error_model="numpy", cache=True)
def _log_probability(k, mean, alpha):  # type: ignore[no-untyped-def]
    """log f(k)."""
    r = 1.0 / alpha
    odds = alpha * mean
    combinations = math.lgamma(k + r) - math.lgamma(r) - math.lgamma(k + 1.0)
    return combinations - r * math.log1p(odds) - k * math.log1p(1.0 / odds)


@nb.njit("f8(f8, f8, f8)", error_model="numpy", cache=True)
def _fraction(a, b, x):  # type: ignore[no-untyped-def]
    """The continued fraction of the incomplete beta function (Lentz), for x < (a + 1) / (a + b + 2)."""
    floor = 1e-300
    c, d = 1.0, 1.0 - (a + b) * x / (a + 1.0)
    d = 1.0 / (d if abs(d) > floor else floor)
    value = d
    for m in range(1, TERMS):
        step = m * (b - m) * x / ((a + 2.0 * m - 1.0) * (a + 2.0 * m))
        d = 1.0 + step * d
        c = 1.0 + step / c
        d = 1.0 / (d if abs(d) > floor else floor)
        c = c if abs(c) > floor else floor
        value *= d * c
        step = -(a + m) * (a + b + m) * x / ((a + 2.0 * m) * (a + 2.0 * m + 1.0))
        d = 1.0 + step * d
        c = 1.0 + step / c
        d = 1.0 / (d if abs(d) > floor else floor)
        c = c if abs(c) > floor else floor
        value *= d * c
        if abs(d * c - 1.0) < 1e-15:
            break
    return value


@nb.njit("UniTuple(f8, 2)(f8, f8, f8, f8)", error_model="numpy", cache=True)
def _below_and_above(k, f, mean, alpha):  # type: ignore[no-untyped-def]
    """F(k) and 1 - F(k), each without cancellation where it is small; f is f(k)."""
    r, s = 1.0 / alpha, 1.0 + alpha * mean
    p, q = 1.0 / s, alpha * mean / s
    # p^a q^b / B(a, b) with a = r, b = k + 1 is (k + r) q f(k)
    front = (k + r) * q * f
    if p < (r + 1.0) / (r + k + 3.0):
        below = min(max(front * _fraction(r, k + 1.0, p) / r, 0.0), 1.0)
        return below, 1.0 - below
    above = min(max(front * _fraction(k + 1.0, r, q) / (k + 1.0), 0.0), 1.0)
    return 1.0 - above, above


@nb.njit("UniTuple(f8, 6)(f8, f8, f8, f8)", error_model="numpy", cache=True)
def _tails(mean, alpha, low, high):  # type: ignore[no-untyped-def]
    """f(low - 1), f(low), F(low), f(high - 1), f(high), 1 - F(high) for low < mean < high."""
    r, odds = 1.0 / alpha, alpha * mean
    q = odds / (1.0 + odds)
    before_low, f_low, below, before_high, f_high, above = 0.0, 0.0, 0.0, 0.0, 0.0, 0.0
    if high <= SUMMED or (mean < SUMMED / 4.0 and low <= SUMMED):
        f, before = math.exp(-r * math.log1p(odds)), 0.0
        total = f
        k = 0.0
        if low == 0.0:
            f_low, below = f, f
        top = min(high, SUMMED)
        while k < top:
            before = f
            f *= (k + r) * q / (k + 1.0)
            k += 1.0
            total += f
            if k == low:
                before_low, f_low, below = before, f, total
            if f < TINY and k > mean:
                return before_low, f_low, below, 0.0, 0.0, 0.0
        if k == high:
            return before_low, f_low, below, before, f, max(1.0 - total, 0.0)
    elif low >= 0.0:
        f_low = math.exp(_log_probability(low, mean, alpha))
        before_low = f_low * low / ((low - 1.0 + r) * q) if low > 0.0 else 0.0
        below, _ = _below_and_above(low, f_low, mean, alpha)
    f_high = math.exp(_log_probability(high, mean, alpha))
    if f_high > 0.0:
        before_high = f_high * high / ((high - 1.0 + r) * q)
        _, above = _below_and_above(high, f_high, mean, alpha)
    return before_low, f_low, below, before_high, f_high, above


@nb.njit("UniTuple(f8, 2)(f8, f8, f8)", error_model="numpy", cache=True)
def cut_moments(mean, alpha, c):  # type: ignore[no-untyped-def]
    """E[cut(R)] and E[R cut(R)] for R = (mean - Y) / (1 + alpha mean), cut to [-c, c]; 0 < mean, 0 < c."""
    unit = 1.0 / (1.0 + alpha * mean)  # what Z = mean - Y is multiplied by
    cut = c / unit
    if mean > LARGE:
        scale = mean / LARGE
        unit *= scale
        alpha, mean, cut = alpha + 1.0 / mean - 1.0 / LARGE, LARGE, cut / scale
    reach = min(cut, FAR)  # rounding to an integer overflows beyond 2^63
    low = math.ceil(mean - reach) - 1.0
    high = math.floor(mean + reach)
    before_low, f_low, below, before_high, f_high, above = _tails(mean, alpha, low, high)
    s = 1.0 + alpha * mean
    t_low, t_high = mean * (1.0 + alpha * low) * f_low, mean * (1.0 + alpha * high) * f_high
    first, second = t_high - t_low, 0.0
    if low >= 0.0 and high - low <= NARROW:  # differences over so few counts would be rounding
        first, f, k = 0.0, f_low, low
        while k < high:
            f *= (k + 1.0 / alpha) * alpha * mean / s / (k + 1.0)
            k += 1.0
            first += (mean - k) * f
            second += (mean - k) * (mean - k) * f
    else:
        inside = 1.0 - above - below - f_high + f_low  # F(high - 1) - F(low - 1)
        t_before_low = mean * (1.0 + alpha * (low - 1.0)) * before_low
        t_before_high = mean * (1.0 + alpha * (high - 1.0)) * before_high
        second = (mean - high) * t_high - (mean - low) * t_low
        second += mean * s * inside - alpha * mean * (t_before_high - t_before_low)
    if cut < FAR:
        first += cut * (below - above)
        second += cut * (t_low + t_high)
    return min(c, max(-c, unit * first)), max(0.0, unit * unit * second)  # in this order NaN gives way to the limit


@nb.njit(RESIDUAL, fastmath=EXACT, error_model="numpy", cache=True)
def _residual(eta, y, limits, consistent, params):  # type: ignore[no-untyped-def]
    e, alpha = eta[0], params[0]
    for i in range(y.size):
        e[i] = exponential(e[i])
    if not consistent or math.isinf(limits.min()):  # no row has a limit; below, each row is asked for its own
        for i in range(y.size):
            r = (e[i] - y[i]) / (1.0 + alpha * e[i])
            e[i] = min(limits[i], max(-limits[i], r))
        return
    mean, c, expected = math.nan, math.nan, 0.0
    for i in range(y.size):
        s = 1.0 + alpha * e[i]
        if not limits[i] < math.inf:  # a short row under a large bound
            e[i] = (e[i] - y[i]) / s
            continue
        if e[i] != mean or limits[i] != c:  # the rows of a plan come in runs that differ in y alone
            mean, c = e[i], limits[i]
            expected, _ = cut_moments(mean, alpha, c)
        cut = min(c, max(-c, (mean - y[i]) / s))
        e[i] = (cut - expected) * (c / (c + abs(expected)))


@nb.njit(CURVATURE, fastmath=EXACT, error_model="numpy", cache=True)
def _curvature(eta, y, norms, bound, consistent, largest, params, weights):  # type: ignore[no-untyped-def]
    alpha = params[0]
    for i in range(y.size):
        mean = exponential(eta[0, i])
        v = mean / (1.0 + alpha * mean)
        c = bound / norms[i]
        if consistent and c < math.inf:
            expected, second = cut_moments(mean, alpha, c)
            v = second * (c / (c + abs(expected)))
        weights[0, 0, i] = min(v, largest / (norms[i] * norms[i]))


def _mean(eta: FloatArray, params: FloatArray) -> FloatArray:
    return np.exp(np.minimum(eta, 700.0))


def _loglike(eta: FloatArray, y: FloatArray, params: FloatArray) -> float:
    alpha = params[0]
    r, odds = 1 / alpha, alpha * _mean(eta, params)
    combinations = gammaln(y + r) - gammaln(r) - gammaln(y + 1)
    return float((combinations - r * np.log1p(odds) - y * np.log1p(1 / odds)).sum())


def _simulate(eta: FloatArray, rng: np.random.Generator, params: FloatArray) -> FloatArray:
    return np.asarray(rng.poisson(rng.gamma(1 / params[0], params[0] * np.exp(eta))), dtype=float)


def _support(eta: FloatArray, params: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Counts one by one, then in bins that widen by a tenth, each as its middle: tails are long."""
    from scipy.stats import nbinom

    r, means = 1 / params[0], _mean(eta, params)
    most = float(nbinom.ppf(1 - 1e-7, r, r / (r + means.max())))
    wide = np.geomspace(32.0, max(most, 32.0), max(2, math.ceil(math.log(max(most, 33.0) / 32.0) / math.log(1.1))))
    last = np.unique(np.concatenate([np.arange(min(32.0, most) + 1), np.floor(wide)]))  # of each bin
    first = np.concatenate([[0.0], last[:-1] + 1])
    chances = np.diff(nbinom.cdf(last, r, (r / (r + means))[:, None]), axis=1, prepend=0.0)
    return np.tile((first + last) / 2, (len(eta), 1)), chances / chances.sum(axis=1, keepdims=True)


NEGATIVE_BINOMIAL = Family(
    name="negative-binomial",
    residual=_residual,
    curvature=_curvature,
    params=(FamilyParam("dispersion", 1.0, SMALLEST, LARGEST, "alpha in Var(y) = m + alpha m^2"),),
    target=TargetRule(declared="whole numbers of at least 0", numbers="counts 0, 1, 2, ...", low=0.0, whole=True),
    mean=_mean,
    loglike=_loglike,
    simulate=_simulate,
    support=_support,
    audit=AuditResponses(extreme=(1000.0, 4000.0)),
    plan=PlanDefaults(feature_sd=0.5),
    typical_curvature=0.2,
    curvature_slope=1.0,
    misspecification_factor=3.0,  # what is given back for cut scores is this distribution's mean; tails may be longer
)
