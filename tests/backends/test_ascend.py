"""Ascend without an NPU: emitted text, what the emulation refuses, and that its faults are told."""

import math
import re
import subprocess
from dataclasses import replace

import numpy as np
import pytest

import ruda
from ruda import backends
from ruda.backends.ascend import compile as compiler
from ruda.backends.ascend import device as ascend
from ruda.backends.ascend import formulas
from ruda.backends.ascend.twin import build
from ruda.errors import (
    BarrierError,
    DataRaceError,
    DeviceError,
    DeviceNotFoundError,
    KernelAssertionError,
    LaunchValueError,
    OutOfBoundsError,
    UnsupportedError,
    VerifyError,
)
from ruda.jit import intrinsics as ops
from ruda.jit.tools import describe

TWIN = "ascend-twin"


@ruda.jit
def saxpy(a: np.float32, x, y, out):
    i = ruda.grid(1)
    if i < out.size:
        out[i] = a * x[i] + y[i]


@ruda.jit
def reverse(x):
    tile = ruda.shared.array(64, np.float32)
    t = ruda.threadIdx.x
    tile[t] = x[t]
    ruda.syncthreads()
    x[t] = tile[63 - t]


def launch(kernel, configuration, *arguments):
    with ruda.config(device=TWIN):
        kernel[configuration](*arguments)


def binary(kernel, types, block, change):
    """A loaded module of the emitted text after `change`."""
    made = describe(kernel, TWIN, types, block=block).made
    backend = backends.get(TWIN)
    target = backend.target(TWIN)
    source = backend.emit(made.function, target)
    text = change(source.text)
    assert text != source.text, "the text to be changed is gone"
    found = backend.compile(replace(source, text=text), target)
    return backend.load(found, made.function, TWIN)


def run(module, grid, block, *arguments):
    backends.get(TWIN).launcher(module, backends.base.Launch(grid, block), None)(*arguments)


# ---- devices -------------------------------------------------------------------------------------


def test_devices_say_that_they_are_emulated():
    found = backends.get(TWIN).devices()
    assert [info.name for info in found] == ["ascend-twin:950", "ascend-twin:910b"]
    assert all(info.kind == "emulation" and "emulation" in info.description for info in found)
    assert backends.find(TWIN).name == "ascend-twin:950"


def test_unknown_chip_is_refused():
    with pytest.raises(DeviceNotFoundError, match="950, 910b"):
        ascend.chip_of("ascend-twin:310")


