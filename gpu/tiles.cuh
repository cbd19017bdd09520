// S²ANTA-prop and S²ANTA-flash, the forms that sample tile by tile (arXiv 2605.01910, Algorithms 2-8).
//
// They are here to be compared with: prop's budgets are a function of the scores alone, so its bias does not average
// out; flash multiplies once a tile and divides once a row. Weights are integers, 2^24 at a tile's largest score, so
// that masses, thresholds and counts are exact and the counts of a row sum to S whatever the order of additions.
// One block works on one tile of one KV head for all query heads of its group.
#pragma once

#include <cstdint>

#include "arguments.cuh"
#include "mma.cuh"

namespace santa {

constexpr int kTileKeys = 64;     // keys of a tile; flash's grow where there would be more tiles than samples
constexpr int kTileThreads = 128; // four warps of 16 keys each
constexpr int kHeadThreads = 512; // block of the kernels that work on one query head
constexpr float kWeightOne = 16777216.0f;

// Where a call's tiles lie in the workspace, behind the control words of the other kernels.
struct TileWork : DecodeArguments {
    int64_t tiles;     // slots of a head in the arrays below
    uint32_t* weights; // [B, H, max_length]; scores until the tile's maximum is known
    float* maxima;     // [B, H, tiles]: a tile's largest score
    uint64_t* masses;  // [B, H, tiles]
    int32_t* budgets;  // [B, H, tiles]
    float* means;      // [B, H, tiles, d], flash only: the tile's mean value row
    int64_t bytes;
};

__device__ inline int ceil_div(int a, int b) { return int((unsigned(a) + unsigned(b) - 1) / unsigned(b)); }

// Keys of one of flash's tiles in a row of n keys.
__device__ inline int flash_tile(int n, int samples) { return max(ceil_div(n, samples), kTileKeys); }

// Scores of keys [first, last) for the group's heads into `weights`, as floats; 16 keys a warp and step.
template <typename T, int D>
__device__ void tile_scores(const TileWork& a, int b, int kv, int64_t first, int64_t last) {
    constexpr int kSteps = (D + 31) / 32; // of 32 features: a lane's 16 bytes feed two mma steps
    const int group = a.heads / a.kv_heads;
    const int warp = threadIdx.x / 32, row = threadIdx.x % 32 / 4, quad = threadIdx.x % 4;
    const T* q = static_cast<const T*>(a.q) + (int64_t(b) * a.heads + kv * group) * D;

    uint4 low[kSteps], high[kSteps]; // query heads `row` and `row + 8`
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
        const int i = s * 32 + quad * 8;
        const bool inside = i < D;
        low[s] = inside && row < group ? *reinterpret_cast<const uint4*>(q + row * D + i) : uint4{};
        high[s] = inside && row + 8 < group ? *reinterpret_cast<const uint4*>(q + (row + 8) * D + i) : uint4{};
    }
    for (int64_t n = first + warp * 16; n < last; n += kTileThreads / 2) {
        uint4 keys[2][kSteps];
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int64_t mine = n + half * 8 + row;
            const T* key = mine < last ? cache_row<T, D>(a.k, b, kv, mine) : nullptr;
#pragma unroll
            for (int s = 0; s < kSteps; ++s) {
                const int i = s * 32 + quad * 8;
                keys[half][s] = key && i < D ? *reinterpret_cast<const uint4*>(key + i) : uint4{};
            }
        }
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            float sum[4] = {};
#pragma unroll
            for (int s = 0; s < kSteps; ++s) {
                mma_16816<T>(sum, low[s].x, high[s].x, low[s].y, high[s].y, keys[half][s].x, keys[half][s].y);
                mma_16816<T>(sum, low[s].z, high[s].z, low[s].w, high[s].w, keys[half][s].z, keys[half][s].w);
            }
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                const int head = row + e / 2 * 8;
                const int64_t key = n + half * 8 + quad * 2 + e % 2;
                if (head < group && key < last) {
                    const int64_t at = (int64_t(b) * a.heads + kv * group + head) * a.max_length + key;
                    a.weights[at] = __float_as_uint(sum[e] * a.scale);
                }
            }
        }
    }
    __syncthreads();
}

