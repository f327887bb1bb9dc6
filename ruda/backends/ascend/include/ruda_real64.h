// Double precision by integers, for formulas that need it on a chip that has none: pow, hypot, gamma.
//
// IEEE arithmetic with one rounding, to nearest even: the results are those of a double unit, bit by
// bit, only slow. Numbers are taken apart into a sign and m 2**e; `packed` rounds and puts together.
// Included by `ruda_vector.h`, after `rounded` and `parts` of float.
#pragma once

namespace ruda {

class real64 {
   public:
    uint64_t b;
    real64() = default;
    RUDA_MEMBER explicit real64(float x);
    template <class T> RUDA_MEMBER explicit real64(T x);  // an integer
    RUDA_MEMBER explicit operator float() const;
    template <class T> RUDA_MEMBER explicit operator T() const;  // towards zero; it fits
};

RUDA_FUNCTION real64 r64(uint64_t b) {
    real64 x;
    x.b = b;
    return x;
}
RUDA_FUNCTION real64 infinite64(bool negative) { return r64(uint64_t(negative) << 63 | 0x7ff0000000000000ull); }
RUDA_FUNCTION real64 nan64() { return r64(0x7ff8000000000000ull); }
RUDA_FUNCTION real64 zero64(bool negative) { return r64(uint64_t(negative) << 63); }
RUDA_FUNCTION bool signbit(real64 x) { return x.b >> 63 != 0; }
RUDA_FUNCTION real64 fabs(real64 x) { return r64(x.b & 0x7fffffffffffffffull); }
RUDA_FUNCTION real64 operator-(real64 x) { return r64(x.b ^ 0x8000000000000000ull); }
RUDA_FUNCTION bool is_nan64(real64 x) { return fabs(x).b > 0x7ff0000000000000ull; }
RUDA_FUNCTION bool is_infinite64(real64 x) { return fabs(x).b == 0x7ff0000000000000ull; }
RUDA_FUNCTION bool is_zero64(real64 x) { return fabs(x).b == 0; }

// m 2**e rounded to nearest even; the last bit of m stands for all that follow.
RUDA_FUNCTION real64 packed(bool negative, uint64_t m, int32_t e) {
    if (m == 0) return zero64(negative);
    int32_t quantum = e + 63 - clz(m) - 52;
    if (quantum < -1074) quantum = -1074;
    int32_t shift = quantum - e;
    if (shift <= 0) {
        m <<= -shift;
    } else {
        if (shift > 62) m = sticky(m, shift - 62), shift = 62;
        const uint64_t rest = m & ((uint64_t(1) << shift) - 1), half_way = uint64_t(1) << (shift - 1);
        m >>= shift;
        if (rest > half_way || (rest == half_way && (m & 1))) ++m;
    }
    if (m >> 53) m >>= 1, ++quantum;
    if (m >> 52 == 0) return r64(uint64_t(negative) << 63 | m);  // so small that quantum is -1074
    if (quantum + 1075 > 2046) return infinite64(negative);
    return r64(uint64_t(negative) << 63 | uint64_t(quantum + 1075) << 52 | (m & 0xfffffffffffffull));
}

// A number that is not zero, infinite or NaN, with the first bit of m at 2**63.
RUDA_FUNCTION Parts parts(real64 x) {
    const int32_t e = int32_t(x.b >> 52 & 2047);
    uint64_t m = x.b & 0xfffffffffffffull;
    if (e) m |= 0x10000000000000ull;
    const int32_t n = clz(m);
    return {signbit(x), m << n, (e ? e : 1) - 1075 - n};
}

// ---- conversions

RUDA_MEMBER inline real64::real64(float x) {
    const bool negative = signbit(x);
    const float size = bits<float>(bits<uint32_t>(x) & 0x7fffffffu);
    if (x != x) b = nan64().b;
    else if (isinf(x)) b = infinite64(negative).b;
    else {
        Parts p = parts(size);
        b = packed(negative, p.m, p.e).b;
    }
}
template <class T>
RUDA_MEMBER inline real64::real64(T x) {
    const bool negative = x < T(0);
    b = packed(negative, negative ? uint64_t(0) - uint64_t(x) : uint64_t(x), 0).b;
    if (x == T(0)) b = 0;
}
RUDA_MEMBER inline real64::operator float() const {
    const bool negative = b >> 63 != 0;
    if (is_nan64(*this)) return bits<float>(0x7fc00000u);
    if (is_infinite64(*this)) return bits<float>(negative ? 0xff800000u : 0x7f800000u);
    if (is_zero64(*this)) return bits<float>(negative ? 0x80000000u : 0u);
    Parts p = parts(*this);
    return rounded(negative, p.m, p.e);
}
template <class T>
RUDA_MEMBER inline real64::operator T() const {
    if (is_zero64(*this)) return T(0);
    Parts p = parts(*this);
    const uint64_t m = p.e >= 0 ? p.m << p.e : p.e < -63 ? 0 : p.m >> -p.e;
    return T(p.negative ? uint64_t(0) - m : m);
}

// ---- comparisons: NaN is not equal to anything

RUDA_FUNCTION int64_t order64(real64 x) {
    const int64_t size = int64_t(fabs(x).b);
    return signbit(x) ? -size : size;
}
RUDA_FUNCTION bool operator==(real64 x, real64 y) { return !is_nan64(x) && !is_nan64(y) && order64(x) == order64(y); }
RUDA_FUNCTION bool operator!=(real64 x, real64 y) { return !(x == y); }
RUDA_FUNCTION bool operator!=(real64 x, int32_t zero) { return x != real64(zero); }
RUDA_FUNCTION bool operator<(real64 x, real64 y) { return !is_nan64(x) && !is_nan64(y) && order64(x) < order64(y); }
RUDA_FUNCTION bool operator<=(real64 x, real64 y) { return !is_nan64(x) && !is_nan64(y) && order64(x) <= order64(y); }
RUDA_FUNCTION bool operator>(real64 x, real64 y) { return y < x; }
RUDA_FUNCTION bool operator>=(real64 x, real64 y) { return y <= x; }

// ---- arithmetic

RUDA_FUNCTION real64 operator+(real64 x, real64 y) {
    if (is_nan64(x) || is_nan64(y)) return nan64();
    if (is_infinite64(x)) return is_infinite64(y) && signbit(x) != signbit(y) ? nan64() : x;
    if (is_infinite64(y)) return y;
    if (is_zero64(x)) return is_zero64(y) ? zero64(signbit(x) && signbit(y)) : y;
    if (is_zero64(y)) return x;
    Parts a = parts(x), b = parts(y);
    if (b.e > a.e || (b.e == a.e && b.m > a.m)) {
        Parts t = a;
        a = b;
        b = t;
    }
    // One bit is left for the carry; the eleven below the number tell what is lost.
    const uint64_t m = sticky(b.m >> 1, a.e - b.e), n = a.m >> 1;
    const uint64_t sum = a.negative == b.negative ? n + m : n - m;
    return sum == 0 ? zero64(false) : packed(a.negative, sum, a.e + 1);
}
RUDA_FUNCTION real64 operator-(real64 x, real64 y) { return x + -y; }
RUDA_FUNCTION real64 operator*(real64 x, real64 y) {
    const bool negative = signbit(x) != signbit(y);
    if (is_nan64(x) || is_nan64(y)) return nan64();
    if (is_infinite64(x) || is_infinite64(y)) return is_zero64(x) || is_zero64(y) ? nan64() : infinite64(negative);
    if (is_zero64(x) || is_zero64(y)) return zero64(negative);
    Parts a = parts(x), b = parts(y);
    return packed(negative, mulhi<uint64_t>(a.m, b.m) | uint64_t(a.m * b.m != 0), a.e + b.e + 64);
}
// One bit of the quotient after the other.
RUDA_FUNCTION real64 operator/(real64 x, real64 y) {
    const bool negative = signbit(x) != signbit(y);
    if (is_nan64(x) || is_nan64(y)) return nan64();
    if (is_infinite64(x)) return is_infinite64(y) ? nan64() : infinite64(negative);
    if (is_infinite64(y)) return zero64(negative);
    if (is_zero64(y)) return is_zero64(x) ? nan64() : infinite64(negative);
    if (is_zero64(x)) return zero64(negative);
    Parts a = parts(x), b = parts(y);
    uint64_t rest = a.m >> 1, quotient = 0;
    const uint64_t divisor = b.m >> 1;
    for (int32_t k = 0; k < 60; ++k) {
        quotient <<= 1;
        if (rest >= divisor) rest -= divisor, quotient |= 1;
        rest <<= 1;
    }
    return packed(negative, quotient << 1 | uint64_t(rest != 0), a.e - b.e - 60);
}
// 128 bits hold the product, and of the term all that can matter.
RUDA_FUNCTION real64 fma(real64 x, real64 y, real64 z) {
    if (is_nan64(x) || is_nan64(y) || is_nan64(z)) return nan64();
    if (is_infinite64(x) || is_infinite64(y) || is_zero64(x) || is_zero64(y)) return x * y + z;
    if (is_infinite64(z)) return z;
    if (is_zero64(z)) return x * y;
    Parts a = parts(x), b = parts(y), c = parts(z);
    const bool negative = a.negative != b.negative;
    uint64_t high = mulhi<uint64_t>(a.m, b.m), low = a.m * b.m;  // the first bit is at 126 or 127
    int32_t e = a.e + b.e;
    if (high >> 63 == 0) high = high << 1 | low >> 63, low <<= 1, --e;
    low = low >> 2 | high << 62, high >>= 2, e += 2;  // at 125; the last 21 bits of low are zero
    uint64_t other_high = c.m >> 2, other_low = c.m << 62;
    int32_t other = c.e - 62;
    bool sign = negative, other_sign = c.negative;
    if (other > e || (other == e && (other_high > high || (other_high == high && other_low > low)))) {
        uint64_t t = high;
        high = other_high, other_high = t;
        t = low, low = other_low, other_low = t;
        const int32_t n = e;
        e = other, other = n;
        sign = c.negative, other_sign = negative;
    }
    const int32_t shift = e - other;
    if (shift > 127) {
        other_low = 1, other_high = 0;
    } else if (shift > 63) {
        other_low = sticky(other_high, shift - 64) | uint64_t(other_low != 0), other_high = 0;
    } else if (shift > 0) {
        const uint64_t lost = other_low & ((uint64_t(1) << shift) - 1);
        other_low = other_low >> shift | other_high << (64 - shift) | uint64_t(lost != 0);
        other_high >>= shift;
    }
    if (sign == other_sign) {
        low += other_low;
        high += other_high + uint64_t(low < other_low);
    } else {
        const uint64_t borrow = uint64_t(low < other_low);
        low -= other_low;
        high -= other_high + borrow;
    }
    if (high == 0) return low == 0 ? zero64(false) : packed(sign, low, e);
    const int32_t n = clz(high);
    if (n) {
        high = high << n | low >> (64 - n);
        low <<= n;
    }
    return packed(sign, high | uint64_t(low != 0), e + 64 - n);
}
RUDA_FUNCTION real64 sqrt(real64 x) {
    if (is_nan64(x) || is_zero64(x)) return x;
    if (signbit(x)) return nan64();
    if (is_infinite64(x)) return x;
    Parts p = parts(x);
    if (p.e & 1) p.m >>= 1, ++p.e;
    uint64_t root = 0, rest = 0, m = p.m;
    for (int32_t k = 0; k < 56; ++k) {  // two bits of m, then zeros, give one of the root
        rest = rest << 2 | m >> 62;
        m <<= 2;
        root <<= 1;
        if (rest >= (root << 1 | 1)) rest -= root << 1 | 1, root |= 1;
    }
    return packed(false, root << 1 | uint64_t(rest != 0), (p.e - 48) / 2 - 1);
}
RUDA_FUNCTION real64 ldexp(real64 x, int32_t k) {
    if (is_nan64(x) || is_infinite64(x) || is_zero64(x)) return x;
    Parts p = parts(x);
    return packed(p.negative, p.m, p.e + (k > 5000 ? 5000 : k < -5000 ? -5000 : k));
}
RUDA_FUNCTION real64 copysign(real64 x, real64 y) { return r64(fabs(x).b | (y.b & 0x8000000000000000ull)); }
RUDA_FUNCTION real64 trunc(real64 x) {
    const int32_t e = int32_t(x.b >> 52 & 2047) - 1023;
    if (e >= 52) return x;
    if (e < 0) return zero64(signbit(x));
    return r64(x.b & ~(0xfffffffffffffull >> e));
}
RUDA_FUNCTION real64 floor(real64 x) {
    const real64 t = trunc(x);
    return t > x ? t - real64(1) : t;
}
RUDA_FUNCTION real64 ceil(real64 x) { return -floor(-x); }
RUDA_FUNCTION real64 rint(real64 x) {
    if (!(fabs(x) < r64(0x4330000000000000ull))) return x;
    const real64 big = r64(0x4330000000000000ull);  // 2**52
    return copysign((fabs(x) + big) - big, x);
}

// The remainder with the sign of x, exactly: one bit of the quotient after the other.
RUDA_FUNCTION real64 fmod(real64 x, real64 y) {
    if (is_nan64(x) || is_nan64(y) || is_infinite64(x) || is_zero64(y)) return nan64();
    if (fabs(x) < fabs(y) || is_zero64(x)) return x;
    Parts a = parts(x), b = parts(y);
    uint64_t m = a.m >> 11;
    const uint64_t divisor = b.m >> 11;
    for (int32_t e = a.e; e > b.e; --e) m = (m % divisor) << 1;
    return packed(a.negative, m % divisor, b.e + 11);
}
// x - n y for the integer n that is nearest of x / y, the even one of two.
RUDA_FUNCTION real64 remainder(real64 x, real64 y) {
    if (is_nan64(x) || is_nan64(y) || is_infinite64(x) || is_zero64(y)) return nan64();
    if (is_infinite64(y)) return x;
    real64 a = fabs(x), b = fabs(y);
    if (!is_infinite64(b + b)) a = fmod(a, b + b);
    if (a > b - a) {  // a - b/2 without halves: the difference is exact where it matters
        a = a - b;
        if (a >= b - a) a = a - b;
    }
    return r64(a.b ^ (x.b & 0x8000000000000000ull));
}

// Of the text of a kernel that calls them: `formulas` has exp, log and sin(pi x) for it.
RUDA_FUNCTION real64 tgamma(real64 x);
RUDA_FUNCTION real64 lgamma(real64 x);

}  // namespace ruda
