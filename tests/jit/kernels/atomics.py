"""Indivisible updates of global and shared memory, for each operation and dtype."""

import numpy as np

import ruda
from tests.jit.case import Case, InOut, Near
from tests.jit.data import integers, normal


@ruda.jit
def atomic_add(totals, places, x):
    i = ruda.grid(1)
    if i < x.size:
        ruda.atomic.add(totals, places[i], x[i])


def added(totals, places, x):
    size = np.zeros(totals.size)
    np.add.at(size, places, np.abs(np.float64(x)))
    if totals.dtype.kind in "iu":
        np.add.at(totals, places, x)
        return totals
    exact = np.float64(totals)
    np.add.at(exact, places, np.float64(x))
    return Near(exact, size)


def add_case(dtype):
    make = integers if np.dtype(dtype).kind in "iu" else normal
    return Case(
        atomic_add,
        lambda rng, n: (
            InOut(np.zeros(5, dtype)),
            integers(rng, n, least=0, most=4),
            make(rng, n, dtype=dtype),
        ),
        added,
        ulps=0 if make is integers else 64,
        name=f"atomic_add_{np.dtype(dtype)}",
    )


@ruda.jit
def atomic_extremes(least, most, places, x):
    i = ruda.grid(1)
    if i < x.size:
        ruda.atomic.min(least, places[i], x[i])
        ruda.atomic.max(most, places[i], x[i])


def extremes(least, most, places, x):
    np.minimum.at(least, places, x)
    np.maximum.at(most, places, x)
    return least, most


def extreme_case(dtype):
    make = integers if np.dtype(dtype).kind in "iu" else normal
    return Case(
        atomic_extremes,
        lambda rng, n: (
            InOut(make(rng, 5, dtype=dtype)),
            InOut(make(rng, 5, dtype=dtype)),
            integers(rng, n, least=0, most=4),
            make(rng, n, dtype=dtype),
        ),
        extremes,
        name=f"atomic_extremes_{np.dtype(dtype)}",
    )


@ruda.jit
def atomic_extremes_and_nan(least, most, nanleast, nanmost, x):
    i = ruda.grid(1)
    if i < x.size:
        ruda.atomic.min(least, 0, x[i])
        ruda.atomic.max(most, 0, x[i])
        ruda.atomic.nanmin(nanleast, 0, x[i])
        ruda.atomic.nanmax(nanmost, 0, x[i])


def with_nan(rng, n):
    x = normal(rng, n)
    x[rng.random(n) < 0.1] = np.nan
    return x


def extremes_and_nan(least, most, nanleast, nanmost, x):
    return (
        np.minimum.reduce(x, keepdims=True, initial=least[0]),
        np.maximum.reduce(x, keepdims=True, initial=most[0]),
        np.fmin.reduce(x, keepdims=True, initial=nanleast[0]),
        np.fmax.reduce(x, keepdims=True, initial=nanmost[0]),
    )


@ruda.jit
def atomic_bits(both, either, odd, x):
    i = ruda.grid(1)
    if i < x.size:
        ruda.atomic.and_(both, i % 3, x[i])
        ruda.atomic.or_(either, i % 3, x[i])
        ruda.atomic.xor(odd, i % 3, x[i])


def bits(both, either, odd, x):
    places = np.arange(x.size) % 3
    np.bitwise_and.at(both, places, x)
    np.bitwise_or.at(either, places, x)
    np.bitwise_xor.at(odd, places, x)
    return both, either, odd


@ruda.jit
def atomic_sub(totals, x):
    i = ruda.grid(1)
    if i < x.size:
        ruda.atomic.sub(totals, 1, x[i])


@ruda.jit
def old_values_are_unique(counter, taken):
    i = ruda.grid(1)
    if i < taken.size:
        slot = ruda.atomic.add(counter, 0, 1)
        taken[slot] += 1


@ruda.jit
def compaction_by_counter(x, counter, sums):
    i = ruda.grid(1)
    if i < x.size and x[i] > 0:
        place = ruda.atomic.add(counter, 0, 1)
        sums[place] = 1
        ruda.atomic.add(sums, sums.size - 1, x[i])


def compacted(x, counter, sums):
    count = np.count_nonzero(x > 0)
    sums[:count] = 1
    sums[-1] += x[x > 0].sum()
    return counter + count, sums


@ruda.jit
def atomic_wrapping_counters(up, down, limit, n):
    i = ruda.grid(1)
    if i < n:
        ruda.atomic.inc(up, 0, limit)
        ruda.atomic.dec(down, 0, limit)


@ruda.jit
def exchange_keeps_the_sum(cell, total, x):
    i = ruda.grid(1)
    if i < x.size:
        ruda.atomic.add(total, 0, ruda.atomic.exch(cell, 0, x[i]) - x[i])


@ruda.jit
def maximum_by_compare_and_swap(best, x):
    i = ruda.grid(1)
    if i < x.size:
        seen = ruda.atomic.cas(best, 0, x[i], x[i])
        while x[i] > seen:
            old = ruda.atomic.cas(best, 0, seen, x[i])
            if old == seen:
                break
            seen = old


@ruda.jit
def first_comes_first(owner, losers):
    i = ruda.grid(1)
    if i < losers.size - 1:
        if ruda.atomic.compare_and_swap(owner, 0, 1) != 0:
            ruda.atomic.add(losers, losers.size - 1, 1)


def owned(owner, losers):
    threads = losers.size - 1
    losers[-1] += max(0, threads - 1)
    return np.array([min(1, threads)]), losers


@ruda.jit
def atomic_at_two_indices(totals, x):
    i, j = ruda.grid(2)
    if i < x.shape[0] and j < x.shape[1]:
        ruda.atomic.add(totals, (i % 2, j % 3), x[i, j])


