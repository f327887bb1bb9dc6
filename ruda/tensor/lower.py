"""A group of elementwise ops -> one kernel.

A `Group` says what is computed, without sizes: it is the key of a kernel. Axes that lie behind
each other in all operands are merged first (`merge`), so that most groups have one axis; an
operand that does not change along an axis is not indexed by it.
"""

from __future__ import annotations

import functools
import math
import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ruda.backends.base import Launch
from ruda.dtypes import DType, bool_, index
from ruda.jit import ir
from ruda.jit.kernel import Kernel, KernelOptions
from ruda.jit.types import ArrayType, Type, type_of
from ruda.tensor import ops
from ruda.tensor.opdef import Scalar, constant, trace

BLOCK = 256
Reference = tuple[str, int]  # ("array" | "number" | "op", its place in the group)


@dataclass(frozen=True)
class Group:
    """What a fused kernel computes.

    ops      (row's name, references to its inputs, dtypes of its inputs), in order
    arrays   for each input array, its dtype and the axes of the result that it has
    numbers  dtypes of the numbers that are passed
    outputs  which ops are stored
    ndim     axes of the result, after merging
    """

    ops: tuple[tuple[str, tuple[Reference, ...], tuple[DType, ...]], ...]
    arrays: tuple[tuple[DType, tuple[int, ...]], ...]
    numbers: tuple[DType, ...]
    outputs: tuple[int, ...]
    ndim: int

    def parameters(self) -> tuple[str, ...]:
        outputs = [f"out{k}" for k in range(len(self.outputs))]
        arrays = [f"x{k}" for k in range(len(self.arrays))]
        return (*outputs, *arrays, *(f"n{k}" for k in range(len(self.numbers))))

    def name(self) -> str:
        return "_".join(dict.fromkeys(name for name, *_ in self.ops))

    def build(self, name: str, types: Sequence[Type]) -> ir.Function:
        return build(name, self, self.parameters(), types)


@dataclass(frozen=True)
class Reduction:
    """What a reducing kernel computes: partial results (parts, outputs) of a row over axes."""

    row: str
    dtype: DType
    ndim: int
    axes: tuple[int, ...]

    def parameters(self) -> tuple[str, ...]:
        return "out", "x0"

    def name(self) -> str:
        return self.row

    def build(self, name: str, types: Sequence[Type]) -> ir.Function:
        return build_reduction(name, self, types)


class Lowered(Kernel[Any]):
    """A kernel that is made from a group or a reduction instead of a function's text."""

    def __init__(self, what: Group | Reduction) -> None:
        self.what = what
        self.__name__ = self.__qualname__ = what.name()
        self.__module__ = "ruda.tensor"
        self.options = KernelOptions()
        self.signatures = ()
        self.constexprs = frozenset()
        self.parameters = what.parameters()
        self._lock = threading.RLock()
        self._specialisations = {}
        self._current = (None, {})
        self._configured = {}

    def translate(
        self, argument_types: Sequence[Type], *, block: Any = None, needs_block: Any = None
    ) -> tuple[ir.Function, tuple[()]]:
        function = self.what.build(self.__name__, argument_types)
        if block is not None and needs_block is not None and needs_block(function):
            function = replace(function, block=block)
        return function, ()


