#pragma once
// Requests that ended lately because a row of theirs had no finite logit: a few are the
// requests' own, more say that it goes on and that a canary shall decide. A plain value of the
// engine.

#include <cstddef>
#include <cstdint>
#include <deque>

namespace refrain {

class LogitFailures {
 public:
  static constexpr size_t kRequests = 4;   // different ones, since each ends with its row ...
  static constexpr uint64_t kSteps = 128;  // ... within so many steps

  // One more at this step, in a count of all answered ones. True: it goes on; the count begins
  // anew.
  bool add(uint64_t step) {
    while (!ended_at_.empty() && step - ended_at_.front() >= kSteps) ended_at_.pop_front();
    ended_at_.push_back(step);
    if (ended_at_.size() < kRequests) return false;
    ended_at_.clear();
    return true;
  }

 private:
  std::deque<uint64_t> ended_at_;
};

}  // namespace refrain
