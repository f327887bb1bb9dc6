"""The processor that numba compiles for, and what it can do in one instruction."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

from ruda.backends.cpu.values import add_attributes


@dataclass(frozen=True)
class TargetOptions:
    """CPU name and features; part of the key of cached code."""

    name: str
    features: str  # as LLVM writes them: +avx2,-avx512f,...

    def has(self, *features: str) -> bool:
        listed = self.features.split(",")
        return all(f"+{feature}" in listed for feature in features)


@functools.cache
def cpu_target_options() -> TargetOptions:
    """What numba passes to LLVM: the host, or NUMBA_CPU_NAME and NUMBA_CPU_FEATURES."""
    import llvmlite.binding as llvm
    from numba.core import config
    from numba.core.codegen import get_host_cpu_features

    name, features = config.CPU_NAME, config.CPU_FEATURES
    return TargetOptions(
        llvm.get_host_cpu_name() if name is None else name,
        get_host_cpu_features() if features is None else features,
    )


def has_half_conversion() -> bool:
    """Whether float16 <-> float32 is an instruction. Where it is not, LLVM would call a function
    of the compiler's library, which nobody links."""
    import llvmlite.binding as llvm

    return llvm.get_process_triple().startswith("aarch64") or cpu_target_options().has("f16c")


def has_scale() -> bool:
    """Whether y 2^k is an instruction. Where it is not, LLVM would call the C library's ldexp."""
    return cpu_target_options().has("avx512f", "avx512vl")


def prefer_wide_vectors(function: Any) -> None:
    """Let LLVM use 512-bit vectors in this function, where the processor has them.

    It prefers 256 bits on many Intel processors. As an attribute of the one function this leaves
    the user's own numba code alone, which setting NUMBA_CPU_FEATURES would not.
    """
    add_attributes(function, ('"prefer-vector-width"="512"',))
