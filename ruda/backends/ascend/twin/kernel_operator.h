// The part of the AscendC API that kernels for the 910B class (dav-2201) may use, over the twin's vector unit.
//
// Our own code, written from the public documentation: names and meanings are the vendor's, nothing else is. A name or
// an element type that is missing here is a compile error, which is how the twin refuses what the chip has not, or what
// its documentation leaves open. What is known of the chip's arithmetic but not verified on one: integer overflow
// wraps, Max and Min propagate NaN, multiply-add rounds twice.
#pragma once
#include "vector_unit.h"

using GM_ADDR = uint8_t*;
enum pipe_t { PIPE_S, PIPE_V, PIPE_M, PIPE_MTE1, PIPE_MTE2, PIPE_MTE3, PIPE_ALL };
enum event_t { EVENT_ID0, EVENT_ID1, EVENT_ID2, EVENT_ID3, EVENT_ID4, EVENT_ID5, EVENT_ID6, EVENT_ID7 };

namespace AscendC {

using twin::Line;

enum class TPosition : uint8_t { GM, VECIN, VECOUT, VECCALC };
using QuePosition = TPosition;
enum class CMPMODE : uint8_t { LT, GT, EQ, LE, GE, NE };
enum class SELMODE : uint8_t { VSEL_CMPMASK_SPR, VSEL_TENSOR_SCALAR_MODE, VSEL_TENSOR_TENSOR_MODE };
enum class RoundMode : uint8_t { CAST_NONE, CAST_RINT, CAST_FLOOR, CAST_CEIL, CAST_ROUND, CAST_TRUNC, CAST_ODD };
enum class CacheLine : uint8_t { SINGLE_CACHE_LINE, ENTIRE_DATA_CACHE };
enum class DcciDst : uint8_t { CACHELINE_ALL, CACHELINE_UB, CACHELINE_OUT, CACHELINE_ATOMIC };
enum class HardEvent : uint8_t {  // the kinds that exist between the units of a vector core
    MTE2_V, V_MTE2, MTE3_V, V_MTE3, V_V, MTE3_MTE2, MTE2_MTE3, S_V, V_S, S_MTE2, MTE2_S, S_MTE3, MTE3_S,
};
using TEventID = int8_t;

inline int64_t GetBlockIdx() { return twin::block().id; }
inline int64_t GetBlockNum() { return twin::block().count; }

// ---- tensors ----

template <class T>
struct LocalTensor {
    using PrimType = T;
    twin::View view{0, -1, 0};

    LocalTensor operator[](int64_t index) const {
        LocalTensor r = *this;
        r.view.offset += index * int64_t(sizeof(T));
        return r;
    }
    T GetValue(int64_t index, Line line = TWIN_LINE) const {
        T value;
        twin::read_scalar(line, view, index, sizeof(T), &value);
        return value;
    }
    void SetValue(int64_t index, T value, Line line = TWIN_LINE) const {
        twin::write_scalar(line, view, index, sizeof(T), &value);
    }
    template <class U>
    LocalTensor<U> ReinterpretCast() const {
        LocalTensor<U> r;
        r.view = view;
        return r;
    }
    uint32_t GetSize() const { return uint32_t(twin::view_bytes(view) / sizeof(T)); }
};

template <class T>
struct GlobalTensor {
    using PrimType = T;
    twin::Global at{0, nullptr};

    void SetGlobalBuffer(__gm__ T* pointer, uint64_t = 0) {  // the size is the kernel's opinion: the run knows better
        at = {reinterpret_cast<uint64_t>(pointer), twin::range_of(pointer)};
    }
    GlobalTensor operator[](int64_t index) const {
        GlobalTensor r = *this;
        r.at.address += uint64_t(index) * sizeof(T);
        return r;
    }
    T GetValue(int64_t index, Line line = TWIN_LINE) const {
        T value;
        twin::read_global(line, (*this)[index].at, sizeof(T), &value);
        return value;
    }
    void SetValue(int64_t index, T value, Line line = TWIN_LINE) const {
        twin::write_global(line, (*this)[index].at, sizeof(T), &value);
    }
};

// ---- buffers and queues ----

constexpr twin::Position local_position(TPosition p) {
    return p == TPosition::VECIN ? twin::Position::in
                                 : p == TPosition::VECOUT ? twin::Position::out : twin::Position::calculation;
}

template <TPosition position, int depth>
class TQue {
    static_assert(position != TPosition::GM, "a queue is in the unified buffer");
    static_assert(depth >= 1, "a queue has a depth of 1 or more");

