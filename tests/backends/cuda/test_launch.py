"""Launches on a device that is not there: what the driver is told, and what comes back."""

from __future__ import annotations

import contextlib
import gc
import re
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

import ruda
from ruda import backends
from ruda.backends import base
from ruda.backends.cuda import driver
from ruda.backends.cuda.launch import layout
from ruda.errors import (
    DeviceError,
    DeviceNotFoundError,
    LaunchError,
    LaunchTypeError,
    LaunchValueError,
    LaunchWarning,
    OutOfMemoryError,
)
from tests.backends.cuda.fake import Code, array, values


@pytest.fixture(autouse=True)
def _on_cuda(fake):
    with ruda.config(device="cuda:0"):
        yield


def saxpy_kernel():
    @ruda.jit
    def saxpy(a, x, y, out):
        i = ruda.grid(1)
        if i < out.size:
            out[i] = a * x[i] + y[i]

    return saxpy


def chained_kernel():
    """One that is not coarsened: neighbours' elements depend on each other."""

    @ruda.jit
    def chained(x):
        i = ruda.grid(1)
        if 0 < i < x.size:
            ruda.atomic.add(x, i - 1, x[i])

    return chained


def compute(fake):
    """Make the fake driver do what saxpy does."""
    seen = []

    def action(parameters):
        a, x, y, out, n, _ = values(parameters, "dqqqqq")
        seen.append((a, x, y, out, n))
        array(out, np.float32, n)[:] = a * array(x, np.float32, n) + array(y, np.float32, n)

    class Everything(dict):
        def get(self, key, default=None):
            return action

    fake.kernels, fake.formats = Everything(), "dqqqqq"
    return seen


@pytest.mark.parametrize("n", [0, 1, 7, 1000])
def test_numpy_arrays_go_there_and_back(fake, n):
    compute(fake)
    x, y, out = np.arange(n, dtype=np.float32), np.ones(n, np.float32), np.zeros(n, np.float32)
    saxpy_kernel()[4, 256](2.0, x, y, out)
    assert np.array_equal(out, 2 * x + 1)
    # A thread does four neighbours' work, so that the grid is as much shorter.
    assert fake.launches[0]["shape"] == (1, 1, 1, 256, 1, 1)


def test_threads_of_the_launch_are_told(fake):
    """Those that the user gave: a kernel with wide accesses must not do more."""
    seen = []

    class Everything(dict):
        def get(self, key, default=None):
            return lambda parameters: seen.append(values(parameters, "dqqqqq")[-1])

    fake.kernels = Everything()
    x = ruda.to_device(np.ones(5000, np.float32))
    for _ in range(2):  # the general way, and the fast one
        saxpy_kernel()[7, 256](1.0, x, x, x)
        assert fake.launches[-1]["shape"][0] == 2
    saxpy_kernel()[8, 256](1.0, np.ones(5000, np.float32), x, x)
    assert seen == [1792, 1792, 2048] and fake.launches[-1]["shape"][0] == 2


def test_only_written_arrays_come_back(fake):
    compute(fake)
    x, y, out = (np.ones(10, np.float32) for _ in range(3))
    saxpy_kernel()[1, 32](2.0, x, y, out)
    assert fake.calls.count("cuMemcpyHtoDAsync") == 3
    assert fake.calls.count("cuMemcpyDtoHAsync") == 1


def test_moved_bytes_are_told_once(fake, monkeypatch):
    monkeypatch.setattr(backends.base, "_moved", False)
    compute(fake)
    kernel, x = saxpy_kernel(), np.ones(10, np.float32)
    with pytest.warns(LaunchWarning, match=r"`saxpy` moved 160 bytes") as found:
        kernel[1, 32](2.0, x, x.copy(), np.ones(10, np.float32))  # three in, one back
        kernel[1, 32](2.0, x, x.copy(), np.ones(10, np.float32))
    assert len(found) == 1


def test_overlapping_arrays_overlap_on_the_device(fake):
    seen = compute(fake)
    x = np.arange(12, dtype=np.float32)
    saxpy_kernel()[1, 32](1.0, x[:8], x[4:], x[2:10])
    (_, a, b, c, _) = seen[0]
    assert (b - a, c - a) == (16, 8)


def test_strided_output_leaves_the_gaps(fake):
    def action(parameters):
        out, n, stride = values(parameters, "qqq")
        array(out, np.uint8, (n - 1) * stride + 4)[:] = 0

    class Everything(dict):
        def get(self, key, default=None):
            return action

    @ruda.jit
    def clear(out):
        i = ruda.grid(1)
        if i < out.size:
            out[i] = 0

    fake.kernels = Everything()
    whole = np.ones(10, np.float32)
    clear[1, 32](whole[1::3])
    assert np.array_equal(whole, [1, 0, 1, 1, 0, 1, 1, 0, 1, 1])


def test_device_arrays_take_the_fast_way(fake):
    compute(fake)
    kernel = saxpy_kernel()
    x = ruda.to_device(np.arange(5, dtype=np.float32))
    out = ruda.device_array_like(x)
    for _ in range(3):
        kernel[1, 32](2.0, x, x, out)
    assert np.array_equal(out.copy_to_host(), 3 * np.arange(5, dtype=np.float32))
    fake.calls.clear()
    kernel[1, 32](2.0, x, x, out)
    assert fake.calls == ["cuLaunchKernel"]


