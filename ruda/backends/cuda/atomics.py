"""Atomic updates on CUDA: one instruction where there is one, else a compare-and-swap loop.

Elements of 8 and 16 bits are swapped inside the 32-bit word that holds them. All are relaxed and of
device scope, as CUDA's are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llvmlite import ir

from ruda.backends.cpu.atomics import integer, plain, updated
from ruda.backends.cpu.intrinsics import I32, I64, MEMORY, VALUE, from_memory, to_memory

__all__ = ["atomic", "plain"]

# (op of the IR, dtype) -> type in the instruction `atom.OP.TYPE`
INSTRUCTIONS: dict[tuple[str, str], str] = {
    **{("add", d): f"add.{t}" for d, t in {"i32": "u32", "u32": "u32", "i64": "u64", "u64": "u64",
                                           "f32": "f32", "f64": "f64"}.items()},
    **{("sub", d): f"add.{t}" for d, t in {"i32": "u32", "u32": "u32", "i64": "u64", "u64": "u64",
                                           "f32": "f32", "f64": "f64"}.items()},
    **{(op, d): f"{op}.{d.replace('i', 's')}" for op in ("min", "max")
       for d in ("i32", "u32", "i64", "u64")},
    **{("nan" + op, d): f"{op}.{d.replace('i', 's')}" for op in ("min", "max")
       for d in ("i32", "u32", "i64", "u64")},
    **{(op, d): f"{op}.b{d[1:]}" for op in ("and", "or", "xor")
       for d in ("i32", "u32", "i64", "u64")},
    **{("exch", d): f"exch.b{d[1:]}" for d in ("i32", "u32", "i64", "u64", "f32", "f64")},
    ("inc", "u32"): "inc.u32", ("dec", "u32"): "dec.u32",
}  # fmt: skip
REGISTER = {"32": "r", "64": "l"}
FLOAT_REGISTER = {"f32": "f", "f64": "d"}


def atomic(
    builder: Any, op: str, dtype: str, space: str, pointer: Any, operands: Sequence[Any]
) -> Any:
    """An indivisible update of the element at a pointer of that space; returns the old value."""
    instruction = INSTRUCTIONS.get((op, dtype))
    if instruction is not None:
        return one_instruction(builder, instruction, op, dtype, space, pointer, operands[0])
    width = {"bool": 8}.get(dtype) or int(dtype.lstrip("biuf"))
    if width < 32:
        return in_word(builder, op, dtype, width, pointer, operands)
    kind = ir.IntType(width)
    words = builder.bitcast(pointer, ir.PointerType(kind, pointer.type.addrspace))

    def as_value(bits: Any) -> Any:
        raw = bits if bits.type == MEMORY[dtype] else builder.bitcast(bits, MEMORY[dtype])
        return from_memory(builder, raw, dtype)

    def as_bits(value: Any) -> Any:
        return integer(builder, to_memory(builder, value, dtype))

    if op == "cas":
        expected, new = (as_bits(v) for v in operands)
        pair = builder.cmpxchg(words, expected, new, "monotonic", "monotonic")
        return as_value(builder.extract_value(pair, 0))
    old = swap_until(
        builder, words, lambda bits: as_bits(updated(builder, op, dtype, as_value(bits), operands))
    )
    return as_value(old)


def one_instruction(
    builder: Any, instruction: str, op: str, dtype: str, space: str, pointer: Any, value: Any
) -> Any:
    kind = VALUE[dtype]
    register = FLOAT_REGISTER.get(dtype) or REGISTER[dtype[1:]]
    if instruction.startswith("exch") and dtype in FLOAT_REGISTER:
        register = REGISTER[dtype[1:]]
        value, kind = integer(builder, value), ir.IntType(int(dtype[1:]))
    if op == "sub":
        if dtype in FLOAT_REGISTER:
            value = builder.fneg(value)
        else:
            value = builder.neg(value)
    asm = ir.InlineAsm(
        ir.FunctionType(kind, [pointer.type, kind]),
        f"atom.{space}.{instruction} $0, [$1], $2;",
        f"={register},l,{register},~{{memory}}",
        side_effect=True,
    )
    old = builder.call(asm, [pointer, value])
    return old if old.type == VALUE[dtype] else builder.bitcast(old, VALUE[dtype])


def swap_until(builder: Any, words: Any, change: Any) -> Any:
    """Compare and swap `change(old)` for the old bits until no other thread comes between."""
    first = peek(builder, words)
    before = builder.block
    loop, done = builder.append_basic_block("retry"), builder.append_basic_block("done")
    builder.branch(loop)
    builder.position_at_end(loop)
    bits = builder.phi(words.type.pointee)
    bits.add_incoming(first, before)
    pair = builder.cmpxchg(words, bits, change(bits), "monotonic", "monotonic")
    found = builder.extract_value(pair, 0)
    bits.add_incoming(found, builder.block)
    builder.cbranch(builder.icmp_unsigned("==", found, bits), done, loop)
    builder.position_at_end(done)
    return bits


def peek(builder: Any, words: Any) -> Any:
    """What a word holds now, not what the compiler knows of it."""
    kind, space = words.type.pointee, {1: "global", 3: "shared"}[words.type.addrspace]
    register = REGISTER[str(kind.width)]
    asm = ir.InlineAsm(
        ir.FunctionType(kind, [words.type]),
        f"ld.volatile.{space}.u{kind.width} $0, [$1];",
        f"={register},l,~{{memory}}",
        side_effect=True,
    )
    return builder.call(asm, [words])


def in_word(
    builder: Any, op: str, dtype: str, width: int, pointer: Any, operands: Sequence[Any]
) -> Any:
    """The same for an element of 8 or 16 bits, in its aligned word."""
    b = builder
    space = pointer.type.addrspace
    address = b.ptrtoint(pointer, I64)
    words = b.inttoptr(b.and_(address, I64(-4)), ir.PointerType(I32, space))
    shift = b.shl(b.trunc(b.and_(address, I64(3)), I32), I32(3))
    kind, mask = ir.IntType(width), b.shl(I32((1 << width) - 1), shift)

    def as_value(word: Any) -> Any:
        return from_memory(b, b.trunc(b.lshr(word, shift), kind), dtype)

    def change(word: Any) -> Any:
        if op == "cas":
            expected, wanted = (to_memory(b, v, dtype) for v in operands)
            now = b.trunc(b.lshr(word, shift), kind)
            new = b.select(b.icmp_unsigned("==", now, expected), wanted, now)
        else:
            new = to_memory(b, updated(b, op, dtype, as_value(word), operands), dtype)
        placed = b.shl(b.zext(new, I32), shift)
        return b.or_(b.and_(word, b.not_(mask)), placed)

    return as_value(swap_until(b, words, change))
