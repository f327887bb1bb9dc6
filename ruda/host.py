"""The host's side of numba-cuda's vocabulary: arrays on devices, streams, events, choice of device.

Everything goes to the current device, the setting `device`; arrays know their own. What a device
does stands in its backend (`backends.base.HostMemory` says which methods those are).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ruda import backends
from ruda.backends.base import (
    DeviceArray,
    DeviceInfo,
    Event,
    Stream,
    check_size,
    missing_attribute,
    numpy_dtype,
)
from ruda.dtypes import default_float
from ruda.errors import DeviceError, DeviceNotFoundError, LaunchTypeError
from ruda.settings import config, settings

# ---- arrays ----


def _shape(shape: Any) -> tuple[int, ...]:
    import operator

    try:
        found = tuple(operator.index(n) for n in np.atleast_1d(np.asarray(shape, object)))
    except TypeError:
        raise TypeError(f"a shape is an integer or a tuple of integers, not {shape!r}") from None
    if any(n < 0 for n in found):
        raise ValueError(f"the shape {found} has a negative extent")
    return () if isinstance(shape, (tuple, list)) and not shape else found


def _order(order: str) -> str:
    if order not in ("C", "F"):
        raise ValueError(f"order={order!r}: expected 'C' or 'F'")
    return order


def _dtype(dtype: Any) -> np.dtype[Any]:
    from ruda.jit.types import element_type

    found = default_float().numpy if dtype is None else numpy_dtype(dtype)
    element_type(found)  # DTypeError for what no kernel could take
    return found


def _allocate(shape: Any, dtype: Any, order: str, kind: str, strides: Any = None) -> DeviceArray:
    shape, dtype = _shape(shape), _dtype(dtype)
    device = backends.current()
    backend: Any = backends.get(device)
    name = backends.find(device).name
    if strides is None:
        return DeviceArray.allocate(backend, name, shape, dtype, _order(order), kind)
    if len(strides) != len(shape) or any(s < 0 for s in strides):
        raise ValueError(f"strides {strides} do not go with the shape {shape}")
    nbytes = dtype.itemsize + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))
    if 0 in shape:
        nbytes = 0
    check_size((nbytes,))
    storage = backend.allocate(nbytes, name, kind)
    return DeviceArray(backend, storage, shape, dtype, tuple(strides))


def device_array(
    shape: Any,
    dtype: Any = None,
    strides: Sequence[int] | None = None,
    order: str = "C",
    stream: Stream | int | None = None,
) -> DeviceArray:
    """A new array on the current device, with undefined elements. The dtype is the default float.

    >>> import ruda
    >>> ruda.device_array((2, 3)).dtype
    dtype('float32')
    """
    return _allocate(shape, dtype, order, "device", strides)


def _form(ary: Any) -> tuple[Any, Any, str]:
    """Shape, dtype and order of an array, of NumPy or on a device."""
    if isinstance(ary, DeviceArray):
        fortran = ary.is_f_contiguous() and not ary.is_c_contiguous()
    else:
        ary = np.asarray(ary)
        fortran = ary.flags.f_contiguous and not ary.flags.c_contiguous
    return ary.shape, ary.dtype, "F" if fortran else "C"


def device_array_like(ary: Any, stream: Stream | int | None = None) -> DeviceArray:
    """A new array on the current device with the shape, dtype and order of another."""
    return _allocate(*_form(ary), "device")


def to_device(
    obj: Any, stream: Stream | int | None = None, copy: bool = True, to: DeviceArray | None = None
) -> DeviceArray:
    """Copy an array, a number or a list to the current device, or into the device array `to`.

    An array that is on the device already is returned as it is. Python numbers become the default
    float, as everywhere. Objects with `__dlpack__` or `__array__` are welcome.

    >>> import ruda
    >>> ruda.to_device([1, 2.5])
    DeviceArray([1. , 2.5], dtype=float32, device='cpu')
    """
    if isinstance(obj, DeviceArray):
        if to is None and obj.device == backends.find(backends.current()).name:
            return obj
        source: Any = obj
    else:
        source = _host_array(obj)
    if to is None:
        to = _allocate(*_form(source), "device")
    elif not isinstance(to, DeviceArray):
        raise TypeError(f"`to` is a DeviceArray, not {type(to).__name__}")
    if copy:
        to.copy_to_device(source, stream=_stream(stream))
    return to


def as_cuda_array(obj: Any, sync: bool = True) -> DeviceArray:
    """The array of another library as memory of ruda's, without a copy, wherever it is.

    What has `__dlpack__`, `__cuda_array_interface__` or `__array_interface__` is taken: arrays of
    NumPy, PyTorch, JAX, CuPy, ... Kernels take these themselves, too; what they write is seen by
    both. Work waits for the other library's stream whatever `sync` says.

    >>> import numpy as np, ruda
    >>> x = np.arange(3.0)
    >>> d = ruda.as_cuda_array(x)
    >>> d[1] = 7; x
    array([0., 7., 2.])
    """
    from ruda.backends import interop

    return interop.from_dlpack(obj)


def _host_array(obj: Any) -> np.ndarray[Any, Any]:
    if isinstance(obj, (np.ndarray, np.generic)):
        return np.asarray(obj)
    if hasattr(obj, "__cuda_array_interface__") and not hasattr(obj, "__array__"):
        raise DeviceError(
            f"{type(obj).__name__} lives on a CUDA device, which {backends.current()} cannot read: "
            "copy it to the host first"
        )
    if hasattr(obj, "__dlpack__") and not hasattr(obj, "__array__"):
        return np.from_dlpack(obj)
    found = np.asarray(obj)
    if not hasattr(obj, "dtype") and found.dtype.kind in "fc":
        wide = np.complex128 if default_float().bits == 64 else np.complex64
        found = found.astype(wide if found.dtype.kind == "c" else default_float().numpy)
    return found


def _host_memory(shape: Any, dtype: Any, order: str, kind: str) -> np.ndarray[Any, Any]:
    return _allocate(shape, dtype, order, kind).__ruda_host__


def pinned_array(
    shape: Any, dtype: Any = None, strides: Sequence[int] | None = None, order: str = "C"
) -> np.ndarray[Any, Any]:
    """A NumPy array in memory that the device copies from and to fast. On the CPU: aligned memory.

    >>> import ruda
    >>> ruda.pinned_array(3, ruda.int32).ctypes.data % 64
    0
    """
    return _allocate(shape, dtype, order, "pinned", strides).__ruda_host__


def pinned_array_like(ary: Any) -> np.ndarray[Any, Any]:
    """A `pinned_array` with the shape, dtype and order of another array."""
    return _host_memory(*_form(ary), "pinned")


def mapped_array(
    shape: Any,
    dtype: Any = None,
    strides: Sequence[int] | None = None,
    order: str = "C",
    stream: Stream | int | None = None,
    portable: bool = False,
    wc: bool = False,
) -> np.ndarray[Any, Any]:
    """A NumPy array in host memory that kernels read and write in place."""
    return _allocate(shape, dtype, order, "mapped", strides).__ruda_host__


def mapped_array_like(
    ary: Any, stream: Stream | int | None = None, portable: bool = False, wc: bool = False
) -> np.ndarray[Any, Any]:
    """A `mapped_array` with the shape, dtype and order of another array."""
    return _host_memory(*_form(ary), "mapped")


def managed_array(
    shape: Any,
    dtype: Any = None,
    strides: Sequence[int] | None = None,
    order: str = "C",
    stream: Stream | int | None = None,
    attach_global: bool = True,
) -> np.ndarray[Any, Any]:
    """A NumPy array whose memory moves to and from the device by itself; the host's on the CPU."""
    return _allocate(shape, dtype, order, "managed", strides).__ruda_host__


