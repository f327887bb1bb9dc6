"""What the interpreter finds wrong: each check, its message, and what it must not report."""

from __future__ import annotations

import itertools
import pickle
import warnings

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

import ruda
from ruda.errors import (
    BarrierError,
    DataRaceError,
    IntegerDivisionError,
    KernelAssertionError,
    KernelValueError,
    LaunchWarning,
    OutOfBoundsError,
    UndefinedReadError,
)
from ruda.jit import ir
from ruda.jit.interpret import CHECKS, Interpreter
from tests.jit.build import (
    assign,
    block,
    boolean,
    const,
    f32,
    f64,
    function,
    grid,
    i32,
    index,
    load,
    op,
    store,
    thread,
    u32,
)
from tests.jit.test_interpret import FULL, run

X = ir.Array("x", f32, 1)
OUT = ir.Array("out", f32, 1)
MATRIX = ir.Array("matrix", f32, 2)
FLAGS = ir.Array("flags", i32, 1)
TILE = ir.Array("tile", f32, 1, space="shared", shape=(64,))
OWN = ir.Array("own", f32, 1, space="local", shape=(4,))
I = ir.Variable("i", index)
K = ir.Variable("k", index)
V = ir.Variable("v", f32)
N = ir.Variable("n", i32)
LAST = op("eq", thread(), 3)


def zeros(*shape):
    return np.zeros(shape, np.float32)


def found(error, kernel, grid, block, *arguments, **options):
    """The message of the error that a launch raises."""
    with pytest.raises(error) as caught:
        run(kernel, grid, block, *arguments, **options)
    assert pickle.loads(pickle.dumps(caught.value)).message == caught.value.message
    return str(caught.value)


# ---- bounds ----


@pytest.mark.parametrize("write", [True, False])
@pytest.mark.parametrize("size, bad", [(5, 5), (0, 0)])
def test_out_of_bounds_names_everything(size, bad, write):
    access = store(X, grid(), 1.0) if write else assign(V, load(X, grid()))
    message = found(OutOfBoundsError, function((X,), access), 2, 4, zeros(size))
    assert f"`x[{bad}]` is out of bounds: index {bad} on axis 0" in message
    assert f"(shape ({size},))" in message
    assert f"kernel `kernel`, block ({bad // 4}, 0, 0), thread ({bad % 4}, 0, 0)" in message
    assert "kernel.py, line 1" in message


@pytest.mark.parametrize("indices, axis", [((0, 3), 1), ((2, 0), 0), ((-1, 0), 0), ((0, -4), 1)])
def test_out_of_bounds_on_an_axis(indices, axis):
    kernel = function((MATRIX,), assign(V, load(MATRIX, *indices)))
    message = found(OutOfBoundsError, kernel, 1, 1, zeros(2, 3))
    assert f"index {indices[axis]} on axis {axis}" in message and "shape (2, 3)" in message


def test_an_atomic_out_of_bounds():
    kernel = function((FLAGS,), ir.Atomic("add", FLAGS, (const(7),), (const(1, i32),)))
    assert "`flags[7]`" in found(OutOfBoundsError, kernel, 1, 1, np.zeros(7, np.int32))


def test_without_the_check_an_access_outside_does_nothing():
    kernel = function(
        (X, FLAGS),
        store(X, 9, 1.0),
        store(X, 0, op("add", load(X, -1), 3.0)),
        ir.Atomic("add", FLAGS, (const(2),), (const(1, i32),), N),
        store(FLAGS, 0, N),
    )
    x, flags = np.ones(2, np.float32), np.ones(2, np.int32)
    run(kernel, 1, 1, x, flags, checks=frozenset())
    assert x.tolist() == [3, 1] and flags.tolist() == [0, 1]


# ---- notes ----


def notes(kernel, *arguments, **options):
    return {(k, p.line): m for (k, p), m in run(kernel, 1, 4, *arguments, **options).notes.items()}


def wrapped(i):
    return ir.Op("wrap", (i, ir.Extent(X, 0)), index)


def test_a_wrapped_index_of_a_thread_is_noted_once():
    kernel = function((X,), assign(I, op("sub", grid(), 2)), store(X, wrapped(ir.Read(I)), 1.0))
    x = zeros(4)
    ((place, message),) = notes(kernel, x).items()
    assert place == ("wrap", 2)
    assert "the index -2 of `x`" in message and "thread (0, 0, 0)" in message
    assert x.tolist() == [1, 1, 1, 1]


@pytest.mark.parametrize("i", [const(-1), ir.Cast(load(FLAGS, thread()), index)])
def test_an_index_from_the_end_or_from_data_is_not_noted(i):
    kernel = function((X, FLAGS), assign(V, load(X, wrapped(i))))
    assert not notes(kernel, zeros(4), np.full(4, -1, np.int32))


