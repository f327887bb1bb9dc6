"""The array API standard: every name, and results against its strict reference namespace."""

import cmath
import math
import os

import array_api_strict as strict
import numpy as np
import pytest

import ruda

LONG = os.environ.get("RUDA_LONG_TESTS") == "1"
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


# ---- complex numbers -----------------------------------------------------------------------------

NUMBERS = [0.0, -0.0, 1.0, -1.0, 0.5, -2.5, 30.0, 1e-5, math.inf, -math.inf, math.nan]
COMPLEX = ["acos", "acosh", "asin", "asinh", "atan", "atanh", "cos", "cosh", "exp", "log", "log10",
           "sin", "sinh", "sqrt", "tan", "tanh"]  # fmt: skip
NAN = math.nan
# Where the standard is later than the edition of C that Python's functions follow.
LATER = {
    ("acosh", "0 nan"): (NAN, math.pi / 2), ("tanh", "0 nan"): (0.0, NAN),
    ("tan", "nan 0"): (NAN, 0.0),
}  # fmt: skip


def special(name, z):
    """What the standard says, or None where Python raises an error instead."""
    shown = " ".join("nan" if p != p else "0" if p == 0 else "x" for p in (z.real, z.imag))
    if (name, shown) in LATER:
        return complex(*LATER[name, shown])
    try:
        return getattr(cmath, name)(z)
    except (ValueError, OverflowError):
        return None


def agrees(found, wanted, z):
    """Equal to rounding; beside infinities and NaN the standard leaves some signs open."""
    finite = math.isfinite(z.real) and math.isfinite(z.imag)
    for p, q in ((found.real, wanted.real), (found.imag, wanted.imag)):
        if math.isnan(p) or math.isnan(q):
            if math.isnan(p) != math.isnan(q):
                return False
        elif finite:
            if p != q and abs(p - q) > 1e-5 * abs(wanted):
                return False
            if p == q == 0 and math.copysign(1, p) != math.copysign(1, q):
                return False
        elif abs(p) != abs(q) and abs(abs(p) - abs(q)) > 1e-5 * abs(q):
            return False
    return True


@pytest.mark.parametrize("name", COMPLEX)
def test_functions_of_complex_numbers_have_the_standards_special_cases(name, device):
    if device not in ("cpu", "sim") and not LONG and name not in ("acos", "exp", "log", "sqrt"):
        pytest.skip("seconds of a software device's compiler: in the long tests")
    z = np.array([complex(a, b) for a in NUMBERS for b in NUMBERS], "complex64")
    found = getattr(ruda, name)(ruda.asarray(z, device=device)).numpy()
    wrong = {
        x: (complex(f), special(name, x))
        for x, f in zip(z.tolist(), found, strict=True)
        if special(name, x) is not None and not agrees(complex(f), special(name, x), x)
    }
    assert not wrong


@pytest.mark.parametrize(
    ("z", "wanted"),
    [
        ((0.0, 0.0), (0.0, 0.0)), ((0.0, -0.0), (0.0, -0.0)), ((math.inf, 0.0), (math.inf, 0.0)),
        ((-math.inf, 1.0), (-1.0, 0.0)), ((math.inf, 1.0), (math.inf, math.inf)),
        ((math.inf, 2.0), (-math.inf, math.inf)), ((-math.inf, math.inf), (-1.0, 0.0)),
        ((math.inf, math.inf), (math.inf, NAN)), ((-math.inf, NAN), (-1.0, 0.0)),
        ((math.inf, NAN), (math.inf, NAN)), ((NAN, 0.0), (NAN, 0.0)), ((NAN, 1.0), (NAN, NAN)),
        ((1.0, math.inf), (NAN, NAN)), ((1.0, NAN), (NAN, NAN)),
    ],
)  # fmt: skip
@pytest.mark.parametrize("fusion", ["0", "1"])
def test_expm1_of_complex_numbers(z, wanted, fusion, device):
    if device not in ("cpu", "sim") and not LONG:
        pytest.skip("seconds of a software device's compiler: in the long tests")
    with ruda.config(fusion=fusion):
        found = ruda.expm1(ruda.asarray(np.array([complex(*z)]), device=device)).numpy()[0]
    np.testing.assert_array_equal([found.real, abs(found.imag)], [wanted[0], abs(wanted[1])])
    if wanted[1] == 0 and z[1] == z[1] and abs(z[0]) < 1:
        assert np.signbit(found.imag) == np.signbit(wanted[1])


def test_small_complex_numbers_keep_their_digits(device):
    """log, log1p and expm1 near their zeros, where the simple formulas lose all."""
    if device not in ("cpu", "sim") and not LONG:
        pytest.skip("seconds of a software device's compiler: in the long tests")
    z = np.array([1e-5 + 2e-5j, -3e-6 + 1e-7j, 1e-7j], "complex64")
    wide = z.astype("complex128")
    for name, given, wanted in (
        ("log1p", z, np.log1p(wide)), ("expm1", z, np.expm1(wide)),
        ("log", (1j * np.ones(3) + z).astype("c8"), None),
    ):  # fmt: skip
        wanted = np.log(given.astype("c16")) if wanted is None else wanted
        found = getattr(ruda, name)(ruda.asarray(given, device=device)).numpy()
        assert np.all(np.abs(found - wanted) <= 1e-6 * np.abs(wanted))


@pytest.mark.parametrize("fusion", ["0", "verify"])
def test_complex_numbers_hold_where_a_part_is_not_zero(fusion, device):
    a = np.array([0, 1j, 1, -0.0, complex(0, NAN), complex(-0.0, -0.0), -2j], "c8")
    with ruda.config(fusion=fusion):
        z = ruda.asarray(a, device=device)
        found = ruda.astype(z, ruda.bool), z.astype("bool"), ruda.astype(-z, "bool")
        assert all(f.tolist() == a.astype(bool).tolist() for f in found)
        assert ruda.nonzero(z)[0].tolist() == [1, 2, 4, 6] and int(ruda.count_nonzero(z)) == 4
        assert [bool(v) for v in z] == a.astype(bool).tolist()
        assert bool(ruda.any(z)) and not bool(ruda.all(z)) and not bool(ruda.any(z[:1]))
    with pytest.raises(ruda.errors.DTypeError, match=r"take `ruda.real`"):
        ruda.astype(z, ruda.float32)


@pytest.mark.parametrize("z", [0, -3, 3 + 4j, 1e-30j, complex(0, -0.0)])
def test_the_sign_of_a_complex_number(z, device):
    found = ruda.sign(ruda.asarray(np.array([z], "c8"), device=device)).numpy()[0]
    np.testing.assert_allclose(found, z / abs(z) if z else 0, rtol=1e-6)
