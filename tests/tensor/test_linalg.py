"""Linear algebra and Fourier transforms: on devices, and their derivatives."""

import numpy as np
import pytest

import ruda
from ruda.errors import GradientError, ShapeError

# ---- sums, products and views: on every device ---------------------------------------------------

INF = float("inf")
MADE = {
    "diagonal": lambda p, x: p.linalg.diagonal(x, offset=1),
    "diagonal below": lambda p, x: p.linalg.diagonal(x, offset=-2),
    "diagonal outside": lambda p, x: p.linalg.diagonal(x, offset=9),
    "trace": lambda p, x: p.linalg.trace(x), "outer": lambda p, x: p.linalg.outer(x[0, 0], x[1, 1]),
    "cross": lambda p, x: p.linalg.cross(x[..., :3], x[:1, :, 1:]),
    "cross axis": lambda p, x: p.linalg.cross(x[:, :3], x[:, :3] * 2 + 1, axis=1),
    "vecdot": lambda p, x: p.linalg.vecdot(x, x[0]), "norm": lambda p, x: p.linalg.vector_norm(x),
    "vecdot axis": lambda p, x: p.linalg.vecdot(x, x * 2, axis=-2),
    "tensordot": lambda p, x: p.linalg.tensordot(x, x, axes=((0, 2), (0, 2))),
    "tensordot 0": lambda p, x: p.linalg.tensordot(x[0], x[1], axes=0),
    "norm 3": lambda p, x: p.linalg.vector_norm(x, axis=1, ord=3, keepdims=True),
    "norm inf": lambda p, x: p.linalg.vector_norm(x, axis=(0, 2), ord=INF),
    "norm -inf": lambda p, x: p.linalg.vector_norm(x, axis=-1, ord=-INF),
    "norm 1": lambda p, x: p.linalg.vector_norm(x, axis=0, ord=1),
    "matrix norm": lambda p, x: p.linalg.matrix_norm(x),
    "matrix norm 1": lambda p, x: p.linalg.matrix_norm(x, ord=1, keepdims=True),
    "matrix norm -inf": lambda p, x: p.linalg.matrix_norm(x, ord=-INF),
    "power": lambda p, x: p.linalg.matrix_power(x, 5),
    "power 0": lambda p, x: p.linalg.matrix_power(x, 0),
    "norm of all": lambda p, x: p.linalg.norm(x),
    "norm of rows": lambda p, x: p.linalg.norm(x, 1, 2),
    "norm of matrices": lambda p, x: p.linalg.norm(x, "fro", axis=(0, -1), keepdims=True),
    "norm nuc": lambda p, x: p.linalg.norm(x, "nuc", (2, 0)),
    "norm of a matrix": lambda p, x: p.linalg.norm(x[0], -1),
    "norm of a vector": lambda p, x: p.linalg.norm(x[0, 1], 3, keepdims=True),
    **{f"cond {k}": lambda p, x, k=k: p.linalg.cond(x + 3 * p.eye(4), k)
       for k in (None, 2, -2, 1, -1, INF, -INF, "fro", "nuc")},
    "cond of rectangles": lambda p, x: p.linalg.cond(x[:, :2]),
}  # fmt: skip


@pytest.mark.parametrize("name", MADE)
def test_what_is_made_of_other_ops(name, rng, device):
    x = rng.normal(size=(2, 4, 4)).astype("f4")
    with ruda.config(device=device):
        found = MADE[name](ruda, ruda.asarray(x, device=device))
    wanted = MADE[name](np, x.astype("f8"))
    assert found.shape == wanted.shape and found.device.startswith(device)
    np.testing.assert_allclose(found.numpy(), wanted, rtol=1e-4, atol=1e-4)


def test_a_diagonal_is_a_view():
    x = ruda.zeros((3, 3))
    ruda.linalg.diagonal(x)[...] = 1
    assert x.tolist() == np.eye(3).tolist()