def test_a_wrapped_index_still_has_bounds():
    kernel = function((X,), store(X, wrapped(const(-5)), 1.0))
    assert "`x[-5]`" in found(OutOfBoundsError, kernel, 1, 1, zeros(4))


def test_shifts_and_conversions_out_of_range_are_notes():
    kernel = function(
        (FLAGS, X),
        store(FLAGS, thread(), op("shl", const(1, i32), 40)),
        store(FLAGS, thread(), ir.Cast(load(X, thread()), i32)),
    )
    x = np.array([1, 2, 3, np.nan], np.float32)
    messages = sorted(notes(kernel, np.zeros(4, np.int32), x).values())
    assert (
        "a 32-bit integer is shifted by 40" in messages[0]
        and "nan is out of the range" in messages[1]
    )
    x[3] = 2.0**31 - 128
    assert len(notes(kernel, np.zeros(4, np.int32), x)) == 1


@pytest.mark.parametrize("name, sign", [("floordiv", "//"), ("mod", "%")])
def test_division_by_zero_is_an_error_under_check(name, sign):
    kernel = function(
        (FLAGS,), store(FLAGS, thread(), op(name, const(7, i32), load(FLAGS, thread())))
    )
    checked = function(kernel.parameters, *kernel.body, check=True)
    flags = np.array([1, 1, 0], np.int32)
    assert f"integer division by zero: 7 {sign} 0" in found(
        IntegerDivisionError, checked, 1, 3, flags
    )
    assert run(kernel, 1, 1, flags[2:]).notes and flags[2] == 0


# ---- undefined ----


def test_an_undefined_variable():
    kernel = function((X,), ir.If(LAST, (assign(V, 1.0),)), store(X, thread(), V))
    message = found(UndefinedReadError, kernel, 1, 4, zeros(4))
    assert "variable `v` has no value here" in message and "thread (0, 0, 0)" in message


@pytest.mark.parametrize("array", [TILE, OWN], ids=["shared", "local"])
def test_undefined_memory(array):
    kernel = function(
        (X,),
        ir.Declare(array),
        store(array, 1, 1.0),
        assign(V, load(array, 1)),
        store(X, 0, load(array, 2)),
        arrays=(array,),
    )
    message = found(UndefinedReadError, kernel, 1, 1, zeros(1))
    assert f"`{array.name}[2]`" in message and f"{array.space} memory starts undefined" in message


def test_an_atomic_on_undefined_memory():
    kernel = function(
        (X,),
        ir.Declare(TILE),
        ir.Atomic("add", TILE, (const(0),), (const(1.0, f32),)),
        arrays=(TILE,),
    )
    assert "is updated before anything is written" in found(
        UndefinedReadError, kernel, 1, 1, zeros(1)
    )
    swap = function(
        (X,),
        ir.Declare(TILE),
        ir.Atomic("exch", TILE, (const(0),), (const(1.0, f32),)),
        store(X, 0, load(TILE, 0)),
        arrays=(TILE,),
    )
    x = zeros(1)
    run(swap, 1, 1, x)
    assert x[0] == 1


def test_a_local_array_is_undefined_again_in_each_round():
    kernel = function(
        (X,),
        ir.For(
            K,
            const(0),
            const(2),
            const(1),
            (
                ir.Declare(OWN),
                ir.If(op("eq", K, 0), (store(OWN, 0, 1.0),)),
                store(X, 0, load(OWN, 0)),
            ),
        ),
        arrays=(OWN,),
    )
    assert "`own[0]`" in found(UndefinedReadError, kernel, 1, 1, zeros(1))


def test_a_block_does_not_see_the_shared_memory_of_another():
    kernel = function(
        (X,),
        ir.Declare(TILE),
        ir.If(op("eq", block(), 0), (store(TILE, 0, 1.0),)),
        store(X, block(), load(TILE, 0)),
        arrays=(TILE,),
    )
    assert "block (1, 0, 0)" in found(UndefinedReadError, kernel, 2, 1, zeros(2))


def test_half_written_bytes_are_undefined():
    doubles = ir.Array("doubles", f64, 1, space="shared", dynamic=True)
    words = ir.Array("words", u32, 1, space="shared", dynamic=True)
    out = ir.Array("out", f64, 1)
    body = [
        ir.Declare(doubles),
        ir.Declare(words),
        store(words, 0, 0),
        store(out, 0, load(doubles, 0)),
    ]
    kernel = function((out,), *body, arrays=(doubles, words))
    assert "`doubles[0]`" in found(UndefinedReadError, kernel, 1, 1, np.zeros(1), shared_bytes=16)
    body.insert(3, store(words, 1, 0x3FF00000))
    out = np.zeros(1)
    run(function(kernel.parameters, *body, arrays=(doubles, words)), 1, 1, out, shared_bytes=16)
    assert out[0] == 1.0


