#include "tests/sim/process_executor.h"

#include <algorithm>
#include <deque>
#include <map>
#include <utility>

namespace refrain::sim {

// Every closure waits in `ready`; a turn of the inner executor runs the first of them. Turns that
// come while the process stands still are counted and made up for.
struct ProcessExecutor::State {
  struct Task {
    TimerId timer = 0;
    std::function<void()> run;
  };

  explicit State(std::shared_ptr<Executor> executor) : inner(std::move(executor)) {}

  void turn() {
    if (dead || ready.empty()) return;  // empty: a timer of this turn was cancelled
    if (stopped) {
      ++missed;
      return;
    }
    const Task task = std::move(ready.front());
    ready.pop_front();
    task.run();
  }

  std::shared_ptr<Executor> inner;
  std::deque<Task> ready;
  std::map<TimerId, TimerId> timers;  // ours to the inner executor's
  TimerId next_timer = 1;
  size_t missed = 0;
  bool stopped = false;
  bool dead = false;
};

ProcessExecutor::ProcessExecutor(std::shared_ptr<Executor> inner)
    : state_(std::make_shared<State>(std::move(inner))) {}
ProcessExecutor::~ProcessExecutor() { kill(); }

void ProcessExecutor::post(std::function<void()> task) {
  if (state_->dead) return;
  state_->ready.push_back({0, std::move(task)});
  state_->inner->post([state = state_] { state->turn(); });
}

TimerId ProcessExecutor::post_after(Duration delay, std::function<void()> task) {
  if (state_->dead) return 0;
  const TimerId id = state_->next_timer++;
  state_->timers[id] =
      state_->inner->post_after(delay, [state = state_, id, task = std::move(task)]() mutable {
        if (state->dead) return;
        state->timers.erase(id);
        state->ready.push_back({id, std::move(task)});
        state->turn();
      });
  return id;
}

void ProcessExecutor::cancel(TimerId timer) {
  if (const auto found = state_->timers.find(timer); found != state_->timers.end()) {
    state_->inner->cancel(found->second);
    state_->timers.erase(found);
  }
  std::erase_if(state_->ready,
                [timer](const State::Task& task) { return timer != 0 && task.timer == timer; });
}

const Clock& ProcessExecutor::clock() const { return state_->inner->clock(); }

void ProcessExecutor::stop() { state_->stopped = true; }

void ProcessExecutor::resume() {
  state_->stopped = false;
  for (; state_->missed > 0; --state_->missed)
    state_->inner->post([state = state_] { state->turn(); });
}

void ProcessExecutor::kill() {
  state_->dead = true;
  for (const auto& [ours, inners] : state_->timers) state_->inner->cancel(inners);
  state_->timers.clear();
  std::exchange(state_->ready, {}).clear();
}

}  // namespace refrain::sim
