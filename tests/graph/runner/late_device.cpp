#include "tests/graph/runner/late_device.h"

#include <cstring>
#include <deque>
#include <functional>
#include <optional>
#include <vector>

#include "kernels/host/launcher.h"
#include "worker/comm/communicator.h"
#include "worker/device/host/host_graph.h"

namespace refrain::tests {
namespace {

using worker::Buffer;
using worker::Event;
using worker::Graph;
using worker::MemoryTag;
using worker::Stream;

class Queue;
using Queues = std::vector<Queue*>;  // of a device's streams

// Work of a stream in order; what was recorded while it captured has passed through at once. While
// one queue is waited for, all of them run, one launch each in turn.
class Queue {
 public:
  explicit Queue(std::shared_ptr<Queues> all) : all_(std::move(all)) { all_->push_back(this); }
  ~Queue() { std::erase(*all_, this); }
  Queue(const Queue&) = delete;
  Queue& operator=(const Queue&) = delete;
  uint64_t add(std::function<void()> work) {
    waiting_.push_back(std::move(work));
    return run_ + waiting_.size();
  }
  void run_until(uint64_t number) {
    while (run_ < number) {
      for (Queue* queue : *all_) queue->run_one();
    }
  }
  void run_all() { run_until(run_ + waiting_.size()); }
  bool has_run(uint64_t number) const { return run_ >= number; }

 private:
  void run_one() {
    if (waiting_.empty()) return;
    const std::function<void()> work = std::move(waiting_.front());
    waiting_.pop_front();
    ++run_;
    work();
  }

  std::shared_ptr<Queues> all_;
  std::deque<std::function<void()>> waiting_;
  uint64_t run_ = 0;
};

class LateEvent final : public Event {
 public:
  LateEvent(std::shared_ptr<Queue> queue, Stream& stream)
      : queue_(std::move(queue)), happened_(std::make_shared<std::unique_ptr<Event>>()) {
    number_ = queue_->add([happened = happened_, &stream] { *happened = stream.record_time(); });
  }
  bool query() const override { return queue_->has_run(number_); }
  bool wait(const worker::StopFn& stop) override {
    if (!query() && stop && stop()) return false;
    queue_->run_until(number_);
    return true;
  }
  double seconds_since(const Event& earlier) const override {
    return (*happened_)->seconds_since(**static_cast<const LateEvent&>(earlier).happened_);
  }

 private:
  std::shared_ptr<Queue> queue_;
  std::shared_ptr<std::unique_ptr<Event>> happened_;
  uint64_t number_ = 0;
};

class LateStream final : public Stream, public kernels::HostLauncher {
 public:
  LateStream(std::unique_ptr<Stream> host, std::shared_ptr<Queues> queues,
             std::shared_ptr<int> captures, BeforeLaunch before_launch)
      : host_(std::move(host)),
        captures_(std::move(captures)),
        before_launch_(std::move(before_launch)),
        queue_(std::make_shared<Queue>(std::move(queues))) {}

  kernels::StreamRef ref() override { return {static_cast<kernels::HostLauncher*>(this)}; }
  void copy(void* to, const void* from, size_t bytes) override {
    when_its_turn_comes([this, to, from, bytes] { host_->copy(to, from, bytes); });
  }
  void copy_rows(std::span<const worker::CopyRows> pieces, size_t place) override {
    when_its_turn_comes([=, this] { host_->copy_rows(pieces, place); });
  }
  void launch(kernels::HostFunction function, const void* args, size_t bytes, const char* name,
              bool single) override {
    if (before_launch_ && !capturing()) before_launch_(name);
    std::vector<std::max_align_t> kept(bytes / sizeof(std::max_align_t) + 1);
    std::memcpy(kept.data(), args, bytes);
    when_its_turn_comes([this, function, kept = std::move(kept), bytes, name, single] {
      host_launcher().launch(function, kept.data(), bytes, name, single);
    });
  }
  void launch(Graph& graph) override {
    for (const worker::LaunchNode& node : static_cast<worker::HostGraph&>(graph).nodes())
      queue_->add([this, node] {
        host_launcher().launch(node.function, node.args, node.arg_bytes, node.name, node.single);
      });
  }
  void synchronize() override {
    if (!capturing()) queue_->run_all();
    host_->synchronize();
  }
  std::unique_ptr<Event> record() override {
    if (capturing()) return host_->record();
    return std::make_unique<LateEvent>(queue_, *host_);
  }
  std::unique_ptr<Event> record_time() override { return record(); }
  void begin_capture() override {
    queue_->run_all();  // else it would be recorded
    ++*captures_;
    host_->begin_capture();
  }
  std::unique_ptr<Graph> end_capture() override { return host_->end_capture(); }
  bool capturing() const override { return host_->capturing(); }

