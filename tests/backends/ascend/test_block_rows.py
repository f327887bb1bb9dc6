"""A block a row, its threads in strides over it: tiles of the row on the 910B, held to `sim`."""

import numpy as np
import pytest

import ruda
from tests.backends.ascend.test_tiles import DEVICE, counts, draw, products

LENGTHS = (0, 1, 65, 1000)


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


def same(kernel, grid, block, inputs, output, rtol=0.0, atol=0.0):
    """What the twin gives is what `sim` gives."""
    found, wanted = output.copy(), output.copy()
    on(DEVICE, kernel, grid, block, *inputs, found)
    on("sim", kernel, grid, block, *inputs, wanted)
    np.testing.assert_allclose(found, wanted, rtol, atol)


@pytest.mark.parametrize("dtype", ["f4", "f2", "i4"])
@pytest.mark.parametrize("n", LENGTHS)
def test_sums_of_rows_are_those_of_the_threads(n, dtype, rng):
    """To the bit: each thread adds in its own order."""
    x = draw(rng, (3, n), dtype)
    same(row_sum, 3, 64, (x,), np.zeros(3, dtype))
    if n:
        same(row_max, 3, 64, (x,), np.zeros(3, dtype))


@pytest.mark.parametrize("block", [1, 48])
def test_any_block(block, rng):
    x = draw(rng, (2, 517), "f4")
    # A block of one thread has the chip's sum, whose order is not that of the loop.
    same(row_sum, 2, block, (x,), np.zeros(2, "f4"), 1e-6 if block == 1 else 0)
    same(softmax, 2, block, (x,), np.zeros_like(x), 2e-6)


@ruda.jit
def layer_norm(x, weight, bias, out):
    """Two sums at a time; the reductions go over threads in another way."""
    sums = ruda.shared.array((2, 64), ruda.float32)
    row, t, n = ruda.blockIdx.x, ruda.threadIdx.x, x.shape[1]
    total, squares = ruda.float32(0), ruda.float32(0)
    for c in range(t, n, ruda.blockDim.x):
        v = ruda.float32(x[row, c])
        total += v
        squares += v * v
    sums[0, t] = total
    sums[1, t] = squares
    ruda.syncthreads()
    for k in (32, 16, 8, 4, 2, 1):
        if t < k:
            sums[0, t] += sums[0, t + k]
            sums[1, t] += sums[1, t + k]
        ruda.syncthreads()
    mean = sums[0, 0] / n
    scale = ruda.float32(1) / ruda.sqrt(sums[1, 0] / n - mean * mean + ruda.float32(1e-5))
    for c in range(t, n, ruda.blockDim.x):
        out[row, c] = (ruda.float32(x[row, c]) - mean) * scale * weight[c] + bias[c]


@ruda.jit
def rms_norm(x, weight, out):
    """Rows under a guard; the block goes on where the row ends."""
    kept = ruda.shared.array(64, ruda.float32)
    row, t = ruda.blockIdx.x, ruda.threadIdx.x
    if row < x.shape[0]:
        squares = ruda.float32(0)
        for c in range(t, x.shape[1], 64):
            squares += ruda.float32(x[row, c]) * ruda.float32(x[row, c])
        kept[t] = squares
        ruda.syncthreads()
        if t == 0:
            for k in range(1, 64):
                kept[0] += kept[k]
        ruda.syncthreads()
        scale = ruda.float32(1) / ruda.sqrt(kept[0] / x.shape[1] + ruda.float32(1e-6))
        for c in range(t, x.shape[1], 64):
            out[row, c] = x[row, c] * scale * weight[c]


NORMS = {"layer_norm": (layer_norm, 2), "rms_norm": (rms_norm, 1), "softmax": (softmax, 0)}
TILE = 12_000  # more than any of these kernels keeps


@pytest.mark.parametrize(
    ("n", "dtype"), [(0, "f4"), (1, "f2"), (65, "f4"), (1000, "f2"), (TILE + 5, "f4")]
)
@pytest.mark.parametrize("name", NORMS)
def test_rows_are_normalised(name, n, dtype, rng):
    kernel, more = NORMS[name]
    x = draw(rng, (1 if n > 9999 else 2, n), dtype)
    weights = [draw(rng, n, dtype) for _ in range(more)]
    with np.errstate(all="ignore"):
        same(kernel, len(x) + (kernel is rms_norm), 64, (x, *weights), np.zeros_like(x),
             1e-5 if dtype == "f4" else 3e-3, 1e-6 if dtype == "f4" else 2e-3)  # fmt: skip


