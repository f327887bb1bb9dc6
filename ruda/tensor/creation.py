"""Tensors from nothing, and what is known of dtypes and devices: the standard's namespace."""

from __future__ import annotations

import functools
import inspect
import math
import operator
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np

from ruda import backends, dtypes
from ruda.backends import interop
from ruda.backends.base import DeviceArray, check_size
from ruda.dtypes import DType, as_dtype, default_float, default_of, promote
from ruda.errors import DTypeError, LaunchTypeError, ShapeError, shown
from ruda.tensor import graph, memory
from ruda.tensor.graph import WEAK, leaf
from ruda.tensor.history import attach, refuse
from ruda.tensor.memory import View
from ruda.tensor.primitives import run
from ruda.tensor.tensor import (
    Tensor,
    as_axes,
    asarray,
    astype,
    broadcast_to,
    default_int,
    from_buffer,
    from_node,
    function,
    handle,
    here,
    host_only,
    reshape,
    reshaped,
    signature,
    stored,
    t,
)

# ---- values --------------------------------------------------------------------------------------


def as_shape(shape: Any) -> tuple[int, ...]:
    """A shape given as a number, tuple, list or array of NumPy's.

    >>> as_shape([2, 3]), as_shape(4)
    ((2, 3), (4,))
    """
    shape = shape.tolist() if isinstance(shape, np.ndarray) else shape
    items = shape if isinstance(shape, tuple | list) else (shape,)
    out = tuple(operator.index(n) for n in items)
    if any(n < 0 for n in out):
        raise ValueError(f"a shape has no negative lengths: {shown(out)}")
    check_size(out)
    return out


def full(shape: Any, fill_value: Any, *, dtype: Any = None, device: Any = None) -> Tensor:
    """A tensor of one value.

    >>> import ruda
    >>> ruda.full((2, 2), 7)
    Tensor([[7, 7],
            [7, 7]], dtype=int64, device='cpu')
    """
    if isinstance(fill_value, Tensor):
        refuse("full", fill_value)
        fill_value = fill_value.numpy()[()]
    if dtype is not None:
        kind = as_dtype(dtype)
    elif type(fill_value) in WEAK:
        kind = default_int(here(device)) if type(fill_value) is int else (
            graph.number_dtype(fill_value)
        )  # fmt: skip
    else:
        kind = as_dtype(np.asarray(fill_value).dtype)
    place, number = here(device), np.asarray(fill_value).item()
    size = as_shape(shape)
    plain = kind.kind in ("float", "int", "uint") and number in (0, 1)
    if plain and not memory.on_host(place) and math.prod(size) >= 4096:
        return from_buffer(run.full(size, int(number), kind, place), place)
    value = np.full(size, kind(number), kind.numpy)
    return from_buffer(memory.from_host(value, place), place)


def zeros(shape: Any, *, dtype: Any = None, device: Any = None) -> Tensor:
    """A tensor of zeros, of the default float."""
    return full(shape, 0, dtype=dtype or default_float(), device=device)


def ones(shape: Any, *, dtype: Any = None, device: Any = None) -> Tensor:
    """A tensor of ones, of the default float."""
    return full(shape, 1, dtype=dtype or default_float(), device=device)


def empty(shape: Any, *, dtype: Any = None, device: Any = None) -> Tensor:
    """A tensor whose elements are not set, of the default float."""
    place = here(device)
    kind = as_dtype(dtype) if dtype is not None else default_float()
    return from_buffer(memory.allocate(as_shape(shape), kind, place), place)


def full_like(x: Tensor, /, fill_value: Any, *, dtype: Any = None, device: Any = None) -> Tensor:
    """A tensor of one value, with the shape, dtype and device of `x`."""
    return full(x.shape, fill_value, dtype=dtype or x.dtype, device=device or x.device)


def zeros_like(x: Tensor, /, *, dtype: Any = None, device: Any = None) -> Tensor:
    """Zeros with the shape, dtype and device of `x`."""
    return full_like(x, 0, dtype=dtype, device=device)


def ones_like(x: Tensor, /, *, dtype: Any = None, device: Any = None) -> Tensor:
    """Ones with the shape, dtype and device of `x`."""
    return full_like(x, 1, dtype=dtype, device=device)


def empty_like(x: Tensor, /, *, dtype: Any = None, device: Any = None) -> Tensor:
    """A tensor that is not set, with the shape, dtype and device of `x`."""
    return empty(x.shape, dtype=dtype or x.dtype, device=device or x.device)


