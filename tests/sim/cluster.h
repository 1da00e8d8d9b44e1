#pragma once
// All processes of a simulated server: the coordinator (the real engine over the real worker
// groups), their workers, and a supervisor that kills and respawns a group when one of them ends.
// Workers are counted through, a group's ranks one after the other: `place`. What joins them is an
// InprocHub behind FaultEndpoints.

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <span>
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
  bool watched = true;          // workers and coordinator can watch each other's processes
  bool steps_together = false;  // the groups are replicas that meet in each step (CG-17)
  bool calm = false;            // nothing goes wrong but that coordinators are killed
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
  // That every coordinator of it serves, with ids from 1.
  AdapterId num_adapters() const { return options_.config.worker.max_loras > 0 ? 3 : 0; }
  int life() const { return life_; }  // of the coordinator, counted from 1
  // That a coordinator was started with.
  const SimModel& model(int life) const { return models_.at(static_cast<size_t>(life)); }
  const std::vector<Succession>& successions() const { return successions_; }  // by group
  bool adoptable() const;                                                      // all groups are

  int32_t num_places() const { return static_cast<int32_t>(workers_.size()); }

  // Faults. A rank that is not there now is left alone.
  void kill_worker(int32_t place);
  void freeze_worker(int32_t place, Duration how_long);
  void cut_worker(int32_t place, Duration how_long);
  void slow_worker(int32_t place, Duration each_step, Duration how_long);
  void fault_step(int32_t place, StepFault fault);
  // Kills the group; of the next one the rank hangs while it loads or captures.
  void hang_next_start(int32_t place);
  void greet_again(int32_t place);
  // An operator has a group started again, with roles in any of them; it gives up nothing.
  void restart_group(int32_t group, std::optional<ipc::GroupRole> role);
  // What went over the rank's line lately, in both directions, comes once more, Hello excepted.
  void replay(int32_t place);
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
  int32_t num_groups() const { return options_.config.num_groups(); }
  int32_t num_ranks() const { return options_.config.worker.tensor_parallel_size; }
  int32_t group_of(int32_t place) const { return place / num_ranks(); }
  std::span<Worker> workers_of(int32_t group);
  void spawn_group(int32_t group);
  void spawn(int32_t place);
  void on_worker_exit(int64_t pid);
  void tell_watchers(int64_t pid);
  bool watch(int64_t pid, std::function<void()> gone);
  void watch_coordinator(int64_t pid, const std::shared_ptr<Executor>& from, int64_t coordinator,
                         std::function<void()> gone);
  void kill_process(int64_t pid);
  void on_group_state(int32_t group, GroupState state, const std::string& detail);
  Epoch first_epoch();
  void change_files(Restart with);
  void meet(const SimDevice& device, uint64_t ordinal, const ipc::Step& step,
            std::function<void()> go);
  std::string tokens_of_all() const;
  void on_hang(int32_t place, Epoch epoch);
  void on_loss(const GroupLoss& loss);
  void on_poison(int32_t place, Epoch epoch, const Poison& poison);
  void compare_step(int32_t place, Epoch epoch, const ipc::Step& step);
  Worker* at(int32_t place);
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
  std::vector<Succession> successions_;

  std::vector<Worker> workers_;  // by place
  std::vector<Worker> dead_;     // whose closures may be on the stack
  int64_t next_pid_ = 100;
  bool healed_ = false, ending_ = false;
  std::map<int64_t, std::function<void()>> watched_;  // by the coordinator
  struct Watcher {
    std::shared_ptr<Executor> executor;
    std::function<void()> gone;
  };
  std::map<int64_t, Watcher> watching_;  // the coordinator, by the worker's pid
  struct Meeting {
    std::vector<std::function<void()>> here;
    std::vector<ipc::StepSize> together;  // as the first one was told
  };
  std::map<std::pair<std::string, uint64_t>, Meeting> meetings_;
  using GroupEpoch = std::pair<int32_t, Epoch>;  // groups may have equal epochs
  std::map<std::pair<GroupEpoch, StepId>, std::vector<std::byte>> steps_;  // as the first rank's
  std::set<GroupEpoch> poisoned_;
  int32_t hang_place_ = -1;  // of the next group there
  struct Hang {
    int32_t rank = 0;
    TimePoint since;
  };
  std::map<GroupEpoch, Hang> hangs_;
};

}  // namespace refrain::sim
