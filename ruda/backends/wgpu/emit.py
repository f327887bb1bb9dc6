"""IR -> WGSL: one entry point, its bindings, and the functions that it needs.

Memory is words: every array argument is a binding of `array<u32>`, whatever its dtype, so that
views at other dtypes, records, 8- and 16-bit elements and aliased arguments are all the same
thing. An address is a 32-bit (or wide) number of words, or of bytes where elements are smaller or
not aligned. Stores of less than a word, and atomics, need a binding of atomics.

User names are prefixed, so that none can be a word of WGSL. Numbers are held as WGSL has them:
8- and 16-bit integers in 32 bits, 16-bit floats in f32 (rounded after every operation), complex
numbers in vec2. Indices are i32 in the narrow form of a kernel and i64 in the wide one. Where an
adapter has no 64-bit integers, `wide` has functions for pairs of words: kinds "I64" and "U64".
Where it has no float64, elements of that dtype are words, too, of which `passes.demote` makes
float32 at once: kinds "F64" and "C128".

A text is made for a `Variant`: which arguments share memory, how wide indices are, and whether the
grid is folded into two dimensions because it is longer than a dispatch may be.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ruda import dtypes
from ruda.backends.base import Site, Source
from ruda.backends.wgpu import library, wide
from ruda.backends.wgpu.adapter import browser
from ruda.backends.wgpu.formulas import (
    NAMES,
    Term,
    exponent_of,
    hidden,
    is_literal,
    is_name,
    is_zero,
    literal,
    product,
    sides,
    total,
)
from ruda.backends.wgpu.origins import behind_barriers, joined, origins
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
    WideLoad,
    WideStore,
)  # fmt: skip
from ruda.jit.passes.bounds import Inside
from ruda.settings import settings

AXES = "xyz"
DEEPEST = 120  # blocks in blocks: WGSL has 127, of which the text uses some itself
LARGE = 1024  # bytes of a constant array that is written into the text
# dtype -> how a value is held; index and weak_int depend on the variant.
HELD = {
    "bool": "bool", "int8": "i32", "int16": "i32", "int32": "i32", "int64": "i64",
    "uint8": "u32", "uint16": "u32", "uint32": "u32", "uint64": "u64",
    "float16": "f32", "bfloat16": "f32", "float32": "f32", "float64": "f64",
    "weak_float": "f64", "complex64": "c64", "complex128": "c128", "weak_complex": "c128",
}  # fmt: skip
WGSL = {
    "c64": "vec2<f32>", "c128": "vec2<f64>", "I64": "vec2<u32>", "U64": "vec2<u32>",
    "F64": "vec2<u32>", "C128": "vec4<u32>",
}  # fmt: skip
WORDS = {
    "i32": 1, "u32": 1, "f32": 1, "i64": 2, "u64": 2, "I64": 2, "U64": 2, "f64": 2, "c64": 2,
    "c128": 4, "bool": 1, "F64": 2, "C128": 4,
}  # fmt: skip
UNSIGNED = {"i32": "u32", "u32": "u32", "i64": "u64", "u64": "u64", "I64": "U64", "U64": "U64"}
NEEDS = {"i64": "int64", "u64": "int64", "f64": "float64", "c128": "float64"}
INFIX = {
    "and": "&", "or": "|", "xor": "^", "lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==",
}  # fmt: skip
# Operations on float32 whose results are float16 (bfloat16) already if the operands are.
EXACT16 = {
    "neg", "abs", "min", "max", "fmin", "fmax", "floor", "ceil", "trunc", "rint", "copysign", "mod",
    "fmod", "remainder", "isnan", "isinf", "isfinite", "signbit", "lt", "le", "gt", "ge", "eq",
    "ne", "uniform",
}  # fmt: skip
# Operations that look at bits, or hand on an operand: denormals need not count as zeros in them.
ON_BITS = {
    "isnan", "isinf", "isfinite", "signbit", "copysign", "nextafter", "min", "max", "fmin", "fmax",
    "rint", "trunc",
}  # fmt: skip
SIGNS = {"add": "+", "sub": "-", "mul": "*"}
LESS = {  # comparisons of pairs of words, by "less"
    "lt": "lt_{k}({x}, {y})", "gt": "lt_{k}({y}, {x})", "le": "(!lt_{k}({y}, {x}))",
    "ge": "(!lt_{k}({x}, {y}))", "eq": "eq_{k}({x}, {y})", "ne": "(!eq_{k}({x}, {y}))",
}  # fmt: skip
BUILTIN = {"floor": "floor", "ceil": "ceil", "trunc": "trunc", "rint": "round"}
FAST = {
    "exp": "exp", "exp2": "exp2", "log": "log", "log2": "log2", "sin": "sin", "cos": "cos",
    "tan": "tan", "sinh": "sinh", "cosh": "cosh", "tanh": "tanh", "rsqrt": "inverseSqrt",
    "pow": "pow", "asin": "asin", "acos": "acos", "atan": "atan", "atan2": "atan2", "fma": "fma",
}  # fmt: skip
NATIVE_ATOMICS = {
    "add": "Add", "sub": "Sub", "min": "Min", "max": "Max", "and": "And", "or": "Or", "xor": "Xor",
    "exch": "Exchange",
}  # fmt: skip


@dataclass(frozen=True)
class Variant:
    """What a text is made for, besides the IR.

    groups  for each array parameter, the number of its binding: aliased ones share one
    fold    whether the grid is longer than a dispatch may be
    missing  the policy for what the adapter lacks: with "emulate" and "demote" 64-bit integers are
             made of words, with "demote" float64 is computed in float32
    dialect  "tint": only what every browser has
    vectors  whether the function is the one with wide accesses (`passes.coarsen`): all arrays of
             such accesses lie where those may begin
    """

    groups: tuple[int, ...]
    wide: bool = False
    fold: bool = False
    missing: str = "error"
    dialect: str = "naga"
    vectors: bool = False


@dataclass(frozen=True)
class Parameter:
    """A field of the uniform block: where its value comes from at a launch.

    ("grid", axis), ("blocks",), ("threads",), ("base", k), ("extent", k, axis),
    ("stride", k, axis), ("scalar", name), ("shared",): k counts the kernel's parameters; bases and
    strides are in units of `unit` bytes. `only_address`: no value is made of it.
    """

    name: str
    kind: str
    source: tuple[Any, ...]
    unit: int = 1
    only_address: bool = False


@dataclass
class Binding:
    """Memory that the kernel sees: a storage buffer, dynamic shared memory, or a constant.

    `width` words are an element: where accesses are wide, vectors of 2 or 4.
    """

    name: str
    bits: int = 32
    atomic: bool = False
    written: bool = False
    width: int = 1
    last: str = ""  # the number of the last element, to which every index is held; "": it is not

    @property
    def element(self) -> str:
        kind = f"u{self.bits}"
        if self.atomic:
            return f"atomic<{kind}>"
        return kind if self.width == 1 else f"vec{self.width}<{kind}>"

    def at(self, index: str) -> str:
        """An element, by the number of one."""
        return f"{self.name}[{held_to(index, self.last)}]"

    def word(self, at: str) -> str:
        if self.width == 1:
            return self.at(at)
        return f"{self.name}[({at}) >> {self.width // 2}u][({at}) & {self.width - 1}]"

    def load(self, at: str) -> str:
        return f"atomicLoad(&{self.at(at)})" if self.atomic else self.word(at)

    def store(self, at: str, value: str) -> str:
        if self.atomic:
            return f"atomicStore(&{self.at(at)}, {value});"
        return f"{self.word(at)} = {value};"


@dataclass(frozen=True)
class Place_:
    """An element of an array, as text: typed (`name[index]`) or words at an address."""

    binding: Binding | None
    text: str
    unit: str = "w"  # "w" words, "b" bytes (aligned), "u" bytes (any)


def plain_variant(function: Function) -> Variant:
    """No argument shares memory with another one."""
    count = sum(isinstance(p, Array) for p in function.parameters)
    return Variant(tuple(range(count)), missing=settings.missing, dialect=settings.wgpu_dialect)


def demotes(target: Mapping[str, Any], missing: str) -> bool:
    """Whether float64 is computed in float32."""
    return missing == "demote" and not target.get("float64")


def emit(
    function: Function, sites: tuple[Site, ...], target: Mapping[str, Any], variant: Variant
) -> Source:
    """The text of a kernel that `passes.lower(..., "wgpu")` has prepared."""
    return Emitter(function, sites, target, variant).source()


DEMOTED = ("F64", "C128")  # only loaded, stored and converted


def kind_of(dtype: DType, index: str = "i32") -> str:
    return index if dtype.name in ("index", "weak_int") else HELD[dtype.name]


def wgsl(kind: str) -> str:
    return WGSL.get(kind, kind)


def real_of(kind: str) -> str:
    return {"c64": "f32", "c128": "f64"}[kind]


class Emitter:
    """Text of one kernel."""

    def __init__(
        self,
        function: Function,
        sites: tuple[Site, ...],
        target: Mapping[str, Any],
        variant: Variant,
    ) -> None:
        assert function.block is not None
        if variant.dialect == "tint":
            target = browser(target)
        self.function, self.sites, self.target, self.variant = function, sites, target, variant
        self.block = function.block
        self.pairs = not target.get("int64")  # 64-bit integers are pairs of words
        self.native = str(target.get("exact", "")).split()  # operations that the adapter does right
        self.flushes = target.get("float32_denormals") == "flush"
        self.index = ("I64" if self.pairs else "i64") if variant.wide else "i32"
        self.address = "u32" if variant.wide else "i32"
        self.lines: list[str] = []
        self.numbers: list[int] = []
        self.place = function.place
        self.names: dict[str, str] = {}
        self.parameters: list[Parameter] = []
        self.functions: dict[str, str] = {}  # our own, by name
        self.globals: dict[str, str] = {}  # shared variables and constants, by name
        self.shared_bytes = 0
        self.serial = 0
        self.bindings: dict[str, Binding] = {}
        self.typed: dict[str, str] = {}  # arrays that are held as their dtype: element kinds
        self.atomics: set[str] = set()
        # An old driver ends loops by itself: what leaves one otherwise says so, and it is asked.
        # (The loop of a thread with some elements is a short one of our own.)
        self.guards = bool(target.get("cuts_loops") and function.lanes == 1) and any(
            isinstance(s, (For, While)) for s in ir.statements(function.body)
        )
        self.loops: list[str] = []  # variables that tell how the loops around were left
        self.constants: list[bytes] = []
        # A text that nobody holds inside does so by itself. (Mesa 22.3 computes wrong numbers in
        # loops over arrays that are counted, and are not held inside.)
        trusted = bool(target.get("watches_buffers")) and not target.get("software")
        self.inside = Inside(function, not variant.wide) if trusted else None
        self.memory()
        self.hold()

    # ---- what an array is

    def memory(self) -> None:
        """Decide for each array how it is held."""
        f = self.function
        arrays = [p for p in f.parameters if isinstance(p, Array)]
        group = dict(zip((a.name for a in arrays), self.variant.groups, strict=True))
        shared: dict[int, Binding] = {}
        for a in arrays:
            number = group[a.name]
            shared.setdefault(number, Binding(f"buffer{number}"))
            self.bindings[a.name] = shared[number]
        dynamic = Binding("dynamic_words")
        for a in f.arrays:
            if a.dynamic:
                self.bindings[a.name] = dynamic
            elif a.space == "const" or not isinstance(a.dtype, DType):
                self.bindings[a.name] = Binding(self.name(a.name))
            else:
                self.typed[a.name] = self.held(a.dtype)
        for s in ir.statements(f.body):
            match s:
                case Store(array=a, field=part):
                    self.uses(a, part, s.place, False)
                case Atomic(array=a, field=part):
                    self.atomics.add(a.name)
                    self.uses(a, part, s.place, True)
                case WideStore(array=a):
                    self.uses(a, None, s.place, False)
        before = before_last_barrier(f.body)
        # Results that are written behind the last barrier are nobody's business before it.
        self.shares_buffers = any(
            self.bindings[name].written and self.bindings[name].name.startswith("buffer")
            for name in arrays_of(before) & self.bindings.keys()
        )
        for s in ir.statements(f.body):
            if isinstance(s, (WideLoad, WideStore)):
                binding = self.bindings[s.array.name]
                words = s.array.dtype.itemsize * lanes_of(s) // 4
                binding.width = 1 if binding.atomic else max(binding.width, words)

    def hold(self) -> None:
        """Hold indices of memory that is no buffer, for which the hardware looks out."""
        if self.inside is None:
            return
        for a in self.function.arrays:
            if a.name in self.bindings and not is_large(a):
                binding = self.bindings[a.name]
                if a.dynamic:
                    count = "dynamic_count" if binding.bits == 32 else "(dynamic_count + 1u) / 2u"
                    binding.last = f"{count} - 1u"
                else:
                    assert a.shape is not None
                    words = max(1, -(-math.prod(a.shape) * a.dtype.itemsize // 4))
                    binding.last = f"{words - 1}u"

    def uses(self, a: Array, part: Field | None, place: Place, atomic: bool) -> None:
        binding = self.bindings.get(a.name)
        dtype = a.dtype if part is None else part.dtype
        assert isinstance(dtype, DType)
        if binding is None:
            return
        binding.written = True
        small = dtype.itemsize < 4 or self.unit(a, part) == "u"
        binding.atomic |= atomic or small
        if atomic and dtype.bits == 64:
            if not self.target.get("int64_atomics"):
                raise UnsupportedError(
                    f"atomics on {dtype} need 64-bit atomics, which {self.adapter()} lacks",
                    place,
                    hint="use a 32-bit dtype",
                )
            binding.bits = 64

    def adapter(self) -> str:
        return f"the adapter {self.target.get('adapter', 'of the browser')!r}"

    def unit(self, a: Array, part: Field | None) -> str:
        """How an element is addressed: "w", "b" or "u" (see `Place_`)."""
        dtype = a.dtype if part is None else part.dtype
        assert isinstance(dtype, DType)
        if part is not None:
            return "b" if dtype.itemsize == 1 else "u"
        if not a.aligned and dtype.itemsize > 1:
            return "u"
        return "w" if dtype.itemsize >= 4 else "b"

    # ---- the whole text

    def source(self) -> Source:
        f = self.function
        self.written = {v for s in ir.statements(f.body) for v in ir.written(s)}
        self.foreign = behind_barriers(f)
        self.origins = origins(
            f, lambda a: a.name in self.typed or self.bindings[a.name].written, self.foreign
        )
        self.parameters.append(Parameter("zeros", "zeros", ("zeros",)))
        self.parameters.append(Parameter("which_zero", "u32", ("zero",)))
        if self.guards:
            self.parameters.append(Parameter("kernel", "u32", ("kernel",)))
        head = self.coordinates()
        head += self.arguments()
        self.body(f.body, 1)
        body, body_numbers = self.lines, self.numbers
        own = "\n".join(self.functions.values())
        used = "\n".join([own, *head, *body])
        parts = [self.header(), self.block_struct(), self.declarations(), *self.globals.values()]
        parts.append(
            library.definitions(used, self.functions, self.native, denormals=not self.flushes)
        )
        parts.append(own)
        x, y, z = self.block
        parts.append(
            f"@compute @workgroup_size({x}, {y}, {z})\n"
            "fn main(@builtin(workgroup_id) workgroup: vec3<u32>,\n"
            "        @builtin(num_workgroups) workgroups: vec3<u32>,\n"
            "        @builtin(local_invocation_id) thread: vec3<u32>,\n"
            "        @builtin(local_invocation_index) t: u32) {"
        )
        text = "\n".join(p for p in parts if p) + "\n" + "\n".join(head) + "\n"
        before = text.count("\n")
        text += "\n".join(body) + "\n}\n"
        buffers: dict[str, Binding] = {}
        for p in f.parameters:
            if isinstance(p, Array):
                buffers.setdefault(self.bindings[p.name].name, self.bindings[p.name])
        options = {
            "name": f.name,
            "parameters": tuple(self.parameters),
            "written": tuple(
                self.bindings[p.name].written for p in f.parameters if isinstance(p, Array)
            ),
            "buffers": tuple(b.written or b.atomic for b in buffers.values()),
            "vectors": tuple(b.width for b in buffers.values()),
            "shared": self.shared_bytes,
            "dynamic": any(a.dynamic for a in f.arrays),
            "constants": tuple(self.constants),
            "reports": bool(self.sites),
            "guarded": self.guards,
            "trusted": self.inside is not None,
        }
        return Source(
            text=text,
            entry="main",
            file=f.place.file if f.place is not NOWHERE else "",
            lines=(*(0,) * before, *body_numbers, 0),
            sites=self.sites,
            options=options,
        )

    def header(self) -> str:
        f = self.function
        axes = {
            p.name: f"[{', '.join(':' * p.ndim)}]" for p in f.parameters if isinstance(p, Array)
        }
        types = ", ".join(f"{p.name}: {p.dtype}{axes.get(p.name, '')}" for p in f.parameters)
        indices = ", 64-bit indices" if self.variant.wide else ""
        dialect = self.target.get("dialect", "naga")
        return f"// {f.name}({types}), block {self.block}{indices}, for {dialect}"

    def block_struct(self) -> str:
        rows = []
        for p in self.parameters:
            if p.kind == "zeros":
                rows.append(f"  {p.name}: array<vec4<u32>, 2>,")
                continue
            words = WORDS[p.kind]
            names = [p.name] if words == 1 else [f"{p.name}_{k}" for k in range(words)]
            rows += [
                f"  {n}: {p.kind if words == 1 and p.kind != 'bool' else 'u32'}," for n in names
            ]
        return (
            "struct Block {\n" + "\n".join(rows) + "\n}\n"
            "@group(0) @binding(0) var<uniform> p: Block;\n"
            # Of which no compiler knows the value. A driver that makes a form of the program for
            # the values in the uniform block, as Mesa does for those that a condition is made of
            # alone, takes only values at a fixed place.
            "fn zero() -> u32 { return p.zeros[p.which_zero].x; }"
        )

    def declarations(self) -> str:
        rows: list[str] = []
        seen: set[str] = set()
        number = 1
        for a in self.function.parameters:
            if not isinstance(a, Array):
                continue
            b = self.bindings[a.name]
            if b.name in seen:
                continue
            seen.add(b.name)
            access = "read_write" if b.written or b.atomic else "read"
            rows.append(
                f"@group(0) @binding({number}) var<storage, {access}> {b.name}: array<{b.element}>;"
            )
            number += 1
        for a in self.function.arrays:
            if is_large(a):
                b = self.bindings[a.name]
                rows.append(
                    f"@group(0) @binding({number}) var<storage, read> {b.name}: array<u32>;"
                )
                self.constants.append(a.data or b"")
                number += 1
        if self.sites:
            rows.append(
                f"@group(0) @binding({number}) var<storage, read_write> reports: "
                "array<atomic<u32>>;"
            )
            number += 1
        if self.guards:
            rows.append(f"@group(0) @binding({number}) var<storage, read_write> cut: array<u32>;")
        for a in self.function.arrays:
            self.declare_array(a)
        return "\n".join(rows)

    def declare_array(self, a: Array) -> None:
        if a.dynamic:
            b = self.bindings[a.name]
            count = "dynamic_count" if b.bits == 32 else "(dynamic_count + 1u) / 2u"
            self.globals["dynamic_words"] = (
                "override dynamic_count: u32 = 1u;\n"
                f"var<workgroup> dynamic_words: array<{b.element}, {count}>;"
            )
            return
        assert a.shape is not None
        size = math.prod(a.shape) * a.dtype.itemsize
        name = self.name(a.name)
        if is_large(a):
            return
        if a.space == "const":
            data = (a.data or b"").ljust(-(-size // 4) * 4 or 4, b"\0")
            words = [int.from_bytes(data[k : k + 4], "little") for k in range(0, len(data), 4)]
            values = ", ".join(f"{w}u" for w in words)
            self.globals[name] = f"const {name} = array<u32, {len(words)}>({values});"
        elif a.space == "shared":
            if a.name in self.typed:
                kind = self.typed[a.name]
                length = max(1, math.prod(a.shape))
                if a.name in self.atomics:
                    bits = 64 if WORDS[kind] == 2 else 32
                    element = f"atomic<u{bits}>"
                else:
                    element = "u32" if is_flags(a) else wgsl(kind)
                self.shared_bytes += length * 4 * WORDS[kind]
            else:
                length = max(1, -(-size // 4))
                element = self.bindings[a.name].element
                self.shared_bytes += 4 * length
            self.globals[name] = f"var<workgroup> {name}: array<{element}, {length}>;"

    def coordinates(self) -> list[str]:
        """Block and thread indices that the body asks for."""
        f, index = self.function, self.index
        nodes = list(ir.all_expressions(f.body))
        used = {(e.name, e.axis) for e in nodes if isinstance(e, Special)}
        linear = ("linearBlock", 0) in used
        lines: list[str] = []
        need = {a for n, a in used if n in ("blockIdx", "globalIdx")}
        grid = {a for n, a in used if n in ("gridDim", "globalDim")}
        if linear or self.variant.fold:
            need |= {0, 1, 2} if linear else set()
            grid |= {0, 1}
        if ("threads", 0) in used:
            self.parameters.append(Parameter("threads", "u32", ("threads",)))
        for axis in sorted(grid):
            self.parameters.append(Parameter(f"grid_{AXES[axis]}", "u32", ("grid", axis)))
        if self.variant.fold:
            self.parameters.append(Parameter("blocks", "u32", ("blocks",)))
            lines += [
                "  let linear = workgroup.y * workgroups.x + workgroup.x;",
                "  if (linear >= p.blocks) { return; }",
                "  let block_x = linear % p.grid_x;",
                "  let block_y = (linear / p.grid_x) % p.grid_y;",
                "  let block_z = linear / (p.grid_x * p.grid_y);",
            ]
        else:
            lines += [f"  let block_{AXES[a]} = workgroup.{AXES[a]};" for a in sorted(need)]
        if linear:
            lines.append(
                "  let linear_block = block_x + p.grid_x * (block_y + p.grid_y * block_z);"
            )
        for axis in sorted({a for n, a in used if n == "globalIdx"}):
            x = AXES[axis]
            start = self.integer_text("mul", index, self.as_index(f"block_{x}"),
                                      literal(self.block[axis], index))  # fmt: skip
            text = self.integer_text("add", index, start, self.as_index(f"thread.{x}"))
            lines.append(f"  let global_{x} = {text};")
        return lines

    def arguments(self) -> list[str]:
        """Fields for scalars and shapes, and the lines that make values of them."""
        f = self.function
        nodes = [*ir.all_expressions(f.body), *ir.statements(f.body)]
        read = {e.variable for e in nodes if isinstance(e, Read)}
        extents: set[tuple[str, int]] = set()
        strides: set[tuple[str, int]] = set()
        touched: set[str] = set()
        lines: list[str] = []
        for e in nodes:
            match e:
                case Extent(array, axis):
                    extents.add((array.name, axis))
                case Stride(array, axis):
                    lines += self.stride_field(array, axis)
                case Load() | Store() | Atomic() | WideLoad() | WideStore():
                    a = e.array
                    touched.add(a.name)
                    if a.shape is None and not a.dynamic:
                        axes = range(a.ndim)
                        if a.layout == "A":
                            strides |= {(a.name, k) for k in axes}
                        else:
                            extents |= {(a.name, k) for k in axes[1:]}
        for k, q in enumerate(f.parameters):
            if isinstance(q, Variable):
                continue
            size = {"w": 4, "b": 1, "u": 1}[self.array_unit(q)]
            if q.name in touched:
                self.parameters.append(Parameter(f"base_{k}", self.address, ("base", k), size))
                self.names[f"base {q.name}"] = f"p.base_{k}"
            for axis in range(q.ndim):
                if (q.name, axis) in extents:
                    lines += self.field(f"extent_{k}_{axis}", self.index, ("extent", k, axis))
                    self.names[f"extent {q.name} {axis}"] = f"extent_{k}_{axis}"
                if (q.name, axis) in strides:
                    where = ("stride", k, axis)
                    name = f"stride_{k}_{axis}"
                    self.parameters.append(Parameter(name, self.address, where, size, True))
                    lines.append(f"  let {name} = p.{name};")
                    self.names[f"stride {q.name} {axis}"] = f"stride_{k}_{axis}"
        if any(a.dynamic for a in f.arrays) or Special("sharedBytes") in nodes:
            lines += self.field("shared_bytes", self.index, ("shared",))
        scalars = [q for q in f.parameters if isinstance(q, Variable)]
        scalars += [s.variable for s in f.prologue]
        for v in dict.fromkeys(scalars):
            if v not in read:
                continue
            kind = self.kind(v.dtype, f.place)
            name = self.name(v.name)
            source = ("scalar", v.name)
            if v in self.written:
                inner = self.field(f"start_{name}", kind, source)
                lines += [*inner, f"  var {name} = start_{name};"]
            else:
                lines += self.field(name, kind, source)
        for v in sorted(self.written - set(scalars), key=lambda v: v.name):
            lines.append(f"  var {self.name(v.name)}: {wgsl(self.kind(v.dtype, f.place))};")
        return lines

    def stride_field(self, array: Array, axis: int) -> list[str]:
        """Bytes between neighbours, as a value."""
        key = f"bytes {array.name} {axis}"
        if array.shape is not None or array.dynamic or key in self.names:
            return []
        k = self.function.parameters.index(array)
        self.names[key] = f"bytes_{k}_{axis}"
        return self.field(self.names[key], self.index, ("stride", k, axis))

    def array_unit(self, a: Array) -> str:
        return self.unit(a, None) if isinstance(a.dtype, DType) else "b"

    def field(self, name: str, kind: str, source: tuple[Any, ...], unit: int = 1) -> list[str]:
        """A field of the block; the line that makes a value of its words."""
        self.parameters.append(Parameter(name, kind, source, unit))
        words = [f"p.{name}"] if WORDS[kind] == 1 else [f"p.{name}_{k}" for k in range(WORDS[kind])]
        if kind in ("i32", "u32", "f32"):
            return [f"  let {name} = {words[0]};"]
        return [f"  let {name} = {decode(kind, words)};"]

    # ---- names, lines

    def name(self, wanted: str) -> str:
        found = self.names.get(wanted)
        if found is None:
            base = "v_" + re.sub(r"[^0-9A-Za-z_]", "_", wanted)
            base = re.sub(r"__+", "_", base).rstrip("_")
            found, k = base, 1
            while found in self.names.values():
                k += 1
                found = f"{base}_{k}"
            self.names[wanted] = found
        return found

    def fresh(self, base: str) -> str:
        self.serial += 1
        return f"{base}{self.serial}"

    def line(self, depth: int, text: str) -> None:
        if depth > DEEPEST:
            raise UnsupportedError(
                f"`{self.function.name}` is nested too deeply for WGSL, which has {DEEPEST} levels",
                self.place,
                hint="split the chain of `elif`, the ternaries or the loops into statements of "
                "their own",
            )
        self.lines.append("  " * depth + text)
        self.numbers.append(self.place.line)

    def kind(self, dtype: DType, place: Place) -> str:
        """How a value is held; refused where the adapter lacks it and the policy says so."""
        kind = self.held(dtype)
        need = NEEDS.get(kind)
        lacks = need is not None and not self.target.get(need)
        if lacks or (kind in wide.KINDS and not dtype.weak and not self.emulates):
            way = (
                "missing='demote') computes it in a 32-bit dtype"
                if lacks
                else "missing='emulate') makes it of 32-bit words"
            )
            raise UnsupportedError(
                f"{dtype} is not on {self.adapter()}",
                place,
                hint=f"use a 32-bit dtype; or ruda.config({way}",
            )
        return kind

    def held(self, dtype: DType) -> str:
        kind = kind_of(dtype, self.index)
        words = self.pairs and kind in ("i64", "u64")
        words |= kind in ("f64", "c128") and demotes(self.target, self.variant.missing)
        return kind.upper() if words else kind

    @property
    def emulates(self) -> bool:
        return self.variant.missing in ("emulate", "demote")

    def as_index(self, text: str) -> str:
        """An unsigned word as an index."""
        if self.index == "I64":
            return f"u32_to_I64({text})"
        # Mesa's llvmpipe takes i64(u32) for smaller than any constant: extend as unsigned.
        return f"bitcast<i64>(u64({text}))" if self.index == "i64" else f"i32({text})"

    def as_address(self, text: str) -> str:
        """An index as an address: its low word."""
        constant = re.fullmatch(r"\(?(-?\d+)li\)?", text)  # naga converts no constants
        if constant:
            return literal(int(constant[1]) & 0xFFFFFFFF, self.address)
        if self.index == "I64":
            return f"{text}.x"
        return f"u32({text})" if self.variant.wide else text

    # ---- statements

    def body(self, body: Body, depth: int) -> None:
        for s in body:
            if s.place.line:
                self.place = s.place
            self.statement(s, depth)

    def statement(self, s: Statement, depth: int) -> None:
        e = self.text
        match s:
            case Assign(variable, value):
                self.line(depth, f"{self.name(variable.name)} = {self.kept(value)};")
            case Store(array, indices, value, part):
                place = self.element(array, indices, part)
                kept = e(value) if array.space == "global" else self.kept(value)
                self.line(depth, self.store(array, part, place, kept))
            case If(condition, then, otherwise):
                self.line(depth, f"if ({e(condition)}) {{")
                self.body(then, depth + 1)
                if otherwise:
                    self.line(depth, "} else {")
                    self.body(otherwise, depth + 1)
                self.line(depth, "}")
            case For():
                self.counted(s, depth)
            case While(condition, body):
                self.open_loop(depth)
                self.line(depth, "loop {")
                if not (isinstance(condition, Const) and condition.value):
                    self.line(depth + 1, f"if (!({e(condition)})) {{ {self.leave()} }}")
                self.body(body, depth + 1)
                self.close_loop(depth)
            case Break():
                self.line(depth, self.leave())
            case Continue():
                self.line(depth, "continue;")
            case ir.Return():
                self.line(depth, "return;")
            case Atomic():
                self.atomic(s, depth)
            case WideLoad():
                self.wide_load(s, depth)
            case WideStore():
                self.wide_store(s, depth)
            case Declare(array):
                self.declare_local(array, depth)
            case Breakpoint():
                pass
            case Asm("cpu", "report", operands):
                self.report(s, operands, depth)
            case Asm("wgpu", name, operands, results):
                self.meeting(name, operands, results, depth)
            case Fence(scope):
                raise UnsupportedError(
                    f"WebGPU has no fence for memory of the {scope} without a barrier",
                    s.place,
                    hint="use ruda.syncthreads() within a block, atomics or two launches otherwise",
                )
            case _:
                raise UnsupportedError(
                    f"WebGPU has no {type(s).__name__.lower()} statement", s.place
                )

    def counted(self, s: For, depth: int) -> None:
        kind = self.kind(s.variable.dtype, s.place)
        start, stop = self.text(s.start), self.text(s.stop)
        name = self.name(s.variable.name)
        step = s.step.value if isinstance(s.step, Const) else None
        if step in (1, -1):
            end = self.fresh("stop")
            self.line(depth, f"let {end} = {stop};")
            test, change = ("lt", "add") if step == 1 else ("gt", "sub")
            test = self.compared(test, kind, name, end)
            after = self.integer_text(change, kind, name, literal(1, kind))
            self.open_for(f"{name} = {start}", test, f"{name} = {after}", depth)
            if self.assigned_inside(s):
                raise AssertionError("the variable of a loop belongs to the loop")
            self.body(s.body, depth + 1)
            self.close_loop(depth)
            return
        first, each, count, k = (self.fresh(n) for n in ("first", "step", "count", "k"))
        unsigned = UNSIGNED[kind]
        zero, unit = literal(0, unsigned), literal(1, unsigned)
        self.line(depth, f"let {first} = {start};")
        self.line(depth, f"let {each} = {self.text(s.step)};")
        self.line(depth, f"let {count} = trips_{kind}({first}, {stop}, {each});")
        test = self.compared("lt", unsigned, k, count)
        after = self.integer_text("add", unsigned, k, unit)
        self.open_for(f"var {k} = {zero}", test, f"{k} = {after}", depth)
        number = k if kind in wide.KINDS else f"{kind}({k})"
        way = self.integer_text("mul", kind, number, each)
        self.line(depth + 1, f"{name} = {self.integer_text('add', kind, first, way)};")
        self.body(s.body, depth + 1)
        self.close_loop(depth)

    def open_for(self, first: str, test: str, after: str, depth: int) -> None:
        self.open_loop(depth)
        if self.guards:
            self.line(depth, f"for ({first}; ; {after}) {{")
            self.line(depth + 1, f"if (!{test}) {{ {self.leave()} }}")
        else:
            self.line(depth, f"for ({first}; {test}; {after}) {{")

    def open_loop(self, depth: int) -> None:
        if self.guards:
            self.loops.append(self.fresh("left"))
            self.line(depth, f"var {self.loops[-1]} = false;")

    def leave(self) -> str:
        """Out of the innermost loop."""
        return f"{self.loops[-1]} = true; break;" if self.guards else "break;"

    def close_loop(self, depth: int) -> None:
        self.line(depth, "}")
        if self.guards:
            self.line(depth, f"if (!{self.loops.pop()}) {{ cut[0] = p.kernel; }}")

    def assigned_inside(self, s: For) -> bool:
        return any(s.variable in ir.written(x) for x in ir.statements(s.body))

    def declare_local(self, a: Array, depth: int) -> None:
        if a.space != "local":
            return
        assert a.shape is not None
        name = self.name(a.name)
        if a.name in self.typed:
            if a.name in self.atomics:
                raise UnsupportedError("WebGPU has no atomics on local memory", self.place)
            count, element = max(1, math.prod(a.shape)), wgsl(self.typed[a.name])
        else:
            count = max(1, -(-math.prod(a.shape) * a.dtype.itemsize // 4))
            element = "u32"
        text = f"var {name}: array<{element}, {count}>;"
        if name not in self.globals:  # declared once, at the top, so that all nested code sees it
            self.globals[name] = ""
            self.lines.insert(0, "  " + text)
            self.numbers.insert(0, self.place.line)
        assert depth

    def report(self, s: Asm, operands: Sequence[Expr], depth: int) -> None:
        site = operands[0]
        assert isinstance(site, Const)
        values = [self.expression(v) for v in operands[3:]]
        name = self.reporter(
            int(site.value), [(v.kind, o.dtype) for v, o in zip(values, operands[3:], strict=True)]
        )
        given = ", ".join(["linear_block", "t", *(v.text for v in values)])
        self.line(depth, f"{name}({given});")

    def reporter(self, site: int, kinds: Sequence[tuple[str, DType]]) -> str:
        """The function that writes a site's record; words as the CPU's reports have them."""
        name = f"report_{site}"
        if name in self.functions:
            return name
        head = ["block: u32", "thread: u32"]
        words = [f"{site + 1}u", "0u", "block", "0u", "thread", "0u"]
        for k, (kind, dtype) in enumerate(kinds):
            head.append(f"a{k}: {wgsl(kind)}")
            words += report_words(f"a{k}", kind, dtype)
        count = len(words) // 2
        rows = [
            f"  let at = atomicAdd(&reports[0], {count}u);",
            f"  if (at + {count}u > atomicLoad(&reports[2])) {{",
            "    atomicAdd(&reports[4], 1u);",
            "    return;",
            "  }",
            "  let w = 6u + 2u * at;",
            *(f"  atomicStore(&reports[w + {k}u], {w});" for k, w in enumerate(words) if w != "0u"),
        ]
        self.functions[name] = f"fn {name}({', '.join(head)}) {{\n" + "\n".join(rows) + "\n}\n"
        return name

    def meeting(
        self, name: str, operands: Sequence[Expr], results: Sequence[Variable], depth: int
    ) -> None:
        threads = math.prod(self.block)
        if name == "barrier":
            self.line(depth, "workgroupBarrier();")
            if self.shares_buffers:
                self.line(depth, "storageBarrier();")
            return
        values = [self.expression(o) for o in operands]
        target = self.name(results[0].name)
        if name == "count":
            self.shared("vote_count", "atomic<u32>", 4)
            self.shared("vote_result", "u32", 4)
            self.functions["count_true"] = COUNT
            self.line(depth, f"{target} = count_true({values[0].text}, t);")
        elif name == "ballot":
            count = -(-threads // 32)
            self.shared("ballots", f"array<atomic<u32>, {count}>", 4 * count)
            self.functions["ballot"] = BALLOT
            self.line(depth, f"{target} = ballot({values[0].text}, t);")
        else:
            kind = values[0].kind
            held = "u32" if kind == "bool" else kind
            self.shared(
                f"lanes_{held}", f"array<{wgsl(held)}, {threads}>", 4 * WORDS[held] * threads
            )
            text = f"u32({values[0].text})" if kind == "bool" else values[0].text
            if name == "exchange":
                self.functions[f"exchange_{held}"] = (
                    EXCHANGE.replace("KIND", held).replace("TYPE", wgsl(held))
                    .replace("LAST", f"{threads - 1}u")
                )  # fmt: skip
                found = f"exchange_{held}({text}, {values[1].text}, t)"
                found = f"({found} != 0u)" if kind == "bool" else found
            else:
                same = " & ".join(
                    f"({a} == {b})"
                    for a, b in zip(
                        report_words("value", held, operands[0].dtype),
                        report_words("other", held, operands[0].dtype), strict=True,
                    )
                    if a != "0u"
                )  # fmt: skip
                self.functions[f"match_{held}"] = (
                    MATCH.replace("KIND", held).replace("TYPE", wgsl(held))
                    .replace("SAME", same).replace("LAST", f"{threads - 1}u")
                )  # fmt: skip
                found = f"match_{held}({text}, {values[1].text}, t)"
            self.line(depth, f"{target} = {found};")

    def shared(self, name: str, kind: str, nbytes: int) -> None:
        if name not in self.globals:
            self.globals[name] = f"var<workgroup> {name}: {kind};"
            self.shared_bytes += nbytes

    # ---- elements of arrays

    def element(self, a: Array, indices: tuple[Expr, ...], part: Field | None) -> Place_:
        texts = [self.as_address(self.text(i)) for i in indices]
        binding = self.bindings.get(a.name)
        if binding is None:
            assert a.shape is not None
            linear = self.linear(a, texts)
            if self.inside is not None and not self.inside.has(indices):
                last = f"{max(1, math.prod(a.shape)) - 1}u"
                linear = f"{self.address}({held_to(linear, last)})"
            return Place_(None, f"{self.name(a.name)}[{linear}]")
        unit = self.unit(a, part)
        size = a.dtype.itemsize // 4 if unit == "w" else a.dtype.itemsize
        if a.layout == "A" and a.shape is None and not a.dynamic:
            terms = [f"{t} * {self.names[f'stride {a.name} {k}']}" for k, t in enumerate(texts)]
        else:
            linear = self.linear(a, texts)
            zero = linear == literal(0, self.address)
            step = literal(size, self.address)
            terms = [] if zero else [linear if size == 1 else f"{linear} * {step}"]
        if part is not None and part.offset:
            terms.append(literal(part.offset, self.address))
        if a.space == "global":
            base = self.names[f"base {a.name}"]
            if self.array_unit(a) == "w" and unit != "w":
                base = f"{literal(4, self.address)} * {base}"
            terms.insert(0, base)
        text = " + ".join(f"({t})" if " " in t else t for t in terms)
        return Place_(binding, text or literal(0, self.address), unit)

    def linear(self, a: Array, texts: Sequence[str]) -> str:
        """The number of an element in C order."""
        text = ""
        for k, t in enumerate(texts):
            t = f"({t})" if " " in t else t
            text = t if not text else f"({text} * {self.as_address(self.extent(a, k))} + {t})"
        return text or literal(0, self.address)

    def extent(self, a: Array, axis: int) -> str:
        if a.shape is not None:
            return literal(a.shape[axis], self.index)
        if a.dynamic:
            size = literal(a.dtype.itemsize, self.index)
            return self.integer("floordiv", dtypes.index, self.index, ["shared_bytes", size]).text
        return self.names[f"extent {a.name} {axis}"]

    def stride(self, a: Array, axis: int) -> str:
        if a.shape is not None:
            return literal(math.prod(a.shape[axis + 1 :]) * a.dtype.itemsize, self.index)
        if a.dynamic:
            return literal(a.dtype.itemsize, self.index)
        return self.names[f"bytes {a.name} {axis}"]

    # ---- neighbours, by one access

    def neighbours(self, s: WideLoad | WideStore, count: int) -> list[tuple[Expr, ...]] | None:
        """The indices of each, where together they are less than a word."""
        if s.array.dtype.itemsize * count % 4 == 0:
            return None
        *others, last = s.indices
        return [
            (*others, Op("add", (last, Const(k, dtypes.index)), dtypes.index)) for k in range(count)
        ]

    def first_word(self, s: WideLoad | WideStore) -> str:
        place = self.element(s.array, s.indices, None)
        return place.text if place.unit == "w" else f"(({place.text}) >> 2u)"

    def wide_load(self, s: WideLoad, depth: int) -> None:
        a, size = s.array, s.array.dtype.itemsize
        names = [self.name(v.name) for v in s.results]
        apart = self.neighbours(s, len(names))
        if apart is not None:
            for name, indices in zip(names, apart, strict=True):
                found = self.load(a, None, self.element(a, indices, None))
                self.line(depth, f"{name} = {found.text};")
            return
        dtype, binding = self.dtype(a, None), self.bindings[a.name]
        kind, count = self.kind(dtype, s.place), size * len(names) // 4
        at, group = self.fresh("at"), self.fresh("group")
        self.line(depth, f"let {at} = {self.first_word(s)};")
        if binding.width == count > 1:
            self.line(depth, f"let {group} = {binding.name}[{at} >> {count // 2}u];")
            words = [f"{group}.{x}" for x in "xyzw"[:count]]
        else:
            words = [f"{group}_{k}" for k in range(count)]
            unit = "u" if self.variant.wide else "i"
            for k, word in enumerate(words):
                self.line(depth, f"let {word} = {binding.load(f'{at} + {k}{unit}')};")
        for k, name in enumerate(names):
            if size >= 4:
                each = size // 4
                value = decode(kind, words[each * k : each * (k + 1)])
            else:
                raw = f"({words[size * k // 4]} >> {8 * (size * k % 4)}u)"
                value = from_small(dtype, f"({raw} & {(1 << 8 * size) - 1}u)")
            self.line(depth, f"{name} = {value};")

    def wide_store(self, s: WideStore, depth: int) -> None:
        a, size = s.array, s.array.dtype.itemsize
        values = [self.fresh("value") for _ in s.values]
        for name, value in zip(values, s.values, strict=True):
            self.line(depth, f"let {name} = {self.text(value)};")
        apart = self.neighbours(s, len(values))
        if apart is not None:
            for name, indices in zip(values, apart, strict=True):
                self.line(depth, self.store(a, None, self.element(a, indices, None), name))
            return
        dtype, binding = self.dtype(a, None), self.bindings[a.name]
        kind, count = self.kind(dtype, s.place), size * len(values) // 4
        if size >= 4:
            words = [word for v in values for word in encode(kind, v)]
        else:
            each = 4 // size
            parts = [f"(({to_small(dtype, v)}) << {8 * size * (k % each)}u)"
                     for k, v in enumerate(values)]  # fmt: skip
            words = [f"({' | '.join(parts[k : k + each])})" for k in range(0, len(parts), each)]
        at = self.fresh("at")
        self.line(depth, f"let {at} = {self.first_word(s)};")
        if binding.width == count > 1:
            where = f"{binding.name}[{at} >> {count // 2}u]"
            self.line(depth, f"{where} = vec{count}<u32>({', '.join(words)});")
            return
        unit = "u" if self.variant.wide else "i"
        for k, word in enumerate(words):
            self.line(depth, binding.store(f"{at} + {k}{unit}", word))

    def dtype(self, a: Array, part: Field | None) -> DType:
        dtype = a.dtype if part is None else part.dtype
        assert isinstance(dtype, DType)
        return dtype

    def load(self, a: Array, part: Field | None, place: Place_) -> Term:
        dtype = self.dtype(a, part)
        kind = self.kind(dtype, self.place)
        origin = "sum"  # what was stored may have been one
        if place.binding is None:
            if a.name in self.atomics:
                return Term(decode(kind, atomic_words(place.text, kind)), kind, origin)
            if is_flags(a):
                return Term(f"({place.text} != 0u)", kind, origin)
            return Term(place.text, kind, origin)
        written = place.binding.written
        origin = "sum" if written else ""
        if place.unit == "w" and WORDS[kind] == 1 and place.binding.bits == 32:
            return Term(decode(kind, [place.binding.load(place.text)]), kind, origin)
        name = self.accessor("get", place, dtype, kind)
        return Term(f"{name}({place.text})", kind, origin)

    def store(self, a: Array, part: Field | None, place: Place_, value: str) -> str:
        dtype = self.dtype(a, part)
        kind = self.kind(dtype, self.place)
        if place.binding is None:
            if a.name in self.atomics:
                word = pack_atomic(kind, value)
                return f"atomicStore(&{place.text}, {word});"
            if is_flags(a):
                return f"{place.text} = u32({value});"
            return f"{place.text} = {value};"
        if place.unit == "w" and WORDS[kind] == 1 and place.binding.bits == 32:
            return place.binding.store(place.text, encode(kind, value)[0])
        name = self.accessor("set", place, dtype, kind)
        return f"{name}({place.text}, {value});"

    def accessor(self, verb: str, place: Place_, dtype: DType, kind: str) -> str:
        """A function that reads or writes a number of several words, or of a part of one."""
        binding = place.binding
        assert binding is not None
        name = f"{binding.name}_{verb}_{dtype.short if not dtype.weak else kind}_{place.unit}"
        if name in self.functions:
            return name
        at = self.address
        self.functions[name] = ""  # what it calls comes before it
        size = dtype.itemsize
        if verb == "get":
            if size < 4:
                raw = self.small(binding, "at", size, place.unit)
                body = f"  return {from_small(dtype, raw)};"
            else:
                words = [self.word(binding, k, place.unit) for k in range(size // 4)]
                body = f"  return {decode(kind, words)};"
            text = f"fn {name}(at: {at}) -> {wgsl(kind)} {{\n{body}\n}}\n"
        else:
            rows = []
            if size < 4:
                rows.append(
                    "  " + self.set_small(binding, "at", to_small(dtype, "x"), size, place.unit)
                )
            else:
                for k, word in enumerate(encode(kind, "x")):
                    rows.append("  " + self.set_word(binding, k, word, place.unit))
            body = "\n".join(rows)
            text = f"fn {name}(at: {at}, x: {wgsl(kind)}) {{\n{body}\n}}\n"
        del self.functions[name]
        self.functions[name] = text
        return name

    def word(self, b: Binding, k: int, unit: str) -> str:
        s = "u" if self.variant.wide else "i"
        if unit == "w":
            at = f"at + {k}{s}" if k else "at"
            if b.bits == 64:
                whole = b.load(f"({at}) >> 1u")
                return f"u32({whole} >> ((u32({at}) & 1u) * 32u))"
            return b.load(at)
        return f"{self.unaligned(b)}({f'at + {4 * k}{s}' if k else 'at'})"

    def set_word(self, b: Binding, k: int, word: str, unit: str) -> str:
        s = "u" if self.variant.wide else "i"
        if unit == "w":
            at = f"at + {k}{s}" if k else "at"
            if b.bits == 64:
                half = f"((u32({at}) & 1u) * 32u)"
                where = f"&{b.at(f'({at}) >> 1u')}"
                return (
                    f"atomicAnd({where}, ~(4294967295lu << {half})); "
                    f"atomicOr({where}, u64({word}) << {half});"
                )
            return b.store(at, word)
        return f"{self.unaligned_store(b)}({f'at + {4 * k}{s}' if k else 'at'}, {word});"

    def small(self, b: Binding, at: str, size: int, unit: str) -> str:
        if b.bits == 64:
            raise UnsupportedError(
                "WebGPU cannot mix 64-bit atomics and 8- or 16-bit elements in one memory",
                self.place,
            )
        mask = "255u" if size == 1 else "65535u"
        if size == 2 and unit == "u":
            return f"({self.unaligned(b)}({at}) & {mask})"
        return f"(({b.load(f'{at} >> 2u')} >> ((u32({at}) & 3u) * 8u)) & {mask})"

    def set_small(self, b: Binding, at: str, value: str, size: int, unit: str) -> str:
        if b.bits == 64:
            self.small(b, at, size, unit)
        s = "u" if self.variant.wide else "i"
        if size == 2 and unit == "u":
            return (
                self.set_small(b, at, f"({value} & 255u)", 1, "b") + " "
                + self.set_small(b, f"({at} + 1{s})", f"(({value} >> 8u) & 255u)", 1, "b")
            )  # fmt: skip
        mask = "255u" if size == 1 else "65535u"
        shift = f"((u32({at}) & 3u) * 8u)"
        where = f"&{b.at(f'{at} >> 2u')}"
        return f"atomicAnd({where}, ~({mask} << {shift})); atomicOr({where}, ({value}) << {shift});"

    def unaligned(self, b: Binding) -> str:
        name = f"{b.name}_unaligned"
        at, s = ("u32", "u") if self.variant.wide else ("i32", "i")
        self.functions.setdefault(
            name,
            f"fn {name}(at: {at}) -> u32 {{\n"
            f"  let low = {b.load('at >> 2u')};\n"
            "  let n = (u32(at) & 3u) * 8u;\n"
            "  if (n == 0u) { return low; }\n"
            f"  return (low >> n) | ({b.load(f'(at >> 2u) + 1{s}')} << (32u - n));\n}}\n",
        )
        return name

    def unaligned_store(self, b: Binding) -> str:
        name = f"{b.name}_unaligned_set"
        if name not in self.functions:
            at, s = ("u32", "u") if self.variant.wide else ("i32", "i")
            rows = [
                "  " + self.set_small(b, f"(at + {k}{s})", f"((x >> {8 * k}u) & 255u)", 1, "b")
                for k in range(4)
            ]
            body = "\n".join(rows)
            self.functions[name] = f"fn {name}(at: {at}, x: u32) {{\n{body}\n}}\n"
        return name

    # ---- atomics

    def atomic(self, s: Atomic, depth: int) -> None:
        a = s.array
        dtype = self.dtype(a, s.field)
        kind = self.kind(dtype, s.place)
        if dtype.kind == "complex":
            raise UnsupportedError("there are no atomics on complex numbers", s.place)
        if a.space == "local":
            raise UnsupportedError("WebGPU has no atomics on local memory", s.place)
        place = self.element(a, s.indices, s.field)
        operands = [self.text(o) for o in s.operands]
        if place.binding is None:
            name = f"{self.name(a.name)}_atomic_{s.op}"
            bits = 64 if WORDS[kind] == 2 else 32
            where, at = f"&{self.name(a.name)}[at]", place.text.partition("[")[2][:-1]
        else:
            if place.unit == "u" and dtype.itemsize > 1:
                raise UnsupportedError(
                    "WebGPU has no atomics on fields of records or unaligned arrays", s.place
                )
            name = f"{place.binding.name}_atomic_{s.op}_{dtype.short}"
            bits = place.binding.bits
            at = place.text
            shift = ">> 2u" if dtype.itemsize < 4 else ">> 1u" if bits == 64 else ""
            where = f"&{place.binding.at(f'at {shift}' if shift else 'at')}"
            if bits == 64 and dtype.itemsize < 8:
                raise UnsupportedError(
                    "WebGPU cannot mix 64-bit and other atomics in one memory", s.place
                )
        if bits == 64 and not self.target.get("int64_atomics"):
            raise UnsupportedError(
                f"atomics on {dtype} need 64-bit atomics, which {self.adapter()} lacks", s.place,
                hint="use a 32-bit dtype",
            )  # fmt: skip
        if name not in self.functions:
            text = self.atomic_function(name, s.op, dtype, kind, bits, where, self.address, place)
            self.functions[name] = text
        call = f"{name}({', '.join([at, *operands])})"
        if s.result is None:
            self.line(depth, f"{call};")
        else:
            self.line(depth, f"{self.name(s.result.name)} = {call};")

    def atomic_function(
        self, name: str, op: str, dtype: DType, kind: str, bits: int, where: str, index: str,
        place: Place_,
    ) -> str:  # fmt: skip
        head = "expected: K, x: K" if op == "cas" else "x: K"
        head = head.replace("K", wgsl(kind))
        word = f"u{bits}"
        whole = dtype.itemsize * 8 == bits and dtype.is_integer
        signless = op not in ("min", "max") or dtype.kind == "uint"
        if whole and signless and op in NATIVE_ATOMICS:
            value = f"bitcast<{word}>(x)" if kind != word else "x"
            found = f"atomic{NATIVE_ATOMICS[op]}({where}, {value})"
            found = f"bitcast<{kind}>({found})" if kind != word else found
            return f"fn {name}(at: {index}, {head}) -> {kind} {{\n  return {found};\n}}\n"
        small = dtype.itemsize < 4 and place.binding is not None
        if small:
            mask = "255u" if dtype.itemsize == 1 else "65535u"
            before = from_small(dtype, f"((old >> n) & {mask})")
        elif dtype.itemsize < 4:
            before = decode(kind, ["old"])
        else:
            before = unpack_atomic(kind, "old")
        after = self.atomic_value(op, dtype, kind)
        if small:
            packed = f"((old & ~({mask} << n)) | (({to_small(dtype, 'after')}) << n))"
        else:
            packed = pack_atomic(kind, "after")
        rows = [f"fn {name}(at: {index}, {head}) -> {wgsl(kind)} {{"]
        if small:
            rows.append("  let n = (u32(at) & 3u) * 8u;")
        rows += [
            f"  var old = atomicLoad({where});",
            "  loop {",
            f"    let before = {before};",
            f"    let after = {after};",
            f"    let r = atomicCompareExchangeWeak({where}, old, {packed});",
            "    if (r.exchanged) { return before; }",
            "    old = r.old_value;",
            "  }",
            f"  return {zero_of(kind)};",
            "}\n",
        ]
        return "\n".join(rows)

    def atomic_value(self, op: str, dtype: DType, kind: str) -> str:
        before, x = Term("before", kind), Term("x", kind)
        match op:
            case "exch":
                return "x"
            case "cas":
                same = " & ".join(
                    f"({a} == {b})"
                    for a, b in zip(
                        report_words("before", kind, dtype),
                        report_words("expected", kind, dtype), strict=True,
                    )
                    if a != "0u"
                )  # fmt: skip
                return f"select(before, x, {same})"
            case "inc":
                one = literal(1, kind)
                return f"select(before + {one}, {literal(0, kind)}, before >= x)"
            case "dec":
                zero, one = literal(0, kind), literal(1, kind)
                return f"select(before - {one}, x, (before == {zero}) | (before > x))"
        name = {"nanmax": "fmax", "nanmin": "fmin"}.get(op, op)
        if dtype.is_integer:
            name = {"fmax": "max", "fmin": "min"}.get(name, name)
        found = self.operation(name, dtype, dtype, [before, x])
        if dtype.itemsize < 4 and dtype.is_integer:
            return narrowed(found.text, dtype)
        return found.text

    # ---- expressions

    def text(self, node: Expr) -> str:
        return self.expression(node).text

    def expression(self, node: Expr) -> Term:
        match node:
            case Const(value, dtype):
                return self.constant(value, dtype)
            case Read(variable):
                kind = self.kind(variable.dtype, node.place)
                name = self.name(variable.name)
                return Term(name, kind, self.origins.get(variable, ""))
            case Special(name, axis):
                return self.special(name, axis)
            case Extent(array, axis):
                return Term(self.extent(array, axis), self.index)
            case Stride(array, axis):
                return Term(self.stride(array, axis), self.index)
            case Op():
                return self.op(node)
            case Cast(Cast(value, dtypes.weak_float), dtype) if (
                value.dtype.is_integer and not self.target.get("float64")
            ):
                # An integer on its way through float64, which rounds only those of over 53 bits.
                found = self.expression(value)
                if found.kind in wide.KINDS:
                    found = Term(f"through_f64_{found.kind}({found.text})", found.kind)
                return self.cast(found, value.dtype, dtype)
            case Cast(value, dtype):
                return self.cast(self.expression(value), value.dtype, dtype)
            case Bitcast(value, dtype):
                return self.bits(self.expression(value), value.dtype, dtype)
            case Select(condition, then, otherwise):
                c, a, b = map(self.expression, (condition, then, otherwise))
                origin = joined(a.origin, b.origin)
                if a.kind in ("f32", "f64") and _compares(condition, then, otherwise):
                    # A driver would take the larger one, and lose NaN and the sign of zero.
                    a = Term(f"opaque_{a.kind}({a.text})", a.kind)
                return Term(f"select({b.text}, {a.text}, {c.text})", a.kind, origin)
            case And(left, right):
                return Term(f"({self.text(left)} && {self.text(right)})", "bool")
            case Or(left, right):
                return Term(f"({self.text(left)} || {self.text(right)})", "bool")
            case Load(array, indices, part):
                found = self.load(array, part, self.element(array, indices, part))
                return found._replace(origin="") if id(indices) in self.foreign else found
        raise UnsupportedError(f"WebGPU has no {type(node).__name__}", self.place)

    def kept(self, node: Expr) -> str:
        """A value that is kept: not as the zero that a driver would leave out of a sum."""
        found = self.expression(node)
        hides = isinstance(node, Const) and not self.function.fastmath
        if hides and found.text in ("0.0f", "0.0lf"):
            return f"opaque_{found.kind}({found.text})"
        return found.text

    def constant(self, value: Any, dtype: DType) -> Term:
        kind = self.kind(dtype, self.place)
        if kind in ("c64", "c128"):
            z, part = complex(value), real_of(kind)
            return Term(f"{wgsl(kind)}({literal(z.real, part)}, {literal(z.imag, part)})", kind)
        if dtype.name in ("float16", "bfloat16"):
            value = float(dtype.numpy.type(value))
        if kind == "f32":
            import numpy as np

            with np.errstate(all="ignore"):
                value = float(np.float32(value))
        if kind == "i32" and not -(1 << 31) <= int(value) < 1 << 31:
            raise NeedsWide(f"the index {value} does not fit 31 bits")
        return Term(literal(value, kind), kind)

    def special(self, name: str, axis: int) -> Term:
        index, x = self.index, AXES[axis]
        text = {
            "threadIdx": self.as_index(f"thread.{x}"),
            "blockIdx": self.as_index(f"block_{x}"),
            "blockDim": literal(self.block[axis], index),
            "gridDim": self.as_index(f"p.grid_{x}"),
            "globalIdx": f"global_{x}",
            "globalDim": self.integer_text(
                "mul", index, self.as_index(f"p.grid_{x}"), literal(self.block[axis], index)
            ),
            "laneid": self.as_index("t & 31u"),
            "sharedBytes": "shared_bytes",
            "threads": self.as_index("p.threads"),
            "linearBlock": "linear_block",
            "linearThread": "t",
        }[name]
        return Term(text, "u32" if name.startswith("linear") else index)

    def op(self, node: Op) -> Term:
        dtype = node.operands[0].dtype
        if node.name in ("inside", "divisor"):
            return self.checked(node)
        at = self.fused_product(node)
        if at is not None:
            return self.fused(node, at)
        values = [self.expression(v) for v in node.operands]
        if node.name == "wgpu_lane_exists":
            return Term(f"((i32(t & ~31u) + {values[0].text}) < {math.prod(self.block)}i)", "bool")
        found = self.operation(node.name, dtype, node.dtype, values)
        if dtype.bits == 16 and dtype.kind == "float" and node.name not in EXACT16:
            if node.dtype.kind == "float":
                short = "f16" if dtype.name == "float16" else "bf16"
                return Term(f"round_{short}({found.text})", "f32", "")
        return found

    def checked(self, node: Op) -> Term:
        """`inside` and `divisor` of passes.reports: a test that reports."""
        head = node.operands if node.name == "inside" else node.operands[1:]
        site = head[0]
        assert isinstance(site, Const)
        values = [self.expression(v) for v in head[3:]]
        kinds = [(v.kind, o.dtype) for v, o in zip(values, head[3:], strict=True)]
        reporter = self.reporter(int(site.value), kinds)
        given = ", ".join(["linear_block", "t", *(v.text for v in values)])
        name = f"{node.name}_{site.value}"
        formal = [
            "block: u32",
            "thread: u32",
            *(f"a{k}: {wgsl(v.kind)}" for k, v in enumerate(values)),
        ]
        passed = ", ".join(["block", "thread", *(f"a{k}" for k in range(len(values)))])
        if node.name == "inside":
            half = len(values) // 2
            zero = literal(0, self.index)
            test = " & ".join(
                f"{self.compared('ge', self.index, f'a{k}', zero)} & "
                f"{self.compared('lt', self.index, f'a{k}', f'a{half + k}')}"
                for k in range(half)
            )
            self.functions[name] = (
                f"fn {name}({', '.join(formal)}) -> bool {{\n"
                f"  if ({test or 'true'}) {{ return true; }}\n"
                f"  {reporter}({passed});\n  return false;\n}}\n"
            )
            return Term(f"{name}({given})", "bool")
        y = self.expression(node.operands[0])
        self.functions[name] = (
            f"fn {name}(y: {wgsl(y.kind)}, {', '.join(formal)}) -> {wgsl(y.kind)} {{\n"
            f"  if ({self.compared('eq', y.kind, 'y', literal(0, y.kind))}) "
            f"{{ {reporter}({passed}); }}\n  return y;\n}}\n"
        )
        return Term(f"{name}({y.text}, {given})", y.kind)

    def operation(self, name: str, dtype: DType, result: DType, values: list[Term]) -> Term:
        kind = values[0].kind
        x = [v.text for v in values]
        if name == "uniform":
            return values[0]
        if name == "complex":
            pair = self.kind(result, self.place)
            return Term(f"{wgsl(pair)}({x[0]}, {x[1]})", pair)
        if kind == "bool":
            return self.logic(name, x)
        if kind in ("c64", "c128"):
            return self.complex(name, kind, x)
        if name in LESS:
            return Term(self.compared(name, kind, *sides(*values)), "bool")
        if kind[0] == "f":
            return self.floating(name, kind, values)
        return self.integer(name, dtype, kind, x)

    def compared(self, name: str, kind: str, x: str, y: str) -> str:
        if kind in wide.KINDS:
            return LESS[name].format(k=kind, x=x, y=y)
        if name == "ne":
            return f"(!({x} == {y}))" if kind[0] == "f" else f"({x} != {y})"
        return f"({x} {INFIX[name]} {y})"

    def integer_text(self, name: str, kind: str, x: str, y: str) -> str:
        """A sum, difference or product of integers."""
        return f"{name}_{kind}({x}, {y})" if kind in wide.KINDS else f"({x} {SIGNS[name]} {y})"

    def logic(self, name: str, x: list[str]) -> Term:
        text = {
            "not": "(!{0})", "and": "({0} & {1})", "or": "({0} | {1})", "xor": "({0} != {1})",
            "eq": "({0} == {1})", "ne": "({0} != {1})", "lt": "(!{0} & {1})", "gt": "({0} & !{1})",
            "le": "(!{0} | {1})", "ge": "({0} | !{1})", "min": "({0} & {1})", "max": "({0} | {1})",
            "invert": "(!{0})",
        }.get(name)  # fmt: skip
        if text is None:
            raise UnsupportedError(f"WebGPU has no {name} of bool", self.place)
        return Term(text.format(*x), "bool")

    def complex(self, name: str, kind: str, x: list[str]) -> Term:
        part = real_of(kind)
        given = ", ".join(x)
        if name == "ne":
            return Term(f"(!eq_{kind}({given}))", "bool")
        if name in ("real", "imag"):
            return Term(f"{x[0]}.{'x' if name == 'real' else 'y'}", part)
        out = {"abs": part, "eq": "bool", "isnan": "bool", "isinf": "bool", "isfinite": "bool"}
        if library.define(f"{name}_{kind}") is None:
            raise UnsupportedError(f"WebGPU has no {name} of complex numbers", self.place)
        self.check_double(name, f"{name}_{kind}")
        return Term(f"{name}_{kind}({given})", out.get(name, kind))

    def floating(self, name: str, kind: str, values: list[Term]) -> Term:
        x = [v.text for v in values]
        fast = self.function.fastmath
        if name in ("add", "sub"):
            sign = "+" if name == "add" else "-"
            if not self.function.contract:  # a driver would make one operation of a product and it
                values = [v._replace(origin="sum") if v.origin else v for v in values]
            text = f"{x[0]} {sign} {x[1]}" if fast else total(values[0], sign, values[1], True)
            return Term(f"({text})", kind, "sum")
        if name == "mul":
            text = f"{x[0]} * {x[1]}" if fast else product(*values)
            return Term(f"({text})", kind, "product")
        if name == "truediv" and (fast or kind == "f64" or "div_f32" in self.native):
            # A driver may take x / x for one.
            below = x[1] if fast or is_literal(values[1]) else f"opaque_{kind}({x[1]})"
            return Term(f"({x[0]} / {below})", kind, "product")
        if name == "truediv":
            return Term(f"div_f32({x[0]}, {x[1]})", kind)
        if name == "sqrt":
            exact = fast or kind == "f64" or "sqrt_f32" in self.native
            return Term(f"sqrt{'' if exact else '_f32'}({x[0]})", kind)
        if name == "neg":
            return Term(f"(-{x[0]})", kind, joined(values[0].origin, "negated"))
        if name == "abs":
            return Term(f"abs({x[0]})", kind, "sum")
        flushes = self.flushes and kind == "f32" and not fast
        if flushes and name not in ON_BITS:
            x = [f"flushed_f32({text})" for text in x]
        if name in BUILTIN:
            return Term(f"{BUILTIN[name]}({x[0]})", kind)
        if fast and kind == "f32" and name in FAST:
            return Term(f"{FAST[name]}({', '.join(x)})", kind)
        self.check_double(name, f"{_row(name)}_{kind}")
        if library.define(f"{_row(name)}_{kind}") is None:
            raise UnsupportedError(f"WebGPU has no {name} of {kind}", self.place)
        out = "bool" if name in ("isnan", "isinf", "isfinite", "signbit") else kind
        text = f"{_row(name)}_{kind}({', '.join(x)})"
        return Term(f"flushed_f32({text})" if flushes and name not in ON_BITS else text, out)

    def fused_product(self, node: Op) -> int | None:
        """Which operand of a sum or difference is a product to be rounded with it at once. None:
        neither is, or it may not be, or the adapter's own `fma` rounds twice."""
        kind = {"float32": "f32", "float64": "f64"}.get(node.dtype.name)
        if node.name not in ("add", "sub") or f"fma_{kind}" not in self.native:
            return None
        if not self.function.contract or self.function.fastmath:
            return None
        products = [isinstance(v, Op) and v.name == "mul" for v in node.operands]
        return products.index(True) if any(products) else None

    def fused(self, node: Op, at: int) -> Term:
        """A sum or difference with the product of operand `at`: no driver takes an `fma` apart."""
        inner = node.operands[at]
        assert isinstance(inner, Op)
        a, b = (self.expression(v) for v in inner.operands)
        c = self.expression(node.operands[1 - at])
        if is_zero(a) or is_zero(b) or is_zero(c):  # which a driver would leave out
            values = [self.floating("mul", a.kind, [a, b]), c]
            return self.floating(node.name, a.kind, values if at == 0 else values[::-1])
        left, right = hidden(a, "product", not is_name(b)), hidden(b, "product", not is_name(a))
        last = c.text
        if node.name == "sub":
            left, last = (left, f"-({last})") if at == 0 else (f"-({left})", last)
        return Term(f"fma({left}, {right}, {last})", c.kind, "sum")

    def check_double(self, name: str, function: str) -> None:
        """Refuse a function of float32 that is computed in float64 where there is none."""
        if self.target.get("float64") or "f64" not in library.definitions(f"{function}("):
            return
        raise UnsupportedError(
            f"{name} of float32 is computed in float64, which {self.adapter()} lacks",
            self.place,
            hint="use @ruda.jit(fastmath=True)" if name in FAST else "compute it on the host",
        )

    def integer(self, name: str, dtype: DType, kind: str, x: list[str]) -> Term:
        zero = literal(0, kind)
        if name in ("add", "sub", "mul"):
            return Term(self.integer_text(name, kind, *x), kind)
        if name in ("and", "or", "xor"):
            return Term(f"({x[0]} {INFIX[name]} {x[1]})", kind)
        if name == "invert":
            return Term(f"(~{x[0]})", kind)
        if name in ("neg", "abs", "min", "max") and kind in wide.KINDS:
            return Term(f"{name}_{kind}({', '.join(x)})", kind)
        if name == "neg":
            return Term(f"({zero} - {x[0]})", kind)
        if name == "abs":
            return Term(x[0] if kind[0] == "u" else f"abs({x[0]})", kind)
        if name in ("min", "max"):
            return Term(f"{name}({x[0]}, {x[1]})", kind)
        bits = exponent_of(x[1]) if name in ("floordiv", "mod") else None
        if bits is not None and kind not in wide.KINDS:  # rounds down, as Python does
            part = f">> {bits}u" if name == "floordiv" else f"& {literal((1 << bits) - 1, kind)}"
            return Term(f"({x[0]} {part})", kind)
        if name in ("popc", "clz", "ffs", "brev", "mulhi") and dtype.bits < 32:
            return self.small_bits(name, dtype, kind, x)
        out = "i32" if name in ("popc", "clz", "ffs") else kind
        if library.define(f"{name}_{kind}") is None:
            raise UnsupportedError(f"WebGPU has no {name} of {dtype}", self.place)
        return Term(f"{name}_{kind}({', '.join(x)})", out)

    def small_bits(self, name: str, dtype: DType, kind: str, x: list[str]) -> Term:
        bits, mask = dtype.bits, f"{(1 << dtype.bits) - 1}u"
        raw = f"(bitcast<u32>({x[0]}) & {mask})" if kind == "i32" else f"({x[0]} & {mask})"
        if name == "popc" or name == "ffs":
            return Term(f"{name}_u32({raw})", "i32")
        if name == "clz":
            return Term(f"(clz_u32({raw}) - {32 - bits}i)", "i32")
        if name == "brev":
            turned = f"(reverseBits({raw}) >> {32 - bits}u)"
            return Term(
                narrowed(f"bitcast<i32>({turned})", dtype) if kind == "i32" else turned, kind
            )
        return Term(narrowed(f"(({x[0]} * {x[1]}) >> {bits}u)", dtype), kind)

    # ---- conversions

    def cast(self, value: Term, source: DType, target: DType) -> Term:
        kind, to = value.kind, self.kind(target, self.place)
        x = value.text
        if kind in DEMOTED or to in DEMOTED:
            return Term(f"{kind}_to_{to}({x})", to)
        if target.kind == "bool":
            if kind == "bool":
                return value
            if kind in ("c64", "c128"):
                zero = literal(0.0, real_of(kind))
                return Term(f"(!(({x}.x == {zero}) & ({x}.y == {zero})))", "bool")
            test = "eq" if kind[0] == "f" else "ne"
            found = self.compared(test, kind, x, literal(0, kind))
            return Term(f"(!{found})" if test == "eq" else found, "bool")
        if target.kind == "complex":
            part = real_of(to)
            if kind in ("c64", "c128"):
                return value if kind == to else Term(f"{wgsl(to)}({x})", to)
            real = self.cast(value, source, {"f32": dtypes.float32, "f64": dtypes.float64}[part])
            return Term(f"{wgsl(to)}({real.text}, {literal(0.0, part)})", to)
        if kind == "bool":
            return Term(f"select({literal(0, to)}, {literal(1, to)}, {x})", to)
        if target.is_integer:
            if kind[0] == "f":
                small = target.bits < 32
                return Term(f"{kind}_to_{target.short if small else to}({x})", to)
            same = kind == to
            if kind in wide.KINDS:
                if to in wide.KINDS:
                    return Term(x, to)
                low = f"{x}.x" if to == "u32" else f"bitcast<i32>({x}.x)"
                return Term(narrowed(low, target) if target.bits < 32 else low, to)
            if to in wide.KINDS:
                return Term(f"{kind}_to_{to}({x})", to)
            if (kind, to) in (("i32", "u64"), ("u32", "i64")):
                # Compilers extend by the sign of the result; the operand's decides.
                extended = "i64" if kind == "i32" else "u64"
                return Term(f"bitcast<{to}>({extended}({x}))", to)
            if (kind, to) == ("i32", "i64"):
                return Term(f"widened_i64({x})", to)
            if target.bits < 32:
                fits = source.bits <= target.bits and source.kind == target.kind
                if fits:
                    return value
                inner = x if same else f"{to}({x})"
                return Term(narrowed(inner, target), to)
            return value if same else Term(f"{to}({x})", to)
        if target.bits == 16:
            short = "f16" if target.name == "float16" else "bf16"
            if source.name == target.name:
                return value
            if kind == "f32":
                return Term(f"round_{short}({x})", "f32")
            if kind == "f64":
                return Term(f"round_{short}(odd_f32({x}))", "f32")
            return Term(f"round_{short}(odd_{kind}({x}))", "f32")
        if kind == to:
            return value
        return Term(f"{kind}_to_{to}({x})" if kind in wide.KINDS else f"{to}({x})", to)

    def bits(self, value: Term, source: DType, target: DType) -> Term:
        kind, to = value.kind, self.kind(target, self.place)
        if source.itemsize < 4:
            raw = f"({to_small(source, value.text)})"
            return Term(from_small(target, raw), to, "sum")
        if kind == to:
            return value
        if "c64" in (kind, to) or {kind, to} & {*wide.KINDS, *DEMOTED}:
            return Term(decode(to, encode(kind, value.text)), to, "sum")
        return Term(f"bitcast<{to}>({value.text})", to, "sum")


