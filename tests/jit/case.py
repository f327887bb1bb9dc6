"""What a row of the tables in `tests/jit/kernels` says, and how results are compared.

A `Case` is a kernel, arguments made from a random generator and a size, and NumPy's answer. An
argument is an input as it is, an `Out` (an array that starts poisoned) or an `InOut`. `expected`
gets all but the `Out`s (the `InOut`s as they were before) and returns what must be in the `Out` and
`InOut` arrays afterwards, in their order. All other arrays must come back unchanged.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

POISON = 0xA5  # every byte of an output before the launch
Extent = int | tuple[int, ...]


@dataclass(frozen=True)
class Out:
    """An array that the kernel writes completely; NumPy's poisoned bytes until then."""

    shape: Extent
    dtype: Any = np.float32

    def make(self) -> np.ndarray:
        dtype = np.dtype(self.dtype)
        shape = self.shape if isinstance(self.shape, tuple) else (self.shape,)
        data = np.full(math.prod(shape) * dtype.itemsize, POISON, np.uint8)
        if dtype.kind == "b":
            data = data & 1
        return data.view(dtype).reshape(shape)


@dataclass(frozen=True)
class InOut:
    """An array that the kernel reads and writes, perhaps only in part.

    The kernel gets `view(array)`; the whole array is compared.
    """

    data: np.ndarray
    view: Callable[[np.ndarray], np.ndarray] = lambda array: array

    def make(self) -> np.ndarray:
        return self.data.copy()


@dataclass(frozen=True)
class Near:
    """An expected value whose rounding error is measured against `scale`, not against itself:
    sums that cancel have the scale of the sum of absolute values."""

    value: Any
    scale: Any


