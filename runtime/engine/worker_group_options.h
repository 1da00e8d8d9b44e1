#pragma once
// What a WorkerGroup is given: what its workers must be and are told, its times, and who hears of
// it.

#include <functional>
#include <string>

#include "ipc/protocol/messages.h"
#include "runtime/base/clock.h"
#include "runtime/base/process_identity.h"
#include "runtime/engine/engine.h"
#include "runtime/engine/handshake.h"
#include "runtime/engine/start_progress.h"

namespace refrain {

struct WorkerGroupOptions {
  GroupIdentity identity;
  ipc::WorkerConfig worker;
  ProcessIdentity process;   // this one: it and workers of its realm watch each other
  std::string token_prefix;  // of group tokens; unique on this machine
  Epoch first_epoch = 1;
  Duration heartbeat_interval = std::chrono::milliseconds(500);
  Duration heartbeat_timeout = std::chrono::seconds(2);
  Duration start_timeout = std::chrono::seconds(600);
};

struct WorkerGroupHandlers {
  std::function<void(GroupState, const std::string& detail)> on_state;
  std::function<void(const StartProgress&)> on_progress;
  // Before on_state(kReady).
  std::function<void(const std::vector<ipc::StateGroup>& groups)> on_ready;
  std::function<void(ipc::StepResult)> on_step;     // rank 0's, when all ranks agree
  std::function<void(RequestId)> on_grammar_ready;  // of one rank
  std::function<void(int32_t rank, const ipc::AdapterLoaded&)> on_adapter;  // may be null
  std::function<void(int32_t rank, const ipc::KvExport&)> on_kv_export;  // may be null, as the next
  std::function<void(int32_t rank, const ipc::Pulled&)> on_pulled;
  std::function<void()> on_device_progress;                  // a device got on within a step
  std::function<void(GroupLoss)> on_loss;                    // first of all
  std::function<void(const Error&, bool for_good)> on_lost;  // before on_state
};

}  // namespace refrain
