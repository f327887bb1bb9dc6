"""Kernels for the 910B class: tiles of the vector unit, against NumPy, on the strict twin."""

import re

import numpy as np
import pytest

import ruda
from ruda import backends
from ruda.backends.base import Launch
from ruda.jit.tools import describe

DEVICE = "ascend-twin:910b"
SIZES = (0, 1, 7, 64, 129, 4097, 50_001)


@ruda.jit
def saxpy(a: np.float32, x, y, out):
    i = ruda.grid(1)
    if i < out.size:
        out[i] = a * x[i] + y[i]


@ruda.jit
def chain(x, out):
    i = ruda.grid(1)
    if i < x.size:
        v = ruda.exp(-abs(x[i])) + ruda.tanh(x[i])
        out[i] = math_free(v) / (1.0 + ruda.sqrt(x[i] * x[i] + 2.0))


@ruda.jit
def math_free(v):
    return max(min(v, 1.5), -0.5) * 3.0 - 1.0


@ruda.jit
def choose(x, y, out):
    i = ruda.grid(1)
    if i < x.size:
        v = y[i]
        if x[i] < 0 or v > 1:
            v = -x[i]
        elif x[i] == 0:
            v = 7.0
        out[i] = v


@ruda.jit
def partly(x, out):
    i = ruda.grid(1)
    if i < x.size:
        if x[i] > 0:
            out[i] = x[i]


@ruda.jit
def divide(x, y, quotient, rest):
    i = ruda.grid(1)
    if i < x.size:
        quotient[i] = x[i] // y[i]
        rest[i] = x[i] % y[i]


@ruda.jit
def integers(x, y, out):
    i = ruda.grid(1)
    if i < x.size:
        v = (x[i] * y[i] - (x[i] << 3)) ^ (y[i] >> 2)
        if x[i] <= y[i]:
            v = ~v
        out[i] = max(v, -x[i]) + abs(y[i])


@ruda.jit
def convert(x, out):
    i = ruda.grid(1)
    if i < x.size:
        out[i] = x[i]


@ruda.jit
def halves(x, y, out):
    i = ruda.grid(1)
    if i < x.size:
        out[i] = x[i] * y[i] + x[i]


@ruda.jit
def inside(x, out):
    i, j = ruda.grid(2)
    if i < out.shape[0] and j < out.shape[1]:
        out[i, j] = 2 * x[i, j] if x[i, j] > 0 else x[i, j]


@ruda.jit
def counted(out):
    i = ruda.grid(1)
    if i < out.size:
        out[i] = 0.5 * i if i % 3 == 1 else -1.0


@ruda.jit
def smooth(x, out):
    i = ruda.grid(1)
    if 0 < i < x.size - 1:
        out[i] = x[i - 1] + 2 * x[i] + x[i + 1]


@ruda.jit
def logic(x, y, out):
    i = ruda.grid(1)
    if i < x.size:
        out[i] = (x[i] and not y[i]) or x[i] != y[i]


