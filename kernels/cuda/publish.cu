// publish_layer: a single thread; bound by the latency of the step block in the host's memory. Its
// predecessors have ended when it stores, as each kernel waits for those before it, so that their
// writes are visible wherever the flag is.

#include "kernels/core/layer_flag.h"
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/ops.h"

namespace refrain::kernels {
namespace {

__global__ void publish_layer_kernel(PublishLayerArgs args) {
  wait_for_predecessor();
  let_successor_start();
  const uint8_t* block = *args.turn % kTurns == 0 ? args.blocks[0] : args.blocks[1];
  const auto* header = reinterpret_cast<const volatile StepHeader*>(block + args.header);
  const uint64_t flag = layer_flag(header->step);
  __threadfence_system();
  asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(args.flag), "l"(flag) : "memory");
}

}  // namespace

void publish_layer(StreamRef stream, const PublishLayerArgs& args) {
  static_assert(kTurns == 2);
  LaunchShape shape;
  shape.grid = dim3(1);
  shape.threads = 1;
  launch<&publish_layer_kernel>(stream, "publish_layer", shape, args);
}

}  // namespace refrain::kernels
