#pragma once
// Debug mode (CG-37): the counts that kernels keep are copied to the host after the ops of every
// step, and are zero there. A kernel that leaves one behind would make later steps wrong. Device
// thread.

#include <array>
#include <memory>
#include <vector>

#include "runtime/base/ids.h"
#include "worker/device/device.h"
#include "worker/runner/model_runner.h"

namespace refrain::worker {

class CounterCheck {
 public:
  CounterCheck(Device& device, std::vector<KernelCounters> counters);

  // Stream-ordered; `flight` in [0, ModelRunner::kMaxInFlight).
  void copy(Stream& stream, int flight);
  // When the copy has been waited for. Throws DeviceError naming the owner of a count that is left.
  void check(StepId step, int flight) const;

 private:
  std::vector<KernelCounters> counters_;
  std::array<std::unique_ptr<Buffer>, ModelRunner::kMaxInFlight> pinned_;  // all counters
};

}  // namespace refrain::worker
