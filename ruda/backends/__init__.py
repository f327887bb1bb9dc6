"""The registry: a device name such as "cpu" or "cuda:1" gives a lazily imported backend.

A third party registers through the entry-point group `ruda.backends`; each entry names a module
with an attribute `BACKEND`.
"""

from __future__ import annotations

import functools
import importlib
from typing import TYPE_CHECKING, Any

from ruda.errors import DeviceNotFoundError
from ruda.settings import settings

if TYPE_CHECKING:
    from ruda.backends.base import Backend, DeviceInfo

MODULES = {
    "cpu": "ruda.backends.cpu.device",
    "sim": "ruda.backends.sim",
    "wgpu": "ruda.backends.wgpu.device",
    "cuda": "ruda.backends.cuda.device",
    "ascend": "ruda.backends.ascend.npu",
    "ascend-twin": "ruda.backends.ascend.device",
}


@functools.cache
def get(device: str) -> Backend:
    """The backend of a device.

    >>> get("sim").name
    'sim'
    """
    name = device.partition(":")[0]
    module = MODULES.get(name) or _entry_points().get(name)
    if module is None:
        known = ", ".join(sorted({*MODULES, *_entry_points()}))
        raise DeviceNotFoundError(f"no device {device!r}; there are {known}")
    return importlib.import_module(module).BACKEND  # type: ignore[no-any-return]


@functools.cache
def _entry_points() -> dict[str, str]:
    from importlib.metadata import entry_points

    return {e.name: e.value for e in entry_points(group="ruda.backends")}


def devices() -> list[DeviceInfo]:
    """Every device of this machine, with honest properties.

    >>> import ruda
    >>> [d.name for d in ruda.devices()][:2]
    ['cpu', 'sim']
    """
    return [d for name in MODULES for d in get(name).devices()]


@functools.cache
def find(device: str) -> DeviceInfo:
    """The device of a name; "cuda" and "cuda:0" are the first of their kind.

    >>> find("cpu:0").name
    'cpu'
    """
    backend: Any = get(device)
    there: list[DeviceInfo] = list(backend.devices())
    for info in there:
        if device in (info.name, f"{info.name}:0"):
            return info
    if there and ":" not in device:
        return there[0]
    why = None if there else getattr(get(device), "missing", lambda: None)()
    known = ", ".join(info.name for info in there) or why or "none of that kind"
    raise DeviceNotFoundError(
        f"no device {device!r} on this machine; {known if why else f'there are {known}'}"
    )


@functools.cache
def full_name(device: str) -> str:
    """The name that arrays and streams of a device have: "cuda:0" for "cuda".

    >>> full_name("cpu:0")
    'cpu'
    """
    return find(device).name


def current() -> str:
    """Name of the device of launches on NumPy arrays, and of new arrays: the setting `device`."""
    device: str = settings.device
    return _automatic() if device == "auto" else device


@functools.cache
def _automatic() -> str:
    """CUDA, else a hardware WebGPU adapter, else the CPU; tells which, once."""
    names = [d.name for d in devices() if d.kind == "hardware"]
    kinds = ("cuda", "wgpu", "cpu")
    import logging

    chosen = next(n for kind in kinds for n in names if n.partition(":")[0] == kind)
    logging.getLogger("ruda").info("device=auto: %s", chosen)
    return chosen
