"""Complex numbers: two floats on every device."""

import numpy as np

import ruda
from tests.jit.case import Case, Near, Out
from tests.jit.data import normal, uniform


def complex_normal(rng, *shape, dtype=np.complex64):
    return (rng.normal(size=shape) + 1j * rng.normal(size=shape)).astype(dtype)


def gaussian_integers(rng, *shape, dtype=np.complex64):
    """Whole parts: sums and products are exact, whatever is contracted."""
    real, imaginary = rng.integers(-99, 99, (2, *shape))
    return (real + 1j * imaginary).astype(dtype)


@ruda.jit
def complex_operators(a, b, add, sub, mul, neg):
    i = ruda.grid(1)
    if i < a.size:
        add[i] = a[i] + b[i]
        sub[i] = a[i] - b[i]
        mul[i] = a[i] * b[i]
        neg[i] = -a[i]


@ruda.jit
def complex_division(a, b, out):
    i = ruda.grid(1)
    if i < out.size:
        out[i] = a[i] / b[i]


@ruda.jit
def parts(z, real, imag, conj, size):
    i = ruda.grid(1)
    if i < z.size:
        real[i] = z[i].real
        imag[i] = z[i].imag
        conj[i] = z[i].conjugate()
        size[i] = abs(z[i])


@ruda.jit
def complex_with_others(z, x, k, out):
    i = ruda.grid(1)
    if i < out.size:
        out[i] = z[i] * x[i] + k[i] * 1j - 2 + z[i] * (1 + 2j)


@ruda.jit
def complex_comparison(a, b, equal, different):
    i = ruda.grid(1)
    if i < a.size:
        equal[i] = a[i] == b[i]
        different[i] = a[i] != b[i]


@ruda.jit
def complex_made_of_parts(x, y, out):
    i = ruda.grid(1)
    if i < out.size:
        out[i] = complex(x[i], y[i]) + ruda.complex64(x[i])


@ruda.jit
def mandelbrot(points, out, limit):
    i = ruda.grid(1)
    if i < out.size:
        c = points[i]
        z = ruda.complex128(0)
        count = 0
        while count < limit and z.real * z.real + z.imag * z.imag <= 4:
            z = z * z + c
            count += 1
        out[i] = count


def escape(points, limit):
    counts = np.zeros(points.shape, np.int32)
    for index, c in np.ndenumerate(points):
        z = 0j
        while counts[index] < limit and z.real * z.real + z.imag * z.imag <= 4:
            z = z * z + c
            counts[index] += 1
    return counts


def grid_points(rng, n):
    """Points on a coarse binary grid: every iterate that matters is far from the circle |z| = 2."""
    x, y = rng.integers(-16, 8, n) / 8, rng.integers(-9, 9, n) / 8
    return (x + 1j * y).astype(np.complex128)


@ruda.jit
def discrete_fourier_transform(x, roots, out):
    k = ruda.grid(1)
    n = x.size
    if k < n:
        total = ruda.complex128(0)
        for j in range(n):
            total += x[j] * roots[j * k % n]
        out[k] = total


def roots_of_unity(n):
    return np.exp(-2j * np.pi * np.arange(n) / max(n, 1))


CASES = [
    *(
        Case(
            complex_operators,
            lambda rng, n, d=d: (
                gaussian_integers(rng, n, dtype=d),
                gaussian_integers(rng, n, dtype=d),
                *(Out(n, d) for _ in range(4)),
            ),
            lambda a, b: (a + b, a - b, a * b, -a),
            name=f"complex_operators_{np.dtype(d)}",
        )
        for d in (np.complex64, np.complex128)
    ),
    *(
        Case(
            complex_division,
            lambda rng, n, d=d: (
                complex_normal(rng, n, dtype=d),
                complex_normal(rng, n, dtype=d) + 2,
                Out(n, d),
            ),
            lambda a, b: np.complex128(a) / b,
            ulps=8,
            name=f"complex_division_{np.dtype(d)}",
        )
        for d in (np.complex64, np.complex128)
    ),
    Case(
        parts,
        lambda rng, n: (complex_normal(rng, n), Out(n), Out(n), Out(n, np.complex64), Out(n)),
        lambda z: (z.real, z.imag, z.conj(), np.abs(np.complex128(z))),
        ulps=2,
    ),
    Case(
        complex_with_others,
        lambda rng, n: (
            gaussian_integers(rng, n),
            np.rint(normal(rng, n) * 9),
            rng.integers(-9, 9, n),
            Out(n, np.complex64),
        ),
        lambda z, x, k: z * x + k * 1j - 2 + z * (1 + 2j),
    ),
    Case(
        complex_comparison,
        lambda rng, n: (
            rng.choice(np.complex64([1, 1j, 1 + 1j]), n),
            rng.choice(np.complex64([1, 1j, 1 + 1j]), n),
            Out(n, bool),
            Out(n, bool),
        ),
        lambda a, b: (a == b, a != b),
    ),
    Case(
        complex_made_of_parts,
        lambda rng, n: (uniform(rng, -9, 9, n), uniform(rng, -9, 9, n), Out(n, np.complex64)),
        lambda x, y: (2 * x + 1j * y).astype(np.complex64),
    ),
    Case(
        mandelbrot,
        lambda rng, n: (grid_points(rng, n), Out(n, np.int32), 20),
        escape,
        sizes=(0, 1, 7, 200),
    ),
    Case(
        discrete_fourier_transform,
        lambda rng, n: (
            complex_normal(rng, n, dtype=np.complex128),
            roots_of_unity(n),
            Out(n, np.complex128),
        ),
        lambda x, roots: Near(np.fft.fft(x) if x.size else x, np.abs(x).sum()),
        ulps=64,
        sizes=(0, 1, 7, 32),
    ),
]
