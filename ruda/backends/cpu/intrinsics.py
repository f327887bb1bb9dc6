"""The functions and operators of emitted kernels: a few LLVM instructions each, exactly typed.

numba's own rules would widen int32 + int32 and mix integers into float64. Emitted text is compiled
by a numba target of our own (`target.py`) that knows only what stands here: `a + b` has the dtype
of its equal operands and wraps, nothing raises, no memory is counted. A name says the operation
and the dtypes: `load_f32(base, i)`, `f32_to_i32(x)`, `shl_u16(x, y)`. `resolve` makes functions on
demand.

Kernel dtypes are held so: `index` is int64; float16 and bfloat16 are float32 values, rounded after
every operation by `round_f16`, and 16 bits in memory; bool is one bit, a byte in memory.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from llvmlite import ir
from numba.core import types

from ruda.backends.cpu import atomics, complexes, integers, math
from ruda.backends.cpu.reports import FAILURE, NOTE, TAIL, TOLD
from ruda.backends.cpu.values import Value

Values = Sequence[Any]
Lower = Callable[[Any, Any, Values], Any]  # (target context, builder, arguments) -> value

I1, I8, I16, I32, I64 = (ir.IntType(n) for n in (1, 8, 16, 32, 64))
F16, F32, F64 = ir.HalfType(), ir.FloatType(), ir.DoubleType()
BYTES = I8.as_pointer()

SIGNED = {"i8": 8, "i16": 16, "i32": 32, "i64": 64}
UNSIGNED = {"u8": 8, "u16": 16, "u32": 32, "u64": 64}
WIDTH = SIGNED | UNSIGNED | {"bool": 1}
NUMBA = {
    "bool": types.boolean,
    **{name: getattr(types, f"int{n}") for name, n in SIGNED.items()},
    **{name: getattr(types, f"uint{n}") for name, n in UNSIGNED.items()},
    "f16": types.float32, "bf16": types.float32, "f32": types.float32, "f64": types.float64,
    "c64": types.complex64, "c128": types.complex128,
}  # fmt: skip
PART = {"c64": "f32", "c128": "f64"}
VALUE = {name: ir.IntType(n) for name, n in WIDTH.items()}
VALUE |= {"f16": F32, "bf16": F32, "f32": F32, "f64": F64}
MEMORY = VALUE | {"bool": I8, "f16": I16, "bf16": I16}
INTEGERS = (*SIGNED, *UNSIGNED)
FLOATS = ("f32", "f64")
COMPLEX = ("c64", "c128")
SIZE = {name: max(1, WIDTH[name] // 8) for name in WIDTH}
SIZE |= {"f16": 2, "bf16": 2, "f32": 4, "f64": 8, "c64": 8, "c128": 16}
DTYPE = "|".join(sorted(NUMBA, key=len, reverse=True))


@dataclass(frozen=True, slots=True)
class Intrinsic:
    """A function of emitted code: its numba signature and how it becomes LLVM."""

    result: Any
    arguments: tuple[Any, ...]
    lower: Lower


# ---- small LLVM helpers --------------------------------------------------------------------------


def llvm(builder: Any, name: str, result: Any, arguments: Values) -> Any:
    """Call an LLVM intrinsic function or a C function."""
    module = builder.module
    function = module.globals.get(name)
    if function is None:
        kind = ir.FunctionType(result, [a.type for a in arguments])
        function = ir.Function(module, kind, name)
    return builder.call(function, arguments)


def suffix(kind: Any) -> str:
    """How LLVM writes a type in an intrinsic's name."""
    return {F32: "f32", F64: "f64", F16: "f16"}.get(kind) or str(kind)


def flags(context: Any) -> tuple[str, ...]:
    """The fast-math flags of ordinary float operations: the target context carries them."""
    return tuple(context.kernel_flags)


def parts(builder: Any, z: Any) -> tuple[Any, Any]:
    return builder.extract_value(z, 0), builder.extract_value(z, 1)


def compose(builder: Any, real: Any, imaginary: Any) -> Any:
    kind = ir.LiteralStructType([real.type, imaginary.type])
    z = builder.insert_value(ir.Constant(kind, ir.Undefined), real, 0)
    return builder.insert_value(z, imaginary, 1)


def element(builder: Any, base: Any, index: Any, kind: Any) -> Any:
    """&((kind*) base)[index], in bounds by the language's rules."""
    return builder.gep(builder.bitcast(base, kind.as_pointer()), [index], inbounds=True)


def memory_type(dtype: str) -> Any:
    if dtype in COMPLEX:
        return ir.LiteralStructType([VALUE[PART[dtype]]] * 2)
    return MEMORY[dtype]


# ---- 16-bit floats -------------------------------------------------------------------------------


def bf16_bits(builder: Any, x: Any) -> Any:
    """float32 -> the 16 bits of the nearest bfloat16, ties to even, NaN kept."""
    bits = builder.bitcast(x, I32)
    last = builder.and_(builder.lshr(bits, I32(16)), I32(1))
    rounded = builder.add(bits, builder.add(last, I32(0x7FFF)))
    quiet = builder.or_(bits, I32(0x400000))
    nan = builder.fcmp_unordered("uno", x, x)
    return builder.trunc(builder.lshr(builder.select(nan, quiet, rounded), I32(16)), I16)


def to_bits16(builder: Any, x: Any, dtype: str) -> Any:
    if dtype == "bf16":
        return bf16_bits(builder, x)
    return integers.float_to_half(Value(builder, x, "f32")).llvm


