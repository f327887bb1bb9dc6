"""Conditions in one piece: what the frontend had to take apart becomes one `and` again.

`a < b < c and d` is translated in steps, because `b` is evaluated once and `d` only where the rest
holds. Where the steps only compute, they are put back together: guards can then be seen.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from ruda.jit import ir
from ruda.jit.ir import (
    And,
    Assign,
    Body,
    Expr,
    For,
    Function,
    If,
    Op,
    Or,
    Read,
    Statement,
    Variable,
)


def join_conditions(function: Function) -> Function:
    """Forward copies of variables, merge conditions made in steps, put them where they are used."""
    fixed = {p for p in function.parameters if isinstance(p, Variable)}
    fixed |= {s.variable for s in function.prologue}
    body = _forward(function.body, _assigned_once(function), {}, fixed)
    while True:
        reads = Counter(e.variable for e in ir.all_expressions(body) if isinstance(e, Read))
        joined = _join(body, reads)
        if joined is body:
            return replace(function, body=body)
        body = joined


# ---- copies --------------------------------------------------------------------------------------


def _assigned_once(function: Function) -> set[Variable]:
    count = Counter(v for s in ir.statements(function.body) for v in ir.written(s))
    return {v for v, n in count.items() if n == 1}


def _forward(
    body: Body, once: set[Variable], copies: dict[Variable, Read], known: set[Variable]
) -> Body:
    """Replace `t`, assigned once as `t = i`, by `i`, in what follows it in its body.

    `known` keep their value from here on: parameters, and what was assigned its one time already.
    """
    copies, known = dict(copies), set(known)
    out: list[Statement] = []

    def change(e: Expr) -> Expr:
        if isinstance(e, Read) and e.variable in copies:
            return replace(copies[e.variable], place=e.place)
        return e

    for s in body:
        s = ir.map_children(s, lambda e: ir.rewrite(e, change))
        if isinstance(s, For):
            known |= {s.variable} & once
        inner = {
            n: _forward(getattr(s, n), once, copies, known) for n in ir._BODIES.get(type(s), ())
        }
        if any(inner[n] is not getattr(s, n) for n in inner):
            s = replace(s, **inner)  # type: ignore[arg-type]
        out.append(s)
        match s:
            case Assign(variable, Read(source) as value) if (
                variable in once and source in known and source.dtype == variable.dtype
            ):
                copies[variable] = value
        known |= set(ir.written(s)) & once
    same = len(out) == len(body) and all(a is b for a, b in zip(out, body, strict=True))
    return body if same else tuple(out)


# ---- steps ---------------------------------------------------------------------------------------


def _join(body: Body, reads: Counter[Variable]) -> Body:
    out: list[Statement] = []
    for s in body:
        inner = {n: _join(getattr(s, n), reads) for n in ir._BODIES.get(type(s), ())}
        if any(inner[n] is not getattr(s, n) for n in inner):
            s = replace(s, **inner)  # type: ignore[arg-type]
        match s:
            case Assign(variable, Read()) if not reads[variable]:
                continue  # a copy that nobody reads any more
        before = out[-1] if out else None
        merged = _merge(before, s, reads) if isinstance(before, Assign) else None
        if merged is not None:
            out[-1] = merged
        else:
            out.append(s)
    same = len(out) == len(body) and all(a is b for a, b in zip(out, body, strict=True))
    return body if same else tuple(out)


def _merge(before: Assign, s: Statement, reads: Counter[Variable]) -> Statement | None:
    """`e = a` and `if e: e = b` as `e = a and b`; `e = a` and `if e: ...` as `if a: ...`."""
    e = before.variable
    if e.dtype.kind != "bool":
        return None
    match s:
        case If(Read(v), (Assign(w, more),), ()) if v == w == e and not _reads(more, e):
            return replace(before, value=And(before.value, more, place=s.place))
        case If(Op("not", (Read(v),)), (Assign(w, more),), ()) if v == w == e and not _reads(
            more, e
        ):
            return replace(before, value=Or(before.value, more, place=s.place))
        case If(Read(v)) if v == e and reads[e] == 1:
            return replace(s, condition=before.value)
    return None


def _reads(node: Expr, variable: Variable) -> bool:
    return any(isinstance(x, Read) and x.variable == variable for x in ir.walk(node))
