// The part of StepWriter that keeps what a slot may sample: allowed tokens, end tokens before
// min_tokens, and what its grammar takes next.

#include <algorithm>
#include <utility>

#include "runtime/base/check.h"
#include "worker/dispatch/batch_shape.h"
#include "worker/runner/step_writer.h"

namespace refrain::worker {
namespace {

void set_bit(uint32_t* mask, TokenId token) { mask[token / 32] |= 1u << (token % 32); }
void clear_bit(uint32_t* mask, TokenId token) { mask[token / 32] &= ~(1u << (token % 32)); }

}  // namespace

// min_tokens are kept by a mask without the end tokens, replaced when they are made.
bool StepWriter::has_mask(const ipc::SlotSetup& setup) {
  return setup.has_allowed_tokens || setup.min_tokens > 0;
}

void StepWriter::write_mask(const ipc::SlotSetup& setup, size_t index, Stream& stream) {
  const auto slot = static_cast<size_t>(setup.slot);
  const size_t words = sizes_.mask_words();
  uint32_t* mask = buffers_.next().allowed_mask + index * words;
  std::fill_n(mask, words, setup.has_allowed_tokens ? 0u : ~0u);
  std::copy(setup.allowed_mask.begin(), setup.allowed_mask.end(), mask);
  for (const TokenId token : setup.allowed_tokens) set_bit(mask, token);
  const int64_t until = int64_t{setup.prompt_len} + setup.min_tokens;
  const bool made = row_seen_[slot] == writes_ && row_end_[slot] >= until;
  if (setup.min_tokens > 0 && !made) {
    end_masks_[slot].until = until;
    end_masks_[slot].mask.assign(mask, mask + words);
    for (const TokenId token : setup.end_tokens) clear_bit(mask, token);
  }
  if (grammars_.constrains(setup.slot)) {
    grammar_bounds_[slot].assign(mask, mask + words);
    return;
  }
  stream.copy(buffers_.slots().allowed_mask + slot * words, mask, words * sizeof(uint32_t));
}

// Of rows that sample beyond their min_tokens in this step. They and the slots that are set up are
// different slots, so that the pinned rows suffice for both.
void StepWriter::lift_masks(const ipc::Step& step, Stream& stream) {
  const size_t words = sizes_.mask_words();
  size_t index = step.setups.size();
  for (const SlotId row_slot : rows_of(step).slot) {
    const auto slot = static_cast<size_t>(row_slot);
    EndMask& held = end_masks_[slot];
    if (held.until == 0 || row_end_[slot] < held.until) continue;
    held.until = 0;
    if (grammars_.constrains(row_slot)) {
      grammar_bounds_[slot] = std::move(held.mask);
      continue;
    }
    REFRAIN_CHECK(index < static_cast<size_t>(sizes_.max_reqs), "step {}: {} masks", step.step,
                  index + 1);
    uint32_t* mask = buffers_.next().allowed_mask + index++ * words;
    std::copy(held.mask.begin(), held.mask.end(), mask);
    stream.copy(buffers_.slots().allowed_mask + slot * words, mask, words * sizeof(uint32_t));
  }
}

std::vector<GrammarMasks::Row> StepWriter::grammar_rows(const ipc::Step& step) const {
  std::vector<GrammarMasks::Row> made;
  const ipc::Rows& rows = rows_of(step);
  const InputBuffers::Pinned& pinned = buffers_.next();
  size_t first_logits = 0;
  for (size_t row = 0; row < rows.slot.size(); ++row) {
    const bool verifies = (rows.flags[row] & ipc::kVerifies) != 0;
    const int32_t num_logits = verifies ? rows.num_tokens[row] : 1;
    const size_t first =
        std::exchange(first_logits, first_logits + static_cast<size_t>(num_logits));
    const auto& follower = grammars_.follower(rows.slot[row]);
    if (follower == nullptr || (rows.flags[row] & ipc::kSamples) == 0) continue;
    const auto slot = static_cast<size_t>(rows.slot[row]);
    // An answer that is complete before its min_tokens ends all the same.
    made.push_back({.follower = follower,
                    .bounds = grammar_bounds_[slot],
                    .may_end = end_masks_[slot].until != 0,
                    .num_logits = num_logits,
                    .mask = pinned.grammar_mask + first * sizes_.mask_words(),
                    .ready = pinned.grammar_ready + first});
    if (num_logits == 1 || (rows.flags[row] & ipc::kNoDrafts) != 0) continue;
    made.back().drafts = pinned.grammar_drafts + row * static_cast<size_t>(sizes_.num_drafts);
    made.back().drafts_ready = pinned.grammar_drafts_ready + row;
  }
  return made;
}

}  // namespace refrain::worker
