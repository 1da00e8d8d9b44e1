#include "runtime/launch/coordinator.h"

#include <signal.h>
#include <sys/prctl.h>

#include <exception>
#include <functional>
#include <thread>

#include "runtime/base/log.h"
#include "runtime/launch/engine_host.h"
#include "runtime/server/api_response.h"

namespace refrain {
namespace {

constexpr int kTextThreads = 2;

// Signals: the first drains, a second one ends at once.
class Shutdown {
 public:
  Shutdown(EngineHost& host, ApiServer& api, HttpServer& http, std::shared_ptr<Executor> strand)
      : host_(host), api_(api), http_(http), strand_(std::move(strand)) {}

  void on_signal(int number) {
    if (++signals_ > 1) return end();
    log::info("{}: finishing running requests (at most {} s; once more ends at once)",
              number == SIGINT ? "SIGINT" : "SIGTERM", host_.config().drain_timeout);
    api_.set_draining();
    host_.engine().drain([this] { strand_->post([this] { end(); }); });
    const auto limit = std::chrono::duration_cast<Duration>(
        std::chrono::duration<double>(host_.config().drain_timeout));
    strand_->post_after(limit, [this] { end(); });
  }

 private:
  // Answers that end now still have to reach their clients before the sockets close.
  void end() {
    if (ended_) return;
    ended_ = true;
    http_.stop_accepting();
    host_.engine().stop();
    strand_->post_after(std::chrono::milliseconds(200), [this] {
      http_.close();
      strand_->post_after(std::chrono::milliseconds(50), [this] { host_.io().stop(); });
    });
  }

  EngineHost& host_;
  ApiServer& api_;
  HttpServer& http_;
  std::shared_ptr<Executor> strand_;
  int signals_ = 0;
  bool ended_ = false;
};

// Serves the HTTP server's I/O; an exception there ends the process like one of the engine.
class HttpThread {
 public:
  ~HttpThread() { join(); }
  IoContext& io() { return io_; }
  void start(std::function<void()> on_failure) {
    thread_ = std::thread([this, on_failure = std::move(on_failure)] {
      try {
        io_.run();
      } catch (...) {
        failure_ = std::current_exception();
        on_failure();
      }
    });
  }
  void stop() {
    join();
    if (failure_) std::rethrow_exception(failure_);
  }

 private:
  void join() {
    io_.stop();
    if (thread_.joinable()) thread_.join();
  }
  IoContext io_;
  std::thread thread_;
  std::exception_ptr failure_;
};

void log_state(GroupState state, const std::string& detail) {
  if (state == GroupState::kReady) return;  // the ready line names the address too
  log::info("workers {}{}{}", to_string(state), detail.empty() ? "" : ": ", detail);
}

}  // namespace

void die_with_parent(int signal_number) { ::prctl(PR_SET_PDEATHSIG, signal_number); }

int report(const Error& error) {
  log::error("{}", error.message);
  return exit_code(error.code);
}

int run_coordinator(CoordinatorOptions options) {
  if (options.die_with_parent) die_with_parent(SIGTERM);
  auto host = EngineHost::create(std::move(options.config));
  if (!host) return report(host.error());
  EngineHost& engine_host = **host;
  const EngineConfig& config = engine_host.config();

  // The engine has a thread to itself; HTTP has another, so that no client's work delays a step.
  HttpThread http_thread;
  ApiServer api(engine_host.engine(), engine_host.text(), kTextThreads);
  HttpOptions http_options;
  http_options.host = config.host;
  http_options.port = config.port;
  http_options.error_body = error_body;
  auto http =
      HttpServer::listen(http_thread.io(), http_options,
                         [&api](HttpRequest request, std::shared_ptr<HttpExchange> exchange) {
                           api.handle(std::move(request), std::move(exchange));
                         });
  if (!http) return report(http.error());

  auto strand = engine_host.io().make_strand();
  Shutdown shutdown(engine_host, api, **http, strand);
  engine_host.io().on_signals({SIGINT, SIGTERM}, strand,
                              [&shutdown](int number) { shutdown.on_signal(number); });
  int code = kExitOk;
  const std::string url = fmt::format("http://{}:{}", config.host, (*http)->port());
  engine_host.engine().on_state([&](GroupState state, const std::string& detail) {
    log_state(state, detail);
    if (state == GroupState::kReady) {
      log::info("ready: {} serves {} ({})", url, config.served_model_names.front(), detail);
    }
    if (state == GroupState::kFailed) {
      code = kExitConfig;
      engine_host.io().stop();
    }
  });
  log::info("listening on {}; waiting for {} worker{} at {}", url,
            config.worker.tensor_parallel_size, config.worker.tensor_parallel_size == 1 ? "" : "s",
            config.ipc_address);
  http_thread.start([&engine_host] { engine_host.io().stop(); });
  engine_host.run();
  http_thread.stop();
  return code;
}

}  // namespace refrain
