"""In which order a launch runs the phases of a kernel: its control around barriers of the grid.

`passes.phases` cuts a kernel at its barriers of the grid and leaves a *schedule*: the control that
stands around them, and the assignments that it rests on, over scalars of the launch alone. The host
walks it; where it assigns `PHASE`, a phase is launched.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Generator, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ruda import dtypes
from ruda.dtypes import DType
from ruda.jit import intrinsics, ir
from ruda.jit.ir import Array, Body, Const, Expr, Extent, Read, Special, Variable

PHASE = Variable("phase?", dtypes.int64)
_DTYPES = {d.name: d for d in vars(dtypes).values() if isinstance(d, DType)}
Values = dict[str, Any]


# ---- walking -------------------------------------------------------------------------------------


def phases(
    schedule: Body, rounds: Sequence[str], scalars: Mapping[str, Any]
) -> Iterator[tuple[int, list[int]]]:
    """The phases of a launch, one after another, each with the values of `rounds`.

    `scalars`: NumPy scalars by name, those of `launch_scalars` and of the kernel's parameters.
    """
    values = dict(scalars)
    for phase in _walk(schedule, values):
        yield phase, [int(values.get(name, 0)) for name in rounds]


def launch_scalars(grid: Any, block: Any, shared_bytes: int, shapes: Mapping[str, Any]) -> Values:
    """What a schedule may read of a launch besides scalar arguments."""
    total = [g * b for g, b in zip(grid, block, strict=True)]
    sizes = {"gridDim": grid, "blockDim": block, "globalDim": total, "sharedBytes": [shared_bytes]}
    out = {f"{name}?{k}": np.int64(n) for name, ns in sizes.items() for k, n in enumerate(ns)}
    for name, shape in shapes.items():
        out |= {f"{name}?{k}": np.int64(n) for k, n in enumerate(shape)}
    return out


def as_read(node: Expr) -> Expr:
    """A coordinate or an extent as a variable of `launch_scalars`."""
    match node:
        case Special(name, axis) | Extent(Array(name), axis):
            return Read(Variable(f"{name}?{axis}", dtypes.index))
    return node


def is_known(node: Expr) -> bool:
    """Whether the host can evaluate an expression, apart from the variables that it reads."""
    for e in ir.walk(node):
        match e:
            case Extent(array) if array.space == "global":
                pass
            case Const() | Read() | ir.Cast() | ir.Select() | ir.And() | ir.Or():
                pass
            case Special("gridDim" | "blockDim" | "globalDim" | "sharedBytes"):
                pass
            case ir.Op(name) if name not in ("wrap", "within"):
                pass
            case _:
                return False
        if e.dtype.kind == "complex":
            return False
    return True


def evaluate(node: Expr, values: Mapping[str, Any]) -> Any:
    """An expression as a NumPy scalar."""
    match node:
        case Const(value, dtype):
            return dtype.numpy.type(value)
        case Read(variable):
            found = values.get(variable.name)  # 0 where nothing was assigned: that may be anything
            return variable.dtype.numpy.type(0) if found is None else found
        case ir.Cast(value, dtype):
            return intrinsics.convert(evaluate(value, values), dtype)
        case ir.Select(condition, then, otherwise):
            return evaluate(then if evaluate(condition, values) else otherwise, values)
        case ir.And(left, right):
            return evaluate(left, values) and evaluate(right, values)
        case ir.Or(left, right):
            return evaluate(left, values) or evaluate(right, values)
        case ir.Op(name, operands, dtype):
            with np.errstate(all="ignore"):
                found = intrinsics.evaluate(
                    name, tuple(evaluate(o, values) for o in operands), dtype
                )
            return dtype.numpy.type(found)
    raise AssertionError(f"{type(node).__name__} in a schedule")


def _walk(body: Body, values: Values) -> Generator[int, None, type | None]:
    """The phases of a body; returns Break or Continue where that ended it."""
    for s in body:
        match s:
            case ir.Assign(variable, Const(k)) if variable == PHASE:
                yield k
            case ir.Assign(variable, value):
                values[variable.name] = evaluate(value, values)
            case ir.If(condition, then, otherwise):
                branch = then if evaluate(condition, values) else otherwise
                if (jump := (yield from _walk(branch, values))) is not None:
                    return jump
            case ir.For(variable, start, stop, step, inner):
                ends = [int(evaluate(e, values)) for e in (start, stop, step)]
                for i in range(*ends) if ends[2] else ():
                    values[variable.name] = variable.dtype.numpy.type(i)
                    if (yield from _walk(inner, values)) is ir.Break:
                        break
            case ir.While(condition, inner):
                while evaluate(condition, values):
                    if (yield from _walk(inner, values)) is ir.Break:
                        break
            case ir.Break() | ir.Continue():
                return type(s)
    return None


# ---- as JSON -------------------------------------------------------------------------------------


def pack(node: Any) -> Any:
    """A schedule as JSON."""
    match node:
        case tuple():
            return [pack(n) for n in node]
        case DType():
            return {"dtype": node.name}
        case _ if dataclasses.is_dataclass(node):
            fields = [f.name for f in dataclasses.fields(node) if f.name != "place"]
            return {type(node).__name__: {f: pack(getattr(node, f)) for f in fields}}
    return node


def unpack(node: Any) -> Any:
    """The schedule that `pack` made JSON of."""
    match node:
        case list():
            return tuple(unpack(n) for n in node)
        case {"dtype": name}:
            return _DTYPES[name]
        case dict():
            ((kind, fields),) = node.items()
            return getattr(ir, kind)(**{name: unpack(value) for name, value in fields.items()})
    return node
