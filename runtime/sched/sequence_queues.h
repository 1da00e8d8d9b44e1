#pragma once
// The sequences of a scheduler by what they do: they wait, receive blocks from another group, run,
// or have ended. One that runs no more keeps what it holds until no step in flight has a row of it.
// Owned by the Scheduler, on the engine's executor.

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <unordered_map>
#include <vector>

#include "runtime/sched/sequence_resources.h"

namespace refrain {

class SequenceQueues {
 public:
  using Waiting = std::deque<Sequence*>;

  explicit SequenceQueues(SequenceResources& resources) : resources_(resources) {}  // outlive it

  // It waits behind those of its priority. Its id must be new.
  void add(std::unique_ptr<Sequence> sequence);
  Sequence* find(RequestId id) const;  // null: it has ended

  // By priority, then in order of arrival, but for short prompts that have passed long ones.
  const Waiting& waiting() const { return waiting_; }
  // By priority, then in order of admission: the last one is who makes room.
  const std::vector<Sequence*>& running() const { return running_; }
  // They have slot and blocks, which are being filled.
  const std::vector<Sequence*>& receiving() const { return receiving_; }
  size_t num_unfinished() const { return waiting_.size() + receiving_.size() + running_.size(); }
  // Those with a row in a step in flight, those that have ended since included.
  size_t requests_in_flight() const;
  // So many run no more, and a row in flight keeps their blocks.
  int32_t num_holding() const { return num_holding_; }
  // So many of those that wait have their blocks in another group.
  size_t num_sourced() const { return num_sourced_; }

  // One that waits has got what it needs. Returns the next that waits.
  Waiting::const_iterator run(const Waiting::const_iterator& at);
  Waiting::const_iterator receive(const Waiting::const_iterator& at);
  // Its blocks are filled.
  void run_received(Sequence& sequence);
  // The last running one waits again, before others of its priority.
  void preempt_last();
  // It has ended. What it holds stays until settle().
  void finish(Sequence& sequence);
  // Releases what a sequence outside the running set holds once no step in flight has a row of it;
  // one that has finished is gone afterwards.
  void settle(Sequence& sequence) {
    if (sequence.state == SequenceState::kRunning || sequence.in_flight > 0) return;
    let_go(sequence);
  }
  // One that runs or receives, without a row in flight: it gives up what is its own here and
  // leaves.
  std::unique_ptr<Sequence> take_out(Sequence& sequence);
  // All that have not ended, oldest first; none is left, and what is in flight does not count.
  std::vector<std::unique_ptr<Sequence>> release_all();

 private:
  void let_go(Sequence& sequence);
  void enter_running(Sequence& sequence);

  SequenceResources& resources_;
  std::unordered_map<RequestId, std::unique_ptr<Sequence>> all_;
  Waiting waiting_;
  std::vector<Sequence*> running_;
  std::vector<Sequence*> receiving_;
  size_t num_sourced_ = 0;
  int32_t num_holding_ = 0;
};

}  // namespace refrain
