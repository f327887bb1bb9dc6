"""What a kernel calls: builtins, conversions, `math`, `numpy` and bit functions, typed."""

from __future__ import annotations

import builtins
import contextlib
import fractions
import math
import operator
import types
from collections.abc import Callable
from typing import Any

import numpy as np

from tests.oracle.arrays import Array, fold
from tests.oracle.scalars import (
    FLOAT32,
    FLOAT64,
    INT64,
    Number,
    convert,
    dtype_of,
    kind,
    lift,
    maximum,
    meet,
    minimum,
    typed,
)


class Cast:
    """`ruda.float32` and its kin: a dtype, and the conversion to it."""

    def __init__(self, dtype: np.dtype[Any]) -> None:
        self.dtype, self.name = dtype, dtype.name

    def __call__(self, value: Any = 0) -> Any:
        return typed(lift(value), self.dtype)


def _casts() -> dict[str, Cast]:
    names = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]
    names += ["float16", "float32", "float64", "complex64", "complex128"]
    casts = {name: Cast(np.dtype(name)) for name in names}
    with contextlib.suppress(ImportError):
        casts["bfloat16"] = Cast(dtype_of("bfloat16"))
    return casts | {"bool_": Cast(np.dtype(bool))}


CASTS = _casts()


def to_int(value: Any = 0) -> Any:
    value = lift(value)
    return typed(value, INT64) if isinstance(value, Number) else builtins.int(value)


def to_float(value: Any = 0.0) -> Any:
    value = lift(value)
    return typed(value, FLOAT32) if isinstance(value, Number) else builtins.float(value)


def to_complex(real: Any = 0.0, imag: Any = 0.0) -> Any:
    real, imag = lift(real), lift(imag)
    if not isinstance(real, Number) and not isinstance(imag, Number):
        return builtins.complex(real, imag)
    dtype = meet(real, imag)
    wide = np.dtype(np.complex128 if dtype == FLOAT64 else np.complex64)
    part = np.dtype(np.float64 if dtype == FLOAT64 else np.float32)
    return Number(wide.type(builtins.complex(convert(real, part), convert(imag, part))), wide)


def power(a: Any, b: Any) -> Any:
    return operator.pow(lift(a), lift(b))


printed: list[str] = []  # the lines of the last launch


def kernel_print(*values: Any, sep: str = " ", end: str = "\n") -> None:
    printed.append(sep.join(str(v) for v in values) + end)


BUILTINS: dict[str, Any] = {
    "min": minimum,
    "max": maximum,
    "int": to_int,
    "float": to_float,
    "complex": to_complex,
    "pow": power,
    "print": kernel_print,
}


def function_of(wide: Callable[..., Any]) -> Callable[..., Any]:
    """A function of floats: computed in double, rounded once to the operands' own type."""

    def compute(*arguments: Any) -> Any:
        arguments = tuple(lift(a) for a in arguments)
        numbers = [a for a in arguments if isinstance(a, Number)]
        if not numbers:
            return np.asarray(wide(*(np.float64(a) for a in arguments))).item()
        dtype = numbers[0].dtype
        for a in arguments:
            if a is not numbers[0]:
                dtype = meet(Number(0, dtype), a)
        dtype = dtype if kind(dtype) in "fc" else FLOAT32
        work = np.complex128 if kind(dtype) == "c" else np.float64
        # First to the operands' common type, as the kernel does, then to the working precision.
        result = wide(*(work(convert(a, dtype)) for a in arguments))
        if isinstance(result, (bool, np.bool_)):
            return bool(result)
        return Number(dtype.type(result), dtype)

    return compute


def _from_math(name: str) -> Callable[..., Any]:
    """A function NumPy lacks, with NaN and infinity where Python raises."""

    def wide(*arguments: Any) -> Any:
        try:
            return getattr(math, name)(*(builtins.float(a) for a in arguments))
        except OverflowError:
            return math.inf
        except ValueError:  # a pole, or no value at all
            if name == "gamma" and arguments[0] == 0:
                return math.copysign(math.inf, arguments[0])
            return math.inf if name == "lgamma" else math.nan

    return wide


NUMPY_FUNCTIONS = """
    sqrt cbrt square exp exp2 expm1 log log2 log10 log1p power hypot fmod
    sin cos tan arcsin arccos arctan arctan2 sinh cosh tanh arcsinh arccosh arctanh
    floor ceil trunc rint copysign nextafter fmin fmax sign isnan isinf isfinite
    signbit
"""
FUNCTIONS: dict[str, Callable[..., Any]] = {
    **{name: function_of(getattr(np, name)) for name in NUMPY_FUNCTIONS.split()},
    **{name: function_of(_from_math(name)) for name in ("erf", "erfc", "gamma", "lgamma")},
}
FUNCTIONS["fabs"] = FUNCTIONS["absolute"] = FUNCTIONS["abs"] = lambda x: abs(
    x if kind(getattr(x, "dtype", FLOAT64)) in "fc" or not isinstance(x, Number) else to_float(x)
)


