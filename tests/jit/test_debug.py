"""Kernels on `sim`: errors at the user's line, `ruda.debug`, `ruda.compare`."""

from __future__ import annotations

import inspect
import sys
import types

import numpy as np
import pytest

import ruda
from ruda import backends
from ruda.backends.base import Binary, Launch
from ruda.backends.sim import Sim
from ruda.errors import (
    DataRaceError,
    IntegerDivisionError,
    KernelAssertionError,
    LaunchError,
    LaunchWarning,
    OutOfBoundsError,
)
from ruda.jit.debug import copy_arguments, distance
from tests.jit.build import function, store, thread
from tests.jit.test_interpret import X


@ruda.jit
def shift(x):
    i = ruda.grid(1)
    x[i] = x[i + 1]


@ruda.jit
def double(x):
    i = ruda.grid(1)
    if i < x.size:
        x[i] *= 2


@ruda.jit
def previous(x, out):
    i = ruda.grid(1)
    out[i] = x[i - 1]


@ruda.jit
def halves(x):
    i = ruda.grid(1)
    assert x[i] % 2 == 0, f"odd at {i}"
    x[i] = 8 // x[i]


def line(kernel, text):
    """The line of a kernel's source that contains a text."""
    lines, first = inspect.getsourcelines(kernel.py_func)
    return first + next(k for k, source in enumerate(lines) if text in source)


def test_debug_names_the_users_line_and_text():
    with ruda.debug(), pytest.raises(OutOfBoundsError) as caught:
        shift[1, 1](np.zeros(1))
    assert caught.value.place.line == line(shift, "x[i + 1]")
    assert str(caught.value).endswith(f"line {line(shift, 'x[i + 1]')}: x[i] = x[i + 1]")
    with ruda.debug(), pytest.raises(DataRaceError):
        shift[1, 4](np.zeros(5))


def test_debug_checks_division_and_assertions():
    with ruda.debug():
        x = np.array([2, 4], np.int32)
        halves[1, 2](x)
        assert x.tolist() == [4, 2]
        with pytest.raises(IntegerDivisionError, match="8 // 0"):
            halves[1, 1](np.zeros(1, np.int32))
        with pytest.raises(KernelAssertionError, match="odd at 1"):
            halves[1, 2](np.array([2, 3], np.int32))


def test_a_wrapped_index_warns_once_a_place():
    x, out = np.arange(4.0), np.zeros(4)
    with ruda.debug():
        with pytest.warns(LaunchWarning, match="index -1 of `x`") as caught:
            previous[1, 4](x, out)
        assert caught[0].lineno == line(previous, "x[i - 1]")
        previous[1, 4](x, out)  # warnings are errors in these tests
    assert out.tolist() == [3, 0, 1, 2]


def test_debug_ends_with_its_block():
    from ruda.settings import settings

    before = settings.device
    with ruda.debug():
        assert (settings.device, settings.check) == ("sim", True)
    assert settings.device == before and not settings.check


# ---- the backend -----------------------------------------------------------------------------


def test_the_backend_shows_the_ir_and_needs_no_binary():
    sim = backends.get("sim")
    kernel = function((X,), store(X, thread(), 1.0))
    source = sim.emit(kernel, sim.target("sim"))
    assert source.text == str(kernel) + "\n" and "x[threadIdx.x] = 1.0" in source.text
    binary = sim.compile(source, {})
    assert binary == Binary(b"", {})
    module = sim.load(binary, kernel, "sim")
    x = np.zeros(2, np.float32)
    sim.launcher(module, Launch((1, 1, 1), (2, 1, 1)), None)(x)
    assert x.tolist() == [1, 1]
    assert [d.kind for d in sim.devices()] == ["interpreter"]
    with pytest.raises(LaunchError, match="runs the IR"):
        sim.load(binary, None, "sim")


def test_a_kernel_made_for_a_block_is_not_launched_on_another():
    sim = Sim()
    module = sim.load(Binary(b"", {}), function((X,), block=(64, 1, 1)), "sim")
    with pytest.raises(LaunchError, match="blocks of"):
        sim.launcher(module, Launch((1, 1, 1), (2, 1, 1)), None)


