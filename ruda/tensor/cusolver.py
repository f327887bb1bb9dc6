"""Factorisations by cuSOLVER and cuBLAS, of stacks of matrices in buffers of a CUDA device.

`factors` asks `takes` and calls these in the place of its own kernels. The vendor's matrices are
stored by columns: what it is given of a buffer in C order is the transpose. Which of its functions
is used is said by ROUTES, measured on an H200; `ruda.config(vendor=False)` takes none.

What a function tells of its matrices (a pivot of 0) is not left to its codes, which do not agree
on NaN: the results are looked at.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from ruda import backends, dtypes
from ruda.dtypes import DType
from ruda.jit import graphs, jit
from ruda.jit.language import grid
from ruda.settings import settings
from ruda.tensor import memory
from ruda.tensor.primitives import run

# Of the C headers.
NO_TRANSPOSE, TRANSPOSE = 0, 1
UPPER = 1
VALUES_ONLY, VECTORS = 0, 1
CUDA_TYPES = {"float32": 0, "float64": 1, "complex64": 4, "complex128": 5}
REAL = {
    dtypes.float32: dtypes.float32, dtypes.float64: dtypes.float64,
    dtypes.complex64: dtypes.float32, dtypes.complex128: dtypes.float64,
}  # fmt: skip

# What each is made of; a library without one of these is as good as none.
NEEDS = {
    "lu": ("cusolverDn?getrf", "cusolverDn?getrs", "cublas?getrfBatched", "cublas?getrsBatched",
           "cublas?getriBatched"),
    "cholesky": ("cusolverDn?potrf", "cusolverDn?potrfBatched"),
}  # fmt: skip
# (matrices, their larger side) -> whether the vendor's is faster than our own.
ROUTES: dict[str, Callable[[int, int], bool]] = {
    "lu": lambda count, n: True,
    "cholesky": lambda count, n: True,
}
TOGETHER = 512  # up to this side a stack is factorised by one call


def vendor_has(device: str, *names: str) -> bool:
    """Whether a device's vendor has functions, and they are wanted.

    Launches that are recorded are our own kernels': a call of the vendor's would not be replayed.
    """
    if not settings.vendor or graphs.recording.get() is not None:
        return False
    backend: Any = backends.get(device)
    return hasattr(backend, "vendor") and backend.vendor.has(*names)


def able(routine: str, device: str) -> bool:
    """Whether the vendor's functions for a routine can be called."""
    return vendor_has(device, *NEEDS[routine])


def takes(routine: str, x: Any) -> bool:
    """Whether the vendor factorises a tensor's matrices: it can, and is faster, or the only one."""
    if not x.size or x.dtype not in REAL or not able(routine, x.device):
        return False
    *lead, m, n = x.shape
    return x.dtype.kind == "complex" or ROUTES[routine](math.prod(lead), max(m, n))


# ---- calls ---------------------------------------------------------------------------------------


def call(device: str, name: str, kind: DType, *arguments: Any) -> None:
    """A function of the vendor's on a device."""
    backend: Any = backends.get(device)
    backend.vendor.run(device, name, kind.name, *arguments)


def address(buffer: Any) -> int:
    if isinstance(buffer, np.ndarray):
        return int(buffer.ctypes.data)
    return int(buffer.pointer)


def matrices(buffer: Any) -> list[int]:
    """The address of each matrix of a stack."""
    step = buffer.strides[0]
    return [address(buffer) + k * step for k in range(buffer.shape[0])]


def table(buffer: Any, device: str) -> Any:
    """The same in memory of the device."""
    return memory.from_host(np.array(matrices(buffer), np.int64), device)


def workspace(device: str, name: str, kind: DType, *arguments: Any) -> tuple[Any, int]:
    """The memory that a function wants, and how many elements that is.

    It goes back to the pool behind the call: what is given it next runs later.
    """
    length = ctypes.c_int()
    call(device, f"{name}_bufferSize", kind, *arguments, ctypes.byref(length))
    return memory.allocate((max(length.value, 1),), kind, device), length.value


# ---- LU ------------------------------------------------------------------------------------------