def from_bits16(builder: Any, bits: Any, dtype: str) -> Any:
    if dtype == "bf16":
        return builder.bitcast(builder.shl(builder.zext(bits, I32), I32(16)), F32)
    return integers.half_to_float(Value(builder, bits, "u16")).llvm


def round16(builder: Any, x: Any, dtype: str) -> Any:
    return from_bits16(builder, to_bits16(builder, x, dtype), dtype)


def round_to_odd(builder: Any, x: Any) -> Any:
    """float64 -> float32 such that a second rounding, to 16 bits, is the only one that counts."""
    near = builder.fptrunc(x, F32)
    back = builder.fpext(near, F64)
    bits = builder.bitcast(near, I32)
    size = llvm(builder, "llvm.fabs.f64", F64, [x])
    size_back = llvm(builder, "llvm.fabs.f64", F64, [back])
    smaller = builder.fcmp_ordered("<", size_back, size)
    other = builder.select(smaller, builder.add(bits, I32(1)), builder.sub(bits, I32(1)))
    even = builder.icmp_unsigned("==", builder.and_(bits, I32(1)), I32(0))
    inexact = builder.fcmp_ordered("!=", back, x)
    infinite = builder.fcmp_ordered("==", size_back, ir.Constant(F64, float("inf")))
    change = builder.and_(builder.and_(even, inexact), builder.not_(infinite))
    return builder.bitcast(builder.select(change, other, bits), F32)


# ---- memory --------------------------------------------------------------------------------------


def tell_apart(builder: Any, access: Any, own: bool) -> None:
    """Say of a load or store whether it is of memory that the kernel has made.

    What is its own is nobody else's. LLVM finds that out of few uses only, and of arrays with many
    would keep each element in memory from one store to the next load.
    """
    module = builder.module
    domain = module.add_metadata(["ruda"])
    scopes = [module.add_metadata([module.add_metadata([f"ruda {k}", domain])]) for k in WHOSE]
    access.set_metadata("alias.scope", scopes[own])
    access.set_metadata("noalias", scopes[not own])


WHOSE = ("given", "own")


def load_from(
    builder: Any, pointer: Any, dtype: str, align: int | None = None, own: bool = False
) -> Any:
    """The value of kernel dtype `dtype` at a pointer to its memory type."""
    if dtype in COMPLEX:
        kind = VALUE[PART[dtype]]
        base = builder.bitcast(pointer, kind.as_pointer())
        items = [
            builder.load(builder.gep(base, [I32(k)], inbounds=True), align=align) for k in (0, 1)
        ]
        for item in items:
            tell_apart(builder, item, own)
        return compose(builder, *items)
    value = builder.load(pointer, align=align)
    tell_apart(builder, value, own)
    return from_memory(builder, value, dtype)


def from_memory(builder: Any, value: Any, dtype: str) -> Any:
    if dtype == "bool":
        return builder.icmp_unsigned("!=", value, I8(0))
    if dtype in ("f16", "bf16"):
        return from_bits16(builder, value, dtype)
    return value


def to_memory(builder: Any, value: Any, dtype: str) -> Any:
    if dtype == "bool":
        return builder.zext(value, I8)
    if dtype in ("f16", "bf16"):
        return to_bits16(builder, value, dtype)
    return value


def store_to(
    builder: Any, value: Any, pointer: Any, dtype: str, align: int | None = None, own: bool = False
) -> None:
    if dtype in COMPLEX:
        kind = VALUE[PART[dtype]]
        base = builder.bitcast(pointer, kind.as_pointer())
        for k, part in enumerate(parts(builder, value)):
            place = builder.gep(base, [I32(k)], inbounds=True)
            tell_apart(builder, builder.store(part, place, align=align), own)
        return
    stored = builder.store(to_memory(builder, value, dtype), pointer, align=align)
    tell_apart(builder, stored, own)


def _load(own: str, dtype: str, unaligned: str) -> Intrinsic:
    """`load_f32(base, i)`; `load_own_f32` if the kernel has made the memory."""
    kind, align = memory_type(dtype), 1 if unaligned else None

    def lower(context: Any, builder: Any, a: Values) -> Any:
        return load_from(builder, element(builder, a[0], a[1], kind), dtype, align, bool(own))

    return Intrinsic(NUMBA[dtype], (types.voidptr, types.int64), lower)


def _store(own: str, dtype: str, unaligned: str) -> Intrinsic:
    kind, align = memory_type(dtype), 1 if unaligned else None

    def lower(context: Any, builder: Any, a: Values) -> Any:
        store_to(builder, a[2], element(builder, a[0], a[1], kind), dtype, align, bool(own))
        return context.get_dummy_value()

    return Intrinsic(types.void, (types.voidptr, types.int64, NUMBA[dtype]), lower)


def _prefetch(dtype: str) -> Intrinsic:
    """`prefetch_f32(base, i)`: ask for a cache line, into the second level; i may be out of bounds.

    The first level would lose what the loop works on before it gets to that line.
    """
    kind = memory_type(dtype)

    def lower(context: Any, builder: Any, a: Values) -> Any:
        address = builder.gep(builder.bitcast(a[0], kind.as_pointer()), [a[1]])
        arguments = (builder.bitcast(address, BYTES), I32(0), I32(2), I32(1))
        tell_apart(builder, llvm(builder, "llvm.prefetch.p0", ir.VoidType(), arguments), False)
        return context.get_dummy_value()

    return Intrinsic(types.void, (types.voidptr, types.int64), lower)


