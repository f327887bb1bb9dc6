"""Replace what runs for every recorded op by builtins of CPython, once a compiler is there.

Five functions of this package are small, run all the time and do nothing that Python is needed
for: `tensor.record` and `tensor.fresh`, which make the objects of a recorded op, `program.gather`,
which looks at all that waits, and `execute.read` with `Tensor.buffer`, where ufuncs of arrays that
are alike compute it all, or on another device one launch that is known (`execute.alone`); what else
there is to read goes to Python. `quick.ll` has them in native code. `install` puts those in place
of the ones in Python when the first kernel was made, if LLVM is loaded by then, or when many ops
have run; where the layout of objects is not known (PyPy, free-threaded CPython) nothing changes.
"""

from __future__ import annotations

import functools
import string
import sys
from pathlib import Path
from typing import Any

import numpy as np

from ruda import backends
from ruda.backends.base import offset_of
from ruda.dtypes import float32, float64
from ruda.settings import settings
from ruda.tensor import execute, graph, program, tensor

PYTHONS = tensor.fresh, tensor.record, program.gather, execute.read
CLASSES: tuple[type, ...] = (graph.Node, tensor.Storage, tensor.Tensor)


def install(load: bool = False) -> None:
    """Use the native functions from now on, if LLVM is loaded anyway, or may be loaded for them."""
    if load or "llvmlite" in sys.modules:
        _install()


@functools.cache  # once
def _install() -> None:
    backend: Any = backends.get("cpu")
    offsets = {
        f"{c.__name__}_{name}".upper(): offset_of(c, name)
        for c in CLASSES
        for name in vars(c)["__slots__"]
        if name != "__weakref__"
    }
    text = Path(__file__).with_suffix(".ll").read_text(encoding="utf-8")
    places = {f"ALONE_{name.upper()}": k for k, name in enumerate(execute.Alone._fields)}
    constants = {**offsets, **places, "MAX_DEPTH": graph.MAX_DEPTH}
    names = ("fresh", "record", "gather", "read")
    values = {
        "node_type": graph.Node, "storage_type": tensor.Storage, "tensor_type": tensor.Tensor,
        "float_type": float, "int_type": int, "none": None, "false": False, "true": True, "zero": 0,
        "nothing": (), "array_type": np.ndarray, "single": float32, "double": float64,
        "small": execute._small, "settings": settings, "local": settings.local,
        "plain_name": "plain", "cpu_name": "cpu", "base_name": "base", "fusion_name": "fusion",
        "verify_name": "verify", "warnings": execute.WARNINGS, "quiet": execute.QUIET,
        "acquire": execute._lock.acquire, "release": execute._lock.release,
        "by_python": execute.read, "ops": execute._alone,
        "tracing": graph.tracing, "current_name": "current",
        "buffer_by_python": tensor.Tensor.buffer,
    }  # fmt: skip
    methods = {"buffer": tensor.Tensor}
    made = backend.builtins(string.Template(text).substitute(constants), names, values, methods)
    if made is not None:
        tensor.fresh, tensor.record, program.gather, read, buffer = made
        if execute.WARNINGS is not None:
            execute.read, tensor.Tensor.buffer = read, buffer  # type: ignore[method-assign]
