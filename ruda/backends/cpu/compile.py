"""Emitted Python text -> object code -> a callable address.

`compile_source` needs numba; `load` needs llvmlite alone, so that a kernel from the disk cache
starts without importing numba. The text is compiled under the user's file name with the user's
line numbers.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ruda.backends.base import Binary, Source
from ruda.errors import DeviceError

# What object code may call: the C library's memory functions, and its mathematics.
MEMORY = ("free", "malloc", "memcpy", "memmove", "memset", "_GLOBAL_OFFSET_TABLE_")
MATHEMATICS = (
    "cos", "exp", "exp2", "fmod", "lgamma", "log", "pow", "remainder", "sin", "sincos", "tan",
    "tgamma",
)  # fmt: skip
ALLOWED = frozenset((*MEMORY, *MATHEMATICS, *(f"{name}f" for name in MATHEMATICS)))


def python_function(source: Source, lookup: Any) -> Any:
    """The function of the emitted text. `lookup(name)` gives what a global name stands for."""
    tree = ast.parse(source.text)
    for node in ast.walk(tree):
        for attribute in ("lineno", "end_lineno"):
            line = getattr(node, attribute, None)
            if line is not None and line <= len(source.lines):
                setattr(node, attribute, source.lines[line - 1] or 1)
        if hasattr(node, "end_lineno"):
            node.end_lineno = max(node.lineno, node.end_lineno or 0)  # type: ignore[attr-defined]
    scope: dict[str, Any] = {}
    names = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name)}
    for name in sorted(names):
        value = lookup(name)
        if value is not None:
            scope[name] = value
    exec(compile(tree, source.file or "<ruda>", "exec"), scope)
    return scope[source.entry]


def compile_with_numba(source: Source) -> Any:
    """numba's result for a kernel's text."""
    from ruda.backends.cpu import target

    constants = source.options.get("constants", ())

    def lookup(name: str) -> Any:
        if name in ("inf", "nan"):
            return float(name)
        kind, _, number = name.rpartition("_")
        if kind == "constant" and number.isdigit():
            return target.constant(constants[int(number)])
        return target.function(name)

    # numba's lock: our contexts are made, added to and read by one thread at a time.
    with target.lock:
        function = python_function(source, lookup)
        return target.compile_function(function, tuple(source.options.get("flags", ())))


def compile_source(source: Source) -> Binary:
    """Object code of a kernel, its symbol, and the symbols that it takes from elsewhere."""
    result = compile_with_numba(source)
    payload = result.library._get_compiled_object()
    kept = {k: v for k, v in source.options.items() if k not in ("flags", "constants")}
    metadata = {"symbol": result.fndesc.llvm_func_name, **kept}
    return Binary(payload, metadata, undefined_symbols(payload))


def assembly(source: Source) -> str:
    """The machine code of a kernel as text."""
    return str(compile_with_numba(source).library.get_asm_str())


def undefined_symbols(payload: bytes) -> tuple[str, ...]:
    """The external symbols of an ELF object file (little endian, 64 bits); () for other formats."""
    if payload[:4] != b"\x7fELF":
        return ()

    def word(at: int, size: int) -> int:
        return int.from_bytes(payload[at : at + size], "little")

    table, entry, count = word(0x28, 8), word(0x3A, 2), word(0x3C, 2)
    sections = [table + k * entry for k in range(count)]
    names: set[str] = set()
    for section in sections:
        if word(section + 4, 4) != 2:  # SHT_SYMTAB
            continue
        offset, size = word(section + 0x18, 8), word(section + 0x20, 8)
        strings = word(sections[word(section + 0x28, 4)] + 0x18, 8)
        for symbol in range(offset + 24, offset + size, 24):
            if word(symbol + 6, 2) == 0:  # SHN_UNDEF
                start = strings + word(symbol, 4)
                names.add(payload[start : payload.index(b"\0", start)].decode())
    return tuple(sorted(names - {""}))


@dataclass(frozen=True, slots=True)
class Module:
    """A loaded kernel: the address of `i32 body(i8**, i8**, i64 args, i64 lo, i64 hi)`."""

    address: int
    metadata: Mapping[str, Any]
    engine: Any  # keeps the code alive
    warned: set[Any] = field(default_factory=set)  # places of notes that were told


def resolves(symbol: str) -> bool:
    """Whether a kernel may refer to a symbol of this process."""
    import llvmlite.binding as llvm

    return symbol in ALLOWED and llvm.address_of_symbol(symbol) is not None


def load(binary: Binary) -> Module:
    """Load object code with llvmlite."""
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    for symbol in binary.symbols:
        if not resolves(symbol):
            raise DeviceError(f"the kernel needs the function {symbol!r}, which this process lacks")
    machine = llvm.Target.from_default_triple().create_target_machine(jit=True)
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine)
    engine.add_object_file(llvm.ObjectFileRef.from_data(binary.payload))
    engine.finalize_object()
    address = engine.get_function_address(binary.metadata["symbol"])
    return Module(address, binary.metadata, engine)