def _word(dtype: str) -> Intrinsic:
    """A scalar parameter in the packed block: `word_f32(args, 8)`."""
    kind = memory_type(dtype)

    def lower(context: Any, builder: Any, a: Values) -> Any:
        pointer = builder.gep(builder.inttoptr(a[0], I64.as_pointer()), [a[1]], inbounds=True)
        return load_from(builder, builder.bitcast(pointer, kind.as_pointer()), dtype)

    return Intrinsic(NUMBA[dtype], (types.int64, types.int64), lower)


def _pointer() -> Intrinsic:
    """An address in the packed block: `pointer(args, 8)`."""

    def lower(context: Any, builder: Any, a: Values) -> Any:
        slot = builder.gep(builder.inttoptr(a[0], I64.as_pointer()), [a[1]], inbounds=True)
        return builder.inttoptr(builder.load(slot), BYTES)

    return Intrinsic(types.voidptr, (types.int64, types.int64), lower)


def _offset() -> Intrinsic:
    """`offset(base, bytes)`: the address some bytes on."""

    def lower(context: Any, builder: Any, a: Values) -> Any:
        return builder.gep(a[0], [a[1]], inbounds=True)

    return Intrinsic(types.voidptr, (types.voidptr, types.int64), lower)


def _stack(size: str) -> Intrinsic:
    """`stack_4096()`: that many bytes in the function's frame, aligned to a cache line."""

    def lower(context: Any, builder: Any, a: Values) -> Any:
        with builder.goto_entry_block():
            memory = builder.alloca(ir.ArrayType(I8, int(size)))
            memory.align = 64
        return builder.bitcast(memory, BYTES)

    return Intrinsic(types.voidptr, (), lower)


# ---- arithmetic ----------------------------------------------------------------------------------


def binary(dtype: str, integer: str, real: str) -> Lower:
    """One instruction on equal operands: `integer` for integers and bool, `real` for floats."""

    def lower(context: Any, builder: Any, a: Values) -> Any:
        if dtype in WIDTH:
            return getattr(builder, integer)(a[0], a[1])
        return getattr(builder, real)(a[0], a[1], flags=flags(context))

    return lower


def comparison(dtype: str, sign: str) -> Lower:
    def lower(context: Any, builder: Any, a: Values) -> Any:
        if dtype in SIGNED:
            return builder.icmp_signed(sign, a[0], a[1])
        if dtype in WIDTH:
            return builder.icmp_unsigned(sign, a[0], a[1])
        if dtype in COMPLEX:
            (ar, ai), (br, bi) = parts(builder, a[0]), parts(builder, a[1])
            if sign == "==":
                pair = builder.fcmp_ordered, builder.and_
            else:
                pair = builder.fcmp_unordered, builder.or_
            return pair[1](pair[0](sign, ar, br), pair[0](sign, ai, bi))
        if sign == "!=":
            return builder.fcmp_unordered(sign, a[0], a[1])
        return builder.fcmp_ordered(sign, a[0], a[1])

    return lower


def complex_sum(name: str) -> Lower:
    def lower(context: Any, builder: Any, a: Values) -> Any:
        f = getattr(builder, name)
        (ar, ai), (br, bi) = parts(builder, a[0]), parts(builder, a[1])
        return compose(builder, f(ar, br), f(ai, bi))

    return lower


def complex_product(context: Any, builder: Any, a: Values) -> Any:
    b, f = builder, flags(context)
    (ar, ai), (br, bi) = parts(b, a[0]), parts(b, a[1])
    real = b.fsub(b.fmul(ar, br, flags=f), b.fmul(ai, bi, flags=f), flags=f)
    imaginary = b.fadd(b.fmul(ar, bi, flags=f), b.fmul(ai, br, flags=f), flags=f)
    return compose(b, real, imaginary)


def complex_quotient(context: Any, builder: Any, a: Values) -> Any:
    """Smith's division, as NumPy does it: divide through by the larger part of the divisor."""
    b = builder
    (ar, ai), (br, bi) = parts(b, a[0]), parts(b, a[1])
    fabs = f"llvm.fabs.{suffix(ar.type)}"
    size_r, size_i = (llvm(b, fabs, ar.type, [v]) for v in (br, bi))
    real_larger = b.fcmp_ordered(">=", size_r, size_i)
    large, small = b.select(real_larger, br, bi), b.select(real_larger, bi, br)
    ratio = b.fdiv(small, large)
    scale = b.fdiv(ir.Constant(ar.type, 1.0), b.fadd(large, b.fmul(small, ratio)))
    real = b.select(real_larger, b.fadd(ar, b.fmul(ai, ratio)), b.fadd(b.fmul(ar, ratio), ai))
    imaginary = b.select(real_larger, b.fsub(ai, b.fmul(ar, ratio)), b.fsub(b.fmul(ai, ratio), ar))
    zero = ir.Constant(ar.type, 0.0)
    both_zero = b.and_(b.fcmp_ordered("==", size_r, zero), b.fcmp_ordered("==", size_i, zero))
    real = b.select(both_zero, b.fdiv(ar, size_r), b.fmul(real, scale))
    imaginary = b.select(both_zero, b.fdiv(ai, size_r), b.fmul(imaginary, scale))
    return compose(b, real, imaginary)


