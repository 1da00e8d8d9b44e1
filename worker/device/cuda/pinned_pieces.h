#pragma once
// Host memory that is page-locked piece by piece, beside running steps.

#include <cstddef>
#include <memory>

#include "worker/device/cuda/cuda_context.h"

namespace refrain::worker {

// Device::allocate_pinned_in_pieces. Throws OutOfMemory. Any thread.
std::unique_ptr<Buffer> make_pinned_pieces(std::shared_ptr<CudaContext> context, size_t bytes);

}  // namespace refrain::worker
