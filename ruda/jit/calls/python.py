"""Python's builtins, conversions, and the scalar functions of math and NumPy."""

from __future__ import annotations

import ast
import importlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ruda import dtypes
from ruda.dtypes import DType
from ruda.errors import (
    KernelTypeError,
    KernelValueError,
    Place,
    UnsupportedError,
)
from ruda.jit import intrinsics, ir
from ruda.jit.calls.call import BUILTINS, Call, Handler, builtin, no_keywords
from ruda.jit.frontend import EXPR, FALSE, INDEX, ONE, TRUE, ZERO, Translator
from ruda.jit.values import (
    ArrayRef,
    Method,
    PyObject,
    RangeValue,
    TupleValue,
    Value,
    describe,
)


def conversion(c: Call, dtype: DType) -> Value:
    """`float32(x)`; of a tuple or nothing, refused."""
    (x,) = c.numbers("x")
    return c.t.cast(x, dtype, c.place)


def builtin_handler(target: Any) -> Handler | None:
    try:
        return BUILTINS.get(target)
    except TypeError:  # unhashable
        return None


@builtin(int)
def _int(c: Call) -> Value:
    (x,) = c.numbers("x")
    if isinstance(x, ir.Const):
        if x.dtype.kind == "float" and (x.value != x.value or abs(x.value) == float("inf")):
            return ir.Const(
                int(intrinsics.convert(x.value, dtypes.int64)), dtypes.weak_int, place=c.place
            )
        return ir.Const(int(x.value), dtypes.weak_int, place=c.place)
    assert isinstance(x, EXPR)
    if x.dtype.is_integer:
        return x
    if x.dtype.weak and c.t.is_host(x):
        return c.t.coerce(x, INDEX)
    return c.t.cast(c.t.strong(x), INDEX, c.place)


@builtin(float)
def _float(c: Call) -> Value:
    (v,) = c.bind("x")
    if isinstance(v, PyObject) and isinstance(v.value, str):
        return ir.Const(float(v.value), dtypes.weak_float, place=c.place)
    x = c.t.number(v, c.place)  # type: ignore[arg-type]
    if x.dtype.kind == "float":
        return x
    if isinstance(x, ir.Const) and x.dtype.weak:
        return ir.Const(float(x.value), dtypes.weak_float, place=c.place)
    if c.t.is_host(x):
        return ir.Cast(x, dtypes.weak_float, place=c.place)
    return c.t.cast(x, dtypes.default_float(), c.place)


@builtin(bool)
def _bool(c: Call) -> Value:
    (v,) = c.bind("x")
    assert v is not None
    return c.t.truth(v, c.place)


@builtin(complex)
def _complex(c: Call) -> Value:
    x, y = c.numbers("real", "imag", optional=1)
    return make_complex(c, x, y, None)


def make_complex(c: Call, x: ir.Expr, y: ir.Expr | None, dtype: DType | None) -> ir.Expr:
    if isinstance(x, ir.Const) and (y is None or isinstance(y, ir.Const)) and x.dtype.weak:
        value = complex(x.value, y.value) if y is not None else complex(x.value)
        return ir.Const(value, dtypes.weak_complex, place=c.place)
    part = dtypes.promote(x.dtype, y.dtype) if y is not None else x.dtype
    if dtype is None:
        if x.dtype.kind == "complex":
            return x
        dtype = dtypes.complex128 if part is dtypes.float64 else dtypes.complex64
    if y is None:
        return c.t.cast(x, dtype, c.place)
    real = c.t.cast(x, dtype.real, c.place)
    return ir.Op("complex", (real, c.t.cast(y, dtype.real, c.place)), dtype, place=c.place)


@builtin(abs)
def _abs(c: Call) -> Value:
    (x,) = c.numbers("x")
    return c.t.operation("abs", (x,), c.place)


@builtin(min, max)
def _minmax(c: Call) -> Value:
    return extremum(c, c.name)


