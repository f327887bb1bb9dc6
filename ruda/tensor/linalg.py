"""Linear algebra of the array API standard.

What is sums, products and views is made of them, and runs wherever they do. Factorisations are
NumPy's (LAPACK's), where the host is the device; elsewhere the kernels of `factors` compute those
that it lists, and the others are refused by name.

Gradients are those of Giles, "Collected matrix derivative results for forward and reverse mode
algorithmic differentiation" (2008), and for complex matrices their conjugates.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from ruda.dtypes import default_float
from ruda.errors import GradientError, ShapeError
from ruda.tensor.creation import (
    LIBRARY,
    LIBRARY_GRADIENTS,
    concat,
    count_nonzero,
    expand_dims,
    eye,
    in_single,
    library,
    make_finfo,
    matrix_transpose,
    moveaxis,
    result_type,
    tril,
    zeros,
)
from ruda.tensor.graph import step
from ruda.tensor.history import attach, no_grad
from ruda.tensor.memory import View
from ruda.tensor.tensor import Tensor, as_axes, astype, broadcast_to, reshape, t

# ---- made of sums, products and views ------------------------------------------------------------


def diagonal(x: Tensor, /, *, offset: int = 0) -> Tensor:
    """The diagonal of the last two axes, or the one `offset` above it: a view.

    >>> import ruda
    >>> ruda.linalg.diagonal(ruda.asarray([[1, 2], [3, 4]]), offset=1).tolist()
    [2]
    """
    _matrices("diagonal", x)
    seen = x._seen()
    (m, n), (by_row, by_column) = seen.shape[-2:], seen.strides[-2:]
    count = max(0, min(m, n - offset) if offset >= 0 else min(m + offset, n))
    start = offset * by_column if offset >= 0 else -offset * by_row
    view = View(
        (*seen.shape[:-2], count), (*seen.strides[:-2], by_row + by_column),
        seen.offset + (start if count else 0),
    )  # fmt: skip
    out = x._through(view)

    def gradient(g: Tensor, out: Tensor, x: Tensor) -> tuple[Tensor]:
        return (_on_diagonal(g, x.shape[-2:], offset),)

    return attach(out, "diagonal", gradient, (x,))


def _on_diagonal(x: Tensor, shape: Sequence[int], offset: int = 0) -> Tensor:
    """Matrices of zeros with `x` on a diagonal."""
    out = zeros((*x.shape[:-1], *shape), dtype=x.dtype, device=x.device)
    diagonal(out, offset=offset)[...] = x.detach()
    return attach(out, "diag", lambda g, out, x: (diagonal(g, offset=offset),), (x,))


def trace(x: Tensor, /, *, offset: int = 0, dtype: Any = None) -> Tensor:
    """The sum of the diagonal."""
    return t.sum(diagonal(x, offset=offset), axis=-1, dtype=dtype)


def outer(x1: Tensor, x2: Tensor, /) -> Tensor:
    """Products of all pairs of two vectors' elements."""
    if x1.ndim != 1 or x2.ndim != 1:
        raise ShapeError(f"`outer` takes two vectors, not shapes {x1.shape} and {x2.shape}")
    return x1[:, None] * x2[None, :]


def cross(x1: Tensor, x2: Tensor, /, *, axis: int = -1) -> Tensor:
    """The cross product of vectors of 3 numbers along an axis."""
    shape = t.add(x1, x2).shape
    k = as_axes(axis, min(x1.ndim, x2.ndim))[0] - min(x1.ndim, x2.ndim)
    if any(x.shape[k] != 3 for x in (x1, x2)):
        raise ShapeError(f"`cross` of vectors of {x1.shape[k]} and {x2.shape[k]} numbers, not of 3")
    a, b = (moveaxis(broadcast_to(x, shape), k, -1) for x in (x1, x2))
    parts = [a[..., i] * b[..., j] - a[..., j] * b[..., i] for i, j in ((1, 2), (2, 0), (0, 1))]
    return moveaxis(concat([expand_dims(p, -1) for p in parts], axis=-1), -1, k)