// Weights and mass of one head's tile, by one warp; the scores are overwritten.
__device__ inline uint64_t tile_weights(uint32_t* weights, int64_t first, int64_t last, float& top) {
    const int lane = threadIdx.x % 32;
    top = -INFINITY;
    for (int64_t n = first + lane; n < last; n += 32) top = fmaxf(top, __uint_as_float(weights[n]));
    for (int step = 16; step > 0; step /= 2) top = fmaxf(top, __shfl_xor_sync(~0u, top, step));
    uint64_t mass = 0;
    for (int64_t n = first + lane; n < last; n += 32) {
        const uint32_t w = __float2uint_rn(exp2f(__uint_as_float(weights[n]) - top) * kWeightOne);
        weights[n] = w;
        mass += w;
    }
    for (int step = 16; step > 0; step /= 2) mass += __shfl_xor_sync(~0u, mass, step);
    return mass;
}

// Draw `budget` keys of a tile systematically and add their value rows to `sum` (a lane holds 4 features of each 128).
// Key n takes the thresholds j * mass + U in [budget * C_(n-1), budget * C_n), numeric contract 3.6.
template <typename T, int D>
__device__ void tile_gather(const TileWork& a, int b, int kv, int64_t head, int64_t first, int64_t last,
                            uint32_t word, uint64_t mass, int budget, float (&sum)[(D + 127) / 128 * 4]) {
    const int lane = threadIdx.x % 32;
    const uint32_t* weights = a.weights + head * a.max_length;
    uint64_t threshold = scaled_offset(word, mass, 32), below = 0;
    int drawn = 0;
    for (int64_t n = first; n < last && drawn < budget; n += 32) {
        uint64_t upto = n + lane < last ? uint64_t(budget) * weights[n + lane] : 0;
#pragma unroll
        for (int step = 1; step < 32; step *= 2) {
            const uint64_t left = __shfl_up_sync(~0u, upto, step);
            if (lane >= step) upto += left;
        }
        upto += below;
        below = __shfl_sync(~0u, upto, 31);
        int mine = 0;
        while (drawn < budget && threshold < below) {
            const int owner = __ffs(__ballot_sync(~0u, upto > threshold)) - 1;
            mine += lane == owner;
            const T* value = cache_row<T, D>(a.v, b, kv, n + owner);
#pragma unroll
            for (int r = 0; r < (D + 127) / 128; ++r) {
                const int i = r * 128 + lane * 4;
                if (i < D) {
                    const uint2 four = *reinterpret_cast<const uint2*>(value + i);
                    const float2 one = to_float2<T>(four.x), two = to_float2<T>(four.y);
                    sum[r * 4] += one.x;
                    sum[r * 4 + 1] += one.y;
                    sum[r * 4 + 2] += two.x;
                    sum[r * 4 + 3] += two.y;
                }
            }
            ++drawn;
            threshold += mass;
        }
        if (a.counts && mine) a.counts[head * a.max_length + n + lane] = mine;
    }
}

__device__ inline void tile_clear_counts(const TileWork& a, int64_t head, int64_t first, int64_t last) {
    if (!a.counts) return;
    for (int64_t n = first + threadIdx.x % 32; n < last; n += 32) a.counts[head * a.max_length + n] = 0;
}

__device__ inline uint32_t tile_word(const TileWork& a, int b, int head, int64_t tile) {
    return draw_word(a.draw, b, Purpose::kOffset, a.draw.layer * a.heads + head, uint32_t(tile));
}

