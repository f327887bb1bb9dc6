"""Globals and closure cells: constants of a kernel."""

import enum
from typing import NamedTuple

import numpy as np

import ruda
from tests.jit.case import Case, Out
from tests.jit.data import integers, normal

COUNT = 5
SCALE = 0.1
TYPED = np.float64(0.1)
FLAG = True
TABLE = np.array([3, 1, 4, 1, 5, 9, 2, 6], np.int16)
WEIGHTS = np.array([[0.25, 0.5], [0.125, 2.0]], np.float32)
BIG = np.arange(5000, dtype=np.float64)
PAIR = (2, 0.5)
NESTED = ((1, 2), (3, 4))


class Mode(enum.IntEnum):
    KEEP = 0
    NEGATE = 1
    DOUBLE = 2


class Shade(enum.Enum):
    DARK = 1
    LIGHT = 2


class Limits(NamedTuple):
    low: float
    high: float


LIMITS = Limits(-0.5, 0.75)


@ruda.jit
def global_numbers(x, out):
    i = ruda.grid(1)
    if i < out.size:
        total = ruda.int32(0)
        for k in range(COUNT):
            total += x[i] + k
        out[i] = total if FLAG else 0


@ruda.jit
def weak_and_typed_globals(x, weak, strong):
    i = ruda.grid(1)
    if i < x.size:
        weak[i] = x[i] * SCALE
        strong[i] = x[i] * TYPED


@ruda.jit
def global_array(x, out):
    i = ruda.grid(1)
    if i < out.size:
        out[i] = TABLE[x[i]] + TABLE.size


@ruda.jit
def constant_array(x, out):
    weights = ruda.const.array_like(WEIGHTS)
    i = ruda.grid(1)
    if i < out.size:
        out[i] = weights[i % 2, 0] * x[i] + weights[i % 2, 1]


def constant(x):
    row = np.arange(x.size) % 2
    return np.float64(WEIGHTS[row, 0]) * x + WEIGHTS[row, 1]


@ruda.jit
def large_global_array(x, out):
    i = ruda.grid(1)
    if i < out.size:
        out[i] = BIG[x[i]] + BIG[BIG.size - 1]


@ruda.jit
def global_tuples(x, out):
    i = ruda.grid(1)
    if i < out.size:
        factor, half = PAIR
        out[i] = x[i] * factor + half + NESTED[1][0] + NESTED[0][1] + len(NESTED)


@ruda.jit
def global_named_tuple(x, out):
    i = ruda.grid(1)
    if i < out.size:
        out[i] = min(max(x[i], LIMITS.low), LIMITS.high)


@ruda.jit
def int_enum(modes, x, out):
    i = ruda.grid(1)
    if i < out.size:
        if modes[i] == Mode.NEGATE:
            out[i] = -x[i]
        elif modes[i] == Mode.DOUBLE:
            out[i] = x[i] * Mode.DOUBLE
        else:
            out[i] = x[i]


@ruda.jit
def enum_value(x, out):
    i = ruda.grid(1)
    if i < out.size:
        out[i] = x[i] + Shade.LIGHT.value


def scaled_by(factor, offset, table):
    @ruda.jit
    def kernel(x, out):
        i = ruda.grid(1)
        if i < out.size:
            out[i] = x[i] * factor + offset + table[i % table.size]

    return kernel


class Settings:
    gain = 3
    bias = 7


@ruda.jit
def class_attributes(x, out):
    i = ruda.grid(1)
    if i < out.size:
        out[i] = x[i] * Settings.gain + Settings.bias


def closure_case(name, factor, offset, table):
    return Case(
        scaled_by(factor, offset, table),
        lambda rng, n: (integers(rng, n, least=-99, most=99), Out(n, np.float64)),
        lambda x: x * factor + offset + table[np.arange(x.size) % table.size],
        name=f"closure_{name}",
    )


CASES = [
    Case(
        global_numbers,
        lambda rng, n: (integers(rng, n, least=-99, most=99), Out(n, np.int32)),
        lambda x: 5 * x + 10,
    ),
    Case(
        weak_and_typed_globals,
        lambda rng, n: (normal(rng, n), Out(n, np.float64), Out(n, np.float64)),
        lambda x: ((x * np.float32(0.1)).astype(np.float64), np.float64(x) * 0.1),
    ),
    Case(
        global_array,
        lambda rng, n: (integers(rng, n, least=0, most=7), Out(n, np.int32)),
        lambda x: TABLE[x] + 8,
    ),
    Case(
        constant_array,
        # Quarters: exact with and without contraction.
        lambda rng, n: (np.rint(normal(rng, n) * 40) / 4, Out(n)),
        constant,
    ),
    Case(
        large_global_array,
        lambda rng, n: (integers(rng, n, least=0, most=4999), Out(n, np.float64)),
        lambda x: BIG[x] + 4999,
    ),
    Case(
        global_tuples,
        lambda rng, n: (integers(rng, n, least=-99, most=99), Out(n, np.float64)),
        lambda x: 2 * x + 7.5,
    ),
    Case(
        global_named_tuple,
        lambda rng, n: (normal(rng, n), Out(n)),
        lambda x: np.clip(x, -0.5, 0.75),
    ),
    Case(
        int_enum,
        lambda rng, n: (integers(rng, n, least=0, most=2), normal(rng, n), Out(n)),
        lambda modes, x: np.where(modes == 1, -x, np.where(modes == 2, 2 * x, x)),
    ),
    closure_case("integers", 2, 3, np.array([1, 2, 3], np.int64)),
    closure_case("typed", np.int64(-2), np.float64(0.5), np.array([0.25])),
    Case(
        class_attributes,
        lambda rng, n: (integers(rng, n, least=-99, most=99), Out(n, np.int32)),
        lambda x: 3 * x + 7,
    ),
    Case(
        enum_value,
        lambda rng, n: (integers(rng, n), Out(n, np.int32)),
        lambda x: x + 2,
    ),
]
