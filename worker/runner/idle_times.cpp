#include "worker/runner/idle_times.h"

#include <algorithm>
#include <utility>

#include "runtime/base/log.h"

namespace refrain::worker {

void IdleTimes::add(bool decode, std::unique_ptr<Event> begun, std::unique_ptr<Event> ended) {
  // Before a step that is no decode the device may idle because nobody asked for anything.
  if (decode && after_decode_ && begun && last_end_) {
    microseconds_.push_back(begun->seconds_since(*last_end_) * 1e6);
  }
  after_decode_ = decode;
  last_end_ = std::move(ended);
}

IdleTimes::~IdleTimes() {
  if (microseconds_.empty()) return;
  std::sort(microseconds_.begin(), microseconds_.end());
  const size_t count = microseconds_.size();
  const auto at_percent = [&](size_t percent) {  // nearest rank
    return microseconds_[(count * percent + 99) / 100 - 1];
  };
  log::info("rank {}: idle between decode steps: median {:.1f} us, p99 {:.1f} us, {} gaps", rank_,
            at_percent(50), at_percent(99), count);
}

}  // namespace refrain::worker
