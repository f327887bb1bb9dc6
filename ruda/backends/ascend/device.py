"""The emulations of Ascend chips as devices: `ascend-twin:950` and `ascend-twin:910b`.

The emulation runs the emitted text itself, compiled by the host's C++ compiler (see `twin`). What
it checks is the program, not the chip: nothing here has run on an NPU.

Kernels for the 950 are threads (`emit`); for the 910B they are tiles (`tiling`), and where arrays
of a launch overlap in a way that tiles cannot have, the same kernel element by element.
"""

from __future__ import annotations

import ctypes
import functools
import math
import os
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ruda.backends.ascend import compile as compiler
from ruda.backends.ascend import twin
from ruda.backends.ascend.reports import joined, parted
from ruda.backends.ascend.twin import build
from ruda.backends.base import Binary, DeviceArray, DeviceInfo, HostMemory, Launch, Source
from ruda.errors import (
    DeviceNotFoundError,
    LaunchValueError,
    Place,
    UnsupportedError,
)
from ruda.jit.ir import Array, Function, Variable
from ruda.settings import settings

CHIPS = {
    "950": {"chip": "950", "arch": "dav-3510", "form": "SIMT", "unified_buffer": 216 << 10},
    "910b": {"chip": "910b", "arch": "dav-2201", "form": "vector", "unified_buffer": 188160,
             "cores": 40},
}  # fmt: skip
FORMAT = {"f32": "f", "f64": "d", "c64": "f", "c128": "d", "f16": "f", "bf16": "f"}


def chip_of(device: str) -> str:
    """The chip that a name asks for; the 950 where it names none.

    >>> chip_of("ascend-twin"), chip_of("ascend-twin:910b")
    ('950', '910b')
    """
    _, _, chip = device.partition(":")
    if not chip or chip == "0":
        return "950"
    if chip not in CHIPS:
        raise DeviceNotFoundError(
            f"no device {device!r}: the emulated chips are {', '.join(CHIPS)}"
        )
    return chip


def properties(chip: str) -> dict[str, Any]:
    """What a chip says of itself, with the limits of launches."""
    row = CHIPS[chip]
    return {**row, "max_threads": 1024, "max_shared": row["unified_buffer"]}


class TwinBackend(HostMemory):
    """Backend "ascend-twin"; see `ruda.backends.base.Backend`."""

    name = "ascend-twin"
    cacheable = True

    def devices(self) -> Sequence[DeviceInfo]:
        """The emulated chips; none where there is no C++ compiler (`missing` tells so)."""
        if self.missing() is not None:
            return []
        return [
            DeviceInfo(
                f"ascend-twin:{chip}", f"emulation of an Ascend {chip}", "emulation",
                {**properties(chip), "memory": self.memory_info(self.name)[1]},
            )
            for chip in CHIPS
        ]  # fmt: skip

    def missing(self) -> str | None:
        asked = os.environ.get("CXX")
        if any(map(shutil.which, (asked,) if asked else compiler.COMPILERS)):
            return None
        return "the emulation of Ascend needs a C++ compiler such as g++"

    def target(self, device: str) -> Mapping[str, Any]:
        """The chip; and for the cache the compiler with our headers, where there is one."""
        row = dict(CHIPS[chip_of(device)])
        if self.missing() is None:
            row["code"] = compiler.fingerprint(row["chip"] == "910b")
        row["missing"] = settings.missing
        return row

    def needs_block(self, function: Function) -> bool:
        """The text has the block in `__launch_bounds__`, which decides about registers."""
        return True

    def emit(self, function: Function, target: Mapping[str, Any]) -> Source:
        """IR -> AscendC, pure."""
        return emit_source(function, target)

    def forms(self, function: Function) -> list[str]:
        """What `ruda.explain` tells of each chip."""
        return forms(function)

    def compile(self, source: Source, target: Mapping[str, Any]) -> Binary:
        return Binary(compiler.compile_source(source, str(target["chip"])), describe(source))

    def resolves(self, symbol: str) -> bool:
        return True

    def load(self, binary: Binary, function: Function | None, device: str) -> Module:
        assert function is not None
        vector = self.target(device)["chip"] == "910b"
        runtime = build.runtime() if vector else compiler.runtime()
        library = compiler.open_library(binary.payload)
        library.ruda_launch.argtypes = (ctypes.c_void_p, ctypes.c_void_p)
        return Module(
            function, binary.metadata, library, runtime, self.target(device), self, device
        )

    def launcher(
        self, module: Module, launch: Launch, fallback: Callable[..., Any] | None
    ) -> Callable[..., None]:
        check_launch(module.function.name, module.metadata, launch, module.target)
        vector = module.target["chip"] == "910b"

        def run(*arguments: Any) -> None:
            (execute_tiles if vector else execute)(module, launch, arguments)

        run.is_native = False  # type: ignore[attr-defined]
        return run


