"""Exponentials, logarithms, powers, error functions: branch-free formulas that LLVM vectorises.

Each function takes and returns `Value`s and is written once for float32 and float64; polynomials
are in `coefficients.py`. Rules, here and in `trigonometric.py` and `remainders.py`: NaN in gives
NaN out, infinities, -0.0 and subnormal numbers are right, overflow gives infinity, outside the
domain is NaN, nothing traps. Formulas are arranged so that special values come out by themselves
where that is possible; where not, there is a `select` at the end. The error of each function in
ulp is measured, see `benchmarks/accuracy.py`.
"""

from __future__ import annotations

from fractions import Fraction

from ruda.backends.cpu.formats import (
    FORMATS,
    INFINITY,
    LN2,
    LN10,
    NAN,
    fast_two_sum,
    integer_of,
    parts,
    polynomial,
    power_of_two,
    rounded,
    scale,
    to_float,
    two_product,
)
from ruda.backends.cpu.slow_path import library
from ruda.backends.cpu.values import (
    Value,
    bits_of,
    convert,
    copysign,
    fabs,
    floor,
    fma,
    from_bits,
    greatest,
    least,
    select,
    sqrt,
)


# ---- exponentials -----------------------------------------------------------------------------
def exp_parts(x: Value, tail: Value | None = None) -> tuple[Value, Value]:
    """p and k with e^(x + tail) = 2^k (1 + p), |p| < 0.42, for x within the format's exp range."""
    f = FORMATS[x.bits]
    high, low = parts(LN2, x.bits, f.mantissa - 10, None)  # k high is exact
    rounding = fma(x, rounded(1 / LN2, x.bits), f.magic)
    n = rounding - f.magic
    r = fma(n, -low, fma(n, -high, x))
    if tail is not None:
        r = r + tail
    return fma(r * r, polynomial("exp", r), r), integer_of(rounding)


def exp(x: Value) -> Value:
    f = FORMATS[x.bits]
    p, k = exp_parts(greatest(least(x, f.exp_high), f.exp_low))
    return scale(p + 1, k)


def exp2(x: Value) -> Value:
    f = FORMATS[x.bits]
    x = greatest(least(x, f.bias + 1), -(f.bias + f.mantissa + 1))
    p, k = exp2_parts(x)
    return scale(p + 1, k)


def exp2_parts(x: Value, tail: Value | None = None, name: str = "exp2") -> tuple[Value, Value]:
    f = FORMATS[x.bits]
    rounding = x + f.magic
    fraction = x - (rounding - f.magic)
    if tail is not None:
        fraction = fraction + tail
    return fraction * polynomial(name, fraction), integer_of(rounding)


def exp10(x: Value) -> Value:
    """10^x as 2^(x log2(10)) with the rest of the product."""
    f = FORMATS[x.bits]
    high, low = parts(LN10 / LN2, x.bits, None, None)
    x = greatest(least(x, f.exp_high / 2.3), f.exp_low / 2.3)
    product, rest = two_product(x, high)
    p, k = exp2_parts(product, fma(x, low, rest))
    return scale(p + 1, k)


def expm1(x: Value) -> Value:
    f = FORMATS[x.bits]
    p, k = exp_parts(greatest(least(x, f.exp_high), -60.0))
    top = k > f.bias  # 2^k is infinite there, the result need not be
    s = power_of_two(select(top, f.bias, k))
    y = fma(p, s, s - 1) * select(top, p.const(2.0), 1.0)
    return copysign(y, x)


def sigmoid(x: Value) -> Value:
    """1 / (1 + e^-x) = e^x / (1 + e^x), by whichever does not overflow or cancel."""
    p, k = exp_parts(greatest(-fabs(x), FORMATS[x.bits].exp_low))
    e = scale(p + 1, k)
    return select(x >= 0, 1.0, e) / (e + 1)


def hyperbolic(x: Value) -> tuple[Value, Value, Value, Value]:
    """p, s, 1/s and factor with e^|x| = 2 factor s (1 + p): sinh and cosh are halves of that."""
    f = FORMATS[x.bits]
    a = least(fabs(x), f.exp_high + 2)
    p, k = exp_parts(a)
    bounded = select(k > f.bias - 1, f.bias - 1, k)
    return p, power_of_two(bounded), power_of_two(-bounded), power_of_two(k - bounded - 1)


