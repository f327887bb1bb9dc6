"""Functions of numbers: accuracy in ulp over wide ranges, and their special values."""

import math

import numpy as np

import ruda
from tests.jit.case import Case, Near, Out
from tests.jit.data import floats, integers, uniform


def unary(function):
    @ruda.jit
    def kernel(x, out):
        i = ruda.grid(1)
        if i < out.size:
            out[i] = function(x[i])

    return kernel


def binary(function):
    @ruda.jit
    def kernel(x, y, out):
        i = ruda.grid(1)
        if i < out.size:
            out[i] = function(x[i], y[i])

    return kernel


def in_double(function):
    return lambda *x: function(*(np.float64(v) for v in x))


def from_math(name):
    def safe(x):
        try:
            return getattr(math, name)(x)
        except OverflowError:
            return math.inf
        except ValueError:  # a pole, or no value at all
            if name == "gamma" and x == 0:
                return math.copysign(math.inf, x)
            return math.inf if name == "lgamma" else math.nan

    return lambda x: np.array([safe(v) for v in x.tolist()])


# name, function in the kernel, NumPy's, ulps allowed, range of ordinary arguments
UNARY = [
    ("sqrt", math.sqrt, np.sqrt, 0, (0, 1e10)),
    ("exp", math.exp, np.exp, 2, (-80, 80)),
    ("expm1", math.expm1, np.expm1, 2, (-5, 20)),
    ("log", math.log, np.log, 2, (1e-30, 1e30)),
    ("log2", math.log2, np.log2, 2, (1e-30, 1e30)),
    ("log10", math.log10, np.log10, 2, (1e-30, 1e30)),
    ("log1p", math.log1p, np.log1p, 2, (-0.9, 1e10)),
    ("sin", math.sin, np.sin, 2, (-100, 100)),
    ("cos", math.cos, np.cos, 2, (-100, 100)),
    ("tan", math.tan, np.tan, 3, (-100, 100)),
    ("asin", math.asin, np.arcsin, 3, (-1, 1)),
    ("acos", math.acos, np.arccos, 3, (-1, 1)),
    ("atan", math.atan, np.arctan, 3, (-50, 50)),
    ("sinh", math.sinh, np.sinh, 3, (-50, 50)),
    ("cosh", math.cosh, np.cosh, 3, (-50, 50)),
    ("tanh", math.tanh, np.tanh, 3, (-10, 10)),
    ("asinh", math.asinh, np.arcsinh, 3, (-1e5, 1e5)),
    ("acosh", math.acosh, np.arccosh, 3, (1, 1e5)),
    ("atanh", math.atanh, np.arctanh, 3, (-0.99, 0.99)),
    ("erf", math.erf, from_math("erf"), 3, (-4, 4)),
    ("erfc", math.erfc, from_math("erfc"), 5, (-4, 8)),
    ("gamma", math.gamma, from_math("gamma"), 8, (0.5, 30)),
    ("lgamma", math.lgamma, from_math("lgamma"), 8, (3, 1e4)),
    ("fabs", math.fabs, np.fabs, 0, (-9, 9)),
    ("numpy_exp2", np.exp2, np.exp2, 2, (-80, 80)),
    ("numpy_cbrt", np.cbrt, np.cbrt, 3, (-1e5, 1e5)),
    ("numpy_sqrt", np.sqrt, np.sqrt, 0, (0, 1e10)),
    ("numpy_floor", np.floor, np.floor, 0, (-99, 99)),
    ("numpy_ceil", np.ceil, np.ceil, 0, (-99, 99)),
    ("numpy_trunc", np.trunc, np.trunc, 0, (-99, 99)),
    ("numpy_rint", np.rint, np.rint, 0, (-99, 99)),
    ("ruda_rsqrt", ruda.rsqrt, lambda x: 1 / np.sqrt(x), 2, (1e-10, 1e10)),
    ("ruda_cbrt", ruda.cbrt, np.cbrt, 3, (-1e5, 1e5)),
    ("ruda_sigmoid", ruda.sigmoid, lambda x: 1 / (1 + np.exp(-x)), 4, (-80, 80)),
]


def unary_case(name, function, meaning, ulps, span, dtype):
    def arguments(rng, n):
        return uniform(rng, *span, n, dtype=dtype), Out(n, dtype)

    return Case(
        unary(function),
        arguments,
        in_double(meaning),
        # In double NumPy is no better than the kernel: the errors of both count.
        ulps=ulps if dtype == np.float32 or ulps == 0 else 2 * ulps,
        sizes=(7, 1000),
        name=f"{name}_{np.dtype(dtype)}",
    )


