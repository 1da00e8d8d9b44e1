#pragma once
// Ops that read a weight matrix: the embedding table and the linears.

#include "worker/program/op_def.h"

namespace refrain::worker {

struct EmbedOp {
  ValueId ids = kNoValue, table = kNoValue, out = kNoValue;
  int64_t vocab_begin = 0, vocab_end = 0;  // rows this rank holds
  bool operator==(const EmbedOp&) const = default;
};

template <>
struct Definition<EmbedOp> {
  using O = EmbedOp;
  static constexpr const char* name = "embed";
  static constexpr Operand operands[] = {read("ids", offsetof(O, ids)),
                                         read("table", offsetof(O, table)),
                                         write("out", offsetof(O, out))};
  static std::string vocab(const O& op) {
    return fmt::format("vocab={}:{}", op.vocab_begin, op.vocab_end);
  }
  static constexpr Attribute attributes[] = {of_rank(shown_as<O, &vocab>())};
  static std::string shape(const Shapes& v, const O& op) {
    const int64_t held = op.vocab_end - op.vocab_begin;
    return expect(v.same_rows(op.ids, op.out) && v[op.table].cols == v[op.out].cols && held >= 0 &&
                      held <= v[op.table].rows.scale,
                  "ids, table and result disagree");
  }
  static bool has_kernel(const kernels::KernelTable& table, const O& /*op*/) {
    return table.embed != nullptr;
  }
  template <class L>
  static void launch(const L& l, const O& op) {
    l.kernels().embed(l.stream(),
                      {l.at(op.ids), l.weight(op.table), static_cast<int32_t>(op.vocab_begin),
                       static_cast<int32_t>(op.vocab_end), l.matrix(op.out), l.rows(op.out)});
  }
};

struct LinearOp {
  ValueId in = kNoValue, weight = kNoValue, bias = kNoValue, residual = kNoValue,
          out = kNoValue;  // bias, residual may be kNoValue
  Parallel parallel = Parallel::kReplicated;
  SplitUnit unit = SplitUnit::kNone;
  bool operator==(const LinearOp&) const = default;
};

template <>
struct Definition<LinearOp> {
  using O = LinearOp;
  static constexpr const char* name = "linear";
  static constexpr bool row_wise = true, ends_all = true;
  static constexpr Operand operands[] = {
      read("in", offsetof(O, in)), read("weight", offsetof(O, weight)),
      of_rank(optional_read("bias", offsetof(O, bias))),
      of_rank(optional_read("residual", offsetof(O, residual))), write("out", offsetof(O, out))};
  static std::string parallel(const O& op) {
    constexpr const char* kNames[] = {"replicated", "column", "row", "vocab"};
    return kNames[static_cast<size_t>(op.parallel)];
  }
  static constexpr Attribute attributes[] = {shown_as<O, &parallel>()};
  static std::string shape(const Shapes& v, const O& op) {
    const Value &in = v[op.in], &weight = v[op.weight], &out = v[op.out];
    if (weight.kind != ValueKind::kWeight || weight.use != WeightUse::kMatrix)
      return "weight is not a matrix";
    if (weight.dtype == DType::kBFloat16 && weight.cols % 2 != 0)
      return fmt::format("a bfloat16 weight needs an even number of columns, not {}", weight.cols);
    if (in.cols != weight.cols)
      return fmt::format("input has {} columns, weight {}", in.cols, weight.cols);
    if (out.cols != weight.rows.scale || in.rows != out.rows) return "weight and result disagree";
    if (!v.is_vector(op.bias, out.cols)) return "bias and result disagree";
    return expect(op.residual == kNoValue ||
                      (v.same_rows(op.residual, op.out) && v[op.residual].cols == out.cols),
                  "residual and result disagree");
  }
  static bool has_kernel(const kernels::KernelTable& table, const O& /*op*/) {
    return table.linear != nullptr;
  }
  template <class L, class Linear>
  static kernels::LinearArgs args(const L& l, const Linear& op) {
    return {l.matrix(op.in),       l.weight(op.weight), l.vector(op.bias),
            l.matrix(op.residual), l.matrix(op.out),    l.rows(op.out)};
  }
  template <class L>
  static void launch(const L& l, const O& op) {
    l.kernels().linear(l.stream(), args(l, op));
  }
};

// Of up to 256 rows (lower_few_rows, lower_some_rows): a linear with what stands beside it.
struct FusedLinearOp {  // all but in, weight and out may be kNoValue
  ValueId in = kNoValue, norm = kNoValue, delta = kNoValue, weight = kNoValue, bias = kNoValue,
          residual = kNoValue, sum_out = kNoValue, out = kNoValue;
  // The best of each row of logits beside them (kernels::FusedLinearArgs): all or none.
  ValueId best = kNoValue, live_logits = kNoValue;
  int64_t first_token = 0, num_tokens = 0;
  float eps = 1e-5f;
  bool unit_norm = false;  // the norm's weight is all ones (fold_norms)
  bool silu_mul = false;   // of the two halves of the linear's result
  // Exchange places of the group (a number each): `out`, a part of a sum, goes to the ranks, and
  // the next op takes the sum for its `delta`. -1: none.
  int32_t push = -1, pull = -1;
  bool sends = false;  // `out`, a part of a sum, goes to the ranks for the op behind it
  bool operator==(const FusedLinearOp&) const = default;
};
// The same linear, with room for what stands beside it.
inline FusedLinearOp fused(const LinearOp& linear) {
  return {.in = linear.in,
          .weight = linear.weight,
          .bias = linear.bias,
          .residual = linear.residual,
          .out = linear.out};
}

template <>
struct Definition<FusedLinearOp> {
  using O = FusedLinearOp;
  static constexpr const char* name = "fused_linear";
  static constexpr bool ends_all = true;
  static constexpr Operand operands[] = {read("in", offsetof(O, in)),
                                         optional_read("norm", offsetof(O, norm)),
                                         optional_read("delta", offsetof(O, delta)),
                                         read("weight", offsetof(O, weight)),
                                         of_rank(optional_read("bias", offsetof(O, bias))),
                                         of_rank(optional_read("residual", offsetof(O, residual))),
                                         optional_read("live_logits", offsetof(O, live_logits)),
                                         optional_write("sum_out", offsetof(O, sum_out)),
                                         optional_write("best", offsetof(O, best)),
                                         write("out", offsetof(O, out))};
  static std::string tokens(const O& op) {
    if (op.best == kNoValue) return "";
    return fmt::format("tokens={}:{}", op.first_token, op.first_token + op.num_tokens);
  }
  static constexpr Attribute attributes[] = {
      of_rank(shown_as<O, &tokens>()),    shown_with<"eps", &O::eps, &O::norm>(),
      flag<"unit_norm", &O::unit_norm>(), flag<"silu_mul", &O::silu_mul>(),
      ordinal<"pull", &O::pull>(),        ordinal<"push", &O::push>(),
      flag<"sends", &O::sends>()};
  static std::string shape(const Shapes& v, const O& op) {
    const Value &weight = v[op.weight], &out = v[op.out];
    if (weight.kind != ValueKind::kWeight || v[op.in].cols != weight.cols ||
        v[op.in].rows != out.rows || weight.rows.scale != out.cols * (op.silu_mul ? 2 : 1)) {
      return "input, weight and result disagree";
    }
    if (!v.is_vector(op.norm, weight.cols) || !v.is_vector(op.bias, out.cols)) {
      return "norm, bias and weight disagree";
    }
    if (op.silu_mul && (op.bias != kNoValue || op.residual != kNoValue)) {
      return "silu_mul takes no bias and no residual";
    }
    if ((op.delta == kNoValue) != (op.sum_out == kNoValue) ||
        (op.delta != kNoValue && (op.norm == kNoValue || !v.same_shape(op.in, op.delta) ||
                                  !v.same_shape(op.in, op.sum_out)))) {
      return "delta and sum belong together, with a norm";
    }
    if (op.residual != kNoValue && !v.same_shape(op.residual, op.out))
      return "residual and result disagree";
    if (op.unit_norm && (op.norm == kNoValue || op.delta != kNoValue))
      return "a unit norm is a norm without a sum";
    if (op.best == kNoValue)
      return expect(op.live_logits == kNoValue && op.num_tokens == 0, "logits without the best");
    const bool alone = op.norm == kNoValue && op.bias == kNoValue && op.residual == kNoValue &&
                       !op.silu_mul && op.push < 0 && !op.sends;
    return expect(alone && op.live_logits != kNoValue && out.dtype == DType::kFloat32 &&
                      v[op.best].dtype == DType::kFloat32 && v.same_rows(op.best, op.out) &&
                      v[op.best].cols % 2 == 0 && op.first_token >= 0 && op.num_tokens >= 0 &&
                      op.num_tokens <= out.cols,
                  "the best of a row is of logits alone");
  }
  static bool has_kernel(const kernels::KernelTable& table, const O& /*op*/) {
    return table.fused_linear != nullptr;
  }
  template <class L>
  static void launch(const L& l, const O& op) {
    kernels::FusedLinearArgs args;
    args.linear = Definition<LinearOp>::args(l, op);
    args.norm = l.vector(op.norm);
    args.eps = op.eps;
    args.delta = l.matrix(op.delta);
    args.sum_out = l.matrix(op.sum_out);
    args.unit_norm = op.unit_norm;
    args.silu_mul = op.silu_mul;
    if (op.best != kNoValue) {
      args.best = l.at(op.best);
      args.best_parts = l.cols(op.best) / 2;
      args.live_logits = l.at(op.live_logits);
      args.first_token = op.first_token;
      args.num_tokens = op.num_tokens;
    }
    if (op.push >= 0) args.push = l.peer_sum(op.push, l.rows(op.out));
    if (op.pull >= 0) args.pull = l.peer_sum(op.pull, l.rows(op.in));
    if (op.sends) args.send = l.communicator().sent_rows(l.rows(op.out).padded, l.cols(op.out));
    l.kernels().fused_linear(l.stream(), args);
  }
};

}  // namespace refrain::worker
