"""The figures on an NVIDIA GPU, in one process: `python -m benchmarks cuda [rows ...]`.

Device rows are timed by events around enough calls to fill some milliseconds; candidates take turns
and a ratio is taken within a round. Before it is timed, a kernel's result is compared with float64
on fresh random data, over an output full of NaN. Launch rows are host time of asynchronous calls.
PyTorch, Triton and numba-cuda are peers where they are installed.
"""

from __future__ import annotations

import ctypes
import functools
import gc
import math
import statistics
import struct
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

import ruda
from benchmarks import cuda_kernels as kernels
from benchmarks.start import Limit
from benchmarks.timing import Row

ROUNDS = 11


def torch_module() -> Any:
    """PyTorch, with float32 products in float32; None where it is not installed."""
    try:
        import torch
    except ImportError:
        return None
    torch.backends.cuda.matmul.allow_tf32 = False
    return torch if torch.cuda.is_available() else None


# ---- device time ---------------------------------------------------------------------------------


def device_seconds(call: Callable[[], Any], count: int) -> float:
    start, end = ruda.event(), ruda.event()
    start.record()
    for _ in range(count):
        call()
    end.record()
    return start.elapsed_time(end) / 1e3 / count


def interleaved(
    candidates: Mapping[str, Callable[[], Any]], rest: float = 0.0, least: float = 4e-3
) -> dict[str, list[float]]:
    """Seconds a call on the device, a sample a round."""
    counts = {}
    for name, call in candidates.items():
        call()
        ruda.synchronize()
        counts[name] = max(1, math.ceil(least / device_seconds(call, 3)))
    names = list(candidates)
    out: dict[str, list[float]] = {name: [] for name in names}
    for k in range(ROUNDS):
        for name in names[k % len(names) :] + names[: k % len(names)]:
            if rest:
                ruda.synchronize()
                time.sleep(rest)
            out[name].append(device_seconds(candidates[name], counts[name]))
    return out


def check(name: str, out: Any, exact: Any, tolerance: float) -> dict[str, float]:
    """The relative error of a device array; AssertionError."""
    found = out.copy_to_host().astype(np.float64)
    exact = np.asarray(exact, np.float64)
    error = float(np.linalg.norm(found - exact) / np.linalg.norm(exact))
    assert error < tolerance, f"{name}: relative error {error}"
    return {"relative error": error}


def random_array(*shape: int) -> Any:
    return ruda.to_device(np.random.default_rng().standard_normal(shape, np.float32))


def spoiled(*shape: int) -> Any:
    return ruda.to_device(np.full(shape, np.nan, np.float32))


def bandwidth_rows() -> list[Row]:
    """axpy and copy of 256M elements against the copy of PyTorch, in bytes a second."""
    torch, n = torch_module(), 1 << 28
    part = np.random.default_rng().standard_normal(1 << 22, np.float32)
    x, y, out = (ruda.device_array(n, np.float32) for _ in range(3))
    for k in range(0, n, part.size):
        x[k : k + part.size] = part
        y[k : k + part.size] = 3 * part + k % 1001
    blocks = n // 256
    kernels.axpy[blocks, 256](2.0, x, y, out)
    for k in (0, n - part.size):
        check("axpy", out[k : k + part.size], 5 * part + np.float32(k % 1001), 1e-6)
    candidates = {
        "axpy": lambda: kernels.axpy[blocks, 256](2.0, x, y, out),
        "copy": lambda: kernels.copy[blocks, 256](x, out),
        "axpy, arrays not aligned": lambda: kernels.axpy[blocks, 256](2.0, x1, y1, out1),
        "driver's copy": lambda: copy_bytes(x, out),
    }
    x1, y1, out1 = x[1:], y[1:], out[1:]
    if torch is not None:
        tx, ty, tout = (torch.empty(n, device="cuda") for _ in range(3))
        tx.normal_(), ty.normal_()
        candidates |= {
            "torch copy": lambda: tout.copy_(tx),
            "torch add": lambda: torch.add(ty, tx, alpha=2.0, out=tout),
        }
    times = interleaved(candidates)
    peer = "torch copy" if torch is not None else "driver's copy"
    out_rows = []
    for name, goal in (("axpy", 0.95), ("copy", 0.95), ("axpy, arrays not aligned", 0.0)):
        each = 2 if name == "copy" else 3
        theirs = [t * each / 2 for t in times[peer]]
        rate = each * 4 * n / statistics.median(times[name]) / 1e9
        out_rows.append(
            Row(f"{name} 256M f32, bandwidth", peer, times[name], theirs, goal,
                note=f"{rate:.0f} GB/s")
        )  # fmt: skip
    if torch is not None:
        out_rows.append(Row("axpy 256M f32", "torch add", times["axpy"], times["torch add"], 0.95))
    return out_rows


