"""THE table of pure scalar operations of kernels: one row an operation.

A row gives the rule that types it, its meaning on NumPy scalars (which is its definition: the
interpreter runs it, tests compare against it) and the Python names that it answers to. A target
adds how it writes the operation; nothing else about it stands anywhere else.

All operations are total: no trap, no exception. Integers wrap, `x // 0` is 0, shifts by the width
or more give 0 or the sign, float to integer saturates.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ruda import dtypes
from ruda.dtypes import DType, as_dtype

# ---- meanings that NumPy does not have ----


def _limits(x: Any) -> tuple[int, int]:
    return as_dtype(x.dtype).range


def _wrap(value: int, dtype: np.dtype[Any]) -> Any:
    """A Python integer as a NumPy scalar, modulo 2**bits."""
    bits = dtype.itemsize * 8
    value &= (1 << bits) - 1
    if dtype.kind == "i" and value >> (bits - 1):
        value -= 1 << bits
    return dtype.type(value)


def _floordiv(x: Any, y: Any) -> Any:
    if x.dtype.kind in "iu":
        return _wrap(int(x) // int(y), x.dtype) if y else x.dtype.type(0)
    return np.floor_divide(x, y)


def _mod(x: Any, y: Any) -> Any:
    if x.dtype.kind in "iu":
        return _wrap(int(x) % int(y), x.dtype) if y else x.dtype.type(0)
    return np.remainder(x, y)


def _shl(x: Any, y: Any) -> Any:
    bits = x.dtype.itemsize * 8
    return _wrap(int(x) << int(y), x.dtype) if 0 <= y < bits else x.dtype.type(0)


def _shr(x: Any, y: Any) -> Any:
    bits = x.dtype.itemsize * 8
    return _wrap(int(x) >> (int(y) if 0 <= y < bits else bits), x.dtype)


def _pow(x: Any, y: Any) -> Any:
    if x.dtype.kind not in "iu":
        return np.power(x, y)
    if y >= 0:
        return _wrap(pow(int(x), int(y), 1 << (x.dtype.itemsize * 8)), x.dtype)
    return x.dtype.type({1: 1, -1: -1 if int(y) % 2 else 1}.get(int(x), 0))


def _popc(x: Any) -> Any:
    return np.int32(_unsigned(x).bit_count())


def _clz(x: Any) -> Any:
    return np.int32(x.dtype.itemsize * 8 - _unsigned(x).bit_length())


def _ffs(x: Any) -> Any:
    u = _unsigned(x)
    return np.int32((u & -u).bit_length())


def _brev(x: Any) -> Any:
    bits = x.dtype.itemsize * 8
    return _wrap(int(f"{_unsigned(x):0{bits}b}"[::-1], 2), x.dtype)


def _unsigned(x: Any) -> int:
    bits: int = x.dtype.itemsize * 8
    return int(x) & ((1 << bits) - 1)


def _mulhi(x: Any, y: Any) -> Any:
    return _wrap((int(x) * int(y)) >> (x.dtype.itemsize * 8), x.dtype)


def _wrap_index(i: Any, extent: Any) -> Any:
    return i + extent if i < 0 else i


def _fma(x: Any, y: Any, z: Any) -> Any:
    """One rounding: exact in rationals for finite operands."""
    if x.dtype.kind == "c" or not (np.isfinite(x) and np.isfinite(y)):
        return x * y + z
    if not np.isfinite(z):
        return z  # also where x * y would overflow by itself
    from fractions import Fraction

    exact = Fraction(float(x)) * Fraction(float(y)) + Fraction(float(z))
    if exact == 0:
        return x * y + z  # the sign of zero
    return _round_fraction(exact, x.dtype)


def _nextafter(x: Any, y: Any) -> Any:
    """Of two zeros the second, as in C; NumPy's float16 gave the first one before NumPy 2.5."""
    return y if x == y else np.nextafter(x, y)


