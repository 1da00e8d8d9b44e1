#pragma once
// What a recorded CUDA graph consists of, read back node by node. Device thread.

#include <cuda_runtime.h>

#include <cstdint>
#include <vector>

#include "worker/device/cuda/cuda_context.h"

namespace refrain::worker {

struct GraphNodes {
  std::vector<const char*> names;  // of kernels their own (mangled) names, owned by the modules
  // Of every node in the order of recording: its kind; of a kernel its name, grid, block, cluster
  // and dynamic shared memory, the sizes of its parameters, and the values of those that have at
  // most four bytes; of a copy its extent and direction, of a memset its extent and value. Then
  // every edge: from where, to where, and whether it is programmatic. Larger parameters are not
  // read, since they hold addresses and padding.
  uint64_t digest = 0;
};
GraphNodes read_nodes(CudaContext& context, cudaGraph_t recorded);

}  // namespace refrain::worker
