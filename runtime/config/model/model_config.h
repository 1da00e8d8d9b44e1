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
  bool has_head = true;      // false: config.json says "Qwen3Model" or the like
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
  int64_t sliding_window = 0;  // tokens that the layers below look back, their own included
  std::vector<bool> slides;    // by layer; empty: every layer sees all tokens
  int64_t window_of(int64_t layer) const {  // 0: all tokens
    return slides.empty() || !slides[static_cast<size_t>(layer)] ? 0 : sliding_window;
  }
  // Of draft heads.
  int64_t draft_vocab_size = 0;        // tokens of its own vocabulary; 0: the model's
  std::vector<int32_t> hidden_layers;  // of the model, whose inputs it reads; empty: the usual ones
  bool fc_bias = false;
  bool norm_before_residual = false;
  std::string torch_dtype = "bfloat16";
  std::vector<int32_t> eos_token_ids;  // from generation_config.json too
  std::optional<int32_t> bos_token_id;
  bool is_matryoshka = false;                  // the first numbers of its vectors are vectors too
  std::vector<int32_t> matryoshka_dimensions;  // so many of them; empty: any number
};

// Reads and checks DIR/config.json (and generation_config.json if there). Every error names the
// file and the field and says what would be right.
Result<ModelConfig> load_model_config(const std::filesystem::path& directory);
Result<ModelConfig> parse_model_config(const std::string& json, const std::string& file_name);

// What HELLO compares: config.json's bytes, names, sizes and headers of the weight files and a
// bounded sample of every tensor (model_digest.cpp), as hex.
Result<std::string> model_digest(const std::filesystem::path& directory);
// The same of a LoRA adapter's directory (adapter_config.json).
Result<std::string> adapter_digest(const std::filesystem::path& directory);
// Of a model and the one that drafts for it, where there is one (`draft` is not empty).
Result<std::string> model_digest(const std::filesystem::path& directory,
                                 const std::filesystem::path& draft);

}  // namespace refrain
