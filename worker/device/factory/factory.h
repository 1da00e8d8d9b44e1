#pragma once
// Makes the device a command line asks for: auto, host or cuda.

#include <memory>
#include <string>

#include "runtime/base/result.h"
#include "worker/device/device.h"
#include "worker/device/factory/cuda_device.h"

namespace refrain::worker {

// kind: "host", "cuda", or "auto" (CUDA where this build has it and there is a GPU, else host).
Result<std::unique_ptr<Device>> create_device(const std::string& kind,
                                              const HostDeviceOptions& host,
                                              const CudaDeviceOptions& cuda = {});

}  // namespace refrain::worker
