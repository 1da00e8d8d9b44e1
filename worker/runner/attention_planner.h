#pragma once
// The plans of the state groups whose attention runs by one: made of a step's lengths, in front of
// its ops, into the memory that the launches read (kernels/core/attention_units.h). Device thread;
// as long as the runner.

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "ipc/protocol/messages.h"
#include "kernels/core/attention_units.h"
#include "worker/device/device.h"
#include "worker/graph/lowering.h"

namespace refrain::worker {

// Keys that cascade attention must spare a step of the state group to pay; 0: no attention of the
// group can read a shared prefix once.
int64_t cascade_keys(const Lowering& lowering, size_t group, bool disabled);

class AttentionPlanner {
 public:
  // `own`: the memory of the Program's values, by ValueId.
  AttentionPlanner(Device& device, const Lowering& lowering, const std::vector<Addresses>& own);

  // Copies of pinned memory of the turn, stream-ordered. shared_prefix > 0: a step with cascade
  // attention; without it only backends that plan have one, and the step behind one that had a
  // prefix, which share_keys must not find there any more.
  void plan(const kernels::AttentionRows& rows, uint32_t turn, Stream& stream);
  // The same of the rows that a step's block has.
  void plan(const kernels::StepLayout& layout, const uint8_t* block, int32_t rows, uint32_t turn,
            Stream& stream);

 private:
  struct Group {
    kernels::AttentionPlanShape shape;
    const AttentionBackend* backend;  // makes no plan: for cascade attention alone
    int32_t window;                   // 0: all
    int32_t* memory;                  // on the device
    size_t first_pinned;              // of the turn's
    bool has_prefix = false;          // in the plan that the device has
  };
  std::vector<Group> groups_;
  std::array<std::unique_ptr<Buffer>, kernels::kTurns> pinned_;
};

}  // namespace refrain::worker