def special_case(name, function, meaning):
    specials = np.float32(
        [0.0, -0.0, 1, -1, np.inf, -np.inf, np.nan, 1e-40, -1e-40, 3e38, -3e38, 88.8, -104, 1e9]
    )

    def expected(x):
        return meaning(np.float64(x))

    return Case(
        unary(function),
        lambda rng, n: (specials, Out(specials.size)),
        expected,
        ulps=4,
        sizes=(1,),
        name=f"{name}_at_special_values",
    )


# name, function, NumPy's, ulps, ranges of both arguments
BINARY = [
    ("atan2", math.atan2, np.arctan2, 3, (-9, 9), (-9, 9)),
    ("hypot", math.hypot, np.hypot, 3, (-1e5, 1e5), (-1e5, 1e5)),
    ("fmod", math.fmod, np.fmod, 0, (-99, 99), (0.5, 9)),
    ("copysign", math.copysign, np.copysign, 0, (-9, 9), (-9, 9)),
    ("pow", math.pow, np.power, 4, (0.01, 30), (-8, 8)),
    ("numpy_minimum", np.minimum, np.minimum, 0, (-9, 9), (-9, 9)),
    ("numpy_maximum", np.maximum, np.maximum, 0, (-9, 9), (-9, 9)),
]


def binary_case(name, function, meaning, ulps, first, second):
    return Case(
        binary(function),
        lambda rng, n: (uniform(rng, *first, n), uniform(rng, *second, n), Out(n)),
        in_double(meaning) if ulps else meaning,
        ulps=ulps,
        sizes=(7, 1000),
        name=name,
    )


@ruda.jit
def classification(x, nan, infinite, finite):
    i = ruda.grid(1)
    if i < x.size:
        nan[i] = math.isnan(x[i])
        infinite[i] = math.isinf(x[i])
        finite[i] = math.isfinite(x[i])


@ruda.jit
def functions_of_integers_give_float32(k, out):
    i = ruda.grid(1)
    if i < out.size:
        out[i] = math.sqrt(k[i])


@ruda.jit
def half_functions(x, out):
    i = ruda.grid(1)
    if i < out.size:
        out[i] = math.sqrt(x[i])


@ruda.jit
def bit_functions(x, ones, leading, lowest, turned):
    i = ruda.grid(1)
    if i < x.size:
        ones[i] = ruda.popc(x[i])
        leading[i] = ruda.clz(x[i])
        lowest[i] = ruda.ffs(x[i])
        turned[i] = ruda.brev(x[i])


def bits(x):
    width = 8 * x.dtype.itemsize
    values = [int(v) & (2**width - 1) for v in x]
    turned = np.array([int(f"{v:0{width}b}"[::-1], 2) for v in values], f"u{width // 8}")
    return (
        [v.bit_count() for v in values],
        [width - v.bit_length() for v in values],
        [(v & -v).bit_length() for v in values],
        turned.view(x.dtype),
    )


def bit_case(dtype):
    return Case(
        bit_functions,
        lambda rng, n: (
            integers(rng, n, dtype=dtype),
            *(Out(n, np.int32),) * 3,
            Out(n, dtype),
        ),
        bits,
        name=f"bit_functions_{np.dtype(dtype)}",
    )


@ruda.jit
def select_without_branch(x, out):
    i = ruda.grid(1)
    if i < out.size:
        out[i] = ruda.selp(x[i] > 0, x[i], 0.5)


@ruda.jit
def high_half_of_products(a, b, out):
    i = ruda.grid(1)
    if i < out.size:
        out[i] = ruda.mulhi(a[i], b[i])


def high_half(a, b):
    bits_ = 8 * a.dtype.itemsize
    return [(int(p) * int(q)) >> bits_ for p, q in zip(a, b, strict=True)]


@ruda.jit
def constants_of_math(out):
    i = ruda.grid(1)
    if i == 0:
        out[0] = math.pi
        out[1] = math.e
        out[2] = math.inf
        out[3] = -math.inf
        out[4] = math.nan
        out[5] = np.pi
        out[6] = 2 * math.pi


@ruda.jit
def functions_by_constants(x, out):
    """A compiler drops arguments that are always the same number; every form must agree on it."""
    i = ruda.grid(1)
    if i < x.size:
        out[0, i] = math.fmod(x[i], 2.5)
        out[1, i] = math.fmod(7.5, x[i])
        out[2, i] = math.remainder(x[i], 3.0)
        out[3, i] = math.remainder(100.0, x[i])
        out[4, i] = x[i] % 3.0
        out[5, i] = math.atan2(x[i], 1.0)
        out[6, i] = math.hypot(3.0, x[i])
        out[7, i] = math.pow(x[i], 1.5)
        out[8, i] = math.pow(2.0, x[i])
        out[9, i] = math.copysign(x[i], -0.0)
        out[10, i] = math.sin(1.5) + math.cos(0.25) + math.tan(3.0)
        out[11, i] = math.pow(-0.0, x[i])
        out[12, i] = math.pow(x[i], -0.0)
        out[13, i] = ruda.fma(x[i] * 1e38 * 1e38, -0.0, x[i])