def test_configuration_kept_from_before_the_first_launch(fake):
    """It costs no more than the lookup: the launcher takes over."""
    compute(fake)
    kernel = saxpy_kernel()
    launch = kernel[1, 32]
    x = ruda.to_device(np.arange(5, dtype=np.float32))
    out = ruda.device_array_like(x)
    launch(2.0, x, x, out)
    assert launch._direct[1] is kernel[1, 32]
    y = ruda.to_device(np.arange(5, dtype=np.float64))
    fake.kernels = {}
    launch(2.0, y, y, y)  # other types: the general way, and a launcher of its own
    assert launch._direct[1] is kernel[1, 32]
    with pytest.raises(LaunchTypeError, match="takes 4 arguments"):
        launch(2.0, x)
    launch(2.0, x, x, out=out)
    assert len({id(s) for group in kernel._specialisations.values() for s in group}) == 2


def test_graph_is_one_call(fake):
    compute(fake)
    kernel = saxpy_kernel()
    x = ruda.to_device(np.arange(5, dtype=np.float32))
    out = ruda.device_array_like(x)
    kernel[1, 32](2.0, x, x, out)
    launched = len(fake.launches)
    with ruda.capture() as graph:
        kernel[1, 32](3.0, x, x, out)
        kernel[2, 32](1.0, x, out, out)
    assert len(fake.launches) == launched and len(graph) == 2
    fake.calls.clear()
    graph.replay()
    assert fake.calls == ["cuGraphLaunch"]
    assert np.array_equal(out.copy_to_host(), 5 * np.arange(5, dtype=np.float32))
    graph.replay()
    assert [entry["shape"][0] for entry in fake.launches[launched:]] == [1, 1, 1, 1]
    fake.codes["cuCtxSynchronize"] = [Code.CUDA_ERROR_ILLEGAL_ADDRESS]
    with pytest.raises(DeviceError) as found:
        ruda.synchronize()
    assert any("graph of 2 launches: saxpy" in note for note in found.value.__notes__)


def test_graph_keeps_its_arrays(fake):
    kernel = saxpy_kernel()
    x = ruda.to_device(np.ones(5, np.float32))
    address = x.pointer
    with ruda.capture() as graph:
        kernel[1, 32](3.0, x, x, x)
    del x
    gc.collect()
    assert ruda.device_array(5, np.float32).pointer != address
    del graph
    gc.collect()
    assert ruda.device_array(5, np.float32).pointer == address
    assert "cuGraphExecDestroy" in fake.calls


def test_graph_refuses_what_it_cannot_replay(fake):
    kernel, x = saxpy_kernel(), ruda.to_device(np.ones(5, np.float32))

    @ruda.jit
    def telling(x):
        print(x[0])

    with pytest.raises(LaunchTypeError, match="argument 1 is a NumPy array"), ruda.capture():
        kernel[1, 32](3.0, np.ones(5, np.float32), x, x)
    with pytest.raises(LaunchError, match="`telling` prints"), ruda.capture():
        telling[1, 1](x)
    with pytest.raises(LaunchTypeError, match="name no stream"), ruda.capture():
        kernel[1, 32, ruda.stream()](3.0, x, x, x)
    with pytest.raises(DeviceError, match="not nested"), ruda.capture(), ruda.capture():
        pass
    kernel[1, 32](3.0, x, x, x)
    assert fake.launches  # after all that, launches run again


def test_fast_way_gives_other_types_back(fake):
    compute(fake)
    kernel = saxpy_kernel()
    x = ruda.to_device(np.arange(5, dtype=np.float32))
    for _ in range(2):
        kernel[1, 32](2.0, x, x, x)
    with pytest.raises(ruda.errors.KernelNameError, match="no attribute `size`"):
        kernel[1, 32](2.0, x, x, "x")
    with pytest.raises(LaunchTypeError, match="takes 4 arguments"):
        kernel[1, 32](2.0, x, x)
    y = ruda.to_device(np.arange(5, dtype=np.float64))
    kernel[1, 32](2.0, y, y, y)
    assert len({id(s) for group in kernel._specialisations.values() for s in group}) == 2


def test_python_integers_must_fit(fake):
    @ruda.jit
    def fill(out, value):
        out[ruda.grid(1)] = value

    x = ruda.to_device(np.zeros(4, np.int8))
    for _ in range(2):
        fill[1, 4](x, 100)
        with pytest.raises(OverflowError):
            fill[1, 4](x, 200)
    with pytest.raises(OverflowError):
        fill[1, 4](x, 1 << 70)


@pytest.mark.parametrize(
    ("grid", "block", "text"),
    [
        ((1, 65536), 32, "has 65536 on axis y; cuda:0 has at most 65535"),
        (1, (1, 1, 128), "has 128 on axis z; cuda:0 has at most 64"),
    ],
)
def test_limits_of_shapes(fake, grid, block, text):
    x = ruda.to_device(np.zeros(4, np.float32))
    with pytest.raises(LaunchValueError, match=text):
        saxpy_kernel()[grid, block](1.0, x, x, x)


