"""WGSL functions that emitted kernels call, by name: `floordiv_i32`, `fma_f32`, `f32_to_u8`.

`definitions` gives the text of those that a kernel uses and of what they use in turn. A template
is written once for several types: T is the type, U the unsigned one of its size, F its literal
suffix, S and SU the suffixes of T and U, BITS its size. Functions of floats that are not here come
from `formulas`. All are total, as the language demands (LANGUAGE.md), where WGSL is not.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Collection, Iterable

from ruda.backends.wgpu import exact, formulas, wide

_TEMPLATES: dict[str, tuple[str, str]] = {}  # name: (types, text)


def _add(types: str, text: str) -> None:
    for part in re.split(r"\n(?=fn )", text.strip()):
        found = re.match(r"fn (\w+)_T\(", part)
        assert found, part
        _TEMPLATES[found[1] + " " + types] = (types, part)


# Mesa 22 finds i64(x) < 64 false for every i32 x: it narrows the comparison, and wrongly.
_add(
    "i64",
    """
fn widened_T(x: i32) -> T {
  return (T(x >> 31u) << 32u) | bitcast<T>(u64(bitcast<u32>(x)));
}
""",
)
_add(
    "i32 i64",
    """
fn floordiv_T(x: T, y: T) -> T {
  if (y == 0S) { return 0S; }
  if (y == -1S) { return 0S - x; }
  let q = x / y;
  let r = x - q * y;
  return select(q, q - 1S, (r != 0S) & ((r < 0S) != (y < 0S)));
}
fn mod_T(x: T, y: T) -> T {
  if ((y == 0S) | (y == -1S)) { return 0S; }
  let r = x - (x / y) * y;  // Vulkan leaves % of negative numbers undefined
  return select(r, r + y, (r != 0S) & ((r < 0S) != (y < 0S)));
}
fn pow_T(x: T, y: T) -> T {
  if (y < 0S) {
    if (x == 1S) { return 1S; }
    if (x == -1S) { return select(1S, -1S, (y & 1S) == 1S); }
    return 0S;
  }
  var r = 1S;
  var b = x;
  var n = y;
  loop {
    if (n == 0S) { break; }
    if ((n & 1S) == 1S) { r = r * b; }
    b = b * b;
    n = n >> 1u;
  }
  return r;
}
fn shl_T(x: T, n: T) -> T {
  return select(x << (u32(n) & (BITSu - 1u)), 0S, (n < 0S) | (n >= BITSS));
}
fn shr_T(x: T, n: T) -> T {
  return x >> select(u32(n), BITSu - 1u, (n < 0S) | (n >= BITSS));
}
fn wrap_T(i: T, n: T) -> T {
  return select(i, i + n, i < 0S);
}
fn trips_T(start: T, stop: T, step: T) -> U {
  if ((step > 0S) & (start < stop)) {
    return (bitcast<U>(stop) - bitcast<U>(start) - 1SU) / bitcast<U>(step) + 1SU;
  }
  if ((step < 0S) & (start > stop)) {
    return (bitcast<U>(start) - bitcast<U>(stop) - 1SU) / (0SU - bitcast<U>(step)) + 1SU;
  }
  return 0SU;
}
""",
)
_add(
    "u32 u64",
    """
fn floordiv_T(x: T, y: T) -> T {
  if (y == 0S) { return 0S; }
  return x / y;
}
fn mod_T(x: T, y: T) -> T {
  if (y == 0S) { return 0S; }
  return x % y;
}
fn pow_T(x: T, y: T) -> T {
  var r = 1S;
  var b = x;
  var n = y;
  loop {
    if (n == 0S) { break; }
    if ((n & 1S) == 1S) { r = r * b; }
    b = b * b;
    n = n >> 1u;
  }
  return r;
}
fn shl_T(x: T, n: T) -> T {
  return select(x << (u32(n) & (BITSu - 1u)), 0S, n >= BITSS);
}
fn shr_T(x: T, n: T) -> T {
  return select(x >> (u32(n) & (BITSu - 1u)), 0S, n >= BITSS);
}
fn trips_T(start: T, stop: T, step: T) -> U {
  if ((step > 0S) & (start < stop)) { return (stop - start - 1S) / step + 1S; }
  return 0S;
}
""",
)
_add(
    "u32",
    """
