"""Sums, products and extremes up to each element, in work linear in the elements.

A block takes a tile of one line. First each tile is reduced to a total; the totals are scanned in
the same way; then each tile is scanned with the total of what lies before it. No block waits for
another one. Many short lines get a thread each.

A segment begins where `starts` is not zero: there a scan forgets what came before. With segments a
total is (the value since the last start, whether there was a start).
"""

# mypy: disable-error-code="no-untyped-def,comparison-overlap,operator,index,arg-type,call-overload"
# What kernels take has the types of the kernel language, of which mypy knows nothing.

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ruda.dtypes import DType, int32
from ruda.jit import jit
from ruda.jit.language import (
    blockIdx,
    constexpr,
    grid,
    gridDim,
    local,
    shared,
    syncthreads,
    threadIdx,
    unroll,
)
from ruda.tensor import memory
from ruda.tensor.primitives.blocks import block_scan, block_total, combine
from ruda.tensor.primitives.run import BLOCK, each, has_short_kernels, launch

SHORT = 64  # elements of a line that one thread scans, if there are many lines
FEW_TILES = 2  # of a line that one block scans


@jit(wraparound=False)
def scan_lines(x, starts, out, wide: constexpr, how: constexpr, identity: constexpr,
               exclusive: constexpr):  # fmt: skip
    """A thread scans a line."""
    line = grid(1)
    if line < x.shape[0] * x.shape[2]:
        p = line // x.shape[2]
        r = line % x.shape[2]
        value = wide(identity)
        for i in range(x.shape[1]):
            if starts is not None:
                if starts[p, i, r] != 0:
                    value = wide(identity)
            if exclusive:
                out[p, i, r] = out.dtype.type(value)
            value = combine(value, wide(x[p, i, r]), how)
            if not exclusive:
                out[p, i, r] = out.dtype.type(value)


@jit(wraparound=False)
def tile_totals(x, starts, totals, opened, block: constexpr, items: constexpr, how: constexpr,
                identity: constexpr):  # fmt: skip
    """totals[p, tile, r]: of all elements of a tile (since the last start in it)."""
    value = shared.array(block, totals.dtype)
    mark = shared.array(block, int32)
    t = threadIdx.x
    tiles = totals.shape[1]
    tile = blockIdx.x % tiles
    p = blockIdx.x // tiles // x.shape[2]
    r = blockIdx.x // tiles % x.shape[2]
    total = totals.dtype.type(identity)
    broken = 0
    for k in range(items):
        if starts is None:  # in any order: neighbours read neighbours
            i = (tile * items + k) * block + t
        else:
            i = (tile * block + t) * items + k
        if i < x.shape[1]:
            if starts is not None:
                if starts[p, i, r] != 0:
                    total = totals.dtype.type(identity)
                    broken = 1
            total = combine(total, totals.dtype.type(x[p, i, r]), how)
    value[t] = total
    mark[t] = broken
    syncthreads()
    distance = 1
    while distance < block:
        if t % (2 * distance) == 0:
            if mark[t + distance] != 0:
                value[t] = value[t + distance]
                mark[t] = 1
            else:
                value[t] = combine(value[t], value[t + distance], how)
        distance *= 2
        syncthreads()
    if t == 0:
        totals[p, tile, r] = value[0]
        if starts is not None:
            opened[p, tile, r] = mark[0]