def moved(kernel, shape, rng, *, block=64):
    """Bytes in and out of a launch, its text, and what `explain` says."""
    arity = next((more for k, more in NORMS.values() if k is kernel), None)
    x = draw(rng, shape, "f4")
    inputs = [x, *(draw(rng, shape[1], "f4") for _ in range(arity or 0))]
    out = np.zeros(shape[0] if arity is None else shape, "f4")
    types = [f"f32[{', '.join(':' * a.ndim)}]" for a in (*inputs, out)]
    found, source = counts(kernel, types, shape[0], block, *inputs, out)
    assert found["global_reads"] == 0
    told = "\n".join(ruda.explain(kernel, *types, target="ascend", block=block).forms)
    return (found["bytes_in"], found["bytes_out"]), source, told


@pytest.mark.parametrize("kernel", [row_sum, softmax, rms_norm])
def test_a_row_that_fits_is_moved_once(kernel, rng):
    """And the weights of a layer once a row."""
    rows, n = 5, 3001
    read, _, told = moved(kernel, (rows, n), rng)
    weights = {layer_norm: 2, rms_norm: 1}.get(kernel, 0)
    written = 4 * rows if kernel is row_sum else 4 * rows * n
    assert read == (4 * rows * n * (1 + weights), written)
    assert "each element is moved once" in told


@pytest.mark.parametrize(("kernel", "times"), [(softmax, 3), (layer_norm, 2)])
def test_a_longer_row_is_read_again_and_explain_says_so(kernel, times, rng):
    n = TILE + 1
    read, source, told = moved(kernel, (2, n), rng)
    weights = {layer_norm: 2, rms_norm: 1}.get(kernel, 0)
    assert read == (8 * n * (times + weights), 8 * n)
    limit = source.options["row_limit"]
    assert f"rows of up to {limit} elements stay in the unified buffer: each element is" in told
    assert f"of longer rows `x` is read {times} times (the least is once)" in told
    read, _, _ = moved(kernel, (2, limit), rng)
    assert read == (8 * limit * (1 + weights), 8 * limit)


@ruda.jit
def behind(x, out):
    """A thread stores where its next round loads, if both arrays are one."""
    row, t = ruda.blockIdx.x, ruda.threadIdx.x
    for c in range(t, x.shape[1] - 64, 64):
        out[row, c + 64] = x[row, c] + 1


@pytest.mark.parametrize("n", [1000, TILE + 1])
def test_a_row_may_be_changed_in_place(n, rng):
    """The same array twice is one of the forms with tiles where no tile needs another's work."""
    x = draw(rng, (1 if n > TILE else 2, n), "f4")
    wanted = np.zeros_like(x)
    on("sim", softmax, len(x), 64, x, wanted)
    both = x.copy()
    found, _ = counts(softmax, ("f32[:, :]",) * 2, len(x), 64, both, both)
    np.testing.assert_allclose(both, wanted, 2e-6)
    assert found["bytes_in"] == x.nbytes * (3 if n > TILE else 1) and found["global_reads"] == 0
    wanted = x.copy()
    for first in range(64, n, 64):
        piece = wanted[:, first : first + 64]
        piece[...] = wanted[:, first - 64 : first][:, : piece.shape[1]] + np.float32(1)
    on(DEVICE, behind, len(x), 64, x, x)
    np.testing.assert_array_equal(x, wanted)


@ruda.jit
def three_times(x, out):
    """A loop around a row: each of its rounds copies the row."""
    kept = ruda.shared.array(64, ruda.float32)
    row, t = ruda.blockIdx.x, ruda.threadIdx.x
    scale = ruda.float32(1)
    for turn in range(3):
        total = ruda.float32(0)
        for c in range(t, x.shape[1], 64):
            total += x[row, c] * scale
        kept[t] = total
        ruda.syncthreads()
        scale = kept[0] + kept[63]
        ruda.syncthreads()
        for c in range(t, x.shape[1], 64):
            out[row, c] = x[row, c] - scale + turn


def test_explain_tells_what_is_moved_again(rng):
    _, source, told = moved(layer_norm, (2, 100), rng)
    assert source.options["repeated"] == {"weight": "block", "bias": "block"}
    assert "; `weight` again in each block; `bias` again in each block" in told
    x, out = draw(rng, (2, 100), "f4"), np.zeros((2, 100), "f4")
    found, source = counts(three_times, ("f32[:, :]",) * 2, 2, 64, x, out)
    assert (found["bytes_in"], found["bytes_out"]) == (3 * x.nbytes, 3 * x.nbytes)
    assert source.options["repeated"] == dict.fromkeys(("x", "out"), "round of `turn`")
    same(three_times, 2, 64, (x,), out)
    told = ruda.explain(products, *("f32[:, :]",) * 3, target="ascend", block=(16, 16)).forms[2]
    assert told.endswith("; `a` again in each block along x; `b` again in each block along y")


