"""Whether the indices of a launch fit 32 bits: its sizes, and what the kernel makes of them.

Most kernels are proven once: with any sizes that fit, all that they compute fits. For the others
the sizes of a launch decide, first rounded up to powers of two so that one answer serves many
launches, then as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ruda.backends.base import Launch
from ruda.jit.ir import Array, Extent, Function, Special, Stride, Variable
from ruda.jit.passes.widths import Leaf, fits_narrow, is_index, leaves
from ruda.jit.passes.wraps import Interval

LEAST, MOST = -(1 << 31), (1 << 31) - 1
KNOWN = 1024  # answers that are kept
Getter = Callable[[Launch, Sequence[Any], Mapping[str, Any]], int]


class Widths:
    """The answers for one lowered kernel."""

    def __init__(self, function: Function) -> None:
        self.function = function
        self.leaves = leaves(function)
        self.getters = [_getter(function, leaf) for leaf in self.leaves]
        self.arrays = [k for k, p in enumerate(function.parameters) if isinstance(p, Array)]
        scalars = [*function.parameters, *(s.variable for s in function.prologue)]
        self.scalars = [p.name for p in scalars if isinstance(p, Variable) and is_index(p.dtype)]
        self.always = fits_narrow(function, {})
        self.known: dict[Any, bool] = {}

    def is_wide(self, launch: Launch, arguments: Sequence[Any], scalars: Mapping[str, Any]) -> bool:
        """Whether some index may need more than 32 bits."""
        if any(g * b > MOST for g, b in zip(launch.grid, launch.block, strict=True)):
            return True
        for k in self.arrays:
            low, high = spans(arguments[k])
            if high - low > MOST or max(arguments[k].shape, default=0) > MOST:
                return True
        if any(not LEAST <= int(scalars[name]) <= MOST for name in self.scalars):
            return True
        values = tuple(get(launch, arguments, scalars) for get in self.getters)
        if any(not LEAST <= v <= MOST for v in values):
            return True
        if self.always:
            return False
        rounded = tuple(-(1 << (-v).bit_length()) if v < 0 else v.bit_length() for v in values)
        return not self.fits(rounded, map(_up, values)) and not self.fits(values, values)

    def fits(self, key: Any, values: Any) -> bool:
        found = self.known.get(key)
        if found is None:
            if len(self.known) >= KNOWN:
                self.known.clear()
            bounds = {n: _interval(n, v) for n, v in zip(self.leaves, values, strict=True)}
            found = self.known[key] = fits_narrow(self.function, bounds)
        return found


def _up(value: int) -> int:
    """The greatest number of as many bits.

    >>> _up(0), _up(5), _up(8), _up(-5)
    (0, 7, 15, -8)
    """
    return -(1 << (-value).bit_length()) if value < 0 else (1 << value.bit_length()) - 1


def _interval(leaf: Leaf, value: int) -> Interval:
    """All values that a leaf may have in a launch (or a smaller one)."""
    match leaf:
        case Special("gridDim" | "globalDim"):
            return 1, value
        case Special() | Extent():
            return 0, value
    return min(value, 0), max(value, 0)


def _getter(function: Function, leaf: Leaf) -> Getter:
    """How the greatest value of a leaf is read off a launch."""
    match leaf:
        case Special("blockIdx", axis):
            return lambda launch, arguments, scalars: launch.grid[axis] - 1
        case Special("globalIdx", axis):
            return lambda launch, arguments, scalars: launch.grid[axis] * launch.block[axis] - 1
        case Special("gridDim", axis):
            return lambda launch, arguments, scalars: launch.grid[axis]
        case Special("globalDim", axis):
            return lambda launch, arguments, scalars: launch.grid[axis] * launch.block[axis]
        case Special():
            return lambda launch, arguments, scalars: launch.shared_bytes
        case Extent(array) if array.dynamic:
            size = array.dtype.itemsize
            return lambda launch, arguments, scalars: launch.shared_bytes // size
        case Stride(array) if array.dynamic:
            size = array.dtype.itemsize
            return lambda launch, arguments, scalars: size
        case Extent(array, axis):
            k = function.parameters.index(array)
            return lambda launch, arguments, scalars: int(arguments[k].shape[axis])
        case Stride(array, axis):
            k = function.parameters.index(array)
            return lambda launch, arguments, scalars: int(arguments[k].strides[axis])
        case Variable(name):
            return lambda launch, arguments, scalars: int(scalars[name])
    raise AssertionError(leaf)


# ---- where arguments lie -------------------------------------------------------------------------


def spans(value: Any) -> tuple[int, int]:
    """First byte and the one behind the last, of a NumPy or a device array."""
    if isinstance(value, np.ndarray):
        low, high = np.lib.array_utils.byte_bounds(value)
        return (low, low) if value.size == 0 else (low, high)
    offset, nbytes = value._span()
    return value.storage.address + offset, value.storage.address + offset + nbytes


def start_of(value: Any) -> int:
    if isinstance(value, np.ndarray):
        return int(value.__array_interface__["data"][0])
    return int(value.storage.address + value.offset)
