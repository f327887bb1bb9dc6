"""What a user can do wrong on Ascend, on both chips: told in words, and the process goes on."""

import re

import numpy as np
import pytest

import ruda
from ruda.errors import LaunchValueError, OutOfBoundsError, UnsupportedError
from tests.backends.test_ascend import saxpy

TWINS = ("ascend-twin:950", "ascend-twin:910b")


@pytest.fixture(params=TWINS)
def twin(request):
    with ruda.config(device=request.param):
        yield request.param


def numbers(n, start=0):
    return np.arange(start, start + n, dtype=np.float32)


# ---- more memory than the unified buffer has -----------------------------------------------------


@ruda.jit
def two_tiles(x):
    tile = ruda.shared.array(30000, np.float32)
    other = ruda.shared.array((20, 1500), np.float32)
    t = ruda.threadIdx.x
    tile[t] = x[t]
    other[0, t] = x[t]
    ruda.syncthreads()
    x[t] = tile[31 - t] + other[0, 31 - t]


def test_more_than_the_unified_buffer_names_the_arrays_and_both_numbers(twin):
    with pytest.raises(UnsupportedError) as caught:
        two_tiles[1, 32](numbers(32))
    text = str(caught.value)
    assert "`tile` 120000" in text and "`other` 120000" in text
    needed = int(re.search(r"(\d+) bytes", text)[1])
    limit = {"ascend-twin:950": 221184, "ascend-twin:910b": 188160}[twin]
    assert needed >= 240000 and str(limit) in text


@ruda.jit
def dynamic(x):
    tile = ruda.shared.array(0, np.float32)
    t = ruda.threadIdx.x
    tile[t] = x[t]
    ruda.syncthreads()
    x[t] = tile[31 - t]


def test_more_dynamic_memory_than_there_is(twin):
    x = numbers(32)
    limit = {"ascend-twin:950": 221184, "ascend-twin:910b": 188160}[twin]
    with pytest.raises(
        (LaunchValueError, UnsupportedError), match=f"30\\d{{4}} bytes.* has {limit}"
    ):
        dynamic[1, 32, 0, 300_000](x)
    np.testing.assert_array_equal(x, numbers(32))


# ---- barriers that threads do not share ----------------------------------------------------------


@ruda.jit
def divergent(x):
    tile = ruda.shared.array(64, np.float32)
    t = ruda.threadIdx.x
    tile[t] = x[t]
    if t < 40:
        ruda.syncthreads()
    x[t] = tile[63 - t]


@ruda.jit
def divergent_loop(x):
    tile = ruda.shared.array(64, np.float32)
    t = ruda.threadIdx.x
    tile[t] = x[t]
    for _ in range(t):
        ruda.syncthreads()
        tile[t] += 1
    x[t] = tile[63 - t]


@pytest.mark.parametrize("kernel", [divergent, divergent_loop], ids=lambda k: k.py_func.__name__)
def test_barrier_that_some_threads_miss_is_refused(twin, kernel):
    x = numbers(64)
    with pytest.raises(ruda.errors.RudaError, match="barrier") as caught:
        kernel[1, 64](x)
    assert "test_bad_input.py" in str(caught.value.filename)
    np.testing.assert_array_equal(x, numbers(64))


# ---- launches ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("grid", "block", "message"),
    [
        (1, 2048, "2048 threads; at most 1024"),
        (1, (64, 64), "4096 threads; at most 1024"),
        (1, 0, "each dimension must be at least 1"),
        (0, 32, "each dimension must be at least 1"),
        (-1, 32, "each dimension must be at least 1"),
        ((1, 2, 3, 4), 32, "grid"),
    ],
    ids=str,
)
def test_shapes_of_launches(twin, grid, block, message):
    x = numbers(8)
    with pytest.raises(LaunchValueError, match=message):
        saxpy[grid, block](1.0, x, x, x)
    np.testing.assert_array_equal(x, numbers(8))


def test_more_blocks_than_a_launch_of_the_chip_has(twin):
    """Both chips take 65535: there the grid goes in pieces, here it is looped over."""
    x, out = numbers(70_000), np.zeros(70_000, np.float32)
    saxpy[70_000, 1](2.0, x, x, out)
    np.testing.assert_array_equal(out, 3 * x)


# ---- arrays that overlap -------------------------------------------------------------------------


@ruda.jit
def doubled(x, out):
    i = ruda.grid(1)
    if i < x.size:
        out[i] = 2 * x[i]


@pytest.mark.parametrize("distance", [0, 600, -600])
def test_inputs_may_overlap_outputs(twin, distance):
    """Threads that do not read what others write get the right answer, though the arrays meet."""
    whole = numbers(1200)
    a, b = (0, distance) if distance >= 0 else (-distance, 0)
    x, out = whole[a : a + 600], whole[b : b + 600]
    expected = 2 * x
    doubled[5, 128](x, out)
    np.testing.assert_array_equal(out, expected)


def test_inputs_that_overlap_outputs_in_part(twin):
    """One thread, so that the order is that of Python."""
    whole = numbers(100)
    wanted = whole.copy()
    for i in range(99):
        wanted[i + 1] = 2 * wanted[i]
    one_by_one[1, 1](whole[:-1], whole[1:])
    np.testing.assert_array_equal(whole, wanted)


@ruda.jit
def one_by_one(x, out):
    for i in range(x.size):
        out[i] = 2 * x[i]


# ---- a fault among other launches ----------------------------------------------------------------


@ruda.jit
def past_the_end(x):
    i = ruda.grid(1)
    x[i + 1] = x[i]


def test_a_fault_in_a_batch_leaves_the_other_results(twin):
    """Launches before and after, by the same kernel too, on arrays of the device."""
    x, out, broken = (ruda.to_device(numbers(300, k)) for k in range(3))
    last = ruda.to_device(np.zeros(300, np.float32))
    for _ in range(2):
        saxpy[3, 128](2.0, x, x, out)
        with pytest.raises(OutOfBoundsError):
            past_the_end[1, 300](broken)
        saxpy[3, 128](2.0, out, x, last)
    past_the_end[1, 299](broken)
    np.testing.assert_array_equal(out.copy_to_host(), 3 * numbers(300))
    np.testing.assert_array_equal(last.copy_to_host(), 7 * numbers(300))
    np.testing.assert_array_equal(x.copy_to_host(), numbers(300))
    assert np.isfinite(broken.copy_to_host()).all()


def test_a_fault_among_tensors_leaves_the_other_results(twin):
    x = ruda.asarray(numbers(300), device=twin)
    y = x * 2 + 1
    with pytest.raises(OutOfBoundsError):
        past_the_end[1, 300](ruda.to_device(numbers(300)))
    z = y - x
    np.testing.assert_array_equal(np.asarray(z.to_device("cpu")), numbers(300) + 1)
    np.testing.assert_array_equal(np.asarray(y.to_device("cpu")), 2 * numbers(300) + 1)
