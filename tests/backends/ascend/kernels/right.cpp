// Kernels that a dav-2201 chip runs as meant. Each synchronisation in them is needed: the tests take each away in turn.
#include "kernel_operator.h"
using namespace AscendC;

constexpr uint32_t TILE = 512;

#define LAUNCHER(NAME)                                                                                             \
    extern "C" int launch_##NAME(uint32_t blocks, void* stream, GM_ADDR x, GM_ADDR y, GM_ADDR out, uint32_t n,     \
                                 uint32_t m) {                                                                     \
        return twin::launch_vector(stream, blocks, [=] { NAME(x, y, out, n, m); });                                \
    }

inline uint32_t least(uint32_t a, uint32_t b) { return a < b ? a : b; }
inline uint32_t blocks_of(uint32_t bytes) { return (bytes + 31) / 32; }
inline DataCopyExtParams bytes_of(uint32_t bytes) { return DataCopyExtParams{1, bytes, 0, 0, 0}; }

// kernel saxpy: out = 2.5 x + y in double-buffered tiles with exact tails
extern "C" __global__ __aicore__ void saxpy(GM_ADDR xp, GM_ADDR yp, GM_ADDR op, uint32_t n, uint32_t) {
    GlobalTensor<float> x, y, out;
    x.SetGlobalBuffer((__gm__ float*)xp, n);
    y.SetGlobalBuffer((__gm__ float*)yp, n);
    out.SetGlobalBuffer((__gm__ float*)op, n);
    TPipe pipe;
    TQue<TPosition::VECIN, 2> qx, qy;
    TQue<TPosition::VECOUT, 2> qo;
    pipe.InitBuffer(qx, 2, TILE * sizeof(float));
    pipe.InitBuffer(qy, 2, TILE * sizeof(float));
    pipe.InitBuffer(qo, 2, TILE * sizeof(float));
    for (uint32_t at = GetBlockIdx() * TILE; at < n; at += GetBlockNum() * TILE) {
        int32_t count = int32_t(least(TILE, n - at));
        DataCopyExtParams length = bytes_of(count * sizeof(float));
        DataCopyPadExtParams<float> no_padding{false, 0, 0, 0.0f};
        LocalTensor<float> a = qx.AllocTensor<float>();
        DataCopyPad(a, x[at], length, no_padding);
        qx.EnQue(a);
        LocalTensor<float> b = qy.AllocTensor<float>();
        DataCopyPad(b, y[at], length, no_padding);
        qy.EnQue(b);
        a = qx.DeQue<float>();
        b = qy.DeQue<float>();
        LocalTensor<float> r = qo.AllocTensor<float>();
        Muls(r, a, 2.5f, count);
        PipeBarrier<PIPE_V>();
        Add(r, r, b, count);
        qx.FreeTensor(a);
        qy.FreeTensor(b);
        qo.EnQue(r);
        r = qo.DeQue<float>();
        DataCopyPad(out[at], r, length);
        qo.FreeTensor(r);
    }
}
LAUNCHER(saxpy)