def test_each_thread_adds_in_its_order(rng):
    """Where the order decides: large numbers that go out against each other."""
    x = (draw(rng, (1, 25_001), "f4") * 10.0 ** rng.integers(-6, 7, (1, 25_001))).astype("f4")
    for block in (24, 256):
        same(row_sum, 1, block, (x,), np.zeros(1, "f4"))


# ---- blocks of several rows, loops over the grid -------------------------------------------------


@ruda.jit
def shares(x, out):
    """Eight rows a block, each under its guard; barriers are for all."""
    kept = ruda.shared.array((8, 32), ruda.float32)
    t, y = ruda.threadIdx.x, ruda.threadIdx.y
    row = ruda.blockIdx.x * 8 + y
    total = ruda.float32(0)
    if row < x.shape[0]:
        for c in range(t, x.shape[1], 32):
            total += ruda.exp(x[row, c])
    kept[y, t] = total
    ruda.syncthreads()
    for k in (16, 8, 4, 2, 1):
        if t < k:
            kept[y, t] += kept[y, t + k]
        ruda.syncthreads()
    if row < x.shape[0]:
        for c in range(t, x.shape[1], 32):
            out[row, c] = ruda.exp(x[row, c]) / kept[y, 0]


@ruda.jit
def in_line(x, out):
    """Rows of threads as one long row."""
    kept = ruda.shared.array(64, ruda.float32)
    row = ruda.blockIdx.x
    t = ruda.threadIdx.y * ruda.blockDim.x + ruda.threadIdx.x
    total = ruda.float32(0)
    for c in range(t, x.shape[1], 64):
        total += x[row, c]
    kept[t] = total
    ruda.syncthreads()
    for c in range(t, x.shape[1], 64):
        out[row, c] = x[row, c] - kept[63 - c % 64]


@ruda.jit
def next_row(x, out):
    """A row of threads looks at what another one has left: they stay together."""
    kept = ruda.shared.array((8, 32), ruda.float32)
    t, y = ruda.threadIdx.x, ruda.threadIdx.y
    total = ruda.float32(0)
    for c in range(t, x.shape[1], 32):
        total += x[y, c]
    kept[y, t] = total
    ruda.syncthreads()
    out[y, t] = kept[(y + 1) % 8, t]


@ruda.jit
def read_back(x, out):
    """A row of threads reads global memory that another one has stored to."""
    t, y = ruda.threadIdx.x, ruda.threadIdx.y
    for c in range(t, x.shape[1], 32):
        out[y, c] = x[y, c]
    ruda.syncthreads()
    for c in range(t, x.shape[1], 32):
        x[y, c] = out[7 - y, c]