def test_without_the_check_undefined_floats_are_nan():
    kernel = function((X,), ir.Declare(TILE), store(X, 0, load(TILE, 0)), arrays=(TILE,))
    x = zeros(1)
    run(kernel, 1, 1, x, checks=frozenset())
    assert np.isnan(x[0])


# ---- races ----

NEIGHBOUR = op("mod", op("add", thread(), 1), 4)


@pytest.mark.parametrize("order", ["ascending", "random"])
@pytest.mark.parametrize("array", [TILE, X], ids=["shared", "global"])
def test_a_missing_barrier_is_a_race(array, order):
    body = (
        ir.Declare(TILE),
        store(array, thread(), 1.0),
        ir.Barrier(),
        store(array, thread(), ir.Cast(thread(), f32)),
        store(OUT, thread(), load(array, NEIGHBOUR)),
    )
    kernel = function((X, OUT), *body, arrays=(TILE,))
    message = found(DataRaceError, kernel, 1, 4, zeros(4), zeros(4), order=order)
    assert f"data race on `{array.name}[" in message and "with no barrier between" in message
    assert "line 4" in message and "line 5" in message
    fixed = function((X, OUT), *body[:4], ir.Barrier(), body[4], arrays=(TILE,))
    out = zeros(4)
    run(fixed, 1, 4, zeros(4), out, order=order)
    assert out.tolist() == [1, 2, 3, 0]


def test_a_write_after_a_read_is_a_race():
    kernel = function((X,), assign(V, load(X, op("add", thread(), 1))), store(X, thread(), V))
    message = found(DataRaceError, kernel, 1, 4, zeros(5))
    assert (
        "`x[1]`, shape (5,): this thread writes it, thread (0, 0, 0) of the same block reads it"
        in message
    )
    assert "thread (1, 0, 0)" in message


def test_two_writes_race_unless_they_write_the_same_bits():
    kernel = function((X, OUT), store(OUT, 0, load(X, thread())))
    message = found(DataRaceError, kernel, 1, 4, np.arange(4, dtype=np.float32), zeros(1))
    assert "this thread writes it, thread (0, 0, 0) of the same block writes it" in message
    run(kernel, 1, 4, np.ones(4, np.float32), zeros(1))
    with pytest.raises(DataRaceError):  # equal, but not the same
        run(kernel, 1, 2, np.array([0.0, -0.0], np.float32), zeros(1))


def test_blocks_race_even_with_barriers():
    kernel = function((X,), store(X, block(), 1.0), ir.Barrier(), assign(V, load(X, 0)))
    message = found(DataRaceError, kernel, 2, 1, zeros(2))
    assert "thread (0, 0, 0) of block (0, 0, 0) writes it" in message
    assert "blocks run in any order" in message and "block (1, 0, 0)" in message


def test_a_grid_barrier_ends_races():
    kernel = function((X,), store(X, block(), 1.0), ir.Barrier("grid"), assign(V, load(X, 0)))
    run(kernel, 2, 1, zeros(2))


def add(array=FLAGS, i=0, result=None):
    return ir.Atomic("add", array, (const(i),), (const(1, array.dtype),), result)


def test_atomics_do_not_race_with_atomics_but_with_plain_accesses():
    flags = np.zeros(1, np.int32)
    run(function((FLAGS,), add(), add()), 2, 4, flags)
    assert flags[0] == 16
    for plain in (assign(N, load(FLAGS, 0)), store(FLAGS, 0, 5)):
        first = op("eq", thread(), 0)
        after = function((FLAGS,), ir.If(first, (add(),), (plain,)))
        assert "updates it atomically in line 2" in found(DataRaceError, after, 1, 2, flags)
        before = function((FLAGS,), ir.If(first, (plain,), (add(),)))
        assert "this thread updates it" in found(DataRaceError, before, 1, 2, flags)
    run(function((FLAGS,), add(), ir.Barrier(), assign(N, load(FLAGS, 0))), 1, 4, flags)


def test_aliases_race_too():
    kernel = function((X, OUT), store(OUT, thread(), load(X, thread())))
    x = zeros(5)
    message = found(DataRaceError, kernel, 1, 4, x[1:], x[:4])
    assert "`out[1]`" in message and "(as `x`)" in message
    run(kernel, 1, 4, x[1:], x[1:])
    run(kernel, 1, 2, x[:2], x[2:4])


