// `sys`: floating-point scores; weights are integers, at most 65535, relative to the power of two at or above the
// tile's largest score. So a mass relative to another power of two is a shift away, masses and prefix sums are exact,
// and the same whoever computes them.
//
// The offset and the tiles' shares of the samples follow numeric contract 3.5 and 3.6 on masses relative to the power of
// two at or above the row's largest score: the counts sum to S always.
#pragma once

#include "arguments.cuh"
#include "arithmetic.cuh"
#include "fragments.cuh"

namespace santa {

// Sum of the two halves of each word, and more.
__device__ inline uint32_t add_halves(uint4 x, uint32_t sum = 0) {
    sum = __dp2a_lo(x.x, 0x0101u, sum);
    sum = __dp2a_lo(x.y, 0x0101u, sum);
    sum = __dp2a_lo(x.z, 0x0101u, sum);
    return __dp2a_lo(x.w, 0x0101u, sum);
}

template <class S>
struct Sys {
    using Shape = S;
    using Stat = uint2; // exponent of the power of two; sum of the weights, kValid: each is 0 until it is written
    static constexpr uint32_t kValid = 1u << 31;

    // Scores ---------------------------------------------------------------------------------------------------------

    __device__ static bool common(const Work&) { return true; }

    __device__ static uint4 query_unit(const Work&, uint4 elements, int, int) { return elements; }

    // Weights and statistics of a tile for one query head by eight lanes: `x` are the dot products of this lane's eight
    // tokens, `seen` says how many of them count, `stored` is what the scratch gets.
    template <bool, bool>
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
        top = fminf(fmaxf(ceilf(top), -kMaxScale), kMaxScale);
        uint32_t pair[4];
#pragma unroll
        for (int e = 0; e < 8; e += 2) {
            // Adding 2^23 leaves the rounded weight in the low bits.
            const float w0 = fmaf(power_of_two(x[e] - top), 65535.0f, 8388608.0f);
            const float w1 = fmaf(power_of_two(x[e + 1] - top), 65535.0f, 8388608.0f);
            pair[e / 2] = __byte_perm(__float_as_uint(w0), __float_as_uint(w1), 0x5410);
        }
        stored = uint4{pair[0], pair[1], pair[2], pair[3]};
        const uint32_t sum = across_head(add_halves(stored), [](uint32_t a, uint32_t b) { return a + b; });
        return {uint32_t(int(top)), sum | kValid};
    }

    // Draw -----------------------------------------------------------------------------------------------------------

    __device__ static bool valid(Stat stat) { return stat.y & kValid; }
    __device__ static Stat invalid(Stat stat) { return {stat.x, stat.y & ~kValid}; }

    __device__ static int maximum(Stat stat) { return int(stat.x); }

    // A tile's mass relative to 2^top.
    __device__ static uint64_t mass(const Work& work, Stat stat, int top) {
        return uint64_t(stat.y & ~kValid) << work.p.exponent >> min(top - maximum(stat), 63);
    }

    // Whether that takes the tile's scores, and then the mass.
    __device__ static bool is_far(const Work&, Stat, int) { return false; }
    __device__ static uint64_t far_mass(const Work&, const uint32_t*, const uint16_t*, int, int) { return 0; }

    template <bool>
    __device__ static uint32_t weight(const Work&, const uint32_t*, uint32_t stored, int) {
        return stored;
    }

    // Position x of a mass `from` as a position of the same mass relative to another power of two, `to`.
    __device__ static uint64_t rescale(uint64_t x, uint64_t from, uint64_t to) {
        const int right = __clzll(to) - __clzll(from);
        return min(right >= 0 ? x >> right : x << -right, to - 1);
    }

    static constexpr float kMaxScale = 65535.0f; // octaves: larger scores are taken for that

    // Words are whole: 32 bits.
    __device__ static int word_bits(const Work&) { return 32; }
};

} // namespace santa
