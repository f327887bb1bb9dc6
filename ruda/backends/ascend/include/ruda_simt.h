// What emitted SIMT kernels call beyond the chip's own functions and `ruda_scalar.h`: the launch in
// pieces, memory by bytes, exchanges between threads, reports.
#pragma once
#include "simt_api/asc_simt.h"

#define RUDA_FUNCTION __simt_callee__ inline
#include "ruda_scalar.h"

#ifdef RUDA_TWIN
template <class T> using gm = ::simt::Global<T>;
template <class T, int... N> using array = ::simt::Shaped<T, N...>;
#define RUDA_GM(T, words, k) (gm<T>{reinterpret_cast<T*>(words[k]), words[k + 1], words[k + 2]})
#define RUDA_DYNAMIC(T, name) ::simt::Dynamic<T> name
#define RUDA_UB_CAST(T, pointer) reinterpret_cast<T*>(pointer)
#define RUDA_GM_CAST(T, pointer) reinterpret_cast<T*>(pointer)
#define RUDA_LAUNCH(kernel, meets, words, stream, ...)                                    \
    for (ruda::Piece piece(words); piece.next();)                                         \
        if (::simt::launch(piece.grid, piece.first, words, meets, [&] { kernel(__VA_ARGS__); })) \
            return 1;                                                                     \
    return 0
#else
namespace ruda {
template <class T, int N, int... M> struct Shaped { using type = typename Shaped<T, M...>::type[N]; };
template <class T, int N> struct Shaped<T, N> { using type = T[N]; };
}  // namespace ruda
template <class T> using gm = __gm__ T*;
template <class T, int... N> using array = typename ruda::Shaped<T, N...>::type;
#define RUDA_GM(T, words, k) reinterpret_cast<T*>(words[k])
#define RUDA_DYNAMIC(T, name)            \
    extern __ubuf__ char ruda_dynamic[]; \
    __ubuf__ T* name = (__ubuf__ T*)ruda_dynamic
#define RUDA_UB_CAST(T, pointer) ((__ubuf__ T*)(pointer))
#define RUDA_GM_CAST(T, pointer) ((__gm__ T*)(pointer))
#define RUDA_LAUNCH(kernel, meets, words, stream, ...)                                        \
    for (ruda::Piece piece(words); piece.next();)                                             \
        kernel<<<dim3(piece.grid[0], piece.grid[1], piece.grid[2]),                           \
                 dim3(words[3], words[4], words[5]), words[7], stream>>>(__VA_ARGS__);        \
    return 0
#endif