def test_arrays_at_other_dtypes_race_by_address():
    pairs = ir.Array("pairs", f64, 1)
    kernel = function(
        (pairs, X),
        ir.If(op("eq", thread(), 0), (store(pairs, 0, 1.0),), (assign(V, load(X, 1)),)),
    )
    memory = np.zeros(2)
    assert "`x[1]`" in found(DataRaceError, kernel, 1, 2, memory, memory.view(np.float32))
    run(kernel, 1, 2, memory[:1], memory[1:].view(np.float32))


def test_what_nobody_writes_is_not_watched():
    kernel = function((X, OUT), store(OUT, thread(), load(X, 0)))
    found = run(kernel, 1, 4, zeros(1), zeros(4))
    assert found.memory is not None
    assert len(found.memory.cells) == 4


def test_a_returned_thread_is_ordered_by_the_barrier():
    kernel = function(
        (OUT,),
        ir.Declare(TILE),
        store(TILE, thread(), 1.0),
        ir.If(op("gt", thread(), 0), (ir.Return(),)),
        ir.Barrier(),
        store(OUT, 0, op("add", load(TILE, 1), load(TILE, 2))),
        arrays=(TILE,),
    )
    out = zeros(1)
    run(kernel, 1, 3, out)
    assert out[0] == 2


def last_block(fence):
    """Each block stores a part; the last one to count itself adds them up."""
    total = ir.Variable("total", f32)
    return function(
        (X, FLAGS, OUT),
        store(X, block(), 1.0),
        *((ir.Fence("device"),) if fence else ()),
        add(result=N),
        ir.If(
            op("eq", N, 2),
            (
                assign(total, 0.0),
                ir.For(
                    K, const(0), const(3), const(1), (assign(total, op("add", total, load(X, K))),)
                ),
                store(OUT, 0, total),
            ),
        ),
    )


@pytest.mark.parametrize("order", ["ascending", "random"])
def test_a_fence_and_an_atomic_pass_memory_to_another_block(order):
    out = zeros(1)
    run(last_block(True), 3, 1, zeros(3), np.zeros(1, np.int32), out, order=order)
    assert out[0] == 3
    found(DataRaceError, last_block(False), 3, 1, zeros(3), np.zeros(1, np.int32), out, order=order)


def test_a_fence_passes_what_the_barrier_gave():
    kernel = function(
        (X, FLAGS, OUT),
        store(X, grid(), 1.0),
        ir.Barrier(),
        ir.If(
            op("eq", thread(), 0),
            (
                ir.Fence("device"),
                add(result=N),
                ir.If(op("eq", N, 1), (store(OUT, 0, op("add", load(X, 1), load(X, 3))),)),
            ),
        ),
    )
    out = zeros(1)
    run(kernel, 2, 2, zeros(4), np.zeros(1, np.int32), out)
    assert out[0] == 2


def test_a_warp_barrier_orders_only_its_lanes():
    def kernel(mask):
        sync = ir.Barrier("warp", mask=const(mask, u32))
        return function(
            (OUT,),
            ir.Declare(TILE),
            store(TILE, thread(), 1.0),
            ir.If(op("lt", thread(), 2), (sync,)) if mask == 3 else sync,
            store(OUT, thread(), load(TILE, op("xor", thread(), 2))),
            arrays=(TILE,),
        )

    run(kernel(0xF), 1, 4, zeros(4))
    with pytest.raises((DataRaceError, UndefinedReadError)):
        run(kernel(0x3), 1, 4, zeros(4))


def test_lanes_of_two_warps_are_not_ordered_by_warp_barriers():
    kernel = function(
        (OUT,),
        ir.Declare(TILE),
        store(TILE, thread(), 1.0),
        ir.Barrier("warp", mask=FULL),
        store(OUT, thread(), load(TILE, op("xor", thread(), 32))),
        arrays=(TILE,),
    )
    assert "`tile[32]`" in found(DataRaceError, kernel, 1, 64, zeros(64))


# ---- barriers ----


def test_two_arms_with_a_barrier_each_diverge():
    kernel = function((X,), ir.If(LAST, (ir.Barrier(),), (ir.Barrier(),)))
    message = found(BarrierError, kernel, 1, 4, zeros(1))
    assert "thread (0, 0, 0) waits at syncthreads() in line 3" in message
    assert "thread (3, 0, 0) waits at syncthreads() in line 2" in message
    run(kernel, 1, 3, zeros(1))
    run(kernel, 1, 4, zeros(1), checks=CHECKS - {"barrier"})


def test_a_barrier_that_some_pass_by_meets_the_next_one():
    kernel = function(
        (X,),
        ir.If(LAST, (ir.Barrier(),)),
        ir.Barrier(vote="or", predicate=const(True, boolean), result=N),
    )
    message = found(BarrierError, kernel, 1, 4, zeros(1))
    assert "syncthreads_or() in line 3" in message and "syncthreads() in line 2" in message


