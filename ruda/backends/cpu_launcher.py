"""Turn a compiled kernel body into a Python callable that launches it in well under a microsecond.

`build` makes a builtin function of CPython, whose native code (`cpu_launcher.ll`) checks each
argument against a *row*, packs the *argument block*, and runs the body on the pool. An argument
that is not what its row says, a wrong number of them, a keyword, a changed captured variable: then
the `fallback` is called with the same arguments and its result returned. So the launcher decides
nothing; correctness rests on the fallback, which finds the right specialisation or raises.

The layout is a list with one row per argument:

    ("array", dtype, ndim, "C" | "A", written)      dtype: ruda's or NumPy's, records too
    ("scalar", kind)                                kind: see below
    ("scalar", "weak_int", least, greatest)         with the range that the kernel can carry

The block is an array of 8-byte words, alive until the launch is over:

    0..2    grid x, y, z                            blocks are numbered x + X * (y + Y * z)
    3..5    block x, y, z
    6       address of the report buffer, or 0
    7       bytes of dynamic shared memory
    8...    the arguments in order:
            array: address of its first element, then each axis's extent (elements), then each
            axis's stride (bytes; of an axis with fewer than 2 elements it may be anything)
            scalar: one word, complex128 and weak_complex two (real, imaginary)

    kind                            Python value        word
    weak_int                        int                 int64
    weak_float, weak_complex        float, complex      the bits of a double, of two
    bool                            bool, numpy.bool_   0 or 1
    int8 ... int64                  NumPy scalar        extended with the sign
    uint8 ... uint64, float16,
    bfloat16, float32, float64,
    complex64, complex128           NumPy scalar        its bits, from the low end, filled with 0

* "C" arrays are C-contiguous; all arrays are aligned and of native byte order, and `written` ones
  are writeable. Only `numpy.ndarray` itself takes the fast path. "A" takes any strides.
* `no_alias=True`: no written array overlaps another array argument, else the fallback is called.
* A *guard* `(dictionary, key, value)` or `(cell, None, value)` names a captured variable that must
  still hold the very same object.
* `after` is called without arguments when a launch leaves the first word of the report buffer
  other than 0; its result is the launcher's.
* Launches of microseconds keep the GIL; what takes longer lets it go (`cpu_pool`). A single block
  cannot be divided, so there the time of the last launch decides (the first one lets it go).

`build` returns None where the native code cannot work (PyPy, free-threaded CPython, an unknown
object layout). `build_python` does the same in Python; `build_any` takes what there is.
"""

from __future__ import annotations

import ctypes
import functools
import math
import string
import struct
import sys
import types
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ruda.backends import cpu_pool
from ruda.dtypes import DType, as_dtype
from ruda.errors import LaunchTypeError

Row = tuple[Any, ...]
Guard = tuple[Any, Any, Any]
Launcher = Callable[..., Any]

HEADER = 8  # words before the arguments
REPORT = 6  # the word with the address of the report buffer
INT64 = (-(1 << 63), (1 << 63) - 1)

# What the native code does with an argument.
_NAMES = (
    "ARRAY PYTHON_INT BOOL SIGNED_8 SIGNED_16 SIGNED_32 BITS_8 BITS_16 BITS_32 BITS_64 BITS_128"
)
ACTIONS = {name: number for number, name in enumerate(_NAMES.split())}

# Byte offsets in the objects of CPython 3.11 to 3.14 and NumPy 2; `_layout_is_known` tries them.
OFFSETS = {
    "OBJECT_TYPE": 8,
    "ARRAY_DATA": 16,
    "ARRAY_NDIM": 24,
    "ARRAY_EXTENTS": 32,
    "ARRAY_STRIDES": 40,
    "ARRAY_DESCR": 56,
    "ARRAY_FLAGS": 64,
    "DESCR_BYTEORDER": 26,
    "DESCR_TYPE_NUM": 28,
    "CELL_CONTENT": 16,
}
SCALAR_VALUE = 16  # of float, complex and every NumPy scalar
C_CONTIGUOUS, ALIGNED, WRITEABLE = 0x1, 0x100, 0x400

