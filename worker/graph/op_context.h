#pragma once
// Where the ops of one hosted Program find everything: the address of every value, the step's
// buffers, the kernel table, stream and communicator. Addresses are fixed before the first capture
// and stay so. Built by the runner; used by the device thread.

#include <cstdint>
#include <vector>

#include "kernels/core/kernel_table.h"
#include "worker/device/device.h"
#include "worker/graph/attention_backend.h"
#include "worker/program/passes/passes.h"
#include "worker/program/program.h"
#include "worker/weights/weights.h"

namespace refrain::worker {

// Persistent memory of the step's inputs and outputs: blocks and outputs are pinned, by turn; the
// rest is the device's.
struct StepBuffers {
  const uint8_t* blocks[kernels::kTurns] = {};
  uint8_t* block_copy = nullptr;
  kernels::StepLayout layout;
  kernels::SlotState slots;
  kernels::BatchInputs inputs;
  kernels::SampleOutputs outputs[kernels::kTurns];
  float* sample_scratch = nullptr;  // [R, vocab_size]
};

struct OpContext {
  const Program* program = nullptr;
  const kernels::KernelTable* kernels = nullptr;
  const AttentionBackend* attention = nullptr;
  Stream* stream = nullptr;
  kernels::StreamRef stream_ref;
  Communicator* communicator = nullptr;
  const Weights* weights = nullptr;
  StepBuffers buffers;
  std::vector<void*> addresses;  // by ValueId; null for weights
  int32_t block_size = 16;
  int32_t uniform_query_len = 1;  // q
  Device* ranges = nullptr;       // where profiler ranges go; null: none
};

// A profiler range around a scope; `name` is only made when ranges are on.
class RangeScope {
 public:
  template <class Name>
  RangeScope(const OpContext& context, const Name& name) : device_(context.ranges) {
    if (device_ != nullptr) device_->push_range(name());
  }
  ~RangeScope() {
    if (device_ != nullptr) device_->pop_range();
  }
  RangeScope(const RangeScope&) = delete;
  RangeScope& operator=(const RangeScope&) = delete;

 private:
  Device* device_;
};

// Sets `addresses` of activations and outputs (arena), inputs (by name) and states (the cache of
// their layer: `caches`). An input the worker does not have is an error that names it.
Status bind_values(OpContext& context, const MemoryPlan& plan, void* arena,
                   const std::vector<void*>& caches);

}  // namespace refrain::worker
