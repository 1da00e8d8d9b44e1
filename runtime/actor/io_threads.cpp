#include "runtime/actor/io_threads.h"

#include <pthread.h>

#include <utility>

#include "runtime/base/check.h"

namespace refrain {

void name_this_thread(const std::string& name) {
  constexpr size_t kLongest = 15;
  ::pthread_setname_np(::pthread_self(), name.substr(0, kLongest).c_str());
}

IoThreads::IoThreads(int count, const std::string& name) {
  REFRAIN_CHECK(count >= 0, "{} I/O threads", count);
  for (int i = 0; i < count; ++i) {
    threads_.push_back(std::make_unique<One>());
    threads_.back()->name = name + "-" + std::to_string(i);
  }
}

IoThreads::~IoThreads() { join(); }

std::vector<std::shared_ptr<Executor>> IoThreads::executors() {
  std::vector<std::shared_ptr<Executor>> executors;
  for (const auto& one : threads_) executors.push_back(one->io.make_strand());
  return executors;
}

void IoThreads::start(std::function<void()> on_failure) {
  on_failure_ = std::move(on_failure);
  for (const auto& one : threads_) one->thread = std::thread([this, &one = *one] { run(one); });
}

void IoThreads::run(One& one) {
  name_this_thread(one.name);
  try {
    one.io.run();
  } catch (...) {
    {
      const std::lock_guard lock(mutex_);
      if (!failure_) failure_ = std::current_exception();
    }
    on_failure_();
  }
}

void IoThreads::stop() {
  join();
  if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
}

void IoThreads::join() {
  for (const auto& one : threads_) one->io.stop();
  for (const auto& one : threads_)
    if (one->thread.joinable()) one->thread.join();
}

}  // namespace refrain
