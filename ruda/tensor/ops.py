"""THE op table of tensors: one row an op. See `opdef` for what a row says.

Everything a user calls on tensors that is not a view, a creation or a library call is made from a
row. To add an op, add a row: functions, methods, kernels and tests follow.

Where NumPy departs from the array API standard, the meaning here is the standard's.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from ruda.tensor import complexes
from ruda.tensor.complexes import also_of_complex
from ruda.tensor.opdef import Row, Scalar, apply, f

OPS: dict[str, Row] = {}


def elementwise(
    name: str,
    parameters: str,
    takes: str,
    rule: str,
    expression: Callable[..., Any],
    numpy: Callable[..., Any],
    doc: str,
    operator: str = "",
) -> None:
    """A row of kind "elementwise"."""
    OPS[name] = Row(
        name, tuple(parameters.split()), takes, rule, expression, numpy, doc, operator=operator,
        gradient=GRADIENTS.get(name),
    )  # fmt: skip


def reduction(
    name: str,
    takes: str,
    rule: str,
    expression: Callable[..., Any],
    numpy: Callable[..., Any],
    identity: Any,
    doc: str,
) -> None:
    """A row of kind "reduce"."""
    OPS[name] = Row(
        name, ("x",), takes, rule, expression, numpy, doc, kind="reduce", identity=identity
    )


# ---- meanings that NumPy does not have, or has otherwise -----------------------------------------


def _floor_divide(x: Any, y: Any) -> Any:
    if x.dtype.kind in "iu":
        return np.where(y == 0, 0, np.floor_divide(x, np.where(y == 0, 1, y)))
    return np.where(np.isinf(x) & np.isfinite(y), x / y, np.floor_divide(x, y))


def _floor_divide_expression(x: Any, y: Any) -> Any:
    if x.is_integer:
        return x // y
    infinite: Any = f.isinf(x) & f.isfinite(y)
    return f.where(infinite, x / y, x // y)


def _remainder(x: Any, y: Any) -> Any:
    if x.dtype.kind in "iu":
        return np.where(y == 0, 0, np.remainder(x, np.where(y == 0, 1, y)))
    return np.remainder(x, y)


def _pow(x: Any, y: Any) -> Any:
    if x.dtype.kind == "i" and np.any(y < 0):  # 1 / x**-y, in integers
        negative = np.where(np.abs(x) == 1, np.where(y % 2 == 0, 1, x), 0)
        return np.where(y < 0, negative, np.power(x, np.where(y < 0, 0, y)))
    return np.power(x, y)


def _shift(function: Callable[..., Any]) -> Callable[..., Any]:
    def meaning(x: Any, y: Any) -> Any:
        bits = x.dtype.itemsize * 8
        inside = (y >= 0) & (y < bits)
        gone = np.zeros_like(x)
        if function is np.right_shift and x.dtype.kind == "i":
            gone = x >> (bits - 1)  # the sign
        return np.where(inside, function(x, np.where(inside, y, 0)), gone)

    return meaning


def _sign(x: Any) -> Any:
    if x.dtype.kind != "c":
        return np.sign(x)
    size = np.abs(x)
    return np.where(size == 0, 0, x / np.where(size == 0, 1, size))


def _sign_expression(x: Any) -> Any:
    if x.dtype.kind == "complex":
        size = abs(x)
        return f.where(size == 0, x * 0, x / f.where(size == 0, 1, size).cast(x.dtype))
    if x.dtype.kind == "uint":
        return f.where(x > 0, 1, x)
    return f.where(x > 0, 1, f.where(x < 0, -1, f.where(x == 0, 0, x)))  # 0 of -0.0; or NaN


def _logaddexp(x: Any, y: Any) -> Any:
    high = f.max(x, y)
    return f.where(f.isinf(high), high, high + f.log1p(f.exp(-abs(x - y))))


def _integer_or(function: Callable[..., Any]) -> Callable[..., Any]:
    """Integers are whole already."""

    def expression(x: Any) -> Any:
        return x if x.is_integer else function(x)

    return expression


def _of_bools(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """The sum of bools is whether one is true, the product whether both are: as in NumPy."""

    def expression(x: Any, y: Any) -> Any:
        return apply(name, x, y) if x.dtype.kind == "bool" else function(x, y)

    return expression


def _never(value: bool) -> Any:
    """Whether an integer is NaN, infinite or finite is known."""

    def of(name: str) -> Callable[..., Any]:
        def expression(x: Any) -> Any:
            if x.is_integer:
                return (x == x) if value else (x != x)
            if x.dtype.kind == "complex":
                real, imaginary = getattr(f, name)(f.real(x)), getattr(f, name)(f.imag(x))
                return real & imaginary if value else real | imaginary
            return getattr(f, name)(x)

        return expression

    return of


def _scalar_math(name: str) -> Callable[..., Any]:
    """A function of Python's `math` that NumPy lacks: element by element, from C."""
    each = np.frompyfunc(getattr(math, name), 1, 1)

    def meaning(x: Any) -> Any:
        return np.asarray(each(x)).astype(x.dtype)

    return meaning


