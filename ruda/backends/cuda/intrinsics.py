"""The functions of emitted CUDA kernels that other targets do not have, or have otherwise.

Names say the operation and the dtypes, as in `cpu/intrinsics.py`, which serves all names that are
not found here: thread coordinates, barriers and votes, exchanges of a warp, atomics by the space of
their array, shared memory, and libdevice's mathematics.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba.core import types

from ruda.backends.cpu import complexes, integers
from ruda.backends.cpu import intrinsics as shared
from ruda.backends.cpu.intrinsics import (
    BYTES,
    COMPLEX,
    DTYPE,
    F32,
    F64,
    FLOATS,
    I1,
    I8,
    I32,
    I64,
    MEMORY,
    NUMBA,
    PART,
    SIGNED,
    VALUE,
    Intrinsic,
    Values,
    compose,
    element,
    llvm,
    parts,
)  # fmt: skip
from ruda.backends.cpu.values import Value, call_symbol, copysign, floor, select
from ruda.backends.cuda import atomics

AXES = "xyz"
SPACES = {"global": 1, "shared": 3, "local": 5}
VOID = ir.VoidType()
LANE = 31


def sreg(builder: Any, name: str) -> Any:
    """A special register, 32 bits."""
    return llvm(builder, f"llvm.nvvm.read.ptx.sreg.{name}", I32, [])


def wide(builder: Any, value: Any) -> Any:
    return builder.zext(value, I64)


# ---- coordinates ---------------------------------------------------------------------------------

REGISTERS = {"thread": "tid", "block": "ctaid", "block_dim": "ntid", "grid_dim": "nctaid"}


def _coordinate(name: str, axis: str) -> Intrinsic:
    """`thread_x()`, `block_x()`, `block_dim_x()`, `grid_dim_x()`, `global_x()`, `total_x()`.

    `short_global_x()` and `short_total_x()` are known to be below 2**31.
    """

    def lower(context: Any, builder: Any, a: Values) -> Any:
        b = builder
        if name in REGISTERS:
            return wide(b, sreg(b, f"{REGISTERS[name]}.{axis}"))
        if name.startswith("short_"):
            exact, threads = ("nuw", "nsw"), sreg(b, f"ntid.{axis}")
            if name == "short_total":
                return wide(b, b.mul(sreg(b, f"nctaid.{axis}"), threads, flags=exact))
            start = b.mul(sreg(b, f"ctaid.{axis}"), threads, flags=exact)
            return wide(b, b.add(start, sreg(b, f"tid.{axis}"), flags=exact))
        threads = wide(b, sreg(b, f"ntid.{axis}"))
        if name == "total":
            return b.mul(wide(b, sreg(b, f"nctaid.{axis}")), threads)
        blocks = b.mul(wide(b, sreg(b, f"ctaid.{axis}")), threads)
        return b.add(blocks, wide(b, sreg(b, f"tid.{axis}")))

    return Intrinsic(types.int64, (), lower)


def linear(builder: Any, index: str, extent: str) -> Any:
    """x + X * (y + Y * z) of a coordinate, 64 bits."""
    b = builder
    x, y, z = (wide(b, sreg(b, f"{index}.{axis}")) for axis in AXES)
    across, down = (wide(b, sreg(b, f"{extent}.{axis}")) for axis in "xy")
    return b.add(b.mul(b.add(b.mul(z, down), y), across), x)


def _linear(name: str) -> Intrinsic:
    index, extent = {"thread": ("tid", "ntid"), "block": ("ctaid", "nctaid")}[name]
    return Intrinsic(types.int64, (), lambda c, b, a: linear(b, index, extent))


def _lane() -> Intrinsic:
    return Intrinsic(types.int64, (), lambda c, b, a: wide(b, sreg(b, "laneid")))


def threads(builder: Any) -> Any:
    """Threads of the block, 32 bits."""
    b = builder
    x, y, z = (sreg(b, f"ntid.{axis}") for axis in AXES)
    return b.mul(b.mul(x, y), z)


# ---- memory --------------------------------------------------------------------------------------


def in_space(builder: Any, pointer: Any, space: str) -> Any:
    """A generic pointer as one of an address space."""
    return builder.addrspacecast(pointer, ir.PointerType(pointer.type.pointee, SPACES[space]))


def generic(builder: Any, pointer: Any) -> Any:
    """The address of a variable of an address space as a generic one, `i8*`."""
    first = builder.bitcast(pointer, ir.PointerType(I8, pointer.type.addrspace))
    return builder.addrspacecast(first, BYTES)


def _address() -> Intrinsic:
    """`address(base)`: as a number."""
    return Intrinsic(types.int64, (types.voidptr,), lambda c, b, a: b.ptrtoint(a[0], I64))


def _wide(access: str, dtype: str, nbytes: str) -> Intrinsic:
    """`load_f32_wide16(base, i)`: a first element at a multiple of that many bytes."""
    kind, align = MEMORY[dtype], int(nbytes)

    def load(context: Any, builder: Any, a: Values) -> Any:
        return shared.load_from(builder, element(builder, a[0], a[1], kind), dtype, align)

    def store(context: Any, builder: Any, a: Values) -> Any:
        shared.store_to(builder, a[2], element(builder, a[0], a[1], kind), dtype, align)
        return context.get_dummy_value()

    where = (types.voidptr, types.int64)
    if access == "load":
        return Intrinsic(NUMBA[dtype], where, load)
    return Intrinsic(types.void, (*where, NUMBA[dtype]), store)


def _early(name: str) -> Intrinsic:
    """`load_f32_nc(base, i)`, `load_f32_wide16_nc(base, i)`: nothing writes there meanwhile."""
    found = resolve(name)
    assert found is not None

    def lower(context: Any, builder: Any, a: Values) -> Any:
        before = len(builder.block.instructions)
        value = found.lower(context, builder, a)
        nothing = builder.module.add_metadata([])
        for instruction in builder.block.instructions[before:]:
            if isinstance(instruction, ir.LoadInstr):
                instruction.set_metadata("invariant.load", nothing)
        return value

    return Intrinsic(found.result, found.arguments, lower)


def _part(dtype: str, number: str) -> Intrinsic:
    """`part_f16_1(word)`: an element of 8 or 16 bits from a word."""
    kind = MEMORY[dtype]

    def lower(context: Any, builder: Any, a: Values) -> Any:
        bits = builder.lshr(a[0], I32(int(number) * kind.width))
        return shared.from_memory(builder, builder.trunc(bits, kind), dtype)

    return Intrinsic(NUMBA[dtype], (types.uint32,), lower)


def _join(dtype: str) -> Intrinsic:
    """`join_f16(x, y)`, `join_u8(x, y, z, w)`: a word of elements."""
    kind = MEMORY[dtype]

    def lower(context: Any, builder: Any, a: Values) -> Any:
        word = I32(0)
        for k, value in enumerate(a):
            bits = builder.zext(shared.to_memory(builder, value, dtype), I32)
            word = builder.or_(word, builder.shl(bits, I32(k * kind.width)))
        return word

    return Intrinsic(types.uint32, (NUMBA[dtype],) * (32 // kind.width), lower)


def _shared(size: str) -> Intrinsic:
    """`shared_4096()`: that many bytes of the block's shared memory; each use is another array."""

    def lower(context: Any, builder: Any, a: Values) -> Any:
        module = builder.module
        kind = ir.ArrayType(I8, int(size))
        name = module.get_unique_name("shared")
        memory = ir.GlobalVariable(module, kind, name, SPACES["shared"])
        memory.linkage, memory.align = "internal", 16
        memory.initializer = ir.Constant(kind, ir.Undefined)
        return generic(builder, memory)

    return Intrinsic(types.voidptr, (), lower)


