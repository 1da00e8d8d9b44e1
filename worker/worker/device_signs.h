#pragma once
// What tells others how a device thread gets on: reports to the coordinator with heartbeats among
// them, the flight recorder, and the place of the device in its work. Device thread,
// but for position().

#include <atomic>
#include <functional>
#include <memory>
#include <optional>

#include "ipc/protocol/messages.h"
#include "ipc/shm/flight_ring.h"
#include "runtime/base/clock.h"
#include "runtime/base/result.h"
#include "worker/device/device.h"

namespace refrain::worker {

// A message for the coordinator. With an exit code it is the last one: the process ends with it.
struct DeviceReport {
  Epoch epoch = 0;
  ipc::Message message;
  std::optional<int> exit_code = std::nullopt;
};

class DeviceSigns {
 public:
  // flight_fd: of the flight recorder; -1: none.
  DeviceSigns(std::function<void(DeviceReport)> report, Duration heartbeat, int flight_fd);

  // Null: the device does not count its launches. Before any other thread asks for a position.
  void set_launches(std::shared_ptr<const LaunchCounter> launches) {
    launches_ = std::move(launches);
  }
  // All that follows is of this epoch, whose steps count from 1.
  void begin(Epoch epoch);
  Epoch epoch() const { return epoch_; }

  void report(ipc::Message message) { report_({epoch_, std::move(message)}); }
  // For another thread: reports of this epoch, whatever comes after it.
  auto reporter() const {
    return [report = report_, epoch = epoch_](ipc::Message message, std::optional<int> exit_code) {
      report({epoch, std::move(message), exit_code});
    };
  }
  // The last report of the process.
  void report_end(const Error& error);
  // Of a start: milestones, and others at an interval.
  void report_progress(const ipc::Progress& progress);
  // A sign of life with the step counter, at most once an interval. It comes from the device loop
  // alone, so that it stops when the device hangs.
  void beat();
  // Tens of nanoseconds (tests/bench/ipc), so that every step affords it.
  void record(ipc::FlightRecord entry);
  void submitted(StepId step) { last_submitted_ = step; }
  void done(StepId step);
  // Of the device now, even while it hangs in a step. Any thread.
  ipc::Position position() const;

 private:
  const std::function<void(DeviceReport)> report_;
  const Duration heartbeat_;
  Epoch epoch_ = 0;
  ipc::FlightRing flight_;
  uint64_t beats_ = 0;
  TimePoint last_beat_;
  TimePoint last_progress_;
  ipc::StartPhase last_phase_ = ipc::StartPhase::kConnect;
  // Written by the device thread, read by any.
  std::shared_ptr<const LaunchCounter> launches_;
  std::atomic<StepId> last_done_{0};
  std::atomic<StepId> last_submitted_{0};
  std::atomic<uint64_t> launches_before_{0};  // when last_done_ was done
};

}  // namespace refrain::worker