def arange(
    start: Any, /, stop: Any = None, step: Any = 1, *, dtype: Any = None, device: Any = None
) -> Tensor:
    """Numbers from `start` (0 if one number is given) up to, not including, `stop`.

    >>> import ruda
    >>> ruda.arange(2, 8, 3)
    Tensor([2, 5], dtype=int64, device='cpu')
    """
    if stop is None:
        start, stop = 0, start
    whole = all(isinstance(v, int | np.integer) for v in (start, stop, step))
    kind = default_int(here(device)) if whole else default_float()
    kind = kind if dtype is None else as_dtype(dtype)
    (count,) = as_shape(max(0, math.ceil((stop - start) / step)))
    values = start + step * np.arange(count, dtype=np.int64 if whole else np.float64)
    return asarray(values, dtype=kind, device=device)


def linspace(
    start: Any,
    stop: Any,
    /,
    num: int,
    *,
    dtype: Any = None,
    device: Any = None,
    endpoint: bool = True,
) -> Tensor:
    """`num` numbers at equal distances from `start` to `stop`."""
    place = next((v.device for v in (start, stop) if isinstance(v, Tensor)), device)
    start, stop = (v.item() if isinstance(v, Tensor) else v for v in (start, stop))
    is_complex = isinstance(start, complex) or isinstance(stop, complex)
    kind = default_of(WEAK[complex]) if is_complex else default_float()
    (num,) = as_shape(num)
    values = np.linspace(start, stop, num, endpoint=endpoint)
    return asarray(values, dtype=dtype or kind, device=device or place)


SENT = 1 << 16  # elements from which it is worth a kernel not to send them to a device


def eye(
    n_rows: int, n_cols: int | None = None, /, *, k: int = 0, dtype: Any = None, device: Any = None
) -> Tensor:
    """Ones on the k-th diagonal."""
    kind = as_dtype(dtype) if dtype is not None else default_float()
    n, m = as_shape((n_rows, n_rows if n_cols is None else n_cols))
    place = here(device)
    if memory.on_host(place) or n * m < SENT:
        return asarray(np.eye(n, m, k), dtype=kind, device=place)
    row, column = _places(n, m, place)
    return astype(t.equal(row + _bounded(k, n, m), column), kind)


def tril(x: Tensor, /, *, k: int = 0) -> Tensor:
    """The matrix with zeros above its k-th diagonal."""
    return _triangle("tril", x, operator.le, k)


def triu(x: Tensor, /, *, k: int = 0) -> Tensor:
    """The matrix with zeros below its k-th diagonal."""
    return _triangle("triu", x, operator.ge, k)


def _triangle(name: str, x: Tensor, kept: Callable[[Any, Any], Any], k: int) -> Tensor:
    if x.ndim < 2:
        raise ShapeError(f"`{name}` is of matrices, not of shape {x.shape}")
    n, m = x.shape[-2:]
    far = _bounded(k, n, m)
    if memory.on_host(x.device):
        mask = asarray(kept(np.arange(m), np.arange(n)[:, None] + far), device=x.device)
    else:
        row, column = _places(n, m, x.device)
        mask = kept(column, row + far)
    return function("where")(mask, x, False if x.dtype.kind == "bool" else 0)


def _places(n: int, m: int, device: str) -> tuple[Tensor, Tensor]:
    """The rows' and the columns' numbers of an n x m matrix: a line goes to the device, no mask."""
    line = asarray(np.arange(max(n, m), dtype=np.int32), device=device)
    return line[:n][:, None], line[:m]


def _bounded(k: int, n: int, m: int) -> int:
    """A diagonal's number, or that of one as far outside of the matrix."""
    return max(-n - m, min(k, n + m))


