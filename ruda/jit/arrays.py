"""Whole views in a kernel: assigned, reduced, copied by the loops that the user would have written.

What needs memory of run-time size is refused with the loop that would do it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ruda import dtypes
from ruda.dtypes import DType
from ruda.errors import KernelTypeError, Place, UnsupportedError
from ruda.jit import ir
from ruda.jit.frontend import EXPR, INDEX, ONE, ZERO, Translator
from ruda.jit.values import ArrayRef, TupleValue, Value, describe, whole

if TYPE_CHECKING:
    from ruda.jit.calls import Call


def loop_over(t: Translator, view: ArrayRef, body: Any, place: Place) -> None:
    """Nested counted loops over a view's axes; `body(indices)` emits the innermost part."""

    def nest(k: int, indices: list[ir.Expr]) -> None:
        if k == view.ndim:
            body(indices)
            return
        counter = ir.Variable(f".{t.unique('k')}", INDEX)
        with t.block() as inner:
            nest(k + 1, [*indices, ir.Read(counter, place=place)])
        t.emit(ir.For(counter, ZERO, view.axes[k].extent, ONE, tuple(inner), place=place))

    nest(0, [])


def at(t: Translator, view: ArrayRef, indices: list[ir.Expr], place: Place) -> ir.Expr:
    """The element at loop indices, which are never negative."""
    root = t.root_indices(view, indices, place)
    if len(view.roots) > 1:
        return t.load(view, indices, place)
    return ir.Load(view.root, root, t.field_of(view), place=place)


def assign_view(t: Translator, view: ArrayRef, value: Value, place: Place) -> None:
    """`view[...] = value`: a number, or an array of the same shape (or one that broadcasts)."""
    t.check_writable(view, place)
    if isinstance(value, TupleValue):
        if view.ndim != 1:
            raise KernelTypeError(f"cannot assign {describe(value)} to {view.describe()}", place)
        for k, item in enumerate(value.items):
            t.store(view, (ir.Const(k, INDEX),), t.number(item, place), place)
        return
    if isinstance(value, ArrayRef) and value.ndim:
        if value.ndim > view.ndim:
            raise KernelTypeError(f"cannot assign {value.describe()} to {view.describe()}", place)
        skip = view.ndim - value.ndim

        def copy(indices: list[ir.Expr]) -> None:
            inner = [
                ZERO if axis.extent == ONE else i
                for axis, i in zip(value.axes, indices[skip:], strict=True)
            ]
            t.store(view, indices, at(t, value, inner, place), place)

        loop_over(t, view, copy, place)
        return
    number = t.temporary(t.number(value, place))
    loop_over(t, view, lambda indices: t.store(view, indices, number, place), place)


def reduce_array(c: Call, view: ArrayRef, name: str) -> Value:
    """sum, prod, min, max, any, all, mean over a whole view."""
    t, place = c.t, c.place
    kind = view.element
    if not isinstance(kind, DType):
        raise KernelTypeError(f"`{name}` needs numbers, not {kind}", place)
    starts: dict[str, tuple[str, Any]] = {
        "sum": ("add", 0), "mean": ("add", 0), "prod": ("mul", 1), "any": ("or", False),
        "all": ("and", True), "min": ("min", None), "max": ("max", None),
    }  # fmt: skip
    op, start = starts[name]
    key = f".{t.unique(name)}"
    if start is None:
        first = at(t, view, [ZERO] * view.ndim, place)
        total = t.assign(key, first, place)
    elif name in ("any", "all"):
        total = t.assign(key, ir.Const(start, dtypes.bool_), place)
    else:
        dtype = (
            kind if kind.is_inexact or (kind.bits >= 32 and kind.kind != "bool") else dtypes.int32
        )
        total = t.assign(key, t.cast(ir.Const(start, dtypes.weak_int), dtype, place), place)

    def step(indices: list[ir.Expr]) -> None:
        item = at(t, view, indices, place)
        if name in ("any", "all"):
            item = t.truth(item, place)
        t.assign(key, t.operation(op, (total, item), place), place)

    loop_over(t, view, step, place)
    if name == "mean":
        from ruda.jit.calls import array_attribute

        size = array_attribute(t, view, "size", place)
        assert isinstance(size, EXPR)
        return t.operation("truediv", (total, size), place)
    return total


def argument_of(c: Call, view: ArrayRef, name: str) -> Value:
    """argmin, argmax: the first index of the extreme; NaN counts as extreme, as in NumPy."""
    t, place = c.t, c.place
    if view.ndim != 1:
        raise UnsupportedError(f"`{name}` takes a one-dimensional view", place)
    best = f".{t.unique('best')}"
    where = f".{t.unique(name)}"
    value = t.assign(best, at(t, view, [ZERO], place), place)
    index = t.assign(where, ZERO, place)

    def step(indices: list[ir.Expr]) -> None:
        item = t.temporary(at(t, view, indices, place))
        better = t.operation("lt" if name == "argmin" else "gt", (item, value), place)
        if item.dtype.kind == "float":
            nan = t.operation("isnan", (item,), place)
            known = t.operation("not", (t.operation("isnan", (value,), place),), place)
            better = ir.Or(better, ir.And(nan, known), place=place)
        with t.block() as body:
            t.assign(best, item, place)
            t.assign(where, indices[0], place)
        t.emit(ir.If(better, tuple(body), place=place))

    loop_over(t, view, step, place)
    return index


