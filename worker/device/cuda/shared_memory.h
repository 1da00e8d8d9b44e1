#pragma once
// Memory of this GPU for other processes, and theirs at addresses of this one. Memory of
// reservations goes by descriptors, other memory by the words of cudaIpcGetMemHandle.

#include <memory>
#include <span>
#include <vector>

#include "worker/device/copier.h"
#include "worker/device/cuda/cuda_context.h"

namespace refrain::worker {

// Device::share. None where the driver gives out no memory (containers without that right).
std::vector<SharedPiece> share_memory(const void* begin, size_t bytes);
// Copier::map for the current device, whose number is `device`.
Result<std::unique_ptr<MappedMemory>> map_memory(int device, std::span<const SharedPiece> pieces);

}  // namespace refrain::worker
