# mypy: disable-error-code="no-untyped-def,comparison-overlap,operator,index,arg-type,call-overload"
# What kernels take has the types of the kernel language, of which mypy knows nothing.

"""Orders: stable sorting by digits, places in a sorted row.

Elements are sorted as unsigned integers, made of their bits so that they compare alike: NaN last,
-0.0 equal to 0.0; for the descending order turned round, NaN still last. A key is one or two words
of 32 bits. Each pass puts the elements in order of one digit of four bits, and keeps that of equal
ones: tiles count their digits, a scan of the counts says where each tile's elements of a digit go,
and each tile moves them there. Short rows are sorted by counting, for each element, those before.

Rows are the last axis of arrays (rows, n).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ruda import backends
from ruda.dtypes import DType, int32, uint32
from ruda.jit import jit
from ruda.jit.language import (
    atomic,
    blockIdx,
    constexpr,
    grid,
    local,
    shared,
    syncthreads,
    threadIdx,
    unroll,
)
from ruda.tensor import memory
from ruda.tensor.primitives.run import each, has_int64, index_dtype, launch
from ruda.tensor.primitives.scan import scan

SHORT = 64  # elements of a row that is sorted by counting
DIGITS = 16

# ---- by counting ---------------------------------------------------------------------------------


@jit
def precedes(a, b, descending: constexpr):
    """Whether `a` goes before `b` in the order: NaN after all numbers."""
    if a != a:
        return False
    if b != b:
        return True
    return a > b if descending else a < b


@jit(wraparound=False)
def sort_by_rank(x, order, descending: constexpr):
    """order[row, k]: where the element that goes to place k of a short row stands."""
    t = grid(1)
    if t < x.size:
        row = t // x.shape[1]
        i = t % x.shape[1]
        value = x[row, i]
        rank = int32(0)  # 64 bits are not everywhere
        for k in range(x.shape[1]):
            other = x[row, k]
            as_it_stands = k < i and not precedes(value, other, descending)
            if as_it_stands or precedes(other, value, descending):
                rank += 1
        order[row, rank] = i


# ---- keys ----------------------------------------------------------------------------------------


@jit(wraparound=False)
def make_keys(words, order, keys, word: constexpr, kind: constexpr, infinity: constexpr,
              sign: constexpr, descending: constexpr):  # fmt: skip
    """keys[row, i]: a word of the key of element order[row, i]; words[row, i, :] are its bits."""
    t = grid(1)
    if t < keys.size:
        row = t // keys.shape[1]
        i = t % keys.shape[1]
        at = i if word == 0 else order[row, i]
        top = uint32(words[row, at, words.shape[2] - 1])
        low = uint32(words[row, at, 0])
        bits = low if word == 0 else top
        is_top = word == words.shape[2] - 1
        is_nan = False
        if kind == "float":
            size = top & uint32(sign - 1)
            rest = words.shape[2] > 1 and low != uint32(0)
            is_nan = size > uint32(infinity) or (size == uint32(infinity) and rest)
            if top >= uint32(sign):  # negative: the greater the bits, the less; -0.0 as 0.0
                is_zero = size == uint32(0) and not rest
                if not is_zero:
                    bits = bits ^ uint32(2 * sign - 1 if is_top else 0xFFFFFFFF)
                elif is_top:
                    bits = uint32(sign)
            elif is_top:
                bits = bits | uint32(sign)
        elif kind == "int" and is_top:
            bits = bits ^ uint32(sign)
        if descending:
            bits = bits ^ uint32(2 * sign - 1 if is_top else 0xFFFFFFFF)
        if is_nan:
            bits = uint32(2 * sign - 1 if is_top else 0xFFFFFFFF)
        keys[row, i] = bits
        if word == 0:
            order[row, i] = i


# ---- a pass --------------------------------------------------------------------------------------


@jit(wraparound=False)
def count_digits(keys, counts, shift, block: constexpr, items: constexpr):
    """counts[row, digit, tile]: how many keys of a tile have a digit.

    Each thread counts for itself: one count that all of them raise would make them wait in turn.
    """
    own = shared.array(DIGITS * block, int32)
    found = shared.array(DIGITS, int32)
    t = threadIdx.x
    tiles = counts.shape[2]
    row = blockIdx.x // tiles
    tile = blockIdx.x % tiles
    for d in range(DIGITS):
        own[d * block + t] = 0
    if t < DIGITS:
        found[t] = 0
    for k in range(items):
        i = (tile * items + k) * block + t
        if i < keys.shape[1]:
            own[int32((keys[row, i] >> uint32(shift)) & uint32(15)) * block + t] += 1
    syncthreads()
    total = int32(0)
    for k in range(DIGITS):  # a thread's part lies within a digit
        total += own[t * DIGITS + (k + t) % DIGITS]
    atomic.add(found, t * DIGITS // block, total)
    syncthreads()
    if t < DIGITS:
        counts[row, t, tile] = found[t]


@jit
def padded(i):
    """A place in shared memory such that threads 16 apart do not meet in a bank."""
    return i + i // DIGITS


@jit(wraparound=False)
def move_digits(keys, order, starts, new_keys, new_order, shift, block: constexpr,
                items: constexpr):  # fmt: skip
    """Put the elements in the order of a digit; starts[row, digit, tile]: where the first goes.

    places[padded(digit * block + t)] is the place in the tile, in that order, of the next element
    of thread t with the digit. So the tile is put together in order, and then written out.
    """
    places = shared.array((DIGITS + 1) * block, int32)
    totals = shared.array((2, block), int32)
    first = shared.array(DIGITS, int32)
    tile_keys = shared.array(block * items, uint32)
    tile_order = shared.array(block * items, int32)
    own_keys = local.array(items, uint32)
    own_order = local.array(items, int32)
    t = threadIdx.x
    tiles = starts.shape[2]
    row = blockIdx.x // tiles
    tile = blockIdx.x % tiles
    begin = tile * block * items
    for d in range(DIGITS):
        places[padded(d * block + t)] = 0
    for k in range(items):
        place = k * block + t
        if begin + place < keys.shape[1]:
            tile_keys[place] = keys[row, begin + place]
            tile_order[place] = order[row, begin + place]
    syncthreads()
    for k in unroll(range(items)):
        place = t * items + k
        own_keys[k] = 0
        own_order[k] = 0
        if begin + place < keys.shape[1]:
            own_keys[k] = tile_keys[place]
            own_order[k] = tile_order[place]
            digit = int32((own_keys[k] >> uint32(shift)) & uint32(15))
            places[padded(digit * block + t)] += 1
    syncthreads()
    total = int32(0)
    for k in range(DIGITS):
        total += places[padded(t * DIGITS + k)]
    totals[0, t] = total
    syncthreads()
    source = 0
    distance = 1
    while distance < block:
        total = totals[source, t]
        if t >= distance:
            total += totals[source, t - distance]
        totals[1 - source, t] = total
        source = 1 - source
        distance *= 2
        syncthreads()
    total = totals[source, t - 1] if t > 0 else int32(0)
    for k in range(DIGITS):
        count = places[padded(t * DIGITS + k)]
        places[padded(t * DIGITS + k)] = total
        total += count
    syncthreads()
    if t < DIGITS:
        first[t] = places[padded(t * block)]
    syncthreads()
    for k in unroll(range(items)):
        if begin + t * items + k < keys.shape[1]:
            digit = int32((own_keys[k] >> uint32(shift)) & uint32(15))
            at = padded(digit * block + t)
            place = places[at]
            places[at] = place + 1
            tile_keys[place] = own_keys[k]
            tile_order[place] = own_order[k]
    syncthreads()
    for k in range(items):
        place = k * block + t
        if begin + place < keys.shape[1]:
            key = tile_keys[place]
            digit = int32((key >> uint32(shift)) & uint32(15))
            i = starts[row, digit, tile] + place - first[digit]
            new_keys[row, i] = key
            new_order[row, i] = tile_order[place]


def tile_shape(device: str) -> tuple[int, int]:
    """(threads, elements of each) of a tile, in what a device has of shared memory.

    An odd number of elements parts the banks of shared memory.
    """
    if device == "sim":
        return 16, 3
    most = backends.get(device).target(device).get("max_shared", 32768)
    return 128, 15 if most >= 32768 else 5


def argsort(x: Any, dtype: DType, descending: bool, device: str, name: str) -> Any:
    """The order of each row: int32 indices (rows, n)."""
    rows, n = x.shape
    order = memory.allocate((rows, n), int32, device)
    if rows * n == 0:
        return order
    if n <= SHORT and (dtype.bits < 64 or has_int64(device)):
        plain = x.view(np.uint8) if dtype.kind == "bool" else x
        each(name, device, sort_by_rank, rows * n, plain, order, descending)
        return order
    kind = "uint" if dtype.kind == "bool" else dtype.kind
    width = min(dtype.bits, 32) if dtype.kind != "bool" else 8
    words = memory.words(x, np.dtype(f"u{width // 8}"))
    keys = memory.allocate((rows, n), uint32, device)
    new_keys, new_order = (memory.allocate((rows, n), d, device) for d in (uint32, int32))
    for word in range(words.shape[2]):
        each(
            name, device, make_keys, rows * n, words, order, keys, word, kind,
            INFINITY.get(dtype.name, 0), 1 << (width - 1), descending,
        )  # fmt: skip
        for shift in range(0, 1 if dtype.kind == "bool" and not descending else width, 4):
            sort_digit(keys, order, new_keys, new_order, shift, device, name)
            keys, order, new_keys, new_order = new_keys, new_order, keys, order
    return order


# The word of infinity that has the exponent: what is greater is NaN.
INFINITY = {
    "float16": 0x7C00, "bfloat16": 0x7F80, "float32": 0x7F800000, "float64": 0x7FF00000,
}  # fmt: skip


def sort_digit(
    keys: Any, order: Any, new_keys: Any, new_order: Any, shift: int, device: str, name: str
) -> None:
    """One pass: the elements in the order of the digit at a shift, into other buffers."""
    rows, n = keys.shape
    block, items = tile_shape(device)
    tiles = -(-n // (block * items))
    counts = memory.allocate((rows, DIGITS, tiles), int32, device)
    launch(name, device, count_digits, rows * tiles, block, keys, counts, shift, block, items)
    starts = memory.allocate((rows, DIGITS, tiles), int32, device)
    line = rows, DIGITS * tiles, 1
    scan(counts.reshape(line), starts.reshape(line), int32, device, name, exclusive=True)
    launch(
        name, device, move_digits, rows * tiles, block,
        keys, order, starts, new_keys, new_order, shift, block, items,
    )  # fmt: skip


# ---- places in a sorted row ----------------------------------------------------------------------


@jit(wraparound=False)
def search(row, order, values, out, right: constexpr):
    """out[k]: where values[k] goes in a sorted row: before equal elements, or after them."""
    t = grid(1)
    if t < values.size:
        value = values[t]
        low = 0
        high = row.size
        while low < high:
            middle = (low + high) // 2
            at = middle if order is None else order[middle]
            other = row[at]
            if right:
                goes_on = not precedes(value, other, False)
            else:
                goes_on = precedes(other, value, False)
            if goes_on:
                low = middle + 1
            else:
                high = middle
        out[t] = low


def searchsorted(row: Any, order: Any, values: Any, right: bool, device: str, name: str) -> Any:
    """The places of values in a sorted row (through an order, if it is not sorted itself)."""
    out = memory.allocate(values.shape, index_dtype(device), device)
    each(name, device, search, values.size, row, order, values, out, right)
    return out
