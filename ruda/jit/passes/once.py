"""What all threads of a block load from one place, the block loads once.

After a reduction every thread looks at its result: `total = kept[0]`. Such a value depends on
memory, so that `uniformity` takes it to differ between threads; it does not, where nothing has
been stored to that array since the last barrier (another thread's store would be a race). It is
marked as `uniform`, which makes it, and what is computed of it, a scalar of the block.

For that a variable must have one meaning: `top = kept[0]` after `top = max(top, x[c])` is another
variable from there on.
"""

from __future__ import annotations

from dataclasses import replace

from ruda.jit import ir
from ruda.jit.ir import (
    Array,
    Assign,
    Atomic,
    Barrier,
    Body,
    Break,
    Continue,
    Expr,
    For,
    Function,
    If,
    Load,
    Op,
    Read,
    Return,
    Statement,
    Store,
    Variable,
    While,
)  # fmt: skip
from ruda.jit.passes.exposure import exposed
from ruda.jit.passes.names import Names
from ruda.jit.passes.uniformity import DATA, THREAD, Uniformity, analyse

ROUNDS = 4  # of values that rest on one another


def compute_once(function: Function) -> Function:
    """Mark what is the same for the whole block."""
    if not ir.has_barrier(function.body):
        return function
    function = replace(function, body=_apart(function.body, function, Names(function)))
    for _ in range(ROUNDS):
        marker = _Marker(analyse(function))
        body, _ = marker.body(function.body, frozenset())
        if not marker.found:
            break
        function = replace(function, body=body)
    return function


# ---- one meaning for a variable ------------------------------------------------------------------


def _apart(body: Body, function: Function, names: Names) -> Body:
    """Variables that a body assigns anew, whatever they were, have another name from there on."""
    inner = []
    for s in body:
        match s:
            case If(then=then, otherwise=otherwise):
                s = replace(
                    s,
                    then=_apart(then, function, names),
                    otherwise=_apart(otherwise, function, names),
                )
        inner.append(s)
    body = tuple(inner)
    everywhere, carried = _uses(function.body), exposed(body)
    here = _uses(body)
    plain = (Assign, For)
    others = {v for s in ir.statements(body) if not isinstance(s, plain) for v in ir.written(s)}
    seen: set[Variable] = set()
    at = 0
    while at < len(body):
        s = body[at]
        match s:
            case Assign(v, value) if (
                v in seen and v not in carried | others and here.get(v) == everywhere.get(v)
                and not any(isinstance(e, Read) and e.variable == v for e in ir.walk(value))
            ):  # fmt: skip
                other = Variable(names(v.name), v.dtype)
                body = (*body[:at], *_renamed(body[at:], v, other))
        seen |= {v for i in ir.statements((body[at],)) for v in ir.written(i)}
        at += 1
    return body


def _uses(body: Body) -> dict[Variable, int]:
    found: dict[Variable, int] = {}
    for e in ir.all_expressions(body):
        if isinstance(e, Read):
            found[e.variable] = found.get(e.variable, 0) + 1
    for s in ir.statements(body):
        for v in ir.written(s):
            found[v] = found.get(v, 0) + 1
    return found


def _renamed(body: Body, old: Variable, new: Variable) -> Body:
    def expression(e: Expr) -> Expr:
        return replace(e, variable=new) if isinstance(e, Read) and e.variable == old else e

    def statement(s: Statement) -> Statement:
        match s:
            case Assign(v) | For(v) if v == old:
                return replace(s, variable=new)
        return s

    return ir.rewrite_body(body, expression, statement)


# ---- values of the block -------------------------------------------------------------------------

Stored = frozenset[Array]  # since the last barrier, perhaps


class _Marker:
    """Goes through a body with the arrays that somebody may have stored to."""

    def __init__(self, state: Uniformity) -> None:
        self.state = state
        self.found = False

    def body(self, body: Body, stored: Stored) -> tuple[Body, Stored]:
        out = []
        for s in body:
            s, stored = self.statement(s, stored)
            out.append(s)
        return tuple(out), stored

    def statement(self, s: Statement, stored: Stored) -> tuple[Statement, Stored]:
        everything = stored | _stores((s,))
        match s:
            case Barrier(scope="block" | "grid"):
                return s, frozenset()
            case Assign(value=value) if self.is_loaded_by_all(value, stored):
                self.found = True
                promised = Op("uniform", (value,), value.dtype, place=value.place)
                return replace(s, value=promised), stored
            case If(condition, then, otherwise) if self.state.is_uniform(condition):
                then, a = self.body(then, stored)
                otherwise, b = self.body(otherwise, stored)
                return replace(s, then=then, otherwise=otherwise), a | b
            case For() | While() if _is_entered_by_all(s, self.state):
                if any(isinstance(i, (Break, Continue, Return)) for i in ir.statements(s.body)):
                    return s, everything
                _, after = self.body(s.body, everything)
                inner, after = self.body(s.body, stored | after)
                return replace(s, body=inner), stored | after
        return s, everything

    def is_loaded_by_all(self, value: Expr, stored: Stored) -> bool:
        """Whether a value is uniform but for loads from one place of memory at rest."""
        if self.state.is_uniform(value):
            return False

        def known(e: Expr) -> Expr:
            match e:
                case Load(array, indices) if (
                    array.space in ("shared", "global") and array not in stored
                    and (array.space == "shared" or array not in self.state.written)
                    and all(map(self.state.is_uniform, indices))
                ):  # fmt: skip
                    return Op("uniform", (e,), e.dtype)
            return e

        return not self.state.of(ir.rewrite(value, known)) & (THREAD | DATA)


def _stores(body: Body) -> Stored:
    return frozenset(s.array for s in ir.statements(body) if isinstance(s, (Store, Atomic)))


def _is_entered_by_all(s: For | While, state: Uniformity) -> bool:
    match s:
        case For(start=start, stop=stop, step=step):
            return all(map(state.is_uniform, (start, stop, step)))
        case While(condition):
            return state.is_uniform(condition)
