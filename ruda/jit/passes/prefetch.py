"""Ask early for the memory of the next rounds.

A processor sees ahead within a page. A loop that goes through memory in steps of a grid finds
nothing of its next round in the caches, and one that goes straight on waits at the start of every
page. Here the threads of a round ask, cache line by cache line, for what they will load a round
later, or a page further on if rounds are shorter than that. Asking is a hint: it neither faults nor
changes what is computed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ruda.dtypes import DType
from ruda.jit import ir
from ruda.jit.ir import (
    Asm,
    Assign,
    Body,
    Const,
    Expr,
    For,
    Function,
    If,
    Load,
    Op,
    Read,
    Select,
    Variable,
)
from ruda.jit.passes.indices import index, op
from ruda.jit.passes.names import Names
from ruda.jit.passes.threads import coefficient

LINE = 64  # bytes of a cache line
THREADS = 64  # that ask together: enough of them for a vectorised loop in between
PAGE = 4096  # bytes
STREAMS = 16  # loads of a thread, at most
COMPARE = ("min", "max", "fmin", "fmax")


def prefetch_rounds(function: Function) -> Function:
    """Prefetches in loops over rounds of a block."""
    names = Names(function)

    def change(s: ir.Statement) -> ir.Statement:
        if isinstance(s, For):
            body = _threads(s, s.body, names)
            return s if body is s.body else replace(s, body=body)
        return s

    return replace(function, body=ir.rewrite_body(function.body, statement=change))


def _far(step: Expr) -> bool:
    return not isinstance(step, Const) or step.value >= PAGE


def _threads(rounds: For, body: Body, names: Names) -> Body:
    """The body of a loop over rounds, prefetches in the loops over threads directly in it."""
    out: list[ir.Statement] = []
    for s in body:
        match s:
            case For(start=Const(0), stop=Const(count), step=Const(1)) if (
                count >= THREADS
                and count % THREADS == 0
                and (not isinstance(rounds.step, Const) or rounds.step.value >= count)
            ):
                s = _asking(rounds, s, names) or s
            case For(step=Const(1)):  # rows of threads
                s = replace(s, body=_threads(rounds, s.body, names))
        out.append(s)
    return tuple(out) if any(a is not b for a, b in zip(out, body, strict=True)) else body


def _asking(rounds: For, threads: For, names: Names) -> For | None:
    far = _far(rounds.step)
    found = _streams(rounds, threads)
    if not found or len(found) > STREAMS or not (far or _adds(threads.body)):
        return None
    some = names.index(f"{threads.variable.name}_some")
    asks: list[ir.Statement] = []
    for load in found:
        assert isinstance(load.array.dtype, DType)
        size = load.array.dtype.itemsize
        for k in range(0, THREADS, max(1, LINE // size)):
            thread = op("add", Read(some), index(k))
            ahead = rounds.step if far else index(PAGE // size)
            further = op("add", Read(rounds.variable), ahead)
            last = _put(load.indices[-1], {threads.variable: thread, rounds.variable: further})
            at = (*load.indices[:-1], last)
            asks.append(Asm("cpu", "prefetch", (replace(load, indices=at),), place=load.place))
    more = op("lt", Read(rounds.variable), op("sub", rounds.stop, rounds.step))
    mine = replace(threads, start=Read(some), stop=op("add", Read(some), index(THREADS)))
    # Beyond the end of what goes straight on lies what comes next, most likely.
    asked: Body = (If(more, tuple(asks), place=threads.place),) if far else tuple(asks)
    body: Body = (*asked, mine)
    return For(some, threads.start, threads.stop, index(THREADS), body, place=threads.place)


def _adds(body: Body) -> bool:
    """Whether nothing is compared. Maxima of rounds that go straight on take a quarter longer if
    they ask: measured, and not understood."""
    expressions = (
        inner for s in ir.statements(body) for e in ir.expressions(s) for inner in ir.walk(e)
    )
    return not any(
        isinstance(e, Select) or (isinstance(e, Op) and e.name in COMPARE) for e in expressions
    )


def _streams(rounds: For, threads: For) -> list[Load]:
    """Loads next to those of the neighbouring thread, with indices in terms of both loops."""
    inside = {v for s in ir.statements(threads.body) for v in ir.written(s)}
    now: dict[Variable, Expr] = {}
    found: dict[tuple[ir.Array, tuple[Expr, ...]], Load] = {}
    for s in threads.body:
        if ir.bodies(s):
            return []
        for e in (inner for outer in ir.expressions(s) for inner in ir.walk(outer)):
            if not isinstance(e, Load) or not _plain(e):
                continue
            at = tuple(_put(i, now) for i in e.indices)
            parts = [part for i in at for part in ir.walk(i)]
            reads = {r.variable for r in parts if isinstance(r, Read)}
            if reads & inside or any(isinstance(r, Load) for r in parts):
                continue
            if all(_goes_along(at, v) for v in (threads.variable, rounds.variable)):
                found[e.array, at] = replace(e, indices=at)
        if isinstance(s, Assign):
            now[s.variable] = _put(s.value, now)
    return list(found.values())


def _goes_along(at: tuple[Expr, ...], variable: Variable) -> bool:
    """Whether the next value of a variable means the next element."""
    *outer, last = at
    still = not any(coefficient(i, variable, {}) for i in outer)
    return still and coefficient(last, variable, {}) == 1


def _plain(load: Load) -> bool:
    array = load.array
    return (
        array.space == "global"
        and array.layout == "C"
        and array.aligned
        and load.field is None
        and isinstance(array.dtype, DType)
    )


def _put(node: Expr, values: dict[Variable, Expr]) -> Expr:
    change: Callable[[Expr], Expr] = lambda e: (  # noqa: E731
        values.get(e.variable, e) if isinstance(e, Read) else e
    )
    return ir.rewrite(node, change)