def held_to(index: str, last: str) -> str:
    """An index that is at most `last`, if that is given: as WebGPU does by itself."""
    return f"min(bitcast<u32>({index}), {last})" if last else index


def lanes_of(s: WideLoad | WideStore) -> int:
    return len(s.results if isinstance(s, WideLoad) else s.values)


def is_flags(a: Array) -> bool:
    """Whether bools are held as words: an NVIDIA driver reads false from bools that are shared."""
    return a.space == "shared" and isinstance(a.dtype, DType) and a.dtype.kind == "bool"


def is_large(a: Array) -> bool:
    """Whether a constant array is a hidden argument: compilers take seconds over long lists."""
    return a.space == "const" and len(a.data or b"") > LARGE


class NeedsWide(Exception):
    """The narrow form of a kernel cannot be made."""


def _compares(condition: Expr, then: Expr, otherwise: Expr) -> bool:
    """Whether a choice is, or may be, by a comparison of what is chosen from."""
    match condition:
        case Op("lt" | "le" | "gt" | "ge" | "eq" | "ne", (a, b)):
            return {a, b} & {then, otherwise} != set()
        case Op("not" | "and" | "or" | "xor", parts):
            return any(_compares(part, then, otherwise) for part in parts)
        case And(left, right) | Or(left, right):
            return _compares(left, then, otherwise) or _compares(right, then, otherwise)
    return isinstance(condition, Read)


