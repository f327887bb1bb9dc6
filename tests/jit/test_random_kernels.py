"""ruda.random inside kernels gives what it gives on arrays."""

import numpy as np
import pytest

import ruda
from ruda import random

N = 50  # more than one block, and not a multiple
SEEDS = [7, -1, 2**40 + 5]


@ruda.jit
def draw_words(seed, stream, u, x, d, r):
    i = ruda.grid(1)
    if i < u.size:
        u[i] = random.bits(seed, i, stream)
        x[i] = random.uniform(seed, i, stream)
        d[i] = random.uniform_float64(seed, i, stream)
        r[i] = random.randint(seed, i, -100, 1000, stream)


@ruda.jit
def draw_curves(seed, z, d, e):
    i = ruda.grid(1)
    if i < z.size:
        z[i] = random.normal(seed, i, stream=1)
        d[i] = random.normal_float64(seed, i, stream=1)
        e[i] = random.exponential(seed, i, stream=1)


@ruda.jit
def draw_four(seed, u, x, z):
    i = ruda.grid(1)
    if i < u.shape[0]:
        u[i, 0], u[i, 1], u[i, 2], u[i, 3] = random.bits4(seed, i)
        x[i, 0], x[i, 1], x[i, 2], x[i, 3] = random.uniform4(seed, i)
        z[i, 0], z[i, 1], z[i, 2], z[i, 3] = random.normal4(seed, i)


@ruda.jit
def raw(words, out):
    i = ruda.grid(1)
    if i < words.shape[0]:
        w = words[i]
        out[i, 0], out[i, 1], out[i, 2], out[i, 3] = random.philox4x32(
            w[0], w[1], w[2], w[3], w[4], w[5]
        )


@ruda.jit
def draw_states(states, bits, x, d, z, w):
    i = ruda.grid(1)
    if i < x.size:
        bits[i] = random.xoroshiro128p_next(states, i)
        x[i] = random.xoroshiro128p_uniform_float32(states, i)
        d[i] = random.xoroshiro128p_uniform_float64(states, i)
        z[i] = random.xoroshiro128p_normal_float32(states, i)
        w[i] = random.xoroshiro128p_normal_float64(states, i)


@ruda.jit
def jump(states):
    i = ruda.grid(1)
    if i < states.size:
        random.xoroshiro128p_jump(states, i)


def blank(*dtypes, shape=N):
    return [np.zeros(shape, dtype) for dtype in dtypes]


@pytest.mark.parametrize("seed", SEEDS)
def test_words_are_equal_bit_for_bit(device, seed):
    u, x, d, r = blank(np.uint32, np.float32, np.float64, np.int32)
    with ruda.config(device=device):
        draw_words[2, 32](seed, 3, u, x, d, r)
    i = np.arange(N)
    assert np.array_equal(u, random.bits(seed, i, 3))
    assert np.array_equal(x, random.uniform(seed, i, 3))
    assert np.array_equal(d, random.uniform_float64(seed, i, 3))
    assert np.array_equal(r, random.randint(seed, i, -100, 1000, 3))


@pytest.mark.parametrize("seed", [np.int32(-5), np.uint32(2**31 + 1), np.int64(-(2**63))])
def test_the_dtype_of_the_seed_does_not_matter(device, seed):
    u, x, d, r = blank(np.uint32, np.float32, np.float64, np.int32)
    with ruda.config(device=device):
        draw_words[2, 32](seed, 0, u, x, d, r)
    assert np.array_equal(u, random.bits(int(seed), np.arange(N)))


@pytest.mark.parametrize("seed", SEEDS)
def test_curves_are_equal_but_for_log_and_cos(device, seed):
    z, d, e = blank(np.float32, np.float64, np.float32)
    with ruda.config(device=device):
        draw_curves[2, 32](seed, z, d, e)
    i = np.arange(N)
    np.testing.assert_allclose(z, random.normal(seed, i, 1), rtol=0, atol=2e-6)
    np.testing.assert_allclose(d, random.normal_float64(seed, i, 1), rtol=0, atol=2e-14)
    np.testing.assert_allclose(e, random.exponential(seed, i, 1), rtol=1e-6)


def test_four_at_once(device):
    u, x, z = blank(np.uint32, np.float32, np.float32, shape=(N, 4))
    with ruda.config(device=device):
        draw_four[2, 32](11, u, x, z)
    i = np.arange(4 * N).reshape(N, 4)
    assert np.array_equal(u, random.bits(11, i))
    assert np.array_equal(x, random.uniform(11, i))
    np.testing.assert_allclose(z, random.normal(11, i), rtol=0, atol=2e-6)


def test_philox_itself(device, rng):
    words = rng.integers(0, 2**32, (N, 6), np.uint32)
    words[0], words[1] = 0, 2**32 - 1
    out = np.zeros((N, 4), np.uint32)
    with ruda.config(device=device):
        raw[2, 32](words, out)
    assert np.array_equal(out, np.stack(random.philox4x32(*words.T), axis=1))
    assert out[0].tolist() == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]


def test_states_advance_as_on_the_host(device):
    states = random.xoroshiro128p_states(N, 5)
    host = states.copy()
    bits, x, d, z, w = blank(np.uint64, np.float32, np.float64, np.float32, np.float64)
    with ruda.config(device=device):
        draw_states[2, 32](states, bits, x, d, z, w)
    every = slice(None)
    assert np.array_equal(bits, random.xoroshiro128p_next(host, every))
    assert np.array_equal(x, random.xoroshiro128p_uniform_float32(host, every))
    assert np.array_equal(d, random.xoroshiro128p_uniform_float64(host, every))
    expected = random.xoroshiro128p_normal_float32(host, every)
    np.testing.assert_allclose(z, expected, rtol=0, atol=2e-6)
    expected = random.xoroshiro128p_normal_float64(host, every)  # of a float32 logarithm
    np.testing.assert_allclose(w, expected, rtol=0, atol=2e-6)
    assert np.array_equal(states, host)


def test_states_jump_as_on_the_host(device):
    states = random.xoroshiro128p_states(5, 5)
    host = states.copy()
    random.xoroshiro128p_jump(host, slice(None))
    with ruda.config(device=device):
        jump[1, 32](states)
    assert np.array_equal(states, host)


def test_states_on_a_device(device):
    with ruda.device(device):
        states = random.create_xoroshiro128p_states(N, seed=3, subsequence_start=2)
        again = ruda.device_array(N, random.xoroshiro128p_dtype)
        random.init_xoroshiro128p_states(again, 3, 2)
        out = ruda.device_array(N, np.uint64)
        draw_bits[2, 32](states, out)
    assert states.device.startswith(device)
    host = random.xoroshiro128p_states(N, 3, 2)
    assert np.array_equal(again.copy_to_host(), host)
    assert np.array_equal(out.copy_to_host(), random.xoroshiro128p_next(host, slice(None)))
    assert np.array_equal(states.copy_to_host(), host)


@ruda.jit
def draw_bits(states, out):
    i = ruda.grid(1)
    if i < out.size:
        out[i] = random.xoroshiro128p_next(states, i)


def test_states_need_their_dtype():
    with pytest.raises(ruda.errors.DTypeError, match="not float32"):
        random.init_xoroshiro128p_states(ruda.device_array(3, np.float32), 1)
