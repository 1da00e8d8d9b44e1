#include "runtime/engine/plan_timer.h"

namespace refrain {

bool PlanTimer::too_early() {
  const auto at = pace_.plan_at(lead_);
  if (!at || crowded_) return false;
  const Duration left = *at - executor_.clock().now();
  if (left <= Duration::zero()) return false;
  if (timer_ && timer_->first == *at) return true;
  if (timer_) executor_.cancel(timer_->second);
  const TimerId timer = run_later_(left, [this] {
    timer_.reset();
    due_();
  });
  timer_ = {*at, timer};
  return true;
}

}  // namespace refrain
