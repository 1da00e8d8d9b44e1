#include "runtime/sched/split_prefill.h"

#include <algorithm>

namespace refrain {

Sequence* SplitPrefill::in_parts() const {
  if (!on()) return nullptr;
  const auto& running = queues_.running();
  const auto found = std::ranges::find_if(
      running, [](const Sequence* sequence) { return sequence->split_tokens > 0; });
  return found == running.end() ? nullptr : *found;
}

// Parts and decodes take turns, and a turn lasts until its step is planned: decodes that wait for
// the blocks of a prompt in parts get them before the next part takes them again. With nobody to
// decode the parts follow each other.
bool SplitPrefill::plan(bool others_decode) {
  if (part_before_ && others_decode) return false;
  if (under_way()) {
    add_next();
    return true;
  }
  return others_decode && begin();
}

void SplitPrefill::add_next() {
  Sequence& sequence = *in_parts();
  add_part(sequence, sequence.split_tokens);
}

bool SplitPrefill::may_split(const Sequence& sequence) const {
  const ipc::SlotSetup& setup = sequence.params.setup;
  const bool counts_tokens = setup.repetition_penalty != 1.0f || setup.presence_penalty != 0.0f ||
                             setup.frequency_penalty != 0.0f;  // each part would count them
  return sequence.length() - sequence.num_scheduled >= least_tokens() && sequence.pending == 0 &&
         !counts_tokens && setup.num_prompt_logprobs < 0;
}

// Of the prompt that is next: one that has begun and has no token yet, or the head of the queue.
bool SplitPrefill::begin() {
  // What a step may have is of its time, and a part takes a share of the row's.
  const auto most = static_cast<int32_t>(
      options_.enable_chunked_prefill
          ? std::min<int64_t>(step_.budget_left(),
                              int64_t{step_.chunk_limit()} * options_.split_prefill)
          : step_.budget_left());
  if (most < least_tokens()) return false;
  const auto& running = queues_.running();
  const auto begun =
      std::ranges::find_if(running, [](const Sequence* sequence) { return !sequence->sampled; });
  if (begun != running.end()) {
    Sequence& sequence = **begun;
    if (!may_split(sequence)) return false;
    const int32_t computed = sequence.num_scheduled;
    BlockPools& pools = resources_.pools();
    const int32_t room = pools.up_to_checkpoint(
        sequence, computed,
        step_.room_for(sequence, computed, std::min(sequence.length() - computed, most)));
    if (room < least_tokens() || !pools.ensure(sequence, computed + room)) return false;
    add_part(sequence, room);
    return true;
  }
  if (queues_.waiting().empty() || !resources_.has_slot()) return false;
  Sequence& sequence = *queues_.waiting().front();
  if (sequence.in_flight > 0 || !may_split(sequence) || !admission_.adapter_may_enter(sequence))
    return false;
  const int32_t first_row = admission_.admit(sequence, most);
  if (first_row == 0) return false;
  queues_.run(queues_.waiting().begin());
  if (first_row < least_tokens()) {  // most of it is cached: a step of its own
    step_.add_row(sequence, first_row);
  } else {
    add_part(sequence, first_row);
  }
  return true;
}

void SplitPrefill::add_part(Sequence& sequence, int32_t num_tokens) {
  step_.set_part(sequence.next_part++);
  const int32_t from = sequence.num_scheduled;
  step_.add_row(sequence, num_tokens);
  if (step_.run_ends()) {
    sequence.split_tokens = sequence.next_part = 0;
  } else {
    sequence.split_tokens = num_tokens;
    sequence.num_scheduled = from;
  }
}

}  // namespace refrain
