#pragma once
// A team of spinning threads that runs launches at once or records and replays them. One owner
// thread, which is rank 0. The pages of its buffers are touched before they are timed.

#include <atomic>
#include <cstring>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "kernels/host/launcher.h"

namespace refrain::kernels {

// Wall time; or processor time of the owner thread, which tells the same for a team of one and does
// not count what other programs of a busy machine take.
enum class BenchClock { kWall, kThread };

class BenchTeam : public HostLauncher {
 public:
  explicit BenchTeam(int threads, BenchClock clock = BenchClock::kWall);
  ~BenchTeam() override;

  void launch(HostFunction function, const void* args, size_t bytes, const char* name,
              bool single) override;
  StreamRef stream() { return {static_cast<HostLauncher*>(this)}; }
  int size() const { return static_cast<int>(scratch_.size()); }
  double now() const;  // seconds

  // Records launches instead of running them, until replay() is first called.
  void start_recording();
  void replay();
  // Seconds each op name took in one replay, in order of first appearance.
  std::vector<std::pair<const char*, double>> replay_timed();

 private:
  struct Node {
    HostFunction function;
    std::vector<std::byte> args;
    const char* name;
    bool single;
  };
  void run(HostFunction function, const void* args, bool single);
  void work(int rank);

  BenchClock clock_;
  std::vector<std::unique_ptr<std::byte[]>> scratch_;
  std::vector<std::thread> threads_;
  std::vector<Node> nodes_;
  bool recording_ = false;
  HostFunction function_ = nullptr;
  const void* args_ = nullptr;
  alignas(64) std::atomic<uint64_t> round_{0};
  alignas(64) std::atomic<int> done_{0};
  std::atomic<bool> stop_{false};
};

// Median and least of `runs` timings of `body`, in seconds.
struct Timing {
  double median = 0;
  double least = 0;
};
Timing measure(const BenchTeam& team, int runs, const std::function<void()>& body);

// Memory in huge pages where the system gives them; contents 0. Freed with the object.
class Buffer {
 public:
  explicit Buffer(size_t bytes);
  template <class T>
  T* as() const {
    return reinterpret_cast<T*>(memory_.get());
  }
  size_t bytes() const { return bytes_; }

 private:
  std::unique_ptr<std::byte, void (*)(void*)> memory_;
  size_t bytes_;
};

}  // namespace refrain::kernels
