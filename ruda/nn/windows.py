"""Windows of a tensor, and their sum back: what convolutions and pooling are made of.

`windows` is a view: an element stands in every window that covers it. `fold` is its transpose, and
each is the other's gradient, so that convolutions have derivatives of any order. Both work on the
last axes, of which there may be any number.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from ruda import tensor as t
from ruda.errors import ShapeError
from ruda.tensor import Tensor, memory
from ruda.tensor.history import attach
from ruda.tensor.memory import View

Lengths = tuple[int, ...]


def lengths(value: Any, ndim: int, name: str, least: int = 1) -> Lengths:
    """A number for all axes, or one for each.

    >>> lengths(3, 2, "kernel"), lengths((1, 2), 2, "stride")
    ((3, 3), (1, 2))
    """
    found = tuple(value) if isinstance(value, tuple | list) else (value,) * ndim
    if len(found) != ndim or any(type(n) is not int or n < least for n in found):
        raise ShapeError(f"`{name}` is {value!r}: {ndim} whole numbers from {least} up, or one")
    return found


def count(size: int, kernel: int, stride: int, dilation: int) -> int:
    """How many windows fit."""
    return (size - dilation * (kernel - 1) - 1) // stride + 1


def windows(x: Tensor, kernel: Lengths, stride: Lengths, dilation: Lengths) -> Tensor:
    """A view (..., *kernel, *counts): element k of window o is x[o * stride + k * dilation].

    >>> import ruda
    >>> windows(ruda.arange(5), (2,), (1,), (3,))
    Tensor([[0, 1],
            [3, 4]], dtype=int64, device='cpu')
    """
    axes = len(kernel)
    lead, sizes = x.shape[:-axes], x.shape[-axes:]
    counts = tuple(count(*four) for four in zip(sizes, kernel, stride, dilation, strict=True))
    if min(counts) < 1:
        raise ShapeError(f"a window of {kernel}, dilation {dilation}, does not fit into {sizes}")
    seen = x._seen()
    steps = seen.strides[-axes:]
    inner = tuple(s * d for s, d in zip(steps, dilation, strict=True))
    outer = tuple(s * d for s, d in zip(steps, stride, strict=True))
    view = View((*lead, *kernel, *counts), (*seen.strides[:-axes], *inner, *outer), seen.offset)
    # The view's elements overlap: a write through it would be seen several times. It stays here.
    out = x._through(view)

    def gradient(g: Tensor, out: Tensor, x: Tensor) -> tuple[Tensor]:
        return (fold(g, sizes, stride, dilation),)

    return attach(out, "windows", gradient, (x,))


def places(kernel: Lengths, counts: Lengths, stride: Lengths, dilation: Lengths) -> Any:
    """For each element of a window: (its index, the slices of the tensor that it runs over)."""
    for k in itertools.product(*map(range, kernel)):
        starts = tuple(i * d for i, d in zip(k, dilation, strict=True))
        yield (
            k,
            tuple(
                slice(a, a + (n - 1) * s + 1, s)
                for a, n, s in zip(starts, counts, stride, strict=True)
            ),
        )


def fold(y: Tensor, sizes: Lengths, stride: Lengths, dilation: Lengths) -> Tensor:
    """Windows (..., *kernel, *counts) summed where they came from: shape (..., *sizes).

    >>> import ruda
    >>> fold(ruda.ones((2, 3)), (4,), (1,), (1,))
    Tensor([1., 2., 2., 1.], dtype=float32, device='cpu')
    """
    axes = len(sizes)
    lead, kernel, counts = y.shape[: -2 * axes], y.shape[-2 * axes : -axes], y.shape[-axes:]
    out = t.zeros((*lead, *sizes), dtype=y.dtype, device=y.device)
    before = (slice(None),) * len(lead)
    if memory.on_host(y.device):
        source, target = y.buffer(), out.buffer()
        for k, where in places(kernel, counts, stride, dilation):
            target[(*before, *where)] += source[(*before, *k)]
    else:
        with t.no_grad():
            for k, where in places(kernel, counts, stride, dilation):
                total = out[(*before, *where)] + y[(*before, *k)]
                t.realize(total)  # before the write, so that nothing waits for the old values
                out[(*before, *where)] = total

    def gradient(g: Tensor, out: Tensor, y: Tensor) -> tuple[Tensor]:
        return (windows(g, kernel, stride, dilation),)

    return attach(out, "fold", gradient, (y,))


def pad(
    x: Tensor, widths: Sequence[tuple[int, int]], value: float = 0.0, mode: str = "constant"
) -> Tensor:
    """With elements put before and after the last axes, a pair of numbers for each of these.

    mode  "constant": `value`; "edge": the last element again; "reflect": mirrored at the last
          element; "wrap": from the other end. Negative widths cut off.

    >>> import ruda
    >>> pad(ruda.asarray([1.0, 2.0, 3.0]), [(2, 1)], mode="reflect")
    Tensor([3., 2., 1., 2., 3., 2.], dtype=float32, device='cpu')
    """
    if mode not in ("constant", "edge", "reflect", "wrap"):
        raise ValueError(f"no padding mode {mode!r}: constant, edge, reflect and wrap")
    if len(widths) > x.ndim:
        raise ShapeError(f"{len(widths)} pairs of widths for a tensor of shape {x.shape}")
    lead = x.ndim - len(widths)
    cut = tuple(slice(max(0, -a), n - max(0, -b)) for (a, b), n in _pairs(widths, x, lead))
    if any(s.stop < s.start for s in cut):
        raise ShapeError(f"widths {tuple(widths)} cut more than shape {x.shape} has")
    if any(a < 0 or b < 0 for a, b in widths):
        x = x[(..., *cut)]
    widths = [(max(0, a), max(0, b)) for a, b in widths]
    if not any(a or b for a, b in widths):
        return x
    if mode != "constant":
        for axis, ((a, b), n) in enumerate(_pairs(widths, x, lead), lead):
            x = _extended(x, axis, a, b, n, mode)
        return x
    shape = tuple(a + n + b for (a, b), n in _pairs(widths, x, lead))
    inside = (..., *(slice(a, a + n) for (a, _), n in _pairs(widths, x, lead)))
    out = t.full((*x.shape[:lead], *shape), value, dtype=x.dtype, device=x.device)
    out[inside] = x.detach()

    def gradient(g: Tensor, out: Tensor, x: Tensor) -> tuple[Tensor]:
        return (g[inside],)

    return attach(out, "pad", gradient, (x,))


def _pairs(widths: Any, x: Tensor, lead: int) -> Any:
    return list(zip(widths, x.shape[lead:], strict=True))


def _extended(x: Tensor, axis: int, a: int, b: int, n: int, mode: str) -> Tensor:
    """One axis longer at both ends by its own elements: parts of it, put together."""
    before = (slice(None),) * axis

    def part(start: int, stop: int, back: bool = False) -> Tensor:
        cut = x[(*before, slice(start, stop))]
        return t.flip(cut, axis=axis) if back else cut

    most = {"edge": max(a, b) if n else 0, "reflect": n - 1, "wrap": n}[mode]
    if max(a, b) > most:
        raise ShapeError(f"`{mode}` padding of ({a}, {b}) around an axis of {n} elements")
    match mode:
        case "edge":
            parts = [part(0, 1)] * a + [x] + [part(n - 1, n)] * b
        case "reflect":
            parts = [part(1, a + 1, True), x, part(n - 1 - b, n - 1, True)]
        case _:
            parts = [part(n - a, n), x, part(0, b)]
    return t.concat(parts, axis=axis)
