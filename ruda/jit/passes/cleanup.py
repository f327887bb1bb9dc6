"""Make freshly translated IR tidy: names that any language takes, no unused results, no dead
copies."""

from __future__ import annotations

import keyword
import re
from dataclasses import replace

from ruda.jit import ir


def cleanup(function: ir.Function) -> ir.Function:
    """Rename, and drop what nothing reads."""
    return rename(drop_unused(function))


def drop_unused(function: ir.Function) -> ir.Function:
    """Remove assignments to variables that are never read, and results that nobody takes."""
    while True:
        smaller = drop_unread(function)
        if smaller == function:
            return drop_arrays(function)
        function = smaller


def drop_unread(function: ir.Function) -> ir.Function:
    """One round: what goes may have been the last to read something else."""
    everything = (*function.prologue, *function.body)
    reads = {e.variable for e in ir.all_expressions(everything) if isinstance(e, ir.Read)}

    def keep(s: ir.Statement) -> ir.Statement | None:
        match s:
            case ir.Assign(variable=v) if v not in reads:
                return None
            case ir.Atomic(result=v) if v is not None and v not in reads:
                return replace(s, result=None)
            case ir.If(then=(), otherwise=()):
                return None
        return s

    return replace(
        function,
        body=ir.rewrite_body(function.body, statement=keep),
        prologue=tuple(a for a in function.prologue if a.variable in reads),
    )


def drop_arrays(function: ir.Function) -> ir.Function:
    """Forget shared, local and constant arrays that nothing touches."""
    body = function.body
    touching = (ir.Load, ir.Extent, ir.Stride)
    used = {e.array for e in ir.all_expressions(body) if isinstance(e, touching)}
    used |= {s.array for s in ir.statements(body) if isinstance(s, (ir.Store, ir.Atomic))}
    arrays = tuple(a for a in function.arrays if a in used)

    def keep(s: ir.Statement) -> ir.Statement | None:
        return None if isinstance(s, ir.Declare) and s.array not in used else s

    return replace(function, body=ir.rewrite_body(body, statement=keep), arrays=arrays)


# What `State.unique` adds to a name: its statement, and a number.
_WHERE = re.compile(r"@\d+:\d+|#\d+")


def rename(function: ir.Function) -> ir.Function:
    """Variables and arrays get identifiers: the user's names where they are free."""
    taken = {p.name for p in function.parameters}
    names: dict[ir.Variable, ir.Variable] = {
        p: p for p in function.parameters if isinstance(p, ir.Variable)
    }

    def free(name: str) -> str:
        base = _WHERE.sub("", name).strip(".").replace(".", "_")
        if not base.isidentifier() or keyword.iskeyword(base) or base.startswith("_"):
            base = "v" + "".join(c if c.isalnum() else "_" for c in base)
        name, k = base, 1
        while name in taken:
            name, k = f"{base}_{k}", k + 1
        taken.add(name)
        return name

    arrays = {a: replace(a, name=free(a.name)) for a in function.arrays}

    def new(variable: ir.Variable) -> ir.Variable:
        if variable not in names:
            names[variable] = ir.Variable(free(variable.name), variable.dtype)
        return names[variable]

    def expression(e: ir.Expr) -> ir.Expr:
        if isinstance(e, ir.Read):
            return replace(e, variable=new(e.variable))
        if isinstance(e, (ir.Load, ir.Extent, ir.Stride)) and e.array in arrays:
            return replace(e, array=arrays[e.array])
        return e

    def statement(s: ir.Statement) -> ir.Statement:
        if isinstance(s, (ir.Store, ir.Atomic, ir.Declare)) and s.array in arrays:
            s = replace(s, array=arrays[s.array])
        match s:
            case ir.Assign() | ir.For():
                return replace(s, variable=new(s.variable))
            case ir.Barrier(result=v) | ir.Atomic(result=v) | ir.Warp(result=v) if v is not None:
                return replace(s, result=new(v))
        return s

    prologue = ir.rewrite_body(function.prologue, expression, statement)
    body = ir.rewrite_body(function.body, expression, statement)
    return replace(
        function,
        prologue=prologue,  # type: ignore[arg-type]
        body=body,
        arrays=tuple(arrays.values()),
    )
