"""Kernels on the CPU against hand-written numba loops, OpenBLAS, Taichi, Warp and JAX, on one core.

Everything runs in one process bound to one core, so each side has one thread whatever it asks for.
A peer that is not installed is left out and said to be not measured.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

import ruda
from benchmarks.timing import Row, sample, ulp
from ruda.backends import cpu_pool
from ruda.backends.base import Launch
from ruda.backends.cpu.device import chunk, count_items, layout, pack

N = 10_000_000
SIDE = 4096
TILE = 32
BINS = 256

# ---- our kernels, written as a user would ----


@ruda.jit
def saxpy(a, x, y, out):
    i = ruda.grid(1)
    if i < out.size:
        out[i] = a * x[i] + y[i]


@ruda.jit
def stencil(x, out):
    j, i = ruda.grid(2)
    if 0 < i < x.shape[0] - 1 and 0 < j < x.shape[1] - 1:
        out[i, j] = 0.2 * (x[i, j] + x[i - 1, j] + x[i + 1, j] + x[i, j - 1] + x[i, j + 1])


@ruda.jit
def matmul(a, b, c):
    sa = ruda.shared.array((TILE, TILE), ruda.float32)
    sb = ruda.shared.array((TILE, TILE), ruda.float32)
    tx, ty = ruda.threadIdx.x, ruda.threadIdx.y
    col = ruda.blockIdx.x * TILE + tx
    row = ruda.blockIdx.y * TILE + ty
    total = 0.0
    for t in range(a.shape[1] // TILE):
        sa[ty, tx] = a[row, t * TILE + tx]
        sb[ty, tx] = b[t * TILE + ty, col]
        ruda.syncthreads()
        for k in range(TILE):
            total += sa[ty, k] * sb[k, tx]
        ruda.syncthreads()
    c[row, col] = total


@ruda.jit
def tree_sum(x, out):
    s = ruda.shared.array(1024, ruda.float32)
    t = ruda.threadIdx.x
    total = 0.0
    for i in range(ruda.grid(1), x.size, ruda.gridsize(1)):
        total += x[i]
    s[t] = total
    ruda.syncthreads()
    k = 512
    while k > 0:
        if t < k:
            s[t] += s[t + k]
        ruda.syncthreads()
        k //= 2
    if t == 0:
        ruda.atomic.add(out, 0, s[0])


@ruda.jit
def plain_tree_sum(x, out):
    s = ruda.shared.array(1024, ruda.float32)
    t = ruda.threadIdx.x
    i = ruda.grid(1)
    s[t] = x[i] if i < x.size else 0.0
    ruda.syncthreads()
    k = 512
    while k > 0:
        if t < k:
            s[t] += s[t + k]
        ruda.syncthreads()
        k //= 2
    if t == 0:
        ruda.atomic.add(out, 0, s[0])


@ruda.jit
def histogram(x, counts):
    s = ruda.shared.array(BINS, ruda.int32)
    t = ruda.threadIdx.x
    if t < BINS:
        s[t] = 0
    ruda.syncthreads()
    for i in range(ruda.grid(1), x.size, ruda.gridsize(1)):
        ruda.atomic.add(s, x[i], 1)
    ruda.syncthreads()
    if t < BINS:
        ruda.atomic.add(counts, t, s[t])


@ruda.jit
def activation(x, out):
    i = ruda.grid(1)
    if i < out.size:
        v = x[i]
        out[i] = np.tanh(v) * ruda.sigmoid(v) - np.exp(-v * v)


@ruda.jit
def iterate(x, out):
    i = ruda.grid(1)
    if i < out.size:
        v = x[i]
        for _ in range(60):
            v = 0.5 * v * v + 0.25
        out[i] = v


# ---- rows ----


def installed(name: str) -> bool:
    return importlib.util.find_spec(name) is not None


def numba_prange(source: str, **names: Any) -> Callable[..., Any]:
    """A hand-written numba loop, `parallel=True` and fastmath only where a sum must be
    reordered."""
    import numba

    scope = dict(numba=numba, np=np, prange=numba.prange, **names)
    exec(source, scope)
    return numba.njit(
        parallel=True, nogil=True, error_model="numpy", fastmath=names.get("fast", False)
    )(scope["loop"])


def rows() -> Iterator[Row]:
    yield from streaming_rows()
    yield from matmul_rows()
    yield from reduction_rows()
    yield from activation_rows()
    yield from thread_rows()


def streaming_rows() -> Iterator[Row]:
    rng = np.random.default_rng(0)
    x, y = rng.random(N, np.float32), rng.random(N, np.float32)
    out, blocks = np.empty_like(x), -(-N // 256)
    loop = numba_prange(
        "def loop(a, x, y, out):\n"
        "    for i in prange(out.size):\n"
        "        out[i] = a * x[i] + y[i]\n"
    )
    a = np.float32(2.5)
    candidates: dict[str, Callable[[], Any]] = {
        "ruda": lambda: saxpy[blocks, 256](a, x, y, out),
        "numba prange": lambda: loop(a, x, y, out),
    }
    candidates |= taichi_saxpy(a, x, y, out) | warp_saxpy(a, x, y)
    yield from against("saxpy 10M", candidates, {"numba prange": 0.95, "Taichi": 2, "Warp": 2})

    image = rng.random((SIDE, SIDE), np.float32)
    result = np.zeros_like(image)
    loop2 = numba_prange(
        "def loop(x, out):\n"
        "    for i in prange(1, x.shape[0] - 1):\n"
        "        for j in range(1, x.shape[1] - 1):\n"
        "            out[i, j] = np.float32(0.2) * (x[i, j] + x[i - 1, j] + x[i + 1, j]"
        " + x[i, j - 1] + x[i, j + 1])\n"
    )
    grid = SIDE // 32, SIDE // 8
    candidates = {
        "ruda": lambda: stencil[grid, (32, 8)](image, result),
        "numba prange": lambda: loop2(image, result),
    }
    candidates |= taichi_stencil(image, result) | warp_stencil(image)
    yield from against("stencil 4096^2", candidates, {"numba prange": 0.95, "Taichi": 5, "Warp": 5})


def matmul_rows() -> Iterator[Row]:
    rng = np.random.default_rng(1)
    n = 1024
    a, b = rng.random((n, n), np.float32), rng.random((n, n), np.float32)
    c, d = np.empty_like(a), np.empty_like(a)
    grid = n // TILE, n // TILE
    candidates = {
        "ruda": lambda: matmul[grid, (TILE, TILE)](a, b, c),
        "OpenBLAS": lambda: np.matmul(a, b, out=d),
    }
    made = list(against("tiled matmul 1024, tile 32", candidates, {"OpenBLAS": 0.6}))
    exact = a.astype(np.float64) @ b
    for row in made:
        row.accuracy = {"ruda": ulp(c, exact), "OpenBLAS": ulp(d, exact)}
        yield row


def reduction_rows() -> Iterator[Row]:
    rng = np.random.default_rng(2)
    x = rng.random(N, np.float32)
    out = np.zeros(1, np.float32)
    loop = numba_prange(
        "def loop(x):\n    s = np.float32(0)\n    for i in prange(x.size):\n        s += x[i]\n"
        "    return s\n",
        fast={"reassoc", "contract"},
    )

    def strided() -> None:
        out[0] = 0
        tree_sum[64, 1024](x, out)

    def plain() -> None:
        out[0] = 0
        plain_tree_sum[-(-N // 1024), 1024](x, out)

    peer = {"numba prange": lambda: loop(x)}
    for name, ours in (("strided over the grid", strided), ("an element a thread", plain)):
        title = f"shared tree sum 10M, {name}"
        yield from against(title, {"ruda": ours} | peer, {"numba prange": 0.8})
    values = rng.integers(0, BINS, N).astype(np.int32)
    counts = np.zeros(BINS, np.int32)
    candidates = {"ruda": lambda: histogram[64, 256](values, counts)} | warp_histogram(values)
    yield from against("shared histogram 10M", candidates, {"Warp": 1.1})


def activation_rows() -> Iterator[Row]:
    rng = np.random.default_rng(3)
    x = rng.standard_normal(N).astype(np.float32)
    out = np.empty_like(x)
    blocks = -(-N // 256)
    name = "exp, tanh, sigmoid 10M"
    exact = x.astype(np.float64)
    exact = np.tanh(exact) / (1 + np.exp(-exact)) - np.exp(-exact * exact)
    jax_call = jax_activation(x)
    if jax_call is None:
        return
    xd = ruda.to_device(x)

    def fresh() -> Any:
        result = ruda.device_array(N, np.float32)
        activation[blocks, 256](xd, result)
        return result

    for candidates, allocation, goal in (
        ({"ruda": fresh, "jax.jit": jax_call}, "each allocates its result", 1.3),
        (
            {"ruda": lambda: activation[blocks, 256](x, out), "jax.jit": jax_call},
            "ours given, theirs fresh",
            2.0,
        ),
    ):
        for row in against(name, candidates, {"jax.jit": goal}):
            row.allocation = allocation
            # The difference cancels: its error is told in ulp of 1, the size of its terms.
            one = np.spacing(np.float32(1))
            row.accuracy = {
                "ruda": float(np.max(np.abs(out - exact)) / one),
                "jax.jit": float(np.max(np.abs(np.asarray(jax_call()) - exact)) / one),
            }
            yield row


def thread_rows() -> Iterator[Row]:
    """The same launch on two cores and on one: shorter samples than a time slice, the fastest."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, range(os.cpu_count() or 1))
    cores = sorted(os.sched_getaffinity(0))[-2:]
    os.sched_setaffinity(0, cores)
    x = np.random.default_rng(4).random(1 << 19, np.float32)
    out = np.empty_like(x)

    # Below `config(num_threads=...)`: a change of settings prepares a launch anew.
    launch = Launch((x.size // 256, 1, 1), (256, 1, 1))
    made = iterate.specialise(iterate.argument_types((x, out)), "cpu", launch.block)
    metadata = made.module.metadata
    rows = layout(metadata["parameters"])
    words = pack(rows, launch, (x, out), "iterate", metadata["parameters"])
    items, grain = count_items(metadata, launch), chunk(metadata)

    def on(threads: int) -> Callable[[], None]:
        return lambda: cpu_pool.run(made.module.address, words.ctypes.data, items, grain, threads)

    name = "60 steps on 524288 elements, two threads"
    if len(cores) == 2:
        times = sample({"two": on(2), "one": on(1)}, rounds=101)
        yield Row(
            name, "ruda, one thread", times["two"], times["one"], 1.8,
            threads=2, allocation="fastest of 101, two cores", fastest=True,
        )  # fmt: skip
    os.sched_setaffinity(0, before)


def against(
    name: str, candidates: dict[str, Callable[[], Any]], goals: dict[str, float]
) -> Iterator[Row]:
    times = sample(candidates)
    for peer, goal in goals.items():
        if peer in times:
            yield Row(name, peer, times["ruda"], times[peer], goal)
        else:
            yield Row(name, peer, times["ruda"], [float("nan")] * len(times["ruda"]), goal,
                      note="not measured: not installed")  # fmt: skip


# ---- peers ----


def taichi_saxpy(a: Any, x: Any, y: Any, out: Any) -> dict[str, Callable[[], Any]]:
    if not installed("taichi"):
        return {}
    from benchmarks import peers_taichi

    return {"Taichi": peers_taichi.saxpy(a, x, y)}


def taichi_stencil(image: Any, result: Any) -> dict[str, Callable[[], Any]]:
    if not installed("taichi"):
        return {}
    from benchmarks import peers_taichi

    return {"Taichi": peers_taichi.stencil(image)}


def warp_saxpy(a: Any, x: Any, y: Any) -> dict[str, Callable[[], Any]]:
    if not installed("warp"):
        return {}
    from benchmarks import peers_warp

    return {"Warp": peers_warp.saxpy(a, x, y)}


def warp_stencil(image: Any) -> dict[str, Callable[[], Any]]:
    if not installed("warp"):
        return {}
    from benchmarks import peers_warp

    return {"Warp": peers_warp.stencil(image)}


def warp_histogram(values: Any) -> dict[str, Callable[[], Any]]:
    if not installed("warp"):
        return {}
    from benchmarks import peers_warp

    return {"Warp": peers_warp.histogram(values, BINS)}


def jax_activation(x: Any) -> Callable[[], Any] | None:
    if not installed("jax"):
        return None
    import jax
    import jax.numpy as jnp

    function = jax.jit(lambda v: jnp.tanh(v) * jax.nn.sigmoid(v) - jnp.exp(-v * v))
    device = jax.device_put(x)
    return lambda: function(device).block_until_ready()
