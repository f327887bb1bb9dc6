"""Types of kernel arguments and values beyond plain numbers, and how they are spelled.

A type is a `DType` (a scalar), an `ArrayType`, a `RecordType`, a `TupleType` or a `Static` (an
object known while compiling). They are compared by value: they are part of the specialisation key.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ruda import dtypes
from ruda.dtypes import DType, as_dtype
from ruda.errors import DTypeError, LaunchTypeError


@dataclass(frozen=True, slots=True)
class RecordType:
    """A NumPy structured dtype: fields at byte offsets, possibly unaligned."""

    fields: tuple[tuple[str, int, FieldType], ...]
    itemsize: int

    @property
    def name(self) -> str:
        return "record"

    def field(self, name: str) -> tuple[int, FieldType] | None:
        return next(((o, t) for n, o, t in self.fields if n == name), None)

    def __str__(self) -> str:
        return "{" + ", ".join(f"{n}: {t}" for n, _, t in self.fields) + "}"


@dataclass(frozen=True, slots=True)
class FixedArray:
    """A field that holds an array of constant shape."""

    dtype: DType | RecordType
    shape: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.dtype}{list(self.shape)}"


FieldType = DType | RecordType | FixedArray
ElementType = DType | RecordType


@dataclass(frozen=True, slots=True)
class ArrayType:
    """An array argument. Layout "C" is contiguous in C order; "A" is any strides.

    >>> parse_type("f32[:, :]").layout, str(parse_type("float32[::1]"))
    ('A', 'float32[::1]')
    """

    dtype: ElementType
    ndim: int
    layout: str = "A"
    readonly: bool = False
    aligned: bool = True

    def __str__(self) -> str:
        axes = [":"] * self.ndim
        if self.layout == "C" and axes:
            axes[-1] = "::1"
        return f"{self.dtype}[{', '.join(axes)}]"


@dataclass(frozen=True, slots=True)
class TupleType:
    """A tuple or NamedTuple argument: its items are passed one by one."""

    items: tuple[Type, ...]
    names: tuple[str, ...] = ()
    cls: type | None = None  # the NamedTuple class

    def __str__(self) -> str:
        inner = ", ".join(map(str, self.items))
        return f"{self.cls.__name__ if self.cls else ''}({inner})"


CONSTANTS = frozenset({bool, int, str, type(None), DType})  # equal where type and value are


def constant_kind(value: Any) -> Any:
    """A compile-time value such that what compares equal makes the same kernel; None: unknown."""
    kind = type(value)
    if kind in CONSTANTS:
        return kind, value
    if kind is float or kind is complex:
        return kind, repr(value)  # which parts zeros, and knows NaN
    if isinstance(value, tuple):
        items = tuple(constant_kind(v) for v in value)
        return None if None in items else (kind, items)
    return None


@dataclass(frozen=True, slots=True)
class Static:
    """A compile-time value: a `constexpr` argument, None, a string. Each value is a
    specialisation."""

    value: Any = field(compare=False)
    kind: Any  # what is compared: 1, 1.0 and True are three values, and so are 0.0 and -0.0

    @staticmethod
    def of(value: Any) -> Static:
        return Static(value, constant_kind(value) or (type(value), value))

    def __str__(self) -> str:
        return getattr(self.value, "__name__", None) or repr(self.value)


Type = DType | ArrayType | RecordType | TupleType | Static
TYPES = (DType, ArrayType, RecordType, TupleType)  # what users write types with


@dataclass(frozen=True, slots=True)
class Signature:
    """Argument types of an eagerly compiled kernel; `result` is set for device functions."""

    arguments: tuple[Type, ...]
    result: Type | None = None


# ---- spelling ----


def array_type_from_item(dtype: ElementType, item: Any) -> ArrayType:
    """`float32[:, ::1]` as numba spells it."""
    axes = item if isinstance(item, tuple) else (item,)
    if not all(isinstance(a, slice) and a.start is None and a.stop is None for a in axes):
        raise TypeError(f"an array type is written `{dtype}[:]` or `{dtype}[:, ::1]`")
    contiguous = axes[-1].step == 1
    return ArrayType(dtype, len(axes), "C" if contiguous else "A")


_ARRAY = re.compile(r"^(\w+)\s*\[([:,1\s]*)\]$")


def parse_type(spec: Any) -> Type:
    """The type for a ruda type or dtype, a NumPy dtype, a numba type, or text such as "f32[:, :]".

    The texts "int", "float", "bool" and "complex" stand for Python scalars, which are weak.
    """
    if isinstance(spec, (DType, ArrayType, RecordType, TupleType, Static)):
        return spec
    if isinstance(spec, str):
        return _parse_text(spec.strip())
    if spec in (int, float, bool, complex):
        return _python_scalar(spec.__name__)
    if spec is None or type(spec).__name__ == "NoneType":
        return Static.of(None)
    kind = type(spec).__module__
    if kind.startswith("numba."):
        return _from_numba(spec)
    if isinstance(spec, np.dtype) and spec.names is not None:
        return record_type(spec)
    return as_dtype(spec)


def _python_scalar(name: str) -> DType:
    weak = {"int": dtypes.weak_int, "float": dtypes.weak_float, "complex": dtypes.weak_complex}
    return weak.get(name, dtypes.bool_)


def _parse_text(text: str) -> Type:
    if text in ("int", "float", "complex", "bool"):
        return _python_scalar(text)
    if text in ("none", "None"):
        return Static.of(None)
    found = _ARRAY.match(text)
    if found:
        axes = [a.strip() for a in found[2].split(",")]
        if not all(a in (":", "::1", "::") for a in axes):
            raise DTypeError(f"{text!r} is not an array type; write for example 'f32[:, :]'")
        return ArrayType(as_dtype(found[1]), len(axes), "C" if axes[-1] == "::1" else "A")
    if text.startswith("(") and text.endswith(")"):
        return TupleType(tuple(parse_type(t) for t in split_types(text[1:-1])))
    return as_dtype(text)


def split_types(text: str) -> list[str]:
    """Split "f32[:, :], i32" at the commas outside brackets."""
    parts, depth, current = [], 0, ""
    for c in text:
        depth += (c in "[(") - (c in "])")
        if c == "," and depth == 0:
            parts.append(current)
            current = ""
        else:
            current += c
    return [p.strip() for p in [*parts, current] if p.strip()]


def parse_signature(spec: Any) -> Signature:
    """A signature: text "void(f32[:], i32)", numba's object, or a tuple of types.

    >>> parse_signature("void(f32[::1], i32)").arguments[1]
    ruda.int32
    """
    if isinstance(spec, Signature):
        return spec
    if isinstance(spec, str):
        found = re.match(r"^\s*([\w\[\]:, ]*?)\s*\((.*)\)\s*$", spec, re.DOTALL)
        if found is None:
            raise DTypeError(f"{spec!r} is not a signature; write for example 'void(f32[:], i32)'")
        result = None if found[1] in ("void", "none", "None", "") else parse_type(found[1])
        return Signature(tuple(parse_type(t) for t in split_types(found[2])), result)
    if isinstance(spec, (tuple, list)):
        return Signature(tuple(parse_type(t) for t in spec))
    if hasattr(spec, "args") and hasattr(spec, "return_type"):  # numba's Signature
        name = getattr(spec.return_type, "name", "none")
        result = None if name in ("none", "void") else parse_type(spec.return_type)
        return Signature(tuple(parse_type(t) for t in spec.args), result)
    raise DTypeError(f"{spec!r} is not a signature; write for example 'void(f32[:], i32)'")


def void(*arguments: Any) -> Signature:
    """A kernel's signature as numba spells it: `@ruda.jit(ruda.void(ruda.float32[:], ruda.int32))`.

    >>> str(void("f32[:]").arguments[0])
    'float32[:]'
    """
    return Signature(tuple(parse_type(t) for t in arguments))


def _from_numba(spec: Any) -> Type:
    if hasattr(spec, "ndim") and hasattr(spec, "layout"):
        dtype = spec.dtype
        element = _from_numba(dtype) if hasattr(dtype, "fields") else as_dtype(dtype)
        assert isinstance(element, (DType, RecordType))
        return ArrayType(element, spec.ndim, "C" if spec.layout == "C" else "A", not spec.mutable)
    if hasattr(spec, "fields") and hasattr(spec, "dtype"):
        return record_type(spec.dtype)
    if hasattr(spec, "types"):
        return TupleType(tuple(parse_type(t) for t in spec.types))
    return as_dtype(spec)


def record_type(dtype: np.dtype[Any]) -> RecordType:
    """The record type of a structured NumPy dtype."""
    assert dtype.names is not None and dtype.fields is not None
    rows: list[tuple[str, int, FieldType]] = []
    for name in dtype.names:
        field, offset = dtype.fields[name][:2]
        element = field.base
        kind = record_type(element) if element.names is not None else as_dtype(element)
        rows.append((name, offset, FixedArray(kind, field.shape) if field.shape else kind))
    return RecordType(tuple(rows), dtype.itemsize)


@functools.lru_cache(maxsize=1024)
def untitled(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The same layout without the titles of fields, which say nothing to kernels."""
    if dtype.subdtype is not None:
        element, shape = dtype.subdtype
        return np.dtype((untitled(element), shape))
    if dtype.names is None or dtype.fields is None:
        return dtype
    fields = [dtype.fields[name] for name in dtype.names]
    formats = [untitled(field[0]) for field in fields]
    if all(len(f) == 2 and f[0] is plain for f, plain in zip(fields, formats, strict=True)):
        return dtype
    offsets = [field[1] for field in fields]
    layout: Any = {"names": list(dtype.names), "formats": formats, "offsets": offsets}
    found: np.dtype[Any] = np.dtype(
        layout | {"itemsize": dtype.itemsize}, align=dtype.isalignedstruct
    )
    return found


