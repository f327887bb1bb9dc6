"""Build IR by hand, for tests that come before or go around the frontend.

The k-th statement of a function stands in line k of "kernel.py", so that a test can say which
statement an error should name.
"""

from __future__ import annotations

import dataclasses
import itertools
from functools import partial
from typing import Any

from ruda import dtypes
from ruda.dtypes import DType
from ruda.errors import Place
from ruda.jit import intrinsics, ir

index, i32, u32, f32, f64, boolean = (
    dtypes.index, dtypes.int32, dtypes.uint32, dtypes.float32, dtypes.float64, dtypes.bool_,
)  # fmt: skip


def place(line: int) -> Place:
    return Place("kernel.py", line, 0, line, 1)


def const(value: Any, dtype: DType = index) -> ir.Const:
    kind = {"bool": bool, "int": int, "uint": int, "float": float, "complex": complex}[dtype.kind]
    return ir.Const(kind(value), dtype)


def expression(value: Any, dtype: DType = index) -> ir.Expr:
    """A node as it is, a variable's value, or a number as a constant."""
    if isinstance(value, ir.Expr):
        return value
    return ir.Read(value) if isinstance(value, ir.Variable) else const(value, dtype)


def op(name: str, *operands: Any) -> ir.Op:
    """An operation; plain numbers among the operands take the dtype of the first node."""
    dtype = next(x.dtype for x in operands if isinstance(x, ir.Expr | ir.Variable))
    values = tuple(expression(x, dtype) for x in operands)
    return ir.Op(name, values, intrinsics.result_dtype(intrinsics.TABLE[name], dtype))


def thread(axis: int = 0) -> ir.Special:
    return ir.Special("threadIdx", axis)


def block(axis: int = 0) -> ir.Special:
    return ir.Special("blockIdx", axis)


def grid(axis: int = 0) -> ir.Special:
    return ir.Special("globalIdx", axis)


def load(array: ir.Array, *indices: Any, field: ir.Field | None = None) -> ir.Load:
    return ir.Load(array, tuple(expression(i) for i in indices), field)


def store(array: ir.Array, indices: Any, value: Any, field: ir.Field | None = None) -> ir.Store:
    where = indices if isinstance(indices, tuple) else (indices,)
    dtype = array.dtype if field is None else field.dtype
    value = expression(value, dtype)  # type: ignore[arg-type]
    return ir.Store(array, tuple(expression(i) for i in where), value, field)


def assign(variable: ir.Variable, value: Any) -> ir.Assign:
    return ir.Assign(variable, expression(value, variable.dtype))


def function(
    parameters: Any, *body: ir.Statement, arrays: Any = (), name: str = "kernel", **more: Any
) -> ir.Function:
    """A kernel; its statements get the lines 1, 2, ... in the order of the text."""
    lines = itertools.count(1)

    def number(statements: ir.Body) -> ir.Body:
        out = []
        for s in statements:
            where = place(next(lines))
            s = _replace(ir.map_children(s, partial(_placed, where=where)), place=where)
            inner = {n: number(getattr(s, n)) for n in ir._BODIES.get(type(s), ())}
            out.append(_replace(s, **inner))
        return tuple(out)

    return ir.Function(name, tuple(parameters), number(body), arrays=tuple(arrays), **more)


def _placed(e: ir.Expr, where: Place) -> ir.Expr:
    """An expression that stands where its statement does."""
    return ir.rewrite(e, lambda x: _replace(x, place=where))


def _replace(statement: Any, **changes: Any) -> Any:
    return dataclasses.replace(statement, **changes)
