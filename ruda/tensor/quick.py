"""Replace what runs for every recorded op by builtins of CPython, once a compiler is there.

Four functions of this package are small, run all the time and do nothing that Python is needed
for: `tensor.record` and `tensor.fresh`, which make the objects of a recorded op, `program.gather`,
which looks at all that waits, and `execute.read`, where ufuncs of arrays that are alike compute it
all; what else there is to read goes to Python. `quick.ll` has them in native code. `install` puts
those in place of the ones in Python when the first kernel was made, as LLVM is loaded by then;
where the layout of objects is not known (PyPy, free-threaded CPython) nothing changes.
"""

from __future__ import annotations

import ctypes
import functools
import string
import sys
from pathlib import Path
from typing import Any

import numpy as np

from ruda import backends
from ruda.dtypes import float32, float64
from ruda.settings import settings
from ruda.tensor import execute, graph, program, tensor

PYTHONS = tensor.fresh, tensor.record, program.gather, execute.read
CLASSES: tuple[type, ...] = (graph.Node, tensor.Storage, tensor.Tensor)


@functools.cache  # once
def install() -> None:
    """Use the native functions from now on, if LLVM is loaded anyway."""
    if "llvmlite" not in sys.modules:
        install.cache_clear()
        return
    backend: Any = backends.get("cpu")
    offsets = {
        f"{c.__name__}_{name}".upper(): offset_of(c, name)
        for c in CLASSES
        for name in vars(c)["__slots__"]
        if name != "__weakref__"
    }
    text = Path(__file__).with_suffix(".ll").read_text(encoding="utf-8")
    constants = {**offsets, "MAX_DEPTH": graph.MAX_DEPTH}
    names = ("fresh", "record", "gather", "read")
    values = {
        "node_type": graph.Node, "storage_type": tensor.Storage, "tensor_type": tensor.Tensor,
        "float_type": float, "int_type": int, "none": None, "false": False, "zero": 0,
        "nothing": (), "array_type": np.ndarray, "single": float32, "double": float64,
        "small": execute._small, "settings": settings, "local": settings.local,
        "plain_name": "plain", "cpu_name": "cpu", "base_name": "base", "fusion_name": "fusion",
        "verify_name": "verify", "warnings": execute.WARNINGS, "quiet": execute.QUIET,
        "acquire": execute._lock.acquire, "release": execute._lock.release,
        "by_python": execute.read,
    }  # fmt: skip
    made = backend.builtins(string.Template(text).substitute(constants), names, values)
    if made is not None:
        tensor.fresh, tensor.record, program.gather, read = made
        if execute.WARNINGS is not None:
            execute.read = read


def offset_of(cls: type, name: str) -> int:
    """The byte of an object at which one of its slots lies."""
    holder, content = cls(), object()
    setattr(holder, name, content)
    words = (ctypes.c_int64 * (cls.__basicsize__ // 8)).from_address(id(holder))
    return 8 * list(words).index(id(content), 2)  # after its count of references, and its type
