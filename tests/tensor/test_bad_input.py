"""What users get wrong, and what is large: an error at once that says what, or the right result."""

import gc
import math
import os
import threading
import tracemalloc
import weakref

import numpy as np
import pytest

import ruda
from ruda.errors import DeviceError, DTypeError, ShapeError
from ruda.tensor import execute

LONG = os.environ.get("RUDA_LONG_TESTS") == "1"
MANY = 1_000_000 if LONG else 100_000


# ---- sizes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "call",
    [
        lambda: ruda.zeros(-1), lambda: ruda.empty((3, -2)), lambda: ruda.full([-5], 1),
        lambda: ruda.reshape(ruda.zeros(6), (-2, -3)), lambda: ruda.broadcast_to(ruda.ones(1), -1),
        lambda: ruda.eye(-3), lambda: ruda.linspace(0, 1, -1),
    ],
)  # fmt: skip
def test_negative_sizes(call):
    with pytest.raises((ValueError, TypeError), match=r"negative|shape"):
        call()


SIZES = (1 << 24, 1 << 24), (1 << 29, 1 << 29), (1 << 31, 1 << 31), (1 << 62, 4), (10**40,)
MAKES = {
    "empty": lambda shape, n, d: ruda.empty(shape, device=d),
    "full": lambda shape, n, d: ruda.full(shape, 7, device=d).numpy(),
    "zeros": lambda shape, n, d: ruda.zeros(shape, device=d).numpy(),
    "eye": lambda shape, n, d: ruda.eye(n, device=d),
    "arange": lambda shape, n, d: ruda.arange(n, device=d).numpy(),
    "linspace": lambda shape, n, d: ruda.linspace(0, 1, n, device=d),
    "fftfreq": lambda shape, n, d: ruda.fft.fftfreq(n, device=d),
    "uniform": lambda shape, n, d: ruda.random.Generator(0, device=d).uniform(shape).numpy(),
    "permutation": lambda shape, n, d: ruda.random.Generator(0, device=d).permutation(n),
    "tile": lambda shape, n, d: ruda.tile(ruda.ones(2, device=d), shape).numpy(),
    "repeat": lambda shape, n, d: ruda.repeat(ruda.ones(2, device=d), n).numpy(),
    "pad": lambda shape, n, d: ruda.pad(ruda.ones(2, device=d), (n, 0)).numpy(),
    "bincount": lambda shape, n, d: ruda.bincount(ruda.asarray([1], device=d), minlength=n),
    "broadcast": lambda shape, n, d: (
        ruda.broadcast_to(ruda.ones((), device=d), shape) + 1
    ).numpy(),
}  # fmt: skip


@pytest.mark.parametrize("make", MAKES.values(), ids=MAKES)
def test_more_than_there_is_memory(make, device):
    for shape in SIZES:
        with pytest.raises(MemoryError, match=r"(?i)memory|allocate|buffer"):
            make(shape, math.prod(shape), device)


@pytest.mark.parametrize("make", [ruda.device_array, ruda.pinned_array, ruda.managed_array])
def test_more_memory_than_there_is_for_arrays_of_kernels(make, device):
    with ruda.config(device=device):
        for shape in SIZES:
            with pytest.raises(MemoryError, match=r"(?i)memory|buffer"):
                make(shape)
        with pytest.raises(MemoryError, match="larger than any memory"):
            make((1 << 31, 1 << 31), np.uint8, strides=(1 << 40, 1))


def test_lengths_of_results_may_be_too_large(device):
    none, many = ruda.empty((0, 1 << 40, 1), device=device), ruda.empty(1 << 20, device=device)
    for call in (
        lambda: none + many, lambda: ruda.where(none > 0, many, 1), lambda: ruda.hypot(many, none),
        lambda: ruda.broadcast_arrays(none, many), lambda: ruda.tile(none, (1, 1, 1 << 20)),
        lambda: ruda.empty((0, 1 << 62, 1 << 62), device=device),
    ):  # fmt: skip
        with pytest.raises(MemoryError, match="larger than any memory"):
            call()
    with pytest.raises(ShapeError, match=r"\(3,\) cannot be broadcast together"):
        many + many[:3]


def test_memory_that_dies_in_a_cycle_is_used_again(device):
    """The collector finishes all parts of a cycle, in any order."""
    for k in range(3):
        x = ruda.asarray(np.full(5, k, "f4"), device=device)
        loop = [x, (x + 1).numpy()]
        loop.append(loop)
        del x, loop
        gc.collect()
        x = ruda.asarray(np.full(5, k + 10, "f4"), device=device)
        assert (x + 1).tolist() == [k + 11] * 5


def test_after_an_error_of_memory_there_is_memory(device):
    with pytest.raises(MemoryError):
        ruda.empty((1 << 40, 1 << 20), device=device)
    x = ruda.ones((2, 2), device=device)
    assert (x + 1).tolist() == [[2, 2], [2, 2]]


