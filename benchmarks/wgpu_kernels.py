"""The kernels of the WebGPU figures, in the plain language of a user."""

from __future__ import annotations

import ruda
from ruda import float32, int32

SQUARE = 16  # side of a tile of the plain matrix product


@ruda.jit
def saxpy(a, x, y, out):
    i = ruda.grid(1)
    if i < out.size:
        out[i] = a * x[i] + y[i]


@ruda.jit
def mandelbrot(x0, y0, step, rounds, out):
    j, i = ruda.grid(2)
    if i < out.shape[0] and j < out.shape[1]:
        cx = x0 + float32(j) * step
        cy = y0 + float32(i) * step
        x = float32(0)
        y = float32(0)
        count = int32(0)
        while count < rounds and x * x + y * y <= float32(4):
            x, y = x * x - y * y + cx, float32(2) * x * y + cy
            count += int32(1)
        out[i, j] = count


@ruda.jit
def block_sum(x, out):
    partial = ruda.shared.array(256, float32)
    t = ruda.threadIdx.x
    i = ruda.grid(1)
    partial[t] = x[i] if i < x.size else float32(0)
    ruda.syncthreads()
    step = 128
    while step > 0:
        if t < step:
            partial[t] += partial[t + step]
        ruda.syncthreads()
        step //= 2
    if t == 0:
        out[ruda.blockIdx.x] = partial[0]


@ruda.jit
def matmul(a, b, out):
    left = ruda.shared.array((SQUARE, SQUARE), float32)
    right = ruda.shared.array((SQUARE, SQUARE), float32)
    tx, ty = ruda.threadIdx.x, ruda.threadIdx.y
    column, row = ruda.grid(2)
    total = float32(0)
    for k in range(0, a.shape[1], SQUARE):
        left[ty, tx] = a[row, k + tx]
        right[ty, tx] = b[k + ty, column]
        ruda.syncthreads()
        for d in range(SQUARE):
            total += left[ty, d] * right[d, tx]
        ruda.syncthreads()
    out[row, column] = total


@ruda.jit
def strided_sum(x, partial):
    """Partial sums of a grid whose threads stride; a block leaves one."""
    shared = ruda.shared.array(256, float32)
    t = ruda.threadIdx.x
    total = float32(0)
    for i in range(ruda.grid(1), x.size, ruda.gridsize(1)):
        total += x[i]
    shared[t] = total
    ruda.syncthreads()
    step = 128
    while step > 0:
        if t < step:
            shared[t] += shared[t + step]
        ruda.syncthreads()
        step //= 2
    if t == 0:
        partial[ruda.blockIdx.x] = shared[0]


SIDE, DEPTH, PITCH = 128, 16, 132


@ruda.jit
def register_matmul(a, b, out):
    """128 x 128 results a block of 256 threads, 8 x 8 a thread; sizes are multiples of 128.

    While a slab of 16 columns of `a` and rows of `b` is multiplied, the next one is fetched to
    registers. A second pair of tiles would save a barrier, and was slower on an H200.
    """
    tall = ruda.shared.array((DEPTH, PITCH), float32)  # of a, transposed
    wide = ruda.shared.array((DEPTH, SIDE), float32)  # of b
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
        left[k] = a[r0 + a_row + 16 * k, a_column]
        right[k] = b[b_row + 2 * k, c0 + b_column]
    slabs = a.shape[1] // DEPTH
    for slab in range(slabs):
        for k in range(8):
            tall[a_column, a_row + 16 * k] = left[k]
            wide[b_row + 2 * k, b_column] = right[k]
        ruda.syncthreads()
        if slab + 1 < slabs:
            at = (slab + 1) * DEPTH
            for k in range(8):
                left[k] = a[r0 + a_row + 16 * k, at + a_column]
                right[k] = b[at + b_row + 2 * k, c0 + b_column]
        for d in ruda.unroll(range(DEPTH)):
            for i in range(8):
                x = tall[d, ty * 4 + i % 4 + 64 * (i // 4)]
                for j in range(8):
                    total[i, j] += x * wide[d, tx * 4 + j % 4 + 64 * (j // 4)]
        ruda.syncthreads()
    for i in range(8):
        for j in range(8):
            row = r0 + ty * 4 + i % 4 + 64 * (i // 4)
            out[row, c0 + tx * 4 + j % 4 + 64 * (j // 4)] = total[i, j]
