"""Lowered IR -> Python text for numba: the last step of the CPU target, a function from IR to text.

The passes have already made a kernel a serial function of a range of work: no barriers, no thread
indices, only loops. The text is plain Python over typed helpers (`load_f32`, `i64_to_f32`, ...);
operators mean what the IR's do, on operands of one dtype. Statements keep the user's names and
`Source.lines` leads each line back to the user's.

A kernel is called as `kernel(args, lo, hi)`: `args` is the address of a block of 8-byte words.

word 0-2 grid, 3-5 block, 6 report buffer, 7 bytes of dynamic shared memory; then each parameter in
launch order: an array as its data pointer, extents, strides in bytes; a scalar as one word
(complex128 two).
"""

from __future__ import annotations

import keyword
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from ruda.backends.base import Site, Source
from ruda.dtypes import DType
from ruda.errors import NOWHERE, Place, UnsupportedError
from ruda.jit import ir
from ruda.jit.ir import (
    And,
    Array,
    Asm,
    Assign,
    Atomic,
    Bitcast,
    Body,
    Break,
    Breakpoint,
    Cast,
    Const,
    Continue,
    Declare,
    Expr,
    Extent,
    Fence,
    Field,
    For,
    Function,
    If,
    Load,
    Op,
    Or,
    Read,
    Select,
    Special,
    Statement,
    Store,
    Stride,
    Variable,
    While,
)  # fmt: skip
from ruda.jit.types import ElementType

FIRST_WORD = 8
STACK_BYTES = 256 << 10  # of a thread's stack for arrays; what is larger goes to the heap
INFIX = {
    "add": "+", "sub": "-", "mul": "*", "truediv": "/", "and": "&", "or": "|", "xor": "^",
    "lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!=",
}  # fmt: skip
PREFIX = {"neg": "-", "invert": "~", "not": "not "}
# Operations whose result in float32 is already a float16 (or bfloat16) if the operands are.
EXACT16 = {
    "neg", "abs", "min", "max", "fmin", "fmax", "floor", "ceil", "trunc", "rint", "copysign",
    "uniform", "fmod", "remainder", "isnan", "isinf", "isfinite", "signbit",
    *(n for n in INFIX if n[0] in "lgen"),
}  # fmt: skip
HELD = {"index": "i64", "weak_int": "i64", "weak_float": "f64", "weak_complex": "c128"}
AXES = "xyz"
_SHORTS = "bool|i8|i16|i32|i64|u8|u16|u32|u64|f16|bf16|f32|f64|c64|c128"
_RESERVED = re.compile(
    rf"(.*_)?({_SHORTS})(_unaligned)?|word|pointer|offset|wrap|poll|range|args|lo|hi|inf|nan"
    r"|(stack|constant)_\d+|(grid|block|total)_[xyz]|shared_bytes"
)


def held(dtype: DType) -> str:
    """How a value of a dtype is held: the suffix of helpers."""
    return HELD.get(dtype.name, dtype.short)


def words(parameters: Iterable[Array | Variable]) -> dict[str, int]:
    """The first word of each parameter in the packed block."""
    at, out = FIRST_WORD, {}
    for p in parameters:
        out[p.name] = at
        if isinstance(p, Array):
            at += 1 + 2 * p.ndim
        else:
            at += 2 if p.dtype.bits == 128 else 1
    return out


def itemsize(dtype: ElementType) -> int:
    return dtype.itemsize


def emit(
    function: Function, options: Mapping[str, Any], sites: tuple[Site, ...] = (), head: str = ""
) -> Source:
    """The text of a lowered kernel. `options` go to the compiler with it."""
    return replace(Emitter(function).source(options, head), sites=sites)


