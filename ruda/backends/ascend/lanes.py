"""One loop of a kernel -> instructions of the vector unit: its rounds become lanes of a tile.

The loop's body is run symbolically. A value is the same for all rounds (`Uniform`, computed by the
scalar unit), counts with them (`Steps`), or lies in the unified buffer with one element a round
(`Lanes`). Loads and stores of neighbours become copies, a branch that rounds take differently
becomes compare and select, sums and extremes become reductions. What does not fit raises `Refused`
with the reason, and the loop stays one of the scalar unit.

Here the order of instructions is fixed, and what each reads and writes; `tiling` gives them
buffers and barriers.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ruda.dtypes import DType
from ruda.errors import NOWHERE, Place
from ruda.jit import ir
from ruda.jit.emit_python import bare
from ruda.jit.ir import (
    And,
    Array,
    Assign,
    Bitcast,
    Body,
    Cast,
    Const,
    Expr,
    Extent,
    For,
    If,
    Load,
    Op,
    Or,
    Read,
    Select,
    Statement,
    Store,
    Variable,
)  # fmt: skip

if TYPE_CHECKING:
    from ruda.backends.ascend.tiling import VectorEmitter

# kind of a number -> what a vector of them is made of. Small integers are held in int32, bfloat16
# in float, bool as bits of a mask.
HELD = {
    "f32": "float", "f16": "half", "bf16": "float", "i8": "int32_t", "u8": "int32_t",
    "i16": "int32_t", "u16": "int32_t", "i32": "int32_t", "u32": "int32_t", "i64": "int64_t",
    "bool": "uint8_t",
}  # fmt: skip
# What they are copied as.
MEMORY = {
    "f32": "float", "f16": "half", "bf16": "bfloat16_t", "i8": "int8_t", "u8": "uint8_t",
    "i16": "int16_t", "u16": "int16_t", "i32": "int32_t", "u32": "int32_t", "i64": "int64_t",
    "bool": "uint8_t",
}  # fmt: skip
BYTES = {
    "float": 4, "half": 2, "bfloat16_t": 2, "int8_t": 1, "uint8_t": 1, "int16_t": 2, "int32_t": 4,
    "int64_t": 8,
}  # fmt: skip
INTEGERS = ("i8", "u8", "i16", "u16", "i32", "u32")
FLOATS = ("f32", "f16", "bf16")
ORDER = {"lt": "LT", "le": "LE", "gt": "GT", "ge": "GE", "eq": "EQ", "ne": "NE"}
MIRROR = {"lt": "gt", "le": "ge", "gt": "lt", "ge": "le", "eq": "eq", "ne": "ne"}
TWO = {"add": "Add", "sub": "Sub", "mul": "Mul", "min": "Min", "max": "Max", "truediv": "Div"}
ONE = {"sqrt": "Sqrt", "exp": "Exp", "log": "Ln", "abs": "Abs"}
ROUNDING = {"floor": "FLOOR", "ceil": "CEIL", "trunc": "TRUNC", "rint": "RINT"}
SUMS = {"add": "ReduceSum", "max": "ReduceMax", "min": "ReduceMin"}


class Refused(Exception):
    """Why a loop cannot be one of the vector unit."""

    def __init__(self, why: str, place: Place = NOWHERE) -> None:
        super().__init__(why)
        self.why, self.place = why, place


# ---- values --------------------------------------------------------------------------------------


@dataclass(eq=False)
class Register:
    """A vector: a piece of the unified buffer that `tiling` chooses, or `tensor` where it must
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


# ---- translation ---------------------------------------------------------------------------------


