#pragma once
// Time as a dependency, so that tests run under a clock they move. steady_clock() is the real one;
// ManualClock moves only when told. Both may be read from any thread.

#include <atomic>
#include <chrono>

namespace refrain {

using TimePoint = std::chrono::steady_clock::time_point;
using Duration = std::chrono::steady_clock::duration;

class Clock {
 public:
  virtual ~Clock() = default;
  virtual TimePoint now() const = 0;
};

const Clock& steady_clock();

class ManualClock final : public Clock {
 public:
  TimePoint now() const override { return TimePoint(Duration(ticks_.load())); }
  void advance(Duration by) { ticks_ += by.count(); }

 private:
  std::atomic<Duration::rep> ticks_{0};
};

// Seconds as doubles: of a time, between two points, and back.
inline double seconds_of(Duration time) { return std::chrono::duration<double>(time).count(); }
inline double seconds_between(TimePoint from, TimePoint to) { return seconds_of(to - from); }
inline Duration to_duration(double seconds) {
  return std::chrono::duration_cast<Duration>(std::chrono::duration<double>(seconds));
}

}  // namespace refrain
