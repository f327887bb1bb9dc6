"""Replace `Return` by structured control flow.

After a statement that may have returned, the rest runs only if it did not: as the other branch of
an `if` where that is enough, else under a flag. In loops, a return sets the flag and breaks.
"""

from __future__ import annotations

from dataclasses import replace

from ruda import dtypes
from ruda.jit.ir import (
    Assign,
    Body,
    Break,
    Const,
    For,
    If,
    Op,
    Read,
    Return,
    Statement,
    Variable,
    While,
    statements,
)

_TRUE, _FALSE = Const(True, dtypes.bool_), Const(False, dtypes.bool_)


def eliminate_returns(body: Body, flag: Variable) -> Body:
    """The body without `Return`; `flag` is used only where the structure alone is not enough."""
    if not any(isinstance(s, Return) for s in statements(body)):
        return body
    out, uses_flag = _sequence(body, flag)
    return (Assign(flag, _FALSE), *out) if uses_flag else out


def returns(body: Body) -> bool:
    """Whether a body may return."""
    return any(isinstance(s, Return) for s in statements(body))


def always_returns(body: Body) -> bool:
    """Whether every way through a body returns."""
    for s in body:
        if isinstance(s, Return):
            return True
        if isinstance(s, If) and always_returns(s.then) and always_returns(s.otherwise):
            return True
    return False


def _sequence(body: Body, flag: Variable, in_loop: bool = False) -> tuple[Body, bool]:
    out: list[Statement] = []
    uses = False
    for k, s in enumerate(body):
        rest = body[k + 1 :]
        match s:
            case Return():
                if in_loop:
                    return (*out, Assign(flag, _TRUE, place=s.place), Break(place=s.place)), True
                return (*out, Assign(flag, _TRUE, place=s.place)), False
            case If(_, then, otherwise) if returns(then) or returns(otherwise):
                if in_loop:
                    a, _ = _sequence(then, flag, True)
                    b, _ = _sequence(otherwise, flag, True)
                    out.append(replace(s, then=a, otherwise=b))
                    uses = True
                    continue
                if always_returns(then) or always_returns(otherwise) or not rest:
                    first = always_returns(then)
                    a, u = _sequence(then if first else (*then, *rest), flag)
                    b, v = _sequence((*otherwise, *rest) if first else otherwise, flag)
                    if not first and not always_returns(otherwise):  # nothing follows
                        a, u = _sequence(then, flag)
                        b, v = _sequence(otherwise, flag)
                    return (*out, replace(s, then=a, otherwise=b)), uses or u or v
                a, _ = _sequence(then, flag)
                b, _ = _sequence(otherwise, flag)
                out.append(replace(s, then=a, otherwise=b))
                tail, _ = _sequence(rest, flag)
                return (*out, _unless(flag, tail, s)), True
            case For(body=inner) | While(body=inner) if returns(inner):
                changed, _ = _sequence(inner, flag, True)
                out.append(replace(s, body=changed))
                uses = True
                if in_loop:
                    out.append(If(Read(flag), (Break(place=s.place),), place=s.place))
                    continue
                tail, _ = _sequence(rest, flag)
                return (*out, *((_unless(flag, tail, s),) if tail else ())), True
            case _:
                out.append(s)
    return tuple(out), uses


def _unless(flag: Variable, body: Body, s: Statement) -> Statement:
    return If(Op("not", (Read(flag),), dtypes.bool_), body, place=s.place)
