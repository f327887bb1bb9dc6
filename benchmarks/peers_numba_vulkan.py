"""The kernels of the WebGPU figures for `numba-vulkan`, as its users write them.

Adapters are told apart by name: both sides of a row run on the same one.
"""

from __future__ import annotations

from typing import Any

import numba_vulkan as nv
import numpy as np

from benchmarks.wgpu_kernels import SQUARE


@nv.jit
def saxpy(a, x, y, out):
    i = nv.global_id(0)
    if i < out.size:
        out[i] = a * x[i] + y[i]


@nv.jit
def mandelbrot(x0, y0, step, rounds, out):
    i = nv.global_id(0)
    j = nv.global_id(1)
    if i < out.shape[0] and j < out.shape[1]:
        cx = x0 + np.float32(j) * step
        cy = y0 + np.float32(i) * step
        x = np.float32(0)
        y = np.float32(0)
        count = np.int32(0)
        while count < rounds and x * x + y * y <= np.float32(4):
            x, y = x * x - y * y + cx, np.float32(2) * x * y + cy
            count += np.int32(1)
        out[i, j] = count


@nv.jit
def block_sum(x, out):
    partial = nv.shared.array(256, np.float32)
    t = nv.local_id(0)
    i = nv.global_id(0)
    partial[t] = x[i] if i < x.size else np.float32(0)
    nv.barrier()
    step = 128
    while step > 0:
        if t < step:
            partial[t] += partial[t + step]
        nv.barrier()
        step //= 2
    if t == 0:
        out[nv.group_id(0)] = partial[0]


@nv.jit
def matmul(a, b, out):
    left = nv.shared.array((SQUARE, SQUARE), np.float32)
    right = nv.shared.array((SQUARE, SQUARE), np.float32)
    tx = nv.local_id(0)
    ty = nv.local_id(1)
    column = nv.global_id(0)
    row = nv.global_id(1)
    total = np.float32(0)
    for k in range(0, a.shape[1], SQUARE):
        left[ty, tx] = a[row, k + tx]
        right[ty, tx] = b[k + ty, column]
        nv.barrier()
        for d in range(SQUARE):
            total += left[ty, d] * right[d, tx]
        nv.barrier()
    out[row, column] = total


def select(name: str) -> Any:
    """The device of that name, for what follows; LookupError if Vulkan has none."""
    for k, device in enumerate(nv.list_devices()):
        if name in str(device):
            nv.select_device(k)
            return device
    raise LookupError(f"numba-vulkan finds no {name!r}: {nv.list_devices()}")
