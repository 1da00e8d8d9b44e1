#pragma once
// A team of threads that walks launches behind the caller's back, in order: what the stream of a
// part of the host device runs on, so that several parts run at the same time. Work is added and
// waited for by the device thread; has_run() by any.

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>

#include "worker/device/device.h"
#include "worker/device/host/thread_team.h"

namespace refrain::worker {

class TeamQueue {
 public:
  using Work = std::function<void(ThreadTeam&)>;

  // As ThreadTeam; all its threads are new ones.
  TeamQueue(int threads, bool pin, int first_core);
  ~TeamQueue();  // when all work has run
  TeamQueue(const TeamQueue&) = delete;
  TeamQueue& operator=(const TeamQueue&) = delete;

  // Returns its number. What it refers to lives until it has run.
  uint64_t add(Work work);
  // Whether the work of that number, and all before it, has run. What any of it threw is thrown
  // here and by wait() from then on, and nothing further runs.
  bool has_run(uint64_t number) const;
  // False: `stop` (null: never) ended the wait.
  bool wait(uint64_t number, const StopFn& stop);
  void wait_for_all();

 private:
  void run(int threads, bool pin, int first_core);

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Work> work_;
  uint64_t added_ = 0, run_ = 0;
  std::exception_ptr error_;
  bool stopping_ = false;
  std::thread thread_;  // the team's first; last: it uses all of them
};

}  // namespace refrain::worker
