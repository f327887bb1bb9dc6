"""Normalisation: elements minus their mean, divided by their deviation, over some of the axes."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ruda import tensor as t
from ruda.errors import ShapeError
from ruda.nn.convolution import over_channels
from ruda.nn.module import Module, parameter
from ruda.tensor import Tensor


def normalized(x: Tensor, axes: tuple[int, ...], eps: float) -> Tensor:
    """(x - mean) / sqrt(variance + eps) over axes."""
    away = x - t.mean(x, axis=axes, keepdims=True)
    return away / t.sqrt(t.mean(away * away, axis=axes, keepdims=True) + eps)


class Norm(Module):
    """The base: a weight and a bias for each channel, axis 1."""

    weight: Tensor | None
    bias: Tensor | None

    def __init__(self, channels: int, eps: float, affine: bool) -> None:
        self.channels, self.eps = channels, eps
        self.weight = parameter(np.ones(channels, np.float32)) if affine else None
        self.bias = parameter(np.zeros(channels, np.float32)) if affine else None

    def scaled(self, x: Tensor) -> Tensor:
        if self.weight is None or self.bias is None:
            return x
        axes = x.ndim - 2
        return x * over_channels(self.weight, axes) + over_channels(self.bias, axes)

    def check(self, x: Tensor) -> None:
        if x.ndim < 2 or x.shape[1] != self.channels:
            raise ShapeError(
                f"{type(self).__name__} takes (batch, {self.channels}, ...), not shape {x.shape}"
            )

    def extra_repr(self) -> str:
        return f"{self.channels}, eps={self.eps}"


class BatchNorm(Norm):
    """Over the batch and all axes behind the channels (axis 1), of which there may be any number.

    In training by the batch's own mean and variance, which move `running_mean` and `running_var`
    by a share `momentum`; in use by those.
    """

    def __init__(
        self, channels: int, eps: float = 1e-5, momentum: float = 0.1, affine: bool = True
    ) -> None:
        super().__init__(channels, eps, affine)
        self.momentum = momentum
        self.running_mean = t.asarray(np.zeros(channels, np.float32))
        self.running_var = t.asarray(np.ones(channels, np.float32))

    def forward(self, x: Tensor) -> Tensor:
        self.check(x)
        axes = x.ndim - 2
        if not self.training:
            scale = over_channels(t.sqrt(self.running_var + self.eps), axes)
            return self.scaled((x - over_channels(self.running_mean, axes)) / scale)
        over = (0, *range(2, x.ndim))
        n = math.prod(x.shape[a] for a in over)
        if n < 2:
            raise ShapeError(f"BatchNorm in training needs two values a channel: shape {x.shape}")
        mean = t.mean(x, axis=over, keepdims=True)
        away = x - mean
        variance = t.mean(away * away, axis=over, keepdims=True)
        with t.no_grad():
            kept = 1 - self.momentum
            for old, new in (
                (self.running_mean, mean), (self.running_var, variance * (n / (n - 1))),
            ):  # fmt: skip
                share = t.reshape(new.detach(), (self.channels,)) * self.momentum
                old.copy_(t.astype(old * kept + share, old.dtype, copy=False))
        return self.scaled(away / t.sqrt(variance + self.eps))


class GroupNorm(Norm):
    """Over groups of channels and all axes behind, for each element of the batch."""

    def __init__(self, groups: int, channels: int, eps: float = 1e-5, affine: bool = True) -> None:
        if groups < 1 or channels % groups:
            raise ShapeError(f"{channels} channels in {groups} groups")
        super().__init__(channels, eps, affine)
        self.groups = groups

    def forward(self, x: Tensor) -> Tensor:
        self.check(x)
        parts = t.reshape(x, (x.shape[0], self.groups, -1))
        return self.scaled(t.reshape(normalized(parts, (2,), self.eps), x.shape))

    def extra_repr(self) -> str:
        return f"{self.groups}, {super().extra_repr()}"


class InstanceNorm(Norm):
    """Over all axes behind the channels, for each channel of each element of the batch."""

    def __init__(self, channels: int, eps: float = 1e-5, affine: bool = False) -> None:
        super().__init__(channels, eps, affine)

    def forward(self, x: Tensor) -> Tensor:
        self.check(x)
        return self.scaled(normalized(x, tuple(range(2, x.ndim)), self.eps))


class LayerNorm(Module):
    """(x - mean) / sqrt(variance + eps) over the last axes, scaled and shifted.

    shape  the length of the last axis, or the lengths of the last axes
    """

    weight: Tensor | None
    bias: Tensor | None

    def __init__(self, shape: Any, eps: float = 1e-5, affine: bool = True) -> None:
        self.shape = tuple(shape) if isinstance(shape, tuple | list) else (shape,)
        self.eps = eps
        self.weight = parameter(np.ones(self.shape, np.float32)) if affine else None
        self.bias = parameter(np.zeros(self.shape, np.float32)) if affine else None

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[x.ndim - len(self.shape) :] != self.shape:
            raise ShapeError(f"LayerNorm over {self.shape} of a tensor of shape {x.shape}")
        found = normalized(x, tuple(range(x.ndim - len(self.shape), x.ndim)), self.eps)
        if self.weight is None or self.bias is None:
            return found
        return found * self.weight + self.bias

    def extra_repr(self) -> str:
        shown = self.shape[0] if len(self.shape) == 1 else self.shape
        return f"{shown}, eps={self.eps}"


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


class LocalResponseNorm(Module):
    """x / (k + alpha * mean of squares over `size` neighbouring channels) ** beta."""

    def __init__(self, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0) -> None:
        self.size, self.alpha, self.beta, self.k = size, alpha, beta, k

    def forward(self, x: Tensor) -> Tensor:
        from ruda.nn.windows import pad, windows

        channels = t.moveaxis(x * x, 1, -1)
        around = pad(channels, [(self.size // 2, (self.size - 1) // 2)])
        near = t.mean(windows(around, (self.size,), (1,), (1,)), axis=-2)
        return x / (t.moveaxis(near, -1, 1) * self.alpha + self.k) ** self.beta
