"""Functions of Python's library in kernels that are not one row of `intrinsics`.

Most are written here in the kernel language itself and inlined like a user's device function; the
complex functions follow W. Kahan, Branch cuts for complex elementary functions (1987). For finite
arguments; an infinity or NaN among them gives what the formula gives, often NaN.
"""

# mypy: allow-untyped-defs, allow-untyped-calls
from __future__ import annotations

import cmath
import math
import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from ruda import dtypes
from ruda.jit import ir
from ruda.jit.calls.call import BUILTINS, Call, builtin
from ruda.jit.calls.objects import binary
from ruda.jit.calls.python import make_complex
from ruda.jit.values import TupleValue, Value

# ---- operators as functions ------------------------------------------------------------------

BINARY = {
    "add": "add iadd", "sub": "sub isub", "mul": "mul imul", "truediv": "truediv itruediv",
    "floordiv": "floordiv ifloordiv", "mod": "mod imod", "pow": "pow ipow",
    "shl": "lshift ilshift", "shr": "rshift irshift",
    "and": "and_ iand", "or": "or_ ior", "xor": "xor ixor",
    "lt": "lt", "le": "le", "gt": "gt", "ge": "ge", "eq": "eq", "ne": "ne",
}  # fmt: skip
UNARY = {"neg": "neg", "invert": "invert inv"}


def _binary(row: str) -> Callable[[Call], Value]:
    def handler(c: Call) -> Value:
        a, b = c.bind("a", "b")
        assert a is not None and b is not None
        found = binary(c.t, row, a, b, c.place)
        if found is not None:
            return found
        return c.t.operation(row, (c.t.number(a, c.place), c.t.number(b, c.place)), c.place)

    return handler


def _unary(row: str) -> Callable[[Call], Value]:
    return lambda c: c.t.operation(row, c.numbers("a"), c.place)


def _logical(row: str) -> Callable[[Call], Value]:
    def handler(c: Call) -> Value:
        a, b = (c.t.truth(x, c.place) for x in c.numbers("x1", "x2"))
        return c.t.operation(row, (a, b), c.place)

    return handler


for _table, _make in ((BINARY, _binary), (UNARY, _unary)):
    for _row, _names in _table.items():
        for _name in _names.split():
            BUILTINS[getattr(operator, _name)] = _make(_row)
for _name in ("and", "or", "xor"):
    BUILTINS[getattr(np, f"logical_{_name}")] = _logical(_name)


@builtin(operator.pos)
def _pos(c: Call) -> Value:
    (x,) = c.numbers("a")
    return x  # type: ignore[no-any-return]


@builtin(operator.not_)
def _not(c: Call) -> Value:
    (x,) = c.numbers("a")
    return c.t.operation("not", (c.t.truth(x, c.place),), c.place)


# ---- parts of a float ------------------------------------------------------------------------


@builtin(math.floor, math.ceil, math.trunc)
def _to_integer(c: Call) -> Value:
    """An integer, as in Python; `np.floor` and its like stay floats."""
    (x,) = c.numbers("x")
    if x.dtype.is_integer or x.dtype.kind == "bool":
        return x  # type: ignore[no-any-return]
    rounded = c.t.operation(c.name, (c.t.strong(x),), c.place)
    return c.t.cast(rounded, dtypes.index, c.place)


def frexp32(x):
    sign = x.view(np.uint32) & np.uint32(0x80000000)
    size = x.view(np.uint32) ^ sign
    exponent = np.int32(size >> 23)
    if size == 0 or exponent == 255:
        return x, np.int32(0)
    shift = 126
    if exponent == 0:  # subnormal, which an adapter may count as zero: 2**126 times it, by its bits
        normal = (size | np.uint32(127 << 23)).view(np.float32) - np.float32(1)
        size = normal.view(np.uint32)
        exponent = np.int32(size >> 23)
        shift = 252
    fraction = (size & np.uint32(0x7FFFFF)) | np.uint32(126 << 23) | sign
    return fraction.view(np.float32), exponent - np.int32(shift)


def frexp64(x):
    shift = 0
    if abs(x) < np.float64(2.0**-1022):
        x = x * np.float64(2.0**54)
        shift = 54
    bits = x.view(np.uint64)
    exponent = np.int32((bits >> 52) & 2047)
    if x == 0 or exponent == 2047:
        return x, np.int32(0)
    fraction = (bits & np.uint64(0x800FFFFFFFFFFFFF)) | np.uint64(1022 << 52)
    return fraction.view(np.float64), exponent - np.int32(1022 + shift)


def modf(x):
    whole = np.trunc(x)
    part = 0.0 if math.isinf(x) else x - whole  # infinity has no fraction
    if whole == 0:  # what is subnormal stays, also where sums make zeros of it
        part = x
    return math.copysign(part, x), whole


def _float(c: Call) -> Any:
    """The argument as a float with a committed dtype."""
    (x,) = c.numbers("x")
    if x.dtype.kind != "float":
        x = c.t.coerce(x, dtypes.default_float())
    return c.t.strong(x)


