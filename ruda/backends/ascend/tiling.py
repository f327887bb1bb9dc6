"""IR -> AscendC for the 910B class (dav-2201), which has no threads: loops over tiles and blocks.

The kernel arrives as loops over its grid, blocks and threads, split at barriers. The outermost one
is shared out to the cores. Of the others, and of the user's, each becomes one of the vector unit
where `lanes` finds how; the rest is left to the scalar unit. The forms, which `ruda.explain` names:

    S1  the grid itself is cut into tiles: no thread is left
    S2  loops of a block's threads, or of a thread, run on the vector unit
    S3  the scalar unit does everything, element by element: right, and very slow

What is in the unified buffer is known when the text is written: queues of two buffers for each copy
so that it overlaps with computing, vectors that instructions leave, arrays of the block. The tile
is the largest for which all of it fits. The scalar unit never stores to global memory (its cache
writes whole lines): elements go through the unified buffer.

The launcher takes the words of `emit`, with the number of cores as the unused one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ruda.backends.ascend import formulas
from ruda.backends.ascend.emit import (
    FLOAT_PARTS,
    Emitter,
    from_memory,
    is_shared,
    kind_of,
    nbytes,
    stored,
    to_memory,
)  # fmt: skip
from ruda.backends.ascend.formulas import TYPES, Term
from ruda.backends.ascend.lanes import (
    BYTES,
    CopyIn,
    CopyOut,
    Instruction,
    Line,
    Nest,
    Program,
    Refused,
    Register,
    Translator,
    all_items,
    moved,
    uses,
)  # fmt: skip
from ruda.backends.base import Source
from ruda.dtypes import DType
from ruda.errors import NOWHERE, UnsupportedError
from ruda.jit import ir
from ruda.jit.emit_python import bare
from ruda.jit.ir import (
    Array,
    Asm,
    Atomic,
    Barrier,
    Body,
    Cast,
    Const,
    Cooperative,
    Expr,
    Field,
    For,
    Function,
    Load,
    Op,
    Read,
    Special,
    Statement,
    Store,
    Variable,
    Warp,
)  # fmt: skip
from ruda.jit.passes.indices import index

UNIFIED_BUFFER = 188160  # bytes: 192 K without what the system and the library keep
STACK = 32 << 10  # bytes of the scalar unit
DYNAMIC = 64 << 10  # bytes that tiles leave to dynamic shared memory
QUEUE_BUFFERS = 8  # of one position: there are events for so many
SMALL_LOOP = 32  # rounds of a user's loop that are not worth a tile
CORES = 40
PREFIX = {
    "float": "f", "half": "h", "int32_t": "i", "int16_t": "s", "int8_t": "c", "uint8_t": "u",
    "bfloat16_t": "g", "int64_t": "l", "mask": "m",
}  # fmt: skip
# Global dtypes that copies accumulate in, and as what: signed and unsigned sums have the same bits.
ACCUMULATED = {
    "f32": "float", "f16": "half", "bf16": "bfloat16_t", "i8": "int8_t", "i16": "int16_t",
    "i32": "int32_t",
}  # fmt: skip
SUMS_AS = ACCUMULATED | {"u8": "int8_t", "u16": "int16_t", "u32": "int32_t"}


# What a text of ours is called, or AscendC: names of the user's are changed.
OWN = re.compile(
    r"[A-Z]\w*|EVENT_ID\d|pipe(_\w*)?|stage|count|lanes|numbers|work|result|dynamic_ub|end\d*|at\d*"
    r"|tile\d*|(in|out|[fhiscuglm])\d+|\w+_(gm|ub|tile\d*|[fhiscugl])|bfloat16_t|events"
)


def lower(function: Function) -> Function:
    """Loops over the grid, or over blocks and threads."""
    from ruda.jit.passes import lower

    return lower(function, "ascend-910b")


def flat_axis_of(function: Function) -> int | None:
    """The axis of the grid that cores share, if blocks do not matter; else they share blocks."""
    from ruda.jit.passes.flatten import flat_axis, is_flat
    from ruda.jit.passes.indices import simplify

    simple = simplify(function)
    return flat_axis(simple) if is_flat(simple) else None


def refuse(function: Function) -> None:
    """UnsupportedError for what no form can do, before the passes look at it."""
    f = function
    for s in ir.statements(f.body):
        match s:
            case Barrier(scope="grid"):
                raise UnsupportedError(
                    "Ascend has no barrier for the whole grid", s.place,
                    hint="split the kernel there and launch its parts one after the other",
                )  # fmt: skip
            case Cooperative(op=op):
                raise UnsupportedError(f"Ascend has no cooperative operation `{op}`", s.place)
            case ir.Print():
                raise UnsupportedError(
                    "an Ascend 910B cannot print: its atomics do not tell the place that a "
                    "report got", s.place, hint="look at the kernel on the device `sim`",
                )  # fmt: skip
            case ir.Assert():
                raise UnsupportedError(
                    "an Ascend 910B has no assertions: its atomics do not tell the place that a "
                    "report got", s.place, hint="check the kernel on the device `sim`",
                )  # fmt: skip
            case Atomic(array=a) if a.space == "global":
                refuse_atomic(s)
    if f.check:
        raise UnsupportedError(
            "an Ascend 910B has no reports, so check=True is not there", f.place,
            hint="check the kernel on the device `sim`",
        )  # fmt: skip
    for s in ir.statements(f.body):
        for top in ir.expressions(s):
            for e in ir.walk(top):
                if e.dtype.name in ("float64", "complex128", "weak_float", "weak_complex"):
                    raise UnsupportedError(
                        f"an Ascend 910B has no {e.dtype.name.replace('weak_', '')}",
                        getattr(e, "place", s.place) if e.place.line else s.place,
                        hint="compute in float32",
                    )


def refuse_atomic(s: Atomic) -> None:
    """Global memory has the atomics of copies: sums and extremes, without the old value."""
    dtype = s.array.dtype if s.field is None else s.field.dtype
    kind = kind_of(dtype) if isinstance(dtype, DType) else "record"
    what = f"atomic {s.op} on {dtype} in global memory"
    if s.result is not None:
        raise UnsupportedError(
            f"an Ascend 910B has no {what} that returns the old value: its copies add without "
            "telling what was there", s.place,
            hint="do without the result, or use an array of the block (ruda.shared.array)",
        )  # fmt: skip
    fits = s.op in ("add", "sub") and kind in SUMS_AS
    fits |= s.op in ("max", "min") and kind in ACCUMULATED
    if not fits or s.field is not None:
        raise UnsupportedError(
            f"an Ascend 910B has no {what}: its copies add, and take the larger or the smaller, "
            f"in {', '.join(ACCUMULATED)}", s.place,
        )  # fmt: skip


def emit(function: Function, target: Mapping[str, Any], scalar: bool = False) -> Source:
    """The text of a kernel from the frontend. `scalar`: every loop on the scalar unit, and no
    element is taken to be what it was: for arguments that overlap."""
    refuse(function)
    return VectorEmitter(function, lower(function), target, scalar).source()


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


@dataclass(frozen=True)
class Note:
    """Why a loop has the form that it has."""

    line: int
    text: str


class VectorEmitter(Emitter):
    """Text of one kernel."""

    def __init__(
        self, original: Function, function: Function, target: Mapping[str, Any], scalar: bool
    ) -> None:
        self.scalar_only = scalar
        self.tensors: dict[tuple[str, str], str] = {}  # (array, type) -> name of a GlobalTensor
        self.elements: dict[str, str] = {}
        self.local_tensors: dict[str, str] = {}  # arrays in the unified buffer -> type of elements
        self.local_views: set[tuple[str, str]] = set()
        self.pools = Pools()
        self.notes: list[Note] = []
        self.vector_loops = 0
        self.copies: dict[str, list[int]] = {}  # array -> copies in and out in the text
        self.tiled = False  # the grid itself is
        self.extents: list[int | None] = []
        self.stages = False
        self.alias_safe = True
        self.nest_variables: list[Variable] = []
        self.users = {s.variable for s in ir.statements(original.body) if isinstance(s, For)}
        self.original_arrays = {a.name for a in original.arrays}
        self.distributed: set[Variable] = set()
        self.flat_axis = flat_axis_of(original)
        self.is_flat = self.flat_axis is not None
        self.written_arrays = {
            s.array.name for s in ir.statements(function.body) if isinstance(s, (Store, Atomic))
        }
        function = self.shared_out(function)
        self.total_reads = count_reads(function.body)
        super().__init__(function, (), target)

    def shared_out(self, function: Function) -> Function:
        """Loops from `first` to `last` are those that cores share."""

        def statement(s: Statement) -> Statement:
            if isinstance(s, For):
                nodes = [x for e in (s.start, s.stop) for x in ir.walk(e)]
                if any(isinstance(x, Special) and x.name in ("first", "last") for x in nodes):
                    self.distributed.add(s.variable)
            return s

        ir.rewrite_body(function.body, statement=statement)

        def expression(e: Expr) -> Expr:
            match e:
                case Special("first"):
                    return index(0)
                case Op("add", (x, Const(0) as zero)) if zero.dtype.name == "index":
                    return x
                case Op("max", (Const(0), x)) if e.dtype.name == "index":
                    return e
            return e

        return replace(function, body=ir.rewrite_body(function.body, expression))

    # ---- names, parameters

    def name(self, wanted: str) -> str:
        return super().name(wanted if wanted in self.names or not OWN.fullmatch(wanted)
                            else f"v_{wanted}")  # fmt: skip

    def own(self, base: str) -> str:
        """A name of ours, once."""
        k = 1
        while (f"{base}{k if k > 1 else ''}") in self.names.values():
            k += 1
        found = f"{base}{k if k > 1 else ''}"
        self.names[f"own {found}"] = found
        return found

    def pointer(self, name: str, element: str, row: tuple[Any, ...]) -> None:
        self.elements[name] = element
        self.parameter(f"GM_ADDR {name}_gm", f"GM_ADDR(words[{self.word}])", row, 3)

    def tensor_of(self, a: Array, type_: str) -> str:
        """The GlobalTensor of an array, as one of another type where copies want that."""
        name = self.name(a.name)
        if self.elements[name] == type_:
            self.tensors[name, type_] = name
            return name
        found = self.tensors.get((name, type_))
        if found is None:
            found = self.tensors[name, type_] = self.own(f"{name}_{PREFIX[type_]}")
        return found

    def local_tensor(self, a: Array, type_: str) -> str:
        name = self.name(a.name)
        if self.local_tensors[a.name] == type_:
            return name
        return f"{name}.ReinterpretCast<{type_}>()"

    def held(self, dtype: DType) -> str:
        return TYPES[kind_of(dtype)]

    # ---- the whole text

    def source(self) -> Source:
        f = self.function
        self.memory()
        self.coordinates()
        self.body(f.body, 1)
        body, numbers = self.lines, self.numbers
        tile = self.tile()
        own = "\n".join(self.functions.values())
        called = formulas.definitions("\n".join([own, *body]))
        setup = self.setup(tile)
        launcher = (
            'extern "C" int32_t ruda_launch(const int64_t* words, void* stream) {\n'
            f"    RUDA_LAUNCH({', '.join([self.entry, 'words', 'stream', *self.passed])});\n"
            "}\n"
        )
        constant = f"constexpr int32_t TILE = {tile};  // elements\n" if self.vector_loops else ""
        head = "\n".join(
            p for p in (
                self.header(), '#include "ruda_vector.h"\n', called, own, constant,
                f'extern "C" __global__ __vector__ void {self.entry}({", ".join(self.formal)}) {{',
                *setup,
            ) if p
        )  # fmt: skip
        before = head.count("\n") + 1
        text = head + "\n" + "".join(f"{t}\n" for t in body) + "}\n\n" + launcher
        after = text.count("\n") - before - len(body)
        return Source(
            text=text,
            entry="ruda_launch",
            file=f.place.file if f.place is not NOWHERE else "",
            lines=(*(0,) * before, *numbers, *(0,) * after),
            sites=(),
            options={
                "name": f.name,
                "rows": [list(r) for r in self.rows],
                "words": self.word,
                "written": [k for k, p in enumerate(f.parameters) if p.name in self.written_arrays],
                "unified_buffer": self.bytes_used(tile),
                "dynamic": any(a.dynamic for a in f.arrays),
                "form": self.form(),
                "tile": tile,
                "notes": [[n.line, n.text] for n in self.notes],
                "copies": {name: list(both) for name, both in self.copies.items()},
                "alias_safe": self.alias_safe and self.form() == "S1",
                "scalar": self.scalar_only,
            },
        )

    def header(self) -> str:
        return super().header().replace("dav-3510 SIMT", f"dav-2201, form {self.form()}")

    def form(self) -> str:
        return "S1" if self.tiled else "S2" if self.vector_loops else "S3"

    def fixed_bytes(self) -> int:
        total = sum(local_bytes(a) for a in self.function.arrays if a.name in self.local_tensors
                    and not a.dynamic)  # fmt: skip
        return total + 32 * self.stages + 64 * self.pools.reduces

    def bytes_used(self, tile: int) -> int:
        return self.fixed_bytes() + self.pools.bits() * tile // 8

    def tile(self) -> int:
        """Elements of a tile: the most that fits."""
        free = UNIFIED_BUFFER - self.fixed_bytes()
        arrays = [a for a in self.function.arrays if a.name in self.local_tensors]
        if any(a.dynamic for a in arrays):
            free -= DYNAMIC
        bits = self.pools.bits()
        found = 8 * free // bits // 128 * 128 if bits else 0
        if free < 0 or (bits and found < 128):
            sizes = ", ".join(f"`{a.name}` {local_bytes(a)}" for a in arrays if not a.dynamic)
            raise UnsupportedError(
                f"a block needs {self.fixed_bytes() + 16 * bits} bytes of the unified buffer "
                f"({sizes}); an Ascend 910B has {UNIFIED_BUFFER}",
                self.function.place,
            )
        if self.extents and all(e is not None for e in self.extents):
            longest = max(e for e in self.extents if e is not None)
            found = min(found, -(-longest // 128) * 128)
        return found

    def setup(self, tile: int) -> list[str]:
        """Tensors, queues and buffers."""
        lines = []
        for name, element in self.elements.items():
            if f" {name}_gm" in " " + " ".join(self.formal):
                lines.append(
                    f"GlobalTensor<{element}> {name} = ruda::global<{element}>({name}_gm);"
                )
        for (name, type_), tensor in self.tensors.items():
            if tensor != name:
                lines.append(f"GlobalTensor<{type_}> {tensor} = ruda::global<{type_}>({name}_gm);")
        arrays = [a for a in self.function.arrays if a.name in self.local_tensors]
        pools = self.pools
        if not (arrays or self.stages or self.vector_loops):
            return ["    " + t for t in lines]
        lines.append("TPipe pipe;")
        for which, sizes, depth in (
            ("in", pools.copies_in, pools.depths()[0]),
            ("out", pools.copies_out, pools.depths()[1]),
        ):
            for k, size in enumerate(sizes):
                lines.append(f"TQue<TPosition::VEC{which.upper()}, {depth}> {which}{k};")
                lines.append(f"pipe.InitBuffer({which}{k}, {depth}, TILE * {size});")
        for pool, count in pools.vectors.items():
            type_ = "uint8_t" if pool == "mask" else pool
            length = "TILE / 8" if pool == "mask" else f"TILE * {BYTES[pool]}"
            for k in range(count):
                lines += self.buffer(f"{PREFIX[pool]}{k}", type_, length)
        if pools.numbers:
            lines += self.buffer("numbers", "int32_t", "TILE * 4")
            lines.append("ruda::count_up(numbers, TILE);")
        if pools.reduces:
            lines += self.buffer("work", "float", "TILE / 16 + 32")
            lines += self.buffer("result", "float", "32")
        seen_dynamic = False
        for a in arrays:
            name, type_ = self.name(a.name), self.local_tensors[a.name]
            if a.dynamic:
                if not seen_dynamic:
                    seen_dynamic = True
                    length = f"uint32_t({self.shared_bytes()} + 32)"
                    lines += ["TBuf<TPosition::VECCALC> dynamic_ub;",
                              f"pipe.InitBuffer(dynamic_ub, {length});"]  # fmt: skip
                lines.append(f"LocalTensor<{type_}> {name} = dynamic_ub.Get<{type_}>();")
            else:
                lines += self.buffer(name, type_, str(local_bytes(a)))
                if a.name not in self.original_arrays:
                    # A thread may load a slot that it has not filled, and not look at it.
                    zero = f"{name}.ReinterpretCast<int32_t>(), int32_t(0), {local_bytes(a) // 4}"
                    lines += [f"Duplicate({zero});", "PipeBarrier<PIPE_ALL>();"]
        if self.stages:
            lines += ["ruda::Stage stage;", "stage.open(pipe);"]
        return ["    " + t for t in lines]

    def buffer(self, name: str, type_: str, size: str) -> list[str]:
        return [f"TBuf<TPosition::VECCALC> {name}_ub;", f"pipe.InitBuffer({name}_ub, {size});",
                f"LocalTensor<{type_}> {name} = {name}_ub.Get<{type_}>();"]  # fmt: skip

    # ---- arrays

    def memory(self) -> None:
        f = self.function
        private = 0
        for a in f.arrays:
            if a.space == "const":
                if len(a.data or b"") <= 1024:
                    self.line(1, self.constant_array(a))
                continue
            spilled = a.space == "local" and a.name not in self.original_arrays
            if is_shared(a) or a.dynamic or spilled:
                self.local_tensors[a.name] = self.element_type(a)
                self.name(a.name)
                continue
            private += nbytes(a)
            sizes = ", ".join(map(str, self.dimensions(a)))
            self.line(1, f"array<{self.element_type(a)}, {sizes}> {self.name(a.name)};")
        if private > STACK:
            sizes = ", ".join(f"`{a.name}` {nbytes(a)}" for a in f.arrays if a.space == "local")
            raise UnsupportedError(
                f"{private} bytes of local memory ({sizes}); the scalar unit of an Ascend 910B "
                f"has {STACK}", f.place,
            )  # fmt: skip

    def coordinates(self) -> None:
        pass

    def grid(self, axis: int) -> str:
        return self.launch_parameter(f"blocks_{'xyz'[axis]}", f"words[{axis}]")

    def special(self, name: str, axis: int) -> Term:
        match name:
            case "last":
                return Term(self.last(), "i64")
            case "blockDim":
                return Term(str(self.block[axis]), "i64")
            case "gridDim":
                return Term(self.grid(axis), "i64")
            case "globalDim":
                return Term(f"({self.grid(axis)} * {self.block[axis]})", "i64")
            case "sharedBytes":
                return Term(self.shared_bytes(), "i64")
        raise UnsupportedError(f"an Ascend 910B has no {name}", self.place)

    def last(self) -> str:
        """Where the outermost loop ends: with the blocks, or with the threads of an axis."""
        k = self.flat_axis
        if k is not None:
            return f"({self.grid(k)} * {self.block[k]})"
        return f"({self.grid(0)} * {self.grid(1)} * {self.grid(2)})"

    # ---- statements

    def statement(self, s: Statement, depth: int) -> None:
        match s:
            case Barrier() | Warp() | Cooperative():
                raise UnsupportedError(
                    f"an Ascend 910B has no {type(s).__name__.lower()} here", s.place
                )
            case Asm("cpu", "report"):
                raise UnsupportedError("an Ascend 910B has no reports", s.place)
            case ir.Fence():
                self.line(depth, "PipeBarrier<PIPE_ALL>();")
            case _:
                super().statement(s, depth)

    def loop(self, s: For, depth: int) -> None:
        loops, body = self.nest(s)
        if loops:
            return self.parallel(loops, body, depth)
        if s.variable not in self.distributed:
            plan = self.plan(s, parallel=False)
            if plan is not None:
                return self.tiles(plan, depth, shared=False)
        self.scalar_loop(s, depth)

    def nest(self, s: For) -> tuple[list[For], Body]:
        """Loops over threads or the grid, one in the other; the body of the innermost."""
        loops: list[For] = []
        body: Body = (s,)
        while len(body) == 1 and isinstance(body[0], For) and self.is_parallel(body[0]):
            loops.append(body[0])
            body = body[0].body
        return loops, body

    def is_parallel(self, s: For) -> bool:
        if not (isinstance(s.step, Const) and s.step.value == 1):
            return False  # several rows of threads together
        return s.variable in self.distributed or s.variable not in self.users

    def parallel(self, loops: list[For], body: Body, depth: int) -> None:
        """Independent rounds: any of the loops may be the vector unit's."""
        loops = self.needed(loops, body)
        chosen = None
        if not any(isinstance(s, ir.Barrier) for s in ir.statements(body)):
            for k in range(len(loops) - 1, -1, -1):
                loop = loops[k]
                others = loops[:k] + loops[k + 1 :]
                if any(reads(e) & {loop.variable} for o in others for e in (o.start, o.stop)):
                    continue
                self.nest_variables = [o.variable for o in loops]
                chosen = self.plan(replace(loop, body=body), parallel=True)
                if chosen is not None:
                    loops = others
                    break
        shared = any(o.variable in self.distributed for o in loops)
        if chosen is not None:
            shared |= chosen.loop.variable in self.distributed
        if shared:
            self.tiled |= chosen is not None and self.is_flat
        for k, loop in enumerate(loops):
            self.head(loop, depth + k, share=shared and k == 0)
        inner = depth + len(loops)
        if chosen is None:
            self.body(body, inner)
        else:
            self.tiles(chosen, inner, shared=shared and not loops)
        for k in range(len(loops) - 1, -1, -1):
            self.line(depth + k, "}")

    def needed(self, loops: list[For], body: Body) -> list[For]:
        """Without loops over axes of the grid that the kernel does not look at: their rounds do
        the same. Sums count each of them."""
        if any(isinstance(s, Atomic) for s in ir.statements(body)):
            return loops
        used = {e.variable for e in ir.all_expressions((*loops, *body)) if isinstance(e, Read)}
        kept = [
            o for o in loops
            if o.variable in used or o.variable in self.distributed or not whole_axis(o)
        ]  # fmt: skip
        return kept or loops

    def head(self, s: For, depth: int, share: bool) -> None:
        """A loop of the scalar unit; `share`: its rounds go to the cores in turn."""
        self.declared.add(s.variable)
        name, held = self.name(s.variable.name), self.held(s.variable.dtype)
        start, stop = bare(self.text(s.start)), bare(self.text(s.stop))
        if not share:
            self.line(depth, f"for ({held} {name} = {start}; {name} < {stop}; ++{name}) {{")
            return
        first = "GetBlockIdx()" if start == "0" else f"{start} + GetBlockIdx()"
        self.line(
            depth, f"for ({held} {name} = {first}; {name} < {stop}; {name} += GetBlockNum()) {{"
        )

    def scalar_loop(self, s: For, depth: int) -> None:
        if s.variable in self.distributed:
            self.head(s, depth, share=True)
            self.body(s.body, depth + 1)
            self.line(depth, "}")
            return
        super().loop(s, depth)

    # ---- loops of the vector unit

    def plan(self, s: For, parallel: bool) -> Plan | None:
        if self.scalar_only:
            return None
        place = self.place
        at = self.own("at")
        try:
            rounds = self.rounds(s)
            if not parallel and rounds is not None and rounds < SMALL_LOOP:
                raise Refused(f"it has {rounds} rounds only", s.place)
            translator = Translator(self, s, parallel, at)
            program = translator.run()
            plan = self.places(s, program, at)
        except Refused as refused:
            found = refused.place if refused.place.line else s.place
            self.notes.append(Note(found.line, f"`{s.variable.name}` is not a lane: {refused.why}"))
            del self.names[f"own {at}"]
            return None
        finally:
            self.place = place
        self.extents.append(rounds)
        self.pools.need(plan.pools)
        for item in all_items(program.items):
            if isinstance(item, (CopyIn, CopyOut)):
                both = self.copies.setdefault(item.array.name, [0, 0])
                both[isinstance(item, CopyOut)] += 1
        self.vector_loops += 1
        self.alias_safe &= parallel and not late_loads(program)
        self.stages |= bool(program.checks)
        return plan

    def rounds(self, s: For) -> int | None:
        """How many rounds a loop has at most, where that is known."""
        match s.start, s.stop:
            case Const(a), Const(b):
                return max(0, int(b) - int(a))
            case Const(a), Op("min", (Const(b), _)):
                return max(0, int(b) - int(a))
        return None

    def places(self, s: For, program: Program, at: str) -> Plan:
        """Buffers for the program's vectors; those of one whose last use is over are used again."""
        number(program.items)
        spans = lifetimes(program.items)
        bound = bindings(program.items)
        names: dict[Register, str] = {}
        pools = Pools(numbers=program.counts, reduces=program.reduces)
        queues: dict[Any, str] = {}
        queue_ends: dict[str, list[int]] = {"in": [], "out": []}
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
                    queues[item] = self.queue("in", queue_ends["in"], item.position, end)
                    widen(pools.copies_in, int(queues[item][2:]), BYTES[r.type])
                    names[r] = self.own(f"{self.name(a.name)}_tile")
                case CopyOut(register=r, array=a):
                    first = item.position
                    if r in bound and bound[r] is item:
                        first = spans[r][0]
                    queues[item] = self.queue("out", queue_ends["out"], first, item.position)
                    widen(pools.copies_out, int(queues[item][3:]), BYTES[r.type])
                    if r in bound and bound[r] is item:
                        names[r] = self.own(f"{self.name(a.name)}_tile")
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

    def queue(self, which: str, ends: list[int], first: int, last: int) -> str:
        for k, end in enumerate(ends):
            if end < first:
                ends[k] = last
                return f"{which}{k}"
        ends.append(last)
        return f"{which}{len(ends) - 1}"

    def tiles(self, plan: Plan, depth: int, shared: bool) -> None:
        """The loop over tiles."""
        s, p, at = plan.loop, plan.program, plan.at
        self.place = s.place
        start, stop = bare(self.text(s.start)), bare(self.text(s.stop))
        alone = shared or (self.tiled and not p.local)  # nothing else touches memory
        if not alone:
            self.line(depth, "PipeBarrier<PIPE_ALL>();")
        end = stop
        if not stop.isidentifier() and not stop.isdigit():
            end = self.own("end")
            self.line(depth, f"const int64_t {end} = {stop};")
        step, first = "TILE", start
        if shared:
            step = self.own("tile")
            extent = end if start == "0" else f"{end} - {start}"
            self.line(depth, f"const int64_t {step} = ruda::tile_of({extent}, TILE);")
            first = (
                f"GetBlockIdx() * {step}" if start == "0" else f"{start} + GetBlockIdx() * {step}"
            )
        change = f"GetBlockNum() * {step}" if shared else step
        self.line(depth, f"for (int64_t {at} = {first}; {at} < {end}; {at} += {change}) {{")
        inner = depth + 1
        self.line(inner, f"const int32_t count = int32_t(ruda::least({step}, {end} - {at}));")
        if p.padded:
            self.line(inner, f"const int32_t lanes = ruda::whole(count, {p.wide});")
        if p.checks:
            self.fallback(plan, inner)
        for v in p.scalars:
            self.line(inner, f"{self.held(v.dtype)} {self.name(v.name)} = {{}};")
        dirty: set[str] = set()
        self.render(plan, p.items, inner, dirty)
        self.line(depth, "}")
        if not alone:
            self.line(depth, "PipeBarrier<PIPE_ALL>();")

    def fallback(self, plan: Plan, depth: int) -> None:
        """A tile that breaks a condition goes to the scalar unit."""
        s, checks = plan.loop, plan.program.checks
        self.line(depth, f"if (!({' && '.join(checks)})) {{")
        if plan.program.local or self.function.arrays:
            self.line(depth + 1, "PipeBarrier<PIPE_ALL>();")
        name, held = self.name(s.variable.name), self.held(s.variable.dtype)
        self.declared.add(s.variable)
        at = plan.at
        self.line(depth + 1, f"for ({held} {name} = {at}; {name} < {at} + count; ++{name}) {{")
        before, self.scalar_only = self.scalar_only, True
        self.body(s.body, depth + 2)
        self.scalar_only = before
        self.line(depth + 1, "}")
        if plan.program.local or self.function.arrays:
            self.line(depth + 1, "PipeBarrier<PIPE_ALL>();")
        self.line(depth + 1, "continue;")
        self.line(depth, "}")
        self.place = s.place

    def render(self, plan: Plan, items: Sequence[Any], depth: int, dirty: set[str]) -> None:
        """Items as text. `dirty`: buffers written since the last barrier of the vector pipe."""
        p = plan.program
        n = "lanes" if p.padded else "count"
        releases: dict[int, list[CopyIn]] = {}
        for item in items:
            if isinstance(item, CopyIn):
                last = max(k for k, other in enumerate(items)
                           if item.register in uses(other) or other is item)  # fmt: skip
                releases.setdefault(last, []).append(item)
        for k, item in enumerate(items):
            if item.place.line:
                self.place = item.place
            match item:
                case CopyIn():
                    self.copy_in(plan, item, depth, dirty)
                case CopyOut():
                    self.copy_out(plan, item, depth, dirty)
                case Instruction():
                    self.instruction(plan, item, depth, dirty, n)
                case Line(text=text):
                    self.line(depth, text)
                case Nest():
                    self.nested(plan, item, depth, dirty)
            for one in releases.get(k, ()):
                name = plan.places[one.register]
                self.line(depth, f"{plan.queues[one]}.FreeTensor({name});")

    def nested(self, plan: Plan, item: Nest, depth: int, dirty: set[str]) -> None:
        self.settle(depth, dirty)
        self.line(depth, item.head)
        self.render(plan, item.items, depth + 1, dirty)
        self.settle(depth + 1, dirty)
        if item.otherwise is not None:
            self.line(depth, "} else {")
            self.render(plan, item.otherwise, depth + 1, dirty)
            self.settle(depth + 1, dirty)
        self.line(depth, "}")

    def settle(self, depth: int, dirty: set[str]) -> None:
        if dirty:
            self.line(depth, "PipeBarrier<PIPE_V>();")
            dirty.clear()

    def copy_in(self, plan: Plan, item: CopyIn, depth: int, dirty: set[str]) -> None:
        type_, name, queue = item.register.type, plan.places[item.register], plan.queues[item]
        padding = f"ruda::unpadded<{type_}>()"
        if plan.program.padded:
            padding = f"ruda::padded<{type_}>(count)"
        self.line(depth, f"LocalTensor<{type_}> {name} = {queue}.AllocTensor<{type_}>();")
        source = f"{item.tensor}[{item.index}]"
        self.line(depth, f"DataCopyPad({name}, {source}, ruda::row<{type_}>(count), {padding});")
        self.line(depth, f"{queue}.EnQue({name});")
        self.line(depth, f"{name} = {queue}.DeQue<{type_}>();")
        if plan.program.padded:
            self.line(depth, f"ruda::zero_rest({name}, count, lanes);")
            dirty.add(name)

    def copy_out(self, plan: Plan, item: CopyOut, depth: int, dirty: set[str]) -> None:
        r, queue = item.register, plan.queues[item]
        type_ = r.type
        if plan.bound.get(r) is item:
            name = plan.places[r]
        else:
            name = self.own(f"{self.name(item.array.name)}_tile")
            self.line(depth, f"LocalTensor<{type_}> {name} = {queue}.AllocTensor<{type_}>();")
            if plan.places[r] in dirty:
                self.settle(depth, dirty)
            text = moved(type_, "{d}", "{0}").replace("{n}", "count")
            self.line(depth, text.replace("{d}", name).replace("{0}", plan.places[r]))
            dirty.add(name)
        self.line(depth, f"{queue}.EnQue({name});")
        self.line(depth, f"{name} = {queue}.DeQue<{type_}>();")
        target = f"{item.tensor}[{item.index}]"
        self.line(depth, f"DataCopyPad({target}, {name}, ruda::row<{type_}>(count));")
        self.line(depth, f"{queue}.FreeTensor({name});")

    def instruction(
        self, plan: Plan, item: Instruction, depth: int, dirty: set[str], n: str
    ) -> None:
        target = item.target
        if target is not None and target in plan.bound:
            queue = plan.queues[plan.bound[target]]
            name, type_ = plan.places[target], target.type
            self.line(depth, f"LocalTensor<{type_}> {name} = {queue}.AllocTensor<{type_}>();")
        names = [plan.places[r] for r in item.sources]
        touched = {*names, *([plan.places[target]] if target is not None else [])}
        if "work" in item.text:
            touched.add("work")
        if target is None:  # of an array of the block
            touched.add("arrays")
        if item.text.startswith("ruda::take"):
            touched.add("arrays")
        if touched & dirty:
            self.settle(depth, dirty)
        count = "count" if item.exact else n
        text = item.text.replace("{n}", count)
        if target is not None:
            text = text.replace("{d}", plan.places[target])
        for k, name in enumerate(names):
            text = text.replace(f"{{{k}}}", name)
        self.line(depth, text)
        dirty.add(plan.places[target] if target is not None else "arrays")
        if "work" in item.text:
            dirty.add("work")

    # ---- what the translation asks for

    def reads_outside(self, loop: For, parallel: bool) -> set[Variable]:
        """Variables that somebody may read after a loop.

        What a thread keeps from one loop over threads to the next is in slots: another such loop
        only looks at what it has not assigned before.
        """
        inside = count_reads((loop,))
        found = {v for v, n in self.total_reads.items() if n != inside.get(v, 0)}
        return found & self.escaping(loop) if parallel else found

    def escaping(self, loop: For) -> set[Variable]:
        from ruda.jit.passes.exposure import exposed

        found: set[Variable] = set()
        mine = loop.body[0] if loop.body else None

        def visit(body: Body) -> None:
            for s in body:
                holds = any(x is mine for x in ir.statements((s,)))
                if isinstance(s, For) and self.is_parallel(s) and not holds:
                    found.update(exposed(s.body))
                    continue
                if s is mine:
                    return
                for e in ir.expressions(s):
                    found.update(reads(e))
                for inner in ir.bodies(s):
                    visit(inner)

        visit(self.function.body)
        return found

    def scalar_assignment(self, v: Variable, text: str) -> str:
        return f"{self.name(v.name)} = {text};"

    def operation_text(self, name: str, dtype: DType, a: str, b: str) -> str:
        kind = kind_of(dtype)
        return self.operation(name, dtype, dtype, [Term(a, kind), Term(b, kind)]).text

    def owned(self, loop: For, indices: Sequence[Expr]) -> bool:
        """Whether no other tile has these elements, so that one may store what it has loaded."""
        if not self.is_flat or loop.variable not in self.nest_variables:
            return False
        steady = {p for p in self.function.parameters if isinstance(p, Variable)}
        nest = set(self.nest_variables)
        seen: set[Variable] = set()
        for i in indices:
            found = reads(i)
            if found & nest:
                if len(found & nest) > 1 or not is_shifted(i, next(iter(found & nest))):
                    return False
                seen |= found & nest
                found -= nest
            if not found <= steady or any(isinstance(e, Load) for e in ir.walk(i)):
                return False
        return seen == nest

    # ---- elements for the scalar unit

    def extent(self, a: Array, axis: int) -> str:
        """Of a parameter: passed to the kernel from its first use on."""
        if a.shape is None and not a.dynamic and f"extent {a.name} {axis}" not in self.names:
            name = self.names[f"extent {a.name} {axis}"] = self.name(f"{a.name}_n{axis}")
            k = self.function.parameters.index(a)
            self.parameter(f"int64_t {name}", f"words[{self.word}]", ("extent", k, axis))
        return super().extent(a, axis)

    def again(self, a: Array) -> bool:
        """Whether the cache may hold what is no longer there."""
        return self.scalar_only or a.name in self.written_arrays

    def load(self, a: Array, indices: Sequence[Expr], part: Field | None) -> Term:
        dtype = self.dtype(a, part)
        kind, memory = kind_of(dtype), stored(dtype)
        how, where = self.place_of(a, indices, part)
        name = self.name(a.name)
        if a.name in self.local_tensors:
            text = f"{name}.GetValue({where})"
            if how != "typed":
                text = f"ruda::tensor_bytes<{memory}>({name}, {where})"
        elif a.space == "global" or (a.space == "const" and self.is_large(a)):
            again = self.again(a)
            if how != "typed":
                flag = "true" if again else "false"
                text = f"ruda::load_bytes<{memory}>({name}, {where}, {flag})"
            else:
                text = f"ruda::fresh({name}, {where})" if again else f"{name}.GetValue({where})"
        elif how == "typed":
            text = where
        else:
            text = f"ruda::local_bytes<{memory}>({name}, {where})"
        if (
            kind in FLOAT_PARTS
            and how == "typed"
            and (a.name in self.local_tensors or a.space == "global")
        ):
            raise UnsupportedError("an Ascend 910B has no complex elements here", self.place)
        return Term(from_memory(kind, text), kind)

    def store(
        self, a: Array, indices: Sequence[Expr], part: Field | None, value: str, depth: int
    ) -> None:
        dtype = self.dtype(a, part)
        kind, memory = kind_of(dtype), stored(dtype)
        how, where = self.place_of(a, indices, part)
        name = self.name(a.name)
        value = to_memory(kind, value) if kind in ("f16", "bf16", "bool") else value
        if a.name in self.local_tensors:
            if how == "typed":
                self.line(depth, f"{name}.SetValue({where}, {value});")
            else:
                self.line(depth, f"ruda::set_tensor_bytes<{memory}>({name}, {where}, {value});")
        elif a.space == "global":
            self.stages = True
            call = "store" if how == "typed" else "store_bytes"
            self.line(depth, f"stage.{call}<{memory}>({name}, {where}, {value});")
        elif how == "typed":
            self.line(depth, f"{where} = {value};")
        else:
            self.line(depth, f"ruda::set_local_bytes<{memory}>({name}, {where}, {value});")

    def place_of(self, a: Array, indices: Sequence[Expr], part: Field | None) -> tuple[str, str]:
        """("typed", an index, or the element itself of a private array) or ("bytes", offset)."""
        how, where = self.element(a, indices, part)
        if how != "typed":
            return "bytes", where
        if (
            a.space == "global"
            or a.name in self.local_tensors
            or (a.space == "const" and self.is_large(a))
        ):
            texts = [self.text(i) for i in indices]
            return "typed", bare(self.linear(a, texts))
        return "typed", where

    def by_bytes(self, a: Array) -> bool:
        if isinstance(a.dtype, DType) and a.dtype.kind == "complex":
            return a.space != "const" or self.is_large(a)
        return super().by_bytes(a)

    def element_type(self, a: Array) -> str:
        return "uint8_t" if self.by_bytes(a) else stored(self.dtype(a, None))

    # ---- atomics

    def atomic(self, s: Atomic, depth: int) -> None:
        a = s.array
        dtype = self.dtype(a, s.field)
        kind = kind_of(dtype)
        if a.space == "global":
            return self.accumulate(s, kind, depth)
        # One core runs the block's threads one after another: nobody comes between.
        values = [Term(bare(self.text(o)), kind) for o in s.operands]
        before = self.fresh("before")
        loaded = self.load(a, s.indices, s.field)
        self.line(depth, f"const {TYPES[kind]} {before} = {bare(loaded.text)};")
        after = self.updated(s.op, dtype, Term(before, kind), values)
        self.store(a, s.indices, s.field, after, depth)
        if s.result is not None:
            self.line(depth, f"{self.target_of(s.result)} = {before};")

    def accumulate(self, s: Atomic, kind: str, depth: int) -> None:
        refuse_atomic(s)
        a = s.array
        how, where = self.place_of(a, s.indices, s.field)
        if how != "typed":
            raise UnsupportedError(
                "an Ascend 910B has no atomics on arrays with strides, or elements by bytes",
                s.place,
            )
        self.stages = True
        op = {"sub": "add"}.get(s.op, s.op)
        held = SUMS_AS[kind]
        value = self.expression(s.operands[0])
        text = bare(value.text)
        if s.op == "sub":
            text = f"-{value.text}" if kind[0] in "fb" else f"ruda::neg<{TYPES[kind]}>({text})"
        tensor = self.tensor_of(a, held)
        self.line(depth, f"stage.{op}<{held}>({tensor}, {where}, {held}({text}));")

    # ---- functions that the scalar unit lacks

    def floating(self, name: str, kind: str, x: list[str]) -> Term:
        if name in ("sin", "cos", "tan", "remainder") or self.in_double(name):
            raise UnsupportedError(
                f"an Ascend 910B has no {name} of {'float32' if kind == 'f32' else kind} here: "
                "its formula computes in double, or asks a library of C", self.place,
            )  # fmt: skip
        if name == "fma" and kind in ("f16", "bf16"):
            raise UnsupportedError(f"an Ascend 910B has no fma of {kind}", self.place)
        return super().floating(name, kind, x)

    def complex(self, name: str, kind: str, x: list[str]) -> Term:
        found = super().complex(name, kind, x)
        if "double" in formulas.definitions(found.text):
            raise UnsupportedError(
                f"an Ascend 910B has no {name} of complex64 here: its formula computes in double",
                self.place,
            )
        return found

    def in_double(self, name: str) -> bool:
        text = formulas.define(name, "f32")
        return bool(text) and "double" in formulas.definitions(
            f"{formulas.function_name(name)}_f32("
        )

    def cast(self, value: Term, source: DType, target: DType) -> Term:
        to = kind_of(target)
        if to in ("f16", "bf16") and source.is_integer and source.kind != "bool":
            wide = "uint64_t" if value.kind[0] == "u" else "int64_t"
            return Term(f"ruda::round_{to}(ruda::odd_f32({wide}({bare(value.text)})))", to)
        return super().cast(value, source, target)


