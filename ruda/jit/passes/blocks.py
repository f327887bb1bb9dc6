"""Loops over blocks: the outermost level of a kernel that stays in blocks.

What is inside runs one block; `first..last` is the range of linear block indices (x fastest) that
a CPU thread was given.
"""

from __future__ import annotations

from dataclasses import replace

from ruda.jit import ir
from ruda.jit.ir import Assign, Body, Expr, For, Function, Read, Special, Variable, While
from ruda.jit.passes.flatten import resolve
from ruda.jit.passes.indices import index, op
from ruda.jit.passes.names import Names

COLUMNS = 8  # blocks side by side that are finished before the next ones


def loop_over_blocks(function: Function) -> Function:
    """`for block in range(first, last)` around the body, and the block's indices from it."""
    names = Names(function)
    linear = names.index("block")
    axes = {
        e.axis
        for e in ir.all_expressions(function.body)
        if isinstance(e, Special) and e.name == "blockIdx"
    }
    if not axes:
        body = function.body
    else:
        variables = {axis: names.index(f"block_{'xyz'[axis]}") for axis in range(3)}

        def change(node: Expr) -> Expr:
            match node:
                case Special("blockIdx", axis):
                    return Read(variables[axis], place=node.place)
            return node

        x, y = Special("gridDim", 0), Special("gridDim", 1)
        body = ir.rewrite_body(function.body, change)
        if {0, 1} <= axes and _comes_back(function.body):
            head = _in_columns(Read(linear), variables, names)
            i, j, k = (Read(variables[axis]) for axis in range(3))
            place = op("add", op("mul", op("add", op("mul", k, y), j), x), i)
        else:
            rest = op("floordiv", Read(linear), x)
            values = {
                0: op("mod", Read(linear), x),
                1: op("mod", rest, y),
                2: op("floordiv", rest, y),
            }
            head = tuple(Assign(variables[a], values[a]) for a in sorted(axes))
            place = Read(linear)
        body = (*head, *resolve(body, {"linearBlock": place}))
    body = resolve(body, {"linearBlock": Read(linear)})
    loop = For(linear, Special("first"), Special("last"), index(1), body, place=function.place)
    return replace(function, body=(loop,))


def loop_over_groups(function: Function, width: Variable) -> Function:
    """The range of blocks, as many at a time as the block is deep; fewer, `width`, at the end.

    The body has the index of the first of them; all are of one row of the grid.
    """
    assert function.block is not None
    names = Names(function)
    linear, first = names.index("block"), names.index("block_x")

    def change(node: Expr) -> Expr:
        match node:
            case Special("blockIdx", 0):
                return Read(first, place=node.place)
        return node

    x = Special("gridDim", 0)
    left = op("min", op("sub", Special("last"), Read(linear)), op("sub", x, Read(first)))
    body = (
        Assign(first, op("mod", Read(linear), x)),
        Assign(width, op("min", index(function.block[2]), left)),
        *ir.rewrite_body(function.body, change),
        Assign(linear, op("add", Read(linear), Read(width))),
    )
    more = op("lt", Read(linear), Special("last"))
    start = Assign(linear, Special("first"))
    return replace(function, body=(start, While(more, body, place=function.place)))


def _comes_back(body: Body) -> bool:
    """Whether blocks go through memory in steps, so that neighbours load the same."""
    return any(
        isinstance(s, (For, While)) and any(isinstance(i, For) for i in s.body) for s in body
    )


def _in_columns(linear: Expr, block: dict[int, Variable], names: Names) -> Body:
    """Indices of blocks in columns of a few, from top to bottom, column by column.

    A row of blocks is as long as the matrix: what its blocks have in common with the next row's
    would have left the cache by then.
    """
    x, y = Special("gridDim", 0), Special("gridDim", 1)
    area, strip = op("mul", x, y), op("mul", index(COLUMNS), y)
    inside, column, rest, width = (
        names.index(name) for name in ("in_layer", "column", "in_column", "width")
    )
    first = op("mul", Read(column), index(COLUMNS))
    return (
        Assign(block[2], op("floordiv", linear, area)),
        Assign(inside, op("mod", linear, area)),
        Assign(column, op("floordiv", Read(inside), strip)),
        Assign(rest, op("mod", Read(inside), strip)),
        Assign(width, op("min", index(COLUMNS), op("sub", x, first))),
        Assign(block[1], op("floordiv", Read(rest), Read(width))),
        Assign(block[0], op("add", first, op("mod", Read(rest), Read(width)))),
    )