def _dynamic() -> Intrinsic:
    """`shared_dynamic()`: the launch's shared memory; all uses are the same memory."""

    def lower(context: Any, builder: Any, a: Values) -> Any:
        module, name = builder.module, "ruda_dynamic_shared"
        memory = module.globals.get(name)
        if memory is None:
            memory = ir.GlobalVariable(module, ir.ArrayType(I8, 0), name, SPACES["shared"])
            memory.linkage, memory.align = "external", 16
        return generic(builder, memory)

    return Intrinsic(types.voidptr, (), lower)


def _local(size: str) -> Intrinsic:
    """`local_64()`: bytes of the thread's own, in registers where every index is a constant."""

    def lower(context: Any, builder: Any, a: Values) -> Any:
        with builder.goto_entry_block():
            memory = builder.alloca(ir.ArrayType(I8, int(size)))
            memory.align = 16
        return builder.bitcast(memory, BYTES)

    return Intrinsic(types.voidptr, (), lower)


def constant(data: bytes) -> Intrinsic:
    """The address of constant bytes: in constant memory as long as they fit there."""
    kind = ir.ArrayType(I8, max(1, len(data)))
    space = 4 if len(data) <= 16 << 10 else 1

    def lower(context: Any, builder: Any, a: Values) -> Any:
        module = builder.module
        name = module.get_unique_name("constant")
        memory = ir.GlobalVariable(module, kind, name, space)
        memory.linkage, memory.global_constant, memory.align = "internal", True, 16
        memory.initializer = ir.Constant(kind, bytearray(data or b"\0"))
        return generic(builder, memory)

    return Intrinsic(types.voidptr, (), lower)


