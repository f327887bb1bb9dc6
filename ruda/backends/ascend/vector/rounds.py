"""Rounds of a block over a row as one loop over its elements, so that tiles are as long as fits.

`share_rounds` has made this of a strided loop, with the block's width as the step:

    for first in range(start, stop, width):
        for t in range(min(width, stop - first)):
            total = slots[t];  total += x[first + t];  slots[t] = total

Nothing meets between the rounds. What is `x[first + t]` for each t in each round is x[i] for each i
from start to stop, in tiles of whole rounds. What a thread carries from round to round lies in its
slot: a sum, product or extreme is taken up by the slots, a piece of `width` after the other, which
is each thread's own order. A loop that does anything else with slots stays one round at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from ruda.backends.ascend.vector.reads import reads
from ruda.jit import ir
from ruda.jit.ir import (
    Array,
    Assign,
    Atomic,
    Body,
    Const,
    Expr,
    For,
    If,
    Load,
    Op,
    Read,
    Statement,
    Store,
    Variable,
)  # fmt: skip

TAKEN_UP = ("add", "sub", "mul", "min", "max")


@dataclass(frozen=True)
class Rounds:
    """`loop` goes up by one over what the rounds of `original` visit; updates of slots are atomics
    in it, with the index of the thread left out."""

    original: For
    loop: For
    width: int


def as_one_loop(s: For, is_near: Callable[[Array], bool]) -> Rounds | str | None:
    """The rounds as a loop; why not; None for another kind of loop. `is_near`: whether an array
    is the block's."""
    match s:
        case For(
            first, start, stop, Const(width),
            (For(thread, Const(0), Op("min", (Const(most), Op("sub", (end, Read(v))))), Const(1),
                 body),),
        ) if most == width > 1 and end == stop and v == first:  # fmt: skip
            pass
        case _:
            return None
    taken = updates(body, thread, is_near)
    if isinstance(taken, str):
        return taken
    at = Variable(first.name, first.dtype)

    def whole(e: Expr) -> Expr:
        match e:
            case Op("add", (Read(a), Read(b))) if {a, b} == {first, thread}:
                return Read(AT)
        return e

    taken = ir.rewrite_body(taken, whole)
    if any(reads(e) & {first, thread} for e in ir.all_expressions(taken)):
        return f"`{thread.name}` is more than an index beside `{first.name}`"
    named = ir.rewrite_body(taken, lambda e: Read(at) if e == Read(AT) else e)
    return Rounds(s, For(at, start, stop, Const(1, s.step.dtype), named, place=s.place), width)


AT = Variable("at?", ir.Special("first").dtype)  # no user's name has a question mark


def updates(body: Body, thread: Variable, is_near: Callable[[Array], bool]) -> Body | str:
    """The body with an atomic for each update of a thread's slot."""
    changing = {
        x.array for x in [*ir.statements(body), *ir.all_expressions(body)]
        if isinstance(x, (Store, Load, Atomic)) and is_near(x.array)
        and any(thread in reads(i) for i in x.indices)
    }  # fmt: skip
    stored = {s.array for s in ir.statements(body) if isinstance(s, (Store, Atomic))}
    for a in sorted(changing, key=lambda a: a.name):
        found = update(body, a, thread)
        if found is None:
            return f"`{a.name}` is not only summed up"
        body = found
    if any(is_near(a) for a in stored - changing):
        return "an array of the block is stored to"
    return body


def update(body: Body, a: Array, thread: Variable) -> Body | None:
    """`v = a[t]`, once `v = v + e` somewhere, `a[t] = v`, and nothing else of either."""
    loads = [s for s in body if isinstance(s, Assign) and isinstance(s.value, Load)
             and s.value.array == a]  # fmt: skip
    stores = [s for s in body if isinstance(s, Store) and s.array == a]
    touched = [x for x in [*ir.statements(body), *ir.all_expressions(body)]
               if isinstance(x, (Store, Load, Atomic)) and x.array == a]  # fmt: skip
    if len(loads) != 1 or len(stores) != 1 or len(touched) != 2:
        return None
    (first,), (last,) = loads, stores
    assert isinstance(first.value, Load)
    v, indices = first.variable, first.value.indices
    if first.value.field is not None or last.field is not None or last.value != Read(v):
        return None
    if indices != last.indices or indices[-1] != Read(thread):
        return None
    if any(thread in reads(i) for i in indices[:-1]):
        return None
    inner = [s for s in ir.statements(body) if v in ir.written(s) and s is not first]
    uses = sum(isinstance(e, Read) and e.variable == v for e in ir.all_expressions(body))
    if len(inner) != 1 or uses != 2 or is_in_a_loop(body, inner[0]):
        return None
    match inner[0]:
        case Assign(_, Op(name, (Read(x), e))) if x == v and name in TAKEN_UP:
            pass
        case Assign(_, Op(name, (e, Read(x)))) if x == v and name in TAKEN_UP and name != "sub":
            pass
        case _:
            return None
    change = Atomic(name, a, indices[:-1], (e,), place=inner[0].place)

    def statement(s: Statement) -> Statement | None:
        if s is first or s is last:
            return None
        return change if s is inner[0] else s

    return without(body, statement)


def without(body: Body, change: Callable[[Statement], Statement | None]) -> Body:
    out = []
    for s in body:
        found = change(s)
        if isinstance(found, If):
            found = replace(found, then=without(found.then, change),
                            otherwise=without(found.otherwise, change))  # fmt: skip
        if found is not None:
            out.append(found)
    return tuple(out)


def is_in_a_loop(body: Body, wanted: Statement) -> bool:
    return any(
        any(i is wanted for i in ir.statements(s.body))
        for s in ir.statements(body) if isinstance(s, (For, ir.While))
    )  # fmt: skip
