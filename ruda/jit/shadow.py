"""What `sim` knows about memory beyond its bytes: which are defined, and who touched them last.

Two accesses of one element race if different threads make them, at least one writes, not both
are atomic, and nothing orders them: a barrier of their block (or warp, or grid), or a fence and an
atomic, followed by the other thread's atomic on the same element. In which order `sim` runs them
does not matter: what counts is what a thread *knows* to have happened, as with vector clocks.

Memory is told apart by address, so that aliasing arguments are one memory, in units that
divide every access of the launch: with only float32 arrays, a unit is four bytes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ruda.errors import DataRaceError, Place, UndefinedReadError
from ruda.jit import surprises
from ruda.jit.ir import Array, Field
from ruda.jit.schedule import Record, Thread, fail, join, knows

_HINT = {"shared": " (or is a barrier missing after the write?)", "local": ""}


@dataclass(frozen=True, slots=True)
class Access:
    """A load, store or atomic of the kernel's text."""

    verb: str  # "reads", "writes" or "updates" (atomically)
    array: Array
    field: Field | None
    place: Place

    def element(self, indices: Iterable[int]) -> str:
        """The element as a user would write it."""
        field = "" if self.field is None else f".{self.field.name or self.field.offset}"
        return surprises.element(self.array.name, indices, field)


class Cell:
    """The history of one unit of memory, as far as it can still race."""

    __slots__ = ("atomics", "reads", "released", "write", "writer")

    def __init__(self) -> None:
        self.write: Record | None = None
        # None instead of empty: a launch may have a million cells.
        self.reads: dict[Thread, Record] | None = None
        self.atomics: dict[Thread, Record] | None = None
        self.released: dict[Any, int] | None = None  # what fenced atomics here have published
        self.writer: Thread | None = None  # the last one, for `compare`


