"""The kernels of the CUDA figures, in the plain language of a user: no vectors, no assembly."""

from __future__ import annotations

import math

import ruda
from ruda import float32

COLUMNS = 8192  # of the row kernels: 256 threads keep 32 elements each in registers
EACH = COLUMNS // 256
ALL = 0xFFFFFFFF


@ruda.jit
def axpy(a, x, y, out):
    i = ruda.grid(1)
    if i < out.size:
        out[i] = a * x[i] + y[i]


@ruda.jit
def copy(x, out):
    i = ruda.grid(1)
    if i < out.size:
        out[i] = x[i]


@ruda.jit
def four(a, x, y, z, out):
    """The launch figure's kernel: four arrays and a scalar."""
    i = ruda.grid(1)
    if i < out.size:
        out[i] = a * x[i] + y[i] * z[i]


@ruda.jit(device=True)
def block_sum(value, partial):
    """The sum over the 256 threads of a block, in every thread."""
    for k in range(5):
        value += ruda.shfl_xor_sync(ALL, value, 16 >> k)
    t = ruda.threadIdx.x
    if t % 32 == 0:
        partial[t // 32] = value
    ruda.syncthreads()
    value = partial[t % 8]
    for k in range(3):
        value += ruda.shfl_xor_sync(ALL, value, 4 >> k)
    return value


@ruda.jit(device=True)
def block_max(value, partial):
    for k in range(5):
        value = max(value, ruda.shfl_xor_sync(ALL, value, 16 >> k))
    t = ruda.threadIdx.x
    if t % 32 == 0:
        partial[t // 32] = value
    ruda.syncthreads()
    value = partial[t % 8]
    for k in range(3):
        value = max(value, ruda.shfl_xor_sync(ALL, value, 4 >> k))
    return value


@ruda.jit
def softmax(x, out):
    """A block a row."""
    t, row = ruda.threadIdx.x, ruda.blockIdx.x
    kept = ruda.local.array(EACH, float32)
    highs = ruda.shared.array(8, float32)
    sums = ruda.shared.array(8, float32)
    high = float32(-math.inf)
    for k in range(EACH):
        kept[k] = x[row, k * 256 + t]
    for k in range(EACH):
        high = max(high, kept[k])
    high = block_max(high, highs)
    total = float32(0)
    for k in range(EACH):
        kept[k] = math.exp(kept[k] - high)
        total += kept[k]
    inverse = 1 / block_sum(total, sums)
    for k in range(EACH):
        out[row, k * 256 + t] = kept[k] * inverse


@ruda.jit
def layernorm(x, gain, bias, out):
    """A block a row; the variance is that of the differences, as in a second pass."""
    t, row = ruda.threadIdx.x, ruda.blockIdx.x
    kept = ruda.local.array(EACH, float32)
    first = ruda.shared.array(8, float32)
    second = ruda.shared.array(8, float32)
    for k in range(EACH):
        kept[k] = x[row, k * 256 + t]
    total = float32(0)
    for k in range(EACH):
        total += kept[k]
    mean = block_sum(total, first) / COLUMNS
    total = float32(0)
    for k in range(EACH):
        kept[k] -= mean
        total += kept[k] * kept[k]
    scale = 1 / math.sqrt(block_sum(total, second) / COLUMNS + 1e-5)
    for k in range(EACH):
        column = k * 256 + t
        out[row, column] = kept[k] * scale * gain[column] + bias[column]


TILE = 64


@ruda.jit
def transpose(x, out):
    """Tiles of 64 x 64, a block of 64 x 4 threads; the odd width keeps threads off one bank."""
    tile = ruda.shared.array((TILE, TILE + 1), float32)
    tx, ty = ruda.threadIdx.x, ruda.threadIdx.y
    r0, c0 = ruda.blockIdx.y * TILE, ruda.blockIdx.x * TILE
    for k in range(TILE // 4):
        tile[ty + 4 * k, tx] = x[r0 + ty + 4 * k, c0 + tx]
    ruda.syncthreads()
    for k in range(TILE // 4):
        out[c0 + ty + 4 * k, r0 + tx] = tile[tx, ty + 4 * k]


SIDE, DEPTH, PITCH = 128, 16, 132


@ruda.jit
def matmul(a, b, out):
    """128 x 128 results a block of 256 threads, 8 x 8 a thread; sizes are multiples of 128.

    While a slab of 16 columns of `a` and rows of `b` is multiplied, the next one is fetched.
    """
    tall = ruda.shared.array((2, DEPTH, PITCH), float32)  # of a, transposed
    wide = ruda.shared.array((2, DEPTH, SIDE), float32)  # of b
    total = ruda.local.array((8, 8), float32)
    left = ruda.local.array(8, float32)
    right = ruda.local.array(8, float32)
    t = ruda.threadIdx.x
    tx, ty = t % 16, t // 16
    r0, c0 = ruda.blockIdx.y * SIDE, ruda.blockIdx.x * SIDE
    a_row, a_column = t // 16, t % 16  # 16 rows a step, 8 steps
    b_row, b_column = t // 128, t % 128  # 2 rows a step, 8 steps
    for i in range(8):
        for j in range(8):
            total[i, j] = 0
    for k in range(8):
        tall[0, a_column, a_row + 16 * k] = a[r0 + a_row + 16 * k, a_column]
        wide[0, b_row + 2 * k, b_column] = b[b_row + 2 * k, c0 + b_column]
    ruda.syncthreads()
    slabs = a.shape[1] // DEPTH
    for slab in range(slabs):
        now = slab % 2
        if slab + 1 < slabs:
            at = (slab + 1) * DEPTH
            for k in range(8):
                left[k] = a[r0 + a_row + 16 * k, at + a_column]
                right[k] = b[at + b_row + 2 * k, c0 + b_column]
        for d in ruda.unroll(range(DEPTH)):
            for i in range(8):
                x = tall[now, d, ty * 4 + i % 4 + 64 * (i // 4)]
                for j in range(8):
                    total[i, j] += x * wide[now, d, tx * 4 + j % 4 + 64 * (j // 4)]
        if slab + 1 < slabs:
            for k in range(8):
                tall[1 - now, a_column, a_row + 16 * k] = left[k]
                wide[1 - now, b_row + 2 * k, b_column] = right[k]
        ruda.syncthreads()
    for i in range(8):
        for j in range(8):
            row = r0 + ty * 4 + i % 4 + 64 * (i // 4)
            out[row, c0 + tx * 4 + j % 4 + 64 * (j // 4)] = total[i, j]
