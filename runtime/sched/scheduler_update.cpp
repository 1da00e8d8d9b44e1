// The half of Scheduler that takes results: what is computed, who has ended, what is free again.

#include <algorithm>
#include <utility>

#include "runtime/base/check.h"
#include "runtime/sched/scheduler.h"

namespace refrain {

Status Scheduler::update(const ipc::StepResult& result, std::vector<TokenEvent>& events) {
  if (in_flight_.empty() || in_flight_.front().step != result.step)
    return fail(ErrorCode::kInternal, "an answer to step {} came while waiting for step {}",
                result.step, in_flight_.empty() ? 0 : in_flight_.front().step);
  if (result.tokens.size() != in_flight_.front().rows.size())
    return fail(ErrorCode::kInternal, "the answer to step {} has {} rows instead of {}",
                result.step, result.tokens.size(), in_flight_.front().rows.size());
  InFlight done = std::move(in_flight_.front());
  for (size_t i = 0; i < done.rows.size(); ++i) {
    const bool sampled = result.tokens[i] >= 0 || result.tokens[i] == ipc::kNoFiniteLogit;
    if (done.rows[i].samples == sampled) continue;
    in_flight_.front() = std::move(done);
    return fail(ErrorCode::kInternal, "the answer to step {} has token {} in row {}, which {}",
                result.step, result.tokens[i], i,
                in_flight_.front().rows[i].samples ? "must sample" : "does not sample");
  }
  in_flight_.pop_front();
  for (size_t i = 0; i < done.rows.size(); ++i) {
    const Row& row = done.rows[i];
    Sequence& sequence = *row.sequence;
    --sequence.in_flight;
    sequence.num_computed = row.computed;
    if (row.samples) --sequence.pending;
    if (row.samples && sequence.state != SequenceState::kFinished) {
      const TokenId token = result.tokens[i];
      const bool none = token == ipc::kNoFiniteLogit;
      const StopCause stop =
          none ? StopCause::kNoLogit
               : sequence.append(token, options_.eos_token_ids, options_.max_model_len);
      events.push_back({sequence.id, static_cast<int32_t>(i), token, sequence.cached_tokens, stop});
      if (none) {
        distrust(sequence);
      } else {
        ++stats_.generated_tokens;
      }
      if (stop != StopCause::kNone) finish(sequence);
    }
    publish(sequence);
    settle(sequence);
  }
  done.rows.clear();
  spare_rows_.push_back(std::move(done.rows));
  return {};
}

// Makes full blocks whose contents are computed and known findable by other requests.
void Scheduler::publish(Sequence& sequence) {
  if (!options_.enable_prefix_caching || sequence.distrusted) return;
  const int32_t size = options_.block_size;
  const auto known = static_cast<int32_t>(sequence.tokens.size());
  const int32_t full = std::min(sequence.num_computed, known) / size;
  for (int32_t& i = sequence.blocks_published; i < full; ++i) {
    const std::span<const TokenId> tokens(sequence.tokens.data() + i * size,
                                          static_cast<size_t>(size));
    sequence.chain = prefix_cache_.insert(sequence.params.cache_salt, sequence.chain, tokens,
                                          sequence.blocks[static_cast<size_t>(i)].id());
  }
}

// What its row read may be what left it without a logit: no request begins with that again. One
// that shares these blocks now is judged by its own rows.
void Scheduler::distrust(Sequence& sequence) {
  sequence.distrusted = true;
  for (const BlockRef& block : sequence.blocks) prefix_cache_.forget(block.id());
}

// Takes a sequence out of the queues. What it holds stays until settle().
void Scheduler::finish(Sequence& sequence) {
  if (sequence.state == SequenceState::kRunning) {
    std::erase(running_, &sequence);
    ++holding_;
  } else {
    std::erase(waiting_, &sequence);  // a preempted one with rows in flight counts already
    if (sequence.holds_nothing()) ++holding_;
  }
  sequence.state = SequenceState::kFinished;
}

// Releases what a sequence outside the running set holds once no step in flight has a row of it;
// one that has finished is gone afterwards.
void Scheduler::settle(Sequence& sequence) {
  if (sequence.state == SequenceState::kRunning || sequence.in_flight > 0) return;
  REFRAIN_CHECK(sequence.pending == 0, "request {} waits for {} tokens of no step", sequence.id,
                sequence.pending);
  --holding_;
  release(sequence);
  if (sequence.state == SequenceState::kFinished) sequences_.erase(sequence.id);
}

void Scheduler::release(Sequence& sequence) {
  // The last block first: of a cached chain the end is reused before its beginning.
  while (!sequence.blocks.empty()) sequence.blocks.pop_back();
  if (sequence.slot >= 0) free_slots_.push_back(sequence.slot);
  sequence.slot = -1;
  sequence.setup_sent = sequence.sampled = false;
  sequence.blocks_sent = sequence.blocks_published = 0;
  sequence.chain = PrefixCache::kRoot;
  sequence.prefix = {};  // of this scheduler's cache
  sequence.num_computed = sequence.num_scheduled = 0;
}

std::vector<std::unique_ptr<Sequence>> Scheduler::release_all() {
  std::vector<std::unique_ptr<Sequence>> left;
  for (Sequence* sequence : running_) left.push_back(std::move(sequences_.at(sequence->id)));
  for (Sequence* sequence : waiting_) left.push_back(std::move(sequences_.at(sequence->id)));
  for (auto& [id, sequence] : sequences_)
    if (sequence) release(*sequence);
  for (auto& sequence : left) {
    release(*sequence);
    sequence->lose_group();
  }
  sequences_.clear();
  waiting_.clear();
  running_.clear();
  in_flight_.clear();
  holding_ = 0;
  return left;
}

SchedulerStats Scheduler::stats() const {
  SchedulerStats stats = stats_;
  stats.waiting = waiting_.size();
  stats.running = running_.size();
  stats.blocks_total = blocks_.num_usable();
  stats.blocks_free = blocks_.num_free();
  return stats;
}

}  // namespace refrain
