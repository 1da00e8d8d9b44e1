#pragma once
// Memory of the values of a Program that runs behind another one in a step: what the other passes
// to it, found by name, and its own inputs, outputs and scratch. Addresses never change. Device
// thread; as long as the runner.

#include <array>
#include <memory>
#include <vector>

#include "worker/device/device.h"
#include "worker/graph/op_context.h"

namespace refrain::worker {

class ProgramValues {
 public:
  // Throws OutOfMemory; what `before` does not have, or in another shape, is a FatalError.
  // `passing` by ValueId of `before`.
  ProgramValues(Device& device, Stream& stream, const Program& program, const Program& before,
                const std::vector<Addresses>& passing);

  // By ValueId; null for what is not here.
  const std::vector<Addresses>& addresses() const { return addresses_; }

 private:
  std::unique_ptr<Buffer> device_memory_;
  std::array<std::unique_ptr<Buffer>, kernels::kTurns> pinned_;
  std::vector<Addresses> addresses_;
};

}  // namespace refrain::worker