def element_type(dtype: np.dtype[Any]) -> ElementType:
    """The element type of arrays of a NumPy dtype; DTypeError where ruda has none."""
    return record_type(dtype) if dtype.names is not None else as_dtype(dtype)


# ---- from values ----


def type_of(value: Any, name: str = "argument") -> Type:
    """The type of a launch argument.

    Python numbers are weak; NumPy scalars are not. Arrays are NumPy arrays or anything that has
    `dtype`, `shape` and `strides` as ruda's `DeviceArray` does.

    >>> type_of(2.0), type_of(np.int8(1)), str(type_of(np.zeros((2, 3), np.float32)))
    (ruda.weak_float, ruda.int8, 'float32[:, ::1]')
    """
    kind = type(value)
    if kind is bool:
        return dtypes.bool_
    if kind is int:
        return dtypes.weak_int
    if kind is float:
        return dtypes.weak_float
    if kind is complex:
        return dtypes.weak_complex
    if isinstance(value, np.ndarray):
        return _array_type(value, name)
    if isinstance(value, np.void) and value.dtype.names is not None:
        return record_type(value.dtype)
    if isinstance(value, np.generic):
        return _element(value.dtype, name, "a scalar")
    if isinstance(value, tuple):
        items = tuple(type_of(v, f"{name}[{k}]") for k, v in enumerate(value))
        names = getattr(kind, "_fields", ())
        return TupleType(items, tuple(names), kind if names else None)
    import enum

    if isinstance(value, enum.Enum):
        return type_of(value.value, name)
    if value is None or isinstance(value, str):
        return Static.of(value)
    if hasattr(value, "__ruda_array_type__"):
        if value.__ruda_array_type__ is None:
            value.__ruda_array_type__ = _device_array_type(value, name)
        return value.__ruda_array_type__  # type: ignore[no-any-return]
    if isinstance(value, bool | int | float):  # subclasses
        return type_of(kind.__mro__[-2](value), name)
    wanted = "a kernel takes arrays, numbers, tuples and records"
    raise LaunchTypeError(f"{name}: {wanted}, not {kind.__name__}{_instead(kind, name)}")


