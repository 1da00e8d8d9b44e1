#include "worker/runner/adapter_reader.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <utility>

#include "runtime/base/check.h"

namespace refrain::worker {

AdapterReader::AdapterReader(Read read) : read_(std::move(read)), thread_([this] { run(); }) {}

AdapterReader::~AdapterReader() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  thread_.join();
}

void AdapterReader::post(ipc::LoadAdapter message, std::function<void()> done) {
  {
    const std::lock_guard lock(mutex_);
    queue_.push_back({std::move(message), std::move(done)});
  }
  wake_.notify_all();
}

bool AdapterReader::has(AdapterId id) const {
  const std::lock_guard lock(mutex_);
  return have_.contains(id) ||
         std::ranges::any_of(queue_, [id](const Job& job) { return job.message.id == id; });
}

Result<AdapterPlaces::Adapter> AdapterReader::take(AdapterId id,
                                                   const std::function<void()>& alive) {
  REFRAIN_CHECK(has(id), "LoRA adapter {} is not being read", id);
  std::unique_lock lock(mutex_);
  while (!came_.wait_for(lock, std::chrono::milliseconds(100), [&] { return have_.contains(id); }))
    alive();
  return std::move(have_.extract(id).mapped());
}

void AdapterReader::forget() {
  std::unique_lock lock(mutex_);
  queue_.erase(queue_.begin() + (reading_ ? 1 : 0), queue_.end());
  came_.wait(lock, [this] { return !reading_; });
  have_.clear();
}

void AdapterReader::run() {
  std::unique_lock lock(mutex_);
  while (true) {
    wake_.wait(lock, [this] { return stopping_ || !queue_.empty(); });
    if (stopping_) return;
    reading_ = true;
    const ipc::LoadAdapter message = queue_.front().message;
    lock.unlock();
    auto adapter = read(message);
    lock.lock();
    have_.insert_or_assign(message.id, std::move(adapter));
    const std::function<void()> done = std::move(queue_.front().done);
    queue_.pop_front();
    reading_ = false;
    came_.notify_all();
    lock.unlock();
    done();
    lock.lock();
  }
}

Result<AdapterPlaces::Adapter> AdapterReader::read(const ipc::LoadAdapter& message) const {
  try {
    return read_(message);
  } catch (const std::exception& error) {
    return fail(ErrorCode::kUnavailable, "{}", error.what());
  }
}

}  // namespace refrain::worker
