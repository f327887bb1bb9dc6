"""How the kernels of this package are launched, and by whom NumPy is asked instead.

On the CPU NumPy's library calls do the same without a compiler: they are taken there, and the
kernels everywhere else. `RUDA_FUSION=verify` runs both on the CPU and compares.
"""

# mypy: disable-error-code="no-untyped-def,comparison-overlap,operator,index,arg-type,call-overload"
# What kernels take has the types of the kernel language, of which mypy knows nothing.

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ruda import backends
from ruda.backends.base import Asked, DeviceArray, asked
from ruda.dtypes import DType, as_dtype, int32, int64
from ruda.errors import CheckError, DeviceError, Place, RudaError
from ruda.jit import graphs, jit, support
from ruda.jit.kernel import flatten_arguments
from ruda.jit.language import constexpr, grid
from ruda.jit.types import CONSTANTS, constant_kind
from ruda.settings import settings
from ruda.tensor import lower, memory

BLOCK = 256


@functools.cache
def has_short_kernels(device: str) -> bool:
    """Whether a device's compiler takes seconds for long kernels: software drivers of WebGPU."""
    return bool(backends.get(device).target(device).get("software"))


def choose(
    name: str, device: str, by_numpy: Callable[[], Any], by_kernel: Callable[[], Any]
) -> Any:
    """The result of an op on a device, as buffers: NumPy's on the CPU, else the kernels'."""
    if device != "cpu":
        return by_kernel()
    numpys = by_numpy()
    if settings.fusion == "verify":
        compare(name, by_kernel(), numpys)
    return numpys


def compare(name: str, ours: Any, numpys: Any) -> None:
    """The kernels' results are NumPy's; those of floats to rounding."""
    if isinstance(ours, tuple):
        for mine, theirs in zip(ours, numpys, strict=True):
            compare(name, mine, theirs)
        return
    exact = ours.dtype.kind in "biu" or ours.dtype.itemsize < 4
    tolerance = 0.0 if exact else 1e3 * float(np.finfo(ours.dtype).eps)
    same = ours.shape == numpys.shape and (
        np.array_equal(ours.astype("f4"), numpys.astype("f4"), equal_nan=True)
        if exact and ours.dtype.kind not in "biu"
        else np.array_equal(ours, numpys)
        if exact
        else np.allclose(ours, numpys, rtol=tolerance, atol=tolerance, equal_nan=True)
    )
    if not same:
        raise RudaError(f"`{name}`: the kernels give {ours!r}\nNumPy {numpys!r}")


# Launches with all but addresses fixed, by their form, under the settings of a time.
_bound: tuple[Any, dict[Any, Callable[[list[Any]], None] | None]] = (None, {})


def launch(
    name: str, device: str, kernel: Any, grid: Any, block: int, *arguments: Any
) -> Callable[[list[Any]], None] | None:
    """Run a kernel on buffers of a device.

    What is returned runs it again, on other arrays that lie as these do; None if that cannot be.
    """
    global _bound
    backend: Any = backends.get(device)
    form = None
    if hasattr(backend, "bound") and graphs.recording.get() is None:
        state = settings.state()
        if _bound[0] is not state or len(_bound[1]) > 1024:
            _bound = state, {}
        form = (kernel, grid, block, *map(type, arguments), *map(form_of, arguments))
        run = _bound[1].get(form)
        if run is not None:
            run([a for a in arguments if type(a) is DeviceArray])
            return run
    if not (memory.on_host(device) and device == backends.current()):  # NumPy's arrays go there
        arguments = tuple([mapped(a, backend, device) for a in arguments])
    try:
        kernel[grid, block](*arguments)
    except NotImplementedError as error:
        raise DeviceError(f"`{name}` on {device}: {error}") from None
    except CheckError as error:  # of what was given: the line of a kernel here says nothing
        raise type(error)(error.message, users_place()) from None
    if form is None or ... in form:
        return None
    if form not in _bound[1]:
        _bound[1][form] = bound(kernel._configure((grid, block)), arguments, device)
    return _bound[1][form]


def users_place() -> Place:
    """The line of the first frame outside of ruda."""
    row = Asked(*asked(""))
    return Place(row.code.co_filename, row.line)


def form_of(value: Any) -> Any:
    """What a launch must know of an argument beside its type, but for an array's address; `...`:
    more than can be told."""
    kind = type(value)
    if kind is DeviceArray:
        dtype = value.dtype
        place = value.pointer % dtype.itemsize, value.storage.readonly
        return value.shape, value.strides, dtype, value.__ruda_device__, place
    if kind in CONSTANTS:
        return value
    found = constant_kind(value)
    return ... if found is None else found


