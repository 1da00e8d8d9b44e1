#pragma once
// Ops in which replicas of a model that step together (CG-17) exchange something: each has tokens
// of its own, and a part of what is computed for the tokens of all. What they exchange has the
// padded rows of the key that they have in common; live rows are each one's own.

#include "worker/program/op_def.h"
#include "worker/program/shapes.h"

namespace refrain::worker {

struct GatherReplicasOp {  // in: [T, cols]; out: [replicas][T][cols]
  ValueId in = kNoValue, out = kNoValue;
  bool operator==(const GatherReplicasOp&) const = default;
};

template <>
struct Definition<GatherReplicasOp> {
  using O = GatherReplicasOp;
  static constexpr const char* name = "gather_replicas";
  static constexpr bool collective = true;
  static constexpr Operand operands[] = {read("in", offsetof(O, in)),
                                         write("out", offsetof(O, out))};
  static std::string shape(const Shapes& v, const O& op) {
    return expect(v.stacks(op.out, v.replicas, op.in), "input and result disagree");
  }
  static bool has_kernel(const kernels::KernelTable& /*table*/, const O& /*op*/) { return true; }
  template <class L>
  static void launch(const L& l, const O& op) {
    l.replicas().all_gather(l.device_stream(), l.matrix(op.in), l.at(op.out), l.value(op.in).cols,
                            {l.rows(op.in).padded, nullptr});
  }
};

struct ReduceReplicasOp {  // in: [replicas][T][cols], parts of sums; out: [T, cols], the own sums
  ValueId in = kNoValue, out = kNoValue;
  bool operator==(const ReduceReplicasOp&) const = default;
};

template <>
struct Definition<ReduceReplicasOp> {
  using O = ReduceReplicasOp;
  static constexpr const char* name = "reduce_replicas";
  static constexpr bool collective = true;
  static constexpr Operand operands[] = {read("in", offsetof(O, in)),
                                         write("out", offsetof(O, out))};
  static std::string shape(const Shapes& v, const O& op) {
    return expect(v.stacks(op.in, v.replicas, op.out), "input and result disagree");
  }
  static bool has_kernel(const kernels::KernelTable& /*table*/, const O& /*op*/) { return true; }
  template <class L>
  static void launch(const L& l, const O& op) {
    l.replicas().reduce_scatter(l.device_stream(), l.matrix(op.in), l.matrix(op.out),
                                l.value(op.out).cols, l.rows(op.out).padded);
  }
};

}  // namespace refrain::worker