def _clip(x: Any, low: Any, high: Any) -> Any:
    return np.minimum(np.maximum(x, low), high)


# ---- gradients -----------------------------------------------------------------------------------


class _Tensors:
    """The functions on tensors, which are made from this table; on Scalars their expressions, so
    that the gradients below serve kernels too."""

    def __getattr__(self, name: str) -> Callable[..., Any]:
        import ruda.tensor

        def call(*values: Any, **named: Any) -> Any:
            if any(isinstance(v, Scalar) for v in values):
                return OPS[name].expression(*values)
            return getattr(ruda.tensor, name)(*values, **named)

        return call


t: Any = _Tensors()
LN2, LN10, SQRT_PI = math.log(2), math.log(10), math.sqrt(math.pi)


def _c(x: Any) -> Any:
    """The conjugate, for gradients of complex functions."""
    if isinstance(x, complex):
        return x.conjugate()
    return t.conj(x) if getattr(getattr(x, "dtype", None), "kind", "") == "complex" else x


def _pick(g: Any, x: Any, y: Any, first: Any) -> tuple[Any, Any]:
    """The gradient goes to the one that was taken, to both in halves if they are equal."""
    return tuple(
        t.where(won, g, t.where(x == y, g * 0.5, 0.0)) for won in (first, ~(first | (x == y)))
    )


def _power(g: Any, out: Any, x: Any, y: Any) -> tuple[Any, Any]:
    """At 0 ** 0 and at 0 ** y the limits that are finite."""
    if isinstance(y, int | float | complex):
        return (g * _c(y * t.pow(x, y - 1)) if y else g * 0.0), None
    by_y = out * (math.log(x) if isinstance(x, int | float) and x > 0 else 0.0)
    if not isinstance(x, int | float | complex):
        zero = t.equal(x, 0)
        by_y = t.where(zero, 0.0, out * t.log(t.where(zero, 1.0, x)))
        return g * _c(t.where(t.equal(y, 0), 0.0, y * t.pow(x, y - 1))), g * _c(by_y)
    return None, g * _c(by_y)


def _clipped(g: Any, out: Any, x: Any, low: Any, high: Any) -> tuple[Any, ...]:
    below, above = x < low, x > high
    return t.where(below | above, 0.0, g), t.where(below, g, 0.0), t.where(above, g, 0.0)


