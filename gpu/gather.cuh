// From tile statistics to the output of one query head: masses and their prefix sums, the offset, for each sample its
// tile, its token and its value row.
#pragma once

#include <climits>
#include <cstring>

#include "arguments.cuh"
#include "mma.cuh"
#include "ring.cuh"

namespace santa {

// Sums of value rows: 8 lanes a row, a lane takes every eighth 16-byte unit.
template <class S>
struct ValueSums {
    static constexpr int kLaneUnits = (S::kUnits + 7) / 8;
    static constexpr int kPerUnit = S::kInteger ? 16 : 8;
    typename S::Sum sum[kLaneUnits][kPerUnit] = {};

    template <typename T>
    __device__ void add(const uint4 (&row)[kLaneUnits]) {
#pragma unroll
        for (int u = 0; u < kLaneUnits; ++u) {
            const uint32_t words[4] = {row[u].x, row[u].y, row[u].z, row[u].w};
#pragma unroll
            for (int w = 0; w < 4; ++w) {
                if constexpr (S::kInteger) {
#pragma unroll
                    for (int e = 0; e < 4; ++e) sum[u][w * 4 + e] += int8_t(words[w] >> (8 * e));
                } else {
                    const float2 two = to_float2<T>(words[w]);
                    sum[u][w * 2] += two.x;
                    sum[u][w * 2 + 1] += two.y;
                }
            }
        }
    }
};

// Warps and the samples that they have in flight.
template <class Scheme, int Warps, int InFlight>
struct alignas(16) GatherShared {
    using S = typename Scheme::Shape;
    using Stat = typename Scheme::Stat;
    static constexpr int kGap = sizeof(Stat) == 16 ? 3 : 4, kWindow = Warps * 4 * InFlight;
    union alignas(16) {
        Stat stats[kMaxEntries + (kMaxEntries >> kGap)]; // of the tiles; then, in its place, a tile's mass
        typename S::Sum sums[Warps][S::kDim];
    };
    typename S::Sum parts[kMaxSplit][S::kDim];
    uint64_t before[kWindow], share[kWindow]; // of a sample's tile: the mass before it, and its own
    int tile[kWindow];
    uint64_t warp_mass[Warps];
    int warp_top[Warps];

