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
#include "tests/sim/succession.h"
#include "tests/sim/worker_process.h"

namespace refrain::sim {

struct ClusterOptions {
  EngineConfig config;
  SimModel model;
  int64_t num_kv_blocks = 64;
  bool watched = true;  // workers and coordinator can watch each other's processes
  bool calm = false;    // nothing goes wrong but that coordinators are killed
  int high_water_mark = 1024;
  ipc::FaultProgram line;  // of every endpoint, each with a seed of its own
};

// What the next coordinator is started with.
enum class Restart : uint8_t { kAsBefore, kOtherModel, kOtherConfig };

class TapEndpoint;

class Cluster {
 public:
  Cluster(ManualScheduler& scheduler, ClusterOptions options,
          std::shared_ptr<const text::Tokenizer> tokenizer);
  ~Cluster();

  void start();
  // Null while the coordinator is down.
  Engine* engine() { return engine_.get(); }
  int life() const { return life_; }  // of the coordinator, counted from 1
  // That a coordinator was started with.
  const SimModel& model(int life) const { return models_.at(static_cast<size_t>(life)); }
  const Succession& succession() const { return succession_; }

  // Faults. A rank that is not there now is left alone.
  void kill_worker(int32_t rank);
  void freeze_worker(int32_t rank, Duration how_long);
  void cut_worker(int32_t rank, Duration how_long);
  void slow_worker(int32_t rank, Duration each_step, Duration how_long);
  void fault_step(int32_t rank, StepFault fault);
  // Kills the group; of the next one the rank hangs while it loads or captures.
  void hang_next_start(int32_t rank);
  void greet_again(int32_t rank);
  // What went over the rank's line lately, in both directions, comes once more, Hello excepted.
  void replay(int32_t rank);
  void kill_coordinator(Duration back_after, Restart with = Restart::kAsBefore);
  void freeze_coordinator(Duration how_long);
  // From now on nothing goes wrong: lines are clean, who stood still goes on.
  void heal();
  bool healed() const { return healed_; }

  // Ends the engine and stops respawning; workers end as they are told.
  void shut_down();
  size_t workers_alive() const;

  std::function<void(int life)> on_coordinator_gone;
  std::set<uint64_t> seeds_seen;        // of all requests that reached a device
  std::vector<std::string> violations;  // what must never happen, seen from here
  std::vector<std::string> lost;        // why groups were lost
  size_t lost_to_poison = 0;            // of these, with a request that ended them in flight

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
  void watch_coordinator(int64_t pid, const std::shared_ptr<Executor>& from, int64_t coordinator,
                         std::function<void()> gone);
  void kill_process(int64_t pid);
  void on_group_state(GroupState state, const std::string& detail);
  Epoch first_epoch();
  void change_files(Restart with);
  void meet(const std::string& group, uint64_t ordinal, std::function<void()> go);
  void on_hang(int32_t rank, Epoch epoch);
  void on_loss(const GroupLoss& loss);
  void on_poison(int32_t rank, Epoch epoch, const Poison& poison);
  void compare_step(int32_t rank, Epoch epoch, const ipc::Step& step);
  Worker* at(int32_t rank);
  // Calls when the time has passed, on the supervisor's executor.
  void after(Duration delay, std::function<void()> task);
  std::unique_ptr<ipc::Endpoint> faulty(std::unique_ptr<ipc::Endpoint> inner,
                                        ipc::FaultEndpoint** line, TapEndpoint** tap);
  void note(const std::string& line) { scheduler_.note("| " + line); }

  ManualScheduler& scheduler_;
  const ClusterOptions options_;
  EngineConfig config_;  // of the next coordinator
  SimModel files_;       // of the processes that start from now on
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
  std::vector<SimModel> models_;  // by life
  Succession succession_;

  std::vector<Worker> workers_;  // by rank
  std::vector<Worker> dead_;     // whose closures may be on the stack
  int64_t next_pid_ = 100;
  bool respawning_ = false, healed_ = false, ending_ = false;
  std::map<int64_t, std::function<void()>> watched_;  // by the coordinator
  struct Watcher {
    std::shared_ptr<Executor> executor;
    std::function<void()> gone;
  };
  std::map<int64_t, Watcher> watching_;  // the coordinator, by the worker's pid
  std::map<std::pair<std::string, uint64_t>, std::vector<std::function<void()>>> meetings_;
  std::map<std::pair<Epoch, StepId>, std::vector<std::byte>> steps_;  // as the first rank ran them
  std::set<Epoch> poisoned_;
  int32_t hang_rank_ = -1;  // of the next group
  struct Hang {
    int32_t rank = 0;
    TimePoint since;
  };
  std::map<Epoch, Hang> hangs_;
};

}  // namespace refrain::sim
