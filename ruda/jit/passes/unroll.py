"""Copy the bodies of short loops, for compilers that keep every loop that they are given.

CUDA's compiler unrolls loops of known bounds by itself, and then holds small local arrays in
registers and has several loads under way. What makes Vulkan's of WGSL does neither: an array that
a loop indexes stays in memory, at a fiftieth of the speed.
"""

from __future__ import annotations

import functools
from dataclasses import replace

from ruda.jit import ir
from ruda.jit.ir import Break, Const, Continue, Expr, For, Function, Read, Return, Statement, While

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
