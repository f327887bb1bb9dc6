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

On a GPU of NVIDIA a thread takes a `chunk` of elements at a time: all their loads are on the way
before the first one is used, which is what its bandwidth needs. A row that fits the registers of
its block is `held` there, read once whatever is computed of it. Threads put their parts together by
exchanges within warps.

`parts` of a row: with few long rows each is divided among blocks; a second kernel reduces the
parts.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from ruda import dtypes
from ruda.backends.base import Launch, observed, observers
from ruda.dtypes import DType, bool_, index
from ruda.jit import ir
from ruda.jit.kernel import Kernel, KernelOptions
from ruda.jit.types import ArrayType, Type, type_of
from ruda.locks import fork_safe_lock
from ruda.settings import settings
from ruda.tensor import ops
from ruda.tensor.opdef import Row, Scalar, constant, trace

BLOCK = 256
MAX_SIDE = 65535  # of a grid beside x
WARP, ALL = 32, 0xFFFFFFFF  # lanes of a warp, and the mask that names them
REGISTERS = 1 << 16  # of a multiprocessor of CUDA, which the threads of a block share
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

    arrays   for each input array, its dtype and the axes of the space that it has, as they lie in
             memory: the last one is that of neighbours
    order    the axes of outputs that have all of them
    numbers  dtypes of the numbers that are passed
    outputs  which ops are stored
    ndim     axes of the space after merging, `outer` of them not reduced, these first
    style    "each", "block", "row" or "column"
    parts    whether outputs are parts (rows, parts) of reductions
    block    threads of a block
    flat     whether the axes are counted by one thread index: a grid's other axes are short
    keeps    whether dear values are kept in outputs
    chunk    elements that a thread takes at a time
    held     whether a chunk is all of a thread's row, and stays in registers
    full     of a held chunk, how many elements are there in every thread
    warps    whether threads exchange values within warps, where the dtype can be
    part     elements of a part of a row; 0: rows are divided evenly
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
    chunk: int = 1
    held: bool = False
    full: int = 0
    warps: bool = False
    part: int = 0
    order: tuple[int, ...] = ()

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
        self._lock = fork_safe_lock()
        self._specialisations = {}
        self._current = (None, {})
        self._configured = {}

    def translate(
        self, argument_types: Sequence[Type], *, block: Any = None, needs_block: Any = None
    ) -> tuple[ir.Function, tuple[()]]:
        function = self.what.build(self.__name__, argument_types)
        function = replace(function, contract=self._translation_options()["contract"])
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
        registers: Mapping[int, ir.Expr] | None = None,
    ) -> None:
        self.group, self.arrays, self.numbers, self.where = group, arrays, numbers, where
        self.suffix, self.around = suffix, around
        self.registers = registers or {}  # input arrays whose elements are loaded already
        self.body: list[ir.Statement] = []
        self.loads: dict[int, ir.Expr] = {}
        self.values: dict[int, ir.Expr] = {}

    def load(self, k: int) -> ir.Expr:
        axes = self.group.arrays[k][1]
        if self.around is not None and all(a < self.group.outer for a in axes):
            return self.around.load(k)  # the same for the whole row
        if k not in self.loads:
            loaded = self.registers.get(k)
            if loaded is None:
                loaded = ir.Load(self.arrays[k], tuple(self.where[a] for a in axes))
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