fn popc_T(x: T) -> i32 { return i32(countOneBits(x)); }
fn clz_T(x: T) -> i32 { return i32(countLeadingZeros(x)); }
fn ffs_T(x: T) -> i32 { return select(i32(countTrailingZeros(x)) + 1i, 0i, x == 0u); }
fn brev_T(x: T) -> T { return reverseBits(x); }
fn mulhi_T(x: T, y: T) -> T {
  let a = x >> 16u;
  let b = x & 0xffffu;
  let c = y >> 16u;
  let d = y & 0xffffu;
  let low = b * d;
  let middle = a * d + (low >> 16u);
  let other = b * c + (middle & 0xffffu);
  return a * c + (middle >> 16u) + (other >> 16u);
}
""",
)
_add(
    "u64",
    """
fn popc_T(x: T) -> i32 { return popc_u32(u32(x)) + popc_u32(u32(x >> 32u)); }
fn clz_T(x: T) -> i32 {
  let high = u32(x >> 32u);
  return select(clz_u32(high), 32i + clz_u32(u32(x)), high == 0u);
}
fn ffs_T(x: T) -> i32 {
  let low = u32(x);
  if (low != 0u) { return ffs_u32(low); }
  let high = ffs_u32(u32(x >> 32u));
  return select(32i + high, 0i, high == 0i);
}
fn brev_T(x: T) -> T {
  return (u64(reverseBits(u32(x))) << 32u) | u64(reverseBits(u32(x >> 32u)));
}
fn mulhi_T(x: T, y: T) -> T {
  let a = x >> 32u;
  let b = u64(u32(x));
  let c = y >> 32u;
  let d = u64(u32(y));
  let low = b * d;
  let middle = a * d + (low >> 32u);
  let other = b * c + u64(u32(middle));
  return a * c + (middle >> 32u) + (other >> 32u);
}
""",
)
_add(
    "i32 i64",
    """
fn popc_T(x: T) -> i32 { return popc_U(bitcast<U>(x)); }
fn clz_T(x: T) -> i32 { return clz_U(bitcast<U>(x)); }
fn ffs_T(x: T) -> i32 { return ffs_U(bitcast<U>(x)); }
fn brev_T(x: T) -> T { return bitcast<T>(brev_U(bitcast<U>(x))); }
fn mulhi_T(x: T, y: T) -> T {
  let high = bitcast<T>(mulhi_U(bitcast<U>(x), bitcast<U>(y)));
  return high - select(0S, y, x < 0S) - select(0S, x, y < 0S);
}
""",
)

# ---- floats

_add(
    "f32 f64",
    """
