"""Arrays and records whose elements are the oracle's typed scalars."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from tests.oracle.scalars import (
    add_operators,
    convert,
    dtype_of,
    kind,
    lift,
    maximum,
    minimum,
    typed,
)

POISON = 0xCB  # every byte of shared and local memory that nothing has written yet


def shape_of(shape: Any) -> tuple[int, ...]:
    return tuple(operator.index(n) for n in (shape if isinstance(shape, tuple) else (shape,)))


def poisoned(shape: Any, dtype: Any) -> np.ndarray[Any, Any]:
    """An array whose every byte is POISON."""
    dtype = dtype_of(dtype)
    count = math.prod(shape_of(shape))
    return np.full(count * dtype.itemsize, POISON, np.uint8).view(dtype).reshape(shape_of(shape))


def load(value: Any) -> Any:
    """What indexing gave: a scalar of the language, a record, or a smaller array."""
    if isinstance(value, np.void) and value.dtype.names:
        return Record(value)
    if isinstance(value, np.ndarray):
        return Array(value)
    dtype = np.dtype(value.dtype)
    return typed(int(value) if kind(dtype) in "iub" else value, dtype)


def store_into(data: Any, index: Any, value: Any) -> None:
    if isinstance(value, (Array, Record)):
        data[index] = value.data
    elif isinstance(value, tuple):
        data[index] = np.array([convert(v, data.dtype) for v in value], data.dtype)
    else:
        plain = convert(lift(value), data.dtype)
        data[index] = np.array(plain, data.dtype)[()]


class Array:
    """A NumPy array whose elements are scalars of the language."""

    __slots__ = ("data",)

    def __init__(self, data: np.ndarray[Any, Any]) -> None:
        object.__setattr__(self, "data", data)

    def _index(self, index: Any) -> Any:
        def plain(item: Any) -> Any:
            if isinstance(item, slice):
                return slice(*(None if p is None else operator.index(p)
                               for p in (item.start, item.stop, item.step)))  # fmt: skip
            return item if item is Ellipsis or isinstance(item, str) else operator.index(item)

        return tuple(plain(item) for item in index) if isinstance(index, tuple) else plain(index)

    def __getitem__(self, index: Any) -> Any:
        return load(self.data[self._index(index)])

    def __setitem__(self, index: Any, value: Any) -> None:
        store_into(self.data, self._index(index), value)

    def __len__(self) -> int:
        return len(self.data)

    def __iter__(self) -> Iterator[Any]:
        return (load(item) for item in self.data)

    def __getattr__(self, name: str) -> Any:
        if name in ("shape", "size", "ndim", "strides", "dtype"):
            return getattr(self.data, name)
        if self.data.dtype.names and name in self.data.dtype.names:
            return Array(self.data[name])
        raise AttributeError(name)

    @property
    def T(self) -> Any:
        return Array(self.data.T)

    def _flat(self) -> list[Any]:
        return [load(item) for item in self.data.reshape(-1)]

    def sum(self) -> Any:
        return fold(operator.add, self._flat())

    def prod(self) -> Any:
        return fold(operator.mul, self._flat())

    def min(self) -> Any:
        return minimum(*self._flat()) if self.size > 1 else self._flat()[0]

    def max(self) -> Any:
        return maximum(*self._flat()) if self.size > 1 else self._flat()[0]

    def mean(self) -> Any:
        return self.sum() / self.size

    def fill(self, value: Any) -> None:
        self[...] = value

    def reshape(self, *shape: Any) -> Any:
        return Array(self.data.reshape(*shape))


def fold(operation: Callable[[Any, Any], Any], values: Sequence[Any]) -> Any:
    total = values[0]
    for value in values[1:]:
        total = operation(total, value)
    return total


def _elementwise(name: str, a: Any, b: Any) -> Any:
    """An array expression, element by element; the result has the elements' dtype."""
    x, y = (v.data if isinstance(v, Array) else v for v in (a, b))
    shape = np.broadcast_shapes(np.shape(x), np.shape(y))
    pairs = [
        tuple(
            load(np.broadcast_to(v.data, shape)[i]) if isinstance(v, Array) else v for v in (a, b)
        )
        for i in np.ndindex(shape)
    ]
    values = [getattr(operator, f"__{name}__")(p, q) for p, q in pairs]
    dtype = values[0].dtype if values else x.dtype
    result = np.array([convert(v, dtype) for v in values], dtype)
    return Array(result.reshape(shape))


add_operators(Array, _elementwise)


class Record:
    """One element of a structured array: fields by name, writes go to the array."""

    __slots__ = ("data",)

    def __init__(self, data: np.void) -> None:
        object.__setattr__(self, "data", data)

    def __getitem__(self, name: str) -> Any:
        return load(self.data[name])

    def __getattr__(self, name: str) -> Any:
        try:
            return load(self.data[name])
        except ValueError:
            raise AttributeError(name) from None

    def __setitem__(self, name: str, value: Any) -> None:
        if isinstance(value, (Array, Record)):
            self.data[name] = value.data
        else:
            self.data[name] = np.array(convert(lift(value), self.data.dtype[name]),
                                       self.data.dtype[name])[()]  # fmt: skip

    __setattr__ = __setitem__  # type: ignore[assignment]
