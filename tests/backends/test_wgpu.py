"""WebGPU devices: launches, memory, and what may go wrong without ending the process.

Run where RUDA_TEST_DEVICES names wgpu; then a missing adapter is an error.
"""

import math
import os
import subprocess
import sys

import numpy as np
import pytest

import ruda
from ruda import float32
from ruda.errors import (
    DeviceNotFoundError,
    KernelAssertionError,
    LaunchValueError,
    UnsupportedError,
)
from tests.conftest import DEVICES

on_wgpu = pytest.mark.skipif("wgpu" not in DEVICES, reason="RUDA_TEST_DEVICES does not name wgpu")


@ruda.jit
def saxpy(a, x, y, out):
    i = ruda.grid(1)
    if i < out.size:
        out[i] = a * x[i] + y[i]


@ruda.jit
def double(x):
    i = ruda.grid(1)
    if i < x.size:
        x[i] *= 2


@ruda.jit
def shift(x, out):
    i = ruda.grid(1)
    if i < out.size:
        out[i] = x[i]


@ruda.jit
def blocks_seen(out):
    if ruda.threadIdx.x == 0:
        b = ruda.blockIdx.x + ruda.gridDim.x * ruda.blockIdx.y
        out[b] = b


@ruda.jit
def large_shared(out):
    tile = ruda.shared.array(20000, ruda.float32)
    t = ruda.threadIdx.x
    tile[t] = t
    ruda.syncthreads()
    out[t] = tile[t]


@ruda.jit
def fenced(x):
    x[0] = 1
    ruda.threadfence()
    x[1] = 2


@ruda.jit
def talks(x):
    i = ruda.grid(1)
    if i < x.size:
        print("x", i, "is", x[i])
        assert x[i] < 2, f"{x[i]} at {i}"


@ruda.jit
def reassociated(x, out):
    i = ruda.grid(1)
    if i < x.size:
        big = x[i] + 1e8
        out[i] = big - 1e8


@ruda.jit
def scaled_twice(x, out):
    i = ruda.grid(1)
    if i < x.size:
        small = x[i] * ruda.float32(1e-30)
        none = small * ruda.float32(1e-30)
        out[i] = none * ruda.float32(1e30)


@pytest.fixture
def wgpu():
    with ruda.config(device="wgpu"):
        yield


@on_wgpu
@pytest.mark.parametrize("n", [0, 1, 3, 1000])
def test_arrays_of_the_host_come_back_written(wgpu, n):
    x, y = np.arange(n, dtype=np.float32), np.ones(n, np.float32)
    out = np.full(n, -1, np.float32)
    saxpy[4, 256](2.0, x, y, out)
    np.testing.assert_array_equal(out, 2 * x + 1)


@on_wgpu
def test_a_kernel_that_ran_here_runs_on_the_host(wgpu):
    x, y = (ruda.asarray(np.ones(3, "f4"), device="wgpu") for _ in range(2))
    out = ruda.zeros(3, device="wgpu")
    saxpy[4, 256](2.0, x.buffer(), y.buffer(), out.buffer())
    host = ruda.backends.get("cpu").map(np.ones(3, "f4"), "cpu")
    saxpy[4, 256](2.0, host, host, host)
    assert out.tolist() == [3, 3, 3] and host.copy_to_host().tolist() == [3, 3, 3]


@on_wgpu
@pytest.mark.parametrize("dtype", ["i1", "u1", "i2", "u2", "f2", "i4", "f4", "i8", "f8", "c8"])
def test_strided_arrays_leave_their_gaps_alone(wgpu, dtype):
    whole = np.arange(60).astype(dtype)
    expected = whole.copy()
    expected[50:1:-3] *= 2
    double[1, 64](whole[50:1:-3])
    np.testing.assert_array_equal(whole, expected)


@on_wgpu
def test_one_array_twice_and_overlapping_slices(wgpu):
    x = np.arange(100, dtype=np.float32)
    saxpy[1, 128](2.0, x, x, x)
    np.testing.assert_array_equal(x, 3 * np.arange(100))
    y = np.arange(100, dtype=np.float32)
    shift[1, 32](y[50:], y[:30])
    np.testing.assert_array_equal(y[:30], np.arange(50, 80))