fn opaque_T(x: T) -> T { return bitcast<T>(bitcast<U>(x) + U(zero())); }
fn apart_T(x: T) -> T { return bitcast<T>(bitcast<U>(x) - U(zero())); }  // not alike `opaque`
fn isnan_T(x: T) -> bool { return (bitcast<U>(x) & MAGNITUDE) > INFINITE; }
fn isinf_T(x: T) -> bool { return (bitcast<U>(x) & MAGNITUDE) == INFINITE; }
fn isfinite_T(x: T) -> bool { return (bitcast<U>(x) & MAGNITUDE) < INFINITE; }
fn signbit_T(x: T) -> bool { return (bitcast<U>(x) & SIGN) != 0SU; }
fn copysign_T(x: T, y: T) -> T {
  return bitcast<T>((bitcast<U>(x) & MAGNITUDE) | (bitcast<U>(y) & SIGN));
}
fn power_of_two_T(k: i32) -> T { return bitcast<T>(U(k + BIAS) << MANTISSA); }
fn ldexp_T(x: T, k: i32) -> T {
  var y = x;
  var n = k;
  for (var i = 0i; i < 2i; i++) {
    let step = select(select(0i, DOWN, n < -MOST), BIAS, n > BIAS);
    y = opaque_T(y * power_of_two_T(step));
    n = n - step;
  }
  return y * power_of_two_T(clamp(n, -MOST, BIAS));
}
fn sum_error_T(a: T, b: T, s: T) -> T {
  let v = opaque_T(s - a);
  let w = opaque_T(s - v);
  return opaque_T(a - w) + opaque_T(b - v);
}
fn product_error_T(a: T, b: T, p: T) -> T {
  let ah = bitcast<T>(bitcast<U>(a) & UPPER);
  let bh = bitcast<T>(bitcast<U>(b) & UPPER);
  let al = opaque_T(a - ah);
  let bl = opaque_T(b - bh);
  let first = opaque_T(opaque_T(ah * bh) - p);
  let second = opaque_T(first + opaque_T(ah * bl));
  let third = opaque_T(second + opaque_T(al * bh));
  return opaque_T(third + opaque_T(al * bl));
}
fn long_fmod_T(x: T, y: T) -> T {
  let bits = bitcast<U>(x) & MAGNITUDE;
  let other = bitcast<U>(y) & MAGNITUDE;
  if ((bits >= INFINITE) | (other > INFINITE) | (other == 0SU)) {
    return bitcast<T>(QUIET + U(zero()));
  }
  if (bits < other) { return x; }
  var ex = i32(bits >> MANTISSA);
  var ey = i32(other >> MANTISSA);
  var mx = bits & FRACTION;
  var my = other & FRACTION;
  if (ex == 0i) { ex = 1i; } else { mx = mx | HIDDEN; }
  if (ey == 0i) { ey = 1i; } else { my = my | HIDDEN; }
  loop {
    if (mx >= my) { mx = mx - my; }
    if (ex <= ey) { break; }
    mx = mx << 1u;
    ex = ex - 1i;
  }
  loop {
    if ((mx == 0SU) | (mx >= HIDDEN) | (ex <= 1i)) { break; }
    mx = mx << 1u;
    ex = ex - 1i;
  }
  var r = mx;
  if (mx >= HIDDEN) { r = (mx & FRACTION) | (U(ex) << MANTISSA); }
  return bitcast<T>(r | (bitcast<U>(x) & SIGN));
}
fn long_remainder_T(x: T, y: T) -> T {
  if (isinf_T(y) & isfinite_T(x)) { return x; }
  let b = abs(y);
  var twice = long_fmod_T(x, b + b);
  if (isinf_T(b + b)) { twice = x; }
  var r = abs(twice);
  if (isnan_T(r)) { return r; }
  // r < 2b: take off b where r is more than half of it, twice at most; ties go to even.
  if (b < TINY) {
    if (r + r > b) { r = r - b; if (r + r >= b) { r = r - b; } }
  } else {
    let half = b * 0.5F;
    if (r > half) { r = r - b; if (r >= half) { r = r - b; } }
  }
  return bitcast<T>(bitcast<U>(r) ^ (bitcast<U>(x) & SIGN));
}
""",
)
_add("f32", exact.SINGLE)
_add("f64", "fn div_T(x: T, y: T) -> T { return x / y; }")
_add("u32 u64", exact.PAIRS)
_add("f32 f64", exact.FUSED)
_FLOATS = {
    "f32": exact.SIZES["f32"] | {
        "MAGNITUDE": "0x7fffffffu", "INFINITE": "0x7f800000u", "SIGN": "0x80000000u",
        "BIAS": "127i", "MOST": "126i", "DOWN": "(-102i)", "MANTISSA": "23u",
        "UPPER": "0xfffff000u", "FRACTION": "0x7fffffu", "HIDDEN": "0x800000u",
        "QUIET": "0x7fc00000u", "TINY": "2.4e-38f",
    },
    "f64": exact.SIZES["f64"] | {
        "MAGNITUDE": "0x7ffffffffffffffflu", "INFINITE": "0x7ff0000000000000lu",
        "SIGN": "(1lu << 63u)", "BIAS": "1023i", "MOST": "1022i", "DOWN": "(-969i)",
        "MANTISSA": "52u", "UPPER": "(18446744073575333888lu)",
        "FRACTION": "0xffffffffffffflu", "HIDDEN": "0x10000000000000lu",
        "QUIET": "0x7ff8000000000000lu", "TINY": "4.5e-308lf",
    },
}  # fmt: skip

_PLAIN = {
    "to_f16": """
