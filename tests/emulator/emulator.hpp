// Runs the kernels' own source on the processor, thread by thread, so that their logic is tested where no GPU is.
//
// Every thread is a fiber of one operating system thread. A schedule drawn from a seed says who runs next, which block
// falls behind and when asynchronous copies land, so that a seed's run repeats and another seed's differs. Launches
// queue as in a stream: a kernel launched to start early does so once all blocks of the one ahead have let it, and waits
// where it says so. What is not shown: memory that is seen late or in another order, rounding of the tensor cores, speed.
#pragma once

#include <ucontext.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <random>
#include <type_traits>
#include <vector>

#define __device__
#define __host__
#define __global__
#define __shared__ static
#define __grid_constant__
#define __noinline__
#define __launch_bounds__(...)
#define __maxnreg__(...)

struct alignas(8) uint2 {
    uint32_t x, y;
};
struct alignas(16) uint4 {
    uint32_t x, y, z, w;
};
struct alignas(8) float2 {
    float x, y;
};
struct dim3 {
    unsigned x, y, z;
    dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};

namespace emulator {

struct Rendezvous { // of a number of threads, again and again
    int arrived = 0, generation = 0;
};

struct Warp {
    Rendezvous rendezvous;
    uint32_t words[2][32][8]; // what the lanes tell each other, in turns
};

struct Launch;
struct Block;

struct Cluster {
    Rendezvous rendezvous;
    int running; // threads that have not ended
    std::vector<Block*> blocks;
};

struct Block {
    Launch* launch;
    std::shared_ptr<Cluster> cluster;
    dim3 index;
    int running;          // threads that have not ended
    bool lets = false;    // the kernel behind may start
    int pause = 0;        // rounds for which it is not scheduled
    std::vector<Warp> warps;
    Rendezvous named[16];
    bool any[2] = {};
    std::unique_ptr<char[]> memory;
    char* shared; // 128-byte aligned
};

struct Fiber {
    ucontext_t context;
    std::unique_ptr<char[]> stack;
    Block* block;
    dim3 thread;
    int cluster_generation = 0;
    bool (*ready)(void*) = nullptr;            // what it waits for
    void* argument = nullptr;
    bool done = false;
};

struct Launch {
    dim3 grid;
    int threads, shared, cluster;
    bool early;
    std::function<void()> body;
    unsigned started = 0, ended = 0, letting = 0; // blocks
    Launch* ahead = nullptr;                      // until it has ended
    unsigned blocks() const { return grid.x * grid.y * grid.z; }
    bool complete() const { return ended == blocks(); }
};

struct Copy { // by the copy engine
    void* to;
    const void* from;
    uint32_t bytes;
    uint64_t* barrier;
};

inline Fiber* now = nullptr;
inline ucontext_t scheduler;
inline std::mt19937 random(0);
inline std::deque<std::unique_ptr<Launch>> queue;
inline std::vector<std::unique_ptr<Block>> blocks;
inline std::vector<std::unique_ptr<Fiber>> fibers;
inline std::vector<Copy> copies;
inline long long clock = 0;

constexpr int kResidentBlocks = 6;
constexpr size_t kStack = 128 << 10;

// Let others run until `condition` holds.
template <class F>
inline void wait(F condition) {
    if (condition()) return;
    now->ready = [](void* f) { return (*static_cast<F*>(f))(); };
    now->argument = &condition;
    swapcontext(&now->context, &scheduler);
}

inline void yield() {
    int turns = 0;
    wait([&] { return turns++ > 0; });
}

inline void arrive(Rendezvous& r, int threads) {
    if (++r.arrived == threads) {
        r.arrived = 0;
        ++r.generation;
    }
}

inline void meet(Rendezvous& r, int threads) {
    const int generation = r.generation;
    arrive(r, threads);
    wait([&] { return r.generation != generation; });
}

inline int lane() { return now->thread.x % 32; }
inline Warp& warp() { return now->block->warps[now->thread.x / 32]; }

// What every lane of the warp tells.
template <class T>
struct Told {
    T lane[32];
};
template <class T>
inline Told<T> tell(T mine) {
    static_assert(sizeof(T) <= 32);
    Warp& w = warp();
    auto& words = w.words[w.rendezvous.generation % 2];
    std::memcpy(words[lane()], &mine, sizeof(T));
    meet(w.rendezvous, 32);
    Told<T> told;
    for (int i = 0; i < 32; ++i) std::memcpy(&told.lane[i], words[i], sizeof(T));
    return told;
}

// Barriers of the copy engine, in their 64 bits.
struct Barrier {
    uint16_t expected, pending;
    int32_t bytes_and_phase; // bytes * 2 + phase
    void settle() {
        if (pending == 0 && bytes_and_phase >> 1 == 0) {
            pending = expected;
            bytes_and_phase ^= 1;
        }
    }
};
static_assert(sizeof(Barrier) == 8);

inline void land(size_t i) {
    const Copy copy = copies[i];
    copies.erase(copies.begin() + i);
    std::memcpy(copy.to, copy.from, copy.bytes);
    auto* barrier = reinterpret_cast<Barrier*>(copy.barrier);
    barrier->bytes_and_phase -= 2 * int(copy.bytes);
    barrier->settle();
}

inline void let_behind(Block* block) {
    if (!block->lets) ++block->launch->letting;
    block->lets = true;
}

inline void run_fiber() {
    Block* block = now->block;
    block->launch->body();
    --block->cluster->running;
    if (--block->running == 0) {
        let_behind(block);
        ++block->launch->ended;
    }
    now->done = true;
    swapcontext(&now->context, &scheduler);
}

inline void start_cluster(Launch* launch) {
    auto cluster = std::make_shared<Cluster>();
    cluster->running = launch->cluster * launch->threads;
    for (int rank = 0; rank < launch->cluster; ++rank) {
        auto block = std::make_unique<Block>();
        const unsigned number = launch->started++;
        block->launch = launch;
        block->cluster = cluster;
        block->index = dim3(number % launch->grid.x, number / launch->grid.x % launch->grid.y);
        block->running = launch->threads;
        block->warps.resize((launch->threads + 31) / 32);
        block->memory = std::make_unique<char[]>(launch->shared + 128);
        std::memset(block->memory.get(), 0xa5, launch->shared + 128); // nothing is zero that was not made so
        block->shared = reinterpret_cast<char*>((reinterpret_cast<uintptr_t>(block->memory.get()) + 127) / 128 * 128);
        cluster->blocks.push_back(block.get());
        for (int t = 0; t < launch->threads; ++t) {
            auto fiber = std::make_unique<Fiber>();
            fiber->stack = std::unique_ptr<char[]>(new char[kStack]);
            fiber->block = block.get();
            fiber->thread = dim3(t);
            getcontext(&fiber->context);
            fiber->context.uc_stack.ss_sp = fiber->stack.get();
            fiber->context.uc_stack.ss_size = kStack;
            makecontext(&fiber->context, run_fiber, 0);
            fibers.push_back(std::move(fiber));
        }
        blocks.push_back(std::move(block));
    }
}

// Start what may start.
inline bool dispatch() {
    bool any = false;
    for (auto& launch : queue) {
        Launch* ahead = launch->ahead;
        if (ahead != nullptr && (launch->early ? ahead->letting < ahead->blocks() : !ahead->complete())) break;
        // Kernels with shared variables of their own, static ones here, are those that do not start early.
        const int most = launch->early ? kResidentBlocks : 1;
        while (launch->started < launch->blocks() && int(blocks.size()) + launch->cluster <= most) {
            start_cluster(launch.get());
            any = true;
        }
        if (launch->started < launch->blocks()) break;
    }
    return any;
}

inline const char* give_up(const char* why) {
    fibers.clear(), copies.clear(), blocks.clear(), queue.clear();
    return why;
}

// Run all that is queued; what went wrong, or null.
inline const char* synchronize() {
    while (!queue.empty()) {
        clock += 8000;
        bool any = dispatch();
        // Now and then a block falls behind the others.
        if (!blocks.empty() && random() % 8 == 0) blocks[random() % blocks.size()]->pause = random() % 200;
        for (auto& block : blocks) block->pause -= block->pause > 0;
        const size_t count = fibers.size(), first = count ? random() % count : 0;
        for (size_t i = 0; i < count; ++i) {
            Fiber* fiber = fibers[(first + i) % count].get();
            if (fiber->done || fiber->block->pause > 0 || random() % 4 == 0) continue;
            if (fiber->ready != nullptr && !fiber->ready(fiber->argument)) continue;
            fiber->ready = nullptr;
            now = fiber;
            swapcontext(&scheduler, &fiber->context);
            any = true;
        }
        now = nullptr;
        if (!copies.empty() && (!any || random() % 32 == 0)) { // slow, so that whoever does not wait is early
            land(random() % copies.size());
            any = true;
        }
        if (!any) { // by chance, or because all wait
            for (auto& fiber : fibers) any |= !fiber->done && (!fiber->ready || fiber->ready(fiber->argument));
            if (!any && copies.empty()) return give_up("threads wait for each other for ever");
        }
        // A cluster's shared memory lives until all its blocks have ended.
        const auto ended = [](const Block& block) { return block.cluster->running == 0; };
        for (auto& block : blocks) {
            const char *first = block->shared, *last = first + block->launch->shared;
            for (const Copy& copy : copies) {
                if (ended(*block) && copy.to >= first && copy.to < last) return give_up("a copy outlives its block");
            }
        }
        fibers.erase(std::remove_if(fibers.begin(), fibers.end(), [&](auto& f) { return ended(*f->block); }),
                     fibers.end());
        blocks.erase(std::remove_if(blocks.begin(), blocks.end(), [&](auto& b) { return ended(*b); }), blocks.end());
        while (!queue.empty() && queue.front()->complete()) {
            if (queue.size() > 1) queue[1]->ahead = nullptr;
            queue.pop_front();
        }
    }
    return nullptr;
}

} // namespace emulator

