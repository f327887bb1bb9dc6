"""Blocks that go through strided loops together: nothing may change, whatever part is run."""

from __future__ import annotations

import numpy as np
import pytest

from ruda.backends import cpu_pool
from ruda.backends.base import Launch
from ruda.backends.cpu.device import BACKEND, layout, pack
from ruda.jit import ir
from ruda.jit.interpret import Interpreter
from ruda.jit.passes.groups import MOST
from tests.jit.build import (
    assign,
    boolean,
    const,
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
from tests.jit.test_strides import loop, plus, when

x, out, flags = (ir.Array(n, i32, 1) for n in ("x", "out", "flags"))
S = ir.Array("s", i32, 2, space="shared", shape=(2, 4))
L = ir.Array("l", i32, 1, space="local", shape=(2,))
k, n = (ir.Variable(v, index) for v in "kn")
a, old = (ir.Variable(v, i32) for v in ("a", "old"))
seen = ir.Variable("seen", boolean)
N, GRID = ir.Extent(x, 0), ir.Special("globalDim")
BLOCKS = ir.Special("gridDim")
ZERO, LAST = const(0), op("sub", BLOCKS, 1)
MINE = (op("mod", thread(), 2), op("floordiv", thread(), 2))
STRIDED = loop(grid(), N, GRID, plus(a, load(x, k)))
NEIGHBOUR = (
    op("mod", op("add", thread(), 1), 2),
    op("floordiv", op("mod", op("add", thread(), 1), 8), 2),
)
PARITY = op("mod", ir.Cast(load(x, k), index), 2)
SUM = (assign(a, 0), STRIDED, store(S, MINE, ir.Read(a)), ir.Barrier())
WRITE = store(out, grid(), op("add", op("mul", load(S, *NEIGHBOUR), 2), load(S, *MINE)))

TOGETHER = {
    "sums passed on": (*SUM, WRITE),
    "a uniform loop of barriers": (
        *SUM,
        loop(0, 3, 1, store(S, MINE, op("add", load(S, *MINE), 1)), ir.Barrier(), variable=n),
        WRITE,
    ),
    "atomics on shared memory": (
        store(S, MINE, 0),
        ir.Barrier(),
        loop(grid(), N, GRID, ir.Atomic("add", S, (PARITY, const(1)), (load(x, k),))),
        ir.Barrier(),
        WRITE,
    ),
    "a condition of the block without a barrier": (
        *SUM, when(op("eq", block_index(), LAST), store(S, MINE, 7)), ir.Barrier(), WRITE,
    ),
    "the block's index as a value": (
        *SUM, store(S, MINE, ir.Cast(block_index(), i32)), ir.Barrier(), WRITE,
    ),
    "a lane": (*SUM, store(S, MINE, ir.Cast(ir.Special("laneid"), i32)), ir.Barrier(), WRITE),
}  # fmt: skip
APART = {
    "a barrier in some blocks": (
        *SUM, when(op("eq", block_index(), ZERO), store(S, MINE, 5), ir.Barrier()), WRITE,
    ),
    "as many barriers as blocks before": (
        *SUM,
        loop(0, block_index(), 1, store(S, MINE, op("add", load(S, *MINE), 1)), ir.Barrier(),
             variable=n),
        WRITE,
    ),
    "a vote": (
        *SUM,
        ir.Barrier(vote="or", predicate=op("gt", a, 300), result=old),
        store(out, grid(), op("add", ir.Read(old), load(S, *MINE))),
    ),
    "a local array": (
        ir.Declare(L), store(L, 0, 3), *SUM, store(S, MINE, load(L, 0)), ir.Barrier(), WRITE,
    ),
    "no strided loop": (
        assign(a, 0), store(S, MINE, ir.Cast(block_index(), i32)), ir.Barrier(), WRITE,
    ),
    "an index of the other axis": (
        *SUM, store(S, MINE, ir.Cast(block_index(1), i32)), ir.Barrier(), WRITE,
    ),
}  # fmt: skip


def kernel_of(body):
    local = (L,) if ir.Declare(L) in body else ()
    return function((x, out), *body, arrays=(S, *local), block=(8, 1, 1))


def compiled(kernel):
    target = BACKEND.target("cpu")
    return BACKEND.load(BACKEND.compile(BACKEND.emit(kernel, target), target), kernel, "cpu")


@pytest.mark.parametrize("name", [*TOGETHER, *APART])
def test_every_range_of_blocks_gives_what_sim_gives(name, rng):
    kernel = kernel_of((TOGETHER | APART)[name])
    text = BACKEND.emit(kernel, BACKEND.target("cpu")).text
    assert (f"min_i64({MOST}, " in text) is (name in TOGETHER)
    module = compiled(kernel)
    rows = layout(module.metadata["parameters"])
    for blocks in (1, 2, MOST - 1, MOST, 2 * MOST + 3):
        data = rng.integers(0, 100, 8 * 6 * blocks + 5).astype(np.int32)
        expected = np.zeros(8 * blocks, np.int32)
        Interpreter(kernel).run((blocks, 1, 1), (8, 1, 1), (data.copy(), expected), 0)
        for step in {1, 3, MOST, MOST + 2, blocks}:
            found = np.zeros(8 * blocks, np.int32)
            launch = Launch((blocks, 1, 1), (8, 1, 1))
            words = pack(rows, launch, (data, found), name, module.metadata["parameters"])
            cpu_pool.run(module.address, words.ctypes.data, blocks, step, 1)
            assert np.array_equal(expected, found), (blocks, step)


def test_a_group_ends_with_its_row_of_the_grid(rng):
    """Blocks of several rows and layers: each row's blocks count from 0 again."""
    kernel = function(
        (x, out),
        *SUM[:-2],
        ir.Atomic("add", out, (grid(),), (ir.Read(a),)),
        store(S, MINE, 0),
        block=(8, 1, 1),
        arrays=(S,),
    )
    assert f"min_i64({MOST}, " in BACKEND.emit(kernel, BACKEND.target("cpu")).text
    module = compiled(kernel)
    rows = layout(module.metadata["parameters"])
    for shape in ((3, 2, 1), (1, 7, 1), (5, 3, 2), (MOST + 1, 2, 2)):
        width, rows_of_grid = shape[0], shape[1] * shape[2]
        data = rng.integers(0, 100, 8 * width * 5 + 3).astype(np.int32)
        padded = np.zeros(-(-data.size // (8 * width)) * 8 * width, np.int32)
        padded[: data.size] = data
        expected = padded.reshape(-1, 8 * width).sum(0) * rows_of_grid
        for step in (1, 2, width * rows_of_grid):
            found = np.zeros(8 * width, np.int32)
            launch = Launch(shape, (8, 1, 1))
            words = pack(rows, launch, (data, found), "sum", module.metadata["parameters"])
            cpu_pool.run(module.address, words.ctypes.data, width * rows_of_grid, step, 1)
            assert np.array_equal(expected, found), (shape, step)
