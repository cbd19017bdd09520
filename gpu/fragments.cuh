// How keys and queries lie in the operands of a tensor core step.
//
// The 8 columns are tokens times parts of a row, the 16 rows are query heads times parts; what is used of the product
// is where the parts agree. A lane's 16 bytes of a key feed two steps, a quarter of a warp reads 128 bytes in a row,
// and each lane ends up with whole dot products: no shuffles. For groups of up to eight query heads rows of a multiple
// of 128 bytes have two parts, others one.
#pragma once

#include <cstring>
#include <type_traits>

#include "arguments.cuh"
#include "mma.cuh"

namespace santa {

// T is int8_t, or uint16_t for both floating-point types: which one it is, the arguments say.
template <typename T, int D, int Heads>
struct Shape {
    static_assert(Heads == 8 || Heads == 16);
    static constexpr bool kInteger = std::is_same_v<T, int8_t>;
    using Sum = std::conditional_t<kInteger, int, float>;
    static constexpr int kDim = D;
    static constexpr int kHeads = Heads;                  // query heads of a group at most
    static constexpr int kRowBytes = D * int(sizeof(T));
    static constexpr int kUnits = kRowBytes / 16;         // 16-byte units of a row
    static constexpr int kParts = Heads == 8 && kRowBytes % 128 == 0 ? 2 : 1;
    static constexpr int kChunks = (kUnits + 4 * kParts - 1) / (4 * kParts); // units a lane takes of a row's part
    static constexpr bool kRagged = kUnits % (4 * kParts) != 0;
    // Warps of a block that score, one KV head each, or several warps a head: int8 has work for more, where registers
    // suffice.
    static constexpr int kWarps = kInteger && Heads == 8 && !kRagged && D <= 128 ? 16 : 8;
    static constexpr int kThreads = (kWarps + 2) * 32; // one more brings the keys, and one tells what is done
};

template <class S>
struct QueryFragments {
    uint32_t a[S::kChunks][8]; // operands of two steps: words of the rows 0-7 and 8-15 in turns

    // unit(head, u) gives 16 bytes of a query head of the group.
    template <class F>
    __device__ void load(int group, F unit) {
        const int head = threadIdx.x % 32 / 4, quad = threadIdx.x % 4;
        // The compiler does not know this: else it leaves words where they were loaded and puts operands together anew
        // in every step.
        const uint32_t zero = uint32_t(group) >> 31;
#pragma unroll
        for (int c = 0; c < S::kChunks; ++c) {
            const int u = c * S::kParts * 4 + quad;
            const bool inside = !S::kRagged || u < S::kUnits;
            uint4 low{0, 0, 0, 0}, high{0, 0, 0, 0};
            if (head < group && inside) low = unit(head, u);
            if (S::kParts == 2 && head < group) high = unit(head, u + 4);
            if (S::kHeads == 16 && head + 8 < group && inside) high = unit(head + 8, u);
            const uint32_t words[8] = {low.x, high.x, low.y, high.y, low.z, high.z, low.w, high.w};
#pragma unroll
            for (int i = 0; i < 8; ++i) a[c][i] = words[i] | zero;
        }
    }
};

template <typename T>
__device__ inline void multiply(float (&d)[4], const uint32_t (&a)[8], uint4 key) {
    mma_16816<T>(d, a[0], a[1], a[2], a[3], key.x, key.y);
    mma_16816<T>(d, a[4], a[5], a[6], a[7], key.z, key.w);
}

template <typename T>
__device__ inline void multiply(int (&d)[4], const uint32_t (&a)[8], uint4 key) {
    mma_16832(d, a[0], a[1], a[2], a[3], key.x, key.y);
    mma_16832(d, a[4], a[5], a[6], a[7], key.z, key.w);
}

// Dot products of 16 keys in shared memory, `stride` bytes apart, with the group's queries: to products[head][token],
// rows of kProductStride.
template <class S, typename T>
__device__ inline void dot_products(const char* keys, int stride, const QueryFragments<S>& query, int group,
                                    typename S::Sum* products) {
    using Sum = typename S::Sum;
    constexpr int kRounds = 2 * S::kParts, kLaneHeads = S::kHeads / 8; // rounds of 8 / kParts tokens
    const int row = threadIdx.x % 32 / 4, quad = threadIdx.x % 4;
    Sum sum[kLaneHeads][4];
#pragma unroll
    for (int r = 0; r < kRounds; ++r) {
        // The key of this lane's column, chosen so that a lane's results are four neighbours.
        const int token = row / 2 * 4 + (S::kParts == 2 ? r : r * 2 + row % 2);
        const int u = quad + (S::kParts == 2 ? row % 2 * 4 : 0);
        const char* at = keys + token * stride + u * 16;
        Sum d[4] = {};
#pragma unroll
        for (int c = 0; c < S::kChunks; ++c) {
            uint4 key{0, 0, 0, 0}; // beyond the row's end: there lies another key, whatever it holds
            if (!S::kRagged || u + c * 4 < S::kUnits) key = *reinterpret_cast<const uint4*>(at + c * S::kParts * 64);
            multiply<T>(d, query.a[c], key);
        }
        if constexpr (S::kParts == 2) {
            sum[0][r] = d[0] + d[3];
        } else {
#pragma unroll
            for (int e = 0; e < 2; ++e) {
#pragma unroll
                for (int k = 0; k < kLaneHeads; ++k) sum[k][r * 2 + e] = d[k * 2 + e];
            }
        }
    }
#pragma unroll
    for (int k = 0; k < kLaneHeads; ++k) {
        if (row + k * 8 < group) {
            Sum* to = products + (row + k * 8) * kProductStride + quad * 4;
            *reinterpret_cast<uint4*>(to) = *reinterpret_cast<const uint4*>(sum[k]);
        }
    }
}

// Combine what the eight lanes of one query head hold.
template <typename X, class F>
__device__ inline X across_head(X x, F combine) {
#pragma unroll
    for (int step = 1; step < 8; step *= 2) x = combine(x, __shfl_xor_sync(~0u, x, step));
    return x;
}

} // namespace santa
