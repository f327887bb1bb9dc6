"""Names of ruda: coordinates, memory, barriers, warps, fences, atomics."""

from __future__ import annotations

import ast
import math
from dataclasses import replace
from typing import Any

import numpy as np

from ruda import dtypes
from ruda.dtypes import DType, as_dtype
from ruda.errors import (
    DTypeError,
    KernelTypeError,
    KernelValueError,
    Place,
)
from ruda.jit import ir
from ruda.jit.calls.call import HANDLERS, Call, handler
from ruda.jit.frontend import EXPR, INDEX, ZERO, NeedsBlock, Translator
from ruda.jit.types import RecordType
from ruda.jit.values import (
    ArrayRef,
    Method,
    PyObject,
    RangeValue,
    TupleValue,
    Value,
    describe,
    whole,
)


def coordinate(t: Translator, name: str, axis: int, place: Place) -> ir.Expr:
    if name == "blockDim" and t.options.block is not None:
        return ir.Const(t.options.block[axis], INDEX, place=place)
    return ir.Special(name, axis, place=place)


def dimensions(c: Call, name: str) -> Value:
    (n,) = c.numbers("ndim")
    if not isinstance(n, ir.Const) or n.value not in (1, 2, 3):
        raise KernelValueError(f"`{c.name}` takes the constant 1, 2 or 3", c.place)
    items = tuple(ir.Special(name, k, place=c.place) for k in range(n.value))
    return items[0] if n.value == 1 else TupleValue(items)


@handler("grid")
def _grid(c: Call) -> Value:
    return dimensions(c, "globalIdx")


@handler("gridsize")
def _gridsize(c: Call) -> Value:
    return dimensions(c, "globalDim")


@handler("shared.array")
def _shared_array(c: Call) -> Value:
    return new_array(c, "shared")


@handler("local.array")
def _local_array(c: Call) -> Value:
    return new_array(c, "local")


def new_array(c: Call, space: str) -> Value:
    shape, kind, *_ = c.bind("shape", "dtype", "alignas", optional=1)
    dims = shape.items if isinstance(shape, TupleValue) else (shape,)
    extents = tuple(static_int(c, d, space) for d in dims)  # type: ignore[arg-type]
    dtype = dtype_argument(c.t, kind, c.place)
    if any(e < 0 for e in extents):
        raise KernelValueError(f"a shape cannot be negative: {extents}", c.place)
    dynamic = space == "shared" and extents == (0,)
    check_size(c, space, math.prod(extents) * dtype.itemsize)
    name = target_name(c)
    array = ir.Array(
        c.t.unique(name), dtype, len(extents), space, "C", None if dynamic else extents, dynamic
    )
    c.t.arrays[array.name] = array
    c.t.emit(ir.Declare(array, place=c.place))
    return whole(array)


# Bytes that one kernel may declare: more than any device has, far less than an address holds.
LIMITS = {"shared": 1 << 20, "local": 1 << 30}


def check_size(c: Call, space: str, more: int) -> None:
    """Refuse arrays that no device has room for, with both numbers."""
    used = sum(
        math.prod(a.shape) * a.dtype.itemsize
        for a in c.t.arrays.values()
        if a.space == space and a.shape is not None
    )
    if used + more > LIMITS[space]:
        raise KernelValueError(
            f"the {space} arrays of this kernel need {used + more} bytes; "
            f"{LIMITS[space]} are possible",
            c.place,
        )


def target_name(c: Call) -> str:
    """The name that the new array is assigned to, for readable code."""
    for node in ast.walk(c.t.scope.definition.tree):
        if (
            isinstance(node, ast.Assign)
            and node.value is c.node
            and isinstance(node.targets[0], ast.Name)
        ):
            return node.targets[0].id
    return "buffer"


def static_int(c: Call, value: Value, space: str) -> int:
    e = value if isinstance(value, EXPR) else None
    if isinstance(e, ir.Const) and (e.dtype.is_integer or e.dtype is INDEX):
        return int(e.value)
    if (
        e is not None
        and c.t.options.block is None
        and any(isinstance(x, ir.Special) and x.name == "blockDim" for x in ir.walk(e))
    ):
        raise NeedsBlock
    if isinstance(e, ir.Const):
        raise KernelTypeError(
            f"the shape of a {space} array is made of integers, not {describe(e)}", c.place,
            hint="use `//`, or `int(...)`",
        )  # fmt: skip
    hint = "use a constant, a `ruda.constexpr` parameter, or ruda.blockDim"
    if space == "shared":
        hint += "; or shape 0 for dynamic shared memory"
    raise KernelTypeError(
        f"the shape of a {space} array must be known when the kernel is compiled",
        c.place,
        hint=hint,
    )


