"""Read an element of a shared array once where nothing can have changed it between two reads.

CUDA's compiler does so by itself. What makes Vulkan's of WGSL reads every time, since each index is
held to the array's bounds on its own: a matrix product reads eight times what it needs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

from ruda.jit import ir
from ruda.jit.ir import And, Assign, Body, Declare, Expr, Function, Load, Or, Read, Statement, Store
from ruda.jit.passes.names import Names


def share_loads(function: Function) -> Function:
    """The function with what is read more than once kept in variables."""
    names = Names(function)

    def shared(body: Body) -> Body:
        runs = _runs(body)
        out: list[Statement] = []
        kept: dict[tuple[Load, int], ir.Variable] = {}
        reads: Counter[tuple[Load, int]] = Counter()
        for s, run in zip(body, runs, strict=True):
            reads.update((load, run[load]) for load in _loads(s))
        for s, run in zip(body, runs, strict=True):
            for load in _loads(s):
                key = load, run[load]
                if reads[key] > 1 and key not in kept:
                    kept[key] = ir.Variable(names(load.array.name), load.dtype)
                    out.append(Assign(kept[key], load, place=load.place))

            def held(e: Expr, run: dict[Load, int] = run) -> Expr:
                if isinstance(e, And | Or):
                    return e
                if isinstance(e, Load) and e in run and (e, run[e]) in kept:
                    return Read(kept[e, run[e]], place=e.place)
                return ir.map_children(e, held)

            new = ir.map_children(s, held)
            inner = {name: shared(getattr(new, name)) for name in ir._BODIES.get(type(new), ())}
            out.append(replace(new, **inner) if inner else new)  # type: ignore[arg-type]
        return tuple(out)

    return replace(function, body=shared(function.body))


def _runs(body: Body) -> list[dict[Load, int]]:
    """For each statement the loads that it makes, and since which statement their elements and
    indices are the same."""
    since: dict[Load, int] = {}
    out: list[dict[Load, int]] = []
    for number, s in enumerate(body):
        out.append({load: since.setdefault(load, number) for load in _loads(s)})
        match s:
            case Assign(variable=v):
                lost = {load for load in since if _depends(load, v)}
            case Store(array=a) | Declare(array=a):
                lost = {load for load in since if load.array == a}
            case _:
                lost = set(since)
        for load in lost:
            del since[load]
    return out


def _loads(s: Statement) -> Iterator[Load]:
    """What a statement certainly reads of shared arrays before it does anything."""
    if isinstance(s, ir.While):  # its condition is read again each round
        return
    for e in ir.expressions(s):
        yield from _certain(e)


def _certain(e: Expr) -> Iterator[Load]:
    if isinstance(e, And | Or):
        return
    if isinstance(e, Load) and e.array.space == "shared" and not e.array.dynamic:
        if not any(isinstance(x, Load) for index in e.indices for x in ir.walk(index)):
            yield e
            return
    for child in ir.expressions(e):
        yield from _certain(child)


def _depends(load: Load, variable: ir.Variable) -> bool:
    return any(
        isinstance(x, Read) and x.variable == variable
        for index in load.indices
        for x in ir.walk(index)
    )
