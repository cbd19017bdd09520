// The score pass: one warp brings keys into a ring of stages, eight turn them into weights and tile statistics.
#pragma once

#include "arguments.cuh"
#include "fragments.cuh"
#include "ring.cuh"
#include "schedule.cuh"

namespace santa {

template <class Scheme>
struct alignas(16) ScoreShared {
    uint64_t full[kMaxStages], empty[kMaxStages];
    Unit unit[kMaxStages]; // of the stage that begins one
    Unit first;            // what the block probably begins with
    typename Scheme::Stat stats[kScoreWarps][Scheme::Shape::kHeads][4];
    int shift[kScoreWarps][Scheme::Shape::kHeads];
    uint32_t table[Scheme::Shape::kInteger ? kTableEntries : 1];
};

// Bytes of the warps' dot products of a tile: in fours of query heads.
__host__ __device__ inline int product_bytes(int group) {
    return kScoreWarps * ((group + 3) / 4 * 4) * kProductStride * int(sizeof(int));
}

// Arrivals that give a stage back: one a warp, behind a barrier of the warp. compute-sanitizer's racecheck cannot
// follow that: built for it, every lane arrives.
#ifdef SANTA_RACECHECK
constexpr int kStageArrivals = kScoreWarps * 32;
#else
constexpr int kStageArrivals = kScoreWarps;
#endif

// A stage number and the parity of its round, advancing together.
struct Stage {
    int index = 0, parity = 0;
    __device__ void next(int stages) {
        if (++index == stages) {
            index = 0;
            parity ^= 1;
        }
    }
};

__device__ inline int chunk_heads(const Work& work, int chunk) {
    return min(work.p.chunk, work.a.kv_heads - chunk * work.p.chunk);
}

// First of block x's share of `total` units.
__device__ inline int share_begin(int total, int x, int blocks) {
    const int share = unsigned(total) / unsigned(blocks), rest = total - share * blocks;
    return share * x + min(x, rest);
}

// Producer -----------------------------------------------------------------------------------------------------------

// Copies of one step of one run of tokens, for the KV heads of a chunk: [first, first + rows), in as few pieces as
// pages and strides allow; a lane copies what begins with its row.
template <class F>
__device__ inline void for_runs(const Work& work, const Unit& unit, bool linear, int row_bytes, int first, int rows,
                                F copy) {
    const Cache& k = work.a.k;
    const int lane = threadIdx.x % 32, n = first + lane;
    int run = 1;
    bool begins = true;
    if (linear && k.pages != nullptr) {
        const int inside = unsigned(n) % unsigned(k.page_tokens);
        begins = lane == 0 || inside == 0;
        run = min(rows - lane, k.page_tokens - inside);
    }
    if (lane < rows && begins) {
        const int head_bytes = row_bytes / unsigned(chunk_heads(work, unit.chunk));
        const char* token = cache_token(k, unit.b, n, &work.control()->error);
        copy(lane, token + unit.chunk * work.p.chunk * head_bytes, run * row_bytes);
    }
}

// Rows of the step that begins at token `first`.
__device__ inline int step_rows(const Unit& unit, int first) {
    return max(0, min(unit.length - first, kStepTokens));
}

template <class Scheme>
__device__ void produce(const Work& work, ScoreShared<Scheme>& shared, char* stages) {
    constexpr int kRowBytes = Scheme::Shape::kRowBytes;
    const Plan& p = work.p;
    const int lane = threadIdx.x % 32, run_tokens = p.tiles_per_unit * p.tile;
    const uint64_t policy = evict_first();
    Schedule schedule(work);
    Stage stage;

    const auto take = [&] {
        uint32_t ticket = 0;
        if (lane == 0) ticket = atomicAdd(&work.control()->ticket, 1u);
        return int(__shfl_sync(~0u, ticket, 0));
    };

    // While the kernel ahead drains: find the block's share of the units and tell the consumers what it begins with.
    // This is a hint: the lengths may still change, and are read again. When streaming, a block takes whatever is next.
    int total = schedule.begin(), number = share_begin(total, blockIdx.x, p.grid);
    Unit unit{-1, 0, 0, 0};
    int found = -1; // number of `unit`
    if (!p.stream && number < total) {
        unit = schedule.find(number);
        found = number;
    }
    if (lane == 0) shared.first = unit;
    barrier_arrive_named(kFirstBarrier, kScoreThreads);
    if (!p.stream) launch_dependents();
    wait_for_launch();
    if (schedule.changed()) {
        total = schedule.begin();
        number = share_begin(total, blockIdx.x, p.grid);
        found = -1;
    }
    const int end = p.stream ? total : share_begin(total, blockIdx.x + 1, p.grid);
    if (p.stream) number = take();
    while (number < end) {
        const int after = p.stream ? take() : number + 1;
        if (number != found) unit = schedule.find(number);
        const int heads = chunk_heads(work, unit.chunk), steps = p.tiles_per_unit * p.steps;
        // The slot's last sequence must have been gathered.
        if (unit.b >= p.slots) wait_until(work.gathered() + unit.b - p.slots, work.a.heads);
        __syncwarp();
        // Where a chunk is all KV heads and rows follow each other, a lane copies a whole step of one run.
        const bool linear = heads == work.a.kv_heads && work.a.k.token_stride == heads * kRowBytes;
        [[maybe_unused]] const bool whole = kBulkCopy && linear && work.a.k.pages == nullptr;
        const int row_bytes = heads * kRowBytes, mine_first = unit.first_token + lane * run_tokens;
        [[maybe_unused]] const char* from =
            work.a.k.data + unit.b * work.a.k.outer_stride + int64_t(mine_first) * row_bytes;
        // The stages of a unit, as the consumers count them: the first run is the longest.
        for (int s = 0; s < steps && unit.first_token + s * kStepTokens < unit.length; ++s) {
            const int first = unit.first_token + s * kStepTokens;
            uint64_t* full = &shared.full[stage.index];
            char* to = stages + stage.index * p.stage_bytes;
            const int bytes = lane < p.lanes ? step_rows(unit, mine_first + s * kStepTokens) * row_bytes : 0;
            barrier_wait(&shared.empty[stage.index], stage.parity ^ 1);
            const int all = p.lanes == 1 ? bytes : __reduce_add_sync(~0u, bytes);
            if (lane == 0) {
                if (s == 0) shared.unit[stage.index] = unit;
                stage_expect(full, all);
            }
            __syncwarp();
#if SANTA_BULK_COPY
            if (whole) {
                if (bytes > 0) {
                    const int offset = lane * (kStepTokens * p.chunk * kRowBytes);
                    copy_bulk(to + offset, from + s * (kStepTokens * row_bytes), bytes, full, policy);
                }
            } else {
                for (int r = 0; r < p.lanes; ++r, to += kStepTokens * p.chunk * kRowBytes) {
                    const int begin = first + r * run_tokens;
                    for_runs(work, unit, linear, row_bytes, begin, step_rows(unit, begin),
                             [&](int row, const char* keys, int size) {
                                 copy_bulk(to + row * row_bytes, keys, size, full, policy);
                             });
                }
            }
#else
            for (int r = 0; r < p.lanes; ++r, to += kStepTokens * p.chunk * kRowBytes) {
                const int begin = first + r * run_tokens, rows = step_rows(unit, begin);
                for (int row = 0; row < rows; ++row) {
                    const char* keys = cache_token(work.a.k, unit.b, begin + row, &work.control()->error) +
                                       unit.chunk * p.chunk * kRowBytes;
                    for (int at = lane * 16; at < row_bytes; at += 512) copy_16(to + row * row_bytes + at, keys + at);
                }
            }
#endif
            stage_issued(full);
            stage.next(p.stages);
        }
        number = after;
    }
    barrier_wait(&shared.empty[stage.index], stage.parity ^ 1);
    if (lane == 0) {
        shared.unit[stage.index].b = -1;
        stage_expect(&shared.full[stage.index], 0);
    }
    __syncwarp();
    stage_issued(&shared.full[stage.index]);
}

// Consumers ----------------------------------------------------------------------------------------------------------

// Weights or scores and statistics of a tile from its dot products, four query heads at a time.
template <class Scheme, bool SharedTable>
__device__ inline void finish_tile(const Work& work, ScoreShared<Scheme>& shared,
                                   const typename Scheme::Shape::Sum* products, uint16_t* stash, int visible, int t) {
    using Sum = typename Scheme::Shape::Sum;
    const int warp = threadIdx.x / 32, group = work.p.group, octet = threadIdx.x % 8;
    for (int first = 0; first < group; first += 4) {
        const int head = first + threadIdx.x % 32 / 8;
        const uint4* from = reinterpret_cast<const uint4*>(products + head * kProductStride + octet * 8);
        const uint4 low = from[0], high = from[1];
        const uint32_t words[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
        Sum x[8];
#pragma unroll
        for (int e = 0; e < 8; ++e) memcpy(&x[e], &words[e], 4);
        uint4 stored;
        const auto stat = Scheme::template finish<SharedTable>(work, x, visible - octet * 8, shared.shift[warp][head],
                                                               shared.table, stored);
        if (head < group) {
            if (octet * 8 < work.p.tile) {
                store_policy(reinterpret_cast<uint4*>(stash + head * work.p.tokens + octet * 8), stored, evict_last());
            }
            if (octet == 0) shared.stats[warp][head][t] = stat;
        }
    }
}

template <class Scheme>
__device__ void consume(const Work& work, ScoreShared<Scheme>& shared, char* stages) {
    using S = typename Scheme::Shape;
    using Stat = typename Scheme::Stat;
    const Plan& p = work.p;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, group = work.p.group;
    // Of the unit's runs, of the chunk's KV heads.
    const int run = unsigned(warp) / unsigned(p.chunk), chunk_head = warp - run * p.chunk;
    auto* products = reinterpret_cast<typename S::Sum*>(stages + p.stages * p.stage_bytes +
                                                      warp * (product_bytes(group) / kScoreWarps));
    QueryFragments<S> query;
    int written = -1; // streaming: sequence of the last unit, whose end is to be told
    const auto tell = [&] {
        if (written >= 0 && lane == 0) {
            __threadfence();
            add_release(work.finished() + written, 1);
        }
        written = -1;
    };
    Stage stage;
    const auto begin = [&](const Unit& unit) {
        const int kv = unit.chunk * p.chunk + chunk_head;
        if (run >= p.lanes || chunk_head >= chunk_heads(work, unit.chunk)) return;
        query.load(group, [&](int head, int u) { return Scheme::query_unit(work, unit.b, kv * group + head, u); });
        if (work.a.shift && lane < group) {
            shared.shift[warp][lane] = work.a.shift[int64_t(unit.b) * work.a.heads + kv * group + lane];
        }
    };
    barrier_sync(kFirstBarrier, kScoreThreads);
    Unit unit = shared.first;
    wait_for_launch();
    if (unit.b >= 0) begin(unit); // the first queries are fetched while the first keys are on their way

    for (;;) {
        barrier_wait(&shared.full[stage.index], stage.parity);
        Unit next{};
        if (lane == 0) next = shared.unit[stage.index]; // the lane that gives the stage back
        next = {__shfl_sync(~0u, next.b, 0), __shfl_sync(~0u, next.chunk, 0), __shfl_sync(~0u, next.first_token, 0),
                __shfl_sync(~0u, next.length, 0)};
        const bool known = unit.b == next.b && unit.chunk == next.chunk;
        unit = next;
        if (unit.b < 0) {
            tell();
            return;
        }
        if (!known) begin(unit);
        const int heads = chunk_heads(work, unit.chunk), kv = unit.chunk * p.chunk + chunk_head;
        const int slot = unsigned(unit.b) % unsigned(p.slots), first_head = kv * group;
        const bool works = run < p.lanes && chunk_head < heads;
        const int run_token = unit.first_token + run * p.tiles_per_unit * p.tile;
        const int stride = heads * S::kRowBytes;
        const char* keys = stages + (run * kStepTokens * p.chunk + chunk_head) * S::kRowBytes;
        int tiles = 0;
        for (int t = 0; t < p.tiles_per_unit && unit.first_token + t * p.tile < unit.length; ++t) {
            for (int s = 0; s < p.steps && unit.first_token + t * p.tile + s * kStepTokens < unit.length; ++s) {
                barrier_wait(&shared.full[stage.index], stage.parity);
                if (works) {
                    const char* from = keys + stage.index * p.stage_bytes;
                    auto* to = products + s * kStepTokens;
                    if constexpr (S::kInteger) {
                        dot_products<S, int8_t>(from, stride, query, group, to);
                    } else if (work.a.type == kBfloat16) {
                        dot_products<S, __nv_bfloat16>(from, stride, query, group, to);
                    } else {
                        dot_products<S, __half>(from, stride, query, group, to);
                    }
                }
                __syncwarp();
                if (kStageArrivals > kScoreWarps || lane == 0) barrier_arrive(&shared.empty[stage.index]);
                stage.next(p.stages);
            }
            if (t == 0) tell(); // by now the last unit's stores have landed: the fence is short
            const int base = run_token + t * p.tile;
            if (works && base < unit.length) {
                tiles = t + 1;
                uint16_t* stash = work.stash(slot, first_head) + base;
                const int visible = min(p.tile, unit.length - base);
                if (!S::kInteger || (1 << work.a.score_frac) <= kTableEntries) {
                    finish_tile<Scheme, true>(work, shared, products, stash, visible, t);
                } else {
                    finish_tile<Scheme, false>(work, shared, products, stash, visible, t);
                }
            }
            __syncwarp();
        }
        // Statistics of neighbouring tiles go out together, in whole sectors.
        if (tiles > 0) {
            for (int i = lane; i < group * 4; i += 32) {
                const int head = i / 4, t = i % 4;
                if (t < tiles) {
                    Stat* to = work.stats<Stat>(slot, first_head + head) + (run_token >> p.tile_shift) + t;
                    store_policy(to, shared.stats[warp][head][t], evict_last());
                }
            }
        }
        __syncwarp();
        if (p.stream && works) written = unit.b;
    }
}

} // namespace santa
