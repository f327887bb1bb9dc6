"""CUDA: kernels become machine code by numba, NVVM and nvJitLink, and the driver launches them."""

from __future__ import annotations

from ruda.backends.cuda.device import BACKEND, CudaBackend

__all__ = ["BACKEND", "CudaBackend"]
