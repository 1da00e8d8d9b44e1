#pragma once
// Tests a group's workers with a canary, a request of one token: idle ones, to see that they answer
// those of a new group, before the requests that ended the one before are blamed;
// and those whose rows of different requests have no finite logit. Owned by the group's
// service, on the engine's executor.

#include <cstdint>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "runtime/actor/run_later.h"
#include "runtime/engine/logit_failures.h"
#include "runtime/sched/scheduler.h"

namespace refrain {

class GroupCanary {
 public:
  static constexpr Duration kAfter = std::chrono::seconds(4);  // without an answer

  // `pump`: a canary is there to be planned.
  GroupCanary(Executor& executor, std::function<void()> pump)
      : executor_(executor), pump_(std::move(pump)) {}
  void connect(RunLater run_later) { run_later_ = std::move(run_later); }  // once

  // The workers are ready: they are watched until end().
  void begin(Scheduler& scheduler);
  void end();
  void answered(TimePoint now);  // a step, by all ranks
  void send();                   // if none is under way
  bool out() const { return out_; }
  // Takes the canary's token out of a step's events: whether it has one. Nothing: it is not there.
  std::optional<bool> take(std::vector<TokenEvent>& events);
  // One more request had no finite logit. True: that goes on, and a canary shall decide.
  bool no_logit() { return logit_failures_.add(num_answers_); }

 private:
  void watch();

  Executor& executor_;
  const std::function<void()> pump_;
  RunLater run_later_;
  Scheduler* scheduler_ = nullptr;  // while the group is ready
  bool out_ = false;
  TimePoint last_answer_{};
  TimerId timer_ = 0;
  LogitFailures logit_failures_;
  uint64_t num_answers_ = 0;  // to steps, of all epochs
};

}  // namespace refrain
