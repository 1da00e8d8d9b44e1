#pragma once
// LoRA: a linear's or embedding's result plus what each row's adapter adds to it. The pass add_lora
// puts these ops behind them; a Program without them serves batches without an adapter.

#include <algorithm>
#include <array>

#include "worker/program/op_def.h"
#include "worker/program/ops/linear.h"

namespace refrain::worker {

// Of a value of LoraGroups that has the rows of `adapter`; its type is kInt32.
inline constexpr int64_t kLoraGroupCols =
    kernels::LoraGroup::kPerRow * sizeof(kernels::LoraGroup) / sizeof(int32_t);

struct LoraRowsOp {  // sample_slot: as row_slot where a request has one row of logits
  ValueId query_start = kNoValue, row_slot = kNoValue, sample_slot = kNoValue, params = kNoValue;
  ValueId of_tokens = kNoValue, of_samples = kNoValue;
  ValueId token_groups = kNoValue, sample_groups = kNoValue;
  bool operator==(const LoraRowsOp&) const = default;
};

template <>
struct Definition<LoraRowsOp> {
  using O = LoraRowsOp;
  static constexpr const char* name = "lora_rows";
  static constexpr bool ends_itself = true;
  static constexpr Operand operands[] = {read("query_start", offsetof(O, query_start)),
                                         read("row_slot", offsetof(O, row_slot)),
                                         read("sample_slot", offsetof(O, sample_slot)),
                                         read("params", offsetof(O, params)),
                                         write("of_tokens", offsetof(O, of_tokens)),
                                         write("of_samples", offsetof(O, of_samples)),
                                         write("token_groups", offsetof(O, token_groups)),
                                         write("sample_groups", offsetof(O, sample_groups))};
  static std::string shape(const Shapes& v, const O& op) {
    return expect(v[op.of_tokens].cols == 1 && v.same_rows(op.of_samples, op.sample_slot) &&
                      v.same_rows(op.of_tokens, op.token_groups) &&
                      v.same_rows(op.of_samples, op.sample_groups) &&
                      v[op.token_groups].cols == kLoraGroupCols &&
                      v[op.sample_groups].cols == kLoraGroupCols &&
                      v[op.of_tokens].dtype == DType::kInt32 &&
                      v[op.of_samples].dtype == DType::kInt32,
                  "tokens, logit rows and results disagree");
  }
  static bool has_kernel(const kernels::KernelTable& table, const O& /*op*/) {
    return table.lora_rows != nullptr;
  }
  template <class L>
  static void launch(const L& l, const O& op) {
    kernels::LoraRowsArgs args;
    args.query_start = l.at(op.query_start);
    args.row_slot = l.at(op.row_slot);
    args.sample_slot = l.at(op.sample_slot);
    args.params = l.at(op.params);
    args.of_tokens = l.at(op.of_tokens);
    args.of_samples = l.at(op.of_samples);
    args.token_groups = l.at(op.token_groups);
    args.sample_groups = l.at(op.sample_groups);
    args.tokens = l.rows(op.of_tokens);
    args.reqs = l.rows(op.row_slot);
    args.samples = l.rows(op.of_samples);
    l.kernels().lora_rows(l.stream(), args);
  }
};

// Of both products: where a linear's adapters are. `first`: its first column in `ranks`.
struct LoraLinear {
  ValueId adapter = kNoValue, groups = kNoValue, ranks = kNoValue;
  int32_t first = 0, parts = 1, max_rank = 0;
  bool operator==(const LoraLinear&) const = default;