def test_no_compiler_is_told(monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert backends.get(TWIN).devices() == []
    with pytest.raises(DeviceNotFoundError, match=r"C\+\+ compiler"):
        backends.find.__wrapped__(TWIN)


# ---- the text ------------------------------------------------------------------------------------


def test_text_of_saxpy_reads_like_the_kernel():
    text = saxpy.source(TWIN, "f32", "f32[:]", "f32[:]", "f32[:]", block=256)
    body = re.search(r"__global__.*?^}", text, re.S | re.M)[0]
    body = re.sub(r"// \d+:", "//", body)
    assert body == (
        "__global__ __launch_bounds__(256) void saxpy(gm<float> x, gm<float> y, gm<float> out, "
        "int64_t out_n0, float a, int64_t first_x) {\n"
        "    // def saxpy(a: np.float32, x, y, out):\n"
        "    const int64_t global_x = (first_x + blockIdx.x) * 256 + threadIdx.x;\n"
        "    // i = ruda.grid(1)\n"
        "    int64_t i = global_x;\n"
        "    // if i < out.size:\n"
        "    if (i < out_n0) {\n"
        "        // out[i] = a * x[i] + y[i]\n"
        "        out[i] = (a * x[i]) + y[i];\n"
        "    }\n"
        "}"
    )


@ruda.jit
def functions(x, y):
    i = ruda.grid(1)
    a = math.exp(x[i]) + math.sin(x[i]) * math.tanh(x[i]) - math.erf(x[i]) / 3
    y[i] = a % 2.5 + math.log(a) + round(a) + int(a) // 3


def test_float32_kernels_have_no_double():
    """Not in the text, and none that the compiler makes by promotion."""
    assert "double" not in functions.source(TWIN, "f32[:]", "f32[:]")
    made = describe(functions, TWIN, ("f32[:]", "f32[:]")).made
    backend = backends.get(TWIN)
    source = backend.emit(made.function, backend.target(TWIN))
    strict = '#pragma GCC diagnostic error "-Wdouble-promotion"\n'
    compiler.compile_source(replace(source, text=strict + source.text))


@ruda.jit
def names(int, threadIdx, double, exp_f32, ruda_x, t1, float, for_):
    i = ruda.grid(1)
    new = math.exp(int[i])
    asc_syncthreads = new + double[i] + exp_f32 + ruda_x + t1 + for_
    threadIdx[i] = asc_syncthreads * float


def test_names_that_mean_something_in_cpp():
    x = np.ones(4, np.float32)
    out = np.zeros(4, np.float32)
    launch(names, (1, 4), x, out, x, 1.0, 2.0, 3.0, 2.0, 4.0)
    np.testing.assert_allclose(out, 2 * (np.exp(np.float32(1)) + 11), rtol=1e-6)


def test_functions_of_float32_that_compute_in_double():
    """These four, as on the CPU, and no others; `fastmath` has the chip's own pow."""
    found = set()
    for name in ops.TABLE:
        text = formulas.define(name, "f32")
        if text and "double" in formulas.definitions(f"{formulas.function_name(name)}_f32("):
            found.add(name)
    assert found == {"hypot", "pow", "gamma", "lgamma"}


# ---- refusals ------------------------------------------------------------------------------------


@ruda.jit
def wide_shared_atomic(x):
    total = ruda.shared.array(1, np.int64)
    ruda.atomic.add(total, 0, x[0])
    ruda.syncthreads()
    x[0] = total[0]


@ruda.jit
def large_shared(x):
    tile = ruda.shared.array(60000, np.float32)
    tile[ruda.threadIdx.x] = 1
    ruda.syncthreads()
    x[0] = tile[0]


@ruda.jit
def large_local(x):
    mine = ruda.local.array(9000, np.float32)
    mine[x[0]] = 1
    x[0] = mine[3]


@ruda.jit
def whole_grid(x):
    ruda.cg.this_grid().sync()
    x[0] = 1


@pytest.mark.parametrize(
    ("kernel", "message"),
    [
        (wide_shared_atomic, "no atomics on int64 in shared memory"),
        (large_shared, r"240000 bytes of shared memory \(`tile` 240000\); .* has 221184"),
        (large_local, r"36000 bytes of local memory \(`mine` 36000\); .* has 32768"),
        (whole_grid, "no barrier for the whole grid"),
    ],
    ids=lambda v: getattr(v, "__name__", ""),
)
def test_refused(kernel, message):
    with pytest.raises(UnsupportedError, match=message):
        launch(kernel, (1, 32), np.zeros(4, np.int64))


@ruda.jit
def dynamic(x):
    tile = ruda.shared.array(0, np.float32)
    tile[0] = x[0]


def test_too_much_dynamic_memory():
    with pytest.raises(LaunchValueError, match=r"uses 300000 bytes .* has 221184"):
        launch(dynamic, (1, 1, 0, 300000), np.zeros(1, np.float32))


# ---- faults --------------------------------------------------------------------------------------


@ruda.jit
def shifted(x, k):
    i = ruda.grid(1)
    x[i + k] = 1


@ruda.jit
def shifted_tile(x, k):
    tile = ruda.shared.array(8, np.float32)
    tile[ruda.threadIdx.x + k] = 1
    ruda.syncthreads()
    x[0] = tile[0]


def test_access_outside_of_an_array():
    x = np.zeros(12, np.float32)
    with pytest.raises(OutOfBoundsError, match=r"block \(2, 0, 0\), thread \(3, 0, 0\)") as caught:
        launch(shifted, (3, 4), x[:12], 1)
    assert caught.value.place.line == shifted.py_func.__code__.co_firstlineno + 3
    launch(shifted, (3, 4), x, 0)  # the process lives, and so does the kernel
    np.testing.assert_array_equal(x, 1)


def test_access_in_the_gap_of_another_array():
    """Bounds are those of the array that a pointer came from."""
    both = np.zeros(8, np.float32)
    with pytest.raises(OutOfBoundsError):
        launch(shifted, (1, 4), both[:4], 4)
    np.testing.assert_array_equal(both, 0)


def test_access_outside_of_shared_memory():
    with pytest.raises(OutOfBoundsError, match="index 8 is outside of an axis of 8"):
        launch(shifted_tile, (1, 8), np.zeros(1, np.float32), 1)


def test_removed_barrier_is_noticed():
    module = binary(reverse, ("f32[:]",), 64, lambda t: t.replace("asc_syncthreads();", ""))
    with pytest.raises(DataRaceError, match=r"of `tile`.*with no barrier between") as caught:
        run(module, (1, 1, 1), (64, 1, 1), np.zeros(64, np.float32))
    first = reverse.py_func.__code__.co_firstlineno
    assert caught.value.place.line == first + 4  # a store, after the read of a thread before it
    assert f"test_ascend.py:{first + 6})" in str(caught.value)


def test_barrier_that_some_threads_miss():
    missed = "if (threadIdx.x < 40) asc_syncthreads();"
    module = binary(
        reverse, ("f32[:]",), 64,
        lambda t: t.replace("asc_syncthreads();", f"asc_syncthreads(); {missed}"),
    )  # fmt: skip
    with pytest.raises(BarrierError, match="does not come to the barrier") as caught:
        run(module, (1, 1, 1), (64, 1, 1), np.zeros(64, np.float32))
    assert caught.value.place.line == reverse.py_func.__code__.co_firstlineno + 5


def test_threads_at_different_barriers():
    two = "if (threadIdx.x < 32) {\nasc_syncthreads();\n} else {\nasc_syncthreads();\n}"
    module = binary(reverse, ("f32[:]",), 64, lambda t: t.replace("asc_syncthreads();", two))
    with pytest.raises(BarrierError, match="different barriers"):
        run(module, (1, 1, 1), (64, 1, 1), np.zeros(64, np.float32))


def test_error_of_the_compiler_is_at_the_users_line():
    with pytest.raises(VerifyError, match="nonsense") as caught:
        binary(reverse, ("f32[:]",), 64, lambda t: t.replace("asc_syncthreads();", "nonsense();"))
    line = reverse.py_func.__code__.co_firstlineno + 5
    assert f"test_ascend.py:{line}, as: nonsense();" in str(caught.value)


@ruda.jit
def told(x):
    i = ruda.grid(1)
    print("thread", i, "has", x[i])
    assert x[i] < 5, f"{x[i]} is too large"


def test_reports(capsys):
    with pytest.raises(KernelAssertionError, match=r"5\.0 is too large"):
        launch(told, (3, 2), np.arange(6, dtype=np.float32))
    assert capsys.readouterr().out == "".join(f"thread {i} has {float(i)}\n" for i in range(6))


# ---- launches ------------------------------------------------------------------------------------


@ruda.jit
def where(seen, sizes):
    i, j, k = ruda.blockIdx.x, ruda.blockIdx.y, ruda.blockIdx.z
    ruda.atomic.add(seen, (i, j, k), 1)
    if i == 0 and j == 0 and k == 0:
        sizes[0], sizes[1], sizes[2] = ruda.gridDim.x, ruda.gridDim.y, ruda.gridDim.z


@pytest.mark.parametrize("grid", [(70000, 1, 1), (3, 30000, 1), (2, 5, 9000), (1, 1, 65536)])
def test_more_blocks_than_a_launch_may_have(grid):
    """They are launched in pieces; every block runs once and knows the whole grid."""
    seen, sizes = np.zeros(grid, np.int32), np.zeros(3, np.int64)
    launch(where, (grid, 1), seen, sizes)
    np.testing.assert_array_equal(seen, 1)
    assert tuple(sizes) == grid


def test_memory_of_the_device():
    with ruda.config(device=TWIN):
        d = ruda.to_device(np.arange(4, dtype=np.float32))
        assert d.device == "ascend-twin:950"
        saxpy[1, 4](2.0, d, d, d)
    np.testing.assert_array_equal(d.copy_to_host(), [0, 3, 6, 9])


# ---- an NPU, with stand-ins for CANN's compiler and library --------------------------------------

LIBRARY = """
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
static int used;
/* What the emulation of the 910B takes for its stream: all memory is an array of the launch. */
static struct { uint64_t base, bytes; const char* name; uint32_t writable, reserved; }
    all = {0, ~0ull, "memory", 1, 0};
static struct { void* ranges; uint32_t count, workers; uint64_t seed, out[256]; }
    run = {&all, 1, 1, 0};
int in_use(void) { return used; }
const char* aclrtGetSocName(void) { return getenv("STAND_IN_SOC"); }
int aclGetDeviceCapability(uint32_t k, int what, int64_t* value) { *value = 3; return what != 1; }
int aclInit(const char* path) { return 0; }
int aclrtGetDeviceCount(uint32_t* n) { *n = 1; return 0; }
int aclrtSetDevice(int32_t k) { return k != 0; }
int aclrtCreateStream(void** s) { *s = &run; return 0; }
int aclrtSynchronizeStream(void* s) { return s != (void*)&run; }
int aclrtMalloc(void** p, size_t n, int policy) {
    if (n > (1u << 30)) return 207001;
    ++used;
    return (*p = malloc(n)) == 0;
}
int aclrtFree(void* p) { --used; free(p); return 0; }
int aclrtMemcpy(void* to, size_t room, const void* from, size_t n, int kind) {
    if (n > room || (kind != 1 && kind != 2)) return 100000;
    memcpy(to, from, n);
    return 0;
}
int aclrtGetMemInfo(int kind, size_t* free, size_t* total) { *free = 1; *total = 2; return 0; }
const char* aclGetRecentErrMsg(void) { return "told by CANN"; }
"""
COMPILER = """#!/bin/sh
for option; do case $option in --npu-arch=dav-3510|--npu-arch=dav-2201|--enable-simt) ;;
  *.asc) set -- "$@" -x c++ "$option" ;; *) set -- "$@" "$option" ;; esac; shift; done
exec g++ -I{twin} "$@"
"""


@pytest.fixture(params=["Ascend950PR_9589"])
def npu(request, tmp_path, monkeypatch):
    """The device `ascend:0` on CANN's stand-ins; the emulation's runtime plays the chip."""
    monkeypatch.setenv("STAND_IN_SOC", request.param)
    from ruda.backends.ascend import npu as module

    (tmp_path / "bin").mkdir()
    (tmp_path / "lib64").mkdir()
    script = tmp_path / "bin" / "bisheng"
    script.write_text(COMPILER.replace("{twin}", str(compiler.FOLDER / "twin")))
    script.chmod(0o755)
    code = tmp_path / "acl.c"
    code.write_text(LIBRARY)
    library = tmp_path / "lib64" / "libascendcl.so"
    subprocess.run(["gcc", "-shared", "-fPIC", str(code), "-o", str(library)], check=True)
    monkeypatch.setenv("ASCEND_HOME_PATH", str(tmp_path))
    compiler.runtime()
    build.runtime()
    backends.find.cache_clear()
    with ruda.config(device="ascend:0"):
        yield module
    backends.find.cache_clear()


def test_npu_runs_kernels(npu, capsys):
    assert [d.name for d in npu.BACKEND.devices()] == ["ascend:0"]
    x = np.arange(100, dtype=np.float32)
    saxpy[4, 32](2.0, x, x[::-1].copy(), x)  # one argument is another
    np.testing.assert_array_equal(x, 2 * np.arange(100) + np.arange(100)[::-1])
    d = ruda.to_device(np.arange(64, dtype=np.float32))
    reverse[1, 64](d)
    np.testing.assert_array_equal(d.copy_to_host(), np.arange(64)[::-1])
    with pytest.raises(KernelAssertionError):
        told[3, 2](np.arange(6, dtype=np.float32))
    assert capsys.readouterr().out.count("thread") == 6


@pytest.mark.parametrize("npu", ["Ascend910B3", "Ascend910_9382"], indirect=True)
def test_npu_of_the_910b_class_gets_tiles(npu, monkeypatch, capsys):
    """The name of the chip decides; arrays that overlap go element by element there, too."""
    (info,) = npu.BACKEND.devices()
    assert info.properties["arch"] == "dav-2201"
    assert npu.cann().soc in info.description and "emulation only" in info.description
    assert '#include "ruda_vector.h"' in saxpy.source("ascend:0", "f32", *["f32[:]"] * 3)
    x = np.arange(10_000, dtype=np.float32)
    y, out = x[::-1].copy(), np.zeros_like(x)
    saxpy[40, 256](2.0, x, y, out)
    np.testing.assert_array_equal(out, 2 * x + y)
    d = ruda.to_device(x)
    saxpy[40, 256](2.0, d, d, d)
    np.testing.assert_array_equal(d.copy_to_host(), 3 * x)
    slow, method = [], ascend.Module.element_by_element
    monkeypatch.setattr(ascend.Module, "element_by_element",
                        lambda self: slow.append(self) or method(self))  # fmt: skip
    whole = np.arange(257, dtype=np.float32)
    saxpy[1, 256](1.0, whole[1:], whole[1:], whole[:-1])
    np.testing.assert_array_equal(whole[:-1], 2 * np.arange(1, 257))
    assert len(slow) == 1
    with pytest.raises(KernelAssertionError):
        told[3, 2](np.arange(6, dtype=np.float32))
    assert capsys.readouterr().out.count("thread") == 6  # each core has its part of the buffer
    with pytest.raises(UnsupportedError, match="910B has no float64"):
        functions[1, 4](np.zeros(4), np.zeros(4))


def test_options_of_the_compiler_are_those_of_the_chip(npu, monkeypatch):
    seen = []
    monkeypatch.setattr(compiler, "run_compiler", lambda c, *rest: seen.append(c) or b"library")
    backend = backends.get("ascend")
    for chip in ("950", "910b"):
        with ruda.config(ascend_chip=chip):
            target = backend.target("ascend:0")
            made = describe(saxpy, "ascend", ("f32", *["f32[:]"] * 3)).made
            backend.compile(backend.emit(made.function, target), target)
    simt, tiles = seen
    assert "--npu-arch=dav-3510" in simt and "--enable-simt" in simt
    assert "--npu-arch=dav-2201" in tiles and "--enable-simt" not in tiles


def test_code_for_another_chip_is_not_run(npu):
    x = np.zeros(4, np.float32)
    told = r"for an Ascend 910B, and ascend:0 is an Ascend950PR"
    with ruda.config(ascend_chip="910b"), pytest.raises(DeviceError, match=told):
        saxpy[1, 4](1.0, x, x, x)


@pytest.mark.parametrize("npu", ["Ascend310P3"], indirect=True)
def test_npu_that_there_is_no_code_for(npu, monkeypatch):
    assert npu.BACKEND.devices() == []
    with pytest.raises(DeviceNotFoundError, match=r"is an Ascend310P3.*Ascend910B, Ascend910_93"):
        backends.find.__wrapped__("ascend:0")
    with ruda.config(ascend_chip="950"):  # the user knows better
        x = np.ones(4, np.float32)
        saxpy[1, 4](1.0, x, x, x)
        assert x.tolist() == [2] * 4


def test_npu_gives_memory_back_and_tells_errors(npu):
    used = npu.cann().library.in_use
    before = used()
    d = ruda.to_device(np.zeros(9))
    reverse[1, 64](np.zeros(64, np.float32))
    assert used() == before + 1
    del d
    assert used() == before
    with pytest.raises(ruda.errors.OutOfMemoryError, match="207001: told by CANN"):
        ruda.device_array(1 << 28, np.float64)


def test_no_cann(monkeypatch):
    monkeypatch.delenv("ASCEND_HOME_PATH", raising=False)
    with pytest.raises(DeviceNotFoundError, match="ASCEND_HOME_PATH is not set"):
        backends.find.__wrapped__("ascend:0")
    assert "saxpy" in saxpy.source("ascend", "f32", "f32[:]", "f32[:]", "f32[:]")


def test_cann_of_another_version(monkeypatch, tmp_path):
    """Without a function that is called here: its name, the version, and no device."""
    (tmp_path / "lib64").mkdir()
    (tmp_path / "version.cfg").write_text("# CANN\nversion=[7.0.RC1]\n")
    code = tmp_path / "acl.c"
    code.write_text(LIBRARY.replace("aclrtGetMemInfo", "aclrtMemInfoOfOld"))
    library = tmp_path / "lib64" / "libascendcl.so"
    subprocess.run(["gcc", "-shared", "-fPIC", str(code), "-o", str(library)], check=True)
    monkeypatch.setenv("ASCEND_HOME_PATH", str(tmp_path))
    with pytest.raises(DeviceNotFoundError, match=r"version 7.0.RC1.*aclrtGetMemInfo"):
        backends.find.__wrapped__("ascend:0")
    assert backends.get("ascend").devices() == []


def test_cann_without_library(monkeypatch, tmp_path):
    monkeypatch.setenv("ASCEND_HOME_PATH", str(tmp_path))
    with pytest.raises(DeviceNotFoundError, match="no libascendcl"):
        backends.find.__wrapped__("ascend:0")


@ruda.jit
def extremes(x, y, out):
    i = ruda.grid(1)
    out[i] = (x[i] + y[i]) * y[i] - x[i]
    out[i] += abs(x[i]) // y[i] + (x[i] << 3) - (-x[i])


@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_integers_never_overflow_in_cpp(dtype, monkeypatch):
    """With the compiler's own check, which ends the process where a signed sum overflows."""
    flags = [f for f in compiler.FLAGS if f != "-fwrapv"]
    monkeypatch.setattr(compiler, "FLAGS", (*flags, "-ftrapv"))
    least, most = np.iinfo(dtype).min, np.iinfo(dtype).max
    values = np.array([least, least + 1, -1, 0, 1, most], dtype)
    x, y = (np.ravel(v).copy() for v in np.meshgrid(values, values))
    module = binary(
        extremes, (f"{dtype}[:]",) * 3, 36, lambda t: t.replace("// extremes", "// checked")
    )
    out = np.zeros(36, dtype)
    run(module, (1, 1, 1), (36, 1, 1), x, y, out)
    with np.errstate(all="ignore"):
        quotient = np.where(y == 0, 0, np.abs(x) // np.where(y == 0, 1, y))
        np.testing.assert_array_equal(out, (x + y) * y - x + quotient + (x << 3) + x)
