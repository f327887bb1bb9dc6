"""Attention, and the transformer's layers. Sequences are (batch, length, size) throughout.

A mask is True where a query may look; the names of parameters are PyTorch's.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from ruda import tensor as t
from ruda.errors import ShapeError
from ruda.nn import init
from ruda.nn.functional import relu, softmax
from ruda.nn.layers import Dropout, Linear
from ruda.nn.module import Module, parameter
from ruda.nn.norms import LayerNorm
from ruda.tensor import Tensor


def causal_mask(length: int, device: Any = None) -> Tensor:
    """(length, length): a position sees itself and what lies before.

    >>> causal_mask(2)
    Tensor([[ True, False],
            [ True,  True]], dtype=bool, device='cpu')
    """
    return t.asarray(np.tril(np.ones((length, length), bool)), device=device)


def padding_mask(lengths: Any, longest: int, device: Any = None) -> Tensor:
    """(batch, 1, 1, longest): the first positions of each sequence, as many as its length."""
    inside = np.arange(longest) < np.asarray(lengths)[:, None]
    return t.asarray(inside[:, None, None, :], device=device)


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None = None,
    *,
    scale: float | None = None,
    dropout: Callable[[Tensor], Tensor] | None = None,
) -> Tensor:
    """softmax(query @ key.T * scale) @ value, over the last two axes; leading axes broadcast.

    mask   True where a query may look, or numbers that are added
    scale  1 / sqrt(size) unless it is given
    A query that may look nowhere gets zeros.
    """
    scale = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    scores = (query * scale) @ key.mT
    if mask is None:
        weights = softmax(scores)
    elif mask.dtype.kind != "bool":
        weights = softmax(scores + mask)
    else:
        held = t.where(mask, scores, -math.inf)
        high = t.max(held, axis=-1, keepdims=True).detach()
        shifted = t.exp(held - t.where(t.isfinite(high), high, 0.0))
        total = t.sum(shifted, axis=-1, keepdims=True)
        weights = shifted / t.where(total == 0, 1.0, total)
    if dropout is not None:
        weights = dropout(weights)
    return weights @ value


class MultiHeadAttention(Module):
    """Attention in `heads` parts of `size`, between learnt maps.

    >>> import ruda
    >>> layer = ruda.nn.MultiHeadAttention(8, heads=2)
    >>> layer(ruda.ones((1, 3, 8))).shape
    (1, 3, 8)
    """

    def __init__(
        self,
        size: int,
        heads: int,
        dropout: float = 0.0,
        bias: bool = True,
        *,
        rng: np.random.Generator | None = None,
    ) -> None:
        if heads < 1 or size % heads:
            raise ShapeError(f"a size of {size} in {heads} heads")
        rng = np.random.default_rng() if rng is None else rng
        self.heads = heads
        self.in_proj_weight = parameter(init.xavier_uniform((3 * size, size), rng))
        self.in_proj_bias = parameter(init.constant((3 * size,), 0.0)) if bias else None
        self.out_proj = Linear(size, size, bias, rng=rng)
        self.dropout = Dropout(dropout, rng=rng)

    def split(self, x: Tensor, first: int, last: int) -> list[Tensor]:
        """The maps `first` to `last` of x, each as (batch, heads, length, size / heads)."""
        size = x.shape[-1]
        rows = slice(first * size, last * size)
        out = x @ self.in_proj_weight[rows].T
        if self.in_proj_bias is not None:
            out = out + self.in_proj_bias[rows]
        shape = (*x.shape[:2], last - first, self.heads, size // self.heads)
        parts = t.permute_dims(t.reshape(out, shape), (2, 0, 3, 1, 4))
        return [parts[k] for k in range(last - first)]

    def forward(
        self,
        query: Tensor,
        key: Tensor | None = None,
        value: Tensor | None = None,
        mask: Tensor | None = None,
        position: Callable[[Tensor], Tensor] | None = None,
    ) -> Tensor:
        """Without key and value the query attends to itself, without value to the key.

        mask      broadcasts to (batch, heads, queries, keys)
        position  is applied to queries and keys of each head: `RotaryEncoding`
        """
        size = self.in_proj_weight.shape[1]
        for x in (query, key, value):
            if x is not None and (x.ndim != 3 or x.shape[-1] != size):
                raise ShapeError(f"attention of size {size} takes (batch, length, {size}), "
                                 f"not shape {x.shape}")  # fmt: skip
        if key is None:
            q, k, v = self.split(query, 0, 3)
        elif value is None or value is key:
            (q,), (k, v) = self.split(query, 0, 1), self.split(key, 1, 3)
        else:
            (q,), (k,), (v,) = (
                self.split(query, 0, 1), self.split(key, 1, 2), self.split(value, 2, 3)
            )  # fmt: skip
        if position is not None:
            q, k = position(q), position(k)
        out = attention(q, k, v, mask, dropout=self.dropout)
        found: Tensor = self.out_proj(t.reshape(t.permute_dims(out, (0, 2, 1, 3)), query.shape))
        return found

    def extra_repr(self) -> str:
        return f"{self.in_proj_weight.shape[1]}, heads={self.heads}"


class TransformerEncoderLayer(Module):
    """Self-attention and two maps, each with what went in added, and normalised.

    before  whether to normalise before (as in GPT-2) instead of after the sum
    """

    def __init__(
        self,
        size: int,
        heads: int,
        inner: int = 2048,
        dropout: float = 0.1,
        activation: Callable[[Tensor], Tensor] = relu,
        before: bool = False,
        *,
        rng: np.random.Generator | None = None,
    ) -> None:
        rng = np.random.default_rng() if rng is None else rng
        self.self_attn = MultiHeadAttention(size, heads, dropout, rng=rng)
        self.linear1 = Linear(size, inner, rng=rng)
        self.linear2 = Linear(inner, size, rng=rng)
        self.norm1, self.norm2 = LayerNorm(size), LayerNorm(size)
        self.dropout = Dropout(dropout, rng=rng)
        self.activation, self.before = activation, before

    def maps(self, x: Tensor) -> Tensor:
        out: Tensor = self.dropout(self.linear2(self.dropout(self.activation(self.linear1(x)))))
        return out

    def forward(
        self,
        x: Tensor,
        mask: Tensor | None = None,
        position: Callable[[Tensor], Tensor] | None = None,
    ) -> Tensor:
        def attend(y: Tensor) -> Any:
            return self.dropout(self.self_attn(y, mask=mask, position=position))

        if self.before:
            x = x + attend(self.norm1(x))
            x = x + self.maps(self.norm2(x))
        else:
            x = self.norm1(x + attend(x))
            x = self.norm2(x + self.maps(x))
        return x


class TransformerDecoderLayer(Module):
    """Self-attention, attention to what an encoder gave, and two maps; else as the encoder's."""

    def __init__(
        self,
        size: int,
        heads: int,
        inner: int = 2048,
        dropout: float = 0.1,
        activation: Callable[[Tensor], Tensor] = relu,
        before: bool = False,
        *,
        rng: np.random.Generator | None = None,
    ) -> None:
        rng = np.random.default_rng() if rng is None else rng
        self.self_attn = MultiHeadAttention(size, heads, dropout, rng=rng)
        self.multihead_attn = MultiHeadAttention(size, heads, dropout, rng=rng)
        self.linear1 = Linear(size, inner, rng=rng)
        self.linear2 = Linear(inner, size, rng=rng)
        self.norm1, self.norm2, self.norm3 = LayerNorm(size), LayerNorm(size), LayerNorm(size)
        self.dropout = Dropout(dropout, rng=rng)
        self.activation, self.before = activation, before

    def forward(
        self,
        x: Tensor,
        memory: Tensor,
        mask: Tensor | None = None,
        memory_mask: Tensor | None = None,
    ) -> Tensor:
        steps: tuple[tuple[Module, Callable[[Tensor], Any]], ...] = (
            (self.norm1, lambda y: self.self_attn(y, mask=mask)),
            (self.norm2, lambda y: self.multihead_attn(y, memory, mask=memory_mask)),
            (self.norm3, lambda y: self.linear2(self.dropout(self.activation(self.linear1(y))))),
        )
        for norm, step in steps:
            if self.before:
                x = x + self.dropout(step(norm(x)))
            else:
                x = norm(x + self.dropout(step(x)))
        return x


