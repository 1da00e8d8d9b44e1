#pragma once
// All processes of a simulated server: the coordinator (the real engine over the real worker
// group), its workers, and a supervisor that kills and respawns the group when one of them ends.
// What joins them is an InprocHub behind FaultEndpoints.

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "ipc/transport/fault_endpoint.h"
#include "ipc/transport/inproc_endpoint.h"
#include "runtime/actor/manual_executor.h"
#include "runtime/engine/engine_core.h"
#include "tests/sim/worker_process.h"

namespace refrain::sim {

struct ClusterOptions {
  EngineConfig config;
  SimModel model;
  int64_t num_kv_blocks = 64;
  bool watched = true;  // the workers' processes can be watched from the coordinator
  int high_water_mark = 1024;
  ipc::FaultProgram line;  // of every endpoint, each with a seed of its own
};

class TapEndpoint;  // cluster.cpp: remembers what was sent

class Cluster {
 public:
  Cluster(ManualScheduler& scheduler, ClusterOptions options,
          std::shared_ptr<const text::Tokenizer> tokenizer);
  ~Cluster();

  void start();
  // Null while the coordinator is down.
  Engine* engine() { return engine_.get(); }
  int life() const { return life_; }  // of the coordinator, counted from 1

  // Faults. A rank that is not there now is left alone.
  void kill_worker(int32_t rank);
  void freeze_worker(int32_t rank, Duration how_long);
  void cut_worker(int32_t rank, Duration how_long);
  void slow_worker(int32_t rank, Duration each_step, Duration how_long);
  void fault_step(int32_t rank, StepFault fault);
  void greet_again(int32_t rank);
  // What went over the rank's line lately, in both directions, comes once more, Hello excepted.
  void replay(int32_t rank);
  void kill_coordinator(Duration back_after);
  void freeze_coordinator(Duration how_long);
  // From now on nothing goes wrong: lines are clean, who stood still goes on.
  void heal();

  // Ends the engine and stops respawning; workers end as they are told.
  void shut_down();
  size_t workers_alive() const;

  std::function<void(int life)> on_coordinator_gone;
  std::set<uint64_t> seeds_seen;        // of all requests that reached a device
  std::vector<std::string> violations;  // what must never happen, seen from here
  std::vector<std::string> lost;        // why groups were lost

 private:
  struct Worker {
    std::unique_ptr<WorkerProcess> process;
    std::string name;  // as a peer
    ipc::FaultEndpoint* line = nullptr;
    TapEndpoint* tap = nullptr;
  };

  void start_coordinator();
  void spawn_group();
  void spawn(int32_t rank);
  void on_worker_exit(int64_t pid);
  void tell_watchers(int64_t pid);
  bool watch(int64_t pid, std::function<void()> gone);
  void kill_process(int64_t pid);
  void compare_step(int32_t rank, Epoch epoch, const ipc::Step& step);
  Worker* at(int32_t rank);
  // Calls when the time has passed, on the supervisor's executor.
  void after(Duration delay, std::function<void()> task);
  std::unique_ptr<ipc::Endpoint> faulty(std::unique_ptr<ipc::Endpoint> inner,
                                        ipc::FaultEndpoint** line, TapEndpoint** tap);
  void note(const std::string& line) { scheduler_.note("| " + line); }

  ManualScheduler& scheduler_;
  const ClusterOptions options_;
  std::shared_ptr<const text::Tokenizer> tokenizer_;
  std::shared_ptr<ipc::InprocHub> hub_ = ipc::InprocHub::create();
  std::shared_ptr<Executor> supervisor_;
  std::shared_ptr<Executor> network_;

  std::unique_ptr<Engine> engine_;
  std::shared_ptr<ProcessExecutor> engine_executor_, output_executor_;
  ipc::FaultEndpoint* server_line_ = nullptr;
  TapEndpoint* server_tap_ = nullptr;
  std::vector<std::pair<ipc::PeerId, std::vector<std::byte>>>
      old_frames_;  // of coordinators before
  int life_ = 0;

  std::vector<Worker> workers_;  // by rank
  std::vector<Worker> dead_;     // whose closures may be on the stack
  int64_t next_pid_ = 100;
  bool respawning_ = false, healed_ = false, ending_ = false;
  std::map<int64_t, std::function<void()>> watched_;
  std::map<std::pair<Epoch, StepId>, std::vector<std::byte>> steps_;  // as the first rank ran them
};

}  // namespace refrain::sim
