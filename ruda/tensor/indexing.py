"""Elements chosen by arrays: indices, masks, extremes.

An index made of arrays is taken apart into a view, the axes of it that arrays index, and one array
of places in these axes together (`Choice`); kernels then read or write there. On the CPU NumPy
does it (see `primitives.run`).

Every function here has a gradient where its result is of floats, made of the functions here.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ruda import dtypes
from ruda.backends.base import DeviceArray
from ruda.dtypes import DType, float32, int32
from ruda.errors import DeviceError, DTypeError, ShapeError
from ruda.settings import settings
from ruda.tensor import graph, memory
from ruda.tensor.history import attach
from ruda.tensor.memory import View
from ruda.tensor.primitives import run, select
from ruda.tensor.tensor import (
    Tensor,
    as_axes,
    asarray,
    astype,
    basic_view,
    broadcast_to,
    copied,
    from_buffer,
    function,
    handle,
    is_array,
    reshape,
)

# ---- buffers -------------------------------------------------------------------------------------


def around(x: Tensor, axis: int) -> Any:
    """The elements as a buffer (outer, n, inner) with the axis in the middle."""
    shape = math.prod(x.shape[:axis]), x.shape[axis], math.prod(x.shape[axis + 1 :])
    return reshape(x.detach(), shape).buffer()


def whole(x: Tensor) -> Any:
    """The elements as a buffer in C order without gaps, which may be seen at other dtypes."""
    buffer = x.buffer()
    if x._view is None:
        return buffer
    here = type(buffer) is DeviceArray and buffer.offset == 0  # as after a reshape
    return buffer if here and buffer.is_c_contiguous() and buffer.is_aligned else copied(x)


def one_axis(x: Tensor, axis: Any, name: str) -> int:
    """The axis that an argument names; an error if there is none."""
    if x.ndim == 0:
        raise ShapeError(f"`{name}` of a tensor without axes")
    return as_axes(operator.index(axis), x.ndim)[0]


def plain(x: Any) -> np.ndarray[Any, Any]:
    """The elements on the host, to be read."""
    return memory.to_host(x.buffer()) if isinstance(x, Tensor) else x


def as_indices(value: Any, device: str, name: str) -> Tensor:
    """Integers as indices on a device; an error if they are none."""
    found = value if isinstance(value, Tensor) else asarray(value, device=device)
    if found.size == 0 and not isinstance(value, Tensor | np.ndarray):
        found = astype(found, run.index_dtype(device))  # of an empty list
    if found.dtype.kind not in ("int", "uint"):
        raise IndexError(f"`{name}`: indices are integers, not {found.dtype}")
    if found.device != device:
        raise DeviceError(
            f"`{name}`: the tensor is on {device}, the indices on {found.device}; "
            f"move them with `.to_device({device!r})`"
        )
    if found.dtype.bits == 64 and not run.has_int64(device):  # the low words are enough
        whole = astype(found.detach(), found.dtype, copy=True).buffer()
        return from_buffer(memory.words(whole, np.dtype(np.int32))[..., 0], device)
    return found.detach()


def check_device(name: str, *tensors: Tensor) -> str:
    """The device that tensors share."""
    first = tensors[0].device
    for x in tensors[1:]:
        if x.device != first:
            raise DeviceError(
                f"`{name}`: the tensors are on {first} and {x.device}; "
                f"move one with `.to_device({first!r})`"
            )
    return first


# ---- extremes ------------------------------------------------------------------------------------


def _arg_extreme(name: str, greatest: bool, doc: str) -> Callable[..., Tensor]:
    numpy = np.argmax if greatest else np.argmin

    def call(x: Any, /, *, axis: int | None = None, keepdims: bool = False) -> Tensor:
        x = asarray(x)
        if x.dtype.kind == "complex":
            raise DTypeError(f"`{name}` is not defined for {x.dtype}: it takes reals")
        flat = reshape(x.detach(), (-1,)) if axis is None else x
        k = 0 if axis is None else one_axis(x, axis, name)
        if flat.shape[k] == 0:
            raise ShapeError(f"`{name}` of no elements: an axis of {x.shape} is empty")
        shape = tuple(1 if axis is None or a == k else n for a, n in enumerate(x.shape))

        def by_kernel() -> Any:
            buffer = around(flat, k)
            if x.dtype.kind == "bool":
                buffer = whole(flat).reshape(buffer.shape).view(np.uint8)
            return select.arg_extreme(buffer, greatest, x.device, name).reshape(shape)

        def by_numpy() -> Any:
            return np.asarray(numpy(plain(flat), axis=k)).reshape(shape)

        found = from_buffer(run.choose(name, x.device, by_numpy, by_kernel), x.device)
        if keepdims:
            return found
        rest = () if axis is None else tuple(n for a, n in enumerate(x.shape) if a != k)
        return reshape(found, rest)

    call.__name__ = call.__qualname__ = name
    call.__module__ = "ruda"
    call.__doc__ = doc
    return call


argmax = _arg_extreme(
    "argmax", True, "Where the greatest element stands first, along `axis` or of all; NaN counts "
    "as greatest.\n\n>>> import ruda\n>>> ruda.argmax(ruda.asarray([1.0, 3.0, 3.0])).item()\n1\n",
)  # fmt: skip
argmin = _arg_extreme(
    "argmin", False, "Where the least element stands first, along `axis` or of all; NaN counts as "
    "least.",
)  # fmt: skip

# ---- along an axis -------------------------------------------------------------------------------


def take(x: Tensor, indices: Any, /, *, axis: int | None = None) -> Tensor:
    """Elements at indices along an axis: `x[..., indices, ...]`. Negative ones count from the end.

    >>> import ruda
    >>> ruda.take(ruda.asarray([[1, 2, 3], [4, 5, 6]]), ruda.asarray([2, 0]), axis=1)
    Tensor([[3, 1],
            [6, 4]], dtype=int64, device='cpu')
    """
    if axis is None:
        if x.ndim != 1:
            raise ShapeError(f"`take` of a tensor of shape {x.shape} needs an `axis`")
        axis = 0
    k = one_axis(x, axis, "take")
    where = as_indices(indices, x.device, "take")
    return _taken(x, where, k)


def _taken(x: Tensor, where: Tensor, k: int) -> Tensor:
    shape = x.shape[:k] + where.shape + x.shape[k + 1 :]
    check_not_empty("take", x.shape[k], where.size)

    def by_kernel() -> Any:
        places = reshape(where, (1, where.size, 1)).buffer()
        return select.take(around(x, k), places, x.device, "take").reshape(shape)

    found = run.choose("take", x.device, lambda: np.take(plain(x), plain(where), k), by_kernel)
    out = from_buffer(np.asarray(found) if memory.on_host(x.device) else found, x.device)

    def gradient(g: Tensor, out: Tensor, x: Tensor) -> tuple[Tensor]:
        flat = reshape(g, (*x.shape[:k], where.size, *x.shape[k + 1 :]))
        return (scatter(zeros_like(x, g), reshape(where, (-1,)), flat, axis=k, mode="add"),)

    return attach(out, "take", gradient, (x,))


def zeros_like(x: Tensor, g: Tensor) -> Tensor:
    """Zeros of the shape of `x` for a gradient `g`."""
    return from_buffer(run.full(x.shape, 0, g.dtype, x.device), x.device)


def check_not_empty(name: str, n: int, wanted: int) -> None:
    if n == 0 and wanted:
        raise IndexError(f"`{name}`: no index fits an axis with no elements")


def take_along_axis(x: Tensor, indices: Tensor, /, *, axis: int = -1) -> Tensor:
    """out[..., j, ...] = x[..., indices[..., j, ...], ...]: an index for each place.

    >>> import ruda
    >>> x = ruda.asarray([[3, 1], [2, 4]])
    >>> ruda.take_along_axis(x, ruda.argsort(x, axis=1), axis=1)
    Tensor([[1, 3],
            [2, 4]], dtype=int64, device='cpu')
    """
    k = one_axis(x, axis, "take_along_axis")
    where = as_indices(indices, x.device, "take_along_axis")
    if where.ndim != x.ndim:
        raise ShapeError(f"`take_along_axis`: shapes {x.shape} and {where.shape} differ in axes")
    rest = graph.broadcast("take_along_axis", [_without(x.shape, k), _without(where.shape, k)])
    x = broadcast_to(x, (*rest[:k], x.shape[k], *rest[k:]))
    where = broadcast_to(where, (*rest[:k], where.shape[k], *rest[k:]))
    check_not_empty("take_along_axis", x.shape[k], where.size)

    def by_kernel() -> Any:
        return select.take(around(x, k), around(where, k), x.device, "take_along_axis").reshape(
            where.shape
        )

    def by_numpy() -> Any:
        return np.take_along_axis(plain(x), plain(where), k)

    out = from_buffer(run.choose("take_along_axis", x.device, by_numpy, by_kernel), x.device)
    return attach(
        out,
        "take_along_axis",
        lambda g, out, x: (scatter(zeros_like(x, g), where, g, axis=k, mode="add"),),
        (x,),
    )


def _without(shape: tuple[int, ...], axis: int) -> tuple[int, ...]:
    return shape[:axis] + shape[axis + 1 :]


MODES = ("set", "add", "min", "max")


def scatter(
    x: Tensor, indices: Any, values: Any, /, *, axis: int = -1, mode: str = "set"
) -> Tensor:
    """A copy of `x` with `values` at indices along an axis: what `take` reads, this writes.

    `indices` has one axis (`out[..., indices[j], ...]`), or as many as `x` (an index for each
    place, as in `take_along_axis`). `values` is broadcast to what is written. With `mode="add"`,
    "min" or "max" all values for an element count; with "set" the last one.

    >>> import ruda
    >>> ruda.scatter(ruda.zeros(3), ruda.asarray([0, 2, 0]), ruda.ones(3), mode="add")
    Tensor([2., 0., 1.], dtype=float32, device='cpu')
    """
    if mode not in MODES:
        raise ValueError(f"`scatter`: mode={mode!r}; there are {', '.join(MODES)}")
    k = one_axis(x, axis, "scatter")
    where = as_indices(indices, x.device, "scatter")
    if where.ndim not in (1, x.ndim):
        raise ShapeError(
            f"`scatter`: indices have one axis, or {x.ndim} as the tensor; not {where.ndim}"
        )
    shape = (*x.shape[:k], where.shape[k if where.ndim > 1 else 0], *x.shape[k + 1 :])
    if where.ndim > 1:
        shape = where.shape
        if _without(where.shape, k) != _without(x.shape, k):
            raise ShapeError(f"`scatter`: indices of {where.shape} for a tensor of {x.shape}")
    values = values if isinstance(values, Tensor) else asarray(values, device=x.device)
    check_device("scatter", x, values)
    check_assignable(values, x.dtype)
    if mode in ("min", "max") and x.dtype.kind == "complex":
        raise DTypeError(f"`scatter` with mode={mode!r} is not defined for {x.dtype}")
    values = broadcast_to(astype(values, x.dtype, copy=False), shape)
    check_not_empty("scatter", x.shape[k], values.size)
    wide = added_at(x.dtype, mode)
    start, given = astype(x.detach(), wide, copy=False), astype(values.detach(), wide, copy=False)
    out = astype(from_buffer(run.choose(
        "scatter", x.device,
        lambda: _scattered_by_numpy(start, given, where, k, mode),
        lambda: _scattered_by_kernel(start, given, where, k, mode),
    ), x.device), x.dtype, copy=False)  # fmt: skip
    return attach(out, "scatter", functools.partial(_scatter_gradient, where, k, mode), (x, values))


def added_at(dtype: DType, mode: str) -> DType:
    """The dtype that values are gathered at: half floats are added in single ones, as in sums."""
    return float32 if mode == "add" and dtype.kind == "float" and dtype.bits == 16 else dtype


def _scattered_by_kernel(x: Tensor, values: Tensor, where: Tensor, k: int, mode: str) -> Any:
    out = copied(x)
    shape = math.prod(x.shape[:k]), x.shape[k], math.prod(x.shape[k + 1 :])
    places = around(where, k) if where.ndim > 1 else reshape(where, (1, -1, 1)).buffer()
    select.put(out.reshape(shape), places, around(values, k), mode, x.device, "scatter")
    return out


AT = {"add": np.add.at, "min": np.minimum.at, "max": np.maximum.at}


def _scattered_by_numpy(x: Tensor, values: Tensor, where: Tensor, k: int, mode: str) -> Any:
    out = np.array(plain(x), order="C")
    if where.ndim > 1:
        grid: list[Any] = list(np.indices(where.shape, sparse=True))
        grid[k] = plain(where)
    else:
        grid = [*(slice(None),) * k, plain(where)]
    with np.errstate(all="ignore"):
        if mode == "set":
            out[tuple(grid)] = plain(values)
        else:
            AT[mode](out, tuple(grid), plain(values))
    return out


def _scatter_gradient(
    where: Tensor, k: int, mode: str, g: Tensor, out: Tensor, x: Tensor, values: Tensor
) -> tuple[Tensor, Tensor]:
    read = take_along_axis if where.ndim > 1 else take
    if mode == "add":
        return g, read(g, where, axis=k)
    if mode == "set":  # the last of the values at an element has its gradient
        number = numbers(values.shape, k, x.device)
        none = from_buffer(run.full(x.shape, -1, number.dtype, x.device), x.device)
        last = scatter(none, where, number, axis=k)
        kept = function("less")(last, 0)
        won = function("equal")(read(last, where, axis=k), number)
        where_ = function("where")
        return where_(kept, g, 0.0), where_(won, read(g, where, axis=k), 0.0)
    own = astype(function("equal")(x, out), g.dtype)  # shared by those that are equal
    theirs = astype(function("equal")(values, read(out, where, axis=k)), g.dtype)
    count = scatter(own, where, theirs, axis=k, mode="add")
    share = g / count
    return share * own, read(share, where, axis=k) * theirs


def numbers(shape: tuple[int, ...], k: int, device: str) -> Tensor:
    """0, 1, 2, ... along an axis, repeated along the others."""
    count = from_buffer(memory.from_host(np.arange(shape[k], dtype=np.int32), device), device)
    return broadcast_to(reshape(count, (shape[k], *(1,) * (len(shape) - k - 1))), shape)


def check_assignable(source: Tensor, dtype: DType) -> None:
    """A write never changes the kind of what is written."""
    rank = {"bool": 0, "uint": 1, "int": 1, "float": 2, "complex": 3}
    if rank[source.dtype.kind] > rank[dtype.kind]:
        raise DTypeError(
            f"cannot write {source.dtype} into a tensor of {dtype}; convert with `astype`"
        )


# ---- what is not zero ----------------------------------------------------------------------------


def nonzero(x: Tensor, /) -> tuple[Tensor, ...]:
    """The indices of the elements that are not zero, in C order: a tensor for each axis.

    >>> import ruda
    >>> ruda.nonzero(ruda.asarray([[0, 5], [7, 0]]))[1].tolist()
    [1, 0]
    """
    x = asarray(x)
    if x.ndim == 0:
        raise ShapeError("`nonzero` of a tensor without axes")

    def by_kernel() -> Any:
        return select.nonzero(_flags(x), x.shape, x.device, "nonzero")

    def by_numpy() -> Any:
        a = plain(x)
        mask = a if x.dtype.kind == "bool" else a != 0  # of which NumPy knows a faster way
        return tuple(np.ascontiguousarray(k) for k in np.nonzero(mask))

    found = run.choose("nonzero", x.device, by_numpy, by_kernel)
    return tuple(from_buffer(f, x.device) for f in found)


def _flags(x: Tensor) -> Any:
    """The elements in C order as numbers that kernels compare with 0."""
    x = reshape(x.detach(), (-1,))
    if x.dtype.kind == "complex":
        x = astype(x, dtypes.bool_)
    buffer = whole(x)
    return buffer.view(np.uint8) if x.dtype.kind == "bool" else buffer


# ---- indices made of arrays ----------------------------------------------------------------------


@dataclass(frozen=True)
class Choice:
    """What an index made of arrays selects.

    view    of the storage: the axes that arrays index stand together
    first   the first of these axes
    where   a place in these axes, counted in C order, for each element of its shape
    """

    view: View
    first: int
    count: int
    where: Tensor

    @property
    def before(self) -> tuple[int, ...]:
        return self.view.shape[: self.first]

    @property
    def after(self) -> tuple[int, ...]:
        return self.view.shape[self.first + self.count :]

    @property
    def shape(self) -> tuple[int, ...]:
        return self.before + self.where.shape + self.after


def choice(seen: View, items: tuple[Any, ...], device: str) -> Choice:
    """Take an index apart. The rules are NumPy's, also where the axes of arrays end up."""
    seen, items = _without_bools(seen, items)
    items = _expanded(seen, items, device)
    basic = tuple(slice(None) if isinstance(i, Tensor) else i for i in items)
    view = basic_view(seen, basic)
    chosen = [(a, i) for a, i in enumerate(items) if isinstance(i, Tensor)]
    axes = [a for a, _ in chosen]
    first = axes[0]
    if axes != list(range(first, first + len(axes))):  # apart: their axes come first
        order = axes + [a for a in range(len(view.shape)) if a not in axes]
        shape, strides = (tuple(of[a] for a in order) for of in (view.shape, view.strides))
        view = View(shape, strides, view.offset)
        first = 0
    extents = view.shape[first : first + len(axes)]
    chosen_shape = graph.broadcast("indexing", [i.shape for _, i in chosen])
    if 0 in extents and 0 not in chosen_shape:
        raise IndexError(f"an index into an axis of {seen.shape} with no elements")
    where = _places([i for _, i in chosen], extents, device)
    return Choice(view, first, len(axes), broadcast_to(where, chosen_shape))