class Stages:
    """What each loop over a row computes: a reduction of another's result needs a loop of its own.

    `of` tells for each op after how many loops it is known.
    """

    def __init__(self, group: Group) -> None:
        self.group = group
        self.of: list[int] = []
        for o in group.ops:
            known = max((self.of[k] for what, k in o.inputs if what == "op"), default=0)
            self.of.append(known + (ops.OPS[o.row].kind == "reduce"))
        self.all = range(max(self.of) + 1)

    def reductions(self, stage: int) -> list[int]:
        """The reductions of a loop."""
        return [
            k for k, o in enumerate(self.group.ops)
            if ops.OPS[o.row].kind == "reduce" and self.of[k] == stage + 1
        ]  # fmt: skip

    def stored(self, stage: int) -> list[int]:
        """The outputs that a loop writes."""
        return [
            n for n, k in enumerate(self.group.outputs)
            if self.group.ops[k].level == "full" and self.of[k] == stage
        ]  # fmt: skip

    def needed(self, stage: int, known: Iterable[int] = ()) -> set[int]:
        """The ops of elements that a loop computes, where some values are known."""
        out: set[int] = set()
        waiting = [self.group.outputs[n] for n in self.stored(stage)]
        waiting += [k for r in self.reductions(stage) for _, k in self.group.ops[r].inputs
                    if self.group.ops[r].inputs[0][0] == "op"]  # fmt: skip
        while waiting:
            k = waiting.pop()
            if k not in out and self.group.ops[k].level == "full":
                out.add(k)
                if k not in known:
                    waiting += [i for what, i in self.group.ops[k].inputs if what == "op"]
        return out

    def loaded(self, stage: int, known: Iterable[int] = ()) -> set[int]:
        """The input arrays whose elements a loop takes."""
        users = (self.needed(stage, known) - set(known)) | set(self.reductions(stage))
        inputs = [i for k in users for i in self.group.ops[k].inputs]
        return {
            k for what, k in inputs
            if what == "array" and any(a >= self.group.outer for a in self.group.arrays[k][1])
        }  # fmt: skip

    def dear(self) -> set[int]:
        """Dear ops that two loops need: a held row keeps them."""
        loops = [self.needed(stage) for stage in self.all]
        return {
            k for k, o in enumerate(self.group.ops)
            if o.row in DEAR and sum(k in needs for needs in loops) > 1
        }  # fmt: skip


def held_bytes(group: Group) -> int:
    """The most that a held row keeps of one of its elements at a time."""
    stages = Stages(group)
    dear = stages.dear()
    loops = [stages.needed(s) for s in stages.all]
    spans: list[tuple[int, int, int, bool]] = []  # bytes, the first and last loop, whether loaded
    for k in dear:
        uses = [s for s in stages.all if k in loops[s]]
        spans.append((max(4, result(group, k).itemsize), uses[0], uses[-1], False))
    for a, (dtype, _) in enumerate(group.arrays):
        known = [{k for k in dear if any(k in needs for needs in loops[:s])} for s in stages.all]
        uses = [s for s in stages.all if a in stages.loaded(s, known[s])]
        if uses:
            spans.append((max(4, dtype.itemsize), uses[0], uses[-1], True))
    # An element that a loop takes last makes room for one that it keeps.
    given = [sum(n for n, i, j, load in spans if i < s + load and s <= j) for s in stages.all]
    kept = [sum(n for n, i, j, _ in spans if i <= s < j) for s in stages.all]
    return max(*given, *kept)


def result(group: Group, k: int) -> DType:
    """The dtype of an op."""
    o = group.ops[k]
    return ops.OPS[o.row].dtypes(o.dtypes)[1]


def computed_at(group: Group, r: int) -> DType:
    """The dtype that a reduction computes at: half floats are added in single ones."""
    o = group.ops[r]
    dtype = ops.OPS[o.row].dtypes(o.dtypes)[0]
    return dtypes.float32 if dtype.kind == "float" and dtype.bits == 16 else dtype


