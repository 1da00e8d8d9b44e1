#pragma once
// Where the ops of one hosted Program find everything: the address of every value, the kernel
// table, stream and communicator. Addresses are fixed before the first capture and stay so. Built
// by the runner; used by the device thread.

#include <array>
#include <cstdint>
#include <vector>

#include "kernels/core/kernel_table.h"
#include "worker/device/device.h"
#include "worker/graph/attention_backend.h"
#include "worker/graph/batch_shape.h"
#include "worker/program/passes/passes.h"
#include "worker/program/program.h"
#include "worker/weights/weights.h"

namespace refrain::worker {

// Of a value; those of pinned memory differ by turn (turn t uses t % kTurns), others do not.
using Addresses = std::array<void*, kernels::kTurns>;

struct OpContext {
  const Program* program = nullptr;
  const kernels::KernelTable* kernels = nullptr;
  const AttentionBackend* attention = nullptr;
  Stream* stream = nullptr;
  kernels::StreamRef stream_ref;
  Communicator* communicator = nullptr;
  const Weights* weights = nullptr;
  std::vector<Addresses> addresses;  // by ValueId
  int32_t block_size = 16;
  int32_t uniform_query_len = 1;  // q
  Device* ranges = nullptr;       // where profiler ranges go; null: none

  void* address(ValueId id) const { return addresses[static_cast<size_t>(id)][0]; }
};

// The padded sizes of a key, by extent.
inline ExtentSizes padded_sizes(const BatchDescriptor& key) {
  return {key.num_tokens, key.num_reqs};
}

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

// Sets the address of every value: in the arena by the plan, weights where they were loaded, caches
// by their layer, all others where `own` (by ValueId) says. A value without memory is an error that
// names it.
Status bind_values(OpContext& context, const MemoryPlan& plan, void* arena,
                   const std::vector<void*>& caches, const std::vector<Addresses>& own);

}  // namespace refrain::worker
