#include "runtime/actor/thread_pool.h"

#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "runtime/actor/io_threads.h"
#include "runtime/base/check.h"

namespace refrain {

struct ThreadPool::State {
  using Tasks = std::deque<std::function<void()>>;

  std::mutex mutex;
  std::condition_variable wake;
  std::unordered_map<std::string, Tasks> waiting;  // by owner; none is empty
  std::deque<std::string> turns;                   // their owners; the first one's task is next
  bool closing = false;
  std::vector<std::thread> threads;

  // Of the owner whose turn it is; it comes again behind all others.
  std::function<void()> take() {
    std::string owner = std::move(turns.front());
    turns.pop_front();
    const auto found = waiting.find(owner);
    std::function<void()> task = std::move(found->second.front());
    found->second.pop_front();
    if (found->second.empty()) {
      waiting.erase(found);
    } else {
      turns.push_back(std::move(owner));
    }
    return task;
  }

  void serve() {
    std::unique_lock lock(mutex);
    while (true) {
      wake.wait(lock, [this] { return closing || !turns.empty(); });
      if (turns.empty()) return;
      auto task = take();
      lock.unlock();
      task();
      task = nullptr;  // what it holds dies outside the lock
      lock.lock();
    }
  }
};

ThreadPool::ThreadPool(int threads, const std::string& name) : state_(std::make_unique<State>()) {
  REFRAIN_CHECK(threads > 0, "a thread pool of {} threads", threads);
  for (int i = 0; i < threads; ++i)
    state_->threads.emplace_back([this, label = name + "-" + std::to_string(i)] {
      name_this_thread(label);
      state_->serve();
    });
}

ThreadPool::~ThreadPool() {
  {
    const std::scoped_lock lock(state_->mutex);
    state_->closing = true;
  }
  state_->wake.notify_all();
  for (std::thread& thread : state_->threads) thread.join();
}

void ThreadPool::post(const std::string& owner, std::function<void()> task) {
  {
    const std::scoped_lock lock(state_->mutex);
    auto& tasks = state_->waiting[owner];
    if (tasks.empty()) state_->turns.push_back(owner);
    tasks.push_back(std::move(task));
  }
  state_->wake.notify_one();
}

}  // namespace refrain
