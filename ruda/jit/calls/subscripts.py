"""`owner[index]`, read and assigned; slices are views."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ruda.dtypes import DType
from ruda.errors import (
    KernelTypeError,
    KernelValueError,
    Place,
    UnsupportedError,
)
from ruda.jit import ir
from ruda.jit.calls.attributes import array_field, assign_attribute, record_field
from ruda.jit.calls.python import range_length
from ruda.jit.frontend import EXPR, INDEX, ONE, ZERO, Translator
from ruda.jit.types import FixedArray, RecordType
from ruda.jit.values import (
    ArrayRef,
    Axis,
    Method,
    PyObject,
    RangeValue,
    RecordRef,
    TupleValue,
    Value,
    describe,
)


def subscript(t: Translator, owner: Value, index: Sequence[Value | slice], place: Place) -> Value:
    match owner:
        case ArrayRef():
            view = index_array(t, owner, index, place)
            if view.ndim == 0:
                return element(t, view, place)
            return view
        case TupleValue():
            return tuple_item(t, owner, index, place)
        case RecordRef() if len(index) == 1 and isinstance(index[0], PyObject):
            return record_field(t, owner, index[0].value, place)
        case Method(owner=RecordRef(array=array, type=FixedArray() as kind), name="fixed"):
            return t.load(fixed_item(t, array, kind, index, place), (), place)
        case Method(owner=ArrayRef() as array, name="ravel"):
            from ruda.jit import arrays

            return subscript(t, arrays.ravel(t, array, place), index, place)
        case PyObject(value) if isinstance(value, (tuple, list, dict)):
            raise UnsupportedError(
                f"a {type(value).__name__} cannot be indexed in a kernel", place,
                hint="capture a tuple or a NumPy array, or pass an array",
            )  # fmt: skip
        case PyObject(value) if is_kernel(value):
            raise launch_inside(value, place)
    axes = {"threadIdx", "blockIdx", "blockDim", "gridDim"}
    known = getattr(owner.value, "__ruda_name__", "") if isinstance(owner, PyObject) else ""
    hint = f"its parts are ruda.{known}.x, .y and .z" if known in axes else None
    raise KernelTypeError(f"{describe(owner)} cannot be indexed", place, hint=hint)


def is_kernel(value: Any) -> bool:
    from ruda.jit.kernel import Kernel  # which needs this module

    return isinstance(value, Kernel)


def launch_inside(kernel: Any, place: Place) -> UnsupportedError:
    """The refusal of `other[grid, block](...)` and `other.forall(n)(...)` in a kernel."""
    name = kernel.__name__
    return UnsupportedError(
        f"a kernel cannot launch a kernel (`{name}`)",
        place,
        hint=f"call it as a device function, {name}(...), which every thread then runs for itself; "
        "or launch the two kernels one after the other from Python",
    )


def element(t: Translator, view: ArrayRef, place: Place) -> Value:
    kind = view.element
    if isinstance(kind, RecordType):
        return RecordRef(view, kind)
    if isinstance(kind, FixedArray):
        return Method(RecordRef(view, kind), "fixed")  # type: ignore[arg-type]
    return t.load(view, (), place)


def fixed_item(
    t: Translator, array: ArrayRef, kind: FixedArray, index: Sequence[Value | slice], place: Place
) -> ArrayRef:
    """An item, at constant indices, of an array inside a record."""
    numbers = [i.value if isinstance(i, ir.Const) else None for i in index]
    if len(numbers) != len(kind.shape) or any(n is None for n in numbers):
        raise UnsupportedError(
            "an array inside a record takes constant indices, one an axis", place,
            hint="unroll the loop: `for k in ruda.unroll(range(3))`",
        )  # fmt: skip
    for n, extent in zip(numbers, kind.shape, strict=True):
        if not -extent <= n < extent:  # type: ignore[operator]
            raise KernelValueError(f"index {n} is out of range for an axis of {extent}", place)
    wrapped = [n % e for n, e in zip(numbers, kind.shape, strict=True)]  # type: ignore[operator]
    linear = int(np.ravel_multi_index(wrapped, kind.shape))
    offset = array.field[0] if array.field else 0
    return replace(array, field=(offset + linear * kind.dtype.itemsize, kind.dtype))


def tuple_item(
    t: Translator, owner: TupleValue, index: Sequence[Value | slice], place: Place
) -> Value:
    if len(index) != 1:
        raise KernelTypeError("a tuple takes one index", place)
    i = index[0]
    if isinstance(i, slice):
        parts = [
            None if p is None else p.value if isinstance(p, ir.Const) else p
            for p in (i.start, i.stop, i.step)
        ]
        if any(isinstance(p, EXPR) for p in parts):
            raise KernelTypeError("a slice of a tuple needs constant bounds", place)
        return TupleValue(owner.items[slice(*parts)])
    e = t.number(i, place, "an index")
    if isinstance(e, ir.Const):
        if not -len(owner.items) <= e.value < len(owner.items):
            raise KernelValueError(
                f"index {e.value} is out of range for a tuple of {len(owner.items)}", place
            )
        return owner.items[int(e.value)]
    if not owner.items or not all(isinstance(v, EXPR) for v in owner.items):
        raise KernelTypeError(
            "a tuple indexed at run time must hold numbers",
            place,
            hint="use ruda.unroll for the loop",
        )
    count = ir.Const(len(owner.items), INDEX)
    inside = ir.Op("within", (t.wrapped(e, count, place), count), INDEX, place=place)
    at = t.temporary(inside)
    result: ir.Expr = owner.items[-1]  # type: ignore[assignment]
    for k in range(len(owner.items) - 2, -1, -1):
        test = t.operation("eq", (at, ir.Const(k, INDEX)), place)
        result = t.select(test, t.keep(owner.items[k]), t.keep(result), place)  # type: ignore[arg-type]
    return result


def index_array(
    t: Translator, array: ArrayRef, index: Sequence[Value | slice], place: Place
) -> ArrayRef:
    """Basic indexing: integers, slices, `...`; fewer indices than axes give a view."""
    if len(index) == 1 and isinstance(index[0], PyObject) and isinstance(index[0].value, str):
        if isinstance(array.element, RecordType):
            return array_field(t, array, index[0].value, place)  # type: ignore[return-value]
    items = list(index)
    dots = [k for k, i in enumerate(items) if isinstance(i, PyObject) and i.value is Ellipsis]
    if len(dots) > 1:
        raise KernelTypeError("an index may have one `...`", place)
    if dots:
        fill = array.ndim - (len(items) - 1)
        items[dots[0] : dots[0] + 1] = [slice(None)] * max(fill, 0)
    if PyObject(None) in items:
        raise UnsupportedError(
            "`None` (np.newaxis) in an index is not in the kernel language", place,
            hint="leave it out, and index the view with one number less",
        )  # fmt: skip
    if len(items) > array.ndim:
        count = "1 axis" if array.ndim == 1 else f"{array.ndim} axes"
        raise KernelTypeError(
            f"{array.describe()} has {count} and takes as many indices, not {len(items)}",
            place,
        )
    fixed = list(array.fixed)
    axes: list[Axis] = []
    for axis, i in zip(array.axes, items, strict=False):
        if isinstance(i, slice):
            axes.append(slice_axis(t, axis, i, place))
            continue
        if isinstance(i, PyObject) and i.value is None:
            raise UnsupportedError("`None` (a new axis) is not in the kernel language", place)
        if isinstance(i, ArrayRef) and i.ndim:
            raise UnsupportedError(
                "an array cannot be an index in a kernel", place, hint="write the loop"
            )
        at = t.index_along(array.root, axis, t.number(i, place, "an index"), place)
        fixed[axis.root_axis] = t.root_index(axis, at, place)
    axes += array.axes[len(items) :]
    return replace(array, fixed=tuple(fixed), axes=tuple(axes))


def slice_axis(t: Translator, axis: Axis, s: slice, place: Place) -> Axis:
    """`start:stop:step` with Python's clamping."""
    step = t.as_index(t.number(s.step, place), "a step") if s.step is not None else ONE
    if not isinstance(step, ir.Const) or step.value == 0:
        raise KernelValueError("a slice step must be a constant other than 0", place)
    down = step.value < 0
    n = axis.extent

    def bound(value: Any, default: ir.Expr) -> ir.Expr:
        if value is None:
            return default
        e = t.number(value, place)
        if e.dtype.kind == "uint" and e.dtype.bits == 64:  # the index type has no larger number
            e = t.operation("min", (e, ir.Const(2**63 - 1, e.dtype)), place)
        unsigned = e.dtype.kind == "uint"
        e = t.as_index(e, "a slice bound")
        low = ir.Const(-1, INDEX) if down else ZERO
        high = t.operation("sub", (n, ONE), place) if down else n
        if isinstance(e, ir.Const) and e.value >= 0:
            return e if e.value == 0 and not down else t.operation("min", (e, high), place)
        if isinstance(e, ir.Const):
            return t.operation("max", (t.operation("add", (n, e), place), low), place)
        wrapped = e if unsigned else ir.Op("wrap", (e, n), INDEX, place=place)
        return t.operation("min", (t.operation("max", (wrapped, low), place), high), place)

    last = t.operation("sub", (n, ONE), place)
    start = bound(s.start, last if down else ZERO)
    stop = bound(s.stop, ir.Const(-1, INDEX) if down else n)
    if start == ZERO and stop is n and step == ONE:
        return axis
    extent = range_length(t, RangeValue(start, stop, step), place)
    if step == ONE:
        extent = t.operation("max", (t.operation("sub", (stop, start), place), ZERO), place)
    return Axis(
        axis.root_axis,
        t.operation("add", (axis.start, t.operation("mul", (start, axis.step), place)), place),
        t.operation("mul", (axis.step, step), place),
        extent,
    )