def dtype_argument(t: Translator, value: Value | None, place: Place) -> DType | RecordType:
    if isinstance(value, PyObject):
        from ruda.jit.types import parse_type, record_type

        try:
            if isinstance(value.value, np.dtype) and value.value.names is not None:
                return record_type(value.value)
            if value.value in (int, float, bool, complex):
                return as_dtype(value.value)
            found = parse_type(value.value)
            if isinstance(found, (DType, RecordType)):
                return found
        except (DTypeError, TypeError) as error:
            raise KernelTypeError(str(error), place) from None
    raise KernelTypeError(
        f"expected a dtype, got {describe(value)}", place, hint="for example ruda.float32"
    )


@handler("const.array_like")
def _const_array_like(c: Call) -> Value:
    (a,) = c.bind("array")
    if isinstance(a, ArrayRef) and a.root.space == "const":
        return a
    raise KernelTypeError("`const.array_like` takes a captured NumPy array", c.place)


def barrier(c: Call, vote: str | None) -> Value:
    result = predicate = None
    if vote is not None:
        (v,) = c.bind("predicate")
        assert v is not None
        predicate = c.t.truth(v, c.place)
        result = fresh(c.t, "vote", dtypes.int32)
    else:
        c.bind()
    c.t.emit(ir.Barrier("block", vote, predicate, result, place=c.place))
    return PyObject(None) if result is None else ir.Read(result, place=c.place)


def fresh(t: Translator, name: str, dtype: DType) -> ir.Variable:
    return ir.Variable(f".{t.unique(name)}", dtype)


@handler("syncthreads", "syncthreads_and", "syncthreads_or", "syncthreads_count")
def _syncthreads(c: Call) -> Value:
    return barrier(c, c.name.removeprefix("syncthreads").removeprefix("_") or None)


def mask_of(c: Call, value: Any) -> ir.Expr:
    if value is None:
        return ir.Const(0xFFFFFFFF, dtypes.uint32, place=c.place)
    if isinstance(value, ir.Const) and value.dtype is dtypes.weak_int:
        return ir.Const(value.value & 0xFFFFFFFF, dtypes.uint32, place=c.place)
    return c.t.cast(value, dtypes.uint32, c.place)


@handler("syncwarp")
def _syncwarp(c: Call) -> Value:
    (mask,) = c.numbers("mask", optional=1)
    c.t.emit(ir.Barrier("warp", mask=mask_of(c, mask), place=c.place))
    return PyObject(None)


def shuffle(c: Call) -> Value:
    last = {"shfl_sync": "src_lane", "shfl_xor_sync": "lane_mask"}.get(c.name, "delta")
    mask, value, lane, width = c.numbers("mask", "value", last, "width", optional=1)
    value = c.t.strong(value)
    if value.dtype is INDEX:
        value = c.t.coerce(value, dtypes.int64)
    width = ir.Const(32, dtypes.int32) if width is None else c.t.cast(width, dtypes.int32, c.place)
    if isinstance(width, ir.Const) and width.value not in (1, 2, 4, 8, 16, 32):
        raise KernelValueError("`width` must be a power of two up to 32", c.place)
    op = c.name.removesuffix("_sync")
    result = fresh(c.t, op, value.dtype)
    lane = c.t.cast(lane, dtypes.int32, c.place)
    c.t.emit(ir.Warp(op, mask_of(c, mask), (value, lane, width), result, place=c.place))
    return ir.Read(result, place=c.place)


for _name in ("shfl_sync", "shfl_up_sync", "shfl_down_sync", "shfl_xor_sync"):
    HANDLERS[_name] = shuffle


def vote(c: Call) -> Value:
    mask, predicate = c.bind("mask", "predicate")
    op = c.name.removesuffix("_sync")
    dtype = dtypes.uint32 if op == "ballot" else dtypes.bool_
    result = fresh(c.t, op, dtype)
    number = mask_of(c, c.t.number(mask, c.place))  # type: ignore[arg-type]
    assert predicate is not None
    c.t.emit(ir.Warp(op, number, (c.t.truth(predicate, c.place),), result, place=c.place))
    return ir.Read(result, place=c.place)


for _name in ("all_sync", "any_sync", "eq_sync", "ballot_sync"):
    HANDLERS[_name] = vote