SCALARS = (
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "float32", "float64", "complex64", "complex128"),
)
WEAK = {"weak_int": int, "weak_float": float, "weak_complex": complex}


# ---- rows ----------------------------------------------------------------------------------------


def _numpy_dtype(dtype: Any) -> np.dtype[Any]:
    return dtype.numpy if isinstance(dtype, DType) else np.dtype(dtype)


def _kind(row: Row) -> str:
    return row[1].name if isinstance(row[1], DType) else str(row[1])


def _value_range(row: Row) -> tuple[int, int]:
    return (row[2], row[3]) if len(row) == 4 else INT64


def word_count(layout: Sequence[Row]) -> int:
    """Words of the argument block.

    >>> word_count([("array", np.float32, 2, "C", True), ("scalar", "weak_float")])
    14
    """
    wide = ("complex128", "weak_complex")
    return HEADER + sum(
        1 + 2 * row[2] if row[0] == "array" else 1 + (_kind(row) in wide) for row in layout
    )


def mismatch(value: Any, row: Row) -> str | None:
    """Why a value is not what its row says; None if it is.

    >>> mismatch(np.zeros(3), ("array", np.float32, 1, "C", False))
    'an array of float64, not of float32'
    >>> mismatch(2.0, ("scalar", "weak_float"))
    """
    if row[0] == "array":
        return _array_mismatch(value, row)
    kind = _kind(row)
    if kind == "bool":
        good = isinstance(value, (bool, np.bool_))
    elif kind in WEAK:
        good = type(value) is WEAK[kind]
    else:
        good = isinstance(value, _scalar_type(kind))
    if not good:
        return f"{type(value).__name__}, not {kind}"
    if kind == "weak_int":
        least, greatest = _value_range(row)
        return None if least <= value <= greatest else f"{value}, not in {least}..{greatest}"
    return None


def _array_mismatch(value: Any, row: Row) -> str | None:
    _, dtype, ndim, layout, written = row
    if not isinstance(value, np.ndarray):
        return f"{type(value).__name__}, not an array"
    if value.dtype != _numpy_dtype(dtype):
        return f"an array of {value.dtype}, not of {_numpy_dtype(dtype)}"
    if value.ndim != ndim:
        return f"an array with {value.ndim} axes, not {ndim}"
    if layout == "C" and not value.flags.c_contiguous:
        return "an array that is not C-contiguous"
    if not value.flags.aligned:
        return "an array that is not aligned"
    if written and not value.flags.writeable:
        return "a read-only array"
    return None


def overlaps(arguments: Sequence[Any], layout: Sequence[Row]) -> bool:
    """Does a written array share bytes' range with another array argument?

    >>> x, layout = np.zeros(6), [("array", float, 1, "C", w) for w in (False, True)]
    >>> overlaps([x[:3], x[3:]], layout), overlaps([x[:4], x[3:]], layout)
    (False, True)
    """
    ranges = []
    for value, row in zip(arguments, layout, strict=True):
        if row[0] == "array" and value.size:
            ways = [(n - 1) * s for n, s in zip(value.shape, value.strides, strict=True)]
            first = value.ctypes.data + sum(min(way, 0) for way in ways)
            end = value.ctypes.data + sum(max(way, 0) for way in ways) + value.itemsize
            ranges.append((first, end, row[4]))
    return any(
        a[2] and a[0] < b[1] and b[0] < a[1]
        for i, a in enumerate(ranges)
        for j, b in enumerate(ranges)
        if i != j
    )


