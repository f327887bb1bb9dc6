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
