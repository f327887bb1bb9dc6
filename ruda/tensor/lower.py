"""A cluster of ops -> one kernel.

A `Group` says what is computed, without sizes: it is the key of a kernel. Axes that lie behind
each other in all operands are merged first (`merge`), so that most groups have one axis, or one of
rows and one along them; an operand that does not change along an axis is not indexed by it.

Three styles of kernels:

each    no reductions: a thread computes one element of every output
block   the threads of a block go through a row together, and put their parts together in shared
        memory; reductions that need others' results go through the row again
row     a thread goes through a row of its own: short rows, or rows whose neighbours lie side by
        side; on the CPU `column` has the threads of a block take each step together

`parts` of a row: with few long rows each is divided among blocks; a second kernel reduces the
parts.
"""

from __future__ import annotations

import functools
import math
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from ruda import dtypes
from ruda.backends.base import Launch, observed, observers
from ruda.dtypes import DType, bool_, index
from ruda.jit import ir
from ruda.jit.kernel import Kernel, KernelOptions
from ruda.jit.types import ArrayType, Type, type_of
from ruda.tensor import ops
from ruda.tensor.opdef import Row, Scalar, constant, trace

BLOCK = 256
MAX_SIDE = 65535  # of a grid beside x
Reference = tuple[str, int]  # ("array" | "number" | "op", its place in the group)
# What is dear to compute again: where the host needs it twice, it is kept in an output's memory.
DEAR = frozenset(
    (
        *("exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "logaddexp", "pow", "sigmoid"),
        *("sin", "cos", "tan", "asin", "acos", "atan", "atan2", "sinh", "cosh", "tanh", "asinh"),
        *("acosh", "atanh", "erf", "erfc", "sqrt", "cbrt", "hypot", "divide", "remainder"),
        "floor_divide",
    )
)  # fmt: skip


class Op(NamedTuple):
    """One op: `level` is "full" for an element of the space, "row" for a value of a row."""

    row: str
    inputs: tuple[Reference, ...]
    dtypes: tuple[DType, ...]  # of the inputs
    level: str = "full"


@dataclass(frozen=True)
class Group:
    """What a fused kernel computes.

    arrays   for each input array, its dtype and the axes of the space that it has
    numbers  dtypes of the numbers that are passed
    outputs  which ops are stored
    ndim     axes of the space after merging, `outer` of them not reduced, these first
    style    "each", "block", "row" or "column"
    parts    whether outputs are parts (rows, parts) of reductions
    block    threads of a block
    flat     whether the axes are counted by one thread index: a grid's other axes are short
    keeps    whether dear values are kept in outputs
    """

    ops: tuple[Op, ...]
    arrays: tuple[tuple[DType, tuple[int, ...]], ...]
    numbers: tuple[DType, ...]
    outputs: tuple[int, ...]
    ndim: int
    outer: int
    style: str = "each"
    parts: bool = False
    block: int = BLOCK
    flat: bool = False
    keeps: bool = False

    def parameters(self) -> tuple[str, ...]:
        outputs = [f"out{k}" for k in range(len(self.outputs))]
        arrays = [f"x{k}" for k in range(len(self.arrays))]
        return (*outputs, *arrays, *(f"n{k}" for k in range(len(self.numbers))))

    def name(self) -> str:
        return "_".join(dict.fromkeys(op.row for op in self.ops))[:80]

    def build(self, name: str, types: Sequence[Type]) -> ir.Function:
        return (build if self.style == "each" else build_rows)(name, self, types)


class Lowered(Kernel[Any]):
    """A kernel that is made from a group instead of a function's text."""

    def __init__(self, what: Group) -> None:
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


@functools.lru_cache(maxsize=4096)
def lowered(what: Group) -> Lowered:
    return Lowered(what)


# ---- values --------------------------------------------------------------------------------------


class Values:
    """The values of a group's ops at one place: statements that compute them, each once."""

    def __init__(
        self,
        group: Group,
        arrays: Sequence[ir.Array],
        numbers: Sequence[ir.Variable],
        where: Sequence[ir.Expr],
        suffix: str = "",
        around: Values | None = None,
    ) -> None:
        self.group, self.arrays, self.numbers, self.where = group, arrays, numbers, where
        self.suffix, self.around = suffix, around
        self.body: list[ir.Statement] = []
        self.loads: dict[int, ir.Expr] = {}
        self.values: dict[int, ir.Expr] = {}

    def load(self, k: int) -> ir.Expr:
        axes = self.group.arrays[k][1]
        if self.around is not None and all(a < self.group.outer for a in axes):
            return self.around.load(k)  # the same for the whole row
        if k not in self.loads:
            array = self.arrays[k]
            loaded = ir.Load(array, tuple(self.where[a] for a in axes))
            self.loads[k] = self.assign(f"v{k}{self.suffix}", loaded)
        return self.loads[k]

    def assign(self, name: str, value: ir.Expr) -> ir.Expr:
        variable = ir.Variable(name, value.dtype)
        self.body.append(ir.Assign(variable, value))
        return ir.Read(variable)

    def value(self, reference: Reference) -> ir.Expr:
        match reference:
            case ("array", k):
                return self.load(k)
            case ("number", k):
                return ir.Read(self.numbers[k])
        return self.op(reference[1])

    def op(self, k: int) -> ir.Expr:
        one = self.group.ops[k]
        if self.around is not None and one.level == "row":
            return self.around.values[k]
        if k not in self.values:
            given = tuple(self.value(i) for i in one.inputs)
            found = trace(ops.OPS[one.row], given, one.dtypes)
            found = self.once(found, f"t{k}{self.suffix}")
            self.values[k] = self.assign(f"t{k}{self.suffix}", found)
        return self.values[k]

    def once(self, value: ir.Expr, name: str) -> ir.Expr:
        """The expression with what stands in it several times computed before, once: an emitter
        would write it out each time, and formulas of complex numbers grow beyond compilers."""
        uses: dict[int, int] = {}

        def count(node: ir.Expr) -> None:
            uses[id(node)] = uses.get(id(node), 0) + 1
            if uses[id(node)] == 1:
                for child in ir.expressions(node):
                    count(child)

        known: dict[int, ir.Expr] = {}

        def change(node: ir.Expr) -> ir.Expr:
            if id(node) not in known:
                made = ir.map_children(node, change)
                if uses[id(node)] > 1 and isinstance(node, ir.Op | ir.Select):
                    made = self.assign(f"{name}_{len(known)}", made)
                known[id(node)] = made
            return known[id(node)]

        count(value)
        return change(value)


def declared(
    group: Group, types: Sequence[Type]
) -> tuple[list[ir.Array], list[ir.Array], list[ir.Variable]]:
    """The outputs, the inputs and the numbers of a kernel."""
    outputs: list[ir.Array] = []
    inputs: list[ir.Array] = []
    numbers: list[ir.Variable] = []
    for p, kind in zip(group.parameters(), types, strict=True):
        if isinstance(kind, ArrayType):
            written = p.startswith("out")
            made = ir.Array(p, kind.dtype, kind.ndim, "global", kind.layout, readonly=not written)
            (outputs if written else inputs).append(made)
        else:
            assert isinstance(kind, DType)
            numbers.append(ir.Variable(p, kind))
    return outputs, inputs, numbers


def op(name: str, *operands: ir.Expr) -> ir.Expr:
    """An operation on indices."""
    return ir.Op(name, operands, index)


def number(value: int) -> ir.Expr:
    return ir.Const(value, index)


# ---- a thread an element -------------------------------------------------------------------------


def build(name: str, group: Group, types: Sequence[Type]) -> ir.Function:
    """The kernel of style "each"."""
    outputs, inputs, numbers = declared(group, types)
    extents: list[ir.Expr] = [ir.Extent(outputs[0], a) for a in range(group.ndim)]
    where, inside = coordinates(extents, group.flat)
    values = Values(group, inputs, numbers, where)
    for k in range(len(group.ops)):
        values.op(k)
    at = tuple(where)
    stores = [ir.Store(a, at, values.op(k)) for a, k in zip(outputs, group.outputs, strict=True)]
    guarded = ir.If(inside, (*values.body, *stores))
    return ir.Function(name, (*outputs, *inputs, *numbers), (guarded,))


def split(number: ir.Expr, extents: Sequence[ir.Expr]) -> list[ir.Expr]:
    """The coordinates of an element that is counted in C order."""
    found: list[ir.Expr] = []
    for e in reversed(extents[1:]):
        found.insert(0, ir.Op("mod", (number, e), index))
        number = ir.Op("floordiv", (number, e), index)
    return [number, *found] if extents else []


def coordinates(extents: Sequence[ir.Expr], flat: bool) -> tuple[list[ir.Expr], ir.Expr]:
    """The indices of a thread's element, last axis along x, and whether it exists.

    Threads of z count through all axes but the last two; flat ones are all along x.
    """
    ndim = len(extents)
    names = [ir.Special("globalIdx", a) for a in range(min(ndim, 3))]
    if flat:
        where = split(names[0], extents)
        return where, ir.Op("lt", (where[0], extents[0]), bool_)
    where = [*names[: min(ndim, 2)][::-1]]
    bounds = [ir.Op("lt", (w, e), bool_) for w, e in zip(where, extents[-2:], strict=True)]
    if ndim > 2:
        outer = split(names[2], extents[:-2])
        where = [*outer, *where]
        bounds.insert(0, ir.Op("lt", (outer[0], extents[0]), bool_))
    inside: ir.Expr = bounds[0]
    for bound in bounds[1:]:
        inside = ir.And(inside, bound)
    return where, inside


# ---- rows ----------------------------------------------------------------------------------------


def build_rows(name: str, group: Group, types: Sequence[Type]) -> ir.Function:
    """The kernel of the other styles: a loop over the row for each stage of its reductions."""
    return Rows(name, group, types).function()


class Rows:
    """Writes the kernel of a group with reductions."""

    def __init__(self, name: str, group: Group, types: Sequence[Type]) -> None:
        self.name, self.group = name, group
        self.outputs, self.inputs, self.numbers = declared(group, types)
        self.shared: list[ir.Array] = []
        self.thread = ir.Special("threadIdx", 0)
        self.extents = [self.extent(a) for a in range(group.ndim)]
        self.rows, self.count = (
            functools.reduce(functools.partial(op, "mul"), e)
            for e in (self.extents[: group.outer], self.extents[group.outer :])
        )
        match group.style:
            case "block":
                self.row: ir.Expr = ir.Special("blockIdx", 0)
            case _:
                self.row = ir.Special("globalIdx", 0)
        self.part = ir.Special("blockIdx", 1)
        outer = split(self.row, self.extents[: group.outer])
        # A row's values take an operand along the row only where that has one element.
        outer += [number(0)] * (group.ndim - group.outer)
        self.values = Values(group, self.inputs, self.numbers, outer)
        self.stages = self.find_stages()
        self.kept = self.find_kept()

    def extent(self, axis: int) -> ir.Expr:
        """The length of an axis, of an array that has it."""
        for array, (_, axes) in zip(self.inputs, self.group.arrays, strict=True):
            if axis in axes:
                return ir.Extent(array, axes.index(axis))
        raise AssertionError("no array has this axis")

    def reductions(self, stage: int) -> list[int]:
        """The reductions of a loop."""
        return [
            k for k, o in enumerate(self.group.ops)
            if ops.OPS[o.row].kind == "reduce" and self.stages[k] == stage + 1
        ]  # fmt: skip

    def find_stages(self) -> list[int]:
        """For each op after how many loops it is known."""
        out: list[int] = []
        for o in self.group.ops:
            known = max((out[k] for what, k in o.inputs if what == "op"), default=0)
            out.append(known + (ops.OPS[o.row].kind == "reduce"))
        return out

    def stored(self, stage: int) -> list[int]:
        """The outputs that a loop writes."""
        return [
            n for n, k in enumerate(self.group.outputs)
            if self.group.ops[k].level == "full" and self.stages[k] == stage
        ]  # fmt: skip

    def needed(self, stage: int) -> set[int]:
        """The ops of elements that a loop computes."""
        out: set[int] = set()
        waiting = [self.group.outputs[n] for n in self.stored(stage)]
        waiting += [k for r in self.reductions(stage) for _, k in self.group.ops[r].inputs
                    if self.group.ops[r].inputs[0][0] == "op"]  # fmt: skip
        while waiting:
            k = waiting.pop()
            if k not in out and self.group.ops[k].level == "full":
                out.add(k)
                waiting += [i for what, i in self.group.ops[k].inputs if what == "op"]
        return out

    def find_kept(self) -> dict[int, int]:
        """Dear ops that later loops need again, and the outputs that hold them until then."""
        if not self.group.keeps or self.group.parts:
            return {}
        found: dict[int, int] = {}
        loops = [self.needed(s) for s in range(max(self.stages) + 1)]
        free = {
            n: self.stages[k] for n, k in enumerate(self.group.outputs)
            if self.group.ops[k].level == "full"
        }  # fmt: skip
        for k in reversed(range(len(self.group.ops))):  # the last one is made of the others
            uses = [s for s, needs in enumerate(loops) if k in needs]
            if self.group.ops[k].row not in DEAR or len(uses) < 2:
                continue
            if not self.again(k, loops, found):
                continue
            dtype = self.result(k)
            home = next(
                (n for n, s in free.items() if self.outputs[n].dtype is dtype
                 and (s >= uses[-1] or self.group.outputs[n] == k)),
                None,
            )  # fmt: skip
            if home is not None:
                found[k] = home
                del free[home]
        return found

    def again(self, k: int, loops: Sequence[set[int]], found: dict[int, int]) -> bool:
        """Whether a later loop would compute an op again: not if what it is used for is kept."""
        first = next(s for s, needs in enumerate(loops) if k in needs)
        for s in range(first + 1, len(loops)):
            if k not in loops[s]:
                continue
            if self.group.outputs and any(self.group.outputs[n] == k for n in self.stored(s)):
                return True
            users = [u for u in loops[s] if ("op", k) in self.group.ops[u].inputs]
            users += [r for r in self.reductions(s) if ("op", k) in self.group.ops[r].inputs]
            if any(u not in found for u in users):
                return True
        return False

    def result(self, k: int) -> DType:
        o = self.group.ops[k]
        return ops.OPS[o.row].dtypes(o.dtypes)[1]

    def function(self) -> ir.Function:
        for stage in range(max(self.stages) + 1):
            self.row_values(stage)
            if self.reductions(stage) or self.stored(stage):
                self.loop(stage)
        body = tuple(self.values.body)
        if self.group.style == "row":
            body = (ir.If(ir.Op("lt", (self.row, self.rows), bool_), body),)
        shared = tuple(ir.Declare(a) for a in self.shared)
        parameters: tuple[ir.Array | ir.Variable, ...] = (
            *self.outputs, *self.inputs, *self.numbers
        )  # fmt: skip
        return ir.Function(self.name, parameters, (*shared, *body), arrays=tuple(self.shared))

    def row_values(self, stage: int) -> None:
        """What is made of the reductions so far, and is the same for a whole row."""
        for k, o in enumerate(self.group.ops):
            if o.level == "row" and self.stages[k] == stage:
                if ops.OPS[o.row].kind != "reduce":
                    self.values.op(k)
                for n, output in enumerate(self.group.outputs):
                    if output == k:
                        self.store_row(n, self.values.values[k])

    def store_row(self, n: int, value: ir.Expr) -> None:
        out = self.outputs[n]
        at = (self.row, self.part) if self.group.parts else (self.row,)
        store: ir.Statement = ir.Store(out, at, Scalar(value).cast(out.dtype).expr)  # type: ignore[arg-type]
        match self.group.style:
            case "block":
                store = ir.If(ir.Op("eq", (self.thread, number(0)), bool_), (store,))
            case "column":
                store = ir.If(ir.Op("lt", (self.row, self.rows), bool_), (store,))
        self.values.body.append(store)

    def loop(self, stage: int) -> None:
        """Through the row once: reductions take its elements, outputs get theirs."""
        k = ir.Variable(f"k_{stage}", index)
        where = [
            *self.values.where[: self.group.outer],
            *split(op("add", self.begin(), ir.Read(k)), self.extents[self.group.outer :]),
        ]
        inside = Values(
            self.group, self.inputs, self.numbers, where, f"_{stage}", around=self.values
        )
        at = tuple(where)
        for one, n in self.kept.items():
            if any(one in self.needed(s) for s in range(stage)):
                inside.values[one] = inside.assign(f"t{one}_{stage}", ir.Load(self.outputs[n], at))
        totals = {r: self.total(r) for r in self.reductions(stage)}
        steps: list[ir.Statement] = []
        for r, (total, _) in totals.items():
            element = Scalar(inside.value(self.group.ops[r].inputs[0])).cast(self.at(r))
            steps.append(ir.Assign(total, self.combine(r, ir.Read(total), element.expr)))
        stored = self.stored(stage)
        steps += [ir.Store(self.outputs[n], at, inside.op(self.group.outputs[n])) for n in stored]
        for one, n in self.kept.items():
            if (
                one in inside.values
                and n not in stored
                and not any(one in self.needed(s) for s in range(stage))
            ):
                steps.append(ir.Store(self.outputs[n], at, inside.values[one]))
        for total, begin in totals.values():
            self.values.body.append(ir.Assign(total, begin))
        self.values.body.append(self.around(k, (*inside.body, *steps)))
        for r, (total, _) in totals.items():
            self.values.values[r] = self.finish(r, total)

    def part_size(self) -> ir.Expr:
        """The elements of a part of a row; the last one may have less."""
        parts = ir.Extent(self.outputs[0], 1)
        return op("floordiv", op("add", self.count, op("sub", parts, number(1))), parts)

    def begin(self) -> ir.Expr:
        """The first element of a block's part of a row."""
        return op("mul", self.part, self.part_size()) if self.group.parts else number(0)

    def around(self, k: ir.Variable, body: tuple[ir.Statement, ...]) -> ir.Statement:
        """The loop over a row, or over a part of it."""
        start: ir.Expr = number(0)
        stop, step = self.count, number(1)
        if self.group.parts:
            stop = op("min", self.part_size(), op("sub", self.count, self.begin()))
        match self.group.style:
            case "block":
                start, step = self.thread, number(self.group.block)
            case "column":
                # A barrier a step: the CPU's threads take it side by side, along their rows.
                inside = ir.Op("lt", (self.row, self.rows), bool_)
                body = (ir.If(inside, body), ir.Barrier())
        return ir.For(k, start, stop, step, body)

    # -- reductions --

    def at(self, r: int) -> DType:
        """The dtype that a reduction computes at: half floats are added in single ones."""
        o = self.group.ops[r]
        dtype = ops.OPS[o.row].dtypes(o.dtypes)[0]
        return dtypes.float32 if dtype.kind == "float" and dtype.bits == 16 else dtype

    def total(self, r: int) -> tuple[ir.Variable, ir.Expr]:
        """A reduction's variable, and what it begins with."""
        at = self.at(r)
        return ir.Variable(f"total{r}", at), identity(ops.OPS[self.group.ops[r].row], at)

    def combine(self, r: int, total: ir.Expr, element: ir.Expr) -> ir.Expr:
        found: Scalar = ops.OPS[self.group.ops[r].row].expression(Scalar(total), Scalar(element))
        return found.cast(self.at(r)).expr

    def finish(self, r: int, total: ir.Variable) -> ir.Expr:
        """The whole of a reduction, for every thread of the block."""
        value: ir.Expr = ir.Read(total)
        if self.group.style == "block":
            value = self.put_together(r, value)
        if self.group.parts:
            return value
        return self.values.assign(f"r{r}", Scalar(value).cast(self.result(r)).expr)

    def put_together(self, r: int, value: ir.Expr) -> ir.Expr:
        """The threads' parts by halves: of equal rows the same order, whatever the device."""
        shared = ir.Array(f"shared{r}", self.at(r), 1, "shared", shape=(self.group.block,))
        self.shared.append(shared)
        body = self.values.body
        body += [ir.Store(shared, (self.thread,), value), ir.Barrier()]
        half = self.group.block // 2
        while half:
            pair = [
                ir.Load(shared, (i,)) for i in (self.thread, op("add", self.thread, number(half)))
            ]
            step = ir.Store(shared, (self.thread,), self.combine(r, *pair))
            body += [
                ir.If(ir.Op("lt", (self.thread, number(half)), bool_), (step,)), ir.Barrier()
            ]  # fmt: skip
            half //= 2
        return self.values.assign(f"all{r}", ir.Load(shared, (number(0),)))


def identity(row: Row, dtype: DType) -> ir.Expr:
    """What a reduction begins with."""
    if row.identity is not None:
        return constant(row.identity, dtype).expr
    low, high = (-math.inf, math.inf) if dtype.kind == "float" else dtype.range
    return constant({"max": low, "min": high}[row.name], dtype).expr


# ---- axes ----------------------------------------------------------------------------------------


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
        if n == 1:
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


# ---- launches ------------------------------------------------------------------------------------


def is_flat(shape: tuple[int, ...]) -> bool:
    """Whether a grid's axes beside x would be too long."""
    return max((*shape[-2:-1], math.prod(shape[:-2]))) > MAX_SIDE


def configuration(group: Group, shape: tuple[int, ...], parts: int = 1) -> Launch:
    """The grid and block over a (merged) space."""
    block = (group.block, 1, 1)
    rows = math.prod(shape[: group.outer])
    match group.style:
        case "block":
            return Launch((rows, parts, 1), block)
        case "row" | "column":
            return Launch((-(-rows // group.block), parts, 1), block)
    if group.flat:
        return Launch((-(-math.prod(shape) // group.block), 1, 1), block)
    x, y, z = shape[-1], shape[-2] if len(shape) > 1 else 1, math.prod(shape[:-2])
    return Launch((-(-x // group.block), y, z), block)


def prepare(kernel: Lowered, types: tuple[Type, ...], device: str) -> Any:
    """The compiled kernel for types of arguments, on a device."""
    return kernel.specialise(types, device, (kernel.what.block, 1, 1))


def launcher(
    kernel: Lowered, launch: Launch, device: str, types: tuple[Type, ...]
) -> Callable[..., None]:
    """A callable that takes arguments of the types; running profiles are told of its calls."""
    run = prepare(kernel, types, device).launcher(launch, _misfit, ())

    def watched(*arguments: Any) -> None:
        if not observers:
            run(*arguments)
            return
        with observed("kernel", kernel.__name__, device):
            run(*arguments)

    return watched


def types_of(arguments: Sequence[Any]) -> tuple[Type, ...]:
    return tuple(type_of(a) for a in arguments)


def _misfit(*arguments: Any) -> None:
    raise AssertionError("a kernel was launched with arguments that it was not made for")
