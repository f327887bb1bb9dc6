"""Guards become loop bounds: `for i in range(a, b): if i < n: ...` runs to `min(b, n)`.

The guard that every kernel has costs a test an element and keeps loops from vectorising. Bounds
come from comparisons of the loop variable (plus or minus uniform values) with values that do not
change in the loop; other parts of an `and` stay as a condition inside. Comparisons of the
variables of outer loops move out to those loops.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from ruda.jit import ir
from ruda.jit.ir import (
    And,
    Assign,
    Body,
    Cast,
    Const,
    Expr,
    Extent,
    For,
    Function,
    If,
    Load,
    Op,
    Read,
    Special,
    Variable,
)  # fmt: skip
from ruda.jit.passes.indices import INDEX, index, is_const, op

_MIRROR = {"lt": "gt", "le": "ge", "gt": "lt", "ge": "le"}


def hoist_guards(function: Function) -> Function:
    """Move guards into the bounds of the loops around them, from the innermost loop outwards."""
    reads = _count_reads(function.body)
    return replace(function, body=_body(function.body, reads))


def _count_reads(body: Body) -> Counter[Variable]:
    return Counter(e.variable for e in ir.all_expressions(body) if isinstance(e, Read))


def _body(body: Body, reads: Counter[Variable]) -> Body:
    out: list[ir.Statement] = []
    for s in body:
        match s:
            case For():
                loop = replace(s, body=_body(s.body, reads))
                out.append(loop if _leaks(loop, reads) else tighten(loop))
            case If():
                then, otherwise = _body(s.then, reads), _body(s.otherwise, reads)
                out.append(replace(s, then=then, otherwise=otherwise))
            case ir.While():
                out.append(replace(s, body=_body(s.body, reads)))
            case _:
                out.append(s)
    return tuple(out)


def _leaks(loop: For, reads: Counter[Variable]) -> bool:
    """Whether something after the loop reads what the head of its body computes."""
    inside = _count_reads(loop.body)
    head, _ = _split(loop.body)
    return any(reads[s.variable] != inside[s.variable] for s in head)


def tighten(loop: For) -> For | If:
    """The loop with the guard around its whole body, if there is one, in its bounds."""
    head, rest = _split(loop.body)
    match rest:
        case (If(condition, then, ()) as guard,):
            pass
        case _:
            return loop
    changing = {v for s in ir.statements(loop.body) for v in ir.written(s)} | {loop.variable}
    values = _values(loop, head)
    lows: list[Expr] = []
    highs: list[Expr] = []
    outside: list[Expr] = []
    kept: list[Expr] = []
    steady = isinstance(loop.step, Const) and loop.step.value == 1
    for part in conjuncts(condition):
        resolved = _resolve(part, values)
        bound = _bound(resolved, loop, changing) if steady else None
        if bound is not None:
            (lows if bound[0] == "low" else highs).append(bound[1])
        elif not _changes(resolved, changing):
            outside.append(resolved)
        else:
            kept.append(part)
    if len(kept) == len(conjuncts(condition)):
        return loop
    body = (replace(guard, condition=_all(kept)),) if kept else then
    start, stop = loop.start, loop.stop
    for low in lows:
        start = op("max", start, low)
    for high in highs:
        stop = op("min", stop, high)
    result: For | If = replace(loop, start=start, stop=stop, body=(*head, *body))
    if isinstance(result, For) and not kept:
        result = tighten(result)
    return replace(guard, condition=_all(outside), then=(result,)) if outside else result


def _all(conditions: list[Expr]) -> Expr:
    test = conditions[0]
    for part in conditions[1:]:
        test = And(test, part, place=part.place)
    return test


def _split(body: Body) -> tuple[tuple[Assign, ...], Body]:
    """Leading assignments that do nothing but compute, and the rest."""
    head: list[Assign] = []
    for s in body:
        if not isinstance(s, Assign) or any(isinstance(e, Load) for e in ir.walk(s.value)):
            break
        head.append(s)
    return tuple(head), body[len(head) :]


def _values(loop: For, head: tuple[Assign, ...]) -> dict[Variable, Expr]:
    """What the head's variables are, in terms of what does not change in the body."""
    count = Counter(v for s in ir.statements(loop.body) for v in ir.written(s))
    values: dict[Variable, Expr] = {}
    for s in head:
        stable = all(
            e.variable in values or e.variable not in count
            for e in ir.walk(s.value)
            if isinstance(e, Read)
        )
        if count[s.variable] == 1 and stable:
            values[s.variable] = _resolve(s.value, values)
    return values