FORMS = {
    "S0": "a thread of the kernel is a thread of the chip",
    "S1": "the grid is cut into tiles of the vector unit",
    "S2": "loops of a block, or of a thread, are tiles of the vector unit",
    "S3": "the scalar unit does everything, element by element",
}


def forms(function: Function) -> list[str]:
    """For `ruda.explain`: what a kernel becomes on each chip, and why not something faster."""
    lines = []
    for chip, row in CHIPS.items():
        try:
            source = emit_source(function, row)
            found = source.options
        except UnsupportedError as error:
            lines.append(f"Ascend {chip.upper()}: refused: {error}")
            continue
        form = found.get("form", "S0")
        lines.append(
            f"Ascend {chip.upper()}: form {form}, {FORMS[form]}; {found['unified_buffer']} of "
            f"{row['unified_buffer']} bytes of the unified buffer"
        )
        if form in ("S1", "S2"):
            lines.append(f"    tiles of up to {found['tile']} elements; {moved(found)}")
            lines += [f"    {text}" for text in one_at_a_time(source.text)]
        if form != "S1":
            notes = dict.fromkeys((line, text) for line, text in found.get("notes", ()))
            lines += [f"    line {line}: {text}" if line else f"    {text}" for line, text in notes]
    return lines


def moved(options: Mapping[str, Any]) -> str:
    """How often the copies of tiles go over each array: once is the least."""
    again = "".join(
        f"; `{name}` again in each {loop}" for name, loop in options["repeated"].items()
    )
    return kept_or_not(options) + again


def kept_or_not(options: Mapping[str, Any]) -> str:
    found, lengths, limit = times(options["copies"]), options["row_lengths"], options["row_limit"]
    if not lengths:
        return found
    kept = f"stay in the unified buffer: {times(options['row_copies'])}"
    if not limit:  # they are known to fit
        return f"rows {kept}"
    if options["row_copies"]:
        return f"rows of up to {limit} elements {kept}; of longer rows {found}"
    longest = max(lengths)
    return f"a row has {longest} elements, the unified buffer keeps rows of up to {limit}: {found}"


def one_at_a_time(text: str) -> list[str]:
    """What the scalar unit moves beside the tiles: a tile's figures say nothing of it."""
    arrays = re.findall(r"GlobalTensor<[^>]*> (\w+) =", text)
    ways = {
        "reads": r"\b{0}\.GetValue\(", "writes": r"stage\.store(?:<[^(]*>)?\({0},"
    }  # fmt: skip
    found = {w: [a for a in arrays if re.search(p.format(a), text)] for w, p in ways.items()}
    return [
        f"the scalar unit {way} elements of `{'`, `'.join(names)}` one at a time"
        for way, names in found.items()
        if names
    ]


def times(copies: Mapping[str, Sequence[int]]) -> str:
    parts = [
        f"`{name}` is {verb} {n} times"
        for name, both in copies.items()
        for verb, n in zip(("read", "written"), both, strict=True)
        if n > 1
    ]
    return f"{', '.join(parts)} (the least is once)" if parts else "each element is moved once"


def describe(source: Source) -> dict[str, Any]:
    """What a launch needs to know of a text, for the disk cache."""
    from ruda.backends.cpu.reports import pack_sites

    return {**source.options, "sites": pack_sites(source.sites), "lines": len(source.lines)}


def emit_source(function: Function, target: Mapping[str, Any]) -> Source:
    """The text for a chip."""
    from ruda.backends.ascend.emit import emit, refuse
    from ruda.jit import passes
    from ruda.jit.passes.reports import lower_reports

    if target["chip"] == "910b":
        from ruda.backends.ascend import tiling

        return tiling.emit(function, target, scalar=bool(target.get("scalar")))
    refuse(function)
    reporting, sites = lower_reports(function)
    return emit(passes.lower(reporting, "ascend"), sites, target)


