"""Prints, assertions and checks on a 910B: each core writes its own part of the buffer."""

import numpy as np
import pytest

import ruda
from ruda.errors import (
    BarrierError,
    IntegerDivisionError,
    KernelAssertionError,
    LaunchWarning,
    OutOfBoundsError,
)

DEVICE = "ascend-twin:910b"


@pytest.fixture(autouse=True)
def on_a_910b():
    with ruda.config(device=DEVICE):
        yield


@ruda.jit
def tell(x):
    i, j = ruda.grid(2)
    if i < x.shape[0] and j < x.shape[1] and x[i, j] > 2:
        print("x", i, j, "is", x[i, j], x[i, j] > 3)


def test_prints_of_many_cores_come_by_block_and_thread(capsys):
    x = np.zeros((9, 70), np.float16)
    x[3, 5], x[8, 69], x[0, 33] = 2.5, 4.0, np.inf
    tell[(3, 9), (3, 8)](x)
    told = capsys.readouterr().out
    with ruda.config(device="sim"):
        tell[(3, 9), (3, 8)](x)
    assert told == capsys.readouterr().out
    assert sorted(told.splitlines()) == [
        "x 0 33 is inf True", "x 3 5 is 2.5 False", "x 8 69 is 4.0 True"
    ]  # fmt: skip


@ruda.jit
def positive(x, out):
    i = ruda.grid(1)
    if i < x.size:
        assert x[i] >= 0, f"negative {x[i]}"
        out[i] = 2 * x[i]


def test_an_assertion_names_its_thread_and_the_others_go_on():
    x, out = np.arange(100, dtype=np.float32), np.zeros(100, np.float32)
    x[77] = -3
    message = r"negative -3\.0\n  in kernel `positive`, block \(2, 0, 0\), thread \(13, 0, 0\)"
    with pytest.raises(KernelAssertionError, match=message):
        positive[4, 32](x, out)
    np.testing.assert_array_equal(out, np.where(x < 0, 0, 2 * x))
    x[77] = 3
    positive[4, 32](x, out)  # and nothing is left of it
    np.testing.assert_array_equal(out, 2 * x)


@ruda.jit(check=True)
def beyond(x, out):
    i = ruda.grid(1)
    out[i] = x[i + 3]


@ruda.jit(check=True)
def divided(x, out):
    i = ruda.grid(1)
    if i < x.size:
        out[i] = 7 // x[i]


@ruda.jit(check=True)
def row_sums(x, out):
    i = ruda.grid(1)
    if i < out.size:
        total = np.float32(0)
        for j in range(200):
            total += x[i, j]
        out[i] = total


@ruda.jit(check=True)
def turned(x):
    tile = ruda.shared.array(32, np.float32)
    t = ruda.threadIdx.x
    tile[t] = x[t]
    if x[0] > 0 or t < 5:
        ruda.syncthreads()
    x[t] = tile[31 - t]
    ruda.syncthreads()


def test_checks():
    x = np.arange(5, dtype=np.float32)
    with pytest.raises(OutOfBoundsError, match=r"`x\[5\]` is out of bounds.*\n.*thread \(2, 0"):
        beyond[1, 5](x, x.copy())
    n, out = np.array([2, 0, -2], np.int32), np.zeros(3, np.int32)
    with pytest.raises(IntegerDivisionError, match=r"7 // 0.*\n.*thread \(1, 0, 0\)"):
        divided[1, 8](n, out)
    np.testing.assert_array_equal(out, [3, 0, -4])
    sums = np.zeros(3, np.float32)
    row_sums[1, 4](np.ones((3, 200), np.float32), sums)
    np.testing.assert_array_equal(sums, 200)
    with pytest.raises(OutOfBoundsError, match=r"`x\[0, 199\]` is out of bounds"):
        row_sums[1, 4](np.ones((3, 199), np.float32), sums)
    y = np.arange(1, 33, dtype=np.float32)
    turned[1, 32](y)
    np.testing.assert_array_equal(y, np.arange(32, 0, -1))
    y[0] = 0
    with pytest.raises(BarrierError, match="divergent barrier"):
        turned[1, 32](y)


def test_reports_that_do_not_fit_are_counted(capsys):
    @ruda.jit
    def noisy(n):
        i = ruda.grid(1)
        if i < n:
            print(i)

    with ruda.config(report_bytes=1 << 10), pytest.warns(LaunchWarning, match="reports did not"):
        noisy[4, 256](1000)
    told = list(map(int, capsys.readouterr().out.split()))
    assert 4 <= len(told) < 1000 and told == sorted(told)
    noisy[4, 256](1000)
    assert capsys.readouterr().out.split() == list(map(str, range(1000)))


def test_doubles_made_of_integers_are_printed(capsys):
    @ruda.jit
    def show(x):
        print(x[ruda.grid(1)] / 3)

    with ruda.config(missing="emulate"):
        show[1, 1](np.array([1.0]))
    assert capsys.readouterr().out == f"{1 / 3}\n"


def test_a_kernel_that_reports_is_scalar_and_explain_says_why():
    types = "f32[:]", "f32[:]"
    assert "its accesses are checked one by one" in str(
        ruda.explain(beyond, *types, target="ascend")
    )
    assert "it prints or asserts" in str(ruda.explain(positive, *types, target="ascend"))
