// A ring of shared-memory stages between one producer warp and the warps that use them. From sm_90 on the copy engine
// moves whole runs of rows; before, the producer's lanes copy 16 bytes at a time with cp.async.
#pragma once

#include <cstdint>
#include <cstring>

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900 && !defined(SANTA_NO_BULK_COPY)
#define SANTA_BULK_COPY 1
#else
#define SANTA_BULK_COPY 0
#endif

namespace santa {

constexpr bool kBulkCopy = SANTA_BULK_COPY;

// The block's shared memory whose size its launch gives.
#define SANTA_DYNAMIC_SHARED(name) extern __shared__ __align__(128) char name[]

__device__ inline uint32_t shared_address(const void* p) { return uint32_t(__cvta_generic_to_shared(p)); }

__device__ inline void barrier_init(uint64_t* barrier, int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals) : "memory");
}

// A barrier that nobody waits on begins anew.
__device__ inline void barrier_init_again(uint64_t* barrier, int arrivals) {
    asm volatile("mbarrier.inval.shared::cta.b64 [%0];" ::"r"(shared_address(barrier)) : "memory");
    barrier_init(barrier, arrivals);
}

// Before the copy engine, or another block, uses barriers.
__device__ inline void barrier_init_fence() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
}

__device__ inline void barrier_arrive(uint64_t* barrier) {
    asm volatile("{ .reg .b64 t; mbarrier.arrive.shared::cta.b64 t, [%0]; }" ::"r"(shared_address(barrier)) : "memory");
}

__device__ inline void barrier_wait(uint64_t* barrier, int parity) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
#define SANTA_BARRIER_WAIT "mbarrier.try_wait.parity.shared::cta.b64"
#else
#define SANTA_BARRIER_WAIT "mbarrier.test_wait.parity.shared::cta.b64"
#endif
    uint32_t done;
    do {
        asm volatile("{ .reg .pred p; " SANTA_BARRIER_WAIT " p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                     : "=r"(done)
                     : "r"(shared_address(barrier)), "r"(parity)
                     : "memory");
    } while (!done);
#undef SANTA_BARRIER_WAIT
}

// Arrivals that complete a stage: the producer's own, and before sm_90 one a lane once its copies have landed.
constexpr int kProducerArrivals = kBulkCopy ? 1 : 33;

// Arrive, and let the barrier wait for so many bytes more.
__device__ inline void expect_bytes(uint64_t* barrier, uint32_t bytes) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("{ .reg .b64 t; mbarrier.arrive.expect_tx.shared::cta.b64 t, [%0], %1; }" ::"r"(
                     shared_address(barrier)),
                 "r"(bytes)
                 : "memory");
#endif
}

// Announce a stage of `bytes` (lane 0), before the copies start.
__device__ inline void stage_expect(uint64_t* full, uint32_t bytes) {
    if (kBulkCopy) {
        expect_bytes(full, bytes);
    } else {
        barrier_arrive(full);
    }
}

// All copies of this lane have been issued.
__device__ inline void stage_issued(uint64_t* full) {
#if !SANTA_BULK_COPY
    asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(shared_address(full)) : "memory");
#endif
}

// Keys are read once: they leave the L2 first, and leave the scratch and the value rows in it.
__device__ inline uint64_t evict_first() {
    uint64_t policy;
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}

__device__ inline uint64_t evict_last() {
    uint64_t policy; // volatile: made anew rather than kept in two registers
    asm volatile("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}

#if SANTA_BULK_COPY
__device__ inline void copy_bulk(void* to, const void* from, uint32_t bytes, uint64_t* full, uint64_t policy) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint"
                 " [%0], [%1], %2, [%3], %4;" ::"r"(shared_address(to)),
                 "l"(from), "r"(bytes), "r"(shared_address(full)), "l"(policy)
                 : "memory");
}
#else
__device__ inline void copy_16(void* to, const void* from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(to)), "l"(from) : "memory");
}
#endif

__device__ inline void store_policy(uint4* to, uint4 x, uint64_t policy) {
    asm volatile("st.global.L2::cache_hint.v4.b32 [%0], {%1, %2, %3, %4}, %5;" ::"l"(to), "r"(x.x), "r"(x.y),
                 "r"(x.z), "r"(x.w), "l"(policy)
                 : "memory");
}

// Programmatic dependent launch: let the kernel behind start, wait for the kernel ahead.
__device__ inline void launch_dependents() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

