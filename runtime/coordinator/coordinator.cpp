#include "runtime/coordinator/coordinator.h"

#include <functional>
#include <optional>

#include "runtime/base/log.h"
#include "runtime/base/report.h"
#include "runtime/bootstrap/engine_host.h"
#include "runtime/bootstrap/progress_display.h"
#include "runtime/coordinator/http_side.h"
#include "runtime/coordinator/shutdown.h"
#include "runtime/coordinator/throughput_log.h"
#include "runtime/server/cudagraph_page.h"
#include "runtime/supervise/group_report.h"

namespace refrain {
namespace {

// CG-32: the table of graphs that ran, at an interval when something ran since, and at the end.
class GraphLog {
 public:
  GraphLog(Engine& engine, std::shared_ptr<Executor> strand, double seconds)
      : engine_(engine), strand_(std::move(strand)), interval_(to_duration(seconds)) {
    if (seconds > 0) wait();
  }

  void show() {
    const EngineStats stats = engine_.stats();
    uint64_t steps = 0;
    for (const GraphUse& use : stats.graph_uses) steps += use.count;
    if (steps == shown_) return;
    shown_ = steps;
    log::info("graphs that ran:\n{}", cudagraph_text(stats));
  }

 private:
  void wait() {
    strand_->post_after(interval_, [this] {
      show();
      wait();
    });
  }

  Engine& engine_;
  std::shared_ptr<Executor> strand_;
  Duration interval_;
  uint64_t shown_ = 0;
};

// What the log is told of the engine's work.
class EngineLog {
 public:
  EngineLog(Engine& engine, const std::shared_ptr<Executor>& strand)
      : graphs_(engine, strand, engine.config().log_stats_interval) {
    if (!engine.config().disable_log_stats) throughput_.emplace(engine, strand);
  }
  void last() { graphs_.show(); }

 private:
  GraphLog graphs_;
  std::optional<ThroughputLog> throughput_;
};

// What a person sees of the workers' life, and what the supervisor is told.
class StateLog {
 public:
  // `url`: of this process's server; empty: `front` is another one's, which is told of changes.
  // `on_failed` gets the exit code.
  StateLog(Engine& engine, std::string url, front::FrontDoor* front, UniqueFd report_to,
           std::function<void(int)> on_failed)
      : engine_(engine), url_(std::move(url)), front_(front), on_failed_(std::move(on_failed)) {
    if (report_to) pipe_.emplace(std::move(report_to));
    engine_.on_loss([this](const GroupLoss& loss) {
      // Slow workers are no mistake of a configuration.
      if (loss.detector == GroupLoss::kStartTimeout) code_of_failure_ = kExitTryAgain;
      if (pipe_) pipe_->send({false, loss});
    });
    engine_.on_isolation([this](Isolation isolation) {
      if (pipe_) pipe_->send({false, {}, isolation});
    });
    engine_.on_group_state([this](int32_t group, GroupState state, const std::string& detail) {
      on_group_state(group, state, detail);
    });
    engine_.on_audit([this](const AuditFinding& finding) {
      if (pipe_) pipe_->send({false, {}, {}, finding});
    });
    engine_.on_progress([this](const StartProgress& progress) { display_.show(progress); });
    engine_.on_state(
        [this](GroupState state, const std::string& detail) { on_state(state, detail); });
  }

 private:
  void on_group_state(int32_t group, GroupState state, const std::string& detail) {
    if (front_ != nullptr) front_->tell_state();
    if (state == GroupState::kReady && pipe_) {
      GroupReport report;
      report.ready = true;
      report.group = group;
      pipe_->send(report);
    }
    if (engine_.config().num_groups() == 1) return;
    display_.finish();
    log::info("group {} {}{}{}", group, to_string(state), detail.empty() ? "" : ": ", detail);
  }

