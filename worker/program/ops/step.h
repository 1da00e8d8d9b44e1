#pragma once
// The ends of a language model's step: from the step block to what the ops read, and from hidden
// states to tokens. Sizes: S slots and a reserved one, T tokens, R requests, N logit rows: as many
// as requests, or with speculation (drafts.h) an extent of their own.

#include <array>

#include "worker/program/op_def.h"

namespace refrain::worker {

// What the host sends at most with one step.
struct StepLimits {
  int32_t max_tokens = 0, max_reqs = 0, max_block_updates = 0;
  int32_t max_history = 0;  // with speculation: tokens that slots begin with
  bool operator==(const StepLimits&) const = default;
  kernels::StepLayout layout() const {
    return kernels::make_step_layout(max_tokens, max_reqs, max_block_updates, max_history);
  }
};

struct PrepareInputsOp {
  ValueId block = kNoValue, block_copy = kNoValue;  // the step block: pinned; its copy here
  ValueId turn = kNoValue;                          // state: of the block read last
  // Of the slots.
  ValueId last_token = kNoValue, params = kNoValue, output_count = kNoValue, in_prompt = kNoValue;
  // Of the paged state groups, one each.
  using OfGroups = std::array<ValueId, kernels::kMaxPagedGroups>;
  static constexpr OfGroups no_groups() {
    OfGroups none{};
    none.fill(kNoValue);
    return none;
  }
  OfGroups block_table = no_groups(), kv_slots = no_groups();
  // What the step's ops read (kernels::BatchInputs).
  ValueId live_tokens = kNoValue, live_reqs = kNoValue, live_logits = kNoValue;
  ValueId token_ids = kNoValue, positions = kNoValue;
  ValueId query_start = kNoValue, seq_lens = kNoValue, row_slot = kNoValue, logit_index = kNoValue,
          row_flags = kNoValue;
  // With speculation: of the slots, and of the logit rows.
  ValueId history = kNoValue, history_range = kNoValue;
  ValueId live_samples = kNoValue, sample_start = kNoValue, sample_slot = kNoValue,
          sample_lens = kNoValue, sample_flags = kNoValue;
  StepLimits limits;
  bool operator==(const PrepareInputsOp&) const = default;
};

template <>
struct Definition<PrepareInputsOp> {
  using O = PrepareInputsOp;
  static constexpr const char* name = "prepare_inputs";
  static constexpr Operand operands[] = {
      read("block", offsetof(O, block)),
      scratch("block_copy", offsetof(O, block_copy)),
      state("turn", offsetof(O, turn)),
      read("last_token", offsetof(O, last_token)),
      optional_state("block_table", offsetof(O, block_table)),
      state("params", offsetof(O, params)),
      state("output_count", offsetof(O, output_count)),
      state("in_prompt", offsetof(O, in_prompt)),
      write("live_tokens", offsetof(O, live_tokens)),
      write("live_reqs", offsetof(O, live_reqs)),
      write("live_logits", offsetof(O, live_logits)),
      write("token_ids", offsetof(O, token_ids)),
      write("positions", offsetof(O, positions)),
      optional_write("kv_slots", offsetof(O, kv_slots)),
      write("query_start", offsetof(O, query_start)),
      write("seq_lens", offsetof(O, seq_lens)),
      write("row_slot", offsetof(O, row_slot)),
      write("logit_index", offsetof(O, logit_index)),
      write("row_flags", offsetof(O, row_flags)),
      optional_state("block_table1", place_in(offsetof(O, block_table), 1)),
      optional_write("kv_slots1", place_in(offsetof(O, kv_slots), 1)),
      optional_state("block_table2", place_in(offsetof(O, block_table), 2)),
      optional_write("kv_slots2", place_in(offsetof(O, kv_slots), 2)),
      optional_state("block_table3", place_in(offsetof(O, block_table), 3)),
      optional_write("kv_slots3", place_in(offsetof(O, kv_slots), 3)),
      optional_state("history", offsetof(O, history)),
      optional_state("history_range", offsetof(O, history_range)),
      optional_write("live_samples", offsetof(O, live_samples)),
      optional_write("sample_start", offsetof(O, sample_start)),
      optional_write("sample_slot", offsetof(O, sample_slot)),
      optional_write("sample_lens", offsetof(O, sample_lens)),
      optional_write("sample_flags", offsetof(O, sample_flags))};
  static_assert(kernels::kMaxPagedGroups == 4);
  static bool groups_agree(const Shapes& v, const O& op) {
    for (size_t i = 0; i < op.block_table.size(); ++i) {
      const ValueId table = op.block_table[i], slots = op.kv_slots[i];
      if ((table == kNoValue) != (slots == kNoValue)) return false;
      if (table == kNoValue) continue;
      if (i > 0 && op.block_table[i - 1] == kNoValue) return false;
      if (!v.same_rows(op.last_token, table) || !v.same_rows(op.token_ids, slots) ||
          v[table].cols != v[op.block_table[0]].cols) {
        return false;
      }
    }
    return true;
  }
  static bool speculation_agrees(const Shapes& v, const O& op) {
    if (op.history == kNoValue) return v.same_rows(op.seq_lens, op.logit_index);
    return v.same_rows(op.history, op.history_range) && v.same_rows(op.history, op.last_token) &&
           v.same_rows(op.sample_start, op.query_start) &&
           v.same_rows(op.sample_slot, op.logit_index) &&
           v.same_rows(op.sample_slot, op.sample_lens) &&
           v.same_rows(op.sample_slot, op.sample_flags);
  }
  static std::string shape(const Shapes& v, const O& op) {
    return expect(
        groups_agree(v, op) && v[op.block].storage == Storage::kPinned &&
            v[op.block].cols == static_cast<int64_t>(op.limits.layout().total) &&
            v[op.block_copy].cols == v[op.block].cols && v.same_rows(op.token_ids, op.positions) &&
            v.same_rows(op.seq_lens, op.row_slot) && speculation_agrees(v, op) &&
            v.same_rows(op.seq_lens, op.row_flags) && v.same_rows(op.last_token, op.params),
        "step block, tokens, requests and slots disagree");
  }
  static bool has_kernel(const kernels::KernelTable& table, const O& /*op*/) {
    return table.prepare_inputs != nullptr;
  }
  template <class L>
  static void launch(const L& l, const O& op) {
    kernels::PrepareInputsArgs args;
    for (uint32_t turn = 0; turn < kernels::kTurns; ++turn)
      args.blocks[turn] = l.at(op.block, turn);
    args.block_copy = l.at(op.block_copy);
    args.layout = op.limits.layout();
    args.slots.num_slots = static_cast<int32_t>(l.value(op.last_token).rows.scale) - 1;
    args.slots.vocab_size = l.cols(op.output_count);
    args.slots.last_token = l.at(op.last_token);
    args.slots.params = l.at(op.params);
    args.slots.output_count = l.at(op.output_count);
    args.slots.in_prompt = l.at(op.in_prompt);
    args.inputs.turn = l.at(op.turn);
    args.inputs.live_tokens = l.at(op.live_tokens);
    args.inputs.live_reqs = l.at(op.live_reqs);
    args.inputs.live_logits = l.at(op.live_logits);
    args.inputs.token_ids = l.at(op.token_ids);
    args.inputs.positions = l.at(op.positions);
    args.inputs.query_start = l.at(op.query_start);
    args.inputs.seq_lens = l.at(op.seq_lens);
    args.inputs.row_slot = l.at(op.row_slot);
    args.inputs.logit_index = l.at(op.logit_index);
    args.inputs.row_flags = l.at(op.row_flags);
    if (op.history != kNoValue) {
      args.slots.history_cols = l.cols(op.history);
      args.slots.history = l.at(op.history);
      args.slots.history_range = l.at(op.history_range);
      args.inputs.live_samples = l.at(op.live_samples);
      args.inputs.sample_start = l.at(op.sample_start);
      args.inputs.sample_slot = l.at(op.sample_slot);
      args.inputs.sample_lens = l.at(op.sample_lens);
      args.inputs.sample_flags = l.at(op.sample_flags);
      args.samples = l.rows(op.sample_slot).padded;
    }
    args.tokens = l.rows(op.token_ids).padded;
    args.reqs = l.rows(op.row_slot).padded;
    for (size_t i = 0; i < op.block_table.size() && op.block_table[i] != kNoValue; ++i) {
      args.paged[i] = {l.at(op.block_table[i]), l.at(op.kv_slots[i])};
      args.max_blocks = l.cols(op.block_table[i]);
      ++args.num_paged;
    }
    args.block_size = l.block_size();
    args.padded_seq_len = l.padded_seq_len();
    l.kernels().prepare_inputs(l.stream(), args);
  }
};

struct SelectRowsOp {  // one row a request: the hidden state that gives its logits
  ValueId in = kNoValue, index = kNoValue, out = kNoValue;
  bool operator==(const SelectRowsOp&) const = default;
};

template <>
struct Definition<SelectRowsOp> {
  using O = SelectRowsOp;
  static constexpr const char* name = "select_rows";
  static constexpr Operand operands[] = {read("in", offsetof(O, in)),
                                         read("index", offsetof(O, index)),
                                         write("out", offsetof(O, out))};
  static std::string shape(const Shapes& v, const O& op) {
    return expect(v[op.in].cols == v[op.out].cols && v[op.in].dtype == v[op.out].dtype &&
                      v.same_rows(op.index, op.out),
                  "input, index and result disagree");
  }
  static bool has_kernel(const kernels::KernelTable& table, const O& /*op*/) {
    return table.select_rows != nullptr;
  }
  template <class L>
  static void launch(const L& l, const O& op) {
    l.kernels().select_rows(l.stream(), {l.matrix(op.in), l.at(op.index), l.matrix(op.out),
                                         l.cols(op.out), l.rows(op.out)});
  }
};

// Rows of a value that has one for each of `like` in every shard.
inline Dim of_shards(const Shapes& v, ValueId like, int64_t shards) {
  Dim rows = v[like].rows;
  rows.scale *= shards;
  return rows;
}

struct BestTokensOp {  // best: [R, kBestParts * 2] of a rank's logits, columns first_token on
  ValueId logits = kNoValue, row_slot = kNoValue, row_flags = kNoValue, params = kNoValue,
          best = kNoValue;
  int64_t first_token = 0, num_tokens = 0;
  bool operator==(const BestTokensOp&) const = default;
};

template <>
struct Definition<BestTokensOp> {
  using O = BestTokensOp;
  static constexpr const char* name = "best_tokens";
  static constexpr Operand operands[] = {
      read("logits", offsetof(O, logits)), read("row_slot", offsetof(O, row_slot)),
      read("row_flags", offsetof(O, row_flags)), read("params", offsetof(O, params)),
      write("best", offsetof(O, best))};
  static std::string tokens(const O& op) {
    return fmt::format("tokens={}:{}", op.first_token, op.first_token + op.num_tokens);
  }
  static constexpr Attribute attributes[] = {of_rank(shown_as<O, &tokens>())};
  // `like`: one row for each of its rows and a shard.
  static bool is_best(const Shapes& v, ValueId id, ValueId like, int64_t shards) {
    return v[id].dtype == DType::kFloat32 && v[id].rows == of_shards(v, like, shards) &&
           v[id].cols > 0 && v[id].cols % 2 == 0;
  }
  static std::string shape(const Shapes& v, const O& op) {
    return expect(v[op.logits].dtype == DType::kFloat32 && v.same_rows(op.logits, op.row_slot) &&
                      v.same_rows(op.row_flags, op.row_slot) &&
                      is_best(v, op.best, op.row_slot, 1) &&
                      v[op.best].cols == int64_t{2} * kernels::kBestParts && op.first_token >= 0 &&
                      op.num_tokens >= 0 && op.num_tokens <= v[op.logits].cols,
                  "logits, tokens and result disagree");
  }
  static bool has_kernel(const kernels::KernelTable& table, const O& /*op*/) {
    return table.best_tokens != nullptr;
  }
  template <class L>
  static void launch(const L& l, const O& op) {
    kernels::BestTokensArgs args;
    args.logits = l.matrix(op.logits);
    args.first_token = static_cast<int32_t>(op.first_token);
    args.num_tokens = static_cast<int32_t>(op.num_tokens);
    args.best = l.at(op.best);
    args.inputs.row_slot = l.at(op.row_slot);
    args.inputs.row_flags = l.at(op.row_flags);
    args.params = l.at(op.params);
    args.rows = l.rows(op.row_slot);
    l.kernels().best_tokens(l.stream(), args);
  }
};

struct SampleOp {  // rows are logit rows. logits: [shards][N][cols] float32; cols is
                   // SampleArgs::shard_cols, and columns at or beyond vocab_size (padding of the
                   // last shards) are not tokens. best: what the ranks' BestTokensOp found,
                   // gathered, or a FusedLinearOp; kNoValue: one shard
  ValueId logits = kNoValue, best = kNoValue;
  ValueId turn = kNoValue, seq_lens = kNoValue, row_slot = kNoValue, row_flags = kNoValue;
  // Of the slots; no last_token where an AcceptDraftsOp says which tokens are taken.
  ValueId params = kNoValue, in_prompt = kNoValue, bias_token = kNoValue, bias_value = kNoValue,
          allowed_mask = kNoValue, last_token = kNoValue, output_count = kNoValue;
  ValueId grammar_mask = kNoValue, grammar_ready = kNoValue;  // kernels::GrammarMaskInputs
  ValueId scratch = kNoValue;
  // What the host reads (kernels::SampleOutputs).
  ValueId out_turn = kNoValue, tokens = kNoValue, logprobs = kNoValue, top_tokens = kNoValue,
          top_logprobs = kNoValue;
  int64_t shards = 1, vocab_size = 0;
  int64_t tells_logits = 0, tells_processed = 0;  // as in kernels::SampleArgs
  bool operator==(const SampleOp&) const = default;
};

template <>
struct Definition<SampleOp> {
  using O = SampleOp;
  static constexpr const char* name = "sample";
  static constexpr Operand operands[] = {read("logits", offsetof(O, logits)),
                                         optional_read("best", offsetof(O, best)),
                                         read("turn", offsetof(O, turn)),
                                         read("seq_lens", offsetof(O, seq_lens)),
                                         read("row_slot", offsetof(O, row_slot)),
                                         read("row_flags", offsetof(O, row_flags)),
                                         read("params", offsetof(O, params)),
                                         read("in_prompt", offsetof(O, in_prompt)),
                                         read("bias_token", offsetof(O, bias_token)),
                                         read("bias_value", offsetof(O, bias_value)),
                                         read("allowed_mask", offsetof(O, allowed_mask)),
                                         optional_read("grammar_mask", offsetof(O, grammar_mask)),
                                         optional_read("grammar_ready", offsetof(O, grammar_ready)),
                                         optional_state("last_token", offsetof(O, last_token)),
                                         state("output_count", offsetof(O, output_count)),
                                         worker::scratch("scratch", offsetof(O, scratch)),
                                         write("tokens", offsetof(O, tokens)),
                                         write("logprobs", offsetof(O, logprobs)),
                                         write("top_tokens", offsetof(O, top_tokens)),
                                         write("top_logprobs", offsetof(O, top_logprobs)),
                                         write("out_turn", offsetof(O, out_turn))};
  static constexpr Attribute attributes[] = {
      shown<"shards", &O::shards>(), shown<"vocab_size", &O::vocab_size>(),
      shown_unless<"tells_logits", &O::tells_logits, int64_t{0}>(),
      shown_unless<"tells_processed", &O::tells_processed, int64_t{0}>()};
  // A draft model samples none of the rows that follow one.
  static bool grammar_agrees(const Shapes& v, const O& op) {
    if (op.grammar_mask == kNoValue) return op.grammar_ready == kNoValue;
    return op.grammar_ready != kNoValue && v[op.grammar_mask].storage == Storage::kPinned &&
           v.same_rows(op.grammar_mask, op.row_slot) &&
           v.same_rows(op.grammar_ready, op.row_slot) &&
           v[op.grammar_mask].cols == v[op.allowed_mask].cols;
  }
  static std::string shape(const Shapes& v, const O& op) {
    const Value& logits = v[op.logits];
    return expect(
        logits.dtype == DType::kFloat32 && op.shards > 0 &&
            logits.rows == of_shards(v, op.row_slot, op.shards) &&
            logits.cols * op.shards >= op.vocab_size &&
            (op.best == kNoValue
                 ? op.shards == 1
                 : Definition<BestTokensOp>::is_best(v, op.best, op.row_slot, op.shards)) &&
            v.same_rows(op.row_slot, op.tokens) && v[op.tokens].storage == Storage::kPinned &&
            v[op.out_turn].storage == Storage::kPinned && v[op.scratch].cols == op.vocab_size &&
            grammar_agrees(v, op) && v[op.output_count].cols == op.vocab_size,
        "shards, logits, best tokens, outputs and vocabulary disagree");
  }
  static bool has_kernel(const kernels::KernelTable& table, const O& /*op*/) {
    return table.sample != nullptr;
  }
  template <class L>
  static void launch(const L& l, const O& op) {
    kernels::SampleArgs args;
    args.rows = l.rows(op.row_slot);
    args.logits = l.at(op.logits);
    args.shards = static_cast<int32_t>(op.shards);
    args.shard_cols = l.value(op.logits).cols;
    args.shard_stride = args.shard_cols * args.rows.padded;
    args.best = l.at(op.best);
    args.best_parts = op.best == kNoValue ? 0 : l.cols(op.best) / 2;
    args.vocab_size = static_cast<int32_t>(op.vocab_size);
    args.tells_logits = op.tells_logits != 0;
    args.tells_processed = op.tells_processed != 0;
    args.inputs.turn = l.at(op.turn);
    args.inputs.seq_lens = l.at(op.seq_lens);
    args.inputs.row_slot = l.at(op.row_slot);
    args.inputs.row_flags = l.at(op.row_flags);
    args.slots.vocab_size = l.cols(op.output_count);
    args.slots.last_token = l.at(op.last_token);
    args.slots.params = l.at(op.params);
    args.slots.output_count = l.at(op.output_count);
    args.slots.in_prompt = l.at(op.in_prompt);
    args.slots.bias_token = l.at(op.bias_token);
    args.slots.bias_value = l.at(op.bias_value);
    args.slots.allowed_mask = l.at(op.allowed_mask);
    args.scratch = l.at(op.scratch);
    for (uint32_t turn = 0; turn < kernels::kTurns; ++turn) {
      args.grammar[turn] = {l.at(op.grammar_mask, turn), l.at(op.grammar_ready, turn)};
      args.outputs[turn] = {l.at(op.out_turn, turn), l.at(op.tokens, turn), l.at(op.logprobs, turn),
                            l.at(op.top_tokens, turn), l.at(op.top_logprobs, turn)};
    }
    l.kernels().sample(l.stream(), args);
  }
};

}  // namespace refrain::worker
