"""Large matrix products on the threads of the pool, a tile by each call of NumPy's BLAS.

A BLAS has threads of its own, which wait for each other and for work by spinning. Between kernels
that run on the pool's the two take the cores from each other: a product waits until the pool's
worker sleeps, and where other processes work too it waits for the scheduler, a hundred times as
long as it computes. Here the BLAS computes on the calling thread alone, and the pool divides the
work; its chunks go to whoever is free.

`product(x, y, out)` does that for float32 and float64 where there is a BLAS that can be told how
many threads to use, and says whether it has.
"""

from __future__ import annotations

import ctypes
import functools
import os
import string
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ruda.backends import cpu_pool

WORTH = 1 << 19  # multiplications from which a product is divided
PART = 1 << 21  # that a tile should have
EDGE = 16  # rows and columns of tiles are multiples of it: of what BLAS computes at a time
HEADER = 16  # words of the block before the addresses

Array = np.ndarray[Any, Any]


class Library(NamedTuple):
    """NumPy's BLAS: addresses by the bytes of a number, and the count of its threads."""

    gemm: dict[int, int]
    get_threads: Any
    set_threads: Any
    tiles: int  # address of the body in `cpu_blas.ll`
    bits: int  # of its integers


@functools.cache
def library() -> Library | None:
    """The BLAS that NumPy computes with, if it is an OpenBLAS of its own or the system's."""
    if not cpu_pool.POSIX:
        return None
    try:
        # Symbols are also looked for in the libraries that this one needs.
        found = ctypes.PyDLL(sys.modules["numpy._core._multiarray_umath"].__file__)
    except (KeyError, OSError):
        return None
    for before, after in (("scipy_", "64_"), ("", "64_"), ("scipy_", ""), ("", "")):
        names = [f"{before}{name}{after}" for name in ("cblas_sgemm", "cblas_dgemm")]
        threads = [f"{before}openblas_{way}_num_threads{after}" for way in ("get", "set")]
        if all(hasattr(found, name) for name in (*names, *threads)):
            single, double = (
                ctypes.cast(found[name], ctypes.c_void_p).value or 0 for name in names
            )
            bits = 64 if after else 32
            text = Path(__file__).with_suffix(".ll").read_text(encoding="utf-8")
            types = {"INT": f"i{bits}", "CUT": "trunc" if bits == 32 else "bitcast"}
            addresses = cpu_pool.load_forever(string.Template(text).substitute(types))
            get, set_ = (found[name] for name in threads)
            return Library({4: single, 8: double}, get, set_, addresses["tiles"], bits)
    return None


# ---- how many threads the BLAS uses --------------------------------------------------------------

_lock = threading.Lock()
_users: list[int] = []  # what to set when the last one leaves, a time for each that is inside


@contextmanager
def alone(blas: Library) -> Iterator[None]:
    """Let the BLAS compute on the threads that call it. Who comes last puts back what was."""
    with _lock:
        _users.append(_users[0] if _users else blas.get_threads())
        blas.set_threads(1)
    try:
        yield
    finally:
        with _lock:
            before = _users.pop()
            if not _users and blas.get_threads() == 1:  # else somebody has set it meanwhile
                blas.set_threads(before)


def _after_fork_in_child() -> None:
    """Products that other threads were in are not finished here."""
    if _users:
        library().set_threads(_users[0])  # type: ignore[union-attr]
        _users.clear()
    _lock.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_lock.acquire,
        after_in_parent=_lock.release,
        after_in_child=_after_fork_in_child,
    )


# ---- products ------------------------------------------------------------------------------------


class Layout(NamedTuple):
    """How products of a form are divided."""

    words: Array  # the block, but for the function and where x, y and out begin
    offsets: Array  # (products, 3): of x, y and out from their first elements, in bytes
    items: int
    chunk: int


def product(x: Array, y: Array, out: Array) -> bool:
    """out[...] = x @ y for matrices whose leading axes are those of `out`; False if it is not done.

    `out` lies in C order and shares no memory with the others. One thread is left to NumPy.
    """
    if "llvmlite" not in sys.modules or x.dtype != y.dtype or x.dtype.char not in "fd":
        return False
    if out.size * x.shape[-1] < WORTH or 1 in out.shape[-2:]:
        return False
    threads = cpu_pool.thread_count()
    blas = library() if threads > 1 else None
    if blas is None or not (_users or blas.get_threads() > 1):  # the user has said so
        return False
    found = divided(out.shape, x.shape[-1], x.strides, y.strides, x.itemsize, threads, blas.bits)
    if found is None:
        return False
    words = found.words.copy()
    words[0] = blas.gemm[x.itemsize]
    words[HEADER:] += np.tile([address(a) for a in (x, y, out)], len(found.offsets))
    with alone(blas):
        cpu_pool.run(blas.tiles, address(words), found.items, found.chunk, threads)
    return True


def address(array: Array) -> int:
    return int(array.__array_interface__["data"][0])


@functools.lru_cache(maxsize=1024)
def divided(
    shape: tuple[int, ...],
    k: int,
    x: tuple[int, ...],
    y: tuple[int, ...],
    size: int,
    threads: int,
    bits: int,
) -> Layout | None:
    """How products into `shape` are divided, x and y having these strides; None: BLAS cannot read
    the operands as they lie, or its integers are too short."""
    *lead, m, n = shape
    left, right = line(x[-2:], (m, k), size), line(y[-2:], (k, n), size)
    if left is None or right is None or max(m, n, k, *left, *right) >> (bits - 1):
        return None
    count = int(np.prod(lead, dtype=np.int64))
    tall, wide = tile(m, n, k, max(1, min(m * n * k // PART, 2 * threads // count)))
    across, down = -(-n // wide), -(-m // tall)
    offsets = np.zeros((count, 3), np.int64)
    out = [size * m * n * int(np.prod(lead[a + 1 :], dtype=np.int64)) for a in range(len(lead))]
    for a, numbers in enumerate(np.indices(lead).reshape(len(lead), count)):
        for column, strides in enumerate((x, y, out)):
            offsets[:, column] += numbers * strides[a]
    words = [
        0, m, n, k, tall, wide, across, across * down, left[1], right[1], left[0], right[0], n,
        x[-2], y[-1], size,
    ]  # fmt: skip
    items = count * across * down
    block = np.array([*words, *offsets.ravel()], np.int64)
    return Layout(block, offsets, items, max(1, items // (4 * threads)))


def line(strides: tuple[int, ...], shape: tuple[int, int], size: int) -> tuple[int, int] | None:
    """The elements from line to line of a matrix, and 1 if its lines are columns; None if its
    elements do not lie in lines without gaps."""
    for turned, (rows, columns), (far, near) in (
        (0, shape, strides), (1, shape[::-1], strides[::-1]),
    ):  # fmt: skip
        if rows == 1:
            far = columns * size  # nobody goes there
        if (near == size or columns == 1) and far % size == 0 and far >= columns * size:
            return far // size, turned
    return None


def tile(m: int, n: int, k: int, parts: int) -> tuple[int, int]:
    """Rows and columns of tiles, about `parts` of them: those for which BLAS copies least."""

    def sides(down: int) -> tuple[int, int]:
        return edge(m, down), edge(n, -(-parts // down))

    def copied(down: int) -> int:
        tall, wide = sides(down)
        return -(-n // wide) * m * k + -(-m // tall) * k * n

    return sides(min((d for d in range(1, parts + 1) if parts % d == 0), key=copied))


def edge(length: int, parts: int) -> int:
    """The length of parts that are multiples of EDGE, the last one perhaps not."""
    return min(length, -(-length // (parts * EDGE)) * EDGE)