_ARITHMETIC = {
    operator.add: ("add", "fadd"), operator.sub: ("sub", "fsub"), operator.mul: ("mul", "fmul"),
}  # fmt: skip
_BITS = {operator.and_: "and_", operator.or_: "or_", operator.xor: "xor"}
_COMPARE = {
    operator.lt: "<", operator.le: "<=", operator.gt: ">", operator.ge: ">=",
    operator.eq: "==", operator.ne: "!=",
}  # fmt: skip


def operators() -> dict[Any, dict[tuple[Any, ...], tuple[Any, Lower]]]:
    """What infix operators mean: operator -> {argument types: (result type, lower)}."""
    table: dict[Any, dict[tuple[Any, ...], tuple[Any, Lower]]] = {}
    distinct = [*INTEGERS, *FLOATS, *COMPLEX, "bool"]
    for op, (integer, real) in _ARITHMETIC.items():
        rows = table[op] = {}
        for d in (*INTEGERS, *FLOATS):
            rows[NUMBA[d], NUMBA[d]] = NUMBA[d], binary(d, integer, real)
        for d in COMPLEX:
            lower = complex_product if op is operator.mul else complex_sum(real)
            rows[NUMBA[d], NUMBA[d]] = NUMBA[d], lower
    table[operator.truediv] = {
        (NUMBA[d], NUMBA[d]): (NUMBA[d], binary(d, "", "fdiv")) for d in FLOATS
    } | {(NUMBA[d], NUMBA[d]): (NUMBA[d], complex_quotient) for d in COMPLEX}
    for op, name in _BITS.items():
        table[op] = {
            (NUMBA[d], NUMBA[d]): (NUMBA[d], binary(d, name, "")) for d in (*INTEGERS, "bool")
        }
    for op, sign in _COMPARE.items():
        table[op] = {
            (NUMBA[d], NUMBA[d]): (types.boolean, comparison(d, sign))
            for d in distinct
            if d not in COMPLEX or sign in ("==", "!=")
        }
    table[operator.neg] = {(NUMBA[d],): (NUMBA[d], _negate(d)) for d in distinct if d != "bool"}
    table[operator.invert] = {
        (NUMBA[d],): (NUMBA[d], lambda c, b, a: b.not_(a[0])) for d in (*INTEGERS, "bool")
    }
    table[operator.not_] = {(types.boolean,): (types.boolean, lambda c, b, a: b.not_(a[0]))}
    return table


def _negate(dtype: str) -> Lower:
    def lower(context: Any, builder: Any, a: Values) -> Any:
        if dtype in WIDTH:
            return builder.neg(a[0])
        if dtype in COMPLEX:
            return compose(builder, *(builder.fneg(p) for p in parts(builder, a[0])))
        return builder.fneg(a[0])

    return lower


# ---- conversions ---------------------------------------------------------------------------------


def convert(builder: Any, x: Any, source: str, target: str) -> Any:
    """A value of kernel dtype `source` as one of `target`, by the rules of `ir.Cast`."""
    if source == target:
        return x
    if source in COMPLEX:
        real, imaginary = parts(builder, x)
        part = PART[source]
        if target in COMPLEX:
            return compose(
                builder,
                convert(builder, real, part, PART[target]),
                convert(builder, imaginary, part, PART[target]),
            )
        if target == "bool":
            return builder.or_(
                convert(builder, real, part, "bool"), convert(builder, imaginary, part, "bool")
            )
        raise NotImplementedError(f"{source} to {target}")
    if target in COMPLEX:
        real = convert(builder, x, source, PART[target])
        return compose(builder, real, ir.Constant(real.type, 0.0))
    if target == "bool":
        if source in WIDTH:
            return builder.icmp_unsigned("!=", x, ir.Constant(x.type, 0))
        return builder.fcmp_unordered("!=", x, ir.Constant(x.type, 0.0))
    if source in WIDTH and target in WIDTH:
        return _resize(builder, x, source, target)
    if source in WIDTH:
        return _from_integer(builder, x, source, target)
    if target in WIDTH:
        sign = "fptosi" if target in SIGNED else "fptoui"
        kind = VALUE[target]
        name = f"llvm.{sign}.sat.{suffix(kind)}.{suffix(x.type)}"
        return llvm(builder, name, kind, [x])
    return _between_floats(builder, x, source, target)


def _resize(builder: Any, x: Any, source: str, target: str) -> Any:
    old, new = WIDTH[source], WIDTH[target]
    if new < old:
        return builder.trunc(x, VALUE[target])
    if new == old:
        return x
    return (builder.sext if source in SIGNED else builder.zext)(x, VALUE[target])


def _from_integer(builder: Any, x: Any, source: str, target: str) -> Any:
    to_float = builder.sitofp if source in SIGNED else builder.uitofp
    if target == "bf16" and WIDTH[source] > 24:
        # Rounding to float32 on the way would round twice: jam what a double cannot hold into its
        # last bit, then round to odd.
        if WIDTH[source] == 64:
            low = builder.and_(x, I64(0x7FF))
            sticky = builder.select(builder.icmp_unsigned("!=", low, I64(0)), I64(0x800), I64(0))
            jammed = builder.or_(builder.and_(x, I64(-0x800)), sticky)
            small = (
                builder.icmp_unsigned("<", builder.add(x, I64(1 << 52)), I64(1 << 53))
                if source in SIGNED
                else builder.icmp_unsigned("<", x, I64(1 << 53))
            )
            x = builder.select(small, x, jammed)
        return round16(builder, round_to_odd(builder, to_float(x, F64)), target)
    if target in ("f16", "bf16"):  # float16 is exact in float32 up to 2**24, and infinite beyond
        return round16(builder, to_float(x, F32), target)
    return to_float(x, VALUE[target])


