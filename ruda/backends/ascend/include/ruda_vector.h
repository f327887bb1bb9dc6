// What emitted kernels for the 910B class (dav-2201) call beyond AscendC and `ruda_scalar.h`: lengths
// of copies, stores of the scalar unit through the unified buffer, functions that its scalar unit lacks.
//
// Plain C++17 without the standard library and without double arithmetic. No scalar store goes to
// global memory: the cache behind it writes whole lines, and would overwrite what other cores wrote.
#pragma once
#include "kernel_operator.h"

#define RUDA_FUNCTION __aicore__ inline
#define RUDA_MEMBER __aicore__
#include "ruda_scalar.h"

using namespace AscendC;

#ifdef RUDA_TWIN  // faults name the line of the kernel, not of this file
#define RUDA_LINE , uint32_t line = TWIN_LINE
#define RUDA_PASS , line
#define RUDA_ONLY line
#define RUDA_LAUNCH(kernel, words, stream, ...) \
    return twin::launch_vector(stream, uint32_t(words[6]), [=] { kernel(__VA_ARGS__); })
#else
#define RUDA_LINE
#define RUDA_PASS
#define RUDA_ONLY
#define RUDA_LAUNCH(kernel, words, stream, ...)                          \
    kernel<<<uint32_t(words[6]), nullptr, stream>>>(__VA_ARGS__); \
    return 0
#endif

