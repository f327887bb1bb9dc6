"""The figures on a WebGPU adapter, in one process: `python -m benchmarks wgpu [rows ...]`.

A sample is the wall time of enough calls to fill some milliseconds, and of the wait for them;
candidates take turns, and a ratio is taken within a round. On an adapter that is an NVIDIA GPU the
same kernels run on CUDA, too, and PyTorch's product is a peer; on a software adapter sizes are
small. Before it is timed, a kernel's result is compared with float64 on fresh random data.
"""

from __future__ import annotations

import math
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

import ruda
from benchmarks import cuda_kernels, wgpu_kernels
from benchmarks.start import Limit
from benchmarks.timing import Row
from ruda import backends

Call = Callable[[], Any]
ROUNDS = 11
MEGABYTE = 1_000_000


def seconds(call: Call, wait: Call, count: int) -> float:
    """Wall time of a call, of `count` that are waited for together."""
    wait()
    start = time.perf_counter()
    for _ in range(count):
        call()
    wait()
    return (time.perf_counter() - start) / count


def interleaved(
    candidates: Mapping[str, tuple[Call, Call]], least: float = 2e-2, most: int = 1000,
    rounds: int = ROUNDS,
) -> dict[str, list[float]]:  # fmt: skip
    """Seconds a call, a sample a round, of calls that come each with what waits for them."""
    counts = {}
    for name, (call, wait) in candidates.items():
        seconds(call, wait, 1)
        counts[name] = min(most, max(1, math.ceil(least / seconds(call, wait, 3))))
    names = list(candidates)
    out: dict[str, list[float]] = {name: [] for name in names}
    for k in range(rounds):
        for name in names[k % len(names) :] + names[: k % len(names)]:
            out[name].append(seconds(*candidates[name], counts[name]))
    return out


def wait() -> None:
    backends.get("wgpu").synchronize("wgpu:0")


def close(name: str, found: Any, exact: Any, tolerance: float) -> dict[str, float]:
    """The relative error of an array; AssertionError."""
    found, exact = np.asarray(found, np.float64), np.asarray(exact, np.float64)
    error = float(np.linalg.norm(found - exact) / np.linalg.norm(exact))
    assert error < tolerance, f"{name}: relative error {error}"
    return {"relative error": error}


