#pragma once
// The parts that pre-norm decoders share (embedding, attention and MLP blocks, head), written in
// terms of the checked config. A model file composes them and says what is its own. Used once.

#include <string>

#include "worker/models/models.h"
#include "worker/program/builder.h"

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

  ValueId embed();
  // RMSNorm with weight "<scope>.weight".
  ValueId norm(const std::string& scope, ValueId in);
  ValueId add(const std::string& name, ValueId residual, ValueId delta);
  // self_attn and mlp of "model.layers.<layer>": in [T, H] -> [T, H], residual not added.
  ValueId attention(int layer, ValueId in, const AttentionTraits& traits);
  ValueId mlp(int layer, ValueId in, bool bias);
  // Final norm, one row a request, logits, sampling.
  Program finish(ValueId hidden);

  // "model.layers.3.self_attn"
  static std::string scope(int layer, const std::string& block);

 private:
  // "<scope>.weight" and, if asked for, "<scope>.bias", from `cols` to `rows` features.
  ValueId linear(const std::string& scope, ValueId in, int64_t rows, int64_t cols, bool bias,
                 Parallel parallel, SplitUnit unit);

  const ModelConfig& config_;
  BuildOptions options_;
  ProgramBuilder builder_;
  AttentionShape shape_;
  ValueId table_ = kNoValue, rope_table_ = kNoValue;
};

// One pre-norm block: h += attention(norm(h)); h += mlp(norm(h)), for every layer.
Program build_decoder(const ModelConfig& config, const BuildOptions& options,
                      const AttentionTraits& traits);

Program build_llama(const ModelConfig& config, const BuildOptions& options);
Program build_qwen2(const ModelConfig& config, const BuildOptions& options);
Program build_qwen3(const ModelConfig& config, const BuildOptions& options);

}  // namespace refrain::worker
