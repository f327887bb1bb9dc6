// Kernels that a dav-2201 chip would run wrongly, or not at all; each breaks one rule. `here` marks the line that the
// twin has to name. Arrays have 64 elements of float, and two blocks run.
#include "kernel_operator.h"
using namespace AscendC;

const DataCopyPadExtParams<float> no_padding{false, 0, 0, 0.0f};
inline DataCopyExtParams bytes_of(uint32_t bytes) { return DataCopyExtParams{1, bytes, 0, 0, 0}; }

struct Arrays {
    GlobalTensor<float> x, y, out;
    Arrays(GM_ADDR xp, GM_ADDR yp, GM_ADDR op) {
        x.SetGlobalBuffer((__gm__ float*)xp);
        y.SetGlobalBuffer((__gm__ float*)yp);
        out.SetGlobalBuffer((__gm__ float*)op);
    }
};

// Two buffers of 64 elements that copies can use, and one for calculation.
struct Buffers {
    TPipe pipe;
    TBuf<TPosition::VECIN> in;
    TBuf<TPosition::VECOUT> to;
    TBuf<TPosition::VECCALC> between;
    LocalTensor<float> a, r, w;
    Buffers() {
        pipe.InitBuffer(in, 256);
        pipe.InitBuffer(to, 256);
        pipe.InitBuffer(between, 256);
        a = in.Get<float>();
        r = to.Get<float>();
        w = between.Get<float>();
    }
};

#define KERNEL(NAME)                                                                              \
    static void NAME(Arrays g);                                                                   \
    extern "C" int launch_##NAME(uint32_t blocks, void* stream, GM_ADDR x, GM_ADDR y, GM_ADDR out) { \
        return twin::launch_vector(stream, blocks, [=] { NAME(Arrays(x, y, out)); });             \
    }                                                                                             \
    static void NAME(Arrays g)

// breaks hazard: dependent vector instructions have a barrier between them
KERNEL(vector_after_vector) {
    Buffers u;
    Duplicate(u.w, 1.0f, 64);
    Adds(u.w, u.w, 1.0f, 64);  // here
}

// breaks hazard: the vector unit waits for the copy that it reads
KERNEL(vector_before_copy) {
    Buffers u;
    DataCopyPad(u.a, g.x, bytes_of(256), no_padding);
    Adds(u.w, u.a, 1.0f, 64);  // here
}

// breaks hazard: a copy waits for the vector unit
KERNEL(copy_out_before_vector) {
    Buffers u;
    Duplicate(u.r, 1.0f, 64);
    DataCopyPad(g.out, u.r, bytes_of(256));  // here
}

// breaks hazard: a flag orders the two pipes in its name only
KERNEL(flag_of_another_pair) {
    Buffers u;
    DataCopyPad(u.a, g.x, bytes_of(256), no_padding);
    SetFlag<HardEvent::MTE2_S>(EVENT_ID0);
    WaitFlag<HardEvent::MTE2_S>(EVENT_ID0);
    Adds(u.w, u.a, 1.0f, 64);  // here
}

// breaks hazard: the next copy waits until the vector unit has read the last
KERNEL(reused_too_early) {
    Buffers u;
    for (int i = 0; i < 2; ++i) {
        DataCopyPad(u.a, g.x, bytes_of(256), no_padding);  // here
        SetFlag<HardEvent::MTE2_V>(EVENT_ID0);
        WaitFlag<HardEvent::MTE2_V>(EVENT_ID0);
        Adds(u.w, u.a, 1.0f, 64);
    }
}

// breaks hazard: the scalar unit waits for the reduction that it reads
KERNEL(scalar_reads_early) {
    Buffers u;
    Duplicate(u.w, 1.0f, 64);
    float first = u.w.GetValue(0);  // here
    (void)first;
}

// breaks hazard: the scalar unit waits until the vector unit has read
KERNEL(scalar_overwrites_early) {
    Buffers u;
    Duplicate(u.w, 1.0f, 64);
    PipeBarrier<PIPE_V>();
    Adds(u.r, u.w, 1.0f, 64);
    u.w.SetValue(0, 2.0f);  // here
}

