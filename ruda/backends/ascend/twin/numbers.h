// half and bfloat16: sixteen bits, arithmetic in float, one rounding for each operation.
//
// float has more than twice the mantissa bits of both, so rounding the float result of + - * / and the square
// root once more gives the correctly rounded result.
#pragma once
#include <cstdint>
#include <cstring>

namespace twin {

enum class Round { none, rint, floor, ceil, round, trunc, odd };

double rounded(double value, Round mode);  // to an integer; `odd`: what is inexact becomes odd
uint16_t half_bits(float value, Round mode = Round::rint);
float half_value(uint16_t bits);
uint16_t bfloat16_bits(float value, Round mode = Round::rint);
inline float bfloat16_value(uint16_t bits) {
    uint32_t wide = uint32_t(bits) << 16;
    float value;
    memcpy(&value, &wide, 4);
    return value;
}

}  // namespace twin

struct half {
    uint16_t bits;
    half() = default;
    half(float value) : bits(twin::half_bits(value)) {}
    operator float() const { return twin::half_value(bits); }
};

struct bfloat16_t {
    uint16_t bits;
    bfloat16_t() = default;
    bfloat16_t(float value) : bits(twin::bfloat16_bits(value)) {}
    operator float() const { return twin::bfloat16_value(bits); }
};
