"""Measure the error of the CPU's elementary functions in ulp: `python benchmarks/accuracy.py`.

Prints `ruda/backends/cpu/ulp.py`, the table that the documentation shows and the tests hold the
functions to. The error is |computed - exact| in units of the last place of the exact value;
0.5 is the best possible. Arguments: every exponent with random fractions and both signs, the
neighbourhoods of the places where formulas change, and the range where people compute.

The exact values come from NumPy's extended precision (float64 for float32), for which no code is
shared with the functions under test, or from mpmath where NumPy has no such function.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numba
import numpy as np

from ruda.backends.cpu import math as cpu

Array = Any
NUMPY = {"f32": np.float32, "f64": np.float64}
QUICK = (10_000, 1)  # size and seed of the measurement that the tests repeat
WIDE = {"f32": np.float64, "f64": np.longdouble}


def mp(name: str) -> Callable[..., Array]:
    """An mpmath function over arrays, rounded to extended precision."""

    def function(*arrays: Array) -> Array:
        import mpmath

        mpmath.mp.prec = 160

        def one(*arguments: Any) -> Any:
            values = [float(a) for a in arguments]
            if any(np.isnan(v) for v in values):
                return np.longdouble("nan")
            if name == "erf" and values[0] == 0:
                return np.longdouble(values[0])  # mpmath has no -0
            result = mpmath.mpf(getattr(mpmath, name)(*map(mpmath.mpf, values)))
            if not mpmath.isfinite(result):
                return np.longdouble(float(result))
            mantissa, exponent = mpmath.frexp(result)
            high = float(mantissa)
            return np.ldexp(np.longdouble(high) + float(mantissa - high), int(exponent))

        dtype = np.longdouble if arrays[0].dtype == np.longdouble else np.float64
        return np.array([one(*a) for a in zip(*arrays, strict=True)], dtype)

    return function


def sigmoid(x: Array) -> Array:
    e = np.exp(-np.abs(x))
    return np.where(x >= 0, x.dtype.type(1), e) / (1 + e)


def pi_of(x: Array) -> Array:
    """pi at the precision of x."""
    return 4 * np.arctan(x.dtype.type(1))


def sinpi(x: Array) -> Array:
    n = np.rint(x)
    r = np.sin(pi_of(x) * (x - n))
    r = np.where(np.fmod(n, 2) != 0, -r, r)
    return np.where((x == n) & np.isfinite(x), np.copysign(0, x), r)


def cospi(x: Array) -> Array:
    a = np.fmod(np.abs(x), 2)
    a = np.where(a > 1, 2 - a, a)
    return np.sin(pi_of(x) * (x.dtype.type(0.5) - a))


def special(name: str) -> Callable[..., Array]:
    import scipy.special

    function, exact = getattr(scipy.special, name), mp(name)
    # Beyond 40 the values are 0, 1, 2 or -1; mpmath would need forever.
    return lambda x: function(x) if x.dtype == np.float64 else exact(np.clip(x, -40, 40))


@dataclass(frozen=True)
class Case:
    """How one function is measured."""

    exact: Callable[..., Array]
    low: float = -20.0  # where people compute
    high: float = 20.0
    every: bool = True  # all exponents as well
    slow: bool = False  # the oracle is mpmath: fewer points


CASES: dict[str, Case] = {
    "sqrt": Case(np.sqrt, 0),
    "rsqrt": Case(lambda x: 1 / np.sqrt(x), 0),
    "cbrt": Case(np.cbrt),
    "hypot": Case(np.hypot),
    "pow": Case(np.power, 0, 10),
    "exp": Case(np.exp, -100, 90),
    "exp2": Case(np.exp2, -150, 130),
    "exp10": Case(lambda x: np.power(x.dtype.type(10), x), -46, 40),
    "expm1": Case(np.expm1, -10, 10),
    "log": Case(np.log, 0, 3),
    "log2": Case(np.log2, 0, 3),
    "log10": Case(np.log10, 0, 3),
    "log1p": Case(np.log1p, -1, 2),
    "sigmoid": Case(sigmoid, -110, 20),
    "sin": Case(np.sin, -1000, 1000),
    "cos": Case(np.cos, -1000, 1000),
    "tan": Case(np.tan, -1000, 1000),
    "sinpi": Case(sinpi, -3, 3),
    "cospi": Case(cospi, -3, 3),
    "asin": Case(np.arcsin, -1, 1),
    "acos": Case(np.arccos, -1, 1),
    "atan": Case(np.arctan, -4, 4),
    "atan2": Case(np.arctan2, -4, 4),
    "degrees": Case(lambda x: x * (180 / pi_of(x))),
    "radians": Case(lambda x: x * (pi_of(x) / 180)),
    "sinh": Case(np.sinh, -90, 90),
    "cosh": Case(np.cosh, -90, 90),
    "tanh": Case(np.tanh, -3, 3),
    "asinh": Case(np.arcsinh, -4, 4),
    "acosh": Case(np.arccosh, 1, 4),
    "atanh": Case(np.arctanh, -1, 1),
    "erf": Case(special("erf"), -5, 5, slow=True),
    "erfc": Case(special("erfc"), -3, 12, slow=True),
    "gamma": Case(mp("gamma"), 0.01, 30, every=False, slow=True),
    "lgamma": Case(mp("loggamma"), 0.01, 100, every=False, slow=True),
}


@functools.cache
def over_arrays(name: str, dtype: str) -> Any:
    """The function as a vectorised loop: f(x, ..., out)."""
    return loop_of(cpu.get(name, dtype), cpu.FUNCTIONS[name].arity)


def loop_of(function: Any, arity: int) -> Any:
    if arity == 1:

        def loop1(x, out):  # type: ignore[no-untyped-def]
            for j in range(out.size):
                out[j] = function(x[j])

        return numba.njit(error_model="numpy")(loop1)
    if arity == 2:

        def loop2(x, y, out):  # type: ignore[no-untyped-def]
            for j in range(out.size):
                out[j] = function(x[j], y[j])

        return numba.njit(error_model="numpy")(loop2)

    def loop3(x, y, z, out):  # type: ignore[no-untyped-def]
        for j in range(out.size):
            out[j] = function(x[j], y[j], z[j])

    return numba.njit(error_model="numpy")(loop3)


def evaluate(name: str, dtype: str, *arguments: Array) -> Array:
    result = cpu.FUNCTIONS[name].result or dtype
    kinds = {"i": "int", "u": "uint", "f": "float", "b": "bool"}
    kind = "bool" if result == "bool" else kinds[result[0]] + result[1:]
    out = np.empty(arguments[0].shape, kind)
    over_arrays(name, dtype)(*arguments, out)
    return out


def every_exponent(n: int, dtype: str, rng: Any) -> Array:
    """Random bit patterns: all exponents alike, subnormal numbers, a few NaN and infinities."""
    bits = 32 if dtype == "f32" else 64
    x = rng.integers(0, 1 << bits, n, dtype=f"uint{bits}").view(NUMPY[dtype])
    return np.where(np.isnan(x), NUMPY[dtype](1), x)


def neighbours(dtype: str, low: float, high: float) -> Array:
    """Numbers around powers of two, multiples of pi/4 and of ln(2)/2, and of a coarse grid."""
    kind = NUMPY[dtype]
    with np.errstate(over="ignore"):
        grid = np.concatenate(
            [
                2.0 ** np.arange(-40, 40),
                -(2.0 ** np.arange(-40, 40)),
                np.arange(-200, 200) * (np.pi / 4),
                np.arange(-2200, 2100) * (np.log(2) / 2),
                np.linspace(low, high, 1001),
            ]
        ).astype(kind)
    out = [grid]
    up = down = grid
    for _ in range(4):
        up, down = np.nextafter(up, kind(np.inf)), np.nextafter(down, kind(-np.inf))
        out += [up, down]
    return np.concatenate(out)


def samples(name: str, dtype: str, n: int, seed: int = 0) -> list[Array]:
    """The arguments of one measurement."""
    case, arity = CASES[name], cpu.FUNCTIONS[name].arity
    rng = np.random.default_rng(seed)
    if case.slow and (dtype == "f64" or not case.every):
        n //= 50
    columns = []
    for _ in range(arity):
        usual = rng.uniform(case.low, case.high, n).astype(NUMPY[dtype])
        small = (usual * 2.0 ** rng.integers(-24, 1, n)).astype(NUMPY[dtype])
        near = neighbours(dtype, case.low, case.high)
        if case.slow and (dtype == "f64" or not case.every):
            near = rng.choice(near, min(n, near.size))
        if not case.every:
            near = near[(near > case.low) & (near < case.high)]
            small = usual
        column = [usual, small, rng.permutation(near)]
        if case.every:
            column.append(every_exponent(n, dtype, rng))
        columns.append(np.concatenate(column))
    size = min(c.size for c in columns)
    return [c[:size] for c in columns]


def errors(name: str, dtype: str, arguments: list[Array]) -> tuple[Array, Array, Array]:
    """Computed and exact values, and the error in ulp (infinite where NaN or infinity differ)."""
    kind, wide = NUMPY[dtype], WIDE[dtype]
    computed = evaluate(name, dtype, *arguments)
    with np.errstate(all="ignore"):
        exact = CASES[name].exact(*(a.astype(wide) for a in arguments))
        rounded = exact.astype(kind)  # overflows to infinity where it should
        top = np.finfo(kind).max
        near = np.minimum(np.abs(rounded), np.nextafter(top, kind(0)))  # spacing(top) is infinite
        below = np.abs(exact) < near  # the exact value may lie in the binade below
        unit = np.spacing(np.where(below, np.nextafter(near, kind(0)), near))
        # Beyond the largest number: the error counts from where infinity begins.
        limited = np.clip(exact, -wide(top) - unit, wide(top) + unit)
        finite = np.clip(computed.astype(wide), -wide(top) - unit, wide(top) + unit)
        error = np.abs(finite - limited) / unit
    same = (np.isnan(computed) & np.isnan(exact)) | (
        np.isinf(computed) & np.isinf(exact) & (np.sign(computed) == np.sign(exact))
    )
    error = np.where(same, 0, error)
    return computed, exact, np.where(np.isnan(error), np.inf, error).astype(np.float64)


def measure(name: str, dtype: str, n: int, seed: int = 0) -> tuple[float, list[Any]]:
    """Greatest error in ulp and the arguments that give it."""
    arguments = samples(name, dtype, n, seed)
    error = errors(name, dtype, arguments)[2]
    worst = int(np.argmax(error))
    return float(error[worst]), [a[worst] for a in arguments]


def sweep(name: str) -> tuple[float, Any]:
    """Greatest error in ulp of a float32 function over every 61st of all numbers."""
    worst: tuple[float, Any] = 0.0, None
    for start in range(61):
        x = np.arange(61 * start, 1 << 32, 61 * 61, dtype=np.uint32).view(np.float32)
        x = x[~np.isnan(x)]
        error = errors(name, "f32", [x])[2]
        at = int(np.argmax(error))
        if error[at] > worst[0]:
            worst = float(error[at]), x[at]
    return worst


HEADER = '''"""Greatest error of the CPU's functions in ulp, printed by `benchmarks/accuracy.py`.

float32 functions of one argument: over every 61st of all numbers and some {:,} chosen
ones; others: {:,} chosen ones (fewer where the oracle is slow). 0.5 is exact rounding.
"""
'''


def main() -> None:
    n = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    print(HEADER.format(4 * n, 16 * n))
    print("ULP: dict[str, dict[str, float]] = {")
    for name in sys.argv[2:] or CASES:
        row = {}
        for dtype in NUMPY:
            swept = dtype == "f32" and cpu.FUNCTIONS[name].arity == 1 and CASES[name].every
            found = [measure(name, dtype, n, seed) for seed in range(3, 4 if swept else 7)]
            found.append(measure(name, dtype, *QUICK))
            if swept:
                found.append(sweep(name))
            row[dtype], where = max(found, key=lambda pair: pair[0])
            print(name, dtype, row[dtype], where, file=sys.stderr)
        cells = ", ".join(f'"{d}": {np.ceil(v * 100) / 100:.2f}' for d, v in row.items())
        print(f'    "{name}": {{{cells}}},')
    print("}")


if __name__ == "__main__":
    main()
