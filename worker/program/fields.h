#pragma once
// The value fields of every op, in one place: reads(), writes(), renumbering and the printer are
// all derived from these lists. Works on const and non-const ops.

#include "worker/program/program.h"

namespace refrain::worker {

enum class Access : uint8_t { kRead, kWrite, kReadWrite };

// Calls f(field, access, field_name) for every value field of the op, in field order; absent
// optional operands (kNoValue) included.
template <class O, class F>
void visit_fields(O& any, F&& f) {
  constexpr Access r = Access::kRead, w = Access::kWrite, rw = Access::kReadWrite;
  std::visit(
      [&f](auto& op) {
        using T = std::remove_cvref_t<decltype(op)>;
        if constexpr (std::is_same_v<T, EmbedOp>) {
          f(op.ids, r, "ids"), f(op.table, r, "table"), f(op.out, w, "out");
        } else if constexpr (std::is_same_v<T, RmsNormOp>) {
          f(op.in, r, "in"), f(op.weight, r, "weight"), f(op.out, w, "out");
        } else if constexpr (std::is_same_v<T, AddOp>) {
          f(op.a, r, "a"), f(op.b, r, "b"), f(op.out, w, "out");
        } else if constexpr (std::is_same_v<T, AddRmsNormOp> ||
                             std::is_same_v<T, AllReduceAddRmsNormOp>) {
          f(op.residual, r, "residual"), f(op.delta, r, "delta"), f(op.weight, r, "weight");
          f(op.residual_out, w, "residual_out"), f(op.out, w, "out");
        } else if constexpr (std::is_same_v<T, LinearOp>) {
          f(op.in, r, "in"), f(op.weight, r, "weight"), f(op.bias, r, "bias");
          f(op.residual, r, "residual"), f(op.out, w, "out");
        } else if constexpr (std::is_same_v<T, SiluMulOp>) {
          f(op.in, r, "in"), f(op.out, w, "out");
        } else if constexpr (std::is_same_v<T, SiluGateOp>) {
          f(op.gate, r, "gate"), f(op.up, r, "up"), f(op.out, w, "out");
        } else if constexpr (std::is_same_v<T, RopeOp>) {
          f(op.in, r, "in"), f(op.positions, r, "positions"), f(op.table, r, "table");
          f(op.out, w, "out");
        } else if constexpr (std::is_same_v<T, KvWriteOp>) {
          f(op.k, r, "k"), f(op.v, r, "v"), f(op.kv_slots, r, "kv_slots");
          f(op.cache, rw, "cache");
        } else if constexpr (std::is_same_v<T, RopeKvWriteOp>) {
          f(op.qkv, r, "qkv"), f(op.positions, r, "positions"), f(op.kv_slots, r, "kv_slots");
          f(op.table, r, "table"), f(op.q_norm, r, "q_norm"), f(op.k_norm, r, "k_norm");
          f(op.cache, rw, "cache"), f(op.out, w, "out");
        } else if constexpr (std::is_same_v<T, AttentionOp>) {
          f(op.q, r, "q"), f(op.cache, r, "cache"), f(op.out, w, "out");
        } else if constexpr (std::is_same_v<T, SelectRowsOp>) {
          f(op.in, r, "in"), f(op.index, r, "index"), f(op.out, w, "out");
        } else if constexpr (std::is_same_v<T, BestTokensOp>) {
          f(op.logits, r, "logits"), f(op.best, w, "best");
        } else if constexpr (std::is_same_v<T, SampleOp>) {
          f(op.logits, r, "logits"), f(op.best, r, "best");
        } else if constexpr (std::is_same_v<T, AllReduceOp>) {
          f(op.value, r, "value"), f(op.out, w, "out");
        } else if constexpr (std::is_same_v<T, AllGatherOp>) {
          f(op.in, r, "in"), f(op.out, w, "out");
        } else if constexpr (std::is_same_v<T, FusedLinearOp>) {
          f(op.in, r, "in"), f(op.norm, r, "norm"), f(op.delta, r, "delta");
          f(op.weight, r, "weight"), f(op.bias, r, "bias"), f(op.residual, r, "residual");
          f(op.sum_out, w, "sum_out"), f(op.out, w, "out");
        } else if constexpr (std::is_same_v<T, RopeAttentionOp>) {
          f(op.rope.qkv, r, "qkv"), f(op.rope.positions, r, "positions");
          f(op.rope.kv_slots, r, "kv_slots"), f(op.rope.table, r, "table");
          f(op.rope.q_norm, r, "q_norm"), f(op.rope.k_norm, r, "k_norm");
          f(op.rope.cache, rw, "cache"), f(op.attention.out, w, "out");
        } else {
          static_assert(std::is_same_v<T, PrepareInputsOp>, "an op without a list of its fields");
        }
      },
      any);
}

}  // namespace refrain::worker
