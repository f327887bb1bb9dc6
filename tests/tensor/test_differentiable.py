"""Every public function of tensors: differentiable, flat, not of floats, or refused by name.

A function that lost a derivative without a word would give wrong numbers wherever it is used, so
each name stands in one of the tables below, and what the table says of it is checked.
"""

import numpy as np
import pytest

import ruda
from ruda.errors import GradientError
from ruda.tensor import fft, linalg
from ruda.tensor.ops import OPS

NUMBERS = np.random.default_rng(8)
A, B = NUMBERS.normal(size=(2, 3, 4))
S = NUMBERS.normal(size=(3, 3)) + 3 * np.eye(3)
V, W = NUMBERS.normal(size=(2, 5))
P = np.abs(A) + 0.5  # positive
N = np.where(np.eye(3, 4) > 0, np.nan, A)
C, D = NUMBERS.normal(size=(2, 3, 4))  # the parts of complex numbers


def parts(call):
    """A function of complex numbers as one of real and imaginary parts, which gradcheck knows."""

    def f(real, imaginary):
        out = call(real + imaginary * 1j)
        if out.dtype.kind != "complex":
            return out
        return ruda.stack([ruda.real(out), ruda.imag(out)])

    return f


def symmetric(x):
    return x @ x.T + 3 * ruda.eye(3, dtype="float64")


@ruda.elementwise(gradient=lambda g, out, x: (g * 3 * x * x,))
def cube(x):
    return x * x * x


def masked(call):
    """Of numbers with NaN at fixed places."""
    return lambda x: call(ruda.where(ruda.asarray(np.isnan(N)), ruda.nan, x))


