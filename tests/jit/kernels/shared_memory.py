"""Shared memory and barriers: what one thread writes, another reads."""

import numpy as np

import ruda
from tests.jit.case import Case, InOut, Near, Out
from tests.jit.data import booleans, integers, normal

BLOCK = 64


def whole_blocks(n, block=BLOCK):
    return max(1, -(-n // block))


@ruda.jit
def reverse_in_block(x, out):
    tile = ruda.shared.array(BLOCK, ruda.float32)
    t = ruda.threadIdx.x
    start = ruda.blockIdx.x * ruda.blockDim.x
    tile[t] = x[start + t]
    ruda.syncthreads()
    out[start + t] = tile[ruda.blockDim.x - 1 - t]


@ruda.jit
def tree_sum(x, out):
    partial = ruda.shared.array(BLOCK, ruda.float64)
    t = ruda.threadIdx.x
    i = ruda.grid(1)
    partial[t] = x[i] if i < x.size else 0.0
    ruda.syncthreads()
    stride = BLOCK // 2
    while stride > 0:
        if t < stride:
            partial[t] += partial[t + stride]
        ruda.syncthreads()
        stride //= 2
    if t == 0:
        out[ruda.blockIdx.x] = partial[0]


def block_sums(x, block=BLOCK):
    padded = np.zeros(whole_blocks(x.size, block) * block)
    padded[: x.size] = x
    rows = padded.reshape(-1, block)
    return Near(rows.sum(axis=1), np.abs(rows).sum(axis=1))


@ruda.jit
def transpose_tiles(x, out):
    tile = ruda.shared.array((8, 9), ruda.float32)
    tx, ty = ruda.threadIdx.x, ruda.threadIdx.y
    column = ruda.blockIdx.x * 8 + tx
    row = ruda.blockIdx.y * 8 + ty
    if row < x.shape[0] and column < x.shape[1]:
        tile[ty, tx] = x[row, column]
    ruda.syncthreads()
    column = ruda.blockIdx.y * 8 + tx
    row = ruda.blockIdx.x * 8 + ty
    if row < x.shape[1] and column < x.shape[0]:
        out[row, column] = tile[tx, ty]


@ruda.jit
def values_live_across_barriers(x, out):
    tile = ruda.shared.array(BLOCK, ruda.int32)
    t = ruda.threadIdx.x
    i = ruda.grid(1)
    mine = x[i] * 3
    double = ruda.float64(mine) / 2.0
    flag = mine > 0
    tile[t] = mine
    ruda.syncthreads()
    other = tile[(t + 1) % BLOCK]
    mine += other
    ruda.syncthreads()
    tile[t] = mine
    ruda.syncthreads()
    if flag:
        out[i] = tile[(t + 2) % BLOCK] + double
    else:
        out[i] = tile[(t + 3) % BLOCK] - double


def lived_across(x):
    rows = x.reshape(-1, BLOCK).astype(np.int64)
    total = 3 * rows + np.roll(3 * rows, -1, axis=1)
    half = 3 * rows / 2
    out = np.where(rows > 0, np.roll(total, -2, axis=1) + half, np.roll(total, -3, axis=1) - half)
    return out.ravel()


@ruda.jit
def local_array_lives_across_a_barrier(x, out):
    tile = ruda.shared.array(BLOCK, ruda.int32)
    mine = ruda.local.array(3, ruda.int32)
    t = ruda.threadIdx.x
    i = ruda.grid(1)
    for k in range(3):
        mine[k] = x[i] + k
    tile[t] = x[i]
    ruda.syncthreads()
    for k in range(3):
        mine[k] += tile[(t + k) % BLOCK]
    ruda.syncthreads()
    out[i] = mine[0] + 10 * mine[1] + 100 * mine[2]


def local_lived(x):
    rows = x.reshape(-1, BLOCK)
    parts = [(rows + k + np.roll(rows, -k, axis=1)) * 10**k for k in range(3)]
    return sum(parts).ravel()


@ruda.jit
def barrier_in_a_loop(x, out, rounds):
    tile = ruda.shared.array((2, BLOCK), ruda.int32)
    t = ruda.threadIdx.x
    i = ruda.grid(1)
    tile[0, t] = x[i]
    ruda.syncthreads()
    for k in range(rounds):
        tile[(k + 1) % 2, t] = tile[k % 2, (t + 1) % BLOCK] + k
        ruda.syncthreads()
    out[i] = tile[rounds % 2, t]


def rotated(x, rounds):
    rows = x.reshape(-1, BLOCK)
    return (np.roll(rows, -rounds, axis=1) + sum(range(rounds))).ravel()


@ruda.jit
def barrier_in_a_uniform_branch(x, out, turn):
    tile = ruda.shared.array(BLOCK, ruda.int32)
    t = ruda.threadIdx.x
    i = ruda.grid(1)
    tile[t] = x[i]
    if turn > 0 or ruda.blockIdx.x % 2 == 1:
        ruda.syncthreads()
        value = tile[BLOCK - 1 - t]
        ruda.syncthreads()
        tile[t] = value + 1
    else:
        tile[t] = 2 * tile[t]
    ruda.syncthreads()
    out[i] = tile[t ^ 1]


def branched(x, turn):
    rows = x.reshape(-1, BLOCK)
    odd = (np.arange(len(rows)) % 2 == 1)[:, None] | (turn > 0)
    rows = np.where(odd, rows[:, ::-1] + 1, 2 * rows)
    return rows[:, np.arange(BLOCK) ^ 1].ravel()


@ruda.jit
def barriers_in_both_arms(x, out):
    tile = ruda.shared.array(BLOCK, ruda.int32)
    t = ruda.threadIdx.x
    i = ruda.grid(1)
    tile[t] = x[i]
    ruda.syncthreads()
    if ruda.blockIdx.x % 2 == 0:
        value = tile[(t + 1) % BLOCK]
        ruda.syncthreads()
        tile[t] = value
        ruda.syncthreads()
        value = tile[(t + 1) % BLOCK]
    else:
        value = tile[(t + 5) % BLOCK]
        ruda.syncthreads()
    out[i] = value


def both_arms(x):
    rows = x.reshape(-1, BLOCK)
    even = (np.arange(len(rows)) % 2 == 0)[:, None]
    return np.where(even, np.roll(rows, -2, axis=1), np.roll(rows, -5, axis=1)).ravel()


@ruda.jit
def early_return_before_a_barrier(x, out):
    tile = ruda.shared.array(BLOCK, ruda.int32)
    t = ruda.threadIdx.x
    i = ruda.grid(1)
    if i >= x.size:
        return
    tile[t] = x[i]
    ruda.syncthreads()
    last = min(BLOCK, x.size - ruda.blockIdx.x * BLOCK) - 1
    out[i] = tile[last - t]


def reversed_blocks(x):
    return np.concatenate([x[k : k + BLOCK][::-1] for k in range(0, max(1, x.size), BLOCK)])


@ruda.jit
def early_return_between_barriers(x, out):
    tile = ruda.shared.array(BLOCK, ruda.int32)
    t = ruda.threadIdx.x
    i = ruda.grid(1)
    tile[t] = x[i]
    ruda.syncthreads()
    value = tile[(t + 1) % BLOCK]
    if t % 4 == 3:
        out[i] = -1
        return
    ruda.syncthreads()
    if t % 4 == 1:
        tile[t] = value
        out[i] = -2
        return
    ruda.syncthreads()
    out[i] = tile[(t + 1) % BLOCK] + value


def between(x):
    rows = x.reshape(-1, BLOCK)
    t = np.arange(BLOCK)
    value = np.roll(rows, -1, axis=1)
    tile = np.where(t % 4 == 1, value, rows)
    out = np.roll(tile, -1, axis=1) + value
    return np.where(t % 4 == 3, -1, np.where(t % 4 == 1, -2, out)).ravel()


@ruda.jit
def return_of_whole_blocks(x, out):
    tile = ruda.shared.array(BLOCK, ruda.int32)
    if ruda.blockIdx.x % 2 == 1:
        return
    t = ruda.threadIdx.x
    i = ruda.grid(1)
    tile[t] = x[i]
    ruda.syncthreads()
    out[i] = tile[BLOCK - 1 - t]


@ruda.jit
def votes_of_the_block(x, out):
    i = ruda.grid(1)
    positive = x[i] > 0
    every = ruda.syncthreads_and(positive)
    some = ruda.syncthreads_or(positive)
    count = ruda.syncthreads_count(positive)
    out[i] = count + (1000 if some else 0) + (10000 if every else 0)


def voted(x):
    rows = x.reshape(-1, BLOCK) > 0
    per_block = rows.sum(axis=1) + 1000 * rows.any(axis=1) + 10000 * rows.all(axis=1)
    return np.repeat(per_block, BLOCK)


@ruda.jit
def votes_after_returns(x, out):
    i = ruda.grid(1)
    if x[i] < -1:
        out[i] = -1
        return
    out[i] = ruda.syncthreads_count(x[i] > 0)


def voted_after_returns(x):
    rows = x.reshape(-1, BLOCK)
    counts = (rows > 0).sum(axis=1)[:, None]
    return np.where(rows < -1, -1, counts).ravel()


@ruda.jit
def dynamic_shared_memory(x, out):
    tile = ruda.shared.array(0, ruda.float32)
    t = ruda.threadIdx.x
    i = ruda.grid(1)
    tile[t] = x[i]
    ruda.syncthreads()
    out[i] = tile[ruda.blockDim.x - 1 - t] + tile.size


@ruda.jit
def dynamic_memory_in_two_parts(x, k, out):
    n = ruda.blockDim.x
    values = ruda.shared.array(0, ruda.float32)
    places = ruda.shared.array(0, ruda.int32)[n:]
    t = ruda.threadIdx.x
    i = ruda.grid(1)
    values[t] = x[i]
    places[t] = k[i]
    ruda.syncthreads()
    out[i] = values[places[t]]


def two_parts(x, k):
    rows = np.arange(x.size) // BLOCK * BLOCK
    return x[rows + k]


@ruda.jit
def barrier_in_a_device_function_caller(x, out):
    tile = ruda.shared.array(BLOCK, ruda.float32)
    i = ruda.grid(1)
    out[i] = exchanged(tile, x[i], 1) + 2 * exchanged(tile, x[i], 3)


@ruda.jit
def exchanged(tile, value, distance):
    t = ruda.threadIdx.x
    tile[t] = value
    ruda.syncthreads()
    other = tile[(t + distance) % BLOCK]
    ruda.syncthreads()
    return other


def exchange(x):
    rows = x.reshape(-1, BLOCK)
    return (np.roll(rows, -1, axis=1) + 2 * np.roll(rows, -3, axis=1)).ravel()


@ruda.jit
def several_shared_arrays(x, y, z, out):
    a = ruda.shared.array(BLOCK, ruda.float32)
    b = ruda.shared.array((BLOCK // 2, 2), ruda.int8)
    c = ruda.shared.array(shape=BLOCK, dtype=ruda.float64)
    flags = ruda.shared.array(BLOCK, ruda.bool_)
    t = ruda.threadIdx.x
    i = ruda.grid(1)
    a[t] = x[i]
    b[t // 2, t % 2] = y[i]
    c[t] = z[i]
    flags[t] = y[i] > 0
    ruda.syncthreads()
    o = BLOCK - 1 - t
    out[i] = a[o] + b[o // 2, o % 2] + c[o] if flags[o] else -c[o]


def several(x, y, z):
    value = np.where(y > 0, x.astype(np.float64) + y.astype(np.float32) + z, -z)
    return value.reshape(-1, BLOCK)[:, ::-1].ravel()


@ruda.jit
def uniform_while_loop(x, out):
    """Every thread doubles until the block's sum passes a limit: a vote decides, all agree."""
    i = ruda.grid(1)
    value = x[i]
    rounds = 0
    while ruda.syncthreads_or(value < 100):
        value = value * 2
        rounds += 1
    out[i] = value + rounds


def doubled(x):
    rows = x.reshape(-1, BLOCK).astype(np.int64)
    for row in rows:
        rounds = 0
        while (row < 100).any():
            row *= 2
            rounds += 1
        row += rounds
    return rows.ravel()


@ruda.jit
def shape_from_the_launch(x, out):
    tile = ruda.shared.array(ruda.blockDim.x, ruda.float32)
    t = ruda.threadIdx.x
    i = ruda.grid(1)
    tile[t] = x[i]
    ruda.syncthreads()
    out[i] = tile[ruda.blockDim.x - 1 - t]


@ruda.jit
def two_dimensional_block(x, out):
    tile = ruda.shared.array((4, 16), ruda.int32)
    tx, ty = ruda.threadIdx.x, ruda.threadIdx.y
    i = ruda.blockIdx.x * BLOCK + ty * 16 + tx
    tile[ty, tx] = x[i]
    ruda.syncthreads()
    total = 0
    for row in range(4):
        total += tile[row, tx]
    for column in range(16):
        total += 100 * tile[ty, column]
    out[i] = total


def row_and_column_sums(x):
    tiles = x.reshape(-1, 4, 16)
    sums = tiles.sum(axis=1, keepdims=True) + 100 * tiles.sum(axis=2, keepdims=True)
    return np.broadcast_to(sums, tiles.shape).ravel()


@ruda.jit
def row_of_shared_memory_as_view(x, out):
    tile = ruda.shared.array((4, 16), ruda.float32)
    tx, ty = ruda.threadIdx.x, ruda.threadIdx.y
    i = ruda.blockIdx.x * BLOCK + ty * 16 + tx
    row = tile[ty]
    row[tx] = x[i]
    ruda.syncthreads()
    other = tile[3 - ty]
    out[i] = other[15 - tx]


@ruda.jit
def barrier_between_global_writes(x, out):
    i = ruda.grid(1)
    start = ruda.blockIdx.x * BLOCK
    t = ruda.threadIdx.x
    x[i] = x[i] + 1
    ruda.syncthreads()
    out[i] = x[start + (t + 7) % BLOCK]


@ruda.jit
def conditional_barrier_loop_with_break(x, out):
    tile = ruda.shared.array(BLOCK, ruda.int32)
    t = ruda.threadIdx.x
    i = ruda.grid(1)
    tile[t] = x[i]
    ruda.syncthreads()
    for k in range(10):
        largest = tile[0]
        if largest > 20:
            break
        ruda.syncthreads()
        tile[t] += k + 1
        ruda.syncthreads()
    out[i] = tile[t]


def until_the_first_is_large(x):
    rows = x.reshape(-1, BLOCK).copy()
    for row in rows:
        for k in range(10):
            if row[0] > 20:
                break
            row += k + 1
    return rows.ravel()


def full(kernel, arguments, expected, **options):
    """A kernel without a tail: n counts whole blocks."""
    options = {"grid": lambda n: n, "block": BLOCK, "sizes": (1, 2, 5), "small": 2, **options}
    return Case(kernel, lambda rng, n: arguments(rng, n * BLOCK), expected, **options)


def flipped(x):
    return x.reshape(-1, BLOCK)[:, ::-1].ravel()


def small_integers(rng, n):
    return integers(rng, n, least=-1000, most=1000)


CASES = [
    full(reverse_in_block, lambda rng, n: (normal(rng, n), Out(n)), flipped),
    Case(
        tree_sum,
        lambda rng, n: (normal(rng, n), Out(whole_blocks(n), np.float64)),
        block_sums,
        ulps=64,
    ),
    Case(
        transpose_tiles,
        lambda rng, n: (normal(rng, n, n + 3), Out((n + 3, n))),
        lambda x: x.T,
        grid=lambda n: (whole_blocks(n + 3, 8), whole_blocks(n, 8)),
        block=(8, 8),
        sizes=(0, 1, 7, 19),
    ),
    full(
        values_live_across_barriers,
        lambda rng, n: (small_integers(rng, n), Out(n, np.float64)),
        lived_across,
    ),
    full(
        local_array_lives_across_a_barrier,
        lambda rng, n: (small_integers(rng, n), Out(n, np.int32)),
        local_lived,
    ),
    *(
        full(
            barrier_in_a_loop,
            lambda rng, n, rounds=rounds: (small_integers(rng, n), Out(n, np.int32), rounds),
            rotated,
            name=f"barrier_in_a_loop_{rounds}",
        )
        for rounds in (0, 1, 6)
    ),
    *(
        full(
            barrier_in_a_uniform_branch,
            lambda rng, n, turn=turn: (small_integers(rng, n), Out(n, np.int32), turn),
            branched,
            name=f"barrier_in_a_uniform_branch_{turn}",
        )
        for turn in (0, 1)
    ),
    full(
        barriers_in_both_arms,
        lambda rng, n: (small_integers(rng, n), Out(n, np.int32)),
        both_arms,
    ),
    Case(
        early_return_before_a_barrier,
        lambda rng, n: (small_integers(rng, n), Out(n, np.int32)),
        reversed_blocks,
        sizes=(0, 1, 7, 64, 65, 200),
    ),
    full(
        early_return_between_barriers,
        lambda rng, n: (small_integers(rng, n), Out(n, np.int32)),
        between,
    ),
    full(
        return_of_whole_blocks,
        lambda rng, n: (small_integers(rng, n), InOut(np.full(n, -5, np.int32))),
        lambda x, out: np.where(np.arange(x.size) // BLOCK % 2 == 1, out, flipped(x)),
    ),
    full(votes_of_the_block, lambda rng, n: (normal(rng, n), Out(n, np.int32)), voted),
    full(
        votes_of_the_block,
        lambda rng, n: (np.abs(normal(rng, n)) + 1, Out(n, np.int32)),
        voted,
        name="votes_of_the_block_unanimous",
    ),
    full(
        votes_after_returns,
        lambda rng, n: (normal(rng, n), Out(n, np.int32)),
        voted_after_returns,
    ),
    full(
        dynamic_shared_memory,
        lambda rng, n: (normal(rng, n), Out(n)),
        lambda x: flipped(x) + np.float32(BLOCK),
        shared=4 * BLOCK,
    ),
    full(
        dynamic_memory_in_two_parts,
        lambda rng, n: (normal(rng, n), integers(rng, n, least=0, most=BLOCK - 1), Out(n)),
        two_parts,
        shared=8 * BLOCK,
    ),
    full(
        barrier_in_a_device_function_caller,
        lambda rng, n: (small_integers(rng, n).astype(np.float32), Out(n)),
        exchange,
    ),
    full(
        several_shared_arrays,
        lambda rng, n: (
            small_integers(rng, n).astype(np.float32),
            integers(rng, n, dtype=np.int8),
            normal(rng, n, dtype=np.float64),
            Out(n, np.float64),
        ),
        several,
    ),
    full(
        uniform_while_loop,
        lambda rng, n: (integers(rng, n, least=1, most=50), Out(n, np.int32)),
        doubled,
    ),
    full(shape_from_the_launch, lambda rng, n: (normal(rng, n), Out(n)), flipped),
    full(
        two_dimensional_block,
        lambda rng, n: (small_integers(rng, n), Out(n, np.int32)),
        row_and_column_sums,
        block=(16, 4),
    ),
    full(
        row_of_shared_memory_as_view,
        lambda rng, n: (normal(rng, n), Out(n)),
        flipped,
        block=(16, 4),
    ),
    full(
        barrier_between_global_writes,
        lambda rng, n: (InOut(small_integers(rng, n)), Out(n, np.int32)),
        lambda x: (x + 1, np.roll(x.reshape(-1, BLOCK) + 1, -7, axis=1).ravel()),
    ),
    full(
        conditional_barrier_loop_with_break,
        lambda rng, n: (integers(rng, n, least=0, most=30), Out(n, np.int32)),
        until_the_first_is_large,
    ),
    full(
        reverse_in_block,
        lambda rng, n: (booleans(rng, n).astype(np.float32), Out(n)),
        flipped,
        sizes=(40,),
        name="reverse_many_blocks",
    ),
]
