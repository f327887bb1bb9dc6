// The SIMT names of 950-class chips for a host compiler: blocks, threads, barriers, atomics, lanes.
//
// Our own code, from the public documentation: only the names that emitted kernels use are here. The
// bodies that need a scheduler are compiled once, in simt_runtime.cc, so that a kernel includes no
// more than declarations and compiles in about a tenth of a second.
//
// The rule: whatever a kernel does wrong ends in `fault`, with the line of the kernel's text, and
// never in a crash. Pointers to global memory know the bounds of their array; arrays in the unified
// buffer and in private memory know their shapes; a barrier must be reached by all threads of a block.
#pragma once
#include <stddef.h>
#include <stdint.h>

#define RUDA_TWIN 1
#define __global__
#define __gm__
// One block at a time on each thread of the host. What follows is `array<...>`, and this one is watched.
#define __ubuf__ thread_local ::simt::unified::
#define __launch_bounds__(threads)
#define __simt_callee__

#define TWIN_LINE __builtin_LINE()

namespace simt {

struct Dim {
    uint32_t x, y, z;
};

// The thread of the block that this thread of the host runs.
struct Here {
    Dim thread, block, block_dim, grid_dim;
    uint32_t linear;
    // For races: barriers of the block, exchanges of the warp, fences of the thread so far.
    uint32_t epoch, phase;
    uint16_t fence;
};
extern __thread Here here;

// Ends the launch. `rule` is a key of RULES in twin/__init__.py, `format` takes %lld twice.
[[noreturn]] void fault(const char* rule, int line, const char* format, long long a = 0, long long b = 0);

void fence();
void wait_block(int line);             // all threads of the block
uint64_t* lanes(int line, uint64_t x); // waits for the warp; the values that its lanes brought
uint32_t lanes_there();                // how many lanes the warp has

// Runs body(data) for every thread of the blocks from `first` on. words: -, block 3, -, dynamic bytes.
int32_t run(const int64_t* grid, const int64_t* first, const int64_t* words, bool meets,
            void (*body)(void*), void* data);

template <class Body>
int32_t launch(const int64_t* grid, const int64_t* first, const int64_t* words, bool meets, Body body) {
    return run(grid, first, words, meets, [](void* data) { (*static_cast<Body*>(data))(); }, &body);
}

template <class T, bool>
struct Element;

// An index and the line that it stands in: the line is that of the expression it is made in.
struct At {
    int64_t index;
    int line;
    At(int64_t i, int where = TWIN_LINE) : index(i), line(where) {}
    template <class T>
    At(const Element<T, false>& i, int where = TWIN_LINE) : index(T(i)), line(where) {}
};

// A pointer to global memory with the bounds of the array that it came from.
template <class T>
struct Global {
    T* data;
    int64_t low, high;
    T& operator[](At at) const {
        int64_t address = reinterpret_cast<int64_t>(data) + at.index * int64_t(sizeof(T));
        if (address < low || address > high - int64_t(sizeof(T)))
            fault("global-bounds", at.line, "element %lld of an array is outside of its %lld bytes",
                  at.index, high - low);
        return data[at.index];
    }
};

// An array in private memory.
template <class T, int N, int... M>
struct Shaped {
    Shaped<T, M...> rows[N];
    Shaped<T, M...>& operator[](At at) {
        if (at.index < 0 || at.index >= N)
            fault("buffer-bounds", at.line, "index %lld is outside of an axis of %lld", at.index, N);
        return rows[at.index];
    }
};
template <class T, int N>
struct Shaped<T, N> {
    T rows[N];
    T& operator[](At at) {
        if (at.index < 0 || at.index >= N)
            fault("buffer-bounds", at.line, "index %lld is outside of an axis of %lld", at.index, N);
        return rows[at.index];
    }
};

char* dynamic_memory();
int64_t dynamic_bytes();

}  // namespace simt

#define threadIdx (::simt::here.thread)
#define blockIdx (::simt::here.block)
#define blockDim (::simt::here.block_dim)
#define gridDim (::simt::here.grid_dim)
constexpr int32_t warpSize = 32;

#include "simt_shared.h"

inline void asc_syncthreads(int line = TWIN_LINE) { simt::wait_block(line); }
inline void asc_threadfence() { simt::fence(); }
inline void asc_threadfence_block() { simt::fence(); }

// ---- lanes: 32-bit values, among whole warps ----

