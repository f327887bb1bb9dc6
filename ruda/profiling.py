"""What took how long: `ruda.profile()` for a region of a program, `ruda.timeit()` for one call.

Work on a GPU outlasts the call that gives it. Where a device has a clock - CUDA by events, WebGPU
by timestamp queries - a launch's times are the device's own, and batches and queues go on as ever;
elsewhere a profile waits before and after each launch and takes the host's time. The column
`clock` says which.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ruda import backends
from ruda.backends.base import observers
from ruda.locks import fork_safe_lock
from ruda.settings import settings

UNITS = ((1e-6, 1e9, "ns"), (1e-3, 1e6, "us"), (1.0, 1e3, "ms"))


def in_words(seconds: float) -> str:
    """Three digits and a unit.

    >>> in_words(1.5e-6), in_words(0.0123), in_words(75)
    ('1.50 us', '12.3 ms', '75.0 s')
    """
    for below, factor, unit in UNITS:
        if seconds < below:
            return f"{f'{seconds * factor:#.3g}'.rstrip('.')} {unit}"
    return f"{f'{seconds:#.3g}'.rstrip('.')} s"


# ---- profiles ------------------------------------------------------------------------------------


@dataclass(slots=True)
class Activity:
    """One launch, copy or compilation. Times are seconds; `start` counts from the profile's."""

    kind: str  # "kernel", "copy" or "compile"
    name: str
    device: str
    start: float
    duration: float
    clock: str  # "device" or "host"
    place: str = ""  # where the program asked for it
    nbytes: int = 0
    thread: int = 0
    events: Any = None  # of the device, until their times are known


@dataclass(frozen=True, slots=True)
class Row:
    """All activities of one name on a device."""

    kind: str
    name: str
    device: str
    clock: str
    calls: int
    total: float
    median: float
    least: float
    most: float
    nbytes: int


