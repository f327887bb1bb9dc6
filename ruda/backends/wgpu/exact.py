"""Division, square root, fused product and sum, float to integer: right on any adapter, in WGSL.

WGSL lets `/` be 2.5 ulps off, `sqrt` a little less, and `fma` round twice; drivers make use of it.
`probe` finds out which of them an adapter does exactly: those are used as they are (`NATIVE`). For
the others, and in a browser, about which nothing is known, integers do the work: a quotient or
root is estimated by the operation that is not trusted, the remainder of the estimate is exact in
integers (modulo 2**32, it is small), and tells how far off the estimate was.

The templates are `library`'s: T the float type, U the unsigned integer of its size. DENORMALS says
whether numbers below the normal ones are what they are (true) or count as zeros (false), as they
do on an adapter whose arithmetic flushes them.
"""

from __future__ import annotations

# What an operation is where the adapter does it exactly.
NATIVE = {
    "div_f32": "fn div_f32(x: f32, y: f32) -> f32 { return x / y; }\n",
    "sqrt_f32": "fn sqrt_f32(x: f32) -> f32 { return sqrt(x); }\n",
    "fma_f32": "fn fma_f32(x: f32, y: f32, z: f32) -> f32 { return fma(x, y, z); }\n",
    "fma_f64": "fn fma_f64(x: f64, y: f64, z: f64) -> f64 { return fma(x, y, z); }\n",
}

# Types "f32".
SINGLE = """
fn flushed_T(x: T) -> T {
  let bits = bitcast<u32>(x);
  return bitcast<f32>(select(bits, bits & 0x80000000u, (bits & 0x7f800000u) == 0u));
}
// Exponent, and significand with its leading bit at 2**23; 0 of a zero.
fn parts_T(bits: u32) -> vec2<i32> {
  let e = i32((bits >> 23u) & 255u);
  let m = i32(bits & 0x7fffffu);
  if (e > 0i) { return vec2<i32>(e, m | 0x800000i); }
  if (!DENORMALS | (m == 0i)) { return vec2<i32>(0i, 0i); }
  let n = i32(countLeadingZeros(u32(m))) - 8i;
  return vec2<i32>(1i - n, m << u32(n));
}
fn div_T(x: T, y: T) -> T {
  let a = bitcast<u32>(x);
  let b = bitcast<u32>(y);
  let sign = (a ^ b) & 0x80000000u;
  let above = parts_T(a);
  let below = parts_T(b);
  let far = (above.x == 255i) | (below.x == 255i);
  if (far | (above.y == 0i) | (below.y == 0i)) {
    let big = (above.x == 255i) | (below.y == 0i);
    let small = (below.x == 255i) | (above.y == 0i);
    let none = isnan_T(x) | isnan_T(y) | (big & small);
    return bitcast<f32>(select(select(sign, sign | 0x7f800000u, big), 0x7fc00000u | sign, none));
  }
  let m = u32(above.y);
  let n = u32(below.y);
  let shift = select(24u, 23u, m >= n);
  // q = floor(m * 2**shift / n), which has 24 bits
  let guess = f32(m) / f32(n) * select(16777216.0f, 8388608.0f, m >= n);
  var q = u32(guess);
  var r = bitcast<i32>((m << shift) - q * n);
  let off = i32(floor(f32(r) / f32(n)));
  q = q + bitcast<u32>(off);
  r = r - off * below.y;
  if (r < 0i) { q = q - 1u; r = r + below.y; }
  if (r >= below.y) { q = q + 1u; r = r - below.y; }
  let e = above.x - below.x + 150i - i32(shift);
  if (e >= 255i) { return bitcast<f32>(sign | 0x7f800000u); }
  if (e >= 1i) {  // never half way
    return bitcast<f32>(sign | ((u32(e - 1i) << 23u) + q + select(0u, 1u, r + r > below.y)));
  }
  if (e < -24i) { return bitcast<f32>(sign); }
  let drop = u32(1i - e);
  let rest = q & ((1u << drop) - 1u);
  let half = 1u << (drop - 1u);
  q = q >> drop;
  let up = (rest > half) | ((rest == half) & ((r != 0i) | ((q & 1u) == 1u)));
  q = q + select(0u, 1u, up);
  if (!DENORMALS & (q < 0x800000u)) { q = 0u; }
  return bitcast<f32>(sign | q);
}
fn sqrt_T(x: T) -> T {
  let bits = bitcast<u32>(x);
  let given = parts_T(bits);
  if (given.y == 0i) { return bitcast<f32>(bits & 0x80000000u); }
  if (isnan_T(x) | (bits == 0x7f800000u)) { return x; }
  if (bits >= 0x80000000u) { return bitcast<f32>(0x7fc00000u | (bits & 0x80000000u)); }
  let e = given.x - 127i;
  let m = u32(given.y) << (bitcast<u32>(e) & 1u);
  // q = floor(sqrt(m * 2**23)), which has 24 bits
  var q = i32(sqrt(f32(m) * 1.1920929e-7f) * 8388608.0f);
  var r = bitcast<i32>((m << 23u) - u32(q) * u32(q));
  let off = i32(floor(f32(r) / f32(q + q)));
  r = r - off * (q + q + off);
  q = q + off;
  for (var k = 0i; k < 2i; k++) {
    if (r < 0i) { q = q - 1i; r = r + (q + q + 1i); }
    if (r > q + q) { r = r - (q + q + 1i); q = q + 1i; }
  }
  return bitcast<f32>((u32((e >> 1u) + 126i) << 23u) + u32(q) + select(0u, 1u, r > q));
}
"""