// kernel softmax: of each of n rows of m columns, one row in the unified buffer
extern "C" __global__ __aicore__ void softmax(GM_ADDR xp, GM_ADDR, GM_ADDR op, uint32_t n, uint32_t m) {
    GlobalTensor<float> x, out;
    x.SetGlobalBuffer((__gm__ float*)xp);
    out.SetGlobalBuffer((__gm__ float*)op);
    TPipe pipe;
    TQue<TPosition::VECIN, 1> qi;
    TQue<TPosition::VECOUT, 1> qo;
    TBuf<TPosition::VECCALC> scratch_buffer, result_buffer;
    pipe.InitBuffer(qi, 2, m * sizeof(float));
    pipe.InitBuffer(qo, 2, m * sizeof(float));
    pipe.InitBuffer(scratch_buffer, blocks_of((m + 63) / 64 * sizeof(float)) * 32);
    pipe.InitBuffer(result_buffer, 32);
    LocalTensor<float> scratch = scratch_buffer.Get<float>(), result = result_buffer.Get<float>();
    int32_t count = int32_t(m);
    for (uint32_t row = GetBlockIdx(); row < n; row += GetBlockNum()) {
        LocalTensor<float> a = qi.AllocTensor<float>();
        DataCopyPad(a, x[row * m], bytes_of(m * sizeof(float)), DataCopyPadExtParams<float>{false, 0, 0, 0.0f});
        qi.EnQue(a);
        a = qi.DeQue<float>();
        LocalTensor<float> r = qo.AllocTensor<float>();
        ReduceMax(result, a, scratch, count);
        SetFlag<HardEvent::V_S>(EVENT_ID0);
        WaitFlag<HardEvent::V_S>(EVENT_ID0);
        float largest = result.GetValue(0);
        Adds(r, a, -largest, count);
        qi.FreeTensor(a);
        PipeBarrier<PIPE_V>();
        Exp(r, r, count);
        SetFlag<HardEvent::S_V>(EVENT_ID0);
        WaitFlag<HardEvent::S_V>(EVENT_ID0);
        PipeBarrier<PIPE_V>();
        ReduceSum(result, r, scratch, count);
        SetFlag<HardEvent::V_S>(EVENT_ID0);
        WaitFlag<HardEvent::V_S>(EVENT_ID0);
        float total = result.GetValue(0);
        SetFlag<HardEvent::S_V>(EVENT_ID0);
        WaitFlag<HardEvent::S_V>(EVENT_ID0);
        Muls(r, r, 1.0f / total, count);
        qo.EnQue(r);
        r = qo.DeQue<float>();
        DataCopyPad(out[row * m], r, bytes_of(m * sizeof(float)));
        qo.FreeTensor(r);
    }
}
LAUNCHER(softmax)

// kernel matmul: out[n, n] = x[n, m] @ y[m, n], a tile of 16 x 16 a block, a row of it as vector lanes
extern "C" __global__ __aicore__ void matmul(GM_ADDR xp, GM_ADDR yp, GM_ADDR op, uint32_t n, uint32_t m) {
    constexpr uint32_t T = 16;
    GlobalTensor<float> x, y, out;
    x.SetGlobalBuffer((__gm__ float*)xp);
    y.SetGlobalBuffer((__gm__ float*)yp);
    out.SetGlobalBuffer((__gm__ float*)op);
    TPipe pipe;
    TBuf<TPosition::VECIN> xb, yb;
    TBuf<TPosition::VECOUT> rb;
    pipe.InitBuffer(xb, T * T * sizeof(float));
    pipe.InitBuffer(yb, T * T * sizeof(float));
    pipe.InitBuffer(rb, T * T * sizeof(float));
    LocalTensor<float> a = xb.Get<float>(), b = yb.Get<float>(), r = rb.Get<float>();
    uint32_t across = (n + T - 1) / T;
    for (uint32_t g = GetBlockIdx(); g < across * across; g += GetBlockNum()) {
        uint32_t row = g / across * T, column = g % across * T;
        uint32_t rows = least(T, n - row), columns = least(T, n - column);
        Duplicate(r, 0.0f, int32_t(T * T));
        for (uint32_t k0 = 0; k0 < m; k0 += T) {
            uint32_t depth = least(T, m - k0);
            DataCopyPad(a, x[row * m + k0],
                        DataCopyExtParams{uint16_t(rows), depth * 4, (m - depth) * 4, 2 - blocks_of(depth * 4), 0},
                        DataCopyPadExtParams<float>{true, 0, uint8_t(-depth & 7), 0.0f});
            DataCopyPad(b, y[k0 * n + column],
                        DataCopyExtParams{uint16_t(depth), columns * 4, (n - columns) * 4, 2 - blocks_of(columns * 4), 0},
                        DataCopyPadExtParams<float>{true, 0, uint8_t(-columns & 7), 0.0f});
            PipeBarrier<PIPE_ALL>();
            for (uint32_t i = 0; i < rows; ++i)
                for (uint32_t k = 0; k < depth; ++k) {
                    Axpy(r[i * T], b[k * T], a.GetValue(i * T + k), int32_t(columns));
                    PipeBarrier<PIPE_V>();
                }
            PipeBarrier<PIPE_ALL>();
        }
        DataCopyPad(out[row * n + column], r,
                    DataCopyExtParams{uint16_t(rows), columns * 4, 2 - blocks_of(columns * 4), (n - columns) * 4, 0});
        SetFlag<HardEvent::MTE3_V>(EVENT_ID0);
        WaitFlag<HardEvent::MTE3_V>(EVENT_ID0);
    }
}
LAUNCHER(matmul)

