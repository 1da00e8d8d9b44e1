#pragma once
// publish_layer: one store, behind which the writes of the ops before it are seen. All threads have
// ended those.

#include <atomic>

#include "kernels/core/layer_flag.h"
#include "kernels/core/op_args.h"
#include "kernels/host/ops/rows.h"

namespace refrain::kernels {

inline void publish_layer(const PublishLayerArgs& args, const Team& team) {
  if (team.rank != 0) return;
  const uint8_t* block = args.blocks[*args.turn % kTurns];
  const auto& header = *reinterpret_cast<const StepHeader*>(block + args.header);
  std::atomic_ref(*args.flag).store(layer_flag(header.step), std::memory_order_release);
}

}  // namespace refrain::kernels
