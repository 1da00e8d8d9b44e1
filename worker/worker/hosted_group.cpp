#include "worker/worker/hosted_group.h"

#include <utility>

#include "runtime/base/log.h"
#include "worker/worker/start_text.h"

namespace refrain::worker {

HostedGroup::HostedGroup(Device& device, DeviceCommands& commands, DeviceSigns& signs,
                         GroupTransfers& transfers, const RunnerFactory& make_runner,
                         FaultHook* fault)
    : device_(device),
      commands_(commands),
      signs_(signs),
      transfers_(transfers),
      make_runner_(make_runner),
      fault_(fault) {}

Status HostedGroup::start(StartGroup command) {
  transfers_.end();
  runner_.reset();
  if (signs_.epoch() != 0) start_times_.restart();
  start_times_.mark("coordinator");
  ready_ = other_role_ = false;
  report_.reset();
  signs_.begin(command.epoch);
  signs_.record({.phase = ipc::FlightPhase::kLoading});
  // It has left its old steps.
  signs_.report(ipc::Progress{ipc::StartPhase::kConnect, 0, 1, ""});
  const auto timeout = std::chrono::milliseconds(command.options.config.collective_timeout_ms);
  // The ranks find each other through the coordinator.
  command.options.meet = [this, timeout](const ipc::RankAddress& mine) {
    signs_.report(mine);
    return commands_.wait_for_peers(timeout);
  };
  command.options.stop_joining = [this] { return commands_.overtaken(); };
  moves_blocks_ = command.options.config.kv_transfer;
  backend_ = command.options.config.kv_transfer_backend;
  rank_ = command.options.rank;
  auto runner = make_runner_(std::move(command.options), device_,
                             [this](const ipc::Progress& p) { signs_.report_progress(p); });
  if (!runner && commands_.overtaken()) return {};
  REFRAIN_ASSIGN_OR_RETURN(runner_, std::move(runner));
  start_times_.mark("program and communicator");
  REFRAIN_ASSIGN_OR_RETURN(loaded_, runner_->load());
  start_times_.mark("weights and buffers");
  log::info("weights: {:.1f} MB in {:.2f} s; room for {}",
            static_cast<double>(loaded_.weight_bytes) * 1e-6, loaded_.seconds,
            text_of(loaded_.groups));
  signs_.report(loaded_);
  return {};
}

// Slots and cache need no clearing: a request that enters a slot sets it up, and reads only blocks
// that it has written.
Status HostedGroup::adopt(const Adopt& command) {
  REFRAIN_CHECK(report_.has_value(), "adopted before it was ready");
  transfers_.end();  // of a coordinator that is gone
  while (runner_->in_flight() > 0) runner_->wait();
  runner_->forget_adapters();
  runner_->forget_steps();
  ready_ = false;
  signs_.begin(command.epoch);
  if (command.config) {
    signs_.report(ipc::Progress{ipc::StartPhase::kConnect, 0, 1, ""});  // it has left its old steps
    REFRAIN_RETURN_IF_ERROR(runner_->change_role(*command.config));
    other_role_ = true;
  }
  loaded_.seconds = 0;
  loaded_.kept = true;
  signs_.report(loaded_);
  return {};
}

Status HostedGroup::capture(const std::vector<int64_t>& num_blocks) {
  start_times_.mark("other ranks");
  REFRAIN_RETURN_IF_ERROR(runner_->init_cache(num_blocks));
  {
    std::vector<std::unique_ptr<Buffer>> taken;
    if (fault_ != nullptr) taken = fault_->before_capture(device_);
    REFRAIN_RETURN_IF_ERROR(runner_->capture());
  }
  REFRAIN_ASSIGN_OR_RETURN(report_, runner_->back_cache());
  for (size_t i = 0; i < loaded_.groups.size(); ++i)
    loaded_.groups[i].num_blocks = report_->num_blocks.at(i);
  start_times_.mark("captures and cache");
  tell_ready();
  log::info("device memory: {}", memory_text(*report_, device_.memory()));
  log::info("start: {}", start_times_.text());
  return {};
}

// It has its cache, and its graphs too but for another role's, which are captured in front of the
// role's first step (CG-23).
Status HostedGroup::take_again(const std::vector<int64_t>& num_blocks) {
  check_kept_blocks(num_blocks);
  if (other_role_) {
    signs_.record({.phase = ipc::FlightPhase::kCapturing});
    REFRAIN_RETURN_IF_ERROR(runner_->capture());
    REFRAIN_ASSIGN_OR_RETURN(report_, runner_->back_cache());
    other_role_ = false;
    tell_ready();
  } else {
    log::info("ready again: nothing was loaded or captured");
  }
  report_->num_blocks = num_blocks;
  return {};
}

void HostedGroup::tell_ready() const {
  for (const std::string& warning : report_->warnings) log::warn("{}", warning);
  log::info("ready: {}, {} keys captured, {}", report_->cudagraph_mode, report_->manifest.size(),
            text_of(loaded_.groups));
}

void HostedGroup::check_kept_blocks(const std::vector<int64_t>& num_blocks) const {
  REFRAIN_CHECK(num_blocks.size() == loaded_.groups.size(), "adopted with {} state groups, not {}",
                num_blocks.size(), loaded_.groups.size());
  for (size_t i = 0; i < loaded_.groups.size(); ++i) {
    REFRAIN_CHECK(num_blocks[i] <= loaded_.groups[i].num_blocks,
                  "adopted with {} blocks of {}, there are {}", num_blocks[i],
                  loaded_.groups[i].name, loaded_.groups[i].num_blocks);
  }
}

Status HostedGroup::init_cache(const ipc::InitCache& message) {
  REFRAIN_CHECK(runner_ != nullptr && !ready_, "InitCache before Loaded or after Ready");
  if (report_) {
    REFRAIN_RETURN_IF_ERROR(take_again(message.num_blocks));
  } else {
    signs_.record({.phase = ipc::FlightPhase::kCapturing});
    REFRAIN_RETURN_IF_ERROR(capture(message.num_blocks));
  }
  ready_ = true;
  signs_.record({.phase = ipc::FlightPhase::kReady});
  signs_.report(*report_);
  if (!moves_blocks_) return {};
  return transfers_.start(device_, rank_, backend_, runner_->kv_memory(),
                          fault_ != nullptr ? fault_->of_transfers() : PlannedFaults{}, signs_);
}

Status HostedGroup::submit(const ipc::Step& message) {
  REFRAIN_CHECK(ready_, "step {} before Ready", message.step);
  const auto mode = message.runs.empty() ? ipc::ForwardMode{} : message.runs.front().mode;
  ipc::FlightRecord entry = {.step = message.step,
                             .phase = ipc::FlightPhase::kTaken,
                             .forward_mode = static_cast<uint8_t>(mode),
                             .num_tokens = static_cast<int32_t>(ipc::num_tokens(message)),
                             .num_reqs = static_cast<int32_t>(ipc::num_rows(message))};
  signs_.record(entry);
  if (fault_ != nullptr && !fault_->before_step(message, device_)) return {};
  // A grammar's mask follows from the token before: such a step begins when the ones before end.
  while (runner_->in_flight() > 0 && runner_->needs_tokens_before(message)) finish(runner_->wait());
  runner_->submit(message);
  signs_.submitted(message.step);
  entry.phase = ipc::FlightPhase::kSubmitted;
  signs_.record(entry);
  return {};
}

Status HostedGroup::compile(const ipc::Grammar& message) {
  REFRAIN_CHECK(ready_, "the grammar of request {} before Ready", message.request);
  runner_->compile_grammar(
      {message.source.begin(), message.source.end()},
      [this, done = GrammarCompiled{signs_.epoch(), message.request}] { commands_.post(done); });
  return {};
}

Status HostedGroup::load_adapter(const ipc::LoadAdapter& message) {
  REFRAIN_CHECK(ready_, "LoadAdapter before Ready");
  const AdapterRead read{signs_.epoch(), message.id};
  const Status begun = runner_->read_adapter(message, [this, read] { commands_.post(read); });
  if (!begun) report_adapter(read.id, begun);
  return {};
}

Status HostedGroup::adapter_read(const AdapterRead& message) {
  if (message.epoch == signs_.epoch() && runner_->reads_adapter(message.id))
    add_adapter(message.id);
  return {};
}

void HostedGroup::add_adapter(AdapterId id) {
  report_adapter(id, runner_->add_adapter(id, [this] { signs_.beat(); }));
}

// An adapter that cannot be read is its client's mistake, not the worker's end.
void HostedGroup::report_adapter(AdapterId id, const Status& loaded) {
  if (!loaded) log::warn("LoRA adapter: {}", loaded.error().message);
  signs_.report(ipc::AdapterLoaded{id, loaded ? "" : loaded.error().message});
}

void HostedGroup::finish(ipc::StepResult result) {
  signs_.done(result.step);
  signs_.record({.step = result.step,
                 .phase = ipc::FlightPhase::kDone,
                 .mode = static_cast<uint8_t>(result.mode),
                 .key_uniform = result.key_uniform,
                 .num_tokens = result.num_tokens,
                 .num_reqs = static_cast<int32_t>(result.token_offsets.size()) - 1,
                 .key_tokens = result.key_tokens,
                 .key_reqs = result.key_reqs,
                 .device_us = static_cast<uint32_t>(result.device_ms * 1000)});
  signs_.report(std::move(result));
}

Status HostedGroup::compiled(const GrammarCompiled& message) {
  if (message.epoch == signs_.epoch()) signs_.report(ipc::GrammarReady{message.request});
  return {};
}

Status HostedGroup::unload_adapter(const ipc::UnloadAdapter& message) {
  REFRAIN_CHECK(ready_, "UnloadAdapter before Ready");
  if (runner_->reads_adapter(message.id)) add_adapter(message.id);  // in the order of the messages
  runner_->unload_adapter(message.id);
  return {};
}

void HostedGroup::wait_unless(const StopFn& stop) {
  std::optional<ipc::StepResult> waited = runner_->wait_unless(stop);
  if (waited) finish(std::move(*waited));
}

}  // namespace refrain::worker
