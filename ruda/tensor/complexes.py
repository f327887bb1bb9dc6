"""Functions of complex numbers, made of functions of their parts.

They follow Kahan, "Branch cuts for complex elementary functions" (1987): on a cut the sign of zero
tells the side, and products of large and small factors do not overflow early. For infinities and
NaN the results are those of the array API standard, which are C's (annex G). The formulas serve
kernels, on Scalars, and NumPy arrays where NumPy departs from the standard: `g` has the functions.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from ruda.jit import intrinsics, ir
from ruda.tensor.opdef import Scalar, f

Parts = tuple[Any, Any]
Formula = Callable[[Any, Any, Any], Parts]
PI, LN2, LN10 = math.pi, math.log(2), math.log(10)


class _NumPy:
    """The scalar functions on NumPy's arrays."""

    where = staticmethod(np.where)

    def __getattr__(self, name: str) -> Any:
        return intrinsics.TABLE[name].meaning


def on_scalars(formula: Formula) -> Callable[[Any], Any]:
    """A formula of (functions, real part, imaginary part) as the expression of a row."""

    def expression(z: Any) -> Any:
        real, imaginary = formula(f, f.real(z), f.imag(z))
        return Scalar(ir.Op("complex", (real.expr, imaginary.expr), z.dtype))

    return expression


def on_arrays(formula: Formula) -> Callable[[Any], Any]:
    """The same on NumPy's arrays."""

    def meaning(z: Any) -> Any:
        out = np.empty(np.shape(z), z.dtype)
        with np.errstate(all="ignore"):
            out.real, out.imag = formula(_NumPy(), z.real, z.imag)
        return out

    return meaning


def _times(g: Any, u: Any, v: Any) -> Any:
    """u * v, and 0 where v is 0, also if u is infinite or NaN."""
    return g.where(v == 0, v * g.copysign(1.0, u), u * v)


def _size(g: Any, x: Any) -> Any:
    return g.copysign(x, 1.0)


def _scaled(g: Any, x: Any) -> tuple[Any, Any, Any]:
    """sinh x and cosh x, both to be multiplied by a third number, which would overflow in them."""
    size = _size(g, x)
    large = size > 40
    h = g.exp(g.where(large, size * 0.5, 0.0))
    small = g.where(large, 0.0, x)
    s = g.sinh(small)
    sinh = g.where(large, g.copysign(h * 0.5, x), s)
    cosh = g.where(large, h * 0.5, g.sqrt(1 + s * s))
    return sinh, cosh, g.where(large, h, 1.0)


def sinh(g: Any, x: Any, y: Any) -> Parts:
    s, c, more = _scaled(g, x)
    wild = ~g.isfinite(y) & ((x == 0) | g.isinf(x))
    real = g.where(wild, x, s * g.cos(y) * more)
    return real, _times(g, more, _times(g, c, g.sin(y)))


def cosh(g: Any, x: Any, y: Any) -> Parts:
    s, c, more = _scaled(g, x)
    wild = ~g.isfinite(y)
    real = g.where(wild & g.isinf(x), x * x, c * g.cos(y) * more)
    imaginary = _times(g, more, _times(g, s, g.sin(y)))
    return real, g.where(wild & (x == 0), x, imaginary)


def tanh(g: Any, x: Any, y: Any) -> Parts:
    size = _size(g, x)
    large = size > 20
    s, c = g.sin(y), g.cos(y)
    u = g.sinh(g.where(large, 1.0, x))
    below = u * u + c * c
    far = 4 * s * c * g.exp(-2 * size)
    far = g.where(g.isinf(x), g.copysign(0.0, far), far)
    real = g.where(large, g.copysign(1.0, x), u * g.sqrt(1 + u * u) / below)
    kept = g.where(x == 0, x, g.where(g.isinf(x), real, y - y))
    real = g.where(g.isfinite(y), real, kept)
    return real, g.where(y == 0, y, g.where(large, far, s * c / below))


def sin(g: Any, x: Any, y: Any) -> Parts:
    real, imaginary = sinh(g, -y, x)
    return imaginary, -real


def cos(g: Any, x: Any, y: Any) -> Parts:
    return cosh(g, -y, x)


def tan(g: Any, x: Any, y: Any) -> Parts:
    real, imaginary = tanh(g, -y, x)
    return imaginary, -real


def expm1(g: Any, x: Any, y: Any) -> Parts:
    large = x > 40
    h = g.exp(g.where(large, x * 0.5, 0.0))
    s, c = g.sin(y), g.cos(y)
    less = g.where(c > 0, -(s * s) / (1 + c), c - 1)  # cos y - 1
    small = g.where(large, 0.0, x)
    real = g.where(large, h * c * h, g.expm1(small) * c + less)
    imaginary = _times(g, h, _times(g, g.where(large, h, g.exp(small)), s))
    below, wild = g.isinf(x) & (x < 0), ~g.isfinite(y)
    real = g.where(wild & g.isinf(x), x, real)
    real = g.where(below, -1.0, real)
    return real, g.where(below & wild, 0.0, imaginary)


