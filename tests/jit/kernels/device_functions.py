"""Functions called from kernels."""

import math

import numpy as np

import ruda
from tests.jit.case import Case, InOut, Near, Out
from tests.jit.data import integers, normal, uniform


@ruda.jit
def square(x):
    return x * x


@ruda.jit(device=True)
def cube(x):
    return square(x) * x


@ruda.jit
def chain_of_calls(x, out):
    i = ruda.grid(1)
    if i < out.size:
        out[i] = cube(x[i]) - square(x[i])


@ruda.jit
def one_function_at_several_types(x, k, out_x, out_k):
    i = ruda.grid(1)
    if i < x.size:
        out_x[i] = square(x[i])
        out_k[i] = square(k[i])


@ruda.jit
def clamp(x, low=0.0, high=1.0):
    if x < low:
        return low
    if x > high:
        return high
    return x


@ruda.jit
def defaults_and_keywords(x, out):
    i = ruda.grid(1)
    if i < x.size:
        out[0, i] = clamp(x[i])
        out[1, i] = clamp(x[i], -0.5)
        out[2, i] = clamp(x[i], high=0.5)
        out[3, i] = clamp(high=2.0, low=-2.0, x=x[i])


@ruda.jit
def min_and_max(a, b):
    return min(a, b), max(a, b)


@ruda.jit
def tuples_returned(x, y, low, high):
    i = ruda.grid(1)
    if i < x.size:
        low[i], high[i] = min_and_max(x[i], y[i])


@ruda.jit
def store_twice(out, i, value):
    out[i] = value
    out[i] += 1


@ruda.jit
def functions_without_result(x, out):
    i = ruda.grid(1)
    if i < out.size:
        store_twice(out, i, x[i])


@ruda.jit
def find_first(row, wanted):
    for k in range(row.size):
        if row[k] == wanted:
            return k
    return -1


@ruda.jit
def returns_from_loops(x, out):
    i = ruda.grid(1)
    if i < out.size:
        out[i] = find_first(x[i], 3)


@ruda.jit
def dot(a, b):
    total = ruda.float64(0)
    for k in range(a.size):
        total += a[k] * b[k]
    return total


@ruda.jit
def rows_as_arguments(a, b, out):
    i = ruda.grid(1)
    if i < out.size:
        out[i] = dot(a[i], b[i]) + dot(a[i], a[i])


@ruda.jit
def grid_in_a_function(out):
    i = own_index()
    if i < out.size:
        out[i] = i


@ruda.jit
def own_index():
    return ruda.blockIdx.x * ruda.blockDim.x + ruda.threadIdx.x


@ruda.jit
def arguments_are_copies(x, out):
    i = ruda.grid(1)
    if i < out.size:
        value = x[i]
        changed = doubled_until_large(value)
        out[i] = value + 1000 * changed


@ruda.jit
def doubled_until_large(value):
    while value < 100:
        value *= 2
    return value


def double_until_large(value):
    while value < 100:
        value *= 2
    return value


@ruda.jit
def mixed_returns(x):
    if x > 0:
        return 1
    return x * 0.5


@ruda.jit
def results_promote(x, out):
    i = ruda.grid(1)
    if i < out.size:
        out[i] = mixed_returns(x[i]) * 2


def apply_twice(function):
    @ruda.jit
    def twice(x):
        return function(function(x))

    return twice


fourth_power = apply_twice(square)


@ruda.jit
def functions_made_by_functions(x, out):
    i = ruda.grid(1)
    if i < out.size:
        out[i] = fourth_power(x[i])


def kernel_of(function):
    """One kernel text, several functions: each closure is its own specialisation."""

    @ruda.jit
    def kernel(x, out):
        i = ruda.grid(1)
        if i < out.size:
            out[i] = function(x[i])

    return kernel


@ruda.jit
def lerp(a, b, t):
    return a + (b - a) * t


@ruda.jit
def bilinear(image, x, y):
    column, row = int(x), int(y)
    top = lerp(image[row, column], image[row, column + 1], x - column)
    bottom = lerp(image[row + 1, column], image[row + 1, column + 1], x - column)
    return lerp(top, bottom, y - row)


@ruda.jit
def nested_calls_on_images(image, xs, ys, out):
    i = ruda.grid(1)
    if i < out.size:
        out[i] = bilinear(image, xs[i], ys[i])