def test_loops_that_end_at_different_times_diverge():
    kernel = function(
        (X,),
        ir.For(K, const(0), op("add", thread(), 1), const(1), (ir.Barrier(),)),
        ir.Barrier(),
    )
    message = found(BarrierError, kernel, 1, 2, zeros(1))
    assert "in line 3" in message and "in line 2" in message
    without = function((X,), *kernel.body[:1])
    run(without, 1, 2, zeros(1))  # a thread that has returned counts as arrived


def test_a_barrier_in_different_iterations_diverges():
    skip = ir.And(op("eq", thread(), 0), op("eq", K, 0))
    kernel = function(
        (X,),
        ir.For(K, const(0), const(3), const(1), (ir.If(skip, (ir.Continue(),)), ir.Barrier())),
        ir.If(op("eq", thread(), 1), (ir.Barrier(),)),
    )
    message = found(BarrierError, kernel, 1, 2, zeros(1))
    assert "in iteration 2 of its loop, thread (1, 0, 0) in iteration 1" in message


def test_a_grid_barrier_that_a_block_does_not_reach_diverges():
    kernel = function(
        (X,), ir.If(op("eq", block(), 0), (ir.Barrier("grid"),), (ir.Barrier("grid"),))
    )
    message = found(BarrierError, kernel, 2, 1, zeros(1))
    assert "grid.sync() in line 2" in message and "of block (1, 0, 0) waits at" in message
    mixed = function((X,), ir.If(LAST, (ir.Barrier("grid"),), (ir.Barrier(),)))
    assert "wait for each other for ever" in found(BarrierError, mixed, 1, 4, zeros(1))


def test_lanes_that_wait_elsewhere():
    kernel = function((X,), ir.If(LAST, (ir.Barrier(),), (ir.Barrier("warp", mask=FULL),)))
    message = found(BarrierError, kernel, 1, 4, zeros(1))
    assert (
        "syncwarp() in line 3" in message and "thread (3, 0, 0) waits at syncthreads()" in message
    )


SHUFFLE = ir.Warp(
    "shfl", ir.Read(ir.Variable("mask", u32)), (const(1, i32), const(3, i32), const(32, i32)), N
)
MASK = ir.Variable("mask", u32)


def masked(mask, *before, shuffle=SHUFFLE):
    return function((X,), assign(MASK, mask), *before, shuffle)


def test_a_lane_must_be_in_its_own_mask():
    message = found(BarrierError, masked(const(0b0111, u32)), 1, 4, zeros(1))
    assert "lane 3 calls shfl_sync() with a mask that does not name it: 0x00000007" in message


def test_lanes_must_give_the_same_mask():
    mask = ir.Select(LAST, const(0xF, u32), const(0x1F, u32))
    message = found(BarrierError, masked(mask), 1, 4, zeros(1))
    assert "different masks: lane 0 0x0000001f, lane 3 0x0000000f" in message


def test_reading_a_lane_outside_the_mask():
    kernel = masked(
        const(0b0111, u32), ir.If(LAST, (ir.Barrier("warp", mask=const(8, u32)), ir.Return()))
    )
    message = found(UndefinedReadError, kernel, 1, 4, zeros(1))
    assert "lane 0 reads lane 3, which" in message
    alive = function(
        (X,),
        assign(MASK, const(0b0111, u32)),
        ir.If(LAST, (), (SHUFFLE,)),
        ir.Barrier(),
    )
    message = found(UndefinedReadError, alive, 1, 4, zeros(1))
    assert "lane 0 reads lane 3, which its mask does not name" in message


def test_reading_a_lane_that_returned():
    kernel = masked(FULL, ir.If(LAST, (ir.Return(),)))
    assert "lane 0 reads lane 3, which has returned" in found(
        UndefinedReadError, kernel, 1, 4, zeros(1)
    )


def test_widths_are_powers_of_two():
    odd = ir.Warp("shfl", FULL, (const(1, i32), const(0, i32), const(12, i32)), N)
    assert "width 12" in found(BarrierError, masked(FULL, shuffle=odd), 1, 4, zeros(1))


def test_waiting_for_another_threads_write_never_ends():
    flag = op("eq", load(FLAGS, 0), 0)
    kernel = function(
        (FLAGS,), ir.If(op("eq", thread(), 0), (ir.While(flag, ()),), (store(FLAGS, 0, 1),))
    )
    message = found(BarrierError, kernel, 1, 2, np.zeros(1, np.int32))
    assert "waits for ever: this loop changes nothing" in message and "line 2" in message


