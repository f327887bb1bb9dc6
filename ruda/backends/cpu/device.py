"""The CPU as a device: what code for it depends on, its compiler, and launches."""

from __future__ import annotations

import functools
import math
import os
import platform
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from ruda.backends import cpu_blas, cpu_launcher, cpu_pool
from ruda.backends.base import Binary, DeviceInfo, HostMemory, Launch, Source
from ruda.backends.cpu import compile as compiler
from ruda.backends.cpu.compile import Module
from ruda.errors import LaunchError, LaunchTypeError, LaunchValueError, OutOfMemoryError, shown
from ruda.jit import ir
from ruda.jit.ir import Array, Atomic, Function, Store, Variable
from ruda.jit.keys import package_version
from ruda.jit.types import FixedArray, RecordType
from ruda.settings import settings

# The most dynamic shared memory of a launch: it lives in the stack of a pool's thread.
MAX_SHARED_BYTES = 1 << 20
GRAIN = 1024  # elements of a flat loop that are worth handing out at least


class CpuBackend(HostMemory):
    """Backend "cpu"; see `ruda.backends.base.Backend`."""

    name = "cpu"
    cacheable = True
    launcher_checks = True
    assembly_has_lines = True  # `.loc` directives name the user's lines

    def devices(self) -> Sequence[DeviceInfo]:
        properties = {
            "memory": self.memory_info("cpu")[1],
            "threads": cpu_pool.available_cores(),
            "max_threads": 1024,
            "max_shared": MAX_SHARED_BYTES,
            **self.target("cpu"),
        }
        return [DeviceInfo("cpu", _processor(), "hardware", properties)]

    def target(self, device: str) -> Mapping[str, Any]:
        """CPU name and features, C library, and the versions of the compilers."""
        return _target()

    @property
    def native(self) -> Any:
        """What makes builtins and methods of IR text: `natives`, `new_builtin`, `new_method`."""
        return cpu_launcher

    def product(self, x: Any, y: Any, out: Any) -> bool:
        """out[...] = x @ y on the pool's threads; False where that is left to NumPy."""
        return cpu_blas.product(x, y, out)

    def needs_block(self, function: Function) -> bool:
        """Whether the code depends on the launch's block."""
        from ruda.jit import passes

        return passes.needs_block(function)

    def emit(self, function: Function, target: Mapping[str, Any]) -> Source:
        """IR -> Python text, pure."""
        from ruda.jit import emit_python, passes, rounds
        from ruda.jit.passes.flatten import flat_axis, is_flat
        from ruda.jit.passes.indices import simplify
        from ruda.jit.passes.phases import hidden
        from ruda.jit.passes.reports import lower_reports

        reporting, sites = lower_reports(function, barriers=True)
        simple = simplify(reporting)
        flat = is_flat(simple)
        lowered = passes.lower(reporting, "cpu")
        from ruda.backends.cpu.reports import pack_sites

        options = {
            "name": function.name,
            "unit": "flat" if flat else "block",
            "axis": flat_axis(simple) if flat else 0,
            "block": list(function.block) if function.block else None,
            "flags": float_flags(function),
            "parameters": describe(function),
            "sites": pack_sites(sites),
        }
        found = hidden(lowered)
        if found is not None:
            kept = [d.itemsize for d in found.kept]
            options |= {
                "phases": rounds.pack(found.schedule), "rounds": list(found.rounds), "kept": kept,
            }  # fmt: skip
        return emit_python.emit(lowered, options, sites)

    def compile(self, source: Source, target: Mapping[str, Any]) -> Binary:
        return compiler.compile_source(source)

    def assembly(self, source: Source, target: Mapping[str, Any]) -> str:
        """The machine code as text."""
        return compiler.assembly(source)

    def resolves(self, symbol: str) -> bool:
        """Whether a kernel may call an external function, and this process has it."""
        return compiler.resolves(symbol)

    def load(self, binary: Binary, function: Function | None, device: str) -> Module:
        return compiler.load(binary)

    def launcher(
        self,
        module: Module,
        launch: Launch,
        fallback: Callable[..., Any] | None,
        guards: Sequence[cpu_launcher.Guard] = (),
    ) -> Callable[..., None]:
        """A callable for the kernel's arguments. What does not fit goes to `fallback`, once."""
        metadata = module.metadata
        _check_launch(metadata, launch)
        rows = layout(metadata["parameters"])
        general = _general(module, launch, rows)

        def other(*arguments: Any, **keywords: Any) -> Any:
            """Arguments that the native code did not take."""
            unchanged = all(cpu_launcher.unchanged(*guard) for guard in guards)
            if unchanged and not keywords and suit(arguments, rows):
                return general(*arguments)
            if fallback is None or _local.tried is fallback:
                problems = [cpu_launcher.mismatch(*p) for p in zip(arguments, rows, strict=False)]
                raise LaunchTypeError(
                    f"`{metadata['name']}`: arguments do not fit: {[p for p in problems if p]}"
                )
            before, _local.tried = _local.tried, fallback
            try:
                return fallback(*arguments, **keywords)
            finally:
                _local.tried = before

        # Each launch has a report buffer of its own, and memory for what phases keep.
        if metadata["sites"] or "phases" in metadata:
            general.is_native = False  # type: ignore[attr-defined]
            return general
        return cpu_launcher.build_any(
            rows,
            module.address,
            launch.grid,
            launch.block,
            other,
            threads=cpu_pool.thread_count(),
            count=count_items(metadata, launch),
            chunk=chunk(metadata),
            shared_bytes=launch.shared_bytes,
            guards=guards,
            keep=module,
        )


