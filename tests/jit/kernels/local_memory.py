"""Arrays of one thread."""

import numpy as np

import ruda
from tests.jit.case import Case, Near, Out
from tests.jit.data import integers, normal

SMALL = (0, 1, 7, 100)


@ruda.jit
def insertion_sort(x, out):
    i = ruda.grid(1)
    if i < x.shape[0]:
        row = ruda.local.array(9, ruda.float32)
        for k in range(9):
            value = x[i, k]
            j = k
            while j > 0 and row[j - 1] > value:
                row[j] = row[j - 1]
                j -= 1
            row[j] = value
        for k in range(9):
            out[i, k] = row[k]


@ruda.jit
def median_of_nine(x, out):
    i = ruda.grid(1)
    if i < out.size:
        row = ruda.local.array(shape=9, dtype=ruda.float32)
        for k in range(9):
            row[k] = x[i, k]
        for end in range(8, 3, -1):
            for k in range(end):
                if row[k] > row[k + 1]:
                    row[k], row[k + 1] = row[k + 1], row[k]
        out[i] = row[4]


@ruda.jit
def histogram_of_digits(x, out):
    i = ruda.grid(1)
    if i < x.size:
        counts = ruda.local.array(10, ruda.int32)
        for k in range(10):
            counts[k] = 0
        value = x[i]
        while value > 0:
            counts[value % 10] += 1
            value //= 10
        for k in range(10):
            out[i, k] = counts[k]


def digits(x):
    return [[str(v).count(str(k)) if v else 0 for k in range(10)] for v in x.tolist()]


@ruda.jit
def small_matrix_product(a, b, out):
    i = ruda.grid(1)
    if i < a.shape[0]:
        product = ruda.local.array((3, 3), ruda.float32)
        for r in range(3):
            for c in range(3):
                product[r, c] = 0
                for k in range(3):
                    product[r, c] += a[i, r, k] * b[i, k, c]
        for r in range(3):
            for c in range(3):
                out[i, r, c] = product[r, c]


@ruda.jit
def fill(buffer, value):
    for k in range(len(buffer)):
        buffer[k] = value


@ruda.jit
def total(buffer):
    result = ruda.int64(0)
    for k in range(buffer.size):
        result += buffer[k]
    return result


@ruda.jit
def passed_to_device_functions(x, out):
    i = ruda.grid(1)
    if i < out.size:
        buffer = ruda.local.array(5, ruda.int32)
        fill(buffer, x[i])
        buffer[2] = 100
        out[i] = total(buffer)


@ruda.jit
def stores_narrow_to_the_dtype(x, out):
    i = ruda.grid(1)
    if i < out.size:
        cell = ruda.local.array(1, ruda.uint8)
        cell[0] = x[i]
        out[i] = cell[0]


@ruda.jit
def one_array_per_dtype(x, out):
    i = ruda.grid(1)
    if i < out.size:
        a = ruda.local.array(2, np.int16)
        b = ruda.local.array(2, "float64")
        c = ruda.local.array(2, ruda.bool_)
        a[0] = x[i]
        a[1] = a[0] - 1
        b[0] = a[1] / 4
        b[1] = b[0] + 0.5
        c[0] = b[1] > 0
        c[1] = not c[0]
        out[i] = b[1] + (1000 if c[0] else 0) + (2000 if c[1] else 0)


def per_dtype(x):
    a = x.astype(np.int16).astype(np.float64)
    b = (a - 1) / 4 + 0.5
    return b + np.where(b > 0, 1000, 2000)


@ruda.jit
def indexed_by_data(x, table, out):
    i = ruda.grid(1)
    if i < out.size:
        stack = ruda.local.array(8, ruda.int32)
        top = 0
        stack[top] = x[i]
        top += 1
        visited = 0
        while top > 0:
            top -= 1
            node = stack[top]
            visited = visited * 3 + node
            left = 2 * node + 1
            if left < table.size:
                stack[top] = left
                top += 1
            if left + 1 < table.size:
                stack[top] = left + 1
                top += 1
        out[i] = visited


def visit(node, size):
    stack, visited = [node], 0
    while stack:
        node = stack.pop()
        visited = visited * 3 + node
        stack += [child for child in (2 * node + 1, 2 * node + 2) if child < size]
    return (visited + 2**31) % 2**32 - 2**31


@ruda.jit
def polynomial_coefficients(x, out):
    i = ruda.grid(1)
    if i < out.size:
        c = ruda.local.array(4, ruda.float64)
        c[0] = 1.0
        c[1] = -0.5
        c[2] = 0.25
        c[-1] = 2.0
        y = ruda.float64(0)
        for k in range(3, -1, -1):
            y = y * x[i] + c[k]
        out[i] = y


CASES = [
    Case(
        insertion_sort,
        lambda rng, n: (normal(rng, n, 9), Out((n, 9))),
        lambda x: np.sort(x, axis=1),
        sizes=SMALL,
    ),
    Case(
        median_of_nine,
        lambda rng, n: (normal(rng, n, 9), Out(n)),
        lambda x: np.median(x, axis=1) if len(x) else np.zeros(0),
        sizes=SMALL,
    ),
    Case(
        histogram_of_digits,
        lambda rng, n: (integers(rng, n, least=0), Out((n, 10), np.int32)),
        lambda x: np.array(digits(x)).reshape(-1, 10),
        sizes=SMALL,
    ),
    Case(
        small_matrix_product,
        lambda rng, n: (normal(rng, n, 3, 3), normal(rng, n, 3, 3), Out((n, 3, 3))),
        lambda a, b: Near(np.float64(a) @ b, np.abs(np.float64(a)) @ np.abs(b)),
        ulps=3,
        sizes=SMALL,
    ),
    Case(
        passed_to_device_functions,
        lambda rng, n: (integers(rng, n), Out(n, np.int64)),
        lambda x: 4 * x.astype(np.int64) + 100,
        sizes=SMALL,
    ),
    Case(
        stores_narrow_to_the_dtype,
        lambda rng, n: (integers(rng, n), Out(n, np.int32)),
        lambda x: x.astype(np.uint8),
        sizes=SMALL,
    ),
    Case(
        one_array_per_dtype,
        lambda rng, n: (integers(rng, n, least=-30000, most=30000), Out(n, np.float64)),
        per_dtype,
        sizes=SMALL,
    ),
    Case(
        indexed_by_data,
        lambda rng, n: (
            integers(rng, n, least=0, most=12),
            np.zeros(13, np.int8),
            Out(n, np.int32),
        ),
        lambda x, table: [visit(v, 13) for v in x.tolist()],
        sizes=SMALL,
    ),
    Case(
        polynomial_coefficients,
        lambda rng, n: (
            integers(rng, n, least=-50, most=50).astype(np.float32),
            Out(n, np.float64),
        ),
        lambda x: ((2.0 * np.float64(x) + 0.25) * x - 0.5) * x + 1.0,
        sizes=SMALL,
    ),
]
