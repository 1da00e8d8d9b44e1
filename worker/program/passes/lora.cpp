#include "worker/program/passes/lora.h"

#include <algorithm>

#include "worker/program/passes/rewrite.h"

namespace refrain::worker {
namespace {

// "a.b.q_proj.weight" -> "a.b.q_proj"; the head may read the embeddings' tensor.
std::string module_of(const LinearOp& linear, const WeightPart& part) {
  if (linear.parallel == Parallel::kVocab) return "lm_head";
  return part.tensor.substr(0, part.tensor.rfind('.'));
}

bool is_target(const LinearOp& linear, const Value& weight) {
  if (linear.parallel == Parallel::kVocab) return true;
  const std::string module = module_of(linear, weight.parts.front());
  return std::ranges::find(lora_targets(), module.substr(module.rfind('.') + 1)) !=
         lora_targets().end();
}

class LoraRewriter {
 public:
  LoraRewriter(Program program, const LoraLimits& limits) : limits_(limits) {
    lora_.program = std::move(program);
  }

  LoraProgram rewrite() {
    const std::vector<Op> before = lora_.program.ops;
    lora_.ranks = zeroed("lora.ranks", DType::kInt32, limits_.places, 0);  // no part has an adapter
    std::vector<Op>& ops = lora_.program.ops;
    ops.clear();
    for (const Op& op : before) {
      const auto* linear = std::get_if<LinearOp>(&op);
      if (linear != nullptr && is_target(*linear, lora_.program.value(linear->weight))) {
        add_rows(ops);
        add_adapters(*linear, ops);
      } else if (const auto* embed = std::get_if<EmbedOp>(&op)) {
        add_rows(ops);
        add_embedding(*embed, ops);
      } else {
        ops.push_back(op);
      }
    }
    return std::move(lora_);
  }

 private:
  ValueId state(std::string name, DType dtype, int64_t rows, int64_t cols) {
    return add_value(lora_.program, {.name = std::move(name),
                                     .kind = ValueKind::kState,
                                     .dtype = dtype,
                                     .rows = Dim::constant(rows),
                                     .cols = cols,
                                     .storage = Storage::kDevice});
  }
  ValueId zeroed(std::string name, DType dtype, int64_t rows, int64_t cols) {
    const ValueId id = state(std::move(name), dtype, rows, cols);
    lora_.program.values[static_cast<size_t>(id)].zeroed = true;
    return id;
  }
  // Where lora_linear multiplies the columns of all places, those that no adapter has filled must
  // be numbers.
  ValueId state_b(const Value& out) {
    return zeroed(out.name + ".lora_b", out.dtype, out.cols,
                  int64_t{limits_.places} * limits_.max_rank);
  }
  ValueId activation(std::string name, DType dtype, Dim rows, int64_t cols) {
    return add_value(lora_.program,
                     {.name = std::move(name), .dtype = dtype, .rows = rows, .cols = cols});
  }

  // Once, before the first op that asks for it.
  void add_rows(std::vector<Op>& ops) {
    if (rows_.of_tokens != kNoValue) return;
    const PrepareInputsOp& prepare = first_op(ops);
    rows_.query_start = prepare.query_start;
    rows_.row_slot = prepare.row_slot;
    rows_.sample_slot = prepare.sample_slot == kNoValue ? prepare.row_slot : prepare.sample_slot;
    rows_.params = prepare.params;
    rows_.of_tokens = activation("lora.of_tokens", DType::kInt32, Dim::tokens(), 1);
    const Dim samples = lora_.program.value(rows_.sample_slot).rows;
    rows_.of_samples = activation("lora.of_samples", DType::kInt32, samples, 1);
    rows_.token_groups =
        activation("lora.token_groups", DType::kInt32, Dim::tokens(), kLoraGroupCols);
    rows_.sample_groups = activation("lora.sample_groups", DType::kInt32, samples, kLoraGroupCols);
    ops.emplace_back(rows_);
  }

  static const PrepareInputsOp& first_op(const std::vector<Op>& ops) {
    return std::get<PrepareInputsOp>(ops.front());
  }

  // `parts` columns of `ranks` for the adapters of what defines `out`.
  LoraLinear take_columns(const Value& out, int32_t parts) {
    LoraLinear of;
    const bool tokens = out.rows == lora_.program.value(rows_.of_tokens).rows;
    of.adapter = tokens ? rows_.of_tokens : rows_.of_samples;
    of.groups = tokens ? rows_.token_groups : rows_.sample_groups;
    of.ranks = lora_.ranks;
    of.parts = parts;
    of.max_rank = limits_.max_rank;
    int64_t& num_modules = lora_.program.values[static_cast<size_t>(lora_.ranks)].cols;
    of.first = static_cast<int32_t>(num_modules);
    num_modules += parts;
    return of;
  }

