"""Whole views in a kernel: assigned, reduced, copied by the loops that the user would have written.

What needs memory of run-time size is refused with the loop that would do it.
"""

from __future__ import annotations

import functools
import math
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
        items = [t.temporary(t.number(item, place)) for item in value.items]
        for k, number in enumerate(items):  # all were read before the first is written
            t.store(view, (ir.Const(k, INDEX),), number, place)
        return
    if isinstance(value, ArrayRef) and value.ndim:
        if value.ndim > view.ndim:
            raise KernelTypeError(f"cannot assign {value.describe()} to {view.describe()}", place)
        copy_view(t, view, value, place)
        return
    number = t.temporary(t.number(value, place))
    loop_over(t, view, lambda indices: t.store(view, indices, number, place), place)


def copy_view(t: Translator, view: ArrayRef, value: ArrayRef, place: Place) -> None:
    """Elements one by one, in an order in which none is overwritten before it is read."""
    skip = view.ndim - value.ndim
    shape = view.static_shape
    overlap = set(view.roots) & set(value.roots) and not same_or_apart(view, value)
    if overlap and shape is not None and value.static_shape and math.prod(shape) <= KEPT:
        value = elementwise(t, [value], lambda xs: xs[0], place)  # type: ignore[assignment]
        overlap = False
    orders = overlap and safe_orders(t, view, value, place)

    def copy(indices: list[ir.Expr]) -> None:
        if orders:
            indices = [order(i) for order, i in zip(orders, indices, strict=True)]
        inner = [
            ZERO if axis.extent == ONE else i
            for axis, i in zip(value.axes, indices[skip:], strict=True)
        ]
        t.store(view, indices, at(t, value, inner, place), place)

    loop_over(t, view, copy, place)


KEPT = 64  # elements of known number that are all read before any is written


def same_or_apart(view: ArrayRef, value: ArrayRef) -> bool:
    """Whether two views of one array are surely apart, or surely meet only at equal indices."""
    if view.field != value.field:
        return True  # two fields of records, or the two parts of complex numbers
    root = view.root
    spans = [[_span(v, r) for r in range(root.ndim)] for v in (view, value)]
    for one, other in zip(*spans, strict=True):
        if one and other and (one[1] < other[0] or other[1] < one[0]):
            return True
    return all(
        (a.root_axis, a.start, a.step) == (b.root_axis, b.start, b.step)
        for a, b in zip(view.axes[view.ndim - value.ndim :], value.axes, strict=True)
    )


def _span(view: ArrayRef, root_axis: int) -> tuple[int, int] | None:
    """First and last index along an axis of the root, if they are known."""
    fixed = view.fixed[root_axis]
    if fixed is not None:
        return (fixed.value, fixed.value) if isinstance(fixed, ir.Const) else None
    axis = next(a for a in view.axes if a.root_axis == root_axis)
    match axis.start, axis.step, axis.extent:
        case ir.Const(value=start), ir.Const(value=step), ir.Const(value=extent):
            ends = (start, start + step * (extent - 1))
            return (min(ends), max(ends))
    return None


def safe_orders(t: Translator, view: ArrayRef, value: ArrayRef, place: Place) -> list[Any]:
    """For each axis a function of the loop's counter: forwards, or backwards where the source lies
    before the destination. Views that are no shifts of each other are refused."""
    matched = view.ndim == value.ndim and all(
        a.root_axis == b.root_axis
        and a.step == b.step
        and isinstance(a.step, ir.Const)
        and (view.ndim == 1 or (a.extent == ONE) == (b.extent == ONE))
        for a, b in zip(view.axes, value.axes, strict=False)
    )
    if not matched:
        raise UnsupportedError(
            f"the two sides of this assignment may overlap: both are parts of `{view.root.name}`",
            place,
            hint="write the loop, in an order in which no element is overwritten before it is "
            "read, or copy to another array first",
        )
    orders: list[Any] = []
    for a, b in zip(view.axes, value.axes, strict=True):
        up = isinstance(a.step, ir.Const) and a.step.value > 0
        # Along a rising axis, a destination behind its source is written from the end.
        behind = t.operation("gt", (a.start, b.start) if up else (b.start, a.start), place)
        if a.start == b.start or (isinstance(behind, ir.Const) and not behind.value):
            orders.append(lambda i: i)
            continue
        last = t.operation("sub", (a.extent, ONE), place)
        if isinstance(behind, ir.Const):
            first: ir.Expr = t.temporary(last)
            step: ir.Expr = ir.Const(-1, INDEX)
        else:
            behind = t.temporary(behind)
            first = t.temporary(t.select(behind, last, ZERO, place))
            step = t.temporary(t.select(behind, ir.Const(-1, INDEX), ONE, place))
        orders.append(functools.partial(_from, t, first, step, place))
    return orders


