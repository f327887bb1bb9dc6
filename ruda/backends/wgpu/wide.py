"""64-bit integers as pairs of words, in WGSL: for adapters and browsers that have none.

A number is a `vec2<u32>`, low word first, of kind "I64" or "U64" where native ones are "i64" and
"u64". Bits are combined by the operators of vectors; everything else is a function here, and as
total as its native sibling (LANGUAGE.md): quotients by zero are zero, shifts may be of any size.
"""

from __future__ import annotations

import re

KINDS = ("I64", "U64")
# Both kinds: T is the kind, V the pair.
_BOTH = """
fn add_T(x: V, y: V) -> V {
  let low = x.x + y.x;
  return V(low, x.y + y.y + select(0u, 1u, low < x.x));
}
fn sub_T(x: V, y: V) -> V {
  return V(x.x - y.x, x.y - y.y - select(0u, 1u, x.x < y.x));
}
fn neg_T(x: V) -> V { return sub_T(V(0u, 0u), x); }
fn mul_T(x: V, y: V) -> V {
  return V(x.x * y.x, mulhi_u32(x.x, y.x) + x.x * y.y + x.y * y.x);
}
fn eq_T(x: V, y: V) -> bool { return (x.x == y.x) & (x.y == y.y); }
fn min_T(x: V, y: V) -> V { return select(x, y, lt_T(y, x)); }
fn max_T(x: V, y: V) -> V { return select(x, y, lt_T(x, y)); }
fn power_T(x: V, y: V) -> V {
  var r = V(1u, 0u);
  var b = x;
  var n = y;
  loop {
    if ((n.x | n.y) == 0u) { break; }
    if ((n.x & 1u) == 1u) { r = mul_T(r, b); }
    b = mul_T(b, b);
    n = right_U64(n, 1u);
  }
  return r;
}
fn popc_T(x: V) -> i32 { return i32(countOneBits(x.x) + countOneBits(x.y)); }
fn clz_T(x: V) -> i32 {
  return i32(select(countLeadingZeros(x.y), 32u + countLeadingZeros(x.x), x.y == 0u));
}
fn ffs_T(x: V) -> i32 {
  if ((x.x | x.y) == 0u) { return 0i; }
  return i32(select(countTrailingZeros(x.x), 32u + countTrailingZeros(x.y), x.x == 0u)) + 1i;
}
fn brev_T(x: V) -> V { return V(reverseBits(x.y), reverseBits(x.x)); }
fn i32_to_T(x: i32) -> V { return V(bitcast<u32>(x), bitcast<u32>(x >> 31u)); }
fn u32_to_T(x: u32) -> V { return V(x, 0u); }
"""
_OWN = """
fn lt_U64(x: V, y: V) -> bool { return (x.y < y.y) | ((x.y == y.y) & (x.x < y.x)); }
fn lt_I64(x: V, y: V) -> bool {
  let a = bitcast<i32>(x.y);
  let b = bitcast<i32>(y.y);
  return (a < b) | ((a == b) & (x.x < y.x));
}
fn abs_U64(x: V) -> V { return x; }
fn abs_I64(x: V) -> V { return select(x, neg_I64(x), x.y >= 0x80000000u); }

// Shifts by less than 64.
fn left_U64(x: V, n: u32) -> V {
  let m = n & 31u;
  let high = select((x.y << m) | (x.x >> (32u - m)), x.y, m == 0u);
  return select(V(x.x << m, high), V(0u, x.x << m), n >= 32u);
}
fn right_U64(x: V, n: u32) -> V {
  let m = n & 31u;
  let low = select((x.x >> m) | (x.y << (32u - m)), x.x, m == 0u);
  return select(V(low, x.y >> m), V(x.y >> m, 0u), n >= 32u);
}
fn right_I64(x: V, n: u32) -> V {
  let y = bitcast<i32>(x.y);
  let high = bitcast<u32>(y >> (n & 31u));
  return select(V(right_U64(x, n).x, high), V(high, bitcast<u32>(y >> 31u)), n >= 32u);
}
fn shl_U64(x: V, n: V) -> V {
  return select(left_U64(x, n.x & 63u), V(0u, 0u), (n.y != 0u) | (n.x >= 64u));
}
fn shl_I64(x: V, n: V) -> V { return shl_U64(x, n); }
fn shr_U64(x: V, n: V) -> V {
  return select(right_U64(x, n.x & 63u), V(0u, 0u), (n.y != 0u) | (n.x >= 64u));
}
fn shr_I64(x: V, n: V) -> V {
  return right_I64(x, select(n.x, 63u, (n.y != 0u) | (n.x >= 64u)));
}

// The quotient by a number that is not zero.
fn quotient_U64(x: V, y: V) -> V {
  if ((x.y | y.y) == 0u) { return V(x.x / y.x, 0u); }
  if ((y.y == 0u) & (y.x < 65536u)) {
    let a = x.y / y.x;
    let b = ((x.y % y.x) << 16u) | (x.x >> 16u);
    let c = ((b % y.x) << 16u) | (x.x & 65535u);
    return V(((b / y.x) << 16u) | (c / y.x), a);
  }
  let skip = u32(clz_U64(x));
  var rest = V(0u, 0u);
  var left = left_U64(x, min(skip, 63u));
  var q = V(0u, 0u);
  for (var k = skip; k < 64u; k = k + 1u) {
    let out = rest.y >> 31u;
    rest = V((rest.x << 1u) | (left.y >> 31u), (rest.y << 1u) | (rest.x >> 31u));
    left = V(left.x << 1u, (left.y << 1u) | (left.x >> 31u));
    q = V(q.x << 1u, (q.y << 1u) | (q.x >> 31u));
    if ((out == 1u) | !lt_U64(rest, y)) {
      rest = sub_U64(rest, y);
      q.x = q.x | 1u;
    }
  }
  return q;
}
fn floordiv_U64(x: V, y: V) -> V {
  if ((y.x | y.y) == 0u) { return V(0u, 0u); }
  return quotient_U64(x, y);
}
fn mod_U64(x: V, y: V) -> V {
  if ((y.x | y.y) == 0u) { return V(0u, 0u); }
  return sub_U64(x, mul_U64(quotient_U64(x, y), y));
}
fn floordiv_I64(x: V, y: V) -> V {
  if ((y.x | y.y) == 0u) { return V(0u, 0u); }
  let a = abs_I64(x);
  let b = abs_I64(y);
  let q = quotient_U64(a, b);
  if (((x.y ^ y.y) >> 31u) == 0u) { return q; }
  let exact = eq_U64(mul_U64(q, b), a);
  return sub_U64(neg_I64(q), V(select(1u, 0u, exact), 0u));
}
fn mod_I64(x: V, y: V) -> V {
  if ((y.x | y.y) == 0u) { return V(0u, 0u); }
  return sub_U64(x, mul_U64(floordiv_I64(x, y), y));
}
fn pow_U64(x: V, y: V) -> V { return power_U64(x, y); }
fn pow_I64(x: V, y: V) -> V {
  if (y.y < 0x80000000u) { return power_I64(x, y); }
  if (eq_I64(x, V(1u, 0u))) { return x; }
  if ((x.x & x.y) == 4294967295u) { return select(V(1u, 0u), x, (y.x & 1u) == 1u); }
  return V(0u, 0u);
}
fn wrap_I64(i: V, n: V) -> V { return select(i, add_I64(i, n), i.y >= 0x80000000u); }
fn trips_I64(start: V, stop: V, step: V) -> V {
  if ((step.x | step.y) == 0u) { return V(0u, 0u); }
  let up = step.y < 0x80000000u;
  let far = select(sub_I64(start, stop), sub_I64(stop, start), up);
  let some = select(lt_I64(stop, start), lt_I64(start, stop), up);
  if (!some) { return V(0u, 0u); }
  let whole = quotient_U64(sub_U64(far, V(1u, 0u)), abs_I64(step));
  return add_U64(whole, V(1u, 0u));
}
fn trips_U64(start: V, stop: V, step: V) -> V {
  if (((step.x | step.y) == 0u) | !lt_U64(start, stop)) { return V(0u, 0u); }
  return add_U64(quotient_U64(sub_U64(sub_U64(stop, start), V(1u, 0u)), step), V(1u, 0u));
}
fn mulhi_U64(x: V, y: V) -> V {
  let low = V(mulhi_u32(x.x, y.x), 0u);
  let middle = add_U64(V(x.y * y.x, mulhi_u32(x.y, y.x)), low);
  let other = add_U64(V(x.x * y.y, mulhi_u32(x.x, y.y)), V(middle.x, 0u));
  let high = V(x.y * y.y, mulhi_u32(x.y, y.y));
  return add_U64(add_U64(high, V(middle.y, 0u)), V(other.y, 0u));
}
fn mulhi_I64(x: V, y: V) -> V {
  let zero = V(0u, 0u);
  let high = sub_U64(mulhi_U64(x, y), select(zero, y, x.y >= 0x80000000u));
  return sub_U64(high, select(zero, x, y.y >= 0x80000000u));
}

// A float truncates and saturates; NaN gives 0.
fn f32_to_U64(x: f32) -> V {
  if (!(x >= 1.0f)) { return V(0u, 0u); }
  if (x >= 18446744073709551616.0f) { return V(4294967295u, 4294967295u); }
  let bits = bitcast<u32>(x);
  let e = i32(bits >> 23u) - 150i;
  let m = (bits & 0x7fffffu) | 0x800000u;
  if (e < 0i) { return V(m >> u32(-e), 0u); }
  return left_U64(V(m, 0u), u32(e));
}
fn f32_to_I64(x: f32) -> V {
  if (x >= 9223372036854775808.0f) { return V(4294967295u, 0x7fffffffu); }
  if (x <= -9223372036854775808.0f) { return V(0u, 0x80000000u); }
  let size = f32_to_U64(abs(x));
  return select(size, neg_U64(size), x < 0.0f);
}
// To the nearest, ties to even.
fn U64_to_f32(x: V) -> f32 {
  let n = max(40i - clz_U64(x), 0i);
  if (n == 0i) { return f32(x.x); }
  let top = right_U64(x, u32(n)).x;
  let rest = sub_U64(x, left_U64(V(top, 0u), u32(n)));
  let half = left_U64(V(1u, 0u), u32(n) - 1u);
  let tie = eq_U64(rest, half) & ((top & 1u) == 1u);
  return f32(top + select(0u, 1u, lt_U64(half, rest) | tie)) * power_of_two_f32(n);
}
fn I64_to_f32(x: V) -> f32 {
  let size = U64_to_f32(abs_I64(x));
  return select(size, -size, x.y >= 0x80000000u);
}
// As float64 has it: 53 bits, ties to even.
fn through_f64_U64(x: V) -> V {
  let n = max(11i - clz_U64(x), 0i);
  let greatest = (x.y == 4294967295u) & (x.x >= 0xfffffc00u);  // would become 2**64
  if ((n == 0i) | greatest) { return x; }
  let top = right_U64(x, u32(n));
  let rest = sub_U64(x, left_U64(top, u32(n)));
  let half = left_U64(V(1u, 0u), u32(n) - 1u);
  let tie = eq_U64(rest, half) & ((top.x & 1u) == 1u);
  let up = V(select(0u, 1u, lt_U64(half, rest) | tie), 0u);
  return left_U64(add_U64(top, up), u32(n));
}
fn through_f64_I64(x: V) -> V {
  let size = through_f64_U64(abs_I64(x));
  return select(size, neg_U64(size), x.y >= 0x80000000u);
}
// To float32 rounded to odd, for a second rounding to 16 bits.
fn odd_U64(x: V) -> f32 {
  let n = max(40i - clz_U64(x), 0i);
  let top = right_U64(x, u32(n));
  let lost = !eq_U64(left_U64(top, u32(n)), x);
  return f32(top.x | select(0u, 1u, lost)) * power_of_two_f32(n);
}
fn odd_I64(x: V) -> f32 {
  let size = odd_U64(abs_I64(x));
  return select(size, -size, x.y >= 0x80000000u);
}
"""
# The bits of float64 and complex128 where only float32 is computed with.
_FLOATS = """
fn F64_to_f32(x: V) -> f32 {
  let sign = x.y & 0x80000000u;
  let exponent = (x.y >> 20u) & 2047u;
  let high = ((x.y & 0xfffffu) << 3u) | (x.x >> 29u);
  let rest = x.x & 0x1fffffffu;
  if (exponent == 2047u) {
    let some = ((x.y & 0xfffffu) | x.x) != 0u;
    return bitcast<f32>(sign | 0x7f800000u | select(0u, 0x400000u | high, some));
  }
  if (exponent >= 897u) {
    let up = (rest > 0x10000000u) | ((rest == 0x10000000u) & ((high & 1u) == 1u));
    let bits = (((exponent - 896u) << 23u) | high) + select(0u, 1u, up);
    return bitcast<f32>(sign | select(bits, 0x7f800000u, exponent > 1150u));
  }
  let n = 897u - exponent;
  if (n > 24u) { return bitcast<f32>(sign); }
  let whole = high | 0x800000u;
  let kept = whole >> n;
  let lost = whole & ((1u << n) - 1u);
  let half = 1u << (n - 1u);
  let tie = (lost == half) & ((rest != 0u) | ((kept & 1u) == 1u));
  return bitcast<f32>(sign | (kept + select(0u, 1u, (lost > half) | tie)));
}
fn f32_to_F64(x: f32) -> V {
  let bits = bitcast<u32>(x);
  let sign = bits & 0x80000000u;
  let exponent = (bits >> 23u) & 255u;
  let m = bits & 0x7fffffu;
  if (exponent == 255u) { return V(m << 29u, sign | 0x7ff00000u | (m >> 3u)); }
  if (exponent != 0u) { return V(m << 29u, sign | ((exponent + 896u) << 20u) | (m >> 3u)); }
  if (m == 0u) { return V(0u, sign); }
  let n = countLeadingZeros(m) - 8u;
  let shifted = (m << n) & 0x7fffffu;
  return V(shifted << 29u, sign | ((897u - n) << 20u) | (shifted >> 3u));
}
fn C128_to_c64(x: vec4<u32>) -> vec2<f32> {
  return vec2<f32>(F64_to_f32(x.xy), F64_to_f32(x.zw));
}
fn c64_to_C128(x: vec2<f32>) -> vec4<u32> {
  return vec4<u32>(f32_to_F64(x.x), f32_to_F64(x.y));
}
"""


def _functions() -> dict[str, str]:
    both = [re.sub(r"(?<=_)T\b", kind, _BOTH) for kind in KINDS]
    out: dict[str, str] = {}
    for text in (*both, _OWN, _FLOATS):
        text = re.sub(r"\bV\b", "vec2<u32>", re.sub(r"^//.*\n", "", text, flags=re.MULTILINE))
        for part in re.split(r"\n(?=fn )", text.strip()):
            found = re.match(r"fn (\w+)\(", part)
            assert found, part
            out[found[1]] = part.strip() + "\n"
    return out


FUNCTIONS = _functions()
