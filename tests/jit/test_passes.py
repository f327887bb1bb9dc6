"""The passes of the CPU target, one by one, on IR built by hand."""

from __future__ import annotations

import numpy as np
import pytest

from ruda import dtypes
from ruda.backends.base import Launch
from ruda.backends.cpu.device import BACKEND
from ruda.errors import DivergentBarrierError
from ruda.jit import ir, passes
from ruda.jit.interpret import Interpreter
from ruda.jit.passes.conditions import join_conditions
from ruda.jit.passes.flatten import flat_axis, is_flat
from ruda.jit.passes.indices import simplify
from ruda.jit.passes.jumps import structure_jumps
from ruda.jit.passes.uniformity import Verdict, analyse, check_barriers
from ruda.jit.passes.wraps import remove_wraps
from tests.jit.build import (
    assign,
    block,
    boolean,
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

x, y, out = (ir.Array(n, i32, 1) for n in ("x", "y", "out"))
i, j, k = (ir.Variable(v, index) for v in "ijk")
a, b = (ir.Variable(v, i32) for v in "ab")
flag = ir.Variable("flag", boolean)
number = ir.Variable("number", dtypes.int64)


def wrapped(value, array=x):
    return ir.Op("wrap", (expression(value), ir.Extent(array, 0)), index)


def wraps(kernel):
    """The indices that may still be negative, as text."""
    from ruda.jit.dump import expression as text

    left = remove_wraps(kernel)
    return [
        text(e.operands[0])
        for e in ir.all_expressions(left.body)
        if isinstance(e, ir.Op) and e.name == "wrap"
    ]


def loop(variable, start, stop, *body, step=1):
    return ir.For(variable, expression(start), expression(stop), const(step), tuple(body))


def when(condition, *then, otherwise=()):
    return ir.If(condition, tuple(then), tuple(otherwise))


def read(value):
    return store(out, 0, load(x, wrapped(value)))


def on_sim(kernel, blocks, threads, *arguments):
    Interpreter(kernel).run((blocks, 1, 1), (threads, 1, 1), arguments, 0)


def on_cpu(kernel, blocks, threads, *arguments):
    target = BACKEND.target("cpu")
    binary = BACKEND.compile(BACKEND.emit(kernel, target), target)
    launch = Launch((blocks, 1, 1), (threads, 1, 1))
    BACKEND.launcher(BACKEND.load(binary, kernel, "cpu"), launch, None)(*arguments)


def agree(kernel, blocks, threads, *arguments, lowering=()):
    """The kernel on sim, after `lowering` on sim, and on the CPU: all write the same."""
    results = []
    lowered = kernel
    for one in lowering:
        lowered = one(lowered)
    for how, f in ((on_sim, kernel), (on_sim, lowered), (on_cpu, kernel)):
        copies = [v.copy() if isinstance(v, np.ndarray) else v for v in arguments]
        how(f, blocks, threads, *copies)
        results.append([v for v in copies if isinstance(v, np.ndarray)])
    for other in results[1:]:
        for first, second in zip(results[0], other, strict=True):
            assert np.array_equal(first, second, equal_nan=first.dtype.kind == "f")
    return results[0]


# ---- wraps ---------------------------------------------------------------------------------------

INSIDE = op("lt", i, ir.Extent(x, 0))


@pytest.mark.parametrize(
    "body",
    [
        (read(thread()),),
        (read(op("add", op("mul", block(), 256), thread())),),
        (assign(i, grid()), when(op("gt", i, 0), read(op("sub", i, 1)))),
        (assign(i, grid()), when(op("lt", i, 1), ir.Return()), read(op("sub", i, 1))),
        (assign(i, grid()), when(op("ne", i, 0), read(op("sub", i, 1)))),
        (assign(i, grid()), when(ir.And(op("ge", i, 2), INSIDE), read(op("sub", i, 2)))),
        (
            assign(i, grid()),
            when(ir.Or(op("lt", i, 2), op("gt", i, 9)), otherwise=[read(op("sub", i, 2))]),
        ),
        (loop(k, 0, ir.Extent(x, 0), read(k)),),
        (loop(k, op("sub", ir.Extent(x, 0), 1), const(-1), read(k), step=-1),),
        (loop(k, -1, 2, read(op("add", k, 1))),),
        (assign(i, grid()), when(op("gt", i, 0), loop(k, -1, 2, read(op("add", i, k))))),
        (
            assign(j, grid()),
            ir.While(op("gt", j, 0), (read(op("sub", j, 1)), assign(j, op("floordiv", j, 2)))),
        ),
        (assign(j, 0), ir.While(op("gt", load(x, j), 0), (assign(j, op("add", j, 1)), read(j)))),
        (read(ir.Cast(op("mod", load(x, 0), 7), index)),),
        (read(ir.Cast(op("and", load(x, 0), 255), index)),),
        (read(ir.Cast(load(ir.Array("bytes", dtypes.uint8, 1), 0), index)),),
        (read(op("max", op("sub", grid(), 5), 0)),),
        (read(ir.Select(op("gt", grid(), 3), op("sub", grid(), 3), const(0))),),
        (
            assign(a, 3),
            when(op("gt", load(y, 0), 0), assign(a, 5)),
            read(ir.Cast(ir.Read(a), index)),
        ),
    ],
    ids=range(19),
)
def test_wrap_goes_where_the_index_cannot_be_negative(body):
    assert wraps(function((x, y, out), *body)) == []


@pytest.mark.parametrize(
    "body",
    [
        (read(op("sub", thread(), 1)),),
        (assign(i, grid()), when(op("gt", i, 0), read(op("sub", i, 2)))),
        (assign(i, grid()), when(op("gt", i, 1), otherwise=[read(op("sub", i, 1))])),
        (read(ir.Cast(load(x, 0), index)),),
        (loop(k, -1, 2, read(k)),),
        (read(ir.Cast(ir.Read(number), index)),),
        (assign(j, 5), ir.While(op("gt", load(x, 0), 0), (read(j), assign(j, op("sub", j, 1))))),
        (assign(j, 5), loop(k, 0, 9, assign(j, op("sub", j, 1))), read(j)),
        # `continue` skips the line that keeps j positive
        (
            assign(j, 5),
            loop(
                k,
                0,
                9,
                assign(j, op("sub", j, 1)),
                when(op("gt", load(x, 0), 0), ir.Continue()),
                assign(j, op("max", j, 0)),
            ),
            read(j),
        ),
        # ... and `break` leaves before it
        (
            assign(j, 5),
            loop(
                k,
                0,
                9,
                assign(j, op("sub", j, 9)),
                when(op("gt", load(x, 0), 0), ir.Break()),
                assign(j, 0),
            ),
            read(j),
        ),
        (read(ir.Cast(ir.Cast(op("mul", grid(), 1 << 20), i32), index)),),  # wraps at 32 bits
        (read(op("mul", op("mul", grid(), 1 << 30), 1 << 30)),),  # may wrap at 64 bits
    ],
    ids=range(12),
)
def test_wrap_stays_where_the_index_may_be_negative(body):
    assert wraps(function((x, number, out), *body)) != []


def test_index_that_is_always_negative_counts_from_the_end():
    kernel = function(
        (x, out), store(out, 0, load(x, wrapped(-1))), store(out, 1, load(x, wrapped(-3)))
    )
    assert wraps(kernel) == []
    data = np.array([4, 5, 6], np.int32)
    assert agree(kernel, 1, 1, data, np.zeros(2, np.int32))[1].tolist() == [6, 4]


# ---- guards --------------------------------------------------------------------------------------


def bounds(kernel):
    """Text of the innermost loop's head on the CPU."""
    text = BACKEND.emit(kernel, BACKEND.target("cpu")).text
    return [line.strip() for line in text.splitlines() if "for " in line][-1]


@pytest.mark.parametrize(
    ("condition", "head"),
    [
        (INSIDE, "for i in range(lo, min_i64(hi, x_n0)):"),
        (op("ge", i, ir.Extent(x, 0)), "for i in range(max_i64(lo, x_n0), hi):"),
        (
            ir.And(op("lt", const(0), i), INSIDE),
            "for i in range(max_i64(lo, 1), min_i64(hi, x_n0)):",
        ),
        (
            op("lt", op("add", i, 2), ir.Extent(x, 0)),
            "for i in range(lo, min_i64(hi, x_n0 - 2)):",
        ),
        (op("le", i, 9), "for i in range(lo, min_i64(hi, 10)):"),
        (op("gt", ir.Extent(x, 0), i), "for i in range(lo, min_i64(hi, x_n0)):"),
    ],
)
def test_guard_becomes_the_loop_bound(condition, head):
    kernel = function((x,), assign(i, grid()), when(condition, store(x, i, 1)))
    assert bounds(kernel) == head


def test_return_at_the_top_is_a_guard():
    outside = op("ge", i, ir.Extent(x, 0))
    kernel = function((x,), assign(i, grid()), when(outside, ir.Return()), store(x, i, 1))
    assert bounds(kernel) == "for i in range(lo, min_i64(hi, x_n0)):"


@pytest.mark.parametrize("name", ["lt", "le", "gt", "ge"])
@pytest.mark.parametrize("limit", [-(1 << 63), -5, 0, 3, 7, (1 << 63) - 1])
@pytest.mark.parametrize("shift", [-2, 0, 3])
def test_guards_at_the_ends_of_int64(name, limit, shift):
    condition = op(name, op("add", i, shift), ir.Cast(ir.Read(number), index))
    kernel = function((number, out), assign(i, grid()), when(condition, store(out, i, 1)))
    compare = {"lt": "__lt__", "le": "__le__", "gt": "__gt__", "ge": "__ge__"}[name]
    expected = [int(getattr(t + shift, compare)(limit)) for t in range(8)]
    result = np.zeros(8, np.int32)
    on_cpu(kernel, 2, 4, np.int64(limit), result)
    assert result.tolist() == expected


def test_guard_of_a_loop_whose_head_is_read_later_stays():
    """t is what it was in the last round, also where the guard failed."""
    kernel = function(
        (x, out),
        assign(i, 0),
        loop(k, 0, 8, assign(i, op("mul", k, 2)), when(op("lt", k, 3), store(x, k, 1))),
        store(out, 0, ir.Cast(ir.Read(i), i32)),
    )
    assert agree(kernel, 1, 1, np.zeros(8, np.int32), np.zeros(1, np.int32))[1][0] == 14


def test_kept_parts_of_a_guard_run_inside_the_bounds_only():
    condition = ir.And(INSIDE, op("gt", load(x, i), 0))
    kernel = function((x, out), assign(i, grid()), when(condition, store(out, i, 1)))
    data = np.array([1, 0, 2], np.int32)
    assert agree(kernel, 4, 64, data, np.zeros(256, np.int32))[1].tolist() == [1, 0, 1] + [0] * 253


# ---- returns and jumps ---------------------------------------------------------------------------


def early(condition):
    return when(condition, ir.Return())


@pytest.mark.parametrize(
    "body",
    [
        (early(op("lt", load(x, i), 3)), store(out, i, 1)),
        (
            when(
                op("lt", load(x, i), 3), store(out, i, 5), ir.Return(), otherwise=[store(out, i, 6)]
            ),
            store(y, i, 1),
        ),
        (when(op("lt", load(x, i), 3), otherwise=[ir.Return()]), store(out, i, 2)),
        (
            loop(
                k,
                0,
                5,
                early(op("eq", ir.Cast(ir.Read(k), i32), load(x, i))),
                store(out, i, ir.Cast(ir.Read(k), i32)),
            ),
            store(y, i, 1),
        ),
        (
            loop(
                k,
                0,
                3,
                loop(
                    j,
                    0,
                    3,
                    early(op("eq", ir.Cast(op("mul", k, j), i32), load(x, i))),
                    store(out, i, 4),
                ),
            ),
            store(y, i, 1),
        ),
        (
            when(op("gt", load(x, i), 1), early(op("gt", load(x, i), 3)), store(out, i, 7)),
            store(y, i, 2),
        ),
        (
            assign(a, load(x, i)),
            ir.While(op("gt", a, 0), (assign(a, op("sub", a, 1)), early(op("eq", a, 2)))),
            store(out, i, 8),
        ),
        (ir.Return(), store(out, i, 9)),
    ],
    ids=range(8),
)
def test_kernels_with_returns(body):
    kernel = function((x, y, out), assign(i, grid()), *body)
    data = np.arange(8, dtype=np.int32)
    zeros = np.zeros(8, np.int32)
    structured = structure_jumps(kernel)
    assert not any(isinstance(s, ir.Return) for s in ir.statements(structured.body))
    agree(kernel, 2, 4, data, zeros, zeros, lowering=(structure_jumps,))


S = ir.Array("s", i32, 1, space="shared", shape=(4,))


def turn():
    """All threads add 1 to their neighbour's cell, in two steps with barriers."""
    me, next_ = thread(), op("mod", op("add", thread(), 1), 4)
    return (
        assign(b, load(S, me)),
        ir.Barrier(),
        store(S, next_, op("add", b, 1)),
        ir.Barrier(),
    )


@pytest.mark.parametrize(
    "body",
    [
        (loop(k, 0, 5, *turn()),),
        (loop(k, 0, 9, when(op("eq", k, 3), ir.Break()), *turn()),),
        (loop(k, 0, 9, when(op("lt", k, 3), ir.Continue()), *turn()),),
        (loop(k, 0, 9, *turn(), when(op("gt", load(S, 0), 3), ir.Break()), ir.Barrier()),),
        (assign(i, 4), ir.While(op("gt", i, 0), (*turn(), assign(i, op("floordiv", i, 2))))),
        (when(op("gt", block(), 0), *turn(), otherwise=(*turn(), *turn())),),
        (loop(k, 0, 2, loop(j, 0, 3, *turn(), when(op("eq", op("add", j, k), 2), ir.Break()))),),
        (when(op("gt", block(), 0), ir.Return()), *turn()),
        (loop(k, 0, 4, *turn(), when(op("eq", k, 2), ir.Return())),),
    ],
    ids=range(9),
)
def test_kernels_with_barriers_under_control_flow(body):
    kernel = function(
        (out,),
        store(S, thread(), ir.Cast(op("mul", thread(), 10), i32)),
        ir.Barrier(),
        *body,
        store(out, grid(), load(S, thread())),
        arrays=(S,),
        block=(4, 1, 1),
    )
    agree(kernel, 2, 4, np.zeros(8, np.int32))


def test_values_live_across_barriers_also_when_assigned_on_some_paths_only():
    kernel = function(
        (x, out),
        assign(i, grid()),
        assign(a, 1),
        when(op("gt", load(x, i), 3), assign(a, load(x, i))),
        ir.Barrier(),
        when(op("gt", load(x, i), 5), assign(a, op("add", a, 100))),
        ir.Barrier(),
        loop(k, 0, 3, assign(a, op("add", a, 1)), ir.Barrier()),
        store(out, i, ir.Read(a)),
        block=(4, 1, 1),
    )
    agree(kernel, 2, 4, np.arange(8, dtype=np.int32), np.zeros(8, np.int32))


def test_uniform_counter_of_a_loop_without_barrier_is_not_counted_once_a_thread():
    kernel = function(
        (out,),
        assign(a, 0),
        loop(k, 0, 5, assign(a, op("add", a, 1)), store(out, thread(), ir.Read(a))),
        ir.Barrier(),
        store(out, thread(), op("add", load(out, thread()), a)),
        block=(4, 1, 1),
    )
    assert agree(kernel, 1, 4, np.zeros(4, np.int32))[0].tolist() == [10] * 4


def test_uniform_value_changed_between_regions_is_read_at_the_right_time():
    kernel = function(
        (out,),
        assign(a, 1),
        store(out, thread(), ir.Read(a)),
        assign(a, 2),
        ir.Barrier(),
        store(out, thread(), op("add", op("mul", load(out, thread()), 10), a)),
        block=(4, 1, 1),
    )
    assert agree(kernel, 1, 4, np.zeros(4, np.int32))[0].tolist() == [12] * 4


# ---- conditions ----------------------------------------------------------------------------------


def test_condition_in_steps_becomes_one():
    kernel = join_conditions(
        function(
            (x, out),
            assign(i, grid()),
            assign(flag, op("gt", i, 0)),
            when(ir.Read(flag), assign(j, i), assign(flag, op("lt", j, 5))),
            when(ir.Read(flag), store(out, i, 1)),
        )
    )
    (_, guard) = kernel.body
    assert isinstance(guard, ir.If) and isinstance(guard.condition, ir.And)


def test_copies_of_variables_that_change_are_kept():
    """`previous = current` before `current` is loaded anew."""
    kernel = function(
        (x, out),
        assign(b, 0),
        loop(k, 0, 4, assign(a, b), assign(b, load(x, k)), store(out, k, op("sub", b, a))),
    )
    data = np.array([1, 5, 7, 20], np.int32)
    result = agree(kernel, 1, 1, data, np.zeros(4, np.int32), lowering=(join_conditions,))
    assert result[1].tolist() == [1, 4, 2, 13]


# ---- uniformity ----------------------------------------------------------------------------------

EVERY = {
    "constant": (op("lt", const(1), 2), Verdict.UNIFORM),
    "block index": (op("lt", block(), 2), Verdict.UNIFORM),
    "parameter": (op("lt", ir.Read(number), 2), Verdict.UNIFORM),
    "memory that nobody writes": (op("lt", load(x, 0), 2), Verdict.UNIFORM),
    "memory that is written": (op("lt", load(out, 0), 2), Verdict.UNKNOWN),
    "thread's own datum": (op("lt", load(x, thread()), 2), Verdict.UNKNOWN),
    "thread against extent": (op("lt", thread(), ir.Extent(x, 0)), Verdict.UNKNOWN),
    "thread": (op("lt", thread(), 2), Verdict.DIVERGENT),
    "odd threads": (op("eq", op("mod", thread(), 2), 1), Verdict.DIVERGENT),
    "all threads": (op("lt", thread(), 8), Verdict.UNIFORM),
    "no thread": (op("ge", op("floordiv", thread(), 8), 1), Verdict.UNIFORM),
    "an axis of one thread": (op("eq", thread(1), 0), Verdict.UNIFORM),
    "promised": (op("lt", op("uniform", load(out, thread())), 2), Verdict.UNIFORM),
}


@pytest.mark.parametrize("name", EVERY)
def test_verdicts(name):
    condition, expected = EVERY[name]
    kernel = function(
        (x, number, out), store(out, 0, 1), when(condition, ir.Barrier()), block=(8, 1, 1)
    )
    state = analyse(kernel)
    assert state.verdict(condition) is expected
    if expected is Verdict.DIVERGENT:
        with pytest.raises(DivergentBarrierError) as caught:
            check_barriers(kernel)
        assert caught.value.lineno == 3
    else:
        check_barriers(kernel)


def test_value_assigned_under_a_divergent_condition_is_divergent():
    kernel = function(
        (out,),
        assign(a, 0),
        when(op("lt", thread(), 3), assign(a, 1)),
        when(op("eq", a, 1), ir.Barrier()),
        block=(8, 1, 1),
    )
    with pytest.raises(DivergentBarrierError):
        check_barriers(kernel)


def test_barrier_after_divergent_return_is_allowed():
    kernel = function(
        (out,), when(op("lt", thread(), 3), ir.Return()), ir.Barrier(), block=(8, 1, 1)
    )
    check_barriers(structure_jumps(kernel))


def test_loop_left_at_different_times_makes_its_counter_divergent():
    kernel = function(
        (out,),
        assign(a, 0),
        loop(k, 0, 9, assign(a, op("add", a, 1)), when(op("gt", k, thread()), ir.Break())),
        when(op("eq", a, 3), ir.Barrier()),
        block=(8, 1, 1),
    )
    assert analyse(kernel).verdict(op("eq", a, 3)) is not Verdict.UNIFORM


# ---- flat kernels --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "flat"),
    [
        (grid(), True),
        (op("add", op("mul", block(), ir.Special("blockDim")), thread()), True),
        (op("add", thread(), op("mul", ir.Special("blockDim"), block())), True),
        (op("add", op("mul", block(1), ir.Special("blockDim")), thread()), False),
        (thread(), False),
        (block(), False),
    ],
)
def test_kernels_that_know_only_their_global_index_are_flat(value, flat):
    kernel = simplify(function((out,), store(out, value, 1)))
    assert is_flat(kernel) is flat
    assert passes.needs_block(function((out,), store(out, value, 1))) is (
        value != grid() and value != block()
    )


