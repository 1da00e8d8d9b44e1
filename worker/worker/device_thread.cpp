#include "worker/worker/device_thread.h"

#include <utility>

#include "runtime/base/last_error.h"
#include "runtime/base/log.h"

namespace refrain::worker {

namespace {

constexpr auto kProgressInterval = std::chrono::milliseconds(50);

template <class... Cases>
struct Overloaded : Cases... {
  using Cases::operator()...;
};
template <class... Cases>
Overloaded(Cases...) -> Overloaded<Cases...>;

}  // namespace

DeviceThread::DeviceThread(Options options) : options_(std::move(options)) {
  if (options_.flight_fd < 0) return;
  auto ring = ipc::FlightRing::map(options_.flight_fd);
  if (ring) {
    flight_ = std::move(*ring);
  } else {
    log::warn("no flight recorder: {}", ring.error().message);
  }
}

DeviceThread::~DeviceThread() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  if (thread_.joinable()) thread_.join();
}

Result<std::string> DeviceThread::start(Duration timeout) {
  std::promise<Result<std::string>> started;
  std::promise<void> ended;
  auto name = started.get_future();
  ended_ = ended.get_future();
  thread_ = std::thread([this, started = std::move(started), ended = std::move(ended)]() mutable {
    run(std::move(started));
    ended.set_value();
  });
  if (name.wait_for(timeout) == std::future_status::ready) return name.get();
  return fail(ErrorCode::kUnavailable, "the device did not open within {:.0f} s",
              seconds_of(timeout));
}

void DeviceThread::start_group(Epoch epoch, RunnerOptions options) {
  {
    const std::lock_guard lock(mutex_);
    commands_.clear();
    num_commands_ = 0;
    peers_.reset();
  }
  post(StartGroup{epoch, std::move(options)});
}

void DeviceThread::adopt(Epoch epoch) { post(Adopt{epoch}); }
void DeviceThread::init_cache(const ipc::InitCache& message) { post(message); }

void DeviceThread::peers(ipc::Peers message) {
  {
    const std::lock_guard lock(mutex_);
    peers_ = std::move(message);
  }
  wake_.notify_all();
}

void DeviceThread::step(ipc::Step message) { post(std::move(message)); }
void DeviceThread::grammar(ipc::Grammar message) { post(std::move(message)); }
void DeviceThread::load_adapter(ipc::LoadAdapter message) { post(std::move(message)); }
void DeviceThread::unload_adapter(const ipc::UnloadAdapter& message) { post(message); }

void DeviceThread::transfer(TransferThread::Command command) {
  const std::lock_guard lock(mutex_);
  if (transfers_) transfers_->post(std::move(command));
}

bool DeviceThread::stop(Duration timeout) {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  return !ended_.valid() || ended_.wait_for(timeout) == std::future_status::ready;
}

void DeviceThread::post(Command command) {
  {
    const std::lock_guard lock(mutex_);
    commands_.push_back(std::move(command));
    num_commands_ = commands_.size();
  }
  wake_.notify_one();
}

std::optional<DeviceThread::Command> DeviceThread::take(Duration timeout) {
  std::unique_lock lock(mutex_);
  if (timeout > Duration::zero()) {
    wake_.wait_for(lock, timeout, [this] { return stopping_ || !commands_.empty(); });
  }
  if (stopping_ || commands_.empty()) return std::nullopt;
  std::optional<Command> command(std::move(commands_.front()));
  commands_.pop_front();
  num_commands_ = commands_.size();
  return command;
}

bool DeviceThread::stopping() {
  const std::lock_guard lock(mutex_);
  return stopping_;
}

void DeviceThread::run(std::promise<Result<std::string>> started) {
  bool named = false;
  try {
    auto device = options_.make_device();
    if (!device) {
      started.set_value(forward_error(std::move(device).error()));
      return;
    }
    device_ = std::move(*device);
    launches_ = device_->launch_counter();
    start_times_.emplace("process and device");
    started.set_value(device_->name());
    named = true;
    serve();
    end_transfers();
    runner_.reset();
    device_.reset();
  } catch (const std::exception& error) {  // this process is broken: say so and end
    Error broken = error_of(error);
    // Memory that a start does not get may be there at a later try (exit 75).
    if (!ready_ && dynamic_cast<const OutOfMemory*>(&error) != nullptr)
      broken.code = ErrorCode::kUnavailable;
    if (!named) {
      started.set_value(forward_error(broken));
    } else {
      fail_with(broken);
    }
  }
}

void DeviceThread::serve() {
  const int depth = device_->runs_at_once() ? 1 : ModelRunner::kMaxInFlight;
  while (!stopping()) {
    beat();
    const int in_flight = runner_ ? runner_->in_flight() : 0;
    std::optional<Command> command;
    if (in_flight < depth) command = take(in_flight == 0 ? options_.heartbeat : Duration::zero());
    if (command) {
      if (const Status status = handle(std::move(*command)); !status) {
        fail_with(status.error());
        return;
      }
    } else if (in_flight > 0) {
      // A device that could take a further step gets it as soon as it comes, so that it has one
      // when it ends the present one.
      const auto stop = [&] { return in_flight < depth && num_commands_ > 0; };
      std::optional<ipc::StepResult> waited = runner_->wait_unless(stop);
      if (!waited) continue;
      finish(std::move(*waited));
    }
  }
}

