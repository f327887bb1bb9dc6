"""IR -> AscendC for 950-class chips (SIMT): one kernel and its `extern "C"` launcher in one file.

The text is the IR almost one to one: threads are threads, shared arrays lie in the unified buffer,
barriers and atomics are the chip's. It is plain C++17, without double arithmetic that the kernel
did not ask for and without undefined behaviour: what C++ leaves open goes through small functions
of `include/ruda_simt.h`, mathematics through formulas that are written into the file.

The launcher takes an array of 64-bit words, those of `Source.options["rows"]` in order:

    grid 3, block 3, (unused), bytes of dynamic shared memory; then for each row
    ("array", k)        address of argument k, then first and last address that belong to it
    ("constant", name)  likewise of a captured array
    ("reports",)        likewise of the report buffer
    ("extent", k, axis), ("stride", k, axis)        of argument k; strides in bytes
    ("scalar", name, kind)                          one word, complex numbers two

Float16 and bfloat16 are held in float and rounded after every operation; their memory is uint16_t.
"""

from __future__ import annotations

import linecache
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from ruda.backends.ascend import formulas
from ruda.backends.ascend.formulas import TYPES, Term, literal
from ruda.backends.base import Site, Source
from ruda.dtypes import DType, as_dtype
from ruda.errors import NOWHERE, UnsupportedError
from ruda.jit import ir
from ruda.jit.emit_python import AXES, EXACT16, HELD
from ruda.jit.ir import (
    And,
    Array,
    Asm,
    Assign,
    Atomic,
    Barrier,
    Bitcast,
    Body,
    Break,
    Breakpoint,
    Cast,
    Const,
    Continue,
    Cooperative,
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
    Return,
    Select,
    Special,
    Statement,
    Store,
    Stride,
    Variable,
    While,
)  # fmt: skip

FIRST_WORD = 8
LARGE = 1024  # bytes of a captured array that is written into the text
STACK = 32 << 10  # bytes of private memory of a thread
UNIFIED_BUFFER = 216 << 10  # bytes of a block: 256 K without the system's and the data cache's
INFIX = {
    "and": "&", "or": "|", "xor": "^", "lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==",
    "ne": "!=",
}  # fmt: skip
SIGNS = {"add": "+", "sub": "-", "mul": "*", "truediv": "/"}
PLAIN = {"abs": "fabs", "rint": "rint"} | {
    n: n for n in ("sqrt", "floor", "ceil", "trunc", "copysign", "fma")
}
TESTS = ("isnan", "isinf", "isfinite", "signbit")
# Functions of float that the chip has, and that `fastmath` takes.
FAST = {
    "exp": "expf", "exp2": "exp2f", "log": "logf", "log2": "log2f", "sin": "sinf", "cos": "cosf",
    "tan": "tanf", "sinh": "sinhf", "cosh": "coshf", "tanh": "tanhf", "rsqrt": "rsqrtf",
    "pow": "powf",
}  # fmt: skip
FLOAT_PARTS = {"c64": "f32", "c128": "f64"}
NATIVE = ("add", "sub", "min", "max", "and", "or", "xor", "exch", "cas")  # atomics on integers
KEYWORDS = """
    alignas alignof and and_eq asm auto bitand bitor bool break case catch char char16_t char32_t
    class compl const const_cast constexpr continue decltype default delete do double dynamic_cast
    else enum explicit export extern false float for friend goto if inline int long mutable
    namespace new noexcept not not_eq nullptr operator or or_eq private protected public register
    reinterpret_cast return short signed sizeof static static_assert static_cast struct switch
    template this thread_local throw true try typedef typeid typename union unsigned using virtual
    void volatile wchar_t while xor xor_eq main half array gm simt ruda words stream errno
    threadIdx blockIdx blockDim gridDim warpSize dim3 unix linux NULL INT64_MIN
"""
# Names of C and of the chip's functions; of our formulas; of coordinates.
_RESERVED = re.compile(
    r"_.*|.*__.*|asc_.*|ruda.*|RUDA.*|TWIN.*|u?int\d+_t|size_t|t\d+"
    r"|(sqrt|floor|ceil|trunc|rint|fabs|exp|exp2|log|log2|sin|cos|tan|sinh|cosh|tanh|tgamma|lgamma"
    r"|copysign|fmod|remainder|pow|rsqrt|fma|abs|min|max|div|index|remove|rename|time|clock|y0|y1"
    r"|yn|j0|j1|jn|gamma|signal|exit|abort|stat|read|write|link|round|erf|erfc|cbrt|hypot)f?l?"
    r"|.*_(f32|f64|c64|c128)|atomic_.*|(thread|block|grid|global)_[xyz]|linear_(block|thread)|lane"
)


def emit(function: Function, sites: tuple[Site, ...], target: Mapping[str, Any]) -> Source:
    """The text of a kernel that `passes.lower(..., "ascend")` has prepared."""
    return Emitter(function, sites, target).source()


def refuse(function: Function) -> None:
    """UnsupportedError for what no SIMT kernel can do, before the passes look at it."""
    for s in ir.statements(function.body):
        match s:
            case Barrier(scope="grid"):
                raise UnsupportedError(
                    "Ascend has no barrier for the whole grid",
                    s.place,
                    hint="split the kernel there and launch its parts one after the other",
                )
            case Cooperative(op=op):
                raise UnsupportedError(f"Ascend has no cooperative operation `{op}`", s.place)


def kind_of(dtype: DType) -> str:
    return HELD.get(dtype.name, dtype.short)


def stored(dtype: DType) -> str:
    """The C++ type of an element in memory."""
    kind = kind_of(dtype)
    return {"f16": "uint16_t", "bf16": "uint16_t", "bool": "uint8_t"}.get(kind, TYPES[kind])


