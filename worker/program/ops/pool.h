#pragma once
// The end of a step of a model that pools: hidden states to one vector a prompt.

#include <string>

#include "worker/program/op_def.h"

namespace refrain::worker {

struct PoolOp {  // the last op, instead of a SampleOp; a row that samples ends its prompt
  ValueId in = kNoValue;
  ValueId turn = kNoValue, query_start = kNoValue, seq_lens = kNoValue, row_slot = kNoValue,
          row_flags = kNoValue;
  ValueId state = kNoValue;                        // of the slots; none: pooling is kLast
  ValueId out_turn = kNoValue, pooled = kNoValue;  // what the host reads (kernels::PoolOutputs)
  kernels::Pooling pooling = kernels::Pooling::kLast;
  bool operator==(const PoolOp&) const = default;
};

template <>
struct Definition<PoolOp> {
  using O = PoolOp;
  static constexpr const char* name = "pool";
  static constexpr Operand operands[] = {read("in", offsetof(O, in)),
                                         read("turn", offsetof(O, turn)),
                                         read("query_start", offsetof(O, query_start)),
                                         read("seq_lens", offsetof(O, seq_lens)),
                                         read("row_slot", offsetof(O, row_slot)),
                                         read("row_flags", offsetof(O, row_flags)),
                                         optional_state("state", offsetof(O, state)),
                                         write("pooled", offsetof(O, pooled)),
                                         write("out_turn", offsetof(O, out_turn))};
  static std::string kind(const O& op) {
    if (op.pooling == kernels::Pooling::kLast) return "last";
    return op.pooling == kernels::Pooling::kMean ? "mean" : "first";
  }
  static constexpr Attribute attributes[] = {shown_as<O, &kind>()};
  static std::string shape(const Shapes& v, const O& op) {
    const bool keeps = op.pooling != kernels::Pooling::kLast;
    const bool state_fits = op.state == kNoValue ? !keeps
                                                 : keeps && v[op.state].cols == v[op.in].cols &&
                                                       v[op.state].dtype == DType::kFloat32;
    return expect(
        state_fits && v[op.pooled].cols == v[op.in].cols && v[op.pooled].dtype == DType::kFloat32 &&
            v.same_rows(op.pooled, op.seq_lens) && v.same_rows(op.row_slot, op.seq_lens) &&
            v.same_rows(op.row_flags, op.seq_lens),
        "input, state, requests and result disagree");
  }
  static bool has_kernel(const kernels::KernelTable& table, const O& /*op*/) {
    return table.pool != nullptr;
  }
  template <class L>
  static void launch(const L& l, const O& op) {
    kernels::PoolArgs args;
    args.in = l.matrix(op.in);
    if (op.state != kNoValue) args.state = l.at(op.state);
    args.inputs.turn = l.at(op.turn);
    args.inputs.query_start = l.at(op.query_start);
    args.inputs.seq_lens = l.at(op.seq_lens);
    args.inputs.row_slot = l.at(op.row_slot);
    args.inputs.row_flags = l.at(op.row_flags);
    for (uint32_t turn = 0; turn < kernels::kTurns; ++turn)
      args.outputs[turn] = {l.at(op.out_turn, turn), l.at(op.pooled, turn)};
    args.pooling = op.pooling;
    args.cols = l.cols(op.in);
    args.reqs = l.rows(op.row_slot);
    l.kernels().pool(l.stream(), args);
  }
};

}  // namespace refrain::worker
