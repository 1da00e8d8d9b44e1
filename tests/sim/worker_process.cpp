#include "tests/sim/worker_process.h"

#include <fmt/format.h>

#include <utility>

#include "runtime/base/check.h"

namespace refrain::sim {
namespace {

// Those of worker/worker/worker.h.
constexpr Duration kHeartbeat = std::chrono::milliseconds(250);
constexpr Duration kHelloInterval = std::chrono::seconds(3);
constexpr Duration kCoordinatorTimeout = std::chrono::seconds(5);

constexpr int kExitOk = 0;
constexpr int kExitRefused = 64;
constexpr int kExitInternal = 70;

}  // namespace

WorkerProcess::WorkerProcess(WorkerSettings worker, std::unique_ptr<ipc::Endpoint> endpoint,
                             std::shared_ptr<ProcessExecutor> executor, WorkerHooks hooks)
    : settings(std::move(worker)),
      executor_(std::move(executor)),
      hooks_(std::move(hooks)),
      link_(std::move(endpoint), executor_->clock()) {}

void WorkerProcess::start() {
  link_.start({
      [this](Epoch, const ipc::Welcome& welcome) { begin_group(welcome); },
      [this](const std::string& reason) { end(kExitRefused, "refused: " + reason); },
      [this](ipc::Message message) { on_message(std::move(message)); },
      [this](const std::string& reason) { end(kExitInternal, reason); },
  });
  say_hello();
  watch();
}

void WorkerProcess::kill() {
  alive_ = false;
  executor_->kill();
  link_.close();
}

void WorkerProcess::end(int code, const std::string& why) {
  if (!alive_) return;
  hooks_.note(
      fmt::format("pid {} (rank {}) ends with {}: {}", settings.pid, settings.rank, code, why));
  kill();
  hooks_.on_exit(code);
}

void WorkerProcess::lose_connection() {
  executor_->post([this] {
    if (link_.epoch() != 0) say_hello();
  });
}

void WorkerProcess::say_hello() {
  if (!alive_) return;
  ipc::Hello hello;
  hello.build_id = "build";
  hello.model_digest = "digest";
  hello.rank = settings.rank;
  hello.tensor_parallel_size = settings.tensor_parallel_size;
  hello.pid = settings.pid;
  hello.host = settings.host;
  awaiting_welcome_ = true;
  last_hello_ = executor_->clock().now();
  hooks_.note(fmt::format("pid {} (rank {}) says hello", settings.pid, settings.rank));
  link_.send_hello(hello);
}

void WorkerProcess::watch() {
  const TimePoint now = executor_->clock().now();
  if (awaiting_welcome_) {
    if (now - last_hello_ >= kHelloInterval) say_hello();
  } else if (now - link_.last_heard() >= kCoordinatorTimeout) {
    say_hello();
  }
  // From the device's loop: a device at work is silent.
  if (!busy_ && !awaiting_welcome_ && link_.epoch() != 0) link_.send(ipc::Heartbeat{0, ++beats_});
  executor_->post_after(kHeartbeat, [this] { watch(); });
}

void WorkerProcess::begin_group(const ipc::Welcome& welcome) {
  hooks_.note(fmt::format("pid {} (rank {}) is welcomed to epoch {}", settings.pid, settings.rank,
                          link_.epoch()));
  awaiting_welcome_ = false;
  config_ = welcome.config;
  commands_.clear();
  device_.reset();
  link_.send(ipc::Progress{ipc::StartPhase::kLoadWeights, 0, 1, ""});
  if (!alive_) return;
  later(1'000, 60'000, &WorkerProcess::loaded);
}

// Runs `done` when the device has worked for so long, unless another epoch has begun.
void WorkerProcess::later(uint64_t least_us, uint64_t most_us, void (WorkerProcess::*done)()) {
  busy_ = true;
  const std::chrono::microseconds took(least_us + hooks_.random(most_us - least_us));
  executor_->post_after(took, [this, epoch = link_.epoch(), done] {
    if (epoch != link_.epoch()) return;
    busy_ = false;
    (this->*done)();
    if (alive_ && !busy_) work();
  });
}

void WorkerProcess::loaded() {
  ipc::Loaded loaded;
  loaded.num_kv_blocks = settings.num_kv_blocks;
  link_.send(loaded);
}

void WorkerProcess::on_message(ipc::Message message) {
  if (auto* shutdown = std::get_if<ipc::Shutdown>(&message))
    return end(kExitOk, "told to: " + shutdown->reason);
  commands_.push_back(std::move(message));
  work();
}

void WorkerProcess::work() {
  if (busy_ || commands_.empty()) return;
  if (std::holds_alternative<ipc::InitCache>(commands_.front()))
    return later(1'000, 60'000, &WorkerProcess::captured);
  if (fault_ == StepFault::kSpin) {
    hooks_.note(fmt::format("pid {} (rank {}) spins", settings.pid, settings.rank));
    busy_ = true;  // for ever
    return;
  }
  const auto slower = std::chrono::duration_cast<std::chrono::microseconds>(slower_).count();
  later(200 + static_cast<uint64_t>(slower), 8'000 + static_cast<uint64_t>(slower),
        &WorkerProcess::step_done);
}

void WorkerProcess::captured() {
  const ipc::Message message = std::move(commands_.front());
  commands_.pop_front();
  const auto& init = std::get<ipc::InitCache>(message);
  device_ = std::make_unique<testing::MockDevice>(
      config_.block_size, init.num_kv_blocks, settings.model.vocab, settings.model.eos_every, true);
  ipc::Ready ready;
  ready.cudagraph_mode = "FULL";
  ready.num_kv_blocks = init.num_kv_blocks;
  link_.send(ready);
}

void WorkerProcess::step_done() {
  const ipc::Message message = std::move(commands_.front());
  commands_.pop_front();
  REFRAIN_CHECK(std::holds_alternative<ipc::Step>(message) && device_, "a step out of turn");
  const ipc::Step& step = std::get<ipc::Step>(message);
  hooks_.on_step(settings.rank, link_.epoch(), step);
  ipc::StepResult result = device_->run(step);
  result.rank = settings.rank;
  result.mode = ipc::RuntimeMode::kFull;
  result.key_tokens = result.num_tokens;
  if (settings.rank == 0) {
    for (const TokenId token : result.tokens) result.logprobs.push_back(logprob_of(token));
  } else {
    result.tokens.clear();
  }
  if (spoil(result)) return;
  hooks_.note(fmt::format("pid {} (rank {}) answers step {} of epoch {}", settings.pid,
                          settings.rank, result.step, link_.epoch()));
  link_.send(result);
}

// True when the worker ends instead of answering.
bool WorkerProcess::spoil(ipc::StepResult& result) {
  switch (std::exchange(fault_, StepFault::kNone)) {
    case StepFault::kNone:
    case StepFault::kSpin:
      return false;
    case StepFault::kDeviceError:
      link_.send(ipc::Failed{result.step, "the device is lost", false});
      end(kExitInternal, "device error");
      return true;
    case StepFault::kOtherKey:
      result.key_tokens += 8;
      return false;
    case StepFault::kTokenTooLarge:
      for (TokenId& token : result.tokens) token = 1 << 20;
      return false;
    case StepFault::kRowMissing:
      if (!result.tokens.empty()) {
        result.tokens.pop_back();
        result.logprobs.pop_back();
      }
      return false;
  }
  REFRAIN_CHECK(false, "no such fault");
}

}  // namespace refrain::sim