   public:
    int32_t id = -1;

    template <class T>
    LocalTensor<T> AllocTensor(Line line = TWIN_LINE) {
        return make<T>(twin::allocate(line, id));
    }
    template <class T>
    bool EnQue(const LocalTensor<T>& tensor, Line line = TWIN_LINE) {
        twin::enqueue(line, id, tensor.view);
        return true;
    }
    template <class T>
    LocalTensor<T> DeQue(Line line = TWIN_LINE) {
        return make<T>(twin::dequeue(line, id));
    }
    template <class T>
    void FreeTensor(const LocalTensor<T>& tensor, Line line = TWIN_LINE) {
        twin::release(line, id, tensor.view);
    }
    int32_t GetTensorCountInQue() const { return twin::queued(id); }
    bool HasTensorInQue() const { return twin::queued(id) > 0; }

   private:
    template <class T>
    static LocalTensor<T> make(const twin::View& view) {
        LocalTensor<T> r;
        r.view = view;
        return r;
    }
};

template <TPosition position = TPosition::VECCALC>
class TBuf {
    static_assert(position != TPosition::GM, "a buffer is in the unified buffer");

   public:
    int32_t id = -1;

    template <class T>
    LocalTensor<T> Get(Line line = TWIN_LINE) {
        LocalTensor<T> r;
        r.view = twin::whole_buffer(line, id);
        return r;
    }
};

namespace events {
using namespace twin;
constexpr Pipe from_to[][2] = {{mte2, vector},   {vector, mte2},   {mte3, vector}, {vector, mte3}, {vector, vector},
                               {mte3, mte2},     {mte2, mte3},     {scalar, vector}, {vector, scalar}, {scalar, mte2},
                               {mte2, scalar},   {scalar, mte3},   {mte3, scalar}};
constexpr Pipe from(HardEvent e) { return from_to[int(e)][0]; }
constexpr Pipe to(HardEvent e) { return from_to[int(e)][1]; }
}  // namespace events

class TPipe {
   public:
    TPipe() { twin::open_pipe(); }
    ~TPipe() { twin::close_pipe(); }
    TPipe(const TPipe&) = delete;

