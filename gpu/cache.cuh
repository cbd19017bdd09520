// Keys and values where they lie: a contiguous cache [B, N, KV, d] or a pool of pages [pages, page_size, KV, d]. The
// last two dimensions are dense; the strides of the outer ones are free, 0 for a batch that shares its cache.
#pragma once

#include <cstdint>

namespace santa {

struct Cache {
    const char* data;
    int64_t outer_stride; // bytes from a sequence to the next, or from a page to the next
    int64_t token_stride; // bytes from a token to the next
    const int32_t* pages; // [B, pages_per_row], or null: contiguous
    int32_t page_tokens;
    int32_t pages_per_row;
    int32_t pool_pages; // page numbers are clamped to the pool
};

// First byte of token n of sequence b: its first KV head. A page number out of range sets bit 1 of `error`, if given.
__device__ inline const char* cache_token(const Cache& cache, int b, int n, uint32_t* error = nullptr) {
    if (cache.pages == nullptr) return cache.data + b * cache.outer_stride + n * cache.token_stride;
    const int slot = unsigned(n) / unsigned(cache.page_tokens), inside = n - slot * cache.page_tokens;
    const int last = cache.pages_per_row - 1;
    const int page = __ldcg(cache.pages + int64_t(b) * cache.pages_per_row + min(slot, last));
    const int clamped = max(0, min(page, cache.pool_pages - 1));
    if (error != nullptr && page != clamped) atomicOr(error, 2u);
    return cache.data + clamped * cache.outer_stride + inside * cache.token_stride;
}

// Row of KV head kv of token n of sequence b.
template <typename T, int D>
__device__ inline const T* cache_row(const Cache& cache, int b, int kv, int n) {
    return reinterpret_cast<const T*>(cache_token(cache, b, n)) + kv * D;
}

__device__ inline int clamp_length(int length, int64_t max_length) { return max(0, min(length, int(max_length))); }

__device__ inline int clamped_length(const int32_t* lengths, int b, int64_t max_length) {
    return clamp_length(__ldcg(lengths + b), max_length);
}

} // namespace santa