def unless_whole(function: Callable[..., Any], of_integers: Callable[..., Any]) -> Any:
    """A function that is another one for integers, which are no floats on the way."""

    def compute(*arguments: Any) -> Any:
        values = [lift(a) for a in arguments]
        whole = all(
            kind(v.dtype) in "iub" if isinstance(v, Number) else isinstance(v, int) for v in values
        )
        return (of_integers if whole else function)(*arguments)

    return compute


FUNCTIONS["fmin"] = unless_whole(FUNCTIONS["fmin"], minimum)
FUNCTIONS["fmax"] = unless_whole(FUNCTIONS["fmax"], maximum)
MATH_NAMES = {
    "asin": "arcsin",
    "acos": "arccos",
    "atan": "arctan",
    "atan2": "arctan2",
    "asinh": "arcsinh",
    "acosh": "arccosh",
    "atanh": "arctanh",
    "pow": "power",
}
typed_math = types.SimpleNamespace(
    **FUNCTIONS,
    **{name: FUNCTIONS[numpy_name] for name, numpy_name in MATH_NAMES.items()},
    **{name: getattr(math, name) for name in ("pi", "e", "tau", "inf", "nan")},
    remainder=function_of(_from_math("remainder")),  # of NumPy's name another function
    radians=lambda x: x * (math.pi / 180),
    degrees=lambda x: x * (180 / math.pi),
)


def dot(a: Array, b: Array) -> Any:
    return fold(operator.add, [x * y for x, y in zip(a, b, strict=True)])


typed_numpy = types.SimpleNamespace(
    **FUNCTIONS,
    **CASTS,
    **{name: getattr(np, name) for name in ("pi", "e", "inf", "nan")},
    minimum=minimum,
    maximum=maximum,
    dot=dot,
    sum=lambda a: a.sum(),
)


def fma(a: Any, b: Any, c: Any) -> Any:
    """a * b + c rounded once, through exact fractions."""
    dtype = (a * b + c).dtype
    x, y, z = (convert(v, dtype) for v in (a, b, c))
    if np.isfinite(x) and np.isfinite(y) and np.isinf(z):
        return Number(z, dtype)  # also where the rounded product is the other infinity
    if not all(np.isfinite(v) for v in (x, y, z)):
        return Number(dtype.type(dtype.type(x * y) + z), dtype)
    x, y, z = (fractions.Fraction(builtins.float(v)) for v in (x, y, z))
    exact = x * y + z
    if not exact:  # the sign of zero is that of the sum of two roundings
        return a * b + c
    return Number(nearest(exact, dtype), dtype)


def nearest(exact: fractions.Fraction, dtype: np.dtype[Any]) -> Any:
    """The value of a float dtype that is nearest to a fraction, ties to even."""
    try:
        guess = dtype.type(builtins.float(exact))
    except OverflowError:
        return dtype.type(math.inf if exact > 0 else -math.inf)
    if not np.isfinite(guess):
        return guess
    around = [
        guess,
        np.nextafter(guess, dtype.type(-np.inf)),
        np.nextafter(guess, dtype.type(np.inf)),
    ]
    finite = [v for v in around if np.isfinite(v)]
    integer = {2: np.uint16, 4: np.uint32, 8: np.uint64}[dtype.itemsize]

    def distance(value: Any) -> tuple[fractions.Fraction, int]:
        error = abs(fractions.Fraction(builtins.float(value)) - exact)
        return error, int(np.asarray(value).view(integer)) & 1

    return min(finite, key=distance)


def select(condition: Any, a: Any, b: Any) -> Any:
    dtype = meet(a, b) if isinstance(a, Number) or isinstance(b, Number) else None
    chosen = a if condition else b
    return chosen if dtype is None else typed(chosen, dtype)


def bits_of(value: Any) -> tuple[int, int]:
    """The bits of an integer, and how many: 64 for 64-bit types, else 32."""
    wide = isinstance(value, Number) and value.dtype.itemsize == 8
    width = 64 if wide else 32
    return operator.index(value) & ((1 << width) - 1), width


def popc(value: Any) -> int:
    return bits_of(value)[0].bit_count()


def clz(value: Any) -> int:
    bits, width = bits_of(value)
    return width - bits.bit_length()


def ffs(value: Any) -> int:
    bits, _ = bits_of(value)
    return (bits & -bits).bit_length()


def brev(value: Any) -> Any:
    bits, width = bits_of(value)
    turned = builtins.int(format(bits, f"0{width}b")[::-1], 2)
    return typed(turned, value.dtype if isinstance(value, Number) else INT64)


def mulhi(a: Any, b: Any) -> Any:
    """The upper half of a product."""
    dtype = meet(a, b)
    product = operator.index(typed(a, dtype)) * operator.index(typed(b, dtype))
    return typed(product >> (8 * dtype.itemsize), dtype)
