#include "worker/device/host/team_queue.h"

#include <chrono>
#include <utility>

namespace refrain::worker {

namespace {
constexpr std::chrono::microseconds kAskEvery{50};  // whether to stop waiting
}  // namespace

TeamQueue::TeamQueue(int threads, bool pin, int first_core)
    : thread_([this, threads, pin, first_core] { run(threads, pin, first_core); }) {}

TeamQueue::~TeamQueue() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

uint64_t TeamQueue::add(Work work) {
  uint64_t number = 0;
  {
    const std::lock_guard lock(mutex_);
    work_.push_back(std::move(work));
    number = ++added_;
  }
  changed_.notify_all();
  return number;
}

bool TeamQueue::has_run(uint64_t number) const {
  const std::lock_guard lock(mutex_);
  if (error_) std::rethrow_exception(error_);
  return run_ >= number;
}

bool TeamQueue::wait(uint64_t number, const StopFn& stop) {
  std::unique_lock lock(mutex_);
  const auto over = [&] { return run_ >= number || error_; };
  if (!stop) changed_.wait(lock, over);
  while (!over()) {
    lock.unlock();
    if (stop()) return false;
    lock.lock();
    changed_.wait_for(lock, kAskEvery, over);
  }
  if (error_) std::rethrow_exception(error_);
  return true;
}

void TeamQueue::wait_for_all() {
  std::unique_lock lock(mutex_);
  const uint64_t all = added_;
  lock.unlock();
  wait(all, {});
}

void TeamQueue::run(int threads, bool pin, int first_core) {
  ThreadTeam team(threads, pin, first_core);
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return stopping_ || !work_.empty(); });
    if (work_.empty()) return;
    Work work = std::move(work_.front());
    work_.pop_front();
    if (error_) continue;
    lock.unlock();
    std::exception_ptr error;
    try {
      work(team);
    } catch (...) {
      error = std::current_exception();
    }
    work = nullptr;
    lock.lock();
    error_ = error;
    if (!error_) ++run_;
    changed_.notify_all();
  }
}

}  // namespace refrain::worker
