"""Discrete Fourier transforms of the array API standard.

Four of them transform along one axis: by NumPy where the host is the device, by cuFFT where it is
installed, by the kernels of `signal` elsewhere. The others are made of these. Each is linear, so
its gradient is the transform that its conjugate transpose is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ruda import dtypes
from ruda.dtypes import as_dtype, default_float
from ruda.errors import DTypeError, ShapeError
from ruda.tensor import cufft, memory, signal
from ruda.tensor.creation import as_shape, concat, moveaxis, roll, zeros
from ruda.tensor.history import attach
from ruda.tensor.tensor import Tensor, as_axes, asarray, astype, copied, from_buffer, function

NORMS = {"backward": (0.0, 1.0), "ortho": (0.5, 0.5), "forward": (1.0, 0.0)}


def _scale(n: int, norm: str, inverse: bool) -> float:
    if norm not in NORMS:
        raise ValueError(f"norm={norm!r}: there are {', '.join(NORMS)}")
    return float(n ** -NORMS[norm][inverse])


def _at_length(x: Tensor, n: int | None, axis: int) -> Tensor:
    """The axis last, cut to n elements or filled up with zeros."""
    if axis not in (-1, x.ndim - 1):
        x = moveaxis(x, axis, -1)
    have = x.shape[-1]
    n = have if n is None else n
    if n < 1:
        raise ShapeError(f"a transform of {n} elements")
    if n < have:
        return x[..., :n]
    if n > have:
        more = zeros((*x.shape[:-1], n - have), dtype=x.dtype, device=x.device)
        return concat([x, more], axis=-1)
    return x


def _back(x: Tensor, axis: int) -> Tensor:
    """The last axis where it came from."""
    return x if axis == x.ndim - 1 else moveaxis(x, -1, axis)


def _complex(name: str, x: Tensor) -> Tensor:
    if x.dtype.kind == "complex":
        return x
    return astype(_real(name, x), "complex128" if x.dtype is dtypes.float64 else "complex64")


def _real(name: str, x: Tensor) -> Tensor:
    if x.dtype.kind == "complex":
        raise DTypeError(f"`fft.{name}` is of real numbers, not {x.dtype}")
    kind = x.dtype if x.dtype.kind == "float" else default_float()
    return astype(x, kind if kind is dtypes.float64 else dtypes.float32, copy=False)


def _turned(x: Tensor, sign: int, axes: int = 1) -> Tensor:
    """The transform along the last axis, without a factor; its adjoint has the other sign.

    axes  how many are transformed together; several where cuFFT does it
    """
    if memory.on_host(x.device):
        plain = x.detach().buffer()
        found = np.fft.fft(plain) if sign < 0 else np.fft.ifft(plain, norm="forward")
        out = from_buffer(np.ascontiguousarray(found), x.device)
    else:
        out = signal.transform(x.detach(), sign, axes)
    return attach(out, "fft", lambda g, out, x: (_turned(_complex("fft", g), -sign, axes),), (x,))


def fft(x: Tensor, /, *, n: int | None = None, axis: int = -1, norm: str = "backward") -> Tensor:
    """The transform along an axis.

    >>> import ruda
    >>> ruda.fft.fft(ruda.asarray([1.0, 0.0, 0.0])).tolist()
    [(1+0j), (1+0j), (1+0j)]
    """
    return _one(x, n, axis, norm, "fft", inverse=False)


def ifft(x: Tensor, /, *, n: int | None = None, axis: int = -1, norm: str = "backward") -> Tensor:
    """The inverse of `fft`."""
    return _one(x, n, axis, norm, "ifft", inverse=True)


def _one(x: Tensor, n: int | None, axis: int, norm: str, name: str, *, inverse: bool) -> Tensor:
    k = as_axes(axis, x.ndim)[0]
    if _in_place(x, n, k):
        out = _along(_complex(name, x), 1 if inverse else -1, k)
        scale = _scale(x.shape[k], norm, inverse)
        return out if scale == 1 else out * scale
    rows = _at_length(_complex(name, x), n, k)
    out = _turned(rows, 1 if inverse else -1)
    scale = _scale(rows.shape[-1], norm, inverse)
    return _back(out if scale == 1 else out * scale, k)


def _in_place(x: Tensor, n: int | None, k: int) -> bool:
    """Whether cuFFT transforms an axis where it is, neither the last one nor brought there."""
    if k == x.ndim - 1 or n not in (None, x.shape[k]) or x.shape[k] < 1:
        return False
    return math.prod(x.shape[:k]) <= cufft.CALLS and cufft.takes(x.device)


def _along(x: Tensor, sign: int, k: int) -> Tensor:
    """`_turned` of an axis, where it is."""
    found = cufft.along(signal.whole(x.detach()).buffer(), k, sign, x.dtype, x.device)
    out = from_buffer(found, x.device, cufft.NAME)
    return attach(out, "fft", lambda g, out, x: (_along(_complex("fft", g), -sign, k),), (x,))


def rfft(x: Tensor, /, *, n: int | None = None, axis: int = -1, norm: str = "backward") -> Tensor:
    """The transform of real numbers: the first half of it, and the middle."""
    k = as_axes(axis, x.ndim)[0]
    rows = _at_length(_real("rfft", x), n, k)
    length = rows.shape[-1]
    half = _half(rows)
    scale = _scale(length, norm, False)
    return _back(half if scale == 1 else half * scale, k)


def _half(x: Tensor, axes: int = 1) -> Tensor:
    """The first n // 2 + 1 numbers of the transform of real rows, without a factor.

    axes  how many are transformed together, as for `_turned`; the last one is halved
    """
    n = x.shape[-1]
    if memory.on_host(x.device):
        found = np.ascontiguousarray(np.fft.rfft(x.detach().buffer()))
    elif cufft.takes(x.device):
        found = cufft.half(signal.whole(x.detach()).buffer(), axes, x.device)
    else:
        return _turned(_complex("rfft", x), -1)[..., : n // 2 + 1]
    out = from_buffer(found, x.device, "" if memory.on_host(x.device) else cufft.NAME)

    def gradient(g: Tensor, out: Tensor, x: Tensor) -> tuple[Tensor]:
        return (function("real")(_turned(_at_length(g, n, -1), 1, axes)),)

    return attach(out, "rfft", gradient, (x,))


def irfft(x: Tensor, /, *, n: int | None = None, axis: int = -1, norm: str = "backward") -> Tensor:
    """The inverse of `rfft`: n real numbers, by default an even number of them."""
    k = as_axes(axis, x.ndim)[0]
    x = _complex("irfft", x)
    length = 2 * (x.shape[k] - 1) if n is None else n
    if length < 1:
        raise ShapeError(f"a transform to {length} elements")
    rows = _at_length(x, length // 2 + 1, k)
    out = _from_half(rows, length)
    scale = _scale(length, norm, True)
    return _back(out if scale == 1 else out * scale, k)


def _from_half(x: Tensor, n: int) -> Tensor:
    """n real numbers from the half of their transform, without a factor."""
    if memory.on_host(x.device):
        found = np.fft.irfft(x.detach().buffer(), n, norm="forward")
        out = from_buffer(np.ascontiguousarray(found), x.device)
    elif cufft.takes(x.device):
        out = from_buffer(cufft.from_half(copied(x.detach()), n, x.device), x.device, cufft.NAME)
    else:  # the other half are the conjugates of this one; of its ends only the real part counts
        rows = x.detach()
        ends = astype(function("real")(rows), rows.dtype)
        inner = rows[..., 1 : (n + 1) // 2]
        middle = [ends[..., n // 2 :]] if n % 2 == 0 else []
        other = function("conj")(inner)[..., ::-1]
        whole = concat([ends[..., :1], inner, *middle, other], axis=-1)
        out = function("real")(_turned(whole, 1))

    def gradient(g: Tensor, out: Tensor, x: Tensor) -> tuple[Tensor]:
        weight = np.full(n // 2 + 1, 2.0, dtype=g.dtype.numpy)
        weight[0] = 1  # a number that has no conjugate in the other half
        if n % 2 == 0:
            weight[-1] = 1
        return (_half(g) * asarray(weight, device=g.device),)

    return attach(out, "irfft", gradient, (x,))


def hfft(x: Tensor, /, *, n: int | None = None, axis: int = -1, norm: str = "backward") -> Tensor:
    """The transform of a Hermitian signal, of which half is given: real numbers."""
    opposite = {"backward": "forward", "forward": "backward"}.get(norm, norm)
    return irfft(function("conj")(_complex("hfft", x)), n=n, axis=axis, norm=opposite)


def ihfft(x: Tensor, /, *, n: int | None = None, axis: int = -1, norm: str = "backward") -> Tensor:
    """The inverse of `hfft`."""
    opposite = {"backward": "forward", "forward": "backward"}.get(norm, norm)
    return function("conj")(rfft(_real("ihfft", x), n=n, axis=axis, norm=opposite))


def _several(x: Tensor, s: Any, axes: Any) -> tuple[list[int], list[int | None]]:
    """The axes to transform, and the length of each."""
    if axes is None:
        count = x.ndim if s is None else len(s)
        chosen = list(range(x.ndim))[-count:] if count else []
    else:
        chosen = [as_axes(a, x.ndim)[0] for a in axes]
    lengths = [None] * len(chosen) if s is None else [int(n) for n in s]
    if len(lengths) != len(chosen):
        raise ShapeError(f"s={s} and axes={axes} differ in number")
    return chosen, lengths  # type: ignore[return-value]


def _together(x: Tensor, chosen: list[int]) -> bool:
    """Whether the axes are transformed at once: two or three last ones, by cuFFT."""
    count = len(chosen)
    last = list(range(x.ndim - count, x.ndim))
    return 2 <= count <= 3 and sorted(chosen) == last and cufft.takes(x.device)


def _at_lengths(x: Tensor, chosen: list[int], lengths: list[int | None]) -> Tensor:
    for k, n in zip(chosen, lengths, strict=True):
        if n not in (None, x.shape[k]) or x.shape[k] < 1:
            x = moveaxis(_at_length(x, n, k), -1, k)
    return x


def _all(x: Tensor, s: Any, axes: Any, norm: str, name: str, inverse: bool) -> Tensor:
    """The transform along several axes, at once or one after the other."""
    chosen, lengths = _several(x, s, axes)
    if not _together(x, chosen):
        for k, n in zip(chosen, lengths, strict=True):
            x = _one(x, n, k, norm, name[:-1], inverse=inverse)
        return _complex(name, x)
    x = _at_lengths(_complex(name, x), chosen, lengths)
    out = _turned(x, 1 if inverse else -1, len(chosen))
    scale = _scale(math.prod(x.shape[k] for k in chosen), norm, inverse)
    return out if scale == 1 else out * scale


def fftn(
    x: Tensor, /, *, s: Sequence[int] | None = None, axes: Sequence[int] | None = None,
    norm: str = "backward",
) -> Tensor:  # fmt: skip
    """The transform along several axes."""
    return _all(x, s, axes, norm, "fftn", False)


def ifftn(
    x: Tensor, /, *, s: Sequence[int] | None = None, axes: Sequence[int] | None = None,
    norm: str = "backward",
) -> Tensor:  # fmt: skip
    """The inverse of `fftn`."""
    return _all(x, s, axes, norm, "ifftn", True)


def rfftn(
    x: Tensor, /, *, s: Sequence[int] | None = None, axes: Sequence[int] | None = None,
    norm: str = "backward",
) -> Tensor:  # fmt: skip
    """The transform of real numbers along several axes: half of it along the last one."""
    chosen, lengths = _several(x, s, axes)
    if _together(x, chosen) and chosen[-1] == x.ndim - 1:
        x = _at_lengths(_real("rfftn", x), chosen, lengths)
        scale = _scale(math.prod(x.shape[k] for k in chosen), norm, False)
        half = _half(x, len(chosen))
        return half if scale == 1 else half * scale
    x = rfft(_real("rfftn", x), n=lengths[-1], axis=chosen[-1], norm=norm)
    for k, n in zip(chosen[:-1], lengths[:-1], strict=True):
        x = fft(x, n=n, axis=k, norm=norm)
    return x


def irfftn(
    x: Tensor, /, *, s: Sequence[int] | None = None, axes: Sequence[int] | None = None,
    norm: str = "backward",
) -> Tensor:  # fmt: skip
    """The inverse of `rfftn`."""
    chosen, lengths = _several(x, s, axes)
    for k, n in zip(chosen[:-1], lengths[:-1], strict=True):
        x = ifft(x, n=n, axis=k, norm=norm)
    return irfft(x, n=lengths[-1], axis=chosen[-1], norm=norm)


def fftshift(x: Tensor, /, *, axes: Any = None) -> Tensor:
    """With frequency 0 in the middle."""
    chosen = as_axes(axes, x.ndim)
    return roll(x, tuple(x.shape[k] // 2 for k in chosen), axis=chosen)


def ifftshift(x: Tensor, /, *, axes: Any = None) -> Tensor:
    """The inverse of `fftshift`."""
    chosen = as_axes(axes, x.ndim)
    return roll(x, tuple(-(x.shape[k] // 2) for k in chosen), axis=chosen)


def fftfreq(n: int, /, *, d: float = 1.0, dtype: Any = None, device: Any = None) -> Tensor:
    """The frequencies of `fft` of n samples at distance d."""
    kind = default_float() if dtype is None else as_dtype(dtype)
    (n,) = as_shape(n)
    return asarray(np.fft.fftfreq(n, d), dtype=kind, device=device)


def rfftfreq(n: int, /, *, d: float = 1.0, dtype: Any = None, device: Any = None) -> Tensor:
    """The frequencies of `rfft` of n samples at distance d."""
    kind = default_float() if dtype is None else as_dtype(dtype)
    (n,) = as_shape(n)
    return asarray(np.fft.rfftfreq(n, d), dtype=kind, device=device)


FUNCTIONS: dict[str, Callable[..., Tensor]] = {
    f.__name__: f
    for f in (
        fft, ifft, fftn, ifftn, rfft, irfft, rfftn, irfftn, hfft, ihfft, fftshift, ifftshift,
        fftfreq, rfftfreq,
    )
}  # fmt: skip
__all__ = list(FUNCTIONS)
