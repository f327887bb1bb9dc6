"""Find out why a kernel is wrong: run it in the checked interpreter, or on several devices.

`with ruda.debug():` sends every launch on host arrays to `sim`, with all checks. `ruda.compare`
runs a kernel on copies of its arguments on each device and shows the first element that differs.
"""

from __future__ import annotations

import ctypes
import inspect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ruda import backends
from ruda.settings import config


def debug() -> config:
    """Run kernels in the checked interpreter, thread by thread.

    It finds accesses out of bounds, data races, divergent barriers, reads of undefined memory and
    divisions by zero; `print`, `assert` and `breakpoint()` work in kernels.

    >>> import numpy as np, ruda
    >>> @ruda.jit
    ... def shift(x):
    ...     i = ruda.grid(1)
    ...     x[i] = x[i + 1]
    >>> with ruda.debug():
    ...     shift[1, 4](np.zeros(4))
    Traceback (most recent call last):
    ...
    ruda.errors.DataRaceError: data race on `x[1]`, ...
    """
    return config(device="sim", check=True)


@dataclass(frozen=True)
class Difference:
    """The first element that two devices leave different, and how many there are."""

    array: str
    index: tuple[int, ...]
    devices: tuple[str, str]
    values: tuple[Any, Any]
    distance: int  # units in the last place of floats, the difference of integers
    count: int
    size: int
    thread: str = ""

    def __str__(self) -> str:
        a, b = self.devices
        x, y = self.values
        unit = "ulp" if np.asarray(x).dtype.kind not in "biu" else "apart"
        where = f"{self.array}[{', '.join(map(str, self.index))}]"
        text = f"{where}: {a} {x!r}, {b} {y!r} ({self.distance} {unit})"
        if self.thread:
            text += f", written last by {self.thread}"
        return f"{text}; {self.count} of {self.size} elements differ"


@dataclass(frozen=True, repr=False)
class Comparison:
    """What `ruda.compare` found. `results[device]` are the arguments as that device left them."""

    kernel: str
    devices: tuple[str, ...]
    differences: tuple[Difference, ...]
    results: dict[str, tuple[Any, ...]]

    @property
    def equal(self) -> bool:
        return not self.differences

    def __repr__(self) -> str:
        if self.equal:
            return f"<{self.kernel}: equal on {', '.join(self.devices)}>"
        return "\n".join([f"<{self.kernel}: differs>", *(f"  {d}" for d in self.differences)])


def compare(
    kernel: Any,
    grid: Any,
    block: Any,
    *args: Any,
    devices: Sequence[str] = ("sim", "cpu"),
    ulps: int = 0,
    shared_bytes: int = 0,
) -> Comparison:
    """Run a kernel on copies of its arguments on each device; tell where they first differ.

    The first device is the reference. Floats may be `ulps` units in the last place apart; NaN
    equals NaN. What `sim` finds wrong is raised as usual. Other devices may contract a product and
    a sum to one rounding; `with ruda.config(deterministic=True)` forbids it.

    >>> import numpy as np, ruda
    >>> @ruda.jit
    ... def double(x):
    ...     i = ruda.grid(1)
    ...     if i < x.size:
    ...         x[i] *= 2
    >>> ruda.compare(double, 1, 32, np.arange(5), devices=("sim", "sim"))
    <double: equal on sim, sim>
    """
    if len(devices) < 2:
        raise ValueError(f"compare needs two devices or more, not {list(devices)}")
    results = []
    writers = None
    watch = backends.get("sim").watch  # type: ignore[attr-defined]
    for device in devices:
        copies = copy_arguments(args)
        runs: list[Any] = []
        token = watch.set(runs)
        try:
            with config(device=device):
                kernel[grid, block, None, shared_bytes](*copies)
        finally:
            watch.reset(token)
        if runs and writers is None:
            writers = runs[-1], copies
        results.append(copies)
    names = list(inspect.signature(kernel.py_func).parameters)
    differences = []
    for k, device in enumerate(devices[1:], 1):
        found = _first_difference(
            names, results[0], results[k], (devices[0], device), ulps, writers
        )
        if found is not None:
            differences.append(found)
    return Comparison(
        kernel.__name__,
        tuple(devices),
        tuple(differences),
        dict(zip(devices, results, strict=True)),
    )


# ---- copies ----


