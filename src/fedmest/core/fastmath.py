"""Elementary functions without branches: compiled loops that call them vectorise, where calls to libm would not."""

import math

import numba as nb
from numba import types
from numba.extending import intrinsic

EXACT = {"contract", "nsz"}  # for fastmath: no reordering, on which the rounding tricks below rely

F8, I8 = types.float64, types.int64
LOG2_E = 1.4426950408889634
LN2_HIGH, LN2_LOW = 6.93147180369123816490e-01, 1.90821492927058770002e-10
ROUND = 6755399441055744.0  # 1.5 * 2^52: adding it rounds to an integer held in the lowest mantissa bits
TWO_52 = 4503599627370496.0
TWO_52_BITS = 0x4330000000000000
MANTISSA = 0x000FFFFFFFFFFFFF
HALF_BITS = 0x3FE0000000000000
EXPONENT_LIMIT = 700.0


@intrinsic
def bits_of(typing_context, number):  # type: ignore[no-untyped-def]
    """The bits of a double, as an integer."""
    return I8(F8), lambda c, builder, s, args: builder.bitcast(args[0], c.get_value_type(I8))


@intrinsic
def double_of(typing_context, bits):  # type: ignore[no-untyped-def]
    """The double with these bits."""
    return F8(I8), lambda c, builder, s, args: builder.bitcast(args[0], c.get_value_type(F8))


@nb.njit(F8(I8), fastmath=EXACT, cache=True)
def small_integer(n):  # type: ignore[no-untyped-def]
    """An integer from 0 to 2^52 as a double; vectorises where the conversion instruction does not."""
    return double_of(n | TWO_52_BITS) - TWO_52  # type: ignore[call-arg]


@nb.njit(F8(F8), fastmath=EXACT, error_model="numpy", cache=True)
def exponential(x):  # type: ignore[no-untyped-def]
    """exp(x) to 2 ulp, x held to +-700 (NaN gives -700), without branches: loops that call it vectorise."""
    v = min(EXPONENT_LIMIT, max(-EXPONENT_LIMIT, x))  # in this order NaN gives way to the limit
    shifted = v * LOG2_E + ROUND
    k = shifted - ROUND
    r = (v - k * LN2_HIGH) - k * LN2_LOW
    # Taylor to r^12 on |r| <= ln(2)/2, pairs first so that the multiplications do not wait for each other
    r2 = r * r
    r4 = r2 * r2
    low = (1.0 + r) + r2 * (0.5 + r * 1.6666666666666666e-01)
    middle = (4.1666666666666664e-02 + r * 8.333333333333333e-03) + r2 * (
        1.388888888888889e-03 + r * 1.984126984126984e-04
    )
    high = (2.48015873015873e-05 + r * 2.7557319223985893e-06) + r2 * (
        2.755731922398589e-07 + r * 2.505210838544172e-08
    )
    power = double_of((bits_of(shifted) + 1023) << 52)  # type: ignore[call-arg, var-annotated]
    return (low + r4 * (middle + r4 * (high + r4 * 2.08767569878681e-09))) * power


@nb.njit(F8(F8), fastmath=EXACT, error_model="numpy", cache=True)
def logarithm(x):  # type: ignore[no-untyped-def]
    """log(x) for normal x > 0, to about 1e-15 absolute: x = m 2^k, log m = 2 artanh((m-1)/(m+1))."""
    bits = bits_of(x)  # type: ignore[call-arg, var-annotated]
    m = double_of((bits & MANTISSA) | HALF_BITS)
    k = small_integer(bits >> 52) - 1022.0
    small = m < 0.7071067811865476
    m = 2.0 * m if small else m
    k = k - 1.0 if small else k
    s = (m - 1.0) / (m + 1.0)
    z = s * s
    p = 1.0 / 3.0 + z * (
        1.0 / 5.0
        + z
        * (
            1.0 / 7.0
            + z * (1.0 / 9.0 + z * (1.0 / 11.0 + z * (1.0 / 13.0 + z * (1.0 / 15.0 + z * (1.0 / 17.0 + z / 19.0)))))
        )
    )
    return k * LN2_HIGH + (2.0 * (s + s * z * p) + k * LN2_LOW)


@nb.njit("UniTuple(f8, 2)(f8)", fastmath=EXACT, error_model="numpy", cache=True)
def sine_cosine(turns):  # type: ignore[no-untyped-def]
    """sin and cos of 2 pi turns, 0 <= turns < 1, to about 1e-15: the nearest quarter turn, and a Taylor polynomial."""
    quarter = (turns * 4.0 + ROUND) - ROUND
    x = (turns - 0.25 * quarter) * (2.0 * math.pi)
    z = x * x
    s = x + x * z * (
        -1.0 / 6
        + z
        * (
            1.0 / 120
            + z
            * (-1.0 / 5040 + z * (1.0 / 362880 + z * (-1.0 / 39916800 + z * (1.0 / 6227020800 - z / 1307674368000))))
        )
    )
    c = 1.0 + z * (
        -1.0 / 2
        + z
        * (
            1.0 / 24
            + z * (-1.0 / 720 + z * (1.0 / 40320 + z * (-1.0 / 3628800 + z * (1.0 / 479001600 - z / 87178291200))))
        )
    )
    swapped = quarter == 1.0 or quarter == 3.0
    sine = c if swapped else s
    cosine = s if swapped else c
    sine = -sine if quarter == 2.0 or quarter == 3.0 else sine
    cosine = -cosine if quarter == 1.0 or quarter == 2.0 else cosine
    return sine, cosine
