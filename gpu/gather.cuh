// From a query head's tiles to its output: the offset, for each sample its tile, its token and its value row.
#pragma once

#include <cstring>
#include <type_traits>

#include "arguments.cuh"
#include "head_tiles.cuh"
#include "mma.cuh"
#include "ring.cuh"

namespace santa {

// Sums of value rows: 8 lanes a row, a lane takes every eighth 16-byte unit.
template <class S>
struct ValueSums {
    static constexpr int kLaneUnits = (S::kUnits + 7) / 8;
    static constexpr int kPerUnit = S::kInteger ? 16 : 8;
    __device__ void add(int type, const uint4 (&row)[kLaneUnits]) {
        if (S::kInteger || type == kBfloat16) {
            add<__nv_bfloat16>(row);
        } else {
            add<__half>(row);
        }
    }

    // The warp's four teams together, to `to`: in two rounds a lane keeps half of what it has.
    __device__ void reduce(typename S::Sum* to) {
        const int lane = threadIdx.x % 32;
        halve<kLaneUnits * kPerUnit / 2>(lane & 16, 16);
        halve<kLaneUnits * kPerUnit / 4>(lane & 8, 8);
        constexpr int kKept = kLaneUnits * kPerUnit / 4;
        const int first = lane / 8 * kKept; // lane bits 16 and 8: which half of the half
#pragma unroll
        for (int e = 0; e < kKept; e += 2) {
            const int unit = (first + e) / kPerUnit * 8 + lane % 8;
            if (S::kUnits % 8 == 0 || unit < S::kUnits) {
                uint2 two;
                memcpy(&two, &sum[e], 8);
                *reinterpret_cast<uint2*>(to + unit * kPerUnit + (first + e) % kPerUnit) = two;
            }
        }
    }

  private:
    // Of the first 2 * Half sums this lane keeps the upper half or the lower, and its partner the other.
    template <int Half>
    __device__ void halve(bool upper, int partner) {
#pragma unroll
        for (int e = 0; e < Half; ++e) {
            const auto given = upper ? sum[e] : sum[e + Half];
            sum[e] = (upper ? sum[e + Half] : sum[e]) + __shfl_xor_sync(~0u, given, partner);
        }
    }

    template <typename T>
    __device__ void add(const uint4 (&row)[kLaneUnits]) {
#pragma unroll
        for (int u = 0; u < kLaneUnits; ++u) {
            const uint32_t words[4] = {row[u].x, row[u].y, row[u].z, row[u].w};
#pragma unroll
            for (int w = 0; w < 4; ++w) {
                if constexpr (S::kInteger) {
#pragma unroll
                    for (int e = 0; e < 4; ++e) sum[u * kPerUnit + w * 4 + e] += int8_t(words[w] >> (8 * e));
                } else {
                    const float2 two = to_float2<T>(words[w]);
                    sum[u * kPerUnit + w * 2] += two.x;
                    sum[u * kPerUnit + w * 2 + 1] += two.y;
                }
            }
        }
    }