@dataclass(eq=False)
class Module:
    """A loaded kernel, its runtime, and what its words mean."""

    function: Function
    metadata: Mapping[str, Any]
    library: ctypes.CDLL
    runtime: ctypes.CDLL
    target: Mapping[str, Any]
    backend: Any
    device: str

    def __post_init__(self) -> None:
        from ruda.backends.cpu.reports import unpack_sites

        self.warned: set[Any] = set()  # places of notes that were told
        self.sites = unpack_sites(self.metadata["sites"])
        self.constants = {a.name: np.frombuffer(a.data or b"", np.uint8)
                          for a in self.function.arrays if a.space == "const"}  # fmt: skip
        self.scalars = any(isinstance(p, Variable) for p in self.function.parameters)
        self.counts: Mapping[str, int] = {}  # of the last launch, where tiles are counted
        self.slow: Module | None = None

    def element_by_element(self) -> Module:
        """The kernel on the scalar unit, for arguments that overlap."""
        if self.slow is None:
            target = {**self.target, "scalar": True}
            binary = self.backend.compile(emit_source(self.function, target), target)
            self.slow = self.backend.load(binary, self.function, self.device)
            self.slow.target = target
        return self.slow


def check_launch(
    name: str, metadata: Mapping[str, Any], launch: Launch, target: Mapping[str, Any]
) -> None:
    """What no chip of this kind runs, told before anything is started."""
    most, chip = int(target["unified_buffer"]), target["chip"].upper()
    shared = metadata["unified_buffer"] + (launch.shared_bytes if metadata["dynamic"] else 0)
    if shared > most:
        what = "shared memory" if chip == "950" else "the unified buffer"
        raise LaunchValueError(
            f"`{name}` uses {shared} bytes of {what}; an Ascend {chip} has {most}"
        )


# ---- launches ------------------------------------------------------------------------------------


def execute(module: Module, launch: Launch, arguments: Sequence[Any]) -> None:
    """Pack the words of a launch, run it, tell what it reported."""
    from ruda.backends.cpu import reports

    values, scalars = prepared(module, arguments)
    report = reports.buffer(settings.report_bytes) if module.sites else None
    words = pack(module, launch, values, scalars, report)
    if module.library.ruda_launch(words.ctypes.data, None):
        fault = twin.Fault()
        module.runtime.ruda_simt_fault(ctypes.byref(fault))
        raise fault_of(module, fault)
    if report is not None:
        tell(report, module, launch)


def tell(report: Any, module: Module, launch: Launch) -> None:
    """Print what a launch printed; raise its first failed check."""
    from ruda.backends.cpu import reports

    if report[0] or report[2]:
        reports.tell(report, module.sites, launch, module.function.name, module.warned)


def execute_tiles(module: Module, launch: Launch, arguments: Sequence[Any]) -> None:
    """A launch of loops over tiles: the cores are the blocks of the chip."""
    values, scalars = prepared(module, arguments)
    arrays = arrays_of(module, values)
    if overlaps(module, arrays):
        module = module.element_by_element()
    cores = cores_for(module, launch)
    report = parted(settings.report_bytes, cores) if module.sites else None
    words = pack(module, launch, values, scalars, report)
    words[6] = cores
    call = functools.partial(module.library.ruda_launch, words.ctypes.data)
    memory = memory_of(module, arrays)
    if report is not None:
        memory.append(twin.Memory("reports", report.ctypes.data, report.nbytes))
    ran = twin.start(call, memory)
    if ran.faulted:
        raise fault_of(module, ran.fault)
    module.counts = twin.counts_of(ran)
    if report is not None:
        tell(joined(report), module, launch)


def arrays_of(module: Module, values: Sequence[Any]) -> list[tuple[int, Any]]:
    """The arrays among the arguments, each with its number."""
    return [(k, v) for k, v in enumerate(values) if not np.isscalar(v) and hasattr(v, "shape")
            and isinstance(module.function.parameters[k], Array)]  # fmt: skip


def cores_for(module: Module, launch: Launch) -> int:
    """How many cores a kernel of loops is started on; a kernel of threads does not ask."""
    return max(1, min(int(module.target.get("cores", 1)), math.prod(launch.grid)))


def host_span(a: np.ndarray[Any, Any]) -> list[int]:
    """Address, and the first and the one behind the last byte that belong to an array."""
    low, high = np.lib.array_utils.byte_bounds(a)
    start = a.__array_interface__["data"][0]
    return [start, low, low if a.size == 0 else high]


def overlaps(
    module: Module,
    arrays: Sequence[tuple[int, Any]],
    span: Callable[[Any], list[int]] = host_span,
) -> bool:
    """Whether a written array shares memory with another one in a way that tiles cannot have.

    The same array twice is fine where all of a tile is loaded before it is stored.
    """
    if module.metadata["scalar"]:
        return False
    spans = [(k, a, *span(a)) for k, a in arrays]
    for k, a, start, low, high in spans:
        if k not in module.metadata["written"]:
            continue
        for j, b, other, first, last in spans:
            if j == k or low >= last or first >= high:
                continue
            same = start == other and a.shape == b.shape and a.strides == b.strides
            if not (same and module.metadata["alias_safe"]):
                return True
    return False


