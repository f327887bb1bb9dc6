"""Short vectors, in-kernel random numbers, and the barrier of the whole grid."""

from __future__ import annotations

import numpy as np
import pytest

import ruda
from ruda import random

SEED = 2**40 + 12345
SIZES = (0, 1, 7, 200)


@ruda.jit
def scale_and_sum(x, out):
    i = ruda.grid(1)
    if i < out.size // 4:
        v = ruda.float32x4.load(x, 4 * i)
        w = v * 2 + ruda.float32x4(1, 2, 3, 4) - v
        w = ruda.float32x4(w.x, w.y, w[2], w.w + v.x)
        ruda.float32x4.store(out, 4 * i, w)


@ruda.jit
def squares(out):
    i = ruda.grid(1)
    if i < out.size:
        a = ruda.int32x3(i, 2 * i, 3 * i)
        b = a * a
        out[i] = b.x + b.y + b.z


@ruda.jit
def draw(uniform, normal, integers):
    i = ruda.grid(1)
    if i < uniform.size:
        uniform[i] = random.uniform(SEED, i)
        normal[i] = random.normal(7, i, 3)
        integers[i] = random.randint(9, i, -5, 17)


@ruda.jit
def draw_xoroshiro(states, out):
    i = ruda.grid(1)
    if i < out.shape[0]:
        for k in range(out.shape[1]):
            out[i, k] = random.xoroshiro128p_uniform_float32(states, i)


@ruda.jit
def reverse_through_memory(x, scratch, out):
    i = ruda.grid(1)
    if i < x.size:
        scratch[i] = x[i]
    ruda.cg.this_grid().sync()
    if i < x.size:
        out[i] = scratch[x.size - 1 - i]


@pytest.mark.parametrize("n", SIZES)
def test_vectors_work_part_by_part(device, rng, n):
    x = rng.standard_normal(4 * n).astype(np.float32)
    out = np.full_like(x, np.nan)
    with ruda.config(device=device, deterministic=True):
        scale_and_sum.forall(n)(x, out)
    v = x.reshape(-1, 4)
    w = v * np.float32(2) + np.array([1, 2, 3, 4], np.float32) - v
    w[:, 3] += v[:, 0]
    np.testing.assert_array_equal(out, w.ravel())


@pytest.mark.parametrize("n", SIZES)
def test_vectors_of_integers(device, n):
    out = np.full(n, -1, np.int32)
    with ruda.config(device=device):
        squares.forall(n)(out)
    np.testing.assert_array_equal(out, 14 * np.arange(n, dtype=np.int32) ** 2)


def test_vectors_refuse_a_wrong_number_of_parts(device):
    @ruda.jit
    def two_of_four(out):
        v = ruda.float32x4(1, 2)
        out[0] = v.x

    with ruda.config(device=device), pytest.raises(ruda.errors.KernelTypeError, match="4 parts"):
        two_of_four[1, 1](np.zeros(1, np.float32))


@pytest.mark.parametrize("n", SIZES)
def test_random_in_kernels_is_what_the_host_draws(device, n):
    uniform, normal = np.full(n, np.nan, np.float32), np.full(n, np.nan, np.float32)
    integers = np.full(n, -99, np.int32)
    with ruda.config(device=device, deterministic=True):
        draw.forall(n)(uniform, normal, integers)
    counter = np.arange(n)
    np.testing.assert_array_equal(uniform, random.uniform(SEED, counter))
    np.testing.assert_array_max_ulp(normal, random.normal(7, counter, 3), 8)
    np.testing.assert_array_equal(integers, random.randint(9, counter, -5, 17))


def test_random_in_kernels_by_xoroshiro(device):
    n, draws = 5, 3
    states = random.xoroshiro128p_states(n, seed=3)
    again = states.copy()
    out = np.full((n, draws), np.nan, np.float32)
    with ruda.config(device=device):
        draw_xoroshiro.forall(n)(states, out)
    expected = [
        [random.xoroshiro128p_uniform_float32(again, i) for _ in range(draws)] for i in range(n)
    ]
    np.testing.assert_array_equal(out, np.array(expected, np.float32))
    np.testing.assert_array_equal(states, again)


@pytest.mark.parametrize("n", (1, 64, 200))
def test_grid_barrier_makes_writes_of_all_blocks_visible(device, n):
    x = np.arange(n, dtype=np.float32)
    scratch, out = np.full_like(x, np.nan), np.full_like(x, np.nan)
    with ruda.config(device=device):
        reverse_through_memory[-(-n // 32), 32](x, scratch, out)
    np.testing.assert_array_equal(out, x[::-1])
