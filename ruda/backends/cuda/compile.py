"""Emitted Python text -> NVVM IR -> PTX -> a cubin, without a GPU and without programs on PATH.

NVVM speaks the LLVM dialect of version 7: what newer LLVM has and it has not is rewritten in the
text (`legalise`). nvJitLink's library makes the cubin; PTX is never handed to the driver, which may
be older than the compiler. Libraries come from the wheels (or a toolkit) that cuda-bindings finds.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ruda.backends.base import Binary, Source
from ruda.errors import DeviceError

# ---- LLVM IR for NVVM ----------------------------------------------------------------------------

_RENAMED = {
    **{f"llvm.{n}.f{bits}": f"__nv_{n}{'f' * (bits == 32)}"
       for n in ("fabs", "floor", "ceil", "trunc", "rint", "copysign", "sqrt", "fma")
       for bits in (32, 64)},
    **{f"llvm.ldexp.f{bits}.i32": f"__nv_ldexp{'f' * (bits == 32)}" for bits in (32, 64)},
    **{f"{n}{'f' * (bits == 32)}": f"__nv_{n}{'f' * (bits == 32)}"
       for n in ("fmod", "remainder", "sin", "cos", "tan", "tgamma", "lgamma")
       for bits in (32, 64)},
}  # fmt: skip
_SATURATING = re.compile(r"llvm\.fpto([su])i\.sat\.i(\d+)\.f(\d+)")


def _conversion(sign: str, width: int, source: int) -> str:
    """A function from float to integer that saturates; NaN gives 0."""
    real, register = {32: ("float", "f"), 64: ("double", "d")}[source]
    held = max(width, 32)
    kind, to = f"i{held}", {32: "r", 64: "l"}[held]
    low, high = (
        (-(1 << (width - 1)), (1 << (width - 1)) - 1) if sign == "s" else (0, (1 << width) - 1)
    )
    signed = "s" if sign == "s" or width < 32 else "u"
    lines = [
        f"define internal i{width} @ruda.{sign}{width}.from.f{source}({real} %x) alwaysinline {{",
        f'  %a = call {kind} asm "cvt.rzi.{signed}{held}.f{source} $0, $1;", "={to},{register}"'
        f"({real} %x)",
        f"  %nan = fcmp uno {real} %x, %x",
        f"  %b = select i1 %nan, {kind} 0, {kind} %a",
    ]
    if width < 32:
        lines += [
            f"  %under = icmp slt {kind} %b, {low}",
            f"  %c = select i1 %under, {kind} {low}, {kind} %b",
            f"  %over = icmp sgt {kind} %c, {high}",
            f"  %d = select i1 %over, {kind} {high}, {kind} %c",
            f"  %e = trunc {kind} %d to i{width}",
            f"  ret i{width} %e",
        ]
    else:
        lines.append(f"  ret {kind} %b")
    return "\n".join([*lines, "}"])


def legalise(text: str) -> str:
    """LLVM IR as llvmlite writes it, in the dialect of NVVM."""
    text = re.sub(r"= fneg *(float|double) (.*)", r"= fsub \1 -0.0, \2", text)
    text = re.sub(r'@"([\w.]+)"', lambda m: f'@"{_RENAMED.get(m[1], m[1])}"', text)
    text = re.sub(r" nounwind willreturn memory\(none\)| willreturn| memory\(none\)", "", text)
    found = sorted(set(_SATURATING.findall(text)))
    text = re.sub(r'declare \S+ @"llvm\.fpto[su]i\.sat[^\n]*\n', "", text)
    text = _SATURATING.sub(r"ruda.\1\2.from.f\3", text)
    names: set[str] = set()
    lines = []
    for line in text.split("\n"):  # two names of one function may have become one
        if line.startswith("declare"):
            name = re.search(r'@"[^"]*"', line)
            if name is not None and name[0] in names:
                continue
            names |= {name[0]} if name is not None else set()
        lines.append(line)
    return "\n".join([*lines, *(_conversion(s, int(w), int(f)) for s, w, f in found)])


def kernel_module(
    module: Any, symbol: str, entry: str, version: tuple[int, ...], max_registers: int | None = None
) -> str:
    """The module's text with a kernel `entry` around the function that numba made."""
    from llvmlite import ir

    inner = module.globals[symbol]
    inner.linkage = "internal"
    inner.attributes.add("alwaysinline")
    inner.attributes.discard("noinline")
    slot_type, *kinds = (a.type for a in inner.args)
    kernel = ir.Function(module, ir.FunctionType(ir.VoidType(), kinds), entry)
    for old, new in zip(inner.args[1:], kernel.args, strict=True):
        new.name = f"p.{old.name}"
    builder = ir.IRBuilder(kernel.append_basic_block("entry"))
    builder.call(inner, [builder.alloca(slot_type.pointee), *kernel.args])
    builder.ret_void()
    i32 = ir.IntType(32)
    marked = module.add_metadata([kernel, ir.MetaDataString(module, "kernel"), i32(1)])
    module.add_named_metadata("nvvm.annotations", marked)
    if max_registers is not None:
        row = [kernel, ir.MetaDataString(module, "maxnreg"), i32(max_registers)]
        module.add_named_metadata("nvvm.annotations", module.add_metadata(row))
    module.add_named_metadata("nvvmir.version", module.add_metadata([i32(v) for v in version]))
    return legalise(str(module))


