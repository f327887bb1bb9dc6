"""The array API standard: every name, and results against its strict reference namespace."""

import array_api_strict as strict
import numpy as np
import pytest

import ruda

SKIP = {
    "ArrayAPIStrictFlags", "Device", "ModuleType", "fft", "get_array_api_strict_flags", "linalg",
    "reset_array_api_strict_flags", "set_array_api_strict_flags",
}  # fmt: skip


@pytest.mark.parametrize("space", ["", "linalg", "fft"])
def test_every_name_is_there(space):
    theirs = getattr(strict, space) if space else strict
    ours = getattr(ruda, space) if space else ruda
    names = getattr(theirs, "__all__", dir(theirs))
    wanted = {n for n in names if not n.startswith("_") and n not in SKIP}
    assert {n for n in wanted if not hasattr(ours, n)} == set()


def both(rng, *shape, kind="float32"):
    a = rng.normal(size=shape)
    if kind.startswith("complex"):
        a = a + 1j * rng.normal(size=shape)
    a = a.astype(kind)
    return ruda.asarray(a), strict.asarray(a)


def symmetric(space, x):
    return x @ space.matrix_transpose(x)


LINALG = {
    "cholesky": lambda p, x: p.linalg.cholesky(symmetric(p, x) + p.eye(4) * 0.1),
    "det": lambda p, x: p.linalg.det(x), "inv": lambda p, x: p.linalg.inv(x),
    "diagonal": lambda p, x: p.linalg.diagonal(x, offset=1),
    "eigvalsh": lambda p, x: p.linalg.eigvalsh(symmetric(p, x)),
    "eigh": lambda p, x: p.linalg.eigh(symmetric(p, x)).eigenvalues,
    "matrix_norm": lambda p, x: p.linalg.matrix_norm(x, ord=2, keepdims=True),
    "matrix_power": lambda p, x: p.linalg.matrix_power(x, 3),
    "matrix_rank": lambda p, x: p.linalg.matrix_rank(x),
    "outer": lambda p, x: p.linalg.outer(x[0, :], x[1, :]),
    "cross": lambda p, x: p.linalg.cross(x[0, :3], x[1, :3]),
    "pinv": lambda p, x: p.linalg.pinv(x[:3, :]), "qr": lambda p, x: p.abs(p.linalg.qr(x).R),
    "slogdet": lambda p, x: p.linalg.slogdet(x).logabsdet,
    "solve": lambda p, x: p.linalg.solve(x, x[:, 0]),
    "solve matrix": lambda p, x: p.linalg.solve(x, x[:, :2]),
    "svdvals": lambda p, x: p.linalg.svdvals(x), "svd": lambda p, x: p.linalg.svd(x).S,
    "trace": lambda p, x: p.linalg.trace(x, offset=-1),
    "vector_norm": lambda p, x: p.linalg.vector_norm(x, axis=1, ord=1),
    "tensordot": lambda p, x: p.tensordot(x, x, axes=1), "vecdot": lambda p, x: p.vecdot(x, x),
}  # fmt: skip


@pytest.mark.parametrize("name", LINALG)
def test_linear_algebra(name, rng):
    ours, theirs = both(rng, 4, 4)
    found, wanted = LINALG[name](ruda, ours), LINALG[name](strict, theirs)
    np.testing.assert_allclose(found.numpy(), np.asarray(wanted), rtol=2e-3, atol=1e-4)


FFT = ["fft", "ifft", "fftn", "ifftn", "rfft", "irfft", "rfftn", "irfftn", "hfft", "ihfft",
       "fftshift", "ifftshift"]  # fmt: skip


@pytest.mark.parametrize("name", FFT)
def test_fourier_transforms(name, rng):
    real = name in ("rfft", "rfftn", "ihfft")
    ours, theirs = both(rng, 3, 6, kind="float32" if real else "complex64")
    found, wanted = getattr(ruda.fft, name)(ours), getattr(strict.fft, name)(theirs)
    assert found.dtype == np.asarray(wanted).dtype
    np.testing.assert_allclose(found.numpy(), np.asarray(wanted), rtol=1e-4, atol=1e-5)


def test_frequencies():
    assert ruda.fft.fftfreq(4, d=0.5).tolist() == [0, 0.5, -1, -0.5]
    assert ruda.fft.rfftfreq(4).dtype == ruda.float32


SPECIAL = [0.0, -0.0, 1.0, -1.0, 3.0, -3.0, 0.5, np.inf, -np.inf, np.nan]


@pytest.mark.parametrize(
    ("x", "y", "wanted"),
    [
        (np.inf, 3.0, np.inf), (np.inf, -3.0, -np.inf), (-np.inf, 3.0, -np.inf),
        (-np.inf, -3.0, np.inf), (3.0, np.inf, 0.0), (3.0, -np.inf, -1.0), (-3.0, np.inf, -1.0),
        (0.0, 3.0, 0.0), (np.inf, np.inf, np.nan), (0.0, 0.0, np.nan), (3.0, 0.0, np.inf),
        (np.nan, 1.0, np.nan),
    ],
)  # fmt: skip
@pytest.mark.parametrize("fusion", ["0", "verify"])
def test_floor_divide_has_the_standards_special_cases(x, y, wanted, fusion, device):
    with ruda.config(fusion=fusion):
        found = ruda.asarray(x, device=device) // ruda.asarray(y, device=device)
        np.testing.assert_array_equal(found.numpy(), np.float32(wanted))


@pytest.mark.parametrize("name", ["isnan", "isfinite", "signbit", "sign", "floor", "square"])
def test_special_numbers(name):
    ours, theirs = ruda.asarray(SPECIAL), strict.asarray(SPECIAL)
    with np.errstate(all="ignore"):
        wanted = np.asarray(getattr(strict, name)(theirs))
    np.testing.assert_array_equal(getattr(ruda, name)(ours).numpy(), wanted)


SEARCH = {
    "argmax": lambda p, x: p.argmax(x, axis=1), "argmin": lambda p, x: p.argmin(x),
    "sort": lambda p, x: p.sort(x, axis=0, descending=True),
    "argsort": lambda p, x: p.argsort(x, axis=1),
    "nonzero": lambda p, x: p.nonzero(x > 0)[1],
    "unique": lambda p, x: p.unique_values(p.floor(x)),
    "take": lambda p, x: p.take(x, p.asarray([1, 0]), axis=1),
    "cumulative_sum": lambda p, x: p.cumulative_sum(x, axis=1, include_initial=True),
    "diff": lambda p, x: p.diff(x, axis=0), "repeat": lambda p, x: p.repeat(x, 2, axis=0),
    "tile": lambda p, x: p.tile(x, (2, 1)), "clip": lambda p, x: p.clip(x, -0.5, None),
    "take_along_axis": lambda p, x: p.take_along_axis(x, p.argsort(x, axis=1), axis=1),
}  # fmt: skip


@pytest.mark.parametrize("name", SEARCH)
def test_searching_sorting_and_repeating(name, rng):
    ours, theirs = both(rng, 3, 4)
    found, wanted = SEARCH[name](ruda, ours), np.asarray(SEARCH[name](strict, theirs))
    assert found.shape == wanted.shape and found.dtype == wanted.dtype
    np.testing.assert_allclose(found.numpy(), wanted, rtol=1e-6)


def test_argsort_is_stable_both_ways():
    x = ruda.asarray([1, 0, 1, 0])
    assert ruda.argsort(x).tolist() == [1, 3, 0, 2]
    assert ruda.argsort(x, descending=True).tolist() == [0, 2, 1, 3]