def dot(c: Call, a: ArrayRef, b: Value) -> Value:
    t, place = c.t, c.place
    if not isinstance(b, ArrayRef) or a.ndim != 1 or b.ndim != 1:
        raise UnsupportedError(
            "`dot` takes two one-dimensional views", place, hint="write the loop"
        )
    key = f".{t.unique('dot')}"
    product = t.operation("mul", (at(t, a, [ZERO], place), at(t, b, [ZERO], place)), place)
    total = t.assign(key, t.cast(ir.Const(0, dtypes.weak_int), product.dtype, place), place)
    loop_over(
        t,
        a,
        lambda i: t.assign(
            key,
            t.operation(
                "add",
                (total, t.operation("mul", (at(t, a, i, place), at(t, b, i, place)), place)),
                place,
            ),
            place,
        ),
        place,
    )
    return total


def ravel(t: Translator, array: ArrayRef, place: Place) -> ArrayRef:
    """A flat view of a contiguous array."""
    if array.ndim == 1:
        return array
    raise UnsupportedError(
        "`ravel` and `flat` are in the kernel language only for one-dimensional arrays", place,
        hint="index with all axes, or flatten the array on the host",
    )  # fmt: skip


def elements(t: Translator, value: Value, shape: tuple[int, ...], place: Place) -> Any:
    """A function index tuple -> element, broadcasting to a static shape."""
    if isinstance(value, ArrayRef):
        own = value.static_shape
        assert own is not None

        def pick(index: tuple[int, ...]) -> ir.Expr:
            tail = index[len(index) - len(own) :]
            return at(
                t,
                value,
                [ir.Const(0 if e == 1 else i, INDEX) for i, e in zip(tail, own, strict=True)],
                place,
            )

        return pick
    number = t.temporary(t.number(value, place))
    return lambda index: number


def elementwise(t: Translator, operands: list[Value], combine: Any, place: Place) -> Value:
    """An array expression on small arrays of constant shape: the result is a new local array."""
    shapes = []
    for v in operands:
        if isinstance(v, ArrayRef):
            shape = v.static_shape
            if shape is None:
                raise UnsupportedError(
                    f"an expression on {v.describe()} would need memory of run-time size", place,
                    hint="write the loop over its elements",
                )  # fmt: skip
            shapes.append(shape)
    try:
        shape = np.broadcast_shapes(*shapes)
    except ValueError:
        raise KernelTypeError(
            f"shapes {' and '.join(map(str, shapes))} do not broadcast", place
        ) from None
    pickers = [elements(t, v, shape, place) for v in operands]
    values = [t.strong(combine([p(index) for p in pickers])) for index in np.ndindex(*shape)]
    dtype = values[0].dtype if values else dtypes.default_float()
    if dtype is INDEX:
        dtype = dtypes.int64
    array = ir.Array(t.unique("expression"), dtype, len(shape), "local", "C", tuple(shape))
    t.arrays[array.name] = array
    t.emit(ir.Declare(array, place=place))
    kept = [t.temporary(v) for v in values]  # the result may overwrite an operand
    view = whole(array)
    for index, value in zip(np.ndindex(*shape), kept, strict=True):
        t.store(view, [ir.Const(k, INDEX) for k in index], value, place)
    return view


def binary(t: Translator, name: str, left: Value, right: Value, place: Place) -> Value | None:
    for v in (left, right):
        if not isinstance(v, (ArrayRef, *EXPR)):
            return None
    return elementwise(t, [left, right], lambda xs: t.operation(name, xs, place), place)


def unary(t: Translator, name: str, operand: ArrayRef, place: Place) -> Value:
    if name == "pos":
        return operand
    return elementwise(t, [operand], lambda xs: t.operation(name, xs, place), place)


def method(c: Call, array: ArrayRef, name: str) -> Value:
    t, place = c.t, c.place
    match name:
        case "sum" | "prod" | "min" | "max" | "mean" | "any" | "all":
            if c.arguments or c.keywords:
                raise UnsupportedError(
                    f"`{name}` takes no arguments in a kernel", place, hint="write the loop"
                )
            return reduce_array(c, array, name)
        case "argmin" | "argmax":
            return argument_of(c, array, name)
        case "dot":
            (other,) = c.bind("other")
            assert other is not None
            return dot(c, array, other)
        case "fill":
            (value,) = c.bind("value")
            assert value is not None
            assign_view(t, array, value, place)
            from ruda.jit.values import PyObject

            return PyObject(None)
        case "item":
            return t.load(array, [t.number(v, place) for v in c.arguments], place)
        case "copy" | "astype":
            kind = array.element
            if name == "astype":
                from ruda.jit.calls import dtype_argument

                kind = dtype_argument(t, c.arguments[0] if c.arguments else None, place)
            if isinstance(kind, DType):
                return elementwise(t, [array], lambda xs: t.cast(xs[0], kind, place), place)
        case "ravel" | "flatten" if array.ndim == 1:
            return array
        case "transpose" if not c.arguments:
            return replace(array, axes=array.axes[::-1])
    raise UnsupportedError(
        f"`{name}` of an array is not in the kernel language",
        place,
        hint="write the loop over its elements",
    )
