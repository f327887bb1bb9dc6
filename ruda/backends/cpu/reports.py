"""The report buffer of a launch, read by the host: prints are printed, a failed check raises.

Words: 0 the next free word (counted from 3), 1 the words there are behind the first three, 2 the
records that did not fit. A record: its site's number + 1, linear block, linear thread, values.

On the CPU a tail follows, and bit 62 of word 1 says so: whether the place at its end is taken, the
number of sites, a word for the kind of each site, and room for one record. There a failure goes
that does not fit, so that prints cannot crowd it out; and a note is written once a launch.
"""

from __future__ import annotations

import struct
import sys
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ruda.backends.base import Launch, Site
from ruda.dtypes import as_dtype
from ruda.errors import (
    BarrierError,
    CheckError,
    IntegerDivisionError,
    KernelAssertionError,
    LaunchWarning,
    OutOfBoundsError,
    Place,
)
from ruda.jit import surprises

HEAD = 3
HELD = {
    "index": "int64",
    "weak_int": "int64",
    "weak_float": "float64",
    "weak_complex": "complex128",
}
ERRORS: dict[str, type[CheckError]] = {
    "assert": KernelAssertionError, "division": IntegerDivisionError,
    "bounds": OutOfBoundsError, "view": OutOfBoundsError, "barrier": BarrierError,
}  # fmt: skip


TAIL = 1 << 62
PRINT, FAILURE, NOTE, TOLD = range(4)  # kinds of sites in the tail; a note that was made is TOLD


