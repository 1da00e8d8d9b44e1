// Prefill attention, bfloat16, by FlashInfer's FlashAttention-3 kernel: 128 queries a block (192 of
// 64-wide heads), wgmma, keys and values through cp.async; bound by arithmetic. One block a
// multiprocessor, whatever the batch. H200, 32/8 heads of 128: 134 TFLOP/s at 512 tokens, 381 at
// 2048, 496 at 8192; 7.9 us for 64 tokens, the decode kernel's launch included.

#include "kernels/cuda/attention_flashinfer.cuh"

namespace refrain::kernels {

bool can_attend_flashinfer(StreamRef stream, const AttentionArgs& args) {
  return launcher(stream).hopper && (args.head_dim == 64 || args.head_dim == 128) &&
         args.sliding_window == 0 && rows_are_wide(args.q) && rows_are_wide(args.out);
}

void attention_flashinfer(StreamRef stream, const AttentionArgs& args, int32_t short_tokens,
                          bool beside) {
  if (args.head_dim == 64) {
    FlashPrefill<64, 192, 96>::run(stream, args, short_tokens, beside);
  } else {
    FlashPrefill<128, 128, 128>::run(stream, args, short_tokens, beside);
  }
}

}  // namespace refrain::kernels
