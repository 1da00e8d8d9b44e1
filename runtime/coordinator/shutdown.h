#pragma once
// How a process with an engine ends: the first signal drains, a second one ends at once. On its
// strand.

#include <functional>
#include <memory>

#include "runtime/actor/executor.h"
#include "runtime/coordinator/http_side.h"
#include "runtime/supervise/ending_watch.h"

namespace refrain {

// For the threads to end after the last answers, before the process is ended without them.
inline constexpr auto kLastThreads = std::chrono::seconds(4);

class Shutdown {
 public:
  // All outlive it; `http` null: clients are another process's. `io` is stopped at the end.
  Shutdown(Engine& engine, IoContext& io, HttpSide* http, EndingWatch& watch,
           std::shared_ptr<Executor> strand);

  void on_signal(int number);
  void end();
  // Called before the engine is stopped.
  void before_end(std::function<void()> task) { before_end_ = std::move(task); }

 private:
  void wait_for_answers(TimePoint limit);

  Engine& engine_;
  IoContext& io_;
  HttpSide* http_;
  EndingWatch& watch_;
  std::shared_ptr<Executor> strand_;
  std::function<void()> before_end_;
  int signals_ = 0;
  bool ended_ = false;
};

// Ends it with its supervisor, when that is gone; 0: there is none.
void end_with_parent(int64_t parent, IoContext& io, const std::shared_ptr<Executor>& strand,
                     Shutdown& shutdown);
// What the supervisor would clear away, when it is gone.
void clear_after(int64_t parent);

}  // namespace refrain
