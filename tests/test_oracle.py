"""The oracle itself: rows of the language's rules, and threads that meet."""

import enum
import math
from typing import NamedTuple

import numpy as np
import pytest

from tests.oracle import (
    POISON,
    Number,
    OracleError,
    dtype_of,
    fma,
    launch,
    namespace,
    printed,
    promote,
    typed,
)

ruda = namespace
FLOAT_OF_POISON = np.frombuffer(bytes([POISON] * 4), np.float32)[0]


def run(kernel, grid, block, *arguments, **options):
    launch(kernel, grid, block, *arguments, globals={"ruda": namespace}, **options)


def of(dtype, value):
    return typed(value, dtype_of(dtype))


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        ("bool", "int8", "int8"),
        ("bool", "float16", "float16"),
        ("int8", "uint8", "int16"),
        ("int32", "uint32", "int64"),
        ("int64", "uint8", "int64"),
        ("int64", "uint64", "uint64"),
        ("int8", "uint64", "uint64"),
        ("int64", "float32", "float32"),
        ("int32", "float16", "float32"),
        ("uint64", "bfloat16", "float32"),
        ("float16", "bfloat16", "float32"),
        ("float16", "float32", "float32"),
        ("float32", "float64", "float64"),
        ("float32", "complex64", "complex64"),
        ("int64", "complex64", "complex64"),
        ("float64", "complex64", "complex128"),
    ],
)
def test_promotion(a, b, expected):
    assert promote(dtype_of(a), dtype_of(b)) == promote(dtype_of(b), dtype_of(a)) == expected


