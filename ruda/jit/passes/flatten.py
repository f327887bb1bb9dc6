"""A kernel that knows only its global index becomes plain loops over the whole grid.

`grid()` alone, without blocks, shared memory or barriers, means that blocks do not matter: the
loops run over `first..last` of the outermost axis in use (what CPU threads share out) and the
whole of the inner ones. Guards then move into the loop bounds (`guards`), and what is left is the
loop that one would have written by hand.
"""

from __future__ import annotations

from dataclasses import replace

from ruda.jit import ir
from ruda.jit.ir import Body, Expr, For, Function, Read, Special, Variable
from ruda.jit.passes.indices import index
from ruda.jit.passes.names import Names

_BLOCKS = {"threadIdx", "blockIdx", "blockDim", "laneid", "gridDim", "sharedBytes"}


def is_flat(function: Function) -> bool:
    """Whether the result cannot depend on how the grid is cut into blocks."""
    if ir.has_barrier(function.body) or any(a.space == "shared" for a in function.arrays):
        return False
    if any(a.dynamic for a in function.arrays):
        return False
    return not any(
        isinstance(e, Special) and e.name in _BLOCKS for e in ir.all_expressions(function.body)
    )


def flat_axis(function: Function) -> int:
    """The outermost axis that the kernel's global index uses: its range is shared out."""
    axes = {
        e.axis
        for e in ir.all_expressions(function.body)
        if isinstance(e, Special) and e.name == "globalIdx"
    }
    return max(axes, default=0)


def flatten(function: Function) -> Function:
    """Loops over the grid around the body, x innermost."""
    names, shared_axis = Names(function), flat_axis(function)
    variables = _variables(function, names)
    body = replace_coordinates(function.body, variables)
    for axis in range(3):
        if axis == shared_axis:
            start: Expr = Special("first")
            stop: Expr = Special("last")
        else:
            start, stop = index(0), Special("globalDim", axis)
        body = (For(variables[axis], start, stop, index(1), body, place=function.place),)
    return replace(function, body=body)


def _variables(function: Function, names: Names) -> dict[int, Variable]:
    return {axis: names.index(f"global_{'xyz'[axis]}") for axis in range(3)}


def replace_coordinates(body: Body, variables: dict[int, Variable]) -> Body:
    def change(node: Expr) -> Expr:
        match node:
            case Special("globalIdx", axis):
                return Read(variables[axis], place=node.place)
        return node

    return ir.rewrite_body(body, change)
