#pragma once
// Ends requests whose time is over: their own deadline, or the longest that they may wait for their
// first token. Owned by the engine, on its executor.

#include <functional>
#include <optional>
#include <set>
#include <utility>

#include "runtime/actor/run_later.h"
#include "runtime/engine/admission.h"
#include "runtime/engine/live_requests.h"
#include "runtime/engine/request_placement.h"

namespace refrain {

class RequestDeadlines {
 public:
  struct Hooks {
    std::function<void()> pump;     // what a request held is free
    std::function<void()> publish;  // requests have ended
  };
  // All outlive it.
  RequestDeadlines(Executor& executor, Admission& admission, LiveRequests& live,
                   RequestPlacement& placement, Hooks hooks)
      : executor_(executor),
        admission_(admission),
        live_(live),
        placement_(placement),
        hooks_(std::move(hooks)) {}
  void connect(RunLater run_later) { run_later_ = std::move(run_later); }  // once

  // The request ends at this time at the latest.
  void end_at(RequestId id, TimePoint deadline);
  // Of a request that enters: why it ends at once, where it came so late that its wait is over.
  std::optional<Error> over_before_it_entered(RequestId id);
  // One timer, for the request that has to begin first: after requests came or times changed.
  void watch_queue();

 private:
  void end_overdue();

  Executor& executor_;
  Admission& admission_;
  LiveRequests& live_;
  RequestPlacement& placement_;
  const Hooks hooks_;
  RunLater run_later_;
  std::set<RequestId> overdue_;                         // accepted, on their way to enter
  std::optional<std::pair<TimePoint, TimerId>> timer_;  // for the earliest deadline of the queue
};

}  // namespace refrain
