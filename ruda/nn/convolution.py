"""Convolutions and pooling, over any number of axes.

The elements under each window become a column (`windows`), and the weights one matrix: a
convolution is a matrix product, and its gradients are others. Tensors are (batch, channels,
axes...), as PyTorch's.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from ruda import tensor as t
from ruda.dnn.pooling import max_windows
from ruda.errors import ShapeError
from ruda.nn.module import Module, parameter
from ruda.nn.windows import Lengths, count, fold, lengths, pad, windows
from ruda.tensor import Tensor

# ---- functions -----------------------------------------------------------------------------------


def conv(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
    padding_mode: str = "constant",
) -> Tensor:
    """The cross-correlation of tensors with windows.

    x                 (batch, channels, axes...)
    weight            (outputs, channels / groups, window...)
    stride, dilation  a number, or one for each axis
    padding           the same, or "same" (stride 1: the axes keep their lengths), or "valid"
    groups            channels and outputs in parts that do not see each other
    padding_mode      as of `ruda.nn.pad`

    >>> import ruda
    >>> x = ruda.reshape(ruda.asarray([1.0, 2.0, 4.0, 8.0]), (1, 1, 4))
    >>> ruda.nn.conv(x, ruda.asarray([[[1.0, -1.0]]]))
    Tensor([[[-1., -2., -4.]]], dtype=float32, device='cpu')
    """
    axes = weight.ndim - 2
    check_channels("conv", x, weight, groups, weight.shape[1] * groups, weight.shape[0])
    kernel = weight.shape[2:]
    stride, dilation = lengths(stride, axes, "stride"), lengths(dilation, axes, "dilation")
    x = pad(x, paddings(padding, kernel, stride, dilation), mode=padding_mode)
    seen = windows(x, kernel, stride, dilation)
    n, outputs, counts = x.shape[0], weight.shape[0], seen.shape[-axes:]
    inner = weight.shape[1] * math.prod(kernel)
    # One long product: the batch lies behind the windows, not before them.
    columns = t.reshape(batch_behind(seen, axes + 1), (groups, inner, n * math.prod(counts)))
    rows = t.reshape(weight, (groups, outputs // groups, inner))
    out = t.reshape(rows @ columns, (outputs, n * math.prod(counts)))
    if bias is not None:
        out = out + t.expand_dims(bias, 1)
    return t.moveaxis(t.reshape(out, (outputs, n, *counts)), 1, 0)


def batch_behind(x: Tensor, axes: int) -> Tensor:
    """The first axis moved behind the next ones: a view."""
    return t.permute_dims(x, (*range(1, axes + 1), 0, *range(axes + 1, x.ndim)))


def conv_transpose(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Tensor:
    """The transpose of `conv`; weight (channels, outputs / groups, axes...).

    An axis of n elements gets (n - 1) * stride - 2 * padding + dilation * (kernel - 1) + 1 +
    output_padding.
    """
    axes = weight.ndim - 2
    outputs = weight.shape[1] * groups
    check_channels("conv_transpose", x, weight, groups, weight.shape[0], outputs)
    kernel, n, counts = weight.shape[2:], x.shape[0], x.shape[2:]
    stride, dilation = lengths(stride, axes, "stride"), lengths(dilation, axes, "dilation")
    around, more = (
        lengths(padding, axes, "padding", 0), lengths(output_padding, axes, "output_padding", 0)
    )  # fmt: skip
    if any(m >= max(s, d) for m, s, d in zip(more, stride, dilation, strict=True)):
        raise ShapeError(f"output_padding {more} must be below stride {stride} or {dilation}")
    sizes = tuple(
        (c - 1) * s + d * (k - 1) + 1 + m
        for c, s, d, k, m in zip(counts, stride, dilation, kernel, more, strict=True)
    )
    inner = weight.shape[1] * math.prod(kernel)
    rows = t.reshape(weight, (groups, weight.shape[0] // groups, inner)).mT
    columns = rows @ t.reshape(batch_behind(x, 1), (groups, rows.shape[-1], n * math.prod(counts)))
    seen = t.moveaxis(t.reshape(columns, (outputs, *kernel, n, *counts)), axes + 1, 0)
    out = fold(seen, sizes, stride, dilation)
    out = pad(out, [(-p, -p) for p in around])
    return out if bias is None else out + over_channels(bias, axes)


def over_channels(x: Tensor, axes: int) -> Tensor:
    """A number for each channel, in a shape that broadcasts over the axes behind."""
    return t.reshape(x, (x.shape[0], *(1,) * axes))


def check_channels(
    name: str, x: Tensor, weight: Tensor, groups: int, channels: int, outputs: int
) -> None:
    if weight.ndim < 3 or x.ndim != weight.ndim:
        raise ShapeError(
            f"`{name}` takes (batch, channels, axes...) and a weight of as many axes, not "
            f"shapes {x.shape} and {weight.shape}"
        )
    if groups < 1 or x.shape[1] != channels or channels % groups or outputs % groups:
        raise ShapeError(
            f"`{name}` of {x.shape[1]} channels with a weight of shape {weight.shape} in "
            f"{groups} groups: it takes {channels}"
        )


def paddings(padding: Any, kernel: Lengths, stride: Lengths, dilation: Lengths) -> Any:
    """(before, after) for each axis."""
    if padding == "valid":
        return [(0, 0)] * len(kernel)
    if padding == "same":
        if any(s != 1 for s in stride):
            raise ShapeError(f'padding="same" is of stride 1, not {stride}')
        totals = [d * (k - 1) for k, d in zip(kernel, dilation, strict=True)]
        return [(n // 2, n - n // 2) for n in totals]
    return [(p, p) for p in lengths(padding, len(kernel), "padding", 0)]


# ---- pooling -------------------------------------------------------------------------------------


def pooled(
    name: str, x: Tensor, kernel: Any, stride: Any, padding: Any, dilation: Any, ceil_mode: bool
) -> tuple[Lengths, Lengths, Lengths, list[tuple[int, int]]]:
    """Kernel, stride and dilation as tuples, and what to put around the axes."""
    axes = len(kernel) if isinstance(kernel, tuple | list) else x.ndim - 2
    if x.ndim != axes + 2 or axes < 1:
        raise ShapeError(f"`{name}` with kernel {kernel} takes {axes + 2} axes, not {x.shape}")
    kernel = lengths(kernel, axes, "kernel")
    stride = lengths(kernel if stride is None else stride, axes, "stride")
    dilation = lengths(dilation, axes, "dilation")
    around = []
    for n, k, s, d, p in zip(
        x.shape[2:], kernel, stride, dilation, lengths(padding, axes, "padding", 0), strict=True
    ):
        if 2 * p > d * (k - 1) + 1:
            raise ShapeError(f"`{name}`: padding {p} is more than half of a window of {k}")
        more = 0
        if ceil_mode:
            windows_ = -(-(n + 2 * p - d * (k - 1) - 1) // s) + 1
            if (windows_ - 1) * s >= n + p:  # it would begin behind the elements
                windows_ -= 1
            more = max(0, (windows_ - 1) * s + d * (k - 1) + 1 - n - 2 * p)
        around.append((p, p + more))
    return kernel, stride, dilation, around


def max_pool(
    x: Tensor,
    kernel: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
) -> Tensor:
    """The greatest element of each window; the gradient goes to the first of equal ones.

    The stride is the kernel's size unless it is given. NaN wins.
    """
    kernel, stride, dilation, around = pooled(
        "max_pool", x, kernel, stride, padding, dilation, ceil_mode
    )
    return greatest(pad(x, around, -math.inf), kernel, stride, dilation)


def greatest(x: Tensor, kernel: Lengths, stride: Lengths, dilation: Lengths) -> Tensor:
    """The greatest of each window, of what is padded already."""
    sizes = x.shape[2:]
    counts = tuple(count(*four) for four in zip(sizes, kernel, stride, dilation, strict=True))
    if min(counts) < 1:
        raise ShapeError(f"a window of {kernel}, dilation {dilation}, does not fit into {sizes}")
    flat = np.arange(math.prod(sizes)).reshape(sizes)
    starts = flat[tuple(slice(0, (n - 1) * s + 1, s) for n, s in zip(counts, stride, strict=True))]
    steps = flat[tuple(slice(0, (n - 1) * d + 1, d) for n, d in zip(kernel, dilation, strict=True))]
    disjoint = all(s >= d * (k - 1) + 1 for k, s, d in zip(kernel, stride, dilation, strict=True))
    planes = t.reshape(x, (x.shape[0] * x.shape[1], flat.size))
    out = max_windows(planes, starts.ravel(), steps.ravel(), disjoint)
    return t.reshape(out, (*x.shape[:2], *counts))


def avg_pool(
    x: Tensor,
    kernel: Any,
    stride: Any = None,
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
) -> Tensor:
    """The mean of each window; zeros that `padding` put around count, if `count_include_pad`."""
    kernel, stride, one, around = pooled("avg_pool", x, kernel, stride, padding, 1, ceil_mode)
    plain = pad(x, around)
    axes = len(kernel)
    seen = windows(plain, kernel, stride, one)
    total = t.sum(seen, axis=tuple(range(x.ndim - axes, x.ndim)))
    # How many elements a window's mean is of: what `ceil_mode` put behind never counts.
    inside = np.ones(1)
    for n, k, s, (before, after) in zip(x.shape[2:], kernel, stride, around, strict=True):
        start = np.arange(count(n + before + after, k, s, 1)) * s
        low, high = (0, n + 2 * before) if count_include_pad else (before, before + n)
        inside = np.multiply.outer(inside, np.minimum(start + k, high) - np.maximum(start, low))
    if inside.min() == inside.max():
        return total / float(inside.max())
    return total / t.asarray(inside[0], dtype=x.dtype, device=x.device)


def spans(n: int, m: int) -> list[tuple[int, int]]:
    """The m parts, perhaps overlapping, of adaptive pooling over n elements."""
    return [(k * n // m, -(-(k + 1) * n // m)) for k in range(m)]


def adaptive(name: str, x: Tensor, sizes: Any) -> Lengths:
    axes = len(sizes) if isinstance(sizes, tuple | list) else x.ndim - 2
    if x.ndim != axes + 2 or axes < 1:
        raise ShapeError(f"`{name}` to {sizes} takes {axes + 2} axes, not {x.shape}")
    given = sizes if isinstance(sizes, tuple | list) else (sizes,) * axes
    wanted = tuple(n if m is None else m for n, m in zip(x.shape[2:], given, strict=True))
    if 0 in x.shape[2:]:
        raise ShapeError(f"`{name}` of no elements: shape {x.shape}")
    return lengths(wanted, axes, "sizes")


def adaptive_avg_pool(x: Tensor, sizes: Any) -> Tensor:
    """Means of as many windows as `sizes` says, for each axis (None keeps its length)."""
    for axis, m in enumerate(adaptive("adaptive_avg_pool", x, sizes), 2):
        n = x.shape[axis]
        share = np.zeros((n, m))
        for k, (start, stop) in enumerate(spans(n, m)):
            share[start:stop, k] = 1 / (stop - start)
        matrix = t.asarray(share, dtype=x.dtype, device=x.device)
        x = t.moveaxis(t.moveaxis(x, axis, -1) @ matrix, -1, axis)
    return x


def adaptive_max_pool(x: Tensor, sizes: Any) -> Tensor:
    """The greatest elements of as many windows as `sizes` says (None keeps an axis' length).

    Equal ones share the gradient, where windows are of unequal lengths.
    """
    wanted = adaptive("adaptive_max_pool", x, sizes)
    if all(n % m == 0 for n, m in zip(x.shape[2:], wanted, strict=True)):
        return max_pool(x, tuple(n // m for n, m in zip(x.shape[2:], wanted, strict=True)))
    for axis, m in enumerate(wanted, 2):
        before = (slice(None),) * axis
        parts = [
            t.max(x[(*before, slice(start, stop))], axis=axis)
            for start, stop in spans(x.shape[axis], m)
        ]
        x = t.stack(parts, axis=axis)
    return x


# ---- layers --------------------------------------------------------------------------------------


class Conv(Module):
    """A convolution of (batch, channels, axes...); weight (outputs, inputs / groups, axes...).

    Weights and biases are uniform within 1 / sqrt(what a window holds), as PyTorch's.
    """

    axes = 0
    transposed = False

    def __init__(
        self,
        inputs: int,
        outputs: int,
        kernel: Any,
        *,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
        bias: bool = True,
        rng: np.random.Generator | None = None,
        **more: Any,
    ) -> None:
        rng = np.random.default_rng() if rng is None else rng
        if groups < 1 or inputs % groups or outputs % groups:
            raise ShapeError(f"{inputs} channels and {outputs} outputs in {groups} groups")
        kernel = lengths(kernel, self.axes, "kernel")
        self.options = {
            "stride": stride, "padding": padding, "dilation": dilation, "groups": groups, **more
        }  # fmt: skip
        first, second = (inputs, outputs) if self.transposed else (outputs, inputs)
        shape = (first, second // groups, *kernel)
        bound = 1 / math.sqrt(math.prod(shape[1:]))
        self.weight = parameter(rng.uniform(-bound, bound, shape).astype(np.float32))
        self.bias = (
            parameter(rng.uniform(-bound, bound, outputs).astype(np.float32)) if bias else None
        )

    def forward(self, x: Tensor) -> Tensor:
        function = conv_transpose if self.transposed else conv
        return function(x, self.weight, self.bias, **self.options)

    def extra_repr(self) -> str:
        first, second, *kernel = self.weight.shape
        more = "".join(f", {k}={v}" for k, v in self.options.items() if v != _PLAIN.get(k))
        second *= self.options["groups"]
        inputs, outputs = (first, second) if self.transposed else (second, first)
        return f"{inputs}, {outputs}, {tuple(kernel)}{more}"


_PLAIN = {
    "stride": 1, "padding": 0, "dilation": 1, "groups": 1, "output_padding": 0,
    "padding_mode": "constant",
}  # fmt: skip


class Conv1d(Conv):
    """A convolution of (batch, channels, length)."""

    axes = 1


class Conv2d(Conv):
    """A convolution of (batch, channels, height, width).

    >>> import ruda
    >>> ruda.nn.Conv2d(3, 8, 5, stride=2, padding=2)(ruda.zeros((1, 3, 28, 28))).shape
    (1, 8, 14, 14)
    """

    axes = 2


class Conv3d(Conv):
    """A convolution of (batch, channels, depth, height, width)."""

    axes = 3


class ConvTranspose1d(Conv):
    """The transpose of a convolution of (batch, channels, length)."""

    axes, transposed = 1, True


class ConvTranspose2d(Conv):
    """The transpose of a convolution of (batch, channels, height, width)."""

    axes, transposed = 2, True


class ConvTranspose3d(Conv):
    """The transpose of a convolution of (batch, channels, depth, height, width)."""

    axes, transposed = 3, True


class Pool(Module):
    """A pooling function with its options, as a layer."""

    function: Callable[..., Tensor]

    def __init__(self, size: Any, *positional: Any, **options: Any) -> None:
        self.options = (size, *positional), options

    def forward(self, x: Tensor) -> Tensor:
        positional, options = self.options
        return type(self).function(x, *positional, **options)

    def extra_repr(self) -> str:
        positional, options = self.options
        return ", ".join([*map(repr, positional), *(f"{k}={v!r}" for k, v in options.items())])


class MaxPool(Pool):
    """`max_pool` over windows of a kernel."""

    function = staticmethod(max_pool)


class AvgPool(Pool):
    """`avg_pool` over windows of a kernel."""

    function = staticmethod(avg_pool)


class AdaptiveMaxPool(Pool):
    """`adaptive_max_pool` to given lengths."""

    function = staticmethod(adaptive_max_pool)


class AdaptiveAvgPool(Pool):
    """`adaptive_avg_pool` to given lengths."""

    function = staticmethod(adaptive_avg_pool)
