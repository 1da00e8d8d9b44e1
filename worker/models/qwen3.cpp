// Qwen3 dense: each head of q and k is normalised before RoPE; head_dim is given by the config and
// need not be hidden_size / num_attention_heads.

#include "worker/models/decoder.h"

namespace refrain::worker {

Program build_qwen3(const ModelConfig& config, const BuildOptions& options) {
  return build_decoder(
      config, options,
      {.qkv_bias = config.attention_bias, .out_bias = config.attention_out_bias, .qk_norm = true});
}

}  // namespace refrain::worker
