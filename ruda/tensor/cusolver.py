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
    "qr": ("cusolverDn?geqrf",),
    "eigen": ("cusolverDnXsyevd",),
    "svd": ("cusolverDn?gesvdj", "cusolverDn?gesvdjBatched"),
}  # fmt: skip
# (matrices, their larger side) -> whether the vendor's is faster than our own, on an H200.
ROUTES: dict[str, Callable[[int, int], bool]] = {
    "lu": lambda count, n: n >= 128 if count == 1 else n > 256,
    "cholesky": lambda count, n: n >= 64 if count == 1 else n >= 128,
    "qr": lambda count, n: n >= 512 if count == 1 else n >= 512 and count <= 4,
    "eigen": lambda count, n: True,
    "svd": lambda count, n: count == 1 or n <= TINY,
}
TOGETHER = 512  # up to this side a stack is factorised by one call,
SOLVED_TOGETHER = 256  # and solved
TINY = 32  # the largest side of matrices that `gesvdjBatched` takes


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


def matrices(buffer: Any) -> range:
    """The address of each matrix of a stack."""
    first, step = address(buffer), buffer.strides[0]
    return range(first, first + step * buffer.shape[0], step)


def table(buffer: Any, device: str) -> Any:
    """The same in memory of the device."""
    found = matrices(buffer)
    return memory.from_host(np.arange(found.start, found.stop, found.step, dtype=np.int64), device)


ADDRESSES = 1 << 31  # and more are no sizes
_lengths: dict[Any, int] = {}  # of working memory, by all but addresses


def workspace(device: str, name: str, kind: DType, *arguments: Any) -> tuple[Any, int]:
    """The memory that a function wants, and how many elements that is.

    It goes back to the pool behind the call: what is given it next runs later.
    """
    key = device, name, kind, *[a for a in arguments if a is None or a < ADDRESSES]
    length = _lengths.get(key)
    if length is None:
        found = ctypes.c_int()
        call(device, f"{name}_bufferSize", kind, *arguments, ctypes.byref(found))
        if len(_lengths) > 1024:
            _lengths.clear()
        length = _lengths[key] = found.value
    return memory.allocate((max(length, 1),), kind, device), length


def bytes_of(device: str, name: str, kind: DType, *arguments: Any) -> tuple[Any, Any]:
    """The memory of the device and of the host that a function wants."""
    there, here = ctypes.c_size_t(), ctypes.c_size_t()
    *given, count = arguments  # of which there is one, or none
    call(
        device, f"{name}_bufferSize", kind, *given, ctypes.byref(there), ctypes.byref(here),
        *([] if count is None else [count]),
    )  # fmt: skip
    work = memory.allocate((max(there.value, 1),), dtypes.uint8, device)
    return work, ctypes.create_string_buffer(max(here.value, 1))


# ---- LU ------------------------------------------------------------------------------------------


SINGULAR, MISSING = 1, 2  # what LU tells of a matrix: a pivot is 0; there is NaN