def build(name: str, group: Group, parameters: Sequence[str], types: Sequence[Type]) -> ir.Function:
    """The kernel: a thread computes one element of every output."""
    arrays, numbers = declared(parameters, types)
    outputs, inputs = arrays[: len(group.outputs)], arrays[len(group.outputs) :]
    extents = [ir.Extent(outputs[0], a) for a in range(group.ndim)]
    where, inside = coordinates(extents)
    values: list[ir.Expr] = []
    body: list[ir.Statement] = []
    loads: dict[int, ir.Expr] = {}

    def loaded(k: int) -> ir.Expr:
        if k not in loads:
            array = inputs[k]
            assert isinstance(array.dtype, DType)
            v = ir.Variable(f"v{k}", array.dtype)
            body.append(ir.Assign(v, ir.Load(array, tuple(where[a] for a in group.arrays[k][1]))))
            loads[k] = ir.Read(v)
        return loads[k]

    for k, (row, references, dtypes) in enumerate(group.ops):
        given: list[ir.Expr] = []
        for what, number in references:
            match what:
                case "array":
                    given.append(loaded(number))
                case "number":
                    given.append(ir.Read(numbers[number]))
                case _:
                    given.append(values[number])
        value = trace(ops.OPS[row], tuple(given), dtypes)
        variable = ir.Variable(f"t{k}", value.dtype)
        body.append(ir.Assign(variable, value))
        values.append(ir.Read(variable))
    at = tuple(where)
    body += [ir.Store(a, at, values[k]) for a, k in zip(outputs, group.outputs, strict=True)]
    guarded = ir.If(inside, tuple(body))
    return ir.Function(name, (*arrays, *numbers), (guarded,))


def declared(
    parameters: Sequence[str], types: Sequence[Type]
) -> tuple[list[ir.Array], list[ir.Variable]]:
    """The arrays and the numbers of a kernel; only arrays called out... are written."""
    arrays, numbers = [], []
    for p, kind in zip(parameters, types, strict=True):
        if isinstance(kind, ArrayType):
            readonly = not p.startswith("out")
            arrays.append(
                ir.Array(p, kind.dtype, kind.ndim, "global", kind.layout, readonly=readonly)
            )
        else:
            assert isinstance(kind, DType)
            numbers.append(ir.Variable(p, kind))
    return arrays, numbers


def build_reduction(name: str, what: Reduction, types: Sequence[Type]) -> ir.Function:
    """A thread (x, y) reduces every elements y, y + parts, ... of output x, in order."""
    (out, array), _ = declared(what.parameters(), types)
    row = ops.OPS[what.row]
    o, part = ir.Special("globalIdx", 0), ir.Special("globalIdx", 1)
    parts = ir.Extent(out, 0)
    inside = ir.And(ir.Op("lt", (part, parts), bool_), ir.Op("lt", (o, ir.Extent(out, 1)), bool_))
    kept = [a for a in range(what.ndim) if a not in what.axes]
    count: ir.Expr = ir.Const(1, index)
    for a in what.axes:
        count = ir.Op("mul", (count, ir.Extent(array, a)), index)
    assert isinstance(out.dtype, DType)
    total = ir.Variable("total", out.dtype)
    k = ir.Variable("k", index)

    def element(number: ir.Expr) -> ir.Expr:
        where = dict(zip(kept, split(o, [ir.Extent(array, a) for a in kept]), strict=True))
        axes = split(number, [ir.Extent(array, a) for a in what.axes])
        where |= dict(zip(what.axes, axes, strict=True))
        loaded = ir.Load(array, tuple(where[a] for a in range(what.ndim)))
        return Scalar(loaded).cast(out.dtype).expr  # type: ignore[arg-type]

    if row.identity is None:  # begins with the first element: there is one
        begin: ir.Expr = element(part)
        start: ir.Expr = ir.Op("add", (part, parts), index)
    else:
        begin, start = constant(row.identity, out.dtype).expr, part
    value: Scalar = row.expression(Scalar(ir.Read(total)), Scalar(element(ir.Read(k))))
    step = ir.Assign(total, value.cast(out.dtype).expr)
    body = (
        ir.Assign(total, begin),
        ir.For(k, start, count, parts, (step,)),
        ir.Store(out, (part, o), ir.Read(total)),
    )
    return ir.Function(name, (out, array), (ir.If(inside, body),))


