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
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from ruda.backends.ascend.emit import (
    is_shared,
    kind_of,
    nbytes,
)  # fmt: skip
from ruda.backends.ascend.formulas import Term
from ruda.backends.ascend.vector.buffers import (
    PREFIX,
    UNIFIED_BUFFER,
    Plan,
    Pools,
    Taken,
    places,
)
from ruda.backends.ascend.vector.lanes import Translator
from ruda.backends.ascend.vector.program import CopyIn, CopyOut, Nest, Program, Refused, all_items
from ruda.backends.ascend.vector.reads import count_reads, is_shifted, reads
from ruda.backends.ascend.vector.refusals import refuse
from ruda.backends.ascend.vector.rounds import Rounds, as_one_loop
from ruda.backends.ascend.vector.scalar import definitions, in_software
from ruda.backends.ascend.vector.tables import BYTES
from ruda.backends.ascend.vector.tiles import Tiles
from ruda.backends.base import Site, Source
from ruda.backends.cpu.reports import record_size
from ruda.dtypes import DType
from ruda.errors import NOWHERE, UnsupportedError
from ruda.jit import ir
from ruda.jit.emit_python import bare
from ruda.jit.ir import (
    Array,
    Assign,
    Atomic,
    Barrier,
    Body,
    Const,
    Cooperative,
    Expr,
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
    While,
)  # fmt: skip
from ruda.jit.passes.demote import demote
from ruda.jit.passes.indices import index
from ruda.jit.passes.reports import lower_reports
from ruda.jit.passes.rows import ROW

STACK = 32 << 10  # bytes of the scalar unit
DYNAMIC = 64 << 10  # bytes that tiles leave to dynamic shared memory
PLAIN_TILE = 4096  # elements, where tiles need nothing but arrays of the block
CHECKS = ("inside", "divisor")  # operations that report
SMALL_LOOP = 32  # rounds of a user's loop that are not worth a tile


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


def emit(function: Function, target: Mapping[str, Any], scalar: bool = False) -> Source:
    """The text of a kernel from the frontend. `scalar`: every loop on the scalar unit, and no
    element is taken to be what it was: for arguments that overlap."""
    missing = target.get("missing", "error")
    if missing == "demote":
        function = demote(function)
    refuse(function, missing)
    function, sites = lower_reports(function, barriers=True)
    lowered = lower(function)
    emitter = VectorEmitter(function, lowered, sites, target, scalar)
    try:
        found = emitter.source()
    except TooNarrow:
        return VectorEmitter(function, lowered, sites, target, scalar, "none", False).source()
    lengths = [n for n in emitter.row_lengths if n is not None]
    if not lengths or len(lengths) < len(emitter.row_lengths):
        return found
    fits = max(lengths) <= found.options["tile"]  # known, so one of both forms is enough
    again = VectorEmitter(function, lowered, sites, target, scalar, "only" if fits else "none")
    if not fits:
        again.row_lengths, again.row_limit = emitter.row_lengths, int(found.options["tile"])
    return again.source()


class TooNarrow(Exception):
    """No tile fits, or one that is shorter than a round of the block."""


@dataclass(frozen=True)
class Note:
    """Why a loop has the form that it has."""

    line: int
    text: str


