# mypy: allow-untyped-defs, allow-incomplete-defs
# mypy: disable-error-code="comparison-overlap,operator,index,arg-type,call-overload,attr-defined"
# What kernels take has the types of the kernel language, of which mypy knows nothing.

"""Orders: stable sorting by digits, places in a sorted row.

Elements are sorted as unsigned integers, made of their bits so that they compare alike: NaN last,
-0.0 equal to 0.0; for the descending order turned round, NaN still last. Only digits are made so;
the elements are moved as they are. Each pass puts the elements in order of one digit, of eight bits
on CUDA, and keeps that of equal ones: chunks of a row count their digits, a scan of the counts says
where each chunk's elements of a digit go, and the blocks move them there, tile by tile. Numbers of
64 bits on devices without them are sorted by two words. Short rows are sorted by counting, for each
element, those before.

Rows are the last axis of arrays (rows, n).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ruda import backends
from ruda.dtypes import DType, as_dtype, int32, uint32, uint64
from ruda.errors import ShapeError
from ruda.jit import jit
from ruda.jit.language import (
    atomic,
    blockIdx,
    constexpr,
    grid,
    lanemask_lt,
    local,
    popc,
    shared,
    syncthreads,
    syncwarp,
    threadIdx,
    unroll,
)
from ruda.tensor import memory
from ruda.tensor.primitives.blocks import WARP, block_scan
from ruda.tensor.primitives.run import each, has_int64, has_short_kernels, index_dtype, launch
from ruda.tensor.primitives.scan import chunks_of, scan

RANKS = 1 << 16  # a number above the places in a tile
SHORT = 64  # elements of a row that is sorted by counting

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


# ---- a pass --------------------------------------------------------------------------------------


class Order(NamedTuple):
    """How the bits of elements compare: "int", "uint" or "float", the sign's bit, and infinity."""

    kind: str
    sign: int
    infinity: int
    descending: bool


@jit
def digit_of(bits, shift, order: constexpr, width: constexpr):
    """A digit of the key of an element: of an unsigned integer that compares as the element does.

    The elements themselves are moved, so that -0.0, which compares as 0.0 does, remains.
    """
    mask = bits.dtype.type(2 * order.sign - 1)
    top = bits.dtype.type(order.sign)
    key = bits
    if order.kind == "int":
        key = key ^ top
    elif order.kind == "float":
        size = bits & bits.dtype.type(order.sign - 1)
        key = key ^ (mask if bits >= top else top)  # negative: the greater the bits, the less
        if size == 0:
            key = top
    if order.descending:
        key = key ^ mask
    if order.kind == "float":
        if size > bits.dtype.type(order.infinity):  # NaN
            key = mask
    return int32((key >> bits.dtype.type(shift)) & bits.dtype.type((1 << width) - 1))


@jit(wraparound=False)
def count_digits(keys, counts, shift, chunk, block: constexpr, items: constexpr,
                 wide: constexpr, order: constexpr, width: constexpr):  # fmt: skip
    """counts[row, digit, part]: how many keys of a chunk of a row have a digit."""
    found = shared.array(1 << width, int32)
    own = local.array(items, wide)
    t = int32(threadIdx.x)
    n = int32(keys.shape[1])
    parts = counts.shape[2]
    row = blockIdx.x // parts
    part = blockIdx.x % parts
    if t < 1 << width:
        found[t] = 0
    syncthreads()
    begin = int32(part * chunk)
    for start in range(begin, min(begin + int32(chunk), n), block * items):
        for k in unroll(range(items)):
            own[k] = wide(keys[row, min(start + k * block + t, n - 1)])
        for k in unroll(range(items)):
            if start + k * block + t < n:
                atomic.add(found, digit_of(own[k], shift, order, width), 1)
    syncthreads()
    if t < 1 << width:
        counts[row, t, part] = found[t]