@pytest.mark.parametrize(
    ("call", "says"),
    [(lambda: ruda.linalg.diagonal(ruda.ones(3)), "matrices"),
     (lambda: ruda.linalg.cross(ruda.ones(2), ruda.ones(2)), "not of 3"),
     (lambda: ruda.linalg.outer(ruda.ones((2, 2)), ruda.ones(2)), "two vectors"),
     (lambda: ruda.linalg.cond(ruda.ones(3)), "matrices"),
     (lambda: ruda.linalg.cond(ruda.ones((2, 3)), 1), "square"),
     (lambda: ruda.linalg.cond(ruda.ones((3, 0, 0))), "with elements"),
     (lambda: ruda.linalg.lstsq(ruda.ones((3, 2)), ruda.ones(2)), r"\(3, 2\) and \(2,\)"),
     (lambda: ruda.linalg.lstsq(ruda.ones((1, 3, 2)), ruda.ones(3)), "takes a matrix"),
     (lambda: ruda.linalg.norm(ruda.ones((2, 2, 2)), 1), "name an axis"),
     (lambda: ruda.linalg.norm(ruda.ones((2, 2, 2)), axis=(0, 1, 2)), "one axis or two"),
     (lambda: ruda.vecdot(ruda.ones(2), ruda.ones(3)), "2 and 3"),
     (lambda: ruda.tensordot(ruda.ones((2, 3)), ruda.ones((2, 3)), axes=1), "lengths"),
     (lambda: ruda.linalg.matrix_power(ruda.ones((2, 3)), 2), "square")],
)  # fmt: skip
def test_shapes_that_do_not_fit(call, says):
    with pytest.raises(ShapeError, match=says):
        call()


# ---- made of factorisations ----------------------------------------------------------------------

SYSTEMS = [
    (6, 4, 3),
    (6, 4, None),
    (4, 4, 1),
    (4, 6, 2),
    (5, 1, None),
    (3, 0, 2),
    (0, 3, 2),
    (3, 2, 0),
]


@pytest.mark.parametrize("system", SYSTEMS, ids=str)
def test_least_squares(system, rng, device):
    m, n, k = system
    a, b = (rng.normal(size=s).astype("f4") for s in ((m, n), (m,) if k is None else (m, k)))
    found = ruda.linalg.lstsq(*(ruda.asarray(v, device=device) for v in (a, b)))
    wanted = np.linalg.lstsq(a.astype("f8"), b.astype("f8"))
    assert [v.shape for v in found] == [np.shape(v) for v in wanted]
    assert all(v.device.startswith(device) for v in found) and found.rank.dtype.is_integer
    for ours, theirs in zip(found, wanted, strict=True):
        np.testing.assert_allclose(ours.numpy(), theirs, rtol=1e-4, atol=1e-4)


def test_least_squares_without_full_rank(device):
    """The shortest solution; what counts as 0 can be told; no residuals, as in NumPy."""
    a = np.array([[1, 2], [2, 4], [1, 2]], "f4")
    b = np.array([1, 1, 2], "f4")
    there, right = (ruda.asarray(v, device=device) for v in (a, b))
    for cut, rank in ((None, 1), (1e-3, 1), (0.2, 1)):
        x, residuals, found, _ = ruda.linalg.lstsq(there, right, rcond=cut)
        wanted = np.linalg.lstsq(a.astype("f8"), b.astype("f8"), rcond=cut or 1e-6)
        assert found.item() == rank == wanted[2] and residuals.shape == (0,)
        np.testing.assert_allclose(x.numpy(), wanted[0], atol=1e-5)
    near = ruda.asarray(np.diag([1, 1e-3]).astype("f4"), device=device)
    for cut, rank in ((1e-2, 1), (1e-4, 2), (0, 2), (-1, 2), (1.5, 2)):
        found = ruda.linalg.lstsq(near, near[0], rcond=cut)
        wanted = np.linalg.lstsq(near.numpy(), near[0].numpy(), rcond=cut)
        assert found.rank.item() == rank == wanted[2]
        np.testing.assert_allclose(found.x.numpy(), wanted[0], atol=1e-6)


def test_least_squares_of_complex_numbers_and_integers(rng):
    a, b = (rng.normal(size=s) + 1j * rng.normal(size=s) for s in ((5, 3), (5, 2)))
    for ours, theirs in zip(ruda.linalg.lstsq(*map(ruda.asarray, (a, b))), np.linalg.lstsq(a, b),
                            strict=True):  # fmt: skip
        np.testing.assert_allclose(ours.numpy(), theirs, rtol=1e-10)
    whole = ruda.asarray([[2, 0], [0, 4], [0, 0]])
    x, residuals, *_ = ruda.linalg.lstsq(whole, ruda.asarray([2, 4, 1]))
    assert x.dtype == residuals.dtype == "float32"
    np.testing.assert_allclose(x.numpy(), [1, 1], rtol=1e-6)
    np.testing.assert_allclose(residuals.numpy(), [1], rtol=1e-6)
    mixed = ruda.linalg.lstsq(ruda.ones((2, 1)), ruda.ones(2, dtype="float64"))
    assert mixed.x.dtype == "float64"