@dataclass(frozen=True, repr=False)
class Case:
    """One kernel and one property that it shows.

    `grid` None means: one thread per element of `n`, at least one block. `ulps` 0 demands equal
    bits, signs of zeros included; NaNs are alike. `small` is the greatest size for the oracle.
    """

    kernel: Any
    arguments: Callable[[np.random.Generator, int], tuple]
    expected: Callable[..., Any]
    grid: Any = None
    block: Any = 64
    sizes: Sequence[int] = (0, 1, 7, 200)
    ulps: float = 0
    shared: int | Callable[[int], int] = 0
    small: int = 300
    name: str = ""
    config: dict[str, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        return self.name or getattr(self.kernel, "py_func", self.kernel).__name__

    def extents(self, n: int) -> tuple[Extent, Extent, int]:
        """Grid, block and dynamic shared bytes for a size."""
        block = self.block(n) if callable(self.block) else self.block
        if self.grid is None:
            grid = max(1, -(-n // block))
        else:
            grid = self.grid(n) if callable(self.grid) else self.grid
        shared = self.shared(n) if callable(self.shared) else self.shared
        return grid, block, shared


def run(row: tuple, launch: Callable[[list[Any]], None]) -> list[np.ndarray]:
    """Launch once; returns the written arrays and sees to it that the others are as before."""
    before = [a.copy() if isinstance(a, np.ndarray) else None for a in row]
    bases = [a.make() if isinstance(a, (Out, InOut)) else a for a in row]
    launch([given.view(base) if isinstance(given, InOut) else base
            for given, base in zip(row, bases, strict=True)])  # fmt: skip
    for old, new in zip(before, row, strict=True):
        if old is not None:
            np.testing.assert_array_equal(new, old, "an input was written")
    return [b for b, given in zip(bases, row, strict=True) if isinstance(given, (Out, InOut))]


def answers(case: Case, row: tuple) -> list[tuple[Any, np.dtype]]:
    """NumPy's answers with the dtypes of the arrays that hold them."""
    inputs = [a.make() if isinstance(a, InOut) else a for a in row if not isinstance(a, Out)]
    with np.errstate(all="ignore"):
        values = case.expected(*inputs)
    values = values if isinstance(values, tuple) else (values,)
    written = [a for a in row if isinstance(a, (Out, InOut))]
    return [(v, a.make().dtype) for v, a in zip(values, written, strict=True)]


def check_device(
    case: Case, device: str, actual: Sequence[Any], row: tuple, right: Callable[[tuple], Any],
    ulps: float,
) -> None:  # fmt: skip
    """Compare what a device wrote with `right(row)`. A device whose float32 arithmetic flushes
    denormals may have the answers for arguments without them, where denormals equal zeros."""
    try:
        check(case, actual, right(row), ulps)
    except AssertionError:
        if not flushes(device):
            raise
        with np.errstate(all="ignore"):
            expected = [
                (Near(flushed(np.asarray(want.value, dtype)), want.scale), dtype)
                if isinstance(want, Near)
                else (flushed(np.asarray(want, dtype)), dtype)
                for want, dtype in right(flushed_row(row))
            ]
        check(case, [flushed(a) for a in actual], expected, ulps)


def flushes(device: str) -> bool:
    from ruda import backends

    return backends.find(device).properties.get("float32_denormals") == "flush"


def flushed_row(row: tuple) -> tuple:
    """Arguments whose denormals are zeros."""
    return tuple(
        replace(a, data=flushed(a.data)) if isinstance(a, InOut)
        else flushed(a) if isinstance(a, (np.ndarray, np.generic)) else a
        for a in row
    )  # fmt: skip


def flushed(array: Any) -> Any:
    """The denormals of float32, complex64 and bfloat16 as zeros of their sign."""
    if array.dtype.kind == "c" and array.dtype.itemsize == 8:
        pairs = np.ascontiguousarray(array).view(np.float32)
        return flushed(pairs).view(array.dtype).reshape(array.shape)
    if array.dtype.name not in ("float32", "bfloat16"):
        return array
    tiny = abs(array.astype(np.float32)) < np.finfo(np.float32).tiny
    return np.where(tiny, np.copysign(np.float32(0), array).astype(array.dtype), array)


def check(case: Case, actual: Sequence[Any], expected: Sequence[Any], ulps: float) -> None:
    """Compare written arrays with NumPy's answers."""
    for number, (got, (want, dtype)) in enumerate(zip(actual, expected, strict=True)):
        check_one(f"{case}, output {number}", got, want, dtype, ulps)


def check_one(label: str, got: np.ndarray, want: Any, dtype: np.dtype, ulps: float) -> None:
    scale = want.scale if isinstance(want, Near) else None
    wide = np.asarray(want.value if isinstance(want, Near) else want)
    with np.errstate(all="ignore"):
        want = np.broadcast_to(wide, got.shape).astype(dtype)
    if dtype.kind in "biuV" and dtype.name != "bfloat16":
        np.testing.assert_array_equal(got, want, label)
        return
    if dtype.kind == "c":
        if isinstance(scale, type(None)):
            scale = np.maximum(np.abs(want.real), np.abs(want.imag))
        check_floats(label, got.real, want.real, scale, ulps)
        check_floats(label, got.imag, want.imag, scale, ulps)
        return
    check_floats(label, got, want, scale, ulps)


def check_floats(label: str, got: Any, want: Any, scale: Any, ulps: float) -> None:
    dtype = want.dtype
    if ulps == 0:
        same = (got == want) & (np.signbit(got) == np.signbit(want))
    else:
        close = np.abs(want).astype(np.float64) if scale is None else np.abs(np.float64(scale))
        spacing = one_ulp(np.broadcast_to(close, got.shape), dtype)
        with np.errstate(all="ignore"):
            error = np.abs(got.astype(np.float64) - want.astype(np.float64))
        same = (got == want) | (error <= ulps * spacing)
    same |= np.isnan(got) & np.isnan(want)
    if not same.all():
        first = tuple(int(i) for i in np.argwhere(~same)[0])
        raise AssertionError(
            f"{label}: {np.count_nonzero(~same)} of {same.size} differ; "
            f"at {first} got {got[first]!r}, expected {want[first]!r}"
        )


def one_ulp(magnitude: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """The distance between neighbours of a float dtype at a magnitude, in double."""
    bits, least = {
        "float16": (11, -24),
        "bfloat16": (8, -133),
        "float32": (24, -149),
        "float64": (53, -1074),
    }[dtype.name]
    with np.errstate(all="ignore"):
        _, exponent = np.frexp(magnitude)
        finite = np.where(np.isfinite(magnitude), exponent, 0)
        return np.ldexp(1.0, np.maximum(finite - bits, least))