def _round_fraction(exact: Any, dtype: np.dtype[Any]) -> Any:
    if dtype.itemsize == 8:
        try:
            return dtype.type(exact.numerator / exact.denominator)
        except OverflowError:
            return dtype.type(math.inf if exact > 0 else -math.inf)
    try:
        double = exact.numerator / exact.denominator
    except OverflowError:
        return dtype.type(math.inf if exact > 0 else -math.inf)
    # Round to odd in double first, so that the second rounding is the only one that counts.
    from fractions import Fraction

    if Fraction(double) != exact and not np.float64(double).view(np.int64) & 1:
        away = math.inf if Fraction(double) < exact else -math.inf
        double = math.nextafter(double, away)
    return dtype.type(double)


def _math(function: Callable[[float], float], pole: Any = None) -> Callable[[Any], Any]:
    """A function of `math` on NumPy floats; its errors become NaN or infinity."""

    def meaning(x: Any) -> Any:
        if pole is not None:
            special = pole(float(x))
            if special is not None:
                return x.dtype.type(special)
        try:
            return x.dtype.type(function(float(x)))
        except ValueError:
            return x.dtype.type(math.nan)
        except OverflowError:
            return x.dtype.type(math.inf)

    return meaning


def _gamma_pole(x: float) -> float | None:
    return math.copysign(math.inf, x) if x == 0 else None


def _lgamma_pole(x: float) -> float | None:
    return math.inf if x == -math.inf or (x <= 0 and x == math.floor(x)) else None


def _rsqrt(x: Any) -> Any:
    return x.dtype.type(1) / np.sqrt(x)


def _sigmoid(x: Any) -> Any:
    return x.dtype.type(1) / (x.dtype.type(1) + np.exp(-x))


def _ieee_remainder(x: Any, y: Any) -> Any:
    if np.isnan(x) or np.isnan(y) or np.isinf(x) or y == 0:
        return x.dtype.type(math.nan)
    return x.dtype.type(math.remainder(float(x), float(y)))


def _sinpi(x: Any) -> Any:
    if not np.isfinite(x):
        return x.dtype.type(math.nan)
    r = math.fmod(float(x), 2.0)
    return x.dtype.type(math.copysign(0.0, float(x)) if r == int(r) else math.sin(math.pi * r))


def _cospi(x: Any) -> Any:
    if not np.isfinite(x):
        return x.dtype.type(math.nan)
    r = math.fabs(math.fmod(float(x), 2.0))
    return x.dtype.type(0.0 if r in (0.5, 1.5) else math.cos(math.pi * r))


def _truediv(x: Any, y: Any) -> Any:
    return np.true_divide(x, y)


def _ldexp(x: Any, n: Any) -> Any:
    return np.ldexp(x, np.int32(max(-5000, min(5000, int(n)))))


# ---- the table ----


@dataclass(frozen=True, slots=True)
class Row:
    """One operation.

    rule, for operands promoted to a common dtype:
    arith     the result has it; integers below 32 bits and bools become int32
    same      the result has it
    bits      integers and bools; bool stays bool
    divide    integers become the default float
    float     integers become the default float; the result has it
    real      as float, without complex
    compare   result bool
    order     as compare, without complex
    test      as float, result bool
    count     integers; result int32
    integer   integers, the result has the first operand's dtype
    bool      result and operands bool
    parts     complex; the result is its real dtype
    scale     a float and an int32
    index     indices
    """

    name: str
    rule: str
    arity: int
    meaning: Callable[..., Any]
    names: tuple[str, ...] = ()
    doc: str = ""


def _names(text: str) -> tuple[str, ...]:
    """ "mnr:exp" -> math.exp, numpy.exp, ruda.exp; "n:" alone numpy, "b:" builtins, "o:"
    operator."""
    prefix = {"m": "math", "n": "numpy", "r": "ruda", "b": "builtins"}
    out = []
    for item in text.split():
        where, name = item.split(":")
        out += [f"{prefix[w]}.{name}" for w in where]
    return tuple(out)


