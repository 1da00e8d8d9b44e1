// Llama 2 and 3, SmolLM2, and whatever else names itself LlamaForCausalLM. The rope scaling of
// Llama 3 is in the RoPE table alone (worker/weights/rope_table.h).

#include "worker/models/decoder.h"

namespace refrain::worker {

Program build_llama(const ModelConfig& config, const BuildOptions& options) {
  return build_decoder(config, options,
                       {.qkv_bias = config.attention_bias, .out_bias = config.attention_out_bias});
}

}  // namespace refrain::worker
