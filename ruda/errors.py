"""Every exception of ruda.

RudaError
├── DTypeError (TypeError)                  not a dtype, or not one that this device has
├── KernelError (SyntaxError)               a kernel cannot be translated: file, line, caret
│   ├── KernelTypeError (TypeError)             types that do not go together
│   ├── KernelNameError                         an undefined name (no NameError: its C layout)
│   ├── KernelValueError (ValueError)           a constant out of range, a bad shape
│   ├── UnsupportedError (NotImplementedError)  not in the language, or not on this target
│   └── DivergentBarrierError                   a barrier that not every thread reaches
├── SourceUnavailableError (OSError)        Python keeps no source for the function
├── OutsideKernelError (RuntimeError)       a name of kernels, used on the host
├── VerifyError                             our own mistake: malformed IR between two passes
├── LaunchError                             a launch that cannot be made
│   ├── LaunchTypeError (TypeError)             wrong arguments
│   └── LaunchValueError (ValueError)           wrong grid, block, shared memory
├── CheckError                              found while a kernel ran under check or sim
│   ├── OutOfBoundsError (IndexError)
│   ├── DataRaceError
│   ├── UndefinedReadError
│   ├── BarrierError
│   ├── UniformError                            a broken promise of `ruda.uniform`
│   ├── IntegerDivisionError (ZeroDivisionError)
│   └── KernelAssertionError (AssertionError)
├── CompileError                            `ruda.compile` cannot replay what a function does
├── UsageError                              a command line that cannot be carried out
└── DeviceError                             devices and their memory
    ├── DeviceNotFoundError (LookupError)
    └── OutOfMemoryError (MemoryError)

RudaWarning (UserWarning): CacheWarning, UnrollWarning, LaunchWarning
"""

from __future__ import annotations

import linecache
from typing import Any, NamedTuple


class RudaError(Exception):
    """The root of all errors of ruda."""


class RudaWarning(UserWarning):
    """The root of all warnings of ruda."""


class CacheWarning(RudaWarning):
    """The disk cache cannot be used, or an entry was rejected."""


class UnrollWarning(RudaWarning):
    """A static unrolling grew over its limit and became a loop."""


class LaunchWarning(RudaWarning):
    """A launch works, but not as fast or as intended."""


class DTypeError(RudaError, TypeError):
    """Not a dtype, or not one that ruda or the device has."""


class ShapeError(RudaError, ValueError):
    """Shapes of tensors that do not go together."""


class GradientError(RudaError):
    """A derivative that cannot be given, or that was found to be wrong."""


class Place(NamedTuple):
    """Where something stands in the user's source; columns count from 0, in characters."""

    file: str = "<unknown>"
    line: int = 0
    column: int = 0
    end_line: int = 0
    end_column: int = 0
    function: str = ""
    calls: tuple[Place, ...] = ()  # the call sites that led here, outermost first

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


NOWHERE = Place()


class KernelError(RudaError, SyntaxError):
    """A kernel cannot be translated; Python prints the user's line with a caret."""

    def __init__(self, message: str, place: Place = NOWHERE, *, hint: str | None = None) -> None:
        self.place = place
        text = linecache.getline(place.file, place.line) or None
        super().__init__(
            message,
            (place.file, place.line, place.column + 1, text, place.end_line, place.end_column + 1),
        )
        for call in reversed(place.calls):
            self.add_note(f"called from `{call.function}` at {call.file}, line {call.line}")
        if hint:
            self.add_note(f"hint: {hint}")

    def __str__(self) -> str:
        return self.msg

    def __reduce__(self) -> Any:
        return _rebuild, (type(self), self.msg, self.place, getattr(self, "__notes__", []))


def _rebuild(kind: type[KernelError], message: str, place: Place, notes: list[str]) -> KernelError:
    error = kind(message, place._replace(calls=()))
    error.place = place
    error.__notes__ = list(notes)
    return error


class KernelTypeError(KernelError, TypeError):
    """Types that do not go together."""


class KernelNameError(KernelError):
    """A name that is not defined."""


class KernelValueError(KernelError, ValueError):
    """A constant that is out of range, or a shape that makes no sense."""


class UnsupportedError(KernelError, NotImplementedError):
    """Something that is not in the kernel language, or not on this target."""


class DivergentBarrierError(KernelError):
    """A barrier that not every thread of the block reaches."""


class SourceUnavailableError(RudaError, OSError):
    """Python keeps no source for a function, so it cannot be translated."""


class OutsideKernelError(RudaError, RuntimeError):
    """A name of the kernel language was used outside of a kernel."""


class VerifyError(RudaError):
    """Malformed IR: a mistake in ruda, please report it."""


class LaunchError(RudaError):
    """A kernel launch that cannot be made."""


class LaunchTypeError(LaunchError, TypeError):
    """Arguments of the wrong number or type."""


class LaunchValueError(LaunchError, ValueError):
    """A grid, block or amount of shared memory out of range."""


class CheckError(RudaError):
    """Something that a kernel did wrong while it ran; `place` is the user's line."""

    def __init__(self, message: str, place: Place = NOWHERE) -> None:
        self.message, self.place = message, place
        if place.line:
            text = linecache.getline(place.file, place.line).strip()
            message = f"{message}\n  at {place.file}, line {place.line}: {text}"
        super().__init__(message)

    def __reduce__(self) -> Any:
        return type(self), (self.message, self.place)


class OutOfBoundsError(CheckError, IndexError):
    """An index outside its array."""


class DataRaceError(CheckError):
    """Two threads touch one element without a barrier between, and one of them writes."""


class UndefinedReadError(CheckError):
    """A read of shared or local memory, or of a variable, that nothing has written."""


class BarrierError(CheckError):
    """Threads that wait at different barriers, or for ever."""


class UniformError(CheckError):
    """A value that was promised to be the same in all threads of a block, and is not."""


class IntegerDivisionError(CheckError, ZeroDivisionError):
    """An integer division by zero (defined as 0, but rarely meant)."""


class KernelAssertionError(CheckError, AssertionError):
    """An `assert` in a kernel that failed."""


class CompileError(RudaError):
    """`ruda.compile` cannot replay what a function does."""


class UsageError(RudaError):
    """A command line that cannot be carried out."""


class DeviceError(RudaError):
    """A device that is missing, lost, or cannot do what was asked."""


class DeviceNotFoundError(DeviceError, LookupError):
    """No device of that name here."""


class OutOfMemoryError(DeviceError, MemoryError):
    """The device has no memory left for a request."""


def shown(number: Any) -> str:
    """A number as a message names it; Python writes none of thousands of digits.

    >>> shown(-7), shown(10**5000), shown((1, 2))
    ('-7', 'an integer of 16610 bits', '(1, 2)')
    """
    if isinstance(number, tuple):
        comma = "," if len(number) == 1 else ""
        return f"({', '.join(map(shown, number))}{comma})"
    if isinstance(number, int) and number.bit_length() > 512:
        return f"an integer of {number.bit_length()} bits"
    return repr(number)
