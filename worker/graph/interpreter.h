#pragma once
// Runs ops: an Op and a key become a kernel's plain arguments and one launch. The same call runs
// eagerly, warms up and records a capture. Device thread; no allocation.

#include "worker/dispatch/batch_shape.h"
#include "worker/graph/op_context.h"

namespace refrain::worker {

// `batch`: the step's own numbers, where the launch is made for this step alone; null where it is
// recorded for all steps of the key. Attention is then launched for what is live; every other op
// always for the padded sizes, which the layout of its results follows.
void launch_op(const OpContext& context, const Op& op, const LaunchKey& key,
               const LaunchBatch* batch = nullptr);
void launch_ops(const OpContext& context, OpRange ops, const LaunchKey& key,
                const LaunchBatch* batch = nullptr);
// Of a language model.
void launch_op(const OpContext& context, const Op& op, const BatchDescriptor& key,
               const BatchShape* batch = nullptr);
void launch_ops(const OpContext& context, OpRange ops, const BatchDescriptor& key,
                const BatchShape* batch = nullptr);

// An address that a launch of an op holds, and what for: "weight (lm_head.weight)".
struct ArgAddress {
  int op = 0;
  const char* arg = "";  // the operand's name, or the extent's whose live count it is
  ValueId value = kNoValue;
  const void* address = nullptr;
};
// Every address that launches of `ops` hold, in a fixed order (CG-29).
std::vector<ArgAddress> collect_addresses(const OpContext& context, OpRange ops);
// The first entry of `now` that is not as it was; empty when none moved.
std::string describe_moved(const Program& program, const std::vector<ArgAddress>& captured,
                           const std::vector<ArgAddress>& now);

}  // namespace refrain::worker