def before_last_barrier(body: Body) -> Body:
    """The statements of a kernel after which there may come a barrier, or in which there is one."""
    ends = [
        k + 1
        for k, s in enumerate(body)
        if any(isinstance(x, Asm) and x.target == "wgpu" for x in ir.statements((s,)))
    ]
    return body[: max(ends, default=0)]


def arrays_of(body: Body) -> set[str]:
    """The names of the arrays that are read or written."""
    nodes = (*ir.statements(body), *ir.all_expressions(body))
    arrays = (getattr(x, "array", None) for x in nodes if not isinstance(x, (Extent, Stride)))
    return {a.name for a in arrays if isinstance(a, Array)}


COUNT = """\
fn count_true(x: bool, t: u32) -> i32 {
  if (t == 0u) { atomicStore(&vote_count, 0u); }
  workgroupBarrier();
  if (x) { atomicAdd(&vote_count, 1u); }
  workgroupBarrier();
  if (t == 0u) { vote_result = atomicLoad(&vote_count); }
  return i32(workgroupUniformLoad(&vote_result));
}
"""
BALLOT = """\
fn ballot(x: bool, t: u32) -> u32 {
  let w = t >> 5u;
  if ((t & 31u) == 0u) { atomicStore(&ballots[w], 0u); }
  workgroupBarrier();
  if (x) { atomicOr(&ballots[w], 1u << (t & 31u)); }
  workgroupBarrier();
  let found = atomicLoad(&ballots[w]);
  workgroupBarrier();
  return found;
}
"""
EXCHANGE = """\
fn exchange_KIND(x: TYPE, lane: i32, t: u32) -> TYPE {
  lanes_KIND[t] = x;
  workgroupBarrier();
  let found = lanes_KIND[min((t & ~31u) + (u32(lane) & 31u), LAST)];
  workgroupBarrier();
  return found;
}
"""
MATCH = """\
fn match_KIND(value: TYPE, mask: u32, t: u32) -> u32 {
  lanes_KIND[t] = value;
  workgroupBarrier();
  var found = 0u;
  for (var k = 0u; k < 32u; k++) {
    let other = lanes_KIND[min((t & ~31u) + k, LAST)];
    if (SAME) { found = found | (1u << k); }
  }
  workgroupBarrier();
  return found & mask;
}
"""


