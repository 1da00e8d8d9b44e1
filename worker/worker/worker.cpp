#include "worker/worker/worker.h"

#include <utility>

#include "runtime/base/build_info.h"
#include "runtime/base/log.h"

namespace refrain::worker {

namespace {

// A Hello to a coordinator that is not there waits in the connection's queue, so that few suffice.
constexpr auto kOrphanHello = std::chrono::seconds(1);
constexpr auto kOrphanPause = std::chrono::milliseconds(50);  // until its broken connection is seen
// For steps that the dead coordinator had sent. A rank whose peer never got its step waits in vain.
constexpr auto kOldStepsTimeout = std::chrono::seconds(3);

}  // namespace

Worker::Worker(const WorkerOptions& options, Identity identity, std::shared_ptr<Executor> executor,
               std::unique_ptr<ipc::Endpoint> endpoint, WorkerDevice& device, ProcessWatch watch,
               std::function<void(int)> on_exit)
    : options_(options),
      identity_(std::move(identity)),
      executor_(std::move(executor)),
      link_(std::move(endpoint), executor_->clock()),
      device_(device),
      watch_(std::move(watch)),
      on_exit_(std::move(on_exit)) {}

void Worker::start() {
  link_.start({
      [this](Epoch epoch, const ipc::Welcome& welcome) { on_welcome(epoch, welcome); },
      [this](const std::string& reason) {
        end(kExitConfig, fmt::format("refused by the coordinator: {}", reason));
      },
      [this](ipc::Message message) { on_message(std::move(message)); },
      [this](const std::string& reason) { end(kExitInternal, reason); },
  });
  say_hello();
  watch_coordinator();
}

void Worker::say_hello() {
  ipc::Hello hello;
  hello.build_id = build_id();
  hello.model_digest = identity_.model_digest;
  hello.group = options_.group;
  hello.rank = options_.rank;
  hello.tensor_parallel_size = options_.tensor_parallel_size;
  hello.pid = identity_.process.pid;
  hello.process_start = identity_.process.start;
  hello.realm = identity_.process.realm;
  hello.host = identity_.host;
  hello.device = identity_.device;
  hello.role = options_.role;
  if (held_ && !steps_together_) hello.held_group = group_.token;
  hello.last_epoch = link_.epoch();
  awaiting_welcome_ = true;
  last_hello_ = executor_->clock().now();
  link_.send_hello(hello);
}

// CG-23: the coordinator lets the group go and takes it again, for something else.
void Worker::take_role(ipc::GroupRole role) {
  log::info("the group is for {} from now on", ipc::to_string(role));
  if (!options_.role.empty()) options_.role = ipc::to_string(role);
  say_hello();
}

// Repeats Hello while nobody answers, gives up as an orphan, notices a coordinator that fell silent
// or a device that does not come out of its old steps, and tells how far the device is.
void Worker::watch_coordinator() {
  const TimePoint now = executor_->clock().now();
  const Duration interval = orphan_since_ ? kOrphanHello : options_.hello_interval;
  if (orphan_since_ && now - *orphan_since_ >= options_.orphan_timeout) {
    return end(kExitTryAgain,
               fmt::format("no coordinator came back to {} within {:.0f} s", options_.coordinator,
                           seconds_between(*orphan_since_, now)));
  }
  if (old_steps_until_ && now >= *old_steps_until_) {
    const std::string stuck = "the device did not finish the steps of the coordinator before";
    link_.send(ipc::Failed{0, stuck, false});
    return end(kExitInternal, stuck);
  }
  if (awaiting_welcome_) {
    if (now - last_hello_ >= interval) say_hello();
  } else if (!watched_ && now - link_.last_heard() >= options_.coordinator_timeout) {
    become_orphan("is silent");
  }
  if (held_ && !awaiting_welcome_) link_.send(device_.position());
  watch_timer_ = executor_->post_after(options_.heartbeat, [this] { watch_coordinator(); });
}

// weights and graphs stay; what comes next is a new coordinator's Welcome, or the end.
void Worker::become_orphan(const std::string& why) {
  if (ended_ || orphan_since_) return;
  log::warn("the coordinator {}; waiting up to {:.0f} s for its successor at {}", why,
            seconds_of(options_.orphan_timeout), options_.coordinator);
  orphan_since_ = executor_->clock().now();
  watched_ = false;
  awaiting_welcome_ = true;
  last_hello_ = *orphan_since_;
  executor_->post_after(kOrphanPause, [this] {
    if (!ended_ && awaiting_welcome_) say_hello();
  });
}

void Worker::watch_process(Epoch epoch, const ipc::Welcome& welcome) {
  watched_ = false;
  const ProcessIdentity coordinator{welcome.realm, welcome.pid, welcome.process_start};
  if (!coordinator.same_realm(identity_.process)) return;
  watched_ = watch_(coordinator, [this, epoch] {
    if (link_.epoch() == epoch) become_orphan("ended");
  });
}

void Worker::on_welcome(Epoch epoch, const ipc::Welcome& welcome) {
  if (ended_) return;
  awaiting_welcome_ = false;
  orphan_since_.reset();
  if (welcome.config.tensor_parallel_size != options_.tensor_parallel_size) {
    return fail_configuration(
        fmt::format("the coordinator runs tensor-parallel-size {}, this worker was started with {}",
                    welcome.config.tensor_parallel_size, options_.tensor_parallel_size));
  }
  watch_process(epoch, welcome);
  if (!welcome.held_group.empty() && (!held_ || welcome.held_group != group_.token)) {
    return end(kExitTryAgain, fmt::format("the coordinator counts on the graphs of {}, as an older "
                                          "Hello offered; they are gone",
                                          welcome.held_group));
  }
  if (held_ || old_steps_until_) old_steps_until_ = executor_->clock().now() + kOldStepsTimeout;
  if (!welcome.held_group.empty() && ipc::same_but_for_role(group_.config, welcome.config))
    return adopt(epoch, welcome.config);
  start_group(epoch, welcome);
}

void Worker::start_group(Epoch epoch, const ipc::Welcome& welcome) {
  log::info("joined group {} of {}, epoch {}", welcome.group_token, options_.coordinator, epoch);
  group_ = {welcome.group_token, welcome.config};
  held_ = false;
  RunnerOptions runner;
  runner.model_directory = options_.model;
  runner.model = identity_.model;
  runner.config = welcome.config;
  runner.rank = options_.rank;
  runner.group_token = welcome.group_token;
  runner.listen_on = options_.listen_on;
  runner.debug = options_.debug;
  runner.adapters = options_.adapters;
  runner.draft_directory = options_.draft_model;
  runner.draft = identity_.draft;
  runner.debug.check_weights |= welcome.check_weights;
  device_.start_group(epoch, std::move(runner));
}

void Worker::adopt(Epoch epoch, const ipc::WorkerConfig& config) {
  const bool same = config == group_.config;
  log::info("adopted by {} with the weights {} of {}, epoch {}", options_.coordinator,
            same ? "and graphs" : "and blocks", group_.token, epoch);
  group_.config = config;
  if (!same) held_ = false;
  same ? device_.adopt(epoch) : device_.recapture(epoch, config);
}

void Worker::on_message(ipc::Message message) {
  if (ended_) return;
  if (auto* step = std::get_if<ipc::Step>(&message)) {
    device_.step(std::move(*step));
  } else if (auto* peers = std::get_if<ipc::Peers>(&message)) {
    device_.peers(std::move(*peers));
  } else if (auto* grammar = std::get_if<ipc::Grammar>(&message)) {
    device_.grammar(std::move(*grammar));
  } else if (const auto* init = std::get_if<ipc::InitCache>(&message)) {
    device_.init_cache(*init);
  } else if (auto* load = std::get_if<ipc::LoadAdapter>(&message)) {
    device_.load_adapter(std::move(*load));
  } else if (const auto* unload = std::get_if<ipc::UnloadAdapter>(&message)) {
    device_.unload_adapter(*unload);
  } else if (auto* others = std::get_if<ipc::KvPeers>(&message)) {
    device_.transfer(std::move(*others));
  } else if (auto* pull = std::get_if<ipc::PullBlocks>(&message)) {
    device_.transfer(std::move(*pull));
  } else if (const auto* cancel = std::get_if<ipc::CancelPull>(&message)) {
    device_.transfer(*cancel);
  } else if (const auto* role = std::get_if<ipc::TakeRole>(&message)) {
    take_role(role->role);
  } else if (const auto* shutdown = std::get_if<ipc::Shutdown>(&message)) {
    end(kExitOk, fmt::format("shut down by the coordinator: {}", shutdown->reason));
  } else {
    log::warn("a {} is not for a worker; dropped", ipc::message_name(message.index()));
  }
}

void Worker::on_report(DeviceReport report) {
  if (ended_) return;
  const bool current = report.epoch == link_.epoch() && report.epoch != 0;
  if (current) note(report.message);
  if (current && !awaiting_welcome_) link_.send(report.message);
  if (report.exit_code) {
    const auto* failed = std::get_if<ipc::Failed>(&report.message);
    end(*report.exit_code, failed != nullptr ? failed->message : "the device thread ended");
  }
}

void Worker::note(const ipc::Message& message) {
  old_steps_until_.reset();  // it speaks for the new epoch
  // The steps of a coordinator that ends come to all ranks of a group or, by their collectives, to
  // none; to replicas that step together they may come in unequal numbers, so these start anew.
  if (const auto* loaded = std::get_if<ipc::Loaded>(&message))
    steps_together_ = loaded->steps_together;
  if (std::holds_alternative<ipc::Ready>(message)) held_ = true;
}

void Worker::fail_configuration(const std::string& message) {
  link_.send(ipc::Failed{0, message, true});
  end(kExitConfig, message);
}

void Worker::end(int exit_code, const std::string& reason) {
  if (ended_) return;
  ended_ = true;
  if (exit_code == kExitOk) {
    log::info("ending: {}", reason);
  } else {
    log::error("ending with exit code {}: {}", exit_code, reason);
  }
  executor_->cancel(watch_timer_);
  link_.close();
  on_exit_(exit_code);
}

}  // namespace refrain::worker
