// The runtime behind kernel_operator.h: one vector core of dav-2201, as strict as its documentation.
//
// Instructions take effect at once; what the chip would do in parallel is checked instead of imitated. Each pipe
// (scalar, vector, copy in, copy out) has a clock. `ordered[q][p]` is the clock up to which what pipe p did is finished
// before pipe q begins its next instruction; flags, queues and barriers raise it. Each 32 byte block of the unified buffer
// remembers its last writer and its readers since: a conflicting access that is not ordered after them is a fault.
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

// ---- arithmetic ----

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

// The value of one element. `d` is the old one, for the instructions that accumulate.
template <class T, class C = typename Computing<T>::type>
T element(Op op, C a, C b, C d) {
    switch (op) {
        case Op::Add: case Op::Adds: return T(a + b);
        case Op::Sub: return T(a - b);
        case Op::Mul: case Op::Muls:
            if constexpr (!is_float<C>) return T(int64_t(a) * int64_t(b));
            else return T(a * b);
        case Op::Max: case Op::Maxs: return T(larger(a, b));
        case Op::Min: case Op::Mins: return T(smaller(a, b));
        case Op::Relu: return T(larger(a, C(0)));
        default: break;
    }
    if constexpr (is_float<C>) {
        switch (op) {
            case Op::Div: return T(a / b);
            case Op::MulAddDst: return T(C(a * b) + d);
            case Op::Axpy: return T(C(a * b) + d);
            case Op::FusedMulAdd: return T(C(a * d) + b);
            case Op::LeakyRelu: return T(a >= 0 ? a : a * b);
            case Op::Exp: return T(std::exp(a));
            case Op::Ln: return T(std::log(a));
            case Op::Abs: return T(std::fabs(a));
            case Op::Sqrt: return T(std::sqrt(a));
            case Op::Rsqrt: return T(1 / std::sqrt(a));
            case Op::Reciprocal: return T(1 / a);
            default: break;
        }
    } else {
        switch (op) {
            case Op::And: return T(a & b);
            case Op::Or: return T(a | b);
            case Op::Not: return T(~a);
            case Op::ShiftLeft: return T(uint64_t(a) << b);
            case Op::ShiftRight: return T(a >> b);
            default: break;
        }
    }
    fail("dtype", "no such instruction");
}

bool accumulates(Op op) { return op == Op::MulAddDst || op == Op::FusedMulAdd || op == Op::Axpy; }

// to[i] = op(a[i], b[i] or *value, to[i])
void elementwise(Unit& u, Op op, Type type, View to, View a, const View* b, const void* value, int64_t count) {
    uint64_t bytes = uint64_t(count) * size_of(type);
    no_overlap(to, bytes, a, bytes, true);
    if (b) no_overlap(to, bytes, *b, bytes, true);
    if (!count) return;
    uint32_t at_a = source(u, a, bytes, b ? "first source" : "source");
    uint32_t at_b = b ? source(u, *b, bytes, "second source") : 0;
    if (accumulates(op)) source(u, to, bytes, "destination, which is added to");
    uint32_t at = target(u, to, bytes);
    with_type(type, [&](auto zero) {
        using T = decltype(zero);
        using C = typename Computing<T>::type;
        C fixed = value ? C(get<T>(static_cast<const uint8_t*>(value), 0)) : C(0);
        uint8_t *pt = &u.bytes[at], *pa = &u.bytes[at_a], *pb = &u.bytes[at_b];
        if ((op == Op::ShiftLeft || op == Op::ShiftRight) && !(fixed >= C(0) && fixed < C(8 * sizeof(T))))
            fail("range", "shifts by %lld bits", (long long)fixed);
        bool old = accumulates(op);
        for (int64_t i = 0; i < count; ++i)
            put<T>(pt, i, element<T>(op, C(get<T>(pa, i)), b ? C(get<T>(pb, i)) : fixed, old ? C(get<T>(pt, i)) : C(0)));
    });
    define(u, at, bytes);
}

double rounded(double x, Round mode) {
    switch (mode) {
        case Round::none: case Round::rint: return std::nearbyint(x);
        case Round::floor: return std::floor(x);
        case Round::ceil: return std::ceil(x);
        case Round::round: return std::round(x);
        case Round::trunc: return std::trunc(x);
        case Round::odd: {
            double t = std::trunc(x);
            return t == x || std::fmod(t, 2) != 0 ? t : t + std::copysign(1.0, x);
        }
    }
    return x;
}

// Round to a binary format: `mantissa` stored bits, exponents from `lowest`; overflow by `largest`.
double rounded_to(double x, int mantissa, int lowest, double largest, Round mode) {
    if (x == 0 || std::isnan(x) || std::isinf(x)) return x;
    int quantum = std::max(std::ilogb(x), lowest) - mantissa;
    double r = std::ldexp(rounded(std::ldexp(x, -quantum), mode), quantum);
    if (std::fabs(r) <= largest) return r == 0 ? std::copysign(0.0, x) : r;
    bool away = mode == Round::none || mode == Round::rint || mode == Round::round ||
                (mode == Round::ceil && x > 0) || (mode == Round::floor && x < 0);
    return std::copysign(away ? INFINITY : largest, x);
}