  // `out` as it is before the expand, which takes over its storage.
  ValueId plain_value(Value out) {
    out.name += ".plain";
    out.kind = ValueKind::kActivation;
    return add_value(lora_.program, std::move(out));
  }

  // Each rank gives what its own tokens' columns of A come to, with all of B.
  void add_embedding(EmbedOp embed, std::vector<Op>& ops) {
    const Value table = lora_.program.value(embed.table), out = lora_.program.value(embed.out);
    const LoraLinear of = take_columns(out, 1);
    const int64_t ranks = int64_t{limits_.places} * of.max_rank;
    LoraEmbedOp shrink{
        .ids = embed.ids, .of = of, .vocab_begin = embed.vocab_begin, .vocab_end = embed.vocab_end};
    shrink.a = state(out.name + ".lora_a", out.dtype, ranks, table.rows.scale);
    shrink.out = activation(out.name + ".lora_shrunk", DType::kFloat32, out.rows, of.max_rank);
    LoraExpandOp expand{.in = shrink.out, .out = embed.out, .of = of};
    expand.b = state_b(out);
    expand.part_end[0] = static_cast<int32_t>(out.cols);
    expand.value = embed.out = plain_value(out);
    const WeightPart& from = table.parts.front();
    lora_.targets.push_back({.module = from.tensor.substr(0, from.tensor.rfind('.')),
                             .rows = from.tensor_cols,
                             .cols = from.tensor_rows,
                             .row_begin = 0,
                             .row_end = from.tensor_cols,
                             .col_begin = from.row_begin,
                             .col_end = from.row_end,
                             .a = shrink.a,
                             .b = expand.b,
                             .a_row = 0,
                             .b_begin = 0,
                             .b_rows = out.cols,
                             .rank_column = of.first,
                             .by_token = true,
                             .weight = from});
    ops.emplace_back(shrink);
    ops.emplace_back(embed);
    ops.emplace_back(expand);
  }

  void add_adapters(LinearOp linear, std::vector<Op>& ops) {
    const Value weight = lora_.program.value(linear.weight), out = lora_.program.value(linear.out);
    const LoraLinear of = take_columns(out, static_cast<int32_t>(weight.parts.size()));
    const int64_t width = int64_t{of.parts} * of.max_rank;

    LoraShrinkOp shrink{.in = linear.in, .of = of};
    shrink.a = state(out.name + ".lora_a", lora_.program.value(linear.in).dtype,
                     limits_.places * width, weight.cols);
    shrink.out = activation(out.name + ".lora_shrunk", DType::kFloat32, out.rows, width);
    LoraExpandOp expand{.in = shrink.out, .out = linear.out, .of = of};
    expand.b = state_b(out);
    expand.value = linear.out = plain_value(out);

    int64_t begin = 0;
    for (int32_t part = 0; part < of.parts; ++part) {
      const WeightPart& from = weight.parts[static_cast<size_t>(part)];
      const int64_t cols = from.row_end - from.row_begin + from.pad_rows;
      lora_.targets.push_back({.module = module_of(linear, from),
                               .rows = from.tensor_rows,
                               .cols = from.tensor_cols,
                               .row_begin = from.row_begin,
                               .row_end = from.row_end,
                               .col_begin = from.col_begin,
                               .col_end = from.col_end,
                               .a = shrink.a,
                               .b = expand.b,
                               .a_row = int64_t{part} * of.max_rank,
                               .b_begin = begin,
                               .b_rows = cols,
                               .rank_column = of.first + part,
                               .weight = from,
                               .norm = weight.norm});
      begin += cols;
      expand.part_end[static_cast<size_t>(part)] = static_cast<int32_t>(begin);
    }
    // The linear takes its weights from memory while the shrink before it runs.
    ops.emplace_back(shrink);
    ops.emplace_back(linear);
    ops.emplace_back(expand);
  }

  LoraLimits limits_;
  LoraProgram lora_;
  LoraRowsOp rows_;
};

}  // namespace

LoraProgram add_lora(Program program, const LoraLimits& limits) {
  return LoraRewriter(std::move(program), limits).rewrite();
}

const std::vector<std::string>& lora_targets() {
  static const std::vector<std::string> kTargets = {"q_proj",    "k_proj",  "v_proj",   "o_proj",
                                                    "gate_proj", "up_proj", "down_proj"};
  return kTargets;
}

}  // namespace refrain::worker
