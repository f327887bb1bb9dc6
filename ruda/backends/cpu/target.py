"""A small numba target: numba's compiler with the kernel language's operators and nothing else.

numba's own CPU target loads its whole library before the first compile (0.3 s) and has Python's
rules. This one knows ranges, booleans and what `intrinsics.py` gives; a first compile takes a
third of the time. Private functions of numba are used here and in `intrinsics.py` only; its minor
version is pinned in pyproject.toml.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import numba.core.typing
from numba.core import (
    compiler,
    compiler_machinery,
    cpu,
    debuginfo,
    lowering,
    typed_passes,
    types,
    untyped_passes,
)
from numba.core.base import OverloadSelector
from numba.core.compiler_lock import global_compiler_lock
from numba.core.imputils import builtin_registry
from numba.core.typing import templates

from ruda.backends.cpu import intrinsics, processor
from ruda.backends.cpu.intrinsics import Intrinsic

lock = global_compiler_lock


class Typing(numba.core.typing.Context):  # type: ignore[misc]
    """Types of names and operators; loaded once, never refreshed."""

    def _load_builtins(self) -> None:
        from numba.core.typing import builtins  # noqa: F401

        self.install_registry(templates.builtin_registry)

    def refresh(self) -> None:
        if not self._functions:
            self._load_builtins()


class LineTables(debuginfo.DIBuilder):  # type: ignore[misc]
    """Debug information with the user's file and lines, and nothing else: it costs no speed."""

    def initialize(self) -> None:
        self.emission_kind = "LineTablesOnly"
        super().initialize()

    def mark_variable(self, *arguments: Any, **more: Any) -> None:
        """Variables have no place in line tables (LLVM aborts on them)."""


class Target(cpu.CPUContext):  # type: ignore[misc]
    """Lowering to LLVM. `kernel_flags` are the fast-math flags of float operations."""

    kernel_flags: tuple[str, ...] = ()
    DIBuilder = LineTables

    def load_additional_registries(self) -> None:
        from numba.cpython import builtins, numbers, rangeobj  # noqa: F401

    def refresh(self) -> None:
        if not self._defns:
            self.load_additional_registries()
            self.install_registry(builtin_registry)

    def post_lowering(self, mod: Any, library: Any) -> None:
        """Kernels need neither numba's runtime nor its fast-math rewriting."""
        for function in mod.functions:
            if not function.is_declaration:
                processor.prefer_wide_vectors(function)


class Lower(lowering.Lower):  # type: ignore[misc]
    """Knows without the source where a kernel is defined: its text is in no file."""

    def _compute_def_location(self) -> Any:
        return self.func_ir.loc


@compiler_machinery.register_pass(mutates_CFG=True, analysis_only=False)
class Lowering(typed_passes.BaseNativeLowering):  # type: ignore[misc]
    _name = "ruda_lowering"

    @property
    def lowering_class(self) -> Any:
        return Lower


class Pipeline(compiler.CompilerBase):  # type: ignore[misc]
    """numba's passes, without those for what emitted text never has (closures, arrays, objects).

    Without SSA each variable has one type, which is what the IR promises.
    """

    def define_pipelines(self) -> list[Any]:
        manager = compiler_machinery.PassManager("ruda")
        for one in (
            untyped_passes.TranslateByteCode,
            untyped_passes.FixupArgs,
            untyped_passes.IRProcessing,
            typed_passes.NopythonTypeInference,
            typed_passes.PreLowerStripPhis,
            typed_passes.IRLegalization,
            typed_passes.AnnotateTypes,
            Lowering,
            typed_passes.NoPythonBackend,
        ):
            manager.add_pass(one, one.__name__)
        manager.finalize()
        return [manager]


def _template(key: Any, rows: Mapping[tuple[Any, ...], Any]) -> Any:
    """A typing template that looks argument types up in a table."""

    def generic(self: Any, args: Any, kws: Any) -> Any:
        plain = tuple(types.misc.unliteral(a) for a in args)
        result = rows.get(plain)
        return None if result is None else templates.signature(result, *plain)

    return type("Template", (templates.AbstractTemplate,), {"key": key, "generic": generic})


def _lowered(lower: intrinsics.Lower) -> Callable[..., Any]:
    def implementation(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return lower(context, builder, arguments)

    return implementation


@functools.cache
def contexts() -> tuple[Typing, Target]:
    """The typing and target contexts, with the operators of the kernel language installed."""
    typing = Typing()
    target = Target(typing)
    typing.refresh()
    target.refresh()
    for op, rows in intrinsics.operators().items():
        template = _template(op, {a: result for a, (result, _) in rows.items()})
        typing._functions[op] = [template(typing)]
        if typing._lookup_global(op) is not None:
            typing._remove_global(op)
        typing.insert_global(op, types.Function(template))
        selector = OverloadSelector()
        for arguments, (_, lower) in rows.items():
            selector.append(_lowered(lower), arguments)
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
    template = _template(stub, {intrinsic.arguments: intrinsic.result})
    typing.insert_global(stub, types.Function(template))
    target._defns[stub].append(_lowered(intrinsic.lower), intrinsic.arguments)
    return stub


def compile_function(function: Any, flags: tuple[str, ...]) -> Any:
    """numba's compile result for a kernel body `(args, lo, hi)`."""
    typing, target = contexts()
    options = compiler.Flags()
    options.nrt = False
    options.error_model = "numpy"
    options.no_cpython_wrapper = True
    options.no_cfunc_wrapper = True
    options.enable_ssa = False
    # Line numbers for debuggers and profilers: those of the user's file.
    options.debuginfo = True
    options.dbg_directives_only = True
    target.kernel_flags = flags
    arguments = (types.int64,) * 3
    return compiler.compile_extra(
        typing, target, function, arguments, types.void, options, {}, pipeline_class=Pipeline
    )
