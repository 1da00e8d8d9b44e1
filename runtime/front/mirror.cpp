#include "runtime/front/mirror.h"

namespace refrain::front {

void Mirror::tell(const EngineHealth& health, TimePoint now) {
  const std::lock_guard lock(mutex_);
  there_ = true;
  health_ = health;
  told_ = now;
}

void Mirror::tell(const EngineStats& stats, uint64_t late) {
  const std::lock_guard lock(mutex_);
  stats_ = stats;
  late_ = late;
}

void Mirror::lose(const std::string& detail) {
  const std::lock_guard lock(mutex_);
  there_ = false;
  health_.state = GroupState::kWaiting;
  health_.state_detail = detail;
  health_.requests_running = 0;
  for (GroupState& state : health_.groups) state = GroupState::kWaiting;
}

void Mirror::set_requests(uint64_t requests) {
  const std::lock_guard lock(mutex_);
  requests_ = requests;
}

EngineHealth Mirror::health(TimePoint now) const {
  const std::lock_guard lock(mutex_);
  EngineHealth health = health_;
  // A coordinator that has just come may not have them all yet.
  if (health.state != GroupState::kReady && requests_ > health.requests_running)
    health.requests_waiting = requests_ - health.requests_running;
  if (told_ == TimePoint{}) return health;
  const double age = seconds_between(told_, now);
  health.seconds_since_last_answer += age;
  health.seconds_since_progress += age;
  return health;
}

EngineStats Mirror::stats() const {
  const std::lock_guard lock(mutex_);
  EngineStats stats = stats_;
  if (there_) return stats;
  stats.state = GroupState::kWaiting;
  stats.state_detail = health_.state_detail;
  stats.requests_running = 0;
  stats.requests_waiting = requests_;
  for (GroupStats& group : stats.groups) group.state = GroupState::kWaiting;
  return stats;
}

uint64_t Mirror::late() const {
  const std::lock_guard lock(mutex_);
  return late_;
}

}  // namespace refrain::front