def vecdot(x1: Tensor, x2: Tensor, /, *, axis: int = -1) -> Tensor:
    """The inner product along an axis, the first one conjugated."""
    k = as_axes(axis, min(x1.ndim, x2.ndim))[0] - min(x1.ndim, x2.ndim)
    if x1.shape[k] != x2.shape[k]:
        raise ShapeError(f"`vecdot` of {x1.shape[k]} and {x2.shape[k]} numbers along axis {axis}")
    return astype(t.sum(t.conj(x1) * x2, axis=k), result_type(x1, x2), copy=False)


def tensordot(x1: Tensor, x2: Tensor, /, *, axes: Any = 2) -> Tensor:
    """Sums of products over the last axes of one and the first of the other, or over given ones."""
    if isinstance(axes, int):
        pairs: tuple[Any, Any] = (range(x1.ndim - axes, x1.ndim), range(axes))
    else:
        pairs = tuple((a,) if isinstance(a, int) else tuple(a) for a in axes)  # type: ignore[assignment]
    first = [a % x1.ndim for a in pairs[0]] if x1.ndim else []
    second = [a % x2.ndim for a in pairs[1]] if x2.ndim else []
    lengths = [tuple(x.shape[k] for k in ks) for x, ks in ((x1, first), (x2, second))]
    if lengths[0] != lengths[1]:
        raise ShapeError(f"`tensordot` sums over axes of lengths {lengths[0]} and {lengths[1]}")
    left = [k for k in range(x1.ndim) if k not in first]
    right = [k for k in range(x2.ndim) if k not in second]
    shape = (*(x1.shape[k] for k in left), *(x2.shape[k] for k in right))
    n = math.prod(lengths[0])
    a = reshape(x1.permute((*left, *first)), (math.prod(x1.shape[k] for k in left), n))
    b = reshape(x2.permute((*second, *right)), (n, math.prod(x2.shape[k] for k in right)))
    return reshape(t.matmul(a, b), shape)


@in_single
def vector_norm(
    x: Tensor, /, *, axis: Any = None, keepdims: bool = False, ord: float = 2
) -> Tensor:
    """(sum |x|**ord)**(1/ord) of vectors; the greatest or least size for plus or minus infinity.

    `ord=0` counts what is not zero.
    """
    axes = as_axes(axis, x.ndim)
    size = t.abs(x if x.dtype.is_inexact else astype(x, default_float()))
    if ord == math.inf:
        return t.max(size, axis=axes, keepdims=keepdims)
    if ord == -math.inf:
        return t.min(size, axis=axes, keepdims=keepdims)
    if ord == 0:
        return t.sum(astype(size != 0, size.dtype), axis=axes, keepdims=keepdims)
    if ord == 1:
        return t.sum(size, axis=axes, keepdims=keepdims)
    if ord == 2:
        return t.sqrt(t.sum(size * size, axis=axes, keepdims=keepdims))
    return t.sum(size**ord, axis=axes, keepdims=keepdims) ** (1.0 / ord)


def matrix_norm(x: Tensor, /, *, keepdims: bool = False, ord: Any = "fro") -> Tensor:
    """A norm of the last two axes: "fro", "nuc", 1, -1, 2, -2, plus or minus infinity."""
    _matrices("matrix_norm", x)
    x = x if x.dtype.is_inexact else astype(x, default_float())
    if ord == "fro":
        return vector_norm(x, axis=(-2, -1), keepdims=keepdims)
    if ord in ("nuc", 2, -2):
        values = svdvals(x)
        found = t.sum(values, axis=-1) if ord == "nuc" else values[..., 0 if ord == 2 else -1]
    elif ord in (1, -1, math.inf, -math.inf):
        sums = t.sum(t.abs(x), axis=-2 if abs(ord) == 1 else -1)
        found = (t.max if ord > 0 else t.min)(sums, axis=-1)
    else:
        raise ValueError(f"ord={ord!r}: there are fro, nuc, 1, -1, 2, -2, inf and -inf")
    return expand_dims(found, (-2, -1)) if keepdims else found


