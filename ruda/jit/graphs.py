"""Launches recorded once and replayed: `with ruda.capture() as graph:` and `graph.replay()`.

In the region kernels are compiled and checked, but not run. A device whose backend has
`graph(launches, device)` replays in its own way - CUDA with one call of the driver, about a
microsecond a kernel -, others launch one kernel after the other.
"""

from __future__ import annotations

import contextvars
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ruda.errors import DeviceError, LaunchTypeError
from ruda.settings import config

if TYPE_CHECKING:
    from ruda.jit.kernel import Configured

# The graph that this thread records into.
recording: contextvars.ContextVar[Graph | None] = contextvars.ContextVar("ruda_graph", default=None)


@dataclass(frozen=True, slots=True)
class Recorded:
    """A launch that waits for its replay."""

    configured: Configured
    arguments: tuple[Any, ...]
    module: Any
    values: list[Any]  # what the launcher gets: tuples taken apart, defaults filled in
    device: str


class Graph:
    """A sequence of launches. The arrays and numbers are those of the recording."""

    def __init__(self) -> None:
        self.launches: list[Recorded] = []
        self._replay: Callable[[], Any] | None = None

    def add(self, launch: Recorded) -> None:
        if self.launches and self.launches[0].device != launch.device:
            raise LaunchTypeError(
                f"`{launch.configured.kernel.__name__}` runs on {launch.device}, the launches "
                f"recorded before on {self.launches[0].device}: a graph has one device"
            )
        if launch.configured.launch.stream is not None:
            raise LaunchTypeError(
                f"`{launch.configured.kernel.__name__}`: launches of a graph name no stream"
            )
        self.launches.append(launch)

    def finish(self) -> None:
        """Make ready to replay."""
        from ruda import backends

        if not self.launches:
            self._replay = lambda: None
            return
        device = self.launches[0].device
        native = getattr(backends.get(device), "graph", None)
        if native is None or any(r.module is None for r in self.launches):  # run by the CPU
            self._replay = self.one_by_one
        else:
            rows = [(r.module, r.configured.launch, r.values) for r in self.launches]
            self._replay = native(rows, device)

    def replay(self) -> None:
        """Run all launches again, in their order; returns when they are given to the device."""
        if self._replay is None:
            raise DeviceError("a graph is replayed after its `with ruda.capture()` block")
        self._replay()

    def one_by_one(self) -> None:
        """Replay on a device that has no graphs."""
        for launch in self.launches:
            launch.configured(*launch.arguments)

    def __len__(self) -> int:
        return len(self.launches)

    def __repr__(self) -> str:
        names = ", ".join(r.configured.kernel.__name__ for r in self.launches[:5])
        return f"<ruda.Graph of {len(self)} launches: {names}{', ...' if len(self) > 5 else ''}>"


class capture:
    """Record the launches of a block, to be replayed at once and cheaply.

    Launches in the block are not run. Everything else happens as it is written: copies, prints.
    A replay reads and writes the same arrays, with the numbers of the recording.

    >>> import numpy as np, ruda
    >>> @ruda.jit
    ... def double(x):
    ...     i = ruda.grid(1)
    ...     if i < x.size:
    ...         x[i] *= 2
    >>> x = ruda.to_device(np.ones(3, np.float32))
    >>> with ruda.capture() as graph:
    ...     double[1, 32](x)
    ...     double[1, 32](x)
    >>> graph.replay(); x
    DeviceArray([4., 4., 4.], dtype=float32, device='cpu')
    """

    def __enter__(self) -> Graph:
        if recording.get() is not None:
            raise DeviceError("a capture is going on already; graphs are not nested")
        self._graph = Graph()
        self._settings = config()  # launchers made outside no longer fit
        self._token = recording.set(self._graph)
        return self._graph

    def __exit__(self, kind: Any, *more: object) -> None:
        recording.reset(self._token)
        self._settings.__exit__()
        if kind is None:
            self._graph.finish()
