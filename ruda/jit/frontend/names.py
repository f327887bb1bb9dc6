"""Names: what they are bound to, and what they stand for where they are read."""

from __future__ import annotations

import builtins
import enum
from dataclasses import replace
from typing import Any

import numpy as np

from ruda import dtypes
from ruda.dtypes import DType, as_dtype
from ruda.errors import (
    DTypeError,
    KernelNameError,
    KernelTypeError,
    Place,
)
from ruda.jit import ir
from ruda.jit.frontend.scalars import Scalars
from ruda.jit.frontend.state import (
    EXPR,
    INDEX,
    ONE,
    ZERO,
    Slot,
    Unresolved,
)
from ruda.jit.types import (
    RecordType,
    element_type,
)
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
    whole,
)


class Names(Scalars):
    """Binding and looking up, in the function, its closure, its module and the builtins."""

    def bind(self, name: str, value: Value, place: Place) -> None:
        """`name = value`. A name assigned in one place stands for a compile-time value itself."""
        scope = self.scope
        key = scope.prefix + name
        once = scope.definition.assigned.get(name, 0) <= 1
        if once and not isinstance(value, EXPR):
            scope.names[name] = self.settled(value)
            self.remember(key, scope.names[name], place)
            return
        if (
            once
            and name not in scope.definition.conditional
            and isinstance(value, EXPR)
            and value.dtype.weak
            and value.dtype is not INDEX
            and self.is_host(value)
        ):
            scope.names[name] = value
            self.remember(key, value, place)
            return
        scope.names[name] = self.bind_key(key, value, place)

    def remember(self, key: str, value: Value, place: Place, *, once: bool = True) -> None:
        """What a name stands for, for reads above its assignment (the loop comes round)."""
        slot = self.slots.get(key)
        if slot is None or (once and slot.value != value):
            self.slots[key] = Slot("object", None, value, place)
            self.dirty = True

    def settled(self, value: Value) -> Value:
        """The value with index expressions computed now, so that later assignments cannot change
        them."""
        match value:
            case ArrayRef():
                axes = tuple(
                    replace(
                        a, start=self.pin(a.start), step=self.pin(a.step), extent=self.pin(a.extent)
                    )
                    for a in value.axes
                )
                fixed = tuple(None if f is None else self.pin(f) for f in value.fixed)
                selector = None if value.selector is None else self.pin(value.selector)
                return replace(value, axes=axes, fixed=fixed, selector=selector)
            case RecordRef():
                array = self.settled(value.array)
                assert isinstance(array, ArrayRef)
                return replace(value, array=array)
            case TupleValue():
                return replace(value, items=tuple(self.settled(v) for v in value.items))
            case RangeValue(start, stop, step):
                return replace(
                    value, start=self.pin(start), stop=self.pin(stop), step=self.pin(step)
                )
        if isinstance(value, EXPR):
            return self.pin(value)
        return value

    def keep(self, value: Value) -> Value:
        """The value as it is now, whatever is assigned or stored later."""
        if isinstance(value, EXPR):
            loads = any(isinstance(e, (ir.Load, ir.Read)) for e in ir.walk(value))
            return self.temporary(value) if loads else value
        if isinstance(value, TupleValue):
            return replace(value, items=tuple(self.keep(v) for v in value.items))
        return self.settled(value)

    def pin(self, e: ir.Expr) -> ir.Expr:
        if all(
            isinstance(x, (ir.Const, ir.Special, ir.Extent, ir.Stride))
            or (isinstance(x, ir.Op) and len(x.operands) <= 2)
            or (isinstance(x, ir.Read) and self.is_fixed(x.variable))
            for x in ir.walk(e)
        ):
            return e
        return self.temporary(e)

    def is_fixed(self, variable: ir.Variable) -> bool:
        """A parameter or a temporary: nothing assigns it again while its value is wanted."""
        return variable in self.parameters

    def bind_key(self, key: str, value: Value, place: Place) -> Value:
        slot = self.slots.get(key)
        if slot is not None and slot.kind == "object":
            slot = None
        match value:
            case TupleValue(items, names, cls):
                if slot is not None and (slot.kind != "tuple" or slot.value[0] != len(items)):
                    if slot.kind == "tuple":
                        raise KernelTypeError(
                            f"`{key.rsplit('.', 1)[-1]}` is a tuple of {slot.value[0]} at line "
                            f"{slot.place.line} and of {len(items)} here",
                            place,
                            hint="use tuples of one length, or a local array",
                        )
                    self.mixed(key, slot, value, place)
                if slot is None:
                    self.slots[key] = Slot("tuple", None, (len(items), names, cls), place)
                    self.dirty = True
                # All items first: `a, b = b, a`.
                items = tuple(self.settled(v) if len(items) > 1 else v for v in items)
                bound = [self.bind_key(f"{key}.{k}", v, place) for k, v in enumerate(items)]
                return TupleValue(tuple(bound), names, cls)
            case ArrayRef():
                return self.bind_array(key, value, slot, place)
            case RecordRef():
                array = self.bind_array(
                    f"{key}.record", value.array, self.slots.get(f"{key}.record"), place
                )
                assert isinstance(array, ArrayRef)
                return replace(value, array=array)
            case PyObject() | Method() | RangeValue():
                if slot is not None and slot.kind != "static":
                    self.mixed(key, slot, value, place)
                if slot is not None and slot.value != value:
                    raise KernelTypeError(
                        f"`{key.rsplit('.', 1)[-1]}` is {describe(slot.value)} at line "
                        f"{slot.place.line} and {describe(value)} here",
                        place,
                        hint="a Python object must be known while compiling: use two names",
                    )
                if slot is None:
                    self.slots[key] = Slot("static", None, value, place)
                    self.dirty = True
                return value
        return self.assign(key, value, place)

    def bind_array(self, key: str, value: ArrayRef, slot: Slot | None, place: Place) -> Value:
        """A variable that holds one of several arrays: index variables and, if needed, a
        selector."""
        roots = list(value.roots)
        if slot is not None:
            if slot.kind != "array":
                self.mixed(key, slot, value, place)
            old: ArrayRef = slot.value
            same = (
                old.ndim == value.ndim
                and old.element == value.element
                and old.root.space == value.root.space
                and [a.root_axis for a in old.axes] == [a.root_axis for a in value.axes]
                and len(old.fixed) == len(value.fixed)
                and old.field == value.field
            )
            if not same:
                raise KernelTypeError(
                    f"`{key.rsplit('.', 1)[-1]}` is {old.describe()} at line {slot.place.line} "
                    f"and {value.describe()} here: a variable may hold several arrays only of one "
                    "space, dtype and form",
                    place,
                    hint="use two names",
                )
            known = list(old.roots)
            roots = known + [r for r in roots if r not in known]
        if slot is None or tuple(roots) != slot.value.roots:
            shape = ArrayRef(tuple(roots), value.fixed, value.axes, None, value.field)
            self.slots[key] = Slot("array", None, shape, slot.place if slot else place)
            self.dirty = True
        value = self.settled(value)  # type: ignore[assignment]
        selector: ir.Expr | None = None
        if len(roots) > 1:
            number: ir.Expr = ir.Const(roots.index(value.root), dtypes.int32)
            if len(value.roots) > 1:
                assert value.selector is not None
                number = ir.Const(roots.index(value.roots[-1]), dtypes.int32)
                for k, root in reversed(list(enumerate(value.roots[:-1]))):
                    here = ir.Op("eq", (value.selector, ir.Const(k, dtypes.int32)), dtypes.bool_)
                    number = ir.Select(here, ir.Const(roots.index(root), dtypes.int32), number)
            selector = self.assign(f"{key}.which", number, place)
        axes = []
        for k, axis in enumerate(value.axes):
            extent = axis.extent
            if not (isinstance(extent, ir.Const) and all(r.shape is not None for r in roots)):
                extent = self.assign(f"{key}.extent{k}", extent, place)
            start = (
                axis.start
                if axis.start == ZERO
                else self.assign(f"{key}.start{k}", axis.start, place)
            )
            step = (
                axis.step if axis.step == ONE else self.assign(f"{key}.step{k}", axis.step, place)
            )
            axes.append(Axis(axis.root_axis, start, step, extent))
        fixed = tuple(
            None if f is None else self.assign(f"{key}.index{k}", f, place)
            for k, f in enumerate(value.fixed)
        )
        return ArrayRef(tuple(roots), fixed, tuple(axes), selector, value.field)

    def lookup(self, name: str, place: Place) -> Value:
        scope = self.scope
        if name in scope.names:
            value = scope.names[name]
            return self.refresh(scope.prefix + name, value, place)
        if name in scope.definition.assigned:
            if (place.line, name) in scope.definition.unassigned:
                raise KernelNameError(
                    f"local variable `{name}` is read before anything is assigned to it", place
                )
            slot = self.slots.get(scope.prefix + name)
            if slot is None:
                raise Unresolved(name, place)
            return self.from_slot(scope.prefix + name, slot, place)
        if name in scope.cells:
            cell = scope.cells[name]
            try:
                content = cell.cell_contents
            except ValueError:  # empty: not assigned yet, or deleted
                raise KernelNameError(f"variable `{name}` has no value", place) from None
            return self.capture(cell, "cell_contents", name, content, place)
        if name in scope.globals:
            return self.capture(scope.globals, name, name, scope.globals[name], place)
        if hasattr(builtins, name):
            return PyObject(getattr(builtins, name))
        raise KernelNameError(f"name `{name}` is not defined", place, hint=self.similar_name(name))

    def similar_name(self, name: str) -> str | None:
        import difflib

        known = [*self.scope.names, *self.scope.definition.assigned, *self.scope.globals]
        close = difflib.get_close_matches(name, known, 1)
        return f"did you mean `{close[0]}`?" if close else None

    def refresh(self, key: str, value: Value, place: Place) -> Value:
        """A variable read now has the dtype known now."""
        if isinstance(value, ir.Read):
            return replace(value, place=place)
        return value

    def from_slot(self, key: str, slot: Slot, place: Place) -> Value:
        """A name read above the assignment that gives its type (the loop comes round)."""
        match slot.kind:
            case "scalar":
                assert slot.dtype is not None
                return ir.Read(self.variable(key, slot.dtype), place=place)
            case "tuple":
                count, names, cls = slot.value
                items = []
                for k in range(count):
                    inner = self.slots.get(f"{key}.{k}")
                    if inner is None:
                        raise Unresolved(key.rsplit(".", 1)[-1], place)
                    items.append(self.from_slot(f"{key}.{k}", inner, place))
                return TupleValue(tuple(items), names, cls)
            case "object" | "static":
                return slot.value  # type: ignore[no-any-return]
        raise Unresolved(key.rsplit(".", 1)[-1], place)

    def capture(self, holder: Any, key: str, name: str, value: Any, place: Place) -> Value:
        """A global or closure value is a constant of this specialisation."""
        self.captures[(id(holder), key)] = (holder, key, value)
        return self.wrap_object(value, place, name)

    def wrap_object(self, value: Any, place: Place, name: str = "") -> Value:
        """A Python object as a compile-time value."""
        if isinstance(value, (bool, np.bool_)):
            return ir.Const(bool(value), dtypes.bool_, place=place)
        if isinstance(value, enum.Enum) and isinstance(value.value, (int, float)):
            return self.wrap_object(value.value, place, name)
        if isinstance(value, int):
            return ir.Const(int(value), dtypes.weak_int, place=place)
        if isinstance(value, np.generic):
            if value.dtype.names is not None:
                return self.constant_array(np.array([value]), place, record=True)
            dtype = self.dtype_of(value.dtype, place)
            return ir.Const(
                value.item() if dtype.name != "bfloat16" else float(value), dtype, place=place
            )
        if isinstance(value, float):
            return ir.Const(float(value), dtypes.weak_float, place=place)
        if isinstance(value, complex):
            return ir.Const(complex(value), dtypes.weak_complex, place=place)
        if isinstance(value, tuple):
            items = tuple(self.wrap_object(v, place, name) for v in value)
            names = getattr(type(value), "_fields", ())
            return TupleValue(items, tuple(names), type(value) if names else None)
        if isinstance(value, np.ndarray):
            return self.constant_array(value, place, name=name)
        if hasattr(value, "__ruda_array_type__"):
            raise KernelTypeError(
                f"`{name}` is an array on a device and cannot be captured",
                place,
                hint="pass it as an argument",
            )
        return PyObject(value)

    def dtype_of(self, dtype: Any, place: Place) -> DType:
        try:
            return as_dtype(dtype)
        except DTypeError as error:
            raise KernelTypeError(str(error), place) from None

    def constant_array(
        self,
        value: np.ndarray[Any, Any],
        place: Place,
        name: str = "constant",
        record: bool = False,
    ) -> Value:
        """A captured NumPy array: read-only data of the kernel, shared by equal captures."""
        try:
            dtype = element_type(value.dtype)
        except DTypeError as error:
            raise KernelTypeError(f"the captured array `{name}`: {error}", place) from None
        data = np.ascontiguousarray(value).tobytes()
        key = (data, value.shape, str(value.dtype))
        if key not in self.constants:
            array = ir.Array(
                self.unique(name or "constant"), dtype, value.ndim, "const", "C",
                tuple(value.shape), readonly=True, data=data,
            )  # fmt: skip
            self.constants[key] = self.arrays[array.name] = array
        view = whole(self.constants[key])
        if record:
            assert isinstance(dtype, RecordType)
            return RecordRef(replace(view, fixed=(ZERO,), axes=()), dtype)
        return view
