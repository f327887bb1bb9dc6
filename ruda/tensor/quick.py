"""Replace what runs for every recorded op by builtins of CPython, once a compiler is there.

Three functions of this package are small, run all the time and do nothing that Python is needed
for: `tensor.record` and `tensor.fresh`, which make the objects of a recorded op, and
`program.gather`, which looks at all that waits. `quick.ll` has them in native code. `install` puts
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

from ruda import backends
from ruda.tensor import graph, program, tensor

PYTHONS = tensor.fresh, tensor.record, program.gather
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
    names = ("fresh", "record", "gather")
    values = {
        "node_type": graph.Node, "storage_type": tensor.Storage, "tensor_type": tensor.Tensor,
        "float_type": float, "int_type": int, "none": None, "false": False, "zero": 0,
        "nothing": (),
    }  # fmt: skip
    made = backend.builtins(string.Template(text).substitute(constants), names, values)
    if made is not None:
        tensor.fresh, tensor.record, program.gather = made


def offset_of(cls: type, name: str) -> int:
    """The byte of an object at which one of its slots lies."""
    holder, content = cls(), object()
    setattr(holder, name, content)
    words = (ctypes.c_int64 * (cls.__basicsize__ // 8)).from_address(id(holder))
    return 8 * list(words).index(id(content), 2)  # after its count of references, and its type