@on_wgpu
def test_device_arrays_keep_the_order_of_launches(wgpu):
    d = ruda.to_device(np.ones(1000, np.float32))
    for _ in range(20):
        double[4, 256](d)
    np.testing.assert_array_equal(d.copy_to_host(), np.full(1000, 2.0**20, np.float32))
    d[10:20].copy_to_device(np.zeros(10, np.float32))
    double[4, 256](d[5:25])
    found = d.copy_to_host()
    assert found[9] == 2.0**21 and found[10] == 0 and found[25] == 2.0**20


@on_wgpu
def test_more_launches_than_a_batch_holds(wgpu):
    d = ruda.to_device(np.zeros(4, np.int32))

    for k in range(3000):
        add_scalar[1, 32](d, k)
    assert (d.copy_to_host() == sum(range(3000))).all()


@ruda.jit
def add_scalar(x, k):
    i = ruda.grid(1)
    if i < x.size:
        x[i] += k


@on_wgpu
def test_products_are_not_joined_through_variables(wgpu):
    """A driver would make one factor of the three, and 1e-30 of what is zero."""
    out = np.ones(64, np.float32)
    scaled_twice[1, 64](np.ones(64, np.float32), out)
    assert not out.any()


@on_wgpu
def test_bytes_at_odd_places(wgpu):
    d = ruda.to_device(np.arange(11, dtype=np.uint8))
    double[1, 32](d[3:8])
    d[9:11].copy_to_device(np.array([100, 101], np.uint8))
    expected = [0, 1, 2, 6, 8, 10, 12, 14, 8, 100, 101]
    np.testing.assert_array_equal(d.copy_to_host(), expected)


@on_wgpu
@pytest.mark.parametrize("grid", [70000, (3, 70001), (65535, 2)])
def test_grids_longer_than_a_dispatch(wgpu, grid):
    count = int(np.prod(grid))
    out = np.full(count, -1, np.int32)
    blocks_seen[grid, 1](out)
    np.testing.assert_array_equal(out, np.arange(count))


@ruda.jit
def powers_of_two(x, out):
    i = ruda.grid(1)
    if i < x.size:
        out[0, i] = x[i] // 1
        out[1, i] = x[i] % 1
        out[2, i] = x[i] // 16
        out[3, i] = x[i] % 16
        out[4, i] = x[i] // 64
        out[5, i] = x[i] % 64


@on_wgpu
@pytest.mark.parametrize("dtype", [f"{u}int{bits}" for u in ("", "u") for bits in (8, 16, 32, 64)])
def test_powers_of_two_divide_downwards(wgpu, dtype):
    limits = np.iinfo(dtype)
    ends = [limits.min, limits.min + 1, limits.max - 1, limits.max]
    x = np.array([*ends, *range(max(limits.min, -99), 99)], dtype)
    out = np.zeros((6, x.size), dtype)
    powers_of_two[1, 256](x, out)
    for k, number in enumerate((1, 16, 64)):
        by = x.dtype.type(number)
        assert np.array_equal(out[2 * k], x // by) and np.array_equal(out[2 * k + 1], x % by)


@on_wgpu
def test_sums_are_not_reassociated(wgpu):
    x = np.linspace(1, 1000, 4096).astype(np.float32)
    out = np.zeros_like(x)
    reassociated[16, 256](x, out)
    np.testing.assert_array_equal(out, (x + np.float32(1e8)) - np.float32(1e8))


@on_wgpu
def test_too_much_shared_memory_is_told_with_both_numbers(wgpu):
    with pytest.raises(LaunchValueError, match=r"80000 bytes of shared memory.* has \d+"):
        large_shared[1, 32](np.zeros(32, np.float32))
    double[1, 32](np.zeros(1, np.float32))  # the device is as it was


@on_wgpu
def test_fences_are_refused_by_name(wgpu):
    with pytest.raises(UnsupportedError, match="no fence for memory of the device"):
        fenced[1, 1](np.zeros(2, np.float32))


@on_wgpu
def test_prints_and_assertions_come_back(wgpu, capsys):
    with pytest.raises(KernelAssertionError, match=r"3\.0 at 1"):
        talks[1, 32](np.array([1.0, 3.0], np.float32))
    assert capsys.readouterr().out == "x 0 is 1.0\nx 1 is 3.0\n"


@on_wgpu
def test_no_such_adapter():
    with pytest.raises(DeviceNotFoundError, match="wgpu:99"), ruda.config(device="wgpu:99"):
        ruda.to_device(np.zeros(3, np.float32))


def run(code, **environment):
    found = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True, text=True, timeout=120, check=False,
        env={**os.environ, **environment},
    )  # fmt: skip
    return found.returncode, found.stdout, found.stderr


