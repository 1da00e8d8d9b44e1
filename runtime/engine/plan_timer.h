#pragma once
// Holds a step back until shortly before the one in flight ends, so that requests that come
// meanwhile are in it. Owned by a group's service, on the engine's executor.

#include <functional>
#include <optional>
#include <utility>

#include "runtime/actor/run_later.h"
#include "runtime/engine/step_pace.h"

namespace refrain {

class PlanTimer {
 public:
  // Both outlive it. `due`: it is time to plan.
  PlanTimer(Executor& executor, const StepPace& pace, Duration lead, std::function<void()> due)
      : executor_(executor), pace_(pace), lead_(lead), due_(std::move(due)) {}
  void connect(RunLater run_later) { run_later_ = std::move(run_later); }  // once

  // A step was planned, and left requests waiting: one that comes now would wait behind them
  // whenever the next step is planned.
  void planned(bool requests_wait) { crowded_ = requests_wait; }
  bool too_early();  // then it is due later

 private:
  Executor& executor_;
  const StepPace& pace_;
  const Duration lead_;
  const std::function<void()> due_;
  RunLater run_later_;
  bool crowded_ = false;
  std::optional<std::pair<TimePoint, TimerId>> timer_;
};

}  // namespace refrain