def _shared_bytes() -> Intrinsic:
    """`shared_bytes()`: bytes of dynamic shared memory of the launch."""

    def lower(context: Any, builder: Any, a: Values) -> Any:
        return wide(builder, assembly(builder, I32, "mov.u32 $0, %dynamic_smem_size;", "=r", []))

    return Intrinsic(types.int64, (), lower)


def assembly(
    builder: Any, result: Any, text: str, constraints: str, arguments: Values, effect: bool = False
) -> Any:
    """One instruction of PTX."""
    kind = ir.FunctionType(result, [a.type for a in arguments])
    return builder.call(ir.InlineAsm(kind, text, constraints, side_effect=effect), list(arguments))


# ---- barriers and fences -------------------------------------------------------------------------


def _barrier(apart: str) -> Intrinsic:
    """`barrier()`; `barrier_apart()` where lanes of a warp may come apart, or have returned.

    The plain instruction counts whole warps: lanes that are on another way count as arrived.
    """

    def lower(context: Any, builder: Any, a: Values) -> Any:
        if apart:
            llvm(builder, "llvm.nvvm.barrier.sync", VOID, [I32(0)])
        else:
            llvm(builder, "llvm.nvvm.barrier0", VOID, [])
        return context.get_dummy_value()

    return Intrinsic(types.void, (), lower)


def _barrier_vote(vote: str, apart: str) -> Intrinsic:
    """`barrier_and(p)`, `barrier_or(p)`, `barrier_count(p)`: int32; `..._apart` as above."""
    name = {"count": "popc"}.get(vote, vote)

    def lower(context: Any, builder: Any, a: Values) -> Any:
        predicate = builder.zext(a[0], I32)
        if apart:
            found = vote_apart(builder, vote, predicate)
        else:
            found = llvm(builder, f"llvm.nvvm.barrier0.{name}", I32, [predicate])
        if vote == "count":
            return found
        return builder.zext(builder.icmp_unsigned("!=", found, I32(0)), I32)

    return Intrinsic(types.int32, (types.boolean,), lower)


def vote_apart(builder: Any, vote: str, predicate: Any) -> Any:
    head = "{ .reg .pred %p, %q; setp.ne.u32 %p, $1, 0;"
    if vote == "count":
        text = f"{head} barrier.red.popc.u32 $0, 0, %p; }}"
    else:
        text = f"{head} barrier.red.{vote}.pred %q, 0, %p; selp.u32 $0, 1, 0, %q; }}"
    kind = ir.FunctionType(I32, [I32])
    asm = ir.InlineAsm(kind, text, "=r,r,~{memory}", side_effect=True)
    return builder.call(asm, [predicate], attrs=("convergent",))