def by_constants(x):
    wide = x.dtype == np.float64  # where the product is finite
    x = np.float64(x)
    nearest = np.vectorize(math.remainder)
    return np.stack([
        np.fmod(x, 2.5), np.fmod(7.5, x), nearest(x, 3.0), nearest(100.0, x), x % 3.0,
        np.arctan2(x, 1.0), np.hypot(3.0, x), x**1.5, 2.0**x, -x,
        np.full(x.shape, math.sin(1.5) + math.cos(0.25) + math.tan(3.0)),
        0 * x, x**0, np.where(wide, x, math.nan),
    ])  # fmt: skip


@ruda.jit
def lesser_of_integers(a, b, out):
    i = ruda.grid(1)
    if i < a.size:
        out[i] = ruda.fmin(ruda.fmax(a[i], 3), b[i])


@ruda.jit
def gaussian(x, mean, width, out):
    i = ruda.grid(1)
    if i < out.size:
        z = (x[i] - mean) / width
        out[i] = math.exp(-0.5 * z * z) / (width * math.sqrt(2 * math.pi))


def near_gaussian(x, mean, width):
    # The kernel rounds mean and width to float32, and z too; exp multiplies that error by z * z.
    z = (np.float64(x) - np.float32(mean)) / np.float32(width)
    value = np.exp(-0.5 * z * z) / (np.float32(width) * np.sqrt(2 * np.pi))
    return Near(value, value * (1 + z * z))


CASES = [
    *(unary_case(*row, dtype=d) for row in UNARY for d in (np.float32, np.float64)),
    *(special_case(name, f, meaning) for name, f, meaning, *_ in UNARY),
    *(binary_case(*row) for row in BINARY),
    Case(
        classification,
        lambda rng, n: (floats(rng, n), *(Out(n, bool),) * 3),
        lambda x: (np.isnan(x), np.isinf(x), np.isfinite(x)),
    ),
    Case(
        functions_of_integers_give_float32,
        lambda rng, n: (integers(rng, n, least=0, most=2**24), Out(n, np.float64)),
        lambda k: np.sqrt(k.astype(np.float32)).astype(np.float64),
    ),
    Case(
        half_functions,
        lambda rng, n: (np.abs(floats(rng, n, dtype=np.float16)), Out(n, np.float16)),
        lambda x: np.sqrt(np.float32(x)),
    ),
    *(bit_case(d) for d in (np.int32, np.uint32, np.int64, np.uint64)),
    Case(
        select_without_branch,
        lambda rng, n: (floats(rng, n), Out(n)),
        lambda x: np.where(x > 0, x, np.float32(0.5)),
    ),
    *(
        Case(
            high_half_of_products,
            lambda rng, n, d=d: (integers(rng, n, dtype=d), integers(rng, n, dtype=d), Out(n, d)),
            lambda a, b: np.array(high_half(a, b), a.dtype),
            name=f"high_half_of_products_{np.dtype(d)}",
        )
        for d in (np.int32, np.uint32, np.int64, np.uint64)
    ),
    Case(
        constants_of_math,
        lambda rng, n: (Out(7, np.float64),),
        lambda: [math.pi, math.e, math.inf, -math.inf, math.nan, np.pi, 2 * math.pi],
        sizes=(1,),
    ),
    *(
        Case(
            functions_by_constants,
            lambda rng, n, d=d: (uniform(rng, 0.5, 9, n, dtype=d), Out((14, n), d)),
            by_constants,
            ulps=4 if d == np.float32 else 8,
            sizes=(7, 1000),
            name=f"functions_by_constants_{np.dtype(d)}",
        )
        for d in (np.float32, np.float64)
    ),
    *(
        Case(
            lesser_of_integers,
            lambda rng, n, d=d: (integers(rng, n, dtype=d), integers(rng, n, dtype=d), Out(n, d)),
            lambda a, b: np.minimum(np.maximum(a, 3), b),
            name=f"lesser_of_integers_{np.dtype(d)}",
        )
        for d in (np.int32, np.uint8, np.int64)
    ),
    Case(
        gaussian,
        lambda rng, n: (uniform(rng, -3, 3, n), 0.3, 1.7, Out(n)),
        near_gaussian,
        ulps=8,
    ),
]
