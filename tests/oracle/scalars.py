"""Typed scalars of the kernel language: what a number is, how two of them meet, conversions."""

from __future__ import annotations

import builtins
import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

INT32, INT64, UINT32 = np.dtype(np.int32), np.dtype(np.int64), np.dtype(np.uint32)
FLOAT32, FLOAT64 = np.dtype(np.float32), np.dtype(np.float64)


def dtype_of(spelling: Any) -> np.dtype[Any]:
    """The NumPy dtype for a dtype of NumPy, ruda or numba, a `Cast`, or a name."""
    if isinstance(spelling, np.dtype):
        return spelling
    name = spelling if isinstance(spelling, str) else getattr(spelling, "name", None)
    if not isinstance(name, str):
        return np.dtype(spelling)
    short = {"f": "float", "i": "int", "u": "uint", "c": "complex", "bf": "bfloat"}
    letters, digits = name.rstrip("0123456789"), name.lstrip("abcdefghijklmnopqrstuvwxyz_")
    name = short.get(letters, letters) + digits
    if name == "bfloat16":
        import ml_dtypes

        return np.dtype(ml_dtypes.bfloat16)
    return np.dtype({"bool_": "bool", "boolean": "bool"}.get(name, name))


def kind(dtype: np.dtype[Any]) -> str:
    """One of "b", "i", "u", "f", "c"; bfloat16 calls itself "V" and is a float."""
    return "f" if dtype.name == "bfloat16" else dtype.kind


def is_half(dtype: np.dtype[Any]) -> bool:
    return kind(dtype) == "f" and dtype.itemsize == 2


def promote(a: np.dtype[Any], b: np.dtype[Any]) -> np.dtype[Any]:
    """What two typed scalars meet in: NumPy's table, but no integer ever widens a float."""
    if a == b:
        return a
    kinds = {kind(a), kind(b)}
    inexact = [d for d in (a, b) if kind(d) in "fc"]
    if "b" in kinds or not inexact:
        if kinds == {"i", "u"} and {a.itemsize, b.itemsize} >= {8}:
            wide = a if a.itemsize > b.itemsize or (a.itemsize == 8 and kind(a) == "u") else b
            return wide
        return np.result_type(a, b) if not inexact else inexact[0]
    if len(inexact) == 1:
        return FLOAT32 if is_half(inexact[0]) else inexact[0]
    if "c" in kinds:
        return np.dtype(np.complex128 if FLOAT64 in (a, b) or a.itemsize == 16 or b.itemsize == 16
                        else np.complex64)  # fmt: skip
    return FLOAT32 if is_half(a) and is_half(b) else max(a, b, key=lambda d: d.itemsize)


def promote_weak(dtype: np.dtype[Any], weak: Any) -> np.dtype[Any]:
    if isinstance(weak, bool) or kind(dtype) == "c":
        return dtype
    if isinstance(weak, int):
        return INT64 if kind(dtype) == "b" else dtype
    if isinstance(weak, float):
        return dtype if kind(dtype) == "f" else FLOAT32
    return np.dtype(np.complex128 if dtype == FLOAT64 else np.complex64)


def meet(a: Any, b: Any) -> np.dtype[Any]:
    """The dtype in which two scalars meet, at least one of them a `Number`."""
    if not isinstance(a, Number):
        return promote_weak(b.dtype, a)
    return promote(a.dtype, b.dtype) if isinstance(b, Number) else promote_weak(a.dtype, b)


