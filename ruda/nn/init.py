"""Initialisers: arrays of float32 that parameters begin with, drawn by a NumPy generator.

`shape` is a weight's, (outputs, inputs, window...): "fan in" is what an output is made of.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ruda.errors import ShapeError

Array = np.ndarray[Any, Any]
Shape = tuple[int, ...]


def fans(shape: Shape) -> tuple[int, int]:
    """(fan in, fan out) of a weight.

    >>> fans((8, 3, 5, 5))
    (75, 200)
    """
    if len(shape) < 2:
        raise ShapeError(f"a weight has two axes or more, not shape {shape}")
    window = math.prod(shape[2:])
    return shape[1] * window, shape[0] * window


def gain(activation: str = "linear", slope: float = 0.01) -> float:
    """By how much to widen weights so that variances last through an activation.

    >>> round(gain("relu") ** 2, 6)
    2.0
    """
    match activation:
        case "linear" | "sigmoid" | "conv":
            return 1.0
        case "tanh":
            return 5 / 3
        case "relu":
            return math.sqrt(2)
        case "leaky_relu":
            return math.sqrt(2 / (1 + slope * slope))
        case "selu":
            return 0.75
    raise ValueError(f"no gain of {activation!r}")


def constant(shape: Shape, value: float) -> Array:
    """The same number everywhere."""
    return np.full(shape, value, np.float32)


def uniform(shape: Shape, rng: np.random.Generator, low: float = 0.0, high: float = 1.0) -> Array:
    """Equally likely between two numbers."""
    return rng.uniform(low, high, shape).astype(np.float32)


def normal(shape: Shape, rng: np.random.Generator, mean: float = 0.0, std: float = 1.0) -> Array:
    """Normal."""
    return (mean + std * rng.standard_normal(shape)).astype(np.float32)


def truncated_normal(
    shape: Shape, rng: np.random.Generator, mean: float = 0.0, std: float = 1.0, width: float = 2.0
) -> Array:
    """Normal, and drawn again where it is further than `width` deviations from the mean."""
    out = rng.standard_normal(shape)
    while (far := np.abs(out) > width).any():
        out[far] = rng.standard_normal(int(far.sum()))
    return (mean + std * out).astype(np.float32)


def xavier_uniform(shape: Shape, rng: np.random.Generator, scale: float = 1.0) -> Array:
    """Glorot and Bengio, 2010: variance 2 / (fan in + fan out)."""
    bound = scale * math.sqrt(6 / sum(fans(shape)))
    return uniform(shape, rng, -bound, bound)


def xavier_normal(shape: Shape, rng: np.random.Generator, scale: float = 1.0) -> Array:
    """Glorot and Bengio, 2010: variance 2 / (fan in + fan out)."""
    return normal(shape, rng, 0.0, scale * math.sqrt(2 / sum(fans(shape))))


def kaiming_uniform(
    shape: Shape, rng: np.random.Generator, activation: str = "relu", fan_out: bool = False
) -> Array:
    """He et al., 2015: variance gain**2 / fan in (or out)."""
    bound = gain(activation) * math.sqrt(3 / fans(shape)[fan_out])
    return uniform(shape, rng, -bound, bound)


def kaiming_normal(
    shape: Shape, rng: np.random.Generator, activation: str = "relu", fan_out: bool = False
) -> Array:
    """He et al., 2015: variance gain**2 / fan in (or out)."""
    return normal(shape, rng, 0.0, gain(activation) / math.sqrt(fans(shape)[fan_out]))


def orthogonal(shape: Shape, rng: np.random.Generator, scale: float = 1.0) -> Array:
    """Rows (or columns, if there are fewer) at right angles and of length `scale`."""
    if len(shape) < 2:
        raise ShapeError(f"a weight has two axes or more, not shape {shape}")
    rows, columns = shape[0], math.prod(shape[1:])
    q, r = np.linalg.qr(rng.standard_normal((max(rows, columns), min(rows, columns))))
    q = q * np.sign(np.diag(r))  # so that all directions are equally likely
    return (scale * (q if rows >= columns else q.T)).reshape(shape).astype(np.float32)


def identity(shape: Shape) -> Array:
    """Ones on the diagonal of a matrix."""
    return np.eye(*shape, dtype=np.float32)
