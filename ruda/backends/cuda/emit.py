"""IR -> Python text for one CUDA thread: what the CPU's emitter writes, without its loops.

The kernel's parameters are those that it uses: an array is its pointer, extents and strides, each
one parameter; complex numbers are two. `Source.options["parameters"]` lists them for the launcher:

    ["pointer", k], ["stride", k, axis]    of argument k
    ["extent", k, axis, kind]              of argument k; kind: "u32" or "i64"
    ["scalar", k, dtype, part]             part: 1 for the imaginary half
    ["threads", kind]                      the launch's along x
    ["reports"]                            address of the report header
    ["grid"]                               address of the grid barrier's word

The text may assume what a launcher finds true of nearly all launches, and checks (`ASSUMES`):

    "narrow"    extents and coordinates are below 2**31. They come as 32 bits and are made 64 of
                them, so that NVVM sees by itself where 32 bits suffice. Only of kernels that
                divide indices: see `passes.narrow`.
    "apart"     no array that is only read overlaps one that is written, so that what is read stays
                as it is during the kernel: `ld.global.nc`, and loads that may go before stores.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

from ruda.backends.base import Site, Source
from ruda.backends.cuda.intrinsics import is_reserved
from ruda.dtypes import DType
from ruda.errors import NOWHERE, UnsupportedError
from ruda.jit import ir
from ruda.jit.emit_python import AXES, Emitter, bare, group, held, itemsize, times
from ruda.jit.ir import (
    Address,
    Array,
    Atomic,
    Barrier,
    Const,
    Expr,
    Fence,
    For,
    Function,
    Load,
    Return,
    Special,
    Statement,
    Store,
    Variable,
    Warp,
    WideLoad,
    WideStore,
)  # fmt: skip
from ruda.jit.passes.phases import KEPT
from ruda.jit.passes.uniformity import Verdict, analyse

# How a scalar travels: what has no register of its own kind, as bits.
PASSED = {"bool": "u8", "f16": "u16", "bf16": "u16"}
PARTS = {"c64": "f32", "c128": "f64"}
ASSUMES = ("narrow", "apart")
COORDINATES = {
    "threadIdx": "thread", "blockIdx": "block", "blockDim": "block_dim", "gridDim": "grid_dim",
    "globalIdx": "global", "globalDim": "total",
}  # fmt: skip
MEMORY = (Load, Store, Atomic, WideLoad, WideStore)  # nodes with an array and indices
OTHERS = {
    "laneid": "lane()", "sharedBytes": "shared_bytes()", "linearBlock": "linear_block()",
    "linearThread": "linear_thread()",
}  # fmt: skip


def emit(
    function: Function,
    sites: tuple[Site, ...],
    options: Mapping[str, Any],
    assumes: Sequence[str] = ASSUMES,
) -> Source:
    """The text of a kernel, after the passes of `PIPELINE["cuda"]`."""
    emitter = CudaEmitter(function, bool(sites), assumes)
    return dataclasses.replace(emitter.source(options), sites=sites)


class CudaEmitter(Emitter):
    """Text of one kernel, line by line."""

    def __init__(self, function: Function, reports: bool, assumes: Sequence[str]) -> None:
        super().__init__(function)
        self.narrow = "narrow" in assumes
        self.narrowed = False  # whether the text depends on it
        self.steady = only_read(function) if "apart" in assumes else frozenset()
        self.read_early: set[str] = set()  # arrays whose loads depend on "apart"
        self.reports = reports
        self.parameters: list[list[Any]] = []
        self.kinds: list[str] = []
        self.names: list[str] = []
        self.temporaries = 0
        self.apart = "" if stays_together(function) else "_apart"

    def source(self, options: Mapping[str, Any], head: str = "") -> Source:
        f = self.function
        entry = self.name(f.name)
        head_lines = self.signature()
        self.line(0, f"def {entry}({', '.join(self.names)}):")
        for text in head_lines:
            self.line(1, text)
        self.memory([a for a in f.arrays if a.name in self.used_arrays()])
        self.body(f.prologue, 1, keep_empty=True)
        self.body(f.body, 1)
        found = {name for name in written_arrays(f) if not name.startswith(KEPT)}
        written = [k for k, p in enumerate(f.parameters) if p.name in found]
        early = [k for k, p in enumerate(f.parameters) if p.name in self.read_early]
        return Source(
            text="\n".join(self.text) + "\n",
            entry=entry,
            file=f.place.file if f.place is not NOWHERE else "",
            lines=tuple(self.lines),
            options={
                **options,
                "constants": tuple(self.constants),
                "parameters": self.parameters,
                "kinds": tuple(self.kinds),
                "written": written,
                "narrow": self.narrowed,
                "apart": [[k, other] for k in early for other in written],
            },
        )

    def name(self, wanted: str) -> str:
        if wanted not in self.renamed and is_reserved(wanted):
            self.renamed[wanted] = super().name(f"{wanted}_")
        return super().name(wanted)

    # ---- parameters

    def used_arrays(self) -> set[str]:
        f = self.function
        nodes = [*ir.all_expressions((*f.prologue, *f.body)), *ir.statements(f.body)]
        return {x.array.name for x in nodes if isinstance(x, MEMORY)}

    def parameter(self, name: str, kind: str, row: list[Any]) -> None:
        self.names.append(name)
        self.kinds.append(kind)
        self.parameters.append(row)

    def signature(self) -> list[str]:
        """Make the parameters; returns the lines that turn bits back into values."""
        f = self.function
        lines: list[str] = []
        nodes = [*ir.all_expressions((*f.prologue, *f.body)), *ir.statements(f.body)]
        reads = {e.variable.name for e in nodes if isinstance(e, ir.Read)}
        arrays = self.used_arrays()
        extents, strides = self.used_shapes(nodes)
        for k, p in enumerate(f.parameters):
            name = self.name(p.name)
            if isinstance(p, Variable):
                if p.name in reads:
                    lines += self.scalar(k, name, held(p.dtype))
                continue
            if p.name in arrays:
                self.parameter(name, "pointer", ["pointer", k])
            for axis in range(p.ndim):
                if (p.name, axis) in extents:
                    lines += self.count(self.extent(p, axis), ["extent", k, axis])
            for axis in range(p.ndim):
                if (p.name, axis) in strides:
                    self.parameter(self.stride(p, axis), "i64", ["stride", k, axis])
        if any(isinstance(e, Special) and e.name == "threads" for e in nodes):
            lines += self.count(self.name("threads"), ["threads"])
        if self.reports:
            self.parameter("args", "i64", ["reports"])
        if any(isinstance(s, Barrier) and s.scope == "grid" for s in nodes):
            self.parameter(self.name("grid_state"), "i64", ["grid"])
        return lines

    def count(self, name: str, row: list[Any]) -> list[str]:
        """The parameter of an extent, or of a number of threads."""
        if not self.narrow:
            self.parameter(name, "i64", [*row, "i64"])
            return []
        self.narrowed = True
        short = self.name(f"{name}_short")
        self.parameter(short, "u32", [*row, "u32"])
        return [f"{name} = u32_to_i64({short})"]

    def used_shapes(self, nodes: list[Any]) -> tuple[set[Any], set[Any]]:
        """The (array, axis) whose extents and strides the code reads."""
        extents = {(e.array.name, e.axis) for e in nodes if isinstance(e, ir.Extent)}
        strides = {(e.array.name, e.axis) for e in nodes if isinstance(e, ir.Stride)}
        for node in nodes:
            if isinstance(node, MEMORY) and node.array.shape is None:
                axes = range(node.array.ndim)
                if node.array.layout == "A":
                    strides |= {(node.array.name, k) for k in axes}
                else:
                    extents |= {(node.array.name, k) for k in axes[1:]}
        return extents, strides

    def scalar(self, k: int, name: str, kind: str) -> list[str]:
        if kind in PARTS:
            names = [self.name(f"{name}_{part}") for part in ("real", "imag")]
            for part, each in enumerate(names):
                self.parameter(each, PARTS[kind], ["scalar", k, kind, part])
            return [f"{name} = complex_{kind}({names[0]}, {names[1]})"]
        if kind in PASSED:
            raw, passed = self.name(f"{name}_bits"), PASSED[kind]
            self.parameter(raw, passed, ["scalar", k, kind, 0])
            convert = "u8_to_bool" if kind == "bool" else f"bits_{passed}_{kind}"
            return [f"{name} = {convert}({raw})"]
        self.parameter(name, kind, ["scalar", k, kind, 0])
        return []

    def memory(self, arrays: list[Array]) -> None:
        """Shared, local and constant arrays."""
        for a in arrays:
            name = self.name(a.name)
            if a.space == "const":
                assert a.data is not None
                self.line(1, f"{name} = constant_{len(self.constants)}()")
                self.constants.append(a.data)
                continue
            if a.dynamic:
                self.line(1, f"{name} = shared_dynamic()")
                continue
            assert a.shape is not None
            size = max(1, math.prod(a.shape) * itemsize(a.dtype))
            shape = ", ".join(map(str, a.shape))
            self.line(1, f"{name} = {a.space}_{size}()  # {a.dtype}[{shape}]")

    def extent(self, array: Array, axis: int) -> str:
        if array.shape is None and array.dynamic:
            return f"floordiv_i64(shared_bytes(), {itemsize(array.dtype)})"
        return super().extent(array, axis)

    # ---- statements and expressions

    def statement(self, s: Statement, depth: int) -> None:
        if s.place.line:
            self.place = s.place
        e = self.expression
        match s:
            case Return():
                self.line(depth, "return")
            case Barrier("block", None):
                self.line(depth, f"barrier{self.apart}()")
            case Barrier("block", vote, predicate, result):
                assert predicate is not None
                left = f"{self.name(result.name)} = " if result else ""
                self.line(depth, f"{left}barrier_{vote}{self.apart}({bare(e(predicate))})")
            case Barrier("warp", mask=mask):
                text = "u32(4294967295)" if mask is None else bare(e(mask))
                self.line(depth, f"barrier_warp({text})")
            case Barrier("grid"):
                self.line(depth, f"barrier_grid({self.name('grid_state')})")
            case Fence(scope):
                self.line(depth, f"fence_{scope}()")
            case Atomic(op, array, indices, operands, result, field):
                suffix, address = self.address(array, indices, field)
                left = f"{self.name(result.name)} = " if result else ""
                values = ", ".join(bare(e(v)) for v in operands)
                if suffix.endswith("_unaligned"):
                    raise UnsupportedError("atomics need aligned elements", s.place)
                self.line(depth, f"{left}atomic_{op}_{suffix}_{array.space}({address}, {values})")
            case Warp():
                self.line(depth, self.exchange(s))
            case WideLoad():
                self.wide_load(s, depth)
            case WideStore():
                self.wide_store(s, depth)
            case _:
                super().statement(s, depth)

    def loop(self, s: For, depth: int) -> None:
        """Count by `while`: of numba's iterators over ranges NVVM cannot tell how they go on, and
        it multiplies anew in each round.

        The counter goes on before the body, for `continue`, and so is another variable than the
        body's. It counts in 64 bits and by one, so it cannot overflow.
        """
        kind = held(s.variable.dtype)
        start, stop, step = (
            bare(text) if kind == "i64" else f"{kind}_to_i64({bare(text)})"
            for text in map(self.expression, (s.start, s.stop, s.step))
        )
        by = s.step.value if isinstance(s.step, Const) and abs(s.step.value) == 1 else None
        name = self.name(s.variable.name)
        number, end = (self.temporary(f"{s.variable.name}_{part}") for part in ("next", "end"))
        if by:
            self.line(depth, f"{number} = {start}")
            self.line(depth, f"{end} = {stop}")
            value = number
        else:
            first, each = (
                self.temporary(f"{s.variable.name}_{part}") for part in ("first", "step")
            )
            self.line(depth, f"{first} = {start}")
            self.line(depth, f"{each} = {step}")
            self.line(depth, f"{number} = 0")
            self.line(depth, f"{end} = trips({first}, {stop}, {each})")
            value = f"{first} + {number} * {each}"
        self.line(depth, f"while {number} {'>' if by == -1 else '<'} {end}:")
        self.line(depth + 1, f"{name} = {value if kind == 'i64' else f'i64_to_{kind}({value})'}")
        self.line(depth + 1, f"{number} = {number} {'-' if by == -1 else '+'} 1")
        self.body(s.body, depth + 1)

    # NVVM joins accesses to neighbours where the first one's alignment allows it, of 4 or 8 bytes
    # each; smaller elements are taken from words here.

    def wide_load(self, s: WideLoad, depth: int) -> None:
        kind, each, names = plain(s.array), itemsize(s.array.dtype), s.results
        base, total = self.wide_base(s), each * len(names)
        if each >= 4 or total < 4:
            for k, v in enumerate(names):
                suffix = f"{kind}_wide{total if k == 0 else each}{self.early(s.array)}"
                self.line(depth, f"{self.name(v.name)} = load_{suffix}({base}, {k})")
            return
        words = [self.temporary(f"{s.array.name}_word") for _ in range(total // 4)]
        for k, word in enumerate(words):
            suffix = f"u32_wide{total if k == 0 else 4}{self.early(s.array)}"
            self.line(depth, f"{word} = load_{suffix}({base}, {k})")
        for k, v in enumerate(names):
            word, part = words[k * each // 4], k % (4 // each)
            self.line(depth, f"{self.name(v.name)} = part_{kind}_{part}({word})")

    def wide_store(self, s: WideStore, depth: int) -> None:
        kind, each = plain(s.array), itemsize(s.array.dtype)
        values = []
        for value in s.values:  # all before the first access, or NVVM would not join them
            values.append(self.temporary(f"{s.array.name}_to"))
            self.line(depth, f"{values[-1]} = {bare(self.expression(value))}")
        base, total = self.wide_base(s), each * len(values)
        if each < 4 <= total:
            groups = [values[k : k + 4 // each] for k in range(0, len(values), 4 // each)]
            values = [f"join_{kind}({', '.join(g)})" for g in groups]
            kind, each = "u32", 4
        for k, name in enumerate(values):
            suffix = f"{kind}_wide{total if k == 0 else each}"
            self.line(depth, f"store_{suffix}({base}, {k}, {name})")

    def wide_base(self, s: WideLoad | WideStore) -> str:
        """The address of the first element."""
        _, address = self.address(s.array, s.indices, None)
        base, where = address.split(", ", 1)
        return f"offset({base}, {times(group(where), str(itemsize(s.array.dtype)))})"

    def early(self, array: Array) -> str:
        """The suffix of loads that may go before stores."""
        if array.name not in self.steady:
            return ""
        self.read_early.add(array.name)
        return "_nc"

    def temporary(self, wanted: str) -> str:
        """A new variable of the text."""
        self.temporaries += 1
        return self.name(f"{wanted}_{self.temporaries}")

    def exchange(self, s: Warp) -> str:
        """The text of a warp operation."""
        left = f"{self.name(s.result.name)} = "
        if s.op == "activemask":
            return f"{left}activemask()"
        mask = "u32(4294967295)" if s.mask is None else bare(self.expression(s.mask))
        values = ", ".join(bare(self.expression(v)) for v in s.operands)
        kind = held(s.operands[0].dtype)
        if s.op.startswith("match"):
            return f"{left}{s.op}_{kind}({mask}, {values})"
        if s.op.startswith("shfl"):
            return f"{left}{s.op}_{kind}({mask}, {values})"
        return f"{left}vote_{s.op}({mask}, {values})"

    def expression(self, node: Expr) -> str:
        if isinstance(node, Special):
            if node.name in COORDINATES:
                name = COORDINATES[node.name]
                if self.narrow and name in ("global", "total"):
                    self.narrowed = True
                    name = f"short_{name}"
                return f"{name}_{AXES[node.axis]}()"
            if node.name == "threads":
                return self.name("threads")
            return OTHERS[node.name]
        if isinstance(node, Address):
            return f"address({self.name(node.array.name)})"
        if isinstance(node, Load) and node.array.name in self.steady:
            suffix, address = self.address(node.array, node.indices, node.field)
            if not suffix.endswith("_unaligned"):
                return f"load_{suffix}{self.early(node.array)}({address})"
        return super().expression(node)


def written_arrays(function: Function) -> set[str]:
    """The arrays that a kernel writes."""
    statements = ir.statements(function.body)
    return {s.array.name for s in statements if isinstance(s, (Store, Atomic, WideStore))}


def only_read(function: Function) -> frozenset[str]:
    """The arguments whose elements stay as they are, unless other arguments overlap them.

    None in a kernel with fences: they order what others write meanwhile.
    """
    if any(isinstance(s, (Fence, ir.Asm)) for s in ir.statements(function.body)):
        return frozenset()
    arrays = {p.name for p in function.parameters if isinstance(p, Array)}
    return frozenset(arrays - written_arrays(function))


def plain(array: Array) -> str:
    """How the elements of an array of numbers are held."""
    assert isinstance(array.dtype, DType)
    return held(array.dtype)


def stays_together(function: Function) -> bool:
    """Whether every warp surely comes to each barrier as a whole."""
    if any(isinstance(s, Return) for s in ir.statements(function.body)):
        return False
    state = analyse(function)

    def uniform(body: ir.Body) -> bool:
        for s in body:
            inner = ir.bodies(s)
            if not any(ir.has_barrier(b) for b in inner):
                continue
            if any(state.verdict(e) is not Verdict.UNIFORM for e in ir.expressions(s)):
                return False
            if isinstance(s, (ir.For, ir.While)) and not jumps(s.body):
                return False
            if not all(uniform(b) for b in inner):
                return False
        return True

    def jumps(body: ir.Body) -> bool:
        """Whether all jumps out of a loop's round depend on uniform conditions."""
        for s in body:
            if not isinstance(s, ir.If) or not leaves(s):
                continue
            if state.verdict(s.condition) is not Verdict.UNIFORM:
                return False
            if not (jumps(s.then) and jumps(s.otherwise)):
                return False
        return True

    return uniform(function.body)


def leaves(s: Statement) -> bool:
    """Whether a statement may jump out of the round of the loop that it is in."""
    if isinstance(s, (ir.Break, ir.Continue)):
        return True
    return isinstance(s, ir.If) and any(leaves(t) for b in ir.bodies(s) for t in b)


def is_cooperative(function: Function) -> bool:
    """Whether all blocks must be there at once."""
    return any(isinstance(s, Barrier) and s.scope == "grid" for s in ir.statements(function.body))
