#pragma once
// A LoRA adapter as PEFT saves it: adapter_config.json and adapter_model.safetensors. What this
// server cannot do (DoRA, modules_to_save, bias, other ranks by module) is refused by
// name. Immutable after open; any thread.

#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "runtime/base/result.h"
#include "worker/weights/safetensors.h"
#include "worker/weights/weight_source.h"

namespace refrain::worker {

class PeftAdapter {
 public:
  // Errors name the file, and the field or tensor at fault.
  static Result<PeftAdapter> open(const std::filesystem::path& directory);

  // W + scale * b · a; of an embedding, whose rows are the tokens', the transpose of that product.
  struct Pair {
    TensorInfo a;  // [rank, columns]
    TensorInfo b;  // [rows, rank]
  };
  // By module, as the base model names it: "model.layers.0.self_attn.q_proj".
  const std::map<std::string, Pair>& modules() const { return modules_; }
  // Beside adapters of the embeddings and of lm_head PEFT saves the base model's weights of these
  // modules. They are no part of the adapter: each must be what the model has.
  const std::map<std::string, TensorInfo>& base_weights() const { return base_weights_; }
  // Of the rows that this rank has.
  Status check_base(const TensorInfo& tensor, const WeightPart& part, WeightSource& model) const;
  int64_t rank() const { return rank_; }
  float scale() const { return scale_; }  // lora_alpha / r, or / sqrt(r) with use_rslora
  const std::string& path() const { return file_->path(); }

  // Rows [row, row + rows) and columns [col, col + cols) as float32, row-major.
  Result<std::vector<float>> read(const TensorInfo& tensor, int64_t row, int64_t rows, int64_t col,
                                  int64_t cols) const;

 private:
  Status add(const TensorInfo& tensor);
  Status check_pairs() const;
  tl::unexpected<Error> refuse(const TensorInfo& tensor, const std::string& why) const;

  std::shared_ptr<const SafetensorsFile> file_;
  int64_t rank_ = 0;
  float scale_ = 1;
  bool ties_ = false;
  std::map<std::string, Pair> modules_;
  std::map<std::string, TensorInfo> base_weights_;
};

}  // namespace refrain::worker
