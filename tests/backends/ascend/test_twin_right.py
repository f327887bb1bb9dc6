"""The twin runs right kernels of the 910B class, and gets what NumPy gets."""

import ctypes
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from ruda.backends.ascend import twin

KERNELS = Path(__file__).parent / "kernels"


@pytest.fixture(scope="module")
def library():
    return twin.load((KERNELS / "right.cpp").read_text())


def memory(name, array, writable=True):
    return twin.Memory(name, array.ctypes.data, array.nbytes, writable)


def run(library, kernel, x, y, out, n, m=0, *, blocks=3, seed=0, **options):
    arrays = [ctypes.c_void_p(a.ctypes.data) for a in (x, y, out)]
    ranges = [memory("x", x, False), memory("y", y, False), memory("out", out)]
    arguments = [*arrays, ctypes.c_uint32(n), ctypes.c_uint32(m)]
    return twin.launch(library, f"launch_{kernel}", blocks, arguments, ranges, seed=seed, **options)


def draw(*shape, dtype=np.float32, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


SIZES = (0, 1, 7, 8, 511, 512, 513, 4097)
NOTHING = np.zeros(1, np.float32)


@pytest.mark.parametrize("n", SIZES)
def test_tiles_with_exact_tails(library, n):
    x, y, out = draw(n), draw(n, seed=1), np.full(n, np.nan, np.float32)
    run(library, "saxpy", x, y, out, n, blocks=4, seed=n)
    np.testing.assert_array_equal(out, np.float32(2.5) * x + y)


@pytest.mark.parametrize("shape", [(1, 1), (5, 7), (33, 1000), (4, 4099)])
def test_row_softmax(library, shape):
    x = draw(*shape) * 3
    out = np.full_like(x, np.nan)
    run(library, "softmax", x, NOTHING, out, *shape)
    e = np.exp(x - x.max(1, keepdims=True))
    np.testing.assert_allclose(out, e / e.sum(1, keepdims=True), 2e-6, 1e-9)


@pytest.mark.parametrize(("n", "m"), [(1, 1), (16, 16), (17, 33), (50, 5)])
def test_matrix_product_with_lanes(library, n, m):
    x, y, out = draw(n, m), draw(m, n, seed=1), np.full((n, n), np.nan, np.float32)
    run(library, "matmul", x, y, out, n, m)
    wanted = np.zeros((n, n), np.float32)
    for k in range(m):  # in the kernel's order, so the bits are equal
        wanted += x[:, k, None] * y[None, k]
    np.testing.assert_array_equal(out, wanted)


@pytest.mark.parametrize("n", SIZES)
def test_compare_and_select(library, n):
    x, y, out = draw(n), draw(n, seed=1), np.full(n, np.nan, np.float32)
    x[::7] = np.nan
    x[1::7] = -0.0
    run(library, "choose", x, y, out, n)
    np.testing.assert_array_equal(out, np.where(x < 0, y, x))


def test_half_rounds_after_each_operation(library):
    every = np.arange(65536, dtype=np.uint16).view(np.float16)
    x, y = np.resize(every, 200_000), np.resize(every[::-7], 200_000)
    out = np.zeros_like(x)
    run(library, "halves", x, y, out, x.size)
    with np.errstate(all="ignore"):
        wanted = x * y + x
    np.testing.assert_array_equal(out, wanted)


def test_bfloat16_rounds_to_nearest_even(library):
    every = np.arange(65536, dtype=np.uint16).view(ml_dtypes.bfloat16)
    x, y = np.resize(every, 200_000), np.resize(every[::-7], 200_000)
    out = np.zeros_like(x)
    run(library, "brains", x, y, out, x.size)
    with np.errstate(all="ignore"):
        wanted = (x.astype(np.float32) + y.astype(np.float32)).astype(ml_dtypes.bfloat16)
    np.testing.assert_array_equal(out.astype(np.float32), wanted.astype(np.float32))


def test_copies_accumulate(library):
    x = np.arange(35, dtype=np.float32).reshape(5, 7)
    out = np.ones(7, np.float32)
    run(library, "totals", x, NOTHING, out, 5, 7)
    np.testing.assert_array_equal(out, 1 + x.sum(0))


@pytest.mark.parametrize("n", [0, 1, 15, 16, 17, 1000])
def test_scalar_loops_stage_their_stores(library, n):
    x, out = draw(n), np.full(n, np.nan, np.float32)
    run(library, "backwards", x, NOTHING, out, n)
    np.testing.assert_array_equal(out, x[::-1])


def test_cache_lines_of_one_block_are_written_back(library):
    whole = np.full(128 + 16, -1, np.int32)
    start = -whole.ctypes.data % 64 // 4  # lines begin at multiples of 64 bytes
    out = whole[start : start + 100]
    run(library, "lines", NOTHING, NOTHING, out, 100)
    np.testing.assert_array_equal(out, np.arange(100))
    assert (whole[start + 100 :] == -1).all()


def test_casts_round_and_saturate(library):
    x = np.array([-2.5, -0.5, -0.0, 0.5, 1.999, 3e9, -3e9, np.inf, -np.inf, np.nan], np.float32)
    out = np.zeros(x.size, np.int64)
    run(library, "floors", x, NOTHING, out, x.size)
    high, low = 2**31 - 1, -(2**31)
    assert out.tolist() == [-3, -1, 0, 0, 1, high, low, high, low, 0]


@pytest.mark.parametrize("workers", [1, 4])
@pytest.mark.parametrize("seed", range(3))
def test_blocks_run_in_any_order(library, seed, workers):
    x, y, out = draw(20_000), draw(20_000, seed=1), np.zeros(20_000, np.float32)
    run(library, "saxpy", x, y, out, x.size, blocks=40, seed=seed, workers=workers)
    np.testing.assert_array_equal(out, np.float32(2.5) * x + y)


def test_instructions_and_bytes_are_counted(library):
    n = 512 * 3 + 100  # four tiles
    x, y, out = draw(n), draw(n), np.zeros(n, np.float32)
    counts = run(library, "saxpy", x, y, out, n, blocks=2)
    assert counts["vector_instructions"] == 2 * 4
    assert (counts["copies_in"], counts["copies_out"]) == (2 * 4, 4)
    assert (counts["bytes_in"], counts["bytes_out"]) == (2 * 4 * n, 4 * n)  # the minimum
    assert counts["barriers"] == 4
    assert counts["scalar_reads"] == counts["global_reads"] == 0
