"""Elements of views: indices of the root array, negative indices, loads and stores."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ruda import dtypes
from ruda.dtypes import DType
from ruda.errors import (
    KernelTypeError,
    KernelValueError,
    Place,
)
from ruda.jit import ir
from ruda.jit.frontend.names import Names
from ruda.jit.frontend.state import (
    INDEX,
    ZERO,
)
from ruda.jit.values import (
    ArrayRef,
    Axis,
    describe,
)


class Elements(Names):
    """Access to array elements."""

    def root_indices(
        self, array: ArrayRef, indices: Sequence[ir.Expr], place: Place
    ) -> tuple[ir.Expr, ...]:
        """Indices of the root for wrapped indices of a view."""
        out: list[ir.Expr] = [f if f is not None else ZERO for f in array.fixed]
        for axis, i in zip(array.axes, indices, strict=True):
            out[axis.root_axis] = self.root_index(axis, i, place)
        return tuple(out)

    def root_index(self, axis: Axis, i: ir.Expr, place: Place) -> ir.Expr:
        """The index of the root for a wrapped index along an axis of a view."""
        scaled = self.operation("mul", (i, axis.step), place)
        return self.operation("add", (axis.start, scaled), place)

    def index_along(self, root: ir.Array, axis: Axis, i: ir.Expr, place: Place) -> ir.Expr:
        """An index as the user wrote it, wrapped, and marked where a view is smaller than its root:
        the check of the root's bounds would not see that it is outside."""
        at = self.wrapped(i, axis.extent, place)
        constant = isinstance(at, ir.Const) and isinstance(axis.extent, ir.Const)
        if constant or axis.is_whole(root):
            return at
        return ir.Op("within", (at, axis.extent), INDEX, place=place)

    def wrapped(self, i: ir.Expr, extent: ir.Expr, place: Place) -> ir.Expr:
        """Python's negative indices; the proof that there are none is left to a pass."""
        written, i = i, self.as_index(i)
        if isinstance(written, ir.Const):
            value, n = int(written.value), extent.value if isinstance(extent, ir.Const) else None
            limit = 2**63 if n is None else int(n)
            if not -limit <= value < limit:
                size = "any axis" if n is None else f"an axis of {n}"
                raise KernelValueError(f"index {value} is out of range for {size}", place)
            if value < 0 and n is None:
                return ir.Op("wrap", (i, extent), INDEX, place=place)
            return ir.Const(value if value >= 0 else value + limit, INDEX, place=place)
        unsigned = written.dtype.kind == "uint"
        if unsigned or isinstance(i, (ir.Special, ir.Extent)) or not self.options.wraparound:
            return i  # what no int64 holds is negative here, and so outside
        return ir.Op("wrap", (i, extent), INDEX, place=place)

    def element_indices(
        self, array: ArrayRef, indices: Sequence[ir.Expr], place: Place
    ) -> tuple[ir.Expr, ...]:
        wrapped = [
            self.index_along(array.root, axis, i, place)
            for axis, i in zip(array.axes, indices, strict=True)
        ]
        return self.root_indices(array, wrapped, place)

    def field_of(self, array: ArrayRef) -> ir.Field | None:
        if array.field is None:
            return None
        offset, kind = array.field
        assert isinstance(kind, DType)
        return ir.Field(offset, kind)

    def load(self, array: ArrayRef, indices: Sequence[ir.Expr], place: Place) -> ir.Expr:
        """The element of a view at as many indices as it has axes."""
        at = self.element_indices(array, indices, place)
        if len(array.roots) == 1:
            return ir.Load(array.root, at, self.field_of(array), place=place)
        key = f".{self.unique('element')}"
        result: Any = None

        def one(root: ir.Array) -> None:
            nonlocal result
            load = ir.Load(root, self.for_root(array, root, at), self.field_of(array), place=place)
            result = self.assign(key, load, place)

        self.choose(array, one, place)
        return result  # type: ignore[no-any-return]

    def for_root(
        self, array: ArrayRef, root: ir.Array, at: tuple[ir.Expr, ...]
    ) -> tuple[ir.Expr, ...]:
        return at

    def store(
        self, array: ArrayRef, indices: Sequence[ir.Expr], value: ir.Expr, place: Place
    ) -> None:
        self.check_writable(array, place)
        kind = array.element
        assert isinstance(kind, DType)
        at = self.element_indices(array, indices, place)
        if value.dtype.kind == "complex" and kind.kind != "complex":
            raise KernelTypeError(
                f"cannot store {describe(value)} in {array.describe()}", place, hint="take `.real`"
            )
        converted = self.coerce(value, kind, feeds=True)

        def one(root: ir.Array) -> None:
            self.emit(ir.Store(root, at, converted, self.field_of(array), place=place))

        self.choose(array, one, place)

    def check_writable(self, array: ArrayRef, place: Place) -> None:
        for root in array.roots:
            if root.space == "const":
                raise KernelTypeError(
                    f"`{root.name.partition('@')[0]}` is a captured constant and cannot be written",
                    place,
                    hint="pass it as an argument",
                )
            if root.readonly:
                raise KernelTypeError(
                    f"`{root.name}` is read-only and cannot be written", place, hint="pass a copy"
                )

    def choose(self, array: ArrayRef, action: Callable[[ir.Array], None], place: Place) -> None:
        """Do something with the root that the selector picks."""
        if len(array.roots) == 1:
            action(array.root)
            return
        assert array.selector is not None
        bodies = []
        for root in array.roots:
            with self.block() as body:
                action(root)
            bodies.append(tuple(body))
        chain: ir.Body = bodies[-1]
        for k in range(len(bodies) - 2, -1, -1):
            test = ir.Op(
                "eq", (array.selector, ir.Const(k, dtypes.int32)), dtypes.bool_, place=place
            )
            chain = (ir.If(test, bodies[k], chain, place=place),)
        self.body += chain
