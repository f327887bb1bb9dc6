"""Double precision by integers, for chips without it: bit by bit what the host's own unit gives."""

import math
import shutil
import subprocess

import numpy as np
import pytest

import ruda
from ruda.backends.ascend.compile import COMPILERS, FOLDER
from tests.backends.ascend.test_tiles import DEVICE

HARNESS = r"""
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <cmath>
#include <random>
#define RUDA_FUNCTION inline
#define RUDA_MEMBER
#include "ruda_scalar.h"
namespace ruda {
@FLOATS@
}
#include "ruda_real64.h"
using namespace ruda;

std::mt19937_64 random_bits(1);
const double special[] = {0.0, -0.0, 1.0, -1.0, INFINITY, -INFINITY, NAN, 5e-324, -5e-324, 0.5, 1.5,
    1.7976931348623157e308, 2.2250738585072014e-308, 2.225073858507201e-308, 4503599627370496.0};

double as_double(uint64_t b) { double x; memcpy(&x, &b, 8); return x; }
real64 soft(double x) { uint64_t b; memcpy(&b, &x, 8); return r64(b); }
double draw() {
    const uint64_t r = random_bits(), sign = r & 0x8000000000000000ull, m = r & 0xfffffffffffffull;
    const auto near = [](int span) { return (1023 + random_bits() % span - span / 2) << 52; };
    switch (random_bits() % 8) {
        case 0: return special[r % 15];
        case 1: return as_double(r);
        case 2: return as_double(sign | m);                          // subnormal
        case 3: return as_double(sign | near(8) | (m >> 20 << 20));  // few bits
        case 4: return as_double(sign | near(60) | (r % 4));         // above powers of 2
        case 5: return as_double(sign | (near(8) - (149ull << 52)) | m);  // subnormal in float
        default: return as_double(sign | near(120) | m);
    }
}
int bad = 0;
template <class T>
void same(const char* what, T wanted, T found, double a, double b = 0, double c = 0) {
    if (wanted != wanted ? found != found : memcmp(&wanted, &found, sizeof(T)) == 0) return;
    if (bad++ < 10)
        printf("%s(%a, %a, %a) is %a, not %a\n", what, a, b, c, double(wanted), double(found));
}
int main() {
    for (int k = 0; k < 150000; ++k) {
        double a = draw(), b = draw(), c = draw();
        if (k % 7 == 0) c = -(a * b) * (1 + int(random_bits() % 3) * 1.1e-16);  // cancels
        if (k % 11 == 0) b = a * (1 + (int(random_bits() % 5) - 2) * 2.2e-16);
        const real64 x = soft(a), y = soft(b), z = soft(c);
        const auto d = [](real64 r) { return as_double(r.b); };
        same("add", a + b, d(x + y), a, b);
        same("sub", a - b, d(x - y), a, b);
        same("mul", a * b, d(x * y), a, b);
        same("div", a / b, d(x / y), a, b);
        same("fma", std::fma(a, b, c), d(ruda::fma(x, y, z)), a, b, c);
        same("sqrt", std::sqrt(a), d(ruda::sqrt(x)), a);
        same("floor", std::floor(a), d(ruda::floor(x)), a);
        same("ceil", std::ceil(a), d(ruda::ceil(x)), a);
        same("trunc", std::trunc(a), d(ruda::trunc(x)), a);
        same("rint", std::rint(a), d(ruda::rint(x)), a);
        const int n = int(random_bits() % 4000) - 2000;
        same("ldexp", std::ldexp(a, n), d(ruda::ldexp(x, n)), a, n);
        same("float", float(a), float(x), a);
        same("of float", double(float(a)), d(real64(float(a))), a);
        const int64_t i = int64_t(random_bits()) >> (random_bits() % 64);
        same("of int64", double(i), d(real64(i)), double(i));
        same("of int32", double(int32_t(i)), d(real64(int32_t(i))), double(i));
        same("int64", to_int<int64_t>(a), to_int<int64_t>(x), a);
        same("int32", to_int<int32_t>(a), to_int<int32_t>(x), a);
        same("lt", a < b, x < y, a, b);
        same("le", a <= b, x <= y, a, b);
        same("eq", a == b, x == y, a, b);
        same("ne", a != b, x != y, a, b);
    }
    return bad != 0;
}
"""


