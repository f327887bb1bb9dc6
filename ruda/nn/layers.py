"""Layers: modules with parameters, and containers of them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from ruda import tensor as t
from ruda.errors import DTypeError, ShapeError
from ruda.nn.functional import prelu, silu
from ruda.nn.module import Module, parameter
from ruda.tensor import Tensor, graph, memory
from ruda.tensor.history import attach
from ruda.tensor.tensor import from_buffer


class Linear(Module):
    """x @ weight.T + bias; weight (outputs, inputs), uniform within 1 / sqrt(inputs)."""

    def __init__(
        self,
        inputs: int,
        outputs: int,
        bias: bool = True,
        *,
        rng: np.random.Generator | None = None,
    ) -> None:
        rng = np.random.default_rng() if rng is None else rng
        bound = 1 / math.sqrt(inputs) if inputs else 0.0
        self.weight = parameter(rng.uniform(-bound, bound, (outputs, inputs)).astype(np.float32))
        self.bias = (
            parameter(rng.uniform(-bound, bound, outputs).astype(np.float32)) if bias else None
        )

    def forward(self, x: Tensor) -> Tensor:
        out = x @ self.weight.T
        return out if self.bias is None else out + self.bias

    def extra_repr(self) -> str:
        outputs, inputs = self.weight.shape
        return f"{inputs}, {outputs}, bias={self.bias is not None}"


class Embedding(Module):
    """A row of a table for each integer; those of `padding` are zeros, and stay so.

    >>> import ruda
    >>> ruda.nn.Embedding(10, 4)(ruda.asarray([[1, 2, 3]])).shape
    (1, 3, 4)
    """

    def __init__(
        self,
        count: int,
        size: int,
        padding: int | None = None,
        *,
        rng: np.random.Generator | None = None,
    ) -> None:
        rng = np.random.default_rng() if rng is None else rng
        table = rng.standard_normal((count, size)).astype(np.float32)
        if padding is not None:
            table[padding] = 0
        self.weight, self.padding = parameter(table), padding

    def forward(self, x: Tensor) -> Tensor:
        out = embedding(x, self.weight)
        if self.padding is None:
            return out
        return t.where(t.expand_dims(x == self.padding, -1), 0.0, out)

    def extra_repr(self) -> str:
        count, size = self.weight.shape
        return f"{count}, {size}"


def embedding(x: Tensor, table: Tensor) -> Tensor:
    """table[x]: shape x.shape + (size,). An index that is no row is an error on the host."""
    if not x.dtype.is_integer:
        raise DTypeError(f"an embedding is of integers, not {x.dtype}")
    rows = table.shape[0]
    if memory.on_host(x.device):
        look_at_rows(x, rows)
        with t.no_grad():
            out = table.detach()[x]
        return attach(out, "embedding", lambda g, out, w: (_rows(g, x, w.shape),), (table,))
    return table[x]


@graph.step
def look_at_rows(x: Tensor, rows: int) -> None:
    values = x.buffer()
    wrong = values[(values < 0) | (values >= rows)]
    if wrong.size:
        raise IndexError(f"index {int(wrong.flat[0])} into an embedding of {rows} rows")


@graph.step
def _rows(g: Tensor, x: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Zeros, with g's rows added where they were taken from: equal ones in order, then once."""
    at = x.buffer().ravel()
    order = np.argsort(at, kind="stable")
    out = np.zeros(shape, g.dtype.numpy)
    if at.size:
        found, first = np.unique(at[order], return_index=True)
        rows = g.buffer().reshape(at.size, shape[1])[order]
        out[found] = np.add.reduceat(rows, first, axis=0)
    return attach(from_buffer(out, g.device), "rows", lambda h, out, g: (embedding(x, h),), (g,))


class PReLU(Module):
    """`prelu` with a slope that is learnt: one, or one for each of `channels`."""

    def __init__(self, channels: int = 1, slope: float = 0.25) -> None:
        self.weight = parameter(np.full(channels, slope, np.float32))

    def forward(self, x: Tensor) -> Tensor:
        return prelu(x, self.weight)


class SwiGLU(Module):
    """silu(x @ gate.T) * (x @ up.T)."""

    def __init__(
        self,
        inputs: int,
        outputs: int,
        bias: bool = False,
        *,
        rng: np.random.Generator | None = None,
    ) -> None:
        rng = np.random.default_rng() if rng is None else rng
        self.gate = Linear(inputs, outputs, bias, rng=rng)
        self.up = Linear(inputs, outputs, bias, rng=rng)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = silu(self.gate(x)) * self.up(x)
        return out


class GaussianNoise(Module):
    """In training, adds normal noise."""

    def __init__(self, std: float, *, rng: np.random.Generator | None = None) -> None:
        self.std = std
        self.rng = np.random.default_rng() if rng is None else rng

    def reseed(self, rng: np.random.Generator) -> None:
        self.rng = rng

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.std == 0:
            return x
        out: Tensor = x + noise(self, x.shape, x.dtype, x.device)
        return out


