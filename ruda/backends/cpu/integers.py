"""Integer operations that are defined for every operand, and the bits of float16.

`//` and `%` floor, division by zero is 0, overflow wraps, shifts by the width or more give 0 or the
sign. Nothing traps, and, but for `integer_power`, nothing branches, so loops vectorise.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from ruda.backends.cpu import processor, values
from ruda.backends.cpu.values import (
    Value,
    bits_of,
    call,
    call_symbol,
    convert,
    floor,
    from_bits,
    select,
)


# ---- division ---------------------------------------------------------------------------------
def floor_div(x: Value, y: Value) -> Value:
    """x // y; 0 where y is 0, MIN // -1 is MIN."""
    return divide(x, y)[0]


def floor_mod(x: Value, y: Value) -> Value:
    """x % y with the sign of y; 0 where y is 0."""
    return divide(x, y)[1]


def divide(x: Value, y: Value, vectors: bool = True) -> tuple[Value, Value]:
    """Quotient and remainder; with `vectors`, of 32 bits and less by vectors of floats."""
    divide_truncated = "sdiv" if x.dtype[0] == "i" else "udiv"
    divisor = literal(y)
    if divisor not in (None, 0, -1):  # LLVM makes a product or a shift of it
        return floored(x, y, x.binary(divide_truncated, y))
    zero = y == 0
    negated = (y == -1) if x.dtype[0] == "i" else zero
    safe = select(zero | negated, 1, y)
    if x.bits == 64 or not vectors:  # no vector unit has it; floats would not be exact
        q, r = floored(x, safe, x.binary(divide_truncated, safe))
    else:
        # A float that holds x, y and the quotient apart from its neighbours: exact, and a vector.
        wide = "f64" if x.bits == 32 else "f32"
        q = convert(floor(convert(x, wide) / convert(safe, wide)), quotient_dtype(x))
        q = convert(q, x.dtype)
        r = x - q * safe
    q = select(negated, -x, q)  # x // 1 is x, so this only turns the sign, wrapping
    return select(zero, 0, q), select(zero | negated, 0, r)


def literal(y: Value) -> int | None:
    """The number, if y is a constant or one that was just narrowed or widened."""
    value = y.llvm
    if isinstance(value, ir.CastInstr) and value.opname in ("trunc", "sext", "zext"):
        value = value.operands[0]
    if not isinstance(value, ir.Constant):
        return None
    number = int(value.constant) & ((1 << y.bits) - 1)
    return number - (1 << y.bits) if number >> (y.bits - 1) else number


def quotient_dtype(x: Value) -> str:
    """Quotients of 8 and 16 bits leave float32 as int32, which every vector unit can do."""
    return x.dtype if x.bits == 32 else "i32"


def floored(x: Value, y: Value, q: Value) -> tuple[Value, Value]:
    """From the truncated to the floored quotient and remainder."""
    r = x - q * y
    if x.dtype[0] == "u":
        return q, r
    crossed = (r != 0) & ((r ^ y) < 0)
    return select(crossed, q - 1, q), select(crossed, r + y, r)


# ---- the rest ---------------------------------------------------------------------------------
def absolute(x: Value) -> Value:
    """|x|; MIN stays MIN."""
    return x if x.dtype[0] == "u" else select(x < 0, -x, x)


def within(x: Value, n: Value) -> tuple[Value, Value]:
    """Whether 0 <= n < width, and a shift count that LLVM defines."""
    count = convert(n, f"u{n.bits}")
    fits = count < x.bits
    return fits, convert(select(fits, count, 0), x.dtype)


def shl(x: Value, n: Value) -> Value:
    """x << n; 0 where n is the width or more, or negative."""
    fits, count = within(x, n)
    return select(fits, x << count, 0)


def shr(x: Value, n: Value) -> Value:
    """x >> n; 0, or -1 for negative x, where n is the width or more, or negative."""
    fits, count = within(x, n)
    sign = x >> (x.bits - 1) if x.dtype[0] == "i" else x.const(0)
    return select(fits, x >> count, sign)


def minimum(x: Value, y: Value) -> Value:
    return select(x <= y, x, y)


def maximum(x: Value, y: Value) -> Value:
    return select(x >= y, x, y)


