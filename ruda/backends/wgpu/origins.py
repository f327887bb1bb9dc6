"""Which variables may hold a float sum or product: drivers would join another one to it. And which
may hold a negated number or a constant zero: drivers would cancel them against others. (A zero that
is assigned or stored as it stands is hidden there.)

A driver keeps variables in registers, and re-associates chains of sums, or of products, through
them. What is read from memory that nothing writes is neither; so is what a function returns.
"""

from __future__ import annotations

from collections.abc import Callable

from ruda.jit import ir
from ruda.jit.ir import (
    Array,
    Assign,
    Atomic,
    Bitcast,
    Cast,
    Const,
    Expr,
    Function,
    Load,
    Op,
    Read,
    Select,
    Variable,
    WideLoad,
)

MADE = {"add": "sum", "sub": "sum", "abs": "sum", "mul": "product", "truediv": "product"}
HANDED_ON = {"uniform"}  # operations whose result is as their operand


def origins(function: Function, is_written: Callable[[Array], bool]) -> dict[Variable, str]:
    """For each variable that is assigned the words that fit: sum, product, negated, zero."""
    found: dict[Variable, str] = {}

    def of(node: Expr) -> str:
        match node:
            case Read(variable):
                return found.get(variable, "")
            case Op("neg", (operand,)):
                return joined(of(operand), "negated")
            case Op(name, operands):
                return of(operands[0]) if name in HANDED_ON else MADE.get(name, "")
            case Const(value):
                return "zero" if value == 0 else ""
            case Select(_, then, otherwise):
                return joined(of(then), of(otherwise))
            case Load(array):
                return "sum" if is_written(array) else ""
            case Cast(value):
                return of(value)
            case Bitcast():
                return "sum"
        return ""

    def note(variable: Variable, origin: str) -> None:
        found[variable] = joined(found.get(variable, ""), origin)

    before = None
    while found != before:
        before = dict(found)
        for s in ir.statements(function.body):
            match s:
                case Assign(variable, value):
                    note(variable, "" if isinstance(value, Const) else of(value))
                case WideLoad(array, _, results):
                    for variable in results:
                        note(variable, "sum" if is_written(array) else "")
                case Atomic(result=variable) if variable is not None:
                    note(variable, "sum")
                case _:
                    for variable in ir.written(s):
                        note(variable, "")
    return found


def joined(a: str, b: str) -> str:
    """What may be either.

    >>> joined("sum", "product"), joined("", "sum")
    ('product sum', 'sum')
    """
    return " ".join(sorted({*a.split(), *b.split()}))
