"""Functions of math, cmath, operator and NumPy in kernels against Python's own."""

import cmath
import math
import operator

import numpy as np
import pytest

import ruda

TINY = {np.float32: 2.0**-149, np.float64: 2.0**-1074}
FLOATS = [0.0, -0.0, 1.0, -1.0, 0.5, -2.5, 3.75, 1e10, -1e-10, math.inf, -math.inf, math.nan]


def run(device, kernel, *arrays):
    with ruda.config(device=device):
        kernel[1, 64](*arrays)


@ruda.jit
def parts(x, fraction, exponent, rest, whole):
    i = ruda.grid(1)
    if i < x.size:
        fraction[i], exponent[i] = math.frexp(x[i])
        rest[i], whole[i] = math.modf(x[i])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_frexp_and_modf(device, dtype):
    tiny = float(np.finfo(dtype).tiny)
    x = np.array(
        [*FLOATS, TINY[dtype], -3 * TINY[dtype], tiny, tiny / 2, np.finfo(dtype).max], dtype
    )
    fraction, rest, whole = (np.zeros_like(x) for _ in range(3))
    exponent = np.zeros(x.size, np.int32)
    run(device, parts, x, fraction, exponent, rest, whole)
    for k, value in enumerate(x.tolist()):
        assert_same(fraction[k], math.frexp(value)[0])
        if math.isfinite(value):
            assert exponent[k] == math.frexp(value)[1]
        assert_same(rest[k], math.modf(value)[0])
        assert_same(whole[k], math.modf(value)[1])


def assert_same(got, expected):
    """Equal, with the sign of zero."""
    assert str(float(got)) == str(expected)


@ruda.jit
def integers(x, out):
    i = ruda.grid(1)
    if i < x.size:
        out[i, 0] = math.floor(x[i])
        out[i, 1] = math.ceil(x[i])
        out[i, 2] = math.trunc(x[i])
        out[i, 3] = 7 // (math.floor(x[i]) * 2 + 1)  # an integer, not a float


def test_floor_ceil_trunc_are_integers(device):
    x = np.array([0.0, -0.5, 0.5, 1.0, -1.0, 2.75, -2.75, 123456.5], np.float32)
    out = np.zeros((x.size, 4), np.int64)
    run(device, integers, x, out)
    for k, v in enumerate(x.tolist()):
        floor = math.floor(v)
        assert out[k].tolist() == [floor, math.ceil(v), math.trunc(v), 7 // (floor * 2 + 1)]


INFIX = ["add", "sub", "mul", "floordiv", "mod", "and_", "or_", "xor", "lshift", "rshift"]
INFIX = [
    *INFIX,
    *(["iadd", "isub", "imul", "ifloordiv", "imod", "iand", "ior", "ixor", "ilshift", "irshift"]),
]
COMPARE = ["lt", "le", "gt", "ge", "eq", "ne"]


@pytest.mark.parametrize("name", [*INFIX, *COMPARE])
def test_operators_of_two_integers(device, name):
    function = getattr(operator, name)

    @ruda.jit
    def kernel(a, b, out):
        i = ruda.grid(1)
        if i < a.size:
            out[i] = function(a[i], b[i])

    a, b = np.int32([7, -7, 12, 0, 5]), np.int32([2, 3, 5, 1, 5])
    out = np.zeros(5, np.int32)
    run(device, kernel, a, b, out)
    assert out.tolist() == [
        int(function(x, y)) for x, y in zip(a.tolist(), b.tolist(), strict=True)
    ]


@ruda.jit
def float_operators(a, b, out):
    out[0] = operator.truediv(a[0], b[0])
    out[1] = operator.itruediv(a[0], b[0])
    out[2] = operator.pow(a[0], 2)
    out[3] = operator.ipow(a[0], 2)
    out[4] = operator.neg(a[0])
    out[5] = operator.pos(a[0])
    out[6] = operator.not_(a[0])


@ruda.jit
def integer_operators(a, b, out):
    out[0] = operator.invert(a[0])
    out[1] = np.logical_and(a[0], b[0])
    out[2] = np.logical_or(a[0], b[0])
    out[3] = np.logical_xor(a[0], b[0])
    out[4] = operator.add((a[0], b[0]), (3,))[2]


def test_other_operators(device):
    out = np.zeros(7, np.float32)
    run(device, float_operators, np.float32([3]), np.float32([4]), out)
    assert out.tolist() == [0.75, 0.75, 9, 9, -3, 3, 0]
    out = np.zeros(5, np.int32)
    run(device, integer_operators, np.int32([6]), np.int32([0]), out)
    assert out.tolist() == [~6, 0, 1, 1, 3]


COMPLEX = [
    "acos",
    "acosh",
    "asin",
    "asinh",
    "atan",
    "atanh",
    "cos",
    "cosh",
    "exp",
    "log",
    "log10",
    "sin",
    "sinh",
    "sqrt",
    "tan",
    "tanh",
]
POINTS = [
    *(complex(x, y) for x in (-2.5, -0.3, 0.2, 1.7) for y in (-1.3, -0.1, 0.4, 2.6)),
    *(complex(x, 0.0) for x in (-0.5, 0.25, 0.75)),
    *(complex(0.0, y) for y in (-0.5, 0.25)),
    *(30 + 1j, -30 - 2j),
]  # fmt: skip


@pytest.mark.parametrize("name", COMPLEX)
@pytest.mark.parametrize("dtype, tolerance", [(np.complex64, 3e-5), (np.complex128, 1e-12)])
def test_complex_functions(device, name, dtype, tolerance):
    function = getattr(cmath, name)

    @ruda.jit
    def kernel(z, out):
        i = ruda.grid(1)
        if i < z.size:
            out[i] = function(z[i])

    z = np.array(POINTS, dtype)
    out = np.zeros_like(z)
    run(device, kernel, z, out)
    expected = np.array([function(complex(v)) for v in z])
    np.testing.assert_allclose(out, expected, rtol=tolerance, atol=tolerance)


@ruda.jit
def polar_forms(z, out, flags):
    r, phi = cmath.polar(z[0])
    out[0] = cmath.rect(r, phi)
    out[1] = complex(cmath.phase(z[0]), r)
    out[2] = cmath.log(z[0], 2)
    out[3] = cmath.sqrt(z[0].real)  # a real number becomes complex
    flags[0] = cmath.isnan(z[0])
    flags[1] = cmath.isfinite(z[0])
    flags[2] = cmath.isinf(z[1])


def test_polar_forms(device):
    z = np.array([-3 + 4j, complex(math.inf, 0)], np.complex128)
    out, flags = np.zeros(4, np.complex128), np.zeros(3, np.int32)
    run(device, polar_forms, z, out, flags)
    expected = [z[0], complex(cmath.phase(z[0]), 5), cmath.log(z[0], 2), cmath.sqrt(-3)]
    np.testing.assert_allclose(out, expected, rtol=1e-13, atol=1e-14)
    assert flags.tolist() == [0, 1, 1]