template <class T>
T saturated(double x) {  // NaN gives 0
    if (std::isnan(x)) return 0;
    constexpr double low = double(std::numeric_limits<T>::min()), high = double(std::numeric_limits<T>::max());
    if (x <= low) return std::numeric_limits<T>::min();
    if (x >= high) return std::numeric_limits<T>::max();  // 2**63 - 1 as a double is 2**63
    return T(x);
}

template <class To, class From>
To converted(From value, Round mode) {
    if constexpr (same<To, half>) {
        half r;
        r.bits = half_bits(float(value), mode);
        return r;
    } else if constexpr (same<To, bfloat16_t>) {
        bfloat16_t r;
        r.bits = bfloat16_bits(float(value), mode);
        return r;
    } else if constexpr (same<To, float>) {
        if constexpr (same<From, float>) return float(rounded(double(value), mode));
        else if constexpr (same<From, int64_t> || same<From, int32_t>) {
            // double would round an int64 a first time; long double has its 64 bits on x86 only.
            float f = float(value);  // to nearest, even
            if (mode == Round::none || mode == Round::rint) return f;
            __int128 exact = value, got = __int128(f);
            if (exact == got) return f;
            float down = got < exact ? f : std::nextafter(f, -INFINITY), up = got > exact ? f : std::nextafter(f, INFINITY);
            __int128 below = exact - __int128(down), above = __int128(up) - exact;
            switch (mode) {
                case Round::floor: return down;
                case Round::ceil: return up;
                case Round::trunc: return exact > 0 ? down : up;
                default: return below < above ? down : above < below ? up : exact > 0 ? up : down;  // ties away
            }
        } else return float(value);
    } else if constexpr (same<From, int32_t> || same<From, int64_t>) {
        if (value < From(std::numeric_limits<To>::min()) && sizeof(To) < sizeof(From)) return std::numeric_limits<To>::min();
        if (value > From(std::numeric_limits<To>::max()) && sizeof(To) < sizeof(From)) return std::numeric_limits<To>::max();
        return To(value);
    } else {
        return saturated<To>(rounded(double(float(value)), mode));
    }
}

template <class To, class From>
void convert(Unit& u, uint32_t to, uint32_t from, int64_t count, Round mode) {
    for (int64_t i = 0; i < count; ++i)
        put<To>(&u.bytes[to], i, converted<To>(get<From>(&u.bytes[from], i), mode));
}

}  // namespace

// ---- half and bfloat16 ----

uint16_t half_bits(float value, Round mode) {
    uint32_t wide;
    memcpy(&wide, &value, 4);
    uint16_t sign = uint16_t(wide >> 16 & 0x8000);
    if (std::isnan(value)) return sign | 0x7e00;
    double r = std::fabs(rounded_to(value, 10, -14, 65504, mode));
    if (std::isinf(r)) return sign | 0x7c00;
    if (r == 0) return sign;
    int e = std::max(std::ilogb(r), -14);
    int m = int(std::ldexp(r, 10 - e));  // with the hidden bit where it is normal
    return uint16_t(sign | (m < 1024 ? m : (e + 15) << 10 | (m - 1024)));
}

float half_value(uint16_t bits) {
    int e = bits >> 10 & 31, m = bits & 1023;
    float r = e == 31 ? (m ? NAN : INFINITY) : e ? std::ldexp(float(m + 1024), e - 25) : std::ldexp(float(m), -24);
    return bits & 0x8000 ? -r : r;
}

uint16_t bfloat16_bits(float value, Round mode) {
    if (std::isnan(value)) return 0x7fc0;
    constexpr double largest = 3.3895313892515355e38;
    float r = float(rounded_to(value, 7, -126, largest, mode));
    uint32_t wide;
    memcpy(&wide, &r, 4);
    return uint16_t(wide >> 16);
}

// ---- buffers and queues ----

uint64_t view_bytes(const View& view) {
    const Buffer& b = unit().buffers.at(view.buffer);
    return b.begin + b.bytes - uint64_t(view.offset);
}

void open_pipe() {
    Unit& u = unit();
    if (u.open_pipes) fail("queue", "a second TPipe while there is one");
    u.open_pipes = 1;
}

void close_pipe() noexcept {
    Unit& u = *static_cast<Unit*>(block().unit);
    for (Buffer& b : u.buffers) {
        if (b.state != State::free && b.state != State::fixed && !u.leak_line) {
            u.leak_line = b.line;
            u.leak_state = b.state;
        }
        b.state = State::free;
        ++b.generation;
    }
    for (auto& row : u.flags)
        for (auto& kind : row)
            for (Flag& f : kind)
                if (f.owned) f = Flag{};  // closing waits for the buffers that were given back
    for (int p = 0; p < pipes; ++p) u.ordered[p] = Clocks{{u.clock, u.clock, u.clock, u.clock}};
    u.used = 0;
    u.open_pipes = 0;
}