// breaks hazard: what a copy out wrote is copied in again after a flag
KERNEL(read_back) {
    Buffers u;
    Duplicate(u.r, 1.0f, 64);
    PipeBarrier<PIPE_ALL>();
    DataCopyPad(g.out, u.r, bytes_of(256));
    DataCopyPad(u.a, g.out, bytes_of(128), no_padding);  // here
}

// breaks stale-cache: the scalar unit's cache does not see what a copy wrote
KERNEL(stale_line) {
    Buffers u;
    float before = g.out.GetValue(0);
    Duplicate(u.r, before, 64);
    PipeBarrier<PIPE_ALL>();
    DataCopyPad(g.out, u.r, bytes_of(256));
    PipeBarrier<PIPE_ALL>();
    float after = g.out.GetValue(1);  // here
    (void)after;
}

// breaks global-bounds: the tail is copied as long as it is
KERNEL(past_the_array) {
    Buffers u;
    DataCopyPad(u.a, g.x[32], bytes_of(256), no_padding);  // here
}

// breaks global-bounds: an offset of one array does not reach into another
KERNEL(into_another_array) {
    Buffers u;
    int64_t far = (int64_t(g.y.at.address) - int64_t(g.x.at.address)) / int64_t(sizeof(float));
    DataCopyPad(u.a, g.x[far], bytes_of(256), no_padding);  // here
}

// breaks global-bounds: a scalar read is in the array
KERNEL(scalar_past_the_array) {
    float value = g.x.GetValue(64);  // here
    (void)value;
}

// breaks read-only: an input is not written
KERNEL(writes_an_input) {
    Buffers u;
    Duplicate(u.r, 1.0f, 64);
    PipeBarrier<PIPE_ALL>();
    DataCopyPad(g.x, u.r, bytes_of(256));  // here
}

// breaks capacity: all buffers fit into the unified buffer
KERNEL(too_much) {
    TPipe pipe;
    TBuf<TPosition::VECCALC> first, second;
    pipe.InitBuffer(first, 100000);
    pipe.InitBuffer(second, 100000);  // here
}

// breaks capacity: the queues of a position have at most eight buffers: there are eight events
KERNEL(too_many_buffers) {
    TPipe pipe;
    TQue<TPosition::VECIN, 2> q[5];
    for (auto& one : q)
        pipe.InitBuffer(one, 2, 256);  // here
}

// breaks buffer-bounds: an instruction stays in its buffer, even if the next one is free
KERNEL(past_the_buffer) {
    Buffers u;
    Duplicate(u.a, 1.0f, 72);  // here
}

// breaks buffer-bounds: a reduction's scratch has an element for each 256 bytes, in blocks of 32
KERNEL(small_scratch) {
    TPipe pipe;
    TBuf<TPosition::VECCALC> big, small;
    pipe.InitBuffer(big, 4096);
    pipe.InitBuffer(small, 64);
    LocalTensor<float> a = big.Get<float>(), s = small.Get<float>();
    Duplicate(a, 1.0f, 1024);
    PipeBarrier<PIPE_V>();
    ReduceSum(s, a, s[8], 1024);  // here
}

// breaks alignment: a vector operand begins at a multiple of 32 bytes
KERNEL(misaligned_operand) {
    Buffers u;
    Duplicate(u.w[1], 1.0f, 8);  // here
}

// breaks alignment: a copy begins at a multiple of 32 bytes of the unified buffer
KERNEL(misaligned_copy) {
    Buffers u;
    DataCopyPad(u.a[4], g.x, bytes_of(16), no_padding);  // here
}

// breaks alignment: DataCopy takes whole blocks of 32 bytes
KERNEL(broken_block) {
    Buffers u;
    DataCopy(u.a, g.x, 9);  // here
}

// breaks undefined: lanes that nothing wrote are not computed on
KERNEL(lanes_behind_the_end) {
    Buffers u;
    DataCopyPad(u.a, g.x, bytes_of(20), no_padding);
    PipeBarrier<PIPE_ALL>();
    Adds(u.w, u.a, 1.0f, 8);  // here
}

// breaks undefined: a buffer from AllocTensor does not keep what an earlier tile left
KERNEL(fresh_buffer) {
    TPipe pipe;
    TQue<TPosition::VECOUT, 1> q;
    pipe.InitBuffer(q, 1, 256);
    for (int i = 0; i < 2; ++i) {
        LocalTensor<float> r = q.AllocTensor<float>();
        if (i == 0) Duplicate(r, 1.0f, 64);
        q.EnQue(r);
        r = q.DeQue<float>();
        DataCopyPad(g.out, r, bytes_of(256));  // here
        q.FreeTensor(r);
    }
}