# Types "u32 u64": numbers of two words, low word first, for `FUSED`.
PAIRS = """
fn clz_pair_T(x: vec2<T>) -> i32 {
  return select(clz_T(x.y), BITSi + clz_T(x.x), x.y == 0S);
}
fn left_pair_T(x: vec2<T>, n: i32) -> vec2<T> {
  if (n == 0i) { return x; }
  if (n >= BITSi) { return vec2<T>(0S, x.x << u32(n - BITSi)); }
  return vec2<T>(x.x << u32(n), (x.y << u32(n)) | (x.x >> u32(BITSi - n)));
}
// What falls out stays known: as a one in the last place.
fn right_pair_T(x: vec2<T>, n: i32) -> vec2<T> {
  if (n == 0i) { return x; }
  if (n >= 2i * BITSi) { return vec2<T>(select(0S, 1S, (x.x | x.y) != 0S), 0S); }
  var y = x;
  var rest = 0S;
  var m = n;
  if (m >= BITSi) {
    rest = x.x;
    y = vec2<T>(x.y, 0S);
    m = m - BITSi;
  }
  if (m > 0i) {
    rest = rest | (y.x << u32(BITSi - m));
    y = vec2<T>((y.x >> u32(m)) | (y.y << u32(BITSi - m)), y.y >> u32(m));
  }
  return vec2<T>(y.x | select(0S, 1S, rest != 0S), y.y);
}
fn add_pair_T(x: vec2<T>, y: vec2<T>) -> vec2<T> {
  let low = x.x + y.x;
  return vec2<T>(low, x.y + y.y + select(0S, 1S, low < x.x));
}
fn sub_pair_T(x: vec2<T>, y: vec2<T>) -> vec2<T> {
  return vec2<T>(x.x - y.x, x.y - y.y - select(0S, 1S, x.x < y.x));
}
fn less_pair_T(x: vec2<T>, y: vec2<T>) -> bool {
  return (x.y < y.y) | ((x.y == y.y) & (x.x < y.x));
}
"""

