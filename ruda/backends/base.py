"""What a backend is: the small interface that the layers above know, and nothing else.

A backend turns a `Function` of the IR into text (`emit`, pure), text into a binary (`compile`), a
binary into a `Module` on a device (`load`), and a module with a launch shape into a callable
(`launcher`) that takes the kernel's arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from ruda.errors import Place

if TYPE_CHECKING:
    from ruda.jit.ir import Function


@dataclass(frozen=True, slots=True)
class Site:
    """A place in a kernel that can report: a print, an assert, a failed check.

    A compiled kernel writes (site number, block, thread, values); the host formats them.
    `parts` are text pieces and (dtype name, format spec) pairs, one pair a reported value.
    """

    kind: str  # "print", "assert", "bounds" or "division"
    place: Place
    parts: tuple[str | tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Source:
    """Emitted text. `lines[k]` is the user's line that line k + 1 of the text comes from (0: none)."""

    text: str
    entry: str
    file: str = ""
    lines: tuple[int, ...] = ()
    sites: tuple[Site, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)  # what `compile` needs to know besides


@dataclass(frozen=True, slots=True)
class Binary:
    """What the disk cache keeps: a payload, JSON metadata, and the external symbols it refers to."""

    payload: bytes
    metadata: dict[str, Any]
    symbols: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Launch:
    """The shape of a launch: blocks, threads of a block, bytes of dynamic shared memory."""

    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared_bytes: int = 0
    stream: Any = None


@dataclass(frozen=True, slots=True)
class DeviceInfo:
    """A device and its honest properties."""

    name: str  # "cpu", "sim", "cuda:0"
    description: str
    kind: str  # "hardware", "software" or "interpreter"
    properties: Mapping[str, Any] = field(default_factory=dict)


class Backend(Protocol):
    """One folder and one registry line. `fallback` of `launcher` is called with the same arguments
    when they do not fit the specialisation that the launcher was made for."""

    name: str

    def devices(self) -> Sequence[DeviceInfo]: ...

    def target(self, device: str) -> Mapping[str, Any]:
        """The properties that code depends on; they are part of the cache key."""
        ...

    def emit(self, function: Function, target: Mapping[str, Any]) -> Source: ...

    def compile(self, source: Source, target: Mapping[str, Any]) -> Binary: ...

    def load(self, binary: Binary, function: Function | None, device: str) -> Any:
        """`function` is None when the binary comes from the disk cache."""
        ...

    def resolves(self, symbol: str) -> bool:
        """Whether a binary from the disk cache may refer to an external symbol: it exists here.
        Asked only of backends with `cacheable = True`."""
        ...

    def launcher(
        self, module: Any, launch: Launch, fallback: Callable[..., Any] | None
    ) -> Callable[..., None]: ...
