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
}  # fmt: skip


@pytest.mark.parametrize("name", MADE)
def test_what_is_made_of_other_ops(name, rng, device):
    x = rng.normal(size=(2, 4, 4)).astype("f4")
    found, wanted = MADE[name](ruda, ruda.asarray(x, device=device)), MADE[name](np, x.astype("f8"))
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
     (lambda: ruda.vecdot(ruda.ones(2), ruda.ones(3)), "2 and 3"),
     (lambda: ruda.tensordot(ruda.ones((2, 3)), ruda.ones((2, 3)), axes=1), "lengths"),
     (lambda: ruda.linalg.matrix_power(ruda.ones((2, 3)), 2), "square")],
)  # fmt: skip
def test_shapes_that_do_not_fit(call, says):
    with pytest.raises(ShapeError, match=says):
        call()


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
}  # fmt: skip


@pytest.mark.parametrize("name", DERIVED)
def test_derivatives_of_linear_algebra(name, rng):
    call, x = DERIVED[name], rng.normal(size=(2, 3, 3))
    ruda.gradcheck(call, x)
    ruda.gradcheck(lambda x: ruda.grad(lambda y: ruda.sum(ruda.sin(call(y))))(x), x)


@pytest.mark.parametrize("name", ["inv", "det", "solve", "cholesky", "eigvalsh", "eigh values",
                                  "svdvals", "slogdet", "qr R", "pinv"])  # fmt: skip
def test_derivatives_by_complex_matrices(name, rng):
    """d/da + i d/db of a real function, by differences."""
    call = DERIVED[name]
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
