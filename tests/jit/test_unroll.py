"""Loops whose rounds are known become copies of their bodies, and do the same."""

import numpy as np
import pytest

import ruda
from ruda.jit import ir, passes, tools
from ruda.jit.interpret import Interpreter
from ruda.jit.passes.unroll import unroll_steps


@ruda.jit
def halving(x, out):
    t = ruda.threadIdx.x
    step = 128
    total = 0
    while step > 0:
        total += x[t] * step
        step //= 2
        total += step
    out[t] = total - step


@ruda.jit
def nested(x, out):
    t = ruda.threadIdx.x
    total = 0
    for k in range(x.size):
        bit = 1
        while bit < 100 and bit != 64:
            other = 3
            while other >= 0:
                total += x[k] * bit + other
                other -= 1
            bit = bit * 2
    out[t] = total


@ruda.jit
def never(x, out):
    t = ruda.threadIdx.x
    step = 0
    total = 7
    while step > 0:
        total += x[t]
        step -= 1
    out[t] = total + step


@ruda.jit
def many(x, out):
    t = ruda.threadIdx.x
    k = 0
    total = 0
    while k < 33:
        total += x[t]
        k += 1
    out[t] = total


@ruda.jit
def unknown(x, out):
    t = ruda.threadIdx.x
    k = x[0] % 7
    total = 0
    while k > 0:
        total += x[t]
        k -= 1
    out[t] = total


@ruda.jit
def changed_between(x, out):
    t = ruda.threadIdx.x
    k = 5
    if x[t] > 0:
        k = 3
    total = 0
    while k > 0:
        total += 1
        k -= 1
    out[t] = total


@ruda.jit
def changed_by_data(x, out):
    t = ruda.threadIdx.x
    k = 9
    total = 0
    while k > 0:
        total += k
        if x[t] > 0:
            k -= 1
        k -= 1
    out[t] = total


@ruda.jit
def left_early(x, out):
    t = ruda.threadIdx.x
    k = 9
    total = 0
    while k > 0:
        if total > x[t]:
            break
        total += k
        k -= 1
    out[t] = total + k


@pytest.mark.parametrize(
    ("kernel", "loops"),
    [(halving, 0), (nested, 0), (never, 0), (many, 1), (unknown, 1), (changed_between, 1),
     (changed_by_data, 1), (left_early, 1)],
    ids=lambda v: getattr(v, "__name__", None),
)  # fmt: skip
def test_steps_of_known_values_are_copied(kernel, loops, rng):
    function = tools.describe(kernel, "sim", ("i64[::1]", "i64[::1]"), block=8).made.function
    copied = unroll_steps(passes.lower(function, "wgpu"))
    assert sum(isinstance(s, ir.While) for s in ir.statements(copied.body)) == loops
    x = rng.integers(-20, 20, 8)
    found, expected = np.zeros(8, np.int64), np.zeros(8, np.int64)
    Interpreter(function).run((1, 1, 1), (8, 1, 1), [x, expected], 0)
    Interpreter(copied).run((1, 1, 1), (8, 1, 1), [x, found], 0)
    assert np.array_equal(found, expected) and expected.any()
