"""Launch coordinates in one form: `blockIdx * blockDim + threadIdx` is `globalIdx`.

Kernels write the global index by hand as often as by `grid()`. In one form, a kernel that uses
nothing else is seen to be flat (`flatten`); in a kernel that stays in blocks `expand` takes it
apart again.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ruda import dtypes
from ruda.jit import intrinsics, ir
from ruda.jit.ir import Cast, Const, Expr, Function, Op, Read, Select, Special, Variable

INDEX = dtypes.index


def index(value: int) -> Const:
    return Const(value, INDEX)


def op(name: str, *operands: Expr) -> Expr:
    """An index operation, folded where it is a constant or does nothing."""
    return fold(Op(name, operands, INDEX if name not in _ORDER else dtypes.bool_))


_ORDER = {"lt", "le", "gt", "ge", "eq", "ne"}


def is_const(node: Expr, value: Any) -> bool:
    return isinstance(node, Const) and node.dtype.is_integer and node.value == value


def fold(node: Expr) -> Expr:
    """One step of constant folding, exact for every dtype."""
    match node:
        case Op("add", (x, y)) if is_const(y, 0):
            return x
        case Op("add", (x, y)) if is_const(x, 0):
            return y
        case Op("sub", (x, y)) if is_const(y, 0):
            return x
        case Op("mul", (x, y)) if is_const(y, 1):
            return x
        case Op("mul", (x, y)) if is_const(x, 1):
            return y
        case Op("mul", (x, y)) if is_const(y, 0) or is_const(x, 0):
            return Const(0, node.dtype) if node.dtype.is_integer else node
        case Op(name, operands) if all(isinstance(o, Const) for o in operands):
            return _constant(name, operands, node)  # type: ignore[arg-type]
        case Cast(Const(value, source), dtype) if source.is_integer and dtype.is_integer:
            return Const(int(intrinsics.convert(value, dtype)), dtype, place=node.place)
        case Select(Const(value), then, otherwise):
            return then if value else otherwise
    return node


def _constant(name: str, operands: tuple[Const, ...], node: Op) -> Expr:
    dtype = operands[0].dtype
    if not all(o.dtype.is_integer or o.dtype.kind == "bool" for o in operands):
        return node  # floats are folded by LLVM, which knows the rounding
    if node.dtype.is_inexact or node.dtype.kind not in ("int", "uint", "bool"):
        return node
    values = tuple(dtype.numpy.type(o.value) for o in operands)
    result = intrinsics.evaluate(name, values, node.dtype)
    kind = bool if node.dtype.kind == "bool" else int
    return Const(kind(result), node.dtype, place=node.place)


def simplify(function: Function) -> Function:
    """Fold constants, make the block's extents constants where known, recognise `globalIdx`."""
    singles = single_assignments(function)

    def look(node: Expr) -> Expr:
        """Through variables that are assigned once."""
        while isinstance(node, Read) and node.variable in singles:
            node = singles[node.variable]
        return node

    def change(node: Expr) -> Expr:
        match node:
            case Special("blockDim", axis) if function.block is not None:
                return index(function.block[axis])
            case Op("add", (x, y), dtype) if dtype.name == "index":
                for a, b in ((x, y), (y, x)):
                    found = _product_axis(look(a), look, function.block)
                    if found is not None and look(b) == Special("threadIdx", found):
                        return Special("globalIdx", found, place=node.place)
            case Op("mul", (x, y), dtype) if dtype.name == "index":
                for a, b in ((look(x), look(y)), (look(y), look(x))):
                    match a, b:
                        case Special("blockDim", axis), Special("gridDim", other) if axis == other:
                            return Special("globalDim", axis, place=node.place)
                        case Const(n), Special("gridDim", axis) if (
                            function.block is not None and n == function.block[axis] and n > 1
                        ):
                            return Special("globalDim", axis, place=node.place)
        return fold(node)

    return replace(function, body=ir.rewrite_body(function.body, change))


def _product_axis(node: Expr, look: Any, block: tuple[int, int, int] | None) -> int | None:
    match node:
        case Op("mul", (x, y)):
            for a, b in ((look(x), look(y)), (look(y), look(x))):
                match a, b:
                    case Special("blockIdx", axis), Special("blockDim", other) if axis == other:
                        return axis
                    case Special("blockIdx", axis), Const(n) if block and n == block[axis]:
                        return axis
        case Special("blockIdx", axis) if block and block[axis] == 1:
            return axis
    return None


def single_assignments(function: Function) -> dict[Variable, Expr]:
    """Variables with one assignment, at the top of the body, to a function of coordinates alone."""
    count: dict[Variable, int] = {}
    for s in ir.statements(function.body):
        for v in ir.written(s):
            count[v] = count.get(v, 0) + 1
    out: dict[Variable, Expr] = {}
    for s in function.body:
        if isinstance(s, ir.Assign) and count[s.variable] == 1:
            nodes = list(ir.walk(s.value))
            if all(
                isinstance(n, (Special, Const, Op)) or (isinstance(n, Read) and n.variable in out)
                for n in nodes
            ):
                out[s.variable] = s.value
    return out


def expand(function: Function) -> Function:
    """`globalIdx` and `globalDim` in terms of block and thread."""

    def change(node: Expr) -> Expr:
        match node:
            case Special("globalIdx", axis):
                start = op("mul", Special("blockIdx", axis), extent(function, axis))
                return op("add", start, thread(function, axis))
            case Special("globalDim", axis):
                return op("mul", Special("gridDim", axis), extent(function, axis))
            case Special("threadIdx", axis):
                return thread(function, axis)
            case Special("laneid"):
                return op("mod", linear_thread(function), index(32))
        return fold(node)

    return replace(function, body=ir.rewrite_body(function.body, change))


def extent(function: Function, axis: int) -> Expr:
    """Threads of a block along an axis."""
    return index(function.block[axis]) if function.block else Special("blockDim", axis)


def thread(function: Function, axis: int) -> Expr:
    """A thread's index along an axis: 0 where the block has one thread."""
    if function.block is not None and function.block[axis] == 1:
        return index(0)
    return Special("threadIdx", axis)


def linear_thread(function: Function) -> Expr:
    """A thread's linear index in its block, x fastest."""
    x, y, z = (thread(function, axis) for axis in range(3))
    rows = op("add", op("mul", z, extent(function, 1)), y)
    return op("add", op("mul", rows, extent(function, 0)), x)
