#pragma once
// What a draft head's Program has beyond a draft model's: hidden states of the target beside
// tokens, and a vocabulary of its own.

#include <array>

#include "worker/program/op_def.h"

namespace refrain::worker {

struct NextTokensOp {  // out: [T] the token after each of the step's
  ValueId positions = kNoValue, query_start = kNoValue, row_slot = kNoValue;
  ValueId history = kNoValue;  // of the slots
  ValueId out = kNoValue;
  bool operator==(const NextTokensOp&) const = default;
};

template <>
struct Definition<NextTokensOp> {
  using O = NextTokensOp;
  static constexpr const char* name = "next_tokens";
  static constexpr Operand operands[] = {
      read("positions", offsetof(O, positions)), read("query_start", offsetof(O, query_start)),
      read("row_slot", offsetof(O, row_slot)), read("history", offsetof(O, history)),
      write("out", offsetof(O, out))};
  static std::string shape(const Shapes& v, const O& op) {
    return expect(v.same_shape(op.positions, op.out), "positions and result disagree");
  }
  static bool has_kernel(const kernels::KernelTable& table, const O& /*op*/) {
    return table.next_tokens != nullptr;
  }
  template <class L>
  static void launch(const L& l, const O& op) {
    kernels::NextTokensArgs args;
    args.positions = l.at(op.positions);
    args.query_start = l.at(op.query_start);
    args.row_slot = l.at(op.row_slot);
    args.history = l.at(op.history);
    args.history_cols = l.cols(op.history);
    args.out = l.at(op.out);
    args.tokens = l.rows(op.out);
    args.rows = l.rows(op.row_slot);
    l.kernels().next_tokens(l.stream(), args);
  }
};

struct ConcatOp {  // out: the columns of its parts, one after the other
  std::array<ValueId, kernels::kMaxParts> parts{kNoValue, kNoValue, kNoValue};
  ValueId out = kNoValue;
  bool operator==(const ConcatOp&) const = default;
};

template <>
struct Definition<ConcatOp> {
  using O = ConcatOp;
  static constexpr const char* name = "concat";
  static constexpr Operand operands[] = {read("first", place_in(offsetof(O, parts), 0)),
                                         optional_read("second", place_in(offsetof(O, parts), 1)),
                                         optional_read("third", place_in(offsetof(O, parts), 2)),
                                         write("out", offsetof(O, out))};
  static std::string shape(const Shapes& v, const O& op) {
    int64_t cols = 0;
    for (const ValueId part : op.parts) {
      if (part == kNoValue) continue;
      if (!v.same_rows(part, op.out) || v[part].dtype != v[op.out].dtype)
        return "a part and the result disagree";
      cols += v[part].cols;
    }
    return expect(cols == v[op.out].cols, "the result is not as wide as its parts");
  }
  static bool has_kernel(const kernels::KernelTable& table, const O& /*op*/) {
    return table.concat != nullptr;
  }
  template <class L>
  static void launch(const L& l, const O& op) {
    kernels::ConcatArgs args;
    for (size_t i = 0; i < op.parts.size(); ++i) {
      if (op.parts[i] == kNoValue) continue;
      args.parts[i] = l.matrix(op.parts[i]);
      args.cols[i] = l.cols(op.parts[i]);
    }
    args.out = l.matrix(op.out);
    args.rows = l.rows(op.out);
    l.kernels().concat(l.stream(), args);
  }
};

struct MapLogitsOp {  // in: logits of a part of the vocabulary; offset: by token of the part
  ValueId in = kNoValue, offset = kNoValue, out = kNoValue;
  bool operator==(const MapLogitsOp&) const = default;
};

template <>
struct Definition<MapLogitsOp> {
  using O = MapLogitsOp;
  static constexpr const char* name = "map_logits";
  static constexpr bool row_wise = true;
  static constexpr Operand operands[] = {read("in", offsetof(O, in)),
                                         read("offset", offsetof(O, offset)),
                                         write("out", offsetof(O, out))};
  static std::string shape(const Shapes& v, const O& op) {
    return expect(v.same_rows(op.in, op.out) && v.is_vector(op.offset, v[op.in].cols) &&
                      v[op.in].cols <= v[op.out].cols && v[op.in].dtype == DType::kFloat32 &&
                      v[op.out].dtype == DType::kFloat32,
                  "logits, offsets and result disagree");
  }
  static bool has_kernel(const kernels::KernelTable& table, const O& /*op*/) {
    return table.map_logits != nullptr;
  }
  template <class L>
  static void launch(const L& l, const O& op) {
    kernels::MapLogitsArgs args;
    args.in = l.matrix(op.in);
    args.offset = l.vector(op.offset);
    args.out = l.matrix(op.out);
    args.small = l.cols(op.in);
    args.vocab = l.cols(op.out);
    args.rows = l.rows(op.out);
    l.kernels().map_logits(l.stream(), args);
  }
};

}  // namespace refrain::worker
