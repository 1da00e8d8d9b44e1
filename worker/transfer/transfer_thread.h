#pragma once
// The thread of a worker that moves KV blocks between groups, beside its device thread: begun when
// the caches have their memory and ended before they lose it. After its end nothing is written to
// the own memory, and nobody is answered out of it.

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <variant>
#include <vector>

#include "ipc/protocol/messages.h"
#include "runtime/base/result.h"
#include "runtime/base/unique_handle.h"
#include "worker/device/device.h"
#include "worker/transfer/puller.h"
#include "worker/transfer/unreliable_transport.h"

namespace refrain::worker {

class TransferThread {
 public:
  using Command = std::variant<ipc::KvPeers, ipc::PullBlocks, ipc::CancelPull>;
  struct Options {
    int rank = 0;
    std::string listen_on;                           // tcp://host:port; port *: any
    std::string backend = "auto";                    // WorkerConfig::kv_transfer_backend
    PlannedFaults faults;                            // drills
    Puller::Report report;                           // called on this thread
    std::function<void(const std::string&)> broken;  // likewise: it has ended by an error
  };
  // On the device thread.
  static Result<std::unique_ptr<TransferThread>> start(Device& device, KvMemory own,
                                                       Options options);
  ~TransferThread();
  TransferThread(const TransferThread&) = delete;
  TransferThread& operator=(const TransferThread&) = delete;

  const ipc::KvExport& own() const { return own_; }
  void post(Command command);  // any thread

 private:
  TransferThread() = default;
  Result<std::vector<std::unique_ptr<Transport>>> open_transports(Device& device,
                                                                  const KvMemory& own,
                                                                  const Options& options);
  void run();
  std::vector<Command> take_commands();

  std::unique_ptr<Copier> copier_;
  std::unique_ptr<Buffer> pinned_;
  std::unique_ptr<Puller> puller_;
  ipc::KvExport own_;
  UniqueFd wake_;
  std::mutex mutex_;
  std::vector<Command> commands_;
  std::atomic<bool> stopping_{false};
  std::thread thread_;
};

}  // namespace refrain::worker
