"""Kernels of layers, each with the gradients that are kernels too.

Where a window's elements lie in its plane is told by tables of flat indices, so that a kernel is
written once for any number of axes.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ruda.dtypes import int32
from ruda.errors import ShapeError
from ruda.jit import jit
from ruda.jit.language import grid
from ruda.tensor import Tensor, memory
from ruda.tensor.history import attach
from ruda.tensor.primitives.run import each
from ruda.tensor.tensor import from_buffer


@jit(wraparound=False)
def greatest(x, starts, steps, out, index):  # type: ignore[no-untyped-def]
    """For each plane and window the greatest element, the first of equal ones, and where it is."""
    i = grid(1)
    if i < out.size:
        plane, window = i // out.shape[1], i % out.shape[1]
        at = starts[window] + steps[0]
        best = x[plane, at]
        for k in range(1, steps.size):
            here = starts[window] + steps[k]
            value = x[plane, here]
            if value > best or value != value:
                best, at = value, here
        out[plane, window] = best
        index[plane, window] = at


@jit(wraparound=False)
def picked(x, index, out):  # type: ignore[no-untyped-def]
    """out[p, w] = x[p, index[p, w]]."""
    i = grid(1)
    if i < out.size:
        plane, window = i // out.shape[1], i % out.shape[1]
        out[plane, window] = x[plane, index[plane, window]]


@jit(wraparound=False)
def put(y, index, out):  # type: ignore[no-untyped-def]
    """out[p, index[p, w]] = y[p, w]: no two windows have an element in common."""
    i = grid(1)
    if i < y.size:
        plane, window = i // y.shape[1], i % y.shape[1]
        out[plane, index[plane, window]] = y[plane, window]


@jit(wraparound=False)
def added(y, index, out):  # type: ignore[no-untyped-def]
    """out[p, index[p, w]] += y[p, w], a plane by a thread: always in the same order."""
    plane = grid(1)
    if plane < out.shape[0]:
        for window in range(y.shape[1]):
            out[plane, index[plane, window]] += y[plane, window]


def max_windows(x: Tensor, starts: Any, steps: Any, disjoint: bool) -> Tensor:
    """The greatest element of each window of each plane.

    x              (planes, elements)
    starts, steps  int32: element k of window w is starts[w] + steps[k]
    disjoint       whether no element is in two windows
    """
    if x.shape[1] >= 1 << 31:
        raise ShapeError(f"a plane of {x.shape[1]} elements: pooling takes fewer than 2**31")
    planes, device = x.shape[0], x.device
    out = memory.allocate((planes, len(starts)), x.dtype, device)
    index = memory.allocate(out.shape, int32, device)
    tables = (memory.from_host(np.asarray(a, np.int32), device) for a in (starts, steps))
    each("max_pool", device, greatest, out.size, x.buffer(), *tables, out, index)
    return attach(
        from_buffer(out, device), "max_pool",
        lambda g, out, x: (_put(g, index, x.shape[1], disjoint),), (x,),
    )  # fmt: skip


def _put(y: Tensor, index: Any, elements: int, disjoint: bool) -> Tensor:
    """Elements of windows back to where they were picked."""
    out = memory.from_host(np.zeros((y.shape[0], elements), y.dtype.numpy), y.device)
    if disjoint:
        each("put", y.device, put, y.size, y.buffer(), index, out)
    else:
        each("put", y.device, added, y.shape[0], y.buffer(), index, out)
    return attach(
        from_buffer(out, y.device), "put", lambda g, out, y: (_pick(g, index, disjoint),), (y,)
    )


def _pick(x: Tensor, index: Any, disjoint: bool) -> Tensor:
    out = memory.allocate(index.shape, x.dtype, x.device)
    each("pick", x.device, picked, out.size, x.buffer(), index, out)
    return attach(
        from_buffer(out, x.device), "pick",
        lambda g, out, x: (_put(g, index, x.shape[1], disjoint),), (x,),
    )  # fmt: skip
