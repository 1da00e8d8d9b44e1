#pragma once
// Functions of the driver, found through the runtime: nothing links to libcuda, so the programs
// start on machines without a driver. Any thread.

#include <cuda_runtime.h>
#include <fmt/format.h>

#include "worker/device/device.h"

namespace refrain::worker {

// Throws DeviceError when the driver has no such function of `version` (12030: CUDA 12.3).
template <class Function>
Function* driver_function(const char* name, unsigned version) {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found{};
  const cudaError_t status =
      cudaGetDriverEntryPointByVersion(name, &function, version, cudaEnableDefault, &found);
  if (status != cudaSuccess || found != cudaDriverEntryPointSuccess || function == nullptr) {
    throw DeviceError(fmt::format("the driver has no {}; it must be of CUDA 13 or later", name));
  }
  return reinterpret_cast<Function*>(function);
}

}  // namespace refrain::worker
