"""Factorisations of matrices on devices whose memory the host does not see.

`linalg` asks NumPy (LAPACK) on the host and this file elsewhere. The work is done on copies, by the
kernels of `primitives.factor` or by `cusolver`; determinants, singular vectors and the like are
made of them by ops on tensors. What a matrix lacks (an inverse, a root) is known when the kernels
are done: the functions that must tell wait for that, and raise NumPy's LinAlgError.

Eigenvectors of a symmetric matrix are the singular vectors of A + c, with a c that leaves no
eigenvalue below 0: the error is a rounding of the norm of A, as that of LAPACK's.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from ruda import dtypes
from ruda.dtypes import DType
from ruda.errors import DeviceError, ShapeError
from ruda.tensor import cusolver, memory
from ruda.tensor.creation import (
    broadcast_shapes,
    concat,
    conjugate,
    eye,
    ones,
    result_type,
    to_factorise,
    tril,
    triu,
    zeros,
)
from ruda.tensor.indexing import take_along_axis
from ruda.tensor.ordering import argsort
from ruda.tensor.primitives import factor, run
from ruda.tensor.primitives.factor import COLUMNS, PAIR, THREADS, TILE, WIDE
from ruda.tensor.tensor import (
    Tensor,
    asarray,
    astype,
    broadcast_to,
    copied,
    from_buffer,
    t,
)

LARGEST = 4096  # of the smaller side for singular values: their time grows with its third power
SWEEPS = 40  # of rotations of all pairs; 6 to 12 are usual

NAME = "cuSOLVER"  # of the vendor's library, as `ruda.explain` tells it
# What a function is made of, by the names that `cusolver` has for it.
ROUTINES = {
    "solve": "lu", "inv": "lu", "det": "lu", "slogdet": "lu", "cholesky": "cholesky", "qr": "qr",
    "eigh": "eigen", "eigvalsh": "eigen", "svd": "svd", "svdvals": "svd", "matrix_rank": "svd",
    "pinv": "svd",
}  # fmt: skip

LinAlgError = np.linalg.LinAlgError
DOUBLE = {dtypes.float32: dtypes.float64, dtypes.complex64: dtypes.complex128}
NO_ROOT = "Matrix is not positive definite"

# The named tuples that NumPy returns.
SlogdetResult: Any = type(np.linalg.slogdet(np.eye(1)))
QRResult: Any = type(np.linalg.qr(np.eye(1)))
SVDResult: Any = type(np.linalg.svd(np.eye(1)))
EighResult: Any = type(np.linalg.eigh(np.eye(1)))

# ---- what goes in --------------------------------------------------------------------------------


def _number(name: str, x: Tensor) -> Tensor:
    """The matrices at a dtype that kernels factorise."""
    if x.ndim < 2:
        raise ShapeError(f"`{name}` is of matrices, not of shape {x.shape}")
    x = to_factorise(f"linalg.{name}", x, x.device)
    if x.dtype not in factorised(name, x.device):
        raise DeviceError(
            f"`linalg.{name}` of {x.dtype} on {x.device}: kernels factorise real numbers of 32 and "
            "64 bits; convert, or move the tensor with `.to_device('cpu')`"
        )
    return x


def factorised(name: str, device: str) -> tuple[DType, ...]:
    """The dtypes of matrices that a function factorises on a device."""
    routine = ROUTINES.get(name)
    by_vendor = routine is not None and cusolver.able(routine, device)
    return tuple(cusolver.REAL) if by_vendor else (dtypes.float32, dtypes.float64)


def _square(name: str, x: Tensor) -> Tensor:
    if x.ndim > 1 and x.shape[-1] != x.shape[-2]:
        raise LinAlgError(f"`{name}` is of square matrices, not of shape {x.shape}")
    return _number(name, x)


def _stack(x: Tensor) -> Any:
    """A copy of the matrices, a buffer with one axis before them."""
    shape = math.prod(x.shape[:-2]), *x.shape[-2:]
    return memory.view(copied(x), memory.contiguous(shape))


def _back(buffer: Any, x: Tensor, *last: int, by: str = "") -> Tensor:
    """A buffer of results as a tensor with the leading axes of `x`."""
    seen = memory.view(buffer, memory.contiguous((*x.shape[:-2], *last)))
    return from_buffer(seen, x.device, by)


def _fresh(x: Tensor) -> Any:
    """The matrices of a tensor that nobody else has, in its own memory, to be overwritten."""
    shape = math.prod(x.shape[:-2]), *x.shape[-2:]
    return memory.view(x.buffer(), memory.contiguous(shape))


def _flags(count: int, device: str) -> Any:
    return run.full((count,), 0, dtypes.int32, device)


def _launch(name: str, kernel: Any, grid: Any, block: Any, a: Any, device: str, *rest: Any) -> None:
    if math.prod(grid if isinstance(grid, tuple) else (grid,)):
        run.launch(name, device, kernel, grid, block, a, *rest)


def _panels(n: int) -> list[tuple[int, int]]:
    return [(k, min(k + WIDE, n)) for k in range(0, n, WIDE)]


def _subtract(
    name: str, device: str, kind: DType, out: Any, x: Any, y: Any, rows: tuple[int, int],
    first: int, depth: tuple[int, int], mirrored: bool = False,
) -> None:  # fmt: skip
    across = -(-(out.shape[2] - first) // TILE)
    grid = across * out.shape[0], -(-(rows[1] - rows[0]) // TILE)
    _launch(
        name, factor.subtract_product, grid, (TILE, TILE), out, device, x, y, across, *rows, first,
        *depth, kind, mirrored,
    )  # fmt: skip


# ---- LU ------------------------------------------------------------------------------------------


def _lu(name: str, x: Tensor) -> tuple[Any, Any, Any]:
    """L and U in one buffer, the row that each pivot came from, and which are singular.

    The vendor's are of the transposes, and its rows count from 1.
    """
    kind, device = x.dtype, x.device
    a = _stack(x)
    count, n, _ = a.shape
    pivots = memory.allocate((count, n), dtypes.int32, device)
    singular = _flags(count, device)
    if cusolver.takes("lu", x):
        cusolver.lu(a, pivots, singular, kind, device)
        return a, pivots, singular
    for start, stop in _panels(n):
        _launch(
            name, factor.lu_panel, count, THREADS, a, device, pivots, singular, start, stop, kind
        )
        if n > WIDE:
            _exchange(name, device, a, pivots, (start, stop), (start, stop))
        if stop < n:
            _triangle(name, device, a, a, (start, stop), stop, False)
            _subtract(name, device, kind, a, a, a, (stop, n), stop, (start, stop))
    return a, pivots, singular


def _exchange(
    name: str, device: str, x: Any, pivots: Any, rows: tuple[int, int], without: tuple[int, int]
) -> None:
    grid = -(-x.shape[2] // COLUMNS), x.shape[0]
    _launch(name, factor.swap_rows, grid, (COLUMNS, 1), x, device, pivots, *rows, *without)


def _triangle(
    name: str, device: str, a: Any, x: Any, rows: tuple[int, int], first: int, upper: bool
) -> None:
    grid = -(-(x.shape[2] - first) // COLUMNS), x.shape[0]
    _launch(name, factor.solve_triangle, grid, (COLUMNS, 1), a, device, x, *rows, first, upper)


def _refuse_singular(singular: Any, text: str) -> None:
    if (memory.to_host(singular) == cusolver.SINGULAR).any():
        raise LinAlgError(text)


def _solved(name: str, a: Tensor, b: Tensor) -> Tensor:
    """The x for which a x is b, two stacks of equally many matrices."""
    kind, device = a.dtype, a.device
    lu, pivots, singular = _lu(name, a)
    if cusolver.takes("lu", a):
        x = _stack(b.mT)
        cusolver.solve(lu, pivots, x, True, kind, device)
        _refuse_singular(singular, "Singular matrix")
        return _back(x, b, *b.mT.shape[-2:], by=NAME).mT
    x = _stack(b)
    n = x.shape[1]
    _exchange(name, device, x, pivots, (0, n), (0, 0))
    for start, stop in _panels(n):
        _triangle(name, device, lu, x, (start, stop), 0, False)
        if stop < n:
            _subtract(name, device, kind, x, lu, x, (stop, n), 0, (start, stop))
    for start, stop in reversed(_panels(n)):
        _triangle(name, device, lu, x, (start, stop), 0, True)
        if start:
            _subtract(name, device, kind, x, lu, x, (0, start), 0, (start, stop))
    _refuse_singular(singular, "Singular matrix")
    return _back(x, b, *b.shape[-2:])


def solve(a: Tensor, b: Tensor, /) -> Tensor:
    kind = result_type(a, b)
    a = _square("solve", astype(a, kind, copy=False))
    vector = b.ndim == 1
    b = astype(b[:, None] if vector else b, a.dtype, copy=False)
    if b.shape[-2] != a.shape[-1]:
        raise ShapeError(f"`solve` of matrices of shape {a.shape} and right sides of {b.shape}")
    lead = broadcast_shapes(a.shape[:-2], b.shape[:-2])
    x = _solved(
        "solve", broadcast_to(a, (*lead, *a.shape[-2:])), broadcast_to(b, (*lead, *b.shape[-2:]))
    )
    return x[..., 0] if vector else x


def inv(a: Tensor, /) -> Tensor:
    a = _square("inv", a)
    one = broadcast_to(eye(a.shape[-1], dtype=a.dtype, device=a.device), a.shape)
    if not cusolver.takes("lu", a):
        return _solved("inv", a, one)
    lu, pivots, singular = _lu("inv", a)
    out = _stack(one)
    cusolver.invert(lu, pivots, out, a.dtype, a.device)
    _refuse_singular(singular, "Singular matrix")
    return _back(out, a, *a.shape[-2:], by=NAME)


@functools.lru_cache(maxsize=16)
def _rows(n: int, first: int, device: str) -> Tensor:
    """Pivots of rows that stay."""
    return asarray(np.arange(first, n + first, dtype=np.int32), device=device)


def _diagonal(name: str, x: Tensor) -> tuple[Tensor, Tensor]:
    """The diagonal of U, and the sign of the exchanges."""
    from ruda.tensor.linalg import diagonal

    a, pivots, _ = _lu(name, x)
    n = x.shape[-1]
    by_vendor = cusolver.takes("lu", x)
    first, by = int(by_vendor), NAME if by_vendor else ""
    stay = _rows(n, first, x.device)
    odd = t.sum(astype(_back(pivots, x, n, by=by) != stay, dtypes.int32), axis=-1) % 2
    return diagonal(_back(a, x, n, n, by=by)), 1 - 2 * astype(odd, x.dtype)


def det(x: Tensor, /) -> Tensor:
    x = _square("det", x)
    values, sign = _diagonal("det", x)
    return sign * t.prod(values, axis=-1)


def slogdet(x: Tensor, /) -> Any:
    x = _square("slogdet", x)
    values, sign = _diagonal("slogdet", x)
    found = sign * t.prod(t.sign(values), axis=-1), t.sum(t.log(t.abs(values)), axis=-1)
    return SlogdetResult(*found)


# ---- Cholesky ------------------------------------------------------------------------------------


def cholesky(x: Tensor, /, *, upper: bool = False) -> Tensor:
    x = _square("cholesky", x)
    kind, device = x.dtype, x.device
    a = _stack(x.mT if upper else x)
    count, n, _ = a.shape
    wrong = _flags(count, device)
    if cusolver.takes("cholesky", x):
        cusolver.cholesky(a, wrong, kind, device)
        _refuse_singular(wrong, NO_ROOT)
        low = _back(a, x, n, n, by=NAME)
        return low.mT if upper else low
    for start, stop in _panels(n):
        _launch(
            "cholesky", factor.cholesky_panel, count, THREADS, a, device, wrong, start, stop, kind
        )
        if stop < n:
            _subtract("cholesky", device, kind, a, a, a, (stop, n), stop, (start, stop), True)
    run.each("cholesky", device, cusolver.clear_above, a.size, a)
    _refuse_singular(wrong, NO_ROOT)
    low = _back(a, x, n, n)
    return low.mT if upper else low


# ---- QR ------------------------------------------------------------------------------------------


def _scaled(x: Tensor) -> tuple[Tensor, Tensor]:
    """Matrices whose greatest element is 1, so that no square overflows, and what it was."""
    if x.size == 0:
        return x, ones((*x.shape[:-2], 1, 1), dtype=x.dtype, device=x.device)
    size = t.max(t.abs(x), axis=(-2, -1), keepdims=True)
    size = t.where(size == 0, 1.0, size)
    return x / size, size


def _orthogonal(name: str, x: Tensor, complete: bool) -> tuple[Tensor, Tensor]:
    """Q and R of matrices whose elements are at most 1."""
    kind, device = x.dtype, x.device
    a = _stack(x)
    count, m, n = a.shape
    k = min(m, n)
    factors = memory.allocate((count, max(k, 1)), kind, device)
    tiny = 1e-30 if kind is dtypes.float32 else 1e-280
    for start, stop in _panels(k):
        _launch(
            name, factor.reflect_panel, count, THREADS, a, device, factors, start, stop, tiny, kind
        )
        if stop < n:
            blocks = -(-(n - stop) // WIDE)
            _launch(
                name, factor.reflect, count * blocks, THREADS, a, device, a, factors, blocks, start,
                stop, stop, False, kind,
            )  # fmt: skip
    columns = m if complete else k
    one = eye(m, columns, dtype=kind, device=device)
    q = _stack(broadcast_to(one, (count, m, columns)))
    blocks = -(-columns // WIDE)
    if k:
        _launch(
            name, factor.reflect, count * blocks, THREADS, q, device, a, factors, blocks, 0, k, 0,
            True, kind,
        )  # fmt: skip
    r = triu(_back(a, x, m, n)[..., :columns, :])
    return _back(q, x, m, columns), r


def qr(x: Tensor, /, *, mode: str = "reduced") -> Any:
    if mode not in ("reduced", "complete"):
        raise ValueError(f"`qr` with mode={mode!r}: there are reduced and complete")
    x = _number("qr", x)
    if _is_empty(x):
        return QRResult(*(astype(v, x.dtype) for v in qr(_real(x), mode=mode)))
    if not cusolver.takes("qr", x):
        rows, size = _scaled(x)
        q, r = _orthogonal("qr", rows, mode == "complete")
        return QRResult(q, r * size)
    rows, size = _scaled(x.mT)
    a, (m, n) = _fresh(rows), x.shape[-2:]
    columns = m if mode == "complete" else min(m, n)
    to = memory.allocate((a.shape[0], columns, m), x.dtype, x.device)
    cusolver.qr(a, to, x.dtype, x.device)
    r = _back(a, x, n, m, by=NAME).mT[..., :columns, :]
    return QRResult(_back(to, x, columns, m, by=NAME).mT, r * size)


# ---- singular values and eigenvalues -------------------------------------------------------------


def _is_empty(x: Tensor) -> bool:
    """Whether there is nothing to factorise for a vendor, whose are the complex matrices."""
    return x.size == 0 and x.dtype.kind == "complex"


def _real(x: Tensor) -> Tensor:
    """An empty stack of complex matrices as one of real ones."""
    return zeros(x.shape, dtype=cusolver.REAL[x.dtype], device=x.device)


def _finite(name: str, size: Tensor) -> None:
    """LinAlgError for matrices with NaN or infinity, by their greatest elements."""
    if not np.isfinite(memory.to_host(size.buffer())).all():
        raise LinAlgError(f"`{name}` did not converge: there is NaN or infinity")


def _converged(name: str, info: Any) -> None:
    if memory.to_host(info).any():
        raise LinAlgError(f"`{name}` did not converge")


@functools.lru_cache(maxsize=16)
def _rounds(n: int, device: str) -> tuple[Any, ...]:
    """All pairs of n rows, in rounds of disjoint ones: the circle method of tournaments."""
    even = n + n % 2
    ring = list(range(even))
    table = []
    for _ in range(even - 1):
        pairs = [(ring[k], ring[even - 1 - k]) for k in range(even // 2)]
        table.append([sorted(p) for p in pairs if max(p) < n])
        ring = [ring[0], ring[-1], *ring[1:-1]]
    found = memory.from_host(np.array(table, np.int32).reshape(len(table), -1, 2), device)
    return tuple(found[k] for k in range(len(table)))


def _rotated(name: str, rows: Tensor, vectors: bool) -> tuple[Tensor, Tensor | None]:
    """Orthogonal rows J x, and the rotation J."""
    kind, device = rows.dtype, rows.device
    n, m = rows.shape[-2:]
    if n > LARGEST:
        raise DeviceError(
            f"`linalg.{name}` of {n} singular values on {device}: kernels find up to {LARGEST}; "
            "move the tensor with `.to_device('cpu')`"
        )
    g = _stack(rows)
    count = g.shape[0]
    width = n if vectors else 1  # something must be turned
    v = _stack(broadcast_to(eye(n, width, dtype=kind, device=device), (count, n, width)))
    eps = float(np.finfo(kind.numpy).eps)
    tolerance = eps * max(4.0, math.sqrt(m))
    for _ in range(SWEEPS if n > 1 and g.size else 0):
        turned = _flags(count, device)
        for pairs in _rounds(n, device):
            _launch(
                name, factor.rotate, count * (n // 2), PAIR, g, device, v, pairs, turned, tolerance,
                eps, kind,
            )  # fmt: skip
        state = memory.to_host(turned)
        if (state == 2).any():
            raise LinAlgError(f"`{name}` did not converge: there is NaN or infinity")
        if not state.any():
            break
    else:
        if n > 1 and g.size:
            raise LinAlgError(f"`{name}` did not converge in {SWEEPS} sweeps")
    return _back(g, rows, n, m), _back(v, rows, n, n) if vectors else None


def _in_order(sizes: Tensor, descending: bool, *rows: Tensor) -> tuple[Tensor, ...]:
    order = argsort(sizes, descending=descending)
    found = [take_along_axis(sizes, order, axis=-1)]
    for x in rows:
        index = broadcast_to(order[..., None], x.shape)
        found.append(take_along_axis(x, index, axis=-2))
    return tuple(found)


def _lengths(rows: Tensor) -> Tensor:
    return t.sqrt(t.sum(rows * rows, axis=-1))


def svd(x: Tensor, /, *, full_matrices: bool = True) -> Any:
    from ruda.tensor.linalg import diagonal

    x = _number("svd", x)
    if _is_empty(x):
        u, s, vh = svd(_real(x), full_matrices=full_matrices)
        return SVDResult(astype(u, x.dtype), s, astype(vh, x.dtype))
    m, n = x.shape[-2:]
    if m < n:
        u, s, vh = svd(x.mT, full_matrices=full_matrices)
        return SVDResult(vh.mT, s, u.mT)
    if cusolver.takes("svd", x):
        return SVDResult(*_singular("svd", x, m if full_matrices else n))
    whole, size = _scaled(x)
    rows, v = _rotated("svd", whole.mT, True)
    s, rows, vh = _in_order(_lengths(rows), True, rows, v)  # type: ignore[arg-type]
    q, r = _orthogonal("svd", rows.mT, full_matrices)
    signs = t.where(diagonal(r) < 0, -1.0, ones(s.shape, dtype=x.dtype, device=x.device))
    u = q[..., :n] * signs[..., None, :]
    if full_matrices and m > n:
        u = concat([u, q[..., n:]], axis=-1)
    return SVDResult(u, s * size[..., 0], vh)


def _singular(name: str, x: Tensor, columns: int) -> tuple[Any, ...]:
    """U of so many columns, the singular values and V^H by the vendor; for 0, no vectors.

    At double precision: in single the vendor's method errs by 600 eps of the greatest value for
    600 x 500 numbers, and its vectors by 170 eps for 40 x 40 (measured on an H200).
    """
    rows, size = _scaled(x.mT)
    _finite(name, size)
    single, device, (m, n) = x.dtype, x.device, x.shape[-2:]
    kind = DOUBLE.get(single, single)
    a = _fresh(astype(rows, kind))
    count = a.shape[0]
    s = memory.allocate((count, n), cusolver.REAL[kind], device)
    u = v = None
    if columns:
        whole = m if count > 1 and m <= cusolver.TINY else columns
        u = memory.allocate((count, whole, m), kind, device)
        v = memory.allocate((count, n, n), kind, device)
    _converged(name, cusolver.singular(a, s, u, v, kind, device))
    values = astype(_back(s, x, n, by=NAME), size.dtype) * size[..., 0]
    if u is None:
        return (values,)
    left = astype(_back(u, x, u.shape[1], m, by=NAME).mT[..., :columns], single)
    return left, values, astype(conjugate(_back(v, x, n, n, by=NAME)), single)


def svdvals(x: Tensor, /) -> Tensor:
    x = _number("svdvals", x)
    if _is_empty(x):
        return svdvals(_real(x))
    if cusolver.takes("svd", x):
        tall = x if x.shape[-2] >= x.shape[-1] else x.mT
        found: Tensor = _singular("svdvals", tall, 0)[0]
        return found
    whole, size = _scaled(x)
    rows, _ = _rotated("svdvals", whole.mT if x.shape[-2] >= x.shape[-1] else whole, False)
    return _in_order(_lengths(rows), True)[0] * size[..., 0]


def _eigen(name: str, x: Tensor, vectors: bool) -> tuple[Tensor, ...]:
    x = _square(name, x)
    n = x.shape[-1]
    if _is_empty(x):
        values, *rest = _eigen(name, _real(x), vectors)
        return values, *(astype(v, x.dtype) for v in rest)
    if cusolver.takes("eigen", x):
        low = _stack(x)
        run.each(name, x.device, cusolver.clear_above, low.size, low)
        whole, size = _scaled(_back(low, x, n, n))
        _finite(name, size)
        a = _fresh(whole)
        w = memory.allocate(a.shape[:2], cusolver.REAL[x.dtype], x.device)
        _converged(name, cusolver.eigen(a, w, vectors, x.dtype, x.device))
        values = _back(w, x, n, by=NAME) * size[..., 0]
        return values, conjugate(_back(a, x, n, n, by=NAME))
    whole, size = _scaled(tril(x) + tril(x, k=-1).mT)
    if n == 0:
        return zeros(x.shape[:-1], dtype=x.dtype, device=x.device), x
    shift = t.max(t.sum(t.abs(whole), axis=-1), axis=-1)
    rows, v = _rotated(
        name, whole + shift[..., None, None] * eye(n, dtype=x.dtype, device=x.device), vectors
    )
    values = (_lengths(rows) - shift[..., None]) * size[..., 0]
    return _in_order(values, False, *(() if v is None else (v,)))


def eigh(x: Tensor, /) -> Any:
    values, vectors = _eigen("eigh", x, True)
    return EighResult(values, vectors.mT)


def eigvalsh(x: Tensor, /) -> Tensor:
    return _eigen("eigvalsh", x, False)[0]


def _least(x: Tensor, s: Tensor, rtol: Any) -> Tensor:
    """The size below which singular values count as 0."""
    if rtol is None:
        rtol = max(x.shape[-2:]) * float(np.finfo(s.dtype.numpy).eps)
    elif isinstance(rtol, Tensor) and rtol.ndim:
        rtol = rtol[..., None]
    least: Tensor = t.max(s, axis=-1, keepdims=True) * rtol
    return least


def matrix_rank(x: Tensor, /, *, rtol: Any = None) -> Tensor:
    s = svdvals(x)
    count = run.index_dtype(x.device)
    if 0 in x.shape[-2:]:
        return zeros(x.shape[:-2], dtype=count, device=x.device)
    return astype(t.sum(astype(s > _least(x, s, rtol), dtypes.int32), axis=-1), count)


def pinv(x: Tensor, /, *, rtol: Any = None) -> Tensor:
    x = _number("pinv", x)
    if 0 in x.shape[-2:]:
        return x.mT
    u, s, vh = (conjugate(v) for v in svd(x, full_matrices=False))
    large = s > _least(x, s, rtol)
    back = t.where(large, 1.0 / t.where(large, s, 1.0), 0.0)
    found: Tensor = (vh.mT * back[..., None, :]) @ u.mT
    return found


FACTORISATIONS: dict[str, Callable[..., Any]] = {
    f.__name__: f
    for f in (
        cholesky, det, eigh, eigvalsh, inv, matrix_rank, pinv, qr, slogdet, solve, svd, svdvals,
    )
}  # fmt: skip
