#pragma once
// A worker with a scripted coordinator and a model runner that only counts: in-process transport,
// manual clock, a real device thread.

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <deque>
#include <thread>
#include <type_traits>

#include "ipc/protocol/codec.h"
#include "ipc/transport/inproc_endpoint.h"
#include "runtime/actor/manual_executor.h"
#include "tests/graph/runner/late_device.h"
#include "worker/device/device.h"
#include "worker/worker/worker.h"

namespace refrain::worker {

// What the fake runners of a test do and saw. Touched by the device thread, read by the test.
struct RunnerScript {
  std::atomic<int> created{0};
  std::atomic<int> destroyed{0};
  std::atomic<int> captured{0};
  std::atomic<int> submitted{0};
  std::atomic<int> steps{0};
  std::atomic<bool> hang_in_step{false};  // until it is false again
  std::atomic<bool> behind{false};        // no step ends until it is false again
  std::atomic<bool> hanging{false};
  std::atomic<int> looks{0};  // of a device that is behind: whether it shall go on without a step
  std::atomic<bool> meets{false};  // the other ranks, before it is made
  std::atomic<size_t> met{0};      // ranks
  std::atomic<StepId> throw_at{0};
  std::optional<Error> create_error, load_error, cache_error;
  std::string role_mode;  // of the last role that it changed to
  int64_t blocks_lost_to_graphs = 0;
};

class FakeRunner final : public ModelRunner {
 public:
  static constexpr int kLaunches = 3;  // of a step
  FakeRunner(RunnerScript& script, Device& device, ProgressFn progress)
      : script_(script), stream_(device.create_stream()), progress_(std::move(progress)) {
    ++script_.created;
  }
  ~FakeRunner() override { ++script_.destroyed; }

  Result<ipc::Loaded> load() override {
    for (int i = 1; i <= 100; ++i) progress_({ipc::StartPhase::kLoadWeights, i, 100, "weights"});
    if (script_.load_error) return forward_error(*script_.load_error);
    return ipc::Loaded{{{.name = "full_attention", .bytes = 1024, .num_blocks = 64}}, 4096, 0.5};
  }
  Status init_cache(const std::vector<int64_t>&) override {
    if (script_.cache_error) return forward_error(*script_.cache_error);
    return {};
  }
  Status capture() override {
    ++script_.captured;
    return {};
  }
  Result<ipc::Ready> back_cache() override {
    ipc::Ready ready;
    ready.cudagraph_mode = "FULL";
    ready.num_blocks = {64 - script_.blocks_lost_to_graphs};
    return ready;
  }
  Status change_role(const ipc::WorkerConfig& config) override {
    script_.role_mode = config.cudagraph_mode;
    return {};
  }
  void submit(const ipc::Step& step) override {
    if (step.step == script_.throw_at) throw DeviceError("the device burned");
    for (int i = 0; i < kLaunches; ++i) stream_->copy(&to_, &from_, sizeof to_);
    while (script_.hang_in_step) {
      script_.hanging = true;
      std::this_thread::yield();
    }
    queue_.push_back(step.step);
    ++script_.submitted;
  }
  std::optional<ipc::StepResult> wait_unless(const StopFn& stop) override {
    while (script_.behind) {
      if (stop && stop()) return std::nullopt;
      ++script_.looks;
      std::this_thread::yield();
    }
    ipc::StepResult result;
    result.step = queue_.front();
    result.token_offsets = {0, 1};
    result.tokens = {static_cast<TokenId>(result.step)};
    queue_.pop_front();
    ++script_.steps;
    return result;
  }
  int in_flight() const override { return static_cast<int>(queue_.size()); }
  void compile_grammar(std::string source, std::function<void()> done) override {
    if (source == "regex:a") compiler_ = std::jthread(std::move(done));
  }

 private:
  RunnerScript& script_;
  std::unique_ptr<Stream> stream_;
  int64_t to_ = 0, from_ = 0;
  ProgressFn progress_;
  std::deque<StepId> queue_;
  std::jthread compiler_;
};

inline ipc::Step step(StepId id) {
  ipc::Step message;
  message.step = id;
  return message;
}

class WorkerFixture : public testing::Test {
 protected:
  static constexpr Duration kPatience = std::chrono::seconds(20);

  void SetUp() override { start_coordinator(); }
  void TearDown() override {
    script_.hang_in_step = false;
    script_.behind = false;
  }

  void start_coordinator() {
    server_ = std::move(*hub_->make_server(coordinator_executor_));
    server_->start([this](const ipc::PeerId& from, std::span<const std::byte> frame) {
      auto decoded = ipc::decode_frame(frame);
      ASSERT_TRUE(decoded.has_value()) << decoded.error().message;
      peer_ = from;
      received_.push_back(std::move(*decoded));
    });
  }

