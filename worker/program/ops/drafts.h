#pragma once
// Speculation within a language model's step: where drafts come from, and what is kept of the
// tokens sampled behind them. Sizes as in step.h.

#include "worker/program/op_def.h"

namespace refrain::worker {

// What both ops that propose read of a step, and write.
template <class Args, class L, class O>
void set_proposal(Args& args, const L& l, const O& op) {
  args.ids = l.at(op.ids);
  args.out = l.at(op.out);
  args.num_drafts = l.at(op.num_drafts);
  args.inputs.turn = l.at(op.turn);
  args.inputs.query_start = l.at(op.query_start);
  args.inputs.row_slot = l.at(op.row_slot);
  args.inputs.row_flags = l.at(op.row_flags);
  for (uint32_t turn = 0; turn < kernels::kTurns; ++turn)
    args.grammar[turn] = {l.at(op.grammar_drafts, turn), l.at(op.grammar_drafts_ready, turn)};
  args.tokens = l.rows(op.ids);
  args.rows = l.rows(op.row_slot);
}

struct ProposeNgramOp {  // ids: [T] of prepare_inputs; out: the same with drafts
  ValueId ids = kNoValue, out = kNoValue, num_drafts = kNoValue;
  ValueId query_start = kNoValue, row_slot = kNoValue, row_flags = kNoValue;
  ValueId turn = kNoValue;
  ValueId params = kNoValue, history = kNoValue, history_range = kNoValue;  // of the slots
  ValueId grammar_drafts = kNoValue, grammar_drafts_ready = kNoValue;       // GrammarDraftInputs
  int64_t least = 1, most = 1;  // tokens that are looked up
  bool operator==(const ProposeNgramOp&) const = default;
};

template <>
struct Definition<ProposeNgramOp> {
  using O = ProposeNgramOp;
  static constexpr const char* name = "propose_ngram";
  static constexpr Operand operands[] = {
      read("ids", offsetof(O, ids)),
      read("query_start", offsetof(O, query_start)),
      read("row_slot", offsetof(O, row_slot)),
      read("row_flags", offsetof(O, row_flags)),
      read("turn", offsetof(O, turn)),
      read("params", offsetof(O, params)),
      read("history", offsetof(O, history)),
      read("history_range", offsetof(O, history_range)),
      read("grammar_drafts", offsetof(O, grammar_drafts)),
      read("grammar_drafts_ready", offsetof(O, grammar_drafts_ready)),
      write("out", offsetof(O, out)),
      write("num_drafts", offsetof(O, num_drafts))};
  static constexpr Attribute attributes[] = {shown<"least", &O::least>(),
                                             shown<"most", &O::most>()};
  static std::string shape(const Shapes& v, const O& op) {
    return expect(v.same_shape(op.ids, op.out) && v.same_rows(op.num_drafts, op.row_slot) &&
                      v.same_rows(op.row_flags, op.row_slot) &&
                      v.same_rows(op.history, op.history_range) &&
                      v.same_rows(op.grammar_drafts, op.row_slot) &&
                      v.same_rows(op.grammar_drafts_ready, op.row_slot) && op.least >= 1 &&
                      op.least <= op.most,
                  "tokens, requests, history and lengths disagree");
  }
  static bool has_kernel(const kernels::KernelTable& table, const O& /*op*/) {
    return table.propose_ngram != nullptr;
  }
  template <class L>
  static void launch(const L& l, const O& op) {
    kernels::ProposeNgramArgs args;
    set_proposal(args, l, op);
    args.slots.params = l.at(op.params);
    args.slots.history_cols = l.cols(op.history);
    args.slots.history = l.at(op.history);
    args.slots.history_range = l.at(op.history_range);
    args.least = static_cast<int32_t>(op.least);
    args.most = static_cast<int32_t>(op.most);
    args.most_drafts = l.cols(op.grammar_drafts);
    l.kernels().propose_ngram(l.stream(), args);
  }
};

struct ProposeDraftsOp {  // as ProposeNgramOp, of drafts that another Program left in the slots
  ValueId ids = kNoValue, out = kNoValue, num_drafts = kNoValue;
  ValueId query_start = kNoValue, row_slot = kNoValue, row_flags = kNoValue;
  ValueId turn = kNoValue;
  ValueId params = kNoValue, drafts = kNoValue, draft_token = kNoValue;  // of the slots
  ValueId grammar_drafts = kNoValue, grammar_drafts_ready = kNoValue;
  bool operator==(const ProposeDraftsOp&) const = default;
};

template <>
struct Definition<ProposeDraftsOp> {
  using O = ProposeDraftsOp;
  static constexpr const char* name = "propose_drafts";
  static constexpr Operand operands[] = {
      read("ids", offsetof(O, ids)),
      read("query_start", offsetof(O, query_start)),
      read("row_slot", offsetof(O, row_slot)),
      read("row_flags", offsetof(O, row_flags)),
      read("turn", offsetof(O, turn)),
      read("params", offsetof(O, params)),
      read("drafts", offsetof(O, drafts)),
      read("draft_token", offsetof(O, draft_token)),
      read("grammar_drafts", offsetof(O, grammar_drafts)),
      read("grammar_drafts_ready", offsetof(O, grammar_drafts_ready)),
      write("out", offsetof(O, out)),
      write("num_drafts", offsetof(O, num_drafts))};
  static std::string shape(const Shapes& v, const O& op) {
    return expect(v.same_shape(op.ids, op.out) && v.same_rows(op.num_drafts, op.row_slot) &&
                      v.same_rows(op.row_flags, op.row_slot) &&
                      v.same_rows(op.drafts, op.draft_token) && v[op.drafts].cols >= 1 &&
                      v.same_rows(op.grammar_drafts, op.row_slot) &&
                      v.same_rows(op.grammar_drafts_ready, op.row_slot) &&
                      v[op.grammar_drafts].cols == v[op.drafts].cols,
                  "tokens, requests and slots disagree");
  }
  static bool has_kernel(const kernels::KernelTable& table, const O& /*op*/) {
    return table.propose_drafts != nullptr;
  }
  template <class L>
  static void launch(const L& l, const O& op) {
    kernels::ProposeDraftsArgs args;
    set_proposal(args, l, op);
    args.drafts = l.at(op.drafts);
    args.draft_token = l.at(op.draft_token);
    args.most = l.cols(op.drafts);
    args.params = l.at(op.params);
    l.kernels().propose_drafts(l.stream(), args);
  }
};

struct DraftInputsOp {  // of a draft model's next token: one a request
  ValueId step_row_slot = kNoValue, step_row_flags = kNoValue, step_live_logits = kNoValue;
  // Of the slots. token: the last one, or the draft before.
  ValueId token = kNoValue, history_range = kNoValue, params = kNoValue, block_table = kNoValue,
          drafts = kNoValue;
  ValueId token_ids = kNoValue, positions = kNoValue, kv_slots = kNoValue, query_start = kNoValue,
          seq_lens = kNoValue, row_slot = kNoValue, row_flags = kNoValue, live_logits = kNoValue;
  // Of a draft head; the first three for its first draft.
  ValueId step_positions = kNoValue, step_query_start = kNoValue, hidden_index = kNoValue,
          sample_lens = kNoValue;
  int64_t ahead = 0;  // drafts that were made in this step before
  int64_t back = 0;   // 1 of a head (kernels::DraftInputsArgs)
  bool operator==(const DraftInputsOp&) const = default;
};

template <>
struct Definition<DraftInputsOp> {
  using O = DraftInputsOp;
  static constexpr const char* name = "draft_inputs";
  static constexpr Operand operands[] = {
      read("step_row_slot", offsetof(O, step_row_slot)),
      read("step_row_flags", offsetof(O, step_row_flags)),
      read("step_live_logits", offsetof(O, step_live_logits)),
      read("token", offsetof(O, token)),
      read("history_range", offsetof(O, history_range)),
      read("params", offsetof(O, params)),
      read("block_table", offsetof(O, block_table)),
      state("drafts", offsetof(O, drafts)),
      write("token_ids", offsetof(O, token_ids)),
      write("positions", offsetof(O, positions)),
      write("kv_slots", offsetof(O, kv_slots)),
      write("query_start", offsetof(O, query_start)),
      write("seq_lens", offsetof(O, seq_lens)),
      write("row_slot", offsetof(O, row_slot)),
      write("row_flags", offsetof(O, row_flags)),
      optional_write("live_logits", offsetof(O, live_logits)),
      optional_read("step_positions", offsetof(O, step_positions)),
      optional_read("step_query_start", offsetof(O, step_query_start)),
      optional_write("hidden_index", offsetof(O, hidden_index)),
      optional_write("sample_lens", offsetof(O, sample_lens))};
  static constexpr Attribute attributes[] = {ordinal<"ahead", &O::ahead>(),
                                             shown_unless<"back", &O::back, int64_t{0}>()};
  static std::string shape(const Shapes& v, const O& op) {
    return expect(
        v.same_rows(op.token, op.history_range) && v.same_rows(op.token, op.params) &&
            v.same_rows(op.token, op.block_table) && v.same_rows(op.token, op.drafts) &&
            v.same_rows(op.step_row_slot, op.step_row_flags) &&
            v.same_rows(op.step_row_slot, op.row_slot) && v.same_rows(op.row_slot, op.token_ids) &&
            v.same_rows(op.row_slot, op.positions) && v.same_rows(op.row_slot, op.kv_slots) &&
            v.same_rows(op.row_slot, op.seq_lens) && v.same_rows(op.row_slot, op.row_flags) &&
            op.ahead >= 0 && op.ahead < v[op.drafts].cols,
        "slots, requests and drafts disagree");
  }
  static bool has_kernel(const kernels::KernelTable& table, const O& /*op*/) {
    return table.draft_inputs != nullptr;
  }
  template <class L>
  static void launch(const L& l, const O& op) {
    kernels::DraftInputsArgs args;
    args.token = l.at(op.token);
    args.history_range = l.at(op.history_range);
    args.params = l.at(op.params);
    args.block_table = l.at(op.block_table);
    args.drafts = l.at(op.drafts);
    args.num_slots = static_cast<int32_t>(l.value(op.token).rows.scale) - 1;
    args.max_blocks = l.cols(op.block_table);
    args.most = l.cols(op.drafts);
    args.row_slot = l.at(op.step_row_slot);
    args.row_flags = l.at(op.step_row_flags);
    args.step_live_logits = l.at(op.step_live_logits);
    args.out = {l.at(op.token_ids), l.at(op.positions), l.at(op.kv_slots),  l.at(op.query_start),
                l.at(op.seq_lens),  l.at(op.row_slot),  l.at(op.row_flags), l.at(op.live_logits)};
    args.out.hidden_index = l.at(op.hidden_index);
    args.out.sample_lens = l.at(op.sample_lens);
    args.positions = l.at(op.step_positions);
    args.query_start = l.at(op.step_query_start);
    args.ahead = static_cast<int32_t>(op.ahead);
    args.back = static_cast<int32_t>(op.back);
    args.block_size = l.block_size();
    args.padded_seq_len = l.padded_seq_len();
    args.rows = l.rows(op.row_slot);
    l.kernels().draft_inputs(l.stream(), args);
  }
};

struct AcceptDraftsOp {  // the last op: what becomes of the tokens that a SampleOp gave
  ValueId tokens = kNoValue, ids = kNoValue, num_drafts = kNoValue;
  ValueId turn = kNoValue, query_start = kNoValue, row_slot = kNoValue, row_flags = kNoValue,
          sample_start = kNoValue;
  // Of the slots.
  ValueId params = kNoValue, last_token = kNoValue, output_count = kNoValue, history = kNoValue,
          history_range = kNoValue;
  // What the host reads (kernels::AcceptOutputs).
  ValueId accepted = kNoValue, drafted = kNoValue;
  int64_t synthetic = -1;  // kernels::AcceptDraftsArgs
  bool operator==(const AcceptDraftsOp&) const = default;
};

template <>
struct Definition<AcceptDraftsOp> {
  using O = AcceptDraftsOp;
  static constexpr const char* name = "accept_drafts";
  static constexpr Operand operands[] = {read("tokens", offsetof(O, tokens)),
                                         read("ids", offsetof(O, ids)),
                                         read("num_drafts", offsetof(O, num_drafts)),
                                         read("turn", offsetof(O, turn)),
                                         read("query_start", offsetof(O, query_start)),
                                         read("row_slot", offsetof(O, row_slot)),
                                         read("row_flags", offsetof(O, row_flags)),
                                         read("sample_start", offsetof(O, sample_start)),
                                         read("params", offsetof(O, params)),
                                         state("last_token", offsetof(O, last_token)),
                                         state("output_count", offsetof(O, output_count)),
                                         state("history", offsetof(O, history)),
                                         state("history_range", offsetof(O, history_range)),
                                         write("accepted", offsetof(O, accepted)),
                                         write("drafted", offsetof(O, drafted))};
  static constexpr Attribute attributes[] = {shown_unless<"synthetic", &O::synthetic, -1>()};
  static std::string shape(const Shapes& v, const O& op) {
    return expect(
        v[op.tokens].storage == Storage::kPinned && v[op.accepted].storage == Storage::kPinned &&
            v.same_rows(op.accepted, op.row_slot) && v.same_shape(op.accepted, op.drafted) &&
            v.same_rows(op.num_drafts, op.row_slot) && v.same_rows(op.row_flags, op.row_slot) &&
            v.same_rows(op.sample_start, op.query_start) &&
            v.same_rows(op.history, op.history_range) && v.same_rows(op.history, op.last_token),
        "tokens, requests, slots and outputs disagree");
  }
  static bool has_kernel(const kernels::KernelTable& table, const O& /*op*/) {
    return table.accept_drafts != nullptr;
  }
  template <class L>
  static void launch(const L& l, const O& op) {
    kernels::AcceptDraftsArgs args;
    args.ids = l.at(op.ids);
    args.num_drafts = l.at(op.num_drafts);
    args.inputs.turn = l.at(op.turn);
    args.inputs.query_start = l.at(op.query_start);
    args.inputs.row_slot = l.at(op.row_slot);
    args.inputs.row_flags = l.at(op.row_flags);
    args.inputs.sample_start = l.at(op.sample_start);
    args.slots.vocab_size = l.cols(op.output_count);
    args.slots.params = l.at(op.params);
    args.slots.last_token = l.at(op.last_token);
    args.slots.output_count = l.at(op.output_count);
    args.slots.history_cols = l.cols(op.history);
    args.slots.history = l.at(op.history);
    args.slots.history_range = l.at(op.history_range);
    for (uint32_t turn = 0; turn < kernels::kTurns; ++turn) {
      args.tokens[turn] = l.at(op.tokens, turn);
      args.outputs[turn] = {l.at(op.accepted, turn), l.at(op.drafted, turn)};
    }
    args.synthetic = op.synthetic;
    args.rows = l.rows(op.row_slot);
    l.kernels().accept_drafts(l.stream(), args);
  }
};

}  // namespace refrain::worker
