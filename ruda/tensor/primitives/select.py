"""Which elements: the greatest, those at indices, those that are not zero.

All arrays have three axes here, (outer, n, inner): the middle one is worked along. Any tensor and
axis become so without a copy if it lies in C order.
"""

# mypy: disable-error-code="no-untyped-def,comparison-overlap,operator,index,arg-type,call-overload"
# What kernels take has the types of the kernel language, of which mypy knows nothing.

from __future__ import annotations

from typing import Any

import numpy as np

from ruda.dtypes import as_dtype, float32, int32, uint32
from ruda.errors import ShapeError
from ruda.jit import jit
from ruda.jit.language import (
    atomic,
    ballot_sync,
    blockIdx,
    constexpr,
    grid,
    lanemask_lt,
    local,
    popc,
    shared,
    shfl_xor_sync,
    syncthreads,
    threadIdx,
    unroll,
)
from ruda.tensor import memory
from ruda.tensor.primitives.blocks import ALL, WARP, block_total
from ruda.tensor.primitives.run import each, full, index_dtype, is_checked, launch
from ruda.tensor.primitives.scan import chunks_of, scan

THREADS = 1 << 16  # that search for a few extremes
INT32 = 2**31 - 2**16  # elements that are counted in 32 bits, with a tile to spare


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
def row_extremes(x, found, out, chunk, block: constexpr, items: constexpr, wide: constexpr,
                 greatest: constexpr):  # fmt: skip
    """out[line, part]: where the extreme of a chunk of a line stands first.

    With `found`, of the elements at the indices found[line, :], which ascend.
    """
    values = shared.array(WARP, wide)
    places = shared.array(WARP, int32)
    own = local.array(items, wide)
    t = int32(threadIdx.x)
    parts = out.shape[1]
    line = blockIdx.x // parts
    begin = out.dtype.type((blockIdx.x % parts) * chunk)
    n = x.shape[1] if found is None else found.shape[1]
    count = int32(min(chunk, n - begin))
    best = min(t, count - 1)
    at = begin + best if found is None else found[line, begin + best]
    value = wide(x[line, at])
    for start in range(int32(0), count, block * items):
        for k in unroll(range(items)):
            at = begin + min(start + k * block + t, count - 1)
            if found is not None:
                at = found[line, at]
            own[k] = wide(x[line, at])
        for k in unroll(range(items)):
            if exceeds(own[k], value, greatest):
                value = own[k]
                best = min(start + k * block + t, count - 1)
    for step in unroll((16, 8, 4, 2, 1)):
        other = shfl_xor_sync(ALL, value, step)
        place = shfl_xor_sync(ALL, best, step)
        if exceeds(other, value, greatest) or (
            place < best and not exceeds(value, other, greatest)
        ):
            value = other
            best = place
    if t % WARP == 0:
        values[t // WARP] = value
        places[t // WARP] = best
    syncthreads()
    if t == 0:
        for w in range(1, block // WARP):
            if exceeds(values[w], value, greatest) or (
                places[w] < best and not exceeds(value, values[w], greatest)
            ):
                value = values[w]
                best = places[w]
        out[line, blockIdx.x % parts] = begin + best if found is None else found[line, begin + best]


@jit(wraparound=False)
def extremes(x, found, out, greatest: constexpr):
    """out[p, part, r]: where the extreme of elements part, part + parts, ... stands first.

    With `found`, of those at the indices found[p, :, r].
    """
    t = grid(1)
    if t < out.size:
        r = t % out.shape[2]
        part = (t // out.shape[2]) % out.shape[1]
        p = t // out.shape[2] // out.shape[1]
        parts = out.shape[1]
        best = part if found is None else found[p, part, r]
        value = x[p, best, r]
        for k in range(part + parts, x.shape[1] if found is None else found.shape[1], parts):
            at = k if found is None else found[p, k, r]
            other = x[p, at, r]
            if exceeds(other, value, greatest) or (
                at < best and not exceeds(value, other, greatest)
            ):
                best = at
                value = other
        out[p, part, r] = best


def arg_extreme(x: Any, greatest: bool, device: str, name: str) -> Any:
    """The indices, of shape (outer, inner), of the first extremes along the middle axis."""
    outer, n, inner = x.shape
    kind = index_dtype(device)
    if outer * inner == 0:
        return memory.allocate((outer, inner), kind, device)
    found = None
    block, items, most = (32, 2, 4) if memory.on_host(device) else (256, 8, 2048)
    if inner == 1 and n >= block:
        chunk, parts = chunks_of(n, block * items, max(1, most // outer))
        dtype = as_dtype(x.dtype)
        wide = dtype if dtype.bits >= 32 else float32 if dtype.kind == "float" else int32
        lines = memory.look(x, x.shape[:2], x.strides[:2])
        for lengths in ((chunk, parts), (parts, 1)) if parts > 1 else ((n, 1),):
            out = memory.allocate((outer, lengths[1]), kind, device)
            launch(
                name, device, row_extremes, outer * lengths[1], block,
                lines, found, out, lengths[0], block, items, wide, greatest,
            )  # fmt: skip
            found = out
        return out
    for parts in parts_of(n, outer * inner):
        out = memory.allocate((outer, parts, inner), kind, device)
        each(name, device, extremes, outer * inner * parts, x, found, out, greatest)
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
    """An index from the start; one out of range stays as it is if checks will find it, else is
    held."""
    if i < 0 and (i + n >= 0 or not checked):
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


@jit
def is_kept(x, i, changes: constexpr):
    """Whether an element is not zero; with `changes`, whether it differs from the one before."""
    if changes:
        kept = i == 0 or x[i] != x[max(i - 1, 0)]
    else:
        kept = x[i] != 0
    return kept


@jit(wraparound=False)
def count_kept(x, counts, chunk, block: constexpr, items: constexpr, changes: constexpr):
    """counts[part]: how many elements of a chunk are kept; a 0 behind them."""
    partial = shared.array(WARP, int32)
    t = int32(threadIdx.x)
    begin = int32(blockIdx.x * chunk)
    count = min(int32(chunk), int32(x.size) - begin)
    total = int32(0)
    for start in range(int32(0), count, block * items):
        for k in unroll(range(items)):
            i = start + k * block + t
            if is_kept(x, begin + min(i, count - 1), changes) and i < count:
                total += 1
    total = block_total(total, partial, block, "sum")
    if t == 0:
        counts[blockIdx.x] = total
        if blockIdx.x == 0:
            counts[counts.size - 1] = 0


@jit(wraparound=False)
def keep(x, before, out, values, last, chunk, block: constexpr, items: constexpr,
         changes: constexpr):  # fmt: skip
    """out[:, k], values[k]: the coordinates and the value of the k-th element that is kept.

    before[part]: how many are kept in the chunks before; last: the extents from the last axis
    to the second one. A warp has a piece of a tile for itself,
    so that what it writes at once lies together.
    """
    partial = shared.array(WARP, int32)
    votes = local.array(items, uint32)
    t = int32(threadIdx.x)
    warp = t // WARP
    lane = t % WARP
    begin = int32(blockIdx.x * chunk)
    count = min(int32(chunk), int32(x.size) - begin)
    goes = before[blockIdx.x]
    for start in range(int32(0), count, block * items):
        first = start + warp * (WARP * items) + lane
        mine = int32(0)
        for k in unroll(range(items)):
            i = first + k * WARP
            kept = is_kept(x, begin + min(i, count - 1), changes) and i < count
            votes[k] = uint32(ballot_sync(ALL, kept))
        for e in unroll(range(items)):
            mine += int32(popc(votes[e]))
        if lane == 0:
            partial[warp] = mine
        syncthreads()
        k_th = goes
        for w in unroll(range(block // WARP)):
            if w < warp:
                k_th += partial[w]
            goes += partial[w]
        syncthreads()
        for m in unroll(range(items)):  # a name of its own, so that it stands for a number
            if (votes[m] >> uint32(lane)) & uint32(1) != 0:
                j = k_th + int32(popc(votes[m] & uint32(lanemask_lt())))
                i = begin + first + m * WARP
                if values is not None:
                    values[j] = x[i]
                if out is not None:
                    rest = out.dtype.type(i)
                    for a in unroll(range(len(last))):
                        out[len(last) - a, j] = rest % last[a]
                        rest = rest // last[a]
                    out[0, j] = rest
            k_th += int32(popc(votes[m]))


def kept(
    x: Any, shape: tuple[int, ...], changes: bool, want: str, device: str, name: str
) -> Any:  # fmt: skip
    """Of the elements of a vector that are kept the coordinates in a shape (axes, count), or the
    values: `want` is "places" or "values"."""
    n = x.shape[0]
    kind = index_dtype(device) if want == "places" else as_dtype(x.dtype)

    def new(count: int) -> Any:
        return memory.allocate((len(shape), count) if want == "places" else (count,), kind, device)

    if n == 0:
        return new(0)
    if n >= INT32:
        raise ShapeError(f"`{name}` of {n} elements: there may be {INT32 - 1}")
    block, items, most = (32, 2, 4) if memory.on_host(device) else (256, 8, 4096)
    chunk, parts = chunks_of(n, block * items, most)
    counts, before = (memory.allocate((1, parts + 1, 1), int32, device) for _ in "12")
    flat = counts.reshape(-1), before.reshape(-1)
    launch(name, device, count_kept, parts, block, x, flat[0], chunk, block, items, changes)
    scan(counts, before, int32, device, name, exclusive=True)
    found = new(int(memory.to_host(flat[1][parts:]).item()))
    if found.size:
        places = found if want == "places" else None
        values = found if want == "values" else None
        launch(
            name, device, keep, parts, block,
            x, flat[1], places, values, shape[:0:-1], chunk, block, items, changes,
        )  # fmt: skip
    return found


def nonzero(x: Any, shape: tuple[int, ...], device: str, name: str) -> tuple[Any, ...]:
    """For each axis the indices of the elements of a shape that are not zero."""
    found = kept(x.reshape(-1), shape, False, "places", device, name)
    return tuple(found[a] for a in range(len(shape)))


# ---- how often a number stands -------------------------------------------------------------------

BINS = 2048  # that a block counts for itself, before it adds to those of all


@jit(wraparound=False)
def count_numbers(x, out, chunk, block: constexpr, bins: constexpr):
    """out[v]: how many elements are v; all are less than out.size."""
    found = shared.array(bins, int32)
    t = threadIdx.x
    begin = blockIdx.x * chunk
    for b in range(t, out.size, block):
        found[b] = 0
    syncthreads()
    for i in range(begin + t, min(begin + chunk, x.size), block):
        atomic.add(found, x[i], 1)
    syncthreads()
    for b in range(t, out.size, block):
        if found[b] > 0:
            atomic.add(out, b, out.dtype.type(found[b]))


def counts(x: Any, n: int, device: str, name: str) -> Any:
    """How often each number below n stands in a vector; None where a block cannot count so many."""
    if n > BINS or not x.size:
        return None
    out = full((n,), 0, index_dtype(device), device)
    block, most = (32, 3) if memory.on_host(device) else (256, 2048)
    chunk, parts = chunks_of(x.size, 16 * block, most)
    launch(name, device, count_numbers, parts, block, x, out, chunk, block, BINS)
    return out