class Memory:
    """One address space: that of the caller's arrays, or one shared or local buffer.

    `defined` has one flag a byte (None: all are defined); `cells` is None where nothing can race.
    """

    __slots__ = ("buffer", "cells", "defined", "unit")

    def __init__(self, unit: int, races: bool, size: int | None) -> None:
        self.unit = unit
        self.buffer: np.ndarray[Any, Any] | None = None
        self.cells: dict[int, Cell] | None = {} if races else None
        self.defined: bytearray | None = None if size is None else bytearray(size)

    def writer(self, address: int) -> Thread | None:
        """The thread that wrote or updated an address last, as far as writes are watched."""
        cell = (self.cells or {}).get(address // self.unit)
        return None if cell is None else cell.writer

    def barrier(self) -> None:
        """Everything so far is known to every thread that can come here."""
        for cell in (self.cells or {}).values():
            cell.write = cell.reads = cell.atomics = None


class View:
    """An array, or one field of a record array, as a launch (a block, a thread) sees it."""

    __slots__ = ("address", "data", "extents", "memory", "shape", "size", "steps", "strides")

    def __init__(self, data: np.ndarray[Any, Any], address: int, memory: Memory | None) -> None:
        self.data = data
        self.shape = data.shape
        self.steps = data.strides  # in bytes
        self.extents = tuple(map(np.int64, data.shape))
        self.strides = tuple(map(np.int64, data.strides))
        self.size = data.dtype.itemsize
        self.address = address
        self.memory = memory

    def offset(self, indices: tuple[int, ...]) -> int:
        """The address of an element."""
        address = self.address
        for i, step in zip(indices, self.steps, strict=True):
            address += i * step
        return address


def field_view(data: np.ndarray[Any, Any], field: Field) -> np.ndarray[Any, Any]:
    """One field of each element, by byte offset; the memory is that of `data`."""
    layout = {
        "names": ["field"],
        "formats": [field.dtype.numpy],
        "offsets": [field.offset],
        "itemsize": data.dtype.itemsize,
    }
    found: np.ndarray[Any, Any] = data.view(np.dtype(layout))["field"]  # type: ignore[call-overload]
    return found


def poison(view: View) -> None:
    """Make a buffer undefined (again)."""
    memory = view.memory
    assert memory is not None and memory.buffer is not None
    memory.buffer[:] = 0xFF
    if memory.defined is not None:
        memory.defined[:] = bytes(len(memory.defined))


def define(view: View, indices: tuple[int, ...]) -> None:
    """An element counts as written from now on."""
    if view.memory is not None and view.memory.defined is not None:
        offset = view.offset(indices)
        view.memory.defined[offset : offset + view.size] = b"\1" * view.size


def byte_bounds(data: np.ndarray[Any, Any]) -> tuple[int, int]:
    """First address and end of the memory that an array can touch; empty for no elements."""
    low = high = data.__array_interface__["data"][0]
    if data.size == 0:
        return low, low
    for n, step in zip(data.shape, data.strides, strict=True):
        if step < 0:
            low += (n - 1) * step
        else:
            high += (n - 1) * step
    return low, high + data.dtype.itemsize


def unit_of(views: Iterable[View]) -> int:
    """The greatest size that divides every address and access; 1 where there are none."""
    unit = 0
    for view in views:
        unit = math.gcd(unit, view.address, view.size, *view.steps)
    return unit or 1


# ---- checks ----


def check_read(view: View, indices: tuple[int, ...], thread: Thread, access: Access) -> None:
    """Raise if a read finds undefined bytes, or races with a write."""
    memory = view.memory
    assert memory is not None
    offset = view.offset(indices)
    defined = memory.defined
    if defined is not None and 0 in defined[offset : offset + view.size]:
        fail(
            UndefinedReadError,
            f"{access.element(indices)}, shape {view.shape}, is read before anything is written "
            f"to it: {access.array.space} memory starts undefined{_HINT[access.array.space]}",
            access.place,
            thread,
        )
    cells = memory.cells
    if cells is None:
        return
    record = (thread, thread.block.epoch, thread.time, access)
    for key in range(offset // memory.unit, (offset + view.size) // memory.unit):
        cell = cells.get(key)
        if cell is None:
            cell = cells[key] = Cell()
        write = cell.write
        if write is not None and write[0] is not thread and not knows(thread, write):
            race(view, indices, record, write)
        if cell.atomics:
            _check_all(view, indices, record, cell.atomics)
        if cell.reads is None:
            cell.reads = {}
        cell.reads[thread] = record


def check_write(
    view: View, indices: tuple[int, ...], thread: Thread, access: Access, value: Any
) -> None:
    """Raise if a write races; unordered writes of the same bits are let pass."""
    memory = view.memory
    assert memory is not None
    offset = view.offset(indices)
    if memory.defined is not None:
        memory.defined[offset : offset + view.size] = b"\1" * view.size
    cells = memory.cells
    if cells is None:
        return
    record = (thread, thread.block.epoch, thread.time, access)
    for key in range(offset // memory.unit, (offset + view.size) // memory.unit):
        cell = cells.get(key)
        if cell is None:
            cell = cells[key] = Cell()
        write = cell.write
        if (
            write is not None
            and write[0] is not thread
            and not knows(thread, write)
            and view.data[indices].tobytes() != value.tobytes()
        ):
            race(view, indices, record, write)
        if cell.reads:
            _check_all(view, indices, record, cell.reads)
            cell.reads = None
        if cell.atomics:
            _check_all(view, indices, record, cell.atomics)
            cell.atomics = None
        cell.write = record
        cell.writer = thread


def check_atomic(view: View, indices: tuple[int, ...], thread: Thread, access: Access) -> None:
    """Raise if an atomic races with a plain access; pass on what fences have published."""
    memory = view.memory
    assert memory is not None
    offset = view.offset(indices)
    defined = memory.defined
    if defined is not None and 0 in defined[offset : offset + view.size]:
        fail(
            UndefinedReadError,
            f"{access.element(indices)}, shape {view.shape}, is updated before anything is written "
            f"to it: {access.array.space} memory starts undefined",
            access.place,
            thread,
        )
    cells = memory.cells
    if cells is None:
        return
    for key in range(offset // memory.unit, (offset + view.size) // memory.unit):
        cell = cells.get(key)
        if cell is None:
            cell = cells[key] = Cell()
        if cell.released is not None:
            thread.known = join(thread.known, cell.released)
        record = (thread, thread.block.epoch, thread.time, access)
        write = cell.write
        if write is not None and write[0] is not thread and not knows(thread, write):
            race(view, indices, record, write)
        if cell.reads:
            _check_all(view, indices, record, cell.reads)
        if thread.released is not None:
            cell.released = join(cell.released, thread.released)
        if cell.atomics is None:
            cell.atomics = {}
        cell.atomics[thread] = record
        cell.writer = thread


def _check_all(
    view: View, indices: tuple[int, ...], record: Record, others: dict[Thread, Record]
) -> None:
    thread = record[0]
    for other in others.values():
        if other[0] is not thread and not knows(thread, other):
            race(view, indices, record, other)


def race(view: View, indices: tuple[int, ...], record: Record, other: Record) -> None:
    thread, _, _, access = record
    before, _, _, earlier = other
    if thread.block is before.block:
        who = f"thread {before.index} of the same block"
        why = "with no barrier between"
    else:
        who = f"thread {before.index} of block {before.block.index}"
        why = "and blocks run in any order"
    atomic = " atomically" if earlier.verb == "updates" else ""
    alias = "" if earlier.array == access.array else f" (as `{earlier.array.name}`)"
    fail(
        DataRaceError,
        f"data race on {access.element(indices)}, shape {view.shape}: this thread "
        f"{access.verb} it, {who} {earlier.verb} it{atomic} in line {earlier.place.line}{alias}, "
        f"{why}",
        access.place,
        thread,
    )