def random_array(*shape: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng().standard_normal(shape, np.float32)


def on(device: str, *arrays: Any) -> list[Any]:
    with ruda.config(device=device):
        return [ruda.to_device(a) for a in arrays]


def software() -> bool:
    return any(d.name == "wgpu:0" and d.kind == "software" for d in ruda.devices())


# ---- dispatches ----------------------------------------------------------------------------------


def dispatch_figures() -> tuple[list[Limit], dict[str, float]]:
    """A cached kernel with four arrays and a scalar: many launches, then the wait for all."""
    arrays = on("wgpu", *(random_array(1024) for _ in range(4)))
    others = on("wgpu", *(random_array(1024) for _ in range(4)))
    kernel, other = cuda_kernels.four, wgpu_kernels.saxpy
    kept = kernel[4, 256]

    def alternating() -> None:
        kernel[4, 256](2.0, *arrays)
        other[4, 256](2.0, *others[:3])

    candidates = {
        "k[g, b](...)": (lambda: kernel[4, 256](2.0, *arrays), wait),
        "k[g, b] kept": (lambda: kept(2.0, *arrays), wait),
        "two kernels by turns": (alternating, wait),
        "the host's part": (lambda: kept(2.0, *arrays), lambda: None),
    }
    times = interleaved(candidates, least=1, most=2000)
    wait()
    found = {name: [1e6 * t for t in samples] for name, samples in times.items()}
    found["two kernels by turns"] = [t / 2 for t in found["two kernels by turns"]]
    limits = [
        Limit(f"WebGPU: a batched dispatch, all in, {name}", statistics.median(found[name]), 6,
              "us", found[name])
        for name in list(candidates)[:3]
    ]  # fmt: skip
    once = interleaved({"one launch and its wait": candidates["k[g, b](...)"]}, most=1)
    found["one launch and its wait"] = [1e6 * t for t in once["one launch and its wait"]]
    return limits, {name: statistics.median(samples) for name, samples in found.items()}


# ---- copies --------------------------------------------------------------------------------------


def copy_figures() -> list[Limit]:
    """256 MB to the device and back; a quarter of it on software adapters."""
    n = (64 if software() else 256) * MEGABYTE
    host = np.random.default_rng().integers(0, 256, n, np.uint8)
    target = np.zeros(n, np.uint8)
    (array,) = on("wgpu", host)
    assert np.array_equal(array.copy_to_host(), host)
    candidates = {
        "readback, a new array": (array.copy_to_host, wait),
        "readback, into an array": (lambda: array.copy_to_host(target), wait),
        "upload": (lambda: array.copy_to_device(host), wait),
    }
    times = interleaved(candidates, most=1)
    return [
        Limit(f"WebGPU: {name} of {n // MEGABYTE} MB", 1e3 * statistics.median(times[name]),
              n / 5e9 * 1e3, "ms", [1e3 * t for t in times[name]],
              f"{n / statistics.median(times[name]) / 1e9:.1f} GB/s")
        for name in candidates
    ]  # fmt: skip


# ---- the same GPU by CUDA ------------------------------------------------------------------------


def has_cuda() -> bool:
    return any(d.name == "cuda:0" for d in ruda.devices())


def cuda_wait() -> None:
    backends.get("cuda").synchronize("cuda:0")


def axpy_rows() -> list[Row]:
    """The plain axpy of 256M float32 on WebGPU against the same kernel on CUDA."""
    if not has_cuda():
        return []
    n, kernel = 1 << 28, cuda_kernels.axpy
    part = random_array(1 << 22)
    calls: dict[str, tuple[Call, Call]] = {}
    kept = []
    for device, waiting in (("wgpu", wait), ("cuda", cuda_wait)):
        with ruda.config(device=device):
            x, y, out = (ruda.device_array(n, np.float32) for _ in range(3))
            for k in range(0, n, part.size):
                x[k : k + part.size] = part
                y[k : k + part.size] = 3 * part + k % 1001
            kernel[n // 256, 256](2.0, x, y, out)
            for k in (0, n - part.size):
                found = out[k : k + part.size].copy_to_host()
                close("axpy", found, 5 * part.astype(np.float64) + k % 1001, 1e-6)
        configured = kernel[n // 256, 256]
        calls[device] = (
            lambda configured=configured, given=(x, y, out): configured(2.0, *given), waiting,
        )  # fmt: skip
        kept.append((x, y, out))
    times = interleaved(calls, least=5e-2)
    rate = 12 * n / statistics.median(times["wgpu"]) / 1e9
    return [
        Row("WebGPU: axpy 256M f32", "the same on CUDA", times["wgpu"], times["cuda"], 0.95,
            note=f"{rate:.0f} GB/s")
    ]  # fmt: skip


def chain_rows() -> list[Row]:
    """A fused chain of 8 ops of tensors of 64M float32 against the same on CUDA."""
    if not has_cuda():
        return []
    n = 1 << 26
    host = [random_array(n) for _ in range(2)]
    exact = chain(*(v.astype(np.float64) for v in host))
    calls: dict[str, tuple[Call, Call]] = {}
    accuracy: dict[str, float] = {}
    for device, waiting in (("wgpu", wait), ("cuda", cuda_wait)):
        x, y = (ruda.asarray(v, device=device) for v in host)
        accuracy = close("chain", chain(x, y).numpy(), exact, 1e-6)
        calls[device] = (lambda x=x, y=y: chain(x, y).buffer(), waiting)
    times = interleaved(calls, least=3e-2)
    return [
        Row("WebGPU: chain of 8 ops of tensors, 64M f32", "the same on CUDA", times["wgpu"],
            times["cuda"], 0.9, accuracy=accuracy, allocation="each allocates its result")
    ]  # fmt: skip


def chain(p: Any, q: Any) -> Any:
    for _ in range(4):
        p = p * q - q
    return p


def matmul_rows() -> list[Row]:
    """The register-tile product of 4096 x 4096 float32 matrices against PyTorch's (TF32 off)."""
    from benchmarks.cuda import torch_module

    if software():
        return []
    torch, side, kernel = torch_module(), wgpu_kernels.SIDE, wgpu_kernels.register_matmul
    a, b = random_array(256, 384), random_array(384, 128)
    da, db, out = on("wgpu", a, b, np.full((256, 128), np.nan, np.float32))
    kernel[(1, 2), 256](da, db, out)
    exact = a.astype(np.float64) @ b.astype(np.float64)
    accuracy = close("matmul", out.copy_to_host(), exact, 1e-6)
    if torch is None:
        return []
    n = 4096
    grid = (n // side, n // side)
    a, b, out = on("wgpu", random_array(n, n), random_array(n, n), random_array(n, n))
    ca, cb, cout = on("cuda", random_array(n, n), random_array(n, n), random_array(n, n))
    ta, tb, tout = (torch.randn(n, n, device="cuda") for _ in range(3))
    times = interleaved(
        {
            "ours": (lambda: kernel[grid, 256](a, b, out), wait),
            "cuda": (lambda: kernel[grid, 256](ca, cb, cout), cuda_wait),
            "torch": (lambda: torch.mm(ta, tb, out=tout), torch.cuda.synchronize),
        },
        least=3e-2,
    )
    rate = 2 * n**3 / statistics.median(times["ours"]) / 1e12
    return [
        Row("WebGPU: matmul 4096^3 f32", peer, times["ours"], times[key], goal,
            note=f"{rate:.1f} TFLOP/s", accuracy=accuracy)
        for key, peer, goal in (("torch", "PyTorch f32", 0.7), ("cuda", "the same on CUDA", 0.0))
    ]  # fmt: skip


# ---- numba-vulkan --------------------------------------------------------------------------------


def vulkan_rows() -> list[Row]:
    """The same kernels by numba-vulkan on the same adapter."""
    try:
        import numba_vulkan as nv

        from benchmarks import peers_numba_vulkan as peers
    except ImportError as error:
        print(f"numba-vulkan is not measured: {error}", file=sys.stderr)
        return []
    with ruda.config(device="wgpu"):
        name = ruda.get_current_device().description
    print(f"numba-vulkan on {peers.select(name)}", file=sys.stderr)
    small = software()
    cases = [saxpy_case, mandelbrot_case, sum_case, matmul_case, launch_case]
    out = []
    for case in cases:
        label, kernel, theirs, configuration, arguments, test = case(small)
        mine = [ruda_value(a) for a in arguments]
        hers = [nv.to_device(a) if isinstance(a, np.ndarray) else a for a in arguments]
        ours_, theirs_ = kernel[configuration], theirs[configuration]
        accuracy = {}
        for launch, given in ((ours_, mine), (theirs_, hers)):
            launch(*given)
            accuracy = test(given[-1].copy_to_host())
        call = {
            "ours": (lambda launch=ours_, given=mine: launch(*given), wait),
            "theirs": (lambda launch=theirs_, given=hers: launch(*given), nv.synchronize),
        }
        alone = case is launch_case
        times = interleaved(call, least=1 if alone else 5e-2)
        note = f"{1e6 * statistics.median(times['ours']):.1f} us"
        row = Row(f"WebGPU: {label}", "numba-vulkan", times["ours"], times["theirs"], 1.0,
                  note=note, accuracy=accuracy)  # fmt: skip
        out.append(row)
        if alone:
            call = {"ours": call["ours"], "theirs": call["theirs"]}
            times = interleaved(call, most=1, rounds=101)
            note = f"{1e6 * statistics.median(times['ours']):.1f} us"
            out.append(
                Row(f"WebGPU: {label} and its wait", "numba-vulkan", times["ours"],
                    times["theirs"], 1.0, note=note)
            )  # fmt: skip
    return out


def ruda_value(value: Any) -> Any:
    return on("wgpu", value)[0] if isinstance(value, np.ndarray) else value


def saxpy_case(small: bool) -> tuple[Any, ...]:
    from benchmarks import peers_numba_vulkan as peers

    n = 1 << (20 if small else 26)
    x, y = random_array(n), random_array(n)

    def test(out: Any) -> dict[str, float]:
        return close("saxpy", out, 2 * x.astype(np.float64) + y, 1e-6)

    arguments = (np.float32(2), x, y, np.zeros(n, np.float32))
    label = f"saxpy {n >> 20}M f32"
    return label, wgpu_kernels.saxpy, peers.saxpy, (n // 256, 256), arguments, test


def mandelbrot_case(small: bool) -> tuple[Any, ...]:
    from benchmarks import peers_numba_vulkan as peers

    n, rounds = (256, 200) if small else (4096, 1000)
    expected = [mandelbrot_count(k // 8, k % 8, n, rounds) for k in range(64)]

    def test(out: Any) -> dict[str, float]:
        step = n // 8
        assert [int(v) for v in out[step // 2 :: step, step // 2 :: step].ravel()] == expected
        return {}

    step = np.float32(3 / n)
    arguments = (
        np.float32(-2.25), np.float32(-1.5), step, np.int32(rounds), np.zeros((n, n), np.int32)
    )  # fmt: skip
    configuration = ((n // 16, n // 16), (16, 16))
    label = f"Mandelbrot {n}^2, {rounds} rounds"
    kernels = wgpu_kernels.mandelbrot, peers.mandelbrot
    return label, *kernels, configuration, arguments, test


def mandelbrot_count(i: int, j: int, n: int, rounds: int) -> int:
    """What the kernel counts at a point of an 8 x 8 grid, in float32 one operation at a time."""
    f, each = np.float32, n // 8
    step = f(3 / n)
    cx = f(-2.25) + f(j * each + each // 2) * step
    cy = f(-1.5) + f(i * each + each // 2) * step
    x = y = f(0)
    count = 0
    while count < rounds and x * x + y * y <= f(4):
        x, y = x * x - y * y + cx, f(2) * x * y + cy
        count += 1
    return count


def sum_case(small: bool) -> tuple[Any, ...]:
    from benchmarks import peers_numba_vulkan as peers

    n = 1 << (18 if small else 26)
    x = random_array(n)

    def test(out: Any) -> dict[str, float]:
        return close("sum", out, x.reshape(-1, 256).astype(np.float64).sum(1), 1e-5)

    arguments = (x, np.zeros(n // 256, np.float32))
    label = f"sums of blocks, {n >> 18}x2^18 f32"
    return label, wgpu_kernels.block_sum, peers.block_sum, (n // 256, 256), arguments, test


def matmul_case(small: bool) -> tuple[Any, ...]:
    from benchmarks import peers_numba_vulkan as peers

    n = 128 if small else 2048
    a, b = random_array(n, n), random_array(n, n)

    def test(out: Any) -> dict[str, float]:
        return close("matmul", out[:64], a[:64].astype(np.float64) @ b.astype(np.float64), 1e-5)

    arguments = (a, b, np.zeros((n, n), np.float32))
    side = wgpu_kernels.SQUARE
    configuration = ((n // side, n // side), (side, side))
    label = f"tiled matmul {n}^3 f32"
    return label, wgpu_kernels.matmul, peers.matmul, configuration, arguments, test


def launch_case(small: bool) -> tuple[Any, ...]:
    from benchmarks import peers_numba_vulkan as peers

    x, y = random_array(1024), random_array(1024)

    def test(out: Any) -> dict[str, float]:
        return close("launch", out, 2 * x.astype(np.float64) + y, 1e-6)

    arguments = (np.float32(2), x, y, np.zeros(1024, np.float32))
    return "a launch", wgpu_kernels.saxpy, peers.saxpy, (4, 256), arguments, test


# ---- all -----------------------------------------------------------------------------------------


def measure(wanted: list[str]) -> dict[str, Any]:
    """Everything, or the groups named: dispatch, copies, axpy, chain, matmul, vulkan."""
    rows: list[Row] = []
    limits: list[Limit] = []
    table: dict[str, float] = {}

    def asked(name: str) -> bool:
        return not wanted or name in wanted

    with ruda.config(device="wgpu"):
        if asked("dispatch"):
            found, table = dispatch_figures()
            limits += found
        if asked("copies"):
            limits += copy_figures()
        for name, group in (
            ("axpy", axpy_rows), ("chain", chain_rows), ("matmul", matmul_rows),
            ("vulkan", vulkan_rows),
        ):  # fmt: skip
            if asked(name):
                rows += group()
        description = ruda.get_current_device().description
    return {
        "device": "wgpu",
        "machine": description,
        "rows": [r.as_dict() for r in rows],
        "limits": [x.as_dict() for x in limits],
        "launches in microseconds": table,
    }
