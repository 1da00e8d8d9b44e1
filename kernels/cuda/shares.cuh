#pragma once
// Work cut into equal runs, one for each worker of a launch.

#include <cstdint>

namespace refrain::kernels {

// Equal shares of `total` pieces of work: worker w has [first(w), first(w + 1)).
struct Shares {
  int64_t total, workers;
  __device__ int64_t first(int64_t worker) const { return total * worker / workers; }
  __device__ int32_t owner(int64_t piece) const {
    return static_cast<int32_t>(((piece + 1) * workers - 1) / total);
  }
};

}  // namespace refrain::kernels