# name -> (function, points, ...) of which derivatives of first and second order are checked
CHECKED = {
    # rows, beyond those of test_grad: by all arguments, and of complex numbers
    "where": (lambda x, y: ruda.where(x > y, x, y), A, B),
    "clip": (lambda x, a, b: ruda.clip(x, a, b), A, B - 1, B + 1),
    "imag": (parts(ruda.imag), C, D), "real": (parts(ruda.real), C, D),
    "copysign": (lambda x: ruda.copysign(x, B), A),
    "nextafter": (lambda x: ruda.nextafter(x, B), A),
    # reductions
    **{n: (lambda x, n=n: getattr(ruda, n)(x, axis=0), A)
       for n in ("sum", "prod", "max", "min", "mean", "var", "std", "logsumexp", "median",
                 "nansum", "nanprod", "nanmax", "nanmin", "nanmean", "nanvar", "nanstd",
                 "nanmedian", "cummax", "cummin", "cumulative_sum", "cumulative_prod")},
    "average": (lambda x, w: ruda.average(x, axis=1, weights=w), A, P),
    "quantile": (lambda x: ruda.quantile(x, 0.3, axis=1), A),
    "percentile": (lambda x: ruda.percentile(x, [20, 70], axis=0), A),
    "nanquantile": (masked(lambda x: ruda.nanquantile(x, 0.3, axis=1)), A),
    "nanpercentile": (masked(lambda x: ruda.nanpercentile(x, 40, axis=1)), A),
    "cov": (lambda x, y: ruda.cov(x, y), A, B),
    "corrcoef": (lambda x: ruda.corrcoef(x), A),
    "trapezoid": (lambda y, x: ruda.trapezoid(y, x), V, np.sort(W)),
    "diff": (lambda x: ruda.diff(x, axis=1), A),
    # movement
    "asarray": (lambda x: ruda.asarray(x), A), "astype": (lambda x: ruda.astype(x, "float64"), A),
    "broadcast_to": (lambda x: ruda.broadcast_to(x, (2, 3, 4)), A),
    "broadcast_arrays": (lambda x, y: ruda.broadcast_arrays(x, y)[1], A, A[0]),
    "concat": (lambda x, y: ruda.concat([x, y], axis=1), A, B),
    "diag": (lambda x: ruda.diag(x, k=1), V), "expand_dims": (lambda x: ruda.expand_dims(x), A),
    "flip": (lambda x: ruda.flip(x, axis=1), A), "hstack": (lambda x, y: ruda.hstack([x, y]), A, B),
    "matrix_transpose": (ruda.matrix_transpose, A),
    "meshgrid": (lambda x, y: ruda.meshgrid(x, y)[1], V, W),
    "moveaxis": (lambda x: ruda.moveaxis(x, 0, 1), A),
    "nan_to_num": (masked(lambda x: ruda.nan_to_num(x)), A),
    "pad": (lambda x: ruda.pad(x, 1, mode="reflect"), A),
    "partition": (lambda x: ruda.partition(x, 2), V),
    "permute_dims": (lambda x: ruda.permute_dims(x, (1, 0)), A), "ravel": (ruda.ravel, A),
    "repeat": (lambda x: ruda.repeat(x, 2, axis=1), A),
    "reshape": (lambda x: ruda.reshape(x, -1), A),
    "roll": (lambda x: ruda.roll(x, 2, axis=1), A), "sort": (lambda x: ruda.sort(x), A),
    "split": (lambda x: ruda.split(x, 2, axis=1)[1], A),
    "squeeze": (lambda x: ruda.squeeze(x[:1], 0), A),
    "stack": (lambda x, y: ruda.stack([x, y]), A, B),
    "swapaxes": (lambda x: ruda.swapaxes(x, 0, 1), A), "tile": (lambda x: ruda.tile(x, (2, 1)), A),
    "tril": (ruda.tril, A), "triu": (ruda.triu, A), "unstack": (lambda x: ruda.unstack(x)[2], A),
    "vstack": (lambda x, y: ruda.vstack([x, y]), A, B),
    # chosen by indices
    "scatter": (lambda x, v: ruda.scatter(x, [1, 0, 1], v, axis=1, mode="add"), A, B[:, :3]),
    "segmented_scan": (lambda x: ruda.segmented_scan(x, ruda.asarray(np.eye(3, 4) > 0), axis=1), A),
    "take": (lambda x: ruda.take(x, ruda.asarray([2, 0, 2]), axis=1), A),
    "take_along_axis": (lambda x: ruda.take_along_axis(x, ruda.asarray([[1], [3], [1]])), A),
    "topk": (lambda x: ruda.topk(x, 2).values, A),
    "bincount": (lambda w: ruda.bincount(ruda.asarray([0, 2, 2, 0, 1]), weights=w), V),
    "interp": (lambda x, y: ruda.interp(x, ruda.asarray(np.arange(5.0)), y), P[0], V),
    # products
    "convolve": (lambda x, y: ruda.convolve(x, y), V, W[:3]), "cross": (ruda.cross, S, S.T + 1),
    "dot": (ruda.dot, V, W), "einsum": (lambda x, y: ruda.einsum("ij,kj->ik", x, y), A, B),
    "inner": (ruda.inner, V, W), "kron": (ruda.kron, A, V[None]),
    "matmul": (lambda x, y: ruda.matmul(x, ruda.matrix_transpose(y)), A, B),
    "outer": (ruda.outer, V, W), "trace": (ruda.trace, S),
    "tensordot": (lambda x, y: ruda.tensordot(x, y, axes=((1,), (1,))), A, B),
    "vecdot": (ruda.vecdot, A, B),
    # derivatives themselves
    "checkpoint": (lambda x: ruda.checkpoint(ruda.sin)(x), A),
    "custom_vjp": (ruda.custom_vjp(ruda.sin, lambda g, y, x: (g * ruda.cos(x),)), A),
    "grad": (lambda x: ruda.grad(lambda x: ruda.sum(x**3))(x), A),
    "hessian": (lambda x: ruda.hessian(lambda x: ruda.sum(x**3))(x), V),
    "hvp": (lambda x, v: ruda.hvp(lambda x: ruda.sum(x**3), x, v), V, W),
    "jacobian": (lambda x: ruda.jacobian(ruda.sin)(x), V),
    "jvp": (lambda x, v: ruda.jvp(ruda.sin, [x], [v])[1], V, W),
    "value_and_grad": (lambda x: ruda.value_and_grad(lambda x: ruda.sum(x**3))(x)[1], V),
    "vjp": (lambda x, g: ruda.vjp(ruda.sin, x)[1](g)[0], V, W),
    "elementwise": (cube, A),
    # linear algebra
    "linalg.cond": (linalg.cond, S), "linalg.norm": (lambda x: linalg.norm(x, axis=0), A),
    "linalg.lstsq": (lambda x, y: linalg.lstsq(x.T, y)[0], A, W[:4]),
    "linalg.cholesky": (lambda x: linalg.cholesky(symmetric(x)), S),
    "linalg.cross": (linalg.cross, S, S.T + 1), "linalg.det": (linalg.det, S),
    "linalg.diagonal": (lambda x: linalg.diagonal(x, offset=1), A),
    "linalg.eigh": (lambda x: ruda.square(linalg.eigh(symmetric(x))[1]), S),
    "linalg.eigvalsh": (lambda x: linalg.eigvalsh(symmetric(x)), S), "linalg.inv": (linalg.inv, S),
    "linalg.matmul": (linalg.matmul, S, A), "linalg.matrix_norm": (linalg.matrix_norm, A),
    "linalg.matrix_power": (lambda x: linalg.matrix_power(x, 3), S),
    "linalg.matrix_transpose": (linalg.matrix_transpose, A), "linalg.outer": (linalg.outer, V, W),
    "linalg.pinv": (linalg.pinv, A), "linalg.qr": (lambda x: linalg.qr(x)[1], S),
    "linalg.slogdet": (lambda x: linalg.slogdet(x)[1], S), "linalg.solve": (linalg.solve, S, A),
    "linalg.svd": (lambda x: ruda.square(linalg.svd(x, full_matrices=False)[0]), A),
    "linalg.svdvals": (linalg.svdvals, A), "linalg.trace": (linalg.trace, S),
    "linalg.tensordot": (lambda x, y: linalg.tensordot(x, y, axes=1), S, A),
    "linalg.vecdot": (linalg.vecdot, A, B),
    "linalg.vector_norm": (lambda x: linalg.vector_norm(x, axis=1, ord=3), A),
    # transforms
    **{f"fft.{n}": (parts(getattr(fft, n)), C, D)
       for n in ("fft", "ifft", "fftn", "ifftn", "irfft", "irfftn", "hfft")},
    **{f"fft.{n}": (lambda x, n=n: parts(getattr(fft, n))(x, 0 * x) if n[0] == "f" else
                    ruda.stack([ruda.real(getattr(fft, n)(x)), ruda.imag(getattr(fft, n)(x))]), A)
       for n in ("rfft", "rfftn", "ihfft")},
    "fft.fftshift": (fft.fftshift, A), "fft.ifftshift": (fft.ifftshift, A),
}  # fmt: skip