def _barrier_warp() -> Intrinsic:
    def lower(context: Any, builder: Any, a: Values) -> Any:
        llvm(builder, "llvm.nvvm.bar.warp.sync", VOID, [a[0]])
        return context.get_dummy_value()

    return Intrinsic(types.void, (types.uint32,), lower)


def _fence(scope: str) -> Intrinsic:
    name = {"block": "cta", "device": "gl", "system": "sys"}[scope]

    def lower(context: Any, builder: Any, a: Values) -> Any:
        llvm(builder, f"llvm.nvvm.membar.{name}", VOID, [])
        return context.get_dummy_value()

    return Intrinsic(types.void, (), lower)


def _barrier_grid() -> Intrinsic:
    """`barrier_grid(state)`: all blocks meet. `state` is a word that is 0 before the first one.

    Each block adds 1, the first block what is missing to 2**31, so that the highest bit flips when
    all are there, and the word is right for the next barrier.
    """

    def lower(context: Any, builder: Any, a: Values) -> Any:
        b = builder
        llvm(b, "llvm.nvvm.barrier0", VOID, [])
        first = b.icmp_unsigned("==", linear(b, "tid", "ntid"), I64(0))
        with b.if_then(first):
            x, y, z = (sreg(b, f"nctaid.{axis}") for axis in AXES)
            blocks = b.mul(b.mul(x, y), z)
            leader = b.icmp_unsigned("==", linear(b, "ctaid", "nctaid"), I64(0))
            rest = b.sub(I32(1 << 31), b.sub(blocks, I32(1)))
            mine = b.select(leader, rest, I32(1))
            llvm(b, "llvm.nvvm.membar.gl", VOID, [])
            word = in_space(b, b.inttoptr(a[0], I32.as_pointer()), "global")
            old = b.atomic_rmw("add", word, mine, "monotonic")
            wait, done = b.append_basic_block("wait"), b.append_basic_block("met")
            b.branch(wait)
            b.position_at_end(wait)
            now = assembly(
                b, I32, "ld.acquire.gpu.global.u32 $0, [$1];", "=r,l,~{memory}", [word], True
            )
            flipped = b.and_(b.xor(old, now), I32(1 << 31))
            b.cbranch(b.icmp_unsigned("==", flipped, I32(0)), wait, done)
            b.position_at_end(done)
            llvm(b, "llvm.nvvm.membar.gl", VOID, [])
        llvm(b, "llvm.nvvm.barrier0", VOID, [])
        return context.get_dummy_value()

    return Intrinsic(types.void, (types.int64,), lower)


# ---- warps ---------------------------------------------------------------------------------------

VOTES = {"all": 0, "any": 1, "eq": 2, "ballot": 3}
PAIR = ir.LiteralStructType([I32, I1])


def _vote(name: str) -> Intrinsic:
    """`vote_all(mask, p)`, `vote_any`, `vote_eq`: bool; `vote_ballot`: uint32."""

    def lower(context: Any, builder: Any, a: Values) -> Any:
        pair = llvm(builder, "llvm.nvvm.vote.sync", PAIR, [a[0], I32(VOTES[name]), a[1]])
        return builder.extract_value(pair, 0 if name == "ballot" else 1)

    result = types.uint32 if name == "ballot" else types.boolean
    return Intrinsic(result, (types.uint32, types.boolean), lower)


def _activemask() -> Intrinsic:
    def lower(context: Any, builder: Any, a: Values) -> Any:
        return assembly(builder, I32, "activemask.b32 $0;", "=r", [], effect=True)

    return Intrinsic(types.uint32, (), lower)