def _without_bools(seen: View, items: tuple[Any, ...]) -> tuple[View, tuple[Any, ...]]:
    """A bool without axes as an index into a new axis: the only element of it, or none."""
    single = [is_array(i) and _axes_of(i) == 0 for i in items]
    if not any(single):
        return seen, items
    basic: list[Any] = []
    for item, is_bool in zip(items, single, strict=True):
        if is_bool:
            basic.append(None)
        elif item is Ellipsis:
            basic.append(item)
        else:
            basic += [slice(None)] * _axes_of(item)
    chosen = (
        np.zeros(int(bool(i)), np.int32) if b else i for i, b in zip(items, single, strict=True)
    )
    return basic_view(seen, tuple(basic)), tuple(chosen)


def _expanded(seen: View, items: tuple[Any, ...], device: str) -> tuple[Any, ...]:
    """An item for each axis of a view with new ones put in: slices, None and integer tensors.

    Masks become the indices where they hold; an integer beside arrays counts as one.
    """
    used = sum(_axes_of(i) for i in items)
    if used > len(seen.shape):
        raise IndexError(f"{used} indices into a tensor with {len(seen.shape)} axes")
    if sum(i is Ellipsis for i in items) > 1:
        raise IndexError("an index has at most one `...`")
    if not any(i is Ellipsis for i in items):
        items = (*items, Ellipsis)
    out: list[Any] = []
    axis = 0
    for item in items:
        if item is Ellipsis:
            rest = len(seen.shape) - used
            out += [slice(None)] * rest
            axis += rest
        elif item is None or isinstance(item, slice):
            out.append(item)
            axis += item is not None
        elif is_array(item):
            array = _index_tensor(item, device)
            if array.dtype.kind == "bool":
                extents = seen.shape[axis : axis + array.ndim]
                if array.shape != extents:
                    raise IndexError(f"a mask of shape {array.shape} for axes of {extents}")
                out += nonzero(array)
                axis += array.ndim
            else:
                out.append(array)
                axis += 1
        else:
            number = operator.index(item)
            n = seen.shape[axis]
            if not -n <= number < n:
                raise IndexError(
                    f"index {number} is out of bounds for axis {axis} with {n} elements"
                )
            out.append(asarray(np.int32(number), device=device))
            axis += 1
    return tuple(out)