@jit(wraparound=False)
def zero_pivots(a, singular):  # type: ignore[no-untyped-def]
    """singular[b] = 1 where a triangle has a 0 on its diagonal."""
    i = grid(1)
    n = a.shape[1]
    if i < a.shape[0] * n and a[i // n, i % n, i % n] == a.dtype.type(0):
        singular[i // n] = 1


@jit(wraparound=False)
def wrong_roots(a, wrong):  # type: ignore[no-untyped-def]
    """wrong[b] = 1 where a triangle has a number on its diagonal that is not above 0."""
    i = grid(1)
    n = a.shape[1]
    if i < a.shape[0] * n and not a[i // n, i % n, i % n].real > 0:
        wrong[i // n] = 1


def lu(a: Any, pivots: Any, singular: Any, kind: DType, device: str) -> None:
    """Factorise the transposes of the matrices where they lie; pivots count from 1."""
    count, n, _ = a.shape
    info = run.full((count,), 0, dtypes.int32, device)
    if count > 1 and n <= TOGETHER:
        places = table(a, device)
        call(
            device, "cublas?getrfBatched", kind, n, address(places), n, address(pivots),
            address(info), count,
        )  # fmt: skip
    else:
        work, _ = workspace(device, "cusolverDn?getrf", kind, n, n, address(a), n)
        for k, at in enumerate(matrices(a)):
            call(
                device, "cusolverDn?getrf", kind, n, n, at, n, address(work),
                address(pivots) + 4 * n * k, address(info) + 4 * k,
            )  # fmt: skip
    run.each("lu", device, zero_pivots, count * n, a, singular)


def solve(a: Any, pivots: Any, x: Any, transposed: bool, kind: DType, device: str) -> None:
    """Solve with what `lu` has made, columns of right sides being the rows of `x`, in place.

    transposed  the matrices are those that `lu` was given, else their transposes
    """
    (count, n, _), sides = a.shape, x.shape[1]
    way = TRANSPOSE if transposed else NO_TRANSPOSE
    if not sides:
        return
    if count > 1 and n <= TOGETHER:
        places, right = table(a, device), table(x, device)
        told = ctypes.c_int()  # of wrong arguments only
        call(
            device, "cublas?getrsBatched", kind, way, n, sides, address(places), n,
            address(pivots), address(right), n, ctypes.addressof(told), count,
        )  # fmt: skip
        return
    info = run.full((count,), 0, dtypes.int32, device)
    for k, (at, right) in enumerate(zip(matrices(a), matrices(x), strict=True)):
        call(
            device, "cusolverDn?getrs", kind, way, n, sides, at, n, address(pivots) + 4 * n * k,
            right, n, address(info) + 4 * k,
        )  # fmt: skip


def invert(a: Any, pivots: Any, out: Any, kind: DType, device: str) -> None:
    """The inverses of the matrices that `lu` was given, of a stack; `out` holds unit matrices."""
    count, n, _ = a.shape
    if count == 1 or n > TOGETHER:
        solve(a, pivots, out, False, kind, device)
        return
    places, results = table(a, device), table(out, device)
    info = run.full((count,), 0, dtypes.int32, device)
    call(
        device, "cublas?getriBatched", kind, n, address(places), n, address(pivots),
        address(results), n, address(info), count,
    )  # fmt: skip


# ---- Cholesky ------------------------------------------------------------------------------------


def cholesky(a: Any, wrong: Any, kind: DType, device: str) -> None:
    """The lower factors in the lower triangles, in place; what is above them is left.

    By columns the lower triangle is the upper one of the transpose, whose factor is that of the
    matrix, transposed.
    """
    count, n, _ = a.shape
    if count > 1 and n <= TOGETHER:
        places = table(a, device)
        call(
            device, "cusolverDn?potrfBatched", kind, UPPER, n, address(places), n, address(wrong),
            count,
        )  # fmt: skip
    else:
        given = UPPER, n, address(a), n
        work, length = workspace(device, "cusolverDn?potrf", kind, *given)
        for k, at in enumerate(matrices(a)):
            call(
                device, "cusolverDn?potrf", kind, UPPER, n, at, n, address(work), length,
                address(wrong) + 4 * k,
            )  # fmt: skip
    run.each("cholesky", device, wrong_roots, count * n, a, wrong)
