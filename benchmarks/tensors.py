"""Tensors on the CPU against jax.jit, PyTorch and NumPy, on one core.

Each side allocates its results through its own API every time. Kernels are compiled before the
clock runs; `ours` is read to its memory each time, as a lazy result is worth nothing.
"""

from __future__ import annotations

import subprocess
import sys
import timeit
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

import ruda
from benchmarks.cpu import against, installed
from benchmarks.start import Limit
from benchmarks.timing import Row

N = 10_000_000
SIDE = 4096
ALLOCATES = "each allocates its result"


def ready(function: Callable[[], Any]) -> Callable[[], Any]:
    """A function whose kernels are compiled: NumPy runs the first times."""
    from ruda.tensor import execute

    for _ in range(3):
        function()
        execute.wait()
    return function


def compared(
    name: str, candidates: dict[str, Callable[[], Any]], goals: dict[str, float]
) -> Iterator[Row]:
    for row in against(name, candidates, goals):
        row.allocation = ALLOCATES
        yield row


def rows() -> Iterator[Row]:
    yield from chain_rows()
    yield from pattern_rows()
    yield from small_rows()


def chain_rows() -> Iterator[Row]:
    """Elementwise chains of 10M float32."""
    rng = np.random.default_rng(5)
    arrays = [rng.standard_normal(N).astype(np.float32) for _ in range(4)]
    a, b, c, x = map(ruda.asarray, arrays)

    def chain() -> Any:
        return (ruda.tanh(a * x + b) * ruda.sigmoid(c) - x**2).buffer()

    def gelu() -> Any:
        return ruda.nn.gelu(x).buffer()

    names = {"tanh(a*x+b)*sigmoid(c)-x**2, 10M": (chain, 1.8), "gelu 10M": (gelu, 2.0)}
    peers = jax_chains(*arrays) if installed("jax") else {}
    for name, (ours, goal) in names.items():
        candidates = {"ruda": ready(ours)}
        if name in peers:
            candidates["jax.jit"] = peers[name]
        yield from compared(name, candidates, {"jax.jit": goal})


def jax_chains(*arrays: Any) -> dict[str, Callable[[], Any]]:
    import jax
    import jax.numpy as jnp

    a, b, c, x = map(jax.device_put, arrays)
    chain = jax.jit(lambda a, b, c, x: jnp.tanh(a * x + b) * jax.nn.sigmoid(c) - x**2)
    gelu = jax.jit(lambda x: jax.nn.gelu(x, approximate=False))
    return {
        "tanh(a*x+b)*sigmoid(c)-x**2, 10M": lambda: chain(a, b, c, x).block_until_ready(),
        "gelu 10M": lambda: gelu(x).block_until_ready(),
    }


def pattern_rows() -> Iterator[Row]:
    """Softmax, layer norm, a sum and sums of columns."""
    rng = np.random.default_rng(6)
    plain = rng.standard_normal((SIDE, SIDE)).astype(np.float32)
    long = rng.standard_normal(16_000_000).astype(np.float32)
    x, y = ruda.asarray(plain), ruda.asarray(long)

    def layer_norm() -> Any:
        away = x - ruda.mean(x, axis=-1, keepdims=True)
        spread = ruda.mean(away * away, axis=-1, keepdims=True)
        return (away / ruda.sqrt(spread + 1e-5)).buffer()

    ours: dict[str, tuple[Callable[[], Any], float]] = {
        "softmax rows 4096^2": (lambda: ruda.nn.softmax(x).buffer(), 1.2),
        "layer norm rows 4096^2": (layer_norm, 1.8),
        "sum 16M": (lambda: ruda.sum(y).buffer(), 1.0),
        "sum of squares, columns of 4096^2": (lambda: ruda.sum(x * x, axis=0).buffer(), 1.5),
    }
    peers = torch_patterns(plain, long) if installed("torch") else {}
    for name, (function, goal) in ours.items():
        candidates = {"ruda": ready(function)}
        if name in peers:
            candidates["PyTorch"] = peers[name]
        yield from compared(name, candidates, {"PyTorch": goal})