def test_outermost_axis_in_use_is_shared_out():
    assert flat_axis(function((out,), store(out, grid(0), 1))) == 0
    assert flat_axis(function((out,), store(out, op("add", grid(2), grid(0)), 1))) == 2


def test_loops_with_the_stride_of_the_grid_run_contiguously():
    kernel = function(
        (x, out),
        ir.For(k, grid(), ir.Extent(x, 0), ir.Special("globalDim"), (store(out, k, load(x, k)),)),
    )
    assert bounds(kernel) == "for k in range(k_base + lo, min_i64(k_base + hi, x_n0)):"
    data = np.arange(1000, dtype=np.int32)
    assert np.array_equal(agree(kernel, 3, 32, data, np.zeros(1000, np.int32))[1], data)


def test_grid_stride_loop_that_carries_a_sum_stays_a_loop_of_each_thread():
    kernel = function(
        (x, out),
        assign(a, 0),
        ir.For(
            k,
            grid(),
            ir.Extent(x, 0),
            ir.Special("globalDim"),
            (assign(a, op("add", a, load(x, k))),),
        ),
        store(out, grid(), ir.Read(a)),
    )
    agree(kernel, 3, 8, np.arange(100, dtype=np.int32), np.zeros(24, np.int32))


# ---- rows of threads -----------------------------------------------------------------------------


