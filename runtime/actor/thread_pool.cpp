#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>

#include "runtime/actor/io_context.h"
#include "runtime/base/check.h"

namespace refrain {

struct ThreadPool::State {
  std::mutex mutex;
  std::condition_variable wake;
  std::deque<std::function<void()>> tasks;
  bool closing = false;
  std::vector<std::thread> threads;

  void serve() {
    std::unique_lock lock(mutex);
    while (true) {
      wake.wait(lock, [this] { return closing || !tasks.empty(); });
      if (tasks.empty()) return;
      auto task = std::move(tasks.front());
      tasks.pop_front();
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

void ThreadPool::post(std::function<void()> task) {
  {
    const std::scoped_lock lock(state_->mutex);
    state_->tasks.push_back(std::move(task));
  }
  state_->wake.notify_one();
}

}  // namespace refrain
