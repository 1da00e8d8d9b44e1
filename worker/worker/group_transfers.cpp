#include "worker/worker/group_transfers.h"

#include <utility>

#include "runtime/base/check.h"

namespace refrain::worker {

Status GroupTransfers::start(Device& device, int rank, const std::string& backend, KvMemory own,
                             PlannedFaults faults, DeviceSigns& signs) {
  REFRAIN_CHECK(address_, "no address for ranks of other groups");
  TransferThread::Options options;
  options.rank = rank;
  options.backend = backend;
  options.faults = faults;
  REFRAIN_ASSIGN_OR_RETURN(options.listen_on, address_());
  const auto report = signs.reporter();
  options.report = [report](ipc::Pulled pulled) { report(std::move(pulled), std::nullopt); };
  options.broken = [report](const std::string& why) {
    report(ipc::Failed{0, "the transfer thread: " + why, false}, kExitInternal);
  };
  REFRAIN_ASSIGN_OR_RETURN(auto thread,
                           TransferThread::start(device, std::move(own), std::move(options)));
  const ipc::KvExport exported = thread->own();
  {
    const std::lock_guard lock(mutex_);
    thread_ = std::move(thread);
  }
  signs.report(exported);  // what is answered to it finds the thread there
  return {};
}

void GroupTransfers::end() {
  std::unique_ptr<TransferThread> ended;
  const std::lock_guard lock(mutex_);
  ended = std::exchange(thread_, nullptr);
}

void GroupTransfers::post(TransferThread::Command command) {
  const std::lock_guard lock(mutex_);
  if (thread_) thread_->post(std::move(command));
}

}  // namespace refrain::worker
