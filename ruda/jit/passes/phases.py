"""Split a kernel at its barriers of the whole grid into phases that are launched one after another.

Only a barrier at the top level of the kernel can be split at: everything before it, in all blocks,
is a launch of its own. What a thread keeps from phase to phase is computed anew where that is
cheap, else kept in memory of the launch, one slot a thread of the grid. A thread that has returned
stays out of later phases.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from ruda import dtypes
from ruda.dtypes import DType
from ruda.errors import UnsupportedError
from ruda.jit import ir
from ruda.jit.ir import (
    Array,
    Assign,
    Atomic,
    Barrier,
    Body,
    Const,
    Expr,
    Function,
    If,
    Load,
    Op,
    Read,
    Return,
    Special,
    Statement,
    Store,
    Variable,
)
from ruda.jit.passes.exposure import exposed
from ruda.jit.passes.indices import extent, linear_thread, op
from ruda.jit.passes.uniformity import check_barriers

PHASE = Variable("phase?", dtypes.int64)
PHASE_WORD = Variable("phase?", dtypes.int32)  # for targets that may have no int64
KEPT = "kept?"  # arrays so named are memory of the launch


@dataclass(frozen=True, slots=True)
class Hidden:
    """What a kernel with phases takes besides its arguments: the phase, then kept values."""

    phases: int
    kept: tuple[DType, ...]


def _is_grid(s: Statement) -> bool:
    return isinstance(s, Barrier) and s.scope == "grid"


def has_phases(function: Function) -> bool:
    return any(_is_grid(s) for s in ir.statements(function.body))


def hidden(lowered: Function) -> Hidden | None:
    """The hidden parameters of a lowered kernel; None if it has no phases."""
    phase = next((p for p in (PHASE, PHASE_WORD) if p in lowered.parameters), None)
    if phase is None:
        return None
    kept = [p.dtype for p in lowered.parameters if p.name.startswith(KEPT)]
    count = sum(
        isinstance(s, If) and any(e == Read(phase) for e in ir.walk(s.condition))
        for s in lowered.body
    )
    return Hidden(count, tuple(d for d in kept if isinstance(d, DType)))


def split_phases(function: Function, lower: Callable[[Function], Function]) -> Function:
    """Each phase lowered by `lower`, all of them in one function that the phase chooses from."""
    check_barriers(function)
    bodies = _cut(function.body)
    _refuse_memory(function, bodies)
    at = _thread_of_the_grid(function)
    gone = Array(f"{KEPT}gone", dtypes.bool_, 1)
    leave = any(isinstance(s, Return) for b in bodies[:-1] for s in ir.statements(b))
    if leave:
        bodies = _without_the_gone(bodies, gone, at)
    cheap = _cheap(function)
    kept = sorted(
        {v for k, b in enumerate(bodies) if k for v in exposed(b)}
        & {v for b in bodies for s in ir.statements(b) for v in ir.written(s)},
        key=lambda v: v.name,
    )
    slots = {v: Array(f"{KEPT}{v.name}", v.dtype, 1) for v in kept if v not in cheap}
    flags = (gone,) if leave else ()
    parameters = (*function.parameters, PHASE, *flags, *slots.values())
    out: list[Statement] = []
    arrays = list(function.arrays)
    for k, body in enumerate(bodies):
        head: Body = ()
        if k:
            head = tuple(Assign(v, cheap[v]) for v in cheap if v in exposed(body))
            head = (*_needed(head, cheap), *head)
            loaded = [v for v in slots if v in exposed(body)]
            head = (*head, *(Assign(v, Load(slots[v], (at,))) for v in loaded))
        written = {v for s in ir.statements(body) for v in ir.written(s)}
        tail = tuple(
            Store(slots[v], (at,), Read(v)) for v in slots if v in written and k < len(bodies) - 1
        )
        inner = replace(function, parameters=parameters, body=(*head, *body, *tail))
        lowered = lower(replace(inner, arrays=function.arrays))
        arrays += [a for a in lowered.arrays if a not in arrays]
        test = Op("eq", (Read(PHASE), Const(k, PHASE.dtype)), dtypes.bool_)
        out.append(If(test, lowered.body, place=function.place))
    return replace(function, parameters=parameters, body=tuple(out), arrays=tuple(arrays))


def count_in_words(function: Function) -> Function:
    """The phase's number as an int32."""

    def change(node: Expr) -> Expr:
        match node:
            case Op("eq", (Read(variable), Const(k))) if variable == PHASE:
                return replace(node, operands=(Read(PHASE_WORD), Const(k, PHASE_WORD.dtype)))
        return node

    parameters = tuple(PHASE_WORD if p == PHASE else p for p in function.parameters)
    body = ir.rewrite_body(function.body, change)
    return replace(function, parameters=parameters, body=body)