@contextlib.contextmanager
def pinned(*arylist: Any) -> Iterator[None]:
    """Pin the memory of NumPy arrays for a region, so that copies are fast; on the CPU they are."""
    _check_arrays("pinned", arylist)
    with contextlib.ExitStack() as stack:
        pin: Any = getattr(backends.get(backends.current()), "pin", None)
        for ary in arylist if pin is not None else ():
            stack.enter_context(pin(ary))
        yield


@contextlib.contextmanager
def mapped(*arylist: Any, **options: Any) -> Iterator[Any]:
    """Device arrays at the memory of NumPy arrays, for a region: one, or a list for several."""
    _check_arrays("mapped", arylist)
    device = backends.current()
    backend: Any = backends.get(device)
    name = backends.find(device).name
    if not hasattr(backend, "map"):
        raise DeviceError(f"{device} cannot use the memory of NumPy arrays: use mapped_array")
    found = [backend.map(ary, name) for ary in arylist]
    yield found[0] if len(found) == 1 else found


def _check_arrays(name: str, arrays: Sequence[Any]) -> None:
    for ary in arrays:
        if not isinstance(ary, np.ndarray):
            raise TypeError(f"`{name}` takes NumPy arrays, not {type(ary).__name__}")


class ArgumentHint:
    """How an array argument of a launch travels; see `In`, `Out` and `InOut`."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        if not isinstance(value, (np.ndarray, DeviceArray)):
            raise LaunchTypeError(
                f"{type(self).__name__} takes an array, not {type(value).__name__}"
            )
        self.value = value

    @property
    def __ruda_argument__(self) -> Any:
        return self.value


class In(ArgumentHint):
    """An array that the kernel only reads: nothing comes back, and to write it is an error."""

    __slots__ = ()

    @property
    def __ruda_argument__(self) -> Any:
        if not isinstance(self.value, np.ndarray):
            return self.value
        view = self.value.view()
        view.flags.writeable = False
        return view


class Out(ArgumentHint):
    """An array that the kernel only writes: nothing needs to go to the device."""

    __slots__ = ()


class InOut(ArgumentHint):
    """An array that the kernel reads and writes, as without a hint."""

    __slots__ = ()


# ---- streams and events ----


def _stream(stream: Any) -> Stream | None:
    if stream is None or (isinstance(stream, int) and stream == 0):
        return None
    if not isinstance(stream, Stream):
        raise TypeError(f"a stream comes from ruda.stream(), not {type(stream).__name__}")
    return stream


def stream() -> Stream:
    """A new queue of work on the current device.

    >>> import ruda
    >>> s = ruda.stream()
    >>> with s.auto_synchronize():
    ...     d = ruda.to_device([1, 2, 3], stream=s)
    """
    device = backends.current()
    return backends.get(device).stream(backends.find(device).name)  # type: ignore[attr-defined,no-any-return]


def default_stream() -> Stream:
    """The stream of launches and copies that name none."""
    device = backends.find(backends.current()).name
    make: Any = getattr(backends.get(device), "default_stream", Stream)
    return make(device)  # type: ignore[no-any-return]


def external_stream(ptr: int) -> Stream:
    """The stream of another library, by its address, on a CUDA device."""
    device = backends.current()
    external = getattr(backends.get(device), "external_stream", None)
    if external is None:
        raise DeviceError(f"{device} has no streams of other libraries: use ruda.stream()")
    return external(ptr, device)  # type: ignore[no-any-return]


def event(timing: bool = True) -> Event:
    """A new event of the current device: see `Event`."""
    device = backends.current()
    return backends.get(device).event(backends.find(device).name, timing)  # type: ignore[attr-defined,no-any-return]


def event_elapsed_time(evtstart: Event, evtend: Event) -> float:
    """Milliseconds between two recorded events."""
    if not isinstance(evtstart, Event):
        raise TypeError(f"the time between two events, not {type(evtstart).__name__}")
    return evtstart.elapsed_time(evtend)


def synchronize() -> None:
    """Wait until all work of the current device is done."""
    device = backends.current()
    backends.get(device).synchronize(device)  # type: ignore[attr-defined]


# ---- devices ----


class device:
    """Make a device current for a region: `with ruda.device("cuda:1"):`

    >>> import ruda
    >>> with ruda.device("sim"):
    ...     ruda.get_current_device().name
    'sim'
    """

    def __init__(self, name: str | int | DeviceInfo) -> None:
        self.info = _find(name)
        self._regions: list[config] = []

    @property
    def name(self) -> str:
        return self.info.name

    def __enter__(self) -> DeviceInfo:
        self._regions.append(config(device=self.info.name))
        return self.info

    def __exit__(self, *exception: object) -> None:
        self._regions.pop().__exit__(*exception)

    def __repr__(self) -> str:
        return f"ruda.device({self.name!r})"


def _find(name: str | int | DeviceInfo) -> DeviceInfo:
    """A device by name, or by its number among those of the current device's kind."""
    if isinstance(name, DeviceInfo):
        return name
    if isinstance(name, str):
        return backends.find(name)
    if isinstance(name, bool) or not isinstance(name, (int, np.integer)):
        raise TypeError(f'a device is a name such as "cuda:1" or a number, not {name!r}')
    there = [d.name for d in gpus.info]
    if not 0 <= name < len(there):
        raise DeviceNotFoundError(f"no device {name}: there are {len(there)} ({', '.join(there)})")
    return backends.find(there[name])