// Prop, first kernel (Algorithms 2 and 3): scores, then each tile's weights, maximum and mass. Grid (tiles, KV, B).
template <typename T, int D>
__global__ void __launch_bounds__(kTileThreads, 2) prop_scores(TileWork a) {
    const int kv = blockIdx.y, b = blockIdx.z, group = a.heads / a.kv_heads, warp = threadIdx.x / 32;
    const int64_t tile = blockIdx.x, first = tile * kTileKeys, end = min(first + kTileKeys, a.max_length);
    const int64_t last = min(end, int64_t(clamped_length(a.lengths, b, a.max_length)));
    if (first < last) tile_scores<T, D>(a, b, kv, first, last);
    for (int g = warp; g < group; g += kTileThreads / 32) {
        const int64_t head = int64_t(b) * a.heads + kv * group + g;
        tile_clear_counts(a, head, first, end);
        if (first >= last) continue;
        float top;
        const uint64_t mass = tile_weights(a.weights + head * a.max_length, first, last, top);
        if (threadIdx.x % 32 == 0) {
            a.maxima[head * a.tiles + tile] = top;
            a.masses[head * a.tiles + tile] = mass;
        }
    }
}

// Sum or maximum over the block, in a fixed order; every thread gets it.
template <typename F>
__device__ double block_reduce(double x, F combine, double* scratch) {
    for (int step = 16; step > 0; step /= 2) x = combine(x, __shfl_xor_sync(~0u, x, step));
    __syncthreads();
    if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = x;
    __syncthreads();
    x = scratch[0];
    for (int w = 1; w < kHeadThreads / 32; ++w) x = combine(x, scratch[w]);
    return x;
}

// A tile's share of the samples: floor is its budget, the rest competes for what is left.
__device__ inline double tile_share(const TileWork& a, int64_t at, double top, double per_mass) {
    return double(a.masses[at]) * exp2(double(a.maxima[at]) - top) * per_mass;
}

// Prop, budgets (Algorithm 4): largest remainder, ties to the lowest tile. One block a head; a radix select finds the
// remainder of the last tile that still gets one.
__device__ inline void prop_budgets(const TileWork& a, int64_t head, int64_t tiles) {
    __shared__ double scratch[kHeadThreads / 32];
    __shared__ int histogram[256];
    __shared__ uint64_t prefix;
    __shared__ int left;
    const int64_t base = head * a.tiles;
    const auto larger = [](double x, double y) { return fmax(x, y); };
    const auto plus = [](double x, double y) { return x + y; };

    double top = -INFINITY;
    for (int64_t t = threadIdx.x; t < tiles; t += kHeadThreads) top = fmax(top, double(a.maxima[base + t]));
    top = block_reduce(top, larger, scratch);
    double total = 0.0;
    for (int64_t t = threadIdx.x; t < tiles; t += kHeadThreads) {
        total += tile_share(a, base + t, top, 1.0);
    }
    const double per_mass = a.samples / block_reduce(total, plus, scratch);
    double floors = 0.0;
    for (int64_t t = threadIdx.x; t < tiles; t += kHeadThreads) {
        const double share = floor(tile_share(a, base + t, top, per_mass));
        a.budgets[base + t] = int32_t(share);
        floors += share;
    }
    floors = block_reduce(floors, plus, scratch);
    if (threadIdx.x == 0) {
        prefix = 0;
        left = a.samples - int(floors);
    }
    __syncthreads();
    if (left == 0) return;

    const auto key = [&](int64_t t) {
        const double share = tile_share(a, base + t, top, per_mass);
        return uint64_t(__double_as_longlong(share - floor(share)));
    };
    for (int shift = 56; shift >= 0; shift -= 8) {
        for (int i = threadIdx.x; i < 256; i += kHeadThreads) histogram[i] = 0;
        __syncthreads();
        for (int64_t t = threadIdx.x; t < tiles; t += kHeadThreads) {
            const uint64_t bits = key(t);
            if (shift == 56 || bits >> (shift + 8) == prefix >> (shift + 8)) {
                atomicAdd(&histogram[bits >> shift & 255], 1);
            }
        }
        __syncthreads();
        if (threadIdx.x < 32) {
            // Lane l holds bins 255 - 8 l down to 248 - 8 l: the first that brings the sum to `left` is the one.
            int mine = 0;
            for (int i = 0; i < 8; ++i) mine += histogram[255 - threadIdx.x * 8 - i];
            int upto = mine;
            for (int step = 1; step < 32; step *= 2) {
                const int before = __shfl_up_sync(~0u, upto, step);
                if (threadIdx.x >= step) upto += before;
            }
            const int wanted = left;
            __syncwarp();
            if (upto >= wanted && upto - mine < wanted) {
                int rest = wanted - (upto - mine), bin = 255 - threadIdx.x * 8;
                while (histogram[bin] < rest) rest -= histogram[bin--];
                left = rest;
                prefix |= uint64_t(bin) << shift;
            }
        }
        __syncthreads();
    }
    // Tiles above the last remainder get one each; of those that tie with it, the first `left`.
    __shared__ int ties[kHeadThreads / 32];
    int before = 0;
    for (int64_t start = 0; start < tiles; start += kHeadThreads) {
        const int64_t t = start + threadIdx.x;
        const uint64_t bits = t < tiles ? key(t) : 0;
        const bool tie = t < tiles && bits == prefix;
        const uint32_t votes = __ballot_sync(~0u, tie);
        __syncthreads();
        if (threadIdx.x % 32 == 0) ties[threadIdx.x / 32] = __popc(votes);
        __syncthreads();
        int rank = before + __popc(votes & ((1u << threadIdx.x % 32) - 1));
        for (int w = 0; w < kHeadThreads / 32; ++w) {
            if (w < threadIdx.x / 32) rank += ties[w];
            before += ties[w];
        }
        if (t < tiles && (bits > prefix || (tie && rank < left))) a.budgets[base + t] += 1;
    }
    __syncthreads();
}

