"""Let neighbouring blocks go through strided loops together.

A round of one block is a few KiB; its next round is a whole grid further on, and what lies between
is the work of its neighbours. A CPU core that runs one block after another therefore jumps through
memory. Blocks are independent, so a core may as well run a few of them at once: they become another
axis of the block (z, which the kernel does not use), each with shared memory of its own, and a
round of all of them is one long piece of memory.
"""

from __future__ import annotations

from dataclasses import replace

from ruda import dtypes
from ruda.jit import ir
from ruda.jit.ir import (
    Array,
    Asm,
    Atomic,
    Barrier,
    Body,
    Cooperative,
    Declare,
    Expr,
    Extent,
    For,
    Function,
    If,
    Load,
    Special,
    Statement,
    Store,
    Stride,
    Warp,
    While,
)  # fmt: skip
from ruda.jit.passes.indices import op
from ruda.jit.passes.phases import hidden
from ruda.jit.passes.strides import share_rounds
from ruda.jit.passes.uniformity import Uniformity, analyse

MOST = 4  # blocks together
MEMORY = 64 << 10  # bytes of their shared arrays and slots: some of the second level of a cache
SLOTS = 8  # bytes that a thread is taken to keep
_KNOWN = {("threadIdx", 0), ("blockIdx", 0), *(("gridDim", axis) for axis in range(3))}
MEMBER = Special("threadIdx", 2)  # which of the blocks


def group_blocks(function: Function) -> Function | None:
    """The kernel for a few blocks side by side, loops shared; None if it is better off without."""
    number = _number(function)
    if number < 2 or not _independent(function):
        return None
    copies = {
        a: replace(a, ndim=a.ndim + 1, shape=(number, *a.shape))
        for a in function.arrays
        if a.space == "shared" and a.shape is not None
    }
    grouped = _together(function, copies, number)
    shared = share_rounds(grouped)
    if shared.body == grouped.body or not _uniform(analyse(shared), shared.body, True):
        return None
    return shared


def _number(function: Function) -> int:
    """How many blocks fit."""
    match function.block:
        case (threads, 1, 1) if threads > 1:
            pass
        case _:
            return 0
    size = SLOTS * threads
    for a in function.arrays:
        if a.space == "const":
            continue
        if a.space != "shared" or a.shape is None or not isinstance(a.dtype, dtypes.DType):
            return 0
        count = 1
        for extent in a.shape:
            count *= extent
        size += count * a.dtype.itemsize
    return min(MOST, 1 << max(0, (MEMORY // size).bit_length() - 1))


def _independent(function: Function) -> bool:
    """Whether nothing in the kernel asks for more than its own block's x axis."""
    if hidden(function) is not None:
        return False
    for s in ir.statements(function.body):
        match s:
            case Warp() | Cooperative() | Asm():
                return False
            case Barrier(scope=scope, vote=vote) if scope != "block" or vote is not None:
                return False
    for e in ir.all_expressions(function.body):
        match e:
            case Special(name, axis) if (name, axis) not in _KNOWN:
                return False
            case Extent(array) | Stride(array) if array.space == "shared":
                return False
    return True


def _together(function: Function, copies: dict[Array, Array], number: int) -> Function:
    def expression(e: Expr) -> Expr:
        match e:
            case Special("blockIdx", 0):
                return op("add", e, MEMBER)
            case Load(array, indices) if array in copies:
                return replace(e, array=copies[array], indices=(MEMBER, *indices))
        return e

    def statement(s: Statement) -> Statement:
        match s:
            case Store(array, indices) if array in copies:
                return replace(s, array=copies[array], indices=(MEMBER, *indices))
            case Atomic(array=array, indices=indices) if array in copies:
                return replace(s, array=copies[array], indices=(MEMBER, *indices))
            case Declare(array) if array in copies:
                return replace(s, array=copies[array])
        return s

    assert function.block is not None
    return replace(
        function,
        body=ir.rewrite_body(function.body, expression, statement),
        arrays=tuple(copies.get(a, a) for a in function.arrays),
        block=(*function.block[:2], number),
    )


def _uniform(state: Uniformity, body: Body, same: bool) -> bool:
    """Whether all blocks come to each barrier together."""
    for s in body:
        match s:
            case Barrier():
                if not same:
                    return False
            case If(condition) | While(condition):
                inside = same and state.is_uniform(condition)
                if not all(_uniform(state, b, inside) for b in ir.bodies(s)):
                    return False
            case For(start=start, stop=stop, step=step):
                inside = same and all(map(state.is_uniform, (start, stop, step)))
                if not _uniform(state, s.body, inside):
                    return False
    return True