int32_t make_buffer(Line line, Position position, uint32_t bytes) {
    enter("InitBuffer", line);
    Unit& u = unit();
    uint32_t length = round_up(bytes);
    if (!bytes) fail("range", "a buffer of 0 bytes");
    if (uint64_t(u.used) + length > UB)
        fail("capacity", "needs %u bytes of unified buffer with what is taken; there are %u", u.used + length, UB);
    if (u.buffers.size() >= BUFFERS) fail("capacity", "more than %u buffers", BUFFERS);
    u.buffers.push_back({u.used, length, State::fixed, position});
    u.buffers.back().line = line;
    u.used += length;
    u.most_used = std::max(u.most_used, u.used);
    return int32_t(u.buffers.size() - 1);
}

int32_t make_queue(Line line, Position position, int depth, uint32_t buffers, uint32_t bytes) {
    enter("InitBuffer", line);
    Unit& u = unit();
    uint32_t total = buffers;
    for (const Queue& q : u.queues) total += q.position == position ? q.buffers : 0;
    if (!buffers) fail("range", "a queue without buffers");
    if (total > QUEUE_BUFFERS)
        fail("capacity", "%u buffers in the queues of one position; there are events for %u", total, QUEUE_BUFFERS);
    Queue q{position, depth, int32_t(u.buffers.size()), buffers, 0, {}};
    for (uint32_t i = 0; i < buffers; ++i) {
        Buffer& b = u.buffers[make_buffer(line, position, bytes)];
        b.state = State::free;
        b.queue = int32_t(u.queues.size());
    }
    u.queues.push_back(q);
    return int32_t(u.queues.size() - 1);
}

View whole_buffer(Line line, int32_t buffer) {
    enter("Get", line);
    Unit& u = unit();
    if (buffer < 0) fail("queue", "a TBuf without InitBuffer");
    return {u.buffers[buffer].begin, buffer, u.buffers[buffer].generation};
}

namespace {

Queue& queue_of(Unit& u, int32_t queue) {
    if (queue < 0) fail("queue", "a TQue without InitBuffer");
    return u.queues[queue];
}

// Who fills a queue's buffers, who empties them; a queue of VECCALC is within the vector pipe.
Pipe producer(Position p) { return p == Position::in ? mte2 : vector; }
Pipe consumer(Position p) { return p == Position::out ? mte3 : vector; }

Buffer& own_buffer(Unit& u, int32_t queue, const View& view) {
    queue_of(u, queue);
    if (view.buffer < 0) fail("queue", "a tensor that no queue gave");
    Buffer& b = u.buffers[view.buffer];
    if (b.queue != queue) fail("queue", "a tensor of another queue");
    if (b.generation != view.generation) fail("queue", "a tensor of an earlier AllocTensor");
    return b;
}

}  // namespace

View allocate(Line line, int32_t queue) {
    enter("AllocTensor", line);
    Unit& u = unit();
    Queue& q = queue_of(u, queue);
    for (uint32_t i = 0; i < q.buffers; ++i) {
        int32_t index = q.first + int32_t((q.cursor + i) % q.buffers);
        Buffer& b = u.buffers[index];
        if (b.state != State::free) continue;
        q.cursor = (q.cursor + i + 1) % q.buffers;
        if (b.event >= 0) {
            Pipe from = consumer(q.position), to = producer(q.position);
            wait(u, to, u.flags[from][to][b.event].clocks);
            u.flags[from][to][b.event] = Flag{};
            b.event = -1;
        }
        b.state = State::allocated;
        b.line = line;
        ++b.generation;
        memset(&u.bytes[b.begin], 0xFD, b.bytes);
        define(u, b.begin, b.bytes, false);
        return {b.begin, index, b.generation};
    }
    fail("queue", "no buffer of the queue is free (%u in all): a FreeTensor is missing; a chip hangs", q.buffers);
}

namespace {

int take_event(Unit& u, Pipe from, Pipe to, bool keep) {
    for (int id = 0; id < EVENTS; ++id) {
        Flag& f = u.flags[from][to][id];
        if (f.owned) continue;
        if (keep) f.owned = true;
        return id;
    }
    fail("flag", "all %d flags from the %s to the %s pipe are in use", EVENTS, PIPE[from], PIPE[to]);
}

void queue_flag(Unit& u, Buffer& b, Pipe from, Pipe to, Line line) {
    if (from == to) return;  // VECCALC: nothing is ordered by such a queue
    b.event = take_event(u, from, to, true);
    Flag& f = u.flags[from][to][b.event];
    if (f.set)
        fail("flag", "the queue's flag %d from the %s to the %s pipe was set by SetFlag at line %u of the text: take ids "
             "from AllocEventID or FetchEventID", b.event, PIPE[from], PIPE[to], f.line);
    f.set = true;
    f.line = line;
    f.clocks = snapshot(u, from);
}

}  // namespace

