"""The names that a kernel may use, in numba-cuda's vocabulary.

Outside a kernel they raise; inside, the frontend finds the handler of the same `__ruda_name__`.
The docstrings are the reference: docs/language.md is generated from them.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from ruda import dtypes
from ruda.dtypes import DType
from ruda.errors import OutsideKernelError

F = TypeVar("F", bound=Callable[..., Any])


def _outside(name: str) -> Any:
    raise OutsideKernelError(f"`ruda.{name}` has a meaning only inside a @ruda.jit kernel")


def in_kernel(name: str) -> Callable[[F], F]:
    """Mark a stub as a name of the kernel language."""

    def mark(function: F) -> F:
        function.__ruda_name__ = name  # type: ignore[attr-defined]
        return function

    return mark


class Coordinates:
    """A launch coordinate with the axes x, y and z."""

    def __init__(self, name: str, doc: str) -> None:
        self.__ruda_name__ = name
        self.__doc__ = doc

    @property
    def x(self) -> int:
        return _outside(f"{self.__ruda_name__}.x")  # type: ignore[no-any-return]

    @property
    def y(self) -> int:
        return _outside(f"{self.__ruda_name__}.y")  # type: ignore[no-any-return]

    @property
    def z(self) -> int:
        return _outside(f"{self.__ruda_name__}.z")  # type: ignore[no-any-return]

    def __repr__(self) -> str:
        return f"ruda.{self.__ruda_name__}"


def _refuse_arithmetic(kind: type) -> None:
    """Names of kernels in the host's arithmetic say what they are, not that `+` has no meaning."""

    def method(self: Any, *others: Any) -> Any:
        return _outside(self.__ruda_name__)

    for name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "and", "or", "xor",
                 "lshift", "rshift"):  # fmt: skip
        setattr(kind, f"__{name}__", method)
        setattr(kind, f"__r{name}__", method)
    for name in ("lt", "le", "gt", "ge", "neg", "int", "float", "index"):
        setattr(kind, f"__{name}__", method)


_refuse_arithmetic(Coordinates)
threadIdx = Coordinates("threadIdx", "Index of the thread in its block.")
blockIdx = Coordinates("blockIdx", "Index of the block in the grid.")
blockDim = Coordinates("blockDim", "Threads of a block along each axis.")
gridDim = Coordinates("gridDim", "Blocks of the grid along each axis.")


class _Scalar:
    """A name that stands for one number of the running thread."""

    def __init__(self, name: str, doc: str) -> None:
        self.__ruda_name__, self.__doc__ = name, doc

    def __repr__(self) -> str:
        return f"ruda.{self.__ruda_name__}"


_refuse_arithmetic(_Scalar)
laneid = _Scalar("laneid", "Index of the thread in its warp, 0 to 31.")
warpsize = 32


@in_kernel("grid")
def grid(ndim: int) -> Any:
    """The thread's index in the whole grid: a number for 1, a tuple (x, y) or (x, y, z) for 2 or
    3."""
    _outside("grid")


@in_kernel("gridsize")
def gridsize(ndim: int) -> Any:
    """Threads of the whole grid along each axis."""
    _outside("gridsize")


@in_kernel("syncthreads")
def syncthreads() -> None:
    """Wait for all threads of the block; their writes are then visible to each other."""
    _outside("syncthreads")


@in_kernel("syncthreads_and")
def syncthreads_and(predicate: Any) -> int:
    """`syncthreads`, and 1 where the predicate is true for every thread, else 0."""
    return _outside("syncthreads_and")  # type: ignore[no-any-return]


@in_kernel("syncthreads_or")
def syncthreads_or(predicate: Any) -> int:
    """`syncthreads`, and 1 where the predicate is true for any thread, else 0."""
    return _outside("syncthreads_or")  # type: ignore[no-any-return]


@in_kernel("syncthreads_count")
def syncthreads_count(predicate: Any) -> int:
    """`syncthreads`, and the number of threads for which the predicate is true."""
    return _outside("syncthreads_count")  # type: ignore[no-any-return]


@in_kernel("syncwarp")
def syncwarp(mask: int = 0xFFFFFFFF) -> None:
    """Wait for the threads of the warp named by `mask`."""
    _outside("syncwarp")


@in_kernel("threadfence")
def threadfence() -> None:
    """Order this thread's memory accesses as seen by the device."""
    _outside("threadfence")


@in_kernel("threadfence_block")
def threadfence_block() -> None:
    """Order this thread's memory accesses as seen by its block."""
    _outside("threadfence_block")


@in_kernel("threadfence_system")
def threadfence_system() -> None:
    """Order this thread's memory accesses as seen by host and devices."""
    _outside("threadfence_system")