def _axes_of(item: Any) -> int:
    """How many axes of a tensor an item of an index uses."""
    if item is None or item is Ellipsis:
        return 0
    if isinstance(item, Tensor):
        return item.ndim if item.dtype.kind == "bool" else 1
    if isinstance(item, list | np.ndarray | bool | np.bool_):
        array = np.asarray(item)
        return array.ndim if array.dtype.kind == "b" else 1
    return 1


def _index_tensor(item: Any, device: str) -> Tensor:
    if isinstance(item, Tensor) and item.dtype.kind == "bool":
        check_device("indexing", item, item)
        if item.device != device:
            raise DeviceError(f"indexing: the tensor is on {device}, the mask on {item.device}")
        return item.detach()
    if not isinstance(item, Tensor) and np.asarray(item).dtype.kind == "b":
        return asarray(np.asarray(item), device=device)
    return as_indices(item, device, "indexing")


def _places(indices: Sequence[Tensor], extents: tuple[int, ...], device: str) -> Tensor:
    """One index into axes together from an index into each; the kernels look at its range."""
    if len(indices) == 1:
        return indices[0]
    size = math.prod(extents)
    kind = int32 if size <= 2**31 - 1 else dtypes.int64
    where, less, both = function("where"), function("less"), function("logical_or")
    total: Any = 0
    outside: Any = None
    for i, n in zip(indices, extents, strict=True):
        i = astype(i, kind, copy=False)
        wrapped = where(less(i, 0), i + n, i)
        total = total * n + wrapped
        away = both(less(wrapped, 0), less(n - 1, wrapped))
        outside = away if outside is None else both(outside, away)
    return where(outside, size, total)  # which is out of range for all of them