def set_default_device(device: str) -> None:
    """Make a device current from now on, in all threads that have not chosen one themselves."""
    settings.set_default("device", device if device == "auto" else _find(device).name)


def select_device(device_id: str | int) -> DeviceInfo:
    """Make a device current in this thread, by name or by number among those of its kind."""
    found = _find(device_id)
    config(device=found.name)
    return found


def get_current_device() -> DeviceInfo:
    """The device of launches on NumPy arrays, and of new arrays."""
    return backends.find(backends.current())


def list_devices() -> list[DeviceInfo]:
    """Every device of this machine, as `ruda.devices()`."""
    return backends.devices()


def is_available(kind: str = "cpu") -> bool:
    """Whether a device is there; the CPU always is.

    >>> import ruda
    >>> ruda.is_available(), ruda.is_available("cpu"), ruda.is_available("sim")
    (True, True, True)
    """
    try:
        backends.find(kind)
    except (DeviceNotFoundError, ImportError):
        return False
    return True


def detect() -> bool:
    """Print the devices of this machine; True, as there is always one.

    >>> import ruda
    >>> ruda.detect()
    cpu ...
    sim ...
    True
    """
    found = backends.devices()
    width = max(len(d.name) for d in found)
    for d in found:
        print(f"{d.name:{width}}  {d.kind}, {d.description}")
    return bool(found)


