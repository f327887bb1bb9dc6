"""Loops over blocks: the outermost level of a kernel that stays in blocks.

What is inside runs one block; `first..last` is the range of linear block indices (x fastest) that
a CPU thread was given.
"""

from __future__ import annotations

from dataclasses import replace

from ruda.jit import ir
from ruda.jit.ir import Assign, Body, Expr, For, Function, Read, Special
from ruda.jit.passes.flatten import resolve
from ruda.jit.passes.indices import index, op
from ruda.jit.passes.names import Names


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
        rest = op("floordiv", Read(linear), x)
        values = {
            0: op("mod", Read(linear), x) if max(axes) else Read(linear),
            1: op("mod", rest, y),
            2: op("floordiv", rest, y),
        }
        if max(axes) == 0:  # a 1-d kernel may still be launched on a 2-d grid
            values[0] = op("mod", Read(linear), x)
        head: Body = tuple(Assign(variables[a], values[a]) for a in sorted(axes))
        body = (*head, *ir.rewrite_body(function.body, change))
    body = resolve(body, {"linearBlock": Read(linear)})
    loop = For(linear, Special("first"), Special("last"), index(1), body, place=function.place)
    return replace(function, body=(loop,))