def pack(
    arguments: Sequence[Any],
    layout: Sequence[Row],
    grid: tuple[int, int, int] = (1, 1, 1),
    block: tuple[int, int, int] = (1, 1, 1),
    report: int = 0,
    shared_bytes: int = 0,
) -> np.ndarray[Any, np.dtype[np.int64]]:
    """The argument block. It holds addresses: keep the arguments alive while it is used.

    >>> pack([np.int32(-2), True], [("scalar", "int32"), ("scalar", "bool")], grid=(7, 1, 1))
    array([ 7,  1,  1,  1,  1,  1,  0,  0, -2,  1])
    """
    if len(arguments) != len(layout):
        raise LaunchTypeError(f"{len(layout)} arguments expected, {len(arguments)} given")
    words = [*grid, *block, report, shared_bytes]
    for i, (value, row) in enumerate(zip(arguments, layout, strict=True)):
        why = mismatch(value, row)
        if why is not None:
            error = (
                OverflowError
                if _kind(row) == "weak_int" and type(value) is int
                else LaunchTypeError
            )
            raise error(f"argument {i} is {why}")
        if row[0] == "array":
            words += [value.ctypes.data, *value.shape, *value.strides]
        else:
            words += _scalar_words(value, _kind(row))
    return np.array([word % (1 << 64) for word in words], np.uint64).view(np.int64)


def _scalar_words(value: Any, kind: str) -> list[int]:
    if kind in ("weak_int", "bool"):
        return [int(value)]
    if kind == "weak_float":
        raw = struct.pack("=d", value)
    elif kind == "weak_complex":
        raw = struct.pack("=dd", value.real, value.imag)
    else:
        raw = np.asarray(value, _scalar_type(kind)).tobytes()
    signed = kind.startswith("int")
    return [
        int.from_bytes(raw[i : i + 8], sys.byteorder, signed=signed) for i in range(0, len(raw), 8)
    ]


def _scalar_type(kind: str) -> Any:
    return as_dtype(kind).numpy.type


# ---- the native launcher -------------------------------------------------------------------------


class _MethodDef(ctypes.Structure):
    """CPython's PyMethodDef."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("function", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    )


NOTHING, FASTCALL, FASTCALL_WITH_KEYWORDS = 0x4, 0x80, 0x80 | 0x2


def build(
    layout: Sequence[Row],
    body: int,
    grid: tuple[int, int, int],
    block: tuple[int, int, int],
    fallback: Launcher,
    *,
    threads: int,
    count: int | None = None,
    chunk: int = 0,
    shared_bytes: int = 0,
    report: int = 0,
    after: Callable[[], Any] | None = None,
    no_alias: bool = False,
    guards: Sequence[Guard] = (),
    keep: Any = None,
) -> Launcher | None:
    """A builtin that launches a body; None where that is not possible.

    `body` is the address of the code, `keep` whatever keeps that code in memory. `threads`, `count`
    and `chunk` are those of `cpu_pool.run`; without a count the items are the blocks of the grid.
    This takes 130 to 230 microseconds: make one launcher per launch shape.
    """
    method = _method()
    if method is None:
        return None
    kept: list[Any] = [fallback, after, keep, *guards]
    rows = [_native_row(row, kept) for row in layout]
    plan = [
        cpu_pool.native().launch, body, math.prod(grid) if count is None else count, chunk, threads,
        1,  # `slow`: nothing is known of its time yet
        id(fallback), 0 if after is None else id(after),
        len(rows), len(guards), word_count(layout), int(no_alias), 0, 0,
        *grid, *block, report, shared_bytes,
    ]  # fmt: skip
    tables = [
        *(
            [isinstance(where, types.CellType), id(where), id(key), id(value)]
            for where, key, value in guards
        ),
        *rows,
    ]
    memory = np.array(plan + [word for table in tables for word in table], np.int64)
    memory[13] = memory.ctypes.data + 8 * len(plan)
    memory[12] = memory[13] + 8 * 4 * len(guards)
    launcher: Launcher = _new_builtin(ctypes.addressof(method), (memory, *kept), None)
    return launcher


_new_builtin = ctypes.PYFUNCTYPE(
    ctypes.py_object, ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p
)(("PyCFunction_NewEx", ctypes.pythonapi))
_new_descriptor = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.py_object, ctypes.c_void_p)(
    ("PyDescr_NewMethod", ctypes.pythonapi)
)


def _native_row(row: Row, kept: list[Any]) -> list[int]:
    """The eleven words of a %Row; what they point to goes to `kept`."""
    if row[0] == "array":
        _, dtype, ndim, layout, written = row
        if layout not in ("C", "A"):
            raise ValueError(f"layout {layout!r}: expected 'C' or 'A'")
        descr = _numpy_dtype(dtype)
        kept.append(descr)
        flags = ALIGNED | (C_CONTIGUOUS if layout == "C" else 0) | (WRITEABLE if written else 0)
        # A type number tells everything only of plain numbers, not of records and times.
        number = descr.num if descr.kind in "biufc" else -1
        return [ACTIONS["ARRAY"], id(np.ndarray), 0, ndim, flags, int(written), id(descr), number,
                descr.itemsize, 0, 0]  # fmt: skip
    kind = _kind(row)
    least, greatest = _value_range(row)
    action, python_type = _scalar_action(kind)
    kept.append(python_type)
    where = 0 if python_type is None else id(python_type)
    least, greatest = max(least, INT64[0]), min(greatest, INT64[1])
    return [ACTIONS[action], where, SCALAR_VALUE, 0, 0, 0, 0, 0, 0, least, greatest]


def _scalar_action(kind: str) -> tuple[str, Any]:
    """What the native code does with a scalar, and the one type that it takes (None: see there)."""
    match kind:
        case "weak_int":
            return "PYTHON_INT", int
        case "bool":
            return "BOOL", None
        case "weak_float":
            return "BITS_64", float
        case "weak_complex":
            return "BITS_128", complex
    dtype = as_dtype(kind)
    signed = dtype.kind == "int" and dtype.bits < 64
    return f"{'SIGNED' if signed else 'BITS'}_{dtype.bits}", _scalar_type(kind)


@functools.cache
def _method() -> _MethodDef | None:
    """The builtin's definition, compiled at the first call; it and its code live for ever."""
    if not _layout_is_known():
        return None
    text = Path(__file__).with_suffix(".ll").read_text(encoding="utf-8")
    constants = {**ACTIONS, **OFFSETS, "HEADER": HEADER, "REPORT": REPORT}
    addresses = cpu_pool.load_forever(string.Template(text).substitute(constants))
    singletons: dict[str, Any] = {"none": None, "true": True, "false": False}
    singletons |= {"numpy_true": np.True_, "numpy_false": np.False_}
    for name, value in singletons.items():
        ctypes.c_void_p.from_address(addresses[name]).value = id(value)
    return _MethodDef(b"launch", addresses["launcher"], FASTCALL_WITH_KEYWORDS, None)


