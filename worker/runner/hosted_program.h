#pragma once
// One Program that a worker hosts, with all that start-up decides about it: pieces, memory plan,
// keys, executables. Several share one GraphPool and take turns on the device thread. Not movable
// once bound: the context points at the program.

#include <memory>
#include <vector>

#include "ipc/protocol/messages.h"
#include "runtime/config/model_config.h"
#include "worker/graph/dispatcher.h"
#include "worker/graph/executable.h"
#include "worker/graph/op_context.h"
#include "worker/program/passes/passes.h"

namespace refrain::worker {

struct HostedProgram {
  Program program;
  std::vector<PieceRange> pieces;  // empty: nothing to split at
  MemoryPlan plan;
  const AttentionBackend* attention = nullptr;
  Weights weights;
  OpContext context;
  std::unique_ptr<CudagraphDispatcher> dispatcher;
  ExecutableTable<BatchDescriptor> executables;

  OpRange all_ops() const { return {0, static_cast<int>(program.ops.size())}; }
};

// Builds, fuses, shards, validates, splits and plans the model, and resolves its keys. Errors name
// the option or the model's field.
Result<std::unique_ptr<HostedProgram>> plan_program(const ModelConfig& model,
                                                    const ipc::WorkerConfig& config, int rank,
                                                    const Device& device);

}  // namespace refrain::worker
