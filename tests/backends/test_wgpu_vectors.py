"""Wide accesses on WebGPU: what a kernel does with them is what it did, at every size and place."""

import numpy as np
import pytest

import ruda
from ruda.backends.wgpu.adapter import PORTABLE
from ruda.backends.wgpu.modules import Module
from ruda.jit.types import parse_type
from tests.backends.test_wgpu_emit import has_tint, validate
from tests.conftest import DEVICES

on_wgpu = pytest.mark.skipif("wgpu" not in DEVICES, reason="RUDA_TEST_DEVICES names no wgpu")
SIZES = [0, 1, 3, 4, 5, 63, 64, 65, 1001, 70_001]


@ruda.jit
def axpy(a, x, y, out):
    i = ruda.grid(1)
    if i < out.size:
        out[i] = a * x[i] + y[i]


@ruda.jit
def converts(x, out):
    i = ruda.grid(1)
    if i < out.size:
        out[i] = x[i]


@ruda.jit
def neighbours(x, out):
    i = ruda.grid(1)
    if i > 0 and i + 1 < out.size:
        out[i] = x[i - 1] + x[i] - x[i + 1]


@ruda.jit
def rows(x, out):
    i, j = ruda.grid(2)
    if j < out.shape[0] and i < out.shape[1]:
        out[j, i] = x[j, i] * x[j, 0] + j


@ruda.jit
def strides(a, x, y, out):
    for i in range(ruda.grid(1), out.size, ruda.gridsize(1)):
        out[i] = a * x[i] + y[i]


def texts(kernel, *types, target=PORTABLE):
    """The plain text and the one with wide accesses."""
    found = tuple(parse_type(t) for t in types)
    function, _ = kernel.translate(found, block=(64, 1, 1), needs_block=lambda f: True)
    module = Module(function, target, "")
    return module.plain().text, module.usual().text


@pytest.fixture
def used(monkeypatch):
    """Which launches used wide accesses."""
    seen = []
    real = Module.form

    def form(self, variant):
        seen.append(variant.vectors)
        return real(self, variant)

    monkeypatch.setattr(Module, "form", form)
    with ruda.config(device="wgpu"):
        yield seen


def whole(n, dtype=np.float32):
    return np.arange(n + 40).astype(dtype)