# (gradient of the result, result, *inputs) -> gradients of the inputs; a row without one is flat.
GRADIENTS: dict[str, Callable[..., tuple[Any, ...]]] = {
    "add": lambda g, out, x, y: (g, g),
    "subtract": lambda g, out, x, y: (g, -g),
    "multiply": lambda g, out, x, y: (g * _c(y), g * _c(x)),
    "divide": lambda g, out, x, y: (g / _c(y), -g * _c(out) / _c(y)),
    "remainder": lambda g, out, x, y: (g, -g * t.floor_divide(x, y)),
    "pow": _power,
    "negative": lambda g, out, x: (-g,),
    "positive": lambda g, out, x: (g,),
    "abs": lambda g, out, x: (g * t.sign(x),),
    "square": lambda g, out, x: (g * 2 * _c(x),),
    "reciprocal": lambda g, out, x: (-g * _c(out) * _c(out),),
    "maximum": lambda g, out, x, y: _pick(g, x, y, t.greater(x, y)),
    "minimum": lambda g, out, x, y: _pick(g, x, y, t.less(x, y)),
    "clip": _clipped,
    "where": lambda g, out, c, x, y: (None, t.where(c, g, 0.0), t.where(c, 0.0, g)),
    "sqrt": lambda g, out, x: (g * 0.5 / _c(out),),
    "cbrt": lambda g, out, x: (g / (3 * out * out),),
    "exp": lambda g, out, x: (g * _c(out),),
    "exp2": lambda g, out, x: (g * out * LN2,),
    "expm1": lambda g, out, x: (g * (_c(out) + 1),),
    "log": lambda g, out, x: (g / _c(x),),
    "log2": lambda g, out, x: (g / (_c(x) * LN2),),
    "log10": lambda g, out, x: (g / (_c(x) * LN10),),
    "log1p": lambda g, out, x: (g / (_c(x) + 1),),
    "logaddexp": lambda g, out, x, y: (g * t.sigmoid(x - y), g * t.sigmoid(y - x)),
    "hypot": lambda g, out, x, y: (g * x / out, g * y / out),
    "sigmoid": lambda g, out, x: (g * out * (1 - out),),
    "sin": lambda g, out, x: (g * t.cos(_c(x)),),
    "cos": lambda g, out, x: (-g * t.sin(_c(x)),),
    "tan": lambda g, out, x: (g * (1 + _c(out) * _c(out)),),
    "asin": lambda g, out, x: (g / t.sqrt(1 - _c(x) * _c(x)),),
    "acos": lambda g, out, x: (-g / t.sqrt(1 - _c(x) * _c(x)),),
    "atan": lambda g, out, x: (g / (1 + _c(x) * _c(x)),),
    "atan2": lambda g, out, y, x: (g * x / (x * x + y * y), -g * y / (x * x + y * y)),
    "sinh": lambda g, out, x: (g * t.cosh(_c(x)),),
    "cosh": lambda g, out, x: (g * t.sinh(_c(x)),),
    "tanh": lambda g, out, x: (g * (1 - _c(out) * _c(out)),),
    "asinh": lambda g, out, x: (g / t.sqrt(_c(x) * _c(x) + 1),),
    "acosh": lambda g, out, x: (g / (t.sqrt(_c(x) - 1) * t.sqrt(_c(x) + 1)),),
    "atanh": lambda g, out, x: (g / (1 - _c(x) * _c(x)),),
    "copysign": lambda g, out, x, y: (t.where(t.equal(out, x), g, -g), None),
    "nextafter": lambda g, out, x, y: (g, None),
    "real": lambda g, out, x: (g,),
    "imag": lambda g, out, x: (g * 1j,),
    "conj": lambda g, out, x: (_c(g),),
    "erf": lambda g, out, x: (g * t.exp(-x * x) * (2 / SQRT_PI),),
    "erfc": lambda g, out, x: (-g * t.exp(-x * x) * (2 / SQRT_PI),),
}

