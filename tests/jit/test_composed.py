"""Functions of math and NumPy in kernels that take several operations; every ufunc of NumPy."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

import ruda
from ruda.errors import KernelError, KernelTypeError, KernelValueError, UnsupportedError
from tests.jit.source import define


def several(expressions, *columns, out, device, **names):
    """Each expression of a0, a1, ... in one kernel, the arrays' elements; a row each."""
    lines = [f"        out[{k}, i] = {e}\n" for k, e in enumerate(expressions)]
    parameters = [f"x{k}" for k in range(len(columns))]
    kernel = define(
        f"@ruda.jit\ndef kernel(out, {', '.join(parameters)}):\n"
        "    i = ruda.grid(1)\n"
        "    if i < out.shape[1]:\n"
        + "".join(f"        a{k} = x{k}[i]\n" for k in range(len(columns)))
        + "".join(lines),
        math=math,
        **names,
    )
    size = len(columns[0])
    result = np.zeros((len(expressions), size), out)
    with ruda.config(device=device):
        kernel[-(-size // 64), 64](result, *columns)
    return result


def of(expression, *columns, out, device, **names):
    return several([expression], *columns, out=out, device=device, **names)[0]


# ---- whole numbers -----------------------------------------------------------------------------

INTEGERS = [0, 1, 2, -1, 3, -6, 12, 35, -49, 127, 360, -128]
WIDE = {
    np.int32: [2**31 - 1, -(2**31) + 1, 2**30, 46340**2, 46341**2 - 1],
    np.int64: [2**63 - 1, -(2**63) + 1, 2**62, 3037000499**2, 3037000499**2 - 1, 6 * 10**18],
    np.uint32: [2**32 - 1, 2**31, 65535**2, 65535**2 - 1],
    np.uint64: [2**64 - 1, 2**63, 4294967295**2, 4294967295**2 - 1],
    np.int8: [127, -127],
    np.uint8: [255],
}


def numbers_of(dtype):
    limits = np.iinfo(dtype)
    return [v for v in [*INTEGERS, *WIDE[dtype]] if limits.min <= v <= limits.max]


@pytest.mark.parametrize("dtype", WIDE, ids=lambda d: d.__name__)
def test_gcd_and_lcm(device, dtype):
    x, y = np.array(list(itertools.product(numbers_of(dtype), repeat=2)), dtype).T.copy()
    pairs = list(zip(x.tolist(), y.tolist(), strict=True))
    bits = 64 if np.dtype(dtype).itemsize == 8 else 32
    wide = dtype if bits == 64 else np.int64
    texts = ["math.gcd(a0, a1)", "np.gcd(a0, a1)", "math.lcm(a0, a1)"]
    one, other, multiple = several(texts, x, y, out=wide, device=device).tolist()
    assert one == other == [math.gcd(*p) for p in pairs]
    for p, got in zip(pairs, multiple, strict=True):
        if math.lcm(*p) < 2 ** (bits - 1):  # else it wraps around
            assert got == math.lcm(*p)


@pytest.mark.parametrize("dtype", WIDE, ids=lambda d: d.__name__)
def test_the_integer_root_is_exact(device, dtype):
    highest = np.iinfo(dtype).max
    rng = np.random.default_rng(5)
    squares = [r * r + d for r in map(int, rng.integers(1, math.isqrt(highest), 60))
               for d in (-1, 0, 1)]  # fmt: skip
    x = np.array([v for v in [*numbers_of(dtype), *squares] if v <= highest], dtype)
    expected = [math.isqrt(v) if v > 0 else 0 for v in x.tolist()]
    assert of("math.isqrt(a0)", x, out=dtype, device=device).tolist() == expected


def test_products_of_whole_numbers(device):
    n = np.array([0, 1, 5, 12, 20, 62, 66, 5, 3, 20], np.int64)
    k = np.array([0, 1, 2, 7, 21, 31, 33, -1, 3, 20], np.int64)
    texts = ["math.comb(a0, a1)", "math.perm(a0, a1)", "math.factorial(a0)", "math.perm(a0)"]
    chosen, ordered, facts, again = several(texts, n, k, out=np.int64, device=device).tolist()
    for j, (m, r) in enumerate(zip(n.tolist(), k.tolist(), strict=True)):
        assert chosen[j] == (math.comb(m, r) if r >= 0 else 0)
        if m <= 20:  # else they wrap around
            assert ordered[j] == (math.perm(m, r) if r >= 0 else 0)
            assert facts[j] == again[j] == math.factorial(m)


def test_whole_numbers_of_indices_and_literals(device):
    x = np.arange(40, dtype=np.int32)
    texts = ["math.gcd(i, 12)", "math.isqrt(i) + math.isqrt(99)", "math.gcd(a0, 18, i + 6)",
             "np.sign(i - 2)", "np.square(i - 2)", "np.clip(i, 1, 3)"]  # fmt: skip
    found = several(texts, x, out=np.int32, device=device)
    for text, got in zip(texts, found, strict=True):
        assert got.tolist() == [int(eval(text, {"a0": v, "i": v, "math": math, "np": np}))
                                for v in range(40)]  # fmt: skip
    literals = ["math.gcd()", "math.gcd(-4)", "math.gcd(12, 18, 27)", "math.lcm(4, 6, 10)",
                "math.lcm()", "math.comb(60, 30)", "math.factorial(20)"]  # fmt: skip
    found = several(literals, x, out=np.int64, device=device)[:, 0].tolist()
    assert found == [eval(text) for text in literals]


# ---- floats ------------------------------------------------------------------------------------

FLOATS = [0.0, -0.0, 1.0, -1.0, 0.5, -2.5, 3.75, 1e10, -1e-10, math.inf, -math.inf, math.nan, 2.0]


FUNCTIONS = [
    ("np.heaviside(a0, a1)", np.heaviside, 0),
    ("np.heaviside(a0, 0.5)", lambda x, y: np.heaviside(x, 0.5), 0),
    ("np.logaddexp(a0, a1)", np.logaddexp, 4),
    ("np.logaddexp2(a0, a1)", np.logaddexp2, 4),
    ("np.sign(a0)", lambda x, y: np.sign(x), 0),
    ("np.square(a0)", lambda x, y: np.square(x), 0),
    ("np.positive(a0)", lambda x, y: x, 0),
    ("np.reciprocal(a0)", lambda x, y: np.reciprocal(x), 1),
    ("np.where(a0 > a1, a0, a1)", lambda x, y: np.where(x > y, x, y), 0),
    ("np.where(a0, a1, 2.0)", lambda x, y: np.where(x != 0, y, 2.0), 0),
    ("np.clip(a0, -1.5, a1)", lambda x, y: np.minimum(np.maximum(x, -1.5), y), 0),
    ("np.clip(a0, None, 1.5)", lambda x, y: np.minimum(x, 1.5), 0),
    ("np.clip(a0, a_min=1, a_max=3)", lambda x, y: np.clip(x, 1, 3), 0),
    ("np.clip(a0, min=-1)", lambda x, y: np.maximum(x, -1), 0),
    ("np.divmod(a0, a1)[1]", np.remainder, 0),
    ("np.round(a0)", lambda x, y: np.round(x), 0),
    ("math.fabs(a0)", lambda x, y: np.fabs(x), 0),
    ("math.hypot(a0)", lambda x, y: np.abs(x), 0),
    ("math.dist((a0, 0.0), (a1, 0.0))", lambda x, y: np.abs(x - y), 2),
    ("math.isclose(a0, a1)", np.vectorize(math.isclose), 0),
    ("math.isclose(a0, a0 * (1 + 1e-3), rel_tol=2e-3)", lambda x, y: ~np.isnan(x), 0),
    ("math.isclose(a0, a1, abs_tol=1.25)",
     np.vectorize(lambda x, y: math.isclose(x, y, abs_tol=1.25)), 0),
    ("np.isclose(a0, a1)", np.isclose, 0),
    ("np.isclose(a0, a1, atol=1.25, equal_nan=True)",
     lambda x, y: np.isclose(x, y, atol=1.25, equal_nan=True), 0),
]  # fmt: skip


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_functions_of_floats(device, dtype):
    x, y = np.array(list(itertools.product(FLOATS, repeat=2)), dtype).T.copy()
    found = several([row[0] for row in FUNCTIONS], x, y, out=np.float64, device=device)
    for (text, reference, ulps), got in zip(FUNCTIONS, found, strict=True):
        with np.errstate(all="ignore"):
            exact = np.asarray(reference(x, y), np.float64)
            wide = np.asarray(reference(np.float64(x), np.float64(y)), np.float64).astype(dtype)
        if ulps:
            eps = np.finfo(dtype).eps * ulps
            np.testing.assert_allclose(got, wide, rtol=eps, atol=eps, err_msg=text)
            continue
        np.testing.assert_array_equal(got, exact, text)
        zero = (got == 0) & ("clip" not in text)  # of 0.0 and -0.0 either is the lesser one
        np.testing.assert_array_equal(np.signbit(got[zero]), np.signbit(exact[zero]), text)


def test_distances(device):
    x = np.array([3.0, -1e30, 0.0, 1e-30], np.float32)
    y = np.array([4.0, 1e30, 0.0, 1e-30], np.float32)
    z = np.array([12.0, 1e30, 0.0, 1e-30], np.float32)
    expected = [math.hypot(*p) for p in zip(x.tolist(), y.tolist(), z.tolist(), strict=True)]
    found = of("math.hypot(a0, a1, a2)", x, y, z, out=np.float32, device=device)
    np.testing.assert_allclose(found, expected, rtol=3e-7)
    found = of("math.dist((a0, a1, a2), (0, 0, 0))", x, y, z, out=np.float32, device=device)
    np.testing.assert_allclose(found, expected, rtol=3e-7)
    assert of("math.hypot()", x, out=np.float32, device=device)[0] == 0
    # of literals, as Python: no float32 on the way
    assert of("math.hypot(1.1, 2.2)", x, out=np.float64, device=device)[0] == math.hypot(1.1, 2.2)
    assert of("math.fabs(-1.1)", x, out=np.float64, device=device)[0] == 1.1


def test_powers_are_floats_where_pythons_are(device):
    n = np.array([2, -3, 7, 0], np.int32)
    assert of("math.pow(a0, -1)", n, out=np.float32, device=device).tolist()[0] == 0.5
    assert of("np.float_power(a0, -2)", n, out=np.float32, device=device).tolist()[0] == 0.25
    np.testing.assert_allclose(
        of("math.pow(a0, 3)", n, out=np.float32, device=device), [8, -27, 343, 0], rtol=1e-6
    )
    assert of("math.fabs(a0) / 2", np.array([-(2**31)], np.int32), out=np.float64,
              device=device).tolist() == [2.0**30]  # fmt: skip


def test_integers_in_functions_of_numpy(device):
    x = np.array([-128, -5, 0, 7, 127], np.int8)
    assert of("np.sign(a0)", x, out=np.int32, device=device).tolist() == [-1, -1, 0, 1, 1]
    assert of("np.sign(a0)", x.view(np.uint8), out=np.int32, device=device).tolist() == [
        1, 1, 0, 1, 1,
    ]  # fmt: skip
    assert of("np.clip(a0, -6, 6)", x, out=np.int8, device=device).tolist() == [-6, -5, 0, 6, 6]
    assert of("np.round(a0)", x, out=np.int8, device=device).tolist() == x.tolist()
    y = np.array([1.25, -0.035], np.float64)
    np.testing.assert_allclose(
        of("np.round(a0, 1)", y, out=np.float64, device=device), [1.2, -0.0], atol=1e-12
    )


# ---- tuples ------------------------------------------------------------------------------------


def test_sums_and_products_of_tuples(device):
    x, y = np.array([2.0, 3.0], np.float32), np.array([5.0, -7.0], np.float32)
    assert of("sum((a0, a1, 1))", x, y, out=np.float32, device=device).tolist() == [8, -3]
    assert of("sum((a0, a1), 10)", x, y, out=np.float32, device=device).tolist() == [17, 6]
    assert of("math.prod((a0, a1))", x, y, out=np.float32, device=device).tolist() == [10, -21]
    found = of("math.prod((a0, a1), start=2)", x, y, out=np.float32, device=device)
    assert found.tolist() == [20, -42]
    assert of("sum(()) + math.prod(())", x, out=np.float32, device=device).tolist() == [1, 1]
    found = of("sum(whole[:2]) + math.prod(whole[1:])", x, out=np.float32, device=device,
               whole=np.float32([4, 5, 6]))  # fmt: skip
    assert found.tolist() == [39, 39]
    if hasattr(math, "sumprod"):
        found = of("math.sumprod((a0, a1), (2, 3))", x, y, out=np.float32, device=device)
        assert found.tolist() == [19, -15]


# ---- what is refused ---------------------------------------------------------------------------

REFUSED = [
    ("math.gcd(a0, 2)", KernelTypeError, "`math.gcd` takes integers, not float32"),
    ("math.isqrt(a0)", KernelTypeError, "`math.isqrt` takes integers, not float32"),
    ("math.factorial(-1)", KernelValueError, "factorial"),
    ("math.isclose(i, 2)", KernelTypeError, "takes floats"),
    ("math.isclose(a0)", KernelTypeError, "needs `b`"),
    ("math.hypot(1j, a0)", KernelTypeError, "takes real numbers"),
    ("math.dist(a0, a0)", KernelTypeError, "takes tuples"),
    ("math.dist((a0, a0), (a0,))", KernelValueError, "of one length"),
    ("math.prod(a0)", KernelTypeError, "takes tuples"),
    ("sum(a0)", KernelTypeError, "takes tuples"),
    ("np.reciprocal(i)", KernelTypeError, "takes floats"),
    ("np.where(a0 > 0)", UnsupportedError, "finds indices"),
    ("np.sign((a0, a0))", KernelTypeError, "`np.sign` takes numbers"),
    ("np.bitwise_count(a0)", KernelTypeError, "`np.bitwise_count` takes integers, not float32"),
    ("np.left_shift(a0, 1)", KernelTypeError, "`np.left_shift` takes integers, not float32"),
    ("math.fsum((a0, a0))", UnsupportedError, "`math.fsum` is not in the kernel language"),
    ("math.ulp(a0)", UnsupportedError, "`math.ulp` is not in the kernel language"),
]  # fmt: skip


@pytest.mark.parametrize("expression, kind, message", REFUSED, ids=[r[0] for r in REFUSED])
def test_refusals_name_what_was_written(expression, kind, message):
    with pytest.raises(kind, match=message.replace("(", r"\(")) as error:
        of(expression, np.float32([1]), out=np.float32, device="sim")
    assert error.value.text is not None  # the line


# ---- NumPy's ufuncs, one and all ---------------------------------------------------------------

UFUNCS = sorted(n for n in dir(np) if isinstance(getattr(np, n), np.ufunc))
NOT_SCALAR = {"matmul", "matvec", "vecmat", "vecdot", "isnat", "spacing"}
CLOSE = 1e-6  # float32 functions of integers: the default float


def called(name, sample):
    """A ufunc of NumPy in a kernel, on one thread of the interpreter; a list of its results."""
    ufunc = getattr(np, name)
    text = f"np.{name}({', '.join(['a0', 'a1'][: ufunc.nin])})"
    columns = [np.array([v], sample) for v in ([0.75, 0.25] if sample is np.float64 else [6, 4])]
    if name in ("arccosh", "acosh"):
        columns[0] = columns[0] + 1
    if name in ("arctanh", "atanh") and sample is np.int32:
        columns[0] = columns[0] * 0
    given = columns[: ufunc.nin]
    wide = [c.astype(np.float64) if ufunc.nout == 1 and name in LIKE_FLOAT else c for c in given]
    with np.errstate(all="ignore"):
        expected = ufunc(*wide)
    many = expected if isinstance(expected, tuple) else (expected,)
    parts = [f"{text}[{k}]" for k in range(ufunc.nout)] if ufunc.nout > 1 else [text]
    found = [of(p, *given, out=np.float64, device="sim")[0] for p in parts]
    return found, [float(np.real(m[0])) for m in many]


LIKE_FLOAT = ("float_power",)


@pytest.mark.parametrize("name", sorted(set(UFUNCS) - NOT_SCALAR))
def test_every_scalar_ufunc_is_in_the_language(name):
    """Of floats or of integers as NumPy has it; else its error says what it takes."""
    worked = 0
    for sample in (np.float64, np.int32):
        ufunc = getattr(np, name)
        if name == "ldexp" and sample is np.float64:  # takes an integer second
            continue
        columns = [np.ones(1, sample)] * ufunc.nin
        try:
            with np.errstate(all="ignore"):
                ufunc(*columns)
        except TypeError:
            with pytest.raises(KernelTypeError, match=rf"`np\.{name}` takes (integers|floats)"):
                called_for_error(name, sample)
            continue
        if name == "reciprocal" and sample is np.int32:  # 0 in NumPy: refused
            continue
        found, expected = called(name, sample)
        for got, want in zip(found, expected, strict=True):
            # of integers: in float32, where NumPy takes float64
            np.testing.assert_allclose(got, want, rtol=CLOSE if sample is np.int32 else 1e-14)
        worked += 1
    assert worked


def called_for_error(name, sample):
    nin = getattr(np, name).nin
    given = [np.ones(1, sample)] * nin
    text = f"np.{name}({', '.join(['a0', 'a1'][:nin])})"
    return of(text, *given, out=np.float64, device="sim")


@pytest.mark.parametrize("name", sorted(NOT_SCALAR & set(UFUNCS)))
def test_ufuncs_that_are_not_scalar_say_what_to_write(name):
    with pytest.raises(UnsupportedError, match=rf"`np\.{name}` is not in the kernel lang") as error:
        called_for_error(name, np.float64)
    assert any(n.startswith("hint: ") and "scalar functions" not in n
               for n in error.value.__notes__)  # fmt: skip


def test_functions_of_math_work_or_are_refused_by_name():
    """Whatever Python adds to math: no error but ours."""
    for name in (n for n in dir(math) if n[0] != "_" and callable(getattr(math, n))):
        arguments = [["a0"], ["a0", "a0"], ["1"], ["6", "4"]]
        errors = []
        for given in arguments:
            try:
                of(f"math.{name}({', '.join(given)})", np.float64([0.5]), out=np.float64,
                   device="sim")  # fmt: skip
                break
            except KernelError as error:
                errors.append(error)
        else:
            assert any(name in str(e) or "got (float" in str(e) for e in errors), name


def test_the_sources_are_plain_functions():
    """CPython runs them as they stand: a third opinion."""
    from ruda.jit.calls import composed

    for n, k in [(0, 0), (5, 2), (62, 31), (7, 9), (7, -1)]:
        assert composed.comb(n, k) == (math.comb(n, k) if k >= 0 else 0)
    assert [composed.isqrt(v) for v in range(-2, 200)] == [
        math.isqrt(max(v, 0)) for v in range(-2, 200)
    ]
    assert composed.gcd(-12, 18) == 6 and composed.lcm(-4, 6) == 12