namespace ruda {

// ---- private arrays of a thread

#ifdef RUDA_TWIN
template <class T, int N, int... M>
struct Shaped {
    Shaped<T, M...> rows[N];
    auto& operator[](int64_t i) {
        if (i < 0 || i >= N) twin::fail("buffer-bounds", "index %lld is outside of an axis of %d", (long long)i, N);
        return rows[i];
    }
};
template <class T, int N>
struct Shaped<T, N> {
    T rows[N];
    T& operator[](int64_t i) {
        if (i < 0 || i >= N) twin::fail("buffer-bounds", "index %lld is outside of an axis of %d", (long long)i, N);
        return rows[i];
    }
};
template <class T, int... N> using array = Shaped<T, N...>;
#else
template <class T, int N, int... M> struct Shaped { using type = typename Shaped<T, M...>::type[N]; };
template <class T, int N> struct Shaped<T, N> { using type = T[N]; };
template <class T, int... N> using array = typename Shaped<T, N...>::type;
#endif

// ---- tiles

RUDA_FUNCTION int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
// As many elements as fill whole multiples of a power of two.
RUDA_FUNCTION int32_t whole(int32_t count, int32_t multiple) { return (count + multiple - 1) & ~(multiple - 1); }
// The length of a tile: the cores share what is to be done, and no tile is longer than its buffers.
RUDA_FUNCTION int64_t tile_of(int64_t count, int64_t most) {
    int64_t each = (count + GetBlockNum() - 1) / GetBlockNum();
    int64_t tile = (each + 127) / 128 * 128;
    return tile < 128 ? 128 : tile < most ? tile : most;
}
// Whether the tile's elements low .. low + count - 1 are all in an axis.
RUDA_FUNCTION bool inside(int64_t low, int64_t count, int64_t extent) { return low >= 0 && low + count <= extent; }
// Whether numbers first, first + step, ... are exact in 32 bits.
RUDA_FUNCTION bool narrow(int64_t first, int64_t step, int64_t count) {
    int64_t last = first + step * count, most = 2147483000;
    return first > -most && first < most && last > -most && last < most;
}
RUDA_FUNCTION int32_t clamp32(int64_t x) {
    return x < -2147483647 ? -2147483647 : x > 2147483647 ? 2147483647 : int32_t(x);
}

// The parameters of a copy of `count` neighbours, exactly.
template <class T> RUDA_FUNCTION DataCopyExtParams row(int64_t count) {
    return DataCopyExtParams{1, uint32_t(count * int64_t(sizeof(T))), 0, 0, 0};
}
template <class T> RUDA_FUNCTION DataCopyPadExtParams<T> unpadded() { return DataCopyPadExtParams<T>{false, 0, 0, T(0)}; }
// Zeros up to the end of the last 32 bytes.
template <class T> RUDA_FUNCTION DataCopyPadExtParams<T> padded(int32_t count) {
    return DataCopyPadExtParams<T>{true, 0, uint8_t(whole(count, 32 / int32_t(sizeof(T))) - count), T(0)};
}
// Zeros from there to `lanes`: an instruction that takes whole multiples of 256 bytes reads them.
template <class T>
RUDA_FUNCTION void zero_rest(const LocalTensor<T>& x, int32_t count, int32_t lanes RUDA_LINE) {
    const int32_t from = whole(count, 32 / int32_t(sizeof(T)));
    if (from >= lanes) return;
    if (sizeof(T) == 1)
        Duplicate(x[from].template ReinterpretCast<int16_t>(), int16_t(0), (lanes - from) / 2 RUDA_PASS);
    else if (sizeof(T) == 2)
        Duplicate(x[from].template ReinterpretCast<int16_t>(), int16_t(0), lanes - from RUDA_PASS);
    else
        Duplicate(x[from].template ReinterpretCast<int32_t>(), int32_t(0),
                  (lanes - from) * int32_t(sizeof(T) / 4) RUDA_PASS);
}
// 0, 1, 2, ... by doubling what is there.
RUDA_FUNCTION void count_up(const LocalTensor<int32_t>& x, int32_t count RUDA_LINE) {
    for (int32_t k = 0; k < 8; ++k) x.SetValue(k, k RUDA_PASS);
    SetFlag<HardEvent::S_V>(EVENT_ID0 RUDA_PASS);
    WaitFlag<HardEvent::S_V>(EVENT_ID0 RUDA_PASS);
    for (int32_t have = 8; have < count; have *= 2) {
        Adds(x[have], x, have, have < count - have ? have : count - have RUDA_PASS);
        PipeBarrier<PIPE_V>(RUDA_ONLY);
    }
}

// Elements of an array of the block as a vector; zeros up to `lanes`.
template <class T>
RUDA_FUNCTION void take(const LocalTensor<T>& to, const LocalTensor<T>& from, int32_t count, int32_t lanes RUDA_LINE) {
    if (lanes != count) {
        Duplicate(to, T(0), lanes RUDA_PASS);
        PipeBarrier<PIPE_V>(RUDA_ONLY);
    }
    if (sizeof(T) == 2)
        Adds(to.template ReinterpretCast<int16_t>(), from.template ReinterpretCast<int16_t>(), int16_t(0),
             count RUDA_PASS);
    else
        Adds(to.template ReinterpretCast<int32_t>(), from.template ReinterpretCast<int32_t>(), int32_t(0),
             count * int32_t(sizeof(T) / 4) RUDA_PASS);
}

// ---- elements of memory for the scalar unit

template <class T>
RUDA_FUNCTION T tensor_bytes(const LocalTensor<uint8_t>& x, int64_t offset RUDA_LINE) {
    uint8_t raw[sizeof(T)];
    for (int k = 0; k < int(sizeof(T)); ++k) raw[k] = x.GetValue(offset + k RUDA_PASS);
    T value;
    __builtin_memcpy(&value, raw, sizeof(T));
    return value;
}
template <class T>
RUDA_FUNCTION void set_tensor_bytes(const LocalTensor<uint8_t>& x, int64_t offset, T value RUDA_LINE) {
    uint8_t raw[sizeof(T)];
    __builtin_memcpy(raw, &value, sizeof(T));
    for (int k = 0; k < int(sizeof(T)); ++k) x.SetValue(offset + k, raw[k] RUDA_PASS);
}

// Where a copy of this kernel may have written: what the cache has is given up first.
template <class T>
RUDA_FUNCTION T fresh(const GlobalTensor<T>& x, int64_t i RUDA_LINE) {
    GlobalTensor<T> at = x[i];
    DataCacheCleanAndInvalid<T, CacheLine::SINGLE_CACHE_LINE, DcciDst::CACHELINE_OUT>(at RUDA_PASS);
    return at.GetValue(0 RUDA_PASS);
}
// An element may lie across two lines.
template <class T>
RUDA_FUNCTION T load_bytes(const GlobalTensor<uint8_t>& x, int64_t offset, bool again RUDA_LINE) {
    uint8_t raw[sizeof(T)];
    for (int k = 0; k < int(sizeof(T)); ++k)
        raw[k] = again ? fresh(x, offset + k RUDA_PASS) : x.GetValue(offset + k RUDA_PASS);
    T value;
    __builtin_memcpy(&value, raw, sizeof(T));
    return value;
}
template <class T, class Bytes>
RUDA_FUNCTION T local_bytes(Bytes&& x, int64_t offset) {
    uint8_t raw[sizeof(T)];
    for (int k = 0; k < int(sizeof(T)); ++k) raw[k] = x[offset + k];
    T value;
    __builtin_memcpy(&value, raw, sizeof(T));
    return value;
}
template <class T, class Bytes>
RUDA_FUNCTION void set_local_bytes(Bytes&& x, int64_t offset, T value) {
    uint8_t raw[sizeof(T)];
    __builtin_memcpy(raw, &value, sizeof(T));
    for (int k = 0; k < int(sizeof(T)); ++k) x[offset + k] = raw[k];
}

// Scalar stores: an element goes to the unified buffer and out by a copy of its own bytes.
class Stage {
   public:
    TBuf<TPosition::VECOUT> buffer;
    __aicore__ void open(TPipe& pipe) { pipe.InitBuffer(buffer, 32); }
    template <class T>
    __aicore__ void store(const GlobalTensor<T>& to, int64_t i, T value RUDA_LINE) {
        LocalTensor<T> one = put(value RUDA_PASS);
        DataCopyPad(to[i], one, row<T>(1) RUDA_PASS);
        done(RUDA_ONLY);
    }
    template <class T>
    __aicore__ void store_bytes(const GlobalTensor<uint8_t>& to, int64_t offset, T value RUDA_LINE) {
        LocalTensor<T> one = put(value RUDA_PASS);
        DataCopyPad(to[offset], one.template ReinterpretCast<uint8_t>(), row<uint8_t>(sizeof(T)) RUDA_PASS);
        done(RUDA_ONLY);
    }
    // The copy adds to what is there, or takes the larger or the smaller of both.
    template <class T>
    __aicore__ void add(const GlobalTensor<T>& to, int64_t i, T value RUDA_LINE) {
        LocalTensor<T> one = put(value RUDA_PASS);
        SetAtomicAdd<T>(RUDA_ONLY);
        DataCopyPad(to[i], one, row<T>(1) RUDA_PASS);
        SetAtomicNone(RUDA_ONLY);
        done(RUDA_ONLY);
    }
    template <class T>
    __aicore__ void max(const GlobalTensor<T>& to, int64_t i, T value RUDA_LINE) {
        LocalTensor<T> one = put(value RUDA_PASS);
        SetAtomicMax<T>(RUDA_ONLY);
        DataCopyPad(to[i], one, row<T>(1) RUDA_PASS);
        SetAtomicNone(RUDA_ONLY);
        done(RUDA_ONLY);
    }
    template <class T>
    __aicore__ void min(const GlobalTensor<T>& to, int64_t i, T value RUDA_LINE) {
        LocalTensor<T> one = put(value RUDA_PASS);
        SetAtomicMin<T>(RUDA_ONLY);
        DataCopyPad(to[i], one, row<T>(1) RUDA_PASS);
        SetAtomicNone(RUDA_ONLY);
        done(RUDA_ONLY);
    }