def matrix_power(x: Tensor, n: int, /) -> Tensor:
    """The matrix times itself, n times; of its inverse for negative n."""
    _square("matrix_power", x)
    if n < 0:
        return matrix_power(inv(x), -n)
    out = broadcast_to(eye(x.shape[-1], dtype=x.dtype, device=x.device), x.shape)
    first = True
    while n:
        if n & 1:
            out, first = (x if first else out @ x), False
        n >>= 1
        if n:
            x = x @ x
    return out


# ---- factorisations ------------------------------------------------------------------------------


def _matrices(name: str, x: Tensor) -> None:
    if x.ndim < 2:
        raise ShapeError(f"`{name}` is of matrices, not of shape {x.shape}")


def _square(name: str, x: Tensor) -> None:
    _matrices(name, x)
    if x.shape[-1] != x.shape[-2]:
        raise ShapeError(f"`{name}` is of square matrices, not of shape {x.shape}")


def _matrix_rank(x: Any, /, *, rtol: Any = None) -> Any:
    return np.linalg.matrix_rank(x, rtol=rtol)


def _pinv(x: Any, /, *, rtol: Any = None) -> Any:
    return np.linalg.pinv(x, rtol=rtol)


def _solve(x1: Any, x2: Any, /) -> Any:
    if x2.ndim == 1:  # a vector, also beside a stack of matrices
        return np.linalg.solve(x1, x2[..., None])[..., 0]
    return np.linalg.solve(x1, x2)


def _h(x: Tensor) -> Tensor:
    """The conjugate transpose."""
    return t.conj(x.mT) if x.dtype.kind == "complex" else x.mT


def _sum_to(x: Tensor, shape: tuple[int, ...]) -> Tensor:
    """The gradient of an operand whose stack of matrices was broadcast."""
    extra = x.ndim - len(shape)
    axes = (*range(extra), *(k + extra for k, n in enumerate(shape) if n != x.shape[k + extra]))
    return reshape(t.sum(x, axis=axes), shape) if axes else x


def _inv_gradient(options: Any, g: Tensor, out: Tensor, x: Tensor) -> tuple[Tensor]:
    return (-(_h(out) @ g @ _h(out)),)


def _det_gradient(options: Any, g: Tensor, out: Tensor, x: Tensor) -> tuple[Tensor]:
    scale = g * t.conj(out)
    return (scale[..., None, None] * _h(inv(x)),)


def _solve_gradient(options: Any, g: Tensor, out: Tensor, a: Tensor, b: Tensor) -> tuple[Any, Any]:
    vector = b.ndim == 1
    if vector:
        g, out = g[..., None], out[..., None]
    by_b = solve(_h(a), g)
    by_a = _sum_to(-(by_b @ _h(out)), a.shape)
    return by_a, _sum_to(by_b[..., 0] if vector else by_b, b.shape)


def _cholesky_gradient(options: Any, g: Tensor, out: Tensor, x: Tensor) -> tuple[Tensor]:
    upper = options.get("upper", False)
    low, g = (_h(out), _h(g)) if upper else (out, g)
    inside = tril(_h(low) @ g)
    inside = inside - 0.5 * _on_diagonal(diagonal(inside), inside.shape[-2:])
    back = inv(low)
    found = _h(back) @ inside @ back
    return (0.5 * (found + _h(found)),)


def _pinv_gradient(options: Any, g: Tensor, out: Tensor, x: Tensor) -> tuple[Tensor]:
    """Of full rank; Golub and Pereyra (1973)."""
    p, m, n = out, *x.shape[-2:]
    left = eye(m, dtype=x.dtype, device=x.device) - x @ p
    right = eye(n, dtype=x.dtype, device=x.device) - p @ x
    found = p @ _h(p) @ g @ left + right @ g @ _h(p) @ p - p @ _h(g) @ p
    return (_h(found),)


# The gradients of a function with several results, one for each; they factorise once more, so that
# they can be differentiated themselves.


def _slogdet_of(k: int) -> Any:
    def gradient(options: Any, g: Tensor, out: Tensor, x: Tensor) -> tuple[Any]:
        if k == 0:
            if x.dtype.kind == "complex":
                raise GradientError("the sign of `slogdet` of complex matrices has no gradient")
            return (None,)
        return (g[..., None, None] * _h(inv(x)),)

    return gradient


