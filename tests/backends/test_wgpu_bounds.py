"""Indices of shared, local and constant arrays on WebGPU: checked unless they are surely inside.

Texts are as for hardware that watches its buffers, where nobody else checks. Where
RUDA_TEST_DEVICES names wgpu they run, on a software adapter too, which is taken for such hardware.
"""

import functools

import numpy as np
import pytest

import ruda
from ruda import float32, int32
from ruda.backends.wgpu import device as wgpu_device
from ruda.backends.wgpu.adapter import PORTABLE
from ruda.backends.wgpu.modules import Module
from ruda.jit import tools
from tests.conftest import DEVICES

on_wgpu = pytest.mark.skipif("wgpu" not in DEVICES, reason="RUDA_TEST_DEVICES does not name wgpu")
HARDWARE = {**PORTABLE, "dialect": "naga", "int64": True, "watches_buffers": True}
CHECK = "min(bitcast<u32>("
TABLE = np.arange(5, dtype=np.int32)


def text_of(kernel, *types, target=HARDWARE):
    function = tools.describe(kernel, "wgpu", types, block=64).made.function
    return Module(function, target, "").usual().text


@pytest.fixture
def as_hardware(monkeypatch):
    """The adapter as hardware, whose loops nobody counts and whose arrays nobody checks."""
    found = wgpu_device.caps_of(0)
    if not found["watches_buffers"]:
        pytest.skip("this adapter does not watch its buffers: WebGPU checks all indices")
    caps = functools.cache(lambda number: {**found, "software": False})
    monkeypatch.setattr(wgpu_device, "caps_of", caps)


@ruda.jit
def reversed_tile(x, out):
    tile = ruda.shared.array((4, 64), int32)
    t = ruda.threadIdx.x
    for k in range(4):
        tile[k, t] = x[k * 64 + t]
    ruda.syncthreads()
    for k in range(4):
        out[k * 64 + t] = tile[3 - k, 63 - t]


@ruda.jit
def halved_sum(x, out):
    partial = ruda.shared.array(64, float32)
    t = ruda.threadIdx.x
    partial[t] = x[ruda.grid(1)]
    ruda.syncthreads()
    step = 32
    while step > 0:
        if t < step:
            partial[t] += partial[t + step]
        ruda.syncthreads()
        step //= 2
    if t == 0:
        out[ruda.blockIdx.x] = partial[0]


@ruda.jit
def histogram(x, out):
    bins = ruda.shared.array(256, int32)
    t = ruda.threadIdx.x
    for k in range(t, 256, 64):
        bins[k] = 0
    ruda.syncthreads()
    i = ruda.grid(1)
    if i < x.size:
        ruda.atomic.add(bins, x[i], 1)  # a byte is always inside
    ruda.syncthreads()
    for k in range(t, 256, 64):
        out[k] = bins[k]


@ruda.jit
def by_data(x, out):
    before = ruda.shared.array(64, int32)
    tile = ruda.shared.array(64, int32)
    behind = ruda.shared.array(64, int32)
    t = ruda.threadIdx.x
    before[t] = 1
    behind[t] = 2
    ruda.syncthreads()
    tile[x[t]] = 77
    ruda.atomic.add(tile, x[t], 1)
    ruda.syncthreads()
    out[t] = before[t]
    out[64 + t] = behind[t]
    out[128 + t] = tile[x[t]]


@ruda.jit
def guarded_by_data(x, out):
    tile = ruda.shared.array(64, int32)
    t = ruda.threadIdx.x
    tile[t] = t
    ruda.syncthreads()
    i = x[t]
    out[t] = tile[i] if i >= 0 and i < 64 else -1


@ruda.jit
def overflowing(x, out):
    tile = ruda.shared.array(64, int32)
    t = ruda.threadIdx.x
    tile[t] = t
    ruda.syncthreads()
    n = x.size
    out[t] = tile[min(n * n * n, 63)]  # which may be negative


@ruda.jit
def local_by_data(x, out):
    before = ruda.local.array(4, int32)
    mine = ruda.local.array(4, int32)
    for k in range(4):
        before[k] = 1
        mine[k] = 2
    t = ruda.threadIdx.x
    mine[x[t]] = 77
    out[t] = before[0] + before[3]
    out[64 + t] = mine[x[t]]


@ruda.jit
def constant_by_data(x, out):
    table = ruda.const.array_like(TABLE)
    t = ruda.threadIdx.x
    out[t] = table[x[t]]


@ruda.jit
def dynamic_by_data(x, out):
    words = ruda.shared.array(0, int32)
    t = ruda.threadIdx.x
    words[x[t]] = 77
    ruda.syncthreads()
    out[t] = words[x[t]]