def _row(name: str, rule: str, arity: int, meaning: Any, names: str = "", doc: str = "") -> Row:
    return Row(name, rule, arity, meaning, _names(names), doc)


TABLE: dict[str, Row] = {
    row.name: row
    for row in (
        # operators
        _row("add", "arith", 2, np.add, "n:add"),
        _row("sub", "arith", 2, np.subtract, "n:subtract"),
        _row("mul", "arith", 2, np.multiply, "n:multiply"),
        _row("truediv", "divide", 2, _truediv, "n:true_divide n:divide"),
        _row("floordiv", "arith", 2, _floordiv, "n:floor_divide", "floors; integer x // 0 is 0"),
        _row("mod", "arith", 2, _mod, "n:remainder n:mod", "divisor's sign; integer x % 0 is 0"),
        _row("pow", "arith", 2, _pow, "n:power r:pow"),
        _row("neg", "arith", 1, np.negative, "n:negative"),
        _row("abs", "arith", 1, np.absolute, "b:abs n:abs n:absolute r:fabs"),
        _row("invert", "bits", 1, np.invert, "n:invert n:bitwise_not"),
        _row("and", "bits", 2, np.bitwise_and, "n:bitwise_and"),
        _row("or", "bits", 2, np.bitwise_or, "n:bitwise_or"),
        _row("xor", "bits", 2, np.bitwise_xor, "n:bitwise_xor"),
        _row("shl", "bits", 2, _shl, "n:left_shift"),
        _row("shr", "bits", 2, _shr, "n:right_shift"),
        _row("not", "bool", 1, np.logical_not, "n:logical_not"),
        _row("lt", "order", 2, np.less, "n:less"),
        _row("le", "order", 2, np.less_equal, "n:less_equal"),
        _row("gt", "order", 2, np.greater, "n:greater"),
        _row("ge", "order", 2, np.greater_equal, "n:greater_equal"),
        _row("eq", "compare", 2, np.equal, "n:equal"),
        _row("ne", "compare", 2, np.not_equal, "n:not_equal"),
        # smaller, greater
        _row("min", "same", 2, np.minimum, "n:minimum", "NaN if either is"),
        _row("max", "same", 2, np.maximum, "n:maximum", "NaN if either is"),
        _row("fmin", "same", 2, np.fmin, "n:fmin r:fmin", "the other operand if one is NaN"),
        _row("fmax", "same", 2, np.fmax, "n:fmax r:fmax", "the other operand if one is NaN"),
        # roots, exponentials, logarithms
        _row("sqrt", "float", 1, np.sqrt, "mnr:sqrt"),
        _row("rsqrt", "real", 1, _rsqrt, "r:rsqrt"),
        _row("cbrt", "real", 1, np.cbrt, "mnr:cbrt"),
        _row("exp", "float", 1, np.exp, "mnr:exp"),
        _row("exp2", "real", 1, np.exp2, "mnr:exp2"),
        _row("expm1", "real", 1, np.expm1, "mnr:expm1"),
        _row("log", "float", 1, np.log, "mnr:log"),
        _row("log2", "real", 1, np.log2, "mnr:log2"),
        _row("log10", "real", 1, np.log10, "mnr:log10"),
        _row("log1p", "real", 1, np.log1p, "mnr:log1p"),
        _row("sigmoid", "real", 1, _sigmoid, "r:sigmoid"),
        # trigonometry
        _row("sin", "float", 1, np.sin, "mnr:sin"),
        _row("cos", "float", 1, np.cos, "mnr:cos"),
        _row("tan", "real", 1, np.tan, "mnr:tan"),
        _row("asin", "real", 1, np.arcsin, "mnr:asin n:arcsin"),
        _row("acos", "real", 1, np.arccos, "mnr:acos n:arccos"),
        _row("atan", "real", 1, np.arctan, "mnr:atan n:arctan"),
        _row("atan2", "real", 2, np.arctan2, "mnr:atan2 n:arctan2"),
        _row("sinh", "real", 1, np.sinh, "mnr:sinh"),
        _row("cosh", "real", 1, np.cosh, "mnr:cosh"),
        _row("tanh", "real", 1, np.tanh, "mnr:tanh"),
        _row("asinh", "real", 1, np.arcsinh, "mnr:asinh n:arcsinh"),
        _row("acosh", "real", 1, np.arccosh, "mnr:acosh n:arccosh"),
        _row("atanh", "real", 1, np.arctanh, "mnr:atanh n:arctanh"),
        _row("hypot", "real", 2, np.hypot, "mnr:hypot"),
        _row("sinpi", "real", 1, _sinpi, "r:sinpi"),
        _row("cospi", "real", 1, _cospi, "r:cospi"),
        _row("degrees", "real", 1, np.degrees, "mnr:degrees n:rad2deg"),
        _row("radians", "real", 1, np.radians, "mnr:radians n:deg2rad"),
        # error and gamma functions
        _row("erf", "real", 1, _math(math.erf), "mr:erf"),
        _row("erfc", "real", 1, _math(math.erfc), "mr:erfc"),
        _row("gamma", "real", 1, _math(math.gamma, _gamma_pole), "mr:gamma r:tgamma"),
        _row("lgamma", "real", 1, _math(math.lgamma, _lgamma_pole), "mr:lgamma"),
        # rounding and parts
        _row("floor", "real", 1, np.floor, "n:floor"),
        _row("ceil", "real", 1, np.ceil, "n:ceil"),
        _row("trunc", "real", 1, np.trunc, "n:trunc n:fix"),
        _row("rint", "real", 1, np.rint, "n:rint n:round r:rint", "half to even"),
        _row("fmod", "real", 2, np.fmod, "mnr:fmod", "sign of the dividend"),
        _row("remainder", "real", 2, _ieee_remainder, "mr:remainder", "IEEE 754 remainder"),
        _row("copysign", "real", 2, np.copysign, "mnr:copysign"),
        _row("nextafter", "real", 2, _nextafter, "mnr:nextafter"),
        _row("ldexp", "scale", 2, _ldexp, "mnr:ldexp"),
        _row("fma", "float", 3, _fma, "mr:fma", "one rounding"),
        _row("isnan", "test", 1, np.isnan, "mnr:isnan"),
        _row("isinf", "test", 1, np.isinf, "mnr:isinf"),
        _row("isfinite", "test", 1, np.isfinite, "mnr:isfinite"),
        _row("signbit", "test", 1, np.signbit, "nr:signbit"),
        # bits
        _row("popc", "count", 1, _popc, "r:popc n:bitwise_count"),
        _row("clz", "count", 1, _clz, "r:clz"),
        _row("ffs", "count", 1, _ffs, "r:ffs", "1 + the lowest set bit's place; 0 for 0"),
        _row("brev", "integer", 1, _brev, "r:brev"),
        _row("mulhi", "integer", 2, _mulhi, "r:mulhi", "the high half of the product"),
        # complex
        _row("complex", "complex", 2, lambda x, y: x + y * np.complex64(1j), ""),
        _row("real", "parts", 1, np.real, "n:real"),
        _row("imag", "parts", 1, np.imag, "n:imag"),
        _row("conj", "arith", 1, np.conjugate, "n:conj n:conjugate"),
        # promises
        _row("uniform", "same", 1, lambda x: x, "", "the same in all threads of the block"),
        # indices
        _row("wrap", "index", 2, _wrap_index, ""),
        _row("within", "index", 2, lambda i, extent: i, ""),
    )
}  # fmt: skip

