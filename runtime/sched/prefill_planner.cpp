#include "runtime/sched/prefill_planner.h"

#include <algorithm>

namespace refrain {

void PrefillPlanner::plan(bool chunks_left) {
  receive_expected();
  if (chunks_left) {
    if (options_.enable_chunked_prefill) add_short_prompts();
    add_chunks();
  }
  if (!preemption_.short_of_blocks()) admit_waiting();
}

// What running long prompts leave of the step to short ones; 0 where there is none.
int32_t PrefillPlanner::tokens_beside_long() const {
  int64_t wanted = 0;
  for (const Sequence* sequence : queues_.running()) {
    if (sequence->chunk_left() && sequence->long_prompt)
      wanted += sequence->length() - sequence->num_scheduled;
  }
  const int32_t budget = step_.chunk_budget_left();
  const auto kept = static_cast<int32_t>(
      std::min({wanted, int64_t{(budget + 1) / 2}, int64_t{step_.long_limit_left()}}));
  return wanted == 0 ? 0 : budget - kept;
}

// Nobody takes the blocks that a long one's next row needs: it would put them back at once.
bool PrefillPlanner::long_prompts_have_blocks() {
  const int32_t budget = std::min(step_.chunk_budget_left(), step_.long_limit_left());
  for (Sequence* sequence : queues_.running()) {
    if (!sequence->chunk_left() || !sequence->long_prompt) continue;
    const int32_t end = std::min(sequence->length(), sequence->num_scheduled + budget);
    if (!resources_.pools().ensure(*sequence, end + options_.draft_reach())) return false;
  }
  return true;
}

// Those that have begun, then those that wait: they pass long ones, which wait for the running one.
// Where it is blocks or a slot that lack, nobody passes anybody.
void PrefillPlanner::add_short_prompts() {
  int32_t left = tokens_beside_long();
  // Half of the step's bytes as well: what one prompt brings along is a quarter at most.
  const auto room = [&] { return left > 0 && !step_.half_full(); };
  const auto& running = queues_.running();
  for (size_t i = 0; i < running.size(); ++i) {  // preemption takes from the end
    if (!room()) return;
    Sequence& sequence = *running[i];
    if (sequence.chunk_left() && !sequence.long_prompt) left -= add_chunk(sequence, left);
  }
  if (preemption_.short_of_blocks() || !long_prompts_have_blocks()) return;
  int32_t looks = kLooksAtLong;
  for (auto at = queues_.waiting().begin();
       at != queues_.waiting().end() && room() && resources_.has_slot();) {
    Sequence& sequence = **at;
    if (sequence.in_flight > 0) return;
    if (sequence.source || !admission_.adapter_may_enter(sequence) ||
        (sequence.long_prompt && --looks < 0)) {
      ++at;
      continue;
    }
    resources_.find_prefix(sequence);
    sequence.long_prompt = admission_.is_long(sequence);
    if (sequence.long_prompt) {
      ++at;
      continue;
    }
    const int32_t first_row = admission_.admit(sequence, left);
    if (first_row == 0) return;
    at = queues_.run(at);
    step_.add_row(sequence, first_row);
    left -= first_row;
  }
}

void PrefillPlanner::add_chunks() {
  const auto& running = queues_.running();
  for (size_t i = 0; i < running.size(); ++i) {  // preemption takes from the end
    Sequence& sequence = *running[i];
    if (!sequence.chunk_left() || sequence.planned == step_.number()) continue;
    if (step_.chunk_budget_left() == 0) return;
    if (add_chunk(sequence, step_.chunk_budget_left()) == 0) return;
  }
}

// A row of as much of the prompt as there is room for, at most `most` tokens; how many it has.
int32_t PrefillPlanner::add_chunk(Sequence& sequence, int32_t most) {
  if (sequence.long_prompt) most = std::min(most, step_.long_limit_left());
  const int32_t computed = sequence.num_scheduled;
  const int32_t room = resources_.pools().up_to_checkpoint(
      sequence, computed,
      step_.room_for(sequence, computed, std::min(sequence.length() - computed, most)));
  if (room == 0 || !preemption_.ensure(sequence, computed + room + options_.draft_reach()))
    return 0;
  step_.add_row(sequence, room);
  return room;
}

// They have their blocks already, and pass whoever waits for some: who holds what others need must
// get on.
void PrefillPlanner::receive_expected() {
  if (!transfers_.expects_any()) return;
  for (auto at = queues_.waiting().begin();
       at != queues_.waiting().end() && resources_.has_slot();) {
    if (transfers_.expects(**at) && admission_.adapter_may_enter(**at)) {
      receive(at);
    } else {
      ++at;
    }
  }
}

bool PrefillPlanner::receive(SequenceQueues::Waiting::const_iterator& at) {
  Sequence& sequence = **at;
  if (!transfers_.take_room(sequence)) return false;
  at = queues_.receive(at);
  transfers_.fill(sequence, step_.now());
  const bool all_cached = sequence.state == SequenceState::kRunning;
  if (all_cached && step_.room_for(sequence, sequence.num_scheduled, 1) > 0)
    step_.add_row(sequence, 1);
  return true;
}

void PrefillPlanner::admit_waiting() {
  for (auto at = queues_.waiting().begin();
       at != queues_.waiting().end() && resources_.has_slot() && step_.chunk_budget_left() > 0;) {
    Sequence& sequence = **at;
    // A preempted one waits until its last row in flight has told its token and freed its blocks.
    if (sequence.in_flight > 0) return;
    if (!admission_.adapter_may_enter(sequence)) {
      ++at;
      continue;
    }
    if (sequence.source) {
      if (!receive(at)) return;
      continue;
    }
    const int32_t first_row = admission_.admit(sequence, step_.chunk_budget_left());
    if (first_row == 0) return;
    at = queues_.run(at);
    step_.add_row(sequence, first_row);
    // Where the step's bytes end its row, nobody smaller comes in behind it.
    const bool cut = sequence.num_scheduled < sequence.length();
    if (cut && step_.room_for(sequence, sequence.num_scheduled, 1) == 0) return;
  }
}

}  // namespace refrain
