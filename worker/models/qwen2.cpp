// Qwen2 and Qwen2.5: q, k and v projections always have a bias, the output projection never.

#include "worker/models/decoder.h"

namespace refrain::worker {

Program build_qwen2(const ModelConfig& config, const BuildOptions& options) {
  return build_decoder(config, options, {.qkv_bias = true});
}

}  // namespace refrain::worker
