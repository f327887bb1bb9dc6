"""Fourier transforms and convolutions along one axis: NumPy's on the host, cuFFT's on CUDA where it
is installed, kernels elsewhere.

The kernels transform any length n. A power of two goes through log2(n) passes of Stockham's
radix-2 form, which leaves the result in order; another length is a convolution with a chirp
(Bluestein 1970), done at the next power of two that is long enough. Factors are computed on the
host in double precision and read from a table, so that errors grow with log n only.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from ruda import dtypes
from ruda.dtypes import DType
from ruda.errors import DTypeError
from ruda.jit import jit
from ruda.jit.language import grid
from ruda.tensor import cufft, memory
from ruda.tensor.history import attach
from ruda.tensor.tensor import Tensor, astype, copied, from_buffer, function

THREADS = 64

# ---- convolution ---------------------------------------------------------------------------------


@jit
def convolution(x, y, out):  # type: ignore[no-untyped-def]
    """out[i] = sum of x[i - k] * y[k]."""
    i = grid(1)
    if i < out.size:
        total = out.dtype.type(0)
        for k in range(max(0, i - x.size + 1), min(y.size, i + 1)):
            total += x[i - k] * y[k]
        out[i] = total


def convolve(x: Tensor, y: Tensor) -> Tensor:
    """The whole discrete convolution of two vectors, at their promoted dtype."""
    from ruda.tensor.creation import flip, result_type

    kind = result_type(x, y)
    x, y = astype(x, kind, copy=False), astype(y, kind, copy=False)
    if memory.on_host(x.device):
        out = from_buffer(np.convolve(x.detach().buffer(), y.detach().buffer()), x.device)
    else:
        buffer = memory.allocate((x.size + y.size - 1,), kind, x.device)
        convolution[-(-buffer.size // THREADS), THREADS](
            whole(x.detach()).buffer(), whole(y.detach()).buffer(), buffer
        )
        out = from_buffer(buffer, x.device)

    def gradient(g: Tensor, out: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Correlations: the convolution with the other one, conjugated and turned round."""

        def by(other: Tensor, n: int) -> Tensor:
            other = function("conj")(other) if other.dtype.kind == "complex" else other
            return convolve(g, flip(other))[other.size - 1 :][:n]

        return by(y, x.size), by(x, y.size)

    return attach(out, "convolve", gradient, (x, y))


def whole(x: Tensor) -> Tensor:
    """The tensor in memory of its own, in C order, unless it is so already."""
    return x if x._view is None else from_buffer(copied(x), x.device)


# ---- Fourier transforms --------------------------------------------------------------------------


@jit
def butterflies(x, out, factors, half, stride):  # type: ignore[no-untyped-def]
    """One pass of Stockham's transform of rows: pairs half a row apart, `stride` groups of them."""
    k = grid(1)
    if k < x.shape[0] * half:
        row, at = k // half, k % half
        q, p = at % stride, at // stride
        a, b = x[row, at], x[row, at + half]
        out[row, q + 2 * p * stride] = a + b
        out[row, q + (2 * p + 1) * stride] = (a - b) * factors[p * stride]


@jit
def scaled(x, factors, out):  # type: ignore[no-untyped-def]
    """Rows times factors, one for each column, then zeros."""
    k = grid(1)
    if k < out.size:
        row, at = k // out.shape[1], k % out.shape[1]
        value = out.dtype.type(0)
        if at < x.shape[1] and at < factors.size:
            value = x[row, at] * factors[at]
        out[row, at] = value


def _launch(kernel: Any, count: int, *arguments: Any) -> None:
    if count:
        kernel[-(-count // THREADS), THREADS](*arguments)


@functools.lru_cache(maxsize=64)
def _factors(what: str, n: int, m: int, sign: int, dtype: str, device: str) -> Any:
    """A table on the device, computed in double: "turns" e**(-2 pi i k / n), or a chirp's."""
    k = np.arange(m)
    if what == "turns":
        table = np.exp(sign * 2j * np.pi * k / n)
    else:
        chirp = np.exp(sign * 1j * np.pi * (k * k % (2 * n)) / n)  # exact: whole turns fall out
        table = chirp[:n]
        if what == "filter":
            table = np.zeros(m, complex)
            table[:n] = chirp[:n].conj()
            table[m - n + 1 :] = chirp[1:n][::-1].conj()
            table = np.fft.fft(table) / m  # the inverse transform's 1/m is here
    return memory.from_host(table.astype(dtype), device)


def _power_of_two(x: Any, sign: int, kind: DType, device: str) -> Any:
    """The transform of rows whose length is a power of two; overwrites `x`."""
    rows, n = x.shape
    factors = _factors("turns", n, max(n // 2, 1), sign, kind.name, device)
    other = memory.allocate((rows, n), kind, device)
    stride = 1
    while stride < n:
        _launch(butterflies, rows * n // 2, x, other, factors, n // 2, stride)
        x, other = other, x
        stride *= 2
    return x


def transform(x: Tensor, sign: int, axes: int = 1) -> Tensor:
    """The sums over j of x[..., j] e**(sign 2 pi i j k / n), by kernels; `x` is complex.

    By cuFFT where it is; only then along several axes at once.
    """
    kind, device = x.dtype, x.device
    if kind not in (dtypes.complex64, dtypes.complex128):
        raise DTypeError(f"a transform of {kind}: it is of complex numbers")
    n = x.shape[-1]
    if cufft.takes(device):
        found = cufft.transform(whole(x).buffer(), sign, axes, kind, device)
        return from_buffer(found, device, cufft.NAME)
    assert axes == 1
    rows = x.size // n if n else 0
    if n & (n - 1) == 0:
        work = memory.view(copied(x), memory.contiguous((rows, n)))
        found = _power_of_two(work, sign, kind, device)
        return from_buffer(memory.view(found, memory.contiguous(x.shape)), device)
    size = 1 << (2 * n - 2).bit_length()
    value = memory.view(whole(x).buffer(), memory.contiguous((rows, n)))
    work = memory.allocate((rows, size), kind, device)
    out = memory.allocate((rows, n), kind, device)
    chirp = _factors("chirp", n, n, sign, kind.name, device)
    filter_ = _factors("filter", n, size, sign, kind.name, device)
    _launch(scaled, rows * size, value, chirp, work)
    spectrum = _power_of_two(work, -1, kind, device)
    product = memory.allocate((rows, size), kind, device)
    _launch(scaled, rows * size, spectrum, filter_, product)
    back = _power_of_two(product, 1, kind, device)
    _launch(scaled, rows * n, back, chirp, out)
    return from_buffer(memory.view(out, memory.contiguous(x.shape)), device)
