#pragma once
// Ops that work on each row by itself: norms, additions, the activation of the MLP.

#include "worker/program/op_def.h"

namespace refrain::worker {

struct RmsNormOp {
  ValueId in = kNoValue, weight = kNoValue, out = kNoValue;
  float eps = 1e-5f;
  int64_t group = 0;  // 0: whole row; else columns per normalised group (QK-norm: head_dim)
  bool operator==(const RmsNormOp&) const = default;
};

template <>
struct Definition<RmsNormOp> {
  using O = RmsNormOp;
  static constexpr const char* name = "rms_norm";
  static constexpr bool row_wise = true;
  static constexpr Operand operands[] = {read("in", offsetof(O, in)),
                                         read("weight", offsetof(O, weight)),
                                         write("out", offsetof(O, out))};
  static constexpr Attribute attributes[] = {shown<"eps", &O::eps>(),
                                             shown_unless<"group", &O::group, int64_t{0}>()};
  static std::string shape(const Shapes& v, const O& op) {
    return expect(v.same_shape(op.in, op.out) &&
                      v.is_vector(op.weight, op.group == 0 ? v[op.in].cols : op.group),
                  "input, weight and result disagree");
  }
  static bool has_kernel(const kernels::KernelTable& table, const O& op) {
    return table.rms_norm != nullptr && op.group == 0;
  }
  template <class L>
  static void launch(const L& l, const O& op) {
    l.kernels().rms_norm(l.stream(), {l.matrix(op.in), l.vector(op.weight), l.matrix(op.out),
                                      l.cols(op.out), op.eps, l.rows(op.out)});
  }
};

struct AddOp {
  ValueId a = kNoValue, b = kNoValue, out = kNoValue;
  bool operator==(const AddOp&) const = default;
};

template <>
struct Definition<AddOp> {
  using O = AddOp;
  static constexpr const char* name = "add";
  static constexpr bool row_wise = true;
  static constexpr Operand operands[] = {read("a", offsetof(O, a)), read("b", offsetof(O, b)),
                                         write("out", offsetof(O, out))};
  static std::string shape(const Shapes& v, const O& op) {
    return expect(v.same_shape(op.a, op.b) && v.same_shape(op.a, op.out), "the two terms disagree");
  }
  static bool has_kernel(const kernels::KernelTable& table, const O& /*op*/) {
    return table.add != nullptr;
  }
  template <class L>
  static void launch(const L& l, const O& op) {
    l.kernels().add(l.stream(), {l.matrix(op.a), l.matrix(op.b), l.matrix(op.out), l.cols(op.out),
                                 l.rows(op.out)});
  }
};

struct AddRmsNormOp {  // residual_out = residual + delta (same storage), out = norm(residual_out)
  ValueId residual = kNoValue, delta = kNoValue, weight = kNoValue, residual_out = kNoValue,
          out = kNoValue;
  float eps = 1e-5f;
  bool operator==(const AddRmsNormOp&) const = default;
};

// All that an addition with RMSNorm is, whoever makes `delta`.
template <class O>
struct AddRmsNormDefinition {
  static constexpr Operand operands[] = {
      read("residual", offsetof(O, residual)), read("delta", offsetof(O, delta)),
      read("weight", offsetof(O, weight)),
      in_place("residual_out", offsetof(O, residual_out), offsetof(O, residual)),
      write("out", offsetof(O, out))};
  static constexpr Attribute attributes[] = {shown<"eps", &O::eps>()};
  static std::string shape(const Shapes& v, const O& op) {
    return expect(v.same_shape(op.residual, op.delta) &&
                      v.same_shape(op.residual, op.residual_out) &&
                      v.same_shape(op.residual, op.out) && v.is_vector(op.weight, v[op.out].cols),
                  "residual, delta, weight and result disagree");
  }
  static bool has_kernel(const kernels::KernelTable& table, const O& /*op*/) {
    return table.add_rms_norm != nullptr;
  }
  template <class L>
  static kernels::AddRmsNormArgs args(const L& l, const O& op) {
    return {l.matrix(op.residual), l.matrix(op.delta), l.vector(op.weight),
            l.matrix(op.out),      l.cols(op.out),     op.eps,
            l.rows(op.out)};
  }
};

template <>
struct Definition<AddRmsNormOp> : AddRmsNormDefinition<AddRmsNormOp> {
  static constexpr const char* name = "add_rms_norm";
  static constexpr bool row_wise = true;
  template <class L>
  static void launch(const L& l, const AddRmsNormOp& op) {
    l.kernels().add_rms_norm(l.stream(), args(l, op));
  }
};

struct SiluMulOp {  // in: gate | up
  ValueId in = kNoValue, out = kNoValue;
  bool operator==(const SiluMulOp&) const = default;
};

template <>
struct Definition<SiluMulOp> {
  using O = SiluMulOp;
  static constexpr const char* name = "silu_mul";
  static constexpr bool row_wise = true;
  static constexpr Operand operands[] = {read("in", offsetof(O, in)),
                                         write("out", offsetof(O, out))};
  static std::string shape(const Shapes& v, const O& op) {
    return expect(v[op.in].cols == 2 * v[op.out].cols && v.same_rows(op.in, op.out),
                  "the input must be twice as wide as the result");
  }
  static bool has_kernel(const kernels::KernelTable& table, const O& /*op*/) {
    return table.silu_mul != nullptr;
  }
  template <class L>
  static void launch(const L& l, const O& op) {
    l.kernels().silu_mul(l.stream(),
                         {l.matrix(op.in), l.matrix(op.out), l.cols(op.out), l.rows(op.out)});
  }
};

struct SiluGateOp {  // unfused form: out = silu(gate) * up
  ValueId gate = kNoValue, up = kNoValue, out = kNoValue;
  bool operator==(const SiluGateOp&) const = default;
};

template <>
struct Definition<SiluGateOp> {
  using O = SiluGateOp;
  static constexpr const char* name = "silu_gate";
  static constexpr bool row_wise = true;
  static constexpr Operand operands[] = {
      read("gate", offsetof(O, gate)), read("up", offsetof(O, up)), write("out", offsetof(O, out))};
  static std::string shape(const Shapes& v, const O& op) {
    return expect(v.same_shape(op.gate, op.up) && v.same_shape(op.gate, op.out),
                  "gate, up and result disagree");
  }
  static bool has_kernel(const kernels::KernelTable& /*table*/, const O& /*op*/) { return false; }
};

}  // namespace refrain::worker