def test_a_huge_broadcast_costs_nothing_until_it_is_written_out(device):
    x = ruda.broadcast_to(ruda.ones((), device=device), (1 << 24, 1 << 24))
    assert x.shape == (1 << 24, 1 << 24) and x[5, :3].tolist() == [1, 1, 1]
    with pytest.raises((MemoryError, ValueError), match=r"(?i)memory|allocate|large|buffer"):
        (x + 1).numpy()
    left, right = ruda.ones((1 << 24, 1), device="cpu"), ruda.ones((1 << 24,), device="cpu")
    with pytest.raises((MemoryError, ValueError), match=r"(?i)memory|allocate|large|buffer"):
        (left * right).numpy()


def test_empty_reductions(device):
    x = ruda.zeros((3, 0), device=device)
    assert ruda.sum(x, axis=1).tolist() == [0, 0, 0] and ruda.prod(x).item() == 1
    assert ruda.all(x).item() is True and ruda.any(x).item() is False
    assert np.isnan(ruda.mean(x).item())
    for call in (ruda.max, ruda.min, ruda.argmax):
        with pytest.raises(ShapeError, match=r"no elements|empty"):
            call(x, axis=1)
    assert ruda.max(x, axis=0).shape == (0,)


# ---- numbers -------------------------------------------------------------------------------------


