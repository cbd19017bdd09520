// `fixed`: the numeric contract on int8 codes, every intermediate bit for bit.
//
// Weights are relative to the row's maximum, which is known only when all scores are. Shifts compose, so a tile keeps
// the sum of its weights relative to its own maximum and how many have bit 0, 1, ... set: from these follows the exact
// sum of the weights shifted further. Tiles far below the row's maximum are summed again from their scores.
#pragma once

#include <climits>
#include <type_traits>

#include "arguments.cuh"
#include "arithmetic.cuh"
#include "fragments.cuh"

namespace santa {

// How many of eight words have bit 0, 1, ... 8 set.
struct BitCounts {
    uint32_t low, high, last; // of bits 0-3 and of bits 4-7, a byte each; of bit 8

    __device__ explicit BitCounts(const uint32_t (&x)[8]) {
        // Full adders, bit by bit: two make two of three words, and what they carry counts twice. Bit i of digit k is
        // then digit k of bit i's count.
        const auto odd = [](uint32_t a, uint32_t b, uint32_t c) { return a ^ b ^ c; };
        const auto carry = [](uint32_t a, uint32_t b, uint32_t c) { return (a & b) | (c & (a | b)); };
        const uint32_t a = odd(x[0], x[1], x[2]), b = odd(x[3], x[4], x[5]), c = odd(x[6], x[7], a);
        const uint32_t twos[4] = {carry(x[0], x[1], x[2]), carry(x[3], x[4], x[5]), carry(x[6], x[7], a), b & c};
        const uint32_t d = odd(twos[0], twos[1], twos[2]), fours = carry(twos[0], twos[1], twos[2]);
        const uint32_t digit[4] = {b ^ c, d ^ twos[3], fours ^ (d & twos[3]), fours & d & twos[3]};
        // Digits of a bit side by side: two of every second bit in pairs, four of every fourth.
        uint32_t pair[2][2], four[2][2]; // [digits 0-1 or 2-3][even or odd bits]; [odd][beginning with bit 0-1 or 2-3]
#pragma unroll
        for (int k = 0; k < 2; ++k) {
            pair[k][0] = (digit[2 * k] & 0x5555) | (digit[2 * k + 1] << 1 & 0xaaaa);
            pair[k][1] = (digit[2 * k] >> 1 & 0x5555) | (digit[2 * k + 1] & 0xaaaa);
        }
#pragma unroll
        for (int odd = 0; odd < 2; ++odd) {
            four[odd][0] = (pair[0][odd] & 0x3333) | (pair[1][odd] << 2 & 0xcccc);
            four[odd][1] = (pair[0][odd] >> 2 & 0x3333) | (pair[1][odd] & 0xcccc);
        }
        // Of bits 0, 8, 1, 9 and of 2, 10, 3, 11; then of 4, 12, 5, 13 and of 6, 14, 7, 15.
        constexpr uint32_t kNibbles = 0x0f0f0f0f;
        const uint32_t first = __byte_perm(four[0][0], four[1][0], 0x5410);
        const uint32_t second = __byte_perm(four[0][1], four[1][1], 0x5410);
        low = __byte_perm(first & kNibbles, second & kNibbles, 0x6420);
        high = __byte_perm(first >> 4 & kNibbles, second >> 4 & kNibbles, 0x6420);
        last = four[0][0] >> 8 & 15;
    }
};

// Signed ternary counts (3.3) of 16 query codes, features `first` and on.
__device__ __noinline__ inline uint4 ternary_unit(const DecodeArguments& a, uint4 codes, int b, int head, int first) {
    const int group = a.heads / a.kv_heads;
    const uint32_t stream = a.draw.layer * a.heads + (a.ternary_shared ? head - head % group : head);
    const uint32_t words[4] = {codes.x, codes.y, codes.z, codes.w};
    uint32_t counts[4] = {};
#pragma unroll
    for (int w = 0; w < 4; ++w) {
#pragma unroll 1
        for (int e = 0; e < 4; e += 2) {
            const WordPair pair = draw_words(a.draw, b, Purpose::kTernary, stream, first + w * 4 + e);
#pragma unroll
            for (int o = 0; o < 2; ++o) {
                const int code = int8_t(words[w] >> (8 * (e + o)));
                // The word's R - f low bits never carry.
                const uint32_t r = (o ? pair.second : pair.first) >> (32 - a.query_frac);
                const int count = int(((uint32_t(abs(code)) << a.beta) + r) >> a.query_frac);
                const int signed_count = code < 0 ? -count : count;
                counts[w] |= uint32_t(uint8_t(signed_count)) << (8 * (e + o));
            }
        }
    }
    return {counts[0], counts[1], counts[2], counts[3]};
}

// The weight of a stored score (3.4), cut or as asked for. No branches: several overlap.
template <bool Cut>
__device__ inline uint32_t fixed_weight(const DecodeArguments& a, const uint32_t* table, uint32_t stored, int top) {
    const int score = int16_t(stored);
    const uint32_t entry = table[uint32_t(score) & ((1u << a.score_frac) - 1)];
    const int shift = top - (score >> a.score_frac);
    const uint32_t last = !Cut && a.half_up ? shift_right(entry, shift - 1) & 1 : 0;
    return shift_right(entry, shift) + last;
}

// The weights of a tile's stored scores, `tokens` of them, summed one by one. Few tiles need it.
__device__ __noinline__ inline uint64_t fixed_mass(const DecodeArguments& a, const uint32_t* table,
                                                   const uint16_t* scores, int tokens, int top) {
    uint64_t sum = 0;
#pragma unroll 1
    for (int n = 0; n < tokens; n += 8) {
        const uint4 eight = __ldcg(reinterpret_cast<const uint4*>(scores + n));
        const uint32_t words[4] = {eight.x, eight.y, eight.z, eight.w};
#pragma unroll
        for (int e = 0; e < 8; ++e) {
            if (n + e < tokens) sum += fixed_weight<false>(a, table, words[e / 2] >> (e % 2 * 16) & 0xffff, top);
        }
    }
    return sum;
}

template <class S>
struct Fixed {
    using Shape = S;
    // Sum of the weights (38 bits), maximum (16), counts of bits 0-7 and of bit 8 or, half_up, of the weights that
    // round up (8 each): {sum low, maximum << 16 | last count << 8 | kValid | sum high, counts 0-3, counts 4-7}.
    using Stat = uint4;
    static constexpr uint32_t kValid = 1u << 7; // 0 until the tile's are written

