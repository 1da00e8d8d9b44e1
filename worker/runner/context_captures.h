#pragma once
// Warm-ups and captures of one execution context at start: of each of its Programs, every key
// (CG-20 … CG-25), and the sizes beyond that have no graph. Device thread.

#include <string>

#include "worker/graph/capturer.h"
#include "worker/runner/attention_planner.h"
#include "worker/runner/execution_context.h"

namespace refrain::worker {

class ContextCaptures {
 public:
  // All outlive it.
  ContextCaptures(const RunnerOptions& options, Device& device, ExecutionContext& context,
                  AttentionPlanner& planner, const ModelRunner::ProgressFn& progress)
      : options_(options),
        device_(device),
        context_(context),
        planner_(planner),
        progress_(progress) {}

  // Manifest and warnings of all Programs; ranks agree on every key.
  CaptureResult run();

 private:
  void capture(HostedProgram& program, const std::string& prefix);
  void prepare_batch(const BatchDescriptor& key);
  std::vector<BatchDescriptor> uncaptured_sizes(const HostedProgram& program) const;

  const RunnerOptions& options_;
  Device& device_;
  ExecutionContext& context_;
  AttentionPlanner& planner_;
  const ModelRunner::ProgressFn& progress_;
  CaptureResult result_;
};

}  // namespace refrain::worker
