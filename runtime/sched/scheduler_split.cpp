// Prompts whose run is cut into parts beside decodes (CG-39): a part of the layers for a whole row,
// then a step of those who decode, so that they wait for a part and not for the row. A row is in
// the cache with its last part; before that it counts as not scheduled.

#include <algorithm>

#include "runtime/base/check.h"
#include "runtime/sched/scheduler.h"

namespace refrain {

// The next part, or the first one of a long row that came up; false: the step is one of others.
// Parts and decodes take turns, and a turn lasts until its step is planned: decodes that wait for
// the blocks of a prompt in parts get them before the next part takes them again. With nobody to
// decode the parts follow each other.
bool Scheduler::schedule_part() {
  if (options_.split_prefill == 1) return false;
  const bool others_decode = std::ranges::any_of(running_, [this](const Sequence* sequence) {
    return !chunk_left(*sequence) && !sequence->ends_in_flight(options_.max_model_len) &&
           // Two rows that verify are as many as may be in flight.
           (options_.num_drafts == 0 || sequence->in_flight < 2);
  });
  if (part_before_ && others_decode) return false;
  if (split_.sequence != nullptr) {
    add_part(*split_.sequence, split_.num_tokens);
  } else if (!others_decode || !begin_split()) {
    return false;
  }
  return true;
}

bool Scheduler::may_split(const Sequence& sequence) const {
  const ipc::SlotSetup& setup = sequence.params.setup;
  const bool counts_tokens = setup.repetition_penalty != 1.0f || setup.presence_penalty != 0.0f ||
                             setup.frequency_penalty != 0.0f;  // each part would count them
  return sequence.length() - sequence.num_scheduled >= least_split() && sequence.pending == 0 &&
         !counts_tokens && setup.num_prompt_logprobs < 0;
}

// Of the prompt that is next: one that has begun and has no token yet, or the head of the queue.
bool Scheduler::begin_split() {
  // What a step may have is of its time, and a part takes a share of the row's.
  const auto most = static_cast<int32_t>(
      options_.enable_chunked_prefill
          ? std::min<int64_t>(budget_left(), int64_t{chunk_limit_} * options_.split_prefill)
          : budget_left());
  if (most < least_split()) return false;
  const auto begun =
      std::ranges::find_if(running_, [](const Sequence* sequence) { return !sequence->sampled; });
  if (begun != running_.end()) {
    Sequence& sequence = **begun;
    if (!may_split(sequence)) return false;
    const int32_t computed = sequence.num_scheduled;
    const int32_t room = pools_.up_to_checkpoint(
        sequence, computed,
        room_for(sequence, computed, std::min(sequence.length() - computed, most)));
    if (room < least_split() || !pools_.ensure(sequence, computed + room)) return false;
    add_part(sequence, room);
    return true;
  }
  if (waiting_.empty() || free_slots_.empty()) return false;
  Sequence& sequence = *waiting_.front();
  if (sequence.in_flight > 0 || !may_split(sequence) || !adapter_may_enter(sequence)) return false;
  const int32_t first_row = admit(sequence, most);
  if (first_row == 0) return false;
  waiting_.pop_front();
  run(sequence);
  if (first_row < least_split()) {  // most of it is cached: a step of its own
    add_row(sequence, first_row);
  } else {
    add_part(sequence, first_row);
  }
  return true;
}

void Scheduler::add_part(Sequence& sequence, int32_t num_tokens) {
  if (split_.sequence == nullptr) split_ = {&sequence, num_tokens, 0};
  ipc::Run& run = plan_.step().runs.front();
  run.parts = options_.split_prefill;
  run.part = split_.next_part++;
  const int32_t from = sequence.num_scheduled;
  add_row(sequence, num_tokens);
  if (!run.ends()) {
    sequence.num_scheduled = from;
  } else {
    split_ = {};
  }
}

}  // namespace refrain