def _between_floats(builder: Any, x: Any, source: str, target: str) -> Any:
    if target in ("f16", "bf16"):
        return round16(builder, round_to_odd(builder, x) if source == "f64" else x, target)
    if target == "f64":
        return builder.fpext(x, F64)
    return builder.fptrunc(x, F32) if source == "f64" else x


def _cast(source: str, target: str) -> Intrinsic:

    def lower(context: Any, builder: Any, a: Values) -> Any:
        if isinstance(a[0], ir.Constant) and source == "i64" and target in WIDTH:
            return ir.Constant(VALUE[target], int(a[0].constant) & ((1 << WIDTH[target]) - 1))
        return convert(builder, a[0], source, target)

    return Intrinsic(NUMBA[target], (NUMBA[source],), lower)


def _literal(dtype: str) -> Intrinsic:
    """`i8(5)` from an integer literal, `f32(0.5)` from a float literal."""
    source = "i64" if dtype in WIDTH else "f64"
    return _cast(source, dtype)


def _round(dtype: str) -> Intrinsic:
    return Intrinsic(types.float32, (types.float32,), lambda c, b, a: round16(b, a[0], dtype))


def _bits(source: str, target: str) -> Intrinsic:
    """The same bits at another dtype: `bits_f32_u32(x)`."""

    def lower(context: Any, builder: Any, a: Values) -> Any:
        if source in COMPLEX or target in COMPLEX:
            with builder.goto_entry_block():
                slot = builder.alloca(memory_type(source))
            store_to(builder, a[0], slot, source)
            pointer = builder.bitcast(slot, memory_type(target).as_pointer())
            return load_from(builder, pointer, target)
        raw = to_memory(builder, a[0], source)
        return from_memory(builder, builder.bitcast(raw, MEMORY[target]), target)

    return Intrinsic(NUMBA[target], (NUMBA[source],), lower)


def _select(dtype: str) -> Intrinsic:
    def lower(context: Any, builder: Any, a: Values) -> Any:
        return builder.select(a[0], a[1], a[2])

    return Intrinsic(NUMBA[dtype], (types.boolean, NUMBA[dtype], NUMBA[dtype]), lower)


def _wrap() -> Intrinsic:
    """A Python index: `i`, or `i + extent` where it is negative."""

    def lower(context: Any, builder: Any, a: Values) -> Any:
        negative = builder.icmp_signed("<", a[0], I64(0))
        return builder.select(negative, builder.add(a[0], a[1]), a[0])

    return Intrinsic(types.int64, (types.int64, types.int64), lower)


# ---- scalar operations ------------------------------------------------------------------------

# Names of the table of operations where `math` has another one.
_MATH = {
    "floordiv": "floor_div", "mod": "floor_mod", "min": "minimum", "max": "maximum",
    "rint": "round",
}  # fmt: skip


def _scalar(name: str, dtype: str) -> Intrinsic | None:
    """An operation of the table that is no operator: `exp_f32(x)`, `shl_i16(x, n)`."""
    kind = NUMBA[dtype]
    if dtype in COMPLEX:
        return _complex(name, dtype)
    if name in ("uniform", "real", "conj"):
        return Intrinsic(kind, (kind,), lambda c, b, a: a[0])
    if name == "imag":
        return Intrinsic(kind, (kind,), lambda c, b, a: ir.Constant(a[0].type, 0))
    if name in ("fmin", "fmax") and dtype in WIDTH:  # no integer is a NaN
        name = name[1:]
    if name == "truediv" and dtype in FLOATS:
        return Intrinsic(kind, (kind, kind), binary(dtype, "", "fdiv"))
    if name == "mulhi" and dtype in INTEGERS:
        return Intrinsic(kind, (kind, kind), _mulhi(dtype))
    if dtype in ("f16", "bf16"):
        return _half(name, dtype)
    if dtype == "bool" and name in ("min", "max"):
        word = "and_" if name == "min" else "or_"
        return Intrinsic(kind, (kind, kind), lambda c, b, a: getattr(b, word)(a[0], a[1]))
    row = math.FUNCTIONS.get(_MATH.get(name, name))
    if row is None or dtype not in row.dtypes:
        return None
    inputs = [dtype] * row.arity
    if row.second:
        inputs[1] = row.second
    result = row.result or dtype

    def lower(context: Any, builder: Any, a: Values) -> Any:
        values = [Value(builder, v, d) for v, d in zip(a, inputs, strict=True)]
        return math.build(row, dtype, values).llvm

    return Intrinsic(NUMBA[result], tuple(NUMBA[d] for d in inputs), lower)


def _mulhi(dtype: str) -> Lower:
    wide = ir.IntType(2 * WIDTH[dtype])

    def lower(context: Any, builder: Any, a: Values) -> Any:
        extend = builder.sext if dtype in SIGNED else builder.zext
        product = builder.mul(extend(a[0], wide), extend(a[1], wide))
        high = builder.lshr(product, ir.Constant(wide, WIDTH[dtype]))
        return builder.trunc(high, VALUE[dtype])

    return lower


