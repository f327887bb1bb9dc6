"""Strided loops of a block's threads, run in rounds of the whole block: nothing may change."""

from __future__ import annotations

import functools

import numpy as np
import pytest

from ruda import dtypes
from ruda.backends.base import Launch
from ruda.backends.cpu.compile import compile_with_numba
from ruda.backends.cpu.device import BACKEND
from ruda.jit import ir
from ruda.jit.interpret import Interpreter
from ruda.jit.passes.strides import TOGETHER
from tests.jit.build import (
    assign,
    const,
    expression,
    f32,
    function,
    grid,
    i32,
    index,
    load,
    op,
    store,
    thread,
)
from tests.jit.build import block as block_index

x, out = ir.Array("x", i32, 1), ir.Array("out", i32, 1)
S = ir.Array("s", i32, 1, space="shared", shape=(8,))
L = ir.Array("l", i32, 1, space="local", shape=(2,))
i, j, k = (ir.Variable(v, index) for v in "ijk")
a, b = (ir.Variable(v, i32) for v in "ab")
number = ir.Variable("number", dtypes.int64)
N, GRID, BLOCK = ir.Extent(x, 0), ir.Special("globalDim"), ir.Special("blockDim")
LARGEST = (1 << 63) - 1


def loop(start, stop, step, *body, variable=k):
    return ir.For(variable, *map(expression, (start, stop, step)), tuple(body))


def when(condition, *then):
    return ir.If(condition, tuple(then))


def plus(v, value):
    return assign(v, op("add", v, value))


def last_of(*body):
    """A kernel's body that writes what each thread ends with."""
    return assign(a, 0), assign(b, 0), *body, ir.Barrier(), store(out, grid(), ir.Read(a))


ROUNDS = {
    "grid stride": last_of(loop(grid(), N, GRID, plus(a, load(x, k)))),
    "block stride": last_of(loop(thread(), N, BLOCK, plus(a, load(x, k)))),
    "later start": last_of(loop(op("add", thread(), 3), N, BLOCK, plus(a, load(x, k)))),
    "start of a variable": last_of(assign(i, grid()), loop(i, N, GRID, plus(a, load(x, k)))),
    "every second block": last_of(
        loop(op("add", op("mul", block_index(), 8), thread()), N, op("mul", GRID, 2),
             plus(a, load(x, k)))
    ),
    "constant stop": last_of(loop(thread(), 5, 8, plus(a, load(S, 0)), assign(a, 1))),
    "assigned in some rounds": last_of(
        loop(thread(), N, BLOCK, when(op("gt", load(x, k), 50), assign(a, load(x, k))))
    ),
    "last value only": last_of(loop(thread(), N, BLOCK, assign(a, load(x, k)))),
    "two carried": last_of(
        loop(thread(), N, BLOCK, plus(a, b), assign(b, load(x, k))), plus(a, b)
    ),
    "a loop inside": last_of(
        loop(thread(), N, BLOCK,
             loop(0, op("mod", k, 3), 1, plus(a, load(x, k)), plus(a, ir.Cast(ir.Read(j), i32)),
                  variable=j))
    ),
    "inside a uniform loop": last_of(
        loop(0, 3, 1, loop(thread(), N, BLOCK, plus(a, load(x, k))), ir.Barrier(), variable=j)
    ),
    "atomic on shared memory": last_of(
        store(S, thread(), 0), ir.Barrier(),
        loop(thread(), N, BLOCK,
             ir.Atomic("add", S, (op("mod", ir.Cast(load(x, k), index), 8),), (const(1, i32),))),
        ir.Barrier(), assign(a, load(S, thread())),
    ),
    "stores": last_of(loop(grid(), N, GRID, store(x, k, op("mul", load(x, k), 2)))),
}  # fmt: skip
APART = {
    "left early": last_of(
        loop(thread(), N, BLOCK, plus(a, load(x, k)), when(op("gt", a, 100), ir.Break()))
    ),
    "negative step": last_of(loop(thread(), const(-1), const(-1), plus(a, load(S, k)), plus(a, 1))),
    "negative start": last_of(
        loop(op("sub", thread(), 3), 8, 8, when(op("lt", k, N), assign(a, load(S, 0))),
             assign(a, 2))
    ),
    "stop of a thread": last_of(loop(thread(), op("mul", thread(), 2), BLOCK, plus(a, 1),
                                     assign(b, load(S, 0)))),
    "stop of the data": last_of(
        assign(j, 0), when(op("gt", N, 0), assign(j, ir.Cast(load(x, 0), index))),
        loop(thread(), op("min", j, N), BLOCK, plus(a, load(x, k))),
    ),
    "local array": last_of(
        ir.Declare(L), store(L, 0, 0),
        loop(thread(), N, BLOCK, store(L, 0, op("add", load(L, 0), load(x, k)))),
        assign(a, load(L, 0)),
    ),
    "stride of a thread": last_of(
        loop(op("mul", thread(), 2), N, 16, plus(a, load(x, k)))
    ),
}  # fmt: skip


