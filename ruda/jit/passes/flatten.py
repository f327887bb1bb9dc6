"""A kernel that knows only its global index becomes plain loops over the whole grid.

`grid()` alone, without blocks, shared memory or barriers, means that blocks do not matter: the
loops run over `first..last` of the outermost axis in use (what CPU threads share out) and the
whole of the inner ones. Guards then move into the loop bounds (`guards`), and what is left is the
loop that one would have written by hand.
"""

from __future__ import annotations

from dataclasses import replace

from ruda.jit import ir
from ruda.jit.ir import Assign, Body, Expr, For, Function, Read, Special, Variable
from ruda.jit.passes.exposure import exposed
from ruda.jit.passes.guards import tighten
from ruda.jit.passes.indices import index, op
from ruda.jit.passes.names import Names

_PLACE_NAMES = {"linearBlock": "in_block", "linearThread": "in_thread"}
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
    shared_axis = flat_axis(function)
    where = {
        "linearBlock": _linear("linearBlock", "gridDim"),
        "linearThread": _linear("linearThread", "blockDim"),
    }
    body = name_place(function.body, where, Names(function))
    function = replace(function, body=body)
    variables, body = name_coordinates(function, "globalIdx", "global")
    stride = _grid_stride(body, variables[0]) if shared_axis == 0 else None
    for axis in range(3):
        if axis == 0 and stride is not None:
            body = (stride,)
            continue
        if axis == shared_axis:
            start: Expr = Special("first")
            stop: Expr = Special("last")
        else:
            start, stop = index(0), Special("globalDim", axis)
        body = (tighten(For(variables[axis], start, stop, index(1), body, place=function.place)),)
    return replace(function, body=body)


def _grid_stride(body: Body, thread: Variable) -> For | None:
    """`for i in range(thread, n, threads of the grid)` as contiguous pieces, one a round.

    The threads lo..hi take lo..hi in the first round, lo + G..hi + G in the second, and so on.
    """
    match body:
        case (For(i, Read(start), stop, Special("globalDim", 0) as count, inner) as loop,) if (
            start == thread
        ):
            pass
        case _:
            return None
    if not _steady(stop) or any(
        isinstance(e, Read) and e.variable == thread for e in ir.all_expressions(inner)
    ):
        return None
    if exposed(inner) & {v for s in ir.statements(inner) for v in ir.written(s)}:
        return None  # a thread carries something from round to round
    if any(isinstance(s, (ir.Break, ir.Declare)) for s in ir.statements(inner)):
        return None
    base = Variable(f"{i.name}_base", i.dtype)
    first, last = (op("add", Read(base), Special(end)) for end in ("first", "last"))
    piece = tighten(replace(loop, start=first, stop=op("min", last, stop), step=index(1)))
    return For(base, index(0), stop, count, (piece,), place=loop.place)


def _steady(node: Expr) -> bool:
    """Whether an expression is the same for all threads and costs nothing."""
    return all(isinstance(e, (ir.Const, ir.Extent, Special, ir.Op, ir.Cast)) for e in ir.walk(node))


def name_place(body: Body, values: dict[str, Expr], names: Names) -> Body:
    """Variables at the top of a body for the block and thread that its reports come from."""
    used = {e.name for e in ir.all_expressions(body) if isinstance(e, Special)}
    head: list[ir.Statement] = []
    for special, value in values.items():
        if special in used:
            variable = names.index(_PLACE_NAMES[special])
            head.append(Assign(variable, value))
            values = values | {special: Read(variable)}
    return (*head, *resolve(body, values)) if head else body


def resolve(body: Body, values: dict[str, Expr]) -> Body:
    """Expressions for the coordinates of these names."""

    def change(node: Expr) -> Expr:
        return values.get(node.name, node) if isinstance(node, Special) else node

    return ir.rewrite_body(body, change)


def _linear(name: str, shape: str) -> Expr:
    """A linear index from global ones: the block's, or the thread's in it."""
    take = "floordiv" if name == "linearBlock" else "mod"
    x, y, z = (op(take, Special("globalIdx", k), Special("blockDim", k)) for k in range(3))
    rows = op("add", op("mul", z, Special(shape, 1)), y)
    return op("add", op("mul", rows, Special(shape, 0)), x)


def name_coordinates(
    function: Function, special: str, prefix: str
) -> tuple[dict[int, Variable], Body]:
    """A variable for each axis, and the body that reads it: the user's `i` of `i = grid(1)`."""
    names = Names(function)
    written = [v for s in ir.statements(function.body) for v in ir.written(s)]
    variables: dict[int, Variable] = {}
    for s in function.body:
        match s:
            case Assign(variable, Special(name, axis)) if name == special:
                once = written.count(variable) == 1 and variable.dtype.name == "index"
                if once and axis not in variables:
                    variables[axis] = variable
    body = tuple(
        s for s in function.body if not (isinstance(s, Assign) and s.variable in variables.values())
    )
    for axis in range(3):
        if axis not in variables:
            variables[axis] = names.index(f"{prefix}_{'xyz'[axis]}")

    def change(node: Expr) -> Expr:
        match node:
            case Special(name, axis) if name == special:
                return Read(variables[axis], place=node.place)
        return node

    return variables, ir.rewrite_body(body, change)
