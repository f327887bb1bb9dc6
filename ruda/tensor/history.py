"""What a tensor was made of, for derivatives: kept only where some are wanted.

The ops on tensors call `attach`; `grad` goes back through what they kept.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from ruda.errors import GradientError

Gradient = Callable[..., Sequence[Any]]
T = TypeVar("T")  # a tensor


class History:
    """How a tensor was made. Without a gradient function it is where derivatives are taken."""

    __slots__ = ("gradient", "hooks", "inputs", "name", "versions")

    def __init__(self, name: str, gradient: Gradient | None, inputs: tuple[Any, ...]) -> None:
        self.name, self.gradient, self.inputs = name, gradient, inputs
        self.hooks: list[Callable[[Any], Any]] = []  # of the tensor's gradient
        self.versions = tuple(i._storage.version if hasattr(i, "_storage") else 0 for i in inputs)

    def forget(self) -> None:
        """Let go of what the tensor was made of; of a leaf there is nothing."""
        if self.gradient is not None:
            self.gradient, self.inputs, self.versions = freed, (), ()


def freed(g: Any, out: Any, *inputs: Any) -> Sequence[Any]:
    """Of a history that `backward` has used and forgotten."""
    raise GradientError(
        "the graph of this tensor was used by `backward` before and is gone: compute it again, or "
        "keep it with `backward(retain_graph=True)`"
    )


class _Recording(threading.local):
    on = True
    anomaly = False  # whether `backward` looks for the first value that is not finite


_recording = _Recording()


def recording() -> bool:
    """Whether ops make histories here."""
    return _recording.on


@contextlib.contextmanager
def no_grad() -> Iterator[None]:
    """Make no histories: what is computed here counts as constant.

    >>> import ruda
    >>> x = ruda.asarray(2.0).requires_grad_()
    >>> with ruda.no_grad():
    ...     y = x * x
    >>> y.requires_grad
    False
    """
    before, _recording.on = _recording.on, False
    try:
        yield
    finally:
        _recording.on = before


@contextlib.contextmanager
def enable_grad() -> Iterator[None]:
    """Make histories, also within `no_grad`."""
    before, _recording.on = _recording.on, True
    try:
        yield
    finally:
        _recording.on = before


@contextlib.contextmanager
def detect_anomaly() -> Iterator[None]:
    """Let `backward` and the functions of derivatives look for NaN and infinity as they go.

    The error names the first op whose result is not finite though its inputs are, or whose
    gradient is not. Every value is computed and looked at: for finding a mistake, not for use.

    >>> import ruda
    >>> x = ruda.asarray(0.0).requires_grad_()
    >>> with ruda.detect_anomaly():
    ...     (ruda.log(x) * 2).backward()
    Traceback (most recent call last):
    ruda.errors.GradientError: `log` gives -inf in shape () of finite inputs
    """
    before, _recording.anomaly = _recording.anomaly, True
    try:
        yield
    finally:
        _recording.anomaly = before


def detecting() -> bool:
    return _recording.anomaly


def attach(out: T, name: str, gradient: Gradient | None, inputs: tuple[Any, ...]) -> T:
    """Give a result of floats its history, if one of its inputs has one."""
    for i in inputs if _recording.on else ():
        if getattr(i, "_history", None) is None:
            continue
        if out.dtype.is_inexact:  # type: ignore[attr-defined]
            out._history = History(name, gradient or flat, inputs)  # type: ignore[attr-defined]
        break
    return out


def flat(g: Any, out: Any, *inputs: Any) -> Sequence[Any]:
    """The gradient of what does not change with its input, as `floor`."""
    return (None,) * len(inputs)


def refuse(name: str, *inputs: Any, instead: str = "") -> None:
    """An error where a derivative would be lost without a word; `instead`: what would keep it."""
    if _recording.on and any(getattr(i, "_history", None) is not None for i in inputs):
        raise GradientError(
            f"`{name}` has no gradient yet: {instead}use `.detach()` to take it as constant"
        )