# ---- NVVM and nvJitLink --------------------------------------------------------------------------


def _library(name: str) -> Any:
    """A module of cuda-bindings; DeviceError that says what to install."""
    import importlib

    try:
        found = importlib.import_module(f"cuda.bindings.{name}")
        found.version()
    except Exception as error:
        raise DeviceError(
            f"to compile for CUDA, ruda needs cuda-bindings and the library {name}: "
            f'`pip install "ruda[cuda]"` ({type(error).__name__}: {error})'
        ) from None
    return found


@functools.cache
def libdevice() -> bytes:
    """NVIDIA's library of functions, as bitcode."""
    from cuda import pathfinder

    find = getattr(pathfinder, "find_bitcode_lib", None)  # not in old versions
    try:
        path = find("device") if find is not None else None
    except Exception:  # named differently, or not looked for in a toolkit's folder
        path = None
    if path is None:
        library = pathfinder.load_nvidia_dynamic_lib("nvvm").abs_path
        assert library is not None
        above = Path(library).resolve().parents
        found = [p / "libdevice" / "libdevice.10.bc" for p in above[:4]]
        found += [p / "nvvm" / "libdevice" / "libdevice.10.bc" for p in above[:4]]
        path = next((p for p in found if p.is_file()), None)
    if path is None:
        raise DeviceError("libdevice.10.bc is missing: `pip install nvidia-nvvm`")
    return Path(path).read_bytes()


def ptx(text: str, architecture: str, fastmath: bool) -> str:
    """NVVM IR -> PTX. `architecture` is such as "90a"."""
    nvvm = _library("nvvm")
    # Sums and products are fused where an instruction says so ("contract"), nowhere else.
    options = [f"-arch=compute_{architecture}", "-opt=3", "-fma=0"]
    if fastmath:
        options += ["-ftz=1", "-prec-div=0", "-prec-sqrt=0"]
    program = nvvm.create_program()
    try:
        data, library = text.encode(), libdevice()
        nvvm.add_module_to_program(program, data, len(data), "kernel")
        try:
            nvvm.verify_program(program, len(options), options)
            nvvm.lazy_add_module_to_program(program, library, len(library), "libdevice")
            nvvm.compile_program(program, len(options), options)
        except nvvm.nvvmError as error:
            log = bytearray(nvvm.get_program_log_size(program))
            nvvm.get_program_log(program, log)
            raise AssertionError(f"NVVM: {error}: {_text(log)}") from None
        out = bytearray(nvvm.get_compiled_result_size(program))
        nvvm.get_compiled_result(program, out)
        return _text(out)
    finally:
        nvvm.destroy_program(program)


def cubin(ptx_text: str, architecture: str) -> tuple[bytes, str]:
    """PTX -> (machine code, what ptxas says about it)."""
    linker = _library("nvjitlink")
    options = [f"-arch=sm_{architecture}", "-O3", "-Xptxas=-v"]
    handle = linker.create(len(options), options)
    try:
        data = ptx_text.encode()
        try:
            linker.add_data(handle, linker.InputType.PTX, data, len(data), "kernel")
            linker.complete(handle)
        except linker.nvJitLinkError as error:
            log = bytearray(linker.get_error_log_size(handle))
            linker.get_error_log(handle, log)
            raise _resources(_text(log)) or AssertionError(
                f"nvJitLink: {error}: {_text(log)}"
            ) from None
        out = bytearray(linker.get_linked_cubin_size(handle))
        linker.get_linked_cubin(handle, out)
        log = bytearray(linker.get_info_log_size(handle))
        linker.get_info_log(handle, log)
        return bytes(out), _text(log)
    finally:
        linker.destroy(handle)


