"""A loop as instructions for one tile: what is done, in order, on which vectors.

`lanes` writes these items; `buffers` gives vectors their places, `tiles` writes the text.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from ruda.backends.ascend.vector.tables import BYTES
from ruda.errors import NOWHERE, Place
from ruda.jit.ir import Array, Expr, Statement, Variable


class Refused(Exception):
    """Why a loop cannot be one of the vector unit."""

    def __init__(self, why: str, place: Place = NOWHERE) -> None:
        super().__init__(why)
        self.why, self.place = why, place


# ---- values --------------------------------------------------------------------------------------


@dataclass(eq=False)
class Register:
    """A vector: a piece of the unified buffer that `buffers` chooses, or `tensor` where it must
    be a certain one."""

    type: str
    mask: bool = False
    tensor: str = ""
    fixed: bool = False  # written more than once: the place of a variable

    @property
    def pool(self) -> str:
        return "mask" if self.mask else self.type


@dataclass(frozen=True)
class Uniform:
    """The same in all lanes: an expression of the scalar unit."""

    text: str
    kind: str


@dataclass(frozen=True)
class Steps:
    """`base + step * lane`, an integer."""

    base: str
    step: int
    kind: str
    node: Expr  # what it is at the first lane: for the checks before a tile


@dataclass(frozen=True)
class Lanes:
    register: Register
    kind: str


Value = Uniform | Steps | Lanes


# ---- what is done, in order ----------------------------------------------------------------------


@dataclass(eq=False)
class Item:
    place: Place = field(default=NOWHERE, kw_only=True)
    position: int = field(default=0, kw_only=True)


@dataclass(eq=False)
class Instruction(Item):
    """`text` names the target {d}, sources {0}, {1}, and {n}, how many elements."""

    text: str
    target: Register | None
    sources: tuple[Register, ...]
    exact: bool = False  # {n} is the tile's own count, not rounded up
    in_place: bool = True  # the target may be a source


@dataclass(eq=False)
class Take(Instruction):
    """Elements of an array of the block, as a vector of their own."""

    array: str = ""
    view: str = ""


@dataclass(eq=False)
class CopyIn(Item):
    register: Register
    array: Array
    tensor: str
    index: str


@dataclass(eq=False)
class CopyOut(Item):
    register: Register
    array: Array
    tensor: str
    index: str
    atomic: str = ""


@dataclass(eq=False)
class Line(Item):
    text: str


@dataclass(eq=False)
class Nest(Item):
    """A loop or branch of the scalar unit around instructions."""

    head: str
    items: list[Any]
    otherwise: list[Any] | None = None
    end: int = 0


@dataclass(eq=False)
class Between(Item):
    """A statement between two loops over a row, in its own form: what has been loaded stays."""

    statement: Statement


def all_items(items: Sequence[Any]) -> Iterator[Any]:
    for item in items:
        yield item
        if isinstance(item, Nest):
            yield from all_items(item.items)
            yield from all_items(item.otherwise or ())


@dataclass
class Program:
    """A loop as instructions for one tile."""

    items: list[Any]
    checks: list[str]  # what must hold for a tile; where not, the scalar unit does it
    padded: bool  # instructions run over whole multiples of 256 bytes
    counts: bool  # there is a vector 0, 1, 2, ...
    reduces: bool
    local: bool  # arrays of the block are touched
    wide: int  # elements that comparisons take at once
    scalars: list[Variable]  # of the scalar unit, of the tile alone
    every: int = 1  # a tile is so many elements, or a multiple
    alias_safe: bool = False  # whether arrays may be one and the same


def uses(item: Any) -> set[Register]:
    """What an item reads or writes."""
    match item:
        case Instruction(target=target, sources=sources):
            return {*sources, *([target] if target is not None else [])}
        case CopyIn(register=r) | CopyOut(register=r):
            return {r}
        case Nest():
            return {r for i in all_items([item]) if i is not item for r in uses(i)}
    return set()


def moved(type_: str, to: str, source: str) -> str:
    """The same bits elsewhere: by an addition of 0 to integers, which changes none."""
    if BYTES[type_] == 8:
        cast, count, zero = "int32_t", "2 * {n}", "int32_t(0)"
    elif BYTES[type_] == 4:
        cast, count, zero = "int32_t", "{n}", "int32_t(0)"
    elif BYTES[type_] == 2:
        cast, count, zero = "int16_t", "{n}", "int16_t(0)"
    else:
        raise Refused("bytes are copied as they are")
    r = f".ReinterpretCast<{cast}>()"
    left, right = (t if type_ == cast else t + r for t in (to, source))
    return f"Adds({left}, {right}, {zero}, {count});"