# What to pass for a Python object that is no argument of kernels, by the name of its class.
INSTEAD = {
    "list": "np.asarray({name})`, kept for the results if it is written",
    "range": "np.asarray({name})`",
    "set": "np.array(sorted({name}))`",
    "frozenset": "np.array(sorted({name}))`",
    "dict": "np.array(list({name}.values()))`, and the keys in another array",
    "bytes": "np.frombuffer({name}, np.uint8)`",
    "bytearray": "np.frombuffer({name}, np.uint8)`",
    "memoryview": "np.asarray({name})`",
    "Decimal": "float({name})`",
    "Fraction": "float({name})`",
    "date": "{name}.toordinal()`",
    "datetime": "{name}.timestamp()`",
    "timedelta": "{name}.total_seconds()`",
    "DataFrame": "{name}.to_numpy()`",
    "Series": "{name}.to_numpy()`",
}


def _instead(kind: type, name: str) -> str:
    text = INSTEAD.get(kind.__name__)
    return "" if text is None else f"; pass `{text.format(name=name.strip('`'))}"


def _element(dtype: np.dtype[Any], name: str, what: str) -> ElementType:
    try:
        return _known_element(dtype)
    except DTypeError:
        hint = ""
        fields = [f[0] for f in dtype.fields.values()] if dtype.fields else []
        if any(not f.isnative for f in fields):
            hint = "; pass `x.astype(x.dtype.newbyteorder('='))`"
        elif dtype.kind in "OSUV":
            hint = "; kernels compute with numbers: encode it, for example by np.unique"
        elif dtype.kind in "mM":
            hint = "; pass `x.view(np.int64)`"
        elif not dtype.isnative:
            hint = "; pass `x.astype(x.dtype.newbyteorder('='))`"
        elif dtype.itemsize > 8:
            hint = "; pass `x.astype(np.float64)`"
        raise LaunchTypeError(
            f"{name}: {what} of dtype {dtype} cannot go to a kernel{hint}"
        ) from None