class Emitter:
    """Text of one kernel."""

    reports = "ruda_reports"  # what a report is given to
    entry_name = "{}"  # the kernel's, of its function's

    def __init__(
        self, function: Function, sites: tuple[Site, ...], target: Mapping[str, Any]
    ) -> None:
        assert function.block is not None
        self.function, self.sites, self.target = function, sites, target
        self.block = function.block
        self.lines: list[str] = []
        self.numbers: list[int] = []
        self.place = function.place
        self.told = 0  # the Python line of the newest comment
        self.names: dict[str, str] = {}
        self.rows: list[tuple[Any, ...]] = []
        self.formal: list[str] = []
        self.passed: list[str] = []
        self.functions: dict[str, str] = {}
        self.declared: set[Variable] = set()
        self.word = FIRST_WORD
        self.serial = 0
        self.entry = self.name(self.entry_name.format(function.name))
        self.homes = homes(function.body)
        nodes: list[Any] = [*ir.all_expressions(function.body), *ir.statements(function.body)]
        self.specials = {(e.name, e.axis) for e in nodes if isinstance(e, Special)}
        self.meetings = {s.name for s in nodes if isinstance(s, Asm) and s.target == "wgpu"}
        self.arguments(nodes)

    # ---- names, lines

    def name(self, wanted: str) -> str:
        """A C++ name: the user's own unless it means something here."""
        found = self.names.get(wanted)
        if found is None:
            base = re.sub(r"[^0-9A-Za-z_]", "_", wanted)
            base = re.sub(r"__+", "_", base).strip("_") or "v"
            if base in KEYWORDS.split() or _RESERVED.fullmatch(base) or base[0].isdigit():
                base = f"v_{base}"
            found, k = base, 1
            while found in self.names.values():
                k += 1
                found = f"{base}_{k}"
            self.names[wanted] = found
        return found

    def fresh(self, base: str) -> str:
        self.serial += 1
        return self.name(f"{base} {self.serial}")

    def line(self, depth: int, text: str) -> None:
        number = self.place.line
        if number and number != self.told:
            self.told = number
            python = linecache.getline(self.place.file, number).strip()
            if python:
                # A backslash at the end would continue the comment.
                self.lines.append("    " * depth + f"// {number}: {python.rstrip(chr(92))}")
                self.numbers.append(number)
        self.lines.append("    " * depth + text)
        self.numbers.append(number)

    # ---- parameters

    def arguments(self, nodes: Sequence[Any]) -> None:
        """The kernel's parameters: only what it uses."""
        f = self.function
        read = {e.variable for e in nodes if isinstance(e, Read)}
        touched: set[str] = set()
        shapes: set[tuple[str, str, int]] = set()
        for e in nodes:
            match e:
                case Extent(array, axis):
                    shapes.add((array.name, "extent", axis))
                case Stride(array, axis):
                    shapes.add((array.name, "stride", axis))
                case Load() | Store() | Atomic():
                    a = e.array
                    touched.add(a.name)
                    if a.layout == "A" and a.shape is None and not a.dynamic:
                        shapes |= {(a.name, "stride", k) for k in range(a.ndim)}
                    else:
                        shapes |= {(a.name, "extent", k) for k in range(1, a.ndim)}
        for k, p in enumerate(f.parameters):
            if isinstance(p, Variable):
                continue
            if p.name in touched:
                self.pointer(self.name(p.name), self.element_type(p), ("array", k))
            for what, short in (("extent", "n"), ("stride", "s")):
                for axis in range(p.ndim):
                    if (p.name, what, axis) in shapes:
                        name = self.name(f"{p.name}_{short}{axis}")
                        self.names[f"{what} {p.name} {axis}"] = name
                        self.parameter(f"int64_t {name}", f"words[{self.word}]", (what, k, axis))
        for v in dict.fromkeys(
            [*(p for p in f.parameters if isinstance(p, Variable)),
             *(s.variable for s in f.prologue)]
        ):  # fmt: skip
            self.declared.add(v)
            if v in read:
                self.scalar(v)
        for a in f.arrays:
            if a.space == "const" and a.name in touched and len(a.data or b"") > LARGE:
                self.pointer(self.name(a.name), self.element_type(a), ("constant", a.name))
        if self.sites:
            self.pointer("ruda_reports", "int64_t", ("reports",))

    def parameter(self, formal: str, passed: str, row: tuple[Any, ...], words: int = 1) -> None:
        self.formal.append(formal)
        self.passed.append(passed)
        self.rows.append(row)
        self.word += words

    def pointer(self, name: str, element: str, row: tuple[Any, ...]) -> None:
        self.parameter(
            f"gm<{element}> {name}", f"RUDA_GM({element}, words, {self.word})", row, 3
        )  # fmt: skip

    def scalar(self, v: Variable) -> None:
        kind, w = kind_of(v.dtype), f"words[{self.word}]"
        row = ("scalar", v.name, kind)
        formal = f"{TYPES[kind]} {self.name(v.name)}"
        if kind in FLOAT_PARTS:
            part = TYPES[FLOAT_PARTS[kind]]
            second = f"words[{self.word + 1}]"
            if kind == "c64":
                w, second = f"uint32_t({w})", f"uint32_t({second})"
            both = f"ruda::bits<{part}>({w}), ruda::bits<{part}>({second})"
            return self.parameter(formal, f"ruda::make({both})", row, 2)
        passed = f"{TYPES[kind]}({w})"
        if kind == "f64":
            passed = f"ruda::bits<double>({w})"
        elif kind in ("f32", "f16", "bf16"):
            passed = f"ruda::bits<float>(uint32_t({w}))"
        elif kind == "bool":
            passed = f"({w} != 0)"
        self.parameter(formal, passed, row)

    def element_type(self, a: Array) -> str:
        """What the memory of an array is made of; bytes where elements are not simply indexed."""
        return "uint8_t" if self.by_bytes(a) else stored(self.dtype(a, None))

    def by_bytes(self, a: Array) -> bool:
        if not isinstance(a.dtype, DType) or not a.aligned:
            return True
        return a.layout == "A" and a.shape is None and not a.dynamic

    # ---- the whole text

    def source(self) -> Source:
        f = self.function
        self.memory()
        self.coordinates()
        self.body(f.body, 1)
        body, numbers = self.lines, self.numbers
        own = "\n".join(self.functions.values())
        called = formulas.definitions("\n".join([own, *body]))
        threads = math.prod(self.block)
        meets = "true" if self.meetings else "false"
        launcher = (
            'extern "C" int32_t ruda_launch(const int64_t* words, void* stream) {\n'
            f"    RUDA_LAUNCH({', '.join([self.entry, meets, 'words', 'stream', *self.passed])});\n"
            "}\n"
        )
        head = "\n".join(
            p for p in (
                self.header(), '#include "ruda_simt.h"\n', called, own,
                f"__global__ __launch_bounds__({threads}) void {self.entry}"
                f"({', '.join(self.formal)}) {{",
            ) if p
        )  # fmt: skip
        before = head.count("\n") + 1
        text = head + "\n" + "".join(f"{t}\n" for t in body) + "}\n\n" + launcher
        after = text.count("\n") - before - len(body)
        used = {s.array.name for s in ir.statements(f.body) if isinstance(s, (Store, Atomic))}
        return Source(
            text=text,
            entry="ruda_launch",
            file=f.place.file if f.place is not NOWHERE else "",
            lines=(*(0,) * before, *numbers, *(0,) * after),
            sites=self.sites,
            options={
                "name": f.name,
                "rows": [list(r) for r in self.rows],
                "words": self.word,
                "written": [k for k, p in enumerate(f.parameters) if p.name in used],
                "unified_buffer": self.unified_buffer(),
                "dynamic": any(a.dynamic for a in f.arrays),
            },
        )

    def header(self) -> str:
        f = self.function
        axes = {
            p.name: f"[{', '.join(':' * p.ndim)}]" for p in f.parameters if isinstance(p, Array)
        }
        types = ", ".join(f"{p.name}: {p.dtype}{axes.get(p.name, '')}" for p in f.parameters)
        return f"// {f.name}({types}), block {self.block}, for dav-3510 SIMT"

    # ---- arrays of the block and the thread

    def unified_buffer(self) -> int:
        """Bytes of a block's static arrays."""
        size = sum(nbytes(a) for a in self.function.arrays if is_shared(a))
        return size + 4 * ("count" in self.meetings)

    def memory(self) -> None:
        """Declarations of shared, dynamic, private and captured arrays."""
        f = self.function
        if self.unified_buffer() > UNIFIED_BUFFER:
            sizes = ", ".join(f"`{a.name}` {nbytes(a)}" for a in f.arrays if is_shared(a))
            raise UnsupportedError(
                f"{self.unified_buffer()} bytes of shared memory ({sizes}); a block of an Ascend "
                f"950 has {UNIFIED_BUFFER}",
                f.place,
            )
        private = sum(nbytes(a) for a in f.arrays if a.space == "local")
        if private > STACK:
            sizes = ", ".join(f"`{a.name}` {nbytes(a)}" for a in f.arrays if a.space == "local")
            raise UnsupportedError(
                f"{private} bytes of local memory ({sizes}); a thread of an Ascend 950 has {STACK}",
                f.place,
            )
        for a in f.arrays:
            name, element = self.name(a.name), self.element_type(a)
            if a.dynamic:
                self.line(1, f"RUDA_DYNAMIC({element}, {name});")
            elif a.space == "const":
                if len(a.data or b"") <= LARGE:
                    self.line(1, self.constant_array(a))
            else:
                where = "__ubuf__ " if a.space == "shared" else ""
                sizes = ", ".join(map(str, self.dimensions(a)))
                self.line(1, f"{where}array<{element}, {sizes}> {name};")
        if "count" in self.meetings:
            self.line(1, "__ubuf__ array<int32_t, 1> ruda_votes;")

    def dimensions(self, a: Array) -> tuple[int, ...]:
        """The C++ shape of an array: bytes are a row."""
        assert a.shape is not None
        if self.by_bytes(a):
            return (max(1, nbytes(a)),)
        return tuple(max(1, n) for n in a.shape) or (1,)

    def constant_array(self, a: Array) -> str:
        data, element = a.data or b"", self.element_type(a)
        sizes = ", ".join(map(str, self.dimensions(a)))
        if self.by_bytes(a):
            values = [str(b) for b in data] or ["0"]
        else:
            import numpy as np

            dtype = self.dtype(a, None)
            raw = np.frombuffer(data, dtype.numpy)
            kind = kind_of(dtype)
            if kind in ("f16", "bf16", "bool"):
                values = [str(int(v)) for v in raw.view(f"u{dtype.itemsize}")]
            elif kind in FLOAT_PARTS:
                part = FLOAT_PARTS[kind]
                values = [literal(v, part) for z in raw for v in (z.real, z.imag)]
            else:
                values = [literal(v, kind) for v in raw]
            values = values or ["{}"]
        return f"array<{element}, {sizes}> {self.name(a.name)} = {{{', '.join(values)}}};"

    # ---- coordinates

    def coordinates(self) -> None:
        block = self.block
        names = {n for n, _ in self.specials}
        for axis in sorted({a for n, a in self.specials if n == "globalIdx"}):
            x = AXES[axis]
            size = f" * {block[axis]}" if block[axis] != 1 else ""
            index = self.block_index(axis)
            self.line(1, f"const int64_t global_{x} = {index}{size} + threadIdx.{x};")
        meets = self.meetings & {"count", "match"}
        if names & {"laneid", "linearThread"} or meets or self.uses_lanes():
            rows = f"(threadIdx.y + {block[1]}u * threadIdx.z)"
            self.line(1, f"const uint32_t linear_thread = threadIdx.x + {block[0]}u * {rows};")
        if "linearBlock" in names:
            i, j, k = map(self.block_index, range(3))
            rows = f"({j} + {self.grid(1)} * {k})"
            self.line(1, f"const int64_t linear_block = {i} + {self.grid(0)} * {rows};")

    def launch_parameter(self, name: str, passed: str) -> str:
        """A number of the launch as a parameter of the kernel, made at its first use."""
        found = self.names.get(f"launch {name}")
        if found is None:
            found = self.names[f"launch {name}"] = self.name(name)
            self.formal.append(f"int64_t {found}")
            self.passed.append(passed)
        return found

    def block_index(self, axis: int) -> str:
        """The block; a launch of more blocks than the chip takes is made in pieces."""
        x = AXES[axis]
        return f"({self.launch_parameter(f'first_{x}', f'piece.first[{axis}]')} + blockIdx.{x})"

    def grid(self, axis: int) -> str:
        return self.launch_parameter(f"blocks_{AXES[axis]}", f"words[{axis}]")

    def uses_lanes(self) -> bool:
        return any(
            isinstance(e, Op) and e.name == "wgpu_lane_exists"
            for e in ir.all_expressions(self.function.body)
        )

    def special(self, name: str, axis: int) -> Term:
        x = AXES[axis]
        text = {
            "threadIdx": lambda: f"int64_t(threadIdx.{x})",
            "blockIdx": lambda: self.block_index(axis),
            "blockDim": lambda: str(self.block[axis]),
            "gridDim": lambda: self.grid(axis),
            "globalIdx": lambda: f"global_{x}",
            "globalDim": lambda: f"({self.grid(axis)} * {self.block[axis]})",
            "laneid": lambda: "int64_t(linear_thread & 31u)",
            "linearBlock": lambda: "linear_block",
            "linearThread": lambda: "int64_t(linear_thread)",
            "sharedBytes": self.shared_bytes,
        }[name]()
        return Term(text, "i64")

    def shared_bytes(self) -> str:
        """The launch's dynamic bytes, as a parameter of the kernel."""
        return self.launch_parameter("shared_bytes", "words[7]")

    # ---- statements

    def body(self, body: Body, depth: int) -> None:
        """Statements; a variable is declared where it is first assigned, if that is its home."""
        for v, first in self.homes.get(id(body), {}).items():
            if v not in self.declared and first is None:
                self.declared.add(v)
                kind = TYPES[kind_of(v.dtype)]
                self.line(depth, f"{kind} {self.name(v.name)} = {{}};")
        self.statements(body, depth)

    def statements(self, body: Body, depth: int) -> None:
        for s in body:
            if s.place.line:
                self.place = s.place
            self.statement(s, depth)

    def target_of(self, v: Variable) -> str:
        """The left side of an assignment; a declaration where the variable begins."""
        if v in self.declared:
            return self.name(v.name)
        self.declared.add(v)
        return f"{TYPES[kind_of(v.dtype)]} {self.name(v.name)}"

    def statement(self, s: Statement, depth: int) -> None:
        e = self.text
        match s:
            case Assign(variable, value):
                text = bare(e(value))
                self.line(depth, f"{self.target_of(variable)} = {text};")
            case Store(array, indices, value, part):
                self.store(array, indices, part, bare(e(value)), depth)
            case If(condition, then, otherwise):
                self.line(depth, f"if ({bare(e(condition))}) {{")
                self.body(then, depth + 1)
                if otherwise:
                    self.line(depth, "} else {")
                    self.body(otherwise, depth + 1)
                self.line(depth, "}")
            case For():
                self.loop(s, depth)
            case While(condition, body):
                self.line(depth, f"while ({bare(e(condition))}) {{")
                self.body(body, depth + 1)
                self.line(depth, "}")
            case Break():
                self.line(depth, "break;")
            case Continue():
                self.line(depth, "continue;")
            case Return():
                self.line(depth, "return;")
            case Atomic():
                self.atomic(s, depth)
            case Declare() | Breakpoint():
                pass
            case Fence(scope):
                self.line(depth, f"asc_threadfence{'_block' if scope == 'block' else ''}();")
            case Asm("cpu", "report", operands):
                words, _ = self.report_words(operands)
                self.line(depth, f"ruda::report({self.reports}, {{{words}}});")
            case Asm("wgpu", name, operands, results):
                self.meeting(name, operands, results, depth)
            case _:
                raise UnsupportedError(
                    f"Ascend has no {type(s).__name__.lower()} statement", s.place
                )

    def loop(self, s: For, depth: int) -> None:
        kind = kind_of(s.variable.dtype)
        held = TYPES[kind]
        start, stop = bare(self.text(s.start)), bare(self.text(s.stop))
        self.declared.add(s.variable)
        name = self.name(s.variable.name)
        step = int(s.step.value) if isinstance(s.step, Const) else None
        if step == 0:
            return
        near = isinstance(s.stop, (Const, Extent)) and kind == "i64"  # no sum can wrap
        if step in (1, -1) or (step is not None and near and abs(step) < 1 << 20):
            sign = "<" if step > 0 else ">"
            change = (
                f"++{name}" if step == 1 else f"--{name}" if step == -1 else f"{name} += {step}"
            )
            end = stop
            if not isinstance(s.stop, (Const, Extent)):
                end = self.fresh(f"{s.variable.name} stop")
                self.line(depth, f"const {held} {end} = {stop};")
            if kind == "i64" and isinstance(s.stop, Const) and isinstance(s.start, Const):
                held = "int64_t"
            self.line(depth, f"for ({held} {name} = {start}; {name} {sign} {end}; {change}) {{")
        else:
            first, each, number, count = (
                self.fresh(f"{s.variable.name} {n}") for n in ("first", "step", "k", "count")
            )
            self.line(depth, f"const {held} {first} = {start};")
            self.line(depth, f"const {held} {each} = {bare(self.text(s.step))};")
            self.line(
                depth,
                f"const uint64_t {count} = ruda::trips<{held}>({first}, {stop}, {each});",
            )
            self.line(depth, f"for (uint64_t {number} = 0; {number} < {count}; ++{number}) {{")
            step_text = f"ruda::mul<{held}>({held}({number}), {each})"
            self.line(depth + 1, f"const {held} {name} = ruda::add<{held}>({first}, {step_text});")
        self.body(s.body, depth + 1)
        self.line(depth, "}")

    def meeting(
        self, name: str, operands: Sequence[Expr], results: Sequence[Variable], depth: int
    ) -> None:
        """What `passes.predicate` made of barriers, votes and exchanges."""
        if name == "barrier":
            self.line(depth, "asc_syncthreads();")
            return
        values = [self.expression(o) for o in operands]
        texts = [bare(v.text) for v in values]
        kind = TYPES[values[0].kind]
        lanes = min(32, math.prod(self.block))
        found = {
            "count": lambda: f"ruda::count_true({texts[0]}, &ruda_votes[0], linear_thread)",
            "ballot": lambda: f"asc_ballot({texts[0]})",
            "exchange": lambda: f"ruda::exchange<{kind}>({', '.join(texts)})",
            "match": lambda: f"ruda::match<{kind}>({', '.join(texts)}, {self.lanes(lanes)})",
        }[name]()
        self.line(depth, f"{self.target_of(results[0])} = {found};")

    def lanes(self, most: int) -> str:
        """How many lanes the warp of this thread has."""
        threads = math.prod(self.block)
        if threads % 32 == 0:
            return "32u"
        if threads < 32:
            return f"{most}u"
        return f"(linear_thread < {threads // 32 * 32}u ? 32u : {threads % 32}u)"

    def report_words(self, operands: Sequence[Expr]) -> tuple[str, int]:
        """Site, block, thread and values of a report, as words."""
        site, block, thread, *rest = operands
        assert isinstance(site, Const)
        words = [str(int(site.value) + 1), self.text(block), self.text(thread)]
        for o in rest:
            v = self.expression(o)
            if v.kind in FLOAT_PARTS:
                words += [f"ruda::word({v.text}.re)", f"ruda::word({v.text}.im)"]
            elif v.kind in ("f16", "bf16"):
                words.append(f"int64_t(ruda::to_{v.kind}({v.text}))")
            elif v.kind in ("f32", "f64"):
                words.append(f"ruda::word({v.text})")
            else:
                words.append(f"int64_t({bare(v.text)})")
        return ", ".join(words), len(words)

    # ---- elements of arrays

    def dtype(self, a: Array, part: Field | None) -> DType:
        dtype = a.dtype if part is None else part.dtype
        assert isinstance(dtype, DType)
        return dtype

    def extent(self, a: Array, axis: int) -> str:
        if a.shape is not None:
            return str(a.shape[axis])
        if a.dynamic:
            return f"({self.shared_bytes()} / {a.dtype.itemsize})"
        return self.names[f"extent {a.name} {axis}"]

    def stride(self, a: Array, axis: int) -> str:
        if a.shape is not None:
            return str(math.prod(a.shape[axis + 1 :]) * a.dtype.itemsize)
        if a.dynamic:
            return str(a.dtype.itemsize)
        return self.names[f"stride {a.name} {axis}"]

    def element(self, a: Array, indices: Sequence[Expr], part: Field | None) -> tuple[str, str]:
        """How an element is named: ("typed", "x[i]"), ("at", offset) or ("bytes", offset)."""
        texts = [self.text(i) for i in indices]
        name = self.name(a.name)
        if not self.by_bytes(a):
            if a.space == "global" or a.dynamic or (a.space == "const" and self.is_large(a)):
                return "typed", f"{name}[{bare(self.linear(a, texts))}]"
            return "typed", name + ("".join(f"[{bare(t)}]" for t in texts) or "[0]")
        size = a.dtype.itemsize
        if a.layout == "A" and a.shape is None and not a.dynamic:
            terms = [f"{t} * {self.stride(a, k)}" for k, t in enumerate(texts)]
        else:
            linear = self.linear(a, texts)
            terms = [] if linear == "0" else [linear if size == 1 else f"{linear} * {size}"]
        if part is not None and part.offset:
            terms.append(str(part.offset))
        plain = a.aligned and isinstance(a.dtype, DType) and a.space == "global"
        return "at" if plain else "bytes", " + ".join(terms) or "0"

    def is_large(self, a: Array) -> bool:
        return len(a.data or b"") > LARGE

    def linear(self, a: Array, texts: Sequence[str]) -> str:
        """The number of an element in C order."""
        text = ""
        for k, t in enumerate(texts):
            text = t if not text else f"({text} * {self.extent(a, k)} + {t})"
        return text or "0"

    def load(self, a: Array, indices: Sequence[Expr], part: Field | None) -> Term:
        dtype = self.dtype(a, part)
        kind, memory = kind_of(dtype), stored(dtype)
        how, where = self.element(a, indices, part)
        if how == "typed":
            text = where
        elif how == "at":
            text = f"ruda::at<{memory}>({self.name(a.name)}, {where})"
        else:
            text = f"ruda::load_bytes<{memory}>({self.name(a.name)}, {where})"
        if kind in ("f16", "bf16"):
            text = f"ruda::from_{kind}({text})"
        elif kind == "bool":
            text = f"({text} != 0)"
        return Term(text, kind)

    def store(
        self, a: Array, indices: Sequence[Expr], part: Field | None, value: str, depth: int
    ) -> None:
        dtype = self.dtype(a, part)
        kind, memory = kind_of(dtype), stored(dtype)
        how, where = self.element(a, indices, part)
        if kind in ("f16", "bf16"):
            value = f"ruda::to_{kind}({value})"
        if how == "typed":
            self.line(depth, f"{where} = {value};")
        elif how == "at":
            self.line(depth, f"ruda::at<{memory}>({self.name(a.name)}, {where}) = {value};")
        else:
            self.line(depth, f"ruda::store_bytes<{memory}>({self.name(a.name)}, {where}, {value});")

    # ---- atomics

    def atomic(self, s: Atomic, depth: int) -> None:
        a = s.array
        dtype = self.dtype(a, s.field)
        kind = kind_of(dtype)
        if dtype.kind == "complex":
            raise UnsupportedError("there are no atomics on complex numbers", s.place)
        how, where = self.element(a, s.indices, s.field)
        if how == "bytes":
            raise UnsupportedError(
                "Ascend has no atomics on fields of records or unaligned arrays", s.place
            )
        values = [Term(bare(self.text(o)), kind) for o in s.operands]
        element = where if how == "typed" else f"ruda::at<{stored(dtype)}>({a.name}, {where})"
        if a.space == "local":
            return self.private(s, dtype, element, values, depth)
        if dtype.itemsize == 8 and a.space == "shared":
            raise UnsupportedError(
                f"Ascend has no atomics on {dtype} in shared memory, only in global memory",
                s.place,
                hint="use a 32-bit dtype",
            )
        address = f"&{element}"
        given = ", ".join(v.text for v in values)
        if native(s.op, kind):
            held = TYPES[kind]
            operands = ", ".join(f"{held}({v.text})" for v in values)
            call = f"asc_atomic_{s.op}({address}, {operands})"
        else:
            name = f"atomic_{s.op}_{kind}_{'shared' if a.space == 'shared' else 'global'}"
            if name not in self.functions:
                self.functions[name] = self.atomic_function(name, s.op, dtype, a.space == "shared")
            call = f"{name}({address}, {given})"
        left = f"{self.target_of(s.result)} = " if s.result is not None else ""
        self.line(depth, f"{left}{call};")

    def private(
        self, s: Atomic, dtype: DType, element: str, values: list[Term], depth: int
    ) -> None:
        """An update of the thread's own memory: nobody else sees it."""
        kind = kind_of(dtype)
        before = self.fresh("before")
        raw = from_memory(kind, element)
        self.line(depth, f"const {TYPES[kind]} {before} = {raw};")
        after = self.updated(s.op, dtype, Term(before, kind), values)
        self.line(depth, f"{element} = {to_memory(kind, after)};")
        if s.result is not None:
            self.line(depth, f"{self.target_of(s.result)} = {before};")

    def atomic_function(self, name: str, op: str, dtype: DType, shared: bool) -> str:
        """A loop around compare-and-swap of the word that holds the element."""
        kind, memory = kind_of(dtype), stored(dtype)
        word = "uint64_t" if dtype.itemsize == 8 else "uint32_t"
        formal = [f"{TYPES[kind]} {n}" for n in (("expected", "x") if op == "cas" else ("x",))]
        values = [Term(n.split()[-1], kind) for n in formal]
        after = self.updated(op, dtype, Term("before", kind), values)
        cast = "RUDA_UB_CAST" if shared else "RUDA_GM_CAST"
        rows = [
            "template <class Address>",
            f"RUDA_FUNCTION {TYPES[kind]} {name}(Address address, {', '.join(formal)}) {{",
        ]
        if dtype.itemsize >= 4:
            rows.append(f"    auto word = {cast}({word}, address);")
            old, new = from_memory(kind, f"ruda::bits<{memory}>(seen)"), to_memory(kind, "after")
            packed = f"ruda::bits<{word}>({new})"
        else:
            bits = 8 * dtype.itemsize
            mask = f"{(1 << bits) - 1:#x}u"
            rows += [
                f"    const uint64_t at = (uint64_t){cast}(uint8_t, address);",
                "    const uint32_t shift = uint32_t(at & 3) * 8;",
                f"    auto word = {cast}(uint32_t, at - (at & 3));",
            ]
            old = from_memory(kind, f"{memory}(seen >> shift & {mask})")
            new = f"{'uint8_t' if bits == 8 else 'uint16_t'}({to_memory(kind, 'after')})"
            packed = f"((seen & ~({mask} << shift)) | uint32_t({new}) << shift)"
        rows += [
            f"    {word} seen = *word;",
            "    for (;;) {",
            f"        const {TYPES[kind]} before = {old};",
            f"        const {TYPES[kind]} after = {after};",
            f"        const {word} found = asc_atomic_cas(word, seen, {word}({packed}));",
            "        if (found == seen) return before;",
            "        seen = found;",
            "    }",
            "}\n",
        ]
        return "\n".join(rows)

    def updated(self, op: str, dtype: DType, before: Term, values: list[Term]) -> str:
        """The new value of an atomic update."""
        kind = before.kind
        held, b = TYPES[kind], before.text
        x = values[-1].text
        match op:
            case "exch":
                return x
            case "cas":
                # As memory compares: the same bits.
                def raw(t: str) -> str:
                    stored_ = to_memory(kind, t)
                    return f"ruda::bits<uint{dtype.bits}_t>({stored_})" if kind in "f32 f64" else (
                        stored_
                    )  # fmt: skip

                return f"{raw(b)} == {raw(values[0].text)} ? {x} : {b}"
            case "inc":
                return f"{b} >= {x} ? {held}(0) : {held}({b} + 1)"
            case "dec":
                return f"{b} == 0 || {b} > {x} ? {x} : {held}({b} - 1)"
        name = {"nanmax": "fmax", "nanmin": "fmin"}.get(op, op)
        if dtype.is_integer or dtype.kind == "bool":
            name = {"fmax": "max", "fmin": "min"}.get(name, name)
        found = self.operation(name, dtype, dtype, [before, values[-1]]).text
        if kind in ("f16", "bf16") and name not in EXACT16:
            return f"ruda::round_{kind}({bare(found)})"
        return bare(found)

    # ---- expressions

    def text(self, node: Expr) -> str:
        return self.expression(node).text

    def expression(self, node: Expr) -> Term:
        match node:
            case Const(value, dtype):
                return self.constant(value, dtype)
            case Read(variable):
                return Term(self.name(variable.name), kind_of(variable.dtype))
            case Special(name, axis):
                return self.special(name, axis)
            case Extent(array, axis):
                return Term(self.extent(array, axis), "i64")
            case Stride(array, axis):
                return Term(self.stride(array, axis), "i64")
            case Op():
                return self.op(node)
            case Cast(value, dtype):
                return self.cast(self.expression(value), value.dtype, dtype)
            case Bitcast(value, dtype):
                return self.bits(self.expression(value), dtype)
            case Select(condition, then, otherwise):
                c, a, b = map(self.expression, (condition, then, otherwise))
                held = TYPES[a.kind]
                arms = [bare(x.text) if re.fullmatch(r"-?[\d.]+f", bare(x.text))
                        else f"{held}({bare(x.text)})" for x in (a, b)]  # fmt: skip
                return Term(f"({c.text} ? {arms[0]} : {arms[1]})", a.kind)
            case And(left, right):
                return Term(f"({self.text(left)} && {self.text(right)})", "bool")
            case Or(left, right):
                return Term(f"({self.text(left)} || {self.text(right)})", "bool")
            case Load(array, indices, part):
                return self.load(array, indices, part)
        raise UnsupportedError(f"Ascend has no {type(node).__name__}", self.place)

    def constant(self, value: Any, dtype: DType) -> Term:
        kind = kind_of(dtype)
        if kind in FLOAT_PARTS:
            z, part = complex(value), FLOAT_PARTS[kind]
            return Term(f"{TYPES[kind]}{{{literal(z.real, part)}, {literal(z.imag, part)}}}", kind)
        if kind in ("f16", "bf16"):
            value = float(dtype.numpy.type(value))
        if kind == "f32":
            import numpy as np

            with np.errstate(all="ignore"):
                value = float(np.float32(value))
        return Term(literal(value, kind), kind)

    def op(self, node: Op) -> Term:
        dtype = node.operands[0].dtype
        if node.name == "inside":
            words, _ = self.report_words(node.operands)
            return Term(f"ruda::inside({self.reports}, {{{words}}})", "bool")
        if node.name == "divisor":
            y = self.expression(node.operands[0])
            words, _ = self.report_words(node.operands[1:])
            held = TYPES[y.kind]
            return Term(f"ruda::divisor<{held}>({y.text}, {self.reports}, {{{words}}})", y.kind)
        values = [self.expression(v) for v in node.operands]
        if node.name == "wgpu_lane_exists":
            base = f"(int32_t(linear_thread & ~31u) + {values[0].text})"
            return Term(f"({base} < {math.prod(self.block)})", "bool")
        found = self.operation(node.name, dtype, node.dtype, values)
        if found.kind in ("f16", "bf16") and node.name not in EXACT16:
            return Term(f"ruda::round_{found.kind}({bare(found.text)})", found.kind)
        return found

    def operation(self, name: str, dtype: DType, result: DType, values: list[Term]) -> Term:
        kind = values[0].kind
        x = [v.text for v in values]
        if name == "uniform":
            return values[0]
        if name == "complex":
            pair = kind_of(result)
            return Term(f"{TYPES[pair]}{{{x[0]}, {x[1]}}}", pair)
        if kind == "bool":
            return self.logic(name, x)
        if kind in FLOAT_PARTS:
            return self.complex(name, kind, x)
        if name in ("lt", "le", "gt", "ge", "eq", "ne"):
            return Term(f"({x[0]} {INFIX[name]} {x[1]})", "bool")
        if dtype.kind == "float":
            return self.floating(name, kind, x)
        return self.integer(name, kind, x, dtype.name == "index")

    def logic(self, name: str, x: list[str]) -> Term:
        text = {
            "not": "(!{0})", "and": "({0} && {1})", "or": "({0} || {1})", "xor": "({0} != {1})",
            "eq": "({0} == {1})", "ne": "({0} != {1})", "lt": "(!{0} && {1})",
            "gt": "({0} && !{1})", "le": "(!{0} || {1})", "ge": "({0} || !{1})",
            "min": "({0} && {1})", "max": "({0} || {1})", "invert": "(!{0})",
        }.get(name)  # fmt: skip
        if text is None:
            raise UnsupportedError(f"Ascend has no {name} of bool", self.place)
        return Term(text.format(*x), "bool")

    def complex(self, name: str, kind: str, x: list[str]) -> Term:
        part, given = FLOAT_PARTS[kind], ", ".join(map(bare, x))
        if name in ("real", "imag"):
            return Term(f"{x[0]}.{'re' if name == 'real' else 'im'}", part)
        if name in ("eq", "ne"):
            return Term(f"{'!' * (name == 'ne')}ruda::eq({given})", "bool")
        if name in ("add", "sub", "mul", "truediv", "neg", "fma"):
            return Term(f"ruda::{name}({given})", kind)
        if formulas.define_complex(name, part) is None:
            raise UnsupportedError(f"Ascend has no {name} of complex numbers", self.place)
        out = {"abs": part, "isnan": "bool", "isinf": "bool", "isfinite": "bool"}
        return Term(f"{name}_{kind}({given})", out.get(name, kind))

    def floating(self, name: str, kind: str, x: list[str]) -> Term:
        given = ", ".join(map(bare, x))
        suffix = "" if kind == "f64" else "f"
        if name in SIGNS:
            return Term(f"({x[0]} {SIGNS[name]} {x[1]})", kind)
        if name == "neg":
            return Term(f"(-{x[0]})", kind)
        if name in TESTS:
            return Term(f"ruda::{name}({given})", "bool")
        if name == "fma" and kind in ("f16", "bf16"):
            return Term(f"ruda::fma_half({given})", kind)
        if name == "nextafter" and kind in ("f16", "bf16"):
            self.functions["nextafter_half"] = NEXT_HALF
            one = f"ruda::to_{kind}({bare(x[0])})"
            return Term(f"ruda::from_{kind}(nextafter_half({one}, {given}))", kind)
        if name in PLAIN:
            return Term(f"{PLAIN[name]}{suffix}({given})", kind)
        if self.function.fastmath and kind == "f32" and name in FAST:
            return Term(f"{FAST[name]}({given})", kind)
        real = "f64" if kind == "f64" else "f32"
        if formulas.define(name, real) is None:
            raise UnsupportedError(f"Ascend has no {name} of {TYPES[real]}", self.place)
        return Term(f"{formulas.function_name(name)}_{real}({given})", kind)

    def integer(self, name: str, kind: str, x: list[str], index: bool) -> Term:
        held, given = TYPES[kind], ", ".join(map(bare, x))
        if name in ("and", "or", "xor"):
            return Term(f"({x[0]} {INFIX[name]} {x[1]})", kind)
        if name in ("add", "sub", "mul") and index:
            # They do not come near the ends, and read better so; -fwrapv is there all the same.
            return Term(f"({self.wide(x[0])} {SIGNS[name]} {x[1]})", kind)
        if name in ("add", "sub", "mul") and kind in ("u32", "u64"):
            return Term(f"({x[0]} {SIGNS[name]} {x[1]})", kind)
        if name == "invert":
            return Term(f"{held}(~{x[0]})", kind)
        if name in ("popc", "clz", "ffs"):
            return Term(f"ruda::{name}<{held}>({given})", "i32")
        if name == "wrap":
            return Term(f"ruda::wrap({given})", kind)
        if name in ("add", "sub", "mul", "neg", "abs", "min", "max", "floordiv", "mod", "shl",
                    "shr", "pow", "brev", "mulhi"):  # fmt: skip
            return Term(f"ruda::{name}<{held}>({given})", kind)
        raise UnsupportedError(f"Ascend has no {name} of {held}", self.place)

    def wide(self, text: str) -> str:
        """A literal beside another one would be computed in 32 bits."""
        return f"int64_t({text})" if re.fullmatch(r"\(?-?\d+\)?", text) else text

    # ---- conversions

    def cast(self, value: Term, source: DType, target: DType) -> Term:
        kind, to = value.kind, kind_of(target)
        x, held = bare(value.text), TYPES[to]
        if to == "bool":
            if kind == "bool":
                return value
            if kind in FLOAT_PARTS:
                return Term(f"({value.text}.re != 0 || {value.text}.im != 0)", "bool")
            return Term(f"({value.text} != 0)", "bool")
        if to in FLOAT_PARTS:
            part = FLOAT_PARTS[to]
            if kind in FLOAT_PARTS:
                if kind == to:
                    return value
                t = TYPES[part]
                return Term(f"{held}{{{t}({value.text}.re), {t}({value.text}.im)}}", to)
            real = self.cast(value, source, as_dtype({"f32": "float32", "f64": "float64"}[part]))
            return Term(f"{held}{{{real.text}, {literal(0.0, part)}}}", to)
        if target.is_integer:
            if source.kind == "float":
                return Term(f"ruda::to_int<{held}>({x})", to)
            return value if kind == to else Term(f"{held}({x})", to)
        if to in ("f16", "bf16"):
            if kind == to:
                return value
            if kind in ("f32", "f16", "bf16"):
                return Term(f"ruda::round_{to}({x})", to)
            if kind == "bool":
                return Term(f"float({x})", to)
            wide = "double" if kind == "f64" else "uint64_t" if kind[0] == "u" else "int64_t"
            return Term(f"ruda::round_{to}(ruda::odd_f32({wide}({x})))", to)
        if TYPES[kind] == held:
            return Term(value.text, to)
        return Term(f"{held}({x})", to)

    def bits(self, value: Term, target: DType) -> Term:
        kind, to = value.kind, kind_of(target)
        if kind == to:
            return value
        raw = to_memory(kind, bare(value.text))
        return Term(from_memory(to, f"ruda::bits<{stored(target)}>({raw})"), to)


