"""What calls, attributes and subscripts mean in a kernel: one small handler a name.

`HANDLERS` maps the names of the language (`__ruda_name__`) to functions; Python builtins and methods
of compile-time values have tables of their own; pure scalar functions come from `intrinsics`.
"""

from __future__ import annotations

import ast
import builtins
import importlib
import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ruda import dtypes
from ruda.dtypes import DType, as_dtype
from ruda.errors import (
    DTypeError,
    KernelNameError,
    KernelTypeError,
    KernelValueError,
    Place,
    UnsupportedError,
)
from ruda.jit import intrinsics, ir
from ruda.jit.frontend import EXPR, FALSE, INDEX, ONE, TRUE, ZERO, NeedsBlock, Translator
from ruda.jit.language import VectorType
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
    whole,
)

AXES = {"x": 0, "y": 1, "z": 2}


@dataclass(frozen=True)
class Call:
    """A call with its arguments evaluated."""

    t: Translator
    node: ast.Call
    name: str
    arguments: list[Value]
    keywords: dict[str, Value]
    place: Place

    def bind(self, *names: str, optional: int = 0) -> list[Value | None]:
        """The arguments by parameter name, positional or keyword; the last `optional` may be left out."""
        out: list[Value | None] = list(self.arguments)
        if len(out) > len(names):
            raise KernelTypeError(
                f"`{self.name}` takes {len(names)} arguments ({', '.join(names)}), not {len(out)}",
                self.place,
            )
        out += [None] * (len(names) - len(out))
        for key, value in self.keywords.items():
            if key not in names:
                raise KernelTypeError(f"`{self.name}` has no argument `{key}`", self.place)
            out[names.index(key)] = value
        required = len(names) - optional
        missing = [n for n, v in zip(names[:required], out, strict=False) if v is None]
        if missing:
            raise KernelTypeError(f"`{self.name}` needs `{missing[0]}`", self.place)
        return out

    def numbers(self, *names: str, optional: int = 0) -> list[Any]:
        """As `bind`, for numbers."""
        return [
            None if v is None else self.t.number(v, self.place, f"a number for `{n}`")
            for n, v in zip(names, self.bind(*names, optional=optional), strict=True)
        ]


Handler = Callable[[Call], Value]
HANDLERS: dict[str, Handler] = {}
BUILTINS: dict[Any, Handler] = {}


def handler(*names: str) -> Callable[[Handler], Handler]:
    def register(function: Handler) -> Handler:
        for name in names:
            HANDLERS[name] = function
        return function

    return register


def builtin(*objects: Any) -> Callable[[Handler], Handler]:
    def register(function: Handler) -> Handler:
        for o in objects:
            BUILTINS[o] = function
        return function

    return register


# ---- calls ----


def call(t: Translator, node: ast.Call) -> Value:
    place = t.place(node)
    function = t.value(node.func)
    if isinstance(function, PyObject) and function.value is builtins.print:
        return print_call(t, node, place)
    arguments = t.expanded(node.args)
    keywords: dict[str, Value] = {}
    for k in node.keywords:
        if k.arg is None:
            raise UnsupportedError(
                "`**` in a call is not in the kernel language",
                t.place(k),
                hint="write the arguments out",
            )
        keywords[k.arg] = t.value(k.value)
    if isinstance(function, Method):
        return method(Call(t, node, function.name, arguments, keywords, place), function)
    if not isinstance(function, PyObject):
        raise KernelTypeError(f"{describe(function)} cannot be called", place)
    return call_object(
        Call(t, node, object_name(function.value), arguments, keywords, place), function.value
    )


def object_name(value: Any) -> str:
    return getattr(value, "__name__", None) or repr(value)