def memory_of(module: Module, arrays: Sequence[tuple[int, Any]]) -> list[twin.Memory]:
    """The global memory of a launch; arrays that overlap are one piece."""
    names = {k: p.name for k, p in enumerate(module.function.parameters)}
    pieces: list[list[Any]] = []
    written = module.metadata["written"]
    found = [(*host_span(a)[1:], names[k], k in written) for k, a in arrays]
    found += [(*host_span(a)[1:], name, False) for name, a in module.constants.items()]
    for low, high, name, writable in sorted(found):
        if pieces and low < pieces[-1][1]:
            last = pieces[-1]
            last[1], last[3] = max(last[1], high), last[3] or writable
        else:
            pieces.append([low, high, name, writable])
    return [twin.Memory(name, low, high - low, bool(w)) for low, high, name, w in pieces]


def fault_of(module: Module, fault: Any) -> Exception:
    """What the emulation found, at the user's line."""
    # The binary may be from the disk cache, and the kernel have moved in its file since.
    source = emit_source(module.function, module.target)
    places = {}
    if len(source.lines) == module.metadata["lines"]:
        places = {k: Place(source.file, n) for k, n in enumerate(source.lines, 1) if n}
    if fault.rule == b"race":
        fault.message = race_of(fault, source, places).encode()
    error = twin.error_of(fault, places, module.function.place)
    error.add_note(f"in kernel `{module.function.name}`")
    return error


def race_of(fault: Any, source: Source, places: Mapping[int, Place]) -> str:
    """The message of a race, with the names of shared arrays in its line and the other's place."""
    message: str = fault.message.decode()
    shared = re.findall(r"(?:__ubuf__ array<.*?> |RUDA_DYNAMIC\(\w+, )(\w+)", source.text)
    line = source.text.splitlines()[fault.line - 1] if places else ""
    named = " or ".join(f"`{n}`" for n in shared if re.search(rf"\b{n}\b", line))
    if named:
        message = message.replace("of shared memory", f"of {named} in shared memory", 1)
    if other := re.search(r"at line (\d+) of the generated text", message):
        if place := places.get(int(other[1])):
            message = message.replace(other[0], f"{other[0]} ({place})")
    return message


def prepared(module: Module, arguments: Sequence[Any]) -> tuple[list[Any], Mapping[str, Any]]:
    """Checked arguments, those that the host can reach as NumPy arrays; the scalars by name."""
    from ruda.jit.interpret import array_argument, evaluate_prologue

    f = module.function
    values: list[Any] = []
    for p, a in zip(f.parameters, arguments, strict=True):
        a = getattr(a, "__ruda_host__", a)
        if isinstance(p, Array) and not isinstance(a, DeviceArray):
            a = array_argument(f, p, a)
        values.append(a)
    return values, evaluate_prologue(f, values) if module.scalars else {}


def pack(
    module: Module,
    launch: Launch,
    arguments: Sequence[Any],
    scalars: Mapping[str, Any],
    report: Any,
    span: Callable[[Any], list[int]] = host_span,
) -> np.ndarray[Any, np.dtype[np.int64]]:
    """The words of a launch: see `ascend.emit`."""
    words: list[int] = [*launch.grid, *launch.block, 0, launch.shared_bytes]
    for kind, *rest in module.metadata["rows"]:
        match kind:
            case "array":
                words += span(arguments[rest[0]])
            case "constant":
                words += span(module.constants[rest[0]])
            case "reports":
                words += span(report)
            case "extent":
                words.append(arguments[rest[0]].shape[rest[1]])
            case "stride":
                words.append(arguments[rest[0]].strides[rest[1]])
            case "scalar":
                words += scalar_words(scalars[rest[0]], rest[1])
    return np.array([w % (1 << 64) for w in words], np.uint64).view(np.int64)


def scalar_words(value: Any, kind: str) -> list[int]:
    parts = [value.real, value.imag] if kind[0] == "c" else [value]
    if kind not in FORMAT:
        return [int(p) for p in parts]
    dtype, raw = (np.float32, np.uint32) if FORMAT[kind] == "f" else (np.float64, np.uint64)
    return [int(np.array(p, dtype).view(raw)) for p in parts]


BACKEND = TwinBackend()