class _Local(threading.local):
    tried: Any = None  # the fallback that this thread is in


_local = _Local()


@functools.cache
def _target() -> Mapping[str, Any]:
    import llvmlite.binding as llvm

    return {
        "cpu": llvm.get_host_cpu_name(),
        "features": llvm.get_host_cpu_features().flatten(),
        # NUMBA_CPU_NAME, NUMBA_OPT and others change what numba makes of the same text.
        "settings": " ".join(sorted(f"{k}={v}" for k, v in os.environ.items() if "NUMBA_" in k)),
        "libc": " ".join(platform.libc_ver()),
        "llvmlite": package_version("llvmlite"),
        "numba": package_version("numba"),
    }


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            for line in file:
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def float_flags(function: Function) -> list[str]:
    """Fast-math flags of ordinary float operations."""
    if function.fastmath:
        return ["contract", "nsz", "arcp", "reassoc", "afn"]
    return ["contract"] if function.contract else []


# ---- launches ------------------------------------------------------------------------------------


def _check_launch(metadata: Mapping[str, Any], launch: Launch) -> None:
    name, block = metadata["name"], metadata["block"]
    if block is not None and tuple(block) != tuple(launch.block):
        raise LaunchError(f"`{name}` was compiled for blocks of {tuple(block)}")
    if launch.shared_bytes > MAX_SHARED_BYTES:
        raise LaunchValueError(
            f"`{name}`: {shown(launch.shared_bytes)} bytes of dynamic shared memory; "
            f"the CPU has {MAX_SHARED_BYTES}"
        )


def count_items(metadata: Mapping[str, Any], launch: Launch) -> int:
    """How many items of work a launch has: blocks, or indices of a flat kernel's axis."""
    if metadata["unit"] == "flat":
        axis = metadata["axis"]
        return launch.grid[axis] * launch.block[axis]
    return math.prod(launch.grid)


def chunk(metadata: Mapping[str, Any]) -> int:
    """Items that a thread takes at a time: the pool's choice, but not single elements."""
    return -GRAIN if metadata["unit"] == "flat" and metadata["axis"] == 0 else 0


def _general(module: Module, launch: Launch, rows: Sequence[Any]) -> Callable[..., None]:
    """A launcher for all arguments of the right types, also reports and unaligned arrays."""
    from ruda.backends.cpu import reports

    metadata = module.metadata
    items, grain, name = count_items(metadata, launch), chunk(metadata), metadata["name"]
    sites = reports.unpack_sites(metadata["sites"])
    schedule: Any = None
    if "phases" in metadata:
        from ruda.jit import rounds

        schedule = rounds.unpack(metadata["phases"])
    threads = math.prod(launch.grid) * math.prod(launch.block)

    def run(*arguments: Any) -> None:
        block = pack(rows, launch, arguments, name, metadata["parameters"])
        phase = block.size
        kept = [np.empty(threads * size, np.uint8) for size in metadata.get("kept", ())]
        if schedule is not None:
            slots = [w for k in kept for w in (k.ctypes.data, threads, 0)]
            first = [0] * (1 + len(metadata["rounds"]))
            block = np.concatenate([block, np.array([*first, *slots], np.int64)])
        try:
            words = reports.buffer(settings.report_bytes, sites) if sites else None
        except (MemoryError, ValueError):
            raise OutOfMemoryError(
                f"`{name}`: no memory for a report buffer of {settings.report_bytes} bytes: "
                "make the setting report_bytes smaller"
            ) from None
        if words is not None:
            block[cpu_launcher.REPORT] = words.ctypes.data
        numbers: Iterable[tuple[int, list[int]]] = ((0, []),)
        if schedule is not None:
            scalars = known_scalars(metadata, launch, arguments)
            numbers = rounds.phases(schedule, metadata["rounds"], scalars)
        for number, values in numbers:
            if schedule is not None:
                block[phase : phase + 1 + len(values)] = [number, *values]
            workers = cpu_pool.thread_count()
            cpu_pool.run(module.address, block.ctypes.data, items, grain, workers)
        if words is not None and words[0]:
            reports.tell(words, sites, launch, name, module.warned)

    return run