def _cut(body: Body) -> list[Body]:
    out: list[list[Statement]] = [[]]
    for s in body:
        if _is_grid(s):
            out.append([])
            continue
        inner = next((i for i in ir.statements((s,)) if _is_grid(i)), None)
        if inner is not None:
            raise UnsupportedError(
                "a barrier of the grid inside a loop or a branch is possible on CUDA only",
                inner.place,
                hint="make the loop on the host, around the launch: each launch waits for the one "
                "before",
            )
        out[-1].append(s)
    return [tuple(b) for b in out]


def _refuse_memory(function: Function, bodies: list[Body]) -> None:
    """Shared and local arrays end with their phase."""
    for array in function.arrays:
        if array.space == "const":
            continue
        uses = [b for b in bodies if array in _arrays(b)]
        if len(uses) > 1:
            place = next(
                (s.place for b in uses[1:] for s in ir.statements(b) if array in _arrays((s,))),
                function.place,
            )
            raise UnsupportedError(
                f"`{array.name}` is {array.space} memory, and outlives a barrier of the grid only "
                "on CUDA",
                place,
                hint="keep what is needed after the barrier in an array argument",
            )


def _arrays(body: Body) -> set[Array]:
    found = {e.array for e in ir.all_expressions(body) if isinstance(e, Load)}
    return found | {s.array for s in ir.statements(body) if isinstance(s, (Store, Atomic))}


def _without_the_gone(bodies: list[Body], gone: Array, at: Expr) -> list[Body]:
    """Threads that return in one phase return at the start of each later one."""
    true, false = (Const(v, dtypes.bool_) for v in (True, False))

    def mark(s: Statement) -> Statement | Body:
        return (Store(gone, (at,), true, place=s.place), s) if isinstance(s, Return) else s

    out = []
    for k, body in enumerate(bodies):
        marked = ir.rewrite_body(body, statement=mark) if k < len(bodies) - 1 else body
        head: Statement = If(Load(gone, (at,)), (Return(),)) if k else Store(gone, (at,), false)
        out.append((head, *marked))
    return out


def _cheap(function: Function) -> dict[Variable, Expr]:
    """Variables assigned once, at the top, that coordinates and arguments give by arithmetic."""
    count: dict[Variable, int] = {}
    for s in ir.statements(function.body):
        for v in ir.written(s):
            count[v] = count.get(v, 0) + 1
    out: dict[Variable, Expr] = {}
    for s in function.body:
        if isinstance(s, Assign) and count[s.variable] == 1:
            nodes = list(ir.walk(s.value))
            if len(nodes) < 12 and all(
                isinstance(e, (Const, Special, ir.Extent, Op, ir.Cast))
                or (isinstance(e, Read) and (e.variable in out or e.variable not in count))
                for e in nodes
            ):
                out[s.variable] = s.value
    return out


def _needed(head: Body, cheap: dict[Variable, Expr]) -> Body:
    """The assignments that those of `head` rest on."""
    have = {s.variable for s in head if isinstance(s, Assign)}
    out: list[Statement] = []

    def need(e: Expr) -> None:
        for r in ir.walk(e):
            if isinstance(r, Read) and r.variable in cheap and r.variable not in have:
                have.add(r.variable)
                need(cheap[r.variable])
                out.append(Assign(r.variable, cheap[r.variable]))

    for s in head:
        if isinstance(s, Assign):
            need(s.value)
    return tuple(out)


def _thread_of_the_grid(function: Function) -> Expr:
    """A thread's linear index in the grid, block by block."""
    x, y, z = (Special("blockIdx", axis) for axis in range(3))
    rows = op("add", op("mul", z, Special("gridDim", 1)), y)
    block = op("add", op("mul", rows, Special("gridDim", 0)), x)
    threads = op("mul", op("mul", extent(function, 0), extent(function, 1)), extent(function, 2))
    return op("add", op("mul", block, threads), linear_thread(function))
