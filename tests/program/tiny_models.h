#pragma once
// Small model configs for the tests of passes, and random ones.

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <algorithm>
#include <string>
#include <vector>

#include "kernels/core/kernel_table.h"
#include "worker/models/models.h"

namespace refrain::worker::test {

// Logits are float32, sums in double: what reordered sums over these models can differ by.
inline constexpr double kTolerance = 2e-5;

inline ModelConfig tiny_llama() {
  ModelConfig config;
  config.architecture = "LlamaForCausalLM";
  config.vocab_size = 100;
  config.hidden_size = 24;
  config.intermediate_size = 72;  // four and a half blocks of 16 columns
  config.num_layers = 2;
  config.num_heads = 6;
  config.num_kv_heads = 3;
  config.head_dim = 4;
  config.max_position_embeddings = 64;
  config.tie_word_embeddings = true;
  return config;
}

// Two drafts a row, whoever makes them.
inline BuildLimits limits_with_drafts() {
  BuildLimits limits;
  limits.step = {64, 8, 16, 64};
  limits.max_blocks = 4;
  limits.num_drafts = 2;
  limits.history_cols = 72;
  return limits;
}

inline ModelConfig tiny_qwen2() {
  ModelConfig config = tiny_llama();
  config.architecture = "Qwen2ForCausalLM";
  config.attention_bias = true;
  config.tie_word_embeddings = false;
  return config;
}

inline ModelConfig tiny_qwen3() {
  ModelConfig config = tiny_llama();
  config.architecture = "Qwen3ForCausalLM";
  config.qk_norm = true;
  config.head_dim = 10;  // not hidden_size / num_attention_heads
  return config;
}

// Every bias there is, and the rope scaling of Llama 3 over half of each head.
inline ModelConfig tiny_biased_llama() {
  ModelConfig config = tiny_llama();
  config.attention_bias = config.attention_out_bias = config.mlp_bias = true;
  config.head_dim = 8;
  config.partial_rotary_factor = 0.5;
  config.rope_scaling = {.type = "llama3",
                         .factor = 8.0,
                         .low_freq_factor = 1.0,
                         .high_freq_factor = 4.0,
                         .original_max_position_embeddings = 16};
  return config;
}

// A device with kernels for few rows.
inline kernels::FewRows few_rows_device() {
  return {.max_rows = 4,
          .max_rows_of_one = 3,
          .max_plain_rows = 64,
          .max_silu_rows = 256,
          .max_unit_norm_rows = 48,
          .max_norm_cols = 8192,
          .max_norm_elements = 16384,
          .max_group = 8,
          .max_rope_units = 127,
          .max_lora_cols = 24,
          .max_ranks = 2,  // three add up by an op
          .takes_head_dim = [](int64_t, int64_t) { return true; }};
}

// Widths that the kernels take; the other dimensions as they are.
inline ModelConfig aligned(ModelConfig config) {
  config.hidden_size = 32;
  config.intermediate_size = 80;  // five blocks of 16 columns
  config.head_dim = 8;
  return config;
}

inline std::vector<ModelConfig> tiny_models() {
  return {tiny_llama(), tiny_qwen2(), tiny_qwen3(), tiny_biased_llama()};
}

// One with a head and a block of the MLP each.
inline int most_ranks(const ModelConfig& config) {
  return static_cast<int>(
      std::min<int64_t>(config.num_heads, (config.intermediate_size + 15) / 16));
}

inline ModelConfig random_model() {
  ModelConfig config = tiny_models()[*rc::gen::inRange<size_t>(0, 4)];
  config.num_kv_heads = *rc::gen::inRange(1, 5);
  config.num_heads = config.num_kv_heads * *rc::gen::inRange(1, 4);
  config.hidden_size = 2 * *rc::gen::inRange(2, 17);
  config.intermediate_size = 2 * *rc::gen::inRange(33, 60);
  config.num_layers = *rc::gen::inRange(1, 4);
  config.vocab_size = *rc::gen::inRange(3, 200);
  config.tie_word_embeddings = *rc::gen::arbitrary<bool>();
  return config;
}

inline Program build(const ModelConfig& config, DType dtype = DType::kFloat32,
                     const BuildLimits& limits = {}, std::optional<kernels::Pooling> pooling = {}) {
  const auto program = build_model(config, {.activation_dtype = dtype,
                                            .kv_dtype = dtype,
                                            .weight_dtype = dtype,
                                            .max_positions = config.max_position_embeddings,
                                            .pooling = pooling,
                                            .limits = limits});
  if (!program) throw std::runtime_error(program.error().message);
  return *program;
}

}  // namespace refrain::worker::test
