#pragma once
// The executor of one simulated process: it can be stopped (SIGSTOP), continued and killed. Its
// closures run in order, on a ManualExecutor underneath; none is lost while it stands still.

#include <memory>

#include "runtime/actor/executor.h"

namespace refrain::sim {

class ProcessExecutor final : public Executor {
 public:
  explicit ProcessExecutor(std::shared_ptr<Executor> inner);
  ~ProcessExecutor() override;
  void post(std::function<void()> task) override;
  TimerId post_after(Duration delay, std::function<void()> task) override;
  void cancel(TimerId timer) override;
  const Clock& clock() const override;

  void stop();
  void resume();
  void kill();  // nothing runs any more but the closure that is running

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace refrain::sim