@in_kernel("shfl_sync")
def shfl_sync(mask: int, value: Any, lane: int, width: int = 32) -> Any:
    """The value that lane `lane` of the warp holds."""
    _outside("shfl_sync")


@in_kernel("shfl_up_sync")
def shfl_up_sync(mask: int, value: Any, delta: int, width: int = 32) -> Any:
    """The value of the lane `delta` below; the own value where there is none."""
    _outside("shfl_up_sync")


@in_kernel("shfl_down_sync")
def shfl_down_sync(mask: int, value: Any, delta: int, width: int = 32) -> Any:
    """The value of the lane `delta` above; the own value where there is none."""
    _outside("shfl_down_sync")


@in_kernel("shfl_xor_sync")
def shfl_xor_sync(mask: int, value: Any, lane_mask: int, width: int = 32) -> Any:
    """The value of the lane whose index is the own one xor `lane_mask`."""
    _outside("shfl_xor_sync")


@in_kernel("all_sync")
def all_sync(mask: int, predicate: Any) -> bool:
    """Whether the predicate is true in every lane of the mask."""
    return _outside("all_sync")  # type: ignore[no-any-return]


@in_kernel("any_sync")
def any_sync(mask: int, predicate: Any) -> bool:
    """Whether the predicate is true in any lane of the mask."""
    return _outside("any_sync")  # type: ignore[no-any-return]


@in_kernel("eq_sync")
def eq_sync(mask: int, predicate: Any) -> bool:
    """Whether the predicate is the same in every lane of the mask."""
    return _outside("eq_sync")  # type: ignore[no-any-return]


@in_kernel("ballot_sync")
def ballot_sync(mask: int, predicate: Any) -> int:
    """The lanes of the mask in which the predicate is true, as bits of a uint32."""
    return _outside("ballot_sync")  # type: ignore[no-any-return]


@in_kernel("match_any_sync")
def match_any_sync(mask: int, value: Any) -> int:
    """The lanes of the mask that hold the same value, as bits of a uint32."""
    return _outside("match_any_sync")  # type: ignore[no-any-return]


@in_kernel("match_all_sync")
def match_all_sync(mask: int, value: Any) -> Any:
    """(mask, True) if all lanes of the mask hold the same value, else (0, False)."""
    _outside("match_all_sync")


@in_kernel("activemask")
def activemask() -> int:
    """The lanes of the warp that run now, as bits of a uint32."""
    return _outside("activemask")  # type: ignore[no-any-return]


@in_kernel("lanemask_lt")
def lanemask_lt() -> int:
    """The lanes below the own one, as bits of a uint32."""
    return _outside("lanemask_lt")  # type: ignore[no-any-return]


@in_kernel("nanosleep")
def nanosleep(nanoseconds: int) -> None:
    """A hint that the thread may pause; never needed for correctness."""
    _outside("nanosleep")


@in_kernel("selp")
def selp(condition: Any, then: Any, otherwise: Any) -> Any:
    """`then` where the condition holds, else `otherwise`; both are computed."""
    _outside("selp")


@in_kernel("uniform")
def uniform(value: Any) -> Any:
    """Promise (checked in sim) that the value is the same in all threads of the block.

    A broken promise is a mistake: elsewhere each thread may have its own value, or the first's.
    """
    _outside("uniform")


@in_kernel("unroll")
def unroll(iterable: Any) -> Any:
    """Unroll a loop over `range` of compile-time bounds: `for k in ruda.unroll(range(4))`."""
    return iterable


class constexpr:
    """Annotation of a compile-time parameter: `def kernel(x, n: ruda.constexpr)`."""


class Namespace:
    """A group of names of the kernel language, such as `ruda.atomic`."""

    def __init__(self, name: str, doc: str, **members: Any) -> None:
        self._name, self.__doc__ = name, doc
        for key, value in members.items():
            setattr(self, key, value)

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...

    def __repr__(self) -> str:
        return f"<ruda.{self._name}: {', '.join(k for k in vars(self) if k[0] != '_')}>"


def _stub(name: str, doc: str) -> Callable[..., Any]:
    def stub(*args: Any, **kwargs: Any) -> Any:
        _outside(name)

    stub.__name__ = name.rsplit(".", 1)[-1]
    stub.__qualname__ = name
    stub.__doc__ = doc
    return in_kernel(name)(stub)


shared = Namespace(
    "shared",
    "Memory of a block.",
    array=_stub(
        "shared.array",
        "array(shape, dtype): one array for all threads of a block, undefined at first; "
        "shape 0: the launch's dynamic shared memory.",
    ),
)
local = Namespace(
    "local",
    "Memory of a thread.",
    array=_stub("local.array", "array(shape, dtype): an array of this thread, undefined at first."),
)
const = Namespace(
    "const",
    "Constant memory.",
    array_like=_stub("const.array_like", "array_like(a): a captured NumPy array as a constant."),
)