def computed_in(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Arithmetic on 8- and 16-bit integers (and bool) is done in int32."""
    return INT32 if kind(dtype) in "biu" and dtype.itemsize < 4 else dtype


def wrap(value: int, dtype: np.dtype[Any]) -> int:
    bits = 8 * dtype.itemsize
    value &= (1 << bits) - 1
    return value - (1 << bits) if kind(dtype) == "i" and value >> (bits - 1) else value


def convert(value: Any, dtype: np.dtype[Any]) -> Any:
    """The plain value of dtype: `bool`, a Python int for integers, a NumPy scalar for the rest."""
    source = value.dtype if isinstance(value, Number) else None
    plain = value.value if isinstance(value, Number) else value
    if isinstance(plain, np.generic) and not isinstance(plain, np.inexact) and source is None:
        plain = plain.item()
    match kind(dtype):
        case "b":
            return bool(plain != 0)
        case "i" | "u" if isinstance(plain, int):
            return wrap(int(plain), dtype)
        case "i" | "u":
            return saturate(plain, dtype)
        case "f" | "c" if isinstance(plain, int) and source is not None:
            # From the integer itself: Python would go through double and round twice.
            return np.array(plain, source).astype(dtype)[()]
        case "f" if isinstance(plain, complex):
            raise TypeError(f"cannot store a complex number as {dtype}")
    return dtype.type(plain)


def saturate(value: Any, dtype: np.dtype[Any]) -> int:
    least, most = int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)
    number = float(value)
    if math.isnan(number):
        return 0
    if math.isinf(number):
        return most if number > 0 else least
    return min(max(int(number), least), most)


def typed(value: Any, dtype: np.dtype[Any]) -> Any:
    """A scalar of this dtype; bool is Python's own."""
    value = convert(value, dtype)
    return value if kind(dtype) == "b" else Number(value, dtype)


def floor_divide(a: int, b: int) -> int:
    return a // b if b else 0


def modulo(a: int, b: int) -> int:
    return a % b if b else 0


def shift(value: int, count: int, bits: int, left: bool) -> int:
    count = count if 0 <= count < bits else bits  # the width or more: 0, or the sign
    return value << count if left else value >> count


INTEGER: dict[str, Callable[[int, int], int]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "floordiv": floor_divide,
    "mod": modulo,
    "and": operator.and_,
    "or": operator.or_,
    "xor": operator.xor,
    "pow": lambda a, b: pow(a, b, 1 << 64) if b >= 0 else 0,
}
INEXACT: dict[str, Callable[[Any, Any], Any]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "truediv": np.true_divide,
    "floordiv": np.floor_divide,
    "mod": np.mod,
    "pow": np.power,
}
COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    name: getattr(operator, name) for name in ("lt", "le", "gt", "ge", "eq", "ne")
}


def is_scalar(value: Any) -> bool:
    return isinstance(value, (Number, bool, int, float, complex))


def lift(value: Any) -> Any:
    """NumPy scalars (constants such as `np.pi` are Python's already) as scalars of the language."""
    return typed(value.item(), value.dtype) if isinstance(value, np.generic) else value


def binary(name: str, a: Any, b: Any) -> Any:
    a, b = lift(a), lift(b)
    if not (is_scalar(a) and is_scalar(b)):
        return NotImplemented
    dtype = computed_in(meet(a, b))
    if name == "truediv" and kind(dtype) in "iu":
        dtype = FLOAT32
    x, y = convert(a, dtype), convert(b, dtype)
    if kind(dtype) in "fc":
        if name not in INEXACT:
            raise TypeError(f"{name} on {dtype}")
        return Number(dtype.type(INEXACT[name](x, y)), dtype)
    if name in ("lshift", "rshift"):
        return Number(wrap(shift(x, y, 8 * dtype.itemsize, name == "lshift"), dtype), dtype)
    return Number(wrap(INTEGER[name](x, y), dtype), dtype)


def compare(name: str, a: Any, b: Any) -> Any:
    a, b = lift(a), lift(b)
    if not (is_scalar(a) and is_scalar(b)):
        return NotImplemented
    dtype = meet(a, b)
    if kind(dtype) in "fc":
        return bool(COMPARE[name](convert(a, dtype), convert(b, dtype)))
    return bool(COMPARE[name](*(v.value if isinstance(v, Number) else v for v in (a, b))))