def _match(how: str, dtype: str) -> Intrinsic:
    """`match_any_i64(mask, value)`: the lanes with the same bits; `match_all`: mask, or 0."""

    def lower(context: Any, builder: Any, a: Values) -> Any:
        bits = as_integer(builder, a[1], dtype)
        name = f"llvm.nvvm.match.{how}.sync.{bits.type}"
        if how == "all":
            pair = llvm(builder, name + "p", PAIR, [a[0], bits])
            return builder.extract_value(pair, 0)
        return llvm(builder, name, I32, [a[0], bits])

    return Intrinsic(types.uint32, (types.uint32, NUMBA[dtype]), lower)


def as_integer(builder: Any, value: Any, dtype: str) -> Any:
    """The bits of a value that is held in up to 64 bits, as i32 or i64."""
    b = builder
    if dtype == "c64":
        real, imaginary = (b.zext(b.bitcast(p, I32), I64) for p in parts(b, value))
        return b.or_(real, b.shl(imaginary, I64(32)))
    if value.type in (F32, F64):
        return b.bitcast(value, I32 if value.type == F32 else I64)
    return value if value.type.width >= 32 else b.zext(value, I32)


# The mode of the instruction, and whether the source lane is limited from below.
SHUFFLES = {
    "shfl_up": (1, True),
    "shfl_down": (2, False),
    "shfl_xor": (3, False),
    "shfl": (0, False),
}


def _shuffle(name: str, dtype: str) -> Intrinsic:
    """`shfl_down_f32(mask, value, n, width)`; without a source in the segment, the own value."""
    kind = NUMBA[dtype]

    def lower(context: Any, builder: Any, a: Values) -> Any:
        b = builder
        mask, value, n, width = a
        # The last lane that exists: 31, or less in the last warp of a block.
        lane = sreg(b, "laneid")
        thread = b.trunc(linear(b, "tid", "ntid"), I32)
        behind = b.sub(b.sub(threads(b), thread), I32(1))
        last = b.add(lane, behind)
        last = b.select(b.icmp_unsigned("<", last, I32(LANE)), last, I32(LANE))
        if name != "shfl" and is_constant(width, 32, 32) and is_constant(n, 0, LANE):
            mode, up = SHUFFLES[name]
            clamp = I32(0) if up else last
        else:
            mode, clamp = 0, I32(LANE)
            start = b.and_(lane, b.neg(width))
            source = {
                "shfl": lambda: b.add(start, b.and_(n, b.sub(width, I32(1)))),
                "shfl_up": lambda: b.sub(lane, n),
                "shfl_down": lambda: b.add(lane, n),
                "shfl_xor": lambda: b.xor(lane, n),
            }[name]()
            # One unsigned comparison: source - start in 0 .. width - 1. `n` may be any int32.
            inside = b.icmp_unsigned("<", b.sub(source, start), width)
            inside = b.and_(inside, b.icmp_unsigned("<=", source, last))
            n = b.select(inside, source, lane)
        return by_words(b, value, dtype, lambda word: shuffle_word(b, mask, mode, word, n, clamp))

    return Intrinsic(kind, (types.uint32, kind, types.int32, types.int32), lower)


def is_constant(value: Any, low: int, high: int) -> bool:
    return isinstance(value, ir.Constant) and low <= value.constant <= high


def shuffle_word(builder: Any, mask: Any, mode: int, word: Any, n: Any, clamp: Any) -> Any:
    pair = llvm(builder, "llvm.nvvm.shfl.sync.i32", PAIR, [mask, I32(mode), word, n, clamp])
    return builder.extract_value(pair, 0)


