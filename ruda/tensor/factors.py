"""Factorisations of matrices on devices whose memory the host does not see.

`linalg` asks NumPy (LAPACK) on the host and this file elsewhere. The work is done by the kernels of
`primitives.factor` on copies; determinants are made of them by
ops on tensors. What a matrix lacks (an inverse, a root) is known when the kernels are done: the
functions that must tell wait for that, and raise NumPy's LinAlgError.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from ruda import dtypes
from ruda.dtypes import DType, default_float
from ruda.errors import DeviceError, ShapeError
from ruda.tensor import memory
from ruda.tensor.creation import broadcast_shapes, eye, result_type, tril
from ruda.tensor.primitives import factor, run
from ruda.tensor.primitives.factor import COLUMNS, THREADS, TILE, WIDE
from ruda.tensor.tensor import (
    Tensor,
    asarray,
    astype,
    broadcast_to,
    copied,
    from_buffer,
    t,
)

LinAlgError = np.linalg.LinAlgError

# ---- what goes in --------------------------------------------------------------------------------


def _number(name: str, x: Tensor) -> Tensor:
    """The matrices at a dtype that kernels factorise."""
    if x.ndim < 2:
        raise ShapeError(f"`{name}` is of matrices, not of shape {x.shape}")
    if x.dtype.kind in ("bool", "int", "uint"):
        x = astype(x, default_float())
    if x.dtype not in (dtypes.float32, dtypes.float64):
        raise DeviceError(
            f"`linalg.{name}` of {x.dtype} on {x.device}: kernels factorise real numbers of 32 and "
            "64 bits; convert, or move the tensor with `.to_device('cpu')`"
        )
    return x


def _square(name: str, x: Tensor) -> Tensor:
    if x.ndim > 1 and x.shape[-1] != x.shape[-2]:
        raise LinAlgError(f"`{name}` is of square matrices, not of shape {x.shape}")
    return _number(name, x)


def _stack(x: Tensor) -> Any:
    """A copy of the matrices, a buffer with one axis before them."""
    shape = math.prod(x.shape[:-2]), *x.shape[-2:]
    return memory.view(copied(x), memory.contiguous(shape))


def _back(buffer: Any, x: Tensor, *last: int) -> Tensor:
    """A buffer of results as a tensor with the leading axes of `x`."""
    return from_buffer(memory.view(buffer, memory.contiguous((*x.shape[:-2], *last))), x.device)


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
    """L and U in one buffer, the row that each pivot came from, and which are singular."""
    kind, device = x.dtype, x.device
    a = _stack(x)
    count, n, _ = a.shape
    pivots = memory.allocate((count, n), dtypes.int32, device)
    singular = _flags(count, device)
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
    if memory.to_host(singular).any():
        raise LinAlgError(text)


def _solved(name: str, a: Tensor, b: Tensor) -> Tensor:
    """The x for which a x is b, two stacks of equally many matrices."""
    kind, device = a.dtype, a.device
    lu, pivots, singular = _lu(name, a)
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
    one = eye(a.shape[-1], dtype=a.dtype, device=a.device)
    return _solved("inv", a, broadcast_to(one, a.shape))


def _diagonal(name: str, x: Tensor) -> tuple[Tensor, Tensor]:
    """The diagonal of U, and the sign of the exchanges."""
    from ruda.tensor.linalg import diagonal

    a, pivots, _ = _lu(name, x)
    n = x.shape[-1]
    rows = asarray(np.arange(n, dtype=np.int32), device=x.device)
    odd = t.sum(astype(_back(pivots, x, n) != rows, dtypes.int32), axis=-1) % 2
    return diagonal(_back(a, x, n, n)), 1 - 2 * astype(odd, x.dtype)


def det(x: Tensor, /) -> Tensor:
    x = _square("det", x)
    values, sign = _diagonal("det", x)
    return sign * t.prod(values, axis=-1)


def slogdet(x: Tensor, /) -> Any:
    x = _square("slogdet", x)
    values, sign = _diagonal("slogdet", x)
    found = sign * t.prod(t.sign(values), axis=-1), t.sum(t.log(t.abs(values)), axis=-1)
    return type(np.linalg.slogdet(np.eye(1)))(*found)


# ---- Cholesky ------------------------------------------------------------------------------------


def cholesky(x: Tensor, /, *, upper: bool = False) -> Tensor:
    x = _square("cholesky", x)
    kind, device = x.dtype, x.device
    a = _stack(x.mT if upper else x)
    count, n, _ = a.shape
    wrong = _flags(count, device)
    for start, stop in _panels(n):
        _launch(
            "cholesky", factor.cholesky_panel, count, THREADS, a, device, wrong, start, stop, kind
        )
        if stop < n:
            _subtract("cholesky", device, kind, a, a, a, (stop, n), stop, (start, stop), True)
    _refuse_singular(wrong, "Matrix is not positive definite")
    low = tril(_back(a, x, n, n))
    return low.mT if upper else low


FACTORISATIONS: dict[str, Callable[..., Any]] = {
    f.__name__: f for f in (cholesky, det, inv, slogdet, solve)
}