def launch(kernel, n, *arguments, block=128):
    with ruda.config(device=DEVICE):
        kernel[max(1, -(-n // block)), block](*arguments)


def draw(rng, n, dtype):
    dtype = np.dtype(dtype)
    if dtype.kind == "b":
        return rng.random(n) < 0.5
    if dtype.kind in "iu":
        low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
        values = rng.integers(low, high, n, dtype, endpoint=True)
        values[::3] = rng.integers(max(low, -9), 9, values[::3].size)
        values[1::7] = rng.choice([low, high], values[1::7].size)
        return values
    return rng.standard_normal(n).astype(dtype)


def text(kernel, types, **options):
    return kernel.source(DEVICE, *types, **options)


@pytest.mark.parametrize("n", SIZES)
def test_saxpy(n, rng):
    x, y, out = draw(rng, n, "f4"), draw(rng, n, "f4"), np.full(n, np.nan, "f4")
    launch(saxpy, n, 2.5, x, y, out)
    np.testing.assert_array_equal(out, np.float32(2.5) * x + y)
    launch(saxpy, n, 2.5, x, x, x)  # in place
    np.testing.assert_array_equal(x, np.float32(2.5) * x_before(x) + x_before(x))


def x_before(x):
    return (x.astype("f8") / 3.5).astype("f4")


@pytest.mark.parametrize("n", SIZES)
def test_functions(n, rng):
    x, out = 3 * draw(rng, n, "f4"), np.full(n, np.nan, "f4")
    launch(chain, n, x, out)
    wide = x.astype("f8")
    v = np.clip(np.exp(-abs(wide)) + np.tanh(wide), -0.5, 1.5) * 3 - 1
    np.testing.assert_allclose(out, v / (1 + np.sqrt(wide * wide + 2)), 4e-6, 4e-7)


def test_tanh_is_near_everywhere():
    x = np.concatenate([np.geomspace(1e-38, 90, 40_000), [0, np.inf]]).astype("f4")
    x = np.concatenate([x, -x, [np.nan]]).astype("f4")
    out = np.empty_like(x)

    launch(hyperbolic, x.size, x, out)
    wanted = np.tanh(x.astype("f8"))
    errors = abs(out - wanted) / np.spacing(abs(wanted).astype("f4")).astype("f8")
    assert np.nanmax(errors) < 2
    assert np.isnan(out[-1]) and (np.signbit(out) == np.signbit(x))[:-1].all()


@ruda.jit
def hyperbolic(x, out):
    i = ruda.grid(1)
    if i < x.size:
        out[i] = ruda.tanh(x[i])


@pytest.mark.parametrize("n", SIZES)
def test_branches_become_selections(n, rng):
    x, y, out = draw(rng, n, "f4"), draw(rng, n, "f4"), np.full(n, np.nan, "f4")
    x[::5], y[2::7] = 0, np.nan
    launch(choose, n, x, y, out)
    wanted = np.where((x < 0) | (y > 1), -x, np.where(x == 0, np.float32(7), y))
    np.testing.assert_array_equal(out, wanted)


@pytest.mark.parametrize("n", SIZES)
def test_a_store_in_some_threads_keeps_the_rest(n, rng):
    x, out = draw(rng, n, "f4"), draw(rng, n, "f4")
    wanted = np.where(x > 0, x, out)
    launch(partly, n, x, out)
    np.testing.assert_array_equal(out, wanted)


@pytest.mark.parametrize("dtype", ["i4", "i2", "i1"])
@pytest.mark.parametrize("n", [1, 4097])
def test_division_of_integers_floors(n, dtype, rng):
    x, y = draw(rng, n, dtype), draw(rng, n, dtype)
    y[::11] = 0
    quotient, rest = np.zeros_like(x), np.zeros_like(x)
    launch(divide, n, x, y, quotient, rest)
    a, b = x.astype("i8"), np.where(y == 0, 1, y).astype("i8")
    np.testing.assert_array_equal(quotient, np.where(y == 0, 0, a // b).astype(dtype))
    np.testing.assert_array_equal(rest, np.where(y == 0, 0, a % b).astype(dtype))


def test_division_where_float_is_off():
    """Neighbours of multiples, over the whole range of divisors."""
    rng = np.random.default_rng(3)
    y = np.concatenate(
        [2 ** np.arange(31), 2 ** np.arange(1, 31) - 1, rng.integers(1, 2**31, 3000)]
    )
    k = rng.integers(0, 2**31, y.size) // y
    x = np.concatenate([np.clip(k * y + d, -(2**31), 2**31 - 1) for d in (-1, 0, 1)])
    x, y = np.concatenate([x, -x, x]), np.tile(np.concatenate([y, y, y]), 3)
    y[-y.size // 3 :] *= -1
    x, y = x.astype("i4"), y.astype("i4")
    quotient, rest = np.zeros_like(x), np.zeros_like(x)
    launch(divide, x.size, x, y, quotient, rest)
    np.testing.assert_array_equal(quotient, x.astype("i8") // y)
    np.testing.assert_array_equal(rest, x.astype("i8") % y)


@pytest.mark.parametrize("n", [1, 130, 4097])
def test_arithmetic_of_integers_wraps(n, rng):
    x, y, out = draw(rng, n, "i4"), draw(rng, n, "i4"), np.zeros(n, "i4")
    launch(integers, n, x, y, out)
    v = (x * y - (x << 3)) ^ (y >> 2)
    v = np.where(x <= y, ~v, v)
    np.testing.assert_array_equal(out, np.maximum(v, -x) + np.abs(y))


@pytest.mark.parametrize(("source", "target"), [
    ("i4", "i1"), ("i4", "u2"), ("u4", "f4"), ("u2", "i1"), ("f4", "i2"), ("f2", "i4"),
    ("f4", "f2"), ("?", "f4"), ("f4", "?"), ("u1", "i2"), ("i2", "?"),
])  # fmt: skip
def test_conversions(source, target, rng):
    n = 1000
    x, out = draw(rng, n, source), np.zeros(n, target)
    if np.dtype(source).kind == "f":
        x = (x * 9000).astype(source)
        x[:5] = np.nan, np.inf, -np.inf, -0.0, 1e-7
    with np.errstate(all="ignore"):
        launch(convert, n, x, out)
        wanted = x.astype(target)
        if np.dtype(source).kind == "f" and np.dtype(target).kind in "iu":  # saturates, NaN is 0
            limits = np.iinfo(target)
            wide = np.trunc(np.nan_to_num(x.astype("f8"), posinf=1e30, neginf=-1e30))
            wanted = np.clip(wide, limits.min, limits.max).astype(target)
    np.testing.assert_array_equal(out, wanted)
    made = describe(convert, DEVICE, (f"{x.dtype}[:]", f"{out.dtype}[:]")).made
    source_text = backends.get(DEVICE).emit(made.function, backends.get(DEVICE).target(DEVICE))
    assert source_text.options["form"] == "S1"


@pytest.mark.parametrize("n", [1, 200, 4097])
def test_half_rounds_each_operation(n, rng):
    x, y, out = draw(rng, n, "f2"), draw(rng, n, "f2"), np.zeros(n, "f2")
    launch(halves, n, x, y, out)
    np.testing.assert_array_equal(out, x * y + x)


@pytest.mark.parametrize("shape", [(1, 1), (3, 200), (37, 5), (5, 10_001)])
def test_rows_are_tiles_where_the_last_axis_is_not_x(shape, rng):
    x, out = draw(rng, shape, "f4"), np.zeros(shape, "f4")
    with ruda.config(device=DEVICE):
        inside[(-(-shape[0] // 8), -(-shape[1] // 16)), (8, 16)](x, out)
    np.testing.assert_array_equal(out, np.where(x > 0, 2 * x, x))


@pytest.mark.parametrize("n", SIZES)
def test_indices_as_numbers(n):
    out = np.zeros(n, "f4")
    launch(counted, n, out)
    i = np.arange(n)
    np.testing.assert_array_equal(out, np.where(i % 3 == 1, 0.5 * i, -1).astype("f4"))


@pytest.mark.parametrize("n", SIZES)
def test_neighbours(n, rng):
    x, out = draw(rng, n, "f4"), np.zeros(n, "f4")
    launch(smooth, n, x, out)
    wanted = np.zeros(n, "f4")
    wanted[1:-1] = x[:-2] + 2 * x[1:-1] + x[2:]
    np.testing.assert_array_equal(out, wanted)


def test_overlapping_arrays_go_element_by_element(rng):
    """Each thread of one block reads its element before any writes: a tile would not know."""
    both = draw(rng, 300, "f4")
    x, out = both[:200], both[37:237]
    before = both.copy()
    launch(saxpy, 37, 2.0, x[:37], x[:37], out[:37])  # beside each other
    np.testing.assert_array_equal(both[37:74], 3 * before[:37])
    launch(partly, 200, x, both[:200])
    np.testing.assert_array_equal(both[:200], np.r_[before[:37], 3 * before[:37], before[74:200]])


@ruda.jit
def one_after_the_other(x, out, last):
    i = ruda.grid(1)
    if i < x.size:
        out[i] = x[i] + 1
        last[i] = x[i] * 2


def test_what_one_name_stores_another_loads(rng):
    x, last = draw(rng, 300, "f4"), np.zeros(300, "f4")
    before = x.copy()
    launch(one_after_the_other, 300, x, x, last)
    np.testing.assert_array_equal(last, (before + 1) * 2)
    launch(one_after_the_other, 300, before, last, last)
    np.testing.assert_array_equal(last, before * 2)


def test_logic_on_bools(rng):
    x, y, out = draw(rng, 1000, "?"), draw(rng, 1000, "?"), np.zeros(1000, "?")
    launch(logic, 1000, x, y, out)
    np.testing.assert_array_equal(out, (x & ~y) | (x != y))


# ---- counts --------------------------------------------------------------------------------------


def counts(kernel, types, grid, block, *arguments):
    made = describe(kernel, DEVICE, types, block=block).made
    backend = backends.get(DEVICE)
    target = backend.target(DEVICE)
    source = backend.emit(made.function, target)
    module = backend.load(backend.compile(source, target), made.function, DEVICE)
    threads = block if isinstance(block, tuple) else (block, 1)
    backend.launcher(module, Launch((grid, 1, 1), (*threads, 1)), None)(*arguments)
    return module.counts, source


def test_saxpy_is_as_short_as_by_hand(rng):
    """The form written by hand has two copies in, one out, and Muls, Add for each tile."""
    n = 40 * 9344 * 2 + 100
    x, y, out = draw(rng, n, "f4"), draw(rng, n, "f4"), np.zeros(n, "f4")
    found, source = counts(saxpy, ("f32", "f32[:]", "f32[:]", "f32[:]"), -(-n // 256), 256,
                           2.5, x, y, out)  # fmt: skip
    tiles = found["copies_out"]
    assert source.options["form"] == "S1"
    assert tiles == -(-n // source.options["tile"])
    assert found["vector_instructions"] == 2 * tiles
    assert found["copies_in"] == 2 * tiles
    assert found["barriers"] == tiles
    assert (found["bytes_in"], found["bytes_out"]) == (8 * n, 4 * n)
    assert found["scalar_reads"] == found["global_reads"] == found["global_writes"] == 0


def test_each_element_is_moved_once(rng):
    n = 30_001
    x, y, out = draw(rng, n, "f4"), draw(rng, n, "f4"), np.zeros(n, "f4")
    found, _ = counts(choose, ("f32[:]",) * 3, -(-n // 256), 256, x, y, out)
    assert (found["bytes_in"], found["bytes_out"]) == (8 * n, 4 * n)


def test_text_of_saxpy_reads_like_the_kernel():
    found = text(saxpy, ("f32", "f32[:]", "f32[:]", "f32[:]"))
    body = re.search(r"    const int64_t tile.*?^}", found, re.S | re.M)[0]
    assert "Muls(" in body and "Add(" in body and body.count("\n") < 30
    assert "// " in body and "out[i] = a * x[i] + y[i]" in body


# ---- rows, blocks, forms -------------------------------------------------------------------------


@ruda.jit
def softmax(x, out):
    i = ruda.grid(1)
    if i >= x.shape[0]:
        return
    top = x[i, 0]
    for j in range(x.shape[1]):
        top = max(top, x[i, j])
    total = np.float32(0)
    for j in range(x.shape[1]):
        total += ruda.exp(x[i, j] - top)
    for j in range(x.shape[1]):
        out[i, j] = ruda.exp(x[i, j] - top) / total


@ruda.jit
def block_sums(x, out):
    tile = ruda.shared.array(128, np.float32)
    t = ruda.threadIdx.x
    i = ruda.grid(1)
    tile[t] = x[i] if i < x.size else 0.0
    ruda.syncthreads()
    k = 64
    while k > 0:
        if t < k:
            tile[t] += tile[t + k]
        ruda.syncthreads()
        k //= 2
    if t == 0:
        ruda.atomic.add(out, 0, tile[0])


@pytest.mark.parametrize("shape", [(1, 1), (5, 7), (3, 1000), (2, 20_001)])
def test_rows_are_reduced(shape, rng):
    x, out = 3 * draw(rng, shape, "f4"), np.full(shape, np.nan, "f4")
    launch(softmax, shape[0], x, out)
    e = np.exp(x.astype("f8") - x.max(1, keepdims=True))
    np.testing.assert_allclose(out, e / e.sum(1, keepdims=True), 4e-6)


@ruda.jit
def layer_norm(x, weight, out):
    i = ruda.grid(1)
    if i < x.shape[0]:
        n = x.shape[1]
        total = np.float32(0)
        for j in range(n):
            total += x[i, j]
        mean = total / n
        variance = np.float32(0)
        for j in range(n):
            d = x[i, j] - mean
            variance += d * d
        scale = 1.0 / ruda.sqrt(variance / n + 1e-5)
        for j in range(n):
            d = x[i, j] - mean
            out[i, j] = d * scale * weight[j]


@ruda.jit
def shares(x, out):
    """What one loop stores, the next one changes."""
    i = ruda.grid(1)
    if i < x.shape[0]:
        total = np.float32(0)
        for j in range(x.shape[1]):
            out[i, j] = ruda.exp(x[i, j])
            total += out[i, j]
        for j in range(x.shape[1]):
            out[i, j] = out[i, j] / total


@ruda.jit
def above_the_mean(x, out):
    """A branch in one of the loops; the row of `out` is in part what it was."""
    i = ruda.grid(1)
    if i < x.shape[0]:
        total = np.float32(0)
        for j in range(x.shape[1]):
            total += x[i, j]
        mean = total / x.shape[1]
        for j in range(x.shape[1]):
            if x[i, j] > mean:
                out[i, j] = x[i, j]
            else:
                out[i, j] = 0.0


@ruda.jit
def other_rows(x, out):
    """The same text of an index is another element after `k` has changed."""
    i = ruda.grid(1)
    if i < out.shape[0]:
        for j in range(x.shape[1]):
            k = 0
            a = x[k, j]
            k = 1
            out[i, j] = a - x[k, j]


@ruda.jit
def two_rows(x, out):
    i = ruda.grid(1)
    if i < out.shape[0]:
        k = 0
        top = x[k, 0]
        for j in range(x.shape[1]):
            top = max(top, x[k, j])
        k = 1
        for j in range(x.shape[1]):
            out[i, j] = x[k, j] - top


SHAPES = [(1, 1), (5, 7), (3, 1000), (2, 20_001), (41, 129), (3, 0)]


@pytest.mark.parametrize("shape", SHAPES)
def test_rows_are_normalised(shape, rng):
    x, weight, out = draw(rng, shape, "f4"), draw(rng, shape[1], "f4"), np.full(shape, np.nan, "f4")
    launch(layer_norm, shape[0], x, weight, out)
    wide = x.astype("f8")
    d = wide - wide.mean(1, keepdims=True) if shape[1] else wide
    wanted = d / np.sqrt((d * d).sum(1, keepdims=True) / max(shape[1], 1) + 1e-5) * weight
    np.testing.assert_allclose(out, wanted, 1e-5, 3e-6)


@pytest.mark.parametrize("shape", SHAPES)
def test_what_a_loop_stores_the_next_one_changes(shape, rng):
    x, out = draw(rng, shape, "f4"), np.full(shape, np.nan, "f4")
    launch(shares, shape[0], x, out)
    e = np.exp(x.astype("f8"))
    np.testing.assert_allclose(out, e / e.sum(1, keepdims=True), 4e-6)
    kept = draw(rng, shape, "f4")
    launch(above_the_mean, shape[0], x, kept)
    mean = x.sum(1, dtype="f8", keepdims=True) / max(shape[1], 1)
    unsure = abs(x - mean) < 1e-6
    np.testing.assert_array_equal(np.where(unsure, 0, kept), np.where((x > mean) & ~unsure, x, 0))


@pytest.mark.parametrize("n", [40, 1000, 20_001])
def test_an_index_by_another_value_is_another_element(n, rng):
    x, out = draw(rng, (2, n), "f4"), np.zeros((3, n), "f4")
    launch(other_rows, 3, x, out)
    np.testing.assert_array_equal(out, np.tile(x[0] - x[1], (3, 1)))
    launch(two_rows, 3, x, out)
    np.testing.assert_array_equal(out, np.tile(x[1] - x[0].max(), (3, 1)))


@pytest.mark.parametrize(("kernel", "read"), [
    (softmax, 1), (layer_norm, 2), (shares, 1), (above_the_mean, 1),
])  # fmt: skip
def test_each_row_is_moved_once(kernel, read, rng):
    """Also with the weights of a layer, which every row reads."""
    shape = (50, 1000)
    x, weight, out = draw(rng, shape, "f4"), draw(rng, shape[1], "f4"), np.zeros(shape, "f4")
    types = ["f32[:, :]", "f32[:, :]"]
    arguments = [x, out]
    if read == 2:
        types.insert(1, "f32[:]")
        arguments.insert(1, weight)
    found, source = counts(kernel, types, 1, 64, *arguments)
    assert source.options["form"] == "S2"
    assert (found["bytes_in"], found["bytes_out"]) == (4 * read * x.size, 4 * x.size)


def test_softmax_is_as_short_as_by_hand(rng):
    """By hand a row is copied in and out once, with ReduceMax, Adds, Exp, ReduceSum and a product
    with the inverse. Without fastmath a division is a division: Duplicate, Div."""
    shape = (50, 1000)
    x, out = draw(rng, shape, "f4"), np.zeros(shape, "f4")
    for fast, instructions in ((True, 5), (False, 6)):
        kernel = ruda.jit(fastmath=fast)(softmax.py_func)
        found, _ = counts(kernel, ("f32[:, :]",) * 2, 1, 64, x, out)
        assert found["vector_instructions"] == instructions * shape[0]
        assert found["copies_in"] == found["copies_out"] == shape[0]
        np.testing.assert_allclose(out.sum(1), 1, 1e-5)


@ruda.jit
def products(a, b, c):
    ours = ruda.shared.array((16, 16), np.float32)
    theirs = ruda.shared.array((16, 16), np.float32)
    tx, ty = ruda.threadIdx.x, ruda.threadIdx.y
    column, row = ruda.blockIdx.x * 16 + tx, ruda.blockIdx.y * 16 + ty
    total = np.float32(0)
    for k0 in range(0, a.shape[1], 16):
        ours[ty, tx] = a[row, k0 + tx] if row < a.shape[0] and k0 + tx < a.shape[1] else 0.0
        theirs[ty, tx] = b[k0 + ty, column] if k0 + ty < b.shape[0] and column < b.shape[1] else 0.0
        ruda.syncthreads()
        for k in range(16):
            total += ours[ty, k] * theirs[k, tx]
        ruda.syncthreads()
    if row < c.shape[0] and column < c.shape[1]:
        c[row, column] = total


@pytest.mark.parametrize("shape", [(1, 1, 1), (16, 16, 16), (33, 20, 50), (40, 64, 17)])
def test_a_row_of_products_is_one_instruction(shape, rng):
    """By hand: Axpy(sums[ty], theirs[k], ours[ty, k]) in loops over ty and k."""
    m, n, k = shape
    a, b, c = draw(rng, (m, k), "f4"), draw(rng, (k, n), "f4"), np.full((m, n), np.nan, "f4")
    with ruda.config(device=DEVICE):
        products[(-(-n // 16), -(-m // 16)), (16, 16)](a, b, c)
    np.testing.assert_allclose(c, a.astype("f8") @ b, 1e-5, 1e-5)
    inner = re.search(r"for \(int64_t k = 0; k < 16; \+\+k\) \{\n(.*?)\}",
                      text(products, ("f32[:, :]",) * 3, block=(16, 16)), re.S)[1]  # fmt: skip
    lines = [s.strip() for s in inner.splitlines() if s.strip() and "//" not in s]
    assert [s.partition("(")[0] for s in lines] == ["Axpy", "PipeBarrier<PIPE_V>"]


@ruda.jit
def softmax_of_long_rows(x, out):
    i = ruda.grid(1)
    top = x[i, 0]
    for j in range(100_000):
        top = max(top, x[i, j])
    for j in range(100_000):
        out[i, j] = ruda.exp(x[i, j] - top)


@ruda.jit
def softmax_of_short_rows(x, out):
    i = ruda.grid(1)
    top = x[i, 0]
    for j in range(1000):
        top = max(top, x[i, j])
    for j in range(1000):
        out[i, j] = ruda.exp(x[i, j] - top)


def test_rows_of_known_length_have_one_form():
    types = ("f32[:, :]", "f32[:, :]")
    told = ruda.explain(softmax_of_long_rows, *types, target="ascend").forms[2]
    fits = re.search(
        r"a row has 100000 elements, the unified buffer keeps rows of up to (\d+)", told
    )
    assert 8_000 < int(fits[1]) < 47_040
    assert "`x` is read 2 times (the least is once)" in told
    told = ruda.explain(softmax_of_short_rows, *types, target="ascend").forms[2]
    assert told.endswith("rows stay in the unified buffer: each element is moved once")
    assert "else" not in text(softmax_of_short_rows, types)


@ruda.jit
def stored_where_positive(x, out):
    tile = ruda.shared.array(128, np.float32)
    t = ruda.threadIdx.x
    for k in range(2):
        if x[t] > k:
            tile[t] = x[t] + k
        ruda.syncthreads()
        if x[t] > k:
            out[k, t] = tile[t]
        ruda.syncthreads()


@ruda.jit
def stored_where_positive_in_dynamic_memory(x, out):
    tile = ruda.shared.array(0, np.float16)
    t = ruda.threadIdx.x
    if x[t] > 0:
        tile[t] = x[t]
    ruda.syncthreads()
    if x[t] > 0:
        out[0, t] = tile[t]


@pytest.mark.parametrize(
    ("kernel", "rounds"),
    [(stored_where_positive, 2), (stored_where_positive_in_dynamic_memory, 1)],
)
def test_an_array_of_the_block_may_be_filled_in_part(kernel, rounds, rng):
    """A tile loads the elements that it leaves as they are, and nobody wrote them before."""
    x = draw(rng, 128, "f2").astype("f4")
    out, wanted = np.full((2, 128), -1, "f4"), np.full((2, 128), -1, "f4")
    for k in range(rounds):
        wanted[k] = np.where(x > k, x + np.float32(k), -1)
    with ruda.config(device=DEVICE):
        kernel[1, 128, 0, 256](x, out)
    np.testing.assert_array_equal(out, wanted)
    assert (
        ruda.explain(kernel, "f32[:]", "f32[:, :]", target="ascend", block=128)
        .forms[1]
        .startswith("Ascend 910B: form S2")
    )


@ruda.jit
def from_one_array_to_another(x):
    first, second = ruda.shared.array(64, np.float32), ruda.shared.array(64, np.float32)
    t = ruda.threadIdx.x
    first[t] = x[63 - t]
    ruda.syncthreads()
    second[t] = first[t]
    ruda.syncthreads()
    x[t] = 2 * second[63 - t]


def test_tiles_that_need_no_buffers_have_a_length(rng):
    x = draw(rng, 64, "f4")
    wanted = x.copy()
    launch(from_one_array_to_another, 1, x, block=64)
    np.testing.assert_array_equal(x, 2 * wanted)
    found = text(from_one_array_to_another, ("f32[:]",), block=64)
    assert "TILE = 0;" not in found and "+= TILE" in found


@pytest.mark.parametrize("n", [1, 128, 1000, 5000])
def test_sums_of_blocks(n, rng):
    x, out = draw(rng, n, "f4"), np.zeros(1, "f4")
    launch(block_sums, n, x, out)
    np.testing.assert_allclose(out[0], x.astype("f8").sum(), 0, 1e-6 * abs(x).sum())


@ruda.jit
def scaled_columns(x, out):
    """A block a column, whose elements lie far apart: no copy gathers them; then a row's."""
    t, column = ruda.threadIdx.x, ruda.blockIdx.x
    kept = ruda.shared.array(64, ruda.float32)
    for r in range(t, x.shape[0], 64):
        out[r, column] = 2 * x[r, column]
    kept[t] = x[column, t]
    ruda.syncthreads()
    out[column, t] = kept[t] + 1


def test_explain_tells_the_form_on_each_chip():
    types = ("f32", "f32[:]", "f32[:]", "f32[:]")
    told = ruda.explain(saxpy, *types, target="ascend").forms
    assert told[0].startswith("Ascend 950: form S0")
    assert told[1].startswith("Ascend 910B: form S1") and "of 188160 bytes" in told[1]
    assert told[2].strip() == "tiles of up to 9344 elements; each element is moved once"
    assert not any("one at a time" in line for line in told)
    told = ruda.explain(scaled_columns, "f32[:, :]", "f32[:, :]", target="ascend", block=64).forms
    assert "form S2" in told[1]
    assert told[3].strip() == "the scalar unit reads elements of `x` one at a time"
    assert told[4].strip() == "the scalar unit writes elements of `out` one at a time"
    told = ruda.explain(softmax, "f32[:, :]", "f32[:, :]", target="ascend").forms
    assert "form S2" in told[1]
    assert re.fullmatch(
        r" *tiles of .*; rows of up to \d+ elements stay in the unified buffer: each element is "
        r"moved once; of longer rows `x` is read 3 times \(the least is once\)", told[2]
    )  # fmt: skip
    assert "one at a time" in told[3]  # x[i, 0]
    assert "the elements of `x` are not neighbours" in told[4]
    told = ruda.explain(wide, "f64[:]", target=DEVICE).forms
    assert told[1] == "Ascend 910B: refused: an Ascend 910B has no float64"


@ruda.jit
def beyond_the_end(x, by, out):
    i = ruda.grid(1)
    if i < out.size:
        v = np.float32(-1)
        if i + by < x.size:
            v = x[i + by]
        w = np.float32(-2)
        if i + 3 < x.size:
            w = x[i + 3]
        out[i] = 10 * v + w


@ruda.jit
def looked_up(x, at, out):
    i = ruda.grid(1)
    if i < out.size:
        v = np.float32(-1)
        if at[i] < x.size:
            v = x[at[i]]
        out[i] = v


@pytest.mark.parametrize("n", [1, 2, 3, 4, 130, 1000])
def test_a_condition_that_guards_a_load(n, rng):
    """A tile whose loads are all inside has it true in every lane, and nothing is selected."""
    x, out = draw(rng, n, "f4"), np.zeros(n + 5, "f4")
    padded = np.concatenate([x, np.full(9, np.nan, "f4")])
    for by in (0, 3):
        launch(beyond_the_end, n + 5, x, by, out)
        v, w = padded[by : by + n + 5], padded[3 : n + 8]
        wanted = np.where(np.isnan(v), -10, 10 * v) + np.where(np.isnan(w), -2, w)
        np.testing.assert_allclose(out, wanted, 1e-6)
    # The first index may count from the end.
    assert text(beyond_the_end, ("f32[:]", "i64", "f32[:]")).count("Select(") == 1
    at = rng.integers(0, n + 2, n + 5, "i4")
    launch(looked_up, n + 5, x, at, out)
    np.testing.assert_array_equal(out, np.where(at < n, padded[np.minimum(at, n)], -1))


def test_tiles_of_a_product_are_copied_without_selections():
    found = text(products, ("f32[:, :]",) * 3, block=(16, 16))
    assert "Select(" not in found and "CompareScalar(" not in found


@ruda.jit
def wide(x):
    i = ruda.grid(1)
    x[i] = x[i] + 1


@ruda.jit
def large_shared(x):
    tile = ruda.shared.array(50_000, np.float32)
    tile[ruda.threadIdx.x] = x[0]
    ruda.syncthreads()
    x[0] = tile[0]


@ruda.jit
def old_value(x):
    x[0] = ruda.atomic.add(x, 1, 1)


@pytest.mark.parametrize(("kernel", "type_", "message"), [
    (wide, "f64[:]", "an Ascend 910B has no float64"),
    (large_shared, "f32[:]", r"needs 20\d+ bytes .*`tile` 200000.*an Ascend 910B has 188160"),
    (old_value, "i32[:]", "no atomic add on int32 in global memory that returns the old value"),
])  # fmt: skip
def test_refused(kernel, type_, message):
    with pytest.raises(ruda.errors.UnsupportedError, match=message):
        kernel.source(DEVICE, type_)


@ruda.jit
def in_double(a: np.float64, x, y, out):
    i = ruda.grid(1)
    if i < x.size:
        v = (x[i] * a + y[i] / 3.0) - x[i]
        if v > 0.5:
            v = ruda.sqrt(v)
        out[i] = v


def test_policies_for_float64(rng):
    x, y = rng.standard_normal(300), rng.standard_normal(300)
    x[:4], y[3:6] = (np.nan, np.inf, -0.0, 1e-310), (np.inf, 1e308, -1e308)
    out = np.zeros(300)
    with pytest.raises(ruda.errors.UnsupportedError, match="has no float64") as caught:
        launch(in_double, 300, 1.1, x, y, out)
    notes = "\n".join(caught.value.__notes__)
    assert "missing='demote'" in notes and "missing='emulate'" in notes
    kernel = ruda.jit(contract=False)(in_double.py_func)
    with np.errstate(all="ignore"):
        wanted = (x * 1.1 + y / 3.0) - x
        wanted = np.where(wanted > 0.5, np.sqrt(wanted), wanted)
    with ruda.config(missing="emulate"):
        launch(kernel, 300, 1.1, x, y, out)
    np.testing.assert_array_equal(out, wanted)
    assert (np.signbit(out) == np.signbit(wanted))[~np.isnan(wanted)].all()
    with ruda.config(missing="demote"):
        launch(kernel, 300, 1.1, x, y, out)
    np.testing.assert_allclose(out[6:], wanted[6:], 1e-5, 1e-6)
    assert (out[6:] != wanted[6:]).any()


@ruda.jit
def shifted(x, k):
    i = ruda.grid(1)
    x[i + k] = 1


def test_a_fault_names_the_users_line_and_spares_the_process():
    x = np.zeros(12, np.float32)
    with pytest.raises(ruda.errors.OutOfBoundsError) as caught:
        launch(shifted, 12, x, 1, block=12)
    assert caught.value.place.line == shifted.py_func.__code__.co_firstlineno + 3
    launch(shifted, 12, x, 0, block=12)
    np.testing.assert_array_equal(x, 1)


@ruda.jit
def conj(x, out):
    i = ruda.grid(1)
    if i < x.size:
        out[i] = x[i]


@ruda.jit
def nextafter(x, out):
    i = ruda.grid(1)
    if i < x.size:
        out[i] = x[i] + 1


@pytest.mark.parametrize("chip", ["ascend-twin", DEVICE])
def test_kernels_may_have_names_of_the_c_library(chip):
    """The linker would take the library's function, which is there first: nothing was computed."""
    x = np.arange(5, dtype=np.float32)
    for kernel, wanted in ((conj, x), (nextafter, x + 1)):
        out = np.full(5, -1, np.float32)
        with ruda.config(device=chip):
            kernel[1, 32](x, out)
        np.testing.assert_array_equal(out, wanted)


@ruda.jit(device=True)
def reflected(x, part, k, c):
    u = ruda.threadIdx.x  # a second name: in one phase a counter, in others a variable
    row = u // 8
    total = 0.0
    for i in range(k + 1 + row, x.shape[0], 4):
        total += x[i, c]
    part[u] = total
    ruda.syncthreads()
    total = x[k, c]
    for q in range(4):
        total += part[q * 8 + u % 8]
    for i in range(k + 1 + row, x.shape[0], 4):
        x[i, c] = x[i, c] - total
    ruda.syncthreads()
    if row == 0:
        x[k, c] = total


@ruda.jit
def columns(x, n):
    part = ruda.shared.array(32, ruda.float32)
    t = ruda.threadIdx.x
    tx = t % 8
    for k in range(n):
        part[t] = x[k, tx] * t
        ruda.syncthreads()
        scale = part[0] + part[31]
        ruda.syncthreads()
        if t < 8:
            x[k, t] = x[k, t] * scale
        ruda.syncthreads()
        reflected(x, part, k, tx)
        ruda.syncthreads()


def test_two_names_of_a_thread(rng):
    x = rng.random((12, 8), dtype=np.float32)
    found = {}
    for device in ("sim", DEVICE):
        found[device] = x.copy()
        with ruda.config(device=device):
            columns[1, 32](found[device], 3)
    np.testing.assert_array_equal(found[DEVICE], found["sim"])