def _eigh_of(k: int) -> Any:
    def gradient(options: Any, g: Tensor, out: Tensor, x: Tensor) -> tuple[Tensor]:
        values, vectors = eigh(x)
        if k == 0:
            inside = _on_diagonal(astype(g, x.dtype, copy=False), x.shape[-2:])
        else:
            gap = values[..., None, :] - values[..., :, None]
            none = gap == 0
            inside = t.where(none, 0.0, 1.0 / t.where(none, 1.0, gap)) * (_h(vectors) @ g)
        found = vectors @ inside @ _h(vectors)
        return (0.5 * (found + _h(found)),)

    return gradient


def _svd_of(k: int) -> Any:
    def gradient(options: Any, g: Tensor, out: Tensor, x: Tensor) -> tuple[Tensor]:
        if options.get("full_matrices", True) and x.shape[-1] != x.shape[-2] and k != 1:
            raise GradientError("derivatives of `svd` need full_matrices=False")
        if x.dtype.kind == "complex" and k != 1:
            raise GradientError("derivatives of singular vectors are of real matrices")
        u, s, vh = svd(x, full_matrices=False)
        if k == 1:
            return ((u * astype(g, x.dtype, copy=False)[..., None, :]) @ vh,)
        rows, columns = x.shape[-2:]
        square = s * s
        gap = square[..., None, :] - square[..., :, None]
        none = gap == 0
        f = t.where(none, 0.0, 1.0 / t.where(none, 1.0, gap))
        v = vh.mT
        if k == 0:
            inside = f * (u.mT @ g)
            found = u @ ((inside + inside.mT) * s[..., None, :]) @ vh
            if rows > columns:
                found = found + ((g - u @ (u.mT @ g)) / s[..., None, :]) @ vh
            return (found,)
        gv = g.mT
        inside = f * (v.mT @ gv)
        found = u @ (s[..., :, None] * (inside + inside.mT)) @ vh
        if columns > rows:
            found = found + (u / s[..., None, :]) @ (gv - v @ (v.mT @ gv)).mT
        return (found,)

    return gradient


def _svdvals_gradient(options: Any, g: Tensor, out: Tensor, x: Tensor) -> tuple[Tensor]:
    return _svd_of(1)(options, g, out, x)  # type: ignore[no-any-return]


def _eigvalsh_gradient(options: Any, g: Tensor, out: Tensor, x: Tensor) -> tuple[Tensor]:
    return _eigh_of(0)(options, g, out, x)  # type: ignore[no-any-return]


def _qr_of(k: int) -> Any:
    def gradient(options: Any, g: Tensor, out: Tensor, x: Tensor) -> tuple[Tensor]:
        if options.get("mode", "reduced") != "reduced" or x.shape[-2] < x.shape[-1]:
            raise GradientError("derivatives of `qr` are of the reduced form, with rows >= columns")
        q, r = qr(x)
        m = -(_h(g) @ q) if k == 0 else r @ _h(g)
        low = tril(m, k=-1)
        inside = low + _h(low) + _on_diagonal(diagonal(m), m.shape[-2:])
        found = q @ inside
        if k == 0:
            found = found + g
        return (_h(solve(r, _h(found))),)

    return gradient


LIBRARY_GRADIENTS.update({
    "linalg.inv": _inv_gradient, "linalg.det": _det_gradient, "linalg.solve": _solve_gradient,
    "linalg.cholesky": _cholesky_gradient, "linalg.pinv": _pinv_gradient,
    "linalg.eigvalsh": _eigvalsh_gradient, "linalg.svdvals": _svdvals_gradient,
    "linalg.matrix_rank": lambda options, g, out, x: (None,),
    "linalg.slogdet": (_slogdet_of(0), _slogdet_of(1)), "linalg.eigh": (_eigh_of(0), _eigh_of(1)),
    "linalg.svd": (_svd_of(0), _svd_of(1), _svd_of(2)), "linalg.qr": (_qr_of(0), _qr_of(1)),
})  # fmt: skip

