"""Slices are views: iterated, passed on, assigned, reduced."""

import numpy as np

import ruda
from tests.jit.case import Case, InOut, Near, Out
from tests.jit.data import integers, normal


@ruda.jit
def sum_of_a_slice(x, out):
    i = ruda.grid(1)
    if i < out.size:
        out[i] = x[i, 1:-1].sum()


@ruda.jit
def iterate_over_a_row(x, out):
    i = ruda.grid(1)
    if i < out.size:
        total = 0
        for value in x[i]:
            total = total * 3 + value
        out[i] = total


@ruda.jit
def strided_slices(x, out):
    i = ruda.grid(1)
    if i < x.shape[0]:
        row = x[i, 1::2]
        back = x[i, ::-1]
        out[i, 0] = row.size
        out[i, 1] = row[0] + row[-1]
        out[i, 2] = back[0]
        out[i, 3] = back[back.size - 1]
        out[i, 4] = x[i, 5:2:-2].sum()


def strided(x):
    columns = [np.full(len(x), 4), x[:, 1] + x[:, 7], x[:, 7], x[:, 0], x[:, 5] + x[:, 3]]
    return np.stack(columns, axis=1)


@ruda.jit
def slice_of_a_slice(x, out):
    i = ruda.grid(1)
    if i < out.size:
        window = x[i : i + 5]
        inner = window[1:4]
        out[i] = inner[0] * 100 + inner[1] * 10 + inner[2]


@ruda.jit
def columns_and_planes(x, out):
    i = ruda.grid(1)
    if i < x.shape[1]:
        column = x[:, i, 0]
        plane = x[..., 1]
        total = 0
        for k in range(column.shape[0]):
            total += column[k] - plane[k, i]
        out[i] = total


@ruda.jit
def assignment_to_a_slice(x):
    i = ruda.grid(1)
    if i < x.shape[0]:
        x[i, 1:4] = 7
        x[i, 4:] = x[i, :2]


def assigned(x):
    x[:, 1:4] = 7
    x[:, 4:] = x[:, :2]
    return x


@ruda.jit
def store_through_a_view(x):
    i = ruda.grid(1)
    if i < x.shape[0]:
        row = x[i]
        inner = row[1:3]
        inner[0] = 10
        inner[1] += 5
        row[-1] = i


def stored(x):
    x[:, 1] = 10
    x[:, 2] += 5
    x[:, -1] = np.arange(len(x))
    return x


@ruda.jit
def reductions_of_views(x, total, least, most, product):
    i = ruda.grid(1)
    if i < x.shape[0]:
        total[i] = x[i].sum()
        least[i] = x[i].min()
        most[i] = x[i].max()
        product[i] = x[i, :3].prod()


@ruda.jit
def dot_of_views(a, b, out):
    i = ruda.grid(1)
    if i < out.size:
        out[i] = np.dot(a[i], b[:, i])


@ruda.jit
def sum_of(values):
    total = ruda.float64(0)
    for k in range(values.size):
        total += values[k]
    return total


@ruda.jit
def views_as_arguments(x, out):
    i = ruda.grid(1)
    if i < out.size:
        out[i] = sum_of(x[i, ::2]) - sum_of(x[i, 1::2]) + sum_of(x[:, 0])


def as_arguments(x):
    x = x.astype(np.float64)
    return x[:, ::2].sum(axis=1) - x[:, 1::2].sum(axis=1) + x[:, 0].sum()


@ruda.jit
def empty_and_clipped_slices(x, out):
    i = ruda.grid(1)
    if i < x.shape[0]:
        out[i, 0] = x[i, 3:3].size
        out[i, 1] = x[i, 5:2].size
        out[i, 2] = x[i, 4:100].size
        out[i, 3] = x[i, -2:].size
        out[i, 4] = x[i, :-20].size
        total = 0
        for value in x[i, 6:2]:
            total += value
        out[i, 5] = total