class VectorType:
    """A short vector such as `ruda.float32x4`, with the parts x, y, z and w.

    In a kernel: `v = ruda.float32x4(1, 2, 3, 4)`, arithmetic part by part, `v.x`, `v[k]`;
    `ruda.float32x4.load(a, i)` reads a[i] to a[i + 3], `ruda.float32x4.store(a, i, v)` writes them.
    """

    def __init__(self, name: str, dtype: DType, lanes: int) -> None:
        self.__name__, self.dtype, self.lanes = name, dtype, lanes
        self.names = ("x", "y", "z", "w")[:lanes]

    def __call__(self, *parts: Any) -> Any:
        _outside(self.__name__)

    def load(self, array: Any, index: int) -> Any:
        """The parts from consecutive elements of a one-dimensional array."""
        _outside(f"{self.__name__}.load")

    def store(self, array: Any, index: int, value: Any) -> None:
        """Write the parts to consecutive elements of a one-dimensional array."""
        _outside(f"{self.__name__}.store")

    def __repr__(self) -> str:
        return f"ruda.{self.__name__}"


VECTORS = {
    f"{d}x{n}": VectorType(f"{d}x{n}", d, n)
    for d in dtypes.ALL
    if d.name not in ("bool", "float16", "bfloat16") and d.kind != "complex"
    for n in (1, 2, 3, 4)
}

cg = Namespace(
    "cg",
    "Cooperative groups.",
    this_grid=_stub("cg.this_grid", "this_grid().sync() waits for all threads of the grid."),
    this_thread_block=_stub("cg.this_thread_block", "this_thread_block().sync() is syncthreads()."),
)

ATOMICS = {
    "add": "a[i] += value",
    "sub": "a[i] -= value",
    "max": "a[i] = max(a[i], value), NaN propagates",
    "min": "a[i] = min(a[i], value), NaN propagates",
    "nanmax": "a[i] = max(a[i], value), NaN ignored",
    "nanmin": "a[i] = min(a[i], value), NaN ignored",
    "and_": "a[i] &= value",
    "or_": "a[i] |= value",
    "xor": "a[i] ^= value",
    "inc": "a[i] = 0 if a[i] >= value else a[i] + 1",
    "dec": "a[i] = value if a[i] == 0 or a[i] > value else a[i] - 1",
    "exch": "a[i] = value",
    "cas": "cas(a, i, expected, new): a[i] = new if a[i] == expected",
    "compare_and_swap": "compare_and_swap(a, expected, new): a[0] = new if a[0] == expected",
}
atomic = Namespace(
    "atomic",
    "Indivisible updates that return the old value.",
    **{
        name: _stub(f"atomic.{name}", f"{doc}, indivisibly; returns the old value.")
        for name, doc in ATOMICS.items()
    },
)

NUMERIC = {
    "popc": "Number of set bits.",
    "brev": "The bits in reverse order.",
    "clz": "Number of leading zero bits.",
    "ffs": "1 + the place of the lowest set bit; 0 for 0.",
    "mulhi": "The high half of the product of two integers.",
    "fma": "x * y + z with one rounding.",
    "rsqrt": "1 / sqrt(x).",
    "cbrt": "The cube root.",
    "sigmoid": "1 / (1 + exp(-x)).",
    "sinpi": "sin(pi * x).",
    "cospi": "cos(pi * x).",
    "fmin": "The smaller; the other one if one is NaN.",
    "fmax": "The greater; the other one if one is NaN.",
    "rint": "The nearest integer, half to even.",
    "erf": "The error function.",
    "erfc": "1 - erf(x).",
    "tgamma": "The gamma function.",
    "signbit": "Whether the sign bit is set.",
}


def _function_of_numbers(name: str, doc: str) -> Callable[..., Any]:
    """Of numbers inside kernels; outside, the op on tensors if there is one."""

    def function(x: Any, /, *args: Any, **kwargs: Any) -> Any:
        tensor = importlib.import_module("ruda.tensor")
        if name not in tensor.OPS:
            _outside(name)
        return getattr(tensor, name)(x, *args, **kwargs)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = doc
    return in_kernel(name)(function)


_numeric = {name: _function_of_numbers(name, doc) for name, doc in NUMERIC.items()}
popc, brev, clz, ffs, mulhi = (_numeric[n] for n in ("popc", "brev", "clz", "ffs", "mulhi"))
fma, rsqrt, cbrt, sigmoid = (_numeric[n] for n in ("fma", "rsqrt", "cbrt", "sigmoid"))
sinpi, cospi, fmin, fmax = (_numeric[n] for n in ("sinpi", "cospi", "fmin", "fmax"))
rint, erf, erfc, tgamma, signbit = (
    _numeric[n] for n in ("rint", "erf", "erfc", "tgamma", "signbit")
)
