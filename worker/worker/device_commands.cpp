#include "worker/worker/device_commands.h"

#include <utility>

namespace refrain::worker {

void DeviceCommands::post(DeviceCommand command) {
  {
    const std::lock_guard lock(mutex_);
    commands_.push_back(std::move(command));
    num_commands_ = commands_.size();
  }
  wake_.notify_one();
}

void DeviceCommands::post_instead(StartGroup command) {
  {
    const std::lock_guard lock(mutex_);
    commands_.clear();
    num_commands_ = 0;
    peers_.reset();
  }
  post(std::move(command));
}

void DeviceCommands::post_peers(ipc::Peers message) {
  {
    const std::lock_guard lock(mutex_);
    peers_ = std::move(message);
  }
  wake_.notify_all();
}

void DeviceCommands::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
}

std::optional<DeviceCommand> DeviceCommands::take(Duration timeout) {
  std::unique_lock lock(mutex_);
  if (timeout > Duration::zero()) {
    wake_.wait_for(lock, timeout, [this] { return stopping_ || !commands_.empty(); });
  }
  if (stopping_ || commands_.empty()) return std::nullopt;
  std::optional<DeviceCommand> command(std::move(commands_.front()));
  commands_.pop_front();
  num_commands_ = commands_.size();
  return command;
}

Result<std::vector<ipc::RankAddress>> DeviceCommands::wait_for_peers(Duration timeout) {
  std::unique_lock lock(mutex_);
  wake_.wait_for(lock, timeout, [this] { return stopping_ || peers_ || !commands_.empty(); });
  if (peers_) return std::exchange(peers_, std::nullopt)->ranks;
  return fail(ErrorCode::kDeadline, "not all ranks of the group have come within {:.0f} s",
              seconds_of(timeout));
}

bool DeviceCommands::overtaken() const {
  const std::lock_guard lock(mutex_);
  return stopping_ || !commands_.empty();
}

bool DeviceCommands::stopping() const {
  const std::lock_guard lock(mutex_);
  return stopping_;
}

}  // namespace refrain::worker
