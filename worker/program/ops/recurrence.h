#pragma once
// Ops that keep a state of a request in its slot, changed by every token.

#include "worker/program/op_def.h"

namespace refrain::worker {

struct LinearRecurrenceOp {
  ValueId gate = kNoValue, in = kNoValue;
  ValueId positions = kNoValue;                         // of the tokens
  ValueId query_start = kNoValue, row_slot = kNoValue;  // of the requests
  ValueId state = kNoValue;                             // by slot, `versions` of them
  ValueId out = kNoValue;
  int64_t versions = 1;  // one a token that a step may add and a later one take back
  bool operator==(const LinearRecurrenceOp&) const = default;
};

template <>
struct Definition<LinearRecurrenceOp> {
  using O = LinearRecurrenceOp;
  static constexpr const char* name = "linear_recurrence";
  static constexpr Operand operands[] = {read("gate", offsetof(O, gate)),
                                         read("in", offsetof(O, in)),
                                         read("positions", offsetof(O, positions)),
                                         read("query_start", offsetof(O, query_start)),
                                         read("row_slot", offsetof(O, row_slot)),
                                         state("state", offsetof(O, state)),
                                         write("out", offsetof(O, out))};
  static constexpr Attribute attributes[] = {shown<"versions", &O::versions>()};
  static std::string shape(const Shapes& v, const O& op) {
    return expect(v.same_shape(op.gate, op.in) && v.same_shape(op.in, op.out) &&
                      v.same_rows(op.positions, op.in) && op.versions >= 1 &&
                      v[op.state].cols == op.versions * v[op.in].cols &&
                      v[op.state].dtype == DType::kFloat32,
                  "gate, input, state and result disagree");
  }
  static bool has_kernel(const kernels::KernelTable& table, const O& /*op*/) {
    return table.linear_recurrence != nullptr;
  }
  template <class L>
  static void launch(const L& l, const O& op) {
    kernels::LinearRecurrenceArgs args;
    args.gate = l.matrix(op.gate);
    args.in = l.matrix(op.in);
    args.out = l.matrix(op.out);
    args.state = l.at(op.state);
    args.positions = l.at(op.positions);
    args.query_start = l.at(op.query_start);
    args.row_slot = l.at(op.row_slot);
    args.cols = l.cols(op.out);
    args.versions = static_cast<int32_t>(op.versions);
    args.reqs = l.rows(op.row_slot);
    l.kernels().linear_recurrence(l.stream(), args);
  }
};

}  // namespace refrain::worker