def assign_subscript(
    t: Translator, owner: Value, index: Sequence[Value | slice], value: Value, place: Place
) -> None:
    match owner:
        case ArrayRef():
            view = index_array(t, owner, index, place)
            if view.ndim or isinstance(view.element, FixedArray):
                assign_view(t, view, value, place)
            elif isinstance(view.element, RecordType):
                assign_record(t, RecordRef(view, view.element), value, place)
            else:
                t.store(view, (), t.number(value, place), place)
        case TupleValue():
            raise KernelTypeError("a tuple cannot be changed", place, hint="use ruda.local.array")
        case RecordRef() if len(index) == 1 and isinstance(index[0], PyObject):
            assign_attribute(t, owner, index[0].value, value, place)
        case Method(owner=RecordRef(array=array, type=FixedArray() as kind), name="fixed"):
            t.store(fixed_item(t, array, kind, index, place), (), t.number(value, place), place)
        case _:
            raise KernelTypeError(f"{describe(owner)} cannot be assigned by index", place)


def assign_record(t: Translator, target: RecordRef, value: Value, place: Place) -> None:
    if not isinstance(value, RecordRef) or value.type != target.type:
        raise KernelTypeError(
            f"cannot store {describe(value)} in a record", place, hint="assign its fields"
        )
    for name, _offset, kind in target.type.fields:
        if not isinstance(kind, DType):
            raise UnsupportedError(
                f"cannot copy the field `{name}` whole", place, hint="assign its parts"
            )
        assign_attribute(t, target, name, record_field(t, value, name, place), place)


def assign_view(t: Translator, view: ArrayRef, value: Value, place: Place) -> None:
    from ruda.jit import arrays

    arrays.assign_view(t, view, value, place)


def unpack(t: Translator, array: ArrayRef, place: Place) -> Value:
    """`a, b = x` for an array whose length is known."""
    shape = array.static_shape
    if shape is None or not shape:
        raise KernelTypeError(
            f"cannot unpack {array.describe()}: its length is not known", place, hint="index it"
        )
    return TupleValue(
        tuple(subscript(t, array, [ir.Const(k, INDEX)], place) for k in range(shape[0]))
    )