// breaks queue: DeQue takes what EnQue gave
KERNEL(not_enqueued) {
    TPipe pipe;
    TQue<TPosition::VECIN, 1> q;
    pipe.InitBuffer(q, 2, 256);
    LocalTensor<float> a = q.AllocTensor<float>();
    DataCopyPad(a, g.x, bytes_of(256), no_padding);
    a = q.DeQue<float>();  // here
}

// breaks queue: each buffer is given back
KERNEL(not_freed) {
    TPipe pipe;
    TQue<TPosition::VECIN, 1> q;
    pipe.InitBuffer(q, 1, 256);
    for (int i = 0; i < 2; ++i) {
        LocalTensor<float> a = q.AllocTensor<float>();  // here
        DataCopyPad(a, g.x, bytes_of(256), no_padding);
        q.EnQue(a);
        a = q.DeQue<float>();
    }
}

// breaks queue: each buffer is given back, the last one too
KERNEL(freed_at_the_end) {
    TPipe pipe;
    TQue<TPosition::VECIN, 1> q;
    pipe.InitBuffer(q, 1, 256);
    LocalTensor<float> a = q.AllocTensor<float>();
    DataCopyPad(a, g.x, bytes_of(256), no_padding);
    q.EnQue(a);
    a = q.DeQue<float>();  // here
}

// breaks queue: a tensor is not used after FreeTensor
KERNEL(used_after_free) {
    TPipe pipe;
    TQue<TPosition::VECIN, 1> q;
    pipe.InitBuffer(q, 1, 256);
    LocalTensor<float> a = q.AllocTensor<float>();
    DataCopyPad(a, g.x, bytes_of(256), no_padding);
    q.EnQue(a);
    a = q.DeQue<float>();
    q.FreeTensor(a);
    Relu(a, a, 64);  // here
}

// breaks queue: a tensor in a queue is not touched
KERNEL(used_while_queued) {
    TPipe pipe;
    TQue<TPosition::VECIN, 1> q;
    pipe.InitBuffer(q, 1, 256);
    LocalTensor<float> a = q.AllocTensor<float>();
    DataCopyPad(a, g.x, bytes_of(256), no_padding);
    q.EnQue(a);
    Relu(a, a, 64);  // here
}

// breaks queue: a tensor goes back to the queue that it came from
KERNEL(wrong_queue) {
    TPipe pipe;
    TQue<TPosition::VECIN, 1> q;
    TQue<TPosition::VECOUT, 1> p;
    pipe.InitBuffer(q, 1, 256);
    pipe.InitBuffer(p, 1, 256);
    LocalTensor<float> a = q.AllocTensor<float>();
    p.EnQue(a);  // here
}

// breaks queue: a queue holds as many tensors as its depth
KERNEL(too_deep) {
    TPipe pipe;
    TQue<TPosition::VECIN, 1> q;
    pipe.InitBuffer(q, 2, 256);
    for (int i = 0; i < 2; ++i) {
        LocalTensor<float> a = q.AllocTensor<float>();
        DataCopyPad(a, g.x, bytes_of(256), no_padding);
        q.EnQue(a);  // here
    }
}

// breaks queue: a queue has InitBuffer before it is used
KERNEL(no_buffer) {
    TPipe pipe;
    TQue<TPosition::VECIN, 1> q;
    LocalTensor<float> a = q.AllocTensor<float>();  // here
    (void)g;
}

// breaks flag: a WaitFlag has its SetFlag
KERNEL(wait_alone) {
    WaitFlag<HardEvent::V_S>(EVENT_ID0);  // here
    (void)g;
}

// breaks flag: a flag is waited for before it is set again
KERNEL(set_twice) {
    SetFlag<HardEvent::V_S>(EVENT_ID0);
    SetFlag<HardEvent::V_S>(EVENT_ID0);  // here
    (void)g;
}

// breaks flag: a flag is not left set at the end
KERNEL(set_alone) {
    SetFlag<HardEvent::V_S>(EVENT_ID1);  // here
    (void)g;
}

