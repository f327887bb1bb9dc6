"""Wide accesses on WebGPU: which launches use them, and that all give the same."""

import numpy as np
import pytest

import ruda

pytestmark = pytest.mark.only_on("wgpu", what="texts of WebGPU")


@ruda.jit
def axpy(a, x, y, out):
    i = ruda.grid(1)
    if i < out.size:
        out[i] = a * x[i] + y[i]


@ruda.jit
def rows(x, out):
    j, i = ruda.grid(2)
    if i < out.shape[0] and j < out.shape[1]:
        out[i, j] = x[i, j] + i


@ruda.jit
def strided(x, out):
    for i in range(ruda.grid(1), out.size, ruda.gridsize(1)):
        out[i] = x[i] + x[i]


@ruda.jit
def in_place(x):
    i = ruda.grid(1)
    if i < x.size:
        x[i] = x[i] + 1


DTYPES = ["f4", "f8", "f2", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "?"]
SIZES = [0, 1, 2, 3, 4, 5, 7, 8, 15, 16, 17, 63, 255, 257, 1021, 4099]


def values(rng, n, dtype):
    return rng.integers(0, 2 if dtype == "?" else 50, n).astype(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_size_and_dtype(dtype, rng, device):
    with ruda.config(device=device):
        for n in SIZES:
            x, out = values(rng, n, dtype), np.zeros(n + 3, dtype)
            d, e = ruda.to_device(x), ruda.to_device(out)
            strided[2, 32](d, e[:n])
            with np.errstate(over="ignore"):
                wanted = (x + x).astype(dtype)
            np.testing.assert_array_equal(e.copy_to_host()[:n], wanted)
            assert not e.copy_to_host()[n:].any()  # nothing behind the end


@pytest.mark.parametrize("start", [0, 1, 2, 3, 4, 5])
@pytest.mark.parametrize("n", SIZES)
def test_slices_that_begin_anywhere(start, n, rng, device):
    x, y = rng.normal(size=(2, n + 8)).astype("f4")
    out = np.full(n + 8, 7, "f4")
    with ruda.config(device=device):
        d, e, o = map(ruda.to_device, (x, y, out))
        axpy.forall(max(n, 1))(2.0, d[start : start + n], e[:n], o[start : start + n])
    wanted = out.copy()
    wanted[start : start + n] = 2 * x[start : start + n] + y[:n]
    np.testing.assert_allclose(o.copy_to_host(), wanted, rtol=1e-6)


def test_arguments_that_are_one_array(rng, device):
    x = rng.normal(size=1001).astype("f4")
    with ruda.config(device=device):
        d = ruda.to_device(x)
        axpy.forall(d.size)(2.0, d, d, d)
        np.testing.assert_allclose(d.copy_to_host(), 3 * x, rtol=1e-6)
        d = ruda.to_device(x)
        axpy.forall(900)(1.0, d[:900], d[100:1000], d[:900])
        np.testing.assert_allclose(d.copy_to_host()[:900], x[:900] + x[100:1000], rtol=1e-6)
        in_place.forall(d.size)(d)
        np.testing.assert_allclose(d.copy_to_host()[900:], x[900:] + 1, rtol=1e-6)


@pytest.mark.parametrize("shape", [(3, 8), (5, 7), (1, 4), (4, 1), (2, 1022)])
def test_rows_of_any_length(shape, rng, device):
    x = rng.normal(size=shape).astype("f4")
    with ruda.config(device=device):
        d, out = ruda.to_device(x), ruda.device_array(shape, np.float32)
        rows[(-(-shape[1] // 16), shape[0]), (16, 1)](d, out)
        wanted = x + np.arange(shape[0], dtype="f4")[:, None]
        np.testing.assert_allclose(out.copy_to_host(), wanted, rtol=1e-6)
        rows[(-(-shape[1] // 16), shape[0]), (16, 1)](x, back := np.empty_like(x))
        np.testing.assert_allclose(back, wanted, rtol=1e-6)


def test_the_text_has_vectors():
    text = axpy.source("wgpu", "f4", "f4[::1]", "f4[::1]", "f4[::1]")
    assert text.count("array<vec4<u32>>") == 3
