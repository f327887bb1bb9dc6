"""One launch over many buffers, which lie anywhere in a device's memory.

A kernel takes one array that spans them all, and a table: where in it each buffer begins, how many
elements there are, and which block is the first of them. That needs memory with one space of
addresses, which GPUs of CUDA and the host have.
"""

# mypy: disable-error-code="no-untyped-def,comparison-overlap,operator,index,arg-type,call-overload"
# What kernels take has the types of the kernel language, of which mypy knows nothing.

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from ruda.backends.base import DeviceArray, _at
from ruda.jit import jit
from ruda.jit.language import blockIdx, threadIdx
from ruda.tensor import memory
from ruda.tensor.primitives import run

THREADS, EACH = 256, 4  # of a block, and elements of a thread
KEPT = 64  # tables of where buffers lie
COLUMNS = 2  # of a table, behind where the buffers begin: elements, and the first block


def is_possible(device: str) -> bool:
    """Whether a device's memory has one space of addresses."""
    return device.startswith("cuda") or memory.on_host(device)


@jit(device=True, wraparound=False)
def row_of_block(table, column):
    """The row of a table that a block belongs to: the last whose first block is not behind it."""
    low, high = 0, table.shape[0]
    while high - low > 1:
        middle = (low + high) // 2
        if table[middle, column] <= blockIdx.x:
            low = middle
        else:
            high = middle
    return low


@jit(wraparound=False)
def copies(words, table):
    """Copy 4 bytes a time: the columns are source, target, count and first block."""
    row = row_of_block(table, 3)
    source, target, count = table[row, 0], table[row, 1], table[row, 2]
    first = (blockIdx.x - table[row, 3]) * (THREADS * EACH) + threadIdx.x
    for k in range(EACH):
        i = first + k * THREADS
        if i < count:
            words[target + i] = words[source + i]


def address(buffer: Any) -> int:
    """Of a buffer's first byte."""
    if isinstance(buffer, np.ndarray):
        return int(buffer.__array_interface__["data"][0])
    return int(buffer.storage.address) + int(buffer.offset)


class Span(NamedTuple):
    """Where buffers lie: the table on their device, and what an array over all of them needs."""

    table: Any
    lowest: int  # the number of the buffer where it begins
    extent: int
    blocks: int


_spans: dict[Any, Span] = {}  # by the addresses: steps of training come back to the same ones


def span(device: str, places: tuple[int, ...], counts: tuple[int, ...], size: int) -> Span:
    """For rows of buffers at `places`, those of a row with as many elements of `size` bytes."""
    key = device, places, counts, size
    found = _spans.get(key)
    if found is None:
        by_row, elements = np.array(places, np.int64).reshape(len(counts), -1), np.array(counts)
        low = int(by_row.min())
        extent = int((by_row + elements[:, None] * size).max() - low) // size
        blocks = -(-elements // (THREADS * EACH))
        table = np.column_stack([(by_row - low) // size, elements, np.cumsum(blocks) - blocks])
        # Few different extents: a launch that is bound to its arrays' shapes fits others, too.
        whole = 1 << extent.bit_length()
        if len(_spans) >= KEPT:
            _spans.pop(next(iter(_spans)), None)
        _spans[key] = found = Span(
            memory.from_host(table, device), int(by_row.argmin()), whole, int(blocks.sum())
        )
    return found


def launch(
    name: str, device: str, kernel: Any, rows: Sequence[Sequence[Any]], dtype: Any, *more: Any
) -> None:
    """Run `kernel(span, table, *more)` over rows of buffers, none of them empty.

    The buffers of a row have no gaps, and as many elements of `dtype` as each other.
    """
    kind = np.dtype(dtype)
    buffers = [b for row in rows for b in row]
    counts = tuple([row[0].nbytes // kind.itemsize for row in rows])
    found = span(device, tuple([address(b) for b in buffers]), counts, kind.itemsize)
    lowest, shape, strides = buffers[found.lowest], (found.extent,), (kind.itemsize,)
    if isinstance(lowest, np.ndarray):
        whole: Any = _at(address(lowest), shape, kind, strides, buffers)
    else:
        whole = DeviceArray(lowest._backend, lowest.storage, shape, kind, strides, lowest.offset)
    run.launch(name, device, kernel, found.blocks, THREADS, whole, found.table, *more)


def copy(pairs: Sequence[tuple[Any, Any]], device: str) -> None:
    """target[...] = source for pairs of (source, target) of equal shapes and dtypes."""
    left = [(s, t) for s, t in pairs if s.nbytes]
    together = [p for p in left if all(is_plain(b) for b in p)]
    if len(together) > 1 and is_possible(device):
        launch("copy", device, copies, together, np.uint32)
        left = [p for p in left if not all(is_plain(b) for b in p)]
    for source, target in left:
        run.copy(target, source, device)


def is_plain(buffer: Any) -> bool:
    """Whether a buffer is whole words without gaps."""
    return buffer.nbytes % 4 == 0 and address(buffer) % 4 == 0 and is_whole(buffer)


def is_whole(buffer: Any) -> bool:
    """Whether a buffer's elements lie in C order, without gaps."""
    return is_in_order(buffer.shape, buffer.strides, buffer.dtype.itemsize)


@functools.lru_cache(maxsize=1024)
def is_in_order(shape: tuple[int, ...], strides: tuple[int, ...], step: int) -> bool:
    for n, stride in zip(shape[::-1], strides[::-1], strict=True):
        if n != 1 and stride != step:
            return False
        step *= n
    return True
