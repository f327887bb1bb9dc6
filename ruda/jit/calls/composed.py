"""Functions of math and NumPy that take several operations, and those that kernels refuse.

Written in the kernel language where there is more than one line, and inlined like a user's device
function. Like all operations of kernels they are total: where Python raises, the result is 0 or
wraps around. Arguments that are all literals are computed by Python itself.
"""

# mypy: allow-untyped-defs, allow-untyped-calls
from __future__ import annotations

import ast
import functools
import importlib
import inspect
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from ruda import dtypes
from ruda.errors import KernelTypeError, KernelValueError, UnsupportedError
from ruda.jit import intrinsics, ir
from ruda.jit.calls.call import BUILTINS, Call, builtin
from ruda.jit.calls.subscripts import unpack
from ruda.jit.values import ArrayRef, PyObject, TupleValue, Value, describe


def written(c: Call) -> str:
    """The function as the user wrote it: `np.gcd`."""
    return ast.unparse(c.node.func)


# ---- whole numbers ---------------------------------------------------------------------------


def gcd(a, b):
    a = abs(a)
    b = abs(b)
    while b != 0:
        a, b = b, a % b
    return abs(a)


def lcm(a, b):
    return abs(a // gcd(a, b) * b)


def isqrt(n):
    if n <= 0:
        return 0
    root = int(math.sqrt(np.float32(n)))
    root = root + (root >> 16) + 1  # not below the root, however that was rounded
    while True:
        better = (root + n // root) >> 1
        if better >= root:
            return root
        root = better


def factorial(n):
    result = n - n + 1
    for k in range(2, n + 1):
        result = result * k
    return result


def perm(n, k):
    result = n - n + 1
    if k < 0 or k > n:
        return result - 1
    for i in range(k):
        result = result * (n - i)
    return result


def comb(n, k):
    result = n - n + 1
    if k < 0 or k > n:
        return result - 1
    for i in range(min(k, n - k)):
        shared = gcd(result, i + 1)  # divided out first: no product is greater than the result
        result = result // shared * ((n - i) // ((i + 1) // shared))
    return result


for _helper in (gcd,):
    _helper.py_func = _helper  # type: ignore[attr-defined]  # called by others: a device function


def whole(c: Call, values: list[Any], function: Any, source: Any) -> Value:
    """A function of integers: by Python for literals, else by its source."""
    numbers = [c.t.number(v, c.place, "integers") for v in values]
    for x in numbers:
        if x.dtype.kind not in ("bool", "int", "uint"):
            raise KernelTypeError(
                f"`{written(c)}` takes integers, not {describe(x)}", c.place, hint="use `int(...)`"
            )
    if all(isinstance(x, ir.Const) and x.dtype is dtypes.weak_int for x in numbers):
        try:
            result = function(*(x.value for x in numbers))  # type: ignore[union-attr]
        except ValueError as error:
            raise KernelValueError(f"`{written(c)}`: {error}", c.place) from None
        return ir.Const(result, dtypes.weak_int, place=c.place)
    return c.t.inline(source, numbers, {}, c.place)


def _of_whole(names: str, function: Any, source: Any) -> Callable[[Call], Value]:
    return lambda c: whole(c, c.bind(*names.split()), function, source)


BUILTINS[math.isqrt] = _of_whole("n", math.isqrt, isqrt)
BUILTINS[math.factorial] = _of_whole("n", math.factorial, factorial)
BUILTINS[math.comb] = _of_whole("n k", math.comb, comb)
BUILTINS[np.gcd] = _of_whole("x1 x2", math.gcd, gcd)
BUILTINS[np.lcm] = _of_whole("x1 x2", math.lcm, lcm)


@builtin(math.perm)
def _perm(c: Call) -> Value:
    n, k = c.bind("n", "k", optional=1)
    return whole(c, [n, n if k is None else k], math.perm, perm)


def _folded(c: Call, function: Any, source: Any, empty: int) -> Value:
    if c.keywords:
        raise KernelTypeError(f"`{written(c)}` takes no keyword arguments", c.place)
    result: Value = ir.Const(empty, dtypes.weak_int, place=c.place)
    for k, value in enumerate(c.arguments):
        pair = [value, value] if k == 0 else [result, value]  # of one number: its magnitude
        result = whole(c, pair, function, source)
    return result


@builtin(math.gcd)
def _gcd(c: Call) -> Value:
    return _folded(c, math.gcd, gcd, 0)


@builtin(math.lcm)
def _lcm(c: Call) -> Value:
    return _folded(c, math.lcm, lcm, 1)


# ---- floats ----------------------------------------------------------------------------------


def isclose(a, b, rel_tol=1e-09, abs_tol=0.0):
    if a == b:
        return True
    if math.isinf(a) or math.isinf(b):
        return False
    return abs(b - a) <= max(abs(rel_tol * a), abs(rel_tol * b), abs_tol)


def numpy_isclose(a, b, rtol=1e-05, atol=1e-08, equal_nan=False):
    if a == b:
        return True
    if math.isnan(a) and math.isnan(b):
        return equal_nan
    return math.isfinite(b) and abs(a - b) <= atol + rtol * abs(b)


def heaviside(x, middle):
    if x == 0:
        return middle
    return x if math.isnan(x) else (0.0 if x < 0 else 1.0)


def logaddexp2(x, y):
    high = np.maximum(x, y)
    if math.isinf(high):
        return high
    return high + math.log1p(np.exp2(-abs(x - y))) / math.log(2.0)


def floats(c: Call, values: list[Any]) -> list[Any]:
    """Numbers at their common float dtype; integers alone become the default float."""
    numbers = [c.t.number(v, c.place, "numbers") for v in values]
    types = tuple(x.dtype for x in numbers)
    common = functools.reduce(dtypes.promote, types)
    if common.kind == "complex":
        raise KernelTypeError(f"`{written(c)}` takes real numbers, not {common}", c.place)
    if common.kind != "float":
        common = intrinsics.float_of(types)
    return [c.t.coerce(x, common) for x in numbers]


def _of_floats(names: str, source: Any) -> Callable[[Call], Value]:
    return lambda c: c.t.inline(source, floats(c, c.bind(*names.split())), {}, c.place)


BUILTINS[np.heaviside] = _of_floats("x1 x2", heaviside)
BUILTINS[np.logaddexp2] = _of_floats("x1 x2", logaddexp2)


def _of_two_near(source: Any) -> Callable[[Call], Value]:
    names = tuple(inspect.signature(source).parameters)

    def handler(c: Call) -> Value:
        a, b, *given = c.bind(*names, optional=len(names) - 2)
        options = {n: v for n, v in zip(names[2:], given, strict=True) if v is not None}
        numbers = [c.t.number(v, c.place, "numbers") for v in (a, b)]  # type: ignore[arg-type]
        if not any(x.dtype.is_inexact for x in numbers):
            raise KernelTypeError(
                f"`{written(c)}` takes floats, not {describe(numbers[0])} and "
                f"{describe(numbers[1])}", c.place, hint="compare integers with `==`",
            )  # fmt: skip
        return c.t.inline(source, floats(c, numbers), options, c.place)

    return handler


BUILTINS[math.isclose] = _of_two_near(isclose)
BUILTINS[np.isclose] = _of_two_near(numpy_isclose)


@builtin(math.pow, np.float_power)
def _float_power(c: Call) -> Value:
    """A float, also of integers: `math.pow(2, -1)` is 0.5."""
    x, y = c.numbers("x", "y")
    whole_power = c.name == "pow" and isinstance(y, ir.Const) and y.dtype is dtypes.weak_int
    if whole_power and x.dtype.kind == "float":
        return c.t.operation("pow", (x, y), c.place)  # which may multiply
    return c.t.operation("pow", tuple(floats(c, [x, y])), c.place)


@builtin(math.fabs, np.fabs)
def _fabs(c: Call) -> Value:
    (x,) = c.numbers("x")
    return c.t.operation("abs", floats(c, [x]), c.place)


def magnitude(c: Call, parts: list[Any]) -> Value:
    """The root of the sum of squares, without overflow on the way."""
    if not parts:
        return ir.Const(0.0, dtypes.weak_float, place=c.place)
    first, *others = floats(c, parts)
    if not others:
        return c.t.operation("abs", (first,), c.place)
    for part in others:
        first = c.t.operation("hypot", (first, part), c.place)
    return first  # type: ignore[no-any-return]


@builtin(math.hypot)
def _hypot(c: Call) -> Value:
    if c.keywords:
        raise KernelTypeError(f"`{written(c)}` takes no keyword arguments", c.place)
    return magnitude(c, c.arguments)


@builtin(math.dist)
def _dist(c: Call) -> Value:
    p, q = (items(c, v) for v in c.bind("p", "q"))
    return magnitude(c, [c.t.operation("sub", pair, c.place) for pair in pairs(c, p, q)])


# ---- tuples ----------------------------------------------------------------------------------


def items(c: Call, value: Any) -> list[Any]:
    """The numbers of a tuple, or of an array of known length."""
    if isinstance(value, ArrayRef) and value.ndim == 1 and value.static_shape:
        value = unpack(c.t, value, c.place)
    if not isinstance(value, TupleValue):
        raise KernelTypeError(
            f"`{written(c)}` takes tuples, not {describe(value)}", c.place, hint="write the loop"
        )
    return [c.t.temporary(c.t.number(v, c.place, "numbers")) for v in value.items]


def pairs(c: Call, p: list[Any], q: list[Any]) -> list[tuple[Any, Any]]:
    if len(p) != len(q):
        raise KernelValueError(
            f"`{written(c)}` takes two of one length, not of {len(p)} and {len(q)}", c.place
        )
    return list(zip(p, q, strict=True))


def _fold(row: str, method: str, empty: int) -> Callable[[Call], Value]:
    def handler(c: Call) -> Value:
        value, start = c.bind("iterable", "start", optional=1)
        first = ir.Const(empty, dtypes.weak_int, place=c.place) if start is None else start
        total = c.t.number(first, c.place)
        if isinstance(value, ArrayRef):
            from ruda.jit import arrays

            found = c.t.number(arrays.reduce_array(c, value, method), c.place)
            return c.t.operation(row, (total, found), c.place)
        for item in items(c, value):
            total = c.t.operation(row, (total, item), c.place)
        return total

    return handler


BUILTINS[sum] = _fold("add", "sum", 0)
BUILTINS[math.prod] = _fold("mul", "prod", 1)


def _sumprod(c: Call) -> Value:
    p, q = (items(c, v) for v in c.bind("p", "q"))
    total: ir.Expr = ir.Const(0, dtypes.weak_int, place=c.place)
    for pair in pairs(c, p, q):
        total = c.t.operation("add", (total, c.t.operation("mul", pair, c.place)), c.place)
    return total


if hasattr(math, "sumprod"):  # from Python 3.12 on
    BUILTINS[math.sumprod] = _sumprod

# ---- NumPy's names of what is there under another ----------------------------------------------

BUILTINS[np.divmod] = BUILTINS[divmod]


@builtin(np.positive)
def _positive(c: Call) -> Value:
    return c.numbers("x")[0]  # type: ignore[no-any-return]


@builtin(np.round)
def _round(c: Call) -> Value:
    """A float, and integers as they are; Python's `round` gives an integer."""
    x, decimals = c.bind("a", "decimals", optional=1)
    number = c.t.number(x, c.place)  # type: ignore[arg-type]
    if number.dtype.kind in ("bool", "int", "uint"):
        return number
    if decimals is None or (isinstance(decimals, ir.Const) and decimals.value == 0):
        return c.t.operation("rint", (number,), c.place)
    return BUILTINS[round](Call(c.t, c.node, c.name, [number, decimals], {}, c.place))


@builtin(np.clip)
def _clip(c: Call) -> Value:
    names = {"a_min": "min", "a_max": "max"}
    given = {names.get(k, k): v for k, v in c.keywords.items()}
    a, low, high = Call(c.t, c.node, c.name, c.arguments, given, c.place).bind(
        "a", "min", "max", optional=2
    )
    result = c.t.number(a, c.place)  # type: ignore[arg-type]
    for row, bound in (("max", low), ("min", high)):
        if bound is not None and bound != PyObject(None):
            result = c.t.operation(row, (result, c.t.number(bound, c.place)), c.place)
    return result


def _of_tensors(name: str) -> Callable[[Call], Value]:
    """The row of the op table: `ruda.sign`, which kernels may call too."""
    return lambda c: getattr(importlib.import_module("ruda.tensor"), name).__ruda_op__(c)


for _name in ("logaddexp", "sign", "square"):
    BUILTINS[getattr(np, _name)] = _of_tensors(_name)


@builtin(np.where)
def _where(c: Call) -> Value:
    if len(c.arguments) == 1:
        raise UnsupportedError(
            f"`{written(c)}` of a condition alone finds indices, of a number known at run time",
            c.place,
            hint="write `if`, and count with ruda.atomic.add",
        )
    condition, x, y = c.bind("condition", "x", "y")
    chosen = [c.t.truth(condition, c.place), x, y]  # type: ignore[arg-type]
    return _of_tensors("where")(Call(c.t, c.node, c.name, chosen, {}, c.place))  # type: ignore[arg-type]


@builtin(np.reciprocal)
def _reciprocal(c: Call) -> Value:
    (x,) = c.numbers("x")
    if not x.dtype.is_inexact:
        raise KernelTypeError(
            f"`{written(c)}` takes floats, not {describe(x)}", c.place,
            hint="write `1 / x`, or `1 // x` for an integer",
        )  # fmt: skip
    return c.t.operation("truediv", (ir.Const(1, dtypes.weak_int), x), c.place)


# What a function that kernels refuse is replaced by.
_LOOP = "write the loop over the rows, or np.dot of two one-dimensional views"
INSTEAD: dict[Any, str] = {
    np.matmul: _LOOP,
    np.isnat: "pass dates as integers: `dates.view(np.int64)`; NaT is the least int64",
    np.spacing: "write `np.nextafter(x, np.inf) - x`",
    math.ulp: "write `math.nextafter(x, math.inf) - x` of `abs(x)`",
    math.fsum: "write `sum(...)` of a tuple, or the loop; in float64 if it must be exact",
}
for _name in ("matvec", "vecmat", "vecdot"):
    if hasattr(np, _name):
        INSTEAD[getattr(np, _name)] = _LOOP
