// The part of Scheduler that writes rows, and what they bring along, into the step.

#include <algorithm>
#include <utility>

#include "runtime/base/check.h"
#include "runtime/sched/scheduler.h"

namespace refrain {

int32_t Scheduler::room_for_more(const Sequence& sequence, int32_t computed, int32_t wanted) const {
  size_t bytes = step_bytes_ + ipc::kStepRowBytes;
  if (!sequence.setup_sent) {
    bytes += ipc::bytes_of(sequence.params.setup);
    bytes += static_cast<size_t>(history_of(computed)) * sizeof(TokenId);
    if (sequence.params.setup.follows_output())
      bytes += static_cast<size_t>(sequence.output_len()) * ipc::kStepTokenBytes;
  }
  bytes += pools_.num_unsent(sequence, computed + draft_reach()) * ipc::kBlockUpdateBytes;
  if (options_.draft_head) bytes += sizeof(TokenId);
  if (bytes + sizeof(TokenId) >= options_.max_step_bytes) return 0;
  const size_t fit = (options_.max_step_bytes - bytes) / token_bytes();
  int32_t most = std::min(wanted, budget_left());
  if (sequence.num_scored(computed, most) > 0) {
    const int64_t entries = 1 + sequence.params.setup.num_prompt_logprobs;
    bytes += sizeof(TokenId);
    most = static_cast<int32_t>(std::min<int64_t>(most, scores_left_ / entries));
  }
  return fit < static_cast<size_t>(most) ? static_cast<int32_t>(fit) : most;
}

void Scheduler::add_row(Sequence& sequence, int32_t num_tokens) {
  if (!sequence.setup_sent) add_setup(sequence);
  prebuilt_rows_ |= std::exchange(sequence.prebuilt, false);
  const int32_t from = sequence.num_scheduled;
  const int32_t to = from + num_tokens;
  const ipc::Run& run = plan_.step().runs.front();
  const bool samples = to == sequence.length() && run.ends();
  ipc::Rows& rows = this->rows();
  rows.slot.push_back(sequence.slot);
  rows.num_tokens.push_back(num_tokens);
  rows.computed.push_back(from);
  rows.flags.push_back(static_cast<uint8_t>(samples ? ipc::kSamples : 0));
  // What the slot has sampled is not sent back to it: the device would count it twice.
  const auto known = sequence.sampled ? from : static_cast<int32_t>(sequence.tokens.size());
  const int32_t known_to = std::min(to, known);
  if (from < known_to)
    rows.token_ids.insert(rows.token_ids.end(), sequence.tokens.begin() + from,
                          sequence.tokens.begin() + known_to);
  REFRAIN_CHECK(to - std::max(from, known) <= 1, "a row may take one token from the device");
  if (to > known) rows.token_ids.push_back(kTokenOnDevice);
  const int32_t scored = sequence.num_scored(from, num_tokens);
  if (scored > 0) {
    rows.flags.back() |= ipc::kScores;
    rows.next_tokens.push_back(to < sequence.prompt_len ? sequence.tokens[static_cast<size_t>(to)]
                                                        : TokenId{-1});
    step_bytes_ += sizeof(TokenId);
    scores_left_ -= int64_t{scored} * (1 + sequence.params.setup.num_prompt_logprobs);
  }
  if (options_.draft_head && !samples) {
    rows.flags.back() |= ipc::kContinues;
    rows.next_tokens.push_back(sequence.tokens.at(static_cast<size_t>(to)));
    step_bytes_ += sizeof(TokenId);
  }
  sequence.num_scheduled = to;
  sequence.planned = next_step_;
  if (run.part == 0) send_blocks(sequence, to + draft_reach());
  step_bytes_ += ipc::kStepRowBytes + static_cast<size_t>(num_tokens) * ipc::kStepTokenBytes;
  if (samples) {
    ++sequence.pending;
    ++sequence.pending_most;
  }
  sequence.sampled = samples;
  ++sequence.in_flight;
  const int32_t computed = run.ends() ? to : from;
  building_.rows.push_back({&sequence, computed, samples ? 1 : 0, samples ? 1 : 0, scored, from});
}

// A row of the token that the slot has sampled.
void Scheduler::add_decode(Sequence& sequence) {
  const int32_t from = sequence.num_scheduled, to = from + 1;
  ipc::Rows& rows = this->rows();
  rows.slot.push_back(sequence.slot);
  rows.num_tokens.push_back(1);
  rows.computed.push_back(from);
  rows.flags.push_back(ipc::kSamples);
  rows.token_ids.push_back(kTokenOnDevice);
  sequence.num_scheduled = to;
  sequence.planned = next_step_;
  send_blocks(sequence, to + draft_reach());
  step_bytes_ += ipc::kStepRowBytes + ipc::kStepTokenBytes;
  ++sequence.pending;
  ++sequence.pending_most;
  ++sequence.in_flight;
  building_.rows.push_back({&sequence, to, 1, 1, 0, from});
}

void Scheduler::add_setup(Sequence& sequence) {
  sequence.setup_sent = true;
  ipc::SlotSetup& setup = plan_.step().setups.emplace_back(sequence.params.setup);
  setup.slot = sequence.slot;
  setup.adapter = sequence.adapter_place;
  if (setup.follows_output())
    setup.output_tokens.assign(sequence.tokens.begin() + sequence.prompt_len,
                               sequence.tokens.end());
  if (options_.num_drafts > 0) add_history(sequence, setup);
  step_bytes_ += ipc::bytes_of(setup);
}

// The entries of block tables for its first `tokens` tokens that the device lacks.
void Scheduler::send_blocks(Sequence& sequence, int32_t tokens) {
  step_bytes_ += pools_.send(sequence, tokens, plan_.step()) * ipc::kBlockUpdateBytes;
}

}  // namespace refrain
