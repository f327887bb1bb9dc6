"""Kernels for ops that are no rows: today the matrix product."""

# mypy: disable-error-code="no-untyped-def,comparison-overlap,operator,index,arg-type,call-overload"
# What kernels take has the types of the kernel language, of which mypy knows nothing.

from __future__ import annotations

from typing import Any

from ruda.errors import ShapeError
from ruda.jit import jit
from ruda.jit.language import blockIdx, shared, syncthreads, threadIdx
from ruda.tensor import memory
from ruda.tensor.tensor import Tensor, astype, broadcast_to, from_buffer, reshape

TILE = 16


@jit
def product(x, y, out):
    """out[b] = x[b] @ y[b], a tile of the result by a block."""
    left = shared.array((TILE, TILE), out.dtype)
    right = shared.array((TILE, TILE), out.dtype)
    tx, ty, b = threadIdx.x, threadIdx.y, blockIdx.z
    row, column = blockIdx.y * TILE + ty, blockIdx.x * TILE + tx
    total = out.dtype.type(0)
    for start in range(0, x.shape[2], TILE):
        left[ty, tx] = 0
        right[ty, tx] = 0
        if row < x.shape[1] and start + tx < x.shape[2]:
            left[ty, tx] = x[b, row, start + tx]
        if start + ty < y.shape[1] and column < y.shape[2]:
            right[ty, tx] = y[b, start + ty, column]
        syncthreads()
        for k in range(TILE):
            total += left[ty, k] * right[k, tx]
        syncthreads()
    if row < out.shape[1] and column < out.shape[2]:
        out[b, row, column] = total


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
    count = 1
    for n in lead:
        count *= n
    m, k, n = a.shape[-2], a.shape[-1], b.shape[-1]
    left = reshape(broadcast_to(astype(a, kind, copy=False), (*lead, m, k)), (count, m, k))
    right = reshape(broadcast_to(astype(b, kind, copy=False), (*lead, k, n)), (count, k, n))
    out = memory.allocate((count, m, n), kind, x.device)
    if count * m * n:
        launch(left.buffer(), right.buffer(), out)
    shape = (*lead, *((m,) if x.ndim > 1 else ()), *((n,) if y.ndim > 1 else ()))
    return reshape(from_buffer(out, x.device), shape)


def launch(left: Any, right: Any, out: Any) -> None:
    count, m, n = out.shape
    grid = (-(-n // TILE), -(-m // TILE), count)
    product[grid, (TILE, TILE)](left, right, out)