NEXT_HALF = """\
RUDA_FUNCTION uint16_t nextafter_half(uint16_t h, float x, float y) {
    if (x != x || y != y) return 0x7fc0;  // a NaN of both formats
    if (x == y) return uint16_t((h & 0x7fffu) ? h : ruda::bits<uint32_t>(y) >> 16 & 0x8000u);
    if ((h & 0x7fffu) == 0) return uint16_t(y < 0.0f ? 0x8001u : 1u);
    return uint16_t((x < y) == (x > 0.0f) ? h + 1u : h - 1u);
}
"""


def native(op: str, kind: str) -> bool:
    """Whether the chip has an atomic."""
    if kind in ("i32", "u32", "i64", "u64"):
        return op in NATIVE
    return kind == "f32" and op == "add"


def from_memory(kind: str, text: str) -> str:
    if kind in ("f16", "bf16"):
        return f"ruda::from_{kind}({text})"
    return f"({text} != 0)" if kind == "bool" else text


def to_memory(kind: str, text: str) -> str:
    if kind in ("f16", "bf16"):
        return f"ruda::to_{kind}({text})"
    return f"uint8_t({text})" if kind == "bool" else text


def is_shared(a: Array) -> bool:
    return a.space == "shared" and not a.dynamic


def nbytes(a: Array) -> int:
    assert a.shape is not None
    return math.prod(a.shape) * a.dtype.itemsize


