#pragma once
// Where an actor runs: one closure at a time, in order, with timers. Actors own their state and are
// only touched from their executor. StrandExecutor (io_context.h) is the real one; ManualExecutor
// (manual_executor.h) runs closures when told, under a ManualClock and a seed, for tests.

#include <cstdint>
#include <functional>
#include <memory>

#include "runtime/base/clock.h"

namespace refrain {

using TimerId = uint64_t;

class Executor {
 public:
  virtual ~Executor() = default;
  virtual void post(std::function<void()> task) = 0;  // any thread
  // Runs the task once, not before `delay` has passed; any thread.
  virtual TimerId post_after(Duration delay, std::function<void()> task) = 0;
  // A cancelled task never starts after cancel() returns, when called from the executor itself.
  virtual void cancel(TimerId timer) = 0;
  virtual const Clock& clock() const = 0;
};

}  // namespace refrain
