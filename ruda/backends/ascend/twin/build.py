"""Compile the twin's runtime and kernel texts with the C++ compiler of this machine.

The runtime (`*.cpp` here) is compiled once a machine and kept in the disk cache; a kernel includes
only declarations and calls into it. Generated text has `#line` directives, so that a real compiler
speaks of the user's lines; they are taken out here, so that a fault can name both lines.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import os
import re
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path

from ruda.errors import NOWHERE, DeviceError, Place
from ruda.jit import cache

FOLDER = Path(__file__).parent
COMPILERS = ("g++", "clang++", "c++")
FLAGS = (
    "-std=c++17", "-shared", "-fPIC", "-pthread", "-fno-strict-aliasing", "-ffp-contract=off",
    "-fwrapv", "-Wall", "-Wno-unknown-pragmas", "-fvisibility-inlines-hidden",
)  # fmt: skip
RUNTIME_FLAGS, KERNEL_FLAGS = ("-O1",), ("-O1",)
SECONDS = 300  # after which a compiler is taken to hang

_LINE = re.compile(r'\s*#\s*line\s+(\d+)(?:\s+"((?:[^"\\]|\\.)*)")?\s*$')


class CompileError(DeviceError):
    """The C++ compiler refused a text; the message is its first error, at the user's line."""

    def __init__(self, message: str, place: Place = NOWHERE, output: str = "") -> None:
        self.message, self.place, self.output = message, place, output
        super().__init__(f"{message}\n  at {place}" if place.line else message)

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.message, self.place, self.output)


@functools.cache
def compiler() -> tuple[str, str]:
    """Path and version of the C++ compiler: the first of CXX, g++, clang++, c++ that is there."""
    asked = os.environ.get("CXX", "")
    for name in (asked,) if asked else COMPILERS:
        if path := shutil.which(name):
            done = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=60)
            if done.returncode == 0:
                return path, done.stdout.partition("\n")[0]
    what = (
        f"CXX={asked!r} is not a compiler that runs" if asked else "there is none of g++, clang++"
    )
    raise DeviceError(f"the Ascend twin needs a C++17 compiler; {what}. Install one, or set CXX")


@functools.cache
def fingerprint() -> str:
    """What a compiled kernel depends on besides its text: the compiler, our headers, the flags."""
    parts = [*compiler(), *FLAGS, *RUNTIME_FLAGS, *KERNEL_FLAGS]
    files = sorted(p for p in FOLDER.rglob("*") if p.suffix in (".h", ".cpp"))
    data = b"\0".join([*(p.encode() for p in parts), *(p.read_bytes() for p in files)])
    return hashlib.sha256(data).hexdigest()


def places(text: str) -> tuple[str, dict[int, Place]]:
    """The text without `#line` directives, of as many lines, and the place that each line has.

    >>> text, found = places('#line 7 "k.py"\\nAdd(a, b);\\nMul(a, b);')
    >>> text.splitlines()[0], str(found[2]), str(found[3])
    ('', 'k.py:7', 'k.py:8')
    """
    lines, found, current = text.split("\n"), {}, None
    for number, line in enumerate(lines, 1):
        if match := _LINE.match(line):
            file = match[2] and re.sub(r"\\(.)", r"\1", match[2])
            current = Place(file or (current.file if current else "<unknown>"), int(match[1]))
            lines[number - 1] = ""
        elif current:
            found[number] = current
            current = current._replace(line=current.line + 1)
    return "\n".join(lines), found


def compile_text(text: str, flags: Sequence[str] = ()) -> bytes:
    """A shared library of a kernel text. `CompileError` if the compiler refuses it."""
    plain, found = places(text)
    with tempfile.TemporaryDirectory(prefix="ruda-twin-") as folder:
        source = Path(folder, "kernel.cpp")
        source.write_text(plain, encoding="utf-8")
        return _compile(source, (*KERNEL_FLAGS, *flags), found)


def _compile(source: Path, flags: Sequence[str], found: dict[int, Place]) -> bytes:
    with tempfile.TemporaryDirectory(prefix="ruda-twin-") as folder:
        target = Path(folder, "out.so")
        undefined = ("-undefined", "dynamic_lookup") if os.uname().sysname == "Darwin" else ()
        command = [compiler()[0], *FLAGS, *undefined, *flags, f"-I{FOLDER}", str(source), "-o"]
        try:
            done = subprocess.run(
                [*command, str(target)], capture_output=True, text=True, errors="replace",
                timeout=SECONDS, env=os.environ | {"LC_ALL": "C"},
            )  # fmt: skip
        except (OSError, subprocess.TimeoutExpired) as error:
            raise DeviceError(f"the C++ compiler cannot be run: {error}") from None
        if done.returncode == 0:
            return target.read_bytes()
        raise _error_of(done.stderr, source, found)


def _error_of(output: str, source: Path, found: dict[int, Place]) -> CompileError:
    """The first error. Where a header of ours refuses it, the kernel's line is the one that the
    compiler says it is required from."""
    message = next((m[1] for m in re.finditer(r"error: (.*)", output)), output.strip()[-400:])
    name = re.escape(str(source))
    first = output.find("error: ")
    end = output.find("\n", first)
    line = 0
    if mine := re.search(rf"{name}:(\d+):\d+: (?:fatal )?error: ", output[:end]):
        line = int(mine[1])
    elif calls := re.findall(rf"{name}:(\d+):\d+: +required from|{name}:(\d+):\d+: note: in inst",
                             output):  # fmt: skip
        line = int(next(filter(None, calls[0])))
    text = f"the C++ compiler refused the generated text: {message}"
    if line:
        text += f" (line {line} of it)"
    return CompileError(text, found.get(line, NOWHERE), output)


# ---- loading -------------------------------------------------------------------------------------

_lock = threading.Lock()
_runtime: ctypes.CDLL | None = None
built = False  # whether this process compiled the runtime


def runtime() -> ctypes.CDLL:
    """The runtime, compiled at its first use on this machine and loaded once a process."""
    global _runtime
    with _lock:
        if _runtime is None:
            _runtime = open_library(_runtime_bytes(), ctypes.RTLD_GLOBAL)
        return _runtime


def _runtime_bytes() -> bytes:
    global built
    parts = {"name": "ascend-twin-runtime", "twin": fingerprint()}
    key = cache.key_of(parts)
    if entry := cache.lookup(key, parts=parts):
        return entry.payload
    # One translation unit: its pieces share most of what they include.
    text = "".join(f'#include "{p.name}"\n' for p in sorted(FOLDER.glob("*.cpp")))
    with tempfile.TemporaryDirectory(prefix="ruda-twin-") as folder:
        source = Path(folder, "runtime.cpp")
        source.write_text(text)
        payload = _compile(source, RUNTIME_FLAGS, {})
    built = True
    cache.store(key, cache.Entry(payload, {}), parts=parts)
    return payload


def open_library(payload: bytes, mode: int = ctypes.RTLD_LOCAL) -> ctypes.CDLL:
    """Load a library from memory; its file is gone when this returns."""
    descriptor, path = tempfile.mkstemp(prefix="ruda-twin-", suffix=".so")  # only the user may read
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(payload)
        return ctypes.CDLL(path, mode)
    except OSError as error:
        raise DeviceError(f"a library of the Ascend twin cannot be loaded: {error}") from None
    finally:
        with contextlib.suppress(OSError):
            os.unlink(path)