@ruda.jit
def lane_by_data(x, out):
    t = ruda.threadIdx.x
    out[t] = ruda.shfl_sync(0xFFFFFFFF, t, x[t])


WORDS, FLOATS, BYTES = "i32[::1]", "f32[::1]", "u8[::1]"


@pytest.mark.parametrize(
    ("kernel", "types", "checks"),
    [
        (reversed_tile, (WORDS, WORDS), 0),
        (halved_sum, (FLOATS, FLOATS), 0),
        (histogram, (BYTES, WORDS), 0),
        (histogram, (WORDS, WORDS), 1),
        (by_data, (WORDS, WORDS), 3),
        (guarded_by_data, (WORDS, WORDS), 0),
        (overflowing, (WORDS, WORDS), 1),
        (local_by_data, (WORDS, WORDS), 2),
        (constant_by_data, (WORDS, WORDS), 1),
        (dynamic_by_data, (WORDS, WORDS), 2),
    ],
    ids=lambda v: getattr(v, "__name__", None),
)
def test_an_index_is_checked_unless_it_is_surely_inside(kernel, types, checks):
    text = text_of(kernel, *types)
    assert text.count(CHECK) == checks, text
    unwatched = {**HARDWARE, "watches_buffers": False}  # where WebGPU checks everything
    assert CHECK not in text_of(kernel, *types, target=unwatched)


def test_a_step_of_python_is_held_in_32_bits():
    text = text_of(halved_sum, FLOATS, FLOATS)
    assert "i64" not in text and "opaque" not in text, text


BAD = [-1, -2, -64, 64, 65, 127, 128, 255, 1 << 20, (1 << 31) - 1, -(1 << 31), 1 << 30, -(1 << 30)]


@on_wgpu
@pytest.mark.parametrize("bad", BAD)
def test_what_is_outside_stays_inside(bad, as_hardware):
    """Neither the process nor another array suffers from an index of a user."""
    x = np.arange(64, dtype=np.int32)
    x[5], x[40] = bad, bad
    with ruda.config(device="wgpu"):
        given = ruda.to_device(x)
        out = ruda.to_device(np.zeros(192, np.int32))
        by_data[1, 64](given, out)
        found = out.copy_to_host()
        assert (found[:64] == 1).all() and (found[64:128] == 2).all()
        clean = np.setdiff1d(np.arange(64), [5, 40, 0, 62, 63])  # where it may have been held to
        np.testing.assert_array_equal(found[128:][clean], 78)
        guarded_by_data[1, 64](given, out[:64])
        np.testing.assert_array_equal(out[:64].copy_to_host(), np.where((x >= 0) & (x < 64), x, -1))
        local_by_data[1, 64](given, out[:128])
        assert (out[:64].copy_to_host() == 2).all()
        constant_by_data[1, 64](given, out[:64])
        np.testing.assert_array_equal(out[:5].copy_to_host(), np.arange(5))
        for nbytes in (256, 0, 4):
            dynamic_by_data[1, 64, 0, nbytes](given, out[:64])
            out.copy_to_host()
        lane_by_data[1, 64](given, out[:64])
        lane_by_data[1, 40](given, out[:64])
        assert out.copy_to_host()[:5].tolist() == [0, 1, 2, 3, 4]


@on_wgpu
def test_kernels_without_checks_are_right(as_hardware, rng):
    with ruda.config(device="wgpu"):
        x = rng.integers(0, 1 << 30, 256, dtype=np.int32)
        out = ruda.to_device(np.zeros(256, np.int32))
        reversed_tile[1, 64](ruda.to_device(x), out)
        np.testing.assert_array_equal(out.copy_to_host(), x[::-1])
        v = rng.standard_normal(320, np.float32)
        sums = ruda.to_device(np.zeros(5, np.float32))
        halved_sum[5, 64](ruda.to_device(v), sums)
        np.testing.assert_allclose(
            sums.copy_to_host(), v.reshape(5, 64).astype(float).sum(1), rtol=1e-4, atol=1e-5
        )
        data = rng.integers(0, 256, 64, dtype=np.uint8)
        histogram[1, 64](ruda.to_device(data), out)
        np.testing.assert_array_equal(out.copy_to_host(), np.bincount(data, minlength=256))


def test_explain_tells_which_indices_are_checked():
    found = ruda.explain(halved_sum, FLOATS, FLOATS, target="wgpu", block=64)
    assert found.forms == ("`partial`: every index is surely inside: none is checked",)
    assert not found.wide
    first = by_data.py_func.__code__.co_firstlineno
    found = ruda.explain(by_data, WORDS, WORDS, target="wgpu", block=64)
    lines = f"lines {first + 9}, {first + 10}, {first + 14}"
    assert f"`tile`: indices that may be outside, and are held inside: {lines}" in found.forms
