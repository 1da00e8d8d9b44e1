#pragma once
// A worker process of the simulation: the real CoordinatorLink, the rules of worker/worker for
// Hello, silence and endings, and a device that computes on a MockDevice, taking virtual time.
// Owned by the Cluster; runs on its own ProcessExecutor.

#include <deque>
#include <functional>
#include <memory>
#include <string>

#include "tests/sim/process_executor.h"
#include "tests/unit/sched/mock_device.h"
#include "worker/worker/coordinator_link.h"

namespace refrain::sim {

// What the mock model of all ranks is.
struct SimModel {
  uint64_t vocab = 500;
  uint64_t eos_every = 0;
};

struct WorkerSettings {
  int32_t rank = 0;
  int32_t tensor_parallel_size = 1;
  int64_t pid = 0;
  std::string host;
  int64_t num_kv_blocks = 64;
  SimModel model;
};

// Log-probability that the mock device gives a token.
inline float logprob_of(TokenId token) { return -0.01f * static_cast<float>(token + 1); }

// One thing that goes wrong with the next step of a rank.
enum class StepFault : uint8_t {
  kNone,
  kSpin,
  kDeviceError,
  kOtherKey,
  kTokenTooLarge,
  kRowMissing
};

struct WorkerHooks {
  std::function<uint64_t(uint64_t bound)> random;
  std::function<void(const std::string&)> note;
  std::function<void(int32_t rank, Epoch, const ipc::Step&)> on_step;  // before it runs
  std::function<void(int code)> on_exit;                               // from inside a turn
};

class WorkerProcess {
 public:
  WorkerProcess(WorkerSettings settings, std::unique_ptr<ipc::Endpoint> endpoint,
                std::shared_ptr<ProcessExecutor> executor, WorkerHooks hooks);

  void start();
  void kill();  // SIGKILL
  void stop() { executor_->stop(); }
  void resume() { executor_->resume(); }
  bool alive() const { return alive_; }
  void fault_next_step(StepFault fault) { fault_ = fault; }
  void slow_down(Duration by) { slower_ = by; }  // every step takes that much longer
  void lose_connection();                        // as if the coordinator had been silent

  const WorkerSettings settings;

 private:
  void say_hello();
  void watch();
  void begin_group(const ipc::Welcome& welcome);
  void on_message(ipc::Message message);
  void work();
  void later(uint64_t least_us, uint64_t most_us, void (WorkerProcess::*done)());
  void loaded();
  void captured();
  void step_done();
  bool spoil(ipc::StepResult& result);
  void end(int code, const std::string& why);

  std::shared_ptr<ProcessExecutor> executor_;
  WorkerHooks hooks_;
  worker::CoordinatorLink link_;
  bool alive_ = true;
  bool awaiting_welcome_ = true;
  TimePoint last_hello_;

  // The device.
  std::unique_ptr<testing::MockDevice> device_;
  ipc::WorkerConfig config_;
  std::deque<ipc::Message> commands_;  // InitCache, Step
  bool busy_ = false;
  uint64_t beats_ = 0;
  StepFault fault_ = StepFault::kNone;
  Duration slower_{};
};

}  // namespace refrain::sim