def grouped(buffer: Any, view: View, first: int, count: int) -> Any:
    """The view as (outer, chosen axes, inner) without a copy; None where that is not possible."""
    shape, strides = [], []
    for low, high in ((0, first), (first, first + count), (first + count, len(view.shape))):
        merged = _as_one(view.shape[low:high], view.strides[low:high])
        if merged is None:
            return None
        shape.append(merged[0])
        strides.append(merged[1])
    return memory.view(buffer, View(tuple(shape), tuple(strides), view.offset))


def _as_one(shape: tuple[int, ...], strides: tuple[int, ...]) -> tuple[int, int] | None:
    """The extent and stride of axes as one.

    >>> _as_one((2, 3), (12, 4)), _as_one((2, 3), (1, 4)), _as_one((), ())
    ((6, 4), None, (1, 0))
    """
    kept = [(n, s) for n, s in zip(shape, strides, strict=True) if n != 1]
    if not kept:
        return 1, 0
    for (_, outer), (n, inner) in itertools.pairwise(kept):
        if outer != n * inner and 0 not in shape:
            return None
    return math.prod(shape), kept[-1][1]


def read(x: Tensor, items: tuple[Any, ...]) -> Any:
    """The buffer of `x[items]`, where arrays are among the items."""

    def by_kernel() -> Any:
        found = choice(x._seen(), items, x.device)
        x.buffer()  # computed
        whole = x._storage.node.value
        source = grouped(whole, found.view, found.first, found.count)
        if source is None:
            copy = copied(handle(x._storage, found.view))
            whole_view = memory.contiguous(found.view.shape)
            source = grouped(copy, whole_view, found.first, found.count)
        places = reshape(found.where, (1, found.where.size, 1)).buffer()
        return select.take(source, places, x.device, "indexing").reshape(found.shape)

    def by_numpy() -> Any:
        return np.array(plain(x)[_numpy_index(items)], order="C")

    return run.choose("indexing", x.device, by_numpy, by_kernel)