   private:
    template <class T>
    __aicore__ LocalTensor<T> put(T value RUDA_LINE) {
        LocalTensor<T> one = buffer.Get<T>(RUDA_ONLY);
        one.SetValue(0, value RUDA_PASS);
        SetFlag<HardEvent::S_MTE3>(EVENT_ID0 RUDA_PASS);
        WaitFlag<HardEvent::S_MTE3>(EVENT_ID0 RUDA_PASS);
        return one;
    }
#ifdef RUDA_TWIN
    void done(uint32_t line) {
#else
    __aicore__ void done() {
#endif
        SetFlag<HardEvent::MTE3_S>(EVENT_ID0 RUDA_PASS);
        WaitFlag<HardEvent::MTE3_S>(EVENT_ID0 RUDA_PASS);
    }
};

// ---- reports: see ruda/backends/cpu/reports.py for a part, ruda/backends/ascend/reports.py for the parts

template <class T> RUDA_FUNCTION int64_t word(T x) { return int64_t(x); }
template <> RUDA_FUNCTION int64_t word<float>(float x) { return int64_t(bits<uint32_t>(x)); }

// The part of this core: records go to the unified buffer, and out by copies of their own bytes.
class Reports {
   public:
    GlobalTensor<int64_t> part;
    TBuf<TPosition::VECOUT> buffer;
    int64_t used, room, lost;
    __aicore__ void open(TPipe& pipe, const GlobalTensor<int64_t>& all, int64_t words, uint32_t longest) {
        pipe.InitBuffer(buffer, longest);
        part = all[GetBlockIdx() * words];
        used = 0, room = words - 3, lost = 0;
    }
    template <int N>
    __aicore__ void add(const int64_t (&words)[N] RUDA_LINE) {
        if (used + N > room) {
            ++lost;
            return;
        }
        copy(3 + used, words RUDA_PASS);
        used += N;
    }
    __aicore__ void close() {
        const int64_t head[3] = {used, room, lost};
        if (used + lost > 0) copy(0, head);
    }