NOT_COMPLEX = {"floordiv", "mod", "signbit"}  # their rules admit complex, their meanings do not

BY_NAME: dict[str, Row] = {name: row for row in TABLE.values() for name in row.names}


def evaluate(name: str, operands: tuple[Any, ...], dtype: DType) -> Any:
    """The meaning of an operation on NumPy scalars, as a NumPy scalar of `dtype`.

    >>> evaluate("floordiv", (np.int32(-7), np.int32(2)), dtypes.int32)
    np.int32(-4)
    """
    with np.errstate(all="ignore"):
        if name == "complex":
            value: Any = dtype.numpy.type(complex(float(operands[0]), float(operands[1])))
            return value
        result = TABLE[name].meaning(*operands)
    kind = dtype.numpy.type
    return result if type(result) is kind else kind(result)


def convert(value: Any, dtype: DType) -> Any:
    """Convert a number as `Cast` does, to a NumPy scalar: integers wrap, float to integer
    saturates.

    >>> convert(300, dtypes.uint8), convert(-1e9, dtypes.int8), convert(float("nan"), dtypes.int32)
    (np.uint8(44), np.int8(-128), np.int32(0))
    """
    target = dtype.numpy
    if dtype.kind == "bool":
        return np.bool_(bool(value))
    if dtype.is_integer:
        if isinstance(value, (float, np.floating)) or getattr(value, "dtype", None) == "bfloat16":
            x = float(value)
            if x != x:
                return target.type(0)
            low, high = dtype.range
            return target.type(low if x <= low else high if x >= high else int(x))
        return _wrap(int(value), target)
    with np.errstate(all="ignore"):
        if dtype.kind == "float" and isinstance(value, (int, np.integer)):
            return _int_to_float(int(value), dtype)
        return target.type(value)


