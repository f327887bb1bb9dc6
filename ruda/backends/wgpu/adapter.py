"""Find WebGPU adapters through wgpu-py, without printing and without failing an import of ruda.

What a kernel depends on goes into `caps`: it is part of the key of its specialisation.
"""

from __future__ import annotations

import atexit
import functools
import logging
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Collection, Mapping
from typing import Any

from ruda.errors import DeviceNotFoundError

# Asked of every adapter that has them.
FEATURES = (
    "shader-int64", "shader-f64", "shader-int64-atomic-all-ops", "shader-int64-atomic-min-max",
    "timestamp-query",
)  # fmt: skip
INSTALL = (
    "install the package `wgpu` (pip install ruda[wgpu]) and a driver for Vulkan, Metal or "
    "DirectX 12; the package mesa-vulkan-drivers has one that runs on any CPU"
)
# What every browser has: for text that is made where there is no adapter.
PORTABLE: dict[str, Any] = {
    "adapter": "of any browser", "dialect": "tint", "int64": False, "float64": False,
    "int64_atomics": False, "float32_denormals": "unknown", "exact": "", "watches_buffers": False,
    "max_buffers": 8, "max_binding": 1 << 27, "max_shared": 16384, "max_threads": 256,
    "max_groups": 65535,
}  # fmt: skip


def browser(caps: Mapping[str, Any]) -> Mapping[str, Any]:
    """An adapter's properties without what a browser does not let through."""
    lacks = (
        "dialect", "int64", "float64", "int64_atomics", "float32_denormals", "exact",
        "watches_buffers",
    )  # fmt: skip
    return {**caps, **{name: PORTABLE[name] for name in lacks}}


@functools.cache
def runtime() -> Any:
    """The module `wgpu`; DeviceNotFoundError tells what to install."""
    try:
        import wgpu
    except ImportError:
        raise DeviceNotFoundError(f"the package `wgpu` is not installed: {INSTALL}") from None
    except Exception as error:  # its native library does not load
        raise DeviceNotFoundError(f"`wgpu` does not load ({error}): {INSTALL}") from error
    # What goes wrong becomes our exceptions; the library's own log is for its developers.
    logging.getLogger("wgpu").setLevel(logging.CRITICAL)
    return wgpu


@functools.cache
def _folder() -> str:
    folder = tempfile.mkdtemp(prefix="ruda-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


@functools.cache
def adapters() -> tuple[Any, ...]:
    """All adapters, hardware first; DeviceNotFoundError where there is none."""
    wgpu = runtime()
    if sys.platform.startswith("linux"):
        if not os.environ.get("XDG_RUNTIME_DIR"):
            os.environ["XDG_RUNTIME_DIR"] = _folder()  # else drivers complain on stderr
        try:
            from wgpu.backends.wgpu_native.extras import set_instance_extras

            set_instance_extras(backends=["Vulkan"])  # the OpenGL one is slow to start and prints
        except Exception:  # the program has an instance of its own: it serves as well
            pass
    try:
        found = wgpu.gpu.enumerate_adapters_sync()
    except Exception as error:
        raise DeviceNotFoundError(f"no WebGPU adapter ({error}): {INSTALL}") from error
    order = {"DiscreteGPU": 0, "IntegratedGPU": 1}
    found = sorted(found, key=lambda a: order.get(a.info["adapter_type"], 2))
    if not found:
        raise DeviceNotFoundError(f"no WebGPU adapter: {INSTALL}")
    return tuple(found)


def is_software(adapter: Any) -> bool:
    return bool(adapter.info["adapter_type"] in ("CPU", "Unknown"))


def _cuts_loops(info: Mapping[str, Any]) -> bool:
    """Whether the driver ends a thread's loops after 65535 rounds: Mesa 22.3's does, 25.0's does
    not, and between them nobody has looked."""
    found = re.search(r"Mesa (\d+)", str(info["description"]))
    return "llvmpipe" in str(info["device"]) and (found is None or int(found[1]) < 25)


def has_float64(features: Collection[str]) -> bool:
    return {"shader-f64", "shader-int64"} <= set(features)  # its bits are an integer's


def caps(adapter: Any) -> Mapping[str, Any]:
    """What kernels for an adapter may use, and how exact its arithmetic is."""
    from ruda.backends.wgpu.probe import traits

    features, limits, info = adapter.features, adapter.limits, adapter.info
    return {
        "adapter": info["device"],
        "driver": info["description"],
        "software": is_software(adapter),
        "dialect": "naga",
        "cuts_loops": _cuts_loops(info),
        "int64": "shader-int64" in features,
        "float64": has_float64(features),
        "int64_atomics": "shader-int64-atomic-all-ops" in features,
        "max_buffers": limits["max-storage-buffers-per-shader-stage"],
        "max_binding": limits["max-storage-buffer-binding-size"],
        "max_shared": limits["max-compute-workgroup-storage-size"],
        "max_threads": limits["max-compute-invocations-per-workgroup"],
        "max_groups": limits["max-compute-workgroups-per-dimension"],
        **traits(adapter),
    }
