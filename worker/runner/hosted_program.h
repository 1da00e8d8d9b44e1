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
#include "worker/graph/lowering.h"
#include "worker/program/passes/passes.h"

namespace refrain::worker {

struct HostedProgram : Lowering {  // the plain one: for every key that no other is for
  const AttentionBackend* attention = nullptr;
  Weights weights;
  std::unique_ptr<CudagraphDispatcher> dispatcher;
  ExecutableTable<BatchDescriptor> executables;
  // For keys of at most few_tokens tokens, where the device has kernels for them; else null.
  int32_t few_tokens = 0;
  std::unique_ptr<Lowering> few, few_decode;  // few_decode: one token a request

  const Lowering& lowering(const BatchDescriptor& key) const {
    if (key.num_tokens > few_tokens || key.num_reqs > few_tokens) return *this;
    return key.uniform && few_decode != nullptr ? *few_decode : *few;
  }
  std::vector<Lowering*> lowerings() {
    std::vector<Lowering*> all = {this};
    if (few != nullptr) all.push_back(few.get());
    if (few_decode != nullptr) all.push_back(few_decode.get());
    return all;
  }
};

// Builds, fuses, shards, validates, splits and plans the model, and resolves its keys. Errors name
// the option or the model's field.
Result<std::unique_ptr<HostedProgram>> plan_program(const ModelConfig& model,
                                                    const ipc::WorkerConfig& config, int rank,
                                                    const Device& device);

}  // namespace refrain::worker