#define threadIdx (emulator::now->thread)
#define blockIdx (emulator::now->block->index)
#define gridDim (emulator::now->block->launch->grid)
#define blockDim (dim3(emulator::now->block->launch->threads))

// What CUDA C++ has built in ------------------------------------------------------------------------------------------

template <class A, class B>
constexpr std::common_type_t<A, B> min(A a, B b) {
    using T = std::common_type_t<A, B>;
    return T(b) < T(a) ? T(b) : T(a);
}
template <class A, class B>
constexpr std::common_type_t<A, B> max(A a, B b) {
    using T = std::common_type_t<A, B>;
    return T(a) < T(b) ? T(b) : T(a);
}

template <class T>
T __ldcg(const T* p) {
    return *p;
}
template <class T>
T __ldg(const T* p) {
    return *p;
}
template <class To, class From>
To emulated_bits(From x) {
    static_assert(sizeof(To) == sizeof(From));
    To y;
    std::memcpy(&y, &x, sizeof y);
    return y;
}
inline uint32_t __float_as_uint(float x) { return emulated_bits<uint32_t>(x); }
inline float __uint_as_float(uint32_t x) { return emulated_bits<float>(x); }
inline int __float_as_int(float x) { return emulated_bits<int>(x); }
inline float __int_as_float(int x) { return emulated_bits<float>(x); }
inline float __fdividef(float a, float b) { return a / b; }
inline float __ull2float_rn(uint64_t x) { return float(x); }
inline uint64_t __float2ull_rn(float x) { return uint64_t(std::nearbyint(x)); }
inline void __threadfence() {}
inline int __popc(uint32_t x) { return __builtin_popcount(x); }
inline int __clz(int x) { return x == 0 ? 32 : __builtin_clz(x); }
inline int __clzll(int64_t x) { return x == 0 ? 64 : __builtin_clzll(x); }
inline uint32_t __funnelshift_l(uint32_t low, uint32_t high, uint32_t shift) {
    return uint32_t((uint64_t(high) << 32 | low) << (shift & 31) >> 32);
}
inline uint32_t __byte_perm(uint32_t x, uint32_t y, uint32_t select) {
    const uint64_t bytes = uint64_t(y) << 32 | x;
    uint32_t z = 0;
    for (int i = 0; i < 4; ++i) z |= uint32_t(bytes >> (8 * (select >> (4 * i) & 7)) & 0xff) << (8 * i);
    return z;
}
inline uint32_t __dp4a(uint32_t a, uint32_t b, uint32_t c) {
    for (int i = 0; i < 32; i += 8) c += (a >> i & 0xff) * (b >> i & 0xff);
    return c;
}
inline uint32_t __dp2a_lo(uint32_t a, uint32_t b, uint32_t c) {
    return c + (a & 0xffff) * (b & 0xff) + (a >> 16) * (b >> 8 & 0xff);
}
inline long long clock64() {
    emulator::yield();
    return emulator::clock;
}

