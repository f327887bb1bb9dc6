"""Functions of complex numbers from those of real ones, with NumPy's meaning.

A complex value is a pair of `Value`s. Infinities and NaN follow C99's Annex G where the formulas
give them; exp, log, sqrt, sin, cos and pow agree with NumPy to a few ulps of the larger part.
"""

from __future__ import annotations

from collections.abc import Callable

from ruda.backends.cpu import math
from ruda.backends.cpu.values import Value, copysign, fabs, select

Complex = tuple[Value, Value]


# Triple of a module -> the real functions of its target, where they are not those of `math`.
LIBRARIES: dict[str, Callable[..., Value]] = {}


def f(name: str, *values: Value) -> Value:
    """A real function, by its name in `math`."""
    library = LIBRARIES.get(values[0].builder.module.triple)
    if library is not None:
        return library(name, *values)
    return math.build(math.FUNCTIONS[name], values[0].dtype, list(values))


def times(x: Complex, y: Complex) -> Complex:
    return x[0] * y[0] - x[1] * y[1], x[0] * y[1] + x[1] * y[0]


def exp(z: Complex) -> Complex:
    """e**x (cos y + i sin y); a part that is 0 stays so, whatever e**x is."""
    x, y = z
    size = f("exp", x)
    real, imaginary = size * f("cos", y), size * f("sin", y)
    real = select(fabs(y) < float("inf"), real, select(x == -float("inf"), 0.0 * x, real))
    flat = x == -float("inf")
    wild = ~(fabs(y) < float("inf"))
    real = select(flat & wild, x.const(0.0), real)
    imaginary = select(flat & wild, x.const(0.0), imaginary)
    tall = (x == float("inf")) & wild
    real = select(tall, x, real)
    return real, select(y == 0.0, y, imaginary)


def log(z: Complex) -> Complex:
    return f("log", f("hypot", *z)), f("atan2", z[1], z[0])


def sqrt(z: Complex) -> Complex:
    """Kahan's: the larger part from the half sum, the other by division."""
    x, y = z
    scale = select((fabs(x) > 1e19) | (fabs(y) > 1e19), x.const(0.25), x.const(1.0))
    tiny = (fabs(x) < 1e-19) & (fabs(y) < 1e-19)
    scale = select(tiny, x.const(2.0**60), scale)
    back = select(tiny, x.const(2.0**-30), select(scale == 0.25, x.const(2.0), x.const(1.0)))
    u, v = x * scale, y * scale
    t = f("sqrt", (fabs(u) + f("hypot", u, v)) * 0.5)
    other = select(t == 0.0, v, fabs(v) / (t + t))
    real = select(u >= 0.0, t, other) * back
    imaginary = copysign(select(u >= 0.0, other, t) * back, y)
    infinite = fabs(y) == float("inf")
    real = select(infinite, fabs(y), real)
    imaginary = select(infinite, y, imaginary)
    right = (x == float("inf")) & ~infinite
    left = (x == -float("inf")) & ~infinite
    real = select(right, x, select(left, select(y != y, y, x.const(0.0)), real))
    imaginary = select(right, select(y != y, y, copysign(0.0, y)), imaginary)
    return real, select(left, copysign(float("inf"), y), imaginary)


def sin(z: Complex) -> Complex:
    x, y = z
    return f("sin", x) * f("cosh", y), f("cos", x) * f("sinh", y)


def cos(z: Complex) -> Complex:
    x, y = z
    return f("cos", x) * f("cosh", y), -(f("sin", x) * f("sinh", y))


def power(x: Complex, y: Complex) -> Complex:
    """exp(y log x); 0 to a power with positive real part is 0, and anything to the 0 is 1."""
    real, imaginary = exp(times(y, log(x)))
    zero = (x[0] == 0.0) & (x[1] == 0.0)
    gone = zero & (y[0] > 0.0)
    one = (y[0] == 0.0) & (y[1] == 0.0)
    whole = (y[1] == 0.0) & (f("trunc", y[0]) == y[0]) & (fabs(y[0]) <= 3.0)
    for exponent in (1.0, 2.0, 3.0):
        product: Complex = x
        for _ in range(int(exponent) - 1):
            product = times(product, x)
        here = whole & (y[0] == exponent)
        real = select(here, product[0], real)
        imaginary = select(here, product[1], imaginary)
    nothing = x[0].const(0.0)
    real = select(one, x[0].const(1.0), select(gone, nothing, real))
    return real, select(one | gone, nothing, imaginary)


UNARY: dict[str, Callable[[Complex], Complex]] = {
    "exp": exp, "log": log, "sqrt": sqrt, "sin": sin, "cos": cos,
    "conj": lambda z: (z[0], -z[1]),
}  # fmt: skip
REAL: dict[str, Callable[[Complex], Value]] = {
    "abs": lambda z: f("hypot", *z), "real": lambda z: z[0], "imag": lambda z: z[1],
    "isnan": lambda z: (z[0] != z[0]) | (z[1] != z[1]),
    "isinf": lambda z: (fabs(z[0]) == float("inf")) | (fabs(z[1]) == float("inf")),
    "isfinite": lambda z: (fabs(z[0]) < float("inf")) & (fabs(z[1]) < float("inf")),
}  # fmt: skip
BINARY: dict[str, Callable[[Complex, Complex], Complex]] = {"pow": power}


def fma(x: Complex, y: Complex, z: Complex) -> Complex:
    real, imaginary = times(x, y)
    return real + z[0], imaginary + z[1]
