// The kernels of `sys` and `fixed`, and their launch.
//
// Two launches: the score pass, then one block a query head that gathers, each started early through programmatic
// dependent launch. Streaming, for large batches: one launch whose blocks also hold gather warps, which follow the
// scores sequence by sequence; the scratch is a ring of a few sequences that never leaves the L2.
#pragma once

#include "fixed.cuh"
#include "gather.cuh"
#include "launch.cuh"
#include "scores.cuh"
#include "sys.cuh"

namespace santa {

constexpr int kStreamThreads = kScoreThreads + kGatherWarps * 32;
constexpr int kHeadWarps = 8; // of a block that gathers for one query head

// Rows that need more registers.
template <class Scheme>
constexpr bool kWide = Scheme::Shape::kDim > 128;

// Blocks of the score pass on a multiprocessor: `fixed` has work for two, where the registers suffice.
template <class Scheme>
constexpr int kBlocks =
    Scheme::Shape::kInteger && Scheme::Shape::kHeads == 8 && !Scheme::Shape::kRagged && !kWide<Scheme> ? 2 : 1;

// Samples that a team of the gather has in flight.
template <class Scheme>
constexpr int kStreamInFlight = kWide<Scheme> ? 1 : 2;
template <class Scheme>
constexpr int kInFlight = kWide<Scheme> ? 2 : 4;

// The offset's random word of a query head. It is made ahead of time, and counts if sequence and position turn out to
// be the same.
class OffsetDraw {
  public:
    __device__ OffsetDraw(const Work& work, int b, int head)
        : draw_(work.a.draw), b_(b), stream_(work.a.draw.layer * work.a.heads + head), made_for_(load()),
          made_(make(made_for_)) {}

    __device__ DrawPlace load() const { return {__ldcg(draw_.sequence + b_), __ldcg(draw_.position + b_)}; }
    __device__ uint32_t word(DrawPlace place) const {
        return place.sequence == made_for_.sequence && place.position == made_for_.position ? made_ : make(place);
    }

  private:
    __device__ uint32_t make(DrawPlace place) const {
        return place_words(draw_, place, Purpose::kOffset, stream_, 0).first;
    }