# ---- helpers -------------------------------------------------------------------------------------


def reads(e: Expr) -> set[Variable]:
    return {x.variable for x in ir.walk(e) if isinstance(x, Read)}


def count_reads(body: Body) -> dict[Variable, int]:
    found: dict[Variable, int] = {}
    for e in ir.all_expressions(body):
        if isinstance(e, Read):
            found[e.variable] = found.get(e.variable, 0) + 1
    return found


def is_shifted(e: Expr, v: Variable) -> bool:
    """Whether an index is a variable, plus or minus what does not change."""
    match e:
        case Read(found):
            return found == v
        case Cast(value):
            return is_shifted(value, v)
        case Op("add" | "sub", (x, y)):
            return is_shifted(x, v) and v not in reads(y)
        case Op("wrap", (x, _)):
            return is_shifted(x, v)
    return False


def whole_axis(s: For) -> bool:
    return isinstance(s.stop, Special) and s.stop.name in ("globalDim", "last")


def local_bytes(a: Array) -> int:
    return -(-max(nbytes(a), 1) // 32) * 32


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


def late_loads(program: Program) -> bool:
    """Whether something is loaded after something was stored."""
    stored_yet = False
    for item in all_items(program.items):
        if isinstance(item, CopyOut):
            stored_yet = True
        if isinstance(item, CopyIn) and stored_yet:
            return True
        if isinstance(item, Nest) and any(isinstance(i, CopyOut) for i in all_items(item.items)):
            return True
    return False
