#pragma once
// Reserved addresses of the GPU, backed later (the KV cache: it takes what the captures leave).
// Kernel nodes may be captured, instantiated and replayed over such addresses whatever lies behind
// them then; memset nodes may not. Device thread.

#include <memory>

#include "worker/device/cuda/cuda_context.h"
#include "worker/device/device.h"

namespace refrain::worker {

// Memory comes in as few handles as can be (2 MiB each would take 0.5 s for 20 GiB). Throws
// OutOfMemory when there are no addresses.
std::unique_ptr<Reservation> make_cuda_reservation(std::shared_ptr<CudaContext> context,
                                                   size_t bytes, MemoryTag tag);

}  // namespace refrain::worker
