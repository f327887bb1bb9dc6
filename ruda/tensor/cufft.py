"""Fourier transforms by cuFFT, of rows in buffers of a CUDA device.

`fft` and `signal` ask `takes` and call these in the place of kernels. A plan is made for lengths
and a number of rows, and kept; its working memory comes from the pool for each transform. Sums
have no factor, as those of `signal`.
"""

from __future__ import annotations

import collections
import ctypes
import math
import threading
from collections.abc import Sequence
from typing import Any

from ruda import backends, dtypes
from ruda.dtypes import DType
from ruda.jit import jit
from ruda.jit.language import grid
from ruda.tensor import memory
from ruda.tensor.cusolver import address, vendor_has
from ruda.tensor.primitives import run

# what is read, what is written -> the code of the C header, the function, whether it has a sign
KINDS = {
    ("complex64", "complex64"): (0x29, "cufftExecC2C", True),
    ("complex128", "complex128"): (0x69, "cufftExecZ2Z", True),
    ("float32", "complex64"): (0x2A, "cufftExecR2C", False),
    ("float64", "complex128"): (0x6A, "cufftExecD2Z", False),
    ("complex64", "float32"): (0x2C, "cufftExecC2R", False),
    ("complex128", "float64"): (0x6C, "cufftExecZ2D", False),
}
COMPLEX = {"float32": dtypes.complex64, "float64": dtypes.complex128}
REAL = {"complex64": dtypes.float32, "complex128": dtypes.float64}
NAME = "cuFFT"  # as `ruda.explain` tells it
CALLS = 64  # for which an axis is not brought to the end first
MOST = 64  # plans that are kept


def takes(device: str) -> bool:
    """Whether the vendor transforms on a device."""
    return vendor_has(device, "cufftMakePlanMany64")


class Plan:
    """A plan of cuFFT's, which serves one transform at a time."""

    def __init__(
        self, vendor: Any, device: str, code: int, lengths: Sequence[int], rows: int, stride: int
    ) -> None:
        self.vendor, self.gpu, self.lock = vendor, vendor.gpu_of(device), threading.Lock()
        gpu = self.gpu
        gpu.use()
        plan, size = ctypes.c_int(), ctypes.c_size_t()
        vendor.attempt(gpu, "cufftCreate", "", ctypes.byref(plan))
        self.plan = plan.value
        vendor.attempt(gpu, "cufftSetAutoAllocation", "", self.plan, 0)
        n = (ctypes.c_longlong * len(lengths))(*lengths)
        lie = (None, 1, 0) if stride == 1 else (n, stride, 1)  # where elements and rows are
        vendor.attempt(
            gpu, "cufftMakePlanMany64", "", self.plan, len(lengths), n, *lie, *lie, code, rows,
            ctypes.byref(size),
        )  # fmt: skip
        vendor.attempt(gpu, "cufftSetStream", "", self.plan, None)  # the default one
        self.nbytes = size.value

    def run(self, name: str, *arguments: Any) -> None:
        gpu, vendor = self.gpu, self.vendor
        with self.lock:
            gpu.use()
            work = gpu.allocate(max(self.nbytes, 1))
            vendor.attempt(gpu, "cufftSetWorkArea", "", self.plan, work.address)
            vendor.attempt(gpu, name, "", self.plan, *arguments)

    def __del__(self) -> None:
        if hasattr(self, "plan") and not self.gpu.pool.closed:
            self.gpu.driver.cuCtxSetCurrent(self.gpu.context)
            self.vendor.function("cufftDestroy")(self.plan)


_plans: collections.OrderedDict[Any, Plan] = collections.OrderedDict()  # the last used one is last
_lock = threading.Lock()


def plan(device: str, code: int, lengths: Sequence[int], rows: int, stride: int = 1) -> Plan:
    """A plan that is kept, or a new one in the place of the one not used for longest.

    stride  between the elements of a row, whose neighbours are other rows' elements; 1: rows lie
            one behind the other
    """
    key = device, code, tuple(lengths), rows, stride
    with _lock:
        found = _plans.pop(key, None)
        if found is None:
            backend: Any = backends.get(device)
            found = Plan(backend.vendor, device, code, lengths, rows, stride)
        _plans[key] = found
        oldest = _plans.popitem(last=False) if len(_plans) > MOST else None
    del oldest  # outside of the lock: to destroy it takes a while
    return found


def execute(x: Any, out: Any, lengths: Sequence[int], sign: int, device: str) -> None:
    """Transform all rows of a buffer into another one; both lie without gaps.

    lengths  of the last axes that are transformed, in elements of the real side if one is real
    """
    if not x.size or not out.size:
        return
    code, name, signed = KINDS[x.dtype.name, out.dtype.name]
    rows = math.prod(x.shape[: x.ndim - len(lengths)])
    made = plan(device, code, lengths, rows)
    made.run(name, address(x), address(out), *((sign,) if signed else ()))


def transform(x: Any, sign: int, axes: int, kind: DType, device: str) -> Any:
    """The transform of complex rows along the last `axes` axes, in a new buffer."""
    out = memory.allocate(x.shape, kind, device)
    execute(x, out, x.shape[x.ndim - axes :], sign, device)
    return out


def along(x: Any, axis: int, sign: int, kind: DType, device: str) -> Any:
    """The transform of complex numbers along an axis that is not the last one, in a new buffer."""
    out = memory.allocate(x.shape, kind, device)
    if not x.size:
        return out
    code, name, _ = KINDS[kind.name, kind.name]
    n, inner = x.shape[axis], math.prod(x.shape[axis + 1 :])
    made = plan(device, code, (n,), inner, inner)
    for k in range(math.prod(x.shape[:axis])):
        offset = k * n * inner * kind.itemsize
        made.run(name, address(x) + offset, address(out) + offset, sign)
    return out


def half(x: Any, axes: int, device: str) -> Any:
    """The transform of real numbers along the last `axes` axes, n // 2 + 1 along the last one."""
    shape = *x.shape[:-1], x.shape[-1] // 2 + 1
    out = memory.allocate(shape, COMPLEX[x.dtype.name], device)
    execute(x, out, x.shape[x.ndim - axes :], -1, device)
    return out


@jit(wraparound=False)
def real_ends(x, even):  # type: ignore[no-untyped-def]
    """Let the numbers without a conjugate in the other half be real."""
    row = grid(1)
    if row < x.shape[0]:
        x[row, 0] = x.dtype.type(x[row, 0].real)
        if even:
            x[row, x.shape[1] - 1] = x.dtype.type(x[row, x.shape[1] - 1].real)


def from_half(x: Any, n: int, device: str) -> Any:
    """n real numbers from the half of their transform; `x` is used up."""
    out = memory.allocate((*x.shape[:-1], n), REAL[x.dtype.name], device)
    rows = memory.view(x, memory.contiguous((math.prod(x.shape[:-1]), x.shape[-1])))
    run.each("irfft", device, real_ends, rows.shape[0], rows, n % 2 == 0)
    execute(x, out, (n,), 1, device)
    return out