# Types "f32 f64". Sums of errors do for products of usual sizes, integers for the others.
FUSED = """
fn fma_T(a: T, b: T, c: T) -> T {
  let product = opaque_T(a * b);
  let size = bitcast<U>(product) & MAGNITUDE;
  let least = min(bitcast<U>(a) & MAGNITUDE, bitcast<U>(b) & MAGNITUDE);
  let bounded = (size < HIGH) & ((bitcast<U>(c) & MAGNITUDE) < HIGH);
  let usual = (size > LOW) & (least > LEAST) & bounded;
  if (!usual) { return long_fma_T(a, b, c); }
  let s = opaque_T(product + c);
  let e = product_error_T(a, b, product);
  let t = opaque_T(sum_error_T(product, c, s));
  let u = opaque_T(t + e);
  if (u == 0F) { return s; }
  // Rounded to odd, so that only the last sum rounds.
  let lost = sum_error_T(t, e, u);
  let even = (bitcast<U>(u) & 1SU) == 0SU;
  let away = (lost > 0F) == (u > 0F);
  let odd = bitcast<T>(select(bitcast<U>(u) - 1SU, bitcast<U>(u) + 1SU, away));
  return s + opaque_T(select(u, odd, even & !(lost == 0F)));
}
fn exponent_T(bits: U) -> i32 { return max(i32((bits & MAGNITUDE) >> MANTISSA), 1i); }
fn significand_T(bits: U) -> U {
  let m = bits & FRACTION;
  if ((bits & INFINITE) != 0SU) { return m | HIDDEN; }
  return select(0SU, m, DENORMALS);
}
fn long_fma_T(a: T, b: T, c: T) -> T {
  let x = bitcast<U>(a);
  let y = bitcast<U>(b);
  let z = bitcast<U>(c);
  let m = significand_T(x);
  let n = significand_T(y);
  if (!isfinite_T(a) | !isfinite_T(b) | (m == 0SU) | (n == 0SU)) { return opaque_T(a * b) + c; }
  if (!isfinite_T(c)) { return c; }
  // Both numbers with their highest bit at the last but one place of two words.
  var big = vec2<U>(m * n, mulhi_U(m, n));
  var room = clz_pair_U(big) - 1i;
  big = left_pair_U(big, room);
  var e = exponent_T(x) + exponent_T(y) - BIAS - i32(MANTISSA) - room;
  var sign = (x ^ y) & SIGN;
  var small = vec2<U>(significand_T(z), 0SU);
  var other = -100000i;
  if (small.x != 0SU) {
    room = clz_pair_U(small) - 1i;
    small = left_pair_U(small, room);
    other = exponent_T(z) - room;
  }
  let apart = ((sign ^ z) & SIGN) != 0SU;
  if ((other > e) | ((other == e) & less_pair_U(big, small))) {
    let before = big;
    big = small;
    small = before;
    let exponent = e;
    e = other;
    other = exponent;
    sign = z & SIGN;
  }
  small = right_pair_U(small, e - other);
  if (apart) { big = sub_pair_U(big, small); } else { big = add_pair_U(big, small); }
  if ((big.x | big.y) == 0SU) { return 0F; }
  let free = clz_pair_U(big);
  big = left_pair_U(big, free);
  var drop = 2i * BITSi - 1i - i32(MANTISSA);
  e = e - free + drop;
  if (e < 1i) {
    drop = drop + 1i - e;
    e = 1i;
  }
  if (e > 2i * BIAS) { return bitcast<T>(sign | INFINITE); }
  let kept = right_pair_U(big, drop - 2i).x;
  var bits = kept >> 2u;
  let up = ((kept & 3SU) == 3SU) | (((kept & 3SU) == 2SU) & ((bits & 1SU) == 1SU));
  bits = bits + select(0SU, 1SU, up) + (U(e - 1i) << MANTISSA);
  if (!DENORMALS & (bits < HIDDEN)) { bits = 0SU; }
  return bitcast<T>(sign | bits);
}
"""
# Bits of the products that `fma` need not make of integers: 2**-50 to 2**120, 2**-900 to 2**1000,
# and of the least factor: no error of theirs that counts is below the normal numbers, which would
# be lost where those count as zeros.
SIZES = {
    "f32": {
        "LOW": f"0x{127 - 50 << 23:x}u",
        "HIGH": f"0x{127 + 120 << 23:x}u",
        "LEAST": f"0x{127 - 100 << 23:x}u",
    },
    "f64": {
        "LOW": f"0x{1023 - 900 << 52:x}lu",
        "HIGH": f"0x{1023 + 1000 << 52:x}lu",
        "LEAST": f"0x{1023 - 960 << 52:x}lu",
    },
}

# Types "f32 f64", by the integer that is wanted. By the bits: a driver's own conversion is wrong.
TO_LONG = {
    "u64": """
fn T_to_u64(x: T) -> u64 {
  let bits = bitcast<U>(x);
  if (isnan_T(x) | (bits >= SIGN)) { return 0lu; }
  let e = i32(bits >> MANTISSA) - BIAS;
  if (e < 0i) { return 0lu; }
  if (e >= 64i) { return ~0lu; }
  let m = u64((bits & FRACTION) | HIDDEN);
  let n = e - i32(MANTISSA);
  return select(m >> (u32(-n) & 63u), m << (u32(n) & 63u), n >= 0i);
}
""",
    "i64": """
fn T_to_i64(x: T) -> i64 {
  if (isnan_T(x)) { return 0li; }
  let negative = (bitcast<U>(x) & SIGN) != 0SU;
  let size = min(T_to_u64(abs(x)), 9223372036854775807lu + select(0lu, 1lu, negative));
  return select(bitcast<i64>(size), bitcast<i64>(0lu - size), negative);
}
""",
}
