"""What formulas for float32 and float64 share: the formats' numbers, constants, small steps."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

from ruda.backends.cpu import processor, values
from ruda.backends.cpu.coefficients import COEFFICIENTS
from ruda.backends.cpu.values import (
    Value,
    bits_of,
    call_symbol,
    convert,
    fma,
    from_bits,
)

INFINITY, NAN = math.inf, math.nan


@dataclass(frozen=True)
class Format:
    """A binary floating-point format and the arguments at which functions saturate."""

    mantissa: int  # bits stored
    bias: int
    exp_low: float  # e^x rounds to 0 below; infinity above exp_high
    exp_high: float
    tanh_high: float  # tanh(x) rounds to 1 above
    big: float  # log(1 + x) rounds like log(x) above
    trig: float  # greatest argument that three parts of pi/2 reduce
    erfc_high: float  # erfc rounds to 0 above
    cbrt: int  # upper half of the bits of a first guess at x^(-1/3) is cbrt - bits / 3

    @property
    def magic(self) -> float:
        """x + magic has the nearest integer to x in its low bits."""
        return 1.5 * 2.0**self.mantissa

    @property
    def tiny(self) -> float:
        """The least normal number."""
        return 2.0 ** (1 - self.bias)


FORMATS = {
    32: Format(23, 127, -104.5, 89.0, 10.0, 2.0**27, 2.0**15, 11.0, 0x54A2FA8C),
    64: Format(52, 1023, -746.0, 710.0, 20.0, 2.0**55, 2.0**23, 28.0, 0x553EF0FF),
}

MAGIC_BITS = {32: 0x4B400000, 64: 0x4338 << 48}  # of Format.magic

# Constants to more digits than a float64 has.
PI = Fraction("3.14159265358979323846264338327950288419716939937510582097494459230781640628620899")
LN2 = Fraction(
    "0.693147180559945309417232121458176568075500134360255254120680009493393621969694716"
)
LN10 = Fraction(
    "2.30258509299404568401799145468436420760110148862877297603332790096757260967735248"
)


def rounded(value: Fraction, bits: int, precision: int | None = None) -> float:
    """The nearest float, optionally of fewer significant bits."""
    if value == 0:
        return 0.0
    precision = precision or FORMATS[bits].mantissa + 1
    exponent = math.floor(math.log2(abs(value))) + 1 - precision
    return math.ldexp(round(value / Fraction(2) ** exponent), exponent)


def parts(value: Fraction, bits: int, *precisions: int | None) -> list[float]:
    """A constant as an unevaluated sum of floats, one per precision (None: full)."""
    result = []
    for precision in precisions:
        result.append(rounded(value, bits, precision))
        value -= Fraction(result[-1])
    return result


def polynomial(name: str, x: Value) -> Value:
    """P(x) by Horner's rule, from the table."""
    *rest, last = COEFFICIENTS[name, x.bits]
    result = x.const(last)
    for coefficient in reversed(rest):
        result = fma(result, x, coefficient)
    return result


def integer_of(rounding: Value) -> Value:
    """The integer in the low bits of `x + magic`."""
    return bits_of(rounding) - MAGIC_BITS[rounding.bits]


def power_of_two(k: Value) -> Value:
    """2^k as a float, for normal results."""
    f = FORMATS[k.bits]
    return from_bits((k + f.bias) << f.mantissa)


def scale(y: Value, k: Value) -> Value:
    """y 2^k, rounded once; for |k| up to twice the exponents of the format."""
    if processor.has_scale():
        exponent = convert(k, "i32")
        name = f"llvm.ldexp.{values.suffix(y.dtype, y.lanes)}.{values.suffix('i32', y.lanes)}"
        return call_symbol(name, y.dtype, y, exponent)
    half = k >> 1  # in two steps: the first is exact
    return y * power_of_two(half) * power_of_two(k - half)


def fast_two_sum(a: Value, b: Value) -> tuple[Value, Value]:
    """a + b and its rounding error, for |a| >= |b| or a = 0."""
    total = a + b
    return total, (a - total) + b


def two_product(a: Value, b: Value | float) -> tuple[Value, Value]:
    """a b and its rounding error."""
    product = a * b
    return product, fma(a, b, -product)


def to_float(k: Value) -> Value:
    """A small integer as a float of its width, by the magic number: cheap on every chip."""
    return from_bits(k + MAGIC_BITS[k.bits]) - FORMATS[k.bits].magic
