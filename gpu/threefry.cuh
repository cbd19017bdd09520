// Threefry-2x32-20 (Random123) and the words of numeric contract 3.9: key (seed, sequence), counter (position,
// purpose | stream | j >> 1). A captured graph that updates `position` in place draws anew at every replay.
#pragma once

#include <cstdint>

namespace santa {

enum class Purpose : uint32_t { kOffset = 0, kTernary = 1 };

struct DrawArguments {
    const int64_t* sequence; // [B]
    const int64_t* position; // [B]
    uint32_t seed;
    int32_t layer;
};

struct WordPair {
    uint32_t first, second;
};

__device__ inline WordPair threefry(uint32_t k0, uint32_t k1, uint32_t c0, uint32_t c1) {
    const uint32_t key[3] = {k0, k1, 0x1bd11bdau ^ k0 ^ k1};
    constexpr uint32_t kRotations[8] = {13, 15, 26, 6, 17, 29, 16, 24};
    uint32_t x0 = c0 + k0, x1 = c1 + k1;
#pragma unroll
    for (int round = 0; round < 20; ++round) {
        x0 += x1;
        x1 = __funnelshift_l(x1, x1, kRotations[round % 8]) ^ x0;
        if (round % 4 == 3) {
            const int i = round / 4 + 1;
            x0 += key[i % 3];
            x1 += key[(i + 1) % 3] + i;
        }
    }
    return {x0, x1};
}

// Where in its sequence a decode step is.
struct DrawPlace {
    int64_t sequence, position;
};

// Words j and j + 1 (j even).
__device__ inline WordPair place_words(const DrawArguments& draw, DrawPlace place, Purpose purpose, uint32_t stream,
                                       uint32_t j) {
    return threefry(draw.seed, uint32_t(place.sequence), uint32_t(place.position),
                    uint32_t(purpose) << 30 | stream << 16 | j >> 1);
}

// The same of sequence b of the batch.
__device__ inline WordPair draw_words(const DrawArguments& draw, int b, Purpose purpose, uint32_t stream, uint32_t j) {
    return place_words(draw, {__ldcg(draw.sequence + b), __ldcg(draw.position + b)}, purpose, stream, j);
}

__device__ inline uint32_t draw_word(const DrawArguments& draw, int b, Purpose purpose, uint32_t stream, uint32_t j) {
    const WordPair words = draw_words(draw, b, purpose, stream, j);
    return j & 1 ? words.second : words.first;
}

// floor(word * mass / 2^bits), exactly (3.5).
__device__ inline uint64_t scaled_offset(uint32_t word, uint64_t mass, int bits) {
    const uint64_t low = mass & ((uint64_t(1) << bits) - 1);
    return word * (mass >> bits) + ((word * low) >> bits);
}

} // namespace santa
