"""Adam's step in one pass over memory: made of ops, it reads and writes everything ten times."""

from __future__ import annotations

import math
from typing import Any

from ruda.jit import jit
from ruda.jit.language import grid
from ruda.tensor import Tensor, memory, reshape
from ruda.tensor.primitives.run import each
from ruda.tensor.tensor import from_buffer


@jit(wraparound=False)
def step(x, g, m, v, out, first, second, coupled, kept, eps, scale, rate):  # type: ignore[no-untyped-def]
    """The moments m and v in place, and out = x * kept - m / (sqrt(v) * scale + eps) * rate."""
    i = grid(1)
    if i < out.size:
        d = g[i] + coupled * x[i]
        a = m[i] * first + d * (1 - first)
        b = v[i] * second + d * d * (1 - second)
        m[i], v[i] = a, b
        out[i] = x[i] * kept - a / (math.sqrt(b) * scale + eps) * rate


def adam(p: Tensor, g: Tensor, m: Tensor, v: Tensor, **numbers: float) -> Tensor:
    """The new value of p; m and v, of this optimiser alone, are changed in place."""
    out = memory.allocate(p.shape, p.dtype, p.device)
    kind: Any = p.dtype.numpy.type
    flat = [reshape(x, (p.size,)).buffer() for x in (p, g, m, v)]
    order = ("first", "second", "coupled", "kept", "eps", "scale", "rate")
    values = [kind(numbers[k]) for k in order]
    each("adam", p.device, step, p.size, *flat, out.reshape(-1), *values)
    return from_buffer(out, p.device)
