#pragma once
// The group that a device thread is a rank of: its start, its steps and what comes of them. Device
// thread. Errors end the process.

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "ipc/protocol/messages.h"
#include "runtime/base/result.h"
#include "worker/runner/model_runner.h"
#include "worker/worker/device_commands.h"
#include "worker/worker/device_signs.h"
#include "worker/worker/fault_hook.h"
#include "worker/worker/group_transfers.h"
#include "worker/worker/start_times.h"

namespace refrain::worker {

using RunnerFactory = std::function<Result<std::unique_ptr<ModelRunner>>(RunnerOptions, Device&,
                                                                         ModelRunner::ProgressFn)>;

class HostedGroup {
 public:
  // All outlive it; `fault` may be null.
  HostedGroup(Device& device, DeviceCommands& commands, DeviceSigns& signs,
              GroupTransfers& transfers, const RunnerFactory& make_runner, FaultHook* fault);
  ~HostedGroup() { transfers_.end(); }

  // Gives up the group before.
  Status start(StartGroup command);
  // Keeps the group for another epoch.
  Status adopt(const Adopt& command);
  Status init_cache(const ipc::InitCache& message);
  Status submit(const ipc::Step& message);
  Status compile(const ipc::Grammar& message);
  Status compiled(const GrammarCompiled& message);
  Status load_adapter(const ipc::LoadAdapter& message);
  Status adapter_read(const AdapterRead& message);
  Status unload_adapter(const ipc::UnloadAdapter& message);

  bool ready() const { return ready_; }
  int in_flight() const { return runner_ ? runner_->in_flight() : 0; }
  // Reports the oldest step in flight when it has ended, unless `stop` says so before.
  void wait_unless(const StopFn& stop);

 private:
  Status capture(const std::vector<int64_t>& num_blocks);
  Status take_again(const std::vector<int64_t>& num_blocks);
  void check_kept_blocks(const std::vector<int64_t>& num_blocks) const;
  void tell_ready() const;
  void finish(ipc::StepResult result);
  void add_adapter(AdapterId id);
  void report_adapter(AdapterId id, const Status& loaded);

  Device& device_;
  DeviceCommands& commands_;
  DeviceSigns& signs_;
  GroupTransfers& transfers_;
  const RunnerFactory& make_runner_;
  FaultHook* const fault_;
  std::unique_ptr<ModelRunner> runner_;
  StartTimes start_times_{"process and device"};
  bool ready_ = false;
  bool other_role_ = false;    // adopted, and its graphs are to be captured
  bool moves_blocks_ = false;  // of the group, and the own rank in it
  std::string backend_;        // by which they move
  int rank_ = 0;
  ipc::Loaded loaded_;                // with the cache that it was given
  std::optional<ipc::Ready> report_;  // what it said when it was ready
};

}  // namespace refrain::worker