void DeviceThread::finish(ipc::StepResult result) {
  passed(result.step);
  record({.step = result.step,
          .phase = ipc::FlightPhase::kDone,
          .mode = static_cast<uint8_t>(result.mode),
          .key_uniform = result.key_uniform,
          .num_tokens = result.num_tokens,
          .num_reqs = static_cast<int32_t>(result.token_offsets.size()) - 1,
          .key_tokens = result.key_tokens,
          .key_reqs = result.key_reqs,
          .device_us = static_cast<uint32_t>(result.device_ms * 1000)});
  report(std::move(result));
}

Status DeviceThread::handle(Command command) {
  return std::visit(Overloaded{
                        [this](StartGroup& start) { return load(std::move(start)); },
                        [this](Adopt adopted) { return keep(adopted); },
                        [this](const ipc::InitCache& message) { return prepare(message); },
                        [this](const ipc::Step& message) { return submit(message); },
                        [this](const ipc::Grammar& message) { return compile(message); },
                        [this](const Compiled& done) {
                          if (done.epoch == epoch_) report(ipc::GrammarReady{done.request});
                          return Status{};
                        },
                        [this](const ipc::LoadAdapter& message) { return load_now(message); },
                        [this](const ipc::UnloadAdapter& message) {
                          REFRAIN_CHECK(ready_, "UnloadAdapter before Ready");
                          runner_->unload_adapter(message.id);
                          return Status{};
                        },
                    },
                    command);
}

Status DeviceThread::submit(const ipc::Step& message) {
  REFRAIN_CHECK(ready_, "step {} before Ready", message.step);
  const auto mode = message.runs.empty() ? ipc::ForwardMode{} : message.runs.front().mode;
  ipc::FlightRecord entry = {.step = message.step,
                             .phase = ipc::FlightPhase::kTaken,
                             .forward_mode = static_cast<uint8_t>(mode),
                             .num_tokens = static_cast<int32_t>(ipc::num_tokens(message)),
                             .num_reqs = static_cast<int32_t>(ipc::num_rows(message))};
  record(entry);
  if (options_.fault != nullptr && !options_.fault->before_step(message, *device_)) return {};
  // A grammar's mask follows from the token before: such a step begins when the ones before end.
  while (runner_->in_flight() > 0 && runner_->needs_tokens_before(message)) finish(runner_->wait());
  runner_->submit(message);
  last_submitted_ = message.step;
  entry.phase = ipc::FlightPhase::kSubmitted;
  record(entry);
  return {};
}

Status DeviceThread::compile(const ipc::Grammar& message) {
  REFRAIN_CHECK(ready_, "the grammar of request {} before Ready", message.request);
  runner_->compile_grammar({message.source.begin(), message.source.end()},
                           [this, done = Compiled{epoch_, message.request}] { post(done); });
  return {};
}

// Steps wait meanwhile. An adapter that cannot be read is its client's mistake, not the worker's
// end.
Status DeviceThread::load_now(const ipc::LoadAdapter& message) {
  REFRAIN_CHECK(ready_, "LoadAdapter before Ready");
  const Status loaded = runner_->load_adapter(message, [this] { beat(); });
  if (loaded) {
    log::info("LoRA adapter {} is loaded", message.name);
  } else {
    log::warn("LoRA adapter {}: {}", message.name, loaded.error().message);
  }
  report(ipc::AdapterLoaded{message.id, loaded ? "" : loaded.error().message});
  return {};
}

// Tens of nanoseconds (tests/bench/ipc), so that every step affords it.
void DeviceThread::record(ipc::FlightRecord entry) {
  entry.time_ns = static_cast<uint64_t>(
      std::chrono::nanoseconds(steady_clock().now().time_since_epoch()).count());
  entry.epoch = epoch_;
  flight_.write(entry);
}

void DeviceThread::on_progress(const ipc::Progress& progress) {
  const TimePoint now = steady_clock().now();
  const bool milestone = progress.phase != last_phase_ || progress.done >= progress.total;
  if (milestone || now - last_progress_ >= kProgressInterval) {
    last_phase_ = progress.phase;
    last_progress_ = now;
    report(progress);
  }
  beat();
}

// A sign of life with the step counter, at most once an interval. It comes from this loop alone, so
// that it stops when the device hangs.
void DeviceThread::beat() {
  const TimePoint now = steady_clock().now();
  if (epoch_ == 0 || now - last_beat_ < options_.heartbeat) return;
  last_beat_ = now;
  report(ipc::Heartbeat{last_step_, ++beats_});
}

void DeviceThread::passed(StepId step) {
  if (step == 0) last_submitted_ = 0;
  last_step_ = step;
  if (launches_) launches_before_ = launches_->done.load(std::memory_order_relaxed);
}

ipc::Position DeviceThread::position() const {
  if (!launches_) {
    const StepId done = last_step_;
    return {done, std::max<StepId>(last_submitted_, done) - done, false};
  }
  const uint64_t before = launches_before_;  // first: the counter only grows
  return {last_step_, launches_->done.load(std::memory_order_relaxed) - before, true};
}

void DeviceThread::report(ipc::Message message) { options_.report({epoch_, std::move(message)}); }

void DeviceThread::fail_with(const Error& error) {
  const int code = exit_code(error.code);
  const std::string text =
      error.field.empty() ? error.message : fmt::format("{}: {}", error.field, error.message);
  options_.report({epoch_, ipc::Failed{last_step_, text, code == kExitConfig}, code});
}

}  // namespace refrain::worker
