"""Arrays of other libraries as ruda's, and ruda's as theirs, without a copy.

DLPack (arrays in a capsule, versions 0.8 and 1.x), `__cuda_array_interface__` version 3 and
`__array_interface__`. Memory of the host becomes a NumPy array, that of a GPU a `DeviceArray`;
either keeps the other library's object alive. What is said to be read-only stays so.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
from typing import Any

import numpy as np

from ruda.backends.base import DeviceArray, Storage, _at, contiguous_strides
from ruda.dtypes import as_dtype
from ruda.errors import DTypeError, LaunchTypeError

CPU, CUDA, CUDA_HOST, CUDA_MANAGED = 1, 2, 3, 13
OTHER_DEVICES = {
    4: "OpenCL", 7: "Vulkan", 8: "Metal", 9: "VPI", 10: "ROCm", 11: "ROCm host memory",
    14: "oneAPI", 15: "WebGPU", 16: "Hexagon",
}  # fmt: skip
CODES = {"int": 0, "uint": 1, "float": 2, "bfloat": 4, "complex": 5, "bool": 6}
READ_ONLY, COPIED = 1, 2  # flags of a versioned capsule
LEGACY, VERSIONED = b"dltensor", b"dltensor_versioned"


class DLTensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


DELETER = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class Managed(ctypes.Structure):
    """DLManagedTensor: what the capsule "dltensor" holds."""

    _fields_ = (("tensor", DLTensor), ("context", ctypes.c_void_p), ("deleter", DELETER))


class ManagedVersioned(ctypes.Structure):
    """DLManagedTensorVersioned: what the capsule "dltensor_versioned" holds."""

    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", DELETER),
        ("flags", ctypes.c_uint64),
        ("tensor", DLTensor),
    )


KINDS: dict[bytes, type[Managed] | type[ManagedVersioned]] = {
    LEGACY: Managed,
    VERSIONED: ManagedVersioned,
}


def _api(name: str, result: Any, *arguments: Any) -> Any:
    return ctypes.PYFUNCTYPE(result, *arguments)((name, ctypes.pythonapi))


_DESTRUCTOR = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)
_new = _api("PyCapsule_New", ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, _DESTRUCTOR)
_name = _api("PyCapsule_GetName", ctypes.c_char_p, ctypes.py_object)
_rename = _api("PyCapsule_SetName", ctypes.c_int, ctypes.py_object, ctypes.c_char_p)
_pointer = _api("PyCapsule_GetPointer", ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)
# A dying capsule is passed as an address: a reference would bring it to life again.
_is = _api("PyCapsule_IsValid", ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)
_dying_pointer = _api("PyCapsule_GetPointer", ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)


# ---- from ruda to others -------------------------------------------------------------------------

_exported: dict[int, tuple[Any, ...]] = {}  # what others hold of ours, by the struct's address


def _deleted(address: int) -> None:
    _exported.pop(address, None)


def _died(capsule: int) -> None:
    for name in KINDS:
        if _is(capsule, name):  # nobody took it: a consumer would have renamed it
            _exported.pop(_dying_pointer(capsule, name), None)


_delete, _capsule_died = DELETER(_deleted), _DESTRUCTOR(_died)  # they live as long as ruda


def dlpack_device(array: DeviceArray) -> tuple[int, int]:
    """(device type, number) of DLPack; BufferError where it has no word for the memory."""
    kind, _, number = array.device.partition(":")
    if kind == "cuda":
        return (CUDA_HOST if array.storage.on_host else CUDA), int(number or 0)
    if array.storage.on_host:
        return CPU, 0
    raise BufferError(
        f"memory of {array.device} has no address that another library could use: "
        "`copy_to_host()` first"
    )


def export(
    array: DeviceArray,
    stream: Any = None,
    max_version: tuple[int, int] | None = None,
    dl_device: tuple[int, int] | None = None,
    copy: bool | None = None,
) -> Any:
    """A DLPack capsule of an array, for `__dlpack__`."""
    here = dlpack_device(array)
    if dl_device is not None and tuple(dl_device) != here:
        if tuple(dl_device) != (CPU, 0):
            raise BufferError(f"an array of {array.device} cannot be put on device {dl_device}")
        if copy is False:
            raise BufferError(f"an array of {array.device} gets to the host only by a copy")
        return array.copy_to_host().__dlpack__(max_version=max_version)
    if copy:
        array = array.copy()
    if here[0] == CUDA:
        if isinstance(stream, bool) or not (stream is None or isinstance(stream, int)):
            raise TypeError(f"a stream of CUDA is an integer or None, not {type(stream).__name__}")
        if stream == 0:
            raise ValueError(
                "stream 0 is ambiguous: 1 is the legacy default stream, 2 the thread's"
            )
        if stream != -1:
            array._backend.hand_over(array.storage, 1 if stream is None else stream)
    elif stream is not None:
        raise BufferError("memory of the host has no stream: pass stream=None")
    versioned = max_version is not None and max_version[0] >= 1
    if array.storage.readonly and not versioned:
        raise BufferError("a read-only array needs a DLPack of version 1: pass max_version=(1, 0)")
    return _capsule(array, here, versioned, bool(copy))


def _capsule(array: DeviceArray, device: tuple[int, int], versioned: bool, copied: bool) -> Any:
    if array.dtype.names is not None:
        raise BufferError("DLPack has no records: pass the fields one by one")
    dtype = as_dtype(array.dtype)
    if any(s % array.itemsize for s in array.strides):
        raise BufferError(f"the strides {array.strides} are no multiples of {array.itemsize} bytes")
    name = VERSIONED if versioned else LEGACY
    managed: Any = KINDS[name]()
    words = ctypes.c_int64 * max(1, array.ndim)
    shape, strides = words(*array.shape), words(*(s // array.itemsize for s in array.strides))
    kind = "bfloat" if dtype.name == "bfloat16" else dtype.kind
    managed.tensor = DLTensor(
        array.pointer if array.size else None,
        *device, array.ndim, CODES[kind], array.itemsize * 8, 1, shape, strides, 0,
    )  # fmt: skip
    managed.deleter = _delete
    if versioned:
        managed.major, managed.minor = 1, 0
        managed.flags = READ_ONLY * array.storage.readonly | COPIED * copied
    address = ctypes.addressof(managed)
    _exported[address] = managed, shape, strides, array.storage.owner
    return _new(address, name, _capsule_died)


def cuda_array_interface(array: DeviceArray) -> dict[str, Any]:
    """`__cuda_array_interface__`, version 3."""
    if array.dtype.name == "bfloat16":
        raise AttributeError("__cuda_array_interface__ has no bfloat16: use DLPack")
    contiguous = array.is_c_contiguous()
    return {
        "shape": array.shape,
        "typestr": array.dtype.str,
        "descr": array.dtype.descr,
        "data": (array.pointer if array.size else 0, array.storage.readonly),
        "strides": None if contiguous else array.strides,
        "version": 3,
        "stream": 1,  # our work goes to the legacy default stream, or is ordered with it
    }


# ---- from others to ruda -------------------------------------------------------------------------


class Owner:
    """A foreign tensor, told when ruda no longer looks at its memory."""

    def __init__(self, managed: Any) -> None:
        self.managed = managed

    def __del__(self) -> None:
        if self.managed.deleter:
            self.managed.deleter(ctypes.addressof(self.managed))


def take(capsule: Any, legacy_is_readonly: bool = False) -> np.ndarray[Any, Any] | DeviceArray:
    """The array in a DLPack capsule; afterwards the capsule is used up."""
    try:
        name = _name(capsule)
    except ValueError:
        raise TypeError(f"a DLPack capsule, not {type(capsule).__name__}") from None
    if name not in KINDS:
        used = name is not None and name.startswith(b"used_dltensor")
        why = "it was used already" if used else f"its name is {name!r}"
        raise BufferError(f"this is no DLPack capsule that can be taken: {why}")
    managed = KINDS[name].from_address(_pointer(capsule, name))
    _rename(capsule, _USED[name])
    owner = Owner(managed)
    readonly = legacy_is_readonly
    if isinstance(managed, ManagedVersioned):
        if managed.major != 1:
            raise BufferError(
                f"DLPack {managed.major}.{managed.minor} is not known here: ruda takes 0.x and 1.x"
            )
        readonly = bool(managed.flags & READ_ONLY)
    tensor = managed.tensor
    dtype = _numpy_dtype(tensor)
    shape = tuple(tensor.shape[k] for k in range(tensor.ndim))
    if tensor.strides:
        strides = tuple(tensor.strides[k] * dtype.itemsize for k in range(tensor.ndim))
    else:
        strides = contiguous_strides(shape, dtype.itemsize)
    address = (tensor.data or 0) + tensor.byte_offset
    match tensor.device_type:
        case 1 | 3:
            return host_array(address, shape, dtype, strides, owner, readonly)
        case 2 | 13:
            device = f"cuda:{tensor.device_id}"
            return gpu_array(device, address, shape, dtype, strides, owner, readonly)
    raise BufferError(_no_device(tensor.device_type))


_USED = {LEGACY: b"used_dltensor", VERSIONED: b"used_dltensor_versioned"}


def _no_device(kind: int) -> str:
    return (
        f"an array on {OTHER_DEVICES.get(kind, f'a device of type {kind}')} cannot be used "
        "where it is: copy it to the host first"
    )


def _numpy_dtype(tensor: DLTensor) -> np.dtype[Any]:
    kind = next((k for k, code in CODES.items() if code == tensor.code), None)
    if tensor.lanes == 1 and kind is not None:
        name = {"bfloat": f"bfloat{tensor.bits}", "bool": "bool"}.get(kind, f"{kind}{tensor.bits}")
        with contextlib.suppress(DTypeError, TypeError):
            return as_dtype(name).numpy
    raise BufferError(
        f"DLPack's dtype with code {tensor.code}, {tensor.bits} bits and {tensor.lanes} lanes has "
        "no counterpart in ruda"
    )


def host_array(
    address: int, shape: Any, dtype: Any, strides: Any, owner: Any, readonly: bool
) -> np.ndarray[Any, Any]:
    if math.prod(shape) == 0:
        found = np.empty(shape, dtype)
    else:
        found = _at(address, shape, dtype, strides, owner)
    if readonly:
        found.flags.writeable = False
    return found


def gpu_array(
    device: str, address: int, shape: Any, dtype: Any, strides: Any, owner: Any, readonly: bool
) -> DeviceArray:
    from ruda import backends

    low = address + sum(min(0, (n - 1) * s) for n, s in zip(shape, strides, strict=True) if n)
    high = address + sum(max(0, (n - 1) * s) for n, s in zip(shape, strides, strict=True) if n)
    nbytes = high - low + dtype.itemsize if math.prod(shape) else 0
    storage = Storage(device, low, nbytes, owner, False, readonly=readonly)
    return DeviceArray(backends.get(device), storage, shape, dtype, strides, address - low)


def foreign(value: Any, stream: Any = None) -> np.ndarray[Any, Any] | DeviceArray | None:
    """What another library's array is to ruda, without a copy; None if it is no array.

    `stream` is the one that ruda's work will be in, where it is a GPU's.
    """
    kind = type(value)
    if hasattr(kind, "__dlpack__") and hasattr(kind, "__dlpack_device__"):
        return _from_dlpack(value, getattr(stream, "handle", 0))
    interface = getattr(value, "__cuda_array_interface__", None)
    if interface is not None:
        return _from_cuda_interface(value, interface, getattr(stream, "handle", 0))
    if hasattr(kind, "__array_interface__") or hasattr(value, "__array_interface__"):
        try:
            return np.asarray(value)
        except (TypeError, ValueError, OverflowError, MemoryError) as error:
            raise LaunchTypeError(
                f"the __array_interface__ of {type(value).__name__} is none: {error}; "
                "pass a NumPy array"
            ) from error
    return None


def _from_dlpack(value: Any, handle: int) -> np.ndarray[Any, Any] | DeviceArray:
    name = type(value).__name__
    number = int(value.__dlpack_device__()[0])
    if number not in (CPU, CUDA, CUDA_HOST, CUDA_MANAGED):
        raise LaunchTypeError(f"{name}: {_no_device(number)}")
    options: dict[str, Any] = {"stream": handle or 1} if number in (CUDA, CUDA_MANAGED) else {}
    try:
        try:
            capsule = value.__dlpack__(max_version=(1, 0), **options)
        except TypeError:  # it is older than versions
            capsule = value.__dlpack__(**options)
        # JAX's arrays never change, and its capsules have no word for that.
        return take(capsule, legacy_is_readonly=type(value).__module__.startswith("jax"))
    except (BufferError, RuntimeError, ValueError) as error:
        raise LaunchTypeError(f"{name} gives no array to ruda: {error}") from error


def _from_cuda_interface(value: Any, interface: Any, handle: int) -> DeviceArray:
    from ruda import backends

    if interface.get("mask") is not None:
        raise LaunchTypeError(f"{type(value).__name__}: a kernel does not see the mask of an array")
    dtype = np.dtype(interface["typestr"])
    shape = tuple(interface["shape"])
    strides = interface.get("strides") or contiguous_strides(shape, dtype.itemsize)
    address, readonly = interface["data"]
    backend: Any = backends.get("cuda")
    producer = interface.get("stream")
    if producer == 0:
        raise LaunchTypeError(
            f"{type(value).__name__}: stream 0 of __cuda_array_interface__ is ambiguous"
        )
    device = backend.device_of(address) if address else backends.find("cuda").name
    if producer is not None:
        backend.order(device, producer, handle)
    return gpu_array(device, address, shape, dtype, tuple(strides), value, readonly)


def from_dlpack(value: Any) -> DeviceArray:
    """See `ruda.from_dlpack`."""
    from ruda import backends

    if isinstance(value, DeviceArray):
        return value
    if isinstance(value, np.ndarray):
        found: Any = value
    else:
        found = foreign(value)
    if found is None:
        raise TypeError(f"{type(value).__name__} has neither __dlpack__ nor an array interface")
    if isinstance(found, DeviceArray):
        return found
    low, high = np.lib.array_utils.byte_bounds(found) if found.size else (0, 0)
    first = found.__array_interface__["data"][0] if found.size else 0
    storage = Storage("cpu", low, high - low, found, True, readonly=not found.flags.writeable)
    return DeviceArray(
        backends.get("cpu"), storage, found.shape, found.dtype, found.strides, first - low
    )