def copy_arguments(arguments: Sequence[Any]) -> tuple[Any, ...]:
    """Copies of launch arguments. Arrays that overlap do so in the copies; strides are kept."""
    from ruda.jit.shadow import byte_bounds

    arrays = [a for a in _leaves(arguments) if isinstance(a, np.ndarray)]
    spans: list[tuple[int, int]] = []
    for low, high in sorted(byte_bounds(a) for a in arrays):
        if spans and low < spans[-1][1]:
            spans[-1] = spans[-1][0], max(high, spans[-1][1])
        else:
            spans.append((low, high))
    memories = [(low, high, _copy_bytes(low, high - low)) for low, high in spans]

    def copy(value: Any) -> Any:
        if isinstance(value, tuple):
            items = [copy(v) for v in value]
            return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
        if not isinstance(value, np.ndarray):
            return value.copy_to_host() if hasattr(value, "copy_to_host") else value
        if value.size == 0:
            return value.copy()
        low, end = byte_bounds(value)
        start, memory = next((a, m) for a, b, m in memories if a <= low and end <= b)
        offset = value.__array_interface__["data"][0] - start
        found = np.ndarray(value.shape, value.dtype, memory, offset, value.strides)
        found.flags.writeable = value.flags.writeable
        return found

    return tuple(copy(a) for a in arguments)


def _copy_bytes(address: int, size: int) -> np.ndarray[Any, Any]:
    """The bytes at an address, copied to one with the same alignment."""
    memory = np.empty(size + 64, np.uint8)
    shift = (address - memory.ctypes.data) % 64
    memory = memory[shift : shift + size]
    memory[:] = np.frombuffer(ctypes.string_at(address, size), np.uint8)
    return memory


def _leaves(arguments: Sequence[Any]) -> Iterator[Any]:
    for value in arguments:
        if isinstance(value, tuple):
            yield from _leaves(value)
        else:
            yield value


# ---- differences ----


def _arrays(name: str, value: Any) -> Iterator[tuple[str, np.ndarray[Any, Any]]]:
    """The plain arrays in an argument: items of tuples, fields of records."""
    if isinstance(value, tuple):
        for k, item in enumerate(value):
            yield from _arrays(f"{name}[{k}]", item)
    elif isinstance(value, np.ndarray) and value.dtype.names is not None:
        for field in value.dtype.names:
            yield from _arrays(f"{name}.{field}", value[field])
    elif isinstance(value, np.ndarray):
        yield name, value


def _first_difference(
    names: Sequence[str], a: Any, b: Any, devices: tuple[str, str], ulps: int, writers: Any
) -> Difference | None:
    for k, name in enumerate(names):
        for (label, x), (_, y) in zip(_arrays(name, a[k]), _arrays(name, b[k]), strict=True):
            far = distance(x, y)
            differ = far > (0 if x.dtype.kind in "biu" else ulps)
            if differ.any():
                index = tuple(int(i) for i in np.argwhere(differ)[0])
                thread = _writer(writers, names, label, index)
                return Difference(
                    label,
                    index,
                    devices,
                    (x[index], y[index]),
                    int(far[index]),
                    int(differ.sum()),
                    x.size,
                    thread,
                )
    return None


def _writer(writers: Any, names: Sequence[str], label: str, index: tuple[int, ...]) -> str:
    """The thread that wrote an element last on `sim`, if it knows."""
    if writers is None or writers[0].memory is None:
        return ""
    run, arguments = writers
    found = dict(p for n, a in zip(names, arguments, strict=True) for p in _arrays(n, a))
    data = found[label]
    address = data.__array_interface__["data"][0]
    address += sum(i * s for i, s in zip(index, data.strides, strict=True))
    thread = run.memory.writer(address)
    return "" if thread is None else f"thread {thread.index} of block {thread.block.index}"


def distance(x: np.ndarray[Any, Any], y: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """How far elements are apart: units in the last place of floats, else the difference.

    NaN is at distance 0 from NaN, and as far as can be from all else.

    >>> distance(np.float32([1.0, np.nan, -0.0]), np.float32([1.0000001, np.nan, 0.0])).tolist()
    [1, 0, 0]
    """
    far: np.ndarray[Any, Any]
    if x.dtype.kind == "c":
        far = np.maximum(distance(x.real, y.real), distance(x.imag, y.imag))
        return far
    if x.dtype.kind == "b":
        far = (x != y).astype(np.uint64)
        return far
    if x.dtype.kind in "iu":
        low, high = np.minimum(x, y), np.maximum(x, y)
        far = high.astype(np.uint64) - low.astype(np.uint64)
        return far
    a, b = _ordered(x), _ordered(y)
    far = np.maximum(a, b) - np.minimum(a, b)
    nan_x, nan_y = x != x, y != y
    far[nan_x != nan_y] = np.iinfo(np.uint64).max
    far[nan_x & nan_y] = 0
    return far


def _ordered(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Floats as unsigned integers in the same order, one step a unit in the last place."""
    bits = np.ascontiguousarray(x).view(f"u{x.dtype.itemsize}").astype(np.uint64).reshape(x.shape)
    sign = np.uint64(1 << (x.dtype.itemsize * 8 - 1))
    keys: np.ndarray[Any, Any] = np.where(bits & sign, sign - (bits & ~sign), sign + bits)
    return keys