// kernel choose: out = x < 0 ? y : x; lanes behind the end are defined before they are compared
extern "C" __global__ __aicore__ void choose(GM_ADDR xp, GM_ADDR yp, GM_ADDR op, uint32_t n, uint32_t) {
    GlobalTensor<float> x, y, out;
    x.SetGlobalBuffer((__gm__ float*)xp);
    y.SetGlobalBuffer((__gm__ float*)yp);
    out.SetGlobalBuffer((__gm__ float*)op);
    TPipe pipe;
    TQue<TPosition::VECIN, 1> qx, qy;
    TQue<TPosition::VECOUT, 1> qo;
    TBuf<TPosition::VECCALC> mask_buffer;
    pipe.InitBuffer(qx, 1, TILE * sizeof(float));
    pipe.InitBuffer(qy, 1, TILE * sizeof(float));
    pipe.InitBuffer(qo, 1, TILE * sizeof(float));
    pipe.InitBuffer(mask_buffer, TILE / 8);
    LocalTensor<uint8_t> mask = mask_buffer.Get<uint8_t>();
    for (uint32_t at = GetBlockIdx() * TILE; at < n; at += GetBlockNum() * TILE) {
        uint32_t count = least(TILE, n - at);
        DataCopyPadExtParams<float> no_padding{false, 0, 0, 0.0f};
        LocalTensor<float> a = qx.AllocTensor<float>();
        Duplicate(a, 0.0f, int32_t(TILE));
        SetFlag<HardEvent::V_MTE2>(EVENT_ID7);
        WaitFlag<HardEvent::V_MTE2>(EVENT_ID7);
        DataCopyPad(a, x[at], bytes_of(count * sizeof(float)),
                    DataCopyPadExtParams<float>{true, 0, uint8_t(-count & 7), 0.0f});
        qx.EnQue(a);
        LocalTensor<float> b = qy.AllocTensor<float>();
        DataCopyPad(b, y[at], bytes_of(count * sizeof(float)), no_padding);
        qy.EnQue(b);
        a = qx.DeQue<float>();
        CompareScalar(mask, a, 0.0f, CMPMODE::LT, (count + 63) / 64 * 64);
        b = qy.DeQue<float>();
        LocalTensor<float> r = qo.AllocTensor<float>();
        PipeBarrier<PIPE_V>();
        Select(r, mask, b, a, SELMODE::VSEL_TENSOR_TENSOR_MODE, count);
        qx.FreeTensor(a);
        qy.FreeTensor(b);
        qo.EnQue(r);
        r = qo.DeQue<float>();
        DataCopyPad(out[at], r, bytes_of(count * sizeof(float)));
        qo.FreeTensor(r);
    }
}
LAUNCHER(choose)

// kernel halves: out = x * y + x, rounded to half after each operation
extern "C" __global__ __aicore__ void halves(GM_ADDR xp, GM_ADDR yp, GM_ADDR op, uint32_t n, uint32_t) {
    GlobalTensor<half> x, y, out;
    x.SetGlobalBuffer((__gm__ half*)xp);
    y.SetGlobalBuffer((__gm__ half*)yp);
    out.SetGlobalBuffer((__gm__ half*)op);
    TPipe pipe;
    TQue<TPosition::VECIN, 1> qx, qy;
    TQue<TPosition::VECOUT, 1> qo;
    pipe.InitBuffer(qx, 2, TILE * sizeof(half));
    pipe.InitBuffer(qy, 2, TILE * sizeof(half));
    pipe.InitBuffer(qo, 2, TILE * sizeof(half));
    for (uint32_t at = GetBlockIdx() * TILE; at < n; at += GetBlockNum() * TILE) {
        int32_t count = int32_t(least(TILE, n - at));
        DataCopyPadExtParams<half> no_padding{false, 0, 0, half(0.0f)};
        LocalTensor<half> a = qx.AllocTensor<half>();
        DataCopyPad(a, x[at], bytes_of(count * sizeof(half)), no_padding);
        qx.EnQue(a);
        LocalTensor<half> b = qy.AllocTensor<half>();
        DataCopyPad(b, y[at], bytes_of(count * sizeof(half)), no_padding);
        qy.EnQue(b);
        a = qx.DeQue<half>();
        b = qy.DeQue<half>();
        LocalTensor<half> r = qo.AllocTensor<half>();
        Mul(r, a, b, count);
        PipeBarrier<PIPE_V>();
        Add(r, r, a, count);
        qx.FreeTensor(a);
        qy.FreeTensor(b);
        qo.EnQue(r);
        r = qo.DeQue<half>();
        DataCopyPad(out[at], r, bytes_of(count * sizeof(half)));
        qo.FreeTensor(r);
    }
}
LAUNCHER(halves)

