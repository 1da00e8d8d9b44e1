#pragma once
// When the step that runs will end, from how long steps like it took: so that the next one is
// planned shortly before, and a request that comes meanwhile is in it (docs/scheduling.md).
// Owned by the engine, on its executor.

#include <array>
#include <deque>
#include <optional>

#include "ipc/protocol/messages.h"
#include "runtime/base/clock.h"

namespace refrain {

class StepPace {
 public:
  void sent(const ipc::Step& step, TimePoint now);
  void done(TimePoint now);  // the oldest step that was sent
  void clear();              // nothing is in flight any more; what is known of steps stays
  // When the next step should be planned, `lead` before the oldest one in flight ends. Nothing: at
  // once, as none is in flight or too few like it were seen.
  std::optional<TimePoint> plan_at(Duration lead) const;

 private:
  static constexpr int kEnough = 4;                      // steps of a class before it predicts
  static constexpr double kFaster = 0.5, kSlower = 0.1;  // weight of a new duration
  static constexpr double kDoubt = 1.0 / 16;  // of the predicted time, planned that much earlier
  struct Class {
    double seconds = 0;  // of a decode step; of any other, for each of its tokens
    int seen = 0;
  };
  struct Waiting {
    size_t index = 0;     // of its class
    double units = 1;     // of Class::seconds
    TimePoint begun;      // sent, or the step before it was done
    bool behind = false;  // sent while another ran: its duration holds no way to the workers
  };
  static constexpr size_t kClasses = 128;  // decode steps by rows, then others by tokens
  std::array<Class, kClasses> classes_;
  std::deque<Waiting> steps_;
};

}  // namespace refrain
