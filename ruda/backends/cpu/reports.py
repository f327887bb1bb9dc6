"""The report buffer of a launch, read by the host: prints are printed, a failed check raises.

Words: 0 the next free word (counted from 3), 1 the words there are behind the first three, 2 the
records that did not fit. A record: its site's number + 1, linear block, linear thread, values.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ruda.backends.base import Launch, Site
from ruda.dtypes import as_dtype
from ruda.errors import (
    CheckError,
    IntegerDivisionError,
    KernelAssertionError,
    LaunchWarning,
    OutOfBoundsError,
    Place,
)

HEAD = 3
HELD = {
    "index": "int64",
    "weak_int": "int64",
    "weak_float": "float64",
    "weak_complex": "complex128",
}
ERRORS: dict[str, type[CheckError]] = {
    "assert": KernelAssertionError, "bounds": OutOfBoundsError, "division": IntegerDivisionError,
}  # fmt: skip


def buffer(nbytes: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """An empty report buffer."""
    words = np.zeros(max(HEAD + 16, nbytes // 8), np.int64)
    words[1] = words.size - HEAD
    return words


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
    at, end = HEAD, HEAD + min(int(words[0]), int(words[1]))
    while at + HEAD <= end and words[at]:
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
        yield Record(site, block, thread, tuple(values))


def tell(words: np.ndarray[Any, Any], sites: Sequence[Site], launch: Launch, kernel: str) -> None:
    """Print what was printed, then raise the first failed check."""
    from ruda.jit.closures import format_value

    failed: Record | None = None
    for r in records(words, sites):
        if r.site.kind == "print":
            sys.stdout.write(_text(r, format_value))
        elif failed is None:
            failed = r
    if words[2]:
        import warnings

        warnings.warn(
            f"kernel `{kernel}`: {int(words[2])} reports did not fit the buffer; "
            "RUDA_REPORT_BYTES makes it larger",
            LaunchWarning,
            stacklevel=4,
        )
    if failed is not None:
        raise _error(failed, launch, kernel, _message(failed, format_value))


def _text(r: Record, format_value: Any) -> str:
    values = iter(r.values)
    return "".join(
        p if isinstance(p, str) else format_value(next(values), p[1]) for p in r.site.parts
    )


def _message(r: Record, format_value: Any) -> str:
    if r.site.kind == "bounds":
        name, part = r.site.parts[:2]
        indices = [int(v) for v in r.values[: len(r.values) // 2]]
        shape = tuple(int(v) for v in r.values[len(r.values) // 2 :])
        axis = next(k for k, i in enumerate(indices) if not 0 <= i < shape[k])
        n = shape[axis]
        return (
            f"`{name}[{', '.join(map(str, indices))}]{part}` is out of bounds: "
            f"index {indices[axis]} on axis {axis}, "
            f"which has {n} {'element' if n == 1 else 'elements'} (shape {shape})"
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


def _three(linear: int, shape: tuple[int, int, int]) -> tuple[int, int, int]:
    x, y, _ = shape
    return linear % x, linear // x % y, linear // (x * y)