def two_indices(totals, x):
    i, j = np.indices(x.shape)
    np.add.at(totals, (i % 2, j % 3), x)
    return totals


@ruda.jit
def histogram_in_shared_memory(x, counts):
    local = ruda.shared.array(16, ruda.int32)
    t = ruda.threadIdx.x
    if t < 16:
        local[t] = 0
    ruda.syncthreads()
    for i in range(ruda.grid(1), x.size, ruda.gridsize(1)):
        ruda.atomic.add(local, x[i] & 15, 1)
    ruda.syncthreads()
    if t < 16:
        ruda.atomic.add(counts, t, local[t])


def histogram(x, counts):
    return counts + np.bincount(x & 15, minlength=16)


@ruda.jit
def atomic_on_a_row(totals, x):
    i = ruda.grid(1)
    if i < x.size:
        row = totals[1]
        ruda.atomic.add(row, x[i] % 4, x[i])


def on_a_row(totals, x):
    np.add.at(totals[1], x % 4, x)
    return totals


@ruda.jit
def atomic_in_dynamic_shared_memory(x, out):
    cells = ruda.shared.array(0, ruda.float32)
    t = ruda.threadIdx.x
    if t < 4:
        cells[t] = 0
    ruda.syncthreads()
    i = ruda.grid(1)
    if i < x.size:
        ruda.atomic.add(cells, t % 4, x[i])
    ruda.syncthreads()
    if t < 4:
        ruda.atomic.add(out, t, cells[t])


CASES = [
    *(add_case(d) for d in (np.int32, np.uint32, np.int64, np.uint64, np.float32, np.float64)),
    *(extreme_case(d) for d in (np.int32, np.uint32, np.int64, np.uint64)),
    *(extreme_case(d) for d in (np.float32, np.float64)),
    Case(
        atomic_extremes_and_nan,
        lambda rng, n: (*(InOut(normal(rng, 1)) for _ in range(4)), with_nan(rng, n)),
        extremes_and_nan,
    ),
    *(
        Case(
            atomic_bits,
            lambda rng, n, d=d: (
                *(InOut(integers(rng, 3, dtype=d)) for _ in range(3)),
                integers(rng, n, dtype=d),
            ),
            bits,
            name=f"atomic_bits_{np.dtype(d)}",
        )
        for d in (np.int32, np.uint32, np.int64, np.uint64)
    ),
    Case(
        atomic_sub,
        lambda rng, n: (InOut(integers(rng, 2)), integers(rng, n)),
        lambda totals, x: totals - np.array([0, x.sum(dtype=np.int32)], np.int32),
    ),
    Case(
        old_values_are_unique,
        lambda rng, n: (InOut(np.zeros(1, np.int32)), InOut(np.zeros(n, np.int32))),
        lambda counter, taken: (taken.size, 1),
    ),
    Case(
        compaction_by_counter,
        lambda rng, n: (
            integers(rng, n, least=-99, most=99),
            InOut(np.zeros(1, np.int32)),
            InOut(np.zeros(n + 1, np.int32)),
        ),
        compacted,
    ),
    Case(
        atomic_wrapping_counters,
        lambda rng, n: (
            InOut(np.zeros(1, np.uint32)),
            InOut(np.zeros(1, np.uint32)),
            np.uint32(6),
            n,
        ),
        lambda up, down, limit, n: (n % 7, -n % 7),
    ),
    Case(
        exchange_keeps_the_sum,
        lambda rng, n: (
            InOut(np.zeros(1, np.int64)),
            InOut(np.zeros(1, np.int64)),
            np.full(n, 5, np.int64),
        ),
        lambda cell, total, x: (5 if x.size else 0, -5 if x.size else 0),
    ),
    Case(
        maximum_by_compare_and_swap,
        lambda rng, n: (InOut(np.full(1, -np.inf, np.float32)), normal(rng, n)),
        lambda best, x: np.maximum.reduce(x, initial=-np.inf),
    ),
    Case(
        maximum_by_compare_and_swap,
        lambda rng, n: (InOut(np.full(1, -100, np.int64)), integers(rng, n, dtype=np.int64)),
        lambda best, x: np.maximum.reduce(x, initial=-100),
        name="maximum_by_compare_and_swap_int64",
    ),
    Case(
        first_comes_first,
        lambda rng, n: (InOut(np.zeros(1, np.int32)), InOut(np.zeros(n + 1, np.int32))),
        owned,
    ),
    Case(
        atomic_at_two_indices,
        lambda rng, n: (InOut(integers(rng, 2, 3)), integers(rng, n, n + 1)),
        two_indices,
        grid=lambda n: (n // 8 + 1, n // 8 + 1),
        block=(8, 8),
        sizes=(0, 1, 7, 20),
    ),
    Case(
        histogram_in_shared_memory,
        lambda rng, n: (integers(rng, n), InOut(np.zeros(16, np.int32))),
        histogram,
        grid=2,
    ),
    Case(
        atomic_on_a_row,
        lambda rng, n: (InOut(np.zeros((3, 4), np.int32)), integers(rng, n, least=0, most=99)),
        on_a_row,
    ),
    Case(
        atomic_in_dynamic_shared_memory,
        lambda rng, n: (normal(rng, n), InOut(np.zeros(4, np.float32))),
        lambda x, out: Near(
            np.bincount(np.arange(x.size) % 4, np.float64(x), 4),
            np.bincount(np.arange(x.size) % 4, np.abs(np.float64(x)), 4),
        ),
        shared=16,
        ulps=64,
    ),
]
