"""A warp is 32 consecutive threads of a block on every device."""

import numpy as np

import ruda
from tests.jit.case import Case, InOut, Near, Out
from tests.jit.data import integers, normal

FULL = 0xFFFFFFFF


def warps(x):
    return x.reshape(-1, 32)


@ruda.jit
def lane_and_warp(out):
    i = ruda.grid(1)
    out[i, 0] = ruda.laneid
    out[i, 1] = ruda.warpsize
    out[i, 2] = ruda.popc(ruda.lanemask_lt())


@ruda.jit
def broadcast(x, out):
    i = ruda.grid(1)
    out[i] = ruda.shfl_sync(FULL, x[i], 5)


@ruda.jit
def rotate(x, out):
    i = ruda.grid(1)
    out[i] = ruda.shfl_sync(FULL, x[i], (ruda.laneid + 3) % 32)


@ruda.jit
def shift_up_and_down(x, up, down):
    i = ruda.grid(1)
    up[i] = ruda.shfl_up_sync(FULL, x[i], 2)
    down[i] = ruda.shfl_down_sync(FULL, x[i], 3)


def shifted(x):
    lanes = np.arange(32)
    rows = warps(x)
    up = np.where(lanes < 2, rows, np.roll(rows, 2, axis=1))
    down = np.where(lanes >= 29, rows, np.roll(rows, -3, axis=1))
    return up.ravel(), down.ravel()


@ruda.jit
def butterfly_sum(x, out):
    i = ruda.grid(1)
    value = x[i]
    step = 16
    while step > 0:
        value += ruda.shfl_xor_sync(FULL, value, step)
        step //= 2
    out[i] = value


@ruda.jit
def warp_scan(x, out):
    i = ruda.grid(1)
    value = x[i]
    for k in range(5):
        other = ruda.shfl_up_sync(FULL, value, 1 << k)
        if ruda.laneid >= 1 << k:
            value += other
    out[i] = value


@ruda.jit
def warp_reduce(value):
    for k in range(5):
        value += ruda.shfl_down_sync(FULL, value, 16 >> k)
    return value


