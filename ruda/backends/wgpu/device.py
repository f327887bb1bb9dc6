"""WebGPU as a device: kernels become pipelines, launches become batched dispatches."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ruda.backends.base import (
    Binary,
    Bytes,
    DeviceArray,
    DeviceInfo,
    Event,
    HostMemory,
    Launch,
    Source,
    Storage,
    Stream,
)
from ruda.backends.wgpu import adapter as adapters
from ruda.backends.wgpu.launch import launcher
from ruda.backends.wgpu.modules import Module, forms
from ruda.errors import DeviceError, DeviceNotFoundError
from ruda.jit.ir import Function
from ruda.settings import settings


def number_of(device: str) -> int:
    _, _, number = device.partition(":")
    return int(number) if number.isdigit() else 0


@functools.cache
def queue_of(number: int) -> Any:
    from ruda.backends.wgpu.queue import Queue

    return Queue(adapter_of(number))


def adapter_of(number: int) -> Any:
    found = adapters.adapters()
    if number >= len(found):
        raise DeviceNotFoundError(
            f"no device 'wgpu:{number}': there are {len(found)} WebGPU adapters"
        )
    return found[number]


@functools.cache
def caps_of(number: int) -> Mapping[str, Any]:
    return adapters.caps(adapter_of(number))


class WgpuBackend(HostMemory):
    """Backend "wgpu"; see `ruda.backends.base.Backend`."""

    name = "wgpu"
    launcher_checks = True

    def devices(self) -> Sequence[DeviceInfo]:
        """The adapters; none where wgpu or a driver is missing (`missing` tells which)."""
        try:
            found = adapters.adapters()
        except DeviceNotFoundError:
            return []
        out = []
        for k, a in enumerate(found):
            kind = "software" if adapters.is_software(a) else "hardware"
            sizes = [a.info.get(f"stackgroup_{which}_size") for which in ("min", "max")]
            properties = {**caps_of(k), "subgroup_sizes": tuple(n for n in sizes if n)}
            out.append(DeviceInfo(f"wgpu:{k}", a.info["device"], kind, properties))
        return out

    def missing(self) -> str | None:
        """Why there is no device; None if there is one."""
        try:
            adapters.adapters()
        except DeviceNotFoundError as error:
            return str(error)
        return None

    def target(self, device: str) -> Mapping[str, Any]:
        """What the adapter has; what every browser has where there is no adapter."""
        try:
            return caps_of(number_of(device))
        except DeviceNotFoundError:
            return adapters.PORTABLE

    def lacking(self, target: Mapping[str, Any]) -> tuple[str, ...]:
        """The dtypes of 64 bits that kernels have to do without, by the settings in force."""
        if settings.wgpu_dialect == "tint":
            target = adapters.browser(target)
        return tuple(name for name in ("float64", "int64") if not target.get(name))

    def needs_block(self, function: Function) -> bool:
        """WGSL has the size of a workgroup in its text."""
        return True

    # ---- compilation

    def emit(self, function: Function, target: Mapping[str, Any]) -> Source:
        """IR -> WGSL, pure: the narrow form without aliases, or the wide one."""
        return Module(function, target, "").usual()

    def forms(self, function: Function) -> list[str]:
        """What `ruda.explain` tells of the indices of arrays that are no buffers."""
        return forms(function)

    def compile(self, source: Source, target: Mapping[str, Any]) -> Binary:
        return Binary(source.text.encode(), {})

    def load(self, binary: Binary, function: Function | None, device: str) -> Module:
        assert function is not None  # these binaries are not kept on disk
        number = number_of(device)
        module = Module(function, caps_of(number), device)
        module.queue = queue_of(number)
        return module

    def resolves(self, symbol: str) -> bool:
        return False

    def launcher(
        self,
        module: Module,
        launch: Launch,
        fallback: Callable[..., Any] | None,
        guards: Sequence[tuple[Any, Any, Any]] = (),
    ) -> Callable[..., None]:
        """A callable for the kernel's arguments, which knows those that it has seen."""
        return launcher(module, launch, fallback, guards)

    # ---- memory

    def allocate(
        self, nbytes: int, device: str, kind: str = "device", stream: Stream | None = None
    ) -> Storage:
        if kind != "device":
            return super().allocate(nbytes, device, kind, stream)
        buffer = queue_of(number_of(device)).allocate(nbytes)
        return Storage(device, _addresses(nbytes), nbytes, buffer, False)

    def map(self, ary: np.ndarray[Any, Any], device: str) -> DeviceArray:
        raise DeviceError(f"{device} cannot see the memory of a NumPy array: copy it to the device")

    def read(self, storage: Storage, offset: int, out: Bytes, stream: Stream | None) -> None:
        if storage.on_host:
            super().read(storage, offset, out, stream)
        else:
            queue_of(number_of(storage.device)).read(storage.owner, offset, out)

    def write(self, storage: Storage, offset: int, data: Bytes, stream: Stream | None) -> None:
        if storage.on_host:
            super().write(storage, offset, data, stream)
        else:
            queue_of(number_of(storage.device)).write(storage.owner, offset, data)

    def stream(self, device: str) -> Stream:
        queue_of(number_of(device))
        return WgpuStream(device)

    def event(self, device: str, timing: bool = True) -> Event:
        return WgpuEvent(device, timing)

    def clock(self, device: str) -> Any:
        """The device's own times, for profiles; None where the adapter tells none."""
        return queue_of(number_of(device)).clock

    def synchronize(self, device: str) -> None:
        queue_of(number_of(device)).wait()

    def memory_info(self, device: str) -> tuple[int, int]:
        """WebGPU does not tell: what one buffer may have, less what is in use."""
        number = number_of(device)
        whole = int(adapter_of(number).limits["max-buffer-size"])
        return max(0, whole - queue_of(number).pool.in_use), whole

    def memory_statistics(self, device: str) -> Mapping[str, int]:
        """Bytes in use, kept for reuse, the most ever in use; counts of requests."""
        found: Mapping[str, int] = queue_of(number_of(device)).pool.statistics()
        return found

    def empty_cache(self, device: str) -> None:
        """Give memory that no array holds back to the device."""
        queue = queue_of(number_of(device))
        queue.trim()
        queue.pool.empty()


class WgpuStream(Stream):
    """The queue of a device: there is one, so streams only wait for it."""

    def synchronize(self) -> None:
        BACKEND.synchronize(self.device)

    def add_callback(self, callback: Callable[[Stream, int, Any], Any], arg: Any = None) -> None:
        self.synchronize()
        callback(self, 0, arg)

    def async_done(self) -> Any:
        self.synchronize()
        return super().async_done()


class WgpuEvent(Event):
    """A moment of the queue; recording one waits for it."""

    def record(self, stream: Stream | None = None) -> None:
        BACKEND.synchronize(self.device)
        super().record(stream)


_next_address = 1 << 44


def _addresses(nbytes: int) -> int:
    """Numbers that tell buffers apart; nothing lies there."""
    global _next_address
    found = _next_address
    _next_address += -(-max(nbytes, 1) // 4096) * 4096
    return found


BACKEND = WgpuBackend()