class VectorEmitter(Tiles):
    """Text of one kernel."""

    # Its name has no types in it: `conj` would be that of the C library, and the linker take it.
    entry_name = "{} kernel"

    def __init__(
        self, original: Function, function: Function, sites: tuple[Site, ...],
        target: Mapping[str, Any], scalar: bool, rows_kept: str = "both", long_tiles: bool = True,
    ) -> None:  # fmt: skip
        self.scalar_only, self.long_tiles, self.least_tile = scalar, long_tiles, 1
        self.rows_kept = rows_kept  # "none", "only", or "both" where their length decides
        self.row_copies: dict[str, list[int]] = {}
        self.repeated: dict[str, str] = {}  # array -> what copies it once more
        self.around: list[For | While] = []  # loops of the scalar unit around what is emitted
        self.row_lengths: list[int | None] = []
        self.row_limit = 0  # elements that would stay, where longer rows are known
        self.tensors: dict[tuple[str, str], str] = {}  # (array, type) -> name of a GlobalTensor
        self.elements: dict[str, str] = {}
        self.local_tensors: dict[str, str] = {}  # arrays in the unified buffer -> type of elements
        self.partly_stored: set[str] = set()  # of those, by tiles in some lanes only
        self.local_views: set[tuple[str, str]] = set()
        self.pools = Pools()
        self.notes: list[Note] = []
        self.vector_loops = 0
        self.copies: dict[str, list[int]] = {}  # array -> copies in and out in the text
        self.tiled = False  # the grid itself is
        self.extents: list[int | None] = []
        self.stages = False
        self.alias_safe, self.cached_reads = True, False
        self.nest_variables: list[Variable] = []
        self.taken = Taken()  # by a row that stays, beside which something else is done
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
        super().__init__(function, sites, target)

    def shared_out(self, function: Function) -> Function:
        """Loops from `first` to `last` are those that cores share."""

        def statement(s: Statement) -> Statement:
            if isinstance(s, For):
                nodes = [x for e in (s.start, s.stop) for x in ir.walk(e)]
                if any(isinstance(x, Special) and x.name in ("first", "last") for x in nodes):
                    self.distributed.add(s.variable)
            return s

        ir.rewrite_body(function.body, statement=statement)

        block = function.block
        assert block is not None

        def expression(e: Expr) -> Expr:
            match e:
                case Special("first"):
                    return index(0)
                case Op("add", (x, Const(0) as zero)) if zero.dtype.name == "index":
                    return x
                case Special("blockDim", axis):
                    return index(block[axis])
                case Op("floordiv", (x, Const(1))) | Op("mul", (x, Const(1))):
                    return x if e.dtype.name == "index" else e
                case Op("mod", (_, Const(1))) | Op("mul", (Const(0), _)):
                    return index(0) if e.dtype.name == "index" else e
                case Op("add", (Const(0), x)) if e.dtype.name == "index":
                    return x
            return e

        return replace(function, body=ir.rewrite_body(function.body, expression))

    # ---- the whole text

    def source(self) -> Source:
        f = self.function
        self.memory()
        self.coordinates()
        if self.sites:  # their pointer is the newest of the parameters
            each = f"(words[{self.word - 1}] - words[{self.word - 2}]) / 8 / words[6]"
            self.launch_parameter("report_words", each)
        self.body(f.body, 1)
        if self.sites:
            self.place = NOWHERE
            self.line(1, "reports.close();")
        body, numbers = without_repeats(*without_unread(self.lines, self.numbers))
        tile = self.tile()
        own = "\n".join(self.functions.values())
        called = definitions("\n".join([own, *body]))
        setup = self.setup(tile, words_of(body))
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
        text = in_software(head + "\n" + "".join(f"{t}\n" for t in body) + "}\n\n" + launcher)
        after = text.count("\n") - before - len(body)
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
                "written": [k for k, p in enumerate(f.parameters) if p.name in self.written_arrays],
                "unified_buffer": self.bytes_used(tile),
                "dynamic": any(a.dynamic for a in f.arrays),
                "form": self.form(),
                "tile": tile,
                "notes": [[n.line, n.text] for n in self.notes],
                "copies": {name: list(both) for name, both in self.copies.items()},
                "row_copies": {name: list(both) for name, both in self.row_copies.items()},
                "repeated": dict(self.repeated),
                "row_lengths": list(self.row_lengths),
                "row_limit": self.row_limit or (tile if self.rows_kept == "both" else 0),
                "alias_safe": self.alias_safe and not self.cached_reads,
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
        return total + 32 * self.stages + 64 * self.pools.reduces + self.record_bytes()

    def record_bytes(self) -> int:
        """Of the longest report; the head of a part is one, too."""
        return -(-8 * max(map(record_size, self.sites)) // 32) * 32 if self.sites else 0

    def bytes_used(self, tile: int) -> int:
        return self.fixed_bytes() + self.pools.bits() * tile // 8

    def tile(self) -> int:
        """Elements of a tile: the most that fits."""
        free = UNIFIED_BUFFER - self.fixed_bytes()
        arrays = [a for a in self.function.arrays if a.name in self.local_tensors]
        if any(a.dynamic for a in arrays):
            free -= DYNAMIC
        bits = self.pools.bits()
        found = 8 * free // bits // 128 * 128 if bits else PLAIN_TILE
        if self.long_tiles and bits and found < max(128, self.least_tile):
            raise TooNarrow
        if free < 0 or (bits and found < 128):
            sizes = ", ".join(f"`{a.name}` {local_bytes(a)}" for a in arrays if not a.dynamic)
            raise UnsupportedError(
                f"a block needs {self.fixed_bytes() + 16 * bits} bytes of the unified buffer "
                f"({sizes}); an Ascend 910B has {UNIFIED_BUFFER}",
                self.function.place,
            )
        if self.extents and all(e is not None for e in self.extents):
            longest = max(e for e in self.extents if e is not None)
            found = max(min(found, -(-longest // 128) * 128), self.least_tile)
        return found

    def setup(self, tile: int, used: Collection[str]) -> list[str]:
        """Tensors that are used, queues and buffers."""
        used = {*used, *(["ruda_reports"] if self.sites else [])}
        lines = []
        for name, element in self.elements.items():
            if f" {name}_gm" in " " + " ".join(self.formal) and name in used:
                lines.append(
                    f"GlobalTensor<{element}> {name} = ruda::global<{element}>({name}_gm);"
                )
        for (name, type_), tensor in self.tensors.items():
            if tensor != name and tensor in used:
                lines.append(f"GlobalTensor<{type_}> {tensor} = ruda::global<{type_}>({name}_gm);")
        arrays = [a for a in self.function.arrays if a.name in self.local_tensors]
        pools = self.pools
        if not (arrays or self.stages or self.vector_loops or self.sites):
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
                words = f"int32_t({self.shared_bytes()} / 4 + 8)"
            else:
                lines += self.buffer(name, type_, str(local_bytes(a)))
                words = str(local_bytes(a) // 4)
            # A thread may load a slot that it has not filled, and not look at it; a tile loads
            # what it leaves as it is.
            if a.name not in self.original_arrays or a.name in self.partly_stored:
                zero = f"{name}.ReinterpretCast<int32_t>(), int32_t(0), {words}"
                lines += [f"Duplicate({zero});", "PipeBarrier<PIPE_ALL>();"]
        if self.stages:
            lines += ["ruda::Stage stage;", "stage.open(pipe);"]
        if self.sites:
            lengths = f"{self.names['launch report_words']}, {self.record_bytes()}"
            lines += ["ruda::Reports reports;", f"reports.open(pipe, ruda_reports, {lengths});"]
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
                return Term(self.threads(axis), "i64")
            case "sharedBytes":
                return Term(self.shared_bytes(), "i64")
        raise UnsupportedError(f"an Ascend 910B has no {name}", self.place)

    def threads(self, axis: int) -> str:
        """Of the grid, along an axis."""
        size = self.block[axis]
        return self.grid(axis) if size == 1 else f"({self.grid(axis)} * {size})"

    def last(self) -> str:
        """Where the outermost loop ends: with the blocks, or with the threads of an axis."""
        k = self.flat_axis
        if k is not None:
            return self.threads(k)
        return f"({self.grid(0)} * {self.grid(1)} * {self.grid(2)})"

    # ---- statements

    def statement(self, s: Statement, depth: int) -> None:
        match s:
            case Barrier() | Warp() | Cooperative():
                raise UnsupportedError(
                    f"an Ascend 910B has no {type(s).__name__.lower()} here", s.place
                )
            case ir.Fence():
                self.line(depth, "PipeBarrier<PIPE_ALL>();")
            case While():
                self.around.append(s)
                super().statement(s, depth)
                self.around.pop()
            case _:
                super().statement(s, depth)

    def loop(self, s: For, depth: int) -> None:
        loops, body = self.nest(s)
        if loops:
            return self.parallel(loops, body, depth)
        whole = self.strides_of_grid(s)
        if whole is not None:
            return self.parallel([whole], whole.body, depth)
        rounds = self.rounds_of(s)
        if isinstance(rounds, str):
            self.note(s, f"rounds of the block go one by one: {rounds}")
        elif s.variable not in self.distributed and s.variable.name != ROW:
            plan = self.plan(s if rounds is None else rounds.loop, parallel=False, rounds=rounds)
            if plan is not None:
                return self.tiles(plan, depth, shared=False)
        self.scalar_loop(s, depth)

    def rounds_of(self, s: For) -> Rounds | str | None:
        """Rounds of the block as one loop; why not; None for another kind of loop."""
        if self.scalar_only:
            return None
        found = as_one_loop(s, lambda a: a.name in self.local_tensors)
        return "the unified buffer is full" if found and not self.long_tiles else found

    def note(self, s: For, text: str) -> None:
        self.notes.append(Note(s.place.line, text))

    def strides_of_grid(self, s: For) -> For | None:
        """What all rounds of the grid visit as one loop, if no round needs another one's work."""
        match s:
            case For(base, start, stop, Special("globalDim"), (For() as inner,)) if (
                not self.scalar_only and inner.variable in self.distributed
                and inner.start == Read(base)
                and inner.stop == Op("min", (
                    Op("add", (Read(base), Special("last")), s.step.dtype), stop), s.step.dtype)
                and base not in {v for e in ir.all_expressions(inner.body) for v in reads(e)}
                and self.each_has_its_own(inner.body, inner.variable)
            ):  # fmt: skip
                return replace(inner, start=start, stop=stop)
        return None

    def each_has_its_own(self, body: Body, v: Variable) -> bool:
        """Whether each array that a body stores to is visited at one place only, another one for
        each value of a variable."""
        stores = [s for s in ir.statements(body) if isinstance(s, (Store, Atomic))]
        places: dict[str, set[Any]] = {s.array.name: set() for s in stores}
        for x in [*stores, *(e for e in ir.all_expressions(body) if isinstance(e, Load))]:
            if x.array.name in places:
                places[x.array.name].add((x.indices, x.field))
        steady = {p for p in self.function.parameters if isinstance(p, Variable)}

        def is_own(i: Expr) -> bool:
            moves = any(isinstance(e, Load) or (isinstance(e, Op) and e.name == "wrap")
                        for e in ir.walk(i))  # fmt: skip
            return is_shifted(i, v) and reads(i) <= {v, *steady} and not moves

        own = all(any(map(is_own, s.indices)) for s in stores)
        one = all(len(found) == 1 for found in places.values())
        return own and one and not any(isinstance(s, Atomic) for s in stores)

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
        if s.variable.name == ROW:
            return False  # they use the same slots
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
        mine = [o.variable in self.distributed for o in loops]
        for k, loop in enumerate(loops):
            self.head(loop, depth + k, share=shared and k == (mine.index(True) if any(mine) else 0))
        inner = depth + len(loops)
        around = len(self.around)
        self.around += [replace(o, body=body) for o in loops]
        if chosen is None:
            self.body(body, inner)
        else:
            self.tiles(chosen, inner, shared=shared and not loops)
        del self.around[around:]
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
        inside = any(isinstance(s, For) and s.variable in self.distributed
                     for s in ir.statements(body))  # fmt: skip
        return kept if kept or inside else loops

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
            self.around.append(s)
            self.body(s.body, depth + 1)
            self.around.pop()
            self.line(depth, "}")
            return
        self.around.append(s)
        super().loop(s, depth)
        self.around.pop()

    # ---- loops of the vector unit

    def plan(self, s: For, parallel: bool, rounds: Rounds | None = None) -> Plan | None:
        plan = self.planned(s, parallel, lambda translator: translator.run(), rounds)
        if isinstance(plan, Refused):
            line = (plan.place if plan.place.line else s.place).line
            what = f"`{s.variable.name}` is not a lane"
            if rounds is not None:
                what = "rounds of the block go one by one"
            self.notes.append(Note(line, f"{what}: {plan.why}"))
            return None
        if plan is not None:
            count_copies(plan.program, self.copies)
            self.alias_safe &= plan.program.alias_safe and not late_loads(plan.program)
        return plan

    def moves_again(self, plan: Plan) -> None:
        """Keep which copies of a plan are the same in each round of a loop around it."""
        inside = {v for s in self.around for i in ir.statements((s,)) for v in ir.written(i)}
        written = {self.names.get(v.name, self.names.get(f"v_{v.name}")): v for v in inside}
        for item in all_items(plan.program.items):
            if not isinstance(item, (CopyIn, CopyOut)):
                continue
            words = re.findall(r"[A-Za-z_]\w*", item.index)
            used = self.rests_on({written[w] for w in words if w in written})
            for s in self.around:
                changing = {v for i in ir.statements((s,)) for v in ir.written(i)}
                free = [v.name for v in changing - used if v in self.total_reads]
                axes = sorted(name for name in free if re.fullmatch(r"block_[xyz]", name))
                if not used & changing:
                    self.repeated.setdefault(item.array.name, self.called(s))
                elif axes:
                    self.repeated.setdefault(item.array.name, f"block along {axes[0][-1]}")

    def rests_on(self, variables: set[Variable]) -> set[Variable]:
        """Variables, and those by which they are computed in the loops around."""
        values: dict[Variable, set[Variable]] = {}
        for s in self.around:
            for i in ir.statements((s,)):
                if isinstance(i, Assign):
                    values.setdefault(i.variable, set()).update(reads(i.value))
        found: set[Variable] = set()
        new = set(variables)
        while new:
            found |= new
            new = {v for x in new for v in values.get(x, ())} - found
        return found

    def called(self, s: For | While) -> str:
        """A loop, as `explain` names it."""
        if isinstance(s, While):
            return "round of a `while`"
        if s.variable in self.distributed and s.variable not in self.users and not self.is_flat:
            return "block"
        return f"round of `{s.variable.name.removesuffix('?')}`"

    def planned(
        self, s: For, parallel: bool, run: Callable[[Translator], Program],
        of: Rounds | None = None,
    ) -> Plan | Refused | None:  # fmt: skip
        if self.scalar_only:
            return None
        if any(isinstance(e, Op) and e.name in CHECKS for e in ir.all_expressions(s.body)):
            return Refused("its accesses are checked one by one", s.place)
        place = self.place
        at = self.own("at")
        try:
            rounds = self.rounds(s)
            if not parallel and rounds is not None and rounds < SMALL_LOOP:
                raise Refused(f"it has {rounds} rounds only", s.place)
            program = run(Translator(self, s, parallel, at, of))
            if program.checks and of is not None:  # what a tile leaves begins with a round
                program.every = of.width
            plan = places(s, program, at, self.tile_name, self.taken)
            plan.original = None if of is None else of.original
        except Refused as refused:
            del self.names[f"own {at}"]
            return refused
        finally:
            self.place = place
        self.extents.append(rounds)
        self.least_tile = max(self.least_tile, program.every)
        self.pools.need(plan.pools)
        self.vector_loops += 1
        self.stages |= bool(program.checks)
        return plan

    # ---- rows that stay in the unified buffer between loops

    def statements(self, body: Body, depth: int) -> None:
        found = None if self.scalar_only or self.rows_kept == "none" else self.row(body)
        if found is None:
            return super().statements(body, depth)
        first, last, plan = found
        group = body[first:last]
        super().statements(body[:first], depth)
        self.declare_before(group, depth)
        alone = stores_of(group) == stores_of(self.function.body) and not self.function.arrays
        declared = set(self.declared)
        copies, self.copies = self.copies, self.row_copies
        with self.row_tile(plan, depth, alone, otherwise=self.rows_kept == "both"):
            self.declared, self.copies = set(declared), copies
            if self.rows_kept == "both":
                super().statements(group, depth + 1)
        self.declared = declared
        super().statements(body[last:], depth)

    def between(self, taken: Taken, s: Statement, depth: int) -> None:
        kept, self.rows_kept, self.taken = self.rows_kept, "none", taken
        self.statements((s,), depth)
        self.rows_kept, self.taken = kept, Taken()

    def row(self, body: Body) -> tuple[int, int, Plan] | None:
        """Loops over one range and what may be between them, and their plan."""
        for first, s in enumerate(body):
            if not isinstance(s, For) or self.is_parallel(s) or s.variable in self.distributed:
                continue
            rounds = self.rounds_of(s)
            if isinstance(rounds, str):
                continue
            found = {} if rounds is None else {id(s): rounds}
            limits = reads(s.start) | reads(s.stop)
            last, number = first + 1, 1
            for k in range(first + 1, len(body)):
                other = body[k]
                if (
                    isinstance(other, For) and not self.is_parallel(other)
                    and (s.start, s.stop, s.step) == (other.start, other.stop, other.step)
                ):  # fmt: skip
                    again = self.rounds_of(other)
                    if isinstance(again, Rounds) and rounds is not None:
                        found[id(other)] = again
                        last, number = k + 1, number + 1
                        continue
                    if rounds is None and again is None:
                        last, number = k + 1, number + 1
                        continue
                if {v for i in ir.statements((other,)) for v in ir.written(i)} & limits:
                    break
                if not (isinstance(other, Assign) or (found and may_be_between(other))):
                    break
            if number < 2:
                continue
            group = body[first:last]
            loop = s if rounds is None else rounds.loop
            plan = self.planned(loop, False, partial(row_program, group, found))
            if isinstance(plan, Refused):
                line = (plan.place if plan.place.line else s.place).line
                self.notes.append(Note(line, f"rows do not stay: {plan.why}"))
            elif plan is not None:
                count_copies(plan.program, self.row_copies)
                self.alias_safe &= plan.program.alias_safe
                self.row_lengths.append(None if found else self.rounds(s))
                return first, last, plan
        return None

    def declare_before(self, group: Body, depth: int) -> None:
        """What is assigned between loops is there after the row, in whichever branch."""
        for s in group:
            for v in [s.variable] if isinstance(s, Assign) else []:
                if v not in self.declared:
                    self.line(depth, f"{self.target_of(v)} = {{}};")

    # ---- what a loop is

    def rounds(self, s: For) -> int | None:
        """How many rounds a loop has at most, where that is known."""
        match s.start, s.stop:
            case Const(a), Const(b):
                return max(0, int(b) - int(a))
            case Const(a), Op("min", (Const(b), _)):
                return max(0, int(b) - int(a))
        return None

    # ---- what the translation asks for

    def reads_outside(self, loop: For, parallel: bool) -> set[Variable]:
        """Variables that somebody may read after a loop.

        What a thread keeps from one loop over threads to the next is in slots: another such loop
        only looks at what it has not assigned before.
        """
        if not parallel:
            return self.reads_elsewhere(loop)
        inside = count_reads((loop,))
        found = {v for v, n in self.total_reads.items() if n != inside.get(v, 0)}
        return found & self.escaping(loop)

    def reads_elsewhere(self, loop: For) -> set[Variable]:
        """Other loops look at what they have not assigned before."""
        from ruda.jit.passes.exposure import exposed

        found: set[Variable] = set()

        def visit(body: Body) -> None:
            for s in body:
                for e in ir.expressions(s):
                    found.update(reads(e))
                if s is loop:
                    continue
                if isinstance(s, For) and not any(x is loop for x in ir.statements(s.body)):
                    found.update(exposed(s.body) - {s.variable})
                    continue
                for inner in ir.bodies(s):
                    visit(inner)

        visit(self.function.body)
        return found

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


# ---- helpers -------------------------------------------------------------------------------------


def words_of(lines: Sequence[str]) -> Counter[str]:
    """Names in a text, but for its comments."""
    code = [t for t in lines if not t.lstrip().startswith("//")]
    return Counter(word for t in code for word in re.findall(r"[A-Za-z_]\w*", t))


def without_unread(lines: list[str], numbers: list[int]) -> tuple[list[str], list[int]]:
    """A body without declarations of what only vectors were made of."""
    count = words_of(lines)

    def is_unread(text: str) -> bool:
        declared = re.fullmatch(r" *\w+ (\w+) = \{\};", text)
        return declared is not None and count[declared[1]] == 1

    kept = [k for k, t in enumerate(lines) if not is_unread(t)]
    return [lines[k] for k in kept], [numbers[k] for k in kept]


def without_repeats(lines: list[str], numbers: list[int]) -> tuple[list[str], list[int]]:
    """A body without a barrier of all pipes right after another one."""
    kept, before = [], ""
    for k, text in enumerate(lines):
        code = text.strip()
        if code == before == "PipeBarrier<PIPE_ALL>();":
            continue
        kept.append(k)
        before = before if code.startswith("//") else code
    return [lines[k] for k in kept], [numbers[k] for k in kept]


def whole_axis(s: For) -> bool:
    return isinstance(s.stop, Special) and s.stop.name in ("globalDim", "last")


def local_bytes(a: Array) -> int:
    return -(-max(nbytes(a), 1) // 32) * 32


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


def count_copies(program: Program, counts: dict[str, list[int]]) -> None:
    """Copies of each array, in and out."""
    for item in all_items(program.items):
        if isinstance(item, (CopyIn, CopyOut)):
            both = counts.setdefault(item.array.name, [0, 0])
            both[isinstance(item, CopyOut)] += 1


def stores_of(body: Body) -> int:
    return sum(isinstance(s, (Store, Atomic)) for s in ir.statements(body))


def row_program(group: Body, rounds: Mapping[int, Rounds], translator: Translator) -> Program:
    return translator.run_row(group, rounds)


def may_be_between(s: Statement) -> bool:
    """Whether a statement comes back, so that a row may stay beside it."""
    leaves = (ir.Return, ir.Break, ir.Continue, ir.Barrier)
    return not any(isinstance(i, leaves) for i in ir.statements((s,)))
