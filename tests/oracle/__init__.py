"""Run a kernel's undecorated Python function under CPython, thread by thread, on typed scalars.

The third oracle: it shares no code with ruda, not even the dtypes, so a mistake in the compiler's
front end or types cannot hide in it. The function is copied with other globals: the name bound to
the `ruda` module becomes `namespace`, `math` and `numpy` compute in the operands' type, device
functions are copied in the same way, builtins such as `min` and `int` follow the kernel language.

A scalar that has a type is a `Number`; Python's own `int`, `float` and `complex` are the weak
scalars, and `bool` is bool. NumPy scalars alone would not do: the language computes 8- and 16-bit
integers in int32, gives float32 for int / int, and makes integers and conversions total.

Where threads meet (barriers, warp operations) each kernel thread is a Python thread, and one baton
goes round: exactly one runs at any time, in a fixed order, so results repeat.

What a value's *run-time* type cannot tell, this oracle does not know. A variable is not widened by
an assignment that comes later (`m = x32[0]; m = m + x64[0]` starts in float32 here, in float64 in
the language); a float variable that is weak all along is computed in double; the arms of a ternary
are not promoted to each other; int64 and uint64 compare by value. Kernels meant for a bit-for-bit
comparison convert explicitly where that matters.

>>> def double(x):
...     i = ruda.grid(1)
...     if i < x.size:
...         x[i] *= 2.0
>>> x = np.arange(3, dtype=np.float32)
>>> launch(double, 1, 32, x, globals={"ruda": namespace})
>>> x
array([0., 2., 4.], dtype=float32)
"""

from __future__ import annotations

import builtins
import inspect
import math
import operator
import sys
import types
from collections.abc import Callable
from typing import Any

import numpy as np

from tests.oracle.arrays import POISON, Array, Record, poisoned, shape_of
from tests.oracle.functions import (
    BUILTINS,
    CASTS,
    FUNCTIONS,
    brev,
    clz,
    ffs,
    fma,
    function_of,
    mulhi,
    popc,
    printed,
    select,
    typed_math,
    typed_numpy,
)
from tests.oracle.scalars import UINT32, Number, dtype_of, lift, maximum, minimum, promote, typed
from tests.oracle.threads import (
    WARP,
    Block,
    OracleError,
    Thread,
    barrier,
    current,
    meet_others,
    run_alone,
    run_together,
    shuffle,
    vote,
)

__all__ = [
    "POISON",
    "Number",
    "OracleError",
    "dtype_of",
    "fma",
    "launch",
    "namespace",
    "poisoned",
    "printed",
    "promote",
    "source_of",
    "typed",
]


def _nan_ignoring(better: Callable[..., Any]) -> Callable[[Any, Any], Any]:
    return lambda old, new: new if old != old else old if new != new else better(old, new)


ATOMICS: dict[str, Callable[[Any, Any], Any]] = {
    "add": operator.add,
    "sub": operator.sub,
    "max": lambda old, new: maximum(old, new),
    "min": lambda old, new: minimum(old, new),
    "nanmax": _nan_ignoring(maximum),
    "nanmin": _nan_ignoring(minimum),
    "and_": operator.and_,
    "or_": operator.or_,
    "xor": operator.xor,
    "inc": lambda old, limit: 0 if old >= limit else old + 1,
    "dec": lambda old, limit: limit if old == 0 or old > limit else old - 1,
    "exch": lambda old, new: new,
}


def atomic(name: str) -> Callable[..., Any]:
    def call(array: Array, index: Any, value: Any) -> Any:
        old = array[index]
        array[index] = ATOMICS[name](old, typed(lift(value), array.dtype))
        return old

    return call


def compare_and_swap_at(array: Array, index: Any, old: Any, value: Any) -> Any:
    found = array[index]
    if found == old:
        array[index] = value
    return found


def shared_array(shape: Any, dtype: Any) -> Array:
    """One array per place in the source and block; size 0 is the launch's dynamic memory."""
    block, frame = current().block, sys._getframe(1)
    dtype = dtype_of(dtype)
    if shape_of(shape) == (0,):
        usable = len(block.dynamic) // dtype.itemsize * dtype.itemsize
        return Array(block.dynamic[:usable].view(dtype))
    key = (frame.f_code, frame.f_lasti)
    if key not in block.shared:
        block.shared[key] = Array(poisoned(shape, dtype))
    return block.shared[key]


