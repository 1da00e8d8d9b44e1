#include "runtime/coordinator/coordinator.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <exception>
#include <functional>
#include <optional>
#include <thread>

#include "runtime/base/log.h"
#include "runtime/base/process_limits.h"
#include "runtime/base/report.h"
#include "runtime/bootstrap/engine_host.h"
#include "runtime/bootstrap/progress_display.h"
#include "runtime/coordinator/throughput_log.h"
#include "runtime/server/api_response.h"
#include "runtime/server/api_server.h"
#include "runtime/server/cudagraph_page.h"
#include "runtime/supervise/ending_watch.h"
#include "runtime/supervise/group_report.h"
#include "runtime/supervise/run_directory.h"
#include "runtime/supervise/signal_hold.h"

namespace refrain {
namespace {

// Half of the cores for what turns tokens into answers, half for what reads requests; the engine
// itself needs less than one.
int half_of_the_cores() {
  constexpr int kMost = 16;
  return std::clamp(static_cast<int>(std::thread::hardware_concurrency()) / 2, 2, kMost);
}

constexpr auto kLastAnswers = std::chrono::seconds(1);  // for answers that end with the engine
// For the threads to end after that, before the process is ended without them.
constexpr auto kLastThreads = std::chrono::seconds(4);
constexpr auto kLook = std::chrono::milliseconds(5);

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

// Signals: the first drains, a second one ends at once.
class Shutdown {
 public:
  Shutdown(EngineHost& host, ApiServer& api, HttpServer& http, EndingWatch& watch,
           std::shared_ptr<Executor> strand)
      : host_(host),
        api_(api),
        http_(http),
        watch_(watch),
        strand_(std::move(strand)),
        graphs_(host.engine(), strand_, host.config().log_stats_interval) {
    if (!host.config().disable_log_stats) throughput_.emplace(host.engine(), strand_);
  }

  void on_signal(int number) {
    if (++signals_ > 1) return end();
    if (ended_) return;
    log::info("{}: finishing running requests (at most {} s; once more ends at once)",
              number == SIGINT ? "SIGINT" : "SIGTERM", host_.config().drain_timeout);
    api_.set_draining();
    host_.engine().drain([this] { strand_->post([this] { end(); }); });
    const auto limit = to_duration(host_.config().drain_timeout);
    strand_->post_after(limit, [this] { end(); });
    watch_.end_within(limit + kLastThreads);
  }

  void end() {
    if (ended_) return;
    ended_ = true;
    watch_.end_within(kLastThreads);
    api_.stop_text();
    graphs_.show();
    http_.stop_accepting();
    host_.engine().stop();
    wait_for_answers(strand_->clock().now() + kLastAnswers);
  }

 private:
  // Answers that end now still have to reach their clients before the sockets close.
  void wait_for_answers(TimePoint limit) {
    strand_->post_after(kLook, [this, limit] {
      if (http_.answering() > 0 && strand_->clock().now() < limit) return wait_for_answers(limit);
      host_.io().stop();
    });
  }

