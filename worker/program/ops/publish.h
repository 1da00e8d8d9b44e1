#pragma once
// What a step has written of a layer, told to readers beside the device: groups that take the
// blocks over while the prompt still runs (docs/prefill-decode.md).

#include "worker/program/op_def.h"

namespace refrain::worker {

struct PublishLayerOp {
  ValueId cache = kNoValue;                   // what the layer keeps, written by ops before
  ValueId block = kNoValue, turn = kNoValue;  // the step block; PrepareInputsOp
  ValueId flags = kNoValue;                   // state: a word for each layer that has blocks
  int64_t header = 0;                         // StepLayout::header
  int64_t place = 0;                          // of the layer's word
  bool operator==(const PublishLayerOp&) const = default;
};

template <>
struct Definition<PublishLayerOp> {
  using O = PublishLayerOp;
  static constexpr const char* name = "publish_layer";
  static constexpr Operand operands[] = {
      read("cache", offsetof(O, cache)), read("block", offsetof(O, block)),
      read("turn", offsetof(O, turn)), state("flags", offsetof(O, flags))};
  static constexpr Attribute attributes[] = {ordinal<"place", &O::place>()};
  static std::string shape(const Shapes& v, const O& op) {
    return expect(v.is_paged(op.cache) && v[op.block].storage == Storage::kPinned &&
                      v[op.flags].dtype == DType::kInt64 && op.place >= 0 &&
                      op.place < v[op.flags].cols,
                  "cache, step block and flags disagree");
  }
  static bool has_kernel(const kernels::KernelTable& table, const O& /*op*/) {
    return table.publish_layer != nullptr;
  }
  template <class L>
  static void launch(const L& l, const O& op) {
    kernels::PublishLayerArgs args;
    for (uint32_t turn = 0; turn < kernels::kTurns; ++turn)
      args.blocks[turn] = l.at(op.block, turn);
    args.turn = l.at(op.turn);
    args.header = static_cast<size_t>(op.header);
    args.flag = static_cast<uint64_t*>(l.at(op.flags)) + op.place;
    l.kernels().publish_layer(l.stream(), args);
  }
};

}  // namespace refrain::worker
