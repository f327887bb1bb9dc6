"""Cast in the twin: every pair of dtypes in every rounding mode, against exact arithmetic."""

import ctypes
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest

from ruda.backends.ascend import twin
from ruda.errors import CheckError

MODES = ("none", "rint", "floor", "ceil", "round", "trunc", "odd")
DTYPES = {
    "int8_t": np.int8, "uint8_t": np.uint8, "int16_t": np.int16, "int32_t": np.int32,
    "int64_t": np.int64, "half": np.float16, "bfloat16_t": ml_dtypes.bfloat16, "float": np.float32,
}  # fmt: skip
N, R, A = "none", "rint floor ceil round trunc", "none rint floor ceil round trunc"
PAIRS = {  # (from, to): modes
    ("int8_t", "half"): N, ("uint8_t", "half"): N, ("int16_t", "half"): A, ("int16_t", "float"): N,
    ("half", "int8_t"): A, ("half", "uint8_t"): A, ("half", "int16_t"): R, ("half", "int32_t"): R,
    ("half", "float"): N, ("bfloat16_t", "float"): N, ("bfloat16_t", "int32_t"): R,
    ("int32_t", "int16_t"): N, ("int32_t", "float"): A, ("int32_t", "int64_t"): N,
    ("int64_t", "int32_t"): N, ("int64_t", "float"): R, ("float", "float"): R,
    ("float", "half"): A + " odd", ("float", "bfloat16_t"): R, ("float", "int16_t"): R,
    ("float", "int32_t"): R, ("float", "int64_t"): R,
}  # fmt: skip
CASES = [(*pair, mode) for pair, modes in PAIRS.items() for mode in modes.split()]

KERNEL = """
static void NAME(GM_ADDR xp, GM_ADDR op, uint32_t n, uint32_t mode) {
    GlobalTensor<FROM> x;
    GlobalTensor<TO> out;
    x.SetGlobalBuffer((__gm__ FROM*)xp);
    out.SetGlobalBuffer((__gm__ TO*)op);
    TPipe pipe;
    TBuf<TPosition::VECIN> in;
    TBuf<TPosition::VECOUT> result;
    pipe.InitBuffer(in, n * sizeof(FROM));
    pipe.InitBuffer(result, n * sizeof(TO));
    LocalTensor<FROM> a = in.Get<FROM>();
    LocalTensor<TO> r = result.Get<TO>();
    DataCopyPad(a, x, DataCopyExtParams{1, uint32_t(n * sizeof(FROM)), 0, 0, 0},
                DataCopyPadExtParams<FROM>{false, 0, 0, FROM(0)});
    PipeBarrier<PIPE_ALL>();
    Cast(r, a, RoundMode(mode), n);
    PipeBarrier<PIPE_ALL>();
    DataCopyPad(out, r, DataCopyExtParams{1, uint32_t(n * sizeof(TO)), 0, 0, 0});
}
extern "C" int launch_NAME(uint32_t blocks, void* stream, GM_ADDR x, GM_ADDR out, uint32_t n,
                           uint32_t mode) {
    return twin::launch_vector(stream, blocks, [=] { NAME(x, out, n, mode); });
}
"""


@pytest.fixture(scope="module")
def library():
    text = '#include "kernel_operator.h"\nusing namespace AscendC;\n'
    for source, to in PAIRS:
        kernel = KERNEL.replace("NAME", f"{source}_to_{to}")
        text += kernel.replace("FROM", source).replace("TO", to)
    return twin.load(text)


def values(dtype):
    """Edges and random ones."""
    rng = np.random.default_rng(0)
    if dtype in (np.float16, ml_dtypes.bfloat16):
        return np.arange(0, 65536, 31).astype(np.uint16).view(dtype)
    if dtype == np.float32:
        halves = np.arange(-9, 10) / 4
        edges = np.array([2.0**e for e in (-149, -133, -126, -25, -24, -15, 7, 15, 16, 24, 31, 63)])
        near = np.concatenate([np.float32(edges), np.nextafter(np.float32(edges), np.float32(0))])
        special = np.float32([0, -0.0, np.inf, np.nan, 65504, 65519.996, 65520, 3.4e38])
        bits = rng.integers(0, 2**32, 800, np.uint32).view(np.float32)
        x = np.concatenate([halves.astype(np.float32), near, special, bits])
        x = np.concatenate([x, rng.standard_normal(300).astype(np.float32) * 300])
        return np.concatenate([x, -x])
    info = np.iinfo(dtype)
    edges = [0, 1, 2**24 - 1, 2**24, 2**24 + 1, 2**24 + 3, 2**15 - 1, 2**15, 2**31 - 1, 2**31]
    edges += [2049, 2051, 2**53 + 1, 2**62 + 2**38, 2**62 + 2**38 + 1, info.max, info.max - 1]
    edges = [e for e in edges if e <= info.max]
    negative = [-e for e in edges if info.min < 0] + [info.min]
    return np.concatenate(
        [np.array(edges + negative, dtype), rng.integers(info.min, info.max, 300, dtype)]
    )


