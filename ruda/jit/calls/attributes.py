"""`owner.name`, read and assigned."""

from __future__ import annotations

import builtins
import difflib
import types
from dataclasses import replace
from typing import Any

import numpy as np

from ruda import dtypes
from ruda.dtypes import DType
from ruda.errors import (
    KernelNameError,
    KernelTypeError,
    Place,
    UnsupportedError,
)
from ruda.jit import intrinsics, ir
from ruda.jit.calls.device import coordinate
from ruda.jit.calls.objects import PRINT, object_name, refuse_group
from ruda.jit.calls.python import scalar_operation
from ruda.jit.frontend import EXPR, INDEX, ONE, Translator
from ruda.jit.language import Namespace, VectorType
from ruda.jit.types import FixedArray, RecordType
from ruda.jit.values import (
    ArrayRef,
    Axis,
    Method,
    PyObject,
    RecordRef,
    TupleValue,
    Value,
    describe,
)

AXES = {"x": 0, "y": 1, "z": 2}


def attribute(t: Translator, owner: Value, name: str, place: Place) -> Value:
    match owner:
        case PyObject(value):
            return object_attribute(t, value, name, place)
        case ArrayRef():
            return array_attribute(t, owner, name, place)
        case RecordRef():
            return record_field(t, owner, name, place)
        case TupleValue(items, names):
            if name in names:
                return items[names.index(name)]
            if name in ("x", "y", "z") and not names and AXES[name] < len(items):
                return items[AXES[name]]
            if name in ("index", "count"):
                return Method(owner, name)
        case Method(PyObject(group), "group"):
            if name != "sync":
                raise refuse_group(group, name, place)
            return Method(owner, name)
    if isinstance(owner, EXPR):
        if name in ("real", "imag"):
            return scalar_operation(t, intrinsics.TABLE[name], [owner], place)
        if name in ("conjugate", "conj"):
            return Method(owner, "conj")
        if name in ("item", "bit_count", "astype", "view"):
            return Method(owner, name)
        if name == "dtype":
            return PyObject(t.strong(owner).dtype if owner.dtype is not INDEX else dtypes.int64)
    raise KernelTypeError(f"{describe(owner)} has no attribute `{name}`", place)


def object_attribute(t: Translator, value: Any, name: str, place: Place) -> Value:
    ruda_name = getattr(value, "__ruda_name__", None)
    if ruda_name in ("threadIdx", "blockIdx", "blockDim", "gridDim"):
        if name not in AXES:
            raise KernelTypeError(f"`{ruda_name}` has x, y and z, not `{name}`", place)
        return coordinate(t, ruda_name, AXES[name], place)
    if isinstance(value, VectorType) and name in ("load", "store"):
        return Method(PyObject(value), name)
    if isinstance(value, DType) and name == "type":
        return PyObject(value)
    if isinstance(value, str) and name == "format":
        raise UnsupportedError("`format` is not in the kernel language", place, hint=PRINT)
    try:
        found = getattr(value, name)
    except AttributeError:
        raise missing_name(value, name, place) from None
    if getattr(found, "__ruda_name__", None) == "laneid":
        return ir.Special("laneid", place=place)
    if isinstance(value, types.ModuleType) and not isinstance(
        found,
        (types.ModuleType, types.FunctionType, types.BuiltinFunctionType, np.ufunc, type, DType),
    ):
        return t.capture(vars(value), name, f"{object_name(value)}.{name}", found, place)
    return t.wrap_object(found, place, name)


def missing_name(value: Any, name: str, place: Place) -> KernelNameError:
    """An attribute that a Python object does not have; of ruda's own, the remedy of its row."""
    from ruda import porting

    kind = "module" if isinstance(value, types.ModuleType) else type(value).__name__
    shown, known, prefix = object_name(value), dir(value), None
    if isinstance(value, Namespace):
        kind, shown, prefix = "", f"ruda.{value._name}", f"{value._name}."
    elif isinstance(value, porting.Group):
        kind, shown, prefix = "", f"ruda.{value.__name__}", f"{value.__name__}."
        known = [r.name.removeprefix(prefix) for r in porting.rows() if r.name.startswith(prefix)]
    elif shown == "ruda":
        prefix = ""
    close = difflib.get_close_matches(name, known, 1)
    hint = f"did you mean `{close[0]}`?" if close else None
    if value is np and hasattr(builtins, name):
        hint = (
            f"write `{name}`, or a dtype such as `np.{name}64`"
            if name in ("int", "float")
            else (f"write `{name}`")
        )
    for row in porting.rows() if prefix is not None else ():
        if row.name == f"{prefix}{name}" and row.text:
            hint = row.text
    return KernelNameError(f"{kind} `{shown}` has no attribute `{name}`".strip(), place, hint=hint)


