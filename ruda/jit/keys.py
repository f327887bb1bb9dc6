"""The key of a compiled kernel: the SHA-256 of everything that decides its code.

That is the kernel's IR, types and options, which the caller names, and the environment that
`environment_parts` names: versions, machine, CPU. Content and versions, never a time. Homes are
shared by unlike machines, so what this machine is belongs to it.

Nothing heavy is imported: the key is made before it is known whether a compiler is needed.
"""

from __future__ import annotations

import functools
import os
import re
import sys
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import hashlib

Parts = Mapping[str, str | bytes]

_READABLE = 200  # a part up to this length is kept as it is, a longer one as its digest


def sha256(data: bytes = b"") -> hashlib._Hash:
    import hashlib  # which loads OpenSSL: 4 ms, not to be paid by `import ruda`

    return hashlib.sha256(data)


def key_of(parts: Parts) -> str:
    """The name of an entry: SHA-256 over the sorted parts, each with its length before it.

    >>> key_of({"types": "f32[:]", "ir": "..."}) == key_of({"ir": "...", "types": "f32[:]"})
    True
    >>> key_of({"a": "xb", "c": ""}) == key_of({"a": "x", "bc": ""})
    False
    """
    digest = sha256()
    for name, value in sorted(parts.items()):
        for piece in (name.encode(), _as_bytes(value)):
            digest.update(len(piece).to_bytes(8, "little"))
            digest.update(piece)
    return digest.hexdigest()


def short_parts(parts: Parts) -> dict[str, str]:
    """The parts as a header keeps them: readable ones as they are, others as a digest."""
    return {name: _short(value) for name, value in sorted(parts.items())}


def _short(value: str | bytes) -> str:
    if isinstance(value, str) and len(value) <= _READABLE and value.isprintable():
        return value
    return "sha256:" + sha256(_as_bytes(value)).hexdigest()[:16]


def _as_bytes(value: str | bytes) -> bytes:
    return value if isinstance(value, bytes) else value.encode("utf-8", "surrogatepass")


def name_of(kernel: Any) -> str:
    """The part `name` for a kernel or a function; a string is its own.

    >>> name_of(name_of)
    'ruda.jit.keys.name_of'
    """
    return kernel if isinstance(kernel, str) else f"{kernel.__module__}.{kernel.__qualname__}"


# What decides the code besides the kernel. Targets that another compiler serves name it here.
PACKAGES = {"cuda": ("cuda-bindings", "nvidia-nvvm", "nvidia-nvjitlink"), "wgpu": ("wgpu",)}
HARMLESS = ("NUMBA_CACHE_DIR", "NUMBA_NUM_THREADS", "NUMBA_THREADING_LAYER")


@functools.cache
def environment_parts(target: str) -> Mapping[str, str]:
    """The parts of a key that are the same for all kernels of a target in this process."""
    parts = {
        "target": target,
        "ruda": _ruda_version(),
        "python": f"{sys.implementation.name} {'.'.join(map(str, sys.version_info[:3]))}",
        "libc": _libc(),
        "machine": f"{sys.platform} {_machine()} {sys.maxsize.bit_length() + 1} bit",
        "cpu": _cpu()[0],
        "cpu features": _cpu()[1],
        # Numba reads its own switches (NUMBA_CPU_NAME, NUMBA_OPT, ...) and makes other code.
        "numba settings": " ".join(
            f"{name}={value}"
            for name, value in sorted(os.environ.items())
            if name.startswith("NUMBA_") and name not in HARMLESS
        ),
    }
    kind = target.partition(":")[0]
    for package in ("numba", "llvmlite", "numpy", *PACKAGES.get(kind, ())):
        parts[package] = package_version(package)
    return MappingProxyType(parts)


def package_version(package: str) -> str:
    """The version of an installed distribution, found without importing it; "absent" if none."""
    # `importlib.metadata` costs 40 ms to import. The folder's name says the same.
    start = re.compile(package.replace("-", "[-_.]") + r"-(.+)\.dist-info", re.IGNORECASE)
    for folder in sys.path:
        try:
            names = os.listdir(folder or ".")
        except OSError:  # a zip file, or no such folder
            continue
        for name in names:
            if found := start.fullmatch(name):
                return found[1]
    from importlib import metadata

    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "absent"


def _ruda_version() -> str:
    """The version and, as a checkout changes without it, a digest of the code that makes code."""
    ruda = sys.modules["ruda"]  # it is being imported or was; jit imports nothing above it
    assert ruda.__file__ is not None
    root = os.path.dirname(os.path.abspath(ruda.__file__))
    digest = sha256()
    for path in _compiler_files(root):
        with open(path, "rb") as file:
            text = file.read()
        name = os.path.relpath(path, root).replace(os.sep, "/")
        digest.update(f"{name} {len(text)}\n".encode() + text)
    return f"{ruda.__version__} ({digest.hexdigest()[:16]})"


def _compiler_files(root: str) -> Iterator[str]:
    yield os.path.join(root, "dtypes.py")
    for package in ("backends", "jit"):
        for folder, folders, names in os.walk(os.path.join(root, package)):
            folders.sort()
            for name in sorted(names):
                if name.endswith((".py", ".ll")):
                    yield os.path.join(folder, name)


def _libc() -> str:
    try:
        return os.confstr("CS_GNU_LIBC_VERSION") or "unknown"
    except (AttributeError, ValueError, OSError):  # not glibc, not POSIX
        import platform

        return " ".join(platform.libc_ver()).strip() or platform.version()


def _machine() -> str:
    import platform

    return platform.machine()


CPU_FIELDS = (
    *("model name", "vendor_id", "cpu family", "model", "stepping"),  # x86
    *("CPU implementer", "CPU variant", "CPU part", "CPU revision"),  # ARM
)


@functools.cache
def _cpu() -> tuple[str, str]:
    """Name and features of the CPU: the kernel's list, or LLVM's where there is none."""
    try:
        with open("/proc/cpuinfo", "rb", buffering=0) as file:
            text = b""
            # One processor's lines: to read all takes tens of milliseconds on a large machine.
            while (piece := file.read(4096)) and b"\n\n" not in text + piece:
                text += piece
        lines = (text + piece).split(b"\n\n")[0].decode("ascii", "replace").splitlines()
        fields = {k.strip(): v.strip() for k, _, v in (line.partition(":") for line in lines)}
        features = fields.get("flags") or fields.get("Features")
        if features:
            name = "; ".join(f"{n}: {fields[n]}" for n in CPU_FIELDS if n in fields)
            return name, " ".join(sorted(features.split()))
    except OSError:
        pass
    import llvmlite.binding as llvm

    return llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten()
