// The library's C interface: plans, launches and what is needed beside the kernels. Every function returns 0, a
// cudaError_t, or one of the codes below; santa_hw_error puts them into words.
#include <algorithm>
#include <climits>

#include "decode.cuh"

namespace santa {

enum Error : int { kNoKernel = 10001, kSharedMemory = 10002, kWorkspace = 10003 };

#define SANTA_DIMENSIONS(F) F(64) F(80) F(96) F(128) F(256)
#define SANTA_DECLARE(dim) \
    Compiled sys_##dim(int);  \
    Compiled fixed_##dim(int);
SANTA_DIMENSIONS(SANTA_DECLARE)

namespace {

bool find(const DecodeArguments& a, Compiled& found) {
    const int group = a.heads / a.kv_heads;
    switch (a.head_dim) {
#define SANTA_CASE(dim)                                                  \
    case dim:                                                            \
        found = a.type == kInt8 ? fixed_##dim(group) : sys_##dim(group); \
        return group <= 16;
        SANTA_DIMENSIONS(SANTA_CASE)
    }
    return false;
}

int log2_ceil(int64_t x) {
    int bits = 0;
    while ((int64_t(1) << bits) < x) ++bits;
    return bits;
}

template <typename X>
X ceil_div(X a, X b) {
    return (a + b - 1) / b;
}

int64_t aligned(int64_t bytes) { return ceil_div<int64_t>(bytes, 256) * 256; }

int make_plan(const DecodeArguments& a, const Device& device, const Compiled& compiled, bool modern, Plan& p) {
    p = {};
    p.group = a.heads / a.kv_heads;
    p.chunks = ceil_div(a.kv_heads, compiled.score_warps);
    p.chunk = ceil_div(a.kv_heads, p.chunks);
    p.chunks = ceil_div(a.kv_heads, p.chunk);
    p.lanes = compiled.score_warps / p.chunk;
    p.stage_bytes = p.lanes * kStepTokens * p.chunk * a.head_dim * (a.type == kInt8 ? 1 : 2);
    const int multiprocessors = a.multiprocessors > 0 ? a.multiprocessors : device.multiprocessors;
    p.grid = multiprocessors;

    const auto units_of = [&](int64_t tokens) { return a.batch * p.chunks * ceil_div(a.max_length, tokens); };

    // The largest tiles and units that still give every block its share, or half of them a single tile: fewer tiles are
    // sooner drawn from. For floats units of one tile.
    constexpr int kCuts[][2] = {{4, 2}, {4, 1}, {2, 1}, {1, 1}};
    for (const auto& cut : kCuts) {
        if (a.type != kInt8 && cut[1] > 1) continue;
        p.steps = cut[0];
        p.tiles_per_unit = cut[1];
        const int64_t units = units_of(p.lanes * p.tiles_per_unit * p.steps * kStepTokens);
        const int64_t rounds = ceil_div<int64_t>(units, p.grid);
        if (units >= int64_t((rounds == 1 && cut[1] == 1 ? 0.45 : 0.93) * double(rounds * p.grid))) break;
    }
    if (a.steps > 0) p.steps = a.steps;
    if (a.tiles_per_unit > 0) p.tiles_per_unit = a.tiles_per_unit;
    p.tile = p.steps * kStepTokens;
    p.tile_shift = log2_ceil(p.tile);
    p.unit_tokens = p.lanes * p.tiles_per_unit * p.tile;
    p.tokens = std::max<int64_t>(1, ceil_div<int64_t>(a.max_length, p.unit_tokens)) * p.unit_tokens;
    p.tokens = ceil_div<int64_t>(p.tokens, kLineBytes / 2) * (kLineBytes / 2); // a row is whole lines
    p.tiles = ceil_div<int64_t>(p.tokens / p.tile, 4) * 4;
    p.exponent = std::max(0, 62 - log2_ceil(a.samples) - 16 - log2_ceil(a.max_length));

    const int64_t rows = int64_t(a.batch) * a.heads, stat_bytes = a.type == kInt8 ? 16 : 8;
    // Blocks share the samples of a query head where there is room for them, and where they do not spend more on all
    // its tiles than they save; four only where most multiprocessors have no unit: beside the score pass clusters of
    // four do not all find room. For int8 a block has half the warps.
    const int most_tiles = a.type == kInt8 ? 4096 : 1024, most_blocks = (a.type == kInt8 ? 2 : 1) * multiprocessors;
    const int most_split = 2 * units_of(p.unit_tokens) <= p.grid ? kMaxSplit : 2;
    p.split = 1;
    while (modern && 2 * p.split <= most_split && p.tiles * 2 * p.split <= most_tiles &&
           rows * 2 * p.split <= most_blocks) {
        p.split *= 2;
    }
    if (modern && a.split > 0) p.split = a.split;
    p.split_shift = log2_ceil(p.split);
    // Statistics are zero between calls. Whatever the calls' keys and tiles, none's stash gets to where another has
    // them: they are at the end, with room for the smallest tiles.
    const int64_t stats_bytes = aligned(rows * (p.tokens / kStepTokens) * stat_bytes);
    p.counters_at = aligned(sizeof(Control));
    p.stash_at = p.counters_at + aligned(rows * kLineBytes);
    p.bytes = p.stash_at + aligned(rows * p.tokens * 2) + stats_bytes;
    p.stats_at = std::max(p.bytes, a.workspace_bytes / 256 * 256) - stats_bytes;

    // The gather keeps what it has read of so many tiles. Where four blocks share a query head, small ones do.
    p.small_gather = p.split > 2 && p.tiles <= kMaxEntries / 2;
    const GatherSizes& block = p.small_gather ? compiled.sizes.small : compiled.sizes.large;
    p.kept = int(std::min<int64_t>(ceil_div<int64_t>(p.tiles, 8) * 8, kMaxEntries));
    p.gather_shared = block.shared + p.kept / 8 * block.eight_tiles;

    // A block of the gather must fit beside those of the scores, to be there when these end.
    constexpr int kReserved = 1024; // shared memory the system takes of each block
    const int beside = compiled.score_warps * product_bytes(p.group) + compiled.sizes.score;
    const int left = device.multiprocessor_shared - p.gather_shared - 2 * kReserved;
    const int room = std::min(device.block_shared, left) - beside;
    p.stages = std::min(room / p.stage_bytes, kMaxStages);
    if (p.stages < 1) return kSharedMemory;
    p.score_shared = p.stages * p.stage_bytes + beside;
    return cudaSuccess;
}

int plan_of(const DecodeArguments& a, Compiled& compiled, Plan& plan) {
    Device device;
    if (!find(a, compiled)) return kNoKernel;
    if (int error = device_of(device)) return error;
    bool modern;
    if (int error = compiled.is_modern(modern)) return error;
    return make_plan(a, device, compiled, modern, plan);
}

// Traces of the scratch, one block a query head; grid (H, B).
template <class Scheme>
__global__ void trace_kernel(const __grid_constant__ Work work, int32_t* scores, int64_t* weights, float* tile_maximum,
                             int64_t* tile_mass) {
    using Stat = typename Scheme::Stat;
    const int head = blockIdx.x, b = blockIdx.y, length = clamped_length(work.a.lengths, b, work.a.max_length);
    const int tile = work.p.tile, tiles = (length + tile - 1) / tile;
    const int64_t row = int64_t(b) * work.a.heads + head;
    const Stat* stats = work.stats<Stat>(row);
    const uint16_t* stash = work.stash(row);
    __shared__ int row_top;
    if (threadIdx.x == 0) row_top = INT_MIN;
    __syncthreads();
    for (int t = threadIdx.x; t < tiles; t += blockDim.x) atomicMax(&row_top, Scheme::maximum(stats[t]));
    __syncthreads();
    const int top = row_top;
    for (int t = threadIdx.x; t < work.p.tiles; t += blockDim.x) {
        const bool real = t < tiles;
        if (tile_maximum) tile_maximum[row * work.p.tiles + t] = real ? float(Scheme::maximum(stats[t])) : -INFINITY;
        if (tile_mass) {
            const int64_t at = int64_t(t) * tile;
            tile_mass[row * work.p.tiles + t] =
                !real ? 0
                : Scheme::is_far(work, stats[t], top)
                    ? Scheme::far_mass(work, work.a.table, stash + at, int(min(int64_t(tile), length - at)), top)
                    : Scheme::mass(work, stats[t], top);
        }
    }
    for (int64_t n = threadIdx.x; n < work.a.max_length; n += blockDim.x) {
        const int64_t to = row * work.a.max_length + n;
        if (scores) scores[to] = n < length ? int16_t(stash[n]) : 0;
        if (weights) weights[to] = n < length ? Scheme::template weight<false>(work, work.a.table, stash[n], top) : 0;
    }
}

// The ternary counts that the score pass makes for itself; grid (H, B).
__global__ void ternary_kernel(const __grid_constant__ Work work) {
    const int head = blockIdx.x, b = blockIdx.y, first = threadIdx.x * 16;
    if (first >= work.a.head_dim) return;
    const int64_t at = (int64_t(b) * work.a.heads + head) * work.a.head_dim + first;
    const uint4 codes = *reinterpret_cast<const uint4*>(static_cast<const int8_t*>(work.a.q) + at);
    const uint4 counts = ternary_unit(work.a, codes, b, head, first);
    const uint32_t words[4] = {counts.x, counts.y, counts.z, counts.w};
    for (int i = 0; i < 16; ++i) work.a.ternary_counts[at + i] = int8_t(words[i / 4] >> (i % 4 * 8));
}

// Keys that any query head of a group draws; grid (KV, B).
__global__ void union_kernel(const int32_t* counts, int group, int64_t keys, int32_t* unique) {
    const int64_t at = int64_t(blockIdx.y) * gridDim.x + blockIdx.x;
    const int32_t* rows = counts + at * group * keys;
    int found = 0;
    for (int64_t n = threadIdx.x; n < keys; n += blockDim.x) {
        bool any = false;
        for (int g = 0; g < group; ++g) any |= rows[g * keys + n] > 0;
        found += any;
    }
    __shared__ int sum;
    if (threadIdx.x == 0) sum = 0;
    __syncthreads();
    atomicAdd(&sum, found);
    __syncthreads();
    if (threadIdx.x == 0) unique[at] = sum;
}

// Integers that arrive while the kernel behind has begun.
__global__ void late_kernel(const int32_t* from, int32_t* to, int count) {
    launch_dependents();
    const long long start = clock64();
    while (clock64() - start < 2000000) {
    }
    for (int i = threadIdx.x; i < count; i += blockDim.x) to[i] = from[i];
}

// The floor: a kernel that only reads, through the same ring, nobody looking at the bytes.
__global__ void __launch_bounds__(32, 1) read_kernel(const char* data, int64_t bytes, const char* more, int stages) {
    SANTA_DYNAMIC_SHARED(ring);
    constexpr int kPiece = 32768;
    __shared__ uint64_t full[kMaxStages];
    wait_for_launch();
#if SANTA_BULK_COPY
    if (threadIdx.x != 0) return;
    for (int s = 0; s < stages; ++s) barrier_init(&full[s], 1);
    barrier_init_fence();
    const uint64_t policy = evict_first();
    const int64_t pieces = (bytes + kPiece - 1) / kPiece, all = more ? 2 * pieces : pieces;
    Stage filled, used;
    int flying = 0;
    for (int64_t piece = blockIdx.x; piece < all; piece += gridDim.x) {
        if (flying == stages) {
            barrier_wait(&full[used.index], used.parity);
            used.next(stages);
            --flying;
        }
        const int64_t at = (piece < pieces ? piece : piece - pieces) * kPiece;
        const uint32_t size = uint32_t(min(int64_t(kPiece), bytes - at));
        stage_expect(&full[filled.index], size);
        copy_bulk(ring + filled.index * kPiece, (piece < pieces ? data : more) + at, size, &full[filled.index], policy);
        filled.next(stages);
        ++flying;
    }
    launch_dependents();
    for (; flying > 0; --flying) {
        barrier_wait(&full[used.index], used.parity);
        used.next(stages);
    }
#else
    // Older devices: plain loads, kept alive by a comparison that never holds.
    uint4 sum = {};
    for (int pass = 0; pass < (more ? 2 : 1); ++pass) {
        const uint4* from = reinterpret_cast<const uint4*>(pass ? more : data);
        for (int64_t i = blockIdx.x * 32 + threadIdx.x; i < bytes / 16; i += gridDim.x * 32) {
            const uint4 x = from[i];
            sum.x ^= x.x ^ x.y ^ x.z ^ x.w;
        }
    }
    if (sum.x == 0x5eed5eed && stages < 0) ring[0] = 1;
#endif
}

} // namespace
} // namespace santa

