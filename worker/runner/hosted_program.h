#pragma once
// One Program that a worker hosts, with all that start-up decides about it: pieces, memory plan,
// keys, executables. Each execution context has its own, over the same weights and blocks; those of
// one context take turns in its arena (CG-38). Not movable once bound: the op context points at the
// program.

#include <algorithm>
#include <memory>
#include <optional>
#include <vector>

#include "ipc/protocol/messages.h"
#include "runtime/config/model/model_config.h"
#include "worker/dispatch/dispatcher.h"
#include "worker/graph/executable.h"
#include "worker/graph/lowering.h"
#include "worker/kv/kv_cache.h"
#include "worker/models/models.h"
#include "worker/program/passes/lora.h"
#include "worker/program/passes/passes.h"

namespace refrain::worker {

// For the steps that score prompts, of whatever size. No key has it: it is never captured. It is a
// Program of its own over the weights, states and inputs of the hosted one.
struct ScoringLowering : Lowering {
  ScoringValues values;
  std::vector<ValueId> hosted;  // by ValueId: the hosted Program's; kNoValue: its own
};

// A form of the Program for keys of at most `rows` tokens and requests.
struct KeyLowering : Lowering {
  int32_t rows = 0;
  bool (*takes)(int32_t rows) = nullptr;  // and of so many; null: all
};

struct HostedProgram : Lowering {  // the plain one: for keys without adapters that no other is for
  // The same in all execution contexts.
  std::shared_ptr<Weights> weights = std::make_shared<Weights>();
  std::shared_ptr<KvCache> cache;  // of its state groups
  std::unique_ptr<CudagraphDispatcher> dispatcher;
  ExecutableTable<BatchDescriptor> executables;
  // Where the device has kernels for them; the first that takes a key runs it.
  std::vector<std::unique_ptr<KeyLowering>> for_keys;

  // The plain one of batches with LoRA adapters; null: the group has none.
  std::unique_ptr<Lowering> lora;
  std::optional<LoraProgram> lora_program;

  std::unique_ptr<ScoringLowering> scoring;  // null: steps of this group score no prompts

  const Lowering& lowering(const BatchDescriptor& key) const {
    const int32_t rows = std::max(key.num_tokens, key.num_reqs);
    const bool decode = key.uniform && key.num_tokens == key.num_reqs;
    for (const auto& form : for_keys) {
      if (form->lora == key.has_lora && rows <= form->rows && (decode || !form->decode) &&
          (form->takes == nullptr || form->takes(rows))) {
        return *form;
      }
    }
    return plain(key.has_lora);
  }
  const Lowering& plain(bool has_lora) const {
    if (has_lora) return *lora;
    return *this;
  }
  // The key that what dispatch said runs at: in PIECEWISE with as few requests as hold the batch.
  BatchDescriptor executed_key(const Dispatch& dispatch) const {
    if (dispatch.mode == RuntimeMode::kNone) return dispatch.key;
    BatchDescriptor key = executables.at(dispatch.mode, dispatch.id).key;
    if (dispatch.mode != RuntimeMode::kPiecewise) return key;
    const std::vector<int32_t>& sizes = lowering(key).request_sizes;
    const auto reqs = std::ranges::lower_bound(sizes, dispatch.key.num_reqs);
    if (reqs != sizes.end()) key.num_reqs = std::min(key.num_reqs, *reqs);
    return key;
  }
  // Those of keys.
  std::vector<Lowering*> lowerings() {
    std::vector<Lowering*> all = {this};
    for (const auto& form : for_keys) all.push_back(form.get());
    if (lora != nullptr) all.push_back(lora.get());
    return all;
  }
  std::vector<Lowering*> all_lowerings() {
    std::vector<Lowering*> all = lowerings();
    if (scoring != nullptr) all.push_back(scoring.get());
    return all;
  }
};

using HostedPrograms = std::vector<std::unique_ptr<HostedProgram>>;  // by ipc::ProgramId

// The same Program for a further execution context, as planned: bound to nothing, no executables.
std::unique_ptr<HostedProgram> for_another_context(const HostedProgram& planned);

// Weights and blocks of the same Program as it was planned for another role.
void take_over(HostedProgram& program, const HostedProgram& before);

// Builds, fuses, shards, validates, splits and plans the model, and resolves its keys. Errors name
// the option or the model's field. `hidden`: the hidden states that its draft head reads.
Result<std::unique_ptr<HostedProgram>> plan_program(const ModelConfig& model,
                                                    const ipc::WorkerConfig& config, int rank,
                                                    const Device& device,
                                                    const BuildModel& build = build_model,
                                                    const std::vector<StateGroup>& of_draft = {},
                                                    const std::vector<int64_t>& hidden = {});
// The same of the draft model of another one, which has its state groups (`of_draft`) among its
// own.
Result<std::unique_ptr<HostedProgram>> plan_draft(const ModelConfig& draft,
                                                  const ModelConfig& model,
                                                  const ipc::WorkerConfig& config, int rank,
                                                  const Device& device);

}  // namespace refrain::worker