// Prop, second kernel (Algorithms 4 and 5): budgets, then the drawn value rows, S of them. Grid (H, B).
template <typename T, int D>
__global__ void __launch_bounds__(kHeadThreads, 1) prop_gather(TileWork a) {
    constexpr int kSlots = (D + 127) / 128 * 4, kWarps = kHeadThreads / 32;
    __shared__ float sums[kWarps][D];
    const int h = blockIdx.x, b = blockIdx.y, kv = h / (a.heads / a.kv_heads);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int length = clamped_length(a.lengths, b, a.max_length), tiles = ceil_div(length, kTileKeys);
    const int64_t head = int64_t(b) * a.heads + h;
    T* out = static_cast<T*>(a.out) + head * D;
    if (length == 0) {
        for (int i = threadIdx.x; i < D; i += kHeadThreads) out[i] = from_float<T>(0.0f);
        return;
    }
    prop_budgets(a, head, tiles);
    __syncthreads();
    float sum[kSlots] = {};
    for (int64_t start = warp; start < tiles; start += kHeadThreads) {
        // Neighbouring tiles go to different warps.
        const int64_t mine = start + lane * kWarps;
        const int budget = mine < tiles ? a.budgets[head * a.tiles + mine] : 0;
        for (uint32_t live = __ballot_sync(~0u, budget > 0); live != 0; live &= live - 1) {
            const int at = __ffs(live) - 1;
            const int64_t tile = start + at * kWarps, first = tile * kTileKeys;
            const int64_t last = min(first + kTileKeys, int64_t(length));
            tile_gather<T, D>(a, b, kv, head, first, last, tile_word(a, b, h, tile),
                                     a.masses[head * a.tiles + tile], __shfl_sync(~0u, budget, at), sum);
        }
    }
#pragma unroll
    for (int s = 0; s < kSlots; ++s) {
        const int i = s / 4 * 128 + lane * 4 + s % 4;
        if (i < D) sums[warp][i] = sum[s];
    }
    __syncthreads();
    for (int i = threadIdx.x; i < D; i += kHeadThreads) {
        float total = 0.0f;
        for (int w = 0; w < kWarps; ++w) total += sums[w][i];
        out[i] = from_float<T>(total / a.samples);
    }
}