class _Devices(Sequence[Any]):
    """`ruda.gpus`: the devices of the current kind. `with ruda.gpus[0]:` makes one current."""

    @property
    def info(self) -> list[DeviceInfo]:
        return list(backends.get(backends.current()).devices())

    def __getitem__(self, index: Any) -> Any:
        found = self.info[index]
        return [device(d) for d in found] if isinstance(found, list) else device(found)

    def __len__(self) -> int:
        return len(self.info)

    @property
    def current(self) -> device:
        return device(get_current_device())

    def __repr__(self) -> str:
        return f"<ruda.gpus: {', '.join(d.name for d in self.info)}>"


gpus = _Devices()


class Context:
    """What numba-cuda calls the context of a device: its memory and its work."""

    def __init__(self, info: DeviceInfo) -> None:
        self.device = info

    def synchronize(self) -> None:
        """Wait until all work of the device is done."""
        backends.get(self.device.name).synchronize(self.device.name)  # type: ignore[attr-defined]

    def get_memory_info(self) -> tuple[int, int]:
        """Free and all bytes of the device's memory."""
        return backends.get(self.device.name).memory_info(self.device.name)  # type: ignore[attr-defined,no-any-return]

    def __repr__(self) -> str:
        return f"<ruda.Context of {self.device.name}>"

    def __getattr__(self, name: str) -> Any:
        raise missing_attribute(self, "Context", name)


def current_context() -> Context:
    """The context of the current device.

    >>> import ruda
    >>> free, total = ruda.current_context().get_memory_info()
    >>> 0 <= free <= total
    True
    """
    return Context(get_current_device())


def memory_statistics(device: str | None = None) -> dict[str, int]:
    """What ruda's arrays hold of a device's memory (the current one's), and what is kept for reuse.

    `in_use`, `cached` and `peak` are bytes, `requests` and `reused` count allocations. The setting
    `memory_limit` caps the first two together.

    >>> import ruda
    >>> before = ruda.memory_statistics()["in_use"]
    >>> d = ruda.device_array(1000, ruda.float32)
    >>> ruda.memory_statistics()["in_use"] - before
    4096
    """
    name = backends.find(device or backends.current()).name
    return dict(backends.get(name).memory_statistics(name))  # type: ignore[attr-defined]


def empty_cache(device: str | None = None) -> None:
    """Give memory that no array holds back to the device, or to the system.

    >>> import ruda
    >>> ruda.empty_cache()
    >>> ruda.memory_statistics()["cached"]
    0
    """
    name = backends.find(device or backends.current()).name
    backends.get(name).empty_cache(name)  # type: ignore[attr-defined]


def close() -> None:
    """Wait for the work of the current device. Memory is given back as arrays die."""
    synchronize()


@contextlib.contextmanager
def defer_cleanup() -> Iterator[None]:
    """A region in which freeing memory does not wait; it never does."""
    yield


__all__ = [
    "In", "InOut", "Out", "as_cuda_array", "close", "current_context", "default_stream",
    "defer_cleanup", "detect", "device", "device_array", "device_array_like", "empty_cache",
    "event", "event_elapsed_time", "external_stream", "get_current_device", "gpus",
    "is_available", "list_devices", "managed_array", "mapped", "mapped_array",
    "mapped_array_like", "memory_statistics", "pinned", "pinned_array", "pinned_array_like",
    "select_device", "set_default_device", "stream", "synchronize", "to_device",
]  # fmt: skip