def near_bilinear(image, xs, ys):
    image, xs, ys = (np.float64(v) for v in (image, xs, ys))
    columns, rows = xs.astype(int), ys.astype(int)
    fx, fy = xs - columns, ys - rows

    def mix(a, b, t):
        return a + (b - a) * t

    top = mix(image[rows, columns], image[rows, columns + 1], fx)
    bottom = mix(image[rows + 1, columns], image[rows + 1, columns + 1], fx)
    return Near(mix(top, bottom, fy), 4 * np.abs(image).max())


@ruda.jit
def math_in_functions(x, out):
    i = ruda.grid(1)
    if i < out.size:
        out[i] = softplus(x[i])


@ruda.jit
def softplus(x):
    return max(x, 0.0) + math.log1p(math.exp(-abs(x)))


def small(rng, n):
    return integers(rng, n, least=-1000, most=1000)


CASES = [
    Case(
        chain_of_calls,
        lambda rng, n: (small(rng, n), Out(n, np.int32)),
        lambda x: x**3 - x**2,
    ),
    Case(
        one_function_at_several_types,
        lambda rng, n: (normal(rng, n), integers(rng, n), Out(n), Out(n, np.int32)),
        lambda x, k: (x * x, k * k),
    ),
    Case(
        defaults_and_keywords,
        lambda rng, n: (normal(rng, n), Out((4, n))),
        lambda x: np.array(
            [np.clip(x, 0, 1), np.clip(x, -0.5, 1), np.clip(x, 0, 0.5), np.clip(x, -2, 2)]
        ),
    ),
    Case(
        tuples_returned,
        lambda rng, n: (normal(rng, n), normal(rng, n), Out(n), Out(n)),
        lambda x, y: (np.minimum(x, y), np.maximum(x, y)),
    ),
    Case(
        functions_without_result,
        lambda rng, n: (small(rng, n), Out(n, np.int32)),
        lambda x: x + 1,
    ),
    Case(
        returns_from_loops,
        lambda rng, n: (integers(rng, n, 6, least=0, most=9), Out(n, np.int32)),
        lambda x: np.where((x == 3).any(axis=1), (x == 3).argmax(axis=1), -1),
        sizes=(0, 1, 7, 256),
    ),
    Case(
        rows_as_arguments,
        lambda rng, n: (
            integers(rng, n, 5, least=-99, most=99),
            integers(rng, n, 5, least=-99, most=99),
            Out(n, np.float64),
        ),
        lambda a, b: (a * b).sum(axis=1) + (a * a).sum(axis=1),
        sizes=(0, 1, 7, 100),
    ),
    Case(
        grid_in_a_function,
        lambda rng, n: (InOut(np.zeros(n, np.int32)),),
        lambda out: np.arange(out.size),
    ),
    Case(
        arguments_are_copies,
        lambda rng, n: (integers(rng, n, least=1, most=200), Out(n, np.int32)),
        lambda x: [v + 1000 * double_until_large(v) for v in x.tolist()],
    ),
    Case(
        results_promote,
        lambda rng, n: (normal(rng, n), Out(n)),
        lambda x: np.where(x > 0, np.float32(2), x),
    ),
    Case(
        functions_made_by_functions,
        lambda rng, n: (integers(rng, n, least=-100, most=100), Out(n, np.int32)),
        lambda x: x**4,
    ),
    *(
        Case(
            kernel_of(function),
            lambda rng, n: (small(rng, n), Out(n, np.int32)),
            meaning,
            name=f"kernel_of_{name}",
        )
        for name, function, meaning in (
            ("square", square, lambda x: x**2),
            ("cube", cube, lambda x: x**3),
            ("abs", abs, np.abs),
        )
    ),
    Case(
        nested_calls_on_images,
        lambda rng, n: (
            normal(rng, 9, 11),
            uniform(rng, 0, 9.9, n),
            uniform(rng, 0, 7.9, n),
            Out(n),
        ),
        near_bilinear,
        ulps=4,
    ),
    Case(
        math_in_functions,
        lambda rng, n: (normal(rng, n) * 10, Out(n)),
        lambda x: np.logaddexp(np.float64(x), 0),
        ulps=4,
    ),
]
