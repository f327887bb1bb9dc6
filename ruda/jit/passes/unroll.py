"""Copy the bodies of short loops, for compilers that keep every loop that they are given.

CUDA's compiler unrolls loops of known bounds by itself, and then holds small local arrays in
registers and has several loads under way. What makes Vulkan's of WGSL does neither: an array that
a loop indexes stays in memory, at a fiftieth of the speed.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import replace

from ruda.jit import ir
from ruda.jit.ir import (
    And,
    Assign,
    Body,
    Break,
    Const,
    Continue,
    Expr,
    For,
    Function,
    Or,
    Read,
    Return,
    Statement,
    While,
)
from ruda.jit.passes.indices import fold

ROUNDS = 32  # of a loop
COPIES = 512  # statements that a loop becomes at most
WHOLE = 8192  # statements of a kernel


def unroll(function: Function) -> Function:
    """The function with its short loops copied, innermost first."""
    left = WHOLE - sum(1 for _ in ir.statements(function.body))

    def flat(s: Statement) -> Statement | tuple[Statement, ...]:
        nonlocal left
        rounds = _rounds(s)
        if not isinstance(s, For) or rounds is None or _leaves(s.body):
            return s
        size = len(rounds) * sum(1 for _ in ir.statements(s.body))
        if size > min(COPIES, left):
            return s
        left -= size
        out: list[Statement] = []
        for k in rounds:
            value = Const(k, s.variable.dtype, place=s.place)
            number = functools.partial(_numbered, s.variable, value)
            out += ir.rewrite_body(s.body, number)
        return tuple(out)

    return replace(function, body=ir.rewrite_body(function.body, statement=flat))


def unroll_steps(function: Function) -> Function:
    """The function with those `while` loops copied that a variable of known values counts, such as
    one that halves a step from 128."""
    left = WHOLE - sum(1 for _ in ir.statements(function.body))

    def flat(body: Body) -> Body:
        nonlocal left
        out: list[Statement] = []
        for s in body:
            inner = {name: flat(getattr(s, name)) for name in ir._BODIES.get(type(s), ())}
            s = replace(s, **inner) if inner else s  # type: ignore[arg-type]
            copies = _copies(s, out) if isinstance(s, While) else None
            size = 0 if copies is None else sum(1 for _ in ir.statements(tuple(copies)))
            if copies is None or size > min(COPIES, left):
                out.append(s)
            else:
                left -= size
                out += copies
        return tuple(out)

    return replace(function, body=flat(function.body))


def _copies(s: While, before: Sequence[Statement]) -> list[Statement] | None:
    """The rounds of a loop one after another, if they can be told from what stands before it."""
    read = {e.variable for e in ir.walk(s.condition) if isinstance(e, Read)}
    if len(read) != 1 or _leaves(s.body):
        return None
    (variable,) = read
    places = [k for k, x in enumerate(s.body) if variable in ir.written(x)]
    if len(places) != 1 or _writes(s.body, variable) != 1:
        return None
    change = s.body[places[0]]
    first = next((x for x in reversed(before) if _writes((x,), variable)), None)
    match first, change:
        case Assign(_, Const(int()) as now), Assign(_, step):
            out: list[Statement] = []
            for _ in range(ROUNDS + 1):
                goes = _known(s.condition, variable, now)
                then = _known(step, variable, now)
                if goes is None or then is None:
                    return None
                if not goes.value:
                    return [*out, replace(change, value=now)]
                for k, x in enumerate(s.body):
                    if k != places[0]:
                        value = now if k < places[0] else then
                        out += ir.rewrite_body((x,), functools.partial(_numbered, variable, value))
                now = then
    return None


def _writes(body: Body, variable: ir.Variable) -> int:
    return sum(variable in ir.written(x) for x in ir.statements(body))


def _known(e: Expr, variable: ir.Variable, value: Const) -> Const | None:
    """What an expression is where its variable has a value."""

    def folded(x: Expr) -> Expr:
        match _numbered(variable, value, x):
            case And(Const(left) as known, right):
                return right if left else known
            case Or(Const(left) as known, right):
                return known if left else right
            case found:
                return fold(found)

    found = ir.rewrite(e, folded)
    return found if isinstance(found, Const) else None


def _rounds(s: Statement) -> range | None:
    """The values of a loop's variable, if they are known and few."""
    match s:
        case For(start=Const(int(start)), stop=Const(int(stop)), step=Const(int(step))) if step:
            found = range(start, stop, step)
            return found if len(found) <= ROUNDS else None
    return None


def _leaves(body: ir.Body) -> bool:
    """Whether a round may end early: by `return` anywhere, or for this loop."""
    for s in body:
        match s:
            case Break() | Continue():
                return True
            case For(body=inner) | While(body=inner):
                if any(isinstance(x, Return) for x in ir.statements(inner)):
                    return True
            case _:
                if isinstance(s, Return) or any(_leaves(inner) for inner in ir.bodies(s)):
                    return True
    return False


def _numbered(variable: ir.Variable, number: Const, e: Expr) -> Expr:
    return number if isinstance(e, Read) and e.variable == variable else e