  template <class L>
  kernels::LoraPlaces places(const L& l) const {
    kernels::LoraPlaces places;
    const int32_t* all = l.at(ranks);
    places.ranks = all + first;
    places.rank_stride = l.cols(ranks);
    places.parts = parts;
    places.max_rank = max_rank;
    places.count = static_cast<int32_t>(l.rows(ranks).padded);
    return places;
  }
};

// Tells the modules apart, no launches.
template <class O>
constexpr Attribute lora_module() {
  return {
      [](const void* op) { return fmt::format("module={}", static_cast<const O*>(op)->of.first); },
      [](void* op) { static_cast<O*>(op)->of.first = 0; }};
}

inline std::string lora_parts(const LoraLinear& of,
                              const std::array<int32_t, kernels::kMaxLoraParts>& part_end) {
  std::string text = "ends=";
  for (int32_t part = 0; part < of.parts; ++part)
    text += fmt::format("{}{}", part == 0 ? "" : "/", part_end[static_cast<size_t>(part)]);
  return text;
}

struct LoraShrinkOp {
  ValueId in = kNoValue, a = kNoValue, out = kNoValue;
  LoraLinear of;
  bool operator==(const LoraShrinkOp&) const = default;
};

template <>
struct Definition<LoraShrinkOp> {
  using O = LoraShrinkOp;
  static constexpr const char* name = "lora_shrink";
  static constexpr bool row_wise = true;
  static constexpr Operand operands[] = {read("in", offsetof(O, in)),
                                         early_read("adapter", offsetof(O, of.adapter)),
                                         early_read("groups", offsetof(O, of.groups)),
                                         read("a", offsetof(O, a)),
                                         early_read("ranks", offsetof(O, of.ranks)),
                                         write("out", offsetof(O, out))};
  static std::string parts(const O& op) {
    return fmt::format("parts={}x{}", op.of.parts, op.of.max_rank);
  }
  static constexpr Attribute attributes[] = {lora_module<O>(), shown_as<O, &parts>()};
  static std::string shape(const Shapes& v, const O& op) {
    const int64_t width = int64_t{op.of.parts} * op.of.max_rank;
    return expect(v[op.in].dtype == v[op.a].dtype && v[op.in].cols == v[op.a].cols &&
                      v.same_rows(op.in, op.out) && v.same_rows(op.in, op.of.adapter) &&
                      v[op.out].cols == width && v[op.out].dtype == DType::kFloat32 &&
                      v[op.a].rows.scale % width == 0,
                  "input, adapters and result disagree");
  }
  static bool has_kernel(const kernels::KernelTable& table, const O& /*op*/) {
    return table.lora_shrink != nullptr;
  }
  template <class L>
  static void launch(const L& l, const O& op) {
    kernels::LoraShrinkArgs args;
    args.in = l.matrix(op.in);
    args.adapter = l.at(op.of.adapter);
    args.groups = l.at(op.of.groups);
    args.a = l.at(op.a);
    args.places = op.of.places(l);
    args.out = l.at(op.out);
    args.cols = l.cols(op.in);
    args.rows = l.rows(op.in);
    l.kernels().lora_shrink(l.stream(), args);
  }
};

struct LoraEmbedOp {
  ValueId ids = kNoValue, a = kNoValue, out = kNoValue;
  LoraLinear of;
  int64_t vocab_begin = 0, vocab_end = 0;  // rows this rank holds
  bool operator==(const LoraEmbedOp&) const = default;
};

template <>
struct Definition<LoraEmbedOp> {
  using O = LoraEmbedOp;
  static constexpr const char* name = "lora_embed";
  static constexpr Operand operands[] = {
      read("ids", offsetof(O, ids)), read("adapter", offsetof(O, of.adapter)),
      read("a", offsetof(O, a)), read("ranks", offsetof(O, of.ranks)),
      write("out", offsetof(O, out))};
  static std::string vocab(const O& op) {
    return fmt::format("vocab={}:{}", op.vocab_begin, op.vocab_end);
  }
  static constexpr Attribute attributes[] = {lora_module<O>(), of_rank(shown_as<O, &vocab>())};
  static std::string shape(const Shapes& v, const O& op) {
    const int64_t held = op.vocab_end - op.vocab_begin;
    return expect(v.same_rows(op.ids, op.out) && v.same_rows(op.ids, op.of.adapter) &&
                      v[op.out].cols == op.of.max_rank && v[op.out].dtype == DType::kFloat32 &&
                      v[op.a].rows.scale % op.of.max_rank == 0 && op.of.parts == 1 && held >= 0 &&
                      held <= v[op.a].cols,
                  "ids, adapters and result disagree");
  }
  static bool has_kernel(const kernels::KernelTable& table, const O& /*op*/) {
    return table.lora_embed != nullptr;
  }
  template <class L>
  static void launch(const L& l, const O& op) {
    const kernels::Matrix a = l.matrix(op.a);
    kernels::LoraEmbedArgs args;
    args.ids = l.at(op.ids);
    args.adapter = l.at(op.of.adapter);
    args.a = a.data;
    args.dtype = a.dtype;
    args.places = op.of.places(l);
    args.vocab_rows = static_cast<int32_t>(l.cols(op.a));
    args.vocab_begin = static_cast<int32_t>(op.vocab_begin);
    args.vocab_end = static_cast<int32_t>(op.vocab_end);
    args.out = l.at(op.out);
    args.rows = l.rows(op.out);
    l.kernels().lora_embed(l.stream(), args);
  }
};

struct LoraExpandOp {
  ValueId in = kNoValue, b = kNoValue, value = kNoValue, out = kNoValue;
  LoraLinear of;
  std::array<int32_t, kernels::kMaxLoraParts> part_end = {};
  bool operator==(const LoraExpandOp&) const = default;
};

template <>
struct Definition<LoraExpandOp> {
  using O = LoraExpandOp;
  static constexpr const char* name = "lora_expand";
  static constexpr bool row_wise = true;
  static constexpr Operand operands[] = {read("in", offsetof(O, in)),
                                         early_read("adapter", offsetof(O, of.adapter)),
                                         early_read("groups", offsetof(O, of.groups)),
                                         early_read("b", offsetof(O, b)),
                                         early_read("ranks", offsetof(O, of.ranks)),
                                         read("value", offsetof(O, value)),
                                         in_place("out", offsetof(O, out), offsetof(O, value))};
  static std::string parts(const O& op) { return lora_parts(op.of, op.part_end); }
  static constexpr Attribute attributes[] = {lora_module<O>(), of_rank(shown_as<O, &parts>())};
  static std::string shape(const Shapes& v, const O& op) {
    return expect(v.same_shape(op.value, op.out) && v[op.out].dtype == v[op.b].dtype &&
                      v.same_rows(op.in, op.out) && v.same_rows(op.in, op.of.adapter) &&
                      v[op.in].cols == int64_t{op.of.parts} * op.of.max_rank &&
                      v[op.out].cols == op.part_end[static_cast<size_t>(op.of.parts) - 1] &&
                      v[op.b].rows.scale == v[op.out].cols &&
                      v[op.b].cols == v[op.of.ranks].rows.scale * op.of.max_rank,
                  "input, adapters, value and result disagree");
  }
  static bool has_kernel(const kernels::KernelTable& table, const O& /*op*/) {
    return table.lora_expand != nullptr;
  }
  template <class L>
  static void launch(const L& l, const O& op) {
    kernels::LoraExpandArgs args;
    args.in = l.at(op.in);
    args.adapter = l.at(op.of.adapter);
    args.groups = l.at(op.of.groups);
    args.b = l.at(op.b);
    args.places = op.of.places(l);
    std::copy(op.part_end.begin(), op.part_end.end(), args.part_end);
    args.out = l.matrix(op.out);
    args.rows = l.rows(op.out);
    l.kernels().lora_expand(l.stream(), args);
  }
};

// Of up to 80 rows (lower_lora_rows): lora_shrink, linear and lora_expand as one op, and silu_mul.
struct LoraLinearOp {  // bias, residual may be kNoValue
  ValueId in = kNoValue, weight = kNoValue, bias = kNoValue, residual = kNoValue, a = kNoValue,
          b = kNoValue, shrunk = kNoValue, out = kNoValue;
  bool silu_mul = false;  // of the two halves of the result
  LoraLinear of;
  std::array<int32_t, kernels::kMaxLoraParts> part_end = {};
  bool operator==(const LoraLinearOp&) const = default;
};

template <>
struct Definition<LoraLinearOp> {
  using O = LoraLinearOp;
  static constexpr const char* name = "lora_linear";
  static constexpr bool row_wise = true, ends_all = true;
  static constexpr Operand operands[] = {read("in", offsetof(O, in)),
                                         read("weight", offsetof(O, weight)),
                                         of_rank(optional_read("bias", offsetof(O, bias))),
                                         of_rank(optional_read("residual", offsetof(O, residual))),
                                         early_read("adapter", offsetof(O, of.adapter)),
                                         early_read("a", offsetof(O, a)),
                                         early_read("b", offsetof(O, b)),
                                         early_read("ranks", offsetof(O, of.ranks)),
                                         write("shrunk", offsetof(O, shrunk)),
                                         write("out", offsetof(O, out))};
  static std::string parts(const O& op) { return lora_parts(op.of, op.part_end); }
  static constexpr Attribute attributes[] = {lora_module<O>(), of_rank(shown_as<O, &parts>()),
                                             flag<"silu_mul", &O::silu_mul>()};
  static std::string shape(const Shapes& v, const O& op) {
    const Value &weight = v[op.weight], &out = v[op.out];
    const int64_t width = int64_t{op.of.parts} * op.of.max_rank, n = weight.rows.scale;
    if (weight.kind != ValueKind::kWeight || v[op.in].cols != weight.cols ||
        v[op.in].rows != out.rows || n != out.cols * (op.silu_mul ? 2 : 1)) {
      return "input, weight and result disagree";
    }
    if (!v.is_vector(op.bias, out.cols) ||
        (op.residual != kNoValue && !v.same_shape(op.residual, op.out))) {
      return "bias, residual and result disagree";
    }
    if (op.silu_mul && (op.bias != kNoValue || op.residual != kNoValue))
      return "silu_mul takes no bias and no residual";
    return expect(v.same_rows(op.in, op.of.adapter) && v.same_rows(op.in, op.shrunk) &&
                      v[op.shrunk].cols == width * v[op.of.ranks].rows.scale &&
                      v[op.shrunk].dtype == DType::kBFloat16 && v[op.a].cols == weight.cols &&
                      v[op.a].rows.scale % width == 0 && v[op.b].rows.scale == n &&
                      v[op.b].cols == v[op.of.ranks].rows.scale * op.of.max_rank &&
                      op.part_end[static_cast<size_t>(op.of.parts) - 1] == n &&
                      v[op.a].dtype == v[op.in].dtype && v[op.b].dtype == v[op.in].dtype,
                  "input, adapters and result disagree");
  }
  static bool has_kernel(const kernels::KernelTable& table, const O& /*op*/) {
    return table.lora_linear != nullptr;
  }
  template <class L>
  static void launch(const L& l, const O& op) {
    kernels::LoraLinearArgs args;
    args.linear = Definition<LinearOp>::args(l, op);
    args.silu_mul = op.silu_mul;
    args.adapter = l.at(op.of.adapter);
    args.a = l.at(op.a);
    args.b = l.at(op.b);
    args.places = op.of.places(l);
    std::copy(op.part_end.begin(), op.part_end.end(), args.part_end);
    args.shrunk = l.at(op.shrunk);
    l.kernels().lora_linear(l.stream(), args);
  }
};

}  // namespace refrain::worker
