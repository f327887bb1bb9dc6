"""Operators on every kind of number."""

from fractions import Fraction

import numpy as np

import ruda
from tests.jit.case import Case, InOut, Near, Out
from tests.jit.data import booleans, floats, integers, normal, uniform


@ruda.jit
def saxpy(a, x, y, out):
    i = ruda.grid(1)
    if i < out.size:
        out[i] = a * x[i] + y[i]


def near_saxpy(a, x, y):
    product, y = np.float64(a) * x, y.astype(np.float64)
    return Near(product + y, np.abs(product) + np.abs(y))


@ruda.jit
def integer_operators(a, b, add, sub, mul, div, mod):
    i = ruda.grid(1)
    if i < a.size:
        add[i] = a[i] + b[i]
        sub[i] = a[i] - b[i]
        mul[i] = a[i] * b[i]
        div[i] = a[i] // b[i]
        mod[i] = a[i] % b[i]


def wrapped(a, b):
    return a + b, a - b, a * b, floor_division(a, b), a - floor_division(a, b) * b


def floor_division(a, b):
    """Exact: NumPy's own `//` for MIN // -1 warns, and is MIN."""
    quotients = [int(p) // int(q) for p, q in zip(a, b, strict=True)]
    return np.array([q % 2 ** (8 * a.dtype.itemsize) for q in quotients], np.uint64).astype(a.dtype)


def integer_case(dtype):
    def arguments(rng, n):
        b = integers(rng, n, dtype=dtype)
        b[b == 0] = 3  # x // 0 has a meaning, but sim reports it
        return (integers(rng, n, dtype=dtype), b, *(Out(n, dtype) for _ in range(5)))

    return Case(integer_operators, arguments, wrapped, name=f"integer_operators_{np.dtype(dtype)}")


@ruda.jit
def bit_operators(a, b, conjunction, disjunction, exclusive, inverse):
    i = ruda.grid(1)
    if i < a.size:
        conjunction[i] = a[i] & b[i]
        disjunction[i] = a[i] | b[i]
        exclusive[i] = a[i] ^ b[i]
        inverse[i] = ~a[i]


def bit_case(dtype):
    return Case(
        bit_operators,
        lambda rng, n: (
            integers(rng, n, dtype=dtype),
            integers(rng, n, dtype=dtype),
            *(Out(n, dtype) for _ in range(4)),
        ),
        lambda a, b: (a & b, a | b, a ^ b, ~a),
        name=f"bit_operators_{np.dtype(dtype)}",
    )


@ruda.jit
def shifts(a, count, left, right):
    i = ruda.grid(1)
    if i < a.size:
        left[i] = a[i] << count[i]
        right[i] = a[i] >> count[i]


def shift_case(dtype):
    bits = 8 * np.dtype(dtype).itemsize
    return Case(
        shifts,
        lambda rng, n: (
            integers(rng, n, dtype=dtype),
            rng.integers(0, bits, n).astype(dtype),
            Out(n, dtype),
            Out(n, dtype),
        ),
        lambda a, count: (a << count, a >> count),
        name=f"shifts_{np.dtype(dtype)}",
    )


@ruda.jit
def small_integers_compute_in_int32(a, b, wide, narrow):
    i = ruda.grid(1)
    if i < a.size:
        wide[i] = a[i] * b[i] + 100
        narrow[i] = a[i] * b[i] + 100


def small_case(dtype):
    return Case(
        small_integers_compute_in_int32,
        lambda rng, n: (
            integers(rng, n, dtype=dtype),
            integers(rng, n, dtype=dtype, least=0, most=100),
            Out(n, np.int64),
            Out(n, dtype),
        ),
        lambda a, b: (
            a.astype(np.int32) * b.astype(np.int32) + np.int32(100),
            (a.astype(np.int32) * b.astype(np.int32) + np.int32(100)).astype(dtype),
        ),
        name=f"small_integers_compute_in_int32_{np.dtype(dtype)}",
    )


@ruda.jit
def mixed_signs_meet_in_the_wider(a, b, out):
    i = ruda.grid(1)
    if i < out.size:
        out[i] = a[i] + b[i]


@ruda.jit
def integers_divide_to_float32(a, b, out):
    i = ruda.grid(1)
    if i < out.size:
        out[i] = a[i] / b[i]


@ruda.jit
def float_literals_do_not_widen(x, out):
    i = ruda.grid(1)
    if i < out.size:
        out[i] = x[i] * 0.1


@ruda.jit
def an_integer_does_not_widen_a_float(x, k, out):
    i = ruda.grid(1)
    if i < out.size:
        out[i] = x[i] + k[i]


@ruda.jit
def float_operators(a, b, add, sub, mul, div):
    i = ruda.grid(1)
    if i < a.size:
        add[i] = a[i] + b[i]
        sub[i] = a[i] - b[i]
        mul[i] = a[i] * b[i]
        div[i] = a[i] / b[i]


def float_case(dtype):
    def arguments(rng, n):
        a, b = floats(rng, n, dtype=dtype), floats(rng, n, dtype=dtype)
        return (a, b, *(Out(n, dtype) for _ in range(4)))

    return Case(
        float_operators,
        arguments,
        lambda a, b: (a + b, a - b, a * b, a / b),
        name=f"float_operators_{np.dtype(dtype)}",
    )


def bfloat_case():
    import ml_dtypes

    kind = ml_dtypes.bfloat16
    return Case(
        float_operators,
        lambda rng, n: (
            normal(rng, n, dtype=kind),
            normal(rng, n, dtype=kind),
            *(Out(n, kind) for _ in range(4)),
        ),
        lambda a, b: (a + b, a - b, a * b, a / b),
        name="float_operators_bfloat16",
    )


@ruda.jit
def signs(x, negative, absolute, same):
    i = ruda.grid(1)
    if i < x.size:
        negative[i] = -x[i]
        absolute[i] = abs(x[i])
        same[i] = +x[i]


def sign_case(dtype, make):
    return Case(
        signs,
        lambda rng, n: (make(rng, n, dtype=dtype), *(Out(n, dtype) for _ in range(3))),
        lambda x: (-x, np.abs(x), x),
        name=f"signs_{np.dtype(dtype)}",
    )


@ruda.jit
def float_floor_division(a, b, quotient, remainder):
    i = ruda.grid(1)
    if i < a.size:
        quotient[i] = a[i] // b[i]
        remainder[i] = a[i] % b[i]


@ruda.jit
def powers(x, square, cube, root, inverse):
    i = ruda.grid(1)
    if i < x.size:
        square[i] = x[i] ** 2
        cube[i] = x[i] ** 3
        root[i] = x[i] ** 0.5
        inverse[i] = x[i] ** -1


@ruda.jit
def integer_powers(x, k, out):
    i = ruda.grid(1)
    if i < out.size:
        out[i] = x[i] ** k[i]


@ruda.jit
def comparisons(a, b, lt, le, gt, ge, eq, ne):
    i = ruda.grid(1)
    if i < a.size:
        lt[i] = a[i] < b[i]
        le[i] = a[i] <= b[i]
        gt[i] = a[i] > b[i]
        ge[i] = a[i] >= b[i]
        eq[i] = a[i] == b[i]
        ne[i] = a[i] != b[i]


def comparison_case(name, make_a, make_b):
    return Case(
        comparisons,
        lambda rng, n: (make_a(rng, n), make_b(rng, n), *(Out(n, bool) for _ in range(6))),
        lambda a, b: (a < b, a <= b, a > b, a >= b, a == b, a != b),
        name=f"comparisons_{name}",
    )


@ruda.jit
def boolean_logic(a, b, both, either, neither, differ, arithmetic):
    i = ruda.grid(1)
    if i < a.size:
        both[i] = a[i] and b[i]
        either[i] = a[i] or b[i]
        neither[i] = not a[i] and not b[i]
        differ[i] = a[i] ^ b[i]
        arithmetic[i] = a[i] + b[i] + (a[i] & b[i]) * 10 + (a[i] | b[i]) * 100


@ruda.jit
def augmented_assignments(x, k):
    i = ruda.grid(1)
    if i < k.size:
        x[0, i] += k[i]
        x[1, i] -= k[i]
        x[2, i] *= k[i]
        x[3, i] //= k[i]
        x[4, i] %= k[i]
        x[5, i] &= k[i]
        x[6, i] |= k[i]
        x[7, i] ^= k[i]
        x[8, i] <<= k[i]
        x[9, i] >>= k[i]
        x[10, i] **= 2


def augmented(x, k):
    rows = [x[0] + k, x[1] - k, x[2] * k, x[3] // k, x[4] % k, x[5] & k, x[6] | k, x[7] ^ k]
    return np.array([*rows, x[8] << k, x[9] >> k, x[10] ** 2])


@ruda.jit
def extremes_propagate_nan(a, b, least, most):
    i = ruda.grid(1)
    if i < a.size:
        least[i] = min(a[i], b[i])
        most[i] = max(a[i], b[i])


def without_negative_zero(rng, n):
    return floats(rng, n) + np.float32(0)  # which of two zeros min takes is not said


@ruda.jit
def extremes_of_many(a, b, c, least, most):
    i = ruda.grid(1)
    if i < a.size:
        least[i] = min(a[i], b[i], c[i], 50)
        most[i] = max(a[i], b[i], c[i], -50)


@ruda.jit
def explicit_fma(a, b, c, out):
    i = ruda.grid(1)
    if i < out.size:
        out[i] = ruda.fma(a[i], b[i], c[i])


def extremes(rng, n, dtype):
    """Most products of two of these over- or underflow."""
    with np.errstate(all="ignore"):
        return floats(rng, n, dtype=dtype) ** 3


def fused(a, b, c):
    """One rounding, through exact fractions."""

    def one(x, y, z):
        if np.isfinite(x) and np.isfinite(y) and not np.isfinite(z):
            return z  # also where x * y, rounded, would be infinite
        if not (np.isfinite(x) and np.isfinite(y)):
            return x * y + z
        exact = Fraction(float(x)) * Fraction(float(y)) + Fraction(float(z))
        if not exact:
            return x * y + z
        return rounded(exact, x.dtype)

    return np.array([one(*v) for v in zip(a, b, c, strict=True)], a.dtype)


def rounded(exact, dtype):
    """The nearest float, ties to even: scale to an integer of as many bits as fit, and round it."""
    bits, least, most = {4: (24, -149, 128), 8: (53, -1074, 1024)}[dtype.itemsize]
    exponent = abs(exact.numerator).bit_length() - exact.denominator.bit_length()
    if abs(exact) < Fraction(2) ** exponent:
        exponent -= 1
    unit = Fraction(2) ** max(exponent - bits + 1, least)
    nearest = round(exact / unit) * unit
    if abs(nearest) >= Fraction(2) ** most:
        return dtype.type(np.inf if nearest > 0 else -np.inf)
    return dtype.type(nearest or (-0.0 if exact < 0 else 0.0))


@ruda.jit
def horner(x, out):
    i = ruda.grid(1)
    if i < out.size:
        t = x[i]
        out[i] = (((t * 0.5 + 1.0) * t - 3.0) * t + 0.25) * t + 7.0


def near_horner(x):
    size = np.abs(x)
    value = (((x * 0.5 + 1.0) * x - 3.0) * x + 0.25) * x + 7.0
    return Near(value, (((size * 0.5 + 1.0) * size + 3.0) * size + 0.25) * size + 7.0)


@ruda.jit
def uint64_never_becomes_float(a, b, total, larger):
    i = ruda.grid(1)
    if i < a.size:
        total[i] = a[i] + b[i]
        larger[i] = max(a[i], ruda.uint64(b[i]))


@ruda.jit
def rounding(x, nearest):
    i = ruda.grid(1)
    if i < x.size:
        nearest[i] = round(x[i])


@ruda.jit
def weak_scalars_take_the_arrays_dtype(a, k, x, out):
    i = ruda.grid(1)
    if i < out.size:
        out[i] = (x[i] + a) * k


@ruda.jit
def weak_arguments_are_computed_in_double(n, dt, x, out):
    i = ruda.grid(1)
    if i < out.size:
        out[i] = x[i] * (dt / n) + (n / 3 - dt * n)


CASES = [
    Case(
        saxpy,
        lambda rng, n: (2.5, normal(rng, n), normal(rng, n), Out(n)),
        near_saxpy,
        ulps=1,
    ),
    Case(
        saxpy,
        lambda rng, n: (
            2.5,
            normal(rng, n, dtype=np.float64),
            normal(rng, n, dtype=np.float64),
            Out(n, np.float64),
        ),
        lambda a, x, y: Near(a * x + y, np.abs(a * x) + np.abs(y)),
        ulps=1,
        name="daxpy",
    ),
    *(integer_case(d) for d in (np.int8, np.int16, np.int32, np.int64)),
    *(integer_case(d) for d in (np.uint8, np.uint16, np.uint32, np.uint64)),
    *(bit_case(d) for d in (np.int32, np.int64, np.uint8, np.uint16, np.uint32, np.uint64)),
    *(shift_case(d) for d in (np.int32, np.int64, np.uint32, np.uint64)),
    *(small_case(d) for d in (np.int8, np.uint8, np.int16, np.uint16)),
    Case(
        mixed_signs_meet_in_the_wider,
        lambda rng, n: (
            integers(rng, n, dtype=np.int32),
            integers(rng, n, dtype=np.uint32),
            Out(n, np.int64),
        ),
        lambda a, b: a.astype(np.int64) + b.astype(np.int64),
    ),
    Case(
        integers_divide_to_float32,
        lambda rng, n: (
            integers(rng, n, least=-(2**24), most=2**24),
            integers(rng, n, dtype=np.int64, least=-(2**24), most=2**24),
            Out(n, np.float64),
        ),
        lambda a, b: (a.astype(np.float32) / b.astype(np.float32)).astype(np.float64),
    ),
    Case(
        float_literals_do_not_widen,
        lambda rng, n: (normal(rng, n), Out(n, np.float64)),
        lambda x: (x * np.float32(0.1)).astype(np.float64),
    ),
    Case(
        an_integer_does_not_widen_a_float,
        lambda rng, n: (normal(rng, n), integers(rng, n, dtype=np.int64), Out(n, np.float64)),
        lambda x, k: (x + k.astype(np.float32)).astype(np.float64),
    ),
    *(float_case(d) for d in (np.float16, np.float32, np.float64)),
    bfloat_case(),
    *(sign_case(d, integers) for d in (np.int8, np.int32, np.int64, np.uint32)),
    *(sign_case(d, floats) for d in (np.float16, np.float32, np.float64)),
    Case(
        float_floor_division,
        lambda rng, n: (
            uniform(rng, -100, 100, n),
            rng.choice(np.float32([0.1, -0.1, 0.3, 2, -7, 1e-3]), n),
            Out(n),
            Out(n),
        ),
        lambda a, b: (a // b, a % b),
    ),
    Case(
        powers,
        lambda rng, n: (uniform(rng, 0.01, 50, n), Out(n), Out(n), Out(n), Out(n)),
        lambda x: tuple(np.float64(x) ** p for p in (2, 3, 0.5, -1)),
        ulps=2,
    ),
    Case(
        integer_powers,
        lambda rng, n: (
            integers(rng, n, least=-40, most=40),
            integers(rng, n, least=0, most=9),
            Out(n, np.int32),
        ),
        lambda x, k: (x.astype(np.int64) ** k).astype(np.int32),
    ),
    comparison_case("float32", floats, floats),
    comparison_case("int32", integers, integers),
    comparison_case(
        "int32_uint32",
        integers,
        lambda rng, n: integers(rng, n, dtype=np.uint32),
    ),
    comparison_case(
        "int32_float64",
        integers,
        lambda rng, n: floats(rng, n, dtype=np.float64),
    ),
    comparison_case("bool", booleans, booleans),
    Case(
        boolean_logic,
        lambda rng, n: (
            booleans(rng, n),
            booleans(rng, n),
            *(Out(n, bool) for _ in range(4)),
            Out(n, np.int32),
        ),
        lambda a, b: (
            a & b,
            a | b,
            ~a & ~b,
            a ^ b,
            a.astype(int) + b + 10 * (a & b) + 100 * (a | b),
        ),
    ),
    Case(
        augmented_assignments,
        lambda rng, n: (
            InOut(integers(rng, 11, n, least=-(10**6), most=10**6)),
            integers(rng, n, least=1, most=12),
        ),
        augmented,
    ),
    Case(
        extremes_propagate_nan,
        lambda rng, n: (
            without_negative_zero(rng, n),
            without_negative_zero(rng, n),
            Out(n),
            Out(n),
        ),
        lambda a, b: (np.minimum(a, b), np.maximum(a, b)),
    ),
    Case(
        extremes_of_many,
        lambda rng, n: (
            *(integers(rng, n, least=-100, most=100) for _ in range(3)),
            Out(n, np.int32),
            Out(n, np.int32),
        ),
        lambda a, b, c: (
            np.minimum(np.minimum(a, b), np.minimum(c, 50)),
            np.maximum(np.maximum(a, b), np.maximum(c, -50)),
        ),
    ),
    Case(
        explicit_fma,
        lambda rng, n: (*(normal(rng, n) for _ in range(3)), Out(n)),
        fused,
    ),
    *(
        Case(
            explicit_fma,
            lambda rng, n, d=d: (
                extremes(rng, n, d),
                extremes(rng, n, d),
                floats(rng, n, dtype=d),
                Out(n, d),
            ),
            fused,
            name=f"explicit_fma_of_extremes_{np.dtype(d)}",
        )
        for d in (np.float32, np.float64)
    ),
    Case(
        horner,
        lambda rng, n: (normal(rng, n, dtype=np.float64), Out(n, np.float64)),
        near_horner,
        ulps=4,
    ),
    Case(
        uint64_never_becomes_float,
        lambda rng, n: (
            integers(rng, n, dtype=np.uint64),
            integers(rng, n, dtype=np.int64),
            Out(n, np.uint64),
            Out(n, np.uint64),
        ),
        lambda a, b: (a + b.astype(np.uint64), np.maximum(a, b.astype(np.uint64))),
    ),
    Case(
        rounding,
        lambda rng, n: (
            (integers(rng, n, least=-1000, most=1000) / 4).astype(np.float32),
            Out(n, np.int32),
        ),
        np.rint,
    ),
    Case(
        weak_scalars_take_the_arrays_dtype,
        lambda rng, n: (0.1, 3, normal(rng, n), Out(n, np.float64)),
        lambda a, k, x: ((x + np.float32(a)) * np.float32(k)).astype(np.float64),
    ),
    Case(
        weak_arguments_are_computed_in_double,
        lambda rng, n: (16777217, 0.1, normal(rng, n), Out(n)),
        lambda n, dt, x: Near(
            x * np.float32(dt / n) + np.float32(n / 3 - dt * n),
            np.abs(x) + np.float32(dt * n),
        ),
        ulps=1,
    ),
]