class _Axes:
    """threadIdx and its kin."""

    def __init__(self, of: Callable[[Thread], Any]) -> None:
        self._of = of

    x = property(lambda self: self._of(current())[0])
    y = property(lambda self: self._of(current())[1])
    z = property(lambda self: self._of(current())[2])


def _positions() -> list[int]:
    t = current()
    return [i * n + k for i, n, k in zip(t.block.index, t.block.shape, t.index, strict=True)]


def grid(ndim: int) -> Any:
    return _positions()[0] if ndim == 1 else tuple(_positions()[:ndim])


def gridsize(ndim: int) -> Any:
    block = current().block
    sizes = [a * b for a, b in zip(block.grid, block.shape, strict=True)]
    return sizes[0] if ndim == 1 else tuple(sizes[:ndim])


class Namespace(types.SimpleNamespace):
    """Stands in for the module `ruda` inside a kernel."""

    laneid = property(lambda self: current().lane)


def _nothing(*arguments: Any) -> None:
    """Fences: one thread runs at a time, so memory is always in order."""


def unroll(iterable: Any) -> Any:
    """Only a hint."""
    return iterable


MEETINGS = {
    **{n: barrier(n) for n in ("syncthreads", "syncthreads_and", "syncthreads_or")},
    "syncthreads_count": barrier("syncthreads_count"),
    **{n: shuffle(n) for n in ("shfl_sync", "shfl_up_sync", "shfl_down_sync", "shfl_xor_sync")},
    **{n: vote(n) for n in ("syncwarp", "all_sync", "any_sync", "eq_sync", "ballot_sync")},
    **{n: vote(n) for n in ("match_any_sync", "match_all_sync")},
    "activemask": lambda: meet_others("activemask", None, None),
}
namespace = Namespace(
    **CASTS,
    **MEETINGS,
    **{n: v for n, v in FUNCTIONS.items() if n not in ("abs", "gamma")},
    grid=grid,
    gridsize=gridsize,
    threadIdx=_Axes(lambda t: t.index),
    blockIdx=_Axes(lambda t: t.block.index),
    blockDim=_Axes(lambda t: t.block.shape),
    gridDim=_Axes(lambda t: t.block.grid),
    warpsize=WARP,
    shared=types.SimpleNamespace(array=shared_array),
    local=types.SimpleNamespace(array=lambda shape, dtype: Array(poisoned(shape, dtype))),
    const=types.SimpleNamespace(array_like=lambda a: a if isinstance(a, Array) else Array(a)),
    atomic=types.SimpleNamespace(
        **{n: atomic(n) for n in ATOMICS},
        cas=compare_and_swap_at,
        compare_and_swap=lambda array, old, value: compare_and_swap_at(array, 0, old, value),
    ),
    threadfence=_nothing,
    threadfence_block=_nothing,
    threadfence_system=_nothing,
    lanemask_lt=lambda: Number((1 << current().lane) - 1, UINT32),
    popc=popc,
    brev=brev,
    clz=clz,
    ffs=ffs,
    fma=fma,
    rsqrt=function_of(lambda x: 1 / np.sqrt(x)),
    sigmoid=function_of(lambda x: 1 / (1 + np.exp(-x))),
    sinpi=function_of(lambda x: np.sin(np.pi * x)),
    cospi=function_of(lambda x: np.cos(np.pi * x)),
    tgamma=FUNCTIONS["gamma"],
    mulhi=mulhi,
    nanosleep=_nothing,
    selp=select,
    minimum=minimum,
    maximum=maximum,
    unroll=unroll,
    uniform=lambda value: value,
    constexpr=None,
)


