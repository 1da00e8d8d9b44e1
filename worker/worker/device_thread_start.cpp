// The half of DeviceThread that starts a group, or keeps the one that it has for a new coordinator.

#include <utility>

#include "runtime/base/log.h"
#include "worker/worker/device_thread.h"
#include "worker/worker/start_text.h"

namespace refrain::worker {

Status DeviceThread::load(StartGroup command) {
  end_transfers();
  runner_.reset();
  if (epoch_ != 0) start_times_->restart();
  start_times_->mark("coordinator");
  ready_ = false;
  report_.reset();
  epoch_ = command.epoch;
  passed(0);
  record({.phase = ipc::FlightPhase::kLoading});
  last_phase_ = ipc::StartPhase::kConnect;
  report(ipc::Progress{last_phase_, 0, 1, ""});  // it has left its old steps
  const auto timeout = std::chrono::milliseconds(command.options.config.collective_timeout_ms);
  command.options.meet = [this, timeout](const auto& mine) { return meet(mine, timeout); };
  command.options.stop_joining = [this] { return overtaken(); };
  moves_blocks_ = command.options.config.kv_transfer;
  rank_ = command.options.rank;
  auto runner = options_.make_runner(std::move(command.options), *device_,
                                     [this](const ipc::Progress& p) { on_progress(p); });
  if (!runner && overtaken()) return {};
  REFRAIN_ASSIGN_OR_RETURN(runner_, std::move(runner));
  start_times_->mark("program and communicator");
  REFRAIN_ASSIGN_OR_RETURN(loaded_, runner_->load());
  start_times_->mark("weights and buffers");
  log::info("weights: {:.1f} MB in {:.2f} s; room for {}",
            static_cast<double>(loaded_.weight_bytes) * 1e-6, loaded_.seconds,
            text_of(loaded_.groups));
  report(loaded_);
  return {};
}

// The ranks find each other through the coordinator. What comes instead is another group's start.
Result<std::vector<ipc::RankAddress>> DeviceThread::meet(const ipc::RankAddress& mine,
                                                         Duration timeout) {
  report(mine);
  std::unique_lock lock(mutex_);
  wake_.wait_for(lock, timeout, [this] { return stopping_ || peers_ || !commands_.empty(); });
  if (peers_) return std::exchange(peers_, std::nullopt)->ranks;
  return fail(ErrorCode::kDeadline, "not all ranks of the group have come within {:.0f} s",
              seconds_of(timeout));
}

bool DeviceThread::overtaken() {
  const std::lock_guard lock(mutex_);
  return stopping_ || !commands_.empty();
}

// Slots and cache need no clearing: a request that enters a slot sets it up, and reads only blocks
// that it has written.
Status DeviceThread::keep(Adopt command) {
  REFRAIN_CHECK(report_.has_value(), "adopted before it was ready");
  end_transfers();  // of a coordinator that is gone
  while (runner_->in_flight() > 0) runner_->wait();
  runner_->forget_adapters();
  ready_ = false;
  epoch_ = command.epoch;
  passed(0);
  loaded_.seconds = 0;
  loaded_.kept = true;
  report(loaded_);
  return {};
}

Status DeviceThread::capture(const std::vector<int64_t>& num_blocks) {
  start_times_->mark("other ranks");
  REFRAIN_RETURN_IF_ERROR(runner_->init_cache(num_blocks));
  {
    std::vector<std::unique_ptr<Buffer>> taken;
    if (options_.fault != nullptr) taken = options_.fault->before_capture(*device_);
    REFRAIN_RETURN_IF_ERROR(runner_->capture());
  }
  REFRAIN_ASSIGN_OR_RETURN(report_, runner_->back_cache());
  for (size_t i = 0; i < loaded_.groups.size(); ++i)
    loaded_.groups[i].num_blocks = report_->num_blocks.at(i);
  start_times_->mark("captures and cache");
  for (const std::string& warning : report_->warnings) log::warn("{}", warning);
  log::info("ready: {}, {} keys captured, {}", report_->cudagraph_mode, report_->manifest.size(),
            text_of(loaded_.groups));
  log::info("device memory: {}", memory_text(*report_, device_->memory()));
  log::info("start: {}", start_times_->text());
  return {};
}

Status DeviceThread::prepare(const ipc::InitCache& message) {
  REFRAIN_CHECK(runner_ != nullptr && !ready_, "InitCache before Loaded or after Ready");
  if (report_) {
    REFRAIN_CHECK(message.num_blocks.size() == loaded_.groups.size(),
                  "adopted with {} state groups, not {}", message.num_blocks.size(),
                  loaded_.groups.size());
    for (size_t i = 0; i < loaded_.groups.size(); ++i) {
      REFRAIN_CHECK(message.num_blocks[i] <= loaded_.groups[i].num_blocks,
                    "adopted with {} blocks of {}, there are {}", message.num_blocks[i],
                    loaded_.groups[i].name, loaded_.groups[i].num_blocks);
    }
    report_->num_blocks = message.num_blocks;
    log::info("ready again: nothing was loaded or captured");
  } else {
    record({.phase = ipc::FlightPhase::kCapturing});
    REFRAIN_RETURN_IF_ERROR(capture(message.num_blocks));
  }
  ready_ = true;
  record({.phase = ipc::FlightPhase::kReady});
  report(*report_);
  return moves_blocks_ ? start_transfers() : Status{};
}

Status DeviceThread::start_transfers() {
  TransferThread::Options options;
  options.rank = rank_;
  REFRAIN_CHECK(options_.transfer_address, "no address for ranks of other groups");
  REFRAIN_ASSIGN_OR_RETURN(options.listen_on, options_.transfer_address());
  options.report = [this, epoch = epoch_](ipc::Pulled pulled) {
    options_.report({epoch, std::move(pulled)});
  };
  options.broken = [this, epoch = epoch_](const std::string& why) {
    options_.report({epoch, ipc::Failed{0, "the transfer thread: " + why, false}, kExitInternal});
  };
  REFRAIN_ASSIGN_OR_RETURN(
      auto transfers, TransferThread::start(*device_, runner_->kv_memory(), std::move(options)));
  const ipc::KvExport own = transfers->own();
  {
    const std::lock_guard lock(mutex_);
    transfers_ = std::move(transfers);
  }
  report(own);  // what is answered to it finds the thread there
  return {};
}

void DeviceThread::end_transfers() {
  std::unique_ptr<TransferThread> ended;
  const std::lock_guard lock(mutex_);
  ended = std::exchange(transfers_, nullptr);
}

}  // namespace refrain::worker
