// The score pass: one warp of a block brings keys into a ring of stages, others turn them into dot products, and these
// into weights and tile statistics in the scratch. One more tells the gather.
#pragma once

#include "arguments.cuh"
#include "arithmetic.cuh"
#include "fragments.cuh"
#include "ring.cuh"
#include "schedule.cuh"

namespace santa {

// What a warp that scores asks to be told: units that it has written of a row's group; 0: nothing, below 0: no more.
struct Mail {
    int row, units;
};

template <class Scheme>
struct alignas(16) ScoreShared {
    uint64_t full[kMaxStages], empty[kMaxStages];
    Unit unit[kMaxStages]; // of the stage that begins one
    Unit first;            // what the block probably begins with
    int shift[Scheme::Shape::kWarps][Scheme::Shape::kHeads];
    Mail mail[Scheme::Shape::kWarps];
    int units[Scheme::Shape::kWarps]; // that a warp has written and not told of; a register would be one too many
    uint32_t table[Scheme::Shape::kInteger ? kTableEntries : 1];
};

// Bytes of a warp's dot products of a tile: in fours of query heads.
__host__ __device__ inline int product_bytes(int group) {
    return (group + 3) / 4 * 4 * kProductStride * int(sizeof(int));
}

// A warp gives a stage back by one arrival, behind a barrier of the warp, and leaves mail for another in shared memory.
// compute-sanitizer's racecheck can follow neither: built for it, every lane arrives, and warps tell for themselves.
#ifdef SANTA_RACECHECK
constexpr bool kRacecheck = true;
#else
constexpr bool kRacecheck = false;
#endif

// The ring's barriers, the mail and the table, before anything else.
template <class Scheme>
__device__ inline ScoreShared<Scheme>& score_setup(const Work& work, char* stages) {
    const Plan& p = work.p;
    char* behind = stages + p.stages * p.stage_bytes + Scheme::Shape::kWarps * product_bytes(p.group);
    auto& shared = *reinterpret_cast<ScoreShared<Scheme>*>(behind);
    if (threadIdx.x == 0) {
        for (int s = 0; s < p.stages; ++s) {
            barrier_init(&shared.full[s], kProducerArrivals);
            barrier_init(&shared.empty[s], Scheme::Shape::kWarps * (kRacecheck ? 32 : 1));
        }
        barrier_init_fence();
    }
    if (threadIdx.x < Scheme::Shape::kWarps) shared.mail[threadIdx.x] = {-1, 0};
    work.copy_table(shared.table);
    __syncthreads();
    return shared;
}

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

// Fill the ring's next stage with a step of the unit's runs: a lane has its run's first token and how many tokens.
template <class Scheme>
__device__ inline void fill(const Work& work, ScoreShared<Scheme>& shared, char* stages, const Stage& stage,
                            const Unit& unit, int first, int rows, bool announce) {
    constexpr int kRowBytes = Scheme::Shape::kRowBytes;
    const Plan& p = work.p;
    const Cache& k = work.a.k;
    const int lane = threadIdx.x % 32, heads = chunk_heads(work, unit.chunk), row_bytes = heads * kRowBytes;
    const int lane_bytes = kStepTokens * p.chunk * kRowBytes;
    // Where a chunk is all KV heads and rows follow each other, a lane copies a whole step of one run.
    const bool linear = heads == work.a.kv_heads && k.token_stride == row_bytes;
    [[maybe_unused]] const bool whole = kBulkCopy && linear && k.pages == nullptr;
    uint64_t* full = &shared.full[stage.index];
    char* to = stages + stage.index * p.stage_bytes;
    barrier_wait(&shared.empty[stage.index], stage.parity ^ 1);
    const int bytes = rows * row_bytes, all = p.lanes == 1 ? bytes : __reduce_add_sync(~0u, bytes);
    if (lane == 0) {
        if (announce) shared.unit[stage.index] = unit;
        stage_expect(full, all);
    }
    __syncwarp();
#if SANTA_BULK_COPY
    const uint64_t policy = evict_first();
    if (whole) {
        const char* from = k.data + unit.b * k.outer_stride + int64_t(first) * row_bytes;
        if (rows > 0) copy_bulk(to + lane * lane_bytes, from, bytes, full, policy);
    } else {
        for (int r = 0; r < p.lanes; ++r, to += lane_bytes) {
            for_runs(work, unit, linear, row_bytes, __shfl_sync(~0u, first, r), __shfl_sync(~0u, rows, r),
                     [&](int row, const char* keys, int size) {
                         copy_bulk(to + row * row_bytes, keys, size, full, policy);
                     });
        }
    }
#else
    for (int r = 0; r < p.lanes; ++r, to += lane_bytes) {
        const int begin = __shfl_sync(~0u, first, r), end = begin + __shfl_sync(~0u, rows, r);
        for (int n = begin; n < end; ++n) {
            const char* keys =
                cache_token(k, unit.b, n, &work.control()->error) + unit.chunk * p.chunk * kRowBytes;
            for (int at = lane * 16; at < row_bytes; at += 512) copy_16(to + (n - begin) * row_bytes + at, keys + at);
        }
    }
#endif
    stage_issued(full);
}

template <class Scheme>
__device__ void produce(const Work& work, ScoreShared<Scheme>& shared, char* stages) {
    const Plan& p = work.p;
    const int lane = threadIdx.x % 32;
    Schedule schedule(work);
    // Blocks have two units each and take further ones as they come: they read close together, and none waits long for
    // another. The number behind the next is asked for ahead, and not before the lengths are sure.
    int total = schedule.begin(), number = blockIdx.x, taken = 0, step = 0;
    Unit unit;
    Stage stage;
    // Lengths are read while the kernel ahead drains. They may still change, and are read again: until then what they
    // say is a hint. By the hint the ring is filled, so that no key waits for the lengths; with keys that the kernel
    // ahead leaves alone even before it has ended. Pages wait: beyond a row's length the page table need not hold page
    // numbers. So do more sequences than the schedule compares.
    enum { kNothing, kHint, kLengths } known = kNothing;
    const int by_hint = kBulkCopy && work.a.k.pages == nullptr && work.a.batch <= 32 ? p.stages : 0;
    const int recent = work.a.recent;
    int now = 0;
    const auto wait_ahead = [&] {
        wait_for_launch();
        launch_dependents(); // not sooner: until here the gather's counters belong to the call before
        now = schedule.length_now();
    };
    for (int filled = 0;; ++filled) {
        if (step == 0) unit = number < total ? schedule.find(number) : Unit{-1, 0, 0, 0};
        if (known == kNothing) {
            if (lane == 0) shared.first = unit;
            barrier_arrive_named(kFirstBarrier, Scheme::Shape::kThreads - 32);
            if (recent < 0) wait_ahead();
            known = kHint;
        }
        const int first = unit.first_token + lane * p.tiles_per_unit * p.tile + step * kStepTokens;
        const int rows = lane < p.lanes ? step_rows(unit, first) : 0;
        const bool asks = step == 0 && number >= p.grid && total > 2 * p.grid;
        const bool waits = recent >= 0 && __any_sync(~0u, rows > 0 && first + rows > unit.length - recent);
        if (known == kHint && (filled == by_hint || unit.b < 0 || asks || waits)) {
            if (recent >= 0) wait_ahead();
            known = kLengths;
            const bool changed = schedule.changed(now);
            if (changed && filled > 0) {
                // When the copies have landed the stages begin anew: no consumer has seen them.
                for (int s = 0; s < filled; ++s) barrier_wait(&shared.full[s], 0);
                __syncwarp();
                for (int s = lane; s < filled; s += 32) barrier_init_again(&shared.full[s], kProducerArrivals);
                barrier_init_fence();
                __syncwarp();
            }
            barrier_arrive_named(kSureBarrier, Scheme::Shape::kThreads - 32);
            if (changed) {
                total = schedule.begin();
                number = blockIdx.x;
                step = 0;
                stage = {};
                continue;
            }
        }
        if (asks && lane == 0) taken = atomicAdd(&work.control()->taken, 1u);
        fill(work, shared, stages, stage, unit, first, rows, step == 0);
        if (unit.b < 0) return;
        stage.next(p.stages);
        // The stages of a unit, as the consumers count them: the first run is the longest.
        if (++step == p.tiles_per_unit * p.steps || unit.first_token + step * kStepTokens >= unit.length) {
            step = 0;
            number = number < p.grid ? number + p.grid : 2 * p.grid + __shfl_sync(~0u, taken, 0);
        }
    }
}

// Mail -----------------------------------------------------------------------------------------------------------------

// By a warp of its own: what was written before mail was sent is visible before the counters say so.
template <class Scheme>
__device__ void tell_mail(const Work& work, ScoreShared<Scheme>& shared) {
    constexpr int kWarps = Scheme::Shape::kWarps;
    const int lane = threadIdx.x % 32;
    for (int left = kWarps; left > 0;) {
        Mail* mail = &shared.mail[min(lane, kWarps - 1)];
        const int units = lane < kWarps ? load_acquire_block(&mail->units) : 0;
        if (__any_sync(~0u, units > 0)) fence_device();
        for (int head = 0; units > 0 && head < work.p.group; ++head) add(work.finished(mail->row + head), units);
        if (units != 0) store_release_block(&mail->units, 0);
        left -= __popc(__ballot_sync(~0u, units < 0));
        if (left > 0 && !__any_sync(~0u, units != 0)) {
            wait_a_little([&] {
                for (const Mail& any : shared.mail) {
                    if (load_acquire_block(&any.units) != 0) return true;
                }
                return false;
            });
        }
    }
}

// Consumers ----------------------------------------------------------------------------------------------------------

// Go through a tile's dot products, four query heads at a time: f(head, octet, x) has those of eight tokens of a head
// of the group, or of none beyond it.
template <class S, class F>
__device__ inline void for_octets(const typename S::Sum* products, int group, F f) {
    for (int first = 0; first < group; first += 4) {
        const int head = first + threadIdx.x % 32 / 8, octet = threadIdx.x % 8;
        const uint4* from = reinterpret_cast<const uint4*>(products + head * kProductStride + octet * 8);
        const uint4 low = from[0], high = from[1];
        const uint32_t words[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
        typename S::Sum x[8];
#pragma unroll
        for (int e = 0; e < 8; ++e) memcpy(&x[e], &words[e], 4);
        f(head, octet, x);
    }
}

// The dot products of a step for a KV head's group.
template <class S>
__device__ inline void step_products(const Work& work, const char* keys, int stride, const QueryFragments<S>& query,
                                     typename S::Sum* to) {
    if constexpr (S::kInteger) {
        dot_products<S, int8_t>(keys, stride, query, work.p.group, to);
    } else if (work.a.type == kBfloat16) {
        dot_products<S, __nv_bfloat16>(keys, stride, query, work.p.group, to);
    } else {
        dot_products<S, __half>(keys, stride, query, work.p.group, to);
    }
}

// Queries and score shifts of a KV head's group, whose first query head is `row`, counted over all sequences.
template <class Scheme>
__device__ inline void load_queries(const Work& work, ScoreShared<Scheme>& shared, int row,
                                    QueryFragments<typename Scheme::Shape>& query) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, group = work.p.group;
    query.load(group, [&](int head, int u) {
        const uint4* q = static_cast<const uint4*>(work.a.q) + int64_t(row + head) * Scheme::Shape::kUnits;
        return Scheme::query_unit(work, q[u], row + head, u);
    });
    if (work.a.shift && lane < group) shared.shift[warp][lane] = work.a.shift[row + lane];
}

// Where a warp's dot products of a tile lie.
template <class S>
__device__ inline typename S::Sum* warp_products(const Plan& p, char* stages) {
    return reinterpret_cast<typename S::Sum*>(stages + p.stages * p.stage_bytes +
                                              anew(threadIdx.x) / 32 * product_bytes(p.group));
}

// Weights or scores and statistics of a tile, from its dot products to the scratch.
template <class Scheme, bool SharedTable, bool HalfUp>
__device__ inline void finish_tile(const Work& work, ScoreShared<Scheme>& shared,
                                   char* stages, int row, int first_token, int visible) {
    using S = typename Scheme::Shape;
    const int warp = threadIdx.x / 32;
    for_octets<S>(warp_products<S>(work.p, stages), work.p.group, [&](int head, int octet, typename S::Sum(&x)[8]) {
        uint4 stored;
        const auto stat = Scheme::template finish<SharedTable, HalfUp>(
            work, x, visible - octet * 8, shared.shift[warp][head], shared.table, stored);
        if (head < work.p.group) {
            if (octet == 0) {
                store_stat(work.stats<typename Scheme::Stat>(anew(row) + head) + (first_token >> work.p.tile_shift),
                           stat);
            }
            if (octet * 8 < work.p.tile) {
                uint16_t* to = work.stash(anew(row) + head) + first_token + octet * 8;
                store_policy(reinterpret_cast<uint4*>(to), stored, evict_last());
            }
        }
    });
}

template <class Scheme>
__device__ void consume(const Work& work, ScoreShared<Scheme>& shared, char* stages) {
    using S = typename Scheme::Shape;
    const Plan& p = work.p;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, group = work.p.group;
    // Of the unit's runs, of the chunk's KV heads.
    const int run = unsigned(warp) / unsigned(p.chunk), chunk_head = warp - run * p.chunk;
    auto* products = warp_products<S>(p, stages);
    QueryFragments<S> query;
    // First query head, counted over all sequences, of the group that this warp scores for in a unit; below 0: none.
    const auto row_of = [&](const Unit& unit) {
        const bool works = unit.b >= 0 && run < p.lanes && chunk_head < chunk_heads(work, unit.chunk);
        return works ? unit.b * work.a.heads + (unit.chunk * p.chunk + chunk_head) * group : -1;
    };
    const auto begin = [&](int row) {
        if (row >= 0) load_queries(work, shared, row, query);
    };
    barrier_sync(kFirstBarrier, S::kThreads - 32);
    int row = row_of(shared.first);
    if (lane == 0) shared.units[warp] = 0;
    wait_for_launch();
    begin(row); // the first queries are fetched while the first keys are on their way
    barrier_sync(kSureBarrier, S::kThreads - 32);
    // How many units this warp has written of the row's group.
    const auto tell = [&](int row) {
        __syncwarp(); // the release covers what the warp has written
        if (row >= 0 && lane < group) add_release(work.finished(anew(row) + lane), shared.units[warp]);
        __syncwarp();
        if (lane == 0) shared.units[warp] = 0;
    };
    // The same, but another warp does it, and waits until all is written: this one has keys to look at.
    const auto post = [&](int row, int units) {
        __syncwarp();
        if (lane > 0) return;
        if (units < 0 || row >= 0) {
            Mail* mail = &shared.mail[warp];
            wait_for([=] { return load_acquire_block(&mail->units) == 0; });
            mail->row = row;
            store_release_block(&mail->units, units);
        }
        shared.units[warp] = 0;
    };
    Stage stage;

    for (;;) {
        barrier_wait(&shared.full[stage.index], stage.parity);
        Unit unit{};
        if (lane == 0) unit = shared.unit[stage.index]; // the lane that gives the stage back
        unit = {__shfl_sync(~0u, unit.b, 0), __shfl_sync(~0u, unit.chunk, 0), __shfl_sync(~0u, unit.first_token, 0),
                __shfl_sync(~0u, unit.length, 0)};
        if (unit.b < 0) {
            tell(row);
            if (!kRacecheck) post(-1, -1);
            return;
        }
        const int before = row;
        row = row_of(unit);
        if (row != before) begin(row);
        // Of the unit's first run, the longest, and of this warp's.
        const int tokens = unit.length - unit.first_token;
        const int run_token = unit.first_token + run * p.tiles_per_unit * p.tile;
        const int stride = chunk_heads(work, unit.chunk) * S::kRowBytes;
        const char* keys = stages + (run * kStepTokens * p.chunk + chunk_head) * S::kRowBytes;
        for (int t = 0; t < p.tiles_per_unit && t * p.tile < tokens; ++t) {
            for (int s = 0; s < p.steps && t * p.tile + s * kStepTokens < tokens; ++s) {
                barrier_wait(&shared.full[stage.index], stage.parity);
                if (row >= 0) {
                    step_products(work, keys + stage.index * p.stage_bytes, stride, query, products + s * kStepTokens);
                }
                __syncwarp();
                if (kRacecheck || lane == 0) barrier_arrive(&shared.empty[stage.index]);
                stage.next(p.stages);
            }
            if (t == 0 && row != before) {
                if (kRacecheck) {
                    tell(before);
                } else {
                    post(before, shared.units[warp]);
                }
            }
            const int first = run_token + t * p.tile, visible = min(p.tile, unit.length - first);
            if (row >= 0 && visible > 0) {
                if (Scheme::common(work)) {
                    finish_tile<Scheme, true, false>(work, shared, stages, row, first, visible);
                } else if (work.a.half_up && work.shares_table()) {
                    finish_tile<Scheme, true, true>(work, shared, stages, row, first, visible);
                } else if (work.a.half_up) {
                    finish_tile<Scheme, false, true>(work, shared, stages, row, first, visible);
                } else {
                    finish_tile<Scheme, false, false>(work, shared, stages, row, first, visible);
                }
            }
            __syncwarp();
        }
        if (lane == 0) ++shared.units[warp];
    }
}

} // namespace santa
