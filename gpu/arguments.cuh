// What a decode step is given, and how it is cut into work: plain structs, mirrored field by field in
// santa_hw/gpu/library.py.
#pragma once

#include <cstdint>

#include "cache.cuh"
#include "threefry.cuh"

namespace santa {

enum ElementType : int32_t { kBfloat16 = 0, kFloat16 = 1, kInt8 = 2 };

struct DecodeArguments {
    Cache k, v;
    DrawArguments draw;
    const void* q;          // [B, H, d]; int8 codes for `fixed`
    const int32_t* lengths; // [B]
    void* out;              // [B, H, d]: q's type; for `fixed` int32 accumulators, or int64 codes if out_bits
    void* workspace;        // control words zero at first use; every launch leaves them zero
    int64_t workspace_bytes;
    int64_t max_length; // bound of all lengths
    int32_t type, batch, heads, kv_heads, head_dim, samples;
    int32_t recent; // of a row's newest keys, how many the kernel ahead may still write; below 0: any
    float scale; // `sys`: of the scores, log2(e) included
    // `fixed`
    const int32_t* shift;        // [B, H], from a dot product to a score; negative: left
    const uint32_t* table;       // [2^score_frac]
    const int32_t* output_shift; // [KV, d], or null: accumulators
    int32_t score_frac, score_bits, weight_bits, half_up, rng_bits, out_bits;
    int32_t ternary, ternary_shared, beta, query_frac; // query_frac = q_bits - 1
    // On request, else null
    int32_t* counts;         // [B, H, max_length]
    int64_t* mass;           // [B, H]
    int64_t* offset;         // [B, H]
    int32_t* ternary_counts; // [B, H, d]
    int32_t* accumulators;   // [B, H, d]
    // How to cut the work; 0: the plan decides. They change the speed, never a count.
    int32_t steps, tiles_per_unit;
    int32_t split;           // blocks of the gather that share a query head: 1, 2 or 4
    int32_t multiprocessors; // to plan for
    int32_t keep;            // the scratch is read afterwards, for traces
};

// A tile is 16 * steps tokens with a maximum and a mass; a unit is what a block takes at a time: for `chunk` KV heads,
// `lanes` runs of `tiles_per_unit` tiles each, one run and head a warp.
struct Plan {
    int32_t steps, tile, tile_shift, tiles_per_unit, unit_tokens;
    int32_t chunk, chunks, lanes, group;
    int32_t stages, stage_bytes;
    int32_t grid;     // blocks of the score pass
    int32_t split, split_shift; // blocks of the gather that share a query head, and their logarithm
    int32_t small_gather; // whether these are the smaller ones
    int32_t kept;         // tiles whose statistics such a block keeps
    int32_t exponent; // `sys`: a weight of one is 2^(16 + exponent) in fixed-point masses
    int32_t score_shared, gather_shared;
    int64_t tokens, tiles; // of a row of the scratch, padding included
    int64_t counters_at, stats_at, stash_at, bytes;
};

constexpr int kStepTokens = 16;  // tokens a warp takes from a stage
constexpr int kMaxStages = 16;
constexpr int kMaxSplit = 4;
constexpr int kLineBytes = 128;  // of the L2
constexpr int kMaxEntries = 2048; // tiles whose statistics a block of the gather keeps at most
constexpr int kTableEntries = 256; // larger tables stay in global memory
constexpr int kProductStride = 72; // of the rows of a tile's dot products; 64 would meet the same banks

// Head of the workspace.
struct Control {
    uint32_t error; // kept until read: 1 a length was out of range, 2 a page number was
    uint32_t taken; // units of the score pass, beyond two a block
};

struct Work {
    DecodeArguments a;
    Plan p;

    __device__ Control* control() const { return static_cast<Control*>(a.workspace); }
    // `fixed`: whether blocks keep the weights' table in shared memory, and its copy to there, by all threads.
    __device__ bool shares_table() const { return (1 << a.score_frac) <= kTableEntries; }
    __device__ void copy_table(uint32_t* to) const {
        if (a.table && shares_table()) {
            for (int i = threadIdx.x; i < 1 << a.score_frac; i += blockDim.x) to[i] = a.table[i];
        }
    }
    // Units whose scores of a query head are written, a warp's each. Lines apart: atomics of neighbours would queue.
    __device__ uint32_t* finished(int64_t row) const { return at<uint32_t>(p.counters_at + row * kLineBytes); }
    // First of a query head's per-tile statistics, and of its 16-bit scores or weights, in the scratch.
    template <typename Stat>
    __device__ Stat* stats(int64_t row) const {
        return at<Stat>(p.stats_at) + row * p.tiles;
    }
    __device__ uint16_t* stash(int64_t row) const { return at<uint16_t>(p.stash_at) + row * p.tokens; }

  private:
    template <typename T>
    __device__ T* at(int64_t offset) const {
        return reinterpret_cast<T*>(static_cast<char*>(a.workspace) + offset);
    }
};

} // namespace santa