class Number:
    """A scalar with a dtype: a Python int for integers, a NumPy scalar for floats and complex."""

    __slots__ = ("dtype", "value")

    def __init__(self, value: Any, dtype: np.dtype[Any]) -> None:
        self.value, self.dtype = value, dtype

    def __neg__(self) -> Any:
        if kind(self.dtype) in "fc":
            return Number(self.dtype.type(-self.value), self.dtype)
        dtype = computed_in(self.dtype)
        return Number(wrap(-self.value, dtype), dtype)

    def __pos__(self) -> Any:
        return Number(self.value, computed_in(self.dtype))

    def __invert__(self) -> Any:
        dtype = computed_in(self.dtype)
        return Number(wrap(~self.value, dtype), dtype)

    def __abs__(self) -> Any:
        if kind(self.dtype) == "c":
            real = np.dtype(self.value.real.dtype)
            return Number(real.type(np.abs(np.complex128(self.value))), real)
        if kind(self.dtype) == "f":
            return Number(self.dtype.type(np.abs(self.value)), self.dtype)
        dtype = computed_in(self.dtype)
        return Number(wrap(abs(self.value), dtype), dtype)

    @property
    def real(self) -> Any:
        return Number(self.value.real, np.dtype(self.value.real.dtype))

    @property
    def imag(self) -> Any:
        return Number(self.value.imag, np.dtype(self.value.imag.dtype))

    def conjugate(self) -> Any:
        return Number(self.value.conjugate(), self.dtype)

    def __round__(self, digits: int | None = None) -> Any:
        if kind(self.dtype) != "f":
            return self
        if digits is None:
            return typed(np.rint(self.value), INT64)
        return Number(self.dtype.type(np.round(self.value, digits)), self.dtype)

    def __index__(self) -> int:
        if kind(self.dtype) not in "iu":
            raise TypeError(f"{self.dtype} is not an index")
        return self.value

    def __bool__(self) -> bool:
        return bool(self.value != 0)

    def __hash__(self) -> int:
        return hash(self.value)

    def __repr__(self) -> str:
        return f"{self.dtype.name}({self.value})"

    def __str__(self) -> str:
        return str(self.value)

    def __format__(self, specification: str) -> str:
        value = self.value.item() if isinstance(self.value, np.generic) else self.value
        return format(value, specification) if specification else str(self)


def add_operators(cls: type, apply: Callable[[str, Any, Any], Any]) -> None:
    for name in {*INTEGER, *INEXACT, "lshift", "rshift"}:
        setattr(cls, f"__{name}__", lambda a, b, name=name: apply(name, a, b))
        setattr(cls, f"__r{name}__", lambda a, b, name=name: apply(name, b, a))


add_operators(Number, binary)
for _name in COMPARE:
    setattr(Number, f"__{_name}__", lambda a, b, name=_name: compare(name, a, b))


def _choose(better: str, values: Sequence[Any]) -> Any:
    """min and max: the operands' common type, and NaN if there is one."""
    best = values[0]
    for value in values[1:]:
        if not isinstance(best, Number) and not isinstance(value, Number):
            nan = next((v for v in (best, value) if v != v), None)
            best = (getattr(builtins, better)(best, value)) if nan is None else nan
            continue
        dtype = meet(best, value)
        a, b = typed(best, dtype), typed(value, dtype)
        if isinstance(a, bool):
            best = getattr(builtins, better)(a, b)
        elif a.value != a.value or b.value != b.value:
            best = a if a.value != a.value else b
        else:
            first = a.value <= b.value if better == "min" else a.value >= b.value
            best = a if first else b
    return best


def _scalars(arguments: Sequence[Any]) -> Sequence[Any]:
    if len(arguments) == 1 and hasattr(arguments[0], "__iter__"):
        arguments = list(arguments[0])
    return [lift(a) for a in arguments]


def minimum(*arguments: Any) -> Any:
    return _choose("min", _scalars(arguments))


def maximum(*arguments: Any) -> Any:
    return _choose("max", _scalars(arguments))
