#pragma once
// Small kernels and a device for the device tests.

#include <atomic>
#include <memory>

#include "kernels/host/launcher.h"
#include "worker/device/device.h"

namespace refrain::worker {

inline std::unique_ptr<Device> host_device(int threads, size_t memory_limit = 0) {
  auto device = create_host_device({threads, "", memory_limit});
  REFRAIN_CHECK(device.has_value(), "{}", device.error().message);
  return std::move(*device);
}

// to[i] = from[i] * factor + offset
struct ScaleArgs {
  float* to;
  const float* from;
  int64_t count;
  float factor;
  float offset;
};

inline void scale_kernel(const ScaleArgs& args, const kernels::Team& team) {
  const kernels::Range range = kernels::share_of(args.count, team);
  for (int64_t i = range.begin; i < range.end; ++i) {
    args.to[i] = args.from[i] * args.factor + args.offset;
  }
}

inline void launch_scale(Stream& stream, const ScaleArgs& args, const char* name = "scale") {
  kernels::launch<scale_kernel>(stream.ref(), args, name);
}

}  // namespace refrain::worker