fn to_f16(x: f32) -> u32 {
  let b = bitcast<u32>(x);
  let s = (b >> 16u) & 0x8000u;
  let a = b & 0x7fffffffu;
  if (a > 0x7f800000u) { return s | 0x7e00u; }
  if (a >= 0x477ff000u) { return s | 0x7c00u; }
  if (a <= 0x33000000u) { return s; }
  if (a < 0x38800000u) {
    let m = (a & 0x7fffffu) | 0x800000u;
    let n = 126u - (a >> 23u);
    let q = m >> n;
    let rest = m & ((1u << n) - 1u);
    let half = 1u << (n - 1u);
    return s | (q + select(0u, 1u, (rest > half) | ((rest == half) & ((q & 1u) == 1u))));
  }
  let r = a + 0xfffu + ((a >> 13u) & 1u);
  return s | ((r - 0x38000000u) >> 13u);
}
""",
    "from_f16": """
fn from_f16(h: u32) -> f32 {
  let s = (h & 0x8000u) << 16u;
  let a = h & 0x7fffu;
  if (a >= 0x7c00u) { return bitcast<f32>(s | 0x7f800000u | ((a & 0x3ffu) << 13u)); }
  if (a >= 0x400u) { return bitcast<f32>(s | ((a << 13u) + 0x38000000u)); }
  return bitcast<f32>(s | bitcast<u32>(f32(a) * 5.9604645e-8f));
}
""",
    "round_f16": "fn round_f16(x: f32) -> f32 { return from_f16(to_f16(x)); }\n",
    "to_bf16": """
fn to_bf16(x: f32) -> u32 {
  let b = bitcast<u32>(x);
  if ((b & 0x7fffffffu) > 0x7f800000u) { return ((b >> 16u) & 0x8000u) | 0x7fc0u; }
  return (b + 0x7fffu + ((b >> 16u) & 1u)) >> 16u;
}
""",
    "from_bf16": "fn from_bf16(h: u32) -> f32 { return bitcast<f32>(h << 16u); }\n",
    "round_bf16": "fn round_bf16(x: f32) -> f32 { return from_bf16(to_bf16(x)); }\n",
    "odd_f32": """
// float64 to float32 rounded to odd: a second rounding to 16 bits is then the only one that counts.
fn odd_f32(x: f64) -> f32 {
  let y = f32(x);
  let back = f64(y);
  if ((back == x) | isnan_f64(x) | isinf_f32(y)) { return y; }
  let bits = bitcast<u32>(y);
  if ((bits & 1u) == 1u) { return y; }
  return bitcast<f32>(select(bits - 1u, bits + 1u, abs(back) < abs(x)));
}
""",
    "odd_i64": """
fn odd_i64(x: i64) -> f32 { return odd_f32_u64(u64(abs(x)), x < 0li); }
""",
    "odd_u64": "fn odd_u64(x: u64) -> f32 { return odd_f32_u64(x, false); }\n",
    "odd_i32": "fn odd_i32(x: i32) -> f32 { return odd_f32_u32(u32(abs(x)), x < 0i); }\n",
    "odd_u32": "fn odd_u32(x: u32) -> f32 { return odd_f32_u32(x, false); }\n",
    "odd_f32_u32": """
fn odd_f32_u32(x: u32, negative: bool) -> f32 {
  var a = x;
  let n = max(8i - clz_u32(x), 0i);
  if (n > 0i) {
    let rest = x & ((1u << u32(n)) - 1u);
    a = (x >> u32(n)) | select(0u, 1u, rest != 0u);
  }
  let y = f32(a) * power_of_two_f32(n);
  return select(y, -y, negative);
}
""",
    "odd_f32_u64": """
fn odd_f32_u64(x: u64, negative: bool) -> f32 {
  var a = x;
  let n = max(40i - clz_u64(x), 0i);
  if (n > 0i) {
    let rest = x & ((1lu << u32(n)) - 1lu);
    a = (x >> u32(n)) | select(0lu, 1lu, rest != 0lu);
  }
  let y = f32(u32(a)) * power_of_two_f32(n);
  return select(y, -y, negative);
}
""",
    "long_quadrant_f32": """