def sinh(x: Value) -> Value:
    p, s, g, factor = hyperbolic(x)
    # s (1 + p) - g / (1 + p), where 1 / (1 + p) = 1 - p / (1 + p)
    y = (s - g) + fma(p, s, g * p / (p + 1))
    return copysign(y * factor, x)


def cosh(x: Value) -> Value:
    p, s, g, factor = hyperbolic(x)
    return (fma(p, s, s) + g / (p + 1)) * factor


def tanh(x: Value) -> Value:
    """E / (E + 2) with E = e^2a - 1."""
    a = least(fabs(x), FORMATS[x.bits].tanh_high)
    p, k = exp_parts(a + a)
    s = power_of_two(k)
    e = fma(p, s, s - 1)
    return copysign(e / (e + 2), x)


# ---- logarithms -------------------------------------------------------------------------------
def split(x: Value) -> tuple[Value, Value]:
    """m in [sqrt 1/2, sqrt 2) and integer k with x = m 2^k, for positive finite x."""
    f = FORMATS[x.bits]
    small = x < f.tiny
    i = bits_of(select(small, x * 2.0 ** (f.mantissa + 2), x))
    k = (i - (0x3F3504F3 if x.bits == 32 else 0x3FE6A09E667F3BCD)) >> f.mantissa
    m = from_bits(i - (k << f.mantissa))
    return m, k + select(small, k.const(-(f.mantissa + 2)), 0)


def log_parts(f: Value) -> tuple[Value, Value]:
    """ln(1 + f) as an unevaluated sum, |f| < sqrt 2 - 1; the first part is f - f^2/2 rounded."""
    square = f * f * 0.5
    if f.bits == 32:
        rest = f * f * f * polynomial("log", f)
    else:
        s = f / (f + 2)
        z = s * s
        rest = s * fma(z, polynomial("atanh", z), square)
    high = f - square
    return high, ((f - high) - square) + rest


def log_scaled(f: Value, k: Value, base: Fraction | None) -> Value:
    """ln(2^k (1 + f)) / ln(base)."""
    high, low = log_parts(f)
    e = to_float(k)
    if base is None:
        unit = parts(LN2, f.bits, FORMATS[f.bits].mantissa - 10, None)
    else:
        over = parts(1 / base, f.bits, None, None)
        product, rest = two_product(high, over[0])
        high, low = product, fma(low, over[0], fma(high, over[1], rest))
        unit = parts(LN2 / base, f.bits, FORMATS[f.bits].mantissa - 10, None)
    if base is LN2:
        first = e
    else:
        first = e * unit[0]
        low = fma(e, unit[1], low)
    total, rest = fast_two_sum(first, high)
    return total + (rest + low)


def log_domain(x: Value, y: Value, zero: float) -> Value:
    """-infinity where x is at the pole, NaN below it, x itself for infinity and NaN."""
    return select(x > zero, select(x < INFINITY, y, x), select(x == zero, y.const(-INFINITY), NAN))


def logarithm(x: Value, base: Fraction | None) -> Value:
    m, k = split(x)
    return log_domain(x, log_scaled(m - 1, k, base), 0.0)


def log(x: Value) -> Value:
    return logarithm(x, None)


def log2(x: Value) -> Value:
    return logarithm(x, LN2)


def log10(x: Value) -> Value:
    return logarithm(x, LN10)


def log1p_of(x: Value, doublings: Value | None = None) -> Value:
    """ln(1 + x) + doublings ln 2, for -1 < x < infinity."""
    f = FORMATS[x.bits]
    u = x + 1
    back = u - 1
    lost = (1 - (u - back)) + (x - back)
    m, k = split(u)
    bounded = select(k > f.bias - 1, f.bias - 1, k)
    fraction = fma(lost, power_of_two(-bounded), m - 1)  # x itself where k = 0
    return log_scaled(fraction, k if doublings is None else k + doublings, None)


def log1p(x: Value) -> Value:
    return copysign(log_domain(x, log1p_of(x), -1.0), x)