// breaks flag: event ids of queues are not used by hand
KERNEL(flag_of_a_queue) {
    TPipe pipe;
    TQue<TPosition::VECIN, 1> q;
    pipe.InitBuffer(q, 1, 256);
    LocalTensor<float> a = q.AllocTensor<float>();
    SetFlag<HardEvent::MTE2_V>(EVENT_ID0);
    q.EnQue(a);  // here
    (void)g;
}

// breaks overlap: destination and source are one or apart
KERNEL(overlap_in_part) {
    Buffers u;
    Duplicate(u.w, 1.0f, 64);
    PipeBarrier<PIPE_V>();
    Adds(u.w[8], u.w, 1.0f, 32);  // here
}

// breaks compare-size: Compare takes multiples of 256 bytes
KERNEL(compare_a_tail) {
    Buffers u;
    Duplicate(u.w, 1.0f, 64);
    PipeBarrier<PIPE_V>();
    CompareScalar(u.r.ReinterpretCast<uint8_t>(), u.w, 0.0f, CMPMODE::LT, 60);  // here
}

// breaks mode: int32 is compared for equality only
KERNEL(compare_integers) {
    Buffers u;
    Duplicate(u.w, 1.0f, 64);
    PipeBarrier<PIPE_V>();
    CompareScalar(u.r.ReinterpretCast<uint8_t>(), u.w.ReinterpretCast<int32_t>(), int32_t(0), CMPMODE::LT, 64);  // here
}

// breaks mode: a Select of a scalar has the mode for one
KERNEL(select_in_another_mode) {
    Buffers u;
    Duplicate(u.w, 1.0f, 64);
    PipeBarrier<PIPE_V>();
    Select(u.w, u.w.ReinterpretCast<uint8_t>(), u.w, 0.0f, SELMODE::VSEL_TENSOR_TENSOR_MODE, 64);  // here
}

// breaks mode: float to int32 rounds in some way
KERNEL(cast_without_rounding) {
    Buffers u;
    Duplicate(u.w, 1.0f, 64);
    PipeBarrier<PIPE_V>();
    Cast(u.r.ReinterpretCast<int32_t>(), u.w, RoundMode::CAST_NONE, 64);  // here
}

// breaks range: a copy has at most 4095 rows
KERNEL(too_many_rows) {
    Buffers u;
    DataCopyPad(u.a, g.x, DataCopyExtParams{5000, 4, 0, 0, 0}, no_padding);  // here
}

// breaks position: copies go to VECIN or VECOUT
KERNEL(copy_to_calculation) {
    Buffers u;
    DataCopyPad(u.w, g.x, bytes_of(256), no_padding);  // here
}

// breaks atomic: the atomic mode is off at the end
KERNEL(atomic_left_on) {
    SetAtomicAdd<float>();  // here
    (void)g;
}

// breaks atomic: the atomic mode is for the dtype that is copied
KERNEL(atomic_of_another_type) {
    Buffers u;
    Duplicate(u.r, 1.0f, 64);
    PipeBarrier<PIPE_ALL>();
    SetAtomicAdd<int32_t>();
    DataCopyPad(g.out, u.r, bytes_of(256));  // here
    SetAtomicNone();
}

// breaks cache: scalar stores to global memory are written back
KERNEL(not_written_back) {
    if (GetBlockIdx() == 0) g.out.SetValue(0, 1.0f);  // here
}

// breaks cache: two blocks do not store to one cache line
KERNEL(shared_line) {
    g.out.SetValue(GetBlockIdx(), 1.0f);
    DataCacheCleanAndInvalid<float, CacheLine::SINGLE_CACHE_LINE, DcciDst::CACHELINE_OUT>(g.out);
}

// breaks cache: a block does not copy to a cache line that another one stores to
KERNEL(copied_line) {
    if (GetBlockIdx() == 0) {
        g.out.SetValue(0, 1.0f);
        DataCacheCleanAndInvalid<float, CacheLine::SINGLE_CACHE_LINE, DcciDst::CACHELINE_OUT>(g.out);
        return;
    }
    Buffers u;
    Duplicate(u.r, 1.0f, 8);
    PipeBarrier<PIPE_ALL>();
    DataCopyPad(g.out[8], u.r, bytes_of(32));
}

// breaks queue: there is one TPipe at a time
KERNEL(two_pipes) {
    TPipe first;
    TPipe second;
    (void)g;
}