@pytest.mark.parametrize(
    ("compute", "expected"),
    [
        (lambda: of("int8", 100) + of("int8", 100), of("int32", 200)),
        (lambda: of("uint8", 3) - of("uint8", 5), of("int32", -2)),
        (lambda: of("int32", 2**31 - 1) + 1, of("int32", -(2**31))),
        (lambda: of("uint32", 0) - 1, of("uint32", 2**32 - 1)),
        (lambda: of("int32", -7) // of("int32", 2), of("int32", -4)),
        (lambda: of("int32", -7) % of("int32", 2), of("int32", 1)),
        (lambda: of("int32", 5) // of("int32", 0), of("int32", 0)),
        (lambda: of("int32", 5) % of("int32", 0), of("int32", 0)),
        (lambda: of("int64", -(2**63)) // of("int64", -1), of("int64", -(2**63))),
        (lambda: of("int64", -(2**63)) % of("int64", -1), of("int64", 0)),
        (lambda: of("int32", 1) << 32, of("int32", 0)),
        (lambda: of("int32", -5) >> 40, of("int32", -1)),
        (lambda: of("uint8", 200) << 4, of("int32", 3200)),
        (lambda: of("int32", 1) / of("int64", 3), of("float32", np.float32(1) / np.float32(3))),
        (lambda: of("int64", 1) * 0.5, of("float32", 0.5)),
        (lambda: of("float32", 1) * 0.1, of("float32", 0.1)),
        (lambda: 2 * of("float16", 1), of("float16", 2)),
        (lambda: of("float32", 1) + of("int64", 1), of("float32", 2)),
        (lambda: -of("uint32", 1), of("uint32", 2**32 - 1)),
        (lambda: of("int32", math.nan), of("int32", 0)),
        (lambda: of("int32", 1e20), of("int32", 2**31 - 1)),
        (lambda: of("uint8", -3.7), of("uint8", 0)),
        (lambda: of("int8", 200), of("int8", -56)),
        (lambda: of("float32", of("int64", 2**53 + 2**29 + 1)), of("float32", 2**53 + 2**30)),
        (lambda: of("complex64", 1j) * 2.0, of("complex64", 2j)),
        (lambda: of("complex64", 1j).imag, of("float32", 1)),
        (lambda: ruda.brev(of("uint32", 1)), of("uint32", 2**31)),
    ],
)
def test_scalars(compute, expected):
    with np.errstate(all="ignore"):
        got = compute()
    assert isinstance(got, Number)
    assert (got.dtype, got.value) == (expected.dtype, expected.value)


def test_min_and_max_propagate_nan():
    nan, one = of("float32", math.nan), of("float32", 1)
    for first, second in ((nan, one), (one, nan)):
        assert math.isnan(namespace.minimum(first, second).value)
        assert math.isnan(namespace.maximum(first, second).value)
    assert namespace.maximum(of("int32", 1), of("int64", 2)).dtype == np.int64


def test_fma_rounds_once():
    a = of("float32", 1 + 2**-12)
    minus = of("float32", -(1 + 2**-11))
    assert fma(a, a, minus).value == np.float32(2**-24)
    assert (a * a + minus).value == 0
    for dtype, huge in (("float32", 1e30), ("float64", 1e300)):
        with np.errstate(over="ignore"):
            assert fma(of(dtype, huge), of(dtype, -huge), of(dtype, 1)).value == -math.inf


@pytest.mark.parametrize(
    ("function", "value", "expected"),
    [
        (namespace.popc, of("int32", -1), 32),
        (namespace.popc, of("int64", -1), 64),
        (namespace.clz, of("int32", 0), 32),
        (namespace.clz, of("uint64", 1), 63),
        (namespace.ffs, of("int32", 0), 0),
        (namespace.ffs, of("int32", 8), 4),
    ],
)
def test_bit_functions(function, value, expected):
    assert function(value) == expected


def test_shared_memory_starts_poisoned():
    def kernel(out):
        tile = ruda.shared.array(4, ruda.float32)
        out[ruda.threadIdx.x] = tile[ruda.threadIdx.x]

    out = np.zeros(4, np.float32)
    run(kernel, 1, 4, out)
    assert (out == FLOAT_OF_POISON).all()


@pytest.mark.parametrize("order", [1, -1])
def test_barrier_makes_writes_visible(order):
    def reverse(x):
        tile = ruda.shared.array(8, ruda.int32)
        t = ruda.threadIdx.x
        tile[t] = x[ruda.blockIdx.x * 8 + t]
        ruda.syncthreads()
        x[ruda.blockIdx.x * 8 + t] = tile[7 - t]

    x = np.arange(16, dtype=np.int32)
    run(reverse, 2, 8, x, order=order)
    assert x.tolist() == [*range(7, -1, -1), *range(15, 7, -1)]


def test_a_thread_that_returned_counts_as_arrived():
    def kernel(out):
        t = ruda.threadIdx.x
        if t % 2:
            return
        out[t] = ruda.syncthreads_count(t >= 4)

    out = np.zeros(8, np.int32)
    run(kernel, 1, 8, out)
    assert out.tolist() == [2, 0, 2, 0, 2, 0, 2, 0]


def test_threads_at_different_barriers_are_an_error():
    def kernel(out):
        if ruda.threadIdx.x < 2:
            ruda.syncthreads()
        else:
            ruda.syncthreads()

    with pytest.raises(OracleError, match="different places"):
        run(kernel, 1, 4, np.zeros(1))


def test_an_exception_in_one_thread_ends_the_launch():
    def kernel(out):
        ruda.syncthreads()
        assert ruda.threadIdx.x != 2
        ruda.syncthreads()

    with pytest.raises(AssertionError):
        run(kernel, 1, 4, np.zeros(1))


def test_warp_operations():
    def kernel(shifted, swapped, ballots, equal):
        t = ruda.threadIdx.x
        value = ruda.int32(t * 10)
        shifted[t] = ruda.shfl_up_sync(0xFFFFFFFF, value, 1)
        swapped[t] = ruda.shfl_xor_sync(0xFFFFFFFF, value, 1)
        ballots[t] = ruda.ballot_sync(0xFFFFFFFF, ruda.laneid < 3)
        equal[t] = ruda.match_any_sync(0xFFFFFFFF, t // 16)

    lanes = np.arange(40)  # the last warp is partial
    shifted, swapped = np.zeros(40, np.int32), np.zeros(40, np.int32)
    ballots, equal = np.zeros(40, np.uint32), np.zeros(40, np.uint32)
    run(kernel, 1, 40, shifted, swapped, ballots, equal)
    assert (shifted == np.where(lanes % 32 == 0, lanes, lanes - 1) * 10).all()
    assert (swapped == (lanes ^ 1) * 10).all()
    assert (ballots == 7).all()
    assert equal[[0, 16, 39]].tolist() == [0xFFFF, 0xFFFF0000, 0xFF]


def test_activemask_names_those_that_ask_together():
    def kernel(out):
        t = ruda.threadIdx.x
        if t % 2:
            out[t] = ruda.activemask()
        else:
            out[t] = ruda.activemask()

    out = np.zeros(4, np.uint32)
    run(kernel, 1, 4, out)
    assert out.tolist() == [0b0101, 0b1010, 0b0101, 0b1010]


def test_a_lane_outside_the_mask_is_an_error():
    def kernel(out):
        t = ruda.threadIdx.x
        if t < 2:
            out[t] = ruda.shfl_sync(0b11, t, 5)

    with pytest.raises(OracleError, match="reads lane 5"):
        run(kernel, 1, 8, np.zeros(8, np.int32))


@pytest.mark.parametrize(
    ("name", "old", "operand", "expected"),
    [
        ("add", 5, 3, 8),
        ("sub", 5, 3, 2),
        ("max", 5, 7, 7),
        ("min", 5, 7, 5),
        ("and_", 6, 3, 2),
        ("or_", 6, 3, 7),
        ("xor", 6, 3, 5),
        ("inc", 5, 5, 0),
        ("inc", 4, 5, 5),
        ("dec", 0, 5, 5),
        ("dec", 9, 5, 5),
        ("dec", 4, 5, 3),
        ("exch", 4, 9, 9),
    ],
)
def test_atomics(name, old, operand, expected):
    operation = getattr(namespace.atomic, name)

    def kernel(x, before):
        before[0] = operation(x, 0, operand)

    x, before = np.array([old], np.uint32), np.zeros(1, np.uint32)
    run(kernel, 1, 1, x, before)
    assert (x[0], before[0]) == (expected, old)


def test_compare_and_swap():
    def kernel(x):
        ruda.atomic.cas(x, (0, 1), 2, 9)
        ruda.atomic.compare_and_swap(x[1], 3, 8)
        ruda.atomic.cas(x, (0, 0), 7, 5)

    x = np.array([[1, 2], [3, 4]])
    run(kernel, 1, 1, x)
    assert x.tolist() == [[1, 9], [8, 4]]


def test_dynamic_shared_memory_is_one_piece():
    def kernel(out):
        words = ruda.shared.array(0, ruda.int32)
        values = ruda.shared.array(0, ruda.float32)
        words[0] = 0x3F800000
        out[0] = values[0]
        out[1] = words.size

    out = np.zeros(2, np.float32)
    run(kernel, 1, 1, out, shared=10)
    assert out.tolist() == [1, 2]


class Pair(NamedTuple):
    a: float
    b: np.ndarray


class Mode(enum.IntEnum):
    DOUBLE = 2


def helper(x):
    return x * Mode.DOUBLE


def test_functions_globals_cells_and_arguments_are_replaced():
    weight = np.float32(0.5)
    table = np.array([10, 20], np.int8)

    def inner(x):
        return helper(x) * weight

    def kernel(pair, out):
        i = ruda.grid(1)
        out[i] = inner(pair.b[i]) * pair.a + table[i] + math.sqrt(pair.b[i]) + min(i, 0.5)

    out = np.zeros(2, np.float32)
    run(kernel, 1, 2, Pair(np.float32(3), np.float32([1, 4])), out)
    assert out.tolist() == [14, 34.5]


def test_records():
    def kernel(x):
        x[0].count += 1
        x[0]["weight"] = x[1].weight * 2

    x = np.array([(1, 0.5), (2, 0.25)], [("count", np.int8), ("weight", np.float32)])
    run(kernel, 1, 1, x)
    assert x.tolist() == [(2, 0.5), (2, 0.25)]


def test_views_and_array_expressions():
    def kernel(x, out):
        out[0] = x[1, 1:-1].sum()
        x[0, 2:] = 7
        row = x[0] + 1
        out[1] = row[3]
        out[2] = x.T.shape[0] + len(x)

    x = np.arange(8, dtype=np.int32).reshape(2, 4)
    out = np.zeros(3, np.int32)
    run(kernel, 1, 1, x, out)
    assert out.tolist() == [11, 8, 6] and x[0].tolist() == [0, 1, 7, 7]


def test_grids_of_three_dimensions():
    def kernel(out):
        x, y, z = ruda.grid(3)
        if x < out.shape[2] and y < out.shape[1] and z < out.shape[0]:
            out[z, y, x] = x + 10 * y + 100 * z + 1000 * ruda.gridsize(3)[2]

    out = np.zeros((3, 2, 5), np.int32)
    run(kernel, (2, 1, 2), (3, 2, 2), out)
    z, y, x = np.indices(out.shape)
    assert (out == x + 10 * y + 100 * z + 4000).all()


def test_print_keeps_lines():
    def kernel(x):
        print("value", x[0], ruda.threadIdx.x)

    run(kernel, 1, 2, np.float32([1.5]))
    assert printed == ["value 1.5 0\n", "value 1.5 1\n"]


def test_an_index_out_of_bounds_is_an_error():
    def kernel(x):
        x[ruda.grid(1)] = 0

    with pytest.raises(IndexError):
        run(kernel, 1, 5, np.zeros(4))
