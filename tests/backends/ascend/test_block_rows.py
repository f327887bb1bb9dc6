"""A block a row, its threads in strides over it: tiles of the row on the 910B, held to `sim`."""

import numpy as np
import pytest

import ruda
from tests.backends.ascend.test_tiles import DEVICE, counts, draw

LENGTHS = (0, 1, 7, 128, 130, 1000, 3333)


@ruda.jit
def row_sum(x, out):
    kept = ruda.shared.array(256, x.dtype)
    row, t = ruda.blockIdx.x, ruda.threadIdx.x
    total = x.dtype(0)
    for c in range(t, x.shape[1], ruda.blockDim.x):
        total += x[row, c]
    kept[t] = total
    ruda.syncthreads()
    k = ruda.blockDim.x // 2
    while k > 0:
        if t < k:
            kept[t] += kept[t + k]
        ruda.syncthreads()
        k //= 2
    if t == 0:
        out[row] = kept[0]


@ruda.jit
def row_max(x, out):
    kept = ruda.shared.array(256, x.dtype)
    row, t = ruda.blockIdx.x, ruda.threadIdx.x
    top = x[row, 0]
    for c in range(t, x.shape[1], ruda.blockDim.x):
        top = max(top, x[row, c])
    kept[t] = top
    ruda.syncthreads()
    k = ruda.blockDim.x // 2
    while k > 0:
        if t < k:
            kept[t] = max(kept[t], kept[t + k])
        ruda.syncthreads()
        k //= 2
    if t == 0:
        out[row] = kept[0]


@ruda.jit
def softmax(x, out):
    kept = ruda.shared.array(256, ruda.float32)
    row, t, n = ruda.blockIdx.x, ruda.threadIdx.x, x.shape[1]
    top = ruda.float32(-np.inf)
    for c in range(t, n, ruda.blockDim.x):
        top = max(top, ruda.float32(x[row, c]))
    kept[t] = top
    ruda.syncthreads()
    k = ruda.blockDim.x // 2
    while k > 0:
        if t < k:
            kept[t] = max(kept[t], kept[t + k])
        ruda.syncthreads()
        k //= 2
    top = kept[0]
    ruda.syncthreads()
    total = ruda.float32(0)
    for c in range(t, n, ruda.blockDim.x):
        total += ruda.exp(ruda.float32(x[row, c]) - top)
    kept[t] = total
    ruda.syncthreads()
    k = ruda.blockDim.x // 2
    while k > 0:
        if t < k:
            kept[t] += kept[t + k]
        ruda.syncthreads()
        k //= 2
    total = kept[0]
    for c in range(t, n, ruda.blockDim.x):
        out[row, c] = ruda.exp(ruda.float32(x[row, c]) - top) / total


def on(device, kernel, grid, block, *arguments):
    with ruda.config(device=device):
        kernel[grid, block](*arguments)


def same(kernel, grid, block, inputs, output, rtol=0.0):
    """What the twin gives is what `sim` gives."""
    found, wanted = output.copy(), output.copy()
    on(DEVICE, kernel, grid, block, *inputs, found)
    on("sim", kernel, grid, block, *inputs, wanted)
    np.testing.assert_allclose(found, wanted, rtol)


@pytest.mark.parametrize("dtype", ["f4", "f2", "i4"])
@pytest.mark.parametrize("n", LENGTHS)
def test_sums_of_rows_are_those_of_the_threads(n, dtype, rng):
    """To the bit: each thread adds in its own order."""
    x = draw(rng, (3, n), dtype)
    same(row_sum, 3, 64, (x,), np.zeros(3, dtype))
    if n:
        same(row_max, 3, 64, (x,), np.zeros(3, dtype))


@pytest.mark.parametrize("block", [1, 2, 48, 256])
def test_any_block(block, rng):
    x = draw(rng, (2, 517), "f4")
    # A block of one thread has the chip's sum, whose order is not that of the loop.
    same(row_sum, 2, block, (x,), np.zeros(2, "f4"), 1e-6 if block == 1 else 0)
    same(softmax, 2, block, (x,), np.zeros_like(x), 2e-6)


@pytest.mark.parametrize("dtype", ["f4", "f2"])
@pytest.mark.parametrize("n", LENGTHS)
def test_softmax(n, dtype, rng):
    x = 3 * draw(rng, (3, n), dtype)
    same(softmax, 3, 64, (x,), np.zeros_like(x), 2e-6 if dtype == "f4" else 1e-3)


def test_each_element_of_a_row_is_read_once(rng):
    x, out = draw(rng, (50, 1000), "f4"), np.zeros(50, "f4")
    for kernel in (row_sum,):
        found, _ = counts(kernel, ("f32[:, :]", "f32[:]"), 50, 64, x, out)
        assert (found["bytes_in"], found["bytes_out"]) == (x.nbytes, out.nbytes)
        assert found["global_reads"] == 0