def test_a_lock_that_is_never_free():
    old = ir.Variable("old", i32)
    take = ir.Atomic("cas", FLAGS, (const(0),), (const(0, i32), const(1, i32)), old)
    kernel = function((FLAGS,), assign(old, 1), ir.While(op("ne", old, 0), (take,)))
    assert "waits for ever" in found(BarrierError, kernel, 1, 2, np.zeros(1, np.int32))


def test_a_counting_loop_has_a_budget():
    kernel = function(
        (X,), assign(N, 0), ir.While(const(True, boolean), (assign(N, op("add", N, 1)),))
    )
    assert "waits for ever: 5000 iterations" in found(
        BarrierError, kernel, 1, 1, zeros(1), steps=5000
    )
    waiting = function((X,), ir.While(const(True, boolean), (ir.Barrier(),)))
    assert "waits for ever" in found(BarrierError, waiting, 1, 2, zeros(1), steps=100)


def test_long_loops_end():
    kernel = function(
        (FLAGS,),
        assign(N, 0),
        ir.While(op("lt", N, 4500), (assign(N, op("add", N, 1)),)),
        store(FLAGS, 0, N),
    )
    flags = np.zeros(1, np.int32)
    run(kernel, 1, 1, flags)
    assert flags[0] == 4500


# ---- assert and options ----


def test_an_assertion_tells_its_message_and_thread():
    kernel = function((X,), ir.Assert(op("lt", thread(), 2), ("too large: ", ir.Text(thread()))))
    message = found(KernelAssertionError, kernel, 1, 4, zeros(1))
    assert message.startswith("assertion failed: too large: 2\n") and "thread (2, 0, 0)" in message
    run(kernel, 1, 4, zeros(1), checks=CHECKS - {"assert"})
    plain = function((X,), ir.Assert(const(False, boolean)))
    assert found(KernelAssertionError, plain, 1, 1, zeros(1)).startswith("assertion failed\n")


@pytest.mark.parametrize("options", [{"checks": frozenset({"speed"})}, {"order": "backwards"}])
def test_unknown_options_are_refused(options):
    with pytest.raises(ValueError, match=r"speed|backwards"):
        Interpreter(function((X,)), **options)


def test_a_run_is_silent_about_numpy():
    kernel = function(
        (X, FLAGS),
        store(X, 0, op("mul", load(X, 0), load(X, 0))),
        store(FLAGS, 0, op("mul", load(FLAGS, 0), load(FLAGS, 0))),
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run(kernel, 1, 1, np.full(1, 1e30, np.float32), np.full(1, 2**30, np.int32))


# ---- races, against their definition ----

THREADS, BLOCKS, PHASES, CELLS = 3, 2, 3, 4
# Few accesses, so that about half of the programs have no race: (phase, thread, kind, cell).
ACCESS = st.tuples(
    st.integers(0, PHASES - 1),
    st.integers(0, THREADS * BLOCKS - 1),
    st.sampled_from(["read", "write", "atomic"]),
    st.integers(0, CELLS - 1),
)


def races(program):
    """By definition: unordered accesses of one cell, one of them a write, not both atomic."""
    for (p, a, kind, cell), (q, b, other, same) in itertools.combinations(program, 2):
        ordered = a == b or (a // THREADS == b // THREADS and p != q)
        if cell == same and not ordered and {kind, other} not in ({"read"}, {"atomic"}):
            return True
    return False


def program_kernel(program):
    """Every write stores another value, so that none is let pass for its equal bits."""
    body: list[ir.Statement] = []
    for phase in range(PHASES):
        for k, (when, number, kind, cell) in enumerate(program, 1):
            if when == phase:
                access = {
                    "read": assign(N, load(FLAGS, cell)),
                    "write": store(FLAGS, cell, k),
                    "atomic": add(i=cell),
                }[kind]
                body.append(ir.If(op("eq", grid(), number), (access,)))
        body.append(ir.Barrier())
    return function((FLAGS,), *body)


@hypothesis.given(
    st.lists(ACCESS, max_size=7), st.sampled_from(["ascending", "random"]), st.integers(0, 99)
)
@hypothesis.settings(max_examples=300)
def test_a_race_is_found_exactly_where_there_is_one(program, order, seed):
    kernel = program_kernel(program)
    memory = np.full(CELLS, -1000, np.int32)
    try:
        run(kernel, BLOCKS, THREADS, memory, order=order, seed=seed)
        found = False
    except DataRaceError:
        found = True
    assert found == races(program)


# ---- the same on every device that checks ----

CHECKED = pytest.mark.parametrize("where", ["sim", "cpu"])


@ruda.jit
def element(x, i, out):
    out[0] = x[i[0]]


@ruda.jit
def put(x, i, out):
    x[i[0]] = 7


@ruda.jit
def add_to(x, i, out):
    ruda.atomic.add(x, i[0], 7)


@ruda.jit
def of_slice(x, i, out):
    part = x[2:7]
    out[0] = part[i[0]]


@ruda.jit
def of_steps(x, i, out):
    part = x[::-2]
    part[i[0]] = 7


@ruda.jit
def slice_to(x, i, out):
    out[0] = x[: i[0]].size


def launched(where, kernel, *arguments, threads=1, check=True):
    with ruda.config(device=where, check=check):
        kernel[1, threads](*arguments)


INDICES = [
    (np.uint64, 2**64 - 1), (np.uint64, 2**63), (np.uint32, 2**32 - 1), (np.uint8, 255),
    (np.int64, -(2**63)), (np.int64, 2**63 - 1), (np.int32, -11), (np.int8, -128), (np.int64, 10),
]  # fmt: skip


@CHECKED
@pytest.mark.parametrize("kernel", [element, put, add_to], ids=lambda k: k.__name__)
@pytest.mark.parametrize("dtype, i", INDICES)
def test_an_index_outside_is_named_as_it_was_written(where, kernel, dtype, i):
    x = np.arange(10.0)
    with pytest.raises(OutOfBoundsError, match=rf"`x\[{i}\]` .* index {i} on axis 0,"):
        launched(where, kernel, x, np.array([i], dtype), np.zeros(1))
    assert x.tolist() == list(range(10))


@CHECKED
@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int32, np.uint32, np.int64, np.uint64])
def test_indices_of_every_dtype_that_are_inside(where, dtype):
    x, out = np.arange(10.0), np.zeros(1)
    for i in (0, 9, *([-1, -10] if np.dtype(dtype).kind == "i" else [])):
        launched(where, element, x, np.array([i], dtype), out)
        assert out[0] == x[i]


