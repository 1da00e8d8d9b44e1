#pragma once
// A fixed team of threads that walks recorded or single launches: the creating thread is rank 0,
// the others wait (spin briefly, then park). One dispatch a graph, a barrier between two nodes.
// Used by the device thread only, or by the one thread of a TeamQueue.

#include <atomic>
#include <cstddef>
#include <exception>
#include <memory>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "kernels/host/launcher.h"
#include "worker/device/device.h"
#include "worker/device/host/wait.h"

namespace refrain::worker {

// One launch: a function and its plain arguments.
struct LaunchNode {
  kernels::HostFunction function = nullptr;
  const std::byte* args = nullptr;
  const char* name = nullptr;
  uint32_t arg_bytes = 0;
  bool single = false;  // run by the first thread alone, as a team of one
};

class ThreadTeam {
 public:
  // pin: thread i runs on the process's core number first_core + i only.
  explicit ThreadTeam(int threads, bool pin = false, int first_core = 0);
  ~ThreadTeam();
  ThreadTeam(const ThreadTeam&) = delete;
  ThreadTeam& operator=(const ThreadTeam&) = delete;

  int size() const { return static_cast<int>(members_.size()); }
  // Nodes that the first thread has done.
  std::shared_ptr<const LaunchCounter> launch_counter() const { return launches_; }
  // Runs the nodes in order; every thread returns from one before any starts the next. The first
  // exception of any thread ends the walk and is thrown here.
  void run(std::span<const LaunchNode> nodes);
  // More runnable threads than cores: wait without spinning for long.
  void set_crowded(bool crowded) { crowded_.store(crowded, std::memory_order_relaxed); }

 private:
  void serve(const kernels::Team& member);
  void walk(const kernels::Team& member, std::span<const LaunchNode> nodes);
  void invoke(const LaunchNode& node, const kernels::Team& member);
  void meet(bool wait);
  void count_launch() {
    launches_->done.store(launches_->done.load(std::memory_order_relaxed) + 1,
                          std::memory_order_relaxed);
  }
  const WaitPolicy& wait_policy() const {
    return crowded_.load(std::memory_order_relaxed) ? kCrowdedWait : kSpinWait;
  }

  const std::shared_ptr<LaunchCounter> launches_ = std::make_shared<LaunchCounter>();
  std::vector<kernels::Team> members_;
  kernels::Team alone_;  // what rank 0 sees in a single launch
  std::vector<std::unique_ptr<std::byte, void (*)(std::byte*)>> scratch_;
  std::vector<std::thread> threads_;
  std::atomic<bool> crowded_{false};
  std::span<const LaunchNode> nodes_;  // of the present dispatch; written before dispatch_
  WakeWord dispatch_;
  WakeWord phase_;
  alignas(64) std::atomic<int> arrived_{0};
  std::atomic<bool> failed_{false};
  std::atomic<bool> stopping_{false};
  std::mutex error_mutex_;
  std::exception_ptr error_;
};

}  // namespace refrain::worker
