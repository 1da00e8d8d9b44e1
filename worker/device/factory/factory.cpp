#include "worker/device/factory/factory.h"

namespace refrain::worker {

Result<std::unique_ptr<Device>> create_device(const std::string& kind,
                                              const HostDeviceOptions& host,
                                              const CudaDeviceOptions& cuda) {
  if (kind == "cuda") return create_cuda_device(cuda);
  if (kind == "auto" && count_cuda_devices() > 0) return create_cuda_device(cuda);
  if (kind == "host" || kind == "auto") return create_host_device(host);
  return fail_field("device", "device \"{}\" is not one of auto, host, cuda", kind);
}

}  // namespace refrain::worker