class _Stack(Module):
    """Layers of one kind behind each other; `norm` at the end where they normalise before."""

    layer: Callable[..., Module]

    def __init__(self, layers: int, size: int, heads: int, **options: Any) -> None:
        rng = options.pop("rng", None) or np.random.default_rng()
        self.layers = [self.layer(size, heads, rng=rng, **options) for _ in range(layers)]
        self.norm = LayerNorm(size) if options.get("before") else None

    def forward(self, x: Tensor, *others: Any, **named: Any) -> Tensor:
        for layer in self.layers:
            x = layer(x, *others, **named)
        return x if self.norm is None else self.norm(x)


class TransformerEncoder(_Stack):
    """A stack of `TransformerEncoderLayer`s."""

    layer = staticmethod(TransformerEncoderLayer)


class TransformerDecoder(_Stack):
    """A stack of `TransformerDecoderLayer`s."""

    layer = staticmethod(TransformerDecoderLayer)


# ---- positions -----------------------------------------------------------------------------------


def sinusoids(length: int, size: int, base: float = 10_000.0) -> np.ndarray[Any, Any]:
    """(length, size): sines and cosines of falling frequency in turn (Vaswani et al., 2017)."""
    rate = base ** (-np.arange(0, size, 2) / size)
    angle = np.arange(length)[:, None] * rate
    out = np.empty((length, size), np.float32)
    out[:, 0::2], out[:, 1::2] = np.sin(angle), np.cos(angle[:, : size // 2])
    return out


class PositionalEncoding(Module):
    """Adds `sinusoids` to (batch, length, size)."""

    def __init__(self, size: int, longest: int = 5000) -> None:
        self.size, self.longest = size, longest
        self.known: dict[str, Tensor] = {}

    def named_tensors(self, prefix: str = "") -> Any:
        return iter(())  # the table is no state

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[-2] > self.longest or x.shape[-1] != self.size:
            raise ShapeError(f"positions up to {self.longest} of size {self.size}: {x.shape}")
        table = self.known.get(x.device)
        if table is None:
            table = t.asarray(sinusoids(self.longest, self.size), device=x.device)
            self.known[x.device] = table
        return x + t.astype(table[: x.shape[-2]], x.dtype, copy=False)


class RotaryEncoding(Module):
    """Turns pairs of elements by an angle that grows with the position (Su et al., 2021).

    The pairs are an element of the first half and its like in the second. The last two axes are
    (length, size); `start` is the position of the first.
    """

    def __init__(self, size: int, base: float = 10_000.0) -> None:
        if size % 2:
            raise ShapeError(f"rotary positions need an even size, not {size}")
        self.size, self.base = size, base

    def forward(self, x: Tensor, start: int = 0) -> Tensor:
        if x.shape[-1] != self.size:
            raise ShapeError(f"rotary positions of size {self.size} of a tensor {x.shape}")
        half = self.size // 2
        rate = self.base ** (-np.arange(half) / half)
        angle = (start + np.arange(x.shape[-2]))[:, None] * rate
        cos, sin = (t.asarray(f(angle), dtype=x.dtype, device=x.device) for f in (np.cos, np.sin))
        first, second = x[..., :half], x[..., half:]
        return t.concat([first * cos - second * sin, second * cos + first * sin], axis=-1)
