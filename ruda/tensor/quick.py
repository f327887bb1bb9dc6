"""Replace what runs for every recorded op by builtins of CPython, once a compiler is there.

Seven functions of this package are small, run all the time and do nothing that Python is needed
for: `tensor.record` and `tensor.fresh`, which make the objects of a recorded op, `program.gather`
and `program.above`, which look at all that waits, `execute.read` with `Tensor.buffer`, where ufuncs
of arrays that are alike compute it all, or on another device one launch that is known
(`execute.alone`), and `Tensor.__array__`, which gives that to NumPy; what else there is goes to
Python. `quick.ll` has them in native code. `install` puts those in place of the ones in Python when
the first kernel was made, if LLVM is loaded by then, or when many ops have run; where the layout of
objects is not known (PyPy, free-threaded CPython) nothing changes.

A ufunc is a loop over elements with much around it: dtypes to find, errors to tell, other threads
to let run. `loops` finds the loops that NumPy would take; their results are the same bits.
"""

from __future__ import annotations

import ctypes
import functools
import string
import struct
import sys
from pathlib import Path
from typing import Any

import numpy as np

from ruda import backends
from ruda.backends.base import offset_of
from ruda.dtypes import DType, float32, float64
from ruda.settings import settings
from ruda.tensor import execute, graph, program, tensor
from ruda.tensor.opdef import TAKES, Row
from ruda.tensor.ops import OPS

PYTHONS = (
    tensor.fresh, tensor.record, program.gather, program.above, execute.read,
    tensor.Tensor.__array__,
)  # fmt: skip
*_, READ, ARRAY = PYTHONS
BUFFER = tensor.Tensor.buffer
CLASSES: tuple[type, ...] = (graph.Node, tensor.Storage, tensor.Tensor)


def install(load: bool = False) -> None:
    """Use the native functions from now on, if LLVM is loaded anyway, or may be loaded for them."""
    if load or "llvmlite" in sys.modules:
        _install()


@functools.cache  # once
def _install() -> None:
    backend: Any = backends.get("cpu")
    native = backend.native
    offsets = {
        f"{c.__name__}_{name}".upper(): offset_of(c, name)
        for c in CLASSES
        for name in vars(c)["__slots__"]
        if name != "__weakref__"
    }
    text = Path(__file__).with_suffix(".ll").read_text(encoding="utf-8")
    places = {f"ALONE_{name.upper()}": k for k, name in enumerate(execute.Alone._fields)}
    constants = {
        **offsets, **places, **native.OFFSETS, "MAX_DEPTH": graph.MAX_DEPTH,
        "SCALAR_VALUE": native.SCALAR_VALUE, "READONLY": ~native.WRITEABLE,
        "OWN_MORE": program.OWN - 1,
    }  # fmt: skip
    singles: dict[Row, bytes] = {}
    doubles: dict[Row, bytes] = {}
    values = {
        "node_type": graph.Node, "storage_type": tensor.Storage, "tensor_type": tensor.Tensor,
        "float_type": float, "int_type": int, "none": None, "false": False, "true": True, "zero": 0,
        "nothing": (), "array_type": np.ndarray, "single": float32, "double": float64,
        "singles": singles, "doubles": doubles,
        "small": execute._small, "settings": settings, "local": settings.local,
        "cpu_name": "cpu", "base_name": "base", "fusion_name": "fusion", "verify_name": "verify",
        "acquire": execute._lock.acquire, "release": execute._lock.release,
        "by_python": READ, "ops": execute._alone,
        "array_by_python": ARRAY, "buffer_by_python": BUFFER,
        "tracing": graph.tracing, "current_name": "current",
    }  # fmt: skip
    made = native.natives(string.Template(text).substitute(constants), values)
    if made is None:
        return
    singles.update(loops(float32))
    doubles.update(loops(float64))
    for name, place in API.items():
        ctypes.c_void_p.from_address(made[name]).value = numpy_function(place)
    new = native.new_builtin
    tensor.fresh, tensor.record = new(made["fresh"], "fresh"), new(made["record"], "record")
    program.gather, program.above = new(made["gather"], "gather"), new(made["above"], "above")
    execute.read = new(made["read"], "read")
    of = tensor.Tensor
    of.buffer = native.new_method(of, made["buffer"], "buffer")  # type: ignore[method-assign]
    of.__array__ = native.new_method(  # type: ignore[method-assign]
        of, made["array"], "__array__", native.FASTCALL_WITH_KEYWORDS,
        "($self, dtype=None, copy=None)",
    )  # fmt: skip


# ---- NumPy's C interface -------------------------------------------------------------------------

API = {"new_array": 94, "view_array": 137}  # PyArray_NewFromDescr and PyArray_View in its table


def numpy_function(place: int) -> int:
    """The address of a function of NumPy 2's table, which later versions only add to."""
    pointer_of = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
        ("PyCapsule_GetPointer", ctypes.pythonapi)
    )
    table = pointer_of(np._core._multiarray_umath._ARRAY_API, None)  # type: ignore[attr-defined]
    return int((ctypes.c_int64 * (place + 1)).from_address(table)[place])


class Ufunc(ctypes.Structure):
    """The begin of NumPy's PyUFuncObject, after the head of an object."""

    _fields_ = (
        ("nin", ctypes.c_int),
        ("nout", ctypes.c_int),
        ("nargs", ctypes.c_int),
        ("identity", ctypes.c_int),
        ("functions", ctypes.POINTER(ctypes.c_void_p)),
        ("data", ctypes.POINTER(ctypes.c_void_p)),
        ("ntypes", ctypes.c_int),
        ("reserved", ctypes.c_int),
        ("name", ctypes.c_char_p),
        ("types", ctypes.POINTER(ctypes.c_byte)),
    )


def loops(dtype: DType) -> dict[Row, bytes]:
    """For each row that is a ufunc what NumPy runs over the elements of arrays of a float dtype:
    the loop, its data, and the dtype of results with the bytes of one."""
    found: dict[Row, bytes] = {}
    for row in OPS.values():
        ufunc = row.plain
        if ufunc is None or ufunc.nout != 1 or "float" not in TAKES[row.takes]:
            continue
        raw = Ufunc.from_address(id(ufunc) + object.__basicsize__)
        known = raw.nin, raw.nout, raw.nargs, raw.ntypes, raw.name
        if known != (ufunc.nin, 1, ufunc.nargs, ufunc.ntypes, ufunc.__name__.encode()):
            return {}  # another layout
        _, result = row.dtypes((dtype,) * ufunc.nin)
        types = dtype.numpy.char * ufunc.nin + "->" + result.numpy.char
        if types not in ufunc.types:
            continue
        k = ufunc.types.index(types)
        numbers = raw.types[k * raw.nargs : (k + 1) * raw.nargs]
        if numbers == [*[dtype.numpy.num] * ufunc.nin, result.numpy.num]:
            out = np.dtype(result.numpy.char)
            words = raw.functions[k], raw.data[k] or 0, id(out), out.itemsize
            found[row] = struct.pack("=4q", *words)
    return found