FACTORISATIONS = {
    name: library(f"linalg.{name}", numpy, doc)
    for name, numpy, doc in (
        ("cholesky", np.linalg.cholesky, "The triangular factor; `upper=True` for the upper one."),
        ("det", np.linalg.det, "The determinant."),
        ("eig", np.linalg.eig, "Eigenvalues and eigenvectors."),
        ("eigh", np.linalg.eigh, "Eigenvalues and eigenvectors of a Hermitian matrix."),
        ("eigvals", np.linalg.eigvals, "Eigenvalues."),
        ("eigvalsh", np.linalg.eigvalsh, "Eigenvalues of a Hermitian matrix."),
        ("inv", np.linalg.inv, "The inverse."),
        ("matrix_rank", _matrix_rank, "How many singular values are not small."),
        ("pinv", _pinv, "The pseudo-inverse."),
        ("qr", np.linalg.qr, "Factors Q and R."),
        ("slogdet", np.linalg.slogdet, "Sign and logarithm of the determinant."),
        ("solve", _solve, "The x for which x1 @ x is x2."),
        ("svd", np.linalg.svd, "Singular vectors and values."),
        ("svdvals", np.linalg.svdvals, "Singular values."),
    )
}
eigh, inv, qr, solve, svd, svdvals = (
    FACTORISATIONS[n] for n in ("eigh", "inv", "qr", "solve", "svd", "svdvals")
)
pinv, slogdet = FACTORISATIONS["pinv"], FACTORISATIONS["slogdet"]
matmul = LIBRARY["matmul"]

# ---- made of factorisations ----------------------------------------------------------------------


class LstsqResult(NamedTuple):
    """What `lstsq` gives."""

    x: Tensor
    residuals: Tensor
    rank: Tensor
    singular_values: Tensor


def lstsq(a: Tensor, b: Tensor, /, rcond: float | None = None) -> LstsqResult:
    """The x of least length for which a @ x is nearest to b; b is a vector, or columns.

    Singular values of at most `rcond` times the greatest count as zero, by default those within
    rounding: eps * max(a.shape); a number that is not between 0 and 1 means eps. `rank` tells how
    many do not. `residuals` has the squared distance of each column, and no elements where `a` has
    no more rows than columns or not the rank of all its columns, as in NumPy: for that the rank is
    read, which waits for the device.

    >>> import ruda
    >>> a = ruda.asarray([[1.0, 0.0], [1.0, 1.0], [1.0, 2.0]])  # a line through three points
    >>> x, residuals, rank, values = ruda.linalg.lstsq(a, ruda.asarray([1.0, 3.0, 5.0]))
    >>> [round(v, 3) for v in x.tolist()], rank.item()
    ([1.0, 2.0], 2)
    """
    if a.ndim != 2 or b.ndim not in (1, 2) or a.shape[0] != b.shape[0]:
        raise ShapeError(
            "`lstsq` takes a matrix, and a vector or a matrix with as many rows, not shapes "
            f"{a.shape} and {b.shape}"
        )
    kind = result_type(a, b)
    kind = kind if kind.is_inexact else default_float()
    a, b = astype(a, kind, copy=False), astype(b, kind, copy=False)
    u, s, vh = svd(a, full_matrices=False)
    eps = make_finfo(kind).eps
    if rcond is None:
        rcond = max(a.shape) * eps
    elif not 0 < rcond < 1:
        rcond = eps
    with no_grad():
        large = s > s[:1] * rcond
        back = t.where(large, 1.0 / t.where(large, s, 1.0), 0.0)
        rank = count_nonzero(large)
        columns = b if b.ndim == 2 else b[:, None]
        found = _h(vh) @ (back[:, None] * (_h(u) @ columns))
    x = attach(
        found if b.ndim == 2 else found[:, 0], "lstsq",
        functools.partial(_lstsq_gradient, rcond), (a, b),
    )  # fmt: skip
    if a.shape[0] > a.shape[1] == rank.item():
        away = t.abs(b - a @ x)
        residuals = reshape(t.sum(away * away, axis=0), (-1,))
    else:
        residuals = zeros((0,), dtype=s.dtype, device=s.device)
    return LstsqResult(x, residuals, rank, s)


