#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <thread>

#include "runtime/actor/io_context.h"
#include "runtime/base/check.h"

namespace refrain {

struct ThreadPool::State {
  std::mutex mutex;
  std::condition_variable wake;
  std::map<std::string, std::deque<std::function<void()>>> lanes;  // none is empty
  std::deque<std::string> turns;                                   // each lane once
  bool closing = false;
  std::vector<std::thread> threads;

  void add(std::function<void()> task, const std::string& lane) {
    auto& tasks = lanes[lane];
    if (tasks.empty()) turns.push_back(lane);
    tasks.push_back(std::move(task));
  }

  std::function<void()> next() {
    const auto lane = lanes.find(turns.front());
    turns.pop_front();
    auto task = std::move(lane->second.front());
    lane->second.pop_front();
    if (lane->second.empty()) {
      lanes.erase(lane);
    } else {
      turns.push_back(lane->first);
    }
    return task;
  }

  void serve() {
    std::unique_lock lock(mutex);
    while (true) {
      wake.wait(lock, [this] { return closing || !turns.empty(); });
      if (turns.empty()) return;
      auto task = next();
      lock.unlock();
      task();
      task = nullptr;  // what it holds dies outside the lock
      lock.lock();
    }
  }
};

ThreadPool::ThreadPool(int threads) : state_(std::make_unique<State>()) {
  REFRAIN_CHECK(threads > 0, "a thread pool of {} threads", threads);
  for (int i = 0; i < threads; ++i) state_->threads.emplace_back([this] { state_->serve(); });
}

ThreadPool::~ThreadPool() {
  {
    const std::scoped_lock lock(state_->mutex);
    state_->closing = true;
  }
  state_->wake.notify_all();
  for (std::thread& thread : state_->threads) thread.join();
}

void ThreadPool::post(std::function<void()> task, const std::string& lane) {
  {
    const std::scoped_lock lock(state_->mutex);
    state_->add(std::move(task), lane);
  }
  state_->wake.notify_one();
}

}  // namespace refrain