def extremum(c: Call, name: str) -> Value:
    no_keywords(c)
    items = c.arguments
    if len(items) == 1 and isinstance(items[0], TupleValue):
        items = list(items[0].items)
    elif len(items) == 1 and isinstance(items[0], ArrayRef):
        from ruda.jit import arrays

        return arrays.reduce_array(c, items[0], name)
    if not items:
        raise KernelTypeError(f"`{name}` needs an argument", c.place)
    result = c.t.number(items[0], c.place, "numbers")
    for item in items[1:]:
        result = c.t.operation(name, (result, c.t.number(item, c.place, "numbers")), c.place)
    return result


NUMPY_METHODS = {
    np.sum: "sum", np.prod: "prod", np.min: "min", np.max: "max", np.mean: "mean", np.any: "any",
    np.all: "all", np.argmin: "argmin", np.argmax: "argmax", np.dot: "dot",
}  # fmt: skip


@builtin(*NUMPY_METHODS)
def _numpy_method(c: Call) -> Value:
    """`np.sum(view)` is `view.sum()`."""
    from ruda.jit import arrays

    array = c.arguments[0] if c.arguments else None
    if not isinstance(array, ArrayRef):
        raise KernelTypeError(
            f"`np.{c.name}` needs an array, not {describe(array) if array else 'nothing'}", c.place
        )
    return arrays.method(replace(c, arguments=c.arguments[1:]), array, c.name)


@builtin(pow)
def _pow(c: Call) -> Value:
    x, y = c.numbers("base", "exp")
    return c.t.operation("pow", (x, y), c.place)


@builtin(divmod)
def _divmod(c: Call) -> Value:
    x, y = (c.t.temporary(v) for v in c.numbers("x", "y"))
    return TupleValue(
        (c.t.operation("floordiv", (x, y), c.place), c.t.operation("mod", (x, y), c.place))
    )


@builtin(round)
def _round(c: Call) -> Value:
    x, digits = c.numbers("number", "ndigits", optional=1)
    if digits is not None:
        if not isinstance(digits, ir.Const):
            raise KernelTypeError("`ndigits` must be a constant", c.place)
        scale = ir.Const(10.0 ** abs(digits.value), dtypes.weak_float)
        up, down = ("mul", "truediv") if digits.value >= 0 else ("truediv", "mul")
        scaled = c.t.operation("rint", (c.t.operation(up, (x, scale), c.place),), c.place)
        return c.t.operation(down, (scaled, scale), c.place)
    assert isinstance(x, EXPR)
    if x.dtype.is_integer:
        return x
    return c.t.cast(c.t.strong(c.t.operation("rint", (x,), c.place)), INDEX, c.place)


@builtin(len)
def _len(c: Call) -> Value:
    (v,) = c.bind("x")
    match v:
        case TupleValue(items):
            return ir.Const(len(items), dtypes.weak_int, place=c.place)
        case ArrayRef(axes=axes) if axes:
            return axes[0].extent
        case RangeValue():
            return range_length(c.t, v, c.place)
    raise KernelTypeError(f"{describe(v)} has no length", c.place)


def range_length(t: Translator, r: RangeValue, place: Place) -> ir.Expr:
    """max(0, ceil((stop - start) / step))."""
    start, stop, step = (t.coerce(e, INDEX) for e in (r.start, r.stop, r.step))
    span = t.operation("sub", (stop, start), place)
    count = t.operation(
        "neg", (t.operation("floordiv", (t.operation("neg", (span,), place), step), place),), place
    )
    return t.operation("max", (count, ZERO), place)


@builtin(range)
def _range(c: Call) -> Value:
    numbers = [
        c.t.as_index(n, "a bound of `range`")
        for n in c.numbers("start", "stop", "step", optional=2)
        if n is not None
    ]
    start: ir.Expr = ZERO
    stop: ir.Expr = numbers[0]
    step: ir.Expr = ONE
    if len(numbers) > 1:
        start, stop = numbers[:2]
    if len(numbers) > 2:
        step = numbers[2]
    return RangeValue(start, stop, step)


@builtin(tuple)
def _tuple(c: Call) -> Value:
    (v,) = c.bind("x")
    if isinstance(v, TupleValue):
        return TupleValue(v.items)
    raise KernelTypeError(f"cannot make a tuple of {describe(v)}", c.place)


