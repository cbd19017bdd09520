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

// What a warp scores: which of a unit's runs, for which of its chunk's KV heads.
struct Place {
    int run, head;
};

template <class Scheme>
struct alignas(16) ScoreShared {
    uint64_t full[kMaxStages], empty[kMaxStages];
    Unit unit[kMaxStages]; // of the stage that begins one
    Unit first;            // what the block probably begins with
    int shift[Scheme::Shape::kWarps][Scheme::Shape::kHeads];
    Mail mail[Scheme::Shape::kWarps];
    // A warp's, as registers would be too many: its place, and units that it has written and not told of.
    Place place[Scheme::Shape::kWarps];
    int units[Scheme::Shape::kWarps];
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

// Stages on their way at a time. Two keep the memory busy; more make others wait for what they read, and memory pages
// change hands more often.
constexpr int kStagesInFlight = 2;

// A stage number and the parity of its round, advancing together.
struct Stage {
    int index = 0, parity = 0;
    __device__ void next(int stages) {
        if (++index == stages) {
            index = 0;
            parity ^= 1;
        }
    }
    // The one so many before.
    __device__ Stage earlier(int n, int stages) const {
        return index >= n ? Stage{index - n, parity} : Stage{index - n + stages, parity ^ 1};
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

// What is left of a unit: of this lane's run so many tokens, their keys, if rows follow each other, from there on.
struct Left {
    int tokens;
    const char* keys;
    __device__ int step() const { return max(0, min(tokens, kStepTokens)); }
};

// Fill the ring's next stage with the next step; with its unit, if that begins. `ready` returns when keys may be read.
template <class Scheme, class F>
__device__ inline void fill(const Work& work, ScoreShared<Scheme>& shared, char* stages, bool linear,
                            const Stage& stage, const Unit& unit, const Left& left, bool begins, F ready) {
    constexpr int kRowBytes = Scheme::Shape::kRowBytes;
    const Plan& p = work.p;
    const int lane = threadIdx.x % 32, row_bytes = chunk_heads(work, unit.chunk) * kRowBytes;
    const int lane_bytes = kStepTokens * p.chunk * kRowBytes;
    uint64_t* full = &shared.full[stage.index];
    char* to = stages + stage.index * p.stage_bytes;
    const int count = left.step(), bytes = count * row_bytes;
    const int all = p.lanes == 1 ? bytes : __reduce_add_sync(~0u, bytes);
    barrier_wait(&shared.empty[stage.index], stage.parity ^ 1);
    if (lane == 0) {
        if (begins) shared.unit[stage.index] = unit;
        stage_expect(full, all);
    }
    __syncwarp();
    ready();
#if SANTA_BULK_COPY
    const uint64_t policy = evict_first();
    if (linear && work.a.k.pages == nullptr) {
        if (count > 0) copy_bulk(to + lane * lane_bytes, left.keys, bytes, full, policy);
        return;
    }
    for (int r = 0; r < p.lanes; ++r, to += lane_bytes) {
        const int first = unit.length - __shfl_sync(~0u, left.tokens, r);
        for_runs(work, unit, linear, row_bytes, first, __shfl_sync(~0u, count, r),
                 [&](int row, const char* keys, int size) {
                     copy_bulk(to + row * row_bytes, keys, size, full, policy);
                 });
    }
#else
    for (int r = 0; r < p.lanes; ++r, to += lane_bytes) {
        const int begin = unit.length - __shfl_sync(~0u, left.tokens, r), end = begin + __shfl_sync(~0u, count, r);
        for (int n = begin; n < end; ++n) {
            const char* keys =
                cache_token(work.a.k, unit.b, n, &work.control()->error) + unit.chunk * p.chunk * kRowBytes;
            for (int at = lane * 16; at < row_bytes; at += 512) copy_16(to + (n - begin) * row_bytes + at, keys + at);
        }
    }
#endif
    stage_issued(full);
}

// How the producer stands to the kernel ahead. Lengths are read while that drains. They may still change, and are read
// again: until then what they say is a hint.
template <class Scheme>
class Ahead {
  public:
    bool waited = false; // for the kernel ahead to end
    bool sure = false;   // that the lengths are those that the schedule read

    __device__ Ahead(const Work& work, ScoreShared<Scheme>& shared, const Schedule& schedule)
        : work_(work), shared_(shared), schedule_(schedule) {}

    __device__ void wait() {
        if (waited) return;
        waited = true;
        wait_for_launch();
        launch_dependents(); // not sooner: until here the gather's counters belong to the call before
        now_ = schedule_.length_now();
    }

    // Returns whether they are; if not the ring, filled as far as `next`, is empty again.
    __device__ bool make_sure(const Stage& next) {
        wait();
        sure = true;
        const bool changed = schedule_.changed(now_);
        const int lane = threadIdx.x % 32, filled = next.parity ? work_.p.stages : next.index;
        if (changed && filled > 0) {
            // When the copies have landed the stages begin anew: no consumer has seen them.
            for (int s = 0; s < filled; ++s) barrier_wait(&shared_.full[s], 0);
            __syncwarp();
            for (int s = lane; s < filled; s += 32) barrier_init_again(&shared_.full[s], kProducerArrivals);
            barrier_init_fence();
            __syncwarp();
        }
        barrier_arrive_named(kSureBarrier, Scheme::Shape::kThreads - 32);
        return !changed;
    }

  private:
    const Work& work_;
    ScoreShared<Scheme>& shared_;
    const Schedule& schedule_;
    int now_ = 0; // this lane's length
};

template <class Scheme>
__device__ void produce(const Work& work, ScoreShared<Scheme>& shared, char* stages) {
    const Plan& p = work.p;
    const Cache& k = work.a.k;
    const int lane = threadIdx.x % 32, recent = work.a.recent;
    // Where a chunk is all KV heads and rows follow each other, a lane copies a whole step of one run, or of a page.
    const int row_bytes = work.a.kv_heads * Scheme::Shape::kRowBytes;
    const bool linear = p.chunks == 1 && k.token_stride == row_bytes;
    // By the lengths' hint the ring is filled, so that no key waits for them; with keys that the kernel ahead leaves
    // alone even before it has ended. Pages wait: beyond a row's length the page table need not hold page numbers.
    // Rows that the schedule does not compare wait too.
    const bool by_hint = kBulkCopy && k.pages == nullptr && work.a.batch <= 32;
    Schedule schedule(work);
    Ahead<Scheme> ahead(work, shared, schedule);
    // Blocks have two units each and take further ones as they come: they read close together, and none waits long for
    // another. The number behind the next is asked for ahead, and not before the lengths are sure.
    int total = schedule.begin(), number = blockIdx.x, taken = 0;
    Stage stage;
    const auto next_unit = [&] { return number < total ? schedule.find(number) : Unit{-1, 0, 0, 0}; };
    Unit unit = next_unit();
    if (lane == 0) shared.first = unit;
    barrier_arrive_named(kFirstBarrier, Scheme::Shape::kThreads - 32);
    for (;;) {
        const bool asks = number >= p.grid && total > 2 * p.grid;
        // A block that has more than a unit, or fetches while others work, does so at an even pace.
        const bool paced = (recent >= 0 || total > p.grid) && p.stages > kStagesInFlight;
        // The stages of a unit, as the consumers count them: the first run is the longest.
        const int visible = unit.length - unit.first_token;
        const int steps =
            unit.b < 0 ? 1 : min(p.tiles_per_unit * p.steps, (visible + kStepTokens - 1) / kStepTokens);
        const int first = unit.first_token + lane * p.tiles_per_unit * p.tile;
        Left left{lane < p.lanes ? unit.length - first : 0,
                  k.data + unit.b * k.outer_stride + int64_t(first) * row_bytes};
        bool again = false;
#pragma unroll 1
        for (int s = 0; s < steps; ++s) {
            const auto newest = [&] {
                return recent >= 0 && __any_sync(~0u, left.tokens > 0 && left.tokens - left.step() < recent);
            };
            if (!ahead.sure && (!by_hint || stage.parity || unit.b < 0 || asks || newest()) &&
                !ahead.make_sure(stage)) {
                again = true;
                break;
            }
            if (asks && s == 0 && lane == 0) taken = atomicAdd(&work.control()->taken, 1u);
            if (paced && (stage.parity || stage.index >= kStagesInFlight)) {
                const Stage earlier = stage.earlier(kStagesInFlight, p.stages);
                barrier_wait(&shared.full[earlier.index], earlier.parity);
            }
            // The kernel ahead is waited for at the last moment: the first copy is ready to go.
            fill(work, shared, stages, linear, stage, unit, left, s == 0, [&] {
                if (recent < 0 && !ahead.waited) wait_for_launch();
            });
            if (unit.b < 0) return;
            if (recent < 0) ahead.wait();
            left.tokens -= kStepTokens;
            left.keys += kStepTokens * row_bytes;
            stage.next(p.stages);
        }
        if (again) {
            total = schedule.begin();
            number = blockIdx.x;
            stage = {};
        } else {
            number = number < p.grid ? number + p.grid : 2 * p.grid + __shfl_sync(~0u, taken, 0);
        }
        unit = next_unit();
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
    const int warp = threadIdx.x / 32, lane = anew(threadIdx.x) % 32, group = work.p.group;
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
    const int warp = threadIdx.x / 32, group = work.p.group;
    const auto leads = [] { return anew(threadIdx.x) % 32 == 0; }; // the lane that speaks for the warp
    if (leads()) {
        const int run = unsigned(warp) / unsigned(p.chunk);
        shared.place[warp] = {run, warp - run * p.chunk};
        shared.units[warp] = 0;
    }
    __syncwarp();
    auto* products = warp_products<S>(p, stages);
    QueryFragments<S> query;
    // First query head, counted over all sequences, of the group that this warp scores for in a unit; below 0: none.
    const auto row_of = [&](const Unit& unit) {
        const Place place = shared.place[warp];
        const bool works = unit.b >= 0 && place.run < p.lanes && place.head < chunk_heads(work, unit.chunk);
        return works ? unit.b * work.a.heads + (unit.chunk * p.chunk + place.head) * group : -1;
    };
    const auto begin = [&](int row) {
        if (row >= 0) load_queries(work, shared, row, query);
    };
    barrier_sync(kFirstBarrier, S::kThreads - 32);
    int row = row_of(shared.first);
    wait_for_launch();
    begin(row); // the first queries are fetched while the first keys are on their way
    barrier_sync(kSureBarrier, S::kThreads - 32);
    // How many units this warp has written of the row's group.
    const auto tell = [&](int row) {
        __syncwarp(); // the release covers what the warp has written
        const int head = anew(threadIdx.x) % 32;
        if (row >= 0 && head < group) add_release(work.finished(anew(row) + head), shared.units[warp]);
        __syncwarp();
        if (leads()) shared.units[warp] = 0;
    };
    // The same, but another warp does it, and waits until all is written: this one has keys to look at.
    const auto post = [&](int row, int units) {
        __syncwarp();
        if (!leads()) return;
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
        if (leads()) unit = shared.unit[stage.index]; // the lane that gives the stage back
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
        const Place place = shared.place[warp];
        const int run_token = unit.first_token + place.run * p.tiles_per_unit * p.tile;
        const int stride = chunk_heads(work, unit.chunk) * S::kRowBytes;
        const char* keys = stages + (place.run * kStepTokens * p.chunk + place.head) * S::kRowBytes;
        for (int t = 0; t < p.tiles_per_unit && t * p.tile < tokens; ++t) {
            for (int s = 0; s < p.steps && t * p.tile + s * kStepTokens < tokens; ++s) {
                barrier_wait(&shared.full[stage.index], stage.parity);
                if (row >= 0) {
                    step_products(work, keys + stage.index * p.stage_bytes, stride, query, products + s * kStepTokens);
                }
                __syncwarp();
                if (kRacecheck || leads()) barrier_arrive(&shared.empty[stage.index]);
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
        if (leads()) ++shared.units[warp];
    }
}

} // namespace santa