def test_numpy_finds_least_squares_conditions_and_norms():
    a = np.array([[2.0, 1], [1, 3], [0, 1]])
    x = ruda.asarray(a)
    assert isinstance(np.linalg.lstsq(x, x[:, 0], None)[0], ruda.Tensor)
    np.testing.assert_allclose(
        np.linalg.lstsq(x, x[:, 0], rcond=None)[0].numpy(), [1, 0], atol=1e-12
    )
    np.testing.assert_allclose(float(np.linalg.cond(x)), np.linalg.cond(a))
    np.testing.assert_allclose(float(np.linalg.cond(x[:2], p=1)), np.linalg.cond(a[:2], p=1))
    np.testing.assert_allclose(np.linalg.norm(x, axis=0).numpy(), np.linalg.norm(a, axis=0))


def test_conditions_of_singular_matrices(device):
    for a in ([[0, 0], [0, 0]], [[1, 2], [2, 4]]):
        x = ruda.asarray(np.array([a, np.eye(2)], "f4"), device=device)
        for p in (1, -1, INF, "fro"):
            singular, one = ruda.linalg.cond(x, p).tolist()
            assert singular == INF
            np.testing.assert_allclose(one, np.linalg.cond(np.eye(2), p), rtol=1e-6)
    zero = ruda.zeros((2, 2), device=device)
    assert ruda.linalg.cond(zero).item() == ruda.linalg.cond(zero, -2).item() == INF
    nan = ruda.asarray(np.array([[np.nan, 1], [1, 1]], "f4"), device=device)
    assert np.isnan(ruda.linalg.cond(nan, 1).item())


def test_compiled_functions_of_factorisations(rng):
    a, b = (ruda.asarray(rng.normal(size=s)) for s in ((5, 3), (5,)))

    def f(a, b):
        return ruda.linalg.lstsq(a, b).x * ruda.linalg.cond(a) + ruda.linalg.cond(a[:3], 1)

    compiled, wanted = ruda.compile(f), f(a, b).numpy()
    for _ in range(3):
        np.testing.assert_allclose(compiled(a, b).numpy(), wanted, rtol=1e-12)


@pytest.mark.parametrize("name", ["inv", "det", "eigvalsh", "svdvals", "pinv", "cond", "norm"])
def test_integers_are_factorised_at_the_default_float(name, device):
    x = ruda.asarray(np.array([[2, 1], [1, 3]], "i4"), device=device)
    for kind in ("int32", "uint8", "bool"):
        given = x.astype(kind) * (ruda.eye(2, dtype=kind, device=device) if kind == "bool" else 1)
        assert getattr(ruda.linalg, name)(given).dtype == "float32"
    with ruda.config(default_float="float64"):
        if device.startswith(("cpu", "sim")):
            assert getattr(ruda.linalg, name)(x).dtype == "float64"


@pytest.mark.parametrize("kind", ["float16", "bfloat16"])
def test_factorisations_of_16_bits_are_refused(kind, device):
    x = ruda.eye(2, device=device).astype(kind)
    for call in (L.inv, L.svd, L.pinv, L.cond, lambda x: L.lstsq(x, x), lambda x: L.solve(x, x)):
        with pytest.raises(ruda.errors.DTypeError, match=rf"linalg\.\w+` of {kind}: .*astype"):
            call(x)


# ---- derivatives ---------------------------------------------------------------------------------


def even(x):
    return x @ x.mT + 0.5 * ruda.eye(x.shape[-1], dtype=x.dtype)


