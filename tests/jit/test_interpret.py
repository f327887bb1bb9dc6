"""The interpreter: what each operation gives, how threads meet, and what each check finds."""

from __future__ import annotations

import numpy as np

from ruda import dtypes
from ruda.jit import ir
from ruda.jit.interpret import Interpreter
from ruda.jit.verify import verify
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

X = ir.Array("x", f32, 1)
Y = ir.Array("y", f32, 1)
OUT = ir.Array("out", f32, 1)
TILE = ir.Array("tile", f32, 1, space="shared", shape=(64,))
I = ir.Variable("i", index)


def run(kernel, grid, block, *arguments, shared_bytes=0, **options):
    """Verify and launch; sizes are numbers or tuples."""
    verify(kernel)
    sizes = [(n, 1, 1) if isinstance(n, int) else n for n in (grid, block)]
    return Interpreter(kernel, **options).run(*sizes, arguments, shared_bytes)


def guarded(array, *body):
    return (assign(I, grid()), ir.If(op("lt", I, ir.Extent(array, 0)), body))


def test_saxpy():
    a = ir.Variable("a", dtypes.weak_float)
    a32 = ir.Variable("a32", f32)
    kernel = function(
        (a, X, Y, OUT),
        *guarded(OUT, store(OUT, I, op("add", op("mul", a32, load(X, I)), load(Y, I)))),
        prologue=(ir.Assign(a32, ir.Cast(ir.Read(a), f32)),),
    )
    for n in (0, 1, 1000):
        x, y, out = (np.random.default_rng(k).random(n, np.float32) for k in range(3))
        run(kernel, 4, 256, 2.5, x, y, out)
        np.testing.assert_array_equal(out, np.float32(2.5) * x + y)


def test_barrier_makes_shared_writes_visible():
    other = op("sub", const(63), thread())
    kernel = function(
        (X, OUT),
        ir.Declare(TILE),
        store(TILE, thread(), load(X, grid())),
        ir.Barrier(),
        store(OUT, grid(), load(TILE, other)),
        arrays=(TILE,),
    )
    x, out = np.arange(128, dtype=np.float32), np.zeros(128, np.float32)
    run(kernel, 2, 64, x, out)
    np.testing.assert_array_equal(out, x.reshape(2, 64)[:, ::-1].ravel())


def test_atomics_count_every_thread():
    counts = ir.Array("counts", i32, 1)
    kernel = function(
        (counts,), ir.Atomic("add", counts, (op("mod", grid(), 3),), (const(1, i32),))
    )
    out = np.zeros(3, np.int32)
    run(kernel, 5, 20, out)
    np.testing.assert_array_equal(out, [34, 33, 33])