def conjuncts(condition: Expr) -> list[Expr]:
    """The parts of an `and`."""
    match condition:
        case And(left, right):
            return conjuncts(left) + conjuncts(right)
        case Op("and", (left, right)) if condition.dtype.kind == "bool":
            return conjuncts(left) + conjuncts(right)
    return [condition]


def _bound(part: Expr, loop: For, changing: set[Variable]) -> tuple[str, Expr] | None:
    """("low" or "high", the new bound) if a condition bounds the loop variable."""
    variable = loop.variable
    match part:
        case Op(name, (left, right)) if name in _MIRROR and left.dtype.kind == "int":
            pass
        case _:
            return None
    # A thread of a block has an index that every integer dtype from 16 bits on holds.
    short = isinstance(loop.stop, Const) and loop.stop.value <= 1024 and left.dtype.bits > 8
    left, right = (_as_index(e, variable, short) for e in (left, right))
    offset = _offset(left, variable, changing)
    if offset is None:
        name, left, right = _MIRROR[name], right, left
        offset = _offset(left, variable, changing)
    if offset is None or _changes(right, changing):
        return None
    limit = _difference(right, offset) if name in ("lt", "ge") else _difference(right, offset, 1)
    return "high" if name in ("lt", "le") else "low", limit


def _as_index(node: Expr, variable: Variable, short: bool) -> Expr:
    """The same number as an index, without casts that change nothing."""
    match node:
        case Cast(value, dtype) if value.dtype.name == "index" and dtype.bits == 64:
            return _as_index(value, variable, short)
        case Cast(Read(v) as value) if short and v == variable:
            return value
        case Op("add" | "sub", (x, y)) if node.dtype.bits == 64:
            return replace(
                node,
                operands=(_as_index(x, variable, short), _as_index(y, variable, short)),
                dtype=INDEX,
            )
    return node if node.dtype.name == "index" else Cast(node, INDEX, place=node.place)


def _difference(right: Expr, offset: Expr, more: int = 0) -> Expr:
    """right - offset + more. What the user made is clamped: its extremes would wrap round."""
    if is_const(offset, 0) and more == 0:
        return right
    if not all(isinstance(e, (Const, Special, Extent)) for e in ir.walk(right)):
        right = op("min", op("max", right, index(-FAR)), index(FAR))
    result = op("sub", right, offset)
    return op("add", result, index(more)) if more else result


FAR = 1 << 62  # no thread index and no extent is as large


def _resolve(node: Expr, values: dict[Variable, Expr]) -> Expr:
    """Variables of the loop's head replaced by what they are."""
    if not values:
        return node
    return ir.rewrite(node, lambda e: values.get(e.variable, e) if isinstance(e, Read) else e)


def _changes(node: Expr, changing: set[Variable]) -> bool:
    return any(
        isinstance(e, Load) or (isinstance(e, Read) and e.variable in changing)
        for e in ir.walk(node)
    )


def _offset(node: Expr, variable: Variable, changing: set[Variable]) -> Expr | None:
    """`e` if the node is `variable + e` with an `e` that does not change in the loop."""
    match node:
        case Read(v) if v == variable:
            return index(0)
        case Op("add", (x, y)):
            for a, b in ((x, y), (y, x)):
                inner = _offset(a, variable, changing)
                if inner is not None and not _changes(b, changing):
                    return op("add", inner, b)
        case Op("sub", (x, y)):
            inner = _offset(x, variable, changing)
            if inner is not None and not _changes(y, changing):
                return op("sub", inner, y)
    return None
