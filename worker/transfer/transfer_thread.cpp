#include "worker/transfer/transfer_thread.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <utility>

#include "runtime/base/check.h"
#include "worker/transfer/device_memory.h"
#include "worker/transfer/process_memory.h"
#include "worker/transfer/tcp_transport.h"
#include "worker/transfer/ucx_transport.h"

namespace refrain::worker {
namespace {

constexpr std::chrono::milliseconds kIdle{500};  // whatever comes ends the wait

}  // namespace

Result<std::unique_ptr<TransferThread>> TransferThread::start(Device& device, KvMemory own,
                                                              Options options) {
  std::unique_ptr<TransferThread> thread(new TransferThread);
  thread->copier_ = device.create_copier();
  thread->pinned_ = device.allocate_pinned(TcpTransport::kChunk);
  thread->wake_ = UniqueFd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  REFRAIN_CHECK(thread->wake_, "no descriptor to wake the transfer thread");
  REFRAIN_ASSIGN_OR_RETURN(auto transports, thread->open_transports(device, own, options));
  if (options.faults.one_in > 0)
    for (auto& transport : transports)
      transport = std::make_unique<UnreliableTransport>(std::move(transport), options.faults);
  thread->puller_ =
      std::make_unique<Puller>(std::move(own), options.rank, std::move(transports), options.report);
  thread->own_ = thread->puller_->own();
  thread->thread_ = std::thread([self = thread.get(), options = std::move(options)] {
    try {
      self->run();
    } catch (const std::exception& error) {
      options.broken(error.what());
    }
  });
  return thread;
}

// In the order in which they are tried; the last one waits.
Result<std::vector<std::unique_ptr<Transport>>> TransferThread::open_transports(
    Device& device, const KvMemory& own, const Options& options) {
  std::vector<std::unique_ptr<Transport>> transports;
  if (options.backend == "ucx") {
    REFRAIN_ASSIGN_OR_RETURN(auto ucx, UcxTransport::open(own, !copier_->is_host_memory()));
    ucx->wake_by(wake_.get());
    transports.push_back(std::move(ucx));
    return transports;
  }
  if (options.backend == "auto") {
    const auto share = [&device](const void* at, size_t bytes) { return device.share(at, bytes); };
    if (copier_->is_host_memory()) {
      transports.push_back(std::make_unique<ProcessMemory>(own));
    } else if (auto memory = DeviceMemory::make(share, own, *copier_)) {
      transports.push_back(std::move(memory));
    }
  }
  REFRAIN_ASSIGN_OR_RETURN(auto tcp,
                           TcpTransport::listen(options.listen_on, own, *copier_, *pinned_));
  tcp->wake_by(wake_.get());
  transports.push_back(std::move(tcp));
  return transports;
}

TransferThread::~TransferThread() {
  stopping_ = true;
  if (wake_) eventfd_write(wake_.get(), 1);
  if (thread_.joinable()) thread_.join();
}

void TransferThread::post(Command command) {
  {
    const std::lock_guard lock(mutex_);
    commands_.push_back(std::move(command));
  }
  eventfd_write(wake_.get(), 1);
}

std::vector<TransferThread::Command> TransferThread::take_commands() {
  eventfd_t count = 0;
  eventfd_read(wake_.get(), &count);  // before the queue is looked at
  const std::lock_guard lock(mutex_);
  return std::exchange(commands_, {});
}

void TransferThread::run() {
  while (!stopping_) {
    for (const Command& command : take_commands())
      std::visit([this](const auto& message) { puller_->take(message); }, command);
    puller_->poll(kIdle);
  }
}

}  // namespace refrain::worker