def _half(name: str, dtype: str) -> Intrinsic | None:
    """What float32 arithmetic and one rounding do not give for 16-bit floats."""
    kind = types.float32
    if name == "fma":
        return Intrinsic(kind, (kind,) * 3, lambda c, b, a: fma16(b, a, dtype))
    if name == "nextafter":
        return Intrinsic(kind, (kind,) * 2, lambda c, b, a: nextafter16(b, a, dtype))
    return None


def fma16(builder: Any, a: Values, dtype: str) -> Any:
    """x * y + z rounded once: the product is exact in float64, the sum is rounded to odd there."""
    x, y, z = (builder.fpext(v, F64) for v in a)
    product = builder.fmul(x, y)
    total = builder.fadd(product, z)
    back = builder.fsub(total, product)  # the error of the sum, by Knuth
    error = builder.fadd(builder.fsub(product, builder.fsub(total, back)), builder.fsub(z, back))
    bits = builder.bitcast(total, I64)
    zero = ir.Constant(F64, 0.0)
    outwards = builder.icmp_unsigned(
        "==", builder.fcmp_ordered(">", error, zero), builder.fcmp_ordered(">", total, zero)
    )
    step = builder.select(outwards, I64(1), I64(-1))
    even = builder.icmp_unsigned("==", builder.and_(bits, I64(1)), I64(0))
    inexact = builder.fcmp_ordered("!=", error, zero)
    odd = builder.select(builder.and_(even, inexact), builder.add(bits, step), bits)
    return round16(builder, round_to_odd(builder, builder.bitcast(odd, F64)), dtype)


def nextafter16(builder: Any, a: Values, dtype: str) -> Any:
    x, y = a
    bits = to_bits16(builder, x, dtype)
    zero = ir.Constant(F32, 0.0)
    up = builder.fcmp_ordered("<", x, y)
    outwards = builder.icmp_unsigned("==", up, builder.fcmp_ordered(">", x, zero))
    moved = builder.add(bits, builder.select(outwards, I16(1), I16(-1)))
    least = builder.select(up, I16(1), I16(-0x7FFF))
    moved = builder.select(builder.fcmp_ordered("==", x, zero), least, moved)
    result = from_bits16(builder, moved, dtype)
    result = builder.select(builder.fcmp_ordered("==", x, y), y, result)
    nan = builder.fcmp_unordered("uno", x, y)
    return builder.select(nan, builder.fadd(x, y), result)


def _complex(name: str, dtype: str) -> Intrinsic | None:
    kind, part = NUMBA[dtype], PART[dtype]

    def values(builder: Any, z: Any) -> complexes.Complex:
        real, imaginary = parts(builder, z)
        return Value(builder, real, part), Value(builder, imaginary, part)

    if name == "complex":
        inputs = (NUMBA[part], NUMBA[part])
        return Intrinsic(kind, inputs, lambda c, b, a: compose(b, a[0], a[1]))
    if name == "uniform":
        return Intrinsic(kind, (kind,), lambda c, b, a: a[0])
    if name in complexes.REAL:
        of, result = complexes.REAL[name], types.boolean if name[:2] == "is" else NUMBA[part]
        return Intrinsic(result, (kind,), lambda c, b, a: of(values(b, a[0])).llvm)
    functions: dict[str, tuple[int, Any]] = {"fma": (3, complexes.fma)}
    functions |= {n: (1, f) for n, f in complexes.UNARY.items()}
    functions |= {n: (2, f) for n, f in complexes.BINARY.items()}
    if name not in functions:
        return None
    arity, function = functions[name]

    def lower(context: Any, builder: Any, a: Values) -> Any:
        real, imaginary = function(*(values(builder, z) for z in a))
        return compose(builder, real.llvm, imaginary.llvm)

    return Intrinsic(kind, (kind,) * arity, lower)


# ---- atomics and other memory ------------------------------------------------------------------


def _atomic(how: str, op: str, dtype: str) -> Intrinsic:
    """`atomic_add_i32(base, i, value)`; `update_...` for memory of one CPU thread."""
    count = 2 if op == "cas" else 1
    change = atomics.atomic if how == "atomic" else atomics.plain

    def lower(context: Any, builder: Any, a: Values) -> Any:
        pointer = element(builder, a[0], a[1], MEMORY[dtype])
        return change(builder, op, dtype, pointer, a[2:])

    kind = NUMBA[dtype]
    return Intrinsic(kind, (types.voidptr, types.int64, *(kind,) * count), lower)


def _fence() -> Intrinsic:
    def lower(context: Any, builder: Any, a: Values) -> Any:
        builder.fence("seq_cst")
        return context.get_dummy_value()

    return Intrinsic(types.void, (), lower)


def _dynamic() -> Intrinsic:
    """`stack_dynamic(bytes)`: the launch's shared memory, in the frame."""

    def lower(context: Any, builder: Any, a: Values) -> Any:
        memory = builder.alloca(I8, size=a[0])
        memory.align = 64
        return memory

    return Intrinsic(types.voidptr, (types.int64,), lower)


