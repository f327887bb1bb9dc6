"""cuSOLVER and cuFFT: layouts and calls by LAPACK in their place, and on a GPU both ways."""

import inspect
from types import SimpleNamespace

import numpy as np
import pytest

import ruda
from ruda import backends
from ruda.backends.cuda import vendor
from ruda.errors import DeviceError, OutOfMemoryError
from ruda.tensor import cufft, cusolver, factors, fft, memory, signal
from tests.backends.cuda.fake_vendor import Fake
from tests.tensor import test_factors

ALL = ["float32", "float64", "complex64", "complex128"]


def of_all(shapes):
    """Small shapes at float32 and the last one at every dtype; on a GPU each other one at one."""
    found = []
    for i, dtype in enumerate(ALL):
        for k, shape in enumerate(shapes):
            some = (dtype == "float32" or shape == shapes[-1]) and max(shape) < 100
            if some or (i + k) % len(ALL) == 0:
                marks = () if some else pytest.mark.cuda
                found.append(pytest.param(shape, dtype, id=f"{dtype} {shape}", marks=marks))
    return found


@pytest.fixture
def always(monkeypatch):
    """The vendor's functions also where our own are faster."""
    monkeypatch.setattr(cusolver, "ROUTES", dict.fromkeys(cusolver.ROUTES, lambda count, n: True))


@pytest.fixture
def fake(monkeypatch, always):
    """The vendor's functions take buffers of the host, and LAPACK computes them."""
    made = Fake()
    caches = vendor.function, vendor.has
    monkeypatch.setattr(vendor, "library", lambda name: made)
    monkeypatch.setattr(vendor, "gpu_of", lambda device: made.gpu)
    monkeypatch.setattr(vendor, "_free", {})
    monkeypatch.setattr(cufft, "_plans", cufft._plans.__class__())
    monkeypatch.setattr(type(backends.get("cpu")), "vendor", vendor, raising=False)
    monkeypatch.setattr(fft, "memory", SimpleNamespace(on_host=lambda device: False))
    for cache in caches:
        cache.cache_clear()
    yield made
    cufft._plans.clear()
    for cache in caches:
        cache.cache_clear()


@pytest.fixture(params=["fake", pytest.param("cuda", marks=pytest.mark.cuda)])
def place(request, always):
    """Where the vendor's functions run: by LAPACK on the host, or themselves."""
    if request.param == "cuda":
        assert cusolver.able("lu", "cuda:0") and cufft.takes("cuda:0")  # the packages are there
        return "cuda"
    request.getfixturevalue("fake")
    return "cpu"


def numbers(rng, dtype, *shape):
    x = rng.normal(size=shape)
    return (x + 1j * rng.normal(size=shape) if dtype[0] == "c" else x).astype(dtype)


def near(found, wanted, dtype, by=1.0):
    scale = max(1.0, np.abs(wanted).max(initial=0)) * by
    assert found.shape == wanted.shape and found.dtype == dtype
    assert np.abs(found - wanted).max(initial=0) <= 20 * np.finfo(dtype).eps * scale


SHAPES = [
    (0, 0), (1, 1), (2, 3, 3), (1, 37, 37), (0, 2, 2), (200, 32, 32), (257, 257), (2, 600, 600),
    (2, 1, 5, 5),
]  # fmt: skip


@pytest.mark.parametrize(("shape", "dtype"), of_all(SHAPES))
def test_equations_and_inverses(place, dtype, shape, rng):
    n = shape[-1]
    a = numbers(rng, dtype, *shape) + 2 * n**0.5 * np.eye(n, dtype=dtype)  # not near to singular
    there = ruda.asarray(a, device=place)
    near(factors.inv(there).numpy(), np.linalg.inv(a), dtype, n)
    for columns in (1, 4):
        b = numbers(rng, dtype, *shape[:-1], columns)
        x = factors.solve(there, ruda.asarray(b, device=place)).numpy()
        near(x, np.linalg.solve(a, b), dtype, n)
    vector = numbers(rng, dtype, n)
    x = factors.solve(there, ruda.asarray(vector, device=place)).numpy()
    near(x, np.linalg.solve(a, np.broadcast_to(vector, shape[:-1])[..., None])[..., 0], dtype, n)
    wide = np.linalg.slogdet(a.astype("c16" if dtype[0] == "c" else "f8"))
    sign, size = factors.slogdet(there)
    near(sign.numpy(), wide.sign, dtype, n)
    near(size.numpy(), wide.logabsdet, np.zeros(1, dtype).real.dtype, n)
    if n < 6:
        found = factors.det(there).numpy()
        near(found, np.linalg.det(a).astype(dtype), dtype, n)
    assert there.numpy().tolist() == a.tolist()


