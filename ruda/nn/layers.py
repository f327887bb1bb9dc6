"""Layers: modules with parameters, and containers of them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from ruda import tensor as t
from ruda.nn.module import Module, parameter
from ruda.tensor import Tensor


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


class LayerNorm(Module):
    """(x - mean) / sqrt(variance + eps) over the last axis, scaled and shifted."""

    def __init__(self, size: int, eps: float = 1e-5) -> None:
        self.eps = eps
        self.weight = parameter(np.ones(size, np.float32))
        self.bias = parameter(np.zeros(size, np.float32))

    def forward(self, x: Tensor) -> Tensor:
        away = x - t.mean(x, axis=-1, keepdims=True)
        scale = t.sqrt(t.mean(away * away, axis=-1, keepdims=True) + self.eps)
        return away / scale * self.weight + self.bias

    def extra_repr(self) -> str:
        return f"{self.weight.shape[0]}, eps={self.eps}"


class RMSNorm(Module):
    """x / sqrt(mean(x**2) + eps) over the last axis, scaled."""

    def __init__(self, size: int, eps: float = 1e-6) -> None:
        self.eps = eps
        self.weight = parameter(np.ones(size, np.float32))

    def forward(self, x: Tensor) -> Tensor:
        scale = t.sqrt(t.mean(x * x, axis=-1, keepdims=True) + self.eps)
        return x / scale * self.weight

    def extra_repr(self) -> str:
        return f"{self.weight.shape[0]}, eps={self.eps}"


class Dropout(Module):
    """In training, zeros for a share `p` of the elements, the others scaled up."""

    def __init__(self, p: float = 0.5, *, rng: np.random.Generator | None = None) -> None:
        if not 0 <= p < 1:
            raise ValueError(f"a share to drop is at least 0 and below 1, not {p}")
        self.p = p
        self.rng = np.random.default_rng() if rng is None else rng

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.p == 0:
            return x
        kept = t.asarray(self.rng.random(x.shape) >= self.p, device=x.device)
        return t.where(kept, x / (1 - self.p), 0.0)

    def extra_repr(self) -> str:
        return f"p={self.p}"


class Sequential(Module):
    """Layers and functions, one after the other."""

    def __init__(self, *layers: Callable[[Any], Any]) -> None:
        self.layers = list(layers)

    def forward(self, x: Any) -> Any:
        for layer in self.layers:
            x = layer(x)
        return x


def flatten(x: Tensor) -> Tensor:
    """All axes but the first as one."""
    return t.reshape(x, (x.shape[0], math.prod(x.shape[1:])))
