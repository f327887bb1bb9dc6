"""The IR as text, for `kernel.ir()`, `RUDA_DEBUG=5` and tests."""

from __future__ import annotations

from typing import Any

from ruda.jit.ir import (
    Address,
    And,
    Array,
    Assert,
    Assign,
    Atomic,
    Barrier,
    Bitcast,
    Body,
    Cast,
    Const,
    Declare,
    Extent,
    For,
    Function,
    If,
    Load,
    Op,
    Or,
    Print,
    Read,
    Select,
    Special,
    Store,
    Stride,
    Text,
    Variable,
    Warp,
    While,
    WideLoad,
    WideStore,
)  # fmt: skip

_INFIX = {
    "add": "+", "sub": "-", "mul": "*", "truediv": "/", "floordiv": "//", "mod": "%", "lt": "<",
    "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!=", "and": "&", "or": "|", "xor": "^",
    "shl": "<<", "shr": ">>",
}  # fmt: skip


def expression(node: Any) -> str:
    """One expression on one line; constants show their dtype."""
    e = expression
    match node:
        case None:
            return "None"
        case str():
            return repr(node)
        case Text(value, spec):
            return f"{{{e(value)}{':' + spec if spec else ''}}}"
        case Const(value, dtype):
            return f"{value!r}:{dtype.short}"
        case Read(variable):
            return variable.name
        case Special(name, axis):
            return (
                f"{name}.{'xyz'[axis]}"
                if name not in ("laneid", "sharedBytes", "threads")
                else name
            )
        case Extent(array, axis):
            return f"{array.name}.shape[{axis}]"
        case Stride(array, axis):
            return f"{array.name}.strides[{axis}]"
        case Op(name, (x, y)) if name in _INFIX:
            return f"({e(x)} {_INFIX[name]} {e(y)})"
        case Op(name, operands):
            return f"{name}({', '.join(map(e, operands))})"
        case Cast(value, dtype):
            return f"{dtype}({e(value)})"
        case Bitcast(value, dtype):
            return f"bits.{dtype}({e(value)})"
        case Select(c, x, y):
            return f"({e(x)} if {e(c)} else {e(y)})"
        case And(x, y):
            return f"({e(x)} and {e(y)})"
        case Or(x, y):
            return f"({e(x)} or {e(y)})"
        case Load(array, indices, field):
            return element(array, indices, field)
        case Address(array):
            return f"address({array.name})"
    return repr(node)


def element(array: Array, indices: Any, field: Any) -> str:
    name = f".{field.name or field.offset}" if field is not None else ""
    return f"{array.name}[{', '.join(map(expression, indices))}]{name}"


def lines(body: Body, depth: int = 1) -> list[str]:
    pad, out = "    " * depth, []
    for s in body:
        match s:
            case Assign(v, value):
                out.append(f"{pad}{v.name}: {v.dtype.short} = {expression(value)}")
            case Store(array, indices, value, field):
                out.append(f"{pad}{element(array, indices, field)} = {expression(value)}")
            case WideLoad(array, indices, results):
                names = ", ".join(v.name for v in results)
                out.append(f"{pad}{names} = {element(array, indices, None)}...")
            case WideStore(array, indices, written):
                texts = ", ".join(map(expression, written))
                out.append(f"{pad}{element(array, indices, None)}... = {texts}")
            case Declare(array):
                out.append(f"{pad}{array.name} = {array.space}.array({array.shape}, {array.dtype})")
            case If(condition, then, otherwise):
                out += [f"{pad}if {expression(condition)}:", *lines(then, depth + 1)]
                if otherwise:
                    out += [f"{pad}else:", *lines(otherwise, depth + 1)]
            case For(v, start, stop, step, inner):
                bounds = ", ".join(map(expression, (start, stop, step)))
                out += [f"{pad}for {v.name} in range({bounds}):", *lines(inner, depth + 1)]
            case While(condition, inner):
                out += [f"{pad}while {expression(condition)}:", *lines(inner, depth + 1)]
            case Barrier(scope, vote, predicate, result):
                left = f"{result.name} = " if result else ""
                out.append(f"{pad}{left}barrier.{scope}({vote or ''} {expression(predicate)})")
            case Atomic(op, array, indices, operands, result, field):
                left = f"{result.name} = " if result else ""
                values = ", ".join(map(expression, operands))
                out.append(f"{pad}{left}atomic.{op}({element(array, indices, field)}, {values})")
            case Warp(op, mask, operands, result):
                values = ", ".join(map(expression, (mask, *operands)))
                out.append(f"{pad}{result.name} = warp.{op}({values})")
            case Print(parts):
                out.append(f"{pad}print({', '.join(map(expression, parts))})")
            case Assert(condition, message):
                values = ", ".join(map(expression, (condition, *message)))
                out.append(f"{pad}assert {values}")
            case _:
                out.append(f"{pad}{type(s).__name__.lower()}")
    return out or [f"{pad}pass"]


def dump(function: Function) -> str:
    """The whole kernel as text that reads like Python."""
    parameters = []
    for p in function.parameters:
        if isinstance(p, Variable):
            parameters.append(f"{p.name}: {p.dtype.short}")
        else:
            axes = ", ".join(
                [":"] * (p.ndim - 1) + ["::1" if p.layout == "C" else ":"] * (p.ndim > 0)
            )
            parameters.append(f"{p.name}: {p.dtype}[{axes}]")
    head = f"def {function.name}({', '.join(parameters)}):"
    if function.block:
        head += f"  # block {function.block}"
    return "\n".join([head, *lines(function.prologue), *lines(function.body)])