 private:
  kernels::HostLauncher& host_launcher() {
    return *static_cast<kernels::HostLauncher*>(host_->ref().native);
  }
  void when_its_turn_comes(std::function<void()> work) {
    if (capturing()) {
      work();
    } else {
      queue_->add(std::move(work));
    }
  }

  std::unique_ptr<Stream> host_;
  std::shared_ptr<int> captures_;
  BeforeLaunch before_launch_;
  std::shared_ptr<Queue> queue_;
};

class LateDevice final : public worker::Device {
 public:
  LateDevice(std::unique_ptr<worker::Device> host, std::shared_ptr<int> captures,
             BeforeLaunch before_launch,
             const std::optional<kernels::KernelTable>& kernels = std::nullopt)
      : host_(std::move(host)),
        captures_(std::move(captures)),
        before_launch_(std::move(before_launch)),
        kernels_(kernels.value_or(host_->kernels())) {}

  DeviceKind kind() const override { return host_->kind(); }
  std::string name() const override { return host_->name(); }
  const kernels::KernelTable& kernels() const override { return kernels_; }
  kernels::WeightLayout weight_layout(DType dtype) const override {
    return host_->weight_layout(dtype);
  }
  size_t weight_bytes(DType dtype, int64_t n, int64_t k) const override {
    return host_->weight_bytes(dtype, n, k);
  }
  void upload_weight(Stream& stream, const kernels::Weight& weight, void* to, int64_t row_begin,
                     int64_t rows, const void* source) override {
    host_->upload_weight(stream, weight, to, row_begin, rows, source);
  }
  int warmup_runs() const override { return 1; }
  std::unique_ptr<worker::Copier> create_copier() override { return host_->create_copier(); }
  std::unique_ptr<Buffer> allocate(size_t bytes, MemoryTag tag) override {
    return host_->allocate(bytes, tag);
  }
  std::unique_ptr<Buffer> allocate_pinned(size_t bytes) override {
    return host_->allocate_pinned(bytes);
  }
  std::unique_ptr<worker::Reservation> reserve(size_t bytes, MemoryTag tag) override {
    return host_->reserve(bytes, tag);
  }
  std::unique_ptr<Stream> create_stream(const worker::DeviceShare&) override {
    return std::make_unique<LateStream>(host_->create_stream(), queues_, captures_, before_launch_);
  }
  worker::MemoryAccount memory() const override { return host_->memory(); }
  Result<std::unique_ptr<worker::Communicator>> create_communicator(
      const worker::GroupOptions& options) override {
    return host_->create_communicator(options);
  }

 private:
  std::unique_ptr<worker::Device> host_;
  std::shared_ptr<Queues> queues_ = std::make_shared<Queues>();
  std::shared_ptr<int> captures_;
  BeforeLaunch before_launch_;
  const kernels::KernelTable kernels_;
};

}  // namespace

std::unique_ptr<worker::Device> make_late_device(std::unique_ptr<worker::Device> host) {
  return make_late_device_that_counts(std::move(host), std::make_shared<int>(0));
}

std::unique_ptr<worker::Device> make_late_device_that_counts(std::unique_ptr<worker::Device> host,
                                                             std::shared_ptr<int> captures) {
  return std::make_unique<LateDevice>(std::move(host), std::move(captures), nullptr);
}

std::unique_ptr<worker::Device> make_late_device_with(std::unique_ptr<worker::Device> host,
                                                      BeforeLaunch before_launch) {
  return std::make_unique<LateDevice>(std::move(host), std::make_shared<int>(0),
                                      std::move(before_launch));
}

std::unique_ptr<worker::Device> make_late_device_with(std::unique_ptr<worker::Device> host,
                                                      const kernels::KernelTable& kernels) {
  return std::make_unique<LateDevice>(std::move(host), std::make_shared<int>(0), nullptr, kernels);
}

}  // namespace refrain::tests
