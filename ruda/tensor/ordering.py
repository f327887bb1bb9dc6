"""Scans and orders of tensors: cumulative sums, sorting, what is unique, counts.

Scans and orders are kernels (`primitives.scan`, `primitives.sort`), on the CPU NumPy's library;
the rest is made of these and of choices of elements (`indexing`), and so are all gradients.

In every order NaN comes last, also in the descending one; -0.0 and 0.0 are equal, and equal
elements keep theirs.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from ruda import dtypes
from ruda.dtypes import DType, as_dtype, float32, int32
from ruda.errors import DTypeError, ShapeError
from ruda.settings import settings
from ruda.tensor import graph, memory
from ruda.tensor.creation import concat, flip, permute_dims, result_type
from ruda.tensor.history import attach, recording, refuse
from ruda.tensor.indexing import (
    around,
    check_device,
    nonzero,
    numbers,
    one_axis,
    plain,
    scatter,
    take,
    take_along_axis,
    whole,
)
from ruda.tensor.ops import OPS
from ruda.tensor.primitives import run, scan, select, sort
from ruda.tensor.tensor import Tensor, asarray, astype, from_buffer, reshape, t

# ---- scans ---------------------------------------------------------------------------------------

ACCUMULATE = {
    "sum": np.add.accumulate, "prod": np.multiply.accumulate, "max": np.maximum.accumulate,
    "min": np.minimum.accumulate,
}  # fmt: skip


# How scans of whole tensors run again, by their form, under the settings of a time.
_again: tuple[Any, dict[Any, Any]] = (None, {})


def _scanned(
    name: str, x: Tensor, how: str, axis: Any, dtype: Any, exclusive: bool, initial: bool,
    starts: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """The scan of a tensor, without its gradient."""
    global _again
    key = None
    if x._view is None and starts is None and not (memory.on_host(x.device) or initial):
        buffer, state = x.buffer(), settings.state()
        if _again[0] is not state or len(_again[1]) > 1024:
            _again = state, {}
        key = graph.form_of(x._storage.node), how, axis, dtype, exclusive
        found = _again[1].get(key)
        if found is not None:
            make, again = found
            out = make()
            again(buffer, out)
            return from_buffer(out, x.device)
    k = one_axis(x, axis, name)
    if dtype is not None:
        x = astype(x, dtype, copy=False)
    result = x.dtype if dtype is not None else OPS[how].dtypes((x.dtype,))[1]
    wide = float32 if result.kind == "float" and result.bits < 32 else result
    n = x.shape[k] + initial
    shape = (*x.shape[:k], n, *x.shape[k + 1 :])

    def by_kernel() -> Any:
        out = memory.allocate(shape, result, x.device)
        lines = out.reshape(math.prod(shape[:k]), n, math.prod(shape[k + 1 :]))
        marks = None if starts is None else around(starts, k)
        if initial and lines.size:
            first = lines[:, :1, :]
            none = run.full(first.shape, scan.identity_of(how, wide), result, x.device)
            run.copy(first, none, x.device)
            lines = lines[:, 1:, :]
        again = scan.scan(
            around(x, k), lines, wide, x.device, name, how=how, exclusive=exclusive, starts=marks
        )
        if key is not None and again is not None:
            _again[1][key] = memory.maker(shape, result, x.device), again
        return out

    def by_numpy() -> Any:
        a = plain(x).astype(wide.numpy, copy=False)
        identity = scan.identity_of(how, wide)
        if starts is not None:
            return _segments(a, plain(starts), how, identity, exclusive, k).astype(result.numpy)
        with np.errstate(all="ignore"):
            if not (exclusive or initial):
                found = memory.allocate(shape, wide, "cpu")
                return ACCUMULATE[how](a, axis=k, out=found).astype(result.numpy, copy=False)
            out = np.full(shape, identity, result.numpy)
            rest = (slice(None),) * k
            used = slice(0, -1) if exclusive else slice(None)
            out[(*rest, slice(1, None))] = ACCUMULATE[how](a[(*rest, used)], axis=k)
        return out

    return from_buffer(run.choose(name, x.device, by_numpy, by_kernel), x.device)


def _segments(
    a: np.ndarray[Any, Any], starts: np.ndarray[Any, Any], how: str, identity: Any,
    exclusive: bool, k: int,
) -> np.ndarray[Any, Any]:  # fmt: skip
    """A scan with segments, by its definition."""
    out = np.empty_like(a)
    lines, marks, found = (np.moveaxis(v, k, 0) for v in (a, starts, out))
    total = np.full(lines.shape[1:], identity, a.dtype)
    with np.errstate(all="ignore"):
        for i in range(len(lines)):
            total = np.where(marks[i], np.array(identity, a.dtype), total)
            after = ACCUMULATE[how](np.stack([total, lines[i]]), axis=0)[1]
            found[i] = total if exclusive else after
            total = after
    return out


def _only_axis(x: Tensor, axis: int | None, name: str) -> int:
    """The axis of a scan: the only one need not be named."""
    if axis is None and x.ndim != 1:
        raise ShapeError(f"`{name}` of a tensor of shape {x.shape} needs an `axis`")
    return one_axis(x, 0 if axis is None else axis, name)


def cumulative_sum(
    x: Any, /, *, axis: int | None = None, dtype: Any = None, include_initial: bool = False,
    exclusive: bool = False,
) -> Tensor:  # fmt: skip
    """Sums up to each element along an axis; integers in 64 bits unless `dtype` says otherwise.

    With `include_initial` a 0 comes first, and the result is one longer. With `exclusive` an
    element is not in its own sum.

    >>> import ruda
    >>> ruda.cumulative_sum(ruda.asarray([1, 2, 3])).tolist()
    [1, 3, 6]
    """
    return _cumulative("cumulative_sum", "sum", x, axis, dtype, include_initial, exclusive)


def cumulative_prod(
    x: Any, /, *, axis: int | None = None, dtype: Any = None, include_initial: bool = False,
    exclusive: bool = False,
) -> Tensor:  # fmt: skip
    """Products up to each element along an axis; the options are those of `cumulative_sum`."""
    return _cumulative("cumulative_prod", "prod", x, axis, dtype, include_initial, exclusive)


def cummax(x: Any, /, *, axis: int | None = None) -> Tensor:
    """The greatest element up to each one along an axis; NaN after the first NaN.

    >>> import ruda
    >>> ruda.cummax(ruda.asarray([1, 3, 2])).tolist()
    [1, 3, 3]
    """
    return _cumulative("cummax", "max", x, axis, None, False, False)


def cummin(x: Any, /, *, axis: int | None = None) -> Tensor:
    """The least element up to each one along an axis; NaN after the first NaN."""
    return _cumulative("cummin", "min", x, axis, None, False, False)


def _cumulative(
    name: str, how: str, x: Any, axis: int | None, dtype: Any, initial: bool, exclusive: bool
) -> Tensor:
    x = asarray(x)
    k = _only_axis(x, axis, name)
    if initial and exclusive:
        raise ValueError(f"`{name}`: `include_initial` and `exclusive` both put a value first")
    out = _scanned(name, x.detach(), how, k, dtype, exclusive, initial)
    gradient = functools.partial(SCAN_GRADIENTS[how], k, initial, exclusive)
    return attach(out, name, gradient, (x,))


def _after(g: Tensor, k: int, exclusive: bool) -> Tensor:
    """Sums from each element to the end."""
    return flip(cumulative_sum(flip(g, axis=k), axis=k, exclusive=exclusive), axis=k)


def _rest(g: Tensor, k: int, initial: bool) -> Tensor:
    return g[(*(slice(None),) * k, slice(1, None))] if initial else g


def _sum_gradient(
    k: int, initial: bool, exclusive: bool, g: Tensor, out: Tensor, x: Tensor
) -> tuple[Tensor]:
    return (_after(_rest(g, k, initial), k, exclusive),)


def _prod_gradient(
    k: int, initial: bool, exclusive: bool, g: Tensor, out: Tensor, x: Tensor
) -> tuple[Tensor]:
    """Sums of g * product / x; at the first 0 of a line, of g * the products without it."""
    g, out = _rest(g, k, initial), _rest(out, k, initial)
    conj = t.conj if x.dtype.kind == "complex" else lambda v: v
    zero = t.equal(x, 0)
    before = cumulative_sum(zero, axis=k, exclusive=True)
    first = zero & t.equal(before, 0)
    without = cumulative_prod(t.where(first, 1.0, x), axis=k, exclusive=exclusive)
    at_first = _after(g * conj(without), k, exclusive)
    elsewhere = _after(g * conj(out), k, exclusive) / conj(t.where(zero, 1.0, x))
    return (t.where(first, at_first, t.where(zero, 0.0, elsewhere)),)


def _extreme_gradient(
    k: int, initial: bool, exclusive: bool, g: Tensor, out: Tensor, x: Tensor
) -> tuple[Tensor]:
    """To the element that each result is, the latest of equal ones."""
    number = asarray(np.arange(x.shape[k], dtype=np.int32), device=x.device)
    number = reshape(number, (x.shape[k], *(1,) * (x.ndim - k - 1)))
    taken = cummax(t.where(t.equal(x, out), number, astype(0 * number, int32)), axis=k)
    none = from_buffer(run.full(x.shape, 0, g.dtype, x.device), x.device)
    return (scatter(none, taken, g, axis=k, mode="add"),)


SCAN_GRADIENTS: dict[str, Callable[..., tuple[Tensor]]] = {
    "sum": _sum_gradient,
    "prod": _prod_gradient,
    "max": _extreme_gradient,
    "min": _extreme_gradient,
}


def segmented_scan(
    x: Tensor, starts: Tensor, /, *, op: str = "sum", axis: int = -1, exclusive: bool = False
) -> Tensor:
    """Sums (`op`: sum, prod, max or min) up to each element, begun anew where `starts` holds.

    >>> import ruda
    >>> x, starts = ruda.asarray([1, 2, 3, 4]), ruda.asarray([True, False, True, False])
    >>> ruda.segmented_scan(x, starts).tolist()
    [1, 3, 3, 7]
    """
    if op not in ACCUMULATE:
        raise ValueError(f"`segmented_scan`: op={op!r}; there are {', '.join(ACCUMULATE)}")
    check_device("segmented_scan", x, starts)
    if starts.shape != x.shape:
        raise ShapeError(f"`segmented_scan`: starts of {starts.shape} for a tensor of {x.shape}")
    marks = astype(starts.detach(), dtypes.bool_, copy=False)
    out = _scanned("segmented_scan", x.detach(), op, axis, None, exclusive, False, marks)
    if op != "sum":
        refuse(f"segmented_scan with op={op!r}", x)
        return out
    k = one_axis(x, axis, "segmented_scan")

    def gradient(g: Tensor, out: Tensor, x: Tensor) -> tuple[Tensor]:
        # Backwards a segment begins with its last element: the one before the next start.
        ends = concat([_rest(marks, k, True), t.zeros_like(marks)[_first(k)] == 0], axis=k)
        back = segmented_scan(flip(g, axis=k), flip(ends, axis=k), axis=k, exclusive=exclusive)
        return (flip(back, axis=k),)

    return attach(out, "segmented_scan", gradient, (x,))


def _first(k: int) -> tuple[slice, ...]:
    return (*(slice(None),) * k, slice(0, 1))


# ---- orders --------------------------------------------------------------------------------------


def argsort(
    x: Tensor, /, *, axis: int = -1, descending: bool = False, stable: bool = True
) -> Tensor:
    """Indices that put the elements in order along an axis: NaN last, equal ones as they stand.

    >>> import ruda
    >>> ruda.argsort(ruda.asarray([3, 1, 2, 1])).tolist()
    [1, 3, 2, 0]
    """
    k = one_axis(x, axis, "argsort")
    x = x.detach()  # indices do not change with their elements

    def by_kernel() -> Any:
        last = _axis_last(x, k)
        if x.dtype.kind == "complex":
            order = _complex_order(last, descending)
        else:
            rows = reshape(last, _rows(last))
            found = sort.argsort(whole(rows), x.dtype, descending, x.device, "argsort")
            order = reshape(from_buffer(found, x.device), last.shape)
        order = astype(order, run.index_dtype(x.device), copy=False)
        return _contiguous(_axis_back(order, k))

    def by_numpy() -> Any:
        return np.argsort(_key(plain(x), x.dtype, descending), axis=k, stable=True)

    return from_buffer(run.choose("argsort", x.device, by_numpy, by_kernel), x.device)


def _key(a: np.ndarray[Any, Any], dtype: DType, descending: bool) -> np.ndarray[Any, Any]:
    """What NumPy sorts: for the descending order turned round, which leaves NaN last."""
    if dtype.kind == "float" and dtype.bits < 32:
        a = a.astype(np.float32)  # exact, and NumPy knows where NaN of a bfloat16 goes
    if not descending:
        return a
    return ~a if dtype.kind in ("bool", "int", "uint") else -a


def _rows(x: Tensor) -> tuple[int, int]:
    return math.prod(x.shape[:-1]), x.shape[-1]


def _axis_last(x: Tensor, k: int) -> Tensor:
    return permute_dims(x, (*range(k), *range(k + 1, x.ndim), k)) if k != x.ndim - 1 else x


def _axis_back(x: Tensor, k: int) -> Tensor:
    last = x.ndim - 1
    return permute_dims(x, (*range(k), last, *range(k, last))) if k != last else x


def _contiguous(x: Tensor) -> Any:
    """The elements as a buffer in C order."""
    return reshape(x, (-1,)).buffer().reshape(x.shape) if x.size else x.buffer()


def _complex_order(x: Tensor, descending: bool) -> Tensor:
    """By real parts, then by imaginary ones; first those without NaN, as NumPy."""
    real, imag = t.real(x), t.imag(x)
    kind = astype(t.isnan(real), int32) * 2 + astype(t.isnan(imag), int32)
    order = argsort(imag, descending=descending)
    for key, turned in ((real, descending), (kind, False)):
        then = argsort(take_along_axis(key, order), descending=turned)
        order = take_along_axis(order, then)
    return order


def sorted_(
    x: Tensor, /, *, axis: int = -1, descending: bool = False, stable: bool = True
) -> Tensor:
    """The elements in order along an axis: NaN last, -0.0 and 0.0 equal.

    >>> import ruda
    >>> ruda.sort(ruda.asarray([3.0, ruda.nan, 1.0]), descending=True)
    Tensor([ 3.,  1., nan], dtype=float32, device='cpu')
    """
    k = one_axis(x, axis, "sort")
    if x._history is not None and recording():
        order = argsort(x, axis=k, descending=descending)
        return take_along_axis(x, order, axis=k)
    x = x.detach()

    def by_kernel() -> Any:
        if x.dtype.kind != "complex":
            last = _axis_last(x, k)
            rows = whole(reshape(last, _rows(last)))
            found = sort.sort(rows, x.dtype, descending, x.device, "sort")
            if found is not None:
                ordered = reshape(from_buffer(found, x.device), last.shape)
                return _contiguous(_axis_back(ordered, k))
        return take_along_axis(x, argsort(x, axis=k, descending=descending), axis=k).buffer()

    def by_numpy() -> Any:
        return _sorted_by_numpy(plain(x), x.dtype, k, descending)

    return from_buffer(run.choose("sort", x.device, by_numpy, by_kernel), x.device)


sorted_.__name__ = sorted_.__qualname__ = "sort"


def _sorted_by_numpy(a: np.ndarray[Any, Any], dtype: DType, k: int, descending: bool) -> Any:
    """Without regard to equal elements, which only zeros of two signs show; these as they stood."""
    if dtype.kind == "complex" and descending:
        return np.take_along_axis(a, np.argsort(-a, axis=k, stable=True), k)
    key = _key(a, dtype, descending)
    if dtype.kind != "float":
        out = np.sort(key, axis=k)
    elif a.ndim == 1:
        out = memory.allocate(key.shape, as_dtype(key.dtype), "cpu")
        np.copyto(out, key)
        out.sort()
        zero = key.dtype.type(0)  # a Python number would convert the whole array
        low, high = np.searchsorted(out, zero, "left"), np.searchsorted(out, zero, "right")
        signs = np.signbit(out[low:high])
        if signs.any() and not signs.all():
            out[low:high] = key[key == 0]
    else:
        out = np.sort(key, axis=k, stable=bool(np.signbit(key[key == 0]).any()))
    if descending:
        out = np.invert(out, out=out) if dtype.kind != "float" else np.negative(out, out=out)
    return out.astype(dtype.numpy, copy=False)


class TopK(NamedTuple):
    """What `topk` gives."""

    values: Tensor
    indices: Tensor


def topk(x: Tensor, k: int, /, *, axis: int = -1, largest: bool = True) -> TopK:
    """The k greatest (or least) elements along an axis in order, and where they stand; NaN last.

    >>> import ruda
    >>> ruda.topk(ruda.asarray([1, 5, 3]), 2).indices.tolist()
    [1, 2]
    """
    a = one_axis(x, axis, "topk")
    if not 0 <= k <= x.shape[a]:
        raise ShapeError(f"`topk`: {k} of the {x.shape[a]} elements along axis {axis}")
    order = argsort(x, axis=a, descending=largest)
    indices = t.asarray(order[(*(slice(None),) * a, slice(0, k))], copy=True)
    return TopK(take_along_axis(x, indices, axis=a), indices)


def partition(x: Tensor, kth: int, /, *, axis: int = -1) -> Tensor:
    """The elements along an axis such that the one at `kth` stands where sorting would put it.

    None before it goes after it, none after it before it; NaN last. Of the rest the order is not
    promised.

    >>> import ruda
    >>> ruda.partition(ruda.asarray([3, 1, 2]), 0)[0].item()
    1
    """
    k, kth = _kth(x, kth, axis, "partition")
    if x.device == "cpu" and x.dtype.bits >= 32 and not (x._history is not None and recording()):
        return from_buffer(np.partition(plain(x), kth, axis=k), x.device)
    return sorted_(x, axis=k)  # where kernels sort, a selection would save little


def argpartition(x: Tensor, kth: int, /, *, axis: int = -1) -> Tensor:
    """Indices that put the elements along an axis as `partition` does.

    >>> import ruda
    >>> ruda.argpartition(ruda.asarray([3, 1, 2]), 0)[0].item()
    1
    """
    k, kth = _kth(x, kth, axis, "argpartition")
    if x.device == "cpu" and x.dtype.bits >= 32:
        return from_buffer(np.argpartition(plain(x), kth, axis=k), x.device)
    return argsort(x, axis=k)


def _kth(x: Tensor, kth: int, axis: int, name: str) -> tuple[int, int]:
    """The axis and the place that arguments name."""
    k = one_axis(x, axis, name)
    n, place = x.shape[k], operator.index(kth)
    if not -n <= place < n:
        raise ShapeError(f"`{name}`: no place {kth} among {n} elements along axis {axis}")
    return k, place % n


def searchsorted(
    x1: Tensor, x2: Any, /, *, side: str = "left", sorter: Tensor | None = None
) -> Tensor:
    """Where values go in a sorted vector: before equal elements, or with side="right" after them.

    With `sorter`, its indices put the vector in order.

    >>> import ruda
    >>> ruda.searchsorted(ruda.asarray([1, 2, 2, 3]), ruda.asarray([2, 5])).tolist()
    [1, 4]
    """
    if side not in ("left", "right"):
        raise ValueError(f"`searchsorted`: side={side!r}; there are left and right")
    if x1.ndim != 1:
        raise ShapeError(f"`searchsorted` in a tensor of shape {x1.shape}: a vector is needed")
    kind = result_type(x1, x2 if isinstance(x2, int | float | complex | Tensor) else asarray(x2))
    x2 = x2 if isinstance(x2, Tensor) else asarray(x2, device=x1.device)
    check_device("searchsorted", x1, x2, *(() if sorter is None else (sorter,)))
    row, values = (astype(v.detach(), kind, copy=False) for v in (x1, x2))

    def by_kernel() -> Any:
        if kind.kind == "complex":
            raise DTypeError(f"`searchsorted` is not defined for {kind} on {x1.device}")
        buffers = [v.buffer() for v in (row, reshape(values, (-1,)))]
        if kind.kind == "bool":
            buffers = [b.view(np.uint8) for b in buffers]
        order = None if sorter is None else astype(sorter, int32, copy=False).buffer()
        found = sort.searchsorted(
            buffers[0], order, buffers[1], side == "right", x1.device, "searchsorted"
        )
        return found.reshape(values.shape)

    def by_numpy() -> Any:
        order = None if sorter is None else plain(sorter)
        return np.asarray(np.searchsorted(plain(row), plain(values), side, order))  # type: ignore[call-overload]

    return from_buffer(run.choose("searchsorted", x1.device, by_numpy, by_kernel), x1.device)


# ---- what is unique ------------------------------------------------------------------------------


class UniqueAll(NamedTuple):
    """What `unique_all` gives."""

    values: Tensor
    indices: Tensor
    inverse_indices: Tensor
    counts: Tensor


class UniqueCounts(NamedTuple):
    """What `unique_counts` gives."""

    values: Tensor
    counts: Tensor


class UniqueInverse(NamedTuple):
    """What `unique_inverse` gives."""

    values: Tensor
    inverse_indices: Tensor


def unique_all(x: Tensor, /) -> UniqueAll:
    """The values that differ in order, where they stand first, which of them each element is, and
    how often they stand. Every NaN is a value of its own."""
    return UniqueAll(*_unique(x, indices=True, inverse=True, counts=True))


def unique_counts(x: Tensor, /) -> UniqueCounts:
    """The values that differ in order, and how often they stand.

    >>> import ruda
    >>> ruda.unique_counts(ruda.asarray([3, 1, 3])).counts.tolist()
    [1, 2]
    """
    return UniqueCounts(*_unique(x, counts=True))


def unique_inverse(x: Tensor, /) -> UniqueInverse:
    """The values that differ in order, and which of them each element is."""
    return UniqueInverse(*_unique(x, inverse=True))


def unique_values(x: Tensor, /) -> Tensor:
    """The values that differ, in order."""
    return _unique(x)[0]


def _unique(
    x: Tensor, indices: bool = False, inverse: bool = False, counts: bool = False
) -> list[Tensor]:
    refuse("unique", x)
    x = x.detach()

    def by_numpy() -> Any:
        if x.dtype.kind == "float" and not (indices or inverse or counts):
            ordered = _sorted_by_numpy(plain(x).reshape(-1), x.dtype, 0, False)
            is_new = np.ones(len(ordered), bool)
            np.not_equal(ordered[1:], ordered[:-1], out=is_new[1:])
            return (ordered[is_new],)
        options: Any = {"return_index": indices, "return_inverse": inverse, "return_counts": counts}
        found: Any = np.unique(plain(x), **options, equal_nan=False)
        return found if isinstance(found, tuple) else (found,)

    def by_kernel() -> Any:
        return tuple(v.buffer() for v in _unique_by_order(x, indices, inverse, counts))

    found = run.choose("unique", x.device, by_numpy, by_kernel)
    return [from_buffer(f, x.device) for f in found]


def _unique_by_order(x: Tensor, indices: bool, inverse: bool, counts: bool) -> list[Tensor]:
    flat = reshape(x, (x.size,))
    n = x.size

    def new(ordered: Tensor, want: str) -> Tensor:
        """What differs from the element before it."""
        buffer = whole(ordered)
        buffer = buffer.view(np.uint8) if x.dtype.kind == "bool" else buffer
        found = select.kept(buffer, (n,), True, want, x.device, "unique")
        if want == "places":
            return from_buffer(found[0], x.device)
        return from_buffer(found.view(x.dtype.numpy), x.device)

    if not (indices or inverse or counts or x.dtype.kind == "complex"):
        return [new(sorted_(flat), "values")]
    order = argsort(flat)
    ordered = take(flat, order)
    if x.dtype.kind == "complex":
        is_new = t.not_equal(ordered[1:], ordered[:-1])
        first = from_buffer(run.full((min(n, 1),), True, dtypes.bool_, x.device), x.device)
        (starts,) = nonzero(concat([first, is_new]))
    else:
        starts = new(ordered, "places")
    out = [take(ordered, starts)]
    if indices:
        out.append(take(order, starts))
    if inverse:
        number = searchsorted(starts, numbers((n,), 0, x.device), side="right") - 1
        out.append(reshape(scatter(t.zeros_like(number), order, number), x.shape))
    if counts:
        end = from_buffer(run.full((1,), n, starts.dtype, x.device), x.device)
        out.append(t.diff(concat([starts, end])))
    return out


# ---- counts --------------------------------------------------------------------------------------


def bincount(x: Tensor, /, *, weights: Tensor | None = None, minlength: int = 0) -> Tensor:
    """How often each number from 0 stands in a vector; with `weights`, their sums instead.

    >>> import ruda
    >>> ruda.bincount(ruda.asarray([0, 2, 2])).tolist()
    [1, 0, 2]
    """
    if x.ndim != 1 or x.dtype.kind not in ("int", "uint"):
        raise ShapeError(f"`bincount` takes a vector of integers, not {x.shape} of {x.dtype}")
    check_device("bincount", x, *(() if weights is None else (weights,)))
    if weights is not None and weights.shape != x.shape:
        raise ShapeError(f"`bincount`: weights of {weights.shape} for numbers of {x.shape}")
    if minlength < 0:
        raise ValueError(f"`bincount`: minlength={minlength} is negative")
    x = x.detach()
    n = minlength
    if x.size:
        if int(t.min(x)) < 0:
            raise ValueError("`bincount` counts no negative numbers")
        n = max(n, int(t.max(x)) + 1)
    kind = run.index_dtype(x.device) if weights is None else weights.dtype
    none = from_buffer(run.full((n,), 0, kind, x.device), x.device)
    if not x.size:
        return none
    if weights is None:

        def by_numpy() -> Any:
            return np.bincount(plain(x).astype(np.int64), minlength=n)

        def by_kernel() -> Any:
            found = select.counts(reshape(x, (-1,)).buffer(), n, x.device, "bincount")
            if found is None:
                one = from_buffer(run.full((1,), 1, kind, x.device), x.device)
                found = scatter(none, x, one, mode="add").buffer()
            return found

        return from_buffer(run.choose("bincount", x.device, by_numpy, by_kernel), x.device)
    return scatter(none, x, weights, mode="add")


def histogram(
    x: Tensor, bins: Any = 10, /, *, range: tuple[float, float] | None = None,
    weights: Tensor | None = None, density: bool = False,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """How many elements lie in each bin, and the edges of the bins.

    `bins` is a number of equal bins between the least and the greatest element, or `range`; or the
    edges. Bins have their lower edge in them, the last one both. With `density` the areas of the
    bins sum to 1. Integers are counted exactly, also where the edges that are given back, floats,
    are rounded.

    >>> import ruda
    >>> ruda.histogram(ruda.asarray([0.0, 1.0, 1.5, 4.0]), 2)[0].tolist()
    [3, 1]
    """
    refuse("histogram", x)
    flat = reshape(x, (x.size,))
    if flat.dtype.kind == "complex":
        raise DTypeError(f"`histogram` is not defined for {flat.dtype}")
    if flat.dtype.kind == "bool" or (flat.dtype.kind != "float" and flat.dtype.bits < 32):
        flat = astype(flat, int32)
    exact = flat.dtype.kind != "float"
    kind = dtypes.default_float() if exact else flat.dtype
    ends: tuple[Any, Any] | None = None  # of integers, which edges in float64 may round
    if isinstance(bins, int):
        if range is None:
            number = int if exact else float
            range = (number(t.min(flat)), number(t.max(flat))) if flat.size else (0.0, 1.0)
        edges = np.histogram_bin_edges(np.zeros(0), bins, range)
        ends = range if range[0] != range[1] else None
    else:
        edges = np.asarray(plain(asarray(bins)))
        if edges.ndim != 1 or len(edges) < 2 or (edges[1:] < edges[:-1]).any():
            raise ValueError("`histogram`: edges of bins are a vector that does not fall")
    count = len(edges) - 1
    rounded = edges.astype(kind.numpy)
    places = asarray(rounded, device=x.device)
    if exact:
        starts = asarray(_first_integers(edges, ends, flat.dtype), device=x.device)
        after = searchsorted(starts, flat, side="right")
    else:
        after = searchsorted(places, flat, side="right")
        after = t.where(flat == float(rounded[-1]), count, after)  # which the last bin has, too
    whole = None if weights is None else reshape(weights, (x.size,))
    found = bincount(after, weights=whole, minlength=count + 2)[1 : count + 1]
    if density:
        total = astype(found, kind)
        widths = np.diff(edges).astype(kind.numpy) if exact else np.diff(rounded)
        return total / asarray(widths, device=x.device) / t.sum(total), places
    return found, places


def _first_integers(edges: Any, ends: tuple[Any, Any] | None, dtype: DType) -> Any:
    """The least integer of each bin, then the first one behind the last bin, in the dtype of the
    elements: so no element is rounded to be compared. Those that no element reaches are left out.

    >>> _first_integers(np.asarray([-1.0, 0.5, 2.0]), None, dtypes.uint32)
    array([0, 1, 3], dtype=uint32)
    """
    values: list[Any] = edges.tolist()
    if ends is not None:
        values[0], values[-1] = ends
    least, greatest = dtype.range
    starts: list[int] = []
    for k, value in enumerate(values):
        if value > greatest or value != value:
            break
        last = k == len(values) - 1
        start = least
        if value >= least:
            start = math.floor(value) + 1 if last else math.ceil(value)
        starts.append(max([start, *starts[-1:]]))
    return np.asarray([s for s in starts if s <= greatest], dtype.numpy)


__all__ = [
    "argpartition", "argsort", "bincount", "cummax", "cummin", "cumulative_prod", "cumulative_sum",
    "histogram", "partition", "searchsorted", "segmented_scan", "topk", "unique_all",
    "unique_counts", "unique_inverse", "unique_values",
]  # fmt: skip