template <class T, class U>
T atomicAdd(T* p, U x) {
    const T before = *p;
    *p += x;
    return before;
}
template <class T, class U>
T atomicOr(T* p, U x) {
    const T before = *p;
    *p |= x;
    return before;
}
template <class T, class U>
T atomicMax(T* p, U x) {
    const T before = *p;
    *p = max(*p, x);
    return before;
}

inline void __syncwarp() { emulator::meet(emulator::warp().rendezvous, 32); }
inline void __syncthreads() { emulator::meet(emulator::now->block->named[0], blockDim.x); }
inline bool __syncthreads_or(bool x) {
    emulator::Block& block = *emulator::now->block;
    const int turn = block.named[0].generation % 2;
    block.any[turn] |= x;
    __syncthreads();
    const bool any = block.any[turn];
    __syncthreads();
    block.any[turn] = false;
    return any;
}

template <class T>
T __shfl_sync(uint32_t, T x, int from, int width = 32) {
    const int first = emulator::lane() / width * width;
    return emulator::tell(x).lane[first + from % width];
}
template <class T>
T __shfl_up_sync(uint32_t, T x, int step, int width = 32) {
    const int lane = emulator::lane(), from = lane - step;
    return emulator::tell(x).lane[from < lane / width * width ? lane : from];
}
template <class T>
T __shfl_xor_sync(uint32_t, T x, int mask) {
    return emulator::tell(x).lane[emulator::lane() ^ mask];
}
inline uint32_t __ballot_sync(uint32_t, int x) {
    const auto told = emulator::tell(x);
    uint32_t votes = 0;
    for (int i = 0; i < 32; ++i) votes |= uint32_t(told.lane[i] != 0) << i;
    return votes;
}
inline bool __any_sync(uint32_t mask, int x) { return __ballot_sync(mask, x) != 0; }
template <class T>
T __reduce_add_sync(uint32_t, T x) {
    T sum = 0;
    for (T y : emulator::tell(x).lane) sum += y;
    return sum;
}
template <class T>
T __reduce_max_sync(uint32_t, T x) {
    const auto told = emulator::tell(x);
    T top = told.lane[0];
    for (T y : told.lane) top = max(top, y);
    return top;
}