def torch_patterns(plain: Any, long: Any) -> dict[str, Callable[[], Any]]:
    import torch

    torch.set_num_threads(1)
    x, y = torch.from_numpy(plain), torch.from_numpy(long)
    return {
        "softmax rows 4096^2": lambda: torch.softmax(x, -1),
        "layer norm rows 4096^2": lambda: torch.nn.functional.layer_norm(x, (SIDE,)),
        "sum 16M": lambda: y.sum(),
        "sum of squares, columns of 4096^2": lambda: (x * x).sum(0),
    }


def small_rows() -> Iterator[Row]:
    """What is read at once: the time is the host's."""
    a, b = np.ones(1000, np.float32), np.full(1000, 0.5, np.float32)
    x, y = ruda.asarray(a), ruda.asarray(b)
    yield from compared(
        "a + b of 1000 float32, read at once",
        {"ruda": lambda: np.asarray(x + y), "NumPy": lambda: a + b},
        {"NumPy": 0.25},
    )

    def five(a: Any, b: Any) -> Any:
        return ((a + b) * a - b) * 2.0 + 1.0

    candidates = {"ruda": lambda: np.asarray(five(x, y))}
    if installed("torch"):
        import torch

        torch.set_num_threads(1)
        p, q = torch.from_numpy(a), torch.from_numpy(b)
        candidates["PyTorch"] = lambda: five(p, q).numpy()
    yield from compared("five ops on 1000 float32, read at once", candidates, {"PyTorch": 1.2})


# ---- limits --------------------------------------------------------------------------------------


def limits() -> list[Limit]:
    """What recording, planning and a first use cost."""
    a = np.ones(1000, np.float32)
    x, y = ruda.asarray(a), ruda.asarray(a)
    name = "recording an op of equal shapes and dtypes"
    return [fastest(name, lambda: x + y, 5000, 0.8), plan_limit(), cold_limit()]


def fastest(name: str, function: Callable[[], Any], count: int, limit: float) -> Limit:
    """Microseconds of a call: the fastest of seven samples, what lies in the way being noise."""
    function()
    samples = [s / count * 1e6 for s in timeit.repeat(function, number=count, repeat=7)]
    return Limit(name, min(samples), limit, "us", samples, "fastest of 7")


def plan_limit() -> Limit:
    """Reading a program of 30 ops whose plan is known, beyond recording and launching it."""
    from ruda.tensor import execute, program

    x = ruda.asarray(np.ones(8192, np.float32))

    def record() -> Any:
        y = x
        for _ in range(15):
            y = y * x
            y = y + 1.5
        return y

    ready(lambda: record().buffer())
    node = record()._storage.node

    def find() -> Any:
        found = program.waiting([node], execute.MOST)
        return execute.ready_plan(found, 1).plan

    assert len(find().kernels) == 1
    return fastest("finding the plan of a program of 30 ops", find, 500, 8)


COLD = """
import time, ruda, numpy, ruda.tensor
from ruda.tensor.ops import OPS
import numba, llvmlite.binding
x, slowest = ruda.ones(8), ("", 0.0)
for row in list(OPS.values()):
    start = time.perf_counter()
    try:
        values = [x] * len(row.parameters)
        if row.rule == "condition":
            values[0] = x > 0
        getattr(ruda, row.name)(*values).numpy()
    except (TypeError, AttributeError):
        continue
    seconds = time.perf_counter() - start
    if seconds > slowest[1]:
        slowest = row.name, seconds
print(slowest[0], slowest[1] * 1e3)
"""


def cold_limit() -> Limit:
    """The slowest first use of an op in a new process."""
    found = subprocess.run([sys.executable, "-c", COLD], capture_output=True, text=True, check=True)
    name, value = found.stdout.split()
    samples = [float(value)]
    return Limit("slowest first use of an op in a process", samples[0], 10, "ms", samples, name)
