#include "worker/device/host/host_stream.h"

#include <cstring>
#include <utility>

#include "runtime/base/clock.h"

namespace refrain::worker {

namespace {

struct CopyArgs {
  void* to;
  const void* from;
  int64_t bytes;
};

void copy_kernel(const CopyArgs& args, const kernels::Team& team) {
  constexpr int64_t kGrain = 4096;
  const kernels::Range range = kernels::share_of(args.bytes, team, kGrain);
  if (range.begin == range.end) return;
  std::memcpy(static_cast<std::byte*>(args.to) + range.begin,
              static_cast<const std::byte*>(args.from) + range.begin,
              static_cast<size_t>(range.end - range.begin));
}

// Launches run at once, so an event has always happened.
class DoneEvent final : public Event {
 public:
  bool query() const override { return true; }
  bool wait(const StopFn&) override { return true; }
  double seconds_since(const Event& earlier) const override {
    return seconds_between(static_cast<const DoneEvent&>(earlier).time_, time_);
  }

 private:
  TimePoint time_ = steady_clock().now();
};

}  // namespace

void HostContext::refuse_in_capture(std::string_view call) {
  if (capturing == nullptr) return;
  capturing->drop_capture();
  throw DeviceError(
      fmt::format("{} is not allowed while a stream is capturing; the capture was dropped", call));
}

HostStream::~HostStream() { drop_capture(); }

void HostStream::copy(void* to, const void* from, size_t bytes) {
  constexpr size_t kOneThread = 64 << 10;  // below it, dispatching costs more than copying
  kernels::launch<copy_kernel>(ref(), CopyArgs{to, from, static_cast<int64_t>(bytes)}, "copy",
                               bytes <= kOneThread);
}

void HostStream::synchronize() { context_->refuse_in_capture("synchronize"); }

std::unique_ptr<Event> HostStream::record() {
  context_->refuse_in_capture("record");
  return std::make_unique<DoneEvent>();
}

std::unique_ptr<Event> HostStream::record_time() { return record(); }

void HostStream::begin_capture() {
  context_->refuse_in_capture("begin_capture");
  recording_.emplace();
  context_->capturing = this;
}

std::unique_ptr<Graph> HostStream::end_capture() {
  if (!recording_) throw DeviceError("end_capture without a capture in progress on this stream");
  Recording recording = std::move(*recording_);
  drop_capture();
  return std::make_unique<HostGraph>(std::move(recording), context_->memory);
}

void HostStream::launch(Graph& graph) {
  context_->refuse_in_capture("launch(graph)");
  context_->team.run(static_cast<HostGraph&>(graph).nodes());
}

void HostStream::launch(kernels::HostFunction function, const void* args, size_t bytes,
                        const char* name, bool single) {
  if (recording_) {
    recording_->add(function, args, bytes, name, single);
    return;
  }
  const LaunchNode node{function, static_cast<const std::byte*>(args), name,
                        static_cast<uint32_t>(bytes), single};
  context_->team.run({&node, 1});
}

void HostStream::hold(const std::shared_ptr<const void>& hold) {
  if (recording_) recording_->hold(hold);
}

void HostStream::drop_capture() {
  recording_.reset();
  if (context_->capturing == this) context_->capturing = nullptr;
}

}  // namespace refrain::worker