def natives(text: str, values: Mapping[str, Any]) -> dict[str, int] | None:
    """The addresses of what IR text defines, its variables filled with objects; None where their
    layout is not known. The code is never unloaded."""
    if not _layout_is_known():
        return None
    addresses = cpu_pool.load_forever(text)
    for name, value in values.items():
        ctypes.c_void_p.from_address(addresses[name]).value = id(value)
        _keep_forever(value)
    return addresses


def _keep_forever(value: Any) -> None:
    """Also when the interpreter ends, and modules lose their variables before objects die."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(value))


def new_builtin(address: int, name: str, own: tuple[Any, ...] | None = None) -> Any:
    """A builtin of positional arguments; its code gets `own`, and keeps it alive."""
    return _new_builtin(ctypes.addressof(_method_of(address, name, FASTCALL)), own, None)


def new_method(
    kind: type, address: int, name: str, flags: int = NOTHING, signature: str = "($self, /)"
) -> Any:
    """A method of a class's objects that takes nothing else, or what the flags say, in place of the
    class's."""
    text = f"{name}{signature}\n--\n\n{getattr(kind, name).__doc__ or ''}"
    method = _method_of(address, name, flags, text)
    return _new_descriptor(kind, ctypes.addressof(method))


@functools.cache
def _method_of(address: int, name: str, flags: int, text: str | None = None) -> _MethodDef:
    found = _MethodDef(name.encode(), address, flags, text.encode() if text else None)
    _keep_forever(found)  # CPython refers to it
    return found


