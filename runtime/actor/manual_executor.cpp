#include "runtime/actor/manual_executor.h"

#include <algorithm>
#include <deque>
#include <mutex>

#include "runtime/base/check.h"

namespace refrain {

struct ManualExecutor::Shared {
  struct Task {
    uint64_t number;  // of its post, over all executors
    std::function<void()> run;
    TimerId timer = 0;  // set when it came from a timer, so that cancel() still finds it
  };
  struct Timer {
    size_t executor;
    std::function<void()> run;
  };
  struct Queue {
    std::string name;
    std::deque<Task> tasks;
  };

  explicit Shared(uint64_t seed) : random_state(seed) {}

  // SplitMix64: the same numbers on every machine and library.
  uint64_t next_random() {
    uint64_t z = (random_state += 0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
  }
  void add_line(const std::string& line) {
    const auto now =
        std::chrono::duration_cast<std::chrono::microseconds>(clock.now().time_since_epoch());
    log.push_back(fmt::format("{} {}", now.count(), line));
  }

  mutable std::mutex mutex;
  ManualClock clock;
  uint64_t random_state;
  uint64_t posts = 0;
  TimerId next_timer = 1;
  std::vector<Queue> queues;
  std::map<std::pair<TimePoint, TimerId>, Timer> timers;
  std::vector<std::string> log;
};

ManualExecutor::ManualExecutor(std::string name, size_t index, std::shared_ptr<Shared> shared)
    : name_(std::move(name)), index_(index), shared_(std::move(shared)) {}
ManualExecutor::~ManualExecutor() = default;

void ManualExecutor::post(std::function<void()> task) {
  const std::scoped_lock lock(shared_->mutex);
  shared_->queues[index_].tasks.push_back({++shared_->posts, std::move(task)});
}

TimerId ManualExecutor::post_after(Duration delay, std::function<void()> task) {
  const std::scoped_lock lock(shared_->mutex);
  const TimerId id = shared_->next_timer++;
  const TimePoint due = shared_->clock.now() + std::max(delay, Duration::zero());
  shared_->timers.emplace(std::pair{due, id}, Shared::Timer{index_, std::move(task)});
  return id;
}

void ManualExecutor::cancel(TimerId timer) {
  std::function<void()> dropped;  // destroyed after the lock is
  const std::scoped_lock lock(shared_->mutex);
  for (auto it = shared_->timers.begin(); it != shared_->timers.end(); ++it)
    if (it->first.second == timer && it->second.executor == index_) {
      dropped = std::move(it->second.run);
      shared_->timers.erase(it);
      return;
    }
  auto& tasks = shared_->queues[index_].tasks;
  for (auto it = tasks.begin(); it != tasks.end(); ++it)
    if (it->timer == timer && timer != 0) {
      dropped = std::move(it->run);
      tasks.erase(it);
      return;
    }
}

const Clock& ManualExecutor::clock() const { return shared_->clock; }

ManualScheduler::ManualScheduler(uint64_t seed)
    : shared_(std::make_shared<ManualExecutor::Shared>(seed)) {}

// Closures often hold the executors, which hold the queues: empty them to break the circle.
ManualScheduler::~ManualScheduler() {
  std::vector<ManualExecutor::Shared::Queue> queues;
  std::map<std::pair<TimePoint, TimerId>, ManualExecutor::Shared::Timer> timers;
  const std::scoped_lock lock(shared_->mutex);
  for (auto& queue : shared_->queues) {
    queues.push_back({queue.name, std::move(queue.tasks)});
    queue.tasks.clear();
  }
  timers.swap(shared_->timers);
}

std::shared_ptr<Executor> ManualScheduler::make_executor(std::string name) {
  const std::scoped_lock lock(shared_->mutex);
  shared_->queues.push_back({name, {}});
  return std::shared_ptr<ManualExecutor>(
      new ManualExecutor(std::move(name), shared_->queues.size() - 1, shared_));
}

bool ManualScheduler::run_one() {
  ManualExecutor::Shared::Task task;
  {
    const std::scoped_lock lock(shared_->mutex);
    std::vector<size_t> ready;
    for (size_t i = 0; i < shared_->queues.size(); ++i)
      if (!shared_->queues[i].tasks.empty()) ready.push_back(i);
    if (ready.empty()) return false;
    auto& queue = shared_->queues[ready[shared_->next_random() % ready.size()]];
    task = std::move(queue.tasks.front());
    queue.tasks.pop_front();
    shared_->add_line(fmt::format("{} #{}", queue.name, task.number));
  }
  task.run();
  return true;
}

size_t ManualScheduler::run_until_idle(size_t limit) {
  size_t ran = 0;
  while (run_one()) {
    ++ran;
    REFRAIN_CHECK(ran <= limit, "still not idle after {} closures", limit);
  }
  return ran;
}

void ManualScheduler::advance(Duration by) {
  run_until_idle();
  const TimePoint end = shared_->clock.now() + by;
  while (true) {
    {
      const std::scoped_lock lock(shared_->mutex);
      const auto due = shared_->timers.begin();
      if (due == shared_->timers.end() || due->first.first > end) {
        shared_->clock.advance(end - shared_->clock.now());
        return;
      }
      shared_->clock.advance(
          std::max(Duration::zero(), due->first.first - shared_->clock.now()));  // late: after jump
      const TimePoint now = shared_->clock.now();
      for (auto it = due; it != shared_->timers.end() && it->first.first <= now;) {
        shared_->queues[it->second.executor].tasks.push_back(
            {++shared_->posts, std::move(it->second.run), it->first.second});
        it = shared_->timers.erase(it);
      }
    }
    run_until_idle();
  }
}

void ManualScheduler::jump(Duration by) {
  run_until_idle();
  const std::scoped_lock lock(shared_->mutex);
  shared_->clock.advance(by);
}

const Clock& ManualScheduler::clock() const { return shared_->clock; }

uint64_t ManualScheduler::random(uint64_t bound) {
  const std::scoped_lock lock(shared_->mutex);
  REFRAIN_CHECK(bound > 0, "a random number below 0");
  return shared_->next_random() % bound;
}

void ManualScheduler::note(const std::string& line) {
  const std::scoped_lock lock(shared_->mutex);
  shared_->add_line(line);
}

std::vector<std::string> ManualScheduler::log() const {
  const std::scoped_lock lock(shared_->mutex);
  return shared_->log;
}

}  // namespace refrain