class Translator:
    """Runs the body of one loop symbolically; `run` gives its program."""

    def __init__(self, emitter: VectorEmitter, loop: For, parallel: bool, at: str) -> None:
        self.emitter, self.loop, self.parallel, self.at = emitter, loop, parallel, at
        self.items: list[Any] = []
        self.place = loop.place
        self.mask: Lanes | None = None
        self.values: dict[Variable, Value] = {}
        self.known: dict[Any, Value] = {}  # element -> its value now
        self.stores: dict[Any, tuple[Array, str, Place]] = {}  # what the block has to copy out
        self.checks: list[str] = []
        self.counts: Register | None = None
        self.reduces = self.padded = self.local = False
        self.wide = 64
        self.depth = 0
        self.assigned = {v for s in ir.statements(loop.body) for v in ir.written(s)}
        self.varying = self.find_varying()
        self.reductions = self.find_reductions()
        self.stored = {
            s.array.name for s in ir.statements(loop.body) if isinstance(s, (Store, ir.Atomic))
        }
        self.keys: dict[str, set[Any]] = {}
        self.stored_before: dict[str, Any] = {}

    def refuse(self, why: str) -> Refused:
        return Refused(why, self.place)

    def run(self) -> Program:
        s = self.loop
        if not (isinstance(s.step, Const) and s.step.value == 1):
            raise self.refuse("the loop does not go up by one")
        for inner in ir.statements(s.body):
            if not isinstance(inner, (Assign, Store, If, For, ir.Atomic, ir.Breakpoint)):
                self.place = inner.place
                name = type(inner).__name__.lower()
                raise self.refuse(f"there is a {name} statement in it")
        self.carried()
        self.block(s.body)
        self.flush()
        if not any(isinstance(i, (CopyIn, CopyOut, Instruction)) for i in all_items(self.items)):
            raise self.refuse("it has nothing for the vector unit")
        loops = {s.variable for s in ir.statements(s.body) if isinstance(s, For)}
        scalars = self.assigned - self.varying - set(self.reductions) - loops
        return Program(self.items, self.checks, self.padded, self.counts is not None,
                       self.reduces, self.local, self.wide,
                       sorted(scalars, key=lambda v: v.name))  # fmt: skip

    # ---- what differs between lanes

    def find_varying(self) -> set[Variable]:
        found = {self.loop.variable}

        def visit(body: Body, varies: bool) -> None:
            for s in body:
                match s:
                    case Assign(variable, value):
                        if varies or self.differs(value, found):
                            found.add(variable)
                    case If(condition, then, otherwise):
                        inner = varies or self.differs(condition, found)
                        visit(then, inner)
                        visit(otherwise, inner)
                    case For():
                        if any(self.differs(e, found) for e in (s.start, s.stop, s.step)):
                            raise Refused("a loop in it has other bounds in each round", s.place)
                        if varies:
                            raise Refused("a loop in it runs in some rounds only", s.place)
                        visit(s.body, varies)

        size = -1
        while len(found) != size:
            size = len(found)
            visit(self.loop.body, False)
        return found

    def differs(self, e: Expr, varying: set[Variable] | None = None) -> bool:
        found = self.varying if varying is None else varying
        return any(isinstance(x, Read) and x.variable in found for x in ir.walk(e))

    def carried(self) -> None:
        """Nothing may go from round to round, or out of the loop, but sums and extremes."""
        from ruda.jit.passes.exposure import exposed

        carried = (exposed(self.loop.body) & self.assigned) - set(self.reductions)
        if carried:
            names = ", ".join(f"`{v.name}`" for v in sorted(carried, key=lambda v: v.name))
            raise self.refuse(f"{names} goes from one round to the next")
        outside = self.emitter.reads_outside(self.loop, self.parallel)
        for v in self.assigned - set(self.reductions) - {self.loop.variable}:
            if v in outside:
                raise self.refuse(f"`{v.name}` is read after the loop")

    def find_reductions(self) -> dict[Variable, tuple[str, Expr]]:
        """Variables that are only added to, or the extreme of what was seen."""
        if self.parallel:
            return {}
        reads: dict[Variable, int] = {}
        for e in ir.all_expressions(self.loop.body):
            if isinstance(e, Read):
                reads[e.variable] = reads.get(e.variable, 0) + 1
        writes: dict[Variable, int] = {}
        for s in ir.statements(self.loop.body):
            for v in ir.written(s):
                writes[v] = writes.get(v, 0) + 1
        found = {}
        for s in ir.statements(self.loop.body):
            match s:
                case Assign(v, Op(name, (Read(a), e))) | Assign(v, Op(name, (e, Read(a)))) if (
                    v == a and name in SUMS and reads[v] == 1 and writes[v] == 1
                    and v in self.varying
                ):  # fmt: skip
                    if name == "add" and not self.emitter.function.contract:
                        continue  # the order of a sum is the user's
                    if v.dtype.short == "f32":
                        found[v] = (name, e)
        return found

    # ---- instructions

    def emit(self, item: Item) -> None:
        item.place = self.place
        self.items.append(item)

    def op(self, text: str, kind: str, *sources: Lanes | Register, mask: bool = False) -> Lanes:
        """An instruction with a target of its own."""
        target = Register(HELD[kind], mask)
        self.into(target, text, *sources)
        return Lanes(target, kind)

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
        return self.op(text, "bool", *sources, mask=True)

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

    # ---- scalars

    def scalar(self, value: Uniform, kind: str) -> str:
        """The text of a uniform value as a scalar operand of that kind."""
        text = bare(value.text)
        if kind == "f32" or kind == "bf16":
            return f"float({text})" if value.kind not in ("f32", "bf16") else text
        if kind == "f16":
            return f"half({text})"
        return f"int32_t({text})"

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

    def check(self, text: str, *nodes: Expr) -> None:
        """A condition on tiles; it must be known before the tile's first instruction."""
        for node in nodes:
            for e in ir.walk(node):
                if isinstance(e, Read) and e.variable in self.assigned - {self.loop.variable}:
                    raise self.refuse(f"what is checked for a tile needs `{e.variable.name}`")
                if isinstance(e, Load):
                    raise self.refuse("what is checked for a tile is loaded")
        if text not in self.checks:
            self.checks.append(text)

    # ---- expressions

    def value(self, e: Expr) -> Value:
        if not self.differs(e):
            if self.mask is not None and any(isinstance(x, Load) for x in ir.walk(e)):
                raise self.refuse("an element is loaded in some rounds only")
            self.watch(e)
            term = self.emitter.expression(e)
            return Uniform(term.text, term.kind)
        match e:
            case Read(variable):
                return self.read(variable)
            case Op(name, operands):
                return self.operation(e, name, operands)
            case Cast(value, dtype):
                return self.cast(self.value(value), value.dtype, dtype)
            case Bitcast(value, dtype):
                return self.bitcast(self.value(value), dtype)
            case Select(condition, then, otherwise):
                c, a, b = (self.value(x) for x in (condition, then, otherwise))
                return self.select(c, a, b, self.kind(e.dtype))
            case And(left, right) | Or(left, right):
                return self.lazy(e, left, right)
            case Load():
                return self.load(e)
        raise self.refuse(f"the vector unit has no {type(e).__name__.lower()}")

    def watch(self, e: Expr) -> None:
        """Loads that are the same in all lanes must not see what the loop stores."""
        for x in ir.walk(e):
            if isinstance(x, Load) and x.array.name in self.stored:
                raise self.refuse(f"`{x.array.name}` is stored to and read at one place by all")
            if isinstance(x, Load) and x.array.name in self.emitter.local_tensors:
                self.local = True

    def kind(self, dtype: DType) -> str:
        from ruda.backends.ascend.emit import kind_of

        return kind_of(dtype)

    def read(self, v: Variable) -> Value:
        if v == self.loop.variable:
            return Steps(self.at, 1, "i64", Read(v))
        if v not in self.values:
            raise self.refuse(f"`{v.name}` has no value yet in every round")
        return self.values[v]

    def operation(self, e: Op, name: str, operands: Sequence[Expr]) -> Value:
        dtype = operands[0].dtype
        kind = self.kind(dtype)
        if name == "uniform":
            return self.value(operands[0])
        values = [self.value(o) for o in operands]
        if name == "wrap":
            return self.wrapped(values, operands)
        if name == "within":
            return values[0]
        if dtype.name == "index" or kind == "i64":
            return self.counting(e, name, values, dtype)
        if kind in INTEGERS and any(isinstance(v, Steps) for v in values) and name in (
            "add", "sub", "mul"
        ):  # fmt: skip
            found = self.stepped(e, name, values, kind)
            if found is not None:
                return found
        if name in ORDER:
            return self.comparison(name, values, kind)
        if kind == "bool":
            return self.of_masks(name, values)
        if kind in FLOATS:
            return self.floating(name, values, kind)
        if kind in INTEGERS:
            return self.integer(name, values, kind, operands)
        raise self.refuse(f"dav-2201 has no vector arithmetic on {dtype.name}")

    # ---- integers that count

    def wrapped(self, values: list[Value], operands: Sequence[Expr]) -> Value:
        i = values[0]
        if not isinstance(i, Steps):
            raise self.refuse("an index may be negative, and differs between rounds")
        self.check(f"{self.outer(i)} >= 0", i.node)
        if i.step < 0:
            raise self.refuse("elements are visited backwards")
        return i

    def stepped(self, e: Op, name: str, values: list[Value], kind: str) -> Steps | None:
        match name, values:
            case "add", [Steps() as a, Uniform() as b]:
                return Steps(f"({a.base} + {b.text})", a.step, kind, e)
            case "add", [Uniform() as b, Steps() as a]:
                return Steps(f"({b.text} + {a.base})", a.step, kind, e)
            case "add", [Steps() as a, Steps() as b]:
                return Steps(f"({a.base} + {b.base})", a.step + b.step, kind, e)
            case "sub", [Steps() as a, Uniform() as b]:
                return Steps(f"({a.base} - {b.text})", a.step, kind, e)
            case "sub", [Uniform() as b, Steps() as a]:
                return Steps(f"({b.text} - {a.base})", -a.step, kind, e)
            case "sub", [Steps() as a, Steps() as b]:
                return Steps(f"({a.base} - {b.base})", a.step - b.step, kind, e)
            case "mul", [Steps() as a, Uniform() as b]:
                return self.scaled(e, a, b, e.operands[1], kind)
            case "mul", [Uniform() as b, Steps() as a]:
                return self.scaled(e, a, b, e.operands[0], kind)
        return None

    def scaled(self, e: Op, a: Steps, b: Uniform, factor: Expr, kind: str) -> Steps | None:
        if not isinstance(factor, Const) or abs(a.step * int(factor.value)) > 1 << 20:
            return None
        return Steps(f"({a.base} * {b.text})", a.step * int(factor.value), kind, e)

    def counting(self, e: Op, name: str, values: list[Value], dtype: DType) -> Value:
        """Arithmetic on indices: exact in 64 bits, in lanes only where 32 are enough."""
        if name in ("add", "sub", "mul"):
            steps = self.stepped(e, name, values, "i64")
            if steps is not None:
                return steps
            raise self.refuse(f"dav-2201 has no vector {name} on 64-bit integers")
        if any(isinstance(v, Lanes) and v.kind == "i64" for v in values):
            raise self.refuse("dav-2201 has no vector arithmetic on 64-bit integers")
        if name in ORDER:
            return self.comparison(name, [self.in_32(v) for v in values], "i32")
        if name in ("floordiv", "mod") and isinstance(values[1], Uniform):
            divisor = e.operands[1]
            if isinstance(divisor, Const) and 0 < int(divisor.value) < 1 << 31:
                lanes: list[Value] = [
                    self.in_lanes(values[0], "index"), Uniform(values[1].text, "i32")
                ]  # fmt: skip
                found = self.integer(name, lanes, "i32", e.operands)
                return Lanes(found.register, "index") if isinstance(found, Lanes) else found
        if name in ("min", "max"):
            found = self.integer(name, [self.in_32(v) for v in values], "i32", e.operands)
            assert isinstance(found, Lanes)
            return Lanes(found.register, "index")
        raise self.refuse(f"dav-2201 has no vector {name} on 64-bit integers")

    def in_32(self, value: Value) -> Value:
        """An index as int32, to be compared."""
        match value:
            case Uniform(text):
                return Uniform(f"ruda::clamp32({bare(text)})", "i32")
            case Steps():
                return self.in_lanes(value, "index")
        return value

    # ---- masks

    def comparison(self, name: str, values: list[Value], kind: str) -> Value:
        a, b = values
        if not isinstance(a, Lanes) and isinstance(b, Lanes):
            return self.comparison(MIRROR[name], [b, a], kind)
        if kind == "bool":
            return self.of_masks(name, values)
        if isinstance(a, Steps):
            a = self.in_lanes(a, kind)
        if isinstance(b, Steps):
            b = self.in_lanes(b, kind)
        assert isinstance(a, Lanes)
        if kind in FLOATS:
            held = "f16" if kind == "f16" else "f32"
            other = self.scalar(b, kind) if isinstance(b, Uniform) else b
            return self.compare(name, a, other, held)
        if kind == "u32":
            a, b = self.flipped(a), self.flipped(b)
        # int32 is compared for equality alone: a <= b is max(a, b) == b, and so on.
        if name in ("eq", "ne"):
            found = self.compare("eq", a, self.scalar(b, "i32") if isinstance(b, Uniform) else b,
                                 "i32")  # fmt: skip
            return self.logic("Not", found) if name == "ne" else found
        api = "Max" if name in ("le", "gt") else "Min"
        extreme = self.with_scalar(api, a, b, "i32")
        found = self.compare(
            "eq", extreme, self.scalar(b, "i32") if isinstance(b, Uniform) else b, "i32"
        )
        # le: max(a, b) == b; ge: min(a, b) == b; gt and lt are their negations
        return found if name in ("le", "ge") else self.logic("Not", found)

    def flipped(self, value: Value) -> Any:
        """Unsigned numbers as signed ones in the same order."""
        if isinstance(value, Uniform):
            return Uniform(f"(uint32_t({value.text}) ^ 2147483648u)", "i32")
        lanes = self.in_lanes(value, "u32")
        return self.simple("Adds", "i32", lanes, scalar="int32_t(-2147483647 - 1)")

    def with_scalar(self, api: str, a: Lanes, b: Value, kind: str) -> Lanes:
        if isinstance(b, Uniform):
            return self.simple(f"{api}s", kind, a, scalar=self.scalar(b, kind))
        return self.simple(api, kind, a, self.in_lanes(b, kind))

    def of_masks(self, name: str, values: list[Value]) -> Value:
        x = [self.in_lanes(v, "bool") for v in values]
        match name:
            case "not" | "invert":
                return self.logic("Not", x[0])
            case "and" | "min":
                return self.logic("And", *x)
            case "or" | "max":
                return self.logic("Or", *x)
            case "xor" | "ne":
                either, both = self.logic("Or", *x), self.logic("And", *x)
                return self.logic("And", either, self.logic("Not", both))
            case "eq":
                return self.logic("Not", self.lanes(self.of_masks("xor", list(x))))
        raise self.refuse(f"the vector unit has no {name} of bool")

    def lanes(self, value: Value) -> Lanes:
        assert isinstance(value, Lanes)
        return value

    def lazy(self, e: And | Or, left: Expr, right: Expr) -> Value:
        a = self.value(left)
        if any(isinstance(x, Load) for x in ir.walk(right)):
            mask = self.in_lanes(a, "bool")
            with_mask = mask if isinstance(e, And) else self.logic("Not", mask)
            before = self.mask
            self.mask = with_mask if before is None else self.logic("And", before, with_mask)
            b = self.value(right)
            self.mask = before
        else:
            b = self.value(right)
        return self.of_masks("and" if isinstance(e, And) else "or", [a, b])

    def select(self, c: Value, a: Value, b: Value, kind: str) -> Value:
        if kind in ("i64", "index") and not all(isinstance(v, Lanes) for v in (a, b)):
            a, b = (self.in_32(v) if not isinstance(v, Lanes) else v for v in (a, b))
            kind = "i32"
            found = self.select(c, a, b, kind)
            return Lanes(self.lanes(found).register, "index")
        if isinstance(c, Uniform):
            x, y = self.in_lanes(a, kind), self.in_lanes(b, kind)
            c = self.in_lanes(c, "bool")
        mask = self.in_lanes(c, "bool")
        if kind == "bool":
            x, y = self.in_lanes(a, kind), self.in_lanes(b, kind)
            return self.logic(
                "Or", self.logic("And", mask, x), self.logic("And", self.logic("Not", mask), y)
            )
        self.padded = True
        x = self.in_lanes(a, kind)
        if x.register.type not in ("float", "half", "int32_t"):
            raise self.refuse(f"dav-2201 has no select on {kind}")
        if kind in FLOATS and isinstance(b, Uniform):
            text = (f"Select({{d}}, {{0}}, {{1}}, {self.scalar(b, kind)}, "
                    "SELMODE::VSEL_TENSOR_SCALAR_MODE, {n});")  # fmt: skip
            return self.op(text, kind, mask, x)
        y = self.in_lanes(b, kind)
        r = ".ReinterpretCast<float>()" if x.register.type == "int32_t" else ""
        text = (f"Select({{d}}{r}, {{0}}, {{1}}{r}, {{2}}{r}, SELMODE::VSEL_TENSOR_TENSOR_MODE, "
                "{n});")  # fmt: skip
        return self.op(text, kind, mask, x, y)

    # ---- floats

    def floating(self, name: str, values: list[Value], kind: str) -> Value:
        if kind == "bf16":
            found = self.floating(name, values, "f32")
            if isinstance(found, Lanes) and found.kind == "f32":
                return self.round_bf16(found)
            return found
        if name in ("fmin", "fmax", "fma", "pow", "floordiv", "mod"):
            raise self.refuse(f"the vector unit has no {name}")
        if name in TWO:
            return self.two(name, values, kind)
        x = self.in_lanes(values[0], kind)
        if name == "neg":
            return self.simple("Muls", kind, x, scalar="half(-1.0f)" if kind == "f16" else "-1.0f")
        if name == "isnan":
            return self.compare("ne", x, x, kind)
        if name in ("isinf", "isfinite"):
            infinite = "ruda::bits<float>(0x7f800000u)"
            scalar = f"half({infinite})" if kind == "f16" else infinite
            size = self.simple("Abs", kind, x)
            return self.compare("eq" if name == "isinf" else "lt", size, scalar, kind)
        if kind == "f16" and name != "abs":
            wide = self.floating(name, [self.cast_as(x, "f32", "NONE")], "f32")
            return self.cast_as(self.lanes(wide), "f16", "RINT")
        if name in ONE:
            return self.simple(ONE[name], kind, x)
        if name in ROUNDING:
            return self.cast_as(x, "f32", ROUNDING[name])
        if name == "rsqrt":
            return self.two("truediv", [Uniform("1.0f", "f32"), self.simple("Sqrt", "f32", x)],
                            kind)  # fmt: skip
        composed: dict[str, Callable[[Lanes], Lanes]] = {
            "tanh": self.tanh, "log2": self.log2, "log10": self.log10,
        }  # fmt: skip
        if name in composed:
            return composed[name](x)
        raise self.refuse(f"the vector unit has no {name}")

    def two(self, name: str, values: list[Value], kind: str) -> Lanes:
        a, b = values
        api = TWO[name]
        match name, a, b:
            case "add" | "mul" | "min" | "max", Uniform(), Lanes():
                return self.with_scalar(api, b, a, kind)
            case "add" | "mul" | "min" | "max", Lanes(), Uniform():
                return self.with_scalar(api, a, b, kind)
            case "sub", Lanes(), Uniform():
                scalar = f"-({self.scalar(b, 'f32')})"
                return self.simple("Adds", kind, a, scalar=self.scalar(Uniform(scalar, "f32"),
                                                                        kind))  # fmt: skip
            case "sub", Uniform(), Lanes():
                minus = self.simple("Muls", kind, b, scalar=self.scalar(Uniform("-1.0f", "f32"),
                                                                         kind))  # fmt: skip
                return self.with_scalar("Add", minus, a, kind)
        return self.simple(api, kind, self.in_lanes(a, kind), self.in_lanes(b, kind))

    def round_bf16(self, x: Lanes) -> Lanes:
        short = self.op("Cast({d}, {0}, RoundMode::CAST_RINT, {n});", "bf16", x)
        short.register.type = "bfloat16_t"
        return Lanes(self.cast_as(short, "f32", "NONE").register, "bf16")

    def log2(self, x: Lanes) -> Lanes:
        return self.simple("Muls", "f32", self.simple("Ln", "f32", x), scalar="1.44269504f")

    def log10(self, x: Lanes) -> Lanes:
        return self.simple("Muls", "f32", self.simple("Ln", "f32", x), scalar="0.434294482f")

    def tanh(self, x: Lanes) -> Lanes:
        """(1 - e) / (1 + e) with e = exp(-2 |x|), and near 0 an odd polynomial."""
        size = self.simple("Abs", "f32", x)
        e = self.simple("Exp", "f32", self.simple("Muls", "f32", size, scalar="-2.0f"))
        top = self.two("sub", [Uniform("1.0f", "f32"), e], "f32")
        far = self.simple("Div", "f32", top, self.simple("Adds", "f32", e, scalar="1.0f"))
        square = self.simple("Mul", "f32", x, x)
        p = self.fill(f"{TANH[0]}f", "f32")
        for c in TANH[1:]:
            p = self.simple("Adds", "f32", self.simple("Mul", "f32", p, square), scalar=f"{c}f")
        near = self.simple("Mul", "f32", self.simple("Mul", "f32", p, square), size)
        near = self.simple("Add", "f32", near, size)
        mask = self.compare("lt", size, "0.625f", "f32")
        found = self.lanes(self.select(mask, near, far, "f32"))
        return self.signed_as(found, x)

    def signed_as(self, x: Lanes, y: Lanes) -> Lanes:
        """The size of x, which is not negative, with the sign of y."""
        low = self.fill("int32_t(-2147483647 - 1)", "i32")
        sign = self.bitwise("And", "i32", y, low)
        found = self.bitwise("Or", "f32", x, sign)
        return found

    # ---- integers

    def integer(self, name: str, values: list[Value], kind: str, operands: Sequence[Expr]) -> Value:
        a, b = values[0], values[-1]
        match name:
            case "add" | "mul":
                if isinstance(a, Uniform):
                    a, b = b, a
                return self.narrowed(
                    self.with_scalar(TWO[name], self.in_lanes(a, kind), b, "i32"), kind
                )
            case "min" | "max":
                if isinstance(a, Uniform):
                    a, b = b, a
                if kind == "u32":
                    found = self.with_scalar(TWO[name], self.flipped(a), self.flipped(b), "i32")
                    return Lanes(self.flipped(Lanes(found.register, "u32")).register, "u32")
                return Lanes(
                    self.with_scalar(TWO[name], self.in_lanes(a, kind), b, "i32").register, kind
                )
            case "sub":
                if isinstance(b, Uniform):
                    scalar = f"ruda::neg<int32_t>(int32_t({bare(b.text)}))"
                    found = self.simple("Adds", "i32", self.in_lanes(a, kind), scalar=scalar)
                    return self.narrowed(found, kind)
                found = self.simple(
                    "Sub",
                    "i32",
                    self.in_lanes(a, kind),
                    self.in_lanes(b, kind),
                )
                return self.narrowed(found, kind)
            case "neg":
                found = self.simple("Muls", "i32", self.in_lanes(a, kind), scalar="int32_t(-1)")
                return self.narrowed(found, kind)
            case "abs":
                x = self.in_lanes(a, kind)
                if kind[0] == "u":
                    return x
                minus = self.simple("Muls", "i32", x, scalar="int32_t(-1)")
                return self.narrowed(self.simple("Max", "i32", x, minus), kind)
            case "and" | "or" | "xor":
                x, y = self.in_lanes(a, kind), self.in_lanes(b, kind)
                if name != "xor":
                    return self.bitwise(name.capitalize(), kind, x, y)
                either, both = self.bitwise("Or", kind, x, y), self.bitwise("And", kind, x, y)
                return self.bitwise("And", kind, either, self.bitwise("Not", kind, both))
            case "invert":
                found = self.bitwise("Not", kind, self.in_lanes(a, kind))
                return self.narrowed(found, kind)
            case "shl" | "shr":
                return self.shifted(name, self.in_lanes(a, kind), operands[1], kind)
            case "floordiv" | "mod" if kind != "u32":
                return self.divided(name, a, b, kind)
        raise self.refuse(f"dav-2201 has no vector {name} on {operands[0].dtype.name}")

    def narrowed(self, x: Lanes, kind: str) -> Lanes:
        """A small integer that may have left its range, wrapped."""
        bits = int(kind[1:])
        if bits == 32:
            return Lanes(x.register, kind)
        return self.wrap_to(x, kind)

    def wrap_to(self, x: Lanes, kind: str) -> Lanes:
        shift = 32 - int(kind[1:])
        left = self.simple("ShiftLeft", "i32", x, scalar=f"int32_t({shift})")
        if kind[0] == "i":
            found = self.simple("ShiftRight", "i32", left, scalar=f"int32_t({shift})")
        else:
            found = self.shift_unsigned(left, shift)  # fmt: skip
        return Lanes(found.register, kind)

    def shift_unsigned(self, x: Lanes, n: int) -> Lanes:
        r = ".ReinterpretCast<uint32_t>()"
        return self.op(f"ShiftRight({{d}}{r}, {{0}}{r}, uint32_t({n}), {{n}});", "i32", x)

    def shifted(self, name: str, x: Lanes, by: Expr, kind: str) -> Lanes:
        if not isinstance(by, Const):
            raise self.refuse("the vector unit shifts by constants alone")
        n, bits = int(by.value), int(kind[1:])
        if name == "shl":
            if not 0 <= n < bits:
                return self.fill("int32_t(0)", kind)
            found = self.simple("ShiftLeft", "i32", x, scalar=f"int32_t({n})")
            return self.narrowed(found, kind)
        if kind[0] == "i":
            n = n if 0 <= n < bits else bits - 1
            found = self.simple("ShiftRight", "i32", x, scalar=f"int32_t({n})")
        elif not 0 <= n < bits:
            return self.fill("int32_t(0)", kind)
        else:
            found = self.shift_unsigned(x, n)  # fmt: skip
        return Lanes(found.register, kind)

    def divided(self, name: str, a: Value, b: Value, kind: str) -> Lanes:
        """Floor division of int32, for which there is no instruction.

        The quotient in float is off by as much as 2**8; what it leaves is divided again. After
        the third time the quotient can only be one too large (where the rest was so near to the
        divisor that float took it for 1), and the last division has only its sign to tell.
        """
        x, y = self.in_lanes(a, kind), self.in_lanes(b, kind)
        divisor = self.cast_as(y, "f32", "NONE")
        rest, quotient = x, None
        for last in (False, False, False, True):
            ratio = self.simple("Div", "f32", self.cast_as(rest, "f32", "NONE"), divisor)
            part = self.cast_as(ratio, "i32", "FLOOR")
            if last:
                part = self.simple("Mins", "i32", part, scalar="int32_t(0)")
            quotient = part if quotient is None else self.simple("Add", "i32", quotient, part)
            rest = self.simple("Sub", "i32", rest, self.simple("Mul", "i32", part, y))
        found = quotient if name == "floordiv" else rest
        assert found is not None
        constant = isinstance(b, Uniform) and re.fullmatch(r"\(?-?[1-9]\d*u?\)?", b.text)
        if not constant:  # x // 0 and x % 0 are 0
            zero = self.compare("eq", y, "int32_t(0)", "i32")
            nothing = Uniform("0", kind)
            found = self.lanes(self.select(zero, self.in_lanes(nothing, kind), found, kind))
        return self.narrowed(found, kind)

    # ---- conversions

    def cast(self, value: Value, source: DType, target: DType) -> Value:
        kind, to = self.kind(source), self.kind(target)
        if target.name == "index" and kind in (*INTEGERS, "i64"):
            to = "i64"
        if isinstance(value, Uniform):
            return value
        if isinstance(value, Steps):
            if to == "i64" or (to in INTEGERS and int(to[1:]) == 32):
                return Steps(value.base, value.step, to, value.node)
            if to in INTEGERS:
                return self.wrap_to(self.in_lanes(Steps(value.base, value.step, "i32",
                                                        value.node), "i32"), to)  # fmt: skip
            exact = "index" if kind == "i64" else kind
            return self.cast_lanes(
                self.in_lanes(value, exact), "i32" if kind == "i64" else kind, to
            )
        if value.kind == "index":  # lanes of int32 whose numbers are indices
            if to == "i64":
                return value
            return self.cast_lanes(Lanes(value.register, "i32"), "i32", to)
        if to == "i64" and kind in INTEGERS and kind != "u32":
            if target.name == "index":
                return Lanes(value.register, "index")
            return Lanes(self.cast_as(value, "i64", "NONE").register, "i64")
        return self.cast_lanes(value, kind, to)

    def cast_lanes(self, x: Lanes, kind: str, to: str) -> Lanes:
        if kind == to:
            return x
        if to == "bool":
            if kind in FLOATS:
                zero = "half(0.0f)" if kind == "f16" else "0.0f"
                return self.compare("ne", x, zero, "f16" if kind == "f16" else "f32")
            if kind in INTEGERS:
                return self.logic("Not", self.compare("eq", x, "int32_t(0)", "i32"))
        if kind == "bool":
            self.padded = True
            if to in INTEGERS:
                ones = self.fill("int32_t(1)", "i32")
                return self.lanes(self.select(x, ones, Uniform("0", "i32"), to))
            if to in FLOATS:
                held = "f16" if to == "f16" else "f32"
                ones = self.fill("half(1.0f)" if to == "f16" else "1.0f", held)
                found = self.lanes(self.select(x, ones, Uniform("0.0f", "f32"), held))
                return Lanes(found.register, to)
        if kind in INTEGERS and to in INTEGERS:
            low, high = limits(kind)
            first, last = limits(to)
            if to == "u32" or (first <= low and high <= last):
                return Lanes(x.register, to)
            if int(to[1:]) == 32:
                return Lanes(x.register, to)
            return self.wrap_to(x, to)
        if kind in INTEGERS and to in FLOATS:
            return self.float_of(x, kind, to)
        if kind in FLOATS and to in INTEGERS:
            return self.int_of(x, kind, to)
        if kind in FLOATS and to in FLOATS:
            return self.float_to_float(x, kind, to)
        if kind == "i64" and to == "f32":
            return self.cast_as(x, "f32", "RINT")
        raise self.refuse(f"dav-2201 has no vector conversion from {kind} to {to}")

    def float_to_float(self, x: Lanes, kind: str, to: str) -> Lanes:
        if kind == "bf16":
            x = Lanes(x.register, "f32")
        elif kind == "f16":
            x = self.cast_as(x, "f32", "NONE")
        if to == "f32":
            return x
        return self.cast_as(x, "f16", "RINT") if to == "f16" else self.round_bf16(x)

    def float_of(self, x: Lanes, kind: str, to: str) -> Lanes:
        if kind == "u32":
            high = self.shift_unsigned(x, 16)
            low = self.wrap_to(x, "u16")
            top = self.simple("Muls", "f32", self.cast_as(high, "f32", "NONE"), scalar="65536.0f")
            if to != "f32":
                raise self.refuse(f"dav-2201 has no vector conversion from {kind} to {to}")
            return self.simple("Add", "f32", top, self.cast_as(low, "f32", "NONE"))
        if to != "f32" and int(kind[1:]) > 16:
            raise self.refuse(f"dav-2201 has no vector conversion from {kind} to {to}")
        found = self.cast_as(x, "f32", "NONE")
        return self.float_to_float(found, "f32", to)

    def int_of(self, x: Lanes, kind: str, to: str) -> Lanes:
        wide = self.float_to_float(x, kind, "f32")
        if to == "u32":
            raise self.refuse("dav-2201 has no vector conversion from float to uint32")
        if to != "i32":
            low, high = limits(to)
            wide = self.simple("Maxs", "f32", wide, scalar=f"{float(low)}f")
            wide = self.simple("Mins", "f32", wide, scalar=f"{float(high)}f")
        return Lanes(self.cast_as(wide, "i32", "TRUNC").register, to)

    def bitcast(self, value: Value, target: DType) -> Value:
        to = self.kind(target)
        x = self.in_lanes(value, getattr(value, "kind", "i32"))
        if to in ("f32", "i32", "u32") and x.kind in ("f32", "i32", "u32"):
            if HELD[to] == x.register.type:
                return Lanes(x.register, to)
            text = moved("int32_t", "{d}", "{0}")
            return self.op(text, to, x)
        raise self.refuse(f"the vector unit has no bit cast to {to}")

    # ---- memory

    def element(self, a: Array, indices: Sequence[Expr]) -> tuple[Any, str, list[Value]]:
        """What names the elements, the index of the first lane, and the values of the indices."""
        values = [self.value(i) for i in indices]
        if self.emitter.by_bytes(a):
            raise self.refuse(f"`{a.name}` has strides, or elements by bytes")
        texts = []
        for axis, v in enumerate(values):
            if isinstance(v, Lanes):
                raise self.refuse(f"`{a.name}` is not visited in order")
            if isinstance(v, Steps):
                if axis < a.ndim - 1:
                    raise self.refuse(f"the elements of `{a.name}` are not neighbours")
                if v.step != 1:
                    raise self.refuse(f"`{a.name}` is visited in steps of {v.step}")
                texts.append(v.base)
            else:
                texts.append(v.text)
        if not any(isinstance(v, Steps) for v in values):
            raise self.refuse(f"all rounds go to one element of `{a.name}`")
        return (a.name, tuple(texts)), bare(self.emitter.linear(a, texts)), values

    def here(self, a: Array, values: Sequence[Value], indices: Sequence[Expr]) -> None:
        """A condition that every lane's element exists, where not every lane visits it."""
        for axis, (v, node) in enumerate(zip(values, indices, strict=True)):
            extent = self.emitter.extent(a, axis)
            if isinstance(v, Steps):
                self.check(f"ruda::inside({bare(v.base)}, count, {extent})", v.node)
            else:
                assert isinstance(v, Uniform)
                self.check(f"ruda::inside({bare(v.text)}, 1, {extent})", node)

    def load(self, e: Load) -> Value:
        if e.field is not None:
            raise self.refuse("elements are records")
        a = e.array
        if a.space == "local" and a.name not in self.emitter.local_tensors:
            raise self.refuse(f"`{a.name}` is private to a round")
        if not self.differs(Load(a, e.indices)):
            raise AssertionError
        key, index, values = self.element(a, e.indices)
        self.meet(a, key, False)
        if key in self.known:
            return self.known[key]
        if self.mask is not None:
            self.here(a, values, e.indices)
        found = self.fetch(a, index, self.kind(e.dtype), values)
        self.known[key] = found
        return found

    def meet(self, a: Array, key: Any, store: bool) -> None:
        """Different elements of one array, one of them stored: then the order matters."""
        keys = self.keys.setdefault(a.name, set())
        keys.add(key)
        if a.name in self.stored and len(keys) > 1 and not self.parallel:
            raise self.refuse(f"`{a.name}` is stored to and read at different places")
        before = self.stored_before.get(a.name)
        if before is not None and before != key:
            raise self.refuse(f"`{a.name}` is stored to, then visited at another place")
        if store:
            self.stored_before[a.name] = key

    def fetch(self, a: Array, index: str, kind: str, values: Sequence[Value]) -> Value:
        if kind not in MEMORY:
            raise self.refuse(f"dav-2201 has no vectors of {a.dtype}")
        memory = MEMORY[kind]
        if a.name in self.emitter.local_tensors:
            raw = self.fetch_local(a, index, memory)
        else:
            raw = Register(memory)
            tensor = self.emitter.tensor_of(a, memory)
            self.emit(CopyIn(raw, a, tensor, index))
        return self.widened(raw, kind)

    def fetch_local(self, a: Array, index: str, memory: str) -> Register:
        """Elements of an array of the block: they are where instructions want them."""
        self.aligned(a, index, memory)
        raw = Register(memory)
        tensor = self.emitter.local_tensor(a, memory)
        if BYTES[memory] == 1:
            raise self.refuse(f"`{a.name}` of the block has elements of one byte")
        self.emit(Instruction(f"ruda::take({{d}}, {tensor}[{index}], count, {{n}});", raw, ()))
        return raw

    def aligned(self, a: Array, index: str, memory: str) -> None:
        self.local = True
        names = set(re.findall(r"[A-Za-z_]\w*", index))
        bound = {self.emitter.names.get(v.name) for v in self.assigned - {self.loop.variable}}
        if names & bound:
            raise self.refuse(f"where `{a.name}` is visited changes within the tile")
        elements = 32 // BYTES[memory]
        check = f"({index}) % {elements} == 0"
        if check not in self.checks:
            self.checks.append(check)

    def widened(self, raw: Register, kind: str) -> Value:
        """What was copied, as it is computed with."""
        x = Lanes(raw, kind)
        match kind:
            case "f32" | "f16" | "i32" | "u32" | "i64":
                return x
            case "bf16":
                return Lanes(self.cast_as(x, "f32", "NONE").register, "bf16")
            case "i8" | "u8" | "bool":
                half = self.cast_as(x, "f16", "NONE")
                if kind == "bool":
                    return self.compare("ne", half, "half(0.0f)", "f16")
                return Lanes(self.cast_as(half, "i32", "RINT").register, kind)
            case "i16" | "u16":
                wide = self.cast_as(self.cast_as(x, "f32", "NONE"), "i32", "RINT")
                return self.wrap_to(wide, "u16") if kind == "u16" else Lanes(wide.register, kind)
        raise AssertionError(kind)

    def packed(self, x: Lanes, kind: str) -> Register:
        """What is copied out."""
        match kind:
            case "f32" | "f16" | "i32" | "u32" | "i64":
                return x.register
            case "bf16":
                found = self.op("Cast({d}, {0}, RoundMode::CAST_RINT, {n});", "bf16", x)
                found.register.type = "bfloat16_t"
                return found.register
            case "bool":
                ones = self.fill("half(1.0f)", "f16")
                half = self.lanes(self.select(x, ones, Uniform("0.0f", "f32"), "f16"))
                found = self.op("Cast({d}, {0}, RoundMode::CAST_RINT, {n});", "bool", half)
                return found.register
            case "i8" | "u8":
                half = self.cast_as(self.cast_as(x, "f32", "NONE"), "f16", "RINT")
                found = self.op("Cast({d}, {0}, RoundMode::CAST_RINT, {n});", kind, half)
                found.register.type = MEMORY[kind]
                return found.register
            case "i16" | "u16":
                short = self.wrap_to(x, "i16") if kind == "u16" else x
                found = self.op("Cast({d}, {0}, RoundMode::CAST_NONE, {n});", kind, short)
                found.register.type = "int16_t"
                return found.register
        raise AssertionError(kind)

    # ---- statements

    def block(self, body: Body) -> None:
        for s in body:
            if s.place.line:
                self.place = s.place
            self.statement(s)

    def statement(self, s: Statement) -> None:
        match s:
            case Assign(variable, value):
                self.assign(variable, value)
            case Store():
                self.store(s)
            case If(condition, then, otherwise):
                if self.differs(condition):
                    self.branch(condition, then, otherwise)
                else:
                    self.uniform_branch(s)
            case For():
                self.uniform_loop(s)
            case ir.Atomic():
                self.atomic(s)
            case ir.Breakpoint():
                pass

    def assign(self, v: Variable, value: Expr) -> None:
        if v in self.reductions:
            return self.reduce(v, *self.reductions[v])
        if v not in self.varying:
            self.watch(value)
            text = bare(self.emitter.text(value))
            return self.emit(Line(self.emitter.scalar_assignment(v, text)))
        found = self.value(value)
        kind = self.kind(v.dtype)
        if self.mask is not None and v in self.values:
            old = self.values[v]
            found = self.select(self.mask, found, old, kind)
        elif isinstance(found, Uniform):
            found = self.in_lanes(found, kind if v.dtype.name != "index" else "i64")
        self.values[v] = found

    def store(self, s: Store) -> None:
        if s.field is not None:
            raise self.refuse("elements are records")
        a = s.array
        if a.space == "local" and a.name not in self.emitter.local_tensors:
            raise self.refuse(f"`{a.name}` is private to a round")
        kind = self.kind(s.value.dtype)
        found = self.value(s.value)
        if not any(self.differs(i) for i in s.indices):
            raise self.refuse(f"all rounds store to one element of `{a.name}`")
        key, index, values = self.element(a, s.indices)
        self.meet(a, key, True)
        exact = "index" if isinstance(found, Steps) and kind == "i64" else kind
        lanes = self.in_lanes(found, exact)
        if exact == "index" or lanes.kind == "index":
            if kind != "i64":
                raise self.refuse("an index is stored")
            lanes = self.cast_as(Lanes(lanes.register, "i32"), "i64", "NONE")
        if kind not in MEMORY:
            raise self.refuse(f"dav-2201 has no vectors of {a.dtype}")
        if self.mask is not None:
            lanes = self.kept(a, key, index, values, s, lanes, kind)
        if lanes.register.fixed:  # the variable may change before it is copied out
            lanes = Lanes(self.copy(lanes), lanes.kind)
        self.known[key] = lanes
        self.stores[key] = (a, index, self.place)

    def kept(
        self, a: Array, key: Any, index: str, values: Sequence[Value], s: Store, new: Lanes,
        kind: str,
    ) -> Lanes:  # fmt: skip
        """A store in some lanes: the others get what is there."""
        old = self.known.get(key)
        if old is None:
            if a.name not in self.emitter.local_tensors and not self.emitter.owned(
                self.loop, s.indices
            ):
                raise self.refuse(f"`{a.name}` is stored to in some rounds only")
            self.here(a, values, s.indices)
            old = self.fetch(a, index, kind, values)
        assert self.mask is not None
        return self.lanes(self.select(self.mask, new, old, kind))

    def flush(self, before: set[Any] = frozenset()) -> None:  # type: ignore[assignment]
        """Copy out what the block stored."""
        for key, (a, index, place) in list(self.stores.items()):
            if key in before:
                continue
            self.place = place
            kind = self.kind(a.dtype)  # type: ignore[arg-type]
            lanes = self.known[key]
            assert isinstance(lanes, Lanes)
            register = self.packed(lanes, kind)
            memory = MEMORY[kind]
            if a.name in self.emitter.local_tensors:
                self.aligned(a, index, memory)
                if BYTES[memory] == 1:
                    raise self.refuse(f"`{a.name}` of the block has elements of one byte")
                tensor = self.emitter.local_tensor(a, memory)
                text = moved(memory, f"{tensor}[{index}]", "{0}")
                self.emit(Instruction(text, None, (register,), exact=True))
            else:
                self.emit(CopyOut(register, a, self.emitter.tensor_of(a, memory), index))
            del self.stores[key]

    def reduce(self, v: Variable, name: str, e: Expr) -> None:
        kind = self.kind(v.dtype)
        if self.depth:
            raise self.refuse("a reduction in a loop within the loop")
        x = self.in_lanes(self.value(e), kind)
        if self.mask is not None:
            none = {"add": "0.0f", "max": "-ruda::bits<float>(0x7f800000u)",
                    "min": "ruda::bits<float>(0x7f800000u)"}[name]  # fmt: skip
            x = self.lanes(self.select(self.mask, x, Uniform(none, "f32"), kind))
        self.reduces = True
        result = Register("float", tensor="result")
        self.emit(Instruction(f"{SUMS[name]}({{d}}, {{0}}, work, {{n}});", result, (x.register,),
                              exact=True, in_place=False))  # fmt: skip
        self.emit(Line("SetFlag<HardEvent::V_S>(EVENT_ID0);"))
        self.emit(Line("WaitFlag<HardEvent::V_S>(EVENT_ID0);"))
        mine, one = self.emitter.name(v.name), "result.GetValue(0)"
        both = self.emitter.operation_text(name, v.dtype, mine, one)
        self.emit(Line(f"{mine} = {bare(both)};"))
        self.emit(Line("SetFlag<HardEvent::S_V>(EVENT_ID0);"))
        self.emit(Line("WaitFlag<HardEvent::S_V>(EVENT_ID0);"))

    def atomic(self, s: ir.Atomic) -> None:
        raise self.refuse("an atomic operation in it goes element by element")

    # ---- branches that differ between lanes

    def branch(self, condition: Expr, then: Body, otherwise: Body) -> None:
        test = self.in_lanes(self.value(condition), "bool")
        before = self.mask
        self.mask = test if before is None else self.logic("And", before, test)
        self.arm(then, test, otherwise, before)

    def arm(self, then: Body, test: Lanes, otherwise: Body, before: Lanes | None) -> None:
        self.block(then)
        if otherwise:
            no = self.logic("Not", test)
            self.mask = no if before is None else self.logic("And", before, no)
            self.block(otherwise)
        self.mask = before

    # ---- control flow of the scalar unit around instructions

    def uniform_branch(self, s: If) -> None:
        self.watch(s.condition)
        text = bare(self.emitter.text(s.condition))
        homes = self.homes((*s.then, *s.otherwise), new=True)
        arms = [self.nested(body, homes) for body in (s.then, s.otherwise)]
        self.emit(Nest(f"if ({text}) {{", arms[0], arms[1] if s.otherwise else None))

    def uniform_loop(self, s: For) -> None:
        if not (isinstance(s.step, Const) and s.step.value == 1):
            raise self.refuse("a loop in it does not go up by one")
        for e in (s.start, s.stop):
            self.watch(e)
        name = self.emitter.name(s.variable.name)
        start, stop = (bare(self.emitter.text(e)) for e in (s.start, s.stop))
        held = self.emitter.held(s.variable.dtype)
        if not isinstance(s.stop, (Const, Extent)):  # the body may change what it is made of
            end = self.emitter.own("end")
            self.emit(Line(f"const {held} {end} = {stop};"))
            stop = end
        homes = self.homes(s.body)
        items = self.nested(s.body, homes)
        head = f"for ({held} {name} = {start}; {name} < {stop}; ++{name}) {{"
        self.emit(Nest(head, items))

    def homes(self, body: Body, new: bool = False) -> dict[Variable, Register]:
        """A place for each vector that a nested body changes; `new`: or that begins there."""
        homes: dict[Variable, Register] = {}
        written = {v for s in ir.statements(body) for v in ir.written(s)} & self.varying
        for v in sorted(written, key=lambda v: v.name):
            value = self.values.get(v)
            kind = self.kind(v.dtype)
            if value is None:
                if new and kind in HELD and kind != "i64":
                    homes[v] = Register(HELD[kind], kind == "bool", fixed=True)
                    self.values[v] = Lanes(homes[v], kind)
                continue
            if isinstance(value, Steps):
                raise self.refuse(f"`{v.name}` counts, and is changed in a loop")
            lanes = self.in_lanes(value, kind)
            home = Register(lanes.register.type, lanes.register.mask, fixed=True)
            last = self.items[-1] if self.items else None
            if (
                isinstance(value, Lanes) and isinstance(last, Instruction)
                and last.target is lanes.register and not self.used_elsewhere(lanes.register, v)
            ):  # fmt: skip
                last.target = home
            else:
                self.copy(lanes, home)
            homes[v] = home
            self.values[v] = Lanes(home, lanes.kind)
        return homes

    def used_elsewhere(self, r: Register, v: Variable) -> bool:
        others = [x for k, x in self.values.items() if k != v]
        return any(isinstance(x, Lanes) and x.register is r
                   for x in (*others, *self.known.values()))  # fmt: skip

    def nested(self, body: Body, homes: dict[Variable, Register]) -> list[Any]:
        outer, known, stores = self.items, dict(self.known), set(self.stores)
        mine = {k: v for k, v in known.items() if k[0] not in self.stored}
        values = dict(self.values)
        self.items, self.known = [], dict(mine)
        self.depth += 1
        place = self.place
        self.block(body)
        if set(self.stores) & stores and any(self.known.get(k) is not known.get(k) for k in stores):
            raise self.refuse("an element is stored to in a loop, and outside of it")
        self.flush(stores)
        places = {*homes.values()}
        for v, home in homes.items():  # what lies in another variable's place, before it is changed
            value = self.values[v]
            if isinstance(value, Lanes) and value.register in places - {home}:
                self.values[v] = Lanes(self.copy(value), value.kind)
        for v, home in homes.items():
            value = self.values[v]
            lanes = self.in_lanes(value, self.kind(v.dtype))
            if lanes.register is home:
                continue
            if not self.redirected(lanes.register, home, v):
                self.copy(lanes, home)
        self.place = place
        self.depth -= 1
        items, self.items, self.known = self.items, outer, known
        if any(k[0] in self.stored_here(items) for k in self.known):
            self.known = {k: v for k, v in known.items()
                          if k[0] not in self.stored_here(items) or k in self.stores}  # fmt: skip
        self.values = values
        return items

    def stored_here(self, items: list[Any]) -> set[str]:
        return {i.array.name for i in all_items(items) if isinstance(i, CopyOut)} | (
            self.stored & set(self.emitter.local_tensors)
        )

    def redirected(self, register: Register, home: Register, v: Variable) -> bool:
        """Let the instruction that made a vector write to the variable's place, if nobody else
        looks at either afterwards."""
        if self.used_elsewhere(register, v):
            return False
        for k in range(len(self.items) - 1, -1, -1):
            item = self.items[k]
            if isinstance(item, Instruction) and item.target is register:
                later = list(all_items(self.items[k + 1 :]))
                if any({home, register} & uses(i) for i in later):
                    return False
                item.target = home
                return True
        return False


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


# (tanh(x) - x) / x**3 in x**2 on [0, 0.65], fitted for the relative error of tanh; highest power
# first.
TANH = ("-0.00562022300", "0.0205827988", "-0.0537308864", "0.133314863", "-0.333332926")


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


def limits(kind: str) -> tuple[int, int]:
    bits = int(kind[1:])
    return (0, (1 << bits) - 1) if kind[0] == "u" else (-(1 << bits - 1), (1 << bits - 1) - 1)
