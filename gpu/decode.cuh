// The kernels of `sys` and `fixed`, and their launch.
//
// Two launches: the score pass, and the gather, a block or a cluster a query head. The gather starts early, through
// programmatic dependent launch, beside the score pass; its blocks wait for their own scores only.
#pragma once

#include <algorithm>

#include "fixed.cuh"
#include "gather.cuh"
#include "launch.cuh"
#include "scores.cuh"
#include "sys.cuh"

namespace santa {

// Rows that need more registers.
template <class Scheme>
constexpr bool kWide = Scheme::Shape::kDim > 128;

// Blocks of the gather: warps, and samples that a team has in flight. Small ones share a query head of few tiles; one
// that is alone with a query head has more samples a team.
template <class Scheme>
constexpr int kLargeWarps = Scheme::Shape::kInteger || kWide<Scheme> ? 8 : 16;
constexpr int kLargeInFlight = 2, kSmallWarps = 8, kSmallInFlight = 1;
template <class Scheme>
constexpr int kAloneInFlight =
    Scheme::Shape::kInteger && !kWide<Scheme> && !Scheme::Shape::kRagged ? 4 : kLargeInFlight;

// The offset's random word of a query head.
__device__ inline uint32_t offset_word(const Work& work, int b, int head) {
    return draw_word(work.a.draw, b, Purpose::kOffset, work.a.draw.layer * work.a.heads + head, 0);
}

// Few enough for a block of the gather to fit beside those of the score pass, warps spread over a multiprocessor's four
// schedulers; where that can be, and kernels can start early.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1000
constexpr int kTightRegisters = 88, kCommonRegisters = 88, kLargeRegisters = 128; // its code takes more of them
#elif defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
constexpr int kTightRegisters = 80, kCommonRegisters = 96, kLargeRegisters = 168;
#else
constexpr int kTightRegisters = 64, kCommonRegisters = 80, kLargeRegisters = 128;
#endif
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
constexpr int kIntegerGather = 1024; // registers that a gather's warps for int8 share, a lane
#else
constexpr int kIntegerGather = 768;
#endif
template <class Scheme>
constexpr int kScoreRegisters = Scheme::Shape::kWarps == 16                    ? kTightRegisters
                                : kWide<Scheme> || Scheme::Shape::kHeads == 16 ? kLargeRegisters
                                                                               : kCommonRegisters;
template <class Scheme, int Warps>
constexpr int kGatherRegisters =
    std::max(kTightRegisters, (Scheme::Shape::kInteger && !kWide<Scheme> ? kIntegerGather : 1024) / Warps);

template <class Scheme>
__global__ void __launch_bounds__(Scheme::Shape::kThreads) __maxnreg__(kScoreRegisters<Scheme>)
    score_kernel(const __grid_constant__ Work work) {
    SANTA_DYNAMIC_SHARED(stages);
    auto& shared = score_setup<Scheme>(work, stages);
    const int warp = threadIdx.x / 32;
    if (warp < Scheme::Shape::kWarps) {
        consume<Scheme>(work, shared, stages);
    } else if (warp == Scheme::Shape::kWarps) {
        produce<Scheme>(work, shared, stages);
    } else if (!kRacecheck) {
        tell_mail<Scheme>(work, shared);
    }
}

// Grid (H * split, B), clusters of `split`. The score pass has begun, and what came before it has ended: it lets this
// kernel start only then.
template <class Scheme, int Warps, int InFlight>
__global__ void __launch_bounds__(Warps * 32) __maxnreg__((kGatherRegisters<Scheme, Warps>))
    gather_kernel(const __grid_constant__ Work work) {
    SANTA_DYNAMIC_SHARED(dynamic);
    launch_dependents();
    auto& shared = *reinterpret_cast<GatherShared<Scheme, Warps>*>(dynamic);
    const int split = work.p.split, head = blockIdx.x >> work.p.split_shift, rank = blockIdx.x & (split - 1);
    const int b = blockIdx.y;
    if (split > 1) {
        if (threadIdx.x == 0) {
            barrier_init(&shared.parts_full, 1);
            barrier_init(&shared.read_full, 1);
            barrier_init_fence();
        }
        __syncthreads(); // compute-sanitizer asks for it
        if (threadIdx.x == 0) {
            expect_bytes(&shared.parts_full, split * int(sizeof(shared.parts[0])));
            expect_bytes(&shared.read_full, (split - 1) * int(sizeof(shared.read[0])));
        }
        __syncwarp();
        cluster_arrive(false);
    }
    uint32_t* finished = work.finished(int64_t(b) * work.a.heads + head);
    const uint32_t word = offset_word(work, b, head);
    work.copy_table(shared.table);
    const int given = __ldcg(work.a.lengths + b), length = max(0, min(given, int(work.a.max_length)));
    const int units = unsigned(length + work.p.unit_tokens - 1) / unsigned(work.p.unit_tokens);
    const Progress written{finished, uint32_t(units * work.p.lanes)};
    // Statistics are looked for when part of the scores is written: sooner most are not there. Of a row that all blocks
    // score at once they come at once.
    const bool at_once = work.a.batch == 1 && units <= work.p.grid;
    if (threadIdx.x == 0 && !at_once) written.wait((written.all + 3) / 4);
    __syncthreads();
    if (split > 1) cluster_wait(); // the cluster's blocks have all begun
    gather_head<Scheme, Warps, InFlight>(work, shared, b, head, length, split, rank, word, written);
    if (threadIdx.x == 0 && rank == 0) {
        *finished = 0; // the others have seen it by now
        if (length != given) atomicOr(&work.control()->error, 1u);
    }
    // Whoever waits for this kernel waits for the score pass too: one block does, others make room.
    if (blockIdx.x == gridDim.x - 1 && b == work.a.batch - 1) {
        wait_for_launch();
        if (threadIdx.x == 0) work.control()->taken = 0;
    }
}

// Host ---------------------------------------------------------------------------------------------------------------

struct GatherSizes {
    int shared, eight_tiles; // of a block: beside the statistics of its tiles, and of so many
};

struct Sizes {
    int score; // shared memory beside the stages
    GatherSizes large, small;
};

template <class Scheme, int Warps>
constexpr GatherSizes gather_sizes() {
    using Shared = GatherShared<Scheme, Warps>;
    return {int(sizeof(Shared)), Shared::slot(8) * int(sizeof(typename Scheme::Stat))};
}

template <class Scheme, class AnyGroup>
constexpr Sizes sizes() {
    return {int(sizeof(ScoreShared<Scheme>)), gather_sizes<AnyGroup, kLargeWarps<AnyGroup>>(),
            gather_sizes<AnyGroup, kSmallWarps>()};
}

template <class Scheme, class AnyGroup>
cudaError_t launch(const Work& work, cudaStream_t stream) {
    const Plan& p = work.p;
    const Grid score{dim3(p.grid), Scheme::Shape::kThreads, p.score_shared, true};
    if (cudaError_t error = start(score_kernel<Scheme>, score, stream, work)) return error;
    const auto gather = p.small_gather ? gather_kernel<AnyGroup, kSmallWarps, kSmallInFlight>
                        : p.split == 1   ? gather_kernel<AnyGroup, kLargeWarps<AnyGroup>, kAloneInFlight<AnyGroup>>
                                         : gather_kernel<AnyGroup, kLargeWarps<AnyGroup>, kLargeInFlight>;
    const int warps = p.small_gather ? kSmallWarps : kLargeWarps<AnyGroup>;
    const Grid grid{dim3(work.a.heads * p.split, work.a.batch), warps * 32, p.gather_shared, true, p.split};
    return start(gather, grid, stream, work);
}

// What is compiled for an element type, a head dimension and a group size.
struct Compiled {
    int score_warps;
    Sizes sizes;
    cudaError_t (*launch)(const Work&, cudaStream_t);
    cudaError_t (*is_modern)(bool&);
};

template <template <class> class Kind, typename T, int D>
Compiled compiled(int group) {
    using Small = Kind<Shape<T, D, 8>>;
    using Large = Kind<Shape<T, D, 16>>;
    const auto modern = [](bool& x) { return is_modern(score_kernel<Large>, x); };
    if (group <= 8) return {Small::Shape::kWarps, sizes<Small, Large>(), launch<Small, Large>, modern};
    return {Large::Shape::kWarps, sizes<Large, Large>(), launch<Large, Large>, modern};
}

} // namespace santa
