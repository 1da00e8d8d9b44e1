// kv_rows: a block copies what a token has, two bytes a thread. For audits, not for speed.

#include "kernels/cuda/device.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/ops.h"

namespace refrain::kernels {
namespace {

constexpr int kThreads = 256;

__global__ void __launch_bounds__(kThreads) kv_rows_kernel(KvRowsArgs args) {
  wait_for_predecessor();
  let_successor_start();
  const int64_t t = blockIdx.x, words = args.unit_bytes / 2;
  const int64_t block = args.kv_slots[t] / args.block_size;
  const int64_t offset = args.kv_slots[t] % args.block_size;
  auto* cache = reinterpret_cast<uint16_t*>(args.cache + block * args.block_bytes);
  auto* dense = reinterpret_cast<uint16_t*>(args.dense) + t * args.units * words;
  for (int64_t i = threadIdx.x; i < args.units * words; i += kThreads) {
    const int64_t at = (i / words * args.block_size + offset) * words + i % words;
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
