"""A program -> a `Plan`: kernels with their launches, ready to be run with values again and again.

A plan is made once for equal programs. Its steps take values by number: first the leaves, then
what the program's steps compute. On the host a step knows how to do without its kernel, too: by
the rows' NumPy meanings, one after the other.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from ruda import backends
from ruda.backends.base import Launch
from ruda.dtypes import DType, float32
from ruda.jit import intrinsics
from ruda.tensor import fuse, lower, memory
from ruda.tensor.fuse import Cluster, Limits
from ruda.tensor.graph import VIEW, WEAK
from ruda.tensor.lower import Group, Op
from ruda.tensor.memory import View
from ruda.tensor.ops import OPS
from ruda.tensor.program import Program, Reference, fold_views, unfolded

HOST_ARRAYS = 30  # arrays of a kernel on the host; adapters say their own number
LONG_ROW = 32  # elements from which a row is for a block of threads
PARTS = 1024  # blocks that a device should have at least, where rows are long
PART = 1 << 14  # elements that are worth a block
THREADS = {"cuda": 1 << 18}  # the same where a thread takes a row
FEW_THREADS = 1 << 16  # on other devices
STEPS = 64
MOST_PARTS = 1024
HOST_PART = 1 << 16
# Threads of a block: the CPU's are lanes, and what they carry should stay in registers and cache.
HOST_COLUMNS = 1024
WIDE_COLUMNS = 4096  # of reductions alone: pages in a row; what they carry still fits the cache
WIDE_BLOCKS = 16  # parts of the work that cores can share
WIDE_STEPS = 256  # elements of a column that are worth a part
HOST_BLOCKS = {"cpu": 64, "sim": LONG_ROW}
HOST_STEPS = 1 << 12  # the same where a thread takes the elements in order: sums stay exact
CHUNKED = ("cuda",)  # devices whose threads take some elements of a row at a time, and how many
TAKEN = 8
HELD_PART = 32 * lower.BLOCK  # elements of a part of a long row
HELD_BYTES = {32: 256, 64: 256, 128: 256, 256: 256, 512: 128, 1024: 128}  # of registers, by block
HOST_ROWS = 16  # rows from which the host's cores have enough to do


class Operand(NamedTuple):
    """How a kernel sees a value: `place` among the plan's values."""

    place: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]  # in bytes
    whole: bool  # in C order: a plain reshape does it

    def of(self, values: Sequence[Any]) -> Any:
        value = values[self.place]
        if not self.whole:
            return memory.look(value, self.shape, self.strides)
        return value if value.shape == self.shape else value.reshape(self.shape)


class Number(NamedTuple):
    """A Python number for a kernel: which one, at which dtype."""

    place: int
    dtype: DType


class Output(NamedTuple):
    """A result: which step's, its shape, and how the kernel sees it."""

    step: int
    shape: tuple[int, ...]
    dtype: DType
    seen: tuple[int, ...]
    strides: tuple[int, ...] | None = None  # in bytes; None: in C order
    reuses: int | None = None  # the leaf whose memory it may take

    def of(self, made: Any) -> Any:
        if self.strides is not None:
            return memory.look(made, self.seen, self.strides)
        return made if made.shape == self.seen else made.reshape(self.seen)


@dataclass(eq=False)
class Kernel:
    """A launch of a plan."""

    group: Group
    launch: Launch
    outputs: tuple[Output, ...]
    operands: tuple[Operand, ...]
    numbers: tuple[Number, ...]
    members: tuple[int, ...]
    size: int  # elements of its space
    rows: int
    moved: int  # bytes read and written
    parts: int = 1
    finish: Group | None = None  # puts the parts together
    converted: tuple[Any, list[Any]] = (None, [])  # numbers, and what the kernel gets for them
    run: Callable[..., None] | None = None
    run_finish: Callable[..., None] | None = None
    bound: Callable[..., None] | None = None  # takes results, values and numbers: see `launch`
    direct: Callable[..., None] | None = None  # takes what a kernel without parts does
    repeats: bool = False  # it runs again and again: a kernel is worth while however small it is


