#include "tests/sim/cluster.h"

#include <fmt/format.h>

#include <deque>
#include <utility>

#include "runtime/base/check.h"

namespace refrain::sim {
namespace {

constexpr Duration kRespawn = std::chrono::milliseconds(50);

std::chrono::microseconds micros(uint64_t count) { return std::chrono::microseconds(count); }

}  // namespace

// Remembers the frames that went out last.
class TapEndpoint final : public ipc::Endpoint {
 public:
  using Sent = std::pair<ipc::PeerId, std::vector<std::byte>>;

  explicit TapEndpoint(std::unique_ptr<ipc::Endpoint> inner) : inner_(std::move(inner)) {}
  void start(FrameHandler on_frame) override { inner_->start(std::move(on_frame)); }
  Status send(const ipc::PeerId& to, std::span<const std::byte> frame) override {
    sent_.emplace_back(to, std::vector<std::byte>(frame.begin(), frame.end()));
    if (sent_.size() > kKept) sent_.pop_front();
    return inner_->send(to, frame);
  }
  void close() override { inner_->close(); }

  std::vector<Sent> sent() const { return {sent_.begin(), sent_.end()}; }
  // A frame of the past; what cannot be sent is lost.
  void send_again(const Sent& frame) {
    const auto decoded = ipc::decode_frame(frame.second);
    if (decoded && std::holds_alternative<ipc::Hello>(decoded->message)) return;
    if (!inner_->send(frame.first, frame.second)) return;
  }