// kernel brains: out = x + y on bfloat16, through float
extern "C" __global__ __aicore__ void brains(GM_ADDR xp, GM_ADDR yp, GM_ADDR op, uint32_t n, uint32_t) {
    GlobalTensor<bfloat16_t> x, y, out;
    x.SetGlobalBuffer((__gm__ bfloat16_t*)xp);
    y.SetGlobalBuffer((__gm__ bfloat16_t*)yp);
    out.SetGlobalBuffer((__gm__ bfloat16_t*)op);
    TPipe pipe;
    TQue<TPosition::VECIN, 1> qx, qy;
    TQue<TPosition::VECOUT, 1> qo;
    TBuf<TPosition::VECCALC> wide_x, wide_y;
    pipe.InitBuffer(qx, 1, TILE * sizeof(bfloat16_t));
    pipe.InitBuffer(qy, 1, TILE * sizeof(bfloat16_t));
    pipe.InitBuffer(qo, 1, TILE * sizeof(bfloat16_t));
    pipe.InitBuffer(wide_x, TILE * sizeof(float));
    pipe.InitBuffer(wide_y, TILE * sizeof(float));
    LocalTensor<float> u = wide_x.Get<float>(), v = wide_y.Get<float>();
    for (uint32_t at = GetBlockIdx() * TILE; at < n; at += GetBlockNum() * TILE) {
        int32_t count = int32_t(least(TILE, n - at));
        DataCopyPadExtParams<bfloat16_t> no_padding{false, 0, 0, bfloat16_t(0.0f)};
        LocalTensor<bfloat16_t> a = qx.AllocTensor<bfloat16_t>();
        DataCopyPad(a, x[at], bytes_of(count * sizeof(bfloat16_t)), no_padding);
        qx.EnQue(a);
        LocalTensor<bfloat16_t> b = qy.AllocTensor<bfloat16_t>();
        DataCopyPad(b, y[at], bytes_of(count * sizeof(bfloat16_t)), no_padding);
        qy.EnQue(b);
        a = qx.DeQue<bfloat16_t>();
        b = qy.DeQue<bfloat16_t>();
        Cast(u, a, RoundMode::CAST_NONE, count);
        Cast(v, b, RoundMode::CAST_NONE, count);
        qx.FreeTensor(a);
        qy.FreeTensor(b);
        PipeBarrier<PIPE_V>();
        Add(u, u, v, count);
        LocalTensor<bfloat16_t> r = qo.AllocTensor<bfloat16_t>();
        PipeBarrier<PIPE_V>();
        Cast(r, u, RoundMode::CAST_RINT, count);
        qo.EnQue(r);
        r = qo.DeQue<bfloat16_t>();
        DataCopyPad(out[at], r, bytes_of(count * sizeof(bfloat16_t)));
        qo.FreeTensor(r);
    }
}
LAUNCHER(brains)

// kernel totals: out[0:m] = the sum of n rows, each row added to global memory by its copy
extern "C" __global__ __aicore__ void totals(GM_ADDR xp, GM_ADDR, GM_ADDR op, uint32_t n, uint32_t m) {
    GlobalTensor<float> x, out;
    x.SetGlobalBuffer((__gm__ float*)xp);
    out.SetGlobalBuffer((__gm__ float*)op);
    TPipe pipe;
    TBuf<TPosition::VECIN> row_buffer;
    pipe.InitBuffer(row_buffer, m * sizeof(float));
    LocalTensor<float> a = row_buffer.Get<float>();
    for (uint32_t row = GetBlockIdx(); row < n; row += GetBlockNum()) {
        DataCopyPad(a, x[row * m], bytes_of(m * sizeof(float)), DataCopyPadExtParams<float>{false, 0, 0, 0.0f});
        SetFlag<HardEvent::MTE2_MTE3>(EVENT_ID0);
        WaitFlag<HardEvent::MTE2_MTE3>(EVENT_ID0);
        SetAtomicAdd<float>();
        DataCopyPad(out, a, bytes_of(m * sizeof(float)));
        SetAtomicNone();
        SetFlag<HardEvent::MTE3_MTE2>(EVENT_ID0);
        WaitFlag<HardEvent::MTE3_MTE2>(EVENT_ID0);
    }
}
LAUNCHER(totals)