def _row(name: str) -> str:
    """The function of an operation on floats."""
    return NAMES.get(name, name)


def zero_of(kind: str) -> str:
    return literal(0, kind)


def narrowed(text: str, dtype: DType) -> str:
    """A 32-bit integer wrapped to 8 or 16 bits."""
    if dtype.kind == "uint":
        return f"({text} & {(1 << dtype.bits) - 1}u)"
    n = 32 - dtype.bits
    return f"(({text} << {n}u) >> {n}u)"


def from_small(dtype: DType, raw: str) -> str:
    """A value of the low bits of a word that holds nothing else."""
    match dtype.name:
        case "bool":
            return f"({raw} != 0u)"
        case "int8" | "int16":
            return narrowed(f"bitcast<i32>({raw})", dtype)
        case "float16":
            return f"from_f16({raw})"
        case "bfloat16":
            return f"from_bf16({raw})"
    return raw


def to_small(dtype: DType, text: str) -> str:
    match dtype.name:
        case "bool":
            return f"select(0u, 1u, {text})"
        case "int8" | "int16":
            return f"(bitcast<u32>({text}) & {(1 << dtype.bits) - 1}u)"
        case "float16":
            return f"to_f16({text})"
        case "bfloat16":
            return f"to_bf16({text})"
    return f"({text} & {(1 << dtype.bits) - 1}u)"