@CHECKED
@pytest.mark.parametrize("check", [True, False])
@pytest.mark.parametrize("i", [0, 3, 10, 11, 2**63 - 1, 2**63, 2**64 - 1])
def test_an_unsigned_bound_of_a_slice_never_counts_from_the_end(where, check, i):
    out = np.zeros(1)
    launched(where, slice_to, np.arange(10.0), np.array([i], np.uint64), out, check=check)
    assert out[0] == min(i, 10)


@CHECKED
@pytest.mark.parametrize("dtype, i", [*INDICES, (np.int64, 5), (np.int64, -6)])
def test_an_index_outside_a_slice_is_found_though_the_array_is_larger(where, dtype, i):
    message = rf"index {i} is out of bounds for a slice of 5 elements"
    for kernel in (of_slice, of_steps):
        with pytest.raises(OutOfBoundsError, match=message) as caught:
            launched(where, kernel, np.arange(10.0), np.array([i], dtype), np.zeros(1))
        assert caught.value.place.line in (kernel.py_func.__code__.co_firstlineno + 3,)


@CHECKED
def test_indices_inside_a_slice(where):
    for i in range(-5, 5):
        x, out = np.arange(10.0), np.zeros(1)
        launched(where, of_slice, x, np.array([i]), out)
        launched(where, of_steps, x, np.array([i]), out)
        expected = np.arange(10.0)
        expected[::-2][i] = 7
        assert out[0] == x[2:7][i] or expected[2:7][i] == 7
        np.testing.assert_array_equal(x, expected)


@CHECKED
def test_a_constant_index_outside_is_named_as_it_was_written(where):
    @ruda.jit
    def fixed(x, out):
        out[0] = x[-6]

    with pytest.raises(OutOfBoundsError, match=r"`x\[-6\]` .* index -6 on axis 0"):
        launched(where, fixed, np.arange(5.0), np.zeros(1))
    launched(where, fixed, np.arange(7.0), out := np.zeros(1))
    assert out[0] == 1


def test_a_constant_that_no_index_can_be():
    big = np.uint64(2**64 - 1)

    @ruda.jit
    def fixed(x):
        x[big] = 1

    with pytest.raises(KernelValueError, match="index 18446744073709551615 is out of range"):
        fixed[1, 1](np.zeros(3))


@CHECKED
def test_an_index_of_a_thread_that_counts_from_the_end_is_told_once(where):
    @ruda.jit
    def shifted(x, out):
        i = ruda.grid(1)
        out[i] = x[i - 3]

    x, out = np.arange(5.0), np.zeros(5)
    with pytest.warns(LaunchWarning, match="the index -3 of `x`, made from a thread") as caught:
        launched(where, shifted, x, out, threads=5)
    assert len(caught) == 1 and caught[0].lineno == shifted.py_func.__code__.co_firstlineno + 3
    launched(where, shifted, x, out, threads=5)
    np.testing.assert_array_equal(out, np.roll(x, 3))


