"""Loops in which the threads of a block take turns become rounds of the whole block.

`for i in range(start + thread, stop, step)` walks through memory with a stride, thread after
thread. Threads meet at no barrier in it, so that they may as well go through it together: one round
after another, each over contiguous elements, which is a loop that vectorises. A barrier at the
start of a round says so to `split_barriers`, which keeps what a thread carries from round to round
in its slot.

A round of a short body waits for memory: its elements are a page or less, and the next round's are
far away, where no prefetcher looks. So several rounds go together while all of their elements
exist: their loads wait at the same time, and a slot is loaded and stored once for all of them. A
thread still takes its elements in order, so that no sum is reordered.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

from ruda.jit import ir
from ruda.jit.ir import (
    Asm,
    Assign,
    Barrier,
    Body,
    Break,
    Const,
    Continue,
    Declare,
    Expr,
    For,
    Function,
    If,
    Load,
    Op,
    Read,
    Return,
    Special,
    Statement,
    Variable,
)  # fmt: skip
from ruda.jit.passes.indices import fold, index, op
from ruda.jit.passes.names import Names
from ruda.jit.passes.rows import ROW

Block = tuple[int, int, int]
_UNIFORM = {"blockIdx", "blockDim", "gridDim", "globalDim"}
_COUNTS = {"blockDim", "gridDim", "globalDim"}  # at least 1
TOGETHER = 4  # rounds at a time
SHORT = 24  # nodes of a body that is worth it
END = 1 << 62  # of the rounds that go together
FAR = 1 << 50  # the longest step of which several cannot wrap round


def share_rounds(function: Function, several: bool = True) -> Function:
    """Put the threads of a block through their strided loops together; `several` rounds at a time
    where that helps."""
    if function.block is None:
        return function
    written = Counter(v for s in ir.statements(function.body) for v in ir.written(s))
    written.pop(Variable(ROW, index(0).dtype), None)  # around the kernel
    block = function.block if several else None
    body = _body(function.body, block, written, {}, Names(function))
    return replace(function, body=body)


def _body(
    body: Body,
    block: Block | None,
    written: Counter[Variable],
    known: Mapping[Variable, Expr],
    names: Names,
) -> Body:
    """`known`: variables with one assignment, as expressions of what nothing assigns."""
    known = dict(known)
    out: list[Statement] = []
    for s in body:
        match s:
            case Assign(variable, value) if written[variable] == 1:
                resolved = _resolve(value, known)
                if _fixed(resolved, written):
                    known[variable] = resolved
            case For() if not ir.has_barrier(s.body):
                rounds = _rounds(s, block, written, known, names)
                if rounds is not None:
                    out += rounds
                    continue
                if block is None and all(_same(e, written, known) for e in ir.expressions(s)):
                    s = replace(s, body=_body(s.body, block, written, known, names))
            case If(condition) if not ir.has_barrier((s,)):
                if block is None and _same(condition, written, known):
                    then, otherwise = (
                        _body(b, block, written, known, names) for b in (s.then, s.otherwise)
                    )
                    s = replace(s, then=then, otherwise=otherwise)
            case _ if ir.has_barrier((s,)):
                inner = {
                    name: _body(getattr(s, name), block, written, known, names)
                    for name in ir._BODIES.get(type(s), ())
                }
                s = replace(s, **inner) if inner else s  # type: ignore[arg-type]
        out.append(s)
    return tuple(out)


def _rounds(
    loop: For,
    block: Block | None,
    written: Counter[Variable],
    known: Mapping[Variable, Expr],
    names: Names,
) -> Body | None:
    start, stop, step = (_resolve(e, known) for e in (loop.start, loop.stop, loop.step))
    parts = _split(start)
    if parts is None or loop.variable.dtype != start.dtype or start.dtype != index(0).dtype:
        return None
    base, thread = parts
    if not _along_x(thread) or not _positive(step) or not _fixed(stop, written):
        return None
    if any(isinstance(e, Special) and e.name not in _UNIFORM for e in ir.walk(stop)):
        return None
    inside = list(ir.statements(loop.body))
    if any(isinstance(s, (Asm, Break, Continue, Declare, Return)) for s in inside):
        return None
    touched = [e.array for e in ir.all_expressions(loop.body) if isinstance(e, Load)]
    touched += [s.array for s in inside if isinstance(s, (ir.Store, ir.Atomic))]
    if not touched or any(a.space == "local" for a in touched):
        return None
    last = None if block is None else _last(thread, block)
    if last is None or not _short(loop.body) or _most(step) > FAR:
        return (_single(loop, base, thread, stop, step, names),)
    return _several(loop, base, thread, last, stop, step, names)


def _last(thread: Expr, block: Block) -> Const | None:
    """The largest number of a thread."""

    def change(e: Expr) -> Expr:
        match e:
            case Special("threadIdx", axis):
                return index(block[axis] - 1)
        return fold(e)

    found = ir.rewrite(thread, change)
    return found if isinstance(found, Const) and 0 <= found.value <= FAR else None


def _single(loop: For, base: Expr, thread: Expr, stop: Expr, step: Expr, names: Names) -> Statement:
    """One round after another, the last one of the threads that still have an element."""
    first = names.index(f"{loop.variable.name}_first")
    # Not `first + thread < stop`: the sum could wrap round. `stop - first` is at least 1 here.
    guard = op("lt", thread, op("sub", stop, Read(first)))
    at = Assign(loop.variable, op("add", Read(first), thread), place=loop.place)
    mine = If(guard, (at, *loop.body), place=loop.place)
    return For(first, base, stop, step, (Barrier(place=loop.place), mine), place=loop.place)


def _several(
    loop: For, base: Expr, thread: Expr, last: Const, stop: Expr, step: Expr, names: Names
) -> Body:
    """`TOGETHER` rounds at a time as long as every thread has an element in each, then single."""
    first, rest = (names.index(f"{loop.variable.name}_{name}") for name in ("group", "rest"))
    span = op("add", last, op("mul", step, index(TOGETHER - 1)))
    stride = op("mul", step, index(TOGETHER))
    rounds: list[Statement] = [Barrier(place=loop.place)]
    for k in range(TOGETHER):
        at = op("add", Read(first), op("mul", step, index(k))) if k else Read(first)
        rounds += [Assign(loop.variable, op("add", at, thread), place=loop.place), *loop.body]
    rounds.append(Assign(rest, op("add", Read(first), stride), place=loop.place))
    # Nowhere near the end of int64: `rest` may be a stride beyond the limit.
    known = isinstance(stop, ir.Extent) or (isinstance(stop, Const) and 0 <= stop.value <= END)
    near = stop if known else op("min", op("max", stop, index(0)), index(END))
    limit = op("sub", near, span)
    return (
        Assign(rest, base, place=loop.place),
        For(first, base, limit, stride, tuple(rounds), place=loop.place),
        _single(loop, Read(rest), thread, stop, step, names),
    )


def _short(body: Body) -> bool:
    """Whether a body is a few operations that gather: no loops, and no stores.

    Stores of several rounds may not be known to be apart, which keeps a loop from vectorising.
    """
    inside = list(ir.statements(body))
    if any(isinstance(s, (For, ir.While, ir.Warp, ir.Store)) for s in inside):
        return False
    return len(inside) + sum(1 for _ in ir.all_expressions(body)) <= SHORT


def _same(node: Expr, written: Counter[Variable], known: Mapping[Variable, Expr]) -> bool:
    """Whether an expression is the same for all threads of the block, through the whole kernel."""
    found = _resolve(node, known)
    return _fixed(found, written) and not any(
        isinstance(e, Special) and e.name not in _UNIFORM for e in ir.walk(found)
    )


def _resolve(node: Expr, known: Mapping[Variable, Expr]) -> Expr:
    return ir.rewrite(node, lambda e: known.get(e.variable, e) if isinstance(e, Read) else e)


def _fixed(node: Expr, written: Counter[Variable]) -> bool:
    """Whether an expression has one value through the whole kernel, for a given thread."""
    for e in ir.walk(node):
        match e:
            case Load():
                return False
            case Read(v) if written[v]:
                return False
    return True


def _split(node: Expr) -> tuple[Expr, Expr] | None:
    """A start as (what all threads share, the part of thread indices), neither negative."""
    match node:
        case Special("threadIdx"):
            return index(0), node
        case Special(name) if name in _UNIFORM:
            return node, index(0)
        case Const(value) if value >= 0:
            return node, index(0)
        case Op("add", (x, y)):
            a, b = _split(x), _split(y)
            if a is None or b is None:
                return None
            return op("add", a[0], b[0]), op("add", a[1], b[1])
        case Op("mul", (x, y)):
            a, b = _split(x), _split(y)
            if a is None or b is None:
                return None
            for (base, thread), other in ((a, b[0]), (b, a[0])):
                factor = b[1] if other is b[0] else a[1]
                if factor == index(0) and (isinstance(other, Const) or thread == index(0)):
                    return op("mul", base, other), op("mul", thread, other)
    return None


def _along_x(thread: Expr) -> bool:
    """Whether neighbours along x have neighbouring numbers."""
    match thread:
        case Special("threadIdx", 0):
            return True
        case Op("add", (x, y)):
            sides = [any(e == Special("threadIdx", 0) for e in ir.walk(s)) for s in (x, y)]
            return sides != [True, True] and any(map(_along_x, (x, y)))
    return False


def _positive(step: Expr) -> bool:
    match step:
        case Const(value):
            return bool(value > 0)
        case Special(name):
            return name in _COUNTS
        case Op("mul", (x, y)):
            return all(_positive(e) for e in (x, y))
    return False


def _most(step: Expr) -> int:
    """An upper limit of a positive step; a launch has less than 2 ** 31 blocks along an axis."""
    match step:
        case Const(value):
            return int(value)
        case Op("mul", (x, y)):
            return _most(x) * _most(y)
        case Special("globalDim"):
            return 1 << 41
    return 1 << 31
