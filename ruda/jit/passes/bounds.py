"""Which accesses to shared, local and constant arrays are surely inside.

Memory of a buffer is watched by the hardware of many GPUs, that of a block or a thread by nobody:
an index that is outside reaches into what lies beside. A target that keeps its kernels inside asks
here which accesses need no check. Nothing is assumed about indices but what the kernel computes:
sums that may overflow are anything, and an index may be as wrong as its user can make it.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from ruda.dtypes import DType
from ruda.jit.ir import (
    Array,
    Atomic,
    Body,
    Cast,
    Expr,
    For,
    Function,
    Load,
    Op,
    Statement,
    Store,
)
from ruda.jit.passes.widths import NARROW, is_index
from ruda.jit.passes.wraps import Env, Interval, Ranges, join, whole


class Inside:
    """The accesses of a function that are surely inside; the function lives as long.

    `narrow`: indices are held in 32 bits, which the sizes of a launch, its grid and its Python
    integers fit.
    """

    def __init__(self, function: Function, narrow: bool) -> None:
        self.function = function
        found = _Accesses(function, narrow)
        found.body(function.body, {})
        self.proven = {key for key, inside in found.seen.items() if inside}

    def has(self, indices: tuple[Expr, ...]) -> bool:
        """Whether an access of the function, known by its tuple of indices, is inside."""
        return not indices or id(indices) in self.proven


class Exact(Ranges):
    """Intervals that are right whatever overflows, of indices held in 32 or 64 bits."""

    def __init__(self, function: Function, narrow: bool) -> None:
        super().__init__(function)
        self.narrow = narrow
        self.quiet = 0  # loops whose intervals are not yet settled

    def limits(self, dtype: DType) -> Interval:
        """What is held of a dtype; operations on less than 32 bits are done in 32."""
        if self.narrow and is_index(dtype):
            return NARROW
        return whole(dtype)

    def held(self, interval: Interval, dtype: DType) -> Interval:
        low, high = self.limits(dtype)
        return interval if low <= interval[0] and interval[1] <= high else (low, high)

    def of(self, node: Expr, env: Env) -> Interval:
        dtype = node.dtype
        match node:
            case Cast(value) if dtype.is_integer:
                if value.dtype.is_integer or value.dtype.kind == "bool":
                    return self.held(self.of(value, env), dtype)
                return self.limits(dtype)
            case Op("within" | "uniform", (i, *_)) if i.dtype == dtype:
                return self.of(i, env)
            case Op("wrap", (i, extent)):
                low, high = self.of(i, env)
                least, most = self.of(extent, env)
                if low >= 0:
                    return low, high
                moved = self.held((low + least, min(high, -1) + most), dtype)
                return moved if high < 0 else join((0, high), moved)
            case Op() if dtype.is_integer and dtype.bits < 32:
                return NARROW if dtype.kind == "int" else (0, 2 * NARROW[1] + 1)
        low, high = super().of(node, env)
        if self.narrow and is_index(dtype):
            return max(low, NARROW[0]), min(high, NARROW[1])
        return low, high

    def bounded(self, exact: Interval, dtype: DType, name: str, constant: bool) -> Interval:
        return self.held(exact, dtype)

    def moves(self, node: Expr, by: int, env: Env) -> bool:
        low, high = self.of(node, env)
        return self.held((low + by, high + by), node.dtype) == (low + by, high + by)

    def rewrite(self, node: Expr, env: Env) -> Expr:
        super().rewrite(node, env)
        return node

    def loop(self, s: For, env: Env) -> tuple[Statement, Env | None]:
        new, after = super().loop(s, env)
        # What the variable is behind its loop is the target's affair.
        return new, after and {k: v for k, v in after.items() if k != s.variable}

    def steady(self, body: Body, env: Env, enter: Callable[[Env], Env]) -> Env:
        self.quiet += 1
        try:
            return self.settled(body, env, enter)
        finally:
            self.quiet -= 1


class _Accesses(Exact):
    """Notes for each access whether it is inside wherever it stands."""

    def __init__(self, function: Function, narrow: bool) -> None:
        super().__init__(function, narrow)
        self.seen: dict[int, bool] = {}

    def rewrite(self, node: Expr, env: Env) -> Expr:
        if isinstance(node, Load):
            self.note(node.array, node.indices, env)
        return super().rewrite(node, env)

    def statement(self, s: Statement, env: Env) -> tuple[Statement, Env | None]:
        if isinstance(s, Store | Atomic):
            self.note(s.array, s.indices, env)
        return super().statement(s, env)

    def note(self, array: Array, indices: tuple[Expr, ...], env: Env) -> None:
        if self.quiet or array.space == "global":
            return
        inside = array.shape is not None and self.inside(array.shape, indices, env)
        self.seen[id(indices)] = self.seen.get(id(indices), True) and inside

    def inside(self, shape: tuple[int, ...], indices: tuple[Expr, ...], env: Env) -> bool:
        """Whether the number of the element in C order is that of one."""
        if any(not i.dtype.is_integer for i in indices):
            return False
        low = high = 0
        for k, i in enumerate(indices):
            first, last = self.of(i, env)
            step = math.prod(shape[k + 1 :])
            low, high = low + first * step, high + last * step
        return low >= 0 and high < math.prod(shape)