    // A thread works on up to eight neighbours: gaps keep the threads' banks apart.
    __device__ Stat& stat(int t) { return stats[t + (t >> kGap)]; }
    __device__ uint64_t& mass(int t) { return *reinterpret_cast<uint64_t*>(&stat(t)); }
};

// Shift right, half up, or left; saturating (the output's requantisation).
__device__ inline int64_t shift_saturate(int64_t x, int shift, int bits) {
    const int64_t high = (int64_t(1) << (bits - 1)) - 1, low = -high - 1;
    if (shift >= 0) {
        // An accumulator has at most 25 bits: further shifts give zero.
        const int right = min(shift, 40);
        x = right > 0 ? (x + (int64_t(1) << (right - 1))) >> right : x;
    } else {
        const int left = min(-shift, 63);
        if (x > high >> left) return high;
        if (x < low >> left) return low;
        x = x << left;
    }
    return min(max(x, low), high);
}

// One lane of the output from the sum of its values.
template <class S>
__device__ inline void write_output(const DecodeArguments& a, int64_t row, int kv, int i, typename S::Sum x,
                                    float inverse) {
    const int64_t to = row * S::kDim + i;
    if constexpr (S::kInteger) {
        if (a.accumulators) a.accumulators[to] = x;
        if (a.output_shift) {
            const int shift = a.output_shift[kv * S::kDim + i];
            static_cast<int64_t*>(a.out)[to] = shift_saturate(x, shift, a.out_bits);
        } else {
            static_cast<int32_t*>(a.out)[to] = x;
        }
    } else if (a.type == kBfloat16) {
        static_cast<__nv_bfloat16*>(a.out)[to] = from_float<__nv_bfloat16>(x * inverse);
    } else {
        static_cast<__half*>(a.out)[to] = from_float<__half>(x * inverse);
    }
}

// Work of one query head by Warps warps: `thread` counts from 0, `barrier` is theirs. The scratch's slot holds the
// sequence's statistics and stash; `draw` gives the random word. The blocks of a cluster, `split` of them, share the
// samples.
template <class Scheme, int Warps, int InFlight, class Draw>
__device__ inline void gather_head(const Work& work, GatherShared<Scheme, Warps, InFlight>& shared, int thread,
                                   int barrier, int b, int head, int slot, int split, int rank, Draw draw) {
    using S = typename Scheme::Shape;
    using Stat = typename Scheme::Stat;
    using Sum = typename Scheme::Sum;
    constexpr int kThreads = Warps * 32, kTeams = kThreads / 8, kWindow = kTeams * InFlight;
    const DecodeArguments& a = work.a;
    const Plan& p = work.p;
    const int warp = thread / 32, lane = thread % 32, team = thread / 8, member = thread % 8;
    const int64_t row = int64_t(b) * a.heads + head;
    const Stat* stats = work.stats<Stat>(slot, head);
    const uint16_t* stash = work.stash(slot, head);
    const int shift = p.tile_shift;
    const bool fits = p.tiles <= kMaxEntries; // then all statistics are kept

    // The row's maximum. No load waits for the length.
    const int given_length = __ldcg(a.lengths + b), length = max(0, min(given_length, int(a.max_length)));
    const int tiles = (length + (1 << shift) - 1) >> shift;
    const DrawPlace place = draw.load();
    int top = INT_MIN;
    constexpr int kAhead = 64 / int(sizeof(Stat));
#pragma unroll 1
    for (int start = thread; start < p.tiles; start += kAhead * kThreads) {
        Stat ahead[kAhead];
#pragma unroll
        for (int i = 0; i < kAhead; ++i) {
            if (start + i * kThreads < p.tiles) ahead[i] = __ldcg(stats + start + i * kThreads);
        }
#pragma unroll
        for (int i = 0; i < kAhead; ++i) {
            const int t = start + i * kThreads;
            if (t < tiles) {
                top = max(top, Scheme::maximum(ahead[i]));
                if (fits) shared.stat(t) = ahead[i];
            }
        }
    }
    if (a.counts) {
        int32_t* counts = a.counts + row * a.max_length;
        for (int n = rank * kThreads + thread; n < a.max_length; n += split * kThreads) counts[n] = 0;
    }
    const uint32_t word = draw.word(place);
    top = __reduce_max_sync(~0u, top);
    if (lane == 0) shared.warp_top[warp] = top;
    barrier_sync(barrier, kThreads);
#pragma unroll
    for (int w = 0; w < Warps; ++w) top = max(top, shared.warp_top[w]);

    // Masses and their prefix sums. A thread takes neighbouring tiles.
    const int own = (tiles + kThreads - 1) / kThreads, first = thread * own, last = min(first + own, tiles);
    const auto mass_of = [&](int t) {
        const Stat stat = fits ? shared.stat(t) : __ldcg(stats + t);
        return Scheme::mass(work, stat, top, stash + (int64_t(t) << shift), min(1 << shift, length - (t << shift)));
    };
    uint64_t mass = 0;
#pragma unroll 1
    for (int t = first; t < last; ++t) {
        const uint64_t one = mass_of(t);
        if (fits) shared.mass(t) = one;
        mass += one;
    }
    uint64_t upto = mass;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
        const uint64_t left = __shfl_up_sync(~0u, upto, step);
        if (lane >= step) upto += left;
    }
    if (lane == 31) shared.warp_mass[warp] = upto;
    barrier_sync(barrier, kThreads);
    uint64_t thread_before = upto - mass, total = 0;
#pragma unroll
    for (int w = 0; w < Warps; ++w) {
        const uint64_t one = shared.warp_mass[w];
        if (w < warp) thread_before += one;
        total += one;
    }
    const int bits = Scheme::word_bits(work);
    const uint64_t offset = scaled_offset(word >> (32 - bits), total, bits);
    if (thread == 0 && rank == 0) {
        if (a.mass) a.mass[row] = total;
        if (a.offset) a.offset[row] = offset;
        if (length != given_length) atomicOr(&work.control()->error, 1u);
    }

