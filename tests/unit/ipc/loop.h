#pragma once
// For transport tests: an IoContext served by a thread of its own, and a record of received frames
// that the test thread can wait on.

#include <condition_variable>
#include <future>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "ipc/transport/endpoint.h"
#include "runtime/actor/io_context.h"
#include "tests/temporary_directory.h"

namespace refrain::ipc {

inline std::span<const std::byte> as_frame(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}
inline std::string as_text(std::span<const std::byte> frame) {
  return {reinterpret_cast<const char*>(frame.data()), frame.size()};
}

// Endpoints made on a loop's strand must go before the loop does.
class Loop {
 public:
  Loop() : thread_([this] { io_.run(); }) {}
  ~Loop() {
    io_.stop();
    thread_.join();
  }
  IoContext& io() { return io_; }
  const std::shared_ptr<Executor>& strand() { return strand_; }

  // Runs `function` on the strand and returns what it returns.
  template <class F>
  auto call(F function) -> decltype(function()) {
    std::packaged_task<decltype(function())()> task(std::move(function));
    auto result = task.get_future();
    strand_->post([&task] { task(); });
    return result.get();
  }

 private:
  IoContext io_;
  std::shared_ptr<Executor> strand_ = io_.make_strand();
  std::thread thread_;
};

class Inbox {
 public:
  using Entry = std::pair<PeerId, std::string>;

  Endpoint::FrameHandler handler() {
    return [this](const PeerId& from, std::span<const std::byte> frame) {
      const std::scoped_lock lock(mutex_);
      entries_.emplace_back(from, as_text(frame));
      arrived_.notify_all();
    };
  }
  // The first `count` entries; fewer when they do not come within `timeout`.
  std::vector<Entry> wait(size_t count,
                          std::chrono::milliseconds timeout = std::chrono::seconds(10)) {
    std::unique_lock lock(mutex_);
    arrived_.wait_for(lock, timeout, [&] { return entries_.size() >= count; });
    return entries_;
  }
  size_t size() {
    const std::scoped_lock lock(mutex_);
    return entries_.size();
  }

 private:
  std::mutex mutex_;
  std::condition_variable arrived_;
  std::vector<Entry> entries_;
};

using tests::TemporaryDirectory;

}  // namespace refrain::ipc
