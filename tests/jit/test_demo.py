"""The kernels of `ruda demo` on every device, and indices beside constants where they are wide."""

from __future__ import annotations

import numpy as np
import pytest

import ruda
from ruda import demo


@pytest.mark.parametrize("step", demo.STEPS, ids=lambda s: s.name)
def test_every_device_makes_the_same_pictures(device, step):
    image = np.random.default_rng(3).random((37, 50)).astype(np.float32)
    out = np.full_like(image, np.nan)
    with ruda.config(device=device):
        step.run(image, out)
    assert np.max(np.abs(out - step.reference(image))) < 2e-6


def test_every_device_of_this_machine_takes_part(capsys, monkeypatch):
    monkeypatch.setattr(demo, "photograph", lambda photo: np.full((80, 90), 0.5, np.float32))
    assert demo.main(small=True, output="") == 0
    shown = capsys.readouterr().out
    assert "refused" not in shown
    for device in ruda.devices():
        assert shown.count(f"{device.name} ") == len(demo.STEPS), shown


@ruda.jit
def compared(x, out):
    t = ruda.threadIdx.x
    at = min(int(x[t] * 100), 63)  # as large as any integer: indices are not 31 bits narrow
    out[0, t] = at
    if t < 40:
        out[1, t] += 1
    if t >= 40:
        out[2, t] += 1
    if t < 7:
        out[3, t] += 1
    for k in range(t, 64, ruda.blockDim.x):
        out[4, k] += 1
    for _ in range(t, 64, 16):
        out[5, t] += 1
    if ruda.blockIdx.x < 3 and ruda.laneid < 9:
        out[6, t] += 1


def test_a_wide_index_beside_a_constant(device):
    x = np.linspace(0, 0.6, 64, dtype=np.float32)
    out = np.zeros((7, 64), np.int32)
    with ruda.config(device=device):
        compared[1, 64](x, out)
    t = np.arange(64)
    expected = [
        *((x * np.float32(100)).astype(np.int32), t < 40, t >= 40, t < 7, t < 64),
        *(4 - t // 16, t % 32 < 9),
    ]
    np.testing.assert_array_equal(out, np.array(expected, np.int32))


def test_the_command_prints_a_table(tmp_path, monkeypatch, capsys, recwarn):
    """Columns stand below each other whatever the devices are called, and no warning between."""
    monkeypatch.setattr(demo, "photograph", lambda path: np.ones((40, 64), np.float32) / 2)
    monkeypatch.setattr(demo, "tiled", lambda image, size: image)
    devices = [d for d in ruda.devices() if d.name in ("cpu", "sim")]
    monkeypatch.setattr(ruda, "devices", lambda: devices)
    assert demo.main(small=True, output="") == 0
    lines = capsys.readouterr().out.splitlines()[1:]
    assert lines[-1] == "all devices agree with NumPy"
    columns = [line.index(n) for line in lines for n in ("kernel", "blur", "edges") if n in line]
    assert set(columns) == {7}
    assert not recwarn
