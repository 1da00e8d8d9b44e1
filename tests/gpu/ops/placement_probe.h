#pragma once
// Blocks of a given shape, launched while small blocks of another kernel run; each tells its
// multiprocessor.

#include <cuda_runtime.h>

#include <cstdint>
#include <vector>

namespace refrain::kernels {

// The multiprocessor of every block, in the order of blocks. `others`: blocks of the other kernel.
// Waits for the stream.
std::vector<uint32_t> probe_placement(cudaStream_t stream, unsigned blocks, unsigned threads,
                                      size_t shared_bytes, unsigned others);

}  // namespace refrain::kernels