    // Scores ---------------------------------------------------------------------------------------------------------

    __device__ static uint4 query_unit(const Work& work, uint4 codes, int row, int u) {
        if (!work.a.ternary) return codes;
        const int b = unsigned(row) / unsigned(work.a.heads);
        return ternary_unit(work.a, codes, b, row - b * work.a.heads, u * 16);
    }

    // Shift, round half up and saturate (3.2). A dot product has at most 24 bits and a score 16: neither clamp of the
    // shift changes a score.
    __device__ static void scores(const Work& work, int (&x)[8], int shift) {
        const int high = (1 << (work.a.score_bits - 1)) - 1, right = min(shift, 30), left = min(-shift, 15);
        if (shift >= 0) {
            const int half = right > 0 ? 1 << (right - 1) : 0;
#pragma unroll
            for (int e = 0; e < 8; ++e) x[e] = (x[e] + half) >> right;
        } else {
#pragma unroll
            for (int e = 0; e < 8; ++e) x[e] = min(max(x[e], -(1 << 15)), 1 << 15) << left;
        }
        // A dot product is at most d * 2^14: few shifts leave one that large.
        if (shift >= 0 && ((S::kDim << 14) + (1 << right)) >> right <= high) return;
#pragma unroll
        for (int e = 0; e < 8; ++e) x[e] = min(max(x[e], -high - 1), high);
    }

    // What is most common: the table in shared memory, weights that are cut, and narrow.
    __device__ static bool common(const Work& work) {
        return work.shares_table() && !work.a.half_up && narrow(work);
    }

