#include "runtime/sched/sequence_queues.h"

#include <algorithm>
#include <utility>

#include "runtime/base/check.h"

namespace refrain {
namespace {

int32_t priority_of(const Sequence* sequence) { return sequence->params.priority; }

}  // namespace

void SequenceQueues::add(std::unique_ptr<Sequence> sequence) {
  const RequestId id = sequence->id;
  const auto [entry, added] = all_.emplace(id, std::move(sequence));
  REFRAIN_CHECK(added, "request {} is in the scheduler already", id);
  Sequence* const last = entry->second.get();
  if (last->source) ++num_sourced_;
  waiting_.insert(std::ranges::upper_bound(waiting_, priority_of(last), {}, priority_of), last);
}

Sequence* SequenceQueues::find(RequestId id) const {
  const auto found = all_.find(id);
  if (found == all_.end() || found->second->state == SequenceState::kFinished) return nullptr;
  return found->second.get();
}

size_t SequenceQueues::requests_in_flight() const {
  return static_cast<size_t>(
      std::ranges::count_if(all_, [](const auto& entry) { return entry.second->in_flight > 0; }));
}

void SequenceQueues::enter_running(Sequence& sequence) {
  sequence.state = SequenceState::kRunning;
  running_.insert(std::ranges::upper_bound(running_, priority_of(&sequence), {}, priority_of),
                  &sequence);
}

SequenceQueues::Waiting::const_iterator SequenceQueues::run(const Waiting::const_iterator& at) {
  Sequence& sequence = **at;
  const auto next = waiting_.erase(at);
  enter_running(sequence);
  return next;
}

SequenceQueues::Waiting::const_iterator SequenceQueues::receive(const Waiting::const_iterator& at) {
  Sequence& sequence = **at;
  sequence.state = SequenceState::kReceiving;
  --num_sourced_;
  receiving_.push_back(&sequence);
  return waiting_.erase(at);
}

void SequenceQueues::run_received(Sequence& sequence) {
  std::erase(receiving_, &sequence);
  enter_running(sequence);
}

void SequenceQueues::preempt_last() {
  Sequence& victim = *running_.back();
  running_.pop_back();
  victim.state = SequenceState::kWaiting;
  waiting_.insert(std::ranges::lower_bound(waiting_, priority_of(&victim), {}, priority_of),
                  &victim);
  ++num_holding_;
  settle(victim);
}

void SequenceQueues::finish(Sequence& sequence) {
  if (sequence.state == SequenceState::kRunning) {
    std::erase(running_, &sequence);
    ++num_holding_;
  } else {
    if (sequence.source) --num_sourced_;
    std::erase(waiting_, &sequence);  // a preempted one with rows in flight counts already
    if (sequence.holds_nothing()) ++num_holding_;
  }
  sequence.state = SequenceState::kFinished;
}

void SequenceQueues::let_go(Sequence& sequence) {
  REFRAIN_CHECK(sequence.pending == 0, "request {} waits for {} tokens of no step", sequence.id,
                sequence.pending);
  --num_holding_;
  resources_.release(sequence);
  if (sequence.state == SequenceState::kFinished) all_.erase(sequence.id);
}

std::unique_ptr<Sequence> SequenceQueues::take_out(Sequence& sequence) {
  std::erase(sequence.state == SequenceState::kRunning ? running_ : receiving_, &sequence);
  resources_.release(sequence);
  sequence.state = SequenceState::kWaiting;
  const auto found = all_.find(sequence.id);
  std::unique_ptr<Sequence> taken = std::move(found->second);
  all_.erase(found);
  return taken;
}

std::vector<std::unique_ptr<Sequence>> SequenceQueues::release_all() {
  std::vector<std::unique_ptr<Sequence>> left;
  const auto take = [&](const auto& sequences) {
    for (const Sequence* sequence : sequences) left.push_back(std::move(all_.at(sequence->id)));
  };
  take(running_);
  take(receiving_);
  take(waiting_);
  for (auto& [id, ended] : all_)
    if (ended) resources_.release(*ended);
  for (auto& sequence : left) resources_.release(*sequence);
  all_.clear();
  waiting_.clear();
  receiving_.clear();
  running_.clear();
  num_sourced_ = 0;
  num_holding_ = 0;
  return left;
}

}  // namespace refrain