def copy_bytes(source: Any, target: Any) -> None:
    from ruda.backends.cuda.driver import gpu

    gpu("cuda").driver.cuMemcpyDtoDAsync(target.pointer, source.pointer, source.nbytes, 0)


def row_rows() -> list[Row]:
    """Softmax, layernorm and transpose of 8192 x 8192 against PyTorch."""
    torch, n = torch_module(), kernels.COLUMNS
    x, out = random_array(n, n), spoiled(n, n)
    gain, bias = random_array(n), random_array(n)
    tile = kernels.TILE
    calls = {
        "softmax": lambda: kernels.softmax[n, 256](x, out),
        "layernorm": lambda: kernels.layernorm[n, 256](x, gain, bias, out),
        "transpose": lambda: kernels.transpose[(n // tile, n // tile), (tile, 4)](x, out),
    }
    few = slice(5, n, 1021)
    rows = x.copy_to_host()[few].astype(np.float64)
    powers = np.exp(rows - rows.max(1, keepdims=True))
    scaled = rows - rows.mean(1, keepdims=True)
    scaled /= np.sqrt((scaled**2).mean(1, keepdims=True) + 1e-5)
    exact = {
        "softmax": powers / powers.sum(1, keepdims=True),
        "layernorm": scaled * gain.copy_to_host() + bias.copy_to_host(),
    }
    errors = {}
    for name, call in calls.items():
        out.copy_to_device(np.full((n, n), np.nan, np.float32))
        call()
        if name == "transpose":
            assert np.array_equal(out.copy_to_host(), x.copy_to_host().T)
            errors[name] = {"relative error": 0.0}
        else:
            assert not np.isnan(out.copy_to_host()).any()
            part = ruda.to_device(out.copy_to_host()[few])
            errors[name] = check(name, part, exact[name], 1e-6)
    if torch is None:
        return []
    tx, tout = torch.randn(n, n, device="cuda"), torch.empty(n, n, device="cuda")
    tg, tb = torch.randn(n, device="cuda"), torch.randn(n, device="cuda")
    theirs = {
        "softmax": lambda: torch.softmax(tx, -1, out=tout),
        "layernorm": lambda: torch.nn.functional.layer_norm(tx, (n,), tg, tb),
        "transpose": lambda: tout.copy_(tx.T),
    }
    found = []
    for name, goal in (("softmax", 1.9), ("layernorm", 1.5), ("transpose", 3.0)):
        times = interleaved({"ours": calls[name], "theirs": theirs[name]})
        rate = 8 * n * n / statistics.median(times["ours"]) / 1e9
        found.append(
            Row(f"{name} 8192^2 f32", "PyTorch", times["ours"], times["theirs"], goal,
                note=f"{rate:.0f} GB/s", accuracy=errors[name])
        )  # fmt: skip
    return found


def matmul_rows() -> list[Row]:
    """The product of 4096 x 4096 float32 matrices against PyTorch's (TF32 off)."""
    torch, n = torch_module(), 4096
    side = kernels.SIDE
    a, b, out = random_array(512, 384), random_array(384, 640), spoiled(512, 640)
    kernels.matmul[(640 // side, 512 // side), 256](a, b, out)
    exact = a.copy_to_host().astype(np.float64) @ b.copy_to_host().astype(np.float64)
    accuracy = check("matmul", out, exact, 1e-6)
    if torch is None:
        return []
    a, b, out = random_array(n, n), random_array(n, n), spoiled(n, n)
    ta, tb, tout = (torch.randn(n, n, device="cuda") for _ in range(3))
    times = interleaved(
        {
            "ours": lambda: kernels.matmul[(n // side, n // side), 256](a, b, out),
            "theirs": lambda: torch.mm(ta, tb, out=tout),
        },
        rest=0.02,
    )
    rate = 2 * n**3 / statistics.median(times["ours"]) / 1e12
    note = f"{rate:.1f} TFLOP/s"
    return [
        Row("matmul 4096^3 f32", "PyTorch f32", times["ours"], times["theirs"], 0.8, note=note,
            accuracy=accuracy)
    ]  # fmt: skip


# ---- launches ------------------------------------------------------------------------------------


def host_microseconds(
    candidates: Mapping[str, Callable[[], Any]], calls: int = 400, rounds: int = 25
) -> dict[str, list[float]]:
    """Host time of asynchronous calls, a sample a round; all take turns."""
    names = list(candidates)
    for name in names:
        for _ in range(5):
            candidates[name]()
    out: dict[str, list[float]] = {name: [] for name in names}
    gc.disable()
    try:
        for k in range(rounds):
            for name in names[k % len(names) :] + names[: k % len(names)]:
                call = candidates[name]
                ruda.synchronize()
                start = time.perf_counter()
                for _ in range(calls):
                    call()
                out[name].append((time.perf_counter() - start) / calls * 1e6)
    finally:
        gc.enable()
    ruda.synchronize()
    return out


def raw_launch(arrays: list[Any]) -> Callable[[], Any]:
    """`cuLaunchKernel` of the same kernel with everything packed before."""
    from ruda.backends.base import Launch
    from ruda.backends.cuda import launch as launching

    module = next(iter(kernels.four._specialisations.values()))[0].module
    launch = Launch((4, 1, 1), (256, 1, 1))
    _, general = launching.parts(module, launch)
    values = [2.0, *arrays]
    addresses = {k: general.address(v, ()) for k, v in enumerate(values)}
    text, offsets = launching.layout(module.metadata["parameters"])
    packed = struct.pack(text, *general.numbers(values, addresses, None))
    block = launching.Block(len(packed), offsets)
    ctypes.memmove(block.buffer, packed, len(packed))
    driver, function = module.gpu.driver, module.function
    call, stream = driver.cuLaunchKernel, driver.CUstream(0)
    gx, gy, gz, bx, by, bz, shared = launching.shape_of(module, launch)

    def again(keep: Any = block, address: int = block.address) -> None:
        call(function, gx, gy, gz, bx, by, bz, shared, stream, address, 0)

    return again


def graph_figures(count: int = 100) -> tuple[list[Limit], dict[str, float]]:
    """Replays of a graph of small launches: device time a kernel, host time a replay."""
    x, y, z, out = (random_array(1024) for _ in range(4))
    with ruda.capture() as graph:
        for _ in range(count):
            kernels.four[4, 256](2.0, x, y, z, out)
    candidates: dict[str, Callable[[], Any]] = {"ruda": graph.replay}
    torch = torch_module()
    if torch is not None:
        a, b, d = (torch.randn(1024, device="cuda") for _ in range(3))
        theirs = torch.cuda.CUDAGraph()
        torch.add(a, b, alpha=2.0, out=d)
        with torch.cuda.graph(theirs):
            for _ in range(count):
                torch.add(a, b, alpha=2.0, out=d)
        candidates["torch CUDAGraph of add"] = theirs.replay
    times = interleaved(candidates)
    hosts = host_microseconds(candidates, calls=20)
    table = {f"host, replay, {name}": statistics.median(v) for name, v in hosts.items()}
    table |= {
        f"device, a kernel of a replay, {name}": statistics.median(v) / count * 1e6
        for name, v in times.items()
    }
    samples = [t / count * 1e6 for t in times["ruda"]]
    limit = Limit(
        f"CUDA: a kernel of a replayed graph of {count} launches", statistics.median(samples), 1.25,
        "us", samples,
    )  # fmt: skip
    return [limit], table


def launch_figures() -> tuple[list[Row], dict[str, float]]:
    """A cached kernel with four arrays and a scalar; also every peer's microseconds."""
    n = 1024
    x, y, z, out = (random_array(n) for _ in range(4))
    kernel = kernels.four
    kernel[4, 256](2.0, x, y, z, out)
    kernel[4, 256](2.0, x, y, z, out)
    ruda.synchronize()
    kept = kernel[4, 256]
    early = kernel._configured[next(iter(kernel._configured))]  # an object kept from the start
    candidates: dict[str, Callable[[], Any]] = {
        "raw cuLaunchKernel, prepacked": raw_launch([x, y, z, out]),
        "ruda k[g, b](...)": lambda: kernel[4, 256](2.0, x, y, z, out),
        "ruda, k[g, b] kept": lambda: kept(2.0, x, y, z, out),
        "ruda, k[g, b] kept from before the first call": lambda: early(2.0, x, y, z, out),
        "a Python function that does nothing": lambda: None,
    }
    candidates |= peers(n)
    times = host_microseconds(candidates)
    table = {name: statistics.median(v) for name, v in times.items()}
    raw = times["raw cuLaunchKernel, prepacked"]
    rows = [
        Row(f"launch, {name}", "cuLaunchKernel", times[name], raw, 1 / 1.35,
            note=f"{table[name]:.2f} us")
        for name in table if name.startswith("ruda")
    ]  # fmt: skip
    return rows, table


def peers(n: int) -> dict[str, Callable[[], Any]]:
    """Launches of others, where they are installed."""
    found: dict[str, Callable[[], Any]] = {}
    torch = torch_module()
    if torch is not None:
        a, b, c, d = (torch.randn(n, device="cuda") for _ in range(4))
        found["torch add(out=)"] = lambda: torch.add(a, b, alpha=2.0, out=d)
        try:
            from benchmarks import peers_triton

            found["Triton"] = peers_triton.launch(a, b, c, d)
            found["Triton"]()
        except Exception as error:
            print(f"Triton is not measured: {type(error).__name__}: {error}", file=sys.stderr)
            found.pop("Triton", None)
    try:
        if not hasattr(np, "row_stack"):
            np.row_stack = np.vstack  # type: ignore[attr-defined]  # numba-cuda asks for it
        from numba import cuda

        @cuda.jit
        def four(a, x, y, z, out):  # type: ignore[no-untyped-def]
            i = cuda.grid(1)
            if i < out.size:
                out[i] = a * x[i] + y[i] * z[i]

        arrays = [cuda.to_device(np.ones(n, np.float32)) for _ in range(4)]
        value = np.float32(2)
        four[4, 256](value, *arrays)
        found["numba-cuda"] = lambda: four[4, 256](value, *arrays)
    except Exception as error:
        print(f"numba-cuda is not measured: {type(error).__name__}: {error}", file=sys.stderr)
    return found


# ---- first calls ---------------------------------------------------------------------------------

FIRST = """
import sys, time
import numpy as np
import ruda
{kernels}
x = ruda.to_device(np.ones(1000, np.float32), )
ruda.synchronize()
start = time.perf_counter()
first[4, 256](x)
ruda.synchronize()
one = time.perf_counter()
second[4, 256](x)
ruda.synchronize()
print(one - start, time.perf_counter() - one)
"""
KERNELS = """
@ruda.jit
def first(x):
    i = ruda.grid(1)
    if i < x.size:
        x[i] = x[i] * 2 + 1
@ruda.jit
def second(x):
    i = ruda.grid(1)
    if i < x.size:
        x[i] = x[i] * 3 + 2
"""


def first_figures(processes: int = 3) -> list[Limit]:
    """Cold first kernel, the next small one, and kernels from the disk cache."""
    from benchmarks.start import run

    cold, warm, cached = [], [], []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        code = FIRST.format(kernels=KERNELS)
        for k in range(processes):
            cache = str(folder / f"cache{k}")
            _, text = run(code, folder, RUDA_DEVICE="cuda", RUDA_CACHE_DIR=cache)
            one, two = map(float, text.split())
            cold.append(1e3 * one)
            warm.append(1e3 * two)
            _, text = run(code, folder, RUDA_DEVICE="cuda", RUDA_CACHE_DIR=cache)
            cached.append(1e3 * float(text.split()[1]))
    return [
        Limit(name, statistics.median(samples), limit, "ms", samples)
        for name, samples, limit in (
            ("CUDA: first kernel of a process, compiled", cold, 1500),
            ("CUDA: the next small kernel, compiled", warm, 300),
            ("CUDA: a kernel from the disk cache", cached, 5),
        )
    ]


# ---- tensors -------------------------------------------------------------------------------------


def tensor_rows() -> list[Row]:
    """Fused tensors: chains of k ops, softmax, layer norm, a sum; a sort, a scan; all allocate.

    Each op of a chain reads two arrays and writes one, as the fused kernel does: k times is what
    there is to win. Where half of the ops take a number instead of an array, it is 0.83 k.
    """
    torch, n, side = torch_module(), 1 << 26, 8192
    x, y = random_array(n), random_array(n)
    m = random_array(side, side)
    a, b, c = (ruda.asarray(v.copy_to_host(), device="cuda") for v in (x, y, m))
    ours: dict[str, Callable[[], Any]] = {}
    theirs: dict[str, Callable[[], Any]] = {}
    goals: dict[str, float] = {}
    exact: dict[str, Any] = {}

    def chain(k: int) -> Callable[[Any, Any], Any]:
        def run(p: Any, q: Any) -> Any:
            for _ in range(k // 2):
                p = p * q - q
            return p

        return run

    def numbers(p: Any, q: Any) -> Any:
        for step in range(4):
            p = p * q + (0.5 + step)
        return p

    def add(name: str, goal: float, ours_: Callable[..., Any], numpys: Any, *given: Any) -> None:
        goals[name] = goal
        ours[name] = lambda: ours_(*given).buffer()
        exact[name] = numpys

    for k in (4, 8, 16):
        host = [v.copy_to_host()[:1000].astype(np.float64) for v in (x, y)]
        add(f"chain of {k} ops 64M f32", 0.9 * k, chain(k), chain(k)(*host), a, b)
    add("chain of 8 ops, 4 with numbers", 0.9 * 0.83 * 8, numbers, numbers(*host), a, b)
    rows = m.copy_to_host()[:4].astype(np.float64)
    e = np.exp(rows - rows.max(1, keepdims=True))
    add("tensor softmax 8192^2 f32", 1.8, ruda.nn.softmax, e / e.sum(1, keepdims=True), c)
    away = rows - rows.mean(1, keepdims=True)
    normal = away / np.sqrt((away * away).mean(1, keepdims=True) + 1e-5)
    add("tensor layer norm 8192^2 f32", 1.5, layer_norm, normal, c)
    total = np.array([x.copy_to_host().sum(dtype=np.float64)])
    add("tensor sum 64M f32", 1.0, ruda.sum, total, a)
    add("tensor sort 64M f32", 0.8, ruda.sort, np.sort(x.copy_to_host()), a)
    sums = np.cumsum(x.copy_to_host(), dtype=np.float64)
    add("tensor cumsum 64M f32", 0.8, ruda.cumulative_sum, sums, a)
    errors: dict[str, dict[str, float]] = {}
    for name, call in ours.items():
        found = call().copy_to_host()
        part = found.reshape(-1)[: exact[name].size].astype(np.float64)
        wanted = np.asarray(exact[name]).reshape(-1)
        # The sum of numbers of both signs may be any number: its error is that of what is added.
        least = math.sqrt(n) if wanted.size == 1 else 0.0
        error = float(np.linalg.norm(part - wanted) / max(np.linalg.norm(wanted), least))
        assert error < 1e-5, f"{name}: relative error {error}"
        errors[name] = {"relative error": error}
    if torch is None:
        return []
    ta, tb = (torch.from_numpy(v.copy_to_host()).cuda() for v in (x, y))
    tm = torch.from_numpy(m.copy_to_host()).cuda()
    for k in (4, 8, 16):
        theirs[f"chain of {k} ops 64M f32"] = functools.partial(chain(k), ta, tb)
    theirs["chain of 8 ops, 4 with numbers"] = functools.partial(numbers, ta, tb)
    theirs["tensor softmax 8192^2 f32"] = lambda: torch.softmax(tm, -1)
    theirs["tensor layer norm 8192^2 f32"] = lambda: torch.nn.functional.layer_norm(tm, (side,))
    theirs["tensor sum 64M f32"] = lambda: ta.sum()
    theirs["tensor sort 64M f32"] = lambda: torch.sort(ta)[0]
    theirs["tensor cumsum 64M f32"] = lambda: torch.cumsum(ta, 0)
    out = []
    for name, call in ours.items():
        times = interleaved({"ours": call, "theirs": theirs[name]})
        out.append(
            Row(name, "PyTorch", times["ours"], times["theirs"], goals[name],
                allocation="each allocates its result", accuracy=errors[name])
        )  # fmt: skip
    return out


def layer_norm(x: Any) -> Any:
    away = x - ruda.mean(x, axis=-1, keepdims=True)
    return away / ruda.sqrt(ruda.mean(away * away, axis=-1, keepdims=True) + 1e-5)


def tensor_figures() -> tuple[list[Limit], dict[str, float]]:
    """Host time of a small `a + b` of tensors, and of a compiled function of 8 kernels."""
    a, b = (ruda.asarray(np.ones(1000, np.float32), device="cuda") for _ in range(2))
    arrays = [random_array(1000) for _ in range(4)]
    kernels.four[4, 256](2.0, *arrays)
    raw = raw_launch(arrays)
    m = ruda.asarray(np.ones((64, 64), np.float32), device="cuda")

    def several(x: Any) -> Any:
        for _ in range(8):
            x = ruda.sum(x * 0.5, axis=0) + x.T
        return x

    compiled = ruda.compile(several)
    times = host_microseconds(
        {
            "a + b of 1000 float32, computed": lambda: (a + b).buffer(),
            "the driver's launch": raw,
            "8 dependent kernels, recorded each time": lambda: several(m).buffer(),
            "8 dependent kernels, ruda.compile": lambda: compiled(m).buffer(),
        }
    )
    found = {name: statistics.median(samples) for name, samples in times.items()}
    beyond = found["a + b of 1000 float32, computed"] - found["the driver's launch"]
    name = "small a + b of tensors, host time beyond the driver's launch"
    return [Limit(name, beyond, 3, "us", times["a + b of 1000 float32, computed"])], found


def measure(wanted: list[str]) -> dict[str, Any]:
    """Everything, or the groups named: launch, graph, bandwidth, rows, matmul, tensors,
    training, first."""
    rows: list[Row] = []
    limits: list[Limit] = []
    table: dict[str, float] = {}

    def asked(name: str) -> bool:
        return not wanted or name in wanted

    with ruda.config(device="cuda"):
        if asked("launch"):
            more, table = launch_figures()
            rows += more
        if asked("graph"):
            found, more_times = graph_figures()
            limits += found
            table |= more_times
        if asked("bandwidth"):
            rows += bandwidth_rows()
        if asked("rows"):
            rows += row_rows()
        if asked("matmul"):
            rows += matmul_rows()
        if asked("tensors"):
            rows += tensor_rows()
            found, more_times = tensor_figures()
            limits += found
            table |= more_times
        if asked("training"):
            from benchmarks import training

            rows += training.measure("cuda")[0]
        if asked("first"):
            limits += first_figures()
        description = ruda.get_current_device().description
    return {
        "device": "cuda",
        "machine": description,
        "rows": [r.as_dict() for r in rows],
        "limits": [x.as_dict() for x in limits],
        "launches in microseconds": table,
    }
