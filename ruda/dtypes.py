"""The number types of ruda, and how they meet: one promotion lattice for kernels and tensors.

A `DType` is what a value is stored as. *Weak* dtypes are numbers that have not committed to a
width: literals, thread indices, Python scalars. They never widen what they meet, so that
`float32 * 2.0` is float32 and nothing becomes float64 unasked.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import numpy as np

from ruda.errors import DTypeError


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class DType:
    """A number type. Call it to convert: `ruda.float32(1)`; the same spelling works in kernels.

    >>> import ruda
    >>> ruda.float32
    ruda.float32
    >>> ruda.float32.itemsize, ruda.float32.short, ruda.float32 == np.float32
    (4, 'f32', True)
    """

    name: str
    kind: str  # "bool", "int", "uint", "float" or "complex"
    bits: int
    short: str
    weak: bool = False

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return max(1, self.bits // 8)

    @property
    def numpy(self) -> np.dtype[Any]:
        """The NumPy dtype; bfloat16 needs the package `ml_dtypes`."""
        return _numpy_dtype(self.name)

    @property
    def __numpy_dtype__(self) -> np.dtype[Any]:
        """NumPy (from 2.4) takes it where it takes a dtype: `np.zeros(3, dtype=ruda.float32)`."""
        return self.numpy

    @property
    def is_integer(self) -> bool:
        return self.kind in ("int", "uint")

    @property
    def is_signed(self) -> bool:
        return self.kind in ("int", "float", "complex")

    @property
    def is_inexact(self) -> bool:
        return self.kind in ("float", "complex")

    @property
    def real(self) -> DType:
        """The dtype of the parts of a complex number; other dtypes are their own."""
        parts = {"complex64": float32, "complex128": float64, "weak_complex": weak_float}
        return parts.get(self.name, self)

    @property
    def range(self) -> tuple[int, int]:
        """Least and greatest value of an integer or bool dtype."""
        if self.kind == "bool":
            return 0, 1
        if self.kind == "uint":
            return 0, (1 << self.bits) - 1
        return -(1 << (self.bits - 1)), (1 << (self.bits - 1)) - 1

    def __call__(self, value: Any = 0, *more: Any) -> Any:
        """Convert on the host as the kernel language does: integers wrap, floats saturate.

        Given types it is a device function's signature, as in numba: `float32(float32, int32)`.
        """
        from ruda.jit import types

        if more or isinstance(value, types.TYPES):
            return types.Signature(tuple(types.parse_type(t) for t in (value, *more)), self)
        from ruda.jit.intrinsics import convert

        return convert(value, self)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, DType):
            return self is other or self.name == other.name
        if isinstance(other, str):
            return _BY_NAME.get(other) is self
        if other is None or isinstance(other, (bytes, tuple, list)):
            return False
        try:
            return as_dtype(other) is self
        except TypeError:
            return False

    __hash__ = object.__hash__  # there is one object a name; Python's own is far quicker

    def __repr__(self) -> str:
        return f"ruda.{self.name}"

    def __str__(self) -> str:
        return self.name

    def __reduce__(self) -> Any:
        return as_dtype, (self.name,)

    __iter__ = None  # not by `__getitem__`, which never ends

    # numba spells array types `float32[:]` and signatures `void(float32[:], int32)`.
    def __getitem__(self, item: Any) -> Any:
        from ruda.jit.types import array_type_from_item

        return array_type_from_item(self, item)


bool_ = DType("bool", "bool", 8, "bool")
int8, int16, int32, int64 = (DType(f"int{b}", "int", b, f"i{b}") for b in (8, 16, 32, 64))
uint8, uint16, uint32, uint64 = (DType(f"uint{b}", "uint", b, f"u{b}") for b in (8, 16, 32, 64))
float16, float32, float64 = (DType(f"float{b}", "float", b, f"f{b}") for b in (16, 32, 64))
bfloat16 = DType("bfloat16", "float", 16, "bf16")
complex64, complex128 = (DType(f"complex{b}", "complex", b, f"c{b}") for b in (64, 128))

# Thread indices, extents, `range` variables: 64 bits in meaning, narrow where a target proves it.
index = DType("index", "int", 64, "index", weak=True)
# Numbers written in the source or passed as Python scalars.
weak_int = DType("weak_int", "int", 64, "weak_int", weak=True)
weak_float = DType("weak_float", "float", 64, "weak_float", weak=True)
weak_complex = DType("weak_complex", "complex", 128, "weak_complex", weak=True)

ALL = (
    bool_,
    *(int8, int16, int32, int64),
    *(uint8, uint16, uint32, uint64),
    *(float16, bfloat16, float32, float64),
    *(complex64, complex128),
)
WEAK = (weak_int, index, weak_float, weak_complex)

_BY_NAME = {d.name: d for d in (*ALL, *WEAK)} | {d.short: d for d in ALL}
_BY_NAME |= {"bool_": bool_, "boolean": bool_, "b1": bool_, "half": float16, "single": float32}
_BY_NAME |= {"double": float64, "intp": int64, "uintp": uint64, "int": int64, "long": int64}
_BY_NAME |= {"byte": uint8, "char": int8, "short": int16, "ushort": uint16, "float_": float32}
_BY_NAME |= {"int_": int64, "uint": uint64, "long_": int64}
# NumPy's codes, which count bytes; its `i8` and `u8` are ruda's names of int8 and uint8.
_BY_NAME |= {"i2": int16, "i4": int32, "u2": uint16, "u4": uint32, "f2": float16, "f4": float32}
_BY_NAME |= {"f8": float64, "c8": complex64, "c16": complex128, "f": float32, "d": float64}
_BY_NAME |= {"e": float16, "i": int32, "I": uint32, "h": int16, "H": uint16, "q": int64}
_BY_NAME |= {"Q": uint64, "b": int8, "B": uint8, "?": bool_, "F": complex64, "D": complex128}
_KNOWN: dict[np.dtype[Any], DType] = {}  # that were looked for
_PYTHON = {"float": float, "complex": complex}  # the default float's, as the types themselves


@functools.cache
def _numpy_dtype(name: str) -> np.dtype[Any]:
    if name == "bfloat16":
        try:
            import ml_dtypes
        except ImportError:
            raise DTypeError("bfloat16 on the host needs the package `ml_dtypes`") from None
        bfloat16_dtype: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
        return bfloat16_dtype
    hosts = {"index": "int64", "weak_int": "int64", "weak_float": "float64"}
    host: np.dtype[Any] = np.dtype(
        hosts.get(name, "complex128" if name == "weak_complex" else name)
    )
    return host


def as_dtype(value: Any) -> DType:
    """The ruda dtype for a ruda, NumPy or numba dtype, a name, or a Python type.

    >>> as_dtype("f32"), as_dtype(np.int8), as_dtype(np.dtype("bool"))
    (ruda.float32, ruda.int8, ruda.bool)
    """
    if isinstance(value, DType):
        return value
    if isinstance(value, np.dtype) and value in _KNOWN:
        return _KNOWN[value]
    if isinstance(value, str):
        value = _PYTHON.get(value, value)
    if isinstance(value, str):
        found = _BY_NAME.get(value)
        if found is None and value[:1] in "<=|":
            found = _from_numpy(value)
        if found is not None:
            return found
        raise DTypeError(f"{value!r} is not a dtype; {_similar(value)}")
    if value is bool:
        return bool_
    if value is int:
        return int64
    if value is float:
        return default_float()
    if value is complex:
        return complex64 if default_float() is float32 else complex128
    found = _from_numpy(value)
    numbas = not isinstance(value, np.dtype) and isinstance(getattr(value, "name", None), str)
    if found is None and numbas:
        found = _BY_NAME.get(value.name)
    if found is None:
        raise DTypeError(f"{value!r} is not a dtype that ruda has")
    if isinstance(value, np.dtype):
        _KNOWN[value] = found
    return found


def _similar(name: str) -> str:
    """What a wrong name of a dtype was meant to be."""
    import difflib

    if name.endswith("*"):
        return f"an array is written {name.rstrip('* ')}[:]"
    names = [d.name for d in ALL]
    close = difflib.get_close_matches(name, names, 1)
    return f"did you mean {close[0]!r}?" if close else f"there are {', '.join(names)}"


def _from_numpy(value: Any) -> DType | None:
    if not isinstance(value, (np.dtype, str)) and not (
        isinstance(value, type) and (issubclass(value, np.generic) or hasattr(value, "dtype"))
    ):
        return None
    try:
        dtype = np.dtype(value)
    except TypeError:
        return None
    if dtype.names is not None or not dtype.isnative:
        return None
    found = _BY_NAME.get(dtype.name)
    return found if found is not None and found.itemsize == dtype.itemsize else None


def default_float() -> DType:
    """float32, or float64 with `RUDA_DEFAULT_FLOAT=float64`."""
    from ruda.settings import settings

    return float64 if settings.default_float == "float64" else float32


def default_of(dtype: DType) -> DType:
    """What a weak dtype becomes where nothing else decides."""
    match dtype.name:
        case "weak_int":
            return int64
        case "weak_float":
            return default_float()
        case "weak_complex":
            return complex64 if default_float() is float32 else complex128
    return dtype


_RANK = {"bool": 0, "uint": 1, "int": 1, "float": 2, "complex": 3}


def promote(a: DType, b: DType) -> DType:
    """The dtype of a variable or array that holds values of both.

    An integer never widens a float (but with a 16-bit float it gives float32), uint64 never goes
    through float, and a weak dtype never widens what it meets. The order in which values meet does
    not matter, unless the default float is float64: then an integer and a weak float are float64
    at once, and only after a float32 is the weak float one too.

    >>> promote(float32, int64), promote(int32, uint32), promote(uint64, int64)
    (ruda.float32, ruda.int64, ruda.uint64)
    >>> promote(float16, weak_float), promote(weak_int, float32), promote(int8, weak_float)
    (ruda.float16, ruda.float32, ruda.float32)
    """
    if a is b:
        return a
    if a.weak and b.weak:
        order = {"weak_int": 0, "index": 1, "weak_float": 2, "weak_complex": 3}
        return a if order[a.name] >= order[b.name] else b
    if a.weak or b.weak:
        return _promote_weak(*((b, a) if a.weak else (a, b)))
    return _promote_strong(a, b)


def _promote_weak(strong: DType, weak: DType) -> DType:
    if _RANK[weak.kind] <= _RANK[strong.kind]:
        return strong
    if strong.kind == "bool":
        return weak
    if strong.is_integer:
        return default_of(weak)
    return complex128 if strong is float64 else complex64  # a float and a weak complex


@functools.cache
def _promote_strong(a: DType, b: DType) -> DType:
    if _RANK[a.kind] > _RANK[b.kind]:
        a, b = b, a
    if a.kind == b.kind:
        if a.bits == b.bits:
            return a if a is b else float32  # float16 with bfloat16
        return a if a.bits > b.bits else b
    if a.kind == "bool":
        return b
    if a.is_integer and b.is_integer:
        unsigned, signed = (a, b) if a.kind == "uint" else (b, a)
        if signed.bits > unsigned.bits:
            return signed
        if unsigned is uint64:
            return uint64
        return {8: int16, 16: int32, 32: int64}[unsigned.bits]
    if b.kind == "float":
        return float32 if b.bits == 16 else b
    return complex128 if a is float64 else b  # anything with complex
