"""Recorded launches as a CUDA graph: the driver replays them with one call."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ruda.backends.base import DeviceArray, Launch
from ruda.backends.cuda.driver import Gpu, check
from ruda.errors import DeviceError, LaunchError, LaunchTypeError

if TYPE_CHECKING:
    from ruda.backends.cuda.launch import Module

Recorded = tuple["Module", Launch, Sequence[Any]]


def graph(gpu: Gpu, launches: Sequence[Recorded]) -> Callable[[], None]:
    """A function that replays launches in the default stream."""
    for module, _, values in launches:
        check_recorded(module, values)
    gpu.use()
    driver = gpu.driver
    stream = check(driver.cuStreamCreate(1))  # 1: does not wait for the default stream
    try:
        mode = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
        starts = [launcher(module, launch, values) for module, launch, values in launches]
        check((*driver.cuStreamBeginCapture(stream, mode), None))
        try:
            for start in starts:
                start(int(stream))
        finally:
            recorded = check(driver.cuStreamEndCapture(stream))
    finally:
        driver.cuStreamDestroy(stream)
    made = Graph(gpu, recorded, launches)
    return made.replay


def check_recorded(module: Module, values: Sequence[Any]) -> None:
    """LaunchError for what cannot be replayed."""
    if module.metadata["sites"]:
        raise LaunchError(
            f"`{module.name}` prints, asserts or checks: its reports are read after each launch, "
            "which a graph has not"
        )
    if module.metadata["phases"]:
        raise LaunchError(
            f"`{module.name}` has threads that return before a barrier of the grid, so that it is "
            "several launches, chosen as they go: put the work under a condition instead"
        )
    for k, value in enumerate(values):
        if isinstance(value, np.ndarray) and not module.gpu.is_registered(value.ctypes.data):
            raise LaunchTypeError(
                f"`{module.name}`: argument {k} is a NumPy array, which would be copied at each "
                "replay; a graph takes arrays on the device (ruda.to_device)"
            )


def launcher(module: Module, launch: Launch, values: Sequence[Any]) -> Callable[[int], None]:
    """A function that launches with everything packed, in a stream."""
    from ruda.backends.cuda import launch as launching

    start, general = launching.parts(module, launch)
    checked = [general.argument(k, v) for k, v in enumerate(values)]
    chosen = launching.suited(module, launch, checked)
    if chosen is not module:
        start, general = launching.parts(chosen, launch)
    addresses = {k: general.address(v, ()) for k, v in enumerate(checked)}
    numbers = general.numbers(checked, addresses, None)
    return lambda stream: start(numbers, stream)


class Graph:
    """A graph that the driver has, and what it uses."""

    def __init__(self, gpu: Gpu, recorded: Any, launches: Sequence[Recorded]) -> None:
        self.gpu = gpu
        self.made = check(gpu.driver.cuGraphInstantiate(recorded, 0))
        gpu.driver.cuGraphDestroy(recorded)
        self.kept = [v for _, _, values in launches for v in values if isinstance(v, DeviceArray)]
        names = list(dict.fromkeys(module.name for module, _, _ in launches))
        more = ", ..." if len(names) > 4 else ""
        self.name = f"graph of {len(launches)} launches: {', '.join(names[:4])}{more}"

    def replay(self) -> None:
        gpu = self.gpu
        if gpu.lost:
            raise DeviceError(gpu.lost)
        frame = sys._getframe(1)
        while frame.f_back is not None and frame.f_globals.get("__name__") == "ruda.jit.graphs":
            frame = frame.f_back
        gpu.recent.append((self.name, frame.f_code, frame.f_lasti))
        (code,) = gpu.driver.cuGraphLaunch(self.made, 0)
        if code:
            gpu.use()  # in a new thread the context is not there yet
            (code,) = gpu.driver.cuGraphLaunch(self.made, 0)
        if code:
            raise gpu.fail(code, f" at the replay of a {self.name}")

    def __del__(self) -> None:
        if hasattr(self, "made") and not self.gpu.pool.closed:
            self.gpu.driver.cuCtxSetCurrent(self.gpu.context)
            self.gpu.driver.cuGraphExecDestroy(self.made)