def bound(
    configured: Any, arguments: Sequence[Any], device: str
) -> Callable[[list[Any]], None] | None:
    """A launch for arrays that lie as the given ones do, and for the same numbers."""
    if settings.debug >= 2:  # which shows launches
        return None
    types = configured.kernel.argument_types(arguments)
    made = configured.kernel.specialise(types, device, configured.launch.block)
    if made.on_host is not None:
        return None
    given = flatten_arguments(arguments, types)
    backend: Any = backends.get(device)
    run = backend.bound(made.module, configured.launch, given)
    if run is None:
        return None
    fixed = [None if type(v) is DeviceArray else v for v in given]
    places = [k for k, v in enumerate(given) if type(v) is DeviceArray]

    def again(arrays: list[Any]) -> None:
        values = fixed.copy()
        for k, array in zip(places, arrays, strict=True):
            values[k] = array
        run(*values)

    return again


def each(name: str, device: str, kernel: Any, count: int, *arguments: Any) -> None:
    """Run a flat kernel with a thread for each of `count` elements."""
    if count:
        launch(name, device, kernel, -(-count // BLOCK), BLOCK, *arguments)


def mapped(value: Any, backend: Any, device: str) -> Any:
    """Memory of the host as an array of the host's device, `cpu` or `sim`."""
    if not isinstance(value, np.ndarray):
        return value
    if not value.flags.writeable:
        value = np.array(value)
    return backend.map(value, device)


@jit(wraparound=False)
def fill(out, value: constexpr):
    """out[i] = value."""
    i = grid(1)
    if i < out.size:
        out[i] = value


def full(shape: tuple[int, ...], value: Any, dtype: DType, device: str) -> Any:
    """A new buffer of one value."""
    out = memory.allocate(shape, dtype, device)
    each("full", device, fill, out.size, out.reshape(-1), value)
    return out


def copy(target: Any, source: Any, device: str) -> None:
    """target[...] = source, of equal shapes and dtypes, with any strides, on the device."""
    from ruda.tensor.tensor import conversion

    kind = as_dtype(source.dtype)
    if memory.on_host(device):
        target[...] = source
        return
    if target.size == 0:
        return
    backend: Any = backends.get(device)
    plain = target.is_c_contiguous() and source.is_c_contiguous()
    if plain and hasattr(backend, "copy_bytes") and graphs.recording.get() is None:
        backend.copy_bytes(target, source)  # a fifth of the host's time for a launch
        return
    one = target.dtype.itemsize  # of axes of length 1, of which the result keeps one
    there = tuple(one if n == 1 else s for n, s in zip(target.shape, target.strides, strict=True))
    here = tuple(0 if n == 1 else s for n, s in zip(source.shape, source.strides, strict=True))
    shape, (there, here) = lower.merge(source.shape, [there, here])
    axes = tuple(a for a, s in enumerate(here) if s != 0)
    same = lower.Op(conversion(kind).name, (("array", 0),), (kind,))
    flat = lower.is_flat(shape)
    group = lower.Group((same,), ((kind, axes),), (), (0,), len(shape), len(shape), flat=flat)
    picked = tuple(shape[a] for a in axes), tuple(here[a] for a in axes)
    operands = memory.look(target, shape, there), memory.look(source, *picked)
    try:
        launcher(group, shape, device, lower.types_of(operands))(*operands)
    except NotImplementedError as error:
        raise DeviceError(f"a copy on {device}: {error}") from None


# What launches copies, by their form, under the settings of a time.
_launchers: tuple[Any, dict[Any, Callable[..., None]]] = (None, {})


def launcher(group: Any, shape: Any, device: str, types: Any) -> Callable[..., None]:
    global _launchers
    state = settings.state()
    if _launchers[0] is not state or len(_launchers[1]) > 1024:
        _launchers = state, {}
    key = group, shape, device, types
    made = _launchers[1].get(key)
    if made is None:
        launch = lower.configuration(group, shape)
        made = lower.launcher(lower.lowered(group), launch, device, types)
        _launchers[1][key] = made
    return made


def has_int64(device: str) -> bool:
    """Whether kernels of a device compute with 64-bit integers."""
    return memory.on_host(device) or "int64" in support.computing(device)


def index_dtype(device: str) -> DType:
    """What indices are on a device: int64 where it computes in it."""
    return int64 if has_int64(device) else int32


def is_checked(device: str) -> bool:
    """Whether an index out of range is reported; else kernels stay inside the array."""
    return bool(settings.check) or device == "sim"