@ruda.jit
def bounds_from_data(x, starts, stops, out):
    i = ruda.grid(1)
    if i < out.size:
        total = 0
        for value in x[starts[i] : stops[i]]:
            total += value
        out[i] = total


@ruda.jit
def transposed_slices(x, out):
    i = ruda.grid(1)
    if i < out.size:
        out[i] = x.T[i, 1:].sum()


@ruda.jit
def view_chosen_by_a_branch(x, out):
    i = ruda.grid(1)
    if i < out.size:
        row = x[0]
        if i % 2:
            row = x[1]
        out[i] = row[i % 4] * 2


CASES = [
    Case(
        sum_of_a_slice,
        lambda rng, n: (integers(rng, n, 8, least=-99, most=99), Out(n, np.int32)),
        lambda x: x[:, 1:-1].sum(axis=1),
    ),
    Case(
        iterate_over_a_row,
        lambda rng, n: (integers(rng, n, 5, least=-9, most=9), Out(n, np.int32)),
        lambda x: x @ [81, 27, 9, 3, 1],
    ),
    Case(
        strided_slices,
        lambda rng, n: (integers(rng, n, 8, least=-99, most=99), Out((n, 5), np.int32)),
        strided,
    ),
    Case(
        slice_of_a_slice,
        lambda rng, n: (integers(rng, n + 4, least=-99, most=99), Out(n, np.int32)),
        lambda x: x[1:-3] * 100 + x[2:-2] * 10 + x[3:-1],
    ),
    Case(
        columns_and_planes,
        lambda rng, n: (integers(rng, 4, n, 2, least=-99, most=99), Out(n, np.int32)),
        lambda x: (x[..., 0] - x[..., 1]).sum(axis=0),
    ),
    Case(assignment_to_a_slice, lambda rng, n: (InOut(integers(rng, n, 6)),), assigned),
    Case(
        store_through_a_view,
        lambda rng, n: (InOut(integers(rng, n, 6, least=-99, most=99)),),
        stored,
    ),
    Case(
        reductions_of_views,
        lambda rng, n: (
            integers(rng, n, 6, least=-99, most=99),
            *(Out(n, np.int32) for _ in range(4)),
        ),
        lambda x: (x.sum(axis=1), x.min(axis=1), x.max(axis=1), x[:, :3].prod(axis=1)),
    ),
    Case(
        views_as_arguments,
        lambda rng, n: (integers(rng, n, 7, least=-99, most=99), Out(n, np.float64)),
        as_arguments,
        sizes=(0, 1, 7, 64),
    ),
    Case(
        empty_and_clipped_slices,
        lambda rng, n: (integers(rng, n, 8), Out((n, 6), np.int32)),
        lambda x: [0, 0, 4, 2, 0, 0],
    ),
    Case(
        bounds_from_data,
        lambda rng, n: (
            integers(rng, 20, least=-99, most=99),
            integers(rng, n, least=0, most=20),
            integers(rng, n, least=0, most=20),
            Out(n, np.int32),
        ),
        lambda x, starts, stops: [x[a:b].sum() for a, b in zip(starts, stops, strict=True)],
    ),
    Case(
        transposed_slices,
        lambda rng, n: (integers(rng, 6, n, least=-99, most=99), Out(n, np.int32)),
        lambda x: x[1:].sum(axis=0),
    ),
    Case(
        view_chosen_by_a_branch,
        lambda rng, n: (integers(rng, 2, n, least=-99, most=99), Out(n, np.int32)),
        lambda x: [2 * x[k % 2, k % 4] for k in range(x.shape[1])],
        sizes=(4, 7, 256),
    ),
]

PENDING = [
    Case(
        dot_of_views,
        lambda rng, n: (normal(rng, n, 5), normal(rng, 5, n), Out(n)),
        lambda a, b: Near(
            np.einsum("ik,ki->i", np.float64(a), b),
            np.einsum("ik,ki->i", np.abs(np.float64(a)), np.abs(b)),
        ),
        ulps=4,
    ),
]
