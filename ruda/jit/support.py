"""What a device can do, asked of the code that decides: small kernels are emitted, or refused.

`DeviceInfo.dtypes` and the table in docs/devices.md come from here, so they cannot differ from what
a kernel meets.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from ruda import backends
from ruda.dtypes import as_dtype
from ruda.errors import DTypeError, KernelError
from ruda.jit.kernel import jit
from ruda.jit.language import (
    atomic,
    cg,
    shared,
    shfl_xor_sync,
    syncthreads,
    threadfence,
    threadIdx,
)
from ruda.jit.types import ArrayType
from ruda.settings import config, settings

DTYPES = (
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16",
    "bfloat16", "float32", "float64", "complex64", "complex128",
)  # fmt: skip
# Computed at the full rate by the hardware of a kind. CUDA's float64 depends on the chip.
FAST = {
    "cpu": {"int32", "int64", "uint32", "uint64", "float32", "float64"},
    "cuda": {"int32", "uint32", "float32"},
    "wgpu": {"int32", "uint32", "float32"},
}


@jit
def stores(x):  # type: ignore[no-untyped-def]
    x[1] = x[0]


@jit
def computes(x):  # type: ignore[no-untyped-def]
    x[0] = x[0] * x[1] + x[2] - x[3]


@jit
def divides(x):  # type: ignore[no-untyped-def]
    x[0] = x[0] / x[1]


@jit
def adds_atomically(x):  # type: ignore[no-untyped-def]
    atomic.add(x, 0, x[1])


@jit
def waits(x):  # type: ignore[no-untyped-def]
    tile = shared.array(64, "float32")
    t = threadIdx.x
    tile[t] = x[t]
    syncthreads()
    x[t] = tile[63 - t]


@jit
def exchanges(x):  # type: ignore[no-untyped-def]
    t = threadIdx.x
    x[t] = shfl_xor_sync(0xFFFFFFFF, x[t], 1)


@jit
def fences(x):  # type: ignore[no-untyped-def]
    x[0] = 1
    threadfence()
    x[1] = 2


@jit
def waits_for_the_grid(x):  # type: ignore[no-untyped-def]
    t = threadIdx.x
    x[t] = 1
    cg.this_grid().sync()
    x[t] += 1


@jit
def prints(x):  # type: ignore[no-untyped-def]
    print(x[0])


FEATURES = {
    "shared arrays and barriers": waits,
    "warps of 32 threads: exchanges and votes": exchanges,
    "fences of the device's memory": fences,
    "barriers of the whole grid": waits_for_the_grid,
    "print and assert": prints,
}


def accepts(
    kernel: Any, dtype: str, backend: Any, target: Mapping[str, Any], missing: str = "error"
) -> bool:
    """Whether a backend emits a kernel of one array for a target, under a policy."""
    kind = ArrayType(as_dtype(dtype), 1, "C")
    needs_block = getattr(backend, "needs_block", lambda f: False)
    try:
        with config(missing=missing):
            function, _ = kernel.translate((kind,), block=(64, 1, 1), needs_block=needs_block)
            backend.emit(function, target)
    except (KernelError, DTypeError):
        return False
    return True


@functools.cache
def dtypes(device: str) -> dict[str, str]:
    """The dtypes of a device: "fast", "computes" or only "stores"."""
    backend: Any = backends.get(device)
    info, target = backends.find(device), backend.target(device)
    fast = set(FAST.get(backend.name, ())) if info.kind == "hardware" else set()
    if str(info.properties.get("compute_capability", "")).endswith(".0"):
        fast.add("float64")  # chips of data centres
    out = {}
    for name in DTYPES:
        if accepts(computes, name, backend, target):
            out[name] = "fast" if name in fast else "computes"
        elif accepts(stores, name, backend, target):
            out[name] = "stores"
    return out


def computing(device: str) -> frozenset[str]:
    """The dtypes that kernels of a device compute in, by the policy for what it lacks."""
    return _computing(device, str(settings.missing), str(settings.wgpu_dialect))


@functools.cache
def _computing(device: str, missing: str, dialect: str) -> frozenset[str]:
    if missing == "cpu":
        return frozenset(DTYPES)
    backend: Any = backends.get(device)
    target = backend.target(device)
    return frozenset(n for n in DTYPES if accepts(computes, n, backend, target, missing))