void enqueue(Line line, int32_t queue, const View& view) {
    enter("EnQue", line);
    Unit& u = unit();
    Buffer& b = own_buffer(u, queue, view);
    Queue& q = u.queues[queue];
    if (b.state != State::allocated) fail("queue", "a tensor that is %s, not allocated", STATE[int(b.state)]);
    if (q.waiting.size() >= size_t(q.depth)) fail("queue", "more tensors than the queue's depth of %d", q.depth);
    b.state = State::queued;
    b.line = line;
    queue_flag(u, b, producer(q.position), consumer(q.position), line);
    q.waiting.push_back(view.buffer);
}

View dequeue(Line line, int32_t queue) {
    enter("DeQue", line);
    Unit& u = unit();
    Queue& q = queue_of(u, queue);
    if (q.waiting.empty()) fail("queue", "an empty queue; a chip hangs");
    int32_t index = q.waiting.front();
    q.waiting.erase(q.waiting.begin());
    Buffer& b = u.buffers[index];
    b.state = State::dequeued;
    b.line = line;
    if (b.event >= 0) {
        Pipe from = producer(q.position), to = consumer(q.position);
        wait(u, to, u.flags[from][to][b.event].clocks);
        u.flags[from][to][b.event] = Flag{};
        b.event = -1;
    }
    return {b.begin, index, b.generation};
}

void release(Line line, int32_t queue, const View& view) {
    enter("FreeTensor", line);
    Unit& u = unit();
    Buffer& b = own_buffer(u, queue, view);
    Queue& q = u.queues[queue];
    if (b.state != State::dequeued && b.state != State::allocated)
        fail("queue", "a tensor that is %s (since line %u of the text)", STATE[int(b.state)], b.line);
    b.state = State::free;
    b.line = line;
    queue_flag(u, b, consumer(q.position), producer(q.position), line);
}

int32_t queued(int32_t queue) { return int32_t(queue_of(unit(), queue).waiting.size()); }

void read_scalar(Line line, const View& view, int64_t index, uint32_t size, void* value) {
    enter("GetValue", line).counts.scalar_reads++;
    Unit& u = unit();
    View at = view;
    at.offset += index * size;
    uint32_t place = place_of(u, at, size, "source");
    touch(u, place, size, scalar, false);
    need_defined(u, place, size, "source");
    memcpy(value, &u.bytes[place], size);
}

void write_scalar(Line line, const View& view, int64_t index, uint32_t size, const void* value) {
    enter("SetValue", line).counts.scalar_writes++;
    Unit& u = unit();
    View at = view;
    at.offset += index * size;
    uint32_t place = place_of(u, at, size, "destination");
    touch(u, place, size, scalar, true);
    memcpy(&u.bytes[place], value, size);
    define(u, place, size);
}

// ---- order ----

void barrier(Line line, int pipe) {
    enter("PipeBarrier", line).counts.barriers++;
    Unit& u = unit();
    if (pipe == pipes) {
        for (auto& o : u.ordered) o = Clocks{{u.clock, u.clock, u.clock, u.clock}};
    } else {
        u.ordered[pipe].of[pipe] = u.clock;
    }
}

namespace {

Flag& flag(Unit& u, Pipe from, Pipe to, int id) {
    if (id < 0 || id >= EVENTS) fail("flag", "event id %d; there are 0 to %d", id, EVENTS - 1);
    return u.flags[from][to][id];
}

}  // namespace

void set_flag(Line line, Pipe from, Pipe to, int id) {
    enter("SetFlag", line).counts.flags++;
    Unit& u = unit();
    Flag& f = flag(u, from, to, id);
    if (f.set) fail("flag", "flag %d from the %s to the %s pipe is set already (at line %u of the text)", id, PIPE[from],
                    PIPE[to], f.line);
    f.set = true;
    f.line = line;
    f.clocks = snapshot(u, from);
}

void wait_flag(Line line, Pipe from, Pipe to, int id) {
    enter("WaitFlag", line);
    Unit& u = unit();
    Flag& f = flag(u, from, to, id);
    if (!f.set) fail("flag", "flag %d from the %s to the %s pipe was not set; a chip hangs", id, PIPE[from], PIPE[to]);
    wait(u, to, f.clocks);
    f.set = false;
}

int allocate_event(Line line, Pipe from, Pipe to, bool keep) {
    enter(keep ? "AllocEventID" : "FetchEventID", line);
    return take_event(unit(), from, to, keep);
}

void release_event(Line line, Pipe from, Pipe to, int id) {
    enter("ReleaseEventID", line);
    Flag& f = flag(unit(), from, to, id);
    if (!f.owned) fail("flag", "event id %d was not allocated", id);
    if (f.set) fail("flag", "event id %d is still set (at line %u of the text)", id, f.line);
    f.owned = false;
}

// ---- instructions ----

void unary(const char* api, Line line, Op op, Type type, View to, View a, int64_t count) {
    elementwise(begin_instruction(api, line, count), op, type, to, a, nullptr, nullptr, count);
}

void binary(const char* api, Line line, Op op, Type type, View to, View a, View b, int64_t count) {
    elementwise(begin_instruction(api, line, count), op, type, to, a, &b, nullptr, count);
}

void with_scalar(const char* api, Line line, Op op, Type type, View to, View a, const void* value, int64_t count) {
    elementwise(begin_instruction(api, line, count), op, type, to, a, nullptr, value, count);
}

