#include "runtime/supervise/ending_watch.h"

#include <unistd.h>

#include <algorithm>

namespace refrain {

EndingWatch::EndingWatch(pid_t parent, Duration after_parent, std::function<void()> force)
    : parent_(parent),
      after_parent_(after_parent),
      force_(std::move(force)),
      thread_([this] { watch(); }) {}

EndingWatch::~EndingWatch() {
  {
    const std::lock_guard lock(mutex_);
    over_ = true;
  }
  wake_.notify_all();
  thread_.join();
}

void EndingWatch::end_within(Duration limit) {
  const TimePoint at = steady_clock().now() + limit;
  {
    const std::lock_guard lock(mutex_);
    deadline_ = deadline_ ? std::min(*deadline_, at) : at;
  }
  wake_.notify_all();
}

void EndingWatch::watch() {
  constexpr auto kLook = std::chrono::milliseconds(500);  // for the parent
  bool alone = parent_ == 0;
  std::unique_lock lock(mutex_);
  while (!over_) {
    const TimePoint now = steady_clock().now();
    if (!alone && ::getppid() != parent_) {
      alone = true;
      deadline_ = std::min(deadline_.value_or(now + after_parent_), now + after_parent_);
    }
    if (deadline_ && now >= *deadline_) {
      lock.unlock();
      return force_();
    }
    if (alone && !deadline_) {
      wake_.wait(lock);
    } else {
      wake_.wait_until(lock, std::min(deadline_.value_or(now + kLook), now + kLook));
    }
  }
}

}  // namespace refrain
