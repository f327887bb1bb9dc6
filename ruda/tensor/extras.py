"""What NumPy users reach for beyond the array API standard, made of the standard's functions.

Nothing here has a kernel or a gradient of its own: what the parts can do (devices, dtypes,
derivatives, fusion), these can.
"""

from __future__ import annotations

import math
import operator
import os
import string
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ruda import dtypes
from ruda.dtypes import default_float
from ruda.errors import DTypeError, ShapeError
from ruda.tensor import creation, graph, indexing, linalg, signal
from ruda.tensor.creation import (
    as_shape,
    concat,
    count_nonzero,
    full,
    in_single,
    mean,
    moveaxis,
    result_type,
    squared_size,
    squeeze,
)
from ruda.tensor.linalg import diagonal
from ruda.tensor.tensor import (
    Tensor,
    as_axes,
    asarray,
    astype,
    broadcast_to,
    reshape,
    t,
)

# ---- numbers in a row ----------------------------------------------------------------------------


def logspace(
    start: float, stop: float, num: int = 50, *, base: float = 10.0, endpoint: bool = True,
    dtype: Any = None, device: Any = None,
) -> Tensor:  # fmt: skip
    """`num` numbers whose logarithms are at equal distances, from base**start to base**stop.

    >>> import ruda
    >>> ruda.logspace(0, 3, 4)
    Tensor([   1.,   10.,  100., 1000.], dtype=float32, device='cpu')
    """
    (num,) = as_shape(num)
    values = np.logspace(start, stop, num, endpoint=endpoint, base=base)
    return asarray(values, dtype=dtype or default_float(), device=device)


def geomspace(
    start: float, stop: float, num: int = 50, *, endpoint: bool = True, dtype: Any = None,
    device: Any = None,
) -> Tensor:  # fmt: skip
    """`num` numbers from `start` to `stop`, each the one before times the same factor."""
    (num,) = as_shape(num)
    values = np.geomspace(start, stop, num, endpoint=endpoint)
    return asarray(values, dtype=dtype or default_float(), device=device)


# ---- shapes --------------------------------------------------------------------------------------


def ravel(x: Tensor, /) -> Tensor:
    """All elements along one axis: a view where that is possible."""
    return reshape(x, (-1,)) if x.size else reshape(x, (0,))


def swapaxes(x: Tensor, axis1: int, axis2: int, /) -> Tensor:
    """Two axes exchanged: a view."""
    order = list(range(x.ndim))
    a, b = (as_axes(k, x.ndim)[0] for k in (axis1, axis2))
    order[a], order[b] = order[b], order[a]
    return x.permute(order)