@graph.step  # which a compiled function repeats
def noise(layer: GaussianNoise, shape: Any, dtype: Any, device: str) -> Tensor:
    return t.asarray(layer.rng.standard_normal(shape) * layer.std, dtype=dtype, device=device)


class Dropout(Module):
    """In training, zeros for a share `p` of the elements, the others scaled up."""

    def __init__(self, p: float = 0.5, *, rng: np.random.Generator | None = None) -> None:
        if not 0 <= p < 1:
            raise ValueError(f"a share to drop is at least 0 and below 1, not {p}")
        self.p = p
        self.rng = np.random.default_rng() if rng is None else rng

    def reseed(self, rng: np.random.Generator) -> None:
        self.rng = rng

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.p == 0:
            return x
        return t.where(kept(self, x.shape, x.device), x / (1 - self.p), 0.0)

    def extra_repr(self) -> str:
        return f"p={self.p}"


@graph.step  # which a compiled function repeats
def kept(layer: Dropout, shape: Any, device: str) -> Tensor:
    return t.asarray(layer.rng.random(shape, np.float32) >= layer.p, device=device)


class Sequential(Module):
    """Layers and functions, one after the other."""

    def __init__(self, *layers: Callable[[Any], Any]) -> None:
        self.layers = list(layers)

    def forward(self, x: Any) -> Any:
        for layer in self.layers:
            x = layer(x)
        return x


def pixel_shuffle(x: Tensor, factor: int) -> Tensor:
    """(batch, channels * factor**2, h, w) as (batch, channels, h * factor, w * factor)."""
    n, c, h, w = x.shape
    if c % factor**2:
        raise ShapeError(f"{c} channels in squares of {factor} x {factor}")
    parts = t.reshape(x, (n, c // factor**2, factor, factor, h, w))
    order = t.permute_dims(parts, (0, 1, 4, 2, 5, 3))
    return t.reshape(order, (n, c // factor**2, h * factor, w * factor))


def pixel_unshuffle(x: Tensor, factor: int) -> Tensor:
    """What undoes `pixel_shuffle`."""
    n, c, h, w = x.shape
    if h % factor or w % factor:
        raise ShapeError(f"{h} x {w} pixels in squares of {factor} x {factor}")
    parts = t.reshape(x, (n, c, h // factor, factor, w // factor, factor))
    order = t.permute_dims(parts, (0, 1, 3, 5, 2, 4))
    return t.reshape(order, (n, c * factor**2, h // factor, w // factor))


def interpolate(
    x: Tensor, sizes: Any, mode: str = "nearest", align_corners: bool = False
) -> Tensor:
    """(batch, channels, axes...) with axes of other lengths: a matrix product for each axis.

    mode  "nearest"; "linear" (in each axis: bilinear of two, trilinear of three); "cubic"
    """
    given = tuple(sizes) if isinstance(sizes, tuple | list) else (sizes,) * (x.ndim - 2)
    if len(given) != x.ndim - 2:
        raise ShapeError(f"{len(given)} sizes for a tensor of shape {x.shape}")
    for axis, m in enumerate(given, 2):
        matrix = _resampling(x.shape[axis], m, mode, align_corners)
        weight = t.asarray(matrix, dtype=x.dtype, device=x.device)
        x = t.moveaxis(t.moveaxis(x, axis, -1) @ weight, -1, axis)
    return x


def _resampling(n: int, m: int, mode: str, align_corners: bool) -> np.ndarray[Any, Any]:
    """(n, m): how much each element counts in each new one."""
    out = np.zeros((n, m))
    k = np.arange(m)
    if mode == "nearest":
        np.add.at(out, (np.minimum(k * n // m, n - 1), k), 1.0)
        return out
    aligned = k * ((n - 1) / (m - 1) if m > 1 else 0.0)
    place = aligned if align_corners else (k + 0.5) * (n / m) - 0.5
    if mode == "linear":
        place = np.maximum(place, 0.0)
        low = np.floor(place).astype(int)
        share = place - low
        taps = [(low, 1 - share), (low + 1, share)]
    elif mode == "cubic":
        low = np.floor(place).astype(int)
        away = place - low
        taps = [(low + d, _cubic(np.abs(away - d))) for d in (-1, 0, 1, 2)]
    else:
        raise ValueError(f"mode={mode!r}: nearest, linear or cubic")
    for at, weight in taps:
        np.add.at(out, (np.clip(at, 0, n - 1), k), weight)
    return out


def _cubic(x: Any, a: float = -0.75) -> Any:
    """Keys' kernel, 1981, with PyTorch's a."""
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = ((x - 5) * x + 8) * x * a - 4 * a
    return np.where(x <= 1, near, np.where(x < 2, far, 0.0))


def flatten(x: Tensor) -> Tensor:
    """All axes but the first as one."""
    return t.reshape(x, (x.shape[0], math.prod(x.shape[1:])))