def shared_rounds(kernel):
    return "k_first" in BACKEND.emit(kernel, BACKEND.target("cpu")).text


def both(kernel, blocks, threads, *arguments):
    """What sim and the CPU make of the arrays."""
    results = []
    for run in (_sim, _cpu):
        copies = [v.copy() if isinstance(v, np.ndarray) else v for v in arguments]
        run(kernel, (blocks, 1, 1), threads, copies)
        results.append([v for v in copies if isinstance(v, np.ndarray)])
    return results


def _sim(kernel, blocks, threads, arguments):
    Interpreter(kernel).run(blocks, threads, arguments, 0)


@functools.lru_cache(1)
def _module(kernel):
    target = BACKEND.target("cpu")
    return BACKEND.load(BACKEND.compile(BACKEND.emit(kernel, target), target), kernel, "cpu")


def _cpu(kernel, blocks, threads, arguments):
    BACKEND.launcher(_module(kernel), Launch(blocks, threads), None)(*arguments)


@pytest.mark.parametrize("name", [*ROUNDS, *APART])
def test_results_are_those_of_threads_alone(name, rng):
    body = (store(S, thread(), 0), ir.Barrier(), *(ROUNDS | APART)[name])
    kernel = function((x, out), *body, arrays=(S, L), block=(8, 1, 1))
    assert shared_rounds(kernel) is (name in ROUNDS)
    for size in (0, 1, 5, 8, 31, 32, 33, 100):
        for blocks in (1, 3):
            data = rng.integers(0, 100, size).astype(np.int32)
            sim, cpu = both(kernel, blocks, (8, 1, 1), data, np.zeros(24, np.int32))
            for expected, found in zip(sim, cpu, strict=True):
                assert np.array_equal(expected, found), (size, blocks)


@pytest.mark.parametrize("stop", [0, 1, 7, LARGEST - 1, LARGEST])
def test_last_round_at_the_end_of_int64(stop):
    """Threads whose number would wrap round take no part in it."""
    kernel = function(
        (number, out),
        store(S, thread(), 0),
        *last_of(loop(thread(), ir.Cast(ir.Read(number), index), LARGEST - 3,
                      plus(a, op("add", load(S, thread()), 1)))),
        arrays=(S,), block=(8, 1, 1),
    )  # fmt: skip
    assert shared_rounds(kernel)
    ((sim,), (cpu,)) = both(kernel, 1, (8, 1, 1), np.int64(stop), np.zeros(8, np.int32))
    expected = [len(range(t, stop, LARGEST - 3)) for t in range(8)]
    assert sim.tolist() == cpu.tolist() == expected


@pytest.mark.parametrize("size", [0, 1, 11, 12, 50])
def test_blocks_of_two_axes(size, rng):
    """Rows of threads follow one another in a round."""
    linear = op("add", op("mul", thread(1), 4), thread(0))
    body = (
        assign(a, 0),
        loop(linear, N, 12, plus(a, load(x, k))),
        ir.Barrier(),
        store(out, linear, ir.Read(a)),
    )
    kernel = function((x, out), *body, block=(4, 3, 1))
    assert shared_rounds(kernel)
    data = rng.integers(0, 100, size).astype(np.int32)
    sim, cpu = both(kernel, 1, (4, 3, 1), data, np.zeros(12, np.int32))
    expected = [data[t::12].sum() for t in range(12)]
    assert sim[1].tolist() == cpu[1].tolist() == expected