def log(g: Any, x: Any, y: Any) -> Parts:
    u, v = _size(g, x), _size(g, y)
    most, least = g.where(u > v, u, v), g.where(u > v, v, u)
    near = (most > 0.5) & (most < 2)
    p, q = g.where(near, most, 1.0), g.where(near, least, 0.0)
    close = 0.5 * g.log1p((p - 1) * (p + 1) + q * q)
    large = most > 1e18  # of half of it, so that the size does not overflow
    size = g.hypot(g.where(large, x * 0.5, x), g.where(large, y * 0.5, y))
    away = g.log(size) + g.where(large, LN2, g.copysign(0.0, most))
    return g.where(near, close, away), g.atan2(y, x)


def log2(g: Any, x: Any, y: Any) -> Parts:
    real, imaginary = log(g, x, y)
    return real / LN2, imaginary / LN2


def log10(g: Any, x: Any, y: Any) -> Parts:
    real, imaginary = log(g, x, y)
    return real / LN10, imaginary / LN10


def log1p(g: Any, x: Any, y: Any) -> Parts:
    near = (_size(g, x) < 0.5) & (_size(g, y) < 0.5)
    u, v = g.where(near, x, 0.0), g.where(near, y, 0.0)
    real = g.where(near, 0.5 * g.log1p(u * (2 + u) + v * v), g.log(g.hypot(1 + x, y)))
    return real, g.atan2(y, 1 + x)


def _sqrt(g: Any, x: Any, y: Any) -> Parts:
    """The root with the real part that is not negative; halves, so that nothing overflows."""
    a, b = x * 0.25, y * 0.25
    t = g.sqrt(0.5 * (_size(g, a) + g.hypot(a, b)))
    other = g.where(t == 0, b, b / (2 * t))
    real = g.where(x < 0, _size(g, other), t)
    imaginary = g.where(x < 0, g.copysign(t, y), other)
    wild = g.isinf(y)
    return 2 * g.where(wild, _size(g, y), real), 2 * g.where(wild, y, imaginary)


def acos(g: Any, x: Any, y: Any) -> Parts:
    (a, b), (c, d) = _sqrt(g, 1 - x, -y), _sqrt(g, 1 + x, y)
    infinite = g.isinf(x) | g.isinf(y)
    real = g.where(infinite, _size(g, g.atan2(y, x)), 2 * g.atan2(a, c))
    real = g.where((x == 0) & g.isnan(y), PI / 2, real)
    return real, g.where(infinite, g.copysign(math.inf, -y), g.asinh(c * b - d * a))


def asin(g: Any, x: Any, y: Any) -> Parts:
    (a, b), (c, d) = _sqrt(g, 1 - x, -y), _sqrt(g, 1 + x, y)
    infinite = g.isinf(x) | g.isinf(y)
    real = g.where(infinite, g.atan2(x, _size(g, y)), g.atan2(x, a * c - b * d))
    real = g.where((x == 0) & g.isnan(y), x, real)
    return real, g.where(infinite, g.copysign(math.inf, y), g.asinh(a * d - b * c))


def acosh(g: Any, x: Any, y: Any) -> Parts:
    real, imaginary = acos(g, x, y)
    return _size(g, imaginary), g.copysign(real, y)


def asinh(g: Any, x: Any, y: Any) -> Parts:
    real, imaginary = asin(g, -y, x)
    return imaginary, -real


def atanh(g: Any, x: Any, y: Any) -> Parts:
    u, v = _size(g, x), _size(g, y)
    infinite = g.isinf(x) | g.isinf(y)
    # Far away it is 1 / z and a quarter of a turn; there squares would overflow.
    large = (u > 1e8) | (v > 1e8)
    p, q = g.where(large, 0.0, u), g.where(large, 0.0, v)
    most = g.where(u > v, u, v)
    m, n = u / most, v / most
    away = m / most / (m * m + n * n)
    on_pole = p == 1
    pole = g.log(g.sqrt(g.sqrt(4 + q * q)) / g.sqrt(q))
    real = 0.25 * g.log1p(4 * p / ((1 - p) * (1 - p) + q * q))
    real = g.where(large, away, g.where(on_pole, pole, real))
    real = g.where(infinite, 0.0, g.where((u == 0) & g.isnan(v), 0.0, real))
    turn = 0.5 * g.atan2(2 * q, (1 - p) * (1 + p) - q * q)
    turn = g.where(large, g.where(g.isnan(v), v, PI / 2), turn)
    return g.copysign(real, x), g.copysign(turn, y)


def atan(g: Any, x: Any, y: Any) -> Parts:
    real, imaginary = atanh(g, -y, x)
    return imaginary, -real


def rint(g: Any, x: Any, y: Any) -> Parts:
    return g.rint(x), g.rint(y)


# What the scalar functions of these names have for real numbers only.
EXPRESSIONS: dict[str, Callable[[Any], Any]] = {
    formula.__name__: on_scalars(formula)
    for formula in (
        sinh,
        cosh,
        tanh,
        sin,
        cos,
        tan,
        expm1,
        log,
        log2,
        log10,
        log1p,
        acos,
        asin,
        acosh,
        asinh,
        atanh,
        atan,
        rint,
    )
}


def also_of_complex(name: str) -> Callable[[Any], Any]:
    """The scalar function of a name, with complex numbers."""
    real = getattr(f, name)

    def expression(x: Any) -> Any:
        return EXPRESSIONS[name](x) if x.dtype.kind == "complex" else real(x)

    return expression


def by_standard(formula: Formula, numpy: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """NumPy's function, but the standard's for complex numbers."""
    standard = on_arrays(formula)

    def meaning(x: Any) -> Any:
        return standard(x) if np.iscomplexobj(x) else numpy(x)

    return meaning