void fill(const char* api, Line line, Type type, View to, const void* value, int64_t count) {
    Unit& u = begin_instruction(api, line, count);
    uint32_t size = size_of(type);
    uint32_t at = target(u, to, uint64_t(count) * size);
    for (int64_t i = 0; i < count; ++i) memcpy(&u.bytes[at + i * size], value, size);
    define(u, at, uint64_t(count) * size);
}

void compare(const char* api, Line line, Op op, Type type, View to, View a, const View* b, const void* value,
             int64_t count) {
    Unit& u = begin_instruction(api, line, count);
    uint64_t bytes = uint64_t(count) * size_of(type), bits = uint64_t(count) / 8;
    if (type == Type::i32 && op != Op::EQ) fail("mode", "int32 is compared for equality only");
    if (bytes % 256) fail("compare-size", "compares %llu bytes, which are not a multiple of 256", (unsigned long long)bytes);
    no_overlap(to, bits, a, bytes, false);
    if (b) no_overlap(to, bits, *b, bytes, false);
    uint32_t at_a = source(u, a, bytes, b ? "first source" : "source");
    uint32_t at_b = b ? source(u, *b, bytes, "second source") : 0;
    uint32_t at = target(u, to, bits);
    with_type(type, [&](auto zero) {
        using T = decltype(zero);
        using C = typename Computing<T>::type;
        C fixed = value ? C(get<T>(static_cast<const uint8_t*>(value), 0)) : C(0);
        memset(&u.bytes[at], 0, bits);
        for (int64_t i = 0; i < count; ++i) {
            C x = C(get<T>(&u.bytes[at_a], i)), y = b ? C(get<T>(&u.bytes[at_b], i)) : fixed;
            bool is = op == Op::LT ? x < y : op == Op::GT ? x > y : op == Op::EQ ? x == y
                      : op == Op::LE ? x <= y : op == Op::GE ? x >= y : x != y;
            u.bytes[at + i / 8] |= uint8_t(is << (i % 8));
        }
    });
    define(u, at, bits);
}

void select(const char* api, Line line, Type type, View to, View mask, View a, const View* b, const void* value,
            int64_t count) {
    Unit& u = begin_instruction(api, line, count);
    uint32_t size = size_of(type);
    uint64_t bytes = uint64_t(count) * size, bits = uint64_t(count + 7) / 8;
    no_overlap(to, bytes, mask, bits, false);
    no_overlap(to, bytes, a, bytes, true);
    if (b) no_overlap(to, bytes, *b, bytes, true);
    uint32_t at_m = source(u, mask, bits, "mask");
    uint32_t at_a = source(u, a, bytes, "first source");
    uint32_t at_b = b ? source(u, *b, bytes, "second source") : 0;
    uint32_t at = target(u, to, bytes);
    for (int64_t i = 0; i < count; ++i) {
        bool first = u.bytes[at_m + i / 8] >> (i % 8) & 1;
        const void* from = first ? &u.bytes[at_a + i * size] : b ? &u.bytes[at_b + i * size] : value;
        memmove(&u.bytes[at + i * size], from, size);
    }
    define(u, at, bytes);
}

void reduce(const char* api, Line line, Op op, Type type, View to, View a, View scratch, int64_t count) {
    Unit& u = begin_instruction(api, line, count);
    if (!count) fail("range", "a reduction of 0 elements");
    uint32_t size = size_of(type), per_repeat = 256 / size;
    uint64_t bytes = uint64_t(count) * size;
    // One element for each repeat of 256 bytes, in whole blocks.
    uint64_t needed = round_up((uint64_t(count) + per_repeat - 1) / per_repeat * size);
    no_overlap(to, size, a, bytes, true);
    no_overlap(scratch, needed, a, bytes, false);
    no_overlap(scratch, needed, to, size, false);
    uint32_t from = source(u, a, bytes);
    uint32_t at_s = aligned_place(u, scratch, needed, "scratch");
    touch(u, at_s, needed, vector, true);
    memset(&u.bytes[at_s], 0xFD, needed);
    define(u, at_s, needed, false);
    uint32_t at = target(u, to, size);
    with_type(type, [&](auto zero) {
        using T = decltype(zero);
        using C = typename Computing<T>::type;
        std::vector<C> values(count);
        for (int64_t i = 0; i < count; ++i) values[i] = C(get<T>(&u.bytes[from], i));
        auto combine = [&](C x, C y) {
            return C(T(op == Op::ReduceSum ? x + y : op == Op::ReduceMax ? larger(x, y) : smaller(x, y)));
        };
        // A tree within each repeat, then over the results of the repeats.
        while (values.size() > 1) {
            std::vector<C> next;
            for (size_t begin = 0; begin < values.size(); begin += per_repeat) {
                size_t n = std::min<size_t>(per_repeat, values.size() - begin);
                for (size_t step = 1; step < n; step *= 2)
                    for (size_t i = 0; i + step < n; i += 2 * step)
                        values[begin + i] = combine(values[begin + i], values[begin + i + step]);
                next.push_back(values[begin]);
            }
            values.swap(next);
        }
        put<T>(&u.bytes[at], 0, T(values[0]));
    });
    define(u, at, size);
}