def write(x: Tensor, items: tuple[Any, ...], values: Tensor, mode: str = "set") -> None:
    """`x[items] = values` into the storage's memory, which is `x`'s own."""
    if x.device != "cpu":
        _written_by_kernel(x, items, values, mode)
        return
    ours = None
    if settings.fusion == "verify":  # first, as `x` may be among the items
        ours = from_buffer(np.array(plain(x), order="C"), "cpu")
        _written_by_kernel(ours, items, values, mode)
    _written_by_numpy(plain(x), items, values, mode)
    if ours is not None:
        run.compare("indexing", plain(ours), plain(x))


def _written_by_numpy(
    target: np.ndarray[Any, Any], items: tuple[Any, ...], values: Tensor, mode: str
) -> None:
    with np.errstate(all="ignore"):
        if mode == "set":
            target[_numpy_index(items)] = plain(values)
        else:
            AT[mode](target, _numpy_index(items), plain(values))


def _written_by_kernel(x: Tensor, items: tuple[Any, ...], values: Tensor, mode: str) -> None:
    found = choice(x._seen(), items, x.device)
    graph.broadcast("assignment", [found.shape, values.shape])
    values = astype(values.detach(), x.dtype, copy=False)
    if values.ndim > len(found.shape) and set(values.shape[: -len(found.shape) or None]) == {1}:
        values = reshape(values, values.shape[values.ndim - len(found.shape) :])
    values = broadcast_to(values, found.shape)
    x.buffer()
    whole = x._storage.node.value
    if values._storage is x._storage:
        values = from_buffer(copied(values), x.device)
    if found.where._storage is x._storage:  # read by some threads when others have written
        found = dataclasses.replace(found, where=from_buffer(copied(found.where), x.device))
    target = grouped(whole, found.view, found.first, found.count)
    if target is not None:
        outer, _, inner = target.shape
        given = reshape(values, (outer, found.where.size, inner)).buffer()
        places = reshape(found.where, (1, found.where.size, 1)).buffer()
    else:  # places in the whole storage
        given = reshape(values, (1, values.size, 1)).buffer()
        places = reshape(_offsets(found, x.device), (1, values.size, 1)).buffer()
        target = whole.reshape(1, -1, 1)
    if given.size:
        select.put(target, places, given, mode, x.device, "indexing")


