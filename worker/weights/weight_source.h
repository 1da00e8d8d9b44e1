#pragma once
// Where weights come from: a checkpoint or made-up numbers. The loader asks for rows of tensors in
// the element type it wants. Called by one reader thread at a time.

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <vector>

#include "kernels/core/dtype.h"
#include "runtime/base/result.h"
#include "runtime/config/model/model_config.h"
#include "worker/program/program.h"

namespace refrain::worker {

// How a source's numbers of one part are hashed (kernels/core/hashed_rows.h).
struct HashedPart {
  uint64_t base = 0;
  float scale = 0, offset = 0;
};

class WeightSource {
 public:
  virtual ~WeightSource() = default;
  // Whether the tensor is there in the shape the part says, readable as numbers.
  virtual Status check(const WeightPart& part) const = 0;
  // Rows [row, row + rows) of the tensor, columns [part.col_begin, part.col_end), row-major and
  // without gaps, as `dtype` (kBFloat16 or kFloat32).
  virtual Status read(const WeightPart& part, int64_t row, int64_t rows, DType dtype, void* to) = 0;
  // Set where the numbers are hashed, so that a device can make them itself.
  virtual std::optional<HashedPart> hashed(const WeightPart&) const { return std::nullopt; }
};

// model.safetensors, or the shards that model.safetensors.index.json names.
Result<std::unique_ptr<WeightSource>> open_checkpoint(const std::filesystem::path& directory);
// Those files, each once.
Result<std::vector<std::filesystem::path>> checkpoint_files(const std::filesystem::path& directory);

// Numbers that depend on seed, tensor name, row and column alone: matrices of variance 1 / columns,
// norms near 1, biases near 0.
std::unique_ptr<WeightSource> dummy_weights(uint64_t seed);

}  // namespace refrain::worker
