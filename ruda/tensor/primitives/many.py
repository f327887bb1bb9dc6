"""One launch over many buffers, which lie anywhere in a device's memory.

A kernel takes one array that spans them all, and a table: where in it each buffer begins, how many
elements there are, and which block is the first of them. That needs memory with one space of
addresses, which GPUs of CUDA and the host have.
"""

# mypy: disable-error-code="no-untyped-def,comparison-overlap,operator,index,arg-type,call-overload"
# What kernels take has the types of the kernel language, of which mypy knows nothing.

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ruda.backends.base import DeviceArray, _at
from ruda.jit import jit
from ruda.jit.language import blockIdx, threadIdx
from ruda.tensor import memory
from ruda.tensor.primitives import run

THREADS, EACH = 256, 4  # of a block, and elements of a thread
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


def spanned(
    rows: Sequence[Sequence[Any]], dtype: np.dtype[Any]
) -> tuple[Any, np.ndarray[Any, Any], int]:
    """An array over all buffers, the table of where they are in it, and the number of blocks.

    The buffers of a row have no gaps, and as many elements of `dtype` as each other.
    """
    size = dtype.itemsize
    places = np.array([[address(b) for b in row] for row in rows], np.int64)
    low = places.min()
    lowest = next(b for row in rows for b in row if address(b) == low)
    counts = np.array([row[0].nbytes // size for row in rows], np.int64)
    extent = int((places + counts[:, None] * size).max() - low) // size
    blocks = -(-counts // (THREADS * EACH))
    firsts = np.cumsum(blocks) - blocks
    table = np.column_stack([(places - low) // size, counts, firsts])
    if isinstance(lowest, np.ndarray):
        whole: Any = _at(int(low), (extent,), dtype, (size,), [b for r in rows for b in r])
    else:
        whole = DeviceArray(
            lowest._backend, lowest.storage, (extent,), dtype, (size,), lowest.offset
        )
    return whole, table, int(blocks.sum())


def launch(
    name: str, device: str, kernel: Any, rows: Sequence[Sequence[Any]], dtype: Any, *more: Any
) -> None:
    """Run `kernel(span, table, *more)` over rows of buffers, none of them empty."""
    whole, table, blocks = spanned(rows, np.dtype(dtype))
    given = memory.from_host(table, device)
    run.launch(name, device, kernel, blocks, THREADS, whole, given, *more)


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
    step = buffer.dtype.itemsize
    for n, stride in zip(buffer.shape[::-1], buffer.strides[::-1], strict=True):
        if n != 1 and stride != step:
            return False
        step *= n
    return True