def split(number: ir.Expr, extents: Sequence[ir.Expr]) -> list[ir.Expr]:
    """The coordinates of an element that is counted in C order."""
    found: list[ir.Expr] = []
    for e in reversed(extents[1:]):
        found.insert(0, ir.Op("mod", (number, e), index))
        number = ir.Op("floordiv", (number, e), index)
    return [number, *found] if extents else []


def coordinates(extents: Sequence[ir.Expr]) -> tuple[list[ir.Expr], ir.Expr]:
    """The indices of a thread's element, last axis along x, and whether it exists.

    Threads of z count through all axes but the last two.
    """
    ndim = len(extents)
    names = [ir.Special("globalIdx", a) for a in range(min(ndim, 3))]
    where: list[ir.Expr] = [*names[: min(ndim, 2)][::-1]]
    bounds = [ir.Op("lt", (w, e), bool_) for w, e in zip(where, extents[-2:], strict=True)]
    if ndim > 2:
        outer = split(names[2], extents[:-2])
        where = [*outer, *where]
        bounds.insert(0, ir.Op("lt", (outer[0], extents[0]), bool_))
    inside: ir.Expr = bounds[0]
    for bound in bounds[1:]:
        inside = ir.And(inside, bound)
    return where, inside


def merge(
    shape: tuple[int, ...], strides: Sequence[tuple[int, ...]]
) -> tuple[tuple[int, ...], list[tuple[int, ...]]]:
    """Axes that lie behind each other in every operand as one axis; axes of length 1 dropped.

    >>> merge((2, 3, 4), [(12, 4, 1), (0, 4, 1)])
    ((2, 12), [(12, 1), (0, 1)])
    """
    out: list[int] = []
    kept: list[list[int]] = [[] for _ in strides]
    for a, n in enumerate(shape):
        if n == 1 and len(shape) > 1:
            continue
        if out and all(k[-1] == s[a] * n for k, s in zip(kept, strides, strict=True)):
            out[-1] *= n
            for k, s in zip(kept, strides, strict=True):
                k[-1] = s[a]
        else:
            out.append(n)
            for k, s in zip(kept, strides, strict=True):
                k.append(s[a])
    if not out:
        return (1,), [(1,) for _ in strides]
    return tuple(out), [tuple(k) for k in kept]


@functools.lru_cache(maxsize=4096)
def lowered(what: Group | Reduction) -> Lowered:
    return Lowered(what)


def prepare(kernel: Lowered, types: tuple[Type, ...], device: str) -> Any:
    """The compiled kernel for types of arguments, on a device."""
    return kernel.specialise(types, device, (BLOCK, 1, 1))


def launch(kernel: Lowered, shape: tuple[int, ...], device: str, arguments: Sequence[Any]) -> None:
    """Run a kernel over a result of a (merged) shape."""
    if math.prod(shape) == 0:
        return
    x, y, z = shape[-1], shape[-2] if len(shape) > 1 else 1, math.prod(shape[:-2])
    configuration = Launch((-(-x // BLOCK), y, z), (BLOCK, 1, 1))
    made = prepare(kernel, types_of(arguments), device)
    made.launcher(configuration, _misfit, ())(*arguments)


def types_of(arguments: Sequence[Any]) -> tuple[Type, ...]:
    return tuple(type_of(a) for a in arguments)


def _misfit(*arguments: Any) -> None:
    raise AssertionError("a kernel was launched with arguments that it was not made for")


def strided(array: Any, shape: tuple[int, ...], strides: tuple[int, ...]) -> Any:
    """The part of an operand that a kernel indexes: without the axes along which it repeats."""
    axes = [a for a, s in enumerate(strides) if s != 0]
    shape, strides = tuple(shape[a] for a in axes), tuple(strides[a] for a in axes)
    if isinstance(array, np.ndarray):
        return np.lib.stride_tricks.as_strided(array, shape, strides)
    from ruda.backends.base import DeviceArray

    return DeviceArray(array._backend, array.storage, shape, array.dtype, strides, array.offset)