def call_object(c: Call, target: Any) -> Value:
    """Call a Python object that is known while compiling."""
    name = getattr(target, "__ruda_name__", None)
    if isinstance(name, str) and name in HANDLERS:
        return HANDLERS[name](c)
    found = builtin_handler(target)
    if found is not None:
        return found(c)
    if isinstance(target, VectorType):
        return make_vector(c, target, c.arguments)
    row = scalar_function(target, name)
    if row is not None:
        return scalar_call(c, row)
    python = getattr(target, "py_func", None)  # ruda's kernels and numba's functions
    if isinstance(python, types.FunctionType):
        result = c.t.inline(python, c.arguments, c.keywords, c.place)
        return declared_result(c, target, result)
    if isinstance(target, DType) or is_dtype(target):
        return conversion(c, as_dtype(target))
    if isinstance(target, type) and issubclass(target, tuple) and hasattr(target, "_fields"):
        defaults: dict[str, Any] = getattr(target, "_field_defaults", {})
        items = c.bind(*target._fields, optional=len(defaults))
        for k, (field_name, item) in enumerate(zip(target._fields, items, strict=True)):
            if item is None:
                items[k] = c.t.wrap_object(defaults[field_name], c.place)
        return TupleValue(tuple(v for v in items if v is not None), target._fields, target)
    if target in (np.finfo, np.iinfo):
        argument = c.arguments[0]
        if isinstance(argument, PyObject):
            return PyObject(target(as_dtype(argument.value).numpy))
    refuse_call(c, target)
    raise AssertionError


def make_vector(c: Call, kind: VectorType, parts: Sequence[Value]) -> TupleValue:
    """A vector from numbers and shorter vectors; one number fills all parts."""
    flat: list[Value] = []
    for part in parts:
        flat += part.items if isinstance(part, TupleValue) else (part,)
    if len(flat) == 1:
        flat = [c.t.keep(flat[0])] * kind.lanes
    if len(flat) != kind.lanes:
        raise KernelTypeError(f"`{kind.__name__}` has {kind.lanes} parts, got {len(flat)}", c.place)
    items = tuple(c.t.cast(c.t.number(v, c.place), kind.dtype, c.place) for v in flat)
    return TupleValue(items, kind.names, kind)


def vector_access(c: Call, kind: VectorType, name: str) -> Value:
    """`float32x4.load(a, i)` and `.store(a, i, v)`."""
    array, index, *value = c.bind("array", "index", *(("value",) if name == "store" else ()))
    if not isinstance(array, ArrayRef) or array.ndim != 1:
        raise KernelTypeError(f"`{kind.__name__}.{name}` needs a one-dimensional array", c.place)
    first = c.t.keep(c.t.as_index(c.t.number(index, c.place, "an index")))  # type: ignore[arg-type]
    at = [
        c.t.operation("add", (first, ir.Const(k, INDEX)), c.place)  # type: ignore[arg-type]
        for k in range(kind.lanes)
    ]
    if name == "load":
        return make_vector(c, kind, [c.t.load(array, (i,), c.place) for i in at])
    if not isinstance(value[0], TupleValue):
        raise KernelTypeError(f"expected {kind.__name__}, got {describe(value[0])}", c.place)
    for i, part in zip(at, make_vector(c, kind, value[0].items).items, strict=True):
        c.t.store(array, (i,), c.t.number(part, c.place), c.place)
    return PyObject(None)


def refuse_call(c: Call, target: Any) -> None:
    module = getattr(target, "__module__", "") or ""
    if isinstance(target, types.FunctionType):
        raise UnsupportedError(
            f"`{c.name}` is a plain Python function and cannot be called in a kernel",
            c.place,
            hint="decorate it with @ruda.jit(device=True)",
        )
    if isinstance(target, np.ufunc) or module.startswith("numpy"):
        raise UnsupportedError(
            f"`np.{c.name}` is not in the kernel language", c.place,
            hint="scalar functions such as np.sqrt(x[i]) are; arrays need a loop",
        )  # fmt: skip
    if name_of := getattr(target, "__ruda_name__", None):
        raise UnsupportedError(f"`ruda.{name_of}` cannot be called", c.place)
    raise UnsupportedError(
        f"`{c.name}` cannot be called in a kernel", c.place,
        hint="kernels may call @ruda.jit functions, functions of math, and names of ruda",
    )  # fmt: skip


def is_dtype(target: Any) -> bool:
    if target in (int, float, bool, complex) or not (
        (isinstance(target, type) and issubclass(target, np.generic))
        or type(target).__module__.startswith("numba.")
        or (isinstance(target, type) and hasattr(target, "dtype"))
    ):
        return False
    try:
        as_dtype(target)
    except DTypeError:
        return False
    return True