@handler("match_any_sync", "match_all_sync")
def _match(c: Call) -> Value:
    mask, value = c.numbers("mask", "value")
    value = c.t.strong(value)
    if value.dtype is INDEX:
        value = c.t.coerce(value, dtypes.int64)
    op = c.name.removesuffix("_sync")
    result = fresh(c.t, op, dtypes.uint32)
    c.t.emit(ir.Warp(op, mask_of(c, mask), (value,), result, place=c.place))
    read = ir.Read(result, place=c.place)
    if op == "match_any":
        return read
    return TupleValue((read, c.t.operation("ne", (read, ir.Const(0, dtypes.weak_int)), c.place)))


@handler("activemask")
def _activemask(c: Call) -> Value:
    result = fresh(c.t, "activemask", dtypes.uint32)
    c.t.emit(ir.Warp("activemask", None, (), result, place=c.place))
    return ir.Read(result, place=c.place)


@handler("lanemask_lt")
def _lanemask_lt(c: Call) -> Value:
    lane = c.t.cast(ir.Special("laneid"), dtypes.uint32, c.place)
    one = ir.Const(1, dtypes.uint32)
    shifted = c.t.operation("shl", (one, lane), c.place)
    return c.t.operation("sub", (shifted, one), c.place)


@handler("nanosleep")
def _nanosleep(c: Call) -> Value:
    c.numbers("nanoseconds")
    return PyObject(None)


@handler("threadfence", "threadfence_block", "threadfence_system")
def _fence(c: Call) -> Value:
    scope = {"threadfence": "device", "threadfence_block": "block", "threadfence_system": "system"}
    c.bind()
    c.t.emit(ir.Fence(scope[c.name], place=c.place))
    return PyObject(None)


@handler("selp")
def _selp(c: Call) -> Value:
    condition, then, otherwise = c.numbers("condition", "then", "otherwise")
    test = c.t.truth(condition, c.place)
    return c.t.select(test, c.t.keep(then), c.t.keep(otherwise), c.place)  # type: ignore[arg-type]


@handler("uniform")
def _uniform(c: Call) -> Value:
    (value,) = c.numbers("value")
    value = c.t.strong(value)
    return ir.Op("uniform", (value,), value.dtype, place=c.place)


@handler("cg.this_grid", "cg.this_thread_block")
def _group(c: Call) -> Value:
    c.bind()
    return Method(PyObject(c.name), "group")


@handler("unroll")
def _unroll(c: Call) -> Value:
    (value,) = c.bind("iterable")
    if isinstance(value, RangeValue):
        return replace(value, unroll=True)
    assert value is not None
    return value


def atomic(c: Call) -> Value:
    op = {"compare_and_swap": "cas", "and_": "and", "or_": "or"}.get(c.name, c.name)
    if c.name == "compare_and_swap":
        array, *operands = c.bind("array", "old", "val")
        index: Value | None = ZERO
    elif op == "cas":
        array, index, *operands = c.bind("array", "index", "old", "val")
    else:
        array, index, *operands = c.bind("array", "index", "value")
    if not isinstance(array, ArrayRef):
        raise KernelTypeError(
            f"`atomic.{c.name}` works on an array, not {describe(array)}", c.place
        )
    items = index.items if isinstance(index, TupleValue) else (index,)
    if len(items) != array.ndim:
        raise KernelTypeError(
            f"`atomic.{c.name}` on {array.describe()} needs {array.ndim} indices, got {len(items)}",
            c.place,
        )
    kind = array.element
    if not isinstance(kind, DType) or kind.kind == "complex" or kind.kind == "bool":
        raise KernelTypeError(f"atomics work on integers and floats, not on {kind}", c.place)
    if op in ("and", "or", "xor", "inc", "dec") and not kind.is_integer:
        raise KernelTypeError(f"`atomic.{c.name}` needs integers, not {kind}", c.place)
    c.t.check_writable(array, c.place)
    values = []
    for v in operands:
        e = c.t.number(v, c.place)  # type: ignore[arg-type]
        if e.dtype.kind == "complex":
            raise KernelTypeError(f"cannot use {describe(e)} on {array.describe()}", c.place)
        values.append(c.t.coerce(e, kind, feeds=True))
    indices = [c.t.number(i, c.place, "an index") for i in items]  # type: ignore[arg-type]
    at = c.t.element_indices(array, indices, c.place)
    result = fresh(c.t, "old", kind)

    def one(root: ir.Array) -> None:
        c.t.emit(ir.Atomic(op, root, at, tuple(values), result, c.t.field_of(array), place=c.place))

    c.t.choose(array, one, c.place)
    return ir.Read(result, place=c.place)


for _name in (
    "add", "sub", "max", "min", "nanmax", "nanmin", "and_", "or_", "xor", "inc", "dec", "exch",
    "cas", "compare_and_swap",
):  # fmt: skip
    HANDLERS[f"atomic.{_name}"] = atomic