@pytest.mark.parametrize(("shape", "dtype"), of_all(SHAPES[1:]))
@pytest.mark.parametrize("upper", [False, True])
def test_roots(place, dtype, shape, upper, rng):
    """Of one triangle: the other is not read."""
    x = numbers(rng, dtype, *shape)
    a = x @ x.conj().swapaxes(-1, -2) + np.eye(shape[-1], dtype=dtype)
    half = np.triu(a) if upper else np.tril(a)
    c = factors.cholesky(ruda.asarray(half, device=place), upper=upper).numpy()
    near(c, np.linalg.cholesky(a, upper=upper), dtype, shape[-1])


WIDE = [(0, 0), (3, 0), (1, 1), (2, 3, 5), (5, 2), (40, 34), (0, 2, 2), (150, 257), (600, 500)]
WIDE += [(300, 32, 32), (120, 40, 40), (3, 1, 4, 3)]


def orthonormal(q, dtype):
    product = q.conj().swapaxes(-1, -2) @ q
    one = np.broadcast_to(np.eye(q.shape[-1], dtype=dtype), product.shape)
    near(product, one, dtype, max(1, *q.shape[-2:]) ** 0.5)


@pytest.mark.parametrize(("shape", "dtype"), of_all(WIDE))
@pytest.mark.parametrize("mode", ["reduced", "complete"])
def test_orthogonal_and_triangular(place, dtype, shape, mode, rng):
    a = numbers(rng, dtype, *shape)
    q, r = (v.numpy() for v in factors.qr(ruda.asarray(a, device=place), mode=mode))
    wanted = np.linalg.qr(a, mode=mode)
    assert [v.shape for v in (q, r)] == [v.shape for v in wanted] and q.dtype == r.dtype == dtype
    near(q @ r, a, dtype, max(1, *shape) ** 0.5)
    orthonormal(q, dtype)
    assert (np.triu(r) == r).all()


@pytest.mark.parametrize(("shape", "dtype"), of_all(WIDE))
@pytest.mark.parametrize("full", [False, True])
def test_singular_values(place, dtype, shape, full, rng):
    a = numbers(rng, dtype, *shape)
    if a.size:
        a[..., -1:] = a[..., :1]  # one value is 0 where there are several columns
    there, k = ruda.asarray(a, device=place), min(shape[-2:])
    wide = a.astype("c16" if dtype[0] == "c" else "f8")
    u, s, vh = (v.numpy() for v in factors.svd(there, full_matrices=full))
    wanted = np.linalg.svd(wide, full_matrices=full)
    assert [v.shape for v in (u, s, vh)] == [v.shape for v in wanted]
    real = s.dtype
    assert u.dtype == vh.dtype == dtype and real == np.zeros(1, dtype).real.dtype
    near(s, wanted.S.astype(real), real, max(1, *shape) ** 0.5)
    near(factors.svdvals(there).numpy(), wanted.S.astype(real), real, max(1, *shape) ** 0.5)
    near((u[..., :k] * s[..., None, :]) @ vh[..., :k, :], a, dtype, max(1, *shape))
    orthonormal(u, dtype)
    orthonormal(vh.conj().swapaxes(-1, -2), dtype)
    assert (np.diff(s) <= 0).all()
    if max(shape) < 9:
        rank = factors.matrix_rank(there).numpy()
        assert rank.tolist() == np.linalg.matrix_rank(a).tolist()
        inverse = np.linalg.pinv(wide, rtol=1e-4).astype(dtype)
        near(factors.pinv(there, rtol=1e-4).numpy(), inverse, dtype, 10)


