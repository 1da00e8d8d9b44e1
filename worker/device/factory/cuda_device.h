#pragma once
// The CUDA device, seen from builds with and without CUDA: no CUDA header here. The thread that
// creates the device makes every call of it.

#include <memory>

#include "runtime/base/result.h"
#include "worker/device/device.h"

namespace refrain::worker {

struct CudaDeviceOptions {
  // Which of the GPUs this process sees (CUDA_VISIBLE_DEVICES counts): the rank within its machine.
  int local_rank = 0;
  // Ranks on this machine; more than there are GPUs is an error that says so.
  int local_size = 1;
  size_t memory_limit = 0;  // bytes this process may take; 0: what the GPU has
};
Result<std::unique_ptr<Device>> create_cuda_device(const CudaDeviceOptions& options);

// GPUs this process can use; 0 where there is no driver.
int count_cuda_devices();

}  // namespace refrain::worker