@jit(wraparound=False)
def note_missing(a, told):  # type: ignore[no-untyped-def]
    """told[b] = MISSING where there is NaN."""
    i = grid(1)
    n = a.shape[1]
    if i < a.shape[0] * n * n:
        x = a[i // (n * n), i // n % n, i % n]
        if x != x:
            told[i // (n * n)] = MISSING


@jit(wraparound=False)
def set_apart(a, told):  # type: ignore[no-untyped-def]
    """The unit matrix where there is NaN."""
    i = grid(1)
    n = a.shape[1]
    if i < a.shape[0] * n * n and told[i // (n * n)] == MISSING:
        row, column = i // n % n, i % n
        a[i // (n * n), row, column] = a.dtype.type(row == column)


@jit(wraparound=False)
def zero_pivots(a, told):  # type: ignore[no-untyped-def]
    """told[b] = SINGULAR where a triangle has a 0 on its diagonal; NaN where there was one."""
    i = grid(1)
    n = a.shape[1]
    if i < a.shape[0] * n * n:
        b, row, column = i // (n * n), i // n % n, i % n
        if told[b] == MISSING:
            a[b, row, column] = a.dtype.type(math.nan)
        elif row == column and a[b, row, column] == a.dtype.type(0):
            told[b] = SINGULAR


@jit(wraparound=False)
def clear_above(a):  # type: ignore[no-untyped-def]
    """0 above the diagonals."""
    i = grid(1)
    m, n = a.shape[1], a.shape[2]
    if i < a.shape[0] * m * n and i % n > i // n % m:
        a[i // (m * n), i // n % m, i % n] = a.dtype.type(0)


@jit(wraparound=False)
def lower_roots(a, wrong):  # type: ignore[no-untyped-def]
    """0 above the diagonal; wrong[b] = 1 where a number on it is not above 0."""
    i = grid(1)
    n = a.shape[1]
    if i < a.shape[0] * n * n:
        b = i // (n * n)
        row, column = i // n % n, i % n
        if column > row:
            a[b, row, column] = a.dtype.type(0)
        if column == row and not a[b, row, column].real > 0:
            wrong[b] = 1


def lu(a: Any, pivots: Any, told: Any, kind: DType, device: str) -> None:
    """Factorise the transposes of the matrices where they lie; pivots count from 1.

    `told` is 0 before. NaN is kept from the vendor, who takes it for a pivot of 0 (on an H200).
    """
    count, n, _ = a.shape
    run.each("lu", device, note_missing, a.size, a, told)
    run.each("lu", device, set_apart, a.size, a, told)
    info = memory.allocate((count,), dtypes.int32, device)  # which nobody reads
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
    run.each("lu", device, zero_pivots, a.size, a, told)


def solve(a: Any, pivots: Any, x: Any, transposed: bool, kind: DType, device: str) -> None:
    """Solve with what `lu` has made, columns of right sides being the rows of `x`, in place.

    transposed  the matrices are those that `lu` was given, else their transposes
    """
    (count, n, _), sides = a.shape, x.shape[1]
    way = TRANSPOSE if transposed else NO_TRANSPOSE
    if not sides:
        return
    if count > 1 and n <= SOLVED_TOGETHER:
        places, right = table(a, device), table(x, device)
        told = ctypes.c_int()  # of wrong arguments only
        call(
            device, "cublas?getrsBatched", kind, way, n, sides, address(places), n,
            address(pivots), address(right), n, ctypes.addressof(told), count,
        )  # fmt: skip
        return
    info = memory.allocate((count,), dtypes.int32, device)
    for k, (at, right) in enumerate(zip(matrices(a), matrices(x), strict=True)):
        call(
            device, "cusolverDn?getrs", kind, way, n, sides, at, n, address(pivots) + 4 * n * k,
            right, n, address(info) + 4 * k,
        )  # fmt: skip


def invert(a: Any, pivots: Any, out: Any, kind: DType, device: str) -> None:
    """The inverses of the matrices that `lu` was given, of a stack; `out` holds unit matrices."""
    count, n, _ = a.shape
    if count == 1 or n > SOLVED_TOGETHER:
        solve(a, pivots, out, False, kind, device)
        return
    places, results = table(a, device), table(out, device)
    info = memory.allocate((count,), dtypes.int32, device)
    call(
        device, "cublas?getriBatched", kind, n, address(places), n, address(pivots),
        address(results), n, address(info), count,
    )  # fmt: skip


# ---- Cholesky ------------------------------------------------------------------------------------


def cholesky(a: Any, wrong: Any, kind: DType, device: str) -> None:
    """The lower factors, in place.

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
    run.each("cholesky", device, lower_roots, count * n * n, a, wrong)


# ---- QR ------------------------------------------------------------------------------------------


def qr(a: Any, q: Any, kind: DType, device: str) -> None:
    """Q and R of matrices whose transposes are given: R's transpose is left in their place.

    q  for the transposes of Q, as many rows of it as it has
    """
    (count, n, m), columns = a.shape, q.shape[1]
    k = min(m, n)
    factors = memory.allocate((count, k), kind, device)
    info = memory.allocate((count,), dtypes.int32, device)
    one = kind.itemsize
    work, length = workspace(device, "cusolverDn?geqrf", kind, m, n, address(a), m)
    for b, at in enumerate(matrices(a)):
        call(
            device, "cusolverDn?geqrf", kind, m, n, at, m, address(factors) + one * k * b,
            address(work), length, address(info) + 4 * b,
        )  # fmt: skip
    shape = count, k, m
    run.copy(memory.look(q, shape, q.strides), memory.look(a, shape, a.strides), device)
    run.each("qr", device, clear_above, a.size, a)
    name = "cusolverDn?ungqr" if kind.kind == "complex" else "cusolverDn?orgqr"
    work, length = workspace(device, name, kind, m, columns, k, address(q), m, address(factors))
    for b, at in enumerate(matrices(q)):
        call(
            device, name, kind, m, columns, k, at, m, address(factors) + one * k * b,
            address(work), length, address(info) + 4 * b,
        )  # fmt: skip


# ---- eigenvalues, singular values ----------------------------------------------------------------


def eigen(a: Any, values: Any, vectors: bool, kind: DType, device: str) -> Any:
    """Eigenvalues of Hermitian matrices, of which the lower triangles are read.

    Rows of `a` become the conjugates of the eigenvectors. The result: which did not converge.
    """
    count, n, _ = a.shape
    info = run.full((count,), 0, dtypes.int32, device)
    backend: Any = backends.get(device)
    whole, real = CUDA_TYPES[kind.name], CUDA_TYPES[REAL[kind].name]
    together = count > 1 and backend.vendor.has("cusolverDnXsyevBatched")
    name = "cusolverDnXsyevBatched" if together else "cusolverDnXsyevd"

    def given(at: int, to: int) -> tuple[Any, ...]:
        job = VECTORS if vectors else VALUES_ONLY
        return job, UPPER, n, whole, at, n, real, to, whole

    first = given(address(a), address(values))
    work, host = bytes_of(device, name, kind, *first, count if together else None)
    memories = address(work), work.size, ctypes.addressof(host), len(host)
    if together:
        call(device, name, kind, *first, *memories, address(info), count)
        return info
    step = values.strides[0]
    for b, at in enumerate(matrices(a)):
        each = given(at, address(values) + step * b)
        call(device, name, kind, *each, *memories, address(info) + 4 * b)
    return info


def singular(a: Any, s: Any, u: Any, v: Any, kind: DType, device: str) -> Any:
    """Singular values of matrices, no wider than high, whose transposes are given.

    u, v  for the transposes of U, as many rows of it as it has, and of V; None without vectors.
    Small ones of a stack have all of U. The result: which did not converge.
    """
    count, n, m = a.shape
    info = run.full((count,), 0, dtypes.int32, device)
    job = VALUES_ONLY if u is None else VECTORS
    together = count > 1 and m <= TINY
    if u is None:  # the vendor writes there all the same
        u = memory.allocate((count, m if together else n, m), kind, device)
        v = memory.allocate((count, n, n), kind, device)

    def given(b: int) -> tuple[Any, ...]:
        left, right, to = (address(x) + b * x.strides[0] for x in (u, v, s))
        economic = () if together else (int(u.shape[1] < m),)
        return (job, *economic, m, n, address(a) + b * a.strides[0], m, to, left, m, right, n)

    name = "cusolverDn?gesvdjBatched" if together else "cusolverDn?gesvdj"
    more = (count,) if together else ()
    length = ctypes.c_int()
    call(device, f"{name}_bufferSize", kind, *given(0), ctypes.byref(length), *more)
    work = memory.allocate((max(length.value, 1),), kind, device)
    for b in range(1 if together else count):
        call(
            device, name, kind, *given(b), address(work), length.value, address(info) + 4 * b,
            *more,
        )  # fmt: skip
    return info