# ---- arithmetic ----------------------------------------------------------------------------------
# fmt: off
elementwise("add",          "x1 x2", "any",     "same",  _of_bools("or", lambda x, y: x + y),  np.add,         "The sum.", "__add__")
elementwise("subtract",     "x1 x2", "numbers", "same",  lambda x, y: x - y,  np.subtract,    "The difference.", "__sub__")
elementwise("multiply",     "x1 x2", "any",     "same",  _of_bools("and", lambda x, y: x * y),  np.multiply,    "The product.", "__mul__")
elementwise("divide",       "x1 x2", "numbers", "float", lambda x, y: x / y,  np.true_divide, "The quotient; of integers in floats.", "__truediv__")
elementwise("floor_divide", "x1 x2", "reals",   "same",  _floor_divide_expression, _floor_divide, "The quotient rounded down; of integers by 0: 0.", "__floordiv__")
elementwise("remainder",    "x1 x2", "reals",   "same",  lambda x, y: x % y,  _remainder,     "What floor division leaves, with the divisor's sign; of integers by 0: 0.", "__mod__")
elementwise("pow",          "x1 x2", "numbers", "same",  lambda x, y: x ** y, _pow,           "x1 to the power of x2.", "__pow__")
elementwise("negative",     "x",     "numbers", "same",  lambda x: -x,        np.negative,    "-x.", "__neg__")
elementwise("positive",     "x",     "numbers", "same",  lambda x: x,         np.positive,    "x itself.", "__pos__")
elementwise("abs",          "x",     "numbers", "parts", abs,                 np.abs,         "The magnitude.", "__abs__")
elementwise("square",       "x",     "numbers", "same",  lambda x: x * x,     np.square,      "x * x.")
elementwise("reciprocal",   "x",     "inexact", "float", lambda x: 1 / x,     lambda x: 1 / x, "1 / x.")
elementwise("sign",         "x",     "numbers", "same",  _sign_expression,    _sign,          "-1, 0 or 1; of complex numbers x / abs(x).")
elementwise("maximum",      "x1 x2", "reals",   "same",  f.max,               np.maximum,     "The greater one; NaN if either is.")
elementwise("minimum",      "x1 x2", "reals",   "same",  f.min,               np.minimum,     "The lesser one; NaN if either is.")
elementwise("clip",         "x min max", "reals", "same", lambda x, a, b: f.min(f.max(x, a), b), _clip, "x held between min and max.")

# ---- comparison and logic ------------------------------------------------------------------------
elementwise("equal",         "x1 x2", "any",   "test", lambda x, y: x == y, np.equal,         "Whether x1 == x2.", "__eq__")
elementwise("not_equal",     "x1 x2", "any",   "test", lambda x, y: x != y, np.not_equal,     "Whether x1 != x2.", "__ne__")
elementwise("less",          "x1 x2", "reals", "test", lambda x, y: x < y,  np.less,          "Whether x1 < x2.", "__lt__")
elementwise("less_equal",    "x1 x2", "reals", "test", lambda x, y: x <= y, np.less_equal,    "Whether x1 <= x2.", "__le__")
elementwise("greater",       "x1 x2", "reals", "test", lambda x, y: x > y,  np.greater,       "Whether x1 > x2.", "__gt__")
elementwise("greater_equal", "x1 x2", "reals", "test", lambda x, y: x >= y, np.greater_equal, "Whether x1 >= x2.", "__ge__")
elementwise("logical_and",   "x1 x2", "any", "logical", lambda x, y: x & y, np.logical_and,   "Whether both are true.")
elementwise("logical_or",    "x1 x2", "any", "logical", lambda x, y: x | y, np.logical_or,    "Whether either is true.")
elementwise("logical_xor",   "x1 x2", "any", "logical", lambda x, y: x ^ y, np.logical_xor,   "Whether just one is true.")
elementwise("logical_not",   "x",     "any", "logical", lambda x: ~x,       np.logical_not,   "Whether x is false.")
elementwise("where",  "condition x1 x2", "any", "condition", f.where,       np.where,         "x1 where the condition holds, else x2.")
elementwise("isnan",    "x", "numbers", "test", _never(False)("isnan"),  np.isnan,    "Whether x is NaN.")
elementwise("isinf",    "x", "numbers", "test", _never(False)("isinf"),  np.isinf,    "Whether x is infinite.")
elementwise("isfinite", "x", "numbers", "test", _never(True)("isfinite"), np.isfinite, "Whether x is neither NaN nor infinite.")
elementwise("signbit",  "x", "reals",   "test", lambda x: x < 0 if x.is_integer else f.signbit(x), lambda x: x < 0 if x.dtype.kind in "iu" else np.signbit(x), "Whether the sign is negative, also of -0.0.")