// Flash, first kernel (Algorithms 6 and 7): a tile knows nothing of the others; it draws its own even budget and leaves
// its mean value row, maximum and mass. Grid (tiles, KV, B).
template <typename T, int D>
__global__ void __launch_bounds__(kTileThreads, 2) flash_tiles(TileWork a) {
    constexpr int kSlots = (D + 127) / 128 * 4;
    const int kv = blockIdx.y, b = blockIdx.z, group = a.heads / a.kv_heads, warp = threadIdx.x / 32;
    const int lane = threadIdx.x % 32;
    const int length = clamped_length(a.lengths, b, a.max_length), size = flash_tile(length, a.samples);
    const int tile = blockIdx.x, tiles = ceil_div(length, size);
    const int64_t first = int64_t(tile) * size, last = min(first + size, int64_t(length));
    if (tile < tiles) tile_scores<T, D>(a, b, kv, first, last);
    for (int g = warp; g < group; g += kTileThreads / 32) {
        const int64_t head = int64_t(b) * a.heads + kv * group + g, at = head * a.tiles + tile;
        // The blocks beyond the row's last tile share what lies beyond its length.
        if (tile < tiles) tile_clear_counts(a, head, first, last);
        for (int64_t n = length + int64_t(tile) * kTileKeys; n < a.max_length; n += int64_t(gridDim.x) * kTileKeys) {
            tile_clear_counts(a, head, n, min(n + kTileKeys, a.max_length));
        }
        if (tile >= tiles) continue;
        __syncwarp();
        float top;
        const uint64_t mass = tile_weights(a.weights + head * a.max_length, first, last, top);
        __syncwarp();
        const int budget = a.samples / tiles + (tile < a.samples % tiles);
        float sum[kSlots] = {};
        tile_gather<T, D>(a, b, kv, head, first, last, tile_word(a, b, kv * group + g, tile), mass,
                                 budget, sum);
#pragma unroll
        for (int s = 0; s < kSlots; ++s) {
            const int i = s / 4 * 128 + lane * 4 + s % 4;
            if (i < D) a.means[at * D + i] = sum[s] / budget;
        }
        if (lane == 0) {
            a.maxima[at] = top;
            a.masses[at] = mass;
            a.budgets[at] = budget;
        }
    }
}

// Flash, second kernel (Algorithm 8): the tiles' means, weighted by their masses. Grid (H, B).
template <typename T, int D>
__global__ void __launch_bounds__(kHeadThreads, 1) flash_merge(TileWork a) {
    constexpr int kWarps = kHeadThreads / 32, kSlots = (D + 31) / 32;
    __shared__ double scratch[kWarps];
    __shared__ float sums[kWarps][D];
    const int h = blockIdx.x, b = blockIdx.y, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int length = clamped_length(a.lengths, b, a.max_length);
    const int tiles = ceil_div(length, flash_tile(length, a.samples));
    const int64_t head = int64_t(b) * a.heads + h, base = head * a.tiles;
    T* out = static_cast<T*>(a.out) + head * D;
    double top = -INFINITY;
    for (int64_t t = threadIdx.x; t < tiles; t += kHeadThreads) top = fmax(top, double(a.maxima[base + t]));
    top = block_reduce(top, [](double x, double y) { return fmax(x, y); }, scratch);
    double total = 0.0;
    float sum[kSlots] = {};
    for (int64_t t = warp; t < tiles; t += kWarps) {
        const float mass = float(a.masses[base + t]) * exp2f(a.maxima[base + t] - float(top));
        total += lane == 0 ? mass : 0.0f;
#pragma unroll
        for (int s = 0; s < kSlots; ++s) {
            const int i = s * 32 + lane;
            if (i < D) sum[s] += mass * a.means[(base + t) * D + i];
        }
    }
    total = block_reduce(total, [](double x, double y) { return x + y; }, scratch);
#pragma unroll
    for (int s = 0; s < kSlots; ++s) {
        const int i = s * 32 + lane;
        if (i < D) sums[warp][i] = sum[s];
    }
    __syncthreads();
    for (int i = threadIdx.x; i < D; i += kHeadThreads) {
        float merged = 0.0f;
        for (int w = 0; w < kWarps; ++w) merged += sums[w][i];
        out[i] = from_float<T>(length == 0 ? 0.0f : merged / float(total));
    }
}

} // namespace santa