namespace ruda {

#ifdef RUDA_TWIN
// Elements of shared arrays are read where a template would take them for a type of their own.
template <class T> RUDA_FUNCTION bool isnan(const ::simt::Element<T, false>& x) { return isnan(T(x)); }
template <class T> RUDA_FUNCTION bool isinf(const ::simt::Element<T, false>& x) { return isinf(T(x)); }
template <class T> RUDA_FUNCTION bool isfinite(const ::simt::Element<T, false>& x) { return isfinite(T(x)); }
template <class To, class T> RUDA_FUNCTION To bits(const ::simt::Element<T, false>& x) { return bits<To>(T(x)); }
template <class To, class T> RUDA_FUNCTION To to_int(const ::simt::Element<T, false>& x) { return to_int<To>(T(x)); }
#endif

// For the launcher: a grid in pieces of no more blocks than a launch may have.
struct Piece {
    int64_t all[3], grid[3], step[3], first[3];
    bool begun;
    explicit Piece(const int64_t* words) : begun(false) {
        int64_t room = 65535;
        for (int k = 0; k < 3; ++k) {
            all[k] = words[k];
            step[k] = all[k] < room ? all[k] : room;
            room /= step[k];
            first[k] = 0;
        }
    }
    bool next() {
        if (begun) {
            int k = 0;
            for (; k < 3; ++k) {
                first[k] += step[k];
                if (first[k] < all[k]) break;
                first[k] = 0;
            }
            if (k == 3) return false;
        }
        begun = true;
        for (int k = 0; k < 3; ++k) {
            int64_t left = all[k] - first[k];
            grid[k] = left < step[k] ? left : step[k];
        }
        return true;
    }
};

// ---- memory by bytes: other strides, records, elements that are not aligned ----

template <class T>
RUDA_FUNCTION T& at(gm<uint8_t> array, int64_t offset
#ifdef RUDA_TWIN
    , int line = TWIN_LINE) {
    gm<T> typed{reinterpret_cast<T*>(array.data + offset), array.low, array.high};
    return typed[::simt::At(0, line)];
#else
) {
    return *RUDA_GM_CAST(T, array + offset);
#endif
}
// Where bytes may lie anywhere, a number goes piece by piece.
template <class T, class Bytes>
RUDA_FUNCTION T load_bytes(Bytes&& array, int64_t offset
#ifdef RUDA_TWIN
    , int line = TWIN_LINE
#endif
) {
    uint8_t raw[sizeof(T)];
    for (int k = 0; k < int(sizeof(T)); ++k)
#ifdef RUDA_TWIN
        raw[k] = array[::simt::At(offset + k, line)];
#else
        raw[k] = array[offset + k];
#endif
    T x;
    __builtin_memcpy(&x, raw, sizeof(T));
    return x;
}
template <class T, class Bytes>
RUDA_FUNCTION void store_bytes(Bytes&& array, int64_t offset, T x
#ifdef RUDA_TWIN
    , int line = TWIN_LINE
#endif
) {
    uint8_t raw[sizeof(T)];
    __builtin_memcpy(raw, &x, sizeof(T));
    for (int k = 0; k < int(sizeof(T)); ++k)
#ifdef RUDA_TWIN
        array[::simt::At(offset + k, line)] = raw[k];
#else
        array[offset + k] = raw[k];
#endif
}

// ---- what all threads of a block, or lanes of a warp, do together ----

template <class Counter>
RUDA_FUNCTION int32_t count_true(bool x, Counter counter, uint32_t thread) {
    if (thread == 0) *counter = 0;
    asc_syncthreads();
    if (x) asc_atomic_add(counter, 1);
    asc_syncthreads();
    int32_t found = *counter;
    asc_syncthreads();
    return found;
}
template <class T>
RUDA_FUNCTION T exchange(T x, int32_t lane) {
    uint32_t words[(sizeof(T) + 3) / 4] = {};
    __builtin_memcpy(words, &x, sizeof(T));
    for (uint32_t& word : words) word = asc_shfl(word, lane);
    __builtin_memcpy(&x, words, sizeof(T));
    return x;
}
// Which lanes of the mask hold the same bits.
template <class T>
RUDA_FUNCTION uint32_t match(T x, uint32_t mask, uint32_t lanes) {
    uint32_t found = 0;
    for (uint32_t k = 0; k < lanes; ++k) {
        T other = exchange(x, int32_t(k));
        bool same = true;
        uint8_t a[sizeof(T)], b[sizeof(T)];
        __builtin_memcpy(a, &x, sizeof(T));
        __builtin_memcpy(b, &other, sizeof(T));
        for (int j = 0; j < int(sizeof(T)); ++j) same = same && a[j] == b[j];
        found |= uint32_t(same) << k;
    }
    return found & mask;
}

// ---- reports: see ruda/backends/cpu/reports.py for the buffer ----

template <class T> RUDA_FUNCTION int64_t word(T x) { return int64_t(x); }
template <> RUDA_FUNCTION int64_t word<float>(float x) { return int64_t(bits<uint32_t>(x)); }
template <> RUDA_FUNCTION int64_t word<double>(double x) { return bits<int64_t>(x); }
#ifdef RUDA_TWIN
template <class T> RUDA_FUNCTION int64_t word(const ::simt::Element<T, false>& x) { return word(T(x)); }
#endif

template <int N>
RUDA_FUNCTION void report(gm<int64_t> buffer, const int64_t (&words)[N]) {
    int64_t start = asc_atomic_add(&buffer[0], int64_t(N));
    if (start + N > buffer[1]) {
        asc_atomic_add(&buffer[2], int64_t(1));
        return;
    }
    for (int k = 0; k < N; ++k) buffer[3 + start + k] = words[k];
}
// Words: site, block, thread, indices, extents. Whether every index is inside; reports if not.
template <int N>
RUDA_FUNCTION bool inside(gm<int64_t> buffer, const int64_t (&words)[N]) {
    constexpr int axes = (N - 3) / 2;
    bool good = true;
    for (int k = 0; k < axes; ++k) good = good && words[3 + k] >= 0 && words[3 + k] < words[3 + axes + k];
    if (!good) report(buffer, words);
    return good;
}
template <class T, int N>
RUDA_FUNCTION T divisor(T y, gm<int64_t> buffer, const int64_t (&words)[N]) {
    if (y == 0) report(buffer, words);
    return y;
}

}  // namespace ruda