void cast(const char* api, Line line, Type to_type, Type from_type, View to, View a, Round mode, unsigned modes,
          int64_t count) {
    Unit& u = begin_instruction(api, line, count);
    if (!(modes >> int(mode) & 1))
        fail("mode", "%s to %s has no rounding mode %d", TYPE[int(from_type)], TYPE[int(to_type)], int(mode));
    uint64_t to_bytes = uint64_t(count) * size_of(to_type), bytes = uint64_t(count) * size_of(from_type);
    no_overlap(to, to_bytes, a, bytes, to_bytes == bytes);
    uint32_t from = source(u, a, bytes), at = target(u, to, to_bytes);
#define PAIR(T, TC, F, FC) \
    if (to_type == Type::TC && from_type == Type::FC) convert<T, F>(u, at, from, count, mode);
    PAIR(half, f16, int8_t, i8) PAIR(half, f16, uint8_t, u8) PAIR(half, f16, int16_t, i16) PAIR(float, f32, int16_t, i16)
    PAIR(int8_t, i8, half, f16) PAIR(uint8_t, u8, half, f16) PAIR(int16_t, i16, half, f16) PAIR(int32_t, i32, half, f16)
    PAIR(float, f32, half, f16) PAIR(float, f32, bfloat16_t, bf16) PAIR(int32_t, i32, bfloat16_t, bf16)
    PAIR(int16_t, i16, int32_t, i32) PAIR(float, f32, int32_t, i32) PAIR(int64_t, i64, int32_t, i32)
    PAIR(int32_t, i32, int64_t, i64) PAIR(float, f32, int64_t, i64) PAIR(float, f32, float, f32)
    PAIR(half, f16, float, f32) PAIR(bfloat16_t, bf16, float, f32) PAIR(int16_t, i16, float, f32)
    PAIR(int32_t, i32, float, f32) PAIR(int64_t, i64, float, f32)
#undef PAIR
    define(u, at, to_bytes);
}

void copy_local(const char* api, Line line, Type type, View to, View a, int64_t count) {
    Unit& u = begin_instruction(api, line, count);
    uint64_t bytes = uint64_t(count) * size_of(type);
    no_overlap(to, bytes, a, bytes, true);
    uint32_t from = source(u, a, bytes), at = target(u, to, bytes);
    memmove(&u.bytes[at], &u.bytes[from], bytes);
    define(u, at, bytes);
}

// ---- global memory ----

namespace {

// `before` did what is in `list`; `after` touches [begin, end) now.
void check_order(Unit& u, const std::vector<Access>& list, Pipe before, Pipe after, uint64_t begin, uint64_t end,
                 const char* text) {
    for (const Access& x : list)
        if (x.begin < end && begin < x.end && !is_ordered(u, before, x.clock, after))
            fail("hazard", "%s at line %u of the text, and nothing orders the two", text, x.line);
}

void note(Unit& u, bool write, Pipe pipe, uint64_t begin, uint64_t end) {
    auto& list = write ? u.global_writes : u.global_reads;
    list.push_back({begin, end, u.clock, block().line});
    size_t& limit = u.prune_at[write];
    if (list.size() < limit) return;
    // What every pipe that could conflict is ordered after needs no look any more.
    auto settled = [&](const Access& x) {
        if (!write) return is_ordered(u, pipe, x.clock, mte3);
        return is_ordered(u, pipe, x.clock, mte2) && is_ordered(u, pipe, x.clock, scalar);
    };
    list.erase(std::remove_if(list.begin(), list.end(), settled), list.end());
    limit = std::max<size_t>(64, 2 * list.size());
}

void check_copy(const Unit& u, const View& local, Type type, uint64_t rows, uint64_t bytes, int64_t global_gap,
                int64_t local_gap) {
    const Buffer& b = buffer_of(u, local);
    if (b.position == Position::calculation)
        fail("position", "copies between global memory and VECCALC: declare the buffer as VECIN or VECOUT");
    if (local.offset % BLOCK) fail("alignment", "begins at byte %lld of the unified buffer, not at a multiple of 32",
                                   (long long)local.offset);
    if (rows > 4095) fail("range", "blockCount is %llu; at most 4095", (unsigned long long)rows);
    if (bytes > 2097151) fail("range", "blockLen is %llu bytes; at most 2097151", (unsigned long long)bytes);
    if (bytes % size_of(type)) fail("range", "blockLen is %llu bytes, not a multiple of the element's %u",
                                    (unsigned long long)bytes, size_of(type));
    if (global_gap < 0 || local_gap < 0) fail("range", "a negative stride");
}

}  // namespace