class Emitter:
    """Text of one kernel, line by line."""

    def __init__(self, function: Function) -> None:
        self.function = function
        self.text: list[str] = []
        self.lines: list[int] = []
        self.place = function.place
        self.renamed: dict[str, str] = {}
        self.taken: set[str] = set()
        self.constants: list[bytes] = []
        self.heap: list[str] = []

    def source(self, options: Mapping[str, Any], head: str = "") -> Source:
        f = self.function
        entry = self.name(f.name)
        if head:
            self.line(0, f"# {head}")
        self.line(0, f"def {entry}(args, lo, hi):")
        self.prelude()
        self.body(f.prologue, 1, keep_empty=True)
        self.body(f.body, 1)
        self.release(1)
        return Source(
            text="\n".join(self.text) + "\n",
            entry=entry,
            file=f.place.file if f.place is not NOWHERE else "",
            lines=tuple(self.lines),
            options={**options, "constants": tuple(self.constants)},
        )

    def release(self, depth: int) -> None:
        """Give back memory from the heap, before each end of the kernel."""
        for array in self.heap:
            self.line(depth, f"release({array})")

    # ---- lines and names

    def line(self, depth: int, text: str, place: Place | None = None) -> None:
        if place is not None and place.line:
            self.place = place
        self.text.append("    " * depth + text)
        self.lines.append(self.place.line)

    def name(self, wanted: str) -> str:
        """A Python name for a variable or array: the user's own unless it means something here."""
        found = self.renamed.get(wanted)
        if found is None:
            found = re.sub(r"\W", "_", wanted) or "_"
            if found[0].isdigit() or keyword.iskeyword(found) or _RESERVED.fullmatch(found):
                found = f"{found}_"
            while found in self.taken:
                found += "_"
            self.taken.add(found)
            self.renamed[wanted] = found
        return found

    # ---- what comes before the body: parameters, extents, stack arrays

    def prelude(self) -> None:
        f = self.function
        at = words(f.parameters)
        used = list(ir.all_expressions((*f.prologue, *f.body)))
        arrays = {e.array.name for e in used if isinstance(e, Load)}
        for s in ir.statements(f.body):
            if isinstance(s, (Store, Atomic)):
                arrays.add(s.array.name)
        extents = {(e.array.name, e.axis) for e in used if isinstance(e, Extent)}
        strides = {(e.array.name, e.axis) for e in used if isinstance(e, Stride)}
        for node in (*used, *ir.statements(f.body)):
            if isinstance(node, (Load, Store, Atomic)) and node.array.shape is None:
                axes = range(node.array.ndim)
                if node.array.layout == "A":
                    strides |= {(node.array.name, k) for k in axes}
                else:
                    extents |= {(node.array.name, k) for k in axes[1:]}
        reads = {e.variable.name for e in used if isinstance(e, Read)}
        specials = {(e.name, e.axis) for e in used if isinstance(e, Special)}
        for k, axis in enumerate(AXES):
            total = ("globalDim", k) in specials
            if total or ("gridDim", k) in specials:
                self.line(1, f"grid_{axis} = word(args, {k})")
            if total or ("blockDim", k) in specials:
                self.line(1, f"block_{axis} = word(args, {3 + k})")
            if total:
                self.line(1, f"total_{axis} = grid_{axis} * block_{axis}")
        if ("sharedBytes", 0) in specials or any(a.dynamic for a in f.arrays):
            self.line(1, "shared_bytes = word(args, 7)")
        for p in f.parameters:
            name, word = self.name(p.name), at[p.name]
            if isinstance(p, Variable):
                if p.name in reads:
                    self.line(1, f"{name} = word_{held(p.dtype)}(args, {word})")
                continue
            if p.name in arrays:
                self.line(1, f"{name} = pointer(args, {word})")
            for k in range(p.ndim):
                if (p.name, k) in extents:
                    self.line(1, f"{self.extent(p, k)} = word(args, {word + 1 + k})")
            for k in range(p.ndim):
                if (p.name, k) in strides:
                    self.line(1, f"{self.stride(p, k)} = word(args, {word + 1 + p.ndim + k})")
        self.memory([a for a in f.arrays if a.name in arrays])

    def memory(self, arrays: list[Array]) -> None:
        """The arrays that are not parameters: in the frame while they fit, else on the heap."""
        room = STACK_BYTES
        shared = ""
        for a in arrays:
            name = self.name(a.name)
            if a.space == "const":
                assert a.data is not None
                self.line(1, f"{name} = constant_{len(self.constants)}()")
                self.constants.append(a.data)
                continue
            if a.dynamic:
                self.line(1, f"{name} = {shared or 'stack_dynamic(shared_bytes)'}")
                shared = shared or name
                continue
            assert a.shape is not None
            size = max(1, math.prod(a.shape) * itemsize(a.dtype))
            place = "stack" if size <= room else "heap"
            if place == "stack":
                room -= size
            else:
                self.heap.append(name)
            shape = ", ".join(map(str, a.shape))
            self.line(1, f"{name} = {place}_{size}()  # {a.space} {a.dtype}[{shape}]")

    def extent(self, array: Array, axis: int) -> str:
        if array.shape is not None:
            return str(array.shape[axis])
        if array.dynamic:
            return f"floordiv_i64(shared_bytes, {itemsize(array.dtype)})"
        return self.name(f"{array.name}_n{axis}")

    def stride(self, array: Array, axis: int) -> str:
        if array.shape is not None:
            return str(math.prod(array.shape[axis + 1 :]) * itemsize(array.dtype))
        return self.name(f"{array.name}_s{axis}")

    # ---- statements

    def body(self, body: Body, depth: int, keep_empty: bool = False) -> None:
        if not body and not keep_empty:
            self.line(depth, "pass")
        for statement in body:
            self.statement(statement, depth)

    def statement(self, s: Statement, depth: int) -> None:
        if s.place.line:
            self.place = s.place
        e = self.expression
        match s:
            case Assign(variable, value):
                self.line(depth, f"{self.name(variable.name)} = {bare(e(value))}")
            case Store(array, indices, value, field):
                suffix, address = self.address(array, indices, field)
                self.line(depth, f"store_{whose(array)}{suffix}({address}, {bare(e(value))})")
            case If(condition, then, otherwise):
                self.line(depth, f"if {bare(e(condition))}:")
                self.body(then, depth + 1)
                if otherwise:
                    self.line(depth, "else:")
                    self.body(otherwise, depth + 1)
            case For():
                self.loop(s, depth)
            case While(condition, body):
                self.line(depth, f"while {bare(e(condition))}:")
                self.body(body, depth + 1)
            case Break():
                self.line(depth, "break")
            case Continue():
                self.line(depth, "continue")
            case Atomic(op, array, indices, operands, result, field):
                suffix, address = self.address(array, indices, field)
                left = f"{self.name(result.name)} = " if result else ""
                values = ", ".join(bare(e(v)) for v in operands)
                if suffix.endswith("_unaligned"):
                    raise UnsupportedError("atomics need aligned elements", s.place)
                how = "atomic" if array.space == "global" else "update"
                self.line(depth, f"{left}{how}_{op}_{suffix}({address}, {values})")
            case Asm("cpu", "report", operands):
                where = ", ".join(bare(e(v)) for v in operands[:3])
                values = "".join(f", {bare(e(v))}" for v in operands[3:])
                kinds = "".join(f"_{held(v.dtype)}" for v in operands[3:])
                self.line(depth, f"report{kinds}(args, {where}{values})")
            case Asm("cpu", "poll", (rounds,), (budget,)):
                name = self.name(budget.name)
                self.line(depth, f"{name} = poll({bare(e(rounds))})")
                self.line(depth, f"if {name} == 0:")
                self.release(depth + 1)
                self.line(depth + 1, "return")
            case Asm("cpu", "prefetch", (Load(array, indices, field=None),)):
                suffix, address = self.address(array, indices, None)
                self.line(depth, f"prefetch_{suffix}({address})")
            case Declare() | Breakpoint():
                pass
            case Fence():
                self.line(depth, "fence()")
            case _:
                raise UnsupportedError(
                    f"the CPU target has no {type(s).__name__.lower()} statement here", s.place
                )

    def loop(self, s: For, depth: int) -> None:
        e = self.expression
        kind = held(s.variable.dtype)
        bounds = [
            e(b) if kind == "i64" else f"{kind}_to_i64({bare(e(b))})" for b in (s.start, s.stop)
        ]
        start, stop = map(bare, bounds)
        name = self.name(s.variable.name)
        counter = name if kind == "i64" else self.name(f"{s.variable.name}_i")
        if isinstance(s.step, Const):
            step = int(s.step.value)
            if step == 0:
                return
            ends = f"{start}, {stop}, {step}" if step != 1 else f"{start}, {stop}"
            if step == 1 and start == "0":
                ends = stop
            self.line(depth, f"for {counter} in range({ends}):")
        else:
            step_text = e(s.step) if kind == "i64" else f"{kind}_to_i64({bare(e(s.step))})"
            first, each = self.name(f"{name}_first"), self.name(f"{name}_step")
            number = self.name(f"{name}_k")
            self.line(depth, f"{first} = {start}")
            self.line(depth, f"{each} = {bare(step_text)}")
            self.line(depth, f"for {number} in range(trips({first}, {stop}, {each})):")
            self.line(depth + 1, f"{counter} = {first} + {number} * {each}")
        if counter != name:
            self.line(depth + 1, f"{name} = i64_to_{kind}({counter})")
        self.body(s.body, depth + 1)

    # ---- expressions

    def address(
        self, array: Array, indices: tuple[Expr, ...], field: Field | None
    ) -> tuple[str, str]:
        """(suffix of load_ or store_, "base, index"): whole elements by index, others by bytes."""
        base = self.name(array.name)
        texts = [self.expression(i) for i in indices]
        dtype = array.dtype if field is None else field.dtype
        assert isinstance(dtype, DType)
        suffix = held(dtype)
        size = itemsize(array.dtype)
        shift = 0 if field is None else field.offset
        align = max(1, dtype.real.itemsize)
        if not array.aligned or shift % align or size % align:
            suffix += "_unaligned"
        if array.layout == "A" and array.shape is None and not array.dynamic:
            terms = [times(t, self.stride(array, k)) for k, t in enumerate(texts)]
            if shift:
                terms.append(str(shift))
            total = " + ".join(terms)
            return suffix, f"offset({base}, {total}), 0" if total else f"{base}, 0"
        linear = ""
        for k, text in enumerate(texts):
            linear = (
                text if not linear else f"{times(group(linear), self.extent(array, k))} + {text}"
            )
        if field is not None:
            where = times(group(linear), str(size)) if linear else "0"
            return suffix, f"offset({base}, {where} + {shift}), 0"
        return suffix, f"{base}, {bare(linear) or '0'}"

    def expression(self, node: Expr) -> str:
        e = self.expression
        match node:
            case Const(value, dtype):
                return constant(value, dtype)
            case Read(variable):
                return self.name(variable.name)
            case Special(name, axis):
                return special(name, axis)
            case Extent(array, axis):
                return self.extent(array, axis)
            case Stride(array, axis):
                return self.stride(array, axis)
            case Op():
                return self.operation(node)
            case Cast(value, dtype):
                source, target = held(value.dtype), held(dtype)
                return e(value) if source == target else f"{source}_to_{target}({bare(e(value))})"
            case Bitcast(value, dtype):
                return f"bits_{held(value.dtype)}_{held(dtype)}({bare(e(value))})"
            case Select(condition, then, otherwise):
                if any(isinstance(x, Load) for arm in (then, otherwise) for x in ir.walk(arm)):
                    return f"({e(then)} if {e(condition)} else {e(otherwise)})"
                values = ", ".join(bare(e(v)) for v in (condition, then, otherwise))
                return f"select_{held(node.dtype)}({values})"
            case And(left, right):
                return f"({e(left)} and {e(right)})"
            case Or(left, right):
                return f"({e(left)} or {e(right)})"
            case Load(array, indices, field):
                suffix, address = self.address(array, indices, field)
                return f"load_{whose(array)}{suffix}({address})"
        raise UnsupportedError(f"the CPU target has no {type(node).__name__}", self.place)

    def operation(self, node: Op) -> str:
        values = [self.expression(v) for v in node.operands]
        dtype = node.operands[0].dtype
        kind = held(dtype)
        half = kind in ("f16", "bf16")
        if node.name == "inside":
            ndim = (len(values) - 3) // 2
            return f"inside_{ndim}(args, {', '.join(map(bare, values))})"
        if node.name == "divisor":
            y, *where, x = map(bare, values)
            return f"divisor_{kind}({y}, args, {', '.join(where)}, {x})"
        if node.name == "wrap":
            return f"wrap({bare(values[0])}, {bare(values[1])})"
        if node.name in INFIX and len(values) == 2:
            text = f"({values[0]} {INFIX[node.name]} {values[1]})"
        elif node.name in PREFIX:
            text = f"({PREFIX[node.name]}{values[0]})"
        elif half and node.name in ("fma", "nextafter"):
            return f"{node.name}_{kind}({', '.join(map(bare, values))})"
        else:
            suffix = "f32" if half else kind
            if node.name == "complex":
                suffix = held(node.dtype)
            text = f"{node.name}_{suffix}({', '.join(map(bare, values))})"
        return f"round_{kind}({bare(text)})" if half and node.name not in EXACT16 else text


