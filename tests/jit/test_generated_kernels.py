"""Random kernels give the same bits on every device and on the oracle."""

import hypothesis
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ruda
from tests import oracle
from tests.conftest import DEVICES
from tests.jit.data import floats, integers
from tests.jit.generate import BLOCK, BLOCKS, CELLS, COUNT, programs
from tests.jit.source import define


def values(rng, count, dtype):
    make = integers if dtype.kind in "iu" else floats
    return make(rng, count, dtype=dtype)


def arguments(program, seed):
    rng = np.random.default_rng(seed)
    inputs = [values(rng, COUNT, d) for d in program.inputs]
    outputs = [np.zeros(COUNT, d) for d in program.outputs]
    return [*inputs, *outputs, *(values(rng, CELLS, d) for _, d in program.cells)]


def run(program, seed, launch):
    row = arguments(program, seed)
    launch(define(program.source), row)
    return row


def on_oracle(kernel, row):
    oracle.launch(kernel, BLOCKS, BLOCK, *row)


def check(program, seed, devices=DEVICES):
    hypothesis.note(program.source)
    expected = run(program, seed, on_oracle)
    for device in devices:

        def launch(kernel, row, device=device):
            with ruda.config(device=device):
                kernel[BLOCKS, BLOCK](*row)

        for number, (got, want) in enumerate(
            zip(run(program, seed, launch), expected, strict=True)
        ):
            same = (got == want) & (np.signbit(got) == np.signbit(want))
            same |= (got != got) & (want != want)
            if not same.all():
                first = int(np.argmin(same))
                pytest.fail(
                    f"array argument {number} on {device}: element {first} is {got[first]!r}, "
                    f"the oracle has {want[first]!r}"
                )


@given(programs(), st.integers(0, 2**32 - 1))
def test_independent_threads(program, seed):
    check(program, seed)


@given(programs(threads_meet=True), st.integers(0, 2**32 - 1))
def test_threads_that_meet(program, seed):
    check(program, seed)


@given(programs(threads_meet=True), st.integers(0, 2**32 - 1))
def test_the_order_of_threads_does_not_matter(program, seed):
    """A property of the generator: what it writes has no races."""

    def backwards(kernel, row):
        oracle.launch(kernel, BLOCKS, BLOCK, *row, order=-1)

    forwards = run(program, seed, on_oracle)
    for a, b in zip(forwards, run(program, seed, backwards), strict=True):
        np.testing.assert_array_equal(a, b)
