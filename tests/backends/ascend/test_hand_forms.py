"""Emitted kernels beside the same kernels written by hand: both run on the twin, which counts."""

import ctypes
from pathlib import Path

import numpy as np
import pytest

import ruda
from ruda.backends.ascend import twin
from tests.backends.ascend import test_tiles
from tests.backends.ascend.test_tiles import counts, products

N, ROWS, COLUMNS = 40 * 512, 40, 512  # whole tiles by hand: a tile, or a row, for each core


@ruda.jit
def saxpy(x, y, out):
    i = ruda.grid(1)
    if i < out.size:
        out[i] = 2.5 * x[i] + y[i]


@ruda.jit
def saxpy_over_the_grid(x, y, out):
    for i in range(ruda.grid(1), out.size, ruda.gridsize(1)):
        out[i] = 2.5 * x[i] + y[i]


@ruda.jit
def choose(x, y, out):
    i = ruda.grid(1)
    if i < out.size:
        out[i] = y[i] if x[i] < 0 else x[i]


@ruda.jit
def halves(x, y, out):
    i = ruda.grid(1)
    if i < out.size:
        out[i] = x[i] * y[i] + x[i]


@ruda.jit
def brains(x, y, out):
    i = ruda.grid(1)
    if i < out.size:
        out[i] = x[i] + y[i]


@pytest.fixture(scope="module")
def by_hand():
    return twin.load((Path(__file__).parent / "kernels" / "right.cpp").read_text())


def hand_counts(library, kernel, x, y, out, n, m=0):
    ranges = [
        twin.Memory(name, a.ctypes.data, a.nbytes) for name, a in (("x", x), ("y", y), ("out", out))
    ]
    arguments = [
        *(ctypes.c_void_p(a.ctypes.data) for a in (x, y, out)),
        *map(ctypes.c_uint32, (n, m)),
    ]
    return twin.launch(library, f"launch_{kernel}", 40, arguments, ranges)


def per_tile(found):
    copied = {name: found[name] for name in ("bytes_in", "bytes_out")}
    tiles = found["copies_out"]
    return found["vector_instructions"] / tiles, found["copies_in"] / tiles, copied


@pytest.mark.parametrize(
    ("kernel", "dtype"),
    [
        (saxpy, "f32"),
        (saxpy_over_the_grid, "f32"),
        (choose, "f32"),
        (halves, "f16"),
        (brains, "bf16"),
    ],
    ids=lambda v: v if isinstance(v, str) else v.__name__,
)
def test_tiles_are_as_short_as_by_hand(kernel, dtype, by_hand, rng):
    """Form S1: no more instructions than by hand, and each element is moved once."""
    raw = rng.standard_normal((2, N)).astype("f4")
    x, y = raw.astype({"f32": "f4", "f16": "f2"}.get(dtype, ruda.bfloat16.numpy))
    out, wanted = np.zeros_like(x), np.zeros_like(x)
    blocks = 3 if kernel is saxpy_over_the_grid else N // 256
    found, source = counts(kernel, (f"{dtype}[:]",) * 3, blocks, 256, x, y, out)
    assert source.options["form"] == "S1"
    instructions, copies, moved = per_tile(found)
    hand, hand_copies, hand_moved = per_tile(
        hand_counts(by_hand, kernel.__name__.partition("_")[0], x, y, wanted, N)
    )
    assert instructions <= hand and copies == hand_copies
    assert moved == hand_moved == {"bytes_in": 2 * x.nbytes, "bytes_out": x.nbytes}
    assert found["scalar_reads"] == found["global_reads"] == 0
    np.testing.assert_array_equal(out.view("u1"), wanted.view("u1"))


def test_rows_are_as_short_as_by_hand(by_hand, rng):
    """By hand the division is a product with the inverse, as `fastmath` allows."""
    x = rng.standard_normal((ROWS, COLUMNS)).astype("f4")
    out, wanted = np.zeros_like(x), np.zeros_like(x)
    kernel = ruda.jit(fastmath=True)(test_tiles.softmax.py_func)
    found, _ = counts(kernel, ("f32[:, :]",) * 2, 1, 64, x, out)
    hand = hand_counts(by_hand, "softmax", x, x, wanted, ROWS, COLUMNS)
    assert per_tile(found) == per_tile(hand)
    np.testing.assert_allclose(out, wanted, 3e-6)


def test_products_are_as_short_as_by_hand_but_for_their_tiles(by_hand, rng):
    """Form S2. By hand a tile of 16 x 16 is one copy with gaps; here it is one of each row, with
    the selection that the condition asks for. The products themselves are the same."""
    x, y = rng.standard_normal((2, 16, 16)).astype("f4")
    out, wanted = np.zeros_like(x), np.zeros_like(x)
    with ruda.config(device=test_tiles.DEVICE):
        products[1, (16, 16)](x, y, out)
    hand_counts(by_hand, "matmul", x, y, wanted, 16, 16)
    np.testing.assert_array_equal(out, wanted)
    text = products.source(test_tiles.DEVICE, *("f32[:, :]",) * 3, block=(16, 16))
    assert text.count("Axpy(") == 1 and "GetValue(ty * 16 + k), count);" in text
