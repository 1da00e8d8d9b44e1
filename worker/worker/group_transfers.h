#pragma once
// The KV blocks of the group that a device thread hosts, as ranks of other groups may read them and
// as it reads theirs: a TransferThread while the caches have their memory.

#include <functional>
#include <memory>
#include <mutex>
#include <string>

#include "runtime/base/result.h"
#include "worker/device/device.h"
#include "worker/runner/model_runner.h"
#include "worker/transfer/transfer_thread.h"
#include "worker/worker/device_signs.h"

namespace refrain::worker {

class GroupTransfers {
 public:
  // Where ranks of other groups ask for blocks (ipc::transfer_address_of); may block. Null: nobody
  // can.
  using Address = std::function<Result<std::string>()>;
  explicit GroupTransfers(Address address) : address_(std::move(address)) {}

  // Device thread. Reports what others need to read the blocks of `own`.
  // `backend`, `faults`: TransferThread::Options.
  Status start(Device& device, int rank, const std::string& backend, KvMemory own,
               PlannedFaults faults, DeviceSigns& signs);
  void end();
  // Any thread. Dropped while nothing is exported.
  void post(TransferThread::Command command);

 private:
  const Address address_;
  std::mutex mutex_;
  std::unique_ptr<TransferThread> thread_;  // set by the device thread
};

}  // namespace refrain::worker
