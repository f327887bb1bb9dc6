"""Places in the unified buffer for what the tiles of a kernel hold.

What is in the buffer is known when the text is written: queues of two buffers for each copy so that
it overlaps with computing, and vectors that instructions leave; a place is used again when the last
use of what it held is over. The loops of a kernel share all of them, since one runs at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ruda.backends.ascend.vector.program import (
    CopyIn,
    CopyOut,
    Instruction,
    Item,
    Nest,
    Program,
    Refused,
    Register,
    all_items,
    uses,
)
from ruda.backends.ascend.vector.tables import BYTES
from ruda.jit.ir import Array, For

UNIFIED_BUFFER = 188160  # bytes: 192 K without what the system and the library keep
QUEUE_BUFFERS = 8  # of one position: there are events for so many
PREFIX = {
    "float": "f", "half": "h", "int32_t": "i", "int16_t": "s", "int8_t": "c", "uint8_t": "u",
    "bfloat16_t": "g", "int64_t": "l", "mask": "m",
}  # fmt: skip


@dataclass
class Pools:
    """What loops share of the unified buffer: as much as the largest of them needs."""

    copies_in: list[int] = field(default_factory=list)  # bytes of an element, for each queue
    copies_out: list[int] = field(default_factory=list)
    vectors: dict[str, int] = field(default_factory=dict)  # of each type
    numbers: bool = False
    reduces: bool = False

    def need(self, other: Pools) -> None:
        self.copies_in = largest(self.copies_in, other.copies_in)
        self.copies_out = largest(self.copies_out, other.copies_out)
        for pool, count in other.vectors.items():
            self.vectors[pool] = max(self.vectors.get(pool, 0), count)
        self.numbers |= other.numbers
        self.reduces |= other.reduces

    def depths(self) -> tuple[int, int]:
        """Buffers of each queue, in and out."""
        return tuple(2 if 2 * len(q) <= QUEUE_BUFFERS else 1  # type: ignore[return-value]
                     for q in (self.copies_in, self.copies_out))  # fmt: skip

    def bits(self) -> int:
        """Of one lane."""
        deep_in, deep_out = self.depths()
        total = 8 * (deep_in * sum(self.copies_in) + deep_out * sum(self.copies_out))
        for pool, count in self.vectors.items():
            total += count * (1 if pool == "mask" else 8 * BYTES[pool])
        return total + 32 * self.numbers + self.reduces


def largest(a: list[int], b: list[int]) -> list[int]:
    longer = max(len(a), len(b))
    a, b = a + [0] * (longer - len(a)), b + [0] * (longer - len(b))
    return [max(x, y) for x, y in zip(a, b, strict=True)]


@dataclass(frozen=True)
class Taken:
    """Places that a loop finds in use."""

    vectors: frozenset[str] = frozenset()
    copies_in: int = 0  # queues
    copies_out: int = 0


@dataclass
class Plan:
    """A loop of the vector unit, with places for what it holds."""

    loop: For
    program: Program
    at: str
    pools: Pools
    places: dict[Register, str]
    queues: dict[Any, str]  # CopyIn, CopyOut -> queue
    bound: dict[Register, CopyOut]  # vectors that are made where they are copied out from
    original: For | None = None  # what the loop was made of, if that are rounds of a block

    def in_use(self, item: Item) -> Taken:
        """What an item in the middle finds in use."""
        spans = lifetimes(self.program.items)
        live = {
            self.places[r] for r, (first, last) in spans.items() if first < item.position < last
        }
        return Taken(frozenset(live), *(
            len({q for q in self.queues.values() if q.startswith(way)}) for way in ("in", "out")
        ))  # fmt: skip


def places(
    s: For, program: Program, at: str, tile_name: Callable[[Array], str], taken: Taken = Taken()
) -> Plan:
    """Buffers for the program's vectors; those of one whose last use is over are used again."""
    number(program.items)
    spans = lifetimes(program.items)
    bound = bindings(program.items)
    names: dict[Register, str] = {}
    pools = Pools(numbers=program.counts, reduces=program.reduces)
    queues: dict[Any, str] = {}
    far = 1 << 40  # later than any item
    queue_ends = {"in": [far] * taken.copies_in, "out": [far] * taken.copies_out}
    free: dict[str, list[int]] = {}
    busy: list[tuple[int, str, int]] = []
    for item in all_items(program.items):
        for end, pool, k in [b for b in busy if b[0] < item.position or (
            b[0] == item.position and getattr(item, "in_place", False))]:  # fmt: skip
            busy.remove((end, pool, k))
            free.setdefault(pool, []).append(k)
        match item:
            case CopyIn(register=r, array=a):
                end = block_end(program.items, item, spans[r][1])
                queues[item] = queue("in", queue_ends["in"], item.position, end)
                widen(pools.copies_in, int(queues[item][2:]), BYTES[r.type])
                names[r] = tile_name(a)
            case CopyOut(register=r, array=a):
                first = item.position
                if r.tensor:
                    names.setdefault(r, r.tensor)
                if r in bound and bound[r] is item:
                    first = spans[r][0]
                queues[item] = queue("out", queue_ends["out"], first, item.position)
                widen(pools.copies_out, int(queues[item][3:]), BYTES[r.type])
                if r in bound and bound[r] is item:
                    names[r] = tile_name(a)
            case Instruction(target=r) if r is not None and r not in names:
                if r.tensor:
                    names[r] = r.tensor
                elif r not in bound:
                    pool = r.pool
                    stock = free.setdefault(pool, [])
                    if stock:
                        k = min(stock)
                        stock.remove(k)
                    else:
                        k = pools.vectors.get(pool, 0)
                        while f"{PREFIX[pool]}{k}" in taken.vectors:
                            k += 1
                        pools.vectors[pool] = k + 1
                    names[r] = f"{PREFIX[pool]}{k}"
                    busy.append((spans[r][1], pool, k))
        if isinstance(item, Instruction):
            for r in item.sources:
                if r.tensor:
                    names.setdefault(r, r.tensor)
    for which, sizes in (("in", pools.copies_in), ("out", pools.copies_out)):
        if len(sizes) > QUEUE_BUFFERS:
            raise Refused(f"{len(sizes)} copies {which} at a time; there are events for "
                          f"{QUEUE_BUFFERS}", s.place)  # fmt: skip
    return Plan(s, program, at, pools, names, queues, bound)