def _int_to_float(value: int, dtype: DType) -> Any:
    """One rounding, as hardware converts (NumPy goes through double for small floats)."""
    from fractions import Fraction

    if dtype.bits == 16:
        return dtype.numpy.type(_round_fraction(Fraction(value), np.dtype(np.float32)))
    return _round_fraction(Fraction(value), dtype.numpy)


# ---- typing ----


def operand_dtype(row: Row, types: tuple[DType, ...]) -> DType | None:
    """The common dtype at which an operation works, or None if the operands do not suit it.

    >>> operand_dtype(TABLE["add"], (dtypes.int8, dtypes.int8))
    ruda.int32
    >>> operand_dtype(TABLE["sqrt"], (dtypes.int64,))
    ruda.float32
    """
    common = functools.reduce(dtypes.promote, types)
    rule = row.rule
    if common.kind == "complex" and row.name in NOT_COMPLEX:
        return None
    if rule in ("arith", "bits") and common.kind in ("bool", "int", "uint") and common.bits < 32:
        if rule == "bits" and common.kind == "bool":
            return None if row.name in ("shl", "shr") else common
        return dtypes.int32
    if rule == "arith":
        return common
    if rule in ("bits", "count", "integer"):
        return common if common.is_integer else None
    if rule in ("same", "compare"):
        return None if rule == "same" and common.kind == "complex" else common
    if rule == "order":
        return None if common.kind == "complex" else common
    if rule in ("divide", "float", "test"):
        return common if common.is_inexact else float_of(types)
    if rule in ("real", "scale"):
        if common.kind == "complex":
            return None
        return common if common.kind == "float" else float_of(types)
    if rule == "bool":
        return dtypes.bool_
    if rule == "parts":
        return common
    return common


def float_of(types: tuple[DType, ...]) -> DType:
    """What integers become in a float operation: weak if all are Python's own numbers."""
    if all(t is dtypes.weak_int for t in types):
        return dtypes.weak_float
    return dtypes.default_float()


def result_dtype(row: Row, operand: DType) -> DType:
    """The result's dtype, given the dtype at which the operation works."""
    if row.rule in ("compare", "order", "test", "bool"):
        return dtypes.bool_
    if row.rule == "count":
        return dtypes.int32
    if row.rule == "parts":
        return operand.real
    if row.name == "abs" and operand.kind == "complex":
        return operand.real
    return operand
