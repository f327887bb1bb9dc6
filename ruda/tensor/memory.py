"""Memory of tensors: NumPy arrays where the host is the device, `DeviceArray`s elsewhere.

A node's value lies in C order without gaps; views of it have strides, in elements.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from ruda import backends
from ruda.backends.base import DeviceArray, _at, another, check_size
from ruda.dtypes import DType
from ruda.jit.types import type_of

HOST = ("cpu", "sim")
LARGE = 1 << 20  # bytes from which the host's memory comes from its pool


class View(NamedTuple):
    """Elements of a buffer: strides and offset count elements."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int = 0


def on_host(device: str) -> bool:
    return device in HOST


def allocate(shape: tuple[int, ...], dtype: DType, device: str) -> Any:
    return maker(shape, dtype, device)()


@functools.lru_cache(maxsize=1024)
def maker(shape: tuple[int, ...], dtype: DType, device: str) -> Callable[[], Any]:
    """What allocates buffers of a kind: all that does not change is found out before."""
    check_size(shape)
    nbytes, kind = math.prod(shape) * dtype.itemsize, dtype.numpy
    backend: Any = backends.get(device)
    if on_host(device):
        if nbytes < LARGE:
            return functools.partial(np.empty, shape, kind)

        # Fresh pages cost as much as a pass over them: large arrays come from what was freed.
        def pooled() -> Any:
            storage = backends.get("cpu").allocate(nbytes, "cpu")  # type: ignore[attr-defined]
            return _at(storage.address, shape, kind, None, storage.owner)

        return pooled
    if not hasattr(backend, "pool"):
        return functools.partial(DeviceArray.allocate, backend, device, shape, kind)
    first = DeviceArray.allocate(backend, device, shape, kind)
    type_of(first)
    return another(first, backend.pool(device))


def from_host(array: np.ndarray[Any, Any], device: str) -> Any:
    """A new buffer with the elements of an array."""
    if on_host(device):
        return np.array(array, order="C")
    out = DeviceArray.allocate(backends.get(device), device, array.shape, array.dtype)
    out.copy_to_device(np.ascontiguousarray(array).reshape(array.shape))
    return out


def to_host(buffer: Any) -> np.ndarray[Any, Any]:
    """The elements as a NumPy array: the memory itself on the host, else a copy."""
    if isinstance(buffer, np.ndarray):
        return buffer
    found: np.ndarray[Any, Any] = buffer.copy_to_host()
    return found


def contiguous(shape: tuple[int, ...]) -> View:
    """The view that is the whole buffer.

    >>> contiguous((2, 3))
    View(shape=(2, 3), strides=(3, 1), offset=0)
    """
    strides, step = [], 1
    for n in reversed(shape):
        strides.append(step)
        step *= max(n, 1)
    return View(shape, tuple(strides[::-1]))


class Move(NamedTuple):
    """What `to_device` did: `how` is a word of `WAYS`."""

    nbytes: int  # of the elements
    source: str
    target: str
    how: str

    def __str__(self) -> str:
        return f"{self.nbytes} bytes from {self.source} to {self.target}, {WAYS[self.how]}"


WAYS = {
    "zero-copy": "zero-copy: the same memory",
    "copied": "copied once",
    "peer": "peer to peer: from GPU to GPU",
    "staged": "staged: through memory of the host",
}


def moved(buffer: Any, source: str, target: str) -> tuple[Any, str]:
    """The elements of a buffer without gaps in memory of another device, and the way they went."""
    backend: Any = backends.get(target)
    if type(buffer) is DeviceArray and backend is backends.get(source):
        send = getattr(backend, "send", None)
        if send is not None:
            there = DeviceArray.allocate(backend, target, buffer.shape, buffer.dtype)
            return there, "peer" if send(there, buffer) else "staged"
    how = "copied" if on_host(source) or on_host(target) else "staged"
    return from_host(to_host(buffer), target), how


