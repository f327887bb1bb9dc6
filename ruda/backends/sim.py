"""The device `sim`: kernels run in the checked interpreter of the IR, thread by thread.

It has no code of its own to make: the text is the IR, the binary is empty, and a module holds the
function. Slow, and made to be right: it is what the other targets are compared with.
"""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from ruda.backends.base import Binary, DeviceInfo, HostMemory, Launch, Source
from ruda.errors import LaunchError, LaunchValueError, LaunchWarning, Place, shown
from ruda.jit.frontend.translator import too_deep
from ruda.jit.interpret import Interpreter
from ruda.jit.ir import Function
from ruda.jit.schedule import Run
from ruda.settings import settings

MAX_SHARED_BYTES = 1 << 20  # dynamic shared memory of a launch, as on the CPU

# Notes that become warnings: always, or with `check=True` (where division is an error already).
_WARNED = {"wrap"}
_WARNED_UNDER_CHECK = {"wrap", "shift", "convert"}


@dataclass(eq=False)
class Module:
    """A kernel on `sim`, and the places that it has warned about."""

    interpreter: Interpreter
    warned: set[tuple[str, Place]] = field(default_factory=set)


class Sim(HostMemory):
    """The backend (see `base.Backend`). `order` and `seed` mix the threads, for tests."""

    name = "sim"

    def __init__(self, order: str = "ascending", seed: int = 0) -> None:
        self.order, self.seed = order, seed
        # Set to a list, it receives the launches of this context: notes, who wrote which element.
        self.watch: ContextVar[list[Run] | None] = ContextVar("ruda_sim_watch", default=None)

    def devices(self) -> Sequence[DeviceInfo]:
        properties = {"memory": self.memory_info("sim")[1], "max_threads": 1024}
        text = "checked interpreter, thread by thread"
        return [DeviceInfo("sim", text, "interpreter", properties)]

    def target(self, device: str) -> Mapping[str, Any]:
        return {}

    def emit(self, function: Function, target: Mapping[str, Any]) -> Source:
        return Source(str(function) + "\n", function.name)

    def compile(self, source: Source, target: Mapping[str, Any]) -> Binary:
        return Binary(b"", {})

    def load(self, binary: Binary, function: Function | None, device: str) -> Module:
        if function is None:
            raise LaunchError(
                "sim runs the IR of a kernel: its empty binary cannot be loaded alone"
            )
        return Module(Interpreter(function, order=self.order, seed=self.seed))

    def launcher(
        self, module: Module, launch: Launch, fallback: Callable[..., Any] | None
    ) -> Callable[..., None]:
        interpreter = module.interpreter
        function = interpreter.function
        if function.block is not None and function.block != launch.block:
            raise LaunchError(f"kernel `{function.name}` is made for blocks of {function.block}")

        if launch.shared_bytes > MAX_SHARED_BYTES:
            raise LaunchValueError(
                f"`{function.name}`: {shown(launch.shared_bytes)} bytes of dynamic shared memory; "
                f"sim has {MAX_SHARED_BYTES}"
            )

        def run(*arguments: Any) -> None:
            shuffle = interpreter.shuffle
            if shuffle is None and settings.sim_order == "random":
                shuffle = random.Random(settings.sim_seed)
            try:
                found = interpreter.run(
                    launch.grid, launch.block, arguments, launch.shared_bytes,
                    shuffle=shuffle, steps=settings.sim_steps,
                )  # fmt: skip
            except RecursionError:
                raise too_deep(function.name, function.place) from None
            watched = self.watch.get()
            if watched is not None:
                watched.append(found)
            _warn(module, found, function.check)

        # Every launch takes the general path, so that what arrives here fits: no fallback needed.
        run.is_native = False  # type: ignore[attr-defined]
        return run


def _warn(module: Module, run: Run, check: bool) -> None:
    """Tell each suspicious place once, as a warning at the user's line."""
    kinds = _WARNED_UNDER_CHECK if check else _WARNED
    for (kind, place), message in run.notes.items():
        if kind in kinds and (kind, place) not in module.warned:
            module.warned.add((kind, place))
            warnings.warn_explicit(
                f"kernel `{run.name}`: {message}", LaunchWarning, place.file, place.line
            )


BACKEND = Sim()