@on_wgpu
@pytest.mark.parametrize("kernel", [axpy, strides], ids=["grid", "loop"])
@pytest.mark.parametrize("n", SIZES)
def test_any_size_and_what_lies_behind(kernel, n, used):
    x, y, out = (ruda.to_device(whole(n)) for _ in range(3))
    kernel[max(1, -(-n // 64)), 64](2.0, x[:n], y[:n], out[:n])
    expected = whole(n)
    expected[:n] = 3 * expected[:n]
    np.testing.assert_array_equal(out.copy_to_host(), expected)
    assert used and all(used)


@on_wgpu
@pytest.mark.parametrize("starts", [(1, 1, 1), (4, 8, 12), (0, 0, 3), (0, 2, 0), (4, 0, 4)])
def test_slices_at_any_place(starts, used):
    """Only arrays that lie at multiples of 16 bytes get them."""
    n = 1001
    x, y, out = (ruda.to_device(whole(n)) for _ in range(3))
    a, b, c = starts
    axpy[16, 64](2.0, x[a : a + n], y[b : b + n], out[c : c + n])
    expected = whole(n)
    expected[c : c + n] = 2 * whole(n)[a : a + n] + whole(n)[b : b + n]
    np.testing.assert_array_equal(out.copy_to_host(), expected)
    assert all(used) == (not any(s % 4 for s in starts))


@on_wgpu
@pytest.mark.parametrize("n", [1, 6, 64, 1001])
def test_arrays_that_share_memory(n, used):
    x = ruda.to_device(whole(n))
    axpy[16, 64](2.0, x[:n], x[:n], x[:n])
    expected = whole(n)
    expected[:n] *= 3
    np.testing.assert_array_equal(x.copy_to_host(), expected)
    y = ruda.to_device(whole(4 * n))
    axpy[16, 64](2.0, y[:n], y[3 * n : 4 * n], y[2 * n : 3 * n])
    expected = whole(4 * n)
    expected[2 * n : 3 * n] = 2 * expected[:n] + whole(4 * n)[3 * n : 4 * n]
    np.testing.assert_array_equal(y.copy_to_host()[: 4 * n], expected[: 4 * n])


@on_wgpu
@pytest.mark.parametrize("threads", [8, 64, 70])
def test_fewer_threads_than_elements(threads, used):
    x, y, out = (ruda.to_device(whole(100)) for _ in range(3))
    axpy[1, threads](2.0, x, y, out)
    expected = whole(100)
    expected[:threads] *= 3
    np.testing.assert_array_equal(out.copy_to_host(), expected)
    assert all(used)


PAIRS = [
    ("float32", "float32"), ("float64", "float64"), ("float16", "float16"), ("uint8", "uint8"),
    ("int8", "int16"), ("bool", "int32"), ("float32", "uint8"), ("int64", "int8"), ("u2", "f2"),
    ("uint8", "float64"), ("int16", "bool"), ("complex64", "complex64"), ("int32", "int64"),
]  # fmt: skip


@on_wgpu
@pytest.mark.parametrize(("source", "target"), PAIRS)
@pytest.mark.parametrize("n", [1, 7, 16, 37])
def test_elements_of_any_size(source, target, n, used):
    x = (np.arange(n) * 7 % 120 - (0 if source[0] in "ub" else 50)).astype(source)
    if target in ("uint8", "bool"):
        x = abs(x)
    out = ruda.to_device(np.ones(n + 9, target))
    converts[1, 64](ruda.to_device(x), out[:n])
    expected = np.ones(n + 9, target)
    expected[:n] = x.astype(target)
    np.testing.assert_array_equal(out.copy_to_host(), expected)


@on_wgpu
@pytest.mark.parametrize("n", SIZES[2:])
def test_shifted_loads_beside_wide_ones(n, used):
    x = np.arange(n, dtype=np.int32) ** 2
    out = np.full(n, -1, np.int32)
    neighbours[-(-n // 64), 64](x, out)
    expected = np.full(n, -1, np.int32)
    expected[1:-1] = x[:-2] + x[1:-1] - x[2:]
    np.testing.assert_array_equal(out, expected)
    assert all(used)


@on_wgpu
@pytest.mark.parametrize("shape", [(3, 16), (3, 13), (1, 4), (5, 130)])
def test_rows_of_matrices(shape, used):
    x = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    out = np.zeros(shape, np.float32)
    rows[(3, 5), (64, 1)](x, out)
    np.testing.assert_array_equal(out, x * x[:, :1] + np.arange(shape[0])[:, None])
    assert all(used) == (shape[1] % 4 == 0)


@on_wgpu
def test_grids_that_are_folded(used):
    n = 65536 * 4 * 2 + 5
    x = ruda.to_device(np.arange(n, dtype=np.int32))
    converts[-(-n // 2), 2](x, x)
    out = ruda.device_array(n, np.int32)
    converts[-(-n // 2), 2](x, out)
    np.testing.assert_array_equal(out.copy_to_host(), np.arange(n))
    assert all(used)


def test_texts_have_vectors_and_tint_takes_them():
    floats = ["float32[::1]"] * 3
    for kernel, types in (
        (axpy, ("float", *floats)),
        (strides, ("float", *floats)),
        (converts, ("uint8[::1]", "uint8[::1]")),
        (converts, ("float16[::1]", "float32[::1]")),
        (neighbours, ("int32[::1]", "int32[::1]")),
        (rows, ("float32[:, ::1]", "float32[:, ::1]")),
    ):
        plain, wide = texts(kernel, *types)
        assert "array<vec4<u32>>" not in plain and plain != wide
        if has_tint:
            validate(wide)
    assert texts(axpy, "float", *floats)[1].count("array<vec4<u32>>") == 3


def test_a_slow_compiler_gets_no_function_five_times_over():
    @ruda.jit
    def heavy(x, out):
        i = ruda.grid(1)
        if i < out.size:
            out[i] = ruda.exp(x[i])

    for software in (True, False):
        plain, usual = texts(heavy, "float32[::1]", "float32[::1]",
                             target={**PORTABLE, "software": software})  # fmt: skip
        assert (plain == usual) == software