# ---- text helpers --------------------------------------------------------------------------------


def whose(array: Array) -> str:
    """How accesses of memory that the kernel has made are marked."""
    return "" if array.space in ("global", "const") else "own_"


def special(name: str, axis: int) -> str:
    match name:
        case "gridDim":
            return f"grid_{AXES[axis]}"
        case "blockDim":
            return f"block_{AXES[axis]}"
        case "globalDim":
            return f"total_{AXES[axis]}"
        case "first":
            return "lo"
        case "last":
            return "hi"
        case "sharedBytes":
            return "shared_bytes"
    raise AssertionError(f"{name} must have been lowered")


def constant(value: Any, dtype: DType) -> str:
    """A literal of exactly that dtype."""
    kind = held(dtype)
    if kind == "bool":
        return str(bool(value))
    if dtype.is_integer:
        number = int(value)
        if kind == "u64" and number >= 1 << 63:
            number -= 1 << 64
        text = str(number) if number >= 0 else f"({number})"
        return text if kind == "i64" else f"{kind}({bare(text)})"
    if dtype.kind == "complex":
        z, part = complex(value), "f32" if kind == "c64" else "f64"
        return f"complex_{kind}({real(z.real, part)}, {real(z.imag, part)})"
    return real(float(dtype.numpy.type(value)) if kind in ("f16", "bf16") else float(value), kind)


def real(value: float, kind: str) -> str:
    if value != value:
        text = "nan"
    elif math.isinf(value):
        text = "inf" if value > 0 else "-inf"
    else:
        text = repr(value)
    if kind == "f64":
        return f"({text})" if text.startswith("-") else text
    return f"f32({text})"


def bare(text: str) -> str:
    """Without the outer parentheses, if they are a pair."""
    if not text.startswith("(") or not text.endswith(")"):
        return text
    depth = 0
    for k, c in enumerate(text):
        depth += (c == "(") - (c == ")")
        if depth == 0 and k < len(text) - 1:
            return text
    return text[1:-1]


def group(text: str) -> str:
    """With parentheses where an operator could bind tighter than one inside."""
    return text if re.fullmatch(r"[\w.]+", text) or bare(text) != text else f"({text})"


def times(text: str, factor: str) -> str:
    return text if factor == "1" else f"{text} * {factor}"
