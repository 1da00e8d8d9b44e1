#include "worker/runner/token_masks.h"

#include <algorithm>
#include <utility>

#include "runtime/base/check.h"
#include "worker/dispatch/batch_shape.h"

namespace refrain::worker {
namespace {

void set_bit(uint32_t* mask, TokenId token) { mask[token / 32] |= 1u << (token % 32); }
void clear_bit(uint32_t* mask, TokenId token) { mask[token / 32] &= ~(1u << (token % 32)); }

}  // namespace

void TokenMasks::set_up(const ipc::SlotSetup& setup, size_t index, Stream& stream) {
  SlotRequest& request = table_.at(setup.slot);
  request.end_masked_until = 0;
  request.grammar_bounds.clear();
  grammars_.set_up(setup);
  if (has_token_mask(setup)) write(setup, index, stream);
}

void TokenMasks::write(const ipc::SlotSetup& setup, size_t index, Stream& stream) {
  SlotRequest& request = table_.at(setup.slot);
  const size_t words = buffers_.sizes().mask_words();
  uint32_t* mask = pinned(index);
  std::fill_n(mask, words, setup.has_allowed_tokens ? 0u : ~0u);
  std::copy(setup.allowed_mask.begin(), setup.allowed_mask.end(), mask);
  for (const TokenId token : setup.allowed_tokens) set_bit(mask, token);
  const int64_t until = int64_t{setup.prompt_len} + setup.min_tokens;
  const bool made = rows_.has_row(setup.slot) && rows_.row_end(setup.slot) >= until;
  if (setup.min_tokens > 0 && !made) {
    request.end_masked_until = until;
    request.then_allowed.assign(mask, mask + words);
    for (const TokenId token : setup.end_tokens) clear_bit(mask, token);
  }
  if (grammars_.constrains(setup.slot)) {
    request.grammar_bounds.assign(mask, mask + words);
    return;
  }
  copy(setup.slot, mask, stream);
}

void TokenMasks::copy(SlotId slot, const uint32_t* mask, Stream& stream) const {
  const size_t words = buffers_.sizes().mask_words();
  stream.copy(slots_.allowed_mask() + static_cast<size_t>(slot) * words, mask,
              words * sizeof(uint32_t));
}

// They and the slots that are set up are different slots, so that the pinned rows suffice for both.
void TokenMasks::lift(const ipc::Step& step, Stream& stream) {
  size_t index = step.setups.size();
  for (const SlotId slot : rows_of(step).slot) {
    SlotRequest& request = table_.at(slot);
    if (request.end_masked_until == 0 || rows_.row_end(slot) < request.end_masked_until) continue;
    request.end_masked_until = 0;
    if (grammars_.constrains(slot)) {
      request.grammar_bounds = std::move(request.then_allowed);
      continue;
    }
    REFRAIN_CHECK(index < static_cast<size_t>(buffers_.sizes().max_reqs), "step {}: {} masks",
                  step.step, index + 1);
    uint32_t* mask = pinned(index++);
    std::copy(request.then_allowed.begin(), request.then_allowed.end(), mask);
    copy(slot, mask, stream);
  }
}

std::vector<GrammarMasks::Row> TokenMasks::grammar_rows(const ipc::Step& step) const {
  std::vector<GrammarMasks::Row> made;
  const ipc::Rows& rows = rows_of(step);
  const InputBuffers::Pinned& pinned = buffers_.next();
  size_t first_logits = 0;
  for (size_t row = 0; row < rows.slot.size(); ++row) {
    const bool verifies = (rows.flags[row] & ipc::kVerifies) != 0;
    const int32_t num_logits = verifies ? rows.num_tokens[row] : 1;
    const size_t first =
        std::exchange(first_logits, first_logits + static_cast<size_t>(num_logits));
    const SlotId slot = rows.slot[row];
    const auto& follower = grammars_.follower(slot);
    if (follower == nullptr || (rows.flags[row] & ipc::kSamples) == 0) continue;
    const SlotRequest& request = table_.at(slot);
    // An answer that is complete before its min_tokens ends all the same.
    made.push_back({.follower = follower,
                    .bounds = request.grammar_bounds,
                    .may_end = request.end_masked_until != 0,
                    .num_logits = num_logits,
                    .mask = pinned.grammar_mask + first * buffers_.sizes().mask_words(),
                    .ready = pinned.grammar_ready + first});
    if (num_logits == 1 || (rows.flags[row] & ipc::kNoDrafts) != 0) continue;
    made.back().drafts =
        pinned.grammar_drafts + row * static_cast<size_t>(buffers_.sizes().num_drafts);
    made.back().drafts_ready = pinned.grammar_drafts_ready + row;
  }
  return made;
}

}  // namespace refrain::worker
