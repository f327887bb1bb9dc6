"""Whole algorithms as people write them for GPUs: scans, sorts, products, simulations."""

import math

import numpy as np

import ruda
from tests.jit.case import Case, InOut, Near, Out
from tests.jit.data import integers, normal, uniform

BLOCK = 64
TILE = 8


def tiles(extent, tile=TILE):
    return max(1, -(-extent // tile))


@ruda.jit
def hillis_steele_scan(x, out, sums):
    buffer = ruda.shared.array((2, BLOCK), ruda.int32)
    t = ruda.threadIdx.x
    i = ruda.grid(1)
    buffer[0, t] = x[i] if i < x.size else 0
    ruda.syncthreads()
    source = 0
    distance = 1
    while distance < BLOCK:
        value = buffer[source, t]
        if t >= distance:
            value += buffer[source, t - distance]
        buffer[1 - source, t] = value
        source = 1 - source
        distance *= 2
        ruda.syncthreads()
    if i < x.size:
        out[i] = buffer[source, t]
    if t == BLOCK - 1:
        sums[ruda.blockIdx.x] = buffer[source, t]


def scanned_blocks(x):
    padded = np.zeros(tiles(x.size, BLOCK) * BLOCK, np.int64)
    padded[: x.size] = x
    scans = np.cumsum(padded.reshape(-1, BLOCK), axis=1)
    return scans.ravel()[: x.size], scans[:, -1]


@ruda.jit
def blelloch_scan(x, out):
    tree = ruda.shared.array(2 * BLOCK, ruda.float64)
    t = ruda.threadIdx.x
    start = ruda.blockIdx.x * 2 * BLOCK
    tree[2 * t] = x[start + 2 * t]
    tree[2 * t + 1] = x[start + 2 * t + 1]
    offset = 1
    active = BLOCK
    while active > 0:
        ruda.syncthreads()
        if t < active:
            a = offset * (2 * t + 1) - 1
            b = offset * (2 * t + 2) - 1
            tree[b] += tree[a]
        offset *= 2
        active //= 2
    if t == 0:
        tree[2 * BLOCK - 1] = 0
    active = 1
    while active <= BLOCK:
        offset //= 2
        ruda.syncthreads()
        if t < active:
            a = offset * (2 * t + 1) - 1
            b = offset * (2 * t + 2) - 1
            moved = tree[a]
            tree[a] = tree[b]
            tree[b] += moved
        active *= 2
    ruda.syncthreads()
    out[start + 2 * t] = tree[2 * t]
    out[start + 2 * t + 1] = tree[2 * t + 1]


def exclusive_scan(x):
    rows = x.reshape(-1, 2 * BLOCK)
    return (np.cumsum(rows, axis=1) - rows).ravel()


@ruda.jit
def bitonic_sort(x):
    tile = ruda.shared.array(BLOCK, ruda.float32)
    t = ruda.threadIdx.x
    i = ruda.grid(1)
    tile[t] = x[i]
    ruda.syncthreads()
    size = 2
    while size <= BLOCK:
        stride = size // 2
        while stride > 0:
            partner = t ^ stride
            if partner > t:
                ascending = (t & size) == 0
                if (tile[t] > tile[partner]) == ascending:
                    tile[t], tile[partner] = tile[partner], tile[t]
            ruda.syncthreads()
            stride //= 2
        size *= 2
    x[i] = tile[t]


@ruda.jit
def odd_even_sort(x):
    tile = ruda.shared.array(BLOCK, ruda.int32)
    t = ruda.threadIdx.x
    i = ruda.grid(1)
    tile[t] = x[i]
    ruda.syncthreads()
    for turn in range(BLOCK):
        if t % 2 == turn % 2 and t + 1 < BLOCK:
            low = min(tile[t], tile[t + 1])
            high = max(tile[t], tile[t + 1])
            tile[t] = low
            tile[t + 1] = high
        ruda.syncthreads()
    x[i] = tile[t]


@ruda.jit
def rank_sort(x, out):
    i = ruda.grid(1)
    if i < x.size:
        rank = 0
        for k in range(x.size):
            if x[k] < x[i] or (x[k] == x[i] and k < i):
                rank += 1
        out[rank] = x[i]


@ruda.jit
def tiled_matmul(a, b, c):
    left = ruda.shared.array((TILE, TILE), ruda.float32)
    right = ruda.shared.array((TILE, TILE), ruda.float32)
    tx = ruda.threadIdx.x
    ty = ruda.threadIdx.y
    column, row = ruda.grid(2)
    total = ruda.float32(0)
    for tile in range((a.shape[1] + TILE - 1) // TILE):
        left[ty, tx] = 0
        right[ty, tx] = 0
        if row < a.shape[0] and tile * TILE + tx < a.shape[1]:
            left[ty, tx] = a[row, tile * TILE + tx]
        if column < b.shape[1] and tile * TILE + ty < b.shape[0]:
            right[ty, tx] = b[tile * TILE + ty, column]
        ruda.syncthreads()
        for k in range(TILE):
            total += left[ty, k] * right[k, tx]
        ruda.syncthreads()
    if row < c.shape[0] and column < c.shape[1]:
        c[row, column] = total


@ruda.jit
def simple_matmul(a, b, c):
    column, row = ruda.grid(2)
    if row < c.shape[0] and column < c.shape[1]:
        total = 0.0
        for k in range(a.shape[1]):
            total += a[row, k] * b[k, column]
        c[row, column] = total


@ruda.jit
def register_blocked_matmul(a, b, c, rows: ruda.constexpr):
    column = ruda.grid(1)
    first = ruda.blockIdx.y * rows
    if column < c.shape[1]:
        totals = ruda.local.array(rows, ruda.float32)
        for r in range(rows):
            totals[r] = 0
        for k in range(a.shape[1]):
            value = b[k, column]
            for r in ruda.unroll(range(rows)):
                if first + r < a.shape[0]:
                    totals[r] += a[first + r, k] * value
        for r in range(rows):
            if first + r < a.shape[0]:
                c[first + r, column] = totals[r]


def product(a, b, *rest):
    a, b = np.float64(a), np.float64(b)
    return Near(a @ b, np.abs(a) @ np.abs(b))


def matmul_case(kernel, sizes=(1, 7, 24), **options):
    return Case(
        kernel,
        lambda rng, n: (normal(rng, n, n + 3), normal(rng, n + 3, n + 1), Out((n, n + 1))),
        product,
        grid=lambda n: (tiles(n + 1), tiles(n)),
        block=(TILE, TILE),
        sizes=sizes,
        small=10,
        ulps=32,
        **options,
    )


@ruda.jit
def gemv_row_per_warp(a, x, y):
    row = ruda.grid(1) // 32
    lane = ruda.laneid
    total = ruda.float32(0)
    if row < a.shape[0]:
        for k in range(lane, a.shape[1], 32):
            total += a[row, k] * x[k]
    for k in range(5):
        total += ruda.shfl_down_sync(0xFFFFFFFF, total, 16 >> k)
    if lane == 0 and row < a.shape[0]:
        y[row] = total


@ruda.jit
def sparse_matvec(starts, columns, values, x, y):
    row = ruda.grid(1)
    if row < y.size:
        total = ruda.float64(0)
        for k in range(starts[row], starts[row + 1]):
            total += values[k] * x[columns[k]]
        y[row] = total


def sparse_arguments(rng, n):
    counts = rng.integers(0, 5, n)
    starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    columns = rng.integers(0, max(n, 1), starts[-1]).astype(np.int32)
    values = rng.integers(-9, 9, starts[-1]).astype(np.float32)
    return starts, columns, values, integers(rng, n, least=-99, most=99), Out(n, np.float64)


def sparse_product(starts, columns, values, x):
    dense = np.zeros((x.size, x.size))
    np.add.at(dense, (np.repeat(np.arange(x.size), np.diff(starts)), columns), values)
    return dense @ x


@ruda.jit
def softmax_rows(x, out):
    scratch = ruda.shared.array(32, ruda.float32)
    row = ruda.blockIdx.x
    t = ruda.threadIdx.x
    largest = ruda.float32(-math.inf)
    for k in range(t, x.shape[1], 32):
        largest = max(largest, x[row, k])
    scratch[t] = largest
    ruda.syncthreads()
    for k in range(32):
        largest = max(largest, scratch[k])
    ruda.syncthreads()
    total = ruda.float32(0)
    for k in range(t, x.shape[1], 32):
        total += math.exp(x[row, k] - largest)
    scratch[t] = total
    ruda.syncthreads()
    total = 0
    for k in range(32):
        total += scratch[k]
    for k in range(t, x.shape[1], 32):
        out[row, k] = math.exp(x[row, k] - largest) / total


def softmax(x):
    e = np.exp(np.float64(x) - np.float64(x).max(axis=1, keepdims=True))
    value = e / e.sum(axis=1, keepdims=True)
    # The subtraction rounds, exp multiplies its error by the exponent.
    return Near(value, value * (1 + np.abs(x).max()))


@ruda.jit
def layernorm_rows(x, gain, shift, out, epsilon):
    row = ruda.blockIdx.x
    t = ruda.threadIdx.x
    partial = ruda.shared.array(32, ruda.float64)
    total = ruda.float64(0)
    for k in range(t, x.shape[1], 32):
        total += x[row, k]
    partial[t] = total
    ruda.syncthreads()
    mean = ruda.float64(0)
    for k in range(32):
        mean += partial[k]
    mean /= x.shape[1]
    ruda.syncthreads()
    total = 0.0
    for k in range(t, x.shape[1], 32):
        total += (x[row, k] - mean) ** 2
    partial[t] = total
    ruda.syncthreads()
    variance = ruda.float64(0)
    for k in range(32):
        variance += partial[k]
    variance /= x.shape[1]
    scale = 1.0 / math.sqrt(variance + epsilon)
    for k in range(t, x.shape[1], 32):
        out[row, k] = (x[row, k] - mean) * scale * gain[k] + shift[k]


def layernorm(x, gain, shift, epsilon):
    x = np.float64(x)
    normed = (x - x.mean(axis=1, keepdims=True)) / np.sqrt(x.var(axis=1, keepdims=True) + epsilon)
    return Near(normed * gain + shift, np.abs(normed * gain) + np.abs(shift))


@ruda.jit
def nbody_forces(position, mass, force):
    tile = ruda.shared.array((32, 4), ruda.float32)
    t = ruda.threadIdx.x
    i = ruda.grid(1)
    n = mass.size
    fx, fy, fz = ruda.float32(0), ruda.float32(0), ruda.float32(0)
    for start in range(0, n, 32):
        k = start + t
        for axis in range(3):
            tile[t, axis] = position[k, axis] if k < n else 0
        tile[t, 3] = mass[k] if k < n else 0
        ruda.syncthreads()
        if i < n:
            for j in range(32):
                dx = tile[j, 0] - position[i, 0]
                dy = tile[j, 1] - position[i, 1]
                dz = tile[j, 2] - position[i, 2]
                squared = dx * dx + dy * dy + dz * dz + 0.01
                weight = tile[j, 3] / (squared * math.sqrt(squared))
                fx += weight * dx
                fy += weight * dy
                fz += weight * dz
        ruda.syncthreads()
    if i < n:
        force[i, 0] = fx
        force[i, 1] = fy
        force[i, 2] = fz


def forces(position, mass):
    position, mass = np.float64(position), np.float64(mass)
    d = position[None] - position[:, None]
    squared = (d * d).sum(axis=2) + 0.01
    pulls = (mass / squared**1.5)[..., None] * d
    size = (mass / squared**1.5)[..., None] * (np.abs(position[None]) + np.abs(position[:, None]))
    return Near(pulls.sum(axis=1), size.sum(axis=1))


@ruda.jit
def hash32(h):
    h ^= h >> 16
    h *= 0x85EBCA6B
    h ^= h >> 13
    h *= 0xC2B2AE35
    h ^= h >> 16
    return h


@ruda.jit
def monte_carlo_pi(hits, samples):
    i = ruda.grid(1)
    state = ruda.uint32(i)
    inside = 0
    for k in range(samples):
        x = hash32(state * 2 + k * 7919) >> 16
        y = hash32(state * 2 + 1 + k * 104729) >> 16
        if x * x + y * y < 0xFFFE0001:
            inside += 1
    ruda.atomic.add(hits, 0, inside)


def monte_carlo(hits, samples):
    i, k = np.indices((128, samples)).astype(np.uint32)
    x = np_hash32(i * np.uint32(2) + k * np.uint32(7919)) >> np.uint32(16)
    y = np_hash32(i * np.uint32(2) + np.uint32(1) + k * np.uint32(104729)) >> np.uint32(16)
    return hits + np.count_nonzero(x * x + y * y < np.uint32(0xFFFE0001))


def np_hash32(h):
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35), (16, 1)):
        h = (h ^ (h >> np.uint32(shift))) * np.uint32(factor)
    return h


@ruda.jit
def life(world, after):
    j, i = ruda.grid(2)
    height, width = world.shape
    if i < height and j < width:
        alive = 0
        for di in range(-1, 2):
            for dj in range(-1, 2):
                if di != 0 or dj != 0:
                    alive += world[(i + di) % height, (j + dj) % width]
        after[i, j] = alive == 3 or (alive == 2 and world[i, j] == 1)


def next_world(world):
    shifts = [(a, b) for a in (-1, 0, 1) for b in (-1, 0, 1) if (a, b) != (0, 0)]
    alive = sum(np.roll(world.astype(int), s, axis=(0, 1)) for s in shifts)
    return (alive == 3) | ((alive == 2) & (world == 1))


@ruda.jit
def binary_search(sorted_values, wanted, out):
    i = ruda.grid(1)
    if i < wanted.size:
        low = 0
        high = sorted_values.size
        while low < high:
            middle = (low + high) // 2
            if sorted_values[middle] < wanted[i]:
                low = middle + 1
            else:
                high = middle
        out[i] = low


@ruda.jit
def block_maximum_with_index(x, best, where):
    values = ruda.shared.array(BLOCK, ruda.float32)
    places = ruda.shared.array(BLOCK, ruda.int32)
    t = ruda.threadIdx.x
    i = ruda.grid(1)
    values[t] = x[i] if i < x.size else -math.inf
    places[t] = i
    ruda.syncthreads()
    stride = BLOCK // 2
    while stride > 0:
        if t < stride:
            o = t + stride
            if values[o] > values[t] or (values[o] == values[t] and places[o] < places[t]):
                values[t] = values[o]
                places[t] = places[o]
        ruda.syncthreads()
        stride //= 2
    if t == 0:
        best[ruda.blockIdx.x] = values[0]
        where[ruda.blockIdx.x] = places[0]


def block_argmax(x):
    padded = np.full(tiles(x.size, BLOCK) * BLOCK, -np.inf, np.float32)
    padded[: x.size] = x
    rows = padded.reshape(-1, BLOCK)
    return rows.max(axis=1), rows.argmax(axis=1) + np.arange(len(rows)) * BLOCK


@ruda.jit
def jacobi_step(u, f, out, spacing):
    j, i = ruda.grid(2)
    if 0 < i < u.shape[0] - 1 and 0 < j < u.shape[1] - 1:
        around = u[i - 1, j] + u[i + 1, j] + u[i, j - 1] + u[i, j + 1]
        out[i, j] = 0.25 * (around - spacing * spacing * f[i, j])


def jacobi(u, f, out, spacing):
    around = u[:-2, 1:-1] + u[2:, 1:-1] + u[1:-1, :-2] + u[1:-1, 2:]
    out[1:-1, 1:-1] = 0.25 * (around - spacing * spacing * f[1:-1, 1:-1])
    return out


@ruda.jit
def levenshtein(words, lengths, wanted, out):
    i = ruda.grid(1)
    if i < out.size:
        row = ruda.local.array(9, ruda.int32)
        n = wanted.size
        for k in range(n + 1):
            row[k] = k
        for a in range(lengths[i]):
            corner = row[0]
            row[0] = a + 1
            for b in range(n):
                cost = corner if words[i, a] == wanted[b] else corner + 1
                corner = row[b + 1]
                row[b + 1] = min(cost, min(row[b], row[b + 1]) + 1)
        out[i] = row[n]


def distances(words, lengths, wanted):
    def distance(a, b):
        row = list(range(len(b) + 1))
        for i, x in enumerate(a, 1):
            corner, row[0] = row[0], i
            for j, y in enumerate(b, 1):
                corner, row[j] = row[j], min(corner + (x != y), row[j] + 1, row[j - 1] + 1)
        return row[-1]

    return [distance(w[:n].tolist(), wanted.tolist()) for w, n in zip(words, lengths, strict=True)]


@ruda.jit
def black_scholes(price, strike, years, call, rate, volatility):
    i = ruda.grid(1)
    if i < call.size:
        root = math.sqrt(years[i])
        d1 = (math.log(price[i] / strike[i]) + (rate + 0.5 * volatility**2) * years[i]) / (
            volatility * root
        )
        d2 = d1 - volatility * root
        discount = math.exp(-rate * years[i])
        call[i] = price[i] * cumulative(d1) - strike[i] * discount * cumulative(d2)


@ruda.jit
def cumulative(x):
    return 0.5 * math.erfc(-x * 0.7071067811865476)


def call_prices(price, strike, years, rate, volatility):
    erfc = np.vectorize(math.erfc, otypes=[float])
    root = np.sqrt(years)
    d1 = (np.log(price / strike) + (rate + 0.5 * volatility**2) * years) / (volatility * root)
    d2 = d1 - volatility * root
    up = price * 0.5 * erfc(-d1 * 0.7071067811865476)
    down = strike * np.exp(-rate * years) * 0.5 * erfc(-d2 * 0.7071067811865476)
    return Near(up - down, price + strike)


CASES = [
    Case(
        hillis_steele_scan,
        lambda rng, n: (
            integers(rng, n, least=-999, most=999),
            Out(n, np.int32),
            Out(tiles(n, BLOCK), np.int32),
        ),
        scanned_blocks,
        sizes=(0, 1, 7, 64, 300),
        small=100,
    ),
    Case(
        blelloch_scan,
        lambda rng, n: (integers(rng, 2 * n * BLOCK).astype(np.float64), Out(2 * n * BLOCK, float)),
        exclusive_scan,
        grid=lambda n: n,
        block=BLOCK,
        sizes=(1, 3),
        small=1,
    ),
    Case(
        bitonic_sort,
        lambda rng, n: (InOut(normal(rng, n * BLOCK)),),
        lambda x: np.sort(x.reshape(-1, BLOCK), axis=1).ravel(),
        grid=lambda n: n,
        block=BLOCK,
        sizes=(1, 3),
        small=1,
    ),
    Case(
        odd_even_sort,
        lambda rng, n: (InOut(integers(rng, n * BLOCK)),),
        lambda x: np.sort(x.reshape(-1, BLOCK), axis=1).ravel(),
        grid=lambda n: n,
        block=BLOCK,
        sizes=(1, 3),
        small=1,
    ),
    Case(
        rank_sort,
        lambda rng, n: (integers(rng, n, least=-20, most=20), Out(n, np.int32)),
        np.sort,
        sizes=(0, 1, 7, 100),
    ),
    matmul_case(tiled_matmul),
    matmul_case(simple_matmul),
    Case(
        register_blocked_matmul,
        lambda rng, n: (normal(rng, n, n + 3), normal(rng, n + 3, n + 1), Out((n, n + 1)), 4),
        product,
        grid=lambda n: (tiles(n + 1, 32), tiles(n, 4)),
        block=32,
        sizes=(1, 7, 20),
        small=7,
        ulps=32,
    ),
    Case(
        gemv_row_per_warp,
        lambda rng, n: (normal(rng, n, 70), normal(rng, 70), Out(n)),
        product,
        grid=lambda n: tiles(n, 2),
        block=64,
        sizes=(1, 7, 32),
        small=7,
        ulps=32,
    ),
    Case(sparse_matvec, sparse_arguments, sparse_product, sizes=(0, 1, 7, 200)),
    Case(
        softmax_rows,
        lambda rng, n: (normal(rng, n, 2 * n + 1) * 5, Out((n, 2 * n + 1))),
        softmax,
        grid=lambda n: n,
        block=32,
        sizes=(1, 7, 33),
        small=7,
        ulps=16,
    ),
    Case(
        layernorm_rows,
        lambda rng, n: (
            normal(rng, n, 2 * n + 1),
            normal(rng, 2 * n + 1),
            normal(rng, 2 * n + 1),
            Out((n, 2 * n + 1)),
            1e-5,
        ),
        layernorm,
        grid=lambda n: n,
        block=32,
        sizes=(1, 7, 33),
        small=7,
        ulps=4,
    ),
    Case(
        nbody_forces,
        lambda rng, n: (normal(rng, n, 3), np.abs(normal(rng, n)), Out((n, 3))),
        forces,
        block=32,
        sizes=(1, 7, 50),
        small=7,
        ulps=64,
    ),
    Case(
        monte_carlo_pi,
        lambda rng, n: (InOut(np.zeros(1, np.int32)), n),
        monte_carlo,
        grid=2,
        sizes=(0, 1, 5),
    ),
    Case(
        life,
        lambda rng, n: (rng.integers(0, 2, (n, n + 2)).astype(np.uint8), Out((n, n + 2), np.uint8)),
        next_world,
        grid=lambda n: (tiles(n + 2), tiles(n)),
        block=(TILE, TILE),
        sizes=(1, 2, 5, 18),
    ),
    Case(
        binary_search,
        lambda rng, n: (
            np.sort(integers(rng, n, least=-50, most=50)),
            integers(rng, 40, least=-60, most=60),
            Out(40, np.int32),
        ),
        np.searchsorted,
        grid=1,
        sizes=(0, 1, 7, 256),
    ),
    Case(
        block_maximum_with_index,
        lambda rng, n: (
            np.rint(normal(rng, n) * 3).astype(np.float32) + np.float32(0),
            Out(tiles(n, BLOCK)),
            Out(tiles(n, BLOCK), np.int64),
        ),
        block_argmax,
        sizes=(0, 1, 7, 64, 200),
        small=64,
    ),
    Case(
        jacobi_step,
        lambda rng, n: (
            normal(rng, n, n + 1, dtype=np.float64),
            normal(rng, n, n + 1, dtype=np.float64),
            InOut(np.zeros((n, n + 1))),
            0.5,
        ),
        lambda *a: Near(jacobi(*a), 4.0),
        grid=lambda n: (tiles(n + 1), tiles(n)),
        block=(TILE, TILE),
        sizes=(2, 3, 7, 20),
        ulps=2,
    ),
    Case(
        levenshtein,
        lambda rng, n: (
            rng.integers(97, 100, (n, 6)).astype(np.uint8),
            rng.integers(0, 7, n),
            rng.integers(97, 100, 8).astype(np.uint8),
            Out(n, np.int32),
        ),
        distances,
        sizes=(1, 7, 100),
    ),
    Case(
        black_scholes,
        lambda rng, n: (
            uniform(rng, 10, 100, n, dtype=np.float64),
            uniform(rng, 10, 100, n, dtype=np.float64),
            uniform(rng, 0.1, 5, n, dtype=np.float64),
            Out(n, np.float64),
            0.02,
            0.3,
        ),
        call_prices,
        ulps=32,
    ),
]
