"""Loops over the threads of a block, in the order that a core likes.

Threads of a region are independent, so that their loops may be exchanged with a uniform loop inside
(contiguous elements then follow one another), and several rows of threads may go through an inner
loop together: what they load in common is loaded once, and their sums stay in registers.
"""

from __future__ import annotations

from dataclasses import replace

from ruda.errors import Place
from ruda.jit import ir
from ruda.jit.ir import (
    Assign,
    Atomic,
    Body,
    Break,
    Const,
    Continue,
    Declare,
    Expr,
    For,
    Load,
    Op,
    Read,
    Statement,
    Store,
    Variable,
    While,
)  # fmt: skip
from ruda.jit.passes.exposure import exposed
from ruda.jit.passes.guards import tighten
from ruda.jit.passes.indices import index, op

ROWS = 4  # rows of threads that share an inner loop: with two vectors each, 8 registers of sums
STRIP = 4  # rounds of that loop at a time: what LLVM still unrolls as a whole


def thread_loops(
    axes: list[tuple[Variable, Expr]], body: Body, place: Place, jams: bool = True
) -> Statement:
    """Loops around a region's body, the first axis innermost."""
    moved = _uniform_loop(body, [v for v, _ in axes])
    if moved is not None:
        head, loop = moved
        return replace(loop, body=(_nest(axes, (*head, *loop.body), place, jams),))
    return _nest(axes, body, place, jams)


def _nest(axes: list[tuple[Variable, Expr]], body: Body, place: Place, jams: bool) -> Statement:
    for variable, count in axes:
        loop = tighten(For(variable, index(0), count, index(1), body, place=place))
        body = (jam(loop) if jams and isinstance(loop, For) else loop,)
    return body[0]


# ---- exchange ------------------------------------------------------------------------------------


def _uniform_loop(body: Body, threads: list[Variable]) -> tuple[Body, For] | None:
    """(what comes before, the loop), if a loop makes up the body and may go around the threads."""
    head = body[:-1]
    if not body or not isinstance(body[-1], For):
        return None
    loop = body[-1]
    if not all(isinstance(s, Assign) and _pure(s.value) for s in head):
        return None
    varying = {*threads, *(s.variable for s in head if isinstance(s, Assign))}
    bounds = (loop.start, loop.stop, loop.step)
    if any(not _pure(b) or _reads(b) & varying for b in bounds):
        return None
    inside = list(ir.statements(loop.body))
    if any(isinstance(s, (Break, Continue, Declare)) for s in inside):
        return None
    if any(a.space == "local" for a in _touched(loop.body)):
        return None
    written = {v for s in inside for v in ir.written(s)}
    if exposed(loop.body) & written:
        return None  # carried from round to round
    if not _better_along(loop, threads[0], dict(_definitions(head))):
        return None
    return head, loop


def _definitions(head: Body) -> list[tuple[Variable, Expr]]:
    return [(s.variable, s.value) for s in head if isinstance(s, Assign)]


def _pure(node: Expr) -> bool:
    return not any(isinstance(e, Load) for e in ir.walk(node))


def _reads(node: Expr) -> set[Variable]:
    return {e.variable for e in ir.walk(node) if isinstance(e, Read)}


def _touched(body: Body) -> set[ir.Array]:
    found = {e.array for e in ir.all_expressions(body) if isinstance(e, Load)}
    return found | {s.array for s in ir.statements(body) if isinstance(s, (Store, Atomic, Declare))}


def _better_along(loop: For, thread: Variable, values: dict[Variable, Expr]) -> bool:
    """Whether more accesses are contiguous along the threads than along the loop."""
    score = 0
    values = values | {
        s.variable: s.value for s in ir.statements(loop.body) if isinstance(s, Assign)
    }
    places = [e.indices for e in ir.all_expressions(loop.body) if isinstance(e, Load)]
    places += [s.indices for s in ir.statements(loop.body) if isinstance(s, (Store, Atomic))]
    for indices in places:
        if indices:
            score += coefficient(indices[-1], thread, values) == 1
            score -= coefficient(indices[-1], loop.variable, values) == 1
    return score > 0


Values = dict[Variable, Expr]


def coefficient(node: Expr, variable: Variable, values: Values, depth: int = 0) -> int:
    """By how much an index grows with a variable; a large number where that is not constant."""
    far = 1 << 40
    if depth > 20:
        return far
    match node:
        case Read(v) if v == variable:
            return 1
        case Read(v) if v in values:
            return coefficient(values[v], variable, values, depth + 1)
        case Op("add", (x, y)):
            return coefficient(x, variable, values, depth + 1) + coefficient(
                y, variable, values, depth + 1
            )
        case Op("sub", (x, y)):
            return coefficient(x, variable, values, depth + 1) - coefficient(
                y, variable, values, depth + 1
            )
        case Op("mul", (x, Const(c))) | Op("mul", (Const(c), x)):
            return coefficient(x, variable, values, depth + 1) * int(c)
        case Read() | Const():
            return 0
    depends = any(coefficient(e, variable, values, depth + 1) for e in ir.expressions(node))
    return far if depends else 0