  void on_state(GroupState state, const std::string& detail) {
    display_.finish();
    if (state == GroupState::kReady && front_ == nullptr) {
      log::info("ready: {} serves {} ({})", url_, engine_.config().served_model_names.front(),
                detail);
    } else if (state == GroupState::kFailed) {
      log::error("workers failed: {}", detail);
      on_failed_(code_of_failure_);
    } else {
      log::info("workers {}{}{}", to_string(state), detail.empty() ? "" : ": ", detail);
    }
  }

  Engine& engine_;
  std::string url_;
  front::FrontDoor* front_;
  std::optional<ReportPipe> pipe_;  // to the supervisor
  std::function<void(int)> on_failed_;
  int code_of_failure_ = kExitConfig;
  ProgressDisplay display_{stderr_is_terminal()};
};

// Tells the engine of groups that the supervisor does not start again.
class GivenUpWatch {
 public:
  GivenUpWatch(Engine& engine, const SupervisorBoard& board, std::shared_ptr<Executor> strand)
      : engine_(engine), board_(board), strand_(std::move(strand)) {
    look();
  }

 private:
  void look() {
    for (int32_t group = 0; group < engine_.config().num_groups(); ++group)
      if (board_.given_up(group)) engine_.give_up_group(group);
    strand_->post_after(std::chrono::seconds(1), [this] { look(); });
  }

  Engine& engine_;
  const SupervisorBoard& board_;
  std::shared_ptr<Executor> strand_;
};

Result<std::unique_ptr<EngineHost>> make_host(CoordinatorOptions& options) {
  if (!options.front.empty())
    return EngineHost::create_behind_front(std::move(options.config), options.front);
  // The engine has a thread to itself, so that no client's work delays a step. A connection and the
  // outputs of its requests share one of the output threads.
  return EngineHost::create(std::move(options.config), half_of_the_cores());
}

int coordinate(CoordinatorOptions& options, SignalHold& signals, EndingWatch& watch) {
  auto host = make_host(options);
  if (!host) return report(host.error());
  EngineHost& engine_host = **host;
  Engine& engine = engine_host.engine();
  const EngineConfig& config = engine_host.config();

  std::unique_ptr<HttpSide> http;
  SupervisorBoard own_board;
  if (engine_host.front() == nullptr) {
    auto side =
        HttpSide::listen(engine, engine_host.text(), engine_host.outputs(), options.board_fd);
    if (!side) return report(side.error());
    http = std::move(*side);
  } else if (options.board_fd >= 0) {
    auto mapped = SupervisorBoard::map(UniqueFd(options.board_fd));
    if (!mapped) return report(mapped.error());
    own_board = std::move(*mapped);
  }
  const SupervisorBoard& board = http == nullptr ? own_board : http->board();

  auto strand = engine_host.io().make_strand();
  EngineLog engine_log(engine, strand);
  Shutdown shutdown(engine, engine_host.io(), http.get(), watch, strand);
  shutdown.before_end([&engine_log] { engine_log.last(); });
  shutdown.take_signals(options.parent);
  signals.release();
  int code = kExitOk;
  StateLog state_log(engine, http == nullptr ? "" : http->url(), engine_host.front(),
                     UniqueFd(options.report_fd), [&](int failure) {
                       code = failure;
                       strand->post([&shutdown] { shutdown.end(); });
                     });
  end_with_parent(options.parent, engine_host.io(), strand, shutdown);
  std::optional<GivenUpWatch> given_up;
  if (config.num_groups() > 1) given_up.emplace(engine, board, strand);
  log::info(
      "{}; waiting for {} worker{} at {}",
      http == nullptr ? "behind the front at " + options.front : "listening on " + http->url(),
      config.num_workers(), config.num_workers() == 1 ? "" : "s", config.ipc_address);
  engine_host.run();
  return code;
}

}  // namespace

int run_coordinator(CoordinatorOptions options) {
  return run_program(options.parent, [&options](SignalHold& signals, EndingWatch& watch) {
    return coordinate(options, signals, watch);
  });
}

}  // namespace refrain