inline uint32_t asc_ballot(bool x, int line = TWIN_LINE) {
    uint64_t* found = simt::lanes(line, x);
    uint32_t mask = 0;
    for (uint32_t k = 0; k < simt::lanes_there(); ++k) mask |= uint32_t(found[k] != 0) << k;
    return mask;
}
inline uint32_t asc_shfl(uint32_t x, int32_t lane, int line = TWIN_LINE) {
    uint64_t* found = simt::lanes(line, x);
    if (lane < 0 || uint32_t(lane) >= simt::lanes_there())
        simt::fault("range", line, "lane %lld of a warp of %lld", lane, simt::lanes_there());
    return uint32_t(found[lane]);
}

// ---- atomics: the dtypes that the chip has ----

#define TWIN_ATOMIC(T)                                                                              \
    inline T asc_atomic_add(T* p, T x) { return __atomic_fetch_add(p, x, __ATOMIC_SEQ_CST); }       \
    inline T asc_atomic_sub(T* p, T x) { return __atomic_fetch_sub(p, x, __ATOMIC_SEQ_CST); }       \
    inline T asc_atomic_and(T* p, T x) { return __atomic_fetch_and(p, x, __ATOMIC_SEQ_CST); }       \
    inline T asc_atomic_or(T* p, T x) { return __atomic_fetch_or(p, x, __ATOMIC_SEQ_CST); }         \
    inline T asc_atomic_xor(T* p, T x) { return __atomic_fetch_xor(p, x, __ATOMIC_SEQ_CST); }       \
    inline T asc_atomic_exch(T* p, T x) { return __atomic_exchange_n(p, x, __ATOMIC_SEQ_CST); }     \
    inline T asc_atomic_cas(T* p, T expected, T x) {                                                \
        __atomic_compare_exchange_n(p, &expected, x, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);    \
        return expected;                                                                            \
    }                                                                                               \
    inline T asc_atomic_min(T* p, T x) {                                                            \
        T old = __atomic_load_n(p, __ATOMIC_SEQ_CST);                                               \
        while (x < old &&                                                                           \
               !__atomic_compare_exchange_n(p, &old, x, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) \
            ;                                                                                       \
        return old;                                                                                 \
    }                                                                                               \
    inline T asc_atomic_max(T* p, T x) {                                                            \
        T old = __atomic_load_n(p, __ATOMIC_SEQ_CST);                                               \
        while (x > old &&                                                                           \
               !__atomic_compare_exchange_n(p, &old, x, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) \
            ;                                                                                       \
        return old;                                                                                 \
    }
TWIN_ATOMIC(int32_t)
TWIN_ATOMIC(uint32_t)
TWIN_ATOMIC(int64_t)
TWIN_ATOMIC(uint64_t)
#undef TWIN_ATOMIC

inline float asc_atomic_add(float* p, float x) {
    uint32_t* word = reinterpret_cast<uint32_t*>(p);
    uint32_t old = __atomic_load_n(word, __ATOMIC_SEQ_CST), sum;
    float before;
    do {
        __builtin_memcpy(&before, &old, 4);
        float after = before + x;
        __builtin_memcpy(&sum, &after, 4);
    } while (!__atomic_compare_exchange_n(word, &old, sum, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST));
    return before;
}

// ---- mathematics ----

#define TWIN_MATH(name)                                        \
    inline float name##f(float x) { return __builtin_##name##f(x); } \
    inline double name(double x) { return __builtin_##name(x); }
TWIN_MATH(sqrt) TWIN_MATH(floor) TWIN_MATH(ceil) TWIN_MATH(trunc) TWIN_MATH(rint) TWIN_MATH(fabs)
TWIN_MATH(exp) TWIN_MATH(exp2) TWIN_MATH(log) TWIN_MATH(log2) TWIN_MATH(sin) TWIN_MATH(cos)
TWIN_MATH(tan) TWIN_MATH(sinh) TWIN_MATH(cosh) TWIN_MATH(tanh) TWIN_MATH(tgamma) TWIN_MATH(lgamma)
#undef TWIN_MATH
#define TWIN_MATH(name)                                                       \
    inline float name##f(float x, float y) { return __builtin_##name##f(x, y); } \
    inline double name(double x, double y) { return __builtin_##name(x, y); }
TWIN_MATH(copysign) TWIN_MATH(fmod) TWIN_MATH(remainder) TWIN_MATH(pow)
#undef TWIN_MATH
inline float rsqrtf(float x) { return 1.0f / __builtin_sqrtf(x); }
inline float fmaf(float x, float y, float z) { return __builtin_fmaf(x, y, z); }
inline double fma(double x, double y, double z) { return __builtin_fma(x, y, z); }