def _heap(size: str) -> Intrinsic:
    """`heap_1000000()`: memory that `release` gives back, for what a thread's stack cannot hold."""

    def lower(context: Any, builder: Any, a: Values) -> Any:
        raw = llvm(builder, "malloc", BYTES, [I64(int(size) + 64)])
        address = builder.add(builder.ptrtoint(raw, I64), I64(64))
        aligned = builder.inttoptr(builder.and_(address, I64(-64)), BYTES)
        slot = builder.gep(aligned, [I64(-8)])  # the 64 bytes before hold what malloc gave
        builder.store(raw, builder.bitcast(slot, BYTES.as_pointer()))
        return aligned

    return Intrinsic(types.voidptr, (), lower)


def _release() -> Intrinsic:
    def lower(context: Any, builder: Any, a: Values) -> Any:
        slot = builder.bitcast(builder.gep(a[0], [I64(-8)]), BYTES.as_pointer())
        llvm(builder, "free", ir.VoidType(), [builder.load(slot)])
        return context.get_dummy_value()

    return Intrinsic(types.void, (types.voidptr,), lower)


def constant(data: bytes) -> Intrinsic:
    """The address of constant bytes, aligned to a cache line."""
    kind = ir.ArrayType(I8, max(1, len(data)))

    def lower(context: Any, builder: Any, a: Values) -> Any:
        module = builder.module
        name = module.get_unique_name("constant")
        memory = ir.GlobalVariable(module, kind, name)
        memory.linkage, memory.global_constant, memory.align = "private", True, 64
        memory.initializer = ir.Constant(kind, bytearray(data or b"\0"))
        return builder.bitcast(memory, BYTES)

    return Intrinsic(types.voidptr, (), lower)


def _reporter(builder: Any, count: int) -> Any:
    """An internal function (args, site, block, thread, values...) that writes a record of words."""
    module = builder.module
    name = f"ruda.report.{count}"
    found = module.globals.get(name)
    if found is not None:
        return found
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), [I64] * (4 + count)), name)
    function.linkage = "internal"
    function.attributes.add("noinline")
    b = ir.IRBuilder(function.append_basic_block("entry"))
    words = I64.as_pointer()
    args, site, block, thread, *values = function.args
    address = b.load(b.gep(b.inttoptr(args, words), [I64(6)]))
    base = b.inttoptr(address, words)
    with b.if_then(b.icmp_unsigned("!=", address, I64(0))):
        size = 3 + count
        room = b.load(b.gep(base, [I64(1)]))
        has_tail = b.icmp_unsigned("!=", b.and_(room, I64(TAIL)), I64(0))
        room = b.and_(room, I64(TAIL - 1))
        tail = b.gep(base, [b.add(room, I64(3))])
        with b.if_then(has_tail):  # a note is told once
            state = b.gep(tail, [b.add(site, I64(2))])
            kind = b.load(state)
            with b.if_then(b.icmp_unsigned(">=", kind, I64(NOTE)), likely=False):
                with b.if_then(b.icmp_unsigned("==", kind, I64(TOLD))):
                    b.ret_void()
                before = b.atomic_rmw("xchg", state, I64(TOLD), "monotonic")
                with b.if_then(b.icmp_unsigned("==", before, I64(TOLD))):
                    b.ret_void()
        start = b.atomic_rmw("add", base, I64(size), "monotonic")
        end = b.add(start, I64(size))

        def write(record: Any) -> None:
            for k, v in enumerate((b.add(site, I64(1)), block, thread, *values)):
                b.store(v, b.gep(record, [I64(k)]))

        with b.if_else(b.icmp_unsigned("<=", end, room)) as (then, otherwise):
            with then:
                write(b.gep(base, [b.add(start, I64(3))]))
            with otherwise:
                b.atomic_rmw("add", b.gep(base, [I64(2)]), I64(1), "monotonic")
                with b.if_then(has_tail):
                    kind = b.load(b.gep(tail, [b.add(site, I64(2))]))
                    with b.if_then(b.icmp_unsigned("==", kind, I64(FAILURE))):
                        taken = b.atomic_rmw("xchg", tail, I64(1), "monotonic")
                        with b.if_then(b.icmp_unsigned("==", taken, I64(0))):
                            sites = b.load(b.gep(tail, [I64(1)]))
                            write(b.gep(tail, [b.add(sites, I64(2))]))
    b.ret_void()
    return function


def _as_words(builder: Any, value: Any, dtype: str) -> list[Any]:
    """A value as words of a record."""
    if dtype in COMPLEX:
        real, imaginary = (_as_words(builder, p, PART[dtype])[0] for p in parts(builder, value))
        if dtype == "c128":
            return [real, imaginary]
        return [builder.or_(real, builder.shl(imaginary, I64(32)))]
    if dtype in SIGNED:
        return [value if dtype == "i64" else builder.sext(value, I64)]
    if dtype in WIDTH:
        return [value if dtype == "u64" else builder.zext(value, I64)]
    bits = to_memory(builder, value, dtype)
    if dtype == "f64":
        return [builder.bitcast(bits, I64)]
    return [builder.zext(builder.bitcast(bits, I32) if dtype == "f32" else bits, I64)]


def _report(dtypes: str) -> Intrinsic:
    """`report_f32_i64(args, site, block, thread, x, i)`."""
    names = dtypes.strip("_").split("_") if dtypes else []

    def lower(context: Any, builder: Any, a: Values) -> Any:
        words = [w for v, d in zip(a[4:], names, strict=True) for w in _as_words(builder, v, d)]
        builder.call(_reporter(builder, len(words)), [*a[:4], *words])
        return context.get_dummy_value()

    return Intrinsic(types.void, (*(types.int64,) * 4, *(NUMBA[d] for d in names)), lower)


