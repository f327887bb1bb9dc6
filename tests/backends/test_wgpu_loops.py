"""Loops as adapters that are GPUs get them: short ones copied, and barriers for shared memory only.

A software adapter stands in for them here: the same texts, run on it.
"""

import numpy as np
import pytest

import ruda
from ruda.backends.wgpu import device as wgpu_device
from ruda.backends.wgpu.modules import Module
from tests.conftest import DEVICES

pytestmark = pytest.mark.skipif("wgpu" not in DEVICES, reason="RUDA_TEST_DEVICES names no wgpu")
N = 64


@pytest.fixture
def as_a_gpu(monkeypatch):
    caps = {**wgpu_device.caps_of(0), "software": False}
    monkeypatch.setattr(wgpu_device, "caps_of", lambda number: caps)
    return caps


def kernels():
    """New ones each time: a kernel is translated once for a device."""

    @ruda.jit
    def registers(x, out):
        i = ruda.grid(1)
        kept = ruda.local.array((4, 4), ruda.float32)
        for a in range(4):
            for b in range(4):
                kept[a, b] = x[(i + a) % x.size] * (b + 1)
        for k in range(7, -2, -3):
            for a in range(4):
                kept[a, 3 - a] += k * kept[3 - a, a // 2]
        total = ruda.float32(0)
        for a in range(4):
            for b in range(4):
                total += kept[a, b]
        out[i] = total

    @ruda.jit
    def left_early(x, out):
        i = ruda.grid(1)
        total = ruda.float32(0)
        for k in range(8):
            if k == i % 8:
                break
            total += x[k]
        for k in range(8):
            if k == i % 3:
                continue
            for n in range(3):
                if n > k:
                    break
                total += n
        for k in range(0):
            total += k
        for _ in range(33):
            total += 1
        out[i] = total

    @ruda.jit
    def returns(x, out):
        i = ruda.grid(1)
        for k in range(4):
            out[i] = k
            if x[(i + k) % x.size] > 1:
                return
        out[i] = -1

    @ruda.jit
    def meets(x, out):
        i = ruda.grid(1)
        t = ruda.threadIdx.x
        shared = ruda.shared.array(32, ruda.float32)
        shared[t] = x[i]
        for k in range(5):
            ruda.syncthreads()
            value = shared[(t + (1 << k)) % 32]
            ruda.syncthreads()
            shared[t] += value
        out[i] = shared[t]

    @ruda.jit
    def exchanges(x, out):
        """Through memory of the device, which needs a barrier of its own."""
        i = ruda.grid(1)
        out[i] = x[i]
        for k in range(3):
            ruda.syncthreads()
            value = out[i ^ (1 << k)]
            ruda.syncthreads()
            out[i] = out[i] + value

    return {k.__name__: k for k in (registers, left_early, returns, meets, exchanges)}


@pytest.mark.parametrize("name", kernels())
def test_copied_loops_do_what_loops_do(as_a_gpu, name):
    x = np.random.default_rng(3).standard_normal(N, np.float32)
    found = {}
    for device in ("wgpu", "sim"):
        found[device] = np.full(N, np.nan, np.float32)
        with ruda.config(device=device, deterministic=True):
            kernels()[name][N // 32, 32](x, found[device])
    np.testing.assert_array_equal(found["wgpu"], found["sim"])


def text(kernel, caps):
    kind = ruda.float32[::1]
    function, _ = kernel.translate((kind, kind), block=(32, 1, 1), needs_block=lambda f: True)
    return Module(function, caps, "").plain().text


def test_gpus_get_no_loop_and_software_its_own(as_a_gpu):
    registers = kernels()["registers"]
    assert "for (" not in text(registers, {**as_a_gpu, "cuts_loops": False})
    assert "for (" in text(registers, {**as_a_gpu, "software": True})


def test_barriers_are_for_what_threads_exchange(as_a_gpu):
    assert "storageBarrier" not in text(kernels()["meets"], as_a_gpu)
    assert "storageBarrier" in text(kernels()["exchanges"], as_a_gpu)


def test_a_choice_by_comparison_is_no_maximum(as_a_gpu):
    @ruda.jit
    def larger(x, y, out):
        i = ruda.grid(1)
        if i < x.size:
            out[0, i] = np.where(x[i] > y[i], x[i], y[i])
            out[1, i] = np.where(x[i] <= y[i], x[i], y[i])

    edges = np.array([0.0, -0.0, 1.0, np.nan, np.inf, -np.inf], np.float32)
    x, y = (v.ravel() for v in np.meshgrid(edges, edges))
    out = np.zeros((2, x.size), np.float32)
    with ruda.config(device="wgpu"):
        larger[1, 64](x, y, out)
    want = np.stack([np.where(x > y, x, y), np.where(x <= y, x, y)])
    np.testing.assert_array_equal(out, want)
    numbers = want == want
    np.testing.assert_array_equal(np.signbit(out)[numbers], np.signbit(want)[numbers])