def test_every_operation_equals_the_hosts(tmp_path):
    compiler = next(c for c in COMPILERS if shutil.which(c))
    header = (FOLDER / "include" / "ruda_vector.h").read_text()
    first = header.index("// x >> n, where the last bit")
    floats = header[first : header.index("RUDA_FUNCTION float fma32")]
    source = tmp_path / "real64.cpp"
    source.write_text(HARNESS.replace("@FLOATS@", floats))
    subprocess.run(
        [compiler, "-O1", "-std=c++17", "-ffp-contract=off", "-I", FOLDER / "include", source,
         "-o", tmp_path / "real64"], check=True)  # fmt: skip
    ran = subprocess.run([tmp_path / "real64"], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout


@ruda.jit
def periodic(x, sines, cosines, tangents):
    i = ruda.grid(1)
    if i < x.size:
        sines[i] = ruda.sin(x[i])
        cosines[i] = ruda.cos(x[i])
        tangents[i] = ruda.tan(x[i])


@ruda.jit
def of_two(x, y, roots, powers, rests):
    i = ruda.grid(1)
    if i < x.size:
        roots[i] = ruda.hypot(x[i], y[i])
        powers[i] = abs(x[i]) ** y[i]
        rests[i] = math.remainder(x[i], y[i])


def ulps(found, wanted):
    """Errors of finite results; NaN and infinities must be the same."""
    with np.errstate(over="ignore", invalid="ignore"):
        near = wanted.astype("f4")
    finite = np.isfinite(near)
    np.testing.assert_array_equal(found[~finite], near[~finite])
    sizes = np.spacing(abs(near[finite])).astype("f8")
    return abs(found[finite].astype("f8") - wanted[finite]) / sizes


@pytest.fixture
def numbers():
    rng = np.random.default_rng(0)
    x = rng.integers(0, 2**32, 1500, dtype=np.uint32).view("f4")
    x[np.isnan(x)] = np.nan  # none that signals
    large = np.ldexp(rng.uniform(1, 2, 500), rng.integers(15, 128, 500))
    special = [0, -0.0, np.inf, -np.inf, np.nan, 32768, 32768.004, 3.4e38, 1e-45]
    parts = (x, large, -large, special, rng.uniform(-9, 9, 300))
    return np.concatenate([np.asarray(p, "f4") for p in parts])


def test_periods_of_large_numbers(numbers):
    x = numbers
    out = [np.zeros_like(x) for _ in range(3)]
    with ruda.config(device=DEVICE):
        periodic[-(-x.size // 128), 128](x, *out)
    wide = x.astype("f8")
    with np.errstate(invalid="ignore"):
        for found, f, most in zip(out, (np.sin, np.cos, np.tan), (2, 2, 3.5), strict=True):
            assert ulps(found, f(wide)).max() < most


def test_functions_that_compute_in_double(numbers):
    x, y = numbers, np.roll(numbers, 7)
    y[::3] = np.random.default_rng(1).uniform(-8, 8, y[::3].size)
    out = [np.zeros_like(x) for _ in range(3)]
    with ruda.config(device=DEVICE):
        of_two[-(-x.size // 128), 128](x, y, *out)
    a, b = x.astype("f8"), y.astype("f8")
    with np.errstate(all="ignore"):
        assert ulps(out[0], np.hypot(a, b)).max() < 1
        assert ulps(out[1], abs(a) ** b).max() < 1
    wanted = [math.remainder(p, q) if np.isfinite(p) and q == q and q else np.nan
              for p, q in zip(a, b, strict=True)]  # fmt: skip
    np.testing.assert_array_equal(out[2], wanted)