@on_wgpu
def test_nothing_is_printed_without_a_runtime_folder():
    code = (
        "import os; os.environ.pop('XDG_RUNTIME_DIR', None)\n"
        "import numpy as np, ruda\n"
        "from tests.backends.test_wgpu import double\n"
        "with ruda.config(device='wgpu'):\n"
        "    d = ruda.to_device(np.ones(8, np.float32)); double[1, 32](d)\n"
        "print('ends with work in flight')\n"
    )
    assert run(code) == (0, "ends with work in flight\n", "")


@on_wgpu
def test_a_forked_process_is_told():
    code = (
        "import os, numpy as np, ruda\n"
        "ruda.config(device='wgpu')\n"
        "from tests.backends.test_wgpu import double\n"
        "double[1, 32](np.ones(8, np.float32))\n"
        "pid = os.fork()\n"
        "if pid == 0:\n"
        "    try:\n"
        "        double[1, 32](np.ones(8, np.float32))\n"
        "    except ruda.errors.DeviceError as error:\n"
        "        print(error, flush=True)\n"
        "    os._exit(0)\n"
        "os.waitpid(pid, 0)\n"
    )
    status, out, err = run(code)
    assert status == 0 and "forked after the WebGPU device" in out, err


def test_a_missing_package_is_named():
    code = (
        "import sys; sys.modules['wgpu'] = None\n"
        "import ruda\n"
        "print([d.name for d in ruda.devices() if d.name.startswith('wgpu')])\n"
        "try:\n"
        "    with ruda.config(device='wgpu'):\n"
        "        ruda.to_device([1.0])\n"
        "except ruda.errors.DeviceNotFoundError as error:\n"
        "    print(error)\n"
    )
    status, out, err = run(code)
    assert status == 0, err
    assert out.startswith("[]\n") and "pip install ruda[wgpu]" in out


def test_importing_ruda_leaves_wgpu_alone():
    assert run("import sys, ruda; print('wgpu' in sys.modules)")[1] == "False\n"


@ruda.jit
def shifts_and_compares(v, s, shifted, less):
    i = ruda.grid(1)
    if i < v.size:
        shifted[i] = v[i] << s[i]
        less[i] = ruda.int64(s[i] - 9) < 64


@on_wgpu
def test_widened_integers_compare_rightly(wgpu):
    """Old software drivers compare an integer that was widened to 64 bits wrongly."""
    v = np.array([1, 2, 3, 1 << 30], np.int64)
    s = np.array([4, 20, 7, 90], np.int32)
    shifted, less = np.zeros(4, np.int64), np.zeros(4, np.int32)
    shifts_and_compares[1, 32](v, s, shifted, less)
    assert shifted.tolist() == [16, 2 << 20, 3 << 7, 0]
    assert less.tolist() == [1, 1, 1, 0]


@ruda.jit
def signed(a, out):
    i = ruda.grid(1)
    if i < out.size:
        out[i] = math.copysign(float32(1), a) if a == a else float32(9)


@ruda.jit
def plus(k, x):
    i = ruda.grid(1)
    if i < x.size:
        x[i] += k


@on_wgpu
def test_launches_by_turns_have_their_own_numbers():
    """Those that were made before are found again: by the sign of a zero, and NaN, too."""
    with ruda.config(device="wgpu"):
        out = ruda.to_device(np.zeros(3, np.float32))
        x, y = (ruda.to_device(np.zeros(5, np.int32)) for _ in range(2))
        for _ in range(3):
            for a, found in ((0.0, 1), (-0.0, -1), (float("nan"), 9), (2.0, 1), (-math.inf, -1)):
                signed[1, 32](a, out)
                plus[1, 32](1, x)
                plus[1, 32](100, x)
                plus[1, 32](3, y)
                assert (out.copy_to_host() == found).all(), a
        for _ in range(700):  # more than a batch holds
            plus[1, 32](1, x)
            plus[1, 32](3, y)
        assert (x.copy_to_host() == 15 * 101 + 700).all()
        assert (y.copy_to_host() == 15 * 3 + 700 * 3).all()
