"""Activations: functions of tensors, made of rows of the op table. Losses are in `losses`.

Where a formula overflows on the side that is not taken, its argument is held on the other side
first: a derivative of what was not taken would be 0 times infinity.
"""

from __future__ import annotations

import math

from ruda import tensor as t
from ruda.errors import ShapeError
from ruda.tensor import Tensor


def relu(x: Tensor) -> Tensor:
    """x where it is positive, else 0; NaN stays.

    >>> import ruda
    >>> ruda.nn.relu(ruda.asarray([-1.0, 2.0]))
    Tensor([0., 2.], dtype=float32, device='cpu')
    """
    return t.where(x <= 0, 0.0, x)


def leaky_relu(x: Tensor, slope: float = 0.01) -> Tensor:
    """x where it is positive, else slope * x."""
    return t.where(x > 0, x, x * slope)


def prelu(x: Tensor, slope: Tensor) -> Tensor:
    """`leaky_relu` whose slope is learnt: a number, or one for each channel (axis 1)."""
    if slope.size > 1:
        slope = t.reshape(slope, (slope.size, *(1,) * (x.ndim - 2)))
    return t.where(x > 0, x, x * slope)


def thresholded_relu(x: Tensor, alpha: float = 1.0) -> Tensor:
    """x where it is above alpha, else 0."""
    return t.where(x <= alpha, 0.0, x)


def threshold(x: Tensor, least: float, value: float) -> Tensor:
    """x where it is above `least`, else `value`."""
    return t.where(x <= least, value, x)


def relu6(x: Tensor) -> Tensor:
    """x held between 0 and 6."""
    return hardtanh(x, 0.0, 6.0)


def hardtanh(x: Tensor, low: float = -1.0, high: float = 1.0) -> Tensor:
    """x held between two numbers; flat at them and beyond."""
    return t.where(x <= low, low, t.where(x >= high, high, x))


def _negative(x: Tensor) -> Tensor:
    """x where it is not positive, else 0."""
    return t.where(x > 0, 0.0, x)


def elu(x: Tensor, alpha: float = 1.0) -> Tensor:
    """x where it is positive, else alpha * (e**x - 1)."""
    return t.where(x > 0, x, alpha * t.expm1(_negative(x)))


def celu(x: Tensor, alpha: float = 1.0) -> Tensor:
    """x where it is positive, else alpha * (e**(x / alpha) - 1): smooth at 0."""
    return t.where(x > 0, x, alpha * t.expm1(_negative(x) / alpha))


def selu(x: Tensor) -> Tensor:
    """`elu` of the alpha and scale that keep mean 0 and variance 1 (Klambauer et al., 2017)."""
    return 1.0507009873554805 * elu(x, 1.6732632423543772)


def gelu(x: Tensor, approximate: str = "none") -> Tensor:
    """x times the normal distribution's share below x; `approximate="tanh"` for GPT-2's form."""
    if approximate == "tanh":
        inner = math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)
        return x * 0.5 * (1.0 + t.tanh(inner))
    if approximate != "none":
        raise ValueError(f"approximate={approximate!r}: none or tanh")
    return x * 0.5 * (1.0 + t.erf(x * math.sqrt(0.5)))


def silu(x: Tensor) -> Tensor:
    """x * sigmoid(x)."""
    return x * t.sigmoid(x)


def mish(x: Tensor) -> Tensor:
    """x * tanh(softplus(x))."""
    return x * t.tanh(softplus(x))


def softplus(x: Tensor, beta: float = 1.0) -> Tensor:
    """log(1 + e**(beta * x)) / beta, without overflow."""
    return t.logaddexp(x, 0.0) if beta == 1 else t.logaddexp(x * beta, 0.0) / beta


def log_sigmoid(x: Tensor) -> Tensor:
    """log(sigmoid(x)), exact where that is small."""
    return -softplus(-x)


def softsign(x: Tensor) -> Tensor:
    """x / (1 + |x|)."""
    return x / (1.0 + t.abs(x))


def tanhshrink(x: Tensor) -> Tensor:
    """x - tanh(x)."""
    return x - t.tanh(x)


def hard_sigmoid(x: Tensor, alpha: float = 1 / 6, beta: float = 0.5) -> Tensor:
    """alpha * x + beta held between 0 and 1."""
    return hardtanh(x * alpha + beta, 0.0, 1.0)


def hard_swish(x: Tensor) -> Tensor:
    """x * hard_sigmoid(x)."""
    return x * hard_sigmoid(x)


def shrink(x: Tensor, width: float = 0.5, bias: float = 0.0) -> Tensor:
    """0 within `width` of 0, beyond it x moved by `bias` towards 0."""
    return t.where(x > width, x - bias, t.where(x < -width, x + bias, t.where(t.isnan(x), x, 0.0)))


def hard_shrink(x: Tensor, width: float = 0.5) -> Tensor:
    """0 within `width` of 0, beyond it x."""
    return shrink(x, width)


def soft_shrink(x: Tensor, width: float = 0.5) -> Tensor:
    """0 within `width` of 0, beyond it x moved by that towards 0."""
    return shrink(x, width, width)


def _halves(x: Tensor, axis: int) -> tuple[Tensor, Tensor]:
    n = x.shape[axis]
    if n % 2:
        raise ShapeError(f"an axis of {n} elements has no two halves: shape {x.shape}")
    before = (slice(None),) * (axis % x.ndim)
    return x[(*before, slice(0, n // 2))], x[(*before, slice(n // 2, n))]


def glu(x: Tensor, axis: int = -1) -> Tensor:
    """The first half along an axis, times the sigmoid of the second."""
    a, b = _halves(x, axis)
    return a * t.sigmoid(b)


def swiglu(x: Tensor, axis: int = -1) -> Tensor:
    """`silu` of the first half along an axis, times the second."""
    a, b = _halves(x, axis)
    return silu(a) * b


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


def softmin(x: Tensor, axis: int = -1) -> Tensor:
    """`softmax` of -x."""
    return softmax(-x, axis)


def quiet_softmax(x: Tensor, axis: int = -1) -> Tensor:
    """e**x / (1 + its sum): all may be small."""
    high = t.maximum(t.max(x, axis=axis, keepdims=True), 0.0).detach()
    shifted = t.exp(x - high)
    return shifted / (t.exp(-high) + t.sum(shifted, axis=axis, keepdims=True))
