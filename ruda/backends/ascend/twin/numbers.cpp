// The runtime behind numbers.h: rounding by each of the chip's modes. What overflows half or bfloat16 becomes infinite
// where the mode rounds away, which is the chip's INF/NAN mode.
#include "numbers.h"

#include <algorithm>
#include <cmath>

namespace twin {

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

namespace {

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

}  // namespace

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

}  // namespace twin