    typename S::Sum sum[kLaneUnits * kPerUnit] = {};
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

// Most budgets are powers of two.
__device__ __noinline__ inline uint64_t divide(uint64_t x, uint32_t samples) { return x / samples; }
__device__ inline uint64_t divide_samples(uint64_t x, uint32_t samples) {
    return (samples & (samples - 1)) == 0 ? x >> (31 - __clz(samples)) : divide(x, samples);
}

// The tokens of `Count` samples, a team's answer; side by side, so that they overlap. `notes` number what is known of
// them, and of their tiles a lane has the stored weights or scores. Common: as the scheme says, and then a tile's mass
// fits in 32 bits.
template <bool Common, int Count, class Scheme, int Warps>
__device__ inline void find_tokens(const HeadTiles<Scheme, Warps>& tiles, int lane_shift, const int* notes,
                                   const uint4* stored, int* tokens) {
    using Sum = std::conditional_t<Common, uint32_t, uint64_t>;
    const auto& shared = tiles.shared;
    const int shift = tiles.work.p.tile_shift;
    const int lane_tokens = 1 << lane_shift, lane_first = threadIdx.x % 8 << lane_shift;
    uint32_t weights[Count][8];
    Sum mine[Count] = {}, upto[Count];
    int passed[Count] = {};
#pragma unroll
    for (int i = 0; i < Count; ++i) {
        const int visible = min(tiles.length - (shared.tile[notes[i]] << shift) - lane_first, lane_tokens);
        const uint32_t words[4] = {stored[i].x, stored[i].y, stored[i].z, stored[i].w};
#pragma unroll
        for (int e = 0; e < 8; ++e) {
            const uint32_t one = words[e / 2] >> (e % 2 * 16) & 0xffff;
            const uint32_t any = Scheme::template weight<Common>(tiles.work, tiles.table, one, tiles.top);
            weights[i][e] = e < visible ? any : 0;
            mine[i] += weights[i][e];
        }
        upto[i] = mine[i];
    }
#pragma unroll
    for (int step = 1; step < 8; step *= 2) {
#pragma unroll
        for (int i = 0; i < Count; ++i) {
            const Sum left = __shfl_up_sync(~0u, upto[i], step, 8);
            if (threadIdx.x % 8 >= step) upto[i] += left;
        }
    }
#pragma unroll
    for (int i = 0; i < Count; ++i) {
        const Sum inside = Sum(Scheme::rescale(shared.inside[notes[i]], shared.share[notes[i]],
                                               __shfl_sync(~0u, upto[i], 7, 8)));
        Sum running = upto[i] - mine[i];
#pragma unroll
        for (int e = 0; e < 8; ++e) {
            running += weights[i][e];
            passed[i] += e < lane_tokens && running <= inside;
        }
    }
#pragma unroll
    for (int step = 1; step < 8; step *= 2) {
#pragma unroll
        for (int i = 0; i < Count; ++i) passed[i] += __shfl_xor_sync(~0u, passed[i], step);
    }
    // Were a score NaN, weights and masses could disagree: stay inside the cache.
#pragma unroll
    for (int i = 0; i < Count; ++i) tokens[i] = min((shared.tile[notes[i]] << shift) + passed[i], tiles.length - 1);
}

// A team's value row, zeros if the token is below 0.
template <class S>
__device__ inline void load_value(const DecodeArguments& a, int b, int kv, int token,
                                  uint4 (&row)[ValueSums<S>::kLaneUnits]) {
    const int member = threadIdx.x % 8;
    const char* value = token >= 0 ? cache_token(a.v, b, token) + kv * S::kRowBytes + member * 16 : nullptr;
#pragma unroll
    for (int u = 0; u < ValueSums<S>::kLaneUnits; ++u) {
        row[u] = uint4{0, 0, 0, 0};
        if (token >= 0 && (S::kUnits % 8 == 0 || u * 8 + member < S::kUnits)) {
            row[u] = __ldcg(reinterpret_cast<const uint4*>(value + u * 128));
        }
    }
}

// A lane's weights or scores of the tile that begins at a token, from the scratch.
__device__ inline uint4 load_stored(const uint16_t* stash, int first_token, int lane_shift) {
    const uint16_t* weights = stash + first_token + (threadIdx.x % 8 << lane_shift);
    uint4 stored{0, 0, 0, 0};
    if (lane_shift == 3) {
        stored = __ldcg(reinterpret_cast<const uint4*>(weights));
    } else if (lane_shift == 2) {
        const uint2 two = __ldcg(reinterpret_cast<const uint2*>(weights));
        stored.x = two.x, stored.y = two.y;
    } else {
        stored.x = __ldcg(reinterpret_cast<const uint32_t*>(weights));
    }
    return stored;
}

// The warps' sums of value rows together, to the output; a cluster's blocks send theirs to the first.
template <class Scheme, int Warps>
__device__ inline void put_output(const Work& work, GatherShared<Scheme, Warps>& shared, int64_t row, int kv, int split,
                                  int rank) {
    using S = typename Scheme::Shape;
    const float inverse = __fdividef(1.0f, float(work.a.samples));
    for (int i = threadIdx.x; i < S::kDim; i += Warps * 32) {
        auto x = shared.sums[0][i];
#pragma unroll
        for (int w = 1; w < Warps; ++w) x += shared.sums[w][i];
        if (split > 1) {
            uint32_t bits;
            memcpy(&bits, &x, 4);
            send_first(&shared.parts[rank][i], bits, &shared.parts_full);
        } else {
            write_output<S>(work.a, row, kv, i, x, inverse);
        }
    }
    if (split == 1 || rank > 0) return;
    barrier_wait(&shared.parts_full, 0);
    for (int i = threadIdx.x; i < S::kDim; i += Warps * 32) {
        auto x = shared.parts[0][i];
        for (int r = 1; r < split; ++r) x += shared.parts[r][i];
        write_output<S>(work.a, row, kv, i, x, inverse);
    }
}

// Work of one query head by a block, or by the `split` blocks of a cluster, which share the samples; `word` is the
// offset's random word.
template <class Scheme, int Warps, int InFlight>
__device__ inline void gather_head(const Work& work, GatherShared<Scheme, Warps>& shared, int b, int head, int length,
                                   int split, int rank, uint32_t word, Progress written) {
    using S = typename Scheme::Shape;
    constexpr int kThreads = Warps * 32, kTeams = kThreads / 8, kWindow = GatherShared<Scheme, Warps>::kWindow;
    const DecodeArguments& a = work.a;
    const Plan& p = work.p;
    const int thread = threadIdx.x, warp = thread / 32, team = thread / 8, member = thread % 8;
    const int64_t row = int64_t(b) * a.heads + head;
    uint16_t* stash = work.stash(row);

    HeadTiles<Scheme, Warps> tiles(work, shared, row, length, written);
    tiles.load();
    if (a.counts) {
        int32_t* counts = a.counts + row * a.max_length;
        for (int n = rank * kThreads + thread; n < a.max_length; n += split * kThreads) counts[n] = 0;
        if (split > 1) {
            cluster_arrive(true);
            cluster_wait();
        }
    }
    tiles.share_top();
    if (rank > 0 && thread == 0) send_first(&shared.read[rank], 1, &shared.read_full);
    const uint64_t total = tiles.sum();
    const int bits = Scheme::word_bits(work);
    const uint64_t offset = scaled_offset(word >> (32 - bits), total, bits);
    if (thread == 0 && rank == 0) {
        if (a.mass) a.mass[row] = total;
        if (a.offset) a.offset[row] = offset;
    }
    const int samples = total > 0 ? a.samples : 0, share_end = samples * (rank + 1) >> p.split_shift;
    ValueSums<S> sums;
    const int kv = head / p.group, shift = p.tile_shift, lane_shift = shift - 3;
    __syncthreads();
    // Scores and weights are read behind the next barrier: then all have to be written.
    if (thread == kThreads - 1) written.wait(written.all);
#pragma unroll 1
    for (int window = samples * rank >> p.split_shift; window < share_end; window += kWindow) {
        // A thread finds one sample's tile, eight lanes its token. Others have nothing to do, and invalidate the
        // statistics when all blocks have them.
        if (thread < kWindow && window + thread < share_end) {
            tiles.find(divide_samples(offset + uint64_t(window + thread) * total, samples), thread);
        }
        if (thread >= kWindow && rank == 0 && window == 0 && tiles.kept) {
            if (split > 1) barrier_wait(&shared.read_full, 0);
            tiles.invalidate(thread - kWindow, kThreads - kWindow);
        }
        __syncthreads();
        const int here = min(share_end - window, kWindow);
#pragma unroll 1
        for (int start = 0; start < here; start += kTeams * InFlight) {
            const auto any = [&](int i) { return i == 0 || start + i * kTeams < here; }; // of the block's teams
            uint4 stored[InFlight];
            int notes[InFlight], token[InFlight]; // below 0: no sample
#pragma unroll
            for (int i = 0; i < InFlight; ++i) {
                token[i] = -1;
                if (!any(i)) continue;
                notes[i] = min(start + i * kTeams + team, here - 1);
                stored[i] = load_stored(stash, shared.tile[notes[i]] << shift, lane_shift);
            }
            const auto find = [&](auto common) {
                constexpr bool kCommon = decltype(common)::value;
                constexpr int kPair = kBulkCopy && kCommon && InFlight > 1 ? 2 : 1; // older GPUs lack the registers
#pragma unroll
                for (int i = 0; i < InFlight; i += kPair) {
                    if (kPair == 2 && any(i + 1)) {
                        find_tokens<kCommon, kPair>(tiles, lane_shift, notes + i, stored + i, token + i);
                    } else if (any(i)) {
                        find_tokens<kCommon, 1>(tiles, lane_shift, notes + i, stored + i, token + i);
                    }
                }
            };
            if (Scheme::common(work)) {
                find(std::true_type());
            } else {
                find(std::false_type());
            }
#pragma unroll
            for (int i = 0; i < InFlight; ++i) {
                const bool real = start + i * kTeams + team < here;
                if (!real) token[i] = -1;
                if (a.counts && real && member == 0) atomicAdd(a.counts + row * a.max_length + token[i], 1);
            }
            uint4 rows[InFlight][ValueSums<S>::kLaneUnits];
#pragma unroll
            for (int i = 0; i < InFlight; ++i) load_value<S>(a, b, kv, token[i], rows[i]);
#pragma unroll
            for (int i = 0; i < InFlight; ++i) {
                if (any(i)) sums.add(a.type, rows[i]);
            }
        }
        if (window + kWindow < share_end) __syncthreads();
    }
    sums.reduce(shared.sums[warp]);
    __syncthreads();
    put_output(work, shared, row, kv, split, rank);
    if (rank > 0) return;
    if (split > 1) barrier_wait(&shared.read_full, 0);
    if (samples == 0 || !tiles.kept) tiles.invalidate(thread, kThreads);
    // Nobody reads the head's scores or weights any more: the L2 need not write them to memory. Of a single sequence
    // that would cost more than it saves.
    if (a.keep || a.batch == 1) return;
    constexpr int kLineTokens = kLineBytes / int(sizeof(*stash));
    for (int n = thread * kLineTokens; n < length; n += kThreads * kLineTokens) discard_line(stash + n);
}

} // namespace santa