def decode(kind: str, words: Sequence[str]) -> str:
    """A value from its words."""
    if kind == "u32":
        return words[0]
    if kind in ("i32", "f32"):
        return f"bitcast<{kind}>({words[0]})"
    if kind == "bool":
        return f"({words[0]} != 0u)"
    if kind in ("c64", "c128"):
        half = len(words) // 2
        part = real_of(kind)
        return f"{wgsl(kind)}({decode(part, words[:half])}, {decode(part, words[half:])})"
    if kind in wide.KINDS or kind in DEMOTED:
        return f"{wgsl(kind)}({', '.join(words)})"
    whole = f"(u64({words[0]}) | (u64({words[1]}) << 32u))"
    return whole if kind == "u64" else f"bitcast<{kind}>({whole})"


def encode(kind: str, text: str) -> list[str]:
    """The words of a value; the text is used once for each."""
    if kind == "u32":
        return [text]
    if kind in ("i32", "f32"):
        return [f"bitcast<u32>({text})"]
    if kind == "bool":
        return [f"select(0u, 1u, {text})"]
    if kind in ("c64", "c128"):
        part = real_of(kind)
        return [*encode(part, f"{text}.x"), *encode(part, f"{text}.y")]
    if kind in wide.KINDS or kind in DEMOTED:
        return [f"{text}.{c}" for c in "xyzw"[: WORDS[kind]]]
    raw = text if kind == "u64" else f"bitcast<u64>({text})"
    return [f"u32({raw} & 4294967295lu)", f"u32({raw} >> 32u)"]