def test_prints_do_not_crowd_out_a_failure_and_notes_are_few():
    @ruda.jit(check=True)
    def noisy(x, n):
        i = ruda.grid(1)
        if i < n:
            print(i, x[i - n])
        assert i < n, "late"

    with ruda.config(device="cpu", report_bytes=1 << 12):
        full = pytest.warns(LaunchWarning, match=r"\d+ reports did not fit the buffer; RUDA")
        with full, pytest.raises(KernelAssertionError, match="late"):
            noisy[101, 100](np.zeros(10_000), 10_000)
        with pytest.warns(LaunchWarning) as caught:
            noisy[100, 100](np.zeros(10_000), 10_000)
    assert sorted("counts from" in str(w.message) for w in caught) == [False, True]


@ruda.jit
def two_arms(x, out):
    i = ruda.threadIdx.x
    if x[i] > 0:
        ruda.syncthreads()
        out[i] = 1
    else:
        ruda.syncthreads()
        out[i] = 2


@ruda.jit
def own_count(x, out):
    i = ruda.threadIdx.x
    for _ in range(x[i]):
        ruda.syncthreads()
        out[i] += 1


@ruda.jit
def own_count_and_vote(x, out):
    i = ruda.threadIdx.x
    k = 0
    while k < x[i]:
        ruda.syncthreads()
        k += 1
    out[i] = ruda.syncthreads_count(k > 1)


@ruda.jit
def left_out(x, out):
    i = ruda.threadIdx.x
    for k in range(3):
        if x[i] == k:
            continue
        ruda.syncthreads()
        out[i] += 1


@ruda.jit
def returned(x, out):
    i = ruda.threadIdx.x
    if x[i] == 0:
        return
    ruda.syncthreads()
    out[i] = 1


@CHECKED
@pytest.mark.parametrize(
    "kernel, diverges",
    [(two_arms, True), (own_count, False), (own_count_and_vote, True), (left_out, True),
     (returned, False)],
    ids=lambda v: getattr(v, "__name__", str(v)),
)  # fmt: skip
def test_a_barrier_whose_condition_data_decides(where, kernel, diverges):
    """A thread that has returned counts as arrived; one that waits elsewhere does not."""
    launched(where, kernel, np.full(4, 2), np.zeros(4, int), threads=4)
    x = np.array([1, 0, 2, 1])
    if diverges:
        with pytest.raises(BarrierError, match="divergent barrier"):
            launched(where, kernel, x, np.zeros(4, int), threads=4)
    else:
        launched(where, kernel, x, out := np.zeros(4, int), threads=4)
        assert out.tolist() == (x if kernel is own_count else x > 0).tolist()


def test_explain_names_barriers_that_perhaps_not_every_thread_reaches():
    text = str(ruda.explain(left_out, "i64[:]", "i64[:]"))
    assert "barriers that perhaps not every thread reaches" in text and "check=True" in text
    assert not ruda.explain(returned, "i64[:]", "i64[:]").barriers


# ---- promises ------------------------------------------------------------------------------------


@ruda.jit
def promises(x, out):
    same = ruda.uniform(x[ruda.threadIdx.x])
    if same > 0:
        ruda.syncthreads()
    out[ruda.threadIdx.x] = same


def test_a_broken_promise_of_uniform_is_found():
    with ruda.debug(), pytest.raises(ruda.errors.UniformError) as error:
        promises[1, 4](np.array([1.0, 1.0, 2.0, 1.0]), np.zeros(4))
    text = str(error.value)
    assert "it is 2.0 here and 1.0 in thread (0, 0, 0)" in text and "thread (2, 0, 0)" in text
    assert "same = ruda.uniform(x[ruda.threadIdx.x])" in text


def test_a_promise_of_uniform_that_is_kept(device):
    out = np.zeros(4)
    with ruda.config(device=device):
        promises[1, 4](np.full(4, 3.0), out)
        assert out.tolist() == [3] * 4
        promises[1, 4](np.full(4, np.nan), out)  # NaN is the same as NaN
        assert np.isnan(out).all()


@ruda.jit
def promised_thread(out):
    if ruda.uniform(ruda.threadIdx.x // 32) == 0:
        ruda.syncthreads()
    out[ruda.threadIdx.x] = 1


def test_a_promise_about_the_thread_itself(device):
    """The first thread speaks for all where the block asks."""
    out = np.zeros(4)
    with ruda.config(device=device):
        promised_thread[1, 4](out)
    assert out.tolist() == [1] * 4