L = ruda.linalg
DERIVED = {
    "inv": lambda x: L.inv(x), "det": lambda x: L.det(x), "solve": lambda x: L.solve(x, x[..., :2]),
    "solve vector": lambda x: L.solve(x, x[0, :, 0]), "slogdet": lambda x: L.slogdet(x).logabsdet,
    "cholesky": lambda x: L.cholesky(even(x)), "upper": lambda x: L.cholesky(even(x), upper=True),
    "eigvalsh": lambda x: L.eigvalsh(even(x)), "svdvals": lambda x: L.svdvals(x),
    "eigh": lambda x: L.eigh(even(x)).eigenvectors ** 2,
    "eigh values": lambda x: L.eigh(even(x)).eigenvalues,
    "svd U": lambda x: L.svd(x[..., :2], full_matrices=False).U ** 2,
    "svd V": lambda x: L.svd(x[..., :2, :], full_matrices=False).Vh ** 2,
    "svd tall V": lambda x: L.svd(x[..., :2], full_matrices=False).Vh ** 2,
    "svd wide U": lambda x: L.svd(x[..., :2, :], full_matrices=False).U ** 2,
    "svd S": lambda x: L.svd(x).S, "qr Q": lambda x: L.qr(x).Q, "qr R": lambda x: L.qr(x).R,
    "qr tall": lambda x: L.qr(x[..., :2]).Q * 1.0, "pinv": lambda x: L.pinv(x[..., :2]),
    "pinv wide": lambda x: L.pinv(x[..., :2, :]), "nuc": lambda x: L.matrix_norm(x, ord="nuc"),
    "norm 2": lambda x: L.matrix_norm(x, ord=2), "fro": lambda x: L.matrix_norm(x),
    "power": lambda x: L.matrix_power(x, -2), "trace": lambda x: L.trace(x, offset=1),
    "diagonal": lambda x: L.diagonal(x, offset=-1) ** 2, "cross": lambda x: L.cross(x, x[:1] ** 2),
    "vecdot": lambda x: L.vecdot(x, x**2), "tensordot": lambda x: L.tensordot(x, x[0], axes=1),
    "norm 3": lambda x: L.vector_norm(x, ord=3, axis=0),
    "lstsq": lambda x: L.lstsq(x[0, :, :2], x[1]).x, "cond": lambda x: L.cond(x),
    "lstsq wide": lambda x: L.lstsq(x[0, :2], x[1, :2, 0] ** 2).x,
    "cond -1": lambda x: L.cond(x, -1), "cond fro": lambda x: L.cond(x, "fro"),
    "lstsq residuals": lambda x: L.lstsq(x[0, :, :2], x[1]).residuals,
    "lstsq values": lambda x: L.lstsq(x[0, :, :2], x[1]).singular_values,
    "lstsq rank": lambda x: L.lstsq(x[0, :, :1] * x[0, :1], x[1]).x,
}  # fmt: skip


@pytest.mark.parametrize("name", DERIVED)
def test_derivatives_of_linear_algebra(name, rng):
    call, x = DERIVED[name], rng.normal(size=(2, 3, 3))
    ruda.gradcheck(call, x)
    ruda.gradcheck(lambda x: ruda.grad(lambda y: ruda.sum(ruda.sin(call(y))))(x), x)


@pytest.mark.parametrize("name", ["inv", "det", "solve", "cholesky", "eigvalsh", "eigh values",
                                  "svdvals", "slogdet", "qr R", "pinv",
                                  "least squares"])  # fmt: skip
def test_derivatives_by_complex_matrices(name, rng):
    """d/da + i d/db of a real function, by differences."""
    call = DERIVED.get(name, L.pinv)
    if name in ("cholesky", "eigvalsh", "eigh values"):
        inner = {"cholesky": L.cholesky, "eigvalsh": L.eigvalsh}.get(
            name, lambda a: L.eigh(a).eigenvalues
        )
        call = lambda x: inner(  # noqa: E731
            x @ ruda.conj(x.mT) + 0.5 * ruda.eye(3, dtype=x.dtype)
        )
    x = rng.normal(size=(3, 3)) + 1j * rng.normal(size=(3, 3))
    weights = ruda.asarray(rng.normal(size=np.shape(call(ruda.asarray(x)).numpy())))

    def f(x):
        return ruda.sum(ruda.abs(call(x)) ** 2 * weights)

    if name == "least squares":
        return check_complex(
            lambda x: ruda.sum(ruda.abs(L.lstsq(x[:, :2], x[:, 1:] ** 2).x) ** 2), x
        )
    if name == "solve":
        return check_complex(lambda x: ruda.sum(ruda.abs(L.solve(x, x[:, :2] ** 2)) ** 2), x)
    check_complex(f, x)


def check_complex(f, x):
    g = ruda.grad(f)(ruda.asarray(x)).numpy()
    eps = 1e-6
    for index in np.ndindex(x.shape):
        for part, have in ((1, g[index].real), (1j, g[index].imag)):
            e = np.zeros(x.shape, complex)
            e[index] = eps * part
            ends = [float(f(ruda.asarray(x + s * e))) for s in (1, -1)]
            assert abs((ends[0] - ends[1]) / (2 * eps) - have) < 1e-5 * max(1, abs(have))


