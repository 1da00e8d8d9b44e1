#pragma once
// Where the ops of one hosted Program find everything: the address of every value, the kernel
// table, stream and communicator. Addresses are fixed before the first capture and stay so. Built
// by the runner; used by the device thread.

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

#include "kernels/core/kernel_table.h"
#include "worker/comm/communicator.h"
#include "worker/device/device.h"
#include "worker/dispatch/batch_shape.h"
#include "worker/graph/attention_backend.h"
#include "worker/program/passes/passes.h"
#include "worker/program/program.h"
#include "worker/weights/weights.h"

namespace refrain::worker {

// Of a value; those of pinned memory differ by turn (turn t uses t % kTurns), others do not.
using Addresses = std::array<void*, kernels::kTurns>;

struct OpContext {
  const Program* program = nullptr;
  const kernels::KernelTable* kernels = nullptr;
  std::vector<const AttentionBackend*> attention;  // by state group; null: has no blocks
  Stream* stream = nullptr;
  kernels::StreamRef stream_ref;
  Communicator* communicator = nullptr;
  Communicator* replicas = nullptr;  // of those that step together (CG-17); null: there are none
  const Weights* weights = nullptr;
  std::vector<Addresses> addresses;  // by ValueId
  int32_t block_size = 16;
  Device* ranges = nullptr;  // where profiler ranges go; null: none

  // Of padded rows, as all attention backends want it.
  int32_t padded_seq_len() const {
    int32_t longest = 1;
    for (const AttentionBackend* backend : attention) {
      if (backend != nullptr) longest = std::max(longest, backend->padded_seq_len);
    }
    return longest;
  }
  void* address(ValueId id) const { return addresses[static_cast<size_t>(id)][0]; }
};

// What a launch needs of a key, which may be of any type that launch_key() takes (CG-35): the
// padded size of each extent of the Program, and of static attributes those that launches follow.
struct LaunchKey {
  ExtentSizes padded{};
  int32_t uniform_query_len = 0;  // tokens of each request; 0: not uniform
};
// The same of a step's own numbers, for launches that are made for this step alone.
struct LaunchBatch {
  ExtentSizes live{};
  int32_t uniform_query_len = 0;
  bool cascade = false;
};

// The padded sizes of a language model's key, by extent. Logit rows: as many as tokens, and a
// request has as many as the Program lets it at most.
inline ExtentSizes padded_sizes(const Program& program, const BatchDescriptor& key) {
  ExtentSizes sizes = {key.num_tokens, key.num_reqs};
  if (program.extents.size() > kSamples) {
    const int64_t per_request = program.logits_per_request;
    sizes[kSamples] = std::min(sizes[kTokens], sizes[kRequests] * per_request);
  }
  return sizes;
}

inline LaunchKey launch_key(const Program& program, const BatchDescriptor& key) {
  return {padded_sizes(program, key), key.uniform ? key.num_tokens / key.num_reqs : 0};
}
inline LaunchBatch launch_batch(const BatchShape& batch) {
  return {{batch.num_tokens, batch.num_reqs, batch.num_samples},
          batch.uniform ? batch.num_tokens / batch.num_reqs : 0,
          batch.cascade};
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

// Sets the address of every value: in the arena by the plan, weights where they were loaded, blocks
// where `caches`, all others where `own` says, both by ValueId. A value without memory is an error
// that names it.
Status bind_values(OpContext& context, const MemoryPlan& plan, void* arena,
                   const std::vector<void*>& caches, const std::vector<Addresses>& own);

}  // namespace refrain::worker
