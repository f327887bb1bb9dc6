"""Fewer instructions for a tile that is already right: looks at neighbours only."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ruda.backends.ascend.vector.program import (
    CopyOut,
    Instruction,
    Line,
    Nest,
    Register,
    Take,
    all_items,
    moved,
    uses,
)
from ruda.backends.ascend.vector.tables import BYTES

MULS = re.compile(r"Muls\(\{d\}, \{0\}, (.+), \{n\}\);")


def in_nests(items: Sequence[Any], change: Any) -> list[Any]:
    """A change of lists of items, also of those in loops and branches."""
    found = []
    for item in items:
        if isinstance(item, Nest):
            other = None if item.otherwise is None else in_nests(item.otherwise, change)
            item = replace(item, items=in_nests(item.items, change), otherwise=other)
        found.append(item)
    return list(change(found))


def in_place(items: Sequence[Any], stored: set[str]) -> list[Any]:
    """Elements of an array of the block are read where they are, if nobody writes there, and the
    scalars that say where stay as they are until the last use."""

    def change(block: Sequence[Any]) -> Sequence[Any]:
        kept = []
        for k, item in enumerate(block):
            if (
                isinstance(item, Take)
                and item.array not in stored
                and is_near(item, block[k + 1 :])
            ):
                assert item.target is not None
                item.target.tensor = item.view
            else:
                kept.append(item)
        return kept

    everywhere = list(all_items(items))

    def is_near(item: Take, later: Sequence[Any]) -> bool:
        r = item.target
        assert r is not None
        if r.fixed:
            return False
        users = sum(r in uses(other) for other in everywhere if not isinstance(other, Nest))
        for other in later:
            if users == 1:  # that is the item itself
                break
            if isinstance(other, (Line, Nest)):
                return False
            if r in uses(other):
                if isinstance(other, Instruction) and other.target is r:
                    return False
                users -= 1
        return users == 1

    return in_nests(items, change)


def forwarded(items: Sequence[Any]) -> list[Any]:
    """What is copied only to be used before the original changes is used itself."""
    everywhere = [i for i in all_items(items) if not isinstance(i, Nest)]

    def change(block: Sequence[Any]) -> Sequence[Any]:
        found = list(block)
        for item in block:
            if not is_copy(item):
                continue
            r, (x,), k = item.target, item.sources, found.index(item) + 1
            n = until_last_use(found[k:], r, x)
            if n is not None:
                found[k - 1 : k + n] = [used(i, r, x) for i in found[k : k + n]]
        return found

    def until_last_use(later: Sequence[Any], r: Register, x: Register) -> int | None:
        users = sum(r in uses(other) for other in everywhere) - 1
        for k, other in enumerate(later):
            if isinstance(other, Nest) or getattr(other, "target", None) in (r, x):
                return None
            users -= r in uses(other)
            if users == 0:
                return k + 1
        return None

    return in_nests(items, change)


def is_copy(item: Any) -> bool:
    match item:
        case Instruction(target=Register() as r, sources=(x,)):
            plain = not (r.fixed or r.tensor or r.mask) and x.type == r.type and BYTES[r.type] > 1
            return plain and item.text == moved(r.type, "{d}", "{0}")
    return False


def used(item: Any, r: Register, x: Register) -> Any:
    """An item that uses another vector."""
    match item:
        case Instruction(sources=sources) if r in sources:
            return replace(item, sources=tuple(x if s is r else s for s in sources))
        case CopyOut(register=register) if register is r:
            return replace(item, register=x)
    return item


def needed(items: Sequence[Any]) -> list[Any]:
    """Without instructions whose vector nobody reads."""
    while True:
        everywhere = [i for i in all_items(items) if not isinstance(i, Nest)]
        read = {
            r for i in everywhere for r in (i.sources if isinstance(i, Instruction) else uses(i))
        }

        def change(block: Sequence[Any], read: set[Register] = read) -> Sequence[Any]:
            return [i for i in block if not is_dead(i, read)]

        found = in_nests(items, change)
        if sum(1 for _ in all_items(found)) == sum(1 for _ in all_items(items)):
            return found
        items = found


def is_dead(item: Any, read: set[Register]) -> bool:
    match item:
        case Instruction(target=Register(fixed=False, tensor="") as r):
            return r not in read
    return False


def contracted(items: Sequence[Any]) -> list[Any]:
    """A product with a scalar that is added to a variable: one instruction."""
    counts: dict[Register, int] = {}
    for item in all_items(items):
        if isinstance(item, Instruction | CopyOut):
            for r in uses(item):
                counts[r] = counts.get(r, 0) + 1

    def change(block: Sequence[Any]) -> Sequence[Any]:
        found: list[Any] = []
        for item in block:
            before = found[-1] if found else None
            fused = fuse(before, item)
            if fused is not None:
                found[-1] = fused
            else:
                found.append(item)
        return found

    def fuse(first: Any, second: Any) -> Instruction | None:
        match first, second:
            case (
                Instruction(text=product, target=Register(type="float") as part, sources=(x,)),
                Instruction(text="Add({d}, {0}, {1}, {n});", target=total, sources=(a, b)),
            ) if total is not None and {a, b} == {total, part} and counts[part] == 2:
                scalar = MULS.fullmatch(product)
                if scalar is not None and x is not total and first.place == second.place:
                    text = f"Axpy({{d}}, {{0}}, {scalar[1]}, {{n}});"
                    return replace(second, text=text, sources=(x, total))
        return None

    return in_nests(items, change)