using namespace santa;

extern "C" {

int santa_hw_plan(const DecodeArguments* a, Plan* plan) {
    Compiled compiled;
    return plan_of(*a, compiled, *plan);
}

int santa_hw_decode(const DecodeArguments* a, cudaStream_t stream) {
    Compiled compiled;
    Work work{*a, {}};
    if (int error = plan_of(*a, compiled, work.p)) return error;
    if (work.p.bytes > a->workspace_bytes) return kWorkspace;
    if (a->batch == 0) return cudaSuccess;
    if (a->ternary && a->ternary_counts) {
        if (int error = start(ternary_kernel, {dim3(a->heads, a->batch), 32}, stream, work)) return error;
    }
    return compiled.launch(work, stream);
}

// Scores (`fixed`), weights, and each tile's maximum (`sys`) and mass, from the scratch of the call before. Any
// pointer may be null.
int santa_hw_trace(const DecodeArguments* a, int32_t* scores, int64_t* weights, float* tile_maximum, int64_t* tile_mass,
                   cudaStream_t stream) {
    Compiled compiled;
    Work work{*a, {}};
    if (int error = plan_of(*a, compiled, work.p)) return error;
    if (work.p.bytes > a->workspace_bytes) return kWorkspace;
    if (a->batch == 0) return cudaSuccess;
    const Grid grid{dim3(a->heads, a->batch), 512};
    if (a->type == kInt8) {
        const auto trace = trace_kernel<Fixed<Shape<int8_t, 64, 8>>>;
        return start(trace, grid, stream, work, scores, weights, nullptr, tile_mass);
    }
    const auto trace = trace_kernel<Sys<Shape<uint16_t, 64, 8>>>;
    return start(trace, grid, stream, work, nullptr, weights, tile_maximum, tile_mass);
}

int santa_hw_union(const int32_t* counts, int batch, int kv_heads, int group, int64_t keys, int32_t* unique,
                   cudaStream_t stream) {
    if (batch == 0) return cudaSuccess;
    return start(union_kernel, {dim3(kv_heads, batch), 512}, stream, counts, group, keys, unique);
}

// Read `bytes` (a multiple of 16) at `data` and, if not null, at `more`.
int santa_hw_read(const void* data, int64_t bytes, const void* more, cudaStream_t stream) {
    constexpr int kStages = 6;
    Device device;
    if (int error = device_of(device)) return error;
    const int shared = kStages * 32768;
    if (device.block_shared < shared + 1024) return kSharedMemory;
    return start(read_kernel, {dim3(device.multiprocessors), 32, shared, true}, stream, static_cast<const char*>(data),
                 bytes, static_cast<const char*>(more), kStages);
}

// Copy integers, late; for validation.
int santa_hw_copy_late(const int32_t* from, int32_t* to, int count, cudaStream_t stream) {
    return start(late_kernel, {dim3(1), 128}, stream, from, to, count);
}

// Bytes of the L2 set aside for data that asks to stay (a setting of the whole device): the scratch does.
int santa_hw_persist_l2(int64_t bytes) { return persist_l2(bytes); }

const char* santa_hw_error(int code) {
    switch (code) {
    case kNoKernel:
        return "no kernel for this element type, head dimension and group size";
    case kSharedMemory:
        return "the device has too little shared memory a block";
    case kWorkspace:
        return "the workspace is too small for this call";
    }
    return cudaGetErrorString(cudaError_t(code));
}
}