def counted(name: str, x: Value) -> Value:
    """llvm.ctlz and llvm.cttz, defined (the width) at 0, as int32."""
    flag = Value(x.builder, ir.Constant(ir.IntType(1), 0), "b1")
    return to_i32(call_symbol(f"llvm.{name}.i{x.bits}", x.dtype, x, flag))


def to_i32(count: Value) -> Value:
    return convert(unsigned(count), "i32")


def unsigned(x: Value) -> Value:
    return x.like(x.llvm, f"u{x.bits}")


def popc(x: Value) -> Value:
    """Number of bits set."""
    return to_i32(call("ctpop", x))


def clz(x: Value) -> Value:
    """Leading zero bits; the width at 0."""
    return counted("ctlz", x)


def ffs(x: Value) -> Value:
    """Place of the lowest bit set, from 1; 0 at 0."""
    return select(x == 0, 0, counted("cttz", x) + 1)


def brev(x: Value) -> Value:
    """The bits in reverse order."""
    return call("bitreverse", x)


def integer_power(x: Value, n: Value) -> Value:
    """x ** n by squaring, wrapping. A negative n gives 0, except for the bases 1 and -1."""
    function = values.declare(
        x.builder.module, f"ruda.power.{x.dtype}", x.llvm.type, [x.llvm.type] * 2
    )
    if not function.blocks:
        define_power(function, x.dtype)
    instruction = x.builder.call(function, [x.llvm, n.llvm])
    values.add_attributes(instruction, values.PURE)
    return x.like(instruction)


def define_power(function: Any, dtype: str) -> None:
    function.linkage = "internal"
    entry, body, done = (function.append_basic_block(b) for b in ("entry", "body", "done"))
    builder = ir.IRBuilder(entry)
    x, n = (Value(builder, a, dtype) for a in function.args)
    signed = dtype[0] == "i"
    one = x.const(1)
    if signed:
        # 1/x is x for the bases that have an inverse; the parity of n decides for them.
        unit = (x == 1) | (x == -1)
        x = select((n < 0) & ~unit, 0, x)
        one = select((n < 0) & ~unit, 0, one)
        n = select(n < 0, n & 1, n)
    builder.branch(body)
    builder.position_at_end(body)
    phis = [builder.phi(x.llvm.type) for _ in range(3)]
    result, base, rest = (Value(builder, p, dtype) for p in phis)
    following = (
        select((rest & 1) != 0, result * base, result),
        base * base,
        convert(unsigned(rest) >> 1, dtype),
    )
    for phi, first, later in zip(phis, (one, x, n), following, strict=True):
        phi.add_incoming(first.llvm, entry)
        phi.add_incoming(later.llvm, body)
    builder.cbranch((following[2] != 0).llvm, body, done)
    builder.position_at_end(done)
    builder.ret(following[0].llvm)


# ---- float16 ------------------------------------------------------------------------------
def float_to_half(x: Value) -> Value:
    """The bits of the nearest float16, ties to even; NaN stays NaN."""
    if processor.has_half_conversion():
        return bits_of(convert(x, "f16"), "u")
    i = bits_of(x, "u")
    sign, a = (i >> 16) & 0x8000, i & 0x7FFFFFFF
    normal = (a + 0xFFF + ((a >> 13) & 1) - (112 << 23)) >> 13
    # Adding 1/2 leaves units of 2^-24, those of half's subnormal numbers, in the low bits.
    subnormal = bits_of(from_bits(a) + 0.5, "u") - 0x3F000000
    special = select(a > 0x7F800000, ((a >> 13) & 0x3FF) | 0x7E00, 0x7C00)
    h = select(a < 0x38800000, subnormal, select(a < 0x47800000, normal, special))
    return convert(h | sign, "u16")


def half_to_float(x: Value) -> Value:
    """The float32 of float16 bits."""
    if processor.has_half_conversion():
        return convert(from_bits(x, "f16"), "f32")
    h = convert(x, "u32")
    a = h & 0x7FFF
    y = bits_of(from_bits(a << 13) * 2.0**112, "u")  # exact, subnormal numbers too
    special = (a << 13) | 0x7F800000 | select(a > 0x7C00, a.const(1 << 22), 0)
    return from_bits(select(a >= 0x7C00, special, y) | ((h & 0x8000) << 16))
