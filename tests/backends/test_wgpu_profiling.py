"""Profiles of a WebGPU device: its own times, batches that stay batches, host times where it tells
none."""

import itertools
import json

import numpy as np
import pytest

import ruda
from ruda.errors import LaunchWarning
from tests.backends.test_wgpu import on_wgpu
from tests.backends.test_wgpu_faults import long_loop, two_phases

pytestmark = on_wgpu


@ruda.jit
def add(x, out):
    i = ruda.grid(1)
    if i < out.size:
        out[i] = out[i] + x[i]


@ruda.jit
def divide(x):
    x[0] = x[0] / 3


@pytest.fixture
def queue():
    from ruda.backends.wgpu.device import queue_of

    with ruda.config(device="wgpu"):
        found = queue_of(0)
        if found.clock is None:
            pytest.skip("the adapter has no timestamp queries")
        yield found


def of(p, name, kind="kernel"):
    (found,) = (r for r in p.rows() if (r.kind, r.name) == (kind, name))
    return found


def test_launches_have_the_devices_times_and_stay_in_one_batch(queue):
    d, out = (ruda.to_device(np.ones(1 << 16, np.float32)) for _ in range(2))
    short, long = (ruda.to_device(np.zeros(1 << 14, np.int32)) for _ in range(2))
    long_loop[64, 256](short, 10)
    add[256, 256](d, out)
    ruda.synchronize()
    with ruda.profile() as p:
        add[256, 256](d, out)  # the zero of the device's clock is before it
        before = queue.submits
        for _ in range(10):
            add[256, 256](d, out)
            long_loop[64, 256](long, 2000)
        assert queue.submits == before and queue.dispatches == 21
    assert out.copy_to_host().tolist() == [13.0] * (1 << 16)
    adds, loops = of(p, "add"), of(p, "long_loop")
    assert (adds.calls, adds.clock, loops.calls, loops.clock) == (11, "device", 10, "device")
    assert adds.least > 0 and loops.median > 2 * adds.median  # 2000 rounds against one sum
    kernels = [a for a in p.activities if a.kind == "kernel"]
    assert [a.name for a in kernels] == ["add", *["add", "long_loop"] * 10]
    for one, other in itertools.pairwise(kernels):
        assert one.start + one.duration <= other.start + 1e-6  # one after the other
    assert adds.total + loops.total < p.seconds and kernels[-1].start < p.seconds


def test_the_trace_says_which_clock(queue, tmp_path):
    host = np.ones(100, np.float32)
    with ruda.profile() as p:
        add[1, 128](host, host)
        d = ruda.to_device(host)
        d.copy_to_host()
    p.save(tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    clocks = {(e["cat"], e["args"]["clock"]) for e in events if e["ph"] == "X"}
    assert clocks == {("kernel", "device"), ("copy", "host"), ("compile", "host")}
    assert "device" in repr(p) and "host" in repr(p)


def test_more_launches_than_a_query_set_holds(queue):
    d, out = (ruda.to_device(np.ones(4, np.float32)) for _ in range(2))
    add[1, 32](d, out)
    with ruda.profile() as p:
        for _ in range(2500):
            add[1, 32](d, out)
    assert out.copy_to_host().tolist() == [2502] * 4
    assert of(p, "add").calls == 2500 and of(p, "add").least > 0


def test_a_launch_of_several_dispatches_is_one(queue):
    d, partial, out = (ruda.to_device(np.zeros(k, np.float32)) for k in (300, 5, 300))
    with ruda.profile() as p:
        two_phases[5, 64](d, partial, out)
    assert of(p, "two_phases").calls == 1 and of(p, "two_phases").clock == "device"


def test_profiles_within_profiles_time_each_launch_once(queue):
    d, out = (ruda.to_device(np.ones(4, np.float32)) for _ in range(2))
    with ruda.profile() as outer:
        add[1, 32](d, out)
        with ruda.profile() as inner:
            add[1, 32](d, out)
    assert (of(outer, "add").calls, of(inner, "add").calls) == (2, 1)
    assert of(outer, "add").clock == of(inner, "add").clock == "device"
    assert out.copy_to_host().tolist() == [3] * 4


def test_without_timestamps_the_hosts_time_is_called_so(queue, monkeypatch):
    d, out = (ruda.to_device(np.ones(4, np.float32)) for _ in range(2))
    monkeypatch.setattr(queue, "clock", None)
    with ruda.profile() as p:
        add[1, 32](d, out)
        add[1, 32](d, out)
    assert (of(p, "add").clock, of(p, "add").calls) == ("host", 2)
    assert out.copy_to_host().tolist() == [3] * 4


def test_what_runs_on_the_cpu_has_the_hosts_time(queue):
    with ruda.config(wgpu_dialect="tint", missing="cpu"):
        d = ruda.to_device(np.ones(4))
        with pytest.warns(LaunchWarning, match="on the CPU"), ruda.profile() as p:
            divide[1, 1](d)
    assert of(p, "divide").clock == "host" and d.copy_to_host()[0] == 1 / 3


def test_tensors_are_profiled(queue):
    with ruda.profile() as p:
        x = ruda.asarray(np.arange(5000, dtype=np.float32), device="wgpu")
        np.asarray(x * 2 + 1)
    kernels = [r for r in p.rows() if r.kind == "kernel"]
    assert kernels and all(r.clock == "device" and r.device == "wgpu:0" for r in kernels)