def known_scalars(
    metadata: Mapping[str, Any], launch: Launch, arguments: Sequence[Any]
) -> dict[str, Any]:
    """What a schedule of phases may read, by name."""
    from ruda.dtypes import as_dtype
    from ruda.jit import intrinsics, rounds

    shapes, out = {}, {}
    for value, (kind, *rest) in zip(arguments, metadata["parameters"], strict=True):
        if kind == "array":
            shapes[rest[-1]] = value.shape
        else:
            dtype = {"weak_int": "int64", "weak_float": "float64"}.get(rest[0], rest[0])
            out[rest[-1]] = intrinsics.convert(value, as_dtype(dtype))
    sizes = rounds.launch_scalars(launch.grid, launch.block, launch.shared_bytes, shapes)
    return out | sizes


def suit(arguments: Sequence[Any], rows: Sequence[Any]) -> bool:
    """Whether arguments have the types of the rows, whatever the native code thinks of them."""
    if len(arguments) != len(rows):
        return False
    for value, row in zip(arguments, rows, strict=True):
        if row[0] == "scalar":
            if row[1] == "weak_int" and type(value) is int:
                continue  # `pack` says which number is too large
            if cpu_launcher.mismatch(value, row[:2]) is not None:
                return False
            continue
        _, dtype, ndim, order, written = row
        if type(value) is not np.ndarray or value.ndim != ndim or value.dtype != dtype:
            return False
        if order == "C" and not value.flags.c_contiguous:
            return False
        if written and not value.flags.writeable:
            return False
    return True


def pack(
    rows: Sequence[Any],
    launch: Launch,
    arguments: Sequence[Any],
    name: str,
    parameters: Sequence[Any],
) -> np.ndarray[Any, np.dtype[np.int64]]:
    """The block of words that a kernel reads (see `cpu_launcher`)."""
    for value, row, parameter in zip(arguments, rows, parameters, strict=True):
        if row[0] == "scalar" and len(row) == 4 and not row[2] <= value <= row[3]:
            raise OverflowError(
                f"argument `{parameter[-1]}` of kernel `{name}` is {shown(value)}, "
                f"which does not fit in {parameter[2]} ({row[2]} to {row[3]})"
            )
    words = [*launch.grid, *launch.block, 0, launch.shared_bytes]
    for value, row in zip(arguments, rows, strict=True):
        if row[0] == "array":
            words += [value.ctypes.data, *value.shape, *value.strides]
        else:
            words += cpu_launcher._scalar_words(value, cpu_launcher._kind(row))
    return np.array([w % (1 << 64) for w in words], np.uint64).view(np.int64)


# ---- parameters as JSON --------------------------------------------------------------------------


def describe(function: Function) -> list[list[Any]]:
    """Parameters as JSON: ["array", dtype, ndim, layout, written, name], ["scalar", dtype, name]
    or ["scalar", "weak_int", the narrowest dtype that it is used at, name]."""
    written = {s.array for s in ir.statements(function.body) if isinstance(s, (Store, Atomic))}
    out: list[list[Any]] = []
    for p in function.parameters:
        if isinstance(p, Array):
            out.append(["array", _pack_dtype(p.dtype), p.ndim, p.layout, p in written, p.name])
        elif p.dtype.name == "weak_int":
            out.append(["scalar", "weak_int", _narrowest(function, p), p.name])
        else:
            out.append(["scalar", p.dtype.name, p.name])
    return out


def _narrowest(function: Function, p: Variable) -> str:
    used = [d for v, d in function.fits if v == p]
    return min(used, key=lambda d: d.range[1] - d.range[0]).name if used else "int64"


def layout(parameters: Sequence[Sequence[Any]]) -> list[tuple[Any, ...]]:
    """The rows of `cpu_launcher` for described parameters."""
    from ruda.dtypes import as_dtype

    rows: list[tuple[Any, ...]] = []
    for kind, *rest in parameters:
        if kind == "array":
            dtype, ndim, order, written, _ = rest
            rows.append(("array", _unpack_dtype(dtype), ndim, order, written))
        elif rest[0] == "weak_int":
            low, high = as_dtype(rest[1]).range
            rows.append(("scalar", "weak_int", max(low, -(1 << 63)), min(high, (1 << 63) - 1)))
        else:
            rows.append(("scalar", rest[0]))
    return rows


def _pack_dtype(dtype: Any) -> Any:
    match dtype:
        case RecordType(fields, itemsize):
            return [itemsize, [[name, offset, _pack_dtype(kind)] for name, offset, kind in fields]]
        case FixedArray(element, shape):
            return {"element": _pack_dtype(element), "shape": list(shape)}
    return dtype.name


def _unpack_dtype(packed: Any) -> np.dtype[Any]:
    match packed:
        case str():
            from ruda.dtypes import as_dtype

            return as_dtype(packed).numpy
        case {"element": element, "shape": shape}:
            return np.dtype((_unpack_dtype(element), tuple(shape)))
    itemsize, fields = packed
    return np.dtype(
        {
            "names": [f[0] for f in fields],
            "formats": [_unpack_dtype(f[2]) for f in fields],
            "offsets": [f[1] for f in fields],
            "itemsize": itemsize,
        }
    )


BACKEND = CpuBackend()