def _offsets(found: Choice, device: str) -> Tensor:
    """Where in the storage each chosen element lies."""
    kind, most = int32, 2**31 - 1
    extents = found.view.shape[found.first : found.first + found.count]
    strides = found.view.strides
    choose, less = function("where"), function("less")
    where = astype(found.where, kind, copy=False)
    size = math.prod(extents)
    where = choose(less(where, 0), where + size, where)
    outside = function("logical_or")(less(where, 0), less(size - 1, where))
    total: Any = found.view.offset
    for a in reversed(range(found.count)):
        total = total + (where % extents[a]) * strides[found.first + a]
        where = where // extents[a]
    total = choose(outside, most, total)  # which is out of range
    total = reshape(total, (*found.where.shape, *(1,) * len(found.after)))
    ndim = len(found.shape)
    rest = [*range(found.first), *range(found.first + found.count, len(found.view.shape))]
    for k, a in enumerate(rest):
        place = k if k < found.first else k + found.where.ndim
        steps = np.arange(found.view.shape[a], dtype=np.int32) * strides[a]
        shape = tuple(-1 if d == place else 1 for d in range(ndim))
        total = total + reshape(asarray(steps, device=device), shape)
    return broadcast_to(total, found.shape)


def _numpy_index(items: tuple[Any, ...]) -> tuple[Any, ...]:
    arrays = (np.asarray(i) if isinstance(i, Tensor | list) else i for i in items)
    return tuple(
        a.astype(np.intp) if isinstance(i, list) and not a.size else a
        for i, a in zip(items, arrays, strict=True)
    )