    // Scores and statistics of a tile for one query head by eight lanes: `x` are the dot products of this lane's eight
    // tokens, `seen` says how many of them count, `stored` is what the scratch gets.
    template <bool SharedTable, bool HalfUp>
    __device__ static Stat finish(const Work& work, int (&x)[8], int seen, int shift, const uint32_t* table,
                                  uint4& stored) {
        constexpr int kUnseen = -(1 << 30); // so far below that its weight is zero
        const int frac = work.a.score_frac;
        int top = kUnseen;
        scores(work, x, shift);
        if (seen < 8) {
#pragma unroll
            for (int e = 0; e < 8; ++e) x[e] = e < seen ? x[e] : kUnseen;
        }
#pragma unroll
        for (int e = 0; e < 8; ++e) top = max(top, x[e]);
        top = across_head(top, [](int a, int b) { return max(a, b); }) >> frac;
        stored = uint4{__byte_perm(x[0], x[1], 0x5410), __byte_perm(x[2], x[3], 0x5410),
                       __byte_perm(x[4], x[5], 0x5410), __byte_perm(x[6], x[7], 0x5410)};
        const uint32_t below = (1u << frac) - 1;
        std::conditional_t<SharedTable && !HalfUp, uint32_t, uint64_t> sum = 0; // the former where that is common
        uint32_t weights[8], last = 0;
#pragma unroll
        for (int e = 0; e < 8; ++e) {
            const uint32_t entry = SharedTable ? table[x[e] & below] : __ldg(work.a.table + (x[e] & below));
            const int further = top - (x[e] >> frac);
            weights[e] = shift_right(entry, further);
            sum += weights[e];
            if (HalfUp) last += shift_right(entry, further - 1) & 1;
        }
        const BitCounts bits(weights);
        uint32_t counts = bits.low, more = bits.high;
        if (!HalfUp) last = bits.last;
        const auto plus = [](auto a, auto b) { return a + b; };
        sum = across_head(sum, plus);
        counts = across_head(counts, plus);
        more = across_head(more, plus);
        last = across_head(last, plus);
        const uint32_t beyond = uint64_t(sum) >> 32;
        return {uint32_t(sum), uint32_t(top) << 16 | last << 8 | kValid | beyond, counts, more};
    }

    // Draw -----------------------------------------------------------------------------------------------------------

    __device__ static bool valid(Stat stat) { return stat.y & kValid; }
    __device__ static Stat invalid(Stat stat) { return {stat.x, stat.y & ~kValid, stat.z, stat.w}; }

    __device__ static int maximum(Stat stat) { return int(stat.y) >> 16; }

    // The tile's exact mass relative to the row's maximum, unless it is far below. No branches: several at a time.
    __device__ static uint64_t mass(const Work& work, Stat stat, int top) {
        const int below = top - maximum(stat), further = min(below, 9), bits = 8 * further;
        const uint32_t last = stat.y >> 8 & 0xff;
        uint64_t sum = uint64_t(stat.y & (kValid - 1)) << 32 | stat.x;
        // What the bits below are worth goes; the last of them rounds.
        const uint64_t counts = uint64_t(stat.w) << 32 | stat.z;
        const uint64_t lost = further < 8 ? counts & ((uint64_t(1) << bits) - 1) : counts;
        constexpr uint32_t kWorth = 0x08040201;
        sum -= __dp4a(uint32_t(lost), kWorth, __dp4a(uint32_t(lost >> 32), kWorth, 0u) << 4);
        if (further == 9) sum -= last << 8;
        const uint32_t up = further == 0 ? last : uint32_t(counts >> ((bits - 8) & 63)) & 0xff;
        return below > work.a.weight_bits ? 0 : (sum >> further) + (work.a.half_up ? up : 0);
    }

    // Whether that takes the tile's scores, and then the mass.
    __device__ static bool is_far(const Work& work, Stat stat, int top) {
        const int below = top - maximum(stat);
        return below > (work.a.half_up ? 8 : 9) && below <= work.a.weight_bits;
    }
    __device__ static uint64_t far_mass(const Work& work, const uint32_t* table, const uint16_t* scores, int visible,
                                        int top) {
        return fixed_mass(work.a, table, scores, visible, top);
    }

    template <bool Common>
    __device__ static uint32_t weight(const Work& work, const uint32_t* table, uint32_t stored, int top) {
        return fixed_weight<Common>(work.a, table, stored, top);
    }

    // Whether the sum of a tile's weights fits in 32 bits.
    __device__ static bool narrow(const Work& work) { return work.a.weight_bits <= 26; }

    __device__ static uint64_t rescale(uint64_t x, uint64_t, uint64_t) { return x; }

    __device__ static int word_bits(const Work& work) { return work.a.rng_bits; }
};

} // namespace santa
