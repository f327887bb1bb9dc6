"""Linear algebra of the array API standard: NumPy's, where the host is the device."""

from __future__ import annotations

from typing import Any

import numpy as np

from ruda.tensor.creation import LIBRARY, library, matrix_transpose


def _matrix_rank(x: Any, /, *, rtol: Any = None) -> Any:
    return np.linalg.matrix_rank(x, rtol=rtol)


def _pinv(x: Any, /, *, rtol: Any = None) -> Any:
    return np.linalg.pinv(x, rtol=rtol)


def _solve(x1: Any, x2: Any, /) -> Any:
    if x2.ndim == 1:  # a vector, also beside a stack of matrices
        return np.linalg.solve(x1, x2[..., None])[..., 0]
    return np.linalg.solve(x1, x2)


FUNCTIONS = {
    name: library(f"linalg.{name}", numpy, doc)
    for name, numpy, doc in (
        ("cholesky", np.linalg.cholesky, "The triangular factor; `upper=True` for the upper one."),
        ("cross", np.linalg.cross, "The cross product of vectors of 3 numbers."),
        ("det", np.linalg.det, "The determinant."),
        ("diagonal", np.linalg.diagonal, "The diagonal, or one beside it (`offset`)."),
        ("eig", np.linalg.eig, "Eigenvalues and eigenvectors."),
        ("eigh", np.linalg.eigh, "Eigenvalues and eigenvectors of a Hermitian matrix."),
        ("eigvals", np.linalg.eigvals, "Eigenvalues."),
        ("eigvalsh", np.linalg.eigvalsh, "Eigenvalues of a Hermitian matrix."),
        ("inv", np.linalg.inv, "The inverse."),
        ("matrix_norm", np.linalg.matrix_norm, "A norm of matrices; `ord` says which."),
        ("matrix_power", np.linalg.matrix_power, "The matrix times itself, n times."),
        ("matrix_rank", _matrix_rank, "How many singular values are not small."),
        ("outer", np.linalg.outer, "Products of all pairs of two vectors' elements."),
        ("pinv", _pinv, "The pseudo-inverse."),
        ("qr", np.linalg.qr, "Factors Q and R."),
        ("slogdet", np.linalg.slogdet, "Sign and logarithm of the determinant."),
        ("solve", _solve, "The x for which x1 @ x is x2."),
        ("svd", np.linalg.svd, "Singular vectors and values."),
        ("svdvals", np.linalg.svdvals, "Singular values."),
        ("trace", np.linalg.trace, "The sum of the diagonal."),
        ("vector_norm", np.linalg.vector_norm, "A norm of vectors; `ord` says which."),
    )
}
globals().update(FUNCTIONS)
matmul, tensordot, vecdot = (LIBRARY[n] for n in ("matmul", "tensordot", "vecdot"))
__all__ = [*FUNCTIONS, "matmul", "matrix_transpose", "tensordot", "vecdot"]
