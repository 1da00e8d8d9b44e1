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

struct CopyRowsArgs {
  const CopyRows* pieces;
  size_t count, place;
};

void copy_rows_kernel(const CopyRowsArgs& args, const kernels::Team& team) {
  for (const CopyRows& piece : std::span(args.pieces, args.count)) {
    const kernels::Range range = kernels::share_of(static_cast<int64_t>(piece.rows), team);
    for (auto row = static_cast<size_t>(range.begin); row < static_cast<size_t>(range.end); ++row)
      std::memcpy(piece.to + args.place * piece.step + row * piece.stride,
                  piece.from + row * piece.bytes, piece.bytes);
  }
}

// Of a stream whose launches run at once: it has always happened.
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

// Behind the work that was added before it.
class QueueEvent final : public Event {
 public:
  explicit QueueEvent(TeamQueue& queue) : queue_(queue), time_(std::make_shared<TimePoint>()) {
    number_ = queue_.add([time = time_](ThreadTeam&) { *time = steady_clock().now(); });
  }
  bool query() const override { return queue_.has_run(number_); }
  bool wait(const StopFn& stop) override { return queue_.wait(number_, stop); }
  double seconds_since(const Event& earlier) const override {
    return seconds_between(*static_cast<const QueueEvent&>(earlier).time_, *time_);
  }

 private:
  TeamQueue& queue_;
  std::shared_ptr<TimePoint> time_;
  uint64_t number_ = 0;
};

}  // namespace

void HostContext::refuse_in_capture(std::string_view call) {
  if (capturing == nullptr) return;
  capturing->drop_capture();
  throw DeviceError(
      fmt::format("{} is not allowed while a stream is capturing; the capture was dropped", call));
}

HostStream::HostStream(std::shared_ptr<HostContext> context, const DeviceShare& share)
    : context_(std::move(context)) {
  if (share.whole()) return;
  const int threads = context_->team.size();
  queue_ = std::make_unique<TeamQueue>(share.size(threads), context_->pins, share.begin(threads));
}

HostStream::~HostStream() { drop_capture(); }

void HostStream::copy(void* to, const void* from, size_t bytes) {
  constexpr size_t kOneThread = 64 << 10;  // below it, dispatching costs more than copying
  kernels::launch<copy_kernel>(ref(), CopyArgs{to, from, static_cast<int64_t>(bytes)}, "copy",
                               bytes <= kOneThread);
}

void HostStream::copy_rows(std::span<const CopyRows> pieces, size_t place) {
  context_->refuse_in_capture("copy_rows");
  const CopyRowsArgs args{pieces.data(), pieces.size(), place};
  kernels::launch<copy_rows_kernel>(ref(), args, "copy", false);
}

void HostStream::synchronize() {
  context_->refuse_in_capture("synchronize");
  if (queue_) queue_->wait_for_all();
}

std::unique_ptr<Event> HostStream::record() {
  context_->refuse_in_capture("record");
  if (queue_) return std::make_unique<QueueEvent>(*queue_);
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
  const std::span<const LaunchNode> nodes = static_cast<HostGraph&>(graph).nodes();
  if (queue_) {
    queue_->add([nodes](ThreadTeam& team) { team.run(nodes); });
  } else {
    context_->team.run(nodes);
  }
}

void HostStream::launch(kernels::HostFunction function, const void* args, size_t bytes,
                        const char* name, bool single) {
  if (recording_) {
    recording_->add(function, args, bytes, name, single);
    return;
  }
  LaunchNode node{function, static_cast<const std::byte*>(args), name, static_cast<uint32_t>(bytes),
                  single};
  if (!queue_) {
    context_->team.run({&node, 1});
    return;
  }
  std::vector<std::max_align_t> kept(bytes / sizeof(std::max_align_t) + 1);
  std::memcpy(kept.data(), args, bytes);
  queue_->add([node, kept = std::move(kept)](ThreadTeam& team) mutable {
    node.args = reinterpret_cast<const std::byte*>(kept.data());
    team.run({&node, 1});
  });
}

void HostStream::hold(const std::shared_ptr<const void>& hold) {
  if (recording_) recording_->hold(hold);
}

void HostStream::drop_capture() {
  recording_.reset();
  if (context_->capturing == this) context_->capturing = nullptr;
}

}  // namespace refrain::worker
