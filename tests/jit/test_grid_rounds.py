"""Barriers of the whole grid inside loops and branches that only scalars of the launch decide."""

import numpy as np
import pytest

import ruda
from ruda.errors import UnsupportedError

ROUNDS = (0, 1, 7)


@ruda.jit
def heat(u, v, n):
    i = ruda.grid(1)
    for _ in range(n):
        if 0 < i < u.size - 1:
            v[i] = u[i] + (u[i - 1] - 2 * u[i] + u[i + 1]) / 4
        ruda.cg.this_grid().sync()
        if 0 < i < u.size - 1:
            u[i] = v[i]
        ruda.cg.this_grid().sync()


@ruda.jit
def heat_by_parity(u, v, n):
    i = ruda.grid(1)
    for k in range(n):
        if k % 2 == 0:
            if 0 < i < u.size - 1:
                v[i] = u[i] + (u[i - 1] - 2 * u[i] + u[i + 1]) / 4
        elif 0 < i < u.size - 1:
            u[i] = v[i] + (v[i - 1] - 2 * v[i] + v[i + 1]) / 4
        ruda.cg.this_grid().sync()


def heat_on_host(u, n):
    for _ in range(n):
        u[1:-1] = u[1:-1] + (u[:-2] - 2 * u[1:-1] + u[2:]) / 4
    return u


@pytest.mark.parametrize("n", ROUNDS)
def test_grid_barrier_in_the_loop_of_a_heat_equation(device, n):
    u = (np.arange(100) % 7 * 1024).astype(np.float32)
    expected = heat_on_host(u.copy(), n)
    a, b, c, d = u.copy(), u.copy(), u.copy(), u.copy()
    with ruda.config(device=device):
        heat[4, 32](a, b, n)
        heat_by_parity[4, 32](c, d, n)
    np.testing.assert_array_equal(a, expected)
    np.testing.assert_array_equal(d if n % 2 else c, expected)


@ruda.jit
def nested(x, y, outer, inner, out):
    i = ruda.grid(1)
    total = 0
    for a in range(outer - 1, -1, -1):
        for b in range(0, 2 * inner, 2):
            y[i] = x[i] + a * 100 + b
            ruda.cg.this_grid().sync()
            total += y[x.size - 1 - i]
            ruda.cg.this_grid().sync()
        if a > 0:
            x[i] += 1
            ruda.cg.this_grid().sync()
    out[i] = total


@pytest.mark.parametrize(("outer", "inner"), [(0, 3), (1, 1), (3, 2), (2, 0)])
def test_grid_barrier_in_nested_loops(device, outer, inner):
    x = np.arange(64, dtype=np.int32)
    y, out = np.zeros_like(x), np.full_like(x, -1)
    expected, now = np.zeros_like(x), x.copy()
    for a in range(outer - 1, -1, -1):
        for b in range(0, 2 * inner, 2):
            expected += now[::-1] + a * 100 + b
        now += a > 0
    with ruda.config(device=device):
        nested[4, 16](x, y, outer, inner, out)
    np.testing.assert_array_equal(out, expected)
    np.testing.assert_array_equal(x, now)


@ruda.jit
def in_a_branch(x, y, twice):
    i = ruda.grid(1)
    mine = x[i]
    if twice:
        y[i] = mine
        ruda.cg.this_grid().sync()
        mine += y[x.size - 1 - i]
    else:
        mine = -mine
    x[i] = mine


@pytest.mark.parametrize("twice", [False, True])
def test_grid_barrier_in_a_uniform_branch(device, twice):
    x = np.arange(48, dtype=np.int32)
    expected = x + x[::-1] if twice else -x
    with ruda.config(device=device):
        in_a_branch[3, 16](x, np.zeros_like(x), twice)
    np.testing.assert_array_equal(x, expected)


