"""Steps of optimisers in one pass over memory: made of ops, they read and write it ten times.

Where memory has one space of addresses, all small parameters are changed by one launch.
"""

# mypy: disable-error-code="no-untyped-def,comparison-overlap,operator,index,arg-type,call-overload"
# What kernels take has the types of the kernel language, of which mypy knows nothing.

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ruda.jit import jit
from ruda.jit.language import blockIdx, grid, threadIdx
from ruda.tensor import Tensor, memory
from ruda.tensor.primitives import many
from ruda.tensor.primitives.many import EACH, THREADS, row_of_block
from ruda.tensor.primitives.run import each
from ruda.tensor.tensor import copied, from_buffer

LARGE = 1 << 22  # elements from which a launch of its own takes as long as memory does


@jit(device=True)
def adam_step(x, g, m, v, first, second, coupled, kept, eps, scale, rate):
    """The new value and moments: x * kept - m / (sqrt(v) * scale + eps) * rate."""
    d = g + coupled * x
    a = m * first + d * (1 - first)
    b = v * second + d * d * (1 - second)
    return x * kept - a / (math.sqrt(b) * scale + eps) * rate, a, b


@jit(wraparound=False)
def adam_one(x, g, m, v, out, first, second, coupled, kept, eps, scale, rate):
    """One parameter: the moments m and v in place."""
    i = grid(1)
    if i < out.size:
        out[i], m[i], v[i] = adam_step(
            x[i], g[i], m[i], v[i], first, second, coupled, kept, eps, scale, rate
        )


@jit(wraparound=False)
def adam_many(span, table, numbers):
    """Many parameters; the columns are those of `adam_one`'s arrays."""
    row = row_of_block(table, 6)
    x, g, m, v, out = table[row, 0], table[row, 1], table[row, 2], table[row, 3], table[row, 4]
    begin = (blockIdx.x - table[row, 6]) * (THREADS * EACH) + threadIdx.x
    for k in range(EACH):
        i = begin + k * THREADS
        if i < table[row, 5]:
            span[out + i], span[m + i], span[v + i] = adam_step(
                span[x + i], span[g + i], span[m + i], span[v + i],
                numbers[row, 0], numbers[row, 1], numbers[row, 2], numbers[row, 3],
                numbers[row, 4], numbers[row, 5], numbers[row, 6],
            )  # fmt: skip


@jit(device=True)
def sgd_step(x, g, v, momentum, ahead, decay, rate):
    """The new value and momentum; `ahead` is 1 for Nesterov's form, else 0."""
    d = g + decay * x
    a = v * momentum + d
    return x - (ahead * (d + momentum * a) + (1 - ahead) * a) * rate, a


@jit(wraparound=False)
def sgd_one(x, g, v, out, momentum, ahead, decay, rate):
    """One parameter: the momentum v in place."""
    i = grid(1)
    if i < out.size:
        out[i], v[i] = sgd_step(x[i], g[i], v[i], momentum, ahead, decay, rate)


@jit(wraparound=False)
def sgd_many(span, table, numbers):
    """Many parameters; the columns are those of `sgd_one`'s arrays."""
    row = row_of_block(table, 5)
    x, g, v, out = table[row, 0], table[row, 1], table[row, 2], table[row, 3]
    begin = (blockIdx.x - table[row, 5]) * (THREADS * EACH) + threadIdx.x
    for k in range(EACH):
        i = begin + k * THREADS
        if i < table[row, 4]:
            span[out + i], span[v + i] = sgd_step(
                span[x + i], span[g + i], span[v + i],
                numbers[row, 0], numbers[row, 1], numbers[row, 2], numbers[row, 3],
            )  # fmt: skip


KERNELS = {"adam": (adam_one, adam_many), "sgd": (sgd_one, sgd_many)}


def whole(x: Tensor) -> Any:
    """The elements as memory in C order."""
    buffer = x.buffer()
    return buffer if many.is_whole(buffer) else copied(x)


def update(
    name: str,
    rows: Sequence[tuple[Sequence[Tensor], Sequence[float]]],
    together: bool | None = None,
) -> list[Tensor]:
    """The new values of parameters, each the first of a row's tensors: parameter, gradient, state.

    The state, of this optimiser alone, is changed in place. All are of one device and dtype.
    `together` says whether small ones share a launch; None: where that is worth it.
    """
    device, dtype = rows[0][0][0].device, rows[0][0][0].dtype
    one, shared = KERNELS[name]
    kind: Any = dtype.numpy.type
    out = [memory.allocate(t[0].shape, dtype, device) for t, _ in rows]
    given = [[*map(whole, t), o] for (t, _), o in zip(rows, out, strict=True)]
    if together is None:
        together = len(rows) > 1 and device.startswith("cuda")
    small = [k for k, o in enumerate(out) if together and 0 < o.size < LARGE]
    if small:
        numbers = np.array([rows[k][1] for k in small], dtype.numpy)
        table = memory.from_host(numbers, device)
        many.launch(name, device, shared, [given[k] for k in small], dtype.numpy, table)
    for k in sorted(set(range(len(rows))) - set(small)):
        arrays = [b.reshape(-1) for b in given[k]]
        each(name, device, one, out[k].size, *arrays, *map(kind, rows[k][1]))
    return [from_buffer(o, device) for o in out]