def asinh(x: Value) -> Value:
    """ln(a + sqrt(a^2 + 1)) = log1p(a + a^2 / (1 + sqrt(a^2 + 1))); ln(2a) where a is big."""
    a = fabs(x)
    big = a > FORMATS[x.bits].big
    square = a * a
    y = select(big, a, a + square / (sqrt(square + 1) + 1))
    one = bits_of(x.const(0.0)) + 1
    y = log1p_of(y, select(big, one, 0))
    return copysign(select(a < INFINITY, y, a), x)


def acosh(x: Value) -> Value:
    """log1p(t + sqrt(t (t + 2))) with t = x - 1; ln(2x) where x is big."""
    big = x > FORMATS[x.bits].big
    t = x - 1
    y = select(big, x, t + sqrt(t * (x + 1)))
    one = bits_of(x.const(0.0)) + 1
    y = log1p_of(y, select(big, one, 0))
    return select(x >= 1, select(x < INFINITY, y, x), NAN)


def atanh(x: Value) -> Value:
    """log1p(2a / (1 - a)) / 2."""
    a = fabs(x)
    y = (a + a) / (1 - a)
    y = log_domain(y, log1p_of(y), -1.0) * 0.5
    return copysign(select(a <= 1, y, NAN), x)


# ---- powers and roots -------------------------------------------------------------------------
def rsqrt(x: Value) -> Value:
    return 1 / sqrt(x)