def _text(data: bytearray) -> str:
    return data.decode(errors="replace").rstrip("\0")


def _resources(log: str) -> DeviceError | None:
    """The error for what the chip has too little of."""
    found = re.search(r"uses too much shared data \((0x\w+) bytes, (0x\w+) max\)", log)
    if found is None:
        return None
    asked, there = (int(n, 16) for n in found.groups())
    return DeviceError(
        f"the kernel's shared arrays take {asked} bytes; a block can have {there}. "
        "Dynamic shared memory (`shared.array(0, dtype)` and bytes in the launch) may be larger"
    )


def attributes(log: str) -> dict[str, int]:
    """Registers, stack and spills from ptxas's words.

    >>> attributes("0 bytes stack frame, 4 bytes spill stores, Used 16 registers")
    {'registers': 16, 'stack': 0, 'spill_stores': 4}
    """
    patterns = {
        "registers": r"Used (\d+) registers",
        "stack": r"(\d+) bytes stack frame",
        "spill_stores": r"(\d+) bytes spill stores",
        "spill_loads": r"(\d+) bytes spill loads",
    }
    found = {name: re.search(pattern, log) for name, pattern in patterns.items()}
    return {name: int(m[1]) for name, m in found.items() if m is not None}


# ---- all of it -----------------------------------------------------------------------------------


def source_ptx(source: Source, target: Mapping[str, Any]) -> str:
    """The PTX of emitted text."""
    from ruda.backends.cpu.compile import python_function
    from ruda.backends.cuda import target as numba_target

    constants = source.options["constants"]

    def lookup(name: str) -> Any:
        if name in ("inf", "nan"):
            return float(name)
        kind, _, number = name.rpartition("_")
        if kind == "constant" and number.isdigit():
            return numba_target.constant(constants[int(number)])
        return numba_target.function(name)

    flags = tuple(source.options["flags"])
    version = _library("nvvm").ir_version()
    with numba_target.LOCK:
        function = python_function(source, lookup)
        module, symbol = numba_target.lower(function, source.options["kinds"], flags)
        text = kernel_module(
            module, symbol, source.options["symbol"], version, source.options["max_registers"]
        )
    return ptx(text, str(target["architecture"]), "afn" in flags)


def compile_source(source: Source, target: Mapping[str, Any]) -> Binary:
    """The cubin of emitted text."""
    payload, log = cubin(source_ptx(source, target), str(target["architecture"]))
    kept = (
        "parameters", "symbol", "sites", "name", "cooperative", "written", "lanes", "narrow",
        "apart", "phases",
    )  # fmt: skip
    metadata = {name: source.options[name] for name in kept} | {"attributes": attributes(log)}
    return Binary(payload, metadata)


def assembly(source: Source, target: Mapping[str, Any]) -> str:
    """PTX, and the machine code behind it where its disassembler is installed."""
    text = source_ptx(source, target)
    tool = disassembler()
    if tool is None:
        return text
    payload, _ = cubin(text, str(target["architecture"]))
    return f"{text}\n{sass(payload, tool)}"


def disassembler() -> str | None:
    """The path of nvdisasm, from its wheel or a toolkit; None if it is not there."""
    import shutil
    import sysconfig

    wheels = Path(sysconfig.get_paths()["purelib"]) / "nvidia"
    found = sorted(wheels.glob("cu*/bin/nvdisasm")) + sorted(
        wheels.glob("cuda_nvdisasm/bin/nvdisasm")
    )
    return str(found[-1]) if found else shutil.which("nvdisasm")


def sass(payload: bytes, tool: str) -> str:
    """A cubin as text."""
    import subprocess
    import tempfile

    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(payload)
        file.flush()
        done = subprocess.run(
            [tool, "-c", file.name], capture_output=True, text=True, check=False, timeout=60
        )
    if done.returncode:
        raise DeviceError(f"nvdisasm: {done.stderr.strip()}")
    return done.stdout
