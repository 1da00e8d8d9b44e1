// Published draft heads of Llama 3.1 8B: their tensors, in the shapes that they have there.
#include <gtest/gtest.h>

#include <map>

#include "worker/models/models.h"
#include "worker/program/passes/passes.h"

namespace refrain::worker::test::head_shapes {
namespace {

constexpr const char* kModel = R"({"architectures": ["LlamaForCausalLM"], "model_type": "llama",
  "hidden_act": "silu", "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
  "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256,
  "max_position_embeddings": 131072, "rms_norm_eps": 1e-05, "rope_theta": 500000.0,
  "tie_word_embeddings": false, "torch_dtype": "bfloat16"})";
// As yuhuili/EAGLE3-LLaMA3.1-Instruct-8B has it, but for what nothing reads.
constexpr const char* kEagle3 = R"({"architectures": ["LlamaForCausalLMEagle3"],
  "model_type": "llama", "bos_token_id": 128000, "eos_token_id": 128001, "hidden_act": "silu",
  "hidden_size": 4096, "intermediate_size": 14336, "max_position_embeddings": 2048,
  "num_attention_heads": 32, "num_key_value_heads": 8, "num_hidden_layers": 1,
  "pad_token_id": 0, "rms_norm_eps": 1e-05, "tie_word_embeddings": false,
  "torch_dtype": "float16", "vocab_size": 128256, "draft_vocab_size": 32000})";
// And yuhuili/EAGLE-LLaMA3.1-Instruct-8B.
constexpr const char* kEagle = R"({"architectures": ["LlamaForCausalLM"], "model_type": "llama",
  "bos_token_id": 128000, "eos_token_id": 128001, "hidden_act": "silu", "hidden_size": 4096,
  "intermediate_size": 14336, "max_position_embeddings": 2048, "num_attention_heads": 32,
  "num_key_value_heads": 8, "num_hidden_layers": 1, "rms_norm_eps": 1e-05,
  "rope_theta": 500000.0, "tie_word_embeddings": false, "torch_dtype": "float16",
  "vocab_size": 128256})";

using Shapes = std::map<std::string, std::pair<int64_t, int64_t>>;

Shapes tensors_of(const Program& program, bool passed) {
  Shapes shapes;
  for (const Value& value : program.values) {
    if (value.kind != ValueKind::kWeight || value.passed != passed) continue;
    for (const WeightPart& part : value.parts)
      shapes[part.tensor] = {part.tensor_rows, part.tensor_cols};
  }
  return shapes;
}

Program built(const char* json, ipc::DraftHead kind) {
  const ModelConfig model = *parse_model_config(kModel, "config.json");
  const ModelConfig head = *parse_model_config(json, "config.json");
  BuildOptions options;
  options.max_positions = 4096;
  options.limits.step = {64, 8, 16, 64};
  options.limits.max_blocks = 256;
  options.limits.num_drafts = 3;
  options.limits.history_cols = 4104;
  options.limits.drafts = options.limits.head = true;
  options.head = {kind, DType::kBFloat16, false};
  return *shard(fuse(*build_head(head, model, options)), 1, 2);
}

Shapes layer(const std::string& scope, int64_t in) {
  return {{scope + "self_attn.q_proj.weight", {4096, in}},
          {scope + "self_attn.k_proj.weight", {1024, in}},
          {scope + "self_attn.v_proj.weight", {1024, in}},
          {scope + "self_attn.o_proj.weight", {4096, 4096}},
          {scope + "post_attention_layernorm.weight", {4096, 1}},
          {scope + "mlp.gate_proj.weight", {14336, 4096}},
          {scope + "mlp.up_proj.weight", {14336, 4096}},
          {scope + "mlp.down_proj.weight", {4096, 14336}}};
}

TEST(DraftHeadShapes, Eagle3OfLlama8B) {
  const Program program = built(kEagle3, ipc::DraftHead::kEagle3);
  Shapes expected = layer("midlayer.", 8192);
  expected.merge(Shapes{{"fc.weight", {4096, 12288}},
                        {"midlayer.hidden_norm.weight", {4096, 1}},
                        {"midlayer.input_layernorm.weight", {4096, 1}},
                        {"norm.weight", {4096, 1}},
                        {"lm_head.weight", {32000, 4096}},
                        {"d2t", {32000, 1}}});
  EXPECT_EQ(tensors_of(program, false), expected);
  EXPECT_EQ(tensors_of(program, true), (Shapes{{"model.embed_tokens.weight", {128256, 4096}}}));
}

TEST(DraftHeadShapes, EagleOfLlama8B) {
  const Program program = built(kEagle, ipc::DraftHead::kEagle);
  Shapes expected = layer("layers.0.", 4096);
  expected.merge(Shapes{{"fc.weight", {4096, 8192}}});
  EXPECT_EQ(tensors_of(program, false), expected);
  EXPECT_EQ(tensors_of(program, true), (Shapes{{"model.embed_tokens.weight", {128256, 4096}},
                                               {"lm_head.weight", {128256, 4096}}}));
}

TEST(DraftHeadShapes, AnEagle3HeadReadsThreeLayers) {
  ModelConfig model = *parse_model_config(kModel, "config.json");
  ModelConfig head = *parse_model_config(kEagle3, "config.json");
  const auto reads = [&](ipc::DraftHead kind) { return hidden_states_of(kind, head, model); };
  EXPECT_EQ(reads(ipc::DraftHead::kEagle3), (std::vector<int64_t>{2, 16, 29}));
  EXPECT_EQ(reads(ipc::DraftHead::kEagle), std::vector<int64_t>{BuildLimits::kAfterNorm});
  head.hidden_layers = {1, 2, 3};
  EXPECT_EQ(reads(ipc::DraftHead::kEagle3), (std::vector<int64_t>{1, 2, 3}));
}

}  // namespace
}  // namespace refrain::worker::test::head_shapes