def declared_result(c: Call, target: Any, result: Value) -> Value:
    signature = getattr(target, "device_signature", None)
    if signature is not None and isinstance(signature.result, DType) and isinstance(result, EXPR):
        return c.t.coerce(result, signature.result)
    return result


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
        raise KernelTypeError(
            f"`{c.name}` takes {row.arity} argument{'s' * (row.arity > 1)}, not {len(c.arguments)}",
            c.place,
        )
    numbers = [c.t.number(v, c.place, "numbers") for v in c.arguments]
    return scalar_operation(c.t, row, numbers, c.place)


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


# ---- conversions and Python builtins ----


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
    return Method(TupleValue(tuple(c.arguments)), c.name)


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
    e = t.number(value, place, "numbers and strings")
    return [ir.Text(t.strong(e), spec)]


# ---- launch coordinates ----


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


# ---- memory ----


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
    name = target_name(c)
    array = ir.Array(
        c.t.unique(name), dtype, len(extents), space, "C", None if dynamic else extents, dynamic
    )
    c.t.arrays[array.name] = array
    c.t.emit(ir.Declare(array, place=c.place))
    return whole(array)


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


# ---- barriers, warps, fences ----


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


# ---- atomics ----


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
    "add", "sub", "max", "min", "nanmax", "nanmin", "and_", "or_", "xor", "inc", "dec", "exch", "cas",
    "compare_and_swap",
):  # fmt: skip
    HANDLERS[f"atomic.{_name}"] = atomic


# ---- attributes ----


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
        case Method(name="group"):
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
    missing = object()
    found = getattr(value, name, missing)
    if found is missing:
        kind = "module" if isinstance(value, types.ModuleType) else type(value).__name__
        import difflib

        close = difflib.get_close_matches(name, dir(value), 1)
        raise KernelNameError(
            f"{kind} `{object_name(value)}` has no attribute `{name}`", place,
            hint=f"did you mean `{close[0]}`?" if close else None,
        )  # fmt: skip
    if getattr(found, "__ruda_name__", None) == "laneid":
        return ir.Special("laneid", place=place)
    if isinstance(value, types.ModuleType) and not isinstance(
        found,
        (types.ModuleType, types.FunctionType, types.BuiltinFunctionType, np.ufunc, type, DType),
    ):
        return t.capture(vars(value), name, f"{object_name(value)}.{name}", found, place)
    return t.wrap_object(found, place, name)


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
        names = ", ".join(n for n, _, _ in record.type.fields)
        raise KernelNameError(f"the record has no field `{name}`; it has {names}", place)
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


# ---- subscripts ----


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
    raise KernelTypeError(f"{describe(owner)} cannot be indexed", place)


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
    at = t.temporary(t.wrapped(t.as_index(e), ir.Const(len(owner.items), INDEX), place))
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
    if len(items) > array.ndim:
        raise KernelTypeError(
            f"{array.describe()} takes {array.ndim} ind{'ices' if array.ndim != 1 else 'ex'}, got {len(items)}",
            place,
        )
    fixed, axes = list(array.fixed), []
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
        e = t.as_index(t.number(i, place, "an index"))
        if (
            isinstance(e, ir.Const)
            and isinstance(axis.extent, ir.Const)
            and not (-axis.extent.value <= e.value < axis.extent.value)
        ):
            raise KernelValueError(
                f"index {e.value} is out of range for an axis of {axis.extent.value}", place
            )
        at = t.wrapped(e, axis.extent, place)
        fixed[axis.root_axis] = t.operation(
            "add", (axis.start, t.operation("mul", (at, axis.step), place)), place
        )
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
        e = t.as_index(t.number(value, place), "a slice bound")
        low = ir.Const(-1, INDEX) if down else ZERO
        high = t.operation("sub", (n, ONE), place) if down else n
        if isinstance(e, ir.Const) and e.value >= 0:
            return e if e.value == 0 and not down else t.operation("min", (e, high), place)
        if isinstance(e, ir.Const):
            return t.operation("max", (t.operation("add", (n, e), place), low), place)
        wrapped = ir.Op("wrap", (e, n), INDEX, place=place)
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


# ---- loops ----