class profile:
    """Record launches, copies and compilations of a region, on all devices and in all threads.

    Its `repr` is a table, longest first; `save("trace.json")` writes a file for chrome://tracing or
    Perfetto. On CUDA each launch is an NVTX range too, where the package `nvtx` is installed.

    >>> import numpy as np, ruda
    >>> @ruda.jit
    ... def double(x):
    ...     i = ruda.grid(1)
    ...     if i < x.size:
    ...         x[i] *= 2
    >>> with ruda.profile() as p:
    ...     double.forall(1000)(np.ones(1000, np.float32))
    >>> rows = sorted((r for r in p.rows() if r.name == "double"), key=lambda row: row.kind)
    >>> [(row.kind, row.name, row.calls) for row in rows]
    [('compile', 'double', 1), ('kernel', 'double', 1)]
    """

    def __init__(self) -> None:
        self.activities: list[Activity] = []
        self._zeros: dict[str, tuple[Any, float]] = {}  # a moment in both clocks, by device
        self._lock = fork_safe_lock()
        self._began = time.perf_counter()
        self.seconds = 0.0

    def __enter__(self) -> profile:
        if self in observers:
            raise RuntimeError("this profile is running already")
        self.activities.clear()
        self._zeros.clear()
        self._began = time.perf_counter()
        observers.append(self)
        settings.changed()  # launchers are made anew, with a look at the clock
        return self

    def __exit__(self, *exception: object) -> None:
        observers.remove(self)
        settings.changed()
        for activity in self.activities:
            if activity.events is not None:
                zero, at = self._zeros[activity.device]
                start, end = activity.events
                activity.duration = start.elapsed_time(end) / 1e3
                activity.start = at + zero.elapsed_time(start) / 1e3
                activity.events = None
        self.seconds = time.perf_counter() - self._began  # until the devices were done, too
        self.activities.sort(key=lambda a: a.start)

    # -- what `ruda.jit` and device arrays tell

    def add(self, kind: str, name: str, device: str, start: float, duration: float) -> None:
        """Note something that is over; `start` is of `time.perf_counter`."""
        device = backends.find(device).name
        self.activities.append(
            Activity(kind, name, device, start - self._began, duration, "host", _place(),
                     thread=threading.get_ident())
        )  # fmt: skip

    @contextlib.contextmanager
    def activity(
        self, kind: str, name: str, device: str, stream: Any = None, nbytes: int = 0
    ) -> Iterator[None]:
        """Note what happens within."""
        device = backends.find(device).name
        backend: Any = backends.get(device)
        found = Activity(kind, name, device, 0.0, 0.0, "host", _place(), nbytes,
                         threading.get_ident())  # fmt: skip
        clock = getattr(backend, "clock", lambda device: None)(device)
        # A clock of launches alone knows nothing of copies.
        if clock is None or (kind == "copy" and not clock.copies):
            backend.synchronize(device)
            began = time.perf_counter()
            yield
            backend.synchronize(device)
            found.start, found.duration = began - self._began, time.perf_counter() - began
        else:
            self._set_zero(clock, device)
            began = time.perf_counter()
            with _nvtx(name), clock.launch(stream) as moments:
                yield
            if moments:
                found.clock, found.events = "device", (moments[0], moments[-1])
            else:  # the launch ran elsewhere: on the CPU, by `missing`
                found.start, found.duration = began - self._began, time.perf_counter() - began
        self.activities.append(found)

    def _set_zero(self, clock: Any, device: str) -> None:
        with self._lock:
            if device not in self._zeros:
                self._zeros[device] = clock.zero(), time.perf_counter() - self._began

    # -- what the user asks

    def rows(self) -> list[Row]:
        """The table: one row a name, kind and device, longest in total first."""
        import statistics  # slow to import

        groups: dict[tuple[str, str, str, str], list[Activity]] = {}
        for a in self.activities:
            groups.setdefault((a.kind, a.name, a.device, a.clock), []).append(a)
        rows = []
        for key, found in groups.items():
            times = [a.duration for a in found]
            rows.append(
                Row(*key, len(times), sum(times), statistics.median(times), min(times), max(times),
                    sum(a.nbytes for a in found))
            )  # fmt: skip
        return sorted(rows, key=lambda row: -row.total)

    def __repr__(self) -> str:
        head = ("", "name", "device", "calls", "total", "median", "least", "most", "bytes", "clock")
        lines: list[tuple[str, ...]] = [head]
        for r in self.rows():
            times = map(in_words, (r.total, r.median, r.least, r.most))
            nbytes = f"{r.nbytes:,}" if r.nbytes else ""
            lines.append((r.kind, r.name, r.device, str(r.calls), *times, nbytes, r.clock))
        widths = [max(len(line[k]) for line in lines) for k in range(len(head))]
        left = (0, 1, 2, 9)
        text = [
            "  ".join(
                cell.ljust(width) if k in left else cell.rjust(width)
                for k, (cell, width) in enumerate(zip(line, widths, strict=True))
            ).rstrip()
            for line in lines
        ]
        return "\n".join([f"profile of {in_words(self.seconds)}", *text])

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the activities as a trace in Chrome's format (JSON)."""
        import json

        devices = sorted({a.device for a in self.activities})
        threads = sorted({a.thread for a in self.activities})
        events: list[dict[str, Any]] = [
            {"ph": "M", "name": "process_name", "pid": k, "args": {"name": device}}
            for k, device in enumerate(devices)
        ]
        for a in self.activities:
            details = {"clock": a.clock, "launched at": a.place} | (
                {"bytes": a.nbytes} if a.nbytes else {}
            )
            events.append({
                "ph": "X", "name": a.name, "cat": a.kind, "pid": devices.index(a.device),
                "tid": threads.index(a.thread), "ts": 1e6 * a.start, "dur": 1e6 * a.duration,
                "args": details,
            })  # fmt: skip
        text = json.dumps({"traceEvents": events, "displayTimeUnit": "ns"})
        Path(path).write_text(text, encoding="utf-8")