# ---- compare ---------------------------------------------------------------------------------


class Off(Sim):
    """A device that is wrong in one element of each array: the second."""

    name = "off"

    def launcher(self, module, launch, fallback):
        right = super().launcher(module, launch, fallback)

        def run(*arguments):
            right(*arguments)
            for a in arguments:
                if isinstance(a, np.ndarray) and a.size > 1 and a.flags.writeable:
                    a.flat[1] = np.nextafter(a.flat[1], a.dtype.type(100), dtype=a.dtype)

        run.is_native = False
        return run


@pytest.fixture
def off(monkeypatch):
    module = types.ModuleType("ruda_test_off")
    module.BACKEND = Off()
    monkeypatch.setitem(sys.modules, "ruda_test_off", module)
    monkeypatch.setitem(backends.MODULES, "off", "ruda_test_off")
    yield "off"
    backends.get.cache_clear()


def test_compare_leaves_the_arguments_alone():
    x = np.arange(5.0)
    found = ruda.compare(double, 1, 8, x, devices=("sim", "sim"))
    assert found.equal and repr(found) == "<double: equal on sim, sim>"
    assert x.tolist() == [0, 1, 2, 3, 4]
    assert found.results["sim"][0].tolist() == [0, 2, 4, 6, 8]


def test_compare_shows_the_first_difference_and_its_thread(off):
    x = np.arange(5, dtype=np.float32)
    found = ruda.compare(double, 2, 1, x, devices=("sim", off))
    assert not found.equal
    (difference,) = found.differences
    assert (difference.array, difference.index, difference.count) == ("x", (1,), 1)
    assert difference.distance == 1
    assert "x[1]: sim np.float32(2.0), off np.float32(2.0000002) (1 ulp)" in repr(found)
    assert "written last by thread (0, 0, 0) of block (1, 0, 0)" in repr(found)
    assert "1 of 5 elements differ" in repr(found)
    assert ruda.compare(double, 2, 1, x, devices=("sim", off), ulps=1).equal
    with pytest.raises(ValueError, match="two devices"):
        ruda.compare(double, 1, 8, x, devices=("sim",))


def test_compare_raises_what_sim_finds():
    with pytest.raises(DataRaceError):
        ruda.compare(shift, 1, 4, np.zeros(5), devices=("sim", "sim"))


def test_copies_overlap_as_the_arguments_do():
    x = np.arange(24.0).reshape(4, 6)
    readonly = x[0]
    readonly.flags.writeable = False
    one, two, other, fixed, (inner, number), empty = copy_arguments(
        (x[1:, ::2], x[:3, ::-1], np.ones(2), readonly, (x.T, 3), np.zeros((0, 2)))
    )
    assert one.strides == (48, 16) and two.strides == (48, -8) and inner.strides == (8, 48)
    assert number == 3 and empty.shape == (0, 2) and not fixed.flags.writeable
    np.testing.assert_array_equal(inner, x.T)
    inner[4, 2] = 99  # x[2, 4]
    assert one[1, 2] == 99 and two[2, 1] == 99 and x[2, 4] == 16
    assert not np.shares_memory(other, one) and not np.shares_memory(one, x)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_distance_counts_units_in_the_last_place(dtype):
    one = dtype(1)
    up = np.nextafter(one, dtype(2))
    tiny = np.nextafter(dtype(0), dtype(1))
    x = np.array([1, up, tiny, np.inf, np.nan, np.nan, 0.0], dtype)
    y = np.array([up, one, -tiny, np.finfo(dtype).max, np.nan, 1, -0.0], dtype)
    assert distance(x, y).tolist() == [1, 1, 2, 1, 0, 2**64 - 1, 0]


def test_distance_of_integers_and_complex_numbers():
    low, high = np.iinfo(np.int64).min, np.iinfo(np.int64).max
    assert distance(np.array([low, 3]), np.array([high, 1])).tolist() == [2**64 - 1, 2]
    assert distance(np.array([True, False]), np.array([True, True])).tolist() == [0, 1]
    z = np.array([1 + 1j, 1j])
    assert distance(z, z + np.array([0, np.spacing(1.0) * 1j])).tolist() == [0, 1]