@jit(wraparound=False)
def scan_tiles(x, starts, before, out, block: constexpr, items: constexpr, wide: constexpr,
               how: constexpr, identity: constexpr, exclusive: constexpr):  # fmt: skip
    """A block scans a tile; before[p, tile, r] is the scan of the totals.

    The tile goes through shared memory, where a thread has `items` elements beside each other: so
    neighbours read and write neighbours in the arrays.
    """
    own = shared.array(block * items, wide)
    value = shared.array((2, block), wide)
    mark = shared.array((2, block), int32)
    t = threadIdx.x
    tiles = (x.shape[1] + block * items - 1) // (block * items)
    tile = blockIdx.x % tiles
    p = blockIdx.x // tiles // x.shape[2]
    r = blockIdx.x // tiles % x.shape[2]
    begin = tile * block * items
    for k in range(items):
        place = k * block + t
        if begin + place < x.shape[1]:
            own[place] = wide(x[p, begin + place, r])
        else:
            own[place] = wide(identity)
    syncthreads()
    total = wide(identity)
    broken = 0
    for k in range(items):
        place = t * items + k
        if starts is not None and begin + place < x.shape[1]:
            if starts[p, begin + place, r] != 0:
                total = wide(identity)
                broken = 1
        total = combine(total, own[place], how)
    value[0, t] = total
    if starts is not None:
        mark[0, t] = broken
    syncthreads()
    source = 0
    distance = 1
    while distance < block:  # value[source, t]: of threads t - distance + 1 to t
        total = value[source, t]
        if starts is not None:
            broken = mark[source, t]
        if t >= distance and broken == 0:
            total = combine(value[source, t - distance], total, how)
            if starts is not None:
                broken = mark[source, t - distance]
        value[1 - source, t] = total
        if starts is not None:
            mark[1 - source, t] = broken
        source = 1 - source
        distance *= 2
        syncthreads()
    total = wide(identity)
    broken = 0
    if t > 0:
        total = value[source, t - 1]
        if starts is not None:
            broken = mark[source, t - 1]
    if before is not None:
        if tile > 0 and broken == 0:
            total = combine(before[p, tile - 1, r], total, how)
    for k in range(items):
        place = t * items + k
        if starts is not None and begin + place < x.shape[1]:
            if starts[p, begin + place, r] != 0:
                total = wide(identity)
        after = combine(total, own[place], how)
        if exclusive:
            own[place] = total
        else:
            own[place] = after
        total = after
    syncthreads()
    for k in range(items):
        place = k * block + t
        if begin + place < x.shape[1]:
            out[p, begin + place, r] = out.dtype.type(own[place])


# ---- long lines without segments -----------------------------------------------------------------


@jit(wraparound=False)
def chunk_totals(x, totals, chunk, block: constexpr, items: constexpr, how: constexpr,
                 identity: constexpr):  # fmt: skip
    """totals[line, part]: of a chunk of a line; all that is asked for are whole."""
    partial = shared.array(32, totals.dtype)
    t = threadIdx.x
    parts = totals.shape[1]
    line = blockIdx.x // parts
    part = blockIdx.x % parts
    total = totals.dtype.type(identity)
    for start in range(part * chunk, (part + 1) * chunk, block * items):
        for k in unroll(range(items)):
            total = combine(total, totals.dtype.type(x[line, start + k * block + t]), how)
    total = block_total(total, partial, block, how)
    if t == 0:
        totals[line, part] = total


@jit(wraparound=False)
def scan_chunks(x, totals, out, chunk, block: constexpr, items: constexpr, wide: constexpr,
                how: constexpr, identity: constexpr, exclusive: constexpr):  # fmt: skip
    """A block scans a chunk, tile by tile, beginning with the totals of the chunks before it.

    A tile goes through shared memory, where a thread has `items` elements beside each other: so
    neighbours read and write neighbours in the arrays.
    """
    own = shared.array(block * items, wide)
    partial = shared.array(32, wide)
    kept = local.array(items, wide)
    t = threadIdx.x
    n = x.shape[1]
    parts = gridDim.x // x.shape[0]
    line = blockIdx.x // parts
    part = blockIdx.x % parts
    carry = wide(identity)
    if totals is not None:
        for k in range(t, part, block):
            carry = combine(carry, totals[line, k], how)
        carry = block_total(carry, partial, block, how)
    for start in range(part * chunk, min((part + 1) * chunk, n), block * items):
        if start + block * items <= n:  # a whole tile: no element is tested
            for k in unroll(range(items)):
                kept[k] = wide(x[line, start + k * block + t])
            for k in unroll(range(items)):
                own[k * block + t] = kept[k]
        else:
            for place in range(t, block * items, block):
                own[place] = wide(x[line, min(start + place, n - 1)])  # changes nothing before it
        syncthreads()
        total = wide(identity)
        for k in unroll(range(items)):
            kept[k] = own[t * items + k]
            total = combine(total, kept[k], how)
        before, whole = block_scan(total, wide(identity), partial, block, how)
        total = combine(carry, before, how)
        carry = combine(carry, whole, how)
        for k in unroll(range(items)):
            if exclusive:
                own[t * items + k] = total
            total = combine(total, kept[k], how)
            if not exclusive:
                own[t * items + k] = total
        syncthreads()
        if start + block * items <= n:
            for k in unroll(range(items)):
                out[line, start + k * block + t] = out.dtype.type(own[k * block + t])
        else:
            for place in range(t, n - start, block):
                out[line, start + place] = out.dtype.type(own[place])
        syncthreads()