def test_derivatives_that_are_refused():
    for call in (
        lambda x: ruda.sum(L.svd(x).U), lambda x: ruda.sum(ruda.real(L.eig(x)[0])),
        lambda x: ruda.sum(L.qr(x[:2]).Q),
    ):  # fmt: skip
        with pytest.raises(GradientError):
            ruda.grad(call)(ruda.ones((3, 4))[:, :3] if "eig" in str(call) else ruda.ones((3, 4)))


# ---- Fourier transforms --------------------------------------------------------------------------

LENGTHS = [1, 2, 3, 4, 5, 7, 8, 12, 16, 31, 64, 100, 128, 1000]


@pytest.mark.parametrize("n", LENGTHS)
def test_transforms_of_any_length(n, rng, device):
    z = (rng.normal(size=(3, n)) + 1j * rng.normal(size=(3, n))).astype("c8")
    x = ruda.asarray(z, device=device)
    wanted = np.fft.fft(z.astype("c16"))
    assert relative(ruda.fft.fft(x), wanted) < 1e-6
    assert relative(ruda.fft.ifft(x), np.fft.ifft(z.astype("c16"))) < 1e-6
    real = ruda.real(x)
    assert relative(ruda.fft.rfft(real), np.fft.rfft(z.real.astype("f8"))) < 1e-6
    half = np.fft.rfft(z.real.astype("f8")).astype("c8")
    back = ruda.fft.irfft(ruda.asarray(half, device=device), n=n)
    assert relative(back, z.real) < 2e-6


def relative(found, wanted):
    """The error against the size of the whole, as the theory of transforms has it."""
    assert found.shape == wanted.shape
    return np.linalg.norm(found.numpy() - wanted) / np.linalg.norm(wanted)


MORE = {
    "axis": lambda p, x: p.fft.fft(x, axis=0), "longer": lambda p, x: p.fft.fft(x, n=11),
    "shorter": lambda p, x: p.fft.ifft(x, n=3, axis=1),
    "ortho": lambda p, x: p.fft.fft(x, norm="ortho"),
    "forward": lambda p, x: p.fft.ifft(x, norm="forward"), "hfft": lambda p, x: p.fft.hfft(x),
    "hfft odd": lambda p, x: p.fft.hfft(x, n=7, norm="ortho"), "fftn": lambda p, x: p.fft.fftn(x),
    "ihfft": lambda p, x: p.fft.ihfft(p.real(x)), "rfftn": lambda p, x: p.fft.rfftn(p.real(x)),
    "irfftn": lambda p, x: p.fft.irfftn(x), "s": lambda p, x: p.fft.fftn(x, s=(4, 3), axes=(0, 2)),
    "ifftn": lambda p, x: p.fft.ifftn(x, axes=(1,)), "irfft odd": lambda p, x: p.fft.irfft(x, n=9),
    "irfftn s": lambda p, x: p.fft.irfftn(x, s=(3, 7), axes=(0, 1), norm="forward"),
    "shift": lambda p, x: p.fft.fftshift(x), "back": lambda p, x: p.fft.ifftshift(x, axes=(2,)),
}  # fmt: skip


@pytest.mark.parametrize("name", MORE)
def test_more_transforms(name, rng, device):
    z = (rng.normal(size=(2, 4, 6)) + 1j * rng.normal(size=(2, 4, 6))).astype("c8")
    found, wanted = MORE[name](ruda, ruda.asarray(z, device=device)), MORE[name](np, z)
    assert relative(found, wanted) < 2e-6


@pytest.mark.parametrize("name", MORE)
def test_derivatives_of_transforms(name, rng):
    z = rng.normal(size=(2, 2, 3)) + 1j * rng.normal(size=(2, 2, 3))
    weights = rng.normal(size=np.shape(MORE[name](ruda, ruda.asarray(z)).numpy()))
    w = ruda.asarray(weights)
    check_complex(lambda x: ruda.sum(ruda.real(MORE[name](ruda, x)) * w
                                     + ruda.abs(MORE[name](ruda, x)) ** 2), z)  # fmt: skip


def test_transforms_say_what_is_wrong():
    with pytest.raises(ValueError, match="norm='best'"):
        ruda.fft.fft(ruda.ones(4), norm="best")
    with pytest.raises(ShapeError, match="0 elements"):
        ruda.fft.fft(ruda.ones(4), n=0)
    with pytest.raises(TypeError, match="real numbers"):
        ruda.fft.rfft(ruda.ones(4, dtype="complex64"))
