// rope_attention on tensor cores: the decode kernel of attention_mma.cu, whose blocks rotate their
// request's queries and new key themselves; the one that has the key's place writes it to the
// cache.

#include "kernels/cuda/attention_decode.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/ops.h"

namespace refrain::kernels {

void rope_attention_mma(StreamRef stream, const RopeAttentionArgs& args) {
  constexpr const char* kName = "rope_attention";
  if (args.attention.head_dim == 64) {
    load_decode<64, RopeAttentionArgs>(kName);
    return launch_decode<64>(stream, kName, args, args.attention);
  }
  load_decode<128, RopeAttentionArgs>(kName);
  launch_decode<128>(stream, kName, args, args.attention);
}

}  // namespace refrain::kernels
