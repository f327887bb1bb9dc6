"""Launches recorded and replayed, on every device."""

from __future__ import annotations

import numpy as np
import pytest

import ruda
from ruda.errors import DeviceError, LaunchTypeError


@ruda.jit
def add(x, y, out):
    i = ruda.grid(1)
    if i < out.size:
        out[i] = x[i] + y[i]


@ruda.jit
def scale(x, factor):
    i = ruda.grid(1)
    if i < x.size:
        x[i] *= factor


@pytest.fixture(autouse=True)
def _on_device(device):
    with ruda.config(device=device):
        yield


def test_replays_run_in_order_on_the_same_arrays():
    n = 1000
    x, y = ruda.to_device(np.ones(n, np.float32)), ruda.to_device(np.full(n, 2, np.float32))
    with ruda.capture() as graph:
        add[4, 256](x, y, x)
        scale[8, 128](x, 2.0)
    assert len(graph) == 2 and "add, scale" in repr(graph)
    assert np.array_equal(x.copy_to_host(), np.ones(n)), "nothing has run yet"
    want = np.ones(n, np.float32)
    for _ in range(3):
        graph.replay()
        want = (want + 2) * 2
    assert np.array_equal(x.copy_to_host(), want)
    y.copy_to_device(np.full(n, 5, np.float32))
    graph.replay()
    assert np.array_equal(x.copy_to_host(), (want + 5) * 2)


def test_launches_after_a_capture_run():
    x = ruda.to_device(np.ones(5, np.float32))
    kept = scale[1, 32]
    kept(x, 3.0)
    with ruda.capture() as graph:
        kept(x, 5.0)
        scale[1, 32](x, 7.0)
        scale.forall(5)(x, factor=11.0)
    assert len(graph) == 3
    kept(x, 2.0)
    scale[1, 32](x, 2.0)
    assert x.copy_to_host().tolist() == [12.0] * 5
    graph.replay()
    assert x.copy_to_host().tolist() == [12.0 * 5 * 7 * 11] * 5


def test_the_same_launch_many_times():
    x = ruda.to_device(np.zeros(100, np.int32))

    @ruda.jit
    def count(x, k):
        i = ruda.grid(1)
        if i < x.size:
            x[i] = x[i] * 3 + k

    count[4, 32](x, 0)
    with ruda.capture() as graph:
        for k in range(20):
            count[4, 32](x, k)
    assert len(graph) == 20 and not x.copy_to_host().any()
    graph.replay()
    want = 0
    for k in range(20):
        want = (want * 3 + k) % (1 << 32)
    assert np.all(x.copy_to_host().view(np.uint32) == want)


def test_an_empty_graph_does_nothing():
    with ruda.capture() as graph:
        pass
    graph.replay()
    assert len(graph) == 0


def test_barriers_and_dynamic_shared_memory():
    @ruda.jit
    def reverse(x):
        tile = ruda.shared.array(0, ruda.int32)
        t = ruda.threadIdx.x
        tile[t] = x[t]
        ruda.syncthreads()
        x[t] = tile[63 - t]

    x = ruda.to_device(np.arange(64, dtype=np.int32))
    with ruda.capture() as graph:
        for _ in range(3):
            reverse[1, 64, 0, 256](x)
    graph.replay()
    assert np.array_equal(x.copy_to_host(), np.arange(64)[::-1])


def test_wrong_use_is_told():
    x = ruda.to_device(np.ones(5, np.float32))
    with ruda.capture() as graph:
        with pytest.raises(DeviceError, match="after its"):
            graph.replay()
        with pytest.raises(DeviceError, match="not nested"), ruda.capture():
            pass
        with pytest.raises(LaunchTypeError, match="takes 2 arguments"):
            scale[1, 32](x)
        with pytest.raises(LaunchTypeError, match="name no stream"):
            scale[1, 32, ruda.stream()](x, 2.0)
    assert len(graph) == 0


def test_an_error_in_the_block_leaves_nothing_behind():
    x = ruda.to_device(np.ones(5, np.float32))
    with pytest.raises(ZeroDivisionError), ruda.capture() as graph:
        scale[1, 32](x, 2.0)
        raise ZeroDivisionError
    with pytest.raises(DeviceError, match="after its"):
        graph.replay()
    scale[1, 32](x, 3.0)
    assert x.copy_to_host().tolist() == [3.0] * 5


def test_another_thread_is_not_recorded():
    import threading

    x = ruda.to_device(np.ones(5, np.float32))
    y = ruda.to_device(np.ones(5, np.float32))
    scale[1, 32](x, 1.0)
    with ruda.capture() as graph:
        thread = threading.Thread(target=lambda: scale[1, 32](y, 4.0))
        thread.start()
        thread.join()
        scale[1, 32](x, 2.0)
    assert len(graph) == 1
    assert y.copy_to_host().tolist() == [4.0] * 5 and x.copy_to_host().tolist() == [1.0] * 5
