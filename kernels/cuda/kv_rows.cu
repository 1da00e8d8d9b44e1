// kv_rows: a block copies a token's keys and values, two bytes a thread. For audits, not for speed.

#include "kernels/cuda/device.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/ops.h"

namespace refrain::kernels {
namespace {

constexpr int kThreads = 256;

__global__ void __launch_bounds__(kThreads) kv_rows_kernel(KvRowsArgs args) {
  wait_for_predecessor();
  let_successor_start();
  const int64_t t = blockIdx.x, heads = int64_t{2} * args.kv_heads, words = args.head_bytes / 2;
  const int64_t block = args.kv_slots[t] / args.block_size;
  const int64_t offset = args.kv_slots[t] % args.block_size;
  auto* cache = reinterpret_cast<uint16_t*>(args.cache);
  auto* dense = reinterpret_cast<uint16_t*>(args.dense) + t * heads * words;
  for (int64_t i = threadIdx.x; i < heads * words; i += kThreads) {
    const int64_t at = ((block * heads + i / words) * args.block_size + offset) * words + i % words;
    if (args.restore) {
      cache[at] = dense[i];
    } else {
      dense[i] = cache[at];
    }
  }
}

}  // namespace

void kv_rows(StreamRef stream, const KvRowsArgs& args) {
  if (args.tokens == 0) return;
  LaunchShape shape;
  shape.grid = dim3(static_cast<unsigned>(args.tokens));
  shape.threads = kThreads;
  launch<&kv_rows_kernel>(stream, "kv_rows", shape, args);
}

}  // namespace refrain::kernels
