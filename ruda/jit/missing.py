"""What becomes of a kernel that its device cannot run: the policies of `ruda.config(missing=...)`.

error    it is refused at the user's line; the error names the policy that would allow it
emulate  64-bit integers are made of 32-bit words, exactly (WebGPU)
demote   so are they, and float64 is computed in float32, complex128 in complex64; arrays keep their
         dtype (WebGPU)
cpu      the launch runs on the CPU: arrays are copied there, and back what was written; told once

The emitters know the first three; `OnHost` is the last.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ruda import backends
from ruda.backends.base import ALIGNMENT, DeviceArray, Launch, warn_user
from ruda.errors import KernelError, LaunchTypeError, UnsupportedError
from ruda.jit import ir
from ruda.settings import settings

if TYPE_CHECKING:
    from ruda.jit.kernel import Specialisation

HOSTS = ("cpu", "sim")
HINT = "ruda.config(missing='cpu') runs it on the CPU"


def moves(device: str) -> bool:
    """Whether the policy runs on the CPU what a device cannot."""
    return settings.missing == "cpu" and device.partition(":")[0] not in HOSTS


def name_policy(error: UnsupportedError, device: str, function: ir.Function) -> None:
    """Let an error of a device's compiler say which policy would allow the kernel."""
    notes = getattr(error, "__notes__", [])
    if device.partition(":")[0] in HOSTS or any(HINT in n for n in notes):
        return
    cpu: Any = backends.get("cpu")
    try:
        cpu.emit(function, cpu.target("cpu"))
    except KernelError:  # it is too much for the CPU, too
        return
    error.add_note(f"hint: {HINT}")


class OnHost:
    """Stands for a kernel that its device cannot run: the CPU's, with arrays brought there and
    back."""

    def __init__(self, made: Specialisation, device: str, why: UnsupportedError) -> None:
        self.made, self.device, self.why = made, device, why
        written = {
            s.array.name
            for s in ir.statements(made.function.body)
            if isinstance(s, (ir.Store, ir.Atomic))
        }
        names = [getattr(p, "name", "") for p in made.function.parameters]
        self.written = frozenset(k for k, name in enumerate(names) if name in written)
        self.told = False

    def launcher(self, launch: Launch) -> Callable[..., None]:
        """A launch that takes the device's arrays."""
        backend: Any = backends.get("cpu")
        shape = Launch(launch.grid, launch.block, launch.shared_bytes)
        run = backend.launcher(self.made.module, shape, self.misfit)

        def on_host(*arguments: Any) -> None:
            self.tell()
            lent = borrow(arguments)
            run(*(lent[id(a)][0] if id(a) in lent else a for a in arguments))
            for k in self.written:
                if id(arguments[k]) in lent:
                    give_back(arguments[k], *lent[id(arguments[k])])

        on_host.is_native = False  # type: ignore[attr-defined]
        return on_host

    def misfit(self, *arguments: Any) -> None:
        raise LaunchTypeError(f"`{self.made.function.name}`: the arguments do not fit")

    def tell(self) -> None:
        """Warn, once a kernel, at the user's line."""
        if self.told:
            return
        self.told = True
        warn_user(
            f"`{self.made.function.name}` runs on the CPU, not on {self.device}: {self.why} "
            "(missing='cpu')"
        )


def borrow(arguments: Sequence[Any]) -> dict[int, tuple[np.ndarray[Any, Any], int, Any]]:
    """The device arrays on the host, by id: array, offset of its bytes, bytes.

    Arrays of one memory stay so: what a kernel writes in one it reads in the other.
    """
    spans: dict[int, tuple[int, int]] = {}
    arrays = [a for a in arguments if isinstance(a, DeviceArray)]
    for a in arrays:
        low, nbytes = a._span()
        start, stop = spans.get(id(a.storage), (low, low + nbytes))
        spans[id(a.storage)] = min(start, low), max(stop, low + nbytes)
    memory: dict[int, Any] = {}
    out: dict[int, tuple[np.ndarray[Any, Any], int, Any]] = {}
    for a in arrays:
        low, stop = spans[id(a.storage)]
        low -= low % ALIGNMENT  # elements are as aligned as they are on the device
        if id(a.storage) not in memory:
            raw = np.empty(stop - low + ALIGNMENT, np.uint8)
            raw = raw[-raw.__array_interface__["data"][0] % ALIGNMENT :][: stop - low]
            if raw.size:
                a._backend.read(a.storage, low, raw, None)
            memory[id(a.storage)] = raw
        raw = memory[id(a.storage)]
        seen = np.ndarray(a.shape, a.dtype, raw, a.offset - low, a.strides) if a.size else (
            np.empty(a.shape, a.dtype)
        )  # fmt: skip
        if a.storage.readonly:
            seen.flags.writeable = False
        out[id(a)] = seen, low, raw
    return out


def give_back(array: DeviceArray, host: np.ndarray[Any, Any], low: int, raw: Any) -> None:
    """Write the bytes from an array's first to its last element to the device."""
    start, nbytes = array._span()
    if nbytes:
        array._backend.write(array.storage, start, raw[start - low : start - low + nbytes], None)