    // Samples, a window of them at a time; of 8 threads each, InFlight at a time so that their loads overlap.
    ValueSums<S> sums;
    const int kv = head / p.group, lane_shift = shift - 3, lane_tokens = 1 << lane_shift;
    const int samples = total > 0 ? a.samples : 0, share_end = samples * (rank + 1) / split;
    const bool power = (samples & (samples - 1)) == 0;
    const int sigma = 31 - __clz(max(samples, 1));
    const auto threshold = [&](int j) {
        const uint64_t x = offset + j * total;
        return power ? x >> sigma : x / samples;
    };
    // A sample before this thread's tiles, or the first one in them: off by one at most, and then two less.
    const float pitch = __fdividef(float(samples), __ull2float_rn(total));
    const float ahead = __fdividef(__ull2float_rn(offset), float(max(samples, 1)));
    const int guess = int((__ull2float_rn(thread_before) - ahead) * pitch) - 2;
    for (int start = samples * rank / split, round = 0;; start += kWindow, ++round) {
        // Every thread tells the samples in its tiles where they are.
        const int end = min(start + kWindow, share_end);
        uint64_t before = thread_before, one = 0;
        int t = first - 1;
        for (int j = max(guess, start); j < end; ++j) {
            const uint64_t x = threshold(j);
            if (x >= thread_before + mass) break;
            if (x < thread_before) continue;
            while (x >= before + one) {
                before += one;
                ++t;
                one = fits ? shared.mass(t) : mass_of(t);
            }
            shared.tile[j - start] = t;
            shared.before[j - start] = before;
            shared.share[j - start] = one;
        }
        barrier_sync(barrier, kThreads);
        // All have begun, and have cleared their part of the counts.
        if (split > 1 && round == 0) cluster_arrive(a.counts != nullptr);

        uint64_t at[InFlight], share[InFlight];
        int tile[InFlight];
        uint4 stored[InFlight];
#pragma unroll
        for (int i = 0; i < InFlight; ++i) {
            const int j = start + i * kTeams + team, mine = j < end ? j - start : 0;
            tile[i] = end > start ? shared.tile[mine] : 0;
            share[i] = shared.share[mine];
            at[i] = threshold(start + mine) - shared.before[mine];
            const uint16_t* from = stash + (int64_t(tile[i]) << shift) + (member << lane_shift);
            stored[i] = uint4{0, 0, 0, 0};
            if (lane_shift == 3) {
                stored[i] = __ldcg(reinterpret_cast<const uint4*>(from));
            } else if (lane_shift == 2) {
                const uint2 x = __ldcg(reinterpret_cast<const uint2*>(from));
                stored[i].x = x.x, stored[i].y = x.y;
            } else {
                stored[i].x = __ldcg(reinterpret_cast<const uint32_t*>(from));
            }
        }
        if (split > 1 && round == 0) cluster_wait();
        uint4 rows[InFlight][ValueSums<S>::kLaneUnits];
#pragma unroll
        for (int i = 0; i < InFlight; ++i) {
            const uint32_t words[4] = {stored[i].x, stored[i].y, stored[i].z, stored[i].w};
            const int visible = min(length - (tile[i] << shift) - (member << lane_shift), lane_tokens);
            uint32_t weights[8];
            Sum mine = 0;
#pragma unroll
            for (int e = 0; e < 8; ++e) {
                weights[e] = e < visible ? Scheme::weight(work, words[e / 2] >> (e % 2 * 16) & 0xffff, top) : 0;
                mine += weights[e];
            }
            Sum sum = mine;
#pragma unroll
            for (int step = 1; step < 8; step *= 2) {
                const Sum left = __shfl_up_sync(~0u, sum, step, 8);
                if (member >= step) sum += left;
            }
            const Sum inside = Scheme::inside(at[i], share[i], __shfl_sync(~0u, sum, 7, 8));
            Sum running = sum - mine;
            int passed = 0;
#pragma unroll
            for (int e = 0; e < 8; ++e) {
                running += weights[e];
                passed += e < lane_tokens && running <= inside;
            }
#pragma unroll
            for (int step = 1; step < 8; step *= 2) passed += __shfl_xor_sync(~0u, passed, step);
            // Were a score NaN, weights and masses could disagree: stay inside the cache.
            const int token = min((tile[i] << shift) + passed, length - 1);
            const bool real = start + i * kTeams + team < end;
            const char* value = real ? cache_token(a.v, b, token) + kv * S::kRowBytes + member * 16 : nullptr;
#pragma unroll
            for (int u = 0; u < ValueSums<S>::kLaneUnits; ++u) {
                rows[i][u] = uint4{0, 0, 0, 0};
                if (real && (S::kUnits % 8 == 0 || u * 8 + member < S::kUnits)) {
                    rows[i][u] = *reinterpret_cast<const uint4*>(value + u * 128);
                }
            }
            if (a.counts && real && member == 0) atomicAdd(a.counts + row * a.max_length + token, 1);
        }
#pragma unroll
        for (int i = 0; i < InFlight; ++i) {
            if (S::kInteger || a.type == kBfloat16) {
                sums.template add<__nv_bfloat16>(rows[i]);
            } else {
                sums.template add<__half>(rows[i]);
            }
        }
        if (start + kWindow >= share_end) break;
        barrier_sync(barrier, kThreads);
    }

