#pragma once
// A stream of copies on one GPU, for one thread.

#include <memory>

#include "worker/device/copier.h"
#include "worker/device/cuda/cuda_context.h"

namespace refrain::worker {

// On the device of the thread that calls it.
std::unique_ptr<Copier> make_cuda_copier(std::shared_ptr<CudaContext> context);

}  // namespace refrain::worker
