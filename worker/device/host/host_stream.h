#pragma once
// The host device's stream: runs a launch at once on the team or, while capturing, records it. That
// of a part of the device has threads of its own, which run its launches later and in order.
// CUDA's capture rules hold: what CUDA refuses during a capture is refused here and drops it.

#include <memory>
#include <optional>
#include <string_view>

#include "kernels/host/launcher.h"
#include "worker/device/device.h"
#include "worker/device/host/host_graph.h"
#include "worker/device/host/host_memory.h"
#include "worker/device/host/team_queue.h"
#include "worker/device/host/thread_team.h"

namespace refrain::worker {

class HostStream;

// What the device, its streams and its communicators share.
struct HostContext {
  HostContext(int threads, bool pin, size_t memory_limit)
      : team(threads, pin), pins(pin), memory(std::make_shared<HostMemory>(memory_limit)) {}
  // Throws DeviceError naming `call` and drops the capture when a stream is capturing.
  void refuse_in_capture(std::string_view call);

  ThreadTeam team;
  const bool pins;
  std::shared_ptr<HostMemory> memory;
  HostStream* capturing = nullptr;
};

class HostStream final : public Stream, public kernels::HostLauncher {
 public:
  HostStream(std::shared_ptr<HostContext> context, const DeviceShare& share);
  ~HostStream() override;

  kernels::StreamRef ref() override { return {static_cast<kernels::HostLauncher*>(this)}; }
  void copy(void* to, const void* from, size_t bytes) override;
  void copy_rows(std::span<const CopyRows> pieces, size_t place) override;
  void synchronize() override;
  std::unique_ptr<Event> record() override;
  std::unique_ptr<Event> record_time() override;
  void begin_capture() override;
  std::unique_ptr<Graph> end_capture() override;
  bool capturing() const override { return recording_.has_value(); }
  void launch(Graph& graph) override;

  void launch(kernels::HostFunction function, const void* args, size_t bytes, const char* name,
              bool single) override;
  // While capturing: the graph keeps `hold`.
  void hold(const std::shared_ptr<const void>& hold);
  void drop_capture();

 private:
  std::shared_ptr<HostContext> context_;
  std::optional<Recording> recording_;
  std::unique_ptr<TeamQueue> queue_;  // null: the whole device's
};

}  // namespace refrain::worker