@pytest.mark.parametrize(("shape", "dtype"), of_all(SHAPES))
def test_eigenvalues(place, dtype, shape, rng):
    """Of the lower triangle: the other is not read."""
    x = numbers(rng, dtype, *shape)
    a = x + x.conj().swapaxes(-1, -2)
    there, n = ruda.asarray(np.tril(a), device=place), shape[-1]
    w, v = (found.numpy() for found in factors.eigh(there))
    wanted = np.linalg.eigvalsh(a.astype("c16" if dtype[0] == "c" else "f8"))
    assert w.dtype == np.zeros(1, dtype).real.dtype and v.dtype == dtype and v.shape == a.shape
    near(w, wanted.astype(w.dtype), w.dtype, max(n, 1) ** 0.5)
    near(factors.eigvalsh(there).numpy(), wanted.astype(w.dtype), w.dtype, max(n, 1) ** 0.5)
    near((v * w[..., None, :]) @ v.conj().swapaxes(-1, -2), a, dtype, max(n, 1))
    orthonormal(v, dtype)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_has_no_values(place, bad, rng):
    a = rng.normal(size=(2, 3, 3)).astype("f4")
    a[1, 2, 0] = bad
    for shape in ((2, 3, 3), (3, 3)):
        there = ruda.asarray(a[-1] if len(shape) == 2 else a, device=place)
        for name in ("svd", "svdvals", "eigh", "eigvalsh"):
            says = rf"^`{name}` did not converge: there is NaN or infinity$"
            with pytest.raises(np.linalg.LinAlgError, match=says):
                getattr(factors, name)(there)


@pytest.mark.parametrize("n", [1, 2, 5])
@pytest.mark.parametrize("count", [1, 3])
def test_what_matrices_lack(place, n, count, rng):
    """One of a stack is enough; what it says is what our own kernels say."""
    good = (rng.normal(size=(count, n, n)) + 3 * np.eye(n)).astype("f4")
    singular, negative = good.copy(), (good @ good.swapaxes(1, 2) + np.eye(n)).astype("f4")
    singular[-1, :, -1] = 0
    negative[-1, -1, -1] = -1
    zero = ruda.asarray(singular, device=place)
    for call in (factors.inv, lambda x: factors.solve(x, x)):
        with pytest.raises(np.linalg.LinAlgError, match=r"^Singular matrix$"):
            call(zero)
    assert factors.det(zero).tolist()[-1] == 0
    assert factors.slogdet(zero).logabsdet.tolist()[-1] == -np.inf
    wrong = [negative, np.where(np.eye(n, dtype=bool), np.nan, negative), np.zeros_like(good)]
    for bad in wrong:
        with pytest.raises(np.linalg.LinAlgError, match=r"^Matrix is not positive definite$"):
            factors.cholesky(ruda.asarray(bad.astype("f4"), device=place))
    nan = good.copy()
    nan[-1] = np.nan  # which is not singular
    found = factors.inv(ruda.asarray(nan, device=place)).numpy()
    assert np.isnan(found[-1]).all() and not np.isnan(found[:-1]).any()


LENGTHS = [(1,), (2, 8), (3, 7), (2, 0, 4), (2, 3, 101), (1, 1000)]
LENGTHS.append(pytest.param((3, 65537), marks=pytest.mark.cuda))