@pytest.mark.parametrize("tile", [8, 16, 32])
def test_tiled_product_is_exact_in_the_order_of_k(tile, rng):
    """Sharing rows and cutting loops into strips changes no sum: k goes up in each of them."""
    A, B, C = (ir.Array(m, f32, 2) for m in "ABC")
    s, t = (ir.Array(m, f32, 2, space="shared", shape=(tile, tile)) for m in "st")
    acc, r, q = ir.Variable("acc", f32), ir.Variable("r", index), ir.Variable("q", index)
    ty, tx = thread(1), thread(0)
    kernel = function(
        (A, B, C),
        assign(i, grid(1)),
        assign(j, grid(0)),
        assign(acc, 0.0),
        loop(
            r,
            0,
            op("floordiv", ir.Extent(A, 1), tile),
            store(s, (ty, tx), load(A, i, op("add", op("mul", r, tile), tx))),
            store(t, (ty, tx), load(B, op("add", op("mul", r, tile), ty), j)),
            ir.Barrier(),
            loop(
                q, 0, tile, assign(acc, op("add", acc, op("mul", load(s, ty, q), load(t, q, tx))))
            ),
            ir.Barrier(),
        ),
        store(C, (i, j), ir.Read(acc)),
        arrays=(s, t),
        block=(tile, tile, 1),
        contract=False,
    )
    left, right = rng.random((2, 64, 64), np.float32)
    result = np.zeros((64, 64), np.float32)
    target = BACKEND.target("cpu")
    module = BACKEND.load(BACKEND.compile(BACKEND.emit(kernel, target), target), kernel, "cpu")
    blocks = 64 // tile
    BACKEND.launcher(module, Launch((blocks, blocks, 1), (tile, tile, 1)), None)(
        left, right, result
    )
    expected = np.zeros((64, 64), np.float32)
    for q_ in range(64):
        expected += left[:, q_ : q_ + 1] * right[q_ : q_ + 1, :]
    assert np.array_equal(result, expected)


@pytest.mark.parametrize("blocks", [(1, 1, 1), (3, 5, 2), (8, 2, 1), (17, 3, 1), (9, 1, 4)])
def test_blocks_that_share_tiles_run_in_columns_and_each_runs_once(blocks):
    count = ir.Array("count", i32, 3)
    here = tuple(block(axis) for axis in (2, 1, 0))
    seen = op("add", load(count, *here), 1)
    kernel = function(
        (count,),
        loop(k, 0, 2, store(S, thread(), 0), ir.Barrier(), loop(j, 0, 2, store(S, thread(), 1))),
        when(op("eq", ir.Cast(thread(), i32), 0), store(count, here, seen)),
        arrays=(S,),
        block=(4, 1, 1),
        check=True,
    )
    result = np.zeros(blocks[::-1], np.int32)
    target = BACKEND.target("cpu")
    source = BACKEND.emit(kernel, target)
    assert "in_column" in source.text
    module = BACKEND.load(BACKEND.compile(source, target), kernel, "cpu")
    BACKEND.launcher(module, Launch(blocks, (4, 1, 1)), None)(result)
    assert (result == 1).all()
