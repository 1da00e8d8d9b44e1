#pragma once
// Launching a kernel on a StreamRef's stream: alike while the stream captures and when it does not,
// always allowed to start before its predecessor has ended (programmatic dependent launch).

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/core/op_args.h"
#include "kernels/cuda/launcher.h"

namespace refrain::kernels {

struct LaunchShape {
  dim3 grid;
  int threads = 128;
  size_t shared_bytes = 0;
  int cluster = 1;  // blocks of a cluster, along grid.x
};

inline constexpr int kMaxSharedBytes = 227 * 1024;

// Once per kernel and process. All kernels ask for the largest shared-memory share: kernels with
// different shares would never run side by side on a multiprocessor.
template <class Kernel>
bool configure_kernel(Kernel* kernel, const char* name, size_t most_shared, bool wide_cluster) {
  check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                                  cudaSharedmemCarveoutMaxShared),
             name);
  if (most_shared > 48 * 1024) {
    check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                    static_cast<int>(most_shared)),
               name);
  }
  if (wide_cluster) {
    check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1),
               name);
  }
  return true;
}

// Loads `kernel` if this process has not yet done so. It may be launched with up to `most_shared`
// bytes of dynamic shared memory, and with clusters of 16 if `wide_cluster`.
template <auto kernel, size_t most_shared = 0, bool wide_cluster = false>
void load_kernel(const char* name) {
  static const bool configured = configure_kernel(kernel, name, most_shared, wide_cluster);
  (void)configured;
}

template <auto kernel, size_t most_shared = 0, bool wide_cluster = false, class... Args>
void launch(StreamRef stream, const char* name, const LaunchShape& shape, const Args&... args) {
  load_kernel<kernel, most_shared, wide_cluster>(name);
  cudaLaunchAttribute attributes[2] = {};
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim = {static_cast<unsigned>(shape.cluster), 1, 1};
  cudaLaunchConfig_t config = {};
  config.gridDim = shape.grid;
  config.blockDim = dim3(static_cast<unsigned>(shape.threads));
  config.dynamicSmemBytes = shape.shared_bytes;
  config.stream = launcher(stream).stream;
  launcher(stream).last_kernel = name;
  config.attrs = attributes;
  config.numAttrs = shape.cluster > 1 ? 2 : 1;
  check_cuda(cudaLaunchKernelEx(&config, kernel, args...), name);
}

constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// A grid has at most 65535 blocks along y: kernels with rows there take every gridDim.y-th.
constexpr unsigned grid_y(int64_t rows) {
  return static_cast<unsigned>(rows < 65535 ? rows : int64_t{65535});
}

// Whether it starts at a multiple of 16 bytes, and whether every row of the matrix does.
inline bool is_wide(const void* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; }
inline bool rows_are_wide(const Matrix& m) {
  return is_wide(m.data) && m.stride * static_cast<int64_t>(size_of(m.dtype)) % 16 == 0;
}
// Input and weight as the copy engine takes them; K of whole units is the kernel's to ask.
inline bool is_wide_bfloat16(const LinearArgs& args) {
  return args.in.dtype == DType::kBFloat16 && args.weight.dtype == DType::kBFloat16 &&
         is_wide(args.weight.data) && rows_are_wide(args.in);
}

}  // namespace refrain::kernels