def view(buffer: Any, seen: View) -> Any:
    """A buffer's elements through a view, without a copy."""
    itemsize = buffer.dtype.itemsize
    strides = tuple(s * itemsize for s in seen.strides)
    if isinstance(buffer, np.ndarray):
        if math.prod(seen.shape) == 0:
            return np.empty(seen.shape, buffer.dtype)
        if is_plain(buffer):
            return np.ndarray(seen.shape, buffer.dtype, buffer, seen.offset * itemsize, strides)
        start = buffer.reshape(-1)[seen.offset :]
        return np.lib.stride_tricks.as_strided(start, seen.shape, strides)
    return DeviceArray(
        buffer._backend, buffer.storage, seen.shape, buffer.dtype, strides,
        buffer.offset + seen.offset * itemsize,
    )  # fmt: skip


def is_plain(array: np.ndarray[Any, Any]) -> bool:
    """Whether NumPy makes arrays in this one's memory at once: ten times as fast as by strides."""
    return array.flags.c_contiguous and array.dtype.kind in "biufc" and array.size > 0


def owner(buffer: Any) -> Any:
    """What holds a buffer's memory: one object for all buffers that share it."""
    if isinstance(buffer, DeviceArray):
        return buffer.storage
    while True:
        below = getattr(buffer, "base", None)
        if below is None:
            below = getattr(buffer, "owner", None)
        if below is None:
            return buffer
        buffer = below


def repeat(buffer: Any, shape: tuple[int, ...]) -> Any:
    """A buffer at a shape, without a copy: axes of length 1 repeat."""
    strides = tuple(
        s if n == m else 0 for n, m, s in zip(buffer.shape, shape, buffer.strides, strict=True)
    )
    if isinstance(buffer, np.ndarray):
        return np.lib.stride_tricks.as_strided(buffer, shape, strides)
    return DeviceArray(buffer._backend, buffer.storage, shape, buffer.dtype, strides, buffer.offset)


def words(buffer: Any, dtype: np.dtype[Any]) -> Any:
    """The bytes of a buffer without gaps at another dtype, along a new last axis."""
    count = buffer.dtype.itemsize // dtype.itemsize
    shape = (*buffer.shape, count)
    strides = (*buffer.strides, dtype.itemsize)
    if isinstance(buffer, np.ndarray):
        return np.lib.stride_tricks.as_strided(buffer.reshape(-1).view(dtype), shape, strides)
    return DeviceArray(buffer._backend, buffer.storage, shape, dtype, strides, buffer.offset)


def parts(buffer: Any) -> tuple[Any, Any]:
    """The real and the imaginary parts of a buffer of complex numbers, in place."""
    if isinstance(buffer, np.ndarray):
        return buffer.real, buffer.imag
    half = np.dtype(f"f{buffer.dtype.itemsize // 2}")
    rest = buffer.shape, half, buffer.strides
    real, imaginary = (
        DeviceArray(buffer._backend, buffer.storage, *rest, buffer.offset + k * half.itemsize)
        for k in (0, 1)
    )
    return real, imaginary


def look(buffer: Any, shape: tuple[int, ...], strides: tuple[int, ...], offset: int = 0) -> Any:
    """A buffer's memory with another shape and other strides; these and the offset in bytes.

    The offset counts from the buffer's first element, and may be negative.
    """
    if not isinstance(buffer, np.ndarray):
        return DeviceArray(
            buffer._backend, buffer.storage, shape, buffer.dtype, strides, buffer.offset + offset
        )
    if offset:
        start = buffer.__array_interface__["data"][0] + offset
        return _at(start, shape, buffer.dtype, strides, buffer)
    if is_plain(buffer) and 0 not in shape:
        return np.ndarray(shape, buffer.dtype, buffer, 0, strides)
    return np.lib.stride_tricks.as_strided(buffer, shape, strides)