def from_dlpack(x: Any, /, *, device: Any = None, copy: bool | None = None) -> Tensor:
    """A tensor of another library's array (NumPy, PyTorch, JAX, CuPy, ...), at the same memory.

    It is where the array is. `copy=True`, another `device` and elements that lie at no multiples of
    their size make a copy, which `copy=False` refuses with ValueError. A tensor never writes memory
    that it shares: what is assigned to it goes into a copy of its own. BufferError: what the array
    cannot give. `as_cuda_array` gives memory that kernels write.

    >>> import numpy as np, ruda
    >>> ruda.from_dlpack(np.arange(3.0)[::-1])
    Tensor([2., 1., 0.], dtype=float64, device='cpu')
    """
    refuse("from_dlpack", x)
    if isinstance(x, Tensor):
        own = handle(x._storage, x._view)
        if copy is False and device is not None and here(device) != x.device:
            raise ValueError(f"a tensor on {x.device} gets to {here(device)} only by a copy")
        return asarray(own, device=device, copy=copy)
    try:
        found = interop.from_dlpack(x)
    except LaunchTypeError as error:
        raise BufferError(str(error)) from error
    place, size = found.device if device is None else here(device), found.itemsize
    shared = place == found.device or (memory.on_host(place) and memory.on_host(found.device))
    shared = shared and not any(n % size for n in (found.offset, *found.strides))
    if copy is False and not shared:
        raise ValueError(f"an array of {found.dtype} on {found.device} gets to {place} by a copy")
    if copy or not shared:
        return asarray(found, device=place, copy=True)
    # All of its memory, and the array as a view of that: its axes may be in any order.
    whole: Any = DeviceArray(
        found._backend, found.storage, (found.storage.nbytes // size,), found.dtype, (size,), 0
    )
    if memory.on_host(place):
        whole = np.asarray(whole)
    node = leaf(whole, as_dtype(found.dtype), place)
    node.exported = True
    view = View(found.shape, tuple(s // size for s in found.strides), found.offset // size)
    if view == memory.contiguous(node.shape):
        return from_node(node)
    return handle(stored(node), view)


def meshgrid(*arrays: Tensor, indexing: str = "xy") -> tuple[Tensor, ...]:
    """Coordinates of a grid from those along its axes."""
    if indexing not in ("xy", "ij"):
        raise ValueError(f"indexing={indexing!r}: expected xy or ij")
    count = len(arrays)
    shape = [a.shape[0] for a in arrays]
    order = list(range(count))
    if indexing == "xy" and count > 1:
        order[:2] = [1, 0]
    final = tuple(shape[k] for k in order)
    return tuple(
        broadcast_to(
            basic_view_of(a, tuple(slice(None) if order[k] == n else None for k in range(count))),
            final,
        )
        for n, a in enumerate(arrays)
    )


def basic_view_of(x: Tensor, items: tuple[Any, ...]) -> Tensor:
    return x[items]


# ---- axes ----------------------------------------------------------------------------------------


def permute_dims(x: Tensor, /, axes: Sequence[int]) -> Tensor:
    """The axes in another order: a view."""
    wanted = tuple(operator.index(a) % max(x.ndim, 1) for a in axes)
    if sorted(wanted) != list(range(x.ndim)):
        raise ValueError(f"{tuple(axes)} is not an order of {x.ndim} axes")
    return x.permute(wanted)


def matrix_transpose(x: Tensor, /) -> Tensor:
    """The last two axes exchanged: a view."""
    return x.mT


def moveaxis(x: Tensor, source: Any, destination: Any, /) -> Tensor:
    """Axes moved to other places, the others in order: a view."""
    order = np.moveaxis(np.empty((0,) * 0 + tuple(range(1, x.ndim + 1))), source, destination)
    return x.permute(tuple(n - 1 for n in order.shape))


def expand_dims(x: Tensor, /, axis: Any = 0) -> Tensor:
    """With an axis of length 1 put in: a view."""
    given = axis if isinstance(axis, tuple | list) else (axis,)
    ndim = x.ndim + len(given)
    wanted = set()
    for a in given:
        if not -ndim <= a < ndim:
            raise IndexError(f"axis {a} of a tensor with {ndim} axes")
        wanted.add(a % ndim)
    if len(wanted) < len(given):
        raise ValueError(f"an axis stands twice in {given}")
    return basic_view_of(x, tuple(None if k in wanted else slice(None) for k in range(ndim)))


def squeeze(x: Tensor, /, axis: Any) -> Tensor:
    """Without axes of length 1: a view."""
    axes = as_axes(axis, x.ndim)
    long = [a for a in axes if x.shape[a] != 1]
    if long:
        raise ValueError(f"axis {long[0]} has {x.shape[long[0]]} elements, not 1")
    return basic_view_of(x, tuple(0 if k in axes else slice(None) for k in range(x.ndim)))


def flip(x: Tensor, /, *, axis: Any = None) -> Tensor:
    """The elements in reverse order along axes: a view."""
    axes = as_axes(axis, x.ndim)
    back = slice(None, None, -1)
    return basic_view_of(x, tuple(back if k in axes else slice(None) for k in range(x.ndim)))


def concat(arrays: Sequence[Tensor], /, *, axis: int | None = 0) -> Tensor:
    """Tensors behind each other along an axis; with `axis=None` all elements in a row."""
    from ruda.tensor.tensor import reshape

    if not arrays:
        raise ValueError("nothing to put together")
    graph.check_together("concat", arrays)
    if axis is None:
        arrays, axis = [reshape(a, (-1,)) for a in arrays], 0
    kind = result_type(*arrays)
    k = as_axes(axis, arrays[0].ndim)[0]
    shape = list(arrays[0].shape)
    shape[k] = sum(a.shape[k] for a in arrays)
    out = empty(tuple(shape), dtype=kind, device=arrays[0].device)
    start = 0
    for a in arrays:
        if a.shape[:k] + a.shape[k + 1 :] != out.shape[:k] + out.shape[k + 1 :]:
            raise ValueError(f"shapes {[b.shape for b in arrays]} differ beside axis {axis}")
        stop = start + a.shape[k]
        out[(*(slice(None),) * k, slice(start, stop))] = astype(a, kind, copy=False).detach()
        start = stop

    def gradient(g: Tensor, out: Tensor, *arrays: Tensor) -> list[Tensor]:
        ends = np.cumsum([a.shape[k] for a in arrays])
        before = (slice(None),) * k
        return [
            g[(*before, slice(int(end) - a.shape[k], int(end)))]
            for a, end in zip(arrays, ends, strict=True)
        ]

    return attach(out, "concat", gradient, tuple(arrays))


def stack(arrays: Sequence[Tensor], /, *, axis: int = 0) -> Tensor:
    """Tensors of one shape along a new axis."""
    return concat([expand_dims(a, axis) for a in arrays], axis=axis)


def unstack(x: Tensor, /, *, axis: int = 0) -> tuple[Tensor, ...]:
    """The parts along an axis: views."""
    k = as_axes(axis, x.ndim)[0]
    return tuple(basic_view_of(x, (*(slice(None),) * k, n)) for n in range(x.shape[k]))


def broadcast_arrays(*arrays: Tensor) -> tuple[Tensor, ...]:
    """All at their common shape: views."""
    shape = broadcast_shapes(*(a.shape for a in arrays))
    return tuple(broadcast_to(a, shape) for a in arrays)


def broadcast_shapes(*shapes: tuple[int, ...]) -> tuple[int, ...]:
    """The common shape."""
    return graph.broadcast("broadcast_shapes", [as_shape(s) for s in shapes]) if shapes else ()


def roll(x: Tensor, /, shift: Any, *, axis: Any = None) -> Tensor:
    """The elements moved along axes; what leaves at one end comes in at the other."""
    from ruda.tensor.tensor import reshape

    if axis is None:
        return reshape(roll(reshape(x, (-1,)), shift, axis=0), x.shape)
    shifts = shift if isinstance(shift, tuple) else (shift,)
    axes = axis if isinstance(axis, tuple) else (axis,) * len(shifts)
    for s, a in zip(shifts, axes, strict=True):
        k = as_axes(a, x.ndim)[0]
        n = x.shape[k]
        if n:
            before = (slice(None),) * k
            cut = (-s) % n
            x = concat([x[(*before, slice(cut, None))], x[(*before, slice(0, cut))]], axis=k)
    return x


# ---- repetition and differences ------------------------------------------------------------------


def tile(x: Tensor, repetitions: Any, /) -> Tensor:
    """The tensor several times along each axis.

    >>> import ruda
    >>> ruda.tile(ruda.asarray([1, 2]), (2, 2)).tolist()
    [[1, 2, 1, 2], [1, 2, 1, 2]]
    """
    from ruda.tensor.tensor import reshape

    counts = as_shape(repetitions)
    ndim = max(x.ndim, len(counts))
    counts = (1,) * (ndim - len(counts)) + counts
    shape = (1,) * (ndim - x.ndim) + x.shape
    spread = reshape(x, tuple(n for m in shape for n in (1, m)))
    spread = broadcast_to(
        spread, tuple(n for pair in zip(counts, shape, strict=True) for n in pair)
    )
    return reshape(spread, tuple(c * n for c, n in zip(counts, shape, strict=True)))


def repeat(x: Tensor, repeats: Any, /, *, axis: int | None = None) -> Tensor:
    """Each element several times: a number of times, or as many as `repeats` says for each.

    >>> import ruda
    >>> ruda.repeat(ruda.asarray([1, 2]), ruda.asarray([3, 1])).tolist()
    [1, 1, 1, 2]
    """
    from ruda.tensor.tensor import reshape

    if axis is None:
        x, axis = reshape(x, (x.size,)), 0
    k = as_axes(axis, x.ndim)[0]
    n = x.shape[k]
    counts = np.asarray(repeats)
    if isinstance(repeats, int):
        as_shape(abs(repeats))  # what NumPy's integers cannot hold no memory can
    if counts.dtype.kind not in "iu" or (counts < 0).any():
        raise ValueError(f"`repeat` takes counts that are not negative integers: {repeats}")
    if counts.ndim == 0 or counts.size == 1:
        times = int(counts.reshape(()))
        spread = broadcast_to(expand_dims(x, k + 1), (*x.shape[: k + 1], times, *x.shape[k + 1 :]))
        return reshape(spread, (*x.shape[:k], n * times, *x.shape[k + 1 :]))
    if counts.shape != (n,):
        raise ShapeError(f"{counts.shape} counts for {n} elements along axis {axis}")
    places = asarray(np.repeat(np.arange(n), counts), device=x.device)
    return t.take(x, places, axis=k)


def diff(
    x: Tensor, /, *, axis: int = -1, n: int = 1, prepend: Tensor | None = None,
    append: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Differences of neighbours along an axis, `n` times over."""
    if n < 0:
        raise ValueError(f"n={n}: how often differences are taken is not negative")
    k = as_axes(axis, x.ndim)[0]
    if prepend is not None or append is not None:
        x = concat([p for p in (prepend, x, append) if p is not None], axis=k)
    before = (slice(None),) * k
    minus = function("not_equal" if x.dtype.kind == "bool" else "subtract")
    for _ in range(n):
        x = minus(x[(*before, slice(1, None))], x[(*before, slice(0, -1))])
    return x


def isin(x1: Any, x2: Any, /, *, invert: bool = False) -> Tensor:
    """Whether each element of `x1` is among those of `x2`.

    >>> import ruda
    >>> ruda.isin(ruda.asarray([1, 2, 3]), ruda.asarray([3, 1])).tolist()
    [True, False, True]
    """
    from ruda.tensor.tensor import reshape

    place = next((v.device for v in (x1, x2) if isinstance(v, Tensor)), None)
    x1, x2 = (v if isinstance(v, Tensor) else asarray(v, device=place) for v in (x1, x2))
    kind = result_type(x1, x2)
    if x2.size == 0:
        found = full(x1.shape, False, device=x1.device)
    else:
        ordered = t.sort(astype(reshape(x2.detach(), (-1,)), kind, copy=False))
        wanted = reshape(astype(x1.detach(), kind, copy=False), (-1,))
        where = t.searchsorted(ordered, wanted)
        where = function("minimum")(where, x2.size - 1)
        found = reshape(t.take(ordered, where, axis=0) == wanted, x1.shape)
    return function("logical_not")(found) if invert else found


# ---- statistics that are made of other ops -------------------------------------------------------


Statistic = TypeVar("Statistic", bound=Callable[..., Any])


def in_single(call: Statistic) -> Statistic:
    """A statistic that is computed in 32 bits of numbers of 16, whose sums and squares overflow."""

    @functools.wraps(call)
    def wide(x: Tensor, *values: Any, **options: Any) -> Any:
        if x.dtype.kind != "float" or x.dtype.bits != 16:
            return call(x, *values, **options)
        return astype(call(astype(x, dtypes.float32), *values, **options), x.dtype)

    return wide  # type: ignore[return-value]


@in_single
def mean(x: Tensor, /, *, axis: Any = None, keepdims: bool = False) -> Tensor:
    """The sum divided by the number of elements."""
    axes = as_axes(axis, x.ndim)
    count = math.prod(x.shape[a] for a in axes)
    x = x if x.dtype.is_inexact else astype(x, default_float())
    return function("sum")(x, axis=axes, keepdims=keepdims) / float(count)


@in_single
def var(
    x: Tensor, /, *, axis: Any = None, correction: float = 0.0, keepdims: bool = False
) -> Tensor:
    """The mean of the squared distances from the mean; `correction` is taken from the count.

    That of complex numbers is real.
    """
    axes = as_axes(axis, x.ndim)
    count = math.prod(x.shape[a] for a in axes)
    away = x - mean(x, axis=axes, keepdims=True)
    total = function("sum")(squared_size(away), axis=axes, keepdims=keepdims)
    return total / max(float(count) - correction, 0.0)


@in_single
def std(
    x: Tensor, /, *, axis: Any = None, correction: float = 0.0, keepdims: bool = False
) -> Tensor:
    """The square root of `var`."""
    return function("sqrt")(var(x, axis=axis, correction=correction, keepdims=keepdims))


def squared_size(x: Tensor) -> Tensor:
    """The squares of numbers; of complex ones those of their absolute values."""
    if x.dtype.kind != "complex":
        return x * x
    real, imag = function("real")(x), function("imag")(x)
    return real * real + imag * imag


def count_nonzero(x: Tensor, /, *, axis: Any = None, keepdims: bool = False) -> Tensor:
    """How many elements are not zero."""
    return function("sum")(astype(x, dtypes.bool_), axis=axis, keepdims=keepdims)


# ---- dtypes --------------------------------------------------------------------------------------


def result_type(*values: Any) -> DType:
    """The dtype that an op on tensors, dtypes and Python numbers gives."""
    kinds = [
        WEAK[type(v)] if type(v) in WEAK else v.dtype if isinstance(v, Tensor) else as_dtype(v)
        for v in values
    ]
    if not kinds:
        raise ValueError("`result_type` needs something")
    found = kinds[0]
    for kind in kinds[1:]:
        found = promote(found, kind)
    return default_of(found)


def can_cast(from_: Any, to: Any, /) -> bool:
    """Whether promotion with `to` gives `to`."""
    have = from_.dtype if isinstance(from_, Tensor) else as_dtype(from_)
    return result_type(have, as_dtype(to)) is as_dtype(to)


KINDS = {
    "bool": ("bool",), "signed integer": ("int",), "unsigned integer": ("uint",),
    "integral": ("int", "uint"), "real floating": ("float",), "complex floating": ("complex",),
    "numeric": ("int", "uint", "float", "complex"),
}  # fmt: skip


def isdtype(dtype: Any, kind: Any) -> bool:
    """Whether a dtype is of a kind ("integral", "real floating"...), or is a dtype."""
    found = as_dtype(dtype)
    if isinstance(kind, tuple):
        return any(isdtype(found, k) for k in kind)
    if isinstance(kind, str):
        if kind not in KINDS:
            raise ValueError(f"no kind {kind!r}; there are {', '.join(KINDS)}")
        return found.kind in KINDS[kind]
    return found is as_dtype(kind)


class finfo(NamedTuple):
    """Limits of a floating dtype."""

    bits: int
    eps: float
    max: float
    min: float
    smallest_normal: float
    dtype: DType


class iinfo(NamedTuple):
    """Limits of an integer dtype."""

    bits: int
    max: int
    min: int
    dtype: DType


def make_finfo(type: Any, /) -> finfo:
    """Limits of a floating dtype; of a complex one, those of its parts."""
    kind = (type.dtype if isinstance(type, Tensor) else as_dtype(type)).real
    if kind.kind != "float":
        raise DTypeError(f"{kind} is not a floating dtype")
    if kind is dtypes.bfloat16:
        import ml_dtypes

        found: Any = ml_dtypes.finfo(kind.numpy)  # type: ignore[no-untyped-call]
    else:
        found = np.finfo(kind.numpy)
    return finfo(
        kind.bits, float(found.eps), float(found.max), float(found.min),
        float(found.smallest_normal), kind,
    )  # fmt: skip


def make_iinfo(type: Any, /) -> iinfo:
    """Limits of an integer dtype."""
    kind = type.dtype if isinstance(type, Tensor) else as_dtype(type)
    if not kind.is_integer:
        raise DTypeError(f"{kind} is not an integer dtype")
    low, high = kind.range
    return iinfo(kind.bits, high, low, kind)


class Info:
    """What `__array_namespace_info__` gives."""

    def capabilities(self) -> dict[str, Any]:
        return {"boolean indexing": True, "data-dependent shapes": True, "max dimensions": 64}

    def default_device(self) -> str:
        return here(None)

    def devices(self) -> tuple[str, ...]:
        return Devices(d.name for d in backends.devices())

    def default_dtypes(self, *, device: Any = None) -> dict[str, DType]:
        """The default dtypes of a device; 32 bits wide where it has no others."""
        known = self.dtypes(device=device)

        def narrow(kind: DType, other: DType) -> DType:
            return kind if kind.name in known else other

        whole = narrow(dtypes.int64, dtypes.int32)
        return {
            "real floating": narrow(default_float(), dtypes.float32),
            "complex floating": narrow(default_of(WEAK[complex]), dtypes.complex64),
            "integral": whole, "indexing": whole,
        }  # fmt: skip

    def dtypes(self, *, device: Any = None, kind: Any = None) -> dict[str, DType]:
        """The dtypes that a device computes in, by the policy for what it lacks."""
        from ruda.jit import support

        place = here(device)
        there = support.computing(place)
        return {
            d.name: d for d in dtypes.ALL
            if d.name in there and d.name not in ("float16", "bfloat16")
            and (kind is None or isdtype(d, kind))
        }  # fmt: skip


class Devices(tuple[str, ...]):
    """A tuple that lists can be added to, as a consumer does."""

    def __add__(self, other: Any) -> Any:
        return Devices((*self, *other))


# ---- what NumPy does on the host -----------------------------------------------------------------


def library(name: str, numpy: Any, doc: str) -> Any:
    """A function that NumPy computes where the host is the device; elsewhere `factors` does, or
    it is refused."""

    def call(*values: Any, **options: Any) -> Any:
        tensors = [v for v in values if isinstance(v, Tensor)]
        place = tensors[0].device if tensors else here(None)
        if name != "matmul":
            values = tuple(to_factorise(name, v, place) for v in values)
            tensors = list(values)
        elif len(tensors) == 2 and is_of_rows(*tensors):
            return rows_product(call, *tensors)
        on_host = memory.on_host(place)
        if graph.tracing.current is not None and (name != "matmul" or on_host):
            return graph.tracing.current.call(call, values, options)
        gradient = LIBRARY_GRADIENTS.get(name)
        if gradient is None:
            refuse(name, *tensors)
        graph.check_together(name, tensors)
        if name == "matmul":
            check_product(*tensors)
        if name == "matmul" and not on_host:
            from ruda.tensor.primitives import product

            found = product.matmul(*(v.detach() for v in tensors))
            return attach(found, name, functools.partial(_matmul_gradient, {}), tuple(values))
        by_kernels = None if on_host else kernels_of(name)
        if by_kernels is not None:
            found = by_kernels(*(v.detach() for v in values), **options)
        else:
            plain = [host_only(v, f"`{name}`") if isinstance(v, Tensor) else v for v in values]
            named = {
                k: host_only(v, f"`{name}`") if isinstance(v, Tensor) else v
                for k, v in options.items()
            }
            with np.errstate(all="ignore"):
                found = wrapped(numpy(*plain, **named), place, plain)
        if isinstance(gradient, tuple):  # of several results
            for part, of_part in zip(found, gradient, strict=True):
                attach(part, name, functools.partial(of_part, options), tuple(values))
        elif gradient is not None:
            attach(found, name, functools.partial(gradient, options), tuple(values))
        return found

    call.__name__ = call.__qualname__ = name
    call.__module__ = "ruda"
    call.__doc__ = doc
    call.__signature__ = _signature_of(numpy)  # type: ignore[attr-defined]
    call.host_only = name != "matmul"  # type: ignore[attr-defined]
    if name == "matmul":
        call.on_memory = numpy  # type: ignore[attr-defined] # see `compiled`
    return call


def to_factorise(name: str, x: Any, place: str) -> Tensor:
    """Numbers at a dtype that is factorised: NumPy would take its float64 for what is none."""
    if not isinstance(x, Tensor):
        x = asarray(x, device=place)
    if not x.dtype.is_inexact:
        x = astype(x, default_float())
    if x.dtype.bits == 16:
        raise DTypeError(f"`{name}` of {x.dtype}: matrices have 32 or 64 bits; `.astype(float32)`")
    tensor: Tensor = x
    return tensor


def _signature_of(numpy: Any) -> inspect.Signature:
    """Arrays by their places, options by their names."""
    if isinstance(numpy, np.ufunc):
        return signature([f"x{k + 1}" for k in range(numpy.nin)])
    given = inspect.signature(numpy).parameters.values()
    arrays = [p.replace(kind=p.POSITIONAL_ONLY) for p in given if p.default is p.empty]
    options = [p.replace(kind=p.KEYWORD_ONLY) for p in given if p.default is not p.empty]
    return inspect.Signature(arrays + options)


def kernels_of(name: str) -> Any:
    """What computes a function of NumPy's on other devices than the host, or None."""
    from ruda.tensor import factors

    return factors.FACTORISATIONS.get(name.removeprefix("linalg."))


def check_product(x: Tensor, y: Tensor) -> None:
    """The shapes of a matrix product fit."""
    if x.ndim == 0 or y.ndim == 0:
        raise ShapeError("`matmul` of numbers: use `*`")
    if x.shape[-1] != y.shape[-2 if y.ndim > 1 else 0]:
        raise ShapeError(f"`matmul` of shapes {x.shape} and {y.shape}")


def is_of_rows(x: Tensor, y: Tensor) -> bool:
    """Whether many matrices that lie together are multiplied by one: they are one, too."""
    if x.ndim < 3 or y.ndim != 2 or x.shape[-1] != y.shape[0] or not y.shape[0]:
        return False
    seen = x._seen()
    return (
        reshaped(seen.shape, seen.strides, (math.prod(seen.shape[:-1]), seen.shape[-1])) is not None
    )


def rows_product(product: Any, x: Tensor, y: Tensor) -> Tensor:
    """One product, and one for each gradient, instead of as many as there are matrices in x."""
    rows = reshape(x, (math.prod(x.shape[:-1]), x.shape[-1]))
    return reshape(product(rows, y), (*x.shape[:-1], y.shape[1]))


def wrapped(found: Any, place: str, given: Sequence[Any] = ()) -> Any:
    """NumPy's results as tensors, in the tuples that they come in; copied if they are `given`."""
    if isinstance(found, tuple):
        items = [wrapped(v, place, given) for v in found]
        return type(found)(*items) if hasattr(found, "_fields") else tuple(items)
    if isinstance(found, np.ndarray | np.generic):
        # Memory of the pool has a base that is no array.
        own = isinstance(found, np.ndarray) and not isinstance(found.base, np.ndarray)
        if not (own and found.flags.c_contiguous) or any(found is g for g in given):
            found = np.array(found, order="C")
        return from_node(graph.leaf(found, as_dtype(found.dtype), place))
    return found


def _matmul(x1: Any, x2: Any, /) -> Any:
    """NumPy's product, into memory of the pool; large ones on the threads that kernels run on."""
    if min(x1.ndim, x2.ndim) < 2 or x1.dtype != x2.dtype:
        with np.errstate(all="ignore"):
            return np.matmul(x1, x2)
    lead = x1.shape[:-2]
    if lead != x2.shape[:-2]:
        lead = np.broadcast_shapes(lead, x2.shape[:-2])
        x1, x2 = (np.broadcast_to(x, (*lead, *x.shape[-2:])) for x in (x1, x2))
    out = memory.allocate((*lead, x1.shape[-2], x2.shape[-1]), as_dtype(x1.dtype), "cpu")
    if not backends.get("cpu").product(x1, x2, out):  # type: ignore[attr-defined]
        with np.errstate(all="ignore"):
            np.matmul(x1, x2, out=out)
    return out


def _matmul_gradient(
    options: Any, g: Tensor, out: Tensor, x: Tensor, y: Tensor
) -> tuple[Tensor | None, Tensor | None]:
    """g y^H and x^H g; of vectors as matrices of one row or column. None of what nobody wants.

    Each lies in memory as what it is the gradient of: that of a weight whose transpose was taken
    needs no copy to be the weight's.
    """
    a = x[None, :] if x.ndim == 1 else x
    b = y[:, None] if y.ndim == 1 else y
    if x.ndim == 1:
        g = expand_dims(g, -1 if y.ndim == 1 else -2)
    if y.ndim == 1:
        g = expand_dims(g, -1)
    left = right = None
    if x._history is not None:
        left = (conjugate(b) @ g.mT).mT if is_turned(a) else g @ conjugate(b.mT)
    if y._history is not None:
        right = (g.mT @ conjugate(a)).mT if is_turned(b) else conjugate(a.mT) @ g
    if x.ndim == 1 and left is not None:
        left = left[..., 0, :]
    if y.ndim == 1 and right is not None:
        right = right[..., :, 0]
    return left, right


def is_turned(x: Tensor) -> bool:
    """Whether the columns of matrices lie together, not the rows."""
    by_row, by_column = x._seen().strides[-2:]
    return by_row < by_column


def conjugate(x: Tensor) -> Tensor:
    """The complex conjugate; a real tensor as it is, without a copy."""
    return function("conj")(x) if x.dtype.kind == "complex" else x


# (options, gradient of the result, result, *inputs); what has none refuses to be differentiated.
LIBRARY_GRADIENTS: dict[str, Any] = {
    "matmul": _matmul_gradient,
}  # fmt: skip
LIBRARY = {
    name: library(name, numpy, doc)
    for name, numpy, doc in (
        ("matmul", _matmul, "The matrix product."),
    )
}  # fmt: skip