ARRAY_METHODS = (
    "sum", "prod", "min", "max", "mean", "any", "all", "argmin", "argmax", "fill", "dot", "copy",
    "astype", "item", "reshape", "ravel", "flatten", "view", "transpose", "var", "std",
)  # fmt: skip


def array_attribute(t: Translator, array: ArrayRef, name: str, place: Place) -> Value:
    match name:
        case "shape":
            return TupleValue(tuple(a.extent for a in array.axes))
        case "size":
            size: ir.Expr = ONE
            for a in array.axes:
                size = t.operation("mul", (size, a.extent), place)
            return size
        case "ndim":
            return ir.Const(array.ndim, dtypes.weak_int, place=place)
        case "dtype":
            return PyObject(array.element)
        case "itemsize":
            return ir.Const(element_size(array), dtypes.weak_int, place=place)
        case "nbytes":
            size = array_attribute(t, array, "size", place)  # type: ignore[assignment]
            return t.operation("mul", (size, ir.Const(element_size(array), INDEX)), place)
        case "strides":
            return TupleValue(tuple(stride(t, array, a, place) for a in array.axes))
        case "T":
            return replace(array, axes=array.axes[::-1])
        case "flat":
            return Method(array, "ravel")
        case "real" | "imag" if isinstance(array.element, DType):
            kind = array.element
            if kind.kind == "complex":
                offset = (array.field[0] if array.field else 0) + (
                    kind.real.itemsize if name == "imag" else 0
                )
                return replace(array, field=(offset, kind.real))
    if isinstance(array.element, RecordType) and array.element.field(name) is not None:
        return array_field(t, array, name, place)
    if name in ARRAY_METHODS:
        return Method(array, name)
    raise KernelTypeError(f"{array.describe()} has no attribute `{name}`", place)


def element_size(array: ArrayRef) -> int:
    kind = array.element
    if isinstance(kind, FixedArray):
        return kind.dtype.itemsize * int(np.prod(kind.shape))
    return kind.itemsize


def stride(t: Translator, array: ArrayRef, axis: Axis, place: Place) -> ir.Expr:
    root = array.root
    if root.space == "global" and root.layout != "C":
        step: ir.Expr = ir.Stride(root, axis.root_axis)
    else:
        step = ir.Const(root.dtype.itemsize, INDEX)
        for k in range(axis.root_axis + 1, root.ndim):
            extent = ir.Const(root.shape[k], INDEX) if root.shape else ir.Extent(root, k)
            step = t.operation("mul", (step, extent), place)
    return t.operation("mul", (step, axis.step), place)


def array_field(t: Translator, array: ArrayRef, name: str, place: Place) -> Value:
    """`records["x"]` or `records.x`: the view of one field."""
    kind = array.element
    assert isinstance(kind, RecordType)
    found = kind.field(name)
    if found is None:
        raise KernelNameError(f"{array.describe()} has no field `{name}`", place)
    offset = found[0] + (array.field[0] if array.field else 0)
    return replace(array, field=(offset, found[1]))


def record_field(t: Translator, record: RecordRef, name: str, place: Place) -> Value:
    found = record.type.field(name)
    if found is None:
        names = [n for n, _, _ in record.type.fields]
        close = difflib.get_close_matches(name, names, 1)
        raise KernelNameError(
            f"the record has no field `{name}`; it has {', '.join(names)}",
            place,
            hint=f"did you mean `{close[0]}`?" if close else None,
        )
    return field_value(t, record, record.offset + found[0], found[1], place)


def field_value(t: Translator, record: RecordRef, offset: int, kind: Any, place: Place) -> Value:
    base = record.array.field[0] if record.array.field else 0
    if isinstance(kind, RecordType):
        return RecordRef(record.array, kind, offset)
    array = replace(record.array, field=(base + offset, kind))
    if isinstance(kind, FixedArray):
        return Method(RecordRef(array, kind, offset), "fixed")  # type: ignore[arg-type]
    return t.load(array, (), place)


def assign_attribute(t: Translator, owner: Value, name: str, value: Value, place: Place) -> None:
    if isinstance(owner, RecordRef):
        found = owner.type.field(name)
        if found is None:
            raise KernelNameError(f"the record has no field `{name}`", place)
        base = owner.array.field[0] if owner.array.field else 0
        array = replace(owner.array, field=(base + owner.offset + found[0], found[1]))
        if not isinstance(found[1], DType):
            raise UnsupportedError(
                f"cannot assign the field `{name}` whole", place, hint="assign its parts"
            )
        t.store(array, (), t.number(value, place), place)
        return
    if isinstance(owner, PyObject):
        raise UnsupportedError(
            f"a kernel cannot change `{object_name(owner.value)}`",
            place,
            hint="write to an array argument",
        )
    raise KernelTypeError(f"{describe(owner)} has no attribute `{name}` to assign", place)
