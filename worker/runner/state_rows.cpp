#include "worker/runner/state_rows.h"

#include <algorithm>

#include "worker/graph/interpreter.h"

namespace refrain::worker {

const int64_t* kv_slots(const Lowering& lowering, int group) {
  const auto place = static_cast<size_t>(paged_place(lowering.program, group));
  return static_cast<const int64_t*>(
      lowering.context.address(prepare_op(lowering.program).kv_slots[place]));
}

size_t StateRows::largest_layer(int64_t tokens) const {
  size_t bytes = 0;
  for (const PagedLayer& layer : layers()) bytes = std::max(bytes, row_bytes(layer, tokens));
  return bytes;
}

void StateRows::move(const Lowering& lowering, const PagedLayer& layer, Buffer& rows,
                     int32_t tokens, Move move) const {
  auto* cache = cache_.address(layer);
  auto* dense = static_cast<std::byte*>(rows.data());
  for (const PagedPart& part : layer.layout.parts) {
    kernels::KvRowsArgs args;
    args.cache = cache;
    args.dense = dense;
    args.kv_slots = kv_slots(lowering, layer.group);
    args.tokens = tokens;
    args.units = static_cast<int32_t>(part.units);
    args.unit_bytes = static_cast<int32_t>(part.unit_bytes());
    args.block_bytes = layer.block_bytes(block_size_);
    args.block_size = block_size_;
    args.restore = move == Move::kIntoCache;
    lowering.context.kernels->kv_rows(lowering.context.stream_ref, args);
    cache += part.token_bytes() * block_size_;
    dense += part.token_bytes() * tokens;
  }
}

void StateRows::move_states(const std::vector<SlotId>& slots, Buffer& rows, Move move,
                            Stream& stream) const {
  auto* dense = static_cast<std::byte*>(rows.data());
  each_state([&](const State& state) {
    for (const SlotId slot : slots) {
      std::byte* kept = state.of(slot);
      stream.copy(move == Move::kIntoCache ? kept : dense, move == Move::kIntoCache ? dense : kept,
                  state.slot_bytes());
      dense += state.slot_bytes();
    }
  });
}

}  // namespace refrain::worker