@jit(wraparound=False, max_registers=64)
def move_digits(keys, order, starts, new_keys, new_order, shift, chunk, block: constexpr,
                items: constexpr, wide: constexpr, how: constexpr, width: constexpr):  # fmt: skip
    """Put the elements in the order of a digit; starts[row, digit, part]: where a chunk's first go.

    A warp ranks its elements in turn, so that equal ones keep their order: the lanes that have a
    digit find one another, and the first of them counts. Then a tile is put together in shared
    memory in the order of the digits, and written out, neighbours beside neighbours. `order` is
    what moves with the keys: None in the first pass, where an element's place is meant.
    """
    count = shared.array((block // WARP, 1 << width), int32)  # of a warp; then where they begin
    lanes = shared.array((block // WARP, 1 << width), uint32)  # that have a digit, as bits
    first = shared.array(1 << width, int32)  # where a digit of a tile goes, less where it is in it
    then = shared.array(1 << width, int32)  # where the next element with a digit goes
    partial = shared.array(WARP, int32)
    tile = shared.array(block * items, wide)
    tile_order = shared.array(block * items if new_order is not None else 1, int32)
    own = local.array(items, wide)
    rank = local.array(items, int32)
    t = int32(threadIdx.x)
    warp = t // WARP
    lane = t % WARP
    n = int32(keys.shape[1])
    parts = starts.shape[2]
    row = blockIdx.x // parts
    part = blockIdx.x % parts
    if t < 1 << width:
        then[t] = starts[row, t, part]
    begin = int32(part * chunk)
    for start in range(begin, min(begin + int32(chunk), n), block * items):
        own_first = start + warp * (WARP * items) + lane
        if start + block * items <= n:
            for k in unroll(range(items)):
                own[k] = wide(keys[row, own_first + k * WARP])
        else:
            for k in unroll(range(items)):
                own[k] = wide(keys[row, min(own_first + k * WARP, n - 1)])
        for d in range(lane, 1 << width, WARP):
            count[warp, d] = 0
            lanes[warp, d] = 0
        syncwarp()
        for k in unroll(range(items)):
            digit = digit_of(own[k], shift, how, width)
            if own_first + k * WARP >= n:  # what is beyond the end stays behind all others
                digit = (1 << width) - 1
            atomic.or_(lanes, (warp, digit), uint32(1) << uint32(lane))
            syncwarp()
            same = lanes[warp, digit]
            before = int32(popc(same & uint32(lanemask_lt())))
            base = count[warp, digit]
            syncwarp()
            if before == 0:
                count[warp, digit] = base + int32(popc(same))
                lanes[warp, digit] = 0
            syncwarp()
            rank[k] = digit * RANKS + base + before
        syncthreads()
        total = int32(0)
        if t < 1 << width:
            for w in unroll(range(block // WARP)):
                total += count[w, t]
        before, _ = block_scan(total, int32(0), partial, block, "sum")
        if t < 1 << width:
            first[t] = then[t] - before
            then[t] += total
            for w in unroll(range(block // WARP)):
                total = count[w, t]
                count[w, t] = before
                before += total
        syncthreads()
        for k in unroll(range(items)):
            place = count[warp, rank[k] // RANKS] + rank[k] % RANKS
            tile[place] = own[k]
            if new_order is not None:
                if order is None:
                    tile_order[place] = int32(own_first + k * WARP)
                else:
                    tile_order[place] = order[row, min(own_first + k * WARP, n - 1)]
        syncthreads()
        for place in range(t, min(block * items, n - start), block):
            key = tile[place]
            i = first[digit_of(key, shift, how, width)] + place
            if new_keys is not None:
                new_keys[row, i] = key
            if new_order is not None:
                new_order[row, i] = tile_order[place]
        syncthreads()


class Shape(NamedTuple):
    """Threads of a block, elements of each in a tile, bits of a digit, most chunks of a row."""

    block: int
    items: int
    width: int
    chunks: int


def tile_shape(device: str, itemsize: int, wants_order: bool) -> Shape:
    """What a device has shared memory for: at most 63 KiB on CUDA, 16 KiB elsewhere.

    Measured on an H200 with 64M float32: 0.43 ms a pass, 0.85 with an order (1.18 with 256 x 8).
    """
    if memory.on_host(device):
        return Shape(32, 2, 4, 3)
    if has_short_kernels(device):
        return Shape(64, 1, 4, 1024)
    if "max_shared" in backends.get(device).target(device):
        return Shape(128, 8, 6, 1024)
    if itemsize > 4:
        return Shape(256, 8, 8, 4096)
    return Shape(384, 12, 8, 4096) if wants_order else Shape(256, 16, 8, 4096)


def radix(
    keys: Any, order: Order, wants_order: bool, device: str, name: str, given: Any = None
) -> tuple[Any, Any]:
    """(The rows in order, None), or with `wants_order` (None, indices).

    `given` is an order that the rows are in already.
    """
    rows, n = keys.shape
    wide = uint32 if keys.dtype.itemsize <= 4 else uint64
    shape = tile_shape(device, wide.itemsize, wants_order)
    block, items, width, most = shape
    chunk, parts = chunks_of(n, block * items, max(1, most // rows))
    shifts = range(0, 8 * keys.dtype.itemsize, width)
    for shift in shifts:
        counts, starts = (memory.allocate((rows, 1 << width, parts), int32, device) for _ in "12")
        rest = block, items, wide, order, width
        launch(
            name, device, count_digits, rows * parts, block, keys, counts, shift, chunk, *rest
        )  # fmt: skip
        line = rows, parts << width, 1
        scan(counts.reshape(line), starts.reshape(line), int32, device, name, exclusive=True)
        is_last = shift == shifts[-1]
        new_keys = new_order = None
        if not (wants_order and is_last):
            new_keys = memory.allocate((rows, n), as_dtype(keys.dtype), device)
        if wants_order:
            kind = index_dtype(device) if is_last else int32
            new_order = memory.allocate((rows, n), kind, device)
        launch(
            name, device, move_digits, rows * parts, block,
            keys, given, starts, new_keys, new_order, shift, chunk, *rest,
        )  # fmt: skip
        keys, given = new_keys, new_order
    return keys, given


def plain_bits(x: Any) -> Any:
    """The elements as unsigned integers of the same size."""
    return x.view(np.dtype(f"u{x.dtype.itemsize}"))


def order_of(dtype: DType, descending: bool) -> Order:
    bits = 8 if dtype.kind == "bool" else dtype.bits
    kind = "uint" if dtype.kind == "bool" else dtype.kind
    return Order(kind, 1 << (bits - 1), INFINITY.get(dtype.name, 0), descending)


# NaN is what is greater than infinity, without the sign.
INFINITY = {
    "float16": 0x7C00, "bfloat16": 0x7F80, "float32": 0x7F800000, "float64": 0x7FF0 << 48,
}  # fmt: skip


def sort(x: Any, dtype: DType, descending: bool, device: str, name: str) -> Any:
    """The elements of each row in order; None where a kernel of the device cannot hold them."""
    if x.size == 0 or (dtype.itemsize == 8 and not has_int64(device)) or x.shape[1] <= SHORT:
        return None
    found, _ = radix(plain_bits(x), order_of(dtype, descending), False, device, name)
    return found.view(x.dtype)


def argsort(x: Any, dtype: DType, descending: bool, device: str, name: str) -> Any:
    """The order of each row: indices (rows, n)."""
    rows, n = x.shape
    if n >= 2**31:
        raise ShapeError(f"`{name}` of {n} elements along an axis: there may be {2**31 - 1}")
    if rows * n == 0:
        return memory.allocate((rows, n), index_dtype(device), device)
    if n <= SHORT and (dtype.itemsize < 8 or has_int64(device)):
        order = memory.allocate((rows, n), index_dtype(device), device)
        plain = x.view(np.uint8) if dtype.kind == "bool" else x
        each(name, device, sort_by_rank, rows * n, plain, order, descending)
        return order
    if dtype.itemsize < 8 or has_int64(device):
        return radix(plain_bits(x), order_of(dtype, descending), True, device, name)[1]
    words = memory.words(x, np.dtype(np.uint32))  # the low word first, then the other one
    order = None
    for word in range(2):
        keys = memory.allocate((rows, n), uint32, device)
        each(
            name, device, make_keys, rows * n, words, order, keys, word, dtype.kind,
            0x7FF00000, 1 << 31, descending,
        )  # fmt: skip
        _, order = radix(keys, Order("uint", 1 << 31, 0, False), True, device, name, order)
    return order


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
