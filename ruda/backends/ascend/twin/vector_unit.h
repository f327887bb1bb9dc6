// The vector unit of a dav-2201 core as kernel_operator.h calls it; the bodies are in vector_*.cpp.
//
// Names of the vendor's API are in kernel_operator.h only. Here a tensor is a `View` (bytes of the unified buffer)
// and an element type is a number, so that one compiled function serves every kernel.
#pragma once
#include "core.h"
#include "numbers.h"

namespace twin {

enum class Type : uint8_t { i8, u8, i16, u16, f16, bf16, i32, u32, f32, i64, u64 };
template <class T>
struct TypeOf;  // an element type that the chip has not gives a compile error here
template <> struct TypeOf<int8_t> { static constexpr Type value = Type::i8; };
template <> struct TypeOf<uint8_t> { static constexpr Type value = Type::u8; };
template <> struct TypeOf<int16_t> { static constexpr Type value = Type::i16; };
template <> struct TypeOf<uint16_t> { static constexpr Type value = Type::u16; };
template <> struct TypeOf<half> { static constexpr Type value = Type::f16; };
template <> struct TypeOf<bfloat16_t> { static constexpr Type value = Type::bf16; };
template <> struct TypeOf<int32_t> { static constexpr Type value = Type::i32; };
template <> struct TypeOf<uint32_t> { static constexpr Type value = Type::u32; };
template <> struct TypeOf<float> { static constexpr Type value = Type::f32; };
template <> struct TypeOf<int64_t> { static constexpr Type value = Type::i64; };
template <> struct TypeOf<uint64_t> { static constexpr Type value = Type::u64; };
template <class T>
constexpr Type type_of = TypeOf<T>::value;

template <class T, class U> constexpr bool same = false;
template <class T> constexpr bool same<T, T> = true;
template <class T, class... Types> constexpr bool among = (same<T, Types> || ...);

enum class Op : uint8_t {
    Add, Sub, Mul, Div, Max, Min, And, Or, MulAddDst, FusedMulAdd,              // two tensors
    Adds, Muls, Maxs, Mins, ShiftLeft, ShiftRight, LeakyRelu, Axpy,             // a tensor and a scalar
    Exp, Ln, Abs, Sqrt, Rsqrt, Reciprocal, Relu, Not,                           // one tensor
    ReduceSum, ReduceMax, ReduceMin,
    LT, GT, EQ, LE, GE, NE,
};

enum Pipe : uint8_t { scalar, vector, mte2, mte3, pipes };  // mte2 copies in, mte3 copies out

// ---- the unified buffer ----

enum class Position : uint8_t { in, out, calculation };

struct View {
    int64_t offset;       // in bytes of the unified buffer; may be out of range until it is used
    int32_t buffer;       // -1: of nothing
    uint32_t generation;  // of the buffer's allocation: an older view is stale
};

uint64_t view_bytes(const View& view);
void open_pipe();
void close_pipe() noexcept;
int32_t make_buffer(Line line, Position position, uint32_t bytes);
int32_t make_queue(Line line, Position position, int depth, uint32_t buffers, uint32_t bytes);
View whole_buffer(Line line, int32_t buffer);

View allocate(Line line, int32_t queue);
void enqueue(Line line, int32_t queue, const View& view);
View dequeue(Line line, int32_t queue);
void release(Line line, int32_t queue, const View& view);
int32_t queued(int32_t queue);

void read_scalar(Line line, const View& view, int64_t index, uint32_t size, void* value);
void write_scalar(Line line, const View& view, int64_t index, uint32_t size, const void* value);

// ---- order ----

void barrier(Line line, int pipe);  // `pipes`: all of them
void set_flag(Line line, Pipe from, Pipe to, int id);
void wait_flag(Line line, Pipe from, Pipe to, int id);
int allocate_event(Line line, Pipe from, Pipe to, bool keep);
void release_event(Line line, Pipe from, Pipe to, int id);

// ---- instructions; `value` points at a scalar of the element type ----

void unary(const char* api, Line line, Op op, Type type, View to, View a, int64_t count);
void binary(const char* api, Line line, Op op, Type type, View to, View a, View b, int64_t count);
void with_scalar(const char* api, Line line, Op op, Type type, View to, View a, const void* value, int64_t count);
void fill(const char* api, Line line, Type type, View to, const void* value, int64_t count);
void compare(const char* api, Line line, Op op, Type type, View to, View a, const View* b, const void* value,
             int64_t count);
void select(const char* api, Line line, Type type, View to, View mask, View a, const View* b, const void* value,
            int64_t count);
void reduce(const char* api, Line line, Op op, Type type, View to, View a, View scratch, int64_t count);
void cast(const char* api, Line line, Type to_type, Type from_type, View to, View a, Round mode, unsigned modes,
          int64_t count);
void copy_local(const char* api, Line line, Type type, View to, View a, int64_t count);

// ---- global memory ----

struct Global {
    uint64_t address;
    const Range* range;  // where the pointer came from
};

struct Padding {
    bool pad;
    uint32_t left, right;  // elements
    const void* value;
};

void copy_in(const char* api, Line line, Type type, View to, Global from, uint64_t rows, uint64_t bytes,
             int64_t global_gap, int64_t local_gap, Padding padding);
void copy_out(const char* api, Line line, Type type, Global to, View from, uint64_t rows, uint64_t bytes,
              int64_t global_gap, int64_t local_gap);
void read_global(Line line, Global from, uint32_t size, void* value);
void write_global(Line line, Global to, uint32_t size, const void* value);
void clean_cache(Line line, Global at, bool all, bool to_memory);
enum class Accumulate : uint8_t { none, add, max, min };
void set_atomic(const char* api, Line line, Accumulate kind, Type type);

// ---- a launch ----

int launch_vector(void* stream, uint32_t blocks, void (*body)(void*), void* data);

template <class Body>
int launch_vector(void* stream, uint32_t blocks, const Body& body) {
    return launch_vector(
        stream, blocks, [](void* data) { (*static_cast<const Body*>(data))(); }, (void*)&body);
}

}  // namespace twin