@ruda.jit
def block_reduce_by_warps(x, out):
    partial = ruda.shared.array(32, ruda.float64)
    t = ruda.threadIdx.x
    i = ruda.grid(1)
    value = ruda.float64(0)
    if i < x.size:
        value = ruda.float64(x[i])
    value = warp_reduce(value)
    if t < 32:
        partial[t] = 0
    ruda.syncthreads()
    if t % 32 == 0:
        partial[t // 32] = value
    ruda.syncthreads()
    if t < 32:
        value = warp_reduce(partial[t])
        if t == 0:
            ruda.atomic.add(out, 0, value)


@ruda.jit
def votes(x, every, some, same, ballot):
    i = ruda.grid(1)
    positive = x[i] > 0
    every[i] = ruda.all_sync(FULL, positive)
    some[i] = ruda.any_sync(FULL, positive)
    same[i] = ruda.eq_sync(FULL, positive)
    ballot[i] = ruda.ballot_sync(FULL, positive)


def voted(x):
    rows = warps(x) > 0
    every, some = rows.all(axis=1), rows.any(axis=1)
    ballot = (rows * (1 << np.arange(32, dtype=np.uint64))).sum(axis=1)
    return tuple(np.repeat(v, 32) for v in (every, some, every | ~some, ballot))


def often_unanimous(rng, n):
    x = warps(normal(rng, n))
    x[0] = np.abs(x[0]) + 1
    x[-1] = -np.abs(x[-1]) - 1
    return x.ravel()


@ruda.jit
def a_partial_warp(x, ballot, up, last):
    i = ruda.grid(1)
    ballot[i] = ruda.ballot_sync(FULL, x[i] > 0)
    up[i] = ruda.shfl_up_sync(FULL, x[i], 1)
    last[i] = ruda.shfl_sync(FULL, x[i], 7)


def partial(x):
    lanes = np.arange(x.size) % 32
    ballots = [
        sum(1 << k for k, v in enumerate(x[start : start + 32]) if v > 0)
        for start in range(0, x.size, 32)
    ]
    return (
        np.repeat(ballots, 32)[: x.size],
        np.where(lanes == 0, x, np.roll(x, 1)),
        x[np.arange(x.size) // 32 * 32 + 7],
    )


@ruda.jit
def subsets_of_lanes(x, out):
    i = ruda.grid(1)
    if ruda.laneid < 16:
        out[i] = ruda.shfl_xor_sync(0x0000FFFF, x[i], 15)
    else:
        out[i] = ruda.shfl_down_sync(0xFFFF0000, x[i], 1)


def subsets(x):
    lanes = np.arange(32)
    rows = warps(x)
    low = rows[:, lanes ^ 15]
    high = np.where(lanes == 31, rows, np.roll(rows, -1, axis=1))
    return np.where(lanes < 16, low, high).ravel()


@ruda.jit
def compaction_by_ballot(x, counter, out):
    i = ruda.grid(1)
    keep = x[i] > 0
    ballot = ruda.ballot_sync(FULL, keep)
    below = ruda.popc(ballot & ruda.lanemask_lt())
    start = 0
    if ruda.laneid == 0:
        start = ruda.atomic.add(counter, 0, ruda.popc(ballot))
    start = ruda.shfl_sync(FULL, start, 0)
    if keep:
        out[start + below] = x[i]


def compacted(x, counter, out):
    kept = x[x > 0]
    out[: kept.size] = kept
    return counter + kept.size, out


@ruda.jit
def matching_lanes(x, groups, all_mask, all_same):
    i = ruda.grid(1)
    groups[i] = ruda.match_any_sync(FULL, x[i])
    mask, same = ruda.match_all_sync(FULL, x[i])
    all_mask[i] = mask
    all_same[i] = same


def matched(x):
    rows = warps(x)
    weights = 1 << np.arange(32, dtype=np.uint64)
    groups = ((rows[:, :, None] == rows[:, None, :]) * weights).sum(axis=2)
    same = (rows == rows[:, :1]).all(axis=1)
    masks = np.where(same, FULL, 0)
    return groups.ravel(), np.repeat(masks, 32), np.repeat(same, 32)


@ruda.jit
def exchange_through_shared_memory_in_a_warp(x, out):
    tile = ruda.shared.array(64, ruda.float32)
    t = ruda.threadIdx.x
    i = ruda.grid(1)
    tile[t] = x[i]
    ruda.syncwarp()
    out[i] = tile[t ^ 31]


@ruda.jit
def lanes_of_a_two_dimensional_block(out):
    t = ruda.threadIdx.x + 8 * ruda.threadIdx.y
    out[t, 0] = ruda.laneid
    out[t, 1] = ruda.shfl_sync(FULL, ruda.int32(t), 9)


@ruda.jit
def shuffle_in_a_loop_of_uniform_length(x, rounds, out):
    i = ruda.grid(1)
    value = x[i]
    for _ in range(rounds[ruda.blockIdx.x]):
        value = ruda.shfl_xor_sync(FULL, value, 1) * 2 + 1
    out[i] = value


def looped(x, rounds):
    rows = x.reshape(-1, 64).copy()
    for row, count in zip(rows, rounds, strict=True):
        for _ in range(count):
            row[:] = row[np.arange(64) ^ 1] * 2 + 1
    return rows.ravel()


@ruda.jit
def warps_leave_early(x, out):
    i = ruda.grid(1)
    if ruda.threadIdx.x >= 32:
        out[i] = 0
        return
    out[i] = ruda.shfl_xor_sync(FULL, x[i], 31)


@ruda.jit
def every_dtype_shuffles(a, b, c, d, out_a, out_b, out_c, out_d):
    i = ruda.grid(1)
    out_a[i] = ruda.shfl_xor_sync(FULL, a[i], 1)
    out_b[i] = ruda.shfl_xor_sync(FULL, b[i], 2)
    out_c[i] = ruda.shfl_xor_sync(FULL, c[i], 4)
    out_d[i] = ruda.shfl_xor_sync(FULL, d[i], 8)


def full(kernel, arguments, expected, **options):
    """n counts blocks of 64 threads."""
    options = {"grid": lambda n: n, "block": 64, "sizes": (1, 2, 5), "small": 2, **options}
    return Case(kernel, lambda rng, n: arguments(rng, n * 64), expected, **options)


def small_integers(rng, n):
    return integers(rng, n, least=-1000, most=1000)


CASES = [
    full(
        lane_and_warp,
        lambda rng, n: (Out((n, 3), np.int32),),
        lambda: [[k, 32, k] for k in range(32)] * 2,
        sizes=(1,),
    ),
    full(
        broadcast,
        lambda rng, n: (normal(rng, n), Out(n)),
        lambda x: np.repeat(warps(x)[:, 5], 32),
    ),
    full(
        rotate,
        lambda rng, n: (normal(rng, n), Out(n)),
        lambda x: np.roll(warps(x), -3, axis=1).ravel(),
    ),
    full(shift_up_and_down, lambda rng, n: (normal(rng, n), Out(n), Out(n)), shifted),
    full(
        butterfly_sum,
        lambda rng, n: (small_integers(rng, n), Out(n, np.int32)),
        lambda x: np.repeat(warps(x).sum(axis=1), 32),
    ),
    full(
        warp_scan,
        lambda rng, n: (small_integers(rng, n), Out(n, np.int32)),
        lambda x: np.cumsum(warps(x), axis=1).ravel(),
    ),
    Case(
        block_reduce_by_warps,
        lambda rng, n: (normal(rng, n), InOut(np.zeros(1))),
        lambda x, out: Near(np.float64(x).sum(), np.abs(np.float64(x)).sum()),
        block=128,
        ulps=64,
    ),
    full(
        votes,
        lambda rng, n: (often_unanimous(rng, n), *(Out(n, bool),) * 3, Out(n, np.uint32)),
        voted,
    ),
    Case(
        a_partial_warp,
        lambda rng, n: (normal(rng, n), Out(n, np.uint32), Out(n), Out(n)),
        partial,
        grid=1,
        block=lambda n: n,
        sizes=(8, 40, 95),
    ),
    full(subsets_of_lanes, lambda rng, n: (normal(rng, n), Out(n)), subsets),
    full(
        compaction_by_ballot,
        lambda rng, n: (
            np.where(normal(rng, n) > 0, 3, -1).astype(np.int32),
            InOut(np.zeros(1, np.int32)),
            InOut(np.zeros(n, np.int32)),
        ),
        compacted,
    ),
    full(
        matching_lanes,
        lambda rng, n: (
            np.where(np.arange(n) < 32, 7, rng.integers(0, 4, n)).astype(np.int32),
            Out(n, np.uint32),
            Out(n, np.uint32),
            Out(n, bool),
        ),
        matched,
    ),
    full(
        exchange_through_shared_memory_in_a_warp,
        lambda rng, n: (normal(rng, n), Out(n)),
        lambda x: warps(x)[:, ::-1].ravel(),
    ),
    Case(
        lanes_of_a_two_dimensional_block,
        lambda rng, n: (Out((48, 2), np.int32),),
        lambda: [[k % 32, k // 32 * 32 + 9] for k in range(48)],
        grid=1,
        block=(8, 6),
        sizes=(1,),
    ),
    full(
        shuffle_in_a_loop_of_uniform_length,
        lambda rng, n: (
            small_integers(rng, n),
            integers(rng, n // 64, least=0, most=6),
            Out(n, np.int32),
        ),
        looped,
    ),
    full(
        warps_leave_early,
        lambda rng, n: (normal(rng, n), Out(n)),
        lambda x: np.where(np.arange(x.size) % 64 < 32, warps(x)[:, ::-1].ravel(), np.float32(0)),
    ),
    full(
        every_dtype_shuffles,
        lambda rng, n: (
            integers(rng, n, dtype=np.int64),
            normal(rng, n, dtype=np.float64),
            integers(rng, n, dtype=np.uint8),
            rng.random(n) < 0.5,
            Out(n, np.int64),
            Out(n, np.float64),
            Out(n, np.uint8),
            Out(n, bool),
        ),
        lambda *x: tuple(v[np.arange(v.size) ^ (1 << k)] for k, v in enumerate(x)),
    ),
]