// kernel backwards: out[i] = x[n - 1 - i], the scalar unit reads one by one, 16 elements are copied out at once
extern "C" __global__ __aicore__ void backwards(GM_ADDR xp, GM_ADDR, GM_ADDR op, uint32_t n, uint32_t) {
    constexpr uint32_t T = 16;
    GlobalTensor<float> x, out;
    x.SetGlobalBuffer((__gm__ float*)xp);
    out.SetGlobalBuffer((__gm__ float*)op);
    TPipe pipe;
    TBuf<TPosition::VECOUT> buffer;
    pipe.InitBuffer(buffer, T * sizeof(float));
    LocalTensor<float> r = buffer.Get<float>();
    for (uint32_t at = GetBlockIdx() * T; at < n; at += GetBlockNum() * T) {
        uint32_t count = least(T, n - at);
        for (uint32_t i = 0; i < count; ++i) r.SetValue(i, x.GetValue(n - 1 - at - i));
        SetFlag<HardEvent::S_MTE3>(EVENT_ID0);
        WaitFlag<HardEvent::S_MTE3>(EVENT_ID0);
        DataCopyPad(out[at], r, bytes_of(count * sizeof(float)));
        SetFlag<HardEvent::MTE3_S>(EVENT_ID0);
        WaitFlag<HardEvent::MTE3_S>(EVENT_ID0);
    }
}
LAUNCHER(backwards)

// kernel lines: out[i] = i by scalar stores; a block stores to whole cache lines of its own and writes them back
extern "C" __global__ __aicore__ void lines(GM_ADDR, GM_ADDR, GM_ADDR op, uint32_t n, uint32_t) {
    GlobalTensor<int32_t> out;
    out.SetGlobalBuffer((__gm__ int32_t*)op);
    for (uint32_t at = GetBlockIdx() * 16; at < n; at += GetBlockNum() * 16) {
        for (uint32_t i = at; i < least(at + 16, n); ++i) out.SetValue(i, int32_t(i));
        DataCacheCleanAndInvalid<int32_t, CacheLine::SINGLE_CACHE_LINE, DcciDst::CACHELINE_OUT>(out[at]);
    }
}
LAUNCHER(lines)

// kernel floors: out = int64(floor(x)), through int32
extern "C" __global__ __aicore__ void floors(GM_ADDR xp, GM_ADDR, GM_ADDR op, uint32_t n, uint32_t) {
    GlobalTensor<float> x;
    GlobalTensor<int64_t> out;
    x.SetGlobalBuffer((__gm__ float*)xp);
    out.SetGlobalBuffer((__gm__ int64_t*)op);
    TPipe pipe;
    TQue<TPosition::VECIN, 1> qx;
    TQue<TPosition::VECOUT, 1> qo;
    TBuf<TPosition::VECCALC> middle;
    pipe.InitBuffer(qx, 1, TILE * sizeof(float));
    pipe.InitBuffer(qo, 1, TILE * sizeof(int64_t));
    pipe.InitBuffer(middle, TILE * sizeof(int32_t));
    LocalTensor<int32_t> w = middle.Get<int32_t>();
    for (uint32_t at = GetBlockIdx() * TILE; at < n; at += GetBlockNum() * TILE) {
        uint32_t count = least(TILE, n - at);
        LocalTensor<float> a = qx.AllocTensor<float>();
        DataCopyPad(a, x[at], bytes_of(count * sizeof(float)), DataCopyPadExtParams<float>{false, 0, 0, 0.0f});
        qx.EnQue(a);
        a = qx.DeQue<float>();
        Cast(w, a, RoundMode::CAST_FLOOR, count);
        qx.FreeTensor(a);
        LocalTensor<int64_t> r = qo.AllocTensor<int64_t>();
        PipeBarrier<PIPE_V>();
        Cast(r, w, RoundMode::CAST_NONE, count);
        qo.EnQue(r);
        r = qo.DeQue<int64_t>();
        DataCopyPad(out[at], r, bytes_of(count * sizeof(int64_t)));
        qo.FreeTensor(r);
    }
}
LAUNCHER(floors)
