"""Rows of threads that have nothing to do with each other, one after the other.

A block of 32 x 8 threads often works on 8 rows: each has its own part of the shared arrays, and
meets at barriers only because all do. Then the block is 8 blocks of 32 threads, and a loop over
them around the whole kernel: what depends on the row alone is uniform in it.

That is so if every access of a shared array has `threadIdx.y` as one of its indices, always the
same one; if no thread reads global memory that the kernel writes; and if the stores to an array
are one statement, so that barriers put none before another.

A block of rows that asks for nothing but a thread's place in all of it is one long row instead.
"""

from __future__ import annotations

from dataclasses import replace

from ruda.jit import ir
from ruda.jit.ir import (
    Array,
    Asm,
    Assign,
    Atomic,
    Barrier,
    Body,
    Cast,
    Const,
    Cooperative,
    Expr,
    Extent,
    For,
    Function,
    Load,
    Op,
    Read,
    Special,
    Statement,
    Store,
    Stride,
    Variable,
    Warp,
    While,
)  # fmt: skip
from ruda.jit.passes.indices import index
from ruda.jit.passes.names import Names

ROW = "thread_y?"  # the variable of the loop; no user's name has a question mark
LINE = "line?"
ALONG, ACROSS = Special("threadIdx", 0), Special("threadIdx", 1)


def one_row_at_a_time(function: Function) -> Function:
    """The kernel for a row of threads, in a loop over them; as it is where they are not apart."""
    block = function.block
    if block is None or block[0] < 2 or block[1] < 2 or block[2] > 1 or not _apart(function):
        return function
    row = Variable(ROW, Names(function).index("row").dtype)

    def change(e: Expr) -> Expr:
        return Read(row) if e == ACROSS else e

    body = (Barrier(place=function.place), *ir.rewrite_body(function.body, change))
    loop = For(row, index(0), index(block[1]), index(1), body, place=function.place)
    return replace(function, body=(loop,), block=(block[0], 1, 1))


def in_line(function: Function) -> Function:
    """A block of rows that only asks for `threadIdx.y * blockDim.x + threadIdx.x`, as one row."""
    block = function.block
    if block is None or block[1] < 2 or block[2] > 1:
        return function
    values = _definitions(function.body)
    whole = Read(Variable(LINE, index(0).dtype))

    def change(e: Expr) -> Expr:
        match e:
            case Op("add", (a, b)):
                for row, column in ((a, b), (b, a)):
                    match _known(row, values):
                        case Op("mul", (x, Const(n))) | Op("mul", (Const(n), x)) if (
                            n == block[0] and _known(x, values) == ACROSS
                            and _known(column, values) == ALONG
                        ):  # fmt: skip
                            return whole
        return e

    body = ir.rewrite_body(function.body, change)
    read = {e.variable for e in ir.all_expressions(body) if isinstance(e, Read)}

    def needed(s: Statement) -> Statement | None:
        match s:
            case Assign(variable, Special("threadIdx")) if variable not in read:
                return None
        return s

    body = ir.rewrite_body(body, statement=needed)
    if any(isinstance(e, Special) and e.name == "threadIdx" for e in ir.all_expressions(body)):
        return function
    body = ir.rewrite_body(body, lambda e: ALONG if e == whole else e)
    return replace(function, body=body, block=(block[0] * block[1], 1, 1))


def _known(e: Expr, values: dict[Variable, Expr]) -> Expr:
    """An expression behind the names of variables that are assigned once."""
    while True:
        match e:
            case Read(v) if v in values:
                e = values[v]
            case Cast(inner, dtype) if dtype.name in ("index", "int64"):
                e = inner
            case _:
                return e


def _apart(function: Function) -> bool:
    body = function.body
    values = _definitions(body)
    axes: dict[Array, set[int]] = {}
    for x in [*ir.statements(body), *ir.all_expressions(body)]:
        match x:
            case Warp() | Cooperative() | Asm() | ir.Return():
                return False
            case Barrier(scope=scope, vote=vote) if scope != "block" or vote is not None:
                return False
            case Special(name) if name in ("laneid", "linearThread"):
                return False
            case Extent(array) | Stride(array) if array.space == "shared":
                return False
            case Load() | Store() | Atomic() if x.array.space == "shared":
                mine = {k for k, i in enumerate(x.indices) if _is_row(i, values)}
                axes[x.array] = axes.get(x.array, mine) & mine
    return all(axes.values()) and _is_written_once(body)


def _definitions(body: Body) -> dict[Variable, Expr]:
    count: dict[Variable, int] = {}
    found = {}
    for s in ir.statements(body):
        for v in ir.written(s):
            count[v] = count.get(v, 0) + 1
        if isinstance(s, Assign):
            found[s.variable] = s.value
    return {v: e for v, e in found.items() if count[v] == 1}


def _is_row(e: Expr, values: dict[Variable, Expr]) -> bool:
    return _known(e, values) == ACROSS


def _is_written_once(body: Body) -> bool:
    """Whether no order of barriers shows in global memory."""
    stores = [s for s in ir.statements(body) if isinstance(s, (Store, Atomic))
              and s.array.space == "global"]  # fmt: skip
    names = [s.array for s in stores]
    again = {
        s.array for loop in ir.statements(body)
        if isinstance(loop, (For, While)) and ir.has_barrier(loop.body)
        for s in ir.statements(loop.body) if isinstance(s, (Store, Atomic))
    }  # fmt: skip
    loaded = {e.array for e in ir.all_expressions(body) if isinstance(e, Load)}
    written = set(names)
    return len(names) == len(written) and not written & (loaded | again)
