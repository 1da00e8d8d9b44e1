#pragma once
// Ends this process when its threads do not: a thread that only waits, and that nothing else
// has to run for. Counts from end_within(), or from the parent's death. Goes last of all.

#include <sys/types.h>

#include <condition_variable>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>

#include "runtime/base/clock.h"

namespace refrain {

class EndingWatch {
 public:
  // `parent` 0: none is watched. `force` is called when the time is over, on the watch's thread.
  EndingWatch(pid_t parent, Duration after_parent, std::function<void()> force);
  ~EndingWatch();
  EndingWatch(const EndingWatch&) = delete;
  EndingWatch& operator=(const EndingWatch&) = delete;

  void end_within(Duration limit);  // the earliest limit counts; any thread

 private:
  void watch();
  const pid_t parent_;
  const Duration after_parent_;
  const std::function<void()> force_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::optional<TimePoint> deadline_;
  bool over_ = false;
  std::thread thread_;  // last: it uses the rest
};

}  // namespace refrain
