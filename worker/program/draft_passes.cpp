#include "worker/program/draft_passes.h"

#include "runtime/base/check.h"
#include "worker/program/step_ends.h"

namespace refrain::worker {

// What the passes read of the target's step and slots.
void DraftPasses::declare_target() {
  const Dim one = Dim::constant(1), tokens = Dim::tokens(), requests = Dim::requests();
  const Dim slots = builder_.slots();
  const int64_t vocab = builder_.program().vocab_size;
  const auto of_step = [this](std::string name, DType dtype, Dim rows) {
    return builder_.passed(std::move(name), ValueKind::kInput, dtype, rows);
  };
  const auto of_slot = [this, slots](std::string name, DType dtype, int64_t cols) {
    return builder_.passed(std::move(name), ValueKind::kState, dtype, slots, cols);
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
  op.turn = builder_.passed("turn", ValueKind::kState, DType::kInt32, one);
  op.last_token = of_slot("slots.last_token", DType::kInt32, 1);
  op.history_range = of_slot("slots.history_range", DType::kInt32, 2);
  op.params = of_slot("slots.params", DType::kUInt8, sizeof(kernels::SlotParams));
  op.output_count = of_slot("slots.output_count", DType::kInt32, vocab);
  op.in_prompt = of_slot("slots.in_prompt", DType::kUInt8, vocab);
  const auto& states = builder_.program().states;
  REFRAIN_CHECK(states.size() == 1, "a draft model has one state group");
  const std::string group = ".draft." + states.front().name;
  op.kv_slots[0] = of_step("kv_slots" + group, DType::kInt64, tokens);
  op.block_table[0] =
      of_slot("slots.block_table" + group, DType::kInt32, int64_t{limits_.max_blocks});
  drafts_ = of_slot("slots.drafts", DType::kInt32, limits_.num_drafts);
  draft_token_ = of_slot("slots.draft_token", DType::kInt32, 1);
  biases_ = {of_slot("slots.bias_token", DType::kInt32, kernels::kMaxLogitBias),
             of_slot("slots.bias_value", DType::kFloat32, kernels::kMaxLogitBias),
             of_slot("slots.allowed_mask", DType::kInt32, (vocab + 31) / 32)};
  scratch_ = builder_.define({.name = "sample.scratch",
                              .dtype = DType::kFloat32,
                              .rows = requests,
                              .cols = vocab,
                              .storage = Storage::kDevice});
  builder_.set_extents({{"tokens", limits_.step.max_tokens, op.live_tokens},
                        {"requests", limits_.step.max_reqs, op.live_reqs}});
}

// A head's places hold the hidden state of their token and the token after it.
void DraftPasses::next_tokens() {
  const ValueId history = builder_.passed("slots.history", ValueKind::kState, DType::kInt32,
                                          builder_.slots(), limits_.history_cols);
  scope_.step.token_ids = builder_.input("next_tokens", DType::kInt32, Dim::tokens());
  builder_.emit(NextTokensOp{.positions = scope_.step.positions,
                             .query_start = scope_.step.query_start,
                             .row_slot = scope_.step.row_slot,
                             .history = history,
                             .out = scope_.step.token_ids});
}

// The first writes the keys and values of the target's tokens, drafts that were wrong among them:
// the next step's stand in the same places. The others go on from the slot's last token.
const OpScope& DraftPasses::begin(int pass) {
  if (pass == 0) {
    declare_target();
    scope_.step = target_;
    if (limits_.head) next_tokens();
    return scope_;
  }
  scope_.prefix = "draft" + std::to_string(pass) + ".";
  const auto own = [this](const char* name, DType dtype, Dim rows) {
    return builder_.input(scope_.prefix + name, dtype, rows);
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
    scope_.step.live_logits = op.live_logits = own("live_logits", DType::kInt32, Dim::constant(1));
  if (limits_.head) {
    op.back = 1;
    op.sample_lens = sample_lens_ = own("sample_lens", DType::kInt32, requests);
    if (pass == 1) {
      op.step_positions = target_.positions;
      op.step_query_start = target_.query_start;
      op.hidden_index = hidden_index_ = own("hidden_index", DType::kInt32, requests);
    }
  }
  scope_.step.token_ids = op.token_ids;
  scope_.step.positions = op.positions;
  scope_.step.kv_slots[0] = op.kv_slots;
  scope_.step.query_start = op.query_start;
  scope_.step.seq_lens = op.seq_lens;
  scope_.step.row_slot = op.row_slot;
  scope_.step.row_flags = op.row_flags;
  builder_.emit(op);
  return scope_;
}

// A draft is drawn as the target draws: by the request's parameters and seed and the token's
// position, so that two models that say alike draw alike.
void DraftPasses::end(ValueId logits) {
  SampleOp op = declare_sample(builder_, scope_, logits, Dim::requests());
  op.seq_lens = limits_.head ? sample_lens_ : scope_.step.seq_lens;
  op.row_slot = scope_.step.row_slot;
  op.row_flags = scope_.step.row_flags;
  op.last_token = draft_token_;
  op.bias_token = biases_[0];
  op.bias_value = biases_[1];
  op.allowed_mask = biases_[2];
  op.scratch = scratch_;
  builder_.emit(op);
}

ValueId DraftPasses::hidden_state(int index, int64_t cols) {
  return builder_.passed(BuildLimits::hidden_name(static_cast<size_t>(index)), ValueKind::kInput,
                         builder_.activation_dtype(), Dim::tokens(), cols);
}

}  // namespace refrain::worker