    template <TPosition position, int depth>
    bool InitBuffer(TQue<position, depth>& queue, uint8_t buffers, uint32_t bytes, Line line = TWIN_LINE) {
        queue.id = twin::make_queue(line, local_position(position), depth, buffers, bytes);
        return true;
    }
    template <TPosition position>
    bool InitBuffer(TBuf<position>& buffer, uint32_t bytes, Line line = TWIN_LINE) {
        buffer.id = twin::make_buffer(line, local_position(position), bytes);
        return true;
    }
    template <HardEvent e>
    TEventID AllocEventID(Line line = TWIN_LINE) {
        return TEventID(twin::allocate_event(line, events::from(e), events::to(e), true));
    }
    template <HardEvent e>
    void ReleaseEventID(TEventID id, Line line = TWIN_LINE) {
        twin::release_event(line, events::from(e), events::to(e), id);
    }
    TEventID FetchEventID(HardEvent e, Line line = TWIN_LINE) {
        return TEventID(twin::allocate_event(line, events::from(e), events::to(e), false));
    }
};

// ---- order ----

template <HardEvent e>
inline void SetFlag(int id, Line line = TWIN_LINE) {
    twin::set_flag(line, events::from(e), events::to(e), id);
}
template <HardEvent e>
inline void WaitFlag(int id, Line line = TWIN_LINE) {
    twin::wait_flag(line, events::from(e), events::to(e), id);
}
template <pipe_t pipe>
inline void PipeBarrier(Line line = TWIN_LINE) {
    static_assert(pipe != PIPE_S, "PipeBarrier<PIPE_S> is a hardware error: the scalar unit is in order");
    static_assert(pipe != PIPE_M && pipe != PIPE_MTE1, "a vector core has no cube pipes");
    twin::barrier(line, pipe == PIPE_ALL ? twin::pipes : pipe == PIPE_V ? twin::vector
                                               : pipe == PIPE_MTE2 ? twin::mte2 : twin::mte3);
}

// ---- instructions: the form with a count of elements ----

#define TWIN_DTYPES(NAME, ...) \
    static_assert(twin::among<T, __VA_ARGS__>, #NAME " has no instruction for this dtype on dav-2201")
#define TWIN_BINARY(NAME, ...)                                                                                   \
    template <class T>                                                                                           \
    inline void NAME(const LocalTensor<T>& dst, const LocalTensor<T>& src0, const LocalTensor<T>& src1,          \
                     int32_t count, Line line = TWIN_LINE) {                                                     \
        TWIN_DTYPES(NAME, __VA_ARGS__);                                                                          \
        twin::binary(#NAME, line, twin::Op::NAME, twin::type_of<T>, dst.view, src0.view, src1.view, count);      \
    }
#define TWIN_SCALAR(NAME, ...)                                                                                   \
    template <class T>                                                                                           \
    inline void NAME(const LocalTensor<T>& dst, const LocalTensor<T>& src, const T& scalar, int32_t count,       \
                     Line line = TWIN_LINE) {                                                                    \
        TWIN_DTYPES(NAME, __VA_ARGS__);                                                                          \
        twin::with_scalar(#NAME, line, twin::Op::NAME, twin::type_of<T>, dst.view, src.view, &scalar, count);    \
    }
#define TWIN_UNARY(NAME, ...)                                                                                    \
    template <class T>                                                                                           \
    inline void NAME(const LocalTensor<T>& dst, const LocalTensor<T>& src, int32_t count,                        \
                     Line line = TWIN_LINE) {                                                                    \
        TWIN_DTYPES(NAME, __VA_ARGS__);                                                                          \
        twin::unary(#NAME, line, twin::Op::NAME, twin::type_of<T>, dst.view, src.view, count);                   \
    }

TWIN_BINARY(Add, int16_t, half, int32_t, float)
TWIN_BINARY(Sub, int16_t, half, int32_t, float)
TWIN_BINARY(Mul, int16_t, half, int32_t, float)
TWIN_BINARY(Max, int16_t, half, int32_t, float)
TWIN_BINARY(Min, int16_t, half, int32_t, float)
TWIN_BINARY(Div, half, float)
TWIN_BINARY(MulAddDst, half, float)
TWIN_BINARY(FusedMulAdd, half, float)
TWIN_BINARY(And, int16_t, uint16_t)
TWIN_BINARY(Or, int16_t, uint16_t)
TWIN_SCALAR(Adds, int16_t, half, int32_t, float)
TWIN_SCALAR(Muls, int16_t, half, int32_t, float)
TWIN_SCALAR(Maxs, int16_t, half, int32_t, float)
TWIN_SCALAR(Mins, int16_t, half, int32_t, float)
TWIN_SCALAR(Axpy, half, float)
TWIN_SCALAR(LeakyRelu, half, float)
TWIN_SCALAR(ShiftLeft, int16_t, uint16_t, int32_t, uint32_t)
TWIN_SCALAR(ShiftRight, int16_t, uint16_t, int32_t, uint32_t)
TWIN_UNARY(Exp, half, float)
TWIN_UNARY(Ln, half, float)
TWIN_UNARY(Abs, half, float)
TWIN_UNARY(Sqrt, half, float)
TWIN_UNARY(Rsqrt, half, float)
TWIN_UNARY(Reciprocal, half, float)
TWIN_UNARY(Relu, half, int32_t, float)
TWIN_UNARY(Not, int16_t, uint16_t)

template <class T>
inline void Duplicate(const LocalTensor<T>& dst, const T& scalar, int32_t count, Line line = TWIN_LINE) {
    TWIN_DTYPES(Duplicate, int16_t, uint16_t, half, bfloat16_t, int32_t, uint32_t, float);
    twin::fill("Duplicate", line, twin::type_of<T>, dst.view, &scalar, count);
}

constexpr twin::Op comparison(CMPMODE mode) { return twin::Op(int(twin::Op::LT) + int(mode)); }

template <class T>
inline void Compare(const LocalTensor<uint8_t>& dst, const LocalTensor<T>& src0, const LocalTensor<T>& src1,
                    CMPMODE mode, uint32_t count, Line line = TWIN_LINE) {
    TWIN_DTYPES(Compare, half, int32_t, float);
    twin::compare("Compare", line, comparison(mode), twin::type_of<T>, dst.view, src0.view, &src1.view, nullptr, count);
}
template <class T>
inline void CompareScalar(const LocalTensor<uint8_t>& dst, const LocalTensor<T>& src0, T src1, CMPMODE mode,
                          uint32_t count, Line line = TWIN_LINE) {
    TWIN_DTYPES(CompareScalar, half, int32_t, float);
    twin::compare("CompareScalar", line, comparison(mode), twin::type_of<T>, dst.view, src0.view, nullptr, &src1,
                  count);
}
template <class T, class M>
inline void Select(const LocalTensor<T>& dst, const LocalTensor<M>& mask, const LocalTensor<T>& src0,
                   const LocalTensor<T>& src1, SELMODE mode, uint32_t count, Line line = TWIN_LINE) {
    TWIN_DTYPES(Select, half, float);
    static_assert(twin::among<M, uint8_t, uint16_t, uint32_t, uint64_t>, "the mask of Select is bits");
    twin::enter("Select", line);
    if (mode != SELMODE::VSEL_TENSOR_TENSOR_MODE) twin::fail("mode", "two tensors need VSEL_TENSOR_TENSOR_MODE");
    twin::select("Select", line, twin::type_of<T>, dst.view, mask.view, src0.view, &src1.view, nullptr, count);
}
template <class T, class M>
inline void Select(const LocalTensor<T>& dst, const LocalTensor<M>& mask, const LocalTensor<T>& src0, T src1,
                   SELMODE mode, uint32_t count, Line line = TWIN_LINE) {
    TWIN_DTYPES(Select, half, float);
    static_assert(twin::among<M, uint8_t, uint16_t, uint32_t, uint64_t>, "the mask of Select is bits");
    twin::enter("Select", line);
    if (mode != SELMODE::VSEL_TENSOR_SCALAR_MODE) twin::fail("mode", "a scalar needs VSEL_TENSOR_SCALAR_MODE");
    twin::select("Select", line, twin::type_of<T>, dst.view, mask.view, src0.view, nullptr, &src1, count);
}

template <class T>
inline void ReduceSum(const LocalTensor<T>& dst, const LocalTensor<T>& src, const LocalTensor<T>& scratch, int32_t count,
                      Line line = TWIN_LINE) {
    TWIN_DTYPES(ReduceSum, half, float);
    twin::reduce("ReduceSum", line, twin::Op::ReduceSum, twin::type_of<T>, dst.view, src.view, scratch.view, count);
}
#define TWIN_REDUCE(NAME)                                                                                        \
    template <class T>                                                                                           \
    inline void NAME(const LocalTensor<T>& dst, const LocalTensor<T>& src, const LocalTensor<T>& scratch,        \
                     int32_t count, bool with_index = false, Line line = TWIN_LINE) {                            \
        TWIN_DTYPES(NAME, half, float);                                                                          \
        twin::enter(#NAME, line);                                                                                \
        if (with_index) twin::fail("unsupported", "the twin has no reduction that gives the index");             \
        twin::reduce(#NAME, line, twin::Op::NAME, twin::type_of<T>, dst.view, src.view, scratch.view, count);    \
    }
TWIN_REDUCE(ReduceMax)
TWIN_REDUCE(ReduceMin)

// The pairs of Cast and the rounding modes of each, as bits by the number of the mode; 0: there is no such pair.
// int32 -> half (needs a scale) and int16 -> 8 bits (not in every version) are left out: go through float, half.
constexpr unsigned cast_none = 1, cast_rounding = 0b0111110, cast_odd = 0b1000000;
template <class To, class From> constexpr unsigned cast_modes = 0;
template <> constexpr unsigned cast_modes<half, int8_t> = cast_none;
template <> constexpr unsigned cast_modes<half, uint8_t> = cast_none;
template <> constexpr unsigned cast_modes<half, int16_t> = cast_none | cast_rounding;
template <> constexpr unsigned cast_modes<float, int16_t> = cast_none;
template <> constexpr unsigned cast_modes<int8_t, half> = cast_none | cast_rounding;
template <> constexpr unsigned cast_modes<uint8_t, half> = cast_none | cast_rounding;
template <> constexpr unsigned cast_modes<int16_t, half> = cast_rounding;
template <> constexpr unsigned cast_modes<int32_t, half> = cast_rounding;
template <> constexpr unsigned cast_modes<float, half> = cast_none;
template <> constexpr unsigned cast_modes<float, bfloat16_t> = cast_none;
template <> constexpr unsigned cast_modes<int32_t, bfloat16_t> = cast_rounding;
template <> constexpr unsigned cast_modes<int16_t, int32_t> = cast_none;
template <> constexpr unsigned cast_modes<float, int32_t> = cast_none | cast_rounding;
template <> constexpr unsigned cast_modes<int64_t, int32_t> = cast_none;
template <> constexpr unsigned cast_modes<int32_t, int64_t> = cast_none;
template <> constexpr unsigned cast_modes<float, int64_t> = cast_rounding;
template <> constexpr unsigned cast_modes<float, float> = cast_rounding;
template <> constexpr unsigned cast_modes<half, float> = cast_none | cast_rounding | cast_odd;
template <> constexpr unsigned cast_modes<bfloat16_t, float> = cast_rounding;
template <> constexpr unsigned cast_modes<int16_t, float> = cast_rounding;
template <> constexpr unsigned cast_modes<int32_t, float> = cast_rounding;
template <> constexpr unsigned cast_modes<int64_t, float> = cast_rounding;

template <class To, class From>
inline void Cast(const LocalTensor<To>& dst, const LocalTensor<From>& src, RoundMode mode, uint32_t count,
                 Line line = TWIN_LINE) {
    static_assert(cast_modes<To, From> != 0, "Cast has no instruction for this pair of dtypes on dav-2201");
    twin::cast("Cast", line, twin::type_of<To>, twin::type_of<From>, dst.view, src.view, twin::Round(mode),
               cast_modes<To, From>, count);
}

// ---- copies ----

struct DataCopyExtParams {
    uint16_t blockCount = 1;
    uint32_t blockLen = 0, srcStride = 0, dstStride = 0, rsv = 0;
};
template <class T>
struct DataCopyPadExtParams {
    bool isPad = false;
    uint8_t leftPadding = 0, rightPadding = 0;
    T paddingValue{};
};

template <class T>
inline void DataCopyPad(const LocalTensor<T>& dst, const GlobalTensor<T>& src, const DataCopyExtParams& p,
                        const DataCopyPadExtParams<T>& pad, Line line = TWIN_LINE) {
    twin::copy_in("DataCopyPad", line, twin::type_of<T>, dst.view, src.at, p.blockCount, p.blockLen, p.srcStride,
                  p.dstStride, {pad.isPad, pad.leftPadding, pad.rightPadding, &pad.paddingValue});
}
template <class T>
inline void DataCopyPad(const GlobalTensor<T>& dst, const LocalTensor<T>& src, const DataCopyExtParams& p,
                        Line line = TWIN_LINE) {
    twin::copy_out("DataCopyPad", line, twin::type_of<T>, dst.at, src.view, p.blockCount, p.blockLen, p.dstStride,
                   p.srcStride);
}
template <class T>
inline void whole_blocks(uint32_t count, Line line) {
    twin::enter("DataCopy", line);
    if (count * sizeof(T) % 32)
        twin::fail("alignment", "copies %zu bytes, which are not a multiple of 32: use DataCopyPad", count * sizeof(T));
}
template <class T>
inline void DataCopy(const LocalTensor<T>& dst, const GlobalTensor<T>& src, uint32_t count, Line line = TWIN_LINE) {
    whole_blocks<T>(count, line);
    twin::copy_in("DataCopy", line, twin::type_of<T>, dst.view, src.at, 1, count * sizeof(T), 0, 0, {});
}
template <class T>
inline void DataCopy(const GlobalTensor<T>& dst, const LocalTensor<T>& src, uint32_t count, Line line = TWIN_LINE) {
    whole_blocks<T>(count, line);
    twin::copy_out("DataCopy", line, twin::type_of<T>, dst.at, src.view, 1, count * sizeof(T), 0, 0);
}
template <class T>
inline void DataCopy(const LocalTensor<T>& dst, const LocalTensor<T>& src, uint32_t count, Line line = TWIN_LINE) {
    whole_blocks<T>(count, line);
    twin::copy_local("DataCopy", line, twin::type_of<T>, dst.view, src.view, count);
}

#define TWIN_ATOMIC(NAME, KIND)                                                                                  \
    template <class T>                                                                                           \
    inline void NAME(Line line = TWIN_LINE) {                                                                    \
        TWIN_DTYPES(NAME, int8_t, int16_t, half, bfloat16_t, int32_t, float);                                    \
        twin::set_atomic(#NAME, line, twin::Accumulate::KIND, twin::type_of<T>);                                 \
    }
TWIN_ATOMIC(SetAtomicAdd, add)
TWIN_ATOMIC(SetAtomicMax, max)
TWIN_ATOMIC(SetAtomicMin, min)
inline void SetAtomicNone(Line line = TWIN_LINE) {
    twin::set_atomic("SetAtomicNone", line, twin::Accumulate::none, twin::Type::f32);
}

template <class T, CacheLine lines, DcciDst to>
inline void DataCacheCleanAndInvalid(const GlobalTensor<T>& tensor, Line line = TWIN_LINE) {
    twin::clean_cache(line, tensor.at, lines == CacheLine::ENTIRE_DATA_CACHE,
                      to == DcciDst::CACHELINE_OUT || to == DcciDst::CACHELINE_ALL);
}

}  // namespace AscendC
