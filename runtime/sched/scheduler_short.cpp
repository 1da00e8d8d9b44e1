// Who passes whom: short prompts run beside a long one, so that nobody waits for the whole of
// another's prompt, and the long one keeps half of each step's prompt tokens; who waits for the
// place of a LoRA adapter is passed (docs/scheduling.md).

#include <algorithm>

#include "runtime/sched/scheduler.h"

namespace refrain {

// Of a waiting one: what is cached of it, as far as was looked, does not count.
bool Scheduler::is_long(const Sequence& sequence) const {
  const auto cached = static_cast<int32_t>(sequence.prefix.hits) * options_.block_size;
  const int32_t step = std::min(options_.max_num_batched_tokens, chunk_limit_);
  const int32_t threshold = options_.long_prefill_token_threshold;
  return sequence.length() - cached > (threshold > 0 ? threshold : step);
}

// Who waits for a place of its LoRA adapter is passed by requests without one; others with adapters
// wait behind it, so that places get free.
bool Scheduler::adapter_may_enter(const Sequence& sequence) {
  const AdapterId adapter = sequence.params.adapter;
  if (adapter == 0) return true;
  adapter_waits_ = adapter_waits_ || !adapters_.has_room(adapter);
  return !adapter_waits_;
}

// What running long prompts leave of the step to short ones; 0 where there is none.
int32_t Scheduler::tokens_beside_long() const {
  if (!chunks_left_) return 0;
  int64_t wanted = 0;
  for (const Sequence* sequence : running_) {
    if (chunk_left(*sequence) && sequence->long_prompt)
      wanted += sequence->length() - sequence->num_scheduled;
  }
  const int32_t budget = chunk_budget_left();
  const auto kept = static_cast<int32_t>(std::min<int64_t>(wanted, (budget + 1) / 2));
  return wanted == 0 ? 0 : budget - kept;
}

// Those that have begun, then those that wait: they pass long ones, which wait for the running one.
// Where it is blocks or a slot that lack, nobody passes anybody.
void Scheduler::schedule_short_prompts() {
  int32_t left = tokens_beside_long();
  // Half of the step's bytes as well: what one prompt brings along is a quarter at most.
  const auto room = [&] { return left > 0 && step_bytes_ < options_.max_step_bytes / 2; };
  for (size_t i = 0; i < running_.size(); ++i) {  // preemption takes from the end
    if (!room()) return;
    Sequence& sequence = *running_[i];
    if (chunk_left(sequence) && !sequence.long_prompt) left -= add_chunk(sequence, left);
  }
  if (short_of_blocks_) return;
  // Nobody takes the blocks that a long one's next row needs: it would put them back at once.
  const int32_t budget = chunk_budget_left();
  for (Sequence* sequence : running_) {
    if (!chunk_left(*sequence) || !sequence->long_prompt) continue;
    const int32_t end = std::min(sequence->length(), sequence->num_scheduled + budget);
    if (!pools_.ensure(*sequence, end + draft_reach())) return;
  }
  for (auto at = waiting_.begin(); at != waiting_.end() && room() && !free_slots_.empty();) {
    Sequence& sequence = **at;
    if (sequence.in_flight > 0) return;
    if (sequence.source || !adapter_may_enter(sequence)) {
      ++at;
      continue;
    }
    find_prefix(sequence);
    if (is_long(sequence)) {
      ++at;
      continue;
    }
    const int32_t first_row = admit(sequence, left);
    if (first_row == 0) return;
    at = waiting_.erase(at);
    run(sequence);
    add_row(sequence, first_row);
    left -= first_row;
  }
}

}  // namespace refrain
