// The emulator's copy engine, barriers and launches: what gpu/ring.cuh is on a GPU.
#pragma once

#include "emulator.hpp"

#define SANTA_BULK_COPY 1

namespace santa {

constexpr bool kBulkCopy = true;
constexpr int kProducerArrivals = 1;
constexpr int kFirstBarrier = 1, kSureBarrier = 2;

#define SANTA_DYNAMIC_SHARED(name) char* const name = emulator::now->block->shared

// Barriers: a thread arrives, bytes are announced and land, and who waits sees the parity change.

inline emulator::Barrier& as_barrier(const void* p) { return *static_cast<emulator::Barrier*>(const_cast<void*>(p)); }

inline void barrier_init(uint64_t* barrier, int arrivals) {
    as_barrier(barrier) = {uint16_t(arrivals), uint16_t(arrivals), 0};
}
inline void barrier_init_again(uint64_t* barrier, int arrivals) { barrier_init(barrier, arrivals); }
inline void barrier_init_fence() {}
inline void barrier_arrive(uint64_t* barrier) {
    --as_barrier(barrier).pending;
    as_barrier(barrier).settle();
}
inline void barrier_wait(uint64_t* barrier, int parity) {
    emulator::wait([=] { return (as_barrier(barrier).bytes_and_phase & 1) != parity; });
}
inline void expect_bytes(uint64_t* barrier, uint32_t bytes) {
    as_barrier(barrier).bytes_and_phase += 2 * int(bytes);
    barrier_arrive(barrier);
}
inline void stage_expect(uint64_t* full, uint32_t bytes) { expect_bytes(full, bytes); }
inline void stage_issued(uint64_t*) {}

// Copies land when the schedule says so.

inline uint64_t evict_first() { return 0; }
inline uint64_t evict_last() { return 0; }
inline void copy_bulk(void* to, const void* from, uint32_t bytes, uint64_t* full, uint64_t) {
    emulator::copies.push_back({to, from, bytes, full});
}
template <typename X>
inline void store_policy(X* to, X x, uint64_t) {
    *to = x;
}
template <typename Stat>
inline void store_stat(Stat* to, Stat x) {
    *to = x;
}
template <typename Stat>
inline Stat load_stat(const Stat* p) {
    return *p;
}
// Whoever reads it afterwards is wrong.
inline void discard_line(void* line) { std::memset(line, 0xa5, 128); }

// Launches.

inline void launch_dependents() { emulator::let_behind(emulator::now->block); }
inline void wait_for_launch() {
    emulator::Launch* launch = emulator::now->block->launch;
    emulator::wait([=] { return launch->ahead == nullptr || launch->ahead->complete(); });
}

// Clusters.

inline void cluster_arrive(bool) {
    auto& cluster = *emulator::now->block->cluster;
    emulator::now->cluster_generation = cluster.rendezvous.generation;
    emulator::arrive(cluster.rendezvous, int(cluster.blocks.size()) * emulator::now->block->launch->threads);
}
inline void cluster_wait() {
    const auto& cluster = *emulator::now->block->cluster;
    const int generation = emulator::now->cluster_generation;
    emulator::wait([&] { return cluster.rendezvous.generation != generation; });
}
// The same place in another block's shared memory.
inline void* of_block(void* own, int rank) {
    emulator::Block* block = emulator::now->block;
    return block->cluster->blocks[rank]->shared + (static_cast<char*>(own) - block->shared);
}
inline void send_first(void* to, uint32_t x, uint64_t* full) {
    auto* barrier = static_cast<uint64_t*>(of_block(full, 0));
    std::memcpy(of_block(to, 0), &x, 4);
    as_barrier(barrier).bytes_and_phase -= 8;
    as_barrier(barrier).settle();
}

// Counters between blocks, and barriers of some of a block's warps.

inline void add_release(uint32_t* p, uint32_t x) { *p += x; }
inline void add(uint32_t* p, uint32_t x) { *p += x; }
inline void fence_device() {}
inline int load_acquire_block(const int* p) { return *p; }
inline void store_release_block(int* p, int x) { *p = x; }
template <class F>
void wait_for(F ready) {
    emulator::wait(ready);
}
template <class F>
void wait_a_little(F ready) {
    emulator::wait(ready);
}
inline void wait_until(const uint32_t* p, uint32_t least) {
    emulator::wait([=] { return *p >= least; });
}
inline void barrier_arrive_named(int name, int threads) { emulator::arrive(emulator::now->block->named[name], threads); }
inline void barrier_sync(int name, int threads) { emulator::meet(emulator::now->block->named[name], threads); }

} // namespace santa