class Rows:
    """Writes the kernel of a group with reductions."""

    def __init__(self, name: str, group: Group, types: Sequence[Type]) -> None:
        self.name, self.group = name, group
        self.outputs, self.inputs, self.numbers = declared(group, types)
        self.own: list[ir.Array] = []  # arrays of the kernel
        self.registers: dict[int, ir.Array] = {}  # elements of input arrays
        self.saved: dict[int, ir.Array] = {}  # dear values
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
        self.stages = Stages(group)
        self.kept = self.find_kept()
        self.dear = self.stages.dear() if group.held else set()

    def extent(self, axis: int) -> ir.Expr:
        """The length of an axis, of an array that has it."""
        for array, (_, axes) in zip(self.inputs, self.group.arrays, strict=True):
            if axis in axes:
                return ir.Extent(array, axes.index(axis))
        raise AssertionError("no array has this axis")

    def find_kept(self) -> dict[int, int]:
        """Dear ops that later loops need again, and the outputs that hold them until then."""
        if not self.group.keeps or self.group.parts:
            return {}
        found: dict[int, int] = {}
        loops = [self.stages.needed(s) for s in self.stages.all]
        free = {
            n: self.stages.of[k] for n, k in enumerate(self.group.outputs)
            if self.group.ops[k].level == "full"
        }  # fmt: skip
        for k in reversed(range(len(self.group.ops))):  # the last one is made of the others
            uses = [s for s, needs in enumerate(loops) if k in needs]
            if self.group.ops[k].row not in DEAR or len(uses) < 2:
                continue
            if not self.again(k, loops, found):
                continue
            dtype = result(self.group, k)
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
            if self.group.outputs and any(
                self.group.outputs[n] == k for n in self.stages.stored(s)
            ):
                return True
            users = [u for u in loops[s] if ("op", k) in self.group.ops[u].inputs]
            users += [r for r in self.stages.reductions(s) if ("op", k) in self.group.ops[r].inputs]
            if any(u not in found for u in users):
                return True
        return False

    def function(self) -> ir.Function:
        for stage in self.stages.all:
            self.row_values(stage)
            if self.stages.reductions(stage) or self.stages.stored(stage):
                self.loop(stage)
        body = tuple(self.values.body)
        if self.group.style == "row":
            body = (ir.If(ir.Op("lt", (self.row, self.rows), bool_), body),)
        declared = tuple(ir.Declare(a) for a in self.own)
        parameters: tuple[ir.Array | ir.Variable, ...] = (
            *self.outputs, *self.inputs, *self.numbers
        )  # fmt: skip
        # A large block must find room, however many values its threads hold.
        most = REGISTERS // self.group.block if self.group.block > 256 else None
        return ir.Function(
            self.name, parameters, (*declared, *body), arrays=tuple(self.own), max_registers=most
        )

    def row_values(self, stage: int) -> None:
        """What is made of the reductions so far, and is the same for a whole row."""
        for k, o in enumerate(self.group.ops):
            if o.level == "row" and self.stages.of[k] == stage:
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
        totals = {r: self.total(r) for r in self.stages.reductions(stage)}
        for total, begin in totals.values():
            self.values.body.append(ir.Assign(total, begin))
        if self.group.chunk > 1 or self.group.held:
            self.values.body += self.by_chunks(stage)
        else:
            k = ir.Variable(f"k_{stage}", index)
            self.values.body.append(self.around(k, self.element(stage, ir.Read(k))))
        for r, (total, _) in totals.items():
            self.values.values[r] = self.finish(r, total)

    def element(
        self,
        stage: int,
        k: ir.Expr,
        inside: ir.Expr | None = None,
        registers: Mapping[int, ir.Expr] | None = None,
        saved: Mapping[int, ir.Expr] | None = None,
    ) -> tuple[ir.Statement, ...]:
        """What a loop does with element `k` of a row, or of a part of it.

        inside     where the element may be behind the row's end: whether it is not
        registers  elements of input arrays that are loaded already
        saved      where dear values are, or go
        """
        where = self.where(k)
        at = tuple(where[a] for a in self.group.order or range(self.group.ndim))
        values = Values(
            self.group, self.inputs, self.numbers, where, f"_{stage}", self.values, registers
        )
        before = {one for s in range(stage) for one in self.stages.needed(s)}
        for one, n in self.kept.items():
            if one in before:
                values.values[one] = values.assign(f"t{one}_{stage}", ir.Load(self.outputs[n], at))
        for one, place in (saved or {}).items():
            if one in before:
                values.values[one] = values.assign(f"t{one}_{stage}", place)
        steps: list[ir.Statement] = []
        for r in self.stages.reductions(stage):
            total, begin = self.total(r)
            element = Scalar(values.value(self.group.ops[r].inputs[0]))
            taken = element.cast(computed_at(self.group, r)).expr
            if inside is not None:
                taken = ir.Select(inside, values.assign(f"e{r}_{stage}", taken), begin)
            steps.append(ir.Assign(total, self.combine(r, ir.Read(total), taken)))
        stored = self.stages.stored(stage)
        stores = [ir.Store(self.outputs[n], at, values.op(self.group.outputs[n])) for n in stored]
        for one, n in self.kept.items():
            if one in values.values and n not in stored and one not in before:
                stores.append(ir.Store(self.outputs[n], at, values.values[one]))
        if inside is not None and stores:
            steps.append(ir.If(inside, tuple(stores)))
        else:
            steps += stores
        for one, place in (saved or {}).items():
            if one in values.values and one not in before:
                assert isinstance(place, ir.Load)
                steps.append(ir.Store(place.array, place.indices, values.values[one]))
        return (*values.body, *steps)

    def where(self, k: ir.Expr) -> list[ir.Expr]:
        """The coordinates of an element of a row, or of a part of it."""
        along = split(op("add", self.begin(), k), self.extents[self.group.outer :])
        return [*self.values.where[: self.group.outer], *along]

    def by_chunks(self, stage: int) -> list[ir.Statement]:
        """The loop over a row, a chunk of elements at a time; at its end element by element."""
        chunk, stride = self.group.chunk, self.stride()
        first = self.thread if self.group.style == "block" else number(0)
        if self.group.held:
            return self.held(stage, first)
        k = ir.Variable(f"c_{stage}", index)
        end = op("sub", self.length(), number((chunk - 1) * stride))
        whole = ir.For(k, first, end, number(chunk * stride), tuple(self.chunk(stage, ir.Read(k))))
        missing = op("add", op("sub", end, first), number(chunk * stride - 1))
        full = op("floordiv", op("max", missing, number(0)), number(chunk * stride))
        behind = op("add", first, op("mul", full, number(chunk * stride)))
        rest = ir.Variable(f"k_{stage}", index)
        body = self.element(stage, ir.Read(rest))
        return [whole, ir.For(rest, behind, self.length(), number(stride), body)]

    def held(self, stage: int, first: ir.Expr) -> list[ir.Statement]:
        """The loop over a row that is held: only the last elements may lie behind its end."""
        full = self.group.full
        if full or self.group.part != self.group.chunk * self.stride():
            return self.chunk(stage, first, self.length(), full)
        before = dict(self.registers), dict(self.saved)
        whole = self.chunk(stage, first)
        self.registers, self.saved = before
        last = self.chunk(stage, first, self.length())
        is_whole = ir.Op("le", (number(self.group.part), self.length()), bool_)
        return [ir.If(is_whole, tuple(whole), tuple(last))]

    def stride(self) -> int:
        """How far a thread's elements are apart."""
        return self.group.block if self.group.style == "block" else 1

    def chunk(
        self, stage: int, first: ir.Expr, length: ir.Expr | None = None, full: int = 0
    ) -> list[ir.Statement]:
        """All loads of a chunk, then the rest.

        length  is given where elements may lie behind it, but for the first `full` ones
        """
        if length is None:
            full = self.group.chunk
        if not self.group.held:
            self.registers, self.saved = {}, {}
        out: list[ir.Statement] = []

        def each(
            name: str, body: Callable[[ir.Expr, ir.Expr, bool], Sequence[ir.Statement]]
        ) -> None:
            for start, stop, sure in ((0, full, True), (full, self.group.chunk, False)):
                if start == stop:
                    continue
                j = ir.Variable(f"{name}{'' if sure else 'last'}_{stage}", index)
                k = op("add", first, op("mul", ir.Read(j), number(self.stride())))
                steps = tuple(body(ir.Read(j), k, sure))
                out.append(ir.For(j, number(start), number(stop), number(1), steps))

        def place(array: ir.Array, j: ir.Expr) -> ir.Load:
            return ir.Load(array, (j,))

        before = {one for s in range(stage) for one in self.stages.needed(s)}
        known = self.dear & before
        new = sorted(self.stages.loaded(stage, known) - set(self.registers))
        for a in new:
            self.registers[a] = self.local(f"row{a}_{stage}", self.group.arrays[a][0])
        for one in sorted(self.dear & self.stages.needed(stage) - known):
            self.saved[one] = self.local(f"kept{one}", result(self.group, one))

        def load(j: ir.Expr, k: ir.Expr, sure: bool) -> Sequence[ir.Statement]:
            if not sure:  # behind the end: the last element, which nobody uses
                assert length is not None
                k = op("min", k, op("sub", length, number(1)))
            where = self.where(k)
            return [
                ir.Store(self.registers[a], (j,),
                         ir.Load(self.inputs[a], tuple(where[x] for x in self.group.arrays[a][1])))
                for a in new
            ]  # fmt: skip

        def compute(j: ir.Expr, k: ir.Expr, sure: bool) -> Sequence[ir.Statement]:
            return self.element(
                stage,
                k,
                None if sure else ir.Op("lt", (k, length), bool_),  # type: ignore[arg-type]
                {a: place(array, j) for a, array in self.registers.items()},
                {one: place(array, j) for one, array in self.saved.items()},
            )

        if new:
            each("l", load)
        each("j", compute)
        return out

    def local(self, name: str, dtype: DType) -> ir.Array:
        """An array of a thread for a chunk: its indices are known, so that it is registers."""
        made = ir.Array(name, dtype, 1, "local", shape=(self.group.chunk,))
        if made not in self.own:
            self.own.append(made)
        return made

    def length(self) -> ir.Expr:
        """The elements of a row, or of the block's part of it."""
        if not self.group.parts:
            return self.count
        return op("min", self.part_size(), op("sub", self.count, self.begin()))

    def part_size(self) -> ir.Expr:
        """The elements of a part of a row; the last one may have less."""
        if self.group.part:
            return number(self.group.part)
        parts = ir.Extent(self.outputs[0], 1)
        return op("floordiv", op("add", self.count, op("sub", parts, number(1))), parts)

    def begin(self) -> ir.Expr:
        """The first element of a block's part of a row."""
        return op("mul", self.part, self.part_size()) if self.group.parts else number(0)

    def around(self, k: ir.Variable, body: tuple[ir.Statement, ...]) -> ir.Statement:
        """The loop over a row, or over a part of it."""
        start: ir.Expr = number(0)
        stop, step = self.length(), number(1)
        match self.group.style:
            case "block":
                start, step = self.thread, number(self.group.block)
            case "column":
                # A barrier a step: the CPU's threads take it side by side, along their rows.
                inside = ir.Op("lt", (self.row, self.rows), bool_)
                body = (ir.If(inside, body), ir.Barrier())
        return ir.For(k, start, stop, step, body)

    # -- reductions --

    def total(self, r: int) -> tuple[ir.Variable, ir.Expr]:
        """A reduction's variable, and what it begins with."""
        at = computed_at(self.group, r)
        return ir.Variable(f"total{r}", at), identity(ops.OPS[self.group.ops[r].row], at)

    def combine(self, r: int, total: ir.Expr, element: ir.Expr) -> ir.Expr:
        found: Scalar = ops.OPS[self.group.ops[r].row].expression(Scalar(total), Scalar(element))
        return found.cast(computed_at(self.group, r)).expr

    def finish(self, r: int, total: ir.Variable) -> ir.Expr:
        """The whole of a reduction, for every thread of the block."""
        value: ir.Expr = ir.Read(total)
        if self.group.style == "block":
            # Each by its own dtype: the order of a sum may not depend on what is beside it.
            warps = self.group.warps and is_exchanged(value.dtype)
            value = (self.exchanged if warps else self.put_together)(r, value)
        if self.group.parts:
            return value
        return self.values.assign(f"r{r}", Scalar(value).cast(result(self.group, r)).expr)

    def put_together(self, r: int, value: ir.Expr) -> ir.Expr:
        """The threads' parts by halves: of equal rows the same order, whatever the device."""
        shared = ir.Array(
            f"shared{r}", computed_at(self.group, r), 1, "shared", shape=(self.group.block,)
        )
        self.own.append(shared)
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

    def exchanged(self, r: int, value: ir.Expr) -> ir.Expr:
        """The same by exchanges within warps, whose parts go through shared memory."""
        warps = self.group.block // WARP
        value = self.halved(r, value, WARP, "lane")
        if warps == 1:
            return value
        shared = ir.Array(f"shared{r}", computed_at(self.group, r), 1, "shared", shape=(warps,))
        self.own.append(shared)
        warp, lane = (op(name, self.thread, number(WARP)) for name in ("floordiv", "mod"))
        first = ir.Op("eq", (lane, number(0)), bool_)
        self.values.body += [
            ir.If(first, (ir.Store(shared, (warp,), value),)), ir.Barrier()
        ]  # fmt: skip
        part = ir.Load(shared, (op("mod", self.thread, number(warps)),))
        return self.halved(r, self.values.assign(f"part{r}", part), warps, "warp")

    def halved(self, r: int, value: ir.Expr, width: int, name: str) -> ir.Expr:
        """The values of neighbouring lanes put together by halves, for each of these lanes."""
        step = width // 2
        while step:
            other = ir.Variable(f"{name}{r}_{step}", value.dtype)
            lanes = (ir.Const(step, dtypes.int32), ir.Const(WARP, dtypes.int32))
            self.values.body.append(
                ir.Warp("shfl_xor", ir.Const(ALL, dtypes.uint32), (value, *lanes), other)
            )
            value = self.values.assign(
                f"{name}{r}_with_{step}", self.combine(r, value, ir.Read(other))
            )
            step //= 2
        return value