__device__ inline void wait_for_launch() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// The blocks of a cluster: from sm_90 on; before, clusters have one block and none of this is called.
__device__ inline void cluster_arrive(bool release) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    if (release) {
        asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
    } else {
        asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
    }
#endif
}

__device__ inline void cluster_wait() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
#endif
}

// Store to the same place in the shared memory of the cluster's first block, where it counts as 4 bytes for the barrier
// in the same place as `full`.
__device__ inline void send_first(void* to, uint32_t x, uint64_t* full) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("{ .reg .b32 to, full;"
                 " mapa.shared::cluster.u32 to, %0, 0;"
                 " mapa.shared::cluster.u32 full, %2, 0;"
                 " st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b32 [to], %1, [full]; }" ::"r"(
                     shared_address(to)),
                 "r"(x), "r"(shared_address(full))
                 : "memory");
#endif
}

// A tile's statistics, 8 or 16 bytes in one access that cannot be torn: whoever sees a part of them sees all. They come
// from the L2, and ask to stay in it.
template <typename Stat>
__device__ inline Stat load_stat(const Stat* from) {
    Stat stat;
    if constexpr (sizeof(Stat) == 16) {
        unsigned __int128 x;
        asm volatile("ld.relaxed.gpu.global.b128 %0, [%1];" : "=q"(x) : "l"(from) : "memory");
        memcpy(&stat, &x, sizeof(x));
    } else {
        uint64_t x;
        asm volatile("ld.relaxed.gpu.global.b64 %0, [%1];" : "=l"(x) : "l"(from) : "memory");
        memcpy(&stat, &x, sizeof(x));
    }
    return stat;
}

template <typename Stat>
__device__ inline void store_stat(Stat* to, Stat stat) {
    const uint64_t policy = evict_last();
    if constexpr (sizeof(Stat) == 16) {
        unsigned __int128 x;
        memcpy(&x, &stat, sizeof(x));
        asm volatile("st.relaxed.gpu.global.L2::cache_hint.b128 [%0], %1, %2;" ::"l"(to), "q"(x), "l"(policy)
                     : "memory");
    } else {
        uint64_t x;
        memcpy(&x, &stat, sizeof(x));
        asm volatile("st.relaxed.gpu.global.L2::cache_hint.b64 [%0], %1, %2;" ::"l"(to), "l"(x), "l"(policy)
                     : "memory");
    }
}

// Forget a line of the L2: it need not reach memory.
__device__ inline void discard_line(void* line) {
    asm volatile("discard.global.L2 [%0], 128;" ::"l"(line) : "memory");
}

// Counters between blocks.
__device__ inline uint32_t load_acquire(const uint32_t* p) {
    uint32_t x;
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(x) : "l"(p) : "memory");
    return x;
}

__device__ inline void add_release(uint32_t* p, uint32_t x) {
    asm volatile("red.release.gpu.global.add.u32 [%0], %1;" ::"l"(p), "r"(x) : "memory");
}

__device__ inline void add(uint32_t* p, uint32_t x) {
    asm volatile("red.relaxed.gpu.global.add.u32 [%0], %1;" ::"l"(p), "r"(x) : "memory");
}

__device__ inline void fence_device() { asm volatile("fence.acq_rel.gpu;" ::: "memory"); }

// Words of shared memory between warps.
__device__ inline int load_acquire_block(const int* p) {
    int x;
    asm volatile("ld.acquire.cta.shared::cta.b32 %0, [%1];" : "=r"(x) : "r"(shared_address(p)) : "memory");
    return x;
}

__device__ inline void store_release_block(int* p, int x) {
    asm volatile("st.release.cta.shared::cta.b32 [%0], %1;" ::"r"(shared_address(p)), "r"(x) : "memory");
}

template <class F>
__device__ inline void wait_for(F ready) {
    while (!ready()) __nanosleep(20);
}

// At most until `ready`.
template <class F>
__device__ inline void wait_a_little(F) {
    __nanosleep(200);
}

__device__ inline void wait_until(const uint32_t* p, uint32_t least) {
    while (load_acquire(p) < least) __nanosleep(20);
}

// Named barriers of some of a block's warps; 0 is the whole block's.
constexpr int kFirstBarrier = 1, kSureBarrier = 2;

__device__ inline void barrier_arrive_named(int name, int threads) {
    asm volatile("bar.arrive %0, %1;" ::"r"(name), "r"(threads) : "memory");
}

__device__ inline void barrier_sync(int name, int threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(name), "r"(threads) : "memory");
}

} // namespace santa
