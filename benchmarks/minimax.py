"""Fit the polynomials of `ruda/backends/cpu/elementary.py` and print `coefficients.py`.

    python benchmarks/minimax.py > ruda/backends/cpu/coefficients.py

Each row of `FITS` asks for the polynomial P of the given degree that minimises the greatest
|weight(t) (P(t) - goal(t))| over an interval (Remez exchange, 60 digits). The weight turns the
error of P into the error of the function in units of the last place, so the printed figures say
how much of an ulp the approximation itself costs; rounding is on top. The lowest three coefficients
are rounded one after another and the rest is fitted again to absorb the rounding. (Going on so with
the higher ones fails: powers that all vanish at 0 have no alternation to exchange.)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from mpmath import (
    asin,
    atan,
    atanh,
    cos,
    erf,
    erfc,
    exp,
    expm1,
    ln,
    log1p,
    lu_solve,
    matrix,
    mp,
    mpf,
    pi,
    sin,
    sqrt,
)

mp.dps = 60
Real = Callable[[mpf], mpf]
TINY = mpf(10) ** -12  # series below this: the quotients cancel


@dataclass(frozen=True)
class Fit:
    """One polynomial: P(t) ~ goal(t) for low <= t <= high."""

    name: str
    degrees: tuple[int, int]  # for float32 and float64; -1: not needed there
    goal: Real
    low: mpf
    high: mpf
    weight: Real  # d(function) / dP / function


def at_zero(function: Real, *terms: mpf | str) -> Real:
    """`function`, or near 0, where it cancels, its series; a term may be written "2/3"."""
    series = [
        mpf(t.split("/")[0]) / mpf(t.split("/")[1]) if isinstance(t, str) else t for t in terms
    ]

    def value(t: mpf) -> mpf:
        if abs(t) > mpf("1e-9"):
            return function(t)
        return sum((c * t**k for k, c in enumerate(series)), mpf(0))

    return value


def odd(function: Real, *series: mpf | str) -> Real:
    """(f(x) / x - 1) / x^2 as a function of z = x^2, for f(x) = x + x z P(z)."""
    return at_zero(lambda z: (function(sqrt(z)) / sqrt(z) - 1) / z, *series)


def erfc_scaled(q: mpf) -> mpf:
    """exp(a^2) erfc(a) (1 + 2a) where q = (a - 4) / (a + 4)."""
    if q > mpf("0.9999999"):
        return 2 / sqrt(pi)  # a -> infinity; the fit stops at a = 28
    a = 4 * (1 + q) / (1 - q)
    return exp(a * a) * erfc(a) * (1 + 2 * a)


LN2 = ln(mpf(2))
HALF_LN2 = LN2 / 2 * mpf("1.0001")
SQRT2 = sqrt(mpf(2))
S = ((SQRT2 - 1) / (SQRT2 + 1)) ** 2 * mpf("1.0001")  # greatest s^2 of the logarithm
Q = mpf(1) / 4
PI4 = (pi / 4) ** 2 * mpf("1.001")
TAN = (SQRT2 - 1) ** 2 * mpf("1.001")
H = mpf("0.5001")

FITS = (
    # exp(r) = 1 + r + r^2 P(r)
    Fit("exp", (5, 10), at_zero(lambda r: (expm1(r) - r) / r**2, "1/2", "1/6", "1/24"),
        -HALF_LN2, HALF_LN2, lambda r: r**2 / abs(expm1(r)) if r else mpf(0)),
    # 2^f = 1 + f P(f)
    Fit("exp2", (5, 11), at_zero(lambda f: expm1(f * LN2) / f, LN2, LN2**2 / 2, LN2**3 / 6),
        -H, H, lambda f: abs(f) / exp(f * LN2)),
    # ln(1 + f) = f - f^2/2 + f^3 P(f)
    Fit("log", (8, -1),
        at_zero(lambda f: (log1p(f) - f + f * f / 2) / f**3, "1/3", "-1/4", "1/5"),
        (1 / SQRT2 - 1) * mpf("1.001"), (SQRT2 - 1) * mpf("1.001"),
        lambda f: abs(f**3 / log1p(f)) if abs(f) > mpf("1e-9") else mpf("1e-18")),
    # 2 atanh(s) = 2 s + s^3 P(s^2)
    Fit("atanh", (-1, 7),
        at_zero(lambda z: 2 * (atanh(sqrt(z)) / sqrt(z) - 1) / z, "2/3", "2/5", "2/7"),
        mpf(0), S, lambda z: z / 2),
    # the same for the float64 that carry float32's pow, 16 bits better than float32
    Fit("atanh_pow", (-1, 3),
        at_zero(lambda z: 2 * (atanh(sqrt(z)) / sqrt(z) - 1) / z, "2/3", "2/5", "2/7"),
        mpf(0), S, lambda z: z / 2),
    Fit("exp2_pow", (-1, 6), at_zero(lambda f: expm1(f * LN2) / f, LN2, LN2**2 / 2, LN2**3 / 6),
        -H, H, lambda f: abs(f) / exp(f * LN2)),
    # 2 atanh(s) = 2 s + 2/3 s^3 + 2/5 s^5 + s^7 P(s^2): the small part of a logarithm in two floats
    Fit("atanh7", (-1, 8),
        at_zero(lambda z: (2 * (atanh(sqrt(z)) / sqrt(z) - 1) / z - mpf(2) / 3 - z * 2 / 5) / z**2,
                "2/7", "2/9", "2/11"),
        mpf(0), S, lambda z: z**3 / 2),
    # sin(r) = r + r z P(z) and cos(r) = 1 - z/2 + z^2 P(z) on |r| <= pi/4
    Fit("sin", (2, 5), odd(sin, "-1/6", "1/120", "-1/5040"), mpf(0), PI4,
        lambda z: z * sqrt(z) / sin(sqrt(z)) if z > TINY else z),
    Fit("cos", (2, 5),
        at_zero(lambda z: (cos(sqrt(z)) - 1 + z / 2) / z**2, "1/24", "-1/720", "1/40320"),
        mpf(0), PI4, lambda z: z**2 / cos(sqrt(z))),
    # sin(pi r) = pi r + r z P(z) and cos(pi r) = 1 + z P(z) on |r| <= 1/4
    Fit("sinpi", (2, 5),
        at_zero(lambda z: (sin(pi * sqrt(z)) / sqrt(z) - pi) / z, -(pi**3) / 6, pi**5 / 120),
        mpf(0), Q / 4, lambda z: z * sqrt(z) / sin(pi * sqrt(z)) if z > TINY else z),
    Fit("cospi", (3, 6),
        at_zero(lambda z: (cos(pi * sqrt(z)) - 1) / z, -(pi**2) / 2, pi**4 / 24, -(pi**6) / 720),
        mpf(0), Q / 4, lambda z: z / cos(pi * sqrt(z))),
    # asin(r) = r + r z P(z) on |r| <= 1/2
    Fit("asin", (4, 12), odd(asin, "1/6", "3/40", "15/336"), mpf(0), Q * mpf("1.0001"),
        lambda z: z),
    # atan(r) = r + r z P(z) on |r| <= tan(pi/8)
    Fit("atan", (4, 10), odd(atan, "-1/3", "1/5", "-1/7"), mpf(0), TAN, lambda z: z),
    # erf(x) = x + x P(z) on |x| <= 1
    Fit("erf", (6, 12),
        at_zero(lambda z: erf(sqrt(z)) / sqrt(z) - 1,
                2 / sqrt(pi) - 1, -2 / sqrt(pi) / 3, 2 / sqrt(pi) / 10),
        mpf(0), mpf("1.001"), lambda z: sqrt(z) / erf(sqrt(z)) if z > TINY else sqrt(pi) / 2),
    # erf(a) = 1 - 2^-P(a) on 1 <= a <= 4
    Fit("erf_tail", (7, -1), lambda a: -ln(erfc(a)) / LN2, mpf("0.999"), mpf("4.0"),
        lambda a: erfc(a) * LN2),
    # erfc(a) = exp(-a^2) P(q) / (1 + 2a), q = (a - 4) / (a + 4), from a = 0.45 to 11 and 28
    Fit("erfc", (12, -1), erfc_scaled, -mpf("0.8"), mpf(7) / 15, lambda q: 1 / erfc_scaled(q)),
    Fit("erfc", (-1, 22), erfc_scaled, -mpf("0.8"), mpf(3) / 4, lambda q: 1 / erfc_scaled(q)),
)  # fmt: skip


def solve(fit: Fit, fixed: list[mpf], degree: int) -> tuple[list[mpf], mpf]:
    """Remez exchange for the coefficients after the fixed ones; returns all and the error."""
    start, free = len(fixed), degree + 1 - len(fixed)
    grid = [
        (fit.low + fit.high) / 2 - (fit.high - fit.low) / 2 * mp.cos(pi * k / 400)
        for k in range(401)
    ]
    goals, weights = [fit.goal(t) for t in grid], [fit.weight(t) for t in grid]
    known = [sum((c * t**k for k, c in enumerate(fixed)), mpf(0)) for t in grid]
    if free == 0:
        return fixed, max(abs(w * (p - g)) for w, p, g in zip(weights, known, goals, strict=True))
    points = [round(400 * k / free) for k in range(free + 1)]
    points = [min(max(p, 1), 399) for p in points]
    solution: list[mpf] = []
    error = mpf(0)
    for _ in range(40):
        rows = matrix(free + 1, free + 1)
        right = matrix(free + 1, 1)
        for i, p in enumerate(points):
            w = weights[p] or mpf(10) ** -40
            for k in range(free):
                rows[i, k] = w * grid[p] ** (start + k)
            rows[i, free] = (-1) ** i
            right[i] = w * (goals[p] - known[p])
        found = lu_solve(rows, right)
        solution = [found[k] for k in range(free)]
        residual = [
            w
            * (
                known[j]
                + sum((c * grid[j] ** (start + k) for k, c in enumerate(solution)), mpf(0))
                - goals[j]
            )
            for j, w in enumerate(weights)
        ]
        error = max(abs(r) for r in residual)
        peaks: list[int] = []  # the largest of each run of one sign
        for j, r in enumerate(residual):
            if peaks and (r > 0) == (residual[peaks[-1]] > 0):
                if abs(r) > abs(residual[peaks[-1]]):
                    peaks[-1] = j
            else:
                peaks.append(j)
        while len(peaks) > free + 1:
            peaks.pop(0 if abs(residual[peaks[0]]) < abs(residual[peaks[-1]]) else -1)
        if len(peaks) < free + 1 or peaks == points:
            break
        points = peaks
    return fixed + solution, error


def rounded(value: mpf, bits: int) -> mpf:
    return mpf(float(np.float32(float(value)))) if bits == 32 else mpf(float(value))


def fit(row: Fit, bits: int) -> tuple[list[float], float]:
    """The rounded coefficients, lowest first, and the error in ulp (of 1)."""
    degree = row.degrees[bits == 64]
    fixed: list[mpf] = []
    for k in range(3):
        fixed.append(rounded(solve(row, fixed, degree)[0][k], bits))
    fixed += [rounded(c, bits) for c in solve(row, fixed, degree)[0][3:]]
    error = solve(row, fixed, degree)[1]
    return [float(c) for c in fixed], float(error * 2 ** (24 if bits == 32 else 53))


def main() -> None:
    print('"""Polynomial coefficients, lowest first, printed by `benchmarks/minimax.py`.')
    print("\nThe comment gives the error of the approximation itself in ulp.")
    print('"""\n\nCOEFFICIENTS: dict[tuple[str, int], tuple[float, ...]] = {')
    for row in FITS:
        for bits in (32, 64):
            if row.degrees[bits == 64] >= 0:
                values, error = fit(row, bits)
                print(f'    ("{row.name}", {bits}): (  # {error:.4f}')
                for value in values:
                    print(f"        {value!r},")
                print("    ),")
    print("}")


if __name__ == "__main__":
    main()