def _inside(ndim: str) -> Intrinsic:
    """`inside_2(args, site, block, thread, i, j, n, m)`: are i, j inside? Reports if not."""
    n = int(ndim)

    def lower(context: Any, builder: Any, a: Values) -> Any:
        inside = ir.Constant(I1, 1)
        for index, extent in zip(a[4 : 4 + n], a[4 + n :], strict=True):
            inside = builder.and_(inside, builder.icmp_unsigned("<", index, extent))
        with builder.if_then(builder.not_(inside), likely=False):
            builder.call(_reporter(builder, 2 * n), list(a))
        return inside

    return Intrinsic(types.boolean, (types.int64,) * (4 + 2 * n), lower)


def _divisor(dtype: str) -> Intrinsic:
    """`divisor_i32(y, args, site, block, thread, x)`: y; reports a division of x by 0."""
    kind = NUMBA[dtype]

    def lower(context: Any, builder: Any, a: Values) -> Any:
        y, *where, x = a
        zero = builder.icmp_unsigned("==", y, ir.Constant(y.type, 0))
        with builder.if_then(zero, likely=False):
            builder.call(_reporter(builder, 1), [*where, *_as_words(builder, x, dtype)])
        return y

    return Intrinsic(kind, (kind, *(types.int64,) * 4, kind), lower)


def _trips() -> Intrinsic:
    """`trips(start, stop, step)`: how often `range` goes round, 0 for a step of 0."""

    def lower(context: Any, builder: Any, a: Values) -> Any:
        start, stop, step = a
        b, zero = builder, I64(0)
        up = b.icmp_signed(">", step, zero)
        distance = b.select(up, b.sub(stop, start), b.sub(start, stop))
        size = b.select(up, step, b.neg(step))
        going = b.select(up, b.icmp_signed("<", start, stop), b.icmp_signed(">", start, stop))
        going = b.and_(going, b.icmp_signed("!=", step, zero))
        size = b.select(b.icmp_signed("==", step, zero), I64(1), size)
        count = b.add(b.udiv(b.sub(distance, I64(1)), size), I64(1))
        return b.select(going, count, zero)

    return Intrinsic(types.int64, (types.int64,) * 3, lower)


def _poller(builder: Any) -> Any:
    """An internal function (watch) that says whether to go on. Its address is the first word; it
    touches nothing that the kernel can see."""
    name = "ruda.poll"
    found = builder.module.globals.get(name)
    if found is not None:
        return found
    kind = ir.FunctionType(I1, [BYTES])
    function = ir.Function(builder.module, kind, name)
    function.linkage = "internal"
    for attribute in ("noinline", "cold", "nounwind", "inaccessiblemem_or_argmemonly"):
        function.attributes.add(attribute)
    set.add(function.attributes, "willreturn")
    b = ir.IRBuilder(function.append_basic_block("entry"))
    (watch,) = function.args
    set.add(watch.attributes, "nocapture")  # llvmlite does not know these words
    pool = b.load(b.bitcast(watch, kind.as_pointer().as_pointer()))
    with b.if_then(b.icmp_unsigned("==", pool, ir.Constant(pool.type, None))):
        b.ret(I1(True))  # a thread without a pool: nobody to ask
    b.ret(b.call(pool, [watch]))
    return function


def _poll() -> Intrinsic:
    """`poll(budget)`: the budget, or 0 where the launch has been stopped."""

    def lower(context: Any, builder: Any, a: Values) -> Any:
        watch = builder.bitcast(builder.function.args[1], BYTES)
        go_on = builder.call(_poller(builder), [watch])
        return builder.select(go_on, a[0], I64(0))

    return Intrinsic(types.int64, (types.int64,), lower)


# ---- by name ----------------------------------------------------------------------------------
_PATTERNS: tuple[tuple[str, Callable[..., Intrinsic | None]], ...] = (
    (rf"load_(own_|)({DTYPE})(_unaligned|)", _load),
    (rf"store_(own_|)({DTYPE})(_unaligned|)", _store),
    (rf"prefetch_({DTYPE})", _prefetch),
    (rf"word_({DTYPE})", _word),
    (r"word", lambda: _word("i64")),
    (r"pointer", _pointer),
    (r"offset", _offset),
    (r"stack_(\d+)", _stack),
    (rf"({DTYPE})_to_({DTYPE})", _cast),
    (rf"bits_({DTYPE})_({DTYPE})", _bits),
    (r"round_(f16|bf16)", _round),
    (rf"select_({DTYPE})", _select),
    (r"wrap", _wrap),
    (rf"({DTYPE})", _literal),
    (rf"(atomic|update)_(\w+)_({DTYPE})", _atomic),
    (r"fence", _fence),
    (r"stack_dynamic", _dynamic),
    (r"heap_(\d+)", _heap),
    (r"release", _release),
    (r"trips", _trips),
    (r"poll", _poll),
    (rf"report((?:_(?:{DTYPE}))*)", _report),
    (r"inside_(\d+)", _inside),
    (rf"divisor_({DTYPE})", _divisor),
    (rf"(\w+?)_({DTYPE})", _scalar),
)  # fmt: skip


def resolve(name: str) -> Intrinsic | None:
    """The intrinsic of that name, or None."""
    for pattern, make in _PATTERNS:
        found = re.fullmatch(pattern, name)
        if found is not None:
            return make(*found.groups())
    return None