def test_limits_of_registers_and_shared_memory(fake):
    x = ruda.to_device(np.zeros(4, np.float32))
    fake.function["MAX_THREADS_PER_BLOCK"] = 512
    with pytest.raises(LaunchValueError, match=r"needs 32 registers .* 512 threads"):
        saxpy_kernel()[1, 1024](1.0, x, x, x)
    with pytest.raises(LaunchValueError, match="300000 bytes of dynamic"):
        saxpy_kernel()[1, 32, 0, 300000](1.0, x, x, x)
    saxpy_kernel()[1, 32, 0, 100000](1.0, x, x, x)
    assert fake.function["MAX_DYNAMIC_SHARED_SIZE_BYTES"] == 100000


@pytest.mark.parametrize(
    ("registers", "shared", "most", "tasks", "block"),
    [
        (32, 0, 1024, 1 << 20, 256),  # all blocks fill a multiprocessor: the usual one
        (40, 0, 1024, 1 << 20, 64),  # 51 warps: blocks of 2 leave one idle, larger ones three
        (72, 0, 1024, 1 << 20, 128),  # 28 warps
        (255, 0, 128, 1 << 20, 128),  # 256 threads would not start at all
        (32, 100_000, 1024, 1 << 20, 1024),  # two blocks at once, so they are large
        (32, 0, 1024, 10_000, 64),  # few tasks for 132 multiprocessors
        (32, 0, 1024, 132 * 256, 256),
        (32, 0, 1024, 0, 64),
        (255, 0, 32, 1 << 20, 32),
    ],
)
def test_forall_chooses_the_block_by_occupancy(fake, registers, shared, most, tasks, block):
    fake.function |= {"NUM_REGS": registers, "SHARED_SIZE_BYTES": shared}
    fake.function["MAX_THREADS_PER_BLOCK"] = most
    x = ruda.to_device(np.zeros(4, np.float32))
    kernel = chained_kernel()
    for _ in range(3):  # the first makes the launcher, the others take it
        kernel.forall(tasks)(x)
    kernel.forall(tasks, tpb=32)(x)
    *chosen, asked = [entry["shape"] for entry in fake.launches]
    grid = max(1, -(-tasks // 256)) * 256 // block
    assert chosen == [(grid, 1, 1, block, 1, 1)] * 3
    assert asked == (max(1, -(-tasks // 32)), 1, 1, 32, 1, 1)


def test_forall_and_a_shape_of_its_own_are_apart(fake):
    fake.function |= {"NUM_REGS": 72}
    kernel, x = chained_kernel(), ruda.to_device(np.zeros(4, np.float32))
    for _ in range(2):
        kernel.forall(256 * 1000)(x)
        kernel[1000, 256](x)
    found = [(entry["shape"][0], entry["shape"][3]) for entry in fake.launches]
    assert found == [(2000, 128), (1000, 256)] * 2


def test_error_names_kernel_and_line(fake):
    kernel, x = saxpy_kernel(), ruda.to_device(np.zeros(4, np.float32))
    for _ in range(2):
        kernel[1, 32](1.0, x, x, x)  # here
    fake.codes["cuCtxSynchronize"] = [Code.CUDA_ERROR_ILLEGAL_ADDRESS]
    with pytest.raises(DeviceError, match="ILLEGAL_ADDRESS") as found:
        ruda.synchronize()
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    here = 1 + next(k for k, line in enumerate(lines) if "# here" in line)
    assert any(f"`saxpy` launched at {__file__}, line {here}" in n for n in found.value.__notes__)
    with pytest.raises(DeviceError, match="is lost"):
        ruda.to_device(np.zeros(4, np.float32))
    with pytest.raises(DeviceError, match="is lost"):
        ruda.synchronize()


def test_new_thread_gets_the_context(fake):
    kernel, x = saxpy_kernel(), ruda.to_device(np.zeros(4, np.float32))
    for _ in range(2):
        kernel[1, 32](1.0, x, x, x)
    fake.codes["cuLaunchKernel"] = [Code.CUDA_ERROR_INVALID_CONTEXT]
    before = len(fake.launches)
    thread = threading.Thread(target=lambda: kernel[1, 32](1.0, x, x, x))
    thread.start()
    thread.join()
    assert len(fake.launches) == before + 1


def test_memory_is_reused_and_given_back(fake):
    pool = driver.gpu("cuda:0").pool
    x = ruda.device_array(1000, np.float32)
    address = x.pointer
    del x
    gc.collect()
    y = ruda.device_array(1000, np.float32)
    assert y.pointer == address
    assert pool.statistics()["reused"] == 1
    del y
    gc.collect()
    backends.get("cuda").empty_cache("cuda:0")
    assert fake.used == 0 and pool.statistics()["cached"] == 0


def test_out_of_memory_reclaims_then_tells(fake):
    big = ruda.device_array(3 << 28, np.uint8)
    del big
    gc.collect()
    other = ruda.device_array(5 << 27, np.uint8)  # fits only when the first is given back
    with pytest.raises(OutOfMemoryError, match="1,000,000,000 bytes asked for, 671,088,640 held"):
        ruda.device_array(1_000_000_000, np.uint8)
    assert other.size == 5 << 27


def test_memory_limit(fake):
    with ruda.config(memory_limit=1 << 20):
        x = ruda.device_array(1 << 19, np.uint8)
        with pytest.raises(OutOfMemoryError, match=r"at most 1,048,576 \(memory_limit\)"):
            ruda.device_array(1 << 20, np.uint8)
        del x


def test_block_used_in_another_stream_waits_for_it(fake):
    kernel, x = saxpy_kernel(), ruda.to_device(np.zeros(4, np.float32))
    stream = ruda.stream()
    kernel[1, 32, stream](1.0, x, x, x)
    assert fake.launches[-1]["stream"] == stream.handle
    pool, address = driver.gpu("cuda:0").pool, x.pointer
    fake.codes["cuEventQuery"] = [Code.CUDA_ERROR_NOT_READY]
    del x
    gc.collect()
    assert ruda.device_array(4, np.float32).pointer != address
    assert not pool.waiting or fake.codes["cuEventQuery"] == []
    y = [ruda.device_array(4, np.float32) for _ in range(3)]
    assert address in [a.pointer for a in y]


def test_memory_may_outlive_the_streams_that_used_it(fake):
    """The driver does not forgive an event that is recorded in a stream that is gone."""
    kernel, arrays = saxpy_kernel(), [ruda.to_device(np.zeros(4, np.float32)) for _ in range(3)]
    stream = ruda.stream()
    kernel[1, 32, stream](1.0, *arrays)
    d = ruda.to_device(np.zeros(4, np.float32), stream=stream)
    del kernel, stream
    gc.collect()
    fake.calls.clear()
    arrays[0].__dlpack__(stream=None)
    assert fake.calls.count("cuStreamWaitEvent") == 1
    del arrays, d
    gc.collect()
    assert "cuEventRecord" not in fake.calls
    assert driver.gpu("cuda:0").moments == {}


def test_another_librarys_memory_in_a_stream(fake):
    x = ruda.to_device(np.zeros(4, np.float32))
    theirs = ruda.as_cuda_array(Interface(x))
    saxpy_kernel()[1, 32, ruda.stream()](1.0, theirs, theirs, x)
    assert len(fake.launches) == 1


def test_fork_is_told(fake, monkeypatch):
    x = ruda.to_device(np.zeros(4, np.float32))
    monkeypatch.setattr(driver, "_forked", True)
    fake.codes["cuCtxSynchronize"] = [Code.CUDA_ERROR_NOT_INITIALIZED]
    with pytest.raises(DeviceError, match="forked"):
        ruda.synchronize()
    assert x.size == 4


def test_streams_and_events(fake):
    stream, start, end = ruda.stream(), ruda.event(), ruda.event()
    with pytest.raises(DeviceError, match="only after"):
        start.elapsed_time(end)
    start.record(stream)
    end.record(stream)
    end.wait(stream)
    assert start.elapsed_time(end) == 1.5
    with stream.auto_synchronize():
        d = ruda.to_device([1, 2, 3], stream=stream)
    assert d.copy_to_host(stream=stream).tolist() == [1, 2, 3]
    ruda.default_stream().synchronize()
    assert "cuStreamSynchronize" in fake.calls


def test_device_is_listed_with_its_limits(fake):
    (info,) = [d for d in ruda.devices() if d.name.startswith("cuda")]
    assert (info.name, info.description, info.kind) == ("cuda:0", "Fake GPU", "hardware")
    assert info.properties["compute_capability"] == "9.0"
    with pytest.raises(ruda.errors.DeviceNotFoundError, match="cuda:1"):
        ruda.select_device("cuda:1")


def test_scalars_of_every_kind(fake):
    seen = []

    class Everything(dict):
        def get(self, key, default=None):
            return lambda parameters: seen.append(values(parameters, "qBHffddbQ"))

    @ruda.jit
    def keep(out, b, h, c, z, i, u):
        if b:
            out[0] = h + c.real + c.imag + z.real + z.imag + i + u

    fake.kernels = Everything()
    out = ruda.to_device(np.zeros(1, np.float64))
    arguments = (np.float16(1.5), np.complex64(2 + 3j), 4 + 5j, np.int8(-3), np.uint64(1 << 63))
    for _ in range(2):
        keep[1, 1](out, True, *arguments)
    assert seen[0][1:] == seen[1][1:]
    assert seen[0][1:3] == [1, int(np.float16(1.5).view(np.uint16))]
    assert seen[0][-2:] == [-3, 1 << 63]


def test_arrays_in_one_page_are_locked_together(fake):
    """The driver locks whole pages, and refuses to lock one twice."""
    whole = np.zeros(3 * 4096, np.uint8)
    start = -whole.ctypes.data % 4096
    a, b, c = whole[start : start + 8], whole[start + 100 : start + 4200], whole[start + 16 :][:8]
    pages = driver.gpu("cuda:0").pages
    fake.calls.clear()
    with ruda.mapped(a, b) as (d, e):
        assert fake.calls.count("cuMemHostRegister") == 2 and len(pages.uses) == 2
        with ruda.pinned(c):
            assert fake.calls.count("cuMemHostRegister") == 2
        del d
        gc.collect()
        assert len(pages.uses) == 2
    del e
    gc.collect()
    assert not pages.uses and fake.calls.count("cuMemHostUnregister") == 2
    with ruda.mapped(c) as f:
        assert f.pointer == c.ctypes.data


def test_a_late_report_names_the_launch(fake, monkeypatch):
    """What a kernel asserts is raised at a later synchronisation, with the user's launch line."""
    from ruda.backends.cuda import launch as launching

    def told(*arguments):
        raise ruda.errors.KernelAssertionError("x[0] is small")

    @ruda.jit
    def asserts(x):
        assert x[0] > 1

    d = ruda.to_device(np.ones(4, np.float32))
    monkeypatch.setattr(launching, "read", lambda gpu, address, out, handle: out.fill(1))
    monkeypatch.setattr(launching.reports, "tell", told)
    asserts[1, 1](d)
    line = sys._getframe().f_lineno - 1
    with pytest.raises(ruda.errors.KernelAssertionError) as error:
        ruda.synchronize()
    assert error.value.__notes__ == [f"`asserts` was launched at {__file__}, line {line}"]


def test_returns_before_barriers_of_the_grid_become_launches(fake):
    @ruda.jit
    def rounds(x, n):
        i = ruda.grid(1)
        if i >= x.size:
            return
        for k in range(n):
            x[i] += k
            ruda.cg.this_grid().sync()
        x[i] = -x[i]

    seen = []

    class Formats(dict):
        def get(self, code, default=None):
            return lambda parameters: seen.append(values(parameters, "qqqqqq")[3:])

    fake.kernels = Formats()
    d = ruda.to_device(np.zeros(50, np.float32))
    rounds[2, 32](d, 3)
    held = seen[0][-1]  # the memory of who is gone
    assert seen == [[0, 0, held], *([1, k, held] for k in range(3)), [2, 2, held]]
    assert all(entry["shape"] == (2, 1, 1, 32, 1, 1) for entry in fake.launches)
    rounds[1 << 20, 256](d, 0)  # as many blocks as one likes
    with pytest.raises(LaunchError, match="several launches"), ruda.capture():
        rounds[2, 32](d, 3)


# ---- what code assumes, and launches that do not fulfil it ---------------------------------------


class Interface:
    """Another library's array, over memory of the fake device."""

    def __init__(self, d, **changes):
        self.__cuda_array_interface__ = d.__cuda_array_interface__ | changes


def code_of(fake, kernel, shape, *arguments):
    """The code that the general way chooses, then the fast one where it serves."""
    fake.launches.clear()
    for _ in range(3):
        kernel[shape](*arguments)
    return [entry["code"] for entry in fake.launches]


def test_overlapping_arguments_run_code_that_allows_it(fake):
    kernel, shape = saxpy_kernel(), (1, 64)
    x, y, out = (ruda.to_device(np.arange(64, dtype=np.float32)) for _ in range(3))
    first, *rest = code_of(fake, kernel, shape, 2.0, x, y, out)
    assert rest == [first] * 2
    for arguments in (
        (x, y, y), (x, x, x), (x[:32], y, x[16:48]), (out, x[::1], out),
        (Interface(x), y, x), (ruda.as_cuda_array(Interface(x)), y, x),
    ):  # fmt: skip
        codes = code_of(fake, kernel, shape, 2.0, *arguments)
        assert first not in codes and len(set(codes)) == 1
    assert code_of(fake, kernel, shape, 2.0, x, y, out) == [first] * 3
    assert code_of(fake, kernel, shape, 2.0, x, x, out) == [first] * 3  # both are only read
    a, b = np.ones(64, np.float32), np.ones(64, np.float32)
    assert code_of(fake, kernel, shape, 2.0, a, a, b) == [first] * 3
    assert first not in code_of(fake, kernel, shape, 2.0, a, b, b)
    assert code_of(fake, kernel, shape, 2.0, a[:32], a[:32], a[32:]) == [first] * 3
    assert code_of(fake, kernel, shape, 2.0, a[:0], a[:0], a[:0]) == [first] * 3


def test_arguments_in_other_libraries_memory_may_overlap(fake):
    kernel, shape = saxpy_kernel(), (1, 64)
    x, y, out = (ruda.to_device(np.arange(64, dtype=np.float32)) for _ in range(3))
    apart = code_of(fake, kernel, shape, 2.0, x, y, out)[0]
    theirs = ruda.as_cuda_array(Interface(out))
    careful = code_of(fake, kernel, shape, 2.0, x, y, y)[0]
    assert careful != apart
    # Not looked at closely: the launcher knows that memory of its own pool is apart, nothing else.
    assert code_of(fake, kernel, shape, 2.0, x, y, theirs) == [careful] * 3


def test_bound_launchers_compare_addresses(fake):
    """What plans call: arrays as the given ones, wherever they are."""
    kernel = saxpy_kernel()
    x, y, out = (ruda.to_device(np.arange(64, dtype=np.float32)) for _ in range(3))
    kernel[1, 64](2.0, x[:32], y[::2], out[:32])
    apart = fake.launches[-1]["code"]
    (made,) = next(iter(kernel._specialisations.values()))
    given = (2.0, x[:32], y[::2], out[:32])
    launch = base.Launch((1, 1, 1), (64, 1, 1))
    bound = backends.get("cuda").bound(made.module, launch, given)

    def code(*arguments):
        bound(2.0, *arguments)
        return fake.launches[-1]["code"]

    assert code(*given[1:]) == apart
    careful = code(x[:32], y[::2], x[:32])
    assert careful != apart
    assert code(x[:32], y[::2], x[32:]) == apart == code(x[32:], y[::2], x[:32])
    assert code(x[:32], y[::2], x[31:63]) == careful == code(x[1:33], y[::2], x[32:])
    assert code(x[:32], y[::2], y[:32]) == careful == code(x[:32], y[1::2], y[32:])


def test_huge_arrays_and_launches_run_code_of_64_bits(fake):
    @ruda.jit
    def mark(x, n):
        i = ruda.grid(1)
        if i < x.shape[0]:
            x[i // ruda.gridDim.x] = n

    d = ruda.to_device(np.zeros(4, np.int8))
    seen = []

    class Formats(dict):
        def get(self, code, default=None):
            return lambda parameters: seen.append(code)

    fake.kernels = Formats()
    short = code_of(fake, mark, (1, 32), d[::1], 3)[0]
    below, huge = (Interface(d, shape=(n,), strides=(0,)) for n in ((1 << 31) - 1, 1 << 31))
    strided = code_of(fake, mark, (1, 32), below, 3)
    wide = code_of(fake, mark, (1, 32), huge, 3)
    assert len({short, strided[0], wide[0]}) == 3 and len(set(wide)) == 1
    many = code_of(fake, mark, (1 << 23, 256), d, 3)
    assert len(set(many)) == 1 and many[0] not in (short, *strided)
    assert code_of(fake, mark, ((1 << 23) - 1, 256), d, 3) == [short] * 3


def test_graphs_choose_the_code_for_what_they_hold(fake):
    kernel = saxpy_kernel()
    x, y, out = (ruda.to_device(np.arange(64, dtype=np.float32)) for _ in range(3))
    kernel[1, 64](2.0, x, y, out)
    apart = fake.launches[-1]["code"]
    fake.formats = "dqqqqq"
    with ruda.capture() as graph:
        kernel[1, 64](2.0, x, y, out)
        kernel[1, 64](2.0, x, y, y)
    fake.launches.clear()
    graph.replay()
    first, second = (entry["code"] for entry in fake.launches)
    assert first == apart != second


def test_code_that_assumes_less_is_kept_on_the_disk(fake, monkeypatch):
    from ruda.backends.cuda import compile as compiler

    compiled = []
    real = compiler.compile_source
    monkeypatch.setattr(compiler, "compile_source", lambda *a: compiled.append(1) or real(*a))
    x, y = (ruda.to_device(np.arange(64, dtype=np.float32)) for _ in range(2))
    for _ in range(2):  # two kernels of the same text
        saxpy_kernel()[1, 64](3.0, x, y, y)
        assert len(compiled) <= 2
    assert fake.launches[0]["code"] == fake.launches[1]["code"]


# ---- faults, as they may come at any moment ------------------------------------------------------


def test_launches_from_many_threads(fake):
    compute(fake)
    kernel, problems = saxpy_kernel(), []

    def work(number):
        try:
            with ruda.config(device="cuda:0"):
                x = ruda.to_device(np.full(50, number, np.float32))
                out = ruda.to_device(np.zeros(50, np.float32))
                for k in range(40):
                    kernel[1, 64](float(k), x, x, out)
                    assert (out.copy_to_host() == (k + 1) * number).all()
                host = np.zeros(50, np.float32)
                kernel[1, 64](1.0, np.full(50, number, np.float32), x.copy_to_host(), host)
                assert (host == 2 * number).all()
        except BaseException as error:
            problems.append(error)

    with pytest.warns(LaunchWarning) if not base._moved else contextlib.nullcontext():
        threads = [threading.Thread(target=work, args=(k,)) for k in range(8)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
    assert not problems
    assert len(fake.launches) == 8 * 41


def test_nothing_is_lost_when_memory_runs_out_between_launches(fake):
    compute(fake)
    kernel = saxpy_kernel()
    x, out = (ruda.to_device(np.ones(4, np.float32)) for _ in range(2))
    kernel[1, 32](1.0, x, x, out)
    with pytest.raises(OutOfMemoryError, match=r"2,000,000,000 bytes asked for.*free"):
        ruda.device_array(2_000_000_000, np.uint8)
    with pytest.raises(OutOfMemoryError, match="at most 1 "), ruda.config(memory_limit=1):
        out.copy()  # a request in the midst of other work
    kernel[1, 32](3.0, out, x, out)
    assert out.copy_to_host().tolist() == [7] * 4
    assert len(fake.launches) == 2


WRONG_COPIES = {
    "fewer": (lambda d: d.copy_to_device(np.zeros(3, np.float32)), ValueError, r"\(4,\).*\(3,\)"),
    "more": (lambda d: d.copy_to_device(np.zeros(5, np.float32)), ValueError, r"\(4,\).*\(5,\)"),
    "dtype": (lambda d: d.copy_to_device(np.zeros(4, np.int32)), TypeError, "float32.*int32"),
    "a device's": (lambda d: d.copy_to_device(d[:2]), ValueError, r"\(4,\).*\(2,\)"),
    "to the host": (lambda d: d.copy_to_host(np.zeros(5, np.float32)), ValueError, r"\(5,\)"),
    "dtype to the host": (lambda d: d.copy_to_host(np.zeros(4, int)), TypeError, "float32"),
    "a slice": (lambda d: d.__setitem__(slice(1, 3), np.zeros(3, np.float32)), ValueError, "3"),
}


@pytest.mark.parametrize(("copy", "error", "text"), WRONG_COPIES.values(), ids=WRONG_COPIES)
def test_copies_of_the_wrong_size_move_nothing(fake, copy, error, text):
    d = ruda.to_device(np.arange(4, dtype=np.float32))
    fake.calls.clear()
    with pytest.raises(error, match=text):
        copy(d)
    assert not any("Memcpy" in name for name in fake.calls)
    assert d.copy_to_host().tolist() == [0, 1, 2, 3]


USES_OF_THE_FREED = {
    "copy_to_host": lambda kernel, d: d.copy_to_host(),
    "copy_to_device": lambda kernel, d: d.copy_to_device(np.zeros(4, np.float32)),
    "launch": lambda kernel, d: kernel[1, 32](1.0, d, d, d),
    "a view": lambda kernel, d: d[1:],
    "DLPack": lambda kernel, d: d.__dlpack__(),
    "the CUDA array interface": lambda kernel, d: d.__cuda_array_interface__,
    "free": lambda kernel, d: d.free(),
}


@pytest.mark.parametrize("use", USES_OF_THE_FREED.values(), ids=USES_OF_THE_FREED)
def test_uses_after_free_are_refused(fake, use):
    kernel, d = saxpy_kernel(), ruda.to_device(np.zeros(4, np.float32))
    kernel[1, 32](1.0, d, d, d)
    d.free()
    launched = len(fake.launches)
    with pytest.raises(DeviceError, match="freed"):
        use(kernel, d)
    assert len(fake.launches) == launched


@pytest.mark.parametrize("name", ["cuda:1", "cuda:99", "cuda:-1", "cuda:x", "cuda:0:1", "cuda:"])
def test_device_names_out_of_range(fake, name):
    for use in (ruda.device, ruda.select_device, ruda.set_default_device):
        with pytest.raises(DeviceNotFoundError, match=re.escape(name)):
            use(name)


USES_OF_THE_DEAD = {
    "copy_to_host": lambda kernel, d: d.copy_to_host(),
    "copy_to_device": lambda kernel, d: d.copy_to_device(np.zeros(4, np.float32)),
    "launch": lambda kernel, d: kernel[1, 32](1.0, d, d, d),
    "launch on NumPy": lambda kernel, d: kernel[1, 32](1.0, *[np.ones(4, np.float32)] * 3),
    "new array": lambda kernel, d: ruda.to_device(np.zeros(4, np.float32)),
    "stream": lambda kernel, d: ruda.stream(),
    "synchronize": lambda kernel, d: ruda.synchronize(),
}


@pytest.mark.parametrize("use", USES_OF_THE_DEAD.values(), ids=USES_OF_THE_DEAD)
def test_a_lost_device_says_so_to_every_use(fake, use):
    kernel, x = saxpy_kernel(), ruda.to_device(np.zeros(4, np.float32))
    kernel[1, 32](1.0, x, x, x)
    fake.codes["cuCtxSynchronize"] = [Code.CUDA_ERROR_ILLEGAL_ADDRESS]
    with pytest.raises(DeviceError, match="ILLEGAL_ADDRESS"):
        ruda.synchronize()
    fake.broken = True
    with pytest.raises(DeviceError, match="is lost to this process"):
        use(kernel, x)


def test_a_forked_child_is_told_at_its_launch(fake, monkeypatch):
    kernel, x = saxpy_kernel(), ruda.to_device(np.zeros(4, np.float32))
    for _ in range(2):
        kernel[1, 32](1.0, x, x, x)
    monkeypatch.setattr(driver, "_forked", True)
    fake.broken = Code.CUDA_ERROR_NOT_INITIALIZED
    for use in (lambda: kernel[1, 32](1.0, x, x, x), x.copy_to_host, lambda: ruda.to_device([1.0])):
        with pytest.raises(DeviceError, match="forked"):
            use()


def test_the_end_of_the_process_waits_and_leaves_memory_alone(fake):
    kernel, x = saxpy_kernel(), ruda.to_device(np.zeros(4, np.float32))
    kernel[1, 32](1.0, x, x, x)
    fake.calls.clear()
    driver.gpu("cuda:0").close()  # registered with atexit
    assert "cuCtxSynchronize" in fake.calls
    fake.calls.clear()
    del x  # the context may be gone by now
    gc.collect()
    assert "cuMemFree" not in fake.calls


def test_plans_launch_by_addresses_alone(fake):
    """What they pack is what a launcher packs that looks at its arguments."""
    from ruda.tensor import lower, plan
    from ruda.tensor.program import collect, program, topological

    x, y = (ruda.asarray(np.ones((6, 40), np.float32)) for _ in range(2))
    packed = []
    for make in (
        lambda: x + y,
        lambda: x * 2.5,
        lambda: (x.T + y.T) * x[:, :1].T,
        lambda: x[::-1, 3:9] - 1.0,
        lambda: x - ruda.max(x, axis=1, keepdims=True),
    ):
        node = make()._storage.node
        order, _ = topological([node], 100)
        found = collect(order, {id(node)})
        made = plan.make(program(found)._replace(dead=frozenset()))
        given = plan.leaf_values(made, [n.value for n in found.leaves])
        (k,) = made.kernels
        results = plan.allocated(k, given, "cuda:0")
        arguments = plan.arguments(k, results, given, found.numbers)
        kernel, types = lower.lowered(k.group), lower.types_of(arguments)
        module = lower.prepare(kernel, types, "cuda:0").module
        letters = [c for c in layout(module.metadata["parameters"])[0] if c.isalpha() and c != "x"]
        fake.kernels[module.function] = lambda at, c=letters: packed.append(values(at, c))
        lower.launcher(kernel, k.launch, "cuda:0", types)(*arguments)
        bound = plan.bound(k, [(k.group, k.launch, arguments)], "cuda:0")
        bound(results, given, found.numbers)
        assert packed[-1] == packed[-2]
    assert len(packed) == 10


def test_an_op_alone_takes_the_right_operands(fake):
    """Tensors and numbers on either side, and one tensor twice, once a plan is there for them."""
    from ruda.tensor import execute

    a, b = (ruda.asarray(np.full(100, k, np.float32)) for k in (2, 3))
    at = {"a": a.buffer().pointer, "b": b.buffer().pointer}
    found = []

    class Everything(dict):
        def get(self, key, default=None):
            return lambda parameters: found.append(values(parameters, self.letters))

    fake.kernels = Everything()
    for _ in range(2):
        for make, letters, wanted in (
            (lambda: a - b, "qqqqq", ["a", "b"]),
            (lambda: b - a, "qqqqq", ["b", "a"]),
            (lambda: a - 1.5, "qqqfq", ["a", 1.5]),
            (lambda: 4.5 - a, "qqqfq", ["a", 4.5]),
            (lambda: a - a, "qqqq", ["a"]),
        ):
            fake.kernels.letters = letters
            found.clear()
            out = make().buffer()
            ((first, extent, *operands, _),) = found
            assert (first, extent) == (out.pointer, 100)
            assert operands == [at.get(w, w) for w in wanted]
    assert sum(v is not None for v in execute._alone[1].values()) >= 3


def test_a_primitive_whose_configuration_launches_directly_is_bound_too(fake):
    """`kernel[grid, block]` of a kernel of plain arrays is its launcher after the first launch."""
    from ruda.tensor.primitives import run

    @ruda.jit
    def kernel(x, out, n):
        i = ruda.grid(1)
        if i < out.size:
            out[i] = x[i] + n

    launched = []

    class Everything(dict):
        def get(self, key, default=None):
            return lambda parameters: launched.append(key)

    fake.kernels = Everything()
    x, y = (ruda.to_device(np.zeros(40, np.float32)) for _ in range(2))
    for n in (1, 1, 1, 2, 2, 2):
        run.launch("test", "cuda:0", kernel, 2, 32, x, y, n)
    assert type(kernel[2, 32]).__name__ != "Configured", "no longer what this is about"
    assert len(launched) == 6 and None not in run._bound[1].values()


def test_kernels_of_primitives_are_launched_again_by_addresses_alone(fake):
    """A launch of a form that came before packs what the first one packed, with its own arrays."""
    from ruda.tensor.primitives import run

    @ruda.jit
    def kernel(x, nothing, out, n, last, value: ruda.constexpr):
        i = ruda.grid(1)
        if i < out.shape[0]:
            out[i, 0] = x[i, 1] + value + last[0] * n

    found = []

    class Everything(dict):
        def get(self, key, default=None):
            made = [m.module for known in kernel._specialisations.values() for m in known]
            rows = next(m.metadata["parameters"] for m in made if m.function == key)
            letters = [c for c in layout(rows)[0] if c.isalpha() and c != "x"]
            return lambda parameters: found.append(values(parameters, letters))

    fake.kernels = Everything()
    whole = [ruda.to_device(np.zeros((8, 6), np.float32)) for _ in range(3)]
    x, y, z = (a[:, ::2] for a in whole)

    def packed(*arguments):
        kernel[1, 32](*arguments)
        for _ in range(2):  # the second one is bound, at the latest
            run.launch("test", "cuda:0", kernel, 1, 32, *arguments)
        looked, first, again = found[-3:]
        assert looked == first == again
        return again

    forms = [
        (x, None, y, 3, (2, 5), 0.0),
        (z, None, x, 3, (2, 5), 0.0),
        (x, None, y, 4, (2, 5), 0.0),
    ]
    forms += [(x, None, y, 3, (7, 5), 0.0), (x, None, whole[2], 3, (2, 5), 0.0)]
    different = [packed(*form) for form in forms]
    assert all(a != b for k, a in enumerate(different) for b in different[:k])
    known = run._bound[1]
    assert len(known) == 4 and None not in known.values()  # of the first two forms it is the same
    packed(x, None, y, 3, (2, 5), -0.0)  # kernels of their own
    packed(x, None, y, 3, (2, 5), 0)
    assert len(known) == 6
    x.free()
    with pytest.raises(DeviceError, match="freed"):
        run.launch("test", "cuda:0", kernel, 1, 32, *forms[0])


@pytest.mark.parametrize(
    "make",
    [
        lambda x: ruda.tril(x, k=-3),
        lambda x: ruda.triu(x, k=1 << 40),
        lambda x: ruda.eye(300, 500, k=2, dtype="int8"),
    ],
)
def test_triangles_and_units_send_a_line_and_no_matrix(fake, monkeypatch, make):
    x = ruda.asarray(np.ones((300, 500), np.float32))
    sent = []
    write = fake.cuMemcpyHtoDAsync
    monkeypatch.setattr(
        fake, "cuMemcpyHtoDAsync", lambda *rest: sent.append(rest[2]) or write(*rest)
    )
    assert make(x).buffer().shape == (300, 500)
    assert sent == [4 * 500]
