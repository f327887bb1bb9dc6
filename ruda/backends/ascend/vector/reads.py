"""Which variables expressions read, and how an index depends on one."""

from __future__ import annotations

from ruda.jit import ir
from ruda.jit.ir import Body, Cast, Expr, Op, Read, Variable


def reads(e: Expr) -> set[Variable]:
    return {x.variable for x in ir.walk(e) if isinstance(x, Read)}


def count_reads(body: Body) -> dict[Variable, int]:
    found: dict[Variable, int] = {}
    for e in ir.all_expressions(body):
        if isinstance(e, Read):
            found[e.variable] = found.get(e.variable, 0) + 1
    return found


def is_shifted(e: Expr, v: Variable) -> bool:
    """Whether an index is a variable, plus or minus what does not change."""
    match e:
        case Read(found):
            return found == v
        case Cast(value):
            return is_shifted(value, v)
        case Op("add" | "sub", (x, y)):
            return is_shifted(x, v) and v not in reads(y)
        case Op("wrap", (x, _)):
            return is_shifted(x, v)
    return False
