"""Loops in which the threads of a block take turns become rounds of the whole block.

`for i in range(start + thread, stop, step)` walks through memory with a stride, thread after
thread. Threads meet at no barrier in it, so that they may as well go through it together: one round
after another, each over contiguous elements, which is a loop that vectorises. A barrier at the
start of a round says so to `split_barriers`, which keeps what a thread carries from round to round
in its slot.
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
from ruda.jit.passes.indices import index, op
from ruda.jit.passes.names import Names

_UNIFORM = {"blockIdx", "blockDim", "gridDim", "globalDim"}
_COUNTS = {"blockDim", "gridDim", "globalDim"}  # at least 1


def share_rounds(function: Function) -> Function:
    """Put the threads of a block through their strided loops together."""
    if function.block is None:
        return function
    written = Counter(v for s in ir.statements(function.body) for v in ir.written(s))
    return replace(function, body=_body(function.body, written, {}, Names(function)))


def _body(
    body: Body, written: Counter[Variable], known: Mapping[Variable, Expr], names: Names
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
                s = _rounds(s, written, known, names) or s
            case _ if ir.has_barrier((s,)):
                inner = {
                    name: _body(getattr(s, name), written, known, names)
                    for name in ir._BODIES.get(type(s), ())
                }
                s = replace(s, **inner) if inner else s  # type: ignore[arg-type]
        out.append(s)
    return tuple(out)


def _rounds(
    loop: For, written: Counter[Variable], known: Mapping[Variable, Expr], names: Names
) -> For | None:
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
    first = names.index(f"{loop.variable.name}_first")
    # Not `first + thread < stop`: the sum could wrap round. `stop - first` is at least 1 here.
    guard = op("lt", thread, op("sub", stop, Read(first)))
    at = Assign(loop.variable, op("add", Read(first), thread), place=loop.place)
    mine = If(guard, (at, *loop.body), place=loop.place)
    together: Body = (Barrier(place=loop.place), mine)
    return For(first, base, stop, step, together, place=loop.place)


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
