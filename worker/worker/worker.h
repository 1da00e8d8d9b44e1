#pragma once
// The worker actor: between the coordinator (CoordinatorLink) and the device (DeviceThread). It
// says Hello, starts the group it is welcomed to, passes steps down and results up, and ends the
// process with R-8's codes. Lives on the control executor; no call blocks.

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "ipc/transport/endpoint.h"
#include "runtime/actor/executor.h"
#include "runtime/base/process_identity.h"
#include "runtime/config/debug_options.h"
#include "runtime/config/model/lora_paths.h"
#include "runtime/config/model/model_config.h"
#include "worker/device/device.h"
#include "worker/worker/coordinator_link.h"
#include "worker/worker/device_thread.h"

namespace refrain::worker {

struct WorkerOptions {
  std::filesystem::path model;
  std::filesystem::path draft_model;  // that drafts for it; empty: none
  int group = 0;
  int rank = 0;  // in its group
  int tensor_parallel_size = 1;
  int local_rank = -1;      // the GPU of this machine; -1: as the launcher says, or as the rank
  std::string coordinator;  // ipc:///path/socket or tcp://host:port
  ipc::CurveOptions curve;  // tcp:// needs it
  std::string listen_on;    // tcp://host:port for ranks that share no memory; empty: no such
  std::string local_addr;   // as it is told, for those and ranks of other groups; empty: it is not
  std::string role;         // of its group; empty: not told
  std::string device = "auto";
  HostDeviceOptions host;
  int flight_fd = -1;  // inherited memory of the flight recorder; -1: none
  std::string fault;   // staged on purpose (fault_hook.h); empty: none
  DebugOptions debug;
  LoraPaths adapters;
  Duration heartbeat = std::chrono::milliseconds(250);
  Duration hello_interval = std::chrono::seconds(3);  // until Welcome or Refuse
  // A coordinator whose process ended, or that welcomed this worker and sends nothing for so long
  // where its process cannot be watched, is gone ...
  Duration coordinator_timeout = std::chrono::seconds(5);
  // ... and so long the worker keeps weights and graphs for its successor.
  Duration orphan_timeout = std::chrono::seconds(30);
};

// Calls the function once when the local process ends; false: it cannot be watched.
using ProcessWatch =
    std::function<bool(const ProcessIdentity& process, std::function<void()> gone)>;

class Worker {
 public:
  // What the process is, checked before it says Hello.
  struct Identity {
    ModelConfig model;
    std::string model_digest;  // with that of the draft model
    std::string device;
    ProcessIdentity process;
    std::string host;        // this machine's name
    ModelConfig draft = {};  // of WorkerOptions::draft_model
  };
  // `on_exit` is called once, with the process's exit code.
  Worker(const WorkerOptions& options, Identity identity, std::shared_ptr<Executor> executor,
         std::unique_ptr<ipc::Endpoint> endpoint, WorkerDevice& device, ProcessWatch watch,
         std::function<void(int)> on_exit);

  void start();
  void on_report(DeviceReport report);
  void end(int exit_code, const std::string& reason);  // once; later calls do nothing

 private:
  // A group by the token of its communicators and the configuration it was started with.
  struct Group {
    std::string token;
    ipc::WorkerConfig config;
  };

  void say_hello();
  void take_role(ipc::GroupRole role);
  void watch_process(Epoch epoch, const ipc::Welcome& welcome);
  void watch_coordinator();
  void become_orphan(const std::string& why);
  void on_welcome(Epoch epoch, const ipc::Welcome& welcome);
  void start_group(Epoch epoch, const ipc::Welcome& welcome);
  void adopt(Epoch epoch, const ipc::WorkerConfig& config);
  void note(const ipc::Message& message);
  void on_message(ipc::Message message);
  void fail_configuration(const std::string& message);

  WorkerOptions options_;
  Identity identity_;
  std::shared_ptr<Executor> executor_;
  CoordinatorLink link_;
  WorkerDevice& device_;
  ProcessWatch watch_;
  std::function<void(int)> on_exit_;
  Group group_;                  // whose weights the device has or loads
  bool held_ = false;            // it is ready: it can be adopted, unless it
  bool steps_together_ = false;  // with replicas
  bool watched_ = false;         // the coordinator's process is watched
  std::optional<TimePoint> orphan_since_;
  // When the device must have finished the steps of the group before.
  std::optional<TimePoint> old_steps_until_;
  TimerId watch_timer_ = 0;
  TimePoint last_hello_;
  bool awaiting_welcome_ = true;
  bool ended_ = false;
};

// The whole process: model configuration, device, connection, until the end. Returns the exit code.
int run_worker(const WorkerOptions& options);

}  // namespace refrain::worker
