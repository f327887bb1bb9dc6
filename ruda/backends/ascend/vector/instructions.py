"""Instructions of the vector unit, one call each, written to the list of a tile.

`op` makes a vector of its own for what an instruction gives; the others are its shorter forms. A
number that is the same in all lanes becomes a scalar operand, or a vector by `in_lanes`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from ruda.backends.ascend.vector.program import (
    Instruction,
    Item,
    Lanes,
    Refused,
    Register,
    Steps,
    Uniform,
    Value,
    moved,
)
from ruda.backends.ascend.vector.tables import HELD, INTEGERS, ORDER
from ruda.dtypes import DType
from ruda.jit import ir
from ruda.jit.emit_python import bare
from ruda.jit.ir import Expr, For, Load, Read, Variable


class Instructions:
    """The items of a tile so far, and what they need of it."""

    def __init__(self, loop: For, fastmath: bool) -> None:
        self.fastmath = fastmath
        self.loop = loop
        self.items: list[Any] = []
        self.place = loop.place
        self.checks: list[str] = []
        self.counts: Register | None = None
        self.reduces = self.padded = self.local = False
        self.wide = 64
        self.definitions: dict[Variable, tuple[str, str, Expr]] = {}  # of steady scalars
        self.made: dict[Any, Lanes] = {}  # instruction -> what it gave, as long as that holds
        self.inverse: dict[Register, Lanes] = {}  # mask -> that of which it is the opposite
        self.rounded: dict[Register, Register] = {}  # float -> the bfloat16 that it is of
        self.assigned = {v for s in ir.statements(loop.body) for v in ir.written(s)}
        self.unsteady = self.assigned  # what a tile's checks cannot be made by

    def refuse(self, why: str) -> Refused:
        return Refused(why, self.place)

    def emit(self, item: Item) -> None:
        item.place = self.place
        self.items.append(item)

    def op(self, text: str, kind: str, *sources: Lanes | Register, mask: bool = False) -> Lanes:
        """An instruction with a target of its own, unless it was given before."""
        registers = tuple(s.register if isinstance(s, Lanes) else s for s in sources)
        key = (text, registers, kind, mask)
        if key in self.made:
            return self.made[key]
        found = Lanes(Register(HELD[kind], mask), kind)
        self.into(found.register, text, *sources)
        if not any(r.fixed for r in registers):
            self.made[key] = found
        return found

    def unmake(self, register: Register) -> None:
        """An instruction writes to another place now."""
        self.made = {k: v for k, v in self.made.items()
                     if v.register is not register and register not in k[1]}  # fmt: skip

    def into(self, target: Register, text: str, *sources: Lanes | Register) -> None:
        registers = tuple(s.register if isinstance(s, Lanes) else s for s in sources)
        self.emit(Instruction(text, target, registers))

    def simple(self, api: str, kind: str, *sources: Lanes, scalar: str = "") -> Lanes:
        operands = "".join(f", {{{k}}}" for k in range(len(sources)))
        extra = f", {scalar}" if scalar else ""
        return self.op(f"{api}({{d}}{operands}{extra}, {{n}});", kind, *sources)

    def cast_as(self, value: Lanes, kind: str, mode: str) -> Lanes:
        return self.op(f"Cast({{d}}, {{0}}, RoundMode::CAST_{mode}, {{n}});", kind, value)

    def fill(self, scalar: str, kind: str) -> Lanes:
        return self.op(f"Duplicate({{d}}, {scalar}, {{n}});", kind)

    def bitwise(self, api: str, kind: str, *sources: Lanes) -> Lanes:
        """And, Or, Not on int32: the instructions are of 16 bits."""
        operands = "".join(f", {{{k}}}.ReinterpretCast<uint16_t>()" for k in range(len(sources)))
        text = f"{api}({{d}}.ReinterpretCast<uint16_t>(){operands}, 2 * {{n}});"
        return self.op(text, kind, *sources)

    def logic(self, api: str, *sources: Lanes) -> Lanes:
        """The same on masks, a bit for each lane."""
        operands = "".join(f", {{{k}}}.ReinterpretCast<uint16_t>()" for k in range(len(sources)))
        text = f"{api}({{d}}.ReinterpretCast<uint16_t>(){operands}, {{n}} / 16);"
        if api != "Not" or sources[0].register.fixed:
            return self.op(text, "bool", *sources, mask=True)
        if sources[0].register in self.inverse:
            return self.inverse[sources[0].register]
        found = self.op(text, "bool", *sources, mask=True)
        self.inverse[found.register] = sources[0]
        return found

    def compare(self, name: str, a: Lanes, b: Lanes | str, kind: str) -> Lanes:
        """A mask from floats, or from equality of int32."""
        self.padded = True
        if kind == "f16":
            self.wide = 128
        mode = f"CMPMODE::{ORDER[name]}"
        if isinstance(b, str):
            text = f"CompareScalar({{d}}, {{0}}, {b}, {mode}, {{n}});"
            return self.op(text, "bool", a, mask=True)
        return self.op(f"Compare({{d}}, {{0}}, {{1}}, {mode}, {{n}});", "bool", a, b, mask=True)

    def copy(self, value: Lanes, target: Register | None = None) -> Register:
        """The same bits in another place."""
        if target is None:
            target = Register(value.register.type, value.register.mask)
        if value.register.mask:
            self.into(target, "Or({d}.ReinterpretCast<uint16_t>(), "
                      "{0}.ReinterpretCast<uint16_t>(), {0}.ReinterpretCast<uint16_t>(), "
                      "{n} / 16);", value)  # fmt: skip
        else:
            self.into(target, moved(value.register.type, "{d}", "{0}"), value)
        return target

    def scalar(self, value: Uniform, kind: str) -> str:
        """The text of a uniform value as a scalar operand of that kind."""
        text = bare(value.text)
        if kind == "f32" or kind == "bf16":
            return f"float({text})" if value.kind not in ("f32", "bf16") else text
        if kind == "f16":
            return f"half({text})"
        return text if value.kind == "i32" else f"int32_t({text})"

    def in_lanes(self, value: Value, kind: str) -> Lanes:
        """The value with one element a lane."""
        match value:
            case Lanes():
                return value
            case Uniform(text):
                if kind == "bool":
                    self.padded = True
                    bits = f"int16_t({text} ? -1 : 0)"
                    return self.op(f"Duplicate({{d}}.ReinterpretCast<int16_t>(), {bits}, "
                                   "{n} / 16);", "bool", mask=True)  # fmt: skip
                if kind not in HELD or kind == "i64":
                    raise self.refuse("dav-2201 has no vector arithmetic on 64-bit integers")
                return self.fill(self.scalar(value, kind), kind)
            case Steps(base, step):
                if kind not in INTEGERS and kind != "index":
                    raise self.refuse(f"a counting {kind}")
                if kind == "index":
                    self.check(f"ruda::narrow({self.outer(value)}, {step}, count)", value.node)
                if self.counts is None:
                    self.counts = Register("int32_t", tensor="numbers")
                found: Lanes = Lanes(self.counts, "i32")
                if step != 1:
                    found = self.simple("Muls", "i32", found, scalar=f"int32_t({step})")
                found = self.simple("Adds", "i32", found, scalar=f"int32_t({bare(base)})")
                return Lanes(found.register, "i32" if kind == "index" else kind)
        raise AssertionError(value)

    def outer(self, value: Steps) -> str:
        return bare(value.base)

    def before_the_tile(self, text: str, nodes: Iterable[Expr]) -> str:
        """A text with what the tile's scalars will be, where that is known."""
        for e in [e for node in nodes for e in ir.walk(node)]:
            match e:
                case Read(v) if v in self.unsteady - {self.loop.variable}:
                    if v not in self.definitions:
                        raise self.refuse(f"what is checked for a tile needs `{v.name}`")
                    name, value, node = self.definitions[v]
                    inner = self.before_the_tile(f"({value})", [node])
                    text = inner.join(re.split(rf"\b{re.escape(name)}\b", text))
                case Load():
                    raise self.refuse("what is checked for a tile is loaded")
        return text

    def check(self, text: str, *nodes: Expr) -> None:
        """A condition on tiles; it must be known before the tile's first instruction."""
        text = self.before_the_tile(text, nodes)
        if text not in self.checks:
            self.checks.append(text)

    def kind(self, dtype: DType) -> str:
        from ruda.backends.ascend.emit import kind_of

        return kind_of(dtype)

    def lanes(self, value: Value) -> Lanes:
        assert isinstance(value, Lanes)
        return value

    def in_32(self, value: Value) -> Value:
        """An index as int32, to be compared."""
        match value:
            case Uniform(text):
                if re.fullmatch(r"\d{1,9}", bare(text)):
                    return Uniform(bare(text), "i32")
                return Uniform(f"ruda::clamp32({bare(text)})", "i32")
            case Steps():
                return self.in_lanes(value, "index")
        return value
