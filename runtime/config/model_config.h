#pragma once
// A Hugging Face config.json, checked and in one vocabulary for every architecture. Plain data;
// read once at start by coordinator (limits, eos) and workers (program).

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "runtime/base/result.h"

namespace refrain {

struct RopeScaling {
  std::string type = "default";  // default | linear | llama3 (others: a clear error)
  double factor = 1.0;
  double low_freq_factor = 1.0;
  double high_freq_factor = 4.0;
  int64_t original_max_position_embeddings = 8192;
};

struct ModelConfig {
  std::string architecture;  // "LlamaForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM"
  std::string model_type;
  int64_t vocab_size = 0;
  int64_t hidden_size = 0;
  int64_t intermediate_size = 0;
  int64_t num_layers = 0;
  int64_t num_heads = 0;
  int64_t num_kv_heads = 0;
  int64_t head_dim = 0;
  int64_t max_position_embeddings = 0;
  double rms_norm_eps = 1e-5;
  double rope_theta = 10000.0;
  double partial_rotary_factor = 1.0;
  RopeScaling rope_scaling;
  bool tie_word_embeddings = false;
  bool attention_bias = false;  // q, k, v projections (Qwen2: always)
  bool attention_out_bias = false;
  bool mlp_bias = false;
  bool qk_norm = false;        // Qwen3
  int64_t sliding_window = 0;  // 0: none in use
  std::string torch_dtype = "bfloat16";
  std::vector<int32_t> eos_token_ids;  // from generation_config.json too
  std::optional<int32_t> bos_token_id;
};

// Reads and checks DIR/config.json (and generation_config.json if there). Every error names the
// file and the field and says what would be right.
Result<ModelConfig> load_model_config(const std::filesystem::path& directory);
Result<ModelConfig> parse_model_config(const std::string& json, const std::string& file_name);

// What HELLO compares: config.json's bytes, names, sizes and headers of the weight files and a
// bounded sample of every tensor (model_digest.cpp), as hex.
Result<std::string> model_digest(const std::filesystem::path& directory);

}  // namespace refrain
