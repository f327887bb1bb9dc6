"""Conversions between all number types, by a store and by name."""

import numpy as np

import ruda
from tests.jit.case import Case, InOut, Out
from tests.jit.data import FLOATS, INTEGERS, booleans, floats, integers, normal

ALL = [np.dtype(bool), *INTEGERS, *FLOATS]


@ruda.jit
def stores_convert(x, b, i8, i16, i32, i64, u8, u16, u32, u64, f16, f32, f64):
    i = ruda.grid(1)
    if i < x.size:
        b[i] = x[i]
        i8[i] = x[i]
        i16[i] = x[i]
        i32[i] = x[i]
        i64[i] = x[i]
        u8[i] = x[i]
        u16[i] = x[i]
        u32[i] = x[i]
        u64[i] = x[i]
        f16[i] = x[i]
        f32[i] = x[i]
        f64[i] = x[i]


@ruda.jit
def casts_by_name(x, b, i8, i16, i32, i64, u8, u16, u32, u64, f16, f32, f64):
    i = ruda.grid(1)
    if i < x.size:
        b[i] = ruda.bool_(x[i])
        i8[i] = ruda.int8(x[i])
        i16[i] = ruda.int16(x[i])
        i32[i] = np.int32(x[i])
        i64[i] = np.int64(x[i])
        u8[i] = ruda.uint8(x[i])
        u16[i] = ruda.uint16(x[i])
        u32[i] = ruda.uint32(x[i])
        u64[i] = np.uint64(x[i])
        f16[i] = ruda.float16(x[i])
        f32[i] = np.float32(x[i])
        f64[i] = ruda.float64(x[i])


def converted(x):
    return tuple(convert(x, dtype) for dtype in ALL)


def convert(x, dtype):
    """Integers wrap, floats to integers saturate, NaN gives 0."""
    if dtype.kind in "iu" and x.dtype.kind == "f":
        info = np.iinfo(dtype)
        values = []
        for value in x.tolist():
            if value != value:
                values.append(0)
            elif abs(value) == np.inf:
                values.append(info.max if value > 0 else info.min)
            else:
                values.append(min(max(int(value), info.min), info.max))
        return np.array(values, dtype)
    return x.astype(dtype)


def make(rng, n, dtype):
    if dtype.kind == "b":
        return booleans(rng, n)
    return integers(rng, n, dtype=dtype) if dtype.kind in "iu" else floats(rng, n, dtype=dtype)


def conversion_case(kernel, dtype):
    return Case(
        kernel,
        lambda rng, n: (make(rng, n, dtype), *(Out(n, d) for d in ALL)),
        converted,
        sizes=(1, 7, 256),
        name=f"{kernel.__name__}_{dtype}",
    )


@ruda.jit
def python_casts(x, whole, real, truth):
    i = ruda.grid(1)
    if i < x.size:
        whole[i] = int(x[i])
        real[i] = float(x[i]) / 4
        truth[i] = bool(x[i])


@ruda.jit
def casts_narrow_at_once(x, out):
    i = ruda.grid(1)
    if i < out.size:
        out[i] = ruda.uint8(x[i]) + 1


@ruda.jit
def hash_of_an_index(out):
    i = ruda.grid(1)
    if i < out.size:
        h = ruda.uint32(i)
        h ^= h >> 16
        h *= 0x85EBCA6B
        h ^= h >> 13
        h *= 0xC2B2AE35
        h ^= h >> 16
        out[i] = h


def hashed(out):
    h = np.arange(out.size, dtype=np.uint32)
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35), (16, 1)):
        h ^= h >> np.uint32(shift)
        h *= np.uint32(factor)
    return h


@ruda.jit
def rounding_errors(x, out):
    i = ruda.grid(1)
    if i < out.size:
        out[i] = ruda.float64(ruda.float32(x[i])) - x[i]


@ruda.jit
def double_only_where_asked(x, out):
    i = ruda.grid(1)
    if i < out.size:
        out[i] = ruda.float64(x[i]) * x[i]


@ruda.jit
def float32_product(x, out):
    i = ruda.grid(1)
    if i < out.size:
        out[i] = x[i] * x[i]


CASES = [
    *(conversion_case(stores_convert, d) for d in ALL),
    *(conversion_case(casts_by_name, d) for d in ALL),
    Case(
        python_casts,
        lambda rng, n: (normal(rng, n) * 9, Out(n, np.int64), Out(n, np.float64), Out(n, bool)),
        lambda x: (np.trunc(x), (x / np.float32(4)).astype(np.float64), x != 0),
    ),
    Case(
        python_casts,
        lambda rng, n: (
            integers(rng, n, least=-9, most=9),
            Out(n, np.int64),
            Out(n, np.float64),
            Out(n, bool),
        ),
        lambda x: (x, x / 4, x != 0),
        name="python_casts_of_integers",
    ),
    Case(
        casts_narrow_at_once,
        lambda rng, n: (integers(rng, n), Out(n, np.int32)),
        lambda x: x.astype(np.uint8).astype(np.int32) + 1,
    ),
    Case(
        hash_of_an_index,
        lambda rng, n: (InOut(np.zeros(n, np.uint32)),),
        hashed,
    ),
    Case(
        rounding_errors,
        lambda rng, n: (normal(rng, n, dtype=np.float64), Out(n, np.float64)),
        lambda x: x.astype(np.float32) - x,
    ),
    Case(
        double_only_where_asked,
        lambda rng, n: (normal(rng, n), Out(n, np.float64)),
        lambda x: np.float64(x) * x,
    ),
    Case(
        float32_product,
        lambda rng, n: (normal(rng, n), Out(n, np.float64)),
        lambda x: (x * x).astype(np.float64),
    ),
]