def _array_type(value: np.ndarray[Any, Any], name: str) -> ArrayType:
    flags = value.flags
    if type(value) is not np.ndarray and hasattr(value, "mask"):  # numpy.ma is slow to import
        raise LaunchTypeError(
            f"{name}: a kernel does not see the mask of a masked array; pass `x.data` and `x.mask`"
        )
    return ArrayType(
        _element(value.dtype, name, "an array"),
        value.ndim,
        "C" if flags.c_contiguous else "A",
        not flags.writeable,
        flags.aligned,
    )


@functools.lru_cache(maxsize=1024)
def _known_element(dtype: np.dtype[Any]) -> ElementType:
    return element_type(dtype)


def _device_array_type(value: Any, name: str) -> ArrayType:
    layout = "C" if value.is_c_contiguous() else "A"
    element = _element(value.dtype, name, "an array")
    readonly = value.storage.readonly
    return intern(ArrayType(element, value.ndim, layout, readonly, aligned=value.is_aligned))


_INTERNED: dict[ArrayType, ArrayType] = {}


def intern(kind: ArrayType) -> ArrayType:
    """The one object of that type, so that launchers compare identities."""
    return _INTERNED.setdefault(kind, kind)


def flatten(types: Iterable[Type]) -> list[Type]:
    """Tuples replaced by their items, recursively."""
    out: list[Type] = []
    for t in types:
        out += flatten(t.items) if isinstance(t, TupleType) else [t]
    return out