@builtin(math.frexp, np.frexp)
def _frexp(c: Call) -> Value:
    x = _float(c)
    wide = x.dtype is dtypes.float64
    y = x if wide else c.t.cast(x, dtypes.float32, c.place)
    pair = c.t.inline(frexp64 if wide else frexp32, [y], {}, c.place)  # type: ignore[arg-type]
    assert isinstance(pair, TupleValue)
    fraction, exponent = pair.items
    return TupleValue((c.t.cast(c.t.number(fraction, c.place), x.dtype, c.place), exponent))


@builtin(math.modf, np.modf)
def _modf(c: Call) -> Value:
    return c.t.inline(modf, [_float(c)], {}, c.place)  # type: ignore[arg-type]


# ---- complex numbers -------------------------------------------------------------------------


def phase(z):
    return math.atan2(z.imag, z.real)


def polar(z):
    return abs(z), math.atan2(z.imag, z.real)


def sinh(z):
    return complex(math.sinh(z.real) * math.cos(z.imag), math.cosh(z.real) * math.sin(z.imag))


def cosh(z):
    return complex(math.cosh(z.real) * math.cos(z.imag), math.sinh(z.real) * math.sin(z.imag))


def tanh(z):
    x, y = z.real, z.imag
    if abs(x) > 20:  # cosh(x) would overflow; tanh differs from 1 by less than float64 sees
        decay = 4 * math.sin(y) * math.cos(y) * math.exp(-2 * abs(x))
        return complex(math.copysign(1.0, x), decay)
    t, s, c = math.tan(y), math.sinh(x), math.cosh(x)
    scale = 1 / (1 + (s * t / c) * (s * t / c))
    return complex((s / c) * (1 + t * t) * scale, t * scale / (c * c))


def tan(z):
    w = tanh(complex(-z.imag, z.real))
    return complex(w.imag, -w.real)


def asinh(z):
    a = np.sqrt(complex(1 + z.imag, -z.real))
    b = np.sqrt(complex(1 - z.imag, z.real))
    return complex(
        math.asinh(a.real * b.imag - b.real * a.imag),
        math.atan2(z.imag, a.real * b.real - a.imag * b.imag),
    )


def asin(z):
    w = asinh(complex(-z.imag, z.real))
    return complex(w.imag, -w.real)


def acos(z):
    a = np.sqrt(complex(1 - z.real, -z.imag))
    b = np.sqrt(complex(1 + z.real, z.imag))
    return complex(2 * math.atan2(a.real, b.real), math.asinh(b.real * a.imag - b.imag * a.real))


def acosh(z):
    a = np.sqrt(complex(z.real - 1, z.imag))
    b = np.sqrt(complex(z.real + 1, z.imag))
    return complex(math.asinh(a.real * b.real + a.imag * b.imag), 2 * math.atan2(a.imag, b.real))


def atanh(z):
    x, y = z.real, z.imag
    return complex(
        math.log1p(4 * x / ((1 - x) * (1 - x) + y * y)) / 4,
        -math.atan2(-2 * y, (1 - x) * (1 + x) - y * y) / 2,
    )


def atan(z):
    w = atanh(complex(-z.imag, z.real))
    return complex(w.imag, -w.real)


def log10(z):
    return np.log(z) / math.log(10.0)


for _helper in (tanh, asinh, atanh):
    _helper.py_func = _helper  # type: ignore[attr-defined]  # called by others: device functions


def _complex(c: Call, value: Any) -> Any:
    """A number as complex; a real one gets an imaginary part of 0."""
    x = c.t.strong(c.t.number(value, c.place))
    if x.dtype.kind not in ("float", "complex"):
        x = c.t.coerce(x, dtypes.default_float())
    return c.t.temporary(make_complex(c, x, None, None))


def _complex_row(row: str) -> Callable[[Call], Value]:
    return lambda c: c.t.operation(row, tuple(_complex(c, x) for x in c.bind("z")), c.place)


def _complex_source(function: Any) -> Callable[[Call], Value]:
    return lambda c: c.t.inline(function, [_complex(c, x) for x in c.bind("z")], {}, c.place)


for _name in ("sqrt", "exp", "sin", "cos", "isnan", "isinf", "isfinite"):
    BUILTINS[getattr(cmath, _name)] = _complex_row(_name)
for _function in (
    *(phase, polar, log10),
    *(sinh, cosh, tanh, tan, asin, acos, atan, asinh, acosh, atanh),
):
    BUILTINS[getattr(cmath, _function.__name__)] = _complex_source(_function)


@builtin(cmath.log)
def _log(c: Call) -> Value:
    z, base = c.bind("z", "base", optional=1)
    result = c.t.operation("log", (_complex(c, z),), c.place)
    if base is None:
        return result
    # a literal stays weak, so that its logarithm has the precision of z
    literal = isinstance(base, ir.Const) and base.value > 0
    below = c.t.operation("log", (base if literal else _complex(c, base),), c.place)  # type: ignore[arg-type]
    return c.t.operation("truediv", (result, below), c.place)


@builtin(cmath.rect)
def _rect(c: Call) -> Value:
    r, phi = (c.t.temporary(c.t.strong(x)) for x in c.numbers("r", "phi"))
    parts = [c.t.operation(f, (phi,), c.place) for f in ("cos", "sin")]
    x, y = (c.t.operation("mul", (r, part), c.place) for part in parts)
    return make_complex(c, x, y, None)