void copy_in(const char* api, Line line, Type type, View to, Global from, uint64_t rows, uint64_t bytes,
             int64_t global_gap, int64_t local_gap, Padding padding) {
    Block& b = enter(api, line);
    Unit& u = unit();
    check_copy(u, to, type, rows, bytes, global_gap, local_gap);
    uint32_t size = size_of(type);
    uint64_t left = padding.left * size, right = padding.right * size;
    if (left > 32 || right > 32) fail("range", "pads by %llu bytes; at most 32", (unsigned long long)std::max(left, right));
    uint64_t zero = 0;
    if (padding.pad && size == 8 && memcmp(padding.value, &zero, 8)) fail("range", "64-bit elements are padded with 0 only");
    if (!rows || !bytes) return;
    b.counts.copies_in++;
    uint64_t row = round_up(left + bytes + right);
    View at = to;
    for (uint64_t i = 0; i < rows; ++i) {
        auto pointer = reinterpret_cast<const uint8_t*>(from.address);
        check_global(from.range, pointer, bytes, false);
        uint32_t place = place_of(u, at, row, "destination");
        touch(u, place, row, mte2, true);
        check_order(u, u.global_writes, mte3, mte2, from.address, from.address + bytes,
                    "reads global memory that a copy out wrote");
        note(u, false, mte2, from.address, from.address + bytes);
        memset(&u.bytes[place], 0xFD, row);
        define(u, place, row, false);
        {
            GlobalLock lock;
            memcpy(&u.bytes[place + left], pointer, bytes);
        }
        define(u, place + left, bytes);
        if (padding.pad) {
            auto pad = [&](uint64_t begin, uint64_t length) {
                for (uint64_t k = 0; k < length; k += size) memcpy(&u.bytes[place + begin + k], padding.value, size);
                define(u, place + begin, length);
            };
            pad(0, left);
            pad(left + bytes, right);
        }
        b.counts.bytes_in += bytes;
        from.address += bytes + uint64_t(global_gap);
        at.offset += int64_t(row) + local_gap * BLOCK;
    }
}

void copy_out(const char* api, Line line, Type type, Global to, View from, uint64_t rows, uint64_t bytes,
              int64_t global_gap, int64_t local_gap) {
    Block& b = enter(api, line);
    Unit& u = unit();
    check_copy(u, from, type, rows, bytes, global_gap, local_gap);
    if (u.atomic != Accumulate::none && u.atomic_type != type)
        fail("atomic", "the atomic mode (line %u of the text) is for %s, not %s", u.atomic_line,
             TYPE[int(u.atomic_type)], TYPE[int(type)]);
    if (!rows || !bytes) return;
    b.counts.copies_out++;
    for (uint64_t i = 0; i < rows; ++i) {
        auto pointer = reinterpret_cast<uint8_t*>(to.address);
        check_global(to.range, pointer, bytes, true);
        uint32_t place = place_of(u, from, bytes, "source");
        touch(u, place, bytes, mte3, false);
        need_defined(u, place, bytes, "source");
        uint64_t end = to.address + bytes;
        check_order(u, u.global_reads, mte2, mte3, to.address, end, "writes global memory that a copy in read");
        note(u, true, mte3, to.address, end);
        if (!u.copied_out.empty() && u.copied_out.back().second == to.address) u.copied_out.back().second = end;
        else u.copied_out.push_back({to.address, end});
        GlobalLock lock;
        if (u.atomic == Accumulate::none) {
            memcpy(pointer, &u.bytes[place], bytes);
        } else {
            auto accumulate = [&](auto zero) {
                using T = decltype(zero);
                using C = typename Computing<T>::type;
                for (int64_t k = 0; k < int64_t(bytes / sizeof(T)); ++k) {
                    C x = C(get<T>(pointer, k)), y = C(get<T>(&u.bytes[place], k));
                    put<T>(pointer, k, T(u.atomic == Accumulate::add ? C(x + y)
                                         : u.atomic == Accumulate::max ? larger(x, y) : smaller(x, y)));
                }
            };
            if (type == Type::i8) accumulate(int8_t{});
            else if (type == Type::bf16) accumulate(bfloat16_t{});
            else with_type(type, accumulate);
        }
        b.counts.bytes_out += bytes;
        to.address += bytes + uint64_t(global_gap);
        from.offset += int64_t(round_up(bytes)) + local_gap * BLOCK;
    }
}

namespace {

CacheLine& cached(Unit& u, uint64_t address) {
    auto [found, is_new] = u.cache.try_emplace(address);
    if (is_new) {
        GlobalLock lock;
        memcpy(found->second.bytes, reinterpret_cast<const void*>(address), LINE);  // whole lines are in one page
        found->second.fetched = u.clock;
    }
    return found->second;
}

void clean(Unit& u, std::map<uint64_t, CacheLine>::iterator at) {
    CacheLine& c = at->second;
    if (c.any_dirty) {
        GlobalLock lock;
        // A chip writes the line whole. Here only what was stored goes back: that two blocks share a line is found
        // by `check_lines`, and other arrays of the process stay intact.
        for (uint64_t i = 0; i < LINE; ++i)
            if (c.dirty[i]) reinterpret_cast<uint8_t*>(at->first)[i] = c.bytes[i];
        u.dirtied.push_back(at->first);
    }
    u.cache.erase(at);
}

}  // namespace

