"""What `RUDA_DEBUG` shows, on stderr: one dial, each level with all below it.

1 devices, compiles, verification   2 launches with times   3 choices of passes and tuning
4 generated source                  5 the IR after each pass   6 assembly
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ruda.backends.base import observed
from ruda.settings import settings

if TYPE_CHECKING:
    from ruda.backends.base import Launch


def show(level: int, title: str, text: str | Callable[[], str] = "") -> None:
    """Print a title line, and a text below it, if the dial stands at `level` or above."""
    if settings.debug < level:
        return
    body = text if isinstance(text, str) else text()
    print(f"ruda: {title}", file=sys.stderr)
    for line in body.rstrip("\n").splitlines():
        print(f"    {line}", file=sys.stderr)


def timed(
    launcher: Callable[..., Any], name: str, device: str, launch: Launch
) -> Callable[..., Any]:
    """The launcher, saying after each launch how long the call took."""

    def run(*arguments: Any) -> Any:
        start = time.perf_counter()
        result = launcher(*arguments)
        spent = 1e6 * (time.perf_counter() - start)
        show(2, f"launch {name}[{launch.grid}, {launch.block}] on {device}: {spent:.1f} us")
        return result

    run.is_native = False  # type: ignore[attr-defined]
    return run


def recorded(
    launcher: Callable[..., Any], name: str, device: str, launch: Launch
) -> Callable[..., Any]:
    """The launcher, telling running profiles of each launch."""

    def run(*arguments: Any) -> Any:
        with observed("kernel", name, device, launch.stream):
            return launcher(*arguments)

    run.is_native = False  # type: ignore[attr-defined]
    return run