@pytest.mark.parametrize("shape", [(1, 1), (19, 601)])
def test_rows_of_threads(shape, rng):
    x = draw(rng, shape, "f4")
    same(shares, -(-shape[0] // 8) + 1, (32, 8), (x,), np.zeros_like(x), 2e-6)
    same(in_line, shape[0], (16, 4), (x,), np.zeros_like(x))
    x, out = draw(rng, (8, shape[1]), "f4"), np.zeros((8, shape[1]), "f4")
    same(next_row, 1, (32, 8), (x,), np.zeros((8, 32), "f4"))
    wanted = x[::-1].copy()
    on(DEVICE, read_back, 1, (32, 8), x, out)
    np.testing.assert_array_equal(x, wanted)


def test_rows_of_threads_are_moved_once(rng):
    x, out = draw(rng, (19, 1001), "f4"), np.zeros((19, 1001), "f4")
    found, _ = counts(shares, ("f32[:, :]",) * 2, 3, (32, 8), x, out)
    assert (found["bytes_in"], found["bytes_out"]) == (x.nbytes, x.nbytes)
    assert found["global_reads"] == 0
    told = ruda.explain(in_line, *("f32[:, :]",) * 2, target="ascend", block=(16, 4)).forms[2]
    assert "rows of up to" not in told and "tiles of up to 128" not in told


@ruda.jit
def scaled(a: np.float32, x, out):
    for i in range(ruda.grid(1), x.size, ruda.gridsize(1)):
        out[i] = a * x[i]


@ruda.jit
def histogram(x, bins):
    for i in range(ruda.grid(1), x.size, ruda.gridsize(1)):
        bins[x[i]] = bins[x[i]] + 1


@pytest.mark.parametrize("n", [0, 1, 777, 50_001])
def test_loops_over_the_grid(n, rng):
    """However few blocks there are, a core has as long a tile as it can."""
    x, out = draw(rng, n, "f4"), np.zeros(n, "f4")
    found, source = counts(scaled, ("f32", "f32[:]", "f32[:]"), 2, 128, 2.5, x, out)
    np.testing.assert_array_equal(out, np.float32(2.5) * x)
    assert source.options["form"] == "S1"
    assert (found["bytes_in"], found["bytes_out"]) == (x.nbytes, x.nbytes)
    assert found["vector_instructions"] == found["copies_in"] == found["copies_out"] <= 40


def test_a_thread_alone_needs_no_atomics(rng):
    bins = np.zeros(5, "i4")
    on(DEVICE, histogram, 1, 1, rng.integers(0, 5, 500, "i4"), bins)
    assert bins.sum() == 500


# ---- what cannot be one loop ---------------------------------------------------------------------


@ruda.jit
def largest(x, out):
    """Where the largest is: two values are kept, and one decides about the other."""
    tops = ruda.shared.array(64, ruda.float32)
    places = ruda.shared.array(64, ruda.int32)
    row, t = ruda.blockIdx.x, ruda.threadIdx.x
    top, place = ruda.float32(-np.inf), 0
    for c in range(t, x.shape[1], 64):
        if x[row, c] > top:
            top = x[row, c]
            place = c
    tops[t] = top
    places[t] = place
    ruda.syncthreads()
    if t == 0:
        for k in range(1, 64):
            if tops[k] > top:
                top = tops[k]
                place = places[k]
        out[row] = place


@ruda.jit
def taken_in_part(x, out):
    """A sum of what passes a test, and a difference; the rest of a row is not touched."""
    sums, rest = ruda.shared.array(64, x.dtype), ruda.shared.array(64, x.dtype)
    row, t = ruda.blockIdx.x, ruda.threadIdx.x
    total, less = x.dtype(0), x.dtype(0)
    for c in range(t + 3, x.shape[1] - 2, 64):
        v = x[row, c]
        if v > 0:
            total += v
        less -= v
    sums[t] = total
    rest[t] = less
    ruda.syncthreads()
    out[row, t] = sums[t] + rest[63 - t]


@ruda.jit
def in_two_steps(x, out):
    """Two additions a round: a thread's order is not that of two passes over the row."""
    kept = ruda.shared.array(64, ruda.float32)
    row, t = ruda.blockIdx.x, ruda.threadIdx.x
    total = ruda.float32(0)
    for c in range(t, x.shape[1], 64):
        total += x[row, c]
        total += x[row, c] * x[row, c]
    kept[t] = total
    ruda.syncthreads()
    out[row, t] = kept[63 - t]


@pytest.mark.parametrize("n", [0, 3, 1001])
def test_other_uses_of_what_a_thread_keeps(n, rng):
    x = draw(rng, (3, n), "f4")
    same(largest, 3, 64, (x,), np.full(3, -1, "i4"))
    same(in_two_steps, 3, 64, (x,), np.zeros((3, 64), "f4"))
    for dtype in ("f4", "f2", "i4"):
        x = draw(rng, (3, n), dtype)
        same(taken_in_part, 3, 64, (x,), np.zeros((3, 64), dtype))


@ruda.jit
def little_room(x, out):
    """Shared memory leaves tiles that are shorter than the block is wide."""
    kept = ruda.shared.array(44_000, ruda.float32)
    row, t = ruda.blockIdx.x, ruda.threadIdx.x
    total = ruda.float32(0)
    for c in range(t, x.shape[1], 1024):
        total += ruda.exp(x[row, c])
    kept[40 * t] = total
    ruda.syncthreads()
    for c in range(t, x.shape[1], 1024):
        out[row, c] = x[row, c] - kept[40]


def test_a_full_buffer_has_shorter_tiles(rng):
    x = draw(rng, (2, 3001), "f4")
    same(little_room, 2, 1024, (x,), np.zeros_like(x), 1e-6, 1e-6)
    told = "\n".join(ruda.explain(little_room, *("f32[:, :]",) * 2, target="ascend",
                                  block=1024).forms)  # fmt: skip
    assert "rounds of the block go one by one: the unified buffer is full" in told


def test_explain_says_why_rounds_go_one_by_one():
    told = "\n".join(ruda.explain(in_two_steps, *("f32[:, :]",) * 2, target="ascend",
                                  block=64).forms)  # fmt: skip
    assert "rounds of the block go one by one: `total_slots` is not only summed up" in told
    told = "\n".join(ruda.explain(row_sum, "f32[:, :]", "f32[:]", target="ascend", block=10).forms)
    assert "rounds of the block go one by one: vectors of 10 float32 do not begin at 32" in told
