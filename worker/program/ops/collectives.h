#pragma once
// Ops in which the ranks of a group exchange something; the communicator launches them.

#include "worker/program/ops/elementwise.h"

namespace refrain::worker {

struct AllReduceOp {  // in place
  ValueId value = kNoValue, out = kNoValue;
  bool operator==(const AllReduceOp&) const = default;
};

template <>
struct Definition<AllReduceOp> {
  using O = AllReduceOp;
  static constexpr const char* name = "all_reduce";
  static constexpr bool collective = true;
  static constexpr Operand operands[] = {read("value", offsetof(O, value)),
                                         in_place("out", offsetof(O, out), offsetof(O, value))};
  static std::string shape(const Shapes& v, const O& op) {
    return expect(v.same_shape(op.value, op.out), "value and result disagree");
  }
  static bool has_kernel(const kernels::KernelTable& /*table*/, const O& /*op*/) { return true; }
  template <class L>
  static void launch(const L& l, const O& op) {
    l.communicator().all_reduce(l.device_stream(), l.matrix(op.value), l.value(op.value).cols,
                                l.rows(op.value));
  }
};

struct AllReduceAddRmsNormOp {  // delta, a part of a sum over ranks, becomes the sum; AddRmsNormOp
  ValueId residual = kNoValue, delta = kNoValue, weight = kNoValue, residual_out = kNoValue,
          out = kNoValue;
  float eps = 1e-5f;
  bool sent = false;  // by the op before, a FusedLinearOp that sends
  bool operator==(const AllReduceAddRmsNormOp&) const = default;
};

template <>
struct Definition<AllReduceAddRmsNormOp> : AddRmsNormDefinition<AllReduceAddRmsNormOp> {
  using O = AllReduceAddRmsNormOp;
  static constexpr const char* name = "all_reduce_add_rms_norm";
  static constexpr bool collective = true;
  static constexpr Attribute attributes[] = {shown<"eps", &O::eps>(), flag<"sent", &O::sent>()};
  template <class L>
  static void launch(const L& l, const AllReduceAddRmsNormOp& op) {
    const kernels::AddRmsNormArgs norm = args(l, op);
    if (l.communicator().all_reduce_add_rms_norm(l.device_stream(), norm, op.sent)) return;
    l.communicator().all_reduce(l.device_stream(), norm.delta, norm.cols, norm.rows);
    l.kernels().add_rms_norm(l.stream(), norm);
  }
};

struct AllGatherOp {  // in: [R, cols]; out: [size][R][cols]
  ValueId in = kNoValue;
  ValueId live = kNoValue;  // rows that are gathered, where these are not all live ones
  ValueId out = kNoValue;
  bool operator==(const AllGatherOp&) const = default;
};

template <>
struct Definition<AllGatherOp> {
  using O = AllGatherOp;
  static constexpr const char* name = "all_gather";
  static constexpr bool collective = true;
  static constexpr Operand operands[] = {read("in", offsetof(O, in)),
                                         optional_read("live", offsetof(O, live)),
                                         write("out", offsetof(O, out))};
  static std::string shape(const Shapes& v, const O& op) {
    return expect(v.stacks(op.out, v.ranks, op.in), "input and result disagree");
  }
  static bool has_kernel(const kernels::KernelTable& /*table*/, const O& /*op*/) { return true; }
  template <class L>
  static void launch(const L& l, const O& op) {
    kernels::Rows rows = l.rows(op.in);
    if (op.live != kNoValue) rows.live = l.at(op.live);
    l.communicator().all_gather(l.device_stream(), l.matrix(op.in), l.at(op.out),
                                l.value(op.in).cols, rows);
  }
};

}  // namespace refrain::worker
