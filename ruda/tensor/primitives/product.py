"""The matrix product on devices whose memory the host does not see.

A block of threads makes a square tile of the result. Each thread keeps rows and columns of it in
registers; while a slab of `x` and of `y` is multiplied in shared memory, the next one is fetched.
Operands may be views: transposes are read as they lie, along the axis without gaps.
"""

# mypy: disable-error-code="no-untyped-def,comparison-overlap,operator,index,arg-type,call-overload"
# What kernels take has the types of the kernel language, of which mypy knows nothing.

from __future__ import annotations

import math
from typing import Any

from ruda.dtypes import DType, as_dtype, float32
from ruda.errors import ShapeError
from ruda.jit import jit
from ruda.jit.language import blockIdx, constexpr, local, shared, syncthreads, threadIdx, unroll
from ruda.tensor import graph, memory
from ruda.tensor.tensor import Tensor, astype, broadcast_to, from_buffer, reshape

TILE = 16  # threads along each side of a block, and the columns of a slab


@jit
def small_product(x, y, out, kind: constexpr):
    """out[b] = x[b] @ y[b], an element of the result by a thread."""
    left = shared.array((TILE, TILE), kind)
    right = shared.array((TILE, TILE), kind)
    tx, ty, b = threadIdx.x, threadIdx.y, blockIdx.z
    row, column = blockIdx.y * TILE + ty, blockIdx.x * TILE + tx
    total = kind(0)
    for start in range(0, x.shape[2], TILE):
        left[ty, tx] = kind(0)
        right[ty, tx] = kind(0)
        if row < x.shape[1] and start + tx < x.shape[2]:
            left[ty, tx] = kind(x[b, row, start + tx])
        if start + ty < y.shape[1] and column < y.shape[2]:
            right[ty, tx] = kind(y[b, start + ty, column])
        syncthreads()
        for k in range(TILE):
            total += left[ty, k] * right[k, tx]
        syncthreads()
    if row < out.shape[1] and column < out.shape[2]:
        out[b, row, column] = out.dtype.type(total)


