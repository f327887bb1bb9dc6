"""Floats divided with remainder, exactly; see `elementary.py` for the rules."""

from __future__ import annotations

from ruda.backends.cpu.formats import FORMATS, INFINITY
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
    trunc,
)


def quotient_fits(x: Value, y: Value) -> Value:
    """Whether fmod's fast form is exact: finite, and the integer quotient has no rounding."""
    fits = fabs(x / y) < 2.0 ** FORMATS[x.bits].mantissa
    return fits & (fabs(y) < INFINITY)


def needs_long_division(x: Value, y: Value) -> Value:
    settled = quotient_fits(x, y) | x.compare("!=", x) | y.compare("!=", y) | (y == 0)
    return ~(settled | (fabs(x) == INFINITY))


def fmod_main(x: Value, y: Value) -> Value:
    """x - trunc(x / y) y: exact, once the quotient is put right where its rounding went over."""
    a, b = fabs(x), fabs(y)
    r = fma(-trunc(a / b), b, a)
    r = select(r < 0, r + b, r)
    return copysign(r, x)


def remainder_main(x: Value, y: Value) -> Value:
    """x - rint(x / y) y, ties to an even quotient."""
    a, b = fabs(x), fabs(y)
    q = trunc(a / b)
    r = fma(-q, b, a)
    over = r < 0
    r, q = select(over, r + b, r), select(over, q - 1, q)
    half = q * 0.5
    odd = floor(half) != half
    rest = b - r
    up = (r > rest) | ((r == rest) & odd)
    r = select(up, -rest, r)
    return from_bits(bits_of(r) ^ (bits_of(x) & (1 << (x.bits - 1))))


FMOD = SlowPath("fmod", fmod_main, needs_long_division, arity=2)
REMAINDER = SlowPath("remainder", remainder_main, needs_long_division, arity=2)


def floor_mod(x: Value, y: Value) -> Value:
    """x % y as Python and NumPy do: the sign of y, also of zero."""
    r = FMOD(x, y)
    crossed = (r != 0) & ((r < 0) ^ (y < 0))
    return select(r == 0, copysign(0.0, y), select(crossed, r + y, r))


def floor_div(x: Value, y: Value) -> Value:
    """x // y as NumPy does: the floor of the exact quotient; x / y where y is 0."""
    r = FMOD(x, y)
    crossed = (r != 0) & ((r < 0) ^ (y < 0))
    q = (x - r) / y
    q = select(crossed, q - 1, q)
    whole = floor(q)
    whole = select(q - whole > 0.5, whole + 1, whole)
    whole = select(q == 0, copysign(0.0, x / y), whole)
    return select(y == 0, x / y, whole)
