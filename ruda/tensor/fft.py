"""Discrete Fourier transforms of the array API standard: NumPy's, where the host is the device."""

from __future__ import annotations

from typing import Any

import numpy as np

from ruda.dtypes import as_dtype, default_float
from ruda.tensor.creation import library
from ruda.tensor.tensor import Tensor, asarray

FUNCTIONS = {
    name: library(f"fft.{name}", getattr(np.fft, name), doc)
    for name, doc in (
        ("fft", "The transform along an axis."),
        ("ifft", "The inverse of `fft`."),
        ("fftn", "The transform along several axes."),
        ("ifftn", "The inverse of `fftn`."),
        ("rfft", "The transform of real numbers: half of it."),
        ("irfft", "The inverse of `rfft`."),
        ("rfftn", "The transform of real numbers along several axes."),
        ("irfftn", "The inverse of `rfftn`."),
        ("hfft", "The transform of a Hermitian signal."),
        ("ihfft", "The inverse of `hfft`."),
        ("fftshift", "With frequency 0 in the middle."),
        ("ifftshift", "The inverse of `fftshift`."),
    )
}
globals().update(FUNCTIONS)


def fftfreq(n: int, /, *, d: float = 1.0, dtype: Any = None, device: Any = None) -> Tensor:
    """The frequencies of `fft` of n samples at distance d."""
    kind = default_float() if dtype is None else as_dtype(dtype)
    return asarray(np.fft.fftfreq(n, d), dtype=kind, device=device)


def rfftfreq(n: int, /, *, d: float = 1.0, dtype: Any = None, device: Any = None) -> Tensor:
    """The frequencies of `rfft` of n samples at distance d."""
    kind = default_float() if dtype is None else as_dtype(dtype)
    return asarray(np.fft.rfftfreq(n, d), dtype=kind, device=device)


__all__ = [*FUNCTIONS, "fftfreq", "rfftfreq"]