def cbrt(x: Value) -> Value:
    """Two steps of fourth order towards a^(-1/3), then one correction of a (a^(-1/3))^2."""
    f = FORMATS[x.bits]
    a = fabs(x)
    small = a < f.tiny
    third = f.mantissa // 3 * 3 + 3  # a power whose cube root is exact
    m = select(small, a * 2.0**third, a)
    h = bits_of(m) >> (x.bits - 32)
    h = (h >> 2) + (h >> 4)
    h = h + (h >> 4)
    h = h + (h >> 8)  # h / 3, nearly
    r = from_bits((h.const(f.cbrt) - h) << (x.bits - 32))
    for _ in range(2 if x.bits == 32 else 3):
        e = fma(-(m * r * r), r, 1.0)
        r = fma(r * e, fma(fma(e, 14 / 81, 2 / 9), e, 1 / 3), r)
    t = m * r * r
    t = fma(fma(-(t * t), t, m) * (r * r), 1 / 3, t)
    t = t * select(small, t.const(2.0 ** -(third // 3)), 1.0)
    return select((a > 0) & (a < INFINITY), copysign(t, x), x)


def hypot(x: Value, y: Value) -> Value:
    if x.bits == 32:  # float64 holds the squares exactly and never overflows
        a, b = convert(x, "f64"), convert(y, "f64")
        h = convert(sqrt(fma(a, a, b * b)), "f32")
    else:
        a, b = fabs(x), fabs(y)
        top = select(a > b, a, b)
        exponent = bits_of(top) >> 52
        exponent = select(exponent < 1, 1, select(exponent > 2045, 2045, exponent))
        down, up = from_bits((2046 - exponent) << 52), from_bits(exponent << 52)
        a, b = a * down, b * down
        square, rest = two_product(a, a)
        square2, rest2 = two_product(b, b)
        total = square + square2
        back = total - square
        rest = rest + rest2 + ((square - (total - back)) + (square2 - back))
        root = sqrt(total)
        # one Newton step with the exact residual; nothing to correct at 0
        residual = fma(-root, root, total) + rest
        root = root + select(root > 0, residual / (root + root), 0.0)
        h = root * up
    infinite = (fabs(x) == INFINITY) | (fabs(y) == INFINITY)
    return select(infinite, INFINITY, h)


def power(x: Value, y: Value) -> Value:
    """x^y = 2^(y log2|x|), with the table of special cases of IEEE 754."""
    a = fabs(x)
    r = _power32(a, y) if x.bits == 32 else _power64(a, y)
    half = y * 0.5
    whole, odd = floor(y) == y, floor(half) != half
    negative = bits_of(x) < 0
    r = select(negative & whole & odd, -r, r)
    r = select((x < 0) & (x > -INFINITY) & (floor(y) != y) & (fabs(y) < INFINITY), NAN, r)
    r = select(x.compare("!=", x) | y.compare("!=", y), NAN, r)
    minus_one = (x == -1) & (fabs(y) == INFINITY)
    return select((y == 0) | (x == 1) | minus_one, 1.0, r)


def _power32(a: Value, y: Value) -> Value:
    m, k = split(convert(a, "f64"))
    f = m - 1
    s = f / (f + 2)
    z = s * s
    natural = fma(s * z, polynomial("atanh_pow", z), s + s)
    log2a = fma(natural, float(1 / LN2), to_float(k))
    log2a = select(a == 0, -INFINITY, select(a < INFINITY, log2a, INFINITY))
    t = least(greatest(log2a * convert(y, "f64"), -200.0), 200.0)
    p, k = exp2_parts(t, name="exp2_pow")
    return convert((p + 1) * power_of_two(k), "f32")


def _power64(a: Value, y: Value) -> Value:
    high, low = _log2_double(a)
    high = select(a == 0, -INFINITY, select(a < INFINITY, high, INFINITY))
    product, rest = two_product(high, y)
    rest = select(fabs(product) < 1100, fma(low, y, rest), 0.0)
    p, k = exp2_parts(least(greatest(product, -1100.0), 1100.0), rest)
    return scale(p + 1, k)


def _log2_double(a: Value) -> tuple[Value, Value]:
    """log2(a) with some 66 bits, as an unevaluated sum, for positive finite a.

    2 atanh(s) = s (2 + z (2/3 + z (2/5 + z P(z)))) with s = f / (2 + f), z = s^2; all but the
    innermost bracket in pairs of floats.
    """
    m, k = split(a)
    f = m - 1
    d = m + 1
    d_low = f - (d - 2)
    inverse = 1 / d
    s = f * inverse
    s_low = fma(-s, d_low, fma(-s, d, f)) * inverse
    z, z_low = two_product(s, s)
    z_low = fma(s + s, s_low, z_low)
    inner = fma(z, polynomial("atanh7", z), 0.4)
    third = parts(Fraction(2, 3), 64, None, None)
    u, u_low = two_product(z, inner)
    t, t_low = fast_two_sum(u.const(third[0]), u)
    t_low = t_low + (third[1] + fma(z_low, inner, u_low))
    v, v_low = two_product(z, t)
    v_low = fma(z, t_low, fma(z_low, t, v_low))
    w, w_low = fast_two_sum(v.const(2.0), v)
    w_low = w_low + v_low
    natural, natural_low = two_product(s, w)
    natural_low = fma(s, w_low, fma(s_low, w, natural_low))
    over = parts(1 / LN2, 64, None, None)
    high, low = two_product(natural, over[0])
    low = fma(natural, over[1], fma(natural_low, over[0], low))
    total, rest = fast_two_sum(to_float(k), high)
    return total, rest + low


# ---- error functions --------------------------------------------------------------------------
def erfc_of(a: Value) -> tuple[Value, Value]:
    """y and k with erfc(a) = 2^k y, for a >= 0.45: e^(-a^2) times a slowly varying quotient."""
    a = least(a, FORMATS[a.bits].erfc_high)
    square, rest = two_product(a, a)
    p, k = exp_parts(-square, -rest)
    q = (a - 4) / (a + 4)
    quotient = polynomial("erfc", q) / fma(a, 2.0, 1.0)
    return fma(p, quotient, quotient), k


def erfc(x: Value) -> Value:
    y = scale(*erfc_of(fabs(x)))
    y = select(x < 0, 2 - y, y)
    near = fabs(x) < 0.46875
    return select(near, 1 - fma(polynomial("erf", x * x), x, x), y)


def erf(x: Value) -> Value:
    a = fabs(x)
    z = a * a
    near = fma(polynomial("erf", z), a, a)
    if x.bits == 32:
        a = least(a, 4.0)
        p, k = exp2_parts(-polynomial("erf_tail", a))
        far = 1 - (p + 1) * power_of_two(k)
    else:
        y, k = erfc_of(least(a, 6.0))
        far = 1 - y * power_of_two(k)
    return copysign(select(a > 1, far, near), x)


def gamma(x: Value) -> Value:
    return by_float64("tgamma", x)


def lgamma(x: Value) -> Value:
    return by_float64("lgamma", x)


def by_float64(name: str, x: Value) -> Value:
    """The C library's function, always in float64: its own float32 form errs by 4.5 ulp."""
    return convert(library(name, convert(x, "f64")), x.dtype)