@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
@pytest.mark.parametrize("shape", LENGTHS, ids=str)
def test_transforms(place, dtype, shape, rng):
    z = numbers(rng, dtype, *shape)
    x, n = ruda.asarray(z, device=place), shape[-1]
    for call in ("fft", "ifft"):
        for norm in ("backward", "ortho", "forward"):
            found = getattr(ruda.fft, call)(x, norm=norm).numpy()
            wanted = getattr(np.fft, call)(z.astype("c16"), norm=norm)
            near(found, wanted.astype(dtype), dtype, n**0.5)
    real = z.real.copy()
    there = ruda.asarray(real, device=place)
    near(ruda.fft.rfft(there).numpy(), np.fft.rfft(real.astype("f8")), dtype, n**0.5)
    for length in (2 * n - 1, 2 * n):
        given = numbers(rng, dtype, *shape[:-1], length // 2 + 1)  # its ends are not real
        back = ruda.fft.irfft(ruda.asarray(given, device=place), n=length).numpy()
        near(back, np.fft.irfft(given.astype("c16"), length), real.dtype, n**0.5)
    assert x.numpy().tolist() == z.tolist() and there.numpy().tolist() == real.tolist()


SEVERAL = {
    "fftn": lambda p, x: p.fft.fftn(x), "ifftn": lambda p, x: p.fft.ifftn(x, norm="ortho"),
    "last": lambda p, x: p.fft.fftn(x, axes=(-1, 1)),
    "first": lambda p, x: p.fft.fftn(x, axes=(0, 1)),
    "lengths": lambda p, x: p.fft.ifftn(x, s=(7, 3), axes=(1, 2), norm="forward"),
    "rfftn": lambda p, x: p.fft.rfftn(p.real(x)), "irfftn": lambda p, x: p.fft.irfftn(x),
    "middle": lambda p, x: p.fft.ifft(x, axis=1), "outer": lambda p, x: p.fft.fft(x[1:], axis=0),
    "half": lambda p, x: p.fft.rfftn(p.real(x), s=(5, 8), axes=(1, 2), norm="ortho"),
    "turned": lambda p, x: p.fft.rfftn(p.real(x), axes=(2, 1)),
    "back": lambda p, x: p.fft.irfftn(x, s=(5, 8), axes=(1, 2), norm="forward"),
}  # fmt: skip


@pytest.mark.parametrize("name", SEVERAL)
def test_transforms_along_several_axes(place, name, rng):
    z = numbers(rng, "complex64", 3, 6, 5)
    x = ruda.asarray(z, device=place)
    found = SEVERAL[name](ruda, x)
    wanted = SEVERAL[name](np, z.astype("c16")).astype(found.dtype.numpy)
    near(found.numpy(), wanted, wanted.dtype, 10)
    gradients = [
        ruda.grad(lambda v: ruda.sum(ruda.abs(SEVERAL[name](ruda, v)) ** 2))(v).numpy()
        for v in (x, ruda.asarray(z.astype("c16"), device=place))
    ]
    near(gradients[0], gradients[1].astype("c8"), "c8", 10)
    with ruda.config(vendor=False):
        own = ruda.grad(lambda v: ruda.sum(ruda.abs(SEVERAL[name](ruda, v)) ** 2))(x).numpy()
    near(gradients[0], own, "c8", 10)


def test_transforms_of_views_and_their_gradients(place, rng):
    z = rng.normal(size=(4, 6)).astype("f4")
    x = ruda.asarray(z, device=place)
    near(ruda.fft.rfft(x.mT[::2]).numpy(), np.fft.rfft(z.T[::2]), "c8", 4)
    near(ruda.fft.fft(x, axis=0).numpy(), np.fft.fft(z, axis=0), "c8", 4)
    weight = rng.normal(size=4).astype("f4")

    def loss(x, w):
        return ruda.sum(ruda.abs(ruda.fft.rfft(x)) ** 2 * w)

    ours = ruda.grad(loss)(x, ruda.asarray(weight, device=place)).numpy()
    half = np.fft.rfft(z) * weight
    np.testing.assert_allclose(
        ours, 2 * np.fft.ifft(half, 6, norm="forward").real, rtol=1e-4, atol=1e-3
    )


def test_explain_says_whose_it_is(place, rng):
    a = rng.normal(size=(2, 3, 3)).astype("f4")
    x = ruda.asarray(a @ a.swapaxes(1, 2) + np.eye(3), device=place, dtype="float32")
    made = {
        "cuSOLVER": [lambda: factors.inv(x), lambda: factors.solve(x, x), lambda: factors.det(x),
                     lambda: factors.cholesky(x), lambda: factors.svd(x).U * 2,
                     lambda: factors.eigh(x)[0], lambda: factors.qr(x[0]).R],
        "cuFFT": [lambda: ruda.fft.fft(x), lambda: ruda.fft.rfft(x), lambda: ruda.fft.irfft(x),
                  lambda: ruda.fft.ifftn(x) + 1],
    }  # fmt: skip
    for library, calls in made.items():
        for call in calls:
            assert str(ruda.explain(call())).endswith(f"by {library}")
            if place == "cuda":
                with ruda.config(vendor=False):
                    assert "by cu" not in str(ruda.explain(call()))


# ---- calls, choices, absence ---------------------------------------------------------------------


def test_stacks_are_factorised_together(fake, rng):
    """Small matrices by one call, large ones by one each."""
    a = rng.normal(size=(3, 4, 4)).astype("f4")
    factors.inv(ruda.asarray(a))
    assert [c for c in fake.calls if "get" in c] == ["cublasSgetrfBatched", "cublasSgetriBatched"]
    fake.calls.clear()
    factors.solve(ruda.asarray(a[:1]), ruda.asarray(a[:1]))
    assert [c for c in fake.calls if "get" in c] == [
        "cusolverDnSgetrf_bufferSize", "cusolverDnSgetrf", "cusolverDnSgetrs",
    ]  # fmt: skip


def test_handles_and_plans_are_kept(fake, rng):
    x = ruda.asarray(rng.normal(size=(3, 4, 4)).astype("f4"))
    for _ in range(3):
        factors.inv(x)
        ruda.fft.rfft(x)
    assert fake.calls.count("cublasCreate_v2") == fake.calls.count("cufftCreate") == 1
    for n in range(cufft.MOST + 5):
        ruda.fft.rfft(ruda.ones(n + 1))
    assert len(cufft._plans) == cufft.MOST
    assert fake.calls.count("cufftDestroy") == 6 and len(fake.plans) == cufft.MOST


def test_codes_of_the_vendor(fake):
    """Memory is given back and asked for once more; other answers are told in words."""
    x = ruda.ones((2, 2)) + ruda.eye(2)
    fake.answers["cusolverDnSpotrf"] = [2]
    factors.cholesky(x)
    assert fake.calls.count("empty") == 1
    fake.answers["cusolverDnSpotrf"] = [2, 2]
    with pytest.raises(OutOfMemoryError, match=r"cusolverDnSpotrf of cuSOLVER.*out of memory"):
        factors.cholesky(x)
    fake.answers["cusolverDnSpotrf"] = [7]
    with pytest.raises(DeviceError, match=r"answers 7, an internal error; RUDA_VENDOR=0"):
        factors.cholesky(x)
    fake.answers["cufftMakePlanMany64"] = [8]
    with pytest.raises(DeviceError, match=r"cufftMakePlanMany64 of cuFFT answers 8, an invalid si"):
        ruda.fft.fft(x)
    assert factors.cholesky(x).shape == (2, 2)  # the handle is free again


def test_absence_and_the_setting(monkeypatch):
    """Without the packages, on other devices and by request: our own kernels."""
    assert not cusolver.able("lu", "cpu") and not cufft.takes("wgpu:0")
    for cache in (vendor.function, vendor.has):
        cache.cache_clear()
    monkeypatch.setattr(vendor, "library", lambda name: None)
    try:
        assert not cusolver.able("lu", "cuda:0") and not cufft.takes("cuda:0")
        monkeypatch.setattr(vendor, "library", lambda name: Fake())
        for cache in (vendor.function, vendor.has):
            cache.cache_clear()
        assert cusolver.able("lu", "cuda:0") and cufft.takes("cuda:0")
        with ruda.config(vendor=False):
            assert not cusolver.able("lu", "cuda:0") and not cufft.takes("cuda:0")
        with ruda.capture():  # a replay would not call the vendor
            assert not cusolver.able("lu", "cuda:0") and not cufft.takes("cuda:0")
    finally:
        for cache in (vendor.function, vendor.has):
            cache.cache_clear()


def test_what_is_loaded_is_found_or_none(monkeypatch):
    pathfinder = pytest.importorskip("cuda.pathfinder")

    def absent(name):
        raise pathfinder.DynamicLibNotFoundError(name)

    monkeypatch.setattr(pathfinder, "load_nvidia_dynamic_lib", absent)
    assert vendor.library.__wrapped__("cusolver") is None


# ---- our own kernels, where the vendor's are taken otherwise -------------------------------------

OWN = [t for name, t in vars(test_factors).items() if name.startswith("test_")]


@pytest.mark.cuda
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("test", OWN, ids=lambda t: t.__name__)
def test_own_kernels(test, dtype, rng):
    wanted = inspect.signature(test).parameters
    if "dtype" not in wanted and dtype == "float64":
        pytest.skip("has one dtype")
    given = {"device": "cuda", "dtype": dtype, "rng": rng}
    with ruda.config(vendor=False):
        test(**{k: v for k, v in given.items() if k in wanted})


def test_the_routes(monkeypatch):
    """The vendor's are few and large matrices, complex ones, and what our own are slow in."""
    monkeypatch.setattr(cusolver, "able", lambda routine, device: device == "cpu")

    def taken(routine, *shape, dtype="float32"):
        return cusolver.takes(routine, ruda.zeros(shape, dtype=dtype))

    assert taken("lu", 256, 256) and not taken("lu", 1000, 32, 32) and not taken("lu", 4, 4)
    assert taken("lu", 4, 4, dtype="complex64") and not taken("lu", 0, 4, 4, dtype="complex64")
    assert taken("qr", 1024, 1024) and not taken("qr", 100, 64, 64)
    assert taken("svd", 1000, 32, 32) and not taken("svd", 8, 256, 256) and taken("svd", 9, 300)
    assert taken("eigen", 7, 5, 5) and not taken("eigen", 5, 5, dtype="float16")


@pytest.mark.cuda
def test_own_transforms(rng):
    z = numbers(rng, "complex64", 3, 60)
    with ruda.config(vendor=False):
        assert not cufft.takes("cuda:0")
        found = signal.transform(ruda.asarray(z, device="cuda"), -1)
    near(memory.to_host(found.buffer()), np.fft.fft(z), "complex64", 8)