@ruda.jit
def leaves(x, y, n, stop):
    i = ruda.grid(1)
    if i % 5 == 1:
        return
    for k in range(n):
        if k == stop:
            break
        if i == k + 2:
            return
        y[k, i] = x[i] + k
        ruda.cg.this_grid().sync()
        if k == 1:
            continue
        x[i] += y[k, (i // 5 * 5 + 10) % x.size]
        ruda.cg.this_grid().sync()
    x[i] = -x[i]


@pytest.mark.parametrize(("n", "stop"), [(0, 9), (4, 9), (6, 3)])
def test_returned_threads_stay_out_of_rounds_of_a_grid_barrier(device, n, stop):
    x = np.arange(40, dtype=np.int32)
    now, y = x.copy(), np.zeros((8, 40), np.int32)
    here = np.arange(40) % 5 != 1
    for k in range(min(n, stop)):
        here[k + 2] = False
        y[k, here] = now[here] + k
        if k != 1:
            other = (np.arange(40) // 5 * 5 + 10) % 40
            now[here] += y[k, other][here]
    now[here] *= -1
    with ruda.config(device=device):
        leaves[5, 8](x, np.zeros((8, 40), np.int32), n, stop)
    np.testing.assert_array_equal(x, now)


@ruda.jit
def halving(x, y, n):
    """Sums in n <- n // 2 steps; `kept` is assigned by some threads in some rounds only."""
    i = ruda.grid(1)
    kept = -1
    width = n // 2
    while width > 0:
        if i < width:
            x[i] += x[i + width]
        if i == width:
            kept = width
        width //= 2
        ruda.cg.this_grid().sync()
    y[i] = kept


@pytest.mark.parametrize("n", [1, 64])
def test_grid_barrier_in_a_while_loop(device, n):
    x = np.arange(64, dtype=np.int32)
    y = np.full_like(x, -7)
    expected = np.where((x > 0) & (x < n) & (x & (x - 1) == 0), x, -1)
    with ruda.config(device=device):
        halving[8, 8](x, y, n)
    assert x[0] == np.arange(n).sum()
    np.testing.assert_array_equal(y, expected)


@ruda.jit
def sum_in_rounds(x, partial, n):
    i, t = ruda.grid(1), ruda.threadIdx.x
    for _ in range(n):
        tile = ruda.shared.array(16, ruda.int32)
        tile[t] = x[i]
        ruda.syncthreads()
        if t == 0:
            total = 0
            for k in range(16):
                total += tile[k]
            partial[ruda.blockIdx.x] = total
        ruda.cg.this_grid().sync()
        total = 0
        for b in range(ruda.gridDim.x):
            total += partial[b]
        x[i] = total % 1000 + i
        ruda.cg.this_grid().sync()


def test_grid_barrier_around_shared_memory_of_a_round(device):
    x = np.arange(80, dtype=np.int32)
    now = x.copy()
    for _ in range(3):
        now = (now.sum() % 1000 + np.arange(80)).astype(np.int32)
    with ruda.config(device=device):
        sum_in_rounds[5, 16](x, np.zeros(5, np.int32), 3)
    np.testing.assert_array_equal(x, now)


@ruda.jit
def two_loops(x, y, n, gap):
    """Both loops and the end use `k`; the loops' ends are assigned, the second loop is broken."""
    i = ruda.grid(1)
    k, most = -1, n
    for k in range(n):
        y[i] = x[i] + k
        ruda.cg.this_grid().sync()
        x[i] = y[x.size - 1 - i]
        ruda.cg.this_grid().sync()
    if gap > 1:
        most = 2 * n + x.shape[0] // 100
    for k in range(most, -1, -gap):
        assert k >= 0, "a round too many"
        ruda.cg.this_grid().sync()
        if k < n:
            break
        x[i] -= k * ruda.gridDim.x
    n -= 1
    ruda.cg.this_grid().sync()
    x[i] += 1000 * k + 100 * n


@pytest.mark.parametrize(("n", "gap"), [(0, 1), (3, 1), (5, 2)])
def test_grid_barrier_in_two_loops_that_share_a_variable(device, n, gap):
    x = np.arange(32, dtype=np.int64)
    now, k, most = x.copy(), -1, n
    for k in range(n):
        now = now[::-1] + k
    if gap > 1:
        most = 2 * n
    for k in range(most, -1, -gap):
        if k < n:
            break
        now = now - k * 4
    now = now + 1000 * k + 100 * (n - 1)
    with ruda.config(device=device):
        two_loops[4, 8](x, np.zeros_like(x), n, gap)
    np.testing.assert_array_equal(x, now)


@ruda.jit
def by_floats(x, start, factor):
    i = ruda.grid(1)
    width = start
    while True:
        width *= factor
        if not width > 0.1:
            break
        x[i] += 1
        ruda.cg.this_grid().sync()


@pytest.mark.parametrize("start", [1.0, 0.0, np.nan])
def test_grid_barrier_in_a_loop_that_a_float_ends(device, start):
    x = np.zeros(16, np.int32)
    with ruda.config(device=device):
        by_floats[2, 8](x, start, 0.5)
    np.testing.assert_array_equal(x, 3 if start == 1 else 0)


@ruda.jit
def until_small(x, y):
    i = ruda.grid(1)
    while y[0] > 0:
        ruda.cg.this_grid().sync()
        if i == 0:
            y[0] -= 1
        ruda.cg.this_grid().sync()


@ruda.jit
def carried_tile(x, y):
    tile = ruda.shared.array(1, ruda.int32)
    for _ in range(3):
        tile[0] += 1
        ruda.cg.this_grid().sync()
    x[0] = 1


@ruda.jit
def returns_in_while(x, y):
    k = 0
    while k < 5:
        if x[0] > 3:
            return
        k += 1
        ruda.cg.this_grid().sync()


@pytest.mark.only_on("cpu", "wgpu", "ascend-twin", what="barriers of the grid by launches")
@pytest.mark.parametrize(
    ("kernel", "message"),
    [
        (until_small, "rests on more than scalar arguments"),
        (carried_tile, "outlives a barrier of the grid"),
        (returns_in_while, "a `return` in a `while`"),
    ],
)
def test_refused_around_a_grid_barrier(device, kernel, message):
    x = np.zeros(8, np.int32)
    with ruda.config(device=device), pytest.raises(UnsupportedError, match=message):
        kernel[2, 4](x, x.copy())


def test_grid_barrier_in_a_loop_over_many_blocks(device):
    if device == "sim":
        pytest.skip("a thread at a time")
    u = np.random.default_rng(3).integers(0, 1 << 10, 100_000).astype(np.float32)
    expected = heat_on_host(u.copy(), 5)
    with ruda.config(device=device):
        heat[-(-u.size // 128), 128](u, np.zeros_like(u), 5)
    np.testing.assert_allclose(u, expected, rtol=1e-6)