@builtin(enumerate, zip, reversed)
def _iterator(c: Call) -> Value:
    match c.name, c.keywords:
        case "enumerate", {"start": start, **others} if not others and len(c.arguments) == 1:
            return Method(TupleValue((c.arguments[0], start)), c.name)
        case "zip", {"strict": _}:
            raise UnsupportedError("`zip` takes no `strict` in a kernel", c.place)
    no_keywords(c)
    return Method(TupleValue(tuple(c.arguments)), c.name)


@builtin(any, all)
def _any_all(c: Call) -> Value:
    (values,) = c.bind("iterable")
    if isinstance(values, ArrayRef):
        from ruda.jit import arrays

        return arrays.reduce_array(c, values, c.name)
    if not isinstance(values, TupleValue):
        assert values is not None
        raise KernelTypeError(
            f"`{c.name}` takes a tuple or an array, not {describe(values)}", c.place,
            hint="write the loop",
        )  # fmt: skip
    kind, result = (ir.Or, FALSE) if c.name == "any" else (ir.And, TRUE)
    for value in values.items:
        result = c.t.logical(kind, result, c.t.truth(value, c.place), c.place)  # type: ignore[assignment]
    return result


@builtin(breakpoint)
def _breakpoint(c: Call) -> Value:
    c.t.emit(ir.Breakpoint(place=c.place))
    return PyObject(None)


@builtin(isinstance)
def _isinstance(c: Call) -> Value:
    value, kinds = c.bind("x", "type")
    if isinstance(value, EXPR) and isinstance(kinds, PyObject):
        matches = {int: ("int", "uint"), float: ("float",), bool: ("bool",), complex: ("complex",)}
        if kinds.value in matches:
            return TRUE if value.dtype.kind in matches[kinds.value] else FALSE
    raise UnsupportedError("`isinstance` is not in the kernel language here", c.place)


def print_call(t: Translator, node: ast.Call, place: Place) -> Value:
    separator, end = " ", "\n"
    for k in node.keywords:
        value = t.value(k.value)
        if k.arg not in ("sep", "end") or not (
            isinstance(value, PyObject) and isinstance(value.value, str)
        ):
            raise UnsupportedError("`print` takes `sep` and `end` only, as constants", t.place(k))
        if k.arg == "sep":
            separator = value.value
        else:
            end = value.value
    parts: list[str | ir.Text] = []
    for position, argument in enumerate(node.args):
        if position:
            parts.append(separator)
        parts += text_parts(t, [argument])
    t.emit(ir.Print(merge_text([*parts, end]), place=place))
    return PyObject(None)


def merge_text(parts: Sequence[str | ir.Text]) -> tuple[str | ir.Text, ...]:
    out: list[str | ir.Text] = []
    for part in parts:
        if isinstance(part, str) and out and isinstance(out[-1], str):
            out[-1] += part
        elif part != "":
            out.append(part)
    return tuple(out)


def text_parts(t: Translator, nodes: Sequence[ast.expr]) -> list[str | ir.Text]:
    """Text pieces and values of the arguments of `print` and `assert`; f-strings may stand here."""
    out: list[str | ir.Text] = []
    for node in nodes:
        if isinstance(node, ast.JoinedStr):
            for piece in node.values:
                if isinstance(piece, ast.Constant):
                    out.append(str(piece.value))
                    continue
                assert isinstance(piece, ast.FormattedValue)
                spec = ""
                if piece.format_spec is not None:
                    assert isinstance(piece.format_spec, ast.JoinedStr)
                    if not all(isinstance(v, ast.Constant) for v in piece.format_spec.values):
                        raise UnsupportedError("a format must be constant", t.place(node))
                    spec = "".join(str(v.value) for v in piece.format_spec.values)  # type: ignore[attr-defined]
                out += value_text(t, t.value(piece.value), t.place(piece.value), spec)
        else:
            out += value_text(t, t.value(node), t.place(node), "")
    return out


