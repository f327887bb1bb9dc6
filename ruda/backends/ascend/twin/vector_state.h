// The state of one vector core of dav-2201, and what every operation of it checks. Included by the runtime only.
//
// Instructions take effect at once; what the chip would do in parallel is checked instead of imitated. Each pipe
// (scalar, vector, copy in, copy out) has a clock. `ordered[q][p]` is the clock up to which what pipe p did is finished
// before pipe q begins its next instruction; flags, queues and barriers raise it. Each block of 32 bytes of the unified
// buffer remembers its last writer and its readers since: a conflicting access that is not ordered after them is a fault.
#pragma once
#include "vector_unit.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

namespace twin {

namespace {

constexpr uint32_t UB = 188160;  // 192 KB without what the system and the library keep
constexpr uint32_t BLOCK = 32;
constexpr int EVENTS = 8;        // flags of one kind
constexpr uint32_t QUEUE_BUFFERS = 8, BUFFERS = 64;
constexpr uint64_t LINE = 64;
const char* const PIPE[] = {"scalar", "vector", "copy in (MTE2)", "copy out (MTE3)"};
const char* const TYPE[] = {"int8", "uint8", "int16", "uint16", "half", "bfloat16", "int32", "uint32", "float", "int64",
                            "uint64"};
const uint32_t SIZE[] = {1, 1, 2, 2, 2, 2, 4, 4, 4, 8, 8};
uint32_t size_of(Type type) { return SIZE[int(type)]; }

struct Clocks {
    uint64_t of[pipes] = {};
};

enum class State : uint8_t { free, allocated, queued, dequeued, fixed };  // `fixed`: a TBuf's
const char* const STATE[] = {"free", "allocated", "queued", "dequeued", "in use"};

struct Buffer {
    uint32_t begin, bytes;
    State state;
    Position position;
    int32_t queue = -1;
    uint32_t generation = 0;
    int event = -1;  // of the flag that says queued, or free again
    Line line = 0;   // of the last change of the state
};

struct Queue {
    Position position;
    int depth;
    int32_t first;
    uint32_t buffers, cursor = 0;
    std::vector<int32_t> waiting;
};

struct Shadow {  // of one block
    uint64_t written = 0, read[pipes] = {};
    Line line = 0;  // of the write
    uint8_t writer = 0;
};

struct Flag {
    bool set = false, owned = false;  // `owned`: allocated, by a queue or by AllocEventID
    Line line = 0;
    Clocks clocks;
};

struct Access {  // of global memory, by a copy
    uint64_t begin, end, clock;
    Line line;
};

struct CacheLine {
    uint8_t bytes[LINE];
    bool dirty[LINE] = {};
    bool any_dirty = false;
    uint64_t fetched = 0;
    Line line = 0;  // of the first store
};

struct Shared {  // by the blocks of a launch
    std::mutex mutex;
    std::map<uint64_t, uint32_t> dirtied;                          // cache line -> block that stored
    std::vector<std::pair<uint64_t, uint64_t>> copied_out;         // of all blocks
    std::vector<uint32_t> copied_by;
    void (*body)(void*);
    void* data;
};

struct Unit {
    std::vector<uint8_t> bytes, defined;
    std::vector<Shadow> shadow;
    std::vector<Buffer> buffers;
    std::vector<Queue> queues;
    uint32_t used = 0, most_used = 0;
    int open_pipes = 0;
    uint64_t clock = 1;
    Clocks ordered[pipes];
    Flag flags[pipes][pipes][EVENTS];
    std::vector<Access> global_reads, global_writes;
    size_t prune_at[2] = {64, 64};
    std::vector<std::pair<uint64_t, uint64_t>> copied_out;
    std::map<uint64_t, CacheLine> cache;
    std::vector<uint64_t> dirtied;
    Accumulate atomic = Accumulate::none;
    Type atomic_type{};
    Line atomic_line = 0;
    Line leak_line = 0;  // a pipe was closed with a tensor in a queue, or not given back
    State leak_state = State::free;

    Unit() : bytes(UB, 0xFD), defined(UB, 0), shadow(UB / BLOCK) {}