def by_words(builder: Any, value: Any, dtype: str, exchange: Callable[[Any], Any]) -> Any:
    """Exchange a value of any dtype, 32 bits at a time."""
    b = builder
    if dtype in COMPLEX:
        return compose(b, *(by_words(b, p, PART[dtype], exchange) for p in parts(b, value)))
    if value.type in (F32, F64):
        bits = b.bitcast(value, I32 if value.type == F32 else I64)
    else:
        bits = value
    width = bits.type.width
    if width == 64:
        low = b.zext(exchange(b.trunc(bits, I32)), I64)
        high = b.zext(exchange(b.trunc(b.lshr(bits, I64(32)), I32)), I64)
        moved = b.or_(low, b.shl(high, I64(32)))
    elif width == 32:
        moved = exchange(bits)
    else:
        moved = b.trunc(exchange(b.zext(bits, I32)), bits.type)
    return b.bitcast(moved, value.type) if moved.type != value.type else moved


# ---- atomics -------------------------------------------------------------------------------------


def _atomic(op: str, dtype: str, space: str) -> Intrinsic:
    """`atomic_add_f32_shared(base, i, value)`: the old value."""
    count = 2 if op == "cas" else 1

    def lower(context: Any, builder: Any, a: Values) -> Any:
        pointer = element(builder, a[0], a[1], MEMORY[dtype])
        if space == "local":
            return atomics.plain(builder, op, dtype, pointer, a[2:])
        pointer = in_space(builder, pointer, space)
        return atomics.atomic(builder, op, dtype, space, pointer, a[2:])

    kind = NUMBA[dtype]
    return Intrinsic(kind, (types.voidptr, types.int64, *(kind,) * count), lower)


# ---- mathematics ---------------------------------------------------------------------------------

# libdevice's functions that keep the rules of the table of operations.
LIBDEVICE = {
    n: n
    for n in (
        "sqrt", "rsqrt", "cbrt", "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sin",
        "cos", "tan", "asin", "acos", "atan", "atan2", "sinh", "cosh", "tanh", "asinh", "acosh",
        "atanh", "hypot", "sinpi", "cospi", "erf", "erfc", "lgamma", "floor", "ceil", "trunc",
        "rint", "fmod", "remainder", "copysign", "nextafter", "pow", "fma", "fmin", "fmax", "ldexp",
    )
} | {"abs": "fabs", "gamma": "tgamma"}  # fmt: skip
ARITY = {
    "atan2": 2, "hypot": 2, "fmod": 2, "remainder": 2, "copysign": 2, "nextafter": 2, "pow": 2,
    "fmin": 2, "fmax": 2, "ldexp": 2, "fma": 3,
}  # fmt: skip
# Those that `fastmath` allows, for float32.
FAST = {n: f"fast_{n}" for n in ("sin", "cos", "tan", "exp", "log", "log2", "log10", "pow")}


def _scalar(name: str, dtype: str) -> Intrinsic | None:
    if dtype not in FLOATS or name not in LIBDEVICE:
        return None
    kind, real = NUMBA[dtype], VALUE[dtype]
    inputs = [kind] * ARITY.get(name, 1)
    if name == "ldexp":
        inputs[1] = types.int32
    symbol = LIBDEVICE[name]

    def lower(context: Any, builder: Any, a: Values) -> Any:
        fast = dtype == "f32" and name in FAST and "afn" in context.kernel_flags
        chosen = FAST[name] if fast else symbol
        return llvm(builder, f"__nv_{chosen}{'f' * (dtype == 'f32')}", real, list(a))

    return Intrinsic(kind, tuple(inputs), lower)


def _real(name: str, *values: Value) -> Value:
    """A real function inside one of complex numbers."""
    dtype = values[0].dtype
    return call_symbol(f"__nv_{LIBDEVICE[name]}{'f' * (dtype == 'f32')}", dtype, *values)


complexes.LIBRARIES["nvptx64-nvidia-cuda"] = _real


