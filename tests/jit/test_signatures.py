"""Signatures as objects, in numba's spelling."""

import numpy as np
import pytest

import ruda
from ruda import float32, float64, int32, void
from ruda.jit.types import Signature, parse_signature


@pytest.mark.parametrize(
    "spelled, text",
    [
        (void(float32[:], int32), "void(f32[:], i32)"),
        (void(float32[:, ::1], float64), "void(f32[:, ::1], f64)"),
        (void(), "void()"),
        (float32(float32, int32), "f32(f32, i32)"),
        (int32(int32), "i32(i32)"),
        (float64(float32[:]), "f64(f32[:])"),
    ],
)
def test_objects_and_text_mean_the_same(spelled, text):
    assert isinstance(spelled, Signature)
    assert spelled == parse_signature(text)


def test_a_dtype_still_converts_numbers():
    assert int32(2.75) == 2 and float32(1) == 1 and ruda.uint8(300) == 44 and int32() == 0


def test_a_kernel_with_signatures_takes_these_types_only(device):
    @ruda.jit(float32(float32, float32), device=True)
    def add(a, b):
        return a + b

    @ruda.jit([void(float32[:], float32), void(int32[:], int32)])
    def kernel(x, a):
        i = ruda.grid(1)
        if i < x.size:
            x[i] = add(x[i], a)

    with ruda.config(device=device):
        for dtype in (np.float32, np.int32):
            x = np.arange(3, dtype=dtype)
            kernel[1, 32](x, dtype(2))
            assert x.tolist() == [2, 3, 4]
        with pytest.raises(ruda.errors.LaunchTypeError):
            kernel[1, 32](np.zeros(3), np.float64(2))
