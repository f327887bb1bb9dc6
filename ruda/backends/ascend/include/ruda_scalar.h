// Scalar arithmetic of emitted kernels, on either kind of chip: total integer operations, casts that
// saturate, half precision in float, complex numbers.
//
// Plain C++17 without the standard library, as device compilers want it. Nothing here is undefined:
// integers wrap, x / 0 is 0, shifts by the width or more give 0 or the sign, NaN converts to 0.
// RUDA_FUNCTION says what functions of the chip are declared with; whoever includes this defines it.
#pragma once

#ifndef INT64_MIN
#define INT64_MIN (-9223372036854775807 - 1)
#endif

namespace ruda {

template <class T> struct Unsigned;
template <> struct Unsigned<int8_t> { using type = uint8_t; };
template <> struct Unsigned<int16_t> { using type = uint16_t; };
template <> struct Unsigned<int32_t> { using type = uint32_t; };
template <> struct Unsigned<int64_t> { using type = uint64_t; };
template <> struct Unsigned<uint8_t> { using type = uint8_t; };
template <> struct Unsigned<uint16_t> { using type = uint16_t; };
template <> struct Unsigned<uint32_t> { using type = uint32_t; };
template <> struct Unsigned<uint64_t> { using type = uint64_t; };
template <class T> using unsigned_of = typename Unsigned<T>::type;
template <class T> constexpr bool is_signed = T(-1) < T(0);
template <class T> constexpr int width = 8 * int(sizeof(T));

// The same bits as another type.
template <class To, class From>
RUDA_FUNCTION To bits(From x) {
    static_assert(sizeof(To) == sizeof(From), "bits of another size");
    To y;
    __builtin_memcpy(&y, &x, sizeof(To));
    return y;
}

// ---- integers: 64-bit steps wrap for every narrower type, too ----

template <class T> RUDA_FUNCTION T add(T a, T b) { return T(uint64_t(a) + uint64_t(b)); }
template <class T> RUDA_FUNCTION T sub(T a, T b) { return T(uint64_t(a) - uint64_t(b)); }
template <class T> RUDA_FUNCTION T mul(T a, T b) { return T(uint64_t(a) * uint64_t(b)); }
template <class T> RUDA_FUNCTION T neg(T a) { return T(uint64_t(0) - uint64_t(a)); }
template <class T> RUDA_FUNCTION T abs(T a) { return is_signed<T> && a < T(0) ? neg(a) : a; }
template <class T> RUDA_FUNCTION T min(T a, T b) { return b < a ? b : a; }
template <class T> RUDA_FUNCTION T max(T a, T b) { return a < b ? b : a; }
template <class T>
RUDA_FUNCTION T floordiv(T x, T y) {
    if (y == 0) return 0;
    if (is_signed<T> && y == T(-1)) return neg(x);
    T q = T(x / y), r = T(x % y);
    return r != 0 && (r < 0) != (y < 0) ? T(q - 1) : q;
}
template <class T>
RUDA_FUNCTION T mod(T x, T y) {
    if (y == 0 || (is_signed<T> && y == T(-1))) return 0;
    T r = T(x % y);
    return r != 0 && (r < 0) != (y < 0) ? T(r + y) : r;
}
template <class T>
RUDA_FUNCTION T shl(T x, T n) {
    return n < T(0) || n >= T(width<T>) ? T(0) : T(uint64_t(x) << uint32_t(n));
}
template <class T>
RUDA_FUNCTION T shr(T x, T n) {
    if (n < T(0) || n >= T(width<T>)) return is_signed<T> && x < T(0) ? T(-1) : T(0);
    return T(x >> uint32_t(n));
}
template <class T>
RUDA_FUNCTION T pow(T x, T y) {
    if (is_signed<T> && y < T(0)) {
        if (x == T(1)) return 1;
        if (x == T(-1)) return y & 1 ? T(-1) : T(1);
        return 0;
    }
    T r = 1;
    for (; y != 0; y = T(y >> 1), x = mul(x, x))
        if (y & 1) r = mul(r, x);
    return r;
}
template <class T>
RUDA_FUNCTION int32_t popc(T x) {
    int32_t n = 0;
    for (uint64_t u = unsigned_of<T>(x); u != 0; u &= u - 1) ++n;
    return n;
}
template <class T>
RUDA_FUNCTION int32_t clz(T x) {
    int32_t n = width<T>;
    for (uint64_t u = unsigned_of<T>(x); u != 0; u >>= 1) --n;
    return n;
}
template <class T>
RUDA_FUNCTION int32_t ffs(T x) {
    if (x == 0) return 0;
    int32_t n = 1;
    for (uint64_t u = unsigned_of<T>(x); (u & 1) == 0; u >>= 1) ++n;
    return n;
}
template <class T>
RUDA_FUNCTION T brev(T x) {
    uint64_t u = unsigned_of<T>(x), r = 0;
    for (int k = 0; k < width<T>; ++k, u >>= 1) r = r << 1 | (u & 1);
    return T(r);
}
template <class T>
RUDA_FUNCTION T mulhi(T x, T y) {
    if (sizeof(T) < 8) return T((int64_t(x) * int64_t(y)) >> (width<T> & 63));
    uint64_t a = uint64_t(x) >> 32, b = uint32_t(x), c = uint64_t(y) >> 32, d = uint32_t(y);
    uint64_t middle = a * d + (b * d >> 32), other = b * c + uint32_t(middle);
    uint64_t high = a * c + (middle >> 32) + (other >> 32);
    if (is_signed<T> && x < T(0)) high -= uint64_t(y);
    if (is_signed<T> && y < T(0)) high -= uint64_t(x);
    return T(high);
}
template <> RUDA_FUNCTION uint32_t mulhi<uint32_t>(uint32_t x, uint32_t y) {
    return uint32_t(uint64_t(x) * y >> 32);
}
RUDA_FUNCTION int64_t wrap(int64_t i, int64_t extent) { return i < 0 ? i + extent : i; }
// How often a loop from start to stop by step goes round.
template <class T>
RUDA_FUNCTION uint64_t trips(T start, T stop, T step) {
    if (step > T(0) && start < stop)
        return uint64_t(unsigned_of<T>(sub(sub(stop, start), T(1))) / unsigned_of<T>(step)) + 1;
    if (is_signed<T> && step < T(0) && start > stop)
        return uint64_t(unsigned_of<T>(sub(sub(start, stop), T(1))) / unsigned_of<T>(neg(step))) + 1;
    return 0;
}

// ---- floats ----

template <class F> RUDA_FUNCTION bool isnan(F x) { return x != x; }
template <class F> RUDA_FUNCTION bool isfinite(F x) { return x - x == F(0); }
template <class F> RUDA_FUNCTION bool isinf(F x) { return !isnan(x) && !isfinite(x); }
RUDA_FUNCTION bool signbit(float x) { return bits<int32_t>(x) < 0; }
RUDA_FUNCTION bool signbit(double x) { return bits<int64_t>(x) < 0; }
RUDA_FUNCTION float ldexp(float x, int32_t k) {
    for (int round = 0; round < 2; ++round) {
        int32_t step = k > 127 ? 127 : k < -126 ? -102 : 0;
        x *= bits<float>(uint32_t(step + 127) << 23);
        k -= step;
    }
    k = k > 127 ? 127 : k < -126 ? -126 : k;
    return x * bits<float>(uint32_t(k + 127) << 23);
}
RUDA_FUNCTION double ldexp(double x, int32_t k) {
    for (int round = 0; round < 2; ++round) {
        int32_t step = k > 1023 ? 1023 : k < -1022 ? -969 : 0;
        x *= bits<double>(uint64_t(step + 1023) << 52);
        k -= step;
    }
    k = k > 1023 ? 1023 : k < -1022 ? -1022 : k;
    return x * bits<double>(uint64_t(k + 1023) << 52);
}
// To an integer: towards zero, saturating, NaN gives 0.
template <class T, class F>
RUDA_FUNCTION T to_int(F x) {
    constexpr T low = is_signed<T> ? T(uint64_t(1) << (width<T> - 1)) : T(0), high = T(~low);
    const F top = F(uint64_t(1) << (width<T> - 1)) * (is_signed<T> ? F(1) : F(2));
    if (x != x) return 0;
    if (x >= top) return high;
    if (x <= F(low)) return low;
    return T(x);
}

// ---- half precision: values are held in float, rounded after every operation ----

RUDA_FUNCTION uint16_t to_f16(float x) {
    uint32_t b = bits<uint32_t>(x), s = b >> 16 & 0x8000u, a = b & 0x7fffffffu;
    if (a > 0x7f800000u) return uint16_t(s | 0x7e00u);
    if (a >= 0x477ff000u) return uint16_t(s | 0x7c00u);
    if (a <= 0x33000000u) return uint16_t(s);
    if (a < 0x38800000u) {
        uint32_t m = (a & 0x7fffffu) | 0x800000u, n = 126u - (a >> 23), q = m >> n;
        uint32_t rest = m & ((1u << n) - 1u), half = 1u << (n - 1u);
        return uint16_t(s | (q + (rest > half || (rest == half && (q & 1u)))));
    }
    uint32_t r = a + 0xfffu + (a >> 13 & 1u);
    return uint16_t(s | (r - 0x38000000u) >> 13);
}
RUDA_FUNCTION float from_f16(uint16_t h) {
    uint32_t s = uint32_t(h & 0x8000u) << 16, a = h & 0x7fffu;
    if (a >= 0x7c00u) return bits<float>(s | 0x7f800000u | (a & 0x3ffu) << 13);
    if (a >= 0x400u) return bits<float>(s | ((a << 13) + 0x38000000u));
    return bits<float>(s | bits<uint32_t>(float(a) * 5.9604644775390625e-8f));
}
RUDA_FUNCTION float round_f16(float x) { return from_f16(to_f16(x)); }
RUDA_FUNCTION uint16_t to_bf16(float x) {
    uint32_t b = bits<uint32_t>(x);
    if ((b & 0x7fffffffu) > 0x7f800000u) return uint16_t((b >> 16 & 0x8000u) | 0x7fc0u);
    return uint16_t((b + 0x7fffu + (b >> 16 & 1u)) >> 16);
}
RUDA_FUNCTION float from_bf16(uint16_t h) { return bits<float>(uint32_t(h) << 16); }
RUDA_FUNCTION float round_bf16(float x) { return from_bf16(to_bf16(x)); }
// To float, rounded to odd: a second rounding, to 16 bits, is then the only one that counts.
RUDA_FUNCTION float odd_f32(double x) {
    float y = float(x);
    double back = double(y);
    if (back == x || x != x || isinf(y)) return y;
    uint32_t b = bits<uint32_t>(y);
    if (b & 1u) return y;
    return bits<float>((back < 0 ? -back : back) < (x < 0 ? -x : x) ? b + 1u : b - 1u);
}
RUDA_FUNCTION float odd_f32(uint64_t x) {
    int32_t n = 40 - clz(x);
    if (n <= 0) return float(uint32_t(x));
    uint64_t rest = x & ((uint64_t(1) << n) - 1u);
    return float(uint32_t(x >> n | (rest != 0))) * bits<float>(uint32_t(n + 127) << 23);
}
RUDA_FUNCTION float odd_f32(int64_t x) { return x < 0 ? -odd_f32(uint64_t(neg(x))) : odd_f32(uint64_t(x)); }
// x y + z of half precision numbers, to float with a sticky last bit: the next rounding is the only one.
RUDA_FUNCTION float fma_half(double x, double y, double z) {
    double p = x * y, s = p + z;
    if (!isfinite(s) || !isfinite(p)) return float(s);
    double v = s - p, lost = (p - (s - v)) + (z - v);
    int64_t b = bits<int64_t>(s);
    if (lost != 0 && (b & 1) == 0) s = bits<double>((lost > 0) == (s > 0) ? b + 1 : b - 1);
    return odd_f32(s);
}

// ---- complex numbers ----

template <class F>
struct complex {
    F re, im;
};
using c64 = complex<float>;
using c128 = complex<double>;
template <class F> RUDA_FUNCTION complex<F> make(F re, F im) { return complex<F>{re, im}; }
template <class F> RUDA_FUNCTION complex<F> add(complex<F> a, complex<F> b) { return {a.re + b.re, a.im + b.im}; }
template <class F> RUDA_FUNCTION complex<F> sub(complex<F> a, complex<F> b) { return {a.re - b.re, a.im - b.im}; }
template <class F> RUDA_FUNCTION complex<F> neg(complex<F> a) { return {-a.re, -a.im}; }
template <class F> RUDA_FUNCTION complex<F> mul(complex<F> a, complex<F> b) {
    return {a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re};
}
template <class F> RUDA_FUNCTION complex<F> fma(complex<F> a, complex<F> b, complex<F> c) {
    return add(mul(a, b), c);
}
template <class F> RUDA_FUNCTION bool eq(complex<F> a, complex<F> b) { return a.re == b.re && a.im == b.im; }
// Smith's division, as NumPy does it: divide through by the larger part of the divisor.
template <class F>
RUDA_FUNCTION complex<F> truediv(complex<F> a, complex<F> b) {
    F size_r = b.re < 0 ? -b.re : b.re == 0 ? F(0) : b.re, size_i = b.im < 0 ? -b.im : b.im == 0 ? F(0) : b.im;
    if (size_r == 0 && size_i == 0) return {a.re / size_r, a.im / size_r};
    bool real_larger = size_r >= size_i;
    F large = real_larger ? b.re : b.im, small = real_larger ? b.im : b.re;
    F ratio = small / large, scale = F(1) / (large + small * ratio);
    if (real_larger) return {(a.re + a.im * ratio) * scale, (a.im - a.re * ratio) * scale};
    return {(a.re * ratio + a.im) * scale, (a.im * ratio - a.re) * scale};
}

}  // namespace ruda