# Rows whose derivatives test_grad checks, of complex numbers.
COMPLEX = [
    row.name
    for row in OPS.values()
    if row.kind == "elementwise" and row.gradient is not None
    and row.takes in ("any", "numbers", "inexact", "complex") and row.name not in ("where", "abs")
]  # fmt: skip

FLAT = {  # constant between steps: the gradient is zero
    "ceil", "floor", "round", "sign", "trunc", "floor_divide", "linalg.matrix_rank",
    "stop_gradient",
}  # fmt: skip
TESTS = {  # of bools or integers, whatever they are given
    "all", "allclose", "any", "argmax", "argmin", "argpartition", "argsort", "array_equal",
    "bitwise_and", "bitwise_invert", "bitwise_left_shift", "bitwise_or", "bitwise_right_shift",
    "bitwise_xor", "count_nonzero", "equal", "greater", "greater_equal", "isclose", "isfinite",
    "isin", "isinf", "isnan", "less", "less_equal", "logical_and", "logical_not", "logical_or",
    "logical_xor", "nanargmax", "nanargmin", "nonzero", "not_equal", "searchsorted", "signbit",
}  # fmt: skip
REFUSED = {
    "from_dlpack": lambda x: ruda.tensor.from_dlpack(x),
    "histogram": lambda x: ruda.histogram(x),
    "unique_all": lambda x: ruda.unique_all(x), "unique_counts": lambda x: ruda.unique_counts(x),
    "unique_inverse": lambda x: ruda.unique_inverse(x),
    "unique_values": lambda x: ruda.unique_values(x),
    "linalg.eig": lambda x: linalg.eig(x[:, :3]),
    "linalg.eigvals": lambda x: linalg.eigvals(x[:, :3]),
    "compile": lambda x: ruda.compile(ruda.sin)(x),
    "full": lambda x: ruda.full(3, x[0, 0]), "full_like": lambda x: ruda.full_like(x, x[0, 0]),
}  # fmt: skip
# What makes tensors of no tensor's values, tools, and what is no function of tensors.
OTHERS = {
    "Tensor", "arange", "bool", "broadcast_shapes", "can_cast", "detect_anomaly", "device_of", "e",
    "empty", "empty_like", "eye", "fft", "finfo", "geomspace", "gradcheck", "iinfo", "inf",
    "isdtype", "linalg", "linspace", "load", "logspace", "nan", "newaxis", "no_grad", "ones",
    "ones_like", "pi", "realize", "result_type", "save", "savez", "supports", "zeros",
    "zeros_like", "fft.fftfreq", "fft.rfftfreq",
}  # fmt: skip
BY_ROWS = {  # test_grad checks each of these rows
    r.name for r in OPS.values() if r.kind == "elementwise" and r.gradient is not None
} - {"where", "clip", "copysign", "nextafter", "floor_divide", "real", "imag"}