class Copier:
    """Copies functions with the globals and closure cells that the oracle wants them to see."""

    def __init__(self, extra: dict[str, Any]) -> None:
        self.extra = extra
        self.done: dict[Any, Callable[..., Any]] = {}
        self.meets = False  # whether any function mentions a barrier or a warp operation

    def function(self, function: Callable[..., Any]) -> Callable[..., Any]:
        if function in self.done:
            return self.done[function]
        assert isinstance(function, types.FunctionType)
        names: dict[str, Any] = {"__builtins__": builtins, "__name__": function.__name__}
        cells = tuple(types.CellType() for _ in function.__closure__ or ())
        copy = types.FunctionType(
            function.__code__, names, function.__name__, function.__defaults__, cells
        )
        copy.__kwdefaults__ = function.__kwdefaults__
        self.done[function] = copy  # before its globals: functions may name each other
        names |= BUILTINS
        mentioned = _names(function.__code__)
        self.meets |= not mentioned.isdisjoint(MEETINGS)
        for name in mentioned:
            if name in function.__globals__:
                names[name] = self.value(function.__globals__[name])
        names |= self.extra
        for cell, old in zip(cells, function.__closure__ or (), strict=True):
            cell.cell_contents = self.value(old.cell_contents)
        return copy

    def value(self, value: Any) -> Any:
        """What the kernel sees for a global or a captured value."""
        module = getattr(value, "__name__", None)
        if isinstance(value, types.ModuleType):
            stand_in = {"ruda": namespace, "numba.cuda": namespace}
            stand_in |= {"math": typed_math, "numpy": typed_numpy}
            return stand_in.get(str(module), value)
        if str(getattr(value, "__module__", "")).startswith(__name__):
            return value  # the oracle's own
        if hasattr(value, "py_func"):
            return self.function(value.py_func)
        if isinstance(value, types.FunctionType) and value.__module__ not in ("math", "numpy"):
            return self._public(value) or self.function(value)
        return self._public(value) or argument(value)

    def _public(self, value: Any) -> Any:
        """`from ruda import grid, float32`: the same object as an attribute of the module."""
        if type(value).__name__ == "DType":
            return CASTS.get(value.name) or CASTS["bool_"]
        if isinstance(value, type) and issubclass(value, np.generic):
            return CASTS.get(np.dtype(value).name) or CASTS["bool_"]
        if isinstance(value, (int, float, complex, str, tuple, np.ndarray, np.generic)):
            return None
        module = sys.modules.get("ruda")
        for name in vars(namespace):
            if module is not None and getattr(module, name, self) is value:
                return getattr(namespace, name)
        for source, stand_in in ((math, typed_math), (np, typed_numpy)):
            name = getattr(value, "__name__", "")
            if name and getattr(source, name, self) is value:
                return getattr(stand_in, name)
        return None


def _names(code: types.CodeType) -> set[str]:
    nested = [c for c in code.co_consts if isinstance(c, types.CodeType)]
    return {*code.co_names}.union(*(_names(c) for c in nested))


def argument(value: Any) -> Any:
    """An argument or captured value as the kernel sees it."""
    match value:
        case np.ndarray():
            return Array(value)
        case np.void():
            return Record(value)
        case np.generic():
            return lift(value)
        case tuple():
            items = [argument(v) for v in value]
            return type(value)._make(items) if hasattr(value, "_make") else tuple(items)
    return value


def _three(extent: int | tuple[int, ...]) -> tuple[int, ...]:
    sizes = extent if isinstance(extent, tuple) else (extent,)
    return (*sizes, 1, 1)[:3]


def launch(
    kernel: Any,
    grid: int | tuple[int, ...],
    block: int | tuple[int, ...],
    *arguments: Any,
    shared: int = 0,
    order: int = 1,
    globals: dict[str, Any] | None = None,
) -> None:
    """Run `kernel` (a function, or an object with `.py_func`) over a grid; arrays are written.

    `shared` is the dynamic shared memory in bytes. `order=-1` runs blocks and threads backwards:
    a kernel whose result then differs depends on an order that it must not depend on.
    """
    copier = Copier(globals or {})
    function = copier.function(getattr(kernel, "py_func", kernel))
    values = [copier.value(v) for v in arguments]
    shape, extent = _three(block), _three(grid)
    printed.clear()
    indices = [i[::-1] for i in np.ndindex(extent[::-1])][::order]
    for index in indices:
        state = Block(index, shape, extent, shared)
        if copier.meets:
            run_together(state, function, values, order)
            continue
        run_alone(state, function, values, order)


def source_of(kernel: Any) -> str:
    """The source text of the undecorated function, for messages of failed comparisons."""
    return inspect.getsource(getattr(kernel, "py_func", kernel))