void read_global(Line line, Global from, uint32_t size, void* value) {
    enter("GlobalTensor::GetValue", line).counts.global_reads++;
    Unit& u = unit();
    check_global(from.range, reinterpret_cast<const void*>(from.address), size, false);
    check_order(u, u.global_writes, mte3, scalar, from.address, from.address + size,
                "reads global memory that a copy out wrote");
    for (uint32_t i = 0; i < size; ++i) {  // an element may lie across two lines
        uint64_t address = from.address + i;
        CacheLine& c = cached(u, address / LINE * LINE);
        for (const Access& x : u.global_writes)
            if (x.begin <= address && address < x.end && x.clock > c.fetched)
                fail("stale-cache", "reads a cache line that was fetched before the copy out at line %u of the text wrote to "
                     "it: DataCacheCleanAndInvalid first", x.line);
        static_cast<uint8_t*>(value)[i] = c.bytes[address % LINE];
    }
}

void write_global(Line line, Global to, uint32_t size, const void* value) {
    enter("GlobalTensor::SetValue", line).counts.global_writes++;
    Unit& u = unit();
    check_global(to.range, reinterpret_cast<const void*>(to.address), size, true);
    for (uint32_t i = 0; i < size; ++i) {
        uint64_t address = to.address + i;
        CacheLine& c = cached(u, address / LINE * LINE);
        c.bytes[address % LINE] = static_cast<const uint8_t*>(value)[i];
        c.dirty[address % LINE] = true;
        if (!c.any_dirty) c.line = line;
        c.any_dirty = true;
    }
}

void clean_cache(Line line, Global at, bool all, bool to_memory) {
    enter("DataCacheCleanAndInvalid", line);
    Unit& u = unit();
    if (!to_memory) fail("mode", "only CACHELINE_OUT and CACHELINE_ALL reach global memory");
    if (all) {
        while (!u.cache.empty()) clean(u, u.cache.begin());
    } else if (auto found = u.cache.find(at.address / LINE * LINE); found != u.cache.end()) {
        clean(u, found);
    }
}

void set_atomic(const char* api, Line line, Accumulate kind, Type type) {
    enter(api, line);
    Unit& u = unit();
    u.atomic = kind;
    u.atomic_type = type;
    u.atomic_line = line;
}

// ---- a launch ----

namespace {

void check_end(Unit& u) {
    enter("end of the kernel", 0);
    if (u.leak_line) {
        enter("~TPipe", u.leak_line);
        fail("queue", "a tensor is still %s at the end of the kernel", STATE[int(u.leak_state)]);
    }
    for (int from = 0; from < pipes; ++from)
        for (int to = 0; to < pipes; ++to)
            for (int id = 0; id < EVENTS; ++id)
                if (const Flag& f = u.flags[from][to][id]; f.set) {
                    enter("SetFlag", f.line);
                    fail("flag", "nobody waits for flag %d from the %s to the %s pipe", id, PIPE[from], PIPE[to]);
                }
    if (u.atomic != Accumulate::none) {
        enter("SetAtomic", u.atomic_line);
        fail("atomic", "the atomic mode is on at the end of the kernel: SetAtomicNone");
    }
    for (auto& [address, c] : u.cache)
        if (c.any_dirty) {
            enter("GlobalTensor::SetValue", c.line);
            fail("cache", "the store is in the scalar unit's cache at the end of the kernel: DataCacheCleanAndInvalid");
        }
}

void check_lines(Unit& u, Shared& shared) {
    std::lock_guard<std::mutex> lock(shared.mutex);
    uint32_t id = block().id;
    for (uint64_t line : u.dirtied) {
        auto [found, is_new] = shared.dirtied.try_emplace(line, id);
        if (!is_new && found->second != id)
            fail("cache", "blocks %u and %u store to one cache line of 64 bytes: one overwrites the other", found->second, id);
    }
    for (auto& range : u.copied_out) {
        shared.copied_out.push_back(range);
        shared.copied_by.push_back(id);
    }
    if (shared.dirtied.empty()) return;
    for (size_t i = 0; i < shared.copied_out.size(); ++i) {
        auto [begin, end] = shared.copied_out[i];
        auto at = shared.dirtied.lower_bound(begin / LINE * LINE);
        for (; at != shared.dirtied.end() && at->first < end; ++at)
            if (at->second != shared.copied_by[i])
                fail("cache", "block %u stores to a cache line of 64 bytes that block %u copies to: one overwrites the other",
                     at->second, shared.copied_by[i]);
    }
}

void run_one(void* data) {
    thread_local std::unique_ptr<Unit> mine;
    if (mine) mine->reset();
    else mine.reset(new Unit);
    block().unit = mine.get();
    Shared& shared = *static_cast<Shared*>(data);
    shared.body(shared.data);
    check_end(*mine);
    check_lines(*mine, shared);
}

}  // namespace

int launch_vector(void* stream, uint32_t blocks, void (*body)(void*), void* data) {
    Shared shared;
    shared.body = body;
    shared.data = data;
    return run_blocks(stream, blocks, run_one, &shared);
}

}  // namespace twin