def test_integers_wrap(device):
    x = ruda.asarray(np.array([127, -128, 100], "i1"), device=device)
    assert (x + 1).tolist() == [-128, -127, 101] and (x * 2).tolist() == [-2, 0, -56]
    assert (-x).tolist() == [-127, -128, -100] and ruda.abs(x).tolist() == [127, -128, 100]
    assert (x // 0).tolist() == [0, 0, 0] and (x % 0).tolist() == [0, 0, 0]
    y = ruda.asarray(np.array([2**31 - 1, -(2**31)], "i4"), device=device)
    assert (y + 1).tolist() == [-(2**31), -(2**31) + 1] and (y // -1).tolist()[1] == -(2**31)


def test_half_floats_overflow_to_infinity(device):
    x = ruda.asarray(np.array([60000, -60000, 1], "f2"), device=device)
    assert (x * 2).tolist() == [np.inf, -np.inf, 2]
    assert (x + x - x).tolist() == [np.inf, -np.inf, 1]
    assert ruda.sum(x[:2] * 0 + 60000).item() == np.inf
    assert ruda.astype(ruda.asarray([1e6, -1e6], device=device), "float16").tolist() == [
        np.inf, -np.inf,
    ]  # fmt: skip


def test_nan_in_orders_and_among_what_is_unique(device):
    x = ruda.asarray([np.nan, 2.0, -np.inf, np.nan, 2.0, np.inf], device=device)
    assert ruda.sort(x)[:4].tolist() == [-np.inf, 2, 2, np.inf]
    assert np.isnan(ruda.sort(x)[4:].numpy()).all()
    found = ruda.unique_counts(x)  # the standard: no NaN is another's equal
    assert found.counts.tolist() == [1, 2, 1, 1, 1] and np.isnan(found.values[3:].numpy()).all()


# ---- mistakes ------------------------------------------------------------------------------------


def test_errors_say_shapes_and_dtypes_at_the_users_line(device):
    x = ruda.ones((2, 3), device=device)
    with pytest.raises(ShapeError, match=r"`add`: shapes \(2, 3\) and \(4,\)"):
        ruda.add(x, ruda.ones(4, device=device))
    with pytest.raises(ShapeError, match=r"\(2, 3\).*\(2, 3\)"):
        x @ x
    with pytest.raises(DTypeError, match=r"`bitwise_and` is not defined for \(float32, float32\)"):
        x & x
    with pytest.raises(DTypeError, match="`less` is not defined for"):
        ruda.less(x + 1j, x)
    with pytest.raises(TypeError, match="a tensor or a number is needed, not str"):
        ruda.add(x, "2")


def test_tensors_of_two_devices_are_named_with_both():
    x, y = ruda.ones(3, device="cpu"), ruda.ones(3, device="sim")
    for call in (lambda: x + y, lambda: ruda.where(x > 0, x, y), lambda: ruda.matmul(x, y)):
        with pytest.raises(DeviceError, match="cpu and sim"):
            call()
    for call in (lambda: ruda.concat([x, y]), lambda: ruda.stack([x, y])):
        with pytest.raises(DeviceError, match="cpu and sim"):
            call()


# ---- writes --------------------------------------------------------------------------------------

OVERLAPS = {
    "forth": lambda x: x.__setitem__(slice(1, None), x[:-1]),
    "back": lambda x: x.__setitem__(slice(None, -1), x[1:]),
    "turned round": lambda x: x.__setitem__(slice(None), x[::-1]),
    "every other": lambda x: x.__setitem__(slice(None, 4), x[::2]),
    "itself": lambda x: x.__setitem__(slice(None), x),
    "sum": lambda x: x.__setitem__(slice(1, None), x[1:] + x[:-1]),
    "chosen": lambda x: x.__setitem__([3, 2, 1, 0], x[[0, 1, 2, 3]]),
}  # fmt: skip


@pytest.mark.parametrize("name", OVERLAPS)
def test_writes_that_overlap_what_is_read(name, device):
    a = np.arange(8.0, dtype="f4")
    x = ruda.asarray(a, device=device)
    OVERLAPS[name](x)
    wanted = a.copy()
    {"chosen": lambda y: y.__setitem__([3, 2, 1, 0], a[[0, 1, 2, 3]])}.get(name, OVERLAPS[name])(
        wanted
    )
    np.testing.assert_array_equal(x.numpy(), wanted)


def test_cycles_through_views_that_are_written(device):
    a = np.arange(9.0, dtype="f4").reshape(3, 3)
    x = ruda.asarray(a, device=device)
    view, column = x.T, x[:, 0]
    for _ in range(3):
        x += view
        view -= column
        column[...] = x[0]
        a += a.T.copy()
        a.T[...] -= a[:, 0].copy()
        a[:, 0] = a[0].copy()
    np.testing.assert_array_equal(x.numpy(), a)
    np.testing.assert_array_equal(view.numpy(), a.T)
    gone = weakref.ref(x._storage)
    gc.disable()
    try:
        del x, view, column
        assert gone() is None  # without the collector: nothing refers to itself
    finally:
        gc.enable()


# ---- much ----------------------------------------------------------------------------------------


def test_very_many_pending_ops():
    """In a chain, and side by side: what waits is bounded in depth, and read piece by piece."""
    x = ruda.zeros(3)
    for _ in range(MANY):
        x = x + 1
    assert x.tolist() == [MANY] * 3
    one = ruda.ones(2)
    many = [one * k for k in range(MANY // 10)]
    total = many[0]
    for y in many[1:]:
        total = total + y
    n = MANY // 10
    np.testing.assert_allclose(total.tolist(), [n * (n - 1) / 2] * 2, rtol=1e-3)
    assert many[-1].tolist() == [n - 1] * 2


def test_threads_that_read_and_write(device):
    """Each thread its own tensor, made of a shared one that is not computed yet."""
    shared = ruda.exp(ruda.zeros((64,), device=device)) + 1
    found, errors = {}, []

    def work(k):
        try:
            mine = shared * k
            for _ in range(5):
                mine[k] = mine[k + 1] + 1
                mine += 1
            found[k] = mine.numpy()
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    for k, mine in found.items():
        wanted = np.full(64, 2 * k + 5.0)
        wanted[k] += 1
        np.testing.assert_array_equal(mine, wanted)


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
def test_interrupted_evaluation_leaves_all_as_it_was(error, device, monkeypatch):
    x = ruda.asarray(np.arange(6.0, dtype="f4"), device=device)
    y = ruda.sqrt(x * x) + 1
    target = ruda.zeros(6, device=device)

    def interrupted(*_):
        raise error

    with monkeypatch.context() as patch:
        for way in ("evaluate", "alone", "found_again", "compute"):  # all that computes
            patch.setattr(execute, way, interrupted)
        for act in (y.numpy, lambda: target.__setitem__(slice(2, 4), y[2:4]), lambda: bool(y[0])):
            with pytest.raises(error):
                act()
    assert x.tolist() == [0, 1, 2, 3, 4, 5] and target.tolist() == [0] * 6
    assert y.tolist() == [1, 2, 3, 4, 5, 6]
    target[2:4] = y[2:4]
    assert target.tolist() == [0, 0, 3, 4, 0, 0]


# ---- large ---------------------------------------------------------------------------------------


def test_lengths_beyond_32_bits():
    """Of one byte that is seen everywhere: elements and memory are counted in 64 bits."""
    n = (1 << 31) + 7
    x = ruda.broadcast_to(ruda.asarray([3], dtype=ruda.int8), (n,))
    assert ruda.sum(x).item() == 3 * n
    assert x[-1].item() == x[n - 1].item() == x[::-1][1 << 31].item() == 3
    assert x[(1 << 31) - 1 :: 4].tolist() == [3, 3]
    rows = x[None, 7:][:, :: 1 << 15]
    assert rows.shape == (1, 1 << 16) and ruda.sum(rows).item() == 3 << 16
    with pytest.raises(IndexError):
        x[n]


def test_sums_of_bytes_are_not_copied_at_the_width_of_their_sum():
    x = ruda.asarray(np.ones(1 << 20, np.int8))
    tracemalloc.start()
    try:
        with ruda.config(fusion="0"):  # a compiler in another thread would be measured, too
            assert ruda.sum(x).item() == 1 << 20
        assert tracemalloc.get_traced_memory()[1] < 1 << 20  # eight bytes an element, it was
    finally:
        tracemalloc.stop()
