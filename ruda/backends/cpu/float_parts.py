"""Parts, comparisons and neighbours of floats; see `elementary.py` for the rules."""

from __future__ import annotations

from ruda.backends.cpu import processor
from ruda.backends.cpu.formats import FORMATS, INFINITY, NAN, power_of_two, scale
from ruda.backends.cpu.values import (
    Value,
    bits_of,
    call,
    convert,
    copysign,
    fabs,
    from_bits,
    select,
    trunc,
)


def ldexp(x: Value, n: Value) -> Value:
    """x 2^n for any n, rounded once."""
    if processor.has_scale():
        return scale(x, n)
    f = FORMATS[x.bits]
    n = convert(n, f"i{x.bits}")
    for _ in range(2):  # to within the format's range; what is below leaves the last bits alone
        far = select(n < 1 - f.bias, f.mantissa + 2 - f.bias, n.const(0))
        step = select(n > f.bias, f.bias, far)
        x, n = x * power_of_two(step), n - step
    last = select(n > f.bias, f.bias, select(n < 1 - f.bias, 1 - f.bias, n))
    return x * power_of_two(last)


def frexp_parts(x: Value) -> tuple[Value, Value]:
    f = FORMATS[x.bits]
    a = bits_of(fabs(x))
    small = (a >> f.mantissa) == 0
    # By the bits: a device may count subnormal numbers as zeros.
    scaled = bits_of(from_bits(a | (f.bias << f.mantissa)) - 1.0)  # 2**(bias - 1) as large
    i = select(small, scaled, a)
    mantissa = (i & ((1 << f.mantissa) - 1)) | ((f.bias - 1) << f.mantissa)
    mantissa = from_bits(mantissa | (bits_of(x) & (1 << (x.bits - 1))))
    exponent = (i >> f.mantissa) - select(small, i.const(2 * (f.bias - 1)), f.bias - 1)
    plain = (a > 0) & ((a >> f.mantissa) <= 2 * f.bias)
    return select(plain, mantissa, x), convert(select(plain, exponent, 0), "i32")


def frexp_mantissa(x: Value) -> Value:
    """x / 2^frexp_exponent(x), within [1/2, 1); x itself for zero, infinity, NaN."""
    return frexp_parts(x)[0]


def frexp_exponent(x: Value) -> Value:
    return frexp_parts(x)[1]


def modf_fraction(x: Value) -> Value:
    """x - trunc(x) with the sign of x."""
    whole = trunc(x)
    part = select(whole == 0.0, x, x - whole)  # x itself: it may be subnormal
    return copysign(select(fabs(x) == INFINITY, 0.0, part), x)


def nextafter(x: Value, y: Value) -> Value:
    i = bits_of(x)
    away = (y > x) ^ (x < 0)
    step = select(away, i.const(1), -1)
    least_number = from_bits((bits_of(y) & (1 << (x.bits - 1))) | 1)
    r = select(x == 0, least_number, from_bits(i + step))
    return select(x == y, y, select(x.compare("!=", x) | y.compare("!=", y), NAN, r))


def minimum(x: Value, y: Value) -> Value:
    """The lesser; NaN if there is one. Of equals the first, as NumPy.

    In a reduction x is what was found so far: all that does not wait for it is asked of y.
    """
    return select((y < x) | y.compare("!=", y), y, x)


def maximum(x: Value, y: Value) -> Value:
    return select((y > x) | y.compare("!=", y), y, x)


def fmin(x: Value, y: Value) -> Value:
    """The lesser; the other one if one is NaN."""
    return select((x <= y) | y.compare("!=", y), x, y)


def fmax(x: Value, y: Value) -> Value:
    return select((x >= y) | y.compare("!=", y), x, y)


def isnan(x: Value) -> Value:
    return x.compare("!=", x)


def isinf(x: Value) -> Value:
    return fabs(x) == INFINITY


def isfinite(x: Value) -> Value:
    return fabs(x) < INFINITY


def signbit(x: Value) -> Value:
    return bits_of(x) < 0


def ceil(x: Value) -> Value:
    return call("ceil", x)
