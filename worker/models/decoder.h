#pragma once
// The parts that pre-norm decoders share (embedding, attention and MLP blocks, head), written in
// terms of the checked config. A model file composes them and says what is its own. Used once.

#include <string>
#include <vector>

#include "worker/models/models.h"
#include "worker/program/draft_passes.h"
#include "worker/program/op_builder.h"
#include "worker/program/step_ends.h"

namespace refrain::worker {

// What differs between the attention blocks of the architectures.
struct AttentionTraits {
  bool qkv_bias = false;
  bool out_bias = false;
  bool qk_norm = false;  // RMSNorm over each head of q and k, before RoPE
};

class DecoderBuilder {
 public:
  DecoderBuilder(const ModelConfig& config, const BuildOptions& options);
  DecoderBuilder(const DecoderBuilder&) = delete;
  DecoderBuilder& operator=(const DecoderBuilder&) = delete;

  ValueId embed(int pass = 0);
  // RMSNorm with weight "<scope>.weight".
  ValueId norm(const std::string& scope, ValueId in);
  ValueId add(const std::string& name, ValueId residual, ValueId delta);
  // self_attn and mlp of "model.layers.<layer>": in [T, H] -> [T, H], residual not added.
  ValueId attention(int layer, ValueId in, const AttentionTraits& traits);
  // The same without the projection of what was attended to.
  ValueId attend(int layer, ValueId in, const AttentionTraits& traits);
  ValueId mlp(int layer, ValueId in, bool bias);
  // What a draft head reads of what goes into a layer, behind the layer's first norm; or of the
  // final norm.
  void keep_hidden(int64_t layer, ValueId hidden) { ops_.keep_hidden(layer, hidden); }
  // Final norm; then one row a request, logits, sampling, or pooling.
  void head(ValueId hidden);
  Program finish();
  // 1; of a draft model, all that it runs through in a step.
  int num_passes() const { return options_.limits.num_passes(); }

  // "model.layers.3.self_attn"
  std::string scope(int layer, const std::string& block) const;

 protected:
  // "<scope>.weight" and, if asked for, "<scope>.bias", from `cols` to `rows` features.
  ValueId linear(const std::string& scope, ValueId in, int64_t rows, int64_t cols, bool bias,
                 Parallel parallel, SplitUnit unit);
  void declare_groups();

  const ModelConfig& config_;
  BuildOptions options_;
  ProgramBuilder builder_;
  OpBuilder ops_{builder_};
  StepEnds ends_{builder_};       // of a model that serves
  DraftPasses passes_{builder_};  // of a draft model
  AttentionShape shape_;
  int full_ = -1, sliding_ = -1;  // state groups of the layers
  ValueId table_ = kNoValue, rope_table_ = kNoValue;
  std::vector<ValueId> caches_;  // by layer
  int pass_ = 0;
  std::string layers_ = "model.layers.{}.";  // what the names of a layer's weights begin with
};

// One pre-norm block: h += attention(norm(h)); h += mlp(norm(h)), for every layer.
Program build_decoder(const ModelConfig& config, const BuildOptions& options,
                      const AttentionTraits& traits);

Program build_llama(const ModelConfig& config, const BuildOptions& options);
Program build_qwen2(const ModelConfig& config, const BuildOptions& options);
Program build_qwen3(const ModelConfig& config, const BuildOptions& options);

}  // namespace refrain::worker
