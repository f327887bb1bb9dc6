"""Array expressions on local arrays, calls of numba's functions, and static unrolling."""

from __future__ import annotations

import numba
import numpy as np
import pytest

import ruda


@numba.njit
def smooth_step(x):
    if x <= 0:
        return 0.0
    if x >= 1:
        return 1.0
    return x * x * (3 - 2 * x)


@ruda.jit
def call_numba_function(x, out):
    i = ruda.grid(1)
    if i < x.size:
        out[i] = smooth_step(x[i])


@pytest.mark.parametrize("n", (0, 1, 7, 200))
def test_functions_of_numba_are_taken_by_their_source(device, rng, n):
    x = (2 * rng.random(n) - 0.5).astype(np.float32)
    out = np.full_like(x, np.nan)
    with ruda.config(device=device, deterministic=True):
        call_numba_function.forall(n)(x, out)
    t = np.clip(x, 0, 1)
    np.testing.assert_array_equal(out, t * t * (3 - 2 * t))


@ruda.jit
def local_expressions(x, out):
    i = ruda.grid(1)
    if i < x.shape[0]:
        a = ruda.local.array(3, ruda.float32)
        b = ruda.local.array(3, ruda.float32)
        for k in range(3):
            a[k] = x[i, k]
            b[k] = k + 1
        c = a * b + 1
        c = c - a / 2
        c[:] = -c
        a += b
        out[i, 0] = c.sum()
        out[i, 1] = c.max()
        out[i, 2] = np.dot(a, b)
        out[i, 3] = a.mean()
        out[i, 4] = c.argmin()


@pytest.mark.parametrize("n", (0, 1, 7, 100))
def test_small_arrays_take_part_in_expressions(device, rng, n):
    x = rng.standard_normal((n, 3)).astype(np.float32)
    out = np.full((n, 5), np.nan, np.float32)
    with ruda.config(device=device):
        local_expressions.forall(max(n, 1))(x, out)
    b = np.array([1, 2, 3], np.float64)
    a = x.astype(np.float64)
    c = -(a * b + 1 - a / 2)
    expected = np.stack(
        [c.sum(1), c.max(1), (a + b) @ b, (a + b).mean(1), c.argmin(1)], axis=1
    ).reshape(n, 5)
    np.testing.assert_allclose(out, expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(out[:, 4], expected[:, 4])


def test_an_expression_of_run_time_size_is_refused_with_what_a_thread_does(device):
    @ruda.jit
    def whole(x, out):
        y = x + 1
        out[0] = y[0]

    with (
        ruda.config(device=device),
        pytest.raises(ruda.errors.UnsupportedError, match="an expression on the whole of") as error,
    ):
        whole[1, 1](np.zeros(4), np.zeros(4))
    assert "`i = ruda.grid(1)`" in str(error.value.__notes__)


def test_unrolling_over_the_limit_warns(device):
    @ruda.jit
    def unrolled(out):
        for k in ruda.unroll(range(40)):
            out[k] = k

    out = np.zeros(40, np.int32)
    with ruda.config(device=device, unroll_limit=32), pytest.warns(ruda.errors.UnrollWarning):
        unrolled[1, 1](out)
    np.testing.assert_array_equal(out, np.arange(40))


def test_unrolling_needs_known_bounds(device):
    @ruda.jit
    def unrolled(out, n):
        for k in ruda.unroll(range(n)):
            out[k] = k

    with (
        ruda.config(device=device),
        pytest.raises(ruda.errors.KernelTypeError, match="known when the kernel is compiled"),
    ):
        unrolled[1, 1](np.zeros(4), 4)
