#pragma once
// Loads a (sharded, fused) Program's weights: from safetensors files (checked: R-14) or
// made up (--load-format dummy). Device memory is tagged kWeights. Device thread.

#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "kernels/core/op_args.h"
#include "runtime/base/result.h"
#include "runtime/config/model/model_config.h"
#include "worker/device/device.h"
#include "worker/program/program.h"

namespace refrain::worker {

struct LoadedWeight {
  kernels::Weight matrix;         // WeightUse::kMatrix
  const float* vector = nullptr;  // WeightUse::kVector and kRopeTable
};

struct Weights {
  std::vector<LoadedWeight> by_value;  // indexed by ValueId; empty entries for other values
  std::vector<std::unique_ptr<Buffer>> buffers;
  size_t bytes = 0;
  // What the weights of folded norms were (Value::norm), by the ValueId of the norm's.
  std::map<ValueId, std::vector<float>> folded;
};

using LoadProgress = std::function<void(size_t done_bytes, size_t total_bytes)>;

struct LoadChecks {
  bool finite = false;  // NaN or infinity is an error that names tensor, row and column
};

Result<Weights> load_weights(const Program& program, const ModelConfig& config,
                             const std::filesystem::path& directory, Device& device, Stream& stream,
                             const LoadProgress& progress, const LoadChecks& checks = {});
// Those that a Program's values are passed: the weights of the same name of the Program before it,
// whose memory they stay.
void share_weights(const Program& program, Weights& weights, const Program& before,
                   const Weights& passing);
// Hashed pseudo-random values of the tensor's name and position, scaled by 1/sqrt(K), equal for
// every tensor-parallel layout.
Result<Weights> make_dummy_weights(const Program& program, const ModelConfig& config, uint64_t seed,
                                   Device& device, Stream& stream, const LoadProgress& progress);

}  // namespace refrain::worker
