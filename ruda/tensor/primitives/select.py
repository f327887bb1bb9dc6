"""Which elements: the greatest, those at indices, those that are not zero.

All arrays have three axes here, (outer, n, inner): the middle one is worked along. Any tensor and
axis become so without a copy if it lies in C order.
"""

# mypy: disable-error-code="no-untyped-def,comparison-overlap,operator,index,arg-type,call-overload"
# What kernels take has the types of the kernel language, of which mypy knows nothing.

from __future__ import annotations

from typing import Any

import numpy as np

from ruda.dtypes import as_dtype, int32
from ruda.jit import jit
from ruda.jit.language import atomic, constexpr, grid, unroll
from ruda.tensor import memory
from ruda.tensor.primitives.run import each, full, index_dtype, is_checked
from ruda.tensor.primitives.scan import scan

THREADS = 1 << 16  # that search for a few extremes


# ---- the first greatest or least element ---------------------------------------------------------


@jit
def exceeds(a, b, greatest: constexpr):
    """Whether `a` goes before `b`: NaN before all numbers."""
    if b != b:
        return False
    if a != a:
        return True
    return a > b if greatest else a < b


@jit(wraparound=False)
def extremes(x, out, greatest: constexpr):
    """out[p, r, part]: where the extreme of elements part, part + parts, ... stands first."""
    t = grid(1)
    parts = out.shape[2]
    if t < out.size:
        part = t % parts
        r = (t // parts) % out.shape[1]
        p = t // parts // out.shape[1]
        best = part
        value = x[p, part, r]
        for k in range(part + parts, x.shape[1], parts):
            if exceeds(x[p, k, r], value, greatest):
                best = k
                value = x[p, k, r]
        out[p, r, part] = best


@jit(wraparound=False)
def first_extremes(x, found, out, greatest: constexpr):
    """out[p, r, part]: the first of the extremes found[p, r, part], [part + parts], ..."""
    t = grid(1)
    parts = out.shape[2]
    if t < out.size:
        part = t % parts
        r = (t // parts) % out.shape[1]
        p = t // parts // out.shape[1]
        best = found[p, r, part]
        value = x[p, best, r]
        for k in range(part + parts, found.shape[2], parts):
            i = found[p, r, k]
            candidate = x[p, i, r]
            earlier = i < best and not exceeds(value, candidate, greatest)
            if earlier or exceeds(candidate, value, greatest):
                best = i
                value = candidate
        out[p, r, part] = best


def arg_extreme(x: Any, greatest: bool, device: str, name: str) -> Any:
    """The indices, of shape (outer, inner), of the first extremes along the middle axis."""
    outer, n, inner = x.shape
    kind = index_dtype(device)
    found = None
    for parts in parts_of(n, outer * inner):
        out = memory.allocate((outer, inner, parts), kind, device)
        count = outer * inner * parts
        if found is None:
            each(name, device, extremes, count, x, out, greatest)
        else:
            each(name, device, first_extremes, count, x, found, out, greatest)
        found = out
    return out.reshape(outer, inner)


def parts_of(n: int, lines: int) -> list[int]:
    """In how many parts lines of n elements are searched, then their results, at last one.

    >>> parts_of(10, 1), parts_of(1000, 1), parts_of(1 << 26, 1), parts_of(1 << 26, 1 << 20)
    ([1], [62, 1], [65536, 256, 1], [1])
    """
    parts = min(n // 16, THREADS // lines)
    if parts < 8:
        return [1]
    return [parts, 256, 1] if parts > 4 * 256 else [parts, 1]


# ---- elements at indices -------------------------------------------------------------------------


@jit
def place(i, n, checked: constexpr):
    """An index from the start; one out of range stays so if checks will find it, else is held."""
    if i < 0:
        i += n
    if not checked:
        i = min(max(i, 0), n - 1)
    return i


@jit(wraparound=False)
def gather(x, where, out, checked: constexpr):
    """out[p, j, r] = x[p, where[p, j, r], r]."""
    t = grid(1)
    if t < out.size:
        r = t % out.shape[2]
        j = (t // out.shape[2]) % out.shape[1]
        p = t // out.shape[2] // out.shape[1]
        out[p, j, r] = x[p, place(where[p, j, r], x.shape[1], checked), r]


@jit(wraparound=False)
def scatter(values, where, last, out, mode: constexpr, checked: constexpr):
    """out[p, where[p, j, r], r] becomes values[p, j, r], or its sum, least or greatest with it.

    With `last`, the j that wins at an index.
    """
    t = grid(1)
    if t < values.size:
        r = t % values.shape[2]
        j = (t // values.shape[2]) % values.shape[1]
        p = t // values.shape[2] // values.shape[1]
        i = place(where[p, j, r], out.shape[1], checked)
        if mode == "add":
            atomic.add(out, (p, i, r), values[p, j, r])
        elif mode == "min":
            atomic.min(out, (p, i, r), values[p, j, r])
        elif mode == "max":
            atomic.max(out, (p, i, r), values[p, j, r])
        elif last is None or last[p, i, r] == j:
            out[p, i, r] = values[p, j, r]


@jit(wraparound=False)
def find_last(where, last, checked: constexpr):
    """last[p, i, r]: the greatest j with where[p, j, r] == i."""
    t = grid(1)
    if t < where.size:
        r = t % where.shape[2]
        j = (t // where.shape[2]) % where.shape[1]
        p = t // where.shape[2] // where.shape[1]
        atomic.max(last, (p, place(where[p, j, r], last.shape[1], checked), r), j)


def take(x: Any, where: Any, device: str, name: str) -> Any:
    """x[p, where[p, j, r], r]; axes of `where` of length 1 repeat."""
    outer, _, inner = x.shape
    out = memory.allocate((outer, where.shape[1], inner), as_dtype(x.dtype), device)
    repeated = memory.repeat(where, out.shape)
    each(name, device, gather, out.size, x, repeated, out, is_checked(device))
    return out


def put(out: Any, where: Any, values: Any, mode: str, device: str, name: str) -> None:
    """out[p, where[p, j, r], r] = values[p, j, r]; of several at an index, the last one stays.

    With mode "add", "min" or "max" all of them count, in any order.
    """
    if out.dtype.kind == "b" and mode != "set":  # a sum of bools is whether any is true
        mode = "max" if mode == "add" else mode
        out, values = out.view(np.uint8), values.view(np.uint8)
    if out.dtype.kind == "c" and mode == "add":
        for mine, theirs in zip(memory.parts(out), memory.parts(values), strict=True):
            put(mine, where, theirs, mode, device, name)
        return
    checked = is_checked(device)
    last = None
    if mode == "set" and where.shape[1] > 1:
        kept = (where.shape[0], out.shape[1], where.shape[2])
        last = full(kept, -1, int32, device)
        each(name, device, find_last, where.size, where, last, checked)
        last = memory.repeat(last, out.shape)
    repeated = memory.repeat(where, values.shape)
    each(name, device, scatter, values.size, values, repeated, last, out, mode, checked)


# ---- what is not zero ----------------------------------------------------------------------------


@jit(wraparound=False)
def positions(flags, before, out, last: constexpr):
    """out[k, :]: the coordinates of the k-th element that is set; before: how many came before."""
    i = grid(1)
    if i < flags.size:
        if flags[0, i, 0] != 0:
            rest = i
            for a in unroll(range(len(last))):
                out[len(last) - 1 - a, before[0, i, 0]] = rest % last[a]
                rest = rest // last[a]


def nonzero(flags: Any, shape: tuple[int, ...], device: str, name: str) -> tuple[Any, ...]:
    """For each axis the indices of the elements of a shape whose flags (0 or 1) are 1."""
    flags = flags.reshape(1, -1, 1)
    n = flags.shape[1]
    kind = index_dtype(device)
    if n == 0:
        return tuple(memory.allocate((0,), kind, device) for _ in shape)
    before = memory.allocate((1, n, 1), int32, device)
    scan(flags, before, int32, device, name, exclusive=True)
    count = sum(int(memory.to_host(b[:, n - 1 :, :]).item()) for b in (before, flags))
    out = memory.allocate((len(shape), count), kind, device)
    if count:
        each(name, device, positions, n, flags, before, out, shape[::-1])
    return tuple(out[a] for a in range(len(shape)))
