"""numba's compiler for code of one CUDA thread: the CPU's small target with NVVM's conventions.

What is wanted of numba-cuda is the way from typed Python to NVVM IR. numba's compiler goes that way
with the CPU target's operators and conversions (`cpu/intrinsics.py`), so that both share them; this
file only changes where the LLVM module goes and how a function returns. numba-cuda is not needed:
NVVM, which it calls, is called in `compile.py`. It brings Python's type rules where the kernel
language has others, is in maintenance, and costs more before the first kernel. Both ways to a cubin
for sm_90a without a cache, medians of five processes on two x86-64 cores (numba 0.68.1, numba-cuda
0.30.4 and its `compile_ptx` with pointer arguments, the same nvJitLink):

    seconds                      numba-cuda    here
    import                             2.81    0.08
    first kernel (axpy)                0.71    1.34    of it numba, which is imported late
    a second small kernel             0.097   0.186    its scalar and its wide form
    softmax of rows of 8192           0.914   0.478
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numba.core.compiler
from llvmlite import binding
from llvmlite import ir as llvm
from numba.core import callconv, types
from numba.core.base import OverloadSelector

from ruda.backends.cpu import target as cpu
from ruda.backends.cpu.intrinsics import NUMBA, Intrinsic, operators
from ruda.backends.cuda import intrinsics

TRIPLE = "nvptx64-nvidia-cuda"
LAYOUT = (
    "e-p:64:64:64-i1:8:8-i8:8:8-i16:16:16-i32:32:32-i64:64:64-i128:128:128-f32:32:32-f64:64:64-"
    "v16:16:16-v32:32:32-v64:64:64-v128:128:128-n16:32:64"
)
LOCK = cpu.lock  # numba's own: its compiler is not thread-safe


class Library:
    """Keeps the LLVM modules that lowering makes; nothing is compiled here."""

    def __init__(self, codegen: Codegen, name: str) -> None:
        self.codegen, self.name = codegen, name
        self.modules: list[Any] = []
        self._reload_init: set[Any] = set()
        self.recorded_timings = None

    def enable_object_caching(self) -> None:
        """Asked for by numba's lowering; cubins are cached elsewhere."""

    def create_ir_module(self, name: str) -> Any:
        module = llvm.Module(name)
        module.triple, module.data_layout = TRIPLE, LAYOUT
        return module

    def add_ir_module(self, module: Any) -> None:
        self.modules.append(module)

    def finalize(self) -> None:
        """Nothing to do: NVVM gets the text."""


class Codegen:
    """What numba asks for sizes and libraries."""

    def __init__(self) -> None:
        self.target_data = binding.create_target_data(LAYOUT)

    def create_library(self, name: str, **options: Any) -> Library:
        return Library(self, name)


class Target(cpu.Target):
    """Lowering for NVVM."""

    def init(self) -> None:
        self.is32bit = False
        self._internal_codegen = Codegen()

    @functools.cached_property
    def call_conv(self) -> Any:
        return callconv.MinimalCallConv(self)

    def declare_env_global(self, module: Any, envname: str) -> None:
        """Kernels have no environment of Python objects."""


@functools.cache
def contexts() -> tuple[cpu.Typing, Target]:
    """The typing and target contexts, with the operators of the kernel language installed."""
    typing = cpu.Typing()
    target = Target(typing)
    typing.refresh()
    target.refresh()
    for op, rows in operators().items():
        template = cpu._template(op, {a: result for a, (result, _) in rows.items()})
        typing._functions[op] = [template(typing)]
        if typing._lookup_global(op) is not None:
            typing._remove_global(op)
        typing.insert_global(op, types.Function(template))
        selector = OverloadSelector()
        for arguments, (_, lower) in rows.items():
            selector.append(cpu._lowered(lower), arguments)
        target._defns[op] = selector
    return typing, target


@functools.cache
def function(name: str) -> Any:
    """The object that emitted text refers to by an intrinsic's name; None if there is none."""
    found = intrinsics.resolve(name)
    return None if found is None else install(name, found)


@functools.cache
def constant(data: bytes) -> Any:
    """A function that gives the address of constant bytes."""
    return install(f"constant_of_{len(data)}_bytes", intrinsics.constant(data))


def install(name: str, intrinsic: Intrinsic) -> Any:
    """Make an intrinsic known to the contexts."""
    typing, target = contexts()

    def stub(*arguments: Any) -> Any:
        raise TypeError(f"{name} exists in compiled kernels only")

    stub.__name__ = stub.__qualname__ = name
    template = cpu._template(stub, {intrinsic.arguments: intrinsic.result})
    typing.insert_global(stub, types.Function(template))
    target._defns[stub].append(cpu._lowered(intrinsic.lower), intrinsic.arguments)
    return stub


def lower(
    function: Callable[..., Any], kinds: Sequence[str], flags: tuple[str, ...]
) -> tuple[Any, str]:
    """The LLVM module of a kernel's function and its symbol. `kinds`: "pointer" or a dtype."""
    typing, target = contexts()
    options = numba.core.compiler.Flags()
    options.nrt = False
    options.error_model = "numpy"
    options.no_cpython_wrapper = True
    options.no_cfunc_wrapper = True
    options.no_compile = True
    options.enable_ssa = False
    target.kernel_flags = flags
    arguments = tuple(types.voidptr if k == "pointer" else NUMBA[k] for k in kinds)
    result = numba.core.compiler.compile_extra(
        typing, target, function, arguments, types.void, options, {}, pipeline_class=cpu.Pipeline
    )
    (module,) = result.library.modules
    return module, result.fndesc.llvm_func_name
