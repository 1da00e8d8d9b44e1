#include "tests/sim/cluster.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "runtime/base/build_info.h"
#include "runtime/base/check.h"
#include "runtime/engine/text_outputs.h"
#include "tests/sim/tap_endpoint.h"

namespace refrain::sim {
namespace {

constexpr Duration kRespawn = std::chrono::milliseconds(50);
// Until workers see that the coordinator is gone: its process's end, or its silence (worker.h).
constexpr Duration kSeen = std::chrono::milliseconds(100);
constexpr Duration kSilence = std::chrono::milliseconds(5500);

std::chrono::microseconds micros(uint64_t count) { return std::chrono::microseconds(count); }

std::string digest_of_model(const SimModel& model) { return fmt::format("model {}", model.vocab); }

}  // namespace

Cluster::Cluster(ManualScheduler& scheduler, ClusterOptions options,
                 std::shared_ptr<const text::Tokenizer> tokenizer)
    : scheduler_(scheduler),
      options_(std::move(options)),
      config_(options_.config),
      files_(options_.model),
      tokenizer_(std::move(tokenizer)),
      supervisor_(scheduler.make_executor("supervisor")),
      network_(scheduler.make_executor("network")),
      models_(1),
      successions_(static_cast<size_t>(num_groups()),
                   Succession(options_.watched ? kSeen : kSilence,
                              options_.calm && !options_.steps_together)),
      workers_(static_cast<size_t>(num_groups() * num_ranks())) {}

Cluster::~Cluster() {
  for (Worker& worker : workers_)
    if (worker.process) worker.process->kill();
  engine_.reset();
  if (engine_executor_) engine_executor_->kill();
  if (output_executor_) output_executor_->kill();
}

void Cluster::start() {
  start_coordinator();
  for (int32_t group = 0; group < num_groups(); ++group) spawn_group(group);
}

std::span<Cluster::Worker> Cluster::workers_of(int32_t group) {
  return std::span(workers_).subspan(static_cast<size_t>(group * num_ranks()),
                                     static_cast<size_t>(num_ranks()));
}

bool Cluster::adoptable() const {
  return std::ranges::all_of(successions_, [](const Succession& each) { return each.adoptable(); });
}

std::unique_ptr<ipc::Endpoint> Cluster::faulty(std::unique_ptr<ipc::Endpoint> inner,
                                               ipc::FaultEndpoint** line, TapEndpoint** tap) {
  ipc::FaultProgram program = healed_ ? ipc::FaultProgram{} : options_.line;
  program.seed = scheduler_.random(UINT64_MAX);
  // Frames on their way outlive their sender: the network delays them, not the process.
  auto tapped = std::make_unique<TapEndpoint>(std::move(inner));
  *tap = tapped.get();
  auto endpoint = std::make_unique<ipc::FaultEndpoint>(std::move(tapped), network_, program);
  *line = endpoint.get();
  return endpoint;
}

void Cluster::start_coordinator() {
  ++life_;
  note(fmt::format("coordinator {} starts", life_));
  models_.push_back(files_);
  engine_executor_ =
      std::make_shared<ProcessExecutor>(scheduler_.make_executor(fmt::format("engine{}", life_)));
  output_executor_ =
      std::make_shared<ProcessExecutor>(scheduler_.make_executor(fmt::format("output{}", life_)));
  EngineParts parts;
  parts.config = config_;
  parts.model.vocab_size = 512;
  parts.model.eos_token_ids = {0};
  parts.outputs = text_outputs({output_executor_}, tokenizer_);
  parts.engine_executor = engine_executor_;
  auto server = hub_->make_server(engine_executor_, options_.high_water_mark);
  REFRAIN_CHECK(server.has_value(), "two coordinators at once");
  parts.endpoint = faulty(std::move(*server), &server_line_, &server_tap_);
  parts.watch = [this](const ProcessIdentity& process, std::function<void()> gone) {
    return watch(process.pid, std::move(gone));
  };
  parts.kill = [this](int64_t pid) { kill_process(pid); };
  parts.build_id = build_id();
  parts.model_digest = digest_of_model(files_);
  parts.process = {"here", life_, 0};
  parts.token_prefix = fmt::format("group{}", life_);
  parts.first_epoch = first_epoch();
  for (AdapterId id = 1; id <= num_adapters(); ++id) {
    const std::string name = fmt::format("adapter{}", id);
    parts.adapters.push_back({name, name, "digest", "/", true});
  }
  engine_ = make_engine(std::move(parts));
  engine_->on_group_state([this](int32_t group, GroupState state, const std::string& detail) {
    note(fmt::format("group {} is {}: {}", group, to_string(state), detail));
    on_group_state(group, state, detail);
  });
  engine_->on_loss([this](const GroupLoss& loss) { on_loss(loss); });
  for (Succession& each : successions_) each.coordinator_started(scheduler_.clock().now());
  engine_->start();
}

void Cluster::on_group_state(int32_t group, GroupState state, const std::string& detail) {
  Succession& succession = successions_[static_cast<size_t>(group)];
  if (state == GroupState::kWaiting) lost.push_back(detail);
  if (state == GroupState::kFailed) violations.push_back("the group failed for good: " + detail);
  if (state == GroupState::kWaiting) succession.group_gone();
  if (state != GroupState::kReady) return;
  std::vector<const SimDevice*> ranks;
  for (const Worker& worker : workers_of(group))
    if (worker.process) ranks.push_back(&worker.process->device());
  succession.group_ready(scheduler_.clock().now(), ranks);
}

// Epochs begin from the wall clock, which may have been set back since the coordinator before.
Epoch Cluster::first_epoch() {
  const uint64_t now = static_cast<uint64_t>(life_) * 1'000'000;
  const bool set_back = life_ > 1 && !healed_ && !options_.calm && scheduler_.random(4) == 0;
  return static_cast<Epoch>(set_back ? 1 + scheduler_.random(now) : now);
}

// A collective of the group's ranks: whoever comes waits for the others, for ever if need be.
// The groups that live now: replicas meet with those alone.
std::string Cluster::tokens_of_all() const {
  std::string tokens;
  for (const Worker& worker : workers_)
    if (worker.process && worker.process->alive()) tokens += worker.process->device().group() + " ";
  return tokens;
}

void Cluster::meet(const SimDevice& device, uint64_t ordinal, const ipc::Step& step,
                   std::function<void()> go) {
  const bool together = options_.steps_together;
  const std::pair key{together ? tokens_of_all() : device.group(), ordinal};
  Meeting& meeting = meetings_[key];
  if (meeting.here.empty()) meeting.together = step.together;
  if (step.together != meeting.together ||
      step.together.size() != (together ? static_cast<size_t>(num_groups()) : 0))
    violations.push_back(
        fmt::format("ranks of {} were told of other sizes in step {} (CG-17)", key.first, ordinal));
  meeting.here.push_back(std::move(go));
  if (std::ssize(meeting.here) < (together ? num_places() : num_ranks())) return;
  const Meeting all = std::move(meeting);
  meetings_.erase(key);
  for (const auto& each : all.here) each();
}

bool Cluster::watch(int64_t pid, std::function<void()> gone) {
  if (!options_.watched) return false;
  watched_[pid] = std::move(gone);
  for (const Worker& worker : workers_)
    if (worker.process && worker.process->settings.pid == pid && worker.process->alive())
      return true;
  tell_watchers(pid);
  return true;
}

void Cluster::watch_coordinator(int64_t pid, const std::shared_ptr<Executor>& from,
                                int64_t coordinator, std::function<void()> gone) {
  if (engine_ && coordinator == life_) {
    watching_[pid] = {from, std::move(gone)};
  } else {
    from->post_after(micros(scheduler_.random(30'000)), std::move(gone));
  }
}

void Cluster::tell_watchers(int64_t pid) {
  const auto found = watched_.find(pid);
  if (found == watched_.end()) return;
  engine_executor_->post_after(micros(scheduler_.random(30'000)), std::move(found->second));
  watched_.erase(found);
}

void Cluster::after(Duration delay, std::function<void()> task) {
  supervisor_->post_after(delay, std::move(task));
}

void Cluster::spawn_group(int32_t group) {
  for (int32_t rank = 0; rank < num_ranks(); ++rank) spawn(group * num_ranks() + rank);
}

void Cluster::spawn(int32_t place) {
  const int32_t rank = place % num_ranks();
  WorkerSettings settings;
  settings.group = group_of(place);
  settings.rank = rank;
  settings.tensor_parallel_size = num_ranks();
  settings.pid = next_pid_++;
  settings.realm = options_.watched ? "here" : "elsewhere";
  settings.model_digest = digest_of_model(files_);
  SimDeviceSettings device;
  device.rank = rank;
  device.pid = settings.pid;
  device.device_of = [this](int64_t pid) -> SimDevice* {
    for (const Worker& each : workers_)
      if (each.process && each.process->settings.pid == pid && each.process->alive())
        return &each.process->device();
    return nullptr;
  };
  device.num_kv_blocks = options_.num_kv_blocks + rank;
  device.model = files_;
  device.random = [this](uint64_t bound) { return scheduler_.random(bound); };
  device.note = [this](const std::string& line) { note(line); };
  device.on_step = [this, place](int32_t, Epoch epoch, const ipc::Step& step) {
    compare_step(place, epoch, step);
  };
  device.replicas = options_.steps_together ? num_groups() : 1;
  device.meet = [this](const SimDevice& rank, uint64_t ordinal, const ipc::Step& step,
                       std::function<void()> go) { meet(rank, ordinal, step, std::move(go)); };
  device.on_poison = [this, place](int32_t, Epoch epoch, const Poison& poison) {
    on_poison(place, epoch, poison);
  };
  device.on_hang = [this, place](int32_t, Epoch epoch) { on_hang(place, epoch); };
  const std::string name = fmt::format("rank{}-pid{}", rank, settings.pid);
  auto executor = std::make_shared<ProcessExecutor>(scheduler_.make_executor(name));
  auto client = hub_->make_client(executor, name, options_.high_water_mark);
  REFRAIN_CHECK(client.has_value(), "{} is there twice", name);
  Worker& worker = workers_[static_cast<size_t>(place)];
  worker.name = name;
  auto endpoint = faulty(std::move(*client), &worker.line, &worker.tap);
  worker.process = std::make_unique<WorkerProcess>(
      settings, std::move(device), std::move(endpoint), executor,
      [this, executor, pid = settings.pid](const ProcessIdentity& coordinator,
                                           std::function<void()> gone) {
        watch_coordinator(pid, executor, coordinator.pid, std::move(gone));
        return true;
      },
      [this, place, pid = settings.pid](int code) {
        note(fmt::format("pid {} (place {}) ends with {}", pid, place, code));
        supervisor_->post([this, pid] { on_worker_exit(pid); });
      });
  if (place == hang_place_) {
    hang_place_ = -1;
    worker.process->device().hang_in_start(scheduler_.random(2) == 0);
  }
  executor->post_after(micros(scheduler_.random(100'000)),
                       [process = worker.process.get()] { process->start(); });
}

// The group is the unit of failure: when one process ends, the others are killed.
void Cluster::on_worker_exit(int64_t pid) {
  tell_watchers(pid);
  const auto ended = std::ranges::find_if(workers_, [pid](const Worker& worker) {
    return worker.process && worker.process->settings.pid == pid;
  });
  if (ending_ || ended == workers_.end()) return;
  const int32_t group = ended->process->settings.group;
  successions_[static_cast<size_t>(group)].group_gone();
  for (Worker& worker : workers_of(group)) {
    if (worker.process->alive()) {
      worker.process->kill();
      tell_watchers(worker.process->settings.pid);
    }
    worker.line = nullptr;
    worker.tap = nullptr;
    dead_.push_back(std::move(worker));
  }
  note(fmt::format("the supervisor starts group {} again", group));
  after(kRespawn + micros(scheduler_.random(200'000)), [this, group] {
    std::erase_if(
        dead_, [group](const Worker& worker) { return worker.process->settings.group == group; });
    if (!ending_) spawn_group(group);
  });
}

void Cluster::shut_down() {
  ending_ = true;
  if (engine_) engine_->stop();
}

size_t Cluster::workers_alive() const {
  size_t alive = 0;
  for (const Worker& worker : workers_) alive += worker.process && worker.process->alive();
  return alive;
}

// Every rank of an epoch runs the same steps.
void Cluster::compare_step(int32_t place, Epoch epoch, const ipc::Step& step) {
  for (const ipc::SlotSetup& setup : step.setups) seeds_seen.insert(setup.seed);
  std::vector<std::byte> frame;
  ipc::encode_frame(step, {epoch, 1}, frame);
  const auto [known, first] =
      steps_.emplace(std::pair{GroupEpoch{group_of(place), epoch}, step.step}, std::move(frame));
  if (first || num_ranks() == 1) return;
  std::vector<std::byte> mine;
  ipc::encode_frame(step, {epoch, 1}, mine);
  if (known->second != mine)
    violations.push_back(fmt::format("place {} ran another step {} of epoch {} than its peers",
                                     place, step.step, epoch));
}

}  // namespace refrain::sim
