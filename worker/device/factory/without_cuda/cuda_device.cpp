// In place of the CUDA device in a build without CUDA: there is none.

#include "worker/device/factory/cuda_device.h"

namespace refrain::worker {

Result<std::unique_ptr<Device>> create_cuda_device(const CudaDeviceOptions&) {
  return fail_field("device",
                    "this build has no CUDA device: build with REFRAIN_CUDA=ON, or use "
                    "--device host");
}

int count_cuda_devices() { return 0; }

}  // namespace refrain::worker