def scattered(g: Tensor, x: Tensor, items: tuple[Any, ...]) -> Tensor:
    """Zeros like `x` with `g` added where an index selects: the gradient of indexing."""
    items = with_whole_slices(items, x.shape)
    if all(i is Ellipsis or is_number(i) or i is ALL for i in items):
        return spread(g, x.shape, items)
    found: Tensor = written(g, x, items)
    return found


ALL = slice(None)


def with_whole_slices(items: tuple[Any, ...], shape: tuple[int, ...]) -> tuple[Any, ...]:
    """The same index with `ALL` for every slice that takes the whole of its axis.

    >>> with_whole_slices((slice(0, 3), ..., slice(1, 5)), (3, 4, 5))
    (slice(None, None, None), Ellipsis, slice(1, 5, None))
    """
    if any(is_array(i) or i is None for i in items):
        return items
    ahead = items.index(Ellipsis) if Ellipsis in items else len(items)
    behind = len(items) - ahead - 1
    axes = [*range(ahead), -1, *range(len(shape) - behind, len(shape))]
    return tuple(
        ALL if type(i) is slice and i.indices(shape[a]) == (0, shape[a], 1) else i
        for i, a in zip(items, axes, strict=False)
    )


def is_number(i: Any) -> bool:
    return isinstance(i, int | np.integer) and not isinstance(i, bool)


def spread(g: Tensor, shape: tuple[int, ...], items: tuple[Any, ...]) -> Tensor:
    """The same where numbers select from whole axes: ops, which are fused with what follows."""
    from ruda.tensor.creation import expand_dims

    if Ellipsis in items:
        at = items.index(Ellipsis)
        gap = (slice(None),) * (len(shape) - len(items) + 1)
        items = (*items[:at], *gap, *items[at + 1 :])
    places = [(axis, i) for axis, i in enumerate(items) if is_number(i)]
    for axis, _ in places:
        g = expand_dims(g, axis=axis)
    for axis, i in places:
        numbers = np.arange(shape[axis], dtype=np.int32)
        along = tuple(-1 if a == axis else 1 for a in range(len(shape)))
        chosen = asarray(numbers, device=g.device) == int(i) % shape[axis]
        g = function("where")(reshape(chosen, along), g, 0)
    return broadcast_to(g, shape)


@graph.step
def written(g: Tensor, x: Tensor, items: tuple[Any, ...]) -> Tensor:
    if any(is_array(i) for i in items):
        sums = from_buffer(run.full(x.shape, 0, added_at(g.dtype, "add"), x.device), x.device)
        write(sums, items, g.detach(), "add")
        out = astype(sums, g.dtype, copy=False)
    else:
        out = zeros_like(x, g)
        out[items] = g.detach()
    return attach(out, "scatter", lambda h, out, g: (h[items],), (g,))
