"""Activations and losses: functions of tensors, made of rows of the op table."""

from __future__ import annotations

import math
from typing import Any

from ruda import tensor as t
from ruda.errors import DTypeError, ShapeError
from ruda.tensor import Tensor


def relu(x: Tensor) -> Tensor:
    """x where it is positive, else 0.

    >>> import ruda
    >>> ruda.nn.relu(ruda.asarray([-1.0, 2.0]))
    Tensor([0., 2.], dtype=float32, device='cpu')
    """
    return t.where(x > 0, x, 0.0)


def leaky_relu(x: Tensor, slope: float = 0.01) -> Tensor:
    """x where it is positive, else slope * x."""
    return t.where(x > 0, x, x * slope)


def gelu(x: Tensor) -> Tensor:
    """x times the normal distribution's share below x."""
    return x * 0.5 * (1.0 + t.erf(x * math.sqrt(0.5)))


def silu(x: Tensor) -> Tensor:
    """x * sigmoid(x)."""
    return x * t.sigmoid(x)


def softplus(x: Tensor) -> Tensor:
    """log(1 + e**x), without overflow."""
    return t.logaddexp(x, 0.0)


def logsumexp(x: Tensor, axis: int = -1, keepdims: bool = False) -> Tensor:
    """log(sum(e**x)) along an axis, without overflow."""
    high = t.max(x, axis=axis, keepdims=True).detach()
    high = t.where(t.isfinite(high), high, 0.0)
    total = t.log(t.sum(t.exp(x - high), axis=axis, keepdims=True)) + high
    return total if keepdims else t.squeeze(total, axis)


def log_softmax(x: Tensor, axis: int = -1) -> Tensor:
    """The logarithm of `softmax`, exact where that is small."""
    return x - logsumexp(x, axis, keepdims=True)


def softmax(x: Tensor, axis: int = -1) -> Tensor:
    """e**x divided by its sum along an axis.

    >>> import ruda
    >>> ruda.nn.softmax(ruda.asarray([0.0, 0.0]))
    Tensor([0.5, 0.5], dtype=float32, device='cpu')
    """
    shifted = t.exp(x - t.max(x, axis=axis, keepdims=True).detach())
    return shifted / t.sum(shifted, axis=axis, keepdims=True)


def cross_entropy(
    logits: Tensor,
    labels: Tensor,
    *,
    weight: Any = None,
    label_smoothing: float = 0.0,
    ignore_index: int | None = None,
) -> Tensor:
    """The mean of -log softmax(logits)[label].

    logits        (..., classes), floats
    labels        (...), integers in 0..classes-1
    weight        (classes,): how much a class counts; the mean is weighted
    ignore_index  a label that counts nothing

    >>> import ruda
    >>> logits = ruda.asarray([[2.0, 0.0], [0.0, 0.0]])
    >>> ruda.nn.cross_entropy(logits, ruda.asarray([0, 1]))
    Tensor(0.4100376..., dtype=float32, device='cpu')
    """
    if not labels.dtype.is_integer:
        raise DTypeError(f"labels are integers, not {labels.dtype}")
    if logits.shape[:-1] != labels.shape:
        raise ShapeError(f"logits of shape {logits.shape} and labels of {labels.shape}")
    classes = logits.shape[-1]
    numbers = t.arange(classes, dtype=labels.dtype, device=labels.device)
    chosen = t.equal(t.expand_dims(labels, -1), numbers)
    share = t.astype(chosen, logits.dtype)
    target = share * (1.0 - label_smoothing) + label_smoothing / classes
    each = -log_softmax(logits) * target
    if weight is not None:
        each, share = each * weight, share * weight
    loss, count = t.sum(each, axis=-1), t.sum(share, axis=-1)
    if ignore_index is not None:
        kept = labels != ignore_index
        loss, count = t.where(kept, loss, 0.0), t.where(kept, count, 0.0)
    return t.sum(loss) / t.sum(count)


def mse_loss(x: Tensor, y: Tensor) -> Tensor:
    """The mean of (x - y)**2."""
    return t.mean(t.square(x - y))


def l1_loss(x: Tensor, y: Tensor) -> Tensor:
    """The mean of |x - y|."""
    return t.mean(t.abs(x - y))


def huber_loss(x: Tensor, y: Tensor, delta: float = 1.0) -> Tensor:
    """The mean of (x - y)**2 / 2 near 0, and of a line beyond delta."""
    away = t.abs(x - y)
    return t.mean(t.where(away <= delta, away * away * 0.5, delta * (away - 0.5 * delta)))


def binary_cross_entropy(logits: Tensor, y: Tensor) -> Tensor:
    """The mean of -log of the probability of y (0 to 1), from logits, without overflow."""
    return t.mean(softplus(logits) - logits * y)
