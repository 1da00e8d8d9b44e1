#pragma once
// How often what ended may be started again, and after what pause: at most `most` times in
// kWindow, with a pause that doubles and a jitter from the seed, so that hosts which fail together
// do not start together. Losses whose cause was found and removed are forgotten. A plain value
// under the supervisor's clock.

#include <algorithm>
#include <chrono>
#include <deque>
#include <optional>
#include <random>

#include "runtime/base/clock.h"

namespace refrain {

class RestartPolicy {
 public:
  static constexpr Duration kWindow = std::chrono::seconds(60);
  static constexpr Duration kFirstPause = std::chrono::milliseconds(100);

  RestartPolicy(int most, uint64_t seed) : most_(static_cast<size_t>(most)), random_(seed) {}

  // Counts a restart now and gives the pause before it; nothing when there were too many.
  std::optional<Duration> next(TimePoint now) {
    while (!restarts_.empty() && now - restarts_.front() > kWindow) restarts_.pop_front();
    if (restarts_.size() >= most_) return std::nullopt;
    const Duration pause = kFirstPause * (1 << std::min<size_t>(restarts_.size(), 3));
    restarts_.push_back(now);
    std::uniform_int_distribution<Duration::rep> jitter(0, pause.count() / 2);
    return pause + Duration(jitter(random_));
  }
  // The last `count` of the restarts count no longer.
  void forget(int count) {
    for (; count > 0 && !restarts_.empty(); --count) restarts_.pop_back();
  }

 private:
  size_t most_;
  std::deque<TimePoint> restarts_;
  std::mt19937_64 random_;
};

}  // namespace refrain
