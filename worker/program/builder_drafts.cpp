// The part of ProgramBuilder that speculation adds: drafts before the model and what of them is
// right after it; the passes of a draft model.

#include <algorithm>

#include "runtime/base/check.h"
#include "worker/program/builder.h"

namespace refrain::worker {

void ProgramBuilder::declare_speculation() {
  PrepareInputsOp& op = step_;
  op.history = of_slots("slots.history", DType::kInt32, limits_.history_cols, true);
  op.history_range = of_slots("slots.history_range", DType::kInt32, 2, true);
  op.live_samples = input("live_samples", DType::kInt32, Dim::constant(1));
  op.sample_start = input("sample_start", DType::kInt32, {kRequests, 1, 1});
  op.sample_slot = input("sample_slot", DType::kInt32, Dim::samples());
  op.sample_lens = input("sample_lens", DType::kInt32, Dim::samples());
  op.sample_flags = input("sample_flags", DType::kUInt8, Dim::samples());
  const int64_t most = int64_t{limits_.step.max_reqs} * (1 + limits_.num_drafts);
  program_.logits_per_request = 1 + limits_.num_drafts;
  program_.extents.push_back(
      {"samples", std::min<int64_t>(limits_.step.max_tokens, most), op.live_samples});
}

ValueId ProgramBuilder::token_ids() {
  if (!speculates() || limits_.drafts) return step_.token_ids;
  if (drafted_ids_ != kNoValue) return drafted_ids_;
  drafted_ids_ = input("token_ids.drafted", DType::kInt32, Dim::tokens());
  num_drafts_ = input("num_drafts", DType::kInt32, Dim::requests());
  const ValueId grammar_drafts =
      pinned_input("grammar.drafts", Dim::requests(), limits_.num_drafts);
  const ValueId grammar_drafts_ready = pinned_input("grammar.drafts_ready", Dim::requests(), 1);
  if (!limits_.draft_groups.empty()) {
    drafts_ = of_slots("slots.drafts", DType::kInt32, limits_.num_drafts, true);
    draft_token_ = of_slots("slots.draft_token", DType::kInt32, 1, true);
    program_.ops.emplace_back(ProposeDraftsOp{.ids = step_.token_ids,
                                              .out = drafted_ids_,
                                              .num_drafts = num_drafts_,
                                              .query_start = step_.query_start,
                                              .row_slot = step_.row_slot,
                                              .row_flags = step_.row_flags,
                                              .turn = step_.turn,
                                              .params = step_.params,
                                              .drafts = drafts_,
                                              .draft_token = draft_token_,
                                              .grammar_drafts = grammar_drafts,
                                              .grammar_drafts_ready = grammar_drafts_ready});
    return drafted_ids_;
  }
  program_.ops.emplace_back(ProposeNgramOp{.ids = step_.token_ids,
                                           .out = drafted_ids_,
                                           .num_drafts = num_drafts_,
                                           .query_start = step_.query_start,
                                           .row_slot = step_.row_slot,
                                           .row_flags = step_.row_flags,
                                           .turn = step_.turn,
                                           .params = step_.params,
                                           .history = step_.history,
                                           .history_range = step_.history_range,
                                           .grammar_drafts = grammar_drafts,
                                           .grammar_drafts_ready = grammar_drafts_ready,
                                           .least = limits_.lookup_least,
                                           .most = limits_.lookup_most});
  return drafted_ids_;
}

void ProgramBuilder::accept_drafts(const SampleOp& sample) {
  program_.ops.emplace_back(
      AcceptDraftsOp{.tokens = sample.tokens,
                     .ids = token_ids(),
                     .num_drafts = num_drafts_,
                     .turn = step_.turn,
                     .query_start = step_.query_start,
                     .row_slot = step_.row_slot,
                     .row_flags = step_.row_flags,
                     .sample_start = step_.sample_start,
                     .params = step_.params,
                     .last_token = step_.last_token,
                     .output_count = step_.output_count,
                     .history = step_.history,
                     .history_range = step_.history_range,
                     .accepted = output("accepted", DType::kInt32, Dim::requests()),
                     .drafted = output("drafted", DType::kInt32, Dim::requests())});
}

ValueId ProgramBuilder::passed(std::string name, ValueKind kind, DType dtype, Dim rows,
                               int64_t cols) {
  return define({.name = std::move(name),
                 .kind = kind,
                 .dtype = dtype,
                 .rows = rows,
                 .cols = cols,
                 .storage = Storage::kDevice,
                 .passed = true});
}

// What a draft model's passes read of the target's step and slots.
void ProgramBuilder::declare_passed() {
  const Dim one = Dim::constant(1), tokens = Dim::tokens(), requests = Dim::requests();
  const Dim slots = Dim::constant(int64_t{limits_.step.max_reqs} + 1);
  const auto of_step = [this](std::string name, DType dtype, Dim rows) {
    return passed(std::move(name), ValueKind::kInput, dtype, rows);
  };
  const auto of_slot = [this, slots](std::string name, DType dtype, int64_t cols) {
    return passed(std::move(name), ValueKind::kState, dtype, slots, cols);
  };
  PrepareInputsOp& op = target_;
  op.token_ids = of_step("token_ids.drafted", DType::kInt32, tokens);
  op.positions = of_step("positions", DType::kInt32, tokens);
  op.query_start = of_step("query_start", DType::kInt32, {kRequests, 1, 1});
  op.seq_lens = of_step("seq_lens", DType::kInt32, requests);
  op.row_slot = of_step("row_slot", DType::kInt32, requests);
  op.row_flags = of_step("row_flags", DType::kUInt8, requests);
  op.live_tokens = of_step("live_tokens", DType::kInt32, one);
  op.live_reqs = of_step("live_reqs", DType::kInt32, one);
  op.live_logits = of_step("live_logits", DType::kInt32, one);
  op.turn = passed("turn", ValueKind::kState, DType::kInt32, one);
  op.last_token = of_slot("slots.last_token", DType::kInt32, 1);
  op.history_range = of_slot("slots.history_range", DType::kInt32, 2);
  op.params = of_slot("slots.params", DType::kUInt8, sizeof(kernels::SlotParams));
  op.output_count = of_slot("slots.output_count", DType::kInt32, program_.vocab_size);
  op.in_prompt = of_slot("slots.in_prompt", DType::kUInt8, program_.vocab_size);
  REFRAIN_CHECK(program_.states.size() == 1, "a draft model has one state group");
  const std::string group = ".draft." + program_.states.front().name;
  op.kv_slots[0] = of_step("kv_slots" + group, DType::kInt64, tokens);
  op.block_table[0] =
      of_slot("slots.block_table" + group, DType::kInt32, int64_t{limits_.max_blocks});
  drafts_ = of_slot("slots.drafts", DType::kInt32, limits_.num_drafts);
  draft_token_ = of_slot("slots.draft_token", DType::kInt32, 1);
  biases_ = {of_slot("slots.bias_token", DType::kInt32, kernels::kMaxLogitBias),
             of_slot("slots.bias_value", DType::kFloat32, kernels::kMaxLogitBias),
             of_slot("slots.allowed_mask", DType::kInt32, (program_.vocab_size + 31) / 32)};
  scratch_ = define({.name = "sample.scratch",
                     .dtype = DType::kFloat32,
                     .rows = requests,
                     .cols = program_.vocab_size,
                     .storage = Storage::kDevice});
  program_.extents = {{"tokens", limits_.step.max_tokens, op.live_tokens},
                      {"requests", limits_.step.max_reqs, op.live_reqs}};
}

// The first writes the keys and values of the target's tokens, drafts that were wrong among them:
// the next step's stand in the same places. The others go on from the slot's last token.
void ProgramBuilder::begin_pass(int pass) {
  pass_ = pass;
  if (pass == 0) {
    declare_passed();
    step_ = target_;
    if (limits_.head) next_tokens();
    return;
  }
  prefix_ = "draft" + std::to_string(pass) + ".";
  const auto own = [this](const char* name, DType dtype, Dim rows) {
    return input((prefix_ + name).c_str(), dtype, rows);
  };
  const Dim requests = Dim::requests();
  DraftInputsOp op{.step_row_slot = target_.row_slot,
                   .step_row_flags = target_.row_flags,
                   .step_live_logits = target_.live_logits,
                   .token = pass == 1 ? target_.last_token : draft_token_,
                   .history_range = target_.history_range,
                   .params = target_.params,
                   .block_table = target_.block_table[0],
                   .drafts = drafts_,
                   .token_ids = own("token_ids", DType::kInt32, requests),
                   .positions = own("positions", DType::kInt32, requests),
                   .kv_slots = own("kv_slots", DType::kInt64, requests),
                   .query_start = own("query_start", DType::kInt32, {kRequests, 1, 1}),
                   .seq_lens = own("seq_lens", DType::kInt32, requests),
                   .row_slot = own("row_slot", DType::kInt32, requests),
                   .row_flags = own("row_flags", DType::kUInt8, requests),
                   .ahead = pass - 1};
  if (pass == 1)
    step_.live_logits = op.live_logits = own("live_logits", DType::kInt32, Dim::constant(1));
  if (limits_.head) {
    op.back = 1;
    op.sample_lens = sample_lens_ = own("sample_lens", DType::kInt32, requests);
    if (pass == 1) {
      op.step_positions = target_.positions;
      op.step_query_start = target_.query_start;
      op.hidden_index = hidden_index_ = own("hidden_index", DType::kInt32, requests);
    }
  }
  step_.token_ids = op.token_ids;
  step_.positions = op.positions;
  step_.kv_slots[0] = op.kv_slots;
  step_.query_start = op.query_start;
  step_.seq_lens = op.seq_lens;
  step_.row_slot = op.row_slot;
  step_.row_flags = op.row_flags;
  program_.ops.emplace_back(op);
}

// A draft is drawn as the target draws: by the request's parameters and seed and the token's
// position, so that two models that say alike draw alike.
void ProgramBuilder::end_pass(ValueId logits) {
  SampleOp op = declare_sample(logits, Dim::requests());
  op.seq_lens = limits_.head ? sample_lens_ : step_.seq_lens;
  op.row_slot = step_.row_slot;
  op.row_flags = step_.row_flags;
  op.last_token = draft_token_;
  op.bias_token = biases_[0];
  op.bias_value = biases_[1];
  op.allowed_mask = biases_[2];
  op.scratch = scratch_;
  program_.ops.emplace_back(op);
}

// A head's places hold the hidden state of their token and the token after it.
void ProgramBuilder::next_tokens() {
  const ValueId history =
      passed("slots.history", ValueKind::kState, DType::kInt32,
             Dim::constant(int64_t{limits_.step.max_reqs} + 1), limits_.history_cols);
  step_.token_ids = input("next_tokens", DType::kInt32, Dim::tokens());
  program_.ops.emplace_back(NextTokensOp{.positions = step_.positions,
                                         .query_start = step_.query_start,
                                         .row_slot = step_.row_slot,
                                         .history = history,
                                         .out = step_.token_ids});
}

namespace {
std::string hidden_name(int64_t index) { return "hidden_states." + std::to_string(index); }
}  // namespace

// Right behind what makes it: later ops may write in its place.
void ProgramBuilder::keep_hidden(int64_t layer, ValueId hidden) {
  for (size_t i = 0; i < limits_.hidden_states.size(); ++i) {
    if (limits_.hidden_states[i] != layer) continue;
    const Value& from = program_.value(hidden);
    const ValueId out = define({.name = hidden_name(static_cast<int64_t>(i)),
                                .kind = ValueKind::kOutput,
                                .dtype = from.dtype,
                                .rows = from.rows,
                                .cols = from.cols,
                                .storage = Storage::kDevice,
                                .zeroed = true});
    program_.ops.emplace_back(ConcatOp{.parts = {hidden, kNoValue, kNoValue}, .out = out});
  }
}

ValueId ProgramBuilder::hidden_state(int index, int64_t cols) {
  return passed(hidden_name(index), ValueKind::kInput, activation_dtype_, Dim::tokens(), cols);
}

ValueId ProgramBuilder::select_hidden(const std::string& name, ValueId in) {
  const ValueId out = activation(name, rows_of(hidden_index_), program_.value(in).cols);
  program_.ops.emplace_back(SelectRowsOp{.in = in, .index = hidden_index_, .out = out});
  return out;
}

ValueId ProgramBuilder::shared_matrix(const std::string& tensor, int64_t rows, int64_t cols,
                                      SplitUnit unit, DType dtype) {
  const ValueId id = matrix(tensor, rows, cols, unit);
  program_.values[static_cast<size_t>(id)].dtype = dtype;
  program_.values[static_cast<size_t>(id)].passed = true;
  return id;
}

ValueId ProgramBuilder::map_logits(ValueId logits, const std::string& tensor) {
  const ValueId offset = vector(tensor, program_.value(logits).cols);
  program_.values[static_cast<size_t>(offset)].parts.front().targets = program_.vocab_size;
  const ValueId out = define({.name = prefix_ + "logits.mapped",
                              .dtype = DType::kFloat32,
                              .rows = rows_of(logits),
                              .cols = program_.vocab_size});
  program_.ops.emplace_back(MapLogitsOp{.in = logits, .offset = offset, .out = out});
  return out;
}

ValueId ProgramBuilder::concat(const std::string& name, const std::vector<ValueId>& parts) {
  ConcatOp op;
  int64_t cols = 0;
  for (size_t i = 0; i < parts.size(); ++i) {
    op.parts.at(i) = parts[i];
    cols += program_.value(parts[i]).cols;
  }
  op.out = activation(name, rows_of(parts.front()), cols);
  program_.ops.emplace_back(op);
  return op.out;
}

}  // namespace refrain::worker