def split(x: Tensor, parts: int | Sequence[int], /, *, axis: int = 0) -> list[Tensor]:
    """Equal parts along an axis, or the parts between given indices: views.

    >>> import ruda
    >>> [p.tolist() for p in ruda.split(ruda.arange(5), [1, 3])]
    [[0], [1, 2], [3, 4]]
    """
    k = as_axes(axis, x.ndim)[0]
    n = x.shape[k]
    if isinstance(parts, int):
        if parts < 1 or n % parts:
            raise ShapeError(f"{n} elements along axis {axis} do not make {parts} equal parts")
        cuts = [n // parts * i for i in range(1, parts)]
    else:
        cuts = [operator.index(c) for c in parts]
    before = (slice(None),) * k
    ends = [*cuts, None]
    return [x[(*before, slice(a, b))] for a, b in zip([0, *cuts], ends, strict=True)]


def hstack(arrays: Sequence[Tensor], /) -> Tensor:
    """Side by side: along the second axis, of vectors along the first."""
    arrays = [reshape(a, (1,)) if a.ndim == 0 else a for a in arrays]
    return concat(arrays, axis=0 if arrays and arrays[0].ndim == 1 else 1)


def vstack(arrays: Sequence[Tensor], /) -> Tensor:
    """One below the other: along the first axis, vectors as rows."""
    return concat([reshape(a, (1, -1)) if a.ndim < 2 else a for a in arrays], axis=0)


def diag(x: Tensor, /, *, k: int = 0) -> Tensor:
    """The k-th diagonal of a matrix; of a vector, the matrix with it as the k-th diagonal.

    >>> import ruda
    >>> ruda.diag(ruda.asarray([1, 2]))
    Tensor([[1, 0],
            [0, 2]], dtype=int64, device='cpu')
    """
    if x.ndim == 2:
        return diagonal(x, offset=k)
    if x.ndim != 1:
        raise ShapeError(f"`diag` is of vectors and matrices, not of shape {x.shape}")
    n = x.shape[0] + abs(k)
    rows = np.arange(n)
    at = asarray(rows[None, :] == rows[:, None] + k, device=x.device)
    before = max(k, 0)
    row = pad(x, (before, n - x.shape[0] - before))
    return t.where(at, row[None, :], full((), 0, dtype=x.dtype, device=x.device))


MODES = ("constant", "edge", "reflect", "symmetric", "wrap")


def pad(x: Tensor, widths: Any, /, *, mode: str = "constant", constant_values: Any = 0) -> Tensor:
    """More elements before and after each axis.

    `widths` is a number, a pair for all axes, or a pair for each; `mode` one of constant, edge,
    reflect, symmetric and wrap, as in NumPy.

    >>> import ruda
    >>> ruda.pad(ruda.arange(3), (1, 2), mode="edge").tolist()
    [0, 0, 1, 2, 2, 2]
    """
    if mode not in MODES:
        raise ValueError(f"mode={mode!r}: `pad` has {', '.join(MODES)}")
    pairs = np.broadcast_to(np.asarray(widths), (x.ndim, 2)).tolist()
    if any(w < 0 for pair in pairs for w in pair):
        raise ValueError(f"widths={widths}: `pad` takes nothing away")
    value = full((), constant_values, dtype=x.dtype, device=x.device)
    for axis, (before, after) in enumerate(pairs):
        if not before and not after:
            continue
        n = x.shape[axis]
        if mode == "constant":
            sides = [(*x.shape[:axis], w, *x.shape[axis + 1 :]) for w in (before, after)]
            x = concat([broadcast_to(value, sides[0]), x, broadcast_to(value, sides[1])], axis=axis)
        elif n == 0:
            raise ShapeError(f"mode={mode!r} has nothing to repeat along axis {axis}")
        else:
            places = np.pad(np.arange(n), (before, after), mode=mode)  # type: ignore[call-overload]
            x = t.take(x, asarray(places, device=x.device), axis=axis)
    return x


# ---- comparison ----------------------------------------------------------------------------------


def isclose(
    x: Any, y: Any, /, *, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False
) -> Tensor:
    """Whether |x - y| <= atol + rtol * |y|; equal infinities are close, NaN only if asked."""
    x, y = _tensors(x, y)
    if not result_type(x, y).is_inexact:
        x, y = astype(x, default_float()), astype(y, default_float())
    finite = t.isfinite(x) & t.isfinite(y)
    near: Tensor = (finite & (t.abs(x - y) <= atol + rtol * t.abs(y))) | (x == y)
    return near | (t.isnan(x) & t.isnan(y)) if equal_nan else near


def allclose(
    x: Any, y: Any, /, *, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False
) -> bool:
    """Whether all elements are close (see `isclose`)."""
    return bool(t.all(isclose(x, y, rtol=rtol, atol=atol, equal_nan=equal_nan)))


def array_equal(x: Any, y: Any, /, *, equal_nan: bool = False) -> bool:
    """Whether shapes and all elements are equal."""
    x, y = _tensors(x, y)
    if x.shape != y.shape:
        return False
    same = x == y
    if equal_nan and result_type(x, y).is_inexact:
        same = same | (t.isnan(x) & t.isnan(y))
    return bool(t.all(same))


def _tensors(*values: Any) -> list[Tensor]:
    """Numbers and arrays beside tensors, as tensors on their device."""
    place = next((v.device for v in values if isinstance(v, Tensor)), None)
    return [v if isinstance(v, Tensor) else asarray(v, device=place) for v in values]


def nan_to_num(
    x: Tensor, /, *, nan: float = 0.0, posinf: float | None = None, neginf: float | None = None
) -> Tensor:
    """NaN and infinities replaced; by default infinities by the greatest finite numbers."""
    if x.dtype.kind == "complex":
        real, imag = (
            nan_to_num(part(x), nan=nan, posinf=posinf, neginf=neginf) for part in (t.real, t.imag)
        )
        return real + imag * 1j
    if x.dtype.kind != "float":
        return x
    limits = creation.make_finfo(x.dtype)
    high = limits.max if posinf is None else posinf
    low = limits.min if neginf is None else neginf
    found: Tensor = t.where(t.isnan(x), nan, x)
    return t.where(x == math.inf, high, t.where(x == -math.inf, low, found))


# ---- reductions ----------------------------------------------------------------------------------


@in_single
def logsumexp(x: Tensor, /, *, axis: Any = None, keepdims: bool = False) -> Tensor:
    """log(sum(exp(x))) without overflow; -inf of nothing but -inf.

    >>> import ruda
    >>> round(ruda.logsumexp(ruda.asarray([1000.0, 1000.0])).item(), 3)
    1000.693
    """
    axes = as_axes(axis, x.ndim)
    x = x if x.dtype.is_inexact else astype(x, default_float())
    high = t.max(x.detach(), axis=axes, keepdims=True)
    high = t.where(t.isfinite(high), high, 0.0)
    out = t.log(t.sum(t.exp(x - high), axis=axes, keepdims=True)) + high
    return out if keepdims else squeeze(out, axes)


def average(x: Tensor, /, *, axis: Any = None, weights: Any = None) -> Tensor:
    """The mean; with `weights`, of an equal shape or one for each element along `axis`."""
    if weights is None:
        return mean(x, axis=axis)
    (w,) = _tensors(weights)
    if w.shape != x.shape:
        axes = as_axes(axis, x.ndim)
        if w.ndim != 1 or len(axes) != 1 or w.shape[0] != x.shape[axes[0]]:
            raise ShapeError(f"weights of shape {w.shape} do not fit {x.shape} along axis {axis}")
        w = reshape(w, tuple(n if k in axes else 1 for k, n in enumerate(x.shape)))
        w = broadcast_to(w, x.shape)
    return t.sum(x * w, axis=axis) / t.sum(w, axis=axis)


def _without_nan(x: Tensor, instead: float) -> Tensor:
    return t.where(t.isnan(x), instead, x) if x.dtype.is_inexact else x


def _count(x: Tensor, axis: Any) -> Tensor:
    """How many elements are not NaN, at the dtype of a mean."""
    kind = x.dtype.real if x.dtype.is_inexact else default_float()
    return astype(count_nonzero(x == x, axis=axis, keepdims=True), kind)


def nansum(x: Tensor, /, *, axis: Any = None, keepdims: bool = False) -> Tensor:
    """The sum of the elements that are not NaN."""
    return t.sum(_without_nan(x, 0), axis=axis, keepdims=keepdims)


def nanprod(x: Tensor, /, *, axis: Any = None, keepdims: bool = False) -> Tensor:
    """The product of the elements that are not NaN."""
    return t.prod(_without_nan(x, 1), axis=axis, keepdims=keepdims)


def nanmax(x: Tensor, /, *, axis: Any = None, keepdims: bool = False) -> Tensor:
    """The greatest element that is not NaN; NaN where there is none."""
    return _nan_extreme("max", -math.inf, x, axis, keepdims)


def nanmin(x: Tensor, /, *, axis: Any = None, keepdims: bool = False) -> Tensor:
    """The least element that is not NaN; NaN where there is none."""
    return _nan_extreme("min", math.inf, x, axis, keepdims)


def _nan_extreme(name: str, instead: float, x: Tensor, axis: Any, keepdims: bool) -> Tensor:
    found: Tensor = getattr(t, name)(_without_nan(x, instead), axis=axis, keepdims=keepdims)
    if not x.dtype.is_inexact:
        return found
    none = t.all(t.isnan(x), axis=axis, keepdims=keepdims)
    return t.where(none, math.nan, found)


@in_single
def nanmean(x: Tensor, /, *, axis: Any = None, keepdims: bool = False) -> Tensor:
    """The mean of the elements that are not NaN."""
    x = x if x.dtype.is_inexact else astype(x, default_float())
    found = nansum(x, axis=axis, keepdims=True) / _count(x, axis)
    return found if keepdims else squeeze(found, as_axes(axis, x.ndim))


@in_single
def nanvar(
    x: Tensor, /, *, axis: Any = None, correction: float = 0.0, keepdims: bool = False
) -> Tensor:
    """The variance of the elements that are not NaN."""
    away = x - nanmean(x, axis=axis, keepdims=True)
    left = t.maximum(_count(x, axis) - correction, 0.0)
    found = nansum(squared_size(away), axis=axis, keepdims=True) / left
    return found if keepdims else squeeze(found, as_axes(axis, x.ndim))


@in_single
def nanstd(
    x: Tensor, /, *, axis: Any = None, correction: float = 0.0, keepdims: bool = False
) -> Tensor:
    """The square root of `nanvar`."""
    return t.sqrt(nanvar(x, axis=axis, correction=correction, keepdims=keepdims))


def nanargmax(x: Tensor, /, *, axis: int | None = None, keepdims: bool = False) -> Tensor:
    """Where the greatest element is that is not NaN: an error where there is none.

    >>> import ruda
    >>> ruda.nanargmax(ruda.asarray([ruda.nan, 1.0, 2.0])).item()
    2
    """
    found: Tensor = _nan_place("nanargmax", indexing.argmax, -math.inf, x, axis, keepdims)
    return found


def nanargmin(x: Tensor, /, *, axis: int | None = None, keepdims: bool = False) -> Tensor:
    """Where the least element is that is not NaN: an error where there is none."""
    found: Tensor = _nan_place("nanargmin", indexing.argmin, math.inf, x, axis, keepdims)
    return found


@graph.step
def _nan_place(
    name: str, place: Any, instead: float, x: Tensor, axis: int | None, keepdims: bool
) -> Any:
    if x.dtype.kind != "float":
        return place(x, axis=axis, keepdims=keepdims)
    is_nan = t.isnan(x.detach())
    if bool(t.any(t.all(is_nan, axis=axis))):
        raise ValueError(f"`{name}`: there is nothing but NaN along axis {axis}")
    x = x.detach()
    found = place(t.where(is_nan, instead, x), axis=axis, keepdims=keepdims)
    # Beside nothing but the infinity that stands for it, NaN would be found.
    lost = t.all(is_nan | (x == instead), axis=axis, keepdims=keepdims)
    return t.where(lost, indexing.argmin(is_nan, axis=axis, keepdims=keepdims), found)


METHODS = ("linear", "lower", "higher", "midpoint", "nearest")


def quantile(
    x: Tensor, q: Any, /, *, axis: Any = None, method: str = "linear", keepdims: bool = False
) -> Tensor:
    """What the share `q` of the elements lies below; the axes of `q` come first.

    Between two elements `method` decides: linear, lower, higher, midpoint or nearest. NaN where
    there is one.

    >>> import ruda
    >>> ruda.quantile(ruda.asarray([1.0, 2.0, 4.0]), [0.5, 0.75]).tolist()
    [2.0, 3.0]
    """
    return _quantiles(x, q, axis, method, keepdims, skip_nan=False)


def nanquantile(
    x: Tensor, q: Any, /, *, axis: Any = None, method: str = "linear", keepdims: bool = False
) -> Tensor:
    """`quantile` of the elements that are not NaN; NaN where there is none."""
    return _quantiles(x, q, axis, method, keepdims, skip_nan=True)


def percentile(
    x: Tensor, q: Any, /, *, axis: Any = None, method: str = "linear", keepdims: bool = False
) -> Tensor:
    """`quantile` at `q` percent."""
    return quantile(x, np.asarray(q) / 100, axis=axis, method=method, keepdims=keepdims)


def nanpercentile(
    x: Tensor, q: Any, /, *, axis: Any = None, method: str = "linear", keepdims: bool = False
) -> Tensor:
    """`nanquantile` at `q` percent."""
    return nanquantile(x, np.asarray(q) / 100, axis=axis, method=method, keepdims=keepdims)


def median(x: Tensor, /, *, axis: Any = None, keepdims: bool = False) -> Tensor:
    """The middle element, or the mean of the two in the middle."""
    return quantile(x, 0.5, axis=axis, keepdims=keepdims)


def nanmedian(x: Tensor, /, *, axis: Any = None, keepdims: bool = False) -> Tensor:
    """The median of the elements that are not NaN."""
    return nanquantile(x, 0.5, axis=axis, keepdims=keepdims)


def _quantiles(x: Tensor, q: Any, axis: Any, method: str, keepdims: bool, skip_nan: bool) -> Tensor:
    if method not in METHODS:
        raise ValueError(f"method={method!r}: there are {', '.join(METHODS)}")
    shares = np.asarray(q, dtype=np.float64)
    if not ((shares >= 0) & (shares <= 1)).all():
        raise ValueError(f"quantiles lie between 0 and 1, percentiles between 0 and 100: {q}")
    x = x if x.dtype.kind == "float" else astype(x, default_float())
    axes = as_axes(axis, x.ndim)
    rest = [k for k in range(x.ndim) if k not in axes]
    kept = tuple(x.shape[k] for k in rest)
    n = math.prod(x.shape[k] for k in axes)
    if n == 0:
        raise ShapeError("a quantile of no elements")
    rows = t.sort(reshape(x.permute((*rest, *axes)), (*kept, n)), axis=-1)
    if skip_nan:
        last = t.maximum(count_nonzero(rows == rows, axis=-1, keepdims=True) - 1, 0)
        found = [_between_counted(rows, float(s), last, method) for s in shares.ravel()]
    else:
        wrong = t.isnan(rows[..., -1])
        found = [t.where(wrong, math.nan, _between(rows, s * (n - 1), method))
                 for s in shares.ravel()]  # fmt: skip
    shape = tuple(1 if k in axes else m for k, m in enumerate(x.shape)) if keepdims else kept
    return reshape(creation.stack(found), (*shares.shape, *shape))


def _between(rows: Tensor, place: float, method: str) -> Tensor:
    """The element at a place of sorted rows that is known on the host."""
    low, high = math.floor(place), math.ceil(place)
    share = {"linear": place - low, "midpoint": 0.5 * (high - low)}.get(method, 0.0)
    if method == "higher" or (method == "nearest" and round(place) == high):
        low = high
    first = rows[..., low]
    return first if not share else first + (rows[..., high] - first) * share


def _between_counted(rows: Tensor, share: float, last: Tensor, method: str) -> Tensor:
    """The same where each row has its own number of elements."""
    place = astype(last, dtypes.float64 if rows.dtype is dtypes.float64 else dtypes.float32) * share
    low = t.floor(place)
    step = {"linear": place - low, "midpoint": (t.ceil(place) - low) * 0.5}.get(method)
    whole = {"higher": t.ceil(place), "nearest": t.round(place)}.get(method, low)

    def at(p: Tensor) -> Tensor:
        return t.take_along_axis(rows, astype(p, dtypes.int64), axis=-1)[..., 0]

    first = at(whole)
    if step is None:
        return first
    return first + (at(t.ceil(place)) - first) * astype(step[..., 0], rows.dtype, copy=False)


@in_single
def cov(
    x: Tensor, y: Tensor | None = None, /, *, rowvar: bool = True, bias: bool = False,
    ddof: int | None = None,
) -> Tensor:  # fmt: skip
    """Covariances of variables: rows (columns, with `rowvar=False`) of observations."""
    x = x if x.dtype.is_inexact else astype(x, default_float())
    x = reshape(x, (1, -1)) if x.ndim < 2 else x if rowvar else x.T
    if y is not None:
        x = vstack([x, reshape(y, (1, -1)) if y.ndim < 2 else y if rowvar else y.T])
    n = x.shape[1]
    lost = (0 if bias else 1) if ddof is None else ddof
    away = x - mean(x, axis=1, keepdims=True)
    found = (away @ t.conj(away).T) / float(max(n - lost, 0))
    return reshape(found, ()) if found.shape == (1, 1) else found


def corrcoef(x: Tensor, y: Tensor | None = None, /, *, rowvar: bool = True) -> Tensor:
    """Correlations of variables: covariances divided by both standard deviations."""
    c = cov(x, y, rowvar=rowvar)
    if c.ndim == 0:
        return c / c
    deviation = t.sqrt(t.real(diagonal(c)))
    return c / deviation[:, None] / deviation[None, :]


def trapezoid(y: Tensor, x: Any = None, /, *, dx: float = 1.0, axis: int = -1) -> Tensor:
    """The integral of samples by the trapezoidal rule, at distances `dx` or at points `x`."""
    k = as_axes(axis, y.ndim)[0]
    rows = moveaxis(y, k, -1)
    width: Any = dx
    if x is not None:
        (points,) = _tensors(x)
        points = points if points.ndim == 1 else moveaxis(points, k, -1)
        width = points[..., 1:] - points[..., :-1]
    return t.sum((rows[..., 1:] + rows[..., :-1]) * width / 2.0, axis=-1)


# ---- products ------------------------------------------------------------------------------------


def outer(x: Tensor, y: Tensor, /) -> Tensor:
    """Products of all pairs of elements."""
    return ravel(x)[:, None] * ravel(y)[None, :]


def inner(x: Tensor, y: Tensor, /) -> Tensor:
    """Sums of products along the last axes."""
    if x.ndim == 0 or y.ndim == 0:
        return x * y
    return t.tensordot(x, y, axes=((-1,), (-1,)))


def dot(x: Tensor, y: Tensor, /) -> Tensor:
    """NumPy's `dot`: the last axis of `x` with the last but one of `y`; numbers multiply."""
    if x.ndim == 0 or y.ndim == 0:
        return x * y
    return t.tensordot(x, y, axes=((-1,), (-1 if y.ndim == 1 else -2,)))


def kron(x: Tensor, y: Tensor, /) -> Tensor:
    """The Kronecker product: a copy of `y`, scaled, for each element of `x`."""
    ndim = max(x.ndim, y.ndim)
    a = (1,) * (ndim - x.ndim) + x.shape
    b = (1,) * (ndim - y.ndim) + y.shape
    left = reshape(x, tuple(n for m in a for n in (m, 1)))
    right = reshape(y, tuple(n for m in b for n in (1, m)))
    return reshape(left * right, tuple(m * n for m, n in zip(a, b, strict=True)))


def cross(x: Tensor, y: Tensor, /, *, axis: int = -1) -> Tensor:
    """The cross product of vectors of 3 numbers."""
    return linalg.cross(x, y, axis=axis)


def trace(x: Tensor, /, *, offset: int = 0) -> Tensor:
    """The sum of the diagonal of the last two axes."""
    return linalg.trace(x, offset=offset)


def convolve(x: Tensor, y: Tensor, /, mode: str = "full") -> Tensor:
    """The discrete convolution of two vectors: "full", "same" or "valid".

    >>> import ruda
    >>> ruda.convolve(ruda.asarray([1, 2, 3]), ruda.asarray([0, 1])).tolist()
    [0, 1, 2, 3]
    """
    graph.check_together("convolve", (x, y))
    if x.ndim != 1 or y.ndim != 1 or not x.size or not y.size:
        raise ShapeError(f"`convolve` takes two vectors with elements, not {x.shape} and {y.shape}")
    if mode not in ("full", "same", "valid"):
        raise ValueError(f"mode={mode!r}: `convolve` has full, same and valid")
    n, m = max(x.size, y.size), min(x.size, y.size)
    full_ = signal.convolve(x, y)
    if mode == "full":
        return full_
    return full_[(m - 1) // 2 :][:n] if mode == "same" else full_[m - 1 : n]


# ---- sums over indices ---------------------------------------------------------------------------


def einsum(subscripts: str, /, *operands: Tensor, optimize: bool = True) -> Tensor:
    """Sums of products over named axes, two operands at a time in the cheapest order found.

    `...` stands for axes that broadcast; without `->` the result has the names that stand once,
    in alphabetical order. `optimize=False` goes from left to right.

    >>> import ruda
    >>> x = ruda.asarray([[1, 2], [3, 4]])
    >>> ruda.einsum("ij,jk->ik", x, x).tolist(), ruda.einsum("ii", x).item()
    ([[7, 10], [15, 22]], 5)
    """
    terms, result = _parse(subscripts, operands)
    kind = result_type(*operands)
    parts = [_once(x, term) for x, term in zip(operands, terms, strict=True)]
    for a, b in _path(terms, result, operands, optimize):
        second, first = parts.pop(max(a, b)), parts.pop(min(a, b))
        needed = set(result).union(*(names for _, names in parts))
        parts.append(_contract(first, second, needed))
    x, names = parts[0]
    gone = tuple(k for k, name in enumerate(names) if name not in result)
    if gone:
        x = t.sum(x, axis=gone)
        names = "".join(n for n in names if n in result)
    return astype(x.permute([names.index(n) for n in result]), kind, copy=False)


def _parse(subscripts: str, operands: Sequence[Tensor]) -> tuple[list[str], str]:
    """A letter for each axis of each operand, and of the result; `...` gets letters of its own."""
    text = subscripts.replace(" ", "")
    left, arrow, right = text.partition("->")
    terms = left.split(",")
    if len(terms) != len(operands):
        raise ShapeError(f"{subscripts!r} names {len(terms)} operands; {len(operands)} are given")
    known = set(text) - set(".,->")
    if not all(c in string.ascii_letters for c in known):
        raise ValueError(f"{subscripts!r}: axes are named by letters")
    free = [c for c in string.ascii_letters if c not in known]
    dots = ""
    for k, (term, x) in enumerate(zip(terms, operands, strict=True)):
        named = term.replace("...", "")
        extra = x.ndim - len(named)
        if "." in named or extra < 0 or (extra and "..." not in term):
            raise ShapeError(f"{term!r} in {subscripts!r} does not name the axes of {x.shape}")
        letters = "".join(free[:extra][::-1])  # aligned at the last axis
        dots = max(dots, letters, key=len)
        terms[k] = term.replace("...", letters)
    if not arrow:
        names = sorted(c for c in known if left.count(c) == 1)
        right = ("..." if dots else "") + "".join(names)
    right = right.replace("...", dots)
    if len(set(right)) < len(right) or not set(right) <= set("".join(terms)):
        raise ValueError(
            f"{subscripts!r}: the result names each axis once, and only ones there are"
        )
    return terms, right


def _once(x: Tensor, term: str) -> tuple[Tensor, str]:
    """A name that an operand has twice is its diagonal."""
    while len(set(term)) < len(term):
        name = next(c for c in term if term.count(c) > 1)
        a = term.index(name)
        b = term.index(name, a + 1)
        rest = [k for k in range(x.ndim) if k not in (a, b)]
        if x.shape[a] != x.shape[b]:
            raise ShapeError(f"axis {name!r} has {x.shape[a]} and {x.shape[b]} elements")
        x = diagonal(x.permute((*rest, a, b)))
        term = "".join(term[k] for k in rest) + name
    return x, term


def _path(
    terms: Sequence[str], result: str, operands: Sequence[Tensor], optimize: bool
) -> list[tuple[int, int]]:
    """Which two parts to contract next; a new part goes to the end. The search is NumPy's."""
    count = len(operands)
    if count < 3 or not optimize:
        return [(0, 1)] + [(count - 2 - k, 0) for k in range(count - 2)] if count > 1 else []
    shapes = (np.broadcast_to(np.float32(0), x.shape) for x in operands)
    found = np.einsum_path(f"{','.join(terms)}->{result}", *shapes, optimize="optimal" if count < 6
                           else "greedy")[0][1:]  # fmt: skip
    pairs: list[tuple[int, int]] = []
    for step in found:  # NumPy may contract more than two at once
        first, *others = sorted(step, reverse=True)
        left = count - sum(1 for _ in pairs)
        for k, other in enumerate(others):
            pairs.append((first, other))
            first = left - 2 - k
    return pairs


def _contract(
    first: tuple[Tensor, str], second: tuple[Tensor, str], needed: set[str]
) -> tuple[Tensor, str]:
    """The product of two parts, summed over the names that nothing needs any more."""
    (x, a), (y, b) = first, second
    x, a = _reduced(x, a, needed | set(b))
    y, b = _reduced(y, b, needed | set(a))
    size = dict(zip(a, x.shape, strict=True))
    for name, n in zip(b, y.shape, strict=True):
        if size.setdefault(name, n) != n:
            if 1 not in (size[name], n):
                raise ShapeError(f"axis {name!r} has {size[name]} and {n} elements")
            size[name] = max(size[name], n) if 0 not in (size[name], n) else 0
    batch = [c for c in a if c in b and c in needed]
    summed = [c for c in a if c in b and c not in needed]
    left = [c for c in a if c not in b]
    right = [c for c in b if c not in a]

    def arranged(x: Tensor, names: str, *groups: list[str]) -> Tensor:
        x = x.permute([names.index(c) for g in groups for c in g])
        x = broadcast_to(x, tuple(size[c] for g in groups for c in g))
        return reshape(x, tuple(math.prod(size[c] for c in g) for g in groups))

    if not summed:  # no product of matrices: an outer one, or element by element
        p = x.permute([a.index(c) for c in batch + left])
        q = y.permute([b.index(c) for c in batch + right])
        p = reshape(p, (*p.shape, *(1,) * len(right)))
        q = reshape(q, (*q.shape[: len(batch)], *(1,) * len(left), *q.shape[len(batch) :]))
        return p * q, "".join(batch + left + right)
    out = t.matmul(arranged(x, a, batch, left, summed), arranged(y, b, batch, summed, right))
    shape = tuple(size[c] for c in batch + left + right)
    return reshape(out, shape), "".join(batch + left + right)


def _reduced(x: Tensor, names: str, needed: set[str]) -> tuple[Tensor, str]:
    """Without the axes that neither the other part nor anything later has."""
    gone = tuple(k for k, name in enumerate(names) if name not in needed)
    if not gone:
        return x, names
    return astype(t.sum(x, axis=gone), x.dtype, copy=False), "".join(
        c for c in names if c in needed
    )


# ---- interpolation -------------------------------------------------------------------------------


def interp(x: Any, xp: Any, fp: Any, /, *, left: Any = None, right: Any = None) -> Tensor:
    """Values between the points (xp, fp), on straight lines; `xp` increases.

    Below the first point `left` (the first value), above the last one `right`.

    >>> import ruda
    >>> ruda.interp(ruda.asarray([0.5, 9.0]), ruda.asarray([0.0, 1.0]), ruda.asarray([10.0, 20.0]))
    Tensor([15., 20.], dtype=float32, device='cpu')
    """
    x, xp, fp = _tensors(x, xp, fp)
    if xp.ndim != 1 or xp.shape != fp.shape or not xp.size:
        raise ShapeError(
            f"points of shapes {xp.shape} and {fp.shape}: two equal vectors are needed"
        )
    kind = result_type(x, xp, fp, 1.0)
    x, xp, fp = (astype(v, kind, copy=False) for v in (x, xp, fp))
    n = xp.shape[0]
    first, last = fp[0], fp[n - 1]
    low = first if left is None else left
    high = last if right is None else right
    if n == 1:
        inside = t.where(x == xp[0], first, x * 0)
    else:
        above = t.clip(t.searchsorted(xp.detach(), x.detach(), side="right"), 1, n - 1)
        a, b = t.take(xp, ravel(above - 1)), t.take(xp, ravel(above))
        p, q = t.take(fp, ravel(above - 1)), t.take(fp, ravel(above))
        a, b, p, q = (reshape(v, x.shape) for v in (a, b, p, q))
        wide = b != a
        inside = p + (q - p) * ((x - a) / t.where(wide, b - a, 1.0))
        inside = t.where(x == xp[n - 1], last, inside)
    found: Tensor = t.where(x < xp[0], low, t.where(x > xp[n - 1], high, inside))
    return t.where(t.isnan(x), x, found)


# ---- files ---------------------------------------------------------------------------------------


def save(file: str | os.PathLike[str], x: Tensor, /) -> None:
    """Write a tensor as an npy file. The file is whole or not there."""
    _written(file, ".npy", lambda target: np.save(target, _storable(x), allow_pickle=False))


def savez(file: str | os.PathLike[str], /, **tensors: Tensor) -> None:
    """Write tensors by name as an npz file. The file is whole or not there."""
    arrays = {name: _storable(x) for name, x in tensors.items()}
    _written(file, ".npz", lambda target: np.savez(target, **arrays))  # type: ignore[arg-type]


def load(file: str | os.PathLike[str], /, *, device: Any = None) -> Any:
    """The tensor of an npy file, or the dictionary of those of an npz file.

    Nothing is unpickled: files with Python objects are refused.
    """
    try:
        found: Any = np.load(file, allow_pickle=False)
        if isinstance(found, np.ndarray):
            return asarray(found, device=device)
        with found:
            return {name: asarray(found[name], device=device) for name in found.files}
    except (ValueError, EOFError, OSError) as error:
        if isinstance(error, FileNotFoundError):
            raise
        raise ValueError(f"{os.fspath(file)!r} is no whole npy or npz file: {error}") from None


def _storable(x: Any) -> np.ndarray[Any, Any]:
    x = asarray(x)
    if x.dtype is dtypes.bfloat16:
        raise DTypeError(
            "npy files have no bfloat16: save `.astype(float32)`, it keeps every value"
        )
    found: np.ndarray[Any, Any] = x.numpy()
    return found


def _written(file: str | os.PathLike[str], suffix: str, write: Any) -> None:
    path = Path(file)
    if path.suffix != suffix:
        path = path.with_name(path.name + suffix)
    part = path.with_name(f"{path.name}.part-{os.getpid()}")
    try:
        with open(part, "wb") as target:
            write(target)
            target.flush()
            os.fsync(target.fileno())
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


__all__ = [
    "allclose", "array_equal", "average", "convolve", "corrcoef", "cov", "cross", "diag", "dot",
    "einsum", "geomspace", "hstack", "inner", "interp", "isclose", "kron", "load", "logspace",
    "logsumexp", "median", "nan_to_num", "nanargmax", "nanargmin", "nanmax", "nanmean", "nanmedian",
    "nanmin", "nanpercentile", "nanprod", "nanquantile", "nanstd", "nansum", "nanvar", "outer",
    "pad", "percentile", "quantile", "ravel", "save", "savez", "split", "swapaxes", "trace",
    "trapezoid", "vstack",
]  # fmt: skip