    // Teams, warps, output. Every thread has left the statistics behind at the last window's barrier.
#pragma unroll
    for (int u = 0; u < ValueSums<S>::kLaneUnits; ++u) {
#pragma unroll
        for (int e = 0; e < ValueSums<S>::kPerUnit; ++e) {
            auto& x = sums.sum[u][e];
            x += __shfl_xor_sync(~0u, x, 8);
            x += __shfl_xor_sync(~0u, x, 16);
        }
        const int unit = u * 8 + member;
        if (lane < 8 && unit < S::kUnits) {
            auto* to = reinterpret_cast<uint4*>(&shared.sums[warp][unit * ValueSums<S>::kPerUnit]);
#pragma unroll
            for (int e = 0; e < ValueSums<S>::kPerUnit; e += 4) {
                uint4 four;
                memcpy(&four, &sums.sum[u][e], 16);
                to[e / 4] = four;
            }
        }
    }
    barrier_sync(barrier, kThreads);
    const float inverse = __fdividef(1.0f, float(a.samples));
    for (int i = thread; i < S::kDim; i += kThreads) {
        auto x = shared.sums[0][i];
#pragma unroll
        for (int w = 1; w < Warps; ++w) x += shared.sums[w][i];
        if (split > 1) {
            uint32_t bits;
            memcpy(&bits, &x, 4);
            store_first(&shared.parts[rank][i], bits);
            continue;
        }
        write_output<S>(a, row, kv, i, x, inverse);
    }
    if (split > 1) {
        cluster_arrive(true);
        cluster_wait();
        for (int i = thread; i < S::kDim && rank == 0; i += kThreads) {
            auto x = shared.parts[0][i];
            for (int r = 1; r < split; ++r) x += shared.parts[r][i];
            write_output<S>(a, row, kv, i, x, inverse);
        }
    }
}

} // namespace santa
