"""Compute in float32 what was written in float64, for a device that lacks it.

Arrays keep their dtype and so their bytes: a load is converted right after it, a value right before
its store. Everything between - variables, operations, constants, prints - becomes float32, and
complex128 becomes complex64. It is what `ruda.config(missing="demote")` asks for.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from ruda import dtypes
from ruda.dtypes import DType
from ruda.errors import Place, UnsupportedError
from ruda.jit import ir
from ruda.jit.ir import Array, Function, Variable

NARROWER = {
    "float64": dtypes.float32, "weak_float": dtypes.float32,
    "complex128": dtypes.complex64, "weak_complex": dtypes.complex64,
}  # fmt: skip


def narrower(dtype: DType) -> DType:
    """The dtype that is computed with.

    >>> narrower(dtypes.float64), narrower(dtypes.int64)
    (ruda.float32, ruda.int64)
    """
    return NARROWER.get(dtype.name, dtype)


def demote(function: Function) -> Function:
    """The kernel with its float64 in float32; arrays stay as they are."""
    body = _body(function.body)
    parameters = tuple(p if isinstance(p, Array) else _variable(p) for p in function.parameters)
    prologue = tuple(
        replace(s, variable=_variable(s.variable), value=_expression(s.value))
        for s in function.prologue
    )
    fits = tuple((_variable(v), dtype) for v, dtype in function.fits)
    return replace(function, parameters=parameters, body=body, prologue=prologue, fits=fits)


def demoted(function: Function) -> Iterator[tuple[Place, str]]:
    """The operations that `demote` makes less precise, each with its place."""
    for s in ir.statements(function.body):
        for top in ir.expressions(s):
            for e in ir.walk(top):
                if isinstance(e, ir.Op) and e.operands:
                    dtype = e.operands[0].dtype
                    if narrower(dtype) is not dtype and not dtype.weak:
                        place = e.place if e.place.line else s.place
                        yield place, f"{dtype} {e.name} in {narrower(dtype)}"


def _variable(v: Variable) -> Variable:
    return replace(v, dtype=narrower(v.dtype))


def _held(e: ir.Expr) -> ir.Expr:
    """A value of an array as it is computed with."""
    dtype = narrower(e.dtype)
    return e if dtype is e.dtype else ir.Cast(e, dtype, place=e.place)


def _stored(e: ir.Expr, dtype: Any) -> ir.Expr:
    return e if e.dtype == dtype else ir.Cast(e, dtype, place=e.place)


def _constant(value: Any, dtype: DType) -> Any:
    with np.errstate(all="ignore"):
        return dtype.numpy.type(value).item()


def _expression(e: ir.Expr) -> ir.Expr:
    match e:
        case ir.Const(value, dtype) if narrower(dtype) is not dtype:
            return ir.Const(_constant(value, narrower(dtype)), narrower(dtype), place=e.place)
        case ir.Read(v):
            return replace(e, variable=_variable(v))
        case ir.Load():
            return _held(ir.map_children(e, _expression))
        case ir.Op(dtype=dtype):
            return replace(ir.map_children(e, _expression), dtype=narrower(dtype))
        case ir.Cast(ir.Cast(value, middle), dtype) if middle.name == "weak_float" and (
            value.dtype.is_integer
        ):
            # An integer on its way through a Python float: the emitter has an exact way.
            inner = ir.Cast(_expression(value), middle, place=e.place)
            return ir.Cast(inner, narrower(dtype), place=e.place)
        case ir.Cast(value, dtype):
            inside, to = _expression(value), narrower(dtype)
            return inside if inside.dtype == to else ir.Cast(inside, to, place=e.place)
        case ir.Bitcast(value, dtype):
            # The bits are those of float64: what was computed is widened, exactly.
            inside = _stored(_expression(value), value.dtype)
            return _held(ir.Bitcast(inside, dtype, place=e.place))
    return ir.map_children(e, _expression)


def _body(body: ir.Body) -> ir.Body:
    return tuple(_statement(s) for s in body)


def _statement(s: ir.Statement) -> ir.Statement:
    match s:
        case ir.Store(array, indices, value, part):
            dtype = array.dtype if part is None else part.dtype
            at = tuple(_expression(i) for i in indices)
            if isinstance(value, ir.Load):  # what is only moved keeps its bits
                return replace(s, indices=at, value=ir.map_children(value, _expression))
            return replace(s, indices=at, value=_stored(_expression(value), dtype))
        case ir.Atomic(array=array, field=part):
            dtype = array.dtype if part is None else part.dtype
            if isinstance(dtype, DType) and narrower(dtype) is not dtype:
                raise UnsupportedError(f"atomics on {dtype} cannot be made narrower", s.place)
        case ir.Assign(variable=variable) | ir.For(variable=variable):
            s = replace(s, variable=_variable(variable))
        case ir.Warp(result=result):
            s = replace(s, result=_variable(result))
    for name in ("then", "otherwise", "body"):
        if hasattr(s, name):
            inner: Any = {name: _body(getattr(s, name))}
            s = replace(s, **inner)
    return ir.map_children(s, _expression)
