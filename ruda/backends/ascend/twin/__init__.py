"""Run AscendC text on the host, strictly: what a chip would compute wrongly or hang on is an error.

`load(text)` compiles and loads a text; `launch` calls one of its launchers. A launcher has one form
on the twin and on a device, and stands in the generated text:

    extern "C" int ruda_launch_saxpy(uint32_t blocks, void* stream, GM_ADDR x, ..., uint32_t n) {
    #ifdef RUDA_TWIN
        return twin::launch_vector(stream, blocks, [=] { saxpy(x, ..., n); });
    #else
        saxpy<<<blocks, nullptr, stream>>>(x, ..., n);
        return 0;
    #endif
    }

Nothing here has run on an NPU: the twin checks programs by the published rules of the chips.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ruda.backends.ascend.twin import build
from ruda.errors import (
    NOWHERE,
    BarrierError,
    CheckError,
    DataRaceError,
    KernelAssertionError,
    LaunchValueError,
    OutOfBoundsError,
    Place,
    UndefinedReadError,
)  # fmt: skip

# The rules that the runtime names in `fail`, and the error that breaking each becomes.
RULES: dict[str, type[Exception]] = {
    "alignment": CheckError,  # operands of vector instructions and copies begin at 32 bytes
    "assert": KernelAssertionError,
    "atomic": CheckError,  # the mode of accumulating copies: its dtype, and off at the end
    "barrier": BarrierError,
    "buffer-bounds": OutOfBoundsError,  # an operand lies in its own buffer
    "cache": DataRaceError,  # scalar stores are written back, and a line has one block
    "capacity": CheckError,  # of the unified buffer; numbers of buffers
    "compare-size": CheckError,  # comparisons take multiples of 256 bytes
    "dtype": CheckError,
    "flag": BarrierError,  # each SetFlag has its WaitFlag
    "global-bounds": OutOfBoundsError,  # an access lies in the array that its pointer came from
    "hazard": DataRaceError,  # conflicting accesses of two pipes are ordered
    "launch": LaunchValueError,
    "mode": CheckError,  # of a comparison, selection, cast or write-back
    "overlap": CheckError,  # of destination and source, in part
    "position": CheckError,  # copies go to and from VECIN and VECOUT
    "queue": BarrierError,  # allocate, enqueue, dequeue, free
    "race": DataRaceError,
    "range": CheckError,  # of a parameter
    "read-only": CheckError,
    "stale-cache": DataRaceError,  # the scalar unit reads what a copy wrote behind its cache
    "twin": CheckError,
    "undefined": UndefinedReadError,  # what is read was written
    "unsupported": CheckError,
}


class _Range(ctypes.Structure):
    _fields_ = (
        ("base", ctypes.c_uint64), ("bytes", ctypes.c_uint64), ("name", ctypes.c_char_p),
        ("writable", ctypes.c_uint32), ("reserved", ctypes.c_uint32),
    )  # fmt: skip


class Fault(ctypes.Structure):
    _fields_ = (
        ("rule", ctypes.c_char * 32), ("api", ctypes.c_char * 48), ("message", ctypes.c_char * 400),
        ("line", ctypes.c_uint32), ("block", ctypes.c_uint32 * 3), ("thread", ctypes.c_int32 * 3),
    )  # fmt: skip


COUNTS = (
    "vector_instructions", "copies_in", "copies_out", "bytes_in", "bytes_out", "scalar_reads",
    "scalar_writes", "global_reads", "global_writes", "barriers", "flags",
)  # fmt: skip


class _Run(ctypes.Structure):
    _fields_ = (
        ("ranges", ctypes.POINTER(_Range)), ("range_count", ctypes.c_uint32),
        ("workers", ctypes.c_uint32), ("seed", ctypes.c_uint64),
        ("counts", ctypes.c_uint64 * len(COUNTS)), ("faulted", ctypes.c_uint32), ("fault", Fault),
    )  # fmt: skip


class Memory(NamedTuple):
    """A piece of global memory that a launch may touch."""

    name: str
    address: int
    nbytes: int
    writable: bool = True


@dataclass(frozen=True, slots=True)
class Library:
    """A loaded kernel text. `places[k]` is the user's place that line k of the text comes from."""

    functions: ctypes.CDLL
    places: Mapping[int, Place] = field(default_factory=dict)


def load(source: str | bytes, places: Mapping[int, Place] | None = None) -> Library:
    """Compile and load a text, or load what `build.compile_text` made of one."""
    build.runtime()
    if isinstance(source, str):
        places = build.places(source)[1]
        source = build.compile_text(source)
    return Library(build.open_library(source), places or {})


def launch(
    library: Library,
    launcher: str,
    blocks: int,
    arguments: Sequence[Any],
    memory: Iterable[Memory],
    *,
    seed: int = 0,
    workers: int = 0,
) -> dict[str, int]:
    """Run a launcher; the counts of instructions, copies and bytes. Arguments are ctypes values.

    A fault raises the error that RULES names. It ends this launch alone.
    """
    function = getattr(library.functions, launcher)
    run = start(
        lambda stream: function(ctypes.c_uint32(blocks), stream, *arguments),
        memory, seed=seed, workers=workers,
    )  # fmt: skip
    if run.faulted:
        raise error_of(run.fault, library.places)
    return counts_of(run)


def start(
    call: Callable[[Any], Any], memory: Iterable[Memory], *, seed: int = 0, workers: int = 0
) -> Any:
    """Call a launcher with what the twin takes for its stream; what came of it."""
    ranges = [_Range(m.address, m.nbytes, m.name.encode(), m.writable, 0) for m in memory]
    run = _Run((_Range * len(ranges))(*ranges), len(ranges), workers, seed)
    call(ctypes.byref(run))
    return run


def counts_of(run: Any) -> dict[str, int]:
    """The counts of instructions, copies and bytes."""
    return dict(zip(COUNTS, run.counts, strict=True))


def error_of(fault: Any, places: Mapping[int, Place], otherwise: Place = NOWHERE) -> Exception:
    """The exception for a fault, with the API call, the generated line and the user's."""
    rule, api = fault.rule.decode(), fault.api.decode()
    where = f"block {fault.block[0]}"
    if fault.thread[0] >= 0:
        where = f"block {tuple(fault.block)}, thread {tuple(fault.thread)}"
    message = fault.message.decode(errors="replace")
    text = f"{api}: {message}" if api else message
    text += f" [{rule}] ({where})"
    if fault.line:
        text += f"\n  at line {fault.line} of the generated text"
    kind = RULES[rule]
    place = places.get(fault.line, otherwise)
    return kind(text, place) if issubclass(kind, CheckError) else kind(text)
