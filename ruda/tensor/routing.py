"""Where a tensor is, what a device can do, and ops that users make of scalar functions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ruda import backends
from ruda.dtypes import as_dtype
from ruda.errors import DTypeError, GradientError
from ruda.jit.ufuncs import Reduce, Vectorized
from ruda.tensor import creation, factors, linalg, memory
from ruda.tensor.history import attach, recording
from ruda.tensor.ops import OPS
from ruda.tensor.tensor import Tensor, from_buffer, here


def device_of(x: Any, /) -> str:
    """The name of the device that holds an array.

    >>> import ruda
    >>> ruda.device_of(ruda.ones(3))
    'cpu'
    """
    name = getattr(x, "device", None)
    if isinstance(name, str):
        return here(name)
    if hasattr(x, "__array_interface__"):
        return "cpu"
    raise TypeError(f"{type(x).__name__} is no array: it is on no device")


# The kinds of dtypes that functions made of others do not take; a test calls every public function.
REFUSED: dict[str, set[str]] = {
    "bool": {"bincount", "cross", "cummax", "cummin", "nanmax", "nanmin", "vecdot"},
    "float": {"bincount"},
    "complex": {
        "argmax", "argmin", "bincount", "cummax", "cummin", "histogram", "ihfft", "interp",
        "logsumexp", "median", "nanargmax", "nanargmin", "nanmax", "nanmedian", "nanmin",
        "nanpercentile", "nanquantile", "percentile", "quantile", "rfft", "rfftn",
    },
}  # fmt: skip
BY_NUMPY_ALONE = {"isin", "searchsorted"}  # of complex numbers, which have no order
MADE_OF = {"cond": "svdvals", "lstsq": "svd"}


def supports(op: Any, dtype: Any, device: Any = None) -> bool:
    """Whether a device computes an op, a name or a function of ruda, at a dtype.

    >>> import ruda
    >>> ruda.supports("exp", "float32"), ruda.supports(ruda.bitwise_and, "float32", "cpu")
    (True, False)
    """
    name = op if isinstance(op, str) else getattr(op, "__name__", "")
    kind, place = as_dtype(dtype), here(device)
    info = next((d for d in backends.devices() if d.name == place), None)
    if info is None:
        known = ", ".join(d.name for d in backends.devices())
        raise ValueError(f"no device {place!r} here; there are {known}")
    if name in OPS:
        try:
            count = len(OPS[name].parameters)
            OPS[name].dtypes((kind,) * count if name != "where" else (as_dtype("bool"), kind, kind))
        except DTypeError:
            return False
        return info.dtypes.get(kind.name) in ("fast", "computes")
    bare = name.removeprefix("linalg.").removeprefix("fft.")
    bare = MADE_OF.get(bare, bare)
    host = bare in linalg.FACTORISATIONS or getattr(creation.LIBRARY.get(bare), "host_only", False)
    if bare in REFUSED.get(kind.kind, ()) or (host and kind.bits == 16):
        return False
    if kind.kind == "complex" and bare in BY_NUMPY_ALONE and place != "cpu":
        return False
    if host and not memory.on_host(place):
        kernels = creation.kernels_of(bare) is not None
        exact = kind.kind in ("bool", "int", "uint")
        able = exact or kind in factors.factorised(bare, place)
        return kernels and able and info.dtypes.get(kind.name) in ("fast", "computes")
    import ruda.tensor

    spaces = (ruda.tensor, linalg, ruda.tensor.fft)
    if not any(bare in s.__all__ for s in spaces):
        raise ValueError(f"ruda has no op {name!r}")
    return bool(info.dtypes.get(kind.name))


class Elementwise(Vectorized):
    """An op on tensors that a function of numbers makes: see `elementwise`."""

    def __init__(self, function: Any, gradient: Any, fastmath: bool | None) -> None:
        super().__init__(function, (), fastmath)
        self.gradient = gradient

    def __repr__(self) -> str:
        return f"<ruda.elementwise {self.__name__} of {self.nin}>"


def elementwise(
    function: Any = None, *, gradient: Callable[..., Sequence[Any]] | None = None,
    fastmath: bool | None = None,
) -> Any:  # fmt: skip
    """Make an op on tensors of a function of numbers, which may branch and loop.

    `gradient(g, result, *inputs)` gives the gradient for each input, by ops on tensors; without
    one the op refuses to be differentiated.

    >>> import ruda
    >>> @ruda.elementwise(gradient=lambda g, y, x: (ruda.where(x > 0, g, 0.1 * g),))
    ... def leaky(x):
    ...     return x if x > 0 else x * 0.1
    >>> leaky(ruda.asarray([2.0, -1.0])).tolist()
    [2.0, -0.10000000149011612]
    """
    if function is None:
        return lambda function: Elementwise(function, gradient, fastmath)
    return Elementwise(function, gradient, fastmath)


def call_vectorized(self: Tensor, call: Vectorized, arguments: Sequence[Any], out: Any) -> Any:
    """A function of arrays on tensors: a tensor where they are."""
    if isinstance(out, Tensor):
        raise TypeError(f"`{call.__name__}` gives a new tensor: leave `out` away")
    given = tuple(v.detach().buffer() if isinstance(v, Tensor) else v for v in arguments)
    result = from_buffer(memory_of(call(*given)), self.device)
    gradient = getattr(call, "gradient", None)
    wanted = any(isinstance(v, Tensor) and v.requires_grad for v in arguments)
    if gradient is None and wanted and recording():
        raise GradientError(
            f"`{call.__name__}` has no gradient: give one with ruda.elementwise(gradient=...), or "
            "use `.detach()` to take its input as constant"
        )
    return attach(result, call.__name__, gradient, tuple(arguments)) if gradient else result


def memory_of(value: Any) -> Any:
    """NumPy's scalars as arrays without axes."""
    return np.asarray(value) if isinstance(value, np.generic) else value


def call_reduce(x: Tensor, call: Reduce, size: int | None, init: Any, stream: Any) -> Tensor:
    """All elements of a tensor combined: a tensor without axes, where it is."""
    if x.requires_grad and recording():
        raise GradientError(f"`{call.__name__}` has no gradient: use `.detach()`")
    out = memory.allocate((1,), x.dtype, x.device)
    source = memory.view(x.buffer(), memory.contiguous((x.size,))) if x._view is None else (
        creation.concat([x], axis=None).buffer()
    )  # fmt: skip
    call(source, size, out, init, stream)
    return from_buffer(memory.view(out, memory.contiguous(())), x.device)
