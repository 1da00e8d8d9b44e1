#pragma once
// Executors that run only when told: all those of one ManualScheduler share a ManualClock and a
// seed that chooses which executor runs its next closure (each runs its own in order). The same
// seed and the same posts give the same event log. Drive it from one thread; post from any.

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "runtime/actor/executor.h"

namespace refrain {

class ManualScheduler;

class ManualExecutor final : public Executor {
 public:
  ~ManualExecutor() override;
  void post(std::function<void()> task) override;
  TimerId post_after(Duration delay, std::function<void()> task) override;
  void cancel(TimerId timer) override;
  const Clock& clock() const override;
  const std::string& name() const { return name_; }

 private:
  friend class ManualScheduler;
  struct Shared;
  ManualExecutor(std::string name, size_t index, std::shared_ptr<Shared> shared);
  std::string name_;
  size_t index_;
  std::shared_ptr<Shared> shared_;
};

class ManualScheduler {
 public:
  explicit ManualScheduler(uint64_t seed = 0);
  ~ManualScheduler();
  ManualScheduler(const ManualScheduler&) = delete;
  ManualScheduler& operator=(const ManualScheduler&) = delete;

  // A new executor; `name` appears in the log.
  std::shared_ptr<Executor> make_executor(std::string name);
  // Runs one ready closure; false when there is none.
  bool run_one();
  // Runs until nothing is ready; timers that are not due stay. Returns how many closures ran;
  // more than `limit` means that they feed each other for ever: FatalError.
  size_t run_until_idle(size_t limit = 1'000'000);
  // Moves the clock on in steps, from due timer to due timer, running what becomes ready.
  void advance(Duration by);
  // Moves the clock at once, as when the whole process stood still: timers that came due meanwhile
  // run late, in the next advance().
  void jump(Duration by);

  const Clock& clock() const;
  // A number in [0, bound) from the scheduler's seed, for faults and mock delays.
  uint64_t random(uint64_t bound);
  // Adds a line of the test's own to the log.
  void note(const std::string& line);
  // One line for each closure that ran: "<microseconds> <executor> #<number of its post>".
  std::vector<std::string> log() const;

 private:
  std::shared_ptr<ManualExecutor::Shared> shared_;
};

}  // namespace refrain