   private:
    template <int N>
    __aicore__ void copy(int64_t at, const int64_t (&words)[N] RUDA_LINE) {
        LocalTensor<int64_t> record = buffer.Get<int64_t>(RUDA_ONLY);
        for (int32_t k = 0; k < N; ++k) record.SetValue(k, words[k] RUDA_PASS);
        SetFlag<HardEvent::S_MTE3>(EVENT_ID0 RUDA_PASS);
        WaitFlag<HardEvent::S_MTE3>(EVENT_ID0 RUDA_PASS);
        DataCopyPad(part[at], record, row<int64_t>(N) RUDA_PASS);
        SetFlag<HardEvent::MTE3_S>(EVENT_ID0 RUDA_PASS);
        WaitFlag<HardEvent::MTE3_S>(EVENT_ID0 RUDA_PASS);
    }
};
template <int N>
RUDA_FUNCTION void report(Reports& reports, const int64_t (&words)[N] RUDA_LINE) {
    reports.add(words RUDA_PASS);
}
// Words: site, block, thread, indices, extents. Whether every index is inside; reports if not.
template <int N>
RUDA_FUNCTION bool inside(Reports& reports, const int64_t (&words)[N] RUDA_LINE) {
    constexpr int axes = (N - 3) / 2;
    bool good = true;
    for (int k = 0; k < axes; ++k) good = good && words[3 + k] >= 0 && words[3 + k] < words[3 + axes + k];
    if (!good) reports.add(words RUDA_PASS);
    return good;
}
template <class T, int N>
RUDA_FUNCTION T divisor(T y, Reports& reports, const int64_t (&words)[N] RUDA_LINE) {
    if (y == 0) reports.add(words RUDA_PASS);
    return y;
}

// The part of a pointer's array that other code sees at another dtype, or from a byte on.
template <class T>
RUDA_FUNCTION GlobalTensor<T> global(GM_ADDR bytes) {
    GlobalTensor<T> x;
    x.SetGlobalBuffer((__gm__ T*)bytes);
    return x;
}

// ---- functions of float by integers

// x >> n, where the last bit stands for all that are lost.
RUDA_FUNCTION uint64_t sticky(uint64_t x, int32_t n) {
    if (n <= 0) return x;
    if (n > 63) return uint64_t(x != 0);
    return x >> n | uint64_t((x & ((uint64_t(1) << n) - 1)) != 0);
}
// m 2**e rounded to the nearest float; the last bit of m stands for all that follow.
RUDA_FUNCTION float rounded(bool negative, uint64_t m, int32_t e) {
    int32_t quantum = e + 64 - clz(m) - 24;
    if (quantum < -149) quantum = -149;
    int32_t shift = quantum - e;
    if (shift > 0) {
        if (shift > 62) m = sticky(m, shift - 62), shift = 62;
        uint64_t rest = m & ((uint64_t(1) << shift) - 1), half_way = uint64_t(1) << (shift - 1);
        m >>= shift;
        if (rest > half_way || (rest == half_way && (m & 1))) ++m;
    } else {
        m <<= -shift;
    }
    float x = ldexp(float(uint32_t(m)), quantum);
    return negative ? -x : x;
}
struct Parts {
    bool negative;
    uint64_t m;  // the value is m 2**e
    int32_t e;
};
RUDA_FUNCTION Parts parts(float x) {
    uint32_t b = bits<uint32_t>(x), e = b >> 23 & 255;
    return {b >> 31 != 0, e ? (b & 0x7fffffu) | 0x800000u : b & 0x7fffffu, int32_t(e ? e : 1) - 150};
}
RUDA_FUNCTION float fma32(float a, float b, float c) {
    if (!isfinite(a) || !isfinite(b) || a == 0 || b == 0) return a * b + c;
    if (!isfinite(c)) return c;  // the product may be too large for float, but is not infinite
    if (c == 0) return a * b;
    Parts x = parts(a), y = parts(b), z = parts(c);
    Parts p{x.negative != y.negative, x.m * y.m, x.e + y.e};
    int32_t n = clz(p.m) - 2, k = clz(z.m) - 2;
    p = {p.negative, p.m << n, p.e - n};
    z = {z.negative, z.m << k, z.e - k};
    if (z.e > p.e || (z.e == p.e && z.m > p.m)) {
        Parts t = p;
        p = z;
        z = t;
    }
    const int32_t shift = p.e - z.e;
    if (shift > 62) z.m = 1;
    else if (shift > 0) z.m = z.m >> shift | uint64_t((z.m & ((uint64_t(1) << shift) - 1)) != 0);
    uint64_t m = p.negative == z.negative ? p.m + z.m : p.m - z.m;
    return m == 0 ? 0.0f : rounded(p.negative, m, p.e);
}
RUDA_FUNCTION float sqrt32(float x) {
    if (x == 0 || x != x || (isinf(x) && x > 0)) return x;
    if (x < 0) return bits<float>(0x7fc00000u);
    Parts p = parts(x);
    int32_t n = clz(p.m) - 12;  // the first bit is that of 2**51, or 2**50
    if ((p.e - n) & 1) ++n, n -= 2;
    uint64_t m = p.m << n, root = 0;
    for (uint64_t bit = uint64_t(1) << 26; bit; bit >>= 1)
        if ((root | bit) * (root | bit) <= m) root |= bit;
    return rounded(false, root << 1 | uint64_t(root * root != m), (p.e - n) / 2 - 1);
}
RUDA_FUNCTION float fabs32(float x) { return bits<float>(bits<uint32_t>(x) & 0x7fffffffu); }
RUDA_FUNCTION float copysign32(float x, float y) {
    return bits<float>((bits<uint32_t>(x) & 0x7fffffffu) | (bits<uint32_t>(y) & 0x80000000u));
}
RUDA_FUNCTION float trunc32(float x) {
    return fabs32(x) < 8388608.0f ? copysign32(float(int32_t(x)), x) : x;
}
RUDA_FUNCTION float floor32(float x) {
    float t = trunc32(x);
    return t > x ? t - 1.0f : t;
}
RUDA_FUNCTION float ceil32(float x) {
    float t = trunc32(x);
    return t < x ? copysign32(t + 1.0f, x) : t;
}
RUDA_FUNCTION float rint32(float x) {
    if (!(fabs32(x) < 8388608.0f)) return x;
    return copysign32((fabs32(x) + 8388608.0f) - 8388608.0f, x);
}
// The remainder with the sign of x, exactly: one bit of the quotient after the other.
RUDA_FUNCTION float fmod32(float x, float y) {
    if (x != x || y != y || !isfinite(x) || y == 0) return bits<float>(0x7fc00000u);
    if (fabs32(x) < fabs32(y)) return x;
    Parts a = parts(x), b = parts(y);
    uint64_t m = a.m;
    for (int32_t e = a.e; e > b.e; --e) m = (m % b.m) << 1;
    m %= b.m;
    float r = ldexp(float(uint32_t(m)), b.e);
    return a.negative ? -r : r;
}

}  // namespace ruda

#include "ruda_real64.h"

namespace ruda {

RUDA_FUNCTION int64_t word(real64 x) { return int64_t(x.b); }

// x = r + n pi/2 for |x| > 32768, where float has no bits left for r: 2/pi times the bits of x, of
// which the product needs 96 from where it is below 4.
struct Quadrant {
    real64 r;
    uint32_t n;
};
RUDA_FUNCTION Quadrant quadrant(float x) {
    const uint32_t two_over_pi[8] = {0, 0xa2f9836eu, 0x4e441529u, 0xfc2757d1u, 0xf534ddc0u, 0xdb629599u,
                                     0x3c439041u, 0xfe5163abu};
    const Parts p = parts(x);
    const int32_t first = p.e + 30, k = first / 32, n = first % 32;
    uint32_t w[3];
    for (int32_t j = 0; j < 3; ++j)
        w[j] = uint32_t(((uint64_t(two_over_pi[k + j]) << 32 | two_over_pi[k + j + 1]) << n) >> 32);
    const uint64_t turn = (p.m * w[0] << 32) + p.m * w[1] + (p.m * w[2] >> 32);  // 2 bits of n, 62 of r
    const int64_t rest = int64_t(turn << 2);
    return {ldexp(real64(rest) * r64(0x3ff921fb54442d18ull), -64), uint32_t(turn >> 62) + uint32_t(rest < 0)};
}
// By their series; |r| is below 0.8.
RUDA_FUNCTION real64 sine(real64 r) {
    const real64 z = r * r, one(1);
    real64 s = one;
    for (int32_t k = 14; k > 0; k -= 2) s = one - z * s / real64(k * (k + 1));
    return r * s;
}
RUDA_FUNCTION real64 cosine(real64 r) {
    const real64 z = r * r, one(1);
    real64 s = one;
    for (int32_t k = 15; k > 0; k -= 2) s = one - z * s / real64(k * (k + 1));
    return s;
}
RUDA_FUNCTION float turned(real64 r, uint32_t n) {
    const real64 y = n & 1 ? cosine(r) : sine(r);
    return float(n & 2 ? -y : y);
}
RUDA_FUNCTION float sin32(float x) {
    const Quadrant q = quadrant(x);
    return x < 0 ? -turned(q.r, q.n) : turned(q.r, q.n);
}
RUDA_FUNCTION float cos32(float x) {
    const Quadrant q = quadrant(x);
    return turned(q.r, q.n + 1);
}
RUDA_FUNCTION float tan32(float x) {
    const Quadrant q = quadrant(x);
    const real64 s = sine(q.r), c = cosine(q.r);
    const float y = float(q.n & 1 ? -c / s : s / c);
    return x < 0 ? -y : y;
}
// x - n y for the integer n that is nearest of x / y, the even one of two.
RUDA_FUNCTION float remainder32(float x, float y) {
    if (x != x || y != y || !isfinite(x) || y == 0) return bits<float>(0x7fc00000u);
    if (!isfinite(y)) return x;
    float a = fabs32(x), b = fabs32(y);
    if (b < 1.0e38f) a = fmod32(a, b + b);
    if (b < 1.0e-37f) {  // half of b is not exact
        if (a + a > b) {
            a -= b;
            if (a + a >= b) a -= b;
        }
    } else {
        const float half = 0.5f * b;
        if (a > half) {
            a -= b;
            if (a >= half) a -= b;
        }
    }
    return bits<float>(bits<uint32_t>(a) ^ (bits<uint32_t>(x) & 0x80000000u));
}
// To float, rounded to odd: the next rounding is the only one that counts.
RUDA_FUNCTION float odd_f32(real64 x) {
    const float near = float(x);
    const uint32_t b = bits<uint32_t>(near);
    if (real64(near) == x || x != x || isinf(near) || (b & 1)) return near;
    return bits<float>(fabs(real64(near)) < fabs(x) ? b + 1 : b - 1);
}
RUDA_FUNCTION float fma_half(float x, float y, float z) {
    const real64 p = real64(x) * real64(y), c(z), s = p + c, v = s - p, lost = (p - (s - v)) + (c - v), none(0);
    if (is_nan64(s) || is_infinite64(s)) return float(s);
    return odd_f32(lost != none && (s.b & 1) == 0 ? r64((lost > none) == (s > none) ? s.b + 1 : s.b - 1) : s);
}

}  // namespace ruda

using ruda::array;
#define sinf ruda::sin32
#define cosf ruda::cos32
#define tanf ruda::tan32
#define remainderf ruda::remainder32
#define fmaf ruda::fma32
#define sqrtf ruda::sqrt32
#define fabsf ruda::fabs32
#define copysignf ruda::copysign32
#define truncf ruda::trunc32
#define floorf ruda::floor32
#define ceilf ruda::ceil32
#define rintf ruda::rint32
#define fmodf ruda::fmod32