@pytest.mark.parametrize("step", [1 << 49, 1 << 50, (1 << 50) + 1])
def test_long_steps_to_the_end_of_int64(step):
    """Rounds that go together stop before anything wraps round; single ones finish."""
    kernel = function(
        (number, out),
        store(S, thread(), 0),
        *last_of(loop(thread(), ir.Cast(ir.Read(number), index), step,
                      plus(a, op("add", load(S, thread()), 1)))),
        arrays=(S,), block=(8, 1, 1),
    )  # fmt: skip
    for stop in (0, -1, -(1 << 63), step, LARGEST // 2 + 3, LARGEST - 2, LARGEST):
        result = np.zeros(8, np.int32)
        _cpu(kernel, (1, 1, 1), (8, 1, 1), (np.int64(stop), result))
        assert result.tolist() == [len(range(t, stop, step)) for t in range(8)], stop


@pytest.mark.parametrize("threads", [8, 64, 128])
def test_rounds_that_go_together_end_where_elements_end(threads, rng):
    """Every number of elements around whole rounds, whole groups of rounds and their tails."""
    kernel = function(
        (x, out), *last_of(loop(grid(), N, GRID, plus(a, load(x, k)))), block=(threads, 1, 1)
    )
    text = BACKEND.emit(kernel, BACKEND.target("cpu")).text
    assert text.count("load_i32(x") == TOGETHER + 1
    assert ("prefetch_i32(x" in text) is (threads >= 64)
    for blocks in (1, 2, 5):
        grid_size = blocks * threads
        for rounds in range(2 * TOGETHER + 2):
            for size in {rounds * grid_size + k for k in (0, 1, threads - 1, threads + 1)}:
                data = rng.integers(0, 100, size).astype(np.int32)
                result = np.zeros(grid_size, np.int32)
                _cpu(kernel, (blocks, 1, 1), (threads, 1, 1), (data, result))
                padded = np.zeros(-(-size // grid_size) * grid_size, np.int32)
                padded[:size] = data
                assert np.array_equal(padded.reshape(-1, grid_size).sum(0), result), size


def test_sums_keep_their_order(rng):
    """Each thread adds its own elements in the order of the rounds: not a bit changes."""
    values, sums = ir.Array("values", f32, 1), ir.Array("sums", f32, 1)
    total = ir.Variable("total", f32)
    kernel = function(
        (values, sums),
        assign(total, 0.0),
        loop(grid(), ir.Extent(values, 0), GRID, plus(total, load(values, k))),
        ir.Barrier(),
        store(sums, grid(), ir.Read(total)),
        block=(8, 1, 1),
    )
    data = (rng.standard_normal(1003) * 10.0 ** rng.integers(-9, 9, 1003)).astype(np.float32)
    sim, cpu = both(kernel, 3, (8, 1, 1), data, np.zeros(24, np.float32))
    expected = np.zeros(24, np.float32)
    for at in range(0, 1003, 24):
        part = data[at : at + 24]
        expected[: len(part)] += part
    assert np.array_equal(expected, sim[1])
    assert np.array_equal(expected, cpu[1])


def tree_sum():
    """Rounds of a block over its row, and a tree of its sums: hundreds of uses of an array."""
    rows, sums = ir.Array("rows", f32, 2), ir.Array("sums", f32, 1)
    shared = ir.Array("shared", f32, 1, space="shared", shape=(64,))
    total, column = ir.Variable("total", f32), ir.Extent(rows, 1)
    body = [
        assign(total, 0.0),
        loop(thread(), column, 64, plus(total, load(rows, block_index(), k))),
        store(shared, thread(), ir.Read(total)),
        ir.Barrier(),
    ]
    for half in (32, 16, 8, 4, 2, 1):
        both_halves = op(
            "add", load(shared, thread()), load(shared, op("add", thread(), const(half, index)))
        )
        upper = op("lt", thread(), const(half, index))
        body += [when(upper, store(shared, thread(), both_halves)), ir.Barrier()]
    first = when(op("eq", thread(), const(0, index)), store(sums, block_index(), load(shared, 0)))
    return function((rows, sums), *body, first, arrays=(shared,), block=(64, 1, 1))


def test_a_kernels_own_arrays_are_told_from_what_it_is_given():
    """Else LLVM looks at run time, in every loop, whether they lie in the same memory."""
    source = BACKEND.emit(tree_sum(), BACKEND.target("cpu"))
    code = compile_with_numba(source).library.get_llvm_str()
    assert "icmp ult ptr" not in code
    assert "store_own_f32(shared" in source.text and "store_f32(sums" in source.text


def test_rounds_that_go_straight_on_ask_a_page_ahead(rng):
    kernel = tree_sum()
    text = BACKEND.emit(kernel, BACKEND.target("cpu")).text
    lines = TOGETHER * 64 * 4 // 64
    assert text.count("prefetch_f32(rows") == lines
    assert text.count("k_group + 1024") == lines
    for columns in (1, 64, 255, 256, 257, 3000):
        data = rng.integers(-9, 9, (3, columns)).astype(np.float32)
        result = np.zeros(3, np.float32)
        _cpu(kernel, (3, 1, 1), (64, 1, 1), (data, result))
        assert np.array_equal(result, data.sum(1)), columns


@pytest.mark.parametrize(("name", "asks"), [("add", True), ("max", False), ("min", False)])
def test_rounds_that_compare_do_not_ask_a_page_ahead(name, asks):
    step = assign(a, op(name, ir.Read(a), load(x, k)))
    body = last_of(loop(thread(), N, 64, step))
    kernel = function((x, out), *body, block=(64, 1, 1))
    assert ("prefetch" in BACKEND.emit(kernel, BACKEND.target("cpu")).text) is asks


def test_loops_over_the_same_elements_ask_for_nothing():
    """Thread t's element k is thread t + 1's element k - 1: what comes next is there already."""
    kernel = function(
        (x, out), assign(a, 0), loop(0, N, 1, plus(a, load(x, op("add", thread(), ir.Read(k))))),
        ir.Barrier(), store(out, grid(), ir.Read(a)), block=(64, 1, 1),
    )  # fmt: skip
    assert "prefetch" not in BACKEND.emit(kernel, BACKEND.target("cpu")).text