class Look(NamedTuple):
    """A view of a value: no launch. Both are places among the values."""

    made: int
    place: int
    view: View


@dataclass(eq=False)
class Plan:
    """A program with its kernels.

    sources  for each leaf of `program`, the given one that it is a view of
    splits   clusters that needed more arrays than the device binds
    results  for each wanted step of the given program, where its value is
    """

    program: Program
    sources: tuple[tuple[int, View | None], ...]
    steps: list[Kernel | Look]
    splits: list[fuse.Split]
    results: dict[int, int]

    @property
    def kernels(self) -> list[Kernel]:
        return [s for s in self.steps if isinstance(s, Kernel)]


def limits(device: str) -> Limits:
    """What kernels of a device may have."""
    if memory.on_host(device):
        return Limits(HOST_ARRAYS)
    target = backends.get(device).target(device)
    return Limits(int(target.get("max_buffers", HOST_ARRAYS)))


def make(p: Program, fused: bool = True) -> Plan:
    """The plan of a program."""
    folded = fold_views(p) if fused else unfolded(p)
    q = folded.program
    maker = fuse.Maker(q, limits(p.device))
    if fused:
        maker.take(range(len(q.steps)))
        maker.join_neighbours()
    else:
        for k, step in enumerate(q.steps):
            if step.row is not VIEW:
                maker.new(k)
    splits = maker.split_large()
    if fused:
        divide_long_rows(maker)
    steps: list[Kernel | Look] = []
    looked: set[int] = set()
    first = len(q.leaves)

    def look(reference: Reference) -> None:
        """Views that are read as memory."""
        what, k = reference
        if what != "step" or k in looked or q.steps[k].row is not VIEW:
            return
        source = q.steps[k].inputs[0]
        look(source)
        looked.add(k)
        steps.append(Look(first + k, place(source, first), q.steps[k].axes))

    for c in maker.ordered():
        for reference in sorted(maker.reads(c)):
            look(reference)
        steps.append(kernel(q, maker, c))
    for k in sorted(q.wanted):
        look(("step", k))
    spare_read_later(steps)
    return Plan(q, folded.sources, steps, splits, {k: first + n for k, n in folded.wanted.items()})


def spare_read_later(steps: Sequence[Kernel | Look]) -> None:
    """Take back what a kernel may write if a later one reads it."""
    seen = {s.place for s in steps if isinstance(s, Look)}
    for step in reversed(steps):
        if isinstance(step, Kernel):
            step.outputs = tuple(
                o._replace(reuses=None) if o.reuses in seen else o for o in step.outputs
            )
            seen |= {o.place for o in step.operands}


def place(reference: Reference, first: int) -> int:
    """Where a plan keeps a value."""
    what, k = reference
    return k if what == "leaf" else first + k


def divide_long_rows(maker: fuse.Maker) -> None:
    """Few long rows: what needs the reductions whole goes into kernels of its own."""
    waiting = list(maker.all.values())
    while waiting:
        c = waiting.pop()
        if c.axes is None or parts_of(maker, c) == 1:
            continue
        early = early_members(maker, c)
        if len(early) == len(c.members):
            continue
        before = set(maker.all)
        maker.dissolve(c, early)
        waiting += [d for n, d in maker.all.items() if n not in before and d.axes is not None]


def early_members(maker: fuse.Maker, c: Cluster) -> list[int]:
    """The first reductions of a cluster, and what only goes into them."""
    steps, late = maker.p.steps, set()
    for k in c.members:
        inside = [i[1] for i in steps[k].inputs if i[0] == "step" and maker.of.get(i[1]) is c]
        if any(j in late or steps[j].row.kind == "reduce" for j in inside):
            late.add(k)
    early: set[int] = set()
    for k in reversed(c.members):
        users = [u for u in maker.users[k] if maker.of.get(u) is c]
        only = users and not maker.is_stored(c, k) and all(u in early for u in users)
        if k not in late and (steps[k].row.kind == "reduce" or only):
            early.add(k)
    return [k for k in c.members if k in early]


