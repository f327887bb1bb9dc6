"""Emitted AscendC -> a shared library: by g++ or clang++ for the emulation, by bisheng for an NPU.

The emulation's runtime is compiled once a machine and kept in the disk cache; a kernel includes
declarations only. An error of the compiler is one about the kernel, at the user's line.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import re
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path

from ruda.backends.ascend.twin import build
from ruda.backends.ascend.twin.build import COMPILERS, SECONDS, compiler, open_library
from ruda.backends.base import Source
from ruda.errors import NOWHERE, DeviceError, Place, VerifyError

__all__ = ["COMPILERS", "compile_source", "open_library", "runtime"]

FOLDER = Path(__file__).parent
TWIN = FOLDER / "twin"
HEADERS = (
    *sorted((FOLDER / "include").glob("*.h")),
    *(TWIN / name for name in ("simt.h", "simt_shared.h", "fault.h")),
)
RUNTIME = TWIN / "simt_runtime.cc"
FLAGS = (
    "-std=c++17", "-shared", "-fPIC", "-pthread", "-fwrapv", "-fno-strict-aliasing",
    "-ffp-contract=off", "-Wall", "-Wno-unused", "-Wno-attributes",
    "-U_FORTIFY_SOURCE",  # a default of some compilers, whose longjmp refuses to change the stack
    f"-I{FOLDER / 'include'}", f"-I{TWIN}",
)  # fmt: skip
# What a kernel calls besides is in the process already: a linker that does not read the C++ library
# is done in half the time. On a Mac it wants to be told.
LINK = ("-undefined", "dynamic_lookup") if sys.platform == "darwin" else (
    "-nostdlib", "-lm", "-lc"
)  # fmt: skip
NPU_FLAGS = {"dav-3510": ("--enable-simt",), "dav-2201": ()}
# What compilers say of an option that a later version has.
OTHER_VERSION = re.compile(
    r"(unknown|unsupported|unrecognized|invalid)\b.*(argument|option|value|npu-arch)", re.I
)
INSTALLED = ("ascend_toolkit_install.info", "version.info", "version.cfg")  # of CANN


@functools.cache
def fingerprint(vector: bool = False) -> str:
    """What a compiled kernel depends on besides its text."""
    data = b"\0".join(
        [*(f.read_bytes() for f in (*HEADERS, RUNTIME)), *map(str.encode, FLAGS + LINK)]
    )
    more = build.fingerprint() if vector else compiler()[1]
    return hashlib.sha256(data + more.encode()).hexdigest()


def compile_source(source: Source, chip: str = "950") -> bytes:
    """A shared library for the emulation."""
    with tempfile.TemporaryDirectory(prefix="ruda-ascend-") as folder:
        file = Path(folder, "kernel.cc")
        file.write_text(source.text, encoding="utf-8")
        optimised = "-O1" if chip == "950" else "-O0"  # there its runtime does the work
        return run_compiler([compiler()[0], *FLAGS, optimised, str(file), *LINK], folder, source)


def compile_for_npu(source: Source, home: str, chip: str) -> bytes:
    """A shared library with code for an NPU, by the compiler of an installed CANN."""
    bisheng = bisheng_of(home)
    if bisheng is None:
        raise DeviceError(f"ASCEND_HOME_PATH={home} has no compiler `bisheng`")
    with tempfile.TemporaryDirectory(prefix="ruda-ascend-") as folder:
        file = Path(folder, "kernel.asc")
        file.write_text(source.text, encoding="utf-8")
        options = ["-shared", "-fPIC", "-O3", "-std=c++17", "-fwrapv", "-ffp-contract=off",
                   f"--npu-arch={chip}", *NPU_FLAGS[chip], f"-I{FOLDER / 'include'}"]  # fmt: skip
        try:
            return run_compiler([str(bisheng), *options, str(file)], folder, source)
        except VerifyError as error:
            if not OTHER_VERSION.search(str(error)):
                raise
            reason = str(error).partition("\n")[0].rpartition("this kernel: ")[2]
            raise DeviceError(
                f"the compiler of the CANN at {home} ({version_of(home)}) is of a version that "
                f"does not build for {chip}: {reason}. It takes one that knows --npu-arch={chip}"
            ) from None


def bisheng_of(home: str) -> Path | None:
    """The compiler of a CANN."""
    return next((p for p in Path(home).glob("**/bin/bisheng") if os.access(p, os.X_OK)), None)


def version_of(home: str) -> str:
    """The version that an installed CANN writes down, and what its compiler says of itself."""
    files = (f for name in INSTALLED for f in sorted(Path(home).glob(f"**/{name}")))
    texts = (f.read_text(encoding="utf-8", errors="replace") for f in files)
    found = (re.search(r"^version=\[?([\w.+-]+)", text, re.I | re.M) for text in texts)
    toolkit = next((f"version {m[1]}" for m in found if m), "of unknown version")
    try:
        done = subprocess.run([str(bisheng_of(home)), "--version"], capture_output=True,
                              text=True, errors="replace", timeout=60)  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return toolkit
    line = done.stdout.strip().partition("\n")[0]
    return f"{toolkit}, {line}" if not done.returncode and line else toolkit


def run_compiler(command: Sequence[str], folder: str, source: Source | None) -> bytes:
    """Run a compiler; the library that it makes."""
    target = Path(folder, "out.so")
    try:
        done = subprocess.run(
            [*command, "-o", str(target)], capture_output=True, text=True, errors="replace",
            timeout=SECONDS, env=os.environ | {"LC_ALL": "C"},
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        raise DeviceError(f"the C++ compiler cannot be run: {error}") from None
    if done.returncode:
        raise error_of(done.stderr, source)
    return target.read_bytes()


def error_of(output: str, source: Source | None) -> VerifyError:
    """The first error of a compiler, at the user's line. Where a header of ours refuses something,
    it is the line of the kernel that the compiler says it is required from."""
    found = re.search(r"(?:kernel\.\w+:(\d+):\d+: )?(?:fatal )?error: (.*)", output)
    message = found[2] if found else output.strip()[-400:]
    lines = re.findall(r"kernel\.\w+:(\d+):\d+: +(?:required from|note: in inst)", output)
    lines += re.findall(r"kernel\.\w+:(\d+):\d+:", output)
    place: Place = NOWHERE
    text = ""
    if source is not None and lines:
        number = int((found and found[1]) or lines[0])
        text = source.text.splitlines()[number - 1].strip()
        if number <= len(source.lines) and source.lines[number - 1]:
            place = Place(source.file, source.lines[number - 1])
    where = f"\n  at {place}, as: {text}" if text else ""
    return VerifyError(f"the C++ compiler refuses this kernel: {message}{where}")


# ---- loading -------------------------------------------------------------------------------------

_lock = threading.Lock()
_runtime: ctypes.CDLL | None = None


def runtime() -> ctypes.CDLL:
    """The emulation's runtime: compiled once a machine, loaded once a process."""
    global _runtime
    with _lock:
        if _runtime is None:
            _runtime = open_library(_runtime_bytes(), ctypes.RTLD_GLOBAL)
        return _runtime


def _runtime_bytes() -> bytes:
    from ruda.jit import cache

    parts: dict[str, str | bytes] = {"name": "ascend-simt-runtime", "code": fingerprint()}
    key = cache.key_of(parts)
    entry = cache.lookup(key, parts=parts, resolves=lambda symbol: True)
    if entry is not None:
        return entry.payload
    with tempfile.TemporaryDirectory(prefix="ruda-ascend-") as folder:
        payload = run_compiler([compiler()[0], *FLAGS, "-O2", str(RUNTIME)], folder, None)
    cache.store(key, cache.Entry(payload, {}, ()), parts=parts)
    return payload
