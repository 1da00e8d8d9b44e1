#include "runtime/engine/request_deadlines.h"

#include <algorithm>

namespace refrain {
namespace {

Error waited_too_long() {
  return {ErrorCode::kUnavailable,
          "the request waited for as long as --max-queue-wait or max_queue_wait allows",
          {}};
}

}  // namespace

void RequestDeadlines::end_at(RequestId id, TimePoint deadline) {
  live_.at(id).deadline = run_later_(deadline - executor_.clock().now(), [this, id] {
    if (!live_.contains(id)) return;
    placement_.remove(id);
    live_.end(id, FinishReason::kError,
              Error{ErrorCode::kDeadline, "the request did not finish by its deadline", {}});
    hooks_.pump();
    hooks_.publish();
  });
}

std::optional<Error> RequestDeadlines::over_before_it_entered(RequestId id) {
  if (overdue_.erase(id) == 0) return std::nullopt;
  admission_.started(id);  // waits no longer: before its client is told
  admission_.late();
  return waited_too_long();
}

void RequestDeadlines::watch_queue() {
  const auto deadline = admission_.next_deadline();
  if (!deadline || (timer_ && timer_->first <= *deadline)) return;
  if (timer_) executor_.cancel(timer_->second);
  const Duration left = std::max(*deadline - executor_.clock().now(), Duration::zero());
  timer_ = {*deadline, run_later_(left, [this] { end_overdue(); })};
}

void RequestDeadlines::end_overdue() {
  timer_.reset();
  for (const RequestId id : admission_.take_overdue(executor_.clock().now())) {
    if (!live_.contains(id)) {
      overdue_.insert(id);
      continue;
    }
    admission_.started(id);  // waits no longer, whatever comes: before its client is told
    const Sequence* sequence = placement_.find(id);
    // It runs, or ran before a loss.
    if (sequence != nullptr && sequence->admitted_before) continue;
    admission_.late();
    placement_.remove(id);
    live_.end(id, FinishReason::kError, waited_too_long());
  }
  watch_queue();
  hooks_.publish();
}

}  // namespace refrain
