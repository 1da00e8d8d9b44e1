#include "worker/worker/device_signs.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "runtime/base/log.h"

namespace refrain::worker {

namespace {
constexpr auto kProgressInterval = std::chrono::milliseconds(50);
}  // namespace

DeviceSigns::DeviceSigns(std::function<void(DeviceReport)> report, Duration heartbeat,
                         int flight_fd)
    : report_(std::move(report)), heartbeat_(heartbeat) {
  if (flight_fd < 0) return;
  auto ring = ipc::FlightRing::map(flight_fd);
  if (ring) {
    flight_ = std::move(*ring);
  } else {
    log::warn("no flight recorder: {}", ring.error().message);
  }
}

void DeviceSigns::begin(Epoch epoch) {
  epoch_ = epoch;
  last_phase_ = ipc::StartPhase::kConnect;
  last_submitted_ = 0;
  done(0);
}

void DeviceSigns::report_end(const Error& error) {
  const int code = exit_code(error.code);
  const std::string text =
      error.field.empty() ? error.message : fmt::format("{}: {}", error.field, error.message);
  report_({epoch_, ipc::Failed{last_done_, text, code == kExitConfig}, code});
}

void DeviceSigns::report_progress(const ipc::Progress& progress) {
  const TimePoint now = steady_clock().now();
  const bool milestone = progress.phase != last_phase_ || progress.done >= progress.total;
  if (milestone || now - last_progress_ >= kProgressInterval) {
    last_phase_ = progress.phase;
    last_progress_ = now;
    report(progress);
  }
  beat();
}

void DeviceSigns::beat() {
  const TimePoint now = steady_clock().now();
  if (epoch_ == 0 || now - last_beat_ < heartbeat_) return;
  last_beat_ = now;
  report(ipc::Heartbeat{last_done_, ++beats_});
}

void DeviceSigns::record(ipc::FlightRecord entry) {
  entry.time_ns = static_cast<uint64_t>(
      std::chrono::nanoseconds(steady_clock().now().time_since_epoch()).count());
  entry.epoch = epoch_;
  flight_.write(entry);
}

void DeviceSigns::done(StepId step) {
  last_done_ = step;
  if (launches_) launches_before_ = launches_->done.load(std::memory_order_relaxed);
}

ipc::Position DeviceSigns::position() const {
  if (!launches_) {
    const StepId done = last_done_;
    return {done, std::max<StepId>(last_submitted_, done) - done, false};
  }
  const uint64_t before = launches_before_;  // first: the counter only grows
  return {last_done_, launches_->done.load(std::memory_order_relaxed) - before, true};
}

}  // namespace refrain::worker
