// Instructions of the vector pipe: operands are checked, then computed with a rounding to the dtype for each.
#include "vector_state.h"

namespace twin {

namespace {

// ---- arithmetic ----

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
    // First: one that is too short often meets what lies behind it, which would be told instead.
    uint32_t at_s = aligned_place(u, scratch, needed, "scratch");
    no_overlap(to, size, a, bytes, true);
    no_overlap(scratch, needed, a, bytes, false);
    no_overlap(scratch, needed, to, size, false);
    uint32_t from = source(u, a, bytes);
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

}  // namespace twin
