// The emulator's tensor core steps and conversions of the element types: what gpu/mma.cuh is on a GPU. A step's
// operands lie across the warp as PTX ISA lays them out (mma.m16n8k16 and mma.m16n8k32).
#pragma once

#include "emulator.hpp"

struct __nv_bfloat16 {
    uint16_t bits;
};
struct __half {
    uint16_t bits;
};

namespace santa {

template <typename T>
inline T from_float(float x);
template <>
inline __nv_bfloat16 from_float<__nv_bfloat16>(float x) {
    const uint32_t bits = __float_as_uint(x);
    if (x != x) return {0x7fff};
    return {uint16_t((bits + 0x7fff + (bits >> 16 & 1)) >> 16)};
}

template <typename T>
inline float2 to_float2(uint32_t two);
template <>
inline float2 to_float2<__nv_bfloat16>(uint32_t two) {
    return {__uint_as_float(two << 16), __uint_as_float(two & 0xffff0000u)};
}
template <>
inline float2 to_float2<__half>(uint32_t two) {
    const auto widen = [](uint32_t h) {
        const int exponent = h >> 10 & 31, fraction = h & 1023;
        const float size = exponent == 0    ? std::ldexp(float(fraction), -24)
                           : exponent == 31 ? (fraction ? NAN : INFINITY)
                                            : std::ldexp(float(1024 + fraction), exponent - 25);
        return h & 0x8000 ? -size : size;
    };
    return {widen(two & 0xffff), widen(two >> 16)};
}
template <>
inline __half from_float<__half>(float x) {
    const uint16_t sign = std::signbit(x) ? 0x8000 : 0;
    const float size = std::fabs(x);
    if (x != x) return {0x7fff};
    if (size == 0.0f) return {sign};
    if (size >= 65520.0f) return {uint16_t(sign | 0x7c00)};
    int exponent;
    std::frexp(size, &exponent);
    const int unit = std::max(exponent, -13) - 11; // of the last place
    // A significand that rounds up to the next power of two carries into the exponent.
    const int significand = int(std::nearbyint(std::ldexp(size, -unit)));
    return {uint16_t(sign | (exponent < -13 ? significand : ((exponent + 13) << 10) + significand))};
}

struct Operands {
    uint32_t a[4], b[2];
};

// Rows and columns of a lane's four results; `dot` multiplies the words of a row with those of a column.
template <typename Sum, class F>
inline void emulated_mma(Sum (&d)[4], const Operands& mine, F dot) {
    const auto told = emulator::tell(mine);
    const int group = emulator::lane() / 4, quad = emulator::lane() % 4;
    for (int i = 0; i < 4; ++i) {
        const int row = group + i / 2 * 8, column = quad * 2 + i % 2;
        for (int t = 0; t < 4; ++t) {
            const Operands &left = told.lane[row % 8 * 4 + t], &right = told.lane[column * 4 + t];
            d[i] = dot(dot(d[i], left.a[row / 8], right.b[0]), left.a[row / 8 + 2], right.b[1]);
        }
    }
}

template <typename T>
inline void mma_16816(float (&d)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1) {
    emulated_mma(d, {{a0, a1, a2, a3}, {b0, b1}}, [](float sum, uint32_t x, uint32_t y) {
        const float2 left = to_float2<T>(x), right = to_float2<T>(y);
        return sum + left.x * right.x + left.y * right.y;
    });
}

inline void mma_16832(int (&d)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1) {
    emulated_mma(d, {{a0, a1, a2, a3}, {b0, b1}}, [](int sum, uint32_t x, uint32_t y) {
        for (int e = 0; e < 4; ++e) sum += int8_t(x >> (8 * e)) * int8_t(y >> (8 * e));
        return sum;
    });
}

} // namespace santa