def iterate(
    t: Translator, node: ast.For, iterable: Value, broke: ir.Variable | None, place: Place
) -> None:
    """A `for` over whatever kernels can loop over."""
    match iterable:
        case RangeValue(unroll=True):
            t.unrolled_loop(node, unrolled_items(t, iterable, place), broke, place)
        case RangeValue():
            t.range_loop(node, iterable, broke, place)
        case TupleValue(items):
            t.unrolled_loop(node, items, broke, place)
        case ArrayRef(ndim=n) if n:
            t.range_loop(
                node,
                RangeValue(ZERO, iterable.axes[0].extent, ONE),
                broke,
                place,
                lambda k: t.assign_target(node.target, subscript(t, iterable, [k], place), place),
            )
        case Method(owner=TupleValue(items), name="enumerate" | "zip" | "reversed" as kind):
            parallel_loop(t, node, kind, items, broke, place)
        case _:
            raise KernelTypeError(
                f"cannot loop over {describe(iterable)}", t.place(node.iter),
                hint="loop over range(...), a tuple or an array",
            )  # fmt: skip


def unrolled_items(t: Translator, r: RangeValue, place: Place) -> list[Value]:
    bounds = [e.value if isinstance(e, ir.Const) else None for e in (r.start, r.stop, r.step)]
    if any(b is None for b in bounds):
        raise KernelTypeError(
            "`unroll` needs bounds that are known when the kernel is compiled", place,
            hint="use constants or `ruda.constexpr` parameters",
        )  # fmt: skip
    items = range(*bounds)  # type: ignore[arg-type]
    if len(items) > t.options.unroll_limit:
        import warnings

        from ruda.errors import UnrollWarning

        warnings.warn(
            f"{place}: unrolling {len(items)} rounds is over the limit of {t.options.unroll_limit} "
            "(setting unroll_limit)", UnrollWarning, stacklevel=2,
        )  # fmt: skip
    return [ir.Const(k, dtypes.weak_int, place=place) for k in items]


def item_of(t: Translator, source: Value, k: ir.Expr, place: Place) -> Value:
    match source:
        case RangeValue(start=start, step=step):
            i = t.operation("mul", (k, t.coerce(step, INDEX)), place)
            return t.operation("add", (t.coerce(start, INDEX), i), place)
        case ArrayRef():
            return subscript(t, source, [k], place)
        case TupleValue():
            return tuple_item(t, source, [k], place)
        case Method(owner=TupleValue(items), name="enumerate"):
            start = t.as_index(t.number(items[1], place)) if len(items) > 1 else ZERO
            return TupleValue(
                (t.operation("add", (k, start), place), item_of(t, items[0], k, place))
            )
        case Method(owner=TupleValue(items), name="zip"):
            return TupleValue(tuple(item_of(t, s, k, place) for s in items))
        case Method(owner=TupleValue(items), name="reversed"):
            last = t.operation("sub", (length_of(t, items[0], place), ONE), place)
            return item_of(t, items[0], t.operation("sub", (last, k), place), place)
    raise KernelTypeError(f"cannot loop over {describe(source)}", place)


def length_of(t: Translator, source: Value, place: Place) -> ir.Expr:
    match source:
        case RangeValue():
            return range_length(t, source, place)
        case ArrayRef(axes=axes) if axes:
            return axes[0].extent
        case TupleValue(items):
            return ir.Const(len(items), INDEX, place=place)
        case Method(owner=TupleValue(items), name="zip"):
            lengths = [length_of(t, s, place) for s in items]
            result = lengths[0]
            for n in lengths[1:]:
                result = t.operation("min", (result, n), place)
            return result
        case Method(owner=TupleValue(items), name="enumerate" | "reversed"):
            return length_of(t, items[0], place)
    raise KernelTypeError(f"cannot loop over {describe(source)}", place)


def parallel_loop(
    t: Translator,
    node: ast.For,
    kind: str,
    sources: tuple[Value, ...],
    broke: ir.Variable | None,
    place: Place,
) -> None:
    """enumerate, zip and reversed: one counter; unrolled where tuples take part."""
    whole_source = Method(TupleValue(sources), kind)
    length = length_of(t, whole_source, place)
    if any_tuple(whole_source) and isinstance(length, ir.Const):
        items = [item_of(t, whole_source, ir.Const(k, INDEX), place) for k in range(length.value)]
        t.unrolled_loop(node, items, broke, place)
        return
    r = RangeValue(ZERO, length, ONE)
    t.range_loop(
        node,
        r,
        broke,
        place,
        lambda k: t.assign_target(node.target, item_of(t, whole_source, k, place), place),
    )