  void start_worker(WorkerOptions options = {}) {
    options.heartbeat = std::chrono::milliseconds(5);
    DeviceThread::Options device;
    device.make_device = [this]() -> Result<std::unique_ptr<Device>> {
      auto host = create_host_device({});
      if (!host || !late_device_) return host;
      return tests::make_late_device(std::move(*host));
    };
    device.make_runner = [this](const RunnerOptions& runner, Device& host,
                                ModelRunner::ProgressFn p) -> Result<std::unique_ptr<ModelRunner>> {
      group_token_ = runner.group_token;
      if (script_.create_error) return forward_error(*script_.create_error);
      if (script_.meets) {
        REFRAIN_ASSIGN_OR_RETURN(const auto ranks, runner.meet({"memory", "tcp://here:1", "key"}));
        script_.met = ranks.size();
      }
      return std::make_unique<FakeRunner>(script_, host, std::move(p));
    };
    device.heartbeat = options.heartbeat;
    device.report = [this](DeviceReport report) {
      worker_executor_->post(
          [this, report = std::move(report)]() mutable { worker_->on_report(std::move(report)); });
    };
    device_ = std::make_unique<DeviceThread>(std::move(device));
    const auto name = device_->start(kPatience);
    ASSERT_TRUE(name.has_value());
    worker_ = std::make_unique<Worker>(
        options, Worker::Identity{{}, "digest", *name, {"here", 1, 7}, "machine"}, worker_executor_,
        std::move(*hub_->make_client(worker_executor_, "rank-0")), *device_,
        [this](const ProcessIdentity& process, std::function<void()> gone) {
          watched_pid_ = process.pid;
          coordinator_gone_ = std::move(gone);
          return true;
        },
        [this](int code) { exit_code_ = code; });
    worker_executor_->post([this] { worker_->start(); });
  }

  void send(const ipc::Message& message, ipc::FrameInfo info) {
    std::vector<std::byte> frame;
    ipc::encode_frame(message, info, frame);
    ASSERT_TRUE(server_->send(peer_, frame).has_value());
  }
  // The next frame of the present epoch.
  void send(const ipc::Message& message) { send(message, {epoch_, ++sequence_}); }
  void welcome(Epoch epoch = 1, int32_t tensor_parallel_size = 1, int32_t max_num_seqs = 256) {
    epoch_ = epoch;
    sequence_ = 0;
    ipc::Welcome message;
    if (watch_process_) {
      message.realm = "here";
      message.pid = 4711;
    }
    message.config.max_num_seqs = max_num_seqs;
    message.config.cudagraph_mode = cudagraph_mode_;
    message.config.tensor_parallel_size = tensor_parallel_size;
    message.config.collective_timeout_ms = collective_timeout_ms_;
    message.group_token = fmt::format("group-{}", epoch);
    message.held_group = held_group_;
    send(message);
  }

  // Runs both actors until the condition holds.
  template <class Condition>
  testing::AssertionResult eventually(Condition condition) {
    const auto end = std::chrono::steady_clock::now() + kPatience;
    while (!condition()) {
      if (scheduler_.run_until_idle() == 0) std::this_thread::yield();
      if (std::chrono::steady_clock::now() > end) return testing::AssertionFailure() << "in vain";
    }
    return testing::AssertionSuccess();
  }

  // Takes the oldest received message of the kind, waiting for it.
  template <class T>
  std::optional<ipc::DecodedFrame> take() {
    std::optional<ipc::DecodedFrame> found;
    EXPECT_TRUE(eventually([&] {
      for (auto at = received_.begin(); at != received_.end(); ++at) {
        if (!std::holds_alternative<T>(at->message)) continue;
        if constexpr (std::is_same_v<T, ipc::Hello>)
          held_group_ = std::get<ipc::Hello>(at->message).held_group;
        found = std::move(*at);
        received_.erase(at);
        return true;
      }
      return false;
    }));
    return found;
  }
  template <class T>
  size_t count() {
    size_t number = 0;
    for (const auto& frame : received_) number += std::holds_alternative<T>(frame.message);
    return number;
  }

  // Up to Ready.
  void bring_up(Epoch epoch = 1) {
    ASSERT_TRUE(take<ipc::Hello>());
    welcome(epoch);
    ASSERT_TRUE(take<ipc::Loaded>());
    send(ipc::InitCache{{64}});
    ASSERT_TRUE(take<ipc::Ready>());
  }

  // Up to the Hello after the coordinator's process has ended, the device hanging in a step of it
  // or not.
  void bring_up_and_lose_coordinator(bool in_step = false) {
    watch_process_ = true;
    start_worker();
    bring_up(1);
    if (in_step) {
      script_.hang_in_step = true;
      send(step(1));
      ASSERT_TRUE(eventually([&] { return script_.hanging.load(); }));
    }
    coordinator_gone_();
    scheduler_.advance(std::chrono::seconds(1));
    ASSERT_TRUE(take<ipc::Hello>());
  }

  RunnerScript script_;
  std::string group_token_;
  std::string cudagraph_mode_;
  std::string held_group_;  // of the last Hello that the coordinator took
  int32_t collective_timeout_ms_ = 30000;
  ManualScheduler scheduler_;
  std::shared_ptr<Executor> worker_executor_ = scheduler_.make_executor("worker");
  std::shared_ptr<Executor> coordinator_executor_ = scheduler_.make_executor("coordinator");
  std::shared_ptr<ipc::InprocHub> hub_ = ipc::InprocHub::create();
  std::unique_ptr<ipc::Endpoint> server_;
  ipc::PeerId peer_;
  std::deque<ipc::DecodedFrame> received_;
  Epoch epoch_ = 0;
  uint64_t sequence_ = 0;
  std::optional<int> exit_code_;
  bool late_device_ = false;    // one that takes a further step before it has ended the present one
  bool watch_process_ = false;  // the coordinator says that it runs on this host
  int64_t watched_pid_ = 0;
  std::function<void()> coordinator_gone_;
  std::unique_ptr<Worker> worker_;
  std::unique_ptr<DeviceThread> device_;
};

}  // namespace refrain::worker