def _place() -> str:
    """File and line of the program that led here."""
    frame = sys._getframe(1)
    while frame.f_back is not None and (
        frame.f_globals.get("__name__", "").startswith(("ruda.", "contextlib"))
    ):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


def _nvtx(name: str) -> contextlib.AbstractContextManager[Any]:
    """A range that NVIDIA's profilers show, where their package is installed."""
    try:
        import nvtx
    except ImportError:
        return contextlib.nullcontext()
    return nvtx.annotate(name, domain="ruda")  # type: ignore[no-any-return]


# ---- the time of one call ------------------------------------------------------------------------


@dataclass(frozen=True)
class Timing:
    """Seconds a call, one number a sample."""

    samples: tuple[float, ...]
    calls: int  # of a sample
    devices: tuple[str, ...]

    @property
    def median(self) -> float:
        import statistics

        return statistics.median(self.samples)

    @property
    def quartiles(self) -> tuple[float, float]:
        """A quarter of the samples lies below the first, a quarter above the second."""
        import statistics

        low, _, high = statistics.quantiles(self.samples, n=4, method="inclusive")
        return low, high

    @property
    def best(self) -> float:
        return min(self.samples)

    def __repr__(self) -> str:
        low, high = map(in_words, self.quartiles)
        calls = f"{self.calls} call{'s' if self.calls > 1 else ''}"
        return (
            f"{in_words(self.median)} a call on {', '.join(self.devices)} "
            f"(quartiles {low} to {high}, best {in_words(self.best)}; "
            f"{len(self.samples)} samples of {calls})"
        )


class _Devices:
    """Notes which devices work was given to."""

    def __init__(self) -> None:
        self.names: set[str] = set()

    def add(self, kind: str, name: str, device: str, start: float, duration: float) -> None:
        self.names.add(backends.find(device).name)

    @contextlib.contextmanager
    def activity(
        self, kind: str, name: str, device: str, stream: Any = None, nbytes: int = 0
    ) -> Iterator[None]:
        self.names.add(backends.find(device).name)
        yield


def timeit(
    function: Callable[..., Any],
    *arguments: Any,
    samples: int = 25,
    seconds: float = 1.0,
    warmup: int = 3,
) -> Timing:
    """The time of `function(*arguments)`, with the devices waited for: no launch gets away.

    Calls are repeated until a sample takes a millisecond, and samples taken until there are
    `samples` or `seconds` are over, but three at least. Compilation and warm-up do not count.

    >>> import numpy as np, ruda
    >>> x = np.ones(1000)
    >>> found = ruda.timeit(np.sum, x, seconds=0.05)
    >>> found.median > 0, found.best <= found.median
    (True, True)
    >>> "a call on cpu (quartiles" in repr(found)
    True
    """
    if not callable(function):
        raise TypeError(
            f"timeit takes something to call, not {type(function).__name__}: "
            "write `ruda.timeit(lambda: ...)`"
        )
    if samples < 3 or warmup < 1:
        raise ValueError("timeit needs at least 3 samples and 1 call to warm up")
    seen = _Devices()
    observers.append(seen)
    settings.changed()
    try:
        function(*arguments)
    finally:
        observers.remove(seen)
        settings.changed()
    names = sorted(seen.names or {backends.find(backends.current()).name})

    def synchronize() -> None:
        for name in names:
            backends.get(name).synchronize(name)  # type: ignore[attr-defined]

    def sample(calls: int) -> float:
        synchronize()
        start = time.perf_counter()
        for _ in range(calls):
            function(*arguments)
        synchronize()
        return (time.perf_counter() - start) / calls

    for _ in range(warmup):
        once = sample(1)
    calls = 1
    while once * calls < 1e-3:
        calls = max(calls * 2, min(int(1e-3 / max(once, 1e-9)), calls * 100))
        once = sample(calls)
    found: list[float] = []
    end = time.perf_counter() + seconds
    while len(found) < 3 or (len(found) < samples and time.perf_counter() < end):
        found.append(sample(calls))
    return Timing(tuple(found), calls, tuple(names))
