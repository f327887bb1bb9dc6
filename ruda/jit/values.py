"""What a name can stand for while a kernel is translated.

A scalar is an `ir.Expr` itself. Arrays, tuples, records and Python objects exist only at compile
time: by the time IR comes out, an array is a root and indices, a tuple is its items.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ruda.jit import ir
from ruda.jit.types import FieldType, RecordType


@dataclass(frozen=True, slots=True)
class Axis:
    """A visible axis of a view: element k is at `start + step * k` of the root's axis."""

    root_axis: int
    start: ir.Expr
    step: ir.Expr
    extent: ir.Expr

    def is_whole(self, root: ir.Array) -> bool:
        """Whether the axis is the root's, unchanged."""
        match self.start, self.step, self.extent:
            case ir.Const(value=0), ir.Const(value=1), ir.Extent():
                return True
            case ir.Const(value=0), ir.Const(value=1), ir.Const(value=n):
                return root.shape is not None and n == root.shape[self.root_axis]
        return False


@dataclass(frozen=True, slots=True)
class ArrayRef:
    """A view: of one root, or of the root that `selector` picks at run time.

    `fixed[r]` is the index along root axis r, or None where the axis is visible.
    `field` is a byte offset and type inside a record element.
    """

    roots: tuple[ir.Array, ...]
    fixed: tuple[ir.Expr | None, ...]
    axes: tuple[Axis, ...]
    selector: ir.Expr | None = None
    field: tuple[int, FieldType] | None = None

    @property
    def root(self) -> ir.Array:
        return self.roots[0]

    @property
    def ndim(self) -> int:
        return len(self.axes)

    @property
    def element(self) -> FieldType:
        return self.root.dtype if self.field is None else self.field[1]

    @property
    def static_shape(self) -> tuple[int, ...] | None:
        extents = [a.extent for a in self.axes]
        if all(isinstance(e, ir.Const) for e in extents):
            return tuple(int(e.value) for e in extents if isinstance(e, ir.Const))
        return None

    def describe(self) -> str:
        space = "" if self.root.space == "global" else f"{self.root.space} "
        return f"{space}{self.element}[{', '.join(':' * self.ndim)}]"


@dataclass(frozen=True, slots=True)
class RecordRef:
    """One record element, by reference."""

    array: ArrayRef  # ndim 0
    type: RecordType
    offset: int = 0


@dataclass(frozen=True, slots=True)
class TupleValue:
    """A tuple, a NamedTuple (`cls` is its class) or a short vector (`cls` is its VectorType)."""

    items: tuple[Value, ...]
    names: tuple[str, ...] = ()
    cls: Any = None


@dataclass(frozen=True, slots=True)
class PyObject:
    """A Python object known while compiling: a module, a function, a dtype, a string, None, a
    slice."""

    value: Any


@dataclass(frozen=True, slots=True)
class Method:
    """A method of a compile-time value, to be called."""

    owner: Value
    name: str


@dataclass(frozen=True, slots=True)
class RangeValue:
    """`range(start, stop, step)`, perhaps to be unrolled."""

    start: ir.Expr
    stop: ir.Expr
    step: ir.Expr
    unroll: bool = False


Value = ir.Expr | ArrayRef | RecordRef | TupleValue | PyObject | Method | RangeValue


def whole(array: ir.Array) -> ArrayRef:
    """The view of a whole root array."""
    from ruda.dtypes import index

    zero, one = ir.Const(0, index), ir.Const(1, index)
    axes = []
    for k in range(array.ndim):
        extent: ir.Expr = ir.Extent(array, k)
        if array.shape is not None:
            extent = ir.Const(array.shape[k], index)
        axes.append(Axis(k, zero, one, extent))
    return ArrayRef((array,), (None,) * array.ndim, tuple(axes))


def describe(value: Any) -> str:
    """The type of a value as a user would write it."""
    match value:
        case ArrayRef():
            return value.describe()
        case TupleValue(items, _, cls):
            return f"{cls.__name__ if cls else ''}({', '.join(map(describe, items))})"
        case RecordRef(type=t):
            return f"record {t}"
        case PyObject(v):
            if v is None:
                return "None"
            return type(v).__name__ if isinstance(v, (str, bytes)) else f"`{_object_name(v)}`"
        case Method(name=name):
            return f"method `{name}`"
        case RangeValue():
            return "range"
    names = {"weak_int": "int", "weak_float": "float", "weak_complex": "complex"}
    return names.get(value.dtype.name, str(value.dtype))


def _object_name(value: Any) -> str:
    return getattr(value, "__qualname__", None) or getattr(value, "__name__", None) or repr(value)