def chunk_shape(wide: DType, device: str) -> tuple[int, int, int]:
    """(threads, elements of each in a tile, most chunks of a line)."""
    if memory.on_host(device):
        return 32, 3, 4
    if has_short_kernels(device):
        return 64, 2, 1024
    return 256, 15 if wide.itemsize <= 4 else 7, 2048


def chunks_of(n: int, tile: int, most: int) -> tuple[int, int]:
    """(elements of a chunk, how many chunks) of n elements, at most so many: whole tiles.

    >>> chunks_of(1000, 100, 4), chunks_of(50, 100, 4)
    ((300, 4), (100, 1))
    """
    chunk = tile * max(1, -(-n // (tile * most)))
    return chunk, -(-n // chunk)


def scan_long(
    x: Any, out: Any, wide: DType, device: str, name: str, how: str, exclusive: bool
) -> Callable[[Any, Any], None] | None:
    """Scan lines (lines, n), a few blocks each.

    What is returned scans other arrays that lie as these do: the host's part of it takes a few
    microseconds. None if that cannot be.
    """
    lines, n = x.shape
    block, items, most = chunk_shape(wide, device)
    few = n <= FEW_TILES * block * items  # one launch takes less time than two
    chunk, parts = chunks_of(n, block * items, 1 if few else max(1, most // lines))
    identity = identity_of(how, wide)
    totals = make = first = None
    if parts > 1:
        make = memory.maker((lines, parts - 1), wide, device)
        totals = make()
        first = launch(
            name, device, chunk_totals, lines * (parts - 1), block,
            x, totals, chunk, block, items, how, identity,
        )  # fmt: skip
    second = launch(
        name, device, scan_chunks, lines * parts, block,
        x, totals, out, chunk, block, items, wide, how, identity, exclusive,
    )  # fmt: skip
    if second is None or (parts > 1 and first is None):
        return None

    def again(x: Any, out: Any) -> None:
        if make is None or first is None:
            second([x, out])
            return
        totals = make()
        first([x, totals])
        second([x, totals, out])

    return again


def tile_shape(wide: DType, device: str) -> tuple[int, int]:
    """(threads, elements of each) of a tile in at most 16 KiB; an odd number parts the banks."""
    if memory.on_host(device):
        return 16, 3  # a small tile tells the interpreter as much
    return 128, 5 if wide.itemsize > 8 else 9


def identity_of(how: str, dtype: DType) -> Any:
    """What changes nothing that it is combined with."""
    if how in ("sum", "prod"):
        return int(how == "prod")
    if dtype.is_integer:
        return dtype.range[how == "min"]
    return float("-inf") if how == "max" else float("inf")


def scan(
    x: Any,
    out: Any,
    wide: DType,
    device: str,
    name: str,
    *,
    how: str = "sum",
    exclusive: bool = False,
    starts: Any = None,
) -> Callable[[Any, Any], None] | None:
    """Scan buffers (outer, n, inner) along the middle axis, computing at dtype `wide`.

    The result is that of `scan_long`, where this does it.
    """
    outer, n, inner = x.shape
    lines = outer * inner
    if not lines * n:
        return None
    identity = identity_of(how, wide)
    if n <= SHORT or lines >= max(n, 16 * BLOCK):
        each(name, device, scan_lines, lines, x, starts, out, wide, how, identity, exclusive)
        return None
    if starts is None and inner == 1 and wide.kind != "complex":
        lines_of_x, lines_of_out = (memory.look(a, a.shape[:2], a.strides[:2]) for a in (x, out))
        return scan_long(lines_of_x, lines_of_out, wide, device, name, how, exclusive)
    block, items = tile_shape(wide, device)
    tiles = -(-n // (block * items))
    before = None
    if tiles > 1:
        totals = memory.allocate((outer, tiles, inner), wide, device)
        opened = None if starts is None else memory.allocate(totals.shape, int32, device)
        launch(
            name, device, tile_totals, tiles * lines, block,
            x, starts, totals, opened, block, items, how, identity,
        )  # fmt: skip
        before = memory.allocate((outer, tiles, inner), wide, device)
        scan(totals, before, wide, device, name, how=how, starts=opened)
    launch(
        name, device, scan_tiles, tiles * lines, block,
        x, starts, before, out, block, items, wide, how, identity, exclusive,
    )  # fmt: skip
    return None
