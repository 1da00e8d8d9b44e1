#pragma once
// From a checked config to the plain (unfused, unsharded) Program. One file per architecture; the
// table in models.cpp lists them all.

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "ipc/protocol/messages.h"
#include "kernels/core/dtype.h"
#include "runtime/base/result.h"
#include "runtime/config/model/model_config.h"
#include "worker/program/builder.h"

namespace refrain::worker {

// What a draft head's Program takes over from its target.
struct HeadTarget {
  ipc::DraftHead head = ipc::DraftHead::kNone;
  DType weight_dtype = DType::kBFloat16;
  bool tied = false;  // the table of the embeddings gives the logits
};

struct BuildOptions {
  DType activation_dtype = DType::kBFloat16;
  DType kv_dtype = DType::kBFloat16;
  DType weight_dtype = DType::kBFloat16;         // of matrices in memory
  int64_t max_positions = 0;                     // rows of the RoPE table: max_model_len
  std::optional<kernels::Pooling> pooling = {};  // none: it has a head, and samples
  BuildLimits limits = {};
  HeadTarget head = {};  // of a draft head's Program
};

// EAGLE and EAGLE-3 heads (eagle.cpp). A head of another shape than its target is an error that
// names the field of its config.json.
Result<Program> build_head(const ModelConfig& head, const ModelConfig& target,
                           const BuildOptions& options);
// Which hidden states of the target a head reads (BuildLimits::hidden_states).
std::vector<int64_t> hidden_states_of(ipc::DraftHead kind, const ModelConfig& head,
                                      const ModelConfig& target);

// An architecture that is not in the table is an error that lists those that are.
Result<Program> build_model(const ModelConfig& config, const BuildOptions& options);
std::vector<std::string> supported_architectures();
// Such a function; tests have models of their own.
using BuildModel = std::function<Result<Program>(const ModelConfig&, const BuildOptions&)>;

}  // namespace refrain::worker