    const DrawArguments& draw_;
    int b_;
    uint32_t stream_;
    DrawPlace made_for_;
    uint32_t made_;
};

template <class Scheme>
struct alignas(16) StreamShared {
    GatherShared<Scheme, kGatherWarps, kStreamInFlight<Scheme>> gather;
    int ticket;
};

// Query heads of all sequences in order, each as soon as its sequence's scores are complete.
template <class Scheme>
__device__ void gather_stream(const Work& work, StreamShared<Scheme>& shared) {
    const int thread = threadIdx.x - kScoreThreads;
    wait_for_launch();
    for (;;) {
        barrier_sync(kGatherBarrier, kGatherWarps * 32);
        if (thread == 0) shared.ticket = int(atomicAdd(&work.control()->gather_ticket, 1u));
        barrier_sync(kGatherBarrier, kGatherWarps * 32);
        const int number = shared.ticket;
        if (number >= work.a.batch * work.a.heads) return;
        const int b = unsigned(number) / unsigned(work.a.heads), head = number - b * work.a.heads;
        const int length = clamped_length(work.a.lengths, b, work.a.max_length);
        const int units = (length + work.p.unit_tokens - 1) / work.p.unit_tokens;
        if (thread == 0) wait_until(work.finished() + b, units * work.a.kv_heads * work.p.lanes);
        barrier_sync(kGatherBarrier, kGatherWarps * 32);
        const int slot = unsigned(b) % unsigned(work.p.slots);
        gather_head<Scheme, kGatherWarps, kStreamInFlight<Scheme>>(work, shared.gather, thread, kGatherBarrier, b, head,
                                                                   slot, 1, 0, OffsetDraw(work, b, head));
        barrier_sync(kGatherBarrier, kGatherWarps * 32);
        if (thread == 0) {
            __threadfence();
            add_release(work.gathered() + b, 1);
        }
    }
}

template <class Scheme>
__device__ inline ScoreShared<Scheme>& score_setup(const Work& work, char* stages) {
    const Plan& p = work.p;
    char* behind = stages + p.stages * p.stage_bytes + product_bytes(p.group);
    auto& shared = *reinterpret_cast<ScoreShared<Scheme>*>(behind);
    if (threadIdx.x == 0) {
        for (int s = 0; s < p.stages; ++s) {
            barrier_init(&shared.full[s], kProducerArrivals);
            barrier_init(&shared.empty[s], kStageArrivals);
        }
        barrier_init_fence();
    }
    if (work.a.table && (1 << work.a.score_frac) <= kTableEntries) {
        for (int i = threadIdx.x; i < 1 << work.a.score_frac; i += blockDim.x) shared.table[i] = work.a.table[i];
    }
    __syncthreads();
    return shared;
}

// Few enough for a block of the gather to fit beside those of the score pass, where that can be.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1000
constexpr int kTightRegisters = 88; // its code takes more of them
#else
constexpr int kTightRegisters = 72;
#endif
template <class Scheme>
constexpr int kScoreRegisters =
    kBlocks<Scheme> == 2 ? kTightRegisters : kWide<Scheme> || Scheme::Shape::kHeads == 16 ? 128 : 96;
template <class Scheme, int InFlight>
constexpr int kGatherRegisters =
    InFlight > 1 || kWide<Scheme> ? 128 : Scheme::Shape::kInteger && Scheme::Shape::kDim < 128 ? 80 : kTightRegisters;

template <class Scheme>
__global__ void __launch_bounds__(kScoreThreads) __maxnreg__(kScoreRegisters<Scheme>)
    score_kernel(const __grid_constant__ Work work) {
    SANTA_DYNAMIC_SHARED(stages);
    auto& shared = score_setup<Scheme>(work, stages);
    if (threadIdx.x / 32 < kScoreWarps) {
        consume<Scheme>(work, shared, stages);
    } else {
        produce<Scheme>(work, shared, stages);
    }
}

template <class Scheme>
__global__ void __launch_bounds__(kStreamThreads, 1) stream_kernel(const __grid_constant__ Work work) {
    SANTA_DYNAMIC_SHARED(stages);
    auto& shared = score_setup<Scheme>(work, stages);
    const int warp = threadIdx.x / 32;
    if (warp < kScoreWarps) {
        consume<Scheme>(work, shared, stages);
    } else if (warp == kScoreWarps) {
        produce<Scheme>(work, shared, stages);
    } else {
        gather_stream<Scheme>(work, *reinterpret_cast<StreamShared<Scheme>*>(&shared + 1));
    }
    // The last block leaves the counters as it found them.
    bool last = false;
    __syncthreads();
    if (threadIdx.x == 0) {
        __threadfence();
        last = atomicAdd(&work.control()->exits, 1u) == gridDim.x - 1;
        __threadfence();
    }
    if (__syncthreads_or(last)) {
        Control* control = work.control();
        if (threadIdx.x == 0) control->ticket = control->gather_ticket = control->exits = 0;
        for (int b = threadIdx.x; b < work.a.batch; b += blockDim.x) work.finished()[b] = work.gathered()[b] = 0;
    }
}

// Grid (H * split, B), clusters of `split`.
template <class Scheme, int InFlight>
__global__ void __launch_bounds__(kHeadWarps * 32) __maxnreg__((kGatherRegisters<Scheme, InFlight>))
    gather_kernel(const __grid_constant__ Work work) {
    SANTA_DYNAMIC_SHARED(dynamic);
    launch_dependents();
    auto& shared = *reinterpret_cast<GatherShared<Scheme, kHeadWarps, InFlight>*>(dynamic);
    const int split = work.p.split, head = blockIdx.x / unsigned(split), b = blockIdx.y;
    const OffsetDraw draw(work, b, head); // while the scores are made
    wait_for_launch();
    const int rank = blockIdx.x - head * split;
    gather_head<Scheme, kHeadWarps, InFlight>(work, shared, threadIdx.x, 0, b, head, b, split, rank, draw);
}

// Host ---------------------------------------------------------------------------------------------------------------

struct SharedSizes {
    int score, stream, gather; // beside the stages; what streaming adds; of the gather kernel
};

template <class Scheme>
constexpr SharedSizes shared_sizes() {
    return {int(sizeof(ScoreShared<Scheme>)), int(sizeof(StreamShared<Scheme>)),
            int(sizeof(GatherShared<Scheme, kHeadWarps, kInFlight<Scheme>>))};
}

template <class Scheme, class AnyGroup>
cudaError_t launch(const Work& work, cudaStream_t stream) {
    const Plan& p = work.p;
    if (p.stream) return start(stream_kernel<Scheme>, {dim3(p.grid), kStreamThreads, p.score_shared, true}, stream, work);
    const Grid score{dim3(p.grid), kScoreThreads, p.score_shared, true};
    if (cudaError_t error = start(score_kernel<Scheme>, score, stream, work)) return error;
    const auto kernel = p.split > 1 ? gather_kernel<AnyGroup, 1> : gather_kernel<AnyGroup, kInFlight<AnyGroup>>;
    const dim3 blocks(work.a.heads * p.split, work.a.batch);
    return start(kernel, {blocks, kHeadWarps * 32, p.gather_shared, true, p.split}, stream, work);
}

// What is compiled for an element type, a head dimension and a group size.
struct Compiled {
    SharedSizes shared;
    int blocks;
    cudaError_t (*launch)(const Work&, cudaStream_t);
    cudaError_t (*is_modern)(bool&);
};

template <template <class> class Kind, typename T, int D>
Compiled compiled(int group) {
    using Small = Kind<Shape<T, D, 8>>;
    using Large = Kind<Shape<T, D, 16>>;
    const auto modern = [](bool& x) { return is_modern(score_kernel<Large>, x); };
    if (group <= 8) return {shared_sizes<Small>(), kBlocks<Small>, launch<Small, Large>, modern};
    return {shared_sizes<Large>(), kBlocks<Large>, launch<Large, Large>, modern};
}


} // namespace santa
