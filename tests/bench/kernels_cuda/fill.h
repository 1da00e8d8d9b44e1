#pragma once
// Kernels of the benchmark itself: data that is neither zero nor compressible, and the reading
// rate.

#include <cuda_runtime.h>

#include <cstddef>

namespace refrain::kernels {

// bfloat16 values of [-scale, scale), hashed from their place.
void fill_hashed(cudaStream_t stream, void* data, size_t bytes, float scale);
// Reads everything once; `out` takes a word that depends on all of it.
void read_all(cudaStream_t stream, const void* data, size_t bytes, unsigned* out);

}  // namespace refrain::kernels