def parts_of(maker: fuse.Maker, c: Cluster) -> int:
    """In how many parts rows are reduced: by their number and length alone, so that results
    are the same every time."""
    rows, count = fuse.rows_of(c)
    device = maker.p.device
    if takes_chunks(device) and is_inward(c):
        return -(-count // part_length(count)) if rows < PARTS and count > PART else 1
    if is_wide(maker, c):
        blocks = -(-rows // WIDE_COLUMNS)
        return max(1, min(count // WIDE_STEPS, WIDE_BLOCKS // blocks))
    if memory.on_host(device):
        part = HOST_PART if is_inward(c) else HOST_STEPS
        return -(-count // part) if rows < HOST_ROWS and count > 2 * part else 1
    if not is_inward(c):  # a thread a row
        threads = THREADS.get(device.partition(":")[0], FEW_THREADS)
        if rows >= threads or count <= 2 * STEPS or device.startswith("ascend"):
            return 1
        return min(-(-count // STEPS), -(-threads // max(rows, 1)), MOST_PARTS)
    if rows >= PARTS or count <= 2 * PART:
        return 1
    return max(1, min(-(-count // PART), -(-PARTS // max(rows, 1))))


# ---- a cluster's kernel --------------------------------------------------------------------------


def kernel(p: Program, maker: fuse.Maker, c: Cluster) -> Kernel:
    """The launch for a cluster: axes in the kernel's order, merged; operands as it sees them."""
    outputs = maker.writes(c)
    written = translate(p, maker, c)
    parts = parts_of(maker, c) if c.axes is not None else 1
    if not all(p.steps[k].row.kind == "reduce" for k in outputs):
        parts = 1
    full = tuple(max(s, 1) for s in memory.contiguous(c.space).strides)
    strides = [s for _, s in written.operands]
    strides += [full for k in outputs if c.levels[k] == "full"]
    outer_shape, outer = lower.merge(*picked(c.space, strides, c.kept()))
    inner_shape: tuple[int, ...] = ()
    inner: list[tuple[int, ...]] = [()] * len(strides)
    if c.axes is not None:
        inner_shape, inner = lower.merge(*picked(c.space, strides, c.axes))
    shape = (*outer_shape, *inner_shape)
    merged = [(*o, *i) for o, i in zip(outer, inner, strict=True)][: len(written.operands)]
    has = [lying([a for a, s in enumerate(m) if s != 0], m) for m in merged]
    if c.axes is not None:  # somebody must tell the length of every axis
        told = {a for h in has for a in h}
        has[0] = (*(a for a in range(len(shape)) if a not in told), *has[0])
    own = (*outer[-1], *inner[-1])  # of results that have all axes: they lie alike
    whole = c.axes is not None and any(c.levels[k] == "full" for k in outputs)
    order = lying(range(len(shape)), own) if whole else ()
    style, block = style_of(maker, c, shape, len(outer_shape))
    group = Group(
        written.operations,
        tuple((p.dtype_of(i), h) for (i, _), h in zip(written.operands, has, strict=True)),
        tuple(n.dtype for n in written.numbers),
        tuple(written.found[k] for k in outputs),
        len(shape),
        len(outer_shape),
        style,
        parts > 1,
        block,
        flat=c.axes is None and lower.is_flat(shape),
        order=order,
        keeps=memory.on_host(p.device) and c.axes is not None and not takes_chunks(p.device),
    )
    if takes_chunks(p.device):
        group = in_chunks(group, shape)
    elif parts > 1 and style == "block" and memory.on_host(p.device):
        group = replace(group, part=HOST_PART)  # which begin where vectors do
    first = len(p.leaves)
    seen = [
        operand(p, i, first, tuple(shape[a] for a in h), tuple(m[a] for a in h))
        for (i, _), m, h in zip(written.operands, merged, has, strict=True)
    ]
    free = set(p.dead) if c.axes is None else set()
    rows = (math.prod(outer_shape),)
    results = []
    for k in outputs:
        step = p.steps[k]
        taken = reused(p, written.operands, c, k, free)
        as_seen: tuple[int, ...] = rows
        across = None
        if c.levels[k] == "full":
            as_seen = tuple(shape[a] for a in order or range(len(shape)))
            lies = tuple(own[a] for a in order or range(len(shape)))
            if lies != memory.contiguous(as_seen).strides and math.prod(shape) > 1:
                across = tuple(s * step.dtype.itemsize for s in lies)
        results.append(Output(k, step.shape, step.dtype, as_seen, across, taken))
    moved = sum(nbytes(p, i) for i in {i for i, _ in written.operands})
    moved += sum(math.prod(o.shape) * o.dtype.itemsize for o in results)
    return Kernel(
        group,
        lower.configuration(group, shape, parts),
        tuple(results),
        tuple(seen),
        written.numbers,
        tuple(k for k in c.members if p.steps[k].row is not VIEW),
        math.prod(c.space),
        rows[0],
        moved,
        parts,
        finish_group(p.device, group, parts) if parts > 1 else None,
    )


def lying(axes: Sequence[int], strides: Sequence[int]) -> tuple[int, ...]:
    """Axes as they lie in memory, those of neighbours last."""
    return tuple(sorted(axes, key=lambda a: -abs(strides[a])))


def nbytes(p: Program, i: Reference) -> int:
    return math.prod(p.shape_of(i)) * p.dtype_of(i).itemsize


def operand(
    p: Program, i: Reference, first: int, shape: tuple[int, ...], strides: tuple[int, ...]
) -> Operand:
    """How a kernel sees a value through some axes."""
    plain = all(
        n == 1 or s == t
        for n, s, t in zip(shape, strides, memory.contiguous(shape).strides, strict=True)
    )
    whole = plain and math.prod(shape) == math.prod(p.shape_of(i)) and is_whole(p, i)
    itemsize = p.dtype_of(i).itemsize
    return Operand(place(i, first), shape, tuple(s * itemsize for s in strides), whole)


class Written(NamedTuple):
    """A cluster's ops in a kernel's terms."""

    operations: tuple[Op, ...]
    operands: list[tuple[Reference, tuple[int, ...]]]  # with strides along the space, in elements
    numbers: tuple[Number, ...]
    found: dict[int, int]  # the operation that each step has become


def translate(p: Program, maker: fuse.Maker, c: Cluster) -> Written:
    """The members of a cluster as the ops of a group."""
    operations: list[Op] = []
    operands: list[tuple[Reference, tuple[int, ...]]] = []
    numbers: list[Number] = []
    found: dict[int, int] = {}
    known: dict[tuple[Reference, tuple[int, ...]], int] = {}
    everywhere: fuse.Axes = tuple(range(len(c.space)))
    for k in c.members:
        step = p.steps[k]
        if step.row is VIEW:
            continue
        at, _ = step.row.dtypes(tuple(p.dtype_of(i) for i in step.inputs))
        is_reduction = step.row.kind == "reduce"
        where = everywhere if c.levels[k] == "full" or is_reduction else c.where[k]
        references: list[lower.Reference] = []
        dtypes: list[DType] = []
        for position, i in enumerate(step.inputs):
            inside = behind(p, maker, c, i)
            if i[0] == "number":
                condition = step.row.rule == "condition" and position == 0
                numbers.append(Number(i[1], WEAK[bool] if condition else at))
                references.append(("number", len(numbers) - 1))
                dtypes.append(numbers[-1].dtype)
                continue
            dtypes.append(p.dtype_of(i))
            if inside is not None:
                references.append(("op", found[inside]))
                continue
            key = i, strides_along(p, i, where, len(c.space))
            if key not in known:
                known[key] = len(operands)
                operands.append(key)
            references.append(("array", known[key]))
        found[k] = len(operations)
        level = "row" if is_reduction else c.levels[k]
        operations.append(Op(step.row.name, tuple(references), tuple(dtypes), level))
    return Written(tuple(operations), operands, tuple(numbers), found)


def behind(p: Program, maker: fuse.Maker, c: Cluster, i: Reference) -> int | None:
    """The member of a cluster that a reference means, through views; None: it is memory."""
    while i[0] == "step" and maker.of.get(i[1]) is c:
        if p.steps[i[1]].row is not VIEW:
            return i[1]
        i = p.steps[i[1]].inputs[0]
    return None


def strides_along(p: Program, i: Reference, where: fuse.Axes, ndim: int) -> tuple[int, ...]:
    """The strides in elements of a value along the axes of a space; 0 where it repeats."""
    shape, own = p.shape_of(i), strides_of(p, i)
    out = [0] * ndim
    missing = len(where) - len(shape)
    for a, (n, s) in enumerate(zip(shape, own, strict=True)):
        w = where[a + missing]
        if n != 1 and w is not None:
            out[w] += s
    return tuple(out)


def strides_of(p: Program, i: Reference) -> tuple[int, ...]:
    what, k = i
    if what == "leaf":
        return p.leaves[k].strides
    step = p.steps[k]
    if step.row is VIEW:
        found: tuple[int, ...] = step.axes.strides
        return found
    return memory.contiguous(step.shape).strides


def is_whole(p: Program, i: Reference) -> bool:
    """Whether a value lies in C order without gaps."""
    shape = p.shape_of(i)
    return all(
        n == 1 or s == t
        for n, s, t in zip(shape, strides_of(p, i), memory.contiguous(shape).strides, strict=True)
    )


def picked(
    shape: tuple[int, ...], strides: Sequence[tuple[int, ...]], axes: Sequence[int]
) -> tuple[tuple[int, ...], list[tuple[int, ...]]]:
    """Some axes of a shape and of strides; nothing moves along an axis of length 1."""
    return (
        tuple(shape[a] for a in axes),
        [tuple(0 if shape[a] == 1 else s[a] for a in axes) for s in strides],
    )


def style_of(maker: fuse.Maker, c: Cluster, shape: tuple[int, ...], outer: int) -> tuple[str, int]:
    """The style of a cluster's kernel, and the threads of a block."""
    if c.axes is None:
        return "each", lower.BLOCK
    count, device = math.prod(shape[outer:]), maker.p.device
    inward = c.axes and max(c.axes) == max((a for a, n in enumerate(c.space) if n != 1), default=-1)
    if not device.startswith("ascend"):
        if count >= LONG_ROW and inward:
            if takes_chunks(device):
                return "block", row_block(count)
            most = HOST_BLOCKS.get(device, lower.BLOCK)
            return "block", min(most, max(LONG_ROW, 1 << (count - 1).bit_length()))
        if device == "cpu" and not inward and math.prod(shape[:outer]) >= LONG_ROW:
            return "column", WIDE_COLUMNS if is_wide(maker, c) else HOST_COLUMNS
    return "row", lower.BLOCK


def takes_chunks(device: str) -> bool:
    return device.partition(":")[0] in CHUNKED


def part_length(count: int) -> int:
    """Elements of a part of a row: what a block holds, or more where there would be many."""
    length = HELD_PART
    while count > HELD_PART * length:
        length *= 2
    return length


def row_block(count: int) -> int:
    """Threads for a row: by its length alone, as the order of a sum follows from it."""
    for block in (32, 64, 128, 256):
        if count <= TAKEN * block:
            return block
    return next((b for b in (256, 512, 1024) if count <= 32 * b), lower.BLOCK)


def in_chunks(group: Group, shape: tuple[int, ...]) -> Group:
    """A group whose threads take some elements at a time, their whole row where that fits."""
    if group.style == "row":
        return replace(group, chunk=TAKEN)
    if group.style != "block":
        return group
    count = math.prod(shape[group.outer :])
    if group.parts:
        group = replace(group, part=part_length(count), block=lower.BLOCK)
    group = replace(group, warps=True)
    reductions = [k for k, o in enumerate(group.ops) if OPS[o.row].kind == "reduce"]
    if not all(lower.is_exchanged(lower.computed_at(group, k)) for k in reductions):
        return group
    count = group.part or count
    each = -(-count // group.block)
    full = count // group.block
    if math.prod(shape[group.outer :]) % count:  # the last part has less
        full = 0
    if each * lower.held_bytes(group) <= HELD_BYTES[group.block]:
        return replace(group, chunk=each, held=True, full=full)
    return replace(group, chunk=TAKEN)


def is_wide(maker: fuse.Maker, c: Cluster) -> bool:
    """Whether a kernel of the CPU reduces columns side by side, and does nothing else."""
    if maker.p.device != "cpu" or c.axes is None or is_inward(c):
        return False
    rows, count = fuse.rows_of(c)
    alone = all(c.levels[k] == "row" for k in maker.writes(c))
    return alone and rows >= HOST_COLUMNS and count > WIDE_STEPS


def is_inward(c: Cluster) -> bool:
    """Whether rows lie along the last axis that is long."""
    last = max((a for a, n in enumerate(c.space) if n != 1), default=-1)
    return bool(c.axes) and max(c.axes or ()) == last


def finish_group(device: str, group: Group, parts: int) -> Group:
    """The kernel that reduces the parts of each output's rows."""
    operations, arrays = [], []
    for n, k in enumerate(group.outputs):
        o = group.ops[k]
        at = part_dtype(o)
        operations.append(Op(o.row, (("array", n),), (at,), "row"))
        arrays.append((at, (0, 1)))
    outputs = tuple(range(len(arrays)))
    style = "row" if group.style != "block" else "block"
    made = Group(tuple(operations), tuple(arrays), (), outputs, 2, 1, style)
    return in_chunks(made, (1, parts)) if takes_chunks(device) else made


def part_dtype(o: Op) -> DType:
    """The dtype in which parts of a reduction are kept."""
    from ruda import dtypes
    from ruda.tensor.ops import OPS

    at = OPS[o.row].dtypes(o.dtypes)[0]
    return dtypes.float32 if at.kind == "float" and at.bits == 16 else at


def reused(
    p: Program,
    operands: Sequence[tuple[Reference, tuple[int, ...]]],
    c: Cluster,
    k: int,
    free: set[int],
) -> int | None:
    """A dead leaf that each thread reads only where it writes the output."""
    step = p.steps[k]
    full = memory.contiguous(c.space).strides
    for i, strides in operands:
        what, j = i
        if what != "leaf" or j not in free or p.leaves[j].shape != step.shape:
            continue
        if p.leaves[j].dtype.itemsize != step.dtype.itemsize or p.leaves[j].dtype != step.dtype:
            continue
        same = all(n == 1 or s == t for n, s, t in zip(c.space, strides, full, strict=True))
        if same and sum(1 for q, _ in operands if q == i) == 1:
            free.discard(j)
            return j
    return None


# ---- running -------------------------------------------------------------------------------------


def leaf_values(plan: Plan, given: Sequence[Any]) -> list[Any]:
    """The values of a plan before it runs: its leaves, some of them views of the given ones."""
    out: list[Any] = []
    for k, view in plan.sources:
        value = given[k]
        if view is not None:
            itemsize = value.dtype.itemsize
            strides = tuple(s * itemsize for s in view.strides)
            value = memory.look(value, view.shape, strides, view.offset * itemsize)
        out.append(value)
    return out + [None] * len(plan.program.steps)


def allocated(k: Kernel, values: list[Any], device: str) -> list[Any]:
    """Memory for a kernel's results: new, or that of an input which nobody will read again."""
    return [
        values[o.reuses]
        if o.reuses is not None and sys.getrefcount(values[o.reuses]) <= FREE
        else memory.maker(o.shape, o.dtype, device)()
        for o in k.outputs
    ]


def _free_references() -> int:
    """How many references there are to memory that a node and the values of a run hold."""
    holder = [np.empty(0)]
    values = [holder[0]]
    return sys.getrefcount(values[0])


FREE = _free_references()


def arguments(
    k: Kernel, made: Sequence[Any], values: Sequence[Any], numbers: Sequence[Any]
) -> list[Any]:
    """What a kernel is called with, but for a kernel of parts its outputs."""
    out = [o.of(values) for o in k.operands]
    if k.parts == 1:
        out[:0] = [o.of(m) for m, o in zip(made, k.outputs, strict=True)]
    return out + converted(k, numbers)


def converted(k: Kernel, numbers: Sequence[Any]) -> list[Any]:
    """Python numbers as a kernel takes them."""
    if numbers is not k.converted[0]:  # a replay gives the very same ones
        k.converted = numbers, [number(numbers[n.place], n.dtype) for n in k.numbers]
    return k.converted[1]


def number(value: Any, dtype: DType) -> Any:
    """A Python number at a dtype."""
    if dtype is float32:
        kind = type(value)
        if kind is float and -3e38 < value < 3e38:
            return np.float32(value)
        if kind is int and -(1 << 24) <= value <= 1 << 24:  # exact
            return np.float32(value)
    return intrinsics.convert(value, dtype)


def launch(
    k: Kernel, made: Sequence[Any], values: Sequence[Any], numbers: Sequence[Any], device: str
) -> None:
    """Run a kernel: its results go to `made`.

    The first time the arguments' types make the kernel. Later ones of the same plan have the same,
    and the same shapes and strides: where a device's launchers can be bound to these, only
    addresses are passed.
    """
    if k.bound is not None:
        k.bound(made, values, numbers)
        return
    if not math.prod(k.launch.grid):
        return
    given = arguments(k, made, values, numbers)
    backend: Any = backends.get(device)
    if k.finish is None:
        run = k.run
        if run is None:
            run = k.run = prepared(k.group, k.launch, given, device)
            install()
            if hasattr(backend, "bound"):
                k.bound = bound(k, [(k.group, k.launch, given)], device)
        run(*given)
        return
    between = [
        memory.allocate((k.rows, k.parts), part_dtype(k.group.ops[n]), device)
        for n in k.group.outputs
    ]
    whole = [m.reshape((k.rows,)) for m in made]
    if k.run is None:
        k.run = prepared(k.group, k.launch, [*between, *given], device)
        second = lower.configuration(k.finish, (k.rows, k.parts))
        k.run_finish = prepared(k.finish, second, [*whole, *between], device)
        install()
        if hasattr(backend, "bound"):
            both = (k.group, k.launch, [*between, *given]), (k.finish, second, [*whole, *between])
            k.bound = bound(k, both, device)
        else:
            k.bound = in_parts(k, k.run, k.run_finish, device)
    assert k.run_finish is not None
    k.run(*between, *given)
    k.run_finish(*whole, *between)


def in_parts(
    k: Kernel, first: Callable[..., None], second: Callable[..., None], device: str
) -> Callable[..., None]:
    """Both launches of a kernel of parts, with all found out that stays the same. What lies in
    between is short, but nothing of it is in the caches when much memory was read."""
    makers = [
        memory.maker((k.rows, k.parts), part_dtype(k.group.ops[n]), device) for n in k.group.outputs
    ]
    operands, rows = k.operands, (k.rows,)

    def run(made: Sequence[Any], values: Sequence[Any], numbers: Sequence[Any]) -> None:
        between = [make() for make in makers]
        given = [o.of(values) for o in operands]
        if numbers:
            given += converted(k, numbers)
        first(*between, *given)
        second(*[m.reshape(rows) for m in made], *between)

    return run


def install(load: bool = False) -> None:
    from ruda.tensor import quick  # which replaces functions of modules that import this one

    quick.install(load)


def bound(
    k: Kernel, calls: Sequence[tuple[Group, Launch, Sequence[Any]]], device: str
) -> Callable[..., None] | None:
    """The launches of a kernel with all but addresses and numbers fixed; None if they cannot be."""
    backend: Any = backends.get(device)
    runs = []
    for group, launch, given in calls:
        module = lower.prepare(lower.lowered(group), lower.types_of(given), device).module
        runs.append(backend.bound(module, launch, given))
    if None in runs:
        return None
    places = [o.place for o in k.operands]
    if k.finish is None:
        (run,) = runs
        k.direct = run

        def one(made: Sequence[Any], values: Sequence[Any], numbers: Sequence[Any]) -> None:
            run(*made, *[values[p] for p in places], *(converted(k, numbers) if numbers else ()))

        return one
    first, second = runs
    makers = [
        memory.maker((k.rows, k.parts), part_dtype(k.group.ops[n]), device) for n in k.group.outputs
    ]

    def both(made: Sequence[Any], values: Sequence[Any], numbers: Sequence[Any]) -> None:
        between = [make() for make in makers]
        first(*between, *[values[p] for p in places], *converted(k, numbers))
        second(*made, *between)

    return both


def fresh(
    k: Kernel, made: Any, values: Sequence[Any], numbers: Sequence[Any], device: str
) -> Callable[..., Any] | None:
    """A function of a kernel's inputs that returns new memory as `made`, the kernel's only result;
    None where a device's backend does not have that."""
    backend: Any = backends.get(device)
    if k.direct is None or not hasattr(backend, "fresh"):
        return None
    given = arguments(k, [made], values, numbers)
    module = lower.prepare(lower.lowered(k.group), lower.types_of(given), device).module
    found: Callable[..., Any] | None = backend.fresh(module, k.launch, given, made)
    return found


def recorded(made: Plan, values: list[Any], numbers: Sequence[Any]) -> list[Any]:
    """The launches of a plan as (module, launch, arguments), with memory of their own.

    Results go among the values.
    """
    device, first = made.program.device, len(made.program.leaves)
    out: list[Any] = []

    def add(group: Group, launch: Launch, given: Sequence[Any]) -> None:
        found = lower.prepare(lower.lowered(group), lower.types_of(given), device)
        out.append((found.module, launch, list(given)))

    for step in made.steps:
        if isinstance(step, Look):
            values[step.made] = memory.view(values[step.place], step.view)
            continue
        results = [memory.allocate(o.shape, o.dtype, device) for o in step.outputs]
        given = arguments(step, results, values, numbers)
        if math.prod(step.launch.grid):
            if step.finish is None:
                add(step.group, step.launch, given)
            else:
                between = [
                    memory.allocate((step.rows, step.parts), part_dtype(step.group.ops[n]), device)
                    for n in step.group.outputs
                ]
                whole = [m.reshape((step.rows,)) for m in results]
                add(step.group, step.launch, [*between, *given])
                second = lower.configuration(step.finish, (step.rows, step.parts))
                add(step.finish, second, [*whole, *between])
        for o, m in zip(step.outputs, results, strict=True):
            values[first + o.step] = m
    return out


def prepared(
    group: Group, launch: Launch, given: Sequence[Any], device: str
) -> Callable[..., None]:
    return lower.launcher(lower.lowered(group), launch, device, lower.types_of(given))