def pack_atomic(kind: str, text: str) -> str:
    if kind in ("i64", "f64"):
        return f"bitcast<u64>({text})"
    return text if kind == "u64" else encode(kind, text)[0]


def unpack_atomic(kind: str, text: str) -> str:
    if kind in ("i64", "f64"):
        return f"bitcast<{kind}>({text})"
    return text if kind == "u64" else decode(kind, [text])


def atomic_words(place: str, kind: str) -> list[str]:
    loaded = f"atomicLoad(&{place})"
    if kind in ("i64", "u64", "f64"):
        return [f"u32({loaded} & 4294967295lu)", f"u32({loaded} >> 32u)"]
    return [loaded]


def report_words(text: str, kind: str, dtype: DType) -> list[str]:
    """A value as pairs of words: integers extended to 64 bits, floats as their bits."""
    if kind == "bool":
        return [f"select(0u, 1u, {text})", "0u"]
    if dtype.name == "float16":
        return [f"to_f16({text})", "0u"]
    if dtype.name == "bfloat16":
        return [f"to_bf16({text})", "0u"]
    if kind == "i32":
        return [f"bitcast<u32>({text})", f"bitcast<u32>({text} >> 31u)"]
    if kind in ("u32", "f32"):
        return [*encode(kind, text), "0u"]
    return encode(kind, text)