def is_exchanged(dtype: DType) -> bool:
    """Whether lanes of a warp can exchange values of a dtype."""
    return dtype.kind in ("int", "uint", "float") and dtype.bits >= 32


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


LAUNCHERS = 4096  # that are kept
# The settings that launchers were made under, and the launchers: a new one costs a millisecond.
_launchers: tuple[Any, dict[Any, Callable[..., None]]] = (None, {})


def prepare(kernel: Lowered, types: tuple[Type, ...], device: str) -> Any:
    """The compiled kernel for types of arguments, on a device."""
    return kernel.specialise(types, device, (kernel.what.block, 1, 1))


def launcher(
    kernel: Lowered, launch: Launch, device: str, types: tuple[Type, ...]
) -> Callable[..., None]:
    """A callable that takes arguments of the types; running profiles are told of its calls."""
    global _launchers
    state = settings.local.get() or settings.base
    if _launchers[0] is not state or len(_launchers[1]) >= LAUNCHERS:
        _launchers = state, {}
    known, key = _launchers[1], (kernel, launch, device, types)
    found = known.get(key)
    if found is None:
        found = known[key] = new_launcher(kernel, launch, device, types)
    return found


def new_launcher(
    kernel: Lowered, launch: Launch, device: str, types: tuple[Type, ...]
) -> Callable[..., None]:
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