# ---- bits ----------------------------------------------------------------------------------------
elementwise("bitwise_and",         "x1 x2", "bits", "same", lambda x, y: x & y, np.bitwise_and, "Bits that both have.", "__and__")
elementwise("bitwise_or",          "x1 x2", "bits", "same", lambda x, y: x | y, np.bitwise_or,  "Bits that either has.", "__or__")
elementwise("bitwise_xor",         "x1 x2", "bits", "same", lambda x, y: x ^ y, np.bitwise_xor, "Bits that just one has.", "__xor__")
elementwise("bitwise_invert",      "x",     "bits", "same", lambda x: ~x,       np.invert,      "Every bit the other way.", "__invert__")
elementwise("bitwise_left_shift",  "x1 x2", "integers", "same", lambda x, y: x << y, _shift(np.left_shift),  "x1 * 2**x2; 0 for shifts by the width or more.", "__lshift__")
elementwise("bitwise_right_shift", "x1 x2", "integers", "same", lambda x, y: x >> y, _shift(np.right_shift), "x1 // 2**x2.", "__rshift__")

# ---- roots, exponentials, logarithms -------------------------------------------------------------
elementwise("sqrt",      "x",     "inexact", "float", f.sqrt,    np.sqrt,      "The square root.")
elementwise("cbrt",      "x",     "floats",  "float", f.cbrt,    np.cbrt,      "The cubic root.")
elementwise("exp",       "x",     "inexact", "float", f.exp,     np.exp,       "e**x.")
elementwise("exp2",      "x",     "floats",  "float", f.exp2,    np.exp2,      "2**x.")
elementwise("expm1",     "x",     "inexact", "float", also_of_complex("expm1"),   complexes.by_standard(complexes.expm1, np.expm1),     "e**x - 1, exact for small x.")
elementwise("log",       "x",     "inexact", "float", also_of_complex("log"),     np.log,       "The natural logarithm.")
elementwise("log2",      "x",     "inexact", "float", also_of_complex("log2"),    np.log2,      "The logarithm to base 2.")
elementwise("log10",     "x",     "inexact", "float", also_of_complex("log10"),   np.log10,     "The logarithm to base 10.")
elementwise("log1p",     "x",     "inexact", "float", also_of_complex("log1p"),   complexes.by_standard(complexes.log1p, np.log1p),     "log(1 + x), exact for small x.")
elementwise("logaddexp", "x1 x2", "floats",  "float", _logaddexp, np.logaddexp, "log(e**x1 + e**x2).")
elementwise("hypot",     "x1 x2", "floats",  "float", f.hypot,   np.hypot,     "sqrt(x1**2 + x2**2) without overflow.")
elementwise("sigmoid",   "x",     "floats",  "float", f.sigmoid, lambda x: (1 / (1 + np.exp(-x))).astype(x.dtype), "1 / (1 + e**-x).")