def bare(text: str) -> str:
    """Without the outer parentheses, if they are a pair."""
    from ruda.jit.emit_python import bare

    return bare(text)


# ---- where variables are declared ----------------------------------------------------------------


def homes(body: Body) -> dict[int, dict[Variable, Statement | None]]:
    """Where variables are declared: by `id(body)`, the statement that does it.

    That is the first use of all, if it is an assignment in the innermost body that holds all uses;
    else None, and the body is the whole kernel. Loops declare their own counters.
    """
    found: dict[Variable, list[tuple[tuple[Body, ...], Statement, bool]]] = {}

    def visit(body: Body, path: tuple[Body, ...], counted: frozenset[Variable]) -> None:
        path = (*path, body)
        for s in body:
            own = counted | {s.variable} if isinstance(s, For) else counted
            reads = {e.variable for x in ir.expressions(s) for e in ir.walk(x)
                     if isinstance(e, Read)}  # fmt: skip
            writes = set(ir.written(s))
            for v in (reads - counted) | (writes - own):
                found.setdefault(v, []).append((path, s, v in writes and v not in reads))
            for inner in ir.bodies(s):
                visit(inner, path, own)

    visit(body, (), frozenset())
    counters = {s.variable for s in ir.statements(body) if isinstance(s, For)}
    out: dict[int, dict[Variable, Statement | None]] = {}
    for v, uses in found.items():
        if v in counters:  # and a variable elsewhere: a thread's number under a second name
            out.setdefault(id(body), {})[v] = None
            continue
        paths = [path for path, _, _ in uses]
        depth = 1
        while all(len(p) > depth and p[depth] is paths[0][depth] for p in paths):
            depth += 1
        home = paths[0][depth - 1]
        path, first, begins = uses[0]
        if begins and path[-1] is home:
            out.setdefault(id(home), {})[v] = first
        else:  # it may carry a value from one round of a loop to the next
            out.setdefault(id(body), {})[v] = None
    return out