def _floor_divide(name: str, dtype: str) -> Intrinsic | None:
    """`floordiv` and `mod` of floats, as Python and NumPy have them."""
    kind, symbol = NUMBA[dtype], f"__nv_fmod{'f' * (dtype == 'f32')}"

    def lower(context: Any, builder: Any, a: Values) -> Any:
        x, y = (Value(builder, v, dtype) for v in a)
        r = call_symbol(symbol, dtype, x, y)
        crossed = (r != 0) & ((r < 0) ^ (y < 0))
        if name == "mod":
            return select(r == 0, copysign(0.0, y), select(crossed, r + y, r)).llvm
        q = (x - r) / y
        q = select(crossed, q - 1, q)
        whole = floor(q)
        whole = select(q - whole > 0.5, whole + 1, whole)
        whole = select(q == 0, copysign(0.0, x / y), whole)
        return select(y == 0, x / y, whole).llvm

    return Intrinsic(kind, (kind, kind), lower)


def _divide(name: str, dtype: str) -> Intrinsic:
    """`floordiv` and `mod` of 32 bits by the GPU's routine: float64, as on the CPU, is slow."""
    kind, part = NUMBA[dtype], ("floordiv", "mod").index(name)

    def lower(context: Any, builder: Any, a: Values) -> Any:
        x, y = (Value(builder, v, dtype) for v in a)
        return integers.divide(x, y, vectors=False)[part].llvm

    return Intrinsic(kind, (kind, kind), lower)


def _mulhi(dtype: str) -> Intrinsic | None:
    """The high half of a product of 64 bits, without 128-bit integers."""
    kind = NUMBA[dtype]
    symbol = "__nv_mul64hi" if dtype in SIGNED else "__nv_umul64hi"
    return Intrinsic(kind, (kind, kind), lambda c, b, a: llvm(b, symbol, I64, list(a)))


# ---- by name -------------------------------------------------------------------------------------

_PATTERNS: tuple[tuple[str, Callable[..., Intrinsic | None]], ...] = (
    (r"(thread|block|block_dim|grid_dim|global|total|short_global|short_total)_([xyz])",
     _coordinate),
    (rf"(load_(?:{DTYPE})(?:_wide\d+)?)_nc", _early),
    (r"linear_(thread|block)", _linear),
    (r"lane", _lane),
    (r"address", _address),
    (rf"(load|store)_({DTYPE})_wide(\d+)", _wide),
    (rf"part_({DTYPE})_(\d)", _part),
    (rf"join_({DTYPE})", _join),
    (r"shared_(\d+)", _shared),
    (r"shared_dynamic", _dynamic),
    (r"shared_bytes", _shared_bytes),
    (r"local_(\d+)", _local),
    (r"barrier(_apart|)", _barrier),
    (r"barrier_(and|or|count)(_apart|)", _barrier_vote),
    (r"barrier_warp", _barrier_warp),
    (r"barrier_grid", _barrier_grid),
    (r"fence_(block|device|system)", _fence),
    (r"vote_(all|any|eq|ballot)", _vote),
    (r"activemask", _activemask),
    (rf"match_(any|all)_({DTYPE})", _match),
    (rf"(shfl|shfl_up|shfl_down|shfl_xor)_({DTYPE})", _shuffle),
    (rf"atomic_(\w+)_({DTYPE})_(global|shared|local)", _atomic),
    (r"mulhi_(i64|u64)", _mulhi),
    (r"(floordiv|mod)_(f32|f64)", _floor_divide),
    (r"(floordiv|mod)_(i32|u32)", _divide),
    (rf"(\w+?)_({DTYPE})", _scalar),
)  # fmt: skip
# What the CPU has and a GPU has not.
_ABSENT = re.compile(r"word(_\w+)?|pointer|stack_\w+|heap_\d+|release|update_\w+|fence")


def resolve(name: str) -> Intrinsic | None:
    """The intrinsic of that name, or None."""
    for pattern, make in _PATTERNS:
        found = re.fullmatch(pattern, name)
        if found is not None:
            intrinsic = make(*found.groups())
            if intrinsic is not None:
                return intrinsic
    return None if _ABSENT.fullmatch(name) else shared.resolve(name)


def is_reserved(name: str) -> bool:
    """Whether a name means something in emitted text."""
    return any(re.fullmatch(pattern, name) for pattern, _ in _PATTERNS[:-1])