# ---- trigonometry --------------------------------------------------------------------------------
elementwise("sin",   "x",     "inexact", "float", also_of_complex("sin"),   np.sin,     "The sine of an angle in radians.")
elementwise("cos",   "x",     "inexact", "float", also_of_complex("cos"),   np.cos,     "The cosine of an angle in radians.")
elementwise("tan",   "x",     "inexact", "float", also_of_complex("tan"),   np.tan,     "The tangent of an angle in radians.")
elementwise("asin",  "x",     "inexact", "float", also_of_complex("asin"),  np.arcsin,  "The angle whose sine is x.")
elementwise("acos",  "x",     "inexact", "float", also_of_complex("acos"),  np.arccos,  "The angle whose cosine is x.")
elementwise("atan",  "x",     "inexact", "float", also_of_complex("atan"),  np.arctan,  "The angle whose tangent is x.")
elementwise("atan2", "x1 x2", "floats",  "float", f.atan2, np.arctan2, "The angle of the point (x2, x1).")
elementwise("sinh",  "x",     "inexact", "float", also_of_complex("sinh"),  np.sinh,    "The hyperbolic sine.")
elementwise("cosh",  "x",     "inexact", "float", also_of_complex("cosh"),  np.cosh,    "The hyperbolic cosine.")
elementwise("tanh",  "x",     "inexact", "float", also_of_complex("tanh"),  complexes.by_standard(complexes.tanh, np.tanh),    "The hyperbolic tangent.")
elementwise("asinh", "x",     "inexact", "float", also_of_complex("asinh"), np.arcsinh, "The inverse of sinh.")
elementwise("acosh", "x",     "inexact", "float", also_of_complex("acosh"), np.arccosh, "The inverse of cosh.")
elementwise("atanh", "x",     "inexact", "float", also_of_complex("atanh"), np.arctanh, "The inverse of tanh.")

# ---- rounding and parts --------------------------------------------------------------------------
elementwise("floor",     "x",     "reals",   "same",  _integer_or(f.floor), np.floor, "The greatest whole number that is not above x.")
elementwise("ceil",      "x",     "reals",   "same",  _integer_or(f.ceil),  np.ceil,  "The least whole number that is not below x.")
elementwise("trunc",     "x",     "reals",   "same",  _integer_or(f.trunc), np.trunc, "x without its fraction.")
elementwise("round",     "x",     "numbers", "same",  _integer_or(also_of_complex("rint")),  np.round, "The nearest whole number, halves to even.")
elementwise("copysign",  "x1 x2", "floats",  "float", f.copysign,  np.copysign,  "The magnitude of x1 with the sign of x2.")
elementwise("nextafter", "x1 x2", "floats",  "float", f.nextafter, np.nextafter, "The next number from x1 towards x2.")
elementwise("real",      "x",     "numbers", "parts", lambda x: f.real(x) if x.dtype.kind == "complex" else x, np.real, "The real part.")
elementwise("imag",      "x",     "complex", "parts", f.imag, np.imag, "The imaginary part.")
elementwise("conj",      "x",     "numbers", "same",  lambda x: f.conj(x) if x.dtype.kind == "complex" else x, np.conj, "The complex conjugate.")
elementwise("erf",       "x",     "floats",  "float", f.erf,  _scalar_math("erf"),  "The error function.")
elementwise("erfc",      "x",     "floats",  "float", f.erfc, _scalar_math("erfc"), "1 - erf(x), exact for large x.")

# ---- reductions ----------------------------------------------------------------------------------
reduction("sum",  "any",     "accumulate", lambda a, x: a + x, np.add.reduce,         0,     "The sum of the elements.")
reduction("prod", "any",     "accumulate", lambda a, x: a * x, np.multiply.reduce,    1,     "The product of the elements.")
reduction("max",  "reals",   "same",    f.max,              np.maximum.reduce,     None,  "The greatest element; NaN if there is one.")
reduction("min",  "reals",   "same",    f.min,              np.minimum.reduce,     None,  "The least element; NaN if there is one.")
reduction("any",  "any",     "logical", lambda a, x: a | x, np.logical_or.reduce,  False, "Whether any element is true.")
reduction("all",  "any",     "logical", lambda a, x: a & x, np.logical_and.reduce, True,  "Whether every element is true.")
# fmt: on
