"""Tuples and NamedTuples, as values and as arguments."""

from typing import NamedTuple

import numpy as np

import ruda
from tests.jit.case import Case, InOut, Out
from tests.jit.data import integers, normal


class Line(NamedTuple):
    slope: float
    offset: float


class Points(NamedTuple):
    x: np.ndarray
    y: np.ndarray
    line: Line


@ruda.jit
def tuple_of_scalars(weights, x, out):
    i = ruda.grid(1)
    if i < out.size:
        out[i] = weights[0] * x[i] + weights[1] + len(weights)


@ruda.jit
def tuple_of_arrays(arrays, out):
    i = ruda.grid(1)
    if i < out.size:
        total = ruda.int64(0)
        for array in arrays:
            total += array[i]
        out[i] = total


@ruda.jit
def named_tuple(line, x, out):
    i = ruda.grid(1)
    if i < out.size:
        out[i] = line.slope * x[i] + line[1]


@ruda.jit
def nested_named_tuple(points, out):
    i = ruda.grid(1)
    if i < out.size:
        out[i] = points.y[i] - (points.line.slope * points.x[i] + points.line.offset)


@ruda.jit
def nested_unpacking(x, out):
    i = ruda.grid(1)
    if i < out.size:
        (a, b), c = (x[i], x[i] + 1), 2
        first, (second, third) = a, (b, c)
        out[i] = first * 100 + second * 10 + third


@ruda.jit
def rotation(x, out):
    i = ruda.grid(1)
    if i < out.size:
        a, b, c = x[i], x[i] * 2, x[i] * 3
        for _ in range(4):
            a, b, c = b, c, a
        out[i] = a + 10 * b + 100 * c


@ruda.jit
def loops_over_tuples(x, out):
    i = ruda.grid(1)
    if i < out.size:
        total = ruda.float64(0)
        for k, (weight, power) in enumerate(((1, 1), (0.5, 2), (2, 3))):
            total += weight * x[i] ** power + k
        out[i] = total


@ruda.jit
def neighbourhood(image, out):
    j, i = ruda.grid(2)
    if 0 < i < image.shape[0] - 1 and 0 < j < image.shape[1] - 1:
        total = 0
        for di, dj in ((-1, 0), (1, 0), (0, -1), (0, 1)):
            total += image[i + di, j + dj]
        out[i, j] = total


def neighbours(image, out):
    out[1:-1, 1:-1] = image[:-2, 1:-1] + image[2:, 1:-1] + image[1:-1, :-2] + image[1:-1, 2:]
    return out


@ruda.jit
def min_and_max_of_tuples(x, out):
    i = ruda.grid(1)
    if i < out.size:
        values = (x[i], 3, -x[i])
        out[i] = max(values) - min(values)


@ruda.jit
def tuples_joined_over_branches(x, out):
    i = ruda.grid(1)
    if i < out.size:
        pair = (x[i], 1)
        if x[i] < 0:
            pair = (-x[i], 2)
        out[i] = pair[0] * pair[1]


@ruda.jit
def tuples_made_in_kernels(x, out):
    i = ruda.grid(1)
    if i < out.size:
        line = Line(2.0, x[i])
        out[i] = line.slope * line.offset


@ruda.jit
def concatenation_and_slices(x, out):
    i = ruda.grid(1)
    if i < out.size:
        values = (x[i], 2) + (3,)  # noqa: RUF005
        tail = values[1:]
        out[i] = values[0] * tail[0] + tail[-1] + len(values) * 1000 + len(tail)


def small(rng, n):
    return integers(rng, n, least=-99, most=99)


CASES = [
    Case(
        tuple_of_scalars,
        lambda rng, n: ((2, np.float64(0.5)), small(rng, n), Out(n, np.float64)),
        lambda weights, x: 2 * x + 2.5,
    ),
    Case(
        tuple_of_arrays,
        lambda rng, n: (
            (small(rng, n), integers(rng, n, dtype=np.int8), integers(rng, n, dtype=np.uint16)),
            Out(n, np.int64),
        ),
        lambda arrays: sum(a.astype(np.int64) for a in arrays),
    ),
    Case(
        named_tuple,
        lambda rng, n: (Line(2.0, 0.5), small(rng, n).astype(np.float32), Out(n)),
        lambda line, x: 2 * x + np.float32(0.5),
    ),
    Case(
        nested_named_tuple,
        lambda rng, n: (
            Points(small(rng, n), small(rng, n), Line(np.float64(1.5), 2)),
            Out(n, np.float64),
        ),
        lambda points: points.y - (1.5 * points.x + 2),
    ),
    Case(
        nested_unpacking,
        lambda rng, n: (small(rng, n), Out(n, np.int32)),
        lambda x: 100 * x + 10 * (x + 1) + 2,
    ),
    Case(
        rotation,
        lambda rng, n: (small(rng, n), Out(n, np.int32)),
        lambda x: 2 * x + 30 * x + 100 * x,
    ),
    Case(
        loops_over_tuples,
        lambda rng, n: (small(rng, n).astype(np.float64), Out(n, np.float64)),
        lambda x: x + 0.5 * x**2 + 2 * x**3 + 3,
    ),
    Case(
        neighbourhood,
        lambda rng, n: (
            integers(rng, n, n + 2, least=-99, most=99),
            InOut(np.zeros((n, n + 2), np.int32)),
        ),
        neighbours,
        grid=lambda n: (n // 8 + 1, n // 8 + 1),
        block=(8, 8),
        sizes=(3, 6, 17),
    ),
    Case(
        min_and_max_of_tuples,
        lambda rng, n: (small(rng, n), Out(n, np.int32)),
        lambda x: np.maximum(np.abs(x), 3) - np.minimum(-np.abs(x), 3),
    ),
    Case(
        tuples_joined_over_branches,
        lambda rng, n: (small(rng, n), Out(n, np.int32)),
        lambda x: np.where(x < 0, -2 * x, x),
    ),
    Case(
        tuples_made_in_kernels,
        lambda rng, n: (normal(rng, n), Out(n)),
        lambda x: 2 * x,
    ),
    Case(
        concatenation_and_slices,
        lambda rng, n: (small(rng, n), Out(n, np.int32)),
        lambda x: 2 * x + 3 + 3002,
    ),
]
