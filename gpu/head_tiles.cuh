// A query head's tiles in a block of the gather: from their statistics to masses, prefix sums, a sample's tile.
#pragma once

#include <climits>

#include "arguments.cuh"
#include "ring.cuh"

namespace santa {

// Of a block that gathers. Behind it lie the statistics of the tiles, then in their place their masses.
template <class Scheme, int Warps>
struct alignas(16) GatherShared {
    using S = typename Scheme::Shape;
    using Stat = typename Scheme::Stat;
    static constexpr int kThreads = Warps * 32;
    static constexpr int kWindow = kThreads < 128 ? kThreads : 128; // samples at a time
    typename S::Sum sums[Warps][S::kDim];
    typename S::Sum parts[kMaxSplit][S::kDim]; // of the cluster's blocks
    uint32_t read[kMaxSplit]; // by the cluster's other blocks, when they have read the statistics
    uint64_t parts_full, read_full;
    uint64_t upto[kThreads];                  // mass up to and with a thread's tiles
    uint64_t inside[kWindow], share[kWindow]; // of a sample: where in its tile's mass, and that
    int tile[kWindow];
    uint64_t warp_mass[Warps];
    int warp_top[Warps];
    uint32_t table[S::kInteger ? kTableEntries : 1];

    // Behind eight tiles a gap: neither neighbours meet in the same banks, nor every fourth or eighth.
    __host__ __device__ static constexpr int slot(int tile) { return tile + tile / 8; }
    __device__ Stat& stat(int tile) { return reinterpret_cast<Stat*>(this + 1)[slot(tile)]; }
    __device__ uint64_t& mass(int tile) { return reinterpret_cast<uint64_t&>(stat(tile)); }
};

// The first step of a binary search among x: the largest power of two below it, 0 for one.
__device__ inline int first_step(int x) { return x > 1 ? 1 << (31 - __clz(x - 1)) : 0; }

// How far the score pass is with a query head: the counter of what is written, and where it ends.
struct Progress {
    const uint32_t* counter;
    uint32_t all;

    __device__ void wait(uint32_t least) const { wait_until(counter, least); }
};

// A query head's tiles. Statistics are read side by side by all threads; for masses a thread has `own` neighbouring
// tiles. Shared memory has the statistics, then in their place the masses up to and with each of a thread's tiles, if
// they fit.
template <class Scheme, int Warps>
struct HeadTiles {
    using Stat = typename Scheme::Stat;
    static constexpr int kThreads = Warps * 32;
    const Work& work;
    GatherShared<Scheme, Warps>& shared;
    Stat* stats;
    const uint16_t* stash;
    const uint32_t* table;
    Progress written;
    int length, count, own, first, held; // keys; tiles: all, a thread's at most, this thread's
    bool kept;
    int top = INT_MIN; // the largest maximum

    __device__ HeadTiles(const Work& work, GatherShared<Scheme, Warps>& shared, int64_t row, int length,
                         Progress written)
        : work(work), shared(shared), stats(work.stats<Stat>(row)), stash(work.stash(row)),
          table(work.shares_table() ? shared.table : work.a.table), written(written), length(length),
          count((length + work.p.tile - 1) >> work.p.tile_shift), own((count + kThreads - 1) / kThreads),
          first(threadIdx.x * own), held(max(0, min(own, count - first))), kept(count <= work.p.kept) {}

    // All statistics, when they are written, and the largest maximum of what this thread has read.
    __device__ void load() {
        for (int start = threadIdx.x; start < count; start += kAtOnce * kThreads) {
            Stat some[kAtOnce];
            wait_for([&] {
                bool valid = true;
#pragma unroll
                for (int e = 0; e < kAtOnce; ++e) {
                    if (start + e * kThreads < count) {
                        some[e] = load_stat(stats + start + e * kThreads);
                        valid &= Scheme::valid(some[e]);
                    }
                }
                return valid;
            });
#pragma unroll
            for (int e = 0; e < kAtOnce; ++e) {
                const int tile = start + e * kThreads;
                if (tile < count) {
                    if (kept) shared.stat(tile) = some[e];
                    top = max(top, Scheme::maximum(some[e]));
                }
            }
        }
    }