def buffer(nbytes: int, sites: Sequence[Site] | None = None) -> np.ndarray[Any, np.dtype[np.int64]]:
    """An empty report buffer; with a tail if it knows its sites."""
    capacity = max(16, nbytes // 8 - HEAD)
    if sites is None:
        words = np.zeros(HEAD + capacity, np.int64)
        words[1] = capacity
        return words
    kinds = [FAILURE if s.kind in ERRORS else NOTE if s.kind == "wrap" else PRINT for s in sites]
    room = max((record_size(s) for s in sites if s.kind in ERRORS), default=0)
    tail = HEAD + capacity
    words = np.zeros(tail + 2 + len(kinds) + room, np.int64)
    words[1] = capacity | TAIL
    words[tail + 1] = len(kinds)
    words[tail + 2 : tail + 2 + len(kinds)] = kinds
    return words


def record_size(site: Site) -> int:
    """Words of a site's record."""
    bits = (as_dtype(HELD.get(name, name)).bits for name in value_names(site))
    return HEAD + sum(2 if n == 128 else 1 for n in bits)


@dataclass(frozen=True, slots=True)
class Record:
    """One report of one thread."""

    site: Site
    block: int
    thread: int
    values: tuple[Any, ...]


def pack_sites(sites: Sequence[Site]) -> list[Any]:
    """Sites as JSON."""
    return [[s.kind, _pack_place(s.place), [_plain(p) for p in s.parts]] for s in sites]


def unpack_sites(rows: Sequence[Any]) -> list[Site]:
    return [
        Site(kind, _unpack_place(place), tuple(_pair(p) for p in parts))
        for kind, place, parts in rows
    ]


def _pair(part: Any) -> Any:
    return tuple(part) if isinstance(part, list) else part


def _plain(part: Any) -> Any:
    return list(part) if isinstance(part, tuple) else part


def _pack_place(place: Place) -> list[Any]:
    return [*place[:6], [_pack_place(c) for c in place.calls]]


def _unpack_place(row: Sequence[Any]) -> Place:
    file, line, column, end_line, end_column, function, calls = row
    inner = tuple(_unpack_place(c) for c in calls)
    return Place(file, line, column, end_line, end_column, function, inner)


def value_names(site: Site) -> list[str]:
    """The dtypes of a record's values."""
    return [p[0] for p in site.parts if isinstance(p, tuple)]


def records(words: np.ndarray[Any, Any], sites: Sequence[Site]) -> list[Record]:
    """What a launch has reported, by block, thread and order."""
    found = list(_read(words, sites))
    return sorted(found, key=lambda r: (r.block, r.thread))  # stable: a thread's order is kept


def _read(words: np.ndarray[Any, Any], sites: Sequence[Site]) -> Iterator[Record]:
    tail = HEAD + (int(words[1]) & ~TAIL)
    at, end = HEAD, min(HEAD + int(words[0]), tail)
    while at + HEAD <= end and words[at]:
        record = _record(words, at, sites)
        at += record_size(record.site)
        yield record
    if int(words[1]) & TAIL and words[tail]:
        yield _record(words, tail + 2 + int(words[tail + 1]), sites)


def _record(words: np.ndarray[Any, Any], at: int, sites: Sequence[Site]) -> Record:
    site = sites[int(words[at]) - 1]
    block, thread = int(words[at + 1]), int(words[at + 2])
    at += HEAD
    values = []
    for name in value_names(site):
        dtype = as_dtype(HELD.get(name, name))
        size = 2 if dtype.bits == 128 else 1
        raw = struct.pack(f"<{size}q", *map(int, words[at : at + size]))
        values.append(np.frombuffer(raw, dtype.numpy, 1)[0])
        at += size
    return Record(site, block, thread, tuple(values))


def tell(
    words: np.ndarray[Any, Any],
    sites: Sequence[Site],
    launch: Launch,
    kernel: str,
    warned: set[Place],
) -> None:
    """Print what was printed, then raise the first failed check, or warn of each place once."""
    from ruda.jit.closures import format_value

    failed: Record | None = None
    notes: dict[Place, Record] = {}
    for r in records(words, sites):
        if r.site.kind == "print":
            sys.stdout.write(_text(r, format_value))
        elif r.site.kind == "wrap":
            if r.values[0] < 0:  # beyond the end, the access itself reports
                notes.setdefault(r.site.place, r)
        elif failed is None:
            failed = r
    if words[2]:
        unknown = failed is None and any(s.kind in ERRORS for s in sites)
        also = "" if int(words[1]) & TAIL or not unknown else ", perhaps failed checks among them"
        warnings.warn(
            f"kernel `{kernel}`: {int(words[2])} reports did not fit the buffer{also}; "
            "RUDA_REPORT_BYTES makes it larger",
            LaunchWarning,
            stacklevel=4,
        )
    if failed is not None:
        raise _error(failed, launch, kernel, _message(failed, format_value))
    for place, r in notes.items():
        if place not in warned:
            warned.add(place)
            message = surprises.wraps(int(r.values[0]), str(r.site.parts[0]))
            warnings.warn_explicit(
                f"kernel `{kernel}`: {message} (first in {_thread(r, launch)})",
                LaunchWarning,
                place.file,
                place.line,
            )


def _text(r: Record, format_value: Any) -> str:
    values = iter(r.values)
    return "".join(
        p if isinstance(p, str) else format_value(next(values), p[1]) for p in r.site.parts
    )


def _message(r: Record, format_value: Any) -> str:
    values = [int(v) for v in r.values] if r.site.kind in ("bounds", "view") else []
    match r.site.kind:
        case "bounds":
            ndim = len(values) // 2
            indices, shape = values[:ndim], tuple(values[ndim:])
            name, part, *words = r.site.parts
            axis = next(k for k, i in enumerate(indices) if not 0 <= i < shape[k])
            forms = [form[1] for form in words[:ndim]]
            shown = list(map(surprises.written, indices, shape, forms))
            element = surprises.element(str(name), shown, str(part))
            return surprises.outside(element, shown[axis], axis, shape)
        case "view":
            i, extent = values
            written = surprises.written(i, extent, str(r.site.parts[0]))
            return surprises.outside_view(written, extent)
        case "barrier":
            return (
                f"divergent barrier: this thread comes to line {r.site.place.line}, but was not at "
                f"the barrier in line {r.site.parts[int(r.values[0])]}, where others of its block "
                "met; every thread of the block must come to the same barriers"
            )
    text = _text(r, format_value)
    if r.site.kind == "assert":
        return f"assertion failed{': ' + text if text else ''}"
    return text


def _error(r: Record, launch: Launch, kernel: str, message: str) -> CheckError:
    block, thread = _three(r.block, launch.grid), _three(r.thread, launch.block)
    error = ERRORS[r.site.kind](
        f"{message}\n  in kernel `{kernel}`, block {block}, thread {thread}", r.site.place
    )
    for call in reversed(r.site.place.calls):
        error.add_note(f"called from `{call.function}` at {call.file}, line {call.line}")
    return error


def _thread(r: Record, launch: Launch) -> str:
    return f"thread {_three(r.thread, launch.block)} of block {_three(r.block, launch.grid)}"


def _three(linear: int, shape: tuple[int, int, int]) -> tuple[int, int, int]:
    x, y, _ = shape
    return linear % x, linear // x % y, linear // (x * y)