# ---- rows together -------------------------------------------------------------------------------


def jam(loop: For) -> For:
    """Let `ROWS` rows of threads go through the constant inner loops of their body together."""
    match loop:
        case For(variable, Const(0), Const(count), Const(1), (For(body=inner_body) as inner,)) if (
            count % ROWS == 0 and count >= ROWS
        ):
            pass
        case _:
            return loop
    if variable in _reads_of_bounds(inner) or not any(map(_gains, inner_body)):
        return loop
    if any(isinstance(s, (While, Break, Continue, Atomic)) for s in ir.statements(inner_body)):
        return loop
    copies = [_copy(inner_body, variable, r) for r in range(ROWS)]
    rows = replace(inner, body=_together(copies))
    strip = _strip(rows)
    return replace(loop, step=index(ROWS), body=(strip or rows,))


def _strip(rows: For) -> For | None:
    """A long inner loop cut into strips outside the loop over x, so that LLVM unrolls each strip.

    What a thread carries from strip to strip is in its slots already: the body loads it at its
    start and stores it at its end.
    """
    loops = [s for s in rows.body if isinstance(s, For)]
    if len(loops) != 1:
        return None
    (loop,) = loops
    match loop:
        case For(start=Const(0), stop=Const(stop), step=Const(1)) if stop > STRIP:
            if stop % STRIP:
                return None
        case _:
            return None
    at = rows.body.index(loop)
    head, tail = rows.body[:at], rows.body[at + 1 :]
    carried = exposed(loop.body) & {v for s in ir.statements(loop.body) for v in ir.written(s)}
    loaded = {s.variable for s in head if isinstance(s, Assign) and isinstance(s.value, Load)}
    stored = {s.value.variable for s in tail if isinstance(s, Store) and isinstance(s.value, Read)}
    if not carried <= loaded or not carried <= stored or len(stored) != len(tail):
        return None
    if not all(isinstance(s, Assign) for s in head):
        return None
    first = Variable(f"{loop.variable.name}_first", loop.variable.dtype)
    strip = replace(loop, start=Read(first), stop=op("add", Read(first), index(STRIP)))
    body = replace(rows, body=(*head, strip, *tail))
    return For(first, index(0), index(stop), index(STRIP), (body,), place=loop.place)


def _reads_of_bounds(loop: For) -> set[Variable]:
    return _reads(loop.start) | _reads(loop.stop) | _reads(loop.step)


def _gains(s: Statement) -> bool:
    """A constant loop over loads: the inner product of a tiled matrix product, a small filter."""
    match s:
        case For(start=Const(a), stop=Const(b), step=Const(1), body=body):
            loads = sum(isinstance(e, Load) for e in ir.all_expressions(body))
            return b - a >= 4 and loads > 0 and not any(isinstance(i, For) for i in body)
    return False


def _copy(body: Body, row: Variable, number: int) -> Body:
    """The body for the thread `number` rows further."""
    if number == 0:
        return body
    renamed = {
        v: Variable(f"{v.name}_row{number}", v.dtype)
        for s in ir.statements(body)
        for v in ir.written(s)
    }

    def expression(e: Expr) -> Expr:
        match e:
            case Read(v) if v == row:
                return op("add", e, index(number))
            case Read(v) if v in renamed:
                return replace(e, variable=renamed[v])
        return e

    def statement(s: Statement) -> Statement:
        match s:
            case Assign(v) | For(v):
                return replace(s, variable=renamed[v])
        return s

    return ir.rewrite_body(body, expression, statement)


def _together(copies: list[Body]) -> Body:
    """The bodies of several rows as one, loops with equal bounds shared."""
    out: list[Statement] = []
    for statements in zip(*copies, strict=True):
        first = statements[0]
        if isinstance(first, For) and not any(
            _reads(b) & {v for s in copies[0] for v in ir.written(s)}
            for b in (first.start, first.stop, first.step)
        ):
            bodies = [_rename_loop(s, first.variable) for s in statements if isinstance(s, For)]
            same = all(
                isinstance(s, For)
                and (s.start, s.stop, s.step) == (first.start, first.stop, first.step)
                for s in statements
            )
            if same:
                out.append(replace(first, body=_together(bodies)))
                continue
        out += statements
    return tuple(out)


def _rename_loop(loop: For, variable: Variable) -> Body:
    def change(e: Expr) -> Expr:
        return (
            replace(e, variable=variable)
            if isinstance(e, Read) and e.variable == loop.variable
            else e
        )

    return loop.body if loop.variable == variable else ir.rewrite_body(loop.body, change)