// x = r + n pi/2 for any x: 2/pi to 192 bits, of which those are taken that matter.
fn long_quadrant_f32(x: f32) -> vec2<f32> {
  var table = array<u32, 8>(0u, 0xa2f9836eu, 0x4e441529u, 0xfc2757d1u, 0xf534ddc0u,
                            0xdb629599u, 0x3c439041u, 0xfe5163abu);
  let bits = bitcast<u32>(x);
  let e = ((bits >> 23u) & 0xffu) - 120u;
  let m = (bits & 0x7fffffu) | 0x800000u;
  let word = min(e >> 5u, 4u);
  let shift = e & 31u;
  var part = array<u32, 3>();
  for (var i = 0u; i < 3u; i++) {
    let high = table[word + i];
    let low = table[word + i + 1u];
    part[i] = select((high << shift) | (low >> (32u - shift)), high, shift == 0u);
  }
  // The 96 bits times m; only what is below 4 quadrants counts.
  let low = mulhi_u32(part[2], m);
  let middle = part[1] * m;
  let sum = middle + low;
  let carry = select(0u, 1u, sum < low);
  let high = part[0] * m + mulhi_u32(part[1], m) + carry;
  var n = high >> 30u;
  var fraction = (high << 2u) | (sum >> 30u);
  var rest = sum << 2u;
  var sign = 1.0f;
  if ((fraction >> 31u) == 1u) {
    n = n + 1u;
    sign = -1.0f;
    fraction = ~fraction;
    rest = ~rest;
  }
  let z = clz_u32(fraction);
  var top = fraction;
  if (z > 0i) { top = (fraction << u32(z & 31i)) | (rest >> u32((32i - z) & 31i)); }
  if (z == 32i) { top = rest; }
  let rest_of_turn = f32(top & 255u) * power_of_two_f32(-32i - z);
  let turn = f32(top >> 8u) * power_of_two_f32(-24i - z) + rest_of_turn;
  let r = turn * 1.5707964f;
  let negative = (bits >> 31u) == 1u;
  let quadrant = select(n, 0u - n, negative) & 3u;
  return vec2<f32>(select(sign * r, -(sign * r), negative), f32(quadrant));
}
""",
    "long_sin_f32": """
fn long_sin_f32(x: f32) -> f32 {
  let q = long_quadrant_f32(x);
  let s = sin_f32(q.x);
  let c = cos_f32(q.x);
  let n = u32(q.y);
  let y = select(s, c, (n & 1u) == 1u);
  return select(y, -y, n >= 2u);
}
""",
    "long_cos_f32": """
fn long_cos_f32(x: f32) -> f32 {
  let q = long_quadrant_f32(x);
  let s = sin_small_f32(q.x);
  let c = cos_small_f32(q.x);
  let n = (u32(q.y) + 1u) & 3u;
  let y = select(s, c, (n & 1u) == 1u);
  return select(y, -y, n >= 2u);
}
""",
    "long_tan_f32": """
