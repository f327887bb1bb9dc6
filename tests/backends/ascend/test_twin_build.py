"""Compiling the twin: at its first use, kept for the next process, and refused in clear words."""

import os
import subprocess
import sys

import pytest

from ruda.backends.ascend.twin import build
from ruda.errors import DeviceError

START = "from ruda.backends.ascend.twin import build; build.runtime(); print(build.built)"


def start(folder):
    environment = os.environ | {"RUDA_CACHE_DIR": str(folder), "RUDA_CACHE": "1"}
    return subprocess.Popen(
        [sys.executable, "-W", "error", "-c", START], env=environment, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def test_processes_that_build_at_once_leave_one_runtime(tmp_path):
    processes = [start(tmp_path) for _ in range(2)]
    for process in processes:
        output, errors = process.communicate(timeout=120)
        assert (process.returncode, errors) == (0, "")
    assert len(list(tmp_path.rglob("*.ruda"))) == 1
    output, errors = start(tmp_path).communicate(timeout=120)
    assert (output, errors) == ("False\n", "")  # from the cache
    kept = next(tmp_path.rglob("*.ruda"))
    kept.write_bytes(kept.read_bytes()[:-100])  # damaged: built again
    output, errors = start(tmp_path).communicate(timeout=120)
    assert (output, errors) == ("True\n", "")


MEET = """
import numpy as np
import ruda

@ruda.jit
def reverse(x, out):
    shared = ruda.shared.array(64, ruda.float32)
    t = ruda.threadIdx.x
    shared[t] = x[t]
    ruda.syncthreads()
    out[t] = shared[63 - t]

ruda.set_default_device("ascend-twin:950")
x = np.arange(64, dtype=np.float32)
out = np.zeros_like(x)
reverse[1, 64](x, out)
print(np.array_equal(out, x[::-1]))
"""


def test_a_compiler_that_fortifies_by_default(tmp_path):
    """Its longjmp aborts the process where a thread of a block gives way to another's stack."""
    path, _ = build.compiler()
    program, script = tmp_path / "c++", tmp_path / "meet.py"
    program.write_text(f'#!/bin/sh\nexec "{path}" -D_FORTIFY_SOURCE=2 "$@"\n')
    program.chmod(0o755)
    script.write_text(MEET)
    environment = os.environ | {"RUDA_CACHE_DIR": str(tmp_path / "cache"), "CXX": str(program)}
    found = subprocess.run(
        [sys.executable, str(script)], env=environment, text=True, capture_output=True, timeout=120
    )
    assert (found.returncode, found.stdout) == (0, "True\n"), found.stderr


@pytest.fixture
def no_memory():
    build.compiler.cache_clear()
    yield
    build.compiler.cache_clear()


def test_no_compiler(no_memory, monkeypatch, tmp_path):
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(DeviceError, match=r"needs a C\+\+17 compiler; there is none of g\+\+"):
        build.compiler()


def test_a_compiler_that_is_not_there(no_memory, monkeypatch):
    monkeypatch.setenv("CXX", "/nowhere/c++")
    with pytest.raises(DeviceError, match=r"CXX='/nowhere/c[+][+]' is not a compiler that runs"):
        build.compiler()


def test_a_library_that_is_none():
    with pytest.raises(DeviceError, match="cannot be loaded"):
        build.open_library(b"not a library")


def test_lines_of_the_text_keep_their_numbers():
    text = 'a\n#line 10 "x y.py"\nb\n# line 20\nc\n  #line 3 "q\\"uote.py"\nd'
    plain, places = build.places(text)
    assert plain == "a\n\nb\n\nc\n\nd"
    assert {k: (p.file, p.line) for k, p in places.items()} == {
        3: ("x y.py", 10),
        5: ("x y.py", 20),
        7: ('q"uote.py', 3),
    }
