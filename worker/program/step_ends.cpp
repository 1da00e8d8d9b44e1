#include "worker/program/step_ends.h"

#include <algorithm>

#include "runtime/base/check.h"

namespace refrain::worker {

// Calls f(place, end of its values' names) for each paged state group.
template <class F>
void StepEnds::each_paged(F&& f) const {
  size_t at = 0;
  for (const StateGroup& group : builder_.program().states) {
    if (group.kind != StateKind::kPaged) continue;
    REFRAIN_CHECK(at < kernels::kMaxPagedGroups, "{} paged state groups at most",
                  kernels::kMaxPagedGroups);
    f(at, at == 0 ? std::string() : "." + group.name);
    ++at;
  }
}

const PrepareInputsOp& StepEnds::prepare_inputs() {
  for (const StateGroup& group : limits_.draft_groups) {
    REFRAIN_CHECK(group.kind == StateKind::kPaged, "the draft model keeps no slot states");
    builder_.paged_group("draft." + group.name, group.window);
  }
  step_.limits = limits_.step;
  declare_rows();
  declare_block();
  declare_slots();
  std::vector<Extent> extents = {{"tokens", limits_.step.max_tokens, step_.live_tokens},
                                 {"requests", limits_.step.max_reqs, step_.live_reqs}};
  if (speculates()) extents.push_back(declare_speculation());
  builder_.set_extents(std::move(extents), 1 + limits_.num_drafts);
  builder_.emit(step_);
  return step_;
}

void StepEnds::declare_rows() {
  const Dim one = Dim::constant(1), tokens = Dim::tokens(), requests = Dim::requests();
  PrepareInputsOp& op = step_;
  op.token_ids = builder_.input("token_ids", DType::kInt32, tokens);
  op.positions = builder_.input("positions", DType::kInt32, tokens);
  each_paged([&](size_t at, const std::string& of) {
    op.kv_slots[at] = builder_.input("kv_slots" + of, DType::kInt64, tokens);
  });
  op.logit_index =
      builder_.input("logit_index", DType::kInt32, speculates() ? Dim::samples() : requests);
  op.query_start = builder_.input("query_start", DType::kInt32, {kRequests, 1, 1});
  op.seq_lens = builder_.input("seq_lens", DType::kInt32, requests);
  op.row_slot = builder_.input("row_slot", DType::kInt32, requests);
  op.row_flags = builder_.input("row_flags", DType::kUInt8, requests);
  op.live_tokens = builder_.input("live_tokens", DType::kInt32, one);
  op.live_reqs = builder_.input("live_reqs", DType::kInt32, one);
  op.live_logits = builder_.input("live_logits", DType::kInt32, one);
}

void StepEnds::declare_block() {
  const Dim one = Dim::constant(1);
  const auto bytes = static_cast<int64_t>(step_.limits.layout().total);
  step_.block = builder_.define({.name = "step_block",
                                 .kind = ValueKind::kInput,
                                 .dtype = DType::kUInt8,
                                 .rows = one,
                                 .cols = bytes,
                                 .storage = Storage::kPinned});
  step_.block_copy = builder_.define({.name = "step_block.copy",
                                      .dtype = DType::kUInt8,
                                      .rows = one,
                                      .cols = bytes,
                                      .storage = Storage::kDevice});
  step_.turn = builder_.define({.name = "turn",
                                .kind = ValueKind::kState,
                                .dtype = DType::kInt32,
                                .rows = one,
                                .cols = 1,
                                .storage = Storage::kDevice,
                                .zeroed = true,
                                .of_context = true});
}

void StepEnds::declare_slots() {
  PrepareInputsOp& op = step_;
  const int64_t vocab = builder_.program().vocab_size;
  op.last_token = builder_.of_slots("slots.last_token", DType::kInt32, 1, true);
  each_paged([&](size_t at, const std::string& of) {
    op.block_table[at] =
        builder_.of_slots("slots.block_table" + of, DType::kInt32, limits_.max_blocks, true);
  });
  op.params = builder_.of_slots("slots.params", DType::kUInt8, sizeof(kernels::SlotParams));
  op.output_count = builder_.of_slots("slots.output_count", DType::kInt32, vocab);
  op.in_prompt = builder_.of_slots("slots.in_prompt", DType::kUInt8, vocab);
}

Extent StepEnds::declare_speculation() {
  PrepareInputsOp& op = step_;
  op.history = builder_.of_slots("slots.history", DType::kInt32, limits_.history_cols, true);
  op.history_range = builder_.of_slots("slots.history_range", DType::kInt32, 2, true);
  op.live_samples = builder_.input("live_samples", DType::kInt32, Dim::constant(1));
  op.sample_start = builder_.input("sample_start", DType::kInt32, {kRequests, 1, 1});
  op.sample_slot = builder_.input("sample_slot", DType::kInt32, Dim::samples());
  op.sample_lens = builder_.input("sample_lens", DType::kInt32, Dim::samples());
  op.sample_flags = builder_.input("sample_flags", DType::kUInt8, Dim::samples());
  const int64_t most = int64_t{limits_.step.max_reqs} * (1 + limits_.num_drafts);
  return {"samples", std::min<int64_t>(limits_.step.max_tokens, most), op.live_samples};
}

ValueId StepEnds::token_ids() {
  if (speculates() && drafted_ids_ == kNoValue) propose_drafts();
  return speculates() ? drafted_ids_ : step_.token_ids;
}

void StepEnds::propose_drafts() {
  drafted_ids_ = builder_.input("token_ids.drafted", DType::kInt32, Dim::tokens());
  num_drafts_ = builder_.input("num_drafts", DType::kInt32, Dim::requests());
  const ValueId grammar_drafts =
      builder_.pinned_input("grammar.drafts", Dim::requests(), limits_.num_drafts);
  const ValueId grammar_drafts_ready =
      builder_.pinned_input("grammar.drafts_ready", Dim::requests(), 1);
  if (!limits_.draft_groups.empty()) {
    const ValueId drafts =
        builder_.of_slots("slots.drafts", DType::kInt32, limits_.num_drafts, true);
    const ValueId draft_token = builder_.of_slots("slots.draft_token", DType::kInt32, 1, true);
    builder_.emit(ProposeDraftsOp{.ids = step_.token_ids,
                                  .out = drafted_ids_,
                                  .num_drafts = num_drafts_,
                                  .query_start = step_.query_start,
                                  .row_slot = step_.row_slot,
                                  .row_flags = step_.row_flags,
                                  .turn = step_.turn,
                                  .params = step_.params,
                                  .drafts = drafts,
                                  .draft_token = draft_token,
                                  .grammar_drafts = grammar_drafts,
                                  .grammar_drafts_ready = grammar_drafts_ready});
    return;
  }
  builder_.emit(ProposeNgramOp{.ids = step_.token_ids,
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
}

void StepEnds::sample(ValueId logits) {
  const int64_t vocab = builder_.program().vocab_size;
  const Dim rows = builder_.rows(step_.logit_index);
  const ValueId bias_token =
      builder_.of_slots("slots.bias_token", DType::kInt32, kernels::kMaxLogitBias);
  const ValueId bias_value =
      builder_.of_slots("slots.bias_value", DType::kFloat32, kernels::kMaxLogitBias);
  const ValueId allowed_mask =
      builder_.of_slots("slots.allowed_mask", DType::kInt32, (vocab + 31) / 32);
  const ValueId grammar_mask = builder_.pinned_input("grammar.mask", rows, (vocab + 31) / 32);
  const ValueId grammar_ready = builder_.pinned_input("grammar.ready", rows, 1);
  const ValueId scratch = builder_.define({.name = "sample.scratch",
                                           .dtype = DType::kFloat32,
                                           .rows = rows,
                                           .cols = vocab,
                                           .storage = Storage::kDevice});
  SampleOp op = declare_sample(builder_, {step_}, logits, rows);
  op.seq_lens = speculates() ? step_.sample_lens : step_.seq_lens;
  op.row_slot = speculates() ? step_.sample_slot : step_.row_slot;
  op.row_flags = speculates() ? step_.sample_flags : step_.row_flags;
  if (!speculates()) op.last_token = step_.last_token;
  op.bias_token = bias_token;
  op.bias_value = bias_value;
  op.allowed_mask = allowed_mask;
  op.scratch = scratch;
  op.grammar_mask = grammar_mask;
  op.grammar_ready = grammar_ready;
  op.tells_logits = limits_.tells_logits ? 1 : 0;
  op.tells_processed = limits_.tells_processed ? 1 : 0;
  builder_.emit(op);
  if (speculates()) accept_drafts(op);
}

void StepEnds::accept_drafts(const SampleOp& sample) {
  builder_.emit(
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
                     .accepted = builder_.output("accepted", DType::kInt32, Dim::requests()),
                     .drafted = builder_.output("drafted", DType::kInt32, Dim::requests()),
                     .synthetic = limits_.synthetic_acceptance});
}

void StepEnds::pool(ValueId hidden, kernels::Pooling pooling) {
  const int64_t cols = builder_.cols(hidden);
  PoolOp op;
  op.in = hidden;
  op.turn = step_.turn;
  op.query_start = step_.query_start;
  op.seq_lens = step_.seq_lens;
  op.row_slot = step_.row_slot;
  op.row_flags = step_.row_flags;
  if (pooling != kernels::Pooling::kLast)
    op.state = builder_.of_slots("slots.pooled", DType::kFloat32, cols);
  op.out_turn = builder_.output("pooled.turn", DType::kInt32, Dim::constant(1));
  op.pooled = builder_.output("pooled", DType::kFloat32, Dim::requests(), cols);
  op.pooling = pooling;
  builder_.emit(op);
}

SampleOp declare_sample(ProgramBuilder& builder, const OpScope& scope, ValueId logits, Dim rows) {
  SampleOp op;
  op.logits = logits;
  op.turn = scope.step.turn;
  op.params = scope.step.params;
  op.in_prompt = scope.step.in_prompt;
  op.output_count = scope.step.output_count;
  op.vocab_size = builder.program().vocab_size;
  const auto named = [&](const char* name) { return scope.prefix + name; };
  op.out_turn = builder.output(named("sampled.turn"), DType::kInt32, Dim::constant(1));
  op.tokens = builder.output(named("sampled"), DType::kInt32, rows);
  op.logprobs = builder.output(named("sampled.logprobs"), DType::kFloat32, rows);
  op.top_tokens =
      builder.output(named("sampled.top_tokens"), DType::kInt32, rows, kernels::kMaxLogprobs);
  op.top_logprobs =
      builder.output(named("sampled.top_logprobs"), DType::kFloat32, rows, kernels::kMaxLogprobs);
  return op;
}

}  // namespace refrain::worker
