"""A guard that a kernel asks again and again is asked once.

Barriers stand outside of guards that differ between threads, so that kernels say `if row < rows:`
around each loop over a row. Where the answer is the same for the block, all of it goes under one
guard, and what stood between the guarded parts once more on the other side: the loops over a row
are then beside each other.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ruda.jit import ir
from ruda.jit.ir import Body, Expr, For, Function, If, Load, Read, Statement, While
from ruda.jit.passes.uniformity import analyse


def ask_once(function: Function) -> Function:
    """Join the parts of a kernel that stand under one guard of the block."""
    state = analyse(function)

    def is_steady(e: Expr) -> bool:
        return state.is_uniform(e) and not any(isinstance(x, Load) for x in ir.walk(e))

    return replace(function, body=_body(function.body, is_steady))


def _body(body: Body, is_steady: Callable[[Expr], bool]) -> Body:
    out: list[Statement] = []
    for s in body:
        match s:
            case For() | While():
                s = replace(s, body=_body(s.body, is_steady))
        out.append(s)
    for first, s in enumerate(out):
        if not _is_guard(s) or not is_steady(s.condition):  # type: ignore[union-attr]
            continue
        found = _join(tuple(out[first:]), s.condition)  # type: ignore[union-attr]
        if found is not None:
            return (*out[:first], *found)
    return tuple(out)


def _is_guard(s: Statement) -> bool:
    return (
        isinstance(s, If)
        and not s.otherwise
        and any(isinstance(i, For) for i in ir.statements(s.then))
    )


def _join(body: Body, condition: Expr) -> Body | None:
    """A body that begins with a guard, if the guard comes again."""
    steady = {e.variable for e in ir.walk(condition) if isinstance(e, Read)}
    last = 0
    for k, s in enumerate(body):
        if {v for i in ir.statements((s,)) for v in ir.written(i)} & steady:
            break
        if _is_guard(s) and s.condition == condition:  # type: ignore[union-attr]
            last = k
    if not last:
        return None
    yes: list[Statement] = []
    no: list[Statement] = []
    for s in body[: last + 1]:
        if isinstance(s, If) and s.condition == condition:
            yes += s.then
            no += s.otherwise
        else:
            yes.append(s)
            no.append(s)
    # Statements of their own: where a variable is declared goes by bodies.
    other = ir.rewrite_body(tuple(no), statement=lambda s: replace(s))
    guard = If(condition, tuple(yes), other, place=body[0].place)
    return (guard, *body[last + 1 :])