def _lstsq_gradient(rcond: float, g: Tensor, out: Tensor, a: Tensor, b: Tensor) -> tuple[Any, Any]:
    """Those of pinv(a) @ b, in products with vectors: Golub and Pereyra (1973)."""
    shape = b.shape
    if b.ndim == 1:
        g, out, b = g[:, None], out[:, None], b[:, None]
    p = pinv(a, rtol=rcond)
    by_b = _h(p) @ g
    away, across = b - a @ out, g - p @ (a @ g)
    by_a = away @ _h(p @ by_b) + (_h(p) @ out) @ _h(across) - by_b @ _h(out)
    return by_a, reshape(by_b, shape)


def cond(x: Tensor, /, p: Any = None) -> Tensor:
    """How much matrices enlarge relative errors: the norm times that of the inverse.

    `p` is an `ord` of `matrix_norm`; None and 2 divide the greatest singular value by the least.
    Infinity of singular matrices, NaN only where there is NaN.

    >>> import ruda
    >>> ruda.linalg.cond(ruda.asarray([[2.0, 0.0], [0.0, 0.5]])).item()
    4.0
    """
    _matrices("cond", x)
    if 0 in x.shape[-2:]:
        raise ShapeError(f"`cond` is of matrices with elements, not of shape {x.shape}")
    x = x if x.dtype.is_inexact else astype(x, default_float())
    unknown = t.any(t.isnan(x), axis=(-2, -1))
    if p in (None, 2, -2):
        s = svdvals(x)
        found = s[..., -1] / s[..., 0] if p == -2 else s[..., 0] / s[..., -1]
    else:
        _square("cond", x)
        size = matrix_norm(x, ord=p)
        # Where a pivot is 0 `inv` would raise; LAPACK may find one beside NaN, too.
        none = unknown | (slogdet(x.detach()).logabsdet == -math.inf)
        one = eye(x.shape[-1], dtype=x.dtype, device=x.device)
        back = matrix_norm(inv(t.where(none[..., None, None], one, x)), ord=p)
        found = t.where(none, math.inf, size * back)
    return t.where(unknown, math.nan, t.where(t.isnan(found), math.inf, found))


def norm(x: Tensor, /, ord: Any = None, axis: Any = None, keepdims: bool = False) -> Tensor:
    """NumPy's `norm`: of a vector for one axis, of matrices for two; by default of all elements.

    >>> import ruda
    >>> ruda.linalg.norm(ruda.asarray([[3.0, 0.0], [0.0, 4.0]])).item()
    5.0
    """
    if axis is None and (ord is None or x.ndim == 1):
        return vector_norm(x, ord=2 if ord is None else ord, keepdims=keepdims)
    if axis is None and x.ndim != 2:
        raise ShapeError(f"ord={ord!r} of shape {x.shape}: name an axis, or two of matrices")
    axes = as_axes(axis, x.ndim)
    if len(axes) == 1:
        return vector_norm(x, axis=axes, ord=2 if ord is None else ord, keepdims=keepdims)
    if len(axes) != 2:
        raise ShapeError(f"axis={axis}: `norm` is of vectors and matrices, along one axis or two")
    found = matrix_norm(moveaxis(x, axes, (-2, -1)), ord="fro" if ord is None else ord)
    return expand_dims(found, axes) if keepdims else found


FUNCTIONS: dict[str, Callable[..., Any]] = FACTORISATIONS | {
    "cond": cond, "cross": cross, "diagonal": diagonal, "lstsq": step(lstsq), "matmul": matmul,
    "matrix_norm": matrix_norm, "matrix_power": matrix_power, "matrix_transpose": matrix_transpose,
    "norm": norm, "outer": outer, "tensordot": tensordot, "trace": trace, "vecdot": vecdot,
    "vector_norm": vector_norm,
}  # fmt: skip
globals().update(FUNCTIONS)
__all__ = list(FUNCTIONS)