    // The next call must not see them. A trace may. By so many threads.
    __device__ void invalidate(int thread, int threads) const {
        for (int tile = thread; tile < count; tile += threads) {
            store_stat(stats + tile, work.a.keep ? Scheme::invalid(load_stat(stats + tile)) : Stat{});
        }
    }

    // The largest of all threads.
    __device__ void share_top() {
        const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
        top = __reduce_max_sync(~0u, top);
        if (lane == 0) shared.warp_top[warp] = top;
        __syncthreads();
        top = __reduce_max_sync(~0u, shared.warp_top[lane % Warps]);
    }

    // Masses up to and with each of the thread's tiles, and each thread; returns the head's. A barrier must follow.
    __device__ uint64_t sum() {
        const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
        uint64_t mass = 0;
        if (kept) {
            mass = own > 2 ? sum_kept<4>() : own > 1 ? sum_kept<2>() : sum_kept<1>();
        } else {
            for (int i = 0; i < held; ++i) mass += mass_of(first + i, load_stat(stats + first + i));
        }
#pragma unroll
        for (int step = 1; step < 32; step *= 2) {
            const uint64_t left = __shfl_up_sync(~0u, mass, step);
            if (lane >= step) mass += left;
        }
        if (lane == 31) shared.warp_mass[warp] = mass;
        __syncthreads();
        uint64_t warps = lane < Warps ? shared.warp_mass[lane] : 0;
#pragma unroll
        for (int step = 1; step < Warps; step *= 2) {
            const uint64_t left = __shfl_up_sync(~0u, warps, step);
            if (lane >= step) warps += left;
        }
        const uint64_t before = __shfl_sync(~0u, warps, max(warp - 1, 0));
        shared.upto[threadIdx.x] = warp > 0 ? before + mass : mass;
        return __shfl_sync(~0u, warps, Warps - 1);
    }

    // Note of a sample at position x of the head's mass its tile, where in the tile's mass it is, and that.
    __device__ void find(uint64_t x, int note) const {
        int owner = 0; // the thread that has the tile
#pragma unroll
        for (int step = kThreads / 2; step > 0; step /= 2) owner += shared.upto[owner + step - 1] <= x ? step : 0;
        if (owner > 0) x -= shared.upto[owner - 1];
        const int begin = owner * own, last = min(own, count - begin) - 1;
        uint64_t one;
        int i = 0;
        if (kept) {
            for (int step = first_step(own); step > 0; step /= 2) {
                if (i + step <= last && shared.mass(begin + i + step - 1) <= x) i += step;
            }
            const uint64_t before = i > 0 ? shared.mass(begin + i - 1) : 0;
            one = shared.mass(begin + i) - before;
            x -= before;
        } else {
            for (;; ++i) {
                one = mass_of(begin + i, load_stat(stats + begin + i));
                if (x < one || i >= last) break;
                x -= one;
            }
        }
        shared.tile[note] = begin + i;
        shared.inside[note] = x;
        shared.share[note] = one;
    }

  private:
    static constexpr int kAtOnce = 4;

    // So many masses at once and without branches, so that they overlap.
    template <int AtOnce>
    __device__ uint64_t sum_kept() {
        uint64_t mass = 0;
        for (int start = 0; start < held; start += AtOnce) {
            uint64_t some[AtOnce];
            bool far = false;
#pragma unroll
            for (int e = 0; e < AtOnce; ++e) {
                const Stat one = shared.stat(first + min(start + e, held - 1));
                some[e] = Scheme::mass(work, one, top);
                far |= Scheme::is_far(work, one, top);
            }
            if (far) {
#pragma unroll
                for (int e = 0; e < AtOnce; ++e) {
                    const int tile = first + min(start + e, held - 1);
                    some[e] = mass_of(tile, shared.stat(tile));
                }
            }
#pragma unroll
            for (int e = 0; e < AtOnce; ++e) {
                if (start + e < held) shared.mass(first + start + e) = mass += some[e];
            }
        }
        return mass;
    }

    __device__ uint64_t mass_of(int tile, Stat stat) const {
        if (!Scheme::is_far(work, stat, top)) return Scheme::mass(work, stat, top);
        const int shift = work.p.tile_shift, visible = min(1 << shift, length - (tile << shift));
        written.wait(written.all);
        return Scheme::far_mass(work, table, stash + (int64_t(tile) << shift), visible, top);
    }
};

} // namespace santa
