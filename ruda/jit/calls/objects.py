"""Calling objects and methods; operators on what is not a plain number."""

from __future__ import annotations

import ast
import builtins
import sys
import types
from collections.abc import Sequence
from typing import Any

import numpy as np

from ruda.dtypes import DType, as_dtype
from ruda.errors import (
    DTypeError,
    KernelTypeError,
    Place,
    UnsupportedError,
)
from ruda.jit import intrinsics, ir
from ruda.jit.calls.call import HANDLERS, Call, no_keywords
from ruda.jit.calls.device import dtype_argument
from ruda.jit.calls.python import (
    builtin_handler,
    conversion,
    print_call,
    scalar_call,
    scalar_function,
    scalar_operation,
)
from ruda.jit.frontend import EXPR, INDEX, Translator, as_tuple
from ruda.jit.language import VectorType
from ruda.jit.values import (
    ArrayRef,
    Method,
    PyObject,
    TupleValue,
    Value,
    describe,
)


def call(t: Translator, node: ast.Call) -> Value:
    place = t.place(node)
    function = t.value(node.func)
    if isinstance(function, PyObject) and function.value is builtins.print:
        return print_call(t, node, place)
    arguments = t.expanded([as_tuple(n) for n in node.args])
    keywords: dict[str, Value] = {}
    for k in node.keywords:
        if k.arg is None:
            raise UnsupportedError(
                "`**` in a call is not in the kernel language",
                t.place(k),
                hint="write the arguments out",
            )
        keywords[k.arg] = t.value(as_tuple(k.value))
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
        no_keywords(c)
        return make_vector(c, target, c.arguments)
    row = scalar_function(target, name)
    if row is not None:
        return scalar_call(c, row)
    op = getattr(target, "__ruda_op__", None)  # of tensors outside; the same of numbers here
    if op is not None:
        return op(c)  # type: ignore[no-any-return]
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
        (argument,) = c.bind("dtype")
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


PRINT = 'text is made only in `print` and `assert`, by an f-string: print(f"{i}")'
# Functions that make arrays: a kernel has those of a size known when it is compiled.
MAKERS = ("array", "empty", "zeros", "ones", "full", "arange", "empty_like", "zeros_like",
          "ones_like", "full_like", "asarray")  # fmt: skip


def refuse_call(c: Call, target: Any) -> None:
    """Say what a function that kernels cannot call is, as the user wrote it, and what to write."""
    from ruda.jit.calls.composed import INSTEAD
    from ruda.jit.calls.subscripts import is_kernel, launch_inside

    module = getattr(target, "__module__", "") or ""
    if is_kernel(getattr(target, "__self__", None)):
        raise launch_inside(target.__self__, c.place)
    written = ast.unparse(c.node.func)
    instead = next((hint for f, hint in INSTEAD.items() if target is f), None)
    if instead is not None:
        raise UnsupportedError(f"`{written}` is not in the kernel language", c.place, hint=instead)
    if any(target is f for f in (str, repr, format)):
        raise UnsupportedError(f"`{written}` is not in the kernel language", c.place, hint=PRINT)
    generator = type(getattr(target, "__self__", None))
    if "random" in (module.partition(".")[0], generator.__module__.partition(".")[0]) or (
        "numpy.random" in (module, generator.__module__, generator.__module__.rpartition(".")[0])
    ):
        raise UnsupportedError(
            f"`{written}` is not in the kernel language", c.place,
            hint="ruda.random has generators for kernels: ruda.random.uniform(seed, i)",
        )  # fmt: skip
    if isinstance(target, np.ufunc) or module.startswith("numpy"):
        hint = "scalar functions such as np.sqrt(x[i]) are; arrays need a loop"
        if c.name in MAKERS:
            hint = "a thread's own array is ruda.local.array(3, ruda.float32), of a constant shape"
        raise UnsupportedError(f"`{written}` is not in the kernel language", c.place, hint=hint)
    library = module.partition(".")[0] in sys.stdlib_module_names
    if isinstance(target, types.FunctionType) and not library:
        raise UnsupportedError(
            f"`{written}` is a plain Python function and cannot be called in a kernel",
            c.place,
            hint="decorate it with @ruda.jit(device=True)",
        )
    if name_of := getattr(target, "__ruda_name__", None):
        raise UnsupportedError(f"`ruda.{name_of}` cannot be called", c.place)
    if module == "math":
        raise UnsupportedError(
            f"`{written}` is not in the kernel language", c.place,
            hint="docs/reference.md lists the functions of math that are",
        )  # fmt: skip
    raise UnsupportedError(
        f"`{written}` cannot be called in a kernel", c.place,
        hint="kernels may call @ruda.jit functions, scalar functions of math and NumPy, and names "
        "of ruda",
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


GROUP_METHODS = {("this_grid", "sync"): "grid", ("this_thread_block", "sync"): "block"}
# What other members of a cooperative group are, of the grid and of the block.
GROUP_MEMBERS = {
    "size": ("ruda.gridsize(1)", "ruda.blockDim.x"),
    "num_threads": ("ruda.gridsize(1)", "ruda.blockDim.x"),
    "thread_rank": ("ruda.grid(1)", "ruda.threadIdx.x"),
    "thread_index": ("ruda.grid(3)", "ruda.threadIdx"),
    "group_index": ("ruda.blockIdx", "ruda.blockIdx"),
    "group_dim": ("ruda.gridDim", "ruda.blockDim"),
    "dim_threads": ("ruda.gridsize(3)", "ruda.blockDim"),
}


def refuse_group(group: Any, name: str, place: Place) -> UnsupportedError:
    """A member of a cooperative group besides `sync`."""
    written = f"ruda.cg.{group}()"
    block = group == "this_thread_block"
    found = GROUP_MEMBERS.get(name)
    hint = f"write `{found[block]}`" if found else "a group has `sync()`; warps have shfl_sync"
    return UnsupportedError(f"`{written}` has no `{name}`", place, hint=hint)


def method(c: Call, m: Method) -> Value:
    if isinstance(m.owner, Method) and m.owner.name == "group":
        assert isinstance(m.owner.owner, PyObject)
        scope = GROUP_METHODS.get((m.owner.owner.value, m.name))
        if scope is not None:
            c.bind()
            c.t.emit(ir.Barrier(scope, place=c.place))
            return PyObject(None)
        raise refuse_group(m.owner.owner.value, m.name, c.place)
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
    if isinstance(left, PyObject) and isinstance(left.value, str) and name in ("mod", "add"):
        if not (name == "add" and isinstance(right, PyObject)):
            raise UnsupportedError("text cannot be made with operators", place, hint=PRINT)
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
