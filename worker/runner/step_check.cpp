#include "worker/runner/step_check.h"

#include <limits>

#include "runtime/base/check.h"
#include "worker/dispatch/batch_shape.h"
#include "worker/runner/slot_table.h"

namespace refrain::worker {

using kernels::kMaxLogitBias;

StepCheck::StepCheck(const InputSizes& sizes, size_t num_groups, bool samples,
                     int64_t max_model_len)
    : sizes_(sizes),
      num_groups_(num_groups),
      samples_(samples),
      max_model_len_(max_model_len),
      rows_(static_cast<size_t>(sizes.max_reqs)) {}

void StepCheck::check(const ipc::Step& step) {
  check_rows(step);
  const bool shares = step.shared_rows > 1 && step.shared_rows <= std::ssize(rows_of(step).slot);
  REFRAIN_CHECK(step.cascade == (step.shared_prefix > 0) &&
                    step.shared_prefix % sizes_.block_size == 0 &&
                    (step.cascade ? shares : step.shared_rows == 0),
                "step {}: {} rows share a prefix of {} tokens in blocks of {}", step.step,
                step.shared_rows, step.shared_prefix, sizes_.block_size);
  REFRAIN_CHECK(step.blocks.size() <= num_groups_,
                "step {}: blocks of {} state groups, the Program has {}", step.step,
                step.blocks.size(), num_groups_);
  for (size_t group = 0; group < step.blocks.size(); ++group)
    check_updates(step.step, step.blocks[group], group);
  REFRAIN_CHECK(step.setups.size() <= static_cast<size_t>(sizes_.max_reqs),
                "step {}: {} slots set up", step.step, step.setups.size());
  for (const ipc::SlotSetup& setup : step.setups) check_setup(step.step, setup);
}

void StepCheck::check_rows(const ipc::Step& step) {
  const ipc::Rows& run = rows_of(step);
  const size_t rows = run.slot.size();
  REFRAIN_CHECK(
      run.num_tokens.size() == rows && run.computed.size() == rows && run.flags.size() == rows,
      "step {}: row arrays differ in length", step.step);
  REFRAIN_CHECK(rows <= static_cast<size_t>(sizes_.max_reqs),
                "step {} has {} rows, max_num_seqs is {}", step.step, rows, sizes_.max_reqs);
  ++steps_;
  int64_t tokens = 0;
  for (size_t row = 0; row < rows; ++row) {
    check_row(step, row, static_cast<size_t>(tokens));
    tokens += run.num_tokens[row];
  }
  REFRAIN_CHECK(tokens == static_cast<int64_t>(run.token_ids.size()),
                "step {}: rows have {} tokens, token_ids {}", step.step, tokens,
                run.token_ids.size());
  REFRAIN_CHECK(tokens <= sizes_.max_tokens, "step {} has {} tokens, max_num_batched_tokens is {}",
                step.step, tokens, sizes_.max_tokens);
  for (const TokenId token : run.token_ids) {
    REFRAIN_CHECK(token >= kTokenOnDevice && token < sizes_.vocab_size,
                  "step {}: token {} of a vocabulary of {}", step.step, token, sizes_.vocab_size);
  }
}

void StepCheck::check_row(const ipc::Step& step, size_t row, size_t first_token) {
  const ipc::Rows& run = rows_of(step);
  const SlotId slot = run.slot[row];
  REFRAIN_CHECK(slot >= 0 && slot < sizes_.max_reqs, "step {} row {}: slot {} of {}", step.step,
                row, slot, sizes_.max_reqs);
  Row& of_slot = rows_[static_cast<size_t>(slot)];
  REFRAIN_CHECK(of_slot.step != steps_, "step {} row {}: slot {} takes part twice", step.step, row,
                slot);
  of_slot.step = steps_;
  const int64_t count = run.num_tokens[row], computed = run.computed[row];
  if ((run.flags[row] & ipc::kVerifies) != 0) {
    check_verified(step, row, first_token);
    // Unknown progress is that of a row with drafts, which has its min_tokens.
    of_slot.end = computed < 0 ? std::numeric_limits<int64_t>::max() : computed + 1;
    return;
  }
  REFRAIN_CHECK(count >= 1 && computed >= 0 && computed + count <= max_model_len_,
                "step {} row {}: {} tokens after {}, max_model_len is {}", step.step, row, count,
                computed, max_model_len_);
  of_slot.begin = computed;
  of_slot.end = computed + count;
}

// A row of what the device knows alone. Its length is bounded there.
void StepCheck::check_verified(const ipc::Step& step, size_t row, size_t first_token) const {
  const ipc::Rows& run = rows_of(step);
  const int64_t count = run.num_tokens[row], computed = run.computed[row];
  REFRAIN_CHECK(sizes_.num_drafts > 0 && count >= 1 && count <= 1 + sizes_.num_drafts &&
                    computed >= ipc::kComputedOnDevice && computed < max_model_len_ &&
                    (run.flags[row] & ipc::kSamples) != 0,
                "step {} row {}: verifies {} tokens after {}, at most {} are drafts", step.step,
                row, count, computed, sizes_.num_drafts);
  for (size_t i = first_token; i < first_token + static_cast<size_t>(count); ++i) {
    REFRAIN_CHECK(i < run.token_ids.size() && run.token_ids[i] == kTokenOnDevice,
                  "step {} row {}: verifies tokens that are not on the device", step.step, row);
  }
}

void StepCheck::check_updates(StepId step, const ipc::BlockUpdates& blocks, size_t group) const {
  const size_t updates = blocks.slot.size();
  if (updates == 0) return;
  REFRAIN_CHECK(blocks.index.size() == updates && blocks.block.size() == updates,
                "step {}: block arrays differ in length", step);
  REFRAIN_CHECK(
      updates <= static_cast<size_t>(sizes_.max_reqs) * static_cast<size_t>(sizes_.max_blocks),
      "step {}: {} block updates", step, updates);
  const int64_t num_blocks = group < num_blocks_.size() ? num_blocks_[group] : 0;
  for (size_t i = 0; i < updates; ++i) {
    REFRAIN_CHECK(blocks.slot[i] >= 0 && blocks.slot[i] < sizes_.max_reqs && blocks.index[i] >= 0 &&
                      blocks.index[i] < sizes_.max_blocks && blocks.block[i] > kReservedBlock &&
                      blocks.block[i] < num_blocks,
                  "step {}: block {} at index {} of slot {} in state group {} (blocks 1 to {}, {} "
                  "a request)",
                  step, blocks.block[i], blocks.index[i], blocks.slot[i], group, num_blocks - 1,
                  sizes_.max_blocks);
  }
}

void StepCheck::check_tokens(StepId step, SlotId slot, const char* what,
                             const std::vector<TokenId>& tokens) const {
  for (const TokenId token : tokens) {
    REFRAIN_CHECK(token >= 0 && token < sizes_.vocab_size,
                  "step {} slot {}: {} {} of a vocabulary "
                  "of {}",
                  step, slot, what, token, sizes_.vocab_size);
  }
}

void StepCheck::check_setup(StepId step, const ipc::SlotSetup& setup) const {
  REFRAIN_CHECK(setup.slot >= 0 && setup.slot < sizes_.max_reqs, "step {}: set-up of slot {}", step,
                setup.slot);
  REFRAIN_CHECK(setup.bias_tokens.size() == setup.bias_values.size() &&
                    setup.bias_tokens.size() <= kMaxLogitBias,
                "step {} slot {}: {} bias tokens, {} values, at most {}", step, setup.slot,
                setup.bias_tokens.size(), setup.bias_values.size(), kMaxLogitBias);
  REFRAIN_CHECK(
      samples_ || (setup.bias_tokens.empty() && !has_token_mask(setup) && !setup.follows_output()),
      "step {} slot {}: a model that pools samples no tokens", step, setup.slot);
  check_tokens(step, setup.slot, "allowed token", setup.allowed_tokens);
  REFRAIN_CHECK(setup.adapter >= -1 && setup.adapter < num_places_,
                "step {} slot {}: LoRA adapter at place {} of {}", step, setup.slot, setup.adapter,
                num_places_);
  const size_t words = setup.allowed_mask.size();
  const bool beyond = words == sizes_.mask_words() && sizes_.vocab_size % 32 != 0 &&
                      setup.allowed_mask.back() >> (sizes_.vocab_size % 32) != 0;
  REFRAIN_CHECK(words <= sizes_.mask_words() && !beyond,
                "step {} slot {}: a mask of {} words allows tokens beyond a vocabulary of {}", step,
                setup.slot, words, sizes_.vocab_size);
  REFRAIN_CHECK(setup.history_begin >= 0 &&
                    setup.history_begin + std::ssize(setup.history) <= sizes_.history_cols,
                "step {} slot {}: {} tokens from {} on, {} are kept", step, setup.slot,
                setup.history.size(), setup.history_begin, sizes_.history_cols);
  check_tokens(step, setup.slot, "token", setup.history);
  check_tokens(step, setup.slot, "end token", setup.end_tokens);
}

}  // namespace refrain::worker