def any_tuple(source: Value) -> bool:
    match source:
        case TupleValue():
            return True
        case Method(owner=TupleValue(items)):
            return any(any_tuple(s) for s in items)
    return False


# ---- methods, and operators on arrays ----


GROUP_METHODS = {("this_grid", "sync"): "grid", ("this_thread_block", "sync"): "block"}


def method(c: Call, m: Method) -> Value:
    if isinstance(m.owner, Method) and m.owner.name == "group":
        assert isinstance(m.owner.owner, PyObject)
        scope = GROUP_METHODS.get((m.owner.owner.value, m.name))
        if scope is not None:
            c.bind()
            c.t.emit(ir.Barrier(scope, place=c.place))
            return PyObject(None)
    if isinstance(m.owner, PyObject) and isinstance(m.owner.value, VectorType):
        return vector_access(c, m.owner.value, m.name)
    if isinstance(m.owner, EXPR):
        match m.name:
            case "conj":
                return scalar_operation(c.t, intrinsics.TABLE["conj"], [m.owner], c.place)
            case "item":
                return m.owner
            case "bit_count":
                return c.t.operation("popc", (m.owner,), c.place)
            case "astype":
                (kind,) = c.bind("dtype")
                dtype = dtype_argument(c.t, kind, c.place)
                assert isinstance(dtype, DType)
                return c.t.cast(m.owner, dtype, c.place)
            case "view":
                (kind,) = c.bind("dtype")
                dtype = dtype_argument(c.t, kind, c.place)
                value = c.t.strong(m.owner)
                assert isinstance(dtype, DType)
                if dtype.itemsize != value.dtype.itemsize:
                    raise KernelTypeError(f"{value.dtype} and {dtype} differ in size", c.place)
                return ir.Bitcast(value, dtype, place=c.place)
    if isinstance(m.owner, ArrayRef):
        from ruda.jit import arrays

        return arrays.method(c, m.owner, m.name)
    raise KernelTypeError(f"{describe(m.owner)} has no method `{m.name}`", c.place)


def binary(t: Translator, name: str, left: Value, right: Value, place: Place) -> Value | None:
    """Operators on tuples and small arrays; None for plain numbers."""
    if isinstance(left, EXPR) and isinstance(right, EXPR):
        return None
    if isinstance(vector_of(left) or vector_of(right), VectorType):
        return vector_binary(t, name, left, right, place)
    if isinstance(left, TupleValue) and isinstance(right, TupleValue) and name == "add":
        return TupleValue(left.items + right.items)
    if isinstance(left, TupleValue) and isinstance(right, ir.Const) and name == "mul":
        return TupleValue(left.items * right.value)
    if isinstance(left, ArrayRef) or isinstance(right, ArrayRef):
        from ruda.jit import arrays

        return arrays.binary(t, name, left, right, place)
    if isinstance(left, PyObject) and isinstance(right, PyObject) and name == "add":
        if isinstance(left.value, str) and isinstance(right.value, str):
            return PyObject(left.value + right.value)
    return None


def vector_of(value: Value) -> VectorType | None:
    cls = value.cls if isinstance(value, TupleValue) else None
    return cls if isinstance(cls, VectorType) else None


def vector_binary(
    t: Translator, name: str, left: Value, right: Value, place: Place
) -> Value | None:
    """Part by part; a number meets every part."""
    kind = vector_of(left) or vector_of(right)
    assert kind is not None

    def parts(value: Value) -> list[ir.Expr]:
        if isinstance(value, TupleValue) and len(value.items) == kind.lanes:
            return [t.number(v, place) for v in value.items]
        return [t.number(t.keep(value), place)] * kind.lanes

    both = zip(parts(left), parts(right), strict=True)
    items = tuple(t.coerce(t.operation(name, pair, place), kind.dtype) for pair in both)
    return TupleValue(items, kind.names, kind)


def unary(t: Translator, name: str, operand: Value, place: Place) -> Value | None:
    if isinstance(operand, ArrayRef) and operand.ndim:
        from ruda.jit import arrays

        return arrays.unary(t, name, operand, place)
    return None