def queue(which: str, ends: list[int], first: int, last: int) -> str:
    for k, end in enumerate(ends):
        if end < first:
            ends[k] = last
            return f"{which}{k}"
    ends.append(last)
    return f"{which}{len(ends) - 1}"


def number(items: Sequence[Any], at: int = 0) -> int:
    for item in items:
        item.position = at
        at += 1
        if isinstance(item, Nest):
            at = number(item.items, at)
            at = number(item.otherwise or (), at)
            item.end = at
            at += 1
    return at


def lifetimes(items: Sequence[Any]) -> dict[Register, tuple[int, int]]:
    """First and last position of each vector; one that comes from outside of a loop stays until
    the loop ends."""
    spans: dict[Register, tuple[int, int]] = {}
    nests: list[Nest] = []

    def visit(block: Sequence[Any]) -> None:
        for item in block:
            if isinstance(item, Nest):
                nests.append(item)
                visit(item.items)
                visit(item.otherwise or ())
                nests.pop()
                continue
            for r in uses(item):
                first, last = spans.get(r, (item.position, item.position))
                end = item.position
                for nest in nests:
                    if first < nest.position:
                        end = max(end, nest.end)
                        break
                spans[r] = (first, max(last, end))

    visit(items)
    return spans


def block_end(items: Sequence[Any], copy: CopyIn, last: int) -> int:
    """Where the buffer of a copy is given back: after the item of its block that uses it last."""

    def find(block: Sequence[Any]) -> int | None:
        if any(item is copy for item in block):
            for item in reversed(block):
                if item.position <= last:
                    return item.end if isinstance(item, Nest) else int(item.position)
        for item in block:
            if isinstance(item, Nest):
                for inner in (item.items, item.otherwise or ()):
                    found = find(inner)
                    if found is not None:
                        return found
        return None

    return find(items) or last


def bindings(items: Sequence[Any]) -> dict[Register, CopyOut]:
    """Vectors that one instruction of a block makes, and that are copied out there once."""
    makers: dict[Register, int] = {}
    copied: dict[Register, int] = {}
    readers: dict[Register, int] = {}
    for item in all_items(items):
        if isinstance(item, Instruction):
            if item.target is not None:
                makers[item.target] = makers.get(item.target, 0) + 1
            for r in item.sources:
                readers[r] = max(readers.get(r, 0), item.position)
        if isinstance(item, CopyOut):
            copied[item.register] = copied.get(item.register, 0) + 1
    found: dict[Register, CopyOut] = {}

    def visit(block: Sequence[Any]) -> None:
        made: set[Register] = set()
        for item in block:
            match item:
                case Instruction(target=r) if r is not None:
                    made.add(r)
                case CopyOut(register=r) if r in made and not r.fixed and not r.tensor:
                    once = makers.get(r) == 1 and copied[r] == 1
                    if once and readers.get(r, 0) < item.position:
                        found[r] = item
                case Nest():
                    visit(item.items)
                    visit(item.otherwise or ())

    visit(items)
    return found


def widen(sizes: list[int], k: int, size: int) -> None:
    while len(sizes) <= k:
        sizes.append(0)
    sizes[k] = max(sizes[k], size)
