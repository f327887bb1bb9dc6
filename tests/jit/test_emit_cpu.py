"""The CPU target, from IR built by hand to results, against NumPy."""

from __future__ import annotations

import numpy as np
import pytest

from ruda.backends.base import Launch
from ruda.backends.cpu import BACKEND
from ruda.jit import ir
from tests.jit.build import (
    assign,
    const,
    f32,
    function,
    grid,
    i32,
    index,
    load,
    op,
    store,
    thread,
)  # fmt: skip

TARGET = BACKEND.target()


def three(n):
    n = n if isinstance(n, tuple) else (n,)
    return (*n, 1, 1)[:3]


def compiled(kernel, show=False):
    source = BACKEND.emit(kernel, TARGET)
    if show:
        print(source.text)
    return BACKEND.load(BACKEND.compile(source, TARGET), kernel)


def run(kernel, blocks, threads, *arguments, shared=0, show=False):
    launch = Launch(three(blocks), three(threads), shared)
    BACKEND.launcher(compiled(kernel, show), launch, None)(*arguments)


def array(name, dtype=f32, ndim=1, **more):
    return ir.Array(name, dtype, ndim, **more)


def var(name, dtype=index):
    return ir.Variable(name, dtype)


def saxpy():
    a, x, y, out, i = var("a", f32), array("x"), array("y"), array("out"), var("i")
    value = op("add", op("mul", a, load(x, i)), load(y, i))
    guard = ir.If(op("lt", i, ir.Extent(out, 0)), (store(out, i, value),))
    return function((a, x, y, out), assign(i, grid()), guard)


@pytest.mark.parametrize("n", [0, 1, 255, 256, 1000])
def test_flat_kernel(n):
    rng = np.random.default_rng(0)
    x, y = rng.random((2, n), np.float32)
    out = np.zeros(n, np.float32)
    run(saxpy(), -(-n // 256), 256, np.float32(2), x, y, out)
    assert np.allclose(out, 2 * x + y, rtol=1e-6)


def tiled_blur():
    """Three-point mean of each block's tile; the tile is loaded by all threads, then read."""
    x, out, i, t = array("x"), array("out"), var("i"), var("t")
    tile = array("tile", space="shared", shape=(66,))
    n = ir.Extent(x, 0)
    return function(
        (x, out),
        assign(i, grid()),
        assign(t, thread()),
        ir.Declare(tile),
        store(tile, op("add", t, 1), load(x, i)),
        ir.If(
            op("eq", t, 0),
            (
                store(tile, 0, load(x, op("max", op("sub", i, 1), 0))),
                store(tile, 65, load(x, op("min", op("add", i, 64), op("sub", n, 1)))),
            ),
        ),
        ir.Barrier(),
        store(
            out,
            i,
            op(
                "mul",
                op(
                    "add",
                    op("add", load(tile, t), load(tile, op("add", t, 1))),
                    load(tile, op("add", t, 2)),
                ),
                0.25,
            ),
        ),
        arrays=(tile,),
        block=(64, 1, 1),
    )


def test_tile_with_barrier():
    x = np.random.default_rng(0).random(64 * 7, np.float32)
    out = np.zeros_like(x)
    run(tiled_blur(), 7, 64, x, out)
    padded = np.concatenate([x[:1], x, x[-1:]])
    wanted = ((padded[:-2] + padded[1:-1]) + padded[2:]) * np.float32(0.25)
    assert np.array_equal(out, wanted)


def histogram():
    x, h = array("x", i32), array("h", i32)
    bins = array("bins", i32, space="shared", shape=(64,))
    i, t = var("i"), var("t")
    return function(
        (x, h),
        assign(i, grid()),
        assign(t, thread()),
        ir.Declare(bins),
        store(bins, t, 0),
        ir.Barrier(),
        ir.If(
            op("lt", i, ir.Extent(x, 0)),
            (ir.Atomic("add", bins, (ir.Cast(load(x, i), index),), (const(1, i32),)),),
        ),
        ir.Barrier(),
        ir.Atomic("add", h, (ir.Read(t),), (load(bins, t),)),
        arrays=(bins,),
        block=(64, 1, 1),
    )


def test_histogram():
    x = np.random.default_rng(0).integers(0, 64, 1000).astype(np.int32)
    h = np.zeros(64, np.int32)
    run(histogram(), 16, 64, x, h)
    assert np.array_equal(h, np.bincount(x, minlength=64))