def test_every_name_is_in_one_table():
    names = [*ruda.tensor.__all__]
    names += [f"linalg.{n}" for n in linalg.FUNCTIONS] + [f"fft.{n}" for n in fft.FUNCTIONS]
    tables = [set(CHECKED), FLAT, TESTS, set(REFUSED), OTHERS, BY_ROWS]
    counts = {n: sum(n in table for table in tables) for n in names}
    assert {n: k for n, k in counts.items() if k != 1} == {}
    assert set().union(*tables) <= set(names)


@pytest.mark.parametrize("name", CHECKED)
def test_derivatives_of_both_orders(name):
    call, *points = CHECKED[name]
    given = [ruda.asarray(p).requires_grad_() for p in points]
    assert call(*given).requires_grad
    ruda.gradcheck(call, *points)
    seeds = np.random.default_rng(3)
    direction = [ruda.asarray(seeds.normal(size=p.shape)) for p in points]
    weight = ruda.asarray(seeds.normal(size=call(*given).shape))

    def slope(*arguments):
        """The change along a direction, of what is not linear even where the function is."""
        slopes = ruda.vjp(lambda *xs: ruda.sum(weight * ruda.sin(call(*xs))), *arguments)[1](1.0)
        return sum(ruda.sum(g * d) for g, d in zip(slopes, direction, strict=True))

    ruda.gradcheck(slope, *points)


@pytest.mark.parametrize("name", COMPLEX)
def test_derivatives_of_rows_of_complex_numbers(name):
    call = getattr(ruda, name)
    real, imaginary = C[0] * 0.3 + 1.7, D[0] * 0.3 + 0.6  # away from cuts and poles
    if len(OPS[name].parameters) == 2:
        f = parts(lambda z: call(z, z[::-1] * 0.5))
    else:
        f = parts(call)
    ruda.gradcheck(f, real, imaginary)
    ruda.gradcheck(
        lambda x, y: ruda.grad(lambda x: ruda.sum(ruda.sin(f(x, y))))(x), real, imaginary
    )


@pytest.mark.parametrize("name", sorted(FLAT))
def test_what_is_flat_gives_zero(name):
    call = linalg.matrix_rank if "." in name else getattr(ruda, name)

    def f(x):
        out = call(x, 0.3) if name == "floor_divide" else call(x)
        return ruda.sum(out) + ruda.sum(x)

    assert ruda.grad(f)(ruda.asarray(A)).tolist() == np.ones_like(A).tolist()


TESTED = {
    "isin": lambda x: ruda.isin(x, x), "searchsorted": lambda x: ruda.searchsorted(x[0], x[1]),
    "argpartition": lambda x: ruda.argpartition(x, 1),
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(n for n in TESTS if not n.startswith("bitwise")))
def test_what_is_not_of_floats_has_no_derivative(name):
    x = ruda.asarray(A).requires_grad_()
    call = getattr(ruda, name)
    two = name in ("allclose", "array_equal", "isclose") or (
        name in OPS and len(OPS[name].parameters) == 2
    )
    found = TESTED[name](x) if name in TESTED else call(x, x) if two else call(x)
    for out in found if isinstance(found, tuple) else [found]:
        assert isinstance(out, bool) or (not out.dtype.is_inexact and not out.requires_grad)


@pytest.mark.parametrize("name", REFUSED)
def test_what_has_no_derivative_says_so(name):
    with pytest.raises(GradientError):
        REFUSED[name](ruda.asarray(np.abs(A)).requires_grad_())