def round_fraction(x, mode):
    low = x.numerator // x.denominator
    if low == x:
        return low
    nearest = low + (x - low > Fraction(1, 2) or (x - low == Fraction(1, 2) and low % 2 == 1))
    away = low + (x - low > Fraction(1, 2) or (x - low == Fraction(1, 2) and x > 0))
    return {
        "none": nearest, "rint": nearest, "floor": low, "ceil": low + 1, "round": away,
        "trunc": low if x > 0 else low + 1, "odd": low if low % 2 else low + 1,
    }[mode]  # fmt: skip


FORMATS = {
    np.float16: (10, -14, 16),
    ml_dtypes.bfloat16: (7, -126, 128),
    np.float32: (23, -126, 128),
}


def exact_cast(value, source, to, mode):
    """The result as a Python number, by fractions."""
    if source not in (np.float16, ml_dtypes.bfloat16, np.float32):
        value = int(value)
    else:
        value = float(value)
        if value != value or value in (np.inf, -np.inf):
            if to in FORMATS:
                return value
            if value != value:
                return 0
            return np.iinfo(to).max if value > 0 else np.iinfo(to).min
    x = Fraction(value)
    if to not in FORMATS:
        return min(max(round_fraction(x, mode), np.iinfo(to).min), np.iinfo(to).max)
    if source == to:  # to an integral value of the same format
        return float(round_fraction(x, mode))
    mantissa, lowest, top = FORMATS[to]
    exponent = abs(x.numerator).bit_length() - x.denominator.bit_length()
    exponent -= abs(x) < Fraction(2) ** exponent
    quantum = Fraction(2) ** (max(exponent, lowest) - mantissa)
    r = round_fraction(x / quantum, mode) * quantum
    if abs(r) < Fraction(2) ** top:
        return float(r)
    away = {"floor": x < 0, "ceil": x > 0, "trunc": False, "odd": False}.get(mode, True)
    largest = float((2 - Fraction(1, 2**mantissa)) * Fraction(2) ** (top - 1))
    return float(np.copysign(np.inf if away else largest, float(x)))


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")  # signalling NaN
@pytest.mark.parametrize(("source", "to", "mode"), CASES, ids=lambda v: v)
def test_cast(library, source, to, mode):
    x = values(DTYPES[source])
    out = np.zeros(x.size, DTYPES[to])
    ranges = [
        twin.Memory("x", x.ctypes.data, x.nbytes, False),
        twin.Memory("out", out.ctypes.data, out.nbytes),
    ]
    arguments = [ctypes.c_void_p(x.ctypes.data), ctypes.c_void_p(out.ctypes.data)]
    arguments += [ctypes.c_uint32(x.size), ctypes.c_uint32(MODES.index(mode))]
    twin.launch(library, f"launch_{source}_to_{to}", 1, arguments, ranges)
    wanted = [exact_cast(v, DTYPES[source], DTYPES[to], mode) for v in x]
    if DTYPES[to] in FORMATS:
        got = out.astype(np.float64)
        np.testing.assert_array_equal(got, np.array(wanted, np.float64))
        real = source in ("half", "bfloat16_t", "float")
        if real:  # zeros keep their sign
            sure = ~np.isnan(got)
            np.testing.assert_array_equal(
                np.signbit(got)[sure], np.signbit(x.astype(np.float64))[sure]
            )
    else:
        assert out.tolist() == wanted


def test_modes_that_a_pair_has_not(library):
    x = np.zeros(8, np.float32)
    for (source, to), modes in PAIRS.items():
        for mode in set(MODES) - set(modes.split()):
            arguments = [ctypes.c_void_p(x.ctypes.data)] * 2
            arguments += [ctypes.c_uint32(1), ctypes.c_uint32(MODES.index(mode))]
            ranges = [twin.Memory("x", x.ctypes.data, x.nbytes)]
            with pytest.raises(CheckError, match="has no rounding mode"):
                twin.launch(library, f"launch_{source}_to_{to}", 1, arguments, ranges)
