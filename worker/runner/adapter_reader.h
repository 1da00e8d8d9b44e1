#pragma once
// Reads LoRA adapters in a thread of its own, one after the other, while steps go on. Device
// thread, unless a function says otherwise.

#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <thread>

#include "ipc/protocol/messages.h"
#include "runtime/base/result.h"
#include "worker/runner/adapter_places.h"

namespace refrain::worker {

class AdapterReader {
 public:
  using Read = std::function<Result<AdapterPlaces::Adapter>(const ipc::LoadAdapter&)>;

  // `read` is called by the thread; what it throws is an error of its adapter.
  explicit AdapterReader(Read read);
  ~AdapterReader();  // waits for the adapter under way
  AdapterReader(const AdapterReader&) = delete;
  AdapterReader& operator=(const AdapterReader&) = delete;

  // `done` is called by the thread when the adapter can be taken.
  void post(ipc::LoadAdapter message, std::function<void()> done);
  // Whether it was posted and nobody has taken it.
  bool has(AdapterId id) const;
  // Waits until it has been read, and calls `alive` meanwhile. Only where has(id).
  Result<AdapterPlaces::Adapter> take(AdapterId id, const std::function<void()>& alive);
  // Drops all of them; waits for the one under way.
  void forget();

 private:
  struct Job {
    ipc::LoadAdapter message;
    std::function<void()> done;
  };

  void run();
  Result<AdapterPlaces::Adapter> read(const ipc::LoadAdapter& message) const;

  const Read read_;
  mutable std::mutex mutex_;
  std::condition_variable wake_, came_;
  std::deque<Job> queue_;  // the first one is under way if reading_
  bool reading_ = false, stopping_ = false;
  std::map<AdapterId, Result<AdapterPlaces::Adapter>> have_;
  std::thread thread_;
};

}  // namespace refrain::worker