def _from(t: Translator, first: ir.Expr, step: ir.Expr, place: Place, i: ir.Expr) -> ir.Expr:
    return t.operation("add", (first, t.operation("mul", (i, step), place)), place)


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


# A thread computes an element, so the host's array expression becomes an expression of elements.
ELEMENTS = {
    1: "a thread computes one element: `i = ruda.grid(1)`, then `if i < out.size:` and "
    "`out[i] = ...` of `a[i]`",
    2: "a thread computes one element: `j, i = ruda.grid(2)`, then `if i < out.shape[0] and "
    "j < out.shape[1]:` and `out[i, j] = ...` of `a[i, j]`",
    3: "a thread computes one element: take its indices from ruda.grid, and loop over other axes",
}


def elementwise(t: Translator, operands: list[Value], combine: Any, place: Place) -> Value:
    """An array expression on small arrays of constant shape: the result is a new local array."""
    shapes = []
    for v in operands:
        if isinstance(v, ArrayRef):
            shape = v.static_shape
            if shape is None:
                raise UnsupportedError(
                    f"an expression on the whole of {v.describe()} is not in the kernel language",
                    place, hint=ELEMENTS[min(v.ndim, 3)],
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


def item(c: Call, array: ArrayRef) -> Value:
    """`a.item(i, j)`, `a.item(k)` by the flat index, `a.item()` of an array of one element."""
    t, place = c.t, c.place
    indices = [t.number(v, place, "an index") for v in c.arguments]
    one = array.static_shape is not None and math.prod(array.static_shape) == 1
    if len(indices) == array.ndim:
        return t.load(array, indices, place)
    if not indices and one:
        return at(t, array, [ZERO] * array.ndim, place)
    if len(indices) != 1 or (isinstance(indices[0], ir.Const) and indices[0].value < 0):
        raise KernelTypeError(
            f"`item` of {array.describe()} takes {array.ndim} indices or one flat index",
            place,
            hint="index it: `a[0, 0]`" if array.ndim > 1 else "index it: `a[0]`",
        )
    rest = t.temporary(t.as_index(indices[0]))
    found: list[ir.Expr] = []
    for axis in array.axes[:0:-1]:
        found.insert(0, t.operation("mod", (rest, axis.extent), place))
        rest = t.temporary(t.operation("floordiv", (rest, axis.extent), place))
    return t.load(array, [rest, *found], place)


def method(c: Call, array: ArrayRef, name: str) -> Value:
    t, place = c.t, c.place
    match name:
        case "sum" | "prod" | "min" | "max" | "mean" | "any" | "all" | "argmin" | "argmax":
            if c.arguments or c.keywords:
                raise UnsupportedError(
                    f"`{name}` takes no arguments in a kernel", place, hint="write the loop"
                )
            reduce = argument_of if name.startswith("arg") else reduce_array
            return reduce(c, array, name)
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
            from ruda.jit.calls.call import no_keywords

            no_keywords(c)
            return item(c, array)
        case "copy" | "astype":
            kind = array.element
            if name == "astype":
                from ruda.jit.calls import dtype_argument

                (wanted,) = c.bind("dtype")
                kind = dtype_argument(t, wanted, place)
            else:
                c.bind()
            if isinstance(kind, DType):
                return elementwise(t, [array], lambda xs: t.cast(xs[0], kind, place), place)
        case "ravel" | "flatten" if array.ndim == 1:
            c.bind()
            return array
        case "transpose" if not c.arguments and not c.keywords:
            return replace(array, axes=array.axes[::-1])
    raise UnsupportedError(
        f"`{name}` of an array is not in the kernel language",
        place,
        hint="write the loop over its elements",
    )
