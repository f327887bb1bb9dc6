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
    Asm,
    Assign,
    Atomic,
    Bitcast,
    Body,
    Cast,
    Const,
    Expr,
    For,
    Function,
    If,
    Load,
    Op,
    Read,
    Select,
    Statement,
    Store,
    Variable,
    While,
    WideLoad,
)

MADE = {"add": "sum", "sub": "sum", "abs": "sum", "mul": "product", "truediv": "product"}
HANDED_ON = {"uniform"}  # operations whose result is as their operand


def origins(
    function: Function, is_written: Callable[[Array], bool], foreign: set[int]
) -> dict[Variable, str]:
    """For each variable that is assigned the words that fit: sum, product, negated, zero.

    `foreign` are the loads of `behind_barriers`.
    """
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
            case Load(array, indices):
                return "sum" if is_written(array) and id(indices) not in foreign else ""
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


def behind_barriers(function: Function) -> set[int]:
    """Loads of shared arrays, by the identity of their indices, between which and the barrier
    before the thread itself stores nothing there."""
    foreign: dict[int, bool] = {}

    def note(s: Statement, stored: set[str]) -> None:
        for x in (x for e in ir.expressions(s) for x in ir.walk(e)):
            if isinstance(x, Load) and x.array.space == "shared":
                key, good = id(x.indices), not x.array.dynamic and x.array.name not in stored
                foreign[key] = foreign.get(key, True) and good

    def after(body: Body, stored: set[str]) -> set[str]:
        """What of the arrays the thread may have stored to since the last barrier."""
        for s in body:
            if isinstance(s, For | While):
                inside = set(stored)
                if any(isinstance(x, ir.Break | ir.Continue) for x in ir.statements(s.body)):
                    inside |= _stored(s.body)
                while not (end := after(s.body, inside)) <= inside:
                    inside |= end
                stored = inside
            note(s, stored)
            match s:
                case If(_, then, otherwise):
                    stored = after(then, stored) | after(otherwise, stored)
                case Asm("wgpu", "barrier"):
                    stored = set()
                case Store() | Atomic():
                    stored = stored | _stored((s,))
        return stored

    after(function.body, set())
    return {key for key, good in foreign.items() if good}


def _stored(body: Body) -> set[str]:
    return {s.array.name for s in ir.statements(body) if isinstance(s, Store | Atomic)}


def joined(a: str, b: str) -> str:
    """What may be either.

    >>> joined("sum", "product"), joined("", "sum")
    ('product sum', 'sum')
    """
    return " ".join(sorted({*a.split(), *b.split()}))
