"""Launches on tensors that take part in derivatives: `@ruda.jit(differentiable=True)`.

A launch is an op that writes its arguments in place. What it wrote remembers the arguments as they
were; the way back launches the adjoint of the kernel (`adjoint`) on them and on gradients.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ruda.backends.base import Launch
from ruda.errors import GradientError, KernelError
from ruda.jit import ir
from ruda.jit.ir import Atomic, Function, Load, Store
from ruda.jit.kernel import Capture, Kernel, user_error
from ruda.jit.types import Type
from ruda.locks import fork_safe_lock
from ruda.tensor.adjoint import adjoint
from ruda.tensor.creation import zeros_like
from ruda.tensor.history import History, attach, recording
from ruda.tensor.tensor import Tensor, copied, from_buffer, handle, stored

# ---- the kernel ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Which:
    """A kernel, and the parameters that gradients are given or asked of."""

    kernel: Kernel[Any]
    wanted: tuple[str, ...]


class AdjointKernel(Kernel[Any]):
    """The adjoint of a kernel, launched as one: its arguments, then the gradients."""

    def __init__(self, which: Which) -> None:
        kernel = which.kernel
        self.which = which
        self.py_func = kernel.py_func
        self.__name__ = f"{kernel.__name__}_adjoint"
        self.__qualname__, self.__module__ = f"{kernel.__qualname__}_adjoint", kernel.__module__
        self.options = replace(kernel.options, differentiable=False)
        self.signatures = ()
        self.constexprs = kernel.constexprs
        self.parameters = (*kernel.parameters, *(f"d_{name}" for name in which.wanted))
        self._lock = fork_safe_lock()
        self._specialisations = {}
        self._current = (None, {})
        self._configured = {}

    def translate(
        self, argument_types: Sequence[Type], *, block: Any = None,
        needs_block: Callable[[Function], bool] = lambda f: False,
    ) -> tuple[Function, tuple[Capture, ...]]:  # fmt: skip
        count = len(self.which.kernel.parameters)
        function, captures = self.which.kernel.translate(
            argument_types[:count], block=block, needs_block=needs_block
        )
        return adjoint(function, self.which.wanted), captures


# ---- launches on tensors -------------------------------------------------------------------------


@functools.lru_cache(maxsize=1024)
def adjoint_kernel(which: Which) -> AdjointKernel:
    return AdjointKernel(which)


def roles(
    kernel: Kernel[Any], types: tuple[Type, ...], launch: Launch
) -> tuple[set[str], set[str]]:
    """The names of the arrays that a kernel reads, and of those that it writes."""
    known = kernel.__dict__.setdefault("_roles", {})
    if types not in known:
        function, _ = kernel.translate(types, block=launch.block, needs_block=lambda f: False)
        reads = {
            e.array.name for e in ir.all_expressions(function.body)
            if isinstance(e, Load) and e.array.space == "global"
        }  # fmt: skip
        writes = {
            s.array.name for s in ir.statements(function.body)
            if isinstance(s, Store | Atomic) and s.array.space == "global"
        }  # fmt: skip
        known[types] = reads, writes
    found: tuple[set[str], set[str]] = known[types]
    return found


def launch_on_tensors(self: Tensor, kernel: Kernel[Any], launch: Launch, arguments: Any) -> None:
    """A launch that takes part in derivatives: what it wrote remembers what it was made of."""
    configuration = launch.grid, launch.block, launch.stream, launch.shared_bytes
    tensors = {
        name: a
        for name, a in zip(kernel.parameters, arguments, strict=True)
        if isinstance(a, Tensor)
    }
    if not recording() or not any(a.requires_grad for a in tensors.values()):
        kernel[configuration](*(plain(a, True) for a in arguments))
        return
    values = [a.detach().buffer() if isinstance(a, Tensor) else a for a in arguments]
    reads, writes = roles(kernel, kernel.argument_types(values), launch)
    written = {name: a for name, a in tensors.items() if name in writes}
    for name, a in written.items():
        check_writable(kernel, name, a, [b for n, b in tensors.items() if n != name])
    inputs: list[Any] = []
    for name, a in zip(kernel.parameters, arguments, strict=True):
        if name in written:
            kept = a.requires_grad or name in reads
            before = handle(stored(a.node())) if kept else None
            if before is not None:
                before._history = a._history
            inputs.append(before)
        else:
            inputs.append(a)
    kernel[configuration](
        *(plain(a, n in written) for n, a in zip(kernel.parameters, arguments, strict=True))
    )
    wanted = tuple(n for n, a in tensors.items() if a.dtype.kind == "float")
    which = Which(kernel, wanted)
    for name, a in written.items():
        if name in wanted:
            gradient = functools.partial(back_through, which, configuration, name)
            a._history = History(kernel.__name__, gradient, tuple(inputs))


def plain(a: Any, written: bool) -> Any:
    """The memory of a tensor, its own if the kernel writes it."""
    if not isinstance(a, Tensor):
        return a
    return a.detach().__ruda_argument__ if written else a.detach().buffer()


def check_writable(kernel: Kernel[Any], name: str, a: Tensor, others: list[Tensor]) -> None:
    problem = ""
    if any(b._storage is a._storage for b in others):
        problem = "is another argument too"
    elif a._view is not None:
        problem = "is a view of a tensor: write a whole one"
    elif a._history is not None and a._history.gradient is None:
        problem = "is where derivatives are taken: write to another tensor"
    if problem:
        raise GradientError(f"`{kernel.__name__}` writes `{name}`, which {problem}")


def back_through(
    which: Which, configuration: Any, output: str, g: Tensor, out: Tensor, *inputs: Any
) -> list[Any]:
    """The gradients of a launch's arguments from that of one array that it wrote."""
    kernel = which.kernel
    given: list[Any] = []
    for value in inputs:
        if value is None:
            given.append(out.detach().buffer())  # only its extents are asked for
        else:
            given.append(value.detach().buffer() if isinstance(value, Tensor) else value)
    gradients: dict[str, Tensor] = {}
    for name, value in zip(kernel.parameters, inputs, strict=True):
        if name in which.wanted:
            like = out if value is None else value
            start = from_buffer(copied(g), g.device) if name == output else zeros_like(like)
            gradients[name] = start
    try:
        adjoint_kernel(which)[configuration](
            *given, *(gradients[n].__ruda_argument__ for n in which.wanted)
        )
    except KernelError as error:
        raise user_error(error) from None
    found = []
    for name, value in zip(kernel.parameters, inputs, strict=True):
        wanted = isinstance(value, Tensor) and value.requires_grad and name in gradients
        found.append(
            attach(gradients[name], f"the derivative of `{kernel.__name__}`", no_second, inputs)
            if wanted
            else None
        )
    return found


def no_second(g: Any, out: Any, *inputs: Any) -> Any:
    raise GradientError("kernels have first derivatives only: write the second with custom_vjp")
