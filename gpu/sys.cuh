// `sys`: floating-point scores; weights are integers, 65535 at the tile's largest score, so that masses and prefix sums
// are exact and the same whoever computes them.
//
// A row's masses are fixed-point numbers relative to the row's largest score; the offset and the tiles' shares of the
// samples follow numeric contract 3.5 and 3.6 on them, so the counts sum to S always. Inside a tile a threshold is
// scaled to the tile's own weights.
#pragma once

#include "arguments.cuh"
#include "arithmetic.cuh"
#include "fragments.cuh"

namespace santa {

// Floats in an order-preserving integer, for integer maxima.
__device__ inline int ordered(float x) {
    const int bits = __float_as_int(x);
    return bits ^ (bits >> 31 & 0x7fffffff);
}

__device__ inline float unordered(int bits) { return __int_as_float(bits ^ (bits >> 31 & 0x7fffffff)); }

template <class S>
struct Sys {
    using Shape = S;
    using Stat = uint2; // maximum as a float's bits, sum of the weights
    using Sum = uint32_t;

    // Scores ---------------------------------------------------------------------------------------------------------

    __device__ static uint4 query_unit(const Work& work, int b, int head, int u) {
        const char* q = static_cast<const char*>(work.a.q) + (int64_t(b) * work.a.heads + head) * S::kRowBytes;
        return *reinterpret_cast<const uint4*>(q + u * 16);
    }

    // Weights and statistics of a tile for one query head by eight lanes: `x` are the dot products of this lane's eight
    // tokens, `seen` says how many of them count, `stored` is what the scratch gets.
    template <bool SharedTable>
    __device__ static Stat finish(const Work& work, float (&x)[8], int seen, int, const uint32_t*, uint4& stored) {
        if (seen < 8) {
#pragma unroll
            for (int e = 0; e < 8; ++e) x[e] = e < seen ? x[e] : -INFINITY;
        }
        float top = -INFINITY;
#pragma unroll
        for (int e = 0; e < 8; ++e) {
            x[e] *= work.a.scale;
            top = fmaxf(top, x[e]);
        }
        top = across_head(top, [](float a, float b) { return fmaxf(a, b); });
        uint32_t pair[4], mass = 0;
#pragma unroll
        for (int e = 0; e < 8; e += 2) {
            // Adding 2^23 leaves the rounded weight in the low bits.
            const float w0 = fmaf(power_of_two(x[e] - top), 65535.0f, 8388608.0f);
            const float w1 = fmaf(power_of_two(x[e + 1] - top), 65535.0f, 8388608.0f);
            pair[e / 2] = __byte_perm(__float_as_uint(w0), __float_as_uint(w1), 0x5410);
            mass += (pair[e / 2] & 0xffff) + (pair[e / 2] >> 16);
        }
        stored = uint4{pair[0], pair[1], pair[2], pair[3]};
        return {__float_as_uint(top), across_head(mass, [](uint32_t a, uint32_t b) { return a + b; })};
    }

    // Draw -----------------------------------------------------------------------------------------------------------

    __device__ static int maximum(Stat stat) { return ordered(__uint_as_float(stat.x)); }

    // A tile's share of the row's fixed-point mass.
    __device__ static uint64_t mass(const Work& work, Stat stat, int top, const uint16_t*, int) {
        const float below = __uint_as_float(stat.x) - unordered(top);
        const float unit = __uint_as_float(uint32_t(127 + work.p.exponent) << 23);
        return __float2ull_rn(float(stat.y) * power_of_two(below) * unit);
    }

    __device__ static uint32_t weight(const Work&, uint32_t stored, int) { return stored; }

    // Where in the tile's own weights (sum `own`) lies position x of its share.
    __device__ static Sum inside(uint64_t x, uint64_t share, Sum own) {
        const double whole = double(share);
        double inverse = rough_inverse(whole); // then Newton twice
        inverse = fma(fma(-whole, inverse, 1.0), inverse, inverse);
        inverse = fma(fma(-whole, inverse, 1.0), inverse, inverse);
        return min(Sum((double(x) + 0.5) * double(own) * inverse), own - 1);
    }

    // Words are whole: 32 bits.
    __device__ static int word_bits(const Work&) { return 32; }
};

} // namespace santa
