#pragma once
// Whether this server is ending, so that it takes no more work; and how an operator makes it end.
// Any thread.

#include <atomic>
#include <functional>
#include <utility>

namespace refrain {

class DrainSwitch {
 public:
  // What ends the process, as SIGTERM does; before the first request. Called once at most.
  void on_drain(std::function<void()> end) { end_ = std::move(end); }

  void set() { draining_ = true; }
  bool is_set() const { return draining_; }
  // Sets it and ends the process. False: nothing would.
  bool drain() {
    if (!end_) return false;
    if (!draining_.exchange(true)) end_();
    return true;
  }

 private:
  std::function<void()> end_;
  std::atomic<bool> draining_{false};
};

}  // namespace refrain
