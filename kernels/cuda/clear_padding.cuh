#pragma once
// Zeros for the padded tokens of an attention's output, where the kernels that attend leave them.

#include <cuda_bf16.h>

#include "kernels/cuda/device.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/ops.h"

namespace refrain::kernels {

// bfloat16. grid.y: tokens.
static __global__ void clear_padding_kernel(AttentionArgs args) {
  let_successor_start();
  wait_for_predecessor();
  const int32_t cols = args.q_heads * args.head_dim;
  auto* out = static_cast<__nv_bfloat16*>(args.out.data);
  for (auto t = static_cast<int32_t>(blockIdx.y); t < args.tokens.padded;
       t += static_cast<int32_t>(gridDim.y)) {
    if (t < live_rows(args.tokens)) continue;
    for (int32_t c = static_cast<int32_t>(threadIdx.x); c < cols;
         c += static_cast<int32_t>(blockDim.x))
      out[t * args.out.stride + c] = __float2bfloat16_rn(0.0f);
  }
}

inline void launch_clear_padding(StreamRef stream, const AttentionArgs& args) {
  if (args.tokens.live == nullptr) return;
  LaunchShape shape;
  shape.grid = dim3(1, grid_y(args.tokens.padded));
  launch<&clear_padding_kernel>(stream, "attention", shape, args);
}

}  // namespace refrain::kernels
