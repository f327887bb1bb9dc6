"""Profiles of a GPU: times are those of its events."""

import numpy as np

import ruda


@ruda.jit
def double(x):  # its own: what is compiled for one fake driver stays with it
    i = ruda.grid(1)
    if i < x.size:
        x[i] = 2 * x[i]


def test_launches_are_timed_by_events(fake):
    with ruda.config(device="cuda:0"):
        d = ruda.to_device(np.ones(8, np.float32))
        double[1, 32](d)
        with ruda.profile() as p:
            fake.calls.clear()
            double[1, 32](d)
            double[1, 32](d)
            calls = [c for c in fake.calls if c in ("cuEventRecord", "cuLaunchKernel")]
    # One event sets the zero of the device's clock, then two around each launch.
    assert calls == ["cuEventRecord", *["cuEventRecord", "cuLaunchKernel", "cuEventRecord"] * 2]
    (row,) = p.rows()
    assert (row.name, row.device, row.calls, row.clock) == ("double", "cuda:0", 2, "device")
    assert row.median == 1.5e-3  # what the fake driver says
    assert "device" in repr(p)