def _layout_is_known() -> bool:
    """Are Python's and NumPy's objects laid out as the native code expects?"""
    if not (
        sys.implementation.name == "cpython"
        and (3, 11) <= sys.version_info[:2] <= (3, 14)
        and "t" not in getattr(sys, "abiflags", "")  # free-threaded
        and sys.maxsize == INT64[1]
        and cpu_pool.POSIX
    ):
        return False
    sample = np.arange(24, dtype=np.int16).reshape(4, 6)[::2, ::3]
    content = object()
    cell = types.CellType(content)
    words = [
        (sample, "OBJECT_TYPE", id(np.ndarray)),
        (sample, "ARRAY_DATA", sample.ctypes.data),
        (sample, "ARRAY_DESCR", id(sample.dtype)),
        (cell, "CELL_CONTENT", id(content)),
    ]
    vectors = [
        (sample, "ARRAY_EXTENTS", sample.shape),
        (sample, "ARRAY_STRIDES", sample.strides),
    ]
    numbers = [
        (sample, "ARRAY_NDIM", ctypes.c_int32, sample.ndim),
        (sample, "ARRAY_FLAGS", ctypes.c_int32, sample.flags.num),
        (sample.dtype, "DESCR_BYTEORDER", ctypes.c_uint8, ord(sample.dtype.byteorder)),
        (sample.dtype, "DESCR_TYPE_NUM", ctypes.c_int32, sample.dtype.num),
    ]
    scalars = [1.5, 1.5 - 2.5j, *(as_dtype(name).numpy.type(3) for name in SCALARS)]
    return (
        all(_peek(a, OFFSETS[name], ctypes.c_int64) == value for a, name, value in words)
        and all(_peek(a, OFFSETS[name], kind) == value for a, name, kind, value in numbers)
        and all(
            tuple((ctypes.c_int64 * 2).from_address(_peek(a, OFFSETS[name], ctypes.c_int64)))
            == value
            for a, name, value in vectors
        )
        and all(
            ctypes.string_at(id(scalar) + SCALAR_VALUE, np.asarray(scalar).nbytes)
            == np.asarray(scalar).tobytes()
            for scalar in scalars
        )
    )


def _peek(value: Any, offset: int, kind: Any) -> Any:
    return kind.from_address(id(value) + offset).value


# ---- the same in Python --------------------------------------------------------------------------


def unchanged(where: Any, key: Any, value: Any) -> bool:
    """Whether a guarded variable holds the very object that it held."""
    if not isinstance(where, types.CellType):
        return key in where and where[key] is value
    try:
        return where.cell_contents is value
    except ValueError:  # an empty cell: the variable was deleted
        return False


def build_python(
    layout: Sequence[Row],
    body: int,
    grid: tuple[int, int, int],
    block: tuple[int, int, int],
    fallback: Launcher,
    *,
    threads: int,
    count: int | None = None,
    chunk: int = 0,
    shared_bytes: int = 0,
    report: int = 0,
    after: Callable[[], Any] | None = None,
    no_alias: bool = False,
    guards: Sequence[Guard] = (),
    keep: Any = None,
) -> Launcher:
    """What `build` does, in Python."""
    layout = list(layout)
    items = math.prod(grid) if count is None else count

    def launch(*arguments: Any, **keywords: Any) -> Any:
        if (
            keywords
            or len(arguments) != len(layout)
            or any(mismatch(*pair) for pair in zip(arguments, layout, strict=True))
            or not all(unchanged(*guard) for guard in guards)
            or (no_alias and overlaps(arguments, layout))
        ):
            return fallback(*arguments, **keywords)
        words = pack(arguments, layout, grid, block, report, shared_bytes)
        cpu_pool.run(body, words.ctypes.data, items, chunk, threads)
        if after is not None and ctypes.c_int64.from_address(report).value:
            return after()
        return None

    launch.keep = keep  # type: ignore[attr-defined]
    return launch


def build_any(*arguments: Any, **keywords: Any) -> Launcher:
    """`build` where it works, else `build_python`."""
    return build(*arguments, **keywords) or build_python(*arguments, **keywords)
