#pragma once
// Is a request acceptable, and what does the scheduler need to know of it. Any thread.

#include <vector>

#include "runtime/base/result.h"
#include "runtime/config/engine_config.h"
#include "runtime/config/model/model_config.h"
#include "runtime/engine/request.h"
#include "runtime/sched/sequence.h"

namespace refrain {

// Of a request that gives no seed: different requests of one server draw differently, the same run
// again draws alike.
uint64_t derived_seed(uint64_t seed, RequestId id);

class RequestRules {
 public:
  RequestRules(const EngineConfig& config, const ModelConfig& model)
      : config_(config), model_(model) {}

  Status check(const GenerateRequest& request) const;
  SequenceParams sequence_params(RequestId id, const GenerateRequest& request) const;

 private:
  Status check_logprobs(const GenerateRequest& request) const;
  std::vector<TokenId> end_tokens(const SamplingParams& sampling) const;

  const EngineConfig& config_;
  const ModelConfig& model_;
};

}  // namespace refrain