  EngineHost& host_;
  ApiServer& api_;
  HttpServer& http_;
  EndingWatch& watch_;
  std::shared_ptr<Executor> strand_;
  GraphLog graphs_;
  std::optional<ThroughputLog> throughput_;
  int signals_ = 0;
  bool ended_ = false;
};

std::string incident_metrics(const SupervisorBoard::Counts& counts) {
  return fmt::format(
      "# HELP refrain:incidents_total Coordinators and worker groups lost, audits with "
      "differences\n"
      "# TYPE refrain:incidents_total counter\n"
      "refrain:incidents_total {}\n"
      "# HELP refrain:incidents_unwritten_total Incident records that could not be written\n"
      "# TYPE refrain:incidents_unwritten_total counter\n"
      "refrain:incidents_unwritten_total {}\n",
      counts.incidents, counts.unwritten);
}

// What a person sees of the workers' life, and what the supervisor is told.
class StateLog {
 public:
  // `on_failed` gets the exit code.
  StateLog(Engine& engine, std::string url, UniqueFd report_to, std::function<void(int)> on_failed)
      : engine_(engine), url_(std::move(url)), on_failed_(std::move(on_failed)) {
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
    if (state == GroupState::kReady) {
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

// What the supervisor would clear away, when it is gone.
void clear_after(int64_t parent) {
  if (parent <= 0 || ::getppid() == parent) return;
  remove_segments_of(::getpid());
  remove_run_of(static_cast<pid_t>(parent));
}

int coordinate(CoordinatorOptions options) {
  SignalHold signals;
  ::signal(SIGPIPE, SIG_IGN);  // a supervisor or a log that is gone is an error of write()
  // The engine has a thread to itself, so that no client's work delays a step. A connection and the
  // outputs of its requests share one of the output threads.
  const int threads = half_of_the_cores();
  const int64_t parent = options.parent;
  EndingWatch watch(static_cast<pid_t>(parent), kLastThreads, [parent] {
    log::critical("a thread did not end in time: the process ends without it");
    clear_after(parent);
    ::_exit(kExitInternal);
  });
  auto host = EngineHost::create(std::move(options.config), threads);
  if (!host) return report(host.error());
  EngineHost& engine_host = **host;
  const EngineConfig& config = engine_host.config();

  auto keys = ApiKeys::load(config);
  if (!keys) return report(keys.error());
  SupervisorBoard board;
  ApiServer api(engine_host.engine(), engine_host.text(), std::move(*keys), threads);
  if (options.board_fd >= 0) {
    auto mapped = SupervisorBoard::map(UniqueFd(options.board_fd));
    if (!mapped) return report(mapped.error());
    board = std::move(*mapped);
    api.add_metrics([&board] { return incident_metrics(board.counts()); });
  }
  HttpOptions http_options;
  http_options.host = config.host;
  http_options.port = config.port;
  http_options.tls_certificate_file = config.ssl_certfile;
  http_options.tls_key_file = config.ssl_keyfile;
  http_options.error_body = error_body;
  http_options.check_head = [&api](const HttpRequest& request) { return api.check_head(request); };
  http_options.answer_headers = [&api](const HttpRequest& request) {
    return api.answer_headers(request);
  };
  std::vector<IoContext*> io_threads;
  for (size_t i = 0; i < engine_host.outputs().size(); ++i)
    io_threads.push_back(&engine_host.outputs().context(i));
  auto http = HttpServer::listen(
      io_threads, http_options,
      [&api](HttpRequest request, const std::shared_ptr<HttpExchange>& exchange) {
        api.handle(std::move(request), exchange);
      });
  if (!http) return report(http.error());

  auto strand = engine_host.io().make_strand();
  Shutdown shutdown(engine_host, api, **http, watch, strand);
  engine_host.io().on_signals({SIGINT, SIGTERM}, strand,
                              [&shutdown](int number) { shutdown.on_signal(number); });
  // The supervisor is told, so that it ends with its coordinator and starts no other.
  api.on_drain([&shutdown, strand, parent] {
    if (parent > 0 && ::getppid() == parent) {
      ::kill(static_cast<pid_t>(parent), SIGTERM);
    } else {
      strand->post([&shutdown] { shutdown.on_signal(SIGTERM); });
    }
  });
  signals.release();
  int code = kExitOk;
  const std::string url = fmt::format("{}://{}:{}", config.ssl_certfile.empty() ? "http" : "https",
                                      config.host, (*http)->port());
  StateLog state_log(engine_host.engine(), url, UniqueFd(options.report_fd), [&](int failure) {
    code = failure;
    strand->post([&shutdown] { shutdown.end(); });
  });
  if (options.parent > 0) {
    const auto alone = [&] {
      log::error("the supervisor is gone: ending");
      shutdown.end();
    };
    if (!engine_host.io().on_process_exit(options.parent, strand, alone)) strand->post(alone);
  }
  std::optional<GivenUpWatch> given_up;
  if (config.num_groups() > 1) given_up.emplace(engine_host.engine(), board, strand);
  log::info("listening on {}; waiting for {} worker{} at {}", url, config.num_workers(),
            config.num_workers() == 1 ? "" : "s", config.ipc_address);
  engine_host.run();
  return code;
}

}  // namespace

int run_coordinator(CoordinatorOptions options) {
  survive_file_size_limit();
  if (const Status raised = raise_descriptor_limit(kLeastDescriptors); !raised) {
    return report(raised.error());
  }
  const int64_t parent = options.parent;
  const int code = coordinate(std::move(options));
  clear_after(parent);
  return code;
}

}  // namespace refrain
