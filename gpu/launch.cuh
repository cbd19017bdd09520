// The host's side of a launch: what the device is like, and how kernels start on it.
#pragma once

#include <cuda_runtime.h>

#include <utility>

namespace santa {

struct Device {
    int multiprocessors, block_shared, multiprocessor_shared;
};

inline int device_of(Device& device) {
    int id;
    cudaError_t error = cudaGetDevice(&id);
    const auto get = [&](int& value, cudaDeviceAttr attribute) {
        if (error == cudaSuccess) error = cudaDeviceGetAttribute(&value, attribute, id);
    };
    get(device.multiprocessors, cudaDevAttrMultiProcessorCount);
    get(device.block_shared, cudaDevAttrMaxSharedMemoryPerBlockOptin);
    get(device.multiprocessor_shared, cudaDevAttrMaxSharedMemoryPerMultiprocessor);
    return error;
}

// Whether a kernel's code, for the current device, knows early starts and clusters.
template <typename Kernel>
cudaError_t is_modern(Kernel kernel, bool& modern) {
    cudaFuncAttributes compiled;
    const cudaError_t error = cudaFuncGetAttributes(&compiled, kernel);
    modern = error == cudaSuccess && compiled.ptxVersion >= 90;
    return error;
}

struct Grid {
    dim3 blocks;
    int threads, shared = 0;
    bool early = false; // the kernel may start while the one ahead still runs, and waits for it itself
    int cluster = 1;    // blocks of a cluster
};

template <typename... Parameters, typename... Arguments>
cudaError_t start(void (*kernel)(Parameters...), const Grid& grid, cudaStream_t stream, Arguments&&... arguments) {
    bool modern = false;
    if (grid.early) {
        if (cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, grid.shared)) {
            return error;
        }
        // One split of L1 and shared memory for all kernels: a multiprocessor must be empty to change it.
        if (cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                                                     cudaSharedmemCarveoutMaxShared)) {
            return error;
        }
        if (cudaError_t error = is_modern(kernel, modern)) return error;
    }
    cudaLaunchAttribute attributes[2] = {};
    attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[0].val.programmaticStreamSerializationAllowed = 1;
    attributes[1].id = cudaLaunchAttributeClusterDimension;
    attributes[1].val.clusterDim = {unsigned(grid.cluster), 1, 1};
    cudaLaunchConfig_t config = {};
    config.gridDim = grid.blocks;
    config.blockDim = dim3(grid.threads);
    config.dynamicSmemBytes = grid.shared;
    config.stream = stream;
    config.attrs = attributes;
    config.numAttrs = !modern ? 0 : grid.cluster > 1 ? 2 : 1;
    return cudaLaunchKernelEx(&config, kernel, std::forward<Arguments>(arguments)...);
}

// Bytes of the L2 set aside for data that asks to stay: a setting of the whole device.
inline cudaError_t persist_l2(int64_t bytes) {
    return cudaDeviceSetLimit(cudaLimitPersistingL2CacheSize, size_t(bytes));
}

} // namespace santa
