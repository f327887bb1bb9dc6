"""Times of a WebGPU device for profiles, where the adapter has timestamp queries.

While a launch is timed its dispatches are passes of their own in the encoder that is open anyhow,
so batches stay batches; a pass writes a timestamp at its begin and at its end. The times are read
when somebody asks for one.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np

QUERIES = 4096  # timestamps of a set: what WebGPU allows at least


class Moment:
    """The begin or the end of a pass."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self._ns: float | None = None

    @property
    def ns(self) -> float:
        """Nanoseconds of the device's own clock; waits for the device."""
        if self._ns is None:
            self.clock.read()
        assert self._ns is not None
        return self._ns

    def elapsed_time(self, end: Moment) -> float:
        """Milliseconds to another moment."""
        return (end.ns - self.ns) / 1e6


class Clock:
    """The timestamps of a queue."""

    copies = False  # they are no passes

    def __init__(self, queue: Any) -> None:
        usage = queue.usage
        self.queue = queue
        self.set = queue.device.create_query_set(type="timestamp", count=QUERIES)
        self.words = queue.create(8 * QUERIES, usage.QUERY_RESOLVE | usage.COPY_SRC)
        native = queue.native
        self.period = float(native.library.wgpuQueueGetTimestampPeriod(native.queue))
        self.open: list[Moment] = []  # by query
        self.timed: list[Moment] | None = None  # those of the launch that is timed

    @contextlib.contextmanager
    def launch(self, stream: Any = None) -> Iterator[list[Moment]]:
        """Time what is dispatched within: the first and the last moment, none without dispatches.

        Other threads' launches wait, so that none gets into the pass.
        """
        with self.queue.lock:
            self.queue.end_pass()
            moments: list[Moment] = []
            before, self.timed = self.timed, moments
            try:
                yield moments
            finally:
                self.queue.end_pass()
                self.timed = before
                if before is not None:  # a profile within a profile
                    before += moments

    def zero(self) -> Moment:
        """The moment at which the device was done with everything."""
        with self.queue.lock:
            self.queue.end_pass()
            before, self.timed = self.timed, []
            self.queue.begin()
            self.queue.end_pass()
            (_, moment), self.timed = self.timed, before
            self.queue.wait()
            return moment

    def writes(self) -> tuple[Any, int, int] | None:
        """The timestamps that a new pass writes; None where nothing is timed."""
        if self.timed is None:
            return None
        if len(self.open) + 2 > QUERIES:
            self.read()
        at = len(self.open)
        pair = [Moment(self), Moment(self)]
        self.open += pair
        self.timed += pair
        return self.set, at, at + 1

    def read(self) -> None:
        """Bring the times of all moments so far to the host."""
        queue = self.queue
        with queue.lock:
            queue.flush()
            moments, self.open = self.open, []
            if not moments:
                return
            encoder = queue.guarded(queue.native.encoder)
            queue.native.resolve(encoder, self.set, len(moments), self.words)
            queue.submit(queue.guarded(queue.native.finish, encoder))
            words = SimpleNamespace(address=self.words)
            with queue.staged(words, 0, 8 * len(moments)) as data:
                ticks = data.view(np.uint64).astype(np.float64)
            for moment, count in zip(moments, ticks.tolist(), strict=True):
                moment._ns = count * self.period
