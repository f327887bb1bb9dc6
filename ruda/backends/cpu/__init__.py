"""The CPU: kernels become Python text, numba makes object code, blocks run on a pool of threads."""

from __future__ import annotations

from ruda.backends.cpu.device import BACKEND, CpuBackend

__all__ = ["BACKEND", "CpuBackend"]
