#pragma once
// From a checked config to the plain (unfused, unsharded) Program. One file per architecture; the
// table in models.cpp lists them all.

#include <string>
#include <vector>

#include "kernels/core/dtype.h"
#include "runtime/base/result.h"
#include "runtime/config/model_config.h"
#include "worker/program/builder.h"

namespace refrain::worker {

struct BuildOptions {
  DType activation_dtype = DType::kBFloat16;
  DType kv_dtype = DType::kBFloat16;
  DType weight_dtype = DType::kBFloat16;  // of matrices in memory
  int64_t max_positions = 0;              // rows of the RoPE table: max_model_len
  BuildLimits limits = {};
};

// An architecture that is not in the table is an error that lists those that are.
Result<Program> build_model(const ModelConfig& config, const BuildOptions& options);
std::vector<std::string> supported_architectures();

}  // namespace refrain::worker