    void reset() {  // the big arrays only as far as they were used
        std::fill_n(bytes.begin(), most_used, 0xFD);
        std::fill_n(defined.begin(), most_used, 0);
        std::fill_n(shadow.begin(), (most_used + BLOCK - 1) / BLOCK, Shadow{});
        auto b = std::move(bytes), d = std::move(defined);
        auto s = std::move(shadow);
        this->~Unit();
        new (this) Unit(std::move(b), std::move(d), std::move(s));
    }
    Unit(std::vector<uint8_t>&& b, std::vector<uint8_t>&& d, std::vector<Shadow>&& s)
        : bytes(std::move(b)), defined(std::move(d)), shadow(std::move(s)) {}
};

Unit& unit() {
    Block& b = block();
    if (!b.unit) fail("twin", "the launcher of a vector kernel must use twin::launch_vector");
    return *static_cast<Unit*>(b.unit);
}

Clocks snapshot(const Unit& u, int pipe) {  // what is finished when `pipe` has done all it was given
    Clocks c = u.ordered[pipe];
    c.of[pipe] = u.clock;
    return c;
}

void wait(Unit& u, int pipe, const Clocks& c) {
    for (int p = 0; p < pipes; ++p) u.ordered[pipe].of[p] = std::max(u.ordered[pipe].of[p], c.of[p]);
}

bool is_ordered(const Unit& u, int before, uint64_t clock, int after) {
    if (clock <= u.ordered[after].of[before]) return true;
    return before == after && before != vector;  // the other pipes finish one instruction after another
}

// ---- the unified buffer ----

const Buffer& buffer_of(const Unit& u, const View& view) {
    if (view.buffer < 0 || size_t(view.buffer) >= u.buffers.size())
        fail("queue", "uses a tensor that no buffer gave");
    const Buffer& b = u.buffers[view.buffer];
    if (b.state == State::free || b.generation != view.generation)
        fail("queue", "uses a tensor after its buffer was given back (at line %u of the text)", b.line);
    if (b.state == State::queued)
        fail("queue", "uses a tensor that is in a queue (since line %u of the text): DeQue first", b.line);
    return b;
}

uint32_t place_of(const Unit& u, const View& view, uint64_t bytes, const char* what) {
    const Buffer& b = buffer_of(u, view);
    int64_t from = view.offset - int64_t(b.begin);
    if (from < 0 || from > int64_t(b.bytes) || bytes > uint64_t(b.bytes - from))
        fail("buffer-bounds", "%s: bytes %lld to %lld of a buffer of %u", what, (long long)from,
             (long long)(from + int64_t(bytes)), b.bytes);
    return uint32_t(view.offset);
}

uint32_t aligned_place(const Unit& u, const View& view, uint64_t bytes, const char* what) {
    uint32_t at = place_of(u, view, bytes, what);
    if (at % BLOCK) fail("alignment", "%s begins at byte %u of the unified buffer, not at a multiple of 32", what, at);
    return at;
}

void touch(Unit& u, uint32_t at, uint64_t bytes, Pipe pipe, bool write) {
    if (!bytes) return;
    uint64_t now = ++u.clock;
    Line line = block().line;
    for (uint32_t i = at / BLOCK; i <= (at + bytes - 1) / BLOCK; ++i) {
        Shadow& s = u.shadow[i];
        if (s.written && !is_ordered(u, s.writer, s.written, pipe))
            fail("hazard", "%s byte %u of the unified buffer on the %s pipe, and nothing orders it after the write on the "
                 "%s pipe at line %u of the text", write ? "overwrites" : "reads", i * BLOCK, PIPE[pipe],
                 PIPE[s.writer], s.line);
        if (write) {
            for (int p = 0; p < pipes; ++p) {
                if (p != pipe && s.read[p] && !is_ordered(u, p, s.read[p], pipe))
                    fail("hazard", "overwrites byte %u of the unified buffer on the %s pipe, and nothing orders it after a "
                         "read on the %s pipe", i * BLOCK, PIPE[pipe], PIPE[p]);
                s.read[p] = 0;
            }
            s.written = now;
            s.writer = pipe;
            s.line = line;
        } else {
            s.read[pipe] = now;
        }
    }
}

void need_defined(const Unit& u, uint32_t at, uint64_t bytes, const char* what) {
    auto begin = u.defined.data() + at;
    if (!bytes) return;
    if (auto hole = static_cast<const uint8_t*>(memchr(begin, 0, bytes)))
        fail("undefined", "%s: byte %lld of %llu was never written", what, (long long)(hole - begin),
             (unsigned long long)bytes);
}

void define(Unit& u, uint32_t at, uint64_t bytes, bool is = true) { memset(&u.defined[at], is, bytes); }

// An operand of a vector instruction. Sources are checked, and defined, before the destination is written.
uint32_t source(Unit& u, const View& view, uint64_t bytes, const char* what = "source") {
    uint32_t at = aligned_place(u, view, bytes, what);
    touch(u, at, bytes, vector, false);
    need_defined(u, at, bytes, what);
    return at;
}

uint32_t target(Unit& u, const View& view, uint64_t bytes) {
    uint32_t at = aligned_place(u, view, bytes, "destination");
    touch(u, at, bytes, vector, true);
    return at;
}

// Equal places are fine where an element depends on itself alone (`same`); parts of each other never are.
void no_overlap(const View& to, uint64_t to_bytes, const View& from, uint64_t from_bytes, bool same) {
    if (same && to.offset == from.offset) return;
    if (to.offset < from.offset + int64_t(from_bytes) && from.offset < to.offset + int64_t(to_bytes))
        fail("overlap", "destination and source overlap%s", same ? " in part" : "");
}

Unit& begin_instruction(const char* api, Line line, int64_t count) {
    Block& b = enter(api, line);
    if (count < 0) fail("range", "%lld elements", (long long)count);
    b.counts.vector_instructions++;
    return unit();
}

uint32_t round_up(uint64_t bytes) { return uint32_t((bytes + BLOCK - 1) / BLOCK * BLOCK); }

// ---- elements ----

template <class T> struct Computing { using type = T; };
template <> struct Computing<half> { using type = float; };
template <> struct Computing<bfloat16_t> { using type = float; };

template <class F>
void with_type(Type type, F f) {  // the types that have arithmetic
    switch (type) {
        case Type::i16: return f(int16_t{});
        case Type::u16: return f(uint16_t{});
        case Type::f16: return f(half{});
        case Type::i32: return f(int32_t{});
        case Type::u32: return f(uint32_t{});
        case Type::f32: return f(float{});
        default: fail("dtype", "no instruction for %s", TYPE[int(type)]);
    }
}

template <class T>
T get(const uint8_t* at, int64_t i) {
    T value;
    memcpy(&value, at + i * sizeof(T), sizeof(T));
    return value;
}
template <class T>
void put(uint8_t* at, int64_t i, T value) {
    memcpy(at + i * sizeof(T), &value, sizeof(T));
}

template <class C> constexpr bool is_float = C(0.5f) != C(0);

template <class C> bool is_nan(C x) { return x != x; }
template <class C> C larger(C a, C b) { return is_nan(a) ? a : is_nan(b) ? b : a > b ? a : b; }
template <class C> C smaller(C a, C b) { return is_nan(a) ? a : is_nan(b) ? b : a < b ? a : b; }

}  // namespace

}  // namespace twin
