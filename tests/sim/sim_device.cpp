#include "tests/sim/sim_device.h"

#include <fmt/format.h>

#include <utility>

#include "runtime/base/check.h"

namespace refrain::sim {
namespace {

constexpr Duration kHeartbeat = std::chrono::milliseconds(250);
constexpr Duration kLookEvery = std::chrono::milliseconds(1);  // at flags of other groups' layers
constexpr int kExitInternal = 70;

}  // namespace

std::optional<Poison> Poison::of(uint64_t seed) {
  if (seed < kFirstSeed || seed >= kFirstSeed + 3 * 64) return std::nullopt;
  const uint64_t code = seed - kFirstSeed;
  return Poison{static_cast<Kind>(code / 64), static_cast<int32_t>(code % 64 / 16),
                static_cast<int32_t>(code % 16)};
}

SimDevice::SimDevice(SimDeviceSettings settings, std::shared_ptr<Executor> executor)
    : settings_(std::move(settings)), executor_(std::move(executor)) {}

// A device at work is silent.
void SimDevice::start() {
  if (!busy_ && epoch_ != 0) report(ipc::Heartbeat{last_step_, ++beats_});
  executor_->post_after(kHeartbeat, [this] { start(); });
}

void SimDevice::start_group(Epoch epoch, worker::RunnerOptions options) {
  commands_.clear();
  post(StartGroup{epoch, options.group_token, options.config});
}
void SimDevice::init_cache(const ipc::InitCache& message) { post(message); }
void SimDevice::step(ipc::Step message) { post(std::move(message)); }

// Beside its steps.
void SimDevice::grammar(ipc::Grammar message) {
  const auto takes = std::chrono::microseconds(100 + settings_.random(200'000));
  executor_->post_after(takes, [this, epoch = epoch_, request = message.request] {
    if (epoch == epoch_) report(ipc::GrammarReady{request});
  });
}

void SimDevice::post(Command command) {
  commands_.push_back(std::move(command));
  work();
}

void SimDevice::work() {
  if (busy_ || commands_.empty()) return;
  Command command = std::move(commands_.front());
  commands_.pop_front();
  busy_ = true;
  if (fault_ == StepFault::kSpin && std::holds_alternative<ipc::Step>(command)) {
    settings_.note(fmt::format("rank {} spins", settings_.rank));
    return;  // for ever
  }
  if (const auto* step = std::get_if<ipc::Step>(&command)) {
    if (const auto poison = poison_in(*step)) {
      settings_.on_poison(settings_.rank, epoch_, *poison);
      if (poison->kind != Poison::Kind::kDeviceError) return;  // killed, or it spins for ever
      report(ipc::Failed{step->step, "the device is lost to a request", false}, kExitInternal);
      return;
    }
  }
  if (const auto* start = std::get_if<StartGroup>(&command)) begin_load(*start);
  if (hang_.on && (hang_.capturing ? std::holds_alternative<ipc::InitCache>(command)
                                   : std::holds_alternative<StartGroup>(command)))
    return settings_.on_hang(settings_.rank, epoch_);  // for ever
  executor_->post_after(duration_of(command), [this, command = std::move(command)]() mutable {
    finish(std::move(command));
  });
}

Duration SimDevice::duration_of(const Command& command) {
  if (std::holds_alternative<Adopt>(command)) return Duration::zero();
  if (std::holds_alternative<ipc::Step>(command))
    return slower_ + std::chrono::microseconds(200 + settings_.random(8'000));
  return std::chrono::microseconds(1'000 + settings_.random(60'000));
}

// A step ends when all ranks have come to it.
void SimDevice::finish(Command command) {
  const auto end = [this](Command ended) {
    busy_ = false;
    done(std::move(ended));
    work();
  };
  if (!std::holds_alternative<ipc::Step>(command)) return end(std::move(command));
  launches_ = 1;
  const ipc::Step step = std::get<ipc::Step>(command);
  settings_.meet(*this, ++steps_run_, step,
                 [executor = executor_, end, command = std::move(command)] {
                   executor->post([end, command] { end(command); });
                 });
}

void SimDevice::done(Command command) {
  if (std::holds_alternative<StartGroup>(command)) return report(loaded_);
  if (const auto* adopted = std::get_if<Adopt>(&command)) return keep(*adopted);
  if (const auto* init = std::get_if<ipc::InitCache>(&command)) return prepare(*init);
  run(std::get<ipc::Step>(command));
}

void SimDevice::begin_epoch(Epoch epoch) {
  REFRAIN_CHECK(epoch > epoch_, "rank {} goes from epoch {} to {}", settings_.rank, epoch_, epoch);
  epoch_ = epoch;
  last_step_ = launches_ = 0;
  ready_ = false;
  peers_.clear();
  stuck_.clear();
  early_.clear();
}

void SimDevice::begin_load(const StartGroup& start) {
  begin_epoch(start.epoch);
  device_.reset();
  group_ = start.group;
  poisoned_.clear();
  steps_run_ = 0;
  config_ = start.config;
  loaded_ = {};
  loaded_.groups = testing::full_attention(settings_.num_kv_blocks);
  loaded_.steps_together = settings_.replicas > 1;
  if (config_.draft_model) {
    loaded_.groups.push_back(loaded_.groups.front());
    loaded_.groups.back().name = "draft.full_attention";
  }
  report(ipc::Progress{ipc::StartPhase::kConnect, 0, 1, ""});
}

// Slots and cache stay as they are.
void SimDevice::keep(Adopt adopted) {
  REFRAIN_CHECK(device_ != nullptr, "adopted before it was ready");
  begin_epoch(adopted.epoch);
  if (adopted.config) config_ = *adopted.config;
  loaded_.kept = true;
  report(loaded_);
}

void SimDevice::prepare(const ipc::InitCache& message) {
  REFRAIN_CHECK(!ready_, "InitCache after Ready");
  if (device_) {
    REFRAIN_CHECK(message.num_blocks.at(0) <= loaded_.groups.at(0).num_blocks,
                  "adopted with more blocks than the cache has");
  } else {
    for (size_t i = 0; i < loaded_.groups.size(); ++i)
      loaded_.groups[i].num_blocks = message.num_blocks.at(i);
    device_ = std::make_unique<testing::MockDevice>(
        config_.block_size, loaded_.groups, settings_.model.vocab, settings_.model.eos_every, true,
        config_.draft_model ? config_.num_speculative_tokens : 0);
  }
  ready_ = true;
  ipc::Ready ready;
  ready.cudagraph_mode = "FULL";
  ready.num_blocks = message.num_blocks;
  report(std::move(ready));
  if (!config_.kv_transfer) return;
  ipc::KvExport own;
  own.pid = settings_.pid;
  own.layer_flags = config_.publish_layers;
  report(std::move(own));
}

// Beside its steps, as the transfer thread does.
void SimDevice::transfer(worker::TransferThread::Command command) {
  if (!ready_) return;
  if (const auto* order = std::get_if<ipc::PullBlocks>(&command)) return pull(*order);
  if (const auto* cancel = std::get_if<ipc::CancelPull>(&command)) {
    if (stuck_.erase(cancel->id) + early_.erase(cancel->id) > 0)
      report(ipc::Pulled{cancel->id, 0, true, "cancelled"});
    return;
  }
  const auto& told = std::get<ipc::KvPeers>(command);
  peers_[told.group] = told;
}

// One in sixteen is lost, one fails, one is slow; a cancel comes too late for a write under way.
void SimDevice::pull(const ipc::PullBlocks& order) {
  const uint64_t fate = settings_.random(16);
  settings_.note(fmt::format("rank {} pulls {}, fate {}", settings_.rank, order.id, fate));
  if (fate == 0) {
    stuck_.insert(order.id);
    return;
  }
  auto takes = std::chrono::microseconds(100 + settings_.random(50'000));
  if (fate == 2) takes += std::chrono::microseconds(settings_.random(8'000'000));
  executor_->post_after(takes, [this, epoch = epoch_, order, fails = fate == 1] {
    if (epoch == epoch_) end_pull(order, fails);
  });
}

void SimDevice::end_pull(const ipc::PullBlocks& order, bool fails) {
  const ipc::KvPeers& from = peers_[order.group];
  SimDevice* other = nullptr;
  if (from.epoch == order.epoch && !from.ranks.empty())
    other = settings_.device_of(
        from.ranks[static_cast<size_t>(settings_.rank) % from.ranks.size()].pid);
  if (other == nullptr || other->epoch_ != order.epoch || other->device_ == nullptr)
    return report(ipc::Pulled{order.id, 0, true, "the group is gone"});
  if (other->last_step_ < order.step) {
    early_.insert(order.id);
    executor_->post_after(kLookEvery, [this, epoch = epoch_, order, fails] {
      if (epoch == epoch_ && early_.erase(order.id) > 0) end_pull(order, fails);
    });
    return;
  }
  device_->pull(*other->device_, order.blocks);
  report(ipc::Pulled{order.id, 1000, true, fails ? "lost" : ""});
}

void SimDevice::run(const ipc::Step& step) {
  REFRAIN_CHECK(ready_, "step {} before Ready", step.step);
  settings_.on_step(settings_.rank, epoch_, step);
  ipc::StepResult result = device_->run(step);
  result.rank = settings_.rank;
  result.mode = ipc::RuntimeMode::kFull;
  result.key_tokens = result.num_tokens;
  if (settings_.rank == 0) {
    for (const TokenId token : result.tokens) result.logprobs.push_back(logprob_of(token));
  } else {
    result.token_offsets.clear();
    result.drafted.clear();
    result.tokens.clear();
  }
  if (spoil(result)) return;
  last_step_ = result.step;
  launches_ = 0;
  settings_.note(
      fmt::format("rank {} ran step {} of epoch {}", settings_.rank, result.step, epoch_));
  report(std::move(result));
}

// Whether a row of the step ends this rank.
std::optional<Poison> SimDevice::poison_in(const ipc::Step& step) {
  for (const ipc::SlotSetup& setup : step.setups) {
    poisoned_.erase(setup.slot);
    if (const auto poison = Poison::of(setup.seed))
      poisoned_[setup.slot] = {*poison, setup.prompt_len};
  }
  const ipc::Rows& rows = step.runs.front().rows;
  for (size_t row = 0; row < rows.slot.size(); ++row) {
    const auto found = poisoned_.find(rows.slot[row]);
    if (found == poisoned_.end()) continue;
    const auto& [poison, prompt_len] = found->second;
    const bool verifies = (rows.flags[row] & ipc::kVerifies) != 0;
    const int32_t computed =
        verifies ? device_->length_of(rows.slot[row]) : rows.computed[row] + rows.num_tokens[row];
    if (poison.rank % config_.tensor_parallel_size == settings_.rank &&
        computed >= prompt_len + poison.after)
      return poison;
  }
  return std::nullopt;
}

// True when the process ends instead of answering.
bool SimDevice::spoil(ipc::StepResult& result) {
  switch (std::exchange(fault_, StepFault::kNone)) {
    case StepFault::kNone:
    case StepFault::kSpin:
      return false;
    case StepFault::kDeviceError:
      report(ipc::Failed{result.step, "the device is lost", false}, kExitInternal);
      return true;
    case StepFault::kOtherKey:
      result.key_tokens += 8;
      return false;
    case StepFault::kTokenTooLarge:
      for (TokenId& token : result.tokens) token = 1 << 20;
      return false;
    case StepFault::kRowMissing:
      if (result.token_offsets.size() > 1) {  // an idle replica has no row
        result.token_offsets.pop_back();
        result.drafted.pop_back();
        result.tokens.resize(static_cast<size_t>(result.token_offsets.back()));
        result.logprobs.resize(result.tokens.size());
      }
      return false;
  }
  REFRAIN_CHECK(false, "no such fault");
}

void SimDevice::report(ipc::Message message, std::optional<int> exit_code) {
  settings_.report({epoch_, std::move(message), exit_code});
}

}  // namespace refrain::sim
