"""The CPU as a device: what code for it depends on, and launches."""

from __future__ import annotations

import math
import platform
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ruda.backends.base import Binary, DeviceInfo, HostMemory, Launch, Source
from ruda.backends.cpu import compile as compiler
from ruda.backends.cpu.compile import Module
from ruda.jit import emit_python, passes
from ruda.jit.ir import Array, Function, Variable
from ruda.jit.passes.flatten import flat_axis, is_flat
from ruda.jit.passes.indices import simplify


class CpuBackend(HostMemory):
    """Backend "cpu"; see `ruda.backends.base.Backend`."""

    name = "cpu"

    def devices(self) -> Sequence[DeviceInfo]:
        return (DeviceInfo("cpu", platform.processor() or platform.machine(), "hardware"),)

    def target(self, device: str = "cpu") -> Mapping[str, Any]:
        """Nothing: CPU, C library and compilers are in `ruda.jit.keys.environment_parts`."""
        return {}

    def emit(self, function: Function, target: Mapping[str, Any]) -> Source:
        """Pure: IR -> Python text."""
        simple = simplify(function)
        flat = is_flat(simple)
        lowered = passes.lower(function, "cpu")
        options = {
            "unit": "flat" if flat else "block",
            "axis": flat_axis(simple) if flat else 0,
            "block": list(function.block) if function.block else None,
            "flags": float_flags(function),
            "parameters": describe(function.parameters),
        }
        return emit_python.emit(lowered, options)

    def compile(self, source: Source, target: Mapping[str, Any]) -> Binary:
        return compiler.compile_source(source, target)

    def load(self, binary: Binary, function: Function | None, device: str = "cpu") -> Module:
        return compiler.load(binary)

    def resolves(self, symbol: str) -> bool:
        return compiler.resolves(symbol)

    def launcher(
        self, module: Module, launch: Launch, fallback: Callable[..., Any] | None
    ) -> Callable[..., None]:
        parameters = module.metadata["parameters"]
        items = count_items(module.metadata, launch)

        def run(*arguments: Any) -> None:
            block, keep = pack(parameters, launch, arguments)
            compiler.call(module, block.ctypes.data, 0, items)
            del keep

        return run


def float_flags(function: Function) -> list[str]:
    """Fast-math flags of ordinary float operations."""
    if function.fastmath:
        return ["contract", "nsz", "arcp", "reassoc", "afn"]
    return ["contract"] if function.contract else []


def count_items(metadata: Mapping[str, Any], launch: Launch) -> int:
    """How many items of work a launch has: blocks, or indices of a flat kernel's axis."""
    if metadata["unit"] == "flat":
        axis = metadata["axis"]
        return launch.grid[axis] * launch.block[axis]
    return math.prod(launch.grid)


def describe(parameters: Sequence[Array | Variable]) -> list[list[Any]]:
    """Parameters as JSON: ["array", ndim] or ["scalar", how it is held]."""
    return [
        ["array", p.ndim] if isinstance(p, Array) else ["scalar", emit_python.held(p.dtype)]
        for p in parameters
    ]


_PACKED = {
    "i64": "<i8", "i32": "<i8", "i16": "<i8", "i8": "<i8", "bool": "<i8",
    "u64": "<u8", "u32": "<u8", "u16": "<u8", "u8": "<u8",
    "f64": "<f8", "f32": "<f4", "f16": "<f2", "c64": "<c8", "c128": "<c16",
}  # fmt: skip


def pack(
    parameters: Sequence[Sequence[Any]], launch: Launch, arguments: Sequence[Any]
) -> tuple[np.ndarray[Any, Any], list[Any]]:
    """The block of 8-byte words that a kernel reads, and what must stay alive meanwhile."""
    words = bytearray()
    for n in (*launch.grid, *launch.block, 0, launch.shared_bytes):
        words += int(n).to_bytes(8, "little", signed=True)
    keep: list[Any] = []
    for (kind, detail), value in zip(parameters, arguments, strict=True):
        if kind == "array":
            keep.append(value)
            numbers = (value.ctypes.data, *value.shape, *value.strides)
            words += b"".join(int(n).to_bytes(8, "little", signed=True) for n in numbers)
        elif detail == "bf16":
            words += np.asarray(value).tobytes().ljust(8, b"\0")
        else:
            words += np.array(value).astype(_PACKED[detail]).tobytes().ljust(8, b"\0")
    return np.frombuffer(bytes(words), np.int64), keep


BACKEND = CpuBackend()
