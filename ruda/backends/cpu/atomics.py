"""Atomic updates as LLVM IR: one instruction where there is one, else a compare-and-swap loop.

Shared memory belongs to one CPU thread at a time, so that its atomics are plain updates
(`update_add_f32`): a load, the operation, a store.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llvmlite import ir

from ruda.backends.cpu import math
from ruda.backends.cpu.values import Value

SIGNED_RMW = {"max": "max", "min": "min"}
UNSIGNED_RMW = {"max": "umax", "min": "umin"}
BOTH_RMW = {"add": "add", "sub": "sub", "and": "and", "or": "or", "xor": "xor", "exch": "xchg"}
FLOAT_RMW = {"add": "fadd", "sub": "fsub", "exch": "xchg"}
NAMES = {"nanmax": "fmax", "nanmin": "fmin", "max": "maximum", "min": "minimum"}


def instruction(op: str, dtype: str) -> str | None:
    """The `atomicrmw` operation for an op of the IR, if LLVM has one with the same meaning."""
    if dtype[0] == "u":
        return (BOTH_RMW | UNSIGNED_RMW | {"nanmax": "umax", "nanmin": "umin"}).get(op)
    if dtype[0] == "i":
        return (BOTH_RMW | SIGNED_RMW | {"nanmax": "max", "nanmin": "min"}).get(op)
    return FLOAT_RMW.get(op) if dtype in ("f32", "f64") else None


def updated(builder: Any, op: str, dtype: str, old: Any, operands: Sequence[Any]) -> Any:
    """The new value of an element, from its old one; 16-bit floats are held as float32."""
    from ruda.backends.cpu.intrinsics import round16

    half = dtype in ("f16", "bf16")
    kind = "f32" if half else dtype
    if op == "exch":
        return operands[0]
    x = Value(builder, old, kind)
    y = Value(builder, operands[0], kind)
    if op in ("add", "sub"):
        new = (x + y if op == "add" else x - y).llvm
        return round16(builder, new, dtype) if half else new
    if op in ("and", "or", "xor"):
        return (x & y if op == "and" else x | y if op == "or" else x ^ y).llvm
    if op == "inc":
        return builder.select((x >= y).llvm, x.const(0).llvm, (x + 1).llvm)
    if op == "dec":
        over = ((x == 0) | (x > y)).llvm
        return builder.select(over, y.llvm, (x - 1).llvm)
    name = NAMES[op] if kind[0] == "f" else op.removeprefix("nan") + "imum"
    return math.build(math.FUNCTIONS[name], kind, [x, y]).llvm


def plain(builder: Any, op: str, dtype: str, pointer: Any, operands: Sequence[Any]) -> Any:
    """An update of memory that no other CPU thread sees; returns the old value."""
    from ruda.backends.cpu.intrinsics import from_memory, to_memory

    bits = builder.load(pointer)
    old = from_memory(builder, bits, dtype)
    if op == "cas":
        expected, new = (to_memory(builder, v, dtype) for v in operands)
        same = builder.icmp_unsigned("==", integer(builder, bits), integer(builder, expected))
        builder.store(builder.select(same, new, bits), pointer)
    else:
        new = updated(builder, op, dtype, old, operands)
        builder.store(to_memory(builder, new, dtype), pointer)
    return old


def integer(builder: Any, value: Any) -> Any:
    """The bits of a value of 8 to 64 bits."""
    width = {ir.FloatType(): 32, ir.DoubleType(): 64}.get(value.type)
    return value if width is None else builder.bitcast(value, ir.IntType(width))


def atomic(builder: Any, op: str, dtype: str, pointer: Any, operands: Sequence[Any]) -> Any:
    """An indivisible update; returns the old value."""
    from ruda.backends.cpu.intrinsics import MEMORY, from_memory, to_memory

    name = instruction(op, dtype)
    if name is not None:
        return builder.atomic_rmw(name, pointer, operands[0], "monotonic")
    width = {"8": 8, "16": 16, "32": 32, "64": 64}[dtype.lstrip("biuf")]
    kind = ir.IntType(width)
    words = builder.bitcast(pointer, kind.as_pointer())
    memory = MEMORY[dtype]

    def as_bits(value: Any) -> Any:
        return integer(builder, to_memory(builder, value, dtype))

    def as_value(bits: Any) -> Any:
        raw = bits if bits.type == memory else builder.bitcast(bits, memory)
        return from_memory(builder, raw, dtype)

    if op == "cas":
        expected, new = (as_bits(v) for v in operands)
        pair = builder.cmpxchg(words, expected, new, "monotonic", "monotonic")
        return as_value(builder.extract_value(pair, 0))
    first = builder.load_atomic(words, "monotonic", width // 8)
    before = builder.block
    loop = builder.append_basic_block("retry")
    done = builder.append_basic_block("done")
    builder.branch(loop)
    builder.position_at_end(loop)
    bits = builder.phi(kind)
    bits.add_incoming(first, before)
    new_bits = as_bits(updated(builder, op, dtype, as_value(bits), operands))
    pair = builder.cmpxchg(words, bits, new_bits, "monotonic", "monotonic")
    bits.add_incoming(builder.extract_value(pair, 0), builder.block)
    builder.cbranch(builder.extract_value(pair, 1), done, loop)
    builder.position_at_end(done)
    return as_value(bits)
