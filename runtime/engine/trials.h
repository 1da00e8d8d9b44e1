#pragma once
// Finds a request that ends its workers: of those that were in flight at two losses in a row
// each runs alone in one group until it has got past the steps that were lost. The one at which the
// workers are lost again is ended, the others go on (docs/scheduling.md). Requests that wait, for a
// group or for their trial, wait here. Owned by the engine, on its executor.

#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "runtime/base/result.h"
#include "runtime/engine/engine.h"
#include "runtime/sched/sequence.h"

namespace refrain {

class GroupService;

// In order of arrival.
class RequestQueue {
 public:
  void add(std::unique_ptr<Sequence> sequence);
  void remove(RequestId id);
  const Sequence* find(RequestId id) const;
  size_t size() const { return queue_.size(); }
  void clear() { queue_.clear(); }
  std::vector<std::unique_ptr<Sequence>> take_all();
  size_t num_suspects() const;
  std::unique_ptr<Sequence> take_suspect();  // the first one; null: there is none
  std::vector<std::unique_ptr<Sequence>> take_suspects();

 private:
  std::deque<std::unique_ptr<Sequence>> queue_;
};

class Trials {
 public:
  struct Hooks {
    std::function<void(const Sequence&, const Error&)> end;  // it is not tried again
    std::function<void(std::unique_ptr<Sequence>)> run;      // in the group of the trials
    std::function<void(RequestId)> waits;                    // it has left the group again
    std::function<void()> over;                              // all requests run again
    std::function<void(Isolation)> tell;
  };
  Trials(RequestQueue& queue, Hooks hooks) : queue_(queue), hooks_(std::move(hooks)) {}

  bool on() const { return on_; }
  // Where suspects run, while it is on; no other request does.
  int32_t group() const { return group_; }
  bool reserves(int32_t group) const { return on_ && group_ == group; }
  // Groups that step together are lost together: while one is tried, all others wait.
  void hold_all_groups() { holds_all_ = true; }
  bool holds(int32_t group) const { return on_ && (holds_all_ || group_ == group); }
  void move_to(int32_t group) { group_ = group; }  // the one before is lost for good

  // There are losses whose cause is gone: new workers answer a canary before requests run.
  bool must_prove() const { return to_explain_ > 0; }
  // Requests that the group had when it was lost: each waits again, or is given up.
  void took_back(std::vector<std::unique_ptr<Sequence>> requests, bool alone, const Error& error);
  // After that. Suspects of one loss stay suspects until each has run.
  void isolate(int32_t group, const Error& error);
  // A request completed: it shows that workers are not lost with any.
  void completed();
  // Workers answered a canary; `proved`: before any request ran on them.
  void good_canary(int32_t group, bool proved);
  // New workers of a group have to prove themselves.
  void proving(int32_t group);
  // A request that leaves may have ended its workers, and comes again: what it was alone with
  // counts as its own, once the workers have shown that they are good without it.
  void leaves(const Sequence& sequence) { to_explain_ += sequence.losses_alone; }
  // With the group ready. Goes on to the next suspect when the one before has ended or has got
  // past the steps that were lost, and lets all run when there is none left.
  void go_on(GroupService& group);

 private:
  // So many that are lost alone, one after the other, say that the workers fail with any request.
  static constexpr int kMostInARow = 4;

  void give_up(const Sequence& sequence, const Error& error);
  void tell(int explained);

  RequestQueue& queue_;
  Hooks hooks_;
  bool holds_all_ = false;
  bool on_ = false;       // suspects run alone, one after the other
  bool proving_ = false;  // the group's workers have yet to answer a canary
  int32_t group_ = 0;
  RequestId current_ = 0;  // 0: none
  int ended_ = 0, ended_in_a_row_ = 0;
  int to_explain_ =
      0;  // losses of requests that are gone: explained when the next workers are good
};

}  // namespace refrain