@jit(wraparound=False)
def product(x, y, out, kind: constexpr, each: constexpr, along: constexpr):
    """out[b] = x[b] @ y[b], `each` x `each` elements by each of 256 threads.

    along  whether neighbouring threads read x, and y, along the last axis: else along the other
    """
    side, pitch = TILE * each, TILE * each + 4  # gaps, for threads that write down a column
    tall = shared.array((2, TILE, pitch), kind)  # of x, transposed
    wide = shared.array((2, TILE, pitch), kind)  # of y
    total = local.array((each, each), kind)
    left = local.array(each, kind)
    right = local.array(each, kind)
    t, b = threadIdx.x, blockIdx.z
    tx, ty = t % TILE, t // TILE
    first, start = blockIdx.y * side, blockIdx.x * side
    rows, columns, depth = out.shape[1], out.shape[2], x.shape[2]
    for i in range(each):
        for j in range(each):
            total[i, j] = kind(0)
    slabs = (depth + TILE - 1) // TILE
    for slab in range(slabs + 1):  # each fetches the next one, the first nothing else
        at = slab * TILE
        for s in unroll(range(each)):
            if along[0]:
                r, d = ty + TILE * s, tx
            else:
                r, d = t % side, t // side + TILE // each * s
            left[s] = kind(0)
            if first + r < rows and at + d < depth:
                left[s] = kind(x[b, first + r, at + d])
            if along[1]:
                c, e = t % side, t // side + TILE // each * s
            else:
                c, e = ty + TILE * s, tx
            right[s] = kind(0)
            if start + c < columns and at + e < depth:
                right[s] = kind(y[b, at + e, start + c])
        if slab > 0:
            now = (slab - 1) % 2
            for d in unroll(range(TILE)):
                for i in range(each):
                    p = tall[now, d, ty * 4 + i % 4 + 64 * (i // 4)]
                    for j in range(each):
                        total[i, j] += p * wide[now, d, tx * 4 + j % 4 + 64 * (j // 4)]
        for s in unroll(range(each)):
            if along[0]:
                tall[slab % 2, tx, ty + TILE * s] = left[s]
            else:
                tall[slab % 2, t // side + TILE // each * s, t % side] = left[s]
            if along[1]:
                wide[slab % 2, t // side + TILE // each * s, t % side] = right[s]
            else:
                wide[slab % 2, tx, ty + TILE * s] = right[s]
        syncthreads()
    for i in range(each):
        for j in range(each):
            r = first + ty * 4 + i % 4 + 64 * (i // 4)
            c = start + tx * 4 + j % 4 + 64 * (j // 4)
            if r < rows and c < columns:
                out[b, r, c] = out.dtype.type(total[i, j])


def matmul(x: Tensor, y: Tensor) -> Tensor:
    """The matrix product by a tiled kernel, on any device; leading axes broadcast."""
    if x.ndim == 0 or y.ndim == 0:
        raise ShapeError("`matmul` of numbers: use `*`")
    from ruda.tensor.creation import broadcast_shapes, result_type

    kind = result_type(x, y)
    a = x[None, :] if x.ndim == 1 else x
    b = y[:, None] if y.ndim == 1 else y
    if a.shape[-1] != b.shape[-2]:
        raise ShapeError(f"`matmul` of shapes {x.shape} and {y.shape}")
    lead = broadcast_shapes(a.shape[:-2], b.shape[:-2])
    m, n = a.shape[-2], b.shape[-1]
    left, right = (stacked(astype(v, kind, copy=False), lead) for v in (a, b))
    found = products(left, right, kind)
    shape = (*lead, *((m,) if x.ndim > 1 else ()), *((n,) if y.ndim > 1 else ()))
    return reshape(found, shape)


def stacked(x: Tensor, lead: tuple[int, ...]) -> Tensor:
    """Matrices with one axis before them, those of `x` repeated along `lead`: best a view."""
    x = broadcast_to(x, (*lead, *x.shape[-2:]))
    if not lead:
        return x[None]
    if len(lead) == 1:
        return x
    rows, columns = x._seen().strides[-2:]
    if rows == 1 and columns != 1:  # a copy for one axis leaves transposes as they are
        return stacked(x.mT, lead).mT
    return reshape(x, (math.prod(lead), *x.shape[-2:]))


@graph.step
def products(left: Tensor, right: Tensor, kind: DType) -> Tensor:
    """The products of two rows of matrices."""
    count, m, n = left.shape[0], left.shape[1], right.shape[2]
    out = memory.allocate((count, m, n), kind, left.device)
    if count * m * n:
        launch(left.buffer(), right.buffer(), out)
    return from_buffer(out, left.device)


products.__wrapped__.is_recordable = True  # type: ignore[attr-defined] # see `compiled`


def launch(left: Any, right: Any, out: Any) -> None:
    """Sums of 16 bits are made in float32."""
    count, m, n = out.shape
    kind = as_dtype(out.dtype)
    kind = float32 if kind.name in ("float16", "bfloat16") else kind
    # Elsewhere 16 KiB are all the shared memory that there must be.
    each = elements(count, m, n, kind) if out.device.startswith("cuda") else 1
    side = TILE * each
    grid = (-(-n // side), -(-m // side), count)
    if each == 1:
        small_product[grid, (TILE, TILE)](left, right, out, kind)
        return
    one = out.dtype.itemsize
    along = tuple(a.strides[2] == one or a.strides[1] != one for a in (left, right))
    product[grid, TILE * TILE](left, right, out, kind, each, along)


def elements(count: int, m: int, n: int, kind: DType) -> int:
    """Rows and columns of a thread: many, where enough blocks are left to fill a large GPU."""
    if min(m, n) < 32 or kind is not float32:
        return 1
    large = count * -(-m // 128) * -(-n // 128)
    return 8 if large >= 128 and min(m, n) >= 128 else 4
