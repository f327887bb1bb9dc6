"""What a backend is: the small interface that the layers above know, and nothing else.

A backend turns a `Function` of the IR into text (`emit`, pure), text into a binary (`compile`), a
binary into a `Module` on a device (`load`), and a module with a launch shape into a callable
(`launcher`) that takes the kernel's arguments.
"""

from __future__ import annotations

import contextlib
import functools
import math
import operator
import os
import sys
import time
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from ruda.backends.pool import Pool, bucket
from ruda.dtypes import DType, as_dtype
from ruda.errors import DeviceError, LaunchWarning, OutOfMemoryError, Place, shown
from ruda.settings import settings

if TYPE_CHECKING:
    import asyncio
    from types import CodeType

    from ruda.jit.ir import Function

ALIGNMENT = 64  # bytes: a cache line, and the widest vector
# Running profiles: told of launches, copies and compilations. Who changes it calls
# `settings.changed()`, as launchers are made with or without them.
observers: list[Any] = []
MOST = 1 << 58  # elements of an array: of 16 bytes each, their offsets fit 64 bits
KEPT = 1 << 30  # bytes of the host's memory that are kept for new arrays, and a 16th of it at most


@dataclass(frozen=True, slots=True)
class Site:
    """A place in a kernel that can report: a print, an assert, a failed check.

    A compiled kernel writes (site number, block, thread, values); the host formats them.
    `parts` are text pieces and (dtype name, format spec) pairs, one pair a reported value.
    """

    kind: str  # "print", "assert", "barrier", "bounds", "division", "view"; a note: "wrap"
    place: Place
    parts: tuple[str | tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Source:
    """Emitted text. `lines[k]` is the user's line that line k + 1 of the text comes from (0:
    none)."""

    text: str
    entry: str
    file: str = ""
    lines: tuple[int, ...] = ()
    sites: tuple[Site, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)  # what `compile` needs to know besides


@dataclass(frozen=True, slots=True)
class Binary:
    """What the disk cache keeps: a payload, JSON metadata, and the external symbols it refers
    to."""

    payload: bytes
    metadata: dict[str, Any]
    symbols: tuple[str, ...] = ()
    kept: bool = False  # on the disk, or would be if there were a cache


@dataclass(frozen=True, slots=True)
class Launch:
    """The shape of a launch: blocks, threads of a block, bytes of dynamic shared memory."""

    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared_bytes: int = 0
    stream: Any = None


@dataclass(frozen=True, slots=True)
class DeviceInfo:
    """A device and its honest properties."""

    name: str  # "cpu", "sim", "cuda:0"
    description: str
    kind: str  # "hardware", "software", "emulation" or "interpreter"
    properties: Mapping[str, Any] = field(default_factory=dict)

    @property
    def memory(self) -> int | None:
        """Bytes of memory; None where the driver does not tell."""
        found: int | None = self.properties.get("memory")
        return found

    @property
    def limits(self) -> dict[str, Any]:
        """What a launch may have at most."""
        return {k: v for k, v in self.properties.items() if k.startswith("max_")}

    @property
    def subgroup_sizes(self) -> tuple[int, ...]:
        """How many threads the hardware runs in lock step: one size, or least and greatest.

        A warp of the language is 32 threads on every device.
        """
        return tuple(self.properties.get("subgroup_sizes", ()))

    @property
    def dtypes(self) -> dict[str, str]:
        """What becomes of each dtype: it is "fast", "computes" or only "stores".

        >>> import ruda
        >>> ruda.devices()[0].dtypes["float32"]
        'fast'
        """
        from ruda.jit import support

        return dict(support.dtypes(self.name))

    def __repr__(self) -> str:
        return f"<ruda device {self.name}: {self.description} ({self.kind})>"

    def __getattr__(self, name: str) -> Any:
        raise missing_attribute(self, "Device", name)


class Backend(Protocol):
    """One folder and one registry line. `fallback` of `launcher` is called with the same arguments
    when they do not fit the specialisation that the launcher was made for. The memory part of a
    backend is described by `HostMemory`, which is also what cpu and sim use."""

    name: str

    def devices(self) -> Sequence[DeviceInfo]: ...

    def target(self, device: str) -> Mapping[str, Any]:
        """The properties that code depends on; they are part of the cache key."""
        ...

    def emit(self, function: Function, target: Mapping[str, Any]) -> Source: ...

    def compile(self, source: Source, target: Mapping[str, Any]) -> Binary: ...

    def load(self, binary: Binary, function: Function | None, device: str) -> Any:
        """`function` is None when the binary comes from the disk cache."""
        ...

    def resolves(self, symbol: str) -> bool:
        """Whether a binary from the disk cache may refer to an external symbol: it exists here.
        Asked only of backends with `cacheable = True`."""
        ...

    def launcher(
        self,
        module: Any,
        launch: Launch,
        fallback: Callable[..., Any] | None,
        guards: Sequence[tuple[Any, Any, Any]] = (),
    ) -> Callable[..., None]:
        """A callable that takes a launch's arguments, tuples taken apart.

        If the backend has `launcher_checks`, a launcher is also called with arguments that it was
        not made for: it compares them, and the `guards` (see `Capture.guard`), and calls `fallback`
        where they differ. It must accept whatever its specialisation was made for.
        """
        ...


# ---- memory --------------------------------------------------------------------------------------


@dataclass(slots=True, eq=False, repr=False)
class Storage:
    """A piece of a device's memory. It is given back when `owner` dies.

    `address` is the device's; `on_host` says that the host can read and write there, too.
    """

    device: str
    address: int
    nbytes: int
    owner: Any
    on_host: bool
    arrays: list[weakref.ref[DeviceArray]] = field(default_factory=list)  # those that see it
    readonly: bool = False  # another library's memory that must not be written

    def seen_by(self, array: DeviceArray) -> None:
        if len(self.arrays) > 64:
            self.arrays = [ref for ref in self.arrays if ref() is not None]
        self.arrays.append(weakref.ref(array))

    @property
    def is_freed(self) -> bool:
        return self.owner is None


def check_size(shape: Sequence[int]) -> None:
    """OutOfMemoryError for a shape whose elements no memory can hold, and no offset can name.

    Lengths of 0 do not count, as in NumPy: a row of such an array may be asked for.
    """
    size = math.prod(shape)
    if size > MOST or (not size and math.prod(filter(None, shape)) > MOST):
        raise OutOfMemoryError(
            f"an array of shape {shown(tuple(shape))} is larger than any memory: it may have at "
            f"most {MOST:,} elements"
        )


def _request(nbytes: int) -> np.ndarray[Any, Any] | None:
    """Memory of the host, a little more than asked for so that it can be aligned."""
    try:
        return np.empty(nbytes + ALIGNMENT, np.uint8)
    except (MemoryError, ValueError):  # ValueError: more than an address can say
        return None


class HostMemory:
    """Memory, streams and events of a device that uses the host's memory: what cpu and sim inherit.

    A GPU backend has the same methods. `allocate` takes the kinds "device" (the default), "pinned",
    "mapped" and "managed"; the last three are `on_host` everywhere.
    """

    @functools.cached_property
    def host_pool(self) -> Pool:
        return Pool(
            getattr(self, "name", "host"),
            request=_request,
            free_memory=lambda: HostMemory.memory_info(self, "cpu")[0],
            limit=lambda: settings.memory_limit,
            keep=min(KEPT, HostMemory.memory_info(self, "cpu")[1] // 16),
        )

    def allocate(
        self, nbytes: int, device: str, kind: str = "device", stream: Stream | None = None
    ) -> Storage:
        owner = self.host_pool.allocate(nbytes)
        address = owner.address.__array_interface__["data"][0]
        address += -address % ALIGNMENT
        return Storage(device, address, nbytes, owner, True)

    def memory_statistics(self, device: str) -> Mapping[str, int]:
        """Bytes in use, kept for reuse, the most ever in use; counts of requests."""
        return self.host_pool.statistics()

    def empty_cache(self, device: str) -> None:
        """Give memory that no array holds back to the device."""
        self.host_pool.empty()

    def map(self, ary: np.ndarray[Any, Any], device: str) -> DeviceArray:
        """A device array at the memory of a NumPy array."""
        if not ary.flags.writeable:
            raise ValueError("a read-only NumPy array cannot be mapped: kernels could write it")
        low, high = np.lib.array_utils.byte_bounds(ary)
        storage = Storage(device, low, high - low, ary, True)
        offset = ary.__array_interface__["data"][0] - low
        return DeviceArray(self, storage, ary.shape, ary.dtype, ary.strides, offset)

    def read(self, storage: Storage, offset: int, out: Bytes, stream: Stream | None) -> None:
        """Copy from the device to the host; done when it returns."""
        out[:] = _bytes_at(storage, offset, out.size)

    def write(self, storage: Storage, offset: int, data: Bytes, stream: Stream | None) -> None:
        """Copy from the host to the device; `data` may be changed when it returns."""
        _bytes_at(storage, offset, data.size)[:] = data

    def stream(self, device: str) -> Stream:
        return Stream(device)

    def event(self, device: str, timing: bool = True) -> Event:
        return Event(device, timing)

    def synchronize(self, device: str) -> None:
        """Wait until all work of the device is done: at once, as launches return when they are."""

    def memory_info(self, device: str) -> tuple[int, int]:
        """Free and all bytes of the device."""
        page = os.sysconf("SC_PAGE_SIZE")
        return os.sysconf("SC_AVPHYS_PAGES") * page, os.sysconf("SC_PHYS_PAGES") * page


Bytes = np.ndarray[Any, np.dtype[np.uint8]]


class _Interface:
    """Makes NumPy see memory at an address, and keep its owner."""

    def __init__(self, address: int, shape: Any, dtype: Any, strides: Any, owner: Any) -> None:
        self.owner = owner
        self.__array_interface__ = {
            "version": 3,
            "data": (address, False),
            "shape": shape,
            "typestr": dtype.str if dtype.names is None else f"|V{dtype.itemsize}",
            "strides": strides,
        }


def _at(
    address: int, shape: tuple[int, ...], dtype: np.dtype[Any], strides: Any, owner: Any
) -> np.ndarray[Any, Any]:
    raw = np.dtype((np.void, dtype.itemsize))  # NumPy's own description of foreign dtypes is lost
    plain = dtype.names is None and dtype.kind in "biufc"
    found = np.asarray(_Interface(address, shape, dtype if plain else raw, strides, owner))
    if plain:
        return found
    as_dtype: np.ndarray[Any, Any] = found.view(dtype)
    return as_dtype


def _bytes_at(storage: Storage, offset: int, nbytes: int) -> Bytes:
    return _at(storage.address + offset, (nbytes,), np.dtype(np.uint8), None, storage.owner)


def contiguous_strides(shape: Sequence[int], itemsize: int, order: str = "C") -> tuple[int, ...]:
    """Strides in bytes.

    >>> contiguous_strides((2, 3), 4), contiguous_strides((2, 3), 4, "F")
    ((12, 4), (4, 8))
    """
    return _strides(tuple(shape), itemsize, order)


@functools.lru_cache(maxsize=4096)  # views ask for the same few again and again
def _strides(shape: tuple[int, ...], itemsize: int, order: str) -> tuple[int, ...]:
    out, step = [], itemsize
    for n in reversed(shape) if order == "C" else shape:
        out.append(step)
        step *= max(int(n), 1)
    return tuple(out[::-1] if order == "C" else out)


def _resolved(shape: Sequence[Any], size: int) -> tuple[int, ...]:
    """The new shape of `size` elements, with -1 replaced."""
    out = [operator.index(n) for n in shape]
    if out.count(-1) == 1:
        others = -math.prod(out)
        out[out.index(-1)] = size // others if others and size % others == 0 else -1
    if math.prod(out) != size or any(n < 0 for n in out):
        raise ValueError(f"{size} elements cannot have the shape {tuple(shape)}")
    return tuple(out)


class DeviceArray:
    """An array in the memory of a device, what `ruda.to_device` returns. Strides are in bytes.

    It is an argument of kernels; `copy_to_host` brings it back. Slices, `reshape`, `T` and `view`
    share its memory. On `cpu` and `sim` NumPy reads it in place.

    >>> import numpy as np, ruda
    >>> d = ruda.to_device(np.arange(6, dtype=np.float32))
    >>> d.reshape(2, 3)[:, 1]
    DeviceArray([1., 4.], dtype=float32, device='cpu')
    >>> d[2] = 7; d.copy_to_host()
    array([0., 1., 7., 3., 4., 5.], dtype=float32)
    """

    __slots__ = (
        "__ruda_array_type__", "__ruda_device__", "__ruda_kind__", "__weakref__", "_backend",
        "_seen", "_shadow", "dtype", "offset", "pointer", "shape", "storage", "strides",
    )  # fmt: skip
    __array_priority__ = 1.0

    def __init__(
        self,
        backend: Any,
        storage: Storage,
        shape: tuple[int, ...],
        dtype: np.dtype[Any],
        strides: tuple[int, ...] | None = None,
        offset: int = 0,
    ) -> None:
        self._backend, self.storage = backend, storage
        self.shape, self.dtype, self.offset = shape, dtype, offset
        self.strides = contiguous_strides(shape, dtype.itemsize) if strides is None else strides
        self.pointer = storage.address + offset  # of the first element, where the device sees it
        self.__ruda_device__ = storage.device
        self.__ruda_array_type__: Any = None  # filled in by jit.types
        self.__ruda_kind__: Any = None  # filled in by launchers: one object a type and device
        if storage.owner is None:
            raise freed(storage.device)
        storage.seen_by(self)

    def free(self) -> None:
        """Give the memory back now, not when the last reference dies: of views of it, too.

        Whoever uses the array afterwards gets a DeviceError. What another library or NumPy sees
        of the memory stays good: it goes back when they let go of it, too.

        >>> import ruda
        >>> d = ruda.to_device([1, 2, 3])
        >>> d.free()
        >>> d.copy_to_host()
        Traceback (most recent call last):
        ...
        ruda.errors.DeviceError: this array of cpu was freed: its memory may be another's by now
        """
        if self.storage.owner is None:
            raise DeviceError(f"this array of {self.device} was freed already")
        for ref in self.storage.arrays:
            array = ref()
            if array is not None:
                # Without these slots every use ends in __getattr__, also that of fast launchers.
                del array.pointer
                with contextlib.suppress(AttributeError):
                    del array._shadow
                array.__ruda_array_type__ = array.__ruda_kind__ = None
        self.storage.arrays.clear()
        self.storage.owner = None

    @classmethod
    def allocate(
        cls,
        backend: Any,
        device: str,
        shape: tuple[int, ...],
        dtype: np.dtype[Any],
        order: str = "C",
        kind: str = "device",
    ) -> DeviceArray:
        """A new array without gaps, with undefined elements."""
        check_size(shape)
        storage = backend.allocate(math.prod(shape) * dtype.itemsize, device, kind)
        return cls(backend, storage, shape, dtype, contiguous_strides(shape, dtype.itemsize, order))

    # -- properties --

    @property
    def device(self) -> str:
        """Name of the device: "cpu", "cuda:0"."""
        return self.storage.device

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        if self.storage.owner is None:
            raise freed(self.device)
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self._shadow.nbytes

    @property
    def itemsize(self) -> int:
        return self.dtype.itemsize

    def is_c_contiguous(self) -> bool:
        """Whether the elements lie in C order without gaps."""
        plain = contiguous_strides(self.shape, self.dtype.itemsize)
        if self.strides == plain and not self.storage.is_freed:
            return True
        return self._shadow.flags.c_contiguous  # axes of length 1 have any stride; or it is freed

    def is_f_contiguous(self) -> bool:
        """Whether the elements lie in Fortran order without gaps."""
        return self._shadow.flags.f_contiguous

    @property
    def is_aligned(self) -> bool:
        """Whether each element lies at a multiple of its size."""
        if not self.pointer % self.dtype.itemsize and self.is_c_contiguous():
            return True
        return self._shadow.flags.aligned

    # -- views --

    def _view(self, view: np.ndarray[Any, Any]) -> DeviceArray:
        """The array for a view of the shadow; an empty one lies anywhere, so at the start."""
        offset = view.__array_interface__["data"][0] - self.storage.address if view.size else 0
        return DeviceArray(
            self._backend, self.storage, view.shape, view.dtype, view.strides, offset
        )

    @property
    def T(self) -> DeviceArray:
        """The transposed view."""
        return self._view(self._shadow.T)

    def transpose(self, axes: Sequence[int] | None = None) -> DeviceArray:
        """A view with the axes in another order, reversed unless given."""
        return self._view(self._shadow.transpose(axes))

    def reshape(self, *shape: Any, order: str = "C") -> DeviceArray:
        """A view with another shape, of an array contiguous in `order`; one axis may be -1."""
        if len(shape) == 1 and isinstance(shape[0], (tuple, list)):
            shape = tuple(shape[0])
        if not (self.is_c_contiguous() if order == "C" else self.is_f_contiguous()):
            raise ValueError(
                f"only an array that is contiguous in {order} order can be reshaped without a "
                "copy: `.copy()` first"
            )
        new = _resolved(shape, self.size)
        strides = contiguous_strides(new, self.dtype.itemsize, order)
        return DeviceArray(self._backend, self.storage, new, self.dtype, strides, self.offset)

    def ravel(self, order: str = "C") -> DeviceArray:
        """The elements along one axis; a view, so the array must be contiguous in `order`."""
        return self.reshape(self.size, order=order)

    def squeeze(self, axis: Any = None, stream: Any = None) -> DeviceArray:
        """A view without the axes of length 1."""
        return self._view(self._shadow.squeeze(axis))

    def view(self, dtype: Any) -> DeviceArray:
        """The same bytes at another dtype."""
        return self._view(self._shadow.view(numpy_dtype(dtype)))

    def __getitem__(self, key: Any) -> Any:
        """A view; with one index an axis the element itself, unless it is a record."""
        found = self._view(self._select(key))
        keys = key if isinstance(key, tuple) else (key,)
        if found.ndim or found.dtype.names or any(k is Ellipsis or type(k) is str for k in keys):
            return found
        return found.copy_to_host()[()]

    def _select(self, key: Any) -> np.ndarray[Any, Any]:
        keys = key if isinstance(key, tuple) else (key,)
        for k in keys:
            if not (k is None or k is Ellipsis or isinstance(k, (int, np.integer, slice, str))) or (
                isinstance(k, bool)
            ):
                raise IndexError(
                    f"a DeviceArray takes integers and slices, not {type(k).__name__}; "
                    "index on the host, or in a kernel"
                )
        if len(keys) == 1 and isinstance(keys[0], str):
            return self._shadow[keys[0]]
        if not any(k is Ellipsis for k in keys):
            keys = (*keys, ...)  # so that NumPy gives a view even of one element
        found: np.ndarray[Any, Any] = self._shadow[keys]
        return found

    def __setitem__(self, key: Any, value: Any) -> None:
        target = self._view(self._select(key))
        self._writable()
        data = value.copy_to_host() if isinstance(value, DeviceArray) else np.asarray(value)
        if target.storage.on_host:
            target._shadow[...] = data
        else:
            whole = np.empty(target.shape, target.dtype)
            whole[...] = data
            target.copy_to_device(whole)

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of a DeviceArray without axes")
        return self.shape[0]

    def __iter__(self) -> Iterator[Any]:
        return (self[i] for i in range(len(self)))

    # -- copies --

    def copy_to_host(
        self, ary: np.ndarray[Any, Any] | None = None, stream: Stream | None = None
    ) -> np.ndarray[Any, Any]:
        """The elements as a NumPy array: `ary` if given (same shape and dtype), else a new one."""
        if ary is not None:
            if not isinstance(ary, np.ndarray):
                raise TypeError(f"copy_to_host fills a NumPy array, not {type(ary).__name__}")
            self._compatible(ary, "copied to")
        if self.storage.on_host:
            if ary is None:
                return np.array(self._shadow, order="K", subok=False)
            ary[...] = self._shadow.reshape(ary.shape)
            return ary
        order: Any = "C" if self.is_c_contiguous() else "F" if self.is_f_contiguous() else None
        if order is not None and ary is None:
            ary = np.empty(self.shape, self.dtype, order)
            self._fill(ary, stream)
        elif order == "C" and ary is not None and ary.flags.c_contiguous and ary.flags.writeable:
            self._fill(ary, stream)
        elif ary is None:
            ary = np.array(self._read(stream), order="K")
        else:
            ary[...] = self._read(stream).reshape(ary.shape)
        return ary

    def _fill(self, out: np.ndarray[Any, Any], stream: Stream | None) -> None:
        """The bytes of a contiguous array into one of the same order, without a copy between."""
        if out.size:
            raw = _at(
                out.__array_interface__["data"][0], (out.nbytes,), np.dtype(np.uint8), None, out
            )
            with observed("copy", "to the host", self.device, stream, out.nbytes):
                self._backend.read(self.storage, self.offset, raw, stream)

    def _read(self, stream: Stream | None) -> np.ndarray[Any, Any]:
        """The bytes from the first to the last element, seen as this array."""
        low, nbytes = self._span()
        out = np.empty(nbytes, np.uint8)
        if nbytes:
            with observed("copy", "to the host", self.device, stream, nbytes):
                self._backend.read(self.storage, low, out, stream)
        return np.ndarray(self.shape, self.dtype, out, self.offset - low, self.strides)

    def _span(self) -> tuple[int, int]:
        """Offset of the lowest byte, and bytes up to the highest one."""
        if not self.size:
            return self.offset, 0
        ways = [(n - 1) * s for n, s in zip(self.shape, self.strides, strict=True)]
        low = self.offset + sum(min(way, 0) for way in ways)
        return low, sum(map(abs, ways)) + self.dtype.itemsize

    def copy_to_device(self, ary: Any, stream: Stream | None = None) -> None:
        """Take the elements of a host or device array of the same shape and dtype."""
        source = ary if isinstance(ary, DeviceArray) else np.asarray(ary)
        self._compatible(source, "copied from")
        self._writable()
        data = ary.copy_to_host(stream=stream) if isinstance(ary, DeviceArray) else source
        if self.storage.on_host:
            self._shadow[...] = data.reshape(self.shape)
            return
        if not (self.is_c_contiguous() or self.is_f_contiguous()):
            # The gaps hold other elements: read them, and write all back.
            whole = self._read(stream)
            whole[...] = data.reshape(self.shape)
            low, nbytes = self._span()
            raw = _at(
                whole.__array_interface__["data"][0] - (self.offset - low), (nbytes,),
                np.dtype(np.uint8), None, whole,
            )  # fmt: skip
        else:
            order: Any = "C" if self.is_c_contiguous() else "F"
            whole = np.asarray(data.reshape(self.shape), order=order)
            low = self.offset
            raw = whole.ravel(order="K").view(np.uint8)
        if raw.size:
            with observed("copy", "to the device", self.device, stream, raw.size):
                self._backend.write(self.storage, low, raw, stream)

    def _writable(self) -> None:
        if self.storage.readonly:
            raise ValueError("this array is another library's, and read-only")

    def _compatible(self, other: Any, verb: str) -> None:
        squeezed = [n for n in other.shape if n != 1]
        if squeezed != [n for n in self.shape if n != 1]:
            raise ValueError(
                f"an array of shape {self.shape} cannot be {verb} one of shape {other.shape}"
            )
        if other.dtype != self.dtype:
            raise TypeError(
                f"an array of {self.dtype} cannot be {verb} one of {other.dtype}: convert on the "
                "host, with `astype`"
            )

    def copy(self) -> DeviceArray:
        """A contiguous copy on the same device."""
        order = "F" if self.is_f_contiguous() and not self.is_c_contiguous() else "C"
        new = self.allocate(self._backend, self.device, self.shape, self.dtype, order)
        new.copy_to_device(self)
        return new

    def item(self) -> Any:
        """The only element, as a Python number."""
        if self.size != 1:
            raise ValueError(f"an array of {self.size} elements is not one number")
        return self.copy_to_host().item()

    def tolist(self) -> Any:
        return self.copy_to_host().tolist()

    # -- other libraries --

    @property
    def __ruda_host__(self) -> np.ndarray[Any, Any]:
        """The NumPy array at the same memory; AttributeError where the host cannot reach it."""
        if not self.storage.on_host:
            raise AttributeError(f"the host cannot reach the memory of {self.device}")
        return self._shadow

    @property
    def __array_interface__(self) -> Any:
        found = self.__ruda_host__.__array_interface__
        self._seen = self.storage.owner  # NumPy keeps this array alive, and `free` that memory
        return found

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        if not self.storage.on_host and copy is False:
            raise ValueError(f"the host cannot see an array of {self.device} without a copy")
        host = self._shadow if self.storage.on_host else self.copy_to_host()
        return np.array(host, dtype, copy=copy)

    @property
    def __cuda_array_interface__(self) -> Any:
        if not self.device.startswith("cuda"):
            raise AttributeError(f"an array of {self.device} has no __cuda_array_interface__")
        from ruda.backends import interop

        return interop.cuda_array_interface(self)

    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        """A DLPack capsule: the memory itself, for any library that takes it."""
        from ruda.backends import interop

        return interop.export(self, stream, max_version, dl_device, copy)

    def __dlpack_device__(self) -> tuple[int, int]:
        from ruda.backends import interop

        return interop.dlpack_device(self)

    def __reduce__(self) -> Any:
        return _rebuild_array, (self.copy_to_host(), self.device)

    def __repr__(self) -> str:
        after = f", dtype={self.dtype}, device='{self.device}')"
        if self.storage.is_freed:
            return f"DeviceArray(shape={self.shape}{after[:-1]}, freed)"
        if not self.storage.on_host and self.size > 1000:
            return f"DeviceArray(shape={self.shape}{after}"
        head = "DeviceArray("
        text = np.array2string(self.copy_to_host(), separator=", ", prefix=head)
        if not self.size and self.shape != (0,):
            text += f", shape={self.shape}"
        return f"{head}{text}{after}"

    def __getattr__(self, name: str) -> Any:
        if name in ("_shadow", "pointer"):
            storage = self.storage
            if name == "pointer" or storage.owner is None:
                raise freed(self.device)
            # Where the host cannot reach the memory, this only computes shapes and offsets.
            self._shadow = _at(
                storage.address + self.offset, self.shape, self.dtype, self.strides, storage.owner
            )
            if storage.readonly:
                self._shadow.flags.writeable = False
            return self._shadow
        raise missing_attribute(self, "DeviceNDArray", name)


def another(like: DeviceArray, pool: Pool) -> Callable[[], DeviceArray]:
    """A function that allocates arrays which are in all as a given one that fills its memory.

    A quarter of the time of an allocation: it is done for every result of a small op.
    """
    kind, backend, ref = type(like), like._backend, weakref.ref
    nbytes = like.storage.nbytes
    take, size = pool.take, bucket(nbytes)
    shape, dtype, strides, device = like.shape, like.dtype, like.strides, like.device
    array_type, launch_kind = like.__ruda_array_type__, like.__ruda_kind__
    new: Any = object.__new__

    def make() -> DeviceArray:
        block = take(size, nbytes)  # then one assignment after the other: several build a tuple
        storage: Storage = new(Storage)
        out: DeviceArray = new(kind)
        storage.owner = block
        storage.device = device
        storage.address = out.pointer = block.address
        storage.nbytes = nbytes
        storage.on_host = storage.readonly = False
        storage.arrays = [ref(out)]
        out._backend = backend
        out.storage = storage
        out.shape = shape
        out.dtype = dtype
        out.strides = strides
        out.offset = 0
        out.__ruda_device__ = device
        out.__ruda_array_type__ = array_type
        out.__ruda_kind__ = launch_kind
        return out

    return make


def offset_of(cls: type, name: str) -> int:
    """The byte of an object at which one of its slots lies: for native code."""
    import ctypes

    bare: Any = type(cls.__name__, (), {"__slots__": vars(cls)["__slots__"]})  # without `__del__`
    assert bare.__basicsize__ == cls.__basicsize__
    holder, content = bare(), object()
    setattr(holder, name, content)
    words = (ctypes.c_int64 * (cls.__basicsize__ // 8)).from_address(id(holder))
    return 8 * list(words).index(id(content), 2)  # after its count of references, and its type


def _refuse_arithmetic() -> None:
    """A device array has no operators, also beside NumPy's arrays, which it must not become."""

    def refuse(self: Any, *others: Any) -> Any:
        raise TypeError(
            "a DeviceArray is memory, and has no arithmetic: `ruda.asarray(array)` computes on its "
            "device, `array.copy_to_host()` gives NumPy's"
        )

    for name in ("add", "sub", "mul", "matmul", "truediv", "floordiv", "mod", "pow", "and", "or",
                 "xor", "lshift", "rshift"):  # fmt: skip
        for method in (f"__{name}__", f"__r{name}__", f"__i{name}__"):
            setattr(DeviceArray, method, refuse)
    for name in ("lt", "le", "gt", "ge", "neg", "abs", "invert"):
        setattr(DeviceArray, f"__{name}__", refuse)


_refuse_arithmetic()


def freed(device: str) -> DeviceError:
    return DeviceError(f"this array of {device} was freed: its memory may be another's by now")


def observed(
    kind: str, name: str, device: str, stream: Stream | None = None, nbytes: int = 0
) -> contextlib.AbstractContextManager[Any]:
    """A region that running profiles note."""
    if not observers:
        return contextlib.nullcontext()
    stack = contextlib.ExitStack()
    for observer in tuple(observers):
        stack.enter_context(observer.activity(kind, name, device, stream, nbytes))
    return stack


# ---- where the user asked for it -----------------------------------------------------------------


class Asked(NamedTuple):
    """A launch, and the instruction of the program that asked for it: quick to note."""

    name: str
    code: CodeType
    at: int

    @property
    def line(self) -> int:
        for start, end, line in self.code.co_lines():
            if start <= self.at < end and line is not None:
                return line
        return self.code.co_firstlineno

    @property
    def place(self) -> str:
        return f"{self.code.co_filename}, line {self.line}"

    def __str__(self) -> str:
        return f"`{self.name}` launched at {self.place}"


def asked(name: str) -> tuple[str, CodeType, int]:
    """What `Asked` is made of, for a launch that is going on: the first frame outside of ruda."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("ruda."):
        frame = frame.f_back
    return name, frame.f_code, frame.f_lasti


def warn_user(text: str) -> None:
    """A LaunchWarning at the user's line: that of the first frame outside of ruda."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("ruda."):
        frame, level = frame.f_back, level + 1
    warnings.warn(text, LaunchWarning, stacklevel=level)


_moved = False


def tell_moved(kernel: str, nbytes: int) -> None:
    """Warn, once, that a launch on NumPy arrays copied them: at the user's line."""
    global _moved
    if _moved:
        return
    _moved = True
    warn_user(
        f"launches on NumPy arrays copy them to the device and back: `{kernel}` moved "
        f"{nbytes:,} bytes; ruda.to_device keeps them there (said once)"
    )


def _rebuild_array(data: np.ndarray[Any, Any], device: str) -> DeviceArray:
    from ruda import backends

    backend: Any = backends.get(device)
    order = "F" if data.flags.f_contiguous and not data.flags.c_contiguous else "C"
    found = DeviceArray.allocate(backend, device, data.shape, data.dtype, order)
    found.copy_to_device(data)
    return found


def numpy_dtype(dtype: Any) -> np.dtype[Any]:
    """The NumPy dtype for one of ruda's, NumPy's or numba's, a record's too; a name such as "f32".

    >>> numpy_dtype("f32"), numpy_dtype([("x", "f4")])
    (dtype('float32'), dtype([('x', '<f4')]))
    """
    if isinstance(dtype, DType):
        return dtype.numpy
    if isinstance(dtype, list) or (isinstance(dtype, np.dtype) and dtype.names is not None):
        return np.dtype(dtype)
    return as_dtype(dtype).numpy


def missing_attribute(owner: object, group: str, name: str) -> AttributeError:
    """The error for an attribute that is not there: with a hint where numba-cuda has it."""
    text = ""
    if not name.startswith("_"):
        from ruda.porting import rows

        row = next((r for r in rows() if r.name == f"{group}.{name}"), None)
        text = "" if row is None else f": {row.text}"
        if row is not None and row.ruda:
            text = f", but `{row.ruda}`{text if row.text else ''}"
    # With name and object, Python itself adds "Did you mean" to a traceback.
    message = f"{type(owner).__name__} has no attribute {name!r}{text}"
    return AttributeError(message, name=name, obj=None if text else owner)


# ---- streams and events --------------------------------------------------------------------------


class Stream:
    """A queue of work of a device. What is given to it runs in order.

    On `cpu` and `sim` work is done when the call that gives it returns, so there is nothing to
    wait for.
    """

    def __init__(self, device: str) -> None:
        self.device = device

    def synchronize(self) -> None:
        """Wait until the work given to the stream is done."""

    @contextlib.contextmanager
    def auto_synchronize(self) -> Iterator[Stream]:
        """`with stream.auto_synchronize():` waits at the end of the block."""
        yield self
        self.synchronize()

    def add_callback(self, callback: Callable[[Stream, int, Any], Any], arg: Any = None) -> None:
        """Call `callback(stream, status, arg)` when the work given so far is done; status is 0."""
        callback(self, 0, arg)

    def async_done(self) -> asyncio.Future[None]:
        """Something to `await` until the work given so far is done."""
        import asyncio

        future = asyncio.get_running_loop().create_future()
        future.set_result(None)
        return future

    def __repr__(self) -> str:
        return f"<ruda.Stream of {self.device}>"

    def __getattr__(self, name: str) -> Any:
        raise missing_attribute(self, "Stream", name)


class Event:
    """A moment in a stream: `record` notes it, `elapsed_time` gives milliseconds between two.

    >>> import ruda
    >>> start, end = ruda.event(), ruda.event()
    >>> start.record(); end.record(); start.elapsed_time(end) >= 0
    True
    """

    def __init__(self, device: str, timing: bool = True) -> None:
        self.device, self.timing = device, timing
        self._time: int | None = None

    def record(self, stream: Stream | None = None) -> None:
        """Note when the work given so far to the stream is done."""
        self._time = time.perf_counter_ns()

    def query(self) -> bool:
        """Whether the work before the event is done; also if it was never recorded, as in CUDA."""
        return True

    def synchronize(self) -> None:
        """Wait until the work before the event is done."""

    def wait(self, stream: Stream | None = None) -> None:
        """Let the stream wait for the event."""

    def elapsed_time(self, end: Event) -> float:
        """Milliseconds from this event to another."""
        for event in (self, end):
            if not isinstance(event, Event):
                raise TypeError(f"the time between two events, not {type(event).__name__}")
            if not event.timing:
                raise DeviceError("an event made with `timing=False` has no time")
            if event._time is None:
                raise DeviceError("an event has a time only after `record`")
        assert self._time is not None and end._time is not None
        return (end._time - self._time) / 1e6

    def __repr__(self) -> str:
        return f"<ruda.Event of {self.device}>"

    def __getattr__(self, name: str) -> Any:
        raise missing_attribute(self, "Event", name)
