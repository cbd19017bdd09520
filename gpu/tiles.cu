// Launchers of S²ANTA-prop and S²ANTA-flash.
#include "tiles.cuh"

namespace santa {
namespace {

TileWork plan_tiles(const DecodeArguments& arguments, bool is_flash) {
    TileWork a{arguments};
    const int64_t heads = int64_t(a.batch) * a.heads, most = (a.max_length + kTileKeys - 1) / kTileKeys;
    // Flash never has more tiles than samples, and tiles of 64 keys if it has fewer.
    a.tiles = is_flash && a.samples < most ? a.samples : most;
    char* const base = static_cast<char*>(a.workspace);
    int64_t at = sizeof(Control) + 2 * sizeof(uint32_t) * a.batch;
    const auto take = [&](int64_t bytes) {
        at = (at + 255) / 256 * 256;
        char* const start = base + at;
        at += bytes;
        return start;
    };
    a.weights = reinterpret_cast<uint32_t*>(take(heads * a.max_length * sizeof(uint32_t)));
    a.maxima = reinterpret_cast<float*>(take(heads * a.tiles * sizeof(float)));
    a.masses = reinterpret_cast<uint64_t*>(take(heads * a.tiles * sizeof(uint64_t)));
    a.budgets = reinterpret_cast<int32_t*>(take(heads * a.tiles * sizeof(int32_t)));
    a.means = reinterpret_cast<float*>(take(is_flash ? heads * a.tiles * a.head_dim * sizeof(float) : 0));
    a.bytes = at;
    return a;
}

template <typename T, int D>
cudaError_t launch(const TileWork& a, bool is_flash, cudaStream_t stream) {
    const dim3 tiles(unsigned(a.tiles), a.kv_heads, a.batch), heads(a.heads, a.batch);
    if (a.tiles > 0) (is_flash ? flash_tiles<T, D> : prop_scores<T, D>)<<<tiles, kTileThreads, 0, stream>>>(a);
    (is_flash ? flash_merge<T, D> : prop_gather<T, D>)<<<heads, kHeadThreads, 0, stream>>>(a);
    return cudaGetLastError();
}

template <typename T>
cudaError_t launch(const TileWork& a, bool is_flash, cudaStream_t stream) {
    switch (a.head_dim) {
        case 64: return launch<T, 64>(a, is_flash, stream);
        case 80: return launch<T, 80>(a, is_flash, stream);
        case 96: return launch<T, 96>(a, is_flash, stream);
        case 128: return launch<T, 128>(a, is_flash, stream);
        case 256: return launch<T, 256>(a, is_flash, stream);
        default: return cudaErrorInvalidValue;
    }
}

} // namespace
} // namespace santa

// Bytes that `santa_hw_decode_tiles` needs as its workspace.
extern "C" int64_t santa_hw_tiles_workspace(const santa::DecodeArguments* arguments, int is_flash) {
    return santa::plan_tiles(*arguments, is_flash).bytes;
}

// Where the tiles' numbers lie in the workspace, in bytes: weights, maxima, masses, budgets; then tiles a head.
extern "C" void santa_hw_tiles_layout(const santa::DecodeArguments* arguments, int is_flash, int64_t* layout) {
    const santa::TileWork a = santa::plan_tiles(*arguments, is_flash);
    const char* const base = static_cast<const char*>(a.workspace);
    layout[0] = reinterpret_cast<const char*>(a.weights) - base;
    layout[1] = reinterpret_cast<const char*>(a.maxima) - base;
    layout[2] = reinterpret_cast<const char*>(a.masses) - base;
    layout[3] = reinterpret_cast<const char*>(a.budgets) - base;
    layout[4] = a.tiles;
}

extern "C" int santa_hw_decode_tiles(const santa::DecodeArguments* arguments, int is_flash, cudaStream_t stream) {
    const santa::TileWork a = santa::plan_tiles(*arguments, is_flash);
    if (a.workspace_bytes < a.bytes) return cudaErrorInvalidValue;
    return a.type == santa::kFloat16 ? santa::launch<__half>(a, is_flash, stream)
                                     : santa::launch<__nv_bfloat16>(a, is_flash, stream);
}
