#include "worker/device/factory/factory.h"

namespace refrain::worker {

Result<std::unique_ptr<Device>> create_device(const std::string& kind,
                                              const HostDeviceOptions& host) {
  if (kind == "host" || kind == "auto") return create_host_device(host);
  if (kind == "cuda") {
    return fail_field("device",
                      "this build has no CUDA device: build with REFRAIN_CUDA=ON, or use "
                      "--device host");
  }
  return fail_field("device", "device \"{}\" is not one of auto, host, cuda", kind);
}

}  // namespace refrain::worker
