"""What the threads of a block do together: totals, and scans over the threads.

Within a warp by shuffles, between warps through shared memory. The order in which values meet rests
on the size of the block alone, so that a float's sum is the same in every run.
"""

# mypy: disable-error-code="no-untyped-def,comparison-overlap,operator,index,arg-type,call-overload"
# What kernels take has the types of the kernel language, of which mypy knows nothing.

from __future__ import annotations

from ruda.jit import jit
from ruda.jit.language import (
    constexpr,
    shfl_up_sync,
    shfl_xor_sync,
    syncthreads,
    threadIdx,
    unroll,
)

ALL = 0xFFFFFFFF
WARP = 32


@jit
def combine(a, b, how: constexpr):
    """Of a value and the next one."""
    if how == "sum":
        found = a + b
    elif how == "prod":
        found = a * b
    elif how == "max":
        found = max(a, b)
    else:
        found = min(a, b)
    return found


@jit
def block_total(value, partial, block: constexpr, how: constexpr):
    """Of the values of all threads, in every thread; `partial` is shared, an element for a warp."""
    for step in unroll((16, 8, 4, 2, 1)):
        value = combine(value, shfl_xor_sync(ALL, value, step), how)
    if threadIdx.x % WARP == 0:
        partial[threadIdx.x // WARP] = value
    syncthreads()
    total = partial[0]
    for w in unroll(range(1, block // WARP)):
        total = combine(total, partial[w], how)
    syncthreads()
    return total


@jit
def block_scan(value, identity, partial, block: constexpr, how: constexpr):
    """(Of the values of the threads before this one, of all of them)."""
    warp = threadIdx.x // WARP
    for step in unroll((1, 2, 4, 8, 16)):
        other = shfl_up_sync(ALL, value, step)
        if threadIdx.x % WARP >= step:
            value = combine(other, value, how)
    if threadIdx.x % WARP == WARP - 1:
        partial[warp] = value
    syncthreads()
    before = identity
    total = partial[0]
    for w in unroll(range(block // WARP)):
        if w < warp:
            before = combine(before, partial[w], how)
        if w > 0:
            total = combine(total, partial[w], how)
    syncthreads()
    other = shfl_up_sync(ALL, value, 1)
    if threadIdx.x % WARP > 0:
        before = combine(before, other, how)
    return before, total