 private:
  static constexpr size_t kKept = 100;
  std::unique_ptr<ipc::Endpoint> inner_;
  std::deque<Sent> sent_;
};

Cluster::Cluster(ManualScheduler& scheduler, ClusterOptions options,
                 std::shared_ptr<const text::Tokenizer> tokenizer)
    : scheduler_(scheduler),
      options_(std::move(options)),
      tokenizer_(std::move(tokenizer)),
      supervisor_(scheduler.make_executor("supervisor")),
      network_(scheduler.make_executor("network")),
      workers_(static_cast<size_t>(options_.config.worker.tensor_parallel_size)) {}

Cluster::~Cluster() {
  for (Worker& worker : workers_)
    if (worker.process) worker.process->kill();
  engine_.reset();
  if (engine_executor_) engine_executor_->kill();
  if (output_executor_) output_executor_->kill();
}

void Cluster::start() {
  start_coordinator();
  spawn_group();
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
  engine_executor_ =
      std::make_shared<ProcessExecutor>(scheduler_.make_executor(fmt::format("engine{}", life_)));
  output_executor_ =
      std::make_shared<ProcessExecutor>(scheduler_.make_executor(fmt::format("output{}", life_)));
  EngineParts parts;
  parts.config = options_.config;
  parts.model.vocab_size = 512;
  parts.model.eos_token_ids = {0};
  parts.tokenizer = tokenizer_;
  parts.engine_executor = engine_executor_;
  parts.output_executor = output_executor_;
  auto server = hub_->make_server(engine_executor_, options_.high_water_mark);
  REFRAIN_CHECK(server.has_value(), "two coordinators at once");
  parts.endpoint = faulty(std::move(*server), &server_line_, &server_tap_);
  parts.watch = [this](int64_t pid, std::function<void()> gone) {
    return watch(pid, std::move(gone));
  };
  parts.kill = [this](int64_t pid) { kill_process(pid); };
  parts.build_id = "build";
  parts.model_digest = "digest";
  parts.host = "here";
  parts.token_prefix = "group";
  parts.first_epoch = static_cast<Epoch>(life_) * 1'000'000;
  engine_ = make_engine(std::move(parts));
  engine_->on_state([this](GroupState state, const std::string& detail) {
    note(fmt::format("the group is {}: {}", to_string(state), detail));
    if (state == GroupState::kWaiting) lost.push_back(detail);
    if (state == GroupState::kFailed) violations.push_back("the group failed for good: " + detail);
  });
  engine_->start();
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

void Cluster::tell_watchers(int64_t pid) {
  const auto found = watched_.find(pid);
  if (found == watched_.end()) return;
  engine_executor_->post_after(micros(scheduler_.random(30'000)), std::move(found->second));
  watched_.erase(found);
}

void Cluster::after(Duration delay, std::function<void()> task) {
  supervisor_->post_after(delay, std::move(task));
}

void Cluster::spawn_group() {
  respawning_ = false;
  for (size_t rank = 0; rank < workers_.size(); ++rank) spawn(static_cast<int32_t>(rank));
}

void Cluster::spawn(int32_t rank) {
  WorkerSettings settings;
  settings.rank = rank;
  settings.tensor_parallel_size = options_.config.worker.tensor_parallel_size;
  settings.pid = next_pid_++;
  settings.host = options_.watched ? "here" : "elsewhere";
  settings.num_kv_blocks = options_.num_kv_blocks + rank;
  settings.model = options_.model;
  const std::string name = fmt::format("rank{}-pid{}", rank, settings.pid);
  auto executor = std::make_shared<ProcessExecutor>(scheduler_.make_executor(name));
  auto client = hub_->make_client(executor, name, options_.high_water_mark);
  REFRAIN_CHECK(client.has_value(), "{} is there twice", name);
  WorkerHooks hooks;
  hooks.random = [this](uint64_t bound) { return scheduler_.random(bound); };
  hooks.note = [this](const std::string& line) { note(line); };
  hooks.on_step = [this](int32_t from, Epoch epoch, const ipc::Step& step) {
    compare_step(from, epoch, step);
  };
  hooks.on_exit = [this, pid = settings.pid](int) {
    supervisor_->post([this, pid] { on_worker_exit(pid); });
  };
  Worker& worker = workers_[static_cast<size_t>(rank)];
  worker.name = name;
  auto endpoint = faulty(std::move(*client), &worker.line, &worker.tap);
  worker.process = std::make_unique<WorkerProcess>(std::move(settings), std::move(endpoint),
                                                   executor, std::move(hooks));
  executor->post_after(micros(scheduler_.random(100'000)),
                       [process = worker.process.get()] { process->start(); });
}

// The group is the unit of failure: when one process ends, the others are killed.
void Cluster::on_worker_exit(int64_t pid) {
  tell_watchers(pid);
  if (ending_ || respawning_) return;
  bool of_this_group = false;
  for (const Worker& worker : workers_)
    of_this_group |= worker.process && worker.process->settings.pid == pid;
  if (!of_this_group) return;
  respawning_ = true;
  for (Worker& worker : workers_) {
    if (worker.process->alive()) {
      worker.process->kill();
      tell_watchers(worker.process->settings.pid);
    }
    worker.line = nullptr;
    worker.tap = nullptr;
    dead_.push_back(std::move(worker));
  }
  note("the supervisor starts the workers again");
  after(kRespawn + micros(scheduler_.random(200'000)), [this] {
    dead_.clear();
    if (!ending_) spawn_group();
  });
}

Cluster::Worker* Cluster::at(int32_t rank) {
  Worker& worker = workers_[static_cast<size_t>(rank)];
  return worker.process && worker.process->alive() ? &worker : nullptr;
}

void Cluster::kill_worker(int32_t rank) {
  Worker* worker = at(rank);
  if (worker == nullptr) return;
  const int64_t pid = worker->process->settings.pid;
  note(fmt::format("FAULT: rank {} (pid {}) is killed", rank, pid));
  worker->process->kill();
  supervisor_->post([this, pid] { on_worker_exit(pid); });
}

// The coordinator ends a worker that does not go.
void Cluster::kill_process(int64_t pid) {
  for (Worker& worker : workers_) {
    if (!worker.process || worker.process->settings.pid != pid) continue;
    if (!options_.watched || !worker.process->alive())
      violations.push_back(fmt::format("pid {} is killed, which is not watched or gone", pid));
    note(fmt::format("the coordinator kills pid {}", pid));
    worker.process->kill();
    supervisor_->post([this, pid] { on_worker_exit(pid); });
  }
}

void Cluster::freeze_worker(int32_t rank, Duration how_long) {
  Worker* worker = at(rank);
  if (worker == nullptr) return;
  const int64_t pid = worker->process->settings.pid;
  note(fmt::format("FAULT: rank {} (pid {}) stands still", rank, pid));
  worker->process->stop();
  after(how_long, [this, rank, pid] {
    Worker* still = at(rank);
    if (still == nullptr || still->process->settings.pid != pid) return;
    note(fmt::format("rank {} (pid {}) goes on", rank, pid));
    still->process->resume();
  });
}

void Cluster::cut_worker(int32_t rank, Duration how_long) {
  Worker* worker = at(rank);
  if (worker == nullptr) return;
  const int64_t pid = worker->process->settings.pid;
  note(fmt::format("FAULT: the line of rank {} (pid {}) is cut", rank, pid));
  worker->line->set_cut(true);
  after(how_long, [this, rank, pid] {
    Worker* still = at(rank);
    if (still == nullptr || still->process->settings.pid != pid) return;
    note(fmt::format("the line of rank {} (pid {}) is whole again", rank, pid));
    still->line->set_cut(false);
  });
}

void Cluster::slow_worker(int32_t rank, Duration each_step, Duration how_long) {
  Worker* worker = at(rank);
  if (worker == nullptr) return;
  const int64_t pid = worker->process->settings.pid;
  note(fmt::format("FAULT: rank {} (pid {}) is slow", rank, pid));
  worker->process->slow_down(each_step);
  after(how_long, [this, rank, pid] {
    Worker* still = at(rank);
    if (still != nullptr && still->process->settings.pid == pid)
      still->process->slow_down(Duration::zero());
  });
}

void Cluster::fault_step(int32_t rank, StepFault fault) {
  Worker* worker = at(rank);
  if (worker == nullptr) return;
  note(fmt::format("FAULT: the next step of rank {} goes wrong ({})", rank,
                   static_cast<int>(fault)));
  worker->process->fault_next_step(fault);
}

void Cluster::greet_again(int32_t rank) {
  Worker* worker = at(rank);
  if (worker == nullptr) return;
  note(fmt::format("FAULT: rank {} thinks that the coordinator is gone", rank));
  worker->process->lose_connection();
}

void Cluster::replay(int32_t rank) {
  Worker* worker = at(rank);
  if (worker == nullptr || !engine_) return;
  note(fmt::format("FAULT: old frames of rank {} come again", rank));
  for (const TapEndpoint::Sent& frame : worker->tap->sent()) worker->tap->send_again(frame);
  std::vector<TapEndpoint::Sent> frames = old_frames_;
  for (TapEndpoint::Sent& frame : server_tap_->sent()) frames.push_back(std::move(frame));
  for (const TapEndpoint::Sent& frame : frames)
    if (frame.first == worker->name) server_tap_->send_again(frame);
}

void Cluster::kill_coordinator(Duration back_after) {
  if (!engine_) return;
  note("FAULT: the coordinator is killed");
  old_frames_ = server_tap_->sent();
  engine_executor_->kill();
  output_executor_->kill();
  engine_.reset();
  watched_.clear();
  on_coordinator_gone(life_);
  after(back_after, [this] { start_coordinator(); });
}

void Cluster::freeze_coordinator(Duration how_long) {
  if (!engine_) return;
  note("FAULT: the coordinator stands still");
  engine_executor_->stop();
  output_executor_->stop();
  after(how_long, [this, engine = engine_executor_, output = output_executor_] {
    note("the coordinator goes on");
    engine->resume();
    output->resume();
  });
}

void Cluster::heal() {
  note("from now on nothing goes wrong");
  healed_ = true;
  if (engine_) server_line_->set_program({});
  engine_executor_->resume();
  output_executor_->resume();
  for (Worker& worker : workers_) {
    if (!worker.process || !worker.process->alive()) continue;
    worker.line->set_program({});
    worker.line->set_cut(false);
    worker.process->resume();
    worker.process->slow_down(Duration::zero());
    worker.process->fault_next_step(StepFault::kNone);
  }
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
void Cluster::compare_step(int32_t rank, Epoch epoch, const ipc::Step& step) {
  for (const ipc::SlotSetup& setup : step.setups) seeds_seen.insert(setup.seed);
  std::vector<std::byte> frame;
  ipc::encode_frame(step, {epoch, 1}, frame);
  const auto [known, first] = steps_.emplace(std::pair{epoch, step.step}, std::move(frame));
  if (first || workers_.size() == 1) return;
  std::vector<std::byte> mine;
  ipc::encode_frame(step, {epoch, 1}, mine);
  if (known->second != mine)
    violations.push_back(fmt::format("rank {} ran another step {} of epoch {} than its peers", rank,
                                     step.step, epoch));
}

}  // namespace refrain::sim