def value_text(t: Translator, value: Value, place: Place, spec: str) -> list[str | ir.Text]:
    match value:
        case PyObject(v) if v is None or isinstance(v, str):
            return [format(v, spec) if isinstance(v, str) else "None"]
        case TupleValue(items):
            out: list[str | ir.Text] = ["("]
            for k, item in enumerate(items):
                out += [", "] * (k > 0) + value_text(t, item, place, spec)
            return [*out, ",)" if len(items) == 1 else ")"]
    if isinstance(value, ArrayRef) and value.ndim:
        raise KernelTypeError(
            f"expected numbers and strings, got {describe(value)}",
            place,
            hint="print its elements in a loop",
        )
    e = t.strong(t.number(value, place, "numbers and strings"))
    check_format(e, spec, place)
    return [ir.Text(e, spec)]


_SAMPLES = {"bool": True, "int": 1, "uint": 1, "float": 1.5, "complex": 1j}


def check_format(e: ir.Expr, spec: str, place: Place) -> None:
    """A format is tried when the kernel is compiled, not when a thread comes to it."""
    try:
        format(_SAMPLES[e.dtype.kind], spec)
    except ValueError as error:
        raise KernelValueError(f"`{spec}` does not format {e.dtype}: {error}", place) from None


_rows: dict[int, tuple[Any, intrinsics.Row]] = {}


def scalar_function(target: Any, ruda_name: str | None) -> intrinsics.Row | None:
    """The row that a function of math, NumPy or ruda stands for."""
    if ruda_name is not None:
        return intrinsics.BY_NAME.get(f"ruda.{ruda_name}")
    if not _rows:
        for name, row in intrinsics.BY_NAME.items():
            module, attribute = name.rsplit(".", 1)
            if module != "ruda":
                found = getattr(importlib.import_module(module), attribute, None)
                if found is not None:
                    _rows[id(found)] = (found, row)
    entry = _rows.get(id(target))
    return entry[1] if entry is not None else None


def scalar_call(c: Call, row: intrinsics.Row) -> Value:
    if c.keywords:
        raise KernelTypeError(f"`{c.name}` takes no keyword arguments in a kernel", c.place)
    if row.name in ("min", "max") and len(c.arguments) != 2:
        return extremum(c, row.name)
    if row.name == "log" and len(c.arguments) == 2:
        x, base = c.numbers("x", "base")
        return c.t.operation(
            "truediv",
            (c.t.operation("log", (x,), c.place), c.t.operation("log", (base,), c.place)),
            c.place,
        )
    if len(c.arguments) != row.arity:
        hint, written = None, [ast.unparse(a) for a in c.node.args]
        if len(c.arguments) == row.arity + 1 and isinstance(c.arguments[-1], ArrayRef):
            inputs = ", ".join(
                f"{text}[i]" if isinstance(v, ArrayRef) else text
                for v, text in zip(c.arguments[:-1], written, strict=False)
            )
            hint = f"write `{written[-1]}[i] = {ast.unparse(c.node.func)}({inputs})`"
        raise KernelTypeError(
            f"`{c.name}` takes {row.arity} argument{'s' * (row.arity > 1)}, not {len(c.arguments)}",
            c.place,
            hint=hint,
        )
    numbers = [c.t.number(v, c.place, "numbers") for v in c.arguments]
    if intrinsics.operand_dtype(row, tuple(x.dtype for x in numbers)) is None:
        raise KernelTypeError(
            f"`{ast.unparse(c.node.func)}` takes {TAKES.get(row.rule, 'real numbers')}, not "
            + " and ".join(describe(x) for x in numbers),
            c.place,
        )
    return scalar_operation(c.t, row, numbers, c.place)


TAKES = dict.fromkeys(("bits", "count", "integer"), "integers")  # by the rule of a row


def scalar_operation(
    t: Translator, row: intrinsics.Row, numbers: list[ir.Expr], place: Place
) -> ir.Expr:
    if row.name == "not":
        return t.operation("not", (t.truth(numbers[0], place),), place)
    if row.name in ("real", "imag", "conj") and numbers[0].dtype.kind != "complex":
        x = numbers[0]
        return (
            t.cast(ir.Const(0, dtypes.weak_int), t.strong(x).dtype, place)
            if row.name == "imag"
            else x
        )
    if row.name in ("floor", "ceil", "trunc", "rint") and numbers[0].dtype.kind in (
        "int",
        "uint",
        "bool",
    ):
        return numbers[0]  # NumPy's rounding leaves integers alone
    return t.operation(row.name, numbers, place)
