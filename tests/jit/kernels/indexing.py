"""Where a thread is, and how it reaches the elements of arrays of any shape and layout."""

import numpy as np

import ruda
from tests.jit.case import Case, InOut, Out
from tests.jit.data import integers, normal


def blocks(extent, block):
    return max(1, -(-extent // block))


@ruda.jit
def grid_1d_by_hand(out):
    i = ruda.blockIdx.x * ruda.blockDim.x + ruda.threadIdx.x
    if i < out.size:
        out[i] = i


@ruda.jit
def grid_2d(out):
    x, y = ruda.grid(2)
    if y < out.shape[0] and x < out.shape[1]:
        out[y, x] = 1000 * y + x


@ruda.jit
def grid_3d(out):
    x, y, z = ruda.grid(3)
    if z < out.shape[0] and y < out.shape[1] and x < out.shape[2]:
        out[z, y, x] = 10000 * z + 100 * y + x


@ruda.jit
def launch_coordinates(out):
    x, y, z = ruda.grid(3)
    t = ruda.threadIdx
    out[z, y, x, 0] = t.x + 10 * t.y + 100 * ruda.threadIdx.z
    out[z, y, x, 1] = ruda.blockIdx.x + 10 * ruda.blockIdx.y + 100 * ruda.blockIdx.z
    out[z, y, x, 2] = ruda.blockDim.x + 10 * ruda.blockDim.y + 100 * ruda.blockDim.z
    out[z, y, x, 3] = ruda.gridDim.x + 10 * ruda.gridDim.y + 100 * ruda.gridDim.z


def coordinates():
    grid, block = (3, 2, 2), (4, 3, 2)
    total = tuple(g * b for g, b in zip(grid, block, strict=True))
    z, y, x = np.indices(total[::-1])
    weights = (1, 10, 100)
    out = np.zeros((*total[::-1], 4), np.int32)
    for at, size, count, weight in zip((x, y, z), block, grid, weights, strict=True):
        out[..., 0] += weight * (at % size)
        out[..., 1] += weight * (at // size)
        out[..., 2] += weight * size
        out[..., 3] += weight * count
    return out


@ruda.jit
def grid_stride_loop(x, out):
    for i in range(ruda.grid(1), out.size, ruda.gridsize(1)):
        out[i] = x[i] + 1


@ruda.jit
def grid_stride_2d(out):
    x, y = ruda.grid(2)
    width, height = ruda.gridsize(2)
    for row in range(y, out.shape[0], height):
        for column in range(x, out.shape[1], width):
            out[row, column] = row * 100 + column


@ruda.jit
def four_dimensions(x, out):
    i = ruda.grid(1)
    if i < x.size:
        d = i % x.shape[3]
        c = i // x.shape[3] % x.shape[2]
        b = i // (x.shape[3] * x.shape[2]) % x.shape[1]
        a = i // (x.shape[3] * x.shape[2] * x.shape[1])
        out[d, c, b, a] = x[a, b, c, d]


@ruda.jit
def negative_literal_indices(x, out):
    i = ruda.grid(1)
    if i < out.size:
        out[i] = x[-1] - x[-2] + x[i]


@ruda.jit
def a_row_is_a_view(x, out):
    i = ruda.grid(1)
    if i < x.shape[0]:
        row = x[i]
        total = ruda.float64(0)
        for k in range(row.size):
            total += row[k]
        out[i] = total


@ruda.jit
def attributes_of_arrays(x, out):
    i = ruda.grid(1)
    if i == 0:
        out[0] = x.size
        out[1] = x.ndim
        out[2] = x.shape[0]
        out[3] = x.shape[1]
        out[4] = x.shape[-1]
        out[5] = len(x)
        out[6] = len(x.shape)
        rows, columns = x.shape
        out[7] = rows * 1000 + columns


@ruda.jit
def strides_are_bytes(x, out):
    if ruda.grid(1) == 0:
        out[0] = x.strides[0]
        out[1] = x.strides[1]


@ruda.jit
def transposed_view(x, out):
    i, j = ruda.grid(2)
    turned = x.T
    if i < turned.shape[0] and j < turned.shape[1]:
        out[i, j] = turned[i, j]


@ruda.jit
def copy_2d(x, out):
    j, i = ruda.grid(2)
    if i < out.shape[0] and j < out.shape[1]:
        out[i, j] = x[i, j]


def copy_case(name, view):
    return Case(
        copy_2d,
        lambda rng, n: (view(normal(rng, n, 12)), Out(view(np.empty((n, 12))).shape)),
        lambda x: x,
        grid=lambda n: (blocks(max(n, 12), 8), blocks(max(n, 12), 8)),
        block=(8, 8),
        sizes=(0, 1, 7, 16),
        name=f"copy_2d_{name}",
    )


@ruda.jit
def negate_in_place(x):
    j, i = ruda.grid(2)
    if i < x.shape[0] and j < x.shape[1]:
        x[i, j] = -x[i, j]


def negate_case(name, view):
    def expected(x):
        view(x)[...] *= -1
        return x

    return Case(
        negate_in_place,
        lambda rng, n: (InOut(normal(rng, n, 12), view),),
        expected,
        grid=lambda n: (blocks(max(n, 12), 8), blocks(max(n, 12), 8)),
        block=(8, 8),
        sizes=(0, 1, 7, 16),
        name=f"negate_{name}",
    )


VIEWS = [
    ("c_order", lambda a: a),
    ("every_second_row", lambda a: a[::2]),
    ("every_third_column", lambda a: a[:, ::3]),
    ("inner", lambda a: a[1:-1, 2:-2]),
    ("reversed_rows", lambda a: a[::-1]),
    ("reversed_columns", lambda a: a[:, ::-2]),
    ("transposed", lambda a: a.T),
]


@ruda.jit
def scalar_array(scale, x, out):
    i = ruda.grid(1)
    if i < out.size:
        out[i] = scale[()] * x[i]


@ruda.jit
def tuple_as_index(x, out):
    j, i = ruda.grid(2)
    if i < out.shape[0] and j < out.shape[1]:
        here = (i, j)
        out[here] = x[here] * 2


@ruda.jit
def gather(x, places, out):
    i = ruda.grid(1)
    if i < out.size:
        out[i] = x[places[i]]


@ruda.jit
def scatter(x, places, out):
    i = ruda.grid(1)
    if i < x.size:
        out[places[i]] = x[i]


@ruda.jit
def unsigned_and_small_indices(x, bytes_, words, out):
    i = ruda.grid(1)
    if i < out.size:
        out[i] = x[bytes_[i]] + x[words[i]]


@ruda.jit
def shifted_neighbours(x, out):
    i = ruda.grid(1)
    if i < out.size:
        left = x[i - 1] if i > 0 else x[x.size - 1]
        right = x[i + 1] if i + 1 < x.size else x[0]
        out[i] = right - left


@ruda.jit
def booleans_select(mask, x, out):
    i = ruda.grid(1)
    if i < out.size:
        if mask[i]:
            out[i] = x[i]
        else:
            out[i] = 0


@ruda.jit
def a_chain_of_indices(x, out):
    i = ruda.grid(1)
    if i < out.size:
        out[i] = x[i][1][0]


@ruda.jit
def arrays_swap_their_names(a, b, out):
    i = ruda.grid(1)
    if i < out.size:
        source, other = a, b
        for _ in range(i % 3):
            source, other = other, source
        out[i] = source[i] - 2 * other[i]


def swapped(a, b):
    odd = np.arange(a.size) % 3 == 1
    return np.where(odd, b - 2 * a, a - 2 * b)


two_d = {
    "grid": lambda n: (blocks(n + 3, 16), blocks(n, 8)),
    "block": (16, 8),
    "sizes": (0, 1, 7, 20),
}


@ruda.jit
def negative_indices_of_a_run(x, out):
    for k in range(x.size):  # by one thread: a wrapped thread index would be warned of
        back = k - x.size
        out[-1 - k] = x[back] + x[back // 2]


CASES = [
    Case(
        negative_indices_of_a_run,
        lambda rng, n: (normal(rng, n), Out(n)),
        lambda x: (x + x[(np.arange(x.size) - x.size) // 2])[::-1],
        grid=1,
        block=1,
        sizes=(0, 1, 7, 200),
    ),
    Case(
        grid_1d_by_hand,
        lambda rng, n: (InOut(np.full(n, -1)),),
        lambda out: np.arange(out.size),
    ),
    Case(
        grid_2d,
        lambda rng, n: (InOut(np.full((n, n + 3), -1)),),
        lambda out: 1000 * np.indices(out.shape)[0] + np.indices(out.shape)[1],
        **two_d,
    ),
    Case(
        grid_3d,
        lambda rng, n: (InOut(np.full((n, n + 2, n + 1), -1)),),
        lambda out: np.tensordot([10000, 100, 1], np.indices(out.shape), 1),
        grid=lambda n: (blocks(n + 1, 4), blocks(n + 2, 4), blocks(n, 2)),
        block=(4, 4, 2),
        sizes=(0, 1, 3, 6),
    ),
    Case(
        launch_coordinates,
        lambda rng, n: (Out((4, 6, 12, 4), np.int32),),
        coordinates,
        grid=(3, 2, 2),
        block=(4, 3, 2),
        sizes=(1,),
    ),
    Case(
        grid_stride_loop,
        lambda rng, n: (normal(rng, n), Out(n)),
        lambda x: x + 1,
        grid=3,
        block=32,
    ),
    Case(
        grid_stride_2d,
        lambda rng, n: (InOut(np.zeros((n, n + 5), np.int32)),),
        lambda out: 100 * np.indices(out.shape)[0] + np.indices(out.shape)[1],
        grid=(2, 2),
        block=(4, 2),
        sizes=(0, 1, 13),
    ),
    Case(
        four_dimensions,
        lambda rng, n: (normal(rng, n, 3, 2, 5), Out((5, 2, 3, n))),
        lambda x: x.transpose(3, 2, 1, 0),
        grid=lambda n: blocks(30 * n, 64),
        sizes=(0, 1, 7),
    ),
    Case(
        negative_literal_indices,
        lambda rng, n: (integers(rng, n, least=-99, most=99), Out(n, np.int32)),
        lambda x: x[-1] - x[-2] + x,
        sizes=(2, 7, 256),
    ),
    Case(
        a_row_is_a_view,
        lambda rng, n: (integers(rng, n, 5).astype(np.float32), Out(n, np.float64)),
        lambda x: x.sum(axis=1, dtype=np.float64),
        sizes=(0, 1, 7, 100),
    ),
    Case(
        attributes_of_arrays,
        lambda rng, n: (normal(rng, n, 5), Out(8, np.int64)),
        lambda x: [x.size, 2, len(x), 5, 5, len(x), 2, len(x) * 1000 + 5],
        sizes=(0, 1, 7),
    ),
    Case(
        strides_are_bytes,
        lambda rng, n: (normal(rng, 2 * n, 15)[::2, ::3], Out(2, np.int64)),
        lambda x: list(x.strides),
        sizes=(2, 7),
    ),
    Case(
        transposed_view,
        lambda rng, n: (normal(rng, n, n + 3), Out((n + 3, n))),
        lambda x: x.T,
        **two_d,
    ),
    *(copy_case(name, view) for name, view in VIEWS),
    copy_case("fortran_order", np.asfortranarray),
    copy_case("broadcast", lambda a: np.broadcast_to(a[:, :1], (a.shape[0], 4))),
    *(negate_case(name, view) for name, view in VIEWS),
    Case(
        scalar_array,
        lambda rng, n: (np.array(2.5, np.float32), normal(rng, n), Out(n)),
        lambda scale, x: scale * x,
    ),
    Case(
        tuple_as_index,
        lambda rng, n: (normal(rng, n, n + 3), Out((n, n + 3))),
        lambda x: 2 * x,
        **two_d,
    ),
    Case(
        gather,
        lambda rng, n: (normal(rng, n), rng.integers(0, max(n, 1), n), Out(n)),
        lambda x, places: x[places],
    ),
    Case(
        scatter,
        lambda rng, n: (normal(rng, n), rng.permutation(n).astype(np.int32), Out(n)),
        lambda x, places: x[np.argsort(places)],
    ),
    Case(
        unsigned_and_small_indices,
        lambda rng, n: (
            normal(rng, 256),
            integers(rng, n, dtype=np.uint8),
            integers(rng, n, dtype=np.uint32, least=0, most=255),
            Out(n),
        ),
        lambda x, bytes_, words: x[bytes_] + x[words],
    ),
    Case(
        shifted_neighbours,
        lambda rng, n: (normal(rng, n), Out(n)),
        lambda x: np.roll(x, -1) - np.roll(x, 1),
    ),
    Case(
        booleans_select,
        lambda rng, n: (rng.random(n) < 0.5, normal(rng, n), Out(n)),
        lambda mask, x: np.where(mask, x, np.float32(0)),
    ),
    Case(
        a_chain_of_indices,
        lambda rng, n: (normal(rng, n, 3, 2), Out(n)),
        lambda x: x[:, 1, 0],
    ),
    Case(
        arrays_swap_their_names,
        lambda rng, n: (
            integers(rng, n, least=-99, most=99),
            integers(rng, n, least=-99, most=99),
            Out(n, np.int32),
        ),
        swapped,
    ),
]
