"""Trigonometric functions and their inverses; see `elementary.py` for the rules."""

from __future__ import annotations

from ruda.backends.cpu.formats import FORMATS, INFINITY, PI, parts, polynomial, rounded
from ruda.backends.cpu.slow_path import SlowPath
from ruda.backends.cpu.values import (
    Value,
    bits_of,
    copysign,
    fabs,
    floor,
    fma,
    from_bits,
    select,
    sqrt,
)


# ---- trigonometry -----------------------------------------------------------------------------
def quadrant(x: Value) -> tuple[Value, Value, Value]:
    """sin(r), cos(r) and, in the low bits, n with x = r + n pi/2, |r| <= pi/4."""
    magic = FORMATS[x.bits].magic
    rounding = fma(x, rounded(2 / PI, x.bits), magic)
    r = x
    for part in parts(PI / 2, x.bits, None, None, None):
        r = fma(rounding - magic, -part, r)  # the first step is exact, by cancellation
    z = r * r
    sine = fma(r * z, polynomial("sin", z), r)
    cosine = fma(z * z, polynomial("cos", z), fma(z, -0.5, 1.0))
    return sine, cosine, bits_of(rounding)


def turned(sine: Value, cosine: Value, n: Value) -> Value:
    """sin(r + n pi/2)."""
    y = select((n & 1) != 0, cosine, sine)
    return from_bits(bits_of(y) ^ ((n & 2) << (y.bits - 2)))


def sin_main(x: Value) -> Value:
    return select(x == 0, x, turned(*quadrant(x)))


def cos_main(x: Value) -> Value:
    sine, cosine, n = quadrant(x)
    return turned(sine, cosine, n + 1)


def tan_main(x: Value) -> Value:
    sine, cosine, n = quadrant(x)
    odd = (n & 1) != 0
    y = select(odd, -cosine, sine) / select(odd, sine, cosine)
    return select(x == 0, x, y)


def many_periods(x: Value) -> Value:
    a = fabs(x)
    return (a > FORMATS[x.bits].trig) & (a < INFINITY)


def pi_quadrant(x: Value) -> tuple[Value, Value, Value]:
    """sin(pi r), cos(pi r) and, in the low bits, n with x = r + n/2, exactly; for |x| <= 2."""
    magic = FORMATS[x.bits].magic
    rounding = x + x + magic
    r = x - (rounding - magic) * 0.5
    z = r * r
    high, low = parts(PI, r.bits, None, None)
    sine = fma(r, high, r * fma(z, polynomial("sinpi", z), low))
    return sine, fma(z, polynomial("cospi", z), 1.0), bits_of(rounding)


def sinpi(x: Value) -> Value:
    """Zero with the sign of x at the integers."""
    a = fabs(x)
    a = a - floor(a * 0.5) * 2.0  # exact
    y = turned(*pi_quadrant(a))
    y = from_bits(bits_of(y) ^ (bits_of(x) & (1 << (x.bits - 1))))
    return select((a == 0) | (a == 1), copysign(0.0, x), y)


def cospi(x: Value) -> Value:
    a = fabs(x)
    sine, cosine, n = pi_quadrant(a - floor(a * 0.5) * 2.0)
    return turned(sine, cosine, n + 1) + 0.0  # no -0


def asin_parts(x: Value) -> tuple[Value, Value, Value]:
    """(near 1, r, asin(r) - r) where r is |x|, or near 1 sqrt((1 - |x|) / 2)."""
    a = fabs(x)
    near = a > 0.5
    half = (1 - a) * 0.5
    z = select(near, half, a * a)
    r = select(near, sqrt(half), a)
    return near, r, r * z * polynomial("asin", z)


def asin(x: Value) -> Value:
    """Near 1: pi/2 - 2 asin(sqrt((1 - a) / 2))."""
    near, r, rest = asin_parts(x)
    high, low = parts(PI / 2, x.bits, None, None)
    y = select(near, high - ((r + r) - (low - (rest + rest))), r + rest)
    return copysign(y, x)


def acos(x: Value) -> Value:
    near, r, rest = asin_parts(x)
    high, low = parts(PI / 2, x.bits, None, None)
    below = bits_of(x) < 0
    twice, twice_rest = r + r, rest + rest
    outer = select(below, 2 * high - (twice - (2 * low - twice_rest)), twice + twice_rest)
    signed, signed_rest = select(below, -r, r), select(below, -rest, rest)
    inner = high - (signed - (low - signed_rest))
    return select(near, outer, inner)


def atan_of(y: Value, x: Value) -> Value:
    """atan(y / x) for y, x >= 0, from the angle that is nearest of 0, pi/4 and pi/2."""
    steep, middle = y > x * 2.414213562373095, y > x * 0.41421356237309503
    numerator = select(steep, -x, select(middle, y - x, y))
    denominator = select(steep, y, select(middle, y + x, x))
    quarter = parts(PI / 4, x.bits, None, None)
    high, low = (select(steep, 2 * q, select(middle, x.const(q), 0.0)) for q in quarter)
    r = numerator / denominator
    z = r * r
    return high + (r + fma(r * z, polynomial("atan", z), low))


def atan(x: Value) -> Value:
    a = fabs(x)
    return copysign(atan_of(a, x.const(1.0)), x)


def atan2(y: Value, x: Value) -> Value:
    a, b = fabs(y), fabs(x)
    top = 2.0 ** (FORMATS[x.bits].bias - 1)
    shrink = select((a > top) | (b > top), x.const(0.25), 1.0)
    both_infinite = (a == INFINITY) & (b == INFINITY)
    both_zero = (a == 0) & (b == 0)
    a = select(both_infinite, 1.0, a * shrink)
    b = select(both_infinite | both_zero, 1.0, b * shrink)
    angle = atan_of(a, b)
    high, low = parts(PI, x.bits, None, None)
    angle = select(bits_of(x) < 0, high - (angle - low), angle)
    angle = select(x.compare("!=", x), x, angle)
    return copysign(angle, y)


def degrees(x: Value) -> Value:
    return x * rounded(180 / PI, x.bits)


def radians(x: Value) -> Value:
    return x * rounded(PI / 180, x.bits)


SIN = SlowPath("sin", sin_main, many_periods)
COS = SlowPath("cos", cos_main, many_periods)
TAN = SlowPath("tan", tan_main, many_periods)