fn long_tan_f32(x: f32) -> f32 { return div_f32(long_sin_f32(x), long_cos_f32(x)); }
""",
}


def _two_over_pi(words: int) -> str:
    """2/pi to any number of words, in integers (Machin's formula for pi)."""
    bits = 32 * words + 64

    def arctan_inverse(n: int) -> int:
        total = term = (1 << bits) // n
        k = 3
        while term:
            term //= -n * n
            total += term // k
            k += 2
        return total

    pi = 4 * (4 * arctan_inverse(5) - arctan_inverse(239))
    value = (2 << 2 * bits) // pi >> (bits - 32 * words)
    return ", ".join(f"{value >> 32 * (words - 1 - k) & 0xFFFFFFFF}u" for k in range(words))


_PLAIN |= {
    "long_quadrant_f64": f"""
fn long_quadrant_f64(x: f64) -> vec2<f64> {{
  var table = array<u32, 42>(0u, 0u, {_two_over_pi(40)});
  let bits = bitcast<u64>(x);
  let e = u32(bits >> 52u & 2047lu) - 1013u;
  let m = (bits & 0xffffffffffffflu) | 0x10000000000000lu;
  let low = m & 4294967295lu;
  let high = m >> 32u;
  let word = min(e >> 5u, 35u);
  let shift = e & 31u;
  // The low 192 bits of m times a window of 2/pi: two bits of quadrant, then the fraction.
  var product = array<u32, 6>();
  var carry = 0lu;
  var below = 0lu;
  for (var i = 0u; i < 6u; i++) {{
    let j = 5u - i;
    let a = table[word + j];
    let b = table[word + j + 1u];
    let w = u64(select((a << shift) | (b >> (32u - shift)), a, shift == 0u));
    let first = w * low;
    let second = below * high;
    let sum = (carry & 4294967295lu) + (first & 4294967295lu) + (second & 4294967295lu);
    product[j] = u32(sum & 4294967295lu);
    carry = (sum >> 32u) + (carry >> 32u) + (first >> 32u) + (second >> 32u);
    below = w;
  }}
  var n = product[0] >> 30u;
  var top = (u64(product[0]) << 34u) | (u64(product[1]) << 2u) | u64(product[2] >> 30u);
  var next = (u64(product[2]) << 34u) | (u64(product[3]) << 2u) | u64(product[4] >> 30u);
  var sign = 1.0lf;
  if ((top >> 63u) == 1lu) {{
    n = n + 1u;
    sign = -1.0lf;
    top = ~top;
    next = ~next;
  }}
  let z = clz_u64(top);
  if (z == 64i) {{ top = next; }}
  if ((z > 0i) & (z < 64i)) {{ top = (top << u32(z)) | (next >> u32(64i - z)); }}
  let a = f64(top >> 11u) * power_of_two_f64(-53i - z);
  let b = f64(top & 2047lu) * power_of_two_f64(-64i - z);
  let rest = b * 1.5707963267948966lf + a * 6.123233995736766e-17lf;
  let r = a * 1.5707963267948966lf + opaque_f64(rest);
  let negative = (bits >> 63u) == 1lu;
  let quadrant = select(n, 0u - n, negative) & 3u;
  return vec2<f64>(select(sign * r, -(sign * r), negative), f64(quadrant));
}}
""".replace("bits >> 52u & 2047lu", "(bits >> 52u) & 2047lu"),
    "gamma_f64": """
// Stirling's series from 12 on, by recurrence below; reflected for negative arguments.
fn gamma_f64(x: f64) -> f64 {
  if (isnan_f64(x)) { return x; }
  if (x == 0.0lf) { return copysign_f64(bitcast<f64>(0x7ff0000000000000lu + u64(zero())), x); }
  if (isinf_f64(x)) {
    return select(bitcast<f64>(0x7ff8000000000000lu + u64(zero())), x, x > 0.0lf);
  }
  if (x < 0.0lf) {
    if (floor(x) == x) { return bitcast<f64>(0x7ff8000000000000lu + u64(zero())); }
    return 3.141592653589793lf / (sinpi_f64(x) * gamma_positive_f64(1.0lf - x));
  }
  return gamma_positive_f64(x);
}
""",
    "gamma_positive_f64": """
fn gamma_positive_f64(x: f64) -> f64 {
  if (x > 171.7lf) { return bitcast<f64>(0x7ff0000000000000lu + u64(zero())); }
  var below = 1.0lf;
  var steps = 0.0lf;
  loop {
    if (x + steps >= 12.0lf) { break; }
    below = below * (x + steps);
    steps = steps + 1.0lf;
  }
  let y = x + steps;
  let lost = sum_error_f64(x, steps, y);
  let slope = 1.0lf + lost * (log_f64(y) - 0.5lf / y);
  let half = pow_f64(y, 0.5lf * y - 0.25lf);
  let size = half * (exp_f64(-y) * 2.5066282746310002lf * exp_f64(stirling_f64(y)) * slope);
  return size * half / below;
}
""",
    "stirling_f64": """
fn stirling_f64(x: f64) -> f64 {
  let w = 1.0lf / x;
  let z = w * w;
  var s = 0.00641025641025641lf;
  s = s * z - 0.0019175269175269176lf;
  s = s * z + 0.0008417508417508417lf;
  s = s * z - 0.0005952380952380953lf;
  s = s * z + 0.0007936507936507937lf;
  s = s * z - 0.002777777777777778lf;
  s = s * z + 0.08333333333333333lf;
  return s * w;
}
""",
    "lgamma_f64": """
fn lgamma_f64(x: f64) -> f64 {
  if (isnan_f64(x)) { return x; }
  let infinity = bitcast<f64>(0x7ff0000000000000lu + u64(zero()));
  if (isinf_f64(x) | ((x <= 0.0lf) & (floor(x) == x))) { return infinity; }
  if (x < 0.0lf) {
    let s = abs(sinpi_f64(x));
    return log_f64(3.141592653589793lf / s) - lgamma_positive_f64(1.0lf - x);
  }
  return lgamma_positive_f64(x);
}
""",
    "lgamma_positive_f64": """
fn lgamma_positive_f64(x: f64) -> f64 {
  if (x < 12.0lf) { return log_f64(gamma_positive_f64(x)); }
  let rest = 0.9189385332046727lf + stirling_f64(x);
  return (x - 0.5lf) * (log_f64(x) - 1.0lf) + (rest - 0.5lf);
}
""",
    "gamma_f32": "fn gamma_f32(x: f32) -> f32 { return f32(gamma_f64(f64(x))); }\n",
    "lgamma_f32": "fn lgamma_f32(x: f32) -> f32 { return f32(lgamma_f64(f64(x))); }\n",
}
_PLAIN["long_sin_f32"] = (
    _PLAIN["long_sin_f32"]
    .replace("sin_f32(q", "sin_small_f32(q")
    .replace("cos_f32(q", "cos_small_f32(q")
)
for _name in ("sin", "cos", "tan"):
    _PLAIN[f"long_{_name}_f64"] = _PLAIN[f"long_{_name}_f32"].replace("f32", "f64")

# ---- complex numbers

_add(
    "c64 c128",
    """
fn add_T(x: V, y: V) -> V { return V(x.x + opaque_R(y.x), x.y + opaque_R(y.y)); }
fn sub_T(x: V, y: V) -> V { return V(x.x - opaque_R(y.x), x.y - opaque_R(y.y)); }
fn neg_T(x: V) -> V { return V(-x.x, -x.y); }
fn mul_T(x: V, y: V) -> V {
  return V(x.x * y.x - opaque_R(x.y * y.y), x.x * y.y + opaque_R(x.y * y.x));
}
fn truediv_T(x: V, y: V) -> V {
  if (abs(y.x) >= abs(y.y)) {
    if ((y.x == 0F) & (y.y == 0F)) { return V(div_R(x.x, abs(y.x)), div_R(x.y, abs(y.x))); }
    let ratio = div_R(y.y, y.x);
    let scale = div_R(1F, y.x + opaque_R(y.y * ratio));
    return V((x.x + opaque_R(x.y * ratio)) * scale, (x.y - opaque_R(x.x * ratio)) * scale);
  }
  let ratio = div_R(y.x, y.y);
  let scale = div_R(1F, opaque_R(y.x * ratio) + y.y);
  return V((opaque_R(x.x * ratio) + x.y) * scale, (opaque_R(x.y * ratio) - x.x) * scale);
}
fn eq_T(x: V, y: V) -> bool { return (x.x == y.x) & (x.y == y.y); }
fn fma_T(x: V, y: V, z: V) -> V { return add_T(mul_T(x, y), z); }
""",
)


def _fill(text: str, kind: str) -> str:
    if kind in ("c64", "c128"):
        real = {"c64": "f32", "c128": "f64"}[kind]
        suffix = {"f32": ".0f", "f64": ".0lf"}[real]
        text = re.sub(r"\bV\b", f"vec2<{real}>", text)
        text = re.sub(r"(?<=_)R\b", real, text)
        text = re.sub(r"(?<=\d)F\b", suffix, text)
        return re.sub(r"(?<=_)T\b", kind, text)
    bits = kind[1:]
    unsigned = f"u{bits}"
    numbers = _FLOATS.get(kind, {})
    for name, value in numbers.items():
        text = re.sub(rf"\b{name}\b", value, text)
    text = text.replace("BITS", bits)
    text = re.sub(r"(?<=\d)SU\b", {"32": "u", "64": "lu"}[bits], text)
    text = re.sub(r"(?<=\d)S\b", formulas.SUFFIX[kind], text)
    text = re.sub(r"(?<=\d\.\d)F\b", formulas.SUFFIX[kind], text)
    text = re.sub(r"(?<=\d)F\b", ".0" + formulas.SUFFIX[kind], text)
    text = re.sub(r"(?<![A-Za-z])T\b", kind, text)
    return re.sub(r"(?<![A-Za-z])U\b", unsigned, text)


def _conversion(source: str, target: str) -> str:
    """float to integer: saturates, NaN gives 0."""
    if target.endswith("64"):
        return _fill(exact.TO_LONG[target].strip().replace("T_to", f"{source}_to"), source) + "\n"
    low, high = {
        t: (0 if t[0] == "u" else -(1 << int(t[1:]) - 1), (1 << int(t[1:]) - (t[0] == "i")) - 1)
        for t in ("i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64")
    }[target]
    held = {"i8": "i32", "i16": "i32", "u8": "u32", "u16": "u32"}.get(target, target)

    def value(n: int) -> str:
        return formulas.literal(n, held)

    bottom, top = formulas.literal(float(low), source), formulas.literal(float(high + 1), source)
    below = "<=" if low else "<"
    return (
        f"fn {source}_to_{target}(x: {source}) -> {held} {{\n"
        f"  if (isnan_{source}(x)) {{ return {value(0)}; }}\n"
        f"  if (x >= {top}) {{ return {value(high)}; }}\n"
        f"  if (x {below} {bottom}) {{ return {value(low)}; }}\n"
        f"  return {held}(trunc(x));\n}}\n"
    )


@functools.cache
def define(name: str) -> str | None:
    """The text of a function; None if it is not ours."""
    if name in wide.FUNCTIONS:
        return wide.FUNCTIONS[name]
    if name in _PLAIN:
        return _PLAIN[name].lstrip()
    found = re.fullmatch(r"(f32|f64)_to_([iu]\d+)", name)
    if found:
        return _conversion(found[1], found[2])
    base, _, kind = name.rpartition("_")
    for key, (types, text) in _TEMPLATES.items():
        if key.split()[0] == base and kind in types.split():
            return _fill(text, kind) + "\n"
    if base in ("sin_small", "cos_small"):
        whole = formulas.define(base[:3], kind)
        assert whole is not None
        lines = [line for line in whole.splitlines() if "return long" not in line]
        return "\n".join(lines).replace(f"fn {base[:3]}_{kind}", f"fn {name}") + "\n"
    if kind in ("f32", "f64"):
        return formulas.define(base, kind)
    if kind in ("c64", "c128"):
        return formulas.define_complex(base, {"c64": "f32", "c128": "f64"}[kind])
    return None


_CALL = re.compile(r"\b([a-zCFIU]\w*)\(")


def definitions(
    text: str, own: Iterable[str] = (), native: Collection[str] = (), denormals: bool = True
) -> str:
    """The functions that a text calls, directly or through others; callees first.

    native  those of `exact.NATIVE` that the adapter's own operations do
    denormals  whether they are what they are, or count as zeros
    """
    done: dict[str, str] = {}
    skip = set(own)

    def visit(body: str, above: tuple[str, ...]) -> None:
        for name in dict.fromkeys(_CALL.findall(body)):
            if name in done or name in skip or name in above:
                continue
            found = exact.NATIVE[name] if name in native else define(name)
            if found is not None:
                visit(found, (*above, name))
                done[name] = found

    visit(text, ())
    found = "\n".join(done.values())
    if "DENORMALS" in found:
        return f"const DENORMALS = {'true' if denormals else 'false'};\n{found}"
    return found
